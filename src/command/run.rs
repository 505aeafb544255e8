//! `kvtoll run`: ingest, replay and report in one go.

use std::path::PathBuf;

use engine::error::Result;

use super::replay::{Wanted, carry_out};
use super::{Exit, ingest, print, report};
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
    #[arg(long, value_name = "PATH", default_value = "report.html")]
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
    for summary in ingest::read(&args.files, &args.into, &args.reading)? {
        ingest::describe(&summary);
    }
    let mut store = Store::open(&args.into)?;
    let Some(done) = carry_out(&mut store, &args.wanted)? else { return Ok(Exit::Done) };
    let session = sql::session(&store, Some(&done.run))?;
    print(&sql::run_named(&session, "summary", &[])?, Format::Auto, None, None)?;
    report::write(&session, &again(args), &args.output)?;
    Ok(done.exit)
}

/// The command that does the same again, without what depends on this machine.
fn again(args: &Args) -> String {
    let mut words = vec!["kvtoll run".to_owned()];
    words.extend(args.files.iter().cloned());
    words.push("--into STORE --output report.html".to_owned());
    words.extend(args.wanted.words());
    words.join(" ")
}
