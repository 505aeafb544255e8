//! What a stack loses on recorded attention: mass that was dropped, noise that a number format adds, and how much better
//! the best choice of the same size would have done.
//!
//! The recording was made under full attention, so this is the open-loop error: what one step loses, given that all
//! steps before it were right.
//!
//! *Selection.* Lost mass is the recorded softmax mass outside the kept set. The regret is against the best set of equal
//! size in the same step.
//!
//! *Number format* (POLICIES 0.3). With relative errors `Dk` of K and `Dv` of V, query norm `q`, width `d` and weights
//! `a_i`, a logit has the error variance `q^2 |k_i|^2 Dk / d^2`, and the output the expected squared error
//! `sum a_i^2 var_i |v_i - o|^2` by K and `Dv sum a_i^2 |v_i|^2` by V. A codebook of centroids also shrinks logits, which
//! adds `(shrink (s_i - s))^2` to the variance, where `s_i = ln a_i` and `s` is its mean over the mass; tokens with less
//! than 1e-3 of the mass are left out of that term. Vectors are not recorded, so `|v_i - o|^2` is taken as
//! `max(|v_i|^2 - |o|^2, 0)` per unit: its mean over the mass is exactly that difference. The recorded masses are means over a
//! group, whose squares sum to less than the recorded `sum_sq`; the terms are scaled up to it. What is kept after a
//! selection is renormalised.
//!
//! *Recovery.* What a step reads thanks to a recovery stage counts as kept. Copies of what is dropped come back with the
//! noise of their format; their mass is not lost.
//!
//! *Output.* `output_error` is by how much the layer's output turns ([`turning`](super::turning)): exact where queries, keys
//! and values were recorded, else estimated from the norms of V and the recorded norm of the output, with the noise above as
//! that of the format. Merged layers without vectors get their noise from the recorded angles between layers.
//!
//! Inside a block of a block recording, mass is spread as the last prompt queries spread theirs (`window_rows`, else
//! `column_sum`), or evenly where neither is known. Spread evenly, the first block's mass falls on tokens that do not have
//! it: a sink has a small V, its neighbours do not, and the estimate is many times too high.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayBuilder, ArrayRef, Float64Builder, RecordBatch, StringBuilder, UInt16Builder, UInt32Builder, UInt64Builder,
};

use super::minicache::{Cosines, Premise, Role};
use super::output::{self, Exact, Treatment};
use super::recovery::{OfSelection, Recovered, View};
use super::select::scan::Smallest;
use super::select::{self, Units};
use super::turning::{Sums, Turn};
use super::{Args, Distortion, NEXT_COSINES, Selection, Stack, VECTORS};
use crate::error::{Error, Result};
use crate::recording::{Head, Recording, Step};
use crate::schema::result::ATTENTION_ERROR;

/// Mass below which a token's shift of logits is not counted.
const LEAST_MASS: f32 = 1e-3;

/// The error of `stack` on `recording`, one row per request, range of `steps_per_range` decode steps, layer and KV head,
/// in the layout of [`ATTENTION_ERROR`].
///
/// Ratios are means over the recorded steps of the range; `logit_noise` and `quantization_error_ratio` are root mean squares.
/// `quantization_error_ratio` is of K and V together. `recoverable_ratio` is 1 where a selection stores
/// what it does not read, else 0: what it drops is held nowhere else.
/// `limiter` is the largest of lost mass and the output errors by K and by V; where norms are unknown the roots of `Dk` and
/// `Dv` stand in for the latter two.
///
/// # Errors
/// A channel that the recording lacks, with how to record it, and a range of no steps.
pub fn attention_error(stack: &Stack, recording: &Recording, steps_per_range: u32) -> Result<RecordBatch> {
    errors(&Trial::by_steps(stack, recording.head_dim, steps_per_range)?, recording)
}

/// The same over all steps at once, where number formats and merges treat the prompt alone and generated tokens stay as they
/// are: how quality is measured by treating a prompt's cache once and then scoring a continuation.
///
/// # Errors
/// As [`attention_error`].
pub fn prompt_error(stack: &Stack, recording: &Recording) -> Result<RecordBatch> {
    errors(&Trial::of_prompts(stack, recording.head_dim), recording)
}

/// Which tokens number formats and merges treat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treated {
    /// All.
    All,
    /// Those of the prompt.
    Prompt,
}

/// A stack that is tried on recorded layers, one at a time: what a layer does not change. So a recording can be read in
/// pieces, and layers can be tried side by side.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    stack: &'a Stack,
    formatted: Distortion,
    /// The error of copies of what is dropped.
    of_copies: Distortion,
    steps_per_range: u32,
    treated: Treated,
}

impl<'a> Trial<'a> {
    /// As [`attention_error`] does, for heads of this width.
    ///
    /// # Errors
    /// A range of no steps.
    pub fn by_steps(stack: &'a Stack, head_dim: u32, steps_per_range: u32) -> Result<Self> {
        if steps_per_range == 0 {
            return Err(Error::usage("expected at least 1 step per range, found 0"));
        }
        Ok(Self::new(stack, head_dim, (steps_per_range, Treated::All)))
    }

    /// As [`prompt_error`] does.
    pub fn of_prompts(stack: &'a Stack, head_dim: u32) -> Self {
        Self::new(stack, head_dim, (u32::MAX, Treated::Prompt))
    }

    fn new(stack: &'a Stack, head_dim: u32, (steps_per_range, treated): (u32, Treated)) -> Self {
        let copies = stack.recovery().copies;
        let of_copies = copies.map_or(Distortion::NONE, |form| form.distortion(head_dim));
        Self { stack, formatted: stack.distortion(head_dim), of_copies, steps_per_range, treated }
    }

    /// The stack.
    pub fn stack(&self) -> &'a Stack {
        self.stack
    }

    /// The rows of one layer of a recording, in the layout of [`ATTENTION_ERROR`]; `premise` is left unknown, and is set by
    /// [`with_premise`] once all layers were seen. `budgets` are those of [`budgets_by_layer`]. For a stack that merges, the
    /// recording must also hold norms and vectors of the layers beside this one.
    ///
    /// # Errors
    /// As [`attention_error`].
    pub fn layer(&self, recording: &Recording, layer: &[Head<'_>], budgets: &[u32]) -> Result<RecordBatch> {
        let mut rows = Rows::of(self.stack);
        self.add_layer(recording, layer, budgets, &mut Scratch::default(), &mut rows)?;
        rows.batch(&self.stack.name(), recording)
    }

    fn add_layer(
        &self,
        recording: &Recording,
        layer: &[Head<'_>],
        budgets: &[u32],
        scratch: &mut Scratch,
        rows: &mut Rows,
    ) -> Result<()> {
        let treatment = treatment(self.stack, recording, layer);
        let recovery = *self.stack.recovery();
        let exact = output::exact(layer, treatment, self.treated, recovery.copies)?;
        check_stand_in(self.stack, layer, exact.is_some())?;
        let of_format = treatment.format.map_or(Distortion::NONE, |_| self.formatted);
        let distortions = distortions(self.stack, layer, treatment, of_format, exact.is_some())?;
        let run = Run {
            selection: self.stack.selection(),
            recovery,
            of_copies: self.of_copies,
            has_stand_in: self.stack.has_stand_in(),
            layer,
            budgets,
            steps_per_range: self.steps_per_range,
            distortions,
            exact,
            treated: self.treated,
        };
        run_layer(&run, scratch, rows)
    }
}

fn errors(trial: &Trial<'_>, recording: &Recording) -> Result<RecordBatch> {
    let mut rows = Rows::of(trial.stack);
    let mut scratch = Scratch::default();
    select::each_layer(trial.stack.selection(), recording, 0, |layer, budgets| {
        trial.add_layer(recording, layer, budgets, &mut scratch, &mut rows)
    })?;
    with_premise(&rows.batch(&trial.stack.name(), recording)?, premise(trial.stack, recording))
}

/// By request and layer what the stack's selection gives each head to choose by. Whole requests must be at hand, but of
/// their steps one is enough.
///
/// # Errors
/// A channel that the recording lacks, with how to record it, and layers or heads that were not recorded.
pub fn budgets_by_layer(stack: &Stack, recording: &Recording) -> Result<BTreeMap<(u64, u16), Vec<u32>>> {
    let (mut found, mut budgets) = (BTreeMap::new(), Vec::new());
    for heads in recording.heads_by_request() {
        select::budgets(stack.selection(), &heads, &mut budgets)?;
        for (head, budget) in heads.iter().zip(&budgets) {
            found.entry((head.request.request_id, head.layer)).or_insert_with(Vec::new).push(*budget);
        }
    }
    Ok(found)
}

/// Rows of a stack with what they rest on.
///
/// # Errors
/// Rows that are not in the layout of [`ATTENTION_ERROR`].
pub fn with_premise(rows: &RecordBatch, premise: Option<Premise>) -> Result<RecordBatch> {
    let text = premise.map(|premise| premise.text());
    let mut column = StringBuilder::new();
    (0..rows.num_rows()).for_each(|_| column.append_option(text.as_deref()));
    let mut columns = rows.columns().to_vec();
    if let Some(last) = columns.last_mut() {
        *last = Arc::new(column.finish());
    }
    Ok(RecordBatch::try_new(rows.schema(), columns)?)
}

/// What the stack does to the vectors of a layer.
fn treatment<'a>(stack: &'a Stack, recording: &Recording, layer: &[Head<'_>]) -> Treatment<'a> {
    let number = layer.first().map_or(0, |head| u32::from(head.layer));
    let is_skipped = |(_, format): &(&Args, &super::Format)| format.skip.covers(number, recording.layers);
    Treatment {
        merge: stack.merge().and_then(|(_, merge)| Some((merge, merge.role(number, recording.layers)?))),
        format: stack.format().filter(|format| !is_skipped(format)),
    }
}

/// The error of the vectors of each head of a layer, by the format and by merging.
///
/// # Errors
/// A merged layer without recorded cosines, where vectors are unknown too.
fn distortions(
    stack: &Stack,
    layer: &[Head<'_>],
    treatment: Treatment<'_>,
    of_format: Distortion,
    is_exact: bool,
) -> Result<Vec<Distortion>> {
    let Some((merge, role)) = treatment.merge else { return Ok(vec![of_format; layer.len()]) };
    let of_head = |head: &Head<'_>| {
        let shallow = if role == Role::Shallow { head.layer } else { output::partner(head.layer, role) };
        match head.cosines_in(shallow) {
            Some([keys, values]) => Ok(of_format.and(merge.distortion(role, keys, values))),
            None if is_exact => Ok(of_format),
            None => {
                let name = stack.merge().map_or("", |(args, _)| args.kind().name);
                let message = format!("`{name}` needs channel `{}` for {}", NEXT_COSINES.name, head.place());
                Err(Error::run(format!("{message}, but the recording does not have it")).hint(NEXT_COSINES.how))
            }
        }
    };
    layer.iter().map(of_head).collect()
}

/// Refuses a pair that stands for what is dropped where no vectors say how well it does.
fn check_stand_in(stack: &Stack, layer: &[Head<'_>], is_exact: bool) -> Result<()> {
    let Some(head) = layer.first().filter(|_| stack.recovery().compensate && !is_exact) else { return Ok(()) };
    let message = format!("`compensate` needs channel `{}` for {}", VECTORS.name, head.place());
    Err(Error::run(format!("{message}, but the recording does not have it")).hint(VECTORS.how))
}

/// Whether the layers that the stack merges are alike on this recording; `None` where it merges none, and where their
/// cosines are unknown.
pub fn premise(stack: &Stack, recording: &Recording) -> Option<Premise> {
    let mut cosines = Cosines::default();
    recording.heads().for_each(|head| add_cosines(stack, recording.layers, &[head], &mut cosines));
    cosines.premise()
}

/// Adds the cosines that tell whether the premise holds of a layer that the stack merges.
pub fn add_cosines(stack: &Stack, layers: u32, layer: &[Head<'_>], cosines: &mut Cosines) {
    let Some((_, merge)) = stack.merge() else { return };
    for head in layer.iter().filter(|head| merge.role(head.layer.into(), layers) == Some(Role::Shallow)) {
        if let Some(found) = head.cosines_in(head.layer) {
            cosines.add(found);
        }
    }
}

/// One layer under one stack.
struct Run<'a, 'b> {
    selection: Option<(&'b Args, &'b Selection)>,
    recovery: OfSelection,
    /// The error of copies of what is dropped.
    of_copies: Distortion,
    has_stand_in: bool,
    layer: &'b [Head<'a>],
    budgets: &'b [u32],
    steps_per_range: u32,
    /// By head.
    distortions: Vec<Distortion>,
    exact: Option<Exact>,
    treated: Treated,
}

impl Run<'_, '_> {
    fn distortion(&self, head: usize) -> Distortion {
        self.distortions.get(head).copied().unwrap_or(Distortion::NONE)
    }
}

fn run_layer(run: &Run<'_, '_>, scratch: &mut Scratch, rows: &mut Rows) -> Result<()> {
    let Run { selection, recovery, layer, budgets, steps_per_range, exact, .. } = run;
    let Scratch { units, buffers } = scratch;
    buffers.resize_with(layer.len(), Buffers::default);
    let tokens: Vec<Option<Tokens<'_>>> = layer
        .iter()
        .zip(buffers)
        .enumerate()
        .map(|(at, (head, buffers))| {
            let found = tokens(head, head.unit_tokens(), run.distortion(at).and(run.of_copies), buffers)?;
            let prompt = head.request.prompt_tokens / head.unit_tokens().max(1);
            Some(if run.treated == Treated::Prompt { Tokens { treated: prompt as usize, ..found } } else { found })
        })
        .collect();
    let mut ranges: Vec<Vec<Range>> = vec![Vec::new(); layer.len()];
    let mut turns: Vec<Turned> = Vec::new();
    let mut smallest: Vec<Smallest> = vec![Smallest::default(); layer.len()];
    let mut read = output::Scratch::default();
    let mut recovered = Recovered::new(*selection, *recovery, layer.len());
    select::run(*selection, layer, budgets, units, |at, step, units| {
        let (Some(head), Some(ranges), Some(smallest)) = (layer.get(at), ranges.get_mut(at), smallest.get_mut(at))
        else {
            return Ok(());
        };
        let view = recovered.view((at, budgets.get(at).copied().unwrap_or(0)), head, step, units)?;
        let units = view.units;
        let index = step.step.saturating_sub(1) / steps_per_range;
        if ranges.last().is_none_or(|range| range.index != index) {
            ranges.push(Range { index, ..Range::default() });
        }
        // Heads are visited in order within a step.
        if at == 0 {
            turns.push(Turned { step: step.step, turn: Turn::default(), is_known: true });
        }
        let nth = turns.len().saturating_sub(1);
        let (Some(range), Some(turned)) = (ranges.last_mut(), turns.last_mut()) else { return Ok(()) };
        range.add(step, &view, smallest);
        let tokens = tokens.get(at).and_then(Option::as_ref);
        let noise = tokens.and_then(|tokens| noises(run, at, tokens, step, &view));
        range.add_noise(noise);
        match exact {
            Some(exact) => {
                let reading = output::Reading { units, copied: view.copied, has_stand_in: run.has_stand_in };
                exact.add((at, nth), step, reading, &mut read, &mut turned.turn)?;
            }
            None => turned.estimate(tokens, step, units, noise),
        }
        Ok(())
    })?;
    for (at, (head, ranges)) in layer.iter().zip(&ranges).enumerate() {
        for range in ranges {
            let output =
                mean_turn(&turns, range).map(|error| (error, if exact.is_some() { "vectors" } else { "norms" }));
            rows.push(head, range, run.distortion(at), output);
        }
    }
    Ok(())
}

/// The noise of what a step reads in the stack's format, and of what it reads as copies.
fn noises(run: &Run<'_, '_>, at: usize, tokens: &Tokens<'_>, step: &Step<'_>, view: &View<'_>) -> Option<Noise> {
    let is_copy = |at: usize| view.copied.get(at).copied().unwrap_or(false);
    let dim = run.layer.get(at)?.head_dim();
    let kept = noise(tokens, step, view.units, (run.distortion(at), dim), |at| !is_copy(at))?;
    if run.of_copies == Distortion::NONE {
        return Some(kept);
    }
    let copies = noise(tokens, step, view.units, (run.of_copies, dim), is_copy)?;
    Some(Noise { logit: kept.logit + copies.logit, key: kept.key + copies.key, value: kept.value + copies.value })
}

/// By how much a layer's output is turned in one step.
struct Turned {
    step: u32,
    turn: Turn,
    is_known: bool,
}

impl Turned {
    /// Adds the estimate of one head.
    fn estimate(&mut self, tokens: Option<&Tokens<'_>>, step: &Step<'_>, units: &Units, noise: Option<Noise>) {
        let (Some(tokens), Some(out_norm)) = (tokens, step.out_norm.filter(|norm| norm.is_finite())) else {
            self.is_known = false;
            return;
        };
        let (kept, dropped) = tokens.sums(step, units);
        // Without tokens that are kept there is nothing that noise could act on.
        self.is_known &= tokens.is_exact || noise.is_some() || kept.mass == 0.0;
        let squared = noise.map_or(0.0, |noise| noise.key + noise.value);
        self.turn.add_estimate(kept, dropped, out_norm.into(), squared);
    }
}

/// The mean error over the steps of a range; `None` unless it is known for all.
fn mean_turn(turns: &[Turned], range: &Range) -> Option<f64> {
    let within = || turns.iter().filter(|turned| (range.first..=range.last).contains(&turned.step));
    let sum: f64 = within().map(|turned| turned.turn.error()).sum();
    within().all(|turned| turned.is_known).then(|| sum / f64::from(range.steps.max(1)))
}

/// Buffers that are reused from layer to layer.
#[derive(Default)]
struct Scratch {
    units: Vec<Units>,
    /// By head.
    buffers: Vec<Buffers>,
}

/// Those of one head.
#[derive(Default)]
struct Buffers {
    share: Vec<f32>,
    key_sq: Vec<f32>,
    value_sq: Vec<f32>,
    units: Vec<Moments>,
    linear: Vec<f32>,
}

/// What the noise and the turning of one head is computed from.
struct Tokens<'a> {
    /// Share of its block's mass per token, in blocks that lie within the prompt; empty for an even spread.
    share: &'a [f32],
    key_sq: &'a [f32],
    value_sq: &'a [f32],
    /// Sums over the tokens of each whole unit.
    units: &'a [Moments],
    /// `r |v|` over the tokens of each whole unit of mass 1.
    linear: &'a [f32],
    /// `|v|` per token.
    values: &'a [f32],
    /// Units that the format treats, from the first on.
    treated: usize,
    /// Whether the format adds no noise, so that nothing need be summed.
    is_exact: bool,
}

/// Sums over the tokens of a unit of mass 1, where token `i` has the share `r_i` of it.
#[derive(Debug, Clone, Copy, Default)]
struct Moments {
    /// `r^2`.
    sq: f32,
    /// `r |k|^2`.
    key: f32,
    /// `r^2 |v|^2`.
    value_sq: f32,
    /// `r^2 |k|^2`.
    key_sq: f32,
    /// `r^2 |k|^2 |v|^2`.
    both_sq: f32,
}

/// Squared norms, and sums over each whole unit; `None` where norms were not recorded.
fn tokens<'a>(head: &Head<'a>, unit: u32, distortion: Distortion, buffers: &'a mut Buffers) -> Option<Tokens<'a>> {
    let (keys, values) = head.norms()?;
    let unit = unit as usize;
    let Buffers { share, key_sq, value_sq, units, linear } = buffers;
    let is_exact = distortion == Distortion::NONE;
    share.clear();
    key_sq.clear();
    value_sq.clear();
    units.clear();
    linear.clear();
    key_sq.extend(keys.iter().map(|norm| norm * norm));
    value_sq.extend(values.iter().map(|norm| norm * norm));
    spread(head, unit, share);
    let whole = key_sq.chunks_exact(unit).zip(value_sq.chunks_exact(unit)).zip(values.chunks_exact(unit)).enumerate();
    for (at, ((keys, values_sq), values)) in whole {
        let share = share.get(at * unit..(at + 1) * unit);
        units.push(moments(share, keys, values_sq));
        let even = 1.0 / unit as f32;
        let shares = (0..).map(|at| share.and_then(|share| share.get(at)).copied().unwrap_or(even));
        linear.push(values.iter().zip(shares).map(|(value, share)| share * value).sum());
    }
    Some(Tokens { share, key_sq, value_sq, units, linear, values, treated: usize::MAX, is_exact })
}

impl Tokens<'_> {
    /// Sums over what a step keeps and what it drops.
    fn sums(&self, step: &Step<'_>, units: &Units) -> (Sums, Sums) {
        let (unit, context) = (units.tokens as usize, step.context_tokens as usize);
        let whole = context / unit.max(1);
        let (mut kept, mut dropped) = (Sums::default(), Sums::default());
        for (at, (mass, is_kept)) in step.mass.iter().zip(&units.kept).enumerate() {
            let sums = if *is_kept { &mut kept } else { &mut dropped };
            match (self.linear.get(at), self.units.get(at)) {
                (Some(linear), Some(moments)) if at < whole => {
                    sums.add_unit(f64::from(*mass), f64::from(*linear), f64::from(moments.value_sq));
                }
                // The last unit may be filled only in part, and is spread evenly.
                _ => {
                    let tokens = at * unit..((at + 1) * unit).min(context);
                    sums.add(f64::from(*mass), None, self.values.get(tokens).unwrap_or_default());
                }
            }
        }
        (kept, dropped)
    }
}

/// Sums over the tokens of one unit; without shares its mass is spread evenly.
fn moments(share: Option<&[f32]>, keys: &[f32], values: &[f32]) -> Moments {
    let even = 1.0 / keys.len() as f32;
    let mut sums = Moments::default();
    for (at, (key, value)) in keys.iter().zip(values).enumerate() {
        let share = share.map_or(even, |share| share[at]);
        let square = share * share;
        sums.sq += square;
        sums.key += share * key;
        sums.value_sq += square * value;
        sums.key_sq += square * key;
        sums.both_sq += square * key * value;
    }
    sums
}

/// Shares of the whole blocks of the prompt; other blocks are spread evenly over the tokens that they have.
fn spread(head: &Head<'_>, unit: usize, share: &mut Vec<f32>) {
    let Some(score) = head.widest_score("window_rows").or_else(|| head.widest_score("column_sum")) else { return };
    if unit == 1 {
        return;
    }
    for scores in score.chunks_exact(unit) {
        let sum: f32 = scores.iter().map(|score| score.max(0.0)).sum();
        share.extend(scores.iter().map(|score| if sum > 0.0 { score.max(0.0) / sum } else { 1.0 / unit as f32 }));
    }
}

/// Squared errors of one step, relative to the squared norm of the output, and the mean variance of its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Noise {
    logit: f64,
    key: f64,
    value: f64,
}

/// The shift of logits: sums over tokens with a mass worth counting.
#[derive(Default, Clone, Copy)]
struct Shift {
    mass: f64,
    log: f64,
    /// `a^2 x` times the powers 0, 1 and 2 of `ln a`.
    powers: [f64; 3],
}

/// The noise of one step; `None` where a norm is unknown or the output is zero.
/// Only units that `is_treated` says come back with the distortion.
fn noise(
    tokens: &Tokens<'_>,
    step: &Step<'_>,
    units: &Units,
    (distortion, dim): (Distortion, u32),
    is_treated: impl Fn(usize) -> bool,
) -> Option<Noise> {
    let (sum_sq, q_norm) = (f64::from(step.sum_sq?), f64::from(step.q_norm?));
    let out_sq = step.out_norm? * step.out_norm?;
    if !(out_sq > 0.0 && out_sq.is_finite() && sum_sq.is_finite() && q_norm.is_finite()) {
        return None;
    }
    if tokens.is_exact {
        return Some(Noise { logit: 0.0, key: 0.0, value: 0.0 });
    }
    let mut all_sq = 0.0;
    let (mut all, mut kept) = (0.0, 0.0);
    let (mut sq, mut key, mut value_sq, mut key_sq) = (0.0, 0.0, 0.0, 0.0);
    let mut shift = Shift::default();
    let unit = units.tokens as usize;
    let context = step.context_tokens as usize;
    let whole = context / unit;
    for (at, (mass, is_kept)) in step.mass.iter().zip(&units.kept).enumerate() {
        let (from, to) = (at * unit, ((at + 1) * unit).min(context));
        // The last unit may be filled only in part, and then differs from step to step.
        let sums = match tokens.units.get(at) {
            Some(sums) if at < whole => *sums,
            _ => moments(None, &tokens.key_sq[from..to], &tokens.value_sq[from..to]),
        };
        let square = mass * mass;
        all_sq += f64::from(square * sums.sq);
        all += f64::from(*mass);
        if !is_kept {
            continue;
        }
        kept += f64::from(*mass);
        sq += f64::from(square * sums.sq);
        if at >= tokens.treated || !is_treated(at) {
            continue;
        }
        key += f64::from(mass * sums.key);
        value_sq += f64::from(square * sums.value_sq);
        key_sq += f64::from(square * (sums.both_sq - out_sq * sums.key_sq).max(0.0));
        if distortion.key_shrink > 0.0 && *mass >= LEAST_MASS {
            shift.add(*mass, tokens.share.get(from..to), &tokens.value_sq[from..to], out_sq);
        }
    }
    if !(kept > 0.0 && sq > 0.0 && all_sq > 0.0) {
        return None;
    }
    // Squared weights after renormalisation over what is kept, per unit of squared recorded mean weights.
    let scale = sum_sq / all_sq * (all / kept).powi(2) / f64::from(out_sq);
    let variance = q_norm * q_norm * distortion.key / (f64::from(dim) * f64::from(dim));
    Some(Noise {
        logit: variance * key / kept,
        key: scale * (variance * key_sq + distortion.key_shrink.powi(2) * shift.spread()),
        value: scale * distortion.value * value_sq,
    })
}

impl Shift {
    fn add(&mut self, mass: f32, share: Option<&[f32]>, values: &[f32], out_sq: f32) {
        let even = 1.0 / values.len() as f32;
        for (at, value) in values.iter().enumerate() {
            let weight = mass * share.map_or(even, |share| share[at]);
            if weight < LEAST_MASS {
                continue;
            }
            let (weight, log) = (f64::from(weight), f64::from(weight.ln()));
            let term = weight * weight * f64::from((value - out_sq).max(0.0));
            self.mass += weight;
            self.log += weight * log;
            for (power, sum) in [1.0, log, log * log].into_iter().zip(&mut self.powers) {
                *sum += term * power;
            }
        }
    }

    /// The sum of `a^2 x (ln a - mean)^2`.
    fn spread(&self) -> f64 {
        if self.mass == 0.0 {
            return 0.0;
        }
        let mean = self.log / self.mass;
        let [zeroth, first, second] = self.powers;
        (second - 2.0 * mean * first + mean * mean * zeroth).max(0.0)
    }
}

/// Steps of one head that share a row.
#[derive(Debug, Clone, Default)]
struct Range {
    index: u32,
    first: u32,
    last: u32,
    steps: u32,
    kept: f64,
    lost: f64,
    most_lost: f64,
    oracle: f64,
    regret: f64,
    noise: [f64; 3],
    noise_steps: u32,
    recovered: f64,
    /// Tokens fetched from a lower tier, and those of them that the step before had fetched.
    recalled: [f64; 2],
}

impl Range {
    fn add(&mut self, step: &Step<'_>, view: &View<'_>, smallest: &mut Smallest) {
        let units = view.units;
        self.recovered += view.recovered.min(1.0);
        self.recalled.iter_mut().zip(view.recalled).for_each(|(sum, tokens)| *sum += f64::from(tokens));
        if self.steps == 0 {
            self.first = step.step;
        }
        self.last = step.step;
        self.steps += 1;
        let dropped = units.kept.len() - units.count();
        if dropped == 0 {
            self.kept += 1.0;
            return;
        }
        self.kept += f64::from(units.kept_tokens(step.context_tokens)) / f64::from(step.context_tokens);
        let lost = units.lost_mass();
        let oracle = smallest.sum(step.mass, dropped);
        self.lost += lost;
        self.most_lost = self.most_lost.max(lost);
        self.oracle += oracle;
        self.regret += lost - oracle;
    }

    fn add_noise(&mut self, noise: Option<Noise>) {
        if let Some(Noise { logit, key, value }) = noise {
            self.noise_steps += 1;
            for (sum, part) in self.noise.iter_mut().zip([logit, key, value]) {
                *sum += part;
            }
        }
    }

    /// The mean squares of logit noise, output error by K and by V; `None` unless all steps have them.
    fn mean_noise(&self) -> Option<[f64; 3]> {
        (self.noise_steps == self.steps).then(|| self.noise.map(|sum| sum / f64::from(self.steps)))
    }
}

/// The columns under construction.
#[derive(Default)]
struct Rows {
    is_recoverable: bool,
    request: UInt64Builder,
    steps: [UInt32Builder; 2],
    place: [UInt16Builder; 2],
    ratios: [Float64Builder; 8],
    recovered: [Float64Builder; 3],
    has_recall: bool,
    output_from: StringBuilder,
    limiter: StringBuilder,
}

impl Rows {
    fn push(&mut self, head: &Head<'_>, range: &Range, distortion: Distortion, output: Option<(f64, &'static str)>) {
        self.request.append_value(head.request.request_id);
        self.steps[0].append_value(range.first);
        self.steps[1].append_value(range.last);
        self.place[0].append_value(head.layer);
        self.place[1].append_value(head.kv_head);
        let mean = |sum: f64| sum / f64::from(range.steps);
        let lost = mean(range.lost);
        let noise = range.mean_noise();
        let known = [mean(range.kept), lost, range.most_lost, mean(range.oracle), mean(range.regret)].map(Some);
        let noisy = [noise.map(|[logit, ..]| logit.sqrt()), noise.map(|[_, key, value]| (key + value).sqrt())];
        let turned = output.map(|(error, _)| error);
        for (builder, value) in self.ratios.iter_mut().zip(known.into_iter().chain(noisy).chain([turned])) {
            builder.append_option(value);
        }
        let [fetched, again] = range.recalled;
        let fetches = self.has_recall.then(|| mean(fetched));
        let reuse = (self.has_recall && fetched > 0.0).then(|| again / fetched);
        for (builder, value) in self.recovered.iter_mut().zip([Some(mean(range.recovered)), fetches, reuse]) {
            builder.append_option(value);
        }
        self.output_from.append_option(output.map(|(_, from)| from));
        let [key, value] = noise.map_or([distortion.key, distortion.value], |[_, key, value]| [key, value]);
        self.limiter.append_value(limiter(lost, key.sqrt(), value.sqrt()));
    }

    fn of(stack: &Stack) -> Self {
        let recovery = stack.recovery();
        let is_recoverable = recovery.holds_all() || stack.selection().is_some_and(|(_, rule)| rule.is_recoverable);
        Self { is_recoverable, has_recall: recovery.recall.is_some(), ..Self::default() }
    }

    /// The columns; the last one, what they rest on, is unknown.
    fn batch(mut self, policy: &str, recording: &Recording) -> Result<RecordBatch> {
        let count = ArrayBuilder::len(&self.limiter);
        let [kept, lost, most_lost, oracle, regret, logit, quantized, output] = &mut self.ratios;
        let [recovered, fetched, reuse] = &mut self.recovered;
        let mut label = StringBuilder::new();
        let mut name = StringBuilder::new();
        for _ in 0..count {
            name.append_value(policy);
            label.append_value(recording.label());
        }
        let mut source = UInt32Builder::new();
        source.append_value_n(recording.source_id, count);
        let mut unit = UInt16Builder::new();
        // Checked to fit when the recording was read.
        unit.append_value_n(recording.block_tokens as u16, count);
        let mut mass_from = StringBuilder::new();
        (0..count).for_each(|_| mass_from.append_value(recording.mass_from));
        let mut rests_on = StringBuilder::new();
        rests_on.append_nulls(count);
        let mut recoverable = Float64Builder::new();
        recoverable.append_value_n(if self.is_recoverable { 1.0 } else { 0.0 }, count);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(name.finish()),
            Arc::new(label.finish()),
            Arc::new(source.finish()),
            Arc::new(self.request.finish()),
            Arc::new(self.steps[0].finish()),
            Arc::new(self.steps[1].finish()),
            Arc::new(self.place[0].finish()),
            Arc::new(self.place[1].finish()),
            Arc::new(unit.finish()),
            Arc::new(mass_from.finish()),
            Arc::new(kept.finish()),
            Arc::new(lost.finish()),
            Arc::new(most_lost.finish()),
            Arc::new(oracle.finish()),
            Arc::new(regret.finish()),
            Arc::new(logit.finish()),
            Arc::new(quantized.finish()),
            Arc::new(output.finish()),
            Arc::new(self.output_from.finish()),
            Arc::new(recovered.finish()),
            Arc::new(fetched.finish()),
            Arc::new(reuse.finish()),
            Arc::new(recoverable.finish()),
            Arc::new(self.limiter.finish()),
            Arc::new(rests_on.finish()),
        ];
        Ok(RecordBatch::try_new(ATTENTION_ERROR.arrow(), columns)?)
    }
}

/// What the error comes from most.
fn limiter(selection: f64, key: f64, value: f64) -> &'static str {
    if selection == 0.0 && key == 0.0 && value == 0.0 {
        "none"
    } else if selection >= key && selection >= value {
        "selection"
    } else if key >= value {
        "key_format"
    } else {
        "value_format"
    }
}

#[cfg(test)]
mod tests;
