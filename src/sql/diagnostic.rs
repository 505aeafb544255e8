//! SQL errors as people can act on them: the sentence, the line with a caret under the place, and the suggestion.

use std::fmt::Write as _;

use datafusion::common::DataFusionError;
use engine::error::{Error, unknown};

/// A place in the SQL text: line, first column and one past the last, all from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    line: usize,
    start: usize,
    end: usize,
}

/// The engine's error as one of ours; the caret stands under the place where one is known.
pub(super) fn explain(sql: &str, error: &DataFusionError) -> Error {
    // What a function of ours says has no place in the text, and its own way out.
    if let DataFusionError::External(inner) = error.find_root()
        && let Some(own) = inner.downcast_ref::<Error>()
    {
        return own.clone();
    }
    let text = root(error);
    if let Some(name) = missing_table(&text) {
        return unknown_table(sql, name);
    }
    let diagnostic = error.diagnostic();
    let place = diagnostic
        .and_then(|diagnostic| diagnostic.span)
        .map(|span| {
            let end = if span.end.line == span.start.line { span.end.column } else { span.start.column + 1 };
            Place { line: span.start.line as usize, start: span.start.column as usize, end: end as usize }
        })
        .or_else(|| parser_place(&text));
    let mut message = lower(diagnostic.map_or(text.as_str(), |diagnostic| &diagnostic.message));
    let helps = diagnostic.map(|diagnostic| diagnostic.helps.iter().map(|help| help.message.as_str()).collect());
    let hint = advice(helps, &text);
    // Where there is a suggestion, the longer list of candidates only hides it.
    for note in diagnostic.iter().flat_map(|diagnostic| &diagnostic.notes).filter(|_| hint.is_none()) {
        let _ = write!(message, "\nnote: {}", lower(&note.message));
    }
    if let Some(excerpt) = place.and_then(|place| caret(sql, place)) {
        let _ = write!(message, "\n{excerpt}");
    }
    let error = match error.find_root() {
        DataFusionError::ObjectStore(_) | DataFusionError::ParquetError(_) | DataFusionError::IoError(_) => {
            Error::data(message)
        }
        DataFusionError::ResourcesExhausted(_) => Error::run(message),
        _ => Error::usage(message),
    };
    match hint {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// The table that a sentence says is not there.
fn missing_table(text: &str) -> Option<&str> {
    let (name, _) = text.strip_prefix("table '")?.split_once("' not found")?;
    let name = name.strip_prefix("datafusion.").unwrap_or(name);
    Some(name.strip_prefix("public.").unwrap_or(name))
}

/// A table that is not there, with its place and the nearest one that is.
fn unknown_table(sql: &str, name: &str) -> Error {
    let known = super::table_names();
    let error = unknown("table", name, known.iter().map(String::as_str));
    let is_word = |char: char| char.is_alphanumeric() || char == '_';
    let stands_alone = |at: &usize| {
        !sql[..*at].chars().next_back().is_some_and(is_word)
            && !sql[at + name.len()..].chars().next().is_some_and(is_word)
    };
    let place = sql.match_indices(name).map(|(at, _)| at).find(stands_alone).map(|at| {
        let before = &sql[..at];
        let start = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Place { line: before.matches('\n').count() + 1, start, end: start + name.chars().count() }
    });
    let message = match place.and_then(|place| caret(sql, place)) {
        Some(excerpt) => format!("{error}\n{excerpt}"),
        None => error.to_string(),
    };
    match error.advice() {
        Some(hint) => Error::usage(message).hint(hint),
        None => Error::usage(message),
    }
}

/// The sentence of the innermost error, without the names of the layers it came through.
fn root(error: &DataFusionError) -> String {
    let text = error.find_root().strip_backtrace();
    let layers = ["Error during planning: ", "SQL error: ", "Schema error: ", "Execution error: ", "Arrow error: "];
    let mut text = text.as_str();
    while let Some(rest) = layers.iter().find_map(|layer| text.strip_prefix(layer)) {
        text = rest;
    }
    let text = text.strip_prefix("ParserError(\"").and_then(|text| text.strip_suffix("\")")).unwrap_or(text);
    text.replace("\\\"", "\"").trim_end().trim_end_matches('.').to_owned()
}

/// The suggestion: what the diagnostic helps with, else what the sentence says after `Did you mean`.
fn advice(helps: Option<Vec<&str>>, text: &str) -> Option<String> {
    let helps: Vec<String> = helps.unwrap_or_default().into_iter().map(lower).collect();
    if !helps.is_empty() {
        return Some(helps.join("; "));
    }
    let found = text.split("Did you mean").nth(1)?;
    let name = found.split('\'').nth(1)?;
    Some(format!("did you mean `{name}`?"))
}

/// The place that a message of the parser names: `... at Line: 1, Column: 8`.
fn parser_place(text: &str) -> Option<Place> {
    let (line, column) = text.rsplit_once(" at Line: ")?.1.split_once(", Column: ")?;
    let digits: String = column.chars().take_while(char::is_ascii_digit).collect();
    let (line, start) = (line.parse().ok()?, digits.parse().ok()?);
    Some(Place { line, start, end: start + 1 })
}

/// The line of the SQL with carets under the place. Tabs are kept in the margin so that the caret stays under its text.
fn caret(sql: &str, place: Place) -> Option<String> {
    let line = sql.lines().nth(place.line.checked_sub(1)?)?;
    let margin: String =
        line.chars().take(place.start.checked_sub(1)?).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let rest = line.chars().count().saturating_sub(place.start - 1).max(1);
    let carets = "^".repeat(place.end.saturating_sub(place.start).clamp(1, rest));
    let number = place.line.to_string();
    let blank = " ".repeat(number.len());
    Some(format!("{blank} |\n{number} | {line}\n{blank} | {margin}{carets}"))
}

/// The sentence with a small first letter, unless the word is in capitals.
fn lower(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if !second.is_uppercase() => {
            first.to_lowercase().chain(text.chars().skip(1)).collect()
        }
        _ => text.to_owned(),
    }
}
