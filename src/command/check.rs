//! `kvtoll check`: whether a store is what its manifest says.

use std::path::PathBuf;

use engine::error::{Error, Result};

use super::{Exit, say};
use crate::store::{Store, check};

/// Arguments of `kvtoll check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
}

/// Runs `kvtoll check`.
pub fn run(args: &Args) -> Result<Exit> {
    let store = Store::open(&args.store)?;
    let manifest = store.manifest();
    let files = manifest.tables.values().chain(manifest.runs.iter().flat_map(|run| run.tables.values()));
    let (files, rows) = files.flatten().fold((0, 0), |(files, rows), file| (files + 1, rows + file.rows));
    let (sources, runs) = (manifest.sources.len(), manifest.runs.len());
    let found = check(&store);
    if found.is_empty() {
        return say(&format!(
            "sound: {files} files with {rows} rows have their hashes and counts, and every reference of {sources} \
             sources and {runs} runs holds\n"
        ));
    }
    say(&(found.join("\n") + "\n"))?;
    let count = if found.len() == 1 { "a violation".to_owned() } else { format!("{} violations", found.len()) };
    Err(Error::data(format!("expected `{}` as its manifest says, found {count}", args.store.display()))
        .hint("ingest the sources again into a new store"))
}
