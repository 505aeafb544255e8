//! What a stack does to the organisation of the cache: pages that its kept tokens touch, and how much requests with a
//! common beginning keep in common of it.
//!
//! Engines hold KV in pages (blocks of 16 tokens), for all heads of a layer together. Tokens that are kept here and there
//! touch more pages than their number fills; a page is free only where no head of the layer keeps a token of it. And two
//! requests that share a prefix can share its pages only where both keep the same tokens: what is kept depends on what comes
//! after the prefix, so that sharing is lost even where the sets overlap.
//!
//! Layers are added one at a time ([`of_layer`]), so that a recording can be read in pieces and layers be run side by side;
//! [`batches`] makes rows of all of them.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array};

use super::recovery::Recovered;
use super::{Selection, Stack, select};
use crate::error::Result;
use crate::recording::{Head, Recording};
use crate::schema::result::{KEPT_OVERLAP, KEPT_PAGES};

/// Tokens of a page, as engines have them.
const PAGE_TOKENS: u32 = 16;

/// What one layer of one request keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerPages {
    /// The request.
    pub request_id: u64,
    /// The layer, from 0.
    pub layer: u16,
    /// Its heads.
    pub heads: Vec<HeadPages>,
    /// Pages that any head touches, summed over the steps.
    pub touched_by_any: u64,
}

/// What one KV head keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadPages {
    /// The KV head, from 0.
    pub kv_head: u16,
    /// Recorded steps.
    pub steps: u32,
    /// Pages of the context, summed over the steps.
    pub pages: u64,
    /// Pages that hold a kept token, summed over the steps.
    pub touched: u64,
    /// Tokens kept, summed over the steps.
    pub tokens: u64,
    /// Marks of the prompt's units that the first recorded step keeps.
    pub of_prompt: Vec<bool>,
}

/// Units of a page: a page is never smaller than a unit.
fn units_per_page(unit: u32) -> usize {
    (PAGE_TOKENS / unit.max(1)).max(1) as usize
}

/// What the stack keeps of a recorded layer, recovery included; copies in another format are kept elsewhere and do not
/// count. `budgets` are those of [`select::budgets`] for these heads.
///
/// # Errors
/// A channel that the recording lacks, with how to record it.
pub fn of_layer(stack: &Stack, layer: &[Head<'_>], budgets: &[u32]) -> Result<Option<LayerPages>> {
    let Some(first) = layer.first() else { return Ok(None) };
    let (selection, prompt) = (stack.selection(), first.request.prompt_tokens);
    let mut recovered = Recovered::new(selection, *stack.recovery(), layer.len());
    let per_page = units_per_page(first.unit_tokens());
    let mut heads: Vec<HeadPages> = layer.iter().map(|head| none_of(head.kv_head)).collect();
    let (mut touched_by_any, mut any) = (0_u64, Vec::new());
    select::run(selection, layer, budgets, &mut Vec::new(), |at, step, units| {
        let (Some(head), Some(found)) = (layer.get(at), heads.get_mut(at)) else { return Ok(()) };
        let view = recovered.view((at, budgets.get(at).copied().unwrap_or(0)), head, step, units)?;
        let is_kept = |at: usize| {
            let marked = view.units.kept.get(at).copied().unwrap_or(false);
            marked && !view.copied.get(at).copied().unwrap_or(false)
        };
        let marks: Vec<bool> = (0..view.units.kept.len()).map(is_kept).collect();
        if found.steps == 0 {
            found.of_prompt = marks.iter().copied().take(view.units.of(prompt)).collect();
        }
        // Heads come in order within a step.
        if at == 0 {
            any.clear();
            any.resize(marks.len().div_ceil(per_page), false);
        }
        found.steps += 1;
        found.pages += u64::from(step.context_tokens.div_ceil(per_page as u32 * view.units.tokens));
        found.tokens += u64::from(tokens_of(&marks, view.units.tokens, step.context_tokens));
        for (any, page) in any.iter_mut().zip(marks.chunks(per_page)) {
            let is_touched = page.iter().any(|kept| *kept);
            *any |= is_touched;
            found.touched += u64::from(is_touched);
        }
        if at + 1 == layer.len() {
            touched_by_any += any.iter().filter(|touched| **touched).count() as u64;
        }
        Ok(())
    })?;
    Ok(Some(LayerPages { request_id: first.request.request_id, layer: first.layer, heads, touched_by_any }))
}

fn none_of(kv_head: u16) -> HeadPages {
    HeadPages { kv_head, steps: 0, pages: 0, touched: 0, tokens: 0, of_prompt: Vec::new() }
}

/// Tokens of the marked units of a context.
fn tokens_of(marks: &[bool], unit: u32, context: u32) -> u32 {
    let of = |at: usize| context.saturating_sub(at as u32 * unit).min(unit);
    marks.iter().enumerate().filter(|(_, kept)| **kept).map(|(at, _)| of(at)).sum()
}

/// All layers of a recording, in their order.
///
/// # Errors
/// As [`of_layer`].
pub fn organisation(stack: &Stack, recording: &Recording) -> Result<[RecordBatch; 2]> {
    let mut layers = Vec::new();
    select::each_layer(stack.selection(), recording, 0, |layer, budgets| {
        layers.extend(of_layer(stack, layer, budgets)?);
        Ok(())
    })?;
    batches(stack, recording, &layers)
}

/// Rows of [`KEPT_PAGES`] and of [`KEPT_OVERLAP`] from the layers of a recording, of which only the requests are read here.
///
/// # Errors
/// Only columns that do not fit their table, which is a bug.
pub fn batches(stack: &Stack, recording: &Recording, layers: &[LayerPages]) -> Result<[RecordBatch; 2]> {
    let heads: Vec<(&LayerPages, &HeadPages)> =
        layers.iter().flat_map(|layer| layer.heads.iter().map(move |head| (layer, head))).collect();
    Ok([pages(stack, recording, &heads)?, overlaps(stack, recording, &heads)?])
}

fn texts(count: usize, text: &str) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, count)))
}

fn pages(stack: &Stack, recording: &Recording, heads: &[(&LayerPages, &HeadPages)]) -> Result<RecordBatch> {
    let count = heads.len();
    let unit = recording.block_tokens;
    let mean = |of: &dyn Fn(&LayerPages, &HeadPages) -> u64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(
            heads.iter().map(|(layer, head)| of(layer, head) as f64 / f64::from(head.steps.max(1))),
        ))
    };
    let columns: Vec<ArrayRef> = vec![
        texts(count, &stack.name()),
        texts(count, &recording.label()),
        Arc::new(UInt32Array::from(vec![recording.source_id; count])),
        Arc::new(UInt64Array::from_iter_values(heads.iter().map(|(layer, _)| layer.request_id))),
        Arc::new(UInt16Array::from_iter_values(heads.iter().map(|(layer, _)| layer.layer))),
        Arc::new(UInt16Array::from_iter_values(heads.iter().map(|(_, head)| head.kv_head))),
        Arc::new(UInt16Array::from(vec![unit as u16; count])),
        Arc::new(UInt16Array::from(vec![(units_per_page(unit) as u32 * unit) as u16; count])),
        Arc::new(UInt32Array::from_iter_values(heads.iter().map(|(_, head)| head.steps))),
        mean(&|_, head| head.tokens),
        mean(&|_, head| head.pages),
        mean(&|_, head| head.touched),
        mean(&|layer, _| layer.touched_by_any),
    ];
    Ok(RecordBatch::try_new(KEPT_PAGES.arrow(), columns)?)
}

/// What two requests keep of their common beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// Tokens of the prefix, in whole units.
    pub prefix: u32,
    /// Tokens that each keeps of it.
    pub kept: [u32; 2],
    /// Tokens that both keep.
    pub common: u32,
    /// Pages of the prefix that hold a token that one of them keeps.
    pub touched: u32,
    /// Of these, pages of which both keep the same tokens.
    pub same: u32,
}

/// Compares the marks of two requests on the first `prefix` tokens, rounded down to whole units; pages are whole ones of the
/// prefix.
pub fn overlap(marks: [&[bool]; 2], unit: u32, prefix: u32) -> Overlap {
    let units = (prefix / unit.max(1)) as usize;
    let [a, b] = marks.map(|marks| marks.get(..units).unwrap_or(marks));
    let count = |is_counted: &dyn Fn(bool, bool) -> bool| {
        unit * a.iter().zip(b).filter(|(a, b)| is_counted(**a, **b)).count() as u32
    };
    let per_page = units_per_page(unit);
    let pages = a.chunks_exact(per_page).zip(b.chunks_exact(per_page));
    let touched = pages.filter(|(a, b)| a.iter().chain(*b).any(|kept| *kept));
    Overlap {
        prefix: units as u32 * unit,
        kept: [count(&|a, _| a), count(&|_, b| b)],
        common: count(&|a, b| a && b),
        touched: touched.clone().count() as u32,
        same: touched.filter(|(a, b)| a == b).count() as u32,
    }
}

/// Pairs of requests with at least one page in common, head by head.
fn overlaps(stack: &Stack, recording: &Recording, heads: &[(&LayerPages, &HeadPages)]) -> Result<RecordBatch> {
    let unit = recording.block_tokens;
    let requests = &recording.requests;
    let mut rows = Vec::new();
    for (at, one) in requests.iter().enumerate() {
        for other in requests.iter().skip(at + 1) {
            let prefix = one.content.common_tokens(&other.content).min(one.prompt_tokens).min(other.prompt_tokens);
            if prefix < PAGE_TOKENS.max(unit) {
                continue;
            }
            let of = |id: u64| heads.iter().filter(move |(layer, _)| layer.request_id == id);
            for (layer, head) in of(one.request_id) {
                let place = (layer.layer, head.kv_head);
                let Some((_, same)) = of(other.request_id).find(|(layer, head)| (layer.layer, head.kv_head) == place)
                else {
                    continue;
                };
                let found = overlap([&head.of_prompt, &same.of_prompt], unit, prefix);
                rows.push(([one.request_id, other.request_id], place, found));
            }
        }
    }
    let count = rows.len();
    let number = |of: &dyn Fn(&Overlap) -> u32| -> ArrayRef {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|(_, _, found)| of(found))))
    };
    let union = |found: &Overlap| found.kept[0] + found.kept[1] - found.common;
    let jaccard = rows.iter().map(|(_, _, found)| {
        let union = union(found);
        (union > 0).then(|| f64::from(found.common) / f64::from(union))
    });
    let columns: Vec<ArrayRef> = vec![
        texts(count, &stack.name()),
        texts(count, &recording.label()),
        Arc::new(UInt32Array::from(vec![recording.source_id; count])),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|([one, _], ..)| *one))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|([_, other], ..)| *other))),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|(_, (layer, _), _)| *layer))),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|(_, (_, head), _)| *head))),
        Arc::new(UInt16Array::from(vec![unit as u16; count])),
        number(&|found| found.prefix),
        number(&|found| found.kept[0]),
        number(&|found| found.kept[1]),
        number(&|found| found.common),
        Arc::new(jaccard.collect::<Float64Array>()),
        number(&|found| found.touched),
        number(&|found| found.same),
        Arc::new(arrow::array::BooleanArray::from(vec![stays_shareable(stack); count])),
    ];
    Ok(RecordBatch::try_new(KEPT_OVERLAP.arrow(), columns)?)
}

/// Whether a request leaves blocks of its prompt that others can use: where nothing is dropped for good, and no stage says
/// otherwise.
fn stays_shareable(stack: &Stack) -> bool {
    let breaks = stack.stages().iter().any(|stage| stage.args.kind().deployment.breaks_sharing);
    let drops = |selection: &Selection| !selection.is_recoverable;
    !breaks || !stack.selection().is_some_and(|(_, selection)| drops(selection))
}

#[cfg(test)]
mod tests;
