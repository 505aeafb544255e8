//! Walking JSON with a [`Scan`], key by key, and the values that adapters of JSON formats have in common.
//!
//! Nothing is kept of what an adapter does not ask for, numbers are read as they are written, and each problem knows its
//! column.

use std::borrow::Cow;

use super::json::{Scan, bad_at};
use super::problem::{Bad, Problem};
use super::source::{Line, Lines};
use super::time::{TimeUnit, decimal_ns};

/// What stands in a record besides what was asked for, and is not kept: each key with its offset.
pub(super) type Unknown<'a> = Vec<(&'a [u8], usize)>;

/// What takes the value of a key: the scan before the value, the key, and where the key stands.
pub(super) type TakeKey<'a, 'f> = dyn FnMut(&mut Scan<'a>, &'a [u8], usize) -> Result<(), Bad> + 'f;

/// Walks an object. `each` gets every key with its offset and must take the value.
pub(super) fn object<'a>(scan: &mut Scan<'a>, what: &str, each: &mut TakeKey<'a, '_>) -> Result<(), Bad> {
    if scan.peek() != Some(b'{') {
        return Err(scan.bad("wrong_type", what));
    }
    scan.take(b'{');
    if scan.take(b'}') {
        return Ok(());
    }
    loop {
        scan.peek();
        let at = scan.at();
        let key = scan.key()?;
        scan.peek();
        each(scan, key, at)?;
        if !scan.take(b',') {
            return scan.expect(b'}', "`,` or `}`");
        }
    }
}

/// Walks a list. `each` must take one value.
pub(super) fn list<'a>(
    scan: &mut Scan<'a>,
    what: &str,
    each: &mut dyn FnMut(&mut Scan<'a>) -> Result<(), Bad>,
) -> Result<(), Bad> {
    if scan.peek() != Some(b'[') {
        return Err(scan.bad("wrong_type", format!("{what} as a list")));
    }
    scan.take(b'[');
    if scan.take(b']') {
        return Ok(());
    }
    loop {
        scan.peek();
        each(scan)?;
        if !scan.take(b',') {
            return scan.expect(b']', "`,` or `]`");
        }
    }
}

/// Walks the one object that a whole record is.
pub(super) fn record<'a>(bytes: &'a [u8], each: &mut TakeKey<'a, '_>) -> Result<(), Bad> {
    let mut scan = Scan::new(bytes);
    object(&mut scan, "a JSON object", each)?;
    scan.end()
}

/// Takes `null` if it is next.
pub(super) fn null(scan: &mut Scan<'_>) -> Result<bool, Bad> {
    let null = scan.peek() == Some(b'n');
    if null {
        scan.value()?;
    }
    Ok(null)
}

/// A value as it is written.
pub(super) fn raw<'a>(scan: &mut Scan<'a>, bytes: &'a [u8]) -> Result<&'a [u8], Bad> {
    scan.peek();
    let from = scan.at();
    scan.value()?;
    Ok(bytes.get(from..scan.at()).unwrap_or_default())
}

/// Text, its escapes undone.
pub(super) fn text<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], what: &str) -> Result<Cow<'a, str>, Bad> {
    if scan.peek() != Some(b'"') {
        return Err(scan.bad("wrong_type", format!("{what} as text")));
    }
    if let Some(plain) = scan.plain() {
        return Ok(Cow::Borrowed(plain));
    }
    let from = scan.at();
    let value = raw(scan, bytes)?;
    let text = serde_json::from_slice::<String>(value);
    text.map(Cow::Owned).map_err(|_| bad_at(bytes, from, "json", format!("{what} as text")))
}

/// Text, or `null` for unknown.
pub(super) fn maybe_text<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], what: &str) -> Result<Option<Cow<'a, str>>, Bad> {
    if null(scan)? { Ok(None) } else { text(scan, bytes, what).map(Some) }
}

/// Text, a whole number as its digits, or `null` for unknown: what ids are written as.
pub(super) fn maybe_id<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], what: &str) -> Result<Option<Cow<'a, str>>, Bad> {
    if !matches!(scan.peek(), Some(b'0'..=b'9' | b'-')) {
        return maybe_text(scan, bytes, what);
    }
    let digits = scan.number(&format!("{what} as text or a number"))?;
    Ok(Some(String::from_utf8_lossy(digits)))
}

/// A count of tokens.
pub(super) fn tokens(scan: &mut Scan<'_>, what: &str) -> Result<u32, Bad> {
    scan.peek();
    let at = scan.at();
    let value = scan.whole(what)?;
    u32::try_from(value).map_err(|_| scan.bad_from(at, "out_of_range", format!("{what} of at most {}", u32::MAX)))
}

/// A count of tokens, or `null` for unknown.
pub(super) fn maybe_tokens(scan: &mut Scan<'_>, what: &str) -> Result<Option<u32>, Bad> {
    if null(scan)? { Ok(None) } else { tokens(scan, what).map(Some) }
}

/// A time of at least zero as nanoseconds, and whether it was exact.
pub(super) fn time(scan: &mut Scan<'_>, what: &str, unit: TimeUnit) -> Result<(i64, bool), Bad> {
    scan.peek();
    let at = scan.at();
    let token = scan.number(&format!("{what} as a number"))?;
    if token.first() == Some(&b'-') && token.iter().any(|byte| matches!(byte, b'1'..=b'9')) {
        return Err(scan.bad_from(at, "negative", format!("{what} of at least zero")));
    }
    decimal_ns(token.strip_prefix(b"-").unwrap_or(token), unit)
        .ok_or_else(|| scan.bad_from(at, "out_of_range", format!("{what} in {} below 2^63 nanoseconds", unit.name())))
}

/// A list of token ids; `ids` is emptied first.
pub(super) fn token_ids(scan: &mut Scan<'_>, what: &str, ids: &mut Vec<u32>) -> Result<(), Bad> {
    ids.clear();
    list(scan, what, &mut |scan| {
        ids.push(tokens(scan, "a token id")?);
        Ok(())
    })
}

/// The mean time between `count` tokens that took `span_ns` from the first to the last, rounded to the nanosecond; none
/// for fewer than two.
pub(super) fn time_per_token(span_ns: i64, count: u32) -> Option<i64> {
    let gaps = i64::from(count).checked_sub(1).filter(|gaps| *gaps > 0)?;
    Some((i128::from(span_ns) + i128::from(gaps / 2)).div_euclid(i128::from(gaps)) as i64)
}

/// Whether a line of the head holds all of these keys.
pub(super) fn has_keys(text: &[u8], keys: &[&str]) -> bool {
    keys.iter().all(|key| {
        let key = format!("\"{key}\"");
        text.windows(key.len()).any(|window| window == key.as_bytes())
    })
}

/// The first line of the head that is not blank, without a byte order mark.
pub(super) fn first_line(head: &[u8]) -> &[u8] {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).find(|line| !line.is_empty()).unwrap_or_default()
}

/// One JSON value at the top of a file, on one line or on several.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Its text; lines are joined by a blank.
    pub(super) bytes: Vec<u8>,
    /// Its first line in the file, from 1.
    pub(super) number: u64,
    /// Offset of its first byte in the decompressed file.
    pub(super) offset: u64,
    /// Where each of its lines starts: in `bytes`, and in the file.
    lines: Vec<(usize, u64)>,
}

impl Record {
    /// A problem in it, at the line where it stands.
    pub(super) fn problem(&self, path: &str, bad: Bad) -> Problem {
        let at = bad.at.min(self.bytes.len());
        let line = self.lines.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        let (start, offset) = self.lines.get(line).copied().unwrap_or((0, self.offset));
        let end = self.lines.get(line + 1).map_or(self.bytes.len(), |(next, _)| next.saturating_sub(1));
        let text = self.bytes.get(start..end).unwrap_or_default();
        let number = self.number + line as u64;
        let mut problem = Problem::in_line(path, text, number, offset, Bad { at: at - start, ..bad });
        let raw = &self.bytes[..self.bytes.len().min(super::problem::RAW_BYTES)];
        problem.raw = String::from_utf8_lossy(raw).into_owned();
        problem
    }

    fn push(&mut self, line: Line<'_>) {
        if self.bytes.is_empty() {
            (self.number, self.offset) = (line.number, line.offset);
        } else {
            self.bytes.push(b' ');
        }
        self.lines.push((self.bytes.len(), line.offset));
        self.bytes.extend_from_slice(line.bytes);
    }
}

/// Splits a file into its top-level values.
///
/// A value ends where its brackets close, at a line that leaves a string open, or before a line that begins with `{` in
/// its first column: printed objects indent what is inside them, so that a damaged object costs no other.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// A line that begins the next value.
    held: Record,
    brackets: Brackets,
    /// The most bytes of a value.
    limit: usize,
}

/// How a file's brackets stand.
#[derive(Debug, Default)]
struct Brackets {
    depth: i64,
    open_string: bool,
}

impl Brackets {
    fn line(&mut self, bytes: &[u8]) {
        let mut escaped = false;
        for byte in bytes {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if self.open_string => escaped = true,
                b'"' => self.open_string = !self.open_string,
                _ if self.open_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth -= 1,
                _ => {}
            }
        }
    }
}

impl Records {
    /// Values of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The next value; `blank` gets each empty line between values. None at the end.
    ///
    /// # Errors
    /// A stream that is damaged, or a value beyond the limit.
    pub(super) fn next(
        &mut self,
        lines: &mut Lines,
        path: &str,
        blank: &mut dyn FnMut(Line<'_>),
    ) -> engine::error::Result<Option<Record>> {
        loop {
            if !self.held.bytes.is_empty() && (self.brackets.depth <= 0 || self.brackets.open_string) {
                return Ok(Some(self.taken()));
            }
            let Some(line) = lines.next_line()? else {
                return Ok((!self.held.bytes.is_empty()).then(|| self.taken()));
            };
            if line.is_blank() {
                if self.held.bytes.is_empty() {
                    blank(line);
                } else {
                    self.held.push(line);
                }
                continue;
            }
            let done = (!self.held.bytes.is_empty() && line.bytes.first() == Some(&b'{')).then(|| self.taken());
            self.brackets.line(line.bytes);
            self.held.push(line);
            if self.held.bytes.len() > self.limit {
                return Err(engine::error::Error::data(format!(
                    "expected JSON values of at most {} bytes in `{path}`, found a longer one from line {}",
                    self.limit, self.held.number
                ))
                .hint("write one value a line"));
            }
            if done.is_some() {
                return Ok(done);
            }
        }
    }

    fn taken(&mut self) -> Record {
        self.brackets = Brackets::default();
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests;
