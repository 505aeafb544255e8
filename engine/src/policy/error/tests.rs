use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, UInt32Type};
use proptest::prelude::*;

use super::*;
use crate::policy::Kept;
use crate::policy::rng::Rng;
use crate::recording::tests::Tables;

fn error(policy: &str, recording: &Recording, steps: u32) -> RecordBatch {
    attention_error(&Stack::parse(policy).unwrap(), recording, steps).unwrap()
}

fn reals(batch: &RecordBatch, name: &str) -> Vec<f64> {
    let column = batch.column_by_name(name).unwrap().as_primitive::<Float64Type>();
    column.iter().map(Option::unwrap).collect()
}

fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6), "{found:?} {expected:?}");
}

/// Attention on five prompt tokens in two steps, with the scores of the last query.
fn small() -> Tables {
    let mut tables = Tables::even(1, 5, 2);
    tables.steps[0].2 = vec![0.4, 0.3, 0.05, 0.05, 0.1, 0.1];
    tables.steps[1].2 = vec![0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1];
    tables.scores = vec![("window_rows", 1, vec![0.1, 0.5, 0.2, 0.1, 0.1])];
    tables
}

#[test]
fn lost_mass_is_that_outside_the_kept_set() {
    let recording = small().read().unwrap();
    let batch = error("snapkv(budget=3,window=1,kernel=1)", &recording, 1);
    assert_eq!(batch.schema(), ATTENTION_ERROR.arrow());
    // Kept: tokens 1 and 2 by score, 4 as the window, and what is generated.
    near(&reals(&batch, "lost_mass_ratio"), &[0.45, 0.2]);
    near(&reals(&batch, "kept_ratio"), &[4.0 / 6.0, 5.0 / 7.0]);
    near(&reals(&batch, "oracle_lost_mass_ratio"), &[0.1, 0.2]);
    near(&reals(&batch, "regret_ratio"), &[0.35, 0.0]);
    assert!(batch["limiter"].as_string::<i32>().iter().all(|limiter| limiter == Some("selection")));
    assert_eq!(batch["logit_noise"].null_count(), 2, "no norms were recorded");
    near(&reals(&error("window(2)", &recording, 1), "lost_mass_ratio"), &[0.8, 0.8]);
    near(&reals(&error("streaming(sinks=1,recent=2)", &recording, 1), "lost_mass_ratio"), &[0.4, 0.7]);
    near(&reals(&error("oracle(3)", &recording, 1), "lost_mass_ratio"), &[0.1, 0.2]);
    near(&reals(&error("oracle(3)", &recording, 1), "regret_ratio"), &[0.0, 0.0]);
    near(&reals(&error("full", &recording, 1), "lost_mass_ratio"), &[0.0, 0.0]);
    assert_eq!(error("full", &recording, 1)["limiter"].as_string::<i32>().value(0), "none");
}

#[test]
fn pooling_lifts_neighbours() {
    let mut tables = small();
    tables.prompt_tokens = 6;
    tables.steps.remove(0);
    tables.scores = vec![("window_rows", 1, vec![0.0, 0.0, 0.9, 0.0, 0.5, 0.0])];
    let recording = tables.read().unwrap();
    // Maximum of three: 0, .9, .9, .9, .5; the first of the equals win. Average of three: 0, .3, .3, .467, .167.
    near(&reals(&error("snapkv(budget=3,window=1,kernel=3)", &recording, 1), "lost_mass_ratio"), &[1.0 - 0.7]);
    near(&reals(&error("snapkv(budget=2,window=1,kernel=3,pool=avg)", &recording, 1), "lost_mass_ratio"), &[1.0 - 0.3]);
}

#[test]
fn blocks_are_kept_whole() {
    let mut tables = Tables::even(4, 14, 3);
    for (step, mass) in
        tables.steps.iter_mut().zip([[0.4, 0.3, 0.2, 0.1, 0.0], [0.4, 0.3, 0.2, 0.1, 0.0], [0.1, 0.2, 0.3, 0.2, 0.2]])
    {
        let units = step.2.len();
        step.2.copy_from_slice(&mass[..units]);
    }
    tables.scores = vec![("window_rows", 2, [vec![0.1; 4], vec![0.2; 4], vec![0.0; 6]].concat())];
    let recording = tables.read().unwrap();
    // Ten tokens are two blocks: the one that the window touches and the best of the three before it.
    let batch = error("snapkv(budget=10,window=2,kernel=1)", &recording, 2);
    near(&reals(&batch, "lost_mass_ratio"), &[0.6, 0.1 + 0.3]);
    near(&reals(&batch, "max_lost_mass_ratio"), &[0.6, 0.4]);
    near(&reals(&batch, "kept_ratio"), &[f64::midpoint(7.0 / 15.0, 8.0 / 16.0), 9.0 / 17.0]);
    near(&reals(&batch, "oracle_lost_mass_ratio"), &[0.3, 0.1 + 0.2]);
    let steps = |name: &str| batch[name].as_primitive::<UInt32Type>().values().to_vec();
    assert_eq!((steps("first_step"), steps("last_step")), (vec![1, 3], vec![2, 3]));
    near(&reals(&error("window(6)", &recording, 1), "lost_mass_ratio"), &[0.9, 0.9, 0.8]);
    near(&reals(&error("snapkv(budget=14,window=2)", &recording, 3), "lost_mass_ratio"), &[0.0]);
}

#[test]
fn a_missing_channel_is_refused_with_the_way_to_record_it() {
    let mut tables = small();
    tables.scores.clear();
    let stack = Stack::parse("snapkv(budget=3,window=2)").unwrap();
    let refusal = attention_error(&stack, &tables.read().unwrap(), 1).unwrap_err();
    assert!(refusal.to_string().contains("`snapkv` needs channel `window_rows`"), "{refusal}");
    assert!(refusal.advice().unwrap().contains("prefill_scores"));
    assert!(attention_error(&stack, &small().read().unwrap(), 1).is_err(), "one row is fewer than two");
    // A budget of the whole prompt keeps all and needs no scores.
    assert!(attention_error(&Stack::parse("snapkv(budget=99)").unwrap(), &tables.read().unwrap(), 1).is_ok());
    assert!(attention_error(&stack, &small().read().unwrap(), 0).is_err());
}

/// Norms that differ by token, so that each term counts.
fn noisy(block: u32) -> Tables {
    let mut tables = Tables::even(block, 6, 1);
    if block == 1 {
        tables.steps[0].2 = vec![0.5, 0.2, 0.1, 0.1, 0.05, 0.03, 0.02];
    }
    tables.norms = Some(((1..=7).map(|n| n as f32).collect(), (1..=7).map(|n| 0.5 * n as f32).collect()));
    tables.output = Some([0.4, 0.75, 3.0]);
    tables
}

/// The proxies of POLICIES 0.3 written out for tokens, without the sums' shortcuts. `kept` says which tokens remain.
fn proxies(tables: &Tables, kept: &[bool], distortion: Distortion) -> (f64, f64) {
    let (keys, values) = tables.norms.as_ref().unwrap();
    let [sum_sq, out, q] = tables.output.unwrap().map(f64::from);
    let mass: Vec<f64> = tables.steps[0].2.iter().map(|mass| f64::from(*mass)).collect();
    let all_sq: f64 = mass.iter().map(|a| a * a).sum();
    let kept_mass: f64 = mass.iter().zip(kept).filter(|(_, kept)| **kept).map(|(a, _)| a).sum();
    let weight: Vec<f64> = mass.iter().zip(kept).map(|(a, kept)| if *kept { a / kept_mass } else { 0.0 }).collect();
    let mean_log: f64 = mass.iter().zip(&weight).map(|(a, w)| w * a.ln()).sum();
    let (mut noise, mut error) = (0.0, 0.0);
    for (at, w) in weight.iter().enumerate() {
        let (key, value) = (f64::from(keys[at]), f64::from(values[at]));
        let variance = q * q * key * key * distortion.key / (64.0 * 64.0);
        let shift = (distortion.key_shrink * (mass[at].ln() - mean_log)).powi(2);
        noise += w * variance;
        let away = (value * value - out * out).max(0.0);
        error += w * w * sum_sq / all_sq * ((variance + shift) * away + distortion.value * value * value);
    }
    (noise.sqrt(), (error / (out * out)).sqrt())
}

#[test]
fn noise_follows_the_proxies() {
    let tables = noisy(1);
    let recording = tables.read().unwrap();
    for (policy, kept) in [
        ("turboquant(bits=3,skip=none)", [true; 7]),
        ("fp8", [true; 7]),
        ("streaming(sinks=1,recent=3)+int4", [true, false, false, false, true, true, true]),
    ] {
        let stack = Stack::parse(policy).unwrap();
        let (_, format) = stack.format().unwrap();
        let (noise, output) = proxies(&tables, &kept, format.forms.distortion(64));
        let batch = error(policy, &recording, 1);
        let (found, ratio) = (reals(&batch, "logit_noise")[0], reals(&batch, "quantization_error_ratio")[0]);
        assert!((found / noise - 1.0).abs() < 1e-4, "{policy}: {found} {noise}");
        assert!((ratio / output - 1.0).abs() < 1e-4, "{policy}: {ratio} {output}");
    }
    assert_eq!(reals(&error("window(3)", &recording, 1), "quantization_error_ratio"), [0.0]);
    // With one layer, both ends are skipped.
    let skipped = error("turboquant", &recording, 1);
    assert_eq!((reals(&skipped, "logit_noise")[0], skipped["limiter"].as_string::<i32>().value(0)), (0.0, "none"));
}

/// Where a block's masses are known to lie by the prompt's scores, blocks give what tokens give.
#[test]
fn a_block_spreads_its_mass_as_the_prompt_did() {
    // With an output smaller than any value nothing is cut off at 0, which tokens and blocks would do differently.
    let (mut tokens, mut blocks) = (noisy(1), noisy(3));
    (tokens.output, blocks.output) = (Some([0.4, 0.4, 3.0]), Some([0.4, 0.4, 3.0]));
    let mass = &tokens.steps[0].2;
    blocks.steps[0].2 = mass.chunks(3).map(|block| block.iter().sum()).collect();
    blocks.scores = vec![("window_rows", 4, mass[..6].to_vec())];
    let (of_tokens, of_blocks) = (error("int4", &tokens.read().unwrap(), 1), error("int4", &blocks.read().unwrap(), 1));
    for name in ["logit_noise", "quantization_error_ratio"] {
        let (x, y) = (reals(&of_tokens, name)[0], reals(&of_blocks, name)[0]);
        assert!((x / y - 1.0).abs() < 1e-4, "{name}: {x} {y}");
    }
    blocks.scores.clear();
    let even = reals(&error("int4", &blocks.read().unwrap(), 1), "logit_noise")[0];
    assert!((even / reals(&of_tokens, "logit_noise")[0] - 1.0).abs() > 0.01);
}

/// A recording of masses that no model made.
fn random_tables(block: u32, prompt: u32, steps: u32, seed: u64) -> Tables {
    let mut rng = Rng::new(seed);
    let mut tables = Tables::even(block, prompt, steps);
    for (_, _, mass) in &mut tables.steps {
        let raw: Vec<f64> = mass.iter().map(|_| (3.0 * rng.normal()).exp()).collect();
        let sum: f64 = raw.iter().sum();
        mass.iter_mut().zip(raw).for_each(|(mass, raw)| *mass = (raw / sum) as f32);
    }
    tables.scores = vec![("window_rows", 64, (0..prompt).map(|_| rng.uniform() as f32).collect())];
    tables
}

proptest! {
    #[test]
    fn no_policy_beats_the_oracle(
        block in prop_oneof![Just(1_u32), Just(16)], prompt in 1_u32..400, steps in 1_u32..20, budget in 1_u32..100, seed: u64,
    ) {
        let recording = random_tables(block, prompt, steps, seed).read().unwrap();
        // The stage itself, at the same budget; on blocks the others keep their newest units beyond it.
        let best = reals(&error(&format!("oracle({budget}%)"), &recording, 4), "lost_mass_ratio");
        for policy in [
            format!("window({})", budget + 3),
            format!("streaming(sinks=3,recent={budget})"),
            format!("snapkv(budget={budget}%,window=8)"),
            format!("random({budget}%,seed={seed})"),
            format!("oracle({budget}%)"),
        ] {
            let batch = error(&policy, &recording, 4);
            let (lost, oracle, regret) =
                (reals(&batch, "lost_mass_ratio"), reals(&batch, "oracle_lost_mass_ratio"), reals(&batch, "regret_ratio"));
            let most = reals(&batch, "max_lost_mass_ratio");
            for at in 0..lost.len() {
                prop_assert!(regret[at] >= -1e-9 && oracle[at] <= lost[at] + 1e-9 && lost[at] <= most[at] + 1e-12);
                let same_budget = block == 1 && (policy.starts_with("snapkv") || policy.starts_with("random"));
                prop_assert!(!same_budget || best[at] <= lost[at] + 1e-9, "{} loses less than the oracle", policy);
                prop_assert!((lost[at] - oracle[at] - regret[at]).abs() < 1e-9);
            }
            if policy.starts_with("oracle") {
                prop_assert!(regret.iter().all(|regret| *regret < 1e-6));
            }
        }
    }

    #[test]
    fn kept_tokens_are_as_many_as_the_shape_says(prompt in 1_u32..400, steps in 1_u32..20, budget in 1_u32..100, seed: u64) {
        let recording = random_tables(1, prompt, steps, seed).read().unwrap();
        for policy in [
            format!("window({})", budget + 3),
            format!("streaming(sinks=3,recent={budget})"),
            format!("snapkv(budget={budget}%,window=8)"),
            format!("random({budget}%,seed={seed})"),
            format!("oracle({budget}%)"),
        ] {
            let stack = Stack::parse(&policy).unwrap();
            let Kept::Same(keep) = stack.selection().unwrap().1.kept else { panic!() };
            let ratios = reals(&attention_error(&stack, &recording, 1).unwrap(), "kept_ratio");
            for (ratio, context) in ratios.iter().zip(prompt + 1..) {
                let expected = f64::from(keep.tokens(prompt, context)) / f64::from(context);
                prop_assert!((ratio - expected).abs() < 1e-9, "{}: {} {}", policy, ratio, expected);
            }
        }
    }

    #[test]
    fn a_larger_budget_loses_no_more(prompt in 40_u32..300, seed: u64) {
        let recording = random_tables(1, prompt, 3, seed).read().unwrap();
        let lost = |policy: String| reals(&error(&policy, &recording, 1), "lost_mass_ratio");
        for stage in ["snapkv", "random", "oracle"] {
            let mut before = vec![f64::INFINITY; 3];
            for budget in [20, 40, 60, 80, 100] {
                let window = if stage == "oracle" { "" } else { ",window=4" };
                let now = lost(format!("{stage}(budget={budget}%{window})"));
                prop_assert!(now.iter().zip(&before).all(|(now, before)| *now <= before + 1e-9));
                before = now;
            }
            prop_assert!(before.iter().all(|lost| *lost == 0.0));
        }
    }
}
