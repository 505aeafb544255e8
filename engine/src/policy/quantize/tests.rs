#![expect(clippy::float_cmp, reason = "these values are exact in floating point")]

use proptest::prelude::*;

use super::*;
use crate::policy::rng::Rng;

/// A figure of the reference, to the digits that it is given with.
fn near(found: f64, expected: f64, digits: i32) -> bool {
    let unit = 10_f64.powi(expected.abs().log10().floor() as i32 + 1 - digits);
    (found - expected).abs() <= 0.51 * unit
}

/// POLICIES 3.6, exact columns.
#[test]
fn distortions_are_exact() {
    let gaussian = |bits| codebook_distortion(&codebook(bits, Density::Gaussian), Density::Gaussian);
    for (bits, at_128, at_64, limit) in [
        (1, 0.36089, 0.35839, 0.36338),
        (2, 0.11600, 0.11453, 0.11748),
        (3, 0.033_966, 0.033_391, 0.034_548),
        (4, 0.009_315, 0.009_132, 0.009_501),
    ] {
        assert!(near(turboquant_distortion(bits, 128), at_128, 4), "{bits} {}", turboquant_distortion(bits, 128));
        assert!(near(turboquant_distortion(bits, 64), at_64, 4), "{bits} {}", turboquant_distortion(bits, 64));
        assert!(near(gaussian(bits), limit, 4), "{bits} {}", gaussian(bits));
    }
    assert!(near(gaussian(5), 0.002_505, 3), "{}", gaussian(5));
    assert!((turboquant_distortion(2, 100_000) - gaussian(2)).abs() < 1e-5, "many dimensions are normal");
}

/// POLICIES 3.6, codebooks.
#[test]
fn codebooks_are_those_of_lloyd_and_max() {
    let golden: [(u32, Density, &[f64]); 6] = [
        (1, Density::Gaussian, &[0.797_885]),
        (2, Density::Gaussian, &[0.452_780, 1.510_418]),
        (
            4,
            Density::Gaussian,
            &[0.128_395, 0.388_048, 0.656_759, 0.942_340, 1.256_231, 1.618_046, 2.069_017, 2.732_590],
        ),
        (2, Density::Sphere(64), &[0.45212, 1.49997]),
        (3, Density::Sphere(128), &[0.24442, 0.75333, 1.33660, 2.13147]),
        (4, Density::Sphere(128), &[0.12787, 0.38638, 0.65362, 0.93710, 1.24777, 1.60434, 2.04593, 2.68886]),
    ];
    for (bits, density, levels) in golden {
        let found = codebook(bits, density);
        assert_eq!(found.len(), levels.len());
        for (found, level) in found.iter().zip(levels) {
            assert!((found - level).abs() < 2e-5, "{bits} bits: {found} {level}");
        }
    }
}

#[test]
fn the_product_variant_costs_a_bit() {
    for (bits, expected) in [(1, std::f64::consts::FRAC_PI_2), (2, 0.5708), (3, 0.18454), (4, 0.05427)] {
        assert!(near(turboquant_product_distortion(bits, Density::Gaussian), expected, 4), "{bits}");
    }
}

/// Errors of 20,000 random vectors: relative error and what is left of the vector along itself against the exact `D` and
/// `1 - D`; with the norm corrected, against a `NumPy` simulation of 160,000 vectors with a codebook of its own. Three
/// standard deviations of the errors are 0.8%.
#[test]
fn random_vectors_come_back_with_the_exact_distortion() {
    let dim = 64;
    for (bits, simulated) in [(2, 0.116_508), (4, 0.008_821)] {
        let quantizer = turboquant(bits, dim, 7);
        let exact = turboquant_distortion(bits, dim);
        let mut rng = Rng::new(3);
        let (mut error, mut along, mut corrected) = (0.0, 0.0, 0.0);
        let mut vector = vec![0.0; dim as usize];
        let mut decoded = vector.clone();
        let count = 20_000;
        for _ in 0..count {
            vector.fill_with(|| rng.normal() as f32);
            let mut bytes = Vec::new();
            turboquant_encode(&quantizer, &vector, false, &mut bytes).unwrap();
            turboquant_decode(&quantizer, &bytes, &mut decoded).unwrap();
            error += relative_error(&vector, &decoded);
            let product: f64 = vector.iter().zip(&decoded).map(|(x, y)| f64::from(x * y)).sum();
            along += product / vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
            bytes.clear();
            turboquant_encode(&quantizer, &vector, true, &mut bytes).unwrap();
            turboquant_decode(&quantizer, &bytes, &mut decoded).unwrap();
            corrected += relative_error(&vector, &decoded);
        }
        let mean = |sum: f64| sum / f64::from(count);
        assert!((mean(error) / exact - 1.0).abs() < 0.008, "{bits}: {} {exact}", mean(error));
        assert!((mean(along) - (1.0 - exact)).abs() < 0.001, "{bits}: {}", mean(along));
        assert!((mean(corrected) / simulated - 1.0).abs() < 0.008, "{bits}: {}", mean(corrected));
    }
}

/// A vector along one axis is as good as any other after the rotation.
#[test]
fn sparse_vectors_are_no_worse() {
    let quantizer = turboquant(2, 128, 1);
    let mut sum = 0.0;
    for axis in 0..128 {
        let mut vector = vec![0.0; 128];
        vector[axis] = 5.0;
        let (mut bytes, mut decoded) = (Vec::new(), vector.clone());
        turboquant_encode(&quantizer, &vector, false, &mut bytes).unwrap();
        turboquant_decode(&quantizer, &bytes, &mut decoded).unwrap();
        sum += relative_error(&vector, &decoded);
    }
    assert!((sum / 128.0 / 0.116 - 1.0).abs() < 0.05, "{}", sum / 128.0);
}

#[test]
fn encoded_vectors_fill_exactly_their_slots() {
    let vector: Vec<f32> = (0..128).map(|at| (at as f32 * 0.7).sin()).collect();
    for (key, value, slot) in [(4, 4, 134), (3, 4, 118), (3, 3, 102)] {
        let mut bytes = Vec::new();
        turboquant_encode(&turboquant(key, 128, 0), &vector, true, &mut bytes).unwrap();
        uniform_encode(&vector, value, &mut bytes);
        assert_eq!(bytes.len(), slot);
        assert_eq!(super::super::turboquant::slot_bytes(key, value, 128, 128), slot as u64);
    }
    let mut bytes = Vec::new();
    int4_encode(&vector, 128, &mut bytes);
    assert_eq!(bytes.len(), 66);
    assert!(int4_decode(&bytes[..65], 128, &mut [0.0; 128]).is_err());
    assert!(uniform_decode(&bytes[..10], 4, &mut [0.0; 128]).is_err());
    assert!(turboquant_decode(&turboquant(4, 64, 0), &[], &mut [0.0; 64]).is_err());
    assert!(turboquant_encode(&turboquant(4, 64, 0), &vector, true, &mut bytes).is_err());
}

#[test]
fn a_rotation_is_orthogonal() {
    let rotation = haar_rotation(48, 5);
    for (i, a) in rotation.chunks_exact(48).enumerate() {
        for (j, b) in rotation.chunks_exact(48).enumerate() {
            let product: f64 = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            assert!((product - f64::from(u8::from(i == j))).abs() < 1e-6, "{i} {j} {product}");
        }
    }
}

/// POLICIES 3.1, normal vectors of width 128.
#[test]
fn measured_distortions_match_the_table() {
    let close = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
    close(measured(128, fp8_roundtrip), 7.0e-4);
    close(measured(128, |vector| int4_roundtrip(vector, 128)), 1.39e-2);
    close(measured(128, |vector| uniform_roundtrip(vector, 4)), 1.0e-2);
    close(measured(128, |vector| uniform_roundtrip(vector, 3)), 4.6e-2);
    close(measured(32, |vector| uniform_roundtrip(vector, 4)), 6.1e-3);
    close(measured(32, |vector| uniform_roundtrip(vector, 2)), 1.55e-1);
    assert_eq!(measured(64, fp8_roundtrip), measured(64, fp8_roundtrip));
}

#[test]
fn fp8_codes_are_those_of_e4m3() {
    // Least subnormal, largest subnormal, least normal, one, a tie to even on either side, the largest.
    for (x, code) in [
        (0.0, 0x00),
        (0.001_953_125, 0x01),
        (0.013_671_875, 0x07),
        (0.015_625, 0x08),
        (1.0, 0x38),
        (1.0625, 0x38),
        (1.1875, 0x3a),
        (1.96875, 0x40),
        (448.0, 0x7e),
        (1e9, 0x7e),
        (-1.0, 0xb8),
    ] {
        assert_eq!(fp8_encode(x), code, "{x}");
    }
    for code in (0..=255_u8).filter(|code| code & 0x7f != 0x7f) {
        assert_eq!(fp8_encode(fp8_decode(code)), code);
    }
    assert!(fp8_decode(0x7f).is_nan() && fp8_decode(fp8_encode(f32::NAN)).is_nan());
}

#[test]
fn zeros_come_back_as_zeros() {
    for roundtrip in [fp8_roundtrip as fn(&mut [f32]), |v| int4_roundtrip(v, 32), |v| uniform_roundtrip(v, 4)] {
        let mut vector = [0.0; 64];
        roundtrip(&mut vector);
        assert_eq!(vector, [0.0; 64]);
    }
    let quantizer = turboquant(4, 64, 0);
    let (mut bytes, mut decoded) = (Vec::new(), [1.0; 64]);
    turboquant_encode(&quantizer, &[0.0; 64], true, &mut bytes).unwrap();
    turboquant_decode(&quantizer, &bytes, &mut decoded).unwrap();
    assert_eq!(decoded, [0.0; 64]);
}

proptest! {
    #[test]
    fn packed_codes_come_back(bits in 1_u32..=8, codes in prop::collection::vec(any::<u8>(), 0..200)) {
        let codes: Vec<u8> = codes.iter().map(|code| code & (u8::MAX >> (8 - bits))).collect();
        let mut bytes = Vec::new();
        pack(&codes, bits, &mut bytes);
        prop_assert_eq!(bytes.len(), (codes.len() * bits as usize).div_ceil(8));
        let mut read = vec![0; codes.len()];
        unpack(&bytes, bits, &mut read).unwrap();
        prop_assert_eq!(read, codes);
    }

    #[test]
    fn fp8_is_the_nearest(x in -500.0_f32..500.0) {
        let clamped = x.clamp(-448.0, 448.0);
        let nearest = (0..=255_u8).map(fp8_decode).filter(|y| !y.is_nan()).map(|y| (y - clamped).abs()).fold(f32::MAX, f32::min);
        prop_assert_eq!((fp8_decode(fp8_encode(x)) - clamped).abs(), nearest);
    }

    #[test]
    fn integers_are_off_by_half_a_step(vector in prop::collection::vec(-100.0_f32..100.0, 1..100)) {
        let most = vector.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let range = vector.iter().copied().fold(f32::MIN, f32::max) - vector.iter().copied().fold(f32::MAX, f32::min);
        let mut decoded = vector.clone();
        int4_roundtrip(&mut decoded, 128);
        // FP16 scales are off by up to 2^-11 each.
        prop_assert!(vector.iter().zip(&decoded).all(|(x, y)| (x - y).abs() <= most / 14.0 + most * 0.002));
        decoded.copy_from_slice(&vector);
        uniform_roundtrip(&mut decoded, 4);
        prop_assert!(vector.iter().zip(&decoded).all(|(x, y)| (x - y).abs() <= range / 30.0 + 0.002 * (most + range)));
    }
}
