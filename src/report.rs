//! The report: one self-contained HTML page and the same data as JSON.
//!
//! A section is a file `templates/section/<nn>_<name>.html`. Its first line names it and the queries that feed it:
//!
//! ```text
//! {# title: Cost per million tokens; queries: cost, scenarios #}
//! ```
//!
//! The results stand in `q["<query>"]` with `question`, `columns` and `rows`; nothing else reaches a template, so that
//! every number on the page can be had again with `kvtoll query`. The page needs no network, and equal results give equal
//! bytes: there is no clock in it. Without script it shows all that it has; its one script sorts, saves and filters, and the
//! page's content security policy allows nothing else. The JSON stands in the page too, packed, so that whoever has the
//! page has the data.

mod chart;
mod figure;
mod script;
mod show;
mod table;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use engine::error::{Error, Result};
use flate2::{Compression, GzBuilder};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use serde_json::{Map, Value as Json, json};

use crate::embedded;
use crate::output::value;
use crate::sql::{Session, find, run_named};

/// The version of the JSON report.
pub const SCHEMA: &str = "kvtoll.report.v1";

/// What the caller knows and the store does not.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The page's title.
    pub title: &'a str,
    /// The command that made the run, to be shown; empty if unknown.
    pub command: &'a str,
}

/// A finished report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The page.
    pub html: String,
    /// The data of the page.
    pub json: String,
}

/// A section as its first line declares it.
struct Section {
    template: &'static str,
    id: String,
    title: String,
    queries: Vec<String>,
}

/// Renders the report of the session's run.
///
/// # Errors
/// A query that fails, or a template that does not fit its data.
pub fn render(session: &Session, options: Options<'_>) -> Result<Report> {
    let sections = sections()?;
    let mut names: BTreeSet<&str> = ["metrics", "scenarios"].into();
    names.extend(sections.iter().flat_map(|section| section.queries.iter().map(String::as_str)));
    let mut results = BTreeMap::new();
    for name in names {
        results.insert(name, result(session, name)?);
    }
    let json = data(session, options, &results)?;
    let html = page(session, options, &sections, &results)?;
    Ok(Report { html: with_data(&html, &json, &summary(session, &results)?)?, json })
}

/// The sections in the order of their file names.
fn sections() -> Result<Vec<Section>> {
    let files = embedded::TEMPLATES.iter().filter(|(name, _)| name.starts_with("section/"));
    files.map(|(name, text)| section(name, text)).collect()
}

fn section(template: &'static str, text: &str) -> Result<Section> {
    let wrong = || Error::data(format!("template `{template}`: expected `{{# title: ...; queries: ... #}}` in line 1"));
    let head = text.lines().next().and_then(|line| line.strip_prefix("{# title: ")?.strip_suffix(" #}"));
    let (title, queries) = head.and_then(|head| head.split_once("; queries: ")).ok_or_else(wrong)?;
    let stem = template.trim_start_matches("section/").trim_end_matches(".html");
    let id = stem.split_once('_').map_or(stem, |(_, name)| name).replace('_', "-");
    Ok(Section { template, id, title: title.to_owned(), queries: queries.split(", ").map(str::to_owned).collect() })
}

/// The result of a named query with its documentation, as JSON.
fn result(session: &Session, name: &str) -> Result<Json> {
    let named = find(name)?;
    let batches = run_named(session, name, &[])?;
    let mut rows = Vec::new();
    for batch in &batches {
        let schema = batch.schema();
        for row in 0..batch.num_rows() {
            let mut object = Map::new();
            for (field, column) in schema.fields().iter().zip(batch.columns()) {
                object.insert(field.name().clone(), value(column, row)?.json(field.name()));
            }
            rows.push(Json::Object(object));
        }
    }
    let numeric = |name: &str| {
        let field = batches.first().and_then(|batch| batch.schema().field_with_name(name).ok().cloned());
        field.is_some_and(|field| field.data_type().is_numeric())
    };
    let columns: Vec<Json> = named
        .columns
        .iter()
        .map(|column| json!({ "name": column.name, "doc": column.doc, "numeric": numeric(column.name) }))
        .collect();
    Ok(json!({ "name": name, "question": named.question, "columns": columns, "rows": rows }))
}

fn page(
    session: &Session,
    options: Options<'_>,
    sections: &[Section],
    results: &BTreeMap<&str, Json>,
) -> Result<String> {
    let failed = |error: minijinja::Error| Error::data(format!("{error:#}"));
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(failed)?;
    environment.set_syntax(syntax);
    for (name, text) in embedded::TEMPLATES {
        environment.add_template(name, text).map_err(failed)?;
    }
    let scenarios = results.get("scenarios").map(|result| &result["rows"]);
    figure::install(
        &mut environment,
        figure::Scenarios { assumed: assumed(scenarios), policies: first_with_policy(scenarios) },
    );
    verdict::install(&mut environment);
    let mut rendered = Vec::new();
    for section in sections {
        let q: BTreeMap<&str, &Json> = section
            .queries
            .iter()
            .filter_map(|name| results.get_key_value(name.as_str()))
            .map(|(name, result)| (*name, result))
            .collect();
        let template = environment.get_template(section.template).map_err(failed)?;
        let context = context! {
            q => Serde(q),
            command => options.command,
            run => session.run(),
            version => env!("CARGO_PKG_VERSION"),
        };
        let body = template.render(context).map_err(failed)?;
        rendered.push(json!({ "id": section.id, "title": section.title, "queries": section.queries, "body": body }));
    }
    let context = context! {
        title => options.title,
        run => session.run(),
        sections => Serde(rendered),
        scenarios => Serde(results.get("scenarios")),
        version => env!("CARGO_PKG_VERSION"),
        script => script::SCRIPT,
        script_hash => script::hash(script::SCRIPT),
    };
    environment.get_template("page.html").and_then(|template| template.render(context)).map_err(failed)
}

/// The scenarios that rest on an assumption.
fn assumed(scenarios: Option<&Json>) -> figure::Assumed {
    let rows: Vec<&Json> =
        scenarios.and_then(Json::as_array).into_iter().flatten().filter(|row| row["status"] == "ok").collect();
    if rows.len() > 1 && rows.iter().all(|row| row["certainty"] == "assumed") {
        return figure::Assumed::All;
    }
    let assumed = rows.iter().filter(|row| row["certainty"] == "assumed");
    figure::Assumed::Some(assumed.filter_map(|row| row["scenario_id"].as_u64()).collect())
}

/// The number of the first scenario with each policy.
fn first_with_policy(scenarios: Option<&Json>) -> BTreeMap<String, usize> {
    let mut first = BTreeMap::new();
    for row in scenarios.and_then(Json::as_array).into_iter().flatten() {
        if let (Some(policy), Some(id)) = (row["policy"].as_str(), row["scenario_id"].as_u64()) {
            first.entry(policy.to_owned()).or_insert(id as usize);
        }
    }
    first
}

/// The report as data: each scenario with its figures, the figures of the workload, and every result on the page.
fn data(session: &Session, options: Options<'_>, results: &BTreeMap<&str, Json>) -> Result<String> {
    let rows =
        |name: &str| results.get(name).and_then(|result| result["rows"].as_array()).map_or(&[][..], Vec::as_slice);
    let figures = |scenario: &Json| -> Vec<Json> {
        let of_scenario = rows("metrics").iter().filter(|row| &row["scenario_id"] == scenario);
        of_scenario.cloned().map(without_scenario).collect()
    };
    let scenarios: Vec<Json> = rows("scenarios")
        .iter()
        .map(|scenario| {
            let mut scenario = scenario.clone();
            scenario["metrics"] = Json::from(figures(&scenario["scenario_id"]));
            scenario
        })
        .collect();
    let report = json!({
        "schema": SCHEMA,
        "kvtoll_version": env!("CARGO_PKG_VERSION"),
        "title": options.title,
        "command": options.command,
        "run": session.run(),
        "scenarios": scenarios,
        "workload": figures(&Json::Null),
        "queries": results,
    });
    let text = serde_json::to_string_pretty(&report).map_err(|error| Error::run(error.to_string()))?;
    Ok(text + "\n")
}

/// Where the data of the page goes; no name in the page can look like it, since `<` in names is escaped.
const HOLE: &str = "<script type=\"text/plain\" id=\"report-data\"></script>";

/// Bytes up to which a page holds the whole report. A larger one holds a summary, and its button says so.
const MOST_BYTES: usize = 1_950_000;

/// The page with its data in it, so that whoever has the page has the data.
fn with_data(html: &str, json: &str, summary: &str) -> Result<String> {
    let whole = packed(json)?;
    let (holds, data) =
        if html.len() + whole.len() <= MOST_BYTES { ("report", whole) } else { ("summary", packed(summary)?) };
    let filled = format!("<script type=\"text/plain\" id=\"report-data\" data-holds=\"{holds}\">{data}</script>");
    Ok(html.replacen(HOLE, &filled, 1))
}

/// Text in few bytes: gzip in base 64, without a time.
fn packed(text: &str) -> Result<String> {
    let failed = |error: std::io::Error| Error::run(error.to_string());
    let mut packer = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packer.write_all(text.as_bytes()).map_err(failed)?;
    Ok(script::base64(&packer.finish().map_err(failed)?))
}

/// The figures of each scenario, for a page that has no room for all.
fn summary(session: &Session, results: &BTreeMap<&str, Json>) -> Result<String> {
    let rows =
        |name: &str| results.get(name).and_then(|result| result["rows"].as_array()).map_or(&[][..], Vec::as_slice);
    let figures = |scenario: &Json| -> Map<String, Json> {
        let of_scenario = rows("metrics").iter().filter(|row| &row["scenario_id"] == scenario);
        of_scenario.filter_map(|row| Some((row["metric"].as_str()?.to_owned(), row["value"].clone()))).collect()
    };
    let scenarios: Vec<Json> = rows("scenarios")
        .iter()
        .map(|row| {
            json!({
                "scenario_id": row["scenario_id"],
                "scenario": row["scenario"],
                "status": row["status"],
                "certainty": row["certainty"],
                "metrics": figures(&row["scenario_id"]),
            })
        })
        .collect();
    let mut units = Map::new();
    for row in rows("metrics") {
        if let Some(name) = row["metric"].as_str() {
            units.insert(name.to_owned(), row["unit"].clone());
        }
    }
    let summary = json!({
        "schema": SCHEMA,
        "run": session.run(),
        "scenarios": scenarios,
        "workload": figures(&Json::Null),
        "units": units,
    });
    serde_json::to_string(&summary).map_err(|error| Error::run(error.to_string()))
}

/// A figure without the columns that its place in the report already says.
fn without_scenario(mut figure: Json) -> Json {
    if let Some(columns) = figure.as_object_mut() {
        columns.remove("scenario_id");
        columns.remove("scenario");
    }
    figure
}

#[cfg(test)]
mod tests;
