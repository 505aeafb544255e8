//! How far what ships is from measurements: the errors that the shipped surfaces state of themselves.

use engine::error::Result;
use engine::replay::Shipped;

use crate::surfaces::Library;

/// One row for each shipped surface: each of its points estimated without itself, as `kvtoll calibrate` found when it was made.
///
/// # Errors
/// A shipped surface that cannot be read.
pub fn validation() -> Result<Vec<Shipped>> {
    let library = Library::of(None);
    let mut rows = Vec::new();
    for name in library.names()? {
        let said = library.summary(&name)?;
        rows.push(Shipped {
            kind: "kernels".to_owned(),
            subject: name,
            rows: said.rows as u64,
            median_error_ratio: said.errors.median,
            p90_error_ratio: Some(said.errors.p90),
            source: said.origin.origin,
        });
    }
    Ok(rows)
}
