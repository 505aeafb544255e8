//! Which files the command line means.

use std::path::Path;

use engine::error::{Error, Result};

/// The paths with globs expanded: the order of the command line, sorted within a glob. `-` and existing paths stay as
/// they are, so that a file whose name holds brackets can be named.
pub(super) fn expand(paths: &[String]) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    for path in paths {
        if path == "-" {
            if all.iter().any(|known| known == "-") {
                return Err(Error::usage("expected `-` once, found it twice"));
            }
            all.push(path.clone());
        } else if Path::new(path).exists() {
            all.push(path.clone());
        } else {
            all.extend(matches(path)?);
        }
    }
    if all.is_empty() {
        return Err(Error::usage("expected at least one file").hint("`-` reads standard input"));
    }
    Ok(all)
}

fn matches(pattern: &str) -> Result<Vec<String>> {
    let missing = || Error::data(format!("expected a file at `{pattern}`, found none"));
    if !pattern.contains(['*', '?', '[']) {
        return Err(missing());
    }
    let found = glob::glob(pattern)
        .map_err(|error| Error::usage(format!("expected a path or a glob, found `{pattern}`: {}", error.msg)))?;
    let mut paths = Vec::new();
    for path in found {
        let path = path.map_err(|error| Error::data(format!("cannot list `{pattern}`: {error}")))?;
        let Some(text) = path.to_str() else {
            return Err(Error::data(format!("expected file names in UTF-8, found `{}`", path.display())));
        };
        paths.push(text.to_owned());
    }
    if paths.is_empty() { Err(missing()) } else { Ok(paths) }
}
