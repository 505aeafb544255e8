//! The verdict in words, and the grid of key figures.

mod limits;

use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use self::limits::{limits, named};
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
    workload: String,
    model: String,
    offered_load_ratio: Option<f64>,
    p99_itl_ms: Option<f64>,
    output_tokens_per_s: Option<f64>,
    usd_per_mtok_output: Option<f64>,
    usd_per_mtok_output_saturated: Option<f64>,
    kv_peak_held_bytes: Option<f64>,
    lost_mass_ratio: Option<f64>,
    quantization_error_ratio: Option<f64>,
    loss_recording: Option<String>,
    unknown_loss: Option<String>,
    context_limit_tokens: Option<u64>,
    longest_request_tokens: Option<u64>,
    beyond_context_requests: Option<u64>,
    certainty: String,
}

/// A sentence under a business lens; its parts are plain, or stressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Sentence {
    /// Cost, steadiness, memory, or what limits the verdict.
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
    /// Whether a queue that grows to the end decides the figure, so that overloaded scenarios are left out.
    of_queue: bool,
    of: fn(&Row) -> Option<f64>,
}

const LENSES: [Lens; 4] = [
    Lens {
        name: "Cost",
        lead: "The cheapest tokens come from ",
        figure: "per million output tokens",
        unit: "USD/Mtok",
        of_queue: true,
        of: |row| row.usd_per_mtok_output,
    },
    Lens {
        name: "Cost, full load",
        lead: "If requests came just as fast as they can be served, the cheapest tokens would come from ",
        figure: "per million output tokens at full load",
        unit: "USD/Mtok",
        of_queue: false,
        of: |row| row.usd_per_mtok_output_saturated,
    },
    Lens {
        name: "Steadiness",
        lead: "The steadiest is ",
        figure: "between two tokens at the 99th percentile",
        unit: "ms",
        of_queue: true,
        of: |row| row.p99_itl_ms,
    },
    Lens {
        name: "Memory",
        lead: "The least KV is held by ",
        figure: "of KV at the peak",
        unit: "bytes",
        of_queue: false,
        of: |row| row.kv_peak_held_bytes,
    },
];

/// The sentences: who is overloaded, the best scenario under each lens with its change against the baseline, then what
/// limits them.
fn verdict(rows: &[Row]) -> Vec<Sentence> {
    let done: Vec<&Row> = rows.iter().filter(|row| row.status == "ok").collect();
    let baseline = done.iter().copied().find(|row| row.is_baseline);
    let mut sentences: Vec<Sentence> = overload(&done).into_iter().collect();
    // What is asked of another workload says nothing about this one.
    let (same, other): (Vec<&Row>, Vec<&Row>) = done
        .iter()
        .copied()
        .partition(|row| baseline.or(done.first().copied()).is_none_or(|b| b.workload == row.workload));
    sentences.extend(LENSES.iter().filter_map(|lens| best(lens, &same, baseline)));
    sentences.extend(named("Workloads", &other, "Not ranked, because the requests are others: "));
    sentences.extend(limits(rows, &done, baseline));
    sentences
}

fn is_overloaded(row: &Row) -> bool {
    row.offered_load_ratio.is_some_and(|load| load > 1.0)
}

/// Which scenarios are offered more than they can serve, and how much more.
fn overload(done: &[&Row]) -> Option<Sentence> {
    let over: Vec<(&Row, f64)> =
        done.iter().filter_map(|row| Some((*row, row.offered_load_ratio.filter(|load| *load > 1.0)?))).collect();
    let times = |load: f64| {
        let digits = if load < 1.1 { 3 } else { usize::from(load < 10.0) };
        format!("{load:.digits$} times")
    };
    let parts = match &over[..] {
        [] => return None,
        [(row, load)] => vec![
            strong(&row.scenario),
            plain(" is offered "),
            strong(times(*load)),
            plain(
                " what it can serve: its queue grows to the end, so its latencies and costs describe the backlog and \
                 are not ranked.",
            ),
        ],
        _ => {
            let mut parts = Vec::new();
            for (at, (row, load)) in over.iter().enumerate() {
                parts.extend([
                    plain(if at > 0 { ", " } else { "" }),
                    strong(&row.scenario),
                    plain(format!(" ({})", times(*load))),
                ]);
            }
            parts.push(plain(
                " are offered so many times what they can serve: their queues grow to the end, so their latencies and \
                 costs describe the backlog and are not ranked.",
            ));
            parts
        }
    };
    Some(Sentence { lens: "Overload", parts })
}

/// The change below which two figures are the same, as in the query `metrics`: no model here is more exact.
const SAME: f64 = 0.01;

/// A scenario with its figure.
type Scored<'a> = (&'a Row, f64);

/// The scenario that a sentence names under a lens.
struct Choice<'a> {
    best: Scored<'a>,
    /// The baseline, if it has the figure.
    reference: Option<Scored<'a>>,
    /// Whether nothing beats the baseline by enough, so that it is the one named.
    is_tied: bool,
    /// What has less and was passed over, since nobody knows what it loses.
    passed: Option<Scored<'a>>,
}

fn least_of<'a>(known: impl Iterator<Item = Scored<'a>>) -> Option<Scored<'a>> {
    known.reduce(|a, b| if b.1 < a.1 { b } else { a })
}

/// The least figure; but a scenario of known loss that beats the baseline goes before any of unknown loss.
fn choose<'a>(known: &[Scored<'a>], baseline: Option<&Row>) -> Option<Choice<'a>> {
    let first = least_of(known.iter().copied())?;
    let reference = known.iter().copied().find(|(row, _)| baseline.is_some_and(|base| std::ptr::eq(*row, base)));
    let beats = |value: f64| reference.is_none_or(|(_, from)| value <= from * (1.0 - SAME));
    let sure = least_of(known.iter().copied().filter(|(row, _)| row.unknown_loss.is_none()));
    let sure = sure.filter(|(_, value)| first.0.unknown_loss.is_some() && beats(*value));
    let pick = sure.unwrap_or(first);
    let tied = reference.filter(|_| !beats(pick.1));
    let passed = sure.map(|_| first).filter(|(_, value)| *value <= pick.1 * (1.0 - SAME));
    Some(Choice { best: tied.unwrap_or(pick), reference, is_tied: tied.is_some(), passed })
}

fn best(lens: &Lens, done: &[&Row], baseline: Option<&Row>) -> Option<Sentence> {
    let fair = |row: &Row| !(lens.of_queue && is_overloaded(row));
    let known: Vec<Scored<'_>> =
        done.iter().filter(|row| fair(row)).filter_map(|row| Some((*row, (lens.of)(row)?))).collect();
    let choice = choose(&known, baseline)?;
    let (row, value) = choice.best;
    let mut parts = named_first(lens, &known, &choice);
    parts.extend([plain(": "), strong(show::figure(value, lens.unit)), plain(format!(" {}", lens.figure))]);
    if let Some((_, from)) = choice.reference.filter(|(_, from)| !choice.is_tied && *from > 0.0) {
        let change = show::change(value / from - 1.0);
        let word = if change.ends_with("less") { "than" } else { "against" };
        parts.push(plain(format!(", {change} {word} the baseline's {}", show::figure(from, lens.unit))));
    } else if baseline.is_some_and(|row| !fair(row)) {
        parts.push(plain(", while the baseline is overloaded"));
    }
    parts.extend(loss(row));
    if let Some((other, value)) = choice.passed {
        let figure = show::figure(value, lens.unit);
        parts.extend([
            plain("; "),
            strong(&other.scenario),
            plain(format!(" would come to {figure}, but its loss is unknown here")),
        ]);
    }
    let all_assumed = done.iter().all(|row| is_assumed(row));
    parts.push(plain(if is_assumed(row) && !all_assumed { " (rests on an assumption)." } else { "." }));
    Some(Sentence { lens: lens.name, parts })
}

/// The sentence up to the figure: who is best, and who is as good.
fn named_first(lens: &Lens, known: &[Scored<'_>], choice: &Choice<'_>) -> Vec<Piece> {
    let (row, value) = choice.best;
    if choice.is_tied && known.len() > 1 {
        let all = known.iter().all(|(_, other)| (other - value).abs() <= SAME * value.abs());
        let beaten = "No scenario beats the baseline by 1% or more";
        let mut parts = vec![plain(if all { "No scenario differs by 1% or more from the baseline" } else { beaten })];
        if row.scenario != "baseline" {
            parts.extend([plain(" ("), strong(&row.scenario), plain(")")]);
        }
        return parts;
    }
    if choice.is_tied {
        return vec![strong(&row.scenario)];
    }
    let lead = match (&choice.passed, lens.lead.split_at_checked(1)) {
        (Some(_), Some((letter, rest))) => format!("Where the loss is known, {}{rest}", letter.to_lowercase()),
        _ => lens.lead.to_owned(),
    };
    let mut parts = vec![plain(lead), strong(&row.scenario)];
    let is_near = |(other, at): &&Scored<'_>| {
        !std::ptr::eq(*other, row) && *at < value / (1.0 - SAME) && *at > value * (1.0 - SAME)
    };
    let near: Vec<&Scored<'_>> = known.iter().filter(is_near).collect();
    let behind = if near.iter().any(|(_, at)| *at < value) { "within 1%" } else { "less than 1% behind" };
    let near: Vec<String> = near
        .iter()
        .map(|(other, _)| match other.unknown_loss {
            Some(_) => format!("{} of unknown loss", other.scenario),
            None => other.scenario.clone(),
        })
        .collect();
    if !near.is_empty() {
        parts.push(plain(format!(" (and, {behind}, {})", near.join(", "))));
    }
    parts
}

/// What the scenario's policy loses, and on which recording that was measured where it is not of the scenario's model.
fn loss(row: &Row) -> Vec<Piece> {
    let mut parts = Vec::new();
    if let Some(lost) = row.lost_mass_ratio.filter(|lost| *lost > 0.0) {
        parts.push(plain(format!("; it drops {} of the attention mass", show::figure(lost, "ratio"))));
    }
    if let Some(error) = row.quantization_error_ratio.filter(|error| *error > 0.0) {
        parts
            .push(plain(format!("; its number format moves the attention output by {}", show::figure(error, "ratio"))));
    }
    let is_measured = !parts.is_empty();
    if row.unknown_loss.is_some() {
        parts.push(plain("; "));
        parts.push(strong(if is_measured {
            "the rest of its loss is unknown here"
        } else {
            "its loss is unknown here"
        }));
    }
    // A recording's name begins with its model's, as the engine tells them apart; its grade stands in brackets.
    let is_own = |name: &str| name.to_lowercase().starts_with(&row.model.to_lowercase());
    let foreign = row.loss_recording.as_deref().filter(|name| !name.split(", ").all(is_own));
    if let Some(name) = foreign.filter(|_| is_measured) {
        let name = name.split(" (").next().filter(|_| !name.contains(", ")).unwrap_or(name);
        parts.push(plain(format!(" (measured on a recording of {name}, not of this model)")));
    }
    parts
}

fn is_assumed(row: &Row) -> bool {
    row.certainty == "assumed"
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
    /// The value that is not rounded.
    exact: Option<f64>,
    /// None where it is nothing, or unknown.
    change: Option<String>,
    effect: Option<String>,
    is_assumed: bool,
    /// Whether it is a load above what can be served.
    is_over: bool,
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
                exact: figure.value,
                change: figure.change_ratio.map(show::change).filter(|change| change != "±0%"),
                effect: figure.effect.clone(),
                is_assumed: figure.certainty == "assumed",
                is_over: figure.metric == "offered_load_ratio" && figure.value.is_some_and(|load| load > 1.0),
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
