//! Files that are read beside the one that was named: `meta.yaml` of a profile, the other tables of an export, the arrays
//! of a map.
//!
//! Rows depend on them, so that they are part of what identifies a source: its hash is that of the named file alone where
//! nothing else was read, else a hash over the hashes of all.

use std::path::Path;

use engine::error::{Error, Result};
use sha2::{Digest, Sha256};

use super::source::{hash_of, regular};
use crate::store::{Companion, hex};

/// A companion by its name relative to the folder of the named file.
///
/// # Errors
/// A file that is no regular one, or cannot be read.
pub(super) fn companion(name: &str, path: &Path) -> Result<Companion> {
    regular(path)?;
    let sha256 = hash_of(path).ok_or_else(|| Error::data(format!("cannot read `{}`", path.display())))?;
    Ok(Companion { name: name.to_owned(), sha256 })
}

/// The hash of a source: of the named file, and of each companion its name and hash, in the order of the names.
pub(super) fn hash(own: &str, companions: &[Companion]) -> String {
    if companions.is_empty() {
        return own.to_owned();
    }
    let mut sorted: Vec<&Companion> = companions.iter().collect();
    sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut digest = Sha256::new();
    digest.update(format!("{own}\n"));
    for Companion { name, sha256 } in sorted {
        digest.update(format!("{name}\n{sha256}\n"));
    }
    hex(&digest.finalize())
}

/// As `sources` has them: names and hashes, one a line.
pub(super) fn listed(companions: &[Companion]) -> Option<String> {
    let lines: Vec<String> = companions.iter().map(|one| format!("{} {}", one.sha256, one.name)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Whether the companions of a source still stand beside the file at `path`, unchanged.
pub(super) fn unchanged(path: &str, companions: &[Companion]) -> bool {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    companions.iter().all(|one| hash_of(folder.join(&one.name)).as_deref() == Some(&one.sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_covers_names_and_contents() {
        let one = |name: &str, hash: &str| Companion { name: name.to_owned(), sha256: hash.to_owned() };
        assert_eq!(hash("own", &[]), "own");
        let both = hash("own", &[one("a", "1"), one("b", "2")]);
        // By the coreutils: printf 'own\na\n1\nb\n2\n' | sha256sum
        assert_eq!(both, "8ca558fde32076d111404d8637eb28c71fd8252f001b1e8a8e4d65afbaafa40d");
        assert_eq!(hash("own", &[one("b", "2"), one("a", "1")]), both);
        for other in [vec![one("a", "1")], vec![one("a", "1"), one("b", "3")], vec![one("a", "1"), one("c", "2")]] {
            assert_ne!(hash("own", &other), both);
        }
        assert_eq!(listed(&[one("a", "1"), one("b", "2")]).as_deref(), Some("1 a\n2 b"));
        assert_eq!(listed(&[]), None);
    }
}
