//! Ingestion: foreign traces become rows of the canonical tables, and no row is lost in silence.
//!
//! An adapter is one [`Format`]: it judges the first bytes of a file (`sniff`) and turns a stream into batches (`read`).
//! It knows its format and the schema; it does not know the store. [`ingest`] opens each file, undoes gzip and zstd by
//! their magic bytes, hashes what is on disk, lets the adapter read, and writes batches as they come, so that memory does
//! not grow with the file.
//!
//! Two laws hold for each source: rows in = rows out + rows rejected, and nothing is written unless everything is.
//! What was skipped, guessed or repaired is counted in `import_log`; a row that could not be read is in `rejects`, or
//! fails the command, as [`OnBadRow`] says.
//!
//! Several files are read at the same time, each in a thread of its own; their rows enter the store in the order of the
//! command line, so that ids do not depend on threads.
//!
//! To add a format, write `ingest/<name>.rs` with a `FORMAT`, and add it to [`ALL`].

mod accelsim;
mod accesses;
mod aiperf;
mod anonymize;
mod arrays;
mod azure;
mod block_events;
mod blocks;
mod burstgpt;
mod cells;
mod chakra;
mod claude_code;
mod companions;
mod csv;
mod dsa_topk;
mod dynamo;
mod elements;
mod examine;
mod gpu;
mod hashed;
mod json;
mod kineto;
mod kv_events;
mod llmservingsim;
mod llmservingsim_profile;
mod llmservingsim_result;
mod mooncake;
mod ncu;
mod nsys;
mod nsys_csv;
mod nsys_parquet;
mod nsys_sqlite;
mod nvbit;
mod op_parquet;
mod op_timings;
mod operators;
mod otel;
mod parquet_input;
mod paths;
mod pieces;
mod prefix;
mod problem;
mod pytorch_et;
mod qwen;
mod ragpulse;
mod recent;
mod recording;
mod requests;
mod rocprofv3;
mod rows;
mod sequence;
mod servegen;
mod sink;
mod source;
mod sparse;
mod splitwise;
mod tair;
mod time;
mod trtllm_events;
mod value;
mod vidur;
mod vllm_bench;
mod walk;
mod weka;
mod words;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, ScopedJoinHandle};

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::datatypes::UInt64Type;
use engine::error::{Error, Result, unknown};
use engine::schema::{Cell, Table, batch_of_rows, canonical};

use crate::store::{SourceEntry, Store, Transaction};
pub use examine::{Examination, examine, gather};
pub(crate) use llmservingsim_profile::{SKEW_TABLE, SKEW_TABLE_OFF};
pub use sink::{LogEntry, Severity, Sink};
pub use source::{Body, Input, LocalFile};
pub use time::TimeUnit;

/// One foreign trace format.
#[derive(Debug)]
pub struct Format {
    /// What the user types.
    pub name: &'static str,
    /// One sentence for `list formats`.
    pub doc: &'static str,
    /// Where the format is specified.
    pub spec: &'static str,
    /// Whether the adapter was tested against real files of the format.
    pub verified: bool,
    /// Judges the first bytes of a file.
    pub sniff: fn(&Head<'_>) -> Sniff,
    /// Reads a trace, pushing batches and naming whatever it skips.
    pub read: fn(&mut Input<'_>, &mut Sink<'_>) -> Result<Settings>,
}

/// The formats, in the order in which `list formats` prints them.
pub static ALL: &[&Format] = &[
    &mooncake::FORMAT,
    &qwen::FORMAT,
    &weka::FORMAT,
    &ragpulse::FORMAT,
    &tair::FORMAT,
    &dynamo::FORMAT,
    &azure::FORMAT,
    &burstgpt::FORMAT,
    &vidur::FORMAT,
    &splitwise::FORMAT,
    &servegen::FORMAT,
    &llmservingsim::FORMAT,
    &llmservingsim_result::FORMAT,
    &aiperf::FORMAT,
    &vllm_bench::FORMAT,
    &otel::FORMAT,
    &claude_code::FORMAT,
    &recording::FORMAT,
    &nsys_sqlite::FORMAT,
    &nsys_parquet::FORMAT,
    &nsys_csv::FORMAT,
    &ncu::FORMAT,
    &rocprofv3::FORMAT,
    &arrays::FORMAT,
    &dsa_topk::FORMAT,
    &op_parquet::FORMAT,
    &llmservingsim_profile::FORMAT,
    &kv_events::FORMAT,
    &trtllm_events::FORMAT,
    &nvbit::FORMAT,
    &accelsim::FORMAT,
    &kineto::FORMAT,
    &pytorch_et::FORMAT,
    &chakra::FORMAT,
];

/// What a sniffer sees.
#[derive(Debug)]
pub struct Head<'a> {
    /// The path as given.
    pub path: &'a str,
    /// The first bytes, decompressed; of a directory, those of its `recording.json`.
    pub bytes: &'a [u8],
    /// Whether the path is a directory.
    pub directory: bool,
    /// What kind of binary file it is, if it is not text.
    pub binary: Option<&'static str>,
    /// Where a container is, decompressed, for sniffers that must look beyond its first bytes.
    pub file: Option<&'a Path>,
}

/// What a sniffer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sniff {
    /// Another format.
    No,
    /// Close, and what is missing.
    Nearly(String),
    /// This format.
    Yes,
}

/// What to do with a row that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBadRow {
    /// The whole command fails and nothing is written.
    Fail,
    /// The row goes to `rejects`, the others are kept.
    Quarantine,
}

/// How to ingest.
#[derive(Debug, Clone)]
pub struct Options {
    /// The format by name; none to sniff it.
    pub format: Option<String>,
    /// What to do with a row that cannot be read.
    pub on_bad_row: OnBadRow,
    /// Whether a file that is in the store already is ingested once more.
    pub again: bool,
    /// How many bad rows a failure lists.
    pub max_errors: usize,
    /// The unit of the file's instants; none for what the format says.
    pub time_unit: Option<TimeUnit>,
    /// Tokens per block of the file; none for what the format says.
    pub block_tokens: Option<u32>,
    /// The key of the hashes that replace free-text ids; none to keep these as they are.
    pub anonymize: Option<String>,
}

impl Options {
    /// What the command line does without flags.
    pub fn standard() -> Self {
        Self {
            format: None,
            on_bad_row: OnBadRow::Fail,
            again: false,
            max_errors: 10,
            time_unit: None,
            block_tokens: None,
            anonymize: None,
        }
    }
}

impl Options {
    /// Refuses a block size where a format has no blocks.
    fn without_blocks(&self, format: &str) -> Result<()> {
        if self.block_tokens.is_none() {
            return Ok(());
        }
        Err(Error::usage(format!("expected no block size with format `{format}`, found one"))
            .hint("its rows have no blocks"))
    }

    /// Refuses both flags, for a format that leaves nothing to choose; `why` says what decides.
    fn without_choice(&self, format: &str, why: &str) -> Result<()> {
        if self.time_unit.is_none() && self.block_tokens.is_none() {
            return Ok(());
        }
        let message = format!("expected no time unit and no block size with format `{format}`, found one");
        Err(Error::usage(message).hint(why))
    }

    /// Refuses a unit of time other than the format's own, if it has one; `why` says what its instants are.
    fn with_unit(&self, format: &str, own: Option<TimeUnit>, why: &str) -> Result<()> {
        let Some(unit) = self.time_unit.filter(|unit| Some(*unit) != own) else { return Ok(()) };
        let expected = own.map_or_else(|| "no time unit".to_owned(), |own| format!("the time unit `{}`", own.name()));
        Err(Error::usage(format!("expected {expected} with format `{format}`, found `{}`", unit.name())).hint(why))
    }
}

/// The settings of a source, as they enter `sources`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Unit of the file's instants.
    pub time_unit: Option<&'static str>,
    /// What the instants count from.
    pub clock: Option<&'static str>,
    /// Tokens of one block.
    pub block_tokens: Option<u32>,
    /// How a partial last block is counted.
    pub rounding: Option<&'static str>,
    /// Where equal ids mean equal content.
    pub hash_scope: Option<&'static str>,
    /// What an id stands for.
    pub id_kind: Option<&'static str>,
    /// How the settings were found.
    pub origin: Origin,
}

/// How the settings of a source were found: the strongest of its settings counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The format says so, or the file itself.
    #[default]
    Format,
    /// The first rows of the file decided.
    Detected,
    /// The user said so.
    Flag,
}

impl Origin {
    /// As it stands in `sources`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Detected => "detected",
            Self::Flag => "flag",
        }
    }
}

/// How far a file has been read.
#[derive(Debug, Clone)]
pub struct Progress<'a> {
    /// The path as given.
    pub path: &'a str,
    /// Bytes read from disk.
    pub bytes: u64,
    /// Size on disk, where it is known.
    pub total_bytes: Option<u64>,
    /// Rows that have entered the store's files.
    pub rows: u64,
}

/// What became of one file.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Number of the source within the store.
    pub source_id: u32,
    /// The path as given.
    pub path: String,
    /// The adapter that read it.
    pub format: &'static str,
    /// none, gzip, zstd or xz.
    pub compression: &'static str,
    /// SHA-256 of its bytes and of what was read beside it, in hex.
    pub sha256: String,
    /// Size on disk in bytes.
    pub file_bytes: u64,
    /// Rows found, kept and set aside: the first is the sum of the others.
    pub rows_in: u64,
    /// Rows kept.
    pub rows_out: u64,
    /// Rows set aside in `rejects`.
    pub rows_rejected: u64,
    /// Rows by table, in the order of the schema.
    pub tables: Vec<(&'static str, u64)>,
    /// As they are in `sources`.
    pub settings: Settings,
    /// Its first request; its requests are numbered from here without a gap.
    pub first_request_id: u64,
    /// What was skipped, guessed or repaired.
    pub log: Vec<LogEntry>,
}

/// What a file is, without reading it.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The path as given.
    pub path: String,
    /// none, gzip, zstd or xz.
    pub compression: &'static str,
    /// Size on disk, where it is known.
    pub file_bytes: Option<u64>,
    /// The format, if exactly one fits.
    pub format: Option<&'static str>,
    /// What each format says, in the order of [`ALL`].
    pub verdicts: Vec<(&'static str, Sniff)>,
}

/// The format of this name.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn format(name: &str) -> Result<&'static Format> {
    let found = ALL.iter().find(|format| format.name == name);
    found.copied().ok_or_else(|| unknown("format", name, ALL.iter().map(|format| format.name)))
}

/// Says what a file is.
///
/// # Errors
/// A file that cannot be opened, is empty or is binary.
pub fn inspect(path: &str) -> Result<Inspection> {
    let source = source::open(path, &source::LIMITS)?;
    let verdicts = verdicts(&source.head());
    let format = only_yes(&verdicts).map(|format| format.name);
    if format.is_none() {
        refuse_binary(&source.head())?;
    }
    let verdicts = verdicts.into_iter().map(|(format, sniff)| (format.name, sniff)).collect();
    Ok(Inspection {
        path: path.to_owned(),
        compression: source.compression(),
        file_bytes: source.total_bytes(),
        format,
        verdicts,
    })
}

/// Ingests the files into the store, all of them or none.
///
/// `paths` may hold globs and `-` for standard input. `progress` is called as batches are written.
///
/// # Errors
/// A path that names nothing; a file that is empty, binary, of an unknown format or in the store already; bad rows, unless
/// they are set aside; a store that cannot be written.
pub fn ingest(
    store: &mut Store,
    paths: &[String],
    options: &Options,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Vec<Summary>> {
    if let Some(name) = &options.format {
        format(name)?;
    }
    let paths = paths::expand(paths)?;
    let mut transaction = store.begin();
    let first = u32::try_from(transaction.manifest().sources.len()).map_err(|_| Error::run("too many sources"))?;
    let jobs: Vec<Job> = paths.into_iter().zip(first..).map(|(path, source_id)| Job { path, source_id }).collect();
    refuse_known_sizes(transaction.manifest().sources.as_slice(), &jobs, options)?;
    let summaries = read_all(&mut transaction, &jobs, options, progress)?;
    transaction.commit()?;
    Ok(summaries)
}

/// The source of the store that has the contents of this file or recording, if one has.
pub fn known_source<'a>(store: &'a Store, path: &str) -> Option<&'a SourceEntry> {
    let sources = &store.manifest().sources;
    let hash = if Path::new(path).is_dir() {
        recording::fingerprint(Path::new(path)).ok()?.0
    } else {
        let size = source::size_of(path)?;
        sources.iter().any(|source| source.bytes == size).then(|| source::hash_of(path)).flatten()?
    };
    sources.iter().find(|source| is_same(source, path, &hash))
}

/// Whether a source is of the file at `path`, which has this hash, and of what stands beside it.
fn is_same(source: &SourceEntry, path: &str, hash: &str) -> bool {
    source.own_sha256.as_ref().unwrap_or(&source.sha256) == hash && companions::unchanged(path, &source.companions)
}

/// The files that the paths and globs name, in order.
///
/// # Errors
/// A path or glob that names nothing.
pub fn expand(paths: &[String]) -> Result<Vec<String>> {
    paths::expand(paths)
}

/// One file to read.
struct Job {
    path: String,
    source_id: u32,
}

/// What a reading thread sends: rows of a table, and how far it is.
pub(crate) struct Parcel {
    pub(crate) table: &'static Table,
    pub(crate) batch: RecordBatch,
    pub(crate) bytes: u64,
}

/// What a reading thread returns.
struct Outcome {
    format: &'static Format,
    verdicts: Vec<(&'static Format, Sniff)>,
    compression: &'static str,
    sha256: String,
    file_bytes: u64,
    settings: Settings,
    counts: sink::Counts,
}

/// A file that is being read.
type Reading<'scope> = (Receiver<Parcel>, ScopedJoinHandle<'scope, Result<Outcome>>);

/// Batches that a reader may be ahead of the writer.
const AHEAD: usize = 4;

fn read_all(
    transaction: &mut Transaction<'_>,
    jobs: &[Job],
    options: &Options,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Vec<Summary>> {
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let key = options.anonymize.as_deref().map(anonymize::Key::new).transpose()?;
    thread::scope(|scope| {
        let mut summaries: Vec<Summary> = Vec::with_capacity(jobs.len());
        let mut running: VecDeque<Reading<'_>> = VecDeque::new();
        let mut waiting = jobs.iter();
        let mut next_request = transaction.manifest().rows("requests");
        for job in jobs {
            while running.len() < threads
                && let Some(job) = waiting.next()
            {
                let (sender, receiver) = sync_channel(AHEAD);
                running.push_back((receiver, scope.spawn(move || read_one(job, options, sender))));
            }
            let Some(reading) = running.pop_front() else { break };
            let summary = write_one(transaction, job, reading, next_request, key.as_ref(), progress)?;
            refuse_known(transaction.manifest().sources.as_slice(), &summaries, &summary, options)?;
            let requests = summary.tables.iter().find(|(name, _)| *name == "requests");
            next_request += requests.map_or(0, |(_, rows)| *rows);
            summaries.push(summary);
        }
        Ok(summaries)
    })
}

/// Reads one file in its own thread.
fn read_one(job: &Job, options: &Options, sender: std::sync::mpsc::SyncSender<Parcel>) -> Result<Outcome> {
    let source = source::open(&job.path, &source::LIMITS)?;
    let verdicts = verdicts(&source.head());
    let format = choose(&source.head(), &verdicts, options)?;
    let compression = source.compression();
    let mut sink = Sink::new(&job.path, job.source_id, options, source.tally(), sender);
    let (mut input, finish) = source.into_input(options)?;
    let settings = (format.read)(&mut input, &mut sink)?;
    drop(input);
    let (sha256, file_bytes) = finish.finish()?;
    Ok(Outcome { format, verdicts, compression, sha256, file_bytes, settings, counts: sink.finish()? })
}

/// Writes what a thread reads, with the request ids of the store.
fn write_one(
    transaction: &mut Transaction<'_>,
    job: &Job,
    (receiver, handle): Reading<'_>,
    first_request_id: u64,
    key: Option<&anonymize::Key>,
    progress: &dyn Fn(Progress<'_>),
) -> Result<Summary> {
    let total_bytes = source::size_of(&job.path);
    let (mut rows, mut replaced) = (0, 0);
    for Parcel { table, mut batch, bytes } in receiver {
        rows += batch.num_rows() as u64;
        if let Some(key) = key {
            let (without, texts) = anonymize::anonymize(table, &batch, key)?;
            batch = without;
            replaced += texts;
        }
        transaction.append(table, &[with_store_ids(batch, first_request_id)?])?;
        progress(Progress { path: &job.path, bytes, total_bytes, rows });
    }
    let mut outcome = join(&job.path, handle)?;
    if key.is_some() {
        outcome.counts.log.push(anonymize::log_entry(replaced));
    }
    let summary = summarise(job, first_request_id, outcome, transaction)?;
    Ok(summary)
}

/// What a reading thread came to. A reader that panics is a bug, and still must not take the process down.
fn join(path: &str, reading: ScopedJoinHandle<'_, Result<Outcome>>) -> Result<Outcome> {
    reading.join().unwrap_or_else(|_| {
        Err(Error::data(format!("`{path}` could not be read: its adapter failed"))
            .hint("please report this file as a bug"))
    })
}

fn summarise(job: &Job, first_request_id: u64, outcome: Outcome, to: &mut Transaction<'_>) -> Result<Summary> {
    let Outcome { format, compression, sha256: own, file_bytes, settings, counts, .. } = outcome;
    let sha256 = companions::hash(&own, &counts.companions);
    let row: Vec<Cell> = vec![
        job.source_id.into(),
        job.path.as_str().into(),
        format.name.into(),
        sha256.as_str().into(),
        file_bytes.into(),
        compression.into(),
        counts.rows_in.into(),
        counts.rows_out.into(),
        counts.rows_rejected.into(),
        settings.time_unit.into(),
        settings.clock.into(),
        settings.block_tokens.into(),
        settings.rounding.into(),
        settings.hash_scope.into(),
        settings.id_kind.into(),
        settings.origin.name().into(),
        companions::listed(&counts.companions).into(),
    ];
    to.append(&canonical::SOURCES, &[batch_of_rows(&canonical::SOURCES, &[row])?])?;
    let log: Vec<Vec<Cell>> = counts.log.iter().map(|entry| entry.cells(job.source_id)).collect();
    if !log.is_empty() {
        to.append(&canonical::IMPORT_LOG, &[batch_of_rows(&canonical::IMPORT_LOG, &log)?])?;
    }
    to.add_source(SourceEntry {
        id: job.source_id,
        path: job.path.clone(),
        format: format.name.to_owned(),
        sha256: sha256.clone(),
        own_sha256: (!counts.companions.is_empty()).then_some(own),
        companions: counts.companions,
        bytes: file_bytes,
        rows_in: counts.rows_in,
        rows_out: counts.rows_out,
        rows_rejected: counts.rows_rejected,
    });
    Ok(Summary {
        source_id: job.source_id,
        path: job.path.clone(),
        format: format.name,
        compression,
        sha256,
        file_bytes,
        rows_in: counts.rows_in,
        rows_out: counts.rows_out,
        rows_rejected: counts.rows_rejected,
        tables: counts.tables,
        settings,
        first_request_id,
        log: counts.log,
    })
}

/// Moves the ids that are local to a source to their place in the store.
fn with_store_ids(batch: RecordBatch, base: u64) -> Result<RecordBatch> {
    if base == 0 {
        return Ok(batch);
    }
    let schema = batch.schema();
    let mut columns = batch.columns().to_vec();
    for name in ["request_id", "parent_request_id"] {
        if let Ok(at) = schema.index_of(name)
            && let Some(ids) = columns[at].as_primitive_opt::<UInt64Type>()
        {
            // Local ids count rows of a file, so the sum stays far below the limit.
            let moved: UInt64Array = ids.unary(|id| id.saturating_add(base));
            columns[at] = Arc::new(moved) as ArrayRef;
        }
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The format to read with, by what each says.
fn choose(head: &Head<'_>, verdicts: &[(&'static Format, Sniff)], options: &Options) -> Result<&'static Format> {
    if let Some(name) = &options.format {
        let format = format(name)?;
        if !verdicts.iter().any(|(one, sniff)| one.name == format.name && *sniff == Sniff::Yes) {
            refuse_binary(head)?;
        }
        return Ok(format);
    }
    if let Some(format) = only_yes(verdicts) {
        return Ok(format);
    }
    refuse_binary(head)?;
    let several: Vec<&str> =
        verdicts.iter().filter(|(_, sniff)| *sniff == Sniff::Yes).map(|(format, _)| format.name).collect();
    if !several.is_empty() {
        return Err(Error::data(format!("`{}` could be any of {}", head.path, several.join(", ")))
            .hint("say which with `--format`"));
    }
    let names: Vec<&str> = ALL.iter().map(|format| format.name).collect();
    let mut message =
        format!("expected `{}` in one of the formats {}, found none of them", head.path, names.join(", "));
    for (format, sniff) in verdicts {
        if let Sniff::Nearly(why) = sniff {
            let _ = write!(message, "\n  nearly {}: {why}", format.name);
        }
    }
    Err(Error::data(message).hint("`kvtoll list formats` describes them"))
}

/// Refuses a binary file that no adapter asked for.
fn refuse_binary(head: &Head<'_>) -> Result<()> {
    match head.binary {
        Some(what) => Err(Error::data(format!("expected a trace as text in `{}`, found {what}", head.path))
            .hint("`kvtoll list formats` describes what can be read")),
        None => Ok(()),
    }
}

fn verdicts(head: &Head<'_>) -> Vec<(&'static Format, Sniff)> {
    ALL.iter().map(|format| (*format, (format.sniff)(head))).collect()
}

fn only_yes(verdicts: &[(&'static Format, Sniff)]) -> Option<&'static Format> {
    let mut yes = verdicts.iter().filter(|(_, sniff)| *sniff == Sniff::Yes);
    let first = yes.next()?;
    yes.next().is_none().then_some(first.0)
}

/// Refuses a file before it is read: one of the same size is in the store, and hashing shows that it is the same.
fn refuse_known_sizes(known: &[SourceEntry], jobs: &[Job], options: &Options) -> Result<()> {
    if options.again {
        return Ok(());
    }
    for job in jobs.iter().filter(|job| job.path != "-" && !Path::new(&job.path).is_dir()) {
        if let Some(size) = source::size_of(&job.path)
            && known.iter().any(|source| source.bytes == size)
            && let Some(hash) = source::hash_of(&job.path)
            && let Some(same) = known.iter().find(|one| is_same(one, &job.path, &hash))
        {
            return Err(known_already(&job.path, same.id, &same.path));
        }
    }
    Ok(())
}

fn refuse_known(known: &[SourceEntry], earlier: &[Summary], found: &Summary, options: &Options) -> Result<()> {
    if options.again {
        return Ok(());
    }
    let stored = known.iter().map(|source| (source.id, &source.path, &source.sha256));
    let before = earlier.iter().map(|summary| (summary.source_id, &summary.path, &summary.sha256));
    match stored.chain(before).find(|(_, _, sha256)| **sha256 == found.sha256) {
        Some((id, path, _)) => Err(known_already(&found.path, id, path)),
        None => Ok(()),
    }
}

fn known_already(path: &str, id: u32, known: &str) -> Error {
    Error::usage(format!(
        "expected a new file, found `{path}` with the contents of source {id} (`{known}`); nothing was written"
    ))
    .hint("`--again` ingests it once more")
}

#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod tests;
