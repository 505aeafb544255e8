//! One file per command. A command reads its arguments, calls the parts, and says what happened: data to standard output,
//! everything else to standard error.

pub mod cache;
pub mod calibrate;
pub mod check;
pub mod compare;
pub mod completions;
pub mod cost;
pub mod explain;
pub mod fabric;
pub mod ingest;
pub mod inspect;
pub mod list;
pub mod query;
pub mod reconcile;
mod recorded;
pub mod replay;
pub mod report;
pub mod run;
pub mod schema;
pub mod sql;
pub mod talk;
pub mod validate;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use engine::error::{Error, Result};

use crate::output::{self, Format, Outcome};

/// How a command ended that did not fail altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Exit code 0.
    Done,
    /// Part of the work failed and said so; exit code 1.
    Failed,
    /// A gate that the user set was not passed; exit code 4.
    Gate,
}

/// Writes batches to standard output, or to a file.
pub(crate) fn print(
    batches: &[RecordBatch],
    format: Format,
    max_rows: Option<usize>,
    path: Option<&Path>,
) -> Result<Exit> {
    show(batches, format, max_rows, path)?;
    Ok(Exit::Done)
}

/// As [`print`], and says whether anybody still reads.
pub(crate) fn show(
    batches: &[RecordBatch],
    format: Format,
    max_rows: Option<usize>,
    path: Option<&Path>,
) -> Result<Outcome> {
    match path.filter(|path| path.as_os_str() != "-") {
        None => {
            let mut out = std::io::stdout().lock();
            let is_terminal = out.is_terminal();
            output::write(batches, output::Options::on_stdout(format, max_rows, is_terminal), &mut out)
        }
        Some(path) => {
            let mut bytes = Vec::new();
            let options = output::Options { format, max_rows, is_terminal: false, width: 0 };
            output::write(batches, options, &mut bytes)?;
            write_file(path, &bytes)?;
            Ok(Outcome::Complete)
        }
    }
}

/// A share from above 0% to 100%, as a ratio; an error says `such_as` what.
fn share(text: &str, such_as: &str) -> Result<f64> {
    let ratio = text.trim().strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok()).map(|p| p / 100.0);
    let known = ratio.filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
    known.ok_or_else(|| Error::usage(format!("expected a share such as `{such_as}`, found `{text}`")))
}

/// In which form a table is shown, and where.
#[derive(Debug, Clone, clap::Args)]
pub struct Shown {
    /// auto, table, csv, tsv, ndjson, json, md, parquet or arrow
    /// (auto: by the file name of `--output`, else a table)
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub format: String,
    /// Write to a file
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Rows of a table at most; 0 for all
    #[arg(long, value_name = "N")]
    pub max_rows: Option<usize>,
}

impl Shown {
    /// The form that is asked for.
    ///
    /// # Errors
    /// As [`format_of`].
    pub(crate) fn format(&self) -> Result<Format> {
        format_of(&self.format, self.output.as_deref())
    }
}

/// The format of this name; `auto` is that of the output file's extension.
///
/// # Errors
/// An unknown name, and under `auto` an extension that is no format.
pub(crate) fn format_of(name: &str, output: Option<&Path>) -> Result<Format> {
    let Some(extension) = output.and_then(Path::extension).filter(|_| name == "auto") else {
        return Format::parse(name);
    };
    let extension = extension.to_string_lossy();
    let found = Format::ALL.iter().find(|(name, format)| *name == extension && *format != Format::Auto);
    found.map(|(_, format)| *format).ok_or_else(|| {
        let known = Format::ALL.iter().filter(|(_, format)| *format != Format::Auto).map(|(name, _)| *name);
        let known: Vec<String> = known.map(|name| format!("`.{name}`")).collect();
        Error::usage(format!("expected an output file that ends in {}, found `.{extension}`", known.join(", ")))
            .hint("`--format` writes any of them under any name")
    })
}

/// Writes text to standard output.
pub(crate) fn say(text: &str) -> Result<Exit> {
    output::text(text, &mut std::io::stdout().lock())?;
    Ok(Exit::Done)
}

/// Writes a file as a whole or not at all. What is there and no plain file (a device, a pipe) is written to as it is, and a
/// link keeps pointing at what it points at.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| Error::run(format!("cannot write `{}`: {error}", path.display()));
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let known = std::fs::metadata(&target).ok();
    if known.as_ref().is_some_and(|known| !known.is_file()) {
        let mut file = std::fs::OpenOptions::new().write(true).open(&target).map_err(failed)?;
        return file.write_all(bytes).map_err(failed);
    }
    let folder = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name =
        target.file_name().ok_or_else(|| Error::usage(format!("`{}` is no file name", path.display())))?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = folder.join(name);
    let write = || {
        let mut file = std::fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        if let Some(known) = known {
            file.set_permissions(known.permissions())?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, &target)
    };
    write().map_err(|error| {
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}
