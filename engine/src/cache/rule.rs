//! Policies as they are typed, such as `lru` or `ttl(idle=5min)`.

use std::fmt;

use super::{Counts, Met, Policy, Trace};
use crate::error::{Error, Result, unknown};
use crate::unit;

/// In which form a parameter is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A whole number: `1024`, `4k`, `1M`.
    Count,
    /// A whole share: `25%`.
    Percent,
    /// A time, kept in nanoseconds: `5min`.
    Time,
    /// `yes` or `no`.
    Flag,
}

/// A parameter of a policy.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// What the user types before `=`.
    pub name: &'static str,
    /// How it is typed.
    pub form: Form,
    /// Its value where none is given.
    pub default: u64,
    /// The range that it must lie in.
    pub range: (u64, u64),
    /// One sentence.
    pub doc: &'static str,
}

/// The values of a policy's parameters, in declared order.
pub type Params = [u64];

/// What a policy is started with.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Blocks that fit.
    pub capacity: usize,
    /// Tokens of a block; 0 if unknown.
    pub unit_tokens: u32,
}

/// What is told of each use of a block.
pub type Each<'a> = &'a mut dyn FnMut(u32, Met);

/// Starts a cache.
pub type Start = fn(&Params, Setting) -> Box<dyn Policy>;

/// A policy that the user can name.
#[derive(Debug)]
pub struct Kind {
    /// What the user types.
    pub name: &'static str,
    /// One sentence.
    pub doc: &'static str,
    /// Its parameters.
    pub params: &'static [Param],
    /// Paper or code, and section.
    pub source: &'static str,
    /// Whether it needs to know which session a request belongs to.
    pub needs_sessions: bool,
    /// Replays a trace.
    pub replay: fn(&Params, &Trace<'_>, Setting, Each<'_>) -> Counts,
    /// Starts a cache; `None` for a policy that knows the future and therefore a whole trace only.
    pub start: Option<Start>,
}

/// A policy with its parameters.
#[derive(Debug, Clone)]
pub struct Rule {
    kind: &'static Kind,
    values: Vec<u64>,
}

impl Rule {
    /// Parses `name` or `name(value, parameter=value, ...)`.
    ///
    /// # Errors
    /// An unknown name or parameter, a value of the wrong form or out of range.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let (name, inside) = match text.split_once('(') {
            None => (text, ""),
            Some((name, rest)) => {
                let inside = rest.strip_suffix(')').ok_or_else(|| {
                    Error::usage(format!("expected `)` at the end of the cache policy, found `{text}`"))
                })?;
                (name.trim(), inside)
            }
        };
        let kind = super::ALL.iter().find(|kind| kind.name == name).copied();
        let kind = kind.ok_or_else(|| unknown("cache policy", name, super::ALL.iter().map(|kind| kind.name)))?;
        let mut values: Vec<u64> = kind.params.iter().map(|param| param.default).collect();
        let mut given = vec![false; values.len()];
        for (at, part) in inside.split(',').enumerate().filter(|_| !inside.trim().is_empty()) {
            let (index, value) = match part.split_once('=') {
                Some((name, value)) => (position(kind, name.trim())?, value),
                None => (at, part),
            };
            let Some(param) = kind.params.get(index) else {
                let known = kind.params.len();
                return Err(Error::usage(format!("expected at most {known} parameters of `{name}`, found `{inside}`")));
            };
            if std::mem::replace(&mut given[index], true) {
                return Err(Error::usage(format!("`{}` of `{name}` is given twice", param.name)));
            }
            values[index] = param.parse(value.trim(), name)?;
        }
        Ok(Self { kind, values })
    }

    /// Its kind.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// The canonical text: the name and the parameters that differ from their defaults.
    pub fn text(&self) -> String {
        let differing = self.kind.params.iter().zip(&self.values).filter(|(param, value)| param.default != **value);
        let parts: Vec<String> =
            differing.map(|(param, value)| format!("{}={}", param.name, param.show(*value))).collect();
        if parts.is_empty() { self.kind.name.to_owned() } else { format!("{}({})", self.kind.name, parts.join(",")) }
    }

    /// Whether it is LRU in its plain order, for which one pass gives every size.
    pub fn is_plain_lru(&self) -> bool {
        self.kind.name == super::lru::KIND.name && self.text() == self.kind.name
    }

    /// Refuses a trace that lacks what the policy needs.
    ///
    /// # Errors
    /// A policy that needs sessions on a trace that names none.
    pub fn admits(&self, trace: &Trace<'_>) -> Result<()> {
        if self.kind.needs_sessions && !trace.has_sessions() {
            return Err(Error::run(format!("`{}` needs to know the session of each request", self.text()))
                .hint("the trace names no sessions; `lru` needs none"));
        }
        Ok(())
    }

    /// Replays a trace with so many blocks; `each` sees every use.
    ///
    /// # Errors
    /// A policy that needs sessions on a trace that names none.
    pub fn replay(&self, trace: &Trace<'_>, capacity: usize, each: Each<'_>) -> Result<Counts> {
        self.admits(trace)?;
        let setting = Setting { capacity, unit_tokens: trace.unit_tokens() };
        Ok((self.kind.replay)(&self.values, trace, setting, each))
    }

    /// Starts a cache.
    ///
    /// # Errors
    /// A policy that knows the future.
    pub fn start(&self, setting: Setting) -> Result<Box<dyn Policy>> {
        let start = self.kind.start.ok_or_else(|| {
            Error::usage(format!("`{}` knows the future, which no tier can", self.text())).hint("try `lru`")
        })?;
        Ok(start(&self.values, setting))
    }
}

fn position(kind: &Kind, name: &str) -> Result<usize> {
    let found = kind.params.iter().position(|param| param.name == name);
    found.ok_or_else(|| {
        unknown(&format!("parameter of `{}`", kind.name), name, kind.params.iter().map(|param| param.name))
    })
}

impl Param {
    fn parse(&self, text: &str, policy: &str) -> Result<u64> {
        let value = match self.form {
            Form::Count => count(text),
            Form::Percent => text.strip_suffix('%').and_then(|number| number.trim().parse().ok()),
            Form::Time => Some(unit::parse(&unit::TIME, text)?.min(9e18) as u64),
            Form::Flag => ["no", "yes"].iter().position(|word| *word == text).map(|at| at as u64),
        };
        let (least, most) = self.range;
        value.filter(|value| (least..=most).contains(value)).ok_or_else(|| {
            let range = format!("from {} to {}", self.show(least), self.show(most));
            Error::usage(format!("expected `{}` of `{policy}` {range}, found `{text}`", self.name))
        })
    }

    /// A value as it is typed.
    pub fn show(&self, value: u64) -> String {
        match self.form {
            Form::Count => value.to_string(),
            Form::Percent => format!("{value}%"),
            Form::Time if value.is_multiple_of(60_000_000_000) && value > 0 => {
                format!("{}min", value / 60_000_000_000)
            }
            Form::Time => format!("{}s", value as f64 / 1e9),
            Form::Flag => if value == 0 { "no" } else { "yes" }.to_owned(),
        }
    }
}

/// A whole number with an optional decimal suffix.
pub fn count(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, factor) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1_000),
        None => text.strip_suffix('M').map_or((text, 1), |digits| (digits, 1_000_000)),
    };
    digits.replace('_', "").parse::<u64>().ok()?.checked_mul(factor)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}
