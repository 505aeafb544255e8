//! `kvtoll ingest`: foreign traces into a store.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use engine::error::Result;

use super::{Exit, talk};
use crate::ingest::{OnBadRow, Options, Settings, Severity, Summary, TimeUnit, ingest};
use crate::store::Store;

/// Arguments of `kvtoll ingest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, recordings (folders), globs, or `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// The store to read into; made if missing
    #[arg(long, value_name = "STORE")]
    pub into: PathBuf,
    /// How the files are read
    #[command(flatten)]
    pub reading: Reading,
}

/// How files are read; shared with `kvtoll run`.
#[derive(Debug, Clone, clap::Args)]
pub struct Reading {
    /// The format of the files; sniffed if not given
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Unit of the files' instants, if what the format or the data say is wrong
    #[arg(long, value_name = "UNIT")]
    pub time_unit: Option<Unit>,
    /// Tokens per block of the files, if what the format or the data say is wrong
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_tokens: Option<u32>,
    /// What to do with a row that cannot be read
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    pub on_bad_row: BadRow,
    /// Ingest a file even if the store has it already
    #[arg(long)]
    pub again: bool,
    /// Replace ids that are free text (requests, sessions, tenants, segments) by hashes under this key
    #[arg(long, value_name = "KEY")]
    pub anonymize: Option<String>,
    /// How many bad rows a failure lists
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub max_errors: usize,
}

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Unit {
    /// Nanoseconds
    Ns,
    /// Microseconds
    Us,
    /// Milliseconds
    Ms,
    /// Seconds
    S,
}

impl From<Unit> for TimeUnit {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Ns => Self::Ns,
            Unit::Us => Self::Us,
            Unit::Ms => Self::Ms,
            Unit::S => Self::S,
        }
    }
}

/// What to do with a bad row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BadRow {
    /// Refuse the whole ingest
    Fail,
    /// Set it aside in `rejects` and keep the rest
    Quarantine,
}

impl Reading {
    fn options(&self) -> Options {
        let on_bad_row = match self.on_bad_row {
            BadRow::Fail => OnBadRow::Fail,
            BadRow::Quarantine => OnBadRow::Quarantine,
        };
        Options {
            format: self.format.clone(),
            on_bad_row,
            again: self.again,
            max_errors: self.max_errors,
            time_unit: self.time_unit.map(Into::into),
            block_tokens: self.block_tokens,
            anonymize: self.anonymize.clone(),
        }
    }
}

/// Reads the files and says what came of each.
pub(crate) fn read(files: &[String], into: &Path, reading: &Reading) -> Result<Vec<Summary>> {
    let is_new = !into.exists();
    let mut store = Store::open_or_create(into)?;
    let bar = talk::bar(None);
    let summaries = ingest(&mut store, files, &reading.options(), &|progress| {
        bar.set_message(format!("{}: {} rows", progress.path, progress.rows));
    });
    bar.finish_and_clear();
    if is_new && summaries.is_err() {
        take_back(into);
    }
    summaries
}

/// Removes a store that was made for files which could not be read, if nothing but its manifest and lock are in it.
fn take_back(store: &Path) {
    let is_manifest = |name: &str| {
        name == ".lock" || name.strip_prefix("manifest-").and_then(|rest| rest.strip_suffix(".json")).is_some()
    };
    let Ok(entries) = std::fs::read_dir(store) else { return };
    let entries: Vec<std::fs::DirEntry> = entries.flatten().collect();
    if entries.iter().all(|entry| entry.file_name().to_str().is_some_and(is_manifest)) {
        for entry in entries {
            let _ = std::fs::remove_file(entry.path());
        }
        let _ = std::fs::remove_dir(store);
    }
}

/// Runs `kvtoll ingest`.
pub fn run(args: &Args) -> Result<Exit> {
    for summary in read(&args.files, &args.into, &args.reading)? {
        describe(&summary);
    }
    Ok(Exit::Done)
}

/// Says what came of one file.
pub(crate) fn describe(summary: &Summary) {
    let rejected = if summary.rows_rejected > 0 {
        format!(", {} set aside in `rejects`", summary.rows_rejected)
    } else {
        String::new()
    };
    talk::note(&format!(
        "{}: {}, {} of {} rows kept{rejected} (source {})",
        summary.path, summary.format, summary.rows_out, summary.rows_in, summary.source_id
    ));
    if let Some(settings) = in_words(&summary.settings) {
        talk::note(&format!("  {settings}"));
    }
    for entry in summary.log.iter().filter(|entry| entry.severity != Severity::Info) {
        talk::note(&format!("  {}: {} ({} times)", entry.severity.name(), entry.message, entry.count));
    }
}

/// How a file was read, where there was something to choose.
fn in_words(settings: &Settings) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(unit) = settings.time_unit {
        let clock = settings.clock.map_or_else(String::new, |clock| format!(", clock `{clock}`"));
        parts.push(format!("instants in {unit}{clock}"));
    }
    if let Some(tokens) = settings.block_tokens {
        let rounding = match settings.rounding {
            Some("floor") => ", a partial last one not counted",
            Some(_) => ", a partial last one counted",
            None => "",
        };
        parts.push(format!("blocks of {tokens} tokens{rounding}"));
    }
    if let Some(scope) = settings.hash_scope {
        let kind = settings.id_kind.map_or_else(String::new, |kind| format!("{kind} "));
        let reach = if scope == "global" { "in all files" } else { "within this file only" };
        parts.push(format!("{kind}ids that mean the same {reach}"));
    }
    let by = match settings.origin.name() {
        "format" => "as the format says",
        "detected" => "as the first rows show",
        _ => "as the flags say",
    };
    (!parts.is_empty()).then(|| format!("{} ({by})", parts.join("; ")))
}

fn at_least_one(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("expected a number: {error}")),
    }
}
