use std::path::{Path, PathBuf};

use super::*;
use crate::cost::{Measured, Parallel};
use crate::model::WeightDtype;
use crate::replay::{Mode, Source, replay, toll, toll_of};
use crate::serving::{RULES, Routing, Traffic};
use crate::test_kit::toy_workload;
use crate::{machine, model, prices};

fn preset(kind: &str, name: &str) -> (String, String) {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets").join(kind).join(format!("{name}.toml"));
    (std::fs::read_to_string(path).unwrap(), format!("presets/{kind}/{name}.toml"))
}

fn scenario(name: &str, policy: &str, machine_name: &str) -> Scenario {
    let (model_text, model_origin) = preset("model", "llama-3.1-8b");
    let (book_text, book_origin) = preset("prices", "hyperscaler");
    Scenario {
        name: name.to_owned(),
        is_baseline: name == "baseline",
        workload: 0,
        model: model::parse(&model_text, &model_origin).unwrap(),
        policy: Stack::parse(policy).unwrap(),
        machine: machine::resolve(machine_name, &|name| Some(preset("machine", name))).unwrap(),
        mode: Mode::Live(Traffic::Open),
        routing: Routing::RoundRobin,
        prefill: None,
        placement: None,
        kv_blocks: None,
        rules: RULES[0],
        rate: 1.0,
        parallel: Parallel::default(),
        speculative: None,
        measured: Measured::default(),
        adaptation_days: Vec::new(),
        dtype: WeightDtype::Bf16,
        prices: prices::parse(&book_text, &book_origin).unwrap(),
        tariff: None,
    }
}

fn names(parts: &[Part]) -> Vec<&'static str> {
    parts.iter().map(|part| part.name()).collect()
}

#[test]
fn differences_are_found_part_by_part() {
    let base = scenario("baseline", "full", "h100");
    let of = |policy, machine| names(&differences(&base, &scenario("other", policy, machine)).unwrap());
    assert_eq!(of("full", "h100"), Vec::<&str>::new());
    assert_eq!(of("fp8", "h100"), ["format"]);
    assert_eq!(of("snapkv(budget=25%)+fp8", "gb300"), ["selection", "format", "hardware"]);
    assert_eq!(of("full", "h100*hbm_bw=2"), ["hardware"]);
    let mut other = scenario("other", "fp8", "h100");
    other.rate = 0.5;
    assert_eq!(differences(&base, &other), None);
}

#[test]
fn memories_below_are_named_with_the_hardware_where_they_differ() {
    let plain = scenario("baseline", "full", "h100");
    let mut tiered = scenario("tiered", "full", "h100");
    tiered.placement = Some("tier(hbm,dram)".to_owned());
    let text = |baseline: &Scenario, scenario: &Scenario| change(Part::Hardware, baseline, scenario);
    assert_eq!(names(&differences(&plain, &tiered).unwrap()), ["hardware"]);
    assert_eq!(text(&plain, &tiered), "1 h100+tier(hbm,dram)");
    assert_eq!(text(&tiered, &plain), "1 h100 without memories below");
    assert_eq!((text(&plain, &plain), text(&tiered, &tiered)), ("1 h100".to_owned(), "1 h100".to_owned()));
}

#[test]
fn a_mixture_has_the_stages_of_its_parts() {
    let base = scenario("baseline", "full", "h100");
    let other = scenario("other", "snapkv(budget=25%)+fp8", "h200");
    let parts = differences(&base, &other).unwrap();
    let mixed: Vec<(String, String)> = (0..8)
        .map(|mask| with_parts(&base, &other, &parts, mask).unwrap())
        .map(|mixed| (mixed.policy.name(), mixed.machine.name))
        .collect();
    let policies = ["full", "snapkv(budget=25%)", "fp8", "snapkv(budget=25%)+fp8"];
    for (mask, (policy, machine)) in mixed.iter().enumerate() {
        let expected = Stack::parse(policies[mask & 3]).unwrap().name();
        assert_eq!(
            (policy.as_str(), machine.as_str()),
            (expected.as_str(), if mask & 4 == 0 { "h100" } else { "h200" })
        );
    }
}

#[test]
fn each_replay_is_wanted_once_and_none_that_is_there() {
    let scenarios = vec![
        scenario("baseline", "full", "h100"),
        scenario("format", "fp8", "h100"),
        scenario("both", "fp8", "h200"),
        scenario("again", "fp8", "h200"),
    ];
    let wanted = variations(&scenarios);
    // The machine alone; of four resources four better ones and half of it; and the host, twice and half as fast.
    assert_eq!(wanted.len(), 1 + 4 * 5 + 2);
    assert_eq!((wanted[0].policy.name().as_str(), wanted[0].machine.name.as_str()), ("full", "h200"));
    let keys: std::collections::BTreeSet<u128> = wanted.iter().chain(&scenarios[..3]).map(key).collect();
    assert_eq!(keys.len(), wanted.len() + 3);
    assert!(variations(&[]).is_empty());
}

/// The toll of a replay holds the sums of its stretches, and more bandwidth lowers it.
#[test]
fn a_toll_sums_the_stretches() {
    let source = Source {
        workload: toy_workload(&[(0, 200, 40, 0), (10, 255, 20, 1)]),
        steps: Vec::new(),
        trace: None,
        edited: None,
    };
    let base = scenario("baseline", "full", "h100");
    let found = replay(&base, &source).unwrap();
    let paid = toll::toll(&base, &found, &source.workload);
    let steps: i64 = found.outcome.stretches.iter().map(|stretch| stretch.total_ns).sum();
    assert!((paid.steps_ns() - steps).abs() < 2 * found.outcome.stretches.len() as i64 + 8);
    assert!((paid.all_ns() - found.duration_ns).abs() < 2 * found.outcome.stretches.len() as i64 + 8);
    assert_eq!(paid.output_tokens, 60);
    let faster = toll_of(&with_more(&base, Resource::Bandwidth, 4.0), &source).unwrap();
    let ratio = paid.ns_per_output_token().unwrap() / faster.ns_per_output_token().unwrap();
    assert!(ratio > 1.2 && ratio < 4.0, "{ratio}");
}
