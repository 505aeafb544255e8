use super::*;

fn row(scenario: &str, cost: Option<f64>, gap: f64, certainty: &str) -> Row {
    Row {
        scenario: scenario.to_owned(),
        is_baseline: scenario == "base",
        status: "ok".to_owned(),
        workload: "conversation".to_owned(),
        model: "llama-3.1-70b".to_owned(),
        offered_load_ratio: Some(0.5),
        p99_itl_ms: Some(gap),
        output_tokens_per_s: Some(100.0),
        usd_per_mtok_output: cost,
        usd_per_mtok_output_saturated: None,
        kv_peak_held_bytes: Some(1_073_741_824.0),
        lost_mass_ratio: None,
        quantization_error_ratio: None,
        loss_recording: None,
        unknown_loss: None,
        context_limit_tokens: Some(131_072),
        longest_request_tokens: Some(90_000),
        beyond_context_requests: Some(0),
        certainty: certainty.to_owned(),
    }
}

fn text(sentence: &Sentence) -> String {
    let parts: String = sentence.parts.iter().map(|part| part.text.as_str()).collect();
    format!("{}: {parts}", sentence.lens)
}

fn texts(rows: &[Row]) -> Vec<String> {
    verdict(rows).iter().map(text).collect()
}

#[test]
fn the_sentences_name_the_best_and_its_change() {
    let rows = [row("base", Some(2.0), 40.0, "published"), row("fast", Some(1.5), 50.0, "published")];
    let found: Vec<String> = texts(&rows);
    assert_eq!(
        found,
        [
            "Cost: The cheapest tokens come from fast: $1.50 per million output tokens, \u{2212}25% against the baseline's $2.00.",
            "Steadiness: No scenario beats the baseline by 1% or more (base): 40 ms between two tokens at the 99th percentile.",
            "Memory: No scenario differs by 1% or more from the baseline (base): 1 GiB of KV at the peak.",
        ]
    );
}

#[test]
fn what_generates_nothing_has_a_price_and_no_cost_per_token() {
    let mut mute = row("base", None, 1.0, "published");
    (mute.output_tokens_per_s, mute.p99_itl_ms) = (Some(0.0), None);
    let found = texts(&[mute]);
    assert!(
        found
            .contains(&"No output: Not ranked by cost or steadiness, because no token was generated: base.".to_owned()),
        "{found:?}"
    );
    assert!(!found.iter().any(|text| text.starts_with("No cost")), "{found:?}");
}

#[test]
fn what_limits_the_verdict_is_said() {
    let mut failed = row("broken", None, 1.0, "published");
    failed.status = "failed".to_owned();
    let rows = [row("base", Some(2.0), 40.0, "published"), row("guess", None, 10.0, "assumed"), failed];
    let found: Vec<String> = texts(&rows);
    assert!(
        found.contains(
            &"No cost: Not ranked by cost, because the price of the accelerators is not disclosed: guess.".to_owned()
        ),
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
fn a_tie_within_a_percent_is_no_victory_and_a_loss_is_named() {
    let mut lossy = row("lossy", Some(1.0), 50.0, "assumed");
    (lossy.lost_mass_ratio, lossy.quantization_error_ratio) = (Some(0.031), Some(0.2));
    lossy.loss_recording = Some("Llama-3.1-70B (tokens)".to_owned());
    let rows = [row("base", Some(2.0), 40.0, "assumed"), row("tie", Some(2.0), 39.61, "assumed"), lossy.clone()];
    let found = texts(&rows);
    assert!(
        found[0].ends_with("it drops 3.1% of the attention mass; its number format moves the attention output by 20%.")
    );
    assert_eq!(
        found[1],
        "Steadiness: No scenario beats the baseline by 1% or more (base): 40 ms between two tokens at the 99th percentile."
    );
    assert_eq!(
        found.last().unwrap(),
        "Certainty: Every scenario rests on at least one assumed input; the last section names them."
    );
    // A hair more is a difference.
    let rows = [row("base", Some(2.0), 40.0, "assumed"), row("less", Some(2.0), 39.59, "assumed")];
    assert!(texts(&rows)[1].starts_with("Steadiness: The steadiest is less: 39.6 ms"), "{:?}", texts(&rows));
    // On the recording of another model.
    lossy.loss_recording = Some("SmolLM2-135M (tokens)".to_owned());
    let found = texts(&[row("base", Some(2.0), 40.0, "assumed"), lossy]);
    assert!(found[0].ends_with("by 20% (measured on a recording of SmolLM2-135M, not of this model)."), "{found:?}");
}

#[test]
fn what_loses_nobody_knows_what_is_not_the_headline_where_something_else_will_do() {
    let mut blind = row("blind", Some(0.5), 40.0, "x");
    blind.unknown_loss = Some("tokens,precision".to_owned());
    let found = texts(&[row("base", Some(2.0), 40.0, "x"), blind.clone(), row("sure", Some(1.5), 40.0, "x")]);
    assert_eq!(
        found[0],
        "Cost: Where the loss is known, the cheapest tokens come from sure: $1.50 per million output tokens, \u{2212}25% \
         against the baseline's $2.00; blind would come to $0.500, but its loss is unknown here."
    );
    let how = found.iter().find(|text| text.starts_with("Loss: ")).unwrap();
    assert!(how.starts_with("Loss: Unknown for blind: no recording in the store tells. `kvtoll ingest"), "{how}");
    // Nothing else beats the baseline: it is named, and what is not known with it.
    let found = texts(&[row("base", Some(2.0), 40.0, "x"), blind.clone()]);
    assert!(
        found[0].starts_with("Cost: The cheapest tokens come from blind: $0.500")
            && found[0].ends_with("; its loss is unknown here."),
        "{found:?}"
    );
    // As cheap as the best is said beside it.
    let found = texts(&[row("base", Some(2.0), 40.0, "x"), row("sure", Some(0.502), 40.0, "x"), blind.clone()]);
    assert!(
        found[0].starts_with("Cost: The cheapest tokens come from sure (and, within 1%, blind of unknown loss)"),
        "{found:?}"
    );
    // What a stage of the application takes out is lost in no recording.
    blind.unknown_loss = Some("context".to_owned());
    let found = texts(&[row("base", Some(2.0), 40.0, "x"), blind]);
    assert!(
        found.contains(
            &"Loss: What answers lose by texts that are taken out of contexts is not predicted: blind.".to_owned()
        ),
        "{found:?}"
    );
}

#[test]
fn requests_beyond_the_published_context_are_counted() {
    let mut rows = [row("base", Some(2.0), 40.0, "x"), row("other", Some(2.0), 40.0, "x")];
    assert!(!texts(&rows).iter().any(|text| text.starts_with("Context")));
    for row in &mut rows {
        (row.beyond_context_requests, row.longest_request_tokens) = (Some(3), Some(140_000));
    }
    let all = "Context: 3 requests are longer than the 131,072 tokens of context that llama-3.1-70b is published for, the \
               longest 140,000 tokens. An engine would refuse them; they are served here.";
    assert!(texts(&rows).contains(&all.to_owned()), "{:?}", texts(&rows));
    rows[0].beyond_context_requests = Some(0);
    assert!(texts(&rows).iter().any(|text| text.contains("140,000 tokens (other). An engine")), "{:?}", texts(&rows));
}

#[test]
fn those_that_are_as_good_as_the_best_are_named_with_it() {
    let rows = [row("base", Some(2.0), 40.0, "x"), row("a", Some(1.0), 40.0, "x"), row("b", Some(1.005), 40.0, "x")];
    assert_eq!(
        texts(&rows)[0],
        "Cost: The cheapest tokens come from a (and, less than 1% behind, b): $1.00 per million output tokens, \
         \u{2212}50% against the baseline's $2.00."
    );
}

#[test]
fn an_overloaded_scenario_is_named_first_and_never_crowned() {
    let mut over = row("cheap", Some(0.1), 1.0, "published");
    over.offered_load_ratio = Some(4.6);
    let rows = [row("base", Some(2.0), 40.0, "published"), over.clone(), row("fast", Some(1.5), 30.0, "published")];
    let found = texts(&rows);
    assert_eq!(
        found[0],
        "Overload: cheap is offered 4.6 times what it can serve: its queue grows to the end, so its latencies and \
         costs describe the backlog and are not ranked."
    );
    assert!(found[1].starts_with("Cost: The cheapest tokens come from fast: $1.50"), "{found:?}");
    assert!(found[2].starts_with("Steadiness: The steadiest is fast: 30 ms"), "{found:?}");
    // An overloaded baseline is no yardstick.
    let mut base = row("base", Some(2.0), 40.0, "published");
    base.offered_load_ratio = Some(1.004);
    let found = texts(&[base, over.clone(), row("fast", Some(1.5), 30.0, "published")]);
    assert!(found[0].starts_with("Overload: base (1.004 times), cheap (4.6 times) are offered"), "{found:?}");
    assert_eq!(
        found[1],
        "Cost: The cheapest tokens come from fast: $1.50 per million output tokens, while the baseline is overloaded."
    );
    assert!(!texts(&[over]).iter().any(|text| text.starts_with("Cost") || text.starts_with("Steadiness")));
}

#[test]
fn a_large_factor_is_said_as_one() {
    let rows = [row("base", Some(2.0), 118_000.0, "x"), row("fast", Some(2.0), 169.0, "x")];
    assert_eq!(
        texts(&rows)[1],
        "Steadiness: The steadiest is fast: 169 ms between two tokens at the 99th percentile, 698 times less than the \
         baseline's 118 s."
    );
}

#[test]
fn one_scenario_is_compared_with_nothing() {
    let rows = [row("base", Some(2.0), 40.0, "x")];
    assert_eq!(texts(&rows)[0], "Cost: base: $2.00 per million output tokens.");
}

#[test]
fn a_scenario_of_another_workload_is_not_ranked() {
    let mut other = row("recorded", Some(0.1), 1.0, "x");
    other.workload = "recording".to_owned();
    let found = texts(&[row("base", Some(2.0), 40.0, "x"), row("fast", Some(1.0), 30.0, "x"), other]);
    assert!(found[0].contains("come from fast") && found[1].contains("is fast"), "{found:?}");
    assert!(
        found.contains(&"Workloads: Not ranked, because the requests are others: recorded.".to_owned()),
        "{found:?}"
    );
}
