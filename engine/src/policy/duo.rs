//! The stage `duo`: some heads keep everything, the others sinks and a window (`DuoAttention`).
//!
//! Which heads retrieve is learned once per model. The recording must hold it; for bytes the number of such heads is enough,
//! taken as spread evenly over the layers.

use super::select::{Units, need_whole_requests};
use super::{Args, Choice, Deployment, Floor, HEAD_RETRIEVAL, Keep, Kept, Kind, Param, Part, Place, Rule, Selection};
use crate::error::{Error, Result};
use crate::recording::{Head, Step};

/// `duo(retrieval=50%,sinks=128,recent=256)`.
pub(super) static KIND: Kind = Kind {
    name: "duo",
    doc: "Keeps everything in the heads that retrieve, and sinks and the last tokens in the others, also during prefill.",
    floor: Floor::Selection,
    params: &[
        Param { name: "retrieval", default: "50%", doc: "Share of heads that retrieve; published for grouped heads." },
        Param { name: "sinks", default: "128", doc: "First tokens that the other heads keep." },
        Param { name: "recent", default: "256", doc: "Last tokens that the other heads keep." },
    ],
    needs: &[&HEAD_RETRIEVAL],
    source: "DuoAttention (arXiv 2410.10819); sinks and recent as in kvpress",
    deployment: Deployment {
        per_model_constants: true,
        engines: "research code: DuoAttention, kvpress",
        ..Deployment::NONE
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    args.share("retrieval")?;
    total(args)?;
    let choice = Choice { budgets: Some(classes), step: Some(choose), ..Choice::NONE };
    Ok(Rule::Select(Selection { kept: Kept::Parts(parts), ..Selection::plain(choice) }))
}

/// Tokens that a streaming head keeps.
fn total(args: &Args) -> Result<u32> {
    let (sinks, recent) = (args.count("sinks", 0, u32::MAX)?, args.count("recent", 1, u32::MAX)?);
    let total = sinks.checked_add(recent);
    total.ok_or_else(|| Error::usage(format!("`duo`: {sinks} + {recent} tokens are too many")))
}

fn parts(args: &Args, place: &Place) -> Result<Vec<Part>> {
    split(args, place, Keep::at_most(total(args)?))
}

/// The heads of a layer that retrieve, and the others with what they keep. Of all heads `round(n * (1 - retrieval))` are
/// others; layers that do not divide evenly differ by one, the first ones having one more.
pub(super) fn split(args: &Args, place: &Place, others: Keep) -> Result<Vec<Part>> {
    let stage = args.kind().name;
    if place.kv.attention.is_latent() {
        return Err(Error::usage(format!("`{stage}` tells KV heads apart, but all heads share one latent in MLA"))
            .hint("use a stage that selects tokens for all heads, such as `snapkv`"));
    }
    let heads = place.kv.kv_heads;
    let streaming = streaming(args, u64::from(heads) * u64::from(place.layers))?;
    let layers = u64::from(place.layers.max(1));
    let here = (streaming / layers + u64::from(u64::from(place.layer) < streaming % layers)) as u32;
    let part = |kv_heads, keep| Part { kv_heads, ..Part::all_heads(place, keep) };
    let parts = [part(heads.saturating_sub(here), Keep::ALL), part(here, others)];
    Ok(parts.into_iter().filter(|part| part.kv_heads > 0).collect())
}

/// How many of so many heads do not retrieve.
fn streaming(args: &Args, heads: u64) -> Result<u64> {
    Ok((heads as f64 * (1.0 - args.share("retrieval")?)).round() as u64)
}

/// 1 for each head that retrieves and 0 for the others: those of the lowest scores, among equals the later heads.
pub(super) fn classes(args: &Args, heads: &[Head<'_>], classes: &mut Vec<u32>) -> Result<()> {
    let stage = args.kind().name;
    need_whole_requests(stage, heads)?;
    let mut scores = Vec::with_capacity(heads.len());
    for (head, at) in heads.iter().zip(0_u32..) {
        let score = head.score(stage, &HEAD_RETRIEVAL, 0)?.first().copied().unwrap_or(0.0).clamp(0.0, 1.0);
        scores.push((score.to_bits(), !at));
    }
    classes.resize(heads.len(), 1);
    let count = streaming(args, heads.len() as u64)? as usize;
    if count > 0 && count < scores.len() {
        scores.select_nth_unstable(count);
    }
    for (_, at) in scores.iter().take(count) {
        if let Some(class) = classes.get_mut(!*at as usize) {
            *class = 0;
        }
    }
    Ok(())
}

fn choose(args: &Args, _: &Head<'_>, class: u32, step: &Step<'_>, units: &mut Units) -> Result<()> {
    if class == 0 {
        units.keep_ends(step.context_tokens, args.count("sinks", 0, u32::MAX)?, total(args)?);
    }
    Ok(())
}
