//! The rules that the rows of a recording keep.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{Float32Type, UInt16Type, UInt32Type, UInt64Type};
use engine::error::{Error, Result};
use engine::schema::Table;

/// How far the masses of a row may be from 1: recorders keep about 11 bits of a mass.
const MASS_ERROR: f64 = 2e-3;

/// What `recording.json` says about the numbers in the rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) layers: u32,
    pub(super) query_heads: u32,
    pub(super) kv_heads: u32,
    pub(super) block_tokens: u32,
}

/// What the other tables need of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Its number within the source, from 0.
    pub(super) number: u64,
    /// Tokens of its prompt.
    prompt: u32,
    /// Tokens of its prompt and its output.
    total: u64,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) column: &'static str,
    pub(super) code: &'static str,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Checks requests, and numbers the good ones. One entry per row.
pub(super) fn requests(batch: &RecordBatch, known: &mut BTreeMap<u64, Request>) -> Result<Vec<Option<Fault>>> {
    let ids = column::<UInt64Type>(batch, "request_id")?;
    let prompt = column::<UInt32Type>(batch, "prompt_tokens")?;
    let output = column::<UInt32Type>(batch, "output_tokens")?;
    let parents = column::<UInt64Type>(batch, "parent_request_id").ok();
    let tokens = list(batch, "prompt_token_ids");
    let mut faults = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let id = ids.value(row);
        let parent = parents.filter(|parents| parents.is_valid(row)).map(|parents| parents.value(row));
        let listed = tokens.filter(|tokens| tokens.is_valid(row)).map(|tokens| tokens.value_length(row));
        let wrong = if known.contains_key(&id) {
            Some(fault("request_id", "duplicate_id", "each request once", format!("{id} again")))
        } else if let Some(parent) = parent.filter(|parent| !known.contains_key(parent)) {
            Some(fault("parent_request_id", "unknown_request", "an earlier request", parent.to_string()))
        } else {
            listed.filter(|listed| u32::try_from(*listed) != Ok(prompt.value(row))).map(|listed| {
                fault("prompt_token_ids", "list_length", format!("{} token ids", prompt.value(row)), listed.to_string())
            })
        };
        if wrong.is_none() {
            let (number, prompt) = (known.len() as u64, prompt.value(row));
            let total = u64::from(prompt) + u64::from(output.value(row));
            known.insert(id, Request { number, prompt, total });
        }
        faults.push(wrong);
    }
    Ok(faults)
}

/// Checks the rows of any other table. One entry per row, the first broken rule.
pub(super) fn rows(
    table: &Table,
    batch: &RecordBatch,
    shape: &Shape,
    requests: &BTreeMap<u64, Request>,
) -> Result<Vec<Option<Fault>>> {
    let ids = column::<UInt64Type>(batch, "request_id")?;
    let mut faults: Vec<Option<Fault>> = vec![None; batch.num_rows()];
    let mut found: Vec<Option<Request>> = Vec::with_capacity(batch.num_rows());
    for (row, fault_of_row) in faults.iter_mut().enumerate() {
        let request = requests.get(&ids.value(row)).copied();
        if request.is_none() {
            *fault_of_row =
                Some(fault("request_id", "unknown_request", "a request of this recording", ids.value(row).to_string()));
        }
        found.push(request);
    }
    for (name, limit) in [("layer", shape.layers), ("kv_head", shape.kv_heads), ("query_head", shape.query_heads)] {
        if let Ok(values) = column::<UInt16Type>(batch, name) {
            note(&mut faults, |row| {
                let value = values.value(row);
                (u32::from(value) >= limit)
                    .then(|| fault(name, "out_of_range", format!("a number below {limit}"), value.to_string()))
            });
        }
    }
    match table.name {
        "attention" => attention(batch, shape, &mut faults)?,
        "prefill_scores" => scores(batch, shape, &found, &mut faults)?,
        "kv_stats" => stats(batch, &found, &mut faults)?,
        "kv_vectors" => {
            let tokens = column::<UInt32Type>(batch, "token")?;
            note(&mut faults, |row| {
                let (token, total) = (tokens.value(row), found[row]?.total);
                let wrong = u64::from(token) >= total;
                wrong.then(|| fault("token", "out_of_range", format!("a position below {total}"), token.to_string()))
            });
        }
        _ => {}
    }
    Ok(faults)
}

/// Adds a fault to rows that have none.
fn note(faults: &mut [Option<Fault>], rule: impl Fn(usize) -> Option<Fault>) {
    for (row, known) in faults.iter_mut().enumerate() {
        if known.is_none() {
            *known = rule(row);
        }
    }
}

fn attention(batch: &RecordBatch, shape: &Shape, faults: &mut [Option<Fault>]) -> Result<()> {
    let context = column::<UInt32Type>(batch, "context_tokens")?;
    let block = column::<UInt16Type>(batch, "block_tokens")?;
    note(faults, |row| {
        let block = block.value(row);
        let wrong = u32::from(block) != shape.block_tokens;
        wrong.then(|| {
            fault(
                "block_tokens",
                "block_tokens",
                format!("{} as in `recording.json`", shape.block_tokens),
                block.to_string(),
            )
        })
    });
    for name in ["mass", "mass_max", "page_bound"] {
        let Some(lists) = list(batch, name) else { continue };
        note(faults, |row| {
            let blocks = context.value(row).div_ceil(u32::from(block.value(row)).max(1));
            let length = lists.is_valid(row).then(|| lists.value_length(row))?;
            (u32::try_from(length) != Ok(blocks)).then(|| {
                let tokens = context.value(row);
                fault(name, "list_length", format!("{blocks} blocks for {tokens} tokens"), length.to_string())
            })
        });
    }
    let Some(masses) = list(batch, "mass") else { return Err(not_as_cast("mass")) };
    let Some(values) = masses.values().as_primitive_opt::<Float32Type>() else { return Err(not_as_cast("mass")) };
    let offsets = masses.value_offsets();
    note(faults, |row| {
        let range = offsets[row] as usize..offsets[row + 1] as usize;
        let row = &values.values()[range];
        let sum: f64 = row.iter().map(|mass| f64::from(*mass)).sum();
        if let Some(mass) = row.iter().find(|mass| **mass < 0.0) {
            return Some(fault("mass", "mass_sign", "masses of at least zero", mass.to_string()));
        }
        // Written so that a NaN is a fault.
        let good = (sum - 1.0).abs() <= MASS_ERROR;
        (!good).then(|| {
            fault("mass", "mass_sum", format!("masses that sum to 1 within {MASS_ERROR}"), format!("{sum:.6}"))
        })
    });
    Ok(())
}

fn scores(batch: &RecordBatch, shape: &Shape, of: &[Option<Request>], faults: &mut [Option<Fault>]) -> Result<()> {
    let Some(lists) = list(batch, "score") else { return Err(not_as_cast("score")) };
    note(faults, |row| {
        let tokens = of[row]?.prompt;
        let blocks = tokens.div_ceil(shape.block_tokens.max(1));
        let length = lists.value_length(row);
        let fits = u32::try_from(length).is_ok_and(|length| length == tokens || length == blocks);
        (!fits).then(|| {
            fault("score", "list_length", format!("{tokens} scores, or {blocks} of blocks"), length.to_string())
        })
    });
    Ok(())
}

fn stats(batch: &RecordBatch, of: &[Option<Request>], faults: &mut [Option<Fault>]) -> Result<()> {
    let Some(first) = list(batch, "k_norm") else { return Err(not_as_cast("k_norm")) };
    note(faults, |row| {
        let request = of[row]?;
        let length = first.value_length(row);
        let fits = u64::try_from(length).is_ok_and(|n| n >= u64::from(request.prompt) && n <= request.total);
        let expected = format!("{} to {} tokens", request.prompt, request.total);
        (!fits).then(|| fault("k_norm", "list_length", expected, length.to_string()))
    });
    for name in ["v_norm", "k_cos_next_layer", "v_cos_next_layer"] {
        let Some(lists) = list(batch, name) else { continue };
        note(faults, |row| {
            let length = lists.is_valid(row).then(|| lists.value_length(row))?;
            let wanted = first.value_length(row);
            (length != wanted)
                .then(|| fault(name, "list_length", format!("{wanted} tokens as in `k_norm`"), length.to_string()))
        });
    }
    Ok(())
}

fn fault(column: &'static str, code: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Fault {
    Fault { column, code, expected: expected.into(), found: found.into() }
}

/// A column of a batch that is in the types of the schema already.
fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a PrimitiveArray<T>> {
    batch.column_by_name(name).and_then(|array| array.as_primitive_opt::<T>()).ok_or_else(|| not_as_cast(name))
}

fn list<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a ListArray> {
    batch.column_by_name(name).and_then(|array| array.as_list_opt::<i32>())
}

fn not_as_cast(name: &str) -> Error {
    Error::run(format!("column `{name}` does not have the type of the schema"))
}
