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

    /// Goes back to an earlier offset.
    pub(super) fn back(&mut self, at: usize) {
        self.at = self.at.min(at);
    }

    /// The next byte after blanks, if there is one.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        match self.line.get(self.at) {
            Some(byte) if *byte > b' ' => Some(*byte),
            _ => self.peek_behind_blanks(),
        }
    }

    fn peek_behind_blanks(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.line.get(self.at) {
            self.at += 1;
        }
        self.line.get(self.at).copied()
    }

    /// Takes `byte` if it is next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    /// Takes `byte`; `expected` describes what else might stand there.
    #[inline]
    pub(super) fn expect(&mut self, byte: u8, expected: &str) -> Result<(), Bad> {
        if self.take(byte) { Ok(()) } else { Err(self.bad("json", expected)) }
    }

    /// Takes these bytes if they are next, none of them otherwise.
    pub(super) fn literal(&mut self, bytes: &[u8]) -> Option<()> {
        let taken = self.line.get(self.at..)?.starts_with(bytes);
        self.at += if taken { bytes.len() } else { 0 };
        taken.then_some(())
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
        let rest = self.line.get(from + 1..).unwrap_or_default();
        let length = rest.iter().position(|byte| !PLAIN[usize::from(*byte)]).unwrap_or(rest.len());
        if let (Some(key), Some(b'"')) = (rest.get(..length), rest.get(length)) {
            self.at += length + 2;
            self.expect(b':', "`:`")?;
            return Ok(key);
        }
        let key = self.odd_key()?;
        self.expect(b':', "`:`")?;
        Ok(key)
    }

    /// A key that is no plain ASCII.
    fn odd_key(&mut self) -> Result<&'a [u8], Bad> {
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
        if !key.is_ascii() && std::str::from_utf8(key).is_err() {
            return Err(bad_at(self.line, from, "utf8", "a key in UTF-8"));
        }
        if self.at == from {
            self.at += key.len() + 2;
        }
        Ok(key)
    }

    /// A whole number of at least zero that fits u64.
    pub(super) fn whole(&mut self, what: &str) -> Result<u64, Bad> {
        self.peek();
        if let Some(word) = self.word()
            && let (value, count @ 1..8) = digits(word)
            && (count == 1 || word as u8 != b'0')
            && !matches!((word >> (8 * count)) as u8, b'.' | b'e' | b'E')
        {
            self.at += count as usize;
            return Ok(value);
        }
        let from = self.at;
        let mut value: u64 = 0;
        while self.at - from <= 8
            && let Some(word) = self.word()
            && let (eight, 8) = digits(word)
        {
            value = value * 100_000_000 + eight;
            self.at += 8;
        }
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

    /// The next eight bytes, the first one lowest.
    fn word(&self) -> Option<u64> {
        let eight = self.line.get(self.at..self.at + 8)?;
        Some(u64::from_le_bytes(eight.try_into().ok()?))
    }

    /// A list of at most `most` whole numbers that fit u64; `ids` is emptied first. This is where the time of a trace
    /// with block hashes goes: short numbers are read eight bytes at a time, with the comma behind them.
    pub(super) fn ids(&mut self, name: &str, what: &str, most: usize, ids: &mut Vec<u64>) -> Result<(), Bad> {
        ids.clear();
        if self.peek() != Some(b'[') {
            return Err(self.bad("wrong_type", format!("{name} as a list")));
        }
        self.at += 1;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            if ids.len() == most {
                return Err(self.bad("block_count", format!("at most {most} block ids")));
            }
            if let Some(word) = self.word()
                && let (value, count @ 1..8) = digits(word)
                && (count == 1 || word as u8 != b'0')
            {
                // One branch for each layout: where the next number starts must not wait for the byte that is compared.
                let after = (word >> (8 * count)) as u16;
                if after == u16::from_le_bytes(*b", ") {
                    ids.push(value);
                    self.at += count as usize + 2;
                    match count {
                        1 => self.alike::<1>(most, ids),
                        2 => self.alike::<2>(most, ids),
                        3 => self.alike::<3>(most, ids),
                        4 => self.alike::<4>(most, ids),
                        5 => self.alike::<5>(most, ids),
                        6 => self.alike::<6>(most, ids),
                        _ => {}
                    }
                    continue;
                }
                if after as u8 == b',' {
                    ids.push(value);
                    self.at += count as usize + 1;
                    continue;
                }
                if after as u8 == b']' {
                    ids.push(value);
                    self.at += count as usize + 1;
                    return Ok(());
                }
            }
            ids.push(self.whole(what)?);
            if !self.take(b',') {
                return self.expect(b']', "`,` or `]`");
            }
        }
    }

    /// Numbers of `N` digits, as long as they follow each other: where the next one starts is then known before this one is
    /// read.
    fn alike<const N: usize>(&mut self, most: usize, ids: &mut Vec<u64>) {
        while ids.len() < most
            && let Some(word) = self.word()
        {
            let bytes = word ^ ZEROS;
            let end = (word >> (8 * N)) as u16;
            let has_zero_in_front = N > 1 && word as u8 == b'0';
            if other_bytes(bytes) << (64 - 8 * N) != 0 || end != u16::from_le_bytes(*b", ") || has_zero_in_front {
                return;
            }
            ids.push(joined(bytes << (64 - 8 * N)));
            self.at += N + 2;
        }
    }

    /// A number of at least zero as all its digits and how many of them stand behind the point, if it is written with at
    /// most nineteen digits and no exponent; nothing is taken otherwise.
    pub(super) fn short_decimal(&mut self) -> Option<(u64, u32)> {
        self.peek();
        let (mut at, mut value, mut count) = (self.at, 0_u64, 0_u32);
        let mut run = |at: &mut usize| {
            let start = *at;
            while count <= 11
                && let Some(eight) = self.line.get(*at..*at + 8)
                && let Ok(eight) = eight.try_into()
                && let (eight, 8) = digits(u64::from_le_bytes(eight))
            {
                value = value * 100_000_000 + eight;
                (*at, count) = (*at + 8, count + 8);
            }
            while let Some(digit @ b'0'..=b'9') = self.line.get(*at)
                && count < 19
            {
                value = value * 10 + u64::from(digit - b'0');
                (*at, count) = (*at + 1, count + 1);
            }
            *at - start
        };
        let whole = run(&mut at);
        let mut decimals = 0;
        if self.line.get(at) == Some(&b'.') {
            at += 1;
            decimals = run(&mut at);
            if decimals == 0 {
                return None;
            }
        }
        let leading_zero = whole > 1 && self.line.get(self.at) == Some(&b'0');
        let goes_on = matches!(self.line.get(at), Some(b'0'..=b'9' | b'.' | b'e' | b'E'));
        if whole == 0 || leading_zero || goes_on {
            return None;
        }
        self.at = at;
        Some((value, decimals as u32))
    }

    /// The one byte that stands in quotes, if it stands for itself; nothing is taken otherwise.
    pub(super) fn single(&mut self) -> Option<u8> {
        self.peek();
        match self.line.get(self.at..self.at + 3)? {
            [b'"', byte, b'"'] if PLAIN[usize::from(*byte)] => {
                self.at += 3;
                Some(*byte)
            }
            _ => None,
        }
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

    /// Text in quotes that holds no escape, if such text is next; nothing is taken otherwise.
    pub(super) fn plain(&mut self) -> Option<&'a str> {
        if self.peek() != Some(b'"') {
            return None;
        }
        let rest = self.line.get(self.at + 1..)?;
        let length = memchr::memchr2(b'"', b'\\', rest)?;
        let (text, quote) = (rest.get(..length)?, rest.get(length)?);
        if *quote != b'"' || text.iter().any(|byte| *byte < 0x20) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        self.at += length + 2;
        Some(text)
    }

    /// As [`Scan::value`], faster for plain text and numbers.
    pub(super) fn skip(&mut self) -> Result<(), Bad> {
        match self.peek() {
            Some(b'"') if self.plain().is_some() => Ok(()),
            Some(b'0'..=b'9') => self.number("a JSON value").map(drop),
            _ => self.value(),
        }
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

/// Bytes that stand for themselves within a string: ASCII but for controls, quotes and backslashes.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0x20;
    while byte < 0x80 {
        plain[byte] = byte != b'"' as usize && byte != b'\\' as usize;
        byte += 1;
    }
    plain
};

/// Eight zeros as they are written.
const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);

/// The digits that eight bytes begin with, as a number, and how many there are. The first byte is the lowest.
fn digits(word: u64) -> (u64, u32) {
    // A digit becomes 0 to 9.
    let bytes = word ^ ZEROS;
    let count = other_bytes(bytes).trailing_zeros() / 8;
    // Zeros in front.
    if count == 0 { (0, 0) } else { (joined(bytes << (64 - 8 * count)), count) }
}

/// The top bit of the first byte that is above 9, and perhaps of later ones.
fn other_bytes(bytes: u64) -> u64 {
    // Adding 0x76 leaves the top bit of a digit's byte clear, and no carry passes over digits.
    (bytes.wrapping_add(0x7676_7676_7676_7676) | bytes) & 0x8080_8080_8080_8080
}

/// Eight digits as a number: pairs, fours and eights of them are joined.
fn joined(bytes: u64) -> u64 {
    let pairs = bytes.wrapping_mul(10).wrapping_add(bytes >> 8);
    let even = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let odd = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    even.wrapping_add(odd) >> 32
}

/// A problem at an offset.
pub(super) fn bad_at(line: &[u8], at: usize, code: &'static str, expected: impl Into<String>) -> Bad {
    Bad { at, code, expected: expected.into(), found: found_at(line, at) }
}

/// The key in backticks.
pub(super) fn named(key: &[u8]) -> String {
    quoted(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Eight bytes give the digits that a plain loop finds.
        #[test]
        fn digits_are_those_of_a_plain_loop(text in "[0-9]{0,8}", rest in proptest::array::uniform8(any::<u8>())) {
            let mut bytes = rest;
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            let count = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let value = bytes[..count].iter().fold(0, |value, byte| value * 10 + u64::from(byte - b'0'));
            prop_assert_eq!(digits(u64::from_le_bytes(bytes)), (value, count as u32));
        }

        /// A short decimal is the number that is written; what is longer, or no such number, is left alone.
        #[test]
        fn short_decimals_are_what_is_written(text in "[0-9]{0,21}(\\.[0-9]{0,9})?([eE][0-9])?", rest in "[,}]?") {
            let line = format!(" {text}{rest}");
            let mut scan = Scan::new(line.as_bytes());
            let (whole, below) = text.split_once('.').unwrap_or((&text, "0"));
            let plain = [whole, below].iter().all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
            let digits = text.bytes().filter(u8::is_ascii_digit).count();
            let good = plain && digits <= 19 && (whole.len() == 1 || !whole.starts_with('0'));
            let expected = good.then(|| (text.replace('.', "").parse::<u64>().unwrap(), (digits - whole.len()) as u32));
            prop_assert_eq!(scan.short_decimal(), expected);
            prop_assert_eq!(scan.at(), 1 + if good { text.len() } else { 0 });
        }

        /// Keys come back, whatever is in them; those with escapes as they are written, in quotes.
        #[test]
        fn keys_come_back(key in "\\PC{0,12}") {
            let written = serde_json::to_string(&key).unwrap();
            let line = format!("{written} : 1");
            let mut scan = Scan::new(line.as_bytes());
            let found = scan.key().unwrap();
            let plain = written.len() == key.len() + 2;
            prop_assert_eq!(found, if plain { key.as_bytes() } else { written.as_bytes() });
            prop_assert_eq!(scan.whole("x").unwrap(), 1);
        }

        /// Lists of any numbers in any layout come back.
        #[test]
        fn lists_come_back(
            ids in proptest::collection::vec(prop_oneof![any::<u64>(), 0..100_u64, 1_000_000..2_000_000_000_u64], 0..40),
            comma in "[ ]{0,2},[ \t]{0,2}",
        ) {
            let text: Vec<String> = ids.iter().map(u64::to_string).collect();
            let line = format!("[{}]", text.join(&comma));
            let mut found = vec![7];
            let mut scan = Scan::new(line.as_bytes());
            scan.ids("`x`", "an id", 1000, &mut found).unwrap();
            scan.end().unwrap();
            prop_assert_eq!(found, ids);
        }
    }
}
