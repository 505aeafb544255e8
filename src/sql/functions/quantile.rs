//! `stretch_quantile`: exact quantiles over tokens of times that are kept as arithmetic progressions.
//!
//! A row of `step_costs` stands for `steps` step times from `first_ns` to `last_ns` in equal increments, each felt by
//! `decode_requests` requests. Term k is the whole nanosecond nearest to `first + k * (last - first) / (steps - 1)`, halves
//! upwards. No term is ever written out: the number of terms up to a value is counted, in whole numbers, and the value is
//! found by halving.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Accumulator, AggregateUDF, Volatility, create_udaf};
use engine::error::Error;

use super::{Found, same_ratio, through};

/// The aggregate.
pub(super) fn function() -> AggregateUDF {
    let int = DataType::Int64;
    let kinds = vec![int.clone(), int.clone(), int.clone(), int.clone(), DataType::Float64];
    let numbers = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
    create_udaf(
        "stretch_quantile",
        kinds,
        Arc::new(int),
        Volatility::Immutable,
        Arc::new(|_| Ok(Box::new(Quantile::default()))),
        Arc::new(vec![numbers, DataType::Float64]),
    )
}

/// Step times of one stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    first: i64,
    last: i64,
    steps: i64,
    weight: i64,
}

impl Stretch {
    /// How many of its terms are at most `value`, each as often as it is felt.
    fn at_most(self, value: i64) -> i128 {
        let Self { first, last, steps, weight } = self;
        if steps == 1 || first == last {
            return if first <= value { i128::from(weight) * i128::from(steps) } else { 0 };
        }
        // Times of days in stretches of a million steps fit here; others take the long way.
        let short = last.checked_sub(first).zip(value.checked_sub(first)).and_then(|(spread, above)| {
            let reach = above.checked_mul(2)?.checked_add(1)?.checked_mul(steps - 1)?;
            terms(reach, spread.checked_mul(2)?, steps)
        });
        let long = || {
            let [first, last, steps, value] = [first, last, steps, value].map(i128::from);
            long_terms((2 * (value - first) + 1) * (steps - 1), 2 * (last - first), steps)
        };
        i128::from(weight) * short.map_or_else(long, i128::from)
    }
}

/// How many of the terms k = 0, 1, ... below `steps` have `k * spread < reach`, where `spread` and `reach` are twice those of the
/// stretch; a falling stretch has a negative `spread`. `None` if that does not fit.
fn terms(reach: i64, spread: i64, steps: i64) -> Option<i64> {
    let terms = match (spread > 0, reach > 0) {
        (true, false) => 0,
        (true, true) => (reach - 1).checked_div(spread)?.checked_add(1)?,
        (false, true) => steps,
        // Those from some term on are small enough.
        (false, false) => steps - (reach.checked_neg()?.checked_div(spread.checked_neg()?)?.checked_add(1)?),
    };
    Some(terms.clamp(0, steps))
}

/// The same in longer numbers.
fn long_terms(reach: i128, spread: i128, steps: i128) -> i128 {
    let terms = match (spread > 0, reach > 0) {
        (true, false) => 0,
        (true, true) => (reach - 1) / spread + 1,
        (false, true) => steps,
        (false, false) => steps - (-reach / -spread + 1),
    };
    terms.clamp(0, steps)
}

/// The smallest time that at least the share `ratio` of all terms does not exceed; `None` of nothing.
fn quantile(stretches: &[Stretch], ratio: f64) -> Option<i64> {
    let all: i128 = stretches.iter().map(|stretch| i128::from(stretch.steps) * i128::from(stretch.weight)).sum();
    if all == 0 {
        return None;
    }
    let rank = ((all as f64 * ratio).ceil() as i128).clamp(1, all);
    let ends =
        || stretches.iter().filter(|stretch| stretch.weight > 0).flat_map(|stretch| [stretch.first, stretch.last]);
    let (mut low, mut high) = (ends().min()?, ends().max()?);
    // Each cut leaves fewer stretches that the next can split: the others lie on one side as a whole. A guess from a few
    // stretches cuts off most of them where a few times are far longer than all others; halving in turn with it always ends.
    let (mut open, mut below, mut guesses) = (stretches.to_vec(), 0_i128, true);
    while low < high {
        let halved = (i128::from(low) + i128::from(high)).div_euclid(2) as i64;
        let middle = if guesses { guess(&open, rank - below).clamp(low, high - 1) } else { halved };
        guesses = !guesses && open.len() > SAMPLE;
        if below + open.iter().map(|stretch| stretch.at_most(middle)).sum::<i128>() >= rank {
            high = middle;
            open.retain(|stretch| stretch.first.min(stretch.last) < high);
        } else {
            low = middle + 1;
            open.retain(|stretch| {
                let is_open = stretch.first.max(stretch.last) > low;
                below += if is_open { 0 } else { i128::from(stretch.steps) * i128::from(stretch.weight) };
                is_open
            });
        }
    }
    Some(high)
}

/// Stretches that a guess looks at.
const SAMPLE: usize = 128;

/// About the value that `rank` of the terms do not exceed, by the middles of a few stretches.
fn guess(stretches: &[Stretch], rank: i128) -> i64 {
    let every = stretches.len().div_ceil(SAMPLE).max(1);
    let mut few: Vec<(i64, i128)> = (stretches.iter().step_by(every))
        .map(|of| (of.first.midpoint(of.last), i128::from(of.steps) * i128::from(of.weight)))
        .collect();
    few.sort_unstable();
    let mut left = rank / every as i128;
    let reached = few.iter().find(|(_, terms)| {
        left -= terms;
        left <= 0
    });
    reached.or(few.last()).map_or(0, |(middle, _)| *middle)
}

/// What has been seen.
#[derive(Debug, Default)]
struct Quantile {
    stretches: Vec<Stretch>,
    ratio: Option<f64>,
}

impl Quantile {
    /// Takes the share; it must be the same in all rows.
    fn take(&mut self, ratio: f64) -> Found<()> {
        self.ratio = Some(same_ratio("stretch_quantile", self.ratio, ratio)?);
        Ok(())
    }
}

impl Accumulator for Quantile {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Found<()> {
        let [first, last, steps, weight, ratio] = values else {
            return Err(through(Error::usage("`stretch_quantile` expects 5 arguments")));
        };
        let [first, last, steps, weight] = [first, last, steps, weight].map(AsArray::as_primitive::<Int64Type>);
        let ratios = ratio.as_primitive::<Float64Type>();
        for row in 0..first.len() {
            let known = [first, last, steps, weight].iter().all(|column| column.is_valid(row)) && ratios.is_valid(row);
            // As in all aggregates, what is unknown does not count.
            if !known {
                continue;
            }
            self.take(ratios.value(row))?;
            let [first, last, steps, weight] = [first, last, steps, weight].map(|column| column.value(row));
            if steps < 0 || weight < 0 {
                let found = if steps < 0 { steps } else { weight };
                return Err(through(Error::usage(format!(
                    "`stretch_quantile` expects steps and weights of at least 0, found {found}"
                ))));
            }
            if steps > 0 && weight > 0 {
                self.stretches.push(Stretch { first, last, steps, weight });
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Found<ScalarValue> {
        Ok(ScalarValue::Int64(self.ratio.and_then(|ratio| quantile(&self.stretches, ratio))))
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.stretches.capacity() * size_of::<Stretch>()
    }

    fn state(&mut self) -> Found<Vec<ScalarValue>> {
        let numbers: Vec<ScalarValue> = self
            .stretches
            .iter()
            .flat_map(|stretch| [stretch.first, stretch.last, stretch.steps, stretch.weight])
            .map(|number| ScalarValue::Int64(Some(number)))
            .collect();
        let list = ScalarValue::new_list_nullable(&numbers, &DataType::Int64);
        Ok(vec![ScalarValue::List(list), ScalarValue::Float64(self.ratio)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Found<()> {
        let [numbers, ratios] = states else {
            return Err(through(Error::usage("`stretch_quantile` lost its state")));
        };
        for (numbers, ratio) in numbers.as_list::<i32>().iter().zip(ratios.as_primitive::<Float64Type>()) {
            if let Some(ratio) = ratio {
                self.take(ratio)?;
            }
            let Some(numbers) = numbers else { continue };
            for of in numbers.as_primitive::<Int64Type>().values().chunks_exact(4) {
                self.stretches.push(Stretch { first: of[0], last: of[1], steps: of[2], weight: of[3] });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every term written out and sorted.
    fn slow(stretches: &[Stretch], ratio: f64) -> Option<i64> {
        let mut all = Vec::new();
        for of in stretches {
            for step in 0..of.steps {
                let term = if of.steps == 1 {
                    of.first
                } else {
                    // The nearest whole number, halves upwards.
                    (2 * of.first * (of.steps - 1) + 2 * step * (of.last - of.first) + of.steps - 1)
                        .div_euclid(2 * (of.steps - 1))
                };
                all.extend(std::iter::repeat_n(term, of.weight as usize));
            }
        }
        all.sort_unstable();
        let rank = ((all.len() as f64 * ratio).ceil() as usize).clamp(1, all.len().max(1));
        all.get(rank - 1).copied()
    }

    fn any_stretch() -> impl Strategy<Value = Stretch> {
        (-40_i64..40, -40_i64..40, 1_i64..12, 0_i64..4).prop_map(|(first, last, steps, weight)| Stretch {
            first,
            last: if steps == 1 { first } else { last },
            steps,
            weight,
        })
    }

    proptest! {
        #[test]
        fn counting_equals_sorting(stretches in prop::collection::vec(any_stretch(), 0..6), percent in 0_u32..=100) {
            let ratio = f64::from(percent) / 100.0;
            prop_assert_eq!(quantile(&stretches, ratio), slow(&stretches, ratio));
        }
    }

    #[test]
    fn large_stretches_take_no_time() {
        let long = Stretch { first: 0, last: i64::MAX - 1, steps: i64::from(u32::MAX), weight: i64::from(u32::MAX) };
        let median = quantile(&[long], 0.5).unwrap();
        assert!((median - i64::MAX / 2).abs() < 1 << 33, "{median}");
    }
}
