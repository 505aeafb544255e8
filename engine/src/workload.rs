//! The requests that a replay serves, as columns, and what their prefixes have in common.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use crate::error::{Error, Result};
use crate::number::Numbers;

/// The longest time over which requests may arrive: half of what the clock can count.
pub const LONGEST_NS: i64 = 1 << 62;

/// Requests in order of arrival. KV blocks that share an id share a dense number, from 0 by first appearance.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// What the user calls it.
    pub name: String,
    /// The store's request ids.
    pub request_ids: Vec<u64>,
    /// Arrival after the first one, nanoseconds.
    pub arrival_ns: Vec<i64>,
    /// Prompt lengths, tokens.
    pub prompt: Vec<u32>,
    /// Output lengths, tokens.
    pub output: Vec<u32>,
    /// Tokens of one block id; 0 where the trace has none.
    pub unit_tokens: u32,
    /// Request `i` owns `units[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<u32>,
    /// Dense block numbers.
    pub units: Vec<u32>,
    /// Distinct blocks.
    pub distinct_units: u32,
}

/// What the prefixes of a workload have in common when nothing is ever evicted: each request looks its leading blocks up,
/// then all of its blocks are inserted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrefixCounts {
    /// Block references.
    pub references: u64,
    /// Distinct blocks.
    pub distinct: u64,
    /// References found while all before them in the prompt were found.
    pub leading_hits: u64,
    /// Prompt tokens in those blocks over all prompt tokens.
    pub token_ratio: f64,
    /// The same over full blocks only: hits of full blocks over full blocks.
    pub full_block_ratio: f64,
    /// Mean over requests of the share of prompt tokens in leading hits.
    pub mean_request_ratio: f64,
}

impl Workload {
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.prompt.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.prompt.is_empty()
    }

    /// Block numbers of request `index`.
    pub fn units_of(&self, index: usize) -> &[u32] {
        &self.units[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    /// From first to last arrival, nanoseconds.
    pub fn span_ns(&self) -> i64 {
        self.arrival_ns.last().copied().unwrap_or(0)
    }

    /// The same requests arriving `rate` times as fast.
    ///
    /// # Errors
    /// Arrivals over more than [`LONGEST_NS`], which leaves no room for the clock of a replay.
    pub fn at_rate(&self, rate: f64) -> Result<Self> {
        let span = self.span_ns() as f64 / rate;
        if span > LONGEST_NS as f64 {
            return Err(Error::run(format!("the requests of `{}` arrive over {:.0} years", self.name, span / 3.15e16))
                .hint("a replay covers up to 146 years; check the time unit of the trace and the rate"));
        }
        let arrival_ns = self.arrival_ns.iter().map(|&at| (at as f64 / rate).round() as i64).collect();
        Ok(Self { arrival_ns, ..self.clone() })
    }
}

/// Builds a workload from rows of the canonical `requests` table.
///
/// # Errors
/// No rows, a missing column, an unknown arrival, block ids whose size differs between requests.
pub fn from_requests(name: &str, batches: &[RecordBatch]) -> Result<Workload> {
    let mut rows = Vec::new();
    for (at, batch) in batches.iter().enumerate() {
        let arrival =
            column(batch, "arrival_ns")?.as_primitive_opt::<Int64Type>().ok_or_else(|| wrong("arrival_ns"))?;
        for row in 0..batch.num_rows() {
            if arrival.is_null(row) {
                return Err(Error::run(format!("the requests of `{name}` have no arrival times"))
                    .hint("use `mode = \"captured\"`, which takes the steps as they were recorded"));
            }
            rows.push((arrival.value(row), at, row));
        }
    }
    // Stable: requests of one instant keep the order of the trace.
    rows.sort_by_key(|row| row.0);
    let Some(&(origin, ..)) = rows.first() else {
        return Err(Error::run(format!("`{name}` has no requests")));
    };
    let mut workload = Workload {
        name: name.to_owned(),
        request_ids: Vec::with_capacity(rows.len()),
        arrival_ns: rows.iter().map(|row| row.0.saturating_sub(origin)).collect(),
        prompt: Vec::with_capacity(rows.len()),
        output: Vec::with_capacity(rows.len()),
        unit_tokens: 0,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: 0,
    };
    let mut numbers = Numbers::default();
    for (_, at, row) in rows {
        append(&mut workload, &mut numbers, &batches[at], row)?;
    }
    workload.distinct_units = numbers.len() as u32;
    Ok(workload)
}

fn append(workload: &mut Workload, numbers: &mut Numbers, batch: &RecordBatch, row: usize) -> Result<()> {
    let u32_of = |name: &str| column(batch, name)?.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong(name));
    let ids = column(batch, "request_id")?.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("request_id"))?;
    workload.request_ids.push(ids.value(row));
    workload.prompt.push(u32_of("prompt_tokens")?.value(row));
    workload.output.push(u32_of("output_tokens")?.value(row));
    let hashes = column(batch, "block_hashes")?.as_list_opt::<i32>().ok_or_else(|| wrong("block_hashes"))?;
    let sizes = u32_of("block_tokens")?;
    if hashes.is_valid(row) && sizes.is_valid(row) {
        let size = sizes.value(row);
        if size == 0 || (workload.unit_tokens != 0 && workload.unit_tokens != size) {
            let found = format!("`{}` mixes blocks of {} and {size} tokens", workload.name, workload.unit_tokens);
            return Err(Error::data(found).hint("replay one source at a time"));
        }
        workload.unit_tokens = size;
        let values = hashes.value(row);
        let values = values.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("block_hashes"))?;
        numbers.number(values.values(), &mut workload.units)?;
    }
    let end = u32::try_from(workload.units.len())
        .map_err(|_| Error::run(format!("`{}` has more than 2^32 block references", workload.name)))?;
    workload.offsets.push(end);
    Ok(())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let found = batch.column_by_name(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::data(format!("the requests have no column `{name}`")))
}

fn wrong(name: &str) -> Error {
    Error::data(format!("the column `{name}` of the requests has the wrong type"))
}

/// Counts prefix reuse without a capacity limit.
pub fn prefix_counts(workload: &Workload) -> PrefixCounts {
    let mut seen = vec![false; workload.distinct_units as usize];
    let mut counts = PrefixCounts {
        references: workload.units.len() as u64,
        distinct: u64::from(workload.distinct_units),
        ..PrefixCounts::default()
    };
    let (mut hit_tokens, mut full_hits, mut full_blocks, mut ratios) = (0_u64, 0_u64, 0_u64, 0.0);
    let unit = u64::from(workload.unit_tokens.max(1));
    for request in 0..workload.len() {
        let (units, prompt) = (workload.units_of(request), u64::from(workload.prompt[request]));
        let leading = units.iter().take_while(|&&number| seen[number as usize]).count() as u64;
        let tokens = (leading * unit).min(prompt);
        counts.leading_hits += leading;
        hit_tokens += tokens;
        let full = (prompt / unit).min(units.len() as u64);
        full_blocks += full;
        full_hits += leading.min(full);
        ratios += if prompt == 0 { 0.0 } else { tokens as f64 / prompt as f64 };
        for &number in units {
            seen[number as usize] = true;
        }
    }
    let prompts: u64 = workload.prompt.iter().map(|&tokens| u64::from(tokens)).sum();
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    counts.token_ratio = share(hit_tokens, prompts);
    counts.full_block_ratio = share(full_hits, full_blocks);
    counts.mean_request_ratio = if workload.is_empty() { 0.0 } else { ratios / workload.len() as f64 };
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_hits_stop_at_the_first_miss() {
        let workload = Workload {
            name: "three".to_owned(),
            request_ids: vec![0, 1, 2],
            arrival_ns: vec![0, 1, 2],
            prompt: vec![30, 25, 30],
            output: vec![1, 1, 1],
            unit_tokens: 10,
            offsets: vec![0, 3, 6, 9],
            units: vec![0, 1, 2, 0, 3, 2, 0, 1, 4],
            distinct_units: 5,
        };
        let counts = prefix_counts(&workload);
        assert_eq!((counts.references, counts.distinct, counts.leading_hits), (9, 5, 3));
        assert!((counts.token_ratio - 30.0 / 85.0).abs() < 1e-12);
        assert!((counts.full_block_ratio - 3.0 / 8.0).abs() < 1e-12);
        assert!((counts.mean_request_ratio - (0.0 + 10.0 / 25.0 + 20.0 / 30.0) / 3.0).abs() < 1e-12);
    }
}
