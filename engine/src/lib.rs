//! The pure computation of kvtoll: units, tables, models, machines, KV policies, the cost engine, the serving replay and
//! the money.
//!
//! Nothing here opens a file, asks a clock, reads the environment or prints. The same inputs give the same bytes, at any
//! number of threads. A policy decides and never measures time; the cost engine prices and never decides; `replay` is the
//! only place where they meet.

pub mod api;
pub mod cache;
pub mod cost;
pub mod economics;
pub mod error;
pub mod fabric;
pub mod machine;
pub mod model;
pub mod number;
pub mod policy;
pub mod prices;
pub mod reconcile;
pub mod recording;
pub mod replay;
pub mod schema;
pub mod serving;
pub mod session;
pub mod surface;
pub mod tariff;
pub mod unit;
pub mod workload;

#[cfg(test)]
mod test_kit;
