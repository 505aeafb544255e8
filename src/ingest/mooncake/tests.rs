use proptest::prelude::*;
use serde::Deserialize;

use super::*;
use crate::ingest::problem::Problem;

/// The same row through serde, as the slow and independent reading.
#[derive(Debug, Deserialize)]
struct Slow {
    timestamp: serde_json::Number,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

const SETUP: Setup = Setup { unit: TimeUnit::Ms, blocks: STANDARD, hashed: true, origin: Origin::Format, epoch: false };

type Read<'a> = (Row<'a>, Option<(i64, bool)>, Vec<u64>);

fn fast(line: &[u8]) -> std::result::Result<Read<'_>, Bad> {
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

mod dialects {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
    use engine::schema::canonical;

    use crate::ingest::Options;
    use crate::ingest::TimeUnit;
    use crate::ingest::tests::{Bench, check_law, column, hashes, quarantine, read, text};

    /// Rows of this block size and rounding, every `gap` apart.
    fn rows(count: u32, gap: &str, tokens: impl Fn(u32) -> u32, blocks: impl Fn(u32) -> u32) -> String {
        let gap: f64 = gap.parse().unwrap();
        let row = |at: u32| {
            let ids: Vec<String> = (0..blocks(tokens(at))).map(|id| id.to_string()).collect();
            let time = f64::from(at) * gap;
            format!(
                "{{\"timestamp\":{time},\"input_length\":{},\"output_length\":1,\"hash_ids\":[{}]}}\n",
                tokens(at),
                ids.join(",")
            )
        };
        (0..count).map(row).collect()
    }

    fn settings(bench: &Bench) -> (Option<u32>, Vec<String>) {
        let sources = read(bench, &canonical::SOURCES);
        let block = sources[0].column_by_name("block_tokens").unwrap().as_primitive::<UInt32Type>().clone();
        let names = ["time_unit", "rounding", "settings_origin"];
        let texts = names.iter().flat_map(|name| text(&sources, name)).map(Option::unwrap_or_default);
        (block.is_valid(0).then(|| block.value(0)), texts.collect())
    }

    #[test]
    fn block_size_and_rounding_are_found() {
        for (size, floor) in [(64, false), (64, true), (16, false), (16, true), (512, true), (128, false)] {
            let bench = Bench::new();
            let blocks = |tokens: u32| if floor { tokens / size } else { tokens.div_ceil(size) };
            let path = bench.file("a", rows(100, "300", |at| 1000 + 37 * at, blocks));
            bench.ingest(&[&path], &Options::standard()).unwrap();
            let rounding = if floor { "floor" } else { "ceil" };
            assert_eq!(settings(&bench), (Some(size), vec!["ms".into(), rounding.into(), "detected".into()]));
            assert_eq!(column::<UInt32Type>(&read(&bench, &canonical::REQUESTS), "block_tokens"), vec![size; 100]);
        }
    }

    #[test]
    fn a_row_against_what_was_found_is_bad_and_a_flag_against_it_is_refused() {
        let bench = Bench::new();
        let good = rows(90, "300", |at| 1000 + 37 * at, |tokens| tokens.div_ceil(16));
        let bad = "{\"timestamp\":99999,\"input_length\":1030,\"output_length\":1,\"hash_ids\":[1,2,3]}\n";
        let path = bench.file("a", format!("{good}{bad}"));
        let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
        assert!(error.contains(":91:69: expected 65 blocks of 16 for 1030 tokens, found 3"), "{error}");
        let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
        assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (90, 1));
        check_law(&bench);
        let flag = |size| Options { block_tokens: Some(size), again: true, ..quarantine() };
        let error = bench.ingest(&[&path], &flag(512)).unwrap_err().to_string();
        assert!(error.starts_with("expected blocks of 512 tokens in "), "{error}");
        assert!(error.ends_with("found ceil of 16 tokens in its first rows"), "{error}");
        bench.ingest(&[&path], &flag(16)).unwrap();
    }

    #[test]
    fn seconds_are_found_where_milliseconds_would_be_absurd() {
        let unit = |bench: &Bench| settings(bench).1[0].clone();
        let ceil = |tokens: u32| tokens.div_ceil(512);
        for (gap, expected, last) in [
            // Four requests a second, and 4,000 in that unit's thousandth.
            ("0.25", "s", 9 * 250_000_000),
            // Dynamo's milliseconds with a fraction.
            ("250.125", "ms", 9 * 250_125_000),
            ("3", "ms", 9 * 3_000_000),
        ] {
            let bench = Bench::new();
            let path = bench.file("a", rows(10, gap, |_| 6000, ceil));
            bench.ingest(&[&path], &Options::standard()).unwrap();
            assert_eq!((unit(&bench).as_str(), gap), (expected, gap));
            assert_eq!(column::<Int64Type>(&read(&bench, &canonical::REQUESTS), "arrival_ns")[9], last);
        }
        let bench = Bench::new();
        let path = bench.file("a", rows(10, "250", |_| 6000, ceil));
        let options = Options { time_unit: Some(TimeUnit::Ns), ..Options::standard() };
        let error = bench.ingest(&[&path], &options).unwrap_err().to_string();
        assert!(error.contains("expected instants in ns") && error.contains("requests per second"), "{error}");
        let options = Options { time_unit: Some(TimeUnit::S), ..Options::standard() };
        bench.ingest(&[&path], &options).unwrap();
        assert_eq!(settings(&bench).1, ["s", "ceil", "flag"]);
    }

    #[test]
    fn agentic_rows_keep_sessions_pauses_and_parents() {
        let bench = Bench::new();
        let path = bench.file(
            "a",
            concat!(
                r#"{"request_id":"r1","session_id":"s","timestamp":5.5,"input_tokens":600,"output_tokens":9,"hash_ids":[1,2],"prefix_reset":true,"branches":["r2"]}"#,
                "\n",
                r#"{"request_id":"r2","session_id":"t","input_length":1024,"output_length":9,"hash_ids":[1,3],"wait_for":["r0","r1"],"delay":12.5,"tool_wait_ms":300,"timestamp":null}"#,
                "\n",
                r#"{"request_id":"r3","session_id":"s","input_length":5,"output_length":1,"hash_ids":null,"delay_ms":1,"request_kind":"k","output_token_ids":[7]}"#,
                "\n",
                r#"{"session_id":4,"created_time":9,"input_length":100,"output_length":1,"block_size":64,"hash_ids":[5,6],"text_input":"x"}"#,
            ),
        );
        let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
        let requests = read(&bench, &canonical::REQUESTS);
        let sessions: Vec<String> = text(&requests, "session_id").into_iter().flatten().collect();
        assert_eq!(sessions, ["s", "t", "s", "4"]);
        let longs = |name: &str| -> Vec<Option<i64>> {
            requests[0].column_by_name(name).unwrap().as_primitive::<Int64Type>().iter().collect()
        };
        assert_eq!(longs("arrival_ns"), [Some(5_500_000), None, None, Some(9_000_000)]);
        assert_eq!(longs("delay_ns"), [None, Some(312_500_000), Some(1_000_000), None]);
        let parents = requests[0].column_by_name("parent_request_id").unwrap().as_primitive::<UInt64Type>();
        assert_eq!(parents.iter().collect::<Vec<_>>(), [None, Some(0), Some(0), None]);
        assert_eq!(column::<UInt32Type>(&requests, "turn"), [0, 0, 1, 0]);
        assert_eq!(column::<UInt32Type>(&requests, "block_tokens"), [512, 512, 512, 64]);
        assert!(requests[0].column_by_name("block_hashes").unwrap().is_null(2));
        let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
        assert_eq!(
            log,
            [("unknown_key", 1), ("unknown_key", 1), ("dependencies", 1), ("no_block_ids", 1), ("unknown_key", 1)]
        );
        let error = Bench::new().error(
            r#"{"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[0]}
{"timestamp":0,"text_input":"x","output_length":1,"hash_ids":[0]}"#,
        );
        assert!(error.to_string().contains("expected the key `input_length`, since text must be tokenised first"));
        // The ids of a list of nulls are not lists.
        assert_eq!(hashes(&read(&bench, &canonical::REQUESTS)[..0]).len(), 0);
    }

    #[test]
    fn rows_without_block_ids_are_read_where_none_of_the_first_has_them() {
        let bare = "{\"timestamp\":0,\"input_length\":655,\"output_length\":52}\n";
        let hashed = "{\"timestamp\":1,\"input_length\":5,\"output_length\":1,\"hash_ids\":[7]}\n";
        let bench = Bench::new();
        let summaries = bench.ingest(&[&bench.file("a", bare.repeat(3))], &Options::standard()).unwrap();
        assert_eq!(
            summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect::<Vec<_>>(),
            [("no_block_ids", 3)]
        );
        let requests = read(&bench, &canonical::REQUESTS);
        assert_eq!(column::<UInt32Type>(&requests, "prompt_tokens"), [655; 3]);
        assert!(requests[0].column_by_name("block_tokens").unwrap().is_null(0));
        let error = Bench::new().error(format!("{hashed}{bare}"));
        assert!(error.to_string().contains("expected the key `hash_ids`"), "{error}");
    }
}
