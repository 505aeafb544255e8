//! JSON that is read whole, and what is wrong with it in our own words: where it is, what was expected, what was found.

use engine::error::{Error, Result};
use serde::de::DeserializeOwned;

/// What the text of `origin` holds; its first line is line `first` of that file.
///
/// # Errors
/// Text that is no JSON or has another shape, with its place.
pub(crate) fn json<T: DeserializeOwned>(text: &str, origin: &str, first: usize) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        let line = first + error.line().max(1) - 1;
        Error::data(format!("{origin}:{line}:{}: {}", error.column().max(1), said(&error, text)))
    })
}

/// What was expected and what was found, as a sentence.
fn said(error: &serde_json::Error, text: &str) -> String {
    if text.trim().is_empty() {
        return "expected JSON, found nothing".to_owned();
    }
    if error.is_eof() {
        return "expected the rest of the JSON, found the end of the text".to_owned();
    }
    if error.is_syntax() {
        return format!("expected JSON, found {}", at(text, error.line(), error.column()));
    }
    let sentence = bare(error);
    let ticked = |begin: &str| Some(sentence.strip_prefix(begin)?.split_once('`')?.0);
    if let Some(name) = ticked("missing field `") {
        return format!("expected the key `{name}`, found none");
    }
    if let Some(name) = ticked("unknown field `") {
        return format!("the key `{name}` is not known here");
    }
    if let Some(name) = ticked("duplicate field `") {
        return format!("the key `{name}` is there twice");
    }
    let found = ["invalid type: ", "invalid value: "].iter().find_map(|begin| sentence.strip_prefix(begin));
    match found.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, expected)) => format!("expected {}, found {}", kind(expected), value(found)),
        None => format!("expected another shape of JSON: {sentence}"),
    }
}

/// What the parser says, without the place that its message ends in.
pub(crate) fn bare(error: &serde_json::Error) -> String {
    let mut whole = error.to_string();
    whole.truncate(whole.find(" at line ").unwrap_or(whole.len()));
    whole
}

/// What stands at a place of the text, both counted from 1.
fn at(text: &str, line: usize, column: usize) -> String {
    let found = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    let letter = found.as_bytes().get(column.saturating_sub(1)).copied().unwrap_or(b'\n');
    match char::from(letter) {
        letter if letter.is_ascii_graphic() => format!("`{letter}`"),
        letter if letter.is_ascii() => "the end of a line or a blank".to_owned(),
        _ => "a letter beyond ASCII".to_owned(),
    }
}

/// A type as people call it.
fn kind(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" | "str" => "a text",
        "a boolean" | "boolean" | "bool" => "true or false",
        "a sequence" | "sequence" => "a list",
        "a map" | "map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

/// What was found, without the name of its type.
fn value(found: &str) -> String {
    let types = ["string ", "integer ", "floating point ", "boolean ", "character "];
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "a list".to_owned(),
        "null" | "unit value" => "`null`".to_owned(),
        other => {
            let bare = types.iter().find_map(|name| other.strip_prefix(name)).unwrap_or(other);
            if bare.starts_with('`') { bare.to_owned() } else { format!("`{bare}`") }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Shape {
        tokens: u32,
        name: String,
        list: Vec<f64>,
        is_on: Option<bool>,
        more: BTreeMap<String, u8>,
    }

    #[test]
    fn errors_have_our_words_and_their_place() {
        let good = r#"{"tokens": 1, "name": "n", "list": [], "is_on": null, "more": {}}"#;
        assert!(json::<Shape>(good, "f", 1).is_ok());
        for (from, to, expected) in [
            ("\"tokens\": 1, ", "", "f.json:7:52: expected the key `tokens`, found none"),
            (": 1", ": -1", "expected a whole number from 0 on, found `-1`"),
            (": 1", ": 1.5", "expected a whole number from 0 on, found `1.5`"),
            (": 1", ": \"x\"", "expected a whole number from 0 on, found `\"x\"`"),
            ("\"n\"", "null", "expected a text, found `null`"),
            ("[]", "{}", "expected a list, found an object"),
            ("[]", "[true]", "expected a number, found `true`"),
            ("{}}", "[]}", "expected an object, found a list"),
            ("null", "3", "expected true or false, found `3`"),
            ("\"n\"", "@", "expected JSON, found `@`"),
            ("}}", "", "expected the rest of the JSON, found the end of the text"),
            ("\"list\"", "\"lists\"", "the key `lists` is not known here"),
            ("\"name\"", "\"tokens\": 2, \"name\"", "the key `tokens` is there twice"),
        ] {
            let said = json::<Shape>(&good.replacen(from, to, 1), "f.json", 7).unwrap_err().to_string();
            assert!(said.contains(expected) && said.starts_with("f.json:7:"), "{said}\ninstead of {expected}");
            for raw in ["invalid", "missing field", "u32", "f64", "EOF", " at line"] {
                assert!(!said.contains(raw), "{said}");
            }
        }
        assert_eq!(
            json::<Shape>(" ", "f.json", 1).unwrap_err().to_string(),
            "f.json:1:1: expected JSON, found nothing"
        );
    }
}
