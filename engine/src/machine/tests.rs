use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

/// Presets that say enough to price a step.
const PRESETS: [&str; 27] = [
    "a100",
    "ascend-910c",
    "b200",
    "b300",
    "fabric-flat",
    "fabric-layered",
    "gaudi3",
    "gb200",
    "gb300",
    "h100",
    "h20",
    "h200",
    "l40s",
    "mi300x",
    "mi325x",
    "mi355x",
    "rtx4090",
    "rtx-pro-6000",
    "rtx5090",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7",
    "tpu-v7-384",
    "tpu-v7-512",
    "vera-rubin",
    "vera-rubin-lpx",
];

/// Parts of which something is not published that pricing needs.
const INCOMPLETE: [&str; 13] = [
    "grace",
    "groq-lpu-v1",
    "groq3-lpu",
    "jalapeno",
    "lpx-rack",
    "maia200",
    "mi455x",
    "mtia400",
    "rubin-ultra",
    "tpu-8i",
    "tpu-8t",
    "vera",
    "wse-3",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets/machine")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap()
}

fn lookup(name: &str) -> Option<(String, String)> {
    (PRESETS.contains(&name) || INCOMPLETE.contains(&name))
        .then(|| (text(name), format!("presets/machine/{name}.toml")))
}

fn machine(expression: &str) -> Machine {
    resolve(expression, &lookup).unwrap()
}

fn parameter(machine: &Machine, name: &str) -> Parameter {
    parameters(machine).into_iter().find(|parameter| parameter.name == name).unwrap()
}

#[test]
fn every_file_is_a_machine_and_uses_every_source() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut listed = [PRESETS.as_slice(), INCOMPLETE.as_slice()].concat();
    listed.sort_unstable();
    assert_eq!(names, listed);
    for name in listed {
        let found = sketch(&text(name), name).unwrap();
        assert_eq!(found.unpublished.is_empty(), PRESETS.contains(&name), "{name}");
        let mut known = found.parameters;
        assert!(known.iter().all(|parameter| parameter.value.is_finite()), "{name}");
        let around = found
            .tiers
            .iter()
            .flat_map(|tier| [&tier.capacity_bytes, &tier.read_bytes_per_s, &tier.write_bytes_per_s, &tier.latency_ns]);
        let links = found.links.iter().flat_map(|link| [&link.way_bytes_per_s, &link.latency_ns, &link.achieved]);
        known.extend(around.chain(links).flatten().map(|Sourced { value, source, certainty }| Parameter {
            name: "",
            value: *value,
            unit: "",
            source: source.clone(),
            certainty: *certainty,
        }));
        assert!(known.iter().all(|parameter| !parameter.source.trim().is_empty()), "{name}");
        let sources = toml::from_str::<toml::Table>(&text(name)).unwrap()["sources"].as_table().unwrap().clone();
        for (key, source) in sources {
            assert!(known.iter().any(|parameter| parameter.source == source.as_str().unwrap()), "{name}: {key}");
        }
    }
}

/// Bandwidth (TB/s), memory (bytes), bf16 (TFLOPS) and the fit of decode attention (share of peak, microseconds) as
/// published or measured, independent of the way they are written in the presets.
#[test]
fn the_presets_hold_the_published_figures() {
    let mib = 1024.0 * 1024.0;
    let rows = [
        ("a100", 2.039, 81_920.0 * mib, 312.0, 0.73, 19.5),
        ("h100", 3.35, 81_559.0 * mib, 989.0, 0.87, 13.0),
        ("h200", 4.8, 143_771.0 * mib, 989.0, 0.85, 13.0),
        ("b200", 8.0, 183_359.0 * mib, 2250.0, 0.88, 9.5),
        ("gb200", 8.0, 189_471.0 * mib, 2500.0, 0.90, 10.0),
        ("gb300", 8.0, 284_208.0 * mib, 2500.0, 0.85, 9.5),
        ("vera-rubin", 22.0, 288e9, 4000.0, 0.88, 9.5),
        ("vera-rubin-lpx", 22.0, 288e9, 4000.0, 0.88, 9.5),
        ("tpu-v7", 7.38, 192.0 * 1024.0 * mib, 2307.0, 0.88, 9.5),
        ("tpu-v7-384", 7.38, 384.0 * 1024.0 * mib, 2307.0, 0.88, 9.5),
        ("tpu-v7-512", 7.38, 512.0 * 1024.0 * mib, 2307.0, 0.88, 9.5),
    ];
    for (name, bandwidth, memory, bf16, share, floor) in rows {
        let machine = machine(name);
        let found = [
            machine.accelerator.memory_bytes_per_s.value / 1e12,
            machine.accelerator.memory_bytes.value,
            machine.accelerator.bf16_flops.value / 1e12,
            machine.efficiency.kv_read_16bit.value,
            machine.efficiency.attention_floor_ns.value / 1e3,
        ];
        for (found, expected) in found.into_iter().zip([bandwidth, memory, bf16, share, floor]) {
            assert!((found / expected - 1.0).abs() < 1e-12, "{name}: {found} instead of {expected}");
        }
    }
}

/// Bandwidth (GB/s), memory (GB) and 16-bit arithmetic (TFLOPS) of the other parts, as the collected data sheets have them.
#[test]
fn the_other_parts_hold_the_published_figures() {
    let gib = 1.073_741_824;
    let rows: [(&str, f64, Option<f64>, Option<f64>); 27] = [
        ("h20", 4000.0, Some(96.0), Some(148.0)),
        ("l40s", 864.0, Some(46_068.0 * 1.048_576 / 1000.0), Some(362.0)),
        ("rtx4090", 1008.0, Some(24.0 * gib), Some(165.0)),
        ("rtx5090", 1792.0, Some(32.0 * gib), Some(209.5)),
        ("rtx-pro-6000", 1597.0, Some(96.0), Some(500.0)),
        ("b300", 8000.0, Some(275_040.0 * 1.048_576 / 1000.0), Some(2250.0)),
        ("rubin-ultra", 32_000.0, Some(1024.0), None),
        ("groq3-lpu", 150_000.0, Some(0.5), None),
        ("lpx-rack", 40_000_000.0, Some(128.0), None),
        ("groq-lpu-v1", 80_000.0, Some(0.23), Some(188.0)),
        ("wse-3", 21_000_000.0, Some(44.0), Some(125_000.0)),
        ("mi300x", 5300.0, Some(192.0), Some(1307.0)),
        ("mi325x", 6000.0, Some(256.0), Some(1307.0)),
        ("mi355x", 8000.0, Some(288.0), Some(2516.0)),
        ("mi455x", 23_300.0, Some(432.0), None),
        ("gaudi3", 3700.0, Some(128.0), Some(1835.0)),
        ("ascend-910c", 3200.0, Some(128.0), Some(780.0)),
        ("tpu-v5e", 819.0, Some(16.0 * gib), Some(197.0)),
        ("tpu-v5p", 2765.0, Some(95.0 * gib), Some(459.0)),
        ("tpu-v6e", 1638.0, Some(32.0 * gib), Some(918.0)),
        ("tpu-8t", 6528.0, Some(216.0), None),
        ("tpu-8i", 8601.0, Some(288.0), None),
        ("jalapeno", 15_400.0, Some(232.0), None),
        ("maia200", 7000.0, None, None),
        ("mtia400", 9400.0, None, None),
        ("grace", 512.0, Some(480.0), None),
        ("vera", 1200.0, Some(1536.0), None),
    ];
    for (name, bandwidth, memory, bf16) in rows {
        let found = sketch(&text(name), name).unwrap();
        let of = |key: &str| found.parameters.iter().find(|known| known.name == key).map(|known| known.value);
        let close = |found: Option<f64>, expected: Option<f64>| match (found, expected) {
            (Some(found), Some(expected)) => (found / expected - 1.0).abs() < 1e-9,
            (found, expected) => found == expected,
        };
        assert!(close(of("memory_bytes_per_s"), Some(bandwidth * 1e9)), "{name}");
        assert!(close(of("memory_bytes"), memory.map(|memory| memory * 1e9)), "{name}");
        assert!(close(of("bf16_flops"), bf16.map(|bf16| bf16 * 1e12)), "{name}");
    }
}

/// A part that lacks a number is shown as far as it is known, refused by the number's name, and priced once a variation
/// gives the number.
#[test]
fn an_unpublished_number_is_asked_for_by_name() {
    let refused = |expression: &str| resolve(expression, &lookup).unwrap_err();
    let error = refused("mi455x");
    assert_eq!(error.to_string(), "`mi455x` cannot be priced without `bf16_flops`, not published");
    assert_eq!(error.advice(), Some("assume what is missing, such as `mi455x*bf16_flops=1PFLOPS`"));
    assert!(refused("maia200").to_string().contains("`bf16_flops` and `memory_bytes` and `scale_up_bytes_per_s`"));
    assert!(refused("mi455x*bf16_flops=2").to_string().contains("expected a quantity with a unit, found `2`"));
    let given = machine("mi455x*bf16_flops=10PFLOPS*hbm_bw=2");
    assert_eq!(given.accelerator.bf16_flops.certainty, Certainty::Assumed);
    assert!((given.accelerator.memory_bytes_per_s.value - 46.6e12).abs() < 1.0);
    let listed = text("mi455x").replace("[\"bf16_flops\"]", "[\"bf16_flop\"]");
    let error = parse(&listed, "my.toml").unwrap_err();
    assert!(error.to_string().contains("`unpublished`: unknown number `bf16_flop`"), "{error}");
    let both = text("h200").replace("[accelerator]", "[accelerator]\nunpublished = [\"bf16_flops\"]");
    assert!(parse(&both, "my.toml").unwrap_err().to_string().contains("`bf16_flops` is given and `unpublished`"));
}

#[test]
fn tiers_and_links_are_described() {
    let found = machine("gb300");
    let links: Vec<_> = found.links.iter().map(|link| (link.name.as_str(), link.distance)).collect();
    let expected = [
        ("NV-HBI between dies", Distance::Package),
        ("NVLink-C2C", Distance::Board),
        ("NVLink5 and NVSwitch4", Distance::Rack),
    ];
    assert_eq!(links, expected);
    let host = &found.tiers[0];
    let bytes = host.capacity_bytes.as_ref().map(|known| known.value as u64);
    assert_eq!(
        (host.name.as_str(), bytes, host.write_bytes_per_s.is_none()),
        ("Grace LPDDR5X", Some(480_000_000_000), true)
    );
    let wrong = text("gb300").replace("distance = \"board\"", "distance = \"desk\"");
    let error = parse(&wrong, "my.toml").unwrap_err().to_string();
    assert!(
        error.contains("my.toml:") && error.contains("unknown variant `desk`, expected one of `package`"),
        "{error}"
    );
}

#[test]
fn nearer_memory_is_faster_and_narrower_formats_compute_faster() {
    for name in PRESETS {
        let Machine { accelerator, ffn_pool, .. } = machine(name);
        assert!(accelerator.memory_bytes_per_s.value > accelerator.scale_up_bytes_per_s.value, "{name}");
        let rates = [Some(&accelerator.bf16_flops), accelerator.fp8_flops.as_ref(), accelerator.fp4_flops.as_ref()];
        let rates: Vec<f64> = rates.into_iter().flatten().map(|rate| rate.value).collect();
        assert!(rates.is_sorted(), "{name}");
        assert!(accelerator.vector_flops.is_none_or(|vector| vector.value < rates[0]), "{name}");
        if let Some(pool) = ffn_pool {
            assert!(pool.memory_bytes_per_s.value > accelerator.memory_bytes_per_s.value, "{name}");
            assert!(pool.memory_bytes.value < accelerator.memory_bytes.value, "{name}");
        }
    }
}

#[test]
fn guesses_are_never_shown_as_measurements() {
    for name in ["vera-rubin", "vera-rubin-lpx", "tpu-v7"] {
        let machine = machine(name);
        for efficiency in
            ["kv_read_16bit", "kv_read_8bit", "weight_read", "matmul_fp8", "all_reduce", "attention_floor_ns"]
        {
            assert_eq!(parameter(&machine, efficiency).certainty, Certainty::Assumed, "{name} {efficiency}");
        }
    }
    for name in ["tpu-v7-384", "tpu-v7-512"] {
        let machine = machine(name);
        assert!(machine.title.starts_with("what-if"));
        assert_eq!(machine.accelerator.memory_bytes.certainty, Certainty::Assumed);
    }
    let pool = machine("vera-rubin-lpx").ffn_pool.unwrap();
    assert_eq!((pool.link_bytes_per_s, pool.link_latency_ns), (None, None));
}

#[test]
fn a_bare_number_multiplies_and_a_quantity_replaces() {
    let preset = machine("gb300");
    let varied = machine("gb300*memory_bytes_per_s=2*usable_memory_ratio=95%");
    assert_eq!(varied.name, "gb300*memory_bytes_per_s=2*usable_memory_ratio=95%");
    assert_eq!(varied.preset, "gb300");
    let bandwidth = &varied.accelerator.memory_bytes_per_s;
    assert_eq!((bandwidth.value, bandwidth.certainty), (16e12, Certainty::Assumed));
    assert_eq!(bandwidth.source, format!("{}, times 2", preset.accelerator.memory_bytes_per_s.source));
    let ratio = &varied.efficiency.usable_memory_ratio;
    assert!((ratio.value - 0.95).abs() < 1e-12);
    assert_eq!((ratio.source.as_str(), ratio.certainty), ("set on the command line", Certainty::Assumed));
    // Nothing else has changed.
    let changed = parameters(&preset).into_iter().zip(parameters(&varied)).filter(|(before, after)| before != after);
    assert_eq!(changed.count(), 2);
}

#[test]
fn unpublished_links_can_be_given_and_chips_counted() {
    let expression = "vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us*ffn_chips=0.5";
    let pool = machine(expression).ffn_pool.unwrap();
    let counted = machine("vera-rubin-lpx*ffn_chips=512chips").ffn_pool.unwrap();
    let found = [pool.link_bytes_per_s.unwrap(), pool.link_latency_ns.unwrap(), pool.chips, counted.chips];
    assert_eq!(found.map(|known| known.value as u64), [200_000_000_000, 2000, 128, 512]);
    let names = |expression| parameters(&machine(expression)).into_iter().map(|known| known.name).collect::<Vec<_>>();
    assert!(!names("vera-rubin-lpx").contains(&"link_latency_ns"));
    assert!(names(expression).ends_with(&["link_bytes_per_s", "link_latency_ns"]));
}

#[test]
fn bad_variations_are_refused_with_advice() {
    let cases = [
        ("h20O", "unknown machine `h20O`", "kvtoll list machines"),
        ("", "unknown machine ``", "kvtoll list machines"),
        ("h200*memory_byte_per_s=2", "unknown parameter `memory_byte_per_s`", "did you mean `memory_bytes_per_s`?"),
        ("h200*memory_bytes_per_s", "expected `parameter=value` after `*`", "such as"),
        ("h200*memory_bytes_per_s=5TBs", "`memory_bytes_per_s`: expected a bandwidth with a unit", "TB/s"),
        ("h200*memory_bytes_per_s=5GiB", "`memory_bytes_per_s`: expected a bandwidth with a unit", "TB/s"),
        ("h200*memory_bytes_per_s=0", "expected more than 0, found `0`", ""),
        ("h200*memory_bytes_per_s=-1", "expected more than 0", ""),
        ("h200*memory_bytes_per_s=inf", "expected more than 0, found `inf`", ""),
        ("h200*memory_bytes_per_s=nan", "expected more than 0", ""),
        ("h200*kv_read_16bit=2", "expected a ratio above 0 and up to 1, found `1.7`", ""),
        ("h200*link_latency_ns=2us", "`h200` has no separate FFN accelerators", "vera-rubin-lpx"),
        ("h200*scale_up_domain=2", "`scale_up_domain` cannot be varied in place", "machine file"),
        ("vera-rubin-lpx*link_latency_ns=2", "expected a quantity with a unit, found `2`", "multiplies"),
        ("vera-rubin-lpx*ffn_chips=0.3", "expected a whole number of chips", ""),
    ];
    for (expression, message, advice) in cases {
        let error = resolve(expression, &lookup).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.advice().unwrap_or_default().contains(advice), "{expression}: {:?}", error.advice());
    }
}

#[test]
fn errors_in_a_file_name_place_key_and_what_is_allowed() {
    let good = text("h200");
    let line = |needle: &str| good.lines().position(|line| line.starts_with(needle)).unwrap() + 1;
    let cases = [
        (
            "weight_read = ",
            "weight = ",
            format!("my.toml:{}:1: unknown field `weight`, expected one of", line("weight_read")),
        ),
        (
            "4800GB/s",
            "4800",
            format!("my.toml:{}:32: `memory_bytes_per_s`: expected a band", line("memory_bytes_per_s")),
        ),
        (
            "\"4800GB/s\"",
            "4.8",
            format!("my.toml:{}:32: `memory_bytes_per_s`: expected a ba", line("memory_bytes_per_s")),
        ),
        ("value = 0.82", "value = 82", format!("my.toml:{}:25: `weight_read`: expected a ratio", line("weight_read"))),
        ("source = \"vllm\"", "source = \"vlm\"", "`usable_memory_ratio`: unknown source `vlm`".to_owned()),
        ("scale_up_domain = 8", "scale_up_domain = 0", "`scale_up_domain`: expected at least 1".to_owned()),
        ("vllm = \"default", "vllm = \"\" # ", "expected a text for the source `vllm`, found none".to_owned()),
    ];
    for (from, to, expected) in cases {
        assert!(good.contains(from), "{from}");
        let error = parse(&good.replacen(from, to, 1), "my.toml").unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}\ninstead of {expected}");
    }
}

#[test]
fn each_missing_key_is_named_with_its_file_and_line() {
    let good = text("vera-rubin-lpx");
    let lines: Vec<&str> = good.lines().collect();
    let optional = ["fp8_flops", "fp4_flops", "vector_flops", "host_link_bytes_per_s"];
    let mut missing = 0;
    for (index, line) in lines.iter().enumerate() {
        let Some((key, _)) = line.split_once(" = ").filter(|(_, value)| value.starts_with("{ ")) else { continue };
        if lines[..index].iter().any(|line| line.starts_with("[[")) {
            continue;
        }
        let section = lines[..index].iter().rev().find(|line| line.starts_with('[')).unwrap().trim_matches(['[', ']']);
        if optional.contains(&key) && section == "accelerator" {
            continue;
        }
        let rest: Vec<&str> =
            lines.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, line)| *line).collect();
        let header = rest.iter().position(|line| line.trim_matches(['[', ']']) == section).unwrap() + 1;
        let error = parse(&rest.join("\n"), "my.toml").unwrap_err().to_string();
        assert_eq!(error, format!("my.toml:{header}:1: missing field `{key}` in `{section}`"));
        missing += 1;
    }
    // Required numbers of the accelerator, of its efficiencies, and of the FFN pool.
    assert_eq!(missing, 5 + 14 + 6);
}

proptest! {
    /// Scaling touches rates and times alone, and can be undone.
    #[test]
    fn scaling_is_linear(rates in 0.1_f64..10.0, latencies in 0.1_f64..10.0, index in 0..PRESETS.len()) {
        let preset = machine(PRESETS[index]);
        let changed = scaled(&preset, rates, latencies);
        for (before, after) in parameters(&preset).iter().zip(parameters(&changed)) {
            let factor = match before.unit {
                "flops/s" | "bytes/s" => rates,
                "ns" => latencies,
                _ => 1.0,
            };
            prop_assert!((after.value - before.value * factor).abs() <= before.value * 1e-12, "{}", before.name);
        }
        prop_assert_eq!(&scaled(&preset, 1.0, 1.0), &preset);
    }

    /// A number that is given with its unit is the number that is shown, whatever parameter it is.
    #[test]
    fn every_parameter_can_be_replaced(index in 0_usize..26, value in 1_u32..1000) {
        let pool = machine("vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us");
        let mut known = parameters(&pool).into_iter().filter(|known| known.name != "scale_up_domain");
        let Some(before) = known.nth(index) else { return Ok(()) };
        let (unit, factor) = match before.unit {
            "flops/s" => ("TFLOPS", 1e12),
            "bytes" => ("MiB", 1_048_576.0),
            "bytes/s" => ("GB/s", 1e9),
            "ns" => ("us", 1e3),
            "chips" => ("chips", 1.0),
            _ => ("%", 0.01),
        };
        let value = if unit == "%" { value % 100 + 1 } else { value };
        let expression = format!("vera-rubin-lpx*{}={value}{unit}", before.name);
        let after = parameter(&machine(&expression), before.name);
        let expected = f64::from(value) * factor;
        prop_assert!((after.value - expected).abs() <= expected * 1e-12, "{}: {}", expression, after.value);
    }

    /// Whatever is typed, the answer is a machine or an error.
    #[test]
    fn no_expression_panics(tail in "[*=a-z0-9_.%/ -]{0,40}") {
        let _ = resolve(&format!("h200*{tail}"), &lookup).map(|machine| parameters(&machine));
    }

    /// Whatever a byte is changed to, the answer is a machine or an error that names the file.
    #[test]
    fn damaged_files_never_panic(at in 0_usize..10_000, byte in 32_u8..127, cut in prop::bool::ANY) {
        let mut bytes = text("vera-rubin-lpx").into_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        if let Err(error) = parse(&String::from_utf8(bytes).unwrap(), "damaged.toml") {
            prop_assert!(error.to_string().starts_with("damaged.toml"), "{}", error);
        }
    }
}
