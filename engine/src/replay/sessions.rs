//! The rows about sessions: turns, what the application's stages did to them, what they pay, how far they get, what they
//! remember, and how the KV of idle ones is kept.
//!
//! Scenarios whose requests name no sessions of several turns have none of these rows, unless a stage acted on them.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use arrow::array::RecordBatch;

use super::{Found, Mode, Run, Scenario, Source, replay, stacking};
use crate::api::ApiPrices;
use crate::cache::{self, Trace as Accesses, trace::Sessions};
use crate::cost::Plan;
use crate::error::Result;
use crate::model::Certainty;
use crate::policy::application::Effect;
use crate::schema::result::{
    CONTEXT_EDITS, SESSION_COSTS, SESSION_KEEPING, SESSION_MEMORY, SESSION_SPAN, SESSION_TURNS,
};
use crate::schema::{Cell, Table, batch_of_rows};
use crate::serving::{Fate, Rules, Served};
use crate::session::reuse::found_tokens;
use crate::session::toll::{
    Asked, ByTurn, Change, Moved, alone, break_even, break_even_by_formula, by_turn, change, charged, extras,
    own_change,
};
use crate::session::{Trace, memory, span};
use crate::workload::Workload;

/// Rules for the KV of idle sessions that are compared.
const KEEPING: [&str; 5] = ["lru", "ttl(idle=5min)", "ttl(idle=60min)", "session", "session(ended=yes)"];

/// A scenario with its requests as recorded and as served.
struct Pair<'a> {
    number: u32,
    scenario: &'a Scenario,
    found: &'a Found,
    recorded: (&'a Trace, &'a Workload),
    served: (&'a Trace, &'a Workload),
    effects: &'a [Effect],
    /// Which sessions get rows.
    shown: Vec<bool>,
}

/// The tables about sessions with their rows.
///
/// # Errors
/// Only a table that does not fit its schema, which is a bug.
pub(super) fn tables(
    run: &Run<'_>,
    done: &[(u32, &Scenario, &Found)],
) -> Result<Vec<(&'static Table, Vec<RecordBatch>)>> {
    let pairs: Vec<Pair<'_>> =
        done.iter().filter_map(|(at, scenario, found)| pair(run, *at, scenario, found)).collect();
    let recorded = as_recorded(run, &pairs);
    let baseline = done.iter().find(|(_, scenario, _)| scenario.is_baseline);
    let baseline = baseline.map(|(_, scenario, found)| (*scenario, *found));
    let priced = |pair: &Pair<'_>| {
        let at = pairs.iter().position(|other| other.number == pair.number);
        costs(pair, run.api_prices, at.and_then(|at| recorded[at].as_ref()).map(|served| served.as_slice()))
    };
    let each = |table: &'static Table, of: &dyn Fn(&Pair<'_>) -> Result<Vec<Vec<Cell>>>| -> Result<_> {
        let batches: Result<Vec<_>> = pairs.iter().map(|pair| batch_of_rows(table, &of(pair)?)).collect();
        Ok((table, batches?))
    };
    Ok(vec![
        each(&SESSION_TURNS, &|pair| Ok(turns(pair)))?,
        each(&CONTEXT_EDITS, &|pair| Ok(edits(pair)))?,
        each(&SESSION_COSTS, &|pair| Ok(priced(pair)))?,
        each(&SESSION_SPAN, &|pair| Ok(spans(pair, baseline)))?,
        each(&SESSION_MEMORY, &|pair| Ok(memories(pair)))?,
        each(&SESSION_KEEPING, &keeping)?,
    ])
}

fn pair<'a>(run: &Run<'a>, number: u32, scenario: &'a Scenario, found: &'a Found) -> Option<Pair<'a>> {
    let served: &'a Source = &run.sources[scenario.workload];
    let (recorded, effects) = match &served.edited {
        Some((origin, effects)) => (&run.sources[*origin], effects.as_slice()),
        None => (served, &[][..]),
    };
    let mut shown: Vec<bool> = recorded.trace.as_ref()?.sessions.iter().map(|session| session.turns > 1).collect();
    for effect in effects {
        shown[effect.session as usize] = true;
    }
    (scenario.mode != Mode::Captured && shown.contains(&true)).then_some(Pair {
        number,
        scenario,
        found,
        recorded: (recorded.trace.as_ref()?, &recorded.workload),
        served: (served.trace.as_ref()?, &served.workload),
        effects,
        shown,
    })
}

/// What became of the requests as they were recorded, in a replay of each pair's scenario without the stages that act on
/// contexts: one of the run's own, or one made for this. Equal ones are replayed once. `None` where that cannot be replayed.
fn as_recorded(run: &Run<'_>, pairs: &[Pair<'_>]) -> Vec<Option<Rc<Vec<Served>>>> {
    let plain: Vec<Scenario> = pairs.iter().map(|pair| without_stages(run, pair.scenario)).collect();
    let keys: Vec<u128> = plain.iter().map(stacking::key).collect();
    let known: Vec<u128> = run.scenarios.iter().map(stacking::key).collect();
    each_once(&keys, |at| {
        let served = match known.iter().position(|known| *known == keys[at]) {
            Some(own) => run.found[own].as_ref().ok()?.outcome.served.clone(),
            None => replay(&plain[at], &run.sources[plain[at].workload]).ok()?.outcome.served,
        };
        Some(Rc::new(served))
    })
}

/// The scenario on the requests as they were recorded.
fn without_stages(run: &Run<'_>, scenario: &Scenario) -> Scenario {
    let mut plain = scenario.clone();
    if let Some((origin, _)) = run.sources[scenario.workload].edited {
        (plain.workload, plain.policy) = (origin, scenario.policy.without_edits());
    }
    plain
}

/// What is made for each key by its place, in their order; equal keys have what was made for the first of them.
fn each_once<T: Clone>(keys: &[u128], mut make: impl FnMut(usize) -> T) -> Vec<T> {
    let mut made: BTreeMap<u128, T> = BTreeMap::new();
    let each = keys.iter().enumerate();
    each.map(|(at, key)| made.entry(*key).or_insert_with(|| make(at)).clone()).collect()
}

impl Pair<'_> {
    fn name(&self, session: usize) -> Option<String> {
        self.recorded.0.sessions[session].name.clone()
    }

    fn sessions(&self) -> impl Iterator<Item = usize> {
        (0..self.shown.len()).filter(|session| self.shown[*session])
    }
}

fn turns(pair: &Pair<'_>) -> Vec<Vec<Cell>> {
    let ((recorded, requests), (served, workload)) = (pair.recorded, pair.served);
    let found = found_tokens(served, workload, None);
    let found_before = found_tokens(recorded, requests, None);
    let mut told = HashMap::<u64, [u32; 3]>::new();
    for effect in pair.effects {
        let sums = told.entry(effect.request_id).or_default();
        for (sum, more) in sums.iter_mut().zip([effect.removed_tokens, effect.added_tokens, effect.lost_prefix_tokens])
        {
            *sum = sum.saturating_add(more);
        }
    }
    let bytes = |prompt: u32, output: u32| {
        pair.found.plan.footprint(prompt, prompt.saturating_add(output.saturating_sub(1)), true)
    };
    let shown = served.turns.iter().enumerate().filter(|(_, turn)| pair.shown[turn.session as usize]);
    shown
        .map(|(at, turn)| {
            let was = turn.recorded.map(|origin| requests.prompt[origin as usize]);
            let pause = workload.turns.basis.get(at).and_then(|pause| pause.name());
            let [removed, added, lost] = told.get(&turn.request_id).copied().unwrap_or_default();
            vec![
                pair.number.into(),
                turn.request_id.into(),
                turn.session.into(),
                pair.name(turn.session as usize).into(),
                turn.turn.into(),
                turn.role.name().into(),
                turn.arrival_ns.into(),
                turn.idle_ns.into(),
                pause.map(|_| workload.turns.pause_ns[at]).into(),
                pause.into(),
                turn.basis.name().into(),
                was.into(),
                workload.prompt[at].into(),
                turn.output.into(),
                turn.recorded.map(|_| turn.kept_tokens).into(),
                turn.broke_at_tokens.into(),
                removed.into(),
                added.into(),
                lost.into(),
                turn.recorded.map(|origin| found_before[origin as usize]).into(),
                found[at].into(),
                was.map(|was| bytes(was, turn.output)).into(),
                bytes(workload.prompt[at], turn.output).into(),
            ]
        })
        .collect()
}

fn edits(pair: &Pair<'_>) -> Vec<Vec<Cell>> {
    let stages = pair.scenario.policy.stages();
    let each = pair.effects.iter().map(|effect| {
        vec![
            pair.number.into(),
            stages[effect.stage].args.text().into(),
            effect.session.into(),
            effect.turn.into(),
            effect.request_id.into(),
            effect.action.into(),
            effect.removed_tokens.into(),
            effect.removed_prefix_tokens.into(),
            effect.added_tokens.into(),
            effect.added_prefix_tokens.into(),
            effect.broke_at_tokens.into(),
            effect.lost_prefix_tokens.into(),
            effect.extra_requests.into(),
            effect.extra_prompt_tokens.into(),
            effect.extra_output_tokens.into(),
            Certainty::Assumed.name().into(),
        ]
    });
    each.collect()
}

/// What requests cost, as recorded and as served, to one payee in one state of the cache.
struct Bill {
    payee: String,
    cache: &'static str,
    recorded: ByTurn<i64>,
    served: ByTurn<i64>,
    /// By session the turns until break-even by the formula; `None` where it is not computed.
    formula: Vec<Option<Even>>,
    is_time: bool,
    certainty: Certainty,
}

/// When a change has paid for itself by the formula.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Even {
    /// After so many turns.
    After(f64),
    Never,
}

fn costs(pair: &Pair<'_>, tariffs: &[ApiPrices], recorded: Option<&[Served]>) -> Vec<Vec<Cell>> {
    let mut bills = own_bills(pair);
    bills.extend(recorded.map(|recorded| replay_bill(pair, recorded)));
    for tariff in tariffs {
        bills.extend(tariff_bills(pair, tariff));
    }
    let mut rows = Vec::new();
    for session in pair.sessions() {
        rows.extend(bills.iter().map(|bill| cost_row(pair, session, bill)));
    }
    rows
}

/// When each session's stages have paid for themselves by the formula; `of` is what a change of a request, by its id, makes of
/// its cost, `costs` are those of the requests as served.
fn formula(pair: &Pair<'_>, costs: &[i64], of: &dyn Fn(u64, Moved) -> Option<Change>) -> Vec<Option<Even>> {
    let mut first: Vec<Option<u32>> = vec![None; pair.shown.len()];
    let mut moved: BTreeMap<(u32, u32), (u64, Moved)> = BTreeMap::new();
    for effect in pair.effects {
        let first = &mut first[effect.session as usize];
        if effect.action.is_some() {
            *first = Some(first.map_or(effect.turn, |first| first.min(effect.turn)));
        }
        let sum = moved.entry((effect.session, effect.turn)).or_insert((effect.request_id, Moved::default()));
        sum.1 = sum.1.plus(Moved::by(effect));
    }
    let extras = extras(pair.served.0, costs);
    let each = (0_u32..).zip(&first).map(|(session, first)| {
        let turns = (*first)?..pair.recorded.0.sessions[session as usize].turns;
        let of_turn = turns.map(|turn| {
            let known = moved.get(&(session, turn)).map_or(Some(Change::default()), |(id, moved)| of(*id, *moved))?;
            let extra = extras.get(&(session, turn)).copied().unwrap_or(0);
            Some(Change { now: known.now + extra as f64, ..known })
        });
        let changes: Option<Vec<Change>> = of_turn.collect();
        Some(break_even_by_formula(&changes?).map_or(Even::Never, Even::After))
    });
    each.collect()
}

fn tariff_bills(pair: &Pair<'_>, tariff: &ApiPrices) -> Vec<Bill> {
    let ((recorded, requests), (served, workload)) = (pair.recorded, pair.served);
    let lives = [("warm", Some(None)), ("life", Some(Some(tariff.life_ns))), ("cold", None)];
    lives
        .into_iter()
        .map(|(cache, life)| {
            let found = |trace: &Trace, workload: &Workload| life.map(|life| found_tokens(trace, workload, life));
            let before = charged(tariff, requests, found(recorded, requests).as_deref());
            let after = charged(tariff, workload, found(served, workload).as_deref());
            let rates = match cache {
                "warm" => Some(((tariff.written_nusd - tariff.cached_nusd) as f64, tariff.cached_nusd as f64)),
                "cold" => Some((0.0, tariff.input_nusd as f64)),
                _ => None,
            };
            Bill {
                payee: tariff.name.clone(),
                cache,
                formula: formula(pair, &after, &|_, moved| rates.map(|(again, each)| change(moved, again, each))),
                recorded: by_turn(recorded, before.into_iter().map(Some)),
                served: by_turn(served, after.into_iter().map(Some)),
                is_time: false,
                certainty: tariff.certainty,
            }
        })
        .collect()
}

fn own_bills(pair: &Pair<'_>) -> Vec<Bill> {
    let ((recorded, requests), (served, workload)) = (pair.recorded, pair.served);
    let plan = &pair.found.plan;
    let places: HashMap<u64, usize> = workload.request_ids.iter().copied().zip(0..).collect();
    let caches = [("warm", true), ("cold", false)];
    caches
        .into_iter()
        .map(|(cache, prefix_cache)| {
            let rules = Rules { prefix_cache: prefix_cache && pair.scenario.rules.prefix_cache, ..pair.scenario.rules };
            let (before, after) = (alone(plan, requests, &rules), alone(plan, workload, &rules));
            let costs: Vec<i64> = after.iter().map(|cost| cost.unwrap_or(0)).collect();
            let found = rules.prefix_cache.then(|| found_tokens(served, workload, None));
            let of = |id: u64, moved: Moved| {
                let at = places.get(&id).copied()?;
                let (prompt, output) = (workload.prompt[at], workload.output[at]);
                let computed = prompt - found.as_ref().map_or(0, |found| found[at]).min(prompt);
                // Without a cache all of a prompt is computed, as before.
                let moved = if rules.prefix_cache { moved } else { Moved { written: moved.prompt, ..moved } };
                own_change(plan, rules.step_tokens, moved, Asked { prompt, computed, output })
            };
            Bill {
                payee: "own".to_owned(),
                cache,
                formula: formula(pair, &costs, &of),
                recorded: by_turn(recorded, before),
                served: by_turn(served, after),
                is_time: true,
                certainty: plan.certainty,
            }
        })
        .collect()
}

/// What requests took of the machine in the scenario's own replay, which they share.
fn replay_bill(pair: &Pair<'_>, recorded: &[Served]) -> Bill {
    let of = |served: &Served| (served.fate == Fate::Finished).then(|| served.machine_ns.round() as i64);
    Bill {
        payee: "own".to_owned(),
        cache: "replay",
        formula: vec![None; pair.shown.len()],
        recorded: by_turn(pair.recorded.0, recorded.iter().map(of)),
        served: by_turn(pair.served.0, pair.found.outcome.served.iter().map(of)),
        is_time: true,
        certainty: pair.found.plan.certainty,
    }
}

fn cost_row(pair: &Pair<'_>, session: usize, bill: &Bill) -> Vec<Cell> {
    let (recorded, served) = (bill.recorded.of(session), bill.served.of(session));
    let sum = |costs: &[Option<i64>]| costs.iter().try_fold(0_i64, |sum, cost| Some(sum.saturating_add((*cost)?)));
    let (before, after) = (sum(recorded), sum(served));
    // The time of an instance costs what its accelerators do; unknown where instances differ in size.
    let size = pair.scenario.parallel.accelerators();
    let is_alike = pair.scenario.prefill.as_ref().is_none_or(|prefill| prefill.parallel.accelerators() == size);
    let price = pair.found.price.usd_per_accelerator_hour.as_ref().filter(|_| is_alike);
    let usd_per_ns = price.map(|price| price.value * f64::from(size) / 3600e9);
    let usd = |cost: Option<i64>| {
        let factor = if bill.is_time { usd_per_ns } else { Some(1e-9) };
        cost.zip(factor).map(|(cost, factor)| cost as f64 * factor)
    };
    let ns = |cost: Option<i64>| cost.filter(|_| bill.is_time);
    let saved = before.zip(after).map(|(before, after)| before.saturating_sub(after));
    let own: Vec<&Effect> = pair.effects.iter().filter(|effect| effect.session as usize == session).collect();
    let first = own.iter().filter(|effect| effect.action.is_some()).map(|effect| effect.turn).min();
    let even = first.and_then(|first| break_even(recorded, served, first as usize));
    let formula = match bill.formula[session] {
        Some(Even::After(turns)) => Some(turns),
        Some(Even::Never) | None => None,
    };
    let stage = own.iter().map(|_| Certainty::Assumed).next();
    vec![
        pair.number.into(),
        (session as u32).into(),
        pair.name(session).into(),
        bill.payee.clone().into(),
        bill.cache.into(),
        pair.recorded.0.sessions[session].turns.into(),
        usd(before).into(),
        usd(after).into(),
        usd(saved).into(),
        ns(before).into(),
        ns(after).into(),
        ns(saved).into(),
        first.into(),
        own.iter().map(|effect| effect.extra_requests).sum::<u32>().into(),
        even.into(),
        formula.into(),
        saved.map(|saved| saved < 0).into(),
        why(&own, saved, (even, bill.formula[session]), recorded.len()).into(),
        stage.map_or(bill.certainty, |stage| stage.min(bill.certainty)).name().into(),
    ]
}

/// What made a session cheaper or dearer, in words; `even` and `formula` are when it had paid for itself, in the replay and by
/// the formula, `turns` the recorded ones.
fn why(own: &[&Effect], saved: Option<i64>, (even, formula): (Option<f64>, Option<Even>), turns: usize) -> String {
    let actions = own.iter().filter(|effect| effect.action.is_some());
    let Some(first) = actions.clone().map(|effect| effect.turn).min() else {
        return if own.is_empty() { "no stage acted" } else { "stages acted in other sessions only" }.to_owned();
    };
    let sum = |of: fn(&Effect) -> u64| own.iter().map(|effect| of(effect)).sum::<u64>();
    let paid = format!(
        "{} tokens computed and written again, {} put in and {} extra requests ({} tokens read, {} generated)",
        sum(|effect| effect.lost_prefix_tokens.into()),
        // What is put in stays in later turns; it is written in the turn of the action.
        actions.clone().map(|effect| u64::from(effect.added_tokens)).sum::<u64>(),
        sum(|effect| effect.extra_requests.into()),
        sum(|effect| effect.extra_prompt_tokens),
        sum(|effect| effect.extra_output_tokens),
    );
    // Served against recorded: what was put in stays in the prompts of later turns.
    let (removed, added) = (sum(|effect| effect.removed_tokens.into()), sum(|effect| effect.added_tokens.into()));
    let sign = if added > removed { "more" } else { "fewer" };
    let gained = format!("{} prompt tokens {sign} over {} turns", removed.abs_diff(added), turns - first as usize);
    match saved {
        None => format!("unknown: a request cannot be served or has no price; {paid} against {gained}"),
        Some(saved) if saved >= 0 => format!("cheaper: {gained} outweigh {paid}"),
        Some(_) => {
            let after = match (even, formula) {
                (Some(even), _) => format!("it had paid for itself after {even:.1} turns, until a later action"),
                (None, Some(Even::After(turns))) => {
                    format!("by the formula it would have paid for itself after {turns:.1} turns")
                }
                (None, Some(Even::Never)) => "by the formula it would never pay for itself".to_owned(),
                (None, None) => "it had not paid for itself when the session ended".to_owned(),
            };
            format!("dearer: {paid} outweigh {gained}; {after}")
        }
    }
}

/// KV bytes of a context of so many tokens.
fn bytes(plan: &Plan, tokens: u32) -> u64 {
    plan.footprint(tokens, tokens, true)
}

/// KV bytes that fit in the accelerators that attend to a session together: an instance is made of as many such groups as
/// attention is data-parallel over, and a session lives on one of them.
fn of_one_group(plan: &Plan) -> u64 {
    (plan.capacity_bytes as f64 / plan.data.max(1.0)) as u64
}

/// Sessions that fit at the mean KV of these prompts, for each accelerator of an instance.
fn fit(plan: &Plan, prompts: &[u32]) -> Option<f64> {
    let mean = prompts.iter().map(|prompt| bytes(plan, *prompt) as f64).sum::<f64>() / prompts.len() as f64;
    (mean > 0.0).then(|| plan.capacity_bytes as f64 / mean / plan.accelerators)
}

fn spans(pair: &Pair<'_>, baseline: Option<(&Scenario, &Found)>) -> Vec<Vec<Cell>> {
    let (before, after) = (span::prompts(pair.recorded.0), span::prompts(pair.served.0));
    let ages = span::ages(pair.recorded.0, pair.served.0);
    let plan = &pair.found.plan;
    // Another model's memory says nothing about this one's.
    let base = baseline.filter(|(scenario, _)| scenario.model.name == pair.scenario.model.name);
    let base = base.map(|(_, found)| &found.plan);
    let most = |of: &Plan, capacity: u64| span::most_tokens(&|tokens| bytes(of, tokens), capacity);
    let base_in_base = base.map(|base| most(base, of_one_group(base)));
    let base_here = base.map(|base| most(base, of_one_group(plan)));
    let here_in_base = base.map(|base| most(plan, of_one_group(base)));
    let here = most(plan, of_one_group(plan));
    let growth = |plan: &Plan, prompts: &[u32]| {
        let values: Vec<f64> = prompts.iter().map(|prompt| bytes(plan, *prompt) as f64).collect();
        span::slope(&values)
    };
    let tokens = |prompts: &[u32]| span::slope(&prompts.iter().map(|prompt| f64::from(*prompt)).collect::<Vec<f64>>());
    let row = |session: usize| {
        let (was, is, ages) = (&before[session], &after[session], ages[session]);
        vec![
            pair.number.into(),
            (session as u32).into(),
            pair.name(session).into(),
            (was.len() as u32).into(),
            was.iter().max().copied().unwrap_or(0).into(),
            is.iter().max().copied().unwrap_or(0).into(),
            tokens(was).into(),
            tokens(is).into(),
            base.and_then(|base| growth(base, was)).into(),
            growth(plan, is).into(),
            base.map(|base| base.capacity_bytes).into(),
            plan.capacity_bytes.into(),
            base_in_base.and_then(|most| span::turns_until(was, most)).into(),
            base_here.and_then(|most| span::turns_until(was, most)).into(),
            here_in_base.and_then(|most| span::turns_until(is, most)).into(),
            span::turns_until(is, here).into(),
            base.and_then(|base| fit(base, was)).into(),
            fit(plan, is).into(),
            ages.verbatim.into(),
            ages.summarised.into(),
            ages.recallable.into(),
            ages.lost.into(),
        ]
    };
    pair.sessions().map(row).collect()
}

fn memories(pair: &Pair<'_>) -> Vec<Vec<Cell>> {
    let found = memory::memories(pair.recorded.0, pair.served.0);
    let row = |session: usize| {
        let memory = &found[session];
        let evidence = memory.evidence?;
        let per_turn = |tokens: u64| tokens as f64 / memory.turns.max(1) as f64;
        Some(vec![
            pair.number.into(),
            (session as u32).into(),
            pair.name(session).into(),
            evidence.name().into(),
            memory.needed_tokens.into(),
            memory.present_tokens.into(),
            memory.recall().into(),
            memory.precision().into(),
            memory.density().into(),
            memory.reread().into(),
            memory.duplicate_tokens.map(per_turn).into(),
            memory.loaded_tokens.into(),
        ])
    };
    pair.sessions().filter_map(row).collect()
}

fn keeping(pair: &Pair<'_>) -> Result<Vec<Vec<Cell>>> {
    let (trace, workload) = pair.served;
    let unit_bytes = u64::from(workload.unit_tokens) * pair.found.plan.growing_bytes();
    let Some(blocks) = pair.found.plan.capacity_bytes.checked_div(unit_bytes) else { return Ok(Vec::new()) };
    let sessions = Sessions::new(trace.turns.iter().map(|turn| turn.session).collect());
    let accesses = Accesses::with_sessions(workload, Some(&sessions));
    let most = usize::try_from(blocks).unwrap_or(usize::MAX).min(workload.distinct_units as usize);
    let each = KEEPING.iter().map(|text| {
        let rule = cache::Rule::parse(text)?;
        let counts = cache::replay(&rule, &accesses, most)?;
        Ok(vec![
            pair.number.into(),
            rule.text().into(),
            blocks.into(),
            counts.accesses.into(),
            counts.hits.into(),
            counts.token_ratio().into(),
            counts.evictions.into(),
            counts.drops.into(),
        ])
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Parallel, plan};
    use crate::model::WeightDtype;
    use crate::policy::{Stack, shape};

    /// Llama 3.1 8B on H100s.
    fn spread(parallel: Parallel) -> Plan {
        let model_text = include_str!("../../../presets/model/llama-3.1-8b.toml");
        let machine_text = include_str!("../../../presets/machine/h100.toml");
        let model = crate::model::parse(model_text, "model").unwrap();
        let read = |_: &str| Some((machine_text.to_owned(), "machine".to_owned()));
        let machine = crate::machine::resolve("h100", &read).unwrap();
        let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
        plan(&model, &shape, &machine, WeightDtype::Bf16, parallel).unwrap()
    }

    #[test]
    fn a_session_lives_on_one_group_and_sessions_share_all_accelerators() {
        let of = |tensor, data, pipeline| spread(Parallel { tensor, data, pipeline, ..Parallel::default() });
        let (one, data, tensor, stages) = (of(1, 1, 1), of(1, 2, 1), of(2, 1, 1), of(1, 1, 2));
        let prompts = [40_000, 50_000, 60_000];
        let near = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-6, "{one} instead of {other}");
        let fits = |plan: &Plan| fit(plan, &prompts).unwrap();
        near(fits(&data), fits(&one));
        near(fits(&stages), fits(&tensor));
        // Weights are there once for two accelerators.
        assert!(fits(&stages) > fits(&one) && fits(&stages) < 2.0 * fits(&one));
        let turns = |plan: &Plan| {
            span::turns_until(&prompts, span::most_tokens(&|tokens| bytes(plan, tokens), of_one_group(plan))).unwrap()
        };
        near(turns(&data), turns(&one));
        near(turns(&stages), turns(&tensor));
        assert!(turns(&stages) > turns(&one));
    }

    fn acted(turn: u32, action: Option<&'static str>, removed_tokens: u32, added_tokens: u32) -> Effect {
        let (stage, request_id, session) = (0, u64::from(turn), 0);
        let (removed_prefix_tokens, added_prefix_tokens, broke_at_tokens, lost_prefix_tokens) = (0, 0, 0, 7);
        let (extra_requests, extra_prompt_tokens, extra_output_tokens) = (0, 0, 0);
        Effect {
            stage,
            request_id,
            session,
            turn,
            action,
            removed_tokens,
            removed_prefix_tokens,
            added_tokens,
            added_prefix_tokens,
            broke_at_tokens,
            lost_prefix_tokens,
            extra_requests,
            extra_prompt_tokens,
            extra_output_tokens,
        }
    }

    #[test]
    fn why_says_never_only_where_that_was_computed() {
        let effect = acted(3, Some("cleared"), 100, 10);
        let of = |even| why(&[&effect], Some(-1), even, 5);
        assert!(of((None, Some(Even::Never))).ends_with("; by the formula it would never pay for itself"));
        assert!(of((None, Some(Even::After(9.0)))).contains("by the formula it would have paid"));
        assert!(of((None, None)).ends_with("; it had not paid for itself when the session ended"));
        assert!(of((Some(1.0), None)).contains("it had paid for itself after 1.0 turns"));
    }

    #[test]
    fn why_counts_what_was_put_in_in_every_turn() {
        let (first, later) = (acted(3, Some("compacted"), 100, 30), acted(4, None, 100, 30));
        let text = why(&[&first, &later], Some(1), (None, None), 5);
        assert!(text.starts_with("cheaper: 140 prompt tokens fewer over 2 turns outweigh 14 tokens"), "{text}");
        assert!(text.contains("14 tokens computed and written again, 30 put in"), "{text}");
        let longer = acted(3, Some("loaded"), 0, 30);
        assert!(why(&[&longer], Some(1), (None, None), 5).contains("30 prompt tokens more over 2 turns"));
    }

    #[test]
    fn equal_plain_twins_are_replayed_once() {
        let mut replayed = Vec::new();
        let found = each_once(&[7, 9, 7, 7, 8], |at| {
            replayed.push(at);
            at * 10
        });
        assert_eq!((found, replayed), (vec![0, 10, 0, 0, 40], vec![0, 1, 4]));
    }
}
