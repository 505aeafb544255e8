//! What vLLM measured when it ran an LLMServingSim workload: the three files that LLMServingSim's benchmark writes.
//!
//! `requests.jsonl`, one request a line, becomes `requests` with its measured times:
//!
//! ```text
//! {"request_id": "bench-0", "input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.0827403, "queued_ts": 27536.660701067, "scheduled_ts": 27536.660721646, "first_token_ts": 27537.350135653, "last_token_ts": 27554.231018618}
//! ```
//!
//! `arrival_time` counts seconds since the Unix epoch; the four `_ts` count seconds on the engine's monotonic clock, and
//! only their differences are used: time to first token and end-to-end time run from `queued_ts`, as in LLMServingSim's
//! own summary; the mean time per output token from the first token to the last. A request without output has none.
//!
//! `timeseries.csv` becomes `engine_samples`, one row a value; `t` counts seconds from the start of the run:
//!
//! ```text
//! t,prompt_throughput,gen_throughput,running,waiting,kv_cache_pct
//! 1.0,3392.0,2.0,5,2,13.22
//! ```
//!
//! `meta.json`, one object, becomes `engine_samples` without a time: what the engine's cache and limits were. Texts in it
//! (model, versions) are not kept.
//!
//! Refused, row by row: what is no JSON object, a missing or repeated key, a broken number, times that run backwards
//! within a request, a CSV line with too few or too many cells, and each cell that is no number.

use engine::error::{Error, Result};
use engine::schema::canonical::ENGINE_SAMPLES;
use engine::schema::{Cell, batch_of_rows};

use super::json::{bad_at, named};
use super::problem::{Bad, Problem};
use super::requests::{Request, Requests};
use super::rows::{self, BACKWARDS, EMPTY_LINE, Outcome, ROUNDED, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, LIMITS, Line, Lines};
use super::time::{TimeUnit, decimal_ns};
use super::walk::{self, Record, Records, Unknown, has_keys};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "llmservingsim_result",
    doc: "vLLM's measured results beside an LLMServingSim workload: requests.jsonl, timeseries.csv, meta.json",
    spec: "https://github.com/casys-kaist/LLMServingSim",
    verified: true,
    sniff,
    read,
};

const UNKNOWN_COLUMN: Event =
    Event { severity: Severity::DataLoss, code: "unknown_column", advice: Some("the column is not stored") };

const NO_METER: Event = Event {
    severity: Severity::Notice,
    code: "meter_at_zero",
    advice: Some("the run did not measure its cache; do not compare with it"),
};

/// Keys of a request's line.
const REQUEST: [&str; 4] = ["queued_ts", "first_token_ts", "last_token_ts", "arrival_time"];

/// Columns of `timeseries.csv`: their metric, and what a value is divided by.
const SERIES: [(&str, &str, f64); 5] = [
    ("prompt_throughput", "prompt_tokens_per_s", 1.0),
    ("gen_throughput", "output_tokens_per_s", 1.0),
    ("running", "running_requests", 1.0),
    ("waiting", "waiting_requests", 1.0),
    ("kv_cache_pct", "kv_cache_used_ratio", 100.0),
];

/// Keys of `meta.json` by their object (empty for the top) and their metric.
const META: [(&[u8], &[u8], &str); 11] = [
    (b"", b"num_requests", "workload_requests"),
    (b"", b"tick_seconds", "sample_interval_s"),
    (b"engine_kwargs", b"tensor_parallel_size", "tensor_parallel"),
    (b"engine_kwargs", b"data_parallel_size", "data_parallel"),
    (b"engine_kwargs", b"max_num_seqs", "max_batch_requests"),
    (b"engine_kwargs", b"max_num_batched_tokens", "max_batch_tokens"),
    (b"engine_kwargs", b"max_model_len", "max_context_tokens"),
    (b"kv_cache", b"num_gpu_blocks", "kv_cache_blocks"),
    (b"kv_cache", b"block_size", "block_tokens"),
    (b"kv_cache", b"num_kv_tokens", "kv_cache_tokens"),
    (b"hardware", b"device_total_memory_bytes", "device_memory_bytes"),
];

/// Which of the three files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Requests,
    Series,
    Meta,
}

fn kind(head: &[u8]) -> Option<File> {
    let line = walk::first_line(head);
    if line.starts_with(b"t,") && line.windows(12).any(|window| window == b"kv_cache_pct") {
        return Some(File::Series);
    }
    if !line.starts_with(b"{") {
        return None;
    }
    if has_keys(line, &REQUEST) {
        return Some(File::Requests);
    }
    has_keys(head, &["vllm_version", "engine_kwargs", "dataset_path"]).then_some(File::Meta)
}

fn sniff(head: &Head<'_>) -> Sniff {
    let line = walk::first_line(head.bytes);
    match kind(head.bytes) {
        _ if head.directory => Sniff::No,
        Some(_) => Sniff::Yes,
        None if line.starts_with(b"{") && has_keys(line, &["queued_ts", "request_id"]) => {
            let missing: Vec<String> =
                REQUEST.into_iter().filter(|key| !has_keys(line, &[key])).map(|key| format!("`{key}`")).collect();
            Sniff::Nearly(format!("rows lack {}", missing.join(", ")))
        }
        None => Sniff::No,
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.with_unit("llmservingsim_result", Some(TimeUnit::S), "vLLM writes seconds")?;
    options.without_blocks("llmservingsim_result")?;
    let settings = |clock| Settings { time_unit: Some("s"), clock: Some(clock), ..Settings::default() };
    // Forced onto another file, the rows say themselves what they lack.
    match kind(lines.peek()) {
        Some(File::Series) => series(path, lines, sink).map(|()| settings("trace_start")),
        Some(File::Meta) => meta(path, lines, sink).map(|()| Settings::default()),
        Some(File::Requests) | None => requests(path, lines, sink).map(|()| settings("epoch")),
    }
}

/// One measured request; times in nanoseconds, each with whether it was exact.
#[derive(Debug, Default)]
struct Row<'a> {
    key: Option<std::borrow::Cow<'a, str>>,
    input: Option<u32>,
    output: Option<u32>,
    arrival: Option<(i64, bool)>,
    queued: Option<(i64, bool)>,
    first: Option<(i64, bool)>,
    last: Option<(i64, bool)>,
    unknown: Unknown<'a>,
}

fn requests(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let mut requests = Requests::new();
    let mut watch = Watch::new();
    rows::each(path, &[], lines, sink, &mut |line, sink| {
        let parsed = parse(line.bytes).and_then(|row| Ok((measured(&row, line.bytes)?, row)));
        let (request, row) = match &parsed {
            Ok((request, row)) => (Request { source_key: row.key.as_deref(), ..*request }, row),
            Err(bad) => return Ok(Outcome::Bad(bad.clone().into())),
        };
        watch.unknown(sink, line, &row.unknown);
        let exact = [row.arrival, row.queued, row.first, row.last].into_iter().flatten().all(|(_, exact)| exact);
        watch.time(sink, line.number, line.offset, (request.arrival_ns.unwrap_or(0), exact));
        watch.output(sink, line.number, line.offset, request.output_tokens);
        requests.push(&request, &[], sink)?;
        Ok(Outcome::Row)
    })?;
    requests.flush(sink)
}

fn parse(line: &[u8]) -> std::result::Result<Row<'_>, Bad> {
    let mut row = Row::default();
    let mut scheduled = None;
    walk::record(line, &mut |scan, key, key_at| {
        let mut seconds = |slot: &mut Option<(i64, bool)>, what: &str| {
            // vLLM writes null for what did not happen.
            if walk::null(scan)? {
                return Ok(false);
            }
            Ok(slot.replace(walk::time(scan, what, TimeUnit::S)?).is_some())
        };
        let again = match key {
            b"arrival_time" => seconds(&mut row.arrival, "`arrival_time`")?,
            b"queued_ts" => seconds(&mut row.queued, "`queued_ts`")?,
            b"scheduled_ts" => seconds(&mut scheduled, "`scheduled_ts`")?,
            b"first_token_ts" => seconds(&mut row.first, "`first_token_ts`")?,
            b"last_token_ts" => seconds(&mut row.last, "`last_token_ts`")?,
            b"request_id" => {
                let id = walk::maybe_id(scan, line, "`request_id`")?;
                std::mem::replace(&mut row.key, id).is_some()
            }
            b"input_toks" => row.input.replace(walk::tokens(scan, "`input_toks`")?).is_some(),
            b"output_toks" => row.output.replace(walk::tokens(scan, "`output_toks`")?).is_some(),
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

/// The request with its measured times.
fn measured(row: &Row<'_>, line: &[u8]) -> std::result::Result<Request<'static>, Bad> {
    let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
    let prompt_tokens = row.input.ok_or_else(|| missing("input_toks"))?;
    let output_tokens = row.output.ok_or_else(|| missing("output_toks"))?;
    let (arrival_ns, _) = row.arrival.ok_or_else(|| missing("arrival_time"))?;
    let ns = |time: Option<(i64, bool)>| time.map(|(ns, _)| ns);
    let (queued, first, last) = (ns(row.queued), ns(row.first), ns(row.last));
    let queued = queued.ok_or_else(|| missing("queued_ts"))?;
    if output_tokens > 0 && (first.is_none() || last.is_none()) {
        return Err(missing(if first.is_none() { "first_token_ts" } else { "last_token_ts" }));
    }
    let in_order = first.is_none_or(|first| first >= queued && last.is_none_or(|last| last >= first))
        && last.is_none_or(|last| last >= queued);
    if !in_order {
        return Err(Bad {
            at: 0,
            code: "time_order",
            expected: "`queued_ts`, `first_token_ts` and `last_token_ts` in this order".to_owned(),
            found: "another".to_owned(),
        });
    }
    let span = |from: Option<i64>, to: Option<i64>| to.zip(from).map(|(to, from)| to - from);
    Ok(Request {
        arrival_ns: Some(arrival_ns),
        prompt_tokens,
        output_tokens,
        measured_ttft_ns: span(Some(queued), first),
        measured_tpot_ns: span(first, last).and_then(|span| walk::time_per_token(span, output_tokens)),
        measured_e2e_ns: span(Some(queued), last),
        ..Request::default()
    })
}

/// Rows of `engine_samples` on their way out.
fn push_samples(sink: &mut Sink<'_>, samples: &mut Vec<(Option<i64>, &'static str, f64)>) -> Result<()> {
    let source_id = sink.source_id();
    let rows: Vec<Vec<Cell>> = samples
        .drain(..)
        .map(|(time, metric, value)| vec![source_id.into(), time.into(), metric.into(), value.into()])
        .collect();
    sink.push(&ENGINE_SAMPLES, batch_of_rows(&ENGINE_SAMPLES, &rows)?)
}

/// Most samples of a batch.
const SAMPLES: usize = 8 << 10;

fn series(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let mut columns: Option<Vec<Option<usize>>> = None;
    let mut samples = Vec::new();
    let mut latest = i64::MIN;
    // The most requests that ran, and the fullest cache.
    let (mut running, mut used) = (0.0_f64, None);
    while let Some(line) = lines.next_line()? {
        let at = (Some(line.number), Some(line.offset));
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", at.0, at.1);
            continue;
        }
        let Some(columns) = &columns else {
            columns = Some(layout(path, line, sink)?);
            continue;
        };
        match sampled(path, line, columns, sink, &mut samples)? {
            Some(time) if time < latest => {
                sink.log(BACKWARDS, "a sample is earlier than the one before", at.0, at.1);
                latest = time;
            }
            Some(time) => latest = time,
            None => {}
        }
        for (_, metric, value) in samples.iter().rev().take(SERIES.len()) {
            match *metric {
                "running_requests" => running = running.max(*value),
                "kv_cache_used_ratio" => used = Some(value.max(used.unwrap_or(0.0))),
                _ => {}
            }
        }
        if samples.len() >= SAMPLES {
            push_samples(sink, &mut samples)?;
        }
    }
    if running > 0.0 && used.is_some_and(|used| used <= 0.0) {
        sink.log(NO_METER, "the cache is said to be empty throughout, while requests ran", None, None);
    }
    push_samples(sink, &mut samples)
}

/// For each column of the file, its place in [`SERIES`]; `t` comes first.
fn layout(path: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Result<Vec<Option<usize>>> {
    let names: Vec<&[u8]> = line.bytes.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect();
    if names.first() != Some(&&b"t"[..]) {
        return Err(Error::data(format!("expected the first column of `{path}` to be `t`, found {}", named(names[0]))));
    }
    let mut columns = vec![None];
    for name in &names[1..] {
        let known = SERIES.iter().position(|(column, ..)| column.as_bytes() == *name);
        if known.is_some() && columns.contains(&known) {
            return Err(Error::data(format!("expected each column once in `{path}`, found {} twice", named(name))));
        }
        if known.is_none() {
            let message = format!("the column {} is not part of the format", named(name));
            sink.log(UNKNOWN_COLUMN, &message, Some(line.number), Some(line.offset));
        }
        columns.push(known);
    }
    Ok(columns)
}

/// Reads a line of samples; its time, or none if the line was set aside.
fn sampled(
    path: &str,
    line: Line<'_>,
    columns: &[Option<usize>],
    sink: &mut Sink<'_>,
    samples: &mut Vec<(Option<i64>, &'static str, f64)>,
) -> Result<Option<i64>> {
    let cells: Vec<&[u8]> = line.bytes.split(|byte| *byte == b',').collect();
    let problem = |bad: Bad| Problem::in_line(path, line.bytes, line.number, line.offset, bad);
    let time = if cells.len() == columns.len() {
        let shown = bad_at(line.bytes, 0, "wrong_type", "`t` as a number of seconds of at least zero");
        decimal_ns(cells[0].trim_ascii(), TimeUnit::S).ok_or(shown)
    } else {
        let expected = format!("{} cells", columns.len());
        Err(Bad { at: line.bytes.len(), code: "cell_count", expected, found: cells.len().to_string() })
    };
    let (time, exact) = match time {
        Ok(time) => time,
        Err(bad) => {
            sink.found(1);
            sink.reject(problem(bad))?;
            return Ok(None);
        }
    };
    if !exact {
        sink.log(ROUNDED, "times were rounded to the nanosecond", Some(line.number), Some(line.offset));
    }
    let mut at = 0;
    for (cell, column) in cells.iter().zip(columns) {
        if let Some(column) = *column {
            let (name, metric, divisor) = SERIES[column];
            sink.found(1);
            match number(cell) {
                Some(value) => samples.push((Some(time), metric, value / divisor)),
                None => sink.reject(problem(bad_at(
                    line.bytes,
                    at,
                    "wrong_type",
                    format!("`{name}` as a number of at least zero"),
                )))?,
            }
        }
        at += cell.len() + 1;
    }
    Ok(Some(time))
}

/// A finite number of at least zero.
fn number(cell: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(cell).ok()?.trim();
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

fn meta(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let mut records = Records::new(LIMITS.line);
    let mut samples = Vec::new();
    while let Some(record) = records.next(lines, path, &mut |_| {})? {
        match facts(&record) {
            Ok(found) => {
                sink.found(found.len() as u64);
                samples.extend(found.into_iter().map(|(metric, value)| (None, metric, value)));
            }
            Err(bad) => {
                sink.found(1);
                sink.reject(record.problem(path, bad))?;
            }
        }
    }
    push_samples(sink, &mut samples)
}

/// What `meta.json` says of the engine, each fact once.
fn facts(record: &Record) -> std::result::Result<Vec<(&'static str, f64)>, Bad> {
    let bytes = &record.bytes;
    let mut found = Vec::new();
    let mut fact = |place: &[u8], key: &[u8], value: &[u8]| {
        let known = META.iter().find(|(object, name, _)| *object == place && *name == key);
        if let Some((_, _, metric)) = known
            && let Some(value) = number(value)
            && !found.iter().any(|(known, _)| known == metric)
        {
            found.push((*metric, value));
        }
    };
    walk::record(bytes, &mut |scan, key, _| {
        if scan.peek() != Some(b'{') || !META.iter().any(|(object, ..)| *object == key) {
            fact(b"", key, walk::raw(scan, bytes)?);
            return Ok(());
        }
        walk::object(scan, "an object", &mut |scan, inner, _| {
            fact(key, inner, walk::raw(scan, bytes)?);
            Ok(())
        })
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests;
