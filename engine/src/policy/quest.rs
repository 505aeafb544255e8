//! The stage `quest`: stores everything and reads the pages that may matter to the current query (`Quest`).
//!
//! Each page has the smallest and largest key per channel as metadata, from which an upper bound of the query's logits on it
//! follows. A step reads the pages with the highest bounds and the one that is being written; the first layers read all. With
//! grouped heads the bounds are the largest of the group, so that one set of pages serves it. Where bounds were not recorded,
//! `by=mass` ranks pages by their true mass: no such system can be built, it is the best that pages allow. `recall` then says
//! which share of those pages is found; the others are replaced at random.
//!
//! Nothing is lost for good: what a step passes over can be read in the next.

use super::rng::Rng;
use super::select::{Units, mark_best};
use super::{Args, Choice, Deployment, Floor, Keep, Kept, Kind, PAGE_BOUND, Param, Part, Place, Rule, Selection};
use crate::error::{Error, Result};
use crate::recording::{Head, Step};

/// `quest(budget,page=16,by=bound,dense=2,recall=100%)`.
pub(super) static KIND: Kind = Kind {
    name: "quest",
    doc: "Stores every token and reads, in each step and KV head, the pages that may matter to the query.",
    floor: Floor::Selection,
    params: &[
        Param { name: "budget", default: "", doc: "Tokens read per step, such as `1024`, `4k` (4000)." },
        Param { name: "page", default: "16", doc: "Tokens per page." },
        Param { name: "by", default: "bound", doc: "What ranks pages: the recorded `bound`, or their true `mass`." },
        Param { name: "dense", default: "2", doc: "First layers, which read everything." },
        Param { name: "recall", default: "100%", doc: "Share of the best pages that is found; for `by=mass`." },
    ],
    needs: &[&PAGE_BOUND],
    source: "Quest (arXiv 2406.10774); the two dense layers are recalled, not read",
    deployment: Deployment { engines: "research code: Quest", breaks_sharing: false, ..Deployment::NONE },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let page = args.count("page", 1, 65_535)?;
    if args.count("budget", 1, u32::MAX)? < page {
        return Err(Error::usage(format!("`quest`: the budget is smaller than one page of {page} tokens"))
            .hint("raise `budget` or lower `page`"));
    }
    args.count("dense", 0, u32::MAX)?;
    let recall = args.share("recall")?;
    if args.word("by", &["bound", "mass"])? == "bound" && recall < 1.0 {
        return Err(Error::usage("`recall` of `quest` degrades the true order of pages").hint("add `by=mass`"));
    }
    let choice = Choice::of_step(choose);
    Ok(Rule::Select(Selection { kept: Kept::Parts(parts), is_recoverable: true, ..Selection::plain(choice) }))
}

/// Smallest and largest key of each page in bf16 on top of everything; of that, the budget is read.
fn parts(args: &Args, place: &Place) -> Result<Vec<Part>> {
    let (page, budget) = (args.count("page", 1, 65_535)?, args.count("budget", 1, u32::MAX)?);
    let all = Part::all_heads(place, Keep::ALL);
    if place.layer < args.count("dense", 0, u32::MAX)? {
        return Ok(vec![all]);
    }
    let bounds = 2 * 2 * u64::from(place.kv.kv_heads) * u64::from(place.kv.key_dim);
    let whole = budget - budget % page;
    Ok(vec![Part { read_tokens: Some(whole), index_bytes: bounds.div_ceil(u64::from(page)), ..all }])
}

fn choose(args: &Args, head: &Head<'_>, _: u32, step: &Step<'_>, units: &mut Units) -> Result<()> {
    units.kept.fill(true);
    let (page, budget) = (args.count("page", 1, 65_535)?, args.count("budget", 1, u32::MAX)?);
    if u32::from(head.layer) < args.count("dense", 0, u32::MAX)? || budget >= step.context_tokens {
        return Ok(());
    }
    let (mut scores, mut marks) = std::mem::take(&mut units.scratch);
    let found = page_scores(("quest", args.is_word("by", "bound")), head, step, page, &mut scores);
    if found.is_ok() {
        marks.clear();
        marks.resize(scores.len(), false);
        let count = (budget / page) as usize;
        mark_best(&scores, count, units.keys(), &mut marks);
        miss(args, head, step.step, count, &mut marks)?;
        // The page that is being written is read in any case.
        if let Some(last) = marks.last_mut() {
            *last = true;
        }
        let per_page = (page / units.tokens).max(1) as usize;
        for (kept, mark) in units.kept.chunks_mut(per_page).zip(&marks) {
            kept.fill(*mark);
        }
    }
    units.scratch = (scores, marks);
    found
}

/// The score of each page, by its recorded bound or by its true mass. `stage` is who asks.
pub(super) fn page_scores(
    (stage, by_bound): (&str, bool),
    head: &Head<'_>,
    step: &Step<'_>,
    page: u32,
    scores: &mut Vec<f32>,
) -> Result<()> {
    let unit = head.unit_tokens();
    scores.clear();
    if by_bound {
        let bounds = step.page_bound.filter(|_| unit == page).ok_or_else(|| {
            let message = format!(
                "`{stage}` needs channel `page_bound` in pages of {page} tokens for {}, step {}, but the recording {}",
                head.place(),
                step.step,
                if step.page_bound.is_some() { format!("has pages of {unit}") } else { "does not have it".to_owned() }
            );
            Error::run(message).hint(format!("{}; or rank by true mass: `by=mass`", PAGE_BOUND.how))
        })?;
        scores.extend_from_slice(bounds);
        return Ok(());
    }
    if !page.is_multiple_of(unit) {
        let message = format!("`{stage}`: pages of {page} tokens cannot be told apart in recorded blocks of {unit}");
        return Err(Error::run(message).hint(format!("use a multiple: `page={}`", page.next_multiple_of(unit))));
    }
    scores.extend(step.mass.chunks((page / unit) as usize).map(|mass| mass.iter().sum::<f32>()));
    Ok(())
}

/// Replaces the share of the marked pages that is not found by others at random.
fn miss(args: &Args, head: &Head<'_>, step: u32, count: usize, marks: &mut [bool]) -> Result<()> {
    let recall = args.share("recall")?;
    let (marked, others) = (count.min(marks.len()), marks.len().saturating_sub(count));
    let missed = ((marked as f64 * (1.0 - recall)).round() as usize).min(others);
    if missed == 0 {
        return Ok(());
    }
    let place = [head.request.request_id, head.layer.into(), head.kv_head.into(), step.into()];
    let mut rng = Rng::of(&place);
    // In one pass: of the `left` marked (or other) pages still to come, `drop` (or `take`) are to be turned.
    let (mut left, mut drop) = (marked, missed);
    let (mut rest, mut take) = (others, missed);
    for mark in marks {
        let (from, turn) = if *mark { (&mut left, &mut drop) } else { (&mut rest, &mut take) };
        if rng.uniform() * (*from as f64) <= *turn as f64 {
            *turn -= 1;
            *mark = !*mark;
        }
        *from = from.saturating_sub(1);
    }
    Ok(())
}
