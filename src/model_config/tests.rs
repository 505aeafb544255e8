//! The configurations here have the keys of the published files that matter, with their values.

use super::*;
use crate::scenario::load_model;

const GPT_OSS: &str = r#"{ "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64,
  "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 4,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
  "num_experts_per_tok": 4, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128,
  "quantization_config": { "quant_method": "mxfp4" }, "tie_word_embeddings": false, "vocab_size": 201088 }"#;

const KIMI: &str = r#"{ "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "text_config": {
  "model_type": "kimi_k2", "first_k_dense_replace": 1, "hidden_size": 7168, "intermediate_size": 18432,
  "kv_lora_rank": 512, "max_position_embeddings": 262144, "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1,
  "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 163840,
  "quantization_config": { "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": { "group_0": { "weights": { "num_bits": 4, "group_size": 32, "type": "int" } } } } },
  "tie_word_embeddings": false }"#;

const NEMOTRON: &str = r#"{ "model_type": "nemotron_h", "conv_kernel": 4, "head_dim": 128, "hidden_size": 4096,
  "hybrid_override_pattern": "MEM*E", "mamba_head_dim": 64, "mamba_num_heads": 128, "moe_intermediate_size": 2688,
  "moe_latent_size": 1024, "moe_shared_expert_intermediate_size": 5376, "n_groups": 8, "n_routed_experts": 512,
  "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 22, "num_hidden_layers": 5,
  "num_key_value_heads": 2, "ssm_state_size": 128, "time_step_limit": [0.0, Infinity], "note": "Infinity \" NaN",
  "tie_word_embeddings": false, "vocab_size": 131072 }"#;

const LLAMA: &str = r#"{ "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "max_position_embeddings": 131072, "tie_word_embeddings": false, "vocab_size": 128256 }"#;

#[test]
fn a_configuration_is_the_preset_of_its_model() {
    for (text, preset) in [(KIMI, "kimi-k2.5"), (LLAMA, "llama-3.1-8b")] {
        let (found, known) = (parse(text, "x/config.json").unwrap(), load_model(preset).unwrap());
        assert_eq!(found.groups, known.groups, "{preset}");
        assert_eq!((found.weights, found.hidden), (known.weights, known.hidden), "{preset}");
        assert_eq!(found.params().to_bits(), known.params().to_bits(), "{preset}");
        assert!(found.context_tokens.is_some() && found.context_tokens == known.context_tokens, "{preset}");
        assert_eq!(found.certainty, Certainty::Published);
    }
}

#[test]
fn windows_experts_and_formats_come_from_the_file() {
    let found = parse(GPT_OSS, "models/gpt-oss/config.json").unwrap();
    assert_eq!((found.name.as_str(), found.title.as_str()), ("gpt-oss", "GptOssForCausalLM (gpt-oss)"));
    let kinds: Vec<_> = found.groups.iter().map(|group| (group.layers, group.kv.attention.window())).collect();
    assert_eq!(kinds, [(2, Some(128)), (2, None)]);
    assert_eq!((found.groups[0].ffn.experts, found.groups[0].ffn.active_experts), (32, 4));
    assert_eq!(found.weights, WeightDtype::Mxfp4);
}

/// A mixer with the network after it is one layer, one that another mixer follows has no network; and what Python writes
/// for infinity is read, but left alone within a text.
#[test]
fn a_pattern_of_mixers_and_networks_becomes_layers() {
    let found = parse(NEMOTRON, "nemotron.json").unwrap();
    assert_eq!(found.name, "nemotron");
    let kinds: Vec<_> =
        found.groups.iter().map(|group| (group.layers, group.kv.attention.name(), group.ffn.experts)).collect();
    assert_eq!(kinds, [(1, "linear", 512), (1, "linear", 0), (1, "full", 512)]);
    let known = load_model("nemotron-3-super-120b-a12b").unwrap();
    assert_eq!(found.groups[0].ffn, known.groups[0].ffn);
    assert!(standard(NEMOTRON).contains(r#"[0.0, null], "note": "Infinity \" NaN""#));
}

#[test]
fn errors_name_the_file_and_the_key() {
    let cases = [
        ("\"model_type\": \"llama\"", "\"model_type\": \"lama\"", "c.json: unknown model type `lama`"),
        ("\"model_type\": \"llama\",", "", "c.json: unknown model type ``"),
        (
            "\"hidden_size\": 4096,",
            "",
            "c.json: expected the key `hidden_size` for a model of type `llama`, found none",
        ),
        ("4096", "\"wide\"", "c.json: `hidden_size`: expected a whole number below 2^32, found `\"wide\"`"),
        ("4096", "-1", "`hidden_size`: expected a whole number below 2^32, found `-1`"),
        ("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 0", "expected 1 to 10000, found 0"),
        ("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 4000000000", "expected 1 to 10000, found 4000000000"),
        ("\"num_attention_heads\": 32", "\"num_attention_heads\": 0", "expected at least 1, found 0"),
        ("\"num_attention_heads\": 32", "\"num_attention_heads\": 33", "multiple of `kv_heads`, found 33 and 8"),
        ("{ \"arch", "[ \"arch", "c.json:1:"),
        ("}", "", "c.json:3:"),
    ];
    for (from, to, expected) in cases {
        assert!(LLAMA.contains(from), "{from}");
        let error = parse(&LLAMA.replace(from, to), "c.json").unwrap_err();
        assert!(error.to_string().contains(expected), "{error}\ninstead of {expected}");
    }
    let error = parse(&LLAMA.replace("\"llama\"", "\"lama\""), "c.json").unwrap_err();
    assert!(error.advice().unwrap_or_default().contains("model file"), "{:?}", error.advice());
    assert!(parse("[1]", "c.json").unwrap_err().to_string().contains("expected a JSON object"));
    let short = GPT_OSS.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5");
    let error = parse(&short, "c.json").unwrap_err().to_string();
    assert_eq!(error, "c.json: `layer_types`: expected one entry for each of 5 layers, found 4");
}

/// Every cut and every changed byte gives a model or an error with the file's name.
#[test]
fn damaged_configurations_never_panic() {
    for text in [GPT_OSS, KIMI, NEMOTRON] {
        for at in 0..text.len() {
            for damaged in [text[..at].to_owned(), [&text[..at], "9", &text[at + 1..]].concat()] {
                if let Err(error) = parse(&damaged, "d.json") {
                    assert!(error.to_string().starts_with("d.json"), "{error}");
                }
            }
        }
    }
}

#[test]
fn weights_of_unknown_formats_are_refused_and_known_ones_taken() {
    let of = |table: &str| {
        let keys: Value = serde_json::from_str(&format!("{{\"quantization_config\": {table}}}")).unwrap();
        weights(Config { keys: keys.as_object().unwrap() })
    };
    assert_eq!(of(r#"{"quant_method": "awq", "bits": 4}"#).unwrap(), Some(WeightDtype::Int4));
    assert_eq!(of(r#"{"quant_method": "fp8"}"#).unwrap(), Some(WeightDtype::Fp8));
    assert_eq!(of("null").unwrap(), None);
    for (table, found) in [
        (r#"{"quant_method": "gptq", "bits": 8}"#, "found `gptq` with 8 bits"),
        (r#"{"quant_method": "bitsandbytes"}"#, "found `bitsandbytes` with no bits that are known"),
        (r#"{"quant_method": "compressed-tensors", "weights": {"num_bits": 8, "type": "int"}}"#, "other than 4 bits"),
    ] {
        let error = of(table).unwrap_err();
        assert!(error.to_string().contains(found) && error.advice().is_some(), "{error}");
    }
}

#[test]
fn a_key_that_stands_twice_is_told_with_its_place() {
    let error = parse("{\n \"a\": 1,\n \"b\": {\"c\": [1, {\"d\": 1, \"d\": 2}]}}", "x/config.json").unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with("x/config.json:3:") && said.ends_with("found the key `d` a second time"), "{said}");
}
