//! SQL over a store: every table of the schema under its name, views, functions, and the named queries.
//!
//! A session sees the ingested tables and the tables of one run, and in the schema `base` the figures of another run: the one
//! before it, or the one that it is compared with. A table without files is there too, empty and with its
//! canonical columns, so that a query resolves on any store. Only reading statements are allowed; a value from outside
//! enters a statement as a bound parameter, never as text.

mod arithmetic;
mod catalog;
mod diagnostic;
mod functions;
mod named;
mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{SessionConfig, SessionContext};
use engine::error::{Error, Result, unknown};
use engine::schema::{self, Scope};
use tokio::runtime::{Builder, Runtime};

use self::catalog::{Catalog, damage};
use self::functions::Replays;
use crate::store::Store;
pub use functions::{FUNCTIONS, Function, Replayer, Wish};
pub use named::{Documented, Kind, Named, Param, find, named, views};
pub use script::{Script, Statement, script};

/// A store opened for SQL.
pub struct Session {
    context: SessionContext,
    runtime: Runtime,
    run: Option<String>,
    /// The files of each table, by the name that it is registered under.
    files: BTreeMap<String, Vec<PathBuf>>,
}

impl Session {
    /// The run whose tables are visible, if the store has one.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }
}

/// Tables that the schema `base` holds.
pub const OF_BASE: [&str; 2] = ["scenarios", "metrics"];

/// Opens a store for SQL with the tables of `run`, or of the latest run; `base` is the run before it.
///
/// # Errors
/// A run that the store does not have. A Parquet file that cannot be read is an error of the statements that name its table.
pub fn session(store: &Store, run: Option<&str>) -> Result<Session> {
    beside_the_one_before(store, run, None)
}

/// As [`session`], with the function `replay`, which the replayer carries out.
///
/// # Errors
/// As [`session`].
pub fn session_that_replays(store: &Store, run: Option<&str>, replayer: Replayer) -> Result<Session> {
    beside_the_one_before(store, run, Some(Replays { store: store.root().to_owned(), replayer }))
}

fn beside_the_one_before(store: &Store, run: Option<&str>, replays: Option<Replays>) -> Result<Session> {
    let runs = store.runs();
    let run = chosen(store, run)?;
    let before = runs.iter().position(|entry| Some(&entry.id) == run.as_ref()).and_then(|at| at.checked_sub(1));
    let base = before.map(|at| runs[at].id.clone());
    at(store, run.as_ref(), (store, base.as_ref()), replays)
}

/// Opens a store for SQL beside a run of the same or another store, whose figures are in the schema `base`.
///
/// # Errors
/// As [`session`].
pub fn session_beside(store: &Store, run: Option<&str>, base: (&Store, Option<&str>)) -> Result<Session> {
    at(store, chosen(store, run)?.as_ref(), (base.0, chosen(base.0, base.1)?.as_ref()), None)
}

/// The run of this id, or of the only id that begins so; the latest where none is named.
fn chosen(store: &Store, run: Option<&str>) -> Result<Option<String>> {
    let runs = store.runs();
    let Some(name) = run else { return Ok(runs.last().map(|entry| entry.id.clone())) };
    let begins: Vec<&str> = runs.iter().map(|entry| entry.id.as_str()).filter(|id| id.starts_with(name)).collect();
    match begins.as_slice() {
        [one] if name.len() >= SHORTEST_ID => Ok(Some((*one).to_owned())),
        _ if begins.contains(&name) => Ok(Some(name.to_owned())),
        _ => Err(unknown("run", name, runs.iter().map(|entry| entry.id.as_str()))),
    }
}

/// The fewest characters that stand for a run.
const SHORTEST_ID: usize = 4;

fn at(
    store: &Store,
    run: Option<&String>,
    (base_store, base): (&Store, Option<&String>),
    replays: Option<Replays>,
) -> Result<Session> {
    let files = |place: Place, table: &schema::Table| match (place, table.scope) {
        (Place::Shown, Scope::Store) => store.files(table.name),
        (Place::Shown, Scope::Run) => run.map_or_else(Vec::new, |run| store.run_files(run, table.name)),
        (Place::Base, _) => base.map_or_else(Vec::new, |run| base_store.run_files(run, table.name)),
    };
    open(run.cloned(), replays, files)
}

/// A session on a store that holds nothing.
fn empty() -> Result<Session> {
    open(None, None, |_, _| Vec::new())
}

/// Where a table stands in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Under its own name.
    Shown,
    /// In the schema `base`.
    Base,
}

/// A session over the files that `files` names for each table.
fn open(
    run: Option<String>,
    replays: Option<Replays>,
    files: impl Fn(Place, &schema::Table) -> Vec<PathBuf>,
) -> Result<Session> {
    let runtime = Builder::new_current_thread().build().map_err(|error| Error::run(error.to_string()))?;
    let mut config = SessionConfig::new()
        // One partition: rows arrive in file order, so that sums of floats have one order and equal inputs give equal
        // bytes. The tables of a run are small; the price is paid only on large recordings.
        .with_target_partitions(1)
        .with_information_schema(true);
    config.options_mut().sql_parser.collect_spans = true;
    // The third pass over a plan finds nothing more in the queries here, and planning is most of their time.
    config.options_mut().optimizer.max_passes = 2;
    // Text that a statement makes has the type of the schema too.
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let mut context = SessionContext::new_with_config(config);
    let counts = Arc::new(arithmetic::Counts);
    context.register_expr_planner(counts).map_err(|error| Error::run(error.strip_backtrace()))?;
    let of = |place: Place, table: &'static schema::Table| (table, files(place, table));
    let shown: Vec<_> = schema::ALL.iter().map(|table| of(Place::Shown, table)).collect();
    let base: Result<Vec<_>> = OF_BASE.iter().map(|name| Ok(of(Place::Base, schema::table(name)?))).collect();
    let base = base?;
    let named = |prefix: &str, tables: &[(&schema::Table, Vec<PathBuf>)]| -> Vec<(String, Vec<PathBuf>)> {
        tables.iter().map(|(table, files)| (format!("{prefix}{}", table.name), files.clone())).collect()
    };
    let all = named("", &shown).into_iter().chain(named("base.", &base)).collect();
    let failed = || Error::run("the SQL engine has no place for tables");
    let place = context.catalog("datafusion").ok_or_else(failed)?;
    for (name, catalog) in [
        ("public", Catalog::new(&context, "", shown, views()?)),
        ("base", Catalog::new(&context, "base.", base, Vec::new())),
    ] {
        place.register_schema(name, Arc::new(catalog)).map_err(|_| failed())?;
    }
    let session = Session { context, runtime, run, files: all };
    functions::register(&session, replays)?;
    Ok(session)
}

/// Runs one reading statement: SELECT, WITH, EXPLAIN, SHOW or DESCRIBE.
///
/// `params` are bound to `$name`. A named query declares its parameters in its header, with types and defaults;
/// elsewhere a value that reads as a number is a number. The result has at least one batch, which may have no rows.
///
/// # Errors
/// Wrong SQL, with the place and a suggestion where they are known; a statement that writes; a parameter that
/// is unknown, missing or of the wrong type; data that cannot be read.
pub fn query(session: &Session, sql: &str, params: &[(String, String)]) -> Result<Vec<RecordBatch>> {
    // A statement of a longer text stands behind blanks, see `Statement::placed`.
    let length = sql.trim_start().len();
    if length > MOST_SQL {
        return Err(Error::usage(format!("expected SQL of up to {MOST_SQL} bytes, found {length}"))
            .hint("put long lists into a table, or ask in parts"));
    }
    // Planning recurses once per term of a long expression; a thread of its own has the stack for it.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let work = thread
            .spawn_scoped(scope, || collect(session, sql, params))
            .map_err(|error| Error::run(format!("cannot start a thread for the query: {error}")))?;
        work.join().unwrap_or_else(|_| Err(Error::run("the query failed inside the SQL engine")))
    })
}

/// The longest statement.
const MOST_SQL: usize = 32 << 10;

/// Stack of the thread that plans a statement; only what is used of it takes memory.
const STACK_BYTES: usize = 1 << 30;

fn collect(session: &Session, sql: &str, params: &[(String, String)]) -> Result<Vec<RecordBatch>> {
    let values = bind(sql, params)?;
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let planned = async {
        let frame = session.context.sql_with_options(sql, options).await?;
        if values.is_empty() { Ok(frame) } else { frame.with_param_values(values) }
    };
    let explained = |error: DataFusionError| diagnostic::explain(sql, &error);
    let frame = session.runtime.block_on(planned).map_err(explained)?;
    let schema: SchemaRef = Arc::new(frame.schema().as_arrow().clone());
    let plan = frame.logical_plan().clone();
    let mut batches = session
        .runtime
        .block_on(frame.collect())
        .map_err(|error| damage(session, &plan, &error).unwrap_or_else(|| explained(error)))?;
    if batches.is_empty() {
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(batches)
}

/// Runs a named query.
///
/// # Errors
/// As [`query`], and an unknown name, with the nearest known one.
pub fn run_named(session: &Session, name: &str, params: &[(String, String)]) -> Result<Vec<RecordBatch>> {
    query(session, find(name)?.sql, params)
}

/// The values of all parameters: those given, then the defaults of the header.
fn bind(sql: &str, params: &[(String, String)]) -> Result<Vec<(String, ScalarValue)>> {
    let declared = named::params(sql)?;
    let mut values = Vec::new();
    for (at, (name, text)) in params.iter().enumerate() {
        if params[..at].iter().any(|(other, _)| other == name) {
            return Err(Error::usage(format!("the parameter `{name}` is given twice")));
        }
        let value = match declared.iter().find(|param| param.name == name) {
            Some(param) => param.kind.value(name, text)?,
            None if declared.is_empty() && sql.contains(&format!("${name}")) => Kind::guess(text),
            None if declared.is_empty() => {
                return Err(Error::usage(format!("the statement has no parameter `${name}`")));
            }
            None => return Err(unknown("parameter", name, declared.iter().map(|param| param.name))),
        };
        values.push((name.clone(), value));
    }
    for param in declared {
        if !params.iter().any(|(name, _)| name == param.name) {
            values.push((param.name.to_owned(), param.kind.value(param.name, param.default)?));
        }
    }
    Ok(values)
}

/// Every table and view by name with its columns, sorted by name.
///
/// # Errors
/// A table whose schema cannot be had.
pub fn names(session: &Session) -> Result<Vec<(String, Vec<String>)>> {
    let failed = |error: DataFusionError| Error::run(error.strip_backtrace());
    let names = table_names();
    let columns = |name: &String| -> Result<Vec<String>> {
        let provider = session.runtime.block_on(session.context.table_provider(name.as_str())).map_err(failed)?;
        Ok(provider.schema().fields().iter().map(|field| field.name().clone()).collect())
    };
    names.into_iter().map(|name| columns(&name).map(|columns| (name, columns))).collect()
}

/// The names of all tables and views, sorted.
fn table_names() -> Vec<String> {
    let tables = schema::ALL.iter().map(|table| table.name.to_owned());
    let views = crate::embedded::VIEWS.iter().map(|(name, _)| (*name).to_owned());
    let mut names: Vec<String> = tables.chain(views).chain(OF_BASE.iter().map(|name| format!("base.{name}"))).collect();
    names.sort();
    names
}

/// The names of all functions, sorted.
pub fn function_names(session: &Session) -> Vec<String> {
    let state = session.context.state();
    let scalar = state.scalar_functions().keys().chain(state.aggregate_functions().keys());
    let all: BTreeSet<&String> =
        scalar.chain(state.window_functions().keys()).chain(state.table_functions().keys()).collect();
    all.into_iter().cloned().collect()
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
