//! `kvtoll compare`: what changed from one run to another, and gates on it.

mod gate;

use std::path::{Path, PathBuf};

use engine::error::{Error, Result};

use self::gate::{Change, Gate, Looked};
use super::{Exit, Shown, print, talk};
use crate::output::{Value, value};
use crate::sql;
use crate::store::Store;

/// Arguments of `kvtoll compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run to compare with: a store (its latest run), `STORE/runs/RUN`, or with `--store` the id of a run
    #[arg(value_name = "BASE")]
    pub base: String,
    /// The run that may have changed, written alike
    #[arg(value_name = "RUN")]
    pub run: String,
    /// The store in which both are ids of runs; the first four characters of an id will do
    #[arg(long, value_name = "STORE")]
    pub store: Option<PathBuf>,
    /// Exit with code 4 where this holds for any scenario, such as `p99_itl > +5%`, `usd_total >= +10` or
    /// `hit_tokens_ratio < 0.4`; may be repeated
    #[arg(long, value_name = "GATE")]
    pub fail_if: Vec<String>,
    /// Only this figure
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Figures that stayed the same too
    #[arg(long)]
    pub all: bool,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// Runs `kvtoll compare`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    let gates: Vec<Gate> = args.fail_if.iter().map(|text| Gate::parse(text)).collect::<Result<_>>()?;
    let base = place(&args.base, args.store.as_deref());
    let run = place(&args.run, args.store.as_deref());
    let (base_store, store) = (Store::open(&base.0)?, Store::open(&run.0)?);
    for (store, (path, _)) in [(&base_store, &base), (&store, &run)] {
        if store.runs().is_empty() {
            return Err(Error::run(format!("expected a run to compare, found none in `{}`", path.display()))
                .hint("`kvtoll replay` makes one"));
        }
    }
    let session = sql::session_beside(&store, run.1.as_deref(), (&base_store, base.1.as_deref()))?;
    let given = |name: &str, value: String| (name.to_owned(), value);
    let mut params = vec![given("all", args.all.to_string())];
    params.extend(args.metric.as_ref().map(|metric| given("metric", metric.clone())));
    let shown = sql::run_named(&session, "compare", &params)?;
    let all = sql::run_named(&session, "compare", &[given("all", true.to_string())])?;
    let changes = changes(&all)?;
    let exit = try_gates(&gates, &changes)?;
    if shown.iter().all(|batch| batch.num_rows() == 0) {
        talk::note("nothing that was asked for differs between the runs");
    }
    print(&shown, format, args.shown.max_rows, args.shown.output.as_deref())?;
    Ok(exit)
}

/// Says which gates are broken, and by how much the others passed.
fn try_gates(gates: &[Gate], changes: &[Change]) -> Result<Exit> {
    let (mut exit, mut passed) = (Exit::Done, Vec::new());
    for gate in gates {
        match gate.look(changes)? {
            Looked::Passed(said) => passed.push(said),
            Looked::Broken(said) => {
                said.iter().for_each(|said| talk::warn(said));
                exit = Exit::Gate;
            }
        }
    }
    match passed.len() {
        0 => {}
        1 => talk::note(&format!("1 gate passed: {}", passed[0])),
        count => talk::note(&format!("{count} gates passed: {}", passed.join("; "))),
    }
    Ok(exit)
}

/// The store and the run that a text names: a run's folder, a store, or an id in `--store`.
fn place(text: &str, store: Option<&Path>) -> (PathBuf, Option<String>) {
    if let Some(store) = store {
        return (store.to_owned(), Some(text.to_owned()));
    }
    let path = Path::new(text);
    let runs = path.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "runs"));
    match (runs.and_then(Path::parent), path.file_name()) {
        (Some(store), Some(run)) => {
            // `runs/ID` in the store itself has an empty store before it.
            let store = if store.as_os_str().is_empty() { Path::new(".") } else { store };
            (store.to_owned(), Some(run.to_string_lossy().into_owned()))
        }
        _ => (path.to_owned(), None),
    }
}

/// The rows of the comparison that gates look at.
fn changes(batches: &[arrow::array::RecordBatch]) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for batch in batches {
        let column = |name: &str| {
            let found = batch.column_by_name(name);
            found.ok_or_else(|| Error::run(format!("the query `compare` has no column `{name}`")))
        };
        let columns = [column("scenario")?, column("metric")?, column("base_value")?, column("value")?];
        for row in 0..batch.num_rows() {
            let [scenario, metric, base, now] = columns.map(|column| value(column, row));
            let text = |value: Value| value.exact();
            changes.push(Change {
                scenario: text(scenario?),
                metric: text(metric?),
                base: base?.number(),
                now: now?.number(),
            });
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_folder_a_store_or_an_id() {
        let of = |text: &str, store: Option<&str>| place(text, store.map(Path::new));
        assert_eq!(of("a/store", None), (PathBuf::from("a/store"), None));
        assert_eq!(of("a/store/runs/0123", None), (PathBuf::from("a/store"), Some("0123".to_owned())));
        assert_eq!(of("runs/0123/", None), (PathBuf::from("."), Some("0123".to_owned())));
        assert_eq!(of("0123", Some("s")), (PathBuf::from("s"), Some("0123".to_owned())));
    }
}
