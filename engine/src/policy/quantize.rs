//! Number formats on real vectors: what they store, what comes back, and how far off it is.
//!
//! Each format encodes a vector to exactly the bytes that it takes in the cache and decodes it again. Codebooks of
//! `TurboQuant` (arXiv 2504.19874) are computed, not tabulated: after a random rotation a coordinate of a unit vector in
//! `d` dimensions, times `sqrt(d)`, has the density `f(y) ~ (1 - y^2 / d)^((d - 3) / 2)`, and Lloyd's iteration finds the
//! best levels for it.

use arrow::datatypes::{ArrowPrimitiveType, Float16Type};

use super::rng::Rng;
use crate::error::{Error, Result};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// The density of one coordinate, scaled to variance 1 and symmetric about 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Density {
    /// Of a unit vector on the sphere in so many dimensions (at least 3), times the root of them.
    Sphere(u32),
    /// The limit of many dimensions: normal.
    Gaussian,
}

/// Elements that a measured distortion averages over: about 0.5% accuracy in a few milliseconds.
const MEASURED_ELEMENTS: u32 = 1 << 17;

/// How far a level moves toward the centre of its interval. Lloyd's iteration moves by 1; its errors shrink by a factor
/// between 0 and 1 each time, so that any stride below 2 converges, and a longer one sooner.
const STRIDE: f64 = 1.8;

impl Density {
    /// Where the density ends, or has fallen below 1e-22.
    fn end(self) -> f64 {
        match self {
            Self::Sphere(dim) => f64::from(dim.max(3)).sqrt(),
            Self::Gaussian => 10.0,
        }
    }

    /// The density without its constant factor.
    fn at(self, y: f64) -> f64 {
        match self {
            Self::Sphere(dim) => {
                let dim = f64::from(dim.max(3));
                (1.0 - y * y / dim).max(0.0).powf((dim - 3.0) / 2.0)
            }
            Self::Gaussian => (-y * y / 2.0).exp(),
        }
    }

    /// The integral of `y` times the density without its constant factor, from `from` to `to`, in closed form.
    fn moment(self, from: f64, to: f64) -> f64 {
        match self {
            Self::Sphere(dim) => {
                let dim = f64::from(dim.max(3));
                let power = |y: f64| (1.0 - y * y / dim).max(0.0).powf((dim - 1.0) / 2.0);
                dim / (dim - 1.0) * (power(from) - power(to))
            }
            Self::Gaussian => (-from * from / 2.0).exp() - (-to * to / 2.0).exp(),
        }
    }

    /// The integral of the density without its constant factor.
    fn weight(self, from: f64, to: f64) -> f64 {
        simpson(&|y| self.at(y), from, to, 1e-11)
    }
}

/// Adaptive Simpson quadrature with Richardson's correction.
fn simpson(f: &impl Fn(f64) -> f64, from: f64, to: f64, tolerance: f64) -> f64 {
    let middle = f64::midpoint(from, to);
    let ends = (f(from), f(middle), f(to));
    let whole = (to - from) / 6.0 * (ends.0 + 4.0 * ends.1 + ends.2);
    refine(f, (from, to), ends, whole, tolerance, 24)
}

fn refine(
    f: &impl Fn(f64) -> f64,
    (from, to): (f64, f64),
    (low, mid, high): (f64, f64, f64),
    whole: f64,
    tolerance: f64,
    depth: u32,
) -> f64 {
    let middle = f64::midpoint(from, to);
    let (left_mid, right_mid) = (f(f64::midpoint(from, middle)), f(f64::midpoint(middle, to)));
    let left = (middle - from) / 6.0 * (low + 4.0 * left_mid + mid);
    let right = (to - middle) / 6.0 * (mid + 4.0 * right_mid + high);
    let change = left + right - whole;
    if depth == 0 || change.abs() <= 15.0 * tolerance {
        return left + right + change / 15.0;
    }
    refine(f, (from, middle), (low, left_mid, mid), left, tolerance / 2.0, depth - 1)
        + refine(f, (middle, to), (mid, right_mid, high), right, tolerance / 2.0, depth - 1)
}

/// The positive half of the best codebook of `2^bits` levels for this density, ascending, in units of its standard
/// deviation. `bits` from 1 to 8; other values are taken as the nearest of these.
pub fn codebook(bits: u32, density: Density) -> Vec<f64> {
    let count = 1_usize << (bits.clamp(1, 8) - 1);
    let reach = density.end().min(3.0);
    let mut levels: Vec<f64> = (0..count).map(|at| reach * (at as f64 + 0.5) / count as f64).collect();
    for _ in 0..20_000 {
        let bounds = bounds(&levels, density);
        let mut change = 0.0_f64;
        for (level, bound) in levels.iter_mut().zip(bounds.windows(2)) {
            let centre = density.moment(bound[0], bound[1]) / density.weight(bound[0], bound[1]);
            change = change.max((centre - *level).abs());
            *level += STRIDE * (centre - *level);
        }
        if change < 1e-9 {
            break;
        }
    }
    levels
}

/// Ends of the levels' intervals on the positive half, from 0 to the end of the density.
fn bounds(levels: &[f64], density: Density) -> Vec<f64> {
    let between = levels.windows(2).map(|pair| f64::midpoint(pair[0], pair[1]));
    std::iter::once(0.0).chain(between).chain(std::iter::once(density.end())).collect()
}

/// The mean squared error of a symmetric codebook, given by its positive half, on this density of variance 1.
pub fn codebook_distortion(levels: &[f64], density: Density) -> f64 {
    let half = density.weight(0.0, density.end());
    let bounds = bounds(levels, density);
    let terms = levels.iter().zip(bounds.windows(2)).map(|(level, bound)| {
        2.0 * level * density.moment(bound[0], bound[1]) - level * level * density.weight(bound[0], bound[1])
    });
    1.0 - terms.sum::<f64>() / half
}

/// `|x - x~|^2 / |x|^2` of `TurboQuant`'s MSE variant at this width (at least 3; smaller ones are taken as 3), exact: the
/// distortion of the codebook on the density of a rotated coordinate, POLICIES 3.6.
pub fn turboquant_distortion(bits: u32, dim: u32) -> f64 {
    let density = Density::Sphere(dim);
    codebook_distortion(&codebook(bits, density), density)
}

/// `d E|<y, x> - <y, x~>|^2 / (|x|^2 |y|^2)` of the inner-product variant: one bit goes to a sign sketch of the
/// residual, whose variance is `pi / 2` times the residual's energy.
pub fn turboquant_product_distortion(bits: u32, density: Density) -> f64 {
    let residual = if bits <= 1 { 1.0 } else { codebook_distortion(&codebook(bits - 1, density), density) };
    std::f64::consts::FRAC_PI_2 * residual
}

/// The mean of `|x - x~|^2 / |x|^2` over seeded normal vectors of this width: the stand-in for real ones where a format's
/// error has no closed form. `roundtrip` replaces a vector by what comes back from the cache.
pub fn measured(dim: u32, roundtrip: impl Fn(&mut [f32])) -> f64 {
    let dim = dim.max(1);
    let count = (MEASURED_ELEMENTS / dim).max(1);
    let mut rng = Rng::new(1);
    let mut vector = vec![0.0_f32; dim as usize];
    let mut decoded = vector.clone();
    let mut sum = 0.0;
    for _ in 0..count {
        vector.fill_with(|| rng.normal() as f32);
        decoded.copy_from_slice(&vector);
        roundtrip(&mut decoded);
        sum += relative_error(&vector, &decoded);
    }
    sum / f64::from(count)
}

/// `|x - x~|^2 / |x|^2`; 0 for a vector of zeros that comes back as such.
pub fn relative_error(vector: &[f32], decoded: &[f32]) -> f64 {
    let error: f64 = vector.iter().zip(decoded).map(|(x, y)| f64::from(x - y).powi(2)).sum();
    let energy: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum();
    if error == 0.0 { 0.0 } else { error / energy }
}

/// The nearest FP8 E4M3 code (1 sign, 4 exponent, 3 mantissa bits; bias 7; largest 448), ties to even, saturating.
pub fn fp8_encode(x: f32) -> u8 {
    let sign = ((x.to_bits() >> 31) as u8) << 7;
    if x.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = x.abs().min(448.0);
    // Below 2^-6 numbers are subnormal: multiples of 2^-9. Above, the step is 2^(exponent - 3).
    let exponent = (((magnitude.to_bits() >> 23) as i32) - 127).max(-6);
    let steps = (f64::from(magnitude) * 2.0_f64.powi(3 - exponent)).round_ties_even() as i32;
    // 16 steps carry into the next exponent, which the addition does by itself.
    sign | (((exponent + 6) << 3) + steps).clamp(0, 0x7e) as u8
}

/// The number of an FP8 E4M3 code.
pub fn fp8_decode(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 0xf), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2.0_f32.powi(-9),
        _ => (8.0 + mantissa) * 2.0_f32.powi(exponent - 10),
    };
    if code >> 7 == 1 { -magnitude } else { magnitude }
}

/// FP8 and back, with scale 1.
pub fn fp8_roundtrip(vector: &mut [f32]) {
    for x in vector {
        *x = fp8_decode(fp8_encode(*x));
    }
}

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
    let needed = (codes.len() * bits as usize).div_ceil(8);
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

/// Appends a number as FP16.
fn push_half(x: f32, out: &mut Vec<u8>) {
    out.extend_from_slice(&Half::from_f32(x).to_le_bytes());
}

/// FP16 from the first two bytes, 0 where there are none.
fn half(bytes: &[u8]) -> f32 {
    if let [low, high, ..] = bytes { Half::from_le_bytes([*low, *high]).to_f32() } else { 0.0 }
}

/// The nearest FP16 number.
fn to_half(x: f32) -> f32 {
    Half::from_f32(x).to_f32()
}

/// Appends a vector as symmetric 4-bit integers: per group an FP16 scale of the largest magnitude over 7, then the codes.
pub fn int4_encode(vector: &[f32], group: usize, out: &mut Vec<u8>) {
    for group in vector.chunks(group.max(1)) {
        let scale = to_half(group.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 7.0);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let code = |x: &f32| (x * inverse).round_ties_even().clamp(-7.0, 7.0) as i8 as u8 & 0xf;
        push_half(scale, out);
        let codes: Vec<u8> = group.iter().map(code).collect();
        pack(&codes, 4, out);
    }
}

/// The vector that [`int4_encode`] wrote.
///
/// # Errors
/// Fewer bytes than the vector takes.
pub fn int4_decode(bytes: &[u8], group: usize, vector: &mut [f32]) -> Result<()> {
    let mut rest = bytes;
    for group in vector.chunks_mut(group.max(1)) {
        let (scale, codes) = rest.split_at(rest.len().min(2));
        let mut read = vec![0; group.len()];
        unpack(codes, 4, &mut read)?;
        let scale = half(scale);
        for (x, code) in group.iter_mut().zip(&read) {
            *x = scale * f32::from((*code << 4) as i8 >> 4);
        }
        rest = &codes[group.len().div_ceil(2)..];
    }
    Ok(())
}

/// 4-bit integers and back.
pub fn int4_roundtrip(vector: &mut [f32], group: usize) {
    let mut bytes = Vec::with_capacity(vector.len());
    int4_encode(vector, group, &mut bytes);
    // The bytes were written for this very length.
    let _ = int4_decode(&bytes, group, vector);
}

/// Appends a vector as uniform asymmetric integers: FP16 scale and zero of the whole vector, then the codes.
pub fn uniform_encode(vector: &[f32], bits: u32, out: &mut Vec<u8>) {
    let top = f32::from(u8::MAX >> (8 - bits.clamp(1, 8)));
    let least = vector.iter().copied().fold(f32::INFINITY, f32::min);
    let most = vector.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let zero = to_half(least);
    let scale = to_half((most - zero) / top);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    push_half(scale, out);
    push_half(zero, out);
    let code = |x: &f32| ((x - zero) * inverse).round_ties_even().clamp(0.0, top) as u8;
    let codes: Vec<u8> = vector.iter().map(code).collect();
    pack(&codes, bits.clamp(1, 8), out);
}

/// The vector that [`uniform_encode`] wrote.
///
/// # Errors
/// Fewer bytes than the vector takes.
pub fn uniform_decode(bytes: &[u8], bits: u32, vector: &mut [f32]) -> Result<()> {
    let (head, codes) = bytes.split_at(bytes.len().min(4));
    let (scale, zero) = (half(head), half(head.get(2..).unwrap_or_default()));
    let mut read = vec![0; vector.len()];
    unpack(codes, bits.clamp(1, 8), &mut read)?;
    for (x, code) in vector.iter_mut().zip(read) {
        *x = zero + scale * f32::from(code);
    }
    Ok(())
}

/// Uniform integers and back.
pub fn uniform_roundtrip(vector: &mut [f32], bits: u32) {
    let mut bytes = Vec::with_capacity(vector.len() + 4);
    uniform_encode(vector, bits, &mut bytes);
    // The bytes were written for this very length.
    let _ = uniform_decode(&bytes, bits, vector);
}

/// Row-major orthogonal matrix of `dim` rows, uniform over all rotations and reflections: Gram-Schmidt on normal vectors.
pub fn haar_rotation(dim: u32, seed: u64) -> Vec<f32> {
    let dim = dim as usize;
    let mut rng = Rng::new(seed);
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(dim);
    while rows.len() < dim {
        let mut row: Vec<f64> = (0..dim).map(|_| rng.normal()).collect();
        // Twice, since one pass leaves rounding errors that grow with the dimension.
        for _ in 0..2 {
            for other in &rows {
                let along: f64 = row.iter().zip(other).map(|(x, y)| x * y).sum();
                for (x, y) in row.iter_mut().zip(other) {
                    *x -= along * y;
                }
            }
        }
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        for x in &mut row {
            *x /= norm;
        }
        rows.push(row);
    }
    rows.into_iter().flatten().map(|x| x as f32).collect()
}

/// What all vectors of one width share: rotation and codebook.
#[derive(Debug, Clone)]
pub struct TurboQuant {
    bits: u32,
    dim: usize,
    rotation: Vec<f32>,
    /// All levels, ascending, for coordinates of a unit vector.
    levels: Vec<f32>,
    bounds: Vec<f32>,
}

/// Rotation and codebook for vectors of this width.
pub fn turboquant(bits: u32, dim: u32, seed: u64) -> TurboQuant {
    let positive = codebook(bits, Density::Sphere(dim));
    let unit = 1.0 / f64::from(dim.max(1)).sqrt();
    let levels = positive.iter().rev().map(|level| -level).chain(positive.iter().copied());
    let levels: Vec<f32> = levels.map(|level| (level * unit) as f32).collect();
    let bounds = levels.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
    TurboQuant { bits: bits.clamp(1, 8), dim: dim as usize, rotation: haar_rotation(dim, seed), levels, bounds }
}

/// Appends a vector: an FP16 norm, then the codes. With `is_corrected` the stored norm makes up for the codebook's
/// shrinking, so that what comes back has the norm of the vector.
///
/// # Errors
/// A vector of another width.
pub fn turboquant_encode(quantizer: &TurboQuant, vector: &[f32], is_corrected: bool, out: &mut Vec<u8>) -> Result<()> {
    check_width(quantizer, vector.len())?;
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let inverse = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    let mut codes = Vec::with_capacity(quantizer.dim);
    let mut energy = 0.0_f32;
    for row in quantizer.rotation.chunks_exact(quantizer.dim) {
        let y = row.iter().zip(vector).map(|(r, x)| r * x).sum::<f32>() * inverse;
        let code = quantizer.bounds.partition_point(|bound| *bound < y);
        energy += quantizer.levels[code].powi(2);
        codes.push(code as u8);
    }
    push_half(if is_corrected { norm / energy.sqrt() } else { norm }, out);
    pack(&codes, quantizer.bits, out);
    Ok(())
}

/// The vector that [`turboquant_encode`] wrote.
///
/// # Errors
/// A vector of another width, or fewer bytes than it takes.
pub fn turboquant_decode(quantizer: &TurboQuant, bytes: &[u8], vector: &mut [f32]) -> Result<()> {
    check_width(quantizer, vector.len())?;
    let (norm, packed) = bytes.split_at(bytes.len().min(2));
    let norm = half(norm);
    let mut codes = vec![0; quantizer.dim];
    unpack(packed, quantizer.bits, &mut codes)?;
    vector.fill(0.0);
    for (row, code) in quantizer.rotation.chunks_exact(quantizer.dim).zip(codes) {
        let y = norm * quantizer.levels[usize::from(code)];
        for (x, r) in vector.iter_mut().zip(row) {
            *x += r * y;
        }
    }
    Ok(())
}

fn check_width(quantizer: &TurboQuant, width: usize) -> Result<()> {
    if width == quantizer.dim {
        return Ok(());
    }
    Err(Error::data(format!("expected a vector of {} elements, found {width}", quantizer.dim)))
}

#[cfg(test)]
mod tests;
