//! Policies on a real recording, against figures counted independently with NumPy over the same Parquet files: choose by
//! the recorded channel, add up the mass outside, and take the best set of the same size for the oracle.

use std::path::Path;

use crate::support::{number, succeed};

/// Policy; means over all rows of kept share, lost mass, the oracle's, and the largest of a step.
const COUNTED: [(&str, [f64; 4]); 6] = [
    ("snapkv(budget=25%)", [0.255_280, 0.079_213, 0.033_594, 0.688_241]),
    ("snapkv(budget=10%)", [0.106_336, 0.128_423, 0.069_923, 0.855_973]),
    ("snapkv(budget=25%,window=8,kernel=5,pool=avg)", [0.255_280, 0.073_400, 0.033_594, 0.675_998]),
    ("streaming(recent=460)", [0.248_597, 0.230_040, 0.034_508, 0.834_292]),
    ("window(size=464)", [0.248_597, 0.487_951, 0.034_508, 0.998_222]),
    ("oracle(budget=25%)", [0.255_280, 0.033_594, 0.033_594, 0.574_589]),
];

#[test]
fn policies_lose_what_an_independent_count_says() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_string_lossy().into_owned();
    succeed(&["ingest", "traces/recording-token", "--into", &store]);
    let mut replay = vec!["replay", &store, "--mode", "captured", "--model", "smollm2-135m", "--machine", "h100"];
    let more = ["random(budget=25%)", "snapkv(budget=100%)", "fp8"];
    for policy in COUNTED.iter().map(|counted| counted.0).chain(more) {
        replay.extend(["--policy", policy]);
    }
    succeed(&replay);
    let store = Path::new(&store);
    for (policy, expected) in COUNTED {
        let columns =
            ["avg(kept_ratio)", "avg(lost_mass_ratio)", "avg(oracle_lost_mass_ratio)", "max(max_lost_mass_ratio)"];
        for (column, expected) in columns.into_iter().zip(expected) {
            let found = number(store, &format!("SELECT {column} FROM attention_error WHERE policy = '{policy}'"));
            assert!((found - expected).abs() < 2e-6, "{column} of {policy}: {found}, counted {expected}");
        }
    }
    assert!(number(store, "SELECT count(*) FROM attention_error WHERE regret_ratio < -1e-6").abs() < 0.1);
    let all = "SELECT max(lost_mass_ratio) FROM attention_error WHERE policy = 'snapkv(budget=100%)'";
    assert!(number(store, all).abs() < 1e-12);
    // Root mean squares over heads and layers, by the proxies of POLICIES 0.3 in NumPy.
    for (column, expected) in [("logit_noise", 0.081_805), ("quantization_error_ratio", 0.075_894)] {
        let sql = format!("SELECT sqrt(avg(power({column}, 2))) FROM attention_error WHERE policy = 'fp8'");
        let found = number(store, &sql);
        assert!((found / expected - 1.0).abs() < 1e-3, "{column}: {found}, counted {expected}");
    }
}
