//! The functions by which a template draws: `lines`, `panels`, `scatter`, `bars`, `stacks`, `heat` and `swings` over the rows
//! of a result.
//!
//! Each returns two drawings, one for a wide and one for a narrow screen, and a legend. A scenario has one style in all
//! figures, by its number; a scenario that rests on an assumption is marked wherever it is named.

mod swings;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use self::swings::swings;
use super::chart::{
    self, Axis, Bar, Bars, Heat, Lines, Paint, Panel, Panels, Part, Point, STYLES, Scatter, Series, Size, escape,
};
use super::table::breakable;
use super::{show, table};

type Result<T> = std::result::Result<T, Error>;

/// Which scenarios rest on an assumption. If all do, a figure says it once and not at each name.
#[derive(Debug, Clone)]
pub(super) enum Assumed {
    /// Each of several.
    All,
    /// These.
    Some(BTreeSet<u64>),
}

impl Assumed {
    fn contains(&self, id: u64) -> bool {
        matches!(self, Self::Some(ids) if ids.contains(&id))
    }

    /// What stands below each figure.
    fn note(&self) -> &'static str {
        match self {
            Self::All => "<p class=\"note\"><span class=\"badge\">assumed</span> in all scenarios</p>\n",
            Self::Some(_) => "",
        }
    }
}

/// What figures know of the scenarios.
#[derive(Debug, Clone)]
pub(super) struct Scenarios {
    /// Which rest on an assumption.
    pub(super) assumed: Assumed,
    /// The number of the first scenario with each policy, whose style the policy has where lines are those of policies.
    pub(super) policies: BTreeMap<String, usize>,
}

/// How the rows of one figure look.
struct Looks<'a> {
    assumed: &'a Assumed,
    /// Styles of policies; empty where the rows are of something else.
    styles: BTreeMap<String, usize>,
}

impl Scenarios {
    /// The looks of rows that belong to what `column` names. A policy without a scenario of its own among the styles gets
    /// one that none of the others has.
    fn looks(&self, rows: &Value, column: &str) -> Result<Looks<'_>> {
        let mut styles = BTreeMap::new();
        let mut others = Vec::new();
        if column == "policy" {
            for row in rows.try_iter()? {
                let name = text(&row, column)?;
                match self.policies.get(&name) {
                    Some(&style) if style < STYLES => drop(styles.insert(name, style)),
                    _ if others.contains(&name) => {}
                    _ => others.push(name),
                }
            }
        }
        if !styles.is_empty() {
            let taken: BTreeSet<usize> = styles.values().copied().collect();
            styles.extend(others.into_iter().zip((0..).filter(|style| !taken.contains(style))));
        }
        Ok(Looks { assumed: &self.assumed, styles })
    }
}

/// Adds the functions and filters to an environment.
pub(super) fn install(environment: &mut Environment<'_>, scenarios: Scenarios) {
    let scenarios = Arc::new(scenarios);
    macro_rules! figure {
        ($name:literal, $function:ident) => {{
            let scenarios = Arc::clone(&scenarios);
            environment.add_function($name, move |rows: Value, options: Kwargs| {
                let drawn = $function(&rows, &options, &scenarios)?;
                options.assert_all_used()?;
                // Figures of policies and recordings do not depend on the scenarios' inputs.
                let by_scenario = rows.get_item_by_index(0).and_then(|row| row.get_attr("scenario_id"));
                let is_by_scenario = by_scenario.is_ok_and(|id| !id.is_undefined());
                let drawn = if is_by_scenario && options.get::<Option<String>>("series")?.as_deref() == Some("scenario")
                {
                    format!("<div class=\"by-scenario\">{drawn}</div>\n{}", scenarios.assumed.note())
                } else {
                    drawn + if is_by_scenario { scenarios.assumed.note() } else { "" }
                };
                Ok::<Value, Error>(Value::from_safe_string(drawn))
            });
        }};
    }
    figure!("lines", lines);
    figure!("panels", panels);
    figure!("scatter", scatter);
    figure!("bars", bars);
    figure!("stacks", stacks);
    figure!("heat", heat);
    figure!("swings", swings);
    environment
        .add_filter("figure", |value: Value, unit: String| number_of(&value).map(|number| show::figure(number, &unit)));
    environment.add_filter("change", |value: Value| number_of(&value).map(show::change));
    environment.add_filter("cell", |value: Value, column: String| cell(&value, &column));
    environment.add_filter("cell_of", |row: Value, column: String| cell_of(&row, &column));
    table::install(environment);
    environment.add_filter("in_words", |rows: Value, column: String| in_words(&rows, &column));
    environment.add_filter("ticks", |text: Value| Value::from_safe_string(ticks(&text.to_string())));
    environment.add_filter("thin", |rows: Value, key: String, count: usize| thin(&rows, &key, count));
}

/// A value by the unit that the name of its column carries.
pub(super) fn cell(value: &Value, column: &str) -> String {
    let is_name = column.ends_with("_id") || column == "layer";
    if value.is_none() || value.is_undefined() {
        return "–".to_owned();
    }
    if value.kind() == ValueKind::Bool {
        return if value.is_true() { "yes" } else { "no" }.to_owned();
    }
    match number_of(value) {
        // A name of many digits comes as text, and keeps them all.
        Some(number) if is_name => value.as_str().map_or_else(|| format!("{number}"), str::to_owned),
        Some(number) => show::figure(number, show::unit(column)),
        None => value.to_string(),
    }
}

/// A cell of a data table. Where each row is a figure of its own, its unit stands in the row.
pub(super) fn cell_of(row: &Value, column: &str) -> Result<String> {
    let value = row.get_attr(column)?;
    let unit = row.get_attr("unit")?;
    Ok(match (number_of(&value), unit.as_str()) {
        (Some(number), Some(unit)) if matches!(column, "value" | "baseline_value") => show::figure(number, unit),
        _ => cell(&value, column),
    })
}

/// Of each group of rows with the same value in `key`, about `count` rows at equal distances, with the last.
fn thin(rows: &Value, key: &str, count: usize) -> Result<Vec<Value>> {
    let mut groups: Vec<(String, Vec<Value>)> = Vec::new();
    for row in rows.try_iter()? {
        let name = text(&row, key)?;
        match groups.iter_mut().find(|group| group.0 == name) {
            Some(group) => group.1.push(row),
            None => groups.push((name, vec![row])),
        }
    }
    let mut kept = Vec::new();
    for (_, rows) in groups {
        let stride = rows.len().div_ceil(count.max(1)).max(1);
        let last = rows.len() - 1;
        kept.extend(rows.into_iter().enumerate().filter(|(at, _)| at % stride == 0 || *at == last).map(|(_, row)| row));
    }
    Ok(kept)
}

/// The rows with spaces for the underscores in the names of a column.
fn in_words(rows: &Value, column: &str) -> Result<Vec<Value>> {
    let mut said = Vec::new();
    for row in rows.try_iter()? {
        let mut fields = BTreeMap::new();
        for key in row.try_iter()? {
            let value = row.get_item(&key)?;
            let is_named = key.as_str() == Some(column) && value.as_str().is_some();
            let value = if is_named { Value::from(value.to_string().replace('_', " ")) } else { value };
            fields.insert(key.to_string(), value);
        }
        said.push(Value::from(fields));
    }
    Ok(said)
}

/// A text in which what stands between backticks is code.
fn ticks(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    let is_paired = parts.len() % 2 == 1;
    let shown = parts.iter().enumerate().map(|(at, part)| match at % 2 {
        1 if is_paired => format!("<code>{}</code>", escape(part)),
        _ => escape(part),
    });
    shown.collect::<Vec<_>>().join(if is_paired { "" } else { "`" })
}

/// A finite number. Whole numbers beyond 2^53 come as text, by the rules of [`crate::output`]; other text is none.
pub(super) fn number_of(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => None,
        ValueKind::String => {
            let whole: i128 = value.as_str()?.parse().ok()?;
            (whole.unsigned_abs() > 1 << 53).then_some(whole as f64)
        }
        _ => f64::try_from(value.clone()).ok().filter(|number| number.is_finite()),
    }
}

fn field(row: &Value, column: &str) -> Result<Value> {
    let value = row.get_attr(column)?;
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a figure wants column `{column}`, which the query lacks"),
        ));
    }
    Ok(value)
}

fn number(row: &Value, column: &str) -> Result<Option<f64>> {
    Ok(number_of(&field(row, column)?))
}

fn text(row: &Value, column: &str) -> Result<String> {
    Ok(field(row, column)?.to_string())
}

/// What a row belongs to: its name, its number, and whether it rests on an assumption.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    name: String,
    short: String,
    style: usize,
    is_assumed: bool,
}

impl Owner {
    fn full(&self) -> String {
        format!("{}\u{a0}\u{a0}{}{}", self.short, self.name, if self.is_assumed { " (assumed)" } else { "" })
    }
}

/// The owner of a row: the scenario by its number, or else the text of `column`, numbered as it appears in `known`.
fn owner(row: &Value, column: &str, known: &[Owner], looks: &Looks<'_>) -> Result<Owner> {
    let name = text(row, column)?;
    let id = row.get_attr("scenario_id").ok().and_then(|id| u64::try_from(id).ok());
    if let Some(id) = id.filter(|_| column == "scenario") {
        return Ok(Owner { name, short: id.to_string(), style: id as usize, is_assumed: looks.assumed.contains(id) });
    }
    let at = known.iter().position(|owner| owner.name == name).unwrap_or(known.len());
    let letter = char::from(b'a' + (at % 26) as u8).to_string();
    let style = looks.styles.get(&name).copied().unwrap_or(at);
    Ok(Owner { name, short: letter, style, is_assumed: false })
}

/// The place of an owner in the list, which grows if it is new.
fn place(owners: &mut Vec<Owner>, owner: Owner) -> usize {
    let found = owners.iter().position(|known| *known == owner);
    found.unwrap_or_else(|| {
        owners.push(owner);
        owners.len() - 1
    })
}

/// Both drawings of a figure.
fn both(half: bool, draw: impl Fn(Size) -> String) -> String {
    let wide = draw(if half { Size::HALF } else { Size::WIDE });
    let narrow = draw(Size::NARROW);
    format!("<div class=\"chart wide\">{wide}</div>\n<div class=\"chart narrow\">{narrow}</div>\n")
}

/// The names of lines or points; `in_drawing` if they already stand in the wide drawing.
fn legend(owners: &[Owner], in_drawing: bool) -> String {
    let mut html = format!("<ul class=\"legend{}\">", if in_drawing { " narrow" } else { "" });
    for owner in owners.iter().filter(|owner| owner.style < STYLES) {
        let badge = if owner.is_assumed { " <span class=\"badge\">assumed</span>" } else { "" };
        let (name, short) = (breakable(&owner.name), escape(&owner.short));
        let _ = write!(html, "<li><i class=\"s{}\"></i><b>{short}</b> {name}{badge}</li>", owner.style);
    }
    html.push_str("</ul>\n");
    html + &rest(owners.iter().filter(|owner| owner.style < STYLES).count(), owners.len())
}

/// What is said where not all are drawn.
fn rest(drawn: usize, all: usize) -> String {
    if drawn < all {
        format!("<p class=\"note\">{drawn} of {all} are drawn; the table has all.</p>\n")
    } else {
        String::new()
    }
}

/// The axis of a column, from the options `<axis>_title`, `<axis>_log`, `<axis>_unit` and `<axis>_zero`.
fn axis(options: &Kwargs, name: &str, column: &str) -> Result<Axis> {
    let unit: Option<String> = options.get(&format!("{name}_unit"))?;
    Ok(Axis {
        title: options.get(&format!("{name}_title"))?,
        unit: unit.unwrap_or_else(|| show::unit(column).to_owned()),
        log: options.get::<Option<bool>>(&format!("{name}_log"))?.unwrap_or(false),
        from_zero: options.get::<Option<bool>>(&format!("{name}_zero"))?.unwrap_or(true),
    })
}

/// The points of a line.
type Line = Vec<(f64, f64)>;

/// The points of each owner, in the order in which the owners appear.
fn points(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<(Vec<Owner>, Vec<Line>)> {
    let (x, y, series): (String, String, String) = (options.get("x")?, options.get("y")?, options.get("series")?);
    let looks = scenarios.looks(rows, &series)?;
    let mut owners = Vec::new();
    let mut points: Vec<Line> = Vec::new();
    for row in rows.try_iter()? {
        let owner = owner(&row, &series, &owners, &looks)?;
        let at = place(&mut owners, owner);
        points.resize(owners.len(), Vec::new());
        if let (Some(x), Some(y)) = (number(&row, &x)?, number(&row, &y)?) {
            points[at].push((x, y));
        }
    }
    Ok((owners, points))
}

/// The same value from each point to the next, then a step: what is known between two quantiles.
fn steps(points: &[(f64, f64)]) -> Line {
    let held = points.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    held.chain(points.last().copied()).collect()
}

/// Which lines lie on each other, so that the eye sees one; empty where none do.
fn alike(owners: &[Owner], points: &[Line]) -> String {
    let mut groups: Vec<(&Line, Vec<&str>)> = Vec::new();
    for (owner, line) in owners.iter().zip(points).filter(|(owner, line)| owner.style < STYLES && !line.is_empty()) {
        match groups.iter_mut().find(|group| group.0 == line) {
            Some(group) => group.1.push(&owner.short),
            None => groups.push((line, vec![&owner.short])),
        }
    }
    let several = groups.iter().filter(|group| group.1.len() > 1).map(|group| group.1.join(", "));
    let several: Vec<String> = several.collect();
    if several.is_empty() {
        return String::new();
    }
    format!("<p class=\"note\">On one line: {}.</p>\n", several.join("; "))
}

fn lines(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<String> {
    let half = options.get::<Option<bool>>("half")?.unwrap_or(false);
    let stepped = options.get::<Option<bool>>("steps")?.unwrap_or(false);
    let (owners, points) = points(rows, options, scenarios)?;
    let alike = alike(&owners, &points);
    let series = owners.iter().zip(points).map(|(owner, points)| Series {
        name: owner.full(),
        short: owner.short.clone(),
        style: owner.style,
        points: if stepped { steps(&points) } else { points },
    });
    let chart = Lines {
        title: options.get("title")?,
        x: axis(options, "x", &options.get::<String>("x")?)?,
        y: axis(options, "y", &options.get::<String>("y")?)?,
        series: series.collect(),
        mark: options.get::<Option<f64>>("mark")?.zip(options.get::<Option<String>>("mark_name")?),
    };
    Ok(both(half, |size| chart::lines(&chart, size)) + &legend(&owners, !half && alike.is_empty()) + &alike)
}

/// Panels that are drawn at most.
const PANELS: usize = 24;

/// One small chart per scenario on the same scales; `behind` is the number of the scenario drawn behind all in grey.
fn panels(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<String> {
    let behind: Option<u64> = options.get("behind")?;
    let (owners, points) = points(rows, options, scenarios)?;
    let behind = behind.and_then(|id| owners.iter().position(|owner| owner.short == id.to_string()));
    let shown = owners.iter().zip(&points).take(PANELS);
    let chart = Panels {
        title: options.get("title")?,
        x: axis(options, "x", &options.get::<String>("x")?)?,
        y: axis(options, "y", &options.get::<String>("y")?)?,
        behind: behind.map_or_else(Vec::new, |at| points[at].clone()),
        each: shown
            .map(|(owner, points)| Panel { name: owner.full(), style: owner.style, points: points.clone() })
            .collect(),
    };
    Ok(both(false, |size| chart::panels(&chart, size)) + &rest(chart.each.len(), owners.len()))
}

fn scatter(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<String> {
    let (x, y, series): (String, String, String) = (options.get("x")?, options.get("y")?, options.get("series")?);
    let frontier: String = options.get("frontier")?;
    let looks = scenarios.looks(rows, &series)?;
    let mut owners = Vec::new();
    let mut points = Vec::new();
    for row in rows.try_iter()? {
        let owner = owner(&row, &series, &owners, &looks)?;
        if let (Some(x), Some(y)) = (number(&row, &x)?, number(&row, &y)?) {
            let on_frontier = field(&row, &frontier)?.is_true();
            let (name, short) = (owner.full(), owner.short.clone());
            points.push(Point { name, short, style: owner.style, at: (x, y), on_frontier });
        }
        place(&mut owners, owner);
    }
    let chart =
        Scatter { title: options.get("title")?, x: axis(options, "x", &x)?, y: axis(options, "y", &y)?, points };
    Ok(both(false, |size| chart::scatter(&chart, size)) + &legend(&owners, true))
}

/// Bars that are drawn at most; nobody compares more by eye.
const BARS: usize = 30;

/// The name above a bar: its owner, and the text of a second column where one is named.
fn bar_name(row: &Value, owner: &Owner, detail: Option<&String>) -> Result<String> {
    Ok(match detail {
        Some(column) => format!("{} · {}", owner.full(), text(row, column)?),
        None => owner.full(),
    })
}

fn bars(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<String> {
    let (label, value): (String, String) = (options.get("label")?, options.get("value")?);
    let detail: Option<String> = options.get("detail")?;
    let marks: Vec<(String, String)> =
        options.get::<Option<Vec<Value>>>("marks")?.unwrap_or_default().iter().map(pair).collect::<Result<_>>()?;
    let missing = options.get::<Option<String>>("missing")?.unwrap_or_else(|| "unknown".to_owned());
    let price: Option<String> = options.get("price")?;
    let unit = options.get::<Option<String>>("unit")?.unwrap_or_else(|| show::unit(&value).to_owned());
    let half = options.get::<Option<bool>>("half")?.unwrap_or(false);
    let looks = scenarios.looks(rows, &label)?;
    let mut owners = Vec::new();
    let mut drawn = Vec::new();
    for row in rows.try_iter()? {
        let owner = owner(&row, &label, &owners, &looks)?;
        let name = bar_name(&row, &owner, detail.as_ref())?;
        let mut marked = Vec::new();
        for (name, column) in &marks {
            if let Some(at) = number(&row, column)? {
                marked.push((format!("{name} {}", show::figure(at, &unit)), at));
            }
        }
        let paint = if owner.style < STYLES { Paint::Style(owner.style % 4) } else { Paint::Muted };
        let bar = if let Some(value) = number(&row, &value)? {
            let part = Part { name: String::new(), paint, pale: owner.style >= 4, value };
            Bar { name, parts: vec![part], marks: marked, note: show::figure(value, &unit) }
        } else {
            let price = price.as_ref().map(|column| number(&row, column)).transpose()?;
            let note = if price == Some(None) { "not disclosed" } else { &missing };
            Bar { name, parts: Vec::new(), marks: Vec::new(), note: note.to_owned() }
        };
        drawn.push(bar);
        place(&mut owners, owner);
    }
    let all = drawn.len();
    drawn.truncate(BARS);
    let chart = Bars { title: options.get("title")?, unit, full: options.get("full")?, rows: drawn };
    Ok(both(half, |size| chart::bars(&chart, size)) + &rest(chart.rows.len(), all))
}

fn pair(value: &Value) -> Result<(String, String)> {
    let parts: Vec<Value> = value.try_iter()?.collect();
    match &parts[..] {
        [name, column] => Ok((name.to_string(), column.to_string())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "a mark is a pair of name and column")),
    }
}

/// The parts that have a colour of their own: what they are called, the hue, and whether it is pale. Memory is blue and
/// vermillion, movement purple, arithmetic green.
const PARTS: [(&str, &str, Option<usize>, bool); 18] = [
    ("kv_read", "KV read", Some(0), false),
    ("weight_read", "weight read", Some(0), true),
    ("tier_fetch", "tier fetch", Some(1), false),
    ("collectives", "collectives", Some(3), false),
    ("link", "link", Some(3), true),
    ("compute", "compute", Some(2), false),
    ("policy_work", "policy work", Some(2), true),
    ("overhead", "overhead", None, true),
    ("busy_ratio", "working", Some(2), false),
    ("waiting_ratio", "waiting for data", Some(0), false),
    ("policy_ratio", "policy work", Some(2), true),
    ("overhead_ratio", "overhead", None, true),
    ("prefill", "prefill", Some(2), false),
    ("batch_change", "batch change", Some(0), true),
    ("context_growth", "context growth", Some(0), false),
    ("preemption", "preemption", Some(1), false),
    ("tier_stall", "tier stall", Some(1), true),
    ("handover", "handover", Some(3), false),
];

fn part(name: &str, value: f64) -> Part {
    let known = PARTS.iter().find(|part| part.0 == name);
    let (name, hue, pale) = known.map_or((name, None, true), |part| (part.1, part.2, part.3));
    Part { name: name.replace('_', " "), paint: hue.map_or(Paint::Muted, Paint::Style), pale, value }
}

/// Bars of parts: either one row a part (`part` and `value` name columns), or one row a bar (`parts` names columns).
fn stacks(rows: &Value, options: &Kwargs, scenarios: &Scenarios) -> Result<String> {
    let label: String = options.get("label")?;
    let columns: Option<Vec<String>> = options.get("parts")?;
    let half = options.get::<Option<bool>>("half")?.unwrap_or(false);
    let long: Option<(String, String)> =
        if columns.is_none() { Some((options.get("part")?, options.get("value")?)) } else { None };
    let measure = columns.iter().flatten().chain(long.iter().map(|long| &long.1)).next();
    let unit = measure.map_or("", |column| show::unit(column)).to_owned();
    let detail: Option<String> = options.get("detail")?;
    let looks = scenarios.looks(rows, &label)?;
    let mut owners = Vec::new();
    let mut stacked: Vec<Bar> = Vec::new();
    let mut present: Vec<Part> = Vec::new();
    for row in rows.try_iter()? {
        let owner = owner(&row, &label, &owners, &looks)?;
        let name = bar_name(&row, &owner, detail.as_ref())?;
        place(&mut owners, owner);
        // Rows of one bar stand together.
        if stacked.last().is_none_or(|bar| bar.name != name) {
            stacked.push(Bar { name, parts: Vec::new(), marks: Vec::new(), note: String::new() });
        }
        let Some(bar) = stacked.last_mut() else { continue };
        let named: Vec<(String, String)> = match (&columns, &long) {
            (Some(columns), _) => columns.iter().map(|column| (column.clone(), column.clone())).collect(),
            (None, Some((part, value))) => vec![(text(&row, part)?, value.clone())],
            (None, None) => Vec::new(),
        };
        for (name, column) in named {
            if let Some(value) = number(&row, &column)?.filter(|value| *value > 0.0) {
                let part = part(&name, value);
                if !present.iter().any(|known| known.name == part.name) {
                    present.push(part.clone());
                }
                bar.parts.push(part);
            }
        }
    }
    let full: Option<f64> = options.get("full")?;
    let all = stacked.len();
    stacked.truncate(BARS);
    for bar in &mut stacked {
        let sum: f64 = bar.parts.iter().map(|part| part.value).sum();
        bar.note = if bar.parts.is_empty() {
            "unknown".to_owned()
        } else if full.is_none() {
            show::figure(sum, &unit)
        } else {
            String::new()
        };
    }
    let chart = Bars { title: options.get("title")?, unit, full, rows: stacked };
    Ok(both(half, |size| chart::bars(&chart, size)) + &part_legend(&present) + &rest(chart.rows.len(), all))
}

/// Cells of a heat map at most, and its rows.
const HEAT: (usize, usize) = (6000, 24);

/// A heat map: `row` and `column` name columns that say where `value` stands.
fn heat(rows: &Value, options: &Kwargs, _: &Scenarios) -> Result<String> {
    let (row, column, value): (String, String, String) =
        (options.get("row")?, options.get("column")?, options.get("value")?);
    let mut columns: Vec<String> = Vec::new();
    let mut named: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for one in rows.try_iter()? {
        let (name, place) = (text(&one, &row)?, text(&one, &column)?);
        let at = columns.iter().position(|known| *known == place).unwrap_or_else(|| {
            columns.push(place);
            columns.len() - 1
        });
        if named.last().is_none_or(|last| last.0 != name) {
            named.push((name, Vec::new()));
        }
        if let Some((_, values)) = named.last_mut() {
            values.resize(values.len().max(at + 1), None);
            values[at] = number(&one, &value)?;
        }
    }
    let all = named.len();
    named.truncate(HEAT.1.min(HEAT.0 / columns.len().max(1)).max(1));
    named.iter_mut().for_each(|(_, values)| values.resize(columns.len(), None));
    let unit = show::unit(&value).to_owned();
    let chart = Heat { title: options.get("title")?, axis: options.get("axis")?, unit, columns, rows: named };
    let drawn = chart.rows.len();
    Ok(both(false, |size| chart::heat(&chart, size)) + &rest(drawn, all))
}

fn part_legend(parts: &[Part]) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    for part in parts {
        let hue = if let Paint::Style(hue) = part.paint { format!("h{hue}") } else { "grey".to_owned() };
        let pale = if part.pale { " pale" } else { "" };
        let _ = write!(html, "<li><i class=\"box {hue}{pale}\"></i>{}</li>", escape(&part.name));
    }
    html.push_str("</ul>\n");
    html
}

#[cfg(test)]
mod tests;
