//! The stage `expected_attention`: keeps what queries to come are expected to look at (Expected Attention).
//!
//! The recorded score is the softmax of the expected logits; here `eps` is added, it is multiplied by the norm of V, and the
//! sinks are kept in any case. The score asks no query of its own, so it does not favour the last question.

use super::select::Units;
use super::{Args, Choice, Deployment, EXPECTED_ATTENTION, Floor, Keep, Kind, Param, Rule, Selection, V_NORM};
use crate::error::{Error, Result};
use crate::model::KvShape;
use crate::recording::Head;

/// `expected_attention(budget,sinks=4,eps=0)`.
pub(super) static KIND: Kind = Kind {
    name: "expected_attention",
    doc: "Keeps the prompt tokens that later queries are expected to attend to, weighted by the norm of V.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept, such as `1024` or `4k` (4000), or a share of the prompt such as `25%`.",
        },
        Param { name: "sinks", default: "4", doc: "First tokens, which are kept." },
        Param { name: "eps", default: "0", doc: "Added to each score before it is multiplied by the norm of V." },
    ],
    needs: &[&EXPECTED_ATTENTION, &V_NORM],
    source: "Expected Attention (arXiv 2510.00636), as in kvpress",
    deployment: Deployment { engines: "research code: kvpress", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let keep = Keep::of_prompt(args.budget("budget")?);
    args.count("sinks", 0, u32::MAX)?;
    args.number("eps", 0.0, 1.0)?;
    // The covariance of the queries and the quadratic form of each key: `dim^2` multiply-adds per head and token each.
    let score_flops = |_: &Args, kv: &KvShape| {
        2.0 * f64::from(kv.query_heads + kv.kv_heads) * f64::from(kv.key_dim) * f64::from(kv.key_dim)
    };
    Ok(Rule::Select(Selection { score_flops, ..Selection::same(keep, Choice::of_prompt(choose)) }))
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        if budget < prompt {
            let scores = scores(args, head, args.number("eps", 0.0, 1.0)?)?;
            let sinks = args.count("sinks", 0, u32::MAX)?.min(budget);
            units.keep_of_prompt(prompt, budget, (sinks, 0), &scores);
        }
    }
    Ok(())
}

/// The score of each prompt token.
pub(super) fn scores(args: &Args, head: &Head<'_>, eps: f64) -> Result<Vec<f32>> {
    let stage = args.kind().name;
    let expected = head.score(stage, &EXPECTED_ATTENTION, 0)?;
    let (_, values) = head.norms().ok_or_else(|| {
        let message = format!(
            "`{stage}` needs channel `{}` for {}, but the recording does not have it",
            V_NORM.name,
            head.place()
        );
        Error::run(message).hint(V_NORM.how)
    })?;
    Ok(expected.iter().zip(values).map(|(score, norm)| (score + eps as f32) * norm).collect())
}
