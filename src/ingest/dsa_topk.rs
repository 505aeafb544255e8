//! Selected positions of DeepSeek's sparse attention, as JSON lines: one line is one layer in one decode step.
//!
//! ```text
//! {"event": "dsa_topk", "request_id": "r0", "layer_id": 0, "step_idx": 4096, "seq_len_current": 4097,
//!  "selected_token_pos": [4096, 17, 0, ...], "block_size_tokens": 64, "selected_block_ids": [64, 0, ...],
//!  "unique_blocks": 31, "tokens_per_touched_block": {"mean": 66.1, "p50": 70, "p95": 128}, "offset_min": 0, ...,
//!  "scores_stats": {...}, "kv_fetch": {"hbm": {"hit_blocks": 31, "bytes_read": 2359296, "read_ops": 31,
//!  "latency_us": null, "batch_size": 1}, "local_pool": {...}, "remote_pool": {...}}, "prefix": {...}}
//! ```
//!
//! A line becomes a row of `selections`. It is none of `attention`: the indexer's selection says what was read, not how
//! the mass was spread over it, and masses that sum to 1 would be made up. Positions stay in the order of the file, highest
//! score first, so that a smaller budget is a prefix of the list. Of `kv_fetch` bytes and latencies are kept.
//!
//! There are no lines of the prompt: the `step_idx` of a request's first line is the length of its prompt, and step 1
//! here. The requests follow from the lines; each has as many output tokens as steps were seen. Lines of several requests
//! may be mixed, and those of one request must not go back.
//!
//! Block ids, counts of blocks, offsets and statistics follow from the positions or are means, and are not kept. No
//! recorded file was at hand: the form is the documented one.
//!
//! Refused, line by line: what is no JSON object, another event, a missing or repeated key, a broken number, a position
//! twice or beyond `seq_len_current`, a step before that of the line before, a layer beyond 65,535.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, ListBuilder, RecordBatch, UInt16Builder, UInt32Builder, UInt64Builder};
use engine::error::Result;
use engine::schema::canonical::SELECTIONS;
use engine::schema::list_u32;

use super::json::{Scan, bad_at, named};
use super::problem::Bad;
use super::requests::{Request, Requests};
use super::rows::{self, Outcome, UNKNOWN_KEY};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::sparse::Sparse;
use super::time::TimeUnit;
use super::walk::{self, Unknown, has_keys};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "dsa_topk",
    doc: "positions selected by DeepSeek's sparse attention, one JSON line per layer and decode step",
    spec: "https://github.com/awesome-mini-project/DeepSeek-V3.2-Exp",
    verified: false,
    sniff,
    read,
};

const DERIVED: Event = Event { severity: Severity::Info, code: "derived_key", advice: None };

/// Keys that follow from the positions, or that only sum up.
const FOLLOW: [&[u8]; 8] = [
    b"selected_block_ids",
    b"unique_blocks",
    b"tokens_per_touched_block",
    b"offset_min",
    b"offset_p50",
    b"offset_max",
    b"scores_stats",
    b"prefix",
];

/// Positions of a batch: a few hundred lines of 2,048 each.
const POSITIONS: usize = 1 << 20;
const ROWS: usize = 64 << 10;

/// The tiers of `kv_fetch`.
const TIERS: [&[u8]; 3] = [b"hbm", b"local_pool", b"remote_pool"];

fn sniff(head: &Head<'_>) -> Sniff {
    let line = walk::first_line(head.bytes);
    if head.directory || !line.starts_with(b"{") {
        return Sniff::No;
    }
    let named = line.windows(10).any(|window| window == b"\"dsa_topk\"");
    match (named, has_keys(line, &["selected_token_pos"])) {
        (true, true) => Sniff::Yes,
        (true, false) => Sniff::Nearly("the first line lacks `selected_token_pos`".to_owned()),
        (false, true) => Sniff::Nearly("the event of the first line is not `dsa_topk`".to_owned()),
        (false, false) => Sniff::No,
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_choice("dsa_topk", "its rows have no instants, and name their blocks")?;
    let mut reader = Reader::new();
    rows::each(path, &[], lines, sink, &mut |line, sink| reader.line(line, sink))?;
    reader.finish(sink)?;
    let block_tokens = reader.block_tokens;
    Ok(Settings { time_unit: None, clock: None, block_tokens, ..Settings::default() })
}

/// A line.
#[derive(Debug, Default)]
struct Row<'a> {
    event: Option<Cow<'a, str>>,
    request: Option<Cow<'a, str>>,
    layer: Option<u32>,
    step: Option<u32>,
    context: Option<u32>,
    block: Option<u32>,
    positions: Option<Vec<u32>>,
    /// Bytes and latency of each tier.
    fetched: [(Option<u64>, Option<i64>); 3],
    unknown: Unknown<'a>,
}

/// A request that follows from its lines.
struct Seen {
    key: Option<String>,
    prompt: u32,
    latest: u32,
}

struct Reader {
    /// In the order of their first lines.
    requests: Vec<Seen>,
    numbers: BTreeMap<Option<String>, usize>,
    block_tokens: Option<u32>,
    request: UInt64Builder,
    step: UInt32Builder,
    layer: UInt16Builder,
    context: UInt32Builder,
    block: UInt16Builder,
    positions: ListBuilder<UInt32Builder>,
    listed: usize,
    bytes: [Sparse<UInt64Builder>; 3],
    latencies: [Sparse<Int64Builder>; 3],
    /// Positions of a line, to find those that come twice.
    sorted: Vec<u32>,
}

impl Reader {
    fn new() -> Self {
        Self {
            requests: Vec::new(),
            numbers: BTreeMap::new(),
            block_tokens: None,
            request: UInt64Builder::new(),
            step: UInt32Builder::new(),
            layer: UInt16Builder::new(),
            context: UInt32Builder::new(),
            block: UInt16Builder::new(),
            positions: list_u32(),
            listed: 0,
            bytes: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            latencies: std::array::from_fn(|_| Sparse::new(Int64Builder::new())),
            sorted: Vec::new(),
        }
    }

    fn line(&mut self, line: Line<'_>, sink: &mut Sink<'_>) -> Result<Outcome> {
        let row = match parse(line.bytes) {
            Ok(row) => row,
            Err(bad) => return Ok(Outcome::Bad(bad.into())),
        };
        if let Err(bad) = self.take(&row, line.bytes) {
            return Ok(Outcome::Bad(bad.into()));
        }
        for (key, at) in &row.unknown {
            let at = (Some(line.number), Some(line.offset + *at as u64));
            if FOLLOW.contains(key) {
                let message = format!("the key {} follows from the positions or sums up, and is not kept", named(key));
                sink.log(DERIVED, &message, at.0, at.1);
            } else {
                let message = format!("the key {} is not part of the format", named(key));
                sink.log(UNKNOWN_KEY, &message, at.0, at.1);
            }
        }
        if self.listed >= POSITIONS || self.step.values_slice().len() >= ROWS {
            self.flush(sink)?;
        }
        Ok(Outcome::Row)
    }

    fn take(&mut self, row: &Row<'_>, line: &[u8]) -> std::result::Result<(), Bad> {
        let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
        let whole = |code: &'static str, expected: String, found: String| Bad { at: 0, code, expected, found };
        let event = row.event.as_deref().ok_or_else(|| missing("event"))?;
        if event != "dsa_topk" {
            return Err(whole("event", "the event `dsa_topk`".to_owned(), super::problem::quoted(event.as_bytes())));
        }
        let layer = row.layer.ok_or_else(|| missing("layer_id"))?;
        let step_index = row.step.ok_or_else(|| missing("step_idx"))?;
        let context = row.context.ok_or_else(|| missing("seq_len_current"))?;
        let positions = row.positions.as_deref().ok_or_else(|| missing("selected_token_pos"))?;
        let layer = u16::try_from(layer)
            .map_err(|_| whole("out_of_range", "`layer_id` of at most 65535".to_owned(), layer.to_string()))?;
        let block = row.block.unwrap_or(1);
        let block = u16::try_from(block).ok().filter(|block| *block > 0).ok_or_else(|| {
            whole("out_of_range", "`block_size_tokens` from 1 to 65535".to_owned(), block.to_string())
        })?;
        self.sorted.clear();
        self.sorted.extend_from_slice(positions);
        self.sorted.sort_unstable();
        if let Some(beyond) = self.sorted.last().filter(|position| **position >= context) {
            return Err(whole("out_of_range", format!("positions below {context}"), beyond.to_string()));
        }
        if let Some([twice, _]) = self.sorted.array_windows().find(|[one, next]| one == next) {
            return Err(whole("duplicate_position", "each position once".to_owned(), format!("{twice} twice")));
        }
        let (number, step) = self.step_of(row, step_index)?;
        self.block_tokens = self.block_tokens.or(row.block);
        self.request.append_value(number as u64);
        self.step.append_value(step);
        self.layer.append_value(layer);
        self.context.append_value(context);
        self.block.append_value(block);
        self.positions.values().append_slice(positions);
        self.positions.append(true);
        self.listed += positions.len();
        for (tier, (bytes, latency)) in row.fetched.iter().enumerate() {
            self.bytes[tier].push(*bytes);
            self.latencies[tier].push(*latency);
        }
        Ok(())
    }

    /// The request of a line and its step, from 1.
    fn step_of(&mut self, row: &Row<'_>, index: u32) -> std::result::Result<(usize, u32), Bad> {
        let key = row.request.as_ref().map(|key| key.clone().into_owned());
        let next = self.requests.len();
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.requests.push(Seen { key, prompt: index, latest: index });
        }
        let seen = &mut self.requests[number];
        let step = index.checked_sub(seen.prompt).and_then(|steps| steps.checked_add(1));
        let Some(step) = step.filter(|_| index >= seen.latest) else {
            let expected = format!("`step_idx` from {} on, as in the line before", seen.latest);
            return Err(Bad { at: 0, code: "step_order", expected, found: index.to_string() });
        };
        seen.latest = index;
        Ok((number, step))
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.request.finish()),
            Arc::new(self.step.finish()),
            Arc::new(self.layer.finish()),
            Arc::new(self.context.finish()),
            Arc::new(self.block.finish()),
            Arc::new(self.positions.finish()),
        ];
        for (bytes, latency) in self.bytes.iter_mut().zip(&mut self.latencies) {
            columns.extend([bytes.finish(), latency.finish()]);
        }
        self.listed = 0;
        sink.push(&SELECTIONS, RecordBatch::try_new(SELECTIONS.arrow(), columns)?)
    }

    /// Hands on what is left, and the requests.
    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.flush(sink)?;
        let mut requests = Requests::beside();
        for Seen { key, prompt, latest } in &self.requests {
            let request = Request {
                source_key: key.as_deref(),
                prompt_tokens: *prompt,
                // A difference of steps of u32, so that one more might not fit.
                output_tokens: (latest - prompt).saturating_add(1),
                ..Request::default()
            };
            requests.push(&request, &[], sink)?;
        }
        requests.flush(sink)
    }
}

fn parse(line: &[u8]) -> std::result::Result<Row<'_>, Bad> {
    let mut row = Row::default();
    let mut fetched = false;
    walk::record(line, &mut |scan, key, key_at| {
        let again = match key {
            b"event" => row.event.replace(walk::text(scan, line, "`event`")?).is_some(),
            b"request_id" => {
                let id = walk::maybe_id(scan, line, "`request_id`")?;
                std::mem::replace(&mut row.request, id).is_some()
            }
            b"layer_id" => row.layer.replace(walk::tokens(scan, "`layer_id`")?).is_some(),
            b"step_idx" => row.step.replace(walk::tokens(scan, "`step_idx`")?).is_some(),
            b"seq_len_current" => row.context.replace(walk::tokens(scan, "`seq_len_current`")?).is_some(),
            b"block_size_tokens" => {
                let size = walk::maybe_tokens(scan, "`block_size_tokens`")?;
                std::mem::replace(&mut row.block, size).is_some()
            }
            b"selected_token_pos" => {
                let mut positions = Vec::new();
                walk::list(scan, "`selected_token_pos`", &mut |scan| {
                    positions.push(walk::tokens(scan, "a position")?);
                    Ok(())
                })?;
                row.positions.replace(positions).is_some()
            }
            b"kv_fetch" => {
                fetch(scan, &mut row.fetched)?;
                std::mem::replace(&mut fetched, true)
            }
            other => {
                scan.value()?;
                row.unknown.push((other, key_at));
                false
            }
        };
        if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
    })?;
    Ok(row)
}

/// Bytes and latencies of `kv_fetch`; counts of blocks and operations are not kept.
fn fetch(scan: &mut Scan<'_>, fetched: &mut [(Option<u64>, Option<i64>); 3]) -> std::result::Result<(), Bad> {
    if walk::null(scan)? {
        return Ok(());
    }
    walk::object(scan, "`kv_fetch` as an object", &mut |scan, tier, _| {
        let slot = TIERS.iter().position(|name| *name == tier).and_then(|at| fetched.get_mut(at));
        let Some((bytes, latency)) = slot else { return scan.value() };
        if walk::null(scan)? {
            return Ok(());
        }
        walk::object(scan, "a tier of `kv_fetch` as an object", &mut |scan, key, _| {
            match key {
                b"bytes_read" if !walk::null(scan)? => *bytes = Some(scan.whole("`bytes_read`")?),
                b"latency_us" if !walk::null(scan)? => {
                    *latency = Some(walk::time(scan, "`latency_us`", TimeUnit::Us)?.0);
                }
                b"bytes_read" | b"latency_us" => {}
                _ => scan.value()?,
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests;
