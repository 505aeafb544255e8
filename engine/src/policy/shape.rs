//! What a stack asks of a model's KV cache: tokens, bytes and the policy's own arithmetic, per group of alike layers.

use super::minicache::Merge;
use super::quantize::{Coding, Residual};
use super::{
    Args, Beside, Budget, Channel, Decode, Group, Keep, Kept, Lower, Measured, Part, Place, Recall, Shape, Stack,
    TokenCost,
};
use crate::error::{Error, Result};
use crate::model::{Attention, KvShape, LayerGroup, Model};

/// Bytes that a sparse latent takes beside its elements in FP8: four fp32 scales, and 64 rotary elements that stay in bf16
/// (DeepSeek-V3.2 in vLLM and SGLang: 656 bytes for 576 elements, POLICIES 6.1).
const FP8_LATENT_BYTES: u64 = 4 * 4 + 64;

/// The demand of `model` under `stack`.
///
/// Layers with a window of their own keep that window and nothing else: a selection acts on full and MLA layers only,
/// since on the others the model itself has already bounded what is kept. Layers of one model group that are treated alike
/// stay together: a format splits a group where it leaves the first or last layers of the model in bf16, a selection where
/// it keeps more in one layer than in another, or treats the heads of a layer in two ways.
///
/// # Errors
/// A format that has no published layout for this model, with the reason. A selection whose bytes depend on attention, unless
/// the stack knows what it kept of a recording with as many layers.
pub fn shape(stack: &Stack, model: &Model) -> Result<Shape> {
    if let Some((args, format)) = stack.format() {
        (format.admits)(args, model).map_err(|error| error.context(format!("policy `{}`", stack.name())))?;
    }
    let layers: u32 = model.groups.iter().map(|group| group.layers).sum();
    check_pairs(stack, model, layers).map_err(|error| error.context(format!("policy `{}`", stack.name())))?;
    let skip = stack.format().map(|(_, format)| format.skip).unwrap_or_default();
    let selectable = |group: &&LayerGroup| group.kv.attention.window().is_none();
    let chosen: u32 = model.groups.iter().filter(selectable).map(|group| group.layers).sum();
    let mut groups: Vec<Group> = Vec::new();
    let (mut first, mut place) = (0, 0);
    for (model_group, group) in model.groups.iter().enumerate() {
        let before = groups.len();
        for layer in first..first + group.layers {
            let at = Place { layer: place, layers: chosen, kv: group.kv };
            for part in parts(stack, &at).map_err(|error| error.context(format!("policy `{}`", stack.name())))? {
                let found = one_layer(stack, model_group, &group.kv, &part, skip.covers(layer, layers));
                let found =
                    recovered(stack, found).map_err(|error| error.context(format!("policy `{}`", stack.name())))?;
                let found = match stack.merge().filter(|(_, merge)| merge.role(layer, layers).is_some()) {
                    Some((_, merge)) => merged(merge, &found),
                    None => found,
                };
                let alike =
                    groups.iter_mut().skip(before).find(|known| Group { layers: 1, ..(*known).clone() } == found);
                match alike {
                    Some(known) => known.layers += 1,
                    None => groups.push(found),
                }
            }
            beside(stack, model_group, &group.kv, skip.covers(layer, layers), before, &mut groups);
            place += u32::from(selectable(&group));
        }
        first += group.layers;
    }
    let eviction_is_private = stack.stages().iter().any(|stage| stage.args.kind().deployment.breaks_sharing);
    Ok(Shape { groups, eviction_is_private })
}

/// What recovery of the selection adds to one layer: tokens that are kept after all, and what is held of the others.
fn recovered(stack: &Stack, group: Group) -> Result<Group> {
    let recovery = stack.recovery();
    let is_bounded =
        matches!(group.kv.attention, Attention::Sliding { .. } | Attention::Linear) || group.keep == Keep::ALL;
    if !recovery.is_some() || is_bounded {
        return Ok(group);
    }
    let pair = u32::from(recovery.compensate);
    let buffer = recovery.recall.map_or(0, |recall| recall.tokens);
    let keep = Keep { retained: recovery.retain, extra: pair.saturating_add(buffer), ..group.keep };
    let mut group = Group { keep, ..group };
    // The mean of keys and values takes an addition per element of a dropped token.
    let of_pair = f64::from(pair) * group.kv.elements() as f64;
    spend_on_dropped(&mut group, of_pair);
    if let Some(form) = recovery.copies {
        let TokenCost { bytes, read_flops, write_flops } = form.cost(&group.kv);
        if group.kv.attention.is_latent() && !matches!(form.key, Coding::Fp8(_)) {
            return Err(
                Error::run("`copies` in this format have no published layout for a latent").hint("take `as=fp8`")
            );
        }
        if bytes >= group.token_bytes {
            return Err(Error::usage(format!(
                "`copies` take {bytes} bytes per token and layer, but what is kept takes {} as `{}`",
                group.token_bytes, group.format
            ))
            .hint("take a format with fewer bits for the copies, or leave out the selection"));
        }
        group.beside = Some(Beside { token_bytes: bytes, is_attended: true, read_flops });
        spend_on_dropped(&mut group, write_flops);
    }
    if let Some(Recall { page, .. }) = recovery.recall {
        group.lower = Some(Lower { token_bytes: group.token_bytes, fetched_tokens: buffer });
        // Two bounds per channel and page, each a multiplication and an addition with the query's element.
        let bounds = 2 * u64::from(group.kv.kv_heads) * u64::from(group.kv.key_dim);
        let flops = 4.0 * f64::from(group.kv.query_heads) * f64::from(group.kv.key_dim) / f64::from(page);
        let token_bytes = (2 * bounds).div_ceil(u64::from(page));
        group.beside = Some(Beside { token_bytes, is_attended: false, read_flops: flops });
    }
    Ok(group)
}

/// Arithmetic for each token that is dropped: once per prompt where only prompts are pruned, else for each token that is
/// written, since each is dropped sooner or later.
fn spend_on_dropped(group: &mut Group, flops: f64) {
    let is_once = group.keep.prompt.is_some() && group.keep.decode == Decode::Grows && group.keep.total.is_none();
    *(if is_once { &mut group.score_flops } else { &mut group.write_flops }) += flops;
}

/// Adds the window that a layer keeps beside compressed entries, as one more part of the layer.
fn beside(stack: &Stack, at: usize, kv: &KvShape, is_skipped: bool, before: usize, groups: &mut Vec<Group>) {
    let Some((window, kv)) = kv.entry_window() else { return };
    let part = Part { kv_heads: kv.kv_heads, keep: Keep::at_most(window), read_tokens: None, index_bytes: 0 };
    let found = one_layer(stack, at, &kv, &part, is_skipped);
    let alike = groups.iter_mut().skip(before).find(|known| Group { layers: 1, ..(*known).clone() } == found);
    match alike {
        Some(known) => known.layers += 1,
        None => groups.push(found),
    }
}

/// Refuses to merge layers that have other KV than their partner, a window of their own, or a latent.
fn check_pairs(stack: &Stack, model: &Model, layers: u32) -> Result<()> {
    let Some((args, merge)) = stack.merge() else { return Ok(()) };
    let name = args.kind().name;
    let of_layer = model.groups.iter().flat_map(|group| std::iter::repeat_n(&group.kv, group.layers as usize));
    let merged: Vec<&KvShape> =
        (0..layers).zip(of_layer).filter(|(at, _)| merge.role(*at, layers).is_some()).map(|(_, kv)| kv).collect();
    let is_plain = |pair: &[&KvShape]| pair.iter().all(|kv| kv.attention == Attention::Full && **kv == *pair[0]);
    if merged.chunks(2).all(is_plain) {
        return Ok(());
    }
    Err(Error::run(format!(
        "`{name}` merges pairs of layers with full attention and equal KV heads, which `{}` does not have",
        model.name
    ))
    .hint(
        "windows, and a latent that serves as K and V at once, have no published merge; `start` moves the first pair",
    ))
}

/// A layer that shares the directions of its vectors with another one.
fn merged(merge: &Merge, group: &Group) -> Group {
    let token_bytes = merge.read_bytes(&group.kv, group.token_bytes);
    Group {
        held_bytes: merge.stored_bytes(&group.kv, group.token_bytes),
        token_bytes,
        format: format!("{} (merged)", group.format),
        read_flops: group.read_flops + Merge::read_flops(&group.kv),
        write_flops: group.write_flops + Merge::write_flops(&group.kv),
        ..group.clone()
    }
}

/// What the stack keeps of one layer, by heads that are treated alike.
fn parts(stack: &Stack, place: &Place) -> Result<Vec<Part>> {
    let all = |keep| Ok(vec![Part::all_heads(place, keep)]);
    if let Some(window) = place.kv.attention.window() {
        return all(Keep::at_most(window));
    }
    let Some((args, selection)) = stack.selection() else { return all(Keep::ALL) };
    match selection.kept {
        Kept::All => all(Keep::ALL),
        Kept::Same(keep) => all(keep),
        Kept::Parts(parts) => parts(args, place),
        Kept::Measured(channels) => {
            let measured = measured(stack, args, channels)?;
            all(Keep::of_prompt(Budget::Ratio(of_layer(args, measured, &measured.prompt_ratio, place)?)))
        }
        Kept::MeasuredReads(channels, parts) => {
            let measured = measured(stack, args, channels)?;
            let read = of_layer(args, measured, &measured.read_tokens, place)?.ceil() as u32;
            let parts = parts(args, place)?.into_iter();
            Ok(parts.map(|part| Part { read_tokens: part.read_tokens.and(Some(read)), ..part }).collect())
        }
    }
}

/// What the stack was seen to keep.
fn measured<'a>(stack: &'a Stack, args: &Args, channels: &[&Channel]) -> Result<&'a Measured> {
    let names: Vec<&str> = channels.iter().map(|channel| channel.name).collect();
    let stage = args.kind().name;
    let hint = channels.iter().map(|channel| channel.how).collect::<Vec<_>>().join("; ");
    stack.measured().ok_or_else(|| {
        let names = names.join("`, `");
        Error::run(format!("what `{stage}` stores or reads depends on attention: it needs a recording with `{names}`"))
            .hint(format!("ingest a recording of the model into the store: {hint}"))
    })
}

/// What was measured of a layer.
fn of_layer(args: &Args, measured: &Measured, values: &[f64], place: &Place) -> Result<f64> {
    let (known, stage) = (values.len(), args.kind().name);
    let value = values.get(place.layer as usize).filter(|_| known == place.layers as usize);
    value.copied().ok_or_else(|| {
        let Measured { recording, .. } = measured;
        Error::run(format!(
            "what `{stage}` stores was measured on {recording} with {known} layers, but the model has {} that it acts on",
            place.layers
        ))
        .hint("ingest a recording of the model itself")
    })
}

/// One layer's heads in the stack's format, or in bf16 where the format skips the layer.
fn one_layer(stack: &Stack, model_group: usize, whole: &KvShape, part: &Part, is_skipped: bool) -> Group {
    let share = f64::from(part.kv_heads) / f64::from(whole.kv_heads.max(1));
    let per_group = whole.query_heads / whole.kv_heads.max(1);
    let kv = if part.kv_heads == whole.kv_heads {
        *whole
    } else {
        KvShape {
            kv_heads: part.kv_heads,
            query_heads: part.kv_heads * per_group,
            macs_per_pair: whole.macs_per_pair * share,
            prefill_macs_per_pair: whole.prefill_macs_per_pair * share,
            ..*whole
        }
    };
    let is_selected = kv.attention.window().is_none();
    let sparse = kv.attention.sparse();
    // What the policy selects and what the model chooses: a step reads the fewer.
    let chosen = sparse.map(|sparse| sparse.top).filter(|&top| top < u32::MAX);
    let read_tokens = part.read_tokens.into_iter().chain(chosen).min();
    let selection = stack.selection().filter(|_| is_selected);
    let bf16 = Group {
        model_group,
        layers: 1,
        kv,
        keep: part.keep,
        format: "bf16".to_owned(),
        token_bytes: kv.bf16_bytes(),
        held_bytes: kv.bf16_bytes(),
        residual: Residual::default(),
        read_tokens,
        index_bytes: part.index_bytes + sparse.map_or(0, |sparse| u64::from(sparse.index_bytes)),
        is_16bit: true,
        read_flops: 0.0,
        write_flops: 0.0,
        score_flops: selection.map_or(0.0, |(args, selection)| (selection.score_flops)(args, &kv)),
        beside: None,
        lower: None,
    };
    // A state stays as it is: no format of KV caches is made for it.
    match stack.format().filter(|_| !is_skipped && kv.attention != Attention::Linear) {
        None => bf16,
        Some((args, format)) => {
            let TokenCost { bytes, read_flops, write_flops } = format.forms.cost(&kv);
            let is_dsa = sparse.is_some_and(|sparse| sparse.is_latent && sparse.window.is_none());
            let bytes = if is_dsa && args.kind().name == "fp8" { bytes + FP8_LATENT_BYTES } else { bytes };
            Group {
                format: args.text(),
                token_bytes: bytes,
                held_bytes: bytes,
                residual: format.forms.residual(&kv),
                is_16bit: format.is_16bit,
                read_flops,
                write_flops,
                ..bf16
            }
        }
    }
}
