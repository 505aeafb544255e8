//! `kvtoll query`: named questions, and any in SQL.

use std::path::PathBuf;

use engine::error::{Error, Result};

use super::replay::by_sql;
use super::{Exit, Shown, print, say, talk};
use crate::sql;
use crate::store::Store;

/// Arguments of `kvtoll query`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    #[arg(required_unless_present_any = ["list", "show_sql"])]
    pub store: Option<PathBuf>,
    /// The question; see `kvtoll list queries`
    pub name: Option<String>,
    /// A parameter of the question, `name=value`
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub params: Vec<String>,
    /// Any question, in SQL
    #[arg(long, value_name = "SQL", conflicts_with = "name")]
    pub sql: Option<String>,
    /// The run to ask; the latest if not given
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
    /// List the named questions
    #[arg(long)]
    pub list: bool,
    /// Show the SQL of the named question instead of asking it
    #[arg(long)]
    pub show_sql: bool,
}

/// Runs `kvtoll query`.
pub fn run(args: &Args) -> Result<Exit> {
    if args.list {
        return super::list::queries();
    }
    if args.show_sql {
        let name = args.name.clone().or_else(|| args.store.as_ref().map(|store| store.to_string_lossy().into_owned()));
        return say(&format!("{}\n", sql::find(&name.unwrap_or_default())?.sql.trim_end()));
    }
    let format = args.shown.format()?;
    let params: Result<Vec<(String, String)>> = args.params.iter().map(|param| pair(param)).collect();
    let Some(store) = &args.store else { return Err(Error::usage("expected a store, found none")) };
    let session = sql::session_that_replays(&Store::open(store)?, args.run.as_deref(), by_sql)?;
    if session.run().is_none() {
        talk::note("the store has no run yet, so the tables of a run are empty: `kvtoll replay` makes one");
    }
    let batches = match (&args.name, &args.sql) {
        (Some(name), _) => sql::run_named(&session, name, &params?)?,
        (None, Some(sql)) => sql::query(&session, sql, &params?)?,
        (None, None) => {
            return Err(Error::usage("expected the name of a question or `--sql`, found neither")
                .hint("`kvtoll list queries` shows the named questions"));
        }
    };
    print(&batches, format, args.shown.max_rows, args.shown.output.as_deref())
}

/// A parameter as it is typed, `name=value`.
pub(super) fn pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::usage(format!("`--param`: expected `name=value`, found `{text}`"))),
    }
}
