use proptest::prelude::*;

use super::super::quantize::{Coding, roundtrip};
use super::super::rng::Rng;
use super::*;

/// Random vectors: `steps` steps of two query heads on `tokens` tokens.
struct Sample {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    contexts: Vec<u32>,
    dims: (usize, usize),
}

fn sample(steps: usize, tokens: usize, dims: (usize, usize), seed: u64) -> Sample {
    let mut rng = Rng::new(seed);
    let mut rows = |count: usize| -> Vec<f32> { (0..count).map(|_| rng.normal() as f32).collect() };
    Sample {
        queries: rows(steps * 2 * dims.0),
        keys: rows(tokens * dims.0),
        values: rows(tokens * dims.1),
        contexts: (0..steps).map(|step| (tokens - (steps - 1 - step).min(tokens - 1)) as u32).collect(),
        dims,
    }
}

impl Sample {
    fn vectors(&self) -> Vectors<'_> {
        Vectors {
            queries: &self.queries,
            keys: &self.keys,
            values: &self.values,
            key_dim: self.dims.0,
            value_dim: self.dims.1,
            group: 2,
            contexts: &self.contexts,
        }
    }
}

/// The slow and obvious output: softmax over the listed (weight, key, value), no shift, one element at a time.
fn attend(query: &[f32], pairs: &[(f64, Vec<f32>, Vec<f32>)], dim: usize) -> Vec<f64> {
    let exp: Vec<f64> = pairs
        .iter()
        .map(|(weight, key, _)| {
            let mut sum = 0.0;
            for at in 0..query.len() {
                sum += f64::from(query[at]) * f64::from(key[at]);
            }
            weight * (sum / (query.len() as f64).sqrt()).exp()
        })
        .collect();
    let sum: f64 = exp.iter().sum();
    (0..dim).map(|at| pairs.iter().zip(&exp).map(|((_, _, value), e)| e / sum * f64::from(value[at])).sum()).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
}

fn norm(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Pairs of this context that are kept, by the slow way, with these keys and values.
fn pairs(
    sample: &Sample,
    keys: &[f32],
    values: &[f32],
    kept: &dyn Fn(usize) -> bool,
    context: usize,
) -> Vec<(f64, Vec<f32>, Vec<f32>)> {
    let (dk, dv) = sample.dims;
    let chosen = (0..context).filter(|at| kept(*at));
    chosen.map(|at| (1.0, keys[at * dk..][..dk].to_vec(), values[at * dv..][..dv].to_vec())).collect()
}

proptest! {
    /// All parts against the slow reference, with dropped tokens, quantized copies, a stand-in and marks per step.
    #[test]
    fn parts_are_those_of_a_slow_reference(
        seed in any::<u64>(), steps in 1_usize..4, tokens in 2_usize..40, share in 0.1_f64..1.0, per_step in any::<bool>(),
        with_stand_in in any::<bool>(),
    ) {
        let sample = sample(steps, tokens, (12, 7), seed);
        let vectors = sample.vectors();
        let mut rng = Rng::new(seed ^ 1);
        // The first token is always kept, so that something is.
        let marks: Vec<bool> = (0..steps * tokens).map(|at| at % tokens == 0 || rng.uniform() < share).collect();
        let kept = if per_step { Kept::PerStep(&marks, tokens) } else { Kept::Fixed(&marks[..tokens]) };
        let keys = roundtrip(Coding::Symmetric { bits: 4, group: 128 }, &sample.keys, 12).unwrap().0;
        let values = roundtrip(Coding::Symmetric { bits: 3, group: 128 }, &sample.values, 7).unwrap().0;
        let extra: Vec<StandIn> = if with_stand_in {
            vec![StandIn { key: sample.keys[..12].to_vec(), value: sample.values[7..14].to_vec(), weight: 3.0 }]
        } else {
            Vec::new()
        };
        let cache = Cache { kept, keys: Some(&keys), values: Some(&values), stand_ins: &extra };
        let found = output_errors(&vectors, &cache).unwrap();
        prop_assert_eq!(found.len(), steps * 2);
        for (at, error) in found.iter().enumerate() {
            let (step, context) = (at / 2, sample.contexts[at / 2] as usize);
            let query = &sample.queries[at * 12..][..12];
            let is_kept = |token: usize| if per_step { marks[step * tokens + token] } else { marks[token] };
            let with = |keys: &[f32], values: &[f32]| {
                let mut pairs = pairs(&sample, keys, values, &is_kept, context);
                pairs.extend(extra.iter().map(|pair| (pair.weight, pair.key.clone(), pair.value.clone())));
                attend(query, &pairs, 7)
            };
            let exact = attend(query, &pairs(&sample, &sample.keys, &sample.values, &|_| true, context), 7);
            let (selected, by_key) = (with(&sample.keys, &sample.values), with(&keys, &sample.values));
            let left = with(&keys, &values);
            let scale = norm(&exact);
            for (found, expected) in [
                (error.total, distance(&exact, &left) / scale),
                (error.selection, distance(&exact, &selected) / scale),
                (error.key, distance(&selected, &by_key) / scale),
                (error.value, distance(&by_key, &left) / scale),
                (error.out_sq, scale * scale),
                (error.left_sq, norm(&left).powi(2)),
                (error.product, exact.iter().zip(&left).map(|(x, y)| x * y).sum()),
            ] {
                prop_assert!((found - expected).abs() < 1e-4 * (1.0 + expected.abs()), "{} {}", found, expected);
            }
            prop_assert!(error.total <= error.selection + error.key + error.value + 1e-9);
        }
    }

    /// POLICIES 7.10: `o - o' = m (vbar_E - o')` on random vectors.
    #[test]
    fn lost_mass_identity_holds(seed in any::<u64>(), tokens in 3_usize..30) {
        let sample = sample(1, tokens, (8, 5), seed);
        let vectors = sample.vectors();
        let marks: Vec<bool> = (0..tokens).map(|at| at % 2 == 0).collect();
        let cache = Cache { kept: Kept::Fixed(&marks), ..Cache::FULL };
        let found = output_errors(&vectors, &cache).unwrap()[0];
        let query = &sample.queries[..8];
        let of = |kept: &dyn Fn(usize) -> bool| attend(query, &pairs(&sample, &sample.keys, &sample.values, kept, tokens), 5);
        let (left, dropped) = (of(&|at| marks[at]), of(&|at| !marks[at]));
        let exact = of(&|_| true);
        for ((o, left), dropped) in exact.iter().zip(&left).zip(&dropped) {
            prop_assert!((o - left - found.lost_mass * (dropped - left)).abs() < 1e-5);
        }
        let expected = found.lost_mass * distance(&dropped, &left) / norm(&exact);
        prop_assert!((found.selection - expected).abs() < 1e-4 * (1.0 + expected));
        prop_assert!((found.total - found.selection).abs() < 1e-12, "nothing else is wrong");
    }

    /// A solver against trying all shares.
    #[test]
    fn the_smallest_share_is_found(drops in prop::collection::vec(0.0_f64..1.0, 1..60), budget in 0.0_f64..20.0) {
        let steps = drops.len() as u32;
        let total: f64 = drops.iter().sum();
        let error = |share: f64| {
            let count = (share * f64::from(steps)).round() as usize;
            total - drops[..count].iter().sum::<f64>()
        };
        let found = smallest_share(budget, steps, |share| Ok(error(share))).unwrap();
        let expected = (0..=steps).map(|at| f64::from(at) / f64::from(steps)).find(|share| error(*share) <= budget);
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn nothing_lost_is_no_error() {
    let sample = sample(3, 20, (16, 16), 1);
    let vectors = sample.vectors();
    for cache in [Cache::FULL, Cache { keys: Some(&sample.keys), values: Some(&sample.values), ..Cache::FULL }] {
        for error in output_errors(&vectors, &cache).unwrap() {
            assert!(error.total < 1e-12 && error.lost_mass < 1e-12, "{error:?}");
        }
    }
    assert_eq!(stand_in(&vectors, &[true; 20]), None);
}

#[test]
fn everything_dropped_is_all_lost() {
    let sample = sample(1, 6, (8, 8), 2);
    let cache = Cache { kept: Kept::Fixed(&[false; 6]), ..Cache::FULL };
    for error in output_errors(&sample.vectors(), &cache).unwrap() {
        assert!((error.total - 1.0).abs() < 1e-12 && (error.lost_mass - 1.0).abs() < 1e-12, "{error:?}");
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let sample = sample(2, 6, (8, 8), 2);
    let fine = sample.vectors();
    for vectors in [
        Vectors { group: 3, ..fine },
        Vectors { key_dim: 0, ..fine },
        Vectors { value_dim: 7, ..fine },
        Vectors { contexts: &[6], ..fine },
        Vectors { contexts: &[0, 6], ..fine },
        Vectors { contexts: &[6, 7], ..fine },
        Vectors { values: &sample.values[1..], ..fine },
    ] {
        assert!(output_errors(&vectors, &Cache::FULL).is_err());
    }
    let pair = StandIn { key: vec![0.0; 7], value: vec![0.0; 8], weight: 1.0 };
    assert!(output_errors(&fine, &Cache { stand_ins: &[pair], ..Cache::FULL }).is_err());
    assert!(output_errors(&fine, &Cache { keys: Some(&[]), ..Cache::FULL }).is_err());
}

#[test]
fn the_most_important_are_retained() {
    let mut kept = [true, false, false, false, false];
    assert_eq!(retain(&mut kept, &[9.0, 1.0, 3.0, 3.0, 0.0], 0.5), 2);
    assert_eq!(kept, [true, false, true, true, false]);
    assert_eq!(retain(&mut kept, &[0.0; 5], 0.01), 1, "a share is rounded up");
    assert_eq!(kept, [true, true, true, true, false]);
    assert_eq!(retain(&mut kept, &[0.0; 5], 0.0), 0);
}

/// POLICIES 3.6: dividing a centroid codebook's vectors by `1 - D` makes inner products unbiased and leaves `D / (1 - D)`.
#[test]
fn rescaling_takes_the_bias_away() {
    use super::super::quantize::codebook::turboquant_distortion;
    use super::super::quantize::mean_relative_error;
    use super::super::quantize::rotate::Variant;
    use super::super::quantize::{Coding, Width};
    let mut rng = Rng::new(8);
    let rows: Vec<f32> = (0..64 * 4000).map(|_| rng.normal() as f32).collect();
    let coding = Coding::Rotated { variant: Variant::Mse, width: Width::Whole(2) };
    let mut decoded = roundtrip(coding, &rows, 64).unwrap().0;
    let shrink = turboquant_distortion(2, 64);
    rescale(&mut decoded, shrink);
    let along: f64 = rows.iter().zip(&decoded).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    let energy: f64 = rows.iter().map(|x| f64::from(*x).powi(2)).sum();
    assert!((along / energy - 1.0).abs() < 0.002, "{}", along / energy);
    let error = mean_relative_error(&rows, &decoded, 64);
    assert!((error / (shrink / (1.0 - shrink)) - 1.0).abs() < 0.02, "{error}");
}
