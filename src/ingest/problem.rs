//! A bad row, and how it is shown.

use super::pieces::Place;
use super::source::count;

/// The most bytes of a row that are kept.
pub(super) const RAW_BYTES: usize = 4096;

/// The most characters of what was found that are shown.
const FOUND: usize = 80;

/// How much of a line stands before and after the caret.
const BEFORE: usize = 60;
const AFTER: usize = 40;

/// What is wrong with a piece of text, before its line is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bad {
    /// Offset in the line, from 0.
    pub(super) at: usize,
    /// A stable name.
    pub(super) code: &'static str,
    /// What was expected.
    pub(super) expected: String,
    /// What was found, as it is shown.
    pub(super) found: String,
}

/// A row that could not be read.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// Line or row in the file, from 1.
    pub(super) line: u64,
    /// Column in bytes (of text) or number of the column (of a table), from 1.
    pub(super) column: u64,
    /// Offset of the row in the decompressed file.
    pub(super) byte_offset: u64,
    /// A stable name of the reason.
    pub(super) code: &'static str,
    /// What was expected.
    pub(super) expected: String,
    /// What was found.
    pub(super) found: String,
    /// The row, cut.
    pub(super) raw: String,
    /// The place, the text and a caret, for people.
    pub(super) shown: String,
}

impl Problem {
    /// A problem in a value that begins somewhere in a line and may go on in the next ones.
    pub(super) fn in_piece(path: &str, text: &[u8], place: Place, bad: Bad) -> Self {
        let at = bad.at.min(text.len());
        let lines_before = count(&text[..at], b'\n');
        let from = text[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let to = text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| at + end);
        let before = if lines_before == 0 { place.column } else { 0 };
        let number = place.line + lines_before as u64;
        Self::at_column(path, &text[from..to], number, place.offset, before, Bad { at: at - from, ..bad })
    }

    /// A problem in a line of text.
    pub(super) fn in_line(path: &str, line: &[u8], number: u64, byte_offset: u64, bad: Bad) -> Self {
        Self::at_column(path, line, number, byte_offset, 0, bad)
    }

    /// A problem in a row of a table: `place` says where it is, `column` counts from 1.
    pub(super) fn in_row(
        place: &str,
        row: u64,
        column: u64,
        code: &'static str,
        wrong: [String; 2],
        raw: String,
    ) -> Self {
        let [expected, found] = wrong;
        let shown = format!("{place}: expected {expected}, found {found}\n  {raw}");
        Self { line: row, column, byte_offset: 0, code, expected, found, raw, shown }
    }

    /// A problem in text that begins after `before` bytes of its line.
    fn at_column(path: &str, line: &[u8], number: u64, byte_offset: u64, before: u64, bad: Bad) -> Self {
        let column = before + bad.at as u64 + 1;
        let (excerpt, caret) = excerpt(line, bad.at);
        let shown = format!(
            "{path}:{number}:{column}: expected {}, found {}\n  {excerpt}\n  {:caret$}^",
            bad.expected, bad.found, ""
        );
        let raw = String::from_utf8_lossy(&line[..line.len().min(RAW_BYTES)]).into_owned();
        Self { line: number, column, byte_offset, code: bad.code, expected: bad.expected, found: bad.found, raw, shown }
    }
}

/// What stands at `at`, for a message: the token in backticks, or the end of the line.
pub(super) fn found_at(line: &[u8], at: usize) -> String {
    let rest = line.get(at..).unwrap_or_default();
    let Some(&first) = rest.first() else { return "the end of the line".to_owned() };
    let inside = rest.iter().skip(1).take(4 * FOUND);
    let length = match first {
        b'"' => 1 + inside.take_while(|byte| **byte != b'"').count() + 1,
        b'{' | b'}' | b'[' | b']' | b',' | b':' => 1,
        _ => 1 + inside.take_while(|byte| !matches!(byte, b',' | b']' | b'}' | b'[' | b'{' | b' ' | b':')).count(),
    };
    quoted(&rest[..length.min(rest.len())])
}

/// Text in backticks, at most 80 characters of it, without control characters.
pub(super) fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(4 * FOUND + 4)]);
    let mut shown: String = text.chars().take(FOUND).map(printable).collect();
    if text.chars().count() > FOUND {
        shown.push('…');
    }
    format!("`{shown}`")
}

fn printable(char: char) -> char {
    if char.is_control() { '\u{fffd}' } else { char }
}

/// The surroundings of byte `at`, and how many characters stand before it.
fn excerpt(line: &[u8], at: usize) -> (String, usize) {
    let at = at.min(line.len());
    let mut from = at.saturating_sub(BEFORE);
    // Do not start within a character.
    while from > 0 && from < at && line[from] & 0xC0 == 0x80 {
        from += 1;
    }
    let to = (at + AFTER).min(line.len());
    let lead = if from > 0 { "…" } else { "" };
    let tail = if to < line.len() { "…" } else { "" };
    let before: String = String::from_utf8_lossy(&line[from..at]).chars().map(printable).collect();
    let after: String = String::from_utf8_lossy(&line[at..to]).chars().map(printable).collect();
    let caret = lead.chars().count() + before.chars().count();
    (format!("{lead}{before}{after}{tail}"), caret)
}
