//! Calibrating from samples of both formats, and holding the result against what it was fitted to.

use std::path::Path;

use super::*;
use crate::command::validate::kernels;
use crate::surfaces::Library;

fn args(files: &[&str], into: &Path) -> Args {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
    Args {
        files: files.iter().map(|file| root.join(file).to_string_lossy().into_owned()).collect(),
        into: into.to_owned(),
        machine: None,
        origin: "a test".to_owned(),
        licence: "Apache-2.0".to_owned(),
        output: Some(into.join("errors.csv")),
    }
}

#[test]
fn samples_become_surfaces_that_can_be_validated() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("made");
    let files = ["op_parquet/*.parquet", "llmservingsim_profile/attention.csv", "llmservingsim_profile/skew.csv"];
    run(&args(&files, &into)).unwrap();
    let mut library = Library::of(Some(&into));
    let names = library.names().unwrap();
    for name in ["h200__vllm__attention_generation", "h200__vllm__gemm", "h200__trtllm__all_gather"] {
        assert!(names.iter().any(|known| known == name), "{names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("rtx4090__")), "{names:?}");
    let found = library.get("h200__vllm__gemm").unwrap();
    assert_eq!((found.device.as_str(), found.origin.licence.as_str()), ("NVIDIA H200", "Apache-2.0"));
    let table = std::fs::read_to_string(into.join("errors.csv")).unwrap();
    assert_eq!(table.lines().count(), names.len() + 1);
    assert!(table.starts_with("surface,rows,impossible_rows,uneven_rows"), "{table}");
    // Rows are predicted from the others, by kernel and number format.
    let against = |files: Vec<String>| {
        let output = Some(folder.path().join("validation.csv"));
        kernels::run(&kernels::Args { files, surfaces: Some(into.clone()), split: None, output }).unwrap();
        std::fs::read_to_string(folder.path().join("validation.csv")).unwrap()
    };
    let from_files = against(args(&["op_parquet/generation_attention_perf.parquet"], &into).files);
    assert_eq!(from_files.lines().count(), 2, "{from_files}");
    assert!(from_files.lines().nth(1).unwrap().starts_with("h200,vllm,attention_generation,"), "{from_files}");
    let own = against(Vec::new());
    assert!(own.lines().any(|line| line.starts_with("h200,trtllm,nccl,")), "{own}");
}

#[test]
fn what_has_no_operations_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(&args(&["mooncake/conversation_trace.jsonl.zst"], folder.path())).unwrap_err();
    assert!(error.to_string().contains("expected measured operations"), "{error}");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let none = kernels::Args { files: Vec::new(), surfaces: Some(empty), split: None, output: None };
    assert!(kernels::run(&none).unwrap_err().to_string().contains("expected surfaces, found none"));
}

/// A profile whose skew table counts: its rows are in no surface, and say how far uneven batches are from even ones.
#[test]
fn skew_tables_give_shares_and_no_points() {
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("tp1");
    std::fs::create_dir(&profile).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let meta = "gpu: NVIDIA X\nmodel: a/m\nvllm_version: 0.19.0\nvariant: bf16\ntp_degrees: [1]\nengine_effective:\n  \
                hf_overrides:\n    num_attention_heads: 32\n    num_key_value_heads: 8\nskew_fit:\n  enabled: true\n";
    write("meta.yaml", meta);
    let row = |n: u32, kv: u32| format!("0,0,{n},{kv},{}", 10.0 + f64::from(n * kv) / 500.0);
    let rows = [1, 8, 64].into_iter().flat_map(|n| [128, 512, 1024, 2048].map(|kv| row(n, kv)));
    let header = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us".to_owned();
    let attention = std::iter::once(header).chain(rows).collect::<Vec<_>>().join("\n");
    write("tp1/attention.csv", &attention);
    // On a scale of its own: a tenth, and four tenths, of the way from the mean to the longest. Even batches at 704 tokens
    // were measured three times, once far off. In the last row longer contexts take less.
    let skew = "n,nb,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us\n\
                8,1,0,0,512,2048,704,300,600,330\n64,1,0,0,512,2048,536,1000,2000,1400\n\
                8,2,0,0,272,2000,704,900,600,330\n8,4,0,0,100,1308,704,300,290,330\n";
    write("tp1/skew.csv", skew);
    let into = folder.path().join("made");
    let files =
        ["tp1/attention.csv", "tp1/skew.csv"].map(|name| folder.path().join(name).to_string_lossy().into_owned());
    let files = files.to_vec();
    run(&Args { files, output: Some(folder.path().join("errors.csv")), into: into.clone(), ..args(&[], &into) })
        .unwrap();
    let mut library = Library::of(Some(&into));
    let names = library.names().unwrap();
    let found = library.get(&names[0]).unwrap();
    assert_eq!((names.len(), found.rows), (1, 12));
    let ways: Vec<(u64, f64)> = found.surface.uneven().iter().map(|way| (way.requests, way.share)).collect();
    assert_eq!(ways.len(), 2);
    assert!(ways[0].0 == 8 && (ways[0].1 - 0.1).abs() < 1e-12 && ways[1].0 == 64 && (ways[1].1 - 0.4).abs() < 1e-12);
    let table = std::fs::read_to_string(folder.path().join("errors.csv")).unwrap();
    assert!(table.lines().nth(1).is_some_and(|line| line.contains(",12,0,12,2,")), "{table}");
}
