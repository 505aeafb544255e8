//! The command on small stores, and on the kernel names of a real capture.

use std::fs;

use arrow::array::ArrayRef;
use arrow::util::display::array_value_to_string;
use clap::Parser;
use engine::schema::{self, Cell, Scope, batch_of_rows};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(words: &[&str]) -> Args {
    Line::try_parse_from([&["reconcile"], words].concat()).unwrap().args
}

/// Rows of a table without lists; what is not named is null.
fn rows_of(table: &'static Table, rows: &[Vec<(&str, Cell)>]) -> RecordBatch {
    let cell = |row: &[(&str, Cell)], name| {
        row.iter().find(|(known, _)| *known == name).map_or(Cell::Null, |cell| cell.1.clone())
    };
    let is_list = |column: &&schema::Column| matches!(column.kind, schema::Type::ListU32 | schema::Type::ListU64);
    let plain: Vec<schema::Column> = table.columns.iter().filter(|column| !is_list(column)).copied().collect();
    let plain: &'static [schema::Column] = Box::leak(plain.into());
    let cells: Vec<Vec<Cell>> =
        rows.iter().map(|row| plain.iter().map(|column| cell(row, column.name)).collect()).collect();
    let narrow = Table { name: table.name, doc: "", scope: Scope::Store, columns: plain };
    let narrow = batch_of_rows(Box::leak(Box::new(narrow)), &cells).unwrap();
    crate::store::canonical(table, &narrow, false).unwrap()
}

/// Where the store is, with the tables of these batches.
fn store(batches: &[(&'static Table, RecordBatch)]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let mut store = Store::open_or_create(&root).unwrap();
    let mut transaction = store.begin();
    for (table, batch) in batches {
        transaction.append(table, std::slice::from_ref(batch)).unwrap();
    }
    transaction.commit().unwrap();
    (folder, root.to_string_lossy().into_owned())
}

fn kernel(id: u64, source: u32, category: &'static str, name: &str, duration: i64) -> Vec<(&'static str, Cell)> {
    vec![
        ("source_id", source.into()),
        ("kernel_id", id.into()),
        ("category", category.into()),
        ("name", name.into()),
        ("start_ns", (1000 * id as i64).into()),
        ("duration_ns", duration.into()),
        ("process", 1_u64.into()),
        ("device", 0_u32.into()),
    ]
}

/// As many kernels of each name, with as much time in all, as the real capture has.
fn real() -> RecordBatch {
    let text = include_str!("../../../traces/nsys/kernel_names.tsv");
    let mut rows = Vec::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.splitn(3, '\t').collect();
        let (count, time): (i64, i64) = (cells[0].parse().unwrap(), cells[1].parse().unwrap());
        for at in 0..count {
            let share = time / count + if at == 0 { time % count } else { 0 };
            rows.push(kernel(rows.len() as u64, 0, "kernel", cells[2], share));
        }
    }
    rows_of(&KERNELS, &rows)
}

fn cell(batch: &RecordBatch, column: &str, row: usize) -> String {
    array_value_to_string(batch.column_by_name(column).unwrap(), row).unwrap()
}

fn sum(batch: &RecordBatch, column: &str) -> i64 {
    (0..batch.num_rows()).map(|row| cell(batch, column, row).parse::<i64>().unwrap()).sum()
}

#[test]
fn the_booths_of_a_real_capture_sum_to_its_kernel_time_here_and_in_sql() {
    let (_folder, root) = store(&[(&KERNELS, real())]);
    let store = Store::open(Path::new(&root)).unwrap();
    let booths = show(&store, &args(&[&root]), Part::Booths).unwrap();
    assert_eq!((sum(&booths, "time_ns"), sum(&booths, "kernels")), (44_829_522, 3_442));
    let named = show(&store, &args(&[&root]), Part::Kernels).unwrap();
    assert_eq!((named.num_rows(), sum(&named, "time_ns")), (41, 44_829_522));
    assert_eq!(cell(&named, "rule", 0), "pattern = \"gemm\"");
    let session = crate::sql::session(&store, None).unwrap();
    let asked = crate::sql::run_named(&session, "kernel-booths", &[]).unwrap();
    assert_eq!((sum(&asked[0], "time_ns"), asked[0].num_rows()), (44_829_522, booths.num_rows()));
}

#[test]
fn a_sum_beyond_64_bits_is_told_here_and_in_sql() {
    let rows = [kernel(0, 0, "kernel", "flash", i64::MAX), kernel(1, 0, "kernel", "flash", i64::MAX)];
    let (_folder, root) = store(&[(&KERNELS, rows_of(&KERNELS, &rows))]);
    let store = Store::open(Path::new(&root)).unwrap();
    for part in [Part::Booths, Part::Kernels] {
        let error = show(&store, &args(&[&root]), part).unwrap_err().to_string();
        assert!(error.contains("found 18446744073709551614"), "{error}");
    }
    let session = crate::sql::session(&store, None).unwrap();
    let error = crate::sql::run_named(&session, "kernel-booths", &[]).unwrap_err().to_string();
    assert!(error.contains("18446744073709551614"), "{error}");
}

#[test]
fn rules_of_ones_own_take_the_place_of_the_shipped_ones() {
    let (folder, root) = store(&[(&KERNELS, real())]);
    let store = Store::open(Path::new(&root)).unwrap();
    let path = folder.path().join("own.toml");
    fs::write(&path, "rules = [{ booth = \"other\", pattern = \"reduce_kernel\" }]").unwrap();
    let with = args(&[&root, "--rules", path.to_str().unwrap()]);
    let booths = show(&store, &with, Part::Booths).unwrap();
    assert_eq!((cell(&booths, "booth", 0), cell(&booths, "time_ns", 0)), ("other".to_owned(), "1044610".to_owned()));
    assert_eq!((cell(&booths, "booth", 1), sum(&booths, "time_ns")), ("unclassified".to_owned(), 44_829_522));
    fs::write(&path, "rules = [\n  { booth = \"ather\", pattern = \"a\" }\n]").unwrap();
    let error = run(&with).unwrap_err().to_string();
    assert!(error.contains("own.toml:2:13: `booth`: expected one of attention, linear"), "{error}");
}

#[test]
fn a_source_is_looked_at_alone_where_it_is_named() {
    let rows =
        [kernel(0, 0, "kernel", "flash", 5), kernel(0, 1, "kernel", "flash", 7), kernel(1, 1, "copy", "HtoD", 9)];
    let (_folder, root) = store(&[(&KERNELS, rows_of(&KERNELS, &rows))]);
    let store = Store::open(Path::new(&root)).unwrap();
    let booths = |words: &[&str]| show(&store, &args(&[&[root.as_str()], words].concat()), Part::Booths).unwrap();
    assert_eq!((sum(&booths(&[]), "time_ns"), sum(&booths(&["--source", "0"]), "time_ns")), (21, 5));
    let error = show(&store, &args(&[&root, "--source", "9"]), Part::Booths).unwrap_err().to_string();
    assert!(error.starts_with("source 9 has no captured kernels"), "{error}");
}

#[test]
fn the_toll_stands_beside_the_model_and_takes_its_tokens_from_steps() {
    let step = |id: u64| -> Vec<(&str, Cell)> {
        vec![
            ("source_id", 0_u32.into()),
            ("annotation_id", id.into()),
            ("name", format!("decode step {id}").into()),
            ("category", "nvtx".into()),
            ("start_ns", (10_000 * id as i64).into()),
            ("duration_ns", 10_000_i64.into()),
            ("process", 1_u64.into()),
        ]
    };
    let kernels = [
        kernel(1, 0, "kernel", "flash", 600),
        kernel(12, 0, "kernel", "gemm", 200),
        kernel(40, 0, "kernel", "gemm", 1),
    ];
    let annotations = rows_of(&ANNOTATIONS, &[step(0), step(1)]);
    let (_folder, root) = store(&[(&KERNELS, rows_of(&KERNELS, &kernels)), (&ANNOTATIONS, annotations)]);
    let store = Store::open(Path::new(&root)).unwrap();
    let words = [root.as_str(), "--model", "qwen3-8b", "--machine", "h100", "--batch", "3", "--context", "1000"];
    let table = show(&store, &args(&words), Part::Toll).unwrap();
    // Two steps of three requests are six tokens.
    assert_eq!(
        (cell(&table, "booth", 0), cell(&table, "measured_ns_per_token", 0)),
        ("attention".to_owned(), "100.0".to_owned())
    );
    let bytes: f64 = cell(&table, "modelled_dram_bytes_per_token", 0).parse().unwrap();
    assert!((bytes - 147_456.0 * 1001.0).abs() < 1e-6, "{bytes}");
    let told = show(&store, &args(&[&words[..], &["--tokens", "600"]].concat()), Part::Toll).unwrap();
    assert_eq!(cell(&told, "measured_ns_per_token", 0), "1.0");
    let ranges = show(&store, &args(&[&root]), Part::Ranges).unwrap();
    assert_eq!(
        (ranges.num_rows(), sum(&ranges, "time_ns"), cell(&ranges, "name", 2)),
        (3, 801, "decode step 1".to_owned())
    );
    let error = show(&store, &args(&words[..5]), Part::Toll).unwrap_err();
    assert!(error.to_string().starts_with("expected the batch and the context"), "{error}");
    let error = show(&store, &args(&words[..1]), Part::Toll).unwrap_err();
    assert_eq!(error.to_string(), "expected the model that was captured, found none");
}

#[test]
fn every_format_writes_a_part_and_tables_write_all_of_them() {
    let (folder, root) = store(&[(&KERNELS, real())]);
    for (format, begin) in [
        ("table", "booth"),
        ("csv", "booth,category,kernels"),
        ("tsv", "booth\tcategory"),
        ("ndjson", "{\"booth\":\"attention\""),
        ("json", "[{\"booth\":\"attention\""),
        ("md", "| booth |"),
        ("parquet", "PAR1"),
    ] {
        let path = folder.path().join(format!("out.{format}.bin"));
        let done = run(&args(&[&root, "booths", "--format", format, "--output", path.to_str().unwrap()])).unwrap();
        assert_eq!(done, Exit::Done);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.starts_with(begin.as_bytes()), "{format}: {}", String::from_utf8_lossy(&bytes[..40]));
    }
    let path = folder.path().join("all.md");
    run(&args(&[&root, "--output", path.to_str().unwrap()])).unwrap();
    assert!(fs::read_to_string(&path).unwrap().starts_with("## booths\n\n| booth |"));
    let error = run(&args(&[&root, "--format", "csv"])).unwrap_err().to_string();
    assert_eq!(error, "expected one part for the format `csv`, found none");
}

#[test]
fn a_store_without_captures_says_so() {
    let (_folder, root) = store(&[]);
    let error = run(&args(&[&root])).unwrap_err();
    assert!(error.to_string().contains("no captured kernels, accesses, KV events or steps"), "{error}");
}

#[test]
fn accesses_become_blocks_with_an_address_map() {
    let access = |id: u64| -> Vec<(&str, Cell)> {
        let mut row: Vec<(&str, Cell)> =
            ["source_id", "launch", "cta_x", "cta_y", "cta_z", "warp"].map(|name| (name, 0_u32.into())).to_vec();
        row.extend([("access_id", id.into()), ("address", (64 * id).into()), ("kernel", "flash".into())]);
        row.extend([
            ("opcode", "LDG".into()),
            ("space", "global".into()),
            ("is_write", false.into()),
            ("sectors", 1_u32.into()),
        ]);
        row
    };
    let is_list = |column: &&schema::Column| column.name != "sector_ids";
    let plain: Vec<schema::Column> = ACCESSES.columns.iter().filter(is_list).copied().collect();
    let narrow = Table { name: "accesses", doc: "", scope: Scope::Store, columns: Box::leak(plain.into()) };
    let narrow: &'static Table = Box::leak(Box::new(narrow));
    let scalars = rows_of(narrow, &[access(0), access(1), access(2)]);
    let mut ids = schema::list_u64();
    for sector in [0_u64, 2, 0] {
        ids.append_value([Some(sector)]);
    }
    let ids: ArrayRef = std::sync::Arc::new(ids.finish());
    let columns = ACCESSES.columns.iter().map(|column| scalars.column_by_name(column.name).unwrap_or(&ids).clone());
    let accesses = RecordBatch::try_new(ACCESSES.arrow(), columns.collect()).unwrap();
    let (folder, root) = store(&[(&ACCESSES, accesses)]);
    let path = folder.path().join("map.toml");
    let region = "[[region]]\nname = \"k\"\nbase = \"0x0\"\nblock_tokens = 1\n";
    fs::write(&path, format!("{region}layout = [{{ dimension = \"token\", count = 2, stride_bytes = 64 }}]\n"))
        .unwrap();
    let store = Store::open(Path::new(&root)).unwrap();
    let with = args(&[&root, "--address-map", path.to_str().unwrap()]);
    let uses = show(&store, &with, Part::BlockUses).unwrap();
    let blocks = uses.column_by_name("block").unwrap().as_primitive::<UInt64Type>();
    assert_eq!(blocks.values().as_ref(), [0, 1, 0]);
    let replayed = show(&store, &with, Part::Blocks).unwrap();
    assert_eq!((cell(&replayed, "hits", 0), cell(&replayed, "hits", 1)), ("0".to_owned(), "1".to_owned()));
    let stats = show(&store, &with, Part::Accesses).unwrap();
    assert_eq!(
        (cell(&stats, "footprint_bytes", 0), cell(&stats, "p50_reuse_sectors", 0)),
        ("64".to_owned(), "1".to_owned())
    );
    let error = show(&store, &args(&[&root]), Part::Blocks).unwrap_err();
    assert_eq!(error.to_string(), "expected an address map, found none");
}

#[test]
fn a_fit_is_written_and_a_scenario_takes_it() {
    let request = |id: u64| -> Vec<(&str, Cell)> {
        let lengths = [("prompt_tokens", 100_u32.into()), ("output_tokens", 50_u32.into())];
        let mut row: Vec<(&str, Cell)> =
            vec![("request_id", id.into()), ("source_id", 0_u32.into()), ("status", "ok".into())];
        row.extend(lengths);
        row
    };
    // Batches of one and two requests, at 3 ms over what bytes cost.
    let (mut requests, mut steps) = (vec![request(0), request(1)], Vec::new());
    for at in 0..40_u64 {
        for id in 0..=at % 2 {
            steps.push(vec![
                ("request_id", Cell::from(id)),
                ("step", (at as u32 + 1).into()),
                ("engine_step", at.into()),
                ("phase", "decode".into()),
                ("duration_ns", (3_000_000 + 20_000 * at as i64).into()),
                ("context_tokens", (1000 * at as u32 + 101).into()),
                ("new_tokens", 1_u32.into()),
                ("batch_requests", (at as u32 % 2 + 1).into()),
            ]);
        }
    }
    requests.reverse();
    let tables = [(&REQUESTS, rows_of(&REQUESTS, &requests)), (&STEPS, rows_of(&STEPS, &steps))];
    let (folder, root) = store(&tables.map(|(table, batch)| (table as &'static Table, batch)));
    let path = folder.path().join("fit.toml");
    let path = path.to_str().unwrap();
    let words = [root.as_str(), "fit", "--model", "smollm2-135m", "--machine", "h100", "--write-fit", path];
    assert_eq!(run(&args(&words)).unwrap(), Exit::Done);
    let text = fs::read_to_string(path).unwrap();
    assert!(
        text.starts_with("[calibrated]\nsource = \"fit to 40 captured steps of smollm2-135m under full on 1 of h100;"),
        "{text}"
    );
    let expression = format!("h100*calibrated={path}");
    let fitted = load_machine(&expression).unwrap();
    assert_ne!(fitted.efficiency, load_machine("h100").unwrap().efficiency);
    // Fitted again on top of itself, the machine prices the steps as they were measured.
    let again = [root.as_str(), "fit", "--model", "smollm2-135m", "--machine", &expression];
    let store = Store::open(Path::new(&root)).unwrap();
    let table = show(&store, &args(&again), Part::Fit).unwrap();
    let error = |column: &str| cell(&table, column, 0).parse::<f64>().unwrap();
    assert!(error("unfitted_median_error_ratio") < error("median_error_ratio") + 1e-3, "{text}");
}
