use proptest::prelude::*;

use super::super::source::{LIMITS, open};
use super::super::{Body, Options};
use super::*;

/// The top-level values of a file, each with its line.
fn records(text: &str) -> Vec<(u64, u64, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, text).unwrap();
    let options = Options::standard();
    let source = open(path.to_str().unwrap(), &LIMITS).unwrap();
    let (mut input, _finish) = source.into_input(&options).unwrap();
    let Body::Lines(lines) = &mut input.body else { panic!("a file") };
    let mut records = Records::new(1 << 20);
    let mut found = Vec::new();
    while let Some(record) = records.next(lines, "a", &mut |_| {}).unwrap() {
        found.push((record.number, record.offset, String::from_utf8(record.bytes).unwrap()));
    }
    found
}

#[test]
fn values_end_where_their_brackets_close() {
    let text = "{\"a\": \"}\\\"{\"}\n\n{\n  \"b\": [\n  1]\n}\n{\"cut\": [1,\n{\"c\": 1}\nnoise\n{\"open\n{\n \"d\": 2";
    let found: Vec<(u64, String)> = records(text).into_iter().map(|(number, _, text)| (number, text)).collect();
    let expected = [
        (1, "{\"a\": \"}\\\"{\"}"),
        (3, "{   \"b\": [   1] }"),
        (7, "{\"cut\": [1,"),
        (8, "{\"c\": 1}"),
        (9, "noise"),
        (10, "{\"open"),
        (11, "{  \"d\": 2"),
    ];
    assert_eq!(found, expected.map(|(number, text)| (number, text.to_owned())));
}

#[test]
fn a_problem_is_told_at_its_line() {
    let mut record = Record::default();
    for (number, offset, bytes) in [(5, 100, &b"{"[..]), (6, 102, b"  \"a\": x"), (7, 111, b"}")] {
        record.push(Line { bytes, number, offset });
    }
    assert_eq!(record.bytes, b"{   \"a\": x }");
    let problem = record.problem("f", bad_at(&record.bytes, 9, "json", "a JSON value"));
    assert_eq!((problem.line, problem.column, problem.byte_offset), (6, 8, 102));
    assert_eq!(problem.shown, "f:6:8: expected a JSON value, found `x`\n    \"a\": x\n         ^");
    assert_eq!(problem.raw, "{   \"a\": x }");
}

#[test]
fn a_value_that_never_ends_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, "[\n".repeat(1000)).unwrap();
    let options = Options::standard();
    let (mut input, _finish) = open(path.to_str().unwrap(), &LIMITS).unwrap().into_input(&options).unwrap();
    let Body::Lines(lines) = &mut input.body else { panic!("a file") };
    let error = Records::new(1000).next(lines, "a", &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "expected JSON values of at most 1000 bytes in `a`, found a longer one from line 1");
}

#[test]
fn the_mean_rounds_to_the_nearest_nanosecond() {
    let found =
        [(10, 0), (10, 1), (10, 2), (10, 4), (11, 3), (-11, 3), (i64::MAX, 2)].map(|(a, b)| time_per_token(a, b));
    assert_eq!(found, [None, None, Some(10), Some(3), Some(6), Some(-5), Some(i64::MAX)]);
}

#[test]
fn times_and_texts_are_read_as_they_are_written() {
    let time_of = |text: &str| time(&mut Scan::new(text.as_bytes()), "`t`", TimeUnit::S).map_err(|bad| bad.code);
    assert_eq!(time_of("-0.0"), Ok((0, true)));
    assert_eq!(time_of("-0.1"), Err("negative"));
    assert_eq!(time_of("1e99"), Err("out_of_range"));
    assert_eq!(time_of("null"), Err("wrong_type"));
    let text_of = |line: &str| {
        let found = maybe_id(&mut Scan::new(line.as_bytes()), line.as_bytes(), "`id`");
        found.map(|text| text.map(Cow::into_owned)).map_err(|bad| bad.code)
    };
    assert_eq!(text_of("\"a\\u00e9\\n\""), Ok(Some("aé\n".to_owned())));
    assert_eq!(text_of("17"), Ok(Some("17".to_owned())));
    assert_eq!(text_of("null"), Ok(None));
    assert_eq!(text_of("[1]"), Err("wrong_type"));
}

proptest! {
    /// Objects printed on one line or on several, with damage between them, come back one by one.
    #[test]
    fn whole_objects_come_back(
        values in proptest::collection::vec((any::<bool>(), "[ -~]{0,12}", 0..5_i32), 1..8),
    ) {
        let mut text = String::new();
        let mut expected = Vec::new();
        for (pretty, key, number) in values {
            let value = serde_json::json!({ key: { "list": vec![number; number as usize], "n": number } });
            let one = if pretty { serde_json::to_string_pretty(&value).unwrap() } else { value.to_string() };
            text.extend([one.as_str(), "\n"]);
            expected.push(one.replace('\n', " "));
        }
        let found: Vec<String> = records(&text).into_iter().map(|(.., text)| text).collect();
        prop_assert_eq!(found, expected);
    }
}
