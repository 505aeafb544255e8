use proptest::prelude::*;

use super::super::quantize::mean_relative_error;
use super::super::rng::Rng;
use super::*;
use crate::test_kit::kv_shape as shape;

fn parse(text: &str) -> Result<Merge> {
    match (KIND.make)(&Args::parse(&KIND, text)?)? {
        Rule::Merge(merge) => Ok(merge),
        _ => panic!("minicache merges"),
    }
}

fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| rng.normal() as f32).collect()
}

#[test]
fn parameters_are_shares() {
    let paper = Merge { start: 0.5, t: 0.6, retention: Retention::Top(0.05), exact: 0.0 };
    assert_eq!(parse("").unwrap(), paper);
    assert_eq!(parse("start=50%,gamma=5%,t=60%").unwrap(), paper);
    assert_eq!(parse("keep=range,gamma=0").unwrap().retention, Retention::Range(0.0));
    for text in ["start=1", "start=-0.1", "t=1.1", "gamma=x", "keep=all", "t=NaN"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

/// Pairs from the middle on; 15 of 30 layers make 7 pairs, and the last layer is left alone.
#[test]
fn layers_are_paired_from_the_start_on() {
    let merge = parse("").unwrap();
    let roles = |layers: u32| (0..layers).map(|layer| merge.role(layer, layers)).collect::<Vec<_>>();
    assert_eq!(roles(4), [None, None, Some(Role::Shallow), Some(Role::Deep)]);
    let of_30 = roles(30);
    assert_eq!(of_30.iter().flatten().count(), 14);
    assert_eq!((of_30[14], of_30[15], of_30[28], of_30[29]), (None, Some(Role::Shallow), Some(Role::Deep), None));
    assert_eq!(roles(1), [None]);
}

/// POLICIES 7.9 and 2.1: the paper's appendix has `(3.1 h + 2) / 4 h` with one norm per layer, 77.5% at a width of 4096; per
/// head it is 77.9%. Traffic stays at 1.0.
#[test]
fn storage_falls_and_traffic_does_not() {
    let merge = parse("").unwrap();
    let ratio = |kv: &KvShape, of: &dyn Fn(&KvShape) -> u64| {
        let layers = (0..32).map(|layer| if merge.role(layer, 32).is_some() { of(kv) } else { kv.bf16_bytes() });
        layers.sum::<u64>() as f64 / (32 * kv.bf16_bytes()) as f64
    };
    let wide = shape(1, 4096);
    let stored = ratio(&wide, &|kv| merge.stored_bytes(kv, kv.bf16_bytes()));
    assert!((stored - (3.1 * 4096.0 + 2.0) / (4.0 * 4096.0)).abs() < 1e-4 && (stored - 0.775).abs() < 5e-4, "{stored}");
    let heads = shape(32, 128);
    let stored = ratio(&heads, &|kv| merge.stored_bytes(kv, kv.bf16_bytes()));
    assert!((stored - 0.779).abs() < 5e-4, "{stored}");
    let read = ratio(&heads, &|kv| merge.read_bytes(kv, kv.bf16_bytes()));
    assert!((1.0..1.04).contains(&read), "{read}");
}

#[test]
fn what_is_counted_is_what_a_pair_takes() {
    let merge_all = Merge { start: 0.0, t: 0.6, retention: Retention::Top(0.05), exact: 0.0 };
    let (a, b) = (normal(100 * 64, 1), normal(100 * 64, 2));
    let merged = merge(&merge_all, &a, &b, 64).unwrap();
    assert_eq!(merged.retained.iter().filter(|kept| **kept).count(), 5);
    // K and V of 100 tokens in the two layers of the pair.
    let kv = shape(1, 64);
    assert!(
        (2 * merged.bytes).abs_diff(200 * merge_all.stored_bytes(&kv, kv.bf16_bytes())) <= 200,
        "rounded per token"
    );
}

#[test]
fn retention_has_two_readings() {
    let cosines = [0.9, 0.1, 0.5, 0.8, 0.1];
    assert_eq!(retained(Retention::Top(0.4), &cosines), [false, true, false, false, true]);
    assert_eq!(retained(Retention::Top(0.2), &cosines), [false, true, false, false, false], "the earlier of equals");
    // Below 0.1 + 0.6 * 0.8 = 0.58.
    assert_eq!(retained(Retention::Range(0.6), &cosines), [false, true, true, false, true]);
    assert_eq!(retained(Retention::Range(0.0), &cosines), [false; 5]);
    assert!(retained(Retention::Top(1.0), &cosines).iter().all(|kept| *kept));
    assert!(retained(Retention::Top(0.5), &[]).is_empty() && retained(Retention::Range(0.5), &[]).is_empty());
}

/// Layers that are alike come back; orthogonal ones do not, by exactly what their angle says.
#[test]
fn the_error_of_orthogonal_layers_is_that_of_their_angle() {
    let merge_all = Merge { start: 0.0, t: 0.6, retention: Retention::Top(0.0), exact: 0.0 };
    let rows = normal(50 * 32, 3);
    let alike: Vec<f32> = rows.iter().map(|x| 3.0 * x).collect();
    let same = merge(&merge_all, &rows, &alike, 32).unwrap();
    assert!(mean_relative_error(&rows, &same.shallow, 32) < 1e-5 && mean_relative_error(&alike, &same.deep, 32) < 1e-5);
    let (mut a, mut b) = (rows.clone(), rows);
    a.chunks_exact_mut(2).for_each(|pair| pair[1] = 0.0);
    b.chunks_exact_mut(2).for_each(|pair| pair[0] = 0.0);
    let merged = merge(&merge_all, &a, &b, 32).unwrap();
    for (rows, back, angle) in [(&a, &merged.shallow, 0.6 * 90.0_f64), (&b, &merged.deep, 0.4 * 90.0)] {
        let expected = 2.0 - 2.0 * angle.to_radians().cos();
        let found = mean_relative_error(rows, back, 32);
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
}

#[test]
fn zero_and_opposite_vectors_do_no_harm() {
    let merge_all = Merge { start: 0.0, t: 0.5, retention: Retention::Range(0.1), exact: 0.0 };
    let a = [0.0, 0.0, 1.0, 2.0, 3.0, 4.0];
    let b = [5.0, 6.0, -1.0, -2.0, 0.0, 0.0];
    let merged = merge(&merge_all, &a, &b, 2).unwrap();
    assert!(merged.shallow.iter().chain(&merged.deep).all(|x| x.is_finite()));
    assert!((merged.deep[0] - 5.0).abs() < 0.05 && (merged.deep[1] - 6.0).abs() < 0.05);
    assert!(merge(&merge_all, &a, &b[1..], 2).is_err() && merge(&merge_all, &a, &b, 4).is_err());
    assert!(merge(&merge_all, &[], &[], 0).is_err());
}

fn premise(pairs: &[[&[f32]; 2]]) -> Option<Premise> {
    let (mut all, mut last) = (Cosines::default(), Cosines::default());
    for (at, pair) in pairs.iter().enumerate() {
        if at == 0 { all.add(*pair) } else { last.add(*pair) }
    }
    all.append(&last);
    all.premise()
}

#[test]
fn a_premise_that_does_not_hold_is_said() {
    let alike = premise(&[[&[0.9, 0.8], &[0.7]], [&[0.7], &[0.9]]]).unwrap();
    assert!(alike.holds() && alike.text().contains("holds on this trace"));
    let apart = premise(&[[&[0.1, -0.1], &[0.9]]]).unwrap();
    assert!(!apart.holds());
    assert!(
        apart.text().starts_with("the premise of `minicache` does not hold on this trace: adjacent layers have a mean")
    );
    assert_eq!(premise(&[]), None);
}

proptest! {
    /// The error from cosines alone is that of the vectors, for K (with its shrinking) and both layers.
    #[test]
    fn the_error_follows_from_cosines(seed in any::<u64>(), t in 0.0_f64..=1.0, gamma in 0.0_f64..0.5, likeness in 0.0_f32..3.0) {
        let rows = Merge { start: 0.0, t, retention: Retention::Top(gamma), exact: 0.0 };
        let a = normal(40 * 16, seed);
        let b: Vec<f32> = normal(40 * 16, seed ^ 1).iter().zip(&a).map(|(x, y)| x + likeness * y).collect();
        let merged = merge(&rows, &a, &b, 16).unwrap();
        for (role, exact, back) in [(Role::Shallow, &a, &merged.shallow), (Role::Deep, &b, &merged.deep)] {
            let estimate = rows.distortion(role, &merged.cosines, &merged.cosines);
            let found = mean_relative_error(exact, back, 16);
            // bf16 and FP16 add 1e-5.
            prop_assert!((found - estimate.key).abs() < 1e-3 + 0.01 * found, "{} {:?}", found, estimate);
            let along = exact.chunks_exact(16).zip(back.chunks_exact(16)).map(|(x, y)| {
                let product: f64 = x.iter().zip(y).map(|(x, y)| f64::from(x * y)).sum();
                product / x.iter().map(|x| f64::from(x * x)).sum::<f64>()
            });
            let shrink = 1.0 - along.sum::<f64>() / 40.0;
            prop_assert!((shrink - estimate.key_shrink).abs() < 2e-3, "{} {:?}", shrink, estimate);
        }
    }
}
