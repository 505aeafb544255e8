//! One instance of the engine: it promises its next stretch of steps, and carries it out unless an arrival cuts it short.

use std::collections::{BTreeSet, VecDeque};

use super::lockstep::{Event, Lockstep, Member};
use super::lower::{Fetched, Lower, Moved, Prompt, Tiers};
use super::memory::Memory;
use super::rules::{Admit, Compose, Preempted, Rules, Victim};
use super::traffic::Arrivals;
use super::{Fate, GapCause, LongGap, Role, Served, Stretch};
use crate::cost::{BLOCK_TOKENS, Batch, Plan, StepCost, pairs, price};
use crate::workload::{LONGEST_NS, Workload};

/// A request while an instance knows it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    /// Admissions so far; events of earlier ones are stale.
    epoch: u32,
    /// Order of admission among the running.
    order: u64,
    /// Tokens to prefill in this admission: the prompt, and after a preemption what was generated.
    prefill: u32,
    /// Tokens of it that are computed or were found; of a request that waits with its KV, the whole context.
    done: u32,
    /// Leading units in use.
    pinned: u32,
    /// Whether its further units may be published.
    publishes: bool,
    /// Whether its blocks may serve it or others again.
    shares: bool,
    /// Whether it waits with its KV computed: swapped out, or prefilled elsewhere.
    has_kv: bool,
    /// Tokens generated so far, as of `joined` while decoding.
    generated: u32,
    /// Step and stretch at which it began to decode; `None` while it prefills or waits.
    joined: Option<(u64, usize)>,
    /// Cumulated share of step time per token when it began to decode.
    joined_share: f64,
    /// End of its latest token.
    last_token_ns: i64,
    /// Beginning of the first step that computed its prompt.
    began_ns: i64,
    /// Where its blocks were left in the cache, and how many units were before them.
    extent: Option<u32>,
    extent_units: u32,
    /// Bytes that it was admitted for, under rules that look ahead to its end.
    promised: u64,
}

/// What all instances work on.
pub(super) struct Shared<'a> {
    pub workload: &'a Workload,
    pub rules: &'a Rules,
    pub arrivals: Arrivals<'a>,
    pub states: Vec<State>,
    pub served: Vec<Served>,
    pub long_gaps: Vec<LongGap>,
    /// Requests that ended, with the time, until the cluster takes them.
    pub ended: Vec<u32>,
    /// Requests whose prompt is computed here and that decode elsewhere.
    pub handed: Vec<Handed>,
    pub overran: bool,
}

/// A prompt that is computed, on its way to a decoding instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handed {
    pub request: u32,
    /// Beginning of the first step that computed it, and end of the last.
    pub began_ns: i64,
    pub ended_ns: i64,
    /// KV to move, and what of it the last step computed.
    pub bytes: u64,
    pub last_bytes: u64,
}

/// A request that has ended here and whose memory is not free yet.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    request: u32,
    state: State,
    context: u32,
    /// Steps that must end first.
    steps: u32,
    /// Time that must come first.
    until_ns: i64,
}

/// An arrival that is not seen yet.
#[derive(Debug, Clone, Copy)]
struct Coming {
    request: u32,
    at: i64,
    /// Steps that must end first.
    left: u64,
}

/// Steps that the instance will carry out unless an arrival cuts them short.
#[derive(Debug, Clone)]
struct Pending {
    start_ns: i64,
    steps: u64,
    first: StepCost,
    last: StepCost,
    total_ns: i64,
    /// Prompt tokens computed, by request.
    chunks: Vec<(u32, u32)>,
    decodes: bool,
}

pub(super) struct Instance<'a> {
    plan: &'a Plan,
    role: Role,
    /// Its number in the cluster.
    number: u32,
    memory: Memory,
    decoding: Lockstep,
    waiting: VecDeque<u32>,
    /// Arrivals that a step which is put together now cannot see yet.
    inbox: VecDeque<Coming>,
    /// Decode steps since it last looked for arrivals.
    looked: u64,
    prefilling: VecDeque<u32>,
    /// Running requests by order of admission.
    running: BTreeSet<(u64, u32)>,
    leaving: Vec<Leaving>,
    /// Decoding requests whose next gap is not a step's time.
    late: Vec<(u32, GapCause)>,
    admissions: u64,
    /// Nothing is admitted in a step in which a request was preempted.
    preempted: bool,
    /// Bytes promised to running requests.
    promised: u64,
    /// Bytes that the next step moves from or to the host.
    moved_bytes: u64,
    /// Memories below, and what the next step fetches from them: until when, ns from its beginning, and how many bytes.
    lower: Option<Lower<'a>>,
    fetch_ns: f64,
    fetch_bytes: f64,
    /// Time in which decoding requests have not decoded.
    stall: i64,
    now: i64,
    pending: Option<Pending>,
    /// Sum over steps of duration over tokens computed in the step.
    share: f64,
    /// Stretches whose longest step is longer than all later ones: (stretch, duration).
    peaks: Vec<(usize, i64)>,
    kept: Vec<u64>,
    pairs: Vec<f64>,
    read: Vec<u64>,
    no_pairs: Vec<f64>,
    no_read: Vec<u64>,
    pub stretches: Vec<Stretch>,
}

impl<'a> Instance<'a> {
    pub(super) fn new(plan: &'a Plan, role: Role, number: u32, workload: &Workload, below: Option<&'a Tiers>) -> Self {
        let groups = plan.groups.len();
        let unit_bytes = u64::from(unit_of(workload)) * plan.growing_bytes();
        let mut memory = Memory::new(plan.capacity_bytes, unit_bytes, u64::from(BLOCK_TOKENS) * plan.growing_bytes());
        let lower = below
            .filter(|_| unit_of(workload) > 0 && unit_bytes > 0)
            .map(|tiers| Lower::new(tiers, workload.distinct_units as usize, unit_of(workload), unit_bytes));
        if lower.as_ref().is_some_and(Lower::takes_evicted) {
            memory.watch();
        }
        Self {
            plan,
            role,
            number,
            memory,
            decoding: Lockstep::new(plan),
            waiting: VecDeque::new(),
            inbox: VecDeque::new(),
            looked: 0,
            prefilling: VecDeque::new(),
            running: BTreeSet::new(),
            leaving: Vec::new(),
            late: Vec::new(),
            admissions: 0,
            preempted: false,
            promised: 0,
            moved_bytes: 0,
            lower,
            fetch_ns: 0.0,
            fetch_bytes: 0.0,
            stall: 0,
            now: 0,
            pending: None,
            share: 0.0,
            peaks: Vec::new(),
            kept: vec![0; plan.lanes()],
            pairs: vec![0.0; groups],
            read: vec![0; groups],
            no_pairs: vec![0.0; groups],
            no_read: vec![0; groups],
            stretches: Vec::new(),
        }
    }

    /// Requests that it has, running or waiting.
    pub(super) fn load(&self) -> usize {
        self.running.len() + self.waiting.len() + self.inbox.len()
    }

    /// Leading prompt units of a request that are resident.
    pub(super) fn match_units(&self, workload: &Workload, request: u32) -> usize {
        self.memory.leading(workload.units_of(request as usize))
    }

    /// End of the stretch that it has promised.
    pub(super) fn ends(&self) -> Option<i64> {
        self.pending.as_ref().map(|pending| pending.start_ns + pending.total_ns)
    }

    /// When it must look again though nothing runs: the end of a transfer from it.
    pub(super) fn wakes(&self) -> Option<i64> {
        if self.pending.is_some() {
            return None;
        }
        self.leaving.iter().map(|leaving| leaving.until_ns).filter(|&at| at > self.now).min()
    }

    /// Why it can never serve this request, if it cannot.
    pub(super) fn refuses(&self, shared: &Shared<'_>, request: u32) -> Option<Fate> {
        let (plan, at) = (self.plan, request as usize);
        let (prompt, output) = (shared.workload.prompt[at], shared.workload.output[at]);
        if prompt == 0 {
            return Some(Fate::NoPrompt);
        }
        // The last token needs no KV. A preempted request is prefilled again with what it had generated, before anything
        // is pruned.
        let Some(most) = prompt.checked_add(output.saturating_sub(1)) else { return Some(Fate::TooLarge) };
        let here = plan.footprint(prompt, prompt, false);
        let peak = match self.role {
            Role::Prefill => here,
            Role::Both | Role::Decode => {
                here.max(plan.footprint(prompt, most, true)).max(plan.footprint(most, most, false))
            }
        };
        if peak > plan.capacity_bytes {
            return Some(Fate::TooLarge);
        }
        (!shared.rules.chunked && prompt > shared.rules.step_tokens).then_some(Fate::TooLong)
    }

    /// A request comes at `at`, and its stretch ends early enough to see it.
    pub(super) fn arrive(&mut self, shared: &mut Shared<'_>, request: u32, at: i64) {
        if !shared.states[request as usize].has_kv {
            shared.states[request as usize].prefill = shared.workload.prompt[request as usize];
        }
        let (ahead, every) = (u64::from(shared.rules.lookahead), u64::from(shared.rules.look_steps.max(1)));
        let Some(pending) = &self.pending else {
            // What comes just when a step ends is seen if that was a look, and then not by a step that is put together already.
            if self.now == at && (ahead > 0 || self.looked > 0) {
                self.inbox.push_back(Coming { request, at, left: next_look(self.looked, 1, every) });
            } else {
                self.waiting.push_back(request);
            }
            return;
        };
        let until = (at - pending.start_ns).max(0) as f64;
        let reached = match pending.steps {
            1 => 1,
            steps => steps_until(pending.first.total(), pending.last.total(), steps, until),
        };
        // Once a prompt is computed it looks.
        let looked = if pending.chunks.is_empty() { self.looked } else { every - 1 };
        let left = next_look(looked, reached + ahead, every);
        // While others already wait for room, an arrival changes nothing.
        if left < pending.steps && self.waiting.is_empty() {
            self.cut(shared.rules, left);
        }
        if ahead > 0 || every > 1 {
            self.inbox.push_back(Coming { request, at, left });
        } else {
            self.waiting.push_back(request);
        }
    }

    fn cut(&mut self, rules: &Rules, steps: u64) {
        let last = self.price_decode(rules, steps);
        if let Some(pending) = &mut self.pending {
            pending.steps = steps;
            pending.total_ns = StepCost::stretched(&pending.first, &last, steps as f64).total().round() as i64;
            pending.last = last;
        }
    }

    /// Promises the next stretch, if there is anything to do.
    pub(super) fn start(&mut self, shared: &mut Shared<'_>, at: i64) {
        self.now = self.now.max(at);
        while !shared.overran && !self.compose(shared) {
            // Nothing runs, so whatever waits for the end of a step waits no longer.
            if self.preempted {
                self.preempted = false;
            } else if self.free_leaving(shared, u32::MAX) {
                self.note_left();
            } else {
                if self.inbox.is_empty() {
                    return;
                }
                self.waiting.extend(self.inbox.drain(..).map(|coming| coming.request));
            }
        }
    }

    /// Puts the next step together; `false` if there is nothing to compute.
    fn compose(&mut self, shared: &mut Shared<'_>) -> bool {
        let rules = shared.rules;
        let budget = u64::from(rules.step_tokens);
        let mut chunks = Vec::new();
        if rules.compose == Compose::PrefillFirst {
            chunks = self.prompts(shared, budget, 0);
        }
        if chunks.is_empty() {
            while self.decoding.requests > 0 && !self.memory.reserve(self.decoding.growth(1)) {
                self.preempt(shared);
            }
            if rules.compose == Compose::Mixed {
                let left = budget.saturating_sub(self.decoding.requests);
                chunks = self.prompts(shared, left, 1);
            }
        }
        let decodes = self.decoding.requests > 0 && (chunks.is_empty() || rules.compose == Compose::Mixed);
        if chunks.is_empty() && !decodes {
            return false;
        }
        let pending = if chunks.is_empty() { self.stretch(rules) } else { self.mixed(shared, chunks, decodes) };
        shared.overran |= pending.total_ns as f64 + self.now as f64 > LONGEST_NS as f64;
        if !shared.overran {
            self.pending = Some(pending);
        }
        true
    }

    /// Deals `budget` tokens out: to prompts that are begun, then to waiting requests. A request that comes with its KV is
    /// to have room for `ahead` tokens more.
    fn prompts(&mut self, shared: &mut Shared<'_>, budget: u64, ahead: u32) -> Vec<(u32, u32)> {
        let mut left = budget;
        let mut chunks: Vec<(u32, u32)> = Vec::new();
        let begun: Vec<u32> = self.prefilling.iter().copied().collect();
        for request in begun {
            let state = shared.states[request as usize];
            let chunk = left.min(u64::from(state.prefill - state.done)) as u32;
            if chunk == 0 || !self.prefilling.contains(&request) {
                continue;
            }
            let more = self.held_at(shared.workload, &state, state.done + chunk)
                - self.held_at(shared.workload, &state, state.done);
            while self.prefilling.contains(&request) && !self.memory.reserve(more) {
                let reserved = self.decoding.growth(u64::from(ahead));
                self.preempt(shared);
                self.memory.release(reserved - self.decoding.growth(u64::from(ahead)));
            }
            if self.prefilling.contains(&request) {
                left -= u64::from(chunk);
                chunks.push((request, chunk));
                self.publish(shared, request, state.done + chunk);
            }
        }
        chunks.retain(|(request, _)| self.prefilling.contains(request));
        while let Some(&request) = self.waiting.front().filter(|_| !self.preempted && left > 0) {
            let slots = self.running.len() + self.leaving.iter().filter(|leaving| leaving.steps > 0).count();
            if slots >= shared.rules.running_requests as usize {
                break;
            }
            let Some(chunk) = self.admit(shared, request, left, ahead) else { break };
            self.waiting.pop_front();
            left = left.saturating_sub(u64::from(chunk.max(1)));
            if chunk > 0 {
                self.prefilling.push_back(request);
                chunks.push((request, chunk));
            }
        }
        chunks
    }

    /// Private bytes of a prefilling request once `done` tokens are computed.
    fn held_at(&self, workload: &Workload, state: &State, done: u32) -> u64 {
        let unit = unit_of(workload);
        let held = done.max(state.pinned * unit);
        self.plan.footprint(held, held, false) - u64::from(state.pinned) * u64::from(unit) * self.plan.growing_bytes()
    }

    /// Admits a request if the rules allow it: the tokens of its prompt that the step computes, none if it comes with its
    /// KV.
    fn admit(&mut self, shared: &mut Shared<'_>, request: u32, left: u64, ahead: u32) -> Option<u32> {
        let (rules, workload, at) = (shared.rules, shared.workload, request as usize);
        let state = shared.states[at];
        let promise = self.promise(rules, workload, request);
        if promise.1 > self.plan.capacity_bytes.saturating_sub(self.promised) && !self.running.is_empty() {
            return None;
        }
        if state.has_kv {
            return self.admit_with_kv(shared, request, promise.0, ahead).then_some(0);
        }
        let unit = unit_of(workload);
        let shares = rules.prefix_cache && self.plan.shares(state.prefill);
        let units = workload.units_of(at);
        // Only full blocks are shared, and at least the last token is computed for its logits.
        let most = (state.prefill - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        let full = if shares && unit > 0 { (workload.prompt[at] / unit).min(most.div_ceil(unit)) as usize } else { 0 };
        let leading = self.memory.leading(&units[..full.min(units.len())]) as u32;
        let prompt = Prompt {
            units: &units[..full.min(units.len())],
            leading: leading as usize,
            tokens: state.prefill,
            chunk_tokens: rules.step_tokens,
        };
        let far = self.look_below(&prompt);
        let of_units = ((leading + far.units) * unit).min(most);
        let is_next = far.units == 0 && state.extent_units == leading && of_units == leading * unit;
        let blocks = if shares && is_next { self.memory.extent(request, state.extent) } else { 0 };
        let found = (of_units + blocks * BLOCK_TOKENS).min(most);
        let chunk = left.min(u64::from(state.prefill - found)) as u32;
        // What was preempted may have become longer than a step; it is split nevertheless.
        if !rules.chunked && found + chunk < state.prefill && state.prefill <= rules.step_tokens {
            return None;
        }
        let pinned = &units[..leading as usize];
        let with = State { pinned: leading, ..state };
        let needed = if rules.admit == Admit::FirstChunk { found + chunk } else { state.prefill };
        if self.held_at(workload, &with, needed) + self.memory.unused_bytes(pinned) > self.memory.room() {
            return None;
        }
        self.memory.pin(pinned);
        self.fetch(&prompt, far);
        if let Some(lower) = self.told_lower() {
            lower.used(pinned);
        }
        if blocks > 0 {
            self.memory.take_extent(request, state.extent);
        }
        let own = u64::from(blocks) * u64::from(BLOCK_TOKENS) * self.plan.growing_bytes();
        let first = self.held_at(workload, &with, found + chunk);
        if first >= own {
            self.memory.reserve(first - own);
        } else {
            self.memory.release(own - first);
        }
        self.enter(shared, request, promise.0);
        let now_ns = self.now;
        let state = &mut shared.states[at];
        (state.done, state.pinned, state.extent) = (found, leading, None);
        (state.publishes, state.shares) = (shares && unit > 0, shares);
        let served = &mut shared.served[at];
        if served.queue_ns.is_none() {
            served.instance = self.number;
            served.queue_ns = Some(now_ns - served.arrival_ns);
            served.hit_tokens = found;
            served.far_hit_tokens = if far.units > 0 { found.saturating_sub(leading * unit) } else { 0 };
            state.began_ns = now_ns;
        }
        self.publish(shared, request, found + chunk);
        Some(chunk)
    }

    /// Admits a request whose KV is computed already; it decodes from this step on.
    fn admit_with_kv(&mut self, shared: &mut Shared<'_>, request: u32, promised: u64, ahead: u32) -> bool {
        let (at, now_ns) = (request as usize, self.now);
        let state = shared.states[at];
        // Without room for its next token it would give way again at once.
        if self.plan.footprint(state.prefill, state.done + 1, true) > self.memory.room()
            || !self.memory.reserve(self.plan.footprint(state.prefill, state.done + ahead, true))
        {
            return false;
        }
        let is_swapped = shared.served[at].preemptions > 0;
        if is_swapped {
            self.moved_bytes += self.plan.footprint(state.prefill, state.done, true);
        }
        self.enter(shared, request, promised);
        let state = &mut shared.states[at];
        (state.has_kv, state.pinned, state.publishes, state.shares) = (false, 0, false, false);
        let served = &mut shared.served[at];
        served.instance = self.number;
        served.queue_ns = served.queue_ns.or(Some(now_ns - served.arrival_ns));
        let cause = if is_swapped { GapCause::Preemption } else { GapCause::Handover };
        self.late.push((request, cause));
        let context = shared.states[at].done;
        self.join(shared, request, context);
        true
    }

    /// The memories below, once they have what left this one.
    fn told_lower(&mut self) -> Option<&mut Lower<'a>> {
        let lower = self.lower.as_mut()?;
        for unit in self.memory.take_gone() {
            lower.evicted(unit);
        }
        Some(lower)
    }

    /// What a prompt would fetch from memories below.
    fn look_below(&mut self, prompt: &Prompt<'_>) -> Fetched {
        let plan = self.plan;
        self.told_lower().map(|lower| lower.look(plan, prompt)).unwrap_or_default()
    }

    /// Fetches what a prompt has in memories below; the step that is put together waits for it.
    fn fetch(&mut self, prompt: &Prompt<'_>, far: Fetched) {
        if let Some(lower) = self.lower.as_mut().filter(|_| far.units > 0) {
            lower.fetch(prompt, far);
            self.fetch_ns = self.fetch_ns.max(far.ns);
            self.fetch_bytes += far.bytes;
        }
    }

    /// Bytes that the rules keep for a request while it runs, and those that must be free for it to begin; zero where the
    /// rules do not look ahead.
    fn promise(&self, rules: &Rules, workload: &Workload, request: u32) -> (u64, u64) {
        let share = match rules.admit {
            Admit::FirstChunk | Admit::Prompt => return (0, 0),
            Admit::Whole => 1.0,
            Admit::Estimate(share) => share,
        };
        let (prompt, output) = (workload.prompt[request as usize], workload.output[request as usize]);
        let whole = |generated: u32| {
            let end = prompt.saturating_add(generated);
            self.plan.footprint(prompt, end, true).max(self.plan.footprint(prompt, prompt, false))
        };
        let most = output.saturating_sub(1);
        (whole((f64::from(most) * share).ceil() as u32), whole(most))
    }

    fn enter(&mut self, shared: &mut Shared<'_>, request: u32, promised: u64) {
        self.admissions += 1;
        self.promised += promised;
        let state = &mut shared.states[request as usize];
        state.epoch += 1;
        state.order = self.admissions;
        state.promised = promised;
        self.running.insert((self.admissions, request));
    }

    /// Shares the full units of a prompt that are computed once `done` tokens are. Others find them from this step on.
    fn publish(&mut self, shared: &mut Shared<'_>, request: u32, done: u32) {
        let at = request as usize;
        let (unit, units, prompt) =
            (unit_of(shared.workload), shared.workload.units_of(at), shared.workload.prompt[at]);
        let state = &mut shared.states[at];
        while state.publishes {
            let next = state.pinned as usize;
            let end = (next as u32 + 1).saturating_mul(unit);
            if next >= units.len() || end > done || end > prompt {
                break;
            }
            // A unit that another request published meanwhile stays a private duplicate here, and so do those after it.
            state.publishes = self.memory.publish(units[next]);
            state.pinned += u32::from(state.publishes);
            if let Some(lower) = self.told_lower() {
                lower.write(units[next]);
            }
        }
    }

    /// One step with prefill chunks, and one token for each decoding request if they decode.
    fn mixed(&mut self, shared: &Shared<'_>, chunks: Vec<(u32, u32)>, decodes: bool) -> Pending {
        self.pairs.fill(0.0);
        self.read.fill(0);
        let (mut rows, mut scored_tokens, mut prefill_tokens) = (0, 0, 0);
        for &(request, chunk) in &chunks {
            let state = &shared.states[request as usize];
            prefill_tokens += u64::from(chunk);
            if state.done + chunk == state.prefill {
                rows += 1;
                scored_tokens += if self.plan.drops_of(state.prefill) { u64::from(state.prefill) } else { 0 };
            }
            for (at, group) in self.plan.groups.iter().enumerate() {
                let cap = group.group.keep.total;
                self.pairs[at] += pairs(state.done, state.done + chunk, cap);
                let end = u64::from(state.done + chunk);
                self.read[at] += cap.map_or(end, |cap| end.min(u64::from(cap) + u64::from(chunk)));
            }
        }
        self.kept.fill(0);
        if decodes {
            self.decoding.kept_into(1, &mut self.kept);
        }
        let decode_requests = if decodes { self.decoding.requests } else { 0 };
        let batch = Batch {
            decode_requests,
            kept_tokens: &self.kept,
            longest_tokens: if decodes { self.decoding.longest(1) } else { 0 },
            prefill_tokens,
            prefill_requests: chunks.len() as u64,
            prefill_rows: rows,
            prefill_pairs: &self.pairs,
            prefill_context: &self.read,
            scored_tokens,
        };
        let mut cost = price(self.plan, &batch);
        host(shared.rules, decode_requests + chunks.len() as u64, &mut cost);
        self.swap(&mut cost);
        cost.tier += std::mem::take(&mut self.fetch_ns);
        cost.tier_bytes += std::mem::take(&mut self.fetch_bytes);
        if let Some(lower) = &mut self.lower {
            lower.next_step();
        }
        let total_ns = cost.total().round() as i64;
        Pending { start_ns: self.now, steps: 1, first: cost, last: cost, total_ns, chunks, decodes }
    }

    /// As many decode steps as nothing changes the batch.
    fn stretch(&mut self, rules: &Rules) -> Pending {
        let mut steps = self.decoding.until_event().unwrap_or(1).max(1);
        let leaves = self.leaving.iter().any(|leaving| leaving.steps > 0);
        // Whoever was preempted may fit again after one step, where several made room at once; what ended in the last step
        // makes room after the next.
        if self.preempted || leaves || !self.late.is_empty() || self.stall > 0 {
            steps = 1;
        }
        if let Some(coming) = self.inbox.front() {
            steps = steps.min(coming.left).max(1);
        }
        let mut first = self.price_decode(rules, 1);
        if self.moved_bytes > 0 {
            self.swap(&mut first);
            steps = 1;
        }
        steps = self.fitting(steps);
        let mut last = if steps == 1 { first } else { self.price_decode(rules, steps) };
        if last.regime != first.regime {
            let (mut same, mut other) = (1, steps);
            while other - same > 1 {
                let middle = same.midpoint(other);
                if self.price_decode(rules, middle).regime == first.regime {
                    same = middle;
                } else {
                    other = middle;
                }
            }
            steps = same;
            last = if steps == 1 { first } else { self.price_decode(rules, steps) };
        }
        let total_ns = StepCost::stretched(&first, &last, steps as f64).total().round() as i64;
        Pending { start_ns: self.now, steps, first, last, total_ns, chunks: Vec::new(), decodes: true }
    }

    /// The most steps, at most `steps`, that fit in memory; the growth of the first is reserved.
    fn fitting(&self, steps: u64) -> u64 {
        let (reserved, room) = (self.decoding.growth(1), self.memory.room());
        let fits = |steps: u64| self.decoding.growth(steps) - reserved <= room;
        if fits(steps) {
            return steps;
        }
        let (mut fitting, mut beyond) = (1, steps);
        while beyond - fitting > 1 {
            let middle = fitting.midpoint(beyond);
            if fits(middle) {
                fitting = middle;
            } else {
                beyond = middle;
            }
        }
        fitting
    }

    fn price_decode(&mut self, rules: &Rules, ahead: u64) -> StepCost {
        self.decoding.kept_into(ahead, &mut self.kept);
        let batch = Batch {
            decode_requests: self.decoding.requests,
            kept_tokens: &self.kept,
            longest_tokens: self.decoding.longest(ahead),
            prefill_tokens: 0,
            prefill_requests: 0,
            prefill_rows: 0,
            prefill_pairs: &self.no_pairs,
            prefill_context: &self.no_read,
            scored_tokens: 0,
        };
        let mut cost = price(self.plan, &batch);
        host(rules, self.decoding.requests, &mut cost);
        cost
    }

    /// KV that went to the host or came back is exposed in the step.
    fn swap(&mut self, cost: &mut StepCost) {
        let bytes = std::mem::take(&mut self.moved_bytes) as f64;
        if bytes > 0.0 {
            cost.tier += bytes / (self.plan.host_bytes_per_ns * self.plan.tensor);
            cost.tier_bytes += bytes;
        }
    }

    /// Carries out what was promised.
    pub(super) fn commit(&mut self, shared: &mut Shared<'_>) {
        let Some(pending) = self.pending.take() else { return };
        if pending.steps > 1 {
            let more = self.decoding.growth(pending.steps) - self.decoding.growth(1);
            self.memory.reserve(more);
        }
        self.now = pending.start_ns + pending.total_ns;
        let requests = if pending.decodes { self.decoding.requests } else { 0 };
        let prefill_tokens: u64 = pending.chunks.iter().map(|chunk| u64::from(chunk.1)).sum();
        let per_token = pending.total_ns as f64 / (requests + prefill_tokens).max(1) as f64;
        let context = if pending.decodes { self.decoding.context + requests } else { 0 };
        let (mut stall, mut felt) = (0, 0);
        if pending.decodes {
            self.share += per_token;
            self.decoding.advance(pending.steps);
            let late = self.late.iter().filter(|(request, _)| !shared.workload.is_added(*request as usize));
            (stall, felt) = (std::mem::take(&mut self.stall), requests - self.decoding.added - late.count() as u64);
        } else if self.decoding.requests > self.late.len() as u64 {
            self.stall += pending.total_ns;
        } else {
            self.stall = 0;
        }
        self.record(Stretch {
            instance: self.number,
            start_ns: pending.start_ns,
            steps: pending.steps,
            decode_requests: requests,
            prefill_requests: pending.chunks.len() as u32,
            prefill_tokens,
            context_tokens: context,
            stall_ns: stall,
            felt_requests: felt,
            first_ns: pending.first.total(),
            last_ns: pending.last.total(),
            total_ns: pending.total_ns,
            cost: StepCost::stretched(&pending.first, &pending.last, pending.steps as f64),
            held_bytes: self.memory.held(),
            resident_bytes: self.memory.resident(),
            left_bytes: 0,
            below: Vec::new(),
            waiting_requests: (self.waiting.len() + self.inbox.len()) as u32,
        });
        self.free_leaving(shared, 1);
        if pending.decodes {
            self.late_gaps(shared);
            self.finish_due(shared);
        }
        for &(request, chunk) in &pending.chunks {
            self.computed(shared, request, chunk, per_token);
        }
        self.note_left();
        self.look(shared.rules, &pending);
    }

    /// Takes in the arrivals that the next step can see.
    fn look(&mut self, rules: &Rules, pending: &Pending) {
        let is_decode = pending.chunks.is_empty();
        self.looked = if is_decode { (self.looked + pending.steps) % u64::from(rules.look_steps.max(1)) } else { 0 };
        for coming in &mut self.inbox {
            let is_found = !is_decode && (!rules.lookahead || coming.at <= pending.start_ns);
            coming.left = if is_found { 0 } else { coming.left.saturating_sub(pending.steps) };
        }
        while let Some(coming) = self.inbox.front().filter(|coming| coming.left == 0) {
            self.waiting.push_back(coming.request);
            self.inbox.pop_front();
        }
    }

    /// What is held from the last stretch until the next one, and what memories below did until then.
    fn note_left(&mut self) {
        if self.stretches.is_empty() {
            return;
        }
        let below = self.told_lower().map(Lower::take_moved).unwrap_or_default();
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.left_bytes = self.memory.held();
            stretch.below.resize(below.len(), Moved::default());
            for (known, moved) in stretch.below.iter_mut().zip(below) {
                known.read_bytes += moved.read_bytes;
                known.written_bytes += moved.written_bytes;
                known.resident_bytes = moved.resident_bytes;
            }
        }
    }

    /// Adds a stretch.
    fn record(&mut self, stretch: Stretch) {
        self.preempted = false;
        let longest = stretch.first_ns.max(stretch.last_ns).round() as i64 + stretch.stall_ns;
        while self.peaks.last().is_some_and(|&(_, peak)| peak <= longest) {
            self.peaks.pop();
        }
        self.peaks.push((self.stretches.len(), longest));
        self.stretches.push(stretch);
    }

    /// Tokens of requests that did not decode in the step before.
    fn late_gaps(&mut self, shared: &mut Shared<'_>) {
        for (request, cause) in self.late.drain(..) {
            let state = &mut shared.states[request as usize];
            let ns = self.now - state.last_token_ns;
            state.last_token_ns = self.now;
            // The step is recorded, so the next stretch is the first whose steps this request feels as they are.
            state.joined = state.joined.map(|(step, _)| (step, self.stretches.len()));
            if !shared.workload.is_added(request as usize) {
                shared.long_gaps.push(LongGap { ns, cause });
            }
            let served = &mut shared.served[request as usize];
            served.max_itl_ns = served.max_itl_ns.max(Some(ns));
        }
    }

    /// A chunk of a prompt is computed; after the last chunk the first token is out.
    fn computed(&mut self, shared: &mut Shared<'_>, request: u32, chunk: u32, per_token: f64) {
        let at = request as usize;
        let state = &mut shared.states[at];
        state.done += chunk;
        let served = &mut shared.served[at];
        served.computed_tokens += chunk;
        served.machine_ns += per_token * f64::from(chunk);
        if served.preemptions > 0 {
            served.recomputed_tokens += chunk;
        }
        if state.done == state.prefill {
            self.prefilled(shared, request, chunk);
        }
    }

    fn prefilled(&mut self, shared: &mut Shared<'_>, request: u32, chunk: u32) {
        let at = request as usize;
        self.prefilling.retain(|&other| other != request);
        let front = shared.rules.front_ns.round() as i64;
        let state = &mut shared.states[at];
        let prefill = state.prefill;
        self.memory.release(self.plan.footprint(prefill, prefill, false) - self.plan.footprint(prefill, prefill, true));
        let output = shared.workload.output[at];
        if output > 0 {
            state.generated += 1;
            let served = &mut shared.served[at];
            if served.ttft_ns.is_none() {
                served.ttft_ns = Some(self.now - served.arrival_ns + front);
            } else {
                let ns = self.now - state.last_token_ns;
                served.max_itl_ns = served.max_itl_ns.max(Some(ns));
                if !shared.workload.is_added(at) {
                    shared.long_gaps.push(LongGap { ns, cause: GapCause::Preemption });
                }
            }
            state.last_token_ns = self.now;
        }
        if state.generated >= output {
            self.leave(shared, request, prefill);
        } else if self.role == Role::Prefill {
            self.hand_over(shared, request, chunk);
        } else {
            if shared.rules.compose == Compose::PrefillFirst {
                self.late.push((request, GapCause::Prefill));
            }
            self.join(shared, request, prefill);
        }
    }

    /// A request begins to decode.
    fn join(&mut self, shared: &mut Shared<'_>, request: u32, context: u32) {
        let at = request as usize;
        let state = &mut shared.states[at];
        // The step's stretch is recorded by now, so the next one is the first whose steps this request feels.
        state.joined = Some((self.decoding.step, self.stretches.len()));
        state.joined_share = self.share;
        let is_added = shared.workload.is_added(at);
        let member = Member { request, epoch: state.epoch, prefilled: state.prefill, context, is_added };
        self.decoding.join(member, shared.workload.output[at] - state.generated);
    }

    /// The prompt is computed, and another instance decodes; the KV stays here until it is there.
    fn hand_over(&mut self, shared: &mut Shared<'_>, request: u32, chunk: u32) {
        let state = &mut shared.states[request as usize];
        let (prefill, left) = (state.prefill, *state);
        self.running.remove(&(state.order, request));
        self.promised -= state.promised;
        (state.has_kv, state.done, state.joined) = (true, prefill, None);
        let bytes = self.plan.footprint(prefill, prefill, true);
        self.leaving.push(Leaving { request, state: left, context: prefill, steps: 0, until_ns: i64::MAX });
        shared.handed.push(Handed {
            request,
            began_ns: state.began_ns,
            ended_ns: self.now,
            bytes,
            last_bytes: (bytes as f64 * f64::from(chunk) / f64::from(prefill.max(1))) as u64,
        });
    }

    /// The KV of a request that decodes elsewhere is there at `at`.
    pub(super) fn release_at(&mut self, request: u32, at: i64) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.request == request) {
            leaving.until_ns = at;
        }
    }

    /// Handles all events of the current step.
    fn finish_due(&mut self, shared: &mut Shared<'_>) {
        while let Some(event) = self.decoding.due() {
            match event {
                Event::Full { request, epoch, lane } => {
                    if let Some(member) = self.member(shared, request, epoch) {
                        self.decoding.fill(member, lane);
                    }
                }
                Event::Finish { request, epoch } => {
                    if let Some(member) = self.member(shared, request, epoch) {
                        self.stop_decoding(shared, member);
                        self.leave(shared, request, member.context);
                    }
                }
            }
        }
    }

    /// The request as the lockstep knows it now; `None` if the event belongs to an earlier admission.
    fn member(&self, shared: &Shared<'_>, request: u32, epoch: u32) -> Option<Member> {
        let state = &shared.states[request as usize];
        let (step, _) = state.joined.filter(|_| state.epoch == epoch)?;
        Some(Member {
            request,
            epoch,
            prefilled: state.prefill,
            context: state.done + (self.decoding.step - step) as u32,
            is_added: shared.workload.is_added(request as usize),
        })
    }

    /// Takes a request out of the lockstep and counts what it has felt there.
    fn stop_decoding(&mut self, shared: &mut Shared<'_>, member: Member) {
        self.decoding.leave(member);
        let at = member.request as usize;
        let state = &mut shared.states[at];
        let Some((step, stretch)) = state.joined.take() else { return };
        let steps = (self.decoding.step - step) as u32;
        state.generated += steps;
        let served = &mut shared.served[at];
        if steps > 0 {
            // The longest step after the joining stretch is the largest gap.
            let from = self.peaks.partition_point(|&(at, _)| at < stretch);
            served.max_itl_ns = served.max_itl_ns.max(self.peaks.get(from).map(|&(_, peak)| peak));
            state.last_token_ns = self.now - self.stall;
        }
        served.machine_ns += self.share - state.joined_share;
    }

    /// A request is done: its memory is free, or will be once the step that is put together already has run.
    fn leave(&mut self, shared: &mut Shared<'_>, request: u32, context: u32) {
        let at = request as usize;
        let served = &mut shared.served[at];
        served.fate = Fate::Finished;
        served.e2e_ns = Some(self.now - served.arrival_ns + shared.rules.front_ns.round() as i64);
        shared.ended.push(request);
        let state = shared.states[at];
        self.running.remove(&(state.order, request));
        self.promised -= state.promised;
        let leaving = Leaving { request, state, context, steps: u32::from(shared.rules.lookahead), until_ns: i64::MIN };
        if shared.rules.lookahead {
            self.leaving.push(leaving);
        } else {
            self.depart(shared, &leaving);
        }
    }

    /// Frees the memory of those that `steps` more ended steps let go; `true` if there were any.
    fn free_leaving(&mut self, shared: &mut Shared<'_>, steps: u32) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        let all = std::mem::take(&mut self.leaving);
        let before = all.len();
        for mut leaving in all {
            leaving.steps = leaving.steps.saturating_sub(steps);
            if leaving.steps == 0 && leaving.until_ns <= self.now {
                self.depart(shared, &leaving);
            } else {
                self.leaving.push(leaving);
            }
        }
        self.leaving.len() < before
    }

    /// Frees the memory of a request that has ended here. Blocks that its next turn will name stay as that turn's.
    fn depart(&mut self, shared: &mut Shared<'_>, leaving: &Leaving) {
        let (mut state, at) = (leaving.state, leaving.request as usize);
        let unit = unit_of(shared.workload);
        let prompt_units = shared.workload.prompt[at].checked_div(unit).unwrap_or(0);
        let (mut known, first): (&[u32], usize) = (&[], state.pinned as usize);
        let is_whole = state.publishes
            && state.pinned == prompt_units
            && shared.rules.keeps_decoded
            && is_whole(self.plan, state.prefill, leaving.context);
        if let Some(next) = shared.arrivals.follower(leaving.request).filter(|_| is_whole && unit > 0) {
            let (own, theirs) = (shared.workload.units_of(at), shared.workload.units_of(next as usize));
            let full = (shared.workload.prompt[next as usize] / unit).min(leaving.context / unit) as usize;
            if full > first && theirs.len() >= full && theirs[..first] == own[..first] {
                let new = theirs[first..full].iter().take_while(|&&unit| self.memory.publish(unit)).count();
                known = &theirs[first..first + new];
                state.pinned += new as u32;
                if let Some(lower) = self.told_lower() {
                    known.iter().for_each(|&unit| lower.write(unit));
                }
            }
        }
        let pinned = state.pinned;
        self.give_back(shared, &Leaving { state, ..*leaving }, true);
        self.memory.unpin(known);
        let own = pinned as usize - known.len();
        self.memory.unpin(&shared.workload.units_of(at)[..own]);
    }

    /// Frees private bytes; where blocks stay cached, gives the slot of those that no unit names. Units stay pinned.
    fn give_back(&mut self, shared: &Shared<'_>, leaving: &Leaving, selected: bool) -> Option<u32> {
        let (state, unit) = (&leaving.state, unit_of(shared.workload));
        let in_units = u64::from(state.pinned) * u64::from(unit) * self.plan.growing_bytes();
        let held = if selected {
            self.plan.footprint(state.prefill, leaving.context, true) - in_units
        } else {
            self.held_at(shared.workload, state, leaving.context)
        };
        let mut kept = None;
        let mut cached = 0;
        let whole = !selected || is_whole(self.plan, state.prefill, leaving.context);
        if shared.rules.keeps_decoded && state.shares && whole {
            let blocks = (leaving.context / BLOCK_TOKENS).saturating_sub(state.pinned * unit / BLOCK_TOKENS);
            kept = self.memory.leave_extent(leaving.request, blocks);
            if kept.is_some() {
                cached = u64::from(blocks) * u64::from(BLOCK_TOKENS) * self.plan.growing_bytes();
            }
        }
        self.memory.release(held - cached);
        kept
    }

    /// Preempts the request that the rules name; it waits in front and is prefilled again with what it had generated, as far
    /// as its blocks are gone, or comes back from the host.
    fn preempt(&mut self, shared: &mut Shared<'_>) {
        let Some(request) = self.victim(shared) else { return };
        let at = request as usize;
        let state = shared.states[at];
        let member = self.member(shared, request, state.epoch);
        self.running.remove(&(state.order, request));
        self.promised -= state.promised;
        self.late.retain(|&(other, _)| other != request);
        let context = if let Some(member) = member {
            self.stop_decoding(shared, member);
            member.context
        } else {
            self.prefilling.retain(|&other| other != request);
            state.done
        };
        let is_swapped = member.is_some() && shared.rules.preempted == Preempted::Swap;
        let leaving = Leaving { request, state, context, steps: 0, until_ns: 0 };
        let kept = if is_swapped {
            self.moved_bytes += self.plan.footprint(state.prefill, context, true);
            let unit = u64::from(unit_of(shared.workload));
            let held = self.plan.footprint(state.prefill, context, true)
                - u64::from(state.pinned) * unit * self.plan.growing_bytes();
            self.memory.release(held);
            None
        } else {
            self.give_back(shared, &leaving, member.is_some())
        };
        self.memory.unpin(&shared.workload.units_of(at)[..state.pinned as usize]);
        let state = &mut shared.states[at];
        (state.extent, state.extent_units) = (kept, state.pinned);
        if is_swapped {
            (state.has_kv, state.done) = (true, context);
        } else {
            state.prefill = shared.workload.prompt[at] + state.generated;
        }
        self.preempted = true;
        shared.served[at].preemptions += 1;
        self.waiting.push_front(request);
    }

    /// Who gives way.
    fn victim(&self, shared: &Shared<'_>) -> Option<u32> {
        let newest = self.running.last().map(|&(_, request)| request);
        if shared.rules.victim == Victim::Newest {
            return newest;
        }
        let decoding = self.running.iter().filter_map(|&(order, request)| {
            let state = &shared.states[request as usize];
            let (step, _) = state.joined?;
            let generated = u64::from(state.generated) + self.decoding.step - step;
            let prompt = shared.workload.prompt[request as usize];
            Some(((generated, u32::MAX - prompt, u64::MAX - order), request))
        });
        decoding.min().map(|(_, request)| request).or(newest)
    }
}

/// Tokens of the workload's units, 0 where they are no whole blocks of the engine and therefore cannot be shared.
fn unit_of(workload: &Workload) -> u32 {
    let unit = workload.unit_tokens;
    if unit.is_multiple_of(BLOCK_TOKENS) { unit } else { 0 }
}

/// Whether a decoding request still holds all of its context in the groups that grow with it.
fn is_whole(plan: &Plan, prompt: u32, context: u32) -> bool {
    plan.groups.iter().all(|group| {
        let keep = group.group.keep;
        keep.total.is_some() || keep.tokens(prompt, context) == context
    })
}

/// Time of the host that the engine's rules add to a step.
fn host(rules: &Rules, requests: u64, cost: &mut StepCost) {
    cost.overhead += rules.step_ns + rules.request_ns * requests as f64;
}

/// The first step, from the step `from` on, after which an engine looks for arrivals: every so many steps, of which `looked`
/// have passed.
fn next_look(looked: u64, from: u64, every: u64) -> u64 {
    (looked + from).div_ceil(every) * every - looked
}

/// The smallest number of steps, at most `steps`, whose times add up to `until`, for step times that rise evenly from
/// `first` to `last` over `steps`.
fn steps_until(first: f64, last: f64, steps: u64, until: f64) -> u64 {
    let slope = if steps > 1 { (last - first) / (steps - 1) as f64 } else { 0.0 };
    let sum = |count: u64| {
        let count = count as f64;
        count * first + slope * count * (count - 1.0) / 2.0
    };
    let (mut short, mut enough) = (0, steps);
    while enough - short > 1 {
        let middle = short.midpoint(enough);
        if sum(middle) >= until {
            enough = middle;
        } else {
            short = middle;
        }
    }
    enough.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fetch::{Decide, Way};
    use crate::cache::tiers::{Inclusion, Write};
    use crate::policy::Keep;
    use crate::serving::lower::{Evict, Tier};
    use crate::serving::{RULES, Traffic};
    use crate::test_kit::{toy_plan, toy_workload};

    /// A unit that had to go and is computed again, with no admission between, is in one memory only.
    #[test]
    fn what_left_goes_down_before_what_is_computed_again() {
        let (plan, workload) = (toy_plan(&[Keep::ALL], 64), toy_workload(&[(0, 32, 1, 0)]));
        let way = Way { name: "tier".to_owned(), bytes_per_ns: 1.0, latency_ns: 0.0 };
        let below = Tiers {
            tiers: vec![Tier { way, capacity_bytes: None }],
            decide: Decide::Always,
            evict: Evict::named("lru").unwrap(),
            write: Write::OnEvict,
            inclusion: Inclusion::Exclusive,
            admit: 1,
        };
        let mut instance = Instance::new(&plan, Role::Both, 0, &workload, Some(&below));
        let mut shared = Shared {
            workload: &workload,
            rules: &RULES[0],
            arrivals: Arrivals::new(&workload, Traffic::Open),
            states: vec![State { publishes: true, ..State::default() }],
            served: vec![Served::pending()],
            long_gaps: Vec::new(),
            ended: Vec::new(),
            handed: Vec::new(),
            overran: false,
        };
        assert!(instance.memory.reserve(32) && instance.memory.publish(0));
        instance.memory.unpin(&[0]);
        let room = instance.memory.room();
        assert!(instance.memory.reserve(room));
        assert_eq!(instance.match_units(&workload, 0), 0, "it had to go");
        instance.publish(&mut shared, 0, 32);
        assert_eq!(instance.match_units(&workload, 0), 1);
        let prompt = Prompt { units: &[0], leading: 0, tokens: 33, chunk_tokens: 64 };
        assert_eq!(instance.look_below(&prompt).units, 0, "it is here alone");
    }
}
