//! The stage `quest`: stores everything and reads the pages that may matter to the current query (`Quest`).
//!
//! Each page has the smallest and largest key per channel as metadata, from which an upper bound of the query's logits on it
//! follows. A step reads the pages with the highest bounds and the one that is being written; the first layers read all. With
//! grouped heads the bounds are the largest of the group (`heads=max`), so that one set of pages serves it; or each query head
//! picks its own pages and the step reads their union (`heads=union`), which is more than the budget by as much as the heads
//! differ: that takes vectors, from which bounds are computed where they were not recorded. Where neither was,
//! `by=mass` ranks pages by their true mass: no such system can be built, it is the best that pages allow. `recall` then says
//! which share of those pages is found; the others are replaced at random.
//!
//! Nothing is lost for good: what a step passes over can be read in the next.

use super::rng::Rng;
use super::select::{Units, mark_best};
use super::{
    Args, Channel, Choice, Deployment, Floor, Keep, Kept, Kind, PAGE_BOUND, Param, Part, Place, Rule, Selection,
    VECTORS,
};
use crate::error::{Error, Result};
use crate::recording::{Head, Step};

/// What the union of what heads pick is computed from.
static UNION_NEEDS: &[&Channel] = &[&VECTORS];

/// `quest(budget,page=16,by=bound,dense=2,recall=100%,heads=max)`.
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
        Param {
            name: "heads",
            default: "max",
            doc: "`max` ranks pages once for the query heads of a group, `union` reads what any of them picks.",
        },
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
    let is_union = args.word("heads", &["max", "union"])? == "union";
    if is_union && !args.is_word("by", "bound") {
        return Err(Error::usage("`heads=union` of `quest` ranks pages by each head's own bounds")
            .hint("leave out `by=mass`: recorded masses are those of the group"));
    }
    let choice = Choice { prompt: Some(plan), step: Some(choose), ..Choice::NONE };
    let kept = if is_union { Kept::MeasuredReads(UNION_NEEDS, parts) } else { Kept::Parts(parts) };
    Ok(Rule::Select(Selection { kept, is_recoverable: true, ..Selection::plain(choice) }))
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
    if !units.planned.is_empty() {
        follow(page, step, units);
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

/// Reads the pages that were planned for this step, and the one that is being written.
fn follow(page: u32, step: &Step<'_>, units: &mut Units) {
    let pages = step.context_tokens.div_ceil(page) as usize;
    let (most, at) = (units.planned_pages, units.limit as usize);
    units.limit += 1;
    let marks = units.planned.get(at * most..at * most + pages).unwrap_or_default();
    let per_page = (page / units.tokens).max(1) as usize;
    for (kept, mark) in units.kept.chunks_mut(per_page).zip(marks) {
        kept.fill(*mark);
    }
}

/// Where vectors were recorded and bounds were not, or each head is to pick its own pages: the pages that each step reads.
fn plan(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    let (page, budget) = (args.count("page", 1, 65_535)?, args.count("budget", 1, u32::MAX)?);
    let is_union = args.is_word("heads", "union");
    for (head, units) in heads.iter().zip(units) {
        let is_recorded = head.step(0).is_some_and(|step| step.page_bound.is_some());
        let is_dense = u32::from(head.layer) < args.count("dense", 0, u32::MAX)? || budget >= head.longest_context();
        if is_dense || !args.is_word("by", "bound") || is_recorded && !is_union {
            continue;
        }
        let (Some(queries), Some(pairs)) = (head.queries(), head.pairs_in(head.layer)) else {
            if is_union {
                let message =
                    format!("`quest` with `heads=union` needs channel `{}` for {}", VECTORS.name, head.place());
                return Err(Error::run(format!("{message}, but the recording does not have it")).hint(VECTORS.how));
            }
            continue;
        };
        let contexts: Vec<u32> = head.steps().map(|step| step.context_tokens).collect();
        let shape = Bounds { width: head.head_dim() as usize, group: head.group() as usize, page: page as usize };
        units.planned_pages = head.longest_context().div_ceil(page) as usize;
        pick(&shape, (&queries, &pairs.keys), &contexts, (budget / page) as usize, is_union, units);
    }
    Ok(())
}

/// What bounds are computed for.
struct Bounds {
    width: usize,
    group: usize,
    page: usize,
}

/// Marks, step by step, the `count` pages with the highest bounds: of the group's largest, or of each query head.
fn pick(
    shape: &Bounds,
    (queries, keys): (&[f32], &[f32]),
    contexts: &[u32],
    count: usize,
    is_union: bool,
    units: &mut Units,
) {
    let pages_of: Vec<(Vec<f32>, Vec<f32>)> =
        keys.chunks(shape.page * shape.width).map(|keys| extremes(keys, shape.width)).collect();
    let pages = units.planned_pages;
    let mut planned = vec![false; pages * contexts.len()];
    let (mut scores, mut marks) = (Vec::new(), Vec::new());
    let steps = planned.chunks_mut(pages.max(1)).zip(contexts).zip(queries.chunks(shape.group * shape.width));
    for ((row, context), queries) in steps {
        let here = (*context as usize).div_ceil(shape.page);
        let mut largest = vec![f32::NEG_INFINITY; here];
        // Of the last page only what the step can see counts.
        let last = (here.saturating_sub(1) * shape.page * shape.width)..(*context as usize * shape.width);
        let last = extremes(keys.get(last).unwrap_or_default(), shape.width);
        for query in queries.chunks(shape.width) {
            scores.clear();
            let seen = pages_of.iter().take(here.saturating_sub(1)).chain(std::iter::once(&last));
            scores.extend(seen.map(|(least, most)| bound(query, least, most)));
            if is_union {
                marks.clear();
                marks.resize(here, false);
                mark_best(&scores, count, units.keys(), &mut marks);
                row.iter_mut().zip(&marks).for_each(|(row, mark)| *row |= *mark);
            } else {
                largest.iter_mut().zip(&scores).for_each(|(most, score)| *most = most.max(*score));
            }
        }
        if !is_union {
            mark_best(&largest, count, units.keys(), row.get_mut(..here).unwrap_or_default());
        }
        // The page that is being written is read in any case.
        if let Some(last) = row.get_mut(here.saturating_sub(1)) {
            *last = true;
        }
    }
    units.planned = planned;
}

/// The smallest and largest element per channel.
fn extremes(keys: &[f32], width: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut least, mut most) = (vec![f32::INFINITY; width], vec![f32::NEG_INFINITY; width]);
    for key in keys.chunks_exact(width.max(1)) {
        for ((least, most), x) in least.iter_mut().zip(&mut most).zip(key) {
            (*least, *most) = (least.min(*x), most.max(*x));
        }
    }
    (least, most)
}

/// An upper bound of the query's products with the keys between these extremes.
fn bound(query: &[f32], least: &[f32], most: &[f32]) -> f32 {
    query.iter().zip(least.iter().zip(most)).map(|(q, (least, most))| (q * least).max(q * most)).sum()
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
