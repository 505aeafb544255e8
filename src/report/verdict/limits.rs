//! What the reader of the verdict must know before believing the rest of it.

use super::{Row, Sentence, is_assumed, plain, strong};
use crate::report::show;

/// A sentence that ends in the names of the scenarios that it is about; none where it is about none.
pub(super) fn named(lens: &'static str, found: &[&Row], text: &str) -> Option<Sentence> {
    let names: Vec<&str> = found.iter().map(|row| row.scenario.as_str()).collect();
    let parts = vec![plain(text), strong(names.join(", ")), plain(".")];
    (!found.is_empty()).then_some(Sentence { lens, parts })
}

/// What the reader must know before believing the rest.
pub(super) fn limits(rows: &[Row], done: &[&Row], baseline: Option<&Row>) -> Vec<Sentence> {
    if rows.is_empty() {
        return Vec::new();
    }
    let pick = |keep: &dyn Fn(&Row) -> bool| done.iter().copied().filter(|row| keep(row)).collect::<Vec<&Row>>();
    let is_mute = |row: &Row| row.output_tokens_per_s.is_some_and(|speed| speed <= 0.0);
    let unpriced = pick(&|row| row.usd_per_mtok_output.is_none() && !is_mute(row));
    let undisclosed = "Not ranked by cost, because the price of the accelerators is not disclosed: ";
    let nothing = "Not ranked by cost or steadiness, because no token was generated: ";
    let assumed = pick(&is_assumed);
    let all_assumed = assumed.len() == done.len();
    let failed: Vec<&Row> = rows.iter().filter(|row| row.status != "ok").collect();
    let some_assumed = if all_assumed { &[] } else { assumed.as_slice() };
    let said = [
        named("No cost", &unpriced, undisclosed),
        named("No output", &pick(&is_mute), nothing),
        unknown_losses(done),
        beyond_context(done),
        named("Certainty", some_assumed, "Figures rest on an assumption in "),
        named("Failed", &failed, "Not replayed: "),
    ];
    let mut sentences: Vec<Sentence> = said.into_iter().flatten().collect();
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

/// For which scenarios nobody knows what is lost, and how to learn it.
fn unknown_losses(done: &[&Row]) -> Option<Sentence> {
    let of = |row: &Row, is_context: bool| {
        row.unknown_loss.as_deref().is_some_and(|lost| lost.split(',').any(|part| (part == "context") == is_context))
    };
    let names = |is_context: bool| -> Vec<&str> {
        done.iter().filter(|row| of(row, is_context)).map(|row| row.scenario.as_str()).collect()
    };
    let (measurable, edited) = (names(false), names(true));
    let mut parts = Vec::new();
    if !measurable.is_empty() {
        parts.extend([plain("Unknown for "), strong(measurable.join(", "))]);
        parts.push(plain(
            ": no recording in the store tells. `kvtoll ingest RECORDING --into STORE` and the same replay again predict it; \
             `kvtoll explain POLICY` says what the recording has to hold.",
        ));
    }
    if !edited.is_empty() {
        let begin = if parts.is_empty() { "What answers lose" } else { " What answers lose" };
        parts.push(plain(format!("{begin} by texts that are taken out of contexts is not predicted: ")));
        parts.extend([strong(edited.join(", ")), plain(".")]);
    }
    (!parts.is_empty()).then_some(Sentence { lens: "Loss", parts })
}

/// Requests that are longer than the model is published for; those of scenarios with the same requests and model once.
fn beyond_context(done: &[&Row]) -> Option<Sentence> {
    let facts = |row: &Row| {
        let count = row.beyond_context_requests.filter(|count| *count > 0)?;
        Some((count, row.longest_request_tokens?, row.context_limit_tokens?, row.model.clone()))
    };
    let mut found = Vec::new();
    for fact in done.iter().filter_map(|row| facts(row)) {
        if !found.contains(&fact) {
            found.push(fact);
        }
    }
    let is_all = done.iter().all(|row| facts(row).is_some());
    let count_of = |number: u64| show::figure(number as f64, "count");
    let mut parts = Vec::new();
    for fact in &found {
        let (count, longest, limit, model) = fact;
        let requests = if *count == 1 { "request is" } else { "requests are" };
        parts.push(strong(format!("{} {requests}", count_of(*count))));
        parts.push(plain(format!(
            " longer than the {} tokens of context that {model} is published for, the longest {} tokens",
            count_of(*limit),
            count_of(*longest)
        )));
        if !(is_all && found.len() == 1) {
            let own = done.iter().filter(|row| facts(row).as_ref() == Some(fact));
            let own: Vec<&str> = own.map(|row| row.scenario.as_str()).collect();
            parts.push(plain(format!(" ({})", own.join(", "))));
        }
        parts.push(plain("; "));
    }
    parts.pop()?;
    parts.push(plain(". An engine would refuse them; they are served here."));
    Some(Sentence { lens: "Context", parts })
}
