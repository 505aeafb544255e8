use arrow::array::AsArray;
use arrow::datatypes::{UInt32Type, UInt64Type};
use engine::schema::captured::BLOCK_EVENTS;

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, text};
use crate::ingest::{Options, inspect};

const CREATED: &str =
    r#"{"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [101230, 0]}, "window_size": 2048}"#;

fn block(hash: &str, tokens: &str) -> String {
    format!(
        r#"{{"type": "stored_block", "block_hash": {hash}, "tokens": {tokens}, "cache_level": 0, "priority": 35, "mm_keys": []}}"#
    )
}

fn token(id: u32, extra: u32) -> String {
    format!(r#"{{"type": "unique_token", "token_id": {id}, "token_extra_id": {extra}}}"#)
}

#[test]
fn the_four_events_are_read() {
    let bench = Bench::new();
    let plain = format!("[{}, {}]", token(1, 0), token(2, 0));
    let image = format!("[{}, {}]", token(1, 9), token(2, 0));
    let lines = [
        CREATED.to_owned(),
        format!(
            r#"{{"event_id": 1, "data": {{"type": "stored", "parent_hash": 17446744073709551615, "blocks": [{}, {}]}}, "window_size": 2048}}"#,
            block("4203099703668305365", &plain),
            block("18446744073709551615", &image)
        ),
        // A list, and 3 is missing.
        r#"[{"event_id": 2, "data": {"type": "updated", "block_hash": 7, "cache_level": {"type": "event_diff", "new_value": 1, "old_value": 0}, "priority": null}, "hash_algo": "v1"}, {"event_id": 4, "data": {"type": "removed", "block_hashes": [7, 8], "why": "full"}, "window_size": 512}]"#.to_owned(),
        r#"{"event_id": 0, "data": {"type": "removed", "block_hashes": [5]}, "attention_dp_rank": 1}"#.to_owned(),
    ];
    let path = bench.file("a", lines.join("\n"));
    assert_eq!(inspect(&path).unwrap().format, Some("trtllm_events"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    let expected = [("not_stored", 1), ("not_stored", 2), ("not_stored", 1), ("unknown_key", 1), ("lost_messages", 1)];
    assert_eq!(log, expected);
    assert_eq!(summaries[0].settings.block_tokens, Some(2));
    let rows = read(&bench, &BLOCK_EVENTS);
    let events = ["created", "stored", "stored", "updated", "removed", "removed", "removed"];
    assert_eq!(text(&rows, "event"), events.map(|event| Some(event.to_owned())));
    let hashes = column_of(&rows, "block_hash");
    let first = 4_203_099_703_668_305_365;
    assert_eq!(hashes, [None, Some(first), Some(u64::MAX), Some(7), Some(7), Some(8), Some(5)]);
    assert_eq!(column_of(&rows, "parent_hash")[1..3], [Some(17_446_744_073_709_551_615), Some(first)]);
    assert_eq!(text(&rows, "medium")[1..4], ["GPU", "GPU", "CPU"].map(|medium| Some(medium.to_owned())));
    let tokens = rows[0].column_by_name("token_ids").unwrap().as_list::<i32>().clone();
    let tokens: Vec<_> =
        tokens.iter().map(|list| list.map(|ids| ids.as_primitive::<UInt32Type>().values().to_vec())).collect();
    assert_eq!(tokens[..3], [None, Some(vec![1, 2]), None]);
    let groups: Vec<_> = rows[0].column_by_name("group_index").unwrap().as_primitive::<UInt32Type>().iter().collect();
    assert_eq!((groups[1], groups[3], groups[5]), (Some(2048), None, Some(512)));
    assert_eq!(column::<UInt64Type>(&rows, "seq"), [0, 1, 1, 2, 4, 4, 0]);
    check_law(&bench);
}

fn column_of(rows: &[arrow::array::RecordBatch], name: &str) -> Vec<Option<u64>> {
    rows.iter().flat_map(|batch| batch.column_by_name(name).unwrap().as_primitive::<UInt64Type>().iter()).collect()
}

/// A list as `json.dumps(events, indent=2)` prints it, with an event in it that is bad.
#[test]
fn a_printed_list_is_read() {
    let bench = Bench::new();
    let printed = |event: &str| {
        let value: serde_json::Value = serde_json::from_str(event).unwrap();
        serde_json::to_string_pretty(&value).unwrap()
    };
    let removed = |id: u32| format!(r#"{{"event_id": {id}, "data": {{"type": "removed", "block_hashes": [7, 8]}}}}"#);
    let bad = r#"{"event_id": -2, "data": {"type": "created"}}"#;
    let list = printed(&format!("[{CREATED}, {}, {bad}, {}]", removed(1), removed(3)));
    for text in [
        list.clone(),
        format!("\u{feff}{list}\n"),
        format!("{}\n{}\n{}\n{}\n", printed(CREATED), printed(&removed(1)), printed(bad), printed(&removed(3))),
    ] {
        let path = bench.file("a", &text);
        assert_eq!(inspect(&path).unwrap().format, Some("trtllm_events"), "{text}");
        let summary = bench.ingest(&[&path], &quarantine()).unwrap().remove(0);
        assert_eq!((summary.rows_out, summary.rows_rejected), (5, 1));
        // 2 came, and could not be read; who sent it is not known.
        assert!(summary.log.iter().any(|entry| entry.code == "lost_messages"), "{:?}", summary.log);
    }
    check_law(&bench);
    let rejects = read(&bench, &engine::schema::canonical::REJECTS);
    let lines: Vec<&str> = list.lines().collect();
    let place = lines.iter().position(|line| line.contains("-2")).unwrap() as u64 + 1;
    assert_eq!(column::<UInt64Type>(&rejects, "line")[0], place);
}

#[test]
fn bad_events_are_refused_one_by_one() {
    let bench = Bench::new();
    let cases = [
        (r#"{"data": {"type": "created"}}"#, "an event with the key `event_id`"),
        (r#"{"event_id": 1, "type": 2}"#, "an event with the key `data`"),
        (r#"{"event_id": 1, "data": {}}"#, "`data` with the key `type`"),
        (r#"{"event_id": 1, "data": {"type": "moved"}}"#, "`created`, `stored`, `removed` or `updated`"),
        (r#"{"event_id": 1, "data": {"type": "removed", "block_hashes": 5}}"#, "`block_hashes` as a list"),
        (r#"{"event_id": 1, "data": {"type": "stored", "blocks": [{"tokens": []}]}}"#, "a block with `block_hash`"),
        (r#"{"event_id": 1, "data": {"type": "updated", "block_hash": 1, "cache_level": {}}}"#, "`new_value`"),
        (r#"{"event_id": -1, "data": {"type": "created"}}"#, "`event_id` as a whole number"),
        (r#"{"event_id": 1"#, "`,` or `}`"),
    ];
    for (line, expected) in cases {
        let path = bench.file("x", format!("{CREATED}\n{line}\n"));
        let options = Options { again: true, ..quarantine() };
        let summaries = bench.ingest(&[&path], &options).unwrap();
        assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (1, 1), "{line}");
        let rejects = read(&bench, &engine::schema::canonical::REJECTS);
        let found = text(&rejects, "expected").pop().flatten().unwrap();
        assert!(found.contains(expected), "{line}: {found}");
    }
    check_law(&bench);
}
