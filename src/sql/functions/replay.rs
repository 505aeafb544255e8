//! `replay`: writes a run and gives its summary.
//!
//! Replays are the business of a command, which hands in how it is done; here is only what SQL needs: a table whose rows are
//! made when the statement runs, not when it is planned or explained.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::streaming::StreamingTable;
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use engine::error::{Error, Result};
use futures::stream;

use super::through;
use crate::sql::{empty, run_named, session};
use crate::store::Store;

/// What is to be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The policy stack.
    pub policy: String,
    /// The model.
    pub model: String,
    /// The machine.
    pub machine: String,
    /// Flags of `kvtoll replay`, with their values where they have one.
    pub flags: Vec<(String, Option<String>)>,
}

/// Replays in the store at the path and gives the run's id.
pub type Replayer = fn(&Path, &Wish) -> Result<String>;

/// The table function.
#[derive(Clone)]
pub(in crate::sql) struct Replays {
    pub(in crate::sql) store: PathBuf,
    pub(in crate::sql) replayer: Replayer,
}

impl fmt::Debug for Replays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replays").field("store", &self.store).finish_non_exhaustive()
    }
}

impl TableFunctionImpl for Replays {
    fn call_with_args(&self, args: TableFunctionArgs) -> std::result::Result<Arc<dyn TableProvider>, DataFusionError> {
        let wish = wish(args.exprs()).map_err(through)?;
        let schema = apart(|| summary_schema().map(|summary| with_run(&summary))).map_err(through)?;
        let replay = Replay { replays: self.clone(), wish, schema: schema.clone() };
        Ok(Arc::new(StreamingTable::try_new(schema, vec![Arc::new(replay)])?))
    }
}

/// The arguments of a call.
fn wish(args: &[Expr]) -> Result<Wish> {
    let texts: Vec<String> = args.iter().map(text).collect::<Result<_>>()?;
    let [policy, model, machine, flags @ ..] = texts.as_slice() else {
        return Err(Error::usage(format!(
            "`replay` expects a policy, a model and a machine, found {} arguments",
            texts.len()
        ))
        .hint("such as replay('fp8', 'llama-3.1-8b', 'h200', 'tensor_parallel=2')"));
    };
    let pair = |flag: &String| match flag.split_once('=') {
        Some((name, value)) => (name.trim().to_owned(), Some(value.trim().to_owned())),
        None => (flag.trim().to_owned(), None),
    };
    let flags = flags.iter().map(pair).collect();
    Ok(Wish { policy: policy.clone(), model: model.clone(), machine: machine.clone(), flags })
}

fn text(arg: &Expr) -> Result<String> {
    match arg {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Ok(text.clone()),
        other => Err(Error::usage(format!("`replay` expects text, found {other}"))),
    }
}

/// Columns of the summary, which do not depend on the store.
fn summary_schema() -> Result<SchemaRef> {
    let batches = run_named(&empty()?, "summary", &[])?;
    batches.first().map(RecordBatch::schema).ok_or_else(|| Error::run("the query `summary` has no columns"))
}

/// The run beside its summary.
fn with_run(summary: &Schema) -> SchemaRef {
    let run = Arc::new(Field::new("run_id", DataType::Utf8, false));
    let fields = std::iter::once(run).chain(summary.fields().iter().map(|field| {
        // A summary of no rows and one of some may differ in what can be null.
        Arc::new(field.as_ref().clone().with_nullable(true))
    }));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// One call that has not been carried out yet.
#[derive(Debug)]
struct Replay {
    replays: Replays,
    wish: Wish,
    schema: SchemaRef,
}

impl PartitionStream for Replay {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = apart(|| rows(&self.replays, &self.wish, &self.schema)).map_err(through);
        let batches: Vec<std::result::Result<RecordBatch, DataFusionError>> = match rows {
            Ok(batches) => batches.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), stream::iter(batches)))
    }
}

fn rows(replays: &Replays, wish: &Wish, schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    let run = (replays.replayer)(&replays.store, wish)?;
    let found = session(&Store::open(&replays.store)?, Some(&run))?;
    let beside = |batch: &RecordBatch| {
        let id: ArrayRef = Arc::new(StringArray::from_iter_values(std::iter::repeat_n(&run, batch.num_rows())));
        let columns = std::iter::once(id).chain(batch.columns().iter().cloned()).collect();
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
    };
    run_named(&found, "summary", &[])?.iter().map(beside).collect()
}

/// Does it on a thread of its own: a session within a session needs one, since each waits for its own work.
fn apart<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let done = scope.spawn(work).join();
        done.unwrap_or_else(|_| Err(Error::run("the replay failed inside")))
    })
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::lit;

    use super::*;

    #[test]
    fn arguments_are_policy_model_machine_and_flags() {
        let found =
            wish(&[lit("fp8"), lit("llama-3.1-8b"), lit("h200"), lit("rate = x0.5"), lit("split_blocks")]).unwrap();
        assert_eq!(
            (found.policy.as_str(), found.model.as_str(), found.machine.as_str()),
            ("fp8", "llama-3.1-8b", "h200")
        );
        let flags = [("rate".to_owned(), Some("x0.5".to_owned())), ("split_blocks".to_owned(), None)];
        assert_eq!(found.flags, flags);
        assert!(wish(&[lit("fp8")]).unwrap_err().to_string().contains("found 1 arguments"));
        assert!(wish(&[lit("fp8"), lit(1), lit("x")]).unwrap_err().to_string().contains("expects text"));
    }
}
