//! The recordings of a store, or of a folder, in memory.

use std::path::Path;

use engine::error::Result;
use engine::recording::{Recording, Tables, recordings};
use engine::schema::canonical::{ATTENTION, KV_STATS, KV_VECTORS, PREFILL_SCORES, QUERIES, RECORDINGS, REQUESTS};

use crate::ingest::{Options, ingest};
use crate::store::Store;

/// All recordings of a store.
pub(super) fn load(store: &Store) -> Result<Vec<Recording>> {
    let found = store.read(&RECORDINGS)?;
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let all = arrow::compute::concat_batches(&first.schema(), &found)?;
    if all.num_rows() == 0 {
        return Ok(Vec::new());
    }
    recordings(&Tables {
        recordings: &all,
        requests: &store.read(&REQUESTS)?,
        attention: &store.read(&ATTENTION)?,
        prefill_scores: &store.read(&PREFILL_SCORES)?,
        kv_stats: &store.read(&KV_STATS)?,
        queries: &store.read(&QUERIES)?,
        kv_vectors: &store.read(&KV_VECTORS)?,
    })
}

/// The recordings of a store, or the one of a folder with a `recording.json`, which is read through a store that is
/// removed afterwards, and so is checked as any other.
pub(super) fn load_any(path: &Path) -> Result<Vec<Recording>> {
    let is_file = path.file_name().is_some_and(|name| name == "recording.json");
    if !is_file && !path.join("recording.json").exists() {
        return load(&Store::open(path)?);
    }
    let failed = |error: std::io::Error| engine::error::Error::run(format!("cannot make a temporary folder: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let mut store = Store::open_or_create(&folder.path().join("store"))?;
    ingest(&mut store, &[path.to_string_lossy().into_owned()], &Options::standard(), &|_| {})?;
    load(&store)
}

/// The recordings with the mass of blocks split over their tokens, where that is wanted.
pub(super) fn split(recordings: Vec<Recording>, is_wanted: bool) -> Result<Vec<Recording>> {
    if !is_wanted {
        return Ok(recordings);
    }
    recordings.into_iter().map(Recording::split_by_column_sum).collect()
}
