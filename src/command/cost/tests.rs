use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type, UInt32Type};
use engine::cost::{Batch, price};

use super::*;

fn args(model: &str, machines: &[&str], batch: &str, context: &str) -> Args {
    Args {
        model: vec![model.to_owned()],
        machine: machines.iter().map(ToString::to_string).collect(),
        policy: vec!["full".to_owned()],
        batch: batch.to_owned(),
        context: context.to_owned(),
        tensor_parallel: None,
        data_parallel: 1,
        expert_parallel: 1,
        pipeline_parallel: 1,
        speculative: None,
        weights: None,
        engine: None,
        surfaces: None,
        closed_form: false,
        spec: false,
        shown: Shown { format: "auto".to_owned(), output: None, max_rows: None },
    }
}

fn prepared(args: &Args) -> (Subject, Vec<Placed>, Steps) {
    let subject = subjects(args).unwrap().swap_remove(0);
    let mut failed = None;
    let placed = place(args, &mut Source::of(args).unwrap(), &subject, &mut failed).unwrap();
    assert_eq!(failed, None);
    let steps = Steps::of(&numbers("batch", &args.batch).unwrap(), &numbers("context", &args.context).unwrap());
    (subject, placed, steps)
}

fn ints(batch: &RecordBatch, name: &str) -> Vec<i64> {
    batch.column_by_name(name).unwrap().as_primitive::<Int64Type>().values().to_vec()
}

fn reals(batch: &RecordBatch, name: &str) -> Vec<f64> {
    batch.column_by_name(name).unwrap().as_primitive::<Float64Type>().values().to_vec()
}

fn texts(batch: &RecordBatch, name: &str) -> Vec<String> {
    let column = batch.column_by_name(name).unwrap().as_string::<i32>();
    column.iter().map(|text| text.unwrap().to_owned()).collect()
}

/// The table against each step priced by itself, on two machines, for a model whose layers keep different numbers of
/// tokens.
#[test]
fn the_table_is_the_price_of_each_step() {
    let args = args("gpt-oss-120b", &["h200", "gb300*hbm_bw=2"], "1..64", "100..100k*10");
    let (subject, placed, steps) = prepared(&args);
    let tables = table(&subject, &placed, &steps).unwrap();
    assert_eq!(tables.len(), 2);
    for (placed, table) in placed.iter().zip(&tables) {
        assert_eq!(table.num_rows(), 7 * 4);
        let (batches, contexts) = (&steps.batch, &steps.context);
        let step_ns = ints(table, "step_ns");
        for row in 0..table.num_rows() {
            let kept: Vec<u64> = placed
                .plan
                .lane_keeps()
                .map(|(_, keep)| u64::from(batches[row]) * u64::from(keep.tokens(contexts[row], contexts[row])))
                .collect();
            let groups = placed.plan.groups.len();
            let cost = price(
                &placed.plan,
                &Batch {
                    decode_requests: u64::from(batches[row]),
                    kept_tokens: &kept,
                    longest_tokens: 0,
                    prefill_tokens: 0,
                    prefill_requests: 0,
                    prefill_rows: 0,
                    prefill_pairs: &vec![0.0; groups],
                    prefill_context: &vec![0; groups],
                    scored_tokens: 0,
                },
            );
            assert!((step_ns[row] as f64 - cost.total()).abs() <= 1.0, "row {row}");
            assert_eq!(texts(table, "bound_by")[row], cost.bound_by(), "row {row}");
            let waiting = reals(table, "waiting_ratio")[row];
            assert!((waiting - cost.waiting() / cost.total()).abs() < 1e-9, "row {row}: {waiting}");
        }
        for name in ["memory_bandwidth_ratio", "compute_ratio", "waiting_ratio"] {
            assert!(reals(table, name).iter().all(|ratio| (0.0..=1.0).contains(ratio)), "{name}");
        }
    }
}

/// Bytes over time by hand: Llama 3.1 8B in bf16 streams all but the input embedding, 2 bytes each, and the KV.
#[test]
fn the_memory_ratio_is_bytes_over_time_and_peak() {
    let args = args("llama-3.1-8b", &["h100"], "16", "8000");
    let (subject, placed, steps) = prepared(&args);
    let table = table(&subject, &placed, &steps).unwrap().swap_remove(0);
    let weights = 2.0 * subject.model.active_params();
    let kv = 16.0 * 8001.0 * 131_072.0;
    let seconds = ints(&table, "step_ns")[0] as f64 / 1e9;
    let expected = (weights + kv) / (3350e9 * seconds);
    let found = reals(&table, "memory_bandwidth_ratio")[0];
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} instead of {expected}");
    assert!((reals(&table, "tokens_per_s")[0] - 16.0 / seconds).abs() < 0.1);
}

#[test]
fn the_fewest_accelerators_that_hold_the_weights_are_taken() {
    let of = |model: &str, machine: &str| prepared(&args(model, &[machine], "1", "1k")).1[0].parallel.tensor;
    assert_eq!((of("llama-3.1-8b", "h100"), of("llama-3.1-70b", "h100"), of("llama-3.1-70b", "h200")), (1, 2, 2));
    let mut wide = args("llama-3.1-405b", &["h100", "h200"], "1", "1k");
    wide.weights = Some("bf16".to_owned());
    let subject = subjects(&wide).unwrap().swap_remove(0);
    let mut failed = None;
    let placed = place(&wide, &mut Source::of(&wide).unwrap(), &subject, &mut failed).unwrap();
    assert_eq!(placed.iter().map(|placed| placed.machine.name.as_str()).collect::<Vec<_>>(), ["h200"]);
    assert!(failed.unwrap().to_string().contains("the weights take"));
}

/// Twice the bandwidth never delivers more than twice, more of anything never less than before, and a step that reads KV
/// gets most of its bandwidth while another one gets none of its compute.
#[test]
fn a_specification_delivers_at_most_what_it_says() {
    let args = args("llama-3.1-70b", &["h200"], "1,64", "1k,100k");
    let (subject, placed, steps) = prepared(&args);
    let tables = spec::table(&mut Source::of(&args).unwrap(), &subject, &placed, &steps).unwrap();
    assert_eq!(tables.len(), 4 * 5);
    let mut last: Option<(String, Vec<f64>)> = None;
    for table in &tables {
        let resource = texts(table, "resource").swap_remove(0);
        let factor = reals(table, "factor")[0];
        let delivered: Vec<f64> =
            table.column_by_name("delivered").unwrap().as_primitive::<Float64Type>().iter().flatten().collect();
        if resource != "memory_capacity" {
            assert!(
                delivered.iter().all(|times| *times <= factor * (1.0 + 1e-9)),
                "{resource} x{factor}: {delivered:?}"
            );
        }
        match &last {
            Some((name, before)) if *name == resource => {
                // Larger batches run beyond what was measured, where a kernel may lose a little of its efficiency.
                let least = if resource == "memory_capacity" { 0.98 } else { 1.0 };
                let rises = |(before, now): (&f64, &f64)| *now >= before * least - 1e-9;
                assert!(before.iter().zip(&delivered).all(rises), "{resource}: {before:?} {delivered:?}");
            }
            _ => assert!(delivered.iter().all(|times| (times - 1.0).abs() < 1e-12), "{resource}: {delivered:?}"),
        }
        if resource == "memory_bandwidth" && (factor - 8.0).abs() < 1e-9 {
            // 64 requests with 100,000 tokens wait for KV; one with 1,000 also for floors and collectives. What measured
            // kernels take beyond their roofline stays.
            assert!(delivered[3] > 5.0 && delivered[0] < 4.5, "{delivered:?}");
            assert_eq!(texts(table, "held_by")[3], "kv_read");
        }
        if resource == "compute" {
            assert!(delivered.iter().all(|times| *times < 1.05), "{delivered:?}");
        }
        last = Some((resource, delivered));
    }
    let capacity = tables.last().unwrap();
    let batches = capacity.column_by_name("batch").unwrap().as_primitive::<UInt32Type>().values().to_vec();
    assert_eq!(batches.len(), 2, "one row per context");
    assert!(batches[0] > batches[1]);
}

/// What is fetched from a lower tier was in the step and in none of its booths, and a faster link brought nothing.
#[test]
fn a_lower_tier_is_a_booth_of_the_table() {
    let mut args = args("llama-3.1-8b", &["h100"], "1", "4k");
    args.policy = vec!["snapkv(budget=25%)+recall(tokens=3072)".to_owned()];
    let (subject, placed, steps) = prepared(&args);
    let found = table(&subject, &placed, &steps).unwrap().swap_remove(0);
    let ns = |name: &str| found.column_by_name(name).unwrap().as_primitive::<Int64Type>().value(0);
    let booths = ["kv_read", "weight_read", "compute", "collective", "policy", "tier", "link", "overhead"];
    let sum: i64 = booths.iter().map(|name| ns(&format!("{name}_ns"))).sum();
    assert!((sum - ns("step_ns")).abs() <= 8, "{sum} of {}", ns("step_ns"));
    // The 3,000 tokens that are not kept, 4,096 bytes in each of 32 layers, over 64 GB/s.
    assert!((ns("tier_ns") - 6_144_000).abs() <= 2, "{}", ns("tier_ns"));
    assert_eq!(texts(&found, "bound_by"), ["tier"]);
    let last = |name: &str| {
        let of = |table: &RecordBatch| texts(table, "resource") == [name];
        let tables = spec::table(&mut Source::of(&args).unwrap(), &subject, &placed, &steps).unwrap();
        reals(tables.iter().rfind(|table| of(table)).unwrap(), "delivered")[0]
    };
    assert!(last("link") > 1.7 && last("compute") < 1.05);
}

/// A step on a measured machine rests on measurements, and on none in closed form or on a machine that nobody has measured.
#[test]
fn measured_machines_are_priced_by_what_was_measured() {
    let rests = |args: &Args| {
        let (subject, placed, steps) = prepared(args);
        let found = table(&subject, &placed, &steps).unwrap().swap_remove(0);
        (reals(&found, "calibrated_ratio")[0], reals(&found, "extrapolated_ratio")[0])
    };
    let plain = args("llama-3.1-8b", &["h100"], "64", "4k");
    let (calibrated, extrapolated) = rests(&plain);
    // What is left: the host, norms and activations, and the vocabulary, which is wider than any measured product.
    assert!(calibrated > 0.8 && extrapolated < 0.06, "{calibrated} {extrapolated}");
    assert_eq!(rests(&Args { closed_form: true, ..args("llama-3.1-8b", &["h100"], "64", "4k") }), (0.0, 0.0));
    assert_eq!(rests(&args("llama-3.1-8b", &["vera-rubin"], "64", "4k")), (0.0, 0.0));
    let (calibrated, extrapolated) = rests(&args("llama-3.1-8b", &["gb300"], "64", "4k"));
    assert!(calibrated.abs() < 1e-12 && extrapolated > 0.7, "{calibrated} {extrapolated}");
    let (calibrated, extrapolated) = rests(&args("llama-3.1-8b", &["h100*hbm_bw=2"], "64", "4k"));
    assert!(calibrated.abs() < 1e-12 && extrapolated > 0.7, "{calibrated} {extrapolated}");
    let wrong = Args { engine: Some("vlm".to_owned()), ..args("llama-3.1-8b", &["h100"], "64", "4k") };
    assert!(Source::of(&wrong).err().unwrap().to_string().contains("unknown engine `vlm`"));
}
