//! What holds for every format on every sample: one format recognises it, no cut loses a complete row, no bytes panic.

use std::fs;

use engine::error::Kind;
use proptest::prelude::*;

use super::tests::{Bench, check_law, quarantine, sample};
use super::{ALL, Options, Sniff, inspect};

/// Every sample of `traces/`, and its format. Each adapter adds its own.
const SAMPLES: &[(&str, &str)] = &[
    ("mooncake/conversation_trace.jsonl.zst", "mooncake"),
    ("azure/code_head300.csv", "azure"),
    ("llmservingsim/example_trace.jsonl", "llmservingsim"),
    ("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl.zst", "llmservingsim"),
    ("llmservingsim_result/requests.jsonl", "llmservingsim_result"),
    ("llmservingsim_result/timeseries.csv", "llmservingsim_result"),
    ("llmservingsim_result/meta.json", "llmservingsim_result"),
    ("aiperf/profile_export_record_1.json", "aiperf"),
    ("aiperf/profile_export_record_2.json", "aiperf"),
    ("vllm_bench/minimax_m25_tep8_conc32.json", "vllm_bench"),
    ("recording-token", "recording"),
    ("recording-block/recording.json", "recording"),
];

#[test]
fn each_sample_is_recognised_by_its_format_alone() {
    for (path, expected) in SAMPLES {
        let found = inspect(&sample(path)).unwrap();
        for (name, sniff) in &found.verdicts {
            assert_eq!(*sniff == Sniff::Yes, name == expected, "{path} {name}: {sniff:?}");
        }
        assert_eq!(found.format, Some(*expected), "{path}");
    }
}

#[test]
fn every_sample_is_in_the_matrix() {
    let mut folders = vec![std::path::PathBuf::from(sample(""))];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(sample("")).unwrap().to_str().unwrap().to_owned();
            let told = ["README.md", "SOURCES.tsv"].iter().any(|end| name.ends_with(end)) || name.ends_with(".toml");
            if path.is_dir() && !name.starts_with("recording-") {
                folders.push(path);
            } else if !path.is_dir() && !told {
                assert!(SAMPLES.iter().any(|(sample, _)| *sample == name), "`{name}` is not in the matrix");
            }
        }
    }
}

/// The text of a sample cut at a byte, ingested under its format; a cut may end within a row, and never loses one.
#[test]
fn a_cut_never_loses_a_complete_row() {
    for (path, format) in SAMPLES.iter().filter(|(path, _)| !path.starts_with("recording-")) {
        let bytes = fs::read(sample(path)).unwrap();
        if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || bytes.starts_with(&[0x1f, 0x8b]) {
            // Compressed files fail when they are cut; that is tested elsewhere.
            continue;
        }
        let options = Options { format: Some((*format).to_owned()), again: true, ..quarantine() };
        let whole = |bytes: &[u8]| {
            let bench = Bench::new();
            let path = bench.file("cut", bytes);
            let result = bench.ingest(&[&path], &options);
            if let Ok(summaries) = &result {
                check_law(&bench);
                assert_eq!(summaries[0].rows_in, summaries[0].rows_out + summaries[0].rows_rejected);
            }
            result.map(|summaries| (summaries[0].rows_out, summaries[0].rows_rejected))
        };
        // The ends of lines, and a few places within lines, spread over the file.
        let ends: Vec<usize> = (1..bytes.len()).filter(|at| bytes[at - 1] == b'\n').collect();
        let some = ends.iter().step_by((ends.len() / 12).max(1)).copied().chain([bytes.len()]);
        for end in some {
            let complete = whole(&bytes[..end]).map_or(0, |(rows, _)| rows);
            for within in [1, 2, 7, 30] {
                let cut = (end + within).min(bytes.len());
                match whole(&bytes[..cut]) {
                    // A JSON value over several lines is complete only at its end.
                    Ok((rows, rejected)) => assert!(
                        rows >= complete && rejected <= 1 + u64::from(rows == 0),
                        "{path} cut at {cut}: {rows} of {complete} rows, {rejected} set aside"
                    ),
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Data, "{path} cut at {cut}: {error}");
                        assert!(!error.to_string().contains("its adapter failed"), "{path} cut at {cut}");
                        assert_eq!(complete, 0, "{path} cut at {cut}: {error}");
                    }
                }
            }
        }
    }
}

/// Pieces that formats are made of, so that arbitrary text reaches beyond the first byte.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let words = proptest::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\n",
        "\r\n",
        "\"",
        "\\",
        " ",
        "null",
        "true",
        "-1",
        "0",
        "1.5e3",
        "1e999",
        "\u{feff}",
        "18446744073709551616",
        "\"timestamp\":",
        "\"input_toks\":",
        "\"output_toks\":",
        "\"arrival_time_ns\":",
        "\"sub_requests\":",
        "\"metadata\":",
        "\"metrics\":",
        "\"resourceSpans\":",
        "\"spans\":",
        "\"attributes\":",
        "\"requestId\":",
        "\"usage\":",
        "\"message\":",
        "\"model_id\":",
        "\"ttfts\":",
        "\"itls\":",
        "\"requests\":",
        "\"hash_ids\":",
        "t,running,kv_cache_pct",
    ]);
    let word = prop_oneof![
        8 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..8),
    ];
    proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Any bytes, under any format: an error or a store, never a panic.
    #[test]
    fn no_bytes_panic(bytes in prop_oneof![fragments(), proptest::collection::vec(any::<u8>(), 0..300)]) {
        for format in ALL {
            let bench = Bench::new();
            let path = bench.file("a", &bytes);
            let options = Options { format: Some(format.name.to_owned()), ..quarantine() };
            match bench.ingest(&[&path], &options) {
                Ok(_) => check_law(&bench),
                Err(error) => prop_assert!(!error.to_string().contains("its adapter failed"), "{}", format.name),
            }
        }
    }
}
