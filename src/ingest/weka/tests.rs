use std::collections::BTreeMap;
use std::fs;

use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::canonical;

use crate::ingest::tests::{Bench, check_law, column, hashes, quarantine, read, sample, text};
use crate::ingest::{Options, Summary};

fn ingest(bench: &Bench, name: &str) -> Summary {
    bench.ingest(&[&sample(&format!("weka/{name}.json"))], &Options::standard()).unwrap().remove(0)
}

/// Checks the segments of every request: they sum to its prompt, and gives them by request.
fn segments(bench: &Bench) -> BTreeMap<u64, Vec<(String, u32)>> {
    let requests = read(bench, &canonical::REQUESTS);
    let mut of_request: BTreeMap<u64, Vec<(String, u32)>> = BTreeMap::new();
    for batch in read(bench, &canonical::CONTEXT_SEGMENTS) {
        let kinds = text(std::slice::from_ref(&batch), "kind");
        for (at, id) in column::<UInt64Type>(std::slice::from_ref(&batch), "request_id").into_iter().enumerate() {
            let tokens = batch.column_by_name("tokens").unwrap().as_primitive::<UInt32Type>().value(at);
            of_request.entry(id).or_default().push((kinds[at].clone().unwrap(), tokens));
        }
    }
    let prompts = column::<UInt32Type>(&requests, "prompt_tokens");
    for (id, prompt) in (0..).zip(prompts) {
        let sum: u32 = of_request.get(&id).map_or(0, |pieces| pieces.iter().map(|(_, tokens)| tokens).sum());
        assert_eq!(sum, prompt, "request {id}");
    }
    of_request
}

fn named(pieces: &[(String, u32)]) -> Vec<(&str, u32)> {
    pieces.iter().map(|(kind, tokens)| (kind.as_str(), *tokens)).collect()
}

#[test]
fn a_sub_agent_has_its_own_session() {
    let bench = Bench::new();
    let summary = ingest(&bench, "v1_trace_0208");
    assert_eq!((summary.format, summary.rows_out, summary.rows_rejected), ("weka", 10, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    let sessions: Vec<String> = text(&requests, "session_id").into_iter().flatten().collect();
    assert_eq!(sessions.iter().filter(|name| *name == "trace_0208/agent_001").count(), 6);
    assert_eq!(column::<UInt32Type>(&requests, "turn"), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]);
    let kinds: Vec<String> = text(&requests, "kind").into_iter().flatten().collect();
    assert_eq!(kinds[5..], ["subagent", "s", "n", "n", "s"]);
    // The sub-agent began before the first request, whose instant is 0.
    let arrival = column::<Int64Type>(&requests, "arrival_ns");
    assert_eq!(arrival[..2], [-279_058_651_000_000, -279_055_651_000_000]);
    assert_eq!(arrival[6..], [0, 11_000_000_000, 29_000_000_000, 29_000_000_000]);
    assert_eq!(
        hashes(&requests).iter().map(Vec::len).collect::<Vec<_>>(),
        [138, 138, 146, 146, 3302, 3302, 738, 738, 3760, 3760]
    );
    let codes: Vec<_> = summary.log.iter().map(|entry| (entry.code, entry.count)).collect();
    // The file's own sums agree with its requests; `_analysis` is a note of the tool.
    assert_eq!(codes, [("no_output", 4), ("unknown_key", 1)]);
    let sources = read(&bench, &canonical::SOURCES);
    for (name, value) in [("rounding", "floor"), ("hash_scope", "file"), ("time_unit", "s")] {
        assert_eq!(text(&sources, name), [Some(value.to_owned())]);
    }
    let segments = segments(&bench);
    // The sub-agent gives its own tools and system after its requests.
    assert_eq!(named(&segments[&0]), [("tools", 7633), ("system", 733), ("user", 502)]);
    assert_eq!(named(&segments[&6]), [("tools", 12_319), ("system", 2887), ("user", 32_059)]);
}

#[test]
fn times_and_scopes_of_the_later_generations_are_read() {
    let bench = Bench::new();
    let v6 = ingest(&bench, "v6_trace_0501");
    assert_eq!(v6.rows_out, 6);
    let requests = read(&bench, &canonical::REQUESTS);
    assert_eq!(text(&read(&bench, &canonical::SOURCES), "hash_scope"), [Some("global".to_owned())]);
    assert_eq!(column::<Int64Type>(&requests, "measured_e2e_ns")[..2], [4_560_000_000, 2_410_000_000]);
    assert_eq!(hashes(&requests)[2].len(), 51);
    // 3,318 tokens are fewer than tools and system have: another kind of prompt.
    assert_eq!(named(&segments(&bench)[&2]), [("unknown", 3318)]);

    let bench = Bench::new();
    let v8 = ingest(&bench, "v8_trace_0242");
    assert_eq!((v8.rows_out, v8.log.len()), (3, 0));
    let requests = read(&bench, &canonical::REQUESTS);
    let ttft = requests[0].column_by_name("measured_ttft_ns").unwrap().as_primitive::<Int64Type>().clone();
    assert_eq!(ttft.iter().collect::<Vec<_>>(), [Some(1_440_000_000), None, Some(1_240_000_000)]);
    assert_eq!(column::<Int64Type>(&requests, "delay_ns"), [0, 47_000_000_000, 142_000_000_000]);
    let parents = requests[0].column_by_name("parent_request_id").unwrap().as_primitive::<UInt64Type>().clone();
    assert_eq!(parents.iter().collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    let segments = segments(&bench);
    assert_eq!(named(&segments[&0]), [("tools", 11_899), ("system", 2765), ("user", 627)]);
    // 238 blocks are shared: 15,232 tokens; the new part does not hold the whole reply of 2,126 tokens and its question.
    let second = named(&segments[&1]);
    assert_eq!(second[2].0, "history");
    assert_eq!(14_664 + second[2].1, 15_232);
    let rest: u32 = second[3..].iter().map(|(_, tokens)| tokens).sum();
    assert_eq!(rest, 17_401 - 15_232);
}

#[test]
fn several_local_conversations_do_not_share_ids() {
    let bench = Bench::new();
    let one = fs::read_to_string(sample("weka/v8_trace_0242.json")).unwrap();
    let two = one.replace("trace_0242", "other");
    let path = bench.file("a", format!("{one}\n{two}\n"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(summaries[0].rows_out, 6);
    let ids = hashes(&read(&bench, &canonical::REQUESTS));
    let most = ids[..3].iter().flatten().max().unwrap();
    assert!(ids[3..].iter().flatten().all(|id| id > most));
    assert_eq!(ids[0].iter().map(|id| id + most + 1).collect::<Vec<_>>(), ids[3]);
    assert_eq!(summaries[0].log.iter().map(|entry| entry.code).collect::<Vec<_>>(), ["ids_moved"]);
    segments(&bench);

    // Global ids and local ones in a file cannot be told apart.
    let mixed = bench.file("b", format!("{one}\n{}\n{two}\n", two.replace("\"local\"", "\"global\"")));
    let summaries = bench.ingest(&[&mixed], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (6, 1));
    check_law(&bench);
}

#[test]
fn sums_that_differ_and_bad_requests_are_named() {
    let bench = Bench::new();
    let good = fs::read_to_string(sample("weka/v8_trace_0242.json")).unwrap();
    let path =
        bench.file("a", good.replace("\"output\":5027},\"subagent_tokens\"", "\"output\":5026},\"subagent_tokens\""));
    let log = bench.ingest(&[&path], &Options::standard()).unwrap()[0].log.clone();
    assert_eq!(log.iter().map(|entry| entry.code).collect::<Vec<_>>(), ["totals_differ"]);
    assert!(
        log[0].message.contains("52760 tokens in and 5026 out") && log[0].message.contains("and 5027 out"),
        "{log:?}"
    );
    for (bad, expected) in [
        (
            good.replace("\"in\":17401", "\"in\":17301"),
            "expected 270 blocks of 64 for 17301 tokens, found 271: the block",
        ),
        (good.replace("\"in\":17401", "\"inn\":17401"), "expected the key `in`, found a request without it"),
        (good.replace("\"t\":90.0", "\"t\":\"x\""), "expected `t` as a number, found `\"x\"`"),
        (good.replace("\"ttft\":1.44", "\"ttft\":-1"), "expected `ttft` of at least zero, found `-1`"),
    ] {
        let path = bench.file("b", bad);
        let error = bench.ingest(&[&path], &Options::standard()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let summaries = bench.ingest(&[&path], &Options { again: true, ..quarantine() }).unwrap();
        assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (2, 1));
    }
    check_law(&bench);
    let flag = Options { block_tokens: Some(16), ..Options::standard() };
    let error = bench.ingest(&[&sample("weka/v6_trace_0501.json")], &flag).unwrap_err().to_string();
    assert_eq!(error, "expected blocks of 16 tokens, as the flag says, found `block_size` 64");
}

#[test]
fn a_cut_at_any_byte_keeps_the_whole_requests() {
    let bench = Bench::new();
    // A sub-agent within, so that a cut can fall into it.
    let text = concat!(
        r#"{"id":"x","block_size":64,"tool_tokens":1,"system_tokens":1,"requests":["#,
        r#"{"t":0,"type":"s","in":70,"out":1,"hash_ids":[1],"input_types":["text"]},"#,
        r#"{"t":1,"type":"subagent","agent_id":"a","requests":["#,
        r#"{"t":0,"type":"n","in":10,"out":1,"hash_ids":[]},{"t":0.5,"type":"n","in":130,"out":1,"hash_ids":[1,2]}],"tool_tokens":3,"system_tokens":4},"#,
        "\n",
        r#"{"t":2,"type":"s","in":9,"out":0,"hash_ids":[]}],"_x":{"a":"}"}}"#,
    );
    let ends: Vec<usize> =
        ["[1],\"input_types\":[\"text\"]}", "\"in\":10,\"out\":1,\"hash_ids\":[]}", "[1,2]}", "0,\"hash_ids\":[]}"]
            .iter()
            .map(|end| text.find(end).unwrap() + end.len())
            .collect();
    let options = Options { format: Some("weka".to_owned()), again: true, ..quarantine() };
    for cut in 1..=text.len() {
        let path = bench.file("cut", &text[..cut]);
        let complete = ends.iter().filter(|end| **end <= cut).count() as u64;
        match bench.ingest(&[&path], &options) {
            Ok(summaries) => {
                assert_eq!(summaries[0].rows_out, complete, "cut at {cut}");
                assert_eq!(summaries[0].rows_rejected, u64::from(cut < text.len()), "cut at {cut}");
            }
            Err(error) => assert_eq!(complete, 0, "cut at {cut}: {error}"),
        }
    }
    check_law(&bench);
    // Damage in one conversation costs the next nothing.
    let path = bench.file("two", format!("{}\n{}\n", &text[..120], text.replace('\n', "")));
    let summaries = bench.ingest(&[&path], &options).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (4, 1));
    // Printed on many lines it is the same.
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let printed = bench.file("printed", serde_json::to_string_pretty(&value).unwrap());
    let summaries = bench.ingest(&[&printed], &options).unwrap();
    assert_eq!((summaries[0].rows_out, summaries[0].rows_rejected), (4, 0), "{:?}", summaries[0].log);
}
