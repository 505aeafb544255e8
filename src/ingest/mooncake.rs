//! Mooncake traces: one JSON object a line, with the prefix hashes of each prompt's blocks.
//!
//! ```text
//! {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 2353]}
//! ```
//!
//! `timestamp` counts milliseconds from the start of the trace; a block has 512 tokens, and the last block counts though
//! it is not full, so `hash_ids` has ceil(`input_length` / 512) entries. An id stands for its block and all before it.
//! Ids are u64 from end to end.
//!
//! Ids of different files never mean the same content (`sources.hash_scope` is `file`). They are stored as they are; a
//! replay takes one source as its workload, so that they do not meet.
//!
//! Refused, row by row: what is no JSON object, a missing or repeated key, a negative or broken number, an id of 2^64 or
//! more, and a number of ids that does not fit the length. Rows in which nothing was generated are kept with the status
//! `no_output`. Keys beyond the four are counted and not kept.

use engine::error::{Error, Result};

use super::json::{Scan, bad_at, named};
use super::problem::{Bad, Problem};
use super::requests::{Request, Requests};
use super::sink::{Event, Severity, Sink};
use super::source::{Body, Input, Line};
use super::time::{TimeUnit, decimal_ns};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "mooncake",
    doc: "Mooncake request traces with block hashes, as JSON lines",
    spec: "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release",
    verified: true,
    sniff,
    read,
};

/// Tokens of a block, by the format.
const BLOCK: u32 = 512;

const KEYS: [&str; 4] = ["timestamp", "input_length", "output_length", "hash_ids"];

const UNKNOWN_KEY: Event =
    Event { severity: Severity::DataLoss, code: "unknown_key", advice: Some("the key is not stored") };
const NO_OUTPUT: Event = Event { severity: Severity::Info, code: "no_output", advice: None };
const EMPTY_LINE: Event = Event { severity: Severity::Info, code: "empty_line", advice: None };
const BACKWARDS: Event = Event {
    severity: Severity::Notice,
    code: "time_backwards",
    advice: Some("rows stay in file order; check whether the trace wraps or was joined"),
};
const ROUNDED: Event = Event { severity: Severity::Notice, code: "time_rounded", advice: None };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let has = |line: &[u8], key: &str| {
        let key = format!("\"{key}\"");
        line.windows(key.len()).any(|window| window == key.as_bytes())
    };
    let mut best: Option<Vec<&str>> = None;
    for line in head.bytes.split(|byte| *byte == b'\n').take(20) {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        let missing: Vec<&str> = KEYS.into_iter().filter(|key| !has(line, key)).collect();
        if !line.starts_with(b"{") || missing.len() == KEYS.len() {
            continue;
        }
        if has(line, "chat_id") || has(line, "sys_prompt") {
            let why = "rows hold `chat_id` or `sys_prompt`: a Qwen-Bailian or RAGPulse trace, with other blocks";
            return Sniff::Nearly(why.to_owned());
        }
        if best.as_ref().is_none_or(|best| missing.len() < best.len()) {
            best = Some(missing);
        }
    }
    match best {
        Some(missing) if missing.is_empty() => Sniff::Yes,
        Some(missing) => {
            let missing: Vec<String> = missing.into_iter().map(|key| format!("`{key}`")).collect();
            Sniff::Nearly(format!("rows lack {}", missing.join(", ")))
        }
        None => Sniff::No,
    }
}

/// One row; its ids are in the scratch list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    arrival_ns: i64,
    exact: bool,
    input: u32,
    output: u32,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Body::Lines(lines) = &mut input.body else {
        return Err(Error::data(format!("expected a file of JSON lines, found the directory `{}`", input.path)));
    };
    let unit = input.options.time_unit.unwrap_or(TimeUnit::Ms);
    let block = input.options.block_tokens.unwrap_or(BLOCK);
    if block == 0 {
        return Err(Error::usage("expected blocks of at least one token, found 0"));
    }
    let mut requests = Requests::new();
    let mut ids: Vec<u64> = Vec::new();
    let mut latest = i64::MIN;
    while let Some(line) = lines.next_line()? {
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
            continue;
        }
        sink.found(1);
        ids.clear();
        let mut unknown: Vec<(&[u8], usize)> = Vec::new();
        match parse(line.bytes, unit, block, &mut ids, &mut |key, at| unknown.push((key, at))) {
            Err(bad) => sink.reject(Problem::in_line(input.path, line.bytes, line.number, line.offset, bad))?,
            Ok(row) => {
                log_row(sink, line, row, latest, &unknown);
                latest = row.arrival_ns;
                let request = Request {
                    arrival_ns: Some(row.arrival_ns),
                    prompt_tokens: row.input,
                    output_tokens: row.output,
                    block_tokens: Some(block),
                    block_hashes: Some(&ids),
                    ..Request::default()
                };
                requests.push(&request, &[], sink)?;
            }
        }
    }
    requests.flush(sink)?;
    Ok(Settings {
        time_unit: Some(unit.name()),
        clock: Some("trace_start"),
        block_tokens: Some(block),
        rounding: Some("ceil"),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        flag: input.options.time_unit.is_some() || input.options.block_tokens.is_some(),
    })
}

fn log_row(sink: &mut Sink<'_>, line: Line<'_>, row: Row, latest: i64, unknown: &[(&[u8], usize)]) {
    let at = |column: usize| Some(line.offset + column as u64);
    for (key, column) in unknown {
        let message = format!("the key {} is not part of the format", named(key));
        sink.log(UNKNOWN_KEY, &message, Some(line.number), at(*column));
    }
    if row.output == 0 {
        let message = "a request without output tokens was kept with the status `no_output`";
        sink.log(NO_OUTPUT, message, Some(line.number), at(0));
    }
    if row.arrival_ns < latest {
        sink.log(BACKWARDS, "a timestamp is earlier than that of the row before", Some(line.number), at(0));
    }
    if !row.exact {
        sink.log(ROUNDED, "a timestamp was rounded to the nanosecond", Some(line.number), at(0));
    }
}

/// Reads one line. `unknown` gets each key that is not part of the format, with its offset.
fn parse<'a>(
    line: &'a [u8],
    unit: TimeUnit,
    block: u32,
    ids: &mut Vec<u64>,
    unknown: &mut dyn FnMut(&'a [u8], usize),
) -> std::result::Result<Row, Bad> {
    let mut scan = Scan::new(line);
    let (mut time, mut input, mut output, mut hashes) = (None, None, None, None);
    scan.expect(b'{', "a JSON object")?;
    let mut first = true;
    loop {
        if scan.take(b'}') {
            if first {
                break;
            }
            // Only reached after a comma: JSON has no trailing comma.
            return Err(bad_at(line, scan.at() - 1, "json", "a key in quotes"));
        }
        first = false;
        scan.peek();
        let key_at = scan.at();
        let key = scan.key()?;
        scan.peek();
        let at = scan.at();
        let again = match key {
            b"timestamp" => time.replace(instant(&mut scan, unit)?).is_some(),
            b"input_length" => input.replace((tokens(&mut scan, "`input_length`")?, at)).is_some(),
            b"output_length" => output.replace(tokens(&mut scan, "`output_length`")?).is_some(),
            b"hash_ids" => {
                let again = hashes.replace(at).is_some();
                list(&mut scan, block, ids)?;
                again
            }
            other => {
                scan.value()?;
                unknown(other, key_at);
                false
            }
        };
        if again {
            return Err(bad_at(line, key_at, "duplicate_key", "each key once"));
        }
        if !scan.take(b',') {
            scan.expect(b'}', "`,` or `}`")?;
            break;
        }
    }
    scan.end()?;
    let missing = |name: &str| bad_at(line, scan.at(), "missing_key", format!("the key `{name}`"));
    let (arrival_ns, exact) = time.ok_or_else(|| missing("timestamp"))?;
    let (input, _) = input.ok_or_else(|| missing("input_length"))?;
    let output = output.ok_or_else(|| missing("output_length"))?;
    let hashes_at = hashes.ok_or_else(|| missing("hash_ids"))?;
    let blocks = input.div_ceil(block) as usize;
    if ids.len() != blocks {
        return Err(Bad {
            at: hashes_at,
            code: "block_count",
            expected: format!("{blocks} blocks of {block} for {input} tokens"),
            found: format!("{}: the block count does not fit the length", ids.len()),
        });
    }
    Ok(Row { arrival_ns, exact, input, output })
}

fn instant(scan: &mut Scan<'_>, unit: TimeUnit) -> std::result::Result<(i64, bool), Bad> {
    let at = scan.at();
    let token = scan.number("`timestamp` as a number")?;
    if token.first() == Some(&b'-') {
        return Err(scan.bad_from(at, "negative", "`timestamp` of at least zero"));
    }
    // Nearly all are whole numbers of a few digits.
    if token.len() <= 9 && token.iter().all(u8::is_ascii_digit) && unit == TimeUnit::Ms {
        let value = token.iter().fold(0_i64, |value, digit| value * 10 + i64::from(digit - b'0'));
        return Ok((value * 1_000_000, true));
    }
    decimal_ns(token, unit).ok_or_else(|| {
        let expected = format!("`timestamp` in {} below 2^63 nanoseconds", unit.name());
        scan.bad_from(at, "out_of_range", expected)
    })
}

fn tokens(scan: &mut Scan<'_>, what: &str) -> std::result::Result<u32, Bad> {
    let at = scan.at();
    let value = scan.whole(what)?;
    u32::try_from(value).map_err(|_| scan.bad_from(at, "out_of_range", format!("{what} of at most {}", u32::MAX)))
}

fn list(scan: &mut Scan<'_>, block: u32, ids: &mut Vec<u64>) -> std::result::Result<(), Bad> {
    // The longest prompt that fits u32 has so many blocks: a line of millions of ids must not fill the memory.
    let most = u32::MAX.div_ceil(block) as usize;
    ids.clear();
    if scan.peek() != Some(b'[') {
        return Err(scan.bad("wrong_type", "`hash_ids` as a list"));
    }
    scan.take(b'[');
    if scan.take(b']') {
        return Ok(());
    }
    loop {
        if ids.len() == most {
            return Err(scan.bad("block_count", format!("at most {most} block ids")));
        }
        ids.push(scan.whole("a block id")?);
        if !scan.take(b',') {
            return scan.expect(b']', "`,` or `]`");
        }
    }
}

#[cfg(test)]
mod tests;
