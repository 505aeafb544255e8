//! Data, expert and pipeline parallelism, and drafting.

use super::*;

fn spread(model: &Model, machine: &Machine, parallel: Parallel) -> Result<Plan> {
    let shape = shape(&Stack::parse("full").unwrap(), model).unwrap();
    let mut machine = machine.clone();
    machine.accelerator.memory_bytes.value = 2e12;
    plan(model, &shape, &machine, WeightDtype::Fp8, parallel)
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
}

/// DeepSeek-V3 on 8 accelerators: with attention split by heads each of them has every latent, split by requests its own.
#[test]
fn requests_of_their_own_need_no_replicas() {
    let (model, machine) = (a_model(3), a_machine("gb300"));
    let heads = spread(&model, &machine, Parallel::tensor(8)).unwrap();
    let requests = Parallel { data: 8, expert: 8, ..Parallel::default() };
    let requests = spread(&model, &machine, requests).unwrap();
    assert_eq!(heads.growing_bytes(), 8 * model.growing_bytes_per_token());
    assert_eq!(requests.growing_bytes(), model.growing_bytes_per_token());
    // Seven more copies of all that is no routed expert.
    let routed: f64 = model
        .groups
        .iter()
        .map(|group| f64::from(group.layers) * f64::from(group.ffn.experts) * group.ffn.expert_params)
        .sum();
    near(requests.weight_bytes - heads.weight_bytes, 7.0 * (model.params() - routed));
    let decode = Columns { decode: 256, context: 8000, prefill: 0 };
    let (by_heads, by_requests) = (priced(&heads, &decode), priced(&requests, &decode));
    near(by_heads.kv_read_bytes, 8.0 * by_requests.kv_read_bytes);
    near(by_heads.flops, by_requests.flops);
    // One latent for all heads of a request: an eighth of the reads.
    assert!(by_requests.kv_read < by_heads.kv_read);
    assert!(by_requests.collective > 0.0 && by_requests.dispatch_bytes > 0.0);
}

/// DeepSeek-V3 on 8 accelerators that attend to requests of their own: 58 layers of experts, 7,168 numbers a token. Whole
/// experts get tokens in 8 bits and answer in 16; slices of all experts need every token, in 16 bits both ways.
#[test]
fn tokens_go_to_whole_experts_in_8_bits_and_to_slices_in_16() {
    let (model, machine) = (a_model(3), a_machine("gb300"));
    let crossing = |expert: u32, tensor: u32| {
        let plan = spread(&model, &machine, Parallel { data: 8, expert, tensor, ..Parallel::default() }).unwrap();
        priced(&plan, &Columns { decode: 256, context: 8000, prefill: 0 }).collective_bytes()
    };
    // 32 tokens of each accelerator to 7 others.
    let tokens = 58.0 * 8.0 * 32.0 * 7.0 * 7168.0;
    near(crossing(8, 1), tokens * 3.0);
    near(crossing(1, 1), tokens * 4.0);
    // Two accelerators of a group gather all tokens each; two all-reduces less one for each of 61 layers with experts.
    let reduced = (2.0 * 61.0 - 58.0) * 8.0 * 32.0 * 7168.0 * 2.0 * 2.0 * 0.5 * 2.0;
    near(crossing(1, 2), 2.0 * tokens * 4.0 + reduced);
}

/// Three requests on eight groups of accelerators: none has less than one, and more groups bring nothing.
#[test]
fn a_group_has_at_least_one_whole_request() {
    let (model, machine) = (a_model(0), a_machine("gb300"));
    let of = |data: u32, decode: u64| {
        let plan = spread(&model, &machine, Parallel { data, ..Parallel::default() }).unwrap();
        priced(&plan, &Columns { decode, context: 4000, prefill: 0 })
    };
    near(of(4, 3).kv_read, of(8, 3).kv_read);
    near(of(8, 3).kv_read, of(1, 1).kv_read);
    near(of(8, 64).kv_read, of(1, 8).kv_read);
    near(of(8, 64).weight_read_bytes, 8.0 * of(1, 8).weight_read_bytes);
}

/// A step of a pipeline takes what one of its parts takes through all layers, and the hops between stages.
#[test]
fn a_pipeline_works_on_as_many_parts_as_it_has_stages() {
    let (model, machine) = (a_model(1), a_machine("gb300"));
    let whole = spread(&model, &machine, Parallel::tensor(2)).unwrap();
    let staged = spread(&model, &machine, Parallel { pipeline: 4, ..Parallel::tensor(2) }).unwrap();
    for decode in [4_u64, 64, 256] {
        let of = |plan: &Plan, decode: u64| priced(plan, &Columns { decode, context: 6000, prefill: 0 });
        let (part, step) = (of(&whole, decode / 4), of(&staged, decode));
        near(step.total() - step.link, part.total());
        near(step.weight_read_bytes, 4.0 * part.weight_read_bytes);
        near(step.kv_read_bytes, 4.0 * part.kv_read_bytes);
        near(step.flops, 4.0 * part.flops);
        assert!(step.link > 0.0 && step.pipeline_bytes > 0.0);
    }
    // Four times the accelerators have room for four times the KV and three copies of the weights.
    near(staged.capacity_bytes as f64, 4.0 * whole.capacity_bytes as f64 + 3.0 * whole.weight_bytes);
}

#[test]
fn impossible_degrees_are_refused() {
    let refused = |model: usize, machine: &str, parallel: Parallel| {
        spread(&a_model(model), &a_machine(machine), parallel).unwrap_err().to_string()
    };
    let expert = Parallel { expert: 2, ..Parallel::tensor(2) };
    assert!(refused(0, "h200", expert).contains("has no experts to deal out"));
    assert!(
        refused(2, "h200", Parallel { expert: 3, ..Parallel::tensor(8) }).contains("that divides the 8 accelerators")
    );
    assert!(
        refused(2, "gb300", Parallel { data: 3, expert: 3, ..Parallel::default() }).contains("do not divide among 3")
    );
    assert!(refused(0, "h200", Parallel { pipeline: 33, ..Parallel::default() }).contains("make no 33 stages"));
    assert!(refused(0, "h200", Parallel { data: 0, ..Parallel::default() }).contains("found 0"));
    let apart = "vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us";
    assert!(refused(2, apart, Parallel { data: 2, ..Parallel::default() }).contains("tensor parallelism only"));
    let mut plan = planned(&a_model(0), "full", &a_machine(apart), 8);
    assert!(plan.draft(Some(Speculative { drafted: 1, accept: 0.5 })).is_err());
}

/// Four tokens for one reading of weights and KV, where arithmetic is not the limit; with none accepted only dearer.
#[test]
fn drafting_shares_what_a_step_reads() {
    let mut plan = spread(&a_model(1), &a_machine("h200"), Parallel::tensor(8)).unwrap();
    let decode = Columns { decode: 4, context: 4000, prefill: 0 };
    let plain = priced(&plan, &decode);
    let mut with = |accept: f64| {
        plan.draft(Some(Speculative { drafted: 3, accept })).unwrap();
        priced(&plan, &decode)
    };
    let (all, none) = (with(1.0), with(0.0));
    // Three drafted tokens pass one of 80 layers each, less the host's time.
    let drafted = (plain.total() - 500_000.0) * 3.0 / 80.0;
    assert!((all.total() * 4.0 - drafted) / plain.total() < 1.1, "{} {}", all.total(), plain.total());
    assert!(all.total() > plain.total() / 4.0 && none.total() > plain.total());
    near(all.kv_read_bytes * 4.0, plain.kv_read_bytes * (1.0 + 3.0 / 80.0));
    assert!((Speculative { drafted: 3, accept: 0.7 }.yielded() - 2.533).abs() < 1e-12);
    // Steps remain an arithmetic progression where they were one.
    let at = |context| priced(&plan, &Columns { context, ..decode.clone() });
    let (first, middle, last) = (at(4000), at(4100), at(4200));
    assert_eq!(first.regime, last.regime);
    assert!((first.total() + last.total() - 2.0 * middle.total()).abs() < 1e-9 * last.total());
}
