//! The serving replay on the Mooncake conversation trace: 12,031 requests and 4.12 M output tokens on eight instances.
//!
//! `open` at the trace's own arrivals; `longer` with outputs ten times as long, at a tenth of the rate; `closed` with 256
//! requests at a time, routed to whoever has the prefix; `million` is the trace 84 times in a row, each time with prompts of
//! its own. The allocator counts: `max alloc` is the peak beyond the workload.

use divan::{AllocProfiler, Bencher};
use engine::cost::{Parallel, Plan, plan};
use engine::machine;
use engine::model::{self, WeightDtype};
use engine::number::Numbers;
use engine::policy::{Stack, shape};
use engine::serving::{Fate, Pool, RULES, Role, Routing, Setup, Traffic, serve};
use engine::workload::{Turns, Workload};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../presets/{path}.toml", env!("CARGO_MANIFEST_DIR"))).expect("a preset")
}

fn planned() -> Plan {
    let model = model::parse(&read("model/llama-3.1-70b"), "llama-3.1-70b").expect("a model");
    let shape = shape(&Stack::parse("full").expect("a policy"), &model).expect("a shape");
    let machine = machine::parse(&read("machine/h200"), "h200").expect("a machine");
    plan(&model, &shape, &machine, WeightDtype::Fp8, Parallel { tensor: 8, instances: 8, ..Parallel::default() })
        .expect("a plan")
}

/// What stands after a key, up to one of these characters.
fn after<'a>(text: &'a str, key: &str, ends: &[char]) -> &'a str {
    let rest = text.split_once(key).expect("a key").1;
    rest.split(ends).next().expect("a value").trim()
}

/// The trace `loops` times in a row, outputs `longer` times as long, arrivals `slower` times as far apart.
fn mooncake(loops: u64, longer: u32, slower: i64) -> Workload {
    let path = format!("{}/../traces/mooncake/conversation_trace.jsonl.zst", env!("CARGO_MANIFEST_DIR"));
    let text = zstd::decode_all(std::fs::File::open(path).expect("the trace")).expect("zstd");
    let text = String::from_utf8(text).expect("text");
    let number = |line: &str, key: &str| after(line, key, &[',', '}']).parse::<i64>().expect("a number");
    let mut workload = Workload {
        name: "mooncake".to_owned(),
        request_ids: Vec::new(),
        arrival_ns: Vec::new(),
        prompt: Vec::new(),
        output: Vec::new(),
        unit_tokens: 512,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: 0,
        turns: Turns::default(),
    };
    let mut numbers = Numbers::default();
    for pass in 0..loops {
        for line in text.lines() {
            let ids = after(line, "\"hash_ids\": [", &[']']).split(',').filter(|id| !id.trim().is_empty());
            let hashes: Vec<u64> = ids.map(|id| id.trim().parse::<u64>().expect("an id") + (pass << 32)).collect();
            numbers.number(&hashes, &mut workload.units).expect("fewer than 2^32 blocks");
            workload.request_ids.push(workload.prompt.len() as u64);
            let at = number(line, "\"timestamp\":") + pass as i64 * 3_600_000;
            workload.arrival_ns.push(at * 1_000_000 * slower);
            workload.prompt.push(number(line, "\"input_length\":") as u32);
            workload.output.push(number(line, "\"output_length\":") as u32 * longer);
            workload.offsets.push(workload.units.len() as u32);
        }
    }
    workload.distinct_units = numbers.len() as u32;
    workload
}

fn replay(bencher: Bencher<'_, '_>, workload: &Workload, traffic: Traffic, routing: Routing) {
    let plan = planned();
    let pools = [Pool { plan: &plan, instances: 8, role: Role::Both }];
    let setup = Setup { pools: &pools, traffic, routing, rules: &RULES[0], handover: None, below: None };
    bencher.bench_local(|| {
        let outcome = serve(&setup, workload);
        assert!(outcome.served.iter().all(|served| served.fate == Fate::Finished));
        outcome.stretches.len()
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn open(bencher: Bencher<'_, '_>) {
    replay(bencher, &mooncake(1, 1, 1), Traffic::Open, Routing::RoundRobin);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn longer(bencher: Bencher<'_, '_>) {
    replay(bencher, &mooncake(1, 10, 10), Traffic::Open, Routing::RoundRobin);
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn closed(bencher: Bencher<'_, '_>) {
    replay(bencher, &mooncake(1, 1, 1), Traffic::Closed { concurrency: 256 }, Routing::Prefix);
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn million(bencher: Bencher<'_, '_>) {
    replay(bencher, &mooncake(84, 1, 1), Traffic::Open, Routing::RoundRobin);
}
