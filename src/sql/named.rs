//! The named queries and their headers.
//!
//! A query is a file `queries/<name>.sql`. Its header is the comment at its top:
//!
//! ```text
//! -- What it answers, in one line.
//! -- param limit int 10: How many rows per scenario.
//! -- column scenario_id: The scenario.
//! ```
//!
//! Parameters have a type (int, real, text or bool) and a default, which may be `null`. Columns stand in the order in
//! which the query returns them.

use datafusion::common::ScalarValue;
use engine::error::{Error, Result, unknown};

use crate::embedded;

/// A named query with its documentation.
#[derive(Debug, Clone)]
pub struct Named {
    /// What the user types.
    pub name: &'static str,
    /// What it answers, in one line.
    pub question: &'static str,
    /// Its parameters.
    pub params: Vec<Param<'static>>,
    /// Its columns in order.
    pub columns: Vec<Documented>,
    /// The whole file, header included.
    pub sql: &'static str,
}

/// A column with its sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Documented {
    /// The column's name.
    pub name: &'static str,
    /// What it holds, with its unit.
    pub doc: &'static str,
}

/// A parameter of a named query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param<'a> {
    /// Its name, bound to `$name`.
    pub name: &'a str,
    /// Its type.
    pub kind: Kind,
    /// The value it has when none is given; `null` for unknown.
    pub default: &'a str,
    /// One sentence.
    pub doc: &'a str,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A signed 64-bit number.
    Int,
    /// A double.
    Real,
    /// Text.
    Text,
    /// True or false.
    Bool,
}

impl Kind {
    const NAMES: [(&'static str, Kind); 4] =
        [("int", Self::Int), ("real", Self::Real), ("text", Self::Text), ("bool", Self::Bool)];

    /// The value that `text` stands for; `null` is the null of the type.
    ///
    /// # Errors
    /// Text that is no value of the type.
    pub fn value(self, name: &str, text: &str) -> Result<ScalarValue> {
        let null = text == "null";
        let parsed = match self {
            Self::Int if null => Some(ScalarValue::Int64(None)),
            Self::Int => text.replace('_', "").parse().ok().map(|value| ScalarValue::Int64(Some(value))),
            Self::Real if null => Some(ScalarValue::Float64(None)),
            Self::Real => {
                text.parse().ok().filter(|value: &f64| value.is_finite()).map(|value| ScalarValue::Float64(Some(value)))
            }
            Self::Text => Some(ScalarValue::Utf8((!null).then(|| text.to_owned()))),
            Self::Bool if null => Some(ScalarValue::Boolean(None)),
            Self::Bool => text.parse().ok().map(|value| ScalarValue::Boolean(Some(value))),
        };
        parsed.ok_or_else(|| Error::usage(format!("parameter `{name}` expects {}, found `{text}`", self.expected())))
    }

    /// The value of a parameter whose type nobody declared: a number if it reads as one, else text.
    pub fn guess(text: &str) -> ScalarValue {
        // Block hashes reach to 2^64 - 1 and must not become doubles.
        let hash = || text.parse().ok().map(|hash| ScalarValue::UInt64(Some(hash)));
        let number = Self::Int.value("", text).ok().or_else(hash).or_else(|| Self::Real.value("", text).ok());
        number.unwrap_or_else(|| ScalarValue::Utf8(Some(text.to_owned())))
    }

    fn expected(self) -> &'static str {
        match self {
            Self::Int => "a whole number",
            Self::Real => "a number",
            Self::Text => "text",
            Self::Bool => "`true` or `false`",
        }
    }
}

/// All named queries, sorted by name.
///
/// # Errors
/// A header that cannot be read.
pub fn named() -> Result<Vec<Named>> {
    embedded::QUERIES.iter().map(|(name, sql)| parse(name, sql)).collect()
}

/// All views, sorted by name; their headers are those of queries.
///
/// # Errors
/// A header that cannot be read.
pub fn views() -> Result<Vec<Named>> {
    embedded::VIEWS.iter().map(|(name, sql)| parse(name, sql)).collect()
}

/// The query of this name.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn find(name: &str) -> Result<Named> {
    match embedded::QUERIES.iter().find(|(known, _)| *known == name) {
        Some((name, sql)) => parse(name, sql),
        None => Err(unknown("query", name, embedded::QUERIES.iter().map(|(known, _)| *known))),
    }
}

fn parse(name: &'static str, sql: &'static str) -> Result<Named> {
    let mut lines = header(sql);
    let question = lines.next().unwrap_or_default();
    if !question.ends_with(['.', '?']) {
        return Err(Error::data(format!("query `{name}`: expected a sentence in the first line, found `{question}`")));
    }
    let mut columns = Vec::new();
    for line in lines {
        if let Some(column) = line.strip_prefix("column ") {
            let split = column.split_once(": ");
            let (name, doc) = split.ok_or_else(|| Error::data(format!("query `{name}`: no sentence in `{line}`")))?;
            columns.push(Documented { name, doc });
        } else if !line.starts_with("param ") {
            return Err(Error::data(format!("query `{name}`: expected `param` or `column`, found `{line}`")));
        }
    }
    Ok(Named { name, question, params: params(sql)?, columns, sql })
}

/// The parameters that a header declares; none where there is no header.
pub(super) fn params(sql: &str) -> Result<Vec<Param<'_>>> {
    header(sql).filter_map(|line| line.strip_prefix("param ")).map(param).collect()
}

fn param(line: &str) -> Result<Param<'_>> {
    let wrong = || Error::usage(format!("expected `-- param name type default: sentence`, found `-- param {line}`"));
    let (declaration, doc) = line.split_once(": ").ok_or_else(wrong)?;
    let words: Vec<&str> = declaration.split_whitespace().collect();
    let [name, kind, default] = words[..] else { return Err(wrong()) };
    let known = Kind::NAMES.iter().find(|(word, _)| *word == kind);
    let (_, kind) = known.ok_or_else(|| unknown("type", kind, Kind::NAMES.iter().map(|(word, _)| *word)))?;
    Ok(Param { name, kind: *kind, default, doc })
}

/// The lines of the comment at the top, without dashes. A line that begins with more than one space continues the one
/// before it and is left out of what is parsed.
fn header(sql: &str) -> impl Iterator<Item = &str> {
    sql.lines().take_while(|line| line.starts_with("--")).filter_map(|line| {
        let text = line.trim_start_matches('-');
        text.strip_prefix(' ').filter(|text| !text.is_empty() && !text.starts_with(' ')).map(str::trim_end)
    })
}
