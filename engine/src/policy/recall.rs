//! The stage `recall`: what the selection before it drops is moved to a lower tier, not lost, and fetched back by pages.
//!
//! The lower tier holds every dropped token in the form in which it was kept. Near the accelerator stay the page digests
//! (smallest and largest key per channel), by which each step and KV head picks the pages that may matter, and a buffer for
//! the pages that it fetches. Bytes over the link are counted as if every page were fetched anew; `attention_error` says how
//! many of them the step before had fetched already. What a step does not fetch is not lost for good.

use super::recovery::{Recall, Recovery};
use super::{Args, Deployment, Floor, Kind, PAGE_BOUND, Param, Rule};
use crate::error::{Error, Result};

/// `recall(tokens,page=16,by=bound)`.
pub(super) static KIND: Kind = Kind {
    name: "recall",
    doc: "Moves what the selection before it drops to a lower tier and fetches the pages that may matter in each step.",
    floor: Floor::Recovery,
    params: &[
        Param { name: "tokens", default: "", doc: "Tokens fetched per step and KV head at most, in whole pages." },
        Param { name: "page", default: "16", doc: "Tokens per page." },
        Param { name: "by", default: "bound", doc: "What ranks pages: the recorded `bound`, or their true `mass`." },
    ],
    needs: &[&PAGE_BOUND],
    source: "ArkVale (NeurIPS 2024) and the generic recall of POLICIES 4.6: digests near, pages in the lower tier",
    deployment: Deployment { engines: "research code: ArkVale, InfiniGen", breaks_sharing: false, ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let page = args.count("page", 1, 65_535)?;
    let tokens = args.count("tokens", 1, u32::MAX)?;
    if tokens < page {
        return Err(Error::usage(format!("`recall`: {tokens} tokens are fewer than one page of {page}"))
            .hint("raise `tokens` or lower `page`"));
    }
    let by_bound = args.word("by", &["bound", "mass"])? == "bound";
    Ok(Rule::Recover(Recovery::Recall(Recall { tokens: tokens - tokens % page, page, by_bound })))
}
