use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;
use engine::schema::captured::BLOCK_EVENTS;

use super::frames::MAGIC;
use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};
use crate::ingest::{Options, Sniff, Summary, examine, inspect};

/// Packs values as the engines' library does.
#[derive(Clone)]
enum Packed {
    Nil,
    Int(i64),
    Big(u64),
    Float(f64),
    Text(&'static str),
    Bytes(Vec<u8>),
    List(Vec<Packed>),
    Map(Vec<(&'static str, Packed)>),
}

impl Packed {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => rmp::encode::write_nil(out).unwrap(),
            Self::Int(value) => drop(rmp::encode::write_sint(out, *value).unwrap()),
            Self::Big(value) => drop(rmp::encode::write_uint(out, *value).unwrap()),
            Self::Float(value) => rmp::encode::write_f64(out, *value).unwrap(),
            Self::Text(text) => rmp::encode::write_str(out, text).unwrap(),
            Self::Bytes(bytes) => rmp::encode::write_bin(out, bytes).unwrap(),
            Self::List(list) => {
                rmp::encode::write_array_len(out, list.len() as u32).unwrap();
                for value in list {
                    value.write(out);
                }
            }
            Self::Map(map) => {
                rmp::encode::write_map_len(out, map.len() as u32).unwrap();
                for (key, value) in map {
                    rmp::encode::write_str(out, key).unwrap();
                    value.write(out);
                }
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }
}

use Packed::{Big, Bytes, Float, Int, List, Map, Nil, Text};

fn batch(time: f64, events: Vec<Packed>) -> Packed {
    List(vec![Float(time), List(events), Int(0)])
}

/// A positional event that removes one block.
fn removed(hash: Packed) -> Packed {
    List(vec![Text("BlockRemoved"), List(vec![hash]), Text("GPU")])
}

/// A file of frames: sequence number and payload of each.
fn frames(messages: &[(i64, Vec<u8>)]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    for (seq, payload) in messages {
        let received = Int(1_789_095_808_838_000_000 + seq);
        List(vec![Int(*seq), received, Text("kv-events"), Bytes(payload.clone())]).write(&mut out);
    }
    out
}

fn counts(summary: &Summary) -> Vec<(&'static str, u64)> {
    summary.log.iter().map(|entry| (entry.code, entry.count)).collect()
}

fn maybe<T: arrow::array::ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().flat_map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().iter());
    columns.collect()
}

fn token_ids(batches: &[RecordBatch]) -> Vec<Option<Vec<u32>>> {
    let lists = batches.iter().flat_map(|batch| {
        let lists = batch.column_by_name("token_ids").unwrap().as_list::<i32>().clone();
        let values = |list: arrow::array::ArrayRef| list.as_primitive::<UInt32Type>().values().to_vec();
        lists.iter().map(|list| list.map(values)).collect::<Vec<_>>()
    });
    lists.collect()
}

fn owned(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn both_forms_of_the_sample_give_the_same_row() {
    let bench = Bench::new();
    let summaries =
        bench.ingest(&[&sample("kv_events/sglang_pr37271_both_forms.jsonl")], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_out, counts(&summaries[0])), (2, vec![("no_sequence", 2)]));
    let rows = read(&bench, &BLOCK_EVENTS);
    assert_eq!(maybe::<UInt64Type>(&rows, "block_hash"), [Some(123); 2]);
    assert_eq!(token_ids(&rows), vec![Some(vec![1, 2]); 2]);
    assert_eq!(text(&rows, "salt"), owned(&["tenant-a", "tenant-a"]));
    assert_eq!(text(&rows, "medium"), owned(&["GPU", "GPU"]));
    assert_eq!(column::<Int64Type>(&rows, "time_ns"), [1_000_000_000; 2]);
    assert_eq!(column::<UInt32Type>(&rows, "block_tokens"), [2, 2]);
    check_law(&bench);
}

/// The shape of vLLM 0.26's batches, in all files that hold them.
#[test]
fn frames_lines_and_base64_give_the_same_rows() {
    let stored = Map(vec![
        ("type", Text("BlockStored")),
        ("block_hashes", List(vec![Big(15_760_518_052_499_183_552), Int(-2)])),
        ("parent_block_hash", Big(9_999_999_999_999_999_999)),
        ("token_ids", List((10..14).map(Int).collect())),
        ("block_size", Int(2)),
        ("lora_id", Int(3)),
        ("medium", Text("GPU")),
        ("lora_name", Text("poet")),
        ("extra_keys", List(vec![Nil, Nil])),
        ("group_idx", Int(0)),
        ("kv_cache_spec_kind", Text("full_attention")),
    ]);
    let positional = List(vec![
        Text("BlockStored"),
        List(vec![Big(1)]),
        Nil,
        List(vec![Int(5), Int(6)]),
        Int(2),
        Int(3),
        Text("CPU"),
        Nil,
        List(vec![List(vec![Text("image")])]),
        Int(1),
        Text("sliding_window"),
        Int(1024),
    ]);
    let mixed = batch(1_789_095_808.837_884_7, vec![stored, positional, List(vec![Text("AllBlocksCleared")])]);
    let json = r#"[1789095808.8378847, [
        {"type":"BlockStored","block_hashes":[15760518052499183552,-2],"parent_block_hash":9999999999999999999,"token_ids":[10,11,12,13],"block_size":2,"lora_id":3,"medium":"GPU","lora_name":"poet","extra_keys":[null,null],"group_idx":0,"kv_cache_spec_kind":"full_attention"},
        ["BlockStored",[1],null,[5,6],2,3,"CPU",null,[["image"]],1,"sliding_window",1024],
        ["AllBlocksCleared"]], 0]"#.replace('\n', "");
    let envelope =
        |payload: &str| format!(r#"{{"seq":0,"recv_ns":1789095808838000000,"topic":"kv-events","payload":{payload}}}"#);
    let base64 = envelope(&format!("\"{}\"", encode(&mixed.bytes())));
    let mut found = Vec::new();
    for contents in [frames(&[(0, mixed.bytes())]), envelope(&json).into_bytes(), base64.into_bytes()] {
        let bench = Bench::new();
        let path = bench.file("a", contents);
        assert_eq!(inspect(&path).unwrap().format, Some("kv_events"));
        let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
        assert_eq!(counts(&summaries[0]), [("not_stored", 1), ("not_stored", 1)]);
        assert_eq!((summaries[0].settings.block_tokens, summaries[0].settings.clock), (Some(2), Some("epoch")));
        check_law(&bench);
        found.push(read(&bench, &BLOCK_EVENTS));
    }
    assert!(found[0] == found[1] && found[1] == found[2]);
    let rows = &found[0];
    let (first, second, third) = (15_760_518_052_499_183_552, (-2_i64).cast_unsigned(), 1);
    assert_eq!(maybe::<UInt64Type>(rows, "block_hash"), [Some(first), Some(second), Some(third), None]);
    let parents = [Some(9_999_999_999_999_999_999), Some(first), None, None];
    assert_eq!(maybe::<UInt64Type>(rows, "parent_hash"), parents);
    assert_eq!(token_ids(rows), [Some(vec![10, 11]), Some(vec![12, 13]), Some(vec![5, 6]), None]);
    assert_eq!(text(rows, "event"), owned(&["stored", "stored", "stored", "cleared"]));
    assert_eq!(text(rows, "lora")[1..3], owned(&["poet", "3"]));
    assert_eq!(text(rows, "attention")[1..3], owned(&["full_attention", "sliding_window"]));
    assert_eq!(column::<UInt32Type>(rows, "event_index"), [0, 0, 1, 2]);
    assert_eq!(column::<UInt32Type>(rows, "block_index"), [0, 1, 0, 0]);
    assert_eq!(column::<Int64Type>(rows, "time_ns"), [1_789_095_808_837_884_700; 4]);
    assert_eq!(column::<Int64Type>(rows, "received_ns"), [1_789_095_808_838_000_000; 4]);
    assert_eq!(text(rows, "topic"), owned(&["kv-events"; 4]));
}

/// Base64 the slow way: bit by bit.
fn encode(bytes: &[u8]) -> String {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |six: &[u8]| {
        let value = (0..6).fold(0, |value, at| value * 2 + usize::from(*six.get(at).unwrap_or(&0)));
        char::from(alphabet[value])
    };
    let mut text: String = bits.chunks(6).map(digit).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

#[test]
fn digests_of_32_bytes_keep_their_identity() {
    let bench = Bench::new();
    let (mut one, mut two) = ([0xab; 32].to_vec(), [0xab; 32].to_vec());
    (one[31], two[31]) = (1, 2);
    let parent = vec![7; 32];
    let stored = List(vec![
        Text("BlockStored"),
        List(vec![Bytes(one.clone()), Bytes(two.clone())]),
        Bytes(parent),
        List(vec![]),
        Int(16),
    ]);
    let packed = bench.file(
        "a",
        frames(
            &[(0, batch(1.0, vec![stored])), (1, batch(2.0, vec![removed(Bytes(vec![9]))]))]
                .map(|(seq, batch)| (seq, batch.bytes())),
        ),
    );
    let hex = crate::store::hex(&one);
    let lines = [
        format!(r#"[3.0,[["BlockRemoved",["{hex}","{}"]]],null]"#, encode(&two)),
        r#"[4.0,[["BlockRemoved",["15760518052499183552"]]]]"#.to_owned(),
    ];
    let lines = bench.file("b", lines.join("\n"));
    let summaries = bench.ingest(&[&packed, &lines], &quarantine()).unwrap();
    assert_eq!(counts(&summaries[0]), [("same_first_bytes", 1)]);
    // A number in quotes could be hex as well.
    assert_eq!((summaries[1].rows_out, summaries[1].rows_rejected), (2, 1));
    let rows = read(&bench, &BLOCK_EVENTS);
    let same = Some(0xabab_abab_abab_abab);
    assert_eq!(maybe::<UInt64Type>(&rows, "block_hash"), [same, same, Some(9), same, same]);
    let digests = text(&rows, "block_hash_hex");
    assert_eq!(digests[..2], [Some(hex.clone()), Some(crate::store::hex(&two))]);
    assert_eq!(digests[3..], digests[..2]);
    assert_eq!(text(&rows, "parent_hash_hex")[..2], [Some("07".repeat(32)), Some(hex)]);
    check_law(&bench);
}

#[test]
fn lost_repeated_and_reordered_messages_are_told() {
    let bench = Bench::new();
    let message = |seq: i64, time: f64| (seq, batch(time, vec![removed(Int(seq))]).bytes());
    let messages = [
        message(0, 1.0),
        message(1, 2.0),
        // 2 and 4 to 6 are missing, 3 comes late, 7 twice.
        message(7, 8.0),
        message(7, 8.0),
        message(3, 4.0),
        message(8, 9.0),
        // The publisher starts anew, and 1 of its messages is lost.
        message(0, 10.0),
        message(2, 12.0),
        (-1, vec![]),
    ];
    let path = bench.file("a", frames(&messages));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    let expected = [
        ("repeated_message", 1),
        ("reordered_message", 1),
        ("time_backwards", 1),
        ("publisher_restarted", 1),
        ("lost_messages", 5),
        ("end_marker", 1),
    ];
    assert_eq!(counts(&summaries[0]), expected);
    let lost = summaries[0].log.iter().find(|entry| entry.code == "lost_messages").unwrap();
    assert_eq!((lost.severity.name(), lost.first_line), ("data_loss", Some(3)));
    assert_eq!(column::<UInt64Type>(&read(&bench, &BLOCK_EVENTS), "seq"), [0, 1, 7, 7, 3, 8, 0, 2]);
    check_law(&bench);
    // Ranks count for themselves; a message that cannot be read is not lost.
    let line =
        |seq: u64, rank: u32| format!(r#"{{"seq":{seq},"topic":"t","payload":[1.0,[["BlockRemoved",[1]]],{rank}]}}"#);
    let bad = r#"{"seq":1,"topic":"t","payload":"!"}"#.to_owned();
    let lines = [line(0, 0), line(5, 1), bad, line(2, 0), line(6, 1), line(8, 1)];
    let summaries = bench.ingest(&[&bench.file("b", lines.join("\n"))], &quarantine()).unwrap();
    assert_eq!(counts(&summaries[0]), [("late_start", 1), ("lost_messages", 1)]);
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (5, 1));
}

#[test]
fn pairs_other_counts_and_unknown_keys_are_logged() {
    let bench = Bench::new();
    let lines = [
        r#"[1,[["BlockStored",[1,2],null,[[1,2],[2,3]],1,null]]]"#,
        r#"[2,[["BlockStored",[3],2,[1,2,3],2,null,null,null,null,null,null,null,"new"]],0,"newer"]"#,
        r#"{"ts":3,"events":[{"type":"BlockRemoved","block_hashes":[1],"colour":"red","session_id":"s"}]}"#,
        "[4,[],null]",
        r#"[5,[["BlockRemoved",[]],["AllBlocksCleared"]]]"#,
        "",
    ];
    let summaries = bench.ingest(&[&bench.file("a", lines.join("\n"))], &Options::standard()).unwrap();
    let expected = [
        ("no_sequence", 5),
        ("token_ids", 1),
        ("unknown_key", 1),
        ("unknown_key", 1),
        ("token_ids", 1),
        ("unknown_key", 1),
        ("not_stored", 1),
        ("no_events", 1),
        ("no_blocks", 1),
    ];
    assert_eq!(counts(&summaries[0]), expected);
    let rows = read(&bench, &BLOCK_EVENTS);
    assert_eq!(token_ids(&rows), vec![None; 5]);
    assert_eq!(maybe::<UInt64Type>(&rows, "parent_hash"), [None, Some(1), Some(2), None, None]);
    check_law(&bench);
}

#[test]
fn a_bad_event_costs_no_other() {
    let bench = Bench::new();
    let cases = [
        (r#"["BlockMoved",[1]]"#, "`BlockStored`, `BlockRemoved` or `AllBlocksCleared`"),
        (r#"["BlockRemoved"]"#, "an event with `block_hashes`"),
        (r#"["BlockRemoved",[1.5]]"#, "a hash as a whole number of 64 bits, or a digest"),
        (r#"["BlockRemoved",[18446744073709551616]]"#, "a hash as a whole number of 64 bits"),
        (r#"["BlockRemoved",["xyz!"]]"#, "a digest in hex or base64"),
        (r#"["BlockStored",[1],null,[1],0]"#, "a `block_size` of at least 1"),
        (r#"["BlockStored",[1],null,[4294967296],1]"#, "a token id as a whole number"),
        (r#"["BlockStored",[1],null,[[1,2],3],1]"#, "a pair of token ids as a list"),
        (r#"{"block_hashes":[1]}"#, "an event with the key `type`"),
        ("[]", "an event that begins with its name"),
        ("7", "an event as a list or an object"),
    ];
    for (event, expected) in cases {
        let line = format!(r#"[1,[["BlockRemoved",[5]],{event},["BlockRemoved",[6]]]]"#);
        let path = bench.file("x", &line);
        let found = examine(&path, &Options { format: Some("kv_events".into()), ..Options::standard() }).unwrap();
        assert_eq!((found.rows_out, found.rows_rejected), (2, 1), "{event}");
        assert!(found.problems[0].contains(expected), "{event}: {}", found.problems[0]);
        assert!(found.problems[0].contains(":1:"), "{}", found.problems[0]);
    }
    let summaries =
        bench.ingest(&[&bench.file("y", r#"[1,[["BlockRemoved",[5]],["BlockMoved",[1]]]]"#)], &quarantine());
    assert_eq!(summaries.unwrap()[0].rows_rejected, 1);
    assert_eq!(column::<UInt64Type>(&read(&bench, &canonical::REJECTS), "column"), [27]);
}

/// Cut anywhere, a file of frames keeps its complete messages, and what is left of one is one bad row.
#[test]
fn cut_and_damaged_frames_cost_no_complete_message() {
    let bench = Bench::new();
    let parts: Vec<Vec<u8>> = (0..4).map(|seq| frames(&[(seq, batch(1.5, vec![removed(Int(seq))]).bytes())])).collect();
    let whole = [&parts[0][..], &parts[1][8..], &parts[2][8..], &parts[3][8..]].concat();
    let each = (whole.len() - 8) / 4;
    let options = Options { format: Some("kv_events".into()), ..Options::standard() };
    for cut in 9 + each..=whole.len() {
        let found = examine(&bench.file("cut", &whole[..cut]), &options).unwrap();
        assert_eq!(found.rows_out, ((cut - 8) / each) as u64, "cut at {cut}");
        assert_eq!(found.rows_rejected, u64::from((cut - 8) % each != 0), "cut at {cut}");
    }
    let mut state = 7_u64;
    for _ in 0..200 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = 8 + (state >> 33) as usize % (bytes.len() - 8);
            bytes[at] = (state >> 24) as u8;
        }
        if let Ok(found) = examine(&bench.file("bad", &bytes), &options) {
            assert_eq!(found.rows_in, found.rows_out + found.rows_rejected);
        }
    }
    let mut large = whole[..8 + each].to_vec();
    large.extend([0x94, 0, 0xc0, 0xc0, 0xc6, 0xff, 0xff, 0xff, 0xff]);
    let found = examine(&bench.file("large", &large), &options).unwrap();
    assert!(found.problems[0].contains("frame 2 at byte"), "{}", found.problems[0]);
    assert!(found.problems[0].contains("a payload of at most 67108864 bytes, found one of 4294967295"));
    assert_eq!(counts_of(&found.log), [("rest_of_file", 1)]);
}

fn counts_of(log: &[crate::ingest::LogEntry]) -> Vec<(&'static str, u64)> {
    log.iter().map(|entry| (entry.code, entry.count)).collect()
}

#[test]
fn texts_that_people_save_are_nearly_it() {
    let bench = Bench::new();
    for (contents, why) in [
        (
            "[1789095808.8, [{'type': 'BlockStored', 'block_hashes': [1], 'parent_block_hash': None}], 0]",
            "Python's repr",
        ),
        ("Listening on topic\nReceived event batch at 1761816192.13:\n  - BlockStored:\n", "printed output"),
    ] {
        let found = inspect(&bench.file("a", contents)).unwrap();
        let (_, sniff) = found.verdicts.iter().find(|(name, _)| *name == "kv_events").unwrap();
        assert!(matches!(sniff, Sniff::Nearly(found) if found.contains(why)), "{sniff:?}");
    }
}
