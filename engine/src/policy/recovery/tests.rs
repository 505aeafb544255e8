use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use proptest::prelude::*;

use super::*;
use crate::policy::rng::Rng;
use crate::policy::{Keep, Kept, Stack, attention_error};
use crate::recording::Recording;
use crate::recording::tests::Tables;

/// A recording of masses that no model made, with the scores that some selections need.
fn random(prompt: u32, steps: u32, seed: u64) -> Recording {
    let mut rng = Rng::new(seed);
    let mut tables = Tables::even(1, prompt, steps);
    for (_, _, mass) in &mut tables.steps {
        let raw: Vec<f64> = mass.iter().map(|_| (2.0 * rng.normal()).exp()).collect();
        let sum: f64 = raw.iter().sum();
        mass.iter_mut().zip(raw).for_each(|(mass, raw)| *mass = (raw / sum) as f32);
    }
    let mut scores = || (0..prompt).map(|_| rng.uniform() as f32).collect::<Vec<f32>>();
    tables.scores = vec![("window_rows", 64, scores()), ("column_sum", 0, scores()), ("key_diff", 0, scores())];
    tables.read().unwrap()
}

fn rows(policy: &str, recording: &Recording) -> RecordBatch {
    attention_error(&Stack::parse(policy).unwrap(), recording, 1).unwrap()
}

fn column(batch: &RecordBatch, name: &str) -> Vec<f64> {
    batch[name].as_primitive::<Float64Type>().iter().map(Option::unwrap).collect()
}

/// Selections of many kinds at about this share of the prompt.
fn selections(prompt: u32, share: u32) -> Vec<String> {
    let tokens = (prompt * share / 100).max(5);
    vec![
        format!("window({tokens})"),
        format!("streaming(sinks=2,recent={tokens})"),
        format!("streaming(sinks=2,recent={tokens},evict=no)"),
        format!("snapkv(budget={tokens},window=4)"),
        format!("h2o({tokens})"),
        format!("h2o({share}%,evict=no)"),
        format!("keydiff({share}%)"),
        format!("random({share}%,window=4)"),
        format!("oracle({share}%,by=static)"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What recovery brings back and what stays lost are what the selection alone loses; more of it never loses more, and
    /// all of it loses only what is dropped while decoding.
    #[test]
    fn recovered_and_lost_mass_are_what_is_lost_alone(
        prompt in 20_u32..200, steps in 1_u32..12, share in 5_u32..90, seed: u64,
    ) {
        let recording = random(prompt, steps, seed);
        for selection in selections(prompt, share) {
            let alone = column(&rows(&selection, &recording), "lost_mass_ratio");
            let mut before = alone.clone();
            for recovery in ["retain(10%)", "retain(50%)", "retain(100%)", "retain(100%)+copies(as=int4)"] {
                let batch = rows(&format!("{selection}+{recovery}"), &recording);
                let (lost, recovered) = (column(&batch, "lost_mass_ratio"), column(&batch, "recovered_mass_ratio"));
                for at in 0..lost.len() {
                    prop_assert!((lost[at] + recovered[at] - alone[at]).abs() < 1e-6, "{} {}", selection, recovery);
                    prop_assert!(lost[at] <= before[at] + 1e-9, "{} {}", selection, recovery);
                }
                let is_kept = !selection.starts_with("window") && !selection.contains("recent") && !selection.starts_with("h2o(");
                prop_assert!(recovery == "retain(10%)" || recovery == "retain(50%)" || !is_kept || lost[0] < 1e-6);
                before = lost;
            }
            prop_assert!(before.iter().all(|lost| *lost < 1e-6), "copies lose nothing");
        }
    }

    /// What a step recalls is the best of its size among what is dropped, and more is never worse.
    #[test]
    fn recall_takes_the_most_back_that_its_size_can(
        prompt in 20_u32..200, steps in 1_u32..8, share in 5_u32..60, seed: u64,
    ) {
        let recording = random(prompt, steps, seed);
        for selection in selections(prompt, share) {
            let alone = column(&rows(&selection, &recording), "lost_mass_ratio");
            let kept = column(&rows(&selection, &recording), "kept_ratio");
            let mut before = alone.clone();
            for tokens in [1_u32, 4, 16] {
                let batch = rows(&format!("{selection}+recall(tokens={tokens},page=1,by=mass)"), &recording);
                let (lost, now) = (column(&batch, "lost_mass_ratio"), column(&batch, "kept_ratio"));
                let oracle = column(&batch, "oracle_lost_mass_ratio");
                for at in 0..lost.len() {
                    let context = f64::from(prompt + 1 + at as u32);
                    let dropped = ((1.0 - kept[at]) * context).round();
                    let expected = kept[at] * context + dropped.min(f64::from(tokens));
                    prop_assert!((now[at] * context - expected).abs() < 1e-6, "{} {}", now[at] * context, expected);
                    prop_assert!(lost[at] <= before[at] + 1e-9 && oracle[at] <= lost[at] + 1e-9);
                }
                before = lost;
            }
        }
    }

    /// The tokens that a step reads are as many as the demand counts, for every selection that has a fixed budget.
    #[test]
    fn reads_are_as_many_as_the_demand_counts(
        prompt in 20_u32..200, steps in 1_u32..30, share in 5_u32..90, retained in 1_u32..=100, seed: u64,
    ) {
        let recording = random(prompt, steps, seed);
        for selection in selections(prompt, share) {
            for recovery in [
                format!("retain({retained}%)"),
                "recall(tokens=7,page=1,by=mass)".to_owned(),
                format!("retain({retained}%)+recall(tokens=3,page=1,by=mass)"),
            ] {
                let text = format!("{selection}+{recovery}");
                let stack = Stack::parse(&text).unwrap();
                let keep = counted(&stack);
                let ratios = column(&attention_error(&stack, &recording, 1).unwrap(), "kept_ratio");
                for (ratio, context) in ratios.iter().zip(prompt + 1..) {
                    let expected = f64::from(keep.tokens(prompt, context)) / f64::from(context);
                    prop_assert!((ratio - expected).abs() < 1e-9, "{}: {} {} at {}", text, ratio, expected, context);
                }
            }
        }
    }
}

/// The keep of a stack in a layer with one head.
fn counted(stack: &Stack) -> Keep {
    let (args, selection) = stack.selection().unwrap();
    let place = crate::policy::Place { layer: 0, layers: 1, kv: crate::test_kit::kv_shape(1, 64) };
    let keep = match selection.kept {
        Kept::Same(keep) => keep,
        Kept::Parts(parts) => parts(args, &place).unwrap()[0].keep,
        _ => panic!("not counted"),
    };
    let recovery = stack.recovery();
    Keep { retained: recovery.retain, extra: recovery.recall.map_or(0, |recall| recall.tokens), ..keep }
}

#[test]
fn recoveries_are_attached_to_what_they_recover() {
    let parse = |text: &str| Stack::parse(text).unwrap();
    let stack = parse("snapkv(25%)+retain(10%)+fp8");
    assert!((stack.recovery().retain - 0.1).abs() < 1e-12);
    assert_eq!(stack.format().unwrap().1.forms.hot, None);
    let stack = parse("snapkv(25%)+fp8+retain(10%)");
    assert!(stack.recovery().retain.abs() < 1e-12);
    assert!((stack.format().unwrap().1.forms.hot.unwrap().0 - 0.1).abs() < 1e-12);
    // What cannot be recovered in this way is passed over, and so are stages that lose nothing.
    assert!(parse("snapkv(25%)+fp8+copies(turboquant2)").recovery().copies.is_some());
    assert!(parse("turboquant+snapkv(25%)+rescale").format().unwrap().1.forms.is_rescaled);
    assert!((parse("snapkv(25%)+bf16+retain(10%)").recovery().retain - 0.1).abs() < 1e-12);
    assert!((parse("minicache+retain(10%)").merge().unwrap().1.exact - 0.1).abs() < 1e-12);
    let stack = parse("h2o(1k)+compensate+retain(5%)+recall(256)");
    assert!(stack.recovery().compensate && stack.recovery().holds_all() && stack.has_stand_in());
    assert_eq!(stack.recovery().recall, Some(Recall { tokens: 256, page: 16, by_bound: true }));
    assert!(parse("razor").has_stand_in() && !parse("window(9)").has_stand_in());
    assert!(parse("turboquant+rescale").format().unwrap().1.forms.is_rescaled);
    for text in [
        "h2o(budget=1000)+compensate+retain(share=5%)+recall(tokens=256)",
        "turboquant+rescale",
        "window(size=9)+copies",
    ] {
        assert_eq!(parse(text).name(), text);
    }
}

#[test]
fn what_cannot_be_recovered_is_refused_with_the_reason() {
    for (policy, message, advice) in [
        ("retain(5%)", "but none does", "put it after one"),
        ("full+copies", "but none does", "copies"),
        ("bf16+retain(5%)", "but none does", "int4+retain"),
        ("retain(5%)+int4", "but none does", "put it after one"),
        ("quest(1024)+retain(5%)", "`quest` drops no token", "next"),
        ("quest(1024)+recall(64)", "`quest` drops no token", "next"),
        ("oracle(25%)+retain(5%)", "chooses anew in each step", "by=static"),
        ("fp8+rescale", "`fp8` does not shrink", "`turboquant`"),
        ("turboquant(variant=prod)+rescale", "does not shrink", "`variant=prod` does not"),
        ("window(9)+rescale", "`window` is none", "turboquant+rescale"),
        ("minicache+rescale", "`minicache` is none", "after the format"),
        ("int4+copies", "`int4` drops none", "`retain`"),
        ("int4+compensate", "`int4` drops none", "`retain`"),
        ("minicache+recall(64)", "`minicache` drops none", "`retain`"),
        ("razor+compensate", "compensation token of its own", "leave out"),
        ("grade+retain(5%)", "form of their own", "hot"),
        ("int4+retain(5%)+retain(5%)", "form of their own", "one `retain`"),
        ("minicache+retain(5%)+retain(5%)", "twice", "keep one"),
        ("window(9)+retain(5%)+retain(6%)", "twice", "keep one"),
        ("window(9)+copies+copies", "twice", "keep one"),
        ("window(9)+compensate+compensate", "twice", "keep one"),
        ("window(9)+recall(16)+recall(16)", "twice", "keep one"),
        ("turboquant+rescale+rescale", "twice", "keep one"),
        ("window(9)+copies+compensate", "exclude each other", "keep one"),
        ("window(9)+compensate+copies", "exclude each other", "keep one"),
        ("window(9)+copies+recall(16)", "exclude each other", "keep one"),
        ("window(9)+recall(16)+copies", "exclude each other", "keep one"),
        ("window(9)+retain(0%)", "above `0%`", "leave out"),
        ("window(9)+copies(bf16)", "drop nothing", "fewer bits"),
        ("window(9)+recall(8)", "fewer than one page", "page"),
    ] {
        let error = Stack::parse(policy).unwrap_err();
        assert!(error.to_string().contains(message), "{policy}: {error}");
        assert!(error.advice().unwrap_or_default().contains(advice), "{policy}: {:?}", error.advice());
    }
    for policy in
        ["window(9)+copies(int5)", "window(9)+retain", "window(9)+retain(101%)", "window(9)+recall(16,by=luck)"]
    {
        assert!(Stack::parse(policy).is_err(), "{policy}");
    }
}

#[test]
fn scores_of_importance_are_asked_for_by_name() {
    let mut tables = Tables::even(1, 20, 2);
    tables.scores.clear();
    let error =
        attention_error(&Stack::parse("window(5)+retain(10%)").unwrap(), &tables.read().unwrap(), 1).unwrap_err();
    assert!(error.to_string().contains("`retain` needs channel `column_sum`"), "{error}");
    assert!(error.advice().unwrap().contains("prefill_scores"));
    // Where nothing is dropped, nothing is asked.
    assert!(attention_error(&Stack::parse("window(50)+retain(10%)").unwrap(), &tables.read().unwrap(), 1).is_ok());
}
