//! The one error type of the engine.
//!
//! Every message says what was expected and what was found, starts in lower case and has no full stop; `hint` is the
//! way out that the command line prints after a blank line.

use std::fmt;

/// What went wrong, by whose doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The command or a setting is wrong: an unknown name, a parameter out of range.
    Usage,
    /// The data is wrong: a file, a row, a table.
    Data,
    /// The run could not be carried out: a model that does not fit, a channel that is missing.
    Run,
}

/// An error with its kind and, where there is one, a way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
    hint: Option<String>,
}

impl Error {
    /// An error of the user's making: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// An error in the input data: exit code 3.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(Kind::Data, message)
    }

    /// A run that cannot be carried out: exit code 1.
    pub fn run(message: impl Into<String>) -> Self {
        Self::new(Kind::Run, message)
    }

    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None }
    }

    /// Adds the way out.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts a context such as a file name before the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Whose doing it was.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The way out, if one is known.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::data(error.to_string())
    }
}

/// The result of everything in the engine that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// An unknown name, with the nearest known one as a hint and the list where it can be looked up.
pub fn unknown<'a>(what: &str, found: &str, known: impl IntoIterator<Item = &'a str>) -> Error {
    let known: Vec<&str> = known.into_iter().collect();
    let nearest = known.iter().map(|name| (distance(found, name), *name)).min();
    let near = nearest.filter(|(edits, _)| *edits <= 1 + found.len() / 3).map(|(_, name)| name);
    // The shortest of those with the same parts in the same order: `llama8b` is `llama-3.1-8b`.
    let of_parts = known.iter().copied().filter(|name| has_parts(name, found)).min_by_key(|name| name.len());
    // One slip is nearer than any name with more in it.
    let slip = nearest.filter(|(edits, _)| *edits == 1).map(|(_, name)| name);
    let hint = match slip.or(of_parts).or(near) {
        Some(name) => format!("did you mean `{name}`?"),
        None if known.len() > LISTED => format!("none of {} known names is near it; see `kvtoll list`", known.len()),
        None => format!("known: {}", known.join(", ")),
    };
    Error::usage(format!("unknown {what} `{found}`")).hint(hint)
}

/// Names that a hint may list.
const LISTED: usize = 100;

/// Whether a name has all parts of what was typed, in order: its words and its numbers, whatever stands between them.
fn has_parts(name: &str, typed: &str) -> bool {
    let parts = |text: &str| -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut kind = 0;
        for char in text.chars() {
            let now = u8::from(char.is_alphabetic()) + 2 * u8::from(char.is_numeric());
            match parts.last_mut() {
                Some(last) if now == kind && now > 0 => last.extend(char.to_lowercase()),
                _ if now > 0 => parts.push(char.to_lowercase().collect()),
                _ => {}
            }
            kind = now;
        }
        parts
    };
    let typed = parts(typed);
    let mut left = parts(name).into_iter();
    !typed.is_empty() && typed.iter().all(|part| left.any(|known| known == *part))
}

/// The Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(!x.eq_ignore_ascii_case(&y));
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        let error = unknown("machine", "h20O", ["h100", "h200", "b200"]);
        assert_eq!(error.to_string(), "unknown machine `h20O`");
        assert_eq!(error.advice(), Some("did you mean `h200`?"));
    }

    #[test]
    fn a_name_with_the_same_parts_is_meant() {
        let models = ["llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b", "qwen3-235b-a22b-fp8", "qwen3-8b"];
        let meant = |typed: &str| unknown("model", typed, models).advice().map(str::to_owned);
        assert_eq!(
            unknown("table", "request", ["request_costs", "requests"]).advice(),
            Some("did you mean `requests`?")
        );
        assert_eq!(meant("llama8b").as_deref(), Some("did you mean `llama-3.1-8b`?"));
        assert_eq!(meant("Llama 70B").as_deref(), Some("did you mean `llama-3.1-70b`?"));
        assert_eq!(meant("qwen-235b").as_deref(), Some("did you mean `qwen3-235b-a22b-fp8`?"));
        assert!(meant("8b-llama").unwrap().starts_with("known: "));
        assert!(meant("---").unwrap().starts_with("known: "));
    }

    #[test]
    fn a_name_far_from_all_lists_them() {
        assert_eq!(unknown("policy", "zzzzzzzz", ["full", "fp8"]).advice(), Some("known: full, fp8"));
    }
}
