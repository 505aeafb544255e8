//! How selections choose on recorded attention: what they see, and the marks they set.
//!
//! A choice is made of up to five functions, each of which sees as much as it needs. [`Choice::budgets`] sees all heads of
//! all layers of a request and may give each head a budget of its own. [`Choice::prompt`] sees the heads of one layer when
//! the prompt is complete. [`Choice::ends`] chooses by place alone, once for all. [`Choice::step`] chooses for one head before a
//! decode step attends, and [`Choice::after`] sees
//! what the heads of one layer attended to, and may drop part of it from the next step on. So a layer at a time is in
//! memory, and layers can be run in any order.
//!
//! A choice works on *units*: single tokens, or the blocks of a block recording. A budget of `C` tokens is `C / 16`
//! blocks of 16, rounded down, and at least the blocks that must be kept: those of the observation window and the one
//! that is being written. The score of a block is the sum over its tokens.
//!
//! Among equals the lower position is kept, in every stage.

pub mod scan;

use std::borrow::Cow;

use super::{Args, Selection};
use crate::error::{Error, Result};
use crate::recording::{Head, Recording, Step, read_together};

/// Gives each head of a request, in the order of layer and head, a number that its stage then chooses by: prompt tokens to
/// keep, or which class of heads it belongs to.
pub type Budgets = fn(&Args, &[Head<'_>], &mut Vec<u32>) -> Result<()>;

/// Chooses among the prompt's units of the heads of one layer. The numbers are those of [`Budgets`], or 0 without such a
/// function.
pub type OfPrompt = fn(&Args, &[Head<'_>], &[u32], &mut [Units]) -> Result<()>;

/// Chooses among the context's units of one head in one decode step. On entry the marks are those that the step before
/// left, and new units are kept.
pub type OfStep = fn(&Args, &Head<'_>, u32, &Step<'_>, &mut Units) -> Result<()>;

/// How many of the first tokens of any context are kept, and how many in all: the others are its last ones.
pub type Ends = fn(&Args) -> Result<(u32, u32)>;

/// Takes note of what the heads of one layer attended to in a step, and drops units from the next step on.
pub type AfterStep = fn(&Args, &[Head<'_>], &[Step<'_>], &mut [Units]) -> Result<()>;

/// Which tokens a selection keeps; without any function all of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice {
    /// Budgets of single heads.
    pub budgets: Option<Budgets>,
    /// What is kept of the prompt once it is complete.
    pub prompt: Option<OfPrompt>,
    /// What every step of every head attends to.
    pub ends: Option<Ends>,
    /// What a step of a head attends to.
    pub step: Option<OfStep>,
    /// What is dropped after a step.
    pub after: Option<AfterStep>,
}

/// Marks on the units of one head, with buffers that are reused from head to head.
#[derive(Debug, Clone)]
pub struct Units {
    /// Tokens per unit.
    pub tokens: u32,
    /// Whether each unit is kept.
    pub kept: Vec<bool>,
    /// What a stage has summed up over the steps; infinite where a unit is dropped.
    pub sums: Vec<f64>,
    /// A number of the stage's own.
    pub limit: u32,
    /// Which units were passed over in each of the last steps, as a ring of bit sets; see `scissorhands`.
    pub history: super::scissorhands::History,
    /// Marks of pages for every recorded step, one row after the other, where a stage plans them when the prompt is complete.
    pub planned: Vec<bool>,
    /// Pages of one such row.
    pub planned_pages: usize,
    /// Scores and marks of the stage's own, for the time of one choice.
    pub scratch: (Vec<f32>, Vec<bool>),
    keys: Vec<u64>,
    places: Vec<(u64, u32)>,
    /// The least sum of each run of units, as the last [`Units::add_layer`] left it.
    least: Vec<f64>,
    /// What [`Units::keep_ends`] has dropped, for the split that follows.
    gap: Option<(usize, usize)>,
    /// Mass of the step on what is kept, and on what is not.
    split: (f64, f64),
}

impl Choice {
    /// Keeps all.
    pub const NONE: Self = Self { budgets: None, prompt: None, ends: None, step: None, after: None };

    /// Chooses once, when the prompt is complete; generated tokens are kept.
    pub const fn of_prompt(prompt: OfPrompt) -> Self {
        Self { prompt: Some(prompt), ..Self::NONE }
    }

    /// Chooses anew for each head and step.
    pub const fn of_step(step: OfStep) -> Self {
        Self { step: Some(step), ..Self::NONE }
    }

    /// Chooses by place alone.
    pub const fn of_ends(ends: Ends) -> Self {
        Self { ends: Some(ends), ..Self::NONE }
    }
}

impl Units {
    /// No units yet.
    pub fn new(tokens: u32) -> Self {
        Self {
            tokens: tokens.max(1),
            kept: Vec::new(),
            sums: Vec::new(),
            limit: 0,
            history: super::scissorhands::History::default(),
            planned: Vec::new(),
            planned_pages: 0,
            scratch: (Vec::new(), Vec::new()),
            keys: Vec::new(),
            places: Vec::new(),
            least: Vec::new(),
            gap: None,
            split: (0.0, 0.0),
        }
    }

    /// A buffer for ranking.
    pub(super) fn keys(&mut self) -> &mut Vec<u64> {
        &mut self.keys
    }

    /// Units that a context of so many tokens takes.
    pub fn of(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.tokens) as usize
    }

    /// Whole units that fit a budget.
    pub fn within(&self, budget: u32) -> usize {
        (budget / self.tokens) as usize
    }

    /// Units that are kept.
    pub fn count(&self) -> usize {
        scan::count(&self.kept)
    }

    /// Tokens that are kept of a context.
    pub fn kept_tokens(&self, context: u32) -> u32 {
        let missing = (self.kept.len() as u32).saturating_mul(self.tokens).saturating_sub(context);
        let is_last_kept = self.kept.last().copied().unwrap_or(false);
        (self.count() as u32 * self.tokens).saturating_sub(if is_last_kept { missing } else { 0 })
    }

    /// Begins a head: all units of its prompt are kept.
    pub fn begin(&mut self, prompt: u32) {
        let units = self.of(prompt);
        self.kept.clear();
        self.kept.resize(units, true);
        self.sums.clear();
        self.planned.clear();
        self.least.clear();
        self.limit = 0;
    }

    /// Grows to a context; new units are kept, and nothing is summed for them yet.
    pub fn grow(&mut self, context: u32) {
        let units = self.of(context);
        self.kept.resize(units, true);
        if !self.sums.is_empty() {
            self.sums.resize(units, 0.0);
        }
    }

    /// Keeps `budget` tokens of a prompt: its first `sinks`, its last `tail`, and the best of the others by the sum of
    /// `scores` over the unit. There is one score per prompt token; those of the tail may be left out. Units that the
    /// sinks or the tail touch are kept in any case.
    pub fn keep_of_prompt(&mut self, prompt: u32, budget: u32, (sinks, tail): (u32, u32), scores: &[f32]) {
        let units = self.of(prompt);
        self.begin(prompt);
        if budget >= prompt {
            return;
        }
        let (first, ranked) = self.middle(prompt, sinks, tail);
        let kept = self.within(budget).max(first + units - ranked).max(1);
        let sums = sums_of(scores, self.tokens, (first, ranked));
        self.keep_units(&sums, first, kept - first - (units - ranked));
    }

    /// Keeps the first `sinks` and the last `tail` tokens of a prompt, in whole units, and nothing between.
    pub fn keep_ends_of_prompt(&mut self, prompt: u32, sinks: u32, tail: u32) {
        self.begin(prompt);
        let (first, to) = self.middle(prompt, sinks, tail);
        self.kept.iter_mut().take(to).skip(first).for_each(|kept| *kept = false);
    }

    /// Keeps the best `count` of the units from `first` on that have a score; leaves the others as they are.
    pub fn keep_units(&mut self, scores: &[f32], first: usize, count: usize) {
        mark_best(scores, count, &mut self.keys, self.kept.get_mut(first..).unwrap_or_default());
    }

    /// The units between those that the first `sinks` and the last `tail` tokens of a prompt touch: from, to.
    pub fn middle(&self, prompt: u32, sinks: u32, tail: u32) -> (usize, usize) {
        // A last unit that is not full is the one that is being written.
        let to = self.within(prompt - tail.min(prompt));
        (self.of(sinks.min(prompt)).min(to), to)
    }

    /// Keeps `budget` tokens of a context: its first `sinks` and its last ones. At least the unit that is being written
    /// is kept beside the sinks.
    pub fn keep_ends(&mut self, context: u32, sinks: u32, budget: u32) {
        let units = self.of(context);
        let first = self.of(sinks);
        let last = self.within(budget).saturating_sub(first).max(1);
        self.kept.fill(true);
        let to = units.saturating_sub(last).min(self.kept.len());
        let gap = if context > budget && first < to { (first, to) } else { (0, 0) };
        self.kept[gap.0..gap.1].fill(false);
        self.gap = Some(gap);
    }

    /// The mass on what is kept.
    pub fn kept_mass(&self, mass: &[f32]) -> f64 {
        scan::sum_marked(mass, &self.kept)
    }

    /// The mass of the step on what is not kept, at most 1: recorded masses are rounded and may sum to a little more.
    pub fn lost_mass(&self) -> f64 {
        self.split.1.min(1.0)
    }

    /// Splits the mass of a step into what is kept and what is not; only the latter if `is_lost_enough`.
    pub(super) fn split(&mut self, mass: &[f32], is_lost_enough: bool) {
        let gap = self.gap.take();
        self.split = match gap.filter(|_| is_lost_enough).map(|(from, to)| mass.get(from..to)) {
            // Marks need not be looked at, nor what is kept.
            Some(dropped) => (0.0, scan::sum(dropped.unwrap_or_default())),
            None if is_lost_enough => (0.0, scan::sum_unmarked(mass, &self.kept)),
            None => {
                let lost = scan::sum_unmarked(mass, &self.kept);
                (scan::sum(mass) - lost, lost)
            }
        };
    }

    /// Adds a step's mass to the sums, renormalised over what is kept (POLICIES 0.3.5).
    pub fn add_renormalised(&mut self, mass: &[f32]) {
        self.add_scaled(mass, self.kept_mass(mass));
    }

    /// The same for the mass that the step was chosen for.
    pub fn add_step(&mut self, step: &Step<'_>) {
        self.add_scaled(step.mass, self.split.0);
    }

    fn add_scaled(&mut self, mass: &[f32], kept: f64) {
        self.least.clear();
        if kept > 0.0 {
            // Sums of dropped units are infinite and stay so.
            scan::add(&mut self.sums, mass, 1.0 / kept, &mut self.least);
        }
    }

    /// Adds up the steps of all heads of a layer, of which each one's mass is renormalised over what it keeps.
    pub fn add_layer(first: &mut Self, others: &[Self], steps: &[Step<'_>]) {
        let kept = std::iter::once(first.split.0).chain(others.iter().map(|units| units.split.0));
        let mut rows =
            steps.iter().zip(kept).filter(|(_, kept)| *kept > 0.0).map(|(step, kept)| (step.mass, 1.0 / kept));
        // Two at a time: sums are loaded and stored half as often. The last one notes what is least.
        let mut last = rows.next();
        while let Some((mass, scale)) = last.take() {
            match (rows.next(), rows.next()) {
                (Some((second, of_second)), Some(third)) => {
                    scan::add_two(&mut first.sums, [mass, second], [scale, of_second]);
                    last = Some(third);
                }
                (Some((second, of_second)), None) => {
                    scan::add(&mut first.sums, mass, scale, &mut first.least);
                    scan::add(&mut first.sums, second, of_second, &mut first.least);
                }
                _ => scan::add(&mut first.sums, mass, scale, &mut first.least),
            }
        }
    }

    /// Begins sums: one score per prompt token, added up over each unit, infinite where a unit is not kept.
    pub fn begin_sums(&mut self, scores: &[f32]) {
        let unit = self.tokens as usize;
        self.sums.clear();
        self.least.clear();
        self.sums.extend(scores.chunks(unit).map(|scores| scores.iter().map(|score| f64::from(*score)).sum::<f64>()));
        self.sums.resize(self.kept.len(), 0.0);
        let marks = self.sums.iter_mut().zip(&self.kept);
        marks.for_each(|(sum, kept)| *sum = if *kept { *sum } else { f64::INFINITY });
    }

    /// The first unit that the last `recent` tokens of a context touch.
    pub fn recent_from(&self, context: u32, recent: u32) -> usize {
        if recent == 0 { self.of(context) } else { self.within(context.saturating_sub(recent)) }
    }

    /// Drops the units of the smallest sums among the first `before` until no more than `count` are kept in all, of equal
    /// ones the last.
    pub fn drop_least(&mut self, before: usize, count: usize) {
        let over = self.count().saturating_sub(count);
        let before = before.min(self.sums.len()).min(self.kept.len());
        if over > 2 {
            self.drop_least_by(before, count, |_, sum| sum);
            return;
        }
        for _ in 0..over {
            let Some(at) = scan::last_least(&self.sums, before, &self.least) else { return };
            self.drop(at);
            scan::note(&self.sums, at, &mut self.least);
        }
    }

    /// The same by a rank that is made of the unit's place and sum; it is not negative, and infinite where the sum is.
    pub fn drop_least_by(&mut self, before: usize, count: usize, rank: impl Fn(usize, f64) -> f64) {
        let over = self.count().saturating_sub(count);
        let before = before.min(self.sums.len()).min(self.kept.len());
        if over <= 2 {
            for _ in 0..over {
                let Some(at) = last_least(self.sums.get(..before).unwrap_or_default(), &rank) else { return };
                self.drop(at);
            }
            return;
        }
        let Self { places, sums, kept, .. } = self;
        places.clear();
        let candidates = sums.iter().zip(kept.iter()).take(before).enumerate().filter(|(_, (_, kept))| **kept);
        // Ranks are not negative, so that their bits sort as they do.
        places.extend(candidates.map(|(at, (sum, _))| (rank(at, *sum).to_bits(), !(at as u32))));
        let over = over.min(places.len());
        if over < places.len() {
            places.select_nth_unstable(over);
        }
        for index in 0..over {
            if let Some((_, at)) = self.places.get(index).copied() {
                self.drop(!at as usize);
            }
        }
    }

    /// Drops one unit for good.
    pub fn drop(&mut self, at: usize) {
        if let (Some(kept), Some(sum)) = (self.kept.get_mut(at), self.sums.get_mut(at)) {
            *kept = false;
            *sum = f64::INFINITY;
        }
    }
}

/// The place of the smallest rank, among equals the last; `None` if none is finite.
fn last_least(sums: &[f64], rank: impl Fn(usize, f64) -> f64) -> Option<usize> {
    // Finding the value first leaves a loop without branches.
    let mut lanes = [f64::INFINITY; 8];
    for (chunk, sums) in sums.chunks(8).enumerate() {
        for (at, (least, sum)) in lanes.iter_mut().zip(sums).enumerate() {
            let rank = rank(chunk * 8 + at, *sum);
            *least = if rank < *least { rank } else { *least };
        }
    }
    let least = lanes.into_iter().fold(f64::INFINITY, f64::min);
    let is_least = |&at: &usize| sums.get(at).is_some_and(|sum| rank(at, *sum).total_cmp(&least).is_eq());
    if least < f64::INFINITY { (0..sums.len()).rev().find(is_least) } else { None }
}

/// Scores of the units from and to a place: sums over the tokens of each.
pub fn sums_of(scores: &[f32], unit: u32, (from, to): (usize, usize)) -> Cow<'_, [f32]> {
    let unit = unit as usize;
    let end = (to * unit).min(scores.len());
    let tokens = scores.get((from * unit).min(end)..end).unwrap_or_default();
    if unit == 1 { tokens.into() } else { tokens.chunks(unit).map(|scores| scores.iter().sum::<f32>()).collect() }
}

/// Bytes of masses of a step that are worth reading together.
pub const TOGETHER: usize = 64 << 10;

/// Calls `take` for each layer of each request with its heads and their budgets; for several layers that are read together
/// if they are as short as that many bytes.
pub(super) fn each_layer(
    selection: Option<(&Args, &Selection)>,
    recording: &Recording,
    bytes: usize,
    mut take: impl FnMut(&[Head<'_>], &[u32]) -> Result<()>,
) -> Result<()> {
    let mut numbers = Vec::new();
    for heads in recording.heads_by_request() {
        budgets(selection, &heads, &mut numbers)?;
        let mut from = 0;
        for layers in read_together(&heads, bytes) {
            take(layers, numbers.get(from..from + layers.len()).unwrap_or_default())?;
            from += layers.len();
        }
    }
    Ok(())
}

/// Budgets of all heads of a request, in their order; zeros where the selection has none of its own.
pub fn budgets(selection: Option<(&Args, &Selection)>, heads: &[Head<'_>], budgets: &mut Vec<u32>) -> Result<()> {
    budgets.clear();
    if let Some((args, Selection { choice: Choice { budgets: Some(find), .. }, .. })) = selection {
        find(args, heads, budgets)?;
    }
    budgets.resize(heads.len(), 0);
    Ok(())
}

/// Runs a selection over the recorded steps of heads of one request: those of a layer, or of several layers that have the
/// same steps.
///
/// Rows of one step lie behind each other in memory, so that several short ones are read faster together; see
/// [`read_together`](crate::recording::read_together). `budgets` are those heads' from [`budgets`]; `units` is a buffer. `visit` is given the place
/// of the head among `heads`, the step, and what that step attends to.
///
/// # Errors
/// A channel that the recording lacks, with how to record it, and what `visit` returns.
pub fn run<'a>(
    selection: Option<(&Args, &Selection)>,
    heads: &[Head<'a>],
    budgets: &[u32],
    units: &mut Vec<Units>,
    mut visit: impl FnMut(usize, &Step<'a>, &Units) -> Result<()>,
) -> Result<()> {
    let Some(first) = heads.first() else { return Ok(()) };
    begin(selection, heads, budgets, units)?;
    let choice = selection.map(|(_, selection)| selection.choice).unwrap_or_default();
    let ends = match (selection, choice.ends) {
        (Some((args, _)), Some(ends)) => Some(ends(args)?),
        _ => None,
    };
    // Heads of one layer have the same steps, which was checked when they were read.
    let steps_at = |at: usize, steps: &mut Vec<Step<'a>>| {
        steps.clear();
        steps.extend(heads.iter().filter_map(|head| head.step(at)));
    };
    let (mut steps, mut next) = (Vec::with_capacity(heads.len()), Vec::with_capacity(heads.len()));
    steps_at(0, &mut next);
    for at in 0..first.steps().len() {
        std::mem::swap(&mut steps, &mut next);
        steps_at(at + 1, &mut next);
        for (index, ((head, step), units)) in heads.iter().zip(&steps).zip(units.iter_mut()).enumerate() {
            // The same head's next row lies far behind this one.
            if let Some(next) = next.get(index) {
                scan::touch(next.mass);
            }
            units.grow(step.context_tokens);
            if let Some((sinks, budget)) = ends {
                units.keep_ends(step.context_tokens, sinks, budget);
            }
            if let (Some((args, _)), Some(choose)) = (selection, choice.step) {
                choose(args, head, budgets.get(index).copied().unwrap_or(0), step, units)?;
            }
            if selection.is_some() {
                units.split(step.mass, choice.after.is_none());
            }
            visit(index, step, units)?;
        }
        if let (Some((args, _)), Some(after)) = (selection, choice.after) {
            let mut from = 0;
            for layer in heads.chunk_by(|a, b| a.layer == b.layer) {
                let all = from..from + layer.len();
                let units = units.get_mut(all.clone()).unwrap_or_default();
                after(args, layer, steps.get(all).unwrap_or_default(), units)?;
                from += layer.len();
            }
        }
    }
    Ok(())
}

/// Chooses among the prompt's units, layer by layer.
fn begin(
    selection: Option<(&Args, &Selection)>,
    heads: &[Head<'_>],
    budgets: &[u32],
    units: &mut Vec<Units>,
) -> Result<()> {
    units.resize_with(heads.len(), || Units::new(1));
    for (head, units) in heads.iter().zip(units.iter_mut()) {
        units.tokens = head.unit_tokens().max(1);
        units.begin(head.request.prompt_tokens);
    }
    let Some((args, Selection { choice: Choice { prompt: Some(prompt), .. }, .. })) = selection else { return Ok(()) };
    let mut from = 0;
    for layer in heads.chunk_by(|a, b| a.layer == b.layer) {
        let all = from..from + layer.len();
        let units = units.get_mut(all.clone()).unwrap_or_default();
        prompt(args, layer, budgets.get(all).unwrap_or_default(), units)?;
        from += layer.len();
    }
    Ok(())
}

/// Refuses a layer of which not all heads were recorded.
///
/// # Errors
/// That, by layer.
pub fn need_whole_layers(stage: &str, heads: &[Head<'_>]) -> Result<()> {
    for layer in heads.chunk_by(|a, b| a.layer == b.layer) {
        let Some(first) = layer.first() else { continue };
        if layer.len() != first.kv_heads() as usize {
            return Err(Error::run(format!(
                "`{stage}` needs channel `mass` of all {} KV heads of a layer, but for request {}, layer {} the recording has {}",
                first.kv_heads(),
                first.request.request_id,
                first.layer,
                layer.len()
            ))
            .hint(super::MASS.how));
        }
    }
    Ok(())
}

/// Refuses a request of which not all layers and heads were recorded.
///
/// # Errors
/// That.
pub fn need_whole_requests(stage: &str, heads: &[Head<'_>]) -> Result<()> {
    need_whole_layers(stage, heads)?;
    let Some(first) = heads.first() else { return Ok(()) };
    if heads.len() as u64 != u64::from(first.layers()) * u64::from(first.kv_heads()) {
        return Err(Error::run(format!(
            "`{stage}` needs channel `mass` of all {} layers, but for request {} the recording has {} heads",
            first.layers(),
            first.request.request_id,
            heads.len()
        ))
        .hint(super::MASS.how));
    }
    Ok(())
}

/// Marks the `count` largest of `scores`, among equals the lower position, and unmarks the others. Marks beyond the
/// scores stay as they are.
pub fn mark_best(scores: &[f32], count: usize, keys: &mut Vec<u64>, kept: &mut [bool]) {
    let ranked = scores.len().min(kept.len());
    let (scores, marks) = (&scores[..ranked], &mut kept[..ranked]);
    marks.fill(count >= ranked);
    if count >= ranked || count == 0 {
        return;
    }
    keys.clear();
    keys.extend(scores.iter().zip(0_u32..).map(|(score, at)| u64::from(ordered(*score)) << 32 | u64::from(!at)));
    let (_, _, _) = keys.select_nth_unstable(ranked - count);
    for key in &keys[ranked - count..] {
        marks[!(*key as u32) as usize] = true;
    }
}

/// How many of the `count` best scores of all lists together each list holds. Among equals those of earlier lists are
/// taken first, and within a list the lower position.
///
/// The `count`-th best is found digit by digit, so that nothing is copied however long the lists are.
pub fn count_best<'a>(lists: impl Iterator<Item = &'a [f32]> + Clone, count: usize, counts: &mut Vec<u32>) {
    counts.clear();
    let (mut prefix, mut known, mut left) = (0_u32, 0_u32, count);
    if count == 0 {
        counts.extend(lists.map(|_| 0));
        return;
    }
    for shift in [24, 16, 8, 0] {
        let mut tally = [0_usize; 256];
        for score in lists.clone().flatten() {
            let bits = ordered(*score);
            if bits & known == prefix {
                tally[(bits >> shift & 0xff) as usize] += 1;
            }
        }
        let mut digit = 255;
        while digit > 0 && tally[digit] < left {
            left -= tally[digit];
            digit -= 1;
        }
        prefix |= (digit as u32) << shift;
        known |= 0xff << shift;
    }
    // `prefix` is now the least score that counts, and `left` of its equals do; if there are fewer scores than `count`, all.
    for list in lists {
        let above = list.iter().filter(|score| ordered(**score) > prefix).count();
        let equal = list.iter().filter(|score| ordered(**score) == prefix).count().min(left);
        left -= equal;
        counts.push((above + equal) as u32);
    }
}

/// Bits that sort as the number does, negative ones included.
fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

#[cfg(test)]
pub(crate) mod tests;
