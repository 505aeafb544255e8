//! A scanner over one line of JSON that knows where it is, so that a message can name the column, and that reads whole
//! numbers without a detour through floating point.

use serde::de::IgnoredAny;

use super::problem::{Bad, found_at, quoted};

/// A position in a line.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Self { line, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next byte after blanks, if there is one.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.line.get(self.at) {
            self.at += 1;
        }
        self.line.get(self.at).copied()
    }

    /// Takes `byte` if it is next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    /// Takes `byte`; `expected` describes what else might stand there.
    pub(super) fn expect(&mut self, byte: u8, expected: &str) -> Result<(), Bad> {
        if self.take(byte) { Ok(()) } else { Err(self.bad("json", expected)) }
    }

    /// Takes what must be the end of the line.
    pub(super) fn end(&mut self) -> Result<(), Bad> {
        if self.peek().is_none() { Ok(()) } else { Err(self.bad("json", "the end of the line")) }
    }

    /// A problem at the next byte.
    pub(super) fn bad(&self, code: &'static str, expected: impl Into<String>) -> Bad {
        bad_at(self.line, self.at, code, expected)
    }

    /// A problem with what starts at `at`.
    pub(super) fn bad_from(&self, at: usize, code: &'static str, expected: impl Into<String>) -> Bad {
        bad_at(self.line, at, code, expected)
    }

    /// A key and its colon.
    pub(super) fn key(&mut self) -> Result<&'a [u8], Bad> {
        if self.peek() != Some(b'"') {
            return Err(self.bad("json", "a key in quotes"));
        }
        let from = self.at;
        let length = self.line[from + 1..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
        let key = match length {
            Some(length) if self.line[from + 1 + length] == b'"' => &self.line[from + 1..from + 1 + length],
            // An escape or a missing quote: the general parser decides. A key with an escape is nobody's key here.
            _ => {
                self.value()?;
                &self.line[from..self.at]
            }
        };
        if std::str::from_utf8(key).is_err() {
            return Err(bad_at(self.line, from, "utf8", "a key in UTF-8"));
        }
        if self.at == from {
            self.at += key.len() + 2;
        }
        self.expect(b':', "`:`")?;
        Ok(key)
    }

    /// A whole number of at least zero that fits u64.
    pub(super) fn whole(&mut self, what: &str) -> Result<u64, Bad> {
        self.peek();
        let from = self.at;
        let mut value: u64 = 0;
        while let Some(digit @ b'0'..=b'9') = self.line.get(self.at) {
            let digit = u64::from(digit - b'0');
            // Nineteen digits always fit, so that only longer numbers pay for the check.
            value = if self.at - from < 19 {
                value * 10 + digit
            } else {
                let next = value.checked_mul(10).and_then(|value| value.checked_add(digit));
                next.ok_or_else(|| bad_at(self.line, from, "out_of_range", format!("{what} of at most {}", u64::MAX)))?
            };
            self.at += 1;
        }
        let leading_zero = self.at - from > 1 && self.line[from] == b'0';
        if self.at == from || leading_zero || matches!(self.line.get(self.at), Some(b'.' | b'e' | b'E')) {
            let negative = self.line.get(from) == Some(&b'-');
            let code = if negative { "negative" } else { "wrong_type" };
            return Err(bad_at(self.line, from, code, format!("{what} as a whole number of at least zero")));
        }
        Ok(value)
    }

    /// A number as it is written.
    pub(super) fn number(&mut self, what: &str) -> Result<&'a [u8], Bad> {
        self.peek();
        let from = self.at;
        let digits = |scan: &mut Self| {
            let start = scan.at;
            while scan.line.get(scan.at).is_some_and(u8::is_ascii_digit) {
                scan.at += 1;
            }
            scan.at - start
        };
        let minus = usize::from(self.line.get(from) == Some(&b'-'));
        self.at += minus;
        let whole = digits(self);
        let mut good = whole == 1 || (whole > 1 && self.line[from + minus] != b'0');
        if good && self.line.get(self.at) == Some(&b'.') {
            self.at += 1;
            good = digits(self) > 0;
        }
        if good && matches!(self.line.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            self.at += usize::from(matches!(self.line.get(self.at), Some(b'+' | b'-')));
            good = digits(self) > 0;
        }
        if good { Ok(&self.line[from..self.at]) } else { Err(bad_at(self.line, from, "wrong_type", what)) }
    }

    /// Any value, checked and skipped.
    pub(super) fn value(&mut self) -> Result<(), Bad> {
        self.peek();
        let rest = &self.line[self.at..];
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {
                let taken = values.byte_offset();
                // The parser does not look into the bytes of a skipped string.
                if let Err(error) = std::str::from_utf8(&rest[..taken]) {
                    return Err(bad_at(self.line, self.at + error.valid_up_to(), "utf8", "text in UTF-8"));
                }
                self.at += taken;
                Ok(())
            }
            Some(Err(error)) => {
                let column = if error.is_eof() { rest.len() } else { error.column().saturating_sub(1) };
                Err(bad_at(self.line, self.at + column.min(rest.len()), "json", "a JSON value"))
            }
            None => Err(self.bad("json", "a JSON value")),
        }
    }
}

/// A problem at an offset.
pub(super) fn bad_at(line: &[u8], at: usize, code: &'static str, expected: impl Into<String>) -> Bad {
    Bad { at, code, expected: expected.into(), found: found_at(line, at) }
}

/// The key in backticks.
pub(super) fn named(key: &[u8]) -> String {
    quoted(key)
}
