//! `TurboQuant` (arXiv 2504.19874) on real vectors: a random rotation, the codebook of its coordinates, and a sign sketch.
//!
//! Algorithm 1 (`mse`) rotates the unit vector, codes each coordinate by the nearest level and stores the norm. Algorithm 2
//! (`prod`) spends one bit less on that and stores the signs of a Gaussian projection of the residual and the residual's
//! norm, which makes inner products unbiased. Norm correction, as in vLLM, divides the stored norm by the norm of the
//! coded direction, so that what comes back has the norm of the vector.

use super::super::rng::Rng;
use super::bits::{half, pack, packed_bytes, push_half, take, to_half, unpack};
use super::codebook::{Density, codebook};
use crate::error::{Error, Result};

/// How a rotated vector is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Algorithm 1.
    Mse,
    /// Algorithm 1 with the norm corrected.
    Corrected,
    /// Algorithm 2.
    Prod,
}

/// What all vectors of one width share: rotation, codebook and projection.
#[derive(Debug, Clone)]
pub struct TurboQuant {
    variant: Variant,
    /// Bits of a coordinate's code; 0 leaves all to the sketch.
    bits: u32,
    dim: usize,
    rotation: Vec<f32>,
    /// All levels, ascending, for coordinates of a unit vector.
    levels: Vec<f32>,
    bounds: Vec<f32>,
    /// Row-major normal matrix; empty but for `prod`.
    projection: Vec<f32>,
}

/// Bytes of one vector: codes, the norm, and for `prod` the signs and the residual's norm.
pub fn turboquant_bytes(variant: Variant, bits: u32, dim: usize) -> usize {
    match variant {
        Variant::Mse | Variant::Corrected => packed_bytes(dim, bits) + 2,
        Variant::Prod => packed_bytes(dim, bits.saturating_sub(1)) + packed_bytes(dim, 1) + 4,
    }
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

/// Rotation and codebook for vectors of this width at `bits` bits per element (1 to 8).
pub fn turboquant(variant: Variant, bits: u32, dim: u32, seed: u64) -> TurboQuant {
    let bits = bits.clamp(1, 8) - u32::from(variant == Variant::Prod);
    let width = dim as usize;
    let unit = 1.0 / f64::from(dim.max(1)).sqrt();
    let positive = if bits == 0 { Vec::new() } else { codebook(bits, Density::Sphere(dim)) };
    let levels = positive.iter().rev().map(|level| -level).chain(positive.iter().copied());
    let levels: Vec<f32> = levels.map(|level| (level * unit) as f32).collect();
    let bounds = levels.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
    // A stream of its own, so that the projection does not depend on the rotation.
    let mut rng = Rng::of(&[seed, 1]);
    let sketched = if variant == Variant::Prod { width * width } else { 0 };
    let projection = (0..sketched).map(|_| rng.normal() as f32).collect();
    TurboQuant { variant, bits, dim: width, rotation: haar_rotation(dim, seed), levels, bounds, projection }
}

/// Appends a vector: an FP16 norm, the codes, and for `prod` the FP16 norm and the signs of the residual.
///
/// # Errors
/// A vector of another width.
pub fn turboquant_encode(quantizer: &TurboQuant, vector: &[f32], out: &mut Vec<u8>) -> Result<()> {
    check_width(quantizer, vector.len())?;
    let norm = norm(vector);
    let inverse = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    let mut codes = Vec::with_capacity(quantizer.dim);
    let mut energy = 0.0_f32;
    if quantizer.bits > 0 {
        for row in quantizer.rotation.chunks_exact(quantizer.dim) {
            let y = dot(row, vector) * inverse;
            let code = quantizer.bounds.partition_point(|bound| *bound < y);
            energy += quantizer.levels.get(code).map_or(0.0, |level| level * level);
            codes.push(code as u8);
        }
    }
    let stored = if quantizer.variant == Variant::Corrected { norm / energy.sqrt() } else { norm };
    push_half(stored, out);
    pack(&codes, quantizer.bits, out);
    if quantizer.variant == Variant::Prod {
        let mut residual = vec![0.0; quantizer.dim];
        restore(quantizer, to_half(stored), &codes, &mut residual);
        for (r, x) in residual.iter_mut().zip(vector) {
            *r = x - *r;
        }
        push_half(self::norm(&residual), out);
        let signs: Vec<u8> =
            quantizer.projection.chunks_exact(quantizer.dim).map(|row| u8::from(dot(row, &residual) >= 0.0)).collect();
        pack(&signs, 1, out);
    }
    Ok(())
}

/// The vector that [`turboquant_encode`] wrote, which moves out of `bytes`.
///
/// # Errors
/// A vector of another width, or fewer bytes than it takes.
pub fn turboquant_decode(quantizer: &TurboQuant, bytes: &mut &[u8], vector: &mut [f32]) -> Result<()> {
    check_width(quantizer, vector.len())?;
    let norm = half(take(bytes, 2)?);
    let mut codes = vec![0; if quantizer.bits == 0 { 0 } else { quantizer.dim }];
    unpack(take(bytes, packed_bytes(codes.len(), quantizer.bits))?, quantizer.bits.max(1), &mut codes)?;
    restore(quantizer, norm, &codes, vector);
    if quantizer.variant == Variant::Prod {
        let residual = half(take(bytes, 2)?);
        let mut signs = vec![0; quantizer.dim];
        unpack(take(bytes, packed_bytes(quantizer.dim, 1))?, 1, &mut signs)?;
        // sqrt(pi / 2) / d times the residual's norm: what makes the estimate unbiased.
        let scale = std::f32::consts::FRAC_PI_2.sqrt() / quantizer.dim as f32 * residual;
        for (row, sign) in quantizer.projection.chunks_exact(quantizer.dim).zip(signs) {
            add_scaled(vector, row, if sign == 1 { scale } else { -scale });
        }
    }
    Ok(())
}

/// The rotation undone on the levels of the codes, times the norm.
fn restore(quantizer: &TurboQuant, norm: f32, codes: &[u8], vector: &mut [f32]) {
    vector.fill(0.0);
    for (row, code) in quantizer.rotation.chunks_exact(quantizer.dim.max(1)).zip(codes) {
        let level = quantizer.levels.get(usize::from(*code)).copied().unwrap_or(0.0);
        add_scaled(vector, row, norm * level);
    }
}

fn add_scaled(vector: &mut [f32], row: &[f32], scale: f32) {
    for (x, r) in vector.iter_mut().zip(row) {
        *x += r * scale;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn norm(vector: &[f32]) -> f32 {
    dot(vector, vector).sqrt()
}

fn check_width(quantizer: &TurboQuant, width: usize) -> Result<()> {
    if width == quantizer.dim {
        return Ok(());
    }
    Err(Error::data(format!("expected a vector of {} elements, found {width}", quantizer.dim)))
}

/// The channels of rows of `dim` elements, those with the most energy first; among equals the lower one.
///
/// Which channels get the extra bit in mixed widths is not published; the energy over the rows at hand is taken.
pub fn channels_by_energy(rows: &[f32], dim: usize) -> Vec<u16> {
    let mut energy = vec![0.0_f64; dim];
    for row in rows.chunks_exact(dim.max(1)) {
        for (sum, x) in energy.iter_mut().zip(row) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    let mut order: Vec<u16> = (0..dim).map(|channel| channel as u16).collect();
    order.sort_by(|a, b| energy[usize::from(*b)].total_cmp(&energy[usize::from(*a)]).then(a.cmp(b)));
    order
}
