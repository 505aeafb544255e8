//! Mooncake traces and their dialects: one JSON object a line, with the prefix hashes of each prompt's blocks.
//!
//! ```text
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 2353]}
//! {"request_id":"r2","session_id":"s1","input_length":1024,"output_length":9,"hash_ids":[1,2],"wait_for":["r1"],"delay":12.5,"tool_wait_ms":300}
//! ```
//!
//! The first line is Mooncake's own: `timestamp` counts milliseconds from the start of the trace; a block has 512 tokens,
//! and the last block counts though it is not full, so `hash_ids` has ceil(`input_length` / 512) entries. An id stands for
//! its block and all before it. Ids are u64 from end to end. The second is Dynamo's agentic form of it. What the dialects
//! change, and how it is found:
//!
//! * Blocks of 64 or 16 tokens, and a partial last block without an id: the first rows decide ([`super::blocks`]); a row
//!   may name its own `block_size` (`PyPI` kvcache-simulator). A row that contradicts what was found is a bad row.
//! * `timestamp` in seconds (guidellm, vLLM `timed_trace`): taken where decimal points occur in the first rows and
//!   milliseconds would mean more than 200 requests or 500,000 prompt tokens per second.
//! * `session_id` and `delay` (`AIPerf`, Dynamo): turns are numbered in file order, and `delay` and `tool_wait_ms` (always
//!   milliseconds) add up to the pause. A row that follows others by `delay` or `wait_for` needs no `timestamp`.
//! * No `hash_ids` (`AIPerf`): read where none of the first rows has them; elsewhere a row without them is a bad row.
//! * Dynamo's other names `input_tokens`, `output_tokens`, `created_time` and `delay_ms`; `request_id` becomes
//!   `source_key`, `request_kind` becomes `kind`, and of `wait_for` the last known request is the parent.
//!
//! Ids of different files never mean the same content (`sources.hash_scope` is `file`). They are stored as they are; a
//! replay takes one source as its workload, so that they do not meet.
//!
//! Refused, row by row: what is no JSON object, a missing or repeated key, a negative or broken number, an id of 2^64 or
//! more, and a number of ids that does not fit the length. Rows in which nothing was generated are kept with the status
//! `no_output`. Other keys (`text_input`, `branches`, `prefix_reset`, `tool_events`, ...) are counted and not kept.

use std::borrow::Cow;

use engine::error::{Error, Result};

use super::blocks::{Blocks, Common, MOST, Rounding, guess};
use super::json::{Scan, bad_at};
use super::problem::Bad;
use super::recent::{Recent, Sessions};
use super::requests::{Request, Requests};
use super::rows::{self, Outcome, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::{TimeUnit, decimal_ns};
use super::walk::{self, Unknown};
use super::{Format, Head, Options, Origin, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "mooncake",
    doc: "Mooncake request traces with block hashes, as JSON lines, and their dialects (AIPerf, Dynamo, guidellm, vLLM)",
    spec: "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release",
    verified: true,
    sniff,
    read,
};

/// What the format says.
const STANDARD: Blocks = Blocks { tokens: 512, rounding: Rounding::Ceil };

/// The four keys, each with its other name.
const KEYS: [[&str; 2]; 4] = [
    ["timestamp", "created_time"],
    ["input_length", "input_tokens"],
    ["output_length", "output_tokens"],
    ["hash_ids", "hash_ids"],
];

/// The most requests that a row may wait for.
const AWAITED: usize = 1 << 16;

/// Keys of formats that share some of these.
const OTHERS: [&str; 3] = ["chat_id", "sys_prompt", "event_type"];

const NO_IDS: Event = Event {
    severity: Severity::Notice,
    code: "no_block_ids",
    advice: Some("such a request has no blocks to share; its lengths are kept"),
};
const DEPENDENCIES: Event = Event {
    severity: Severity::DataLoss,
    code: "dependencies",
    advice: Some("only the last known of them is kept, as `parent_request_id`"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let has = |line: &[u8], key: &str| walk::has_keys(line, &[key]);
    let mut best: Option<Vec<&str>> = None;
    for line in head.bytes.split(|byte| *byte == b'\n').take(20) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        // Other names of lengths are those of many formats: only beside block ids do they stand for these.
        let known = if has(line, "hash_ids") { 2 } else { 1 };
        let lacks = |names: &&[&str; 2]| !names.iter().take(known).any(|name| has(line, name));
        let missing: Vec<&str> = KEYS.iter().filter(lacks).map(|names| names[0]).collect();
        if !line.starts_with(b"{") || missing.len() > 2 {
            continue;
        }
        if OTHERS.iter().any(|key| has(line, key)) {
            return Sniff::No;
        }
        if best.as_ref().is_none_or(|best| missing.len() < best.len()) {
            best = Some(missing);
        }
    }
    match best {
        Some(missing) if missing.iter().all(|key| *key == "hash_ids") => Sniff::Yes,
        Some(missing) => {
            let missing: Vec<String> = missing.into_iter().map(|key| format!("`{key}`")).collect();
            Sniff::Nearly(format!("rows lack {}", missing.join(", ")))
        }
        None => Sniff::No,
    }
}

/// One row as it is written; its ids are in the scratch list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Row<'a> {
    /// The instant as it is written, and where.
    time: Option<(&'a [u8], usize)>,
    input: u32,
    output: u32,
    /// Where the ids are; none if they are null or the key is not there.
    ids_at: Option<usize>,
    /// Where the line ends, if it lacks the key `hash_ids`.
    unhashed: Option<usize>,
    /// What only dialects have.
    more: Option<Box<More<'a>>>,
}

/// What only dialects have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct More<'a> {
    key: Option<Cow<'a, str>>,
    session: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    delay_ns: Option<i64>,
    block_tokens: Option<u32>,
    wait_for: Vec<Cow<'a, str>>,
    output_token_ids: Option<Vec<u32>>,
}

impl Row<'_> {
    /// The block size that the row names.
    fn block_tokens(&self) -> Option<u32> {
        self.more.as_ref()?.block_tokens
    }
}

/// How a file is read.
#[derive(Debug, Clone, Copy)]
struct Setup {
    unit: TimeUnit,
    blocks: Blocks,
    /// Whether each row must have `hash_ids`.
    hashed: bool,
    origin: Origin,
    epoch: bool,
}

/// What is known of the rows before.
struct Before {
    watch: Watch,
    sessions: Sessions,
    keys: Recent<Box<str>, u64>,
    /// The block size of the rows.
    common: Common,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lines = rows::lines(input.path, &mut input.body)?;
    let first = rows::first(lines)?;
    let setup = settings(input.path, input.options, first.iter().map(rows::Kept::line))?;
    let mut requests = Requests::new();
    let mut ids: Vec<u64> = Vec::new();
    let mut before =
        Before { watch: Watch::new(), sessions: Sessions::new(), keys: Recent::new(), common: Common::default() };
    rows::each(input.path, &first, lines, sink, &mut |line, sink| {
        let mut unknown = Unknown::new();
        let row = match parse(line.bytes, setup.blocks.most(), &mut ids, &mut unknown) {
            Ok(row) => row,
            Err(bad) => return Ok(Outcome::Bad(bad.into())),
        };
        let time = match settle(line.bytes, &row, ids.len(), setup) {
            Ok(time) => time,
            Err(bad) => return Ok(Outcome::Bad(bad.into())),
        };
        before.watch.unknown(sink, line, &unknown);
        push(&row, time, &ids, setup, line, &mut before, &mut requests, sink)?;
        Ok(Outcome::Row)
    })?;
    requests.flush(sink)?;
    Ok(Settings {
        time_unit: Some(setup.unit.name()),
        clock: Some(if setup.epoch { "epoch" } else { "trace_start" }),
        block_tokens: before.common.one().filter(|_| setup.hashed),
        rounding: setup.hashed.then(|| setup.blocks.rounding.name()),
        hash_scope: setup.hashed.then_some("file"),
        id_kind: setup.hashed.then_some("prefix"),
        origin: setup.origin,
    })
}

#[expect(clippy::too_many_arguments, reason = "one row with its line and what the loop over rows owns")]
fn push(
    row: &Row<'_>,
    time: Option<(i64, bool)>,
    ids: &[u64],
    setup: Setup,
    line: Line<'_>,
    before: &mut Before,
    requests: &mut Requests,
    sink: &mut Sink<'_>,
) -> Result<()> {
    before.watch.output(sink, line.number, line.offset, row.output);
    if let Some(time) = time {
        before.watch.time(sink, line.number, line.offset, time);
    }
    if row.ids_at.is_none() {
        sink.log(NO_IDS, "a row has no block ids", Some(line.number), Some(line.offset));
    }
    let plain = More::default();
    let more = row.more.as_deref().unwrap_or(&plain);
    if more.wait_for.len() > 1 {
        sink.log(DEPENDENCIES, "a row waits for several requests", Some(line.number), Some(line.offset));
    }
    let block_tokens = more.block_tokens.unwrap_or(setup.blocks.tokens);
    before.common.add(block_tokens);
    let session = more.session.as_deref();
    let (turn, earlier) = session.map(|session| before.sessions.next(session)).unzip();
    let awaited = more.wait_for.iter().rev().find_map(|key| before.keys.get(key.as_ref()).copied());
    let request = Request {
        source_key: more.key.as_deref(),
        session_id: session,
        turn,
        parent: earlier.flatten().or(awaited),
        kind: more.kind.as_deref(),
        arrival_ns: time.map(|(ns, _)| ns),
        delay_ns: more.delay_ns,
        prompt_tokens: row.input,
        output_tokens: row.output,
        block_tokens: row.unhashed.is_none().then_some(block_tokens),
        block_hashes: row.ids_at.is_some().then_some(ids),
        output_token_ids: more.output_token_ids.as_deref(),
        ..Request::default()
    };
    let id = requests.push(&request, &[], sink)?;
    if let Some(session) = session {
        before.sessions.took(session, id);
    }
    if let Some(key) = &more.key {
        before.keys.put(key.as_ref().into(), id);
    }
    Ok(())
}

/// Decides on block size, rounding and time unit by the first lines.
fn settings<'a>(path: &str, options: &Options, first: impl Iterator<Item = Line<'a>>) -> Result<Setup> {
    let (mut counts, mut times) = (Vec::new(), Times::default());
    let (mut ids, mut hashed, mut rows) = (Vec::new(), false, 0);
    for line in first {
        let Ok(row) = parse(line.bytes, MOST, &mut ids, &mut Unknown::new()) else { continue };
        (hashed, rows) = (hashed | row.unhashed.is_none(), rows + 1);
        if row.ids_at.is_some() && row.block_tokens().is_none() {
            counts.push((row.input, ids.len()));
        }
        if let Some((token, _)) = row.time {
            times.add(token, row.input);
        }
    }
    let (blocks, origin) = guess(path, &counts, STANDARD, options.block_tokens)?;
    let (unit, unit_origin) = times.unit(path, options.time_unit)?;
    let hashed = hashed || rows == 0;
    Ok(Setup { unit, blocks, hashed, origin: origin.max(unit_origin), epoch: times.epoch(unit) })
}

/// The instants of the first rows, for a judgement and no more: floating point will do.
#[derive(Debug, Default)]
struct Times {
    decimal: bool,
    rows: u32,
    tokens: u64,
    span: Option<(f64, f64)>,
}

/// More than this is no trace of a service in milliseconds: the largest public ones reach 45 requests and 90,000 prompt
/// tokens per second.
const REQUESTS_PER_S: f64 = 200.0;
const TOKENS_PER_S: f64 = 500_000.0;

/// More than this contradicts a flag.
const MOST_REQUESTS_PER_S: f64 = 100_000.0;

impl Times {
    fn add(&mut self, token: &[u8], tokens: u32) {
        let Some(time) = std::str::from_utf8(token).ok().and_then(|text| text.parse::<f64>().ok()) else { return };
        self.decimal |= token.contains(&b'.');
        self.rows += 1;
        self.tokens += u64::from(tokens);
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// Requests and tokens per second, if the instants are in this unit; none where the rows do not tell.
    fn rates(&self, unit: TimeUnit) -> Option<(f64, f64)> {
        let (first, last) = self.span?;
        let seconds = (last - first) / per_second(unit);
        (self.rows >= 4 && seconds > 0.0).then(|| (f64::from(self.rows) / seconds, self.tokens as f64 / seconds))
    }

    fn unit(&self, path: &str, flag: Option<TimeUnit>) -> Result<(TimeUnit, Origin)> {
        let absurd = |(requests, tokens)| requests > REQUESTS_PER_S || tokens > TOKENS_PER_S;
        let seconds = self.decimal && self.rates(TimeUnit::Ms).is_some_and(absurd);
        let found = if seconds { (TimeUnit::S, Origin::Detected) } else { (TimeUnit::Ms, Origin::Format) };
        let Some(unit) = flag else { return Ok(found) };
        match self.rates(unit) {
            Some((requests, _)) if requests > MOST_REQUESTS_PER_S && unit != found.0 => Err(Error::data(format!(
                "expected instants in {} in `{path}`, as the flag says, found {:.0} requests per second in its first rows",
                unit.name(),
                requests
            ))
            .hint("without the flag the unit is found from the data")),
            _ => Ok((unit, Origin::Flag)),
        }
    }

    /// Whether the instants count from 1970: they lie after September 2001.
    fn epoch(&self, unit: TimeUnit) -> bool {
        self.span.is_some_and(|(first, _)| first / per_second(unit) > 1e9)
    }
}

/// How many units a second has.
fn per_second(unit: TimeUnit) -> f64 {
    match unit {
        TimeUnit::Ns => 1e9,
        TimeUnit::Us => 1e6,
        TimeUnit::Ms => 1e3,
        TimeUnit::S => 1.0,
    }
}

/// What a line has given so far.
struct Fields<'a, 'l> {
    line: &'a [u8],
    most: usize,
    ids: &'l mut Vec<u64>,
    unknown: &'l mut Unknown<'a>,
    row: Row<'a>,
    input: Option<u32>,
    output: Option<u32>,
    /// Whether the key `hash_ids` was there; a null leaves `row.ids_at` empty.
    hashes: bool,
    tool_ns: Option<i64>,
}

/// Reads one line as it is written. `unknown` gets each key that is not part of the format, with its offset.
fn parse<'a>(
    line: &'a [u8],
    most: usize,
    ids: &mut Vec<u64>,
    unknown: &mut Unknown<'a>,
) -> std::result::Result<Row<'a>, Bad> {
    if let Some(row) = usual(line, most, ids) {
        return Ok(row);
    }
    ids.clear();
    let (row, input, output, hashes, tool_ns) = (Row::default(), None, None, false, None);
    let mut fields = Fields { line, most, ids, unknown, row, input, output, hashes, tool_ns };
    let mut scan = Scan::new(line);
    if scan.peek() != Some(b'{') {
        return Err(scan.bad("json", "a JSON object"));
    }
    walk::object(&mut scan, "a JSON object", &mut |scan, key, key_at| {
        let again = field(&mut fields, scan, key, key_at)?;
        if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
    })?;
    scan.end()?;
    finished(fields, scan.at())
}

/// Reads a line that is laid out as Mooncake lays out all of its own: half of the time of such a file would go into
/// telling its keys apart. None for any other line, good or bad.
#[inline]
fn usual<'a>(line: &'a [u8], most: usize, ids: &mut Vec<u64>) -> Option<Row<'a>> {
    let mut scan = Scan::new(line);
    scan.literal(b"{\"timestamp\": ")?;
    let at = scan.at();
    let token = scan.number("a number").ok().filter(|token| token.first() != Some(&b'-'))?;
    scan.literal(b", \"input_length\": ")?;
    let input = walk::tokens(&mut scan, "a length").ok()?;
    scan.literal(b", \"output_length\": ")?;
    let output = walk::tokens(&mut scan, "a length").ok()?;
    scan.literal(b", \"hash_ids\": ")?;
    let ids_at = Some(scan.at());
    scan.ids("`hash_ids`", "a block id", most, ids).ok()?;
    scan.literal(b"}")?;
    scan.end().ok()?;
    Some(Row { time: Some((token, at)), input, output, ids_at, ..Row::default() })
}

/// Reads the value of one key; whether the key was there before.
fn field<'a>(
    fields: &mut Fields<'a, '_>,
    scan: &mut Scan<'a>,
    key: &'a [u8],
    key_at: usize,
) -> std::result::Result<bool, Bad> {
    let (at, row) = (scan.at(), &mut fields.row);
    Ok(match key {
        b"timestamp" | b"created_time" => {
            let token = if walk::null(scan)? { None } else { Some((number(scan)?, at)) };
            token.is_some_and(|token| row.time.replace(token).is_some())
        }
        b"input_length" | b"input_tokens" => fields.input.replace(walk::tokens(scan, "`input_length`")?).is_some(),
        b"output_length" | b"output_tokens" => fields.output.replace(walk::tokens(scan, "`output_length`")?).is_some(),
        b"hash_ids" => {
            if !walk::null(scan)? {
                scan.ids("`hash_ids`", "a block id", fields.most, fields.ids)?;
                row.ids_at = Some(at);
            }
            std::mem::replace(&mut fields.hashes, true)
        }
        _ => return dialect(fields, scan, key, key_at),
    })
}

/// As [`field`], for the keys of dialects.
fn dialect<'a>(
    fields: &mut Fields<'a, '_>,
    scan: &mut Scan<'a>,
    key: &'a [u8],
    key_at: usize,
) -> std::result::Result<bool, Bad> {
    const KNOWN: [&[u8]; 9] = [
        b"session_id",
        b"request_id",
        b"request_kind",
        b"delay",
        b"delay_ms",
        b"tool_wait_ms",
        b"block_size",
        b"wait_for",
        b"output_token_ids",
    ];
    if !KNOWN.contains(&key) {
        scan.value()?;
        fields.unknown.push((key, key_at));
        return Ok(false);
    }
    let (line, at, more) = (fields.line, scan.at(), fields.row.more.get_or_insert_default());
    Ok(match key {
        b"session_id" => put(&mut more.session, walk::maybe_id(scan, line, "`session_id`")?),
        b"request_id" => put(&mut more.key, walk::maybe_id(scan, line, "`request_id`")?),
        b"request_kind" => put(&mut more.kind, walk::maybe_text(scan, line, "`request_kind`")?),
        b"delay" | b"delay_ms" => put(&mut more.delay_ns, pause(scan, "`delay`")?),
        b"block_size" => {
            let size = walk::maybe_tokens(scan, "`block_size`")?;
            if size == Some(0) {
                return Err(bad_at(line, at, "out_of_range", "`block_size` of at least 1"));
            }
            put(&mut more.block_tokens, size)
        }
        b"wait_for" => {
            walk::list(scan, "`wait_for`", &mut |scan| {
                if more.wait_for.len() == AWAITED {
                    return Err(scan.bad("too_many", format!("at most {AWAITED} requests to wait for")));
                }
                more.wait_for.push(walk::text(scan, line, "a request id")?);
                Ok(())
            })?;
            false
        }
        b"tool_wait_ms" => put(&mut fields.tool_ns, pause(scan, "`tool_wait_ms`")?),
        _ if !walk::null(scan)? => {
            let mut tokens = Vec::new();
            walk::token_ids(scan, "`output_token_ids`", &mut tokens)?;
            put(&mut more.output_token_ids, Some(tokens))
        }
        _ => false,
    })
}

/// The row, if the line gave all that a row needs; `end` is where the line ends.
fn finished<'a>(fields: Fields<'a, '_>, end: usize) -> std::result::Result<Row<'a>, Bad> {
    let Fields { line, unknown, mut row, input, output, hashes, tool_ns, .. } = fields;
    let missing = |name: &str| bad_at(line, end, "missing_key", format!("the key `{name}`"));
    let follows = |more: &More<'_>| more.delay_ns.is_some() || !more.wait_for.is_empty();
    if row.time.is_none() && tool_ns.is_none() && !row.more.as_deref().is_some_and(follows) {
        return Err(missing("timestamp"));
    }
    let texts = unknown.iter().any(|(key, _)| matches!(*key, b"text_input" | b"messages"));
    row.input = input.ok_or_else(|| {
        let why = if texts { ", since text must be tokenised first" } else { "" };
        bad_at(line, end, "missing_key", format!("the key `input_length`{why}"))
    })?;
    row.output = output.ok_or_else(|| missing("output_length"))?;
    row.unhashed = (!hashes).then_some(end);
    if let (Some(tools), Some(more)) = (tool_ns, row.more.as_mut()) {
        more.delay_ns = Some(more.delay_ns.unwrap_or(0).saturating_add(tools));
    }
    Ok(row)
}

/// Fills a slot; whether it was filled before.
fn put<T>(slot: &mut Option<T>, value: Option<T>) -> bool {
    value.is_some_and(|value| slot.replace(value).is_some())
}

/// A pause in milliseconds, or `null` for none.
fn pause(scan: &mut Scan<'_>, what: &str) -> std::result::Result<Option<i64>, Bad> {
    if walk::null(scan)? { Ok(None) } else { walk::time(scan, what, TimeUnit::Ms).map(|(ns, _)| Some(ns)) }
}

/// An instant as it is written.
fn number<'a>(scan: &mut Scan<'a>) -> std::result::Result<&'a [u8], Bad> {
    let at = scan.at();
    let token = scan.number("`timestamp` as a number")?;
    if token.first() == Some(&b'-') {
        return Err(scan.bad_from(at, "negative", "`timestamp` of at least zero"));
    }
    Ok(token)
}

/// Checks a row against the settings of the file, and gives its instant.
fn settle(line: &[u8], row: &Row<'_>, ids: usize, setup: Setup) -> std::result::Result<Option<(i64, bool)>, Bad> {
    if let Some(end) = row.unhashed
        && setup.hashed
    {
        return Err(bad_at(line, end, "missing_key", "the key `hash_ids`"));
    }
    let blocks = Blocks { tokens: row.block_tokens().unwrap_or(setup.blocks.tokens), ..setup.blocks };
    let expected = blocks.count(row.input);
    if let Some(at) = row.ids_at
        && ids != expected as usize
    {
        return Err(Bad {
            at,
            code: "block_count",
            expected: format!("{expected} blocks of {} for {} tokens", blocks.tokens, row.input),
            found: format!("{ids}: the block count does not fit the length"),
        });
    }
    row.time.map(|(token, at)| instant(line, token, at, setup.unit)).transpose()
}

fn instant(line: &[u8], token: &[u8], at: usize, unit: TimeUnit) -> std::result::Result<(i64, bool), Bad> {
    // Nearly all are whole numbers of a few digits.
    if token.len() <= 9 && unit == TimeUnit::Ms && token.iter().all(u8::is_ascii_digit) {
        let value = token.iter().fold(0_i64, |value, digit| value * 10 + i64::from(digit - b'0'));
        return Ok((value * 1_000_000, true));
    }
    decimal_ns(token, unit).ok_or_else(|| {
        bad_at(line, at, "out_of_range", format!("`timestamp` in {} below 2^63 nanoseconds", unit.name()))
    })
}

#[cfg(test)]
mod tests;
