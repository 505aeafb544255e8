//! The stage `pyramidkv`: `snapkv` with more tokens in the lower layers and fewer in the upper ones (`PyramidKV`).
//!
//! Budgets fall by a constant from layer to layer, as in `KVCache-Factory`, whose divisions are whole ones: the sum over the
//! layers may come out some percent above `layers * budget`.

use super::select::Units;
use super::snapkv;
use super::{Args, Budget, Choice, Deployment, Floor, Keep, Kept, Kind, Param, Part, Rule, Selection, WINDOW_ROWS};
use crate::error::{Error, Result};
use crate::recording::Head;

/// `pyramidkv(budget,window=32,kernel=7,pool=max,beta=20)`.
pub(super) static KIND: Kind = Kind {
    name: "pyramidkv",
    doc: "As `snapkv`, with budgets that fall from the first layer to the last.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Prompt tokens kept per layer in the mean, such as `1024`, `4k` (4000), or a share such as `25%`.",
        },
        Param { name: "window", default: "32", doc: "Last prompt tokens, whose queries vote and which are kept." },
        Param { name: "kernel", default: "7", doc: "Width of the pooling, odd." },
        Param { name: "pool", default: "max", doc: "How neighbours are pooled: `max` or `avg`." },
        Param { name: "beta", default: "20", doc: "The last layer keeps the mean's part beyond the window over this." },
    ],
    needs: &[&WINDOW_ROWS],
    source: "PyramidKV (arXiv 2406.02069), as in KVCache-Factory, whose runs have `window=8`",
    deployment: Deployment { engines: "research code: kvpress, KVCache-Factory", ..Deployment::NONE },
    make,
};

/// One layer's step of a pyramid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Mean budget in tokens; `None` for a share.
    tokens: Option<u32>,
    /// Mean budget as a share of the prompt.
    ratio: f64,
    window: u32,
    beta: u32,
    layer: u32,
    layers: u32,
}

impl Step {
    /// Mean budget of all layers for a prompt: tokens, or a share of it.
    pub fn budget(&self) -> (Option<u32>, Option<f64>) {
        (self.tokens, self.tokens.is_none().then_some(self.ratio))
    }

    fn mean(&self, prompt: u32) -> u32 {
        self.tokens.map_or(Budget::Ratio(self.ratio), Budget::Tokens).room(prompt)
    }

    /// Tokens that this layer keeps of a prompt, the window included (POLICIES 1.2).
    pub fn tokens(&self, prompt: u32) -> u32 {
        let (mean, window) = (self.mean(prompt), self.window);
        if prompt < mean || mean <= window {
            return mean.min(prompt);
        }
        let (rest, before) = (u64::from(mean - window), u64::from(prompt.saturating_sub(window)));
        if u64::from(prompt) < 2 * rest {
            return mean.min(prompt);
        }
        let mut least = rest / u64::from(self.beta.max(1));
        let mut most = 2 * rest - least;
        if most >= before {
            (most, least) = (before, (2 * rest).saturating_sub(before));
        }
        let step = most.saturating_sub(least) / u64::from(self.layers.saturating_sub(1).max(1));
        let capacity = if self.layers > 1 { most.saturating_sub(u64::from(self.layer) * step) } else { rest };
        (capacity as u32).saturating_add(window).min(prompt)
    }
}

fn make(args: &Args) -> Result<Rule> {
    args.budget_beyond("budget", snapkv::check_pooling(args)?)?;
    args.count("beta", 1, u32::MAX)?;
    let kept = Kept::Parts(|args, place| {
        let budget = Budget::Pyramid(step(args, place.layer, place.layers)?);
        Ok(vec![Part::all_heads(place, Keep::of_prompt(budget))])
    });
    let choice = Choice::of_prompt(choose);
    Ok(Rule::Select(Selection { kept, score_flops: snapkv::score_flops, ..Selection::plain(choice) }))
}

fn step(args: &Args, layer: u32, layers: u32) -> Result<Step> {
    let (tokens, ratio) = match args.budget("budget")? {
        Budget::Tokens(tokens) => (Some(tokens), 0.0),
        Budget::Ratio(ratio) => (None, ratio),
        Budget::Larger { .. } | Budget::Pyramid(_) => {
            return Err(Error::usage("`budget` of `pyramidkv`: expected tokens or a share of the prompt"));
        }
    };
    let (window, beta) = (args.count("window", 1, u32::MAX)?, args.count("beta", 1, u32::MAX)?);
    Ok(Step { tokens, ratio, window, beta, layer, layers })
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    for (head, units) in heads.iter().zip(units) {
        let step = step(args, head.layer.into(), head.layers())?;
        snapkv::choose_with(args, head, step.tokens(head.request.prompt_tokens), units)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps(budget: Budget, window: u32, layers: u32, prompt: u32) -> Vec<u32> {
        let (tokens, ratio) = match budget {
            Budget::Tokens(tokens) => (Some(tokens), 0.0),
            Budget::Ratio(ratio) => (None, ratio),
            _ => panic!(),
        };
        let step = |layer| Step { tokens, ratio, window, beta: 20, layer, layers };
        (0..layers).map(|layer| step(layer).tokens(prompt)).collect()
    }

    /// POLICIES 1.2 and 7.7: 983 down to 53 prefix tokens, and 526 tokens in the mean with the window.
    #[test]
    fn caps_are_those_of_the_worked_check() {
        let caps = caps(Budget::Tokens(512), 8, 32, 8192);
        assert_eq!((caps[0] - 8, caps[31] - 8), (983, 53));
        let mean = caps.iter().map(|cap| f64::from(*cap)).sum::<f64>() / 32.0;
        assert!((mean - 526.0).abs() < 0.5, "{mean}");
    }

    #[test]
    fn short_prompts_are_kept_or_shared_evenly() {
        assert_eq!(caps(Budget::Tokens(512), 8, 4, 300), [300; 4]);
        assert_eq!(caps(Budget::Tokens(512), 8, 4, 900), [512; 4]);
        assert_eq!(caps(Budget::Ratio(0.01), 8, 4, 300), [3; 4]);
        assert_eq!(caps(Budget::Tokens(100), 8, 1, 3000), [100]);
        // The widest layer cannot keep more than there is: 2 * 60 tokens of a prompt with 122 before the window.
        assert_eq!(caps(Budget::Tokens(68), 8, 2, 125), [8 + 117, 8 + 3]);
    }
}
