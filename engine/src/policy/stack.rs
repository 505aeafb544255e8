//! Stacks of stages: parsing, canonical text, and which stages go together.

use super::{Args, Distortion, Floor, Format, Keep, Rule, Selection, kind};
use crate::error::{Error, Result};

/// A stage with its parameters.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The parameters, which also know the kind.
    pub args: Args,
    /// What it does.
    pub rule: Rule,
}

/// Stages that act together, in the order in which they were named.
#[derive(Debug, Clone)]
pub struct Stack {
    stages: Vec<Stage>,
}

impl Stack {
    /// Parses stages joined by `+`, such as `snapkv(budget=25%)+turboquant(bits=4)`.
    ///
    /// # Errors
    /// Empty text, unbalanced parentheses, an unknown stage or parameter (with the nearest known one), a value out of
    /// range, and stages that do not go together (with the reason).
    pub fn parse(text: &str) -> Result<Self> {
        let mut stages = Vec::new();
        for part in split(text)? {
            stages.push(stage(part).map_err(|error| error.context(format!("policy `{text}`")))?);
        }
        let stack = Self { stages };
        stack.check().map_err(|error| error.context(format!("policy `{text}`")))?;
        Ok(stack)
    }

    /// The canonical text: parameters that differ from their defaults, in declared order. Parsing it gives this stack.
    pub fn name(&self) -> String {
        let texts: Vec<String> = self.stages.iter().map(|stage| stage.args.text()).collect();
        texts.join("+")
    }

    /// The stages in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The stage that drops tokens, if there is one.
    pub fn selection(&self) -> Option<(&Args, &Selection)> {
        self.stages.iter().find_map(|stage| match &stage.rule {
            Rule::Select(selection) if selection.keep != Keep::ALL => Some((&stage.args, selection)),
            _ => None,
        })
    }

    /// The stage that sets the number format, if there is one.
    pub fn format(&self) -> Option<(&Args, &Format)> {
        self.stages.iter().find_map(|stage| match &stage.rule {
            Rule::Format(format) => Some((&stage.args, format)),
            Rule::Select(_) | Rule::Merge(_) => None,
        })
    }

    /// The error that the number format puts into vectors of this width; a few milliseconds of work for most formats.
    /// Layers that the format skips have none.
    pub fn distortion(&self, dim: u32) -> Distortion {
        self.format().map_or(Distortion::NONE, |(_, format)| format.forms.distortion(dim))
    }

    fn check(&self) -> Result<()> {
        let names = |floor: Floor, is_bound: fn(&Rule) -> bool| -> Vec<&str> {
            let same = self.stages.iter().filter(|stage| stage.args.kind().floor == floor && is_bound(&stage.rule));
            same.map(|stage| stage.args.kind().name).collect()
        };
        if let [first, second, ..] = names(Floor::Format, |_| true)[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both set the number format"))
                .hint("keep one of them: an element is stored in one format"));
        }
        let bounds = |rule: &Rule| matches!(rule, Rule::Select(selection) if selection.keep != Keep::ALL);
        if let [first, second, ..] = names(Floor::Selection, bounds)[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both set the budget of kept tokens"))
                .hint("keep one of them: how two such choices would act on each other is not published"));
        }
        Ok(())
    }
}

/// Parts between the `+` that stand outside parentheses.
fn split(text: &str) -> Result<Vec<&str>> {
    let unbalanced = || Error::usage(format!("policy `{text}`: parentheses do not match"));
    let mut parts = Vec::new();
    let mut start = 0;
    let mut is_open = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' if is_open => return Err(unbalanced()),
            b'(' => is_open = true,
            b')' if !is_open => return Err(unbalanced()),
            b')' => is_open = false,
            b'+' if !is_open => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if is_open { Err(unbalanced()) } else { Ok(parts) }
}

fn stage(text: &str) -> Result<Stage> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Error::usage("expected a stage such as `snapkv(budget=25%)`, found nothing")
            .hint("`kvtoll list policies` names the stages"));
    }
    let (name, inside) = match text.split_once('(') {
        None => (text, ""),
        Some((name, rest)) => {
            let inside = rest
                .strip_suffix(')')
                .ok_or_else(|| Error::usage(format!("expected `+` or the end after `)`, found `{text}`")))?;
            (name.trim_end(), inside)
        }
    };
    let args = Args::parse(kind(name)?, inside)?;
    let rule = (args.kind().make)(&args)?;
    Ok(Stage { args, rule })
}
