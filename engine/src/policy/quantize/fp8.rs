//! FP8: E4M3 and E5M2 elements with a scale of 1 (POLICIES 3.4; OCP 8-bit floating point specification).

/// Which split of the 7 bits beside the sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8 {
    /// 4 exponent and 3 mantissa bits; bias 7, largest 448, no infinity.
    E4m3,
    /// 5 exponent and 2 mantissa bits; bias 15, largest 57,344.
    E5m2,
}

impl Fp8 {
    /// Mantissa bits, exponent of the least normal number, the largest finite number and its code.
    fn limits(self) -> (i32, i32, f32, i32) {
        match self {
            Self::E4m3 => (3, -6, 448.0, 0x7e),
            Self::E5m2 => (2, -14, 57_344.0, 0x7b),
        }
    }
}

/// The nearest code, ties to even, saturating.
pub fn fp8_encode(kind: Fp8, x: f32) -> u8 {
    let (mantissa, least, largest, top) = kind.limits();
    let sign = ((x.to_bits() >> 31) as u8) << 7;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = x.abs().min(largest);
    // Below the least normal number the step stays that of the least exponent; above it is 2^(exponent - mantissa).
    let exponent = (((magnitude.to_bits() >> 23) as i32) - 127).max(least);
    let steps = (f64::from(magnitude) * 2.0_f64.powi(mantissa - exponent)).round_ties_even() as i32;
    // Rounding up past the last step carries into the next exponent, which the addition does by itself.
    sign | (((exponent - least) << mantissa) + steps).clamp(0, top) as u8
}

/// The number of a code.
pub fn fp8_decode(kind: Fp8, code: u8) -> f32 {
    let (mantissa, least, _, top) = kind.limits();
    let code_bits = i32::from(code & 0x7f);
    let (exponent, fraction) = (code_bits >> mantissa, code_bits & ((1 << mantissa) - 1));
    let magnitude = if code_bits > top {
        // E5M2 has an infinity at 0x7c; the codes above are no numbers.
        if kind == Fp8::E5m2 && fraction == 0 { f32::INFINITY } else { f32::NAN }
    } else if exponent == 0 {
        fraction as f32 * 2.0_f32.powi(least - mantissa)
    } else {
        (fraction + (1 << mantissa)) as f32 * 2.0_f32.powi(exponent - 1 + least - mantissa)
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}
