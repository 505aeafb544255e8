//! What it costs: dollars and joules from machine time, at the utilisation that the replay found.
//!
//! Cost per million tokens is the industry's definition (HARDWARE section 4): price per accelerator-hour over tokens per
//! second and accelerator, in three variants that divide the same money by different tokens. Unknown prices stay unknown.

/// Nanoseconds of an hour.
const HOUR_NS: f64 = 3.6e12;

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
