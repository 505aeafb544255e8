//! The integration tests: one binary, since each that links DataFusion costs seconds and hundreds of megabytes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::float_cmp,
    reason = "helpers of tests fail as tests do, and clippy allows only the tests themselves; a skipped test says why; counts are exact in floating point"
)]

mod bad_input;
mod browser;
mod caches;
mod chrome;
mod command_line;
mod cost;
mod duckdb;
mod equal_cost;
mod fabric;
mod fuzz;
mod laws;
mod limits;
mod money;
mod policies;
mod prompt;
mod quickstart;
mod readme;
mod reconcile;
mod recorded;
mod sessions;
mod sql;
mod support;
mod tidy;
