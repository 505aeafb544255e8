//! The tables and views of a session. A statement needs few of them, so each is made when it is first named: the files of a
//! table are looked at, the SQL of a view is planned. What is damaged therefore stops the statements that read it, and no
//! others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Debug, Formatter};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::datasource::{MemTable, ViewTable};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;
use datafusion::prelude::SessionContext;
use engine::error::{Error, Result};
use engine::schema;

use super::functions::through;
use super::named::Named;
use super::{Session, diagnostic};
use crate::store::{damaged, damaged_column, damaged_in};
use crate::unbroken::unbroken;

/// The tables of a schema of the session, and where their files are.
pub(super) struct Catalog {
    /// What comes before a table's name in messages: `base.`, or nothing.
    prefix: &'static str,
    tables: BTreeMap<&'static str, Files>,
    views: Vec<Named>,
    made: Mutex<HashMap<String, Arc<dyn TableProvider>>>,
    /// The session's state; it holds this catalog, which therefore does not hold it.
    state: Box<dyn Fn() -> Option<SessionState> + Send + Sync>,
}

impl Debug for Catalog {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Catalog").field("tables", &self.tables.keys()).finish_non_exhaustive()
    }
}

/// A table of the schema and its files.
type Files = (&'static schema::Table, Vec<PathBuf>);

impl Catalog {
    /// The catalog of a session: these tables, and views over them.
    pub(super) fn new(context: &SessionContext, prefix: &'static str, tables: Vec<Files>, views: Vec<Named>) -> Self {
        let state = context.state_weak_ref();
        Self {
            prefix,
            tables: tables.into_iter().map(|of| (of.0.name, of)).collect(),
            views,
            made: Mutex::default(),
            state: Box::new(move || state.upgrade().map(|state| state.read().clone())),
        }
    }

    async fn make(&self, name: &str) -> std::result::Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let state = (self.state)().ok_or_else(|| DataFusionError::Execution("the session has ended".to_owned()))?;
        if let Some((table, files)) = self.tables.get(name) {
            let made = table_of(&state, table, files).await;
            return made.map(Some).map_err(|error| through(error.context(format!("table `{}{name}`", self.prefix))));
        }
        let Some(view) = self.views.iter().find(|view| view.name == name) else { return Ok(None) };
        let made = view_of(&state, view).await;
        let explained = |error| through(diagnostic::explain(view.sql, &error).context(format!("view `{name}`")));
        made.map(Some).map_err(explained)
    }
}

#[async_trait]
impl SchemaProvider for Catalog {
    fn table_names(&self) -> Vec<String> {
        let tables = self.tables.keys().map(|name| (*name).to_owned());
        tables.chain(self.views.iter().map(|view| view.name.to_owned())).collect()
    }

    async fn table(&self, name: &str) -> std::result::Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        let known = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = known().get(name) {
            return Ok(Some(Arc::clone(made)));
        }
        let made = self.make(name).await?;
        if let Some(made) = &made {
            known().insert(name.to_owned(), Arc::clone(made));
        }
        Ok(made)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.contains_key(name) || self.views.iter().any(|view| view.name == name)
    }
}

/// A view, planned as `CREATE VIEW` would plan it.
async fn view_of(state: &SessionState, view: &Named) -> std::result::Result<Arc<dyn TableProvider>, DataFusionError> {
    let plan = state.create_logical_plan(view.sql).await?;
    let plan = TypeCoercion::new().analyze(plan, state.config_options())?;
    Ok(Arc::new(ViewTable::new(plan, Some(view.sql.to_owned()))))
}

/// A table over its files.
async fn table_of(state: &SessionState, table: &schema::Table, files: &[PathBuf]) -> Result<Arc<dyn TableProvider>> {
    let canonical = table.arrow();
    let failed = |error: DataFusionError| Error::data(error.strip_backtrace());
    if files.is_empty() {
        return Ok(Arc::new(MemTable::try_new(canonical, vec![vec![]]).map_err(failed)?));
    }
    let urls: Result<Vec<ListingTableUrl>> = files.iter().map(|path| url(path)).collect();
    let urls = urls?;
    // Text has the type of the schema, whether a table has files or not.
    let format = ParquetFormat::default().with_force_view_types(false);
    let options = ListingOptions::new(Arc::new(format));
    let mut found = Vec::new();
    for (file, url) in files.iter().zip(&urls) {
        let broken = |why: String| damaged(file, &why);
        // DataFusion passes over files without a byte.
        if std::fs::metadata(file).is_ok_and(|found| found.len() == 0) {
            return Err(broken("expected a Parquet file, found an empty one".to_owned()));
        }
        let inferred = unbroken_when_polled(options.infer_schema(state, url)).await;
        found.push(inferred.map_err(broken)?.map_err(|error| broken(error.strip_backtrace()))?);
    }
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(merge(&canonical, &found));
    Ok(Arc::new(ListingTable::try_new(config).map_err(failed)?))
}

/// As [`unbroken`], of what is waited for.
async fn unbroken_when_polled<T>(read: impl Future<Output = T>) -> std::result::Result<T, String> {
    let mut read = pin!(read);
    poll_fn(|context| match unbroken(|| read.as_mut().poll(context)) {
        Ok(polled) => polled.map(Ok),
        Err(why) => Poll::Ready(Err(why)),
    })
    .await
}

/// The canonical columns, then the extra columns of the files. A type that only a file knows, such as the width of a
/// vector, is taken from the file; documentation comes from the schema.
pub(super) fn merge(canonical: &Schema, found: &[SchemaRef]) -> SchemaRef {
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

/// The file that an error of the Parquet reader comes from, with its column: the engine says neither.
pub(super) fn damage(session: &Session, plan: &LogicalPlan, error: &DataFusionError) -> Option<Error> {
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
