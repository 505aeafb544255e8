//! The manifest: what a store holds, as JSON, one numbered file per state.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engine::error::{Error, Result};
use engine::schema;
use serde::{Deserialize, Serialize};

use crate::wording;

/// One state of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Number of the state; 1 is the empty store.
    pub number: u64,
    /// Version of the table layouts, `engine::schema::VERSION`.
    pub schema: u32,
    /// The ingested files, by id.
    pub sources: Vec<SourceEntry>,
    /// The files of each ingested table, in the order in which they were written.
    pub tables: BTreeMap<String, Vec<FileEntry>>,
    /// The runs, oldest first.
    pub runs: Vec<RunEntry>,
}

/// An ingested file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// Number of the source within the store, from 0.
    pub id: u32,
    /// The path as given on the command line.
    pub path: String,
    /// The adapter that read it.
    pub format: String,
    /// SHA-256 in hex: of its bytes, or of its hash and those of its companions.
    pub sha256: String,
    /// SHA-256 of its bytes alone, where it has companions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_sha256: Option<String>,
    /// Files that were read with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub companions: Vec<Companion>,
    /// Its size on disk in bytes.
    pub bytes: u64,
    /// Rows found.
    pub rows_in: u64,
    /// Rows kept.
    pub rows_out: u64,
    /// Rows set aside in `rejects`.
    pub rows_rejected: u64,
}

/// A file that was read beside an ingested one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Companion {
    /// Its path relative to the folder of the ingested file.
    pub name: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// One Parquet file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path below the store, with `/` between the parts.
    pub path: String,
    /// Its rows.
    pub rows: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

/// What a replay wrote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEntry {
    /// The hash of its inputs.
    pub id: String,
    /// The files of each of its tables.
    pub tables: BTreeMap<String, Vec<FileEntry>>,
}

impl RunEntry {
    /// Rows of a table of the run.
    pub fn rows(&self, table: &str) -> u64 {
        self.tables.get(table).map_or(0, |files| files.iter().map(|file| file.rows).sum())
    }
}

impl Manifest {
    /// The state before the first manifest.
    pub(super) fn empty() -> Self {
        Self { number: 0, schema: schema::VERSION, sources: Vec::new(), tables: BTreeMap::new(), runs: Vec::new() }
    }

    /// The first manifest: an empty store.
    pub(super) fn first() -> Self {
        Self { number: 1, ..Self::empty() }
    }

    /// Rows of an ingested table.
    pub fn rows(&self, table: &str) -> u64 {
        self.tables.get(table).map_or(0, |files| files.iter().map(|file| file.rows).sum())
    }

    /// The run of this id.
    pub fn run(&self, id: &str) -> Option<&RunEntry> {
        self.runs.iter().find(|run| run.id == id)
    }

    /// Whether a file of this path below the store belongs to this state.
    pub(super) fn names(&self, path: &str) -> bool {
        let of_tables = self.tables.values().flatten();
        of_tables.chain(self.runs.iter().flat_map(|run| run.tables.values().flatten())).any(|file| file.path == path)
    }

    /// Its file name.
    pub(super) fn file_name(&self) -> String {
        format!("manifest-{}.json", self.number)
    }
}

/// What manifests of all versions have in common.
#[derive(Deserialize)]
struct Version {
    schema: u32,
}

/// The manifest with the highest number below `root`, if there is one.
///
/// # Errors
/// A manifest that cannot be read or belongs to another schema version.
pub(super) fn latest(root: &Path) -> Result<Option<Manifest>> {
    let Ok(entries) = fs::read_dir(root) else { return Ok(None) };
    let number = entries
        .filter_map(std::result::Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("manifest-")?.strip_suffix(".json")?.parse::<u64>().ok()
        })
        .max();
    let Some(number) = number else { return Ok(None) };
    let path = root.join(format!("manifest-{number}.json"));
    let damaged = |why: String| {
        Error::data(format!("`{}` is no manifest of a store: {why}", path.display())).hint(
            "bring the file back from a copy, or ingest again into a new store; the manifest of the next lower number is \
             the store before its last write",
        )
    };
    let text = fs::read(&path).map_err(|error| damaged(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|_| damaged("expected text in UTF-8, found other bytes".to_owned()))?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let wrong = |error: Error| damaged(error.to_string());
    // The version comes first: a manifest of another version may have another shape.
    let version: Version = wording::json(&text, &file, 1).map_err(wrong)?;
    if version.schema != schema::VERSION {
        return Err(Error::data(format!(
            "expected schema version {} in `{}`, found {}",
            schema::VERSION,
            path.display(),
            version.schema
        ))
        .hint("ingest the files again into a new store"));
    }
    let manifest: Manifest = wording::json(&text, &file, 1).map_err(wrong)?;
    if manifest.number != number {
        return Err(damaged(format!("expected number {number} in it, found {}", manifest.number)));
    }
    Ok(Some(manifest))
}
