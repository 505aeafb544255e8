//! The exact error of the attention output on recorded vectors, by its causes, and what recovery is made of.
//!
//! The output of a step is `o = sum_i a_i v_i` with `a = softmax(q . k / sqrt(d))`. What a policy leaves gives another
//! output in three moves: tokens are dropped and the rest renormalised, keys are replaced by what comes back from the
//! cache, then values. Each move has a vector of its own, and the three add up to the whole error exactly (the first is
//! `m (vbar - o')` of POLICIES 0.3.1). All of it is open loop: queries are those of the run with the full cache.

use crate::error::{Error, Result};

/// Vectors of one KV head of one layer of one request.
#[derive(Debug, Clone, Copy)]
pub struct Vectors<'a> {
    /// Queries after rotation: steps x query heads of the group x `key_dim`.
    pub queries: &'a [f32],
    /// Keys after rotation: tokens x `key_dim`.
    pub keys: &'a [f32],
    /// Values: tokens x `value_dim`.
    pub values: &'a [f32],
    /// Elements of a query or key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Query heads that read this KV head.
    pub group: usize,
    /// Tokens that each step can attend to.
    pub contexts: &'a [u32],
}

/// What a policy leaves of them.
#[derive(Debug, Clone, Copy)]
pub struct Cache<'a> {
    /// Which tokens are kept.
    pub kept: Kept<'a>,
    /// Keys that come back from the cache, as many as there are; `None` for the exact ones.
    pub keys: Option<&'a [f32]>,
    /// Values that come back from the cache.
    pub values: Option<&'a [f32]>,
    /// Pairs that stand for dropped tokens; they are attended to in every step.
    pub stand_ins: &'a [StandIn],
}

/// Which tokens are kept. Tokens beyond the marks are kept.
#[derive(Debug, Clone, Copy)]
pub enum Kept<'a> {
    /// All.
    All,
    /// The same in every step.
    Fixed(&'a [bool]),
    /// In each step others: steps x so many tokens.
    PerStep(&'a [bool], usize),
}

/// A key and a value that stand for several tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct StandIn {
    /// Its key.
    pub key: Vec<f32>,
    /// Its value.
    pub value: Vec<f32>,
    /// How many tokens it stands for: its term of the softmax is multiplied by it.
    pub weight: f64,
}

/// The error of one step and query head. Parts are norms relative to the norm of the exact output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OutputError {
    /// Mass of the tokens that were dropped.
    pub lost_mass: f64,
    /// `|o|^2` of the exact output.
    pub out_sq: f64,
    /// `|o'|^2` of what a policy leaves.
    pub left_sq: f64,
    /// `<o, o'>`.
    pub product: f64,
    /// `|o - o'| / |o|`.
    pub total: f64,
    /// The same of dropping tokens alone.
    pub selection: f64,
    /// Of replacing the keys of what is kept.
    pub key: f64,
    /// Of replacing the values, given the replaced keys.
    pub value: f64,
}

impl Cache<'_> {
    /// Everything as it was.
    pub const FULL: Self = Cache { kept: Kept::All, keys: None, values: None, stand_ins: &[] };
}

impl Kept<'_> {
    /// Whether this token is kept in this step.
    pub fn has(&self, step: usize, token: usize) -> bool {
        match self {
            Self::All => true,
            Self::Fixed(marks) => marks.get(token).copied().unwrap_or(true),
            Self::PerStep(_, tokens) if token >= *tokens => true,
            Self::PerStep(marks, tokens) => marks.get(step * tokens + token).copied().unwrap_or(true),
        }
    }
}

/// Buffers of one query.
#[derive(Default)]
struct Scratch {
    logits: Vec<f32>,
    weights: Vec<f32>,
    outputs: [Vec<f32>; 4],
}

/// The error of each step and query head, step by step.
///
/// # Errors
/// Lengths that do not fit each other, and a step that attends to no token or to more than there are.
pub fn output_errors(vectors: &Vectors<'_>, cache: &Cache<'_>) -> Result<Vec<OutputError>> {
    check(vectors, cache)?;
    let mut scratch = Scratch::default();
    let per_step = vectors.group * vectors.key_dim;
    let steps = vectors.queries.chunks_exact(per_step).zip(vectors.contexts).enumerate();
    let mut errors = Vec::with_capacity(vectors.contexts.len() * vectors.group);
    for (step, (queries, context)) in steps {
        for query in queries.chunks_exact(vectors.key_dim) {
            errors.push(output_error(vectors, cache, step, query, *context as usize, &mut scratch));
        }
    }
    Ok(errors)
}

fn check(vectors: &Vectors<'_>, cache: &Cache<'_>) -> Result<()> {
    let (key, value) = (vectors.key_dim.max(1), vectors.value_dim.max(1));
    let tokens = vectors.keys.len() / key;
    let same = |rows: Option<&[f32]>, expected: &[f32]| rows.is_none_or(|rows| rows.len() == expected.len());
    let fits = vectors.key_dim > 0
        && vectors.value_dim > 0
        && vectors.keys.len() == tokens * key
        && vectors.values.len() == tokens * value
        && vectors.queries.len() == vectors.contexts.len() * vectors.group * key
        && vectors.group > 0
        && same(cache.keys, vectors.keys)
        && same(cache.values, vectors.values)
        && cache.stand_ins.iter().all(|pair| pair.key.len() == key && pair.value.len() == value);
    if !fits {
        return Err(Error::data(format!(
            "vectors: expected {} steps of {} queries of {key} elements and as many keys as values, found {} elements of \
             queries, {} of keys and {} of values of {value}",
            vectors.contexts.len(),
            vectors.group,
            vectors.queries.len(),
            vectors.keys.len(),
            vectors.values.len()
        )));
    }
    match vectors.contexts.iter().find(|context| **context == 0 || **context as usize > tokens) {
        Some(context) => {
            Err(Error::data(format!("vectors: expected a context of 1 to {tokens} tokens, found {context}")))
        }
        None => Ok(()),
    }
}

fn output_error(
    vectors: &Vectors<'_>,
    cache: &Cache<'_>,
    step: usize,
    query: &[f32],
    context: usize,
    scratch: &mut Scratch,
) -> OutputError {
    let Scratch { logits, weights, outputs } = scratch;
    let [full, selected, by_key, all] = outputs;
    let dim = vectors.value_dim;
    logits_of(query, vectors.keys, context, logits);
    softmax(logits, |_| true, &[], weights);
    mix(vectors.values, dim, weights, &[], full);
    let kept = |at: usize| cache.kept.has(step, at);
    let lost = weights.iter().enumerate().filter(|(at, _)| !kept(*at)).map(|(_, weight)| f64::from(*weight));
    let lost_mass = lost.sum::<f64>().min(1.0);
    let scale = 1.0 / (vectors.key_dim as f32).sqrt();
    let stand_ins: Vec<(f32, &StandIn)> =
        cache.stand_ins.iter().map(|pair| (dot(query, &pair.key) * scale, pair)).collect();
    let mut others = Vec::new();
    if matches!(cache.kept, Kept::All) && stand_ins.is_empty() {
        selected.clone_from(full);
    } else {
        others = softmax(logits, kept, &stand_ins, weights);
        mix(vectors.values, dim, weights, &others, selected);
    }
    if let Some(keys) = cache.keys {
        logits_of(query, keys, context, logits);
        others = softmax(logits, kept, &stand_ins, weights);
        mix(vectors.values, dim, weights, &others, by_key);
    } else {
        by_key.clone_from(selected);
    }
    match cache.values {
        Some(values) => mix(values, dim, weights, &others, all),
        None => all.clone_from(by_key),
    }
    let out_sq = inner(full, full);
    let relative = |a: &[f32], b: &[f32]| {
        let error: f64 = a.iter().zip(b).map(|(x, y)| (f64::from(*x) - f64::from(*y)).powi(2)).sum();
        if error == 0.0 { 0.0 } else { (error / out_sq).sqrt() }
    };
    OutputError {
        lost_mass,
        out_sq,
        left_sq: inner(all, all),
        product: inner(full, all),
        total: relative(full, all),
        selection: relative(full, selected),
        key: relative(selected, by_key),
        value: relative(by_key, all),
    }
}

/// `q . k / sqrt(d)` of the first `context` keys.
fn logits_of(query: &[f32], keys: &[f32], context: usize, logits: &mut Vec<f32>) {
    let scale = 1.0 / (query.len() as f32).sqrt();
    logits.clear();
    logits.extend(keys.chunks_exact(query.len()).take(context).map(|key| dot(query, key) * scale));
}

/// Softmax weights of the kept tokens, 0 for the others, and those of the stand-ins, which enter with the number of tokens
/// that they stand for.
fn softmax<'a>(
    logits: &[f32],
    kept: impl Fn(usize) -> bool,
    stand_ins: &[(f32, &'a StandIn)],
    weights: &mut Vec<f32>,
) -> Vec<(f32, &'a StandIn)> {
    let of_tokens = logits.iter().enumerate().filter(|(at, _)| kept(*at)).map(|(_, logit)| *logit);
    let most = of_tokens.chain(stand_ins.iter().map(|(logit, _)| *logit)).fold(f32::NEG_INFINITY, f32::max);
    weights.clear();
    weights.extend(logits.iter().enumerate().map(|(at, logit)| if kept(at) { (logit - most).exp() } else { 0.0 }));
    let mut others: Vec<(f32, &StandIn)> =
        stand_ins.iter().map(|(logit, pair)| (pair.weight as f32 * (logit - most).exp(), *pair)).collect();
    let all = weights.iter().chain(others.iter().map(|(weight, _)| weight));
    let sum: f64 = all.map(|weight| f64::from(*weight)).sum();
    if sum > 0.0 {
        let factor = (1.0 / sum) as f32;
        for weight in weights.iter_mut().chain(others.iter_mut().map(|(weight, _)| weight)) {
            *weight *= factor;
        }
    }
    others
}

/// The weighted sum of values.
fn mix(values: &[f32], dim: usize, weights: &[f32], others: &[(f32, &StandIn)], out: &mut Vec<f32>) {
    out.clear();
    out.resize(dim, 0.0);
    let rows = weights.iter().copied().zip(values.chunks_exact(dim));
    for (weight, value) in rows.chain(others.iter().map(|(weight, pair)| (*weight, &pair.value[..]))) {
        if weight > 0.0 {
            out.iter_mut().zip(value).for_each(|(sum, x)| *sum += weight * x);
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, so that the loop has no chain of dependent additions.
    let mut sums = [0.0_f32; 8];
    let (a, b) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    for (a, b) in a.0.iter().zip(b.0) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

fn inner(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// Marks the most important share of the unmarked tokens, rounded up; returns how many. Among equals the lower position.
pub fn retain(kept: &mut [bool], importance: &[f32], share: f64) -> usize {
    let mut dropped: Vec<usize> = (0..kept.len()).filter(|at| !kept[*at]).collect();
    let count = (dropped.len() as f64 * share.clamp(0.0, 1.0) - 1e-9).ceil().max(0.0) as usize;
    let score = |at: &usize| importance.get(*at).copied().unwrap_or(0.0);
    if count > 0 && count < dropped.len() {
        dropped.select_nth_unstable_by(count - 1, |a, b| score(b).total_cmp(&score(a)).then(a.cmp(b)));
    }
    let count = count.min(dropped.len());
    dropped[..count].iter().for_each(|at| kept[*at] = true);
    count
}

/// The pair that stands for all unmarked tokens: their mean key and mean value, weighted by their number. `None` where all
/// are marked.
pub fn stand_in(vectors: &Vectors<'_>, kept: &[bool]) -> Option<StandIn> {
    let mean = |rows: &[f32], dim: usize| -> Vec<f32> {
        let mut sums = vec![0.0_f64; dim];
        let mut count = 0.0_f64;
        for (row, _) in rows.chunks_exact(dim).zip(kept).filter(|(_, kept)| !**kept) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            count += 1.0;
        }
        sums.iter().map(|sum| (sum / count.max(1.0)) as f32).collect()
    };
    let tokens = vectors.keys.len() / vectors.key_dim.max(1);
    let weight = kept.iter().take(tokens).filter(|kept| !**kept).count() as f64;
    (weight > 0.0).then(|| StandIn {
        key: mean(vectors.keys, vectors.key_dim),
        value: mean(vectors.values, vectors.value_dim),
        weight,
    })
}

/// Undoes the mean shrinking of a centroid codebook: divides by `1 - shrink` (POLICIES 3.6: `x / (1 - D)` is unbiased, with
/// the squared error `D / (1 - D)`). It takes no bytes.
pub fn rescale(rows: &mut [f32], shrink: f64) {
    let factor = (1.0 / (1.0 - shrink.clamp(0.0, 0.999))) as f32;
    for x in rows {
        *x *= factor;
    }
}

/// The smallest of `0 / steps`, `1 / steps`, ... 1 whose error is within the budget; `None` where even 1 is not. The error
/// must not rise with the share: it is bisected, with `log2 steps` calls.
///
/// # Errors
/// Those of `error`.
pub fn smallest_share(budget: f64, steps: u32, mut error: impl FnMut(f64) -> Result<f64>) -> Result<Option<f64>> {
    let steps = steps.max(1);
    let share = |at: u32| f64::from(at) / f64::from(steps);
    if error(1.0)? > budget {
        return Ok(None);
    }
    let (mut low, mut high) = (0, steps);
    while low < high {
        let middle = low + (high - low) / 2;
        if error(share(middle))? <= budget {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Some(share(high)))
}

#[cfg(test)]
mod tests;
