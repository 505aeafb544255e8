//! `RAGPulse` traces: one JSON object a line, whose context is named piece by piece.
//!
//! ```text
//! {"timestamp": "82", "input_length": 3112, "output_length": 192, "hash_ids": {"sys_prompt": [8302, 14332, 15199], "passages_ids": [7398, 7370], "history": [15200], "web_search": [], "user_input": [26923]}, "session_id": "1757476916095-afhwfadnh5ew"}
//! ```
//!
//! `timestamp` is text and counts seconds. The ids name pieces of text, not blocks: the same passage has the same id
//! wherever it stands, so they go into `context_segments` (as `passages:7398`) and not into `block_hashes`, in the order of
//! the file. How long each piece is stands in five files beside the trace:
//!
//! ```text
//! {"passage_id": 0, "token_length": 84}
//! ```
//!
//! They are read from the trace's folder where they are (`1_sys_prompt.jsonl` to `5_web_search.jsonl`, perhaps with `.gz`
//! or `.zst`). A piece without a
//! known length costs its request the segments, which is logged. What the pieces do not account for (6 to 12 tokens of
//! template) is a last segment of kind `unknown`, so that the segments of a request sum to its prompt.
//!
//! The published file's clock starts anew in row 3,801; rows stay in file order. Refused, row by row: what is no JSON
//! object, a missing or repeated key, a broken number, an unknown kind of piece.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use engine::error::{Error, Result};

use super::json::{Scan, bad_at};
use super::problem::{Bad, Problem};
use super::requests::{Request, Requests, Segment};
use super::rows::{self, Outcome, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{self, Body, Input, Line};
use super::time::{TimeUnit, decimal_ns};
use super::walk::{self, Unknown};
use super::{Format, Head, Origin, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "ragpulse",
    doc: "RAGPulse traces of retrieval-augmented requests, with the lengths of their passages beside them",
    spec: "https://github.com/flashserve/RAGPulse",
    verified: true,
    sniff,
    read,
};

/// A kind of piece: its key in the trace, its name in `segment_id`, its kind, its file, and its key there.
struct Part {
    key: &'static str,
    name: &'static str,
    kind: &'static str,
    file: &'static str,
    id: &'static str,
}

const PARTS: [Part; 5] = [
    Part { key: "sys_prompt", name: "sys_prompt", kind: "system", file: "1_sys_prompt", id: "sys_prompt_id" },
    Part { key: "passages_ids", name: "passages", kind: "passage", file: "2_passages", id: "passage_id" },
    Part { key: "history", name: "history", kind: "history", file: "3_history", id: "history_id" },
    Part { key: "user_input", name: "user_input", kind: "user", file: "4_user_input", id: "user_input_id" },
    Part { key: "web_search", name: "web_search", kind: "passage", file: "5_web_search", id: "web_search_id" },
];

/// The most pieces of a kind: the lengths are kept in memory. The published trace has 8,302.
const PIECES: usize = 4 << 20;

/// The most pieces of a prompt; the published trace has up to 20.
const PIECES_OF_ROW: usize = 1 << 18;

const NO_SIDE_FILE: Event = Event {
    severity: Severity::Notice,
    code: "side_file_missing",
    advice: Some(
        "put the files `1_sys_prompt.jsonl` to `5_web_search.jsonl` beside the trace to get `context_segments`",
    ),
};
const NO_LENGTH: Event = Event {
    severity: Severity::DataLoss,
    code: "piece_length_unknown",
    advice: Some("such a request has no rows in `context_segments`"),
};
const TOO_LONG: Event = Event {
    severity: Severity::DataLoss,
    code: "pieces_exceed_prompt",
    advice: Some("such a request has no rows in `context_segments`"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    if let Some(part) = PARTS.iter().find(|part| walk::has_keys(line, &[part.id, "token_length"])) {
        let why = format!("this is the side file `{}.jsonl` of a trace; give `0_trace.jsonl` beside it", part.file);
        return Sniff::Nearly(why);
    }
    if !line.starts_with(b"{") || !walk::has_keys(line, &["sys_prompt", "passages_ids"]) {
        return Sniff::No;
    }
    let keys = ["timestamp", "input_length", "output_length", "hash_ids"];
    let missing: Vec<String> =
        keys.iter().filter(|key| !walk::has_keys(line, &[key])).map(|key| format!("`{key}`")).collect();
    if missing.is_empty() { Sniff::Yes } else { Sniff::Nearly(format!("rows lack {}", missing.join(", "))) }
}

/// The length of each piece of each kind; none where the file is missing.
type Lengths = [Option<HashMap<u64, u32>>; PARTS.len()];

/// One row; its pieces are in the scratch list, as numbers of their kind and ids.
struct Row<'a> {
    time: (i64, bool),
    input: u32,
    output: u32,
    session: Option<Cow<'a, str>>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lengths = lengths(input.path, sink)?;
    let lines = rows::lines(input.path, &mut input.body)?;
    let unit = input.options.time_unit.unwrap_or(TimeUnit::S);
    let (mut requests, mut watch, mut pieces) = (Requests::new(), Watch::new(), Vec::new());
    rows::each(input.path, &[], lines, sink, &mut |line, sink| {
        let mut unknown = Unknown::new();
        match parse(line.bytes, unit, &mut pieces, &mut unknown) {
            Err(bad) => Ok(Outcome::Bad(bad.into())),
            Ok(row) => {
                watch.unknown(sink, line, &unknown);
                watch.time(sink, line.number, line.offset, row.time);
                watch.output(sink, line.number, line.offset, row.output);
                let request = Request {
                    session_id: row.session.as_deref(),
                    arrival_ns: Some(row.time.0),
                    prompt_tokens: row.input,
                    output_tokens: row.output,
                    ..Request::default()
                };
                let named = segments(&row, &pieces, &lengths, line, sink);
                let segments: Vec<Segment<'_>> = named
                    .iter()
                    .map(|(id, kind, tokens)| Segment { id: id.as_deref(), kind, tokens: *tokens, born_turn: None })
                    .collect();
                requests.push(&request, &segments, sink)?;
                Ok(Outcome::Row)
            }
        }
    })?;
    requests.flush(sink)?;
    Ok(Settings {
        time_unit: Some(unit.name()),
        clock: Some("trace_start"),
        hash_scope: Some("file"),
        id_kind: Some("content"),
        origin: if input.options.time_unit.is_some() { Origin::Flag } else { Origin::Format },
        ..Settings::default()
    })
}

/// The segments of a row as name, kind and length; none at all where a length is unknown or the sum is too long.
fn segments(
    row: &Row<'_>,
    pieces: &[(usize, u64)],
    lengths: &Lengths,
    line: Line<'_>,
    sink: &mut Sink<'_>,
) -> Vec<(Option<String>, &'static str, u32)> {
    let mut all = Vec::with_capacity(pieces.len() + 1);
    let mut rest = row.input;
    for (kind, id) in pieces {
        let part = &PARTS[*kind];
        let Some(tokens) = lengths[*kind].as_ref().and_then(|lengths| lengths.get(id)) else {
            let message = format!("the length of a piece of `{}` is not known", part.key);
            sink.log(NO_LENGTH, &message, Some(line.number), Some(line.offset));
            return Vec::new();
        };
        let Some(left) = rest.checked_sub(*tokens) else {
            sink.log(TOO_LONG, "the pieces of a row are longer than its prompt", Some(line.number), Some(line.offset));
            return Vec::new();
        };
        rest = left;
        all.push((Some(format!("{}:{id}", part.name)), part.kind, *tokens));
    }
    if rest > 0 {
        all.push((None, "unknown", rest));
    }
    all
}

/// Reads the files beside the trace.
fn lengths(path: &str, sink: &mut Sink<'_>) -> Result<Lengths> {
    let mut all: Lengths = Lengths::default();
    for (part, lengths) in PARTS.iter().zip(&mut all) {
        let beside = ["", ".gz", ".zst"].iter().find_map(|end| {
            let beside = Path::new(path).with_file_name(format!("{}.jsonl{end}", part.file));
            beside.to_str().filter(|beside| path != "-" && Path::new(beside).is_file()).map(str::to_owned)
        });
        if let Some(beside) = beside {
            *lengths = Some(side_file(&beside, part)?);
            let name = Path::new(&beside).file_name().unwrap_or_default().to_string_lossy();
            sink.companion(&name, Path::new(&beside))?;
        } else {
            let message = format!("the file `{}.jsonl` is not beside the trace", part.file);
            sink.log(NO_SIDE_FILE, &message, None, None);
        }
    }
    Ok(all)
}

fn side_file(path: &str, part: &Part) -> Result<HashMap<u64, u32>> {
    let options = super::Options::standard();
    let (mut input, _) = source::open(path, &source::LIMITS)?.into_input(&options)?;
    let Body::Lines(lines) = &mut input.body else { return Ok(HashMap::new()) };
    let mut lengths = HashMap::new();
    while let Some(line) = lines.next_line()? {
        if line.is_blank() {
            continue;
        }
        let (id, tokens) = length(line.bytes, part.id).map_err(|bad| {
            Error::data(Problem::in_line(path, line.bytes, line.number, line.offset, bad).shown)
                .hint("the side files of a trace must be whole")
        })?;
        if lengths.len() >= PIECES {
            return Err(Error::data(format!("expected at most {PIECES} pieces in `{path}`, found more")));
        }
        if let Some(before) = lengths.insert(id, tokens)
            && before != tokens
        {
            return Err(Error::data(format!(
                "expected one length for the piece {id} in `{path}`, found {before} and {tokens}"
            )));
        }
    }
    Ok(lengths)
}

/// A line of a side file.
fn length(line: &[u8], name: &str) -> std::result::Result<(u64, u32), Bad> {
    let (mut id, mut tokens) = (None, None);
    walk::record(line, &mut |scan, key, _| {
        if key == name.as_bytes() {
            id = Some(scan.whole("the id of a piece")?);
        } else if key == b"token_length" {
            tokens = Some(walk::tokens(scan, "`token_length`")?);
        } else {
            scan.value()?;
        }
        Ok(())
    })?;
    let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
    Ok((id.ok_or_else(|| missing(name))?, tokens.ok_or_else(|| missing("token_length"))?))
}

/// Reads one line; `pieces` gets the kind and id of each piece of the context.
fn parse<'a>(
    line: &'a [u8],
    unit: TimeUnit,
    pieces: &mut Vec<(usize, u64)>,
    unknown: &mut Unknown<'a>,
) -> std::result::Result<Row<'a>, Bad> {
    let (mut time, mut input, mut output, mut session, mut parts) = (None, None, None, None, None);
    pieces.clear();
    walk::record(line, &mut |scan, key, key_at| {
        let again = match key {
            b"timestamp" => time.replace(instant(scan, line, unit)?).is_some(),
            b"input_length" => input.replace(walk::tokens(scan, "`input_length`")?).is_some(),
            b"output_length" => output.replace(walk::tokens(scan, "`output_length`")?).is_some(),
            b"session_id" => session.replace(walk::maybe_id(scan, line, "`session_id`")?).is_some(),
            b"hash_ids" => {
                let again = parts.replace(()).is_some();
                components(scan, line, pieces)?;
                again
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
    parts.ok_or_else(|| missing("hash_ids"))?;
    Ok(Row {
        time: time.ok_or_else(|| missing("timestamp"))?,
        input: input.ok_or_else(|| missing("input_length"))?,
        output: output.ok_or_else(|| missing("output_length"))?,
        session: session.flatten(),
    })
}

fn components<'a>(scan: &mut Scan<'a>, line: &'a [u8], pieces: &mut Vec<(usize, u64)>) -> std::result::Result<(), Bad> {
    let mut seen = [false; PARTS.len()];
    walk::object(scan, "`hash_ids` as an object", &mut |scan, key, key_at| {
        let Some(kind) = PARTS.iter().position(|part| part.key.as_bytes() == key) else {
            let names: Vec<String> = PARTS.iter().map(|part| format!("`{}`", part.key)).collect();
            return Err(bad_at(line, key_at, "unknown_piece", format!("one of {}", names.join(", "))));
        };
        if std::mem::replace(&mut seen[kind], true) {
            return Err(bad_at(line, key_at, "duplicate_key", "each key once"));
        }
        walk::list(scan, "the ids of a kind", &mut |scan| {
            if pieces.len() == PIECES_OF_ROW {
                return Err(scan.bad("too_many", format!("at most {PIECES_OF_ROW} pieces of a prompt")));
            }
            pieces.push((kind, scan.whole("the id of a piece")?));
            Ok(())
        })
    })
}

/// A number in quotes, or without them.
fn instant(scan: &mut Scan<'_>, line: &[u8], unit: TimeUnit) -> std::result::Result<(i64, bool), Bad> {
    let at = scan.at();
    if scan.peek() != Some(b'"') {
        return walk::time(scan, "`timestamp`", unit);
    }
    scan.value()?;
    let text = line.get(at + 1..scan.at() - 1).unwrap_or_default();
    decimal_ns(text, unit)
        .ok_or_else(|| bad_at(line, at, "wrong_type", format!("`timestamp` as a number of {} in quotes", unit.name())))
}

#[cfg(test)]
mod tests;
