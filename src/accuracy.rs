//! Accuracy that others have published for policies, from `presets/accuracy`: shown beside computed errors, never mixed in.

use std::collections::BTreeMap;

use engine::error::{Error, Result};
use engine::model::Certainty;
use engine::policy::Stack;
use serde::Deserialize;

use crate::embedded;

/// One published figure.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// The nearest stack of kvtoll.
    pub stack: String,
    /// The model that was measured.
    pub model: String,
    /// What was measured, and its unit.
    pub benchmark: String,
    /// What the policy reached.
    pub value: f64,
    /// What the full cache reached in the same table.
    pub full: f64,
    /// Where it was published: in the file a key of `[sources]`, here its text.
    pub source: String,
    /// How sure it is that the source says so.
    pub certainty: Certainty,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[expect(dead_code, reason = "for people; its presence is checked")]
    title: String,
    #[expect(dead_code, reason = "for people; its presence is checked")]
    date: String,
    sources: BTreeMap<String, String>,
    figure: Vec<Figure>,
}

/// All published figures, in the order of the files.
///
/// # Errors
/// A file that does not parse, a source that it does not have, and a stack that kvtoll does not have.
pub fn figures() -> Result<Vec<Figure>> {
    let mut all = Vec::new();
    for (name, text) in embedded::ACCURACY {
        let wrong = |why: String| Error::data(format!("accuracy preset `{name}`: {why}"));
        let file: File = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        for figure in file.figure {
            Stack::parse(&figure.stack).map_err(|error| wrong(error.to_string()))?;
            let source = file.sources.get(&figure.source);
            let source = source.ok_or_else(|| wrong(format!("unknown source `{}`", figure.source)))?.clone();
            all.push(Figure { source, ..figure });
        }
    }
    Ok(all)
}

/// The figures of stacks that this stage is part of.
///
/// # Errors
/// As [`figures`].
pub fn of_stage(name: &str) -> Result<Vec<Figure>> {
    let is_part = |figure: &Figure| {
        Stack::parse(&figure.stack).is_ok_and(|stack| stack.stages().iter().any(|stage| stage.args.kind().name == name))
    };
    Ok(figures()?.into_iter().filter(is_part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_sources_and_stages() {
        let all = figures().unwrap();
        assert!(all.len() > 20);
        for figure in &all {
            assert!(figure.source.contains(' ') && !figure.model.is_empty() && !figure.benchmark.is_empty());
        }
        // KIVI's own table: 2 bits lose 8.5 points of passage retrieval on Mistral.
        let kivi = of_stage("kivi").unwrap();
        let found = kivi.iter().find(|figure| figure.benchmark.contains("PassageRetrieval")).unwrap();
        assert!((found.full - found.value - 8.5).abs() < 1e-9);
        assert!(of_stage("window").unwrap().is_empty());
    }
}
