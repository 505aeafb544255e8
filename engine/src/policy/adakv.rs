//! The stage `adakv`: the heads of a layer share one budget, so that heads whose attention is spread out keep more (`AdaKV`).
//!
//! It wraps a scorer. The scores of all heads of a layer are ranked together; `safeguard` is the share of an even budget that
//! each head keeps in any case, by its own best scores. The last `window` tokens of the prompt count as the best of all, as
//! `snapkv` keeps them. The layer as a whole keeps what an even split would.
//!
//! Heads of different lengths need a ragged layout (4 bytes of position per token and head); in whole pages each head's last
//! page is filled in part.

use super::select::{Units, count_best, need_whole_layers, sums_of};
use super::{
    Args, COLUMN_SUM, Channel, Choice, Deployment, EXPECTED_ATTENTION, Floor, KEY_DIFF, Kept, Kind, MASS, Param, Rule,
    Selection, V_NORM, WINDOW_ROWS, expected_attention, random, snapkv,
};
use crate::error::Result;
use crate::model::KvShape;
use crate::recording::Head;

/// `adakv(budget,scorer=snapkv,safeguard=20%,window=32,kernel=7,pool=max)`.
pub(super) static KIND: Kind = Kind {
    name: "adakv",
    doc: "Ranks the prompt tokens of all KV heads of a layer together by another stage's score; heads keep unequal shares.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept per head in the mean, such as `1024`, `4k` (4000), or a share such as `25%`.",
        },
        Param {
            name: "scorer",
            default: "snapkv",
            doc: "Whose score: `snapkv`, `h2o`, `expected_attention` (with `eps=0.01`, as published), `keydiff` or `random`.",
        },
        Param { name: "safeguard", default: "20%", doc: "Share of an even budget that each head keeps in any case." },
        Param {
            name: "window",
            default: "32",
            doc: "Last prompt tokens, which are kept; in `snapkv` their queries vote.",
        },
        Param { name: "kernel", default: "7", doc: "Width of the pooling of `snapkv`, odd." },
        Param { name: "pool", default: "max", doc: "How `snapkv` pools neighbours: `max` or `avg`." },
    ],
    needs: &[&MASS, &WINDOW_ROWS],
    source: "AdaKV (arXiv 2407.11550), as in kvpress",
    deployment: Deployment { engines: "research code: kvpress, KVCache-Factory", ..Deployment::NONE },
    make,
};

static OF_SNAPKV: [&Channel; 2] = [&MASS, &WINDOW_ROWS];
static OF_H2O: [&Channel; 2] = [&MASS, &COLUMN_SUM];
static OF_EXPECTED_ATTENTION: [&Channel; 3] = [&MASS, &EXPECTED_ATTENTION, &V_NORM];
static OF_KEYDIFF: [&Channel; 2] = [&MASS, &KEY_DIFF];
static OF_RANDOM: [&Channel; 1] = [&MASS];

const SCORERS: [&str; 5] = ["snapkv", "h2o", "expected_attention", "keydiff", "random"];

fn make(args: &Args) -> Result<Rule> {
    args.budget_beyond("budget", snapkv::check_pooling(args)?)?;
    args.share("safeguard")?;
    let kept = match args.word("scorer", &SCORERS)? {
        "h2o" => Kept::Measured(&OF_H2O),
        "keydiff" => Kept::Measured(&OF_KEYDIFF),
        "expected_attention" => Kept::Measured(&OF_EXPECTED_ATTENTION),
        "random" => Kept::Measured(&OF_RANDOM),
        _ => Kept::Measured(&OF_SNAPKV),
    };
    let choice = Choice { budgets: Some(budgets), prompt: Some(choose), ..Choice::NONE };
    Ok(Rule::Select(Selection { kept, score_flops, ..Selection::plain(choice) }))
}

fn score_flops(args: &Args, kv: &KvShape) -> f64 {
    if args.is_word("scorer", "snapkv") { snapkv::score_flops(args, kv) } else { 0.0 }
}

/// Scores of the prompt tokens before the last `tail`.
fn scores(args: &Args, head: &Head<'_>, tail: u32) -> Result<Vec<f32>> {
    let prompt = head.request.prompt_tokens;
    let mut scores = match args.word("scorer", &SCORERS)? {
        "h2o" => head.score("adakv", &COLUMN_SUM, 0)?.to_vec(),
        "keydiff" => head.score("adakv", &KEY_DIFF, 0)?.to_vec(),
        "expected_attention" => expected_attention::scores(args, head, 0.01)?,
        "random" => random::scores(0, head, prompt),
        _ => snapkv::scores(args, head, tail)?,
    };
    scores.truncate(prompt.saturating_sub(tail) as usize);
    Ok(scores)
}

/// Prompt tokens that each head keeps: whole units of them.
fn budgets(args: &Args, heads: &[Head<'_>], budgets: &mut Vec<u32>) -> Result<()> {
    need_whole_layers("adakv", heads)?;
    let safeguard = args.share("safeguard")?;
    let mut counts = Vec::new();
    for layer in heads.chunk_by(|a, b| a.layer == b.layer) {
        let Some(first) = layer.first() else { continue };
        let prompt = first.request.prompt_tokens;
        let budget = args.budget("budget")?.tokens(prompt);
        if budget >= prompt {
            budgets.extend(layer.iter().map(|_| prompt));
            continue;
        }
        let tail = args.count("window", 1, u32::MAX)?.min(budget);
        let units = Units::new(first.unit_tokens());
        let (from, to) = units.middle(prompt, 0, tail);
        let forced = units.of(prompt) - to;
        let each = units.within(budget).max(forced).max(1);
        let safe = ((each as f64 * safeguard) as usize).saturating_sub(forced).min(to);
        let mut rest = Vec::with_capacity(layer.len());
        for head in layer {
            let mut sums = sums_of(&scores(args, head, tail)?, units.tokens, (from, to)).into_owned();
            // The best `safe` are this head's in any case, so that only the others compete.
            if safe > 0 && safe < sums.len() {
                sums.select_nth_unstable_by(safe - 1, |a, b| b.total_cmp(a));
            }
            sums.drain(..safe.min(sums.len()));
            rest.push(sums);
        }
        let shared = layer.len() * (each - forced).saturating_sub(safe);
        count_best(rest.iter().map(Vec::as_slice), shared, &mut counts);
        budgets.extend(counts.iter().map(|count| (forced as u32 + safe as u32 + count).saturating_mul(units.tokens)));
    }
    Ok(())
}

fn choose(args: &Args, heads: &[Head<'_>], budgets: &[u32], units: &mut [Units]) -> Result<()> {
    for ((head, units), kept) in heads.iter().zip(units).zip(budgets) {
        let prompt = head.request.prompt_tokens;
        let even = args.budget("budget")?.tokens(prompt);
        if even < prompt {
            let tail = args.count("window", 1, u32::MAX)?.min(even);
            units.keep_of_prompt(prompt, *kept, (0, tail), &scores(args, head, tail)?);
        }
    }
    Ok(())
}
