//! Recovery: what takes back part of what the stage before it loses, and what that costs.
//!
//! A recovery stage acts on the nearest stage before it that loses something of the kind that it can take back, whatever
//! stands between. For `retain` that is any: `snapkv(25%)+retain(10%)+fp8` keeps a tenth of the tokens that `snapkv` drops
//! and stores all that is kept in FP8, while `snapkv(25%)+fp8+retain(10%)` stores a tenth of what is kept in 16 bits.
//! [`attach`] finds that stage and refuses what cannot be recovered, with the reason.
//!
//! *Of a selection.* `retain` keeps the most important share of the prompt tokens that are dropped when the prompt is
//! complete, by `column_sum`. `compensate` holds one pair of the mean key and value of what is dropped, which counts as
//! often in the softmax. `copies` holds what is dropped in a number format of few bits and reads it in every step. `recall`
//! moves it to a lower tier and fetches some pages back in every step. They compose: what is retained is neither copied nor
//! moved, and a pair stands for what a step reads in no form.
//!
//! *Of a merge or a number format.* `retain` holds the most important share of the tokens in 16 bits, by `column_sum`;
//! generated tokens, of which no sum is known, come last. `rescale` undoes the mean shrinking of a codebook of centroids.

use super::quantize::Form;
use super::select::Units;
use super::{Args, COLUMN_SUM, Rule, Selection, vectors};
use super::{quest, stack::Stage};
use crate::error::{Error, Result};
use crate::recording::{Head, Step};

/// What a recovery stage does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recovery {
    /// Keeps this share of the tokens exactly: of those that a selection drops, or of all where a format or merge changes
    /// them.
    Retain(f64),
    /// Divides what comes back by what inner products shrink to.
    Rescale,
    /// One pair stands for what is dropped.
    Compensate,
    /// What is dropped is kept in this form.
    Copies(Form),
    /// What is dropped is moved to a lower tier, and part of it fetched in each step.
    Recall(Recall),
}

/// How much comes back from the lower tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recall {
    /// Tokens fetched per step and KV head at most, in whole pages.
    pub tokens: u32,
    /// Tokens per page.
    pub page: u32,
    /// Whether pages are ranked by their bounds, which a system can know, or by their true mass, which it cannot.
    pub by_bound: bool,
}

/// All that recovers the losses of a stack's selection.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OfSelection {
    /// Share of the dropped prompt tokens that is kept after all.
    pub retain: f64,
    /// Whether a pair stands for what is dropped.
    pub compensate: bool,
    /// The form of copies of what is dropped.
    pub copies: Option<Form>,
    /// What is fetched from a lower tier.
    pub recall: Option<Recall>,
}

impl OfSelection {
    /// Whether there is any.
    pub fn is_some(&self) -> bool {
        *self != Self::default()
    }

    /// Whether all that a step does not read is still held somewhere.
    pub fn holds_all(&self) -> bool {
        self.recall.is_some()
    }
}

/// Attaches each recovery of the stages to what it recovers: those of formats and merges change their rules, those of a
/// selection are returned.
///
/// # Errors
/// A recovery of nothing, one that cannot recover what the stage before it loses, and two that exclude each other.
pub(super) fn attach(stages: &mut [Stage]) -> Result<OfSelection> {
    let mut found = OfSelection::default();
    for at in 0..stages.len() {
        let (before, rest) = stages.split_at_mut(at);
        let Some(Stage { args, rule: Rule::Recover(recovery) }) = rest.first() else { continue };
        let name = args.kind().name;
        let last = |suits: &dyn Fn(&Rule) -> bool| {
            before.iter().rposition(|stage| is_lossy(&stage.rule) && suits(&stage.rule))
        };
        // Where no stage suits, the last one that loses something says why.
        let found_at = last(&|rule| suits(*recovery, rule)).or_else(|| last(&|_| true));
        let Some(target) = found_at.and_then(|at| before.get_mut(at)) else {
            return Err(Error::usage(format!("`{name}` recovers what a stage before it loses, but none does"))
                .hint(format!("put it after one, such as `snapkv(budget=25%)+{name}` or `int4+{name}`")));
        };
        let of = target.args.kind().name;
        match &mut target.rule {
            Rule::Select(selection) => of_selection((name, recovery), (of, selection), &mut found)?,
            Rule::Merge(merge) => match recovery {
                Recovery::Retain(share) if merge.exact == 0.0 => merge.exact = *share,
                Recovery::Retain(_) => return Err(twice(name)),
                Recovery::Rescale => return Err(no_format(of)),
                _ => return Err(drops_none(name, of)),
            },
            Rule::Format(format) => match recovery {
                Recovery::Retain(share) => retain_beside((of, &mut format.forms), *share)?,
                Recovery::Rescale if format.forms.is_rescaled => return Err(twice(name)),
                Recovery::Rescale if format.forms.rest.shrinks() => format.forms.is_rescaled = true,
                Recovery::Rescale => {
                    return Err(Error::usage(format!("`rescale` has nothing to undo: `{of}` does not shrink vectors"))
                        .hint("codebooks of centroids do, such as `turboquant`; its `variant=prod` does not"));
                }
                _ => return Err(drops_none(name, of)),
            },
            Rule::Edit(_) | Rule::Recover(_) => {}
        }
    }
    Ok(found)
}

fn is_lossy(rule: &Rule) -> bool {
    match rule {
        Rule::Select(selection) => !matches!(selection.kept, super::Kept::All),
        Rule::Merge(_) => true,
        Rule::Format(format) => !format.forms.is_exact(),
        Rule::Edit(_) | Rule::Recover(_) => false,
    }
}

/// Whether a stage loses what a recovery can take back.
fn suits(recovery: Recovery, rule: &Rule) -> bool {
    match recovery {
        Recovery::Retain(_) => true,
        Recovery::Rescale => matches!(rule, Rule::Format(_)),
        Recovery::Compensate | Recovery::Copies(_) | Recovery::Recall(_) => matches!(rule, Rule::Select(_)),
    }
}

fn no_format(of: &str) -> Error {
    Error::usage(format!("`rescale` undoes the shrinking of a number format, but `{of}` is none"))
        .hint("put it after the format, such as `turboquant+rescale`")
}

fn twice(name: &str) -> Error {
    Error::usage(format!("`{name}` recovers the same stage twice")).hint("keep one of them")
}

fn drops_none(name: &str, of: &str) -> Error {
    Error::usage(format!("`{name}` recovers tokens that a selection drops, but `{of}` drops none")).hint(format!(
        "put `{name}` after the selection; beside a merge or a number format `retain` keeps tokens exactly"
    ))
}

fn retain_beside((of, forms): (&str, &mut super::quantize::Forms), share: f64) -> Result<()> {
    if forms.hot.is_some() {
        return Err(Error::usage(format!(
            "`retain` cannot recover `{of}`: its most important tokens have a form of their own"
        ))
        .hint("raise the share that `grade` keeps hot, or keep one `retain`"));
    }
    forms.hot = (share > 0.0).then_some((share, Form::both(super::quantize::Coding::Bf16)));
    Ok(())
}

fn of_selection(
    (name, recovery): (&str, &Recovery),
    (of, selection): (&str, &Selection),
    found: &mut OfSelection,
) -> Result<()> {
    if selection.is_recoverable {
        return Err(Error::usage(format!("`{name}` has nothing to recover: `{of}` drops no token"))
            .hint("what it does not read in one step it can read in the next"));
    }
    let excluded = |other: &str, why: &str| {
        Err(Error::usage(format!("`{name}` and `{other}` exclude each other: {why}")).hint("keep one of them"))
    };
    match recovery {
        Recovery::Retain(_) if found.retain > 0.0 => return Err(twice(name)),
        Recovery::Retain(_) if of == "oracle" && selection.choice.step.is_some() => {
            return Err(Error::usage(
                "`retain` cannot recover `oracle`, which chooses anew in each step and drops nothing for good",
            )
            .hint("use `oracle(by=static)`, or a larger budget"));
        }
        Recovery::Retain(share) => found.retain = *share,
        Recovery::Rescale => return Err(no_format(of)),
        Recovery::Compensate if of == "razor" => {
            return Err(Error::usage("`razor` has a compensation token of its own").hint("leave out `compensate`"));
        }
        Recovery::Compensate if found.compensate => return Err(twice(name)),
        Recovery::Compensate if found.copies.is_some() => {
            return excluded("copies", "nothing is dropped that a pair could stand for");
        }
        Recovery::Compensate => found.compensate = true,
        Recovery::Copies(_) if found.copies.is_some() => return Err(twice(name)),
        Recovery::Copies(_) if found.compensate => {
            return excluded("compensate", "nothing is dropped that a pair could stand for");
        }
        Recovery::Copies(_) if found.recall.is_some() => {
            return excluded("recall", "what is dropped would be held twice");
        }
        Recovery::Copies(form) => found.copies = Some(*form),
        Recovery::Recall(_) if found.recall.is_some() => return Err(twice(name)),
        Recovery::Recall(_) if found.copies.is_some() => {
            return excluded("copies", "what is dropped would be held twice");
        }
        Recovery::Recall(recall) => found.recall = Some(*recall),
    }
    Ok(())
}

/// What the steps of the heads of one layer read once recovery has acted.
#[derive(Debug)]
pub(super) struct Recovered<'a> {
    selection: Option<(&'a Args, &'a Selection)>,
    recovery: OfSelection,
    heads: Vec<OfHead>,
}

/// One head.
#[derive(Debug)]
struct OfHead {
    /// What a step reads.
    view: Units,
    /// Prompt units that are kept after all; found at the first step.
    retained: Option<Vec<bool>>,
    /// Units that are read as copies.
    copied: Vec<bool>,
    /// Pages that the step before fetched, and this one.
    pages: [Vec<bool>; 2],
}

/// What one step of one head reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// Marks of what is read in any form.
    pub(super) units: &'a Units,
    /// Marks of what is read as a copy; empty where nothing is.
    pub(super) copied: &'a [bool],
    /// Mass on tokens that the selection alone would have dropped.
    pub(super) recovered: f64,
    /// Tokens fetched from the lower tier, and those of them that the step before had fetched as well.
    pub(super) recalled: [u32; 2],
}

impl<'a> Recovered<'a> {
    /// Nothing seen yet of a layer with so many heads.
    pub(super) fn new(selection: Option<(&'a Args, &'a Selection)>, recovery: OfSelection, heads: usize) -> Self {
        let head =
            || OfHead { view: Units::new(1), retained: None, copied: Vec::new(), pages: [Vec::new(), Vec::new()] };
        Self { selection, recovery, heads: (0..heads).map(|_| head()).collect() }
    }

    /// What a step reads of the head at this place, of which the selection keeps `units`. Steps come in order. `number` is
    /// the head's from [`super::select::budgets`].
    ///
    /// # Errors
    /// A channel that the recording lacks, with how to record it.
    pub(super) fn view<'b>(
        &'b mut self,
        (at, number): (usize, u32),
        head: &Head<'_>,
        step: &Step<'_>,
        units: &'b Units,
    ) -> Result<View<'b>> {
        let plain = View { units, copied: &[], recovered: 0.0, recalled: [0; 2] };
        let Self { selection, recovery, heads } = self;
        let (Some(of_head), Some(selection)) = (heads.get_mut(at), *selection) else { return Ok(plain) };
        if !recovery.is_some() {
            return Ok(plain);
        }
        let OfHead { view, retained, copied, pages } = of_head;
        view.tokens = units.tokens;
        view.kept.clone_from(&units.kept);
        if recovery.retain > 0.0 {
            if retained.is_none() {
                *retained = Some(retain(selection, recovery.retain, (head, number), units)?);
            }
            let marks = retained.iter().flatten();
            view.kept.iter_mut().zip(marks).for_each(|(kept, retained)| *kept |= *retained);
        }
        let recalled = match recovery.recall {
            Some(recall) => fetch(recall, head, step, view, pages)?,
            None => [0; 2],
        };
        if recovery.copies.is_some() {
            copied.clear();
            copied.extend(view.kept.iter().map(|kept| !kept));
            view.kept.fill(true);
        }
        view.split(step.mass, true);
        let recovered = (units.lost_mass() - view.lost_mass()).max(0.0);
        Ok(View { units: view, copied, recovered, recalled })
    }
}

/// Marks of the prompt's units that are retained: the most important of those that are dropped when it is complete.
fn retain(
    (args, selection): (&Args, &Selection),
    share: f64,
    (head, number): (&Head<'_>, u32),
    units: &Units,
) -> Result<Vec<bool>> {
    let prompt = head.request.prompt_tokens;
    let mut complete = Units::new(units.tokens);
    complete.begin(prompt);
    match (selection.choice.ends, selection.choice.prompt, selection.choice.step) {
        // Stages that choose by place at each step: what they keep when the prompt is complete.
        (Some(ends), ..) => {
            let (sinks, budget) = ends(args)?;
            complete.keep_ends(prompt, sinks, budget);
        }
        (None, None, Some(choose)) => {
            let step = Step {
                step: 0,
                context_tokens: prompt,
                mass: &[],
                page_bound: None,
                sum_sq: None,
                out_norm: None,
                q_norm: None,
            };
            choose(args, head, number, &step, &mut complete)?;
        }
        // Nothing of the prompt is evicted before the first step.
        _ => complete.kept.iter_mut().zip(&units.kept).for_each(|(kept, at_first)| *kept = *at_first),
    }
    let before = complete.kept.clone();
    if before.iter().all(|kept| *kept) {
        return Ok(vec![false; before.len()]);
    }
    let scores = head.score("retain", &COLUMN_SUM, 0)?;
    let importance = super::select::sums_of(scores, units.tokens, (0, before.len()));
    vectors::retain(&mut complete.kept, &importance, share);
    Ok(complete.kept.iter().zip(&before).map(|(after, before)| *after && !before).collect())
}

/// Marks the pages that a step fetches; returns the tokens fetched and those of them that the step before had fetched.
fn fetch(
    recall: Recall,
    head: &Head<'_>,
    step: &Step<'_>,
    view: &mut Units,
    [before, now]: &mut [Vec<bool>; 2],
) -> Result<[u32; 2]> {
    std::mem::swap(before, now);
    now.clear();
    let per_page = (recall.page / view.tokens.max(1)).max(1) as usize;
    let pages = view.kept.len().div_ceil(per_page);
    now.resize(pages, false);
    if view.kept.iter().all(|kept| *kept) {
        return Ok([0; 2]);
    }
    let mut scores = Vec::with_capacity(pages);
    quest::page_scores(("recall", recall.by_bound), head, step, recall.page, &mut scores)?;
    if !recall.by_bound {
        // Only what is dropped can be fetched, and only that counts.
        scores.clear();
        let dropped = step.mass.iter().zip(&view.kept).map(|(mass, kept)| if *kept { 0.0 } else { *mass });
        let dropped: Vec<f32> = dropped.collect();
        scores.extend(dropped.chunks(per_page).map(|mass| mass.iter().sum::<f32>()));
    }
    // Pages of which nothing is dropped come last.
    for (score, kept) in scores.iter_mut().zip(view.kept.chunks(per_page)) {
        if kept.iter().all(|kept| *kept) {
            *score = f32::NEG_INFINITY;
        }
    }
    let open = scores.iter().filter(|score| **score > f32::NEG_INFINITY).count();
    let count = ((recall.tokens / recall.page) as usize).min(open);
    super::select::mark_best(&scores, count, view.keys(), now);
    let mut tokens = [0; 2];
    for (page, kept) in view.kept.chunks_mut(per_page).enumerate() {
        if !now.get(page).copied().unwrap_or(false) {
            continue;
        }
        let fetched = kept.iter().filter(|kept| !**kept).count() as u32 * view.tokens;
        kept.fill(true);
        tokens[0] += fetched;
        tokens[1] += if before.get(page).copied().unwrap_or(false) { fetched } else { 0 };
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests;
