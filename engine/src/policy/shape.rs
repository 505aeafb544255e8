//! What a stack asks of a model's KV cache: tokens, bytes and the policy's own arithmetic, per group of alike layers.

use super::{Group, Keep, Shape, Stack, TokenCost};
use crate::error::Result;
use crate::model::{Attention, LayerGroup, Model};

/// The demand of `model` under `stack`.
///
/// Layers with a window of their own keep that window and nothing else: a selection acts on full and MLA layers only,
/// since on the others the model itself has already bounded what is kept. A format splits a group where it leaves the
/// first or last layers of the model in bf16; the layers it skips within one model group are alike and stay together.
///
/// # Errors
/// A format that has no published layout for this model, with the reason.
pub fn shape(stack: &Stack, model: &Model) -> Result<Shape> {
    if let Some((args, format)) = stack.format() {
        (format.admits)(args, model).map_err(|error| error.context(format!("policy `{}`", stack.name())))?;
    }
    let layers: u32 = model.groups.iter().map(|group| group.layers).sum();
    let skip = stack.format().map(|(_, format)| format.skip).unwrap_or_default();
    let mut groups = Vec::new();
    let mut first = 0;
    for (index, group) in model.groups.iter().enumerate() {
        let skipped = (first..first + group.layers).filter(|layer| skip.covers(*layer, layers)).count() as u32;
        first += group.layers;
        if skipped > 0 {
            groups.push(Group { layers: skipped, ..plain(stack, index, group) });
        }
        if skipped < group.layers {
            groups.push(Group { layers: group.layers - skipped, ..formatted(stack, index, group) });
        }
    }
    let eviction_is_private = stack.stages().iter().any(|stage| stage.args.kind().deployment.breaks_sharing);
    Ok(Shape { groups, eviction_is_private })
}

/// The group with its tokens selected, in bf16.
fn plain(stack: &Stack, model_group: usize, group: &LayerGroup) -> Group {
    let selection = stack.selection();
    let (keep, score_flops) = match (group.kv.attention, selection) {
        (Attention::Sliding { window }, _) => (Keep { prompt: None, total: Some(window) }, 0.0),
        (_, Some((args, selection))) => (selection.keep, (selection.score_flops)(args, &group.kv)),
        (_, None) => (Keep::ALL, 0.0),
    };
    Group {
        model_group,
        layers: group.layers,
        kv: group.kv,
        keep,
        format: "bf16".to_owned(),
        token_bytes: group.kv.bf16_bytes(),
        is_16bit: true,
        read_flops: 0.0,
        write_flops: 0.0,
        score_flops,
    }
}

/// The same in the stack's number format.
fn formatted(stack: &Stack, model_group: usize, group: &LayerGroup) -> Group {
    let bf16 = plain(stack, model_group, group);
    let Some((args, format)) = stack.format() else { return bf16 };
    let TokenCost { bytes, read_flops, write_flops } = format.forms.cost(&group.kv);
    Group { format: args.text(), token_bytes: bytes, is_16bit: format.is_16bit, read_flops, write_flops, ..bf16 }
}
