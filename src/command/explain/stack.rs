//! What a policy stack stores, reads and computes on a model, and where each number comes from.

use std::fmt::Write as _;

use engine::error::Result;
use engine::model::{Certainty, Model};
use engine::policy::{Budget, Group, Kind, Stack, shape};
use engine::unit::significant;

use crate::accuracy;
use crate::scenario::load_model;

/// The stack on a model, for a prompt of so many tokens.
pub(super) fn explain(text: &str, model: &str, prompt: u32) -> Result<String> {
    let (stack, model) = (Stack::parse(text)?, load_model(model)?);
    let shape = shape(&stack, &model)?;
    let mut text = format!("policy {} on {}, after a prompt of {prompt} tokens\n", stack.name(), model.name);
    for group in &shape.groups {
        text.push_str(&of_group(group, prompt));
    }
    text.push_str(&totals(&shape.groups, &model, prompt));
    text.push_str(&flops(&shape.groups, prompt));
    let sharing = if shape.eviction_is_private { "left by a request that drops nothing only" } else { "shareable" };
    let _ = writeln!(text, "  prefix blocks: {sharing}");
    text.push_str(&stages(&stack)?);
    text.push_str(&origins(&stack, &model));
    Ok(text)
}

/// The stages of a stack, where no model is named.
pub(super) fn without_model(text: &str) -> Result<String> {
    let stack = Stack::parse(text)?;
    let mut text = format!("policy {}\n", stack.name());
    text.push_str(&stages(&stack)?);
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
    match (of_prompt.as_str(), group.keep.total) {
        ("", None) => "all tokens".to_owned(),
        ("", Some(total)) => format!("{total} tokens"),
        (_, None) => of_prompt,
        (_, Some(total)) => format!("{of_prompt}, {total} tokens in all"),
    }
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
    let read = group.read_tokens.map_or(tokens, |most| most.min(tokens));
    let (stored, read) = (group.bytes_of(tokens), reads(group, tokens, read));
    let per_token = |bytes: u64| significant(bytes as f64 / f64::from(prompt));
    let _ = writeln!(
        text,
        "    per prompt token and layer: {} bytes stored, {} read in a decode step",
        per_token(stored),
        per_token(read)
    );
    text
}

/// Bytes that a decode step reads in one layer.
fn reads(group: &Group, tokens: u32, read: u32) -> u64 {
    u64::from(read) * group.token_bytes + u64::from(tokens) * group.index_bytes + group.residual.bytes(tokens)
}

/// Bytes of all layers, against bf16 without a policy.
fn totals(groups: &[Group], model: &Model, prompt: u32) -> String {
    let (mut stored, mut read) = (0_u64, 0_u64);
    for group in groups {
        let tokens = group.keep.tokens(prompt, prompt);
        let attended = group.read_tokens.map_or(tokens, |most| most.min(tokens));
        stored += u64::from(group.layers) * group.bytes_of(tokens);
        read += u64::from(group.layers) * reads(group, tokens, attended);
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
    format!(
        "  extra flops, all layers: {} per token that a decode step reads, {} per token written, {} per prompt token to score\n",
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
    let _ = writeln!(text, "    layers, heads, widths: {}: {}", word(model.certainty), model.source);
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

fn word(certainty: Certainty) -> &'static str {
    match certainty {
        Certainty::Assumed => "assumed",
        Certainty::Published => "published",
        Certainty::Calibrated => "calibrated",
        Certainty::Measured => "measured",
    }
}

/// What it takes to run a stage.
pub(super) fn deployment(kind: &Kind) -> String {
    let deployment = &kind.deployment;
    let yes = |flag: bool| if flag { "yes" } else { "no" };
    let calibration = match deployment.calibration_tokens {
        0 => "none".to_owned(),
        tokens => format!("{tokens} tokens"),
    };
    format!(
        "engines {}; calibration {calibration}; constants per model {}; training {}; breaks prefix sharing {}",
        deployment.engines,
        yes(deployment.per_model_constants),
        yes(deployment.training),
        yes(deployment.breaks_sharing)
    )
}

/// Accuracy that others have published for a stage; it never enters a figure of kvtoll's own.
pub(super) fn published(name: &str) -> Result<String> {
    let mut text = String::new();
    for figure in accuracy::of_stage(name)? {
        let _ = writeln!(
            text,
            "  accuracy, {}: {} on {}: {}: {} against {} with the full cache ({})",
            word(figure.certainty),
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
