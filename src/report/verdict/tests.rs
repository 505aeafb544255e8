use super::*;

fn row(scenario: &str, cost: Option<f64>, gap: f64, certainty: &str) -> Row {
    Row {
        scenario: scenario.to_owned(),
        is_baseline: scenario == "base",
        status: "ok".to_owned(),
        p99_itl_ms: Some(gap),
        usd_per_mtok_output: cost,
        usd_per_mtok_output_saturated: None,
        kv_peak_held_bytes: Some(1_073_741_824.0),
        lost_mass_ratio: None,
        output_error_ratio: None,
        certainty: certainty.to_owned(),
    }
}

fn text(sentence: &Sentence) -> String {
    let parts: String = sentence.parts.iter().map(|part| part.text.as_str()).collect();
    format!("{}: {parts}", sentence.lens)
}

#[test]
fn the_sentences_name_the_best_and_its_change() {
    let rows = [row("base", Some(2.0), 40.0, "published"), row("fast", Some(1.5), 50.0, "published")];
    let found: Vec<String> = verdict(&rows).iter().map(text).collect();
    assert_eq!(
        found,
        [
            "Price: The cheapest tokens come from fast: $1.50 per million output tokens, \u{2212}25% against the baseline's $2.00.",
            "Steadiness: No scenario beats the baseline base: 40 ms between two tokens at the 99th percentile.",
            "Memory: No scenario beats the baseline base: 1 GiB of KV at the peak.",
        ]
    );
}

#[test]
fn what_limits_the_verdict_is_said() {
    let mut failed = row("broken", None, 1.0, "published");
    failed.status = "failed".to_owned();
    let rows = [row("base", Some(2.0), 40.0, "published"), row("guess", None, 10.0, "assumed"), failed];
    let found: Vec<String> = verdict(&rows).iter().map(text).collect();
    assert!(
        found.contains(&"No price: Not ranked by price, because none is disclosed: guess.".to_owned()),
        "{found:?}"
    );
    assert!(found.contains(&"Certainty: Figures rest on an assumption in guess.".to_owned()), "{found:?}");
    assert!(found.contains(&"Failed: Not replayed: broken.".to_owned()), "{found:?}");
    assert!(found.iter().any(|text| text.contains("(rests on an assumption)")), "{found:?}");
}

#[test]
fn nothing_replayed_says_nothing() {
    assert_eq!(verdict(&[]), []);
}

#[test]
fn a_tie_within_what_is_shown_is_no_victory_and_a_loss_is_named() {
    let mut lossy = row("lossy", Some(1.0), 50.0, "assumed");
    (lossy.lost_mass_ratio, lossy.output_error_ratio) = (Some(0.031), Some(0.2));
    let rows = [row("base", Some(2.0), 40.0, "assumed"), row("tie", Some(2.0), 39.99, "assumed"), lossy];
    let found: Vec<String> = verdict(&rows).iter().map(text).collect();
    assert!(
        found[0].ends_with("it drops 3.1% of the attention mass; its number format moves the attention output by 20%.")
    );
    assert!(found[1].starts_with("Steadiness: No scenario beats the baseline base: 40 ms"), "{found:?}");
    assert_eq!(
        found.last().unwrap(),
        "Certainty: Every scenario rests on at least one assumed input; the last section names them."
    );
}
