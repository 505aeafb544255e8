//! Captured mode: the trace's own steps and batches, priced on a machine.

use super::{Fate, Outcome, Served, Stretch};
use crate::cost::{Batch, Plan, StepCost, price};
use crate::error::{Error, Result};
use crate::unit::show_bytes;
use crate::workload::LONGEST_NS;

/// One captured step of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapturedStep {
    /// Index of the request in the workload.
    pub request: u32,
    /// The engine step that it shared with others; `None` if it ran alone.
    pub engine_step: Option<u64>,
    /// Whether it is a prefill.
    pub is_prefill: bool,
    /// Length of the request's prompt.
    pub prompt: u32,
    /// KV tokens after the step.
    pub context: u32,
    /// Tokens computed.
    pub new_tokens: u32,
}

/// Prices captured steps one after another on one instance. Steps that follow each other with the same engine step are
/// one batch. A request's times count from the start of its first step.
///
/// # Errors
/// A batch whose KV does not fit in memory.
pub fn captured(plan: &Plan, steps: &[CapturedStep], requests: usize) -> Result<Outcome> {
    let mut outcome = Outcome { all_gaps: Some(Vec::new()), ..Outcome::default() };
    let mut clock = 0_i64;
    let mut felt: Vec<Felt> = vec![Felt::default(); requests];
    for batch in steps.chunk_by(|a, b| a.engine_step.is_some() && a.engine_step == b.engine_step) {
        if let Some(step) = batch.iter().find(|step| step.new_tokens > step.context) {
            let (new, context) = (step.new_tokens, step.context);
            return Err(Error::data(format!("a captured step computes {new} tokens and has a context of {context}")));
        }
        let stretch = price_batch(plan, batch, clock);
        if stretch.cost.total() + clock as f64 > LONGEST_NS as f64 {
            outcome.overran = true;
            break;
        }
        if stretch.held_bytes > plan.capacity_bytes {
            return Err(Error::run(format!(
                "a captured batch of {} requests holds {} of KV, and {} fit",
                batch.len(),
                show_bytes(stretch.held_bytes as f64),
                show_bytes(plan.capacity_bytes as f64)
            ))
            .hint("use more accelerators, a smaller number format or another policy"));
        }
        for step in batch {
            if felt[step.request as usize].computed.checked_add(step.new_tokens).is_none() {
                return Err(Error::data("the captured prefills of one request compute 2^32 tokens or more"));
            }
            let gap = felt[step.request as usize].take(step, clock, &stretch, batch);
            outcome.all_gaps.get_or_insert_default().extend(gap);
        }
        clock += stretch.total_ns;
        outcome.stretches.push(stretch);
    }
    outcome.served = felt.iter().map(Felt::served).collect();
    Ok(outcome)
}

/// What a request has felt so far.
#[derive(Debug, Clone, Default)]
struct Felt {
    start: Option<i64>,
    first_token: Option<i64>,
    last_token: Option<i64>,
    longest: Option<i64>,
    computed: u32,
    share: f64,
}

impl Felt {
    /// Gives the gap since the request's token before, if there is one.
    fn take(&mut self, step: &CapturedStep, clock: i64, stretch: &Stretch, batch: &[CapturedStep]) -> Option<i64> {
        let end = clock + stretch.total_ns;
        self.start = self.start.or(Some(clock));
        let gap = self.last_token.filter(|_| !step.is_prefill).map(|last| end - last);
        self.longest = self.longest.max(gap);
        if step.is_prefill {
            self.computed += step.new_tokens;
        }
        // The last chunk of a prefill and each decode step give a token.
        if step.context >= step.prompt {
            self.first_token = self.first_token.or(Some(end));
            self.last_token = Some(end);
        }
        let tokens: u64 = batch.iter().map(|other| u64::from(other.new_tokens)).sum();
        self.share += stretch.total_ns as f64 * f64::from(step.new_tokens) / tokens.max(1) as f64;
        gap
    }

    fn served(&self) -> Served {
        let since = |at: Option<i64>| Some(at? - self.start?);
        Served {
            fate: if self.start.is_some() { Fate::Finished } else { Fate::NotCaptured },
            queue_ns: self.start.map(|_| 0),
            ttft_ns: since(self.first_token),
            e2e_ns: since(self.last_token),
            max_itl_ns: self.longest,
            computed_tokens: self.computed,
            machine_ns: self.share,
            ..Served::pending()
        }
    }
}

fn price_batch(plan: &Plan, steps: &[CapturedStep], start_ns: i64) -> Stretch {
    let groups = plan.groups.len();
    let (mut kept, mut pairs, mut read) = (vec![0; plan.lanes()], vec![0.0; groups], vec![0; groups]);
    let (mut decode, mut context, mut prefill_tokens, mut prefills) = (0, 0, 0, 0);
    let mut held = 0;
    for step in steps {
        let before = step.context.saturating_sub(step.new_tokens);
        for (at, group) in plan.groups.iter().enumerate() {
            let keep = group.group.keep;
            if step.is_prefill {
                pairs[at] += crate::cost::pairs(before, step.context, keep.total);
                read[at] += u64::from(
                    keep.total.map_or(step.context, |cap| step.context.min(cap.saturating_add(step.new_tokens))),
                );
            }
        }
        if !step.is_prefill {
            for (kept, (_, keep)) in kept.iter_mut().zip(plan.lane_keeps()) {
                *kept += u64::from(keep.tokens(step.prompt, step.context));
            }
        }
        held += plan.footprint(step.prompt, step.context, !step.is_prefill);
        if step.is_prefill {
            prefills += 1;
            prefill_tokens += u64::from(step.new_tokens);
        } else {
            decode += 1;
            context += u64::from(step.context);
        }
    }
    let completed = steps.iter().filter(|step| step.is_prefill && step.context >= step.prompt);
    let scored = completed.clone().filter(|step| plan.drops_of(step.prompt)).map(|step| u64::from(step.prompt)).sum();
    let longest = steps.iter().filter(|step| !step.is_prefill).map(|step| u64::from(step.context)).max();
    let batch = Batch {
        decode_requests: decode,
        kept_tokens: &kept,
        longest_tokens: longest.unwrap_or(0),
        prefill_tokens,
        prefill_requests: u64::from(prefills),
        prefill_rows: completed.count() as u64,
        prefill_pairs: &pairs,
        prefill_context: &read,
        scored_tokens: scored,
    };
    let cost: StepCost = price(plan, &batch);
    Stretch {
        instance: 0,
        start_ns,
        steps: 1,
        decode_requests: decode,
        prefill_requests: prefills,
        prefill_tokens,
        context_tokens: context,
        stall_ns: 0,
        felt_requests: decode,
        first_ns: cost.total(),
        last_ns: cost.total(),
        total_ns: cost.total().round() as i64,
        cost,
        held_bytes: held,
        resident_bytes: held,
        left_bytes: held,
        below: Vec::new(),
        waiting_requests: 0,
    }
}
