use super::*;

fn row(scenario: &str, cost: Option<f64>, gap: f64, certainty: &str) -> Row {
    Row {
        scenario: scenario.to_owned(),
        is_baseline: scenario == "base",
        status: "ok".to_owned(),
        p99_itl_ms: Some(gap),
        usd_per_mtok_output: cost,
        kv_peak_held_bytes: Some(1_073_741_824.0),
        lost_mass_ratio: None,
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
