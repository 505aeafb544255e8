use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, UInt16Type, UInt32Type, UInt64Type};
use engine::schema::canonical;
use zip::CompressionMethod;

use super::super::Options;
use super::super::tests::{Bench, check_law, column, quarantine, read as stored, sample, text};
use super::file::tests::{npy, npz_of};

const HEAD: &str = r#"schema = "kvtoll.arrays.v1"
[recording]
model = "m"
layers = 2
query_heads = 2
kv_heads = 1
head_dim = 2
block_tokens = 4
grade = "blocks"
[[requests]]
prompt_tokens = 6
output_tokens = 2
"#;

/// The elements of a list or vector column, row by row.
fn lists(batches: &[RecordBatch], name: &str) -> Vec<Vec<f32>> {
    let of = |array: arrow::array::ArrayRef| array.as_primitive::<Float32Type>().values().to_vec();
    let rows = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name(name).unwrap().clone();
        (0..column.len())
            .map(|row| match column.as_list_opt::<i32>() {
                Some(lists) => of(lists.value(row)),
                None => of(column.as_fixed_size_list().value(row)),
            })
            .collect::<Vec<_>>()
    });
    rows.collect()
}

/// A map with one file beside it, ingested.
fn ingest(bench: &Bench, map: &str, file: &[u8]) -> engine::error::Result<super::super::Summary> {
    bench.file("a.npz", file);
    let path = bench.file("map.toml", map);
    let options = Options { again: true, format: Some("arrays".to_owned()), ..quarantine() };
    bench.ingest(&[&path], &options).map(|mut summaries| summaries.remove(0))
}

/// The expected values were read from the archive with NumPy.
#[test]
fn the_shipped_vectors_are_read() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("arrays/kv_vectors.toml")], &Options::standard()).unwrap();
    // Two layers of three heads and sixteen tokens, and the request.
    assert_eq!((summaries[0].format, summaries[0].rows_in, summaries[0].rows_out), ("arrays", 97, 97));
    check_law(&bench);
    let found = stored(&bench, &canonical::KV_VECTORS);
    let layers = column::<UInt16Type>(&found, "layer");
    assert_eq!((layers[0], layers[48], layers[95]), (14, 15, 15));
    assert_eq!(column::<UInt16Type>(&found, "kv_head")[90], 2);
    assert_eq!(column::<UInt32Type>(&found, "token")[..17].last(), Some(&0));
    let (k, v) = (lists(&found, "k"), lists(&found, "v"));
    assert_eq!(k[0][..4], [0.074_584_96, -0.035_644_53, 0.009_727_478, -0.002_992_63]);
    assert_eq!(v[95][60..], [-0.090_148_926, -0.035_034_18, 0.142_089_84, 1.612_304_7]);
    let sum = |rows: &[Vec<f32>]| rows.iter().flatten().map(|value| f64::from(*value)).sum::<f64>();
    assert!((sum(&k) - -749.739_700_317_382_8).abs() < 1e-9 && (sum(&v) - 111.660_376_787_186_77).abs() < 1e-9);
    let recordings = stored(&bench, &canonical::RECORDINGS);
    assert_eq!(text(&recordings, "grade"), [Some("vectors".to_owned())]);
    assert_eq!(summaries[0].log.iter().map(|entry| entry.code).collect::<Vec<_>>(), ["array_file"]);
}

#[test]
fn masses_of_several_steps_share_an_array() {
    let bench = Bench::new();
    // [layer, step, values]: contexts of 7 and 8 tokens are two blocks of four; the third column is padding.
    let mass = [0.25_f32, 0.75, 0.0, 0.5, 0.5, 0.0, 1.0, 0.0, 0.0, 0.125, 0.875, 0.0];
    let file = npz_of(
        &[
            ("w.npy", npy(&[2, 2, 3], &mass)),
            ("s.npy", npy(&[2, 2], &[0.5_f32, 0.25, 0.125, 1.0])),
            ("steps.npy", npy(&[2], &[1_i64, 2])),
        ],
        CompressionMethod::Deflated,
    );
    let map = format!(
        "{HEAD}[[arrays]]\ntable = \"attention\"\nfile = \"a.npz\"\naxes = [\"layer\", \"step\", \"values\"]\n\
         index = {{ step = \"steps\" }}\nfixed = {{ kv_head = 0 }}\ncolumns = {{ mass = \"w\", sum_sq = \"s\" }}\n"
    );
    let summary = ingest(&bench, &map, &file).unwrap();
    assert_eq!((summary.rows_in, summary.rows_rejected), (5, 0));
    check_law(&bench);
    let found = stored(&bench, &canonical::ATTENTION);
    assert_eq!(lists(&found, "mass"), [[0.25, 0.75], [0.5, 0.5], [1.0, 0.0], [0.125, 0.875]]);
    assert_eq!(column::<UInt32Type>(&found, "step"), [1, 2, 1, 2]);
    assert_eq!(column::<UInt32Type>(&found, "context_tokens"), [7, 8, 7, 8]);
    assert_eq!(column::<UInt16Type>(&found, "layer"), [0, 0, 1, 1]);
    assert_eq!(column::<Float32Type>(&found, "sum_sq"), [0.5, 0.25, 0.125, 1.0]);

    // Mass beyond the context, a sum that is not 1, and a step that comes again.
    let mass = [0.25_f32, 0.5, 0.25, 0.5, 0.5, 0.0, 1.0, 0.5, 0.0, 0.125, 0.875, 0.0];
    let file = npz_of(&[("w.npy", npy(&[2, 2, 3], &mass))], CompressionMethod::Stored);
    let map = map.replace("step = \"steps\"", "step = [1, 1]").replace(", sum_sq = \"s\"", "");
    let bench = Bench::new();
    let summary = ingest(&bench, &map, &file).unwrap();
    assert_eq!((summary.rows_in, summary.rows_rejected), (5, 2));
    let rejects = stored(&bench, &canonical::REJECTS);
    assert_eq!(text(&rejects, "code"), [Some("list_length".to_owned()), Some("mass_sum".to_owned())]);
    assert_eq!(column::<UInt64Type>(&rejects, "line"), [1, 3]);
    let bench = Bench::new();
    let mass = [0.25_f32, 0.75, 0.5, 0.5, 1.0, 0.0, 0.125, 0.875];
    let file = npz_of(&[("w.npy", npy(&[2, 2, 2], &mass))], CompressionMethod::Stored);
    assert_eq!(ingest(&bench, &map, &file).unwrap().rows_rejected, 2);
    assert_eq!(text(&stored(&bench, &canonical::REJECTS), "code"), vec![Some("duplicate_row".to_owned()); 2]);
}

#[test]
fn every_table_can_be_filled() {
    let bench = Bench::new();
    let norms: Vec<f32> = (0..14).map(|at| at as f32).collect();
    let file = npz_of(
        &[
            ("score.npy", npy(&[2, 1, 6], &norms[..12])),
            ("norm.npy", npy(&[1, 2, 7], &norms)),
            ("q.npy", npy(&[2, 2, 2, 2], &(0..16).map(f64::from).collect::<Vec<_>>())),
        ],
        CompressionMethod::Stored,
    );
    let entry = |table: &str, axes: &str, rest: &str| {
        format!("[[arrays]]\ntable = \"{table}\"\nfile = \"a.npz\"\naxes = [{axes}]\n{rest}\n")
    };
    let map = [
        HEAD.to_owned(),
        entry(
            "prefill_scores",
            r#""layer", "kv_head", "values""#,
            "columns = { score = \"score\" }\nfixed = { channel = \"window_rows\", rows = 32 }",
        ),
        entry("kv_stats", r#""kv_head", "layer", "values""#, "columns = { k_norm = \"norm\", v_norm = \"norm\" }"),
        entry("queries", r#""step", "layer", "query_head", "values""#, "columns = { q = \"q\" }"),
    ];
    let summary = ingest(&bench, &map.concat(), &file).unwrap();
    assert_eq!(summary.rows_rejected, 0, "{summary:?}");
    assert_eq!(
        summary.tables,
        [("recordings", 1), ("requests", 1), ("prefill_scores", 2), ("kv_stats", 2), ("queries", 8)]
    );
    let queries = stored(&bench, &canonical::QUERIES);
    assert_eq!(column::<UInt32Type>(&queries, "step"), [1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(lists(&queries, "q")[5], [10.0, 11.0]);
    let scores = stored(&bench, &canonical::PREFILL_SCORES);
    assert_eq!(column::<UInt32Type>(&scores, "rows"), [32, 32]);
    assert_eq!(lists(&stored(&bench, &canonical::KV_STATS), "k_norm")[1], norms[7..]);
    let codes: Vec<&str> = summary.log.iter().map(|entry| entry.code).collect();
    assert_eq!(codes, ["array_file", "rounded"], "f64 is not kept as it is");
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let bench = Bench::new();
    let file = npz_of(
        &[("k.npy", npy(&[2, 1, 3, 2], &[0.5_f32; 12])), ("short.npy", npy(&[2, 1, 3], &[0.5_f32; 6]))],
        CompressionMethod::Stored,
    );
    let good = format!(
        "{HEAD}[[arrays]]\ntable = \"kv_vectors\"\nfile = \"a.npz\"\n\
         axes = [\"layer\", \"kv_head\", \"token\", \"values\"]\ncolumns = {{ k = \"k\", v = \"k\" }}\n"
    );
    assert_eq!(ingest(&bench, &good, &file).unwrap().rows_rejected, 0);
    for (from, to, expected) in [
        ("kvtoll.arrays.v1", "kvtoll.arrays.v9", "expected the schema"),
        ("layers = 2\n", "layers = 0\n", "expected `layers` from 1 to 65535"),
        ("model = \"m\"", "modell = \"m\"", "map.toml:3: unknown field `modell`"),
        ("\"kv_vectors\"", "\"kv_vector\"", "unknown table `kv_vector`"),
        ("\"a.npz\"", "\"../a.npz\"", "expected a file below the folder of the map"),
        ("\"a.npz\"", "\"/etc/passwd\"", "expected a file below the folder of the map"),
        ("\"a.npz\"", "\"b.npz\"", "cannot read"),
        ("v = \"k\"", "v = \"none\"", "expected the array `none`"),
        ("v = \"k\"", "v = \"short\"", "expected an array of 4 axes for `v`"),
        ("v = \"k\"", "w = \"k\"", "column"),
        (", v = \"k\"", "", "expected an array for the column `v`"),
        ("\"token\", ", "", "expected `token` either in `axes` or in `fixed`"),
        ("\"token\", \"values\"", "\"values\", \"token\"", "expected `values` as the last axis"),
        ("\"token\", ", "\"token\", \"token\", ", "found `token` twice"),
        ("head_dim = 2", "head_dim = 3", "expected 3 values as in `head_dim`"),
        ("columns =", "request = 1\ncolumns =", "expected a request below 1, found 1"),
        ("columns =", "index = { layer = [0] }\ncolumns =", "expected 2 numbers in the index of `layer`"),
        ("columns =", "index = { layer = [0, 65536] }\ncolumns =", "at most 65535"),
        ("columns =", "index = { step = [0, 1] }\ncolumns =", "only axes of `axes`"),
        ("columns =", "index = { layer = \"short\" }\ncolumns =", "expected 2 numbers"),
        ("columns =", "fixed = { channel = \"x\" }\ncolumns =", "expected `channel`"),
        ("columns =", "fixed = { query_head = 1 }\ncolumns =", "only axes out of"),
    ] {
        let map = good.replacen(from, to, 1);
        assert_ne!(map, good, "{from}");
        let error = ingest(&bench, &map, &file).unwrap_err();
        assert!(error.to_string().contains(expected), "{from} -> {to}: {error}");
        assert_eq!(error.kind(), engine::error::Kind::Data, "{error}");
    }
    // A layer that the model lacks is a bad row, not a bad map.
    let summary = ingest(&bench, &good.replace("columns =", "index = { layer = [0, 2] }\ncolumns ="), &file).unwrap();
    assert_eq!(summary.rows_rejected, 3);
}

/// A map of one array of KV vectors: two layers, one head, three tokens, two values.
fn small_map(file: &str) -> String {
    format!(
        "{HEAD}[[arrays]]\ntable = \"kv_vectors\"\nfile = \"{file}\"\n\
         axes = [\"layer\", \"kv_head\", \"token\", \"values\"]\ncolumns = {{ k = \"k\", v = \"k\" }}\n"
    )
}

#[cfg(unix)]
#[test]
fn only_regular_files_below_the_map_are_read() {
    let bench = Bench::new();
    let file = npz_of(&[("k.npy", npy(&[2, 1, 3, 2], &[0.5_f32; 12]))], CompressionMethod::Stored);
    assert!(ingest(&bench, &small_map("a.npz"), &file).is_ok());
    let folder = std::path::PathBuf::from(bench.file("map.toml", "")).parent().unwrap().to_owned();
    assert!(std::process::Command::new("mkfifo").arg(folder.join("pipe.npz")).status().unwrap().success());
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("b.npz"), &file).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("b.npz"), folder.join("out.npz")).unwrap();
    std::os::unix::fs::symlink(folder.join("a.npz"), folder.join("in.npz")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("device.npz")).unwrap();
    std::fs::create_dir(folder.join("folder.npz")).unwrap();
    assert!(ingest(&bench, &small_map("in.npz"), &file).is_ok(), "a link within the folder is followed");
    for (name, why) in [
        ("pipe.npz", "found a pipe, a socket or a device"),
        ("out.npz", "found `out.npz`, a link out of it"),
        ("device.npz", "found `device.npz`, a link out of it"),
        ("folder.npz", "found a directory"),
        ("missing.npz", "cannot read"),
    ] {
        let error = ingest(&bench, &small_map(name), &file).unwrap_err().to_string();
        assert!(error.contains(why), "{name}: {error}");
    }
}

#[test]
fn the_arrays_are_part_of_the_source() {
    let bench = Bench::new();
    let of = |value: f32| npz_of(&[("k.npy", npy(&[2, 1, 3, 2], &[value; 12]))], CompressionMethod::Stored);
    let first = ingest(&bench, &small_map("a.npz"), &of(0.5)).unwrap();
    let second = ingest(&bench, &small_map("a.npz"), &of(0.25)).unwrap();
    assert_ne!(first.sha256, second.sha256);
    let entry = bench.store().manifest().sources[1].clone();
    assert_eq!((entry.companions.len(), entry.companions[0].name.as_str()), (1, "a.npz"));
    assert_eq!(ingest(&bench, &small_map("a.npz"), &of(0.25)).unwrap().sha256, second.sha256);
}
