//! LLMServingSim workloads: requests with their token ids as JSON lines, alone or as the chained calls of an agent.
//!
//! ```text
//! {"input_toks": 4, "output_toks": 2, "arrival_time_ns": 570907776, "input_tok_ids": [1, 1, 235, 236], "output_tok_ids": [1, 237]}
//! {"session_id": "s0", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 9, "output_toks": 2, "tool_duration_ns": 700}]}
//! ```
//!
//! Both kinds may stand in one file. Times count nanoseconds from the start of the trace. A session's first call comes at
//! its arrival; each other call waits until the one before it has ended, and then for that call's `tool_duration_ns`,
//! which becomes `delay_ns`. So only first calls have an arrival.
//!
//! The format has no block ids. Where the prompt's tokens are given, kvtoll hashes its full blocks (`prefix.rs`), of 16
//! tokens unless a flag says otherwise, so that a replay can share prefixes; the token ids are kept beside them.
//!
//! Refused, row by row: what is no JSON object, a missing or repeated key, a broken number, a list of token ids that is
//! not as long as the count says, and a session without calls. A session with one bad call is set aside whole, since its
//! other calls depend on each other. Other keys are counted and not kept.

use std::borrow::Cow;
use std::ops::Range;

use engine::error::{Error, Result};

use super::json::{Scan, bad_at};
use super::prefix::prefix_ids;
use super::problem::Bad;
use super::requests::{Request, Requests};
use super::rows::{self, Outcome, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::TimeUnit;
use super::walk::{self, Unknown, has_keys};
use super::{Format, Head, Origin, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "llmservingsim",
    doc: "LLMServingSim workloads with token ids, as JSON lines",
    spec: "https://github.com/casys-kaist/LLMServingSim",
    verified: true,
    sniff,
    read,
};

/// Tokens of a block, as in the vLLM runs that the workloads were made for.
const BLOCK: u32 = 16;

const HASHED: Event = Event { severity: Severity::Info, code: "blocks_hashed", advice: None };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    if !line.starts_with(b"{") || has_keys(line, &["queued_ts"]) {
        return Sniff::No;
    }
    match (has_keys(line, &["arrival_time_ns"]), has_keys(line, &["input_toks", "output_toks"])) {
        (true, true) => Sniff::Yes,
        (true, false) => Sniff::Nearly("rows lack `input_toks` and `output_toks`".to_owned()),
        (false, true) => Sniff::Nearly("rows lack `arrival_time_ns`".to_owned()),
        (false, false) => Sniff::No,
    }
}

/// One call of a line; its ids are ranges of the line's lists.
#[derive(Debug, Clone, Default)]
struct Call {
    input: u32,
    output: u32,
    prompt_ids: Option<Range<usize>>,
    output_ids: Option<Range<usize>>,
    /// Wait after it, before the next may start, and whether it was exact.
    tool: (i64, bool),
}

/// What a line holds.
#[derive(Debug, Default)]
struct Row<'a> {
    session: Option<Cow<'a, str>>,
    arrival_ns: i64,
    exact: bool,
    calls: Vec<Call>,
    ids: Vec<u32>,
    unknown: Unknown<'a>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.with_unit("llmservingsim", Some(TimeUnit::Ns), "its keys end in `_ns`")?;
    let block = options.block_tokens.unwrap_or(BLOCK);
    if block == 0 {
        return Err(Error::usage("expected blocks of at least one token, found 0"));
    }
    let mut requests = Requests::new();
    let mut watch = Watch::new();
    rows::each(path, &[], lines, sink, &mut |line, sink| {
        let row = match parse(line.bytes) {
            Ok(row) => row,
            Err(bad) => return Ok(Outcome::Bad(bad.into())),
        };
        watch.unknown(sink, line, &row.unknown);
        let exact = row.exact && row.calls.iter().all(|call| call.tool.1);
        watch.time(sink, line.number, line.offset, (row.arrival_ns, exact));
        for call in &row.calls {
            watch.output(sink, line.number, line.offset, call.output);
        }
        push(&row, block, &mut requests, sink, line)?;
        // Each call is a row; the loop counts one.
        sink.found(row.calls.len() as u64 - 1);
        Ok(Outcome::Row)
    })?;
    requests.flush(sink)?;
    Ok(Settings {
        time_unit: Some(TimeUnit::Ns.name()),
        clock: Some("trace_start"),
        block_tokens: Some(block),
        rounding: Some("floor"),
        hash_scope: Some("global"),
        id_kind: Some("prefix"),
        origin: if options.block_tokens.is_some() { Origin::Flag } else { Origin::Format },
    })
}

/// Hands on the calls of a line.
fn push(row: &Row<'_>, block: u32, requests: &mut Requests, sink: &mut Sink<'_>, line: Line<'_>) -> Result<()> {
    let mut hashes = Vec::new();
    let mut before: Option<(u64, i64)> = None;
    for (turn, call) in (0..).zip(&row.calls) {
        let ids = |range: &Option<Range<usize>>| range.clone().map(|range| &row.ids[range]);
        let prompt_ids = ids(&call.prompt_ids);
        if let Some(tokens) = prompt_ids {
            prefix_ids(tokens, block, &mut hashes);
            let message = format!("the ids of {block}-token blocks were computed from token ids");
            sink.log(HASHED, &message, Some(line.number), Some(line.offset));
        }
        let request = Request {
            session_id: row.session.as_deref(),
            turn: row.session.is_some().then_some(turn),
            parent: before.map(|(id, _)| id),
            arrival_ns: before.is_none().then_some(row.arrival_ns),
            delay_ns: before.map(|(_, tool_ns)| tool_ns),
            prompt_tokens: call.input,
            output_tokens: call.output,
            block_tokens: prompt_ids.is_some().then_some(block),
            block_hashes: prompt_ids.is_some().then_some(&hashes),
            prompt_token_ids: prompt_ids,
            output_token_ids: ids(&call.output_ids),
            ..Request::default()
        };
        before = Some((requests.push(&request, &[], sink)?, call.tool.0));
    }
    Ok(())
}

/// What the keys of a call came to, while it is read.
#[derive(Debug, Default)]
struct Draft {
    input: Option<u32>,
    output: Option<u32>,
    prompt_ids: Option<(Range<usize>, usize)>,
    output_ids: Option<(Range<usize>, usize)>,
    tool: Option<(i64, bool)>,
}

/// Reads one line.
fn parse(line: &[u8]) -> std::result::Result<Row<'_>, Bad> {
    let mut row = Row::default();
    let (mut arrival, mut session, mut sub_requests) = (None, None, None);
    let mut draft = Draft::default();
    walk::record(line, &mut |scan, key, key_at| {
        let again = match key {
            b"arrival_time_ns" => arrival.replace(walk::time(scan, "`arrival_time_ns`", TimeUnit::Ns)?).is_some(),
            b"session_id" => session.replace(walk::maybe_id(scan, line, "`session_id`")?).is_some(),
            b"sub_requests" => {
                let again = sub_requests.replace(key_at).is_some();
                calls(scan, line, &mut row)?;
                again
            }
            _ => call_key(scan, key, &mut draft, &mut row.ids)?.unwrap_or_else(|| {
                row.unknown.push((key, key_at));
                false
            }),
        };
        if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
    })?;
    let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
    (row.arrival_ns, row.exact) = arrival.ok_or_else(|| missing("arrival_time_ns"))?;
    row.session = session.flatten();
    match sub_requests {
        Some(at) if row.calls.is_empty() => {
            return Err(bad_at(line, at, "missing_key", "at least one entry in `sub_requests`"));
        }
        Some(at) if draft.input.is_some() => {
            return Err(bad_at(line, at, "conflict", "either `input_toks` or `sub_requests`"));
        }
        Some(_) => {}
        None => {
            let call = finish(draft, line, line.len())?;
            row.calls.push(call);
        }
    }
    Ok(row)
}

/// Reads a key that a call may have; none if it is another key, whose value is skipped.
fn call_key(
    scan: &mut Scan<'_>,
    key: &[u8],
    draft: &mut Draft,
    ids: &mut Vec<u32>,
) -> std::result::Result<Option<bool>, Bad> {
    let at = scan.at();
    Ok(Some(match key {
        b"input_toks" => draft.input.replace(walk::tokens(scan, "`input_toks`")?).is_some(),
        b"output_toks" => draft.output.replace(walk::tokens(scan, "`output_toks`")?).is_some(),
        b"input_tok_ids" => draft.prompt_ids.replace((id_range(scan, "`input_tok_ids`", ids)?, at)).is_some(),
        b"output_tok_ids" => draft.output_ids.replace((id_range(scan, "`output_tok_ids`", ids)?, at)).is_some(),
        b"tool_duration_ns" => draft.tool.replace(walk::time(scan, "`tool_duration_ns`", TimeUnit::Ns)?).is_some(),
        _ => {
            scan.value()?;
            return Ok(None);
        }
    }))
}

fn id_range(scan: &mut Scan<'_>, what: &str, ids: &mut Vec<u32>) -> std::result::Result<Range<usize>, Bad> {
    let from = ids.len();
    walk::list(scan, what, &mut |scan| {
        ids.push(walk::tokens(scan, "a token id")?);
        Ok(())
    })?;
    Ok(from..ids.len())
}

/// Reads the calls of a session.
fn calls<'a>(scan: &mut Scan<'a>, line: &'a [u8], row: &mut Row<'a>) -> std::result::Result<(), Bad> {
    walk::list(scan, "`sub_requests`", &mut |scan| {
        let mut draft = Draft::default();
        walk::object(scan, "a request as a JSON object", &mut |scan, key, key_at| {
            let again = call_key(scan, key, &mut draft, &mut row.ids)?.unwrap_or_else(|| {
                row.unknown.push((key, key_at));
                false
            });
            if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
        })?;
        let call = finish(draft, line, scan.at().saturating_sub(1))?;
        row.calls.push(call);
        Ok(())
    })
}

/// Checks a call whose object ends at `at`.
fn finish(draft: Draft, line: &[u8], at: usize) -> std::result::Result<Call, Bad> {
    let missing = |name: &str| bad_at(line, at, "missing_key", format!("the key `{name}`"));
    let input = draft.input.ok_or_else(|| missing("input_toks"))?;
    let output = draft.output.ok_or_else(|| missing("output_toks"))?;
    let counted = [(input, &draft.prompt_ids, "input_tok_ids"), (output, &draft.output_ids, "output_tok_ids")];
    for (count, ids, name) in counted {
        if let Some((range, at)) = ids
            && range.len() != count as usize
        {
            let expected = format!("{count} ids in `{name}`");
            return Err(Bad { at: *at, code: "token_count", expected, found: range.len().to_string() });
        }
    }
    Ok(Call {
        input,
        output,
        prompt_ids: draft.prompt_ids.map(|(range, _)| range),
        output_ids: draft.output_ids.map(|(range, _)| range),
        tool: draft.tool.unwrap_or((0, true)),
    })
}

#[cfg(test)]
mod tests;
