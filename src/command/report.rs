//! `kvtoll report`: one HTML file for a run, and the same figures as JSON beside it.

use std::path::{Path, PathBuf};

use engine::error::{Error, Result};

use super::{Exit, talk, write_file};
use crate::store::Store;
use crate::{report, sql};

/// Arguments of `kvtoll report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
    /// The run to show; the latest if not given
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// The HTML file; the JSON goes beside it
    #[arg(short, long, value_name = "PATH", default_value = "report.html")]
    pub output: PathBuf,
}

/// Runs `kvtoll report`.
pub fn run(args: &Args) -> Result<Exit> {
    let store = Store::open(&args.store)?;
    let session = sql::session(&store, args.run.as_deref())?;
    if session.run().is_none() {
        return Err(Error::run(format!("expected a run to report on, found none in `{}`", args.store.display()))
            .hint("replay a trace first: `kvtoll replay STORE --model M --machine X`"));
    }
    let command = session.run().map_or(String::new(), |run| format!("kvtoll report STORE --run {run}"));
    write(&session, &command, &args.output)?;
    Ok(Exit::Done)
}

/// Renders the session's run and writes both files; `command` is what makes them again.
pub(crate) fn write(session: &sql::Session, command: &str, output: &Path) -> Result<()> {
    let json = output.with_extension("json");
    if json == output {
        return Err(Error::usage(format!("expected an HTML file for the page, found `{}`", output.display()))
            .hint("the JSON goes beside the page, under the same name with `.json`"));
    }
    let rendered = report::render(session, report::Options { title: "kvtoll report", command })?;
    write_file(output, rendered.html.as_bytes())?;
    write_file(&json, rendered.json.as_bytes())?;
    talk::note(&format!("wrote {} and {}", output.display(), json.display()));
    Ok(())
}
