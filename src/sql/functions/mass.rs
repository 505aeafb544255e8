//! `unnest_mass`: recorded attention with one row for each token or block.

use std::sync::Arc;

use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::prelude::{DataFrame, Expr, col, lit};
use engine::error::Error;

use super::through;

/// All rows of `attention`, their lists side by side. Positions are in tokens.
pub(super) const SQL: &str = "
SELECT
  request_id, step, layer, kv_head, unit, unit * unit_tokens AS first_token,
  least(unit_tokens, in_all - unit * unit_tokens) AS tokens, unit_mass AS mass, unit_max AS mass_max,
  unit_bound AS page_bound
FROM (
  SELECT
    request_id, step, layer, kv_head, CAST(context_tokens AS BIGINT) AS in_all, CAST(block_tokens AS BIGINT) AS unit_tokens,
    unnest(range(0, CAST(array_length(mass) AS BIGINT))) AS unit, unnest(mass) AS unit_mass,
    unnest(mass_max) AS unit_max, unnest(page_bound) AS unit_bound
  FROM attention
)";

/// The table function: `unnest_mass()`, `unnest_mass(layer)`, `unnest_mass(layer, kv_head)`.
#[derive(Debug)]
pub(super) struct Masses {
    all: DataFrame,
}

impl Masses {
    pub(super) fn new(all: DataFrame) -> Self {
        Self { all }
    }
}

impl TableFunctionImpl for Masses {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>, DataFusionError> {
        let args = args.exprs();
        if args.len() > 2 {
            let found = args.len();
            return Err(through(Error::usage(format!(
                "`unnest_mass` expects a layer and a KV head, found {found} arguments"
            ))));
        }
        let mut rows = self.all.clone();
        for (arg, name) in args.iter().zip(["layer", "kv_head"]) {
            rows = rows.filter(col(name).eq(lit(whole(arg, name)?)))?;
        }
        Ok(rows.into_view())
    }
}

/// An argument as a whole number.
fn whole(arg: &Expr, name: &str) -> Result<i64, DataFusionError> {
    match arg {
        Expr::Literal(ScalarValue::Int64(Some(number)), _) => Ok(*number),
        other => Err(through(Error::usage(format!("`unnest_mass` expects `{name}` as a whole number, found {other}")))),
    }
}
