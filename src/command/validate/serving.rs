//! `kvtoll validate serving`: replays beside what real engines measured.
//!
//! Two kinds of runs are read. A folder that LLMServingSim's benchmark wrote (`meta.json`, `requests.jsonl`,
//! `timeseries.csv`) is one run of one engine, request by request ([`run`]). A CSV file with a row per closed-loop run
//! (`isl`, `osl`, `batch_size`, ..., `silicon_ttft_ms`, `silicon_tpot_ms`) is replayed row by row as closed loops
//! ([`rows`]). Each figure is shown with what was measured, what the replay says, and the error.

mod rows;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use engine::error::{Error, Result};
use rayon::prelude::*;

use crate::command::{Exit, format_of, print, share, talk};

/// Arguments of `kvtoll validate serving`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of LLMServingSim runs, or CSV files with a row per closed-loop run
    #[arg(required = true, value_name = "RUNS")]
    pub runs: Vec<PathBuf>,
    /// The machine of folders that do not name theirs, or variations of it
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<String>,
    /// The model of folders, in place of the one that they name
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The requests that folders were run with, for the prompts' prefixes; looked for beside the folder if not given
    #[arg(long, value_name = "FILE")]
    pub dataset: Option<PathBuf>,
    /// The engine's rules, in place of those of the engine that the runs name
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// A folder of surfaces, as `kvtoll calibrate` writes it, in place of the shipped ones
    #[arg(long, value_name = "DIR")]
    pub surfaces: Option<PathBuf>,
    /// Draw the lengths of a CSV's requests evenly from this share of those that it lists up to all of it: InferenceX draws
    /// from 80%; `100%` has all alike
    #[arg(long, value_name = "SHARE", default_value = "80%", value_parser = |text: &str| share(text, "80%"))]
    pub lengths_from: f64,
    /// Add to a CSV's times to the first token what the rows of other models under the same engine ask for, and print it
    #[arg(long)]
    pub fit: bool,
    /// Write what each row or request came to, as csv, tsv, ndjson, json, md or parquet
    #[arg(long, value_name = "PATH")]
    pub details: Option<PathBuf>,
    /// Write the table to a file, by its name as csv, tsv, ndjson, json, md or parquet
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// A line of the table of errors.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    /// Which runs.
    of: String,
    /// Which figure.
    figure: String,
    /// Its unit.
    unit: &'static str,
    /// How many runs or requests it is over.
    count: u64,
    /// What was measured; `None` where the figure is itself an error.
    measured: Option<f64>,
    /// What the replay says.
    replayed: Option<f64>,
    /// Relative error, or the figure that is an error itself; `None` where it cannot be known.
    error: Option<f64>,
}

impl Line {
    /// Of a figure that is an error itself, over so many.
    fn of_error(of: &str, figure: String, count: usize, error: Option<f64>) -> Self {
        let (of, count) = (of.to_owned(), count as u64);
        Self { of, figure, unit: "ratio", count, measured: None, replayed: None, error }
    }
}

/// Runs `kvtoll validate serving`.
pub fn run(args: &Args) -> Result<Exit> {
    let bar = talk::bar(None);
    bar.set_message(format!("replaying {} runs", args.runs.len()));
    let done: Vec<Result<(Vec<Line>, Vec<RecordBatch>)>> = args.runs.par_iter().map(|path| one(args, path)).collect();
    bar.finish_and_clear();
    let (mut lines, mut details) = (Vec::new(), Vec::new());
    for done in done {
        let (found, more) = done?;
        lines.extend(found);
        details.extend(more);
    }
    if let Some(path) = &args.details {
        if details.windows(2).any(|pair| pair[0].schema() != pair[1].schema()) {
            return Err(Error::usage("expected runs of one kind for `--details`, found folders and CSV files"));
        }
        print(&details, format_of("auto", Some(path))?, Some(0), Some(path))?;
    }
    print(&[table(&lines)?], format_of("auto", args.output.as_deref())?, Some(0), args.output.as_deref())
}

fn one(args: &Args, path: &Path) -> Result<(Vec<Line>, Vec<RecordBatch>)> {
    let done = if path.is_dir() { run::validate(args, path) } else { rows::validate(args, path) };
    done.map_err(|error| error.context(format!("`{}`", path.display())))
}

fn table(lines: &[Line]) -> Result<RecordBatch> {
    let texts = |of: fn(&Line) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(lines.iter().map(|line| of(line).to_owned())))
    };
    let numbers =
        |of: fn(&Line) -> Option<f64>| -> ArrayRef { Arc::new(lines.iter().map(of).collect::<Float64Array>()) };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("runs", texts(|line| &line.of), false),
        ("figure", texts(|line| &line.figure), false),
        ("unit", texts(|line| line.unit), false),
        ("count", Arc::new(UInt64Array::from_iter_values(lines.iter().map(|line| line.count))) as ArrayRef, false),
        ("measured", numbers(|line| line.measured), true),
        ("replayed", numbers(|line| line.replayed), true),
        ("error_ratio", numbers(|line| line.error), true),
    ])?)
}

/// The value that half of these do not exceed; of an even number the mean of the two in the middle.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The preset that a path or id of a Hugging Face model means: its last part in lower case, without what says that it was
/// tuned.
fn model_preset(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path).to_lowercase();
    let name = name.trim_end_matches("-2507");
    name.trim_end_matches("-instruct").trim_end_matches("-thinking").to_owned()
}

#[cfg(test)]
mod tests;
