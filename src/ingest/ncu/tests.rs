use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical::REJECTS;
use engine::schema::captured::{COUNTERS, KERNELS};
use proptest::prelude::*;

use super::super::Options;
use super::super::tests::{Bench, check_law, quarantine, sample, text};
use super::*;

fn numbers<T: arrow::array::ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().clone());
    let values = |column: arrow::array::PrimitiveArray<T>| -> Vec<Option<T::Native>> {
        (0..column.len()).map(|at| column.is_valid(at).then(|| column.value(at))).collect()
    };
    columns.flat_map(values).collect()
}

/// The counters of a kernel by name: value and text.
fn counter(batches: &[RecordBatch], kernel: u64, name: &str) -> (Option<String>, Option<f64>, Option<String>) {
    let (kernels, names) = (numbers::<UInt64Type>(batches, "kernel_id"), text(batches, "counter"));
    let at = (0..names.len()).find(|at| kernels[*at] == Some(kernel) && names[*at].as_deref() == Some(name)).unwrap();
    let (units, texts) = (text(batches, "unit"), text(batches, "text"));
    (units[at].clone(), numbers::<Float64Type>(batches, "value")[at], texts[at].clone())
}

#[test]
fn a_wide_file_with_what_the_program_printed() {
    let path = sample("ncu/vectoradd_gtx1080_raw.csv");
    let bench = Bench::new();
    let summary = &bench.ingest(&[&path], &Options::standard()).unwrap()[0];
    assert_eq!((summary.format, summary.rows_in, summary.rows_out), ("ncu", 3, 3));
    check_law(&bench);
    let printed = summary.log.iter().find(|entry| entry.code == "printed_line").unwrap();
    assert_eq!((printed.count, printed.first_line), (5, Some(1)));
    // 400 columns, of which 8 say which launch it is.
    let content = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = content.lines().skip(5).collect();
    let split = |line: &str| -> Vec<String> { line.trim_matches('"').split("\",\"").map(str::to_owned).collect() };
    let rows: Vec<Vec<String>> = lines.iter().map(|line| split(line)).collect();
    assert_eq!(rows[0].len(), 400);
    let counters = bench.store().read(&COUNTERS).unwrap();
    let kernels = numbers::<UInt64Type>(&counters, "kernel_id");
    assert_eq!(kernels.len(), 3 * 392);
    // Cells with thousands separators, each of which is the number without them.
    let (names, values) = (text(&counters, "counter"), numbers::<Float64Type>(&counters, "value"));
    let mut separated = 0;
    for (launch, row) in rows[2..].iter().enumerate() {
        for (name, cell) in rows[0].iter().zip(row).filter(|(_, cell)| cell.contains(',') && !cell.contains(';')) {
            let at =
                (0..names.len()).find(|at| kernels[*at] == Some(launch as u64) && names[*at].as_ref() == Some(name));
            let expected: f64 = cell.replace(',', "").parse().unwrap();
            assert_eq!(values[at.unwrap()], Some(expected), "{name}");
            separated += 1;
        }
    }
    let lists = rows[2..].iter().flatten().filter(|cell| cell.contains(',') && cell.contains(';')).count();
    assert_eq!(separated + lists, 3 * 93);
    let table = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&table, "dram_read_bytes")[0], Some(7552));
    assert_eq!(numbers::<UInt64Type>(&table, "dram_write_bytes")[0], Some(384));
    assert_eq!(numbers::<Int64Type>(&table, "duration_ns")[0], Some(2720));
    assert_eq!(numbers::<UInt32Type>(&table, "registers")[0], Some(8));
    assert_eq!(numbers::<UInt64Type>(&table, "process")[0], Some(3_628_380));
    assert_eq!(counter(&counters, 0, "dram__frequency"), (Some("hertz".to_owned()), Some(5_458_823_529.41), None));
    assert_eq!(counter(&counters, 0, "gpu__time_duration").0, Some("ns".to_owned()));
    let (_, value, list) = counter(&counters, 0, "memory_access_type");
    assert_eq!((value, list.as_deref()), (None, Some("2.00; 2.00; 4.00")));
}

const LONG: &str = r#""ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"#;

#[test]
fn a_long_file_is_grouped_by_launch() {
    let row = |id: u32, rest: &str| {
        format!(
            "\"{id}\",\"2583\",\"secret\",\"10.1.2.3\",\"branch(int, float)\",\"1\",\"7\",\"(256, 1, 1)\",\"(12, 2, 1)\",\"0\",\"7.5\",\"Command line profiler metrics\",{rest}\n"
        )
    };
    let content = format!(
        "hello, world\n{LONG}{}{}{}{}==PROF== Disconnected\n{}",
        row(0, "\"dram__bytes_read.sum\",\"byte\",\"2,816\""),
        row(0, "\"dram__bytes_write.sum\",\"Kbyte\",\"1.5\""),
        row(0, "\"gpu__time_duration.sum\",\"usecond\",\"12.345\""),
        row(0, "\"sm__throughput\",\"%\",\"n/a\""),
        row(1, "\"launch__shared_mem_per_block_dynamic\",\"Kbyte/block\",\"1.02\""),
    );
    let bench = Bench::new();
    let summary = &bench.ingest(&[&bench.file("ncu.csv", &content)], &Options::standard()).unwrap()[0];
    // Each line is a row: five metrics of two launches.
    assert_eq!((summary.format, summary.rows_in, summary.rows_out), ("ncu", 5, 5));
    assert_eq!(summary.tables, [("kernels", 2), ("counters", 5)]);
    check_law(&bench);
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&kernels, "dram_read_bytes"), [Some(2816), None]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "dram_write_bytes"), [Some(1500), None]);
    assert_eq!(numbers::<Int64Type>(&kernels, "duration_ns"), [Some(12_345), None]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "shared_bytes"), [None, Some(1020)]);
    assert_eq!(numbers::<UInt32Type>(&kernels, "grid_x"), [Some(12); 2]);
    assert_eq!(numbers::<UInt32Type>(&kernels, "block_x"), [Some(256); 2]);
    assert_eq!(text(&kernels, "name")[0].as_deref(), Some("branch(int, float)"));
    let counters = bench.store().read(&COUNTERS).unwrap();
    assert_eq!(counter(&counters, 0, "sm__throughput"), (Some("%".to_owned()), None, Some("n/a".to_owned())));
    assert_eq!(numbers::<UInt64Type>(&counters, "kernel_id"), [0, 0, 0, 0, 1].map(Some));
    assert!(summary.log.iter().any(|entry| entry.code == "scaled_unit"));
    assert_eq!(
        summary.log.iter().filter(|entry| entry.code == "printed_line").map(|entry| entry.count).sum::<u64>(),
        2
    );
}

#[test]
fn metrics_that_stand_twice_are_counted() {
    let row = |metric: &str, value: &str| {
        format!(
            "\"0\",\"1\",\"p\",\"h\",\"k\",\"1\",\"7\",\"\",\"\",\"0\",\"7.5\",\"s\",\"{metric}\",\"byte/block\",\"{value}\"\n"
        )
    };
    let shared = "launch__shared_mem_per_block_static";
    let bench = Bench::new();
    let content = format!("{LONG}{}{}{}", row(shared, "100"), row("other", "1"), row(shared, "100"));
    let summary = &bench.ingest(&[&bench.file("ncu.csv", &content)], &Options::standard()).unwrap()[0];
    assert_eq!(summary.tables, [("kernels", 1), ("counters", 3)]);
    let again = summary.log.iter().find(|entry| entry.code == "counter_again").unwrap();
    assert_eq!((again.count, again.first_line), (1, Some(4)));
    assert_eq!(numbers::<UInt64Type>(&bench.store().read(&KERNELS).unwrap(), "shared_bytes"), [Some(100)]);

    // In a wide file the header says it once for all launches, and rows are launches.
    let bench = Bench::new();
    let wide = "\"ID\",\"Process ID\",\"Kernel Name\",\"dram__read_bytes\",\"dram__read_bytes\"\n\
                \"\",\"\",\"\",\"byte\",\"byte\"\n\"0\",\"1\",\"k\",\"5\",\"9\"\n\"1\",\"1\",\"k\",\"6\",\"9\"\n";
    let summary = &bench.ingest(&[&bench.file("ncu.csv", wide)], &Options::standard()).unwrap()[0];
    assert_eq!((summary.rows_in, summary.rows_out), (2, 2));
    assert_eq!(summary.log.iter().find(|entry| entry.code == "counter_again").unwrap().count, 2);
    assert_eq!(numbers::<UInt64Type>(&bench.store().read(&KERNELS).unwrap(), "dram_read_bytes"), [Some(5), Some(6)]);
    let error = Bench::new().error("\"ID\",\"Process ID\",\"Kernel Name\",\"Kernel Name\"\n\"0\",\"1\",\"k\",\"l\"\n");
    assert!(error.to_string().contains("expected each column once, found `Kernel Name` twice"), "{error}");
}

/// Names of hosts and processes stand in no table and no message, whatever is wrong with a row.
#[test]
fn bad_rows_are_shown_without_what_is_private() {
    let good = "\"0\",\"1\",\"secret\",\"10.1.2.3\",\"k\",\"1\",\"7\",\"\",\"\",\"0\",\"7.5\",\"s\",\"m\",\"\",\"1\"\n";
    for bad in [
        "\"0\",\"1\",\"secret\",\"10.1.2.3\",\"k\",\"1\",\"7\",\"(1, x)\",\"\",\"0\",\"7.5\",\"s\",\"m\",\"\",\"1\"\n",
        "\"0\",\"1\",\"secret\",\"10.1.2.3\",\"k\"\n",
        "\"0\",\"1\",\"secret\",\"10.1.2.3\n",
        "\"0\",\"1\",\"secr\n",
        "\"0\",\"1\"x,\"secret\",\"10.1.2.3\"\n",
        "\"0\",\"1\",\"secret\"y,\"10.1.2.3\"\n",
    ] {
        let bench = Bench::new();
        let path = bench.file("ncu.csv", format!("{LONG}{good}{bad}"));
        let summary = &bench.ingest(&[&path], &quarantine()).unwrap()[0];
        assert_eq!((summary.rows_in, summary.rows_rejected), (2, 1), "{bad}");
        let rejects = bench.store().read(&REJECTS).unwrap();
        let mut shown = format!("{rejects:?}{:?}", summary.log);
        shown.push_str(
            &bench.ingest(&[&path], &Options { again: true, ..Options::standard() }).unwrap_err().to_string(),
        );
        assert!(!shown.contains("secr") && !shown.contains("10.1."), "{shown}");
    }
}

#[test]
fn units_have_a_base() {
    for (unit, base, power) in [
        ("byte", "byte", 0),
        ("Kbyte", "byte", 3),
        ("Gbyte/second", "byte/second", 9),
        ("Gbyte/s", "byte/second", 9),
        ("byte/block", "byte/block", 0),
        ("nsecond", "ns", 0),
        ("us", "ns", 3),
        ("msecond", "ns", 6),
        ("second", "ns", 9),
        ("Ghz", "hertz", 9),
        ("cycle/nsecond", "hertz", 9),
        ("cycle/usecond", "hertz", 6),
        ("inst/cycle", "inst/cycle", 0),
        ("register/thread", "register/thread", 0),
        ("%", "%", 0),
        ("", "", 0),
    ] {
        assert_eq!(base_unit(unit), (base.to_owned(), power), "{unit}");
    }
}

#[test]
fn only_numbers_are_numbers() {
    for (text, number) in [
        ("1,759,000.00", Some("1759000.00")),
        ("-12.5", Some("-12.5")),
        ("7", Some("7")),
        ("1234567", Some("1234567")),
        ("1,5", None),
        ("1234,567", None),
        ("1.234,5", None),
        ("n/a", None),
        ("inf", None),
        ("1.", None),
        ("", None),
        ("32.00; 32.00", None),
    ] {
        assert_eq!(plain(text).as_deref(), number, "{text}");
    }
}

proptest! {
    /// Separators change nothing.
    #[test]
    fn grouped_numbers_come_back(value in any::<u64>(), cents in 0_u32..100) {
        let digits = value.to_string();
        let mut grouped = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at) % 3 == 0 {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        prop_assert_eq!(plain(&format!("{grouped}.{cents:02}")), Some(format!("{value}.{cents:02}")));
    }
}
