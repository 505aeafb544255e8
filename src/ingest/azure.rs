//! Azure LLM inference traces of 2023: arrival, prompt and output length of each request, as CSV.
//!
//! ```text
//! TIMESTAMP,ContextTokens,GeneratedTokens
//! 2023-11-16 18:17:03.9799600,4808,10
//! ```
//!
//! The instants have seven digits and no zone; they are read as UTC and stored as nanoseconds since the Unix epoch, with
//! the clock `wall`. The published files have CRLF and no final newline; LF is read as well. Columns are found by name;
//! columns beyond the three are kept as text and logged.
//!
//! polars splits and unquotes the cells, every column as text; kvtoll casts, so that each bad cell is a row in `rejects`
//! with its line and column. polars gets chunks of whole lines rather than the file: it then holds a bounded piece in
//! memory, and the line of each of its rows is known exactly. Lines with too few or too many cells, unbalanced quotes or
//! broken UTF-8 are set aside before (polars would pad, stop or fail there), and the number of rows that come back is
//! checked against the number of lines that went in.
//!
//! Refused: the 2024 and 2025 forms of the instant (with a zone), which share the column names.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes as arrow_types;
use arrow::datatypes::FieldRef;
use engine::error::{Error, Result};
use engine::schema::canonical::REQUESTS;
use polars::prelude::{CsvReadOptions, DataFrame, DataType, Field, Schema, SerReader};

use super::json::{bad_at, named};
use super::problem::{Bad, Problem, quoted};
use super::sink::{Event, Severity, Sink};
use super::source::{Body, Input, Line, Lines};
use super::time::wall_ns;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "azure",
    doc: "Azure LLM inference traces of 2023, as CSV",
    spec: "https://github.com/Azure/AzurePublicDataset/blob/master/AzureLLMInferenceDataset2023.md",
    verified: true,
    sniff,
    read,
};

/// The columns, in the order in which they are cast.
const COLUMNS: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

/// The most lines, and about the most bytes, of a chunk.
const ROWS: usize = 64 << 10;
const BYTES: usize = 8 << 20;

const EMPTY_LINE: Event = Event { severity: Severity::Info, code: "empty_line", advice: None };
const NO_OUTPUT: Event = Event { severity: Severity::Info, code: "no_output", advice: None };
const EXTRA: Event = Event { severity: Severity::Notice, code: "unknown_column", advice: Some("kept as text") };
const BACKWARDS: Event =
    Event { severity: Severity::Notice, code: "time_backwards", advice: Some("rows stay in file order") };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let first = head.bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first).trim_ascii();
    let names = header(first);
    let missing: Vec<&str> = COLUMNS.into_iter().filter(|column| !names.iter().any(|name| name == column)).collect();
    if names.iter().any(|name| name == "NumImages") && missing.is_empty() {
        return Sniff::Nearly(
            "column `NumImages` marks the multimodal trace of 2025, whose instants differ".to_owned(),
        );
    }
    match missing.len() {
        0 => Sniff::Yes,
        1 | 2 => {
            let missing: Vec<String> = missing.into_iter().map(|name| format!("`{name}`")).collect();
            Sniff::Nearly(format!("the first line lacks the column {}", missing.join(", ")))
        }
        _ => Sniff::No,
    }
}

/// The names in a header line.
fn header(line: &[u8]) -> Vec<String> {
    let unquoted = |cell: &[u8]| {
        let cell = cell.trim_ascii();
        let inner = cell.strip_prefix(b"\"").and_then(|cell| cell.strip_suffix(b"\"")).unwrap_or(cell);
        String::from_utf8_lossy(inner).into_owned()
    };
    line.split(|byte| *byte == b',').map(unquoted).collect()
}

/// The columns of a file.
struct Layout {
    names: Vec<String>,
    /// Where the three columns are.
    at: [usize; 3],
}

/// Whole lines that are well formed, on their way to polars.
#[derive(Default)]
struct Chunk {
    text: Vec<u8>,
    lines: Vec<Place>,
    /// Lines that polars does not get, each with the number of good lines before it: bad rows are told in file order.
    bad: Vec<(usize, Problem)>,
    /// About how much memory it takes.
    bytes: usize,
}

/// Where a line of a chunk came from.
#[derive(Clone, Copy)]
struct Place {
    number: u64,
    offset: u64,
    from: usize,
    to: usize,
}

/// What is carried from chunk to chunk.
struct State {
    next_id: u64,
    latest: i64,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Body::Lines(lines) = &mut input.body else {
        return Err(Error::data(format!("expected a CSV file, found the directory `{}`", input.path)));
    };
    if input.options.time_unit.is_some() || input.options.block_tokens.is_some() {
        return Err(Error::usage("expected no time unit and no block size with format `azure`, found one")
            .hint("its instants are dates, and it has no blocks"));
    }
    let layout = layout(input.path, lines, sink)?;
    let mut chunk = Chunk::default();
    let mut state = State { next_id: 0, latest: i64::MIN };
    while let Some(line) = lines.next_line()? {
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
            continue;
        }
        sink.found(1);
        match well_formed(line.bytes, layout.names.len()) {
            Err(bad) => chunk.set_aside(Problem::in_line(input.path, line.bytes, line.number, line.offset, bad)),
            Ok(()) => chunk.push(line),
        }
        if chunk.lines.len() + chunk.bad.len() >= ROWS || chunk.bytes >= BYTES {
            convert(input.path, &layout, &mut chunk, &mut state, sink)?;
        }
    }
    convert(input.path, &layout, &mut chunk, &mut state, sink)?;
    Ok(Settings { clock: Some("wall"), ..Settings::default() })
}

impl Chunk {
    fn push(&mut self, line: Line<'_>) {
        let from = self.text.len();
        self.text.extend_from_slice(line.bytes);
        self.lines.push(Place { number: line.number, offset: line.offset, from, to: self.text.len() });
        self.text.push(b'\n');
        self.bytes += line.bytes.len() + size_of::<Place>();
    }

    fn set_aside(&mut self, problem: Problem) {
        self.bytes += problem.raw.len() + size_of::<Problem>();
        self.bad.push((self.lines.len(), problem));
    }
}

/// Reads the header.
fn layout(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<Layout> {
    let names = loop {
        let Some(line) = lines.next_line()? else {
            return Err(Error::data(format!("expected a header in `{path}`, found only empty lines")));
        };
        if !line.is_blank() {
            break header(line.bytes);
        }
        sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
    };
    let mut at = [0; 3];
    for (slot, column) in at.iter_mut().zip(COLUMNS) {
        *slot = names.iter().position(|name| name == column).ok_or_else(|| {
            Error::data(format!("expected the column `{column}` in `{path}`, found {}", names.join(", ")))
        })?;
    }
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            return Err(Error::data(format!(
                "expected each column once in `{path}`, found {} twice",
                named(name.as_bytes())
            )));
        }
        if !COLUMNS.contains(&name.as_str()) {
            let message = format!("the column {} is not part of the format", named(name.as_bytes()));
            sink.log(EXTRA, &message, None, None);
        }
    }
    Ok(Layout { names, at })
}

/// Whether a line has so many cells, balanced quotes, and UTF-8: what polars can be trusted with.
fn well_formed(line: &[u8], width: usize) -> std::result::Result<(), Bad> {
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
fn cells(line: &[u8]) -> std::result::Result<Vec<usize>, Bad> {
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

/// Casts the lines of a chunk and hands the good ones on; the chunk is empty afterwards.
fn convert(path: &str, layout: &Layout, chunk: &mut Chunk, state: &mut State, sink: &mut Sink<'_>) -> Result<()> {
    let Chunk { text, lines, bad, .. } = std::mem::take(chunk);
    let mut bad = bad.into_iter().peekable();
    if lines.is_empty() {
        return bad.try_for_each(|(_, problem)| sink.reject(problem));
    }
    let frame = split(path, layout.names.len(), &text, lines.len())?;
    let columns = texts(&frame)?;
    let cell = |column: usize, row: usize| columns[column].get(row).copied().flatten().unwrap_or_default();
    let (mut arrival, mut prompt, mut output, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (row, place) in lines.iter().enumerate() {
        while let Some((_, problem)) = bad.next_if(|(before, _)| *before <= row) {
            sink.reject(problem)?;
        }
        let [time, context, generated] = layout.at.map(|column| cell(column, row));
        let good = cast(time, context, generated).map_err(|(column, code, expected)| {
            let line = &text[place.from..place.to];
            let at = cells(line).ok().and_then(|starts| starts.get(layout.at[column]).copied()).unwrap_or(0);
            let text = [time, context, generated][column];
            let found = if text.is_empty() { "an empty cell".to_owned() } else { quoted(text.as_bytes()) };
            Problem::in_line(path, line, place.number, place.offset, Bad { at, code, expected, found })
        });
        match good {
            Err(problem) => sink.reject(problem)?,
            Ok((time, context, generated)) => {
                log_row(sink, *place, time, generated, state);
                arrival.push(time);
                prompt.push(context);
                output.push(generated);
                kept.push(row);
            }
        }
    }
    bad.try_for_each(|(_, problem)| sink.reject(problem))?;
    let rows = kept.len() as u64;
    let status = output.iter().map(|tokens| if *tokens == 0 { "no_output" } else { "ok" });
    let mut named: Vec<(FieldRef, ArrayRef)> = Vec::new();
    let wanted = REQUESTS.arrow();
    let mut add = |name: &str, array: ArrayRef| -> Result<()> {
        named.push((Arc::new(wanted.field_with_name(name)?.clone()), array));
        Ok(())
    };
    add("request_id", Arc::new(UInt64Array::from_iter_values(state.next_id..state.next_id + rows)))?;
    add("source_id", Arc::new(UInt32Array::from_value(sink.source_id(), kept.len())))?;
    add("status", Arc::new(StringArray::from_iter_values(status)))?;
    add("arrival_ns", Arc::new(Int64Array::from(arrival)))?;
    add("prompt_tokens", Arc::new(UInt32Array::from(prompt)))?;
    add("output_tokens", Arc::new(UInt32Array::from(output)))?;
    for (column, name) in layout.names.iter().enumerate().filter(|(_, name)| !COLUMNS.contains(&name.as_str())) {
        let array: StringArray = kept.iter().map(|row| columns[column].get(*row).copied().flatten()).collect();
        // A foreign column must not pass for one of the table's.
        let name = if REQUESTS.column(name).is_some() { format!("azure_{name}") } else { name.clone() };
        named.push((Arc::new(arrow_types::Field::new(name, arrow_types::DataType::Utf8, true)), Arc::new(array)));
    }
    state.next_id += rows;
    let (fields, arrays): (Vec<FieldRef>, Vec<ArrayRef>) = named.into_iter().unzip();
    sink.push(&REQUESTS, RecordBatch::try_new(Arc::new(arrow_types::Schema::new(fields)), arrays)?)
}

fn log_row(sink: &mut Sink<'_>, place: Place, time: i64, generated: u32, state: &mut State) {
    if generated == 0 {
        let message = "a request without output tokens was kept with the status `no_output`";
        sink.log(NO_OUTPUT, message, Some(place.number), Some(place.offset));
    }
    if time < state.latest {
        let message = "an instant is earlier than that of the row before";
        sink.log(BACKWARDS, message, Some(place.number), Some(place.offset));
    }
    state.latest = time;
}

/// The three cells as values, or which of them is bad, its code, and what was expected.
type Cast = std::result::Result<(i64, u32, u32), (usize, &'static str, String)>;

fn cast(time: &str, context: &str, generated: &str) -> Cast {
    let time = wall_ns(time.as_bytes()).ok_or_else(|| {
        let expected = "`TIMESTAMP` as `2023-11-16 18:17:03.9799600`, without a zone";
        (0, "not_an_instant", expected.to_owned())
    })?;
    Ok((time, tokens(1, context)?, tokens(2, generated)?))
}

fn tokens(column: usize, text: &str) -> std::result::Result<u32, (usize, &'static str, String)> {
    let name = COLUMNS[column];
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let code = if text.starts_with('-') { "negative" } else { "wrong_type" };
        return Err((column, code, format!("`{name}` as a whole number of at least zero")));
    }
    text.parse().map_err(|_| (column, "out_of_range", format!("`{name}` of at most {}", u32::MAX)))
}

/// The cells of whole lines by column, every one as text. The frame has a row for each line, or this fails.
fn split(path: &str, width: usize, text: &[u8], rows: usize) -> Result<DataFrame> {
    // Numbers as names: what the header says is not to meet the names that polars makes up.
    let schema: Schema = (0..width).map(|at| Field::new(at.to_string().into(), DataType::String)).collect();
    let frame = CsvReadOptions::default()
        .with_has_header(false)
        .with_schema(Some(Arc::new(schema)))
        .with_rechunk(true)
        .into_reader_with_file_handle(Cursor::new(text))
        .finish()
        .map_err(|error| Error::data(format!("cannot split the cells of `{path}`: {error}")))?;
    if frame.height() != rows || frame.width() != width {
        return Err(Error::run(format!(
            "expected {rows} rows of {width} cells from `{path}`, found {} of {}",
            frame.height(),
            frame.width()
        ))
        .hint("this is a bug in the adapter; please report it"));
    }
    Ok(frame)
}

/// The texts of the columns of a frame.
fn texts(frame: &DataFrame) -> Result<Vec<Vec<Option<&str>>>> {
    let columns = frame.columns().iter();
    let texts = columns.map(|column| column.str().map(|texts| texts.iter().collect()));
    texts.collect::<polars::prelude::PolarsResult<_>>().map_err(|error| Error::run(error.to_string()))
}

#[cfg(test)]
mod tests;
