//! What sessions pay, turn by turn, and when a change to their contexts has paid for itself.
//!
//! Two payers are told apart. A customer of an API pays by the token: a prompt token that the prompt cache has is cheap, one
//! that is written to it is dear (POLICIES 5.1). Who owns the machine pays its time: each request of a session is served
//! alone, one after the other, by the same replay that serves whole traces. *Warm* means that a prefix is there whenever it
//! was computed before, *cold* that nothing is.
//!
//! Break-even of one clearing (POLICIES 5.2): tokens that have to be written again, and extra requests, are paid once; what
//! was taken out is saved in every turn from then on, the first one included.

use std::collections::HashMap;

use super::{Role, Trace};
use crate::api::ApiPrices;
use crate::cost::Plan;
use crate::policy::Keep;
use crate::policy::application::Effect;
use crate::serving::{Fate, Pool, Role as Duty, Routing, Rules, Setup, Traffic, serve};
use crate::workload::{LONGEST_NS, Turns, Workload};

/// What each request costs by tariff, nano-dollars; `found` are the prompt tokens that the cache has, `None` without a
/// cache, where input is charged in full.
pub fn charged(tariff: &ApiPrices, workload: &Workload, found: Option<&[u32]>) -> Vec<i64> {
    let each = |at: usize| {
        let (prompt, output) = (i64::from(workload.prompt[at]), i64::from(workload.output[at]));
        let input = match found {
            None => prompt * tariff.input_nusd,
            Some(found) => {
                let found = i64::from(found[at]).min(prompt);
                found * tariff.cached_nusd + (prompt - found) * tariff.written_nusd
            }
        };
        input.saturating_add(output * tariff.output_nusd)
    };
    (0..workload.len()).map(each).collect()
}

/// Time of one instance that each request takes when it is served alone, ns, in order of the workload; `None` for one that
/// cannot be served.
pub fn alone(plan: &Plan, workload: &Workload, rules: &Rules) -> Vec<Option<i64>> {
    let apart = LONGEST_NS / (workload.len() as i64 + 1);
    let arrival_ns = (0..workload.len() as i64).map(|at| at * apart).collect();
    let spaced = Workload { arrival_ns, turns: Turns::default(), ..workload.clone() };
    let pools = [Pool { plan, instances: 1, role: Duty::Both }];
    let traffic = Traffic::Open;
    let outcome = serve(
        &Setup { pools: &pools, traffic, routing: Routing::RoundRobin, rules, handover: None, below: None },
        &spaced,
    );
    let of =
        |served: &crate::serving::Served| (served.fate == Fate::Finished).then(|| served.machine_ns.round() as i64);
    outcome.served.iter().map(of).collect()
}

/// Sums by turn: session `s` owns `sums[offsets[s]..offsets[s + 1]]`, one for each of its recorded turns. A request that a
/// stage added belongs to the turn that it serves. `None` where a request's figure is unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct ByTurn<T> {
    /// Where each session's turns begin.
    pub offsets: Vec<usize>,
    /// The sums.
    pub sums: Vec<Option<T>>,
}

/// Adds up the figures of requests by turn.
pub fn by_turn(trace: &Trace, figures: impl IntoIterator<Item = Option<i64>>) -> ByTurn<i64> {
    let mut offsets = vec![0];
    for session in &trace.sessions {
        offsets.push(offsets[offsets.len() - 1] + session.turns as usize);
    }
    let mut sums = vec![Some(0_i64); offsets[offsets.len() - 1]];
    for (turn, figure) in trace.turns.iter().zip(figures) {
        let at = offsets[turn.session as usize] + turn.turn as usize;
        sums[at] = sums[at].zip(figure).map(|(sum, figure)| sum.saturating_add(figure));
    }
    ByTurn { offsets, sums }
}

impl<T> ByTurn<T> {
    /// The sums of one session.
    pub fn of(&self, session: usize) -> &[Option<T>] {
        &self.sums[self.offsets[session]..self.offsets[session + 1]]
    }
}

/// After how many turns, that of the first change included, the sum of what was paid is no more than without the change;
/// between two turns as if costs came evenly. `None` if that does not come within the session, or a cost is unknown.
pub fn break_even(recorded: &[Option<i64>], changed: &[Option<i64>], first: usize) -> Option<f64> {
    let mut before = 0_i64;
    for (at, (recorded, changed)) in recorded.iter().zip(changed).skip(first).enumerate() {
        let sum = before.saturating_add((*changed)?.saturating_sub((*recorded)?));
        if sum <= 0 {
            // In the first turn nothing says how it was reached.
            let part = if at == 0 { 1.0 } else { before as f64 / (before - sum).max(1) as f64 };
            return Some(at as f64 + part);
        }
        before = sum;
    }
    None
}

/// What a stage's work on one request changes in its cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Change {
    /// In this turn.
    pub now: f64,
    /// In each later turn, if nothing else is done.
    pub later: f64,
}

/// By the formula of POLICIES 5.2, without the extra requests: what falls out of the prefix, or is put in, is written again,
/// what is taken out is not read any more. `again` is the price of one token written instead of read, `each` that of one
/// token read. Tokens taken out that were new in the turn had been to be written too.
pub fn change(effect: &Effect, again: f64, each: f64) -> Change {
    let of = |tokens: u32| f64::from(tokens);
    let written = of(effect.lost_prefix_tokens) + of(effect.added_tokens - effect.added_prefix_tokens)
        - of(effect.removed_tokens - effect.removed_prefix_tokens);
    let later = (of(effect.added_tokens) - of(effect.removed_tokens)) * each;
    Change { now: written * again + later, later }
}

/// [`break_even`] by the formula, from the changes of each turn, that of the first action first. Beyond the end of the session
/// each turn saves what was saved last; `None` if that is nothing.
pub fn break_even_by_formula(changes: &[Change]) -> Option<f64> {
    let mut before = 0.0;
    for (at, change) in changes.iter().enumerate() {
        let sum = before + change.now;
        if sum <= 0.0 {
            return Some(if at == 0 { 1.0 } else { at as f64 + before / (before - sum) });
        }
        before = sum;
    }
    let saved = -changes.last()?.later;
    (saved > 0.0).then(|| changes.len() as f64 + before / saved)
}

/// Costs of the requests that stages added, by session and turn.
pub fn extras(trace: &Trace, costs: &[i64]) -> HashMap<(u32, u32), i64> {
    let mut sums = HashMap::new();
    for (turn, cost) in trace.turns.iter().zip(costs).filter(|(turn, _)| turn.role != Role::Recorded) {
        *sums.entry((turn.session, turn.turn)).or_default() += cost;
    }
    sums
}

/// What owning the machine makes of it (POLICIES 5.2): time to compute one token again behind so many others, and time that
/// one token less in the context saves over the steps of a turn, ns. `None` where a policy keeps a part only, or the FFN
/// is elsewhere.
pub fn own_rates(plan: &Plan, behind: f64, steps: f64) -> Option<(f64, f64)> {
    if plan.ffn_pool.is_some() || plan.groups.iter().any(|group| group.group.keep != Keep::ALL) {
        return None;
    }
    let linear: f64 =
        plan.linear.iter().map(|linear| linear.layers * (linear.attention_flops + linear.ffn_flops)).sum();
    let pairs: f64 = plan.groups.iter().map(|group| group.prefill_pair_flops).sum();
    let computed = linear / plan.linear_flops_per_ns + behind * pairs / plan.attention_flops_per_ns;
    let read = |group: &crate::cost::PlanGroup| {
        let memory = group.token_bytes_per_accelerator / group.kv_bytes_per_ns;
        memory.max(group.pair_flops / plan.attention_flops_per_ns)
    };
    Some((computed, steps * plan.groups.iter().map(read).sum::<f64>()))
}

#[cfg(test)]
mod tests;
