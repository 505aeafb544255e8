//! Traces of the optimizer of Tair's `KVCacheManager`: one JSON object a line, a lookup in the cache.
//!
//! ```text
//! {"instance_id": "example_instance", "trace_id": "trace_example_instance_1704081605123456", "timestamp_us": 1704081605123456, "tokens": [], "keys": [2, 3], "query_type": "prefix_match", "block_mask": [], "sw_size": 0, "location_spec_names": [], "input_len": 32, "output_len": 0, "total_keys": [2, 3]}
//! {"type":"request","instance_id":"pod-7","timestamp_ns":1704081605123456000,"keys":[-3,9],"input_len":33}
//! ```
//!
//! The second line is the newer form, in nanoseconds. `keys` are prefix hashes of the full blocks (16 tokens if the first
//! rows do not say otherwise); the last tokens have none, and a row may list fewer. They are signed or unsigned 64-bit
//! numbers and are kept bit by bit as u64. `trace_id` becomes `source_key`, `query_type` `kind`, and `instance_id`, whose
//! keys mean nothing to another instance, `tenant`. Lookups that name no `output_len` have none.
//!
//! Rows of `type` `write` are not requests; they are counted and skipped. Refused, row by row: what is no JSON object, a
//! missing or repeated key, a broken number, more keys than blocks, and token ids of another number than `input_len`. The
//! optimizer's other inputs hold text or the tokens of single messages; its trace tool makes this form of them.

use std::borrow::Cow;

use engine::error::{Error, Result};

use super::blocks::{Blocks, MOST, Rounding, guess};
use super::json::{Scan, bad_at};
use super::problem::Bad;
use super::requests::{Request, Requests};
use super::rows::{self, Outcome, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::{TimeUnit, decimal_ns};
use super::walk::{self, Unknown};
use super::{Format, Head, Settings, Sniff};

/// The adapter. The vendor's examples were at hand, no trace of a service.
pub(super) static FORMAT: Format = Format {
    name: "tair",
    doc: "lookups of the Tair KVCacheManager's optimizer, as JSON lines",
    spec: "https://github.com/alibaba/tair-kvcache/tree/main/kv_cache_manager/optimizer",
    verified: false,
    sniff,
    read,
};

const STANDARD: Blocks = Blocks { tokens: 16, rounding: Rounding::Floor };

const WRITE: Event = Event {
    severity: Severity::DataLoss,
    code: "cache_write",
    advice: Some("a row that writes to the cache is no request; a replay writes what requests compute"),
};
const FEWER: Event = Event { severity: Severity::Notice, code: "fewer_keys", advice: None };
const OUTPUT_KEYS: Event = Event {
    severity: Severity::DataLoss,
    code: "output_keys",
    advice: Some("only the blocks of the prompt are stored"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    let line = walk::first_line(head.bytes);
    let has = |keys: &[&str]| walk::has_keys(line, keys);
    if head.directory || !line.starts_with(b"{") {
        return Sniff::No;
    }
    if has(&["instance_id", "keys"]) {
        let timed = has(&["timestamp_us"]) || has(&["timestamp_ns"]);
        let complete = timed && (has(&["input_len"]) || has(&["type"]));
        return if complete {
            Sniff::Yes
        } else {
            Sniff::Nearly("rows lack `timestamp_us` (or `timestamp_ns`) or `input_len`".to_owned())
        };
    }
    if has(&["timestamp", "dialog", "messages"])
        || has(&["ts_str", "token_ids", "is_tool_call"])
        || has(&["time", "text"])
    {
        return Sniff::Nearly("rows hold messages without block keys; the optimizer's trace tool adds them".to_owned());
    }
    Sniff::No
}

/// One row; its keys and tokens are in the scratch lists.
#[derive(Default)]
struct Row<'a> {
    write: bool,
    key: Option<Cow<'a, str>>,
    instance: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    time: Option<(i64, bool)>,
    unit: Option<TimeUnit>,
    input: u32,
    output: u32,
    keys_at: usize,
    tokens_at: usize,
    /// Whether `total_keys` says more than `keys`.
    more_keys: bool,
}

#[derive(Default)]
struct Scratch {
    keys: Vec<u64>,
    all_keys: Vec<u64>,
    tokens: Vec<u32>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lines = rows::lines(input.path, &mut input.body)?;
    let first = rows::first(lines)?;
    let mut scratch = Scratch::default();
    let (mut counts, mut clock, mut unit) = (Vec::new(), None, None);
    for kept in &first {
        if let Ok(row) = parse(kept.line().bytes, &mut scratch, &mut Unknown::new())
            && !row.write
        {
            counts.push((row.input, scratch.keys.len()));
            clock = clock.or(row.time.map(|(ns, _)| ns));
            unit = unit.or(row.unit);
        }
    }
    if let (Some(flag), Some(found)) = (input.options.time_unit, unit)
        && flag != found
    {
        let (flag, found, path) = (flag.name(), found.name(), input.path);
        let message = format!("expected instants in {flag} in `{path}`, as the flag says, found `timestamp_{found}`");
        return Err(Error::data(message).hint("the file names its unit; leave the flag out"));
    }
    let (blocks, origin) = guess(input.path, &counts, STANDARD, input.options.block_tokens)?;
    let (mut requests, mut watch) = (Requests::new(), Watch::new());
    rows::each(input.path, &first, lines, sink, &mut |line, sink| {
        let mut unknown = Unknown::new();
        let good = parse(line.bytes, &mut scratch, &mut unknown);
        match good.and_then(|row| check(&row, &scratch, blocks).map(|()| row)) {
            Err(bad) => Ok(Outcome::Bad(bad.into())),
            Ok(row) if row.write => {
                sink.log(WRITE, "a row of type `write` was skipped", Some(line.number), Some(line.offset));
                Ok(Outcome::Beside)
            }
            Ok(row) => {
                watch.unknown(sink, line, &unknown);
                log_row(&row, &scratch, blocks, line, &mut watch, sink);
                let request = Request {
                    source_key: row.key.as_deref(),
                    tenant: row.instance.as_deref(),
                    kind: row.kind.as_deref(),
                    arrival_ns: row.time.map(|(ns, _)| ns),
                    prompt_tokens: row.input,
                    output_tokens: row.output,
                    block_tokens: Some(blocks.tokens),
                    block_hashes: Some(&scratch.keys),
                    prompt_token_ids: Some(&*scratch.tokens).filter(|tokens| !tokens.is_empty()),
                    ..Request::default()
                };
                requests.push(&request, &[], sink)?;
                Ok(Outcome::Row)
            }
        }
    })?;
    requests.flush(sink)?;
    let epoch = clock.is_some_and(|ns| ns > 1_000_000_000_000_000_000);
    Ok(Settings {
        time_unit: unit.map(TimeUnit::name),
        clock: Some(if epoch { "epoch" } else { "trace_start" }),
        block_tokens: Some(blocks.tokens),
        rounding: Some(blocks.rounding.name()),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        origin,
    })
}

fn check(row: &Row<'_>, scratch: &Scratch, blocks: Blocks) -> std::result::Result<(), Bad> {
    let (most, found) = (blocks.count(row.input), scratch.keys.len());
    if !row.write && found > most as usize {
        return Err(Bad {
            at: row.keys_at,
            code: "block_count",
            expected: format!("at most {most} blocks of {} for {} tokens", blocks.tokens, row.input),
            found: format!("{found}: the block count does not fit the length"),
        });
    }
    let tokens = scratch.tokens.len();
    if !row.write && tokens > 0 && tokens != row.input as usize {
        return Err(Bad {
            at: row.tokens_at,
            code: "token_count",
            expected: format!("{} token ids, as `input_len` says", row.input),
            found: format!("{tokens}"),
        });
    }
    Ok(())
}

fn log_row(row: &Row<'_>, scratch: &Scratch, blocks: Blocks, line: Line<'_>, watch: &mut Watch, sink: &mut Sink<'_>) {
    let (number, offset) = (line.number, line.offset);
    if let Some(time) = row.time {
        watch.time(sink, number, offset, time);
    }
    watch.output(sink, number, offset, row.output);
    if scratch.keys.len() < blocks.count(row.input) as usize {
        sink.log(FEWER, "a row lists fewer keys than its prompt has blocks", Some(number), Some(offset));
    }
    if row.more_keys {
        sink.log(OUTPUT_KEYS, "`total_keys` holds more than `keys`", Some(number), Some(offset));
    }
}

/// Reads one line.
fn parse<'a>(line: &'a [u8], scratch: &mut Scratch, unknown: &mut Unknown<'a>) -> std::result::Result<Row<'a>, Bad> {
    let mut row = Row::default();
    let (mut input, mut keys, mut all) = (None, None, None);
    let Scratch { keys: key_list, all_keys, tokens } = scratch;
    key_list.clear();
    all_keys.clear();
    tokens.clear();
    walk::record(line, &mut |scan, key, key_at| {
        let at = scan.at();
        let again = match key {
            b"timestamp_us" => row.time.replace(instant(scan, line, TimeUnit::Us, &mut row.unit)?).is_some(),
            b"timestamp_ns" => row.time.replace(instant(scan, line, TimeUnit::Ns, &mut row.unit)?).is_some(),
            b"input_len" => input.replace(walk::tokens(scan, "`input_len`")?).is_some(),
            b"keys" => {
                hashes(scan, line, "`keys`", key_list)?;
                keys.replace(at).is_some()
            }
            b"total_keys" => {
                hashes(scan, line, "`total_keys`", all_keys)?;
                all.replace(()).is_some()
            }
            b"trace_id" => {
                row.key = walk::maybe_id(scan, line, "`trace_id`")?;
                false
            }
            b"instance_id" => {
                row.instance = walk::maybe_id(scan, line, "`instance_id`")?;
                false
            }
            b"query_type" => {
                row.kind = walk::maybe_text(scan, line, "`query_type`")?;
                false
            }
            b"type" => {
                row.write = walk::text(scan, line, "`type`")? == "write";
                false
            }
            b"output_len" => {
                row.output = walk::maybe_tokens(scan, "`output_len`")?.unwrap_or(0);
                false
            }
            b"tokens" => {
                row.tokens_at = at;
                walk::token_ids(scan, "`tokens`", tokens)?;
                false
            }
            other => {
                // Most rows carry these keys without anything in them.
                if !matches!(walk::raw(scan, line)?, b"[]" | b"0" | b"null" | b"\"\"") {
                    unknown.push((other, key_at));
                }
                false
            }
        };
        if again { Err(bad_at(line, key_at, "duplicate_key", "each key once")) } else { Ok(()) }
    })?;
    let missing = |name: &str| bad_at(line, line.len(), "missing_key", format!("the key `{name}`"));
    if row.time.is_none() {
        return Err(missing("timestamp_us"));
    }
    row.keys_at = keys.ok_or_else(|| missing("keys"))?;
    row.input = if row.write { 0 } else { input.ok_or_else(|| missing("input_len"))? };
    row.more_keys = all.is_some() && *all_keys != *key_list;
    Ok(row)
}

fn instant(
    scan: &mut Scan<'_>,
    line: &[u8],
    unit: TimeUnit,
    found: &mut Option<TimeUnit>,
) -> std::result::Result<(i64, bool), Bad> {
    let at = scan.at();
    *found = Some(unit);
    let token = scan.number("the instant as a number")?;
    decimal_ns(token, unit).ok_or_else(|| {
        bad_at(
            line,
            at,
            "out_of_range",
            format!("an instant of at least zero, in {} below 2^63 nanoseconds", unit.name()),
        )
    })
}

/// Keys as u64, bit by bit.
fn hashes(scan: &mut Scan<'_>, line: &[u8], name: &str, keys: &mut Vec<u64>) -> std::result::Result<(), Bad> {
    keys.clear();
    walk::list(scan, name, &mut |scan| {
        if keys.len() == MOST {
            return Err(scan.bad("block_count", format!("at most {MOST} keys")));
        }
        if scan.peek() != Some(b'-') {
            keys.push(scan.whole("a key")?);
            return Ok(());
        }
        let at = scan.at();
        let token = scan.number("a key as a whole number")?;
        let value = std::str::from_utf8(token).ok().and_then(|text| text.parse::<i64>().ok());
        let value = value.ok_or_else(|| bad_at(line, at, "out_of_range", "a key as a whole number of 64 bits"))?;
        keys.push(value.cast_unsigned());
        Ok(())
    })
}

#[cfg(test)]
mod tests;
