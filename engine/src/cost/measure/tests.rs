//! Steps against what the surfaces themselves say, and the laws of measured plans.

use std::sync::LazyLock;

use super::*;
use crate::cost::tests::{Columns, a_machine, a_model, planned, priced};
use crate::cost::{Demand, Field, StepCost, price_columns};
use crate::surface::{Rows, Scratch, Tuning, work};

/// Rates of the device that the surfaces here are of: those of an H200.
fn peaks() -> Peaks {
    let part = a_machine("h200").accelerator;
    let eight = part.fp8_flops.unwrap().value;
    Peaks {
        memory_bytes_per_s: part.memory_bytes_per_s.value,
        cache_bytes: 50e6,
        flops_16bit: part.bf16_flops.value,
        flops_8bit: eight,
        flops_4bit: eight,
        link_bytes_per_s: part.scale_up_bytes_per_s.value,
        processors: 132.0,
    }
}

/// A start, and then 80% of the roofline.
fn law(op: &str, key: &Key, shape: &Shape) -> f64 {
    3000.0 + work(op, key, shape).roofline_ns(&peaks()) / 0.8
}

/// A surface of that law, which interpolates over the lengths that vary.
fn surface(op: &str, keys: &[Key], shapes: &[Shape]) -> Surface {
    let mut rows = Rows::default();
    let mut values = Vec::new();
    for key in keys {
        for shape in shapes {
            let time = law(op, key, shape);
            rows.push(key, *shape, time);
            values.push((work(op, key, shape).roofline_ns(&peaks()) / time).ln());
        }
    }
    let scales = Dim::ALL.iter().map(|dim| (dim.column().to_owned(), 1.0)).collect();
    let tuning = Tuning {
        scales,
        neighbours: 24,
        length: 4.0,
        nugget: 1e-6,
        slope: 0.01,
        smoothness: 1,
        offset: 0.0,
        start: 0.0,
    };
    Surface::new(op, &rows, &values, peaks(), tuning)
}

fn key(dtype: &str, kv_dtype: &str) -> Key {
    Key { dtype: dtype.to_owned(), kv_dtype: kv_dtype.to_owned(), ..Key::default() }
}

/// Decode attention and prompts of Llama 3.1 8B on one or two accelerators, in both number formats.
fn attention() -> [Surface; 2] {
    let keys = [key("bfloat16", "bfloat16"), key("bfloat16", "fp8")];
    let (mut decode, mut prompts) = (Vec::new(), Vec::new());
    for (query_heads, kv_heads) in [(32, 8), (16, 4)] {
        let shape = Shape::of(&[
            (Dim::NewTokens, 1),
            (Dim::QueryHeads, query_heads),
            (Dim::KvHeads, kv_heads),
            (Dim::HeadDim, 128),
        ]);
        for batch in (0..10).map(|power| 1 << power) {
            let shape = shape.with(Dim::Batch, batch);
            decode.extend((0..17).map(|power| shape.with(Dim::PastTokens, (1 << power) - 1)));
            prompts.extend((0..15).map(|power| shape.with(Dim::NewTokens, 1 << power)));
        }
    }
    [surface("attention_generation", &keys, &decode), surface("attention_context", &keys, &prompts)]
}

/// Matrix products of 8 and 16 bits, and all-reduces.
fn products() -> [Surface; 2] {
    let mut shapes = Vec::new();
    for m in (0..16).map(|power| 1 << power) {
        for n in (10..18).map(|power| 1 << power) {
            shapes.extend((10..16).map(|power| Shape::of(&[(Dim::M, m), (Dim::N, n), (Dim::K, 1 << power)])));
        }
    }
    let keys = ["bfloat16", "fp8"].map(|dtype| key(dtype, ""));
    let ring = (8..31).flat_map(|power| {
        [2, 4, 8].map(|devices| {
            Shape::of(&[(Dim::Devices, devices), (Dim::ElementBytes, 2), (Dim::MessageBytes, 1 << power)])
        })
    });
    [surface("gemm", &keys, &shapes), surface("all_reduce", &[key("", "")], &ring.collect::<Vec<_>>())]
}

fn measured(surfaces: impl IntoIterator<Item = Surface>) -> Measured {
    Measured { name: "law".to_owned(), surfaces: surfaces.into_iter().map(Arc::new).collect(), peaks: None }
}

fn all() -> Measured {
    static ALL: LazyLock<Measured> = LazyLock::new(|| measured(attention().into_iter().chain(products())));
    ALL.clone()
}

/// Llama 3.1 8B in 8 bits on so many H200.
fn measured_plan(policy: &str, tensor: u32, measured: &Measured) -> Plan {
    let (model, machine) = (a_model(0), a_machine("h200"));
    let mut plan = planned(&model, policy, &machine, tensor);
    measure(&mut plan, &model, &machine, WeightDtype::Fp8, measured);
    plan
}

fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() < share, "{found} instead of {expected}");
}

/// Every operation of a decode step, asked of its surface one by one.
#[test]
fn a_step_is_the_sum_of_what_the_surfaces_say() {
    let all = all();
    let mut scratch = Scratch::default();
    let mut ask = |op: &str, key: &Key, shape: &[(Dim, u64)]| {
        let surface = all.surface(op).unwrap();
        surface.evaluate(surface.group(key).unwrap(), &Shape::of(shape), &mut scratch).unwrap().time_ns
    };
    let plan = measured_plan("fp8", 2, &all);
    for (batch, past) in [(1, 1023), (16, 2047), (128, 8191)] {
        let heads = [(Dim::QueryHeads, 16), (Dim::KvHeads, 4), (Dim::HeadDim, 128), (Dim::NewTokens, 1)];
        let attention = [&heads[..], &[(Dim::Batch, batch), (Dim::PastTokens, past)]].concat();
        let mut expected = 32.0 * ask("attention_generation", &key("bfloat16", "fp8"), &attention);
        // Queries, keys and values; output; gate and up; down: each accelerator has half.
        for (n, k) in [(3072, 4096), (4096, 2048), (14_336, 4096), (4096, 7168)] {
            expected += 32.0 * ask("gemm", &key("fp8", ""), &[(Dim::M, batch), (Dim::N, n), (Dim::K, k)]);
        }
        expected += ask("gemm", &key("fp8", ""), &[(Dim::M, batch), (Dim::N, 64_128), (Dim::K, 4096)]);
        let ring = [(Dim::Devices, 2), (Dim::ElementBytes, 2), (Dim::MessageBytes, batch * 8192)];
        expected += 64.0 * ask("all_reduce", &key("", ""), &ring);
        let cost = priced(&plan, &Columns { decode: batch, context: past + 1, prefill: 0 });
        near(cost.calibrated, expected, 1e-3);
        assert!(cost.extrapolated.abs() < 1e-6);
        // What is left: the host, the layers' other kernels, new KV and its quantization.
        let rest = plan.step_overhead_ns + 32.0 * plan.layer_floor_ns + cost.policy;
        let written = cost.kv_written_bytes / plan.tensor / plan.weight_bytes_per_ns;
        near(cost.total(), expected + rest + written, 1e-3);
        let booths: f64 = cost.booths().iter().map(|booth| booth.1).sum();
        near(booths, cost.total(), 1e-12);
    }
}

/// Bytes and operations are counted as without surfaces.
#[test]
fn counters_do_not_depend_on_surfaces() {
    let all = all();
    for policy in ["full", "fp8"] {
        for tensor in [1, 2] {
            let closed = planned(&a_model(0), policy, &a_machine("h200"), tensor);
            let plan = measured_plan(policy, tensor, &all);
            for columns in [
                Columns { decode: 7, context: 3000, prefill: 0 },
                Columns { decode: 64, context: 500, prefill: 2000 },
                Columns { decode: 0, context: 1, prefill: 8192 },
            ] {
                let (with, without) = (priced(&plan, &columns), priced(&closed, &columns));
                let counters = |cost: &StepCost| {
                    [
                        cost.kv_read_bytes,
                        cost.kv_written_bytes,
                        cost.weight_read_bytes,
                        cost.collective_bytes(),
                        cost.flops,
                    ]
                };
                for (with, without) in counters(&with).into_iter().zip(counters(&without)) {
                    assert!((with - without).abs() <= 1e-9 * without, "{policy} {tensor} {columns:?}");
                }
                assert!(with.busy <= with.total() && with.calibrated + with.extrapolated <= with.total());
            }
        }
    }
}

/// Without a kernel of the number format or the shape the closed form stays, and nothing is called calibrated.
#[test]
fn what_is_not_measured_keeps_the_closed_form() {
    let attention = measured(attention());
    for (policy, tensor) in [("int4", 1), ("kivi", 2)] {
        let plan = measured_plan(policy, tensor, &attention);
        assert!(plan.groups.iter().all(|group| group.measured.is_none()), "{policy} {tensor}");
        let cost = priced(&plan, &Columns { decode: 8, context: 1000, prefill: 100 });
        assert!(cost.calibrated.abs() < 1e-9 && cost.extrapolated.abs() < 1e-9);
    }
    // Latents, which need surfaces of their own, and weights of 4 bits.
    let (deepseek, machine) = (a_model(3), a_machine("h200"));
    let mut plan = planned(&deepseek, "full", &machine, 8);
    measure(&mut plan, &deepseek, &machine, WeightDtype::Int4, &all());
    assert!(plan.groups.iter().all(|group| group.measured.is_none()));
    // Attention is in 16 bits where experts are in 4.
    let attention = Covered { attention: true, ..Covered::default() };
    assert!(plan.linear.iter().all(|part| part.covered == attention));
    assert!(plan.lines.is_some_and(|lines| lines.all_reduce.is_some() && lines.head.is_none()));
}

#[test]
fn measured_steps_grow_with_batch_context_and_prompt() {
    let plan = measured_plan("full", 2, &all());
    let time = |decode, context, prefill| priced(&plan, &Columns { decode, context, prefill }).total();
    for batch in [1, 3, 16, 100, 300] {
        let times: Vec<f64> = (0..60).map(|step| time(batch, 1 + step * 700, 0)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{batch}");
    }
    let times: Vec<f64> = (1..300).map(|batch| time(batch, 4000, 0)).collect();
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
    let times: Vec<f64> = (1..100).map(|chunk| time(8, 4000, chunk * 80)).collect();
    assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
}

/// KV and weights cross memory, but for what the cache holds of each kernel.
#[test]
fn a_measured_step_is_never_under_the_physical_bound() {
    let peaks = peaks();
    for policy in ["full", "fp8"] {
        let plan = measured_plan(policy, 1, &all());
        for decode in [1, 2, 7, 30, 100, 256] {
            for context in [10, 900, 5000, 33_000, 120_000] {
                let cost = priced(&plan, &Columns { decode, context, prefill: 0 });
                let per_kernel = (cost.kv_read_bytes / 32.0 - peaks.cache_bytes).max(0.0);
                let bound = 32.0 * per_kernel / peaks.memory_bytes_per_s * 1e9;
                assert!(cost.kv_read >= bound, "{policy} {decode} {context}");
            }
        }
    }
}

/// Twice the bandwidth takes half of what follows it, and nothing of a kernel's start.
#[test]
fn another_rate_moves_what_follows_it() {
    let twice = Peaks { memory_bytes_per_s: 2.0 * peaks().memory_bytes_per_s, ..peaks() };
    let varied = Measured { peaks: Some(twice), ..all() };
    let (plain, faster) = (measured_plan("full", 1, &all()), measured_plan("full", 1, &varied));
    for (decode, context) in [(1, 1000), (32, 4000), (200, 20_000)] {
        let columns = Columns { decode, context, prefill: 0 };
        let (before, after) = (priced(&plain, &columns), priced(&faster, &columns));
        // The law's start of 3 us per kernel stays.
        let start = 32.0 * 3000.0;
        let written = before.kv_written_bytes / plain.weight_bytes_per_ns;
        let expected = start + (before.kv_read - written - start) / 2.0;
        near(after.kv_read - written, expected, 0.03);
        assert!(after.calibrated.abs() < 1e-9 && after.extrapolated > 0.0);
    }
    assert_eq!(faster.certainty, Certainty::Assumed);
}

#[test]
fn measured_steps_of_one_regime_are_an_arithmetic_progression() {
    let plan = measured_plan("full", 1, &all());
    let at = |context| priced(&plan, &Columns { decode: 24, context, prefill: 0 });
    let (mut same, mut changes) = (0, 0);
    for context in (10..60_000).step_by(97) {
        let [a, b, c] = [context, context + 40, context + 80].map(at);
        if a.regime == c.regime {
            same += 1;
            assert!((a.total() + c.total() - 2.0 * b.total()).abs() < 1e-6 * b.total(), "{context}");
            assert!((a.busy + c.busy - 2.0 * b.busy).abs() < 1e-6 * b.busy, "{context}");
        } else {
            changes += 1;
        }
        assert!(c.total() >= a.total());
    }
    assert!(same > 500 && changes > 3, "{same} {changes}");
}

#[test]
fn columns_of_a_measured_plan_are_its_rows() {
    let plan = measured_plan("fp8", 2, &all());
    let requests = [1, 8, 8, 8, 64, 64, 300, 300];
    let kept: Vec<u64> = [100, 8000, 90_000, 16_000, 64_000, 640_000, 300_000, 300_300].into_iter().collect();
    let mut out = vec![std::array::from_fn(|_| Vec::new())];
    let demand = Demand { decode_requests: &requests, kept_tokens: &[&kept] };
    price_columns(std::slice::from_ref(&plan), &demand, [Field::Total, Field::KvRead], &mut out).unwrap();
    for (row, (&requests, &kept)) in requests.iter().zip(&kept).enumerate() {
        let batch = crate::cost::Batch {
            decode_requests: u64::from(requests),
            kept_tokens: &[kept],
            longest_tokens: 0,
            prefill_tokens: 0,
            prefill_requests: 0,
            prefill_rows: 0,
            prefill_pairs: &[0.0],
            prefill_context: &[0],
            scored_tokens: 0,
        };
        let cost = crate::cost::price(&plan, &batch);
        near(out[0][0][row], cost.total(), 1e-9);
        near(out[0][1][row], cost.kv_read, 1e-9);
    }
}

/// A line is its parts at the nodes, linear between them, and grows in proportion beyond the last.
#[test]
fn a_line_goes_through_its_nodes() {
    let part = |time: f64| Part { weight_read: time, calibrated: time, ..Part::default() };
    let line = Line::of(vec![1.0, 4.0, 8.0], vec![part(10.0), part(16.0), part(40.0)]).unwrap();
    for (count, expected) in [(0.5, 10.0), (1.0, 10.0), (2.0, 12.0), (4.0, 16.0), (6.0, 28.0), (8.0, 40.0)] {
        near(line.at(count).weight_read, expected, 1e-12);
        near(line.at(count).calibrated, expected, 1e-12);
    }
    let beyond = line.at(16.0);
    near(beyond.weight_read, 80.0, 1e-12);
    near(beyond.extrapolated, 80.0, 1e-12);
    assert!(beyond.calibrated.abs() < 1e-12);
    assert!(Line::of(vec![1.0, 1.0], vec![part(1.0), part(1.0)]).is_none());
    assert!(Line::of(Vec::new(), Vec::new()).is_none());
}

/// Widths of the products of known models: Llama 3.1 8B on 16 accelerators has each KV head twice, gpt-oss-120b experts.
#[test]
fn products_are_those_of_the_model() {
    let of = |model: usize, group: usize, tensor: u32| {
        let model = a_model(model);
        products::products(&model.groups[group], model.hidden, tensor)
    };
    let widths = |products: &[Product]| products.iter().map(|product| (product.n, product.k)).collect::<Vec<_>>();
    let llama = of(0, 0, 16);
    assert_eq!(widths(&llama.attention), [(256 + 256, 4096), (4096, 256)]);
    assert_eq!(widths(&llama.dense), [(1792, 4096), (4096, 896)]);
    let gpt = of(2, 0, 1);
    assert_eq!(widths(&gpt.attention), [(5120, 2880), (2880, 4096)]);
    assert_eq!(widths(&gpt.dense), [(128, 2880)]);
    let deepseek = of(3, 1, 8);
    // Into the latents, queries of 16 heads, both ways through the latent space, output.
    assert_eq!(widths(&deepseek.attention), [(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)]);
    assert_eq!(widths(&deepseek.dense), [(256, 7168), (512, 7168), (7168, 256)]);
}

/// A batch with one long context takes the measured share of the way to one of long contexts only, beside a chunk as much
/// more as the kernel for both takes, and all contexts at their mean where nothing is known of the longest.
#[test]
fn the_longest_context_counts_as_far_as_it_was_measured() {
    let [decode, prompts] = attention();
    let mut shapes = Vec::new();
    for chunk in [64, 512] {
        for batch in (0..10).map(|power| 1 << power) {
            let shape = Shape::of(&[
                (Dim::NewTokens, 1),
                (Dim::QueryHeads, 32),
                (Dim::KvHeads, 8),
                (Dim::HeadDim, 128),
                (Dim::Batch, batch),
                (Dim::PrefillTokens, chunk),
            ]);
            shapes.extend((0..17).map(|power| shape.with(Dim::PastTokens, (1 << power) - 1)));
        }
    }
    // As it is published; the presets of these tests have their files' names.
    let model = format!("x/{}", a_model(0).name);
    let profile =
        |model: &str, kv_dtype: &str| Key { model: model.to_owned(), kv_dtype: kv_dtype.to_owned(), ..Key::default() };
    let way = |requests, share| Uneven { key: profile(&model, ""), tensor_parallel: 1, requests, share };
    let other = Uneven { key: profile("x/another", ""), ..way(8, 1.0) };
    let eight = Uneven { key: profile(&model, "fp8"), ..way(8, 1.0) };
    let mixed = surface("attention_mixed", &[key("bfloat16", "bfloat16")], &shapes).with_uneven(vec![way(8, 0.25)]);
    let decode = decode.with_uneven(vec![way(8, 0.25), way(16, 0.75), other, eight]);
    let plan = measured_plan("full", 1, &measured([decode, prompts, mixed]));
    assert!(plan.asks_longest());
    let kv = |longest: u64, prefill: u64| {
        let batch = crate::cost::Batch {
            decode_requests: 12,
            kept_tokens: &[12 * 1024],
            longest_tokens: longest,
            prefill_tokens: prefill,
            prefill_requests: u64::from(prefill > 0),
            prefill_rows: 0,
            prefill_pairs: &[prefill as f64],
            prefill_context: &[prefill],
            scored_tokens: 0,
        };
        let cost = crate::cost::price(&plan, &batch);
        cost.total() - cost.kv_written_bytes / plan.weight_bytes_per_ns
    };
    let even = |context: u64| {
        let cost = priced(&plan, &Columns { decode: 12, context, prefill: 0 });
        cost.total() - cost.kv_written_bytes / plan.weight_bytes_per_ns
    };
    near(kv(0, 0), even(1024), 1e-12);
    near(kv(1024, 0), even(1024), 1e-12);
    // Half of the way between 8 and 16 requests.
    near(kv(4096, 0) - even(1024), 0.5 * (even(4096) - even(1024)), 1e-9);
    // Beside a chunk the law has the sum of both, and the share of the table's only number of requests.
    near(kv(4096, 512) - kv(1024, 512), 0.25 * (even(4096) - even(1024)), 0.02);
}
