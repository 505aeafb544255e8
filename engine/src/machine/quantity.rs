//! The kinds of number in a machine or price file: their units, how they are written, and what they may be.

use crate::error::{Error, Result};
use crate::unit::{self, Unit};

/// A kind of number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    Flops,
    Bytes,
    Bandwidth,
    Time,
    Ratio,
    Chips,
    Price,
    Power,
    BitEnergy,
    Days,
    TokenPrice,
    EnergyPrice,
    MemoryPrice,
    Money,
    Years,
    Factor,
}

const PERCENT: Unit = Unit { what: "share", suffixes: &[("%", 0.01)] };
const BIT_ENERGY: Unit = Unit { what: "energy per bit", suffixes: &[("pJ/bit", 1.0)] };
const DAYS: Unit = Unit { what: "amount of work", suffixes: &[("days", 1.0)] };
const CHIPS: Unit = Unit { what: "number of chips", suffixes: &[("chips", 1.0)] };

impl Quantity {
    /// The kind that the name of a parameter or key ends in; a name without a unit is a ratio.
    pub(crate) fn of(name: &str) -> Self {
        let suffixes = [
            ("_bytes_per_s", Self::Bandwidth),
            ("_bytes", Self::Bytes),
            ("_flops", Self::Flops),
            ("_ns", Self::Time),
            ("chips", Self::Chips),
            ("usd_per_accelerator_hour", Self::Price),
            ("w_per_accelerator", Self::Power),
            ("pj_per_bit", Self::BitEnergy),
            ("_days", Self::Days),
            ("usd_per_mtok_input", Self::TokenPrice),
            ("usd_per_mtok_cached", Self::TokenPrice),
            ("usd_per_mtok_output", Self::TokenPrice),
            ("usd_per_kwh", Self::EnergyPrice),
            ("usd_per_gb", Self::MemoryPrice),
            ("capex_usd_per_accelerator", Self::Money),
            ("_years", Self::Years),
            ("pue", Self::Factor),
        ];
        suffixes.iter().find(|(suffix, _)| name.ends_with(suffix)).map_or(Self::Ratio, |(_, quantity)| *quantity)
    }

    /// The base unit, as tables print it.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Flops => "flops/s",
            Self::Bytes => "bytes",
            Self::Bandwidth => "bytes/s",
            Self::Time => "ns",
            Self::Ratio => "ratio",
            Self::Chips => "chips",
            Self::Price => "USD/h",
            Self::Power => "W",
            Self::BitEnergy => "pJ/bit",
            Self::Days => "days",
            Self::TokenPrice => "USD/Mtok",
            Self::EnergyPrice => "USD/kWh",
            Self::MemoryPrice => "USD/GB",
            Self::Money => "USD",
            Self::Years => "years",
            Self::Factor => "",
        }
    }

    /// How it is typed with a unit.
    fn unit(self) -> &'static Unit {
        match self {
            Self::Flops => &unit::FLOPS,
            Self::Bytes => &unit::BYTES,
            Self::Bandwidth => &unit::BANDWIDTH,
            Self::Time => &unit::TIME,
            Self::Ratio | Self::Factor => &PERCENT,
            Self::Chips => &CHIPS,
            Self::Price => &unit::PRICE,
            Self::Power => &unit::POWER,
            Self::BitEnergy => &BIT_ENERGY,
            Self::Days => &DAYS,
            Self::TokenPrice => &unit::TOKEN_PRICE,
            Self::EnergyPrice => &unit::ENERGY_PRICE,
            Self::MemoryPrice => &unit::MEMORY_PRICE,
            Self::Money => &unit::MONEY,
            Self::Years => &unit::YEARS,
        }
    }

    /// A quantity with its unit.
    pub(crate) fn parse(self, text: &str) -> Result<f64> {
        self.check(unit::parse(self.unit(), text)?)
    }

    /// A value of a file: text with a unit, or a plain number where the quantity has no dimension.
    pub(crate) fn parse_toml(self, value: &toml::Value) -> Result<f64> {
        let is_plain = matches!(self, Self::Ratio | Self::Chips | Self::Factor);
        match value {
            toml::Value::String(text) if !is_plain => self.parse(text),
            toml::Value::Integer(number) if is_plain => self.check(*number as f64),
            toml::Value::Float(number) if is_plain => self.check(*number),
            _ if is_plain => Err(Error::usage(format!("expected a plain number, found `{}`", show(value)))),
            _ => {
                let Unit { what, suffixes } = self.unit();
                let units: Vec<&str> = suffixes.iter().map(|(suffix, _)| *suffix).collect();
                Err(Error::usage(format!("expected a {what} with a unit, found `{}`", show(value))).hint(format!(
                    "write a text such as \"2{}\"; units: {}",
                    units[units.len() - 1],
                    units.join(", ")
                )))
            }
        }
    }

    /// Refuses what no machine has: costs divide by rates and sizes, so that they are above zero.
    pub(crate) fn check(self, value: f64) -> Result<f64> {
        let (fits, expected) = match self {
            Self::Flops | Self::Bandwidth | Self::Power | Self::Years => (value > 0.0, "more than 0"),
            Self::Bytes | Self::Time | Self::Price | Self::TokenPrice | Self::BitEnergy | Self::Days => {
                (value >= 0.0, "at least 0")
            }
            Self::EnergyPrice | Self::MemoryPrice | Self::Money => (value >= 0.0, "at least 0"),
            Self::Factor => (value >= 1.0, "at least 1"),
            Self::Ratio => (value > 0.0 && value <= 1.0, "a ratio above 0 and up to 1"),
            Self::Chips => (value >= 1.0 && value.fract() == 0.0, "a whole number of chips"),
        };
        if fits && value.is_finite() {
            return Ok(value);
        }
        Err(Error::usage(format!("expected {expected}, found `{value}`")))
    }
}

/// A value as a message quotes it.
fn show(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        other => other.type_str().to_owned(),
    }
}
