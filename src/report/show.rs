//! Numbers as people read them on the page, by their unit.

use engine::unit::{show_bandwidth, show_bytes, show_count, show_time, significant};

use crate::output::{Value, readable};

/// The words at the end of a column's name that carry its unit.
const UNITS: [(&str, &str); 26] = [
    ("change_ratio", "change"),
    ("ratio", "ratio"),
    ("bytes_per_s", "bytes/s"),
    ("bytes_per_token", "bytes"),
    ("bytes_per_output_token", "bytes"),
    ("bytes", "bytes"),
    ("ns_per_output_token", "ns"),
    ("ns", "ns"),
    ("ms", "ms"),
    ("s", "s"),
    ("usd_per_hour", "USD"),
    ("per_accelerator_hour", "USD"),
    ("usd_total", "USD"),
    ("usd_prompts", "USD"),
    ("usd_outputs", "USD"),
    ("usd_idle", "USD"),
    ("change_ns", "signed_ns"),
    ("change_usd", "signed_usd"),
    ("change_j", "signed_j"),
    ("j", "J"),
    ("usd", "USD"),
    ("tokens_per_usd", "count"),
    ("tokens_per_s", "tokens/s"),
    ("tokens_per_s_per_accelerator", "tokens/s"),
    ("tokens", "count"),
    ("j_per_output_token", "J"),
];

/// The unit that a column's name carries, by the longest of [`UNITS`] that ends it; empty where it carries none.
pub(super) fn unit(column: &str) -> &'static str {
    if column.starts_with("usd_per_mtok") {
        return "USD/Mtok";
    }
    let ends = |words: &str| column.strip_suffix(words).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'));
    let found = UNITS.iter().filter(|(words, _)| ends(words)).max_by_key(|(words, _)| words.len());
    found.map_or("", |(_, unit)| unit)
}

/// A figure with its unit, in three digits.
pub(super) fn figure(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    match unit {
        "ns" | "ms" | "s" if value == 0.0 => "0".to_owned(),
        "ns" => time(value),
        "ms" => time(value * 1e6),
        "s" => time(value * 1e9),
        "bytes" => show_bytes(value),
        "bytes/s" => show_bandwidth(value),
        "ratio" => format!("{}%", significant(value * 100.0)).replace('-', "\u{2212}"),
        "change" => change(value),
        _ if unit.starts_with("USD") => money(value),
        "flops/s" => format!("{}FLOPS", show_count(value)),
        "J" if value.abs() >= 1e4 => format!("{}J", show_count(value)),
        "J" => format!("{} J", grouped(value)),
        "tokens/s" => format!("{} tok/s", grouped(value)),
        "requests/s" => format!("{}/s", grouped(value)),
        "GiB" => format!("{} GiB", significant(value)),
        "times" => format!("{}×", significant(value)),
        _ => match unit.strip_prefix("signed_") {
            Some(unit) => signed(value, unit),
            None => grouped(value),
        },
    }
}

/// A difference with its sign; a typographic minus.
fn signed(value: f64, unit: &str) -> String {
    let unit = match unit {
        "usd" => "USD",
        "j" => "J",
        unit => unit,
    };
    let size = figure(value.abs(), unit);
    match value {
        0.0 => size,
        value if value < 0.0 => format!("\u{2212}{size}"),
        _ => format!("+{size}"),
    }
}

/// A figure on an axis: as short as the value allows.
pub(super) fn tick(value: f64, unit: &str) -> String {
    match unit {
        "tokens" if value >= 1024.0 && (value / 1024.0).fract() == 0.0 => {
            let kilo = value / 1024.0;
            if kilo >= 1024.0 { format!("{}M", significant(kilo / 1024.0)) } else { format!("{}k", significant(kilo)) }
        }
        "tokens/s" => grouped(value),
        "bytes" if value == 0.0 => "0".to_owned(),
        _ => figure(value, unit),
    }
}

/// A change against the baseline in whole percent, in tenths below ten, with its sign; a typographic minus. Beyond a
/// hundredth and tenfold it is said as a factor, since percents near 100 hide it.
pub(super) fn change(ratio: f64) -> String {
    let percent = ratio * 100.0;
    let size = percent.abs();
    let sign = if percent < 0.0 { "\u{2212}" } else { "+" };
    match size {
        _ if size < 0.05 => "±0%".to_owned(),
        _ if size < 9.95 => format!("{sign}{size:.1}%"),
        _ if percent < -99.0 && ratio > -1.0 => format!("{} times less", grouped(1.0 / (ratio + 1.0))),
        _ if size < 999.5 => format!("{sign}{size:.0}%"),
        _ => format!("{}{}×", if percent < 0.0 { "\u{2212}" } else { "" }, significant(ratio + 1.0)),
    }
}

/// A time with the letter mu, which the page can show.
fn time(ns: f64) -> String {
    show_time(ns).replace(" us", " µs")
}

/// Dollars: cents from one dollar on, three digits below, so that amounts stand in line.
fn money(value: f64) -> String {
    let minus = if value < 0.0 { "\u{2212}" } else { "" };
    match value.abs() {
        size if size >= 1000.0 => format!("{minus}${}", grouped(size)),
        size if size >= 1.0 || size == 0.0 => format!("{minus}${size:.2}"),
        size => format!("{minus}${size:.0$}", (2.0 - size.log10().floor()).clamp(2.0, 12.0) as usize),
    }
}

/// A plain number: three digits below a thousand, whole and grouped above.
fn grouped(value: f64) -> String {
    if value.abs() >= 1000.0 { readable("", &Value::Int(value.round() as i128)) } else { significant(value) }
}

#[cfg(test)]
mod tests;
