//! `kvtoll cache` by the real binary, on the shipped traces.

use crate::support::{kvtoll, number, quickstart, stderr, succeed};

/// The quick start's store, and the source of its conversation trace.
fn asked(more: &[&str]) -> Vec<String> {
    let store = quickstart().store.to_string_lossy().into_owned();
    let mut args = vec!["cache".to_owned(), store, "--workload".to_owned(), "mooncake".to_owned()];
    args.extend(more.iter().map(|word| (*word).to_owned()));
    args
}

fn rows(more: &[&str]) -> Vec<Vec<String>> {
    let args = asked(more);
    let text = succeed(&args.iter().map(String::as_str).collect::<Vec<_>>());
    text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

/// The values of some columns in each row.
fn pick(rows: &[Vec<String>], names: &[&str]) -> Vec<String> {
    let at = |name: &&str| rows[0].iter().position(|column| column == name).unwrap_or_else(|| panic!("no {name}"));
    let columns: Vec<usize> = names.iter().map(at).collect();
    rows[1..].iter().map(|row| columns.iter().map(|at| row[*at].as_str()).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn curves_have_the_published_counts() {
    let found = rows(&["--policy", "lru,min,sieve", "--blocks", "1000,10k,100k,1M", "--format", "csv"]);
    let counts = pick(&found, &["policy", "capacity_blocks", "accesses", "hits", "evictions", "is_knee"]);
    assert_eq!(
        counts[..4],
        [
            "lru 1000 288500 12831 274669 false",
            "lru 10000 288500 60921 217579 false",
            "lru 100000 288500 104924 83576 true",
            "lru 1000000 288500 105710 0 false",
        ]
    );
    assert_eq!(counts.len(), 12);
    // No policy is above the bound of its row, and at the end all meet the ceiling.
    for row in pick(&found, &["block_hit_ratio", "bound_ratio", "ceiling_ratio"]) {
        let ratios: Vec<f64> = row.split(' ').map(|ratio| ratio.parse().unwrap()).collect();
        assert!(ratios[0] <= ratios[1] && ratios[1] <= ratios[2], "{row}");
    }
}

#[test]
fn sizes_come_in_bytes_and_dollars() {
    let more = ["--model", "llama-3.1-8b", "--blocks", "64GiB", "--usd-per-gib-hour", "0.01", "--policy", "lru"];
    let found = rows(&[&more[..], &["--current", "1024", "--format", "csv"]].concat());
    // 512 tokens of 131,072 bytes are 64 MiB.
    assert_eq!(
        pick(&found, &["capacity_blocks", "capacity_bytes", "usd_per_hour", "is_current"]),
        ["1024 68719476736 0.64 true"]
    );
}

#[test]
fn samples_tell_their_error() {
    let found = rows(&["--policy", "lru", "--blocks", "10k", "--sample", "20%", "--format", "csv"]);
    let row: Vec<f64> =
        pick(&found, &["block_hit_ratio", "error_ratio"])[0].split(' ').map(|number| number.parse().unwrap()).collect();
    assert!((row[0] - 60_921.0 / 288_500.0).abs() <= row[1] && row[1] < 0.05, "{row:?}");
}

#[test]
fn hierarchies_that_ship_are_replayed() {
    let found = rows(&["--tiers", "kvbm", "--blocks", "1k,10k,100k", "--format", "csv"]);
    assert_eq!(pick(&found, &["tier", "name", "capacity_blocks"]), ["0 device 1000", "1 host 10000", "2 disk 100000"]);
    let hits: u64 = pick(&found, &["hits"]).iter().map(|hits| hits.parse::<u64>().unwrap()).sum();
    let misses: u64 = pick(&found, &["misses"])[0].parse().unwrap();
    assert_eq!(hits + misses, 288_500);
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let refused = |more: &[&str], parts: &[&str]| {
        let args = asked(more);
        let output = kvtoll(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let said = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    refused(&["--policy", "lruu"], &["unknown cache policy `lruu`", "did you mean `lru`?"]);
    refused(&["--policy", "session"], &["needs to know the session", "`lru` needs none"]);
    refused(&["--blocks", "64GiB"], &["expected blocks without a model"]);
    refused(&["--tiers", "hicache", "--blocks", "1k"], &["expected 3 sizes", "hbm, dram, storage"]);
    refused(&["--tiers", "hicash"], &["did you mean `hicache`?"]);
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/azure/code_head300.csv", "--into", &store]);
    let output = kvtoll(&["cache", &store]);
    assert!(stderr(&output).contains("name no KV blocks"), "{}", stderr(&output));
}

/// A run keeps LRU and the bound, and a named query shows them.
#[test]
fn a_run_keeps_the_curve() {
    let store = quickstart().store.to_string_lossy().into_owned();
    let text = succeed(&["query", &store, "mrc", "--format", "csv"]);
    let found: Vec<Vec<String>> = text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    let last = pick(&found, &["policy", "capacity_blocks", "hits", "evictions"]);
    assert!(last.contains(&"lru 182790 105710 0".to_owned()) && last.contains(&"min 182790 105710 0".to_owned()));
}

/// Lives end as often as blocks leave, and reads are hits.
#[test]
fn lives_gaps_and_desks_are_shown() {
    let found = rows(&["--show", "blocks", "--policy", "lru", "--blocks", "10k", "--format", "csv"]);
    let lives = pick(&found, &["left_ns", "reads"]);
    assert_eq!(lives.iter().filter(|life| !life.starts_with(' ')).count(), 217_579);
    let reads: u64 = lives.iter().map(|life| life.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(reads, 60_921);
    let gaps = rows(&["--show", "gaps", "--format", "csv"]);
    let near = pick(&gaps, &["distance_blocks"]).iter().filter(|gap| gap.parse::<u64>().unwrap() < 10_000).count();
    assert_eq!((gaps.len() - 1, near), (105_710, 60_921));
    let desk = rows(&["--show", "desk", "--instances", "2", "--blocks", "10k", "--format", "csv"]);
    assert_eq!(pick(&desk, &["class"]), ["working", "reference", "duplicate", "archive", "dead"]);
    let all: f64 = pick(&desk, &["time_ratio"]).iter().map(|part| part.parse::<f64>().unwrap()).sum();
    assert!((all - 1.0).abs() < 1e-9, "{all}");
}

/// Blocks pushed out of HBM come back over the link of the host, at the machine's own rates.
#[test]
fn tiers_have_a_verdict() {
    let asked = ["--tiers", "vllm-offload", "--blocks", "1k,100k", "--model", "llama-3.1-8b", "--machine", "h100"];
    let found = rows(&[&asked[..], &["--show", "tiers", "--format", "csv"]].concat());
    assert_eq!(pick(&found, &["tier", "verdict", "way_bytes_per_s"]), ["dram pays 55040000000"]);
    let slow = ["--way", "dram=1MB/s,1ms", "--fetch", "always", "--show", "tiers", "--format", "csv"];
    let found = rows(&[&asked[..], &slow].concat());
    assert_eq!(pick(&found, &["verdict"]), ["does not pay because bytes take longer than computing them"]);
    let store = quickstart().store.to_string_lossy().into_owned();
    let text = succeed(&["query", &store, "fetch-or-recompute", "--format", "csv"]);
    assert!(text.lines().count() > 8 && text.contains("host DDR5"), "{text}");
}

/// Recorded attention as pages for a cache.
#[test]
fn recorded_pages_are_replayed() {
    let store = quickstart().store.to_string_lossy().into_owned();
    let text = succeed(&["cache", &store, "--pages", "90%", "--policy", "lru,min", "--format", "csv"]);
    let found: Vec<Vec<String>> = text.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    for row in pick(&found, &["block_hit_ratio", "bound_ratio", "ceiling_ratio"]) {
        let ratios: Vec<f64> = row.split(' ').map(|ratio| ratio.parse().unwrap()).collect();
        assert!(ratios[0] <= ratios[1] && ratios[1] <= ratios[2], "{row}");
    }
    let text = succeed(&["query", &store, "near-attention", "--format", "csv"]);
    assert!(text.lines().count() > 30, "{text}");
}

/// How few blocks hold half, 90 and 99% of a step's mass, counted again in SQL over the recorded masses.
#[test]
fn near_by_attention_is_what_sql_counts() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let named = store.to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-block", "--into", &named]);
    succeed(&["replay", &named, "--model", "smollm2-135m", "--machine", "h100", "--mode", "captured"]);
    for (percent, near) in [(50, 0.1854), (90, 0.4887), (99, 0.8265)] {
        let found = number(&store, &format!("SELECT near_{percent}_ratio FROM attention_reads WHERE layer IS NULL"));
        let counted = format!(
            "WITH m AS (SELECT row_number() OVER () AS id, mass FROM attention), \
             u AS (SELECT id, CAST(unnest(mass) AS DOUBLE) AS v FROM m), \
             r AS (SELECT id, v, sum(v) OVER (PARTITION BY id ORDER BY v DESC ROWS UNBOUNDED PRECEDING) AS c, \
             sum(v) OVER (PARTITION BY id) AS t, count(*) OVER (PARTITION BY id) AS n FROM u), \
             k AS (SELECT id, CAST(count(*) FILTER (WHERE c - v < t * {percent} / 100.0) AS DOUBLE) / max(n) AS near \
             FROM r GROUP BY id) SELECT avg(near) FROM k"
        );
        let counted = number(&store, &counted);
        assert!((found - counted).abs() < 1e-3 && (found - near).abs() < 1e-3, "{percent}: {found} {counted}");
    }
}
