use super::*;
use crate::machine::Sourced;
use crate::policy::Keep;
use crate::serving::RULES;
use crate::test_kit::{open, toy_plan, toy_workload};

fn known(value: f64) -> Sourced {
    Sourced { value, source: "test".to_owned(), certainty: Certainty::Assumed }
}

fn promise(name: &str, ttft_ns: Option<f64>, itl_ns: Option<f64>, usd: f64) -> Promise {
    Promise {
        name: name.to_owned(),
        ttft_ns: ttft_ns.map(known),
        itl_ns: itl_ns.map(known),
        kept_ratio: 0.9,
        usd_per_mtok_input: known(usd / 5.0),
        usd_per_mtok_cached: known(usd / 50.0),
        usd_per_mtok_output: known(usd),
    }
}

/// Every gap of a replay, one by one.
fn gaps(outcome: &Outcome) -> Vec<f64> {
    let mut gaps: Vec<f64> = outcome.long_gaps.iter().map(|gap| gap.ns as f64).collect();
    for stretch in &outcome.stretches {
        for step in 0..stretch.steps {
            let part = if stretch.steps > 1 { step as f64 / (stretch.steps - 1) as f64 } else { 0.0 };
            let gap = (stretch.first_ns + (stretch.last_ns - stretch.first_ns) * part).round();
            gaps.extend(std::iter::repeat_n(gap, stretch.felt_requests as usize));
        }
    }
    gaps
}

#[test]
fn shares_of_tokens_are_those_of_every_single_gap() {
    let requests = [(0, 70, 40, 0), (3, 90, 25, 0), (1, 33, 60, 1), (200, 64, 1, 1), (5, 120, 30, 2)];
    let (plan, workload) = (toy_plan(&[Keep::ALL], 4000), toy_workload(&requests));
    let outcome = open(&plan, &workload, 1, &RULES[0]);
    let mut all = gaps(&outcome);
    all.sort_unstable_by(f64::total_cmp);
    assert!(all.len() > 100);
    for at in [0, 1, all.len() / 3, all.len() / 2, all.len() - 1] {
        for limit in [all[at] - 1.0, all[at], all[at] + 1.0] {
            let expected = all.iter().filter(|gap| **gap <= limit).count() as f64 / all.len() as f64;
            assert!((share_of_tokens(&outcome, Some(limit)).unwrap() - expected).abs() < 1e-12, "{at} {limit}");
        }
    }
    assert_eq!(share_of_tokens(&outcome, None), Some(1.0));
    assert_eq!(share_of_tokens(&Outcome::default(), Some(1.0)), None);
}

#[test]
fn the_dearest_kept_promise_is_what_tokens_are_sold_for() {
    let (plan, workload) = (toy_plan(&[Keep::ALL], 4000), toy_workload(&[(0, 64, 10, 0), (9000, 64, 10, 0)]));
    let outcome = open(&plan, &workload, 1, &RULES[0]);
    let found = found(plan, outcome);
    let tariff = Tariff {
        name: "test".to_owned(),
        title: String::new(),
        date: "2026-01-01".to_owned(),
        promises: vec![
            promise("slow", None, None, 1.0),
            promise("fast", Some(1e12), Some(1e12), 10.0),
            promise("impossible", Some(0.0), Some(0.0), 100.0),
        ],
    };
    let kept = kept(&tariff, &found, &workload);
    assert_eq!(kept.iter().map(|kept| kept.is_kept).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(sold(&kept).unwrap().promise.name, "fast");
    assert_eq!(kept.iter().map(|kept| kept.good_requests).collect::<Vec<_>>(), [2, 2, 0]);
    // 64 tokens are computed for the first request; the second finds all blocks but the last, which a prompt always computes.
    let tokens = sold_tokens(&found.outcome, &workload);
    assert_eq!((tokens.input + tokens.cached, tokens.output), (128, 20));
    let expected = (tokens.input as f64 * 2.0 + tokens.cached as f64 * 0.2 + 20.0 * 10.0) / 1e6;
    assert!((kept[1].revenue_usd - expected).abs() < 1e-15);
}

/// A summary that is late, long and cheap changes neither what is sold nor what is promised.
#[test]
fn what_a_stage_sends_is_sold_to_nobody_and_promised_nothing() {
    let requests = [(0, 64, 10, 1), (0, 512, 300, 0), (9000, 64, 10, 1)];
    let plan = toy_plan(&[Keep::ALL], 4000);
    let mut workload = toy_workload(&requests);
    workload.request_ids[1] |= crate::workload::ADDED;
    let outcome = open(&plan, &workload, 1, &crate::serving::Rules { step_tokens: 64, ..RULES[0] });
    let tokens = sold_tokens(&outcome, &workload);
    assert_eq!((tokens.input + tokens.cached, tokens.output), (128, 20));
    let limit = outcome.served[0].ttft_ns.unwrap().max(outcome.served[2].ttft_ns.unwrap()) as f64;
    assert!((outcome.served[1].ttft_ns.unwrap() as f64) > limit);
    assert_eq!(share_of_requests((&outcome, &workload), Some(limit)), Some(1.0));
    let gaps: u64 = outcome.stretches.iter().map(|stretch| stretch.felt_requests * stretch.steps).sum();
    assert_eq!(gaps + outcome.long_gaps.len() as u64, 18);
    let tariff = Tariff {
        name: "test".to_owned(),
        title: String::new(),
        date: "2026-01-01".to_owned(),
        promises: vec![promise("fast", Some(limit), None, 10.0)],
    };
    let kept = kept(&tariff, &found(plan, outcome), &workload);
    assert_eq!((kept[0].is_kept, kept[0].good_requests), (true, 2));
}

#[test]
fn a_request_that_generates_nothing_breaks_no_promise_of_a_first_token() {
    let (plan, workload) = (toy_plan(&[Keep::ALL], 4000), toy_workload(&[(0, 64, 10, 0), (9000, 64, 0, 1)]));
    let outcome = open(&plan, &workload, 1, &RULES[0]);
    assert_eq!((outcome.served[1].ttft_ns, is_silent(&outcome.served[1])), (None, true));
    let limit = outcome.served[0].ttft_ns.unwrap() as f64;
    assert_eq!(share_of_requests((&outcome, &workload), Some(limit)), Some(1.0));
    assert_eq!(share_of_requests((&outcome, &workload), Some(limit - 1.0)), Some(0.0));
    assert!(is_good(&promise("fast", Some(limit), None, 1.0), &outcome.served[1], 0));
}

fn found(plan: crate::cost::Plan, outcome: Outcome) -> Found {
    Found {
        shape: crate::policy::Shape { groups: Vec::new(), eviction_is_private: true },
        plan,
        prefill: None,
        below: None,
        outcome,
        price: crate::prices::Price {
            machine: "toy".to_owned(),
            usd_per_accelerator_hour: None,
            w_per_accelerator: None,
            owning: None,
        },
        duration_ns: 0,
        span_ns: 0,
        offered_load: None,
    }
}
