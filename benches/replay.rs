//! Replay of all 12,031 requests (4.12 M output tokens) of the Mooncake conversation trace, one scenario on one thread.

use std::path::Path;

use arrow::array::RecordBatch;
use engine::replay::{Run, Scenario, Source, replay, tables};
use engine::workload::{Workload, from_requests};
use kvtoll::ingest::{Options, ingest};
use kvtoll::scenario::Spec;
use kvtoll::store::Store;
use kvtoll::surfaces::{Library, framework};

fn main() {
    divan::main();
}

fn workload() -> Workload {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = Store::open_or_create(&folder.path().join("store")).expect("a store");
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/mooncake/conversation_trace.jsonl.zst");
    ingest(&mut store, &[trace.to_string_lossy().into_owned()], &Options::standard(), &|_| {}).expect("an ingest");
    let requests = store.read(&engine::schema::canonical::REQUESTS).expect("requests");
    from_requests("mooncake", &requests).expect("a workload")
}

fn source() -> Source {
    Source { workload: workload(), steps: Vec::new(), trace: None, edited: None }
}

fn scenario(policy: &str, rate: &str, measured: bool) -> Scenario {
    let text = |value: &str| Some(value.to_owned());
    let spec = Spec {
        model: text("llama-3.1-70b"),
        policy: text(policy),
        machine: text("h200"),
        weights: text("fp8"),
        rate: text(rate),
        tensor_parallel: Some(8),
        ..Spec::default()
    };
    let mut scenario = spec.resolve(0).expect("a scenario");
    if measured {
        let (machine, engine) = (&scenario.machine, framework(scenario.rules.name));
        let found = Library::of(None).measured(machine, engine, &scenario.model, scenario.parallel);
        scenario.measured = found.expect("surfaces");
    }
    scenario
}

const CASES: [(&str, &str); 4] =
    [("full", "x0.4"), ("full", "x1"), ("streaming(recent=4092)", "x0.4"), ("snapkv(budget=25%)+turboquant", "x0.4")];

#[divan::bench(args = CASES, sample_count = 20, sample_size = 1)]
fn serve(bencher: divan::Bencher<'_, '_>, (policy, rate): (&str, &str)) {
    let (source, scenario) = (source(), scenario(policy, rate, false));
    bencher.bench(|| replay(&scenario, &source).expect("a replay"));
}

/// The same with steps priced by the surfaces of the machine, the times of the scenario's shapes among it.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn serve_measured(bencher: divan::Bencher<'_, '_>) {
    let (source, scenario) = (source(), scenario("full", "x0.4", true));
    bencher.bench(|| replay(&scenario, &source).expect("a replay"));
}

/// The replay and all rows of its run as Arrow columns, each piece dropped when it has been counted.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn serve_and_tabulate(bencher: divan::Bencher<'_, '_>) {
    let sources = [source()];
    let scenarios = [scenario("full", "x0.4", false)];
    bencher.bench(|| {
        let found = [replay(&scenarios[0], &sources[0])];
        let run = Run {
            id: "bench",
            sources: &sources,
            scenarios: &scenarios,
            found: &found,
            errors: &[],
            organisation: &[],
            api_prices: &[],
            variations: &[],
            tolls: &[],
            books: &[],
            validation: &[],
        };
        let mut rows = 0;
        let count = &mut |_: &_, batches: &[RecordBatch]| {
            rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            Ok(())
        };
        tables(&run, count).expect("tables");
        rows
    });
}
