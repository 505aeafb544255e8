//! What tokens are sold for, by the promise that is kept: a dated price book with one entry for each promise.
//!
//! A promise limits the time to the first token and the time between two tokens, and says for which share of requests and
//! tokens that must hold. A replay earns the price of the dearest promise that it kept. There is no default book: what
//! tokens are sold for is the seller's own business.

use serde::Deserialize;
use toml::Spanned;

use crate::error::{Error, Result};
use crate::machine::{Number, Sourced, Sources, sourced};
use crate::model::{from_toml, located, name_of};
use crate::prices::is_date;

/// A book of token prices.
#[derive(Debug, Clone, PartialEq)]
pub struct Tariff {
    /// What the user types.
    pub name: String,
    /// What kind of price it holds.
    pub title: String,
    /// Day on which the prices were read, `YYYY-MM-DD`.
    pub date: String,
    /// The promises, in the order of the file; no name twice.
    pub promises: Vec<Promise>,
}

/// A promise and what a million tokens are sold for under it.
#[derive(Debug, Clone, PartialEq)]
pub struct Promise {
    /// What it is called.
    pub name: String,
    /// Longest time to the first token, nanoseconds; no limit if `None`.
    pub ttft_ns: Option<Sourced>,
    /// Longest time between two tokens, nanoseconds; no limit if `None`.
    pub itl_ns: Option<Sourced>,
    /// Share of requests (for the first token) and of tokens (for the gap) within the limits, such as 0.99 or 0.999.
    pub kept_ratio: f64,
    /// Prompt tokens that have to be computed, US dollars per million.
    pub usd_per_mtok_input: Sourced,
    /// Prompt tokens that the prefix cache held, US dollars per million.
    pub usd_per_mtok_cached: Sourced,
    /// Output tokens, US dollars per million.
    pub usd_per_mtok_output: Sourced,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    date: Spanned<String>,
    sources: Sources,
    promise: Vec<PromiseFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PromiseFile {
    name: Spanned<String>,
    ttft_ns: Option<Number>,
    itl_ns: Option<Number>,
    kept_ratio: Spanned<f64>,
    usd_per_mtok_input: Number,
    usd_per_mtok_cached: Number,
    usd_per_mtok_output: Number,
}

/// Reads the text of a tariff; `origin` names it in messages, and its file name without the extension names the book.
///
/// The keys are `title`, `date`, the table `[sources]` as in a machine file, and one `[[promise]]` for each promise with
/// `name`, `kept_ratio`, the prices `usd_per_mtok_input`, `usd_per_mtok_cached` and `usd_per_mtok_output` (such as
/// `"$3/Mtok"`), and, where there is a limit, `ttft_ns` and `itl_ns` (such as `"20ms"`).
///
/// # Errors
/// A missing, unknown or foreign key, a date that is none, a share outside of 0 to 1, no promise, a name that occurs twice,
/// each with its place.
pub fn parse(text: &str, origin: &str) -> Result<Tariff> {
    let file: File = from_toml(text, origin)?;
    if !is_date(file.date.get_ref()) {
        let error = Error::data(format!("expected a `date` such as 2026-04-03, found `{}`", file.date.get_ref()));
        return Err(located(text, origin, file.date.span(), &error));
    }
    if file.promise.is_empty() {
        return Err(Error::data(format!("{origin}: expected at least one `[[promise]]`, found none")));
    }
    let mut promises: Vec<Promise> = Vec::with_capacity(file.promise.len());
    for given in &file.promise {
        let name = given.name.get_ref();
        if promises.iter().any(|known| known.name == *name) {
            let error = Error::data(format!("expected one promise of each `name`, found `{name}` twice"));
            return Err(located(text, origin, given.name.span(), &error));
        }
        let kept_ratio = *given.kept_ratio.get_ref();
        if !(kept_ratio > 0.0 && kept_ratio <= 1.0) {
            let error = Error::data(format!("expected a `kept_ratio` above 0 and up to 1, found `{kept_ratio}`"));
            return Err(located(text, origin, given.kept_ratio.span(), &error));
        }
        let known = |key: &str, number: &Number| sourced(text, origin, &file.sources, key, number);
        promises.push(Promise {
            name: name.clone(),
            ttft_ns: given.ttft_ns.as_ref().map(|number| known("ttft_ns", number)).transpose()?,
            itl_ns: given.itl_ns.as_ref().map(|number| known("itl_ns", number)).transpose()?,
            kept_ratio,
            usd_per_mtok_input: known("usd_per_mtok_input", &given.usd_per_mtok_input)?,
            usd_per_mtok_cached: known("usd_per_mtok_cached", &given.usd_per_mtok_cached)?,
            usd_per_mtok_output: known("usd_per_mtok_output", &given.usd_per_mtok_output)?,
        });
    }
    Ok(Tariff { name: name_of(origin), title: file.title, date: file.date.into_inner(), promises })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn book(name: &str) -> Tariff {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets/tariff").join(format!("{name}.toml"));
        parse(&std::fs::read_to_string(path).unwrap(), &format!("presets/tariff/{name}.toml")).unwrap()
    }

    /// The list prices of DeepSeek-R1 that its published day was counted with (HARDWARE section 4).
    #[test]
    fn the_book_of_deepseek_holds_its_list_prices() {
        let tariff = book("deepseek-r1");
        let [promise] = &tariff.promises[..] else { panic!("one price") };
        let usd = [&promise.usd_per_mtok_cached, &promise.usd_per_mtok_input, &promise.usd_per_mtok_output];
        assert_eq!(usd.map(|known| known.value.to_bits()), [0.14_f64, 0.55, 2.19].map(f64::to_bits));
        assert!(promise.ttft_ns.is_none() && promise.itl_ns.is_none());
    }

    /// The price points of a keynote of 2026-03-16: 3, 6, 45 and 150 USD per million tokens.
    #[test]
    fn dearer_promises_are_stricter() {
        let tariff = book("speed-tiers");
        let dollars: Vec<f64> = tariff.promises.iter().map(|promise| promise.usd_per_mtok_output.value).collect();
        assert!(dollars.ends_with(&[3.0, 6.0, 45.0, 150.0]), "{dollars:?}");
        let gaps: Vec<f64> =
            tariff.promises.iter().filter_map(|promise| Some(promise.itl_ns.as_ref()?.value)).collect();
        assert!(gaps.is_sorted_by(|a, b| a > b) && gaps.len() == 4, "{gaps:?}");
    }

    #[test]
    fn errors_name_the_place() {
        let good = "title = 't'\ndate = '2026-04-03'\n[sources]\ns = 'text'\n[[promise]]\nname = 'a'\nkept_ratio = 0.99\n\
                    usd_per_mtok_input = { value = '$1/Mtok', source = 's', certainty = 'published' }\n\
                    usd_per_mtok_cached = { value = '$0.1/Mtok', source = 's', certainty = 'published' }\n\
                    usd_per_mtok_output = { value = '$5/Mtok', source = 's', certainty = 'published' }\n";
        assert_eq!(parse(good, "book.toml").unwrap().promises[0].usd_per_mtok_output.value.to_bits(), 5_f64.to_bits());
        let again = good.split_once("[[promise]]").unwrap().1;
        let cases = [
            (good.replace("0.99", "1.5"), "book.toml:7:14: expected a `kept_ratio` above 0 and up to 1, found `1.5`"),
            (good.replace("'$5/Mtok'", "'$5/h'"), "expected a price of tokens with a unit, found `$5/h`"),
            (good.replace("04-03", "4-3"), "book.toml:2:8: expected a `date`"),
            (format!("{good}[[promise]]{again}"), "found `a` twice"),
            (good.split_once("[[promise]]").unwrap().0.replace("[sources]", "promise = []\n[sources]"), "found none"),
        ];
        for (text, expected) in cases {
            let error = parse(&text, "book.toml").unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
