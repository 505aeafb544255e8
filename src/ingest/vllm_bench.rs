//! Results of `vllm bench serve --save-detailed`: one JSON object with a list per measured quantity, one entry a request.
//!
//! ```text
//! {"date": "...", "backend": "vllm", "model_id": "...", "num_prompts": 3, "request_rate": "inf", ..., "mean_ttft_ms": 81.2,
//!  "input_lens": [7, 9, 8], "output_lens": [3, 1, 0], "ttfts": [0.08, 0.07, 0.0], "itls": [[0.01, 0.01], [], []],
//!  "start_times": [1.5, 1.5, 1.6], "generated_texts": [...], "errors": ["", "", "timeout"]}
//! ```
//!
//! The lists are in seconds, the summary in milliseconds (`mean_ttft_ms`) or, in copies that InferenceX keeps, in seconds
//! (`mean_ttft`): the name of the key tells which, and a summary that contradicts its list is an error. End-to-end time
//! is the time to the first token and the times between tokens together, as vLLM counts it; the time per output token is
//! the latter over the tokens after the first. `start_times` (of newer versions) is on a clock that began at an unknown
//! instant; without it arrivals are unknown. Requests with an error are kept with the status `error` and no times.
//!
//! `--append-result` writes several objects into one file; their rows follow each other. Only numbers are held in memory:
//! texts are skipped as they come.
//!
//! Refused: an object without the lists (the aggregates of a run are no trace), broken JSON, lists of different lengths;
//! request by request: broken numbers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufReader, Read};

use engine::error::{Error, Result};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json::Scan;
use super::problem::{Bad, Problem, quoted};
use super::requests::{Request, Requests};
use super::rows::{self, ROUNDED, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, LIMITS, Lines};
use super::time::TimeUnit;
use super::walk::{self, has_keys};
use super::{Format, Head, Origin, Settings, Sniff};
use crate::wording;

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "vllm_bench",
    doc: "results of `vllm bench serve --save-detailed`, as JSON",
    spec: "https://docs.vllm.ai/en/latest/cli/bench/serve.html",
    // The only real sample at hand holds aggregates, which are refused.
    verified: false,
    sniff,
    read,
};

const SUMMARY_UNIT: Event = Event { severity: Severity::Info, code: "summary_unit", advice: None };
const NO_START: Event = Event {
    severity: Severity::Notice,
    code: "no_arrivals",
    advice: Some("newer versions of vLLM write `start_times`; without them requests cannot be replayed in time"),
};

/// The lists, in the order in which a row names them.
const LISTS: [&str; 6] = ["input_lens", "output_lens", "ttfts", "itls", "start_times", "errors"];

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || !head.bytes.trim_ascii_start().starts_with(b"{") && !head.bytes.starts_with(b"\xef\xbb\xbf{") {
        return Sniff::No;
    }
    let run = has_keys(head.bytes, &["model_id", "num_prompts"]);
    let rate = has_keys(head.bytes, &["request_rate"]) || has_keys(head.bytes, &["max_concurrency"]);
    match (run, rate) {
        (true, true) => Sniff::Yes,
        (true, false) => Sniff::Nearly("it lacks `request_rate` and `max_concurrency`".to_owned()),
        _ => Sniff::No,
    }
}

/// One object.
#[derive(Debug, Default)]
struct Run {
    model: Option<String>,
    requests: Option<u64>,
    /// Keys of mean and median times, and what they say.
    summary: Vec<(String, f64)>,
    seen: [bool; LISTS.len()],
    input: Vec<u32>,
    output: Vec<u32>,
    ttft: Vec<i64>,
    /// Sum of the times between tokens.
    between: Vec<i64>,
    start: Vec<i64>,
    failed: Vec<bool>,
    rounded: u64,
    /// By row, the first fault that was read: its list, and what is wrong.
    bad: BTreeMap<usize, (usize, Bad)>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_blocks("vllm_bench")?;
    let unit = options.time_unit.unwrap_or(TimeUnit::S);
    let mut requests = Requests::new();
    let mut watch = Watch::new();
    let mut first_row = 0;
    let cap = Cap { limit: LIMITS.line as u64, left: Cell::new(LIMITS.line as u64) };
    skip_mark(lines);
    let reader = BufReader::new(Capped { lines, cap: &cap });
    let mut json = serde_json::Deserializer::from_reader(reader);
    while json.end().is_err() {
        let mut run = Run::default();
        Object { run: &mut run, unit, cap: &cap }.deserialize(&mut json).map_err(|error| broken(path, &error))?;
        check(path, &run, unit)?;
        first_row = push(path, run, first_row, &mut requests, &mut watch, sink)?;
        cap.reset();
    }
    requests.flush(sink)?;
    let origin = if options.time_unit.is_some() { Origin::Flag } else { Origin::Format };
    Ok(Settings { time_unit: Some(unit.name()), clock: Some("monotonic"), origin, ..Settings::default() })
}

/// Takes a byte order mark.
fn skip_mark(lines: &mut Lines) {
    if lines.peek().starts_with(b"\xef\xbb\xbf") {
        let _ = lines.read_exact(&mut [0; 3]);
    }
}

fn broken(path: &str, error: &serde_json::Error) -> Error {
    let what = wording::bare(error);
    let place = format!("{path}:{}:{}", error.line(), error.column());
    Error::data(format!("expected the JSON result of `vllm bench serve` in `{path}`, found at {place}: {what}"))
        .hint("a result that was cut has no complete request: each list holds one quantity of all of them")
}

/// Refuses what cannot be lined up.
fn check(path: &str, run: &Run, unit: TimeUnit) -> Result<()> {
    let missing: Vec<String> =
        (0..3).filter(|list| !run.seen[*list]).map(|list| format!("`{}`", LISTS[list])).collect();
    if !missing.is_empty() {
        let shown = run.summary.first().map_or(String::new(), |(key, value)| {
            let unit = if key.ends_with("_ms") { "ms" } else { "s" };
            format!(" ({key} {value} {unit})")
        });
        let count = run.requests.map_or(String::new(), |count| format!(" of {count} requests"));
        return Err(Error::data(format!(
            "expected a list per request in `{path}`, found only aggregates{count}{shown}: {} missing",
            missing.join(", ")
        ))
        .hint("`vllm bench serve --save-result --save-detailed` writes the lists"));
    }
    let lengths =
        [run.input.len(), run.output.len(), run.ttft.len(), run.between.len(), run.start.len(), run.failed.len()];
    for (list, length) in LISTS.iter().zip(lengths).enumerate().filter(|(at, _)| run.seen[*at]).map(|(_, pair)| pair) {
        if length != lengths[0] {
            return Err(Error::data(format!(
                "expected lists of one length in `{path}`, found {} entries in `{}` and {length} in `{list}`",
                lengths[0], LISTS[0]
            )));
        }
    }
    let measured: Vec<f64> = (0..run.ttft.len())
        .filter(|at| !run.failed.get(*at).copied().unwrap_or(false) && run.ttft[*at] > 0)
        .map(|at| run.ttft[at] as f64 / 1e9)
        .collect();
    let mean = measured.iter().sum::<f64>() / (measured.len() as f64).max(1.0);
    for (key, value) in run.summary.iter().filter(|(key, _)| key.starts_with("mean_ttft")) {
        let said = if key.ends_with("_ms") { value / 1000.0 } else { *value };
        // The list and its mean agree to rounding; a unit that is wrong is a thousand times off.
        if mean > 0.0 && said > 0.0 && !(0.1..10.0).contains(&(mean / said)) {
            return Err(Error::data(format!(
                "expected `ttfts` of `{path}` in {}, found a mean of {mean} s, where `{key}` says {said} s",
                unit.name()
            ))
            .hint("`--time-unit` says in which unit the lists are"));
        }
    }
    Ok(())
}

/// Hands on the requests of a run; the number of rows so far.
fn push(
    path: &str,
    run: Run,
    first_row: u64,
    requests: &mut Requests,
    watch: &mut Watch,
    sink: &mut Sink<'_>,
) -> Result<u64> {
    for (key, _) in run.summary.iter().take(1) {
        let unit = if key.ends_with("_ms") { "milliseconds" } else { "seconds" };
        sink.log(SUMMARY_UNIT, &format!("the summary of the run is in {unit}, by the names of its keys"), None, None);
    }
    if !run.seen[4] {
        sink.log(NO_START, "a run without `start_times` has no arrivals", None, None);
    }
    if run.rounded > 0 {
        sink.log(ROUNDED, "times were rounded to the nanosecond", None, None);
    }
    let mut bad = run.bad;
    for at in 0..run.input.len() {
        let row = first_row + at as u64 + 1;
        sink.found(1);
        if let Some((list, fault)) = bad.remove(&at) {
            sink.reject(problem(path, row, list, fault))?;
            continue;
        }
        let failed = run.failed.get(at).copied().unwrap_or(false);
        let output = run.output[at];
        let ttft = (!failed && output > 0).then_some(run.ttft[at]);
        let between = run.between.get(at).copied().filter(|_| ttft.is_some());
        let start = run.start.get(at).copied();
        if let Some(start) = start {
            watch.time(sink, row, 0, (start, true));
        }
        if !failed {
            watch.output(sink, row, 0, output);
        }
        let request = Request {
            model: run.model.as_deref(),
            arrival_ns: start,
            prompt_tokens: run.input[at],
            output_tokens: output,
            status: failed.then_some("error"),
            measured_ttft_ns: ttft,
            measured_tpot_ns: between.and_then(|between| walk::time_per_token(between, output)),
            measured_e2e_ns: ttft.zip(between).map(|(ttft, between)| ttft.saturating_add(between)),
            ..Request::default()
        };
        requests.push(&request, &[], sink)?;
    }
    Ok(first_row + run.input.len() as u64)
}

fn problem(path: &str, row: u64, list: usize, bad: Bad) -> Problem {
    let list_name = LISTS[list];
    Problem {
        line: row,
        column: list as u64 + 1,
        byte_offset: 0,
        code: bad.code,
        shown: format!("{path}: request {row}, `{list_name}`: expected {}, found {}", bad.expected, bad.found),
        raw: format!("{list_name}: {}", bad.found),
        expected: bad.expected,
        found: bad.found,
    }
}

/// How many bytes may be read before the count is set again: the parser holds the value that it reads in memory.
struct Cap {
    limit: u64,
    left: Cell<u64>,
}

impl Cap {
    fn reset(&self) {
        self.left.set(self.limit);
    }
}

/// A stream under a cap.
struct Capped<'a> {
    lines: &'a mut Lines,
    cap: &'a Cap,
}

impl Read for Capped<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.cap.left.get();
        if left == 0 && !self.lines.peek().is_empty() {
            return Err(io::Error::other(format!("a value of more than {} bytes", self.cap.limit)));
        }
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.lines.read(&mut buffer[..most])?;
        self.cap.left.set(left - count as u64);
        Ok(count)
    }
}

/// Reads one object into a run.
struct Object<'a> {
    run: &'a mut Run,
    unit: TimeUnit,
    cap: &'a Cap,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.cap.reset();
            if let Some(list) = LISTS.iter().position(|name| *name == key) {
                if std::mem::replace(&mut self.run.seen[list], true) {
                    return Err(A::Error::custom(format!("the key `{key}` twice")));
                }
                let (run, unit) = (&mut *self.run, self.unit);
                map.next_value_seed(Each { cap: self.cap, take: &mut |text| run.take(list, text, unit) })?;
                continue;
            }
            let summary = ["mean_ttft", "median_ttft", "mean_e2el", "median_e2el", "mean_tpot", "median_tpot"];
            match key.as_str() {
                "model_id" => self.run.model = map.next_value::<Option<String>>()?,
                "num_prompts" => self.run.requests = map.next_value::<Box<RawValue>>()?.get().parse().ok(),
                key if summary.contains(&key.strip_suffix("_ms").unwrap_or(key)) => {
                    if let Ok(value) = map.next_value::<Box<RawValue>>()?.get().parse() {
                        self.run.summary.push((key.to_owned(), value));
                    }
                }
                _ => {
                    // Skipping keeps nothing in memory.
                    self.cap.left.set(u64::MAX);
                    map.next_value::<IgnoredAny>()?;
                }
            }
            self.cap.reset();
        }
        Ok(())
    }
}

/// Calls `take` with the text of each entry of a list; null is an empty list.
struct Each<'a> {
    cap: &'a Cap,
    take: &'a mut dyn FnMut(&str),
}

impl<'de> DeserializeSeed<'de> for Each<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Each<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while let Some(entry) = list.next_element::<Box<RawValue>>()? {
            (self.take)(entry.get());
            self.cap.reset();
        }
        Ok(())
    }
}

impl Run {
    /// Takes the next entry of a list.
    fn take(&mut self, list: usize, text: &str, unit: TimeUnit) {
        let mut scan = Scan::new(text.as_bytes());
        let (row, bad) = match list {
            0 => next(&mut self.input, walk::tokens(&mut scan, "a prompt length")),
            1 => next(&mut self.output, walk::tokens(&mut scan, "an output length")),
            2 | 4 => {
                let what = if list == 2 { "a time to first token" } else { "an instant" };
                let time = walk::time(&mut scan, what, unit);
                self.rounded += u64::from(time.as_ref().is_ok_and(|(_, exact)| !exact));
                next(if list == 2 { &mut self.ttft } else { &mut self.start }, time.map(|(ns, _)| ns))
            }
            3 => {
                let mut sum = 0_i64;
                let found = walk::list(&mut scan, "times between tokens", &mut |scan| {
                    let (ns, exact) = walk::time(scan, "a time between tokens", unit)?;
                    self.rounded += u64::from(!exact);
                    sum = sum.saturating_add(ns);
                    Ok(())
                });
                next(&mut self.between, found.map(|()| sum))
            }
            _ => next(&mut self.failed, Ok(text != "\"\"" && text != "null")),
        };
        if let Some(bad) = bad {
            self.bad.entry(row).or_insert((list, Bad { found: quoted(text.as_bytes()), ..bad }));
        }
    }
}

/// Appends a value, or a placeholder and what is wrong; also the row.
fn next<T: Default>(column: &mut Vec<T>, value: std::result::Result<T, Bad>) -> (usize, Option<Bad>) {
    let row = column.len();
    let (value, bad) = value.map_or_else(|bad| (T::default(), Some(bad)), |value| (value, None));
    column.push(value);
    (row, bad)
}

#[cfg(test)]
mod tests;
