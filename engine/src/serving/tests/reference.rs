//! A replay that goes token by token: every request keeps its own figures, every cached block stands in a plain list, and
//! memory is added up anew for each question. Slow, and easy to check by eye.

use crate::cost::{BLOCK_TOKENS, Batch, Plan, price};
use crate::policy::Keep;
use crate::serving::{Admit, Compose, Fate, Preempted, Role, Routing, Rules, Setup, Traffic, Victim};
use crate::workload::{Pause, Workload};

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Away,
    Prefill,
    Decode,
}

/// A request.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "plain flags keep the slow replay easy to check by eye")]
pub(super) struct Slow {
    phase: Phase,
    prefill: u32,
    done: u32,
    /// Tokens generated, and how many there were when it last began to decode.
    generated: u32,
    base: u32,
    /// Context when it last began to decode.
    start: u32,
    /// Tokens for which the step that runs has taken room.
    extra: u32,
    pinned: Vec<u32>,
    publishes: bool,
    shares: bool,
    has_kv: bool,
    began: f64,
    arrival: f64,
    last_token: Option<f64>,
    pub instance: usize,
    pub ttft: Option<f64>,
    pub e2e: Option<f64>,
    pub longest: Option<f64>,
    pub hit: u32,
    admitted: bool,
    pub preemptions: u32,
    pub fate: Fate,
}

/// A cached thing: a unit, or one block of a request that left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cached {
    Unit(u32),
    Block { request: usize, index: u32, preemptions: u32 },
}

/// Memory of a request that has ended here but is not free yet.
#[derive(Debug, Clone)]
struct Ghost {
    request: usize,
    state: Slow,
    /// Ends of steps to wait for, and a time to wait for.
    steps: u32,
    until: f64,
}

#[derive(Debug, Clone)]
struct Step {
    start: f64,
    end: f64,
    chunks: Vec<(usize, u32)>,
    decoding: Vec<usize>,
}

struct Machine<'a> {
    plan: &'a Plan,
    role: Role,
    waiting: Vec<usize>,
    inbox: Vec<(usize, f64)>,
    running: Vec<usize>,
    ghosts: Vec<Ghost>,
    cached: Vec<Cached>,
    preempted: bool,
    moved: u64,
    step: Option<Step>,
    last: Option<(f64, f64)>,
    /// Decode steps since it looked for arrivals; 0 if it looks now.
    looked: u32,
    link_free: f64,
}

pub(super) struct Replay<'a> {
    setup: &'a Setup<'a>,
    rules: &'a Rules,
    workload: &'a Workload,
    machines: Vec<Machine<'a>>,
    pub requests: Vec<Slow>,
    /// Requests to come: time, order, request.
    coming: Vec<(f64, u64, usize)>,
    moves: Vec<(f64, u64, usize)>,
    order: u64,
    next: usize,
    arrived: usize,
    pub gaps: Vec<i64>,
    pub most_resident: u64,
}

fn unit_of(workload: &Workload) -> u32 {
    if workload.unit_tokens.is_multiple_of(BLOCK_TOKENS) { workload.unit_tokens } else { 0 }
}

impl Replay<'_> {
    fn context(request: &Slow) -> u32 {
        request.start + request.generated - request.base
    }

    fn unit_bytes(&self, machine: usize) -> u64 {
        u64::from(unit_of(self.workload)) * self.machines[machine].plan.growing_bytes()
    }

    fn block_bytes(&self, machine: usize) -> u64 {
        u64::from(BLOCK_TOKENS) * self.machines[machine].plan.growing_bytes()
    }

    fn private(&self, machine: usize, request: &Slow) -> u64 {
        let plan = self.machines[machine].plan;
        let pinned = request.pinned.len() as u64 * self.unit_bytes(machine);
        if request.phase == Phase::Decode {
            plan.footprint(request.prefill, Self::context(request) + request.extra, true) - pinned
        } else {
            let tokens = (request.done + request.extra).max(request.pinned.len() as u32 * unit_of(self.workload));
            plan.footprint(tokens, tokens, false) - pinned
        }
    }

    fn holders(&self, machine: usize) -> Vec<&Slow> {
        let own = &self.machines[machine];
        let ghosts = own.ghosts.iter().map(|ghost| &ghost.state);
        own.running.iter().map(|&at| &self.requests[at]).chain(ghosts).collect()
    }

    fn held_units(&self, machine: usize) -> Vec<u32> {
        let mut units: Vec<u32> = self.holders(machine).iter().flat_map(|held| held.pinned.clone()).collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    fn held(&self, machine: usize) -> u64 {
        let private: u64 = self.holders(machine).iter().map(|held| self.private(machine, held)).sum();
        private + self.held_units(machine).len() as u64 * self.unit_bytes(machine)
    }

    fn cached_bytes(&self, machine: usize) -> u64 {
        let bytes = |cached: &Cached| match cached {
            Cached::Unit(_) => self.unit_bytes(machine),
            Cached::Block { .. } => self.block_bytes(machine),
        };
        self.machines[machine].cached.iter().map(bytes).sum()
    }

    /// Evicts until the memory holds what it must; `false` if that cannot be.
    fn settle(&mut self, machine: usize) -> bool {
        let capacity = self.machines[machine].plan.capacity_bytes;
        if self.held(machine) > capacity {
            return false;
        }
        while self.held(machine) + self.cached_bytes(machine) > capacity {
            self.machines[machine].cached.remove(0);
        }
        self.most_resident = self.most_resident.max(self.held(machine) + self.cached_bytes(machine));
        true
    }

    fn is_known(&self, machine: usize, unit: u32) -> bool {
        self.machines[machine].cached.contains(&Cached::Unit(unit)) || self.held_units(machine).contains(&unit)
    }

    /// What a request that no longer holds anything leaves in the cache.
    fn leave_behind(&mut self, machine: usize, at: usize, state: &Slow, next: Option<usize>) {
        let unit = unit_of(self.workload);
        let tokens = if state.phase == Phase::Decode { Self::context(state) } else { state.done };
        let plan = self.machines[machine].plan;
        let drops = |keep: &Keep| keep.total.is_none() && keep.tokens(state.prefill, tokens) < tokens;
        let is_whole = state.phase != Phase::Decode || !plan.groups.iter().any(|group| drops(&group.group.keep));
        let keeps = self.rules.keeps_decoded && state.shares && self.block_bytes(machine) > 0 && is_whole;
        let mut named = state.pinned.clone();
        if let Some(next) = next.filter(|_| unit > 0 && self.rules.keeps_decoded && state.publishes && is_whole) {
            let prompt_units = self.workload.prompt[at] / unit;
            let theirs = self.workload.units_of(next);
            let full = (self.workload.prompt[next] / unit).min(tokens / unit) as usize;
            let continues = theirs.len() >= full && theirs.starts_with(&named);
            if continues && named.len() == prompt_units as usize {
                for &new in theirs.iter().take(full).skip(named.len()) {
                    if self.is_known(machine, new) {
                        break;
                    }
                    named.push(new);
                }
            }
        }
        if keeps {
            let from = named.len() as u32 * unit / BLOCK_TOKENS;
            let blocks: Vec<u32> = (from..(tokens / BLOCK_TOKENS).max(from)).collect();
            let left =
                blocks.iter().rev().map(|&index| Cached::Block { request: at, index, preemptions: state.preemptions });
            self.machines[machine].cached.extend(left);
        }
        let still = self.held_units(machine);
        for &unit in named.iter().rev() {
            if !still.contains(&unit) && !self.machines[machine].cached.contains(&Cached::Unit(unit)) {
                self.machines[machine].cached.push(Cached::Unit(unit));
            }
        }
    }

    /// Removes a request from the running ones.
    fn stop(&mut self, machine: usize, at: usize) -> Slow {
        self.machines[machine].running.retain(|&other| other != at);
        let mut state = self.requests[at].clone();
        state.extra = 0;
        let own = &mut self.requests[at];
        own.pinned.clear();
        own.extra = 0;
        own.phase = Phase::Away;
        state
    }

    fn end(&mut self, machine: usize, at: usize, now: f64) {
        let front = self.rules.front_ns;
        let request = &mut self.requests[at];
        request.e2e = Some(now - request.arrival + front);
        request.fate = Fate::Finished;
        let state = self.stop(machine, at);
        if self.rules.lookahead {
            self.machines[machine].ghosts.push(Ghost { request: at, state, steps: 1, until: f64::MIN });
        } else {
            let next = self.follower(at);
            self.leave_behind(machine, at, &state, next);
        }
        self.told(at, now + front);
    }

    fn follower(&self, at: usize) -> Option<usize> {
        let is_next = |other: &usize| self.workload.turns.before(*other) == Some(at as u32);
        (0..self.workload.len()).find(is_next).filter(|_| self.setup.traffic == Traffic::Session)
    }

    /// Whoever waits for the end of this request comes.
    fn told(&mut self, at: usize, now: f64) {
        let held = (0..self.workload.len()).find(|&other| self.workload.turns.held_by(other) == Some(at as u32));
        match self.setup.traffic {
            Traffic::Open | Traffic::Closed { .. } if held.is_some() => {
                self.coming.extend(held.map(|held| (now, self.order, held)));
                self.order += 1;
            }
            Traffic::Open => {}
            Traffic::Closed { .. } => self.next_in(now),
            Traffic::Session => {
                for other in 0..self.workload.len() {
                    if self.workload.turns.before(other) == Some(at as u32) {
                        let pause = self.workload.turns.pause_ns[other] as f64;
                        let due = match self.workload.turns.basis[other] {
                            Pause::FromStart => now.max(self.requests[at].arrival + pause),
                            _ => now + pause,
                        };
                        self.coming.push((due, self.order, other));
                        self.order += 1;
                    }
                }
            }
        }
    }

    fn next_in(&mut self, now: f64) {
        while self.workload.turns.held_by(self.next).is_some() {
            self.next += 1;
        }
        if self.next < self.workload.len() {
            self.coming.push((now, self.order, self.next));
            self.next += 1;
            self.order += 1;
        }
    }

    fn free_ghosts(&mut self, machine: usize, steps: u32, now: f64) -> bool {
        let mut freed = false;
        let ghosts = std::mem::take(&mut self.machines[machine].ghosts);
        // Those that stay hold their units while the others leave.
        let (mut going, mut staying) = (Vec::new(), Vec::new());
        for mut ghost in ghosts {
            ghost.steps = ghost.steps.saturating_sub(steps);
            if ghost.steps == 0 && ghost.until <= now { going.push(ghost) } else { staying.push(ghost) }
        }
        let count = going.len();
        for at in 0..count {
            let mut rest = going[at + 1..].to_vec();
            rest.extend(staying.clone());
            self.machines[machine].ghosts = rest;
            let ghost = going[at].clone();
            let next = self.follower(ghost.request);
            self.leave_behind(machine, ghost.request, &ghost.state, next);
            freed = true;
        }
        self.machines[machine].ghosts = staying;
        freed
    }

    fn promise(&self, machine: usize, at: usize) -> (u64, u64) {
        let share = match self.rules.admit {
            Admit::Whole => 1.0,
            Admit::Estimate(share) => share,
            _ => return (0, 0),
        };
        let (plan, prompt) = (self.machines[machine].plan, self.workload.prompt[at]);
        let most = self.workload.output[at].saturating_sub(1);
        let size = |more: u32| plan.footprint(prompt, prompt + more, true).max(plan.footprint(prompt, prompt, false));
        (size((f64::from(most) * share).ceil() as u32), size(most))
    }

    /// Tries to admit; gives the chunk.
    fn admit(&mut self, machine: usize, at: usize, left: u32, ahead: u32, now: f64) -> Option<u32> {
        let (plan, unit) = (self.machines[machine].plan, unit_of(self.workload));
        let promised: u64 = self.machines[machine].running.iter().map(|&other| self.promise(machine, other).0).sum();
        let free = plan.capacity_bytes.saturating_sub(promised);
        if self.promise(machine, at).1 > free && !self.machines[machine].running.is_empty() {
            return None;
        }
        let before = self.requests[at].clone();
        let cached = self.machines[machine].cached.clone();
        if before.has_kv {
            return self.admit_with_kv(machine, at, ahead).then_some(0);
        }
        let shares = self.rules.prefix_cache && plan.shares(before.prefill);
        let most = (before.prefill - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let units = self.workload.units_of(at);
        let mut leading = Vec::new();
        if shares && unit > 0 {
            for (index, &number) in units.iter().enumerate() {
                let start = index as u32 * unit;
                let is_full = start + unit <= self.workload.prompt[at];
                if !is_full || start >= most || !self.is_known(machine, number) {
                    break;
                }
                leading.push(number);
            }
        }
        let mut found = (leading.len() as u32 * unit).min(most);
        // Its own blocks, one after another, if they begin where the units end.
        let mut own = Vec::new();
        if shares && found == leading.len() as u32 * unit {
            let mut index = found / BLOCK_TOKENS;
            let preemptions = before.preemptions.wrapping_sub(1);
            let block = |index: u32| Cached::Block { request: at, index, preemptions };
            let has = |index: u32| cached.contains(&block(index));
            let lower = (0..index).any(has);
            while has(index) && !lower {
                own.push(block(index));
                index += 1;
            }
            found = (found + own.len() as u32 * BLOCK_TOKENS).min(most);
        }
        let chunk = left.min(before.prefill - found);
        if !self.rules.chunked && found + chunk < before.prefill && before.prefill <= self.rules.step_tokens {
            return None;
        }
        let taken =
            |entry: &Cached| own.contains(entry) || matches!(entry, Cached::Unit(unit) if leading.contains(unit));
        self.machines[machine].cached.retain(|entry| !taken(entry));
        let request = &mut self.requests[at];
        (request.phase, request.done, request.pinned) = (Phase::Prefill, found, leading);
        (request.shares, request.publishes) = (shares, shares && unit > 0);
        request.extra = if self.rules.admit == Admit::FirstChunk { chunk } else { request.prefill - found };
        self.machines[machine].running.push(at);
        // All of the prompt must fit, but only the chunk is taken.
        if self.held(machine) > plan.capacity_bytes {
            self.machines[machine].running.pop();
            self.requests[at] = before;
            self.machines[machine].cached = cached;
            return None;
        }
        self.requests[at].extra = chunk;
        assert!(self.settle(machine));
        let request = &mut self.requests[at];
        if !request.admitted {
            (request.admitted, request.hit, request.began, request.instance) = (true, found, now, machine);
        }
        self.publish(machine, at);
        Some(chunk)
    }

    /// Tries to admit a request whose KV is computed.
    fn admit_with_kv(&mut self, machine: usize, at: usize, ahead: u32) -> bool {
        let before = self.requests[at].clone();
        let request = &mut self.requests[at];
        (request.phase, request.start, request.base) = (Phase::Decode, request.done, request.generated);
        (request.extra, request.has_kv) = (1, false);
        (request.publishes, request.shares) = (false, false);
        self.machines[machine].running.push(at);
        // Its next token must fit too, whenever it takes the room.
        if self.held(machine) > self.machines[machine].plan.capacity_bytes {
            self.machines[machine].running.pop();
            self.requests[at] = before;
            return false;
        }
        self.requests[at].extra = ahead;
        assert!(self.settle(machine));
        if before.preemptions > 0 {
            let plan = self.machines[machine].plan;
            self.machines[machine].moved += plan.footprint(before.prefill, before.done, true);
        }
        self.requests[at].instance = machine;
        true
    }

    /// Units that are whole once the step has run.
    fn publish(&mut self, machine: usize, at: usize) {
        let unit = unit_of(self.workload);
        for (index, &number) in self.workload.units_of(at).iter().enumerate() {
            let request = &self.requests[at];
            let end = (index as u32 + 1) * unit;
            let computed = request.done + request.extra;
            if !request.publishes || index < request.pinned.len() || end > computed || end > self.workload.prompt[at] {
                continue;
            }
            if self.is_known(machine, number) {
                self.requests[at].publishes = false;
            } else {
                self.requests[at].pinned.push(number);
            }
        }
    }

    fn preempt(&mut self, machine: usize) -> usize {
        let running = &self.machines[machine].running;
        let mut at = *running.last().unwrap();
        if self.rules.victim == Victim::LeastGenerated {
            let decoding = running.iter().rev().copied().filter(|&at| self.requests[at].phase == Phase::Decode);
            let key = |at: &usize| (self.requests[*at].generated, u32::MAX - self.workload.prompt[*at]);
            // The newest of equals: `min_by_key` gives the first, and newest come first.
            at = decoding.min_by_key(key).unwrap_or(at);
        }
        let state = self.stop(machine, at);
        let was_decoding = state.phase == Phase::Decode;
        let context = if was_decoding { Self::context(&state) } else { state.done };
        if was_decoding && self.rules.preempted == Preempted::Swap {
            self.machines[machine].moved += self.machines[machine].plan.footprint(state.prefill, context, true);
            let still = self.held_units(machine);
            let left = state.pinned.iter().rev().filter(|unit| !still.contains(unit)).map(|&unit| Cached::Unit(unit));
            self.machines[machine].cached.extend(left);
            let request = &mut self.requests[at];
            (request.has_kv, request.done) = (true, context);
        } else {
            self.leave_behind(machine, at, &state, None);
            let request = &mut self.requests[at];
            request.prefill = self.workload.prompt[at] + request.generated;
            request.done = 0;
        }
        self.requests[at].preemptions += 1;
        self.machines[machine].preempted = true;
        self.machines[machine].waiting.insert(0, at);
        at
    }

    fn decoding(&self, machine: usize) -> Vec<usize> {
        let running = &self.machines[machine].running;
        running.iter().copied().filter(|&at| self.requests[at].phase == Phase::Decode).collect()
    }

    /// Chunks of prompts; all of them take their room.
    fn prompts(&mut self, machine: usize, budget: u32, ahead: u32, now: f64) -> Vec<(usize, u32)> {
        let mut left = budget;
        let mut chunks = Vec::new();
        for at in self.machines[machine].running.clone() {
            let request = &self.requests[at];
            let chunk = left.min(request.prefill - request.done.min(request.prefill));
            if request.phase != Phase::Prefill || chunk == 0 {
                continue;
            }
            self.requests[at].extra = chunk;
            while self.requests[at].phase == Phase::Prefill && !self.settle(machine) {
                self.preempt(machine);
            }
            if self.requests[at].phase == Phase::Prefill {
                left -= chunk;
                chunks.push((at, chunk));
                self.publish(machine, at);
            }
        }
        while let Some(&at) = self.machines[machine].waiting.first() {
            let own = &self.machines[machine];
            let slots = own.running.len() + own.ghosts.iter().filter(|ghost| ghost.steps > 0).count();
            if own.preempted || left == 0 || slots >= self.rules.running_requests as usize {
                break;
            }
            let Some(chunk) = self.admit(machine, at, left, ahead, now) else { break };
            self.machines[machine].waiting.remove(0);
            left = left.saturating_sub(chunk.max(1));
            if chunk > 0 {
                chunks.push((at, chunk));
            }
        }
        chunks
    }

    /// Puts the next step together; `false` if there is none.
    fn compose(&mut self, machine: usize, now: f64) -> bool {
        let mut chunks = Vec::new();
        let is_mixed = self.rules.compose == Compose::Mixed;
        if !is_mixed {
            chunks = self.prompts(machine, self.rules.step_tokens, 0, now);
        }
        let mut decoding = Vec::new();
        if chunks.is_empty() {
            loop {
                decoding = self.decoding(machine);
                for &at in &decoding {
                    self.requests[at].extra = 1;
                }
                if decoding.is_empty() || self.settle(machine) {
                    break;
                }
                for &at in &decoding {
                    self.requests[at].extra = 0;
                }
                self.preempt(machine);
            }
            if is_mixed {
                let left = self.rules.step_tokens.saturating_sub(decoding.len() as u32);
                chunks = self.prompts(machine, left, 1, now);
                decoding = self.decoding(machine);
            }
        }
        if chunks.is_empty() && decoding.is_empty() {
            return false;
        }
        let duration = self.price(machine, &chunks, &decoding);
        self.machines[machine].step = Some(Step { start: now, end: now + duration, chunks, decoding });
        true
    }

    fn price(&mut self, machine: usize, chunks: &[(usize, u32)], decoding: &[usize]) -> f64 {
        let plan = self.machines[machine].plan;
        let groups = plan.groups.len();
        let (mut kept, mut pairs, mut read) = (vec![0; plan.lanes()], vec![0.0; groups], vec![0; groups]);
        for &(at, chunk) in chunks {
            let done = self.requests[at].done;
            for (group, planned) in plan.groups.iter().enumerate() {
                let cap = planned.group.keep.total.unwrap_or(u32::MAX);
                for token in done + 1..=done + chunk {
                    pairs[group] += f64::from(token.min(cap));
                }
                read[group] += u64::from((done + chunk).min(cap.saturating_add(chunk)));
            }
        }
        for &at in decoding {
            let (prefill, context) = (self.requests[at].prefill, Self::context(&self.requests[at]) + 1);
            for (group, planned) in plan.groups.iter().enumerate() {
                let tokens = planned.group.keep.tokens(prefill, context);
                kept[group] += u64::from(tokens);
                if let Some(lane) = planned.read_lane {
                    kept[lane] += u64::from(tokens.min(planned.group.read_tokens.unwrap()));
                }
                if let Some(lane) = planned.whole_lane {
                    kept[lane] += u64::from(context);
                }
                if let Some(lane) = planned.near_lane {
                    let near = Keep { extra: 0, ..planned.group.keep };
                    kept[lane] += u64::from(near.tokens(prefill, context));
                }
            }
        }
        let ends = |&&(at, chunk): &&(usize, u32)| self.requests[at].done + chunk == self.requests[at].prefill;
        let scored = chunks.iter().filter(ends).map(|&(at, _)| self.requests[at].prefill);
        let batch = Batch {
            decode_requests: decoding.len() as u64,
            kept_tokens: &kept,
            longest_tokens: decoding
                .iter()
                .map(|&at| u64::from(Self::context(&self.requests[at]) + 1))
                .max()
                .unwrap_or(0),
            prefill_tokens: chunks.iter().map(|chunk| u64::from(chunk.1)).sum(),
            prefill_requests: chunks.len() as u64,
            prefill_rows: chunks.iter().filter(ends).count() as u64,
            prefill_pairs: &pairs,
            prefill_context: &read,
            scored_tokens: scored.filter(|&prefill| plan.drops_of(prefill)).map(u64::from).sum(),
        };
        let moved = std::mem::take(&mut self.machines[machine].moved) as f64;
        let swap = if moved > 0.0 { moved / (plan.host_bytes_per_ns * plan.tensor) } else { 0.0 };
        let requests = (decoding.len() + chunks.len()) as f64;
        // Whole nanoseconds but for the last bits of an interpolation.
        (price(plan, &batch).total() + swap + self.rules.step_ns + self.rules.request_ns * requests).round()
    }

    fn token(&mut self, at: usize, now: f64) {
        let front = self.rules.front_ns;
        let request = &mut self.requests[at];
        request.generated += 1;
        if let Some(last) = request.last_token {
            let gap = now - last;
            request.longest = Some(request.longest.map_or(gap, |longest| longest.max(gap)));
            if !self.workload.is_added(at) {
                self.gaps.push(gap.round() as i64);
            }
        }
        request.last_token = Some(now);
        request.ttft = request.ttft.or(Some(now - request.arrival + front));
    }

    fn finish_step(&mut self, machine: usize) {
        let Some(step) = self.machines[machine].step.take() else { return };
        let now = step.end;
        self.machines[machine].last = Some((step.start, step.end));
        let looked = self.machines[machine].looked + 1;
        let is_look = !step.chunks.is_empty() || looked == self.rules.look_steps;
        self.machines[machine].looked = if is_look { 0 } else { looked };
        self.machines[machine].preempted = false;
        self.free_ghosts(machine, 1, now);
        let mut decoding = step.decoding;
        decoding.sort_unstable();
        for &at in &decoding {
            self.requests[at].extra = 0;
            self.token(at, now);
        }
        for &at in &decoding {
            if self.requests[at].generated >= self.workload.output[at] {
                self.end(machine, at, now);
            }
        }
        for &(at, chunk) in &step.chunks {
            self.requests[at].extra = 0;
            self.requests[at].done += chunk;
            if self.requests[at].done == self.requests[at].prefill {
                self.prefilled(machine, at, chunk, now);
            }
        }
    }

    fn prefilled(&mut self, machine: usize, at: usize, chunk: u32, now: f64) {
        let request = &mut self.requests[at];
        request.phase = Phase::Decode;
        request.start = request.prefill;
        if self.workload.output[at] > 0 {
            self.token(at, now);
        }
        let request = &mut self.requests[at];
        request.base = request.generated;
        if request.generated >= self.workload.output[at] {
            self.end(machine, at, now);
        } else if self.machines[machine].role == Role::Prefill {
            self.send(machine, at, chunk, now);
        }
    }

    fn send(&mut self, machine: usize, at: usize, chunk: u32, now: f64) {
        let (plan, link) = (self.machines[machine].plan, self.setup.handover.unwrap());
        let prefill = self.requests[at].prefill;
        let bytes = plan.footprint(prefill, prefill, true);
        let layers = plan.layers;
        let last = (bytes as f64 * f64::from(chunk) / f64::from(prefill)).floor();
        let began = self.requests[at].began;
        let free = self.machines[machine].link_free;
        let begin = (began + ((now - began) / layers).round()).max(free);
        let tail = (last / layers / link.bytes_per_ns).ceil();
        let end = (begin + (bytes as f64 / link.bytes_per_ns).ceil()).max(now.max(free) + tail);
        self.machines[machine].link_free = end;
        let there = end + link.latency_ns.round();
        let state = self.stop(machine, at);
        let request = &mut self.requests[at];
        (request.has_kv, request.done) = (true, prefill);
        self.machines[machine].ghosts.push(Ghost { request: at, state, steps: 0, until: there });
        self.moves.push((there, self.order, at));
        self.order += 1;
    }

    fn begin(&mut self, machine: usize, now: f64) {
        let is_boundary = self.machines[machine].last.is_some_and(|(_, end)| end.to_bits() == now.to_bits());
        let seen = self.machines[machine].last.filter(|_| is_boundary).map(|(start, _)| start);
        if !is_boundary || self.machines[machine].looked == 0 {
            self.look(machine, seen.filter(|_| self.rules.lookahead).unwrap_or(f64::MAX));
        }
        while !self.compose(machine, now) {
            if self.machines[machine].preempted {
                self.machines[machine].preempted = false;
            } else if !self.free_ghosts(machine, u32::MAX, now) {
                if self.machines[machine].inbox.is_empty() {
                    return;
                }
                self.look(machine, f64::MAX);
            }
        }
    }

    /// Sees what came up to a time.
    fn look(&mut self, machine: usize, until: f64) {
        let own = &mut self.machines[machine];
        let (seen, rest): (Vec<_>, Vec<_>) = own.inbox.iter().copied().partition(|&(_, at)| at <= until);
        own.waiting.extend(seen.iter().map(|&(request, _)| request));
        own.inbox = rest;
    }

    fn load(&self, machine: usize) -> usize {
        let own = &self.machines[machine];
        own.running.len() + own.waiting.len() + own.inbox.len()
    }

    fn refuses(&self, machine: usize, at: usize) -> Option<Fate> {
        let (plan, role) = (self.machines[machine].plan, self.machines[machine].role);
        let prompt = self.workload.prompt[at];
        let most = prompt + self.workload.output[at].saturating_sub(1);
        let mut needed = vec![plan.footprint(prompt, prompt, false)];
        if role != Role::Prefill {
            needed.extend([plan.footprint(prompt, most, true), plan.footprint(most, most, false)]);
        }
        if prompt == 0 {
            Some(Fate::NoPrompt)
        } else if needed.iter().any(|&bytes| bytes > plan.capacity_bytes) {
            Some(Fate::TooLarge)
        } else {
            (!self.rules.chunked && prompt > self.rules.step_tokens).then_some(Fate::TooLong)
        }
    }

    fn bring(&mut self, machine: usize, at: usize, now: f64) {
        self.machines[machine].inbox.push((at, now));
    }

    fn deliver(&mut self, now: f64) {
        let of = |role: fn(Role) -> bool, machines: &[Machine<'_>]| -> Vec<usize> {
            (0..machines.len()).filter(|&at| role(machines[at].role)).collect()
        };
        let doors = of(|role| role != Role::Decode, &self.machines);
        let decoders = of(|role| role == Role::Decode, &self.machines);
        while let Some(at) = first_due(&mut self.moves, now) {
            let machine = *decoders.iter().min_by_key(|&&machine| self.load(machine)).unwrap();
            self.bring(machine, at, now);
        }
        while let Some(at) = first_due(&mut self.coming, now) {
            let own = self.workload.turns.held_by(at);
            self.requests[at].arrival = own.map_or(now, |own| self.requests[own as usize].arrival);
            self.requests[at].prefill = self.workload.prompt[at];
            let known = |machine: usize| {
                let units = self.workload.units_of(at);
                units.iter().take_while(|&&unit| self.is_known(machine, unit)).count()
            };
            let least = || *doors.iter().min_by_key(|&&machine| self.load(machine)).unwrap();
            let before = self.workload.turns.before(at).map(|before| self.requests[before as usize].instance);
            let door = match self.setup.routing {
                Routing::RoundRobin => doors[self.arrived % doors.len()],
                Routing::LeastLoaded => least(),
                Routing::Session => before.filter(|machine| doors.contains(machine)).unwrap_or_else(least),
                Routing::Prefix => {
                    let most = doors.iter().map(|&machine| known(machine)).max().unwrap();
                    let best = doors.iter().copied().filter(|&machine| known(machine) == most);
                    best.min_by_key(|&machine| self.load(machine)).unwrap()
                }
            };
            self.arrived += 1;
            self.requests[at].instance = door;
            match std::iter::once(&door).chain(&decoders).find_map(|&machine| self.refuses(machine, at)) {
                Some(fate) => {
                    self.requests[at].fate = fate;
                    self.told(at, now);
                }
                None => self.bring(door, at, now),
            }
        }
    }
}

/// Takes the first entry that is due.
fn first_due(list: &mut Vec<(f64, u64, usize)>, now: f64) -> Option<usize> {
    list.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    (list.first()?.0 <= now).then(|| list.remove(0).2)
}

/// A request of which nothing is known yet.
fn fresh() -> Slow {
    Slow {
        phase: Phase::Away,
        prefill: 0,
        done: 0,
        generated: 0,
        base: 0,
        start: 0,
        extra: 0,
        pinned: Vec::new(),
        publishes: false,
        shares: false,
        has_kv: false,
        began: 0.0,
        arrival: 0.0,
        last_token: None,
        instance: 0,
        ttft: None,
        e2e: None,
        longest: None,
        hit: 0,
        admitted: false,
        preemptions: 0,
        fate: Fate::Pending,
    }
}

/// Serves a workload token by token.
pub(super) fn slow<'a>(setup: &'a Setup<'a>, workload: &'a Workload) -> Replay<'a> {
    let pools = setup.pools.iter().flat_map(|pool| (0..pool.instances).map(move |_| pool));
    let machines = pools.map(|pool| Machine {
        plan: pool.plan,
        role: pool.role,
        waiting: Vec::new(),
        inbox: Vec::new(),
        running: Vec::new(),
        ghosts: Vec::new(),
        cached: Vec::new(),
        preempted: false,
        moved: 0,
        step: None,
        last: None,
        looked: 0,
        link_free: 0.0,
    });
    let mut replay = Replay {
        setup,
        rules: setup.rules,
        workload,
        machines: machines.collect(),
        requests: vec![fresh(); workload.len()],
        coming: Vec::new(),
        moves: Vec::new(),
        order: 0,
        next: 0,
        arrived: 0,
        gaps: Vec::new(),
        most_resident: 0,
    };
    match setup.traffic {
        Traffic::Closed { concurrency } => (0..concurrency).for_each(|_| replay.next_in(0.0)),
        traffic => {
            for at in 0..workload.len() {
                let is_open = traffic == Traffic::Open && workload.turns.held_by(at).is_none();
                if is_open || traffic != Traffic::Open && workload.turns.before(at).is_none() {
                    replay.coming.push((workload.arrival_ns[at] as f64, replay.order, at));
                    replay.order += 1;
                }
            }
        }
    }
    loop {
        let ends = replay.machines.iter().filter_map(|own| own.step.as_ref().map(|step| step.end));
        let idle = replay.machines.iter().filter(|own| own.step.is_none());
        let wakes = idle.flat_map(|own| own.ghosts.iter().map(|ghost| ghost.until)).filter(|&at| at > f64::MIN);
        let comes = replay.coming.iter().chain(&replay.moves).map(|entry| entry.0);
        let Some(now) = ends.chain(wakes).chain(comes).min_by(f64::total_cmp) else { return replay };
        for machine in 0..replay.machines.len() {
            if replay.machines[machine].step.as_ref().is_some_and(|step| step.end <= now) {
                replay.finish_step(machine);
            }
        }
        replay.deliver(now);
        for machine in 0..replay.machines.len() {
            if replay.machines[machine].step.is_none() {
                replay.begin(machine, now);
            }
        }
    }
}
