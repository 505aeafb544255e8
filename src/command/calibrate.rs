//! `kvtoll calibrate`: measured operations to efficiency surfaces.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::surface;
use rayon::prelude::*;

use super::{Exit, format_of, print, talk, write_file};
use crate::ingest;
use crate::scenario::load_machine;
use crate::surfaces::{self, Calibrated, Measured, Origin};

/// Arguments of `kvtoll calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files of measured operations, of any format that has them, or globs
    #[arg(required = true, value_name = "OP_TIMINGS")]
    pub files: Vec<String>,
    /// The folder that the surfaces are written into, a file per device, framework and operation; made if missing
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,
    /// The machine whose rates efficiencies relate to, and above whose bandwidth no row is believed; by the name of the
    /// device if not given
    #[arg(long, value_name = "MACHINE")]
    pub machine: Option<String>,
    /// Who measured, and where it was published
    #[arg(long, value_name = "TEXT", default_value = "not said")]
    pub origin: String,
    /// Licence of the measurements
    #[arg(long, value_name = "TEXT", default_value = "not said")]
    pub licence: String,
    /// Write the table of errors to a file, by its name as csv, tsv, ndjson, json, md or parquet
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// A surface that was written.
struct Written {
    name: String,
    /// Rows of tables of uneven batches that say how far those are from even ones, and rows that do not.
    uneven: [usize; 2],
    nominal: bool,
    calibrated: Calibrated,
}

/// Runs `kvtoll calibrate`.
pub fn run(args: &Args) -> Result<Exit> {
    let paths = ingest::expand(&args.files)?;
    let machine = args.machine.as_deref().map(load_machine).transpose()?;
    let origin = Origin { origin: args.origin.clone(), licence: args.licence.clone() };
    std::fs::create_dir_all(&args.into)
        .map_err(|error| Error::run(format!("cannot make the folder `{}`: {error}", args.into.display())))?;
    let bar = talk::bar(None);
    bar.set_message(format!("reading {} files", paths.len()));
    let files = paths.par_iter().map(|path| surfaces::read(path)).collect::<Result<Vec<_>>>()?;
    let all: Vec<Measured> =
        surfaces::together(files).into_iter().filter(|measured| !measured.rows.is_empty()).collect();
    bar.set_message(format!("fitting {} surfaces", all.len()));
    let written = all
        .into_par_iter()
        .map(|measured| {
            let written = calibrate(measured, machine.as_ref(), &origin)?;
            let path = args.into.join(format!("{}.parquet", written.name));
            write_file(&path, &surfaces::encode(&written.calibrated)?)?;
            Ok(written)
        })
        .collect::<Result<Vec<_>>>();
    bar.finish_and_clear();
    let written = written?;
    print(&[table(&written)?], format_of("auto", args.output.as_deref())?, Some(0), args.output.as_deref())?;
    tell(&written);
    Ok(Exit::Done)
}

fn calibrate(measured: Measured, machine: Option<&Machine>, origin: &Origin) -> Result<Written> {
    let device = surfaces::device(&measured.device, machine)?;
    let name = surfaces::name(&device.name, &measured.framework, &measured.op);
    let fitted = surface::fit(&measured.op, &measured.rows, device.peaks).map_err(|error| error.context(&name))?;
    let uneven = measured.skewed.matched();
    let calibrated = Calibrated {
        device: measured.device,
        framework: measured.framework,
        surface: Arc::new(fitted.surface.with_uneven(surface::uneven(&uneven.rows))),
        origin: origin.clone(),
        rows: fitted.rows,
        impossible: fitted.impossible,
        errors: fitted.errors,
    };
    Ok(Written { name, uneven: [uneven.used, uneven.rejected], nominal: !device.peaks.known(), calibrated })
}

fn table(written: &[Written]) -> Result<RecordBatch> {
    let counts = |of: &dyn Fn(&Written) -> usize| -> ArrayRef {
        Arc::new(written.iter().map(|one| Some(of(one) as u64)).collect::<UInt64Array>())
    };
    let ratios = |of: &dyn Fn(&Written) -> f64| -> ArrayRef {
        Arc::new(written.iter().map(|one| Some(of(one))).collect::<Float64Array>())
    };
    let names: StringArray = written.iter().map(|one| Some(one.name.as_str())).collect();
    Ok(RecordBatch::try_from_iter([
        ("surface", Arc::new(names) as ArrayRef),
        ("rows", counts(&|one| one.calibrated.rows)),
        ("impossible_rows", counts(&|one| one.calibrated.impossible)),
        ("uneven_rows", counts(&|one| one.uneven.iter().sum())),
        ("uneven_rejected_rows", counts(&|one| one.uneven[1])),
        ("tried_rows", counts(&|one| one.calibrated.errors.rows)),
        ("median_error_ratio", ratios(&|one| one.calibrated.errors.median)),
        ("p90_error_ratio", ratios(&|one| one.calibrated.errors.p90)),
        ("p99_error_ratio", ratios(&|one| one.calibrated.errors.p99)),
        ("bias_ratio", ratios(&|one| one.calibrated.errors.bias)),
    ])?)
}

/// Says what the table does not.
fn tell(written: &[Written]) {
    let impossible: usize = written.iter().map(|one| one.calibrated.impossible).sum();
    let [uneven, rejected] = [0, 1].map(|at| written.iter().map(|one| one.uneven[at]).sum::<usize>());
    let nominal: Vec<&str> =
        written.iter().filter(|one| one.nominal).map(|one| one.calibrated.device.as_str()).collect();
    talk::note("errors are those of rows that were predicted from all others");
    talk::note(&format!("{impossible} rows were dropped: above the peak bandwidth of memory, the cache allowed for"));
    if uneven + rejected > 0 {
        talk::note(&format!(
            "{} rows are of tables of uneven batches: {uneven} say how far such batches are from even ones, {rejected} are \
             of tables that are switched off or lack the even batches beside",
            uneven + rejected
        ));
    }
    if let Some(device) = nominal.first() {
        talk::warn(&format!(
            "no rates are known for `{device}`: efficiencies relate to nominal ones and no row was checked against them; \
             give `--machine`"
        ));
    }
}

#[cfg(test)]
mod tests;
