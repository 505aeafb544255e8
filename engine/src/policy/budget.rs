//! Error budgets: a figure of a stack's error on recordings, what it may be at most, and the least that must be retained to
//! stay within.

use std::fmt;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, UInt32Type};

use super::vectors::smallest_share;
use super::{Rule, Stack, recovery::Recovery};
use crate::error::{Error, Result, unknown};

/// A figure of the rows of `attention_error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Lost mass, mean over steps, layers and heads.
    LostMass,
    /// Of the rows, each a mean over a range of steps in one layer and head, 99% lose no more.
    P99LostMass,
    /// Largest mass lost in one step.
    MaxLostMass,
    /// By how much layers' outputs turn, mean over steps and layers.
    OutputError,
}

/// Names of the measures as they are typed.
const NAMES: [(&str, Measure); 4] = [
    ("lost_mass", Measure::LostMass),
    ("p99_lost_mass", Measure::P99LostMass),
    ("max_lost_mass", Measure::MaxLostMass),
    ("output_error", Measure::OutputError),
];

/// What an error may be at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorBudget {
    /// Which figure.
    pub measure: Measure,
    /// Its largest value.
    pub most: f64,
}

impl fmt::Display for ErrorBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, measure)| *measure == self.measure).map_or("", |(name, _)| *name);
        write!(f, "{name}<={}", self.most)
    }
}

impl ErrorBudget {
    /// Parses text such as `p99_lost_mass<=0.05`.
    ///
    /// # Errors
    /// Another form, an unknown figure (with the nearest known one), and a bound that is no number of at least 0.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, most) = text.split_once("<=").ok_or_else(|| {
            Error::usage(format!("expected an error budget such as `p99_lost_mass<=0.05`, found `{text}`"))
        })?;
        let name = name.trim();
        let found = NAMES.iter().find(|(known, _)| *known == name);
        let measure = found.map(|(_, measure)| *measure);
        let measure = measure.ok_or_else(|| unknown("error figure", name, NAMES.iter().map(|(name, _)| *name)))?;
        let known = most.trim().parse::<f64>().ok().filter(|most| *most >= 0.0 && most.is_finite());
        let most = known.ok_or_else(|| {
            Error::usage(format!("error budget `{text}`: expected a number of at least 0, found `{}`", most.trim()))
        })?;
        Ok(Self { measure, most })
    }

    /// The figure of rows of `attention_error`, all of them together; `None` where a row does not know it, and without rows.
    pub fn figure<'a>(&self, batches: impl IntoIterator<Item = &'a RecordBatch>) -> Option<f64> {
        let column = match self.measure {
            Measure::LostMass | Measure::P99LostMass => "lost_mass_ratio",
            Measure::MaxLostMass => "max_lost_mass_ratio",
            Measure::OutputError => "output_error",
        };
        let mut rows: Vec<(f64, f64)> = Vec::new();
        for batch in batches {
            let values = batch.column_by_name(column)?.as_primitive_opt::<Float64Type>()?;
            let step = |name: &str| batch.column_by_name(name)?.as_primitive_opt::<UInt32Type>();
            let (first, last) = (step("first_step")?, step("last_step")?);
            if values.null_count() > 0 {
                return None;
            }
            let steps = first.values().iter().zip(last.values()).map(|(first, last)| f64::from(last - first) + 1.0);
            rows.extend(values.values().iter().copied().zip(steps));
        }
        let last = rows.len().checked_sub(1)?;
        Some(match self.measure {
            Measure::LostMass | Measure::OutputError => {
                let steps: f64 = rows.iter().map(|(_, steps)| steps).sum();
                rows.iter().map(|(value, steps)| value * steps).sum::<f64>() / steps
            }
            Measure::MaxLostMass => rows.iter().map(|(value, _)| *value).fold(0.0, f64::max),
            Measure::P99LostMass => {
                rows.sort_by(|a, b| a.0.total_cmp(&b.0));
                let at = ((0.99 * rows.len() as f64).ceil() as usize).saturating_sub(1).min(last);
                rows.get(at).map_or(0.0, |(value, _)| *value)
            }
        })
    }
}

/// The stack with the smallest share of its `retain` stage, in whole percent, whose error is within the budget, and that
/// error; without the stage where nothing need be retained, and `None` where even all of it is not enough. `rows` gives the
/// rows of `attention_error` of a stack. The error must not rise with the share, which holds for lost mass, and for outputs
/// as a rule.
///
/// # Errors
/// A stack without exactly one `retain`, a figure that the rows do not tell, and those of `rows`.
pub fn smallest_retained(
    stack: &Stack,
    budget: &ErrorBudget,
    mut rows: impl FnMut(&Stack) -> Result<RecordBatch>,
) -> Result<Option<(Stack, f64)>> {
    let mut error = |stack: &Stack| -> Result<f64> {
        budget.figure([&rows(stack)?]).ok_or_else(|| {
            Error::run(format!("the recording cannot tell `{budget}` of `{}`", stack.name()))
                .hint("outputs need queries, K and V, or their norms")
        })
    };
    let found = smallest_share(budget.most, 100, |share| error(&with_retained(stack, share)?))?;
    let Some(share) = found else { return Ok(None) };
    let stack = with_retained(stack, share)?;
    let error = error(&stack)?;
    Ok(Some((stack, error)))
}

/// The stack with another share of its `retain` stage.
fn with_retained(stack: &Stack, share: f64) -> Result<Stack> {
    let is_retain = |rule: &Rule| matches!(rule, Rule::Recover(Recovery::Retain(_)));
    let count = stack.stages().iter().filter(|stage| is_retain(&stage.rule)).count();
    if count != 1 {
        return Err(Error::usage(format!("expected a stack with one `retain`, found {count} in `{}`", stack.name()))
            .hint("add it after the stage that it is to recover, such as `snapkv(25%)+retain(5%)`"));
    }
    let percent = (share * 100.0).round();
    let texts = stack.stages().iter().filter_map(|stage| match is_retain(&stage.rule) {
        true if percent < 1.0 => None,
        true => Some(format!("retain({percent}%)")),
        false => Some(stage.args.text()),
    });
    Stack::parse(&texts.collect::<Vec<_>>().join("+"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::attention_error;
    use crate::policy::select::tests::random_plain;

    #[test]
    fn budgets_are_parsed_and_mistakes_named() {
        let budget = ErrorBudget::parse(" p99_lost_mass <= 0.05 ").unwrap();
        assert_eq!(budget, ErrorBudget { measure: Measure::P99LostMass, most: 0.05 });
        assert_eq!(budget.to_string(), "p99_lost_mass<=0.05");
        assert_eq!(
            ErrorBudget::parse("p98_lost_mass<=0.05").unwrap_err().advice(),
            Some("did you mean `p99_lost_mass`?")
        );
        for text in
            ["", "lost_mass", "lost_mass<0.1", "lost_mass<=", "lost_mass<=-1", "lost_mass<=nan", "lost_mass<=inf"]
        {
            assert!(ErrorBudget::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against all whole percents.
        #[test]
        fn the_smallest_share_within_the_budget_is_found(
            prompt in 70_usize..150, most in 0.0_f64..0.4, measure in 0_usize..3, seed: u64,
        ) {
            let recording = random_plain(1, prompt, (2, 1), 4, seed).read();
            let budget = ErrorBudget { measure: NAMES[measure].1, most };
            let policy = "snapkv(budget=40,window=8)";
            let figure = |policy: &str| {
                budget.figure([&attention_error(&Stack::parse(policy).unwrap(), &recording, 2).unwrap()]).unwrap()
            };
            let slow = (0..=100).find_map(|share| {
                let text = if share == 0 { policy.to_owned() } else { format!("{policy}+retain({share}%)") };
                let error = figure(&text);
                (error <= most).then(|| (Stack::parse(&text).unwrap().name(), error))
            });
            let stack = Stack::parse(&format!("{policy}+retain(7%)")).unwrap();
            let rows = |stack: &Stack| attention_error(stack, &recording, 2);
            let found = smallest_retained(&stack, &budget, rows).unwrap();
            prop_assert_eq!(found.map(|(stack, error)| (stack.name(), error)), slow);
        }
    }

    #[test]
    fn figures_are_means_tails_and_maxima_of_the_rows() {
        let recording = random_plain(1, 100, (2, 2), 5, 3).read();
        let rows = attention_error(&Stack::parse("window(20)").unwrap(), &recording, 2).unwrap();
        let lost = rows["lost_mass_ratio"].as_primitive::<Float64Type>().values().to_vec();
        let figure = |measure| ErrorBudget { measure, most: 0.0 }.figure([&rows]);
        // Ranges of 2, 2 and 1 steps in each head.
        let mean = lost.chunks(3).map(|head| 2.0 * head[0] + 2.0 * head[1] + head[2]).sum::<f64>() / 20.0;
        assert!((figure(Measure::LostMass).unwrap() - mean).abs() < 1e-12);
        let largest = lost.iter().copied().fold(0.0, f64::max);
        assert!((figure(Measure::P99LostMass).unwrap() - largest).abs() < 1e-12, "99% of 12 rows are all");
        assert!(figure(Measure::MaxLostMass).unwrap() >= largest);
        assert_eq!(figure(Measure::OutputError), None, "no outputs were recorded");
        let of = |stack: &Stack| attention_error(stack, &recording, 2);
        let stack = Stack::parse("window(20)").unwrap();
        let budget = ErrorBudget::parse("lost_mass<=0.1").unwrap();
        assert!(smallest_retained(&stack, &budget, of).unwrap_err().advice().unwrap().contains("retain(5%)"));
        let budget = ErrorBudget::parse("output_error<=0.1").unwrap();
        let stack = Stack::parse("window(20)+retain(5%)").unwrap();
        assert!(smallest_retained(&stack, &budget, of).unwrap_err().to_string().contains("cannot tell"));
        // What is dropped while decoding cannot be retained.
        let budget = ErrorBudget::parse("max_lost_mass<=0").unwrap();
        let found = smallest_retained(&Stack::parse("h2o(20)+retain(5%)").unwrap(), &budget, of).unwrap();
        assert!(found.is_none());
    }
}
