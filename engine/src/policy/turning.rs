//! The predicted damage of a policy: by how much it turns the outputs of the attention layers.
//!
//! **Definition.** For each step and layer, let `o` be the exact output of all query heads, one after the other, and `o'`
//! what the policy leaves. The predicted error is the mean over steps and layers of `1 - cos(o, o')`.
//!
//! Why the angle: what a layer adds to the residual stream is read through a normalisation, so directions carry the
//! information, and for small errors `1 - cos` is half the squared relative error across the output, as the divergence of
//! the model's predictions is quadratic in a small disturbance. A difference of length says less than it seems: where a
//! sink with a small value is dropped, renormalisation makes the output longer without turning it, which the relative error
//! counts in full and without a bound. Why per layer: heads are summed by the output projection, and a head with a small
//! output does little harm however wrong it is. Why a plain mean over layers: each one is read at the same scale, and no
//! weights have to be fitted.
//!
//! From norms and masses alone, lengths and products are estimated with one number per step and head: the coherence `r`,
//! the mean cosine between values, which the recorded norm of the output fixes. With the sums `A = sum a |v|` and
//! `B = sum a^2 |v|^2` over all tokens, `|o|^2 = B + r (A^2 - B)`; the same form gives the part that is kept, and `r A A'`
//! the product of what is kept and what is dropped. Noise of a number format is taken as orthogonal to the output.

use super::vectors::OutputError;

/// Sums over the query heads of one layer in one step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Turn {
    /// `|o|^2`.
    pub out_sq: f64,
    /// `|o'|^2`.
    pub left_sq: f64,
    /// `<o, o'>`.
    pub product: f64,
}

/// Sums over tokens with weights `a` and value norms `|v|`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// `sum a`.
    pub mass: f64,
    /// `sum a |v|`.
    pub linear: f64,
    /// `sum a^2 |v|^2`.
    pub square: f64,
}

impl Sums {
    /// Adds a unit of this mass, whose tokens have the shares `share` of it (evenly spread where `None`) and these norms of
    /// V.
    pub fn add(&mut self, mass: f64, share: Option<&[f32]>, value_norms: &[f32]) {
        let even = 1.0 / value_norms.len().max(1) as f64;
        self.mass += mass;
        for (at, norm) in value_norms.iter().enumerate() {
            let share = share.and_then(|share| share.get(at)).map_or(even, |share| f64::from(*share));
            let term = mass * share * f64::from(*norm);
            self.linear += term;
            self.square += term * term;
        }
    }

    /// Adds a unit of this mass from sums over its tokens: `sum r |v|` and `sum r^2 |v|^2` with shares `r` of the mass.
    pub fn add_unit(&mut self, mass: f64, linear: f64, square: f64) {
        self.mass += mass;
        self.linear += mass * linear;
        self.square += mass * mass * square;
    }

    /// The squared length of the weighted sum of values that have this coherence.
    fn length_sq(&self, coherence: f64) -> f64 {
        self.square + coherence * (self.linear * self.linear - self.square)
    }
}

impl Turn {
    /// Adds the exact error of one query head.
    pub fn add(&mut self, error: &OutputError) {
        self.out_sq += error.out_sq;
        self.left_sq += error.left_sq;
        self.product += error.product;
    }

    /// Adds the estimate for one head from norms: sums over what is kept and what is dropped, the recorded norm of the
    /// exact output, and the squared noise of the number format relative to the output.
    pub fn add_estimate(&mut self, kept: Sums, dropped: Sums, out_norm: f64, noise_sq: f64) {
        let all = Sums {
            mass: kept.mass + dropped.mass,
            linear: kept.linear + dropped.linear,
            square: kept.square + dropped.square,
        };
        let spread = all.linear * all.linear - all.square;
        let coherence = if spread > 0.0 { ((out_norm * out_norm - all.square) / spread).clamp(0.0, 1.0) } else { 0.0 };
        let out_sq = all.length_sq(coherence);
        self.out_sq += out_sq;
        if kept.mass > 0.0 {
            // What is kept is renormalised.
            let factor = all.mass / kept.mass;
            let length = kept.length_sq(coherence);
            self.left_sq += factor * factor * length + noise_sq.max(0.0) * out_sq;
            self.product += factor * (length + coherence * kept.linear * dropped.linear);
        }
    }

    /// `1 - cos(o, o')`, from 0 to 2; 1 where one of them is zero and the other is not.
    pub fn error(&self) -> f64 {
        let scale = (self.out_sq * self.left_sq).sqrt();
        if scale > 0.0 {
            // Rounding may leave a cosine a little above 1.
            (1.0 - self.product / scale).max(0.0)
        } else if self.out_sq > 0.0 || self.left_sq > 0.0 {
            1.0
        } else {
            0.0
        }
    }
}

/// The predicted error: the mean over all steps and layers. 0 where there are none.
pub fn predicted_error(turns: &[Turn]) -> f64 {
    turns.iter().map(Turn::error).sum::<f64>() / turns.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::rng::Rng;
    use super::*;

    #[test]
    fn only_the_direction_counts() {
        let turn = |left: [f64; 2]| Turn {
            out_sq: 25.0,
            left_sq: left[0] * left[0] + left[1] * left[1],
            product: 3.0 * left[0] + 4.0 * left[1],
        };
        assert!(turn([3.0, 4.0]).error().abs() < 1e-15);
        assert!(turn([30.0, 40.0]).error().abs() < 1e-15, "a longer output is not turned");
        assert!((turn([4.0, -3.0]).error() - 1.0).abs() < 1e-15);
        assert!((turn([-3.0, -4.0]).error() - 2.0).abs() < 1e-15);
        assert!((turn([0.0, 0.0]).error() - 1.0).abs() < 1e-15, "nothing is left");
        assert!(Turn::default().error().abs() < 1e-15);
        let mean = predicted_error(&[turn([3.0, 4.0]), turn([4.0, -3.0])]);
        assert!((mean - 0.5).abs() < 1e-15);
        assert!(predicted_error(&[]).abs() < 1e-15);
    }

    /// Values with a common mean, as the estimate assumes: against the exact vectors, over many draws.
    #[test]
    fn the_estimate_from_norms_is_that_of_vectors() {
        let (tokens, dim) = (64, 64);
        let (mut exact, mut estimated) = (0.0, 0.0);
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let values: Vec<Vec<f64>> = (0..tokens).map(|_| (0..dim).map(|_| rng.normal() + 0.6).collect()).collect();
            let raw: Vec<f64> = (0..tokens).map(|_| (1.5 * rng.normal()).exp()).collect();
            let sum: f64 = raw.iter().sum();
            let mass: Vec<f64> = raw.iter().map(|weight| weight / sum).collect();
            let part = |kept: &dyn Fn(usize) -> bool| -> Vec<f64> {
                let chosen = || (0..tokens).filter(|at| kept(*at));
                let total: f64 = chosen().map(|at| mass[at]).sum();
                (0..dim).map(|c| chosen().map(|at| mass[at] * values[at][c]).sum::<f64>() / total).collect()
            };
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
            let is_kept = |at: usize| at.is_multiple_of(3);
            let (all, left) = (part(&|_| true), part(&is_kept));
            exact += Turn { out_sq: dot(&all, &all), left_sq: dot(&left, &left), product: dot(&all, &left) }.error();
            let (mut kept, mut dropped) = (Sums::default(), Sums::default());
            for (at, value) in values.iter().enumerate() {
                let sums = if is_kept(at) { &mut kept } else { &mut dropped };
                sums.add(mass[at], None, &[dot(value, value).sqrt() as f32]);
            }
            let mut turn = Turn::default();
            turn.add_estimate(kept, dropped, dot(&all, &all).sqrt(), 0.0);
            estimated += turn.error();
        }
        assert!((estimated / exact - 1.0).abs() < 0.1, "{estimated} {exact}");
    }

    #[test]
    fn nothing_dropped_and_no_noise_is_no_error() {
        let mut kept = Sums::default();
        kept.add(0.7, Some(&[0.5, 0.5]), &[1.0, 2.0]);
        kept.add(0.3, None, &[3.0, 1.0]);
        let mut turn = Turn::default();
        turn.add_estimate(kept, Sums::default(), 1.2, 0.0);
        assert!(turn.error() < 1e-12);
        // Orthogonal noise of half the length turns by the arc tangent of a half.
        let mut noisy = Turn::default();
        noisy.add_estimate(kept, Sums::default(), 1.2, 0.25);
        assert!((noisy.error() - (1.0 - 1.0 / 1.25_f64.sqrt())).abs() < 1e-12);
    }

    proptest! {
        /// The estimate never leaves the range of an angle, whatever the norms.
        #[test]
        fn estimates_stay_in_range(
            norms in prop::collection::vec((0.0_f64..1.0, 0.0_f32..10.0, any::<bool>()), 1..50), out in 0.0_f64..20.0,
        ) {
            let (mut kept, mut dropped) = (Sums::default(), Sums::default());
            for (mass, norm, is_kept) in norms {
                (if is_kept { &mut kept } else { &mut dropped }).add(mass, None, &[norm]);
            }
            let mut turn = Turn::default();
            turn.add_estimate(kept, dropped, out, 0.0);
            prop_assert!((0.0..=1.0 + 1e-9).contains(&turn.error()), "{:?}", turn);
        }
    }
}
