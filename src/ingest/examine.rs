//! What a file holds, by reading it as `ingest` would and keeping nothing.

use std::sync::mpsc::sync_channel;
use std::thread;

use arrow::array::RecordBatch;
use engine::error::Result;
use engine::schema::Table;

use super::{AHEAD, Job, LogEntry, OnBadRow, Options, Settings, Sniff, join, read_one};

/// What a file holds.
#[derive(Debug, Clone)]
pub struct Examination {
    /// The path as given.
    pub path: String,
    /// The format that it was read with.
    pub format: &'static str,
    /// What each format says about its first bytes, in the order of [`super::ALL`].
    pub verdicts: Vec<(&'static str, Sniff)>,
    /// none, gzip, zstd or xz.
    pub compression: &'static str,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// Size on disk in bytes.
    pub file_bytes: u64,
    /// As they would enter `sources`.
    pub settings: Settings,
    /// Rows found, good and bad: the first is the sum of the others.
    pub rows_in: u64,
    /// Good rows.
    pub rows_out: u64,
    /// Bad rows.
    pub rows_rejected: u64,
    /// Rows by table, in the order of the schema.
    pub tables: Vec<(&'static str, u64)>,
    /// The first bad rows, as many as `Options::max_errors`, each with its place and a caret.
    pub problems: Vec<String>,
    /// What would be skipped, guessed or repaired.
    pub log: Vec<LogEntry>,
}

/// Reads a file as `ingest` would and hands on its rows of one table; nothing is written.
///
/// # Errors
/// A file that cannot be opened, is empty, binary, damaged, of an unknown format, or has bad rows; what `take` returns.
pub fn gather(path: &str, table: &'static Table, take: &mut dyn FnMut(RecordBatch) -> Result<()>) -> Result<()> {
    let (job, options) = (Job { path: path.to_owned(), source_id: 0 }, Options::standard());
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel(AHEAD);
        let reading = scope.spawn(|| read_one(&job, &options, sender));
        let wanted = receiver.into_iter().filter(|parcel| parcel.table.name == table.name);
        // A refusal here drops the channel, which ends the reading.
        let taken = wanted.map(|parcel| take(parcel.batch)).collect::<Result<Vec<()>>>();
        let read = join(path, reading);
        taken?;
        read.map(drop)
    })
}

/// Reads a file to its end and says what it holds; nothing is written. Bad rows are counted, whatever the options say.
///
/// # Errors
/// A file that cannot be opened, is empty, binary, damaged, of an unknown format, or without a good row.
pub fn examine(path: &str, options: &Options) -> Result<Examination> {
    let options = Options { on_bad_row: OnBadRow::Quarantine, ..options.clone() };
    let job = Job { path: path.to_owned(), source_id: 0 };
    let outcome = thread::scope(|scope| {
        let (sender, receiver) = sync_channel(AHEAD);
        let reading = scope.spawn(|| read_one(&job, &options, sender));
        // The rows are dropped as they come.
        receiver.into_iter().for_each(drop);
        join(path, reading)
    })?;
    let counts = outcome.counts;
    Ok(Examination {
        path: path.to_owned(),
        format: outcome.format.name,
        verdicts: outcome.verdicts.into_iter().map(|(format, sniff)| (format.name, sniff)).collect(),
        compression: outcome.compression,
        sha256: outcome.sha256,
        file_bytes: outcome.file_bytes,
        settings: outcome.settings,
        rows_in: counts.rows_in,
        rows_out: counts.rows_out,
        rows_rejected: counts.rows_rejected,
        tables: counts.tables,
        problems: counts.shown,
        log: counts.log,
    })
}
