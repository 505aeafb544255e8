//! The stage `h2o`: keeps the heavy hitters and the last tokens (`H2O`).
//!
//! Each token's attention is added up from the prompt's first query on. At the end of the prompt the budget is filled with
//! the last tokens and those of the largest sums; while decoding, each step's mass is renormalised over what is kept and
//! added, and after the step the token with the smallest sum outside the last ones gives way. Sums favour early tokens, which
//! more queries have seen; `score=mean` divides by how many could (kvpress, observed attention).
//!
//! On block recordings the sum is the block's, and `score=mean` divides, while decoding, by the queries that all of its
//! tokens together could be seen by.

use super::select::Units;
use super::{Args, COLUMN_SUM, Choice, Deployment, Floor, Keep, Kept, Kind, Param, Part, Rule, Selection};
use crate::error::Result;
use crate::recording::{Head, Step};

/// `h2o(budget,recent=50%,score=sum,evict=yes)`.
pub(super) static KIND: Kind = Kind {
    name: "h2o",
    doc: "Keeps the tokens that got the most attention so far and the last ones, per KV head; evicts while decoding.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Tokens kept, such as `1024`, `4k` (4000), or a share of the prompt.",
        },
        Param { name: "recent", default: "50%", doc: "Share of the budget that the last tokens take." },
        Param {
            name: "score",
            default: "sum",
            doc: "`sum` of the attention got, or its `mean` over the queries that could see the token.",
        },
        EVICT,
    ],
    needs: &[&COLUMN_SUM],
    source: "H2O (arXiv 2306.14048); `score=mean` as kvpress's observed attention; equal halves are recalled, not read",
    deployment: Deployment {
        engines: "research code: kvpress, KVCache-Factory; needs the attention matrix, which fused kernels do not write",
        ..Deployment::NONE
    },
    make,
};

/// Whether decoding evicts, or what is kept of the prompt stays.
pub(super) const EVICT: Param = Param {
    name: "evict",
    default: "yes",
    doc: "`yes`, or `no` to choose once at the end of the prompt and keep all generated tokens.",
};

fn make(args: &Args) -> Result<Rule> {
    args.budget("budget")?;
    args.word("evict", &["yes", "no"])?;
    args.share("recent")?;
    args.word("score", &["sum", "mean"])?;
    // One 4-byte sum per token and KV head.
    let kept = Kept::Parts(|args, place| {
        let budget = args.budget("budget")?;
        let keep = if args.is_word("evict", "no") { Keep::of_prompt(budget) } else { Keep::fixed(budget) };
        Ok(vec![Part { index_bytes: 4 * u64::from(place.kv.kv_heads), ..Part::all_heads(place, keep) }])
    });
    let choice = Choice { prompt: Some(choose), after: Some(evict), ..Choice::NONE };
    Ok(Rule::Select(Selection { kept, ..Selection::plain(choice) }))
}

/// The budget in tokens and those of them that the last ones take.
fn counts(args: &Args, prompt: u32) -> Result<(u32, u32)> {
    let budget = args.budget("budget")?.room(prompt);
    Ok((budget, (f64::from(budget) * args.share("recent")?) as u32))
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        let prompt = head.request.prompt_tokens;
        let (budget, recent) = counts(args, prompt)?;
        if budget >= head.longest_context() || budget >= prompt && args.is_word("evict", "no") {
            continue;
        }
        let sums = head.score("h2o", &COLUMN_SUM, 0)?;
        if args.is_word("score", "mean") {
            // Token i of a prompt of n tokens is seen by n - i queries.
            let means: Vec<f32> = sums.iter().zip((1..=prompt).rev()).map(|(sum, seen)| sum / seen as f32).collect();
            units.keep_of_prompt(prompt, budget, (0, recent), &means);
        } else {
            units.keep_of_prompt(prompt, budget, (0, recent), sums);
        }
        units.begin_sums(sums);
    }
    Ok(())
}

fn evict(args: &Args, heads: &[Head<'_>], steps: &[Step<'_>], units: &mut [Units]) -> Result<()> {
    if args.is_word("evict", "no") {
        return Ok(());
    }
    let Some(first) = heads.first() else { return Ok(()) };
    let (budget, recent) = counts(args, first.request.prompt_tokens)?;
    let is_mean = args.is_word("score", "mean");
    for (step, units) in steps.iter().zip(units) {
        let context = step.context_tokens;
        if units.sums.is_empty() {
            continue;
        }
        units.add_step(step);
        if context <= budget {
            continue;
        }
        let before = units.recent_from(context, recent);
        let count = units.within(budget).max(units.of(context) - before).max(1);
        if is_mean {
            let unit = units.tokens;
            let seen = |at: usize| seen(at as u32 * unit, unit, context);
            units.drop_least_by(before, count, |at, sum| sum / seen(at));
        } else {
            units.drop_least(before, count);
        }
    }
    Ok(())
}

/// Queries that could see the tokens of a unit that begins at `first`, counted for each token.
fn seen(first: u32, unit: u32, context: u32) -> f64 {
    let tokens = f64::from(unit.min(context.saturating_sub(first)));
    tokens * f64::from(context - first.min(context)) - tokens * (tokens - 1.0) / 2.0
}
