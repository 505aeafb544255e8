//! The rules that the rows of a recording keep.

use std::collections::BTreeMap;
use std::ops::Range;

use arrow::array::{Array, ArrowPrimitiveType, AsArray, ListArray, PrimitiveArray, RecordBatch, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float32Type, UInt16Type, UInt32Type, UInt64Type};
use engine::error::{Error, Result};
use engine::schema::{Table, Type};

use crate::ingest::problem::quoted;

/// What names a row of each table, behind its request. A step may come several times, as a prefill in chunks does, if
/// it names other engine steps or, where it names none, another context.
const KEYS: [(&str, &[&str]); 6] = [
    ("steps", &["step", "engine_step", "context_tokens"]),
    ("attention", &["step", "layer", "kv_head"]),
    ("prefill_scores", &["channel", "rows", "layer", "kv_head"]),
    ("kv_stats", &["layer", "kv_head"]),
    ("queries", &["step", "layer", "query_head"]),
    ("kv_vectors", &["layer", "kv_head", "token"]),
];

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
    for column in table.columns.iter().filter(|column| matches!(column.kind, Type::F32 | Type::ListF32 | Type::Vector))
    {
        finite(batch, column.name, &mut faults);
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
        "steps" => steps(batch, &mut faults)?,
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

/// Where the values of a row are.
type Ranges<'a> = Box<dyn Fn(usize) -> Range<usize> + 'a>;

/// Sets aside rows with a NaN or an infinity in a column.
fn finite(batch: &RecordBatch, name: &'static str, faults: &mut [Option<Fault>]) {
    let Some(array) = batch.column_by_name(name) else { return };
    let (values, range): (&[f32], Ranges<'_>) = if let Some(single) = array.as_primitive_opt::<Float32Type>() {
        (single.values(), Box::new(|row| row..row + usize::from(single.is_valid(row))))
    } else if let Some(lists) = array.as_list_opt::<i32>()
        && let Some(values) = lists.values().as_primitive_opt::<Float32Type>()
    {
        let offsets = lists.value_offsets();
        (values.values(), Box::new(move |row| offsets[row] as usize..offsets[row + 1] as usize))
    } else if let Some(lists) = array.as_fixed_size_list_opt()
        && let Some(values) = lists.values().as_primitive_opt::<Float32Type>()
    {
        let width = lists.value_length() as usize;
        (values.values(), Box::new(move |row| row * width..(row + 1) * width))
    } else {
        return;
    };
    note(faults, |row| {
        let values = values.get(range(row)).unwrap_or_default();
        let at = values.iter().position(|value| !value.is_finite())?;
        Some(fault(name, "not_finite", "finite numbers", format!("{} as number {at}", values[at])))
    });
}

fn steps(batch: &RecordBatch, faults: &mut [Option<Fault>]) -> Result<()> {
    let context = column::<UInt32Type>(batch, "context_tokens")?;
    let new = column::<UInt32Type>(batch, "new_tokens")?;
    let phases = batch.column_by_name("phase").and_then(|array| array.as_string_opt::<i32>());
    let phases = phases.ok_or_else(|| not_as_cast("phase"))?;
    note(faults, |row| {
        let phase = phases.value(row);
        let known = phase == "prefill" || phase == "decode";
        (!known).then(|| fault("phase", "unknown_phase", "`prefill` or `decode`", quoted(phase.as_bytes())))
    });
    note(faults, |row| {
        let (new, context) = (new.value(row), context.value(row));
        let expected = || format!("at most {context} as in `context_tokens`");
        (new > context).then(|| fault("new_tokens", "out_of_range", expected(), new.to_string()))
    });
    Ok(())
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

/// Which rows there were, as one bit each: rows of a table that come again are faults.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Sets of 64 neighbouring rows, by table, request and place; rows that stand together share one.
    rows: BTreeMap<Neighbours, u64>,
    /// A number for each channel with its rows.
    channels: BTreeMap<(String, Option<u64>), u64>,
}

/// Table, request, what else names the rows, and their place over 64.
type Neighbours = (&'static str, u64, u64, u64);

impl Seen {
    /// Notes the good rows of a batch; those that were there before are faults.
    pub(super) fn note(
        &mut self,
        table: &'static Table,
        batch: &RecordBatch,
        shape: &Shape,
        requests: &BTreeMap<u64, Request>,
        faults: &mut [Option<Fault>],
    ) -> Result<()> {
        let Some((_, key)) = KEYS.iter().find(|(name, _)| *name == table.name) else { return Ok(()) };
        let ids = column::<UInt64Type>(batch, "request_id")?;
        let columns: Vec<(&'static str, UInt64Array)> =
            key.iter().filter_map(|name| Some((*name, numbers(batch, name)?))).collect();
        let channels = batch.column_by_name("channel").and_then(|array| array.as_string_opt::<i32>());
        for (row, fault_of_row) in faults.iter_mut().enumerate() {
            let Some(request) = requests.get(&ids.value(row)).filter(|_| fault_of_row.is_none()) else { continue };
            let number = |name: &str| {
                let (_, of) = columns.iter().find(|(column, _)| *column == name)?;
                of.is_valid(row).then(|| of.value(row))
            };
            let channel = channels.map_or(0, |channels| self.channel(channels.value(row), number("rows")));
            let (name, other, place) = place(table.name, shape, &number);
            let bits = self.rows.entry((name, request.number, channel | other, place >> 6)).or_default();
            let bit = 1 << (place & 63);
            if *bits & bit != 0 {
                let again = key.iter().filter_map(|name| Some(format!("{name} {}", number(name)?)));
                let found = format!("{} again", again.collect::<Vec<String>>().join(", "));
                *fault_of_row = Some(fault(key[0], "duplicate_row", "each row of a request once", found));
            }
            *bits |= bit;
        }
        Ok(())
    }

    /// A number for a channel, the same one each time.
    fn channel(&mut self, name: &str, rows: Option<u64>) -> u64 {
        let next = self.channels.len() as u64;
        *self.channels.entry((name.to_owned(), rows)).or_insert(next)
    }
}

/// The numbers of a column, if it has any.
fn numbers(batch: &RecordBatch, name: &str) -> Option<UInt64Array> {
    let array = batch.column_by_name(name).filter(|array| array.data_type().is_integer())?;
    Some(cast(array, &DataType::UInt64).ok()?.as_primitive_opt::<UInt64Type>()?.clone())
}

/// Where a row stands among those of its request: a set of places, what else names it, and its place. Rows that follow
/// each other have neighbouring places. Layers and heads are within the shape, so that nothing overflows.
fn place(table: &'static str, shape: &Shape, number: &dyn Fn(&str) -> Option<u64>) -> (&'static str, u64, u64) {
    let step = number("step").unwrap_or(0);
    if table == "steps" {
        // The context grows with the step, and so does the engine's step, so that their difference seldom changes.
        let context = number("context_tokens").unwrap_or(0).wrapping_sub(step);
        let engine = number("engine_step").map(|engine| engine.wrapping_sub(step));
        return engine.map_or((table, context, step), |engine| ("steps of an engine", engine, step));
    }
    let heads = u64::from(if table == "queries" { shape.query_heads } else { shape.kv_heads });
    let head = number("query_head").or(number("kv_head")).unwrap_or(0);
    let in_step = number("layer").unwrap_or(0) * heads + head;
    match number("token") {
        Some(token) => (table, 0, (in_step << 32) | token),
        None => (table, 0, step * u64::from(shape.layers) * heads + in_step),
    }
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
