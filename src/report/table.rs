//! Cells of tables. What a cell shows is rounded; its exact value stands in `data-v`, by which the page sorts and which it
//! writes to CSV.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error};

use super::chart::escape;
use super::figure::{cell, cell_of, number_of};
use super::show;

type Result<T> = std::result::Result<T, Error>;

/// Cells of a data table at most: what a page with many scenarios can hold, and more than anybody reads.
const CELLS: usize = 1200;

/// Rows of a data table at least.
const ROWS: usize = 24;

/// Letters of a name where there is little room.
const LETTERS: usize = 64;

/// Adds `cells`, `sample`, `td`, `breakable`, `short` and `words`.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("cells", |rows: Value, columns: Value| cells(&rows, &columns).map(Value::from_safe_string));
    environment.add_filter("sample", |rows: Value, columns: usize| sample(&rows, columns));
    environment.add_filter("td", |value: Value, unit: String, options: Kwargs| {
        let missing: Option<String> = options.get("missing")?;
        options.assert_all_used()?;
        Ok::<Value, Error>(Value::from_safe_string(td(&value, &unit, missing.as_deref())))
    });
    environment.add_filter("breakable", |value: Value| Value::from_safe_string(breakable(&value.to_string())));
    environment.add_filter("short", |value: Value| short(&value.to_string()));
    environment.add_filter("words", |value: Value| value.to_string().replace('_', " "));
}

/// The rows of a data table.
fn cells(rows: &Value, columns: &Value) -> Result<String> {
    let mut names = Vec::new();
    for column in columns.try_iter()? {
        names.push((column.get_attr("name")?.to_string(), column.get_attr("numeric")?.is_true()));
    }
    let mut html = String::new();
    for row in rows.try_iter()? {
        let id = number_of(&row.get_attr("scenario_id")?);
        match id {
            Some(id) => {
                let _ = write!(html, "<tr data-s=\"{id}\">");
            }
            None => html.push_str("<tr>"),
        }
        for (name, numeric) in &names {
            let value = row.get_attr(name)?;
            let shown = cell_of(&row, name)?;
            let shown = if *numeric { escape(&shown) } else { parted(&shown) };
            let exact = number_of(&value).filter(|_| *numeric);
            let _ = match exact {
                Some(exact) => write!(html, "<td data-v=\"{exact}\">{shown}</td>"),
                None if *numeric => write!(html, "<td class=\"num\">{shown}</td>"),
                None => write!(html, "<td>{shown}</td>"),
            };
        }
        html.push_str("</tr>\n");
    }
    Ok(html)
}

/// As many rows at equal distances as a data table of so many columns holds, with the last.
fn sample(rows: &Value, columns: usize) -> Result<Vec<Value>> {
    let rows: Vec<Value> = rows.try_iter()?.collect();
    let most = (CELLS / columns.max(1)).max(ROWS);
    let stride = rows.len().div_ceil(most).max(1);
    let last = rows.len().saturating_sub(1);
    let kept = rows.into_iter().enumerate().filter(|(at, _)| at % stride == 0 || *at == last);
    Ok(kept.map(|(_, row)| row).collect())
}

/// A cell with a number in a unit; `missing` says why there is none.
fn td(value: &Value, unit: &str, missing: Option<&str>) -> String {
    match number_of(value) {
        Some(number) => {
            let class = match unit {
                "change" | "signed_ns" | "signed_usd" | "signed_j" if number < 0.0 => " class=\"less\"",
                _ => "",
            };
            format!("<td{class} data-v=\"{number}\">{}</td>", escape(&show::figure(number, unit)))
        }
        None if value.is_none() || value.is_undefined() => {
            format!("<td class=\"num muted\" data-v=\"\">{}</td>", escape(missing.unwrap_or("–")))
        }
        None => format!("<td>{}</td>", escape(&cell(value, ""))),
    }
}

/// Letters without a place to break at most.
const UNBROKEN: usize = 32;

/// A name that breaks between its words and the stages of a stack first, within a stage between its parameters, and within
/// a word only where that is very long.
pub(super) fn breakable(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for unit in units(text) {
        let unit = parted(unit);
        if unit.contains("<wbr>") {
            let _ = write!(html, "<span class=\"u\">{unit}</span>");
        } else {
            html.push_str(&unit);
            html.push_str(if unit.ends_with('+') { "<wbr>" } else { "" });
        }
    }
    html
}

/// Words with the blanks after them, and the stages of stacks with their `+`; nothing is cut within brackets.
fn units(text: &str) -> Vec<&str> {
    let (mut units, mut start, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth <= 0 && (letter == '+' || letter.is_whitespace()) {
            // A blank stands by itself, so that a line may end there.
            let ends = if letter == '+' { [at + 1, at + 1] } else { [at, at + letter.len_utf8()] };
            for end in ends {
                units.extend(Some(&text[start..end]).filter(|unit| !unit.is_empty()));
                start = end;
            }
        }
    }
    units.extend(Some(&text[start..]).filter(|unit| !unit.is_empty()));
    units
}

/// Text with places to break behind separators, and within what would be very long without one.
fn parted(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    let (mut unbroken, mut before) = (0, ' ');
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        html.push_str(&escape(letter.encode_utf8(&mut [0; 4])));
        unbroken = if letter.is_whitespace() { 0 } else { unbroken + 1 };
        let next = letters.peek().copied().filter(|next| !next.is_whitespace());
        // The comma of a number is no separator.
        let is_number = letter == ',' && before.is_ascii_digit() && next.is_some_and(|next| next.is_ascii_digit());
        let is_separator = matches!(letter, '+' | ',' | '(' | '*' | ';' | '/') && !is_number;
        if next.is_some() && (is_separator || unbroken == UNBROKEN) {
            html.push_str("<wbr>");
            unbroken = 0;
        }
        before = letter;
    }
    html
}

/// A name that fits into a cell or a button; what is left out is replaced by an ellipsis.
fn short(text: &str) -> String {
    if text.chars().count() <= LETTERS {
        return text.to_owned();
    }
    text.chars().take(LETTERS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_shows_a_rounded_number_and_keeps_the_exact_one() {
        assert_eq!(td(&Value::from(0.123_456_789), "ratio", None), "<td data-v=\"0.123456789\">12.3%</td>");
        assert_eq!(
            td(&Value::from(()), "USD", Some("not disclosed")),
            "<td class=\"num muted\" data-v=\"\">not disclosed</td>"
        );
    }

    #[test]
    fn a_sample_keeps_the_first_and_the_last_row() {
        let rows = Value::from((0..1000).collect::<Vec<i64>>());
        let kept = sample(&rows, 12).unwrap();
        assert!(kept.len() <= CELLS / 12 + 1 && kept.len() > 50, "{}", kept.len());
        assert_eq!((kept[0].clone(), kept[kept.len() - 1].clone()), (Value::from(0), Value::from(999)));
        assert_eq!(sample(&Value::from(Vec::<i64>::new()), 3).unwrap().len(), 0);
    }

    #[test]
    fn a_stack_breaks_between_its_stages() {
        assert_eq!(
            breakable("snapkv(budget=25%)+fp8+grade(hot=20%:bf16, rest=fp8) on h200"),
            "<span class=\"u\">snapkv(<wbr>budget=25%)+</span>fp8+<wbr><span class=\"u\">grade(<wbr>hot=20%:bf16, \
             rest=fp8)</span> on h200"
        );
        assert_eq!(breakable("h200*hbm_bw=2"), "<span class=\"u\">h200*<wbr>hbm_bw=2</span>");
        assert_eq!(breakable("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
        assert_eq!(breakable("12,031 requests"), "12,031 requests");
        assert_eq!(breakable("SnapKV + TurboQuant"), "SnapKV +<wbr> TurboQuant");
        assert_eq!(parted("fp8+int4(group=32)"), "fp8+<wbr>int4(<wbr>group=32)");
        let long = parted(&"x".repeat(70));
        assert!(long.split("<wbr>").all(|part| part.len() <= UNBROKEN) && long.matches("<wbr>").count() == 2, "{long}");
        // Nothing is lost, whatever brackets there are.
        for text in ["a)+(b", "((", "ü +(", "", " ", "a  b"] {
            assert_eq!(units(text).concat(), text);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_letters() {
        let long = "ü".repeat(200);
        assert_eq!(short(&long).chars().count(), LETTERS);
        assert_eq!(short("kurz"), "kurz");
    }
}
