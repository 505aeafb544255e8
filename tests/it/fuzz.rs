//! A fuzzer on stable Rust: real samples, damaged by a seeded generator, must never make an adapter panic or lose a row.
//!
//! For each format and sample: bytes are flipped, cut, repeated, replaced by awkward numbers, or spliced with another
//! sample; the result is read with the format forced and bad rows set aside. Either the error is one of the data, or rows
//! in = rows out + rejects. Every eighth input is ingested into a store, where the counts must be the same and nothing
//! may be left of a failure.
//!
//! `KVTOLL_FUZZ_SECONDS` is the time for all formats together (20 by default), `KVTOLL_FUZZ_FORMAT` picks one format, and
//! `KVTOLL_FUZZ_SEED` another sequence. An input that fails is kept, and named in the message.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::error::Kind;
use kvtoll::ingest::{ALL, OnBadRow, Options, examine, ingest, inspect};
use kvtoll::store::Store;

use crate::support::root;

/// Bytes of a sample that are fuzzed: reading more costs time and reaches no other code.
const MOST: usize = 24 << 10;

/// Formats without a real sample: lines in their form.
const WRITTEN: &[(&str, &str)] = &[
    (
        "otel",
        r#"{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "5b8e", "spanId": "eee1", "name": "llm_request", "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000", "attributes": [{"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "128"}}, {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "12"}}, {"key": "gen_ai.latency.time_to_first_token", "value": {"doubleValue": 0.045}}], "status": {"code": 1}}]}]}]}
"#,
    ),
    (
        "claude_code",
        r#"{"type": "user", "sessionId": "s", "uuid": "a", "timestamp": "2026-03-02T09:14:06.000Z", "message": {"role": "user", "content": "..."}}
{"type": "assistant", "sessionId": "s", "uuid": "b", "requestId": "r", "timestamp": "2026-03-02T09:14:07.120Z", "isSidechain": false, "message": {"id": "m", "model": "claude", "usage": {"input_tokens": 4, "cache_creation_input_tokens": 1210, "cache_read_input_tokens": 48000, "output_tokens": 96}}}
"#,
    ),
    (
        "vllm_bench",
        r#"{"model_id": "m", "num_prompts": 2, "request_rate": "inf", "mean_ttft_ms": 75.0, "input_lens": [7, 9], "output_lens": [3, 1], "ttfts": [0.08, 0.07], "itls": [[0.01, 0.02], []], "start_times": [1.5, 1.6], "generated_texts": ["a", "b"], "errors": ["", "timeout"]}
"#,
    ),
    (
        "nsys_csv",
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),Bytes (MB),Device,Strm,Name
1134711990,661398,123,,,,,,,,,4.194,GPU (0),13,[CUDA memcpy Host-to-Device]
1136125733,7072,128,4096,1,1,256,1,1,16,0.000,,GPU (0),13,\"saxpy(float, float *)\"
",
    ),
    // Only its first bytes are text; the adapter's own tests damage whole files.
    ("nsys_parquet", "PAR1"),
    (
        "dsa_topk",
        r#"{"event": "dsa_topk", "request_id": "r0", "layer_id": 0, "step_idx": 100, "seq_len_current": 101, "selected_token_pos": [100, 17, 0, 64], "block_size_tokens": 64, "selected_block_ids": [1, 0], "unique_blocks": 2, "scores_stats": {}, "kv_fetch": {"hbm": {"hit_blocks": 2, "bytes_read": 2304, "read_ops": 2, "latency_us": 1.25, "batch_size": 1}, "local_pool": null, "remote_pool": {"bytes_read": 0, "latency_us": null}}, "prefix": {}}
"#,
    ),
    (
        "trtllm_events",
        r#"{"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [100, 0]}, "window_size": 2048}
{"event_id": 1, "data": {"type": "stored", "parent_hash": null, "blocks": [{"type": "stored_block", "block_hash": 4203099703668305365, "tokens": [{"type": "unique_token", "token_id": 1, "token_extra_id": 0}, {"type": "unique_token", "token_id": 2, "token_extra_id": 0}], "cache_level": 0, "priority": 35}]}, "window_size": 2048}
{"event_id": 2, "data": {"type": "updated", "block_hash": 4203099703668305365, "cache_level": {"type": "event_diff", "new_value": 1, "old_value": 0}, "priority": null}}
{"event_id": 3, "data": {"type": "removed", "block_hashes": [4203099703668305365]}, "attention_dp_rank": 0}
"#,
    ),
    (
        "nvbit",
        "the program's own words\nMEMTRACE: CTX 0x000055c1 - LAUNCH - Kernel pc 0x00007f3d5f200000 - Kernel name add(double*, int) \
         - grid launch id 0 - grid size 98,1,1 - block size 1024,1,1 - nregs 16 - shmem 0 - cuda stream id 0\nMEMTRACE: CTX \
         0x000055c1 - grid_launch_id 0 - CTA 0,0,0 - warp 3 - LDG.E.64 - 0x7f00 0x7f08 0x7f10 0x7f18 0x7f20 0x7f28 0x7f30 \
         0x7f38 0x7f40 0x7f48 0x7f50 0x7f58 0x7f60 0x7f68 0x7f70 0x7f78 0x7f80 0x7f88 0x7f90 0x7f98 0x7fa0 0x7fa8 0x7fb0 \
         0x7fb8 0x7fc0 0x7fc8 0x7fd0 0x7fd8 0x0 0x0 0x0 0x0 \n",
    ),
    (
        "chakra",
        "\u{7}\n\u{5}0.0.4\u{27}\u{8}\u{6}\u{12}\u{b}aten::empty\u{18}\u{4}\"\u{1}\u{3}0\u{5}8\u{2}R\r\n\ttid_of_op8\u{1}\u{9}\u{8}\u{3}\u{12}\u{3}add\u{18}\u{7}",
    ),
    ("servegen", "1800,0,0,,0,0\n2400,0.085,6.69324386291654,Gamma,0.02232167101916883,73.01783087211976\n"),
];

/// What numbers, texts and structure can be replaced by.
const AWKWARD: [&str; 34] = [
    "0",
    "-0",
    "-1",
    "1",
    "0.0",
    "1e308",
    "1e999",
    "-1e999",
    "1e-999",
    "0.00000000000000000001",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999",
    "NaN",
    "Infinity",
    "null",
    "true",
    "\"\"",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "{}",
    "[]",
    "[[[[[[[[[[[[[[[[",
    "]]]]",
    "{\"a\":",
    "\u{feff}",
    "\r\n",
    "\n\n",
    ",,,",
    "9999-12-31 23:59:59.999999999",
];

/// ``SplitMix64`` (Steele, Lea and Flood, OOPSLA 2014).
struct Generator(u64);

impl Generator {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which must not be 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A format, a sample's name and its first bytes; for a recording, those of its `recording.json`.
struct Seed {
    format: &'static str,
    name: String,
    bytes: Vec<u8>,
    folder: Option<PathBuf>,
    /// Files that must stand beside the input.
    beside: Vec<PathBuf>,
}

fn decompressed(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let mut whole = match bytes.get(..4) {
        Some([0x28, 0xb5, 0x2f, 0xfd]) => zstd::decode_all(&bytes[..]).unwrap(),
        Some([0x1f, 0x8b, ..]) => {
            let mut whole = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(&bytes[..]), &mut whole).unwrap();
            whole
        }
        Some([0xfd, b'7', b'z', b'X']) => {
            let mut whole = Vec::new();
            std::io::Read::read_to_end(&mut liblzma::read::XzDecoder::new(&bytes[..]), &mut whole).unwrap();
            whole
        }
        _ => bytes,
    };
    whole.truncate(MOST);
    // One record is soon broken: three leave something to keep.
    if whole.first() == Some(&b'{') && whole.len() < 2000 {
        let one = [whole.trim_ascii_end(), b"\n"].concat();
        whole = one.repeat(3);
    }
    whole
}

/// The samples of `traces/`, each under the format that recognises it.
fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = WRITTEN
        .iter()
        .map(|(format, text)| Seed {
            format,
            name: "written".to_owned(),
            bytes: text.repeat(3).into_bytes(),
            folder: None,
            beside: Vec::new(),
        })
        .collect();
    let mut paths: Vec<PathBuf> = Vec::new();
    for folder in std::fs::read_dir(root().join("traces")).unwrap() {
        let folder = folder.unwrap().path();
        if folder.join("recording.json").exists() {
            paths.push(folder);
        } else if folder.is_dir() {
            paths.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    paths.sort();
    for path in paths {
        // Files that others are read with are of no format.
        let Some(format) = inspect(path.to_str().unwrap()).ok().and_then(|found| found.format) else { continue };
        let beside = ["meta.yaml", "kv_vectors.npz"].map(|name| path.with_file_name(name));
        let beside = beside.into_iter().filter(|path| path.exists()).collect();
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        let folder = path.is_dir().then(|| path.clone());
        let bytes = decompressed(&folder.as_ref().map_or(path, |folder| folder.join("recording.json")));
        seeds.push(Seed { format, name, bytes, folder, beside });
    }
    seeds
}

/// Where a run of digits starts in `bytes`, from a random place on.
fn number_at(bytes: &[u8], from: usize) -> Option<(usize, usize)> {
    let start = from + bytes.get(from..)?.iter().position(u8::is_ascii_digit)?;
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    Some((start, start + length))
}

/// Damages `bytes` once.
fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Generator) {
    if bytes.is_empty() {
        bytes.extend_from_slice(other);
        return;
    }
    let at = random.below(bytes.len());
    let length = 1 + random.below(64);
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 if random.below(3) == 0 => bytes.truncate(at),
        3 => drop(bytes.drain(at..(at + length).min(bytes.len()))),
        4 => {
            let copy = bytes[at..(at + length).min(bytes.len())].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, copy);
        }
        5 if !other.is_empty() => {
            let from = random.below(other.len());
            bytes.splice(at.., other[from..].iter().copied());
        }
        6 => {
            let word = AWKWARD[random.below(AWKWARD.len())].bytes();
            bytes.splice(at..at, word);
        }
        _ => {
            let word = AWKWARD[random.below(AWKWARD.len())].bytes();
            if let Some((from, to)) = number_at(bytes, at) {
                bytes.splice(from..to, word);
            }
        }
    }
}

/// Puts the input where it is read from: a file, or a copy of a recording with one of its files replaced.
fn place(seed: &Seed, bytes: &[u8], folder: &Path, random: &mut Generator) -> String {
    let path = folder.join("input");
    let Some(recording) = &seed.folder else {
        std::fs::write(&path, bytes).unwrap();
        for file in &seed.beside {
            std::fs::copy(file, folder.join(file.file_name().unwrap())).unwrap();
        }
        return path.to_str().unwrap().to_owned();
    };
    std::fs::create_dir_all(&path).unwrap();
    // The large tables would take all the time; a recording need not have them.
    for name in ["recording.json", "requests.parquet", "steps.parquet"] {
        std::fs::copy(recording.join(name), path.join(name)).unwrap();
    }
    if random.below(3) == 0 {
        let table = path.join(["requests.parquet", "steps.parquet"][random.below(2)]);
        let mut damaged = std::fs::read(&table).unwrap();
        damage(&mut damaged, &[], random);
        std::fs::write(table, damaged).unwrap();
    } else {
        std::fs::write(path.join("recording.json"), bytes).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

/// Reads one damaged input; whether rows came of it, or what is wrong with the adapter.
fn run(seed: &Seed, bytes: &[u8], into_store: bool, random: &mut Generator) -> Result<bool, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = place(seed, bytes, folder.path(), random);
    let options =
        Options { format: Some(seed.format.to_owned()), on_bad_row: OnBadRow::Quarantine, ..Options::standard() };
    let found = examine(&path, &options);
    let counts = match &found {
        Ok(one) if one.rows_in == one.rows_out + one.rows_rejected => Some((one.rows_out, one.rows_rejected)),
        Ok(one) => {
            return Err(format!("{} rows in, {} out, {} rejected", one.rows_in, one.rows_out, one.rows_rejected));
        }
        Err(error) if error.kind() == Kind::Data && !error.to_string().contains("its adapter failed") => None,
        Err(error) => return Err(error.to_string()),
    };
    if into_store {
        let mut store = Store::open_or_create(&folder.path().join("store")).unwrap();
        let stored = ingest(&mut store, &[path], &options, &|_| {});
        let kept = stored.as_ref().ok().map(|summaries| (summaries[0].rows_out, summaries[0].rows_rejected));
        let sources = store.manifest().sources.len();
        if kept != counts || store.manifest().rows("rejects") != counts.map_or(0, |(_, rejected)| rejected) {
            return Err(format!("read {counts:?}, stored {stored:?}"));
        }
        if sources != usize::from(kept.is_some()) {
            return Err(format!("{sources} sources in the store after {stored:?}"));
        }
    }
    Ok(counts.is_some())
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is `{value}`")))
}

#[test]
fn damaged_samples_never_panic_and_never_lose_a_row() {
    let only: Option<String> = variable("KVTOLL_FUZZ_FORMAT");
    let start: u64 = variable("KVTOLL_FUZZ_SEED").unwrap_or(1);
    let all = seeds();
    let chosen: Vec<&Seed> = all.iter().filter(|seed| only.as_ref().is_none_or(|only| only == seed.format)).collect();
    assert!(!chosen.is_empty(), "no sample of {only:?}");
    let seconds: f64 = variable("KVTOLL_FUZZ_SECONDS").unwrap_or(20.0);
    let share = Duration::from_secs_f64(seconds / chosen.len() as f64);
    for (at, seed) in (0..).zip(&chosen) {
        let mut random = Generator(start.wrapping_mul(0x1000).wrapping_add(at));
        let (began, mut runs, mut kept) = (Instant::now(), 0_u32, 0_u32);
        // At least a few, however slow the machine is.
        while began.elapsed() < share || runs < 8 {
            let mut bytes = seed.bytes.clone();
            let other = &all[random.below(all.len())].bytes;
            // The first run takes the sample as it is.
            for _ in 0..if runs == 0 { 0 } else { 1 + random.below(6) } {
                damage(&mut bytes, other, &mut random);
            }
            match run(seed, &bytes, runs % 8 == 0, &mut random) {
                Ok(rows) => kept += u32::from(rows),
                Err(fault) => {
                    let input = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{}", seed.format));
                    std::fs::write(&input, &bytes).unwrap();
                    panic!("{} ({}), run {runs}: {fault}\nthe input is in {}", seed.format, seed.name, input.display());
                }
            }
            runs += 1;
        }
        println!("{:<22} {runs:>7} runs, {kept:>7} with rows  ({})", seed.format, seed.name);
    }
}

#[test]
fn every_format_has_a_seed_and_a_target() {
    let seeds = seeds();
    for format in ALL {
        assert!(seeds.iter().any(|seed| seed.format == format.name), "no seed for `{}`", format.name);
        let target = root().join("fuzz/fuzz_targets").join(format!("{}.rs", format.name));
        let text = std::fs::read_to_string(&target).unwrap_or_default();
        assert!(text.contains(&format!("\"{}\"", format.name)), "no fuzz target for `{}`", format.name);
        let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
        assert!(
            manifest.contains(&format!("name = \"{}\"", format.name)),
            "`{}` is not in fuzz/Cargo.toml",
            format.name
        );
    }
}
