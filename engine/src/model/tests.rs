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
/// The bytes from POLICIES 6.2 (KV) and 6.1 (indices: 132 bytes a key, or 256 in MiniMax-M3; entries of DeepSeek-V4), the
/// parameters from the model cards or the models' names.
type Golden = (&'static str, u64, u64, Option<f64>, Option<f64>);

const GOLDEN: [Golden; 50] = [
    ("deepseek-r1", 70_272, 0, Some(671.0), Some(37.0)),
    ("deepseek-r1-nvfp4", 70_272, 0, Some(671.0), Some(37.0)),
    ("deepseek-v3", 70_272, 0, Some(671.0), Some(37.0)),
    ("deepseek-v3.1-nvfp4", 70_272, 0, Some(671.0), Some(37.0)),
    ("deepseek-v3.2", 78_324, 0, Some(671.0), Some(37.0)),
    ("deepseek-v4-flash", 5_872, 5_636_096, None, None),
    ("deepseek-v4-pro", 8_408, 7_995_392, None, None),
    ("gemma-4-26b-a4b", 20_480, 209_715_200, Some(26.0), Some(4.0)),
    ("gemma-4-31b", 81_920, 838_860_800, Some(31.0), None),
    ("glm-5", 100_152, 0, Some(744.0), Some(40.0)),
    ("glm-5.1", 100_152, 0, Some(744.0), Some(40.0)),
    ("glm-5.2", 92_628, 0, None, None),
    ("gpt-oss-120b", 36_864, 4_718_592, Some(116.8), Some(5.1)),
    ("gpt-oss-20b", 24_576, 3_145_728, Some(20.9), Some(3.6)),
    ("kimi-k2", 70_272, 0, Some(1000.0), Some(32.0)),
    ("kimi-k2.5", 70_272, 0, Some(1000.0), Some(32.0)),
    ("kimi-k3", 27_648, 449_372_160, None, None),
    ("llama-3.1-405b", 516_096, 0, Some(405.9), None),
    ("llama-3.1-70b", 327_680, 0, Some(70.6), None),
    ("llama-3.1-8b", 131_072, 0, Some(8.03), None),
    ("llama-4-maverick", 49_152, 1_207_959_552, Some(400.0), Some(17.0)),
    ("llama-4-scout", 49_152, 1_207_959_552, None, Some(17.0)),
    ("mimo-v2-flash", 23_040, 25_559_040, None, None),
    ("minimax-m2.5", 253_952, 0, Some(230.0), Some(10.0)),
    ("minimax-m2.7", 253_952, 0, Some(230.0), Some(10.0)),
    ("minimax-m3", 137_472, 0, None, None),
    ("mixtral-8x22b", 229_376, 0, None, None),
    ("mixtral-8x7b", 131_072, 0, Some(46.7), Some(12.9)),
    ("nemotron-3-nano-30b-a3b", 6_144, 49_082_368, Some(30.0), Some(3.0)),
    ("nemotron-3-super-120b-a12b", 8_192, 170_229_760, Some(120.0), Some(12.0)),
    ("nemotron-h-56b", 40_960, 912_605_184, Some(56.0), None),
    ("qwen3-0.6b", 114_688, 0, Some(0.6), None),
    ("qwen3-1.7b", 114_688, 0, Some(1.7), None),
    ("qwen3-235b-a22b", 192_512, 0, Some(235.1), Some(22.0)),
    ("qwen3-235b-a22b-fp8", 192_512, 0, Some(235.1), Some(22.0)),
    ("qwen3-235b-a22b-nvfp4", 192_512, 0, Some(235.1), Some(22.0)),
    ("qwen3-30b-a3b", 98_304, 0, Some(30.5), Some(3.3)),
    ("qwen3-30b-a3b-fp8", 98_304, 0, Some(30.5), Some(3.3)),
    ("qwen3-32b", 262_144, 0, Some(32.8), None),
    ("qwen3-32b-fp8", 262_144, 0, Some(32.8), None),
    ("qwen3-32b-nvfp4", 262_144, 0, Some(32.8), None),
    ("qwen3-8b", 147_456, 0, Some(8.19), None),
    ("qwen3-coder-480b-a35b", 253_952, 0, Some(480.0), Some(35.0)),
    ("qwen3.5-122b-a10b", 24_576, 153_649_152, Some(122.0), Some(10.0)),
    ("qwen3.5-27b", 65_536, 153_944_064, Some(27.0), None),
    ("qwen3.5-35b-a3b", 20_480, 64_389_120, Some(35.0), Some(3.0)),
    ("qwen3.5-397b-a17b", 30_720, 192_061_440, Some(397.0), Some(17.0)),
    ("smollm2-135m", 23_040, 0, Some(0.1345), None),
    ("step-3.7-flash", 49_152, 69_206_016, None, None),
    ("step-3.7-flash-fp8", 49_152, 69_206_016, None, None),
];

/// How far a figure may be from the published one: 1%, or the half of its last digit where it is a name that rounds more.
fn tolerance(name: &str) -> f64 {
    match name {
        // 26B and 4B, 30B and 3B, 1T in the names; 25.2 and 3.8, 31.6 and 3.2, 1.03 in fact.
        "gemma-4-26b-a4b" => 0.05,
        "nemotron-3-nano-30b-a3b" => 0.08,
        "kimi-k2" | "kimi-k2.5" => 0.03,
        "qwen3-1.7b" | "deepseek-v3.2" => 0.015,
        _ => 0.01,
    }
}

#[test]
fn every_preset_has_its_golden_row() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<String> = files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    names.sort();
    let mut known = GOLDEN.map(|(name, ..)| name);
    known.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn kv_and_parameters_of_the_presets_are_the_published_ones() {
    for (name, growing, constant, billions, active) in GOLDEN {
        let model = preset(name);
        assert_eq!(model.name, name);
        assert_eq!(model.growing_bytes_per_token(), growing, "{name}");
        assert_eq!(model.constant_bytes(), constant, "{name}");
        // From windows of 8,192 tokens to Llama 4 Scout's ten million.
        assert!(model.context_tokens.is_some_and(|context| (8_192..=10_485_760).contains(&context)), "{name}");
        let found = model.params() / 1e9;
        if let Some(billions) = billions {
            let off = (found / billions - 1.0).abs();
            assert!(off < tolerance(name), "{name} has {found} billion parameters, {billions} published");
        }
        // Names round the active ones to a digit or two, and count the input embedding or do not: it may make up the
        // difference.
        if let Some(active) = active {
            let (low, high) = (model.active_params() / 1e9, (model.active_params() + model.embedding_params) / 1e9);
            let slack = match name {
                _ if name.contains("-a") || name.contains("llama-4") || name.contains("minimax") => 0.08,
                // 40 billion of 744, both rounded.
                _ if name.starts_with("glm-5") => 0.03,
                _ => 0.02,
            };
            assert!(low < active * (1.0 + slack) && active * (1.0 - slack) < high, "{name} uses {low} to {high}");
        }
        assert!(model.certainty <= Certainty::Published && !model.source.is_empty());
    }
}

/// What only some models have: the published format of the weights, and shapes that are derived or taken from a name.
#[test]
fn formats_and_assumptions_are_kept() {
    let formats = [
        ("llama-3.1-8b", WeightDtype::Bf16),
        ("deepseek-v3", WeightDtype::Fp8),
        ("qwen3-235b-a22b-fp8", WeightDtype::Fp8),
        ("deepseek-v3.1-nvfp4", WeightDtype::Nvfp4),
        ("gpt-oss-20b", WeightDtype::Mxfp4),
        ("kimi-k2.5", WeightDtype::Int4),
    ];
    for (name, dtype) in formats {
        assert_eq!(preset(name).weights, dtype, "{name}");
    }
    let assumed = GOLDEN.map(|(name, ..)| name).into_iter().filter(|name| preset(name).certainty == Certainty::Assumed);
    let expected = [
        "deepseek-r1-nvfp4",
        "deepseek-v4-flash",
        "deepseek-v4-pro",
        "kimi-k3",
        "llama-4-maverick",
        "llama-4-scout",
        "minimax-m3",
        "qwen3-32b-nvfp4",
    ];
    assert_eq!(assumed.collect::<Vec<_>>(), expected);
}

/// A layer with a state: its bytes by hand (a matrix of 128 by 128 in fp32 for each of 64 heads, three inputs of a
/// convolution of 12,288 channels in 16 bits), and three products with the state per token.
#[test]
fn attention_stays_in_16_bits_where_experts_are_in_4() {
    for (model, dtype, of_attention) in [
        ("gpt-oss-120b", WeightDtype::Mxfp4, WeightDtype::Bf16),
        ("kimi-k2.5", WeightDtype::Int4, WeightDtype::Bf16),
        ("deepseek-r1-nvfp4", WeightDtype::Nvfp4, WeightDtype::Bf16),
        ("deepseek-r1", WeightDtype::Fp8, WeightDtype::Fp8),
        ("qwen3-32b-nvfp4", WeightDtype::Nvfp4, WeightDtype::Nvfp4),
    ] {
        assert_eq!(preset(model).attention_dtype(dtype), of_attention, "{model}");
    }
}

#[test]
fn a_linear_layer_has_a_state_and_no_growing_cache() {
    let linear = preset("qwen3.5-397b-a17b").groups[0].clone();
    assert_eq!((linear.layers, linear.kv.attention), (45, Attention::Linear));
    let state = u64::from(STATE_TOKENS) * linear.kv.bf16_bytes();
    assert_eq!(state, 64 * 128 * 128 * 4 + 3 * 12_288 * 2);
    let macs = f64::from(STATE_TOKENS) * linear.kv.macs_per_pair;
    assert!((macs - 3.0 * 64.0 * 128.0 * 128.0).abs() < 1.0);
}

#[test]
fn a_sparse_layer_stores_all_and_reads_what_its_index_chooses() {
    let groups = preset("glm-5.2").groups;
    let of = |group: &LayerGroup| *group.kv.attention.sparse().unwrap();
    let indexed: u32 = groups.iter().filter(|group| of(group).index_bytes > 0).map(|group| group.layers).sum();
    assert_eq!(indexed, 21);
    assert!(groups.iter().all(|group| of(group).top == 2048 && of(group).is_latent && group.kv.elements() == 576));
    // DeepSeek-V4: an entry of 512 for 4 tokens, of which 1,024 are chosen, and a window of 128 single entries beside.
    let entries = preset("deepseek-v4-pro").groups[1].kv;
    let sparse = *entries.attention.sparse().unwrap();
    assert_eq!((entries.bf16_bytes(), sparse.index_bytes, sparse.top), (256, 16, 4096));
    let (window, beside) = entries.entry_window().unwrap();
    assert_eq!((window, beside.bf16_bytes(), beside.attention), (128, 1024, Attention::Sliding { window: 128 }));
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
        ("kv_heads = 8, ", "", "my.toml:11:18: missing field `kv_heads` in `layers.attention`"),
        ("hidden = 4096", "hiden = 4096", "my.toml:4:1: unknown field `hiden`, expected one of `title`"),
        ("attention.full", "attention.local", "my.toml:11:11: unknown variant `local`, expected one of `full`"),
        ("hidden = 4096", "hidden = -1", "my.toml:4:10: invalid value: integer `-1`, expected u32"),
        ("query_heads = 32", "query_heads = 33", "my.toml:9:1: expected `query_heads` to be a multiple of `kv_heads`"),
        ("count = 32", "count = 0", "my.toml:9:1: expected `count` from 1 to 10000, found 0"),
        ("\"published\"", "\"rumoured\"", "unknown variant `rumoured`, expected one of `assumed`"),
        ("hidden = 4096", "hidden = ", "my.toml:4:"),
        ("hidden = 4096", "weights = \"fp16\"\nhidden = 4096", "unknown variant `fp16`, expected one of `bf16`, `fp8`"),
        ("attention.full", "attention.mamba2", "unknown field `key_dim`, expected one of `heads`, `head_dim`"),
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
