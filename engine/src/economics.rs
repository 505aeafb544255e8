//! What it costs: dollars and joules from machine time, at the utilisation that the replay found.
//!
//! Cost per million tokens is the industry's definition (HARDWARE section 4): price per accelerator-hour over tokens per
//! second and accelerator, in variants that divide the same money by different tokens. Beside them the money is split: each
//! step is shared by the tokens that it computes, and what no step used is idle. Unknown prices stay unknown.

/// Nanoseconds of an hour.
const HOUR_NS: f64 = 3.6e12;

/// Years over which memory is written off, as the accelerators of the owning price books are.
pub const MEMORY_LIFE_YEARS: f64 = 4.0;

/// Dollars for `accelerators` accelerators over `duration_ns`, idle time included.
pub fn cost_usd(usd_per_accelerator_hour: f64, accelerators: u32, duration_ns: f64) -> f64 {
    usd_per_accelerator_hour * f64::from(accelerators) * duration_ns / HOUR_NS
}

/// Dollars per million tokens; `None` without tokens.
pub fn usd_per_mtok(usd: f64, tokens: u64) -> Option<f64> {
    (tokens > 0).then(|| usd * 1e6 / tokens as f64)
}

/// Joules of all-in provisioned power over `duration_ns`. Energy is power times time; bytes are never priced in joules.
pub fn energy_j(w_per_accelerator: f64, accelerators: u32, duration_ns: f64) -> f64 {
    w_per_accelerator * f64::from(accelerators) * duration_ns / 1e9
}

/// Tokens by what is paid for them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Prompt tokens that had to be computed.
    pub input: u64,
    /// Prompt tokens that the prefix cache held.
    pub cached: u64,
    /// Output tokens.
    pub output: u64,
}

/// US dollars that tokens are sold for, at the prices of a million of each kind.
pub fn revenue_usd(tokens: Tokens, usd_per_mtok_input: f64, usd_per_mtok_cached: f64, usd_per_mtok_output: f64) -> f64 {
    let paid = |tokens: u64, usd: f64| tokens as f64 * usd / 1e6;
    paid(tokens.input, usd_per_mtok_input)
        + paid(tokens.cached, usd_per_mtok_cached)
        + paid(tokens.output, usd_per_mtok_output)
}

/// US dollars for the rent of memory over bytes times nanoseconds: its price, spread evenly over its life.
pub fn memory_rent_usd(usd_per_gb: f64, life_years: f64, byte_ns: f64) -> f64 {
    usd_per_gb / (life_years * 8766.0) * (byte_ns / 1e9) / HOUR_NS
}

/// Profit over cost.
pub fn markup_ratio(revenue_usd: f64, cost_usd: f64) -> f64 {
    (revenue_usd - cost_usd) / cost_usd
}

/// Profit over revenue. Not the same figure as the markup: 545% markup is 84.5% margin.
pub fn gross_margin_ratio(revenue_usd: f64, cost_usd: f64) -> f64 {
    (revenue_usd - cost_usd) / revenue_usd
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DeepSeek's published day (HARDWARE section 4): 226.75 nodes of 8 H800 at an assumed 2 USD/h.
    #[test]
    fn the_published_day_of_deepseek() {
        let cost = cost_usd(2.0, 1814, 24.0 * HOUR_NS);
        assert!((cost - 87_072.0).abs() < 0.5, "{cost}");
        assert!((markup_ratio(562_027.0, cost) - 5.45).abs() < 0.01);
        assert!((gross_margin_ratio(562_027.0, cost) - 0.845).abs() < 0.001);
    }

    /// The same day from the published counts and list prices: 342 billion cached, 266 billion computed and 168 billion output
    /// tokens at 0.14, 0.55 and 2.19 USD per million come to 562,100 USD; published are 562,027 USD and 545%.
    #[test]
    fn the_revenue_of_that_day_from_rounded_counts() {
        let tokens = Tokens { input: 266_000_000_000, cached: 342_000_000_000, output: 168_000_000_000 };
        let revenue = revenue_usd(tokens, 0.55, 0.14, 2.19);
        assert!((revenue - 562_100.0).abs() < 0.5, "{revenue}");
        let cost = cost_usd(2.0, 1814, 24.0 * HOUR_NS);
        assert_eq!((100.0 * markup_ratio(revenue, cost)).floor().to_bits(), 545_f64.to_bits());
        assert!((100.0 * gross_margin_ratio(revenue, cost) - 84.5).abs() < 0.05);
        // The two are one figure in two clothes.
        let (markup, margin) = (markup_ratio(revenue, cost), gross_margin_ratio(revenue, cost));
        assert!((margin - markup / (1.0 + markup)).abs() < 1e-12);
    }

    /// Crusoe's DeepSeek-R1 (HARDWARE section 4): 0.226 and 2.955 USD of cost, 1.35 and 5.40 USD of price per million.
    #[test]
    fn the_published_margins_of_crusoe() {
        let percent = |price, cost| (100.0 * gross_margin_ratio(price, cost)).round() as i64;
        assert_eq!((percent(1.35, 0.226), percent(5.40, 2.955)), (83, 45));
    }

    /// A gigabyte of 27 USD over 4 years costs 0.00077 USD an hour.
    #[test]
    fn memory_rents_at_its_price_over_its_life() {
        let usd = memory_rent_usd(27.0, 4.0, 1e9 * HOUR_NS);
        assert!((usd - 7.7e-4).abs() < 1e-6, "{usd}");
    }

    /// The industry's formula: cost per M = USD/h / (tokens/s/accelerator * 0.0036).
    #[test]
    fn cost_per_million_is_the_usual_formula() {
        let (price, rate) = (1.41, 350.0);
        let tokens = (rate * 3600.0 * 8.0) as u64;
        let found = usd_per_mtok(cost_usd(price, 8, HOUR_NS), tokens).unwrap();
        assert!((found - price / (rate * 0.0036)).abs() < 1e-9);
        assert_eq!(usd_per_mtok(1.0, 0), None);
    }
}
