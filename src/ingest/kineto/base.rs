//! `baseTimeNanoseconds`, which stands behind the events.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use engine::error::{Error, Result};

use super::super::source::{self, Body, LIMITS};
use super::super::{OnBadRow, Options};

/// Bytes at the end of a file that are looked through.
const TAIL: usize = 64 << 10;

const KEY: &[u8] = b"\"baseTimeNanoseconds\"";

/// A whole number of nanoseconds since 1970.
pub(super) fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok().filter(|base| *base >= 0)
}

/// The base that stands at the end of a file; none where it has none, and where it cannot be read twice. A plain file is
/// read at its end, a compressed one from its start.
pub(super) fn find(path: &str) -> Result<Option<i64>> {
    if !Path::new(path).is_file() {
        return Ok(None);
    }
    let unreadable = |error: std::io::Error| Error::data(format!("cannot read `{path}`: {error}"));
    let source = source::open(path, &LIMITS)?;
    if source.compression() == "none" {
        let mut file = File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL as u64))).map_err(unreadable)?;
        let mut tail = Vec::with_capacity(TAIL);
        file.take(TAIL as u64).read_to_end(&mut tail).map_err(unreadable)?;
        return Ok(last(&tail));
    }
    let options = Options { on_bad_row: OnBadRow::Quarantine, ..Options::standard() };
    let (input, _) = source.into_input(&options)?;
    let Body::Lines(mut lines) = input.body else { return Ok(None) };
    let mut tail = Vec::with_capacity(3 * TAIL);
    loop {
        let read = lines.by_ref().take(TAIL as u64).read_to_end(&mut tail).map_err(unreadable)?;
        if read == 0 {
            return Ok(last(&tail));
        }
        tail.drain(..tail.len().saturating_sub(2 * TAIL));
    }
}

/// The value behind the last such key.
fn last(tail: &[u8]) -> Option<i64> {
    let at = memchr::memmem::rfind(tail, KEY)?;
    let rest = tail.get(at + KEY.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    number(rest.get(..digits)?)
}
