//! Traces as CSV: a format is a list of columns, and this reads it.
//!
//! An adapter names its columns and what becomes of each ([`Column`]); where a format has come in several layouts, it
//! lists them ([`Csv::forms`]). Columns are found by their exact names, in any order; columns beyond the list are kept as
//! text and logged.
//!
//! Blocks of lines are split into cells, every one as text ([`chunk`]); kvtoll casts, so that each bad cell is a row in
//! `rejects` with its line and column.

mod chunk;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray, RecordBatch, StringArray,
    StringBuilder, UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::filter;
use arrow::datatypes as arrow_types;
use arrow::datatypes::{FieldRef, Int64Type, UInt32Type};
use engine::error::{Error, Result};
use engine::schema::canonical::REQUESTS;

use chunk::{Chunk, Span, cells};

use super::json::named;
use super::problem::{Bad, Problem, quoted};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Lines, Place};
use super::time::{DateForm, Dates, TimeUnit, decimal_ns};
use super::{Head, Origin, Settings, Sniff};

/// A format as CSV.
#[derive(Debug)]
pub(super) struct Csv {
    /// Its name.
    pub(super) format: &'static str,
    /// The columns of each layout that it came in; the first one of which a file has all columns counts.
    pub(super) forms: &'static [&'static [Column]],
}

/// A column of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    /// Its name in the header.
    name: &'static str,
    /// The column of `requests`, or another one beside them; none if it is only checked.
    to: Option<&'static str>,
    cast: Cast,
    /// Whether an empty cell means that the value is unknown.
    blank: bool,
}

/// What the cells of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cast {
    /// Dates, all of the form of the first.
    Date,
    /// Decimal numbers in a unit of time, which is the second unless the user says otherwise.
    Time,
    /// Whole numbers from 0 that fit u32.
    Count,
    /// The sum of prompt and output; if it is not, the row is bad (`strict`), or the fact is logged.
    Total { strict: bool },
    /// Text.
    Text,
    /// Something that follows from the other columns.
    Derived,
}

impl Column {
    /// Dates.
    pub(super) const fn date(name: &'static str, to: &'static str) -> Self {
        Self { name, to: Some(to), cast: Cast::Date, blank: false }
    }

    /// Instants or durations in seconds.
    pub(super) const fn seconds(name: &'static str, to: &'static str) -> Self {
        Self { name, to: Some(to), cast: Cast::Time, blank: false }
    }

    /// Whole numbers.
    pub(super) const fn count(name: &'static str, to: &'static str) -> Self {
        Self { name, to: Some(to), cast: Cast::Count, blank: false }
    }

    /// Text, unknown where it is blank.
    pub(super) const fn text(name: &'static str, to: &'static str) -> Self {
        Self { name, to: Some(to), cast: Cast::Text, blank: true }
    }

    /// Sums of prompt and output tokens; a `strict` one makes a row bad that contradicts it.
    pub(super) const fn total(name: &'static str, strict: bool) -> Self {
        Self { name, to: None, cast: Cast::Total { strict }, blank: false }
    }

    /// What follows from the other columns and is not kept.
    pub(super) const fn derived(name: &'static str) -> Self {
        Self { name, to: None, cast: Cast::Derived, blank: true }
    }

    /// The same, where an empty cell means that the value is unknown.
    pub(super) const fn or_blank(self) -> Self {
        Self { blank: true, ..self }
    }
}

/// The most columns: real traces have below 30, and names are compared with each other.
const COLUMNS: usize = 4096;

/// About how many bytes of lines are converted at once.
const BYTES: usize = 2 << 20;

const EMPTY_LINE: Event = Event { severity: Severity::Info, code: "empty_line", advice: None };
const NO_OUTPUT: Event = Event { severity: Severity::Info, code: "no_output", advice: None };
const EXTRA: Event = Event { severity: Severity::Notice, code: "unknown_column", advice: Some("kept as text") };
const DERIVED: Event = Event { severity: Severity::Info, code: "derived_column", advice: None };
const NO_ARRIVALS: Event = Event {
    severity: Severity::Notice,
    code: "no_arrivals",
    advice: Some("a replay in time needs arrivals: give it a load instead"),
};
const BACKWARDS: Event =
    Event { severity: Severity::Notice, code: "time_backwards", advice: Some("rows stay in file order") };
const ROUNDED: Event = Event { severity: Severity::Notice, code: "time_rounded", advice: None };
const TOTAL: Event = Event {
    severity: Severity::Notice,
    code: "total_differs",
    advice: Some("prompt and output are kept as they stand, the sum is not"),
};

/// Judges the first line.
pub(super) fn sniff(csv: &Csv, head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    let text = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes);
    let first = text.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    // JSON has no header, and its lines are long.
    if matches!(first.trim_ascii_start().first(), Some(b'{' | b'[')) {
        return Sniff::No;
    }
    let names = header(first.strip_suffix(b"\r").unwrap_or(first));
    let (form, missing) = nearest(csv, &names);
    let like: Vec<(&str, &str)> = missing.iter().filter_map(|name| Some((*name, like(&names, name)?))).collect();
    if missing.is_empty() {
        Sniff::Yes
    } else if !like.is_empty() && 2 * (form.len() - missing.len() + like.len()) >= form.len() {
        let pairs: Vec<String> = like.iter().map(|(name, found)| format!("`{found}` for `{name}`")).collect();
        Sniff::Nearly(format!("the first line has {}; names are exact", pairs.join(", ")))
    } else if 2 * missing.len() <= form.len() + 1 && missing.len() < form.len() {
        let missing: Vec<String> = missing.into_iter().map(|name| format!("`{name}`")).collect();
        Sniff::Nearly(format!("the first line lacks the column {}", missing.join(", ")))
    } else {
        Sniff::No
    }
}

/// The form that fits best, and which of its columns are missing: columns that are there under a similar name count for
/// more than those that are not there at all.
fn nearest(csv: &Csv, names: &[String]) -> (&'static [Column], Vec<&'static str>) {
    let missing = |form: &'static [Column]| -> Vec<&'static str> {
        form.iter().map(|column| column.name).filter(|column| !names.iter().any(|name| name == column)).collect()
    };
    let forms = csv.forms.iter().map(|form| (*form, missing(form)));
    let absent = |missing: &[&str]| missing.iter().filter(|name| like(names, name).is_none()).count();
    forms.min_by_key(|(_, missing)| (absent(missing), missing.len())).unwrap_or_default()
}

/// The name that differs from `wanted` only in case, blanks and punctuation.
fn like<'a>(names: &'a [String], wanted: &str) -> Option<&'a str> {
    let plain = |name: &str| -> String {
        name.chars().filter(|char| char.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    names.iter().map(String::as_str).find(|name| plain(name) == plain(wanted))
}

/// The names in a header line.
fn header(line: &[u8]) -> Vec<String> {
    let unquoted = |cell: &[u8]| {
        let inner = cell.strip_prefix(b"\"").and_then(|cell| cell.strip_suffix(b"\"")).unwrap_or(cell);
        String::from_utf8_lossy(inner).into_owned()
    };
    line.split(|byte| *byte == b',').map(unquoted).collect()
}

/// Where the columns of a file are.
struct Layout {
    form: &'static [Column],
    /// Of each column of the form.
    at: Vec<usize>,
    /// Of each other column, with the name under which it is kept.
    extras: Vec<(usize, String)>,
    width: usize,
}

/// Reads a trace.
///
/// # Errors
/// A header without a column, or with one twice; flags that the format has no use for; a stream that is damaged.
pub(super) fn read(csv: &Csv, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lines = super::rows::lines(input.path, &mut input.body)?;
    let layout = layout(csv, input.path, lines, sink)?;
    let casts = |cast: Cast| layout.form.iter().any(|column| column.cast == cast);
    let (dated, timed) = (casts(Cast::Date), casts(Cast::Time));
    input.options.without_blocks(csv.format)?;
    if !timed {
        input.options.with_unit(csv.format, None, "its instants are dates, or it has none")?;
    }
    let unit = input.options.time_unit.unwrap_or(TimeUnit::S);
    let mut reader = Reader { path: input.path, layout, unit, dates: None, next_id: 0, latest: i64::MIN };
    let mut block = Vec::new();
    while let Some(place) = lines.block(BYTES, &mut block)? {
        reader.convert(&block, place, sink)?;
    }
    let clock = match &reader.dates {
        Some(dates) if dates.form().has_zone() => Some("epoch"),
        Some(_) => Some("wall"),
        None => timed.then_some("trace_start"),
    };
    let origin = match input.options.time_unit {
        Some(_) => Origin::Flag,
        None if dated => Origin::Detected,
        None => Origin::Format,
    };
    Ok(Settings { time_unit: timed.then_some(unit.name()), clock, origin, ..Settings::default() })
}

/// Reads the header.
fn layout(csv: &Csv, path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<Layout> {
    let names = loop {
        let Some(line) = lines.next_line()? else {
            return Err(Error::data(format!("expected a header in `{path}`, found only empty lines")));
        };
        if !line.is_blank() {
            break header(line.bytes);
        }
        sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
    };
    if names.len() > COLUMNS {
        return Err(Error::data(format!("expected at most {COLUMNS} columns in `{path}`, found {}", names.len())));
    }
    let (form, missing) = nearest(csv, &names);
    if let Some(column) = missing.first() {
        let error = Error::data(format!("expected the column `{column}` in `{path}`, found {}", quoted_names(&names)));
        return Err(match like(&names, column) {
            Some(found) => error.hint(format!("names are exact: `{found}` is not `{column}`")),
            None => error,
        });
    }
    if let Some((at, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        let name = named(name.as_bytes());
        return Err(Error::data(format!("expected each column once in `{path}`, found {name} twice"))
            .hint(format!("the second is column {}", at + 1)));
    }
    if !form.iter().any(|column| column.to == Some("arrival_ns")) {
        sink.log(NO_ARRIVALS, "the file says nothing about when its requests came", None, None);
    }
    for column in form.iter().filter(|column| column.cast == Cast::Derived) {
        let message = format!("the column `{}` follows from others and is not kept", column.name);
        sink.log(DERIVED, &message, None, None);
    }
    let at = form.iter().filter_map(|column| names.iter().position(|name| name == column.name)).collect();
    let mut extras: Vec<(usize, String)> = Vec::new();
    for (at, name) in names.iter().enumerate().filter(|(_, name)| !form.iter().any(|column| column.name == *name)) {
        let message = format!("the column {} is not part of the format", named(name.as_bytes()));
        sink.log(EXTRA, &message, None, None);
        // A foreign column must not pass for one of the table's.
        let mut kept = name.clone();
        while REQUESTS.column(&kept).is_some()
            || form.iter().any(|column| column.to == Some(kept.as_str()))
            || extras.iter().any(|(_, known)| *known == kept)
        {
            kept = format!("{}_{kept}", csv.format);
        }
        extras.push((at, kept));
    }
    Ok(Layout { form, at, extras, width: names.len() })
}

fn quoted_names(names: &[String]) -> String {
    let names: Vec<String> = names.iter().take(20).map(|name| named(name.as_bytes())).collect();
    names.join(", ")
}

/// What is carried from block to block.
struct Reader<'a> {
    path: &'a str,
    layout: Layout,
    unit: TimeUnit,
    dates: Option<Dates>,
    next_id: u64,
    latest: i64,
}

/// Why a cell is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Date,
    Number,
    Negative,
    Range,
    /// The sum that it should be.
    Sum(u64),
}

/// A bad cell.
#[derive(Debug, Clone, Copy)]
struct Fault {
    row: u32,
    /// In the form.
    column: u16,
    why: Why,
}

impl Reader<'_> {
    /// Makes rows of a block of lines and hands them on.
    fn convert(&mut self, block: &[u8], at: Place, sink: &mut Sink<'_>) -> Result<()> {
        let mut chunk = Chunk::new(block, at);
        let Some(split) = chunk.split(self.path, self.layout.width, sink)? else {
            sink.found(chunk.bad.len() as u64);
            return self.set_aside(&chunk, &[], &[], sink);
        };
        sink.found((split.rows() + chunk.bad.len()) as u64);
        let texts = split.columns()?;
        let mut faults = Vec::new();
        let mut values: Vec<Option<ArrayRef>> = Vec::with_capacity(self.layout.form.len());
        for index in 0..self.layout.form.len() {
            let cells = texts[self.layout.at[index]];
            values.push(self.cast(index, cells, &chunk, &mut faults, sink));
        }
        self.check_totals(&values, &chunk, &mut faults, sink);
        faults.sort_by_key(|fault| (fault.row, fault.column));
        faults.dedup_by_key(|fault| fault.row);
        self.set_aside(&chunk, &texts, &faults, sink)?;
        self.log_rows(&values, &chunk, &faults, sink);
        let batch = self.batch(&texts, values, &faults, sink.source_id())?;
        self.next_id += batch.num_rows() as u64;
        sink.push(&REQUESTS, batch)
    }

    /// The values of a column of the form; a bad cell has a default there and is a fault.
    fn cast(
        &mut self,
        index: usize,
        cells: chunk::Column<'_>,
        chunk: &Chunk<'_>,
        faults: &mut Vec<Fault>,
        sink: &mut Sink<'_>,
    ) -> Option<ArrayRef> {
        let column = &self.layout.form[index];
        match column.cast {
            Cast::Derived => None,
            Cast::Text => Some(Arc::new(text_array(cells))),
            Cast::Count | Cast::Total { .. } => {
                Some(Arc::new(numbers::<UInt32Type>(column.blank, index, cells, faults, whole)))
            }
            Cast::Date => {
                if self.dates.is_none() {
                    let first = (0..cells.rows()).find_map(|row| DateForm::of(cells.get(row)));
                    self.dates = first.map(Dates::new);
                }
                let dates = &mut self.dates;
                let parse = |cell: &[u8]| dates.as_mut().and_then(|dates| dates.ns(cell)).ok_or(Why::Date);
                Some(Arc::new(numbers::<Int64Type>(column.blank, index, cells, faults, parse)))
            }
            Cast::Time => {
                let unit = self.unit;
                let (mut row, mut rounded) = (0, Vec::new());
                let parse = |cell: &[u8]| {
                    row += 1;
                    let (value, exact) = decimal_ns(cell, unit).ok_or_else(|| no_time(cell))?;
                    if !exact {
                        rounded.push(row - 1);
                    }
                    Ok(value)
                };
                let values = numbers::<Int64Type>(column.blank, index, cells, faults, parse);
                for row in rounded {
                    let (number, offset) = chunk.place(chunk.row(row));
                    let message = format!("`{}` was rounded to the nanosecond", column.name);
                    sink.log(ROUNDED, &message, Some(number), Some(offset));
                }
                Some(Arc::new(values))
            }
        }
    }

    /// Compares sums with what they are the sums of.
    fn check_totals(
        &self,
        values: &[Option<ArrayRef>],
        chunk: &Chunk<'_>,
        faults: &mut Vec<Fault>,
        sink: &mut Sink<'_>,
    ) {
        let (Some(prompt), Some(output)) = (self.counts(values, "prompt_tokens"), self.counts(values, "output_tokens"))
        else {
            return;
        };
        for (index, column) in self.layout.form.iter().enumerate() {
            let (Cast::Total { strict }, Some(totals)) = (column.cast, &values[index]) else { continue };
            let bad: Vec<bool> = if faults.is_empty() { Vec::new() } else { faulty(faults, prompt.len()) };
            for (row, total) in totals.as_primitive::<UInt32Type>().values().iter().enumerate() {
                let sum = u64::from(prompt[row]) + u64::from(output[row]);
                if u64::from(*total) == sum || bad.get(row).is_some_and(|bad| *bad) {
                    continue;
                }
                if strict {
                    faults.push(Fault { row: row as u32, column: index as u16, why: Why::Sum(sum) });
                } else {
                    let (number, offset) = chunk.place(chunk.row(row));
                    let message = format!("`{}` is not the sum of prompt and output", column.name);
                    sink.log(TOTAL, &message, Some(number), Some(offset));
                }
            }
        }
    }

    /// The values that go to a column of whole numbers.
    fn counts<'v>(&self, values: &'v [Option<ArrayRef>], to: &str) -> Option<&'v [u32]> {
        let index = self.layout.form.iter().position(|column| column.to == Some(to))?;
        Some(values[index].as_ref()?.as_primitive_opt::<UInt32Type>()?.values())
    }

    /// Rejects bad lines and rows with bad cells in the order of the file.
    fn set_aside(
        &self,
        chunk: &Chunk<'_>,
        texts: &[chunk::Column<'_>],
        faults: &[Fault],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let problem = |span: Span, bad: Bad| {
            let (number, offset) = chunk.place(span);
            Problem::in_line(self.path, chunk.bytes(span), number, offset, bad)
        };
        let mut lines = chunk.bad.iter().peekable();
        for fault in faults {
            let span = chunk.row(fault.row as usize);
            while let Some((before, bad)) = lines.next_if(|(before, _)| before.line < span.line) {
                sink.reject(problem(*before, bad.clone()))?;
            }
            let at = self.layout.at[usize::from(fault.column)];
            let found = texts[at].get(fault.row as usize);
            sink.reject(problem(span, self.explain(*fault, chunk.bytes(span), found)))?;
        }
        lines.try_for_each(|(span, bad)| sink.reject(problem(*span, bad.clone())))
    }

    /// A bad cell in words.
    fn explain(&self, fault: Fault, line: &[u8], found: &[u8]) -> Bad {
        let column = &self.layout.form[usize::from(fault.column)];
        let name = column.name;
        let (code, expected) = match (fault.why, column.cast) {
            (Why::Date, _) => (
                "not_an_instant",
                match &self.dates {
                    Some(dates) => format!("`{name}` as {}", dates.form().example()),
                    None => format!("`{name}` as a date such as `2023-11-16 18:17:03.9799600`"),
                },
            ),
            (Why::Sum(sum), _) => ("contradiction", format!("`{name}` as the sum of prompt and output, {sum}")),
            (Why::Range, Cast::Time) => {
                ("out_of_range", format!("`{name}` in {} below 2^63 nanoseconds", self.unit.name()))
            }
            (Why::Range, _) => ("out_of_range", format!("`{name}` of at most {}", u32::MAX)),
            (why, cast) => {
                let code = if why == Why::Negative { "negative" } else { "wrong_type" };
                let kind = if cast == Cast::Time { "a number" } else { "a whole number" };
                (code, format!("`{name}` as {kind} of at least zero"))
            }
        };
        let starts = cells(line).unwrap_or_default();
        let at = starts.get(self.layout.at[usize::from(fault.column)]).copied().unwrap_or(0);
        let found = if found.is_empty() { "an empty cell".to_owned() } else { quoted(found) };
        Bad { at, code, expected, found }
    }

    /// Logs what is odd about good rows.
    fn log_rows(&mut self, values: &[Option<ArrayRef>], chunk: &Chunk<'_>, faults: &[Fault], sink: &mut Sink<'_>) {
        let arrival = self.layout.form.iter().position(|column| column.to == Some("arrival_ns"));
        let arrival = arrival.and_then(|index| values[index].as_ref()?.as_primitive_opt::<Int64Type>());
        let output = self.counts(values, "output_tokens").unwrap_or_default();
        let mut faults = faults.iter().peekable();
        for (row, tokens) in output.iter().enumerate() {
            if faults.next_if(|fault| fault.row as usize == row).is_some() {
                continue;
            }
            let mut log = |event, message| {
                let (number, offset) = chunk.place(chunk.row(row));
                sink.log(event, message, Some(number), Some(offset));
            };
            if *tokens == 0 {
                log(NO_OUTPUT, "a request without output tokens was kept with the status `no_output`");
            }
            if let Some(arrival) = arrival {
                let time = arrival.value(row);
                if time < self.latest {
                    log(BACKWARDS, "an instant is earlier than that of the row before");
                }
                self.latest = time;
            }
        }
    }

    /// The good rows as a batch of `requests`.
    fn batch(
        &self,
        texts: &[chunk::Column<'_>],
        values: Vec<Option<ArrayRef>>,
        faults: &[Fault],
        source_id: u32,
    ) -> Result<RecordBatch> {
        let rows = texts.first().map_or(0, |cells| cells.rows());
        let wanted = REQUESTS.arrow();
        let mut named: Vec<(FieldRef, ArrayRef)> = Vec::new();
        for (column, array) in self.layout.form.iter().zip(values) {
            let (Some(to), Some(array)) = (column.to, array) else { continue };
            let field = match wanted.field_with_name(to) {
                Ok(field) => field.clone(),
                Err(_) => arrow_types::Field::new(to, array.data_type().clone(), true),
            };
            named.push((Arc::new(field), array));
        }
        for (at, name) in &self.layout.extras {
            let field = arrow_types::Field::new(name, arrow_types::DataType::Utf8, true);
            named.push((Arc::new(field), Arc::new(verbatim(texts[*at]))));
        }
        if !faults.is_empty() {
            let good: BooleanArray = faulty(faults, rows).into_iter().map(|bad| Some(!bad)).collect();
            for (_, array) in &mut named {
                *array = filter(array, &good)?;
            }
        }
        let rows = rows - faults.len();
        let mut add = |name: &str, array: ArrayRef| -> Result<()> {
            named.push((Arc::new(wanted.field_with_name(name)?.clone()), array));
            Ok(())
        };
        add("request_id", Arc::new(UInt64Array::from_iter_values(self.next_id..self.next_id + rows as u64)))?;
        add("source_id", Arc::new(UInt32Array::from_value(source_id, rows)))?;
        let (fields, mut arrays): (Vec<FieldRef>, Vec<ArrayRef>) = named.into_iter().unzip();
        let output = fields.iter().position(|field| field.name() == "output_tokens");
        let status = output.and_then(|at| arrays[at].as_primitive_opt::<UInt32Type>()).map(statuses);
        let mut fields = fields;
        if let Some(status) = status {
            fields.push(Arc::new(wanted.field_with_name("status")?.clone()));
            arrays.push(Arc::new(status));
        }
        Ok(RecordBatch::try_new(Arc::new(arrow_types::Schema::new(fields)), arrays)?)
    }
}

/// Which rows have a bad cell.
fn faulty(faults: &[Fault], rows: usize) -> Vec<bool> {
    let mut bad = vec![false; rows];
    for fault in faults {
        bad[fault.row as usize] = true;
    }
    bad
}

/// The cells of a column as numbers; bad ones are zero, and faults. Empty ones are unknown if they may be.
fn numbers<T: ArrowPrimitiveType>(
    blank: bool,
    index: usize,
    cells: chunk::Column<'_>,
    faults: &mut Vec<Fault>,
    mut parse: impl FnMut(&[u8]) -> std::result::Result<T::Native, Why>,
) -> PrimitiveArray<T> {
    let mut values: Vec<T::Native> = Vec::with_capacity(cells.rows());
    let mut unknown: Vec<u32> = Vec::new();
    cells.for_each(|cell| {
        let value = match parse(cell) {
            Ok(value) => value,
            Err(_) if blank && cell.trim_ascii().is_empty() => {
                unknown.push(values.len() as u32);
                T::Native::default()
            }
            Err(why) => {
                faults.push(Fault { row: values.len() as u32, column: index as u16, why });
                T::Native::default()
            }
        };
        values.push(value);
    });
    let nulls = (!unknown.is_empty()).then(|| {
        let mut known = vec![true; values.len()];
        for row in unknown {
            known[row as usize] = false;
        }
        NullBuffer::from(known)
    });
    PrimitiveArray::new(values.into(), nulls)
}

/// A whole number that fits u32.
fn whole(cell: &[u8]) -> std::result::Result<u32, Why> {
    // Nine digits fit; nearly all numbers are as short.
    if (1..=9).contains(&cell.len()) {
        let (mut value, mut other) = (0, false);
        for byte in cell {
            let digit = byte.wrapping_sub(b'0');
            other |= digit > 9;
            value = u32::wrapping_add(u32::wrapping_mul(value, 10), u32::from(digit));
        }
        if !other {
            return Ok(value);
        }
    }
    if cell.is_empty() || !cell.iter().all(u8::is_ascii_digit) {
        return Err(if cell.first() == Some(&b'-') { Why::Negative } else { Why::Number });
    }
    let digits = |sum: u32, digit: &u8| sum.checked_mul(10)?.checked_add(u32::from(digit - b'0'));
    cell.iter().try_fold(0, digits).ok_or(Why::Range)
}

/// Why a cell is no time of at least zero that fits.
fn no_time(cell: &[u8]) -> Why {
    let number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    match std::str::from_utf8(cell).ok().filter(|text| text.bytes().all(|byte| number(&byte))) {
        Some(text) if text.starts_with('-') => Why::Negative,
        // The text is only read, and never becomes a time: whether it is a number needs no exactness.
        Some(text) if text.parse::<f64>().is_ok() => Why::Range,
        _ => Why::Number,
    }
}

/// Text, unknown where it is blank.
fn text_array(cells: chunk::Column<'_>) -> StringArray {
    let mut array = StringBuilder::with_capacity(cells.rows(), cells.rows() * 16);
    cells.for_each(|cell| {
        let text = String::from_utf8_lossy(cell);
        array.append_option(Some(text).filter(|text| !text.trim_ascii().is_empty()));
    });
    array.finish()
}

/// Text as it stands, unknown where the cell is empty.
fn verbatim(cells: chunk::Column<'_>) -> StringArray {
    let mut array = StringBuilder::with_capacity(cells.rows(), cells.rows() * 16);
    // The block was found to be UTF-8, so that nothing is replaced.
    cells.for_each(|cell| array.append_option((!cell.is_empty()).then(|| String::from_utf8_lossy(cell))));
    array.finish()
}

/// The status that follows from the output.
fn statuses(output: &UInt32Array) -> StringArray {
    StringArray::from_iter_values(output.values().iter().map(|tokens| if *tokens == 0 { "no_output" } else { "ok" }))
}

#[cfg(test)]
mod tests;
