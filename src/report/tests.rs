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
fn the_page_needs_no_network_and_its_policy_allows_one_script() {
    let html = report("fp8 KV").html;
    for forbidden in ["<link", "<iframe", "@import", " onclick", "src=\""] {
        assert!(!html.contains(forbidden), "{forbidden}");
    }
    assert_eq!(html.matches("<script").count(), 2);
    assert!(html.contains(&format!("script-src 'sha256-{}'", script::hash(script::SCRIPT))));
    assert!(html.contains("default-src 'none'"));
    for (at, _) in html.match_indices("href=\"") {
        assert!(html[at + 6..].starts_with('#'), "{}", &html[at..at + 60]);
    }
    assert!(!html.contains("url("));
    assert!(!html.contains("https://"));
    // The one address is the name of SVG in a saved drawing.
    assert_eq!(html.replace("http://www.w3.org/2000/svg", "").matches("http://").count(), 0);
}

/// Elements that have no end.
const VOID: [&str; 5] = ["meta", "br", "wbr", "link", "img"];

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
            if matches!(name, "style" | "script") {
                rest = &rest[rest.find(&format!("</{name}>")).unwrap()..];
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
    assert_eq!(html.matches("<script").count(), 2);
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

/// The bytes of a text in base 64.
fn decoded(text: &str) -> Vec<u8> {
    const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let values: Vec<u32> = text.chars().filter_map(|letter| LETTERS.find(letter)).map(|at| at as u32).collect();
    let bytes = values.chunks(4).flat_map(|four| {
        let group = four.iter().fold(0, |group, value| group << 6 | value) << (6 * (4 - four.len()));
        let all = [(group >> 16) as u8, (group >> 8) as u8, group as u8];
        all.into_iter().take(four.len() - 1).collect::<Vec<u8>>()
    });
    bytes.collect()
}

#[test]
fn the_page_holds_its_data() {
    let report = report("fp8 KV");
    let unpacked = |html: &str, holds: &str| {
        let start = html.split_once(&format!("id=\"report-data\" data-holds=\"{holds}\">")).unwrap().1;
        let bytes = decoded(start.split('<').next().unwrap());
        std::io::read_to_string(flate2::read::GzDecoder::new(&bytes[..])).unwrap()
    };
    assert_eq!(unpacked(&report.html, "report"), report.json);
    // Where there is no room, the page says that it holds less.
    let long = format!("{HOLE}{}", "x".repeat(MOST_BYTES));
    assert_eq!(unpacked(&with_data(&long, &report.json, "{}").unwrap(), "summary"), "{}");
}

/// What stands in `name="..."` of an element's text.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    html.match_indices(&start).map(|(at, _)| html[at + start.len()..].split('"').next().unwrap()).collect()
}

/// A number in twelve digits, since a reader of JSON may be off by one in the last.
fn digits(number: f64) -> String {
    format!("{number:.11e}")
}

/// The numbers of a query's result.
fn numbers(result: &Json) -> BTreeSet<String> {
    let rows = result["rows"].as_array().unwrap();
    let values = rows.iter().flat_map(|row| row.as_object().unwrap().values());
    let number =
        |value: &Json| value.as_f64().or_else(|| value.as_str()?.parse::<i128>().ok().map(|whole| whole as f64));
    values.filter_map(number).map(digits).collect()
}

#[test]
fn each_number_of_a_table_is_one_of_its_queries() {
    let report = report("fp8 KV");
    let json: Json = serde_json::from_str(&report.json).unwrap();
    let mut seen = 0;
    for section in sections().unwrap() {
        let start = report.html.find(&format!("<section id=\"{}\"", section.id)).unwrap();
        let text = report.html[start..].split("</section>").next().unwrap();
        let known: BTreeSet<String> =
            section.queries.iter().flat_map(|query| numbers(&json["queries"][query])).collect();
        for value in attributes(text, "data-v").into_iter().filter(|value| !value.is_empty()) {
            let number: f64 = value.parse().unwrap();
            assert!(known.contains(&digits(number)), "{}: {value}", section.id);
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen}");
}

#[test]
fn each_row_of_a_data_table_is_a_row_of_its_query() {
    let report = report("fp8 KV");
    let json: Json = serde_json::from_str(&report.json).unwrap();
    let mut tables = 0;
    for table in report.html.split("<div class=\"scroll data\"").skip(1) {
        let table = table.split("</table>").next().unwrap();
        let head = table.split("</thead>").next().unwrap();
        let names: Vec<&str> =
            head.split("<th ").skip(1).map(|th| th.split('>').nth(1).unwrap().split('<').next().unwrap()).collect();
        let is_of = |result: &&Json| {
            let columns: Vec<&str> =
                result["columns"].as_array().unwrap().iter().filter_map(|column| column["name"].as_str()).collect();
            columns == names
        };
        let result = json["queries"].as_object().unwrap().values().find(is_of).unwrap_or_else(|| panic!("{names:?}"));
        let row = |row: &Json| -> Vec<String> {
            let columns = result["columns"].as_array().unwrap().iter().filter(|column| column["numeric"] == true);
            columns.filter_map(|column| row[column["name"].as_str().unwrap()].as_f64()).map(digits).collect()
        };
        let known: BTreeSet<Vec<String>> = result["rows"].as_array().unwrap().iter().map(row).collect();
        for shown in table.split("<tr").skip(2) {
            let values: Vec<String> =
                attributes(shown, "data-v").iter().map(|value| digits(value.parse().unwrap())).collect();
            assert!(known.contains(&values), "{names:?}");
        }
        tables += 1;
    }
    assert!(tables > 15, "{tables}");
}
