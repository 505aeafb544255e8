//! What an accelerator costs per hour and how much power is provisioned for it, by machine, in a dated price book.
//!
//! A book holds one way of paying (owning at a hyperscaler, owning at a neocloud, renting), so that its rows compare.
//! What nobody has published is null; there is no default price. A book may also say what an accelerator takes to own
//! (capital, years, power, the facility's overhead, the price of electricity); its price per hour then follows from these.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{Error, Result};
use crate::machine::{Number, Sourced, Sources, sourced};
use crate::model::{Certainty, from_toml, located, name_of};

/// A price book.
#[derive(Debug, Clone, PartialEq)]
pub struct PriceBook {
    /// What the user types.
    pub name: String,
    /// What kind of price it holds.
    pub title: String,
    /// Day on which the prices were read, `YYYY-MM-DD`.
    pub date: String,
    /// What memory beside an accelerator costs to buy, US dollars per gigabyte; null where unknown.
    pub hbm_usd_per_gb: Option<Sourced>,
    /// The prices, in the order of the file; no machine twice.
    pub items: Vec<Price>,
}

/// What it takes to own an accelerator.
#[derive(Debug, Clone, PartialEq)]
pub struct Owning {
    /// Capital for one accelerator with its share of the rack, US dollars.
    pub capex_usd: Sourced,
    /// Years until it is written off.
    pub life_years: Sourced,
    /// Power of one accelerator with its share of host and network, without the facility, watts.
    pub it_w: Sourced,
    /// Power of the facility over that of what stands in it.
    pub pue: Sourced,
    /// Electricity, US dollars per kilowatt-hour.
    pub usd_per_kwh: Sourced,
}

/// The price of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Price {
    /// Name of the machine's preset.
    pub machine: String,
    /// Price of one accelerator for one hour, US dollars; null where unknown.
    pub usd_per_accelerator_hour: Option<Sourced>,
    /// All-in provisioned power of one accelerator (host, network and facility included), watts; null where unknown.
    pub w_per_accelerator: Option<Sourced>,
    /// What the price per hour follows from, where the book owns its accelerators piece by piece.
    pub owning: Option<Owning>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    date: Spanned<String>,
    sources: Sources,
    hbm_usd_per_gb: Option<Number>,
    owning: Option<OwningFile>,
    price: Vec<PriceFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwningFile {
    life_years: Number,
    pue: Number,
    usd_per_kwh: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    machine: Spanned<String>,
    usd_per_accelerator_hour: Option<Number>,
    w_per_accelerator: Option<Number>,
    capex_usd_per_accelerator: Option<Number>,
    it_w_per_accelerator: Option<Number>,
}

/// Reads the text of a price book; `origin` names it in messages, and its file name without the extension names the
/// book.
///
/// The keys are `title`, `date`, the table `[sources]` as in a machine file, and one `[[price]]` for each machine with
/// `machine`, `usd_per_accelerator_hour` (such as `"$2.10/h"`) and `w_per_accelerator` (such as `"1.73kW"`). A price
/// that is not known is left out. A book that owns has `[owning]` with `life_years`, `pue` and `usd_per_kwh`, and instead of
/// the first two of each price `capex_usd_per_accelerator` and `it_w_per_accelerator`.
///
/// # Errors
/// A missing, unknown or foreign key, a date that is none, a machine that occurs twice, each with its place.
pub fn parse(text: &str, origin: &str) -> Result<PriceBook> {
    let file: File = from_toml(text, origin)?;
    if !is_date(file.date.get_ref()) {
        let error = Error::data(format!("expected a `date` such as 2026-04-03, found `{}`", file.date.get_ref()));
        return Err(located(text, origin, file.date.span(), &error));
    }
    let mut items: Vec<Price> = Vec::with_capacity(file.price.len());
    for given in &file.price {
        let machine = given.machine.get_ref();
        if items.iter().any(|item| item.machine == *machine) {
            let error = Error::data(format!("expected one price for each `machine`, found `{machine}` twice"));
            return Err(located(text, origin, given.machine.span(), &error));
        }
        let known = |key: &str, number: &Option<Number>| {
            number.as_ref().map(|number| sourced(text, origin, &file.sources, key, number)).transpose()
        };
        let parts = [
            known("capex_usd_per_accelerator", &given.capex_usd_per_accelerator)?,
            known("it_w_per_accelerator", &given.it_w_per_accelerator)?,
        ];
        let terms = file.owning.as_ref().map(|terms| {
            let term = |key: &str, number: &Number| sourced(text, origin, &file.sources, key, number);
            let [life, pue] = [term("life_years", &terms.life_years), term("pue", &terms.pue)];
            Ok::<_, Error>([life?, pue?, term("usd_per_kwh", &terms.usd_per_kwh)?])
        });
        let owning =
            owning(parts, terms.transpose()?).map_err(|error| located(text, origin, given.machine.span(), &error))?;
        let stated = Price {
            machine: machine.clone(),
            usd_per_accelerator_hour: known("usd_per_accelerator_hour", &given.usd_per_accelerator_hour)?,
            w_per_accelerator: known("w_per_accelerator", &given.w_per_accelerator)?,
            owning: None,
        };
        items.push(owning.map_or(stated, |owning| owned(machine, owning)));
    }
    let hbm = file.hbm_usd_per_gb.as_ref();
    let hbm = hbm.map(|number| sourced(text, origin, &file.sources, "hbm_usd_per_gb", number)).transpose()?;
    Ok(PriceBook { name: name_of(origin), title: file.title, date: file.date.into_inner(), hbm_usd_per_gb: hbm, items })
}

/// What it takes to own, if the book says all of it.
fn owning([capex, it_w]: [Option<Sourced>; 2], terms: Option<[Sourced; 3]>) -> Result<Option<Owning>> {
    match (capex, it_w, terms) {
        (Some(capex_usd), Some(it_w), Some([life_years, pue, usd_per_kwh])) => {
            Ok(Some(Owning { capex_usd, life_years, it_w, pue, usd_per_kwh }))
        }
        (None, None, _) => Ok(None),
        _ => Err(Error::data("expected `[owning]`, `capex_usd_per_accelerator` and `it_w_per_accelerator` together")),
    }
}

/// US dollars of one accelerator for one hour: capital over the hours of its life, and its electricity.
pub fn owned_usd_per_hour(capex_usd: f64, life_years: f64, w: f64, usd_per_kwh: f64) -> f64 {
    /// Hours of a year, leap years on average.
    const HOURS: f64 = 8766.0;
    capex_usd / (life_years * HOURS) + w / 1e3 * usd_per_kwh
}

/// The price that follows from owning: capital over its hours, and the electricity of the facility's share.
fn owned(machine: &str, owning: Owning) -> Price {
    let Owning { capex_usd, life_years, it_w, pue, usd_per_kwh } = &owning;
    let certainty = [capex_usd, life_years, it_w, pue, usd_per_kwh].map(|known| known.certainty);
    let least = certainty.into_iter().min().unwrap_or(Certainty::Assumed);
    let watts = it_w.value * pue.value;
    let usd = owned_usd_per_hour(capex_usd.value, life_years.value, watts, usd_per_kwh.value);
    let source = format!(
        "capital of {:.0} USD ({}) over {} years, and {:.2} kW at {} USD/kWh",
        capex_usd.value,
        capex_usd.source,
        life_years.value,
        watts / 1e3,
        usd_per_kwh.value,
    );
    let power = format!("{}, times a PUE of {}", it_w.source, pue.value);
    Price {
        machine: machine.to_owned(),
        usd_per_accelerator_hour: Some(Sourced { value: usd, source, certainty: least }),
        w_per_accelerator: Some(Sourced { value: watts, source: power, certainty: it_w.certainty.min(pue.certainty) }),
        owning: Some(owning),
    }
}

/// The price of a machine, by the name of its preset; both figures are null where the book does not have it.
pub fn price_of(book: &PriceBook, machine: &str) -> Price {
    let unknown =
        || Price { machine: machine.to_owned(), usd_per_accelerator_hour: None, w_per_accelerator: None, owning: None };
    book.items.iter().find(|item| item.machine == machine).cloned().unwrap_or_else(unknown)
}

/// Whether the text has the form of a date.
pub(crate) fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let number = |part: &str, digits: usize| {
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse::<u32>().unwrap_or(0))
    };
    match parts[..] {
        [year, month, day] => {
            let day_and_month = number(month, 2).zip(number(day, 2));
            number(year, 4).is_some()
                && day_and_month.is_some_and(|(month, day)| (1..=12).contains(&month) && (1..=31).contains(&day))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn presets(kind: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets").join(kind)
    }

    fn book(name: &str) -> PriceBook {
        let text = std::fs::read_to_string(presets("prices").join(format!("{name}.toml"))).unwrap();
        parse(&text, &format!("presets/prices/{name}.toml")).unwrap()
    }

    fn usd(book: &PriceBook, machine: &str) -> Option<f64> {
        price_of(book, machine).usd_per_accelerator_hour.map(|known| known.value)
    }

    /// Constants of `SemiAnalysis` `InferenceX` of 2026-04-03: USD per GPU-hour of the three books, and kW per GPU.
    const PUBLISHED: [(&str, [f64; 3], f64); 5] = [
        ("h100", [1.3, 1.69, 1.3], 1.73),
        ("h200", [1.41, 1.74, 1.6], 1.73),
        ("b200", [1.95, 2.34, 2.9], 2.17),
        ("gb200", [2.21, 2.75, 3.3], 2.1),
        ("gb300", [2.652, 3.3, 3.96], 2.1),
    ];

    #[test]
    fn the_books_hold_the_published_constants() {
        for (index, name) in ["hyperscaler", "neocloud", "rental"].into_iter().enumerate() {
            let book = book(name);
            assert_eq!((book.name.as_str(), book.date.as_str()), (name, "2026-04-03"));
            for (machine, dollars, kilowatts) in PUBLISHED {
                assert_eq!(usd(&book, machine), Some(dollars[index]), "{name} {machine}");
                let power = price_of(&book, machine).w_per_accelerator.unwrap();
                assert!((power.value - kilowatts * 1e3).abs() < 1e-6, "{name} {machine}");
            }
            // The rows of the GB300 are placeholders in their source.
            let certainty = |machine| price_of(&book, machine).usd_per_accelerator_hour.unwrap().certainty;
            assert_eq!((certainty("gb200"), certainty("gb300")), (Certainty::Published, Certainty::Assumed));
        }
    }

    #[test]
    fn what_is_not_published_has_no_price() {
        let hyperscaler = book("hyperscaler");
        assert_eq!(usd(&hyperscaler, "vera-rubin"), Some(4.03));
        let watts = price_of(&hyperscaler, "vera-rubin").w_per_accelerator.unwrap().value;
        assert!((watts * 72.0 - 210e3).abs() < 1.0, "{watts}");
        for name in ["hyperscaler", "neocloud", "rental"] {
            for machine in ["vera-rubin-lpx", "tpu-v7-384", "no-such-machine"] {
                let price = price_of(&book(name), machine);
                assert_eq!((price.usd_per_accelerator_hour, price.w_per_accelerator), (None, None), "{name} {machine}");
            }
            assert_eq!(usd(&book(name), "tpu-v7").is_some(), name == "rental");
        }
    }

    /// 52,083 USD over 4 years of 8766 hours is 1.4853 USD/h, and 2.01 kW times 1.16 at 0.09 USD/kWh is 0.2102 USD/h.
    #[test]
    fn owning_costs_capital_and_electricity() {
        let book = book("own");
        let found = price_of(&book, "gb200");
        let owning = found.owning.unwrap();
        let capital = owning.capex_usd.value / (owning.life_years.value * 8766.0);
        let electricity = owning.it_w.value * owning.pue.value / 1e3 * owning.usd_per_kwh.value;
        assert!((capital - 1.4854).abs() < 1e-3 && (electricity - 0.2102).abs() < 1e-3, "{capital} {electricity}");
        assert!((found.usd_per_accelerator_hour.unwrap().value - capital - electricity).abs() < 1e-9);
        assert!((found.w_per_accelerator.unwrap().value - 2014.0 * 1.16).abs() < 1.0);
        assert!(price_of(&book, "tpu-v7").owning.is_none());
        let wrong = "title = 't'\ndate = '2026-04-03'\n[sources]\ns = 'text'\n[[price]]\nmachine = 'h100'\n\
                     capex_usd_per_accelerator = { value = '1USD', source = 's', certainty = 'assumed' }\n";
        assert!(parse(wrong, "b.toml").unwrap_err().to_string().contains("b.toml:6:11: expected `[owning]`"));
    }

    #[test]
    fn every_book_prices_known_machines_only() {
        for entry in std::fs::read_dir(presets("prices")).unwrap() {
            let path = entry.unwrap().path();
            for item in book(&path.file_stem().unwrap().to_string_lossy()).items {
                assert!(presets("machine").join(format!("{}.toml", item.machine)).exists(), "{}", item.machine);
            }
        }
    }

    #[test]
    fn errors_name_the_place() {
        let good = "title = 't'\ndate = '2026-04-03'\n[sources]\ns = 'text'\n[[price]]\nmachine = 'h100'\n\
                    usd_per_accelerator_hour = { value = '$1.30/h', source = 's', certainty = 'published' }\n";
        assert_eq!(usd(&parse(good, "book.toml").unwrap(), "h100"), Some(1.3));
        let twice = format!("{good}[[price]]\nmachine = 'h100'\n");
        let cases = [
            (good.replace("04-03", "4-3"), "book.toml:2:8: expected a `date` such as 2026-04-03, found `2026-4-3`"),
            (good.replace("04-03", "13-03"), "book.toml:2:8: expected a `date` such as 2026-04-03, found `2026-13-03`"),
            (
                good.replace("'$1.30/h'", "1.3"),
                "book.toml:7:38: `usd_per_accelerator_hour`: expected a price with a unit",
            ),
            (good.replace("source = 's'", "source = 'r'"), "`usd_per_accelerator_hour`: unknown source `r`"),
            (
                good.replace("usd_per", "eur_per"),
                "book.toml:7:1: unknown field `eur_per_accelerator_hour`, expected one of",
            ),
            (twice, "book.toml:9:11: expected one price for each `machine`, found `h100` twice"),
        ];
        for (text, expected) in cases {
            let error = parse(&text, "book.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
