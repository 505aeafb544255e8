//! What a policy stack stores, reads and computes on a model, and where each number comes from.

use std::fmt::Write as _;
use std::path::Path;

use arrow::array::RecordBatch;
use engine::error::{Error, Result};
use engine::model::Model;
use engine::policy::{Budget, ErrorBudget, Group, Keep, Kind, Shape, Stack, shape, smallest_retained};
use engine::unit::significant;

use crate::accuracy;
use crate::command::recorded::{self, Way};
use crate::scenario::{load_model, placed};

/// The stack on a model, for a prompt of so many tokens.
pub(super) fn explain(text: &str, model: &str, prompt: u32) -> Result<String> {
    let ((stack, placement), model) = (parsed(text)?, load_model(model)?);
    let shape = shape(&stack, &model)?;
    let mut text = format!("policy {} on {}, after a prompt of {prompt} tokens\n", stack.name(), model.name);
    for group in &shape.groups {
        text.push_str(&of_group(group, prompt));
    }
    text.push_str(&totals(&shape, &model, prompt));
    text.push_str(&flops(&shape.groups, prompt));
    let _ = writeln!(text, "  prefix blocks: {}", sharing(&stack, shape.eviction_is_private));
    text.push_str(&stages(&stack)?);
    text.push_str(&placed_at(placement.as_deref()));
    text.push_str(&origins(&stack, &model));
    Ok(text)
}

/// Which blocks of a prompt others can use.
fn sharing(stack: &Stack, is_private: bool) -> String {
    let kinds = stack.stages().iter().map(|stage| stage.args.kind());
    let rewriting: Vec<String> =
        kinds.filter(|kind| kind.deployment.rewrites_prefix).map(|kind| format!("`{}`", kind.name)).collect();
    let shared = if is_private { "left by a request that drops nothing only" } else { "shareable" };
    if rewriting.is_empty() {
        return shared.to_owned();
    }
    format!(
        "{shared}, but where {} changes what earlier prompts held, only those before the first changed token are still found; \
         all behind it is computed and stored again, and later turns find that",
        rewriting.join(" or ")
    )
}

/// The stages of a stack, and its placement rule if it has one.
fn parsed(text: &str) -> Result<(Stack, Option<String>)> {
    let (stages, placement) = placed(text)?;
    Ok((Stack::parse(&stages)?, placement))
}

/// What a placement rule does.
fn placed_at(placement: Option<&str>) -> String {
    placement.map_or(String::new(), |rule| {
        format!(
            "  {rule}: carried out by serving (`kvtoll replay`); blocks of prompts that leave the first memory come back from \
             the others where that takes less time than computing them, and what a step stores and reads stays the same; \
             options are fetch, evict, write, inclusive or exclusive, and admit\n"
        )
    })
}

/// Decode steps per row of `attention_error`, as in a replay.
const STEPS: u32 = 32;

/// The smallest share of the stack's `retain` that is within an error budget, on each recording.
pub(super) fn smallest(text: &str, path: &Path, budget: &str) -> Result<String> {
    // Where blocks are changes no error.
    let ((stack, _), budget) = (parsed(text)?, ErrorBudget::parse(budget)?);
    let needs = recorded::needs([&stack]);
    let recorded = recorded::open_any(path, needs)?.ok_or_else(|| {
        Error::run(format!("`{}` holds no recording", path.display()))
            .hint("ingest one into the store, or name its folder")
    })?;
    let mut text = format!("policy {}, error budget {budget}\n", stack.name());
    for (at, recording) in recorded.heads.iter().enumerate() {
        let rows = |stack: &Stack| -> Result<RecordBatch> {
            let found = recorded::try_all(&recorded, &[(stack, at)], Way::BySteps(STEPS))?;
            found.into_iter().next().map_or_else(|| Err(Error::run("nothing was tried")), |found| found.rows)
        };
        let found = match smallest_retained(&stack, &budget, rows)? {
            Some((stack, error)) => format!("{} comes to {}", stack.name(), significant(error)),
            None => "not within the budget even with everything retained".to_owned(),
        };
        let _ = writeln!(text, "  {}: {found}", recording.label());
    }
    text.push_str("  sought in whole percent, on the recorded steps, each as if all before it were right\n");
    Ok(text)
}

/// The stages of a stack, where no model is named.
pub(super) fn without_model(text: &str) -> Result<String> {
    let (stack, placement) = parsed(text)?;
    let mut text = format!("policy {}\n", stack.name());
    text.push_str(&stages(&stack)?);
    text.push_str(&placed_at(placement.as_deref()));
    text.push_str("  bytes and arithmetic on a model: add --model MODEL\n");
    Ok(text)
}

fn kept(group: &Group) -> String {
    let of_prompt = match group.keep.prompt {
        None => String::new(),
        Some(Budget::Tokens(tokens)) => format!("{tokens} prompt tokens"),
        Some(Budget::Ratio(ratio)) => format!("{} of the prompt", percent(ratio)),
        Some(Budget::Larger { extra, least, ratio }) => {
            format!("{extra} tokens and {} of the prompt, at least {least}", percent(ratio))
        }
        Some(Budget::Pyramid(_)) => "a step of the pyramid".to_owned(),
    };
    let chosen = match (of_prompt.as_str(), group.keep.total) {
        ("", None) => return "all tokens".to_owned(),
        ("", Some(total)) => format!("{total} tokens"),
        (_, None) => of_prompt,
        (_, Some(total)) => format!("{of_prompt}, {total} tokens in all"),
    };
    let retained = match group.keep.retained {
        0.0 => String::new(),
        share => format!(", and {} of the prompt tokens that are dropped", percent(share)),
    };
    let extra = match group.keep.extra {
        0 => String::new(),
        extra => format!(", and room for {extra} more"),
    };
    format!("{chosen}{retained}{extra}")
}

fn percent(ratio: f64) -> String {
    format!("{}%", significant(100.0 * ratio))
}

/// Bytes of one group of alike layers.
fn of_group(group: &Group, prompt: u32) -> String {
    let bf16 = group.kv.bf16_bytes();
    let tokens = group.keep.tokens(prompt, prompt);
    let mut text = format!(
        "  {} layers of {} KV heads, {}: keep {}\n",
        group.layers,
        group.kv.kv_heads,
        group.format,
        kept(group)
    );
    let _ = writeln!(
        text,
        "    per kept token and layer: {} bytes stored, {} read in a decode step; bf16 without a policy {bf16}",
        group.stored_bytes(),
        group.token_bytes + group.index_bytes
    );
    if group.index_bytes > 0 {
        let _ = writeln!(text, "    of them {} bytes of the selection's own", group.index_bytes);
    }
    if !group.residual.is_none() {
        let residual = group.residual;
        let _ = writeln!(
            text,
            "    newest tokens in 16 bits: up to {} bytes more per request and layer, {} at this length",
            residual.most_bytes(u32::MAX),
            residual.bytes(tokens)
        );
    }
    if let Some(most) = group.read_tokens {
        let _ = writeln!(text, "    a decode step reads at most {most} tokens");
    }
    text.push_str(&of_dropped(group, prompt));
    let read = group.read_tokens.map_or(tokens, |most| most.min(tokens));
    let beside = beside(group, prompt, tokens);
    let (stored, read) = (group.bytes_of(tokens) + beside, reads(group, tokens, read) + beside);
    let per_token = |bytes: u64| significant(bytes as f64 / f64::from(prompt));
    let _ = writeln!(
        text,
        "    per prompt token and layer: {} bytes stored, {} read in a decode step",
        per_token(stored),
        per_token(read)
    );
    text
}

/// What is held of tokens that are not kept, after a prompt of so many.
fn of_dropped(group: &Group, prompt: u32) -> String {
    let mut text = String::new();
    if let Some(beside) = group.beside {
        let what = if beside.is_attended { "as a copy" } else { "as its share of a page's digest" };
        let _ = writeln!(text, "    per token that is not kept: {} bytes {what}, stored and read", beside.token_bytes);
    }
    if let Some(lower) = group.lower {
        // No more than the selection drops, whatever it might fetch.
        let chosen = Keep { extra: 0, ..group.keep }.tokens(prompt, prompt);
        let tokens = lower.fetched_tokens.min(prompt.saturating_sub(chosen));
        let fetched = u64::from(tokens) * lower.token_bytes;
        let _ = writeln!(
            text,
            "    a lower tier holds such a token in {} bytes; a decode step fetches up to {tokens} of them, {fetched} bytes per \
             layer, {} us on a link of 64 GB/s (PCIe 5.0 x16, one way)",
            lower.token_bytes,
            significant(fetched as f64 / 64e3)
        );
    }
    text
}

/// Bytes of it in one layer, after a prompt of which so many tokens are kept.
fn beside(group: &Group, prompt: u32, kept: u32) -> u64 {
    u64::from(prompt.saturating_sub(kept)) * group.beside.map_or(0, |beside| beside.token_bytes)
}

/// Bytes that a decode step reads in one layer.
fn reads(group: &Group, tokens: u32, read: u32) -> u64 {
    u64::from(read) * group.token_bytes + u64::from(tokens) * group.index_bytes + group.residual.bytes(tokens)
}

/// Bytes of all layers, against bf16 without a policy.
fn totals(shape: &Shape, model: &Model, prompt: u32) -> String {
    let (stored, mut read) = (shape.stored_bytes(prompt), 0_u64);
    for group in &shape.groups {
        let tokens = group.keep.tokens(prompt, prompt);
        let attended = group.read_tokens.map_or(tokens, |most| most.min(tokens));
        let beside = beside(group, prompt, tokens);
        read += u64::from(group.layers) * (reads(group, tokens, attended) + beside);
    }
    let full: u64 = model
        .groups
        .iter()
        .map(|group| {
            let of = |kv: &engine::model::KvShape| {
                let tokens = kv.attention.window().map_or(prompt, |window| window.min(prompt));
                let index = kv.attention.sparse().map_or(0, |sparse| u64::from(sparse.index_bytes));
                u64::from(tokens) * (kv.bf16_bytes() + index)
            };
            u64::from(group.layers) * (of(&group.kv) + group.kv.entry_window().map_or(0, |(_, kv)| of(&kv)))
        })
        .sum();
    let share = |bytes: u64| percent(bytes as f64 / full.max(1) as f64);
    format!(
        "  all layers: {stored} bytes stored ({} of bf16 without a policy), {read} read in a decode step ({})\n",
        share(stored),
        share(read)
    )
}

/// Arithmetic that the policy itself asks for, all layers.
fn flops(groups: &[Group], prompt: u32) -> String {
    let sum = |of: &dyn Fn(&Group) -> f64| groups.iter().map(|group| f64::from(group.layers) * of(group)).sum::<f64>();
    let scoring = sum(&|group| if group.keep.drops_of(prompt) { group.score_flops } else { 0.0 });
    let copies = sum(&|group| group.beside.map_or(0.0, |beside| beside.read_flops));
    let of_copies =
        if copies > 0.0 { format!("{} per token that is not kept, ", significant(copies)) } else { String::new() };
    format!(
        "  extra flops, all layers: {of_copies}{} per token that a decode step reads, {} per token written, {} per prompt token to score\n",
        significant(sum(&|group| group.read_flops)),
        significant(sum(&|group| group.write_flops)),
        significant(scoring)
    )
}

/// Sources, deployment and published accuracy of each stage.
fn stages(stack: &Stack) -> Result<String> {
    let mut text = String::new();
    for stage in stack.stages() {
        let kind = stage.args.kind();
        let _ = writeln!(text, "  stage {}: {}", stage.args.text(), kind.doc);
        let _ = writeln!(text, "    deployment: {}", deployment(kind));
        let _ = writeln!(text, "    source: {}", kind.source);
        text.push_str(&published(kind.name)?);
    }
    Ok(text)
}

/// Where the numbers come from.
fn origins(stack: &Stack, model: &Model) -> String {
    let mut text = String::from("  where the numbers come from\n");
    let _ = writeln!(text, "    layers, heads, widths: {}: {}", model.certainty.name(), model.source);
    match stack.measured() {
        Some(measured) => {
            let _ = writeln!(text, "    tokens kept: measured on {}", measured.recording);
        }
        None => text.push_str("    tokens kept: counted from the parameters of the stack\n"),
    }
    text.push_str("    bytes: counted from the layout that each stage's source gives\n");
    text.push_str("    flops: assumed: operations counted per element, as the documentation of the stages says\n");
    text
}

/// What it takes to run a stage.
pub(super) fn deployment(kind: &Kind) -> String {
    let deployment = &kind.deployment;
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let breaks = match (deployment.breaks_sharing, deployment.rewrites_prefix) {
        (false, true) => "from the first token that it changes on",
        (is_private, _) => yes(is_private),
    };
    let calibration = match deployment.calibration_tokens {
        0 => "none".to_owned(),
        tokens => format!("{tokens} tokens"),
    };
    format!(
        "engines {}; calibration {calibration}; constants per model {}; training {}; breaks prefix sharing {breaks}",
        deployment.engines,
        yes(deployment.per_model_constants),
        yes(deployment.training)
    )
}

/// Accuracy that others have published for a stage; it never enters a figure of kvtoll's own.
pub(super) fn published(name: &str) -> Result<String> {
    let mut text = String::new();
    for figure in accuracy::of_stage(name)? {
        let _ = writeln!(
            text,
            "  accuracy, {}: {} on {}: {}: {} against {} with the full cache ({})",
            figure.certainty.name(),
            figure.stack,
            figure.model,
            figure.benchmark,
            figure.value,
            figure.full,
            figure.source
        );
    }
    Ok(text)
}
