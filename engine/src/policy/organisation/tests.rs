use std::collections::BTreeSet;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, UInt16Type, UInt32Type};
use proptest::prelude::*;

use super::*;
use crate::policy::rng::Rng;
use crate::policy::select::tests::{kept, random_plain};
use crate::recording::Content;

fn of(policy: &str, recording: &Recording) -> [RecordBatch; 2] {
    organisation(&Stack::parse(policy).unwrap(), recording).unwrap()
}

fn reals(batch: &RecordBatch, name: &str) -> Vec<f64> {
    batch[name].as_primitive::<Float64Type>().iter().map(Option::unwrap).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Pages against sets of page numbers, for tokens and for blocks.
    #[test]
    fn pages_are_those_of_the_kept_tokens(
        is_block: bool, prompt in 65_usize..200, layers in 1_usize..3, kv_heads in 1_usize..4, steps in 1_u32..9,
        budget in 5_usize..120, seed: u64,
    ) {
        let block = if is_block { 16 } else { 1 };
        let plain = random_plain(block, prompt, (layers, kv_heads), steps, seed);
        let recording = plain.read();
        for policy in [format!("h2o({budget})"), format!("tova({budget})"), format!("random({budget},window=2)"), "full".to_owned()] {
            let [pages, overlaps] = of(&policy, &recording);
            prop_assert_eq!(pages.schema(), KEPT_PAGES.arrow());
            prop_assert_eq!(overlaps.num_rows(), 0, "there is one request");
            let marks = kept(&policy, &recording);
            let mean = |sums: Vec<usize>| sums.iter().sum::<usize>() as f64 / f64::from(steps);
            let context = |step: usize| prompt + step + 1;
            for (head, sets) in marks.iter().enumerate() {
                let tokens = |set: &BTreeSet<usize>, step: usize| -> BTreeSet<usize> {
                    set.iter().flat_map(|unit| unit * block..((unit + 1) * block).min(context(step))).collect()
                };
                let touched = |set: &BTreeSet<usize>, step: usize| -> BTreeSet<usize> {
                    tokens(set, step).into_iter().map(|at| at / 16).collect()
                };
                let per_step = |of: &dyn Fn(usize) -> usize| mean((0..steps as usize).map(of).collect());
                let layer = head / kv_heads * kv_heads;
                let any = |step: usize| -> usize {
                    let heads = marks[layer..layer + kv_heads].iter();
                    heads.flat_map(|sets| touched(&sets[step], step)).collect::<BTreeSet<_>>().len()
                };
                for (name, expected) in [
                    ("kept_tokens", per_step(&|step| tokens(&sets[step], step).len())),
                    ("context_pages", per_step(&|step| context(step).div_ceil(16))),
                    ("touched_pages", per_step(&|step| touched(&sets[step], step).len())),
                    ("layer_touched_pages", per_step(&any)),
                ] {
                    prop_assert!((reals(&pages, name)[head] - expected).abs() < 1e-9, "{} {} {}", policy, name, head);
                }
            }
        }
    }

    /// Overlap against sets of tokens.
    #[test]
    fn overlap_is_that_of_the_sets(
        units in 1_usize..90, unit in prop_oneof![Just(1_u32), Just(16), Just(32)], prefix in 0_u32..1600, seed: u64,
    ) {
        let mut rng = Rng::new(seed);
        let mut marks = || (0..units).map(|_| rng.uniform() < 0.4).collect::<Vec<bool>>();
        let (a, b) = (marks(), marks());
        let prefix = prefix.min(units as u32 * unit);
        let found = overlap([&a, &b], unit, prefix);
        let whole = prefix / unit * unit;
        let set = |marks: &[bool]| -> BTreeSet<u32> {
            (0..whole).filter(|token| marks[(token / unit) as usize]).collect()
        };
        let (a, b) = (set(&a), set(&b));
        prop_assert_eq!((found.prefix, found.kept), (whole, [a.len() as u32, b.len() as u32]));
        prop_assert_eq!(found.common, a.intersection(&b).count() as u32);
        let page = unit.max(16);
        let of = |set: &BTreeSet<u32>, at: u32| -> Vec<u32> { set.iter().copied().filter(|token| token / page == at).collect() };
        let touched: Vec<u32> = (0..whole / page).filter(|at| !of(&a, *at).is_empty() || !of(&b, *at).is_empty()).collect();
        prop_assert_eq!(found.touched, touched.len() as u32);
        prop_assert_eq!(found.same, touched.iter().filter(|at| of(&a, **at) == of(&b, **at)).count() as u32);
    }
}

#[test]
fn prompts_have_in_common_what_their_ids_say() {
    let content = |unit_tokens: u32, ids: &[u64]| Content { unit_tokens, ids: ids.to_vec() };
    assert_eq!(content(1, &[1, 2, 3, 4]).common_tokens(&content(1, &[1, 2, 9, 4])), 2);
    assert_eq!(content(16, &[7, 8]).common_tokens(&content(16, &[7, 8, 9])), 32);
    assert_eq!(content(16, &[7, 8]).common_tokens(&content(1, &[7, 8])), 0, "ids of other things");
    assert_eq!(Content::default().common_tokens(&Content::default()), 0);
}

#[test]
fn copies_and_what_is_only_fetched_are_told_apart() {
    let plain = random_plain(1, 120, (1, 1), 3, 5);
    let recording = plain.read();
    let tokens = |policy: &str| reals(&of(policy, &recording)[0], "kept_tokens")[0];
    let (alone, copied) = (tokens("window(20)"), tokens("window(20)+copies"));
    assert!((alone - 20.0).abs() < 1e-9 && (copied - 20.0).abs() < 1e-9, "copies are kept elsewhere");
    assert!((tokens("window(20)+retain(10%)") - 30.0).abs() < 1e-9);
    assert!((tokens("window(20)+recall(tokens=8,page=1,by=mass)") - 28.0).abs() < 1e-9);
}

/// Two requests on one document of the shipped block recording: what each keeps of it depends on its question.
#[test]
fn requests_with_a_common_prefix_keep_other_tokens_of_it() {
    let (first, second) = (random_plain(16, 200, (2, 2), 3, 1), random_plain(16, 180, (2, 2), 3, 2));
    let shared = |policy: &str| {
        let stack = Stack::parse(policy).unwrap();
        let mut layers = Vec::new();
        let mut both = first.read();
        let other = second.read();
        for (id, recording) in [(1, &both), (2, &other)] {
            for heads in recording.heads_by_request() {
                let mut numbers = Vec::new();
                select::budgets(stack.selection(), &heads, &mut numbers).unwrap();
                for layer in heads.chunk_by(|a, b| a.layer == b.layer) {
                    let found = of_layer(&stack, layer, &numbers[..layer.len()]).unwrap().unwrap();
                    layers.push(LayerPages { request_id: id, ..found });
                }
            }
        }
        // 150 tokens in common, of which nine blocks are whole.
        let ids =
            |own: u64, prompt: u64| -> Vec<u64> { (0..prompt).map(|at| if at < 150 { at } else { own }).collect() };
        both.requests = [(1, 200), (2, 180)]
            .map(|(id, prompt)| crate::recording::Request {
                request_id: id,
                source_key: None,
                prompt_tokens: prompt as u32,
                output_tokens: 3,
                content: Content { unit_tokens: 1, ids: ids(1000 + id, prompt) },
            })
            .to_vec();
        batches(&stack, &both, &layers).unwrap()[1].clone()
    };
    let found = shared("snapkv(budget=96,window=16,kernel=1)");
    assert_eq!((found.schema(), found.num_rows()), (KEPT_OVERLAP.arrow(), 4));
    let number = |name: &str| found[name].as_primitive::<UInt32Type>().values().to_vec();
    assert!(number("prefix_tokens").iter().all(|tokens| *tokens == 144));
    assert_eq!(found["layer"].as_primitive::<UInt16Type>().values().to_vec(), [0, 0, 1, 1]);
    assert!(found["stays_shareable"].as_boolean().iter().all(|shareable| shareable == Some(false)));
    for at in 0..4 {
        let [one, other, common] = ["kept_tokens", "other_kept_tokens", "common_tokens"].map(|name| number(name)[at]);
        let jaccard = f64::from(common) / f64::from(one + other - common);
        assert!((reals(&found, "jaccard_ratio")[at] - jaccard).abs() < 1e-12 && jaccard < 1.0);
        assert!(number("same_pages")[at] <= number("touched_pages")[at]);
    }
    // By place the same tokens are kept of it, but the window of each lies elsewhere; everything is the same everywhere.
    let full = shared("full");
    assert!(reals(&full, "jaccard_ratio").iter().all(|ratio| (ratio - 1.0).abs() < 1e-12));
    assert!(full["stays_shareable"].as_boolean().iter().all(|shareable| shareable == Some(true)));
    assert_eq!(full["jaccard_ratio"].null_count(), 0);
}
