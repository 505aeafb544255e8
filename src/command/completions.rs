//! `kvtoll completions` and `kvtoll man`: what shells and `man` want to know, from the same description as `--help`.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use engine::error::{Error, Result, unknown};

use super::{Exit, say, talk, write_file};
use crate::cli::Cli;

/// Arguments of `kvtoll completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `kvtoll man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// The command; the page of kvtoll itself if not given
    pub command: Option<String>,
    /// Write the pages of kvtoll and of every command into a folder, which is made if missing
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub output: Option<PathBuf>,
}

/// Runs `kvtoll completions`.
pub fn completions(args: &CompletionArgs) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "kvtoll", &mut script);
    say(&String::from_utf8_lossy(&script))
}

/// Runs `kvtoll man`.
pub fn man(args: &ManArgs) -> Result<Exit> {
    let mut root = Cli::command();
    root.build();
    match (&args.output, &args.command) {
        (Some(folder), _) => pages(&root, folder),
        (None, None) => say(&page(root)?),
        (None, Some(name)) => {
            let found = root.get_subcommands().find(|command| command.get_name() == name);
            match found {
                Some(command) => say(&page(command.clone())?),
                None => Err(unknown("command", name, root.get_subcommands().map(Command::get_name))),
            }
        }
    }
}

fn page(command: Command) -> Result<String> {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut bytes)
        .map_err(|error| Error::run(format!("the page cannot be made: {error}")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn pages(root: &Command, folder: &Path) -> Result<Exit> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Error::run(format!("cannot make the folder `{}`: {error}", folder.display())))?;
    let commands = root.get_subcommands().filter(|command| command.get_name() != "help");
    let mut count = 0;
    for command in std::iter::once(root).chain(commands) {
        // A built command is displayed as `kvtoll-ingest`.
        let name = command.get_display_name().unwrap_or_else(|| command.get_name());
        write_file(&folder.join(format!("{name}.1")), page(command.clone())?.as_bytes())?;
        count += 1;
    }
    talk::note(&format!("wrote {count} pages into {}", folder.display()));
    Ok(Exit::Done)
}
