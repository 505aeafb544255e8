//! Codebooks of `TurboQuant` (arXiv 2504.19874): computed, not tabulated.
//!
//! After a random rotation a coordinate of a unit vector in `d` dimensions, times `sqrt(d)`, has the density
//! `f(y) ~ (1 - y^2 / d)^((d - 3) / 2)`; Lloyd's iteration finds the best levels for it, and the closed forms of POLICIES
//! 3.6 follow from their distortion.

/// The density of one coordinate, scaled to variance 1 and symmetric about 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Density {
    /// Of a unit vector on the sphere in so many dimensions (at least 3), times the root of them.
    Sphere(u32),
    /// The limit of many dimensions: normal.
    Gaussian,
}

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
