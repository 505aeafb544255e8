//! `kvtoll explain`: what a name means, wherever it comes from.

mod stack;

use std::fmt::Write as _;
use std::path::PathBuf;

use engine::cache::tiers::PRESETS;
use engine::error::{Result, unknown};
use engine::model::Attention;
use engine::reconcile::tables;
use engine::replay::DEFINITIONS;
use engine::serving::{RULES, lower};
use engine::unit::significant;
use engine::{cache, machine, policy, schema};

use super::{Exit, say};
use crate::scenario::{load_model, load_prices, sketch_machine};
use crate::sql;
use crate::{embedded, ingest};

/// Arguments of `kvtoll explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A metric, policy stack or placement, machine, model, query, format, table, column, price book or engine
    pub name: String,
    /// Print the file of a machine, model, price book, fabric, tariff or route as it ships: a start for one of your own
    #[arg(long, conflicts_with_all = ["model", "recording", "error_budget"])]
    pub file: bool,
    /// The model that a policy stack acts on; see `kvtoll list models`
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Tokens of the prompt that bytes of a policy stack are given for
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: u32,
    /// A recording (folder), or a store that holds one, on which the smallest share of the stack's `retain` is sought
    #[arg(long, value_name = "RECORDING", requires = "error_budget")]
    pub recording: Option<PathBuf>,
    /// What the error may be at most, such as `p99_lost_mass<=0.05`
    #[arg(long, value_name = "FIGURE<=MOST", requires = "recording")]
    pub error_budget: Option<String>,
}

/// Runs `kvtoll explain`.
pub fn run(args: &Args) -> Result<Exit> {
    let name = args.name.as_str();
    if let (Some(recording), Some(budget)) = (&args.recording, &args.error_budget) {
        return say(&stack::smallest(name, recording, budget)?);
    }
    if let Some(model) = &args.model {
        return say(&stack::explain(name, model, args.prompt)?);
    }
    if args.file {
        return say(preset_file(name)?);
    }
    let texts: Vec<String> = [
        metric(name),
        stage(name)?,
        placement(name),
        machine_preset(name)?,
        model_preset(name)?,
        query(name)?,
        format(name),
        price_book(name)?,
        rules(name),
        cache_policy(name),
        cache_preset(name),
        schema::ALL.iter().find(|table| table.name == name).map(|table| super::schema::columns(table)),
        sql::views()?.iter().find(|view| view.name == name).map(super::schema::view_columns),
        function(name),
        reconciled(name),
    ]
    .into_iter()
    .flatten()
    .collect();
    if texts.is_empty() {
        if name.contains(['+', '(']) {
            return say(&stack::without_model(name)?);
        }
        let views = sql::views()?;
        return match column(name, &views) {
            Some(text) => say(&text),
            None => Err(unknown("name", name, names().map(|name| -> &str { name }).chain(columns(&views)))),
        };
    }
    say(&texts.join("\n"))
}

/// Presets that are files.
const FILES: [&[(&str, &str)]; 6] =
    [embedded::MACHINES, embedded::MODELS, embedded::PRICES, embedded::FABRICS, embedded::TARIFFS, embedded::ROUTES];

fn preset_file(name: &str) -> Result<&'static str> {
    let files = || FILES.iter().flat_map(|list| list.iter());
    let found = files().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| unknown("preset file", name, files().map(|(known, _)| *known)))
}

/// The names of all columns of tables and views.
fn columns(views: &[sql::Named]) -> impl Iterator<Item = &str> {
    let of_tables = schema::ALL.iter().flat_map(|table| table.columns).map(|column| column.name);
    of_tables.chain(views.iter().flat_map(|view| &view.columns).map(|column| column.name))
}

/// A column of that name in each table and view that has one.
fn column(name: &str, views: &[sql::Named]) -> Option<String> {
    let mut text = String::new();
    for table in schema::ALL {
        for column in table.columns.iter().filter(|column| column.name == name) {
            let unit = if column.unit.is_empty() { String::new() } else { format!(" ({})", column.unit) };
            let _ = writeln!(text, "column {name}{unit} of the table {}\n  {}", table.name, column.doc);
        }
    }
    for view in views {
        for column in view.columns.iter().filter(|column| column.name == name) {
            let _ = writeln!(text, "column {name} of the view {}\n  {}", view.name, column.doc);
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Everything that can be explained.
fn names() -> impl Iterator<Item = &'static str> {
    let presets = embedded::MACHINES.iter().chain(embedded::MODELS).chain(embedded::QUERIES).map(|(name, _)| *name);
    let metrics = DEFINITIONS.iter().map(|definition| definition.name);
    let policies = policy::ALL.iter().map(|kind| kind.name);
    let tables = schema::ALL.iter().map(|table| table.name);
    let presets =
        presets.chain(embedded::PRICES.iter().map(|(name, _)| *name)).chain(RULES.iter().map(|rules| rules.name));
    let caches = cache::ALL.iter().map(|kind| kind.name).chain(PRESETS.iter().map(|preset| preset.name));
    metrics
        .chain(policies)
        .chain([PLACEMENT])
        .chain(caches)
        .chain(presets)
        .chain(ingest::ALL.iter().map(|format| format.name))
        .chain(tables)
        .chain(embedded::VIEWS.iter().map(|(name, _)| *name))
        .chain(sql::FUNCTIONS.iter().map(|function| function.name))
}

fn metric(name: &str) -> Option<String> {
    let found = DEFINITIONS.iter().find(|definition| definition.name == name)?;
    let mut text = format!("metric {name} ({}; better: {})\n  {}\n", found.unit, found.better, found.definition);
    if !found.numerator.is_empty() {
        let _ = writeln!(text, "  numerator: {}\n  denominator: {}", found.numerator, found.denominator);
    }
    text.push_str("  ask: kvtoll query STORE metrics\n");
    Some(text)
}

fn stage(name: &str) -> Result<Option<String>> {
    let Some(kind) = policy::ALL.iter().find(|kind| kind.name == name) else { return Ok(None) };
    let mut text = format!("policy {name}\n  {}\n  source: {}\n", kind.doc, kind.source);
    for param in kind.params {
        let _ = writeln!(text, "  {} = {}: {}", param.name, param.default, param.doc);
    }
    let needs: Vec<&str> = kind.needs.iter().map(|channel| channel.name).collect();
    if !needs.is_empty() {
        let _ = writeln!(text, "  its error needs, in a recording: {}", needs.join(", "));
    }
    let _ = writeln!(text, "  deployment: {}", stack::deployment(kind));
    text.push_str("  bytes and arithmetic on a model: kvtoll explain 'STACK' --model MODEL\n");
    text.push_str("  predicted error, from a recording: kvtoll query STORE policy-error\n");
    text.push_str(&stack::published(name)?);
    Ok(Some(text))
}

/// The placement rule, by its name in a policy stack.
const PLACEMENT: &str = "tier";

fn placement(name: &str) -> Option<String> {
    if name != PLACEMENT {
        return None;
    }
    let mut text = format!("placement {}\n  {}\n", lower::FORM, lower::DOC);
    for (option, default, doc) in lower::OPTIONS {
        let _ = writeln!(text, "  {option} = {default}: {doc}");
    }
    text.push_str(
        "  carried out by serving: it changes hits and time, and neither what a step stores and reads nor any error\n  \
         source: kvtoll's own rules over the cache policies of `kvtoll list caches`\n  \
         try: kvtoll replay STORE --model MODEL --machine MACHINE --policy 'full+tier(hbm,dram=1TB)'\n",
    );
    Some(text)
}

fn cache_policy(name: &str) -> Option<String> {
    let kind = cache::ALL.iter().find(|kind| kind.name == name)?;
    let mut text = format!("cache policy {name}\n  {}\n  source: {}\n", kind.doc, kind.source);
    for param in kind.params {
        let _ = writeln!(text, "  {} = {}: {}", param.name, param.show(param.default), param.doc);
    }
    let _ = writeln!(text, "  try: kvtoll cache STORE --policy {name},min");
    Some(text)
}

fn cache_preset(name: &str) -> Option<String> {
    let preset = PRESETS.iter().find(|preset| preset.name == name)?;
    let mut text = format!("hierarchy of caches {name}\n  {}\n  source: {}\n", preset.doc, preset.source);
    let _ = writeln!(text, "  {:?}, writes {:?}, frequency {:?}", preset.inclusion, preset.write, preset.frequency);
    for tier in preset.tiers {
        let _ = write!(text, "  {}: {}", tier.name, tier.rule);
        if tier.admit > 0 {
            let _ = write!(text, ", takes blocks of frequency {} or more", tier.admit);
        }
        if tier.fetch_tokens > 0 {
            let _ = write!(text, ", fetched from in runs of {} tokens or more", tier.fetch_tokens);
        }
        text.push('\n');
    }
    Some(text)
}

fn machine_preset(name: &str) -> Result<Option<String>> {
    if !embedded::MACHINES.iter().any(|(known, _)| *known == name) {
        return Ok(None);
    }
    let found = sketch_machine(name)?;
    let mut text = format!("machine {name}: {}\n", found.title);
    for parameter in &found.parameters {
        let certainty = parameter.certainty.name();
        let _ = writeln!(
            text,
            "  {:<24} {:>12} {:<8} {certainty}: {}",
            parameter.name,
            significant(parameter.value),
            parameter.unit,
            parameter.source
        );
    }
    for name in &found.unpublished {
        let _ = writeln!(text, "  {name:<24} not published; pricing needs it");
    }
    for tier in &found.tiers {
        let _ = writeln!(text, "  tier {}", tier.name);
        let numbers = [
            ("capacity", "bytes", &tier.capacity_bytes),
            ("read", "bytes/s", &tier.read_bytes_per_s),
            ("write", "bytes/s", &tier.write_bytes_per_s),
            ("latency", "ns", &tier.latency_ns),
        ];
        text.push_str(&around(&numbers));
    }
    for link in &found.links {
        let _ = writeln!(text, "  link {}, {}", link.name, link.distance.name());
        let numbers = [
            ("each way", "bytes/s", &link.way_bytes_per_s),
            ("latency", "ns", &link.latency_ns),
            ("achieved", "ratio", &link.achieved),
        ];
        text.push_str(&around(&numbers));
    }
    Ok(Some(text))
}

/// Numbers of a tier or link, as far as they are known.
fn around(numbers: &[(&str, &str, &Option<machine::Sourced>)]) -> String {
    let mut text = String::new();
    for (name, unit, known) in numbers {
        let _ = match known {
            Some(known) => {
                let certainty = known.certainty.name();
                let value = significant(known.value);
                writeln!(text, "    {name:<22} {value:>12} {unit:<8} {certainty}: {}", known.source)
            }
            None => writeln!(text, "    {name:<22} unknown"),
        };
    }
    text
}

fn model_preset(name: &str) -> Result<Option<String>> {
    if !embedded::MODELS.iter().any(|(known, _)| *known == name) {
        return Ok(None);
    }
    let model = load_model(name)?;
    let mut text = format!("model {name}: {}\n  source: {}\n", model.title, model.source);
    let _ = writeln!(text, "  parameters: {}", engine::unit::show_count(model.params()));
    let _ = writeln!(text, "  weights: published in {}", model.weights.name());
    let _ = writeln!(text, "  growing KV: {} bytes per token (bf16)", model.growing_bytes_per_token());
    let _ = writeln!(text, "  constant KV: {} bytes per sequence (bf16)", model.constant_bytes());
    for group in &model.groups {
        let _ = writeln!(
            text,
            "  {} layers: {} attention{}, {} KV heads, {} bytes of KV per token and layer",
            group.layers,
            group.kv.attention.name(),
            reach(&group.kv.attention),
            group.kv.kv_heads,
            group.kv.bf16_bytes()
        );
    }
    Ok(Some(text))
}

/// How far a layer sees, if not over all of the context.
fn reach(attention: &Attention) -> String {
    match attention {
        Attention::Sliding { window } => format!(" (window of {window})"),
        Attention::Linear => format!(" (a state, counted as {} tokens)", engine::model::STATE_TOKENS),
        Attention::Sparse(sparse) if sparse.top < u32::MAX => {
            format!(" (reads {} tokens at most, index of {} bytes per token)", sparse.top, sparse.index_bytes)
        }
        Attention::Full | Attention::Mla | Attention::Sparse(_) => String::new(),
    }
}

fn price_book(name: &str) -> Result<Option<String>> {
    if !embedded::PRICES.iter().any(|(known, _)| *known == name) {
        return Ok(None);
    }
    let book = load_prices(name)?;
    let mut text = format!("prices {name}: {} ({})\n", book.title, book.date);
    for item in &book.items {
        for (known, unit) in [(&item.usd_per_accelerator_hour, "USD/h"), (&item.w_per_accelerator, "W")] {
            let shown = known.as_ref().map_or_else(
                || "not disclosed".to_owned(),
                |known| {
                    let certainty = known.certainty.name();
                    format!("{} {unit} per accelerator, {certainty}: {}", significant(known.value), known.source)
                },
            );
            let _ = writeln!(text, "  {:<16} {shown}", item.machine);
        }
    }
    text.push_str(
        "  a machine file of your own is priced under its file name; pass a book of your own as --prices FILE.toml\n",
    );
    Ok(Some(text))
}

fn rules(name: &str) -> Option<String> {
    let rules = RULES.iter().find(|rules| rules.name == name)?;
    Some(format!(
        "engine {name}\n  {}\n  tokens per step: {}\n  running requests: {}\n  steps between looks for arrivals: {}\n  \
         before it sees a request and after it gives a token: {} ms ({})\n  prefix cache: {}\n",
        rules.doc,
        rules.step_tokens,
        rules.running_requests,
        rules.look_steps,
        rules.front_ns / 1e6,
        if rules.front_ns > 0.0 { "calibrated on runs of InferenceX" } else { "measured runs leave nothing to add" },
        if rules.prefix_cache { "yes" } else { "no" }
    ))
}

/// A column of what `kvtoll reconcile` prints, in each part that has it.
fn reconciled(name: &str) -> Option<String> {
    let mut text = String::new();
    for (part, table) in tables::ALL {
        if let Some(column) = table.column(name) {
            let unit = if column.unit.is_empty() { String::new() } else { format!(" ({})", column.unit) };
            let _ = writeln!(text, "column {name}{unit} of `kvtoll reconcile STORE {part}`\n  {}", column.doc);
        }
    }
    (!text.is_empty()).then_some(text)
}

fn function(name: &str) -> Option<String> {
    let found = sql::FUNCTIONS.iter().find(|function| function.name == name)?;
    Some(format!("SQL function {}\n  {}\n", found.usage, found.doc))
}

fn query(name: &str) -> Result<Option<String>> {
    if !embedded::QUERIES.iter().any(|(known, _)| *known == name) {
        return Ok(None);
    }
    let found = sql::find(name)?;
    let mut text = format!("query {name}\n  {}\n  ask: kvtoll query STORE {name}\n", found.question);
    for param in &found.params {
        let _ = writeln!(text, "  --param {}={}: {}", param.name, param.default, param.doc);
    }
    for column in &found.columns {
        let _ = writeln!(text, "  {}: {}", column.name, column.doc);
    }
    Ok(Some(text))
}

fn format(name: &str) -> Option<String> {
    let found = ingest::ALL.iter().find(|format| format.name == name)?;
    let mut text = format!("format {name}\n  {}\n  specified at: {}\n\n", found.doc, found.spec);
    let said = embedded::FORMATS.iter().find(|(known, _)| *known == name).map_or("", |(_, said)| *said);
    for line in said.lines().filter(|line| !line.starts_with("```")) {
        // A reference to another module of the source is nothing to its reader.
        let line = line.replace("[`super::", "`").replace("[`", "`").replace("`]", "`");
        let _ = writeln!(text, "{}", format!("  {line}").trim_end());
    }
    let _ = writeln!(text, "\n  what becomes of it: kvtoll schema TABLE; try it: kvtoll inspect FILE");
    Some(text)
}
