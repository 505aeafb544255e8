//! Gates: what may not happen from one run to the next, as in `p99_itl > +5%`.

use engine::error::{Error, Result, unknown};
use engine::unit::significant;

/// One figure of one scenario in both runs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    pub(super) scenario: String,
    pub(super) metric: String,
    pub(super) base: Option<f64>,
    pub(super) now: Option<f64>,
}

/// What became of a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Looked {
    /// It is broken: a sentence for each scenario.
    Broken(Vec<String>),
    /// It passed: the gate with what came nearest to breaking it.
    Passed(String),
}

/// What a gate looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    /// The change over the base value; `+5%` is 0.05.
    Share(f64),
    /// The change, in the unit of the figure: `+10`.
    Difference(f64),
    /// The figure itself: `0.4`.
    Value(f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Above,
    AtLeast,
    Below,
    AtMost,
}

/// A condition that fails a comparison.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Gate {
    text: String,
    metric: String,
    sign: Sign,
    of: Of,
}

impl Gate {
    /// A gate from text: a metric (its unit may be left out), a comparison, and a value.
    ///
    /// # Errors
    /// What is no gate.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::usage(format!("`--fail-if {text}`: expected a metric, a comparison and a value"))
                .hint("such as `p99_itl > +5%` (relative), `usd_total > +10` (difference) or `hit_tokens_ratio < 0.4` (value)")
        };
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (metric, rest) = text.split_at(at);
        let signs = [(">=", Sign::AtLeast), ("<=", Sign::AtMost), (">", Sign::Above), ("<", Sign::Below)];
        let (value, sign) =
            signs.iter().find_map(|(word, sign)| Some((rest.strip_prefix(word)?, *sign))).ok_or_else(wrong)?;
        let (metric, value) = (metric.trim(), value.trim());
        let (digits, is_share) = value.strip_suffix('%').map_or((value, false), |digits| (digits.trim(), true));
        let number = digits.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(wrong)?;
        if metric.is_empty() || metric.contains(char::is_whitespace) {
            return Err(wrong());
        }
        let is_change = digits.starts_with(['+', '-']);
        let of = match (is_share, is_change) {
            (true, _) => Of::Share(number / 100.0),
            (false, true) => Of::Difference(number),
            (false, false) => Of::Value(number),
        };
        Ok(Self { text: text.trim().to_owned(), metric: metric.to_owned(), sign, of })
    }

    /// What breaks the gate, or by how much it passed.
    ///
    /// A figure that was known and is not any more breaks it too, since nobody can tell what became of it.
    ///
    /// # Errors
    /// A metric that neither run has; one that nothing can be said of in any scenario.
    pub(super) fn look(&self, changes: &[Change]) -> Result<Looked> {
        let name = self.full_name(changes)?;
        let of_metric: Vec<&Change> = changes.iter().filter(|change| change.metric == name).collect();
        let mut broken = Vec::new();
        let mut nearest: Option<(f64, &Change)> = None;
        for change in of_metric {
            let Change { scenario, base, now, .. } = change;
            if base.is_some() && now.is_none() {
                broken.push(format!("`{}`: `{scenario}` has no `{name}` any more", self.text));
            }
            let (Some(found), Some(now)) = (self.measure(change), now) else { continue };
            if nearest.is_none_or(|(so_far, _)| self.is_nearer(found, so_far)) {
                nearest = Some((found, change));
            }
            if self.holds(found) {
                let from = base.map_or_else(|| "unknown".to_owned(), significant);
                broken.push(format!("`{}`: `{scenario}` went from {from} to {}", self.text, significant(*now)));
            }
        }
        match nearest {
            _ if !broken.is_empty() => Ok(Looked::Broken(broken)),
            Some((found, change)) => Ok(Looked::Passed(self.passed(found, change))),
            None => Err(Error::run(format!("`--fail-if {}`: no scenario has `{name}` in both runs", self.text))
                .hint("`kvtoll compare BASE RUN --all` shows what is known")),
        }
    }

    /// The gate with what came nearest to breaking it.
    fn passed(&self, found: f64, change: &Change) -> String {
        let sign = if found >= 0.0 { "+" } else { "" };
        let measured = match self.of {
            Of::Share(_) => format!("{sign}{}%, ", significant(100.0 * found)),
            Of::Difference(_) => format!("{sign}{}, ", significant(found)),
            Of::Value(_) => String::new(),
        };
        let from = change.base.map_or_else(|| "unknown".to_owned(), significant);
        let now = change.now.map_or_else(|| "unknown".to_owned(), significant);
        format!("`{}` (nearest `{}`: {measured}from {from} to {now})", self.text, change.scenario)
    }

    /// Whether one figure is nearer to breaking the gate than another.
    fn is_nearer(&self, found: f64, so_far: f64) -> bool {
        match self.sign {
            Sign::Above | Sign::AtLeast => found > so_far,
            Sign::Below | Sign::AtMost => found < so_far,
        }
    }

    /// The metric by its name, or by its name without the unit where only one begins so.
    fn full_name(&self, changes: &[Change]) -> Result<String> {
        let mut names: Vec<&str> = changes.iter().map(|change| change.metric.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.contains(&self.metric.as_str()) {
            return Ok(self.metric.clone());
        }
        let begins = format!("{}_", self.metric);
        let fitting: Vec<&str> = names.iter().copied().filter(|name| name.starts_with(&begins)).collect();
        match fitting.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Err(unknown("metric", &self.metric, names)),
            several => Err(Error::usage(format!("`{}` may be any of {}", self.metric, several.join(", ")))
                .hint("give the whole name")),
        }
    }

    /// The number that the gate compares; unknown where a part of it is.
    fn measure(&self, change: &Change) -> Option<f64> {
        let now = change.now?;
        match self.of {
            Of::Value(_) => Some(now),
            Of::Difference(_) => Some(now - change.base?),
            // From nothing to something is more than any share.
            Of::Share(_) => {
                let base = change.base?;
                Some(if now.to_bits() == base.to_bits() { 0.0 } else { (now - base) / base.abs() })
            }
        }
    }

    fn holds(&self, found: f64) -> bool {
        let (Of::Share(limit) | Of::Difference(limit) | Of::Value(limit)) = self.of;
        match self.sign {
            Sign::Above => found > limit,
            Sign::AtLeast => found >= limit,
            Sign::Below => found < limit,
            Sign::AtMost => found <= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(metric: &str, base: Option<f64>, now: Option<f64>) -> Change {
        Change { scenario: "fp8".to_owned(), metric: metric.to_owned(), base, now }
    }

    fn broken(gate: &str, base: Option<f64>, now: Option<f64>) -> usize {
        match Gate::parse(gate).unwrap().look(&[change("p99_itl_ms", base, now)]).unwrap() {
            Looked::Broken(said) => said.len(),
            Looked::Passed(_) => 0,
        }
    }

    #[test]
    fn shares_differences_and_values_are_told_apart() {
        let both = |base: f64, now: f64| (Some(base), Some(now));
        for (gate, (base, now), count) in [
            ("p99_itl > +5%", both(100.0, 105.0), 0),
            ("p99_itl > +5%", both(100.0, 105.1), 1),
            ("p99_itl_ms >= 5%", both(100.0, 105.0), 1),
            ("p99_itl<-10%", both(100.0, 89.0), 1),
            ("p99_itl > +5", both(100.0, 105.5), 1),
            ("p99_itl > +5", both(100.0, 105.0), 0),
            ("p99_itl <= -5", both(100.0, 95.0), 1),
            ("p99_itl > 50", both(100.0, 51.0), 1),
            ("p99_itl < 50", both(100.0, 51.0), 0),
            ("p99_itl > +5%", both(0.0, 0.0), 0),
            ("p99_itl > +5%", both(0.0, 1.0), 1),
        ] {
            assert_eq!(broken(gate, base, now), count, "{gate} {base:?} {now:?}");
        }
    }

    #[test]
    fn what_is_no_longer_known_breaks_a_gate_and_what_never_was_cannot_be_gated() {
        assert_eq!(broken("p99_itl > +5%", Some(1.0), None), 1);
        assert_eq!(broken("p99_itl > 5", None, Some(9.0)), 1);
        let gate = Gate::parse("p99_itl > +5%").unwrap();
        let error = gate.look(&[change("p99_itl_ms", None, Some(1.0))]).unwrap_err();
        assert_eq!(error.to_string(), "`--fail-if p99_itl > +5%`: no scenario has `p99_itl_ms` in both runs");
    }

    #[test]
    fn a_gate_that_passes_says_what_came_nearest() {
        let other = Change { scenario: "full".to_owned(), ..change("p99_itl_ms", Some(40.0), Some(39.0)) };
        let changes = [change("p99_itl_ms", Some(100.0), Some(102.0)), other];
        for (gate, said) in [
            ("p99_itl > +5%", "`p99_itl > +5%` (nearest `fp8`: +2%, from 100 to 102)"),
            ("p99_itl < -5", "`p99_itl < -5` (nearest `full`: -1, from 40 to 39)"),
            ("p99_itl >= 200", "`p99_itl >= 200` (nearest `fp8`: from 100 to 102)"),
        ] {
            assert_eq!(Gate::parse(gate).unwrap().look(&changes).unwrap(), Looked::Passed(said.to_owned()));
        }
    }

    #[test]
    fn a_metric_is_named_in_full_or_without_its_unit() {
        let gate = Gate::parse("usd > 1").unwrap();
        let changes = [change("usd_total", None, Some(2.0)), change("usd_per_mtok_total", None, Some(2.0))];
        let error = gate.look(&changes).unwrap_err();
        assert_eq!(error.to_string(), "`usd` may be any of usd_per_mtok_total, usd_total");
        let gate = Gate::parse("p9_itl_ms > 1").unwrap();
        let error = gate.look(&[change("p99_itl_ms", Some(1.0), Some(1.0))]).unwrap_err();
        assert_eq!(error.advice(), Some("did you mean `p99_itl_ms`?"));
    }

    #[test]
    fn what_is_no_gate_is_refused() {
        for text in ["", "p99_itl", "p99_itl > ", "> 5%", "p99 itl > 5", "p99_itl = 5", "p99_itl > x%", "p99_itl > inf"]
        {
            assert!(Gate::parse(text).is_err(), "{text}");
        }
    }
}
