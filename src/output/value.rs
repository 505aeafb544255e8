//! One value of a result, and its forms for people, for files and for JSON.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow::util::display::array_value_to_string;
use engine::error::Result;
use serde_json::Value as Json;

/// A value read from an Arrow array.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unknown.
    Null,
    /// True or false.
    Bool(bool),
    /// Any whole number; unsigned ones fit.
    Int(i128),
    /// A double.
    Real(f64),
    /// A single, kept apart because it has fewer digits.
    Single(f32),
    /// Text, and every type that has no other form.
    Text(String),
    /// A list.
    List(Vec<Value>),
}

/// The value at `row`.
///
/// # Errors
/// A type that Arrow cannot show.
pub fn value(array: &ArrayRef, row: usize) -> Result<Value> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    macro_rules! int {
        ($kind:ty) => {
            Value::Int(array.as_primitive::<$kind>().value(row).into())
        };
    }
    Ok(match array.data_type() {
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 => int!(Int8Type),
        DataType::Int16 => int!(Int16Type),
        DataType::Int32 => int!(Int32Type),
        DataType::Int64 => int!(Int64Type),
        DataType::UInt8 => int!(UInt8Type),
        DataType::UInt16 => int!(UInt16Type),
        DataType::UInt32 => int!(UInt32Type),
        DataType::UInt64 => int!(UInt64Type),
        // Products of signed and unsigned integers come as decimals without a fraction.
        DataType::Decimal128(_, 0) => Value::Int(array.as_primitive::<Decimal128Type>().value(row)),
        DataType::Float32 => Value::Single(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => Value::Real(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => Value::Text(array.as_string::<i32>().value(row).to_owned()),
        DataType::List(_) => list(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(_, _) => list(&array.as_fixed_size_list().value(row))?,
        _ => Value::Text(array_value_to_string(array, row)?),
    })
}

fn list(elements: &ArrayRef) -> Result<Value> {
    (0..elements.len()).map(|at| value(elements, at)).collect::<Result<Vec<_>>>().map(Value::List)
}

impl Value {
    /// The value as text with every digit; null is empty, a list is JSON.
    pub fn exact(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Bool(value) => value.to_string(),
            Self::Int(value) => value.to_string(),
            Self::Real(value) => value.to_string(),
            Self::Single(value) => value.to_string(),
            Self::Text(value) => value.clone(),
            Self::List(_) => self.json("").to_string(),
        }
    }

    /// The value in JSON, by the rules of [`crate::output`]; `name` is its column.
    pub fn json(&self, name: &str) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => Json::from(*value),
            Self::Int(value) if is_hash(name) => {
                u64::try_from(*value).map_or_else(|_| integer(*value), |hash| hex(hash).into())
            }
            Self::Int(value) => integer(*value),
            Self::Real(value) => Json::from(*value),
            // Through text, so that a single keeps its own few digits.
            Self::Single(value) => value.to_string().parse::<f64>().map_or(Json::Null, Json::from),
            Self::Text(value) => Json::from(value.as_str()),
            Self::List(values) => values.iter().map(|value| value.json(name)).collect(),
        }
    }

    /// The value as a finite double, if it is a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(value) => Some(*value as f64),
            Self::Real(value) => Some(*value),
            Self::Single(value) => Some(f64::from(*value)),
            _ => None,
        }
        .filter(|value| value.is_finite())
    }
}

fn is_hash(name: &str) -> bool {
    // `sum(length(block_hashes))` is none.
    name.contains("hash") && !name.contains('(')
}

fn hex(hash: u64) -> String {
    format!("0x{hash:016x}")
}

/// A number up to 2^53, decimal text beyond.
fn integer(value: i128) -> Json {
    const EXACT: i128 = 1 << 53;
    match i64::try_from(value) {
        Ok(small) if value.abs() <= EXACT => Json::from(small),
        _ => Json::from(value.to_string()),
    }
}

/// The value for people: thousands in groups, floats to four digits. Names and hashes, which are not counted, are not
/// grouped. A long list is cut, with its length.
pub fn readable(name: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Int(hash) if is_hash(name) => u64::try_from(*hash).map_or_else(|_| hash.to_string(), hex),
        Value::Int(id) if name.ends_with("_id") || name == "seed" => id.to_string(),
        Value::Int(value) => group(&value.to_string()),
        Value::Real(value) => digits(*value),
        Value::Single(value) => digits(f64::from(*value)),
        Value::List(values) if values.len() > 8 => {
            let head: Vec<String> = values[..6].iter().map(|value| readable(name, value)).collect();
            format!("[{}, ... {} in all]", head.join(", "), values.len())
        }
        Value::List(values) => {
            format!("[{}]", values.iter().map(|value| readable(name, value)).collect::<Vec<_>>().join(", "))
        }
        Value::Bool(_) | Value::Text(_) => value.exact(),
    }
}

/// Four significant digits; exponent form only where plain digits would say nothing.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor();
    if !(-6.0..15.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (3.0 - magnitude).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    group(text)
}

/// Commas between groups of three digits of the whole part.
fn group(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.find('.').map_or((rest, ""), |at| rest.split_at(at));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}{fraction}")
}
