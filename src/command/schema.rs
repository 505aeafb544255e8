//! `kvtoll schema`: the tables and their columns.

use std::fmt::Write as _;

use engine::error::Result;
use engine::schema::{self, Scope, Table};

use super::{Exit, say};

/// Arguments of `kvtoll schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The table; all tables if not given
    pub table: Option<String>,
}

/// Runs `kvtoll schema`.
pub fn run(args: &Args) -> Result<Exit> {
    match &args.table {
        Some(name) => say(&columns(schema::table(name)?)),
        None => say(&tables()),
    }
}

fn tables() -> String {
    let mut text = String::new();
    for (scope, title) in [(Scope::Store, "Ingested"), (Scope::Run, "Of a run")] {
        let _ = writeln!(text, "{title}:");
        for table in schema::ALL.iter().filter(|table| table.scope == scope) {
            let _ = writeln!(text, "  {:<16} one row is {}", table.name, table.doc);
        }
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
