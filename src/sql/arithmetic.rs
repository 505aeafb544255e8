//! Arithmetic on counts, which the schema keeps without a sign. The SQL engine would let `2 - 3` of them wrap around to 2^64 - 1
//! without a word, and a product of two 32-bit counts wrap at 2^32; here both are taken in 64 bits with a sign.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::sqlparser::ast::BinaryOperator;
use datafusion::logical_expr::{ExprSchemable, cast};

/// Plans `+`, `-` and `*`.
#[derive(Debug)]
pub(super) struct Counts;

impl ExprPlanner for Counts {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>, DataFusionError> {
        let kinds = [&expr.left, &expr.right].map(|side| side.get_type(schema));
        let [Ok(left), Ok(right)] = kinds else { return Ok(PlannerResult::Original(expr)) };
        let is_small = |kind: &DataType| matches!(kind, DataType::UInt8 | DataType::UInt16 | DataType::UInt32);
        let is_count = |kind: &DataType| is_small(kind) || *kind == DataType::UInt64;
        let wraps = match expr.op {
            // What is beyond 2^63 is refused by the cast.
            BinaryOperator::Minus => is_count(&left) && is_count(&right),
            BinaryOperator::Plus | BinaryOperator::Multiply => is_small(&left) && is_small(&right),
            _ => false,
        };
        Ok(PlannerResult::Original(if wraps {
            let [left, right] = [expr.left, expr.right].map(|side| cast(side, DataType::Int64));
            RawBinaryExpr { op: expr.op, left, right }
        } else {
            expr
        }))
    }
}
