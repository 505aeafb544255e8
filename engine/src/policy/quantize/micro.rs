//! Four-bit floating point with small blocks: NVFP4 and MXFP4 (POLICIES 3.1, 3.5; OCP microscaling specification 1.0).

use super::bits::{pack, packed_bytes, take, unpack};
use super::fp8::{Fp8, fp8_decode, fp8_encode};
use crate::error::Result;

/// Elements that share a scale in NVFP4.
pub const NVFP4_BLOCK: usize = 16;

/// Elements that share a scale in MXFP4.
pub const MXFP4_BLOCK: usize = 32;

/// Magnitudes of E2M1 by code.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Midpoints between them; a tie goes to the even code.
const E2M1_BOUNDS: [(f32, bool); 7] =
    [(0.25, true), (0.75, false), (1.25, true), (1.75, false), (2.5, true), (3.5, false), (5.0, true)];

/// The nearest E2M1 code (1 sign, 2 exponent, 1 mantissa bit), ties to even, saturating at 6.
pub fn e2m1_encode(x: f32) -> u8 {
    let magnitude = x.abs();
    // A tie at the bound goes down where the lower code is even.
    let is_above = |(bound, is_even): &(f32, bool)| magnitude > *bound || (magnitude >= *bound && !is_even);
    let code = E2M1_BOUNDS.iter().take_while(|bound| is_above(bound)).count() as u8;
    code | u8::from(x.is_sign_negative()) << 3
}

/// The number of an E2M1 code.
pub fn e2m1_decode(code: u8) -> f32 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Appends rows of `dim` elements as NVFP4: one FP32 scale of the tensor, `amax / (6 * 448)`, then per row and block of 16
/// an E4M3 scale and the codes.
pub fn nvfp4_encode(rows: &[f32], dim: usize, out: &mut Vec<u8>) {
    let largest = rows.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let tensor = largest / (6.0 * 448.0);
    out.extend_from_slice(&tensor.to_le_bytes());
    for block in rows.chunks(dim.max(1)).flat_map(|row| row.chunks(NVFP4_BLOCK)) {
        let wanted = block.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 6.0;
        let code = if tensor > 0.0 { fp8_encode(Fp8::E4m3, wanted / tensor) } else { 0 };
        out.push(code);
        push_scaled(block, fp8_decode(Fp8::E4m3, code) * tensor, out);
    }
}

/// The rows that [`nvfp4_encode`] wrote, which move out of `bytes`.
///
/// # Errors
/// Fewer bytes than the rows take.
pub fn nvfp4_decode(bytes: &mut &[u8], dim: usize, rows: &mut [f32]) -> Result<()> {
    let tensor = take(bytes, 4)?.first_chunk().map_or(0.0, |scale| f32::from_le_bytes(*scale));
    for block in rows.chunks_mut(dim.max(1)).flat_map(|row| row.chunks_mut(NVFP4_BLOCK)) {
        let scale = take(bytes, 1)?.first().map_or(0.0, |code| fp8_decode(Fp8::E4m3, *code)) * tensor;
        take_scaled(bytes, scale, block)?;
    }
    Ok(())
}

/// Appends a vector as MXFP4: per block of 32 an E8M0 scale, `2^(floor(log2(amax)) - 2)`, and the codes.
pub fn mxfp4_encode(vector: &[f32], out: &mut Vec<u8>) {
    for block in vector.chunks(MXFP4_BLOCK) {
        let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        // The exponent of a normal f32; 2 is the exponent of the largest E2M1 number.
        let exponent = ((largest.to_bits() >> 23) as i32 - 127 - 2).clamp(-127, 127);
        out.push((exponent + 127) as u8);
        push_scaled(block, power(exponent), out);
    }
}

/// The vector that [`mxfp4_encode`] wrote, which moves out of `bytes`.
///
/// # Errors
/// Fewer bytes than the vector takes.
pub fn mxfp4_decode(bytes: &mut &[u8], vector: &mut [f32]) -> Result<()> {
    for block in vector.chunks_mut(MXFP4_BLOCK) {
        let exponent = take(bytes, 1)?.first().map_or(0, |code| i32::from(*code) - 127);
        take_scaled(bytes, power(exponent), block)?;
    }
    Ok(())
}

fn power(exponent: i32) -> f32 {
    2.0_f64.powi(exponent) as f32
}

fn push_scaled(block: &[f32], scale: f32, out: &mut Vec<u8>) {
    let inverse = if scale > 0.0 { 1.0 / f64::from(scale) } else { 0.0 };
    let codes: Vec<u8> = block.iter().map(|x| e2m1_encode((f64::from(*x) * inverse) as f32)).collect();
    pack(&codes, 4, out);
}

fn take_scaled(bytes: &mut &[u8], scale: f32, block: &mut [f32]) -> Result<()> {
    let mut codes = vec![0; block.len()];
    unpack(take(bytes, packed_bytes(block.len(), 4))?, 4, &mut codes)?;
    for (x, code) in block.iter_mut().zip(codes) {
        *x = scale * e2m1_decode(code);
    }
    Ok(())
}
