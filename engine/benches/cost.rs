//! Pricing columns of decode steps: rows per second on one core, for one machine and for four in one pass.
//!
//! Rows are of random batches of 1 to 256 requests with random contexts, so that no two rows in a row are alike. `dense`
//! is Llama 3.1 70B (one lane), `sliding` gpt-oss-120b (two lanes, experts). `booths` asks for the
//! booths, `all` for every figure. `one_by_one` prices each row by itself, as a replay does. `measured` are plans whose
//! attention, matrix products and all-reduces come from surfaces, here of a made-up device.

use std::hint::black_box;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use engine::cost::{Batch, Demand, Field, Measured, Parallel, Plan, measure, plan, price, price_columns};
use engine::machine;
use engine::model::{self, WeightDtype};
use engine::policy::{Stack, shape};
use engine::surface::{Dim, Key, Peaks, Rows, Shape, Surface, Tuning, work};

const ROWS: usize = 4_000_000;

/// Rows that are priced at a time, as a record batch holds them: nineteen columns of them stay in the cache.
const BATCH: usize = 1 << 16;

const MODELS: [&str; 2] = ["dense", "sliding"];

fn main() {
    divan::main();
}

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../presets/{path}.toml", env!("CARGO_MANIFEST_DIR"))).expect("a preset")
}

/// A model on so many machines.
fn plans(model: &str, machines: usize) -> Vec<Plan> {
    let name = if model == "dense" { "model/llama-3.1-70b" } else { "model/gpt-oss-120b" };
    let model = model::parse(&read(name), name).expect("a model");
    let shape = shape(&Stack::parse("full").expect("a policy"), &model).expect("a shape");
    let machines = ["h200", "b200", "gb300", "vera-rubin"].iter().cycle().take(machines);
    let of = |machine: &&str| {
        let machine = machine::parse(&read(&format!("machine/{machine}")), machine).expect("a machine");
        plan(&model, &shape, &machine, WeightDtype::Fp8, Parallel::tensor(8)).expect("a plan")
    };
    machines.map(of).collect()
}

/// Requests, and kept tokens per lane.
fn demand(plan: &Plan) -> (Vec<u32>, Vec<Vec<u64>>) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let keeps: Vec<_> = plan.lane_keeps().map(|(_, keep)| keep).collect();
    let mut lanes = vec![Vec::with_capacity(ROWS); keeps.len()];
    let mut requests = Vec::with_capacity(ROWS);
    for _ in 0..ROWS {
        let (batch, context) = (1 + random(256), 1 + random(128_000));
        requests.push(batch as u32);
        for (lane, keep) in lanes.iter_mut().zip(&keeps) {
            lane.push(batch * u64::from(keep.tokens(context as u32, context as u32)));
        }
    }
    (requests, lanes)
}

/// Surfaces of a device whose kernels take 3 us and then 80% of the roofline, with the shapes of Llama 3.1 70B on eight.
fn surfaces() -> Vec<Arc<Surface>> {
    let peaks = Peaks::NOMINAL;
    let scales: Vec<_> = Dim::ALL.iter().map(|dim| (dim.column().to_owned(), 1.0)).collect();
    let surface = |op: &str, key: Key, shapes: Vec<Shape>| {
        let (mut rows, mut values) = (Rows::default(), Vec::new());
        for shape in shapes {
            let roofline = work(op, &key, &shape).roofline_ns(&peaks);
            rows.push(&key, shape, 0.0);
            values.push((roofline / (3000.0 + roofline / 0.8)).ln());
        }
        let tuning = Tuning {
            scales: scales.clone(),
            neighbours: 24,
            length: 4.0,
            nugget: 1e-6,
            slope: 0.01,
            smoothness: 1,
            offset: 0.0,
            start: 0.0,
        };
        Arc::new(Surface::new(op, &rows, &values, peaks, tuning))
    };
    let powers = |most: u32| (0..=most).map(|power| 1_u64 << power);
    let heads = Shape::of(&[(Dim::NewTokens, 1), (Dim::QueryHeads, 8), (Dim::KvHeads, 1), (Dim::HeadDim, 128)]);
    let decode = powers(9)
        .flat_map(|batch| powers(17).map(move |past| heads.with(Dim::Batch, batch).with(Dim::PastTokens, past - 1)));
    let products = powers(15).flat_map(|m| {
        powers(17)
            .skip(10)
            .flat_map(move |n| powers(15).skip(10).map(move |k| Shape::of(&[(Dim::M, m), (Dim::N, n), (Dim::K, k)])))
    });
    let ring = powers(30)
        .skip(8)
        .map(|bytes| Shape::of(&[(Dim::Devices, 8), (Dim::ElementBytes, 2), (Dim::MessageBytes, bytes)]));
    let dtype = |dtype: &str| Key { dtype: dtype.to_owned(), ..Key::default() };
    let kv = Key { kv_dtype: "bfloat16".to_owned(), ..Key::default() };
    vec![
        surface("attention_generation", kv, decode.collect()),
        surface("gemm", dtype("fp8"), products.collect()),
        surface("all_reduce", Key::default(), ring.collect()),
    ]
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn measured(bencher: Bencher<'_, '_>) {
    let mut plans = plans("dense", 1);
    let name = "model/llama-3.1-70b";
    let model = model::parse(&read(name), name).expect("a model");
    let machine = machine::parse(&read("machine/h200"), "h200").expect("a machine");
    let found = Measured { name: String::new(), surfaces: surfaces(), peaks: None };
    measure(&mut plans[0], &model, &machine, WeightDtype::Fp8, &found);
    assert!(plans[0].groups[0].measured.is_some() && plans[0].lines.is_some());
    columns_of(bencher, &plans, Field::BOOTHS);
}

fn columns<const C: usize>(bencher: Bencher<'_, '_>, model: &str, machines: usize, fields: [Field; C]) {
    columns_of(bencher, &plans(model, machines), fields);
}

fn columns_of<const C: usize>(bencher: Bencher<'_, '_>, plans: &[Plan], fields: [Field; C]) {
    let (requests, lanes) = demand(&plans[0]);
    let lanes: Vec<&[u64]> = lanes.iter().map(Vec::as_slice).collect();
    let mut out: Vec<[Vec<f64>; C]> = plans.iter().map(|_| std::array::from_fn(|_| Vec::new())).collect();
    bencher.counter(ItemsCount::new(ROWS * plans.len())).bench_local(|| {
        for from in (0..ROWS).step_by(BATCH) {
            let range = from..(from + BATCH).min(ROWS);
            let kept: Vec<&[u64]> = lanes.iter().map(|lane| &lane[range.clone()]).collect();
            let demand = Demand { decode_requests: black_box(&requests[range]), kept_tokens: &kept };
            price_columns(plans, &demand, fields, &mut out).expect("columns that fit");
            black_box(&out);
        }
    });
}

#[divan::bench(args = MODELS, sample_count = 10, sample_size = 1)]
fn booths(bencher: Bencher<'_, '_>, model: &str) {
    columns(bencher, model, 1, Field::BOOTHS);
}

#[divan::bench(args = MODELS, sample_count = 10, sample_size = 1)]
fn booths_on_four_machines(bencher: Bencher<'_, '_>, model: &str) {
    columns(bencher, model, 4, Field::BOOTHS);
}

#[divan::bench(args = MODELS, sample_count = 10, sample_size = 1)]
fn all(bencher: Bencher<'_, '_>, model: &str) {
    columns(bencher, model, 1, Field::ALL);
}

#[divan::bench(args = MODELS, sample_count = 3, sample_size = 1)]
fn one_by_one(bencher: Bencher<'_, '_>, model: &str) {
    let plans = plans(model, 1);
    let plan = &plans[0];
    let (requests, lanes) = demand(plan);
    let (pairs, context) = (vec![0.0; plan.groups.len()], vec![0; plan.groups.len()]);
    let mut kept = vec![0; lanes.len()];
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        let mut sum = 0.0;
        for (row, &requests) in requests.iter().enumerate() {
            kept.iter_mut().zip(&lanes).for_each(|(kept, lane)| *kept = lane[row]);
            let batch = Batch {
                decode_requests: u64::from(requests),
                kept_tokens: &kept,
                longest_tokens: 0,
                prefill_tokens: 0,
                prefill_requests: 0,
                prefill_rows: 0,
                prefill_pairs: &pairs,
                prefill_context: &context,
                scored_tokens: 0,
            };
            sum += price(plan, &batch).total();
        }
        sum
    });
}
