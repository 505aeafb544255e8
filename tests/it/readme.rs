//! Every command block of the README is run as it stands.

use std::process::Command;

use crate::support::{root, stderr};

/// The `sh` blocks of the README, except the test command itself, which runs this.
fn blocks() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let mut blocks = Vec::new();
    for part in text.split("```sh\n").skip(1) {
        blocks.push(part.split("```").next().unwrap().to_owned());
    }
    blocks.into_iter().filter(|block| block.trim() != "scripts/test").collect()
}

#[test]
fn the_readme_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let binary = std::path::Path::new(env!("CARGO_BIN_EXE_kvtoll"));
    let blocks = blocks();
    assert!(blocks.len() >= 3, "{blocks:?}");
    // `traces` as in the repository; what the commands write stays in the folder.
    std::os::unix::fs::symlink(root().join("traces"), folder.path().join("traces")).unwrap();
    for block in blocks {
        // The first command builds with cargo; here the binary is built already.
        let script = block.replace("cargo run --", "kvtoll");
        let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(folder.path())
            .env("PATH", path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{script}\n{}", stderr(&output));
    }
    assert!(folder.path().join("report.html").exists() && folder.path().join("report.json").exists());
}
