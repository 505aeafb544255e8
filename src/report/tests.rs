use super::*;
use crate::sql::fixture;

const OPTIONS: Options<'_> = Options { title: "KV report", command: "kvtoll replay STORE --model llama-3.1-70b" };

fn report(name: &str) -> Report {
    let folder = tempfile::tempdir().unwrap();
    render(&fixture::session(folder.path(), name), OPTIONS).unwrap()
}

#[test]
fn equal_results_give_equal_bytes() {
    assert_eq!(report("fp8 KV"), report("fp8 KV"));
}

#[test]
fn the_page_needs_no_network_and_no_script() {
    let html = report("fp8 KV").html;
    for forbidden in ["<script", "<link", "<iframe", "@import", " onclick", "src="] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    for (at, _) in html.match_indices("href=\"") {
        assert!(html[at + 6..].starts_with('#'), "{}", &html[at..at + 60]);
    }
    assert!(!html.contains("url("));
    assert!(!html.contains("http://") && !html.contains("https://"));
}

/// Elements that have no end.
const VOID: [&str; 4] = ["meta", "br", "link", "img"];

/// Walks the tags and checks that each end fits the last start.
fn assert_balanced(html: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(start) = rest.find('<') {
        let tag_end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..tag_end];
        rest = &rest[tag_end + 1..];
        let name: &str = tag.trim_start_matches('/').split(|c: char| c.is_whitespace() || c == '/').next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "before {}", &rest[..rest.len().min(80)]);
        } else if !tag.starts_with('!') && !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if name == "style" {
                rest = &rest[rest.find("</style>").unwrap()..];
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_is_well_formed_and_every_id_is_there_once() {
    for html in [report("fp8 KV").html, render(&fixture::empty(), OPTIONS).unwrap().html] {
        assert_balanced(&html);
        let ids: Vec<&str> =
            html.match_indices(" id=\"").map(|(at, _)| html[at + 5..].split('"').next().unwrap()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        for (at, _) in html.match_indices("href=\"#") {
            let target = html[at + 7..].split('"').next().unwrap();
            assert!(ids.contains(&target), "{target}");
        }
    }
}

#[test]
fn a_hostile_name_is_text_in_the_page_and_in_its_drawings() {
    let hostile = "<script>alert(1)</script>\" onload=\"x";
    let html = report(hostile).html;
    assert!(!html.contains("<script"));
    assert!(!html.contains("\" onload=\""));
    let svg = html.find("<svg").unwrap();
    assert!(html[svg..].contains("&lt;script&gt;alert(1)"));
    assert_balanced(&html);
}

#[test]
fn an_unknown_price_is_named_and_never_zero() {
    let html = report("fp8 KV").html;
    assert!(html.contains("not disclosed"));
    assert!(!html.contains("$0<"));
}

#[test]
fn without_data_each_section_says_what_is_missing_and_draws_nothing() {
    let html = render(&fixture::empty(), OPTIONS).unwrap().html;
    assert!(!html.contains("<svg"));
    assert!(html.matches("class=\"empty\"").count() >= 10, "{}", html.matches("class=\"empty\"").count());
    assert!(html.contains("kvtoll ingest RECORDING --into STORE"));
}

#[test]
fn each_section_names_its_queries_and_every_figure_has_a_table() {
    let html = report("fp8 KV").html;
    for section in sections().unwrap() {
        for query in section.queries {
            assert!(html.contains(&format!("<code>kvtoll query STORE {query}</code>")), "{query}");
        }
    }
    for part in html.split("<section").skip(1).filter(|part| part.contains("<svg")) {
        assert!(part.contains("<details>"), "{}", &part[..60]);
    }
    for svg in html.split("<svg").skip(1) {
        assert!(svg.contains("role=\"img\" aria-label=\""));
        assert!(!svg.split("</svg>").next().unwrap().contains("NaN"));
    }
}

#[test]
fn the_json_holds_the_figures_of_each_scenario_with_their_definitions() {
    let json: Json = serde_json::from_str(&report("fp8 KV").json).unwrap();
    assert_eq!(json["schema"], SCHEMA);
    assert_eq!(json["scenarios"].as_array().unwrap().len(), 5);
    let metrics = json["scenarios"][1]["metrics"].as_array().unwrap();
    let p99 = metrics.iter().find(|figure| figure["metric"] == "p99_itl_ms").unwrap();
    assert_eq!(p99["unit"], "ms");
    assert_eq!(p99["better"], "lower");
    assert_eq!(p99["effect"], "better");
    assert!((p99["value"].as_f64().unwrap() - 19.0 * 2.4).abs() < 1e-9);
    let cost = json["scenarios"][3]["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .find(|figure| figure["metric"] == "usd_per_mtok_output");
    assert_eq!(cost.unwrap()["value"], Json::Null);
    assert!(!json["workload"].as_array().unwrap().is_empty());
    assert_eq!(json["scenarios"][4]["status"], "failed");
}
