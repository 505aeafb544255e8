//! Rules of the source, as tests that say what to do.

use std::path::{Path, PathBuf};

use crate::support::root;

/// Tracked text files with one of these extensions.
fn files(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !(name.starts_with('.') && name != ".ci") && name != "target" {
                    folders.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|extension| extensions.contains(&extension.to_string_lossy().as_ref()))
            {
                found.push((path.strip_prefix(root()).unwrap().to_owned(), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn functions_stay_under_70_lines() {
    let mut long = Vec::new();
    for (path, text) in files(&["rs"]) {
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let is_function = line.split_whitespace().take(4).any(|word| word == "fn") && !line.contains("//");
            if !is_function || line.trim_end().ends_with(';') {
                continue;
            }
            let close = format!("{}}}", " ".repeat(indent));
            let Some(length) = lines[start..].iter().position(|line| *line == close) else { continue };
            if length >= 70 {
                long.push(format!("{}:{} has {length} lines: split it", path.display(), start + 1));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_module_says_what_it_is() {
    for (path, text) in files(&["rs"]) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(text.starts_with("//!") || name == "tests.rs", "{}: begin with `//!` and a sentence", path.display());
    }
}

#[test]
fn the_repository_holds_no_stubs_and_no_machine_paths() {
    let words = [concat!("to", "do!("), concat!("unimple", "mented!("), concat!("#[ig", "nore]"), concat!("db", "g!(")];
    let paths = [concat!("/wo", "rk/"), concat!("/tm", "p/"), concat!("/ro", "ot/")];
    for (path, text) in files(&["rs", "toml", "sql", "html", "md", "tsv"]) {
        for word in words.iter().chain(&paths) {
            assert!(!text.contains(word), "{} contains `{word}`", path.display());
        }
    }
}

/// The engine knows no files, no clock, no environment and prints nothing.
#[test]
fn the_engine_stays_pure() {
    for (path, text) in files(&["rs"]) {
        if !path.starts_with(Path::new("engine/src")) || path.ends_with("tests.rs") {
            continue;
        }
        // Tests below the code may read presets.
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for word in ["std::fs", "std::time", "std::env", "std::process", "std::io", "println!", "HashSet"] {
            assert!(!code.contains(word), "{} uses `{word}`: move it to the tool", path.display());
        }
    }
}
