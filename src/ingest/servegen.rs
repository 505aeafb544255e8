//! `ServeGen` client files, which are refused: they describe how requests are distributed, and hold none.
//!
//! ```text
//! 2400,0.085,6.69324386291654,Gamma,0.02232167101916883,73.01783087211976
//! {"0": {"input_tokens": "{45: 0.0096, 46: 0.0117}", "output_tokens": "{..}"}}
//! ```
//!
//! A line of `chunk-<n>-trace.csv`, which has no header, is a window of ten minutes: its start, requests per second, and
//! how the gaps between them spread. `chunk-<n>-dataset.json` says how often each length occurs, as Python dictionaries
//! within text.
//!
//! Requests could be drawn from them, but a drawn request is no measured one; `ServeGen` draws them, and its output in
//! one of the other formats can be ingested.

use engine::error::{Error, Result};

use super::sink::Sink;
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "servegen",
    doc: "ServeGen client files: recognised and refused, since they hold distributions and no requests",
    spec: "https://github.com/alibaba/ServeGen",
    verified: true,
    sniff,
    read,
};

/// What the files are, and what is missing.
const RATES: &str = "a ServeGen client file of request rates in ten-minute windows: it holds no requests, so arrivals and \
                     lengths are missing";
const LENGTHS: &str = "a ServeGen client file of how often each length occurs: it holds no requests, so arrivals are \
                       missing";

fn sniff(head: &Head<'_>) -> Sniff {
    let text = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    let mut lines = text.split(|byte| *byte == b'\n').take(2);
    if head.directory {
        Sniff::No
    } else if text.starts_with(b"{") && holds_distributions(text) {
        Sniff::Nearly(LENGTHS.to_owned())
    } else if lines.all(|line| line.is_empty() || is_window(line.trim_ascii())) && !text.is_empty() {
        Sniff::Nearly(RATES.to_owned())
    } else {
        Sniff::No
    }
}

fn read(input: &mut Input<'_>, _: &mut Sink<'_>) -> Result<Settings> {
    Err(Error::data(format!("expected requests in `{}`, found distributions, as ServeGen keeps them", input.path))
        .hint("draw requests with ServeGen, and ingest what it writes"))
}

/// Whether a value is a Python dictionary written as text.
fn holds_distributions(text: &[u8]) -> bool {
    const MARK: &[u8] = b"_tokens\": \"{";
    text.windows(MARK.len()).any(|window| window == MARK)
}

/// Whether a line is a window: its start, a rate, a ratio, the name of a distribution or nothing, two parameters.
fn is_window(line: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(line) else { return false };
    let cells: Vec<&str> = line.split(',').collect();
    let [start, rate, ratio, name, first, second] = cells[..] else { return false };
    start.parse::<u64>().is_ok()
        && [rate, ratio, first, second].iter().all(|cell| cell.parse::<f64>().is_ok())
        && name.bytes().all(|byte| byte.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests;
