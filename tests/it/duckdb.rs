//! The store is plain Parquet and the named queries are plain SQL: `DuckDB` gives the same answers.
//!
//! `scripts/test` installs `DuckDB` into a virtual environment below `target`. Where it could not, this says so and checks
//! nothing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::schema::{self, Scope, Table, Type};
use kvtoll::output::{Value, value};
use kvtoll::sql::{self, Kind, Named};
use kvtoll::store::Store;
use serde_json::{Value as Json, json};

use crate::support::{quickstart, root};

/// Queries that use what only kvtoll has, and what it is.
const OWN: [(&str, &str); 5] = [
    ("copies", "UNSIGNED"),
    ("kernel-booths", "booth("),
    ("launches", "booth("),
    // An aggregate in one, a window function in the other.
    ("session-bill", "first_value("),
    ("tpot-vs-occupancy", "stretch_quantile("),
];

/// The Python of the virtual environment, or why there is none.
fn python() -> Result<PathBuf, String> {
    // The folder of the build that runs this test, wherever it is.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let python = target.join("duckdb/bin/python");
    let works = Command::new(&python).args(["-c", "import duckdb"]).output();
    match works {
        Ok(output) if output.status.success() => Ok(python),
        Ok(output) => Err(format!("DuckDB does not start: {}", String::from_utf8_lossy(&output.stderr))),
        Err(_) => {
            Err(format!("`{}` is missing: scripts/test makes it where there is Python and a network", python.display()))
        }
    }
}

fn duckdb_type(kind: Type) -> &'static str {
    match kind {
        Type::Bool => "BOOLEAN",
        Type::U16 => "USMALLINT",
        Type::U32 => "UINTEGER",
        Type::U64 => "UBIGINT",
        Type::I64 => "BIGINT",
        Type::F32 => "FLOAT",
        Type::F64 => "DOUBLE",
        Type::Text => "VARCHAR",
        Type::ListU32 => "UINTEGER[]",
        Type::ListU64 => "UBIGINT[]",
        Type::ListF32 | Type::Vector => "FLOAT[]",
    }
}

fn table(name: &str, table: &Table, files: &[PathBuf]) -> Json {
    let columns: Vec<Json> =
        table.columns.iter().map(|column| json!([column.name, duckdb_type(column.kind)])).collect();
    let files: Vec<String> = files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
    json!({"name": name, "files": files, "columns": columns})
}

/// The defaults of a query's parameters as JSON values.
fn defaults(query: &Named) -> Json {
    let value = |kind: Kind, text: &str| match kind {
        _ if text == "null" => Json::Null,
        Kind::Text => Json::from(text),
        Kind::Int | Kind::Real | Kind::Bool => serde_json::from_str(text).expect("a default is a value"),
    };
    query
        .params
        .iter()
        .map(|param| (param.name.to_owned(), value(param.kind, param.default)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// The tables, views and queries of a store, as `ask_duckdb.py` reads them.
fn asked(store: &Store, run: &str, queries: &[Named]) -> Json {
    let mut tables: Vec<Json> = schema::ALL
        .iter()
        .map(|known| match known.scope {
            Scope::Store => table(known.name, known, &store.files(known.name)),
            Scope::Run => table(known.name, known, &store.run_files(run, known.name)),
        })
        .collect();
    for name in sql::OF_BASE {
        tables.push(table(&format!("base.{name}"), schema::table(name).unwrap(), &[]));
    }
    let views: Vec<Json> =
        sql::views().unwrap().iter().map(|view| json!({"name": view.name, "sql": view.sql})).collect();
    let queries: Vec<Json> =
        queries.iter().map(|query| json!({"name": query.name, "sql": query.sql, "params": defaults(query)})).collect();
    json!({"tables": tables, "views": views, "queries": queries})
}

/// Whether two values are the same; floats may differ in their last digits, since sums have another order.
fn same(ours: &Value, theirs: &Json) -> bool {
    let Some(pair) = theirs.as_array() else { return *ours == Value::Null };
    let (kind, text) = (pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default());
    match ours {
        Value::Null => false,
        Value::Int(number) if kind == "int" => number.to_string() == text,
        Value::Int(_) | Value::Real(_) | Value::Single(_) => {
            let (Some(ours), Ok(theirs)) = (ours.number(), text.parse::<f64>()) else { return false };
            (ours - theirs).abs() <= 1e-9 * ours.abs().max(theirs.abs())
        }
        _ => ours.exact() == text,
    }
}

fn compare(query: &Named, session: &sql::Session, answer: &Json) -> Result<usize, String> {
    if let Some(error) = answer["error"].as_str() {
        return Err(format!("DuckDB refuses it: {error} {}", answer["views"]));
    }
    let batches = sql::run_named(session, query.name, &[]).map_err(|error| error.to_string())?;
    let columns: Vec<&str> = query.columns.iter().map(|column| column.name).collect();
    let found: Vec<&str> = answer["columns"].as_array().expect("columns").iter().filter_map(Json::as_str).collect();
    if found != columns {
        return Err(format!("other columns: {found:?}"));
    }
    let theirs = answer["rows"].as_array().expect("rows");
    let mut at = 0;
    for batch in &batches {
        for row in 0..batch.num_rows() {
            let Some(other) = theirs.get(at) else { return Err(format!("DuckDB has {at} rows only")) };
            for (column, array) in batch.columns().iter().enumerate() {
                let ours = value(array, row).map_err(|error| error.to_string())?;
                if !same(&ours, &other[column]) {
                    return Err(format!("row {at}, `{}`: {ours:?} is {} in DuckDB", columns[column], other[column]));
                }
            }
            at += 1;
        }
    }
    if theirs.len() == at { Ok(at) } else { Err(format!("DuckDB has {} rows, kvtoll {at}", theirs.len())) }
}

#[test]
fn duckdb_gives_the_same_answers() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let store = Store::open(&quickstart().store).unwrap();
    let session = sql::session(&store, None).unwrap();
    let run = session.run().expect("a run").to_owned();
    let queries: Vec<Named> = sql::named().unwrap();
    let mut child = Command::new(python)
        .arg(root().join("tests/it/ask_duckdb.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(&asked(&store, &run, &queries)).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "ask_duckdb.py fails");
    let answers: Vec<Json> =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.len(), queries.len());
    let (mut wrong, mut rows) = (Vec::new(), 0);
    for (query, answer) in queries.iter().zip(&answers) {
        if let Some((_, what)) = OWN.iter().find(|(name, _)| *name == query.name) {
            assert!(query.sql.contains(what), "{} uses no `{what}` any more", query.name);
            continue;
        }
        match compare(query, &session, answer) {
            Ok(count) => rows += count,
            Err(why) => wrong.push(format!("{}: {why}", query.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows > 1000, "only {rows} rows were compared");
}
