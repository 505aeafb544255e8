//! AIPerf's profile exports: one record per request, as JSON lines, or one printed on several lines.
//!
//! ```text
//! {"metadata": {"session_num": 45, "x_request_id": "7609a2e7-...", "conversation_id": "77aa5b0e-...", "turn_index": 0, "request_start_ns": 1759813207532900363, "benchmark_phase": "profiling", "was_cancelled": false, ...},
//!  "metrics": {"input_sequence_length": {"value": 550, "unit": "tokens"}, "time_to_first_token": {"value": 255.88656799999998, "unit": "ms"}, "request_latency": {"value": 297.52522799999997, "unit": "ms"}, "output_sequence_length": {"value": 9, "unit": "tokens"}, "inter_token_latency": {"value": 5.2048325, "unit": "ms"}, ...},
//!  "error": null}
//! ```
//!
//! `request_start_ns` counts nanoseconds since the Unix epoch. Each metric says its unit, and is read in it. A
//! conversation is a session, the phase of the benchmark is the kind. A failed request has only `error_isl`, the length
//! of its prompt; it is kept with the status `error`, a cancelled one without an error as `cancelled`.
//!
//! A metric that stands twice in a record keeps its first value, and is logged: in AIPerf's documented record the first
//! `time_to_first_token` satisfies `request_latency` = `time_to_first_token` + (tokens - 1) x `inter_token_latency`, and
//! the second is the time to the second token under the same name.
//!
//! Refused, record by record: what is no JSON object, a repeated key outside `metrics`, no start, no prompt length, a
//! successful request without an output length, a broken number, an unknown unit. Metrics beyond the five are counted
//! and not kept.

use std::borrow::Cow;

use engine::error::Result;

use super::json::{Scan, bad_at};
use super::problem::Bad;
use super::requests::{Request, Requests};
use super::rows::{self, EMPTY_LINE, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, LIMITS, Line};
use super::time::TimeUnit;
use super::walk::{self, Records, Unknown, has_keys};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "aiperf",
    doc: "AIPerf profile exports (profile_export.jsonl), one measured request a record",
    spec: "https://github.com/ai-dynamo/aiperf/blob/main/docs/tutorials/working-with-profile-exports.md",
    verified: true,
    sniff,
    read,
};

const REPEATED: Event = Event {
    severity: Severity::Notice,
    code: "repeated_key",
    advice: Some("the first value is kept; check it against request_latency"),
};
const UNKNOWN_METRIC: Event =
    Event { severity: Severity::Info, code: "unknown_metric", advice: Some("the metric is not stored") };

/// Keys of `metadata` that say how the benchmark ran, and are left out without a word.
const BESIDE: [&[u8]; 9] = [
    b"session_num",
    b"x_correlation_id",
    b"request_ack_ns",
    b"request_end_ns",
    b"worker_id",
    b"record_processor_id",
    b"cancellation_time_ns",
    b"credit_issued_ns",
    b"agent_depth",
];

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || !walk::first_line(head.bytes).starts_with(b"{") {
        return Sniff::No;
    }
    match (has_keys(head.bytes, &["metadata", "metrics"]), has_keys(head.bytes, &["request_start_ns"])) {
        (true, true) => Sniff::Yes,
        (false, true) => Sniff::Nearly("records lack `metadata` or `metrics`".to_owned()),
        _ if has_keys(head.bytes, &["input_config", "request_throughput"]) => Sniff::Nearly(
            "an aggregated AIPerf export; the requests are in `profile_export.jsonl` beside it".to_owned(),
        ),
        _ => Sniff::No,
    }
}

/// One record, as far as it has been read.
#[derive(Debug, Default)]
struct Row<'a> {
    key: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    phase: Option<Cow<'a, str>>,
    turn: Option<u32>,
    start: Option<(i64, bool)>,
    cancelled: bool,
    failed: bool,
    input: Option<u32>,
    failed_input: Option<u32>,
    output: Option<u32>,
    output_without_reasoning: Option<u32>,
    ttft: Option<i64>,
    tpot: Option<i64>,
    latency: Option<i64>,
    exact: bool,
    repeated: Unknown<'a>,
    unknown: Unknown<'a>,
    metrics: Unknown<'a>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_blocks("aiperf")?;
    options.with_unit(
        "aiperf",
        Some(TimeUnit::Ns),
        "its instants are nanoseconds, and its metrics name their units",
    )?;
    let mut requests = Requests::new();
    let mut watch = Watch::new();
    let mut records = Records::new(LIMITS.line);
    while let Some(record) = records.next(lines, path, &mut |line| {
        sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
    })? {
        sink.found(1);
        let parsed = parse(&record.bytes).and_then(|row| Ok((request(&row, &record.bytes)?, row)));
        let (request, row) = match parsed {
            Ok(good) => good,
            Err(bad) => {
                sink.reject(record.problem(path, bad))?;
                continue;
            }
        };
        let line = Line { bytes: &record.bytes, number: record.number, offset: record.offset };
        watch.unknown(sink, line, &row.unknown);
        for (events, event, what) in
            [(&row.repeated, REPEATED, "stands twice in a record"), (&row.metrics, UNKNOWN_METRIC, "is not stored")]
        {
            for (key, at) in events {
                let message = format!("the metric {} {what}", super::json::named(key));
                sink.log(event, &message, Some(line.number), Some(line.offset + *at as u64));
            }
        }
        watch.time(sink, line.number, line.offset, (request.arrival_ns.unwrap_or(0), row.exact));
        if request.status.is_none() {
            watch.output(sink, line.number, line.offset, request.output_tokens);
        }
        let texts = [&row.key, &row.session, &row.phase].map(Option::as_deref);
        let request = Request { source_key: texts[0], session_id: texts[1], kind: texts[2], ..request };
        requests.push(&request, &[], sink)?;
    }
    requests.flush(sink)?;
    Ok(Settings { time_unit: Some("ns"), clock: Some("epoch"), ..Settings::default() })
}

/// The request without its texts.
fn request(row: &Row<'_>, bytes: &[u8]) -> std::result::Result<Request<'static>, Bad> {
    let missing = |what: &str| bad_at(bytes, bytes.len(), "missing_key", what);
    let (start, _) = row.start.ok_or_else(|| missing("`request_start_ns` in `metadata`"))?;
    let input = row.input.or(row.failed_input);
    let prompt_tokens = input.ok_or_else(|| missing("the metric `input_sequence_length` or `error_isl`"))?;
    let status = match (row.failed, row.cancelled) {
        (true, _) => Some("error"),
        (false, true) => Some("cancelled"),
        (false, false) => None,
    };
    let output = row.output.or(row.output_without_reasoning);
    if output.is_none() && status.is_none() {
        return Err(missing("the metric `output_sequence_length`"));
    }
    Ok(Request {
        turn: row.turn,
        arrival_ns: Some(start),
        prompt_tokens,
        output_tokens: output.unwrap_or(0),
        status,
        measured_ttft_ns: row.ttft,
        measured_tpot_ns: row.tpot,
        measured_e2e_ns: row.latency,
        ..Request::default()
    })
}

fn parse(bytes: &[u8]) -> std::result::Result<Row<'_>, Bad> {
    let mut row = Row { exact: true, ..Row::default() };
    let mut seen: Vec<&[u8]> = Vec::new();
    walk::record(bytes, &mut |scan, key, at| {
        once(&mut seen, bytes, key, at)?;
        match key {
            b"metadata" => metadata(scan, bytes, &mut row),
            b"metrics" => metrics(scan, bytes, &mut row),
            b"error" => {
                row.failed = !walk::null(scan)?;
                if row.failed { scan.value() } else { Ok(()) }
            }
            _ => {
                row.unknown.push((key, at));
                scan.value()
            }
        }
    })?;
    Ok(row)
}

/// Refuses a key that was seen before.
fn once<'a>(seen: &mut Vec<&'a [u8]>, bytes: &[u8], key: &'a [u8], at: usize) -> std::result::Result<(), Bad> {
    if seen.contains(&key) {
        return Err(bad_at(bytes, at, "duplicate_key", "each key once"));
    }
    // Far more keys than any record has: searching them all must not take for ever.
    if seen.len() < 64 {
        seen.push(key);
    }
    Ok(())
}

fn metadata<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], row: &mut Row<'a>) -> std::result::Result<(), Bad> {
    let mut seen: Vec<&[u8]> = Vec::new();
    walk::object(scan, "`metadata` as an object", &mut |scan, key, at| {
        once(&mut seen, bytes, key, at)?;
        match key {
            b"x_request_id" => row.key = walk::maybe_id(scan, bytes, "`x_request_id`")?,
            b"conversation_id" => row.session = walk::maybe_id(scan, bytes, "`conversation_id`")?,
            b"benchmark_phase" => row.phase = walk::maybe_text(scan, bytes, "`benchmark_phase`")?,
            b"turn_index" => row.turn = walk::maybe_tokens(scan, "`turn_index`")?,
            b"was_cancelled" => row.cancelled = walk::raw(scan, bytes)? == b"true",
            b"request_start_ns" => {
                let time = walk::time(scan, "`request_start_ns`", TimeUnit::Ns)?;
                row.exact &= time.1;
                row.start = Some(time);
            }
            _ => {
                scan.value()?;
                if !BESIDE.contains(&key) {
                    row.unknown.push((key, at));
                }
            }
        }
        Ok(())
    })
}

fn metrics<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], row: &mut Row<'a>) -> std::result::Result<(), Bad> {
    if walk::null(scan)? {
        return Ok(());
    }
    walk::object(scan, "`metrics` as an object", &mut |scan, key, at| {
        let again = match key {
            b"input_sequence_length" => first(&mut row.input, count(scan, bytes)?),
            b"error_isl" => first(&mut row.failed_input, count(scan, bytes)?),
            b"output_sequence_length" => first(&mut row.output, count(scan, bytes)?),
            b"output_token_count" => first(&mut row.output_without_reasoning, count(scan, bytes)?),
            b"time_to_first_token" => first(&mut row.ttft, duration(scan, bytes, &mut row.exact)?),
            b"inter_token_latency" => first(&mut row.tpot, duration(scan, bytes, &mut row.exact)?),
            b"request_latency" => first(&mut row.latency, duration(scan, bytes, &mut row.exact)?),
            _ => {
                scan.value()?;
                row.metrics.push((key, at));
                false
            }
        };
        if again {
            row.repeated.push((key, at));
        }
        Ok(())
    })
}

/// Keeps the first value; whether there was one.
fn first<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    let again = slot.is_some();
    if !again {
        *slot = value;
    }
    again
}

/// A metric: its value as it is written, where the value stands, and its unit.
fn metric<'a>(scan: &mut Scan<'a>, bytes: &'a [u8]) -> std::result::Result<(Option<usize>, Option<Cow<'a, str>>), Bad> {
    let (mut value, mut unit) = (None, None);
    walk::object(scan, "a metric as an object with `value` and `unit`", &mut |scan, key, _| match key {
        b"value" => {
            value = Some(scan.at());
            scan.value()
        }
        b"unit" => {
            unit = walk::maybe_text(scan, bytes, "`unit`")?;
            Ok(())
        }
        _ => scan.value(),
    })?;
    Ok((value, unit))
}

/// A metric in tokens.
fn count<'a>(scan: &mut Scan<'a>, bytes: &'a [u8]) -> std::result::Result<Option<u32>, Bad> {
    let from = scan.at();
    let (value, unit) = metric(scan, bytes)?;
    if unit.as_deref().is_some_and(|unit| unit != "tokens") {
        return Err(bad_at(bytes, from, "unit", "a metric with the unit `tokens`"));
    }
    let Some(at) = value else { return Ok(None) };
    let mut scan = Scan::new(bytes.get(at..).unwrap_or_default());
    walk::maybe_tokens(&mut scan, "`value`").map_err(|bad| Bad { at: at + bad.at, ..bad })
}

/// A metric in a unit of time, as nanoseconds.
fn duration<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], exact: &mut bool) -> std::result::Result<Option<i64>, Bad> {
    let from = scan.at();
    let (value, unit) = metric(scan, bytes)?;
    let unit = match unit.as_deref() {
        Some("ns" | "nanoseconds") => TimeUnit::Ns,
        Some("us" | "microseconds") => TimeUnit::Us,
        Some("ms" | "milliseconds") => TimeUnit::Ms,
        Some("s" | "sec" | "seconds") => TimeUnit::S,
        _ => return Err(bad_at(bytes, from, "unit", "a metric with the unit `ns`, `us`, `ms` or `sec`")),
    };
    let Some(at) = value else { return Ok(None) };
    let mut scan = Scan::new(bytes.get(at..).unwrap_or_default());
    if walk::null(&mut scan)? {
        return Ok(None);
    }
    let (ns, whole) = walk::time(&mut scan, "`value`", unit).map_err(|bad| Bad { at: at + bad.at, ..bad })?;
    *exact &= whole;
    Ok(Some(ns))
}

#[cfg(test)]
mod tests;
