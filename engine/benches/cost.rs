//! Pricing columns of decode steps: rows per second on one core, for one machine and for four in one pass.
//!
//! Rows are of random batches of 1 to 256 requests with random contexts, so that no two rows in a row are alike. `dense`
//! is Llama 3.1 70B (one lane), `sliding` gpt-oss-120b (two lanes, experts). `booths` asks for the
//! booths, `all` for every figure. `one_by_one` prices each row by itself, as a replay does.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use engine::cost::{Batch, Demand, Field, Parallel, Plan, plan, price, price_columns};
use engine::machine;
use engine::model::{self, WeightDtype};
use engine::policy::{Stack, shape};

const ROWS: usize = 4_000_000;

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

fn columns<const C: usize>(bencher: Bencher<'_, '_>, model: &str, machines: usize, fields: [Field; C]) {
    let plans = plans(model, machines);
    let (requests, lanes) = demand(&plans[0]);
    let lanes: Vec<&[u64]> = lanes.iter().map(Vec::as_slice).collect();
    let mut out: Vec<[Vec<f64>; C]> = plans.iter().map(|_| std::array::from_fn(|_| Vec::new())).collect();
    bencher.counter(ItemsCount::new(ROWS * machines)).bench_local(|| {
        let demand = Demand { decode_requests: black_box(&requests), kept_tokens: &lanes };
        price_columns(&plans, &demand, fields, &mut out).expect("columns that fit");
        black_box(&out);
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
