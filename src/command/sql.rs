//! `kvtoll sql`: SQL over a store, from the command line, from a file, or at a prompt.

mod complete;
mod editor;
mod keys;
mod prompt;

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use engine::error::{Error, Result};

use super::query::pair;
use super::replay::by_sql;
use super::{Exit, Shown, show, talk};
use crate::output::{Format, Outcome};
use crate::sql;
use crate::store::Store;

/// Arguments of `kvtoll sql`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
    /// Statements to run, with `;` between them; without `-c` and `-f` there is a prompt
    #[arg(short, long, value_name = "SQL", conflicts_with = "file")]
    pub command: Option<String>,
    /// A file of statements to run, `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// A value for `$name` in the statements, `name=value`
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub params: Vec<String>,
    /// The run to ask; the latest if not given
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// Runs `kvtoll sql`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    let params: Result<Vec<(String, String)>> = args.params.iter().map(|param| pair(param)).collect();
    let params = params?;
    let text = match (&args.command, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read(path)?,
        (None, None) => {
            let is_manned = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
            if !is_manned {
                return Err(Error::usage("expected `-c SQL` or `-f FILE` where nobody can type, found neither")
                    .hint("`-f -` reads statements from standard input"));
            }
            return prompt::run(args, format, &params);
        }
    };
    let script = sql::script(&text);
    if script.statements.is_empty() {
        return Err(Error::usage("expected a statement, found none"));
    }
    let is_one_file = args.shown.output.is_some() || matches!(format, Format::Parquet | Format::Arrow);
    if is_one_file && script.statements.len() > 1 {
        let found = script.statements.len();
        return Err(Error::usage(format!("expected one statement for a file, found {found}"))
            .hint("write one result at a time, or all of them as text to standard output"));
    }
    let session = open(&args.store, args.run.as_deref())?;
    for (at, statement) in script.statements.iter().enumerate() {
        let batches = sql::query(&session, &statement.placed(), &params)?;
        if at > 0 && matches!(format, Format::Auto | Format::Table | Format::Md) {
            super::say("\n")?;
        }
        if show(&batches, format, args.shown.max_rows, args.shown.output.as_deref())? == Outcome::Closed {
            break;
        }
    }
    Ok(Exit::Done)
}

/// A session that can replay, on a run of the store.
fn open(store: &Path, run: Option<&str>) -> Result<sql::Session> {
    let session = sql::session_that_replays(&Store::open(store)?, run, by_sql)?;
    if session.run().is_none() {
        talk::note("the store has no run yet, so the tables of a run are empty: `kvtoll replay` makes one");
    }
    Ok(session)
}

/// The text of a file, or of standard input where it is named.
fn read(path: &Path) -> Result<String> {
    if path.as_os_str() != "-" {
        return std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("cannot read the statements `{}`: {error}", path.display())));
    }
    if std::io::stdin().is_terminal() {
        return Err(Error::usage("expected statements on standard input, found a terminal")
            .hint("leave out `-f -` for a prompt, or give the statements with `-c`"));
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map(|_| text).map_err(|error| Error::usage(format!("cannot read standard input as text: {error}")))
}
