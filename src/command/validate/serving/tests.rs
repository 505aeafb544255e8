use arrow::array::AsArray;
use arrow::datatypes::Float64Type;
use engine::cost::Parallel;

use super::rows::{Launch, front_ms};
use super::*;

/// What stands on the command line with nothing but the runs.
fn args_of(runs: &Path) -> Args {
    Args {
        runs: vec![runs.to_owned()],
        machine: None,
        model: None,
        dataset: None,
        engine: None,
        surfaces: None,
        lengths_from: 0.8,
        fit: false,
        details: None,
        output: None,
    }
}

#[test]
fn model_ids_are_presets() {
    for (id, preset) in [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("zhipuai/GLM-5", "glm-5"),
    ] {
        assert_eq!(model_preset(id), preset);
        assert!(crate::scenario::load_model(preset).is_ok(), "{preset}");
    }
}

/// As the benchmark's scripts say.
#[test]
fn engines_are_launched_as_the_benchmark_launches_them() {
    let tensor = |tensor| Parallel { tensor, data: 1, expert: 1, pipeline: 1, instances: 1 };
    let dsr1 = Launch {
        backend: "sglang",
        model: "deepseek-ai/DeepSeek-R1",
        system: "b200",
        weights: "fp8",
        parallel: tensor(8),
        lengths: (1024, 1024),
        concurrency: 16,
    };
    let trt = Launch { backend: "trtllm", ..dsr1 };
    for (launch, flags) in [
        (dsr1, (Some(32768), Some(30))),
        (Launch { concurrency: 8, ..dsr1 }, (Some(32768), Some(10))),
        (Launch { parallel: tensor(4), ..dsr1 }, (Some(8192), Some(10))),
        (Launch { weights: "nvfp4", ..dsr1 }, (Some(16384), Some(30))),
        (Launch { system: "h200", ..dsr1 }, (Some(32768), None)),
        (Launch { model: "zai-org/GLM-5-FP8", ..dsr1 }, (Some(32768), None)),
        (Launch { model: "Qwen/Qwen3.5-397B-A17B-FP8", system: "h200", ..dsr1 }, (Some(16384), None)),
        (trt, (Some(8192), None)),
        (Launch { concurrency: 64, ..trt }, (Some(8192), Some(40))),
        // 8192 + 64 + 127, in whole 64s.
        (Launch { lengths: (8192, 1024), concurrency: 64, ..trt }, (Some(8320), None)),
        (Launch { parallel: Parallel { data: 8, ..tensor(1) }, ..trt }, (Some(8192), Some(60))),
        (Launch { backend: "vllm", ..dsr1 }, (None, None)),
    ] {
        assert_eq!(launch.flags(), flags, "{launch:?}");
    }
}

/// The figure with the least mean relative error: of 100 and 300 ms measured, 50 and 150 replayed, 50 are missing twice as
/// dearly as 150.
#[test]
fn what_passes_before_the_first_token_is_the_likeliest_figure() {
    let likeliest = |known: &[[f64; 2]], ms: f64| assert!((front_ms(known) - ms).abs() < 1e-9, "{known:?}");
    likeliest(&[[100.0, 50.0], [300.0, 150.0]], 50.0);
    likeliest(&[[100.0, 50.0], [300.0, 150.0], [290.0, 140.0], [295.0, 145.0], [310.0, 160.0]], 150.0);
    likeliest(&[], 0.0);
}

/// The shipped run: replayed to the end, and its figures are there with their errors.
#[test]
fn a_shipped_run_is_compared_figure_by_figure() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("traces/llmservingsim_result");
    let args = Args {
        machine: Some("rtx4090".to_owned()),
        dataset: Some(root.join("traces/llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl.zst")),
        ..args_of(&folder)
    };
    let (lines, details) = one(&args, &folder).unwrap();
    let of = |figure: &str| lines.iter().find(|line| line.figure == figure).unwrap();
    // The benchmark's own summary: 65,456.6 ms and 86,578.3 ms.
    assert!((of("ttft_mean").measured.unwrap() - 65.4566).abs() < 1e-3);
    assert!((of("e2e_mean").measured.unwrap() - 86.5783).abs() < 1e-3);
    assert!((of("ttft_p99").measured.unwrap() - 137.3563).abs() < 1e-3);
    // What is asked of this run: means within 2%, the tail within 5%, single requests within 3%, KV within 3 points.
    let bars = [
        ("ttft_mean", 0.02),
        ("e2e_mean", 0.02),
        ("ttft_p99", 0.05),
        ("e2e_p99", 0.05),
        ("ttft_median_error_by_request", 0.03),
        ("e2e_median_error_by_request", 0.03),
        ("kv_in_use_rms", 3.0),
        ("kv_blocks_computed", 0.05),
    ];
    for (figure, bar) in bars {
        assert!(of(figure).error.unwrap().abs() < bar, "{:?}", of(figure));
    }
    // What every report says of this run is what it comes to.
    let shipped = crate::shipped::serving().unwrap();
    for (figure, name) in [("ttft", "first token"), ("tpot", "time per token"), ("e2e", "end to end")] {
        let named = |row: &&engine::replay::Shipped| row.subject.contains("RTX 4090") && row.subject.contains(name);
        let told = shipped.iter().find(named).unwrap();
        for (which, said) in [("median", Some(told.median_error_ratio)), ("p90", told.p90_error_ratio)] {
            let found = of(&format!("{figure}_{which}_error_by_request"));
            let (said, error) = (said.unwrap(), found.error.unwrap());
            assert!(
                (said - error).abs() < 0.05 * error && told.rows == found.count,
                "presets/validation/serving.tsv says {said} of {name} ({which}), it comes to {error}: run `kvtoll validate serving`"
            );
        }
    }
    assert_eq!(details[0].num_rows(), 300);
}

#[test]
fn rows_without_a_field_are_counted_by_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.csv");
    let pool = ["batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size"].join(",");
    let apart = |name: &str| format!("{name}_num_workers,{name}_{}", pool.replace(',', &format!(",{name}_")));
    let header = format!(
        "id,mode,backend,backend_version,model_path,system,precision,isl,osl,gemm_quant_mode,moe_quant_mode,{pool},{},{},\
         silicon_ttft_ms,silicon_tpot_ms",
        apart("prefill"),
        apart("decode")
    );
    let (own, none, two) = ("4,1,1,1,1,1", ",,,,,", "1,1,1,1,1,1,1,2,2,1,1,1,1,1");
    let row = |id: &str, mode: &str, precision: &str, pools: String| {
        format!("{id},{mode},vllm,0.19,meta-llama/Llama-3.1-8B,h100_sxm,{precision},256,32,fp8,fp8,{pools},30,5")
    };
    let rows = [
        row("a", "agg", "fp8", format!("{own},,{none},,{none}")),
        // The same, and twice as long a token.
        row("a2", "agg", "fp8", format!("{own},,{none},,{none}")).replace(",30,5", ",30,10"),
        row("b", "agg", "", format!("{own},,{none},,{none}")),
        row("c", "disagg", "fp8", format!("{none},,{none},,{none}")),
        // One instance computes prompts, and two decode two requests each.
        row("d", "disagg", "fp8", format!("{none},{two}")),
        row("e", "other", "fp8", format!("{own},,{none},,{none}")),
    ];
    std::fs::write(&path, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
    let args = args_of(&path);
    let (lines, details) = one(&args, &path).unwrap();
    let left: Vec<(&str, u64)> =
        lines.iter().filter(|line| line.of == "rows left out").map(|line| (line.figure.as_str(), line.count)).collect();
    assert_eq!(
        left,
        [("disaggregated, missing `prefill_batch_size`", 1), ("missing `precision`", 1), ("the mode `other`", 1)]
    );
    assert_eq!(details[0].num_rows(), 3);
    let twins = lines.iter().find(|line| line.figure == "tpot_least_error").unwrap();
    assert!(twins.count == 2 && (twins.error.unwrap() - 1.0 / 3.0).abs() < 1e-12, "{twins:?}");
    let of = |of: &str| lines.iter().find(|line| line.of == of && line.figure == "tpot_median_error").unwrap();
    assert_eq!((of("plain: all").count, of("plain: extrapolated disaggregated h100").count), (2, 1));
    assert!(of("plain: extrapolated disaggregated all").error.is_some());
    let concurrency = details[0].column_by_name("concurrency").unwrap().as_primitive::<Float64Type>();
    assert_eq!(concurrency.values()[..], [4.0, 4.0, 4.0]);
}

/// As InferenceX draws them, and all alike.
#[test]
fn lengths_are_drawn_from_a_share_of_what_is_listed() {
    let mut rng = engine::policy::rng::Rng::new(0);
    let drawn = rows::lengths(&mut rng, 10_000, 1024, 0.8);
    let mean = drawn.iter().map(|&length| f64::from(length)).sum::<f64>() / 10_000.0;
    assert!(drawn.iter().all(|length| (819..=1024).contains(length)) && (mean / 921.5 - 1.0).abs() < 0.005, "{mean}");
    assert!(drawn.contains(&819) && drawn.contains(&1024));
    assert_eq!(rows::lengths(&mut rng, 3, 1024, 1.0), [1024; 3]);
    assert_eq!(rows::lengths(&mut rng, 2, 0, 0.8), [1; 2]);
    assert_eq!(share("80%", "80%"), Ok(0.8));
    assert_eq!(share("0%", "80%").unwrap_err().to_string(), "expected a share such as `80%`, found `0%`");
}

/// As the ids of such rows say it: `2026_04_06_deepseek_r1_b200_sxm_trtllm_fp8_agg_8192x1024_c4_tp8_ep8_920`.
#[test]
fn accelerators_of_squared_rows_count_once() {
    let once = |id, listed, experts| rows::once(id, listed, experts, false);
    assert_eq!(once("agg_c4_tp8_ep8_920", [64, 1], [8, 8]), [8, 1]);
    assert_eq!(once("agg_c4_tp8_ep8", [1, 64], [8, 8]), [1, 8]);
    assert_eq!(once("agg_c4_cfg201", [64, 1], [8, 8]), [8, 1]);
    // Four accelerators, each expert on two of them.
    assert_eq!(once("sglang_agg_c32_cfg736", [4, 1], [2, 2]), [4, 1]);
    assert_eq!(rows::once("disagg_c3228_tp2_ep2_1638", [4, 1], [2, 2], true), [2, 1]);
    assert_eq!(rows::once("disagg_c12_tp2_0_ep2_0_1215", [4, 1], [2, 2], true), [2, 1]);
    assert_eq!(rows::once("disagg_c12_cfg1", [16, 1], [4, 4], true), [16, 1]);
    for as_it_is in [[8, 1], [4, 1], [1, 8], [64, 1]] {
        assert_eq!(once("tp8_ep8", as_it_is, [1, 8]), as_it_is);
        assert_eq!(once("tp8_ep8", as_it_is, [64, 1]), as_it_is);
    }
}

#[test]
fn an_empty_file_and_a_wrong_line_are_told_in_our_words() {
    let folder = tempfile::tempdir().unwrap();
    let run = |path: &Path| {
        let args = args_of(path);
        let error = one(&args, path).unwrap_err();
        assert!(error.advice().is_some(), "{error}");
        error.to_string()
    };
    let csv = folder.path().join("runs.csv");
    for text in ["", "\n \n"] {
        std::fs::write(&csv, text).unwrap();
        assert!(run(&csv).ends_with("expected a header and rows, found an empty file"));
    }
    std::fs::write(&csv, [0xff_u8, 0xfe, 0x00]).unwrap();
    assert!(run(&csv).ends_with("expected a CSV file in UTF-8, found other bytes"));
    std::fs::write(folder.path().join("meta.json"), "{\"model\": 3}").unwrap();
    assert!(run(folder.path()).ends_with("meta.json:1:11: expected a text, found `3`"), "{}", run(folder.path()));
    let meta = r#"{"model": "m", "vllm_version": "0.19", "started_at": "", "engine_kwargs": {}}"#;
    std::fs::write(folder.path().join("meta.json"), meta).unwrap();
    std::fs::write(folder.path().join("requests.jsonl"), "\n{\"input_toks\": 1}\n").unwrap();
    let said = run(folder.path());
    assert!(said.ends_with("requests.jsonl:2:17: expected the key `output_toks`, found none"), "{said}");
}
