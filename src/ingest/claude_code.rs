//! Session logs of Claude Code: what each request to the model used. Nothing of what was said is read into the store.
//!
//! ```text
//! {"type":"assistant","sessionId":"5f0c...","requestId":"req_011C...","timestamp":"2026-03-02T09:14:07.120Z","isSidechain":false,"message":{"id":"msg_01...","model":"claude-...","content":[...],"usage":{"input_tokens":4,"cache_creation_input_tokens":1210,"cache_read_input_tokens":48000,"output_tokens":96}}}
//! ```
//!
//! Each block of an answer is a line of its own that repeats the counts so far, so that several lines share one
//! `requestId`: the line with the most `output_tokens` counts (the first of them, if equal), and the instant is that of
//! the request's first line. Lines of one request stand near each other: 256 requests are kept open, and the one that
//! began first is written when another begins. A line that comes later than that would count as a request of its own.
//! Lines without `requestId` are told apart by the id of their message.
//!
//! The prompt is `input_tokens` + `cache_creation_input_tokens` + `cache_read_input_tokens`, which exclude each other;
//! `cache_read_input_tokens` is what the prefix cache served. `timestamp` is when a line was written, the nearest that a
//! log has to an arrival; it is stored as nanoseconds since the Unix epoch. Sub-agents (`isSidechain`, or a log with an
//! `agentId`) have contexts of their own: their session is the log's, a slash and the agent's id.
//!
//! Skipped and counted: lines without usage, and answers that the client made up itself (`<synthetic>`). Refused, line
//! by line: broken JSON, broken counts, and an assistant's usage without an instant. What a bad line says is never
//! shown or stored.

use std::borrow::Cow;
use std::collections::VecDeque;

use engine::error::Result;

use super::json::{Scan, bad_at};
use super::problem::{Bad, Problem};
use super::recent::Sessions;
use super::requests::{Request, Requests};
use super::rows::{self, EMPTY_LINE, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::{DateForm, Dates};
use super::walk::{self, has_keys};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "claude_code",
    doc: "Claude Code session logs: token usage only, one row per request, no text",
    spec: "https://docs.claude.com/en/docs/claude-code",
    verified: false,
    sniff,
    read,
};

/// Requests whose lines are still awaited.
const OPEN: usize = 256;

const NO_USAGE: Event = Event { severity: Severity::Info, code: "no_usage", advice: None };
const SUPERSEDED: Event = Event { severity: Severity::Info, code: "usage_repeated", advice: None };
const SYNTHETIC: Event = Event { severity: Severity::Info, code: "synthetic", advice: None };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let lines = || head.bytes.split(|byte| *byte == b'\n').filter(|line| line.trim_ascii_start().starts_with(b"{"));
    // The first lines of a log may be a summary or a snapshot of files; one of a session has these keys.
    if lines().any(|line| has_keys(line, &["sessionId", "uuid", "timestamp", "type"])) {
        return Sniff::Yes;
    }
    if lines().any(|line| has_keys(line, &["requestId", "message", "cache_read_input_tokens"])) {
        return Sniff::Yes;
    }
    if lines().any(|line| has_keys(line, &["cache_read_input_tokens", "message"])) {
        return Sniff::Nearly("lines lack `sessionId`, `uuid` or `requestId`".to_owned());
    }
    Sniff::No
}

/// What a line says of a request.
#[derive(Debug, Default)]
struct Usage<'a> {
    request: Option<Cow<'a, str>>,
    message: Option<Cow<'a, str>>,
    uuid: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    agent: Option<Cow<'a, str>>,
    sidechain: bool,
    model: Option<Cow<'a, str>>,
    time: Option<i64>,
    counts: Option<Counts>,
}

/// The counts of a line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    input: u32,
    created: u32,
    read: u32,
    output: u32,
}

/// A request whose lines may still come.
#[derive(Debug)]
struct Open {
    key: String,
    session: Option<String>,
    sidechain: bool,
    model: Option<String>,
    arrival_ns: i64,
    prompt: u32,
    hit: u32,
    output: u32,
    number: u64,
    offset: u64,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_blocks("claude_code")?;
    options.with_unit("claude_code", None, "its instants are dates")?;
    let mut out = Out { requests: Requests::new(), sessions: Sessions::new(), watch: Watch::new() };
    let mut open: VecDeque<Open> = VecDeque::with_capacity(OPEN);
    while let Some(line) = lines.next_line()? {
        let at = (Some(line.number), Some(line.offset));
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", at.0, at.1);
            continue;
        }
        let found = match parse(line.bytes).and_then(|usage| opened(&usage, line)) {
            Ok(found) => found,
            Err(bad) => {
                sink.found(1);
                sink.reject(hidden(path, line, bad))?;
                continue;
            }
        };
        let new = match found {
            Found::Nothing => {
                sink.log(NO_USAGE, "a line without token usage was skipped", at.0, at.1);
                continue;
            }
            Found::Synthetic => {
                sink.log(SYNTHETIC, "an answer that no model gave was skipped", at.0, at.1);
                continue;
            }
            Found::Request(new) => new,
        };
        if let Some(known) = open.iter_mut().find(|known| known.key == new.key) {
            sink.log(SUPERSEDED, "a line repeats the usage of its request; the largest counts", at.0, at.1);
            known.take(new);
            continue;
        }
        sink.found(1);
        if open.len() == OPEN
            && let Some(oldest) = open.pop_front()
        {
            out.push(&oldest, sink)?;
        }
        open.push_back(new);
    }
    for request in &open {
        out.push(request, sink)?;
    }
    out.requests.flush(sink)?;
    Ok(Settings { clock: Some("epoch"), ..Settings::default() })
}

/// Where finished requests go.
struct Out {
    requests: Requests,
    sessions: Sessions,
    watch: Watch,
}

impl Out {
    fn push(&mut self, open: &Open, sink: &mut Sink<'_>) -> Result<()> {
        let session = open.session.as_deref();
        let (turn, parent) = session.map_or((None, None), |session| {
            let (turn, parent) = self.sessions.next(session);
            (Some(turn), parent)
        });
        self.watch.time(sink, open.number, open.offset, (open.arrival_ns, true));
        self.watch.output(sink, open.number, open.offset, open.output);
        let request = Request {
            source_key: Some(&open.key),
            session_id: session,
            turn,
            parent,
            model: open.model.as_deref(),
            kind: open.sidechain.then_some("sidechain"),
            arrival_ns: Some(open.arrival_ns),
            prompt_tokens: open.prompt,
            output_tokens: open.output,
            measured_hit_tokens: Some(open.hit),
            ..Request::default()
        };
        let id = self.requests.push(&request, &[], sink)?;
        if let Some(session) = session {
            self.sessions.took(session, id);
        }
        Ok(())
    }
}

impl Open {
    /// Another line of the same request: its counts, if it has more output.
    fn take(&mut self, other: Self) {
        if other.output > self.output {
            (self.prompt, self.hit, self.output) = (other.prompt, other.hit, other.output);
        }
        self.model = self.model.take().or(other.model);
    }
}

/// What a line is.
enum Found {
    Nothing,
    Synthetic,
    Request(Open),
}

fn opened(usage: &Usage<'_>, line: Line<'_>) -> std::result::Result<Found, Bad> {
    let Some(counts) = usage.counts else { return Ok(Found::Nothing) };
    if usage.model.as_deref() == Some("<synthetic>") {
        return Ok(Found::Synthetic);
    }
    let missing = |what: &str| bad_at(line.bytes, line.bytes.len(), "missing_key", what);
    let arrival_ns = usage.time.ok_or_else(|| missing("the key `timestamp`"))?;
    let key = usage.request.as_ref().or(usage.message.as_ref()).or(usage.uuid.as_ref());
    let key = key.ok_or_else(|| missing("the key `requestId`"))?;
    let prompt = counts.input.checked_add(counts.created).and_then(|sum| sum.checked_add(counts.read));
    let prompt = prompt.ok_or_else(|| {
        bad_at(line.bytes, line.bytes.len(), "out_of_range", format!("prompt tokens of at most {}", u32::MAX))
    })?;
    let session = usage.session.as_ref().map(|session| match &usage.agent {
        Some(agent) => format!("{session}/{agent}"),
        None if usage.sidechain => format!("{session}/sidechain"),
        None => session.clone().into_owned(),
    });
    Ok(Found::Request(Open {
        key: key.clone().into_owned(),
        session,
        sidechain: usage.sidechain || usage.agent.is_some(),
        model: usage.model.as_ref().map(|model| model.clone().into_owned()),
        arrival_ns,
        prompt,
        hit: counts.read,
        output: counts.output,
        number: line.number,
        offset: line.offset,
    }))
}

/// A problem that tells the place and not the text: session logs are private.
fn hidden(path: &str, line: Line<'_>, bad: Bad) -> Problem {
    let column = bad.at as u64 + 1;
    Problem {
        line: line.number,
        column,
        byte_offset: line.offset,
        code: bad.code,
        shown: format!(
            "{path}:{}:{column}: expected {} (the line is private and not shown)",
            line.number, bad.expected
        ),
        expected: bad.expected,
        found: "not kept: session logs are private".to_owned(),
        raw: String::new(),
    }
}

fn parse(line: &[u8]) -> std::result::Result<Usage<'_>, Bad> {
    let mut usage = Usage::default();
    walk::record(line, &mut |scan, key, _| {
        match key {
            b"requestId" => usage.request = loose(scan, line)?,
            b"uuid" => usage.uuid = loose(scan, line)?,
            b"sessionId" => usage.session = loose(scan, line)?,
            b"agentId" => usage.agent = loose(scan, line)?,
            b"isSidechain" => usage.sidechain = walk::raw(scan, line)? == b"true",
            b"timestamp" => usage.time = instant(scan, line)?,
            b"message" if scan.peek() == Some(b'{') => message(scan, line, &mut usage)?,
            _ => scan.value()?,
        }
        Ok(())
    })?;
    Ok(usage)
}

/// Text; another kind of value is skipped.
fn loose<'a>(scan: &mut Scan<'a>, line: &'a [u8]) -> std::result::Result<Option<Cow<'a, str>>, Bad> {
    if scan.peek() == Some(b'"') {
        return walk::text(scan, line, "an id").map(Some);
    }
    scan.value()?;
    Ok(None)
}

/// `2026-03-02T09:14:07.120Z`; none if it is another kind of value or another form.
fn instant(scan: &mut Scan<'_>, line: &[u8]) -> std::result::Result<Option<i64>, Bad> {
    scan.peek();
    let from = scan.at();
    scan.value()?;
    let text = line.get(from..scan.at()).unwrap_or_default();
    let text = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or_default();
    // A date without a zone is no instant.
    let form = DateForm::of(text).filter(|form| form.has_zone());
    Ok(form.and_then(|form| Dates::new(form).ns(text)).filter(|ns| *ns >= 0))
}

fn message<'a>(scan: &mut Scan<'a>, line: &'a [u8], usage: &mut Usage<'a>) -> std::result::Result<(), Bad> {
    walk::object(scan, "`message` as an object", &mut |scan, key, _| {
        match key {
            b"id" => usage.message = loose(scan, line)?,
            b"model" => usage.model = loose(scan, line)?,
            b"usage" if scan.peek() == Some(b'{') => usage.counts = Some(counts(scan)?),
            _ => scan.value()?,
        }
        Ok(())
    })
}

fn counts(scan: &mut Scan<'_>) -> std::result::Result<Counts, Bad> {
    let mut counts = Counts::default();
    walk::object(scan, "`usage` as an object", &mut |scan, key, _| {
        let mut count = |what| walk::maybe_tokens(scan, what).map(|count| count.unwrap_or(0));
        match key {
            b"input_tokens" => counts.input = count("`input_tokens`")?,
            b"cache_creation_input_tokens" => counts.created = count("`cache_creation_input_tokens`")?,
            b"cache_read_input_tokens" => counts.read = count("`cache_read_input_tokens`")?,
            b"output_tokens" => counts.output = count("`output_tokens`")?,
            _ => scan.value()?,
        }
        Ok(())
    })?;
    Ok(counts)
}

#[cfg(test)]
mod tests;
