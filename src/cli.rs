//! The command line: what can be typed, and which command runs it.

use clap::{Parser, Subcommand};
use engine::error::Result;

use crate::command::{
    Exit, cache, calibrate, check, compare, completions, cost, explain, fabric, ingest, inspect, list, query,
    reconcile, replay, report, run, schema, sql, talk, validate,
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
    after_help = "Start with a trace of yours, and see what fp8 KV would change:\n  kvtoll run TRACE --into STORE \
                  --model llama-3.1-8b --machine h100 --policy full --policy fp8\nThen open report.html, or ask: kvtoll list \
                  queries; kvtoll query STORE token-bill; kvtoll sql STORE"
)]
pub struct Cli {
    /// How progress is shown on standard error: auto (bars on a terminal), plain (a line every ten seconds), json (the same
    /// as JSON) or none
    #[arg(long, global = true, value_name = "MODE", default_value = "auto", hide_short_help = true)]
    pub progress: talk::Progress,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Ingest, replay and report in one go: the place to start
    Run(run::Args),
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
    /// SQL over a store: a prompt, statements (`-c`) or a file of them (`-f`)
    Sql(sql::Args),
    /// What changed from one run to another, and gates on it
    Compare(compare::Args),
    /// Render a run as one HTML file
    Report(report::Args),
    /// List models, machines, fabrics, policies, formats, queries, prices, engines or surfaces
    List(list::Args),
    /// Show the tables and their columns
    Schema(schema::Args),
    /// Explain a metric, policy stack, machine, model, query, format or table
    Explain(explain::Args),
    /// Completions for a shell, on standard output
    Completions(completions::CompletionArgs),
    /// The manual page of kvtoll or of one command
    Man(completions::ManArgs),
}

/// Runs what was typed.
///
/// # Errors
/// Whatever the command cannot do; the kind of error decides the exit code.
pub fn dispatch(cli: &Cli) -> Result<Exit> {
    talk::show_progress(cli.progress);
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
        Command::Sql(args) => sql::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Completions(args) => completions::completions(args),
        Command::Man(args) => completions::man(args),
    }
}
