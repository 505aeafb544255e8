//! `quantile_disc`: the exact quantile of numbers as they are, by nearest rank. `DuckDB` has a function of this name that does the
//! same, so that queries with it are answered there too. It needs no order over all rows, which a rank would.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};
use engine::error::Error;

use super::{Found, same_ratio, through};

const NAME: &str = "quantile_disc";

/// The aggregate.
pub(super) fn function() -> AggregateUDF {
    AggregateUDF::from(Disc { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Disc {
    signature: Signature,
}

impl AggregateUDFImpl for Disc {
    fn name(&self) -> &'static str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Found<Vec<DataType>> {
        let [of, ratio] = given else {
            return Err(through(Error::usage(format!("`{NAME}` expects a number and a ratio"))));
        };
        let is_null = |kind: &DataType| *kind == DataType::Null;
        if !(of.is_numeric() || is_null(of)) || !(ratio.is_numeric() || is_null(ratio)) {
            return Err(through(Error::usage(format!("`{NAME}` expects numbers, found {of} and {ratio}"))));
        }
        let of = if of.is_integer() { DataType::Int64 } else { DataType::Float64 };
        Ok(vec![of, DataType::Float64])
    }

    fn return_type(&self, given: &[DataType]) -> Found<DataType> {
        Ok(given[0].clone())
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Found<Box<dyn Accumulator>> {
        Ok(match args.return_field.data_type() {
            DataType::Int64 => Box::new(Values::<Int64Type>::default()),
            _ => Box::new(Values::<Float64Type>::default()),
        })
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Found<Vec<FieldRef>> {
        let item = Field::new_list_field(args.return_field.data_type().clone(), true);
        let values = Field::new(format!("{}[values]", args.name), DataType::List(Arc::new(item)), true);
        let ratio = Field::new(format!("{}[ratio]", args.name), DataType::Float64, true);
        Ok(vec![Arc::new(values), Arc::new(ratio)])
    }
}

/// What has been seen.
#[derive(Debug)]
struct Values<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    ratio: Option<f64>,
}

impl<T: ArrowPrimitiveType> Default for Values<T> {
    fn default() -> Self {
        Self { values: Vec::new(), ratio: None }
    }
}

impl<T: ArrowPrimitiveType> Values<T> {
    fn take(&mut self, values: &PrimitiveArray<T>) {
        match values.null_count() {
            0 => self.values.extend_from_slice(values.values()),
            _ => self.values.extend(values.iter().flatten()),
        }
    }
}

impl<T: ArrowPrimitiveType + Debug> Accumulator for Values<T> {
    fn update_batch(&mut self, given: &[ArrayRef]) -> Found<()> {
        let [values, ratios] = given else {
            return Err(through(Error::usage(format!("`{NAME}` expects a number and a ratio"))));
        };
        for ratio in ratios.as_primitive::<Float64Type>().iter().flatten() {
            self.ratio = Some(same_ratio(NAME, self.ratio, ratio)?);
        }
        self.take(values.as_primitive::<T>());
        Ok(())
    }

    fn evaluate(&mut self) -> Found<ScalarValue> {
        let all = self.values.len();
        let found = self.ratio.filter(|_| all > 0).map(|ratio| {
            // The smallest value that the share of all values does not exceed.
            let above = (all as f64 - all as f64 * ratio).floor() as usize;
            *self
                .values
                .select_nth_unstable_by(all.saturating_sub(above).max(1) - 1, |one, other| one.compare(*other))
                .1
        });
        ScalarValue::new_primitive::<T>(found, &T::DATA_TYPE)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.values.capacity() * size_of::<T::Native>()
    }

    fn state(&mut self) -> Found<Vec<ScalarValue>> {
        let values = PrimitiveArray::<T>::from_iter_values(std::mem::take(&mut self.values));
        Ok(vec![SingleRowListArrayBuilder::new(Arc::new(values)).build_list_scalar(), ScalarValue::Float64(self.ratio)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Found<()> {
        let [values, ratios] = states else {
            return Err(through(Error::usage(format!("`{NAME}` lost its state"))));
        };
        for ratio in ratios.as_primitive::<Float64Type>().iter().flatten() {
            self.ratio = Some(same_ratio(NAME, self.ratio, ratio)?);
        }
        for values in values.as_list::<i32>().iter().flatten() {
            self.take(values.as_primitive::<T>());
        }
        Ok(())
    }
}
