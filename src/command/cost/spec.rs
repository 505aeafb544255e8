//! What a specification delivers: more bandwidth, link, compute or capacity, and which booth holds the rest.
//!
//! Bandwidth, link and compute are multiplied at the same batch and context; `delivered` is then how many times faster the
//! step is. More capacity makes no step faster: it admits more requests, so each row has the largest batch that fits, and
//! `delivered` is how many times as many tokens per second that gives.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array};
use engine::cost::{Field, Plan};
use engine::error::Result;
use engine::machine::{FACTORS, Resource};

use super::{Figures, Placed, Source, Steps, Subject, bound_by, figure, names, ns, priced, word_column};

/// More requests than an engine runs at once, where the context is so short that they would fit.
const MOST_REQUESTS: u64 = 1 << 16;

/// The table, one batch of rows per machine, resource and factor.
pub(super) fn table(
    source: &mut Source,
    subject: &Subject,
    placed: &[Placed],
    steps: &Steps,
) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for placed in placed {
        for resource in Resource::ALL {
            let mut varied = |factor: &f64| {
                let machine = resource.times(&placed.machine, *factor);
                source.plan(subject, &machine, placed.parallel)
            };
            let plans: Vec<Plan> = FACTORS.iter().map(&mut varied).collect::<Result<_>>()?;
            let outcomes = outcomes(resource, &plans, steps)?;
            for ((factor, plan), outcome) in FACTORS.iter().zip(&plans).zip(&outcomes) {
                let base = outcomes.first().unwrap_or(outcome);
                batches.push(rows(subject, placed, plan, (resource, *factor), base, outcome)?);
            }
        }
    }
    Ok(batches)
}

/// Steps and what they cost.
struct Outcome {
    steps: Steps,
    figures: Figures,
}

/// The steps under each plan: the same ones, or those that capacity admits.
fn outcomes(resource: Resource, plans: &[Plan], steps: &Steps) -> Result<Vec<Outcome>> {
    if resource != Resource::Capacity {
        let figures = priced(plans, steps)?;
        return Ok(figures.into_iter().map(|figures| Outcome { steps: steps.clone(), figures }).collect());
    }
    let mut contexts = steps.context.clone();
    contexts.sort_unstable();
    contexts.dedup();
    let mut outcomes = Vec::new();
    for plan in plans {
        let most = |context: &u32| {
            let each = plan.footprint(*context, *context, true).max(1);
            (plan.capacity_bytes / each).min(MOST_REQUESTS) as u32
        };
        let steps = Steps { batch: contexts.iter().map(most).collect(), context: contexts.clone() };
        let figures = priced(std::slice::from_ref(plan), &steps)?;
        outcomes.extend(figures.into_iter().map(|figures| Outcome { steps: steps.clone(), figures }));
    }
    Ok(outcomes)
}

fn rows(
    subject: &Subject,
    placed: &Placed,
    plan: &Plan,
    (resource, factor): (Resource, f64),
    base: &Outcome,
    outcome: &Outcome,
) -> Result<RecordBatch> {
    let Outcome { steps, figures } = outcome;
    let total = figure(figures, Field::Total);
    let count = total.len();
    // Tokens per nanosecond; none where not one request fits.
    let rate = |outcome: &Outcome, row: usize| {
        let batch = outcome.steps.batch.get(row).copied().filter(|batch| *batch > 0)?;
        let total = figure(&outcome.figures, Field::Total).get(row)?;
        Some(f64::from(batch) / total)
    };
    let delivered = |row: usize| Some(rate(outcome, row)? / rate(base, row)?);
    let known =
        |of: &dyn Fn(usize) -> Option<f64>| -> ArrayRef { Arc::new((0..count).map(of).collect::<Float64Array>()) };
    let held = |row: usize| bound_by(figures, row);
    let mut columns = names(subject, placed, count);
    let own: [(&'static str, ArrayRef); 11] = [
        ("resource", Arc::new(StringArray::from_iter_values(std::iter::repeat_n(resource.name(), count)))),
        ("factor", Arc::new(Float64Array::from_iter_values(std::iter::repeat_n(factor, count)))),
        ("batch", Arc::new(UInt32Array::from(steps.batch.clone()))),
        ("context_tokens", Arc::new(UInt32Array::from(steps.context.clone()))),
        ("step_ns", ns(total)),
        ("tokens_per_s", known(&|row| rate(outcome, row).map(|rate| rate * 1e9))),
        ("delivered", known(&delivered)),
        ("delivered_ratio", known(&|row| delivered(row).map(|times| times / factor))),
        ("held_by", Arc::new(StringArray::from_iter_values((0..count).map(|row| held(row).0)))),
        ("held_ratio", known(&|row| Some(held(row).1 / total[row]))),
        ("certainty", word_column(plan, count)),
    ];
    columns.extend(own);
    Ok(RecordBatch::try_from_iter(columns)?)
}
