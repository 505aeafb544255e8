//! Where an adapter puts what it reads: batches, bad rows, and a count of everything else.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;

use arrow::array::RecordBatch;
use engine::error::{Error, Result};
use engine::schema::{self, Cell, Table, batch_of_rows, canonical};

use super::companions;
use super::problem::Problem;
use super::source::Tally;
use super::{OnBadRow, Options, Parcel};
use crate::store::Companion;

/// Bad rows per batch.
const REJECTS: usize = 1024;

/// Entries of the log before kinds are merged.
const KINDS: usize = 256;

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Nothing to do.
    Info,
    /// Worth knowing.
    Notice,
    /// Something in the file is not in the store.
    DataLoss,
}

impl Severity {
    /// As it stands in `import_log`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Notice => "notice",
            Self::DataLoss => "data_loss",
        }
    }
}

/// A kind of thing that was skipped, guessed or repaired, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// How much it matters.
    pub severity: Severity,
    /// A stable name.
    pub code: &'static str,
    /// How often.
    pub count: u64,
    /// Line or row of the first, from 1; none where it has no line.
    pub first_line: Option<u64>,
    /// Offset of the first in the decompressed file.
    pub first_byte: Option<u64>,
    /// What happened.
    pub message: String,
    /// What can be done about it.
    pub advice: Option<&'static str>,
}

impl LogEntry {
    pub(super) fn cells(&self, source_id: u32) -> Vec<Cell> {
        vec![
            source_id.into(),
            self.severity.name().into(),
            self.code.into(),
            self.count.into(),
            self.first_line.into(),
            self.first_byte.into(),
            self.message.as_str().into(),
            self.advice.into(),
        ]
    }
}

/// A kind of event, as an adapter declares it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub(super) severity: Severity,
    pub(super) code: &'static str,
    pub(super) advice: Option<&'static str>,
}

/// What a source came to.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) rows_in: u64,
    pub(super) rows_out: u64,
    pub(super) rows_rejected: u64,
    pub(super) tables: Vec<(&'static str, u64)>,
    /// The first bad rows, as they are shown.
    pub(super) shown: Vec<String>,
    pub(super) log: Vec<LogEntry>,
    pub(super) companions: Vec<Companion>,
}

/// Takes what an adapter reads from one source.
#[derive(Debug)]
pub struct Sink<'a> {
    path: &'a str,
    source_id: u32,
    on_bad_row: OnBadRow,
    max_errors: usize,
    sender: SyncSender<Parcel>,
    tally: Rc<RefCell<Tally>>,
    rows_in: u64,
    rows_rejected: u64,
    tables: BTreeMap<&'static str, u64>,
    /// Rows that are not rows of the file.
    details: BTreeMap<&'static str, u64>,
    /// The first bad rows, as they are shown.
    shown: Vec<String>,
    rejects: Vec<Vec<Cell>>,
    /// In the order of their first appearance.
    log: Vec<LogEntry>,
    companions: Vec<Companion>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(
        path: &'a str,
        source_id: u32,
        options: &Options,
        tally: Rc<RefCell<Tally>>,
        sender: SyncSender<Parcel>,
    ) -> Self {
        Self {
            path,
            source_id,
            on_bad_row: options.on_bad_row,
            max_errors: options.max_errors.max(1),
            sender,
            tally,
            rows_in: 0,
            rows_rejected: 0,
            tables: BTreeMap::new(),
            details: BTreeMap::new(),
            shown: Vec::new(),
            rejects: Vec::new(),
            log: Vec::new(),
            companions: Vec::new(),
        }
    }

    /// Number of the source.
    pub(super) fn source_id(&self) -> u32 {
        self.source_id
    }

    /// Makes a file that is read beside the named one part of the source, once; gives its SHA-256. Its name is relative to
    /// the folder of the named file.
    pub(super) fn companion(&mut self, name: &str, path: &Path) -> Result<String> {
        if let Some(known) = self.companions.iter().find(|known| known.name == name) {
            return Ok(known.sha256.clone());
        }
        let found = companions::companion(name, path)?;
        let sha256 = found.sha256.clone();
        self.companions.push(found);
        Ok(sha256)
    }

    /// Counts rows found in the file, whatever becomes of them.
    pub(super) fn found(&mut self, rows: u64) {
        self.rows_in += rows;
    }

    /// Hands rows on. Request ids count from 0 within the source.
    pub(super) fn push(&mut self, table: &'static Table, batch: RecordBatch) -> Result<()> {
        self.push_mixed(table, batch, 0)
    }

    /// As [`Sink::push`], where so many of the rows describe others that are counted already.
    pub(super) fn push_mixed(&mut self, table: &'static Table, batch: RecordBatch, details: u64) -> Result<()> {
        let rows = batch.num_rows() as u64;
        if rows > 0 {
            *self.tables.entry(table.name).or_default() += rows.saturating_sub(details);
            *self.details.entry(table.name).or_default() += details.min(rows);
            self.send(table, batch)?;
        }
        Ok(())
    }

    /// Hands on rows that describe rows which are counted already, such as the segments of a request.
    pub(super) fn push_detail(&mut self, table: &'static Table, batch: RecordBatch) -> Result<()> {
        if batch.num_rows() > 0 {
            *self.details.entry(table.name).or_default() += batch.num_rows() as u64;
            self.send(table, batch)?;
        }
        Ok(())
    }

    /// Sets a row aside, or ends the command once enough bad rows are known.
    pub(super) fn reject(&mut self, problem: Problem) -> Result<()> {
        self.rows_rejected += 1;
        if self.shown.len() < self.max_errors {
            self.shown.push(problem.shown);
        }
        match self.on_bad_row {
            OnBadRow::Fail if self.shown.len() == self.max_errors => Err(self.failure(true)),
            OnBadRow::Fail => Ok(()),
            OnBadRow::Quarantine => {
                self.rejects.push(vec![
                    self.source_id.into(),
                    problem.line.into(),
                    problem.column.into(),
                    problem.byte_offset.into(),
                    problem.code.into(),
                    problem.expected.into(),
                    problem.found.into(),
                    problem.raw.into(),
                ]);
                if self.rejects.len() >= REJECTS { self.send_rejects() } else { Ok(()) }
            }
        }
    }

    /// Counts an event; `message` describes the kind, and is one entry of the log. Once the log is long, further kinds
    /// of a code share an entry: a file in which each row has keys of its own must not fill the memory.
    pub(super) fn log(&mut self, event: Event, message: &str, line: Option<u64>, byte: Option<u64>) {
        self.log_many(event, message, 1, line, byte);
    }

    /// As [`Sink::log`], for `count` events at once; the place is that of the first.
    pub(super) fn log_many(&mut self, event: Event, message: &str, count: u64, line: Option<u64>, byte: Option<u64>) {
        if count == 0 {
            return;
        }
        let message = match self.log.len() {
            0..KINDS => message,
            _ if self.log.iter().any(|entry| entry.code == event.code && entry.message == message) => message,
            _ => "further events of this code, of several kinds",
        };
        let known = self.log.iter_mut().find(|entry| entry.code == event.code && entry.message == message);
        match known {
            Some(entry) => entry.count = entry.count.saturating_add(count),
            None => self.log.push(LogEntry {
                severity: event.severity,
                code: event.code,
                count,
                first_line: line,
                first_byte: byte,
                message: message.to_owned(),
                advice: event.advice,
            }),
        }
    }

    /// Ends the source.
    ///
    /// # Errors
    /// Bad rows that must fail the command; a file without any good row.
    pub(super) fn finish(mut self) -> Result<Counts> {
        if self.on_bad_row == OnBadRow::Fail && self.rows_rejected > 0 {
            return Err(self.failure(false));
        }
        // `recordings` describes the source and is no row of it.
        let rows_out =
            self.tables.iter().filter(|(name, _)| **name != canonical::RECORDINGS.name).map(|(_, rows)| rows);
        let rows_out: u64 = rows_out.sum();
        if rows_out == 0 {
            let mut message = format!("expected at least one row in `{}`, found none", self.path);
            if self.rows_rejected > 0 {
                message =
                    format!("expected at least one good row in `{}`, found {} bad ones", self.path, self.rows_rejected);
            }
            return Err(Error::data(listed(message, &self.shown)));
        }
        self.send_rejects()?;
        if self.rows_in != rows_out + self.rows_rejected {
            return Err(Error::run(format!(
                "`{}` has {} rows, but {rows_out} were kept and {} set aside",
                self.path, self.rows_in, self.rows_rejected
            ))
            .hint("this is a bug in the adapter; please report it"));
        }
        // A table may have rows of the file and rows that describe them.
        let rows_of = |table: &&Table| match (self.tables.get(table.name), self.details.get(table.name)) {
            (None, None) => None,
            (rows, details) => Some(rows.copied().unwrap_or(0) + details.copied().unwrap_or(0)),
        };
        let tables = schema::ALL.iter().filter_map(|table| Some((table.name, rows_of(table)?))).collect();
        let Self { rows_in, rows_rejected, shown, log, companions, .. } = self;
        Ok(Counts { rows_in, rows_out, rows_rejected, tables, shown, log, companions })
    }

    fn failure(&self, stopped: bool) -> Error {
        let count = match (stopped, self.rows_rejected) {
            (true, rows) => format!("{rows} bad ones before the reader stopped"),
            (false, 1) => "a bad one".to_owned(),
            (false, rows) => format!("{rows} bad ones"),
        };
        let message = format!("expected only good rows in `{}`, found {count}; nothing was written", self.path);
        Error::data(listed(message, &self.shown))
            .hint("`--on-bad-row quarantine` keeps the good rows and puts the bad ones into `rejects`")
    }

    fn send_rejects(&mut self) -> Result<()> {
        if self.rejects.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.rejects);
        self.send(&canonical::REJECTS, batch_of_rows(&canonical::REJECTS, &rows)?)
    }

    fn send(&self, table: &'static Table, batch: RecordBatch) -> Result<()> {
        let bytes = self.tally.borrow().bytes_in();
        // The writer is gone only when the command has failed already; that error is the one to show.
        self.sender.send(Parcel { table, batch, bytes }).map_err(|_| Error::run("the writer has stopped"))
    }
}

fn listed(message: String, problems: &[String]) -> String {
    if problems.is_empty() { message } else { format!("{message}\n\n{}", problems.join("\n")) }
}
