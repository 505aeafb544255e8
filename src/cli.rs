//! The command line: what can be typed, and which command runs it.

use clap::{Parser, Subcommand};
use engine::error::Result;

use crate::command::{
    Exit, cache, calibrate, check, cost, explain, fabric, ingest, inspect, list, query, reconcile, replay, report, run,
    schema, validate,
};

/// What this traffic would cost under another KV policy, on another memory hierarchy.
///
/// Reads traces of real LLM inference runs, keeps them as Parquet, replays them under KV policies on machines, answers SQL
/// and renders one HTML report.
#[derive(Debug, Parser)]
#[command(
    name = "kvtoll",
    version,
    max_term_width = 100,
    after_help = "Start with: kvtoll run TRACE --into STORE --output report.html --scenarios traces/quickstart.toml"
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read traces into a store
    Ingest(ingest::Args),
    /// Say what a file is and holds, without writing anything
    Inspect(inspect::Args),
    /// Verify a store: hashes, counts and references
    Check(check::Args),
    /// Replay stored requests under policies, on machines
    Replay(replay::Args),
    /// What caches of KV blocks hit, by policy and size
    Cache(Box<cache::Args>),
    /// Price decode steps on machines by batch and context, without any trace
    Cost(cost::Args),
    /// What a step's traffic takes on links between accelerators
    Fabric(Box<fabric::Args>),
    /// Hold captured kernels, accesses, KV events and steps against the model
    Reconcile(Box<reconcile::Args>),
    /// Turn measured operations into efficiency surfaces
    Calibrate(calibrate::Args),
    /// Hold predictions against measurements
    Validate(validate::Args),
    /// Ask a named question, or any in SQL
    Query(query::Args),
    /// Render a run as one HTML file
    Report(report::Args),
    /// Ingest, replay and report in one go
    Run(run::Args),
    /// List models, machines, fabrics, policies, formats, queries, prices, engines or surfaces
    List(list::Args),
    /// Show the tables and their columns
    Schema(schema::Args),
    /// Explain a metric, policy stack, machine, model, query, format or table
    Explain(explain::Args),
}

/// Runs what was typed.
///
/// # Errors
/// Whatever the command cannot do; the kind of error decides the exit code.
pub fn dispatch(cli: &Cli) -> Result<Exit> {
    match &cli.command {
        Command::Ingest(args) => ingest::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Check(args) => check::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Cache(args) => cache::run(args),
        Command::Cost(args) => cost::run(args),
        Command::Fabric(args) => fabric::run(args),
        Command::Reconcile(args) => reconcile::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Query(args) => query::run(args),
        Command::Report(args) => report::run(args),
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Explain(args) => explain::run(args),
    }
}
