//! Bits and 16-bit numbers: packing of small codes, FP16 and bf16.

use arrow::datatypes::{ArrowPrimitiveType, Float16Type};

use crate::error::{Error, Result};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Appends codes of `bits` bits each (1 to 8), lowest bits first, padded to a whole byte.
pub fn pack(codes: &[u8], bits: u32, out: &mut Vec<u8>) {
    let (mut held, mut count) = (0_u32, 0);
    for code in codes {
        held |= u32::from(*code) << count;
        count += bits;
        while count >= 8 {
            out.push(held as u8);
            held >>= 8;
            count -= 8;
        }
    }
    if count > 0 {
        out.push(held as u8);
    }
}

/// Codes of `bits` bits each (1 to 8) as [`pack`] wrote them.
///
/// # Errors
/// Fewer bytes than the codes take.
pub fn unpack(bytes: &[u8], bits: u32, codes: &mut [u8]) -> Result<()> {
    let needed = packed_bytes(codes.len(), bits);
    if bytes.len() < needed {
        return Err(Error::data(format!("expected {needed} bytes of packed codes, found {}", bytes.len())));
    }
    let mask = (1_u32 << bits) - 1;
    for (at, code) in codes.iter_mut().enumerate() {
        let bit = at * bits as usize;
        let low = u32::from(bytes[bit / 8]);
        let high = bytes.get(bit / 8 + 1).map_or(0, |byte| u32::from(*byte));
        *code = ((low | high << 8) >> (bit % 8) & mask) as u8;
    }
    Ok(())
}

/// Bytes of so many packed codes.
pub fn packed_bytes(codes: usize, bits: u32) -> usize {
    (codes * bits as usize).div_ceil(8)
}

/// The first `count` bytes, which move out of `bytes`.
///
/// # Errors
/// Fewer bytes than that.
pub(super) fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8]> {
    let (head, rest) = bytes
        .split_at_checked(count)
        .ok_or_else(|| Error::data(format!("expected {count} more bytes of encoded vectors, found {}", bytes.len())))?;
    *bytes = rest;
    Ok(head)
}

/// Appends a number as FP16.
pub(super) fn push_half(x: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&Half::from_f32(x).to_le_bytes());
}

/// FP16 from the first two bytes, 0 where there are none.
pub(super) fn half(bytes: &[u8]) -> f32 {
    if let [low, high, ..] = bytes { Half::from_le_bytes([*low, *high]).to_f32() } else { 0.0 }
}

/// The nearest FP16 number.
pub(super) fn to_half(x: f32) -> f32 {
    Half::from_f32(x).to_f32()
}

/// The nearest bf16 number, ties to even: the upper half of the bits of an f32.
pub fn bf16_encode(x: f32) -> u16 {
    if x.is_nan() {
        return 0x7fc0;
    }
    let bits = x.to_bits();
    // The largest finite f32 carries into infinity, as rounding to nearest asks for; nothing overflows 32 bits.
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// The number of a bf16 code.
pub fn bf16_decode(code: u16) -> f32 {
    f32::from_bits(u32::from(code) << 16)
}

/// Appends numbers as bf16.
pub(super) fn push_bf16(rows: &[f32], out: &mut Vec<u8>) {
    out.extend(rows.iter().flat_map(|x| bf16_encode(*x).to_le_bytes()));
}

/// Numbers as [`push_bf16`] wrote them, which move out of `bytes`.
///
/// # Errors
/// Too few bytes.
pub(super) fn take_bf16(bytes: &mut &[u8], rows: &mut [f32]) -> Result<()> {
    let codes = take(bytes, 2 * rows.len())?;
    for (x, code) in rows.iter_mut().zip(codes.as_chunks::<2>().0) {
        *x = bf16_decode(u16::from_le_bytes(*code));
    }
    Ok(())
}
