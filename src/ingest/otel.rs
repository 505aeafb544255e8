//! OpenTelemetry spans of requests to language models, as OTLP JSON: one export a line, or one printed on several lines.
//!
//! ```text
//! {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "5b8e...", "spanId": "eee1...", "name": "llm_request",
//!   "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000", "attributes": [
//!     {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "128"}},
//!     {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.045}}]}]}]}]}
//! ```
//!
//! The names of attributes drift between conventions and engines; [`ALIASES`] lists those that are known, and a span may
//! use any of them. OTLP writes 64-bit integers as text, and some exporters as numbers; both are read. A span is one
//! request; its arrival is its start, its end-to-end time what the engine says, or its length. Spans of agents and tools
//! sum up the requests below them, and would count these twice: they are skipped like spans without token counts, and
//! both are counted.
//!
//! Refused: an export that is broken JSON, and span by span a count, instant or time that cannot be read, an end before
//! the start, a span with output tokens but no prompt tokens.

use std::borrow::Cow;

use engine::error::Result;

use super::json::{Scan, bad_at};
use super::problem::Bad;
use super::requests::{Request, Requests};
use super::rows::{self, EMPTY_LINE, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, LIMITS};
use super::time::TimeUnit;
use super::walk::{self, Record, Records, has_keys};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "otel",
    doc: "OpenTelemetry GenAI spans with token counts, as OTLP JSON",
    spec: "https://opentelemetry.io/docs/specs/semconv/gen-ai/",
    verified: false,
    sniff,
    read,
};

const NO_USAGE: Event = Event { severity: Severity::Info, code: "no_usage", advice: None };
const AGENT: Event = Event { severity: Severity::Info, code: "agent_span", advice: None };

/// What an attribute means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Input,
    Output,
    CacheRead,
    /// Time to first token, in this unit.
    Ttft(TimeUnit),
    EndToEnd(TimeUnit),
    Model,
    /// The model that answered, if the one that was asked for is not named.
    ResponseModel,
    Session,
    Operation,
}

/// Attribute names: the semantic conventions now and before, vLLM, SGLang, OpenLLMetry.
const ALIASES: [(&str, Meaning); 22] = [
    ("gen_ai.usage.input_tokens", Meaning::Input),
    ("gen_ai.usage.prompt_tokens", Meaning::Input),
    ("llm.usage.prompt_tokens", Meaning::Input),
    ("gen_ai.usage.output_tokens", Meaning::Output),
    ("gen_ai.usage.completion_tokens", Meaning::Output),
    ("llm.usage.completion_tokens", Meaning::Output),
    ("gen_ai.usage.cache_read.input_tokens", Meaning::CacheRead),
    ("gen_ai.usage.cache_read_input_tokens", Meaning::CacheRead),
    ("gen_ai.usage.cached_tokens", Meaning::CacheRead),
    ("gen_ai.server.ttft", Meaning::Ttft(TimeUnit::S)),
    ("gen_ai.server.time_to_first_token", Meaning::Ttft(TimeUnit::S)),
    ("gen_ai.latency.time_to_first_token", Meaning::Ttft(TimeUnit::S)),
    ("time_to_first_token", Meaning::Ttft(TimeUnit::S)),
    ("gen_ai.response.time_to_first_chunk", Meaning::Ttft(TimeUnit::S)),
    ("ai.response.msToFirstChunk", Meaning::Ttft(TimeUnit::Ms)),
    ("gen_ai.latency.e2e", Meaning::EndToEnd(TimeUnit::S)),
    ("gen_ai.request.model", Meaning::Model),
    ("gen_ai.response.model", Meaning::ResponseModel),
    ("gen_ai.conversation.id", Meaning::Session),
    ("session.id", Meaning::Session),
    ("gen_ai.operation.name", Meaning::Operation),
    ("gen_ai.operation_name", Meaning::Operation),
];

/// Operations that sum up others.
const SUMS: [&str; 4] = ["invoke_agent", "create_agent", "execute_tool", "invoke_workflow"];

fn sniff(head: &Head<'_>) -> Sniff {
    let first = walk::first_line(head.bytes);
    if head.directory || !(first.starts_with(b"{") || first.starts_with(b"[")) {
        return Sniff::No;
    }
    if has_keys(head.bytes, &["resourceSpans"]) {
        return Sniff::Yes;
    }
    if has_keys(head.bytes, &["traceId", "spanId"]) {
        return Sniff::Nearly("spans stand alone, without `resourceSpans` around them".to_owned());
    }
    Sniff::No
}

/// One span.
#[derive(Debug, Default)]
struct Span<'a> {
    trace: Option<Cow<'a, str>>,
    id: Option<Cow<'a, str>>,
    start: Option<(i64, bool)>,
    end: Option<(i64, bool)>,
    input: Option<u32>,
    output: Option<u32>,
    cache_read: Option<u32>,
    ttft: Option<(i64, bool)>,
    e2e: Option<(i64, bool)>,
    model: Option<Cow<'a, str>>,
    response_model: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    operation: Option<Cow<'a, str>>,
    failed: bool,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_blocks("otel")?;
    options.with_unit("otel", Some(TimeUnit::Ns), "OTLP counts nanoseconds")?;
    let mut requests = Requests::new();
    let mut watch = Watch::new();
    let mut records = Records::new(LIMITS.line);
    while let Some(record) = records.next(lines, path, &mut |line| {
        sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
    })? {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        if let Err(bad) = export(&record.bytes, &mut spans) {
            sink.found(1);
            sink.reject(record.problem(path, bad))?;
            continue;
        }
        for (from, to) in spans {
            let bytes = record.bytes.get(from..to).unwrap_or_default();
            match span(bytes) {
                Ok(span) => push(path, &record, (bytes, from), &span, &mut requests, &mut watch, sink)?,
                Err(bad) => {
                    sink.found(1);
                    sink.reject(record.problem(path, Bad { at: from + bad.at, ..bad }))?;
                }
            }
        }
    }
    requests.flush(sink)?;
    Ok(Settings { time_unit: Some("ns"), clock: Some("epoch"), ..Settings::default() })
}

/// Hands on a span that is a request.
fn push(
    path: &str,
    record: &Record,
    (bytes, from): (&[u8], usize),
    span: &Span<'_>,
    requests: &mut Requests,
    watch: &mut Watch,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let place = (record.number, record.offset + from as u64);
    if span.operation.as_deref().is_some_and(|operation| SUMS.contains(&operation)) {
        sink.log(AGENT, "a span that sums up others was skipped", Some(place.0), Some(place.1));
        return Ok(());
    }
    if span.input.is_none() && span.output.is_none() {
        sink.log(NO_USAGE, "a span without token counts was skipped", Some(place.0), Some(place.1));
        return Ok(());
    }
    sink.found(1);
    let request = match request(span, bytes) {
        Ok(request) => request,
        Err(bad) => return sink.reject(record.problem(path, Bad { at: from + bad.at, ..bad })),
    };
    let exact = [span.start, span.end, span.ttft, span.e2e].into_iter().flatten().all(|(_, exact)| exact);
    watch.time(sink, place.0, place.1, (request.arrival_ns.unwrap_or(0), exact));
    if request.status.is_none() {
        watch.output(sink, place.0, place.1, request.output_tokens);
    }
    let key = match (&span.trace, &span.id) {
        (Some(trace), Some(id)) => Some(format!("{trace}/{id}")),
        (one, other) => one.as_ref().or(other.as_ref()).map(|id| id.clone().into_owned()),
    };
    let request = Request {
        source_key: key.as_deref(),
        session_id: span.session.as_deref(),
        model: span.model.as_deref().or(span.response_model.as_deref()),
        kind: span.operation.as_deref(),
        ..request
    };
    requests.push(&request, &[], sink)?;
    Ok(())
}

/// The request without its texts.
fn request(span: &Span<'_>, bytes: &[u8]) -> std::result::Result<Request<'static>, Bad> {
    let missing = |what: &str| bad_at(bytes, bytes.len(), "missing_key", what);
    let (start, _) = span.start.ok_or_else(|| missing("the key `startTimeUnixNano`"))?;
    let prompt_tokens = span.input.ok_or_else(|| missing("the attribute `gen_ai.usage.input_tokens`"))?;
    let output_tokens = span.output.unwrap_or(0);
    let length = span.end.map(|(end, _)| end - start);
    if length.is_some_and(|length| length < 0) {
        let expected = "`endTimeUnixNano` of at least `startTimeUnixNano`".to_owned();
        return Err(Bad { at: 0, code: "time_order", expected, found: "an earlier one".to_owned() });
    }
    let e2e = span.e2e.map(|(ns, _)| ns).or(length);
    let ttft = span.ttft.map(|(ns, _)| ns);
    let decoding = e2e.zip(ttft).map(|(e2e, ttft)| e2e - ttft).filter(|span| *span >= 0);
    Ok(Request {
        arrival_ns: Some(start),
        prompt_tokens,
        output_tokens,
        status: span.failed.then_some("error"),
        measured_ttft_ns: ttft,
        measured_tpot_ns: decoding.and_then(|span| walk::time_per_token(span, output_tokens)),
        measured_e2e_ns: e2e,
        measured_hit_tokens: span.cache_read,
        ..Request::default()
    })
}

/// Finds where the spans of an export stand: an object with `resourceSpans`, or a list of such.
fn export(bytes: &[u8], spans: &mut Vec<(usize, usize)>) -> std::result::Result<(), Bad> {
    let mut scan = Scan::new(bytes);
    if scan.peek() == Some(b'[') {
        walk::list(&mut scan, "exports", &mut |scan| resources(scan, spans))?;
    } else {
        resources(&mut scan, spans)?;
    }
    scan.end()
}

fn resources(scan: &mut Scan<'_>, spans: &mut Vec<(usize, usize)>) -> std::result::Result<(), Bad> {
    nested(scan, &[b"resourceSpans", b"scopeSpans", b"spans"], spans)
}

/// Walks down lists of objects by these keys; the entries of the last list are spans.
fn nested(scan: &mut Scan<'_>, keys: &[&[u8]], spans: &mut Vec<(usize, usize)>) -> std::result::Result<(), Bad> {
    let Some((first, rest)) = keys.split_first() else {
        scan.peek();
        let from = scan.at();
        scan.value()?;
        spans.push((from, scan.at()));
        return Ok(());
    };
    walk::object(scan, "a JSON object", &mut |scan, key, _| {
        // The name of the list before OTLP 0.15.
        let older = *first == b"scopeSpans" && key == b"instrumentationLibrarySpans";
        if (key == *first || older) && scan.peek() == Some(b'[') {
            return walk::list(scan, "spans", &mut |scan| nested(scan, rest, spans));
        }
        scan.value()
    })
}

fn span(bytes: &[u8]) -> std::result::Result<Span<'_>, Bad> {
    let mut span = Span::default();
    walk::record(bytes, &mut |scan, key, _| {
        match key {
            b"traceId" => span.trace = walk::maybe_text(scan, bytes, "`traceId`")?,
            b"spanId" => span.id = walk::maybe_text(scan, bytes, "`spanId`")?,
            b"startTimeUnixNano" => span.start = Some(time(scan, bytes, "`startTimeUnixNano`", TimeUnit::Ns)?),
            b"endTimeUnixNano" => {
                // 0 where a span has not ended.
                span.end = Some(time(scan, bytes, "`endTimeUnixNano`", TimeUnit::Ns)?).filter(|(ns, _)| *ns > 0);
            }
            b"status" if scan.peek() == Some(b'{') => {
                walk::object(scan, "`status` as an object", &mut |scan, key, _| {
                    let value = walk::raw(scan, bytes)?;
                    span.failed |= key == b"code" && matches!(value, b"2" | b"\"STATUS_CODE_ERROR\"");
                    Ok(())
                })?;
            }
            b"attributes" if scan.peek() == Some(b'[') => {
                walk::list(scan, "`attributes`", &mut |scan| attribute(scan, bytes, &mut span))?;
            }
            _ => scan.value()?,
        }
        Ok(())
    })?;
    Ok(span)
}

/// Reads `{"key": ..., "value": {"intValue": ...}}`.
fn attribute<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], span: &mut Span<'a>) -> std::result::Result<(), Bad> {
    let (mut name, mut value) = (None, None);
    walk::object(scan, "an attribute as an object", &mut |scan, key, _| {
        match key {
            b"key" => name = walk::maybe_text(scan, bytes, "`key`")?,
            b"value" if scan.peek() == Some(b'{') => {
                walk::object(scan, "`value` as an object", &mut |scan, _, _| {
                    value = Some(scan.at());
                    scan.value()
                })?;
            }
            _ => scan.value()?,
        }
        Ok(())
    })?;
    let known = ALIASES.iter().find(|(alias, _)| Some(*alias) == name.as_deref());
    let (Some((name, meaning)), Some(at)) = (known, value) else { return Ok(()) };
    let text = bytes.get(at..).unwrap_or_default();
    taken(&mut Scan::new(text), text, name, *meaning, span).map_err(|bad| Bad { at: at + bad.at, ..bad })
}

fn taken<'a>(
    scan: &mut Scan<'a>,
    text: &'a [u8],
    name: &str,
    meaning: Meaning,
    span: &mut Span<'a>,
) -> std::result::Result<(), Bad> {
    let name = format!("`{name}`");
    match meaning {
        // The first alias that a span uses counts.
        Meaning::Input => keep(&mut span.input, count(scan, text, &name)?),
        Meaning::Output => keep(&mut span.output, count(scan, text, &name)?),
        Meaning::CacheRead => keep(&mut span.cache_read, count(scan, text, &name)?),
        Meaning::Ttft(unit) => keep(&mut span.ttft, time(scan, text, &name, unit)?),
        Meaning::EndToEnd(unit) => keep(&mut span.e2e, time(scan, text, &name, unit)?),
        Meaning::Model => span.model = walk::maybe_text(scan, text, &name)?,
        Meaning::ResponseModel => span.response_model = walk::maybe_text(scan, text, &name)?,
        Meaning::Session => span.session = walk::maybe_id(scan, text, &name)?,
        Meaning::Operation => span.operation = walk::maybe_text(scan, text, &name)?,
    }
    Ok(())
}

fn keep<T>(slot: &mut Option<T>, value: T) {
    if slot.is_none() {
        *slot = Some(value);
    }
}

/// A count as a number, or as text that holds one.
fn count(scan: &mut Scan<'_>, text: &[u8], what: &str) -> std::result::Result<u32, Bad> {
    inner(scan, text, &mut |scan| walk::tokens(scan, what))
}

/// A time as a number, or as text that holds one.
fn time(scan: &mut Scan<'_>, text: &[u8], what: &str, unit: TimeUnit) -> std::result::Result<(i64, bool), Bad> {
    inner(scan, text, &mut |scan| walk::time(scan, what, unit))
}

/// Reads a value that may stand in quotes.
fn inner<T>(
    scan: &mut Scan<'_>,
    text: &[u8],
    read: &mut dyn FnMut(&mut Scan<'_>) -> std::result::Result<T, Bad>,
) -> std::result::Result<T, Bad> {
    if scan.peek() != Some(b'"') {
        return read(scan);
    }
    let from = scan.at();
    scan.value()?;
    let quoted = text.get(from + 1..scan.at().saturating_sub(1)).unwrap_or_default();
    let mut within = Scan::new(quoted);
    let value = read(&mut within).and_then(|value| within.end().map(|()| value));
    value.map_err(|bad| Bad { at: from + 1 + bad.at, ..bad })
}

#[cfg(test)]
mod tests;
