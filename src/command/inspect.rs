//! `kvtoll inspect`: what a file is and holds, without writing anything.

use std::fmt::Write as _;

use engine::error::{Error, Result};

use super::ingest::Unit;
use super::{Exit, say};
use crate::ingest::{Examination, Options, Sniff, examine, format};

/// Arguments of `kvtoll inspect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file, a recording (folder), or `-` for standard input
    pub file: String,
    /// Read it in this format; sniffed if not given
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<String>,
    /// Unit of the file's instants, if what the format or the data say is wrong
    #[arg(long, value_name = "UNIT")]
    pub time_unit: Option<Unit>,
    /// Tokens per block of the file, if what the format or the data say is wrong
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub block_tokens: Option<u32>,
    /// How many bad rows are shown
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max_errors: usize,
}

/// Runs `kvtoll inspect`.
pub fn run(args: &Args) -> Result<Exit> {
    if let Some(name) = &args.format {
        format(name)?;
    }
    let options = Options {
        format: args.format.clone(),
        max_errors: args.max_errors,
        time_unit: args.time_unit.map(Into::into),
        block_tokens: args.block_tokens,
        ..Options::standard()
    };
    let found = examine(&args.file, &options)?;
    say(&describe(&found, args.format.is_some())?)?;
    match found.rows_rejected {
        0 => Ok(Exit::Done),
        rows => {
            let bad = if rows == 1 { "a bad one".to_owned() } else { format!("{rows} bad ones") };
            Err(Error::data(format!("expected only good rows in `{}`, found {bad}", found.path))
                .hint("`kvtoll ingest --on-bad-row quarantine` keeps the good rows"))
        }
    }
}

/// What was found, a line each.
fn describe(found: &Examination, forced: bool) -> Result<String> {
    let mut text = format!("{}\n", found.path);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<13} {value}");
    };
    let unverified = if format(found.format)?.verified { "" } else { "; unverified: no real sample was at hand" };
    line("format", &format!("{} ({}{unverified})", found.format, confidence(found, forced)));
    for (name, verdict) in &found.verdicts {
        if let Sniff::Nearly(why) = verdict {
            line("not quite", &format!("{name}: {why}"));
        }
    }
    line("compression", found.compression);
    line("bytes", &found.file_bytes.to_string());
    line("sha256", &found.sha256);
    line("rows", &format!("{}, {} good, {} bad", found.rows_in, found.rows_out, found.rows_rejected));
    for (table, rows) in &found.tables {
        line("would become", &format!("{rows} rows of `{table}`"));
    }
    let settings = &found.settings;
    let block = settings.block_tokens.map(|tokens| tokens.to_string());
    for (name, value) in [
        ("time unit", settings.time_unit),
        ("clock", settings.clock),
        ("block tokens", block.as_deref()),
        ("rounding", settings.rounding),
        ("hash scope", settings.hash_scope),
        ("id kind", settings.id_kind),
    ] {
        line(name, value.unwrap_or("none"));
    }
    line("settings by", settings.origin.name());
    for entry in &found.log {
        let place = entry.first_line.map_or_else(String::new, |line| format!(", first in line {line}"));
        let times = if entry.count == 1 { "once".to_owned() } else { format!("{} times", entry.count) };
        line(entry.severity.name(), &format!("{} ({times}{place})", entry.message));
    }
    if !found.problems.is_empty() {
        let _ = writeln!(text, "\n{}", found.problems.join("\n"));
    }
    Ok(text)
}

/// How sure the format is.
fn confidence(found: &Examination, forced: bool) -> &'static str {
    let fits = found.verdicts.iter().filter(|(_, verdict)| *verdict == Sniff::Yes).count();
    let this = found.verdicts.iter().any(|(name, verdict)| *name == found.format && *verdict == Sniff::Yes);
    match (forced, this, fits) {
        (false, _, _) => "certain: the only format that fits",
        (true, true, 1) => "as `--format` says, and it is the only one that fits",
        (true, true, _) => "as `--format` says; others fit too",
        (true, false, _) => "as `--format` says, though the first bytes do not look like it",
    }
}
