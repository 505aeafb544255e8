//! The replay against a slow one that goes token by token and keeps every request's own figures.

use proptest::prelude::*;

use super::*;
use crate::cost::{BLOCK_TOKENS, Batch, price};
use crate::policy::{Beside, Budget, Keep, Lower};
use crate::test_kit::{toy_plan, toy_workload};

/// A request of the slow replay.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "plain flags keep the slow replay easy to check by eye")]
struct Slow {
    prefill: u32,
    done: u32,
    generated: u32,
    pinned: Vec<u32>,
    publishes: bool,
    is_decoding: bool,
    last_token: Option<i64>,
    ttft: Option<i64>,
    e2e: Option<i64>,
    longest: Option<i64>,
    hit: u32,
    admitted: bool,
    preemptions: u32,
    rejected: bool,
}

/// Everything the slow replay keeps. Cached units stand in order of eviction.
struct SlowReplay<'a> {
    plan: &'a Plan,
    workload: &'a Workload,
    rules: &'a Rules,
    requests: Vec<Slow>,
    waiting: Vec<usize>,
    running: Vec<usize>,
    cached: Vec<u32>,
    now: f64,
    tokens: Vec<i64>,
    most_resident: u64,
}

impl SlowReplay<'_> {
    fn context(&self, at: usize) -> u32 {
        let request = &self.requests[at];
        if request.is_decoding { request.prefill + request.generated - self.base(at) } else { request.prefill }
    }

    /// Tokens that had been generated when the current prefill ended, its own first token included.
    fn base(&self, at: usize) -> u32 {
        self.requests[at].prefill - self.workload.prompt[at] + 1
    }

    fn private(&self, at: usize) -> u64 {
        let request = &self.requests[at];
        let whole = self.plan.footprint(request.prefill, self.context(at), request.is_decoding);
        whole - request.pinned.len() as u64 * self.unit_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        u64::from(self.workload.unit_tokens) * self.plan.growing_bytes()
    }

    fn held_units(&self) -> Vec<u32> {
        let mut units: Vec<u32> = self.running.iter().flat_map(|&at| self.requests[at].pinned.clone()).collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    fn held(&self) -> u64 {
        let private: u64 = self.running.iter().map(|&at| self.private(at)).sum();
        private + self.held_units().len() as u64 * self.unit_bytes()
    }

    /// Evicts cached units until the memory holds what it must; `false` if that cannot be.
    fn settle(&mut self) -> bool {
        if self.held() > self.plan.capacity_bytes {
            return false;
        }
        while self.held() + self.cached.len() as u64 * self.unit_bytes() > self.plan.capacity_bytes {
            self.cached.remove(0);
        }
        self.most_resident = self.most_resident.max(self.held() + self.cached.len() as u64 * self.unit_bytes());
        true
    }

    fn drop_running(&mut self, at: usize) {
        self.running.retain(|&other| other != at);
        let still = self.held_units();
        let pinned = std::mem::take(&mut self.requests[at].pinned);
        self.cached.extend(pinned.iter().rev().filter(|unit| !still.contains(unit)));
    }

    /// Tokens that the next step will compute if nobody else is admitted.
    fn claimed(&self) -> u32 {
        let claim = |&at: &usize| {
            let request = &self.requests[at];
            if request.is_decoding { 1 } else { request.prefill - request.done }
        };
        self.running.iter().map(claim).sum()
    }

    fn admit(&mut self) {
        while let Some(&at) = self.waiting.first() {
            let full = self.running.len() >= self.rules.running_requests as usize;
            if full || self.claimed() >= self.rules.step_tokens {
                return;
            }
            let (unit, prefill) = (self.workload.unit_tokens, self.requests[at].prefill);
            let shares = unit > 0 && self.plan.shares(prefill);
            let full = if shares { (self.workload.prompt[at] / unit) as usize } else { 0 };
            let held = self.held_units();
            let units = &self.workload.units_of(at)[..full];
            let known = |unit: &u32| held.contains(unit) || self.cached.contains(unit);
            let leading: Vec<u32> = units.iter().copied().take_while(known).collect();
            let before = self.cached.clone();
            self.cached.retain(|unit| !leading.contains(unit));
            let found = (leading.len() as u32 * unit).min((prefill - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
            self.requests[at].pinned = leading;
            self.running.push(at);
            if !self.settle() {
                self.running.pop();
                self.requests[at].pinned.clear();
                self.cached = before;
                return;
            }
            let request = &mut self.requests[at];
            request.done = found;
            request.publishes = shares;
            if !request.admitted {
                request.hit = found;
                request.admitted = true;
            }
            self.waiting.remove(0);
        }
    }

    fn token(&mut self, at: usize) {
        let now = self.now.round() as i64;
        let arrival = self.workload.arrival_ns[at];
        let request = &mut self.requests[at];
        request.generated += 1;
        if let Some(last) = request.last_token {
            request.longest = request.longest.max(Some(now - last));
            self.tokens.push(now - last);
        }
        request.last_token = Some(now);
        request.ttft = request.ttft.or(Some(now - arrival));
    }

    fn finish(&mut self, at: usize) {
        self.drop_running(at);
        self.requests[at].e2e = Some(self.now.round() as i64 - self.workload.arrival_ns[at]);
    }

    fn step(&mut self) -> bool {
        // Every decoding request needs room for one more token; the last admitted gives way.
        loop {
            let decoding: Vec<usize> =
                self.running.iter().copied().filter(|&at| self.requests[at].is_decoding).collect();
            for &at in &decoding {
                self.requests[at].generated += 1;
            }
            let fits = self.settle();
            for &at in &decoding {
                self.requests[at].generated -= 1;
            }
            if fits {
                break;
            }
            let last = *self.running.last().unwrap();
            let was_decoding = self.requests[last].is_decoding;
            self.drop_running(last);
            let request = &mut self.requests[last];
            request.preemptions += 1;
            if was_decoding {
                request.prefill = self.workload.prompt[last] + request.generated;
            }
            request.is_decoding = false;
            self.waiting.insert(0, last);
            if !was_decoding || self.prefilling().is_empty() {
                return true;
            }
        }
        self.compute();
        false
    }

    fn prefilling(&self) -> Vec<usize> {
        self.running.iter().copied().filter(|&at| !self.requests[at].is_decoding).collect()
    }

    fn compute(&mut self) {
        let decoding: Vec<usize> = self.running.iter().copied().filter(|&at| self.requests[at].is_decoding).collect();
        let mut left = (self.rules.step_tokens as usize - decoding.len()) as u32;
        let groups = self.plan.groups.len();
        let (mut kept, mut pairs, mut read) = (vec![0; self.plan.lanes()], vec![0.0; groups], vec![0; groups]);
        let mut chunks = Vec::new();
        for at in self.prefilling() {
            let request = &self.requests[at];
            let chunk = left.min(request.prefill - request.done);
            if chunk == 0 {
                break;
            }
            left -= chunk;
            chunks.push((at, chunk));
            for (group, planned) in self.plan.groups.iter().enumerate() {
                let cap = planned.group.keep.total.unwrap_or(u32::MAX);
                for token in request.done + 1..=request.done + chunk {
                    pairs[group] += f64::from(token.min(cap));
                }
                read[group] += u64::from((request.done + chunk).min(cap.saturating_add(chunk)));
            }
        }
        for &at in &decoding {
            let (prefill, context) = (self.requests[at].prefill, self.context(at) + 1);
            for (group, planned) in self.plan.groups.iter().enumerate() {
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
            prefill_tokens: chunks.iter().map(|chunk| u64::from(chunk.1)).sum(),
            prefill_requests: chunks.len() as u64,
            prefill_rows: chunks.iter().filter(ends).count() as u64,
            prefill_pairs: &pairs,
            prefill_context: &read,
            scored_tokens: scored.filter(|&prefill| self.plan.drops_of(prefill)).map(u64::from).sum(),
        };
        self.now += price(self.plan, &batch).total();
        for at in decoding {
            self.token(at);
            if self.requests[at].generated >= self.workload.output[at] {
                self.finish(at);
            }
        }
        for (at, chunk) in chunks {
            self.prefilled(at, chunk);
        }
    }

    fn prefilled(&mut self, at: usize, chunk: u32) {
        self.requests[at].done += chunk;
        let unit = self.workload.unit_tokens;
        for (index, &number) in self.workload.units_of(at).iter().enumerate() {
            let request = &self.requests[at];
            let end = (index as u32 + 1) * unit;
            if !request.publishes
                || index < request.pinned.len()
                || end > request.done
                || end > self.workload.prompt[at]
            {
                continue;
            }
            let resident = self.held_units().contains(&number) || self.cached.contains(&number);
            let request = &mut self.requests[at];
            if resident {
                request.publishes = false;
            } else {
                request.pinned.push(number);
            }
        }
        if self.requests[at].done < self.requests[at].prefill {
            return;
        }
        if self.workload.output[at] > 0 {
            self.token(at);
        }
        if self.requests[at].generated >= self.workload.output[at] {
            self.finish(at);
        } else {
            self.requests[at].is_decoding = true;
        }
    }
}

fn slow<'a>(plan: &'a Plan, workload: &'a Workload, rules: &'a Rules) -> SlowReplay<'a> {
    let mut replay = SlowReplay {
        plan,
        workload,
        rules,
        requests: vec![Slow::default(); workload.len()],
        waiting: Vec::new(),
        running: Vec::new(),
        cached: Vec::new(),
        now: 0.0,
        tokens: Vec::new(),
        most_resident: 0,
    };
    let mut next = 0;
    let mut preempted = false;
    loop {
        while next < workload.len() && workload.arrival_ns[next] as f64 <= replay.now.round() {
            let prompt = workload.prompt[next];
            let most = prompt + workload.output[next].saturating_sub(1);
            let needed = [(prompt, prompt, false), (prompt, most, true), (most, most, false)];
            let fits = needed.iter().all(|&(p, c, s)| plan.footprint(p, c, s) <= plan.capacity_bytes);
            if prompt == 0 || !fits {
                replay.requests[next].rejected = true;
            } else {
                replay.requests[next].prefill = prompt;
                replay.waiting.push(next);
            }
            next += 1;
        }
        if !preempted {
            replay.admit();
        }
        if !replay.running.is_empty() {
            preempted = replay.step();
        } else if preempted {
            preempted = false;
        } else if next < workload.len() {
            replay.now = replay.now.max(workload.arrival_ns[next] as f64);
        } else {
            return replay;
        }
    }
}

fn compare(plan: &Plan, workload: &Workload, rules: &Rules) -> Result<(), TestCaseError> {
    let (fast, slow) = (serve(plan, workload, 1, rules), slow(plan, workload, rules));
    // A stretch is rounded to a nanosecond as a whole, so times drift apart by up to half a nanosecond per stretch.
    let near = |a: Option<i64>, b: Option<i64>| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 3 + fast.stretches.len() as i64,
        (None, None) => true,
        _ => false,
    };
    for (at, (served, slow)) in fast.served.iter().zip(&slow.requests).enumerate() {
        prop_assert_eq!(served.fate != Fate::Finished, slow.rejected, "request {}", at);
        prop_assert_eq!(served.preemptions, slow.preemptions, "preemptions of {}", at);
        prop_assert_eq!(served.hit_tokens, slow.hit, "hits of {}", at);
        for (name, a, b) in [
            ("ttft", served.ttft_ns, slow.ttft),
            ("e2e", served.e2e_ns, slow.e2e),
            ("largest gap", served.max_itl_ns, slow.longest),
        ] {
            prop_assert!(near(a, b), "{} of {}: {:?} and {:?}", name, at, a, b);
        }
    }
    for stretch in &fast.stretches {
        prop_assert!(stretch.resident_bytes <= plan.capacity_bytes);
        prop_assert!(stretch.held_bytes <= stretch.resident_bytes);
    }
    prop_assert!(slow.most_resident <= plan.capacity_bytes);
    let mut tokens = slow.tokens.clone();
    tokens.sort_unstable();
    let exact = quantile::of_tokens(&fast, &quantile::GRID);
    for (ratio, value) in quantile::GRID.into_iter().zip(exact) {
        prop_assert!(near(value, quantile::of_sorted(&tokens, ratio)), "quantile {} is {:?}", ratio, value);
    }
    Ok(())
}

fn keeps() -> impl Strategy<Value = Vec<Keep>> {
    let keep = prop_oneof![
        Just(Keep::ALL),
        (20_u32..90).prop_map(Keep::at_most),
        (1_u32..60).prop_map(|budget| Keep::of_prompt(Budget::Tokens(budget))),
        (0.1_f64..1.0).prop_map(|ratio| Keep::of_prompt(Budget::Ratio(ratio))),
        (1_u32..90).prop_map(|budget| Keep::fixed(Budget::Tokens(budget))),
        (0.1_f64..1.0).prop_map(|ratio| Keep::fixed(Budget::Ratio(ratio))),
    ];
    // Half of them with tokens that are kept after all.
    let retained = prop_oneof![Just(0.0), 0.05_f64..1.0];
    let extra = prop_oneof![Just(0_u32), 1_u32..40];
    let keep = (keep, retained, extra).prop_map(|(keep, retained, extra)| match keep {
        Keep::ALL => keep,
        _ => Keep { retained, extra, ..keep },
    });
    proptest::collection::vec(keep, 1..3)
}

/// Something is held of what the first group does not keep, some of it is fetched from a lower tier, and the newest tokens
/// take room.
fn with_recovery(plan: &mut Plan, fetched: u32) {
    let next = plan.lanes();
    plan.host_bytes_per_ns = 0.05;
    let group = &mut plan.groups[0];
    group.group.beside = Some(Beside { token_bytes: 1, is_attended: true, read_flops: 0.1 });
    group.group.lower = Some(Lower { token_bytes: 3, fetched_tokens: fetched });
    group.group.keep.extra = fetched;
    (group.token_bytes, group.token_bytes_per_accelerator) = (3, 3.0);
    (group.beside_bytes, group.beside_bytes_per_accelerator, group.beside_flops) = (1, 1.0, 0.1);
    group.lower_bytes_per_accelerator = 3.0;
    group.residual_room_bytes = 7;
    (group.whole_lane, group.near_lane) = (Some(next), Some(next + 1));
}

fn requests() -> impl Strategy<Value = Vec<(u32, u32, u32, u8)>> {
    // Gap to the arrival before in microseconds, prompt, output, family of prefixes.
    proptest::collection::vec((0_u32..3000, 0_u32..200, 0_u32..60, 0_u8..3), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn jumping_from_event_to_event_equals_going_token_by_token(
        keeps in keeps(),
        most_read in proptest::option::of(1_u32..200),
        fetched in proptest::option::of(0_u32..40),
        requests in requests(),
        capacity in 300_u64..2500,
        running in 1_u32..8,
        step_tokens in 16_u32..200,
    ) {
        let rules = Rules { name: "toy", doc: "", step_tokens, running_requests: running, prefix_cache: true };
        let mut plan = toy_plan(&keeps, capacity);
        if let Some(most) = most_read {
            // The first group reads a part of what it keeps, and an index beside it.
            plan.groups[0].group.read_tokens = Some(most);
            plan.groups[0].read_lane = Some(keeps.len());
            plan.groups[0].index_bytes_per_accelerator = 0.25;
            // It drops nothing that could be recovered.
            plan.groups[0].group.keep = Keep { retained: 0.0, extra: 0, ..plan.groups[0].group.keep };
        }
        if let Some(fetched) = fetched.filter(|_| most_read.is_none()) {
            with_recovery(&mut plan, fetched);
        }
        let workload = toy_workload(&requests);
        compare(&plan, &workload, &rules)?;
    }

    #[test]
    fn every_request_is_finished_or_rejected_and_every_token_is_counted(
        keeps in keeps(),
        requests in requests(),
        capacity in 300_u64..2500,
        instances in 1_u32..4,
    ) {
        let rules = Rules { name: "toy", doc: "", step_tokens: 64, running_requests: 6, prefix_cache: true };
        let workload = toy_workload(&requests);
        let outcome = serve(&toy_plan(&keeps, capacity), &workload, instances, &rules);
        let finished: Vec<usize> = (0..workload.len()).filter(|&at| outcome.served[at].fate == Fate::Finished).collect();
        let rejected = outcome.served.iter().filter(|served| matches!(served.fate, Fate::TooLarge | Fate::NoPrompt));
        prop_assert_eq!(finished.len() + rejected.count(), workload.len());
        let later: u64 = finished.iter().map(|&at| u64::from(workload.output[at].saturating_sub(1))).sum();
        let stretches = outcome.stretches.iter().map(|stretch| stretch.decode_requests * stretch.steps);
        prop_assert_eq!(stretches.sum::<u64>() + outcome.long_gaps.len() as u64, later);
        // Each step's time is shared by the tokens it computed, so the shares add up to the time.
        let shares: f64 = outcome.served.iter().map(|served| served.machine_ns).sum();
        let time: i64 = outcome.stretches.iter().map(|stretch| stretch.total_ns).sum();
        prop_assert!((shares - time as f64).abs() <= 1e-6 * time as f64 + 1.0, "{} of {}", shares, time);
    }
}

#[test]
fn a_second_request_with_the_same_prompt_hits_all_but_its_last_block() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let workload = toy_workload(&[(0, 96, 4, 1), (2_000_000, 96, 4, 1)]);
    let outcome = serve(&plan, &workload, 1, &RULES[0]);
    assert_eq!(outcome.served[0].hit_tokens, 0);
    // 96 tokens are three full units of 32, but the last token must be computed for its logits.
    assert_eq!(outcome.served[1].hit_tokens, 80);
    assert!(outcome.served[1].ttft_ns < outcome.served[0].ttft_ns, "a hit shortens the prefill");
    let cold = serve(&plan, &workload, 1, &RULES[1]);
    assert_eq!(cold.served[1].hit_tokens, 0);
    assert_eq!(cold.served[1].ttft_ns, cold.served[0].ttft_ns);
}

/// Found by the comparison above: two requests were preempted in one step, and the first of them fitted again right after.
#[test]
fn a_preempted_request_is_tried_again_after_one_step() {
    let rules = Rules { name: "toy", doc: "", step_tokens: 24, running_requests: 3, prefix_cache: true };
    let workload = toy_workload(&[(0, 120, 39, 1), (582, 86, 41, 2), (0, 32, 27, 0), (0, 103, 12, 0)]);
    compare(&toy_plan(&[Keep::ALL, Keep::ALL], 512), &workload, &rules).unwrap();
}
