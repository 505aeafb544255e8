use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets/model")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap()
}

fn preset(name: &str) -> Model {
    parse(&text(name), &format!("presets/model/{name}.toml")).unwrap()
}

/// Name, growing bytes per token and constant bytes in bf16, parameters as published (in billions), and of them active.
/// The first two from the published shapes, worked out by hand; the last two from the model cards.
const GOLDEN: [(&str, u64, u64, f64, Option<f64>); 12] = [
    ("deepseek-v3", 70_272, 0, 671.0, Some(37.0)),
    ("gpt-oss-120b", 36_864, 4_718_592, 116.8, Some(5.1)),
    ("gpt-oss-20b", 24_576, 3_145_728, 20.9, Some(3.6)),
    ("llama-3.1-405b", 516_096, 0, 405.9, None),
    ("llama-3.1-70b", 327_680, 0, 70.6, None),
    ("llama-3.1-8b", 131_072, 0, 8.03, None),
    ("mixtral-8x7b", 131_072, 0, 46.7, Some(12.9)),
    ("qwen3-235b-a22b", 192_512, 0, 235.1, Some(22.0)),
    ("qwen3-30b-a3b", 98_304, 0, 30.5, Some(3.3)),
    ("qwen3-32b", 262_144, 0, 32.8, None),
    ("qwen3-8b", 147_456, 0, 8.19, None),
    ("smollm2-135m", 23_040, 0, 0.1345, None),
];

#[test]
fn every_preset_has_its_golden_row() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, GOLDEN.map(|(name, ..)| name));
}

#[test]
fn kv_and_parameters_of_the_presets_are_the_published_ones() {
    for (name, growing, constant, billions, active) in GOLDEN {
        let model = preset(name);
        assert_eq!(model.name, name);
        assert_eq!(model.growing_bytes_per_token(), growing, "{name}");
        assert_eq!(model.constant_bytes(), constant, "{name}");
        let found = model.params() / 1e9;
        assert!((found / billions - 1.0).abs() < 0.01, "{name} has {found} billion parameters");
        // Some cards count the input embedding as active and some do not: it may make up the difference.
        if let Some(active) = active {
            let (low, high) = (model.active_params() / 1e9, (model.active_params() + model.embedding_params) / 1e9);
            assert!(low < active * 1.02 && active * 0.98 < high, "{name} uses {low} to {high} billion parameters");
        }
        assert!(model.certainty == Certainty::Published && !model.source.is_empty());
    }
}

#[test]
fn latent_attention_decodes_absorbed_and_prefills_unabsorbed() {
    let kv = preset("deepseek-v3").groups[0].kv;
    assert_eq!((kv.kv_heads, kv.key_dim, kv.value_dim), (1, 576, 0));
    assert!((kv.macs_per_pair - 128.0 * (576.0 + 512.0)).abs() < 0.5);
    assert!((kv.prefill_macs_per_pair - 128.0 * (192.0 + 128.0)).abs() < 0.5);
    let kv = preset("llama-3.1-70b").groups[0].kv;
    assert!((kv.macs_per_pair - 64.0 * 256.0).abs() < 0.5 && (kv.prefill_macs_per_pair - 64.0 * 256.0).abs() < 0.5);
}

#[test]
fn depth_and_window_of_alternating_layers_are_kept() {
    let groups = preset("gpt-oss-120b").groups;
    let kinds: Vec<(u32, Attention)> = groups.iter().map(|group| (group.layers, group.kv.attention)).collect();
    assert_eq!(kinds, [(18, Attention::Sliding { window: 128 }), (18, Attention::Full)]);
}

#[test]
fn errors_name_place_key_and_what_is_allowed() {
    let good = text("llama-3.1-8b");
    let cases = [
        ("hidden = 4096\n", "", "my.toml:1:1: missing field `hidden`"),
        ("kv_heads = 8, ", "", "my.toml:10:18: missing field `kv_heads` in `layers.attention`"),
        ("hidden = 4096", "hiden = 4096", "my.toml:4:1: unknown field `hiden`, expected one of `title`"),
        ("attention.full", "attention.local", "my.toml:10:11: unknown variant `local`, expected one of `full`"),
        ("hidden = 4096", "hidden = -1", "my.toml:4:10: invalid value: integer `-1`, expected u32"),
        ("query_heads = 32", "query_heads = 33", "my.toml:8:1: expected `query_heads` to be a multiple of `kv_heads`"),
        ("count = 32", "count = 0", "my.toml:8:1: expected `count` from 1 to 10000, found 0"),
        ("\"published\"", "\"rumoured\"", "unknown variant `rumoured`, expected one of `assumed`"),
        ("hidden = 4096", "hidden = ", "my.toml:4:"),
    ];
    for (from, to, expected) in cases {
        assert!(good.contains(from), "{from}");
        let error = parse(&good.replace(from, to), "my.toml").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

proptest! {
    /// Bytes and parameters against sums that are written out matrix by matrix and layer by layer.
    #[test]
    fn a_shape_weighs_what_its_matrices_weigh(
        hidden in 1_u32..10_000, layers in 1_u32..100, kv_heads in 1_u32..16, group in 1_u32..16,
        key in 1_u32..256, value in 1_u32..256, window in 1_u32..5000, inner in 1_u32..30_000,
        vocabulary in 1_u32..200_000,
    ) {
        let heads = kv_heads * group;
        let text = format!(
            "title = 't'\nsource = 's'\ncertainty = 'assumed'\nhidden = {hidden}\nvocabulary = {vocabulary}\n\
             tied_embeddings = true\n[[layers]]\ncount = {layers}\nattention.sliding = {{ window = {window}, \
             query_heads = {heads}, kv_heads = {kv_heads}, key_dim = {key}, value_dim = {value} }}\n\
             ffn.dense = {{ intermediate = {inner} }}"
        );
        let model = parse(&text, "m").unwrap();
        let mut params = u64::from(hidden) * u64::from(vocabulary);
        let mut kv = 0_u64;
        for _ in 0..layers {
            for (rows, columns) in [
                (hidden, heads * key), (hidden, kv_heads * key), (hidden, kv_heads * value), (heads * value, hidden),
                (hidden, inner), (hidden, inner), (inner, hidden),
            ] {
                params += u64::from(rows) * u64::from(columns);
            }
            kv += u64::from(window) * u64::from(kv_heads) * (2 * u64::from(key) + 2 * u64::from(value));
        }
        prop_assert!((model.params() / params as f64 - 1.0).abs() < 1e-12);
        prop_assert!((model.active_params() - model.params()).abs() < 1.0);
        prop_assert_eq!(model.constant_bytes(), kv);
        prop_assert_eq!(model.growing_bytes_per_token(), 0);
    }

    /// Whatever a byte is changed to, the answer is a model or an error with a place, never a panic.
    #[test]
    fn damaged_files_never_panic(at in 0_usize..400, byte in 32_u8..127, far in prop::bool::ANY) {
        let mut bytes = text("deepseek-v3").into_bytes();
        let at = at % bytes.len();
        if far { bytes.truncate(at) } else { bytes[at] = byte }
        let text = String::from_utf8(bytes).unwrap();
        if let Err(error) = parse(&text, "damaged.toml") {
            prop_assert!(error.to_string().starts_with("damaged.toml"), "{}", error);
        }
    }

    /// The largest numbers that fit the file are refused, or stay within 64 bits.
    #[test]
    fn extreme_shapes_never_overflow(exponents in prop::array::uniform6(0_u32..33)) {
        let [count, window, kv_heads, key, value, experts] = exponents.map(|e| (1_u64 << e) - u64::from(e == 32));
        let text = format!(
            "title = 't'\nsource = 's'\ncertainty = 'assumed'\nhidden = 64\nvocabulary = 64\ntied_embeddings = false\n\
             [[layers]]\ncount = {count}\nattention.sliding = {{ window = {window}, query_heads = {kv_heads}, \
             kv_heads = {kv_heads}, key_dim = {key}, value_dim = {value} }}\n\
             ffn.moe = {{ experts = {experts}, active = 1, expert_intermediate = 4 }}"
        );
        if let Ok(model) = parse(&text, "m") {
            let exact = u128::from(count) * u128::from(window) * 2 * u128::from(kv_heads) * u128::from(key + value);
            prop_assert_eq!(u128::from(model.constant_bytes()), exact);
        }
    }
}
