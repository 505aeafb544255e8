//! Laws of the cost engine, over every machine preset and several models.

mod parallel;

use proptest::prelude::*;

use super::*;
use crate::machine::{self, Machine, scaled};
use crate::model::{self, Model, WeightDtype};
use crate::policy::{Stack, shape};

const MODELS: &[(&str, &str)] = &[
    ("llama-3.1-8b", include_str!("../../../presets/model/llama-3.1-8b.toml")),
    ("llama-3.1-70b", include_str!("../../../presets/model/llama-3.1-70b.toml")),
    ("gpt-oss-120b", include_str!("../../../presets/model/gpt-oss-120b.toml")),
    ("deepseek-v3", include_str!("../../../presets/model/deepseek-v3.toml")),
];

const MACHINES: &[(&str, &str)] = &[
    ("h100", include_str!("../../../presets/machine/h100.toml")),
    ("h200", include_str!("../../../presets/machine/h200.toml")),
    ("b200", include_str!("../../../presets/machine/b200.toml")),
    ("gb300", include_str!("../../../presets/machine/gb300.toml")),
    ("vera-rubin", include_str!("../../../presets/machine/vera-rubin.toml")),
    ("vera-rubin-lpx", include_str!("../../../presets/machine/vera-rubin-lpx.toml")),
    ("tpu-v7", include_str!("../../../presets/machine/tpu-v7.toml")),
];

pub(super) fn a_model(index: usize) -> Model {
    let (name, text) = MODELS[index];
    model::parse(text, name).unwrap()
}

pub(super) fn a_machine(expression: &str) -> Machine {
    let lookup = |name: &str| {
        let found = MACHINES.iter().find(|(known, _)| *known == name)?;
        Some((found.1.to_owned(), format!("presets/machine/{name}.toml")))
    };
    machine::resolve(expression, &lookup).unwrap()
}

pub(super) fn machine_at(index: usize) -> Machine {
    let name = MACHINES[index].0;
    let linked = "vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us";
    a_machine(if name == "vera-rubin-lpx" { linked } else { name })
}

pub(super) fn planned(model: &Model, policy: &str, machine: &Machine, tensor: u32) -> Plan {
    let shape = shape(&Stack::parse(policy).unwrap(), model).unwrap();
    // Enough memory for every model, since these laws are about time.
    let mut machine = machine.clone();
    machine.accelerator.memory_bytes.value = 2e12;
    if let Some(pool) = &mut machine.ffn_pool {
        pool.memory_bytes.value = 1e11;
    }
    plan(model, &shape, &machine, WeightDtype::Fp8, Parallel::tensor(tensor)).unwrap()
}

/// A batch as owned columns.
#[derive(Debug, Clone)]
pub(super) struct Columns {
    pub decode: u64,
    pub context: u64,
    pub prefill: u64,
}

fn columns() -> impl Strategy<Value = Columns> {
    (0_u64..300, 1_u64..100_000, 0_u64..8192)
        .prop_filter("a step computes something", |(decode, _, prefill)| decode + prefill > 0)
        .prop_map(|(decode, context, prefill)| Columns { decode, context, prefill })
}

pub(super) fn priced(plan: &Plan, columns: &Columns) -> StepCost {
    let cap = |group: &PlanGroup, tokens: u64| group.group.keep.total.map_or(tokens, |cap| tokens.min(u64::from(cap)));
    let kept: Vec<u64> = plan.groups.iter().map(|group| columns.decode * cap(group, columns.context)).collect();
    let read: Vec<u64> = plan.groups.iter().map(|group| cap(group, columns.prefill)).collect();
    let pairs: Vec<f64> = read.iter().map(|&read| columns.prefill as f64 * read as f64 / 2.0).collect();
    price(
        plan,
        &Batch {
            decode_requests: columns.decode,
            kept_tokens: &kept,
            longest_tokens: 0,
            prefill_tokens: columns.prefill,
            prefill_requests: u64::from(columns.prefill > 0),
            prefill_rows: u64::from(columns.prefill > 0),
            prefill_pairs: &pairs,
            prefill_context: &read,
            scored_tokens: columns.prefill,
        },
    )
}

/// Every stage that is sure to suit every model.
pub(super) const POLICIES: [&str; 4] = ["full", "fp8", "snapkv(budget=1024)", "streaming(recent=1020)"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn time_is_at_least_bytes_over_bandwidth_and_flops_over_peak(
        model in 0..MODELS.len(), machine in 0..MACHINES.len(), policy in 0..POLICIES.len(),
        tensor in proptest::sample::select(vec![1_u32, 2, 4, 8]), columns in columns(),
    ) {
        let machine = machine_at(machine);
        let plan = planned(&a_model(model), POLICIES[policy], &machine, tensor);
        let cost = priced(&plan, &columns);
        let tensor = f64::from(tensor);
        let part = &machine.accelerator;
        let bandwidth = part.memory_bytes_per_s.value / 1e9 * tensor;
        prop_assert!(cost.total() >= (cost.kv_read_bytes + cost.weight_read_bytes) / bandwidth);
        let pool = plan.ffn_pool.as_ref().map_or(0.0, |pool| pool.flops_per_ns);
        let peak = part.fp8_flops.as_ref().unwrap_or(&part.bf16_flops).value / 1e9 * tensor + pool;
        prop_assert!(cost.total() >= cost.flops / peak);
        prop_assert!(cost.busy <= cost.total());
        prop_assert!((cost.booths().iter().map(|booth| booth.1).sum::<f64>() - cost.total()).abs() < 1e-6 * cost.total());
        prop_assert!(cost.booths().iter().all(|booth| booth.1 >= 0.0 && booth.1.is_finite()));
    }

    #[test]
    fn a_step_is_never_slower_on_a_machine_with_every_rate_higher(
        model in 0..MODELS.len(), machine in 0..MACHINES.len(), policy in 0..POLICIES.len(),
        tensor in proptest::sample::select(vec![1_u32, 2, 4, 8]), columns in columns(), factor in 1.0_f64..4.0,
    ) {
        let (model, machine) = (a_model(model), machine_at(machine));
        let plain = priced(&planned(&model, POLICIES[policy], &machine, tensor), &columns).total();
        let faster = priced(&planned(&model, POLICIES[policy], &scaled(&machine, factor, 1.0), tensor), &columns).total();
        prop_assert!(faster <= plain * (1.0 + 1e-12), "{faster} after {plain}");
    }

    #[test]
    fn times_halve_when_rates_double_and_latencies_halve(
        model in 0..MODELS.len(), machine in 0..MACHINES.len(), policy in 0..POLICIES.len(),
        tensor in proptest::sample::select(vec![1_u32, 2, 4, 8]), columns in columns(),
    ) {
        let (model, machine) = (a_model(model), machine_at(machine));
        let plain = priced(&planned(&model, POLICIES[policy], &machine, tensor), &columns).total();
        let half = priced(&planned(&model, POLICIES[policy], &scaled(&machine, 2.0, 0.5), tensor), &columns).total();
        prop_assert!((half * 2.0 - plain).abs() <= 1e-9 * plain);
    }

    #[test]
    fn reads_never_exceed_what_the_layers_can_address(
        model in 0..MODELS.len(), policy in 0..POLICIES.len(), columns in columns(),
    ) {
        let model = a_model(model);
        let decode = Columns { prefill: 0, decode: columns.decode.max(1), ..columns };
        let cost = priced(&planned(&model, POLICIES[policy], &machine_at(1), 1), &decode);
        let addressable = decode.decode * decode.context * (model.growing_bytes_per_token())
            + decode.decode * model.constant_bytes();
        prop_assert!(cost.kv_read_bytes <= addressable as f64);
    }

    #[test]
    fn equal_regimes_mean_linear_steps(
        model in 0..MODELS.len(), machine in 0..MACHINES.len(), decode in 1_u64..300,
        context in 200_u64..50_000, more in 1_u64..5_000,
    ) {
        let plan = planned(&a_model(model), "full", &machine_at(machine), 8);
        let at = |context| priced(&plan, &Columns { decode, context, prefill: 0 });
        let (first, middle, last) = (at(context), at(context + more), at(context + 2 * more));
        if first.regime == last.regime {
            prop_assert!((first.total() + last.total() - 2.0 * middle.total()).abs() <= 1e-9 * last.total());
        }
    }
}

/// Bandwidth, the scale-up link and the hop to the FFN pool each move the time, not only a counter.
#[test]
fn a_change_of_bandwidth_or_link_moves_time() {
    let model = a_model(1);
    let decode = Columns { decode: 64, context: 8000, prefill: 0 };
    let time = |machine: &str| priced(&planned(&model, "full", &a_machine(machine), 8), &decode).total();
    assert!(time("h200*memory_bytes_per_s=2") < 0.8 * time("h200"));
    assert!(time("h200*scale_up_bytes_per_s=0.1") > 1.05 * time("h200"));
    let lpx = |link: &str| time(&format!("vera-rubin-lpx*link_bytes_per_s={link}*link_latency_ns=2us"));
    assert!(lpx("2GB/s") > 1.2 * lpx("200GB/s"));
}

#[test]
fn a_missing_link_is_asked_for_and_weights_that_do_not_fit_are_refused() {
    let model = a_model(1);
    let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
    let refused = |machine: &str, dtype, tensor| {
        let parallel = Parallel::tensor(tensor);
        plan(&model, &shape, &a_machine(machine), dtype, parallel).unwrap_err()
    };
    let error = refused("vera-rubin-lpx", WeightDtype::Fp8, 8);
    assert_eq!(
        error.to_string(),
        "`vera-rubin-lpx` needs the link between its attention and FFN accelerators, which is not published"
    );
    let error = refused("h100", WeightDtype::Bf16, 1);
    assert!(error.to_string().starts_with("the weights take 131 GiB and 1 accelerators of `h100` offer"), "{error}");
    let error = refused("h200", WeightDtype::Fp8, 16);
    assert!(error.to_string().contains("joins 8 accelerators in one scale-up domain"), "{error}");
}

/// KV is replicated where tensor parallelism exceeds the KV heads, and always for MLA.
#[test]
fn kv_is_replicated_beyond_the_kv_heads() {
    let machine = a_machine("gb300");
    let llama = a_model(0);
    assert_eq!(planned(&llama, "full", &machine, 8).growing_bytes(), llama.growing_bytes_per_token());
    assert_eq!(planned(&llama, "full", &machine, 16).growing_bytes(), 2 * llama.growing_bytes_per_token());
    let deepseek = a_model(3);
    assert_eq!(planned(&deepseek, "full", &machine, 8).growing_bytes(), 8 * deepseek.growing_bytes_per_token());
}

#[test]
fn heads_that_do_not_divide_are_refused() {
    let model = a_model(1);
    let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
    for tensor in [3, 6, 7] {
        let parallel = Parallel::tensor(tensor);
        let error = plan(&model, &shape, &a_machine("gb300"), WeightDtype::Fp8, parallel).unwrap_err();
        assert!(error.to_string().contains(&format!("do not divide among {tensor} accelerators")), "{error}");
    }
}

/// The price of one request of 9,000 prompt tokens that decodes at a context of 10,000.
fn one_request(plan: &Plan) -> StepCost {
    let kept: Vec<u64> = plan.lane_keeps().map(|(_, keep)| u64::from(keep.tokens(9000, 10_000))).collect();
    let (pairs, read) = (vec![0.0; plan.groups.len()], vec![0; plan.groups.len()]);
    let batch = Batch {
        decode_requests: 1,
        kept_tokens: &kept,
        longest_tokens: 0,
        prefill_tokens: 0,
        prefill_requests: 0,
        prefill_rows: 0,
        prefill_pairs: &pairs,
        prefill_context: &read,
        scored_tokens: 0,
    };
    price(plan, &batch)
}

#[test]
fn recovery_costs_what_it_reads_and_fetches() {
    let (model, h200) = (a_model(0), a_machine("h200"));
    let of = |policy: &str| one_request(&planned(&model, policy, &h200, 1));
    let alone = of("snapkv(budget=1024)");
    let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    // 32 layers of 8 KV heads: 512 bytes of a token in 16 bits, 132 in 4.
    let (layers, dropped) = (32.0 * 8.0, f64::from(10_000 - 1024 - 1000));
    let copies = of("snapkv(budget=1024)+copies(as=int4)");
    near(copies.kv_read_bytes - alone.kv_read_bytes, layers * 132.0 * dropped);
    // Each is attended to by all query heads, and taken apart by two operations an element.
    near(copies.flops - alone.flops, dropped * 32.0 * (2.0 * 2.0 * 32.0 * 128.0 + 2.0 * 2048.0));
    assert!(copies.policy > alone.policy && copies.total() > alone.total());
    // 256 tokens come over the link in each step and layer, are read where they land, and digests are read for the rest.
    let recall = of("snapkv(budget=1024)+recall(tokens=256)");
    near(recall.tier_bytes, layers * 512.0 * 256.0);
    near(recall.tier, layers * 512.0 * 256.0 / 64.0);
    near(recall.kv_read_bytes - alone.kv_read_bytes, layers * (512.0 * 256.0 + 32.0 * (dropped - 256.0)));
    near(recall.booths().iter().map(|booth| booth.1).sum::<f64>(), recall.total());
    let halved = one_request(&planned(
        &model,
        "snapkv(budget=1024)+recall(tokens=256)",
        &a_machine("h200*host_link_bytes_per_s=2"),
        1,
    ));
    near(halved.tier, recall.tier / 2.0);
    // A retained token is a token.
    let retained = of("snapkv(budget=1024)+retain(10%)");
    near(retained.kv_read_bytes - alone.kv_read_bytes, layers * 512.0 * 798.0);
    let shape = shape(&Stack::parse("window(1024)+recall(64)").unwrap(), &model).unwrap();
    let parallel = Parallel::tensor(1);
    let error = plan(&model, &shape, &a_machine("tpu-v7"), WeightDtype::Fp8, parallel).unwrap_err();
    assert!(error.to_string().contains("`recall` needs the link"), "{error}");
    assert!(error.advice().unwrap().contains("host_link_bytes_per_s"));
}

/// The memory of a request holds what the format says that it stores, at every length, and no more than whole blocks and
/// the whole window.
#[test]
fn a_request_takes_room_for_its_newest_tokens_in_16_bits() {
    let (model, h200) = (a_model(0), a_machine("h200"));
    for policy in ["kivi", "kivi(bits=4,residual=32)", "fp8", "snapkv(budget=1024)+kivi"] {
        let shape = shape(&Stack::parse(policy).unwrap(), &model).unwrap();
        let plan = planned(&model, policy, &h200, 1);
        let group = &shape.groups[0];
        let room = 32 * group.residual.most_bytes(u32::MAX);
        for context in [1, 127, 128, 129, 255, 256, 1000, 5000] {
            let tokens = group.keep.tokens(context, context);
            let (stored, held) = (32 * group.bytes_of(tokens), plan.footprint(context, context, true));
            assert!(held >= stored, "{policy} at {context}: {held} hold {stored}");
            assert!(
                held <= 32 * u64::from(tokens.next_multiple_of(16)) * group.stored_bytes() + room,
                "{policy} {context}"
            );
        }
        assert_eq!(room > 0, policy.contains("kivi"));
    }
}

#[test]
fn steps_that_no_column_holds_are_refused() {
    assert!(within_bits(9.2e18).is_ok());
    for longest in [9_223_372_036_854_775_808.0, f64::INFINITY] {
        assert!(within_bits(longest).unwrap_err().to_string().contains("less than 2^63 ns"));
    }
}

/// What a layer of small kernels takes beside bytes and arithmetic is there once a step and, for prompts, once a token: 45
/// linear layers of 60, and 78 sparse ones.
#[test]
fn chains_of_small_kernels_take_their_time() {
    let linear = include_str!("../../../presets/model/qwen3.5-397b-a17b.toml");
    let sparse = include_str!("../../../presets/model/glm-5.toml");
    for (text, name, layers, kind) in [(linear, "qwen", 45.0, "linear"), (sparse, "glm", 78.0, "sparse")] {
        let model = model::parse(text, name).unwrap();
        let at = |machine: &str, columns: &Columns| priced(&planned(&model, "full", &a_machine(machine), 8), columns);
        let decode = Columns { decode: 4, context: 2000, prefill: 0 };
        let prompt = Columns { decode: 0, context: 1, prefill: 1000 };
        for (parameter, columns, times) in
            [("floor", &decode, layers), ("floor", &prompt, layers), ("prefill", &prompt, 1000.0 * layers)]
        {
            let own = a_machine("h200").efficiency;
            let known = match (kind, parameter) {
                ("linear", "floor") => own.linear_floor_ns,
                ("linear", _) => own.linear_prefill_ns,
                (_, "floor") => own.sparse_floor_ns,
                _ => own.sparse_prefill_ns,
            };
            let more = at(&format!("h200*{kind}_{parameter}_ns=2"), columns).total() - at("h200", columns).total();
            let expected = times * known.unwrap().value;
            assert!((more / expected - 1.0).abs() < 1e-9, "{kind} {parameter}: {more} {expected}");
        }
    }
}
