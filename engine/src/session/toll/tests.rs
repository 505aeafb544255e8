use super::*;
use crate::model::Certainty;
use crate::policy::Stack;
use crate::policy::application::{Edited, apply};
use crate::session::Kind;
use crate::session::memory::{Evidence, memories};
use crate::session::reuse::found_tokens;
use crate::session::span::{Ages, ages, most_tokens, prompts, slope, turns_until};
use crate::test_kit::{Told, told_sessions, toy_plan};

/// Input 5, cached 0.5, written 6.25, output 25 dollars per million tokens.
fn tariff() -> ApiPrices {
    ApiPrices {
        name: "test".to_owned(),
        title: String::new(),
        date: String::new(),
        source: String::new(),
        certainty: Certainty::Assumed,
        input_nusd: 5000,
        cached_nusd: 500,
        written_nusd: 6250,
        output_nusd: 25_000,
        life_ns: 300_000_000_000,
    }
}

/// A head, a tool result of 50,000 tokens, and a suffix, all of which one turn computes; then so many turns that add a
/// little. The tokens of head and suffix fill whole blocks.
fn session(head: u32, suffix: &[(Kind, u32)], turns: u32) -> Vec<Vec<Told>> {
    let mut context: Vec<Told> = vec![(0, Kind::System, head), (1, Kind::ToolResult, 50_000)];
    context.extend((2..).zip(suffix).map(|(number, (kind, tokens))| (number, *kind, *tokens)));
    let mut all = vec![context.clone()];
    for turn in 0..turns {
        context.push((100 + turn, Kind::User, 32));
        all.push(context.clone());
    }
    all
}

/// Break-even of a session in warm API prices: by the replay and by the formula.
fn priced((trace, workload): &(Trace, Workload), edited: &Edited, session: u32) -> (f64, f64) {
    let tariff = tariff();
    let cost =
        |trace: &Trace, workload: &Workload| charged(&tariff, workload, Some(&found_tokens(trace, workload, None)));
    let (before, after) = (cost(trace, workload), cost(&edited.trace, &edited.workload));
    let effect = edited.effects.iter().find(|effect| effect.action.is_some()).unwrap();
    let once = extras(&edited.trace, &after).get(&(session, effect.turn)).copied().unwrap_or(0) as f64;
    let formula = closed_form(effect, once, 5750.0, 500.0);
    let all = changes(edited, once, &|_, moved| change(moved, 5750.0, 500.0));
    assert!((break_even_by_formula(&all).unwrap() - formula).abs() < 1e-9);
    let before = by_turn(trace, before.into_iter().map(Some));
    let after = by_turn(&edited.trace, after.into_iter().map(Some));
    let [before, after] = [before.of(session as usize), after.of(session as usize)];
    (break_even(before, after, effect.turn as usize).unwrap(), formula)
}

/// Of one action: what is paid once over what each turn saves.
fn closed_form(effect: &Effect, once: f64, again: f64, each: f64) -> f64 {
    let saved = (f64::from(effect.removed_tokens) - f64::from(effect.added_tokens)) * each;
    let written = (f64::from(effect.lost_prefix_tokens) + f64::from(effect.added_tokens)) * again;
    (written + once) / saved
}

/// What the only action and the turns behind it change.
fn changes(edited: &Edited, once: f64, of: &dyn Fn(u64, Moved) -> Change) -> Vec<Change> {
    let each = edited.effects.iter().map(|effect| of(effect.request_id, Moved::by(effect)));
    let mut all: Vec<Change> = each.collect();
    all[0].now += once;
    all
}

fn near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.01, "{found} instead of {expected}");
}

#[test]
fn clearing_pays_for_itself_when_the_formula_says() {
    // POLICIES 5.2: n* = 11.5 (N - p - C) / C, for C of 50,000 tokens.
    for (suffix, expected) in [(10_000, 2.3), (50_000, 11.5), (80_000, 18.4)] {
        let context = 4800 + 50_000 + suffix;
        let told = told_sessions(&[&session(4800, &[(Kind::Assistant, suffix)], 30)], 100, 16);
        let stack = Stack::parse(&format!("clear_tool_results(trigger={context},keep=0)")).unwrap();
        let (replayed, formula) = priced(&told, &apply(&stack, &told.0, &told.1).unwrap(), 0);
        near(formula, expected);
        near(replayed, formula);
        near(replayed, expected);
    }
}

#[test]
fn so_it_does_with_the_thresholds_that_are_shipped() {
    // The newest three results stay, and the context grows past 100,000 tokens.
    let suffix = [(Kind::ToolResult, 1600), (Kind::ToolResult, 1600), (Kind::ToolResult, 1600), (Kind::User, 3200)];
    let told = told_sessions(&[&session(41_984, &suffix, 60)], 100, 16);
    let edited = apply(&Stack::parse("clear_tool_results").unwrap(), &told.0, &told.1).unwrap();
    assert_eq!(edited.effects.iter().filter(|effect| effect.action.is_some()).count(), 1);
    let (replayed, formula) = priced(&told, &edited, 0);
    near(replayed, formula);
    // Longer than 167,000 tokens: a summary, the request for it, and no result short enough to come back.
    let suffix = [(Kind::Assistant, 80_000), (Kind::User, 32_000)];
    let told = told_sessions(&[&session(4800, &suffix, 30)], 100, 16);
    let edited = apply(&Stack::parse("compact").unwrap(), &told.0, &told.1).unwrap();
    let (replayed, formula) = priced(&told, &edited, 0);
    near(replayed, formula);
    let effect = edited.effects.iter().find(|effect| effect.action.is_some()).unwrap();
    assert_eq!((effect.turn, effect.added_tokens, effect.lost_prefix_tokens, effect.extra_requests), (7, 8000, 0, 1));
}

#[test]
fn several_actions_pay_for_themselves_as_the_formula_carried_on_says() {
    // Five results of 3,200 tokens later a further stretch is collapsed, behind the records of those before it.
    let mut context: Vec<Told> = vec![(0, Kind::System, 4800)];
    let turns: Vec<Vec<Told>> = (0..110)
        .map(|turn| {
            context.push((1 + turn, Kind::ToolResult, 3200));
            context.clone()
        })
        .collect();
    let (trace, workload) = told_sessions(&[&turns], 96, 16);
    let stack = Stack::parse("collapse(at=50k,stretch=16k,record=960,keep=3,prompt=480)").unwrap();
    let edited = apply(&stack, &trace, &workload).unwrap();
    let acted = edited.effects.iter().filter(|effect| effect.action.is_some()).count();
    assert!(acted > 10, "{acted}");
    let cost = |trace: &Trace, workload: &Workload| -> Vec<i64> {
        charged(&tariff(), workload, Some(&found_tokens(trace, workload, None)))
    };
    let (before, after) = (cost(&trace, &workload), cost(&edited.trace, &edited.workload));
    let extras = extras(&edited.trace, &after);
    let first = edited.effects.iter().find(|effect| effect.action.is_some()).unwrap().turn;
    let of_turn = |turn: u32| {
        let effect = edited.effects.iter().find(|effect| effect.turn == turn);
        let known = effect.map(|effect| change(Moved::by(effect), 5750.0, 500.0)).unwrap_or_default();
        Change { now: known.now + extras.get(&(0, turn)).copied().unwrap_or(0) as f64, ..known }
    };
    let formula = break_even_by_formula(&(first..110).map(of_turn).collect::<Vec<_>>()).unwrap();
    let before = by_turn(&trace, before.into_iter().map(Some));
    let after = by_turn(&edited.trace, after.into_iter().map(Some));
    near(break_even(before.of(0), after.of(0), first as usize).unwrap(), formula);
    // The first action alone says something else.
    let alone = edited.effects.iter().find(|effect| effect.turn == first).unwrap();
    let once = extras.get(&(0, first)).copied().unwrap_or(0) as f64;
    assert!((closed_form(alone, once, 5750.0, 500.0) / formula - 1.0).abs() > 0.1);
}

#[test]
fn a_session_that_ends_too_early_is_dearer() {
    let told = told_sessions(&[&session(4800, &[(Kind::Assistant, 80_000)], 10)], 100, 16);
    let edited = apply(&Stack::parse("clear_tool_results(trigger=134800,keep=0)").unwrap(), &told.0, &told.1).unwrap();
    let cost = |trace: &Trace, workload: &Workload| -> Vec<i64> {
        charged(&tariff(), workload, Some(&found_tokens(trace, workload, None)))
    };
    let (before, after) = (cost(&told.0, &told.1), cost(&edited.trace, &edited.workload));
    assert!(after.iter().sum::<i64>() > before.iter().sum::<i64>());
    let of = |trace: &Trace, costs: Vec<i64>| by_turn(trace, costs.into_iter().map(Some)).sums;
    assert_eq!(break_even(&of(&told.0, before), &of(&edited.trace, after), 1), None);
    // Without a cache every turn saves, and nothing is written again.
    let cold = |workload: &Workload| charged(&tariff(), workload, None).iter().sum::<i64>();
    assert_eq!(cold(&told.1) - cold(&edited.workload), 10 * 49_990 * 5000);
}

/// `trace_0208` of the WEKA traces: what a turn reads had been computed by another session, and a stage takes it out.
#[test]
fn a_prefix_that_another_session_computed_is_lost_too() {
    let plain = session(4800, &[(Kind::Assistant, 10_000)], 30);
    let in_chat = |turn: &Vec<Told>| turn.iter().map(|(number, _, tokens)| (*number, Kind::User, *tokens)).collect();
    let other: Vec<Vec<Told>> = plain[..2].iter().map(in_chat).collect();
    // Its first turn has the head only; then it goes on where the other one has been.
    let mut follower = vec![plain[0][..1].to_vec()];
    follower.extend_from_slice(&plain[1..]);
    let (trace, mut workload) = told_sessions(&[&other, &follower], 100, 16);
    let there = workload.units_of(1).to_vec();
    for turn in 2..workload.len() {
        let units = &mut workload.units[workload.offsets[turn] as usize..workload.offsets[turn + 1] as usize];
        let shared = units.len().min(there.len());
        units[..shared].copy_from_slice(&there[..shared]);
    }
    let told = (trace, workload);
    assert_eq!(found_tokens(&told.0, &told.1, None)[3], 64_832);
    let stack = Stack::parse("clear_tool_results(trigger=64800,keep=0)").unwrap();
    let edited = apply(&stack, &told.0, &told.1).unwrap();
    let effect = edited.effects[0];
    assert_eq!((effect.session, effect.turn, effect.lost_prefix_tokens), (1, 1, 10_032));
    let (replayed, formula) = priced(&told, &edited, 1);
    near(replayed, formula);
    near(formula, 11.5 * 10_042.0 / 49_990.0);
}

/// A plan whose times are those of POLICIES 5.2: arithmetic of prompts, reads of decoding, and nothing else.
fn ideal() -> Plan {
    let mut plan = toy_plan(&[Keep::ALL], 1 << 40);
    (plan.attention_flops_per_ns, plan.layer_floor_ns, plan.step_overhead_ns) = (1e5, 0.0, 0.0);
    plan.linear_flops_per_ns = 100.0;
    let group = &mut plan.groups[0];
    (group.kv_bytes_per_ns, group.floor_ns, group.read_flops, group.write_flops) = (10.0, 0.0, 0.0, 0.0);
    plan
}

#[test]
fn on_own_hardware_time_is_what_is_paid() {
    let rules = &crate::serving::RULES[0];
    let mut real = toy_plan(&[Keep::ALL], 1 << 40);
    // A fixed time of prompts, and reads that are slow beside their arithmetic.
    (real.groups[0].kv_bytes_per_ns, real.attention_flops_per_ns) = (10.0, 1e4);
    for (plan, is_ideal) in [(ideal(), true), (real, false)] {
        for suffix in [10_000, 50_000, 80_000] {
            let context = 4800 + 50_000 + suffix;
            let told = told_sessions(&[&session(4800, &[(Kind::Assistant, suffix)], 290)], 100, 16);
            let stack = Stack::parse(&format!("clear_tool_results(trigger={context},keep=0,note=16)")).unwrap();
            let edited = apply(&stack, &told.0, &told.1).unwrap();
            let cost = |workload: &Workload| alone(&plan, workload, rules);
            let before = by_turn(&told.0, cost(&told.1));
            let after = by_turn(&edited.trace, cost(&edited.workload));
            let found = found_tokens(&edited.trace, &edited.workload, None);
            let of = |id: u64, moved: Moved| {
                let (prompt, output) = (edited.workload.prompt[id as usize], 100);
                let asked = Asked { prompt, computed: prompt - found[id as usize], output };
                own_change(&plan, rules.step_tokens, moved, asked).unwrap()
            };
            let formula = break_even_by_formula(&changes(&edited, 0.0, &of)).unwrap();
            near(break_even(before.of(0), after.of(0), 1).unwrap(), formula);
            if is_ideal {
                // 2 P (N - p - C) / F, attention included, once; C b / B in each of 99 steps behind the first token.
                let (linear, group) = (&plan.linear[0], &plan.groups[0]);
                let behind = f64::from(edited.workload.prompt[1]) - f64::from(suffix) / 2.0;
                let again = linear.layers * (linear.attention_flops + linear.ffn_flops) / 100.0
                    + behind * group.prefill_pair_flops / 1e5;
                let each = 99.0 * group.token_bytes_per_accelerator / 10.0;
                near(formula, closed_form(&edited.effects[0], 0.0, again, each));
            }
        }
    }
    let part = toy_plan(&[Keep { total: Some(64), ..Keep::ALL }], 1 << 20);
    let asked = Asked { prompt: 100, computed: 10, output: 10 };
    assert_eq!(own_change(&part, 8192, Moved::default(), asked), None);
}

#[test]
fn what_is_between_two_turns_is_shared_out() {
    let known = |costs: &[i64]| costs.iter().copied().map(Some).collect::<Vec<_>>();
    assert_eq!(break_even(&known(&[9, 10, 10, 10]), &known(&[9, 14, 7, 7]), 1), Some(2.0 + 1.0 / 3.0));
    assert_eq!(break_even(&known(&[10]), &known(&[10]), 0), Some(1.0));
    assert_eq!(break_even(&known(&[10, 10]), &known(&[12, 9]), 0), None);
    assert_eq!(break_even(&[Some(1), None], &known(&[2, 0]), 0), None);
}

#[test]
fn growth_and_ages() {
    assert_eq!(slope(&[1.0, 3.0, 5.0]), Some(2.0));
    assert_eq!((slope(&[4.0]), slope(&[])), (None, None));
    assert_eq!(turns_until(&[100, 200, 300], 250), Some(2.0));
    assert_eq!(turns_until(&[100, 200, 300], 450), Some(4.5));
    assert_eq!((turns_until(&[300, 300], 450), turns_until(&[300, 200], 450)), (None, None));
    assert_eq!(most_tokens(&|tokens| 3 * u64::from(tokens.div_ceil(16)), 10), 48);
    let told = told_sessions(&[&session(4800, &[(Kind::Assistant, 10_000)], 9)], 100, 16);
    let keep_all = ages(&told.0, &told.0)[0];
    assert_eq!(keep_all, Ages { verbatim: Some(9), ..Ages::default() });
    let edited = apply(
        &Stack::parse("clear_tool_results(trigger=64896,keep=0)+compact(at=15k,summary=1k)").unwrap(),
        &told.0,
        &told.1,
    )
    .unwrap();
    // The summary of turn 1 tells of all that was before; a cleared result can also be read again.
    let found = ages(&told.0, &edited.trace)[0];
    assert_eq!((found.verbatim, found.summarised, found.recallable, found.lost), (Some(8), Some(9), Some(9), None));
    assert!(
        slope(&prompts(&edited.trace)[0].iter().map(|tokens| f64::from(*tokens)).collect::<Vec<_>>()).unwrap() < 0.0
    );
}

#[test]
fn keeping_all_recalls_all() {
    let mut told = told_sessions(&[&session(4800, &[(Kind::Assistant, 10_000)], 9)], 100, 16);
    let stack = Stack::parse("clear_tool_results(trigger=60k,keep=0)").unwrap();
    let all = memories(&told.0, &told.0)[0];
    assert_eq!((all.recall(), all.evidence, all.precision()), (Some(1.0), Some(Evidence::RecordedContext), None));
    assert_eq!(all.reread(), None);
    let cleared = memories(&told.0, &apply(&stack, &told.0, &told.1).unwrap().trace)[0];
    assert!(cleared.recall().unwrap() < 0.3);
    // Turn 5 reads the first result again, under its name.
    told.0.names = 1;
    let again = told.0.pieces_of(5).last().unwrap().content as usize;
    let first = told.0.pieces_of(0)[1].content as usize;
    (told.0.contents[first].name, told.0.contents[again].name) = (Some(0), Some(0));
    let all = memories(&told.0, &told.0)[0];
    assert_eq!((all.recall(), all.evidence, all.needed_tokens), (Some(1.0), Some(Evidence::ReadAgain), 50_000));
    // From turn 5 to turn 9 the text of 32 tokens stands there for the second time.
    assert_eq!((all.duplicate_tokens, all.density()), (Some(5 * 32), Some(1.0)));
    assert!(all.precision().unwrap() > 0.8);
    let cleared = memories(&told.0, &apply(&stack, &told.0, &told.1).unwrap().trace)[0];
    assert_eq!((cleared.recall(), cleared.reread(), cleared.removed_names), (Some(0.0), Some(1.0), Some(1)));
}
