//! One instance of the engine, from its first arrival to its last token.

use std::collections::{BTreeSet, VecDeque};

use super::lockstep::{Event, Lockstep, Member};
use super::memory::Memory;
use super::{Fate, Outcome, Rules, Stretch};
use crate::cost::{BLOCK_TOKENS, Batch, Plan, StepCost, pairs, price};
use crate::workload::{LONGEST_NS, Workload};

/// A request while the instance knows it.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Admissions so far; events of earlier ones are stale.
    epoch: u32,
    /// Order of admission among the running.
    order: u64,
    /// Tokens to prefill in this admission: the prompt, and after a preemption what was generated.
    prefill: u32,
    /// Tokens of it that are computed or were found.
    done: u32,
    /// Leading units in use.
    pinned: u32,
    /// Whether its further units may be published.
    publishes: bool,
    /// Tokens generated so far, as of `joined_step` while decoding.
    generated: u32,
    /// Step and stretch at which it began to decode; `None` while it prefills or waits.
    joined: Option<(u64, usize)>,
    /// Cumulated share of step time per token when it began to decode.
    joined_share: f64,
    /// End of its latest token.
    last_token_ns: i64,
}

struct Instance<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    rules: &'a Rules,
    outcome: &'a mut Outcome,
    states: Vec<State>,
    memory: Memory,
    decoding: Lockstep,
    waiting: VecDeque<u32>,
    prefilling: VecDeque<u32>,
    /// Running requests by order of admission.
    running: BTreeSet<(u64, u32)>,
    admissions: u64,
    /// Nothing is admitted in a step in which a request was preempted.
    preempted: bool,
    now: i64,
    /// Sum over steps of duration over tokens computed in the step.
    share: f64,
    /// Number of this instance.
    number: u32,
    /// Stretches whose longest step is longer than all later ones: (stretch, duration).
    peaks: Vec<(usize, i64)>,
    kept: Vec<u64>,
    last_kept: Vec<u64>,
    pairs: Vec<f64>,
    read: Vec<u64>,
}

/// Serves the requests `mine` (indices into the workload, in order of arrival).
pub(super) fn run(plan: &Plan, workload: &Workload, rules: &Rules, number: u32, mine: &[u32], outcome: &mut Outcome) {
    let groups = plan.groups.len();
    let unit_bytes = u64::from(workload.unit_tokens) * plan.growing_bytes();
    let mut instance = Instance {
        plan,
        workload,
        rules,
        outcome,
        states: vec![State::default(); workload.len()],
        memory: Memory::new(plan.capacity_bytes, unit_bytes, workload.distinct_units as usize),
        decoding: Lockstep::new(plan),
        waiting: VecDeque::new(),
        prefilling: VecDeque::new(),
        running: BTreeSet::new(),
        admissions: 0,
        preempted: false,
        now: 0,
        share: 0.0,
        number,
        peaks: Vec::new(),
        kept: vec![0; plan.lanes()],
        last_kept: vec![0; plan.lanes()],
        pairs: vec![0.0; groups],
        read: vec![0; groups],
    };
    let mut arrivals = mine.iter().copied().peekable();
    while !instance.outcome.overran {
        while let Some(request) = arrivals.next_if(|&request| workload.arrival_ns[request as usize] <= instance.now) {
            instance.arrive(request);
        }
        instance.admit();
        let next_arrival = arrivals.peek().map(|&request| workload.arrival_ns[request as usize]);
        if !instance.prefilling.is_empty() {
            instance.mixed_step();
        } else if instance.decoding.requests > 0 {
            instance.decode_stretch(next_arrival);
        } else if instance.preempted {
            // Nothing runs any more, so the step of the preemption is over.
            instance.preempted = false;
        } else if let Some(at) = next_arrival {
            instance.now = instance.now.max(at);
        } else {
            break;
        }
    }
}

impl Instance<'_> {
    /// A request comes; one that can never be served is turned away at once.
    fn arrive(&mut self, request: u32) {
        let at = request as usize;
        let (prompt, output) = (self.workload.prompt[at], self.workload.output[at]);
        // The last token needs no KV. A preempted request is prefilled again with what it had generated, before anything
        // is pruned.
        let most = prompt.checked_add(output.saturating_sub(1));
        let fits = |most: u32| {
            let peak = self.plan.footprint(prompt, prompt, false).max(self.plan.footprint(prompt, most, true));
            peak.max(self.plan.footprint(most, most, false)) <= self.plan.capacity_bytes
        };
        if prompt == 0 {
            self.outcome.served[at].fate = Fate::NoPrompt;
        } else if most.is_some_and(fits) {
            self.states[at].prefill = prompt;
            self.waiting.push_back(request);
        } else {
            self.outcome.served[at].fate = Fate::TooLarge;
        }
    }

    /// Admits waiting requests in order while the step has tokens to spare, and a slot and room for the whole prompt are
    /// free.
    fn admit(&mut self) {
        if self.preempted {
            return;
        }
        let left = |request: &u32| {
            let state = &self.states[*request as usize];
            u64::from(state.prefill - state.done)
        };
        let taken = self.decoding.requests + self.prefilling.iter().map(left).sum::<u64>();
        let mut budget = u64::from(self.rules.step_tokens).saturating_sub(taken);
        while let Some(&request) = self.waiting.front() {
            let full = self.running.len() >= self.rules.running_requests as usize;
            if budget == 0 || full || !self.admit_one(request) {
                break;
            }
            self.waiting.pop_front();
            self.prefilling.push_back(request);
            let state = &self.states[request as usize];
            budget = budget.saturating_sub(u64::from(state.prefill - state.done));
        }
    }

    fn admit_one(&mut self, request: u32) -> bool {
        let at = request as usize;
        let (unit, prefill) = (self.workload.unit_tokens, self.states[at].prefill);
        let aligned = unit > 0 && unit.is_multiple_of(BLOCK_TOKENS);
        let shares = self.rules.prefix_cache && aligned && self.plan.shares(prefill);
        let units = self.workload.units_of(at);
        // Only full blocks are shared, and at least the last token is computed for its logits.
        let full = if shares { (self.workload.prompt[at] / unit) as usize } else { 0 };
        let leading = self.memory.leading(&units[..full.min(units.len())]);
        let found = (leading as u32 * unit).min((prefill - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
        let unit_bytes = u64::from(unit) * self.plan.growing_bytes();
        let private = self.plan.footprint(prefill, prefill, false) - leading as u64 * unit_bytes;
        let pinned = &units[..leading];
        if private + self.memory.unused_bytes(pinned) > self.memory.room() {
            return false;
        }
        self.memory.pin(pinned);
        self.memory.reserve(private);
        self.admissions += 1;
        let state = &mut self.states[at];
        state.epoch += 1;
        state.order = self.admissions;
        state.done = found;
        state.pinned = leading as u32;
        state.publishes = shares;
        self.running.insert((self.admissions, request));
        let served = &mut self.outcome.served[at];
        if served.queue_ns.is_none() {
            served.queue_ns = Some(self.now - self.workload.arrival_ns[at]);
            served.hit_tokens = found;
        }
        true
    }

    /// One step with prefill chunks, and one token for each decoding request.
    fn mixed_step(&mut self) {
        while !self.grow(1) {
            if self.preempt_last() {
                return;
            }
        }
        let budget = u64::from(self.rules.step_tokens).saturating_sub(self.decoding.requests);
        let chunks = self.chunks(budget.max(1) as u32);
        let prefill_tokens: u64 = chunks.iter().map(|chunk| u64::from(chunk.1)).sum();
        let completed = |&&(request, chunk): &&(u32, u32)| {
            let state = &self.states[request as usize];
            state.done + chunk == state.prefill
        };
        let rows = chunks.iter().filter(completed).count() as u64;
        let scored = chunks.iter().filter(completed).map(|&(request, _)| self.states[request as usize].prefill);
        let scored_tokens = scored.filter(|&prefill| self.plan.drops_of(prefill)).map(u64::from).sum();
        self.decoding.kept_into(1, &mut self.kept);
        let batch = Batch {
            decode_requests: self.decoding.requests,
            kept_tokens: &self.kept,
            prefill_tokens,
            prefill_rows: rows,
            prefill_pairs: &self.pairs,
            prefill_context: &self.read,
            scored_tokens,
        };
        let cost = price(self.plan, &batch);
        let Some(total) = self.duration(cost.total()) else { return };
        let per_token = total as f64 / (self.decoding.requests + prefill_tokens) as f64;
        let (requests, context) = (self.decoding.requests, self.decoding.context);
        self.share += per_token;
        self.now += total;
        self.decoding.advance(1);
        self.record(Stretch {
            instance: 0,
            start_ns: self.now - total,
            steps: 1,
            decode_requests: requests,
            prefill_requests: chunks.len() as u32,
            prefill_tokens,
            context_tokens: context + requests,
            first_ns: cost.total(),
            last_ns: cost.total(),
            total_ns: total,
            cost,
            held_bytes: 0,
            resident_bytes: 0,
            left_bytes: 0,
            waiting_requests: 0,
        });
        self.finish_due();
        for &(request, chunk) in &chunks {
            self.computed(request, chunk, per_token);
        }
        self.settle();
    }

    /// Deals the token budget out to the prefilling requests in order, and notes their pairs and reads.
    fn chunks(&mut self, budget: u32) -> Vec<(u32, u32)> {
        self.pairs.fill(0.0);
        self.read.fill(0);
        let mut left = budget;
        let mut chunks = Vec::new();
        for &request in &self.prefilling {
            if left == 0 {
                break;
            }
            let state = &self.states[request as usize];
            let chunk = left.min(state.prefill - state.done);
            left -= chunk;
            chunks.push((request, chunk));
            for (at, group) in self.plan.groups.iter().enumerate() {
                let cap = group.group.keep.total;
                self.pairs[at] += pairs(state.done, state.done + chunk, cap);
                let end = u64::from(state.done + chunk);
                self.read[at] += cap.map_or(end, |cap| end.min(u64::from(cap) + u64::from(chunk)));
            }
        }
        chunks
    }

    /// A chunk of a prompt is computed; its full units become shared, and after the last chunk the first token is out.
    fn computed(&mut self, request: u32, chunk: u32, per_token: f64) {
        let at = request as usize;
        let state = &mut self.states[at];
        state.done += chunk;
        let served = &mut self.outcome.served[at];
        served.computed_tokens += chunk;
        served.machine_ns += per_token * f64::from(chunk);
        if state.epoch > 1 {
            served.recomputed_tokens += chunk;
        }
        let unit = self.workload.unit_tokens;
        let units = self.workload.units_of(at);
        while state.publishes {
            let next = state.pinned as usize;
            let end = (next as u32 + 1).saturating_mul(unit);
            if next >= units.len() || end > state.done || end > self.workload.prompt[at] {
                break;
            }
            // A unit that another request published meanwhile stays a private duplicate here, and so do those after it.
            state.publishes = self.memory.publish(units[next]);
            state.pinned += u32::from(state.publishes);
        }
        if state.done == state.prefill {
            self.prefilled(request);
        }
    }

    fn prefilled(&mut self, request: u32) {
        let at = request as usize;
        self.prefilling.retain(|&other| other != request);
        let state = &mut self.states[at];
        let prefill = state.prefill;
        self.memory.release(self.plan.footprint(prefill, prefill, false) - self.plan.footprint(prefill, prefill, true));
        let output = self.workload.output[at];
        if output > 0 {
            state.generated += 1;
            let served = &mut self.outcome.served[at];
            if served.ttft_ns.is_none() {
                served.ttft_ns = Some(self.now - self.workload.arrival_ns[at]);
            } else {
                let gap = self.now - state.last_token_ns;
                served.max_itl_ns = served.max_itl_ns.max(Some(gap));
                self.outcome.long_gaps.push(gap);
            }
            state.last_token_ns = self.now;
        }
        if state.generated >= output {
            self.leave(request, prefill);
            return;
        }
        // The step's stretch is recorded by now, so the next one is the first whose steps this request feels.
        state.joined = Some((self.decoding.step, self.outcome.stretches.len()));
        state.joined_share = self.share;
        let member = Member { request, epoch: state.epoch, prefilled: prefill, context: prefill };
        self.decoding.join(member, output - state.generated);
    }

    /// As many decode steps as nothing changes the batch.
    fn decode_stretch(&mut self, next_arrival: Option<i64>) {
        let mut steps = self.decoding.until_event().unwrap_or(1).max(1);
        if self.preempted {
            // Whoever was preempted may fit again after this step, where several made room at once.
            steps = 1;
        }
        if !self.fits(steps) {
            let (mut fitting, mut beyond) = (0, steps);
            while beyond - fitting > 1 {
                let middle = fitting.midpoint(beyond);
                if self.fits(middle) {
                    fitting = middle;
                } else {
                    beyond = middle;
                }
            }
            if fitting == 0 {
                self.preempt_last();
                return;
            }
            steps = fitting;
        }
        self.read.fill(0);
        self.pairs.fill(0.0);
        let first = self.price_decode(1);
        let mut last = self.price_decode(steps);
        if last.regime != first.regime {
            let (mut same, mut other) = (1, steps);
            while other - same > 1 {
                let middle = same.midpoint(other);
                if self.price_decode(middle).regime == first.regime {
                    same = middle;
                } else {
                    other = middle;
                }
            }
            steps = same;
            last = self.price_decode(steps);
        }
        // While others already wait for room, an arrival changes nothing.
        if let Some(at) = next_arrival.filter(|_| self.waiting.is_empty()) {
            let until = (at - self.now).max(0) as f64;
            let reached = steps_until(first.total(), last.total(), steps, until);
            if reached < steps {
                steps = reached;
                last = self.price_decode(steps);
            }
        }
        self.finish_stretch(steps, &first, &last);
    }

    fn finish_stretch(&mut self, steps: u64, first: &StepCost, last: &StepCost) {
        let cost = StepCost::stretched(first, last, steps as f64);
        let Some(total) = self.duration(cost.total()) else { return };
        let (requests, context) = (self.decoding.requests, self.decoding.context);
        self.grow(steps);
        self.share += total as f64 / requests as f64;
        self.now += total;
        self.decoding.advance(steps);
        self.record(Stretch {
            instance: 0,
            start_ns: self.now - total,
            steps,
            decode_requests: requests,
            prefill_requests: 0,
            prefill_tokens: 0,
            context_tokens: context + requests,
            first_ns: first.total(),
            last_ns: last.total(),
            total_ns: total,
            cost,
            held_bytes: 0,
            resident_bytes: 0,
            left_bytes: 0,
            waiting_requests: 0,
        });
        self.finish_due();
        self.settle();
    }

    /// Notes what is held after those that finished have left.
    fn settle(&mut self) {
        if let Some(stretch) = self.outcome.stretches.last_mut() {
            stretch.left_bytes = self.memory.held();
        }
    }

    /// A duration in whole nanoseconds; `None`, and the replay is over, if the clock cannot count so far.
    fn duration(&mut self, ns: f64) -> Option<i64> {
        self.outcome.overran |= ns + self.now as f64 > LONGEST_NS as f64;
        (!self.outcome.overran).then_some(ns.round() as i64)
    }

    fn price_decode(&mut self, ahead: u64) -> StepCost {
        self.decoding.kept_into(ahead, &mut self.last_kept);
        let batch = Batch {
            decode_requests: self.decoding.requests,
            kept_tokens: &self.last_kept,
            prefill_tokens: 0,
            prefill_rows: 0,
            prefill_pairs: &self.pairs,
            prefill_context: &self.read,
            scored_tokens: 0,
        };
        price(self.plan, &batch)
    }

    fn fits(&self, steps: u64) -> bool {
        self.decoding.growth(steps) <= self.memory.room()
    }

    fn grow(&mut self, steps: u64) -> bool {
        self.memory.reserve(self.decoding.growth(steps))
    }

    /// Handles all events of the current step.
    fn finish_due(&mut self) {
        while let Some(event) = self.decoding.due() {
            match event {
                Event::Full { request, epoch, lane } => {
                    if let Some(member) = self.member(request, epoch) {
                        self.decoding.fill(member, lane);
                    }
                }
                Event::Finish { request, epoch } => {
                    if let Some(member) = self.member(request, epoch) {
                        self.stop_decoding(member);
                        self.leave(request, member.context);
                    }
                }
            }
        }
    }

    /// The request as the lockstep knows it now; `None` if the event belongs to an earlier admission.
    fn member(&self, request: u32, epoch: u32) -> Option<Member> {
        let state = &self.states[request as usize];
        let (step, _) = state.joined.filter(|_| state.epoch == epoch)?;
        let context = state.prefill + (self.decoding.step - step) as u32;
        Some(Member { request, epoch, prefilled: state.prefill, context })
    }

    /// Takes a request out of the lockstep and settles what it felt since it joined.
    fn stop_decoding(&mut self, member: Member) {
        self.decoding.leave(member);
        let state = &mut self.states[member.request as usize];
        let served = &mut self.outcome.served[member.request as usize];
        let Some((_, stretch)) = state.joined.take() else { return };
        state.generated += member.context - state.prefill;
        if member.context > state.prefill {
            // `peaks` falls, so the first peak at or after the joining stretch is the largest gap.
            let from = self.peaks.partition_point(|&(at, _)| at < stretch);
            served.max_itl_ns = served.max_itl_ns.max(self.peaks.get(from).map(|&(_, peak)| peak));
            state.last_token_ns = self.now;
        }
        served.machine_ns += self.share - state.joined_share;
    }

    /// A request is done: its memory is free, its shared units stay cached.
    fn leave(&mut self, request: u32, context: u32) {
        let at = request as usize;
        self.give_back(request, context, true);
        let served = &mut self.outcome.served[at];
        served.fate = Fate::Finished;
        served.e2e_ns = Some(self.now - self.workload.arrival_ns[at]);
    }

    fn give_back(&mut self, request: u32, context: u32, selected: bool) {
        let at = request as usize;
        let state = &self.states[at];
        self.running.remove(&(state.order, request));
        let unit_bytes = u64::from(self.workload.unit_tokens) * self.plan.growing_bytes();
        let held = self.plan.footprint(state.prefill, context, selected) - u64::from(state.pinned) * unit_bytes;
        self.memory.release(held);
        self.memory.unpin(&self.workload.units_of(at)[..state.pinned as usize]);
    }

    /// Preempts the request that was admitted last; it waits in front and is prefilled again with what it had generated.
    /// `true` if it was prefilling, so that the step must be composed anew.
    fn preempt_last(&mut self) -> bool {
        let Some(&(_, request)) = self.running.last() else { return true };
        let at = request as usize;
        let epoch = self.states[at].epoch;
        let member = self.member(request, epoch);
        if let Some(member) = member {
            self.stop_decoding(member);
            self.give_back(request, member.context, true);
            self.states[at].prefill = self.workload.prompt[at] + self.states[at].generated;
        } else {
            self.prefilling.retain(|&other| other != request);
            self.give_back(request, self.states[at].prefill, false);
        }
        self.preempted = true;
        self.outcome.served[at].preemptions += 1;
        self.waiting.push_front(request);
        member.is_none()
    }

    /// Adds a stretch, with the memory as it stands before those who finished leave.
    fn record(&mut self, mut stretch: Stretch) {
        self.preempted = false;
        stretch.instance = self.number;
        stretch.held_bytes = self.memory.held();
        stretch.resident_bytes = self.memory.resident();
        stretch.waiting_requests = self.waiting.len() as u32;
        let longest = stretch.first_ns.max(stretch.last_ns).round() as i64;
        while self.peaks.last().is_some_and(|&(_, peak)| peak <= longest) {
            self.peaks.pop();
        }
        self.peaks.push((self.outcome.stretches.len(), longest));
        self.outcome.stretches.push(stretch);
    }
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
