//! The `kvtoll` binary: parses the command line, runs the command, prints the error, chooses the exit code.

use std::process::ExitCode;

use clap::Parser;
use engine::error::Kind;
use kvtoll::cli::{Cli, dispatch};
use kvtoll::command::{Exit, talk};

fn main() -> ExitCode {
    match dispatch(&Cli::parse()) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::from(1),
        Ok(Exit::Gate) => ExitCode::from(4),
        Err(error) => {
            talk::error(&error);
            ExitCode::from(match error.kind() {
                Kind::Run => 1,
                Kind::Usage => 2,
                Kind::Data => 3,
            })
        }
    }
}
