//! What every fuzz target does: read the bytes under its format to the end, bad rows counted and nothing kept.

use engine::error::Kind;
use kvtoll::ingest::{Options, examine};

/// Reads the bytes as a trace of this format.
///
/// # Panics
/// If the adapter panicked, if an error is not one of the data, or if rows in are not rows out and rejects: a finding.
pub fn feed(format: &str, data: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("input");
    if format == "recording" {
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::write(path.join("recording.json"), data).expect("a file");
    } else {
        std::fs::write(&path, data).expect("a file");
        std::fs::write(folder.path().join("meta.yaml"), "gpu: x\ntp_degrees: [1]\n").expect("a file");
    }
    let options = Options { format: Some(format.to_owned()), ..Options::standard() };
    match examine(path.to_str().expect("a path in UTF-8"), &options) {
        Ok(found) => {
            assert_eq!(found.rows_in, found.rows_out + found.rows_rejected, "rows in are not rows out and rejects");
        }
        Err(error) => {
            assert_eq!(error.kind(), Kind::Data, "{error}");
            assert!(!error.to_string().contains("its adapter failed"), "{error}");
        }
    }
}
