//! The stage `kvzip`: keeps what the model looks at when it repeats the prompt, over all layers and heads together (`KVzip`).
//!
//! Its scores come from a second pass over the prompt, two to three times the cost of the prefill; a normal trace has none.

use std::borrow::Cow;

use super::select::{Units, count_best, need_whole_requests, sums_of};
use super::{Args, Channel, Choice, Deployment, Floor, Kept, Kind, MASS, Param, REPEAT_CONTEXT, Rule, Selection};
use crate::error::Result;
use crate::model::KvShape;
use crate::recording::Head;

/// `kvzip(budget,sinks=4,scope=model)`.
pub(super) static KIND: Kind = Kind {
    name: "kvzip",
    doc: "Keeps the prompt tokens that matter for repeating the prompt, ranked over all layers and KV heads together.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept per head in the mean, such as `1024`, `4k` (4000), or a share such as `25%`.",
        },
        Param { name: "sinks", default: "4", doc: "First tokens, which are kept in every head." },
        Param { name: "scope", default: "model", doc: "What is ranked together: the whole `model`, or each `layer`." },
    ],
    needs: &[&MASS, &REPEAT_CONTEXT],
    source: "KVzip (arXiv 2505.23416), as in kvpress",
    deployment: Deployment { engines: "research code: KVzip, kvpress", ..Deployment::NONE },
    make,
};

/// Prefills that the pass which repeats the prompt costs (kvpress warns of 2 to 3).
const REPEATS: f64 = 2.5;

static NEEDS: [&Channel; 2] = [&MASS, &REPEAT_CONTEXT];

fn make(args: &Args) -> Result<Rule> {
    args.budget("budget")?;
    args.count("sinks", 0, u32::MAX)?;
    args.word("scope", &["model", "layer"])?;
    let choice = Choice { budgets: Some(budgets), prompt: Some(choose), ..Choice::NONE };
    // Of the repeated prefill only attention between chunks of 2,048 tokens and the prompt is counted here, 2,048 keys each.
    let score_flops = |_: &Args, kv: &KvShape| REPEATS * 2.0 * 2048.0 * kv.prefill_macs_per_pair;
    let kept = Kept::Measured(&NEEDS);
    Ok(Rule::Select(Selection { kept, score_flops, ..Selection::plain(choice) }))
}

/// Prompt tokens that each head keeps: whole units of them.
fn budgets(args: &Args, heads: &[Head<'_>], budgets: &mut Vec<u32>) -> Result<()> {
    need_whole_requests("kvzip", heads)?;
    let Some(first) = heads.first() else { return Ok(()) };
    let prompt = first.request.prompt_tokens;
    let budget = args.budget("budget")?.tokens(prompt);
    if budget >= prompt {
        budgets.extend(heads.iter().map(|_| prompt));
        return Ok(());
    }
    let units = Units::new(first.unit_tokens());
    let sinks = args.count("sinks", 0, u32::MAX)?.min(budget);
    let (from, to) = units.middle(prompt, sinks, 0);
    let forced = from + units.of(prompt) - to;
    let each = units.within(budget).max(forced).max(1);
    let is_layerwise = args.is_word("scope", "layer");
    let (mut lists, mut counts) = (Vec::new(), Vec::new());
    for together in heads.chunk_by(|a, b| !is_layerwise || a.layer == b.layer) {
        lists.clear();
        for head in together {
            lists.push(sums_of(head.score("kvzip", &REPEAT_CONTEXT, 0)?, units.tokens, (from, to)));
        }
        count_best(lists.iter().map(Cow::as_ref), together.len() * (each - forced), &mut counts);
        budgets.extend(counts.iter().map(|count| (forced as u32 + count).saturating_mul(units.tokens)));
    }
    Ok(())
}

fn choose(args: &Args, heads: &[Head<'_>], budgets: &[u32], units: &mut [Units]) -> Result<()> {
    for ((head, units), kept) in heads.iter().zip(units).zip(budgets) {
        let prompt = head.request.prompt_tokens;
        let even = args.budget("budget")?.tokens(prompt);
        if even < prompt {
            let sinks = args.count("sinks", 0, u32::MAX)?.min(even);
            units.keep_of_prompt(prompt, *kept, (sinks, 0), head.score("kvzip", &REPEAT_CONTEXT, 0)?);
        }
    }
    Ok(())
}
