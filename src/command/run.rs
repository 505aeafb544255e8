//! `kvtoll run`: ingest, replay and report in one go.

use std::path::PathBuf;

use engine::error::Result;

use super::replay::{Wanted, carry_out, quoted};
use super::{Exit, ingest, print, report, talk};
use crate::ingest::{TimeUnit, known_source};
use crate::output::Format;
use crate::sql;
use crate::store::Store;

/// Arguments of `kvtoll run`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files, recordings (folders), globs, or `-` for standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<String>,
    /// The store to read into; made if missing, and files that it has already are not read twice
    #[arg(long, value_name = "STORE")]
    pub into: PathBuf,
    /// The HTML file; the JSON goes beside it
    #[arg(short, long, value_name = "PATH", default_value = "report.html")]
    pub output: PathBuf,
    /// How the files are read
    #[command(flatten)]
    pub reading: ingest::Reading,
    /// What to replay
    #[command(flatten)]
    pub wanted: Wanted,
}

/// Runs `kvtoll run`.
pub fn run(args: &Args) -> Result<Exit> {
    // A typo must not leave a store behind, so everything that can be wrong without the data is looked at first.
    args.wanted.check()?;
    if args.wanted.dry_run {
        return args.wanted.describe();
    }
    let files = new_files(args)?;
    if !files.is_empty() {
        for summary in ingest::read(&files, &args.into, &args.reading)? {
            ingest::describe(&summary);
        }
    }
    let mut store = Store::open(&args.into)?;
    let Some(done) = carry_out(&mut store, &args.wanted)? else { return Ok(Exit::Done) };
    let session = sql::session(&store, Some(&done.run))?;
    print(&sql::run_named(&session, "headline", &[])?, Format::Auto, None, None)?;
    report::write(&session, &again(args), &args.output)?;
    Ok(done.exit)
}

/// The files that the store does not have yet; with `--again` all of them.
fn new_files(args: &Args) -> Result<Vec<String>> {
    let files = crate::ingest::expand(&args.files)?;
    if args.reading.again || !args.into.exists() {
        return Ok(files);
    }
    let store = Store::open_or_create(&args.into)?;
    let mut new = Vec::new();
    for file in files {
        match known_source(&store, &file) {
            Some(source) => talk::note(&format!("{file}: in the store already (source {})", source.id)),
            None => new.push(file),
        }
    }
    Ok(new)
}

/// The command that does the same again, without what depends on this machine.
fn again(args: &Args) -> String {
    let mut words = vec!["kvtoll run".to_owned()];
    words.extend(args.files.iter().map(|file| quoted(file)));
    if let Some(format) = &args.reading.format {
        words.push(format!("--format {}", quoted(format)));
    }
    if args.reading.on_bad_row == ingest::BadRow::Quarantine {
        words.push("--on-bad-row quarantine".to_owned());
    }
    if let Some(unit) = args.reading.time_unit {
        words.push(format!("--time-unit {}", TimeUnit::from(unit).name()));
    }
    if let Some(tokens) = args.reading.block_tokens {
        words.push(format!("--block-tokens {tokens}"));
    }
    words.push("--into STORE --output report.html".to_owned());
    words.extend(args.wanted.words());
    words.join(" ")
}
