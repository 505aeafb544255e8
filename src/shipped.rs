//! How far what ships is from measurements: the errors that the shipped surfaces state of themselves, and those of replays of
//! measured runs.

use engine::error::{Error, Result};
use engine::replay::Shipped;

use crate::surfaces::Library;

/// What `kvtoll validate serving` found on measured runs: a table, since the runs take too long for every report. A test replays
/// the one that ships, on the RTX 4090, and holds its rows against it.
const SERVING: &str = include_str!("../presets/validation/serving.tsv");

/// One row for each shipped surface, each of its points estimated without itself, as `kvtoll calibrate` found when it was made;
/// then one for each figure of the replayed runs.
///
/// # Errors
/// A shipped surface that cannot be read, a row of the table that is none.
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
    rows.extend(serving()?);
    Ok(rows)
}

/// The figures of the replayed runs. Lines that begin with `#` are comments, and the first other one is the header.
pub(crate) fn serving() -> Result<Vec<Shipped>> {
    let lines = SERVING.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.skip(1).map(|line| row(line).ok_or_else(|| Error::run(format!("serving.tsv: found `{line}`")))).collect()
}

fn row(line: &str) -> Option<Shipped> {
    let cells: Vec<&str> = line.split('\t').collect();
    let [subject, rows, median, p90, source] = cells[..] else { return None };
    Some(Shipped {
        kind: "serving".to_owned(),
        subject: subject.to_owned(),
        rows: rows.parse().ok()?,
        median_error_ratio: median.parse().ok()?,
        p90_error_ratio: if p90.is_empty() { None } else { Some(p90.parse().ok()?) },
        source: source.to_owned(),
    })
}
