//! How selections choose on recorded attention: what they see, and the marks they set.
//!
//! A choice works on *units*: single tokens, or the blocks of a block recording. A budget of `C` tokens is `C / 16`
//! blocks of 16, rounded down, and at least the blocks that must be kept: those of the observation window and the one
//! that is being written.

use super::Args;
use crate::error::Result;
use crate::recording::{Head, Step};

/// Chooses among the prompt's units of one head.
pub type OfPrompt = fn(&Args, &Head<'_>, &mut Units) -> Result<()>;

/// Chooses among the context's units of one head in one decode step.
pub type OfStep = fn(&Args, &Head<'_>, &Step<'_>, &mut Units) -> Result<()>;

/// Which tokens a selection keeps.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    /// All.
    All,
    /// Some of the prompt, chosen once when the prefill is complete; generated tokens are kept.
    OfPrompt(OfPrompt),
    /// Some of the context, in each decode step. On entry the marks are those of the step before, and new units are
    /// kept; `scores` holds what the step before left there.
    OfStep(OfStep),
}

/// Marks on the units of one head, with buffers that are reused from head to head.
#[derive(Debug, Clone)]
pub struct Units {
    /// Tokens per unit.
    pub tokens: u32,
    /// Whether each unit is kept.
    pub kept: Vec<bool>,
    /// Scores of a stage's own making.
    pub scores: Vec<f32>,
    keys: Vec<u64>,
}

impl Units {
    /// No units yet.
    pub fn new(tokens: u32) -> Self {
        Self { tokens: tokens.max(1), kept: Vec::new(), scores: Vec::new(), keys: Vec::new() }
    }

    /// Units that a context of so many tokens takes.
    pub fn of(&self, tokens: u32) -> usize {
        tokens.div_ceil(self.tokens) as usize
    }

    /// Whole units that fit a budget.
    pub fn within(&self, budget: u32) -> usize {
        (budget / self.tokens) as usize
    }

    /// Begins a head: all units of its prompt are kept.
    pub fn begin(&mut self, prompt: u32) {
        let units = self.of(prompt);
        self.kept.clear();
        self.kept.resize(units, true);
        self.scores.clear();
    }

    /// Grows to a context; new units are kept.
    pub fn grow(&mut self, context: u32) {
        let units = self.of(context);
        self.kept.resize(units, true);
    }

    /// Keeps `budget` tokens of a prompt: the last `tail` of them and the best of the others by the sum of `scores` (one
    /// per token before the tail) over the unit. Units that the tail touches are kept.
    pub fn keep_of_prompt(&mut self, prompt: u32, budget: u32, tail: u32, scores: &[f32]) {
        let units = self.of(prompt);
        self.begin(prompt);
        if budget >= prompt {
            return;
        }
        let ranked = self.within(prompt - tail.min(prompt));
        let kept = self.within(budget).max(units - ranked).max(1);
        let unit = self.tokens as usize;
        let sums: Vec<f32> = scores.chunks_exact(unit).take(ranked).map(|scores| scores.iter().sum()).collect();
        mark_best(&sums, kept - (units - ranked), &mut self.keys, &mut self.kept);
    }

    /// Keeps `budget` tokens of a context: its first `sinks` and its last ones. At least the unit that is being written
    /// is kept beside the sinks.
    pub fn keep_ends(&mut self, context: u32, sinks: u32, budget: u32) {
        let units = self.of(context);
        let first = self.of(sinks);
        let last = self.within(budget).saturating_sub(first).max(1);
        let is_all = context <= budget;
        for (at, kept) in self.kept.iter_mut().enumerate() {
            *kept = is_all || at < first || at + last >= units;
        }
    }

    /// Keeps the best `count` units by these scores.
    pub fn keep_best(&mut self, scores: &[f32], count: usize) {
        mark_best(scores, count, &mut self.keys, &mut self.kept);
    }
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

/// The sum of the `count` smallest of `mass`: what the best choice of all the others would lose.
pub fn sum_of_least(mass: &[f32], count: usize, bits: &mut Vec<u32>) -> f64 {
    bits.clear();
    bits.extend(mass.iter().map(|mass| mass.to_bits()));
    if count < bits.len() {
        // Masses are not negative, so that their bits sort as they do.
        bits.select_nth_unstable(count);
    }
    bits.iter().take(count).map(|bits| f64::from(f32::from_bits(*bits))).sum()
}

/// Bits that sort as the number does, negative ones included.
fn ordered(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}
