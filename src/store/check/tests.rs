use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};
use engine::schema::{Cell, batch_of_rows, canonical, result};

use super::*;
use crate::store::SourceEntry;

/// A row of a table: the cells by name, null elsewhere.
fn row(table: &Table, cells: &[(&str, Cell)]) -> Vec<Cell> {
    let cell = |name: &str| cells.iter().find(|(known, _)| *known == name).map(|(_, cell)| cell.clone());
    table
        .columns
        .iter()
        .map(|column| match (cell(column.name), column.nullable, column.kind) {
            (Some(cell), _, _) => cell,
            (None, true, _) => Cell::Null,
            (None, false, schema::Type::Text) => Cell::Text("x".to_owned()),
            (None, false, schema::Type::F32 | schema::Type::F64) => Cell::Real(1.0),
            (None, false, schema::Type::Bool) => Cell::Bool(true),
            (None, false, _) => Cell::Int(0),
        })
        .collect()
}

fn rows(table: &'static Table, rows: &[&[(&str, Cell)]]) -> RecordBatch {
    batch_of_rows(table, &rows.iter().map(|cells| row(table, cells)).collect::<Vec<_>>()).unwrap()
}

/// Requests of these numbers, of one source, each with a parent.
fn requests(ids: &[u64], source: u32, parent: Option<u64>) -> RecordBatch {
    let ones = || Arc::new(UInt32Array::from_value(1, ids.len()));
    let columns: [(&str, ArrayRef); 6] = [
        ("request_id", Arc::new(UInt64Array::from(ids.to_vec()))),
        ("source_id", Arc::new(UInt32Array::from_value(source, ids.len()))),
        ("parent_request_id", Arc::new(UInt64Array::from(vec![parent; ids.len()]))),
        ("prompt_tokens", ones()),
        ("output_tokens", ones()),
        ("status", Arc::new(StringArray::from(vec!["ok"; ids.len()]))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// A store of one source with three requests, a step and a reject.
fn sound(root: &Path, change: impl FnOnce(&mut crate::store::Transaction<'_>)) -> Store {
    let mut store = Store::open_or_create(root).unwrap();
    let mut writing = store.begin();
    let counts = [("rows_in", Cell::Int(4)), ("rows_out", Cell::Int(3)), ("rows_rejected", Cell::Int(1))];
    writing.append(&canonical::SOURCES, &[rows(&canonical::SOURCES, &[&counts])]).unwrap();
    writing.append(&canonical::REQUESTS, &[requests(&[2, 0, 1], 0, None)]).unwrap();
    writing.append(&canonical::STEPS, &[rows(&canonical::STEPS, &[&[("request_id", Cell::Int(2))]])]).unwrap();
    writing.append(&canonical::REJECTS, &[rows(&canonical::REJECTS, &[&[]])]).unwrap();
    writing.add_source(SourceEntry {
        id: 0,
        path: "x".to_owned(),
        format: "x".to_owned(),
        sha256: "x".to_owned(),
        own_sha256: None,
        companions: Vec::new(),
        bytes: 1,
        rows_in: 4,
        rows_out: 3,
        rows_rejected: 1,
    });
    change(&mut writing);
    writing.commit().unwrap();
    Store::open(root).unwrap()
}

fn found(change: impl FnOnce(&mut crate::store::Transaction<'_>)) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    check(&sound(folder.path(), change))
}

#[test]
fn a_sound_store_has_no_violation() {
    assert_eq!(found(|_| {}), [] as [String; 0]);
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(check(&Store::open_or_create(folder.path()).unwrap()), [] as [String; 0]);
}

#[test]
fn numbers_that_are_twice_there_or_missing_are_found() {
    let twice = found(|writing| writing.append(&canonical::REQUESTS, &[requests(&[1, 7], 0, None)]).unwrap());
    assert_eq!(
        twice,
        ["`requests`: expected 5 requests with the numbers from 0 on, each once, found 2 others, the first 1"]
    );
}

#[test]
fn what_refers_to_nothing_is_found() {
    let steps = found(|writing| {
        let bad = [("request_id", Cell::Int(3))];
        writing.append(&canonical::STEPS, &[rows(&canonical::STEPS, &[&bad, &bad])]).unwrap();
    });
    assert_eq!(steps, ["`steps`: expected `request_id` below 3, found 2 rows with another, the first 3"]);
    let parents = found(|writing| {
        writing.append(&canonical::REQUESTS, &[requests(&[3], 1, Some(4))]).unwrap();
    });
    assert_eq!(
        parents,
        [
            "`requests`: expected `source_id` below 1, found 1 rows with another, the first 1",
            "`requests`: expected `parent_request_id` below 4, found 1 rows with another, the first 4",
        ]
    );
    let scenarios = found(|writing| {
        writing.write_run("r", &result::SCENARIOS, &[rows(&result::SCENARIOS, &[&[]])]).unwrap();
        let cells = [("scenario_id", Cell::Int(1)), ("request_id", Cell::Int(0))];
        writing.write_run("r", &result::REQUEST_COSTS, &[rows(&result::REQUEST_COSTS, &[&cells])]).unwrap();
    });
    assert_eq!(scenarios, ["`request_costs`: expected `scenario_id` below 1, found 1 rows with another, the first 1"]);
}

#[test]
fn counts_that_do_not_add_up_are_found() {
    let rejects = found(|writing| writing.append(&canonical::REJECTS, &[rows(&canonical::REJECTS, &[&[]])]).unwrap());
    assert_eq!(rejects, ["source 0: expected 1 rows in `rejects`, found 2"]);
    let sources = found(|writing| {
        let counts = [("source_id", Cell::Int(1))];
        writing.append(&canonical::SOURCES, &[rows(&canonical::SOURCES, &[&counts])]).unwrap();
    });
    assert_eq!(
        sources,
        [
            "the table `sources` has 2 sources, the manifest 1",
            "`sources`: expected `source_id` below 1, found 1 rows with another, the first 1",
        ]
    );
}

/// A damaged file is one violation, and what refers to it is not judged.
#[test]
fn files_that_are_not_as_written_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = sound(folder.path(), |_| {});
    let path = folder.path().join("requests/part-00000.parquet");
    let bytes = fs::read(&path).unwrap();
    for (bad, expected) in [
        (Some(bytes[..bytes.len() - 1].to_vec()), format!("expected {} bytes, found {}", bytes.len(), bytes.len() - 1)),
        (Some(bytes.iter().map(|byte| byte ^ 1).collect()), "expected the SHA-256 ".to_owned()),
        (None, "cannot be read: ".to_owned()),
    ] {
        match bad {
            Some(bad) => fs::write(&path, bad).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let found = check(&store);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("`requests/part-00000.parquet`: {expected}")), "{found:?}");
    }
}

/// A manifest that was edited, down to the hash, is held against the file.
#[test]
fn an_edited_manifest_is_found() {
    let folder = tempfile::tempdir().unwrap();
    sound(folder.path(), |_| {});
    let path = folder.path().join("manifest-2.json");
    let text = fs::read_to_string(&path).unwrap();
    let file = text.find("requests/part-00000.parquet").unwrap();
    let edited = format!("{}{}", &text[..file], text[file..].replacen("\"rows\": 3", "\"rows\": 9", 1));
    assert_ne!(edited, text);
    fs::write(&path, edited).unwrap();
    let found = check(&Store::open(folder.path()).unwrap());
    assert_eq!(found, ["`requests/part-00000.parquet`: expected 9 rows, found 3"]);
}
