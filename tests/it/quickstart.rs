//! The README's first command on real input, against published and independently counted figures.

use crate::support::{ask, metric, number, quickstart};

/// FORMATS section 7: counted independently over the same file.
#[test]
fn mooncake_is_counted_as_published() {
    let store = &quickstart().store;
    for (name, value) in [
        ("workload_requests", 12_031.0),
        ("workload_block_references", 288_500.0),
        ("workload_distinct_blocks", 182_790.0),
        ("workload_leading_block_hits", 105_710.0),
    ] {
        assert!((metric(store, None, name) - value).abs() < 0.5, "{name}");
        assert!(
            (number(store, &format!("SELECT count(*) FROM metric_defs WHERE metric = '{name}'")) - 1.0).abs() < 0.1
        );
    }
    for (name, value, digits) in [
        ("workload_leading_block_hit_ratio", 0.366_412, 1e-6),
        ("workload_leading_token_hit_ratio", 0.373_624, 1e-6),
        ("workload_mean_request_hit_ratio", 0.4094, 5e-5),
        ("workload_full_block_hit_ratio", 0.3819, 5e-5),
    ] {
        let found = metric(store, None, name);
        assert!((found - value).abs() < digits, "{name}: {found}");
    }
    let sum = "SELECT sum(output_tokens) FROM requests JOIN sources USING (source_id) WHERE format = 'mooncake'";
    assert!((number(store, sum) - 4_122_048.0).abs() < 0.5);
}

#[test]
fn every_scenario_ran_and_every_request_has_an_end() {
    let store = &quickstart().store;
    assert!((number(store, "SELECT count(*) FROM scenarios WHERE status = 'ok'") - 8.0).abs() < 0.1);
    let ends = "SELECT count(*) FROM request_costs GROUP BY scenario_id";
    for batch in ask(
        store,
        &format!("SELECT min(n) AS least, max(n) AS most FROM ({}) AS t", ends.replace("count(*)", "count(*) AS n")),
    ) {
        assert_eq!(format!("{:?}", batch.column(0)), format!("{:?}", batch.column(1)));
    }
    for scenario in ["baseline", "SnapKV 25%", "Vera Rubin + LPX"] {
        let ended =
            metric(store, Some(scenario), "requests_finished") + metric(store, Some(scenario), "requests_rejected");
        assert!((ended - 12_031.0).abs() < 0.5, "{scenario}");
    }
}

/// Memory never holds more than fits, and booths add up to the step time.
#[test]
fn the_rows_of_a_run_keep_its_laws() {
    let store = &quickstart().store;
    for (law, sql) in [
        (
            "capacity",
            "SELECT count(*) FROM step_costs WHERE resident_bytes > capacity_bytes OR held_bytes > resident_bytes",
        ),
        (
            "booths",
            "SELECT count(*) FROM step_costs WHERE abs(kv_read_ns + weight_read_ns + compute_ns + collective_ns + policy_ns \
             + tier_ns + link_ns + overhead_ns - total_ns) > 8",
        ),
        ("parts of a duration", "SELECT count(*) FROM step_costs WHERE busy_ns > total_ns OR waiting_ns > total_ns"),
        ("order", "SELECT count(*) FROM request_costs WHERE ttft_ns < queue_ns OR e2e_ns < ttft_ns"),
        ("oracle", "SELECT count(*) FROM attention_error WHERE oracle_lost_mass_ratio > lost_mass_ratio + 1e-6"),
        ("ratios", "SELECT count(*) FROM tier_usage WHERE busy_ratio > 1 OR busy_ratio < 0"),
    ] {
        assert!(number(store, sql).abs() < 0.5, "{law}");
    }
}

/// Policies and machines move time, not only counters.
#[test]
fn what_is_switched_on_moves_time() {
    let store = &quickstart().store;
    let itl = |scenario| metric(store, Some(scenario), "p50_itl_ms");
    assert!(itl("Vera Rubin") < 0.8 * itl("baseline"));
    assert!(itl("GB300") < itl("baseline"));
    assert!(itl("Vera Rubin + LPX") < itl("Vera Rubin"));
    assert!(itl("SnapKV 25%") < itl("baseline"));
    // What selection makes private is prefilled again.
    assert!(metric(store, Some("SnapKV 25%"), "hit_tokens_ratio") < 0.01);
    assert!(metric(store, Some("baseline"), "hit_tokens_ratio") > 0.1);
    // A format changes what fits in exact proportion: 512 bytes of bf16 to 256 of fp8 per head and token.
    let tokens = |scenario| metric(store, Some(scenario), "kv_capacity_tokens");
    assert!((tokens("fp8 KV") / tokens("baseline") - 2.0).abs() < 1e-4);
}

/// POLICIES 3.6: published 80-layer ratio of TurboQuant's 4-bit preset with boundary layers, 3.35.
#[test]
fn turboquant_stores_the_published_share() {
    let store = &quickstart().store;
    let bytes = |scenario| metric(store, Some(scenario), "kv_bytes_per_token");
    assert!((bytes("baseline") - 327_680.0).abs() < 0.5);
    assert!((bytes("baseline") / bytes("TurboQuant 4 bit") - 3.35).abs() < 0.005);
}

#[test]
fn unknown_prices_stay_unknown() {
    let store = &quickstart().store;
    let sql = "SELECT count(value) FROM metrics JOIN scenarios USING (scenario_id) \
               WHERE name = 'Vera Rubin + LPX' AND metric IN ('usd_total', 'energy_j_per_output_token')";
    assert!(number(store, sql).abs() < 0.5);
    assert!(metric(store, Some("baseline"), "usd_per_mtok_output") > 0.0);
}

#[test]
fn the_report_is_one_file_with_the_same_figures_as_the_queries() {
    let quickstart = quickstart();
    let html = std::fs::read_to_string(&quickstart.report).unwrap();
    for resource in ["src=\"", "<link", "src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!html.contains(resource), "{resource}");
    }
    let json = std::fs::read_to_string(quickstart.report.with_extension("json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], "kvtoll.report.v1");
    let itl = metric(&quickstart.store, Some("baseline"), "p99_itl_ms");
    assert!(json.to_string().contains(&serde_json::json!(itl).to_string()), "{itl}");
}
