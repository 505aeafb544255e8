use proptest::prelude::*;
use serde::Deserialize;

use super::*;

/// The same row through serde, as the slow and independent reading.
#[derive(Debug, Deserialize)]
struct Slow {
    timestamp: serde_json::Number,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

const SETUP: Setup = Setup { unit: TimeUnit::Ms, blocks: STANDARD, origin: Origin::Format, epoch: false };

fn fast(line: &[u8]) -> std::result::Result<(Row<'_>, Option<(i64, bool)>, Vec<u64>), Bad> {
    let mut ids = Vec::new();
    let row = parse(line, STANDARD.most(), &mut ids, &mut Unknown::new())?;
    let time = settle(line, &row, ids.len(), SETUP)?;
    Ok((row, time, ids))
}

fn slow(line: &[u8]) -> Option<Slow> {
    let row: Slow = serde_json::from_slice(line).ok()?;
    let good = row.hash_ids.len() == row.input_length.div_ceil(512) as usize;
    (good && row.timestamp.as_f64().is_some_and(|time| (0.0..9e12).contains(&time))).then_some(row)
}

const LINE: &str = r#"{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 2353], "more": {"a": ["b\n", null, -1.5e3]}}"#;

#[test]
fn a_published_line_is_read() {
    let (row, time, ids) = fast(LINE.as_bytes()).unwrap();
    assert_eq!((time, row.input, row.output), (Some((27_482_000_000, true)), 6955, 52));
    assert_eq!(ids, [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 2353]);
}

#[test]
fn a_line_of_endless_ids_is_cut_short() {
    let mut line = br#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["#.to_vec();
    line.extend(b"1,".repeat(9_000_000));
    let mut ids = Vec::new();
    let bad = parse(&line, STANDARD.most(), &mut ids, &mut Unknown::new()).unwrap_err();
    assert_eq!((bad.code, ids.len()), ("block_count", 8_388_608));
}

#[test]
fn deep_nesting_is_a_bad_row() {
    let line = format!(r#"{{"x": {}"#, "[".repeat(100_000));
    assert_eq!(fast(line.as_bytes()).unwrap_err().code, "json");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// On good lines in any layout, and on lines with some bytes changed, the scanner agrees with serde.
    #[test]
    fn the_scanner_agrees_with_serde(
        time in 0_u32..100_000_000,
        input in 0_u32..4000,
        ids in proptest::collection::vec(any::<u64>(), 8),
        order in Just([0_usize, 1, 2, 3]).prop_shuffle(),
        space in "[ \t]{0,2}",
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), "[ -~]"), 0..3),
    ) {
        let ids: Vec<String> = ids[..input.div_ceil(512) as usize].iter().map(u64::to_string).collect();
        let fields = [
            format!("\"timestamp\":{space}{time}"),
            format!("\"input_length\"{space}:{input}"),
            "\"output_length\":3".to_owned(),
            format!("\"hash_ids\":[{}]", ids.join(&format!("{space},"))),
        ];
        let fields: Vec<&str> = order.iter().map(|at| fields[*at].as_str()).collect();
        let mut line = format!("{{{}}}", fields.join(&format!(",{space}"))).into_bytes();
        let edited = !edits.is_empty();
        for (at, byte) in edits {
            let at = at.index(line.len());
            line[at] = byte.as_bytes()[0];
        }
        let text = String::from_utf8_lossy(&line).into_owned();
        match (fast(&line), slow(&line)) {
            (Ok((row, time, ids)), Some(slow)) => {
                prop_assert_eq!((row.input, row.output, ids), (slow.input_length, slow.output_length, slow.hash_ids), "{}", text);
                let ns = slow.timestamp.as_f64().unwrap() * 1e6;
                prop_assert!((time.unwrap().0 as f64 - ns).abs() <= 1.0 + ns * 1e-9, "{text}");
            }
            (Err(_), None) => prop_assert!(edited, "{text}"),
            // A key with an escape is read by serde alone.
            (Err(_), Some(_)) if text.contains('\\') => {}
            (fast, slow) => prop_assert!(false, "{text}: {fast:?} {slow:?}"),
        }
    }

    /// Any line is a row or a problem whose place lies within it.
    #[test]
    fn any_line_is_judged(line in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Err(bad) = fast(&line) {
            prop_assert!(bad.at <= line.len());
            let problem = Problem::in_line("x", &line, 1, 0, bad);
            prop_assert!(problem.shown.lines().count() >= 3);
        }
    }
}
