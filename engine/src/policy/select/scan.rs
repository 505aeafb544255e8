//! The inner loops of the selections: sums over masses, marks and scores of one row.
//!
//! Each loop has one or two sets of eight sums, which the compiler keeps in registers and computes side by side. Masses are
//! added in double precision: recorded masses have few bits, so that these sums are exact and do not depend on their order.

/// Sums that run side by side.
const LANES: usize = 8;

/// Units whose least sum is noted, so that the place of the least is looked for among as many.
pub(super) const NOTED: usize = 64;

/// The sum of a row.
pub fn sum(mass: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (chunks, rest) = mass.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, mass) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*mass);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|mass| f64::from(*mass)).sum::<f64>()
}

/// The first lines of a row that are asked for ahead of time, and numbers in each.
const LINES: usize = 8;
const LINE: usize = 16;

/// Asks for a row that is read soon, so that it comes from memory while others are computed. Of a long row the first lines
/// are enough: what lies behind them comes by itself once they are read.
pub(super) fn touch(mass: &[f32]) {
    let first = mass.chunks(LINE).take(LINES).filter_map(|line| line.first());
    std::hint::black_box(first.fold(0, |all, mass| all | mass.to_bits()));
}

/// How many marks are set.
pub fn count(marks: &[bool]) -> usize {
    let (chunks, rest) = marks.as_chunks::<64>();
    // Sums of 64 marks fit a byte, so that sixteen marks are added at a time.
    let of_chunk = |chunk: &[bool; 64]| usize::from(chunk.iter().map(|mark| u8::from(*mark)).sum::<u8>());
    chunks.iter().map(of_chunk).sum::<usize>() + rest.iter().filter(|mark| **mark).count()
}

/// Masses that are picked before they are added up.
const PICKED: usize = 256;

/// The masses whose mark is as wanted, a constant, and 0 for the others. A loop of its own: mixed with the sums, both would be
/// computed one by one.
#[inline(never)]
fn pick<const WANTED: bool>(mass: &[f32], marks: &[bool], picked: &mut [f32]) {
    for ((picked, mass), mark) in picked.iter_mut().zip(mass).zip(marks) {
        *picked = f32::from_bits(mass.to_bits() & u32::from(*mark == WANTED).wrapping_neg());
    }
}

/// The sum of the masses whose mark is as wanted; masses beyond the marks count for nothing.
fn sum_where<const WANTED: bool>(mass: &[f32], marks: &[bool]) -> f64 {
    let mut picked = [0.0; PICKED];
    let runs = mass.chunks(PICKED).zip(marks.chunks(PICKED));
    let sums = runs.map(|(mass, marks)| {
        let picked = &mut picked[..mass.len().min(marks.len())];
        pick::<WANTED>(mass, marks, picked);
        sum(picked)
    });
    sums.sum()
}

/// The sum of the masses that are marked.
pub fn sum_marked(mass: &[f32], marks: &[bool]) -> f64 {
    sum_where::<true>(mass, marks)
}

/// The sum of the masses that are not marked.
pub fn sum_unmarked(mass: &[f32], marks: &[bool]) -> f64 {
    sum_where::<false>(mass, marks)
}

/// Adds a row times a number; notes the least sum of each run of [`NOTED`].
pub(super) fn add(sums: &mut [f64], mass: &[f32], scale: f64, least: &mut Vec<f64>) {
    least.clear();
    for (sums, mass) in sums.chunks_mut(NOTED).zip(mass.chunks(NOTED)) {
        // A loop of its own for the least, since a run stays in the cache: in one loop both would be computed one by one.
        for (sum, mass) in sums.iter_mut().zip(mass) {
            *sum += scale * f64::from(*mass);
        }
        least.push(least_of(sums));
    }
}

/// Adds two rows times a number each, in this order.
pub(super) fn add_two(sums: &mut [f64], masses: [&[f32]; 2], scales: [f64; 2]) {
    let ([first, second], [of_first, of_second]) = (masses, scales);
    for ((sum, first), second) in sums.iter_mut().zip(first).zip(second) {
        *sum += of_first * f64::from(*first);
        *sum += of_second * f64::from(*second);
    }
}

/// The least of some sums; infinite if there are none.
fn least_of(sums: &[f64]) -> f64 {
    let lesser = |a: f64, b: f64| if b < a { b } else { a };
    let mut lanes = [f64::INFINITY; LANES];
    let (chunks, rest) = sums.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, sum) in lanes.iter_mut().zip(chunk) {
            *lane = lesser(*lane, *sum);
        }
    }
    for (lane, sum) in lanes.iter_mut().zip(rest) {
        *lane = lesser(*lane, *sum);
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    lesser(lesser(lesser(a, e), lesser(b, f)), lesser(lesser(c, g), lesser(d, h)))
}

/// The place of the least sum among the first `before`, among equals the last; `None` if none is finite. `least` is what
/// [`add`] noted of these sums.
pub(super) fn last_least(sums: &[f64], before: usize, least: &[f64]) -> Option<usize> {
    let sums = sums.get(..before)?;
    let whole = (before / NOTED).min(least.len());
    let rest = least_of(sums.get(whole * NOTED..)?);
    let (of_run, run) =
        (0..whole).zip(least).fold(
            (f64::INFINITY, 0),
            |(found, at), (run, least)| {
                if *least <= found { (*least, run) } else { (found, at) }
            },
        );
    let (from, to, found) =
        if rest <= of_run { (whole * NOTED, before, rest) } else { (run * NOTED, (run + 1) * NOTED, of_run) };
    let run = sums.get(from..to)?;
    if found < f64::INFINITY { last_of(run, found).map(|at| from + at) } else { None }
}

/// The last place of a sum that is there, eight at a time.
fn last_of(sums: &[f64], found: f64) -> Option<usize> {
    let is_it = |sum: &f64| sum.to_bits() == found.to_bits();
    let (chunks, rest) = sums.as_chunks::<LANES>();
    if let Some(at) = rest.iter().rposition(is_it) {
        return Some(chunks.len() * LANES + at);
    }
    let has_it = |chunk: &[f64; LANES]| chunk.iter().fold(false, |any, sum| any | is_it(sum));
    let chunk = chunks.iter().rposition(has_it)?;
    chunks.get(chunk)?.iter().rposition(is_it).map(|at| chunk * LANES + at)
}

/// Notes the least sum of the run around a place again.
pub(super) fn note(sums: &[f64], at: usize, least: &mut [f64]) {
    let from = at - at % NOTED;
    let run = sums.get(from..sums.len().min(from + NOTED)).unwrap_or_default();
    if let Some(noted) = least.get_mut(at / NOTED) {
        *noted = least_of(run);
    }
}

/// Finds the sum of the smallest masses of rows that resemble each other: the rank is looked for around the place where it
/// was in the row before.
#[derive(Debug, Clone, Default)]
pub struct Smallest {
    bits: Vec<u32>,
    /// The mass at the rank of the last row; 0 before the first.
    around: f32,
}

/// How far around the last row's mass a rank is looked for: ranks of short rows are less steady.
fn around(units: usize) -> f32 {
    (8.0 / (units as f32).sqrt()).min(0.75)
}

impl Smallest {
    /// The sum of the `count` smallest of `mass`: what the best choice of all the others would lose.
    pub fn sum(&mut self, mass: &[f32], count: usize) -> f64 {
        if count == 0 {
            return 0.0;
        }
        if count >= mass.len() {
            return sum(mass);
        }
        if self.around > 0.0 {
            if let Some(sum) = self.sum_around(mass, count) {
                return sum;
            }
        } else if mass.iter().filter(|mass| **mass == 0.0).count() >= count {
            return 0.0;
        }
        self.bits.clear();
        // Masses are not negative, so that their bits sort as they do.
        self.bits.extend(mass.iter().map(|mass| mass.to_bits()));
        let (smaller, at, _) = self.bits.select_nth_unstable(count);
        self.around = f32::from_bits(*at);
        smaller.iter().map(|bits| f64::from(f32::from_bits(*bits))).sum()
    }

    /// The same if the mass of that rank is near the last row's; else `None`.
    fn sum_around(&mut self, mass: &[f32], count: usize) -> Option<f64> {
        let width = around(mass.len());
        let (low, high) = (self.around * (1.0 - width), self.around * (1.0 + width));
        let (below, sum) = (count_below(mass, low), sum_below(mass, low));
        let rank = count.checked_sub(below)?;
        self.bits.resize(mass.len(), 0);
        let mut near = 0;
        for mass in mass {
            // Each is written, and stays if it is near: without a branch that could be foretold wrong.
            if let Some(place) = self.bits.get_mut(near) {
                *place = mass.to_bits();
            }
            near += usize::from(*mass >= low && *mass < high);
        }
        let near = self.bits.get_mut(..near)?;
        if rank >= near.len() {
            return None;
        }
        let (smaller, at, _) = near.select_nth_unstable(rank);
        self.around = f32::from_bits(*at);
        Some(sum + smaller.iter().map(|bits| f64::from(f32::from_bits(*bits))).sum::<f64>())
    }
}

fn count_below(mass: &[f32], limit: f32) -> usize {
    let mut count = 0;
    for run in mass.chunks(1 << 12) {
        let mut lanes = [0_u32; 16];
        let (chunks, rest) = run.as_chunks::<16>();
        for chunk in chunks {
            for (lane, mass) in lanes.iter_mut().zip(chunk) {
                *lane += u32::from(*mass < limit);
            }
        }
        count += lanes.iter().sum::<u32>() as usize + rest.iter().filter(|mass| **mass < limit).count();
    }
    count
}

fn sum_below(mass: &[f32], limit: f32) -> f64 {
    let pick = |mass: f32| f64::from(f32::from_bits(mass.to_bits() & u32::from(mass < limit).wrapping_neg()));
    let mut lanes = [0.0_f64; LANES];
    let (chunks, rest) = mass.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, mass) in lanes.iter_mut().zip(chunk) {
            *lane += pick(*mass);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|mass| pick(*mass)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::float_cmp, reason = "sums of multiples of a power of two are exact")]

    use proptest::prelude::*;

    use super::*;

    /// Multiples of a power of two, of which sums are exact.
    fn row() -> impl Strategy<Value = Vec<f32>> {
        prop::collection::vec((0_u32..4096).prop_map(|x| x as f32 / 4096.0), 1..600)
    }

    proptest! {
        /// Against plain sums, exactly.
        #[test]
        fn sums_are_those_of_plain_loops(mass in row(), seed in any::<u64>()) {
            let marks: Vec<bool> = (0..mass.len()).map(|at| seed >> (at % 64) & 1 == 1).collect();
            let plain = |wanted: bool| -> f64 {
                mass.iter().zip(&marks).filter(|(_, mark)| **mark == wanted).map(|(mass, _)| f64::from(*mass)).sum()
            };
            prop_assert_eq!(sum_marked(&mass, &marks), plain(true));
            prop_assert_eq!(sum_unmarked(&mass, &marks), plain(false));
            prop_assert_eq!(sum(&mass), plain(true) + plain(false));
            let fewer = marks.get(..marks.len() / 2).unwrap_or_default();
            prop_assert_eq!(sum_marked(&mass, fewer), sum_marked(mass.get(..fewer.len()).unwrap_or_default(), fewer));
            prop_assert_eq!(count(&marks), marks.iter().filter(|mark| **mark).count());
        }

        /// The least is found as by a sorted list, also where sums are equal or infinite, and after some were dropped.
        #[test]
        fn the_last_least_is_that_of_a_sorted_list(
            mass in row(), start in prop::collection::vec(0_u32..3, 600), before in 0_usize..300, drops in 0_usize..4,
        ) {
            let mut sums: Vec<f64> =
                start.iter().take(mass.len()).map(|x| if *x == 2 { f64::INFINITY } else { f64::from(*x) }).collect();
            let expected: Vec<f64> = sums.iter().zip(&mass).map(|(sum, mass)| sum + 0.5 * f64::from(*mass)).collect();
            let mut least = Vec::new();
            add(&mut sums, &mass, 0.5, &mut least);
            prop_assert_eq!(&sums, &expected);
            let before = before.min(sums.len());
            for _ in 0..=drops {
                let mut order: Vec<usize> = (0..before).filter(|at| sums[*at].is_finite()).collect();
                order.sort_by(|a, b| sums[*a].total_cmp(&sums[*b]).then(b.cmp(a)));
                let found = last_least(&sums, before, &least);
                prop_assert_eq!(found, order.first().copied());
                if let Some(at) = found {
                    sums[at] = f64::INFINITY;
                    note(&sums, at, &mut least);
                }
            }
        }

        /// Whatever the row before was, the sum is that of a sorted list.
        #[test]
        fn the_sum_of_the_smallest_is_that_of_a_sorted_list(rows in prop::collection::vec(row(), 1..6), share in 0.0_f64..1.1) {
            let mut smallest = Smallest::default();
            for mut mass in rows {
                let count = (mass.len() as f64 * share) as usize;
                let found = smallest.sum(&mass, count);
                mass.sort_by(f32::total_cmp);
                let expected: f64 = mass.iter().take(count).map(|mass| f64::from(*mass)).sum();
                prop_assert_eq!(found, expected);
            }
        }

        #[test]
        fn two_rows_are_added_one_after_the_other(first in row()) {
            let second: Vec<f32> = first.iter().rev().copied().collect();
            let (mut once, mut twice) = (vec![0.25; first.len()], vec![0.25; first.len()]);
            add_two(&mut once, [&first, &second], [0.3, 1.7]);
            add(&mut twice, &first, 0.3, &mut Vec::new());
            add(&mut twice, &second, 1.7, &mut Vec::new());
            prop_assert_eq!(once, twice);
        }
    }
}
