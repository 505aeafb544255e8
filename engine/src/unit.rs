//! Quantities as people type and read them: `80GiB`, `3.35TB/s`, `4.8us`, `989TFLOPS`, `$2.10/h`.
//!
//! Inside kvtoll a quantity is a plain number whose unit stands in its name (`_bytes`, `_ns`, `_bytes_per_s`). Text is
//! parsed and printed only here. A bare number is refused wherever a unit is due, and GB never passes for GiB.

use crate::error::{Error, Result};

/// A kind of quantity and the units it may be written in, each with its factor to the base unit.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// What is measured, for messages.
    pub what: &'static str,
    /// Suffix and factor, longest suffix first where one ends in another.
    pub suffixes: &'static [(&'static str, f64)],
}

/// Sizes; base unit bytes.
pub const BYTES: Unit = Unit {
    what: "size",
    suffixes: &[
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("PB", 1e15),
        ("B", 1.0),
    ],
};

/// Bandwidths; base unit bytes per second.
pub const BANDWIDTH: Unit = Unit {
    what: "bandwidth",
    suffixes: &[
        ("GiB/s", 1_073_741_824.0),
        ("MB/s", 1e6),
        ("GB/s", 1e9),
        ("TB/s", 1e12),
        ("PB/s", 1e15),
        ("Gb/s", 1.25e8),
        ("Tb/s", 1.25e11),
        ("B/s", 1.0),
    ],
};

/// Times; base unit nanoseconds.
pub const TIME: Unit =
    Unit { what: "time", suffixes: &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("min", 6e10), ("h", 3.6e12), ("s", 1e9)] };

/// Rates of arithmetic; base unit operations per second.
pub const FLOPS: Unit = Unit {
    what: "rate of arithmetic",
    suffixes: &[("GFLOPS", 1e9), ("TFLOPS", 1e12), ("PFLOPS", 1e15), ("EFLOPS", 1e18), ("FLOPS", 1.0)],
};

/// Power; base unit watts.
pub const POWER: Unit = Unit { what: "power", suffixes: &[("kW", 1e3), ("MW", 1e6), ("W", 1.0)] };

/// Money per time; base unit dollars per hour.
pub const PRICE: Unit = Unit { what: "price", suffixes: &[("/h", 1.0)] };

/// Money per tokens; base unit dollars per million tokens.
pub const TOKEN_PRICE: Unit = Unit { what: "price of tokens", suffixes: &[("/Mtok", 1.0)] };

/// Money per energy; base unit dollars per kilowatt-hour.
pub const ENERGY_PRICE: Unit = Unit { what: "price of energy", suffixes: &[("/kWh", 1.0)] };

/// Money per memory; base unit dollars per gigabyte of 10^9 bytes.
pub const MEMORY_PRICE: Unit = Unit { what: "price of memory", suffixes: &[("/GB", 1.0)] };

/// Money; base unit dollars.
pub const MONEY: Unit = Unit { what: "sum of money", suffixes: &[("USD", 1.0)] };

/// Long times; base unit years of 8766 hours.
pub const YEARS: Unit = Unit { what: "number of years", suffixes: &[("years", 1.0)] };

/// Parses `text` as a quantity of this kind, in the base unit.
///
/// # Errors
/// A missing, unknown or foreign unit, and anything that is not a finite number of at least zero.
pub fn parse(unit: &Unit, text: &str) -> Result<f64> {
    let trimmed = text.trim().trim_start_matches('$');
    let suffix = unit.suffixes.iter().find(|(suffix, _)| trimmed.ends_with(suffix));
    let Some((suffix, factor)) = suffix else {
        let units: Vec<&str> = unit.suffixes.iter().map(|(suffix, _)| *suffix).collect();
        return Err(Error::usage(format!("expected a {} with a unit, found `{text}`", unit.what))
            .hint(format!("write a number and one of {}", units.join(", "))));
    };
    let number = trimmed[..trimmed.len() - suffix.len()].trim().replace('_', "");
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value * factor),
        _ => Err(Error::usage(format!("expected a {} of at least zero, found `{text}`", unit.what))),
    }
}

/// A size in the largest binary unit that keeps it at least 1, with three significant digits.
pub fn show_bytes(bytes: f64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// A bandwidth in decimal units.
pub fn show_bandwidth(bytes_per_s: f64) -> String {
    scaled(bytes_per_s, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s", "TB/s", "PB/s"])
}

/// A time in the unit that suits it.
pub fn show_time(ns: f64) -> String {
    scaled(ns, 1000.0, &["ns", "us", "ms", "s"])
}

/// A plain count or rate with a decimal prefix.
pub fn show_count(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T", "P"]).trim_end().to_owned()
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut scaled = value;
    let mut index = 0;
    while scaled.abs() >= step && index + 1 < units.len() {
        scaled /= step;
        index += 1;
    }
    format!("{} {}", significant(scaled), units[index])
}

/// Three significant digits, never in exponent form, without trailing zeros after the point.
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_with_their_unit() {
        assert_eq!(parse(&BYTES, "80GiB"), Ok(85_899_345_920.0));
        assert_eq!(parse(&BYTES, "80 GB"), Ok(80e9));
        assert_eq!(parse(&BANDWIDTH, "3.35TB/s"), Ok(3.35e12));
        assert_eq!(parse(&BANDWIDTH, "400Gb/s"), Ok(50e9));
        assert_eq!(parse(&TIME, "2us"), Ok(2000.0));
        assert_eq!(parse(&PRICE, "$2.10/h"), Ok(2.1));
    }

    #[test]
    fn bare_numbers_and_foreign_units_are_refused() {
        for (unit, text) in [(&BYTES, "80"), (&BYTES, "80GB/s"), (&TIME, "-1ns"), (&BANDWIDTH, "NaNGB/s"), (&TIME, "")]
        {
            assert!(parse(unit, text).is_err(), "{text}");
        }
    }

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(show_bytes(4_718_592.0), "4.5 MiB");
        assert_eq!(show_time(12_345.0), "12.3 us");
        assert_eq!(significant(0.036_41), "0.0364");
        assert_eq!(significant(1234.5), "1234");
    }
}
