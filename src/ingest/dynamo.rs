//! Request and agent traces of NVIDIA Dynamo: one event a line, or bare events, printed on one line or on several.
//!
//! ```text
//! {"timestamp": 1234, "event": {"schema": "dynamo.agent.trace.v1", "event_type": "request_end", "event_time_unix_ms": 1777312801000,
//!   "agent_context": {"session_type_id": "deep_research", "session_id": "research-run-42", "trajectory_id": "research-run-42:researcher"},
//!   "request": {"request_id": "dynamo-request-id", "model": "my-model", "output_tokens": 16, "request_received_ms": 1777312800100,
//!     "replay": {"trace_block_size": 64, "input_length": 128, "input_sequence_hashes": [14879255164371896291, 274632075616497421]}}}}
//! ```
//!
//! A `request_end` is a request; a key that is missing was not recorded. Hashes are u64 and stand for their block and all
//! before it; the last block counts though it is not full. The session is the trajectory (older traces: the program), or
//! where there is none the session; its first request's parent is the last known request of the parent trajectory.
//!
//! * `request_received_ms` is the arrival, else the end minus `total_time_ms`; else it is unknown, since the end alone does
//!   not tell. The outer `timestamp` counts from the start of the trace's writer and is not used. Rows are in the order in
//!   which requests ended.
//! * `tool_start`, `tool_end` and `tool_error` are no requests. They are counted, and give the pause before the session's
//!   next request where its arrival is not known: from the end of the request before it to the end of the last tool, or
//!   the span of the tools where no request came before. Otherwise the pause is from that end to the arrival.
//!
//! Refused, event by event: what is no JSON, a request without `request_id`, `output_tokens` or a prompt length, a broken
//! number, and a number of hashes that does not fit the length. The documented records were at hand, no trace of a service.

use std::borrow::Cow;

use engine::error::Result;

use super::blocks::{Common, MOST};
use super::json::{Scan, bad_at};
use super::problem::{Bad, quoted};
use super::recent::Recent;
use super::requests::{Request, Requests};
use super::rows::{EMPTY_LINE, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::Input;
use super::time::TimeUnit;
use super::walk::{self, Record, Records};
use super::{Format, Head, Origin, Settings, Sniff, rows};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "dynamo",
    doc: "request and agent traces of NVIDIA Dynamo, as JSON lines",
    spec: "https://github.com/ai-dynamo/dynamo/blob/main/docs/agents/agent-tracing.md",
    verified: false,
    sniff,
    read,
};

/// The most bytes of an event.
const LIMIT: usize = 64 << 20;

const TOOL: Event = Event { severity: Severity::Info, code: "tool_event", advice: None };
const TOOL_ERROR: Event = Event { severity: Severity::Notice, code: "tool_error", advice: None };
const OTHER: Event = Event { severity: Severity::DataLoss, code: "other_event", advice: None };
const NOT_STORED: Event =
    Event { severity: Severity::DataLoss, code: "unknown_key", advice: Some("the key is not stored") };
const NO_ARRIVAL: Event = Event {
    severity: Severity::Notice,
    code: "no_arrival",
    advice: Some("traces with `request_received_ms` or `total_time_ms` tell when a request came"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    let start = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    let names = |name: &[u8]| start.windows(name.len()).any(|window| window == name);
    if head.directory || !start.starts_with(b"{") || !walk::has_keys(start, &["event_type"]) {
        Sniff::No
    } else if names(b"\"dynamo.agent.trace.v1\"") || names(b"\"dynamo.request.trace.v1\"") {
        Sniff::Yes
    } else if names(b"\"dynamo.") {
        Sniff::Nearly(
            "events are of another schema than `dynamo.agent.trace.v1` and `dynamo.request.trace.v1`".to_owned(),
        )
    } else {
        Sniff::No
    }
}

/// One event; the hashes are in the scratch list.
#[derive(Debug, Default)]
struct Entry<'a> {
    kind: Option<Cow<'a, str>>,
    end_ns: Option<i64>,
    workload: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    trajectory: Option<Cow<'a, str>>,
    parent: Option<Cow<'a, str>>,
    request: Option<Ended<'a>>,
    tool: Option<(Option<i64>, Option<i64>)>,
}

/// The request of a `request_end`.
#[derive(Debug, Default)]
struct Ended<'a> {
    id: Option<Cow<'a, str>>,
    model: Option<Cow<'a, str>>,
    input: Option<u32>,
    output: Option<u32>,
    cached: Option<u32>,
    received_ns: Option<i64>,
    ttft_ns: Option<i64>,
    total_ns: Option<i64>,
    itl_ns: Option<i64>,
    /// Block size, prompt length, and where the hashes are.
    replay: Option<(u32, u32, usize)>,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, Default)]
struct Standing {
    last: Option<u64>,
    turns: u32,
    end_ns: Option<i64>,
    /// The tools since its last request: the first start and the last end.
    tools: Option<(i64, i64)>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let path = input.path;
    let lines = rows::lines(path, &mut input.body)?;
    if let Some(unit) = input.options.time_unit.filter(|unit| *unit != TimeUnit::Ms) {
        let message =
            format!("expected instants in {} in `{path}`, as the flag says, found keys that end in `_ms`", unit.name());
        return Err(engine::error::Error::data(message).hint("the file names its unit; leave the flag out"));
    }
    let (mut requests, mut watch) = (Requests::new(), Watch::new());
    let mut sessions: Recent<Box<str>, Standing> = Recent::new();
    let (mut records, mut hashes) = (Records::new(LIMIT), Vec::new());
    let mut blocks = Common::default();
    let (mut ends, mut others) = (0_u64, 0_u64);
    loop {
        let mut empty: Vec<(u64, u64)> = Vec::new();
        let record = records.next(lines, path, &mut |line| empty.push((line.number, line.offset)))?;
        for (number, offset) in empty {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(number), Some(offset));
        }
        let Some(record) = record else { break };
        let mut unknown = Vec::new();
        let read = parse(&record.bytes, &mut hashes, &mut unknown).and_then(|entry| {
            check(&entry, &record.bytes, hashes.len())?;
            Ok(entry)
        });
        let entry = match read {
            Ok(entry) => entry,
            Err(bad) => {
                sink.found(1);
                ends += 1;
                sink.reject(record.problem(path, bad))?;
                continue;
            }
        };
        for key in unknown {
            let message = format!("the key {} has no place in the tables", quoted(key));
            sink.log(NOT_STORED, &message, Some(record.number), Some(record.offset));
        }
        if let Some(ended) = &entry.request {
            sink.found(1);
            ends += 1;
            if let Some((block, ..)) = ended.replay {
                blocks.add(block);
            }
            push(&entry, ended, &hashes, &record, &mut sessions, &mut watch, &mut requests, sink)?;
        } else {
            beside(&entry, &record, &mut sessions, sink);
            others += 1;
        }
    }
    requests.flush(sink)?;
    if ends == 0 && others > 0 {
        let message = format!("expected at least one `request_end` in `{path}`, found {others} other events");
        return Err(engine::error::Error::data(message).hint("events of tools describe the pauses between requests"));
    }
    settings(path, input.options.block_tokens, blocks.one())
}

/// The settings, of which only the block size can vary; a flag must not contradict it.
fn settings(path: &str, flag: Option<u32>, found: Option<u32>) -> Result<Settings> {
    if let (Some(flag), Some(found)) = (flag, found)
        && flag != found
    {
        let message = format!("expected blocks of {flag} tokens in `{path}`, as the flag says, found {found}");
        return Err(engine::error::Error::data(message).hint("the file names its block size; leave the flag out"));
    }
    Ok(Settings {
        time_unit: Some("ms"),
        clock: Some("epoch"),
        block_tokens: found,
        rounding: Some("ceil"),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        origin: Origin::Format,
    })
}

/// The name of an event's session.
fn session<'e>(entry: &'e Entry<'_>) -> Option<&'e str> {
    entry.trajectory.as_deref().or(entry.session.as_deref())
}

#[expect(clippy::too_many_arguments, reason = "one event with what the loop over events owns")]
fn push(
    entry: &Entry<'_>,
    ended: &Ended<'_>,
    hashes: &[u64],
    record: &Record,
    sessions: &mut Recent<Box<str>, Standing>,
    watch: &mut Watch,
    requests: &mut Requests,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let session = session(entry);
    let standing = session.and_then(|session| sessions.get(session)).copied().unwrap_or_default();
    let before = entry.parent.as_deref().and_then(|parent| sessions.get(parent)).and_then(|parent| parent.last);
    let computed = entry.end_ns.zip(ended.total_ns).map(|(end, total)| end.saturating_sub(total));
    let arrival = ended.received_ns.or(computed);
    let output = ended.output.unwrap_or(0);
    watch.output(sink, record.number, record.offset, output);
    match arrival {
        Some(ns) => watch.time(sink, record.number, record.offset, (ns, true)),
        None => sink.log(NO_ARRIVAL, "when a request came is not recorded", Some(record.number), Some(record.offset)),
    }
    let replay = ended.replay;
    let request = Request {
        source_key: ended.id.as_deref(),
        session_id: session,
        turn: session.map(|_| standing.turns),
        parent: standing.last.or(before),
        model: ended.model.as_deref(),
        kind: entry.workload.as_deref(),
        arrival_ns: arrival,
        delay_ns: standing.pause(arrival),
        prompt_tokens: ended.input.or(replay.map(|(_, input, _)| input)).unwrap_or(0),
        output_tokens: output,
        block_tokens: replay.map(|(block, ..)| block),
        block_hashes: replay.map(|_| hashes),
        measured_ttft_ns: ended.ttft_ns,
        measured_tpot_ns: ended.itl_ns,
        measured_e2e_ns: ended.total_ns,
        measured_hit_tokens: ended.cached,
        ..Request::default()
    };
    let id = requests.push(&request, &[], sink)?;
    if let Some(session) = session {
        let end_ns = entry.end_ns.or_else(|| arrival.zip(ended.total_ns).map(|(at, total)| at.saturating_add(total)));
        let turns = standing.turns.saturating_add(1);
        sessions.put(session.into(), Standing { last: Some(id), turns, end_ns, tools: None });
    }
    Ok(())
}

impl Standing {
    /// The pause before a request that came at `arrival`; overlapping requests have none.
    fn pause(&self, arrival: Option<i64>) -> Option<i64> {
        let pause = match (self.end_ns, arrival, self.tools) {
            (Some(end), Some(arrival), _) => arrival.saturating_sub(end),
            (Some(end), None, Some((_, last))) => last.saturating_sub(end),
            (None, _, Some((first, last))) => last.saturating_sub(first),
            _ => return None,
        };
        Some(pause.max(0))
    }
}

/// Takes note of an event that is no request.
fn beside(entry: &Entry<'_>, record: &Record, sessions: &mut Recent<Box<str>, Standing>, sink: &mut Sink<'_>) {
    let kind = entry.kind.as_deref().unwrap_or_default();
    let (event, message) = match kind {
        "tool_start" | "tool_end" => {
            (TOOL, format!("an event `{kind}` was counted for the pause before the next request"))
        }
        "tool_error" => (TOOL_ERROR, "a tool failed; its time counts for the pause before the next request".to_owned()),
        _ => (OTHER, format!("an event of type {} was skipped", quoted(kind.as_bytes()))),
    };
    sink.log(event, &message, Some(record.number), Some(record.offset));
    let Some(session) = session(entry).filter(|_| kind.starts_with("tool_")) else { return };
    let (start, end) = entry.tool.unwrap_or_default();
    let Some(end) = end.or(entry.end_ns) else { return };
    // A start is an event of its own, whose instant is that of the event.
    let start = start.unwrap_or(end).min(end);
    let mut standing = sessions.get(session).copied().unwrap_or_default();
    let (first, last) = standing.tools.unwrap_or((start, end));
    standing.tools = Some((first.min(start), last.max(end)));
    sessions.put(session.into(), standing);
}

/// Whether a request has what it needs.
fn check(entry: &Entry<'_>, text: &[u8], hashes: usize) -> std::result::Result<(), Bad> {
    let missing = |name: &str| bad_at(text, text.len(), "missing_key", format!("the key `{name}`"));
    if entry.kind.is_none() {
        return Err(missing("event_type"));
    }
    let Some(ended) = &entry.request else {
        return if entry.kind.as_deref() == Some("request_end") { Err(missing("request")) } else { Ok(()) };
    };
    if ended.id.is_none() {
        return Err(missing("request_id"));
    }
    if ended.output.is_none() {
        return Err(missing("output_tokens"));
    }
    match ended.replay {
        None if ended.input.is_none() => Err(missing("input_tokens")),
        Some((block, input, at)) if hashes != input.div_ceil(block) as usize => Err(Bad {
            at,
            code: "block_count",
            expected: format!("{} blocks of {block} for {input} tokens", input.div_ceil(block)),
            found: format!("{hashes}: the block count does not fit the length"),
        }),
        _ => Ok(()),
    }
}

/// Reads one event, with or without its envelope. `unknown` gets the keys that have no place in the tables.
fn parse<'a>(
    text: &'a [u8],
    hashes: &mut Vec<u64>,
    unknown: &mut Vec<&'a [u8]>,
) -> std::result::Result<Entry<'a>, Bad> {
    let mut entry = Entry::default();
    hashes.clear();
    walk::record(text, &mut |scan, key, _| match key {
        b"event" => walk::object(scan, "`event` as an object", &mut |scan, key, _| {
            member(scan, key, text, &mut entry, hashes, unknown)
        }),
        b"timestamp" => scan.value(),
        _ => member(scan, key, text, &mut entry, hashes, unknown),
    })?;
    Ok(entry)
}

/// A time in milliseconds, or `null` for unknown.
fn millis(scan: &mut Scan<'_>, what: &str) -> std::result::Result<Option<i64>, Bad> {
    if walk::null(scan)? { Ok(None) } else { walk::time(scan, what, TimeUnit::Ms).map(|(ns, _)| Some(ns)) }
}

fn member<'a>(
    scan: &mut Scan<'a>,
    key: &'a [u8],
    text: &'a [u8],
    entry: &mut Entry<'a>,
    hashes: &mut Vec<u64>,
    unknown: &mut Vec<&'a [u8]>,
) -> std::result::Result<(), Bad> {
    match key {
        b"event_type" => entry.kind = Some(walk::text(scan, text, "`event_type`")?),
        b"event_time_unix_ms" => entry.end_ns = millis(scan, "`event_time_unix_ms`")?,
        b"schema" | b"event_source" => scan.value()?,
        b"agent_context" if !walk::null(scan)? => {
            walk::object(scan, "`agent_context` as an object", &mut |scan, key, _| {
                let slot = match key {
                    b"session_type_id" | b"workflow_type_id" => &mut entry.workload,
                    b"session_id" | b"workflow_id" => &mut entry.session,
                    b"trajectory_id" | b"program_id" => &mut entry.trajectory,
                    b"parent_trajectory_id" | b"parent_program_id" | b"parent_session_id" => &mut entry.parent,
                    _ => {
                        unknown.push(key);
                        return scan.value();
                    }
                };
                *slot = walk::maybe_text(scan, text, "an id")?;
                Ok(())
            })?;
        }
        b"request" if !walk::null(scan)? => entry.request = Some(ended(scan, text, hashes, unknown)?),
        b"tool" if !walk::null(scan)? => {
            let (mut start, mut end, mut span) = (None, None, None);
            walk::object(scan, "`tool` as an object", &mut |scan, key, _| {
                match key {
                    b"started_at_unix_ms" => start = millis(scan, "`started_at_unix_ms`")?,
                    b"ended_at_unix_ms" => end = millis(scan, "`ended_at_unix_ms`")?,
                    b"duration_ms" => span = millis(scan, "`duration_ms`")?,
                    _ => scan.value()?,
                }
                Ok(())
            })?;
            let known = end.or(entry.end_ns).zip(span).map(|(end, span)| end.saturating_sub(span));
            entry.tool = Some((start.or(known), end));
        }
        b"agent_context" | b"request" | b"tool" => {}
        _ => {
            unknown.push(key);
            scan.value()?;
        }
    }
    Ok(())
}

fn ended<'a>(
    scan: &mut Scan<'a>,
    text: &'a [u8],
    hashes: &mut Vec<u64>,
    unknown: &mut Vec<&'a [u8]>,
) -> std::result::Result<Ended<'a>, Bad> {
    let mut ended = Ended::default();
    walk::object(scan, "`request` as an object", &mut |scan, key, _| {
        match key {
            b"request_id" => ended.id = walk::maybe_id(scan, text, "`request_id`")?,
            b"model" => ended.model = walk::maybe_text(scan, text, "`model`")?,
            b"input_tokens" => ended.input = walk::maybe_tokens(scan, "`input_tokens`")?,
            b"output_tokens" => ended.output = walk::maybe_tokens(scan, "`output_tokens`")?,
            b"cached_tokens" => ended.cached = walk::maybe_tokens(scan, "`cached_tokens`")?,
            b"request_received_ms" => ended.received_ns = millis(scan, "`request_received_ms`")?,
            b"ttft_ms" => ended.ttft_ns = millis(scan, "`ttft_ms`")?,
            b"total_time_ms" => ended.total_ns = millis(scan, "`total_time_ms`")?,
            b"avg_itl_ms" => ended.itl_ns = millis(scan, "`avg_itl_ms`")?,
            b"replay" if !walk::null(scan)? => ended.replay = Some(replay(scan, text, hashes, unknown)?),
            b"replay" => {}
            _ => {
                unknown.push(key);
                scan.value()?;
            }
        }
        Ok(())
    })?;
    Ok(ended)
}

fn replay<'a>(
    scan: &mut Scan<'a>,
    text: &'a [u8],
    hashes: &mut Vec<u64>,
    unknown: &mut Vec<&'a [u8]>,
) -> std::result::Result<(u32, u32, usize), Bad> {
    let (mut block, mut input, mut at) = (None, None, None);
    walk::object(scan, "`replay` as an object", &mut |scan, key, _| {
        match key {
            b"trace_block_size" => {
                let from = scan.at();
                block = Some(walk::tokens(scan, "`trace_block_size`")?);
                if block == Some(0) {
                    return Err(bad_at(text, from, "out_of_range", "`trace_block_size` of at least 1"));
                }
            }
            b"input_length" => input = Some(walk::tokens(scan, "`input_length`")?),
            b"input_sequence_hashes" => {
                at = Some(scan.at());
                scan.ids("`input_sequence_hashes`", "a hash", MOST, hashes)?;
            }
            _ => {
                unknown.push(key);
                scan.value()?;
            }
        }
        Ok(())
    })?;
    let missing = |name: &str| bad_at(text, scan.at(), "missing_key", format!("the key `{name}` in `replay`"));
    Ok((
        block.ok_or_else(|| missing("trace_block_size"))?,
        input.ok_or_else(|| missing("input_length"))?,
        at.ok_or_else(|| missing("input_sequence_hashes"))?,
    ))
}

#[cfg(test)]
mod tests;
