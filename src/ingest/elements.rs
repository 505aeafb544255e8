//! Streaming through one JSON object that holds a long list of records, such as `traceEvents` of a profiler.
//!
//! A record is read where it stands in the buffer, by a typed reader that needs no copy of it. Only where that fails does
//! a byte scanner look for the record's end: it may go on behind the buffer, or be damaged. Damage is no end of the file:
//! reading goes on at the next record. Memory is one buffer, which grows for a longer record alone.

use std::io::Read;

use engine::error::{Error, Result};

use super::json::bad_at;
use super::pieces::{Place, Stop};
use super::problem::{Bad, Problem, found_at};
use super::source::{Lines, count};

/// Bytes of the buffer.
const BUFFER: usize = 1 << 20;

/// The most bytes of a record, and of a value beside the list.
const LIMIT: usize = 64 << 20;

/// Bytes between the brace of a record and the end of its first key, blanks included.
const LOOK: usize = 256;

/// What gets a key beside the list, without its quotes, its value, and where the key stands.
pub(super) type Beside<'f> = dyn FnMut(&[u8], &[u8], Place) + 'f;

/// What stands next.
pub(super) enum Next {
    /// A record of the list: [`Elements::window`] begins with it.
    Element,
    /// Something that is no JSON; reading goes on behind it.
    Broken(Box<Problem>),
    /// The end of the file.
    End,
}

/// Where the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the object.
    Start,
    /// In the object; whether nothing of it was read.
    Members { first: bool },
    /// In the list; whether nothing of it was read.
    List { first: bool },
    /// Before a record.
    Element,
    /// Behind the object.
    After,
    /// At the end of the file.
    Done,
}

/// A position in such a file.
pub(super) struct Elements<'l> {
    path: &'l str,
    lines: &'l mut Lines,
    /// Key of the list.
    list: &'static [u8],
    /// The key, in quotes, with which a record and nothing else begins.
    first_key: &'static [u8],
    /// What was read and not yet taken: the bytes from `at` to `end`.
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// Where the buffer begins.
    base: Place,
    ended: bool,
    state: State,
}

/// How far a value goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// So many bytes.
    Whole(usize),
    /// It is damaged, or cut, after so many bytes.
    Broken(usize),
    /// Behind the end of the buffer.
    Beyond,
}

/// Whether a record begins here, by its first key.
fn begins(bytes: &[u8], first_key: &[u8]) -> bool {
    bytes.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(first_key))
}

/// How far the value goes with which `bytes` begin; `ended` if nothing follows them. Strings and nesting are followed,
/// nothing else is checked.
fn extent(bytes: &[u8], ended: bool, first_key: &[u8]) -> Extent {
    let starts = |at: usize| begins(bytes.get(at..(at + LOOK).min(bytes.len())).unwrap_or_default(), first_key);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                // No string of JSON holds an end of line: this one is not closed.
                b'\n' => return Extent::Broken(at),
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                // Quotes within a string have a backslash: a quote is missing before this record.
                b'{' if starts(at) => return Extent::Broken(at),
                b'"' if depth == 0 => return Extent::Whole(at + 1),
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            // The next record, before this one is closed.
            b'{' if depth > 0 && starts(at) => return Extent::Broken(at),
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 1 => return Extent::Whole(at + 1),
            b'}' | b']' if depth > 0 => depth -= 1,
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return Extent::Whole(at),
            _ => {}
        }
    }
    match ended {
        true if depth == 0 && !in_string => Extent::Whole(bytes.len()),
        true => Extent::Broken(bytes.len()),
        false => Extent::Beyond,
    }
}

/// Bytes of the value with which `bytes` begin, by its brackets and quotes alone; none if it does not end.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    match extent(bytes, true, b"\0") {
        Extent::Whole(length) => Some(length),
        _ => None,
    }
}

impl<'l> Elements<'l> {
    /// A file with the list under the key `list`; each record begins with `first_key`, if the file was not rewritten.
    pub(super) fn new(
        path: &'l str,
        lines: &'l mut Lines,
        list: &'static [u8],
        first_key: &'static [u8],
    ) -> Result<Self> {
        let base = Place { line: 1, column: 0, offset: 0 };
        let buffer = vec![0; BUFFER];
        let mut elements =
            Self { path, lines, list, first_key, buffer, at: 0, end: 0, base, ended: false, state: State::Start };
        elements.fill()?;
        if elements.window().starts_with(b"\xef\xbb\xbf") {
            elements.at = 3;
        }
        Ok(elements)
    }

    /// What was read and not yet taken.
    pub(super) fn window(&self) -> &[u8] {
        self.buffer.get(self.at..self.end).unwrap_or_default()
    }

    /// Where the next byte stands.
    pub(super) fn here(&self) -> Place {
        let text = self.buffer.get(..self.at).unwrap_or_default();
        let column = match memchr::memrchr(b'\n', text) {
            Some(end) => (text.len() - end - 1) as u64,
            None => self.base.column + text.len() as u64,
        };
        Place { line: self.base.line + count(text, b'\n') as u64, column, offset: self.base.offset + text.len() as u64 }
    }

    /// Reads until the buffer is full, after doubling one that is full of one value; whether there was more.
    fn fill(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.base = self.here();
        self.buffer.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        if self.end == self.buffer.len() {
            if self.end >= LIMIT {
                return Err(Error::data(format!(
                    "expected JSON values of at most {LIMIT} bytes in `{}`, found a longer one in line {}",
                    self.path, self.base.line
                )));
            }
            self.buffer.resize(self.end * 2, 0);
        }
        let before = self.end;
        while self.end < self.buffer.len() && !self.ended {
            let free = self.buffer.get_mut(self.end..).unwrap_or_default();
            let read = self.lines.read(free).map_err(|error| {
                Error::data(format!("cannot read `{}`: {error}", self.path))
                    .hint("a compressed file that was cut or damaged cannot be read to its end")
            })?;
            self.end += read;
            self.ended = read == 0;
        }
        Ok(self.end > before)
    }

    /// The next byte after blanks, without taking it.
    fn peek(&mut self) -> Result<Option<u8>> {
        loop {
            let blank = self.window().iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
            match blank {
                Some(blanks) => {
                    self.at += blanks;
                    return Ok(self.window().first().copied());
                }
                None => self.at = self.end,
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Takes `byte` if it is next.
    fn take(&mut self, byte: u8) -> Result<bool> {
        let taken = self.peek()? == Some(byte);
        self.at += usize::from(taken);
        Ok(taken)
    }

    /// A problem at the next byte.
    fn broken(&self, expected: &str) -> Stop {
        let rest = self.window().split(|byte| *byte == b'\n').next().unwrap_or_default();
        let rest = rest.get(..LOOK).unwrap_or(rest);
        let end = if self.ended { "the end of the file" } else { "the end of the line" };
        let found = if rest.is_empty() { end.to_owned() } else { found_at(rest, 0) };
        let bad = Bad { at: 0, code: "json", expected: expected.to_owned(), found };
        Stop::Broken(Box::new(Problem::in_piece(self.path, rest, self.here(), bad)))
    }

    /// Bytes of the next value, all of them in the window.
    fn value(&mut self, expected: &str) -> std::result::Result<usize, Stop> {
        self.peek()?;
        loop {
            match extent(self.window(), self.ended, self.first_key) {
                Extent::Whole(length) if length > 0 => return Ok(length),
                Extent::Beyond => drop(self.fill()?),
                _ => return Err(self.broken(expected)),
            }
        }
    }

    /// Goes to the next record, damage or the end; `beside` gets each key of the object other than the list, without its
    /// quotes, and its value.
    pub(super) fn next(&mut self, beside: &mut Beside<'_>) -> Result<Next> {
        loop {
            let step = match self.state {
                State::Start => self.start(),
                State::Members { first } => self.member(first, beside),
                State::List { first } => self.record(first),
                State::After => self.after(),
                State::Element => return Ok(Next::Element),
                State::Done => return Ok(Next::End),
            };
            match step {
                Ok(()) => {}
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Broken(problem)) => {
                    self.resume()?;
                    return Ok(Next::Broken(problem));
                }
            }
        }
    }

    fn start(&mut self) -> std::result::Result<(), Stop> {
        if !self.take(b'{')? {
            return Err(self.broken("a JSON object"));
        }
        self.state = State::Members { first: true };
        Ok(())
    }

    fn member(&mut self, first: bool, beside: &mut Beside<'_>) -> std::result::Result<(), Stop> {
        if self.take(b'}')? {
            self.state = State::After;
            return Ok(());
        }
        if !first && !self.take(b',')? {
            return Err(self.broken("`,` or `}`"));
        }
        if self.peek()? != Some(b'"') {
            return Err(self.broken("a key in quotes"));
        }
        let place = self.here();
        let length = self.value("a key in quotes")?;
        let key = self.window().get(1..length.saturating_sub(1)).unwrap_or_default().to_vec();
        self.at += length;
        if !self.take(b':')? {
            return Err(self.broken("`:`"));
        }
        if key == self.list && self.take(b'[')? {
            self.state = State::List { first: true };
            return Ok(());
        }
        let length = self.value("a JSON value")?;
        beside(&key, self.window().get(..length).unwrap_or_default(), place);
        self.at += length;
        self.state = State::Members { first: false };
        Ok(())
    }

    fn record(&mut self, first: bool) -> std::result::Result<(), Stop> {
        if self.take(b']')? {
            self.state = State::Members { first: false };
            return Ok(());
        }
        if !first && !self.take(b',')? || self.peek()?.is_none() {
            return Err(self.broken(if first { "a record or `]`" } else { "`,` or `]`" }));
        }
        self.state = State::Element;
        Ok(())
    }

    fn after(&mut self) -> std::result::Result<(), Stop> {
        if self.peek()?.is_some() {
            return Err(self.broken("the end of the file"));
        }
        self.state = State::Done;
        Ok(())
    }

    /// Takes a record of so many bytes.
    pub(super) fn advance(&mut self, length: usize) {
        self.at = (self.at + length).min(self.end);
        self.state = State::List { first: false };
    }

    /// Takes a record of so many bytes that was refused.
    pub(super) fn refuse(&mut self, length: usize, bad: Bad) -> Problem {
        let text = self.window().get(..length).unwrap_or_default();
        let problem = Problem::in_piece(self.path, text, self.here(), bad);
        self.advance(length);
        problem
    }

    /// What to do with a record that could not be read from the window: none if there is more of it now, else it is taken
    /// and the problem told. `explain` reads it again, once it is known how far it goes.
    pub(super) fn judge(&mut self, explain: &dyn Fn(&[u8]) -> Option<Bad>) -> Result<Option<Problem>> {
        let (length, whole) = match extent(self.window(), self.ended, self.first_key) {
            Extent::Beyond => {
                self.fill()?;
                return Ok(None);
            }
            Extent::Whole(length) => (length.max(1), length > 0),
            Extent::Broken(length) => (length.max(1), false),
        };
        let text = self.window().get(..length).unwrap_or_default();
        let bad = explain(text).unwrap_or_else(|| bad_at(text, 0, "json", "a JSON object"));
        let problem = self.refuse(length, bad);
        if !whole {
            self.resume()?;
        }
        Ok(Some(problem))
    }

    /// After damage: goes to the next record, or to the end of the file.
    fn resume(&mut self) -> Result<()> {
        let listed = matches!(self.state, State::List { .. } | State::Element);
        if self.state == State::After {
            self.state = State::Done;
            return Ok(());
        }
        let mut from = self.at;
        loop {
            let ready = self.buffer.get(from..self.end).unwrap_or_default();
            let Some(brace) = memchr::memchr(b'{', ready).map(|brace| from + brace) else {
                self.at = self.end;
                if !self.fill()? {
                    self.state = State::Done;
                    return Ok(());
                }
                from = self.at;
                continue;
            };
            if brace + LOOK > self.end && !self.ended {
                self.at = brace;
                self.fill()?;
                from = self.at;
                continue;
            }
            let look = self.buffer.get(brace..(brace + LOOK).min(self.end)).unwrap_or_default();
            if begins(look, self.first_key) || listed && self.begins_line(brace) {
                self.at = brace;
                self.state = State::Element;
                return Ok(());
            }
            from = brace + 1;
        }
    }

    /// Whether nothing but blanks stands before this byte in its line.
    fn begins_line(&self, at: usize) -> bool {
        let before = self.buffer.get(..at).unwrap_or_default();
        let last = before.iter().rposition(|byte| !matches!(byte, b' ' | b'\t'));
        last.and_then(|last| before.get(last)) == Some(&b'\n')
    }
}

#[cfg(test)]
mod tests;
