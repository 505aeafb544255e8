//! The replay against a slow one that goes token by token, and its laws.

mod reference;

use proptest::prelude::*;

use super::*;
use crate::cost::{Mixed, Plan, Ways};
use crate::policy::{Beside, Budget, Keep, Lower};
use crate::surface::{Grid, Ground};
use crate::test_kit::{open, toy_plan, toy_workload};
use crate::workload::{ADDED, Pause, Turns, Workload};
use reference::slow;

fn compare(setup: &Setup<'_>, workload: &Workload) -> Result<(), TestCaseError> {
    let (fast, slow) = (serve(setup, workload), slow(setup, workload));
    let same = |a: Option<i64>, b: Option<f64>| a == b.map(|b| b.round() as i64);
    for (at, (served, slow)) in fast.served.iter().zip(&slow.requests).enumerate() {
        prop_assert_eq!(served.fate, slow.fate, "fate of {}", at);
        prop_assert!(served.fate != Fate::Pending, "request {} never ends", at);
        prop_assert_eq!(served.preemptions, slow.preemptions, "preemptions of {}", at);
        prop_assert_eq!(served.hit_tokens, slow.hit, "hits of {}", at);
        prop_assert_eq!(served.instance as usize, slow.instance, "instance of {}", at);
        for (name, a, b) in [
            ("ttft", served.ttft_ns, slow.ttft),
            ("e2e", served.e2e_ns, slow.e2e),
            ("largest gap", served.max_itl_ns, slow.longest),
        ] {
            prop_assert!(same(a, b), "{} of {}: {:?} and {:?}", name, at, a, b);
        }
    }
    for stretch in &fast.stretches {
        prop_assert!(stretch.held_bytes <= stretch.resident_bytes);
    }
    let mut tokens = slow.gaps.clone();
    tokens.sort_unstable();
    let exact = quantile::of_tokens(&fast, &quantile::GRID);
    for (ratio, value) in quantile::GRID.into_iter().zip(exact) {
        prop_assert_eq!(value, quantile::of_sorted(&tokens, ratio), "quantile {}", ratio);
    }
    Ok(())
}

fn keeps() -> impl Strategy<Value = Vec<Keep>> {
    let keep = prop_oneof![
        Just(Keep::ALL),
        (20_u32..90).prop_map(Keep::at_most),
        (1_u32..60).prop_map(|budget| Keep::of_prompt(Budget::Tokens(budget))),
        (0.1_f64..1.0).prop_map(|ratio| Keep::of_prompt(Budget::Ratio(ratio))),
        (1_u32..90).prop_map(|budget| Keep::fixed(Budget::Tokens(budget))),
        (0.1_f64..1.0).prop_map(|ratio| Keep::fixed(Budget::Ratio(ratio))),
    ];
    // Half of them with tokens that are kept after all.
    let retained = prop_oneof![Just(0.0), 0.05_f64..1.0];
    let extra = prop_oneof![Just(0_u32), 1_u32..40];
    let keep = (keep, retained, extra).prop_map(|(keep, retained, extra)| match keep {
        Keep::ALL => keep,
        _ => Keep { retained, extra, ..keep },
    });
    proptest::collection::vec(keep, 1..3)
}

/// Something is held of what the first group does not keep, some of it is fetched from a lower tier, and the newest tokens
/// take room.
fn with_recovery(plan: &mut Plan, fetched: u32) {
    let next = plan.lanes();
    let group = &mut plan.groups[0];
    group.group.beside = Some(Beside { token_bytes: 1, is_attended: true, read_flops: 0.125 });
    group.group.lower = Some(Lower { token_bytes: 3, fetched_tokens: fetched });
    group.group.keep.extra = fetched;
    (group.token_bytes, group.token_bytes_per_accelerator) = (3, 3.0);
    (group.beside_bytes, group.beside_bytes_per_accelerator, group.beside_flops) = (1, 1.0, 0.125);
    group.lower_bytes_per_accelerator = 3.0;
    group.residual_room_bytes = 7;
    (group.whole_lane, group.near_lane) = (Some(next), Some(next + 1));
}

/// Attention of the first group takes 8 ns for each request and token, half of it as if all contexts were as long as the
/// longest, and twice that beside a chunk.
fn with_longest(plan: &mut Plan) {
    let grid = |slope: f64| {
        let node = |batch: f64, context: f64| (slope * batch * context, Ground::Calibrated);
        let nodes = [node(1.0, 0.0), node(1.0, 65_536.0), node(1025.0, 0.0), node(1025.0, 65_536.0)];
        Grid::through(vec![1.0, 1025.0], vec![0.0, 65_536.0], &nodes).unwrap()
    };
    let ways = Ways::of(vec![(1.0, 0.5), (1025.0, 0.5)]);
    plan.groups[0].measured = Some(grid(8.0));
    plan.groups[0].uneven = ways.clone();
    plan.groups[0].measured_mixed = Mixed::of(vec![1.0], vec![grid(16.0)], ways);
}

fn requests() -> impl Strategy<Value = Vec<(u32, u32, u32, u8)>> {
    // Gap to the arrival before in microseconds, prompt, output, family of prefixes.
    proptest::collection::vec((0_u32..3000, 0_u32..200, 0_u32..60, 0_u8..3), 1..25)
}

prop_compose! {
    fn some_rules()(
        step_tokens in 16_u32..200,
        running_requests in 1_u32..8,
        (prefix_cache, keeps_decoded, chunked, lookahead) in any::<(bool, bool, bool, bool)>(),
        look_steps in prop_oneof![Just(1_u32), 1_u32..12],
        admit in prop_oneof![
            Just(Admit::FirstChunk), Just(Admit::Prompt), Just(Admit::Whole), Just(Admit::Estimate(0.25)),
        ],
        compose in prop_oneof![Just(Compose::Mixed), Just(Compose::PrefillFirst)],
        victim in prop_oneof![Just(Victim::Newest), Just(Victim::LeastGenerated)],
        preempted in prop_oneof![Just(Preempted::Recompute), Just(Preempted::Swap)],
        (step_ns, request_ns, front_ns) in (0_u32..3, 0_u32..3, 0_u32..3),
    ) -> Rules {
        Rules {
            name: "toy",
            doc: "",
            step_tokens,
            running_requests,
            prefix_cache,
            keeps_decoded,
            chunked,
            lookahead,
            look_steps,
            spare_blocks: 0,
            admit,
            compose,
            victim,
            preempted,
            step_ns: f64::from(step_ns) * 1000.0,
            request_ns: f64::from(request_ns) * 100.0,
            front_ns: f64::from(front_ns) * 10_000.0,
        }
    }
}

/// A turn of a session continues the request before it of the same family, half of the time; its prompt then names the
/// blocks of that one's output.
fn with_turns(workload: &mut Workload, starts: &[bool]) {
    let mut last: [Option<usize>; 3] = [None; 3];
    workload.turns = Turns::default();
    for at in 0..workload.len() {
        let family = workload.units_of(at).first().map_or(0, |&unit| (unit / 8) as usize).min(2);
        let starts = starts.get(at).copied().unwrap_or(true);
        let before = last[family].filter(|_| !starts);
        workload.turns.before.push(before.map_or(u32::MAX, |before| before as u32));
        workload.turns.pause_ns.push(at as i64 % 3 * 50_000);
        // From the start of the turn before, or from its end.
        workload.turns.basis.push(if at % 4 == 1 { Pause::FromStart } else { Pause::Recorded });
        last[family] = Some(at);
    }
}

/// Some requests are a stage's own, and the next one is held back until they have ended.
fn with_stages(workload: &mut Workload, sent: &[bool]) {
    let turns = &mut workload.turns;
    turns.held_by = vec![u32::MAX; workload.prompt.len()];
    for own in (0..workload.prompt.len().saturating_sub(1)).filter(|&at| sent.get(at) == Some(&true)) {
        workload.request_ids[own] |= ADDED;
        (turns.held_by[own + 1], turns.before[own + 1]) = (own as u32, own as u32);
        (turns.pause_ns[own + 1], turns.basis[own + 1]) = (0, Pause::AtOnce);
    }
}

prop_compose! {
    fn some_traffic()(
        kind in 0_u8..3,
        concurrency in 1_u32..6,
        routing in 0_usize..4,
        starts in proptest::collection::vec(any::<bool>(), 25),
    ) -> (Traffic, Routing, Vec<bool>) {
        let traffic = match kind {
            0 => Traffic::Open,
            1 => Traffic::Closed { concurrency },
            _ => Traffic::Session,
        };
        (traffic, Routing::ALL[routing].1, starts)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn jumping_from_event_to_event_equals_going_token_by_token(
        keeps in keeps(),
        most_read in proptest::option::of(1_u32..200),
        fetched in proptest::option::of(0_u32..40),
        requests in requests(),
        capacity in 300_u64..2500,
        rules in some_rules(),
        (traffic, routing, starts) in some_traffic(),
        (instances, decoders) in (1_u32..4, 0_u32..3),
        sent in proptest::collection::vec(proptest::bool::weighted(0.3), 25),
    ) {
        let mut plan = toy_plan(&keeps, capacity);
        if let Some(most) = most_read {
            // The first group reads a part of what it keeps, and an index beside it.
            plan.groups[0].group.read_tokens = Some(most);
            plan.groups[0].read_lane = Some(keeps.len());
            plan.groups[0].index_bytes_per_accelerator = 0.25;
            // It drops nothing that could be recovered.
            plan.groups[0].group.keep = Keep { retained: 0.0, extra: 0, ..plan.groups[0].group.keep };
        }
        if let Some(fetched) = fetched.filter(|_| most_read.is_none()) {
            with_recovery(&mut plan, fetched);
        }
        let mut workload = toy_workload(&requests);
        with_turns(&mut workload, &starts);
        with_stages(&mut workload, &sent);
        let decode = Plan { capacity_bytes: capacity * 2, ..plan.clone() };
        let role = if decoders > 0 { Role::Prefill } else { Role::Both };
        let pools = [
            Pool { plan: &plan, instances, role },
            Pool { plan: &decode, instances: decoders, role: Role::Decode },
        ];
        let handover = (decoders > 0).then_some(Handover { bytes_per_ns: 0.03125, latency_ns: 500.0 });
        let setup = Setup { pools: &pools, traffic, routing, rules: &rules, handover, below: None };
        compare(&setup, &workload)?;
    }

    #[test]
    fn so_it_does_where_the_longest_context_counts(
        requests in requests(),
        capacity in 300_u64..2500,
        rules in some_rules(),
        instances in 1_u32..3,
    ) {
        let mut plan = toy_plan(&[Keep::ALL], capacity);
        with_longest(&mut plan);
        let workload = toy_workload(&requests);
        let pools = [Pool { plan: &plan, instances, role: Role::Both }];
        let (traffic, routing) = (Traffic::Open, Routing::RoundRobin);
        compare(&Setup { pools: &pools, traffic, routing, rules: &rules, handover: None, below: None }, &workload)?;
    }

    #[test]
    fn every_request_is_finished_or_rejected_and_every_token_is_counted(
        keeps in keeps(),
        requests in requests(),
        capacity in 300_u64..2500,
        instances in 1_u32..4,
    ) {
        let rules = Rules { step_tokens: 64, running_requests: 6, ..RULES[0] };
        let workload = toy_workload(&requests);
        let outcome = open(&toy_plan(&keeps, capacity), &workload, instances, &rules);
        let finished: Vec<usize> = (0..workload.len()).filter(|&at| outcome.served[at].fate == Fate::Finished).collect();
        let rejected = outcome.served.iter().filter(|served| matches!(served.fate, Fate::TooLarge | Fate::NoPrompt));
        prop_assert_eq!(finished.len() + rejected.count(), workload.len());
        let later: u64 = finished.iter().map(|&at| u64::from(workload.output[at].saturating_sub(1))).sum();
        let stretches = outcome.stretches.iter().map(|stretch| stretch.felt_requests * stretch.steps);
        prop_assert_eq!(stretches.sum::<u64>() + outcome.long_gaps.len() as u64, later);
        // Each step's time is shared by the tokens it computed, so the shares add up to the time.
        let shares: f64 = outcome.served.iter().map(|served| served.machine_ns).sum();
        let time: i64 = outcome.stretches.iter().map(|stretch| stretch.total_ns).sum();
        prop_assert!((shares - time as f64).abs() <= 1e-6 * time as f64 + 1.0, "{} of {}", shares, time);
        // While nothing runs nothing is held, however long that lasts.
        for own in outcome.stretches.chunk_by(|a, b| a.instance == b.instance) {
            for pair in own.windows(2) {
                let is_idle = pair[0].start_ns + pair[0].total_ns < pair[1].start_ns;
                prop_assert!(!is_idle || pair[0].left_bytes == 0, "{} bytes held", pair[0].left_bytes);
            }
            prop_assert_eq!(own.last().map(|last| last.left_bytes), Some(0));
        }
    }
}

#[test]
fn a_second_request_with_the_same_prompt_hits_all_but_its_last_block() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let workload = toy_workload(&[(0, 96, 4, 1), (2_000_000, 96, 4, 1)]);
    let outcome = open(&plan, &workload, 1, &RULES[0]);
    assert_eq!(outcome.served[0].hit_tokens, 0);
    // 96 tokens are three full units of 32, but the last token must be computed for its logits.
    assert_eq!(outcome.served[1].hit_tokens, 80);
    assert!(outcome.served[1].ttft_ns < outcome.served[0].ttft_ns, "a hit shortens the prefill");
    let cold = open(&plan, &workload, 1, &RULES[1]);
    assert_eq!(cold.served[1].hit_tokens, 0);
    assert_eq!(cold.served[1].ttft_ns, cold.served[0].ttft_ns);
}

/// Found by the comparison above: two requests were preempted in one step, and the first of them fitted again right after.
#[test]
fn a_preempted_request_is_tried_again_after_one_step() {
    let rules = Rules { step_tokens: 24, running_requests: 3, lookahead: false, ..RULES[0] };
    let workload = toy_workload(&[(0, 120, 39, 1), (582, 86, 41, 2), (0, 32, 27, 0), (0, 103, 12, 0)]);
    let plan = toy_plan(&[Keep::ALL, Keep::ALL], 512);
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let setup = Setup {
        pools: &pools,
        traffic: Traffic::Open,
        routing: Routing::RoundRobin,
        rules: &rules,
        handover: None,
        below: None,
    };
    compare(&setup, &workload).unwrap();
}

/// The next turn finds what was generated, if the rules keep it.
#[test]
fn a_turn_finds_the_blocks_of_the_answer_before_it() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let mut workload = toy_workload(&[(0, 64, 65, 1), (0, 160, 4, 1)]);
    workload.turns = Turns {
        before: vec![u32::MAX, 0],
        pause_ns: vec![0, 1000],
        basis: vec![Pause::First, Pause::Recorded],
        held_by: Vec::new(),
    };
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let of = |rules: &Rules| {
        serve(
            &Setup {
                pools: &pools,
                traffic: Traffic::Session,
                routing: Routing::Session,
                rules,
                handover: None,
                below: None,
            },
            &workload,
        )
    };
    let (kept, lost) = (of(&RULES[0]), of(&Rules { keeps_decoded: false, ..RULES[0] }));
    // 64 tokens of the prompt and 64 of 65 generated: the last one's KV is never computed.
    assert_eq!((kept.served[1].hit_tokens, lost.served[1].hit_tokens), (128, 64));
    assert!(kept.served[1].ttft_ns < lost.served[1].ttft_ns);
    assert_eq!(kept.served[1].arrival_ns, kept.served[0].e2e_ns.unwrap() + 1000);
}

/// A turn and the request that a stage sends for it: in every kind of traffic the user waits for both, one after the other, and
/// the stage's own latencies and gaps are nobody's.
#[test]
fn a_turn_waits_for_the_summary_that_a_stage_sends_for_it() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let mut workload = toy_workload(&[(0, 256, 40, 0), (0, 64, 8, 1), (50, 96, 8, 2)]);
    workload.request_ids[0] |= ADDED;
    workload.turns = Turns {
        before: vec![u32::MAX, 0, u32::MAX],
        pause_ns: vec![0; 3],
        basis: vec![Pause::First, Pause::AtOnce, Pause::First],
        held_by: vec![u32::MAX, 0, u32::MAX],
    };
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    for traffic in [Traffic::Open, Traffic::Closed { concurrency: 2 }, Traffic::Session] {
        let routing = Routing::RoundRobin;
        let setup = Setup { pools: &pools, traffic, routing, rules: &RULES[0], handover: None, below: None };
        compare(&setup, &workload).unwrap();
        let outcome = serve(&setup, &workload);
        let [own, turn, other] = outcome.served[..] else { panic!("three requests") };
        assert_eq!((own.arrival_ns, turn.arrival_ns), (0, 0), "{traffic:?}: both come at once");
        assert_eq!((turn.stage_wait_ns, own.stage_wait_ns), (own.e2e_ns.unwrap(), 0), "{traffic:?}");
        assert!(turn.queue_ns.unwrap() >= turn.stage_wait_ns && turn.ttft_ns > turn.queue_ns, "{traffic:?}");
        assert_eq!(other.stage_wait_ns, 0);
        // Two users with eight tokens each have seven gaps each.
        let gaps: u64 = outcome.stretches.iter().map(|stretch| stretch.felt_requests * stretch.steps).sum();
        assert_eq!(gaps + outcome.long_gaps.len() as u64, 14, "{traffic:?}");
    }
}

#[test]
fn a_closed_loop_keeps_its_concurrency() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let workload = toy_workload(&[(9000, 64, 20, 0); 12]);
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let traffic = Traffic::Closed { concurrency: 3 };
    let setup =
        Setup { pools: &pools, traffic, routing: Routing::RoundRobin, rules: &RULES[0], handover: None, below: None };
    let outcome = serve(&setup, &workload);
    let ends: Vec<i64> = outcome.served.iter().map(|served| served.arrival_ns + served.e2e_ns.unwrap()).collect();
    for (at, served) in outcome.served.iter().enumerate().skip(3) {
        let ended = ends[..at].iter().filter(|&&end| end <= served.arrival_ns).count();
        assert!(at - ended < 3, "request {at} came while {} others were there", at - ended);
        assert!(ends.contains(&served.arrival_ns), "request {at} came when one ended");
    }
}

#[test]
fn a_faster_link_between_pools_shortens_the_second_token_and_not_the_first() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let workload = toy_workload(&[(0, 200, 8, 0), (0, 200, 8, 1)]);
    let pools = [
        Pool { plan: &plan, instances: 1, role: Role::Prefill },
        Pool { plan: &plan, instances: 1, role: Role::Decode },
    ];
    let over = |bytes_per_ns: f64| {
        let handover = Some(Handover { bytes_per_ns, latency_ns: 100.0 });
        let (traffic, routing) = (Traffic::Open, Routing::RoundRobin);
        serve(&Setup { pools: &pools, traffic, routing, rules: &RULES[0], handover, below: None }, &workload)
    };
    let (slow, fast) = (over(0.001), over(0.01));
    for at in 0..2 {
        assert_eq!(slow.served[at].ttft_ns, fast.served[at].ttft_ns);
        assert!(slow.served[at].link_ns > fast.served[at].link_ns);
        assert!(slow.served[at].e2e_ns > fast.served[at].e2e_ns);
    }
    assert_eq!(slow.long_gaps.len(), 2);
    assert!(slow.long_gaps.iter().all(|gap| gap.cause == GapCause::Handover));
    // The second prompt waits for the first one's transfer.
    assert!(slow.served[1].link_ns > slow.served[0].link_ns);
}

/// Every decoding request waits while a prompt is computed alone.
#[test]
fn prompts_first_stall_those_that_decode() {
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let workload = toy_workload(&[(0, 64, 50, 0), (500, 190, 4, 1)]);
    let sglang = RULES.iter().find(|rules| rules.name == "sglang-0.5").unwrap();
    let (first, mixed) = (open(&plan, &workload, 1, sglang), open(&plan, &workload, 1, &RULES[0]));
    assert!(first.served[0].max_itl_ns > mixed.served[0].max_itl_ns);
    assert!(first.stretches.iter().any(|stretch| stretch.stall_ns > 0));
}

/// A faster way to the host's memory brings those that gave way back sooner.
#[test]
fn a_faster_host_link_shortens_swaps() {
    let requests: Vec<(u32, u32, u32, u8)> = (0..8).map(|at| (10, 60, 90, at % 3)).collect();
    let workload = toy_workload(&requests);
    let swaps = Rules { preempted: Preempted::Swap, ..RULES[0] };
    let over = |host_bytes_per_ns: f64| {
        let plan = Plan { host_bytes_per_ns, ..toy_plan(&[Keep::ALL], 600) };
        open(&plan, &workload, 1, &swaps)
    };
    let (slow, fast) = (over(0.0625), over(0.25));
    let sum = |outcome: &Outcome| outcome.served.iter().filter_map(|served| served.e2e_ns).sum::<i64>();
    assert!(slow.served.iter().any(|served| served.preemptions > 0));
    assert!(sum(&fast) < sum(&slow));
    assert!(slow.stretches.iter().any(|stretch| stretch.cost.tier > 0.0));
    assert!(slow.served.iter().all(|served| served.recomputed_tokens == 0));
}

/// Nothing depends on which thread runs what: the same inputs give the same outcome.
#[test]
fn a_replay_is_repeated_to_the_last_digit() {
    let requests: Vec<(u32, u32, u32, u8)> = (0..25).map(|at| (at * 7 % 90, 20 + at * 11 % 150, at % 50, 0)).collect();
    let (plan, workload) = (toy_plan(&[Keep::ALL, Keep::at_most(40)], 900), toy_workload(&requests));
    let again = || open(&plan, &workload, 3, &RULES[0]);
    let first = again();
    let others: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(again)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(others.iter().all(|other| *other == first));
}

/// Found by the comparison above: what had been swapped out came back into room for its context but not for its next token,
/// and gave way again, without end while the memory of another was not free yet.
#[test]
fn what_comes_back_has_room_for_its_next_token() {
    let sglang = RULES.iter().find(|rules| rules.name == "sglang-0.5").unwrap();
    let rules = Rules { preempted: Preempted::Swap, admit: Admit::Prompt, prefix_cache: false, ..*sglang };
    let workload = toy_workload(&[(0, 64, 18, 0), (0, 64, 40, 1)]);
    let plan = toy_plan(&[Keep::ALL], 144);
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let (traffic, routing) = (Traffic::Open, Routing::RoundRobin);
    let setup = Setup { pools: &pools, traffic, routing, rules: &rules, handover: None, below: None };
    compare(&setup, &workload).unwrap();
    assert_eq!(serve(&setup, &workload).served.iter().map(|served| served.preemptions).sum::<u32>(), 1);
}
