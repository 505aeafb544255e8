//! The `demand` table: bytes that a policy asks for, per request, phase and layer group, on no machine in particular.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array};

use super::{Found, Scenario};
use crate::error::{Error, Result};
use crate::model::{Attention, STATE_TOKENS};
use crate::policy::{Group, Keep, Shape};
use crate::schema::result::DEMAND;
use crate::serving::{Fate, Served};
use crate::workload::Workload;

/// One row.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Row {
    pub request: usize,
    pub is_decode: bool,
    pub first_step: u32,
    pub last_step: u32,
    pub group: usize,
    pub kept: u32,
    pub peak_bytes: u64,
    pub stored_bytes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub lower_stored_bytes: u64,
    pub lower_read_bytes: u64,
    pub lower_written_bytes: u64,
    pub extra_flops: f64,
}

/// The number of each scenario's rows: those with the same requests, model and policy share them.
pub(super) fn ids(done: &[(u32, &Scenario, &Found)]) -> Vec<u32> {
    let mut seen = Vec::new();
    let mut number = |scenario: &Scenario| {
        let key = (scenario.workload, scenario.model.name.clone(), scenario.policy.name());
        let known = seen.iter().position(|one| *one == key);
        known.unwrap_or_else(|| {
            seen.push(key);
            seen.len() - 1
        }) as u32
    };
    done.iter().map(|(_, scenario, _)| number(scenario)).collect()
}

/// Rows of those of these requests that were served: what is turned away asks for nothing.
///
/// # Errors
/// A request that asks for 2^64 bytes or more.
pub(super) fn rows(workload: &Workload, shape: &Shape, served: &[Served], requests: Range<usize>) -> Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(requests.len() * shape.groups.len() * 2);
    for request in requests.filter(|&at| served[at].fate == Fate::Finished) {
        let (prompt, output) = (workload.prompt[request], workload.output[request]);
        for (at, group) in shape.groups.iter().enumerate() {
            rows.push(Row { request, group: at, ..prefill(group, prompt) });
            if output > 1 {
                let row = decode(group, prompt, output - 1).ok_or_else(|| {
                    let id = workload.request_ids[request];
                    Error::run(format!("request {id} of `{}` reads 2^64 bytes of KV or more", workload.name))
                })?;
                rows.push(Row { request, group: at, ..row });
            }
        }
    }
    Ok(rows)
}

fn prefill(group: &Group, prompt: u32) -> Row {
    let layers = u64::from(group.layers);
    let bytes = |tokens: u32, each: u64| u64::from(tokens) * layers * each;
    let stored = |tokens: u32| layers * group.bytes_of(tokens);
    let whole = group.keep.in_prefill(prompt);
    let kept = group.keep.tokens(prompt, prompt);
    let beside = bytes(prompt - kept, group.beside.map_or(0, |beside| beside.token_bytes));
    let moved = bytes(moved(group, prompt, prompt), group.lower.map_or(0, |lower| lower.token_bytes));
    let scoring = if group.keep.drops_of(prompt) { group.score_flops } else { 0.0 };
    Row {
        kept,
        peak_bytes: stored(whole).max(stored(kept) + beside),
        stored_bytes: stored(kept) + beside,
        read_bytes: bytes(whole, group.token_bytes) + layers * group.residual.bytes(whole),
        written_bytes: bytes(written(group, prompt), group.stored_bytes())
            + layers * group.residual.bytes(prompt)
            + beside,
        lower_stored_bytes: moved,
        lower_written_bytes: moved,
        extra_flops: f64::from(group.layers) * f64::from(prompt) * (group.write_flops + scoring),
        ..Row::default()
    }
}

/// Tokens of a context that are in the lower tier.
fn moved(group: &Group, prompt: u32, context: u32) -> u32 {
    let fetched = group.lower.map_or(0, |lower| lower.fetched_tokens);
    context - group.keep.without_extra(fetched).tokens(prompt, context)
}

/// Of `tokens` computed at once those that are written: a state is written as a whole, and no more than once.
fn written(group: &Group, tokens: u32) -> u32 {
    if group.kv.attention == Attention::Linear { tokens.min(STATE_TOKENS) } else { tokens }
}

/// `steps` decode steps; step `i` attends to a context of `prompt + i` tokens.
fn decode(group: &Group, prompt: u32, steps: u32) -> Option<Row> {
    let kept = u64::from(group.keep.tokens(prompt, prompt.saturating_add(steps)));
    let held = summed(group.keep, prompt, steps)?;
    let attended = group.read_tokens.map_or(Some(held), |most| summed(group.keep.capped(most), prompt, steps))?;
    let layers = u64::from(group.layers);
    let step = if group.kv.attention == Attention::Linear { STATE_TOKENS } else { 1 };
    let (stored, last) = (layers * group.stored_bytes(), layers * group.residual.bytes(kept as u32));
    let residual = residual(group, prompt, steps)?.checked_mul(layers)?;
    let index = held.checked_mul(layers * group.index_bytes)?;
    let end = prompt.saturating_add(steps);
    // What is held of tokens that are not kept: in all steps, at the end, and what came to it.
    let others = summed(Keep::ALL, prompt, steps)?.checked_sub(held)?;
    let each = layers * group.beside.map_or(0, |beside| beside.token_bytes);
    let dropped = |context: u32| u64::from(context - group.keep.tokens(prompt, context));
    let (at_end, added) = (dropped(end) * each, (dropped(end) - dropped(prompt)) * each);
    let lower = layers * group.lower.map_or(0, |lower| lower.token_bytes);
    let fetched = match group.lower {
        Some(far) => held.checked_sub(summed(group.keep.without_extra(far.fetched_tokens), prompt, steps)?)?,
        None => 0,
    };
    let moved = |context: u32| u64::from(moved(group, prompt, context));
    Some(Row {
        lower_stored_bytes: moved(end) * lower,
        lower_read_bytes: fetched.checked_mul(lower)?,
        lower_written_bytes: (moved(end) - moved(prompt)) * lower,
        is_decode: true,
        first_step: 1,
        last_step: steps,
        kept: kept as u32,
        peak_bytes: kept * stored + layers * group.residual.most_bytes(kept as u32) + at_end,
        stored_bytes: kept * stored + last + at_end,
        read_bytes: attended
            .checked_mul(layers * group.token_bytes)?
            .checked_add(index)?
            .checked_add(residual)?
            .checked_add(others.checked_mul(each)?)?,
        written_bytes: u64::from(steps) * u64::from(step) * stored + added,
        extra_flops: f64::from(group.layers)
            * (attended as f64 * group.read_flops
                + others as f64 * group.beside.map_or(0.0, |beside| beside.read_flops)
                + f64::from(steps) * group.write_flops),
        ..Row::default()
    })
}

/// What the newest tokens take more in 16 bits, in one layer, added up over the steps. They are among those that are read.
fn residual(group: &Group, prompt: u32, steps: u32) -> Option<u64> {
    if group.residual.is_none() {
        return Some(0);
    }
    let growing = group.keep.full_at(prompt).map_or(steps, |full| full.saturating_sub(prompt).min(steps));
    let (start, end) = (group.keep.tokens(prompt, prompt), group.keep.tokens(prompt, prompt.saturating_add(steps)));
    let flat = u64::from(steps - growing).checked_mul(group.residual.bytes(end))?;
    group.residual.summed(start, growing)?.checked_add(flat)
}

/// Tokens kept in each of `steps` decode steps, added up.
fn summed(keep: Keep, prompt: u32, steps: u32) -> Option<u64> {
    let growing = keep.full_at(prompt).map_or(steps, |full| full.saturating_sub(prompt).min(steps));
    let (start, end) = (keep.tokens(prompt, prompt), keep.tokens(prompt, prompt.saturating_add(steps)));
    let (rising, flat) = (u64::from(growing), u64::from(steps - growing));
    (rising * u64::from(start)).checked_add(rising * (rising + 1) / 2)?.checked_add(flat * u64::from(end))
}

/// The rows as a batch.
pub(super) fn batch(
    id: u32,
    workload: &Workload,
    scenario: &Scenario,
    shape: &Shape,
    rows: &[Row],
) -> Result<RecordBatch> {
    let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(|_| value))) };
    let u64s = |of: fn(&Row) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(of))) };
    let u32s = |of: fn(&Row) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(of))) };
    let phase = |row: &Row| if row.is_decode { "decode" } else { "prefill" };
    let columns: Vec<ArrayRef> = vec![
        text(&workload.name),
        text(&scenario.model.name),
        text(&scenario.policy.name()),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| workload.request_ids[row.request]))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(phase))),
        u32s(|row| row.first_step),
        u32s(|row| row.last_step),
        Arc::new(UInt16Array::from_iter_values(rows.iter().map(|row| row.group as u16))),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| shape.groups[row.group].layers))),
        u32s(|row| row.kept),
        u64s(|row| row.peak_bytes),
        u64s(|row| row.stored_bytes),
        u64s(|row| row.read_bytes),
        u64s(|row| row.written_bytes),
        u64s(|row| row.lower_stored_bytes),
        u64s(|row| row.lower_read_bytes),
        u64s(|row| row.lower_written_bytes),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.extra_flops))),
        Arc::new(UInt32Array::from_value(id, rows.len())),
    ];
    Ok(RecordBatch::try_new(DEMAND.arrow(), columns)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::KvShape;
    use crate::policy::quantize::Residual;
    use crate::policy::{Beside, Budget, Lower};

    fn group(keep: Keep) -> Group {
        let kv = KvShape {
            attention: Attention::Full,
            query_heads: 4,
            kv_heads: 2,
            key_dim: 8,
            value_dim: 8,
            macs_per_pair: 64.0,
            prefill_macs_per_pair: 64.0,
        };
        Group {
            model_group: 0,
            layers: 3,
            kv,
            keep,
            format: "bf16".to_owned(),
            token_bytes: 64,
            held_bytes: 64,
            residual: Residual::default(),
            read_tokens: None,
            index_bytes: 0,
            is_16bit: true,
            read_flops: 0.0,
            write_flops: 0.0,
            score_flops: 0.0,
            beside: None,
            lower: None,
        }
    }

    /// The closed form against adding step by step.
    #[test]
    fn decode_reads_are_the_sum_over_steps() {
        let keeps = [
            Keep::ALL,
            Keep::at_most(12),
            Keep::fixed(Budget::Tokens(20)),
            Keep::fixed(Budget::Ratio(0.5)),
            Keep { total: Some(9), ..Keep::of_prompt(Budget::Tokens(4)) },
            Keep::of_prompt(Budget::Ratio(0.5)),
        ];
        for keep in keeps {
            for (prompt, steps) in [(10, 1), (10, 7), (3, 40), (30, 5)] {
                // No layer reads more than it can address.
                let most: u64 = (1..=steps).map(|i| u64::from(prompt + i) * 3 * 64).sum();
                assert!(decode(&group(keep), prompt, steps).unwrap().read_bytes <= most);
                let slow: u64 = (1..=steps).map(|i| u64::from(keep.tokens(prompt, prompt + i)) * 3 * 64).sum();
                assert_eq!(decode(&group(keep), prompt, steps).unwrap().read_bytes, slow, "{keep:?} {prompt} {steps}");
            }
        }
    }

    /// What is held of dropped tokens here and in a lower tier, against adding step by step.
    #[test]
    fn dropped_tokens_are_counted_where_they_are_held() {
        let (beside, lower) = (
            Beside { token_bytes: 5, is_attended: true, read_flops: 2.0 },
            Lower { token_bytes: 64, fetched_tokens: 6 },
        );
        let keeps = [
            Keep::at_most(12),
            Keep::fixed(Budget::Tokens(9)),
            Keep::of_prompt(Budget::Ratio(0.5)),
            Keep { retained: 0.3, ..Keep::of_prompt(Budget::Tokens(4)) },
            Keep { retained: 0.3, ..Keep::at_most(5) },
        ];
        for keep in keeps {
            let with =
                Group { beside: Some(beside), lower: Some(lower), read_flops: 1.0, ..group(Keep { extra: 6, ..keep }) };
            for (prompt, steps) in [(10, 1), (10, 7), (3, 40), (30, 5), (31, 17)] {
                let near = |context: u32| u64::from(keep.tokens(prompt, context));
                let read = |context: u32| (near(context) + 6).min(u64::from(context));
                let far = |context: u32| u64::from(context) - near(context);
                let rest = |context: u32| u64::from(context) - read(context);
                let contexts = || prompt + 1..=prompt + steps;
                let (row, end) = (decode(&with, prompt, steps).unwrap(), prompt + steps);
                let slow: u64 = contexts().map(|c| 3 * (64 * read(c) + 5 * rest(c))).sum();
                assert_eq!(row.read_bytes, slow, "{keep:?} {prompt} {steps}");
                let flops: u64 = contexts().map(|c| 3 * (read(c) + 2 * rest(c))).sum();
                assert!((row.extra_flops - flops as f64).abs() < 1e-9);
                assert_eq!(row.stored_bytes, 3 * (64 * read(end) + 5 * rest(end)));
                assert_eq!(row.lower_read_bytes, contexts().map(|c| 3 * 64 * (read(c) - near(c))).sum::<u64>());
                assert_eq!(row.lower_stored_bytes, 3 * 64 * far(end));
                let first = prefill(&with, prompt);
                assert_eq!(first.lower_written_bytes + row.lower_written_bytes, row.lower_stored_bytes);
                assert_eq!(first.lower_stored_bytes, 3 * 64 * far(prompt));
                assert_eq!(first.stored_bytes, 3 * (64 * read(prompt) + 5 * rest(prompt)));
                assert!(first.peak_bytes >= first.stored_bytes && row.peak_bytes >= row.stored_bytes);
            }
        }
    }

    /// A step reads the index of all that is stored, and of the rest no more than its pages.
    #[test]
    fn pages_are_read_and_everything_is_stored() {
        let kivi = Group { residual: Residual { ring: 4, ring_bytes: 10, tail: 3, tail_bytes: 1 }, ..group(Keep::ALL) };
        for (prompt, steps) in [(0, 1), (1, 2), (7, 9), (8, 8), (2, 30)] {
            let by_step: u64 = (1..=steps).map(|step| 3 * kivi.bytes_of(prompt + step)).sum();
            let row = decode(&kivi, prompt, steps).unwrap();
            assert_eq!(row.read_bytes, by_step, "{prompt} {steps}");
            assert_eq!(row.stored_bytes, 3 * kivi.bytes_of(prompt + steps));
        }
        let paged = Group { read_tokens: Some(12), index_bytes: 4, ..group(Keep::ALL) };
        let row = decode(&paged, 10, 7).unwrap();
        let read: u64 = (11..=17).map(|context: u64| 3 * (64 * context.min(12) + 4 * context)).sum();
        assert_eq!((row.read_bytes, row.stored_bytes, row.kept), (read, 17 * 3 * 68, 17));
        let row = prefill(&paged, 10);
        assert_eq!((row.read_bytes, row.stored_bytes, row.written_bytes), (10 * 3 * 64, 10 * 3 * 68, 10 * 3 * 68));
    }
}
