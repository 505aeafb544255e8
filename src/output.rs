//! The one place that prints: result batches as tables, text formats, Parquet and Arrow.
//!
//! Standard output carries data only; everything else goes to standard error. A reader that goes away ends the output
//! in silence ([`Outcome::Closed`]).
//!
//! # Numbers
//!
//! Tables for people (`table`, `md`) round floats to four digits and group thousands. All other formats keep every
//! digit. JSON has three rules that keep each value what it is:
//!
//! * NaN and infinities are `null`.
//! * An unsigned column whose name contains `hash`, or a list of that name, is text: `"0x"` and 16 hex digits.
//! * Any other integer beyond 2^53 is decimal text, since many readers hold numbers as doubles.

mod value;

use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use arrow_ipc::writer::FileWriter;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use engine::error::{Error, Result, unknown};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use unicode_width::UnicodeWidthStr;

pub use value::{Value, readable, value};

/// Rows of a table on a terminal when nobody says otherwise.
pub const TERMINAL_ROWS: usize = 40;

/// How a result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table; on a terminal its rows are capped.
    Auto,
    /// A table.
    Table,
    /// Comma-separated values with a header.
    Csv,
    /// Tab-separated values with a header.
    Tsv,
    /// One JSON object per line.
    Ndjson,
    /// One JSON array of objects.
    Json,
    /// A Markdown table.
    Md,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC file.
    Arrow,
}

impl Format {
    /// Every format by the name that the user types.
    pub const ALL: [(&'static str, Self); 9] = [
        ("auto", Self::Auto),
        ("table", Self::Table),
        ("csv", Self::Csv),
        ("tsv", Self::Tsv),
        ("ndjson", Self::Ndjson),
        ("json", Self::Json),
        ("md", Self::Md),
        ("parquet", Self::Parquet),
        ("arrow", Self::Arrow),
    ];

    /// The format of this name.
    ///
    /// # Errors
    /// An unknown name, with the nearest known one.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, format)| *format)
            .ok_or_else(|| unknown("format", name, Self::ALL.iter().map(|(known, _)| *known)))
    }
}

/// Whether anybody was still reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All was written.
    Complete,
    /// The reader went away; nothing more is worth writing, and nothing is wrong.
    Closed,
}

/// Where and how much.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The format.
    pub format: Format,
    /// Most rows of a table; 0 for all. None caps at [`TERMINAL_ROWS`] on a terminal and nowhere else.
    pub max_rows: Option<usize>,
    /// Whether the destination is a terminal.
    pub is_terminal: bool,
    /// Columns of the terminal: a wider table comes in parts below each other. 0 where there is no limit.
    pub width: usize,
}

impl Options {
    /// For standard output or what is put together for it, which is a terminal of the width that it has now, or none.
    pub fn on_stdout(format: Format, max_rows: Option<usize>, is_terminal: bool) -> Self {
        let width = if is_terminal { usize::from(console::Term::stdout().size().1) } else { 0 };
        Self { format, max_rows, is_terminal, width }
    }
}

/// Writes a result. `batches` share one schema; at least one is expected, which may be empty.
///
/// # Errors
/// Parquet to a terminal; a value that Arrow cannot show; a destination that fails for another reason than a reader who
/// went away.
pub fn write(batches: &[RecordBatch], options: Options, dest: &mut dyn Write) -> Result<Outcome> {
    let Some(first) = batches.first() else { return Ok(Outcome::Complete) };
    let schema = first.schema();
    match options.format {
        Format::Auto | Format::Table => text(&table(&schema, batches, options)?, dest),
        Format::Md => text(&markdown(&schema, batches, options)?, dest),
        Format::Csv => separated(&schema, batches, (',', options.is_terminal), dest),
        Format::Tsv => separated(&schema, batches, ('\t', options.is_terminal), dest),
        Format::Ndjson => json(&schema, batches, ["", "\n", "\n"], dest),
        Format::Json => json(&schema, batches, ["[", ",\n", "]\n"], dest),
        Format::Parquet | Format::Arrow if options.is_terminal => {
            let name = if options.format == Format::Arrow { "arrow" } else { "parquet" };
            Err(Error::usage(format!("expected a file for the format {name}, found a terminal"))
                .hint(format!("add `--output result.{name}` or another `--format`")))
        }
        Format::Parquet => put(&parquet(batches)?, dest),
        Format::Arrow => put(&arrow_file(&schema, batches)?, dest),
    }
}

/// Writes text as it is.
///
/// # Errors
/// A destination that fails for another reason than a reader who went away.
pub fn text(text: &str, dest: &mut dyn Write) -> Result<Outcome> {
    put(text.as_bytes(), dest)
}

fn put(bytes: &[u8], dest: &mut dyn Write) -> Result<Outcome> {
    match dest.write_all(bytes).and_then(|()| dest.flush()) {
        Ok(()) => Ok(Outcome::Complete),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Outcome::Closed),
        Err(error) => Err(Error::run(format!("output could not be written: {error}"))),
    }
}

/// The values of each row that is shown, and how many rows there are in all.
fn rows(batches: &[RecordBatch], limit: usize) -> Result<(Vec<Vec<Value>>, usize)> {
    let total = batches.iter().map(RecordBatch::num_rows).sum();
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows().min(limit - rows.len()) {
            rows.push(batch.columns().iter().map(|column| value(column, row)).collect::<Result<Vec<_>>>()?);
        }
    }
    Ok((rows, total))
}

/// How many rows a table shows.
fn limit(options: Options) -> usize {
    match options.max_rows {
        Some(0) => usize::MAX,
        Some(rows) => rows,
        None if options.is_terminal => TERMINAL_ROWS,
        None => usize::MAX,
    }
}

fn footer(shown: usize, total: usize) -> String {
    let group = |count: usize| readable("", &Value::Int(count as i128));
    format!("{} of {} rows; --max-rows 0 or --format ndjson\n", group(shown), group(total))
}

fn is_number(kind: &DataType) -> bool {
    kind.is_numeric()
}

/// Blanks between two columns of a table.
const GAP: u16 = 2;

fn table(schema: &Schema, batches: &[RecordBatch], options: Options) -> Result<String> {
    let (rows, total) = rows(batches, limit(options))?;
    let shown = |row: &Vec<Value>| -> Vec<String> {
        row.iter().zip(schema.fields()).map(|(value, field)| one_line(&readable(field.name(), value))).collect()
    };
    let cells: Vec<Vec<String>> = rows.iter().map(shown).collect();
    let widest = |at: usize, name: &str| cells.iter().map(|row| row[at].width()).fold(name.width(), usize::max);
    let widths: Vec<usize> = schema.fields().iter().enumerate().map(|(at, field)| widest(at, field.name())).collect();
    let room = if options.format == Format::Auto && options.width > 0 { options.width } else { usize::MAX };
    let parts: Vec<String> = side_by_side(&widths, room).iter().map(|part| part_of(schema, &cells, part)).collect();
    let mut text = parts.join("\n");
    if rows.len() < total {
        text.push_str(&footer(rows.len(), total));
    }
    Ok(text)
}

/// Some columns of a table.
fn part_of(schema: &Schema, cells: &[Vec<String>], part: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(part.iter().map(|at| schema.field(*at).name().as_str()));
    for row in cells {
        table.add_row(part.iter().map(|at| row[*at].as_str()));
    }
    for (column, at) in table.column_iter_mut().zip(part) {
        column.set_padding((0, GAP));
        if is_number(schema.field(*at).data_type()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Columns that stand side by side in so much room. Each part but the first begins with the first column again, which
/// names the rows.
fn side_by_side(widths: &[usize], room: usize) -> Vec<Vec<usize>> {
    let gap = usize::from(GAP);
    let first = widths.first().copied().unwrap_or(0);
    let mut parts = vec![Vec::new()];
    let mut used = 0;
    for (at, width) in widths.iter().enumerate() {
        if at > 1 && used + width > room {
            parts.push(vec![0]);
            used = first + gap;
        }
        used += width + gap;
        if let Some(part) = parts.last_mut() {
            part.push(at);
        }
    }
    parts
}

fn markdown(schema: &Schema, batches: &[RecordBatch], options: Options) -> Result<String> {
    let (rows, total) = rows(batches, limit(options))?;
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(schema.fields().iter().map(|field| field.name().clone()).collect());
    text.push_str(&line(
        schema
            .fields()
            .iter()
            .map(|field| if is_number(field.data_type()) { "---:" } else { "---" }.to_owned())
            .collect(),
    ));
    for row in &rows {
        let cell =
            |(value, name): (&Value, &str)| one_line(&readable(name, value)).replace('\\', "\\\\").replace('|', "\\|");
        let names = schema.fields().iter().map(|field| field.name().as_str());
        text.push_str(&line(row.iter().zip(names).map(cell).collect()));
    }
    if rows.len() < total {
        text.push('\n');
        text.push_str(&footer(rows.len(), total));
    }
    Ok(text)
}

/// Text of a cell without line breaks and control characters, which would break a table or steer a terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Values between separators. Data goes into a file or a pipe as it is; a terminal is not steered by it.
fn separated(
    schema: &Schema,
    batches: &[RecordBatch],
    (separator, is_terminal): (char, bool),
    dest: &mut dyn Write,
) -> Result<Outcome> {
    let shown = |text: &str| {
        let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        let cleaned = |c: char| if steers(c) { char::REPLACEMENT_CHARACTER } else { c };
        if is_terminal { text.chars().map(cleaned).collect() } else { text.to_owned() }
    };
    let quote = |text: &str| {
        let text = shown(text);
        let plain = !text.contains([separator, '"', '\n', '\r']);
        if plain { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
    };
    let header: Vec<String> = schema.fields().iter().map(|field| quote(field.name())).collect();
    let mut chunk = header.join(&separator.to_string());
    chunk.push('\n');
    for batch in batches {
        for row in 0..batch.num_rows() {
            for (at, column) in batch.columns().iter().enumerate() {
                if at > 0 {
                    chunk.push(separator);
                }
                chunk.push_str(&quote(&value(column, row)?.exact()));
            }
            chunk.push('\n');
            if chunk.len() > CHUNK_BYTES && put(std::mem::take(&mut chunk).as_bytes(), dest)? == Outcome::Closed {
                return Ok(Outcome::Closed);
            }
        }
    }
    text(&chunk, dest)
}

/// Bytes that are gathered before they are written.
const CHUNK_BYTES: usize = 1 << 16;

/// JSON objects between an opening, a separator and an end.
fn json(
    schema: &Schema,
    batches: &[RecordBatch],
    [open, between, end]: [&str; 3],
    dest: &mut dyn Write,
) -> Result<Outcome> {
    let mut chunk = open.to_owned();
    let mut first = true;
    for batch in batches {
        for row in 0..batch.num_rows() {
            if !first {
                chunk.push_str(between);
            }
            first = false;
            object(schema, batch, row, &mut chunk)?;
            if chunk.len() > CHUNK_BYTES && put(std::mem::take(&mut chunk).as_bytes(), dest)? == Outcome::Closed {
                return Ok(Outcome::Closed);
            }
        }
    }
    if !(first && open.is_empty()) {
        chunk.push_str(end);
    }
    text(&chunk, dest)
}

fn object(schema: &Schema, batch: &RecordBatch, row: usize, chunk: &mut String) -> Result<()> {
    chunk.push('{');
    for (at, (field, column)) in schema.fields().iter().zip(batch.columns()).enumerate() {
        if at > 0 {
            chunk.push(',');
        }
        chunk.push_str(&serde_json::Value::from(field.name().as_str()).to_string());
        chunk.push(':');
        chunk.push_str(&value(column, row)?.json(field.name()).to_string());
    }
    chunk.push('}');
    Ok(())
}

fn parquet(batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let failed = |error: parquet::errors::ParquetError| Error::run(error.to_string());
    let level = ZstdLevel::try_new(3).map_err(failed)?;
    // The writer's version is not recorded, so that equal results give equal bytes.
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_created_by("kvtoll".to_owned())
        .build();
    let mut bytes = Vec::new();
    let schema = batches.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema);
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).map_err(failed)?;
    for batch in batches {
        writer.write(batch).map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    Ok(bytes)
}

fn arrow_file(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let failed = |error: arrow::error::ArrowError| Error::run(error.to_string());
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, schema).map_err(failed)?;
    for batch in batches {
        writer.write(batch).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    drop(writer);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
