//! `booth`: the booth of a row of `kernels`, by the rules that kvtoll ships.

use std::sync::Arc;

use arrow::array::{AsArray, StringArray};
use arrow::datatypes::DataType;
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use engine::error::Result;
use engine::reconcile::rules::{self, Booth, Rules};

use crate::embedded;

/// The function; `kvtoll reconcile --rules` takes other rules.
pub(super) fn function() -> Result<ScalarUDF> {
    let rules = Arc::new(rules::parse(embedded::KERNEL_RULES, "presets/kernels.toml")?);
    let booth = move |args: &[ColumnarValue]| booth(&rules, args);
    let texts = vec![DataType::Utf8, DataType::Utf8];
    Ok(create_udf("booth", texts, DataType::Utf8, Volatility::Immutable, Arc::new(booth)))
}

fn booth(rules: &Rules, args: &[ColumnarValue]) -> std::result::Result<ColumnarValue, DataFusionError> {
    let arrays = ColumnarValue::values_to_arrays(args)?;
    let text = |at: usize| arrays.get(at).and_then(|array| array.as_string_opt::<i32>());
    let (Some(categories), Some(names)) = (text(0), text(1)) else {
        return Err(DataFusionError::Execution("`booth` expects a category and a name as text".to_owned()));
    };
    // Names repeat in runs, and a list of rules is long.
    let mut last: Option<(&str, Booth)> = None;
    let mut of = |name| match last {
        Some((known, booth)) if known == name => booth,
        _ => last.insert((name, rules.booth(name))).1,
    };
    let booths: StringArray = categories
        .iter()
        .zip(names)
        .map(|row| match row {
            (Some("copy" | "fill"), _) => Some(Booth::Copy.name()),
            (Some("collective"), _) => Some(Booth::Collective.name()),
            (Some(_), Some(name)) => Some(of(name).name()),
            _ => None,
        })
        .collect();
    Ok(ColumnarValue::Array(Arc::new(booths)))
}
