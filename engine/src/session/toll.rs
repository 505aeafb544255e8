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
use crate::cost::{Plan, decode_ns, prefill_ns};
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

/// What stages together changed of a request, tokens; less is negative.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Of the prompt.
    pub prompt: i64,
    /// Of what is written instead of read: what fell out of the prefix or was put in behind it, less what was taken out that
    /// was new in the turn and had been to be written too.
    pub written: i64,
}

impl Moved {
    /// What one stage did.
    pub fn by(effect: &Effect) -> Self {
        let of = |tokens: u32| i64::from(tokens);
        let (added, removed) = (of(effect.added_tokens), of(effect.removed_tokens));
        let (in_added, in_removed) = (of(effect.added_prefix_tokens), of(effect.removed_prefix_tokens));
        let written = of(effect.lost_prefix_tokens) + (added - in_added) - (removed - in_removed);
        Self { prompt: added - removed, written }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { prompt: self.prompt + other.prompt, written: self.written + other.written }
    }
}

/// By the formula of POLICIES 5.2, without the extra requests: `again` is the price of one token written instead of read, `each`
/// that of one token read.
pub fn change(moved: Moved, again: f64, each: f64) -> Change {
    let later = moved.prompt as f64 * each;
    Change { now: moved.written as f64 * again + later, later }
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

/// A request as it is served.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Prompt tokens.
    pub prompt: u32,
    /// Of these, tokens that are computed.
    pub computed: u32,
    /// Tokens generated.
    pub output: u32,
}

/// What owning the machine makes of it (POLICIES 5.2), ns: the time to compute what is written again, and the time that the
/// steps of a turn take less because they read less. `asked` is the request as it is served, `chunk` the prompt tokens of a
/// step at most. Prompts are priced chunk by chunk, and all steps of a turn as its middle one. `None` where a policy keeps a
/// part only.
pub fn own_change(plan: &Plan, chunk: u32, moved: Moved, asked: Asked) -> Option<Change> {
    if plan.groups.iter().any(|group| group.group.keep != Keep::ALL) {
        return None;
    }
    let Asked { prompt, computed, output } = asked;
    let narrow = |tokens: i64| u32::try_from(tokens.max(0)).unwrap_or(u32::MAX);
    let prompt_was = narrow(i64::from(prompt) - moved.prompt);
    let computed_was = narrow(i64::from(computed) - moved.written).min(prompt_was);
    let prefill = |prompt: u32, computed: u32| prefill_ns(plan, prompt - computed.min(prompt), prompt, chunk);
    let steps = f64::from(output.saturating_sub(1));
    let middle = |prompt: u32| decode_ns(plan, u64::from(prompt) + u64::from(output) / 2);
    let later = steps * (middle(prompt) - middle(prompt_was));
    Some(Change { now: prefill(prompt, computed) - prefill(prompt_was, computed_was) + later, later })
}

#[cfg(test)]
mod tests;
