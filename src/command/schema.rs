//! `kvtoll schema`: the tables and their columns.

use std::fmt::Write as _;

use engine::error::{Result, unknown};
use engine::schema::{self, Scope, Table};

use super::{Exit, say};
use crate::sql::{self, Named};

/// Arguments of `kvtoll schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The table or view; all of them if not given
    pub table: Option<String>,
}

/// Runs `kvtoll schema`.
pub fn run(args: &Args) -> Result<Exit> {
    match &args.table {
        Some(name) => say(&describe(name)?),
        None => say(&tables()?),
    }
}

/// A table or view with its columns.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub(crate) fn describe(name: &str) -> Result<String> {
    // `base.metrics` has the columns of `metrics`.
    let bare = name.strip_prefix("base.").unwrap_or(name);
    if let Some(table) = schema::ALL.iter().find(|table| table.name == bare) {
        return Ok(columns(table));
    }
    let views = sql::views()?;
    match views.iter().find(|view| view.name == name) {
        Some(view) => Ok(view_columns(view)),
        None => Err(unknown("table", name, names(&views))),
    }
}

fn names(views: &[Named]) -> impl Iterator<Item = &'static str> {
    schema::ALL.iter().map(|table| table.name).chain(views.iter().map(|view| view.name))
}

/// All tables and views, one line each.
pub(crate) fn tables() -> Result<String> {
    let mut text = String::new();
    for (scope, title) in [(Scope::Store, "Ingested"), (Scope::Run, "Of a run")] {
        let _ = writeln!(text, "{title}:");
        for table in schema::ALL.iter().filter(|table| table.scope == scope) {
            let _ = writeln!(text, "  {:<16} one row is {}", table.name, table.doc);
        }
    }
    text.push_str("Views:\n");
    for view in sql::views()? {
        let _ = writeln!(text, "  {:<16} {}", view.name, view.question);
    }
    let _ =
        writeln!(text, "Of the run before, or the one that is compared with: base.{}", sql::OF_BASE.join(", base."));
    Ok(text)
}

/// A view with its columns, one line each.
pub(crate) fn view_columns(view: &Named) -> String {
    let mut text = format!("view {}: {}\n", view.name, view.question);
    let width = view.columns.iter().map(|column| column.name.len()).max().unwrap_or(0);
    for column in &view.columns {
        let _ = writeln!(text, "  {:<width$}  {}", column.name, column.doc);
    }
    text
}

/// A table with its columns, one line each.
pub(crate) fn columns(table: &Table) -> String {
    let mut text = format!("{}: one row is {}\n", table.name, table.doc);
    let width = table.columns.iter().map(|column| column.name.len()).max().unwrap_or(0);
    for column in table.columns {
        let kind = match column.kind {
            schema::Type::Vector => "FixedSizeList(f32, head width)".to_owned(),
            kind => kind.arrow().to_string(),
        };
        let null = if column.nullable { "?" } else { "" };
        let _ = writeln!(text, "  {:<width$}  {:<20}  {}", column.name, format!("{kind}{null}"), column.doc);
    }
    text
}
