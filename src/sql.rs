//! SQL over a store: every table of the schema under its name, views, functions, and the named queries.
//!
//! A session sees the ingested tables and the tables of one run, and in the schema `base` the figures of another run: the one
//! before it, or the one that it is compared with. A table without files is there too, empty and with its
//! canonical columns, so that a query resolves on any store. Only reading statements are allowed; a value from outside
//! enters a statement as a bound parameter, never as text.

mod diagnostic;
mod functions;
mod named;
mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::catalog::MemorySchemaProvider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::datasource::MemTable;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use engine::error::{Error, Result, unknown};
use engine::schema::{self, Scope};
use tokio::runtime::{Builder, Runtime};

use self::functions::Replays;
use crate::store::{Store, damaged, damaged_column, damaged_in};
use crate::unbroken::unbroken;
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
/// A run that the store does not have; a Parquet file that cannot be read.
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
    // Text that a statement makes has the type of the schema too.
    config.options_mut().sql_parser.map_string_types_to_utf8view = false;
    let context = SessionContext::new_with_config(config);
    let mut session = Session { context, runtime, run, files: BTreeMap::new() };
    for table in schema::ALL {
        register(&mut session, table.name, table, files(Place::Shown, table))?;
    }
    add_schema(&session, "base")?;
    for name in OF_BASE {
        let table = schema::table(name)?;
        register(&mut session, &format!("base.{name}"), table, files(Place::Base, table))?;
    }
    functions::register(&session, replays)?;
    for view in views()? {
        let create = format!("CREATE VIEW {} AS\n{}", view.name, view.sql);
        let made = session.runtime.block_on(session.context.sql(&create));
        made.map_err(|error| diagnostic::explain(&create, &error).context(format!("view `{}`", view.name)))?;
    }
    Ok(session)
}

/// Makes an empty schema beside the one that holds the tables.
fn add_schema(session: &Session, name: &str) -> Result<()> {
    let failed = || Error::run(format!("the SQL engine has no place for the schema `{name}`"));
    let catalog = session.context.catalog("datafusion").ok_or_else(failed)?;
    catalog.register_schema(name, Arc::new(MemorySchemaProvider::new())).map_err(|_| failed())?;
    Ok(())
}

/// Registers the files of a table under a name.
fn register(session: &mut Session, name: &str, table: &schema::Table, files: Vec<PathBuf>) -> Result<()> {
    let canonical = table.arrow();
    let failed = |error: DataFusionError| Error::data(error.strip_backtrace()).context(format!("table `{name}`"));
    if files.is_empty() {
        let empty = MemTable::try_new(canonical, vec![vec![]]).map_err(failed)?;
        session.context.register_table(name, Arc::new(empty)).map_err(failed)?;
        return Ok(());
    }
    let urls: Result<Vec<ListingTableUrl>> = files.iter().map(|path| url(path)).collect();
    let urls = urls?;
    // Text has the type of the schema, whether a table has files or not.
    let format = ParquetFormat::default().with_force_view_types(false);
    let options = ListingOptions::new(Arc::new(format));
    let state = session.context.state();
    let mut found = Vec::new();
    for (file, url) in files.iter().zip(&urls) {
        let broken = |why: String| damaged(file, &why).context(format!("table `{name}`"));
        // DataFusion passes over files without a byte.
        if std::fs::metadata(file).is_ok_and(|found| found.len() == 0) {
            return Err(broken("expected a Parquet file, found an empty one".to_owned()));
        }
        let inferred = unbroken(|| session.runtime.block_on(options.infer_schema(&state, url)));
        found.push(inferred.map_err(broken)?.map_err(|error| broken(error.strip_backtrace()))?);
    }
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(merge(&canonical, &found));
    let listing = ListingTable::try_new(config).map_err(failed)?;
    session.context.register_table(name, Arc::new(listing)).map_err(failed)?;
    session.files.insert(name.to_owned(), files);
    Ok(())
}

/// The canonical columns, then the extra columns of the files. A type that only a file knows, such as the width of a
/// vector, is taken from the file; documentation comes from the schema.
fn merge(canonical: &Schema, found: &[SchemaRef]) -> SchemaRef {
    let in_files = |name: &str| found.iter().find_map(|schema| schema.field_with_name(name).ok());
    let mut fields: Vec<FieldRef> = Vec::new();
    for field in canonical.fields() {
        let kind = in_files(field.name()).map_or(field.data_type(), |file| file.data_type());
        fields.push(Arc::new(field.as_ref().clone().with_data_type(kind.clone())));
    }
    for field in found.iter().flat_map(|schema| schema.fields()) {
        if !fields.iter().any(|known| known.name() == field.name()) {
            fields.push(Arc::new(field.as_ref().clone().with_nullable(true)));
        }
    }
    Arc::new(Schema::new(fields))
}

const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];

/// The file as a URL. Every byte that is not plain is escaped, since a path is never a pattern here.
fn url(path: &Path) -> Result<ListingTableUrl> {
    let absolute = std::path::absolute(path).map_err(|error| Error::data(error.to_string()).context(path.display()))?;
    let mut text = String::from("file://");
    for byte in absolute.to_string_lossy().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => text.push(char::from(byte)),
            _ => text.extend(['%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
    ListingTableUrl::parse(&text).map_err(|error| Error::data(error.strip_backtrace()))
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

/// The file that an error of the Parquet reader comes from, with its column: the engine says neither.
fn damage(session: &Session, plan: &LogicalPlan, error: &DataFusionError) -> Option<Error> {
    let why = error.find_root().strip_backtrace();
    if !matches!(error.find_root(), DataFusionError::ParquetError(_)) && !why.contains("Parquet") {
        return None;
    }
    let mut tables = BTreeSet::new();
    let looked = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            let name = scan.table_name.table();
            let is_base = scan.table_name.schema() == Some("base");
            tables.insert(if is_base { format!("base.{name}") } else { name.to_owned() });
        }
        Ok(TreeNodeRecursion::Continue)
    });
    looked.ok()?;
    let files = tables.iter().filter_map(|table| session.files.get(table)).flatten();
    files.into_iter().find_map(|file| Some(damaged_in(file, Some(&damaged_column(file)?), &why)))
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
