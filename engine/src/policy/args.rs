//! Parameters of a stage: `name=value` pairs, defaults, canonical text and typed look-ups.
//!
//! A value is a whole number (`1024`, `4k`, `1M`; k and M are decimal), a share (`25%`) or a word (`max`,
//! `first2+last2`). Which of them a parameter takes is checked by the look-up that its stage uses.

use std::fmt;

use super::{Budget, Kind, Param, Skip};
use crate::error::{Error, Result, unknown};

/// A value by its form.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A whole number.
    Count(u64),
    /// A share in percent.
    Percent(f64),
    /// Anything else.
    Word(String),
}

/// The parameters of one stage, one value for each in declared order.
#[derive(Debug, Clone)]
pub struct Args {
    kind: &'static Kind,
    values: Vec<Value>,
}

impl Value {
    fn parse(text: &str) -> Self {
        let text = text.trim();
        if let Some(percent) = text.strip_suffix('%').and_then(plain_number) {
            return Self::Percent(percent);
        }
        count(text).map_or_else(|| Self::Word(text.to_owned()), Self::Count)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

impl Args {
    /// Parses the text between the parentheses: values by position first, then by name.
    ///
    /// # Errors
    /// An unknown or repeated parameter, a missing one that has no default, an empty value, or a value by position after
    /// one by name.
    pub fn parse(kind: &'static Kind, text: &str) -> Result<Self> {
        let mut given: Vec<Option<Value>> = vec![None; kind.params.len()];
        let mut by_name = false;
        for (at, part) in text.split(',').enumerate().filter(|_| !text.trim().is_empty()) {
            let (index, value) = match part.split_once('=') {
                Some((name, value)) => {
                    by_name = true;
                    (position(kind, name.trim())?, value)
                }
                None if !by_name && at < kind.params.len() => (at, part),
                None => return Err(stray(kind, part)),
            };
            let name = kind.params[index].name;
            if value.trim().is_empty() {
                return Err(Error::usage(format!("`{name}` of `{}` has no value", kind.name)));
            }
            if given[index].replace(Value::parse(value)).is_some() {
                return Err(Error::usage(format!("`{name}` of `{}` is given twice", kind.name)));
            }
        }
        let filled =
            given.into_iter().zip(kind.params).map(|(value, param)| value.map_or_else(|| fallback(kind, param), Ok));
        Ok(Self { kind, values: filled.collect::<Result<_>>()? })
    }

    /// The kind that these are for.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The canonical text: the name and, in declared order, the parameters that differ from their defaults.
    pub fn text(&self) -> String {
        let differing = self
            .kind
            .params
            .iter()
            .zip(&self.values)
            .filter(|(param, value)| param.default.is_empty() || Value::parse(param.default) != **value);
        let parts: Vec<String> = differing.map(|(param, value)| format!("{}={value}", param.name)).collect();
        if parts.is_empty() { self.kind.name.to_owned() } else { format!("{}({})", self.kind.name, parts.join(",")) }
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// Another form of value, or one out of range.
    pub fn count(&self, name: &str, least: u32, most: u32) -> Result<u32> {
        let wrong = || self.wrong(name, &format!("a whole number from {least} to {most}"));
        match self.value(name)? {
            Value::Count(count) => {
                u32::try_from(*count).ok().filter(|count| (least..=most).contains(count)).ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }

    /// A 64-bit whole number, such as a seed.
    ///
    /// # Errors
    /// Another form of value.
    pub fn seed(&self, name: &str) -> Result<u64> {
        match self.value(name)? {
            Value::Count(seed) => Ok(*seed),
            _ => Err(self.wrong(name, "a whole number")),
        }
    }

    /// A budget: tokens, or a share of the prompt.
    ///
    /// # Errors
    /// Another form of value, no tokens, or a share that is not above 0% and at most 100%.
    pub fn budget(&self, name: &str) -> Result<Budget> {
        match self.value(name)? {
            Value::Count(tokens) if (1..=u64::from(u32::MAX)).contains(tokens) => Ok(Budget::Tokens(*tokens as u32)),
            Value::Percent(percent) if *percent > 0.0 && *percent <= 100.0 => Ok(Budget::Ratio(percent / 100.0)),
            _ => Err(self.wrong(name, "tokens such as `1024` or `4k`, or a share of the prompt such as `25%`")),
        }
    }

    /// A share in percent, as a ratio from 0 to 1.
    ///
    /// # Errors
    /// Another form of value, or one above 100%.
    pub fn share(&self, name: &str) -> Result<f64> {
        match self.value(name)? {
            Value::Percent(percent) if *percent <= 100.0 => Ok(percent / 100.0),
            _ => Err(self.wrong(name, "a share from `0%` to `100%`")),
        }
    }

    /// A number within bounds, with or without a decimal point.
    ///
    /// # Errors
    /// Another form of value, or one out of range.
    pub fn number(&self, name: &str, least: f64, most: f64) -> Result<f64> {
        let found = match self.value(name)? {
            Value::Count(count) => Some(*count as f64),
            Value::Word(word) => plain_number(word),
            Value::Percent(_) => None,
        };
        let found = found.filter(|found| (least..=most).contains(found));
        found.ok_or_else(|| self.wrong(name, &format!("a number from {least} to {most}")))
    }

    /// A budget that has room for the last `window` tokens of the prompt, which are part of it. A share may come out
    /// smaller for a short prompt; the last tokens are kept then.
    ///
    /// # Errors
    /// Another form of value, and tokens fewer than the window.
    pub fn budget_beyond(&self, name: &str, window: u32) -> Result<Budget> {
        let budget = self.budget(name)?;
        if let Budget::Tokens(tokens) = budget
            && tokens < window
        {
            return Err(Error::usage(format!(
                "`{}`: the budget of {tokens} tokens is smaller than the window of {window}",
                self.kind.name
            ))
            .hint("the window is part of the budget: raise `budget` or lower `window`"));
        }
        Ok(budget)
    }

    /// Bytes: a whole number, or one with `B`, `KB`, `MB` (decimal) or `KiB`, `MiB`.
    ///
    /// # Errors
    /// Another form of value, or one beyond 64 bits.
    pub fn bytes(&self, name: &str) -> Result<u64> {
        const UNITS: [(&str, u64); 5] =
            [("KiB", 1 << 10), ("MiB", 1 << 20), ("KB", 1_000), ("MB", 1_000_000), ("B", 1)];
        let found = match self.value(name)? {
            Value::Count(count) => Some(*count),
            Value::Word(word) => whole_of(word, &UNITS),
            Value::Percent(_) => None,
        };
        found.ok_or_else(|| self.wrong(name, "bytes such as `25KB`"))
    }

    /// A time with its unit, in nanoseconds: `90s`, `60min`, `24h`.
    ///
    /// # Errors
    /// Another form of value, or one beyond 2^63 ns.
    pub fn duration_ns(&self, name: &str) -> Result<i64> {
        const UNITS: [(&str, u64); 4] =
            [("min", 60_000_000_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("h", 3_600_000_000_000)];
        let found = match self.value(name)? {
            Value::Word(word) => whole_of(word, &UNITS).and_then(|ns| i64::try_from(ns).ok()),
            Value::Count(_) | Value::Percent(_) => None,
        };
        found.ok_or_else(|| self.wrong(name, "a time such as `60min`, `300s` or `2h`"))
    }

    /// One of a few words.
    ///
    /// # Errors
    /// Any other value.
    pub fn word(&self, name: &str, known: &[&'static str]) -> Result<&'static str> {
        let found = self.value(name)?.to_string();
        let word = known.iter().find(|word| **word == found);
        word.copied().ok_or_else(|| {
            unknown(&format!("value of `{name}` of `{}`", self.kind.name), &found, known.iter().copied())
        })
    }

    /// The value as it is printed, of any form.
    ///
    /// # Errors
    /// A parameter that the stage does not have.
    pub fn text_of(&self, name: &str) -> Result<String> {
        Ok(self.value(name)?.to_string())
    }

    /// Whether the value is this word.
    pub fn is_word(&self, name: &str, word: &str) -> bool {
        matches!(self.value(name), Ok(Value::Word(found)) if found == word)
    }

    /// Layers to skip: `none`, `firstN`, `lastN` or `firstN+lastM`.
    ///
    /// # Errors
    /// Any other value.
    pub fn skip(&self, name: &str) -> Result<Skip> {
        let wrong = || self.wrong(name, "`none`, or layers such as `first2+last2`, `first1` or `last3`");
        let text = self.value(name)?.to_string();
        let mut skip = Skip::default();
        if text == "none" {
            return Ok(skip);
        }
        for part in text.split('+') {
            let (end, digits) = match (part.strip_prefix("first"), part.strip_prefix("last")) {
                (Some(digits), _) => (&mut skip.first, digits),
                (_, Some(digits)) => (&mut skip.last, digits),
                _ => return Err(wrong()),
            };
            let layers = digits.parse::<u16>().map_err(|_| wrong())?;
            if *end != 0 || layers == 0 || digits.starts_with(['0', '+']) {
                return Err(wrong());
            }
            *end = u32::from(layers);
        }
        Ok(skip)
    }

    fn value(&self, name: &str) -> Result<&Value> {
        Ok(&self.values[position(self.kind, name)?])
    }

    fn wrong(&self, name: &str, expected: &str) -> Error {
        let found = self.value(name).map_or_else(|_| String::new(), ToString::to_string);
        Error::usage(format!("`{name}` of `{}`: expected {expected}, found `{found}`", self.kind.name))
    }
}

fn position(kind: &Kind, name: &str) -> Result<usize> {
    let index = kind.params.iter().position(|param| param.name == name);
    index.ok_or_else(|| match kind.params {
        [] => Error::usage(format!("`{}` takes no parameters, found `{name}`", kind.name)),
        params => unknown(&format!("parameter of `{}`", kind.name), name, params.iter().map(|param| param.name)),
    })
}

fn stray(kind: &Kind, part: &str) -> Error {
    let names: Vec<&str> = kind.params.iter().map(|param| param.name).collect();
    let error = Error::usage(format!("expected `name=value` in `{}`, found `{}`", kind.name, part.trim()));
    if names.is_empty() {
        error.hint("it takes no parameters")
    } else {
        error.hint(format!("it takes {}", names.join(", ")))
    }
}

fn fallback(kind: &Kind, param: &Param) -> Result<Value> {
    if param.default.is_empty() {
        return Err(Error::usage(format!("`{}` needs `{}`", kind.name, param.name)).hint(param.doc));
    }
    Ok(Value::parse(param.default))
}

/// A whole number with an optional decimal `k` or `M`; `None` for any other text, also if it does not fit 64 bits.
fn count(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// A whole number with one of these units, the longest first, in the smallest of them.
fn whole_of(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, factor) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))?;
    let digits = digits.trim_end();
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_plain)?.checked_mul(factor)
}

/// Digits with at most one point; no sign, exponent, infinity or NaN.
fn plain_number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse::<f64>().ok().filter(|_| is_plain)
}
