//! The stage `snapkv`: keeps what the last prompt queries looked at (`SnapKV`).
//!
//! Published presets differ and are not equivalent: kvpress pools by average with a kernel of 5 and a window of 64,
//! KVCache-Factory's `LongBench` runner by maximum with a kernel of 7 and a window of 8. The defaults here are those of the
//! measured quality that the recordings come with: window 32, maximum, kernel 7. The published ones are
//! `snapkv(budget=...,window=64,kernel=5,pool=avg)` and `snapkv(budget=...,window=8)`.
//!
//! Recorded scores are means over the query heads of a group already, so pooling comes after that mean, as in
//! KVCache-Factory (kvpress pools first; the order matters for the maximum only). On block recordings tokens are pooled
//! first, then summed over each block.

use super::select::Units;
use super::{Args, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection, WINDOW_ROWS};
use crate::error::{Error, Result};
use crate::model::KvShape;
use crate::recording::Head;

/// `snapkv(budget=...,window=32,kernel=7,pool=max)`.
pub(super) static KIND: Kind = Kind {
    name: "snapkv",
    doc: "Keeps the prompt tokens that the last prompt queries attend to most, per KV head; generated tokens are kept.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept, such as `1024` or `4k` (4000), or a share of the prompt such as `25%`.",
        },
        Param { name: "window", default: "32", doc: "Last prompt tokens, whose queries vote and which are kept." },
        Param { name: "kernel", default: "7", doc: "Width of the pooling, odd." },
        Param { name: "pool", default: "max", doc: "How neighbours are pooled: `max` or `avg`." },
    ],
    needs: &[&WINDOW_ROWS],
    source: "SnapKV (arXiv 2404.14469), as in kvpress and KVCache-Factory",
    deployment: Deployment { engines: "research code: kvpress, KVCache-Factory", ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let budget = args.budget_beyond("budget", check_pooling(args)?)?;
    let choice = Choice::of_prompt(choose);
    Ok(Rule::Select(Selection { score_flops, ..Selection::same(Keep::of_prompt(budget), choice) }))
}

/// Checks `window`, `kernel` and `pool`, which other stages have too; returns the window.
pub(super) fn check_pooling(args: &Args) -> Result<u32> {
    let kernel = args.count("kernel", 1, 1023)?;
    args.word("pool", &["max", "avg"])?;
    if kernel % 2 == 0 {
        let stage = args.kind().name;
        return Err(Error::usage(format!("`kernel` of `{stage}`: expected an odd number, found `{kernel}`")));
    }
    args.count("window", 1, u32::MAX)
}

/// One pass of the window's queries over the prompt: 2 flops a multiply-add, `window * query_heads * key_dim` of them per
/// prompt token.
pub(super) fn score_flops(args: &Args, kv: &KvShape) -> f64 {
    let window = args.count("window", 1, u32::MAX).map_or(0.0, f64::from);
    2.0 * window * f64::from(kv.query_heads) * f64::from(kv.key_dim)
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        choose_with(args, head, args.budget("budget")?.tokens(head.request.prompt_tokens), units)?;
    }
    Ok(())
}

/// The best `budget - window` tokens before the window, and the window. A share of a short prompt may be smaller than
/// the window; then the last tokens of it are kept.
pub(super) fn choose_with(args: &Args, head: &Head<'_>, budget: u32, units: &mut Units) -> Result<()> {
    let prompt = head.request.prompt_tokens;
    if budget >= prompt {
        units.begin(prompt);
        return Ok(());
    }
    let tail = args.count("window", 1, u32::MAX)?.min(budget);
    let pooled = scores(args, head, tail)?;
    units.keep_of_prompt(prompt, budget, (0, tail), &pooled);
    Ok(())
}

/// Pooled scores of the prompt tokens before the last `tail`.
pub(super) fn scores(args: &Args, head: &Head<'_>, tail: u32) -> Result<Vec<f32>> {
    let prompt = head.request.prompt_tokens;
    let window = args.count("window", 1, u32::MAX)?.min(prompt);
    let score = head.score(args.kind().name, &WINDOW_ROWS, window)?;
    let before = score.get(..prompt.saturating_sub(tail) as usize).unwrap_or_default();
    Ok(pool(before, args.count("kernel", 1, 1023)? as usize, args.is_word("pool", "max")))
}

/// Pools with stride 1 over `kernel` neighbours. The average divides by the whole kernel at the ends too, as
/// `PyTorch` does by default.
fn pool(scores: &[f32], kernel: usize, is_max: bool) -> Vec<f32> {
    let half = kernel / 2;
    let window = |at: usize| &scores[at.saturating_sub(half)..(at + half + 1).min(scores.len())];
    if is_max {
        return (0..scores.len()).map(|at| window(at).iter().copied().fold(f32::MIN, f32::max)).collect();
    }
    (0..scores.len()).map(|at| window(at).iter().sum::<f32>() / kernel as f32).collect()
}
