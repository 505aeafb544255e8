//! What a provider charges for tokens: read from its prompt cache, written to it, not cached at all, and generated.

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::{Certainty, from_toml, name_of};

/// The prices of one model of one provider. Nano-dollars per token are thousandths of dollars per million tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiPrices {
    /// What the user types.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Day on which the prices held, `YYYY-MM-DD`.
    pub date: String,
    /// Where they come from.
    pub source: String,
    /// How well they are known.
    pub certainty: Certainty,
    /// A prompt token without a cache, nano-dollars.
    pub input_nusd: i64,
    /// A prompt token found in the cache, nano-dollars.
    pub cached_nusd: i64,
    /// A prompt token written to the cache, nano-dollars.
    pub written_nusd: i64,
    /// A generated token, nano-dollars.
    pub output_nusd: i64,
    /// How long the cache keeps what nobody uses, ns.
    pub life_ns: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    date: String,
    source: String,
    certainty: Certainty,
    input_usd_per_mtok: f64,
    cached_usd_per_mtok: f64,
    written_usd_per_mtok: f64,
    output_usd_per_mtok: f64,
    life_s: u32,
}

/// Reads the text of a tariff; `origin` names it in messages, and its file name without the extension names the prices.
///
/// # Errors
/// A missing, unknown or foreign key; a price that is negative, above a dollar a token, or no whole number of nano-dollars
/// a token.
pub fn parse(text: &str, origin: &str) -> Result<ApiPrices> {
    let file: File = from_toml(text, origin)?;
    let price = |key: &str, usd: f64| {
        let nusd = usd * 1e3;
        let is_whole = (nusd - nusd.round()).abs() < 1e-6;
        if !is_whole || !(0.0..=1e9).contains(&nusd) {
            let found = format!("{origin}: expected `{key}` from 0 to 1,000,000 in steps of 0.001, found {usd}");
            return Err(Error::data(found).hint("prices are dollars per million tokens"));
        }
        Ok(nusd.round() as i64)
    };
    Ok(ApiPrices {
        name: name_of(origin),
        input_nusd: price("input_usd_per_mtok", file.input_usd_per_mtok)?,
        cached_nusd: price("cached_usd_per_mtok", file.cached_usd_per_mtok)?,
        written_nusd: price("written_usd_per_mtok", file.written_usd_per_mtok)?,
        output_nusd: price("output_usd_per_mtok", file.output_usd_per_mtok)?,
        life_ns: i64::from(file.life_s) * 1_000_000_000,
        title: file.title,
        date: file.date,
        source: file.source,
        certainty: file.certainty,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_prices_have_the_published_ratios() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets/api");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let prices = parse(&std::fs::read_to_string(&path).unwrap(), &path.to_string_lossy()).unwrap();
            // POLICIES 5.1: read 0.1, write 1.25 times the input.
            assert_eq!((10 * prices.cached_nusd, 4 * prices.written_nusd), (prices.input_nusd, 5 * prices.input_nusd));
            count += 1;
        }
        assert_eq!(count, 2);
    }

    #[test]
    fn a_price_must_be_a_whole_number_of_nano_dollars() {
        let text = "title='t'\ndate='d'\nsource='s'\ncertainty='assumed'\ninput_usd_per_mtok=0.0001\ncached_usd_per_mtok=0\n\
                    written_usd_per_mtok=0\noutput_usd_per_mtok=0\nlife_s=1\n";
        let error = parse(text, "x.toml").unwrap_err().to_string();
        assert!(error.contains("expected `input_usd_per_mtok`"), "{error}");
        assert_eq!(parse(&text.replace("0.0001", "2.5"), "x.toml").unwrap().input_nusd, 2500);
    }
}
