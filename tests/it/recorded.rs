//! Policies on a real recording, against figures counted independently with NumPy over the same Parquet files: choose by
//! the recorded channel, add up the mass outside, and take the best set of the same size for the oracle.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array,
    new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use engine::schema::canonical::{ATTENTION, RECORDINGS, REQUESTS, SOURCES};
use engine::schema::{Cell, Table, batch_of_rows};
use kvtoll::store::Store;

use crate::limits::watch;
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

/// A recording grows, but not what its replay takes.
#[test]
fn memory_does_not_grow_with_the_recording() {
    let peak = |requests: u32| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        write_recording(&path, requests).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvtoll"))
            .args(["replay", &path.to_string_lossy(), "--model", "llama-3.1-8b", "--machine", "h100"])
            .args(["--policy", "window(size=31250)"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let watcher = watch(child.id());
        assert!(child.wait().unwrap().success());
        let sql = "SELECT count(DISTINCT request_id) FROM attention_error WHERE abs(lost_mass_ratio - 0.75) < 0.01";
        assert!((number(&path, sql) - f64::from(requests)).abs() < 0.1, "a window of a quarter of an even mass");
        watcher.join().unwrap()
    };
    // 160 MB of masses a request, so that the second recording is 320 MB larger; the first is read in several pieces already.
    let (small, large) = (peak(4), peak(6));
    assert!(small > 200 << 20 && large < 800 << 20, "{small} and {large} bytes");
    // How threads meet moves a peak by up to 130 MB from run to run.
    assert!(large < small + (200 << 20), "{small} and {large} bytes");
}

/// A store with a recording of so many requests: 2 layers, 4 heads, 40 steps of 125,000 tokens, mass spread evenly.
fn write_recording(path: &Path, requests: u32) -> engine::error::Result<()> {
    let (layers, heads, steps, prompt) = (2_u16, 4_u16, 40_u32, 125_000_u32);
    let row = |table: &Table, of: &dyn Fn(&str) -> Cell| table.columns.iter().map(|column| of(column.name)).collect();
    let source: Vec<Cell> = row(&SOURCES, &|name| match name {
        "source_id" => 0_u32.into(),
        "file_bytes" | "rows_in" | "rows_out" | "rows_rejected" => 0_u64.into(),
        "path" | "format" | "sha256" | "compression" | "settings_origin" => "synthetic".into(),
        _ => Cell::Null,
    });
    let recording: Vec<Cell> = row(&RECORDINGS, &|name| match name {
        "model" | "grade" => "tokens".into(),
        "layers" => u32::from(layers).into(),
        "kv_heads" | "query_heads" => u32::from(heads).into(),
        "source_id" => 0_u32.into(),
        "head_dim" => 64_u32.into(),
        "block_tokens" => 1_u32.into(),
        _ => Cell::Null,
    });
    let mut store = Store::open_or_create(path)?;
    let mut transaction = store.begin();
    transaction.append(&SOURCES, &[batch_of_rows(&SOURCES, &[source])?])?;
    transaction.append(&RECORDINGS, &[batch_of_rows(&RECORDINGS, &[recording])?])?;
    transaction.append(&REQUESTS, &[requests_of(requests, prompt, steps)?])?;
    let each = usize::from(layers * heads);
    for (request, step) in (0..requests).flat_map(|request| (1..=steps).map(move |step| (request, step))) {
        let context = prompt + step;
        let masses = Float32Array::from(vec![1.0 / context as f32; each * context as usize]);
        let lengths = OffsetBuffer::from_lengths(vec![context as usize; each]);
        let element = Arc::new(Field::new("element", DataType::Float32, false));
        let places = || (0..layers).flat_map(|layer| (0..heads).map(move |head| (layer, head)));
        let batch = RecordBatch::try_from_iter([
            ("request_id", Arc::new(UInt64Array::from(vec![u64::from(request); each])) as ArrayRef),
            ("step", Arc::new(UInt32Array::from(vec![step; each]))),
            ("layer", Arc::new(places().map(|(layer, _)| layer).collect::<UInt16Array>())),
            ("kv_head", Arc::new(places().map(|(_, head)| head).collect::<UInt16Array>())),
            ("context_tokens", Arc::new(UInt32Array::from(vec![context; each]))),
            ("block_tokens", Arc::new(UInt16Array::from(vec![1; each]))),
            ("mass", Arc::new(ListArray::new(element, lengths, Arc::new(masses), None))),
        ])?;
        transaction.append(&ATTENTION, &[batch])?;
    }
    transaction.commit()
}

/// So many requests of one length.
fn requests_of(requests: u32, prompt: u32, steps: u32) -> engine::error::Result<RecordBatch> {
    let count = requests as usize;
    let schema = REQUESTS.arrow();
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        match field.name().as_str() {
            "request_id" => Arc::new((0..u64::from(requests)).collect::<UInt64Array>()),
            "source_id" => Arc::new(UInt32Array::from(vec![0; count])),
            "arrival_ns" => Arc::new((0..i64::from(requests)).map(|at| at * 1_000_000).collect::<Int64Array>()),
            "prompt_tokens" => Arc::new(UInt32Array::from(vec![prompt; count])),
            "output_tokens" => Arc::new(UInt32Array::from(vec![steps; count])),
            "status" => Arc::new(StringArray::from(vec!["ok"; count])),
            _ => new_null_array(field.data_type(), count),
        }
    });
    let columns = columns.collect();
    Ok(RecordBatch::try_new(schema, columns)?)
}
