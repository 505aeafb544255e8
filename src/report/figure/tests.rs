use minijinja::context;
use minijinja::value::Serde;

use super::*;

/// What a template prints that uses only the filters of this module.
fn print(template: &str, rows: Value) -> String {
    let mut environment = Environment::new();
    let policies = [("fp8", 2), ("full", 0), ("far", 9)].map(|(name, id)| (name.to_owned(), id)).into();
    install(&mut environment, Scenarios { assumed: Assumed::Some(BTreeSet::new()), policies });
    environment.render_str(template, context! { rows }).unwrap()
}

fn row(json: &serde_json::Value) -> Value {
    Value::from(Serde(json.clone()))
}

#[test]
fn a_cell_follows_its_unit_and_never_shows_a_raw_value() {
    let cases = [
        // 54.7 PiB come as text, since they are beyond 2^53.
        ("bytes", serde_json::json!("61602597088395263"), "54.7 PiB"),
        ("bytes", serde_json::json!(1024), "1 KiB"),
        ("bytes_per_s", serde_json::json!(6.96e12), "6.96 TB/s"),
        ("start_s", serde_json::json!(3.5), "3.5 s"),
        ("is_baseline", serde_json::json!(true), "yes"),
        ("is_on_frontier", serde_json::json!(false), "no"),
        ("request_id", serde_json::json!("18446744073709551615"), "18446744073709551615"),
        ("request_id", serde_json::json!(12), "12"),
        ("scenario", serde_json::json!("4"), "4"),
        ("error", serde_json::json!(null), "–"),
    ];
    for (column, value, expected) in cases {
        let found = print(
            "{{ rows|cell_of(column) }}".replace("column", &format!("{column:?}")).as_str(),
            row(&serde_json::json!({ column: value })),
        );
        assert_eq!(found, expected, "{column}");
    }
}

#[test]
fn a_figure_of_its_own_has_the_unit_of_its_row() {
    let figure = row(
        &serde_json::json!({ "metric": "kv_capacity_bytes", "value": 2048, "baseline_value": null, "unit": "bytes" }),
    );
    assert_eq!(print("{{ rows|cell_of('value') }}", figure.clone()), "2 KiB");
    assert_eq!(print("{{ rows|cell_of('baseline_value') }}", figure.clone()), "–");
    assert_eq!(print("{{ rows|cell_of('metric') }}", figure), "kv_capacity_bytes");
}

#[test]
fn between_two_quantiles_the_share_is_held() {
    let quantiles = [(1.0, 0.05), (100.0, 0.02), (120.0, 0.01)];
    assert_eq!(steps(&quantiles), [(1.0, 0.05), (100.0, 0.05), (100.0, 0.02), (120.0, 0.02), (120.0, 0.01)]);
    assert_eq!(steps(&[]), []);
}

#[test]
fn a_price_that_is_known_and_does_not_apply_is_not_called_secret() {
    let rows = Value::from(Serde([
        serde_json::json!({ "scenario": "captured", "scenario_id": 0, "usd": null, "price": 2.5 }),
        serde_json::json!({ "scenario": "secret", "scenario_id": 1, "usd": null, "price": null }),
    ]));
    let svg = print(
        "{{ bars(rows, label='scenario', value='usd', price='price', missing='not applicable', title='t') }}",
        rows,
    );
    // Once in the wide and once in the narrow drawing.
    assert_eq!((svg.matches("not applicable").count(), svg.matches("not disclosed").count()), (2, 2), "{svg}");
}

#[test]
fn each_scenario_has_a_panel_before_the_baseline() {
    let point = |id: u32, name: &str, at: f64, held: f64| serde_json::json!({ "scenario_id": id, "scenario": name, "start_s": at, "held_bytes": held });
    let rows = Value::from(Serde([
        point(0, "base", 0.0, 5.0),
        point(0, "base", 1.0, 7.0),
        point(1, "other", 0.0, 2.0),
        point(1, "other", 1.0, 3.0),
    ]));
    let template = "{{ panels(rows, x='start_s', y='held_bytes', series='scenario', behind=0, x_title='x', y_title='y', title='t') }}";
    let html = print(template, rows);
    let wide = html.split("</svg>").next().unwrap();
    let grey = wide.matches("<polyline fill=\"none\" stroke=\"#777777\" stroke-width=\"2\"").count();
    assert!(wide.contains("base") && wide.contains("other"), "{wide}");
    assert!(grey >= 4, "two lines in grey and two axes: {grey}\n{wide}");
}

#[test]
fn lines_on_each_other_are_said_below_the_chart() {
    let point = |name: &str, y: f64| serde_json::json!({ "policy": name, "x": 1.0, "y": y });
    let rows = |second: f64| Value::from(Serde([point("one", 1.0), point("two", second), point("three", 3.0)]));
    let template = "{{ lines(rows, x='x', y='y', series='policy', x_title='x', y_title='y', half=true, title='t') }}";
    assert!(print(template, rows(1.0)).contains("On one line: a, b."));
    assert!(!print(template, rows(2.0)).contains("On one line"));
}

#[test]
fn a_policy_has_the_colour_of_its_first_scenario() {
    let point = |name: &str| serde_json::json!({ "policy": name, "x": 1.0, "y": 1.0 });
    let template = "{{ lines(rows, x='x', y='y', series='policy', x_title='x', y_title='y', title='t') }}";
    // The one whose scenario has no style of its own gets one that is free.
    let html = print(template, Value::from(Serde(["far", "fp8", "full", "lone"].map(point))));
    for (class, name) in [("s1", "far"), ("s2", "fp8"), ("s0", "full"), ("s3", "lone")] {
        let letter = ["far", "fp8", "full", "lone"].iter().position(|known| *known == name).unwrap();
        let item = format!("<i class=\"{class}\"></i><b>{}</b> {name}", ["a", "b", "c", "d"][letter]);
        assert!(html.contains(&item), "{item}: {html}");
    }
    // Names of another kind are numbered as they come.
    let html = print(template, Value::from(Serde(["lru", "min"].map(point))));
    assert!(html.contains("<i class=\"s0\"></i><b>a</b> lru") && html.contains("<i class=\"s1\"></i><b>b</b> min"));
}

#[test]
fn the_first_of_lines_on_each_other_lies_on_top() {
    let point =
        |id: u64, x: f64| serde_json::json!({ "scenario_id": id, "scenario": format!("s{id}"), "x": x, "y": 5.0 });
    let rows = Value::from(Serde([point(0, 1.0), point(0, 2.0), point(1, 1.0), point(1, 2.0)]));
    let template = "{{ lines(rows, x='x', y='y', series='scenario', x_title='x', y_title='y', title='t') }}";
    let html = print(template, rows);
    let wide = html.split("</svg>").next().unwrap();
    let (first, second) = (wide.rfind("stroke=\"#0072B2\"").unwrap(), wide.rfind("stroke=\"#D55E00\"").unwrap());
    assert!(first > second, "blue is drawn last: {wide}");
}
