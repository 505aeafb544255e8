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
use super::vectors::{Cache, Kept, Vectors, output_errors};
use super::{Args, COLUMN_SUM, Format, quantize};
use crate::error::Result;
use crate::recording::{Head, Pairs, Step};

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
}

/// The vectors of the heads of a layer; `None` unless those of all of them were recorded.
///
/// # Errors
/// A mix of formats without scores of importance.
pub(super) fn exact(layer: &[Head<'_>], treatment: Treatment<'_>, treated: Treated) -> Result<Option<Exact>> {
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
        heads.push(OfHead { queries, pairs, left });
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

fn merged(head: &Head<'_>, own: &Pairs, merge: &Merge, role: Role) -> Result<Option<Pairs>> {
    let Some(other) = head.pairs_in(partner(head.layer, role)) else { return Ok(None) };
    let width = head.head_dim() as usize;
    let one = |own: &[f32], other: &[f32]| -> Result<Vec<f32>> {
        Ok(match role {
            Role::Shallow => minicache::merge(merge, own, other, width)?.shallow,
            Role::Deep => minicache::merge(merge, other, own, width)?.deep,
        })
    };
    Ok(Some(Pairs { keys: one(&own.keys, &other.keys)?, values: one(&own.values, &other.values)? }))
}

fn restored(head: &Head<'_>, pairs: &Pairs, args: &Args, format: &Format) -> Result<Pairs> {
    let width = head.head_dim() as usize;
    let mut importance = Vec::new();
    if format.forms.hot.is_some() {
        importance.extend_from_slice(head.score(args.kind().name, &COLUMN_SUM, 0)?);
        importance.resize(pairs.keys.len() / width.max(1), 0.0);
    }
    let found = quantize::restore(&format.forms, (&pairs.keys, width), (&pairs.values, width), &importance)?;
    Ok(Pairs { keys: found.keys, values: found.values })
}

impl Exact {
    /// Adds the query heads of one head in one step, the recorded step number `nth` from 0.
    pub(super) fn add(
        &self,
        (head, nth): (usize, usize),
        step: &Step<'_>,
        units: &Units,
        marks: &mut Vec<bool>,
        turn: &mut Turn,
    ) -> Result<()> {
        let Some(OfHead { queries, pairs, left }) = self.heads.get(head) else { return Ok(()) };
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
        let cache = Cache {
            kept,
            keys: left.as_ref().map(|left| &left.keys[..]),
            values: left.as_ref().map(|left| &left.values[..]),
            stand_ins: &[],
        };
        output_errors(&vectors, &cache)?.iter().for_each(|error| turn.add(error));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
