//! Qwen-Bailian traces: one JSON object a line, chats that name the chat they continue.
//!
//! ```text
//! {"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 502, "output_length": 1494, "type": "thinking", "turn": 1, "hash_ids": [0, 1, ..., 31]}
//! ```
//!
//! `timestamp` counts seconds from the start of the trace and has a decimal point. A block has 16 tokens and the last one
//! counts though it is not full (502 tokens have 32 ids). The ids are salted hashes, numbered anew in each file: they mean
//! nothing in another one. `type` (text, search, image, file, thinking, coder, ...) becomes `kind`.
//!
//! A session is a root (`parent_chat_id` -1) and all that leads back to it; its id is the root's `chat_id`. A child need
//! not extend its parent's prompt. `turn` counts from 1 in the file and from 0 in the store. A parent that is not known,
//! since its row is missing, bad, later, or more than a million rows back, is logged and its child begins a session.
//!
//! Refused, row by row: what is no JSON object, a missing or repeated key, a negative or broken number, and a number of
//! ids that does not fit the length. The published files were not at hand: this adapter was held against the rows that
//! others quote.

use std::borrow::Cow;

use engine::error::Result;

use super::blocks::{Blocks, MOST, Rounding, guess};
use super::json::bad_at;
use super::problem::Bad;
use super::recent::Recent;
use super::requests::{Request, Requests};
use super::rows::{self, Outcome, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::TimeUnit;
use super::walk::{self, Unknown};
use super::{Format, Head, Origin, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "qwen",
    doc: "Qwen-Bailian chat traces with block hashes, as JSON lines",
    spec: "https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
    verified: false,
    sniff,
    read,
};

/// What the format says.
const STANDARD: Blocks = Blocks { tokens: 16, rounding: Rounding::Ceil };

const KEYS: [&str; 7] = ["chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "turn", "hash_ids"];

const NO_PARENT: Event = Event {
    severity: Severity::Notice,
    code: "unknown_parent",
    advice: Some("the row begins a session of its own; check whether the file is a part of a longer one"),
};
const NO_TURN: Event = Event { severity: Severity::Notice, code: "turn_zero", advice: None };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    if !line.starts_with(b"{") || !walk::has_keys(line, &["chat_id"]) {
        return Sniff::No;
    }
    let missing: Vec<String> =
        KEYS.iter().filter(|key| !walk::has_keys(line, &[key])).map(|key| format!("`{key}`")).collect();
    if missing.is_empty() { Sniff::Yes } else { Sniff::Nearly(format!("rows lack {}", missing.join(", "))) }
}

/// One row; its ids are in the scratch list.
struct Row<'a> {
    chat: u64,
    parent: Option<u64>,
    time: (i64, bool),
    input: u32,
    output: u32,
    kind: Option<Cow<'a, str>>,
    turn: u64,
    ids_at: usize,
}

/// The root of a chat's session and the chat's local id.
type Chats = Recent<u64, (u64, u64)>;

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lines = rows::lines(input.path, &mut input.body)?;
    let unit = input.options.time_unit.unwrap_or(TimeUnit::S);
    let first = rows::first(lines)?;
    let mut ids = Vec::new();
    let counts: Vec<(u32, usize)> = first
        .iter()
        .filter_map(|kept| parse(kept.line().bytes, unit, MOST, &mut ids, &mut Unknown::new()).ok())
        .map(|(row, ids)| (row.input, ids))
        .collect();
    // The format fixes both, so that data which says otherwise is no reason to read on.
    let (blocks, origin) = match input.options.block_tokens {
        None => (STANDARD, Origin::Format),
        flag => guess(input.path, &counts, STANDARD, flag)?,
    };
    let (mut requests, mut chats, mut watch) = (Requests::new(), Chats::new(), Watch::new());
    rows::each(input.path, &first, lines, sink, &mut |line, sink| {
        let mut unknown = Unknown::new();
        let good = parse(line.bytes, unit, blocks.most(), &mut ids, &mut unknown);
        match good.and_then(|(row, count)| fits(&row, count, blocks).map(|()| row)) {
            Err(bad) => Ok(Outcome::Bad(bad.into())),
            Ok(row) => {
                watch.unknown(sink, line, &unknown);
                watch.time(sink, line.number, line.offset, row.time);
                watch.output(sink, line.number, line.offset, row.output);
                push(&row, &ids, blocks, line, &mut chats, &mut requests, sink)?;
                Ok(Outcome::Row)
            }
        }
    })?;
    requests.flush(sink)?;
    Ok(Settings {
        time_unit: Some(unit.name()),
        clock: Some("trace_start"),
        block_tokens: Some(blocks.tokens),
        rounding: Some(blocks.rounding.name()),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        origin: if input.options.time_unit.is_some() { Origin::Flag } else { origin },
    })
}

fn fits(row: &Row<'_>, ids: usize, blocks: Blocks) -> std::result::Result<(), Bad> {
    let expected = blocks.count(row.input);
    if ids == expected as usize {
        return Ok(());
    }
    Err(Bad {
        at: row.ids_at,
        code: "block_count",
        expected: format!("{expected} blocks of {} for {} tokens", blocks.tokens, row.input),
        found: format!("{ids}: the block count does not fit the length"),
    })
}

fn push(
    row: &Row<'_>,
    ids: &[u64],
    blocks: Blocks,
    line: Line<'_>,
    chats: &mut Chats,
    requests: &mut Requests,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let parent = row.parent.and_then(|parent| chats.get(&parent).copied());
    if row.parent.is_some() && parent.is_none() {
        sink.log(NO_PARENT, "a row continues a chat that is not known", Some(line.number), Some(line.offset));
    }
    let turn = row.turn.checked_sub(1).and_then(|turn| u32::try_from(turn).ok());
    if turn.is_none() {
        sink.log(
            NO_TURN,
            "a row's `turn` does not count from 1; it is left unknown",
            Some(line.number),
            Some(line.offset),
        );
    }
    let root = parent.map_or(row.chat, |(root, _)| root);
    let (key, session) = (row.chat.to_string(), root.to_string());
    let request = Request {
        source_key: Some(&key),
        session_id: Some(&session),
        turn,
        parent: parent.map(|(_, id)| id),
        kind: row.kind.as_deref(),
        arrival_ns: Some(row.time.0),
        prompt_tokens: row.input,
        output_tokens: row.output,
        block_tokens: Some(blocks.tokens),
        block_hashes: Some(ids),
        ..Request::default()
    };
    let id = requests.push(&request, &[], sink)?;
    chats.put(row.chat, (root, id));
    Ok(())
}

/// Reads one line; gives the row and how many ids it has.
fn parse<'a>(
    line: &'a [u8],
    unit: TimeUnit,
    most: usize,
    ids: &mut Vec<u64>,
    unknown: &mut Unknown<'a>,
) -> std::result::Result<(Row<'a>, usize), Bad> {
    let (mut chat, mut parent, mut time, mut input, mut output) = (None, None, None, None, None);
    let (mut kind, mut turn, mut ids_at) = (None, None, None);
    walk::record(line, &mut |scan, key, key_at| {
        let at = scan.at();
        let again = match key {
            b"chat_id" => chat.replace(scan.whole("`chat_id`")?).is_some(),
            b"parent_chat_id" => {
                let token = scan.number("`parent_chat_id` as a number")?;
                let value = if token == b"-1" { None } else { Some(whole(line, token, at)?) };
                parent.replace(value).is_some()
            }
            b"timestamp" => time.replace(walk::time(scan, "`timestamp`", unit)?).is_some(),
            b"input_length" => input.replace(walk::tokens(scan, "`input_length`")?).is_some(),
            b"output_length" => output.replace(walk::tokens(scan, "`output_length`")?).is_some(),
            b"type" => kind.replace(walk::maybe_text(scan, line, "`type`")?).is_some(),
            b"turn" => turn.replace(scan.whole("`turn`")?).is_some(),
            b"hash_ids" => {
                scan.ids("`hash_ids`", "a block id", most, ids)?;
                ids_at.replace(at).is_some()
            }
            other => {
                scan.value()?;
                unknown.push((other, key_at));
                false
            }
        };
        if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
    })?;
    let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
    let row = Row {
        chat: chat.ok_or_else(|| missing("chat_id"))?,
        parent: parent.ok_or_else(|| missing("parent_chat_id"))?,
        time: time.ok_or_else(|| missing("timestamp"))?,
        input: input.ok_or_else(|| missing("input_length"))?,
        output: output.ok_or_else(|| missing("output_length"))?,
        kind: kind.flatten(),
        turn: turn.ok_or_else(|| missing("turn"))?,
        ids_at: ids_at.ok_or_else(|| missing("hash_ids"))?,
    };
    Ok((row, ids.len()))
}

/// A parent other than -1.
fn whole(line: &[u8], token: &[u8], at: usize) -> std::result::Result<u64, Bad> {
    let value = std::str::from_utf8(token).ok().and_then(|text| text.parse().ok());
    value.ok_or_else(|| bad_at(line, at, "wrong_type", "`parent_chat_id` as -1 or a whole number of at least zero"))
}

#[cfg(test)]
mod tests;
