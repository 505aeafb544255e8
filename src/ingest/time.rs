//! Instants as exact nanoseconds. No floating point: an epoch in microseconds with nanosecond digits does not fit an f64.

use engine::error::{Result, unknown};

/// The unit of a file's instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Nanoseconds.
    Ns,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl TimeUnit {
    const ALL: [Self; 4] = [Self::Ns, Self::Us, Self::Ms, Self::S];

    /// As it is typed and stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::Us => "us",
            Self::Ms => "ms",
            Self::S => "s",
        }
    }

    /// The unit of this name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn parse(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|unit| unit.name() == text);
        found.ok_or_else(|| unknown("time unit", text, Self::ALL.map(Self::name)))
    }

    /// How many nanoseconds it has, as a power of ten.
    fn power(self) -> i64 {
        match self {
            Self::Ns => 0,
            Self::Us => 3,
            Self::Ms => 6,
            Self::S => 9,
        }
    }
}

/// A JSON number of at least zero as nanoseconds, and whether it was exact; digits below the nanosecond round to nearest.
/// None if it is no such number, or does not fit.
pub(super) fn decimal_ns(token: &[u8], unit: TimeUnit) -> Option<(i64, bool)> {
    let (mantissa, exponent) = match token.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&token[..at], exponent(&token[at + 1..])?),
        None => (token, 0),
    };
    let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    if whole.is_empty() || !whole.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let digits: Vec<u8> = whole.iter().chain(fraction).copied().skip_while(|digit| *digit == b'0').collect();
    if digits.is_empty() {
        return Some((0, true));
    }
    // The value is 0.d1d2d3... times ten to the power of `point`: the digits before `point` are whole nanoseconds.
    let point = digits.len() as i64 - fraction.len() as i64 + exponent + unit.power();
    if point > 19 {
        return None;
    }
    let mut value: i128 = 0;
    for at in 0..point.max(0) as usize {
        value = value * 10 + i128::from(digits.get(at).map_or(0, |digit| digit - b'0'));
    }
    let below = if point < 0 { &digits[..] } else { digits.get(point as usize..).unwrap_or_default() };
    if point >= 0 && below.first().is_some_and(|digit| *digit >= b'5') {
        value += 1;
    }
    let exact = below.iter().all(|digit| *digit == b'0');
    i64::try_from(value).ok().map(|value| (value, exact))
}

/// An exponent; one of more than six digits has run out of every range and is cut there.
fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0_i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(999_999));
    Some(if negative { -value } else { value })
}

/// `2023-11-16 18:17:03.9799600`, read as UTC, as nanoseconds since the Unix epoch; the fraction may have up to nine
/// digits or be absent. None if it is no such instant.
pub(super) fn wall_ns(text: &[u8]) -> Option<i64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then(|| digits.iter().fold(0, |sum, d| sum * 10 + i64::from(d - b'0')))
    };
    let separated = [(4, b'-'), (7, b'-'), (10, b' '), (13, b':'), (16, b':')];
    if !separated.iter().all(|(at, byte)| text.get(*at) == Some(byte)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let fraction = match text.get(19) {
        None => 0,
        Some(b'.') if (21..=29).contains(&text.len()) => number(20, text.len())? * 10_i64.pow(29 - text.len() as u32),
        Some(_) => return None,
    };
    let seconds = ((days_from_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 in the proleptic Gregorian calendar, for years from 0.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    // Years are counted from March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 153 days in five months from March; 719,468 days from 0000-03-01 to 1970-01-01.
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn instants_are_exact() {
        // 2023-11-16 18:17:03 UTC is 1,700,158,623 s after the epoch (date -u -d @1700158623).
        assert_eq!(wall_ns(b"2023-11-16 18:17:03.9799600"), Some(1_700_158_623_979_960_000));
        assert_eq!(wall_ns(b"2023-11-16 18:17:03"), Some(1_700_158_623_000_000_000));
        assert_eq!(wall_ns(b"1970-01-01 00:00:00.000000001"), Some(1));
        assert_eq!(wall_ns(b"2024-02-29 00:00:00"), Some(1_709_164_800_000_000_000));
        assert_eq!(wall_ns(b"1969-12-31 23:59:59.5"), Some(-500_000_000));
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        for text in [
            "",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-11-16T18:17:03",
            "2023-11-16 24:00:00",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.1234567890",
            "2023-11-16 18:17:03Z",
            "2023-11-16 18:17:03.97+00:00",
            "9999-12-31 00:00:00",
        ] {
            assert_eq!(wall_ns(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn decimals_are_exact() {
        for (text, unit, expected) in [
            ("0", TimeUnit::Ms, Some((0, true))),
            ("27482", TimeUnit::Ms, Some((27_482_000_000, true))),
            ("27482.5", TimeUnit::Ms, Some((27_482_500_000, true))),
            ("1745958025.859885", TimeUnit::S, Some((1_745_958_025_859_885_000, true))),
            ("0.0000000004", TimeUnit::S, Some((0, false))),
            ("0.0000000005", TimeUnit::S, Some((1, false))),
            ("1.5e3", TimeUnit::S, Some((1_500_000_000_000, true))),
            ("15E-1", TimeUnit::Us, Some((1500, true))),
            ("9223372036854775807", TimeUnit::Ns, Some((i64::MAX, true))),
            ("9223372036854775808", TimeUnit::Ns, None),
            ("1e99999999999", TimeUnit::Ns, None),
            ("1e-99999999999", TimeUnit::Ns, Some((0, false))),
            ("-1", TimeUnit::Ms, None),
            (".5", TimeUnit::Ms, None),
        ] {
            assert_eq!(decimal_ns(text.as_bytes(), unit), expected, "{text}");
        }
    }

    proptest! {
        /// Days counted one by one give the same number.
        #[test]
        fn the_calendar_counts_days(year in 1960_i64..2110, month in 1_i64..13, day in 1_i64..29) {
            let years: i64 = if year >= 1970 {
                (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum()
            } else {
                -(year..1970).map(|year| if is_leap(year) { 366 } else { 365 }).sum::<i64>()
            };
            let months: i64 = (1..month).map(|month| days_in(year, month)).sum();
            prop_assert_eq!(days_from_epoch(year, month, day), years + months + day - 1);
        }

        /// A number of whole nanoseconds written as decimal seconds comes back unchanged.
        #[test]
        fn seconds_with_nine_digits_come_back(ns in 0..i64::MAX) {
            let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
            prop_assert_eq!(decimal_ns(text.as_bytes(), TimeUnit::S), Some((ns, true)));
        }
    }
}
