//! What a replay says of its scenarios on standard error.

use std::collections::BTreeSet;

use engine::cost::BLOCK_TOKENS;
use engine::error::Result;
use engine::model::Model;
use engine::replay::{Found, Scenario, Source, is_silent, of_users};
use engine::serving::Fate;
use engine::workload::Workload;

use crate::command::{Exit, talk};

/// Says which requests are longer than the model's published context, once for each workload and model.
fn tell_of_lengths(sources: &[Source], scenarios: &[Scenario]) {
    let mut told = BTreeSet::new();
    for scenario in scenarios {
        let (workload, model) = (&sources[scenario.workload].workload, &scenario.model);
        if told.insert((scenario.workload, &model.name))
            && let Some(said) = too_long(workload, model)
        {
            talk::warn(&said);
        }
    }
}

/// What is said of requests beyond a model's published context; `None` where there are none, or it is not known.
fn too_long(workload: &Workload, model: &Model) -> Option<String> {
    let limit = model.context_tokens?;
    let (count, all) = (workload.beyond(limit), workload.len());
    let longest = workload.contexts().max().filter(|_| count > 0)?;
    let (are, requests) = if count == 1 { ("is", "request") } else { ("are", "requests") };
    Some(format!(
        "{count} of {all} {requests} of `{}` {are} longer than the {limit} tokens of context that {} is published for, the \
         longest of {longest} tokens; an engine would refuse such a request, the replay serves it",
        workload.name, model.name
    ))
}

/// Says of which requests no time to first token is known, since they generate nothing.
fn tell_silent(scenario: &Scenario, workload: &Workload, found: &Found) {
    let finished = || of_users(&found.outcome, workload).filter(|(_, served)| served.fate == Fate::Finished);
    let (silent, all) = (finished().filter(|(_, served)| is_silent(served)).count(), finished().count());
    if silent > 0 {
        talk::note(&format!(
            "`{}`: {silent} of {all} requests generate nothing and have no first token: what is said of it is of the other {}",
            scenario.name,
            all - silent
        ));
    }
}

/// Says what failed and what is overloaded.
pub(super) fn tell(sources: &[Source], scenarios: &[Scenario], found: &[Result<Found>]) -> Exit {
    let mut exit = Exit::Done;
    tell_of_lengths(sources, scenarios);
    for (scenario, found) in scenarios.iter().zip(found) {
        match found {
            Ok(found) => {
                let unit = sources[scenario.workload].workload.unit_tokens;
                if scenario.rules.prefix_cache && unit > 0 && !unit.is_multiple_of(BLOCK_TOKENS) {
                    talk::warn(&format!(
                        "`{}` shares no prefixes: the trace's blocks of {unit} tokens are no multiple of {BLOCK_TOKENS}",
                        scenario.name
                    ));
                }
                let rejected = found.outcome.served.iter().filter(|served| served.fate != Fate::Finished).count();
                if rejected > 0 {
                    talk::warn(&format!(
                        "`{}` turned {rejected} of {} requests away; `request_costs.reason` says why",
                        scenario.name,
                        found.outcome.served.len()
                    ));
                }
                tell_silent(scenario, &sources[scenario.workload].workload, found);
                if let Some(load) = found.offered_load.filter(|&load| load > 1.0) {
                    talk::warn(&format!(
                        "`{}` is offered {load:.2} times what it can serve, so its queue grows to the end; lower `--rate`",
                        scenario.name
                    ));
                }
            }
            Err(error) => {
                exit = Exit::Failed;
                talk::warn(&format!("`{}` failed: {error}", scenario.name));
                if let Some(advice) = error.advice() {
                    talk::note(&format!("  hint: {advice}"));
                }
            }
        }
    }
    exit
}
