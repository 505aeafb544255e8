//! Lines of words with numbers in them, as tracers of GPU instructions print them; each problem knows its column.

use super::json::bad_at;
use super::problem::Bad;

/// The words of a line, one after the other.
#[derive(Debug, Clone)]
pub(super) struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

/// A word, and where it begins.
pub(super) type Word<'a> = (&'a [u8], usize);

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a [u8], at: usize) -> Self {
        Self { line, at }
    }

    /// The next word, if there is one.
    pub(super) fn maybe(&mut self) -> Option<Word<'a>> {
        let rest = self.line.get(self.at..)?;
        let blanks = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let word = rest.get(blanks..)?;
        let length = word.iter().take_while(|byte| !byte.is_ascii_whitespace()).count();
        let from = self.at + blanks;
        self.at = from + length;
        (length > 0).then(|| (&word[..length], from))
    }

    /// The next word.
    pub(super) fn next(&mut self, what: &str) -> Result<Word<'a>, Bad> {
        self.maybe().ok_or_else(|| bad_at(self.line, self.line.len(), "missing_value", what))
    }

    /// A problem with a word.
    pub(super) fn bad(&self, at: usize, code: &'static str, expected: impl Into<String>) -> Bad {
        bad_at(self.line, at, code, expected)
    }

    /// A whole number of at least zero.
    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Bad> {
        let (word, at) = self.next(what)?;
        decimal(word).ok_or_else(|| self.bad(at, "wrong_type", format!("{what} as a whole number below 2^32")))
    }

    /// A whole number.
    pub(super) fn i64(&mut self, what: &str) -> Result<i64, Bad> {
        let (word, at) = self.next(what)?;
        let value = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
        value.ok_or_else(|| self.bad(at, "wrong_type", format!("{what} as a whole number of 64 bits")))
    }

    /// A number in hex, with or without `0x`.
    pub(super) fn hex(&mut self, what: &str) -> Result<u64, Bad> {
        let (word, at) = self.next(what)?;
        hex(word).ok_or_else(|| self.bad(at, "wrong_type", format!("{what} in hex, of 64 bits")))
    }

    /// A word of printable text.
    pub(super) fn text(&mut self, what: &str) -> Result<&'a str, Bad> {
        let (word, at) = self.next(what)?;
        std::str::from_utf8(word).map_err(|_| self.bad(at, "utf8", format!("{what} in UTF-8")))
    }
}

/// A whole number of at least zero: digits and nothing else.
pub(super) fn decimal<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    let plain = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(word).ok()?.parse().ok()).flatten()
}

/// A number in hex, with or without `0x`.
pub(super) fn hex(word: &[u8]) -> Option<u64> {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    let plain = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    plain.then(|| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()).flatten()
}

/// Three whole numbers with commas between them, with or without parentheses.
pub(super) fn triple(word: &[u8]) -> Option<[u32; 3]> {
    let inner = word.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")")).unwrap_or(word);
    let mut parts = inner.split(|byte| *byte == b',').map(decimal);
    let (x, y, z) = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some([x, y, z])
}
