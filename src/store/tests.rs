use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, UInt64Type};
use engine::schema::{Cell, Table, batch_of_rows, canonical, list_u64, result};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::{SourceEntry, Store};

static REQUESTS: &Table = &canonical::REQUESTS;

/// Requests with ids from `first`, without the columns that may be null, with one column of their own.
fn requests(first: u64, rows: u64) -> RecordBatch {
    let mut hashes = list_u64();
    for id in first..first + rows {
        hashes.values().append_slice(&[id, u64::MAX - id]);
        hashes.append(true);
    }
    let count = usize::try_from(rows).unwrap();
    let columns: Vec<(&str, DataType, ArrayRef)> = vec![
        ("extra", DataType::Utf8, Arc::new(StringArray::from(vec!["kept"; count]))),
        ("status", DataType::Utf8, Arc::new(StringArray::from(vec!["ok"; count]))),
        ("request_id", DataType::UInt64, Arc::new(UInt64Array::from_iter_values(first..first + rows))),
        ("source_id", DataType::UInt32, Arc::new(UInt32Array::from_value(0, count))),
        ("prompt_tokens", DataType::UInt32, Arc::new(UInt32Array::from_value(7, count))),
        ("output_tokens", DataType::UInt32, Arc::new(UInt32Array::from_value(1, count))),
    ];
    let mut fields: Vec<Field> = columns.iter().map(|(name, kind, _)| Field::new(*name, kind.clone(), false)).collect();
    let mut arrays: Vec<ArrayRef> = columns.into_iter().map(|(_, _, array)| array).collect();
    let hashes = hashes.finish();
    fields.push(Field::new("block_hashes", hashes.data_type().clone(), true));
    arrays.push(Arc::new(hashes));
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

fn metrics(value: f64) -> RecordBatch {
    let cells = |table: &Table| -> Vec<Cell> {
        table
            .columns
            .iter()
            .map(|column| match column.kind {
                engine::schema::Type::Text => Cell::Text("a".to_owned()),
                engine::schema::Type::F64 | engine::schema::Type::F32 => Cell::Real(value),
                engine::schema::Type::Bool => Cell::Bool(true),
                _ => Cell::Int(1),
            })
            .collect()
    };
    batch_of_rows(&result::METRICS, &[cells(&result::METRICS)]).unwrap()
}

fn source(id: u32) -> SourceEntry {
    SourceEntry {
        id,
        path: format!("file-{id}"),
        format: "mooncake".to_owned(),
        sha256: format!("{id:064x}"),
        own_sha256: None,
        companions: Vec::new(),
        bytes: 1,
        rows_in: 1,
        rows_out: 1,
        rows_rejected: 0,
    }
}

fn ids(store: &Store) -> Vec<u64> {
    let batches = store.read(REQUESTS).unwrap();
    let ids = batches
        .iter()
        .flat_map(|batch| batch.column_by_name("request_id").unwrap().as_primitive::<UInt64Type>().values().to_vec());
    ids.collect()
}

/// The names in the store's directory.
fn names(root: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    let mut write = store.begin();
    write.append(REQUESTS, &[requests(0, 3), requests(3, 2)]).unwrap();
    write.add_source(source(0));
    write.commit().unwrap();
    assert_eq!(names(directory.path()), [".lock", "manifest-1.json", "manifest-2.json", "requests"]);

    let store = Store::open(directory.path()).unwrap();
    assert_eq!(store.manifest().number, 2);
    assert_eq!(store.manifest().rows("requests"), 5);
    assert_eq!(store.manifest().sources, [source(0)]);
    assert_eq!(ids(&store), [0, 1, 2, 3, 4]);
    let batch = &store.read(REQUESTS).unwrap()[0];
    // All columns of the table in its order and with its metadata, unknown ones null, extra ones left out.
    assert_eq!(batch.schema(), REQUESTS.arrow());
    assert_eq!(batch.column_by_name("tenant").unwrap().null_count(), 5);
    let hashes = batch.column_by_name("block_hashes").unwrap().as_list::<i32>().value(4);
    assert_eq!(hashes.as_primitive::<UInt64Type>().values(), &[4, u64::MAX - 4]);
}

#[test]
fn a_file_is_read_by_others() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    let mut write = store.begin();
    write.append(REQUESTS, &[requests(0, 3)]).unwrap();
    write.commit().unwrap();
    let files = store.files("requests");
    assert_eq!(files, [directory.path().join("requests/part-00000.parquet")]);

    let file = fs::File::open(&files[0]).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let schema = builder.schema();
    assert_eq!(schema.fields().last().unwrap().name(), "extra");
    let arrival = schema.field_with_name("arrival_ns").unwrap();
    assert_eq!(arrival.metadata()["unit"], "ns");
    assert!(arrival.metadata().contains_key("doc"));
    let DataType::List(element) = schema.field_with_name("block_hashes").unwrap().data_type() else { panic!() };
    assert_eq!((element.name().as_str(), element.is_nullable()), ("element", false));
    let metadata = builder.metadata().file_metadata();
    assert_eq!(metadata.created_by(), Some("kvtoll"));
    // Read without the Arrow schema, the Parquet schema alone says the same of the list.
    let leaf = metadata.schema_descr().columns().iter().find(|column| column.path().string().contains("block_hashes"));
    assert_eq!(leaf.unwrap().path().string(), "block_hashes.list.element");
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let bytes = || {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::open_or_create(directory.path()).unwrap();
        let mut write = store.begin();
        write.append(REQUESTS, &[requests(0, 10_000), requests(10_000, 1)]).unwrap();
        write.commit().unwrap();
        fs::read(&store.files("requests")[0]).unwrap()
    };
    let first = bytes();
    for _ in 0..3 {
        assert!(bytes() == first);
    }
}

#[test]
fn a_dropped_write_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    let before = names(directory.path());
    let mut write = store.begin();
    write.append(REQUESTS, &[requests(0, 3)]).unwrap();
    assert!(names(directory.path()).iter().any(|name| name.starts_with(".tmp-")));
    drop(write);
    assert_eq!(names(directory.path()), before);
    assert_eq!(ids(&Store::open(directory.path()).unwrap()), [0_u64; 0]);
}

#[test]
fn what_a_crash_leaves_is_ignored_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut store = Store::open_or_create(root).unwrap();
    let mut write = store.begin();
    write.append(REQUESTS, &[requests(0, 3)]).unwrap();
    write.commit().unwrap();
    // A crash after the files were named and before the manifest, and one in the middle of a file.
    fs::copy(root.join("requests/part-00000.parquet"), root.join("requests/part-00001.parquet")).unwrap();
    fs::create_dir_all(root.join("runs/r1/demand")).unwrap();
    fs::write(root.join("runs/r1/demand/part-00000.parquet"), b"cut").unwrap();
    fs::create_dir(root.join(".tmp-1-0")).unwrap();
    fs::write(root.join(".tmp-1-0/lock"), b"").unwrap();
    fs::write(root.join(".tmp-1-0/x.parquet"), b"cut").unwrap();
    // What somebody else put there stays.
    fs::write(root.join("requests/notes.txt"), b"mine").unwrap();

    let mut store = Store::open(root).unwrap();
    assert_eq!(ids(&store), [0, 1, 2]);
    let mut write = store.begin();
    write.append(REQUESTS, &[requests(3, 1)]).unwrap();
    write.commit().unwrap();
    assert_eq!(ids(&Store::open(root).unwrap()), [0, 1, 2, 3]);
    assert!(!root.join(".tmp-1-0").exists());
    assert!(!root.join("runs/r1/demand/part-00000.parquet").exists());
    assert!(root.join("requests/notes.txt").exists());
}

#[test]
fn the_second_of_two_writers_gets_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Store::open_or_create(directory.path()).unwrap();
    let mut second = Store::open(directory.path()).unwrap();
    let mut one = first.begin();
    one.append(REQUESTS, &[requests(0, 1)]).unwrap();
    // The second begins while the first is at work, and must not sweep its files away.
    let mut two = second.begin();
    two.append(REQUESTS, &[requests(0, 2)]).unwrap();
    one.commit().unwrap();
    let error = two.commit().unwrap_err();
    assert!(error.to_string().contains("another process has changed"), "{error}");
    assert_eq!(error.advice(), Some("run the command again"));
    assert_eq!(ids(&Store::open(directory.path()).unwrap()), [0]);
    assert_eq!(names(directory.path()), [".lock", "manifest-1.json", "manifest-2.json", "requests"]);
}

#[test]
fn writers_in_many_threads_lose_no_update() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    Store::open_or_create(root).unwrap();
    let written: Vec<u64> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4_u64)
            .map(|thread| {
                scope.spawn(move || {
                    let good = (0..5).filter(|round| {
                        let mut store = Store::open(root).unwrap();
                        let mut write = store.begin();
                        write.append(REQUESTS, &[requests(100 * thread + round, 1)]).unwrap();
                        write.commit().is_ok()
                    });
                    good.map(|round| 100 * thread + round).collect::<Vec<u64>>()
                })
            })
            .collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect()
    });
    let mut found = ids(&Store::open(root).unwrap());
    found.sort_unstable();
    let mut written = written;
    written.sort_unstable();
    assert!(!written.is_empty());
    assert_eq!(found, written);
}

#[test]
fn a_run_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    let write = |store: &mut Store, run: &str, value: f64| {
        let mut write = store.begin();
        write.write_run(run, &result::METRICS, &[metrics(value)])?;
        write.commit()
    };
    write(&mut store, "b", 1.0).unwrap();
    write(&mut store, "a", 2.0).unwrap();
    assert_eq!(store.manifest().number, 3);
    // Asked for again, the older run writes nothing and becomes the latest.
    write(&mut store, "b", 1.0).unwrap();
    assert_eq!(store.manifest().number, 4);
    write(&mut store, "b", 1.0).unwrap();
    assert_eq!(store.manifest().number, 4);
    let error = write(&mut store, "b", 3.0).unwrap_err();
    assert!(error.to_string().contains("expected run `b` with the contents it has"), "{error}");
    let runs: Vec<&str> = store.runs().iter().map(|run| run.id.as_str()).collect();
    assert_eq!(runs, ["a", "b"]);
    assert_eq!(store.run_files("a", "metrics"), [directory.path().join("runs/a/metrics/part-00000.parquet")]);
    assert_eq!(store.read_run("a", &result::METRICS).unwrap()[0].num_rows(), 1);
    assert_eq!(store.read_run("c", &result::METRICS).unwrap_err().to_string(), "unknown run `c`");
}

#[test]
fn a_run_id_is_a_plain_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    for run in ["", "..", "a/b", "a b"] {
        assert!(store.begin().write_run(run, &result::METRICS, &[metrics(1.0)]).is_err(), "{run}");
    }
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    let good = requests(0, 1);
    let missing = good.project(&[0, 1, 2, 3, 4]).unwrap();
    let error = store.begin().append(REQUESTS, &[missing]).unwrap_err();
    assert_eq!(error.to_string(), "column `output_tokens` of `requests` is missing");
    let mut fields: Vec<Field> = good.schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    fields[4] = Field::new("prompt_tokens", DataType::UInt64, false);
    let mut columns = good.columns().to_vec();
    columns[4] = Arc::new(UInt64Array::from_value(7, 1));
    let wrong = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let error = store.begin().append(REQUESTS, &[wrong]).unwrap_err();
    assert_eq!(error.to_string(), "expected `requests.prompt_tokens` as UInt32, found UInt64");
}

#[test]
fn a_missing_store_names_the_way_to_one() {
    let directory = tempfile::tempdir().unwrap();
    let error = Store::open(&directory.path().join("none")).unwrap_err();
    assert!(error.to_string().starts_with("expected a store at `"), "{error}");
    assert!(error.advice().unwrap().contains("kvtoll ingest"));
    fs::write(directory.path().join("thesis.tex"), b"").unwrap();
    let error = Store::open_or_create(directory.path()).unwrap_err();
    assert!(error.to_string().contains("found `thesis.tex` and no manifest"), "{error}");
}

#[test]
fn a_store_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    Store::open_or_create(directory.path()).unwrap();
    fs::write(directory.path().join("manifest-9.json"), br#"{"schema": 4000000}"#).unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("found 4000000"), "{error}");
    fs::write(directory.path().join("manifest-9.json"), b"{").unwrap();
    let error = Store::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("is no manifest of a store"), "{error}");
}

#[test]
fn tables_of_a_manifest_count_their_rows() {
    let directory = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(directory.path()).unwrap();
    for first in [0, 10] {
        let mut write = store.begin();
        write.append(REQUESTS, &[requests(first, 10)]).unwrap();
        write.commit().unwrap();
    }
    let rows: HashMap<&str, u64> = store
        .manifest()
        .tables
        .iter()
        .map(|(name, files)| (name.as_str(), files.iter().map(|f| f.rows).sum()))
        .collect();
    assert_eq!(rows, HashMap::from([("requests", 20)]));
    assert_eq!(ids(&store), (0..20).collect::<Vec<u64>>());
}

/// The reader panics on some damaged schemas, which is an error like any other here.
#[test]
fn a_file_whose_embedded_schema_is_damaged_is_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let mut transaction = store.begin();
    transaction.append(REQUESTS, &[requests(0, 3)]).unwrap();
    transaction.commit().unwrap();
    let path = store.files(REQUESTS.name).remove(0);
    let sound = fs::read(&path).unwrap();
    let key = b"ARROW:schema";
    let start = sound.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 4;
    let mut errors = 0;
    for at in (start..sound.len() - 8).step_by(5).take(300) {
        let mut bytes = sound.clone();
        bytes[at] = if bytes[at] == b'A' { b'/' } else { b'A' };
        fs::write(&path, &bytes).unwrap();
        errors += usize::from(store.read(REQUESTS).is_err());
        errors += usize::from(crate::sql::session(&store, None).is_err());
    }
    assert!(errors > 50, "{errors}");
}
