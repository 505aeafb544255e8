//! `kvtoll validate`: predictions held against measurements.

pub mod kernels;
pub mod policies;
pub mod serving;

use engine::error::Result;

use super::Exit;

/// Arguments of `kvtoll validate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to validate
    #[command(subcommand)]
    pub what: What,
}

/// What can be validated.
#[derive(Debug, clap::Subcommand)]
pub enum What {
    /// The predicted error of policies against what they did to the model's predictions
    Policies(policies::Args),
    /// The times of operations that efficiency surfaces predict, against measured ones
    Kernels(kernels::Args),
    /// Replays against measured runs of serving engines
    Serving(serving::Args),
}

/// Runs `kvtoll validate`.
pub fn run(args: &Args) -> Result<Exit> {
    match &args.what {
        What::Policies(args) => policies::run(args),
        What::Kernels(args) => kernels::run(args),
        What::Serving(args) => serving::run(args),
    }
}
