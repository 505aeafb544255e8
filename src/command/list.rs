//! `kvtoll list`: what can be named on the command line.

use std::fmt::Write as _;

use clap::ValueEnum;
use engine::error::Result;
use engine::serving::lower;
use engine::unit::{show_bandwidth, show_bytes};
use engine::{cache, policy, serving};

use super::{Exit, say};
use crate::scenario::{load_model, load_prices, load_tariff, sketch_machine};
use crate::sql;
use crate::surfaces::Library;
use crate::{embedded, ingest};

/// Arguments of `kvtoll list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to list
    pub what: What,
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Model presets with their KV bytes per token
    Models,
    /// Machine presets with memory and bandwidth
    Machines,
    /// Links between accelerators, for `kvtoll fabric`
    Fabrics,
    /// Policy stages
    Policies,
    /// Trace formats
    Formats,
    /// Named questions
    Queries,
    /// Price books
    Prices,
    /// Books of token prices, by the promise that is kept
    Tariffs,
    /// Routes: scenario files that ship, for `kvtoll run --routes`
    Routes,
    /// Serving engines
    Engines,
    /// Cache policies, and hierarchies of caches that ship
    Caches,
    /// Efficiency surfaces with their error and origin
    Surfaces,
}

/// Runs `kvtoll list`.
pub fn run(args: &Args) -> Result<Exit> {
    match args.what {
        What::Models => models(),
        What::Machines => machines(),
        What::Fabrics => listed(&super::fabric::listed()?),
        What::Policies => policies(),
        What::Formats => formats(),
        What::Queries => queries(),
        What::Prices => books(),
        What::Tariffs => tariffs(),
        What::Routes => routes(),
        What::Engines => engines(),
        What::Caches => caches(),
        What::Surfaces => surfaces(),
    }
}

fn models() -> Result<Exit> {
    let mut rows = Vec::new();
    for (name, _) in embedded::MODELS {
        let model = load_model(name)?;
        let windows = model.constant_bytes();
        let constant =
            if windows > 0 { format!(" plus {} per sequence", show_bytes(windows as f64)) } else { String::new() };
        let kv = format!("{} bytes of KV per token{constant}", model.growing_bytes_per_token());
        rows.push(((*name).to_owned(), format!("{}, {}", model.title, kv)));
    }
    listed(&rows)
}

fn machines() -> Result<Exit> {
    let mut rows = Vec::new();
    for (name, _) in embedded::MACHINES {
        let found = sketch_machine(name)?;
        let of = |key: &str| found.parameters.iter().find(|known| known.name == key).map(|known| known.value);
        let memory = of("memory_bytes").map_or_else(|| "memory of unknown size".to_owned(), show_bytes);
        let rate = of("memory_bytes_per_s").map_or_else(|| "an unknown rate".to_owned(), show_bandwidth);
        let mut text = format!("{}, {memory} at {rate} per accelerator", found.title);
        if !found.unpublished.is_empty() {
            let _ = write!(text, " (not published: {})", found.unpublished.join(", "));
        }
        rows.push(((*name).to_owned(), text));
    }
    listed(&rows)
}

fn policies() -> Result<Exit> {
    let params = |kind: &policy::Kind| {
        let params: Vec<String> = kind.params.iter().map(|param| format!("{}={}", param.name, param.default)).collect();
        if params.is_empty() { kind.name.to_owned() } else { format!("{}({})", kind.name, params.join(",")) }
    };
    let stages = policy::ALL.iter().map(|kind| (params(kind), kind.doc.to_owned()));
    // Where blocks lie is decided by serving, and named in the same stack.
    let placement = (lower::FORM.to_owned(), lower::DOC.to_owned());
    listed(&stages.chain([placement]).collect::<Vec<_>>())
}

fn formats() -> Result<Exit> {
    let row = |format: &&ingest::Format| {
        let unverified = if format.verified { "" } else { " (unverified: no real sample at hand)" };
        (format.name.to_owned(), format!("{}{unverified}", format.doc))
    };
    listed(&ingest::ALL.iter().map(row).collect::<Vec<_>>())
}

/// The named questions.
pub(crate) fn queries() -> Result<Exit> {
    let rows = sql::named()?.into_iter().map(|query| (query.name.to_owned(), query.question.to_owned()));
    listed(&rows.collect::<Vec<_>>())
}

fn books() -> Result<Exit> {
    let mut rows = Vec::new();
    for (name, _) in embedded::PRICES {
        let book = load_prices(name)?;
        rows.push(((*name).to_owned(), format!("{} ({})", book.title, book.date)));
    }
    listed(&rows)
}

fn tariffs() -> Result<Exit> {
    let mut rows = Vec::new();
    for (name, _) in embedded::TARIFFS {
        let book = load_tariff(name)?;
        let promises: Vec<&str> = book.promises.iter().map(|promise| promise.name.as_str()).collect();
        rows.push(((*name).to_owned(), format!("{} ({}): {}", book.title, book.date, promises.join(", "))));
    }
    listed(&rows)
}

fn routes() -> Result<Exit> {
    let comment = |text: &str| {
        let lines = text.lines().map_while(|line| line.strip_prefix("# "));
        lines.collect::<Vec<_>>().join(" ")
    };
    listed(&embedded::ROUTES.iter().map(|(name, text)| ((*name).to_owned(), comment(text))).collect::<Vec<_>>())
}

fn engines() -> Result<Exit> {
    listed(&serving::RULES.iter().map(|rules| (rules.name.to_owned(), rules.doc.to_owned())).collect::<Vec<_>>())
}

fn caches() -> Result<Exit> {
    let policies = cache::ALL.iter().map(|kind| {
        let param = |param: &cache::Param| format!("{}={}: {}", param.name, param.show(param.default), param.doc);
        let params: Vec<String> = kind.params.iter().map(param).collect();
        let tail = if params.is_empty() { String::new() } else { format!(" ({})", params.join("; ")) };
        (kind.name.to_owned(), format!("{}{tail}", kind.doc))
    });
    let presets = cache::tiers::PRESETS.iter().map(|preset| {
        let tiers: Vec<&str> = preset.tiers.iter().map(|tier| tier.name).collect();
        (preset.name.to_owned(), format!("for `--tiers`: {}; tiers {}", preset.doc, tiers.join(", ")))
    });
    listed(&policies.chain(presets).collect::<Vec<_>>())
}

fn surfaces() -> Result<Exit> {
    let library = Library::of(None);
    let mut rows = Vec::new();
    for name in library.names()? {
        let said = library.summary(&name)?;
        let (median, p90) = (100.0 * said.errors.median, 100.0 * said.errors.p90);
        let error = format!("error {median:.1}% at the median and {p90:.1}% at p90");
        let from = format!("{} ({})", said.origin.origin, said.origin.licence);
        rows.push((name, format!("{}, {} rows, {error}; {from}", said.device, said.rows)));
    }
    listed(&rows)
}

fn listed(rows: &[(String, String)]) -> Result<Exit> {
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, doc) in rows {
        let _ = writeln!(text, "{name:<width$}  {doc}");
    }
    say(&text)
}
