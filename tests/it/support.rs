//! What the integration tests share: the binary, the repository, and the quick start's results.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use kvtoll::sql;
use kvtoll::store::Store;

/// The repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs `kvtoll` in the repository.
pub(crate) fn kvtoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvtoll")).args(args).current_dir(root()).output().expect("the binary starts")
}

/// Runs `kvtoll`, which must succeed, and gives its standard output.
pub(crate) fn succeed(args: &[&str]) -> String {
    let output = kvtoll(args);
    assert!(output.status.success(), "kvtoll {args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What the README's first command makes.
pub(crate) struct Quickstart {
    pub(crate) store: PathBuf,
    pub(crate) report: PathBuf,
}

/// The results of the README's first command, made once per build: every test is a process of its own.
pub(crate) fn quickstart() -> Quickstart {
    let stamp = |path: &Path| {
        let modified = std::fs::metadata(path).and_then(|file| file.modified()).expect("a file");
        modified.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos()
    };
    let stamps = [Path::new(env!("CARGO_BIN_EXE_kvtoll")), &root().join("traces/quickstart.toml")].map(stamp);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("quickstart-{:x}-{:x}", stamps[0], stamps[1]));
    if !kept.exists() {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        succeed(&[
            "run",
            "traces/mooncake/conversation_trace.jsonl.zst",
            "traces/recording-token",
            "--into",
            &at("store"),
            "--output",
            &at("report.html"),
            "--scenarios",
            "traces/quickstart.toml",
            "--equal-cost",
        ]);
        // Another test may have been faster; its results are as good.
        if std::fs::rename(folder.path(), &kept).is_ok() {
            let _ = folder.keep();
        }
    }
    Quickstart { store: kept.join("store"), report: kept.join("report.html") }
}

/// Asks a store in SQL.
pub(crate) fn ask(store: &Path, sql: &str) -> Vec<RecordBatch> {
    let session = sql::session(&Store::open(store).expect("a store"), None).expect("a session");
    sql::query(&session, sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The only value of a query that gives one number.
pub(crate) fn number(store: &Path, sql: &str) -> f64 {
    let batches = ask(store, sql);
    let column =
        batches.iter().find(|batch| batch.num_rows() > 0).unwrap_or_else(|| panic!("no rows: {sql}")).column(0).clone();
    let column = arrow::compute::cast(&column, &arrow::datatypes::DataType::Float64).expect("a number");
    assert_eq!(column.len(), 1, "{sql}");
    column.as_primitive::<Float64Type>().value(0)
}

/// A metric of the workload, or of a scenario by name.
pub(crate) fn metric(store: &Path, scenario: Option<&str>, name: &str) -> f64 {
    match scenario {
        None => number(store, &format!("SELECT value FROM metrics WHERE metric = '{name}' AND scenario_id IS NULL")),
        Some(scenario) => number(
            store,
            &format!(
                "SELECT value FROM metrics JOIN scenarios USING (scenario_id) WHERE metric = '{name}' AND name = '{scenario}'"
            ),
        ),
    }
}
