//! Blocks of whole lines, split into cells.
//!
//! polars splits and unquotes the cells, every column as text. It gets blocks of lines rather than the file: it then holds
//! a bounded piece in memory, and the line of each of its rows is known exactly. polars pads a line with too few cells,
//! stops at one with too many, and is led astray by a stray quote, so that each line is checked first; lines with a wrong
//! number of cells, unbalanced quotes or broken UTF-8 are set aside, and the rows that come back are counted.
//!
//! A block without quotes in which every line has its commas needs no CSV reader: it is cut where they are.

use std::cell::OnceCell;
use std::io::Cursor;
use std::sync::Arc;

use engine::error::{Error, Result};
use polars::prelude::{CsvReadOptions, DataFrame, DataType, Field, PolarsResult, Schema, SerReader, StringChunked};

use super::EMPTY_LINE;
use crate::ingest::json::bad_at;
use crate::ingest::problem::Bad;
use crate::ingest::sink::Sink;
use crate::ingest::source::Place;

/// Lines of a file on their way into rows.
pub(super) struct Chunk<'a> {
    block: &'a [u8],
    at: Place,
    /// Where each row is in the block; found when somebody asks, if every line is a row.
    rows: OnceCell<Vec<Span>>,
    /// Lines that are set aside.
    pub(super) bad: Vec<(Span, Bad)>,
}

/// A line of a block, without its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Number in the block, from 0.
    pub(super) line: u32,
    from: u32,
    to: u32,
}

impl<'a> Chunk<'a> {
    pub(super) fn new(block: &'a [u8], at: Place) -> Self {
        Self { block, at, rows: OnceCell::new(), bad: Vec::new() }
    }

    /// A block is at most a few MB, or one line of a limited length, so that its offsets fit u32.
    fn lines(&self) -> impl Iterator<Item = Span> {
        let mut from = 0;
        (0..).zip(self.block.split_inclusive(|byte| *byte == b'\n')).map(move |(line, bytes)| {
            let inner = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            let inner = inner.strip_suffix(b"\r").unwrap_or(inner);
            let span = Span { line, from, to: from + inner.len() as u32 };
            from += bytes.len() as u32;
            span
        })
    }

    pub(super) fn row(&self, row: usize) -> Span {
        self.rows.get_or_init(|| self.lines().collect())[row]
    }

    pub(super) fn bytes(&self, span: Span) -> &'a [u8] {
        &self.block[span.from as usize..span.to as usize]
    }

    /// Number and offset of a line in the file.
    pub(super) fn place(&self, span: Span) -> (u64, u64) {
        (self.at.number + u64::from(span.line), self.at.offset + u64::from(span.from))
    }

    /// The cells by column, every one as text; bad lines are set aside. None if there is no good line.
    pub(super) fn split(&mut self, path: &str, width: usize, sink: &mut Sink<'_>) -> Result<Option<Cells<'a>>> {
        if let Some(marks) = marks(self.block, self.at.lines as usize, width) {
            return Ok(Some(Cells::Cut { block: self.block, marks, width }));
        }
        // An empty row of its own in front: polars looks at the first bytes for marks of compression or encoding.
        let mut text = vec![b','; width - 1];
        text.push(b'\n');
        let mut rows = Vec::new();
        let mut bad = Vec::new();
        for span in self.lines() {
            let line = self.bytes(span);
            if line.iter().all(u8::is_ascii_whitespace) {
                let (number, offset) = self.place(span);
                sink.log(EMPTY_LINE, "an empty line was skipped", Some(number), Some(offset));
            } else if let Err(problem) = well_formed(line, width) {
                bad.push((span, problem));
            } else {
                text.extend_from_slice(line);
                text.push(b'\n');
                rows.push(span);
            }
        }
        self.bad = bad;
        let wanted = rows.len() + 1;
        self.rows = OnceCell::from(rows);
        if wanted == 1 {
            return Ok(None);
        }
        let frame =
            frame(width, &text).map_err(|error| Error::data(format!("cannot split the cells of `{path}`: {error}")))?;
        if frame.height() != wanted || frame.width() != width {
            return Err(Error::run(format!(
                "expected {wanted} rows of {width} cells from `{path}`, found {} of {}",
                frame.height(),
                frame.width()
            ))
            .hint("this is a bug in the adapter; please report it"));
        }
        Ok(Some(Cells::Split(frame.slice(1, wanted - 1))))
    }
}

/// The cells of the good lines of a chunk.
pub(super) enum Cells<'a> {
    /// Cut at its commas: where each cell ends, row by row.
    Cut { block: &'a [u8], marks: Vec<u32>, width: usize },
    /// Split and unquoted by polars.
    Split(DataFrame),
}

/// One column of them.
#[derive(Clone, Copy)]
pub(super) enum Column<'c> {
    Cut { block: &'c [u8], marks: &'c [u32], width: usize, at: usize },
    Split(&'c StringChunked),
}

impl Cells<'_> {
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Cut { marks, width, .. } => marks.len() / width,
            Self::Split(frame) => frame.height(),
        }
    }

    pub(super) fn columns(&self) -> Result<Vec<Column<'_>>> {
        match self {
            Self::Cut { block, marks, width } => {
                Ok((0..*width).map(|at| Column::Cut { block, marks, width: *width, at }).collect())
            }
            Self::Split(frame) => {
                let columns = frame.columns().iter().map(|column| column.str().map(Column::Split));
                columns.collect::<PolarsResult<_>>().map_err(|error| Error::run(error.to_string()))
            }
        }
    }
}

impl<'c> Column<'c> {
    pub(super) fn rows(self) -> usize {
        match self {
            Self::Cut { marks, width, .. } => marks.len() / width,
            Self::Split(cells) => cells.len(),
        }
    }

    /// The cell of a row.
    pub(super) fn get(self, row: usize) -> &'c [u8] {
        match self {
            Self::Cut { block, marks, width, at } => cut(block, marks, row * width + at, width),
            Self::Split(cells) => cells.get(row).unwrap_or_default().as_bytes(),
        }
    }

    /// Calls `each` with the cells in order.
    pub(super) fn for_each(self, mut each: impl FnMut(&'c [u8])) {
        match self {
            Self::Cut { block, marks, width, at } => {
                (at..marks.len()).step_by(width).for_each(|mark| each(cut(block, marks, mark, width)));
            }
            Self::Split(cells) => cells.iter().for_each(|cell| each(cell.unwrap_or_default().as_bytes())),
        }
    }
}

/// The cell that ends at a mark; the last one of a line without the CR before its end.
fn cut<'b>(block: &'b [u8], marks: &[u32], mark: usize, width: usize) -> &'b [u8] {
    let from = if mark == 0 { 0 } else { marks[mark - 1] as usize + 1 };
    let cell = &block[from..marks[mark] as usize];
    if mark % width == width - 1 { cell.strip_suffix(b"\r").unwrap_or(cell) } else { cell }
}

/// Where the cells of a block end, if it is as regular as nearly all are: whole lines of text without a quote, each with
/// `width` cells. Then there is nothing that a CSV reader would do but cut at the commas, and this takes a quarter of
/// the time that polars takes.
pub(super) fn marks(block: &[u8], lines: usize, width: usize) -> Option<Vec<u32>> {
    if width < 2 || block.last() != Some(&b'\n') || memchr::memchr(b'"', block).is_some() {
        return None;
    }
    // Each mark is a byte of the block, so that a header of very many columns asks for no memory.
    let expected = lines.checked_mul(width).filter(|marks| *marks <= block.len())?;
    std::str::from_utf8(block).ok()?;
    let mut marks = Vec::with_capacity(expected);
    let mut cells = 0;
    for at in memchr::memchr2_iter(b',', b'\n', block) {
        cells += 1;
        let is_end = block[at] == b'\n';
        if is_end != (cells == width) {
            return None;
        }
        if is_end {
            cells = 0;
        }
        marks.push(at as u32);
    }
    Some(marks)
}

/// The cells of whole lines.
fn frame(width: usize, text: &[u8]) -> PolarsResult<DataFrame> {
    // Numbers as names: what the header says is not to meet the names that polars makes up.
    let schema: Schema = (0..width).map(|at| Field::new(at.to_string().into(), DataType::String)).collect();
    CsvReadOptions::default()
        .with_has_header(false)
        .with_schema(Some(Arc::new(schema)))
        .with_infer_schema_length(Some(1))
        .into_reader_with_file_handle(Cursor::new(text))
        .finish()
}

/// Whether a line has so many cells, balanced quotes, and UTF-8: what polars can be trusted with.
pub(super) fn well_formed(line: &[u8], width: usize) -> std::result::Result<(), Bad> {
    if let Err(error) = std::str::from_utf8(line) {
        return Err(bad_at(line, error.valid_up_to(), "utf8", "text in UTF-8"));
    }
    let starts = cells(line)?;
    if starts.len() == width {
        return Ok(());
    }
    // The first cell too many, or the end of the line.
    let at = starts.get(width).copied().unwrap_or(line.len());
    Err(Bad { at, code: "cell_count", expected: format!("{width} cells"), found: starts.len().to_string() })
}

/// Where each cell of a line starts.
pub(super) fn cells(line: &[u8]) -> std::result::Result<Vec<usize>, Bad> {
    let mut starts = vec![0];
    let mut at = 0;
    loop {
        if line.get(at) == Some(&b'"') {
            at = after_quotes(line, at).ok_or_else(|| bad_at(line, at, "quotes", "a closing quote and then `,`"))?;
        } else {
            at += line[at..].iter().position(|byte| matches!(byte, b',' | b'"')).unwrap_or(line.len() - at);
            // polars takes a quote within a cell for an opening one.
            if line.get(at) == Some(&b'"') {
                return Err(bad_at(line, at, "quotes", "a quote only around a whole cell"));
            }
        }
        if at >= line.len() {
            return Ok(starts);
        }
        at += 1;
        starts.push(at);
    }
}

/// The end of a quoted cell that starts at `at`; a doubled quote stands for one.
fn after_quotes(line: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += line.get(at..)?.iter().position(|byte| *byte == b'"')? + 1;
        match line.get(at) {
            Some(b'"') => at += 1,
            None | Some(b',') => return Some(at),
            Some(_) => return None,
        }
    }
}
