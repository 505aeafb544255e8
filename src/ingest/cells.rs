//! Lines of CSV as cells, for the small tables that GPU profilers write: each line is a row, a cell may be quoted, and
//! columns are found by name. Cells know where they stand, so that a message can name the column.

use std::borrow::Cow;

use engine::error::Error;

use super::problem::{Bad, Problem, quoted};
use super::source::Lines;
use super::time::{TimeUnit, decimal_ns};

/// A cell of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell<'a> {
    /// Offset of its text in the line, behind an opening quote.
    pub(super) at: usize,
    /// How many bytes of the line it has, quotes not counted.
    pub(super) length: usize,
    /// Its text, unquoted.
    pub(super) text: Cow<'a, str>,
}

/// Splits a line at its commas. `cells` is emptied first; if the line is bad, it holds the cells before the fault.
pub(super) fn split<'a>(line: &'a [u8], cells: &mut Vec<Cell<'a>>) -> Result<(), Bad> {
    cells.clear();
    let text = std::str::from_utf8(line).map_err(|error| {
        let at = error.valid_up_to();
        Bad {
            at,
            code: "utf8",
            expected: "text in UTF-8".to_owned(),
            found: quoted(line.get(at..).unwrap_or_default()),
        }
    })?;
    let mut at = 0;
    loop {
        let rest = text.get(at..).unwrap_or_default();
        let end = if let Some(inner) = rest.strip_prefix('"') {
            let length = quoted_length(inner).ok_or_else(|| Bad {
                at,
                code: "open_quote",
                expected: "a closing quote".to_owned(),
                found: "the end of the line".to_owned(),
            })?;
            let raw = inner.get(..length).unwrap_or_default();
            let text = if raw.contains("\"\"") { raw.replace("\"\"", "\"").into() } else { raw.into() };
            cells.push(Cell { at: at + 1, length, text });
            at + length + 2
        } else {
            let length = memchr::memchr(b',', rest.as_bytes()).unwrap_or(rest.len());
            cells.push(Cell { at, length, text: rest.get(..length).unwrap_or_default().into() });
            at + length
        };
        match line.get(end) {
            None => return Ok(()),
            Some(b',') => at = end + 1,
            Some(_) => {
                let found = quoted(line.get(end..).unwrap_or_default());
                return Err(Bad { at: end, code: "quote", expected: "`,` after a quoted cell".to_owned(), found });
            }
        }
    }
}

/// Bytes up to the quote that closes a cell; two quotes stand for one.
fn quoted_length(inner: &str) -> Option<usize> {
    let bytes = inner.as_bytes();
    let mut from = 0;
    loop {
        let quote = from + memchr::memchr(b'"', bytes.get(from..)?)?;
        if bytes.get(quote + 1) != Some(&b'"') {
            return Some(quote);
        }
        from = quote + 2;
    }
}

/// The names of a header line.
pub(super) fn header(line: &[u8]) -> Result<Vec<String>, Bad> {
    let mut cells = Vec::new();
    split(line, &mut cells)?;
    Ok(cells.into_iter().map(|cell| cell.text.trim().to_owned()).collect())
}

/// The names of the first line that is not blank.
///
/// # Errors
/// A file without such a line, a header that cannot be split, and a stream that is damaged.
pub(super) fn first_header(path: &str, lines: &mut Lines) -> engine::error::Result<Vec<String>> {
    loop {
        let Some(line) = lines.next_line()? else {
            return Err(Error::data(format!("expected a header in `{path}`, found only empty lines")));
        };
        if !line.is_blank() {
            let told = |bad| Error::data(Problem::in_line(path, line.bytes, line.number, line.offset, bad).shown);
            return header(line.bytes).map_err(told);
        }
    }
}

/// Where a column is, its name in any case.
pub(super) fn column(names: &[String], name: &str) -> Option<usize> {
    names.iter().position(|known| known.eq_ignore_ascii_case(name))
}

/// A row of cells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'r, 'a> {
    pub(super) names: &'r [String],
    pub(super) cells: &'r [Cell<'a>],
}

impl<'r, 'a> Row<'r, 'a> {
    /// The row, if it has as many cells as the header.
    pub(super) fn new(names: &'r [String], cells: &'r [Cell<'a>]) -> Result<Self, Bad> {
        if names.len() == cells.len() {
            return Ok(Self { names, cells });
        }
        let at = cells.get(names.len()).or(cells.last()).map_or(0, |cell| cell.at);
        let expected = format!("{} cells as in the header", names.len());
        Err(Bad { at, code: "cell_count", expected, found: cells.len().to_string() })
    }

    /// A cell that is there and not blank.
    pub(super) fn cell(&self, at: Option<usize>) -> Option<&'r Cell<'a>> {
        self.cells.get(at?).filter(|cell| !cell.text.trim().is_empty())
    }

    /// The text of a cell that is there and not blank.
    pub(super) fn text(&self, at: Option<usize>) -> Option<&'r str> {
        self.cell(at).map(|cell| cell.text.trim())
    }

    /// The text of a cell that must be there.
    pub(super) fn needed(&self, at: Option<usize>, name: &str) -> Result<&'r str, Bad> {
        let missing = || Bad {
            at: at.and_then(|at| self.cells.get(at)).map_or(0, |cell| cell.at),
            code: "blank",
            expected: format!("a value of `{name}`"),
            found: "a blank cell".to_owned(),
        };
        self.text(at).ok_or_else(missing)
    }

    /// A whole number of at least zero.
    pub(super) fn whole(&self, at: Option<usize>) -> Result<Option<u64>, Bad> {
        self.number(at, u64::MAX, |text| text.parse().ok())
    }

    /// A whole number that fits u32.
    pub(super) fn small(&self, at: Option<usize>) -> Result<Option<u32>, Bad> {
        self.number(at, u32::MAX.into(), |text| text.parse().ok())
    }

    fn number<T>(&self, at: Option<usize>, most: u64, parse: impl Fn(&str) -> Option<T>) -> Result<Option<T>, Bad> {
        let Some(cell) = self.cell(at) else { return Ok(None) };
        let text = cell.text.trim();
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match parse(text).filter(|_| digits) {
            Some(value) => Ok(Some(value)),
            None if digits => Err(self.bad(at, "out_of_range", &format!("a whole number of at most {most}"))),
            None => Err(self.bad(at, "wrong_type", "a whole number of at least zero")),
        }
    }

    /// An instant or a duration as nanoseconds.
    pub(super) fn ns(&self, at: Option<usize>, unit: TimeUnit) -> Result<Option<i64>, Bad> {
        let Some(cell) = self.cell(at) else { return Ok(None) };
        let found = decimal_ns(cell.text.trim().as_bytes(), unit).map(|(ns, _)| ns);
        let wrong = || self.bad(at, "wrong_type", &format!("a number of {} of at least zero", unit.name()));
        found.ok_or_else(wrong).map(Some)
    }

    /// A problem with a cell.
    pub(super) fn bad(&self, at: Option<usize>, code: &'static str, expected: &str) -> Bad {
        let name = at.and_then(|at| self.names.get(at)).map_or("", String::as_str);
        let cell = at.and_then(|at| self.cells.get(at));
        Bad {
            at: cell.map_or(0, |cell| cell.at),
            code,
            expected: format!("`{name}` as {expected}"),
            found: quoted(cell.map_or(b"", |cell| cell.text.as_bytes())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Result<Vec<String>, Bad> {
        let mut cells = Vec::new();
        split(line.as_bytes(), &mut cells)?;
        Ok(cells.into_iter().map(|cell| cell.text.into_owned()).collect())
    }

    #[test]
    fn cells_are_split_and_unquoted() {
        assert_eq!(texts("a,,\"b, c\",\"d \"\"e\"\"\",").unwrap(), ["a", "", "b, c", "d \"e\"", ""]);
        assert_eq!(texts("").unwrap(), [""]);
        assert_eq!(texts("\"\"").unwrap(), [""]);
        assert_eq!(texts("a,\"b").unwrap_err().code, "open_quote");
        assert_eq!(texts("a,\"b\"c,d").unwrap_err().at, 5);
    }

    #[test]
    fn numbers_are_checked() {
        let names = ["n".to_owned(), "m".to_owned()];
        let mut cells = Vec::new();
        for (line, expected) in [
            ("4294967295,x", Ok(Some(u32::MAX))),
            ("4294967296,x", Err("out_of_range")),
            ("-1,x", Err("wrong_type")),
            ("+1,x", Err("wrong_type")),
            ("1.5,x", Err("wrong_type")),
            (" ,x", Ok(None)),
        ] {
            split(line.as_bytes(), &mut cells).unwrap();
            let row = Row::new(&names, &cells).unwrap();
            assert_eq!(row.small(Some(0)).map_err(|bad| bad.code), expected, "{line}");
        }
        split(b"1,2,3", &mut cells).unwrap();
        assert_eq!(Row::new(&names, &cells).unwrap_err().code, "cell_count");
    }
}
