//! The verdict in words, and the grid of key figures.

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::show;

/// Adds `verdict(rows of summary)` and `grid(rows of metrics, names)`.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_function("verdict", |rows: Serde<Vec<Row>>| Value::from(Serde(verdict(&rows.0))));
    environment.add_function("grid", |rows: Serde<Vec<Figure>>, names: Vec<String>| {
        grid(&rows.0, &names).map(|grid| Value::from(Serde(grid)))
    });
}

/// The part of a row of `summary` that the verdict is built from.
#[derive(Debug, Clone, Deserialize)]
struct Row {
    scenario: String,
    is_baseline: bool,
    status: String,
    p99_itl_ms: Option<f64>,
    usd_per_mtok_output: Option<f64>,
    usd_per_mtok_output_saturated: Option<f64>,
    kv_peak_held_bytes: Option<f64>,
    lost_mass_ratio: Option<f64>,
    output_error_ratio: Option<f64>,
    certainty: String,
}

/// A sentence under a business lens; its parts are plain, or stressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Sentence {
    /// Price, steadiness, memory, or what limits the verdict.
    lens: &'static str,
    parts: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Piece {
    strong: bool,
    text: String,
}

fn plain(text: impl Into<String>) -> Piece {
    Piece { strong: false, text: text.into() }
}

fn strong(text: impl Into<String>) -> Piece {
    Piece { strong: true, text: text.into() }
}

/// One figure by which scenarios are compared; less is better.
struct Lens {
    name: &'static str,
    /// The sentence before the best scenario's name.
    lead: &'static str,
    /// What the figure is.
    figure: &'static str,
    unit: &'static str,
    of: fn(&Row) -> Option<f64>,
}

const LENSES: [Lens; 4] = [
    Lens {
        name: "Price",
        lead: "The cheapest tokens come from ",
        figure: "per million output tokens",
        unit: "USD/Mtok",
        of: |row| row.usd_per_mtok_output,
    },
    Lens {
        name: "Price, full load",
        lead: "If requests came just as fast as they can be served, the cheapest tokens would come from ",
        figure: "per million output tokens at full load",
        unit: "USD/Mtok",
        of: |row| row.usd_per_mtok_output_saturated,
    },
    Lens {
        name: "Steadiness",
        lead: "The steadiest is ",
        figure: "between two tokens at the 99th percentile",
        unit: "ms",
        of: |row| row.p99_itl_ms,
    },
    Lens {
        name: "Memory",
        lead: "The least KV is held by ",
        figure: "of KV at the peak",
        unit: "bytes",
        of: |row| row.kv_peak_held_bytes,
    },
];

/// The sentences: the best scenario under each lens with its change against the baseline, then what limits them.
fn verdict(rows: &[Row]) -> Vec<Sentence> {
    let done: Vec<&Row> = rows.iter().filter(|row| row.status == "ok").collect();
    let baseline = done.iter().copied().find(|row| row.is_baseline);
    let mut sentences: Vec<Sentence> = LENSES.iter().filter_map(|lens| best(lens, &done, baseline)).collect();
    sentences.extend(limits(rows, &done, baseline));
    sentences
}

/// The change below which two figures are the same, as in the query `metrics`.
const SAME: f64 = 0.0005;

fn best(lens: &Lens, done: &[&Row], baseline: Option<&Row>) -> Option<Sentence> {
    let known = done.iter().filter_map(|row| (lens.of)(row).map(|value| (*row, value)));
    let (best, least) = known.reduce(|a, b| if b.1 < a.1 { b } else { a })?;
    let reference = baseline.and_then(|row| (lens.of)(row).map(|value| (row, value)));
    // What differs by less than the page shows is no difference.
    let tied = reference.filter(|(_, value)| least >= value * (1.0 - SAME));
    let (row, value) = tied.unwrap_or((best, least));
    let lead = if tied.is_some() { "No scenario beats the baseline" } else { lens.lead };
    let mut parts = vec![plain(lead)];
    if tied.is_none() || row.scenario != "baseline" {
        parts.extend([plain(if tied.is_some() { " " } else { "" }), strong(&row.scenario)]);
    }
    parts.extend([plain(": "), strong(show::figure(value, lens.unit))]);
    parts.push(plain(format!(" {}", lens.figure)));
    if let Some((_, from)) = reference.filter(|(_, from)| tied.is_none() && *from > 0.0) {
        let (change, from) = (show::change(value / from - 1.0), show::figure(from, lens.unit));
        parts.push(plain(format!(", {change} against the baseline's {from}")));
    }
    if let Some(lost) = row.lost_mass_ratio.filter(|lost| *lost > 0.0) {
        parts.push(plain(format!("; it drops {} of the attention mass", show::figure(lost, "ratio"))));
    }
    if let Some(error) = row.output_error_ratio.filter(|error| *error > 0.0) {
        parts
            .push(plain(format!("; its number format moves the attention output by {}", show::figure(error, "ratio"))));
    }
    let all_assumed = done.iter().all(|row| is_assumed(row));
    parts.push(plain(if is_assumed(row) && !all_assumed { " (rests on an assumption)." } else { "." }));
    Some(Sentence { lens: lens.name, parts })
}

fn is_assumed(row: &Row) -> bool {
    row.certainty == "assumed"
}

/// What the reader must know before believing the rest.
fn limits(rows: &[Row], done: &[&Row], baseline: Option<&Row>) -> Vec<Sentence> {
    let names = |found: Vec<&Row>| found.iter().map(|row| row.scenario.as_str()).collect::<Vec<_>>().join(", ");
    let mut sentences = Vec::new();
    let mut say = |lens, found: Vec<&Row>, text: &str| {
        if !found.is_empty() {
            sentences.push(Sentence { lens, parts: vec![plain(text), strong(names(found)), plain(".")] });
        }
    };
    if rows.is_empty() {
        return Vec::new();
    }
    let pick = |keep: &dyn Fn(&Row) -> bool| done.iter().copied().filter(|row| keep(row)).collect::<Vec<&Row>>();
    say("No price", pick(&|row| row.usd_per_mtok_output.is_none()), "Not ranked by price, because none is disclosed: ");
    let assumed = pick(&is_assumed);
    let all_assumed = assumed.len() == done.len();
    say("Certainty", if all_assumed { Vec::new() } else { assumed }, "Figures rest on an assumption in ");
    say("Failed", rows.iter().filter(|row| row.status != "ok").collect(), "Not replayed: ");
    if all_assumed && !done.is_empty() {
        let text = "Every scenario rests on at least one assumed input; the last section names them.";
        sentences.push(Sentence { lens: "Certainty", parts: vec![plain(text)] });
    }
    if baseline.is_none() {
        let text = "The baseline has no figures, so that no change can be shown.";
        sentences.push(Sentence { lens: "Baseline", parts: vec![plain(text)] });
    }
    sentences
}

/// A row of `metrics`.
#[derive(Debug, Clone, Deserialize)]
struct Figure {
    scenario_id: Option<u64>,
    scenario: Option<String>,
    metric: String,
    value: Option<f64>,
    unit: Option<String>,
    better: Option<String>,
    change_ratio: Option<f64>,
    effect: Option<String>,
    certainty: String,
    definition: Option<String>,
}

/// Key figures by scenario and metric.
#[derive(Debug, Clone, Serialize)]
struct Grid {
    heads: Vec<Head>,
    rows: Vec<Line>,
}

#[derive(Debug, Clone, Serialize)]
struct Head {
    metric: String,
    better: String,
    definition: String,
    /// Whether every known figure of the column is assumed, so that the head says it once.
    is_assumed: bool,
}

#[derive(Debug, Clone, Serialize)]
struct Line {
    scenario_id: u64,
    scenario: String,
    cells: Vec<Option<Shown>>,
}

#[derive(Debug, Clone, Serialize)]
struct Shown {
    value: Option<String>,
    change: Option<String>,
    effect: Option<String>,
    is_assumed: bool,
}

/// One line per scenario, one cell per metric that any scenario has.
fn grid(figures: &[Figure], names: &[String]) -> Result<Grid, Error> {
    let mut heads = Vec::new();
    for name in names {
        if let Some(figure) = figures.iter().find(|figure| figure.metric == *name && figure.scenario_id.is_some()) {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            heads.push(Head {
                metric: name.clone(),
                better: text(&figure.better),
                definition: text(&figure.definition),
                is_assumed: false,
            });
        }
    }
    let mut rows: Vec<Line> = Vec::new();
    for figure in figures {
        let (Some(id), Some(name)) = (figure.scenario_id, &figure.scenario) else { continue };
        if rows.last().is_none_or(|line| line.scenario_id != id) {
            rows.push(Line { scenario_id: id, scenario: name.clone(), cells: vec![None; heads.len()] });
        }
        let line = rows.last_mut().ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "a grid without rows"))?;
        if let Some(at) = heads.iter().position(|head| head.metric == figure.metric) {
            let unit = figure.unit.as_deref().unwrap_or_default();
            line.cells[at] = Some(Shown {
                value: figure.value.map(|value| show::figure(value, unit)),
                change: figure.change_ratio.map(show::change),
                effect: figure.effect.clone(),
                is_assumed: figure.certainty == "assumed",
            });
        }
    }
    for (at, head) in heads.iter_mut().enumerate() {
        let known: Vec<&Shown> =
            rows.iter().filter_map(|line| line.cells[at].as_ref()).filter(|cell| cell.value.is_some()).collect();
        head.is_assumed = known.len() > 1 && known.iter().all(|cell| cell.is_assumed);
    }
    Ok(Grid { heads, rows })
}

#[cfg(test)]
mod tests;
