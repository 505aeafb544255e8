//! Functions that SQL over a store knows beside those of the SQL engine, and that SQL alone cannot say. Their names and
//! results are the same in every run and on every machine.

mod booth;
mod cost;
mod disc;
mod mass;
mod quantile;
mod replay;

use std::sync::Arc;

use datafusion::common::DataFusionError;
use engine::error::{Error, Result};

use super::Session;
pub(super) use replay::Replays;
pub use replay::{Replayer, Wish};

/// A function of kvtoll's own.
#[derive(Debug, Clone, Copy)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// How it is called.
    pub usage: &'static str,
    /// What it gives.
    pub doc: &'static str,
}

/// Every function, by name.
pub static FUNCTIONS: [Function; 7] = [
    Function {
        name: "booth",
        usage: "booth(category, name)",
        doc: "The booth of a row of `kernels`, by the rules that kvtoll ships.",
    },
    Function {
        name: "kv_bytes",
        usage: "kv_bytes(model, policy, tokens)",
        doc: "Bytes of KV that a request holds whose prompt of so many tokens has been prefilled, on all accelerators together.",
    },
    Function {
        name: "quantile_disc",
        usage: "quantile_disc(value, ratio)",
        doc: "An aggregate: the smallest of the values that this share of them does not exceed, by nearest rank; what is unknown \
              does not count.",
    },
    Function {
        name: "replay",
        usage: "replay(policy, model, machine [, 'flag=value' ...])",
        doc: "A table: replays the store's requests, writes the run and gives its `summary`. Flags are those of `kvtoll replay`, \
              as in 'rate=x0.5'. Only `kvtoll sql` and `kvtoll query --sql` have it.",
    },
    Function {
        name: "step_cost",
        usage: "step_cost(model, machine, policy, batch, context)",
        doc: "What a decode step of so many requests with so many tokens of context each takes, on the fewest accelerators that \
              hold the weights: a struct whose fields are read as in `step_cost(...)['step_ns']`.",
    },
    Function {
        name: "stretch_quantile",
        usage: "stretch_quantile(first_ns, last_ns, steps, weight, ratio)",
        doc: "An aggregate: the exact quantile of step times over tokens, where each row of `step_costs` is an arithmetic \
              progression that so many requests felt.",
    },
    Function {
        name: "unnest_mass",
        usage: "unnest_mass([layer [, kv_head]])",
        doc: "A table: `attention` with one row for each token or block: its place, its mass, and the bounds where they are \
              recorded.",
    },
];

/// Registers every function on a session; `replay` only where somebody can replay.
pub(super) fn register(session: &Session, replays: Option<Replays>) -> Result<()> {
    let context = &session.context;
    context.register_udf(booth::function()?);
    context.register_udf(cost::kv_bytes());
    context.register_udf(cost::step_cost());
    context.register_udaf(disc::function());
    context.register_udaf(quantile::function());
    let masses =
        session.runtime.block_on(context.sql(mass::SQL)).map_err(|error| Error::run(error.strip_backtrace()))?;
    context.register_udtf("unnest_mass", Arc::new(mass::Masses::new(masses)));
    if let Some(replays) = replays {
        context.register_udtf("replay", Arc::new(replays));
    }
    Ok(())
}

/// What the SQL engine takes from a function.
type Found<T> = std::result::Result<T, DataFusionError>;

/// The share that an aggregate takes: of 0 to 1, and the same in all rows of a group.
fn same_ratio(function: &str, known: Option<f64>, ratio: f64) -> Found<f64> {
    if !(0.0..=1.0).contains(&ratio) {
        return Err(through(Error::usage(format!("`{function}` expects a ratio from 0 to 1, found {ratio}"))));
    }
    if known.is_some_and(|known| known.to_bits() != ratio.to_bits()) {
        return Err(through(Error::usage(format!("`{function}` expects one ratio for all rows of a group"))));
    }
    Ok(ratio)
}

/// An error of ours on its way through the SQL engine, which gives it back as it is.
pub(super) fn through(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

#[cfg(test)]
mod tests;
