//! The loop over the lines of a file of JSON lines, and the events that its adapters have in common.

use engine::error::{Error, Result};

use super::json::named;
use super::problem::{Bad, Problem};
use super::sink::{Event, Severity, Sink};
use super::source::{Body, Line, Lines};

/// A key that is not stored.
pub(super) const UNKNOWN_KEY: Event =
    Event { severity: Severity::DataLoss, code: "unknown_key", advice: Some("the key is not stored") };
/// A request without output.
pub(super) const NO_OUTPUT: Event = Event { severity: Severity::Info, code: "no_output", advice: None };
/// A line without anything in it.
pub(super) const EMPTY_LINE: Event = Event { severity: Severity::Info, code: "empty_line", advice: None };
/// An instant before that of the row before.
pub(super) const BACKWARDS: Event = Event {
    severity: Severity::Notice,
    code: "time_backwards",
    advice: Some("rows stay in file order; check whether the trace wraps or was joined"),
};
/// An instant with digits below the nanosecond.
pub(super) const ROUNDED: Event = Event { severity: Severity::Notice, code: "time_rounded", advice: None };

/// What a line is.
pub(super) enum Outcome {
    /// A row, handed on.
    Row,
    /// Read, and no row of its own.
    Beside,
    /// A row that cannot be read.
    Bad(Box<Bad>),
}

/// A line that is kept to be read twice.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    number: u64,
    offset: u64,
}

impl Kept {
    /// As it came.
    pub(super) fn line(&self) -> Line<'_> {
        Line { bytes: &self.bytes, number: self.number, offset: self.offset }
    }
}

/// How many lines, and how many bytes of them, decide about the settings of a file.
const FIRST: usize = 64;
const FIRST_BYTES: usize = 4 << 20;

/// The lines of a body that must be a file.
pub(super) fn lines<'b>(path: &str, body: &'b mut Body) -> Result<&'b mut Lines> {
    match body {
        Body::Lines(lines) => Ok(lines),
        Body::File(_) => Err(Error::data(format!("expected text in `{path}`, found a binary file"))),
        Body::Directory(_) => Err(Error::data(format!("expected a file, found the directory `{path}`"))),
    }
}

/// The first lines of a file, blank ones included.
pub(super) fn first(lines: &mut Lines) -> Result<Vec<Kept>> {
    let (mut kept, mut bytes) = (Vec::new(), 0);
    while kept.len() < FIRST
        && bytes < FIRST_BYTES
        && let Some(line) = lines.next_line()?
    {
        bytes += line.bytes.len();
        kept.push(Kept { bytes: line.bytes.to_vec(), number: line.number, offset: line.offset });
    }
    Ok(kept)
}

/// Calls `take` for each line that is not blank, the first ones and then the rest, and counts what became of it.
pub(super) fn each(
    path: &str,
    first: &[Kept],
    lines: &mut Lines,
    sink: &mut Sink<'_>,
    take: &mut dyn FnMut(Line<'_>, &mut Sink<'_>) -> Result<Outcome>,
) -> Result<()> {
    let mut one = |line: Line<'_>, sink: &mut Sink<'_>| -> Result<()> {
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
            return Ok(());
        }
        match take(line, sink) {
            Ok(Outcome::Row) => sink.found(1),
            Ok(Outcome::Beside) => {}
            Ok(Outcome::Bad(bad)) => {
                sink.found(1);
                sink.reject(Problem::in_line(path, line.bytes, line.number, line.offset, *bad))?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    };
    first.iter().try_for_each(|kept| one(kept.line(), sink))?;
    while let Some(line) = lines.next_line()? {
        one(line, sink)?;
    }
    Ok(())
}

/// What is odd about the rows of a source, row after row.
#[derive(Debug)]
pub(super) struct Watch {
    latest: i64,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { latest: i64::MIN }
    }

    /// Logs keys that are not stored.
    #[expect(clippy::unused_self, reason = "what is odd about a row is logged in one place")]
    pub(super) fn unknown(&self, sink: &mut Sink<'_>, line: Line<'_>, keys: &[(&[u8], usize)]) {
        for (key, column) in keys {
            let message = format!("the key {} is not part of the format", named(key));
            sink.log(UNKNOWN_KEY, &message, Some(line.number), Some(line.offset + *column as u64));
        }
    }

    /// Logs an instant that goes back or was rounded.
    pub(super) fn time(&mut self, sink: &mut Sink<'_>, number: u64, offset: u64, (ns, exact): (i64, bool)) {
        if ns < self.latest {
            sink.log(BACKWARDS, "a timestamp is earlier than that of the row before", Some(number), Some(offset));
        }
        self.latest = ns;
        if !exact {
            sink.log(ROUNDED, "a timestamp was rounded to the nanosecond", Some(number), Some(offset));
        }
    }

    /// Logs a request without output.
    #[expect(clippy::unused_self, reason = "what is odd about a row is logged in one place")]
    pub(super) fn output(&self, sink: &mut Sink<'_>, number: u64, offset: u64, tokens: u32) {
        if tokens == 0 {
            let message = "a request without output tokens was kept with the status `no_output`";
            sink.log(NO_OUTPUT, message, Some(number), Some(offset));
        }
    }
}
