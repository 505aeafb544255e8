use std::io::{self, Write};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, ListArray, RecordBatch, StringArray, UInt64Array,
};
use arrow::datatypes::UInt64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;

fn sample() -> RecordBatch {
    let columns: [(&str, ArrayRef); 6] = [
        ("name", Arc::new(StringArray::from(vec![Some("a, \"b\""), Some("tab\there|"), None]))),
        ("count", Arc::new(Int64Array::from(vec![Some(1_234_567), Some(-9_007_199_254_740_993), None]))),
        ("block_hash", Arc::new(UInt64Array::from(vec![u64::MAX, 1, 255]))),
        ("share_ratio", Arc::new(Float64Array::from(vec![0.123_456_789, f64::NAN, f64::INFINITY]))),
        ("single", Arc::new(Float32Array::from(vec![0.1, 12_345.678, 1e-9]))),
        (
            "hashes",
            Arc::new(ListArray::from_iter_primitive::<UInt64Type, _, _>(vec![
                Some(vec![Some(1), Some(u64::MAX)]),
                Some(vec![]),
                None,
            ])),
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn show(batch: RecordBatch, format: Format, max_rows: Option<usize>, is_terminal: bool) -> String {
    let mut bytes = Vec::new();
    let outcome = write(&[batch], Options { format, max_rows, is_terminal, width: 0 }, &mut bytes).unwrap();
    assert_eq!(outcome, Outcome::Complete);
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_table_groups_thousands_aligns_numbers_and_keeps_to_one_line_a_row() {
    let expected = "\
name           count                    block_hash          share_ratio  single  hashes
a, \"b\"              1,234,567  0xffffffffffffffff       0.1235     0.1  [0x0000000000000001, 0xffffffffffffffff]
tab here|  -9,007,199,254,740,993  0x0000000000000001          NaN  12,346  []
                                    0x00000000000000ff          inf  1.000e-9
";
    let found = show(sample(), Format::Table, None, false);
    let squeeze =
        |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    assert_eq!(squeeze(&found), squeeze(expected));
    let numbers: Vec<usize> = ["1,234,567", "-9,007,199,254,740,993"]
        .iter()
        .map(|n| found.lines().find_map(|l| l.find(n).map(|at| at + n.len())).unwrap())
        .collect();
    assert_eq!(numbers[0], numbers[1], "numbers end in one column:\n{found}");
}

#[test]
fn a_table_that_is_wider_than_the_terminal_comes_in_parts() {
    assert_eq!(side_by_side(&[4, 10, 10, 3], 30), [vec![0, 1, 2], vec![0, 3]]);
    assert_eq!(side_by_side(&[4, 10, 10, 3], 100), [vec![0, 1, 2, 3]]);
    assert_eq!(side_by_side(&[50, 40, 3], 30), [vec![0, 1], vec![0, 2]]);
    assert_eq!(side_by_side(&[], 30), [Vec::<usize>::new()]);
    let shown = |format: Format| {
        let mut bytes = Vec::new();
        write(&[sample()], Options { format, max_rows: None, is_terminal: true, width: 60 }, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let parts = shown(Format::Auto);
    let heads: Vec<&str> = parts.lines().filter(|line| line.starts_with("name ")).collect();
    assert!(heads.len() > 1 && heads.iter().all(|head| head.len() <= 60), "{parts}");
    assert!(parts.contains("share_ratio") && parts.contains("hashes"), "{parts}");
    // Asked for by name it is one table.
    assert_eq!(shown(Format::Table).matches("name").count(), 1);
}

#[test]
fn separated_values_keep_every_digit_and_quote_what_needs_it() {
    assert_eq!(
        show(sample(), Format::Csv, None, false),
        "name,count,block_hash,share_ratio,single,hashes\n\
         \"a, \"\"b\"\"\",1234567,18446744073709551615,0.123456789,0.1,\"[1,\"\"18446744073709551615\"\"]\"\n\
         tab\there|,-9007199254740993,1,NaN,12345.678,[]\n\
         ,,255,inf,0.000000001,\n"
    );
    let tsv = show(sample(), Format::Tsv, None, false);
    assert!(tsv.contains("\n\"tab\there|\"\t-9007199254740993\t"), "{tsv}");
}

#[test]
fn json_has_no_nan_and_no_number_that_a_double_would_change() {
    let lines = show(sample(), Format::Ndjson, None, false);
    let expected = [
        r#"{"name":"a, \"b\"","count":1234567,"block_hash":"0xffffffffffffffff","share_ratio":0.123456789,"single":0.1,"hashes":["0x0000000000000001","0xffffffffffffffff"]}"#,
        r#"{"name":"tab\there|","count":"-9007199254740993","block_hash":"0x0000000000000001","share_ratio":null,"single":12345.678,"hashes":[]}"#,
        r#"{"name":null,"count":null,"block_hash":"0x00000000000000ff","share_ratio":null,"single":1e-9,"hashes":null}"#,
    ];
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
    let array: serde_json::Value = serde_json::from_str(&show(sample(), Format::Json, None, false)).unwrap();
    assert_eq!(array.as_array().unwrap().len(), 3);
    let none = RecordBatch::new_empty(sample().schema());
    assert_eq!(show(none.clone(), Format::Json, None, false), "[]\n");
    assert_eq!(show(none, Format::Ndjson, None, false), "");
}

#[test]
fn markdown_escapes_bars() {
    let text = show(sample(), Format::Md, None, false);
    assert!(text.starts_with(
        "| name | count | block_hash | share_ratio | single | hashes |\n| --- | ---: | ---: | ---: | ---: | --- |\n"
    ));
    assert!(text.contains(r"| tab here\| |"), "{text}");
}

#[test]
fn only_a_terminal_cuts_and_it_says_so() {
    let many = |rows: i64| {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..rows)) as ArrayRef)]).unwrap()
    };
    let lines = |text: &str| text.lines().count();
    let cut = show(many(5000), Format::Auto, None, true);
    assert_eq!(lines(&cut), 1 + TERMINAL_ROWS + 1);
    assert_eq!(cut.lines().last(), Some("40 of 5,000 rows; --max-rows 0 or --format ndjson"));
    assert_eq!(lines(&show(many(5000), Format::Auto, None, false)), 5001);
    assert_eq!(lines(&show(many(5000), Format::Auto, Some(0), true)), 5001);
    assert_eq!(lines(&show(many(40), Format::Auto, None, true)), 41);
    assert_eq!(lines(&show(many(5000), Format::Csv, None, true)), 5001);
}

#[test]
fn parquet_comes_back_as_it_was_and_never_to_a_terminal() {
    let mut bytes = Vec::new();
    let options = Options { format: Format::Parquet, max_rows: None, is_terminal: false, width: 0 };
    write(&[sample()], options, &mut bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.parquet");
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let read: Vec<RecordBatch> =
        ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(|batch| batch.unwrap()).collect();
    assert_eq!(read[0].num_rows(), 3);
    assert_eq!(read[0].column(2).to_data(), sample().column(2).to_data());
    let error = write(&[sample()], Options { is_terminal: true, ..options }, &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "expected a file for the format parquet, found a terminal");
}

/// A destination that fails.
struct Failing(io::ErrorKind);

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    for (_, format) in Format::ALL {
        let options = Options { format, max_rows: None, is_terminal: false, width: 0 };
        let closed = write(&[sample()], options, &mut Failing(io::ErrorKind::BrokenPipe));
        assert_eq!(closed, Ok(Outcome::Closed), "{format:?}");
        assert!(write(&[sample()], options, &mut Failing(io::ErrorKind::StorageFull)).is_err(), "{format:?}");
    }
}

#[test]
fn an_unknown_format_suggests_the_nearest() {
    assert_eq!(Format::parse("nsjson").unwrap_err().advice(), Some("did you mean `ndjson`?"));
}

#[test]
fn an_arrow_file_reads_back_as_it_was_and_equal_results_give_equal_bytes() {
    let options = Options { format: Format::Arrow, max_rows: None, is_terminal: false, width: 0 };
    let bytes = || {
        let mut bytes = Vec::new();
        write(&[sample(), sample()], options, &mut bytes).unwrap();
        bytes
    };
    let read = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes()), None).unwrap();
    let batches: Vec<RecordBatch> = read.map(|batch| batch.unwrap()).collect();
    // NaN differs from itself, so the columns with doubles are left out.
    let exact = |batch: &RecordBatch| batch.project(&[0, 1, 2, 4, 5]).unwrap();
    assert_eq!(batches.iter().map(exact).collect::<Vec<_>>(), [exact(&sample()), exact(&sample())]);
    assert_eq!(bytes(), bytes());
}

#[test]
fn values_reach_a_file_as_they_are_and_never_steer_a_terminal() {
    let column: ArrayRef = Arc::new(StringArray::from(vec!["a\u{1b}[31mb"]));
    let batch = RecordBatch::try_from_iter([("topic", column)]).unwrap();
    assert_eq!(show(batch.clone(), Format::Csv, None, false), "topic\na\u{1b}[31mb\n");
    assert_eq!(show(batch, Format::Csv, None, true), "topic\na\u{fffd}[31mb\n");
}
