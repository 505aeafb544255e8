//! A block recording as if it were one of tokens: the mass of each block split over its tokens.

use arrow::array::Float32Array;
use arrow::buffer::{OffsetBuffer, ScalarBuffer};

use super::{Attention, Lists, Recording, Row};
use crate::error::{Error, Result};
use crate::policy::COLUMN_SUM;

/// Splits the mass of every block over its tokens: by their share of the block's `column_sum` where the block lies within
/// the prompt, evenly where that is zero and in blocks with generated tokens, of which no sum is known.
///
/// Selections then choose single tokens. Bounds of pages do not survive, since they are those of blocks. The recording is
/// 16 times as large in memory where blocks are of 16 tokens.
///
/// # Errors
/// A head without `column_sum`, and more than 2^31 masses of one head.
pub(super) fn split(recording: Recording) -> Result<Recording> {
    let block = recording.block_tokens;
    let (mut attention, mut rows, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for ((place, _), head) in recording.heads.iter().zip(recording.heads()) {
        let sums = head.score("a split of blocks", &COLUMN_SUM, 0)?;
        let (mut masses, mut offsets) = (Vec::new(), vec![0_i32]);
        let first = rows.len();
        for (at, (step, row)) in head.steps().zip(head.rows).enumerate() {
            spread(step.mass, sums, block as usize, step.context_tokens as usize, &mut masses);
            offsets.push(i32::try_from(masses.len()).map_err(|_| {
                Error::run(format!("{}: expected at most 2^31 masses once blocks are split", head.place()))
            })?);
            rows.push(Row { batch: attention.len(), at, ..*row });
        }
        let of = |value: &dyn Fn(usize) -> Option<f32>| -> Option<Float32Array> {
            Some((0..head.rows.len()).map(value).collect())
        };
        let step = |at: usize| head.step(at);
        attention.push(Attention {
            mass: Lists {
                nulls: None,
                offsets: OffsetBuffer::new(ScalarBuffer::from(offsets)),
                values: Float32Array::from(masses),
            },
            page_bound: None,
            sum_sq: of(&|at| step(at)?.sum_sq),
            out_norm: of(&|at| step(at)?.out_norm),
            q_norm: of(&|at| step(at)?.q_norm),
        });
        places.push((*place, first..rows.len()));
    }
    Ok(Recording { mass_from: "column_sum", block_tokens: 1, attention, rows, heads: places, ..recording })
}

/// Appends the masses of the tokens of one step.
fn spread(blocks: &[f32], sums: &[f32], block: usize, context: usize, masses: &mut Vec<f32>) {
    for (at, mass) in blocks.iter().enumerate() {
        let (from, to) = (at * block, ((at + 1) * block).min(context));
        let known = sums.get(from..to).unwrap_or_default();
        let total: f64 = known.iter().map(|sum| f64::from(sum.max(0.0))).sum();
        if known.len() == to.saturating_sub(from) && total > 0.0 {
            masses.extend(known.iter().map(|sum| (f64::from(*mass) * f64::from(sum.max(0.0)) / total) as f32));
        } else {
            let tokens = to.saturating_sub(from);
            masses.extend(std::iter::repeat_n(mass / tokens.max(1) as f32, tokens));
        }
    }
}
