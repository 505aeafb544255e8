//! `kvtoll validate kernels`: efficiency surfaces against measured operations.
//!
//! A row that a surface holds itself is predicted without it, so that the table of errors means the same for rows that
//! the surfaces were fitted to and for rows that they have never seen. Without files, the surfaces' own points are tried.
//! With `--split` no surface is asked: three quarters of the rows of each table are fitted anew, and judged by the other one.
//! Plain inverse-distance interpolation over the same three quarters, judged by the same rows, then stands beside.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use engine::error::{Error, Result};
use engine::surface::{Errors, Ground, Key, Plain, Rows, Scratch, errors, fit, left_out, work};
use rayon::prelude::*;

use crate::command::{Exit, format_of, print, talk};
use crate::surfaces::{self, Library, Measured};
use crate::{embedded, ingest};

/// Points of a surface that are tried where no files are given.
const TRIED: usize = 6000;

/// A bias that is always allowed.
const BIAS: f64 = 0.005;

/// Arguments of `kvtoll validate kernels`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files of measured operations, or globs; the surfaces' own points if none are given
    #[arg(value_name = "OP_TIMINGS")]
    pub files: Vec<String>,
    /// A folder of surfaces, as `kvtoll calibrate` writes it; the shipped ones if not given
    #[arg(long, value_name = "DIR")]
    pub surfaces: Option<PathBuf>,
    /// Fit three quarters of each table's rows, drawn by this seed, and judge the fit by the others; needs files
    #[arg(long, value_name = "SEED", conflicts_with = "surfaces", requires = "files")]
    pub split: Option<u64>,
    /// Write the table to a file, by its name as csv, tsv, ndjson, json, md or parquet
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// Device, framework and operation; collectives of NCCL are one table.
type Name = (String, String, String);

/// What became of the rows of a table.
#[derive(Debug, Default, Clone)]
struct Tried {
    /// Logarithms of predicted over measured time.
    logarithms: Vec<f64>,
    /// The same of plain inverse-distance interpolation, where a split was drawn.
    plain: Vec<f64>,
    /// Rows without a surface, or without others of their kernel and number format in it.
    missing: usize,
    /// Rows outside the measured shapes.
    outside: usize,
}

/// What is wanted of a table.
struct Wanted {
    name: Name,
    median: f64,
    p90: f64,
    /// The share of plain interpolation's errors that is left.
    share: f64,
}

/// Runs `kvtoll validate kernels`.
pub fn run(args: &Args) -> Result<Exit> {
    let bar = talk::bar(None);
    let tried = if args.files.is_empty() {
        let names = Library::of(args.surfaces.as_deref()).names()?;
        bar.set_message(format!("trying {} surfaces", names.len()));
        names.par_iter().map(|name| try_own(args, name)).collect::<Result<Vec<_>>>()
    } else {
        let paths = ingest::expand(&args.files)?;
        bar.set_message(format!("trying {} files", paths.len()));
        paths.par_iter().map(|path| try_file(args, path)).collect::<Result<Vec<_>>>()
    };
    bar.finish_and_clear();
    let mut tables: BTreeMap<Name, Tried> = BTreeMap::new();
    for (name, part) in tried?.into_iter().flatten() {
        let table = tables.entry(name).or_default();
        table.logarithms.extend(part.logarithms);
        table.plain.extend(part.plain);
        table.missing += part.missing;
        table.outside += part.outside;
    }
    if tables.is_empty() {
        return Err(Error::data("expected surfaces, found none").hint("`kvtoll calibrate` makes some"));
    }
    let lines: Vec<(Name, Tried, Errors)> = tables
        .into_iter()
        .map(|(name, tried)| {
            let errors = errors(&tried.logarithms);
            (name, tried, errors)
        })
        .collect();
    let wanted = wanted()?;
    print(&[table(&lines, &wanted)?], format_of("auto", args.output.as_deref())?, Some(0), args.output.as_deref())?;
    talk::note(&summary(&lines, &wanted, args.split));
    Ok(Exit::Done)
}

/// The table that rows of an operation belong to.
fn table_of(device: &str, framework: &str, op: &str, key: &Key) -> Name {
    let op = if key.kernel_source == "NCCL" { "nccl" } else { op };
    (device.to_owned(), framework.to_owned(), op.to_owned())
}

/// Points of a surface, each predicted from the others.
fn try_own(args: &Args, name: &str) -> Result<Vec<(Name, Tried)>> {
    let mut library = Library::of(args.surfaces.as_deref());
    let calibrated = library.get(name)?;
    let device = surfaces::device(&calibrated.device, None)?.name;
    let keys: Vec<&Key> = calibrated.surface.keys().collect();
    let mut tables: BTreeMap<Name, Tried> = BTreeMap::new();
    for (group, logarithm) in left_out(&calibrated.surface, TRIED) {
        let key = keys.get(group).copied().ok_or_else(|| Error::run("a surface without its key"))?;
        let table = tables.entry(table_of(&device, &calibrated.framework, calibrated.surface.op(), key)).or_default();
        if logarithm.is_finite() { table.logarithms.push(logarithm) } else { table.missing += 1 }
    }
    Ok(tables.into_iter().collect())
}

/// Rows of a file.
fn try_file(args: &Args, path: &str) -> Result<Vec<(Name, Tried)>> {
    let mut library = Library::of(args.surfaces.as_deref());
    let mut tables: BTreeMap<Name, Tried> = BTreeMap::new();
    for measured in surfaces::read(path)? {
        match args.split {
            Some(seed) => try_split(&measured, seed, &mut tables)?,
            None => try_rows(&mut library, &measured, &mut tables)?,
        }
    }
    Ok(tables.into_iter().collect())
}

/// Whether a row is judged and not fitted: one in four, by its number and the seed (the finalizer of `SplitMix64`).
fn is_judged(seed: u64, row: usize) -> bool {
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(row as u64 + 1);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ (bits >> 31)).is_multiple_of(4)
}

/// Fits three quarters of the rows and predicts the others.
fn try_split(measured: &Measured, seed: u64, tables: &mut BTreeMap<Name, Tried>) -> Result<()> {
    let device = surfaces::device(&measured.device, None)?;
    let mut parts = [Rows::default(), Rows::default()];
    let rows = measured.rows.key.iter().zip(&measured.rows.shapes).zip(&measured.rows.latency_ns);
    for (row, ((key, shape), latency)) in rows.enumerate() {
        parts[usize::from(is_judged(seed, row))].push(&measured.rows.keys[*key], *shape, *latency);
    }
    let [fitted, judged] = parts;
    if fitted.is_empty() {
        return Ok(());
    }
    let surface = fit(&measured.op, &fitted, device.peaks)?.surface;
    let plain = Plain::of(&measured.op, &fitted, device.peaks);
    let groups: Vec<Option<usize>> = judged.keys.iter().map(|key| surface.group(key)).collect();
    let mut scratch = Scratch::default();
    for ((key, shape), latency) in judged.key.iter().zip(&judged.shapes).zip(&judged.latency_ns) {
        let key_of_row = &judged.keys[*key];
        let name = table_of(&device.name, &measured.framework, &measured.op, key_of_row);
        let table = tables.entry(name).or_default();
        table.plain.extend(plain.time_ns(key_of_row, shape, &mut scratch).map(|time_ns| (time_ns / latency).ln()));
        match groups[*key].and_then(|group| surface.evaluate(group, shape, &mut scratch)) {
            Some(estimate) => {
                table.outside += usize::from(estimate.ground == Ground::Extrapolated);
                table.logarithms.push((estimate.time_ns / latency).ln());
            }
            None => table.missing += 1,
        }
    }
    Ok(())
}

fn try_rows(library: &mut Library, measured: &Measured, tables: &mut BTreeMap<Name, Tried>) -> Result<()> {
    let device = surfaces::device(&measured.device, None)?.name;
    let found = library.find(&surfaces::name(&device, &measured.framework, &measured.op))?;
    let groups: Vec<Option<usize>> =
        measured.rows.keys.iter().map(|key| found.and_then(|found| found.surface.group(key))).collect();
    let mut scratch = Scratch::default();
    for ((key, shape), latency) in measured.rows.key.iter().zip(&measured.rows.shapes).zip(&measured.rows.latency_ns) {
        let of_row = &measured.rows.keys[*key];
        let table = tables.entry(table_of(&device, &measured.framework, &measured.op, of_row)).or_default();
        let estimate = found.zip(groups[*key]).and_then(|(found, group)| {
            let roofline = work(&measured.op, of_row, shape).roofline_ns(found.surface.peaks());
            found.surface.evaluate_without(group, shape, (roofline / latency).ln(), &mut scratch)
        });
        match estimate {
            Some(estimate) => {
                table.outside += usize::from(estimate.ground == Ground::Extrapolated);
                table.logarithms.push((estimate.time_ns / latency).ln());
            }
            None => table.missing += 1,
        }
    }
    Ok(())
}

/// The baseline, with the share of it that is wanted taken.
fn wanted() -> Result<Vec<Wanted>> {
    let lines = embedded::SURFACE_BASELINE.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .map(|line| {
            let wrong = || Error::run(format!("`presets/surfaces/baseline.tsv`: expected six columns, found `{line}`"));
            let cells: Vec<&str> = line.split('\t').collect();
            let [device, framework, op, median, p90, share] = cells[..] else { return Err(wrong()) };
            let number = |text: &str| text.parse::<f64>().map_err(|_| wrong());
            let name = (device.to_owned(), framework.to_owned(), op.to_owned());
            let share = number(share)?;
            Ok(Wanted { name, median: number(median)? * share, p90: number(p90)? * share, share })
        })
        .collect()
}

fn wanted_of<'a>(name: &Name, wanted: &'a [Wanted]) -> Option<&'a Wanted> {
    wanted.iter().find(|wanted| wanted.name == *name)
}

/// Whether a table is as good as wanted.
fn meets(errors: &Errors, wanted: &Wanted) -> bool {
    errors.median <= wanted.median && errors.p90 <= wanted.p90 && errors.bias.abs() <= bias_limit(errors)
}

/// Whether a table has at most the wanted share (all of it where none is wanted) of the errors of plain interpolation on
/// the same rows; `None` without any.
fn beats(errors: &Errors, plain: Option<Errors>, wanted: Option<&Wanted>) -> Option<bool> {
    let (plain, share) = (plain?, wanted.map_or(1.0, |wanted| wanted.share));
    Some(errors.median <= share * plain.median && errors.p90 <= share * plain.p90)
}

/// Errors of plain interpolation, if it was tried.
fn of_plain(tried: &Tried) -> Option<Errors> {
    (!tried.plain.is_empty()).then(|| errors(&tried.plain))
}

/// The word for a verdict.
fn word(good: bool) -> &'static str {
    if good { "yes" } else { "no" }
}

/// The bias that is allowed: half a percent, or two standard errors.
fn bias_limit(errors: &Errors) -> f64 {
    BIAS.max(2.0 * errors.bias_error)
}

fn table(lines: &[(Name, Tried, Errors)], wanted: &[Wanted]) -> Result<RecordBatch> {
    let texts = |of: &dyn Fn(&Name) -> &str| -> ArrayRef {
        Arc::new(lines.iter().map(|(name, ..)| Some(of(name).to_owned())).collect::<StringArray>())
    };
    let counts = |of: &dyn Fn(&Tried) -> usize| -> ArrayRef {
        Arc::new(lines.iter().map(|(_, tried, _)| Some(of(tried) as u64)).collect::<UInt64Array>())
    };
    let ratios = |of: &dyn Fn(&Errors) -> f64| -> ArrayRef {
        let known = lines.iter().map(|(.., errors)| (errors.rows > 0).then(|| of(errors)));
        Arc::new(known.collect::<Float64Array>())
    };
    let limits = |of: &dyn Fn(&Wanted) -> f64| -> ArrayRef {
        Arc::new(lines.iter().map(|(name, ..)| wanted_of(name, wanted).map(of)).collect::<Float64Array>())
    };
    let verdicts: StringArray = lines
        .iter()
        .map(|(name, _, errors)| {
            let wanted = wanted_of(name, wanted).filter(|_| errors.rows > 0)?;
            Some(word(meets(errors, wanted)))
        })
        .collect();
    let plain = |of: &dyn Fn(&Errors) -> f64| -> ArrayRef {
        Arc::new(lines.iter().map(|(_, tried, _)| of_plain(tried).as_ref().map(of)).collect::<Float64Array>())
    };
    let beaten: StringArray = lines
        .iter()
        .map(|(name, tried, errors)| beats(errors, of_plain(tried), wanted_of(name, wanted)).map(word))
        .collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("device", texts(&|name| &name.0), false),
        ("framework", texts(&|name| &name.1), false),
        ("op", texts(&|name| &name.2), false),
        ("rows", counts(&|tried| tried.logarithms.len()), false),
        ("missing_rows", counts(&|tried| tried.missing), false),
        ("extrapolated_rows", counts(&|tried| tried.outside), false),
        ("median_error_ratio", ratios(&|errors| errors.median), true),
        ("p90_error_ratio", ratios(&|errors| errors.p90), true),
        ("p99_error_ratio", ratios(&|errors| errors.p99), true),
        ("bias_ratio", ratios(&|errors| errors.bias), true),
        ("bias_standard_error_ratio", ratios(&|errors| errors.bias_error), true),
        ("bias_limit_ratio", ratios(&bias_limit), true),
        ("wanted_median_ratio", limits(&|wanted| wanted.median), true),
        ("wanted_p90_ratio", limits(&|wanted| wanted.p90), true),
        ("as_wanted", Arc::new(verdicts) as ArrayRef, true),
        ("plain_median_ratio", plain(&|errors| errors.median), true),
        ("plain_p90_ratio", plain(&|errors| errors.p90), true),
        ("beats_plain", Arc::new(beaten) as ArrayRef, true),
    ])?)
}

fn summary(lines: &[(Name, Tried, Errors)], wanted: &[Wanted], split: Option<u64>) -> String {
    let judged: Vec<bool> = lines
        .iter()
        .filter(|(.., errors)| errors.rows > 0)
        .filter_map(|(name, _, errors)| wanted_of(name, wanted).map(|wanted| meets(errors, wanted)))
        .collect();
    let good = judged.iter().filter(|good| **good).count();
    let how = match split {
        Some(seed) => {
            let beaten =
                |(name, tried, errors): &(Name, Tried, Errors)| beats(errors, of_plain(tried), wanted_of(name, wanted));
            let beaten: Vec<bool> = lines.iter().filter_map(beaten).collect();
            format!(
                "a quarter of the rows, drawn by seed {seed}, was predicted from the other three; {} of {} tables beat plain \
                 inverse-distance interpolation over those as far as wanted",
                beaten.iter().filter(|beaten| **beaten).count(),
                beaten.len()
            )
        }
        None => "rows that a surface holds were predicted without them".to_owned(),
    };
    format!("{good} of {} tables with a baseline are as wanted; {how}", judged.len())
}

#[cfg(test)]
mod tests {
    use engine::surface::{Dim, Shape};

    use super::*;

    #[test]
    fn the_shipped_surfaces_are_as_wanted() {
        let wanted = wanted().unwrap();
        assert_eq!(wanted.len(), 44);
        let library = Library::of(None);
        for wanted in wanted {
            let (device, framework, op) = &wanted.name;
            let errors = if op == "nccl" {
                // Each collective is a surface of its own.
                let args = Args { files: Vec::new(), surfaces: None, split: None, output: None };
                let of_nccl = ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"].map(|op| {
                    let tried = try_own(&args, &surfaces::name(device, framework, op)).unwrap();
                    tried.into_iter().filter(|(name, _)| name.2 == "nccl").flat_map(|(_, tried)| tried.logarithms)
                });
                errors(&of_nccl.into_iter().flatten().collect::<Vec<_>>())
            } else {
                library.summary(&surfaces::name(device, framework, op)).unwrap().errors
            };
            let limits = (wanted.median, wanted.p90);
            assert!(meets(&errors, &wanted), "{:?}: {errors:?}, wanted {limits:?}", wanted.name);
        }
    }

    #[test]
    fn a_quarter_is_judged_and_seeds_differ() {
        let judged = |seed: u64| (0..10_000).filter(|row| is_judged(seed, *row)).collect::<Vec<_>>();
        let (one, two) = (judged(1), judged(2));
        assert!((2400..2600).contains(&one.len()) && (2400..2600).contains(&two.len()));
        let both = one.iter().filter(|row| two.contains(row)).count();
        assert!((550..700).contains(&both), "{both}");
    }

    #[test]
    fn a_table_meets_its_limits_or_not() {
        let wanted = Wanted { name: Name::default(), median: 0.02, p90: 0.1, share: 0.5 };
        let good = Errors { rows: 1000, median: 0.02, p90: 0.1, p99: 0.5, bias: -0.004, bias_error: 0.001 };
        assert!(meets(&good, &wanted));
        assert!(!meets(&Errors { median: 0.021, ..good }, &wanted));
        assert!(!meets(&Errors { p90: 0.11, ..good }, &wanted));
        assert!(!meets(&Errors { bias: 0.006, ..good }, &wanted));
        assert!(meets(&Errors { bias: 0.006, bias_error: 0.004, ..good }, &wanted));
        let plain = Errors { median: 0.04, p90: 0.2, ..good };
        assert_eq!(beats(&good, Some(plain), Some(&wanted)), Some(true));
        assert_eq!(beats(&good, Some(Errors { p90: 0.19, ..plain }), Some(&wanted)), Some(false));
        assert_eq!(beats(&good, Some(Errors { p90: 0.19, ..plain }), None), Some(true));
        assert_eq!(beats(&good, None, Some(&wanted)), None);
    }

    /// Three quarters of a law's rows predict the rest, and plain interpolation of the same rows stands beside.
    #[test]
    fn a_split_is_judged_beside_plain_interpolation() {
        let key = Key { kernel_source: "a_kernel".to_owned(), dtype: "bfloat16".to_owned(), ..Key::default() };
        let mut rows = Rows::default();
        for (m, n) in (0..12).flat_map(|m| (6..14).map(move |n| (1_u64 << m, 1_u64 << n))) {
            let shape = Shape::of(&[(Dim::M, m), (Dim::N, n), (Dim::K, 4096)]);
            rows.push(&key, shape, 5000.0 + (m * n) as f64 * 0.1 + n as f64 * 4.0);
        }
        let (device, framework, op) = ("NVIDIA H100 80GB HBM3".to_owned(), "vllm".to_owned(), "gemm".to_owned());
        let measured = Measured { device, framework, op, rows, skewed: surfaces::Skewed::default() };
        let mut tables = BTreeMap::new();
        try_split(&measured, 3, &mut tables).unwrap();
        let tried = tables.get(&("h100".to_owned(), "vllm".to_owned(), "gemm".to_owned())).unwrap();
        let judged = (0..96).filter(|row| is_judged(3, *row)).count();
        assert_eq!((tried.logarithms.len(), tried.plain.len(), tried.missing), (judged, judged, 0));
        assert_eq!(beats(&errors(&tried.logarithms), of_plain(tried), None), Some(true));
    }
}
