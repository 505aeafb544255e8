//! By how much a stack turns the output of a layer on a recording: exactly from vectors, or estimated from norms.
//!
//! The measure is that of [`turning`](super::turning). With queries, keys and values the outputs are computed twice, with
//! the whole cache and with what the stack leaves of it: fewer tokens, merged layers, vectors that have been through the
//! number format. Vectors go through it with all tokens of the longest recorded context, so that the newest tokens, which
//! some formats hold in 16 bits for a while, are those of the last recorded step; in a mix of formats the prompt tokens
//! with the largest `column_sum` are hot, and generated tokens, of which no sum is known, come last. With a stage that
//! merges layers and one that sets a format, the format is applied to what the merge gives back.

use super::error::Treated;
use super::minicache::{self, Merge, Role};
use super::select::Units;
use super::turning::Turn;
use super::vectors::{self, Cache, Kept, Vectors, output_errors};
use super::{Args, COLUMN_SUM, Format, quantize};
use crate::error::Result;
use crate::recording::{Head, Pairs, Step};
use quantize::Form;

/// What happens to the vectors of a layer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Treatment<'a> {
    /// The merge and what the layer is in its pair.
    pub(super) merge: Option<(&'a Merge, Role)>,
    /// The number format.
    pub(super) format: Option<(&'a Args, &'a Format)>,
}

/// One layer's vectors.
#[derive(Debug)]
pub(super) struct Exact {
    width: usize,
    group: usize,
    heads: Vec<OfHead>,
}

#[derive(Debug)]
struct OfHead {
    queries: Vec<f32>,
    pairs: Pairs,
    /// What comes back from the cache.
    left: Option<Pairs>,
    /// What comes back of copies of dropped tokens.
    copies: Option<Pairs>,
}

/// What a step reads of one head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading<'a> {
    /// Marks of what it reads in any form.
    pub(super) units: &'a Units,
    /// Marks of what it reads as copies.
    pub(super) copied: &'a [bool],
    /// Whether a pair stands for what it does not read.
    pub(super) has_stand_in: bool,
}

/// Buffers that are reused from step to step.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    marks: Vec<bool>,
    /// By head: vectors as the last step read them, and which of them were copies.
    mixed: Vec<Option<(Pairs, Vec<bool>)>>,
}

/// The vectors of the heads of a layer; `None` unless those of all of them were recorded.
///
/// # Errors
/// A mix of formats, or tokens retained beside a merge, without scores of importance.
pub(super) fn exact(
    layer: &[Head<'_>],
    treatment: Treatment<'_>,
    treated: Treated,
    copies: Option<Form>,
) -> Result<Option<Exact>> {
    let Some(first) = layer.first() else { return Ok(None) };
    let mut heads = Vec::with_capacity(layer.len());
    for head in layer {
        let (Some(queries), Some(pairs)) = (head.queries(), head.pairs_in(head.layer)) else { return Ok(None) };
        let merged = match treatment.merge {
            None => None,
            Some((merge, role)) => match merged(head, &pairs, merge, role)? {
                Some(merged) => Some(merged),
                None => return Ok(None),
            },
        };
        let copies = match copies {
            Some(form) => Some(copied(head, merged.as_ref().unwrap_or(&pairs), form)?),
            None => None,
        };
        let mut left = match treatment.format {
            None => merged,
            Some((args, format)) => Some(restored(head, merged.as_ref().unwrap_or(&pairs), args, format)?),
        };
        if let Some(left) = left.as_mut().filter(|_| treated == Treated::Prompt) {
            let from = head.request.prompt_tokens as usize * head.head_dim() as usize;
            for (left, exact) in [(&mut left.keys, &pairs.keys), (&mut left.values, &pairs.values)] {
                left.iter_mut().zip(exact).skip(from).for_each(|(left, exact)| *left = *exact);
            }
        }
        heads.push(OfHead { queries, pairs, left, copies });
    }
    Ok(Some(Exact { width: first.head_dim() as usize, group: first.group() as usize, heads }))
}

/// The other layer of the pair.
pub(super) fn partner(layer: u16, role: Role) -> u16 {
    match role {
        Role::Shallow => layer.saturating_add(1),
        Role::Deep => layer.saturating_sub(1),
    }
}

/// Vectors of one head as copies give them back.
fn copied(head: &Head<'_>, pairs: &Pairs, form: Form) -> Result<Pairs> {
    let width = head.head_dim() as usize;
    let back = |coding, rows: &[f32]| quantize::roundtrip(coding, rows, width).map(|(rows, _)| rows);
    Ok(Pairs { keys: back(form.key, &pairs.keys)?, values: back(form.value, &pairs.values)? })
}

/// One score per token: the prompt's `column_sum`, and 0 for generated tokens.
fn importance(head: &Head<'_>, stage: &str, tokens: usize) -> Result<Vec<f32>> {
    let mut importance = head.score(stage, &COLUMN_SUM, 0)?.to_vec();
    importance.resize(tokens, 0.0);
    Ok(importance)
}

fn merged(head: &Head<'_>, own: &Pairs, merge: &Merge, role: Role) -> Result<Option<Pairs>> {
    let Some(other) = head.pairs_in(partner(head.layer, role)) else { return Ok(None) };
    let width = head.head_dim() as usize;
    let one = |own: &[f32], other: &[f32]| -> Result<Vec<f32>> {
        Ok(match role {
            Role::Shallow => minicache::merge(merge, own, other, width)?.shallow,
            Role::Deep => minicache::merge(merge, other, own, width)?.deep,
        })
    };
    let mut merged = Pairs { keys: one(&own.keys, &other.keys)?, values: one(&own.values, &other.values)? };
    if merge.exact > 0.0 {
        let mut marks = vec![false; own.keys.len() / width.max(1)];
        let importance = importance(head, "retain", marks.len())?;
        vectors::retain(&mut marks, &importance, merge.exact);
        for (merged, own) in [(&mut merged.keys, &own.keys), (&mut merged.values, &own.values)] {
            let rows = merged.chunks_exact_mut(width.max(1)).zip(own.chunks_exact(width.max(1))).zip(&marks);
            rows.filter(|(_, retained)| **retained).for_each(|((merged, own), _)| merged.copy_from_slice(own));
        }
    }
    Ok(Some(merged))
}

fn restored(head: &Head<'_>, pairs: &Pairs, args: &Args, format: &Format) -> Result<Pairs> {
    let width = head.head_dim() as usize;
    let tokens = pairs.keys.len() / width.max(1);
    let importance = if format.forms.hot.is_some() { importance(head, args.kind().name, tokens)? } else { Vec::new() };
    let found = quantize::restore(&format.forms, (&pairs.keys, width), (&pairs.values, width), &importance)?;
    Ok(Pairs { keys: found.keys, values: found.values })
}

impl Exact {
    /// Adds the query heads of one head in one step, the recorded step number `nth` from 0.
    pub(super) fn add(
        &self,
        (head, nth): (usize, usize),
        step: &Step<'_>,
        Reading { units, copied, has_stand_in }: Reading<'_>,
        scratch: &mut Scratch,
        turn: &mut Turn,
    ) -> Result<()> {
        let Some(OfHead { queries, pairs, left, copies }) = self.heads.get(head) else { return Ok(()) };
        let Scratch { marks, mixed } = scratch;
        let each = self.group * self.width;
        let vectors = Vectors {
            queries: queries.get(nth * each..(nth + 1) * each).unwrap_or_default(),
            keys: &pairs.keys,
            values: &pairs.values,
            key_dim: self.width,
            value_dim: self.width,
            group: self.group,
            contexts: &[step.context_tokens],
        };
        marks.clear();
        for kept in &units.kept {
            marks.extend(std::iter::repeat_n(*kept, units.tokens as usize));
        }
        let kept = if marks.iter().all(|kept| *kept) { Kept::All } else { Kept::Fixed(marks) };
        let left = match copies {
            None => left.as_ref(),
            Some(copies) => {
                mixed.resize_with(self.heads.len().max(mixed.len()), || None);
                mixed.get_mut(head).map(|mixed| {
                    let base = left.as_ref().unwrap_or(pairs);
                    mix(mixed, (base, copies), copied, (units.tokens as usize, self.width))
                })
            }
        };
        let stand_in = if has_stand_in { vectors::stand_in(&vectors, marks) } else { None };
        let cache = Cache {
            kept,
            keys: left.map(|left| &left.keys[..]),
            values: left.map(|left| &left.values[..]),
            stand_ins: stand_in.as_slice(),
        };
        output_errors(&vectors, &cache)?.iter().for_each(|error| turn.add(error));
        Ok(())
    }
}

/// Brings the vectors that a step reads up to date: copies where they are marked, `base` elsewhere.
fn mix<'a>(
    mixed: &'a mut Option<(Pairs, Vec<bool>)>,
    (base, copies): (&Pairs, &Pairs),
    copied: &[bool],
    (unit, width): (usize, usize),
) -> &'a Pairs {
    let (pairs, before) = mixed.get_or_insert_with(|| (base.clone(), Vec::new()));
    before.resize(copied.len(), false);
    for (at, (before, now)) in before.iter_mut().zip(copied).enumerate() {
        if before == now {
            continue;
        }
        *before = *now;
        let from = if *now { copies } else { base };
        let end = ((at + 1) * unit * width).min(pairs.keys.len());
        let rows = (at * unit * width).min(end)..end;
        for (into, from) in [(&mut pairs.keys, &from.keys), (&mut pairs.values, &from.values)] {
            if let (Some(into), Some(from)) = (into.get_mut(rows.clone()), from.get(rows.clone())) {
                into.copy_from_slice(from);
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
