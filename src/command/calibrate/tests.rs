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
