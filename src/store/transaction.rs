//! A write: files under temporary names, then one manifest.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::RecordBatch;
use engine::error::{Error, Result};
use engine::schema::{self, Scope, Table};

use super::manifest::{self, FileEntry, Manifest, RunEntry, SourceEntry};
use super::parquet_file::{Part, Written};
use super::{Store, failed};

/// How long a temporary directory without a lock is left alone: its writer may be about to lock it.
const GRACE: Duration = Duration::from_mins(1);

/// A write that is not yet part of the store. Dropped without [`Transaction::commit`], it leaves nothing.
#[derive(Debug)]
pub struct Transaction<'a> {
    store: &'a mut Store,
    scratch: Option<Scratch>,
    /// By run (empty for ingested rows) and table, in this order, so that nothing depends on the order of calls.
    parts: BTreeMap<(String, &'static str), Parts>,
    sources: Vec<SourceEntry>,
}

/// The files of one table.
#[derive(Debug, Default)]
struct Parts {
    done: Vec<Written>,
    open: Option<Part>,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(store: &'a mut Store) -> Self {
        Self { store, scratch: None, parts: BTreeMap::new(), sources: Vec::new() }
    }

    /// The state on which this write builds.
    pub fn manifest(&self) -> &Manifest {
        &self.store.manifest
    }

    /// Adds ingested rows to a table. Missing nullable columns become null; extra columns are kept behind the others.
    ///
    /// # Errors
    /// Columns that do not fit the table; a disk that cannot be written.
    pub fn append(&mut self, table: &'static Table, batches: &[RecordBatch]) -> Result<()> {
        self.write("", table, batches)
    }

    /// Adds rows to a table of a run. A run that already exists is compared when the write is committed. A table without
    /// batches is written as an empty file, so that SQL finds it.
    ///
    /// # Errors
    /// As [`Transaction::append`], and a run id that is no plain name.
    pub fn write_run(&mut self, run: &str, table: &'static Table, batches: &[RecordBatch]) -> Result<()> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if run.is_empty() || !run.bytes().all(plain) {
            return Err(Error::run(format!("expected a run id of letters, digits, `-` and `_`, found `{run}`")));
        }
        if batches.is_empty() {
            return self.write(run, table, &[RecordBatch::new_empty(table.arrow())]);
        }
        self.write(run, table, batches)
    }

    /// Adds an ingested file to the manifest.
    pub fn add_source(&mut self, source: SourceEntry) {
        self.sources.push(source);
    }

    /// Makes the write part of the store. Nothing to write leaves the store as it is.
    ///
    /// # Errors
    /// A store that another writer has changed since it was opened; a run that exists with other contents; a disk that
    /// cannot be written. The store is then as it was.
    pub fn commit(mut self) -> Result<()> {
        let mut finished: Vec<(String, &'static str, Vec<Written>)> = Vec::new();
        for ((run, table), parts) in std::mem::take(&mut self.parts) {
            let mut files = parts.done;
            if let Some(open) = parts.open {
                files.push(open.finish()?);
            }
            finished.push((run, table, files));
        }
        let asked: Vec<String> = finished.iter().map(|(run, ..)| run.clone()).filter(|run| !run.is_empty()).collect();
        let finished = without_known_runs(&self.store.manifest, finished)?;
        // A run that is asked for again has nothing new to write, and becomes the latest.
        let last = self.store.manifest.runs.last().map(|run| run.id.as_str());
        let nothing_new = finished.is_empty() && self.sources.is_empty();
        if nothing_new && asked.last().is_none_or(|run| Some(run.as_str()) == last) {
            return Ok(());
        }
        let _lock = Lock::exclusive(&self.store.root)?;
        self.check_unchanged()?;
        let mut manifest = self.publish(finished)?;
        manifest.runs.sort_by_key(|run| asked.contains(&run.id));
        self.link_manifest(manifest)
    }

    /// Writes a manifest that names no new files.
    pub(super) fn commit_manifest(mut self, manifest: Manifest) -> Result<()> {
        let _lock = Lock::exclusive(&self.store.root)?;
        self.check_unchanged()?;
        self.link_manifest(manifest)
    }

    fn write(&mut self, run: &str, table: &'static Table, batches: &[RecordBatch]) -> Result<()> {
        for batch in batches {
            let batch = super::canonical(table, batch, true)?;
            let parts = self.parts.entry((run.to_owned(), table.name)).or_default();
            let same = parts.open.as_ref().is_some_and(|part| part.schema() == batch.schema_ref());
            if !same {
                if let Some(open) = parts.open.take() {
                    parts.done.push(open.finish()?);
                }
                if self.scratch.is_none() {
                    self.scratch = Some(Scratch::create(&self.store.root)?);
                }
                let scratch = self.scratch.as_ref().ok_or_else(|| Error::run("no temporary directory"))?;
                let name = format!("{run}.{}.{}.parquet", table.name, parts.done.len());
                parts.open = Some(Part::create(scratch.path.join(name), batch.schema())?);
            }
            if let Some(open) = &mut parts.open {
                open.append(&batch)?;
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        let found = manifest::latest(&self.store.root)?.map_or(0, |latest| latest.number);
        if found == self.store.manifest.number {
            return Ok(());
        }
        Err(changed(&self.store.root))
    }

    /// Links the written files to their names; the next manifest.
    fn publish(&self, finished: Vec<(String, &'static str, Vec<Written>)>) -> Result<Manifest> {
        let root = &self.store.root;
        let mut next = self.store.manifest.clone();
        let too_high = || Error::data(format!("the manifest's number {} is the highest there is", next.number));
        next.number = next.number.checked_add(1).ok_or_else(too_high)?;
        next.sources.extend(self.sources.iter().cloned());
        for (run, table, files) in finished {
            let known = if run.is_empty() {
                next.tables.entry(table.to_owned()).or_default()
            } else {
                let at = next.runs.iter().position(|entry| entry.id == run).unwrap_or(next.runs.len());
                if at == next.runs.len() {
                    next.runs.push(RunEntry { id: run.clone(), tables: BTreeMap::new() });
                }
                next.runs[at].tables.entry(table.to_owned()).or_default()
            };
            let directory = if run.is_empty() { table.to_owned() } else { format!("runs/{run}/{table}") };
            let full = root.join(&directory);
            fs::create_dir_all(&full).map_err(|error| failed("make the directory", &full, &error))?;
            for file in files {
                let path = format!("{directory}/part-{:05}.parquet", known.len());
                link(&file.path, &root.join(&path), root)?;
                known.push(FileEntry { path, rows: file.rows, bytes: file.bytes, sha256: file.sha256 });
            }
            for made in full.ancestors().take_while(|made| made.starts_with(root)) {
                sync_directory(made);
            }
        }
        Ok(next)
    }

    fn link_manifest(&mut self, manifest: Manifest) -> Result<()> {
        let root = self.store.root.clone();
        if self.scratch.is_none() {
            self.scratch = Some(Scratch::create(&root)?);
        }
        let scratch = self.scratch.as_ref().ok_or_else(|| Error::run("no temporary directory"))?;
        let path = scratch.path.join(manifest.file_name());
        let mut text = serde_json::to_vec_pretty(&manifest).map_err(|error| Error::run(error.to_string()))?;
        text.push(b'\n');
        let write = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        link(&path, &root.join(manifest.file_name()), &root)?;
        sync_directory(&root);
        self.store.manifest = manifest;
        Ok(())
    }
}

/// The finished files without those of runs that the store already has with the same contents.
fn without_known_runs(
    manifest: &Manifest,
    finished: Vec<(String, &'static str, Vec<Written>)>,
) -> Result<Vec<(String, &'static str, Vec<Written>)>> {
    let mut kept = Vec::new();
    let mut found: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for (run, table, files) in finished {
        if manifest.run(&run).is_none() {
            kept.push((run, table, files));
        } else {
            let hashes = files.into_iter().map(|file| file.sha256).collect();
            found.entry(run).or_default().insert(table.to_owned(), hashes);
        }
    }
    for (id, tables) in &found {
        let known: BTreeMap<String, Vec<String>> = manifest
            .run(id)
            .into_iter()
            .flat_map(|run| &run.tables)
            .map(|(table, files)| (table.clone(), files.iter().map(|file| file.sha256.clone()).collect()))
            .collect();
        if &known != tables {
            return Err(Error::run(format!("expected run `{id}` with the contents it has, found others"))
                .hint("a run's id is the hash of its inputs: remove the store, or report this as a bug"));
        }
    }
    Ok(kept)
}

/// A temporary directory of a writer at work; `lock` in it is locked as long as the writer lives.
#[derive(Debug)]
struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    fn create(root: &Path) -> Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let path = loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = root.join(format!(".tmp-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => break path,
                // Left by a process of the same number on another machine, or long ago.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("make the directory", &path, &error)),
            }
        };
        let early = path.join("lock.new");
        let lock = File::create_new(&early).and_then(|file| {
            file.lock()?;
            fs::rename(&early, path.join("lock"))?;
            Ok(file)
        });
        let lock = lock.map_err(|error| failed("lock", &path, &error))?;
        Ok(Self { path, _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next writer.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The lock that is held while a manifest is replaced or leftovers are removed.
struct Lock {
    _file: File,
}

impl Lock {
    fn file(root: &Path) -> Result<File> {
        let path = root.join(".lock");
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        opened.map_err(|error| failed("open", &path, &error))
    }

    fn exclusive(root: &Path) -> Result<Self> {
        let file = Self::file(root)?;
        file.lock().map_err(|error| failed("lock", root, &error))?;
        Ok(Self { _file: file })
    }
}

/// Gives `from` the second name `to`, which must not exist.
fn link(from: &Path, to: &Path, root: &Path) -> Result<()> {
    fs::hard_link(from, to).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => changed(root),
        _ => failed("link", to, &error).hint("a store needs a file system with hard links"),
    })
}

fn changed(root: &Path) -> Error {
    Error::run(format!("another process has changed `{}` since it was opened; nothing was written", root.display()))
        .hint("run the command again")
}

/// Makes the names in a directory durable, where the system can.
fn sync_directory(path: &Path) {
    if let Ok(directory) = File::open(path) {
        let _ = directory.sync_all();
    }
}

/// Removes what crashed writers left: temporary directories that nobody locks, and Parquet files that no manifest names.
/// What cannot be removed, or may belong to a writer at work, stays.
pub(super) fn sweep(root: &Path) {
    let Ok(file) = Lock::file(root) else { return };
    if file.try_lock().is_err() {
        return;
    }
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(".tmp-") && abandoned(&path) {
            let _ = fs::remove_dir_all(&path);
        }
    }
    // Under the lock no writer is between its files and its manifest, so an unnamed file has no owner.
    if let Ok(Some(manifest)) = manifest::latest(root) {
        sweep_parts(root, &manifest);
    }
}

/// Removes unnamed `part-<nnnnn>.parquet` files where a store keeps its own, and nowhere else: whatever people put below a
/// store, another store included, stays.
fn sweep_parts(root: &Path, manifest: &Manifest) {
    let tables = |scope| schema::ALL.iter().filter(move |table| table.scope == scope).map(|table| table.name);
    for table in tables(Scope::Store) {
        sweep_folder(root, &root.join(table), manifest);
    }
    let runs = fs::read_dir(root.join("runs")).into_iter().flatten().filter_map(std::result::Result::ok);
    for run in runs {
        for table in tables(Scope::Run) {
            sweep_folder(root, &run.path().join(table), manifest);
        }
    }
}

fn sweep_folder(root: &Path, folder: &Path, manifest: &Manifest) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(std::result::Result::ok) {
        let path = entry.path();
        let below: Vec<_> =
            path.strip_prefix(root).unwrap_or(&path).iter().map(|part| part.to_string_lossy()).collect();
        if is_part(&entry.file_name().to_string_lossy()) && !manifest.names(&below.join("/")) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_part(name: &str) -> bool {
    let number = name.strip_prefix("part-").and_then(|rest| rest.strip_suffix(".parquet"));
    number.is_some_and(|digits| digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

fn abandoned(directory: &Path) -> bool {
    match File::options().write(true).open(directory.join("lock")) {
        Ok(file) => match file.try_lock() {
            Ok(()) => true,
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
        },
        Err(_) => fs::metadata(directory)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > GRACE)),
    }
}
