//! The `demand` table: bytes that a policy asks for, per request, phase and layer group, on no machine in particular.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array};

use crate::error::{Error, Result};
use crate::policy::{Group, Shape};
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
    pub extra_flops: f64,
}

/// Rows of all requests that were served: what is turned away asks for nothing.
///
/// # Errors
/// A request that asks for 2^64 bytes or more.
pub(super) fn rows(workload: &Workload, shape: &Shape, served: &[Served]) -> Result<Vec<Row>> {
    let mut rows = Vec::with_capacity(workload.len() * shape.groups.len() * 2);
    for request in (0..workload.len()).filter(|&at| served[at].fate == Fate::Finished) {
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
    let bytes = |tokens: u32| u64::from(tokens) * token_bytes(group);
    let whole = group.keep.total.map_or(prompt, |cap| cap.min(prompt));
    let kept = group.keep.tokens(prompt, prompt);
    let layers = f64::from(group.layers);
    let scoring = if group.keep.drops_of(prompt) { group.score_flops } else { 0.0 };
    Row {
        kept,
        peak_bytes: bytes(whole),
        stored_bytes: bytes(kept),
        read_bytes: bytes(whole),
        written_bytes: bytes(prompt),
        extra_flops: layers * f64::from(prompt) * (group.write_flops + scoring),
        ..Row::default()
    }
}

/// `steps` decode steps; step `i` attends to a context of `prompt + i` tokens.
fn decode(group: &Group, prompt: u32, steps: u32) -> Option<Row> {
    let (keep, context) = (group.keep, prompt.saturating_add(steps));
    let growing = keep.full_at(prompt).map_or(steps, |full| full.saturating_sub(prompt).min(steps));
    let (start, kept) = (u64::from(keep.tokens(prompt, prompt)), u64::from(keep.tokens(prompt, context)));
    let (rising, flat) = (u64::from(growing), u64::from(steps - growing));
    let attended = (rising * start).checked_add(rising * (rising + 1) / 2)?.checked_add(flat * kept)?;
    let bytes = token_bytes(group);
    let layers = f64::from(group.layers);
    Some(Row {
        is_decode: true,
        first_step: 1,
        last_step: steps,
        kept: kept as u32,
        peak_bytes: kept * bytes,
        stored_bytes: kept * bytes,
        read_bytes: attended.checked_mul(bytes)?,
        written_bytes: u64::from(steps) * bytes,
        extra_flops: layers * (attended as f64 * group.read_flops + f64::from(steps) * group.write_flops),
        ..Row::default()
    })
}

fn token_bytes(group: &Group) -> u64 {
    u64::from(group.layers) * group.token_bytes
}

/// The rows as a batch.
pub(super) fn batch(
    workload: &Workload,
    model: &str,
    policy: &str,
    shape: &Shape,
    rows: &[Row],
) -> Result<RecordBatch> {
    let text = |value: &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(rows.iter().map(|_| value))) };
    let u64s = |of: fn(&Row) -> u64| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(rows.iter().map(of))) };
    let u32s = |of: fn(&Row) -> u32| -> ArrayRef { Arc::new(UInt32Array::from_iter_values(rows.iter().map(of))) };
    let phase = |row: &Row| if row.is_decode { "decode" } else { "prefill" };
    let columns: Vec<ArrayRef> = vec![
        text(&workload.name),
        text(model),
        text(policy),
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
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.extra_flops))),
    ];
    Ok(RecordBatch::try_new(DEMAND.arrow(), columns)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Attention, KvShape};
    use crate::policy::{Budget, Keep};

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
            is_16bit: true,
            read_flops: 0.0,
            write_flops: 0.0,
            score_flops: 0.0,
        }
    }

    /// The closed form against adding step by step.
    #[test]
    fn decode_reads_are_the_sum_over_steps() {
        let keeps = [
            Keep::ALL,
            Keep { prompt: None, total: Some(12) },
            Keep { prompt: Some(Budget::Tokens(4)), total: Some(9) },
            Keep { prompt: Some(Budget::Ratio(0.5)), total: None },
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
}
