//! Streaming through JSON that is one large value: keys and values one by one, each on its own in memory.
//!
//! Where [`super::walk`] needs a whole record, this needs one value of its innermost object. Damage is no end of the file:
//! a file may hold several values, and after damage reading goes on at the next line that begins with `{`.

use std::io::Read;

use engine::error::{Error, Result};

use super::json::Scan;
use super::problem::{Bad, Problem, found_at};
use super::source::Lines;

/// Bytes read at a time.
const CHUNK: usize = 64 << 10;

/// The most bytes of one value that is taken as a whole.
const LIMIT: usize = 64 << 20;

/// How deep objects may hold lists that are streamed.
pub(super) const DEPTH: usize = 8;

/// Why streaming stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// What stands there is no JSON, or not the JSON of the format.
    Broken(Box<Problem>),
    /// The file cannot be read on.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// From 1.
    pub(super) line: u64,
    /// Bytes before it in its line.
    pub(super) column: u64,
    /// Bytes before it in the decompressed file.
    pub(super) offset: u64,
}

/// A position in a stream of JSON.
pub(super) struct Pieces<'l> {
    path: &'l str,
    lines: &'l mut Lines,
    buffer: Vec<u8>,
    at: usize,
    here: Place,
    ended: bool,
}

/// How far a value goes.
#[derive(Default)]
struct Nesting {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The byte before ended a line.
    fresh_line: bool,
}

/// What a byte does to a value.
enum Step {
    Inside,
    /// The value ends with this byte.
    Last,
    /// The value has ended before this byte.
    Beyond,
}

impl Nesting {
    fn step(&mut self, byte: u8) -> Step {
        let fresh = std::mem::replace(&mut self.fresh_line, byte == b'\n');
        if self.in_string {
            match byte {
                // No string of JSON holds an end of line: this one is not closed.
                b'\n' => return Step::Beyond,
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return if self.in_string || self.depth > 0 { Step::Inside } else { Step::Last };
        }
        match byte {
            b'{' if fresh => return Step::Beyond,
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return Step::Last;
                }
            }
            b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if self.depth == 0 => return Step::Beyond,
            _ => {}
        }
        Step::Inside
    }
}

impl<'l> Pieces<'l> {
    pub(super) fn new(path: &'l str, lines: &'l mut Lines) -> Result<Self> {
        let here = Place { line: 1, column: 0, offset: 0 };
        let mut pieces = Self { path, lines, buffer: Vec::new(), at: 0, here, ended: false };
        while pieces.buffer.len() < 3 && pieces.fill()? {}
        if pieces.buffer.starts_with(b"\xef\xbb\xbf") {
            pieces.at = 3;
            pieces.here.offset = 3;
        }
        Ok(pieces)
    }

    /// Where the next byte stands.
    pub(super) fn here(&self) -> Place {
        self.here
    }

    /// Reads on; whether there was more.
    fn fill(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let before = self.buffer.len();
        let read = self.lines.take(CHUNK as u64).read_to_end(&mut self.buffer);
        read.map_err(|error| {
            Error::data(format!("cannot read `{}`: {error}", self.path))
                .hint("a compressed file that was cut or damaged cannot be read to its end")
        })?;
        self.ended = self.buffer.len() == before;
        Ok(!self.ended)
    }

    fn advance(&mut self) {
        if self.buffer.get(self.at) == Some(&b'\n') {
            self.here.line += 1;
            self.here.column = 0;
        } else {
            self.here.column += 1;
        }
        self.at += 1;
        self.here.offset += 1;
    }

    /// The next byte, without taking it.
    fn next(&mut self) -> Result<Option<u8>> {
        if self.at == self.buffer.len() && !self.fill()? {
            return Ok(None);
        }
        Ok(self.buffer.get(self.at).copied())
    }

    /// The next byte after blanks, without taking it.
    pub(super) fn peek(&mut self) -> Result<Option<u8>> {
        while let Some(byte) = self.next()? {
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Ok(Some(byte));
            }
            self.advance();
        }
        Ok(None)
    }

    /// Takes `byte` if it is next.
    pub(super) fn take(&mut self, byte: u8) -> Result<bool> {
        let taken = self.peek()? == Some(byte);
        if taken {
            self.advance();
        }
        Ok(taken)
    }

    /// Takes `byte`; `expected` describes what else might stand there.
    pub(super) fn expect(&mut self, byte: u8, expected: &str) -> std::result::Result<(), Stop> {
        if self.take(byte)? { Ok(()) } else { Err(self.broken("json", expected)) }
    }

    /// The next value as it is written, and where it began.
    pub(super) fn value(&mut self, into: &mut Vec<u8>) -> std::result::Result<Place, Stop> {
        into.clear();
        self.peek()?;
        let from = self.here;
        let mut nesting = Nesting::default();
        while let Some(byte) = self.next()? {
            match nesting.step(byte) {
                Step::Beyond => break,
                Step::Inside => into.push(byte),
                Step::Last => {
                    into.push(byte);
                    self.advance();
                    break;
                }
            }
            self.advance();
            if into.len() > LIMIT {
                return Err(Stop::Failed(Error::data(format!(
                    "expected JSON values of at most {LIMIT} bytes in `{}`, found a longer one in line {}",
                    self.path, from.line
                ))));
            }
        }
        if into.is_empty() { Err(self.broken("json", "a JSON value")) } else { Ok(from) }
    }

    /// The next key, in quotes, and its colon; gives where the key stands.
    pub(super) fn key(&mut self, into: &mut Vec<u8>) -> std::result::Result<Place, Stop> {
        if self.peek()? != Some(b'"') {
            return Err(self.broken("json", "a key in quotes"));
        }
        let place = self.value(into)?;
        if into.len() < 2 || into.last() != Some(&b'"') {
            return Err(self.broken("json", "a key in quotes"));
        }
        self.expect(b':', "`:`")?;
        Ok(place)
    }

    /// Goes to the next line that begins with `{`; whether there is one.
    pub(super) fn resume(&mut self) -> Result<bool> {
        let mut fresh = self.here.column == 0 && self.here.offset > 0;
        while let Some(byte) = self.next()? {
            if fresh && byte == b'{' {
                return Ok(true);
            }
            fresh = byte == b'\n';
            self.advance();
        }
        Ok(false)
    }

    /// A problem at the next byte.
    pub(super) fn broken(&mut self, code: &'static str, expected: &str) -> Stop {
        let rest = &self.buffer[self.at..];
        let rest = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let rest = rest[..rest.len().min(200)].to_vec();
        let end = if self.ended { "the end of the file" } else { "the end of the line" };
        let found = if rest.is_empty() { end.to_owned() } else { found_at(&rest, 0) };
        let bad = Bad { at: 0, code, expected: expected.to_owned(), found };
        Stop::Broken(Box::new(self.problem(&rest, self.here, bad)))
    }

    /// A problem in a value that began at `place`.
    pub(super) fn problem(&self, text: &[u8], place: Place, bad: Bad) -> Problem {
        Problem::in_piece(self.path, text, place, bad)
    }
}

/// A scan over a value that was taken as a whole, which must be used up.
pub(super) fn whole<'a, T>(
    text: &'a [u8],
    read: impl FnOnce(&mut Scan<'a>) -> std::result::Result<T, Bad>,
) -> std::result::Result<T, Bad> {
    let mut scan = Scan::new(text);
    scan.peek();
    let value = read(&mut scan)?;
    scan.end()?;
    Ok(value)
}
