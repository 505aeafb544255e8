//! The form of surfaces, and what the shipped ones say.

use engine::surface::{Dim, Ground, Key, Rows, Scratch, Shape, across_nodes, fit};

use super::*;

/// Bytes that all shipped surfaces may take.
const MOST_BYTES: usize = 6_000_000;

fn small() -> Calibrated {
    let mut rows = Rows::default();
    for dtype in ["bfloat16", "fp8"] {
        let key = Key { kernel_source: "a_kernel".to_owned(), dtype: dtype.to_owned(), ..Key::default() };
        for m in [1, 4, 16, 64, 256] {
            for n in [512, 1024, 4096] {
                let shape = Shape::of(&[(Dim::M, m), (Dim::N, n), (Dim::K, 2048)]);
                rows.push(&key, shape, 4000.0 + (m * n) as f64 * if dtype == "fp8" { 0.1 } else { 0.2 });
            }
        }
    }
    let peaks = device("a device that nobody has seen", None).unwrap().peaks;
    let fitted = fit("gemm", &rows, peaks).unwrap();
    Calibrated {
        device: "a device that nobody has seen".to_owned(),
        framework: "vllm".to_owned(),
        surface: Arc::new(fitted.surface),
        origin: Origin { origin: "a test".to_owned(), licence: "none".to_owned() },
        rows: fitted.rows,
        impossible: fitted.impossible,
        errors: fitted.errors,
    }
}

#[test]
fn a_surface_is_the_same_after_writing_and_reading() {
    let before = small();
    let bytes = encode(&before).unwrap();
    let after = decode(&file::on_disk(&bytes, "small").unwrap(), "small").unwrap();
    assert_eq!((&after.device, &after.framework, &after.origin), (&before.device, &before.framework, &before.origin));
    // Numbers are read from decimal digits, the last of which may differ.
    let numbers = |one: &Calibrated| {
        let (errors, tuning) = (one.errors, one.surface.tuning());
        [errors.median, errors.p90, errors.p99, errors.bias, errors.bias_error, tuning.offset]
    };
    let mut all = numbers(&after).into_iter().zip(numbers(&before));
    assert!(all.all(|(a, b)| (a - b).abs() < 1e-12), "{:?} {:?}", after.errors, before.errors);
    assert_eq!((after.rows, after.errors.rows), (before.rows, before.errors.rows));
    let tuning = engine::surface::Tuning { offset: before.surface.tuning().offset, ..after.surface.tuning().clone() };
    assert_eq!(&tuning, before.surface.tuning());
    assert_eq!(after.surface.peaks(), before.surface.peaks());
    let mut scratch = Scratch::default();
    for (group, key) in before.surface.keys().enumerate() {
        assert_eq!(after.surface.group(key), Some(group));
        for m in [1, 3, 50, 256, 5000] {
            let shape = Shape::of(&[(Dim::M, m), (Dim::N, 2000), (Dim::K, 2048)]);
            let [a, b] = [&before, &after].map(|one| one.surface.evaluate(group, &shape, &mut scratch).unwrap());
            assert!((a.time_ns / b.time_ns - 1.0).abs() < 1e-9, "{a:?} {b:?}");
            assert_eq!(a.ground, b.ground);
        }
    }
    // The same surface gives the same bytes.
    assert_eq!(encode(&before).unwrap(), bytes);
}

#[test]
fn what_is_no_surface_is_refused() {
    let refused = |bytes: &[u8]| decode(&file::on_disk(bytes, "x").unwrap(), "x").unwrap_err().to_string();
    assert!(refused(b"PAR1 and no more").contains("cannot read the surface `x`"));
    let error = Library::of(None).get("h100__vllm__attention_generatoin").unwrap_err();
    assert!(error.to_string().contains("unknown surface"), "{error}");
}

/// One bit in the Arrow schema of a file made its reader panic.
#[test]
fn a_flipped_bit_is_an_error_or_another_number() {
    let bytes = encode(&small()).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if let Err(error) = decode(&file::on_disk(&damaged, "x").unwrap(), "x") {
            assert!(error.to_string().contains("cannot read the surface `x`"), "{error}");
        }
    }
}

#[test]
fn devices_are_known_by_their_own_names() {
    for (named, name, processors) in [
        ("NVIDIA A100-SXM4-80GB", "a100", 108.0),
        ("NVIDIA H100 80GB HBM3", "h100", 132.0),
        ("NVIDIA H200", "h200", 132.0),
        ("NVIDIA B200", "b200", 148.0),
        ("RTX4090", "rtx4090", 128.0),
        ("RTXPRO6000", "rtx_pro_6000", 188.0),
    ] {
        let found = device(named, None).unwrap();
        assert_eq!((found.name.as_str(), found.peaks.processors), (name, processors));
        assert!(found.peaks.known());
    }
    let unknown = device("TPU v9", None).unwrap();
    assert_eq!(unknown.name, "TPU v9");
    assert!(!unknown.peaks.known());
    let machine = crate::scenario::load_machine("h100*memory_bytes_per_s=2").unwrap();
    let given = device("TPU v9", Some(&machine)).unwrap();
    assert!((given.peaks.memory_bytes_per_s - 6.7e12).abs() < 1.0 && given.peaks.known());
}

#[test]
fn shipped_surfaces_say_where_they_come_from_and_are_small() {
    let bytes: usize = embedded::SURFACES.iter().map(|(_, bytes)| bytes.len()).sum();
    assert!(bytes <= MOST_BYTES, "{bytes}");
    assert!(embedded::SURFACES.len() >= 70, "{}", embedded::SURFACES.len());
    let mut library = Library::of(None);
    for (name, bytes) in embedded::SURFACES {
        let said = library.summary(name).unwrap();
        let device = device(&said.device, None).unwrap();
        assert_eq!(super::name(&device.name, &said.framework, &said.op), *name);
        assert!(["Apache-2.0", "MIT"].contains(&said.origin.licence.as_str()), "{name}: {:?}", said.origin);
        assert!(said.origin.origin.len() > 20 && said.rows > 0, "{name}");
        assert!(said.errors.median < 0.2, "{name}: {:?}", said.errors);
        // The large ones take their time.
        if bytes.len() < 9000 {
            let found = library.get(name).unwrap();
            assert!(found.surface.keys().len() > 0, "{name}");
            assert_eq!((found.surface.op(), found.rows, found.errors), (said.op.as_str(), said.rows, said.errors));
        }
    }
}

/// Times of one shape under the bf16 and the fp8 KV of H200 under vLLM 0.24.
fn fp8_over_bf16(found: &Calibrated, wanted: &dyn Fn(&Shape, f64) -> bool) -> f64 {
    let surface = &found.surface;
    let mut scratch = Scratch::default();
    let mut ratios = Vec::new();
    for (group, key) in surface.keys().enumerate().filter(|(_, key)| key.kv_dtype == "bfloat16") {
        let eight = Key { kv_dtype: "fp8".to_owned(), ..key.clone() };
        let Some(eight) = surface.group(&eight) else { continue };
        for (shape, _) in surface.points(group) {
            let tokens = shape.get(Dim::Batch) * (shape.get(Dim::PastTokens) + shape.get(Dim::NewTokens));
            let bytes = (tokens * shape.get(Dim::KvHeads) * shape.get(Dim::HeadDim) * 4) as f64;
            if shape.get(Dim::WindowTokens) == 0 && wanted(&shape, bytes) {
                let found = surface.evaluate(eight, &shape, &mut scratch).unwrap();
                if found.ground == Ground::Calibrated {
                    ratios.push(found.time_ns / surface.evaluate(group, &shape, &mut scratch).unwrap().time_ns);
                }
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    assert!(ratios.len() > 40, "{}", ratios.len());
    ratios[ratios.len() / 2]
}

#[test]
fn fp8_kv_is_not_twice_as_fast() {
    let mut library = Library::of(None);
    let found = library.get("h200__vllm__attention_generation").unwrap();
    for (width, ratio) in [(64, 0.89), (128, 0.74), (192, 1.11), (256, 1.35)] {
        let large = fp8_over_bf16(found, &|shape, bytes| shape.get(Dim::HeadDim) == width && bytes >= 3e8);
        assert!((large - ratio).abs() < 0.05, "heads of {width}: {large}");
    }
    let small = fp8_over_bf16(found, &|_, bytes| bytes < 2e7);
    assert!((small - 1.09).abs() < 0.05, "{small}");
}

#[test]
fn deepep_is_met_without_its_row_and_across_nodes() {
    let mut library = Library::of(None);
    let shape = Shape::of(&[
        (Dim::NewTokens, 128),
        (Dim::Hidden, 7168),
        (Dim::Experts, 256),
        (Dim::ActiveExperts, 8),
        (Dim::Nodes, 1),
    ]);
    let mut scratch = Scratch::default();
    let mut total = 0.0;
    for op in ["moe_dispatch", "moe_combine"] {
        let surface = &library.get(&format!("h100__sglang__{op}")).unwrap().surface;
        let group = surface.keys().position(|key| key.backend == "low_latency").unwrap();
        let (_, value) = surface.points(group).find(|(known, _)| *known == shape).unwrap();
        total += surface.evaluate_without(group, &shape, value, &mut scratch).unwrap().time_ns;
    }
    assert!((total / 103_700.0 - 1.0).abs() < 0.1, "{total}");
    for (nodes, measured) in [(4, 410_000.0), (8, 471_000.0)] {
        let (found, ground) = across_nodes(total, 2, 290_000.0, nodes).unwrap();
        assert_eq!(ground, Ground::Extrapolated);
        assert!((found / measured - 1.0).abs() < 0.2, "{nodes} nodes: {found}");
    }
}
