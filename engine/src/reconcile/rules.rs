//! The booth of a kernel: an explicit, ordered, editable list of rules over its name.
//!
//! A rule file holds `rules = [{ booth = "attention", pattern = "flash" }, ...]`. The first rule that matches decides.
//! `pattern` matches anywhere in the demangled name; `word` only where no ASCII letter or digit stands directly before
//! or after it. Text without capital letters matches in any case (of ASCII letters), text with one matches as written.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{Error, Result};
use crate::model::{from_toml, located};

/// Where a kernel's time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Booth {
    /// Attention, and writing its cache.
    Attention,
    /// Matrix products with weights.
    Linear,
    /// Routing to experts, and their products.
    Moe,
    /// Communication between devices.
    Collective,
    /// Copies, casts and fills.
    Copy,
    /// Norms, activations, sampling and the like.
    Other,
    /// No rule matches the name.
    Unclassified,
}

impl Booth {
    /// Every booth, in the order in which they are shown.
    pub const ALL: [Self; 7] =
        [Self::Attention, Self::Linear, Self::Moe, Self::Collective, Self::Copy, Self::Other, Self::Unclassified];

    /// Its name in rule files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Linear => "linear",
            Self::Moe => "moe",
            Self::Collective => "collective",
            Self::Copy => "copy",
            Self::Other => "other",
            Self::Unclassified => "unclassified",
        }
    }

    /// Its place in [`Booth::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Where matching kernels belong.
    pub booth: Booth,
    /// The text to look for; in lower case unless the case counts.
    pub pattern: String,
    /// Whether it must stand as a word.
    pub is_word: bool,
    /// Whether the case counts.
    pub is_cased: bool,
}

/// An ordered list of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rules: Vec<Spanned<RuleFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    booth: Spanned<String>,
    pattern: Option<Spanned<String>>,
    word: Option<Spanned<String>>,
}

/// Reads the text of a rule file; `origin` names it in messages.
///
/// # Errors
/// A missing or unknown key, an unknown booth, a rule without text or with two: each with file, line, key and what is
/// allowed.
pub fn parse(text: &str, origin: &str) -> Result<Rules> {
    let file: File = from_toml(text, origin).map_err(|error| match error.advice() {
        None => {
            error.hint("a rule is `{ booth = \"attention\", pattern = \"flash\" }`, with `word` in place of `pattern`")
        }
        Some(_) => error,
    })?;
    let mut rules = Vec::with_capacity(file.rules.len());
    for given in &file.rules {
        let rule = given.get_ref();
        let at = |span, message: String| located(text, origin, span, &Error::data(message));
        let booth = booth(rule.booth.get_ref()).ok_or_else(|| {
            let allowed = Booth::ALL.map(Booth::name)[..6].join(", ");
            at(rule.booth.span(), format!("`booth`: expected one of {allowed}, found `{}`", rule.booth.get_ref()))
        })?;
        let (pattern, key) = match (&rule.pattern, &rule.word) {
            (Some(pattern), None) => (pattern, "pattern"),
            (None, Some(word)) => (word, "word"),
            (found, _) => {
                let found = if found.is_some() { "both" } else { "neither" };
                return Err(at(given.span(), format!("expected one of the keys `pattern` and `word`, found {found}")));
            }
        };
        let found = pattern.get_ref();
        if found.trim().is_empty() {
            return Err(at(pattern.span(), format!("`{key}`: expected text to look for in names, found none")));
        }
        let is_cased = found.bytes().any(|byte| byte.is_ascii_uppercase());
        rules.push(Rule { booth, pattern: found.clone(), is_word: key == "word", is_cased });
    }
    if rules.is_empty() {
        return Err(Error::data(format!("{origin}: expected at least one rule in `rules`, found none")));
    }
    Ok(Rules { rules })
}

fn booth(name: &str) -> Option<Booth> {
    Booth::ALL.into_iter().find(|booth| booth.name() == name && *booth != Booth::Unclassified)
}

impl Rules {
    /// The rules in order.
    pub fn list(&self) -> &[Rule] {
        &self.rules
    }

    /// The first rule that matches this name.
    pub fn matching(&self, name: &str) -> Option<&Rule> {
        let lower = name.to_ascii_lowercase();
        self.rules.iter().find(|rule| {
            let name = if rule.is_cased { name } else { &lower };
            if rule.is_word { holds_word(name, &rule.pattern) } else { name.contains(&rule.pattern) }
        })
    }

    /// The booth of a kernel of this name.
    pub fn booth(&self, name: &str) -> Booth {
        self.matching(name).map_or(Booth::Unclassified, |rule| rule.booth)
    }
}

impl Rule {
    /// The rule as its file has it.
    pub fn text(&self) -> String {
        format!("{} = \"{}\"", if self.is_word { "word" } else { "pattern" }, self.pattern)
    }
}

/// Whether `word` stands in `name` with no ASCII letter or digit directly before or after it.
fn holds_word(name: &str, word: &str) -> bool {
    let is_part = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    name.match_indices(word).any(|(at, _)| {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        !is_part(before) && !is_part(bytes.get(at + word.len()))
    })
}
