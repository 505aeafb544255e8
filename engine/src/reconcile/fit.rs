//! Host overhead and factors per booth, fitted to captured steps.
//!
//! The cost engine prices each captured batch; measured durations say by which factors its booths are off: `duration =
//! host + a * kv_read + b * weight_read + c * compute + d * collective + fixed`, where `fixed` are the floors, policy
//! work and hops that stay as they are. Prices and durations are whole nanoseconds and the sums of the normal equations
//! are exact integers, so that the order of steps does not matter.
//!
//! Factors are positive. With at most five terms every subset is tried: a term that is left out stays as the model has
//! it (it is not dropped), terms that the steps cannot tell apart are never fitted together, and of the subsets whose
//! terms all come out positive the one with the smallest squared error is taken, the earlier of equals.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use arrow::array::RecordBatch;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use super::columns::{number, numbers, texts};
use crate::cost::Plan;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::model::WeightDtype;
use crate::serving::{CapturedStep, captured};
use crate::unit::significant;

/// What is fitted, in the order of preference where the steps cannot tell two apart.
pub const TERMS: [&str; 5] = ["host", "kv_read", "weight_read", "compute", "collective"];

/// Below this share of a term's own square it is a sum of the others.
const COLLINEAR: f64 = 1e-9;

/// Captured engine steps with their durations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timed {
    /// The steps of requests; those of one engine step stand together and share its number.
    pub steps: Vec<CapturedStep>,
    /// Duration of each engine step, ns.
    pub durations: Vec<i64>,
    /// Requests that the steps belong to.
    pub requests: usize,
    /// Engine steps left out since their duration is unknown.
    pub untimed: u64,
    /// Engine steps left out since the capture lacks requests of their batch.
    pub incomplete: u64,
}

/// One row of `steps`.
#[derive(Debug, Clone, Copy)]
struct Row {
    /// Source, instance and engine step; steps that name none are batches of their own.
    batch: (u32, Option<u32>, Option<u64>, u64),
    step: CapturedStep,
    duration: Option<i64>,
    size: Option<u32>,
}

/// Reads rows of the canonical tables `steps` and `requests`.
///
/// # Errors
/// A missing column, a column of another type, more than 2^32 requests.
pub fn timed(steps: &[RecordBatch], requests: &[RecordBatch]) -> Result<Timed> {
    let mut known: BTreeMap<u64, (u32, u32, u32)> = BTreeMap::new();
    for batch in requests {
        let (ids, sources) = (numbers::<UInt64Type>(batch, "request_id")?, numbers::<UInt32Type>(batch, "source_id")?);
        let prompts = numbers::<UInt32Type>(batch, "prompt_tokens")?;
        for row in 0..batch.num_rows() {
            let next =
                u32::try_from(known.len()).map_err(|_| Error::run("expected up to 2^32 requests, found more"))?;
            known.insert(ids.value(row), (next, sources.value(row), prompts.value(row)));
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for batch in steps {
        read_steps(batch, &known, &mut rows)?;
    }
    rows.sort_by_key(|row| row.batch);
    let mut found = Timed { requests: known.len(), ..Timed::default() };
    for batch in rows.chunk_by(|a, b| a.batch == b.batch) {
        let whole = batch.iter().all(|row| row.size.is_none_or(|size| size as usize == batch.len()));
        let duration = batch.iter().filter_map(|row| row.duration).max().filter(|duration| *duration > 0);
        match duration {
            _ if !whole => found.incomplete += 1,
            None => found.untimed += 1,
            Some(duration) => {
                let engine_step = Some(found.durations.len() as u64);
                found.steps.extend(batch.iter().map(|row| CapturedStep { engine_step, ..row.step }));
                found.durations.push(duration);
            }
        }
    }
    Ok(found)
}

fn read_steps(batch: &RecordBatch, known: &BTreeMap<u64, (u32, u32, u32)>, rows: &mut Vec<Row>) -> Result<()> {
    let (ids, engine_steps) =
        (numbers::<UInt64Type>(batch, "request_id")?, numbers::<UInt64Type>(batch, "engine_step")?);
    let (instances, phases) = (numbers::<UInt32Type>(batch, "instance")?, texts(batch, "phase")?);
    let (contexts, new) =
        (numbers::<UInt32Type>(batch, "context_tokens")?, numbers::<UInt32Type>(batch, "new_tokens")?);
    let (durations, sizes) =
        (numbers::<Int64Type>(batch, "duration_ns")?, numbers::<UInt32Type>(batch, "batch_requests")?);
    for row in 0..batch.num_rows() {
        let Some(&(request, source, prompt)) = known.get(&ids.value(row)) else { continue };
        let engine_step = number(engine_steps, row);
        let alone = if engine_step.is_none() { rows.len() as u64 } else { 0 };
        rows.push(Row {
            batch: (source, number(instances, row), engine_step, alone),
            step: CapturedStep {
                request,
                engine_step,
                is_prefill: phases.value(row) == "prefill",
                prompt,
                context: contexts.value(row),
                new_tokens: new.value(row),
            },
            duration: number(durations, row),
            size: number(sizes, row),
        });
    }
    Ok(())
}

/// One fitted or kept term.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Term {
    /// Its name, from [`TERMS`].
    pub name: &'static str,
    /// Modelled time over all steps, ns.
    pub modelled_ns: i128,
    /// What multiplies it; 1 where it is kept.
    pub factor: f64,
    /// Whether the steps determine it.
    pub is_fitted: bool,
}

/// Errors of modelled durations against measured ones, relative to the measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Misfit {
    /// Median of the absolute errors.
    pub median: f64,
    /// The error that 90% of the steps do not exceed.
    pub p90: f64,
    /// The largest.
    pub worst: f64,
}

/// A fit. Its errors are on the steps that it was fitted to.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// Engine steps.
    pub steps: u64,
    /// Time of the host per step, ns.
    pub host_ns: f64,
    /// The terms, in the order of [`TERMS`]; the first is the host's.
    pub terms: Vec<Term>,
    /// Errors of the model as it was.
    pub before: Misfit,
    /// Errors of the fitted model.
    pub after: Misfit,
}

/// Modelled times of a step, whole ns.
type Prices = [i64; TERMS.len()];

/// Fits the plan to captured steps.
///
/// # Errors
/// Fewer than two timed steps, a batch whose KV does not fit in memory, sums beyond 128 bits.
pub fn fit(plan: &Plan, timed: &Timed) -> Result<Fit> {
    if timed.durations.len() < 2 {
        return Err(Error::run(format!(
            "expected at least two captured steps with known durations and whole batches, found {}",
            timed.durations.len()
        ))
        .hint("ingest a recording whose `steps` have `duration_ns`, with every request of a batch"));
    }
    let outcome = captured(plan, &timed.steps, timed.requests)?;
    if outcome.stretches.len() != timed.durations.len() {
        return Err(Error::run("the captured steps take longer than a clock of 64 bits can count on this machine"));
    }
    let mut prices: Vec<Prices> = Vec::with_capacity(timed.durations.len());
    let mut targets: Vec<i64> = Vec::with_capacity(timed.durations.len());
    for (stretch, &duration) in outcome.stretches.iter().zip(&timed.durations) {
        let cost = &stretch.cost;
        let whole = |time: f64| time.round() as i64;
        let fixed = cost.overhead - plan.step_overhead_ns + cost.policy + cost.link;
        // A column of nothing could not be fitted; a nanosecond is nothing too.
        let host = plan.step_overhead_ns.max(1.0);
        prices.push([host, cost.kv_read, cost.weight_read, cost.compute, cost.collective].map(whole));
        targets.push(duration.saturating_sub(whole(fixed)));
    }
    let fixed: Vec<i64> =
        timed.durations.iter().zip(&targets).map(|(all, target)| all.saturating_sub(*target)).collect();
    let (columns, factors) = best(&prices, &targets)?;
    let modelled = |term: usize| prices.iter().map(|row| i128::from(row[term])).sum();
    let term = |(at, name): (usize, &&'static str)| Term {
        name,
        modelled_ns: modelled(at),
        factor: factors[at],
        is_fitted: columns.contains(&at),
    };
    Ok(Fit {
        steps: prices.len() as u64,
        host_ns: factors[0] * prices.first().map_or(0, |row| row[0]) as f64,
        terms: TERMS.iter().enumerate().map(term).collect(),
        before: misfit(&prices, &fixed, &timed.durations, &[1.0; TERMS.len()]),
        after: misfit(&prices, &fixed, &timed.durations, &factors),
    })
}

/// The subset of terms with the smallest squared error whose factors are positive, and all factors.
fn best(prices: &[Prices], targets: &[i64]) -> Result<(Vec<usize>, [f64; TERMS.len()])> {
    let sums = Sums::of(prices, targets)?;
    let mut found = (Vec::new(), [1.0; TERMS.len()]);
    let mut smallest = squared_error(prices, targets, &found.1);
    // Larger subsets first, and of equally many terms those with earlier ones.
    let mut subsets: Vec<u32> = (1..1 << TERMS.len()).collect();
    subsets.sort_by_key(|subset| std::cmp::Reverse((subset.count_ones(), subset.reverse_bits())));
    for subset in subsets {
        let columns: Vec<usize> = (0..TERMS.len()).filter(|at| subset & (1 << at) != 0).collect();
        let Some(solved) = sums.solve(&columns) else { continue };
        if solved.iter().any(|factor| !factor.is_finite() || *factor <= 0.0) {
            continue;
        }
        let mut factors = [1.0; TERMS.len()];
        for (&column, &factor) in columns.iter().zip(&solved) {
            factors[column] = factor;
        }
        let error = squared_error(prices, targets, &factors);
        if error < smallest * (1.0 - 1e-9) {
            smallest = error;
            found = (columns, factors);
        }
    }
    Ok(found)
}

/// Exact sums of products: of terms with each other, and with the targets.
struct Sums {
    terms: [[i128; TERMS.len()]; TERMS.len()],
    targets: [i128; TERMS.len()],
}

impl Sums {
    fn of(prices: &[Prices], targets: &[i64]) -> Result<Self> {
        let mut sums = Self { terms: [[0; TERMS.len()]; TERMS.len()], targets: [0; TERMS.len()] };
        let too_large =
            || Error::run("the captured steps are too long to be fitted: squares of their times leave 128 bits");
        let add = |sum: &mut i128, a: i64, b: i64| {
            *sum = sum.checked_add(i128::from(a) * i128::from(b)).ok_or_else(too_large)?;
            Ok::<(), Error>(())
        };
        for (row, &target) in prices.iter().zip(targets) {
            for (i, &a) in row.iter().enumerate() {
                for (j, &b) in row.iter().enumerate() {
                    add(&mut sums.terms[i][j], a, b)?;
                }
                add(&mut sums.targets[i], a, target)?;
            }
        }
        Ok(sums)
    }

    /// Solves the normal equations for some terms, the others kept at 1; `None` where they cannot be told apart. By
    /// Cholesky, on columns scaled to length 1.
    fn solve(&self, columns: &[usize]) -> Option<Vec<f64>> {
        let scale: Vec<f64> = columns.iter().map(|&at| (self.terms[at][at] as f64).sqrt()).collect();
        if scale.iter().any(|scale| *scale <= 0.0) {
            return None;
        }
        let kept = |at: usize| -> i128 {
            (0..TERMS.len()).filter(|other| !columns.contains(other)).map(|other| self.terms[at][other]).sum()
        };
        let size = columns.len();
        let mut lower = vec![vec![0.0; size]; size];
        for i in 0..size {
            for j in 0..=i {
                let product = self.terms[columns[i]][columns[j]] as f64 / scale[i] / scale[j];
                let rest = product - (0..j).map(|k| lower[i][k] * lower[j][k]).sum::<f64>();
                if i == j && rest <= COLLINEAR {
                    return None;
                }
                lower[i][j] = if i == j { rest.sqrt() } else { rest / lower[j][j] };
            }
        }
        let mut solved: Vec<f64> = Vec::with_capacity(size);
        for i in 0..size {
            let right = (self.targets[columns[i]] - kept(columns[i])) as f64 / scale[i];
            let known: f64 = (0..i).map(|k| lower[i][k] * solved[k]).sum();
            solved.push((right - known) / lower[i][i]);
        }
        for i in (0..size).rev() {
            let known: f64 = (i + 1..size).map(|k| lower[k][i] * solved[k]).sum();
            solved[i] = (solved[i] - known) / lower[i][i];
        }
        Some(solved.iter().zip(&scale).map(|(factor, scale)| factor / scale).collect())
    }
}

fn modelled(row: &Prices, factors: &[f64; TERMS.len()]) -> f64 {
    row.iter().zip(factors).map(|(&price, factor)| price as f64 * factor).sum()
}

fn squared_error(prices: &[Prices], targets: &[i64], factors: &[f64; TERMS.len()]) -> f64 {
    prices.iter().zip(targets).map(|(row, &target)| (target as f64 - modelled(row, factors)).powi(2)).sum()
}

fn misfit(prices: &[Prices], fixed: &[i64], durations: &[i64], factors: &[f64; TERMS.len()]) -> Misfit {
    let error = |((row, &fixed), &duration): ((&Prices, &i64), &i64)| {
        ((modelled(row, factors) + fixed as f64 - duration as f64) / duration as f64).abs()
    };
    let mut errors: Vec<f64> = prices.iter().zip(fixed).zip(durations).map(error).collect();
    errors.sort_by(f64::total_cmp);
    let rank = |share: f64| errors[((errors.len() as f64 * share).ceil() as usize).clamp(1, errors.len()) - 1];
    Misfit { median: rank(0.5), p90: rank(0.9), worst: rank(1.0) }
}

/// The fit as a table `[calibrated]` of a machine file: parameters of `machine` as the captured steps ask for them.
/// Also says what could not be written: a factor that would need more than the peak.
///
/// `what` says what was captured. A booth's factor divides the achieved share that prices it.
pub fn calibrated(fit: &Fit, plan: &Plan, machine: &Machine, dtype: WeightDtype, what: &str) -> (String, Vec<String>) {
    let efficiency = &machine.efficiency;
    let is_16bit = plan.groups.iter().all(|group| group.group.is_16bit);
    let kv = if is_16bit {
        ("kv_read_16bit", efficiency.kv_read_16bit.value)
    } else {
        ("kv_read_8bit", efficiency.kv_read_8bit.value)
    };
    let weights = if dtype == WeightDtype::Bf16 {
        ("weight_read", efficiency.weight_read.value)
    } else {
        ("weight_read_8bit", efficiency.weight_read_8bit.value)
    };
    let products = match dtype {
        WeightDtype::Bf16 | WeightDtype::Int4 => ("matmul_bf16", efficiency.matmul_bf16.value),
        WeightDtype::Fp8 => ("matmul_fp8", efficiency.matmul_fp8.value),
        WeightDtype::Nvfp4 | WeightDtype::Mxfp4 => ("matmul_fp4", efficiency.matmul_fp4.value),
    };
    let source = format!(
        "fit to {} captured steps of {what}; absolute error on the same steps: median {}%, p90 {}%",
        fit.steps,
        significant(fit.after.median * 100.0),
        significant(fit.after.p90 * 100.0)
    );
    let plain = |letter: char| if letter.is_control() || matches!(letter, '"' | '\\') { '_' } else { letter };
    let source: String = source.chars().map(plain).collect();
    let mut text = format!("[calibrated]\nsource = \"{source}\"\n");
    let mut notes = Vec::new();
    for term in fit.terms.iter().filter(|term| term.is_fitted) {
        let share = match term.name {
            "host" => {
                let _ = writeln!(text, "step_overhead_ns = \"{}ns\"", fit.host_ns.round());
                continue;
            }
            "kv_read" => kv,
            "weight_read" => weights,
            "compute" => products,
            _ => {
                let latency = machine.accelerator.scale_up_latency_ns.value * term.factor;
                let _ = writeln!(text, "scale_up_latency_ns = \"{}ns\"", latency.round());
                ("all_reduce", efficiency.all_reduce.value)
            }
        };
        let value = share.1 / term.factor;
        if value > 1.0 {
            notes.push(format!(
                "`{}` would have to be {}, which is above its peak: written as 1",
                share.0,
                significant(value)
            ));
        }
        let _ = writeln!(text, "{} = {}", share.0, rounded(value.min(1.0)));
    }
    (text, notes)
}

/// Six digits after the point, and at least the smallest of them: a ratio is above zero. Always with a point, as TOML
/// wants.
fn rounded(value: f64) -> String {
    format!("{:.6}", value.max(1e-6))
}
