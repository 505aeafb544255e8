//! Integers: symmetric with a scale, and asymmetric with a scale and a zero, per token or per channel (POLICIES 3.1, 3.2).

use super::bits::{half, pack, packed_bytes, push_half, take, to_half, unpack};
use crate::error::Result;

/// Appends a vector as symmetric integers of `bits` bits (2 to 8): per group an FP16 scale of the largest magnitude over
/// `2^(bits - 1) - 1`, then the codes.
pub fn symmetric_encode(vector: &[f32], bits: u32, group: usize, out: &mut Vec<u8>) {
    let bits = bits.clamp(2, 8);
    let (top, mask) = (f32::from(i8::MAX >> (8 - bits)), u8::MAX >> (8 - bits));
    let mut codes = Vec::with_capacity(group.min(vector.len()));
    for group in vector.chunks(group.max(1)) {
        let scale = to_half(group.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / top);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        push_half(scale, out);
        codes.clear();
        codes.extend(group.iter().map(|x| (x * inverse).round_ties_even().clamp(-top, top) as i8 as u8 & mask));
        pack(&codes, bits, out);
    }
}

/// The vector that [`symmetric_encode`] wrote, which moves out of `bytes`.
///
/// # Errors
/// Fewer bytes than the vector takes.
pub fn symmetric_decode(bytes: &mut &[u8], bits: u32, group: usize, vector: &mut [f32]) -> Result<()> {
    let bits = bits.clamp(2, 8);
    for group in vector.chunks_mut(group.max(1)) {
        let scale = half(take(bytes, 2)?);
        let mut codes = vec![0; group.len()];
        unpack(take(bytes, packed_bytes(group.len(), bits))?, bits, &mut codes)?;
        for (x, code) in group.iter_mut().zip(codes) {
            // The shifts carry the sign bit of the code into the upper bits.
            *x = scale * f32::from((code << (8 - bits)) as i8 >> (8 - bits));
        }
    }
    Ok(())
}

/// Appends a vector as asymmetric integers of `bits` bits (1 to 8): per group an FP16 scale and an FP16 zero, then the
/// codes. `scale = (max - min) / (2^bits - 1)`, `code = round((x - min) / scale)`.
pub fn uniform_encode(vector: &[f32], bits: u32, group: usize, out: &mut Vec<u8>) {
    let bits = bits.clamp(1, 8);
    let top = f32::from(u8::MAX >> (8 - bits));
    let mut codes = Vec::with_capacity(group.min(vector.len()));
    for group in vector.chunks(group.max(1)) {
        let least = group.iter().copied().fold(f32::INFINITY, f32::min);
        let most = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let zero = to_half(least);
        let scale = to_half((most - zero) / top);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        push_half(scale, out);
        push_half(zero, out);
        codes.clear();
        codes.extend(group.iter().map(|x| ((x - zero) * inverse).round_ties_even().clamp(0.0, top) as u8));
        pack(&codes, bits, out);
    }
}

/// The vector that [`uniform_encode`] wrote, which moves out of `bytes`.
///
/// # Errors
/// Fewer bytes than the vector takes.
pub fn uniform_decode(bytes: &mut &[u8], bits: u32, group: usize, vector: &mut [f32]) -> Result<()> {
    let bits = bits.clamp(1, 8);
    for group in vector.chunks_mut(group.max(1)) {
        let head = take(bytes, 4)?;
        let (scale, zero) = (half(head), half(&head[2..]));
        let mut codes = vec![0; group.len()];
        unpack(take(bytes, packed_bytes(group.len(), bits))?, bits, &mut codes)?;
        for (x, code) in group.iter_mut().zip(codes) {
            *x = zero + scale * f32::from(code);
        }
    }
    Ok(())
}

/// Appends rows of `dim` elements as asymmetric integers per channel: `group` consecutive rows share a scale and a zero in
/// each channel (`KIVI`'s keys).
pub fn channel_encode(rows: &[f32], dim: usize, bits: u32, group: usize, out: &mut Vec<u8>) {
    let mut column = Vec::with_capacity(group);
    for block in rows.chunks(dim.max(1) * group.max(1)) {
        for channel in 0..dim {
            column.clear();
            column.extend(block.iter().skip(channel).step_by(dim));
            uniform_encode(&column, bits, group, out);
        }
    }
}

/// The rows that [`channel_encode`] wrote, which move out of `bytes`.
///
/// # Errors
/// Fewer bytes than the rows take.
pub fn channel_decode(bytes: &mut &[u8], dim: usize, bits: u32, group: usize, rows: &mut [f32]) -> Result<()> {
    let mut column = vec![0.0; group.max(1)];
    for block in rows.chunks_mut(dim.max(1) * group.max(1)) {
        let tokens = block.len() / dim.max(1);
        for channel in 0..dim {
            uniform_decode(bytes, bits, group, &mut column[..tokens])?;
            for (x, decoded) in block.iter_mut().skip(channel).step_by(dim).zip(&column) {
                *x = *decoded;
            }
        }
    }
    Ok(())
}
