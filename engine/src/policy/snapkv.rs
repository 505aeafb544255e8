//! The stage `snapkv`: keeps what the last prompt queries looked at (`SnapKV`).
//!
//! Published presets differ and are not equivalent: kvpress pools by average with a kernel of 5 and a window of 64,
//! KVCache-Factory's `LongBench` runner by maximum with a kernel of 7 and a window of 8. The defaults here are those of the
//! measured quality that the recordings come with: window 32, maximum, kernel 7.
//!
//! Recorded scores are means over the query heads of a group already, so pooling comes after that mean, as in
//! KVCache-Factory (kvpress pools first; the order matters for the maximum only). On block recordings tokens are pooled
//! first, then summed over each block.

use super::select::Units;
use super::{Args, Budget, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection, WINDOW_ROWS};
use crate::error::{Error, Result};
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
    deployment: Deployment {
        calibration_tokens: 0,
        per_model_constants: false,
        training: false,
        engines: "research code: kvpress, KVCache-Factory",
        breaks_sharing: true,
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let budget = args.budget("budget")?;
    let window = args.count("window", 1, u32::MAX)?;
    let kernel = args.count("kernel", 1, 1023)?;
    args.word("pool", &["max", "avg"])?;
    if kernel % 2 == 0 {
        return Err(Error::usage(format!("`kernel` of `snapkv`: expected an odd number, found `{kernel}`")));
    }
    if let Budget::Tokens(tokens) = budget
        && tokens < window
    {
        return Err(Error::usage(format!(
            "`snapkv`: the budget of {tokens} tokens is smaller than the window of {window}"
        ))
        .hint("the window is part of the budget: raise `budget` or lower `window`"));
    }
    Ok(Rule::Select(Selection {
        keep: Keep { prompt: Some(budget), total: None },
        // One pass of the window's queries over the prompt: 2 flops a multiply-add, `window * query_heads * key_dim` of
        // them per prompt token.
        score_flops: |args, kv| {
            let window = args.count("window", 1, u32::MAX).map_or(0.0, f64::from);
            2.0 * window * f64::from(kv.query_heads) * f64::from(kv.key_dim)
        },
        choice: Choice::OfPrompt(choose),
    }))
}

/// The best `budget - window` tokens before the window, and the window. A share of a short prompt may be smaller than
/// the window; then the last tokens of it are kept.
fn choose(args: &Args, head: &Head<'_>, units: &mut Units) -> Result<()> {
    let prompt = head.request.prompt_tokens;
    let budget = args.budget("budget")?.tokens(prompt);
    if budget >= prompt {
        units.begin(prompt);
        return Ok(());
    }
    let window = args.count("window", 1, u32::MAX)?.min(prompt);
    let tail = window.min(budget);
    let score = head.score("snapkv", &WINDOW_ROWS, window)?;
    let kernel = args.count("kernel", 1, 1023)? as usize;
    let pooled = pool(&score[..(prompt - tail) as usize], kernel, args.is_word("pool", "max"));
    units.keep_of_prompt(prompt, budget, tail, &pooled);
    Ok(())
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
