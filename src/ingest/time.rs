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
    match plain_ns(token, unit) {
        Some(value) => Some((value, true)),
        None => any_decimal_ns(token, unit),
    }
}

/// The nanoseconds of a number by its digits and how many of them stand behind the point; none where a digit stands below
/// the nanosecond, and where it does not fit.
pub(super) fn scaled_ns(digits: u64, decimals: u32, unit: TimeUnit) -> Option<i64> {
    let zeros = u32::try_from(unit.power() - i64::from(decimals)).ok()?;
    i64::try_from(digits).ok()?.checked_mul(10_i64.checked_pow(zeros)?)
}

/// As [`decimal_ns`], for a number of few digits whose last is no less than a nanosecond: nearly all are such.
fn plain_ns(token: &[u8], unit: TimeUnit) -> Option<i64> {
    // Nineteen digits fit an u64: an epoch in microseconds with three decimals has them.
    if token.len() > 20 || !token.first()?.is_ascii_digit() {
        return None;
    }
    let (mut value, mut point) = (0_u64, None);
    for (at, byte) in token.iter().enumerate() {
        match byte {
            b'0'..=b'9' => value = value * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() => point = Some(at),
            _ => return None,
        }
        // Without a point among the first nineteen, the last of twenty may not fit.
        if at == 18 && point.is_none() && token.len() == 20 {
            return None;
        }
    }
    let decimals = point.map_or(0, |point| token.len() - point - 1);
    let zeros = unit.power() - decimals as i64;
    i64::try_from(value).ok()?.checked_mul(10_i64.checked_pow(u32::try_from(zeros).ok()?)?)
}

/// As [`decimal_ns`], for any number.
fn any_decimal_ns(token: &[u8], unit: TimeUnit) -> Option<(i64, bool)> {
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

/// How a file writes its dates: one form holds for all its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DateForm {
    /// Between day and hour: a blank or `T`.
    separator: u8,
    zone: Zone,
}

/// What follows the seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    /// Nothing: local time of an unknown place.
    None,
    /// `Z`, for UTC.
    Utc,
    /// An offset from UTC such as `+00:00`.
    Offset,
}

impl DateForm {
    /// The form in which `text` is a date, if it is one.
    pub(super) fn of(text: &[u8]) -> Option<Self> {
        let separator = *text.get(10)?;
        let zone = match text.last()? {
            b'Z' => Zone::Utc,
            _ if text.len() > 6 && matches!(text[text.len() - 6], b'+' | b'-') => Zone::Offset,
            _ => Zone::None,
        };
        let form = Self { separator, zone };
        (matches!(separator, b' ' | b'T') && Dates::new(form).ns(text).is_some()).then_some(form)
    }

    /// Whether an instant is known without a guess about the place.
    pub(super) fn has_zone(self) -> bool {
        self.zone != Zone::None
    }

    /// What a date of this form looks like.
    pub(super) fn example(self) -> String {
        let separator = char::from(self.separator);
        match self.zone {
            Zone::None => format!("`2023-11-16{separator}18:17:03.9799600`, without a zone"),
            Zone::Utc => format!("`2024-10-15{separator}12:00:00.269Z`"),
            Zone::Offset => format!("`2024-05-10{separator}00:00:00.009930+00:00`"),
        }
    }

    /// The date without its zone, and the nanoseconds to subtract from it.
    fn split(self, text: &[u8]) -> Option<(&[u8], i64)> {
        match self.zone {
            Zone::None => Some((text, 0)),
            Zone::Utc => Some((text.strip_suffix(b"Z")?, 0)),
            Zone::Offset => {
                let (local, zone) = text.split_at_checked(text.len().checked_sub(6)?)?;
                let (hours, minutes) = (number(&zone[1..3])?, number(&zone[4..6])?);
                if zone[3] != b':' || hours > 23 || minutes > 59 {
                    return None;
                }
                let shift = (hours * 60 + minutes) * 60_000_000_000;
                match zone[0] {
                    b'+' => Some((local, shift)),
                    b'-' => Some((local, -shift)),
                    _ => None,
                }
            }
        }
    }
}

/// Dates of one form as nanoseconds since the Unix epoch; without a zone they are read as UTC. Rows of a trace mostly fall
/// into the minute of the row before, whose start is remembered.
#[derive(Debug, Clone)]
pub(super) struct Dates {
    form: DateForm,
    /// The last date up to the colon before its seconds, and its nanoseconds.
    minute: ([u8; 17], i64),
}

impl Dates {
    pub(super) fn new(form: DateForm) -> Self {
        Self { form, minute: ([0; 17], 0) }
    }

    pub(super) fn form(&self) -> DateForm {
        self.form
    }

    /// `2023-11-16 18:17:03.9799600` as nanoseconds; the fraction may have up to nine digits or be absent. None if it is
    /// no date of the form, or one that does not fit.
    pub(super) fn ns(&mut self, text: &[u8]) -> Option<i64> {
        let (local, shift) = self.form.split(text)?;
        let (minute, seconds) = local.split_first_chunk::<17>()?;
        if *minute != self.minute.0 {
            self.minute = (*minute, minute_ns(minute, self.form.separator)?);
        }
        let (whole, fraction) = seconds.split_at_checked(2)?;
        let whole = number(whole).filter(|whole| *whole < 60)?;
        self.minute.1.checked_add(whole * 1_000_000_000 + fraction_ns(fraction)? - shift)
    }
}

/// The number that digits stand for.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))
}

/// `2023-11-16 18:17:` in nanoseconds.
fn minute_ns(text: &[u8; 17], separator: u8) -> Option<i64> {
    if [4, 7, 10, 13, 16].map(|at| text[at]) != [b'-', b'-', separator, b':', b':'] {
        return None;
    }
    let (year, month, day) = (number(&text[0..4])?, number(&text[5..7])?, number(&text[8..10])?);
    let (hour, minute) = (number(&text[11..13])?, number(&text[14..16])?);
    if !(1..=12).contains(&month) || !(1..=days_in(year, month)).contains(&day) || hour > 23 || minute > 59 {
        return None;
    }
    let minutes = (days_from_epoch(year, month, day) * 24 + hour) * 60 + minute;
    minutes.checked_mul(60_000_000_000)
}

/// Nothing, or `.` and up to nine digits, in nanoseconds.
fn fraction_ns(text: &[u8]) -> Option<i64> {
    match text.split_first() {
        None => Some(0),
        Some((b'.', digits)) if (1..=9).contains(&digits.len()) => {
            Some(number(digits)? * 10_i64.pow(9 - digits.len() as u32))
        }
        Some(_) => None,
    }
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

    fn wall_ns(text: &[u8]) -> Option<i64> {
        Dates::new(DateForm { separator: b' ', zone: Zone::None }).ns(text)
    }

    /// By the form that is found.
    fn found_ns(text: &str) -> Option<i64> {
        Dates::new(DateForm::of(text.as_bytes())?).ns(text.as_bytes())
    }

    #[test]
    fn zones_are_honoured() {
        // 2024-05-10 00:00:00 UTC is 1,715,299,200 s after the epoch (date -u -d @1715299200).
        for (text, expected) in [
            ("2024-05-10 00:00:00.009930+00:00", Some(1_715_299_200_009_930_000)),
            ("2024-05-10 00:00:00+00:00", Some(1_715_299_200_000_000_000)),
            ("2024-05-10 02:30:00+02:30", Some(1_715_299_200_000_000_000)),
            ("2024-05-09T19:00:00-05:00", Some(1_715_299_200_000_000_000)),
            ("2024-05-10T00:00:00.269Z", Some(1_715_299_200_269_000_000)),
            ("2024-05-10T00:00:00", Some(1_715_299_200_000_000_000)),
            ("2024-05-10 00:00:00+24:00", None),
            ("2024-05-10 00:00:00+0000", None),
            ("2024-05-10 00:00:00 Z", None),
            ("2024-05-10_00:00:00Z", None),
            ("+00:00", None),
            ("Z", None),
        ] {
            assert_eq!(found_ns(text), expected, "{text}");
        }
        let form = |text: &str| DateForm::of(text.as_bytes()).unwrap();
        assert_eq!(form("2024-05-10 00:00:00+00:00"), form("2024-05-10 00:00:00.5-08:00"));
        assert_ne!(form("2024-05-10 00:00:00+00:00"), form("2024-05-10 00:00:00Z"));
        assert!(form("2024-05-10 00:00:00Z").has_zone() && !form("2024-05-10T00:00:00").has_zone());
    }

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

        /// Dates in any order are read as one by one.
        #[test]
        fn the_remembered_minute_changes_nothing(seconds in proptest::collection::vec(0_i64..400_000, 1..20)) {
            let mut dates = Dates::new(DateForm { separator: b' ', zone: Zone::None });
            for second in seconds {
                // From 1970-01-01 on, in January.
                let (day, hour, minute) = (second / 86_400 + 1, second / 3600 % 24, second / 60 % 60);
                let text = format!("1970-01-{day:02} {hour:02}:{minute:02}:{:02}.5", second % 60);
                prop_assert_eq!(dates.ns(text.as_bytes()), Some(second * 1_000_000_000 + 500_000_000));
            }
        }

        /// The short way and the general way agree wherever the short way answers.
        #[test]
        fn short_decimals_are_as_exact(token in "[0-9.e-]{1,20}", unit in 0_usize..4) {
            let unit = TimeUnit::ALL[unit];
            if let Some(value) = plain_ns(token.as_bytes(), unit) {
                prop_assert_eq!(any_decimal_ns(token.as_bytes(), unit), Some((value, true)));
            }
        }

        /// A number of whole nanoseconds written as decimal seconds comes back unchanged.
        #[test]
        fn seconds_with_nine_digits_come_back(ns in 0..i64::MAX) {
            let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
            prop_assert_eq!(decimal_ns(text.as_bytes(), TimeUnit::S), Some((ns, true)));
        }
    }
}
