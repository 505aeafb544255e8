//! Efficiency surfaces as files, and measured operations as the rows that they are fitted to.
//!
//! A surface is one Parquet file per device, framework and operation. Each of its rows is a measured shape with its
//! efficiency; how the surface interpolates between them, what it was fitted from, under which licence, and its error are
//! in the file's metadata under `kvtoll.surface` ([`file`]). The binary carries the files of `presets/surfaces` and decodes
//! one when it is first asked for.

mod device;
mod file;
mod machine;
mod rows;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use engine::error::{Error, Result, unknown};
use engine::surface::{Errors, Surface};

pub use device::{Device, device};
pub use file::{Origin, Summary, decode, encode};
pub use machine::framework;
pub use rows::{Measured, Skewed, read, together};

use crate::embedded;

/// A surface with what is known of it.
#[derive(Debug, Clone)]
pub struct Calibrated {
    /// Device as the measurements name it.
    pub device: String,
    /// Framework, in lower case.
    pub framework: String,
    /// The surface.
    pub surface: Arc<Surface>,
    /// Where it comes from.
    pub origin: Origin,
    /// Measured rows that it was fitted to.
    pub rows: usize,
    /// Rows that were physically impossible.
    pub impossible: usize,
    /// Errors of points that were left out.
    pub errors: Errors,
}

/// Name of the file of a surface, without extension.
pub fn name(device: &str, framework: &str, op: &str) -> String {
    [device, framework, op].map(slug).join("__")
}

/// Lower case, and nothing but letters, digits and `_`.
fn slug(text: &str) -> String {
    let mut slug = String::with_capacity(text.len());
    for letter in text.to_lowercase().chars() {
        if letter.is_ascii_alphanumeric() {
            slug.push(letter);
        } else if !slug.ends_with('_') {
            slug.push('_');
        }
    }
    slug.trim_matches('_').to_owned()
}

/// What the binary carries, as far as it was asked for: it never changes, so that one decoding serves the whole process.
static SHIPPED: Mutex<BTreeMap<String, Option<Calibrated>>> = Mutex::new(BTreeMap::new());

/// Surfaces that can be asked for: those of a folder, or those that the binary carries. Each is decoded when it is first
/// asked for.
#[derive(Debug, Default)]
pub struct Library {
    folder: Option<PathBuf>,
    decoded: BTreeMap<String, Option<Calibrated>>,
}

impl Library {
    /// The surfaces of a folder, or the shipped ones.
    pub fn of(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_owned), decoded: BTreeMap::new() }
    }

    /// Names of all surfaces, in order.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let Some(folder) = &self.folder else {
            return Ok(embedded::SURFACES.iter().map(|(name, _)| (*name).to_owned()).collect());
        };
        let failed = |error: std::io::Error| {
            Error::usage(format!("cannot read the folder of surfaces `{}`: {error}", folder.display()))
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|found| found == "parquet") {
                names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Refuses a folder that holds no surface: nothing would be measured, and nobody told.
    fn check(&self) -> Result<()> {
        match &self.folder {
            Some(folder) if self.names()?.is_empty() => {
                let message =
                    format!("expected surfaces (`*.parquet`) in the folder `{}`, found none", folder.display());
                Err(Error::usage(message)
                    .hint("`kvtoll calibrate` makes them; without `--surfaces` the shipped ones are taken"))
            }
            _ => Ok(()),
        }
    }

    /// The surface of this name; `None` where there is no such file.
    ///
    /// # Errors
    /// A file that is no surface.
    pub fn find(&mut self, name: &str) -> Result<Option<&Calibrated>> {
        if !self.decoded.contains_key(name) {
            let found = self.load(name)?;
            self.decoded.insert(name.to_owned(), found);
        }
        Ok(self.decoded.get(name).and_then(Option::as_ref))
    }

    /// The surface of this name, which must exist.
    ///
    /// # Errors
    /// An unknown name, a file that is no surface.
    pub fn get(&mut self, name: &str) -> Result<&Calibrated> {
        let names = self.names()?;
        self.find(name)?.ok_or_else(|| unknown("surface", name, names.iter().map(String::as_str)))
    }

    /// What the surface of this name says of itself; its points are not read.
    ///
    /// # Errors
    /// An unknown name, a file that is no surface.
    pub fn summary(&self, name: &str) -> Result<Summary> {
        let names = self.names()?;
        let file = self.open(name)?.ok_or_else(|| unknown("surface", name, names.iter().map(String::as_str)))?;
        file::summary(&file, name)
    }

    fn load(&self, name: &str) -> Result<Option<Calibrated>> {
        let decoded = || self.open(name)?.map(|file| decode(&file, name)).transpose();
        if self.folder.is_some() {
            return decoded();
        }
        let known = SHIPPED.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = decoded()?;
        SHIPPED.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), found.clone());
        Ok(found)
    }

    /// The bytes of a surface's file; `None` where there is no such file.
    fn bytes(&self, name: &str) -> Result<Option<Cow<'static, [u8]>>> {
        let Some(folder) = &self.folder else { return Ok(shipped(name).map(Cow::Borrowed)) };
        let read = |path: PathBuf| std::fs::read(&path).map(Cow::Owned).map_err(|error| unread(&path, &error));
        in_folder(folder, name).map(read).transpose()
    }

    fn open(&self, name: &str) -> Result<Option<File>> {
        let Some(folder) = &self.folder else {
            return shipped(name).map(|bytes| file::on_disk(bytes, name)).transpose();
        };
        let open = |path: PathBuf| File::open(&path).map_err(|error| unread(&path, &error));
        in_folder(folder, name).map(open).transpose()
    }
}

/// The bytes of a surface that the binary carries.
fn shipped(name: &str) -> Option<&'static [u8]> {
    embedded::SURFACES.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

/// The file of a surface in a folder, if there is one.
fn in_folder(folder: &Path, name: &str) -> Option<PathBuf> {
    Some(folder.join(format!("{name}.parquet"))).filter(|path| path.is_file())
}

fn unread(path: &Path, error: &std::io::Error) -> Error {
    Error::data(format!("cannot read `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests;
