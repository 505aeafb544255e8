//! `kv_bytes` and `step_cost`: what a policy stores on a model, and what a decode step takes on a machine.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, StringArray, StructArray, UInt32Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int64Type};
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use engine::cost::{Batch, Parallel, Plan, StepCost, fewest, measure, plan, price, within_bits};
use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::model::Model;
use engine::policy::{Shape, Stack, shape};
use engine::serving::RULES;

use super::through;
use crate::scenario::{load_machine, load_model};
use crate::surfaces::{Library, framework};

type Found<T> = std::result::Result<T, DataFusionError>;

/// `kv_bytes(model, policy, tokens)`.
pub(super) fn kv_bytes() -> ScalarUDF {
    let kinds = vec![DataType::Utf8, DataType::Utf8, DataType::Int64];
    create_udf("kv_bytes", kinds, DataType::UInt64, Volatility::Immutable, Arc::new(kv_bytes_of))
}

fn kv_bytes_of(args: &[ColumnarValue]) -> Found<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(args)?;
    let [models, policies, tokens] = arrays.as_slice() else { return Err(wrong("kv_bytes", 3)) };
    let (models, policies, tokens) =
        (models.as_string::<i32>(), policies.as_string::<i32>(), tokens.as_primitive::<Int64Type>());
    let mut shapes: BTreeMap<(&str, &str), Shape> = BTreeMap::new();
    let mut bytes = Vec::with_capacity(tokens.len());
    for ((model, policy), tokens) in models.iter().zip(policies).zip(tokens) {
        let (Some(model), Some(policy), Some(tokens)) = (model, policy, tokens) else {
            bytes.push(None);
            continue;
        };
        if let Entry::Vacant(unseen) = shapes.entry((model, policy)) {
            unseen.insert(shape_of(model, policy).map_err(through)?);
        }
        let prompt = count("tokens", tokens).map_err(through)?;
        bytes.push(shapes.get(&(model, policy)).map(|shape| shape.stored_bytes(prompt)));
    }
    Ok(ColumnarValue::Array(Arc::new(UInt64Array::from(bytes))))
}

fn shape_of(model: &str, policy: &str) -> Result<Shape> {
    shape(&Stack::parse(policy)?, &load_model(model)?)
}

/// A number of tokens or requests.
fn count(what: &str, number: i64) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::usage(format!("expected `{what}` from 0 to {}, found {number}", u32::MAX)))
}

fn wrong(name: &str, count: usize) -> DataFusionError {
    through(Error::usage(format!("`{name}` expects {count} arguments")))
}

/// Times of a step in the order in which they are shown, and where each comes from.
const TIMES: [(&str, fn(&StepCost) -> f64); 9] = [
    ("step_ns", StepCost::total),
    ("kv_read_ns", |cost| cost.kv_read),
    ("weight_read_ns", |cost| cost.weight_read),
    ("compute_ns", |cost| cost.compute),
    ("collective_ns", |cost| cost.collective),
    ("policy_ns", |cost| cost.policy),
    ("tier_ns", |cost| cost.tier),
    ("link_ns", |cost| cost.link),
    ("overhead_ns", |cost| cost.overhead),
];

/// Fields of what `step_cost` gives.
fn fields() -> Fields {
    let mut fields: Vec<Field> = TIMES.iter().map(|(name, _)| Field::new(*name, DataType::Int64, true)).collect();
    fields.push(Field::new("bound_by", DataType::Utf8, true));
    fields.push(Field::new("kv_bytes", DataType::UInt64, true));
    fields.push(Field::new("fits", DataType::Boolean, true));
    fields.push(Field::new("accelerators", DataType::UInt32, true));
    fields.push(Field::new("certainty", DataType::Utf8, true));
    Fields::from(fields)
}

/// `step_cost(model, machine, policy, batch, context)`.
pub(super) fn step_cost() -> ScalarUDF {
    let kinds = vec![DataType::Utf8, DataType::Utf8, DataType::Utf8, DataType::Int64, DataType::Int64];
    create_udf("step_cost", kinds, DataType::Struct(fields()), Volatility::Immutable, Arc::new(step_cost_of))
}

/// One priced step.
struct Step {
    cost: StepCost,
    bytes: u64,
    fits: bool,
    accelerators: u32,
    certainty: &'static str,
}

fn step_cost_of(args: &[ColumnarValue]) -> Found<ColumnarValue> {
    let arrays = ColumnarValue::values_to_arrays(args)?;
    let [models, machines, policies, batches, contexts] = arrays.as_slice() else { return Err(wrong("step_cost", 5)) };
    let text = |array: &ArrayRef, row: usize| {
        let texts = array.as_string::<i32>();
        texts.is_valid(row).then(|| texts.value(row).to_owned())
    };
    let number = |array: &ArrayRef, row: usize| {
        let numbers = array.as_primitive::<Int64Type>();
        numbers.is_valid(row).then(|| numbers.value(row))
    };
    let mut asked = Vec::with_capacity(models.len());
    for row in 0..models.len() {
        let names = (text(models, row), text(machines, row), text(policies, row));
        let sizes = (number(batches, row), number(contexts, row));
        let ((Some(model), Some(machine), Some(policy)), (Some(batch), Some(context))) = (names, sizes) else {
            asked.push(None);
            continue;
        };
        let (batch, context) = (count("batch", batch).map_err(through)?, count("context", context).map_err(through)?);
        asked.push(Some(([model, machine, policy], batch, context)));
    }
    // What is wrong is told before anything that takes time: planning reads what was measured on a machine.
    let keys: BTreeSet<&[String; 3]> = asked.iter().flatten().map(|(key, ..)| key).collect();
    let mut subjects: BTreeMap<&[String; 3], Subject> = BTreeMap::new();
    for key in keys {
        subjects.insert(key, Subject::of(key).map_err(through)?);
    }
    let mut priced: BTreeMap<&[String; 3], (u32, Plan)> = BTreeMap::new();
    for (key, subject) in &subjects {
        priced.insert(key, planned(subject).map_err(through)?);
    }
    let steps: Vec<Option<Step>> = asked
        .iter()
        .map(|asked| {
            let (key, batch, context) = asked.as_ref()?;
            priced.get(key).map(|(accelerators, plan)| step(plan, *accelerators, *batch, *context))
        })
        .collect();
    Ok(ColumnarValue::Array(Arc::new(columns(&steps)?)))
}

/// A model under a policy, and a machine.
struct Subject {
    model: Model,
    machine: Machine,
    shape: Shape,
}

impl Subject {
    fn of([model, machine, policy]: &[String; 3]) -> Result<Self> {
        let (model, machine) = (load_model(model)?, load_machine(machine)?);
        let shape = shape(&Stack::parse(policy)?, &model)?;
        Ok(Self { model, machine, shape })
    }
}

/// The plan of a model under a policy on the fewest accelerators of a machine that hold the weights, and their number; what
/// was measured on the machine under the first engine counts, as in `kvtoll cost`.
fn planned(Subject { model, machine, shape }: &Subject) -> Result<(u32, Plan)> {
    let (parallel, mut plan) = fewest(machine, |tensor| {
        let parallel = Parallel::tensor(tensor);
        Ok((parallel, plan(model, shape, machine, model.weights, parallel)?))
    })?;
    let measured = Library::of(None).measured(machine, framework(RULES[0].name), model, parallel)?;
    measure(&mut plan, model, machine, model.weights, &measured);
    Ok((parallel.tensor, plan))
}

fn step(plan: &Plan, accelerators: u32, batch: u32, context: u32) -> Step {
    let kept: Vec<u64> =
        plan.lane_keeps().map(|(_, keep)| u64::from(batch) * u64::from(keep.tokens(context, context))).collect();
    let (zeros, none) = (vec![0.0; plan.groups.len()], vec![0; plan.groups.len()]);
    let cost = price(
        plan,
        &Batch {
            decode_requests: u64::from(batch),
            kept_tokens: &kept,
            longest_tokens: 0,
            prefill_tokens: 0,
            prefill_requests: 0,
            prefill_rows: 0,
            prefill_pairs: &zeros,
            prefill_context: &none,
            scored_tokens: 0,
        },
    );
    let bytes = plan.footprint(context, context, true).saturating_mul(u64::from(batch));
    Step { cost, bytes, fits: bytes <= plan.capacity_bytes, accelerators, certainty: plan.certainty.name() }
}

fn columns(steps: &[Option<Step>]) -> Found<StructArray> {
    let longest = steps.iter().flatten().map(|step| step.cost.total()).fold(0.0, f64::max);
    within_bits(longest).map_err(through)?;
    let each = |of: &dyn Fn(&Step) -> Option<i64>| -> ArrayRef {
        Arc::new(steps.iter().map(|step| step.as_ref().and_then(of)).collect::<Int64Array>())
    };
    let text = |of: fn(&Step) -> &'static str| -> ArrayRef {
        Arc::new(steps.iter().map(|step| step.as_ref().map(of)).collect::<StringArray>())
    };
    let mut columns: Vec<ArrayRef> =
        TIMES.iter().map(|(_, of)| each(&|step| Some(of(&step.cost).round() as i64))).collect();
    columns.push(text(|step| step.cost.bound_by()));
    columns.push(Arc::new(steps.iter().map(|step| step.as_ref().map(|step| step.bytes)).collect::<UInt64Array>()));
    columns.push(Arc::new(steps.iter().map(|step| step.as_ref().map(|step| step.fits)).collect::<BooleanArray>()));
    let accelerators = steps.iter().map(|step| step.as_ref().map(|step| step.accelerators));
    columns.push(Arc::new(accelerators.collect::<UInt32Array>()));
    columns.push(text(|step| step.certainty));
    let known: NullBuffer = steps.iter().map(Option::is_some).collect::<Vec<bool>>().into();
    Ok(StructArray::try_new(fields(), columns, Some(known))?)
}
