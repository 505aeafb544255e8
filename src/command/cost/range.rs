//! Numbers as they are typed on the command line: `1..256` doubles, `1..256*4` multiplies, `8..64+8` counts, and commas
//! make a list of any of these.

use std::collections::BTreeSet;

use engine::error::{Error, Result};

/// More numbers than a table has use for.
const MOST: usize = 10_000;

/// The numbers of `text`, in the order in which they are written, each once.
///
/// # Errors
/// What is no number or range, a range that runs backwards or never ends, more numbers than anybody reads.
pub(in crate::command) fn numbers(what: &str, text: &str) -> Result<Vec<u32>> {
    let mut found: Vec<u32> = Vec::new();
    let mut seen = BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let numbers = range(part).map_err(|error| error.context(format!("`--{what} {text}`")))?;
        for number in numbers {
            if seen.insert(number) {
                found.push(number);
            }
        }
        if found.len() > MOST {
            return Err(too_many(found.len() as u64).context(format!("`--{what} {text}`")));
        }
    }
    Ok(found)
}

/// One number, or a range with how it goes on.
fn range(text: &str) -> Result<Vec<u32>> {
    let Some((first, rest)) = text.split_once("..") else { return Ok(vec![number(text)?]) };
    let (last, step) = match (rest.split_once('*'), rest.split_once('+')) {
        (Some((last, factor)), _) => (last, Step::Times(number(factor)?)),
        (None, Some((last, more))) => (last, Step::Plus(number(more)?)),
        (None, None) => (rest, Step::Times(2)),
    };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(Error::usage(format!("expected a range that runs upwards, found `{text}`")));
    }
    if step == Step::Times(1) {
        return Err(Error::usage(format!("expected a factor above 1, found `{text}`")));
    }
    // A step that counts says at once how many numbers it makes; one that multiplies makes a few.
    if let Step::Plus(more) = step {
        let count = u64::from(last - first).div_ceil(u64::from(more)) + 1;
        if count > MOST as u64 {
            return Err(too_many(count));
        }
    }
    let mut found = vec![first];
    let mut at = u64::from(first);
    while at < u64::from(last) {
        at = match step {
            Step::Times(factor) => at * u64::from(factor),
            Step::Plus(more) => at + u64::from(more),
        };
        found.push(at.min(u64::from(last)) as u32);
    }
    Ok(found)
}

fn too_many(count: u64) -> Error {
    Error::usage(format!("expected at most {MOST} numbers, found {count}"))
        .hint("take a wider step, or a factor such as `1..256*2`")
}

/// How a range goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Times(u32),
    Plus(u32),
}

/// A whole number; `k` and `M` are thousands and millions, `Ki` and `Mi` 1,024 and its square.
fn number(text: &str) -> Result<u32> {
    let text = text.trim();
    let suffixes = [("Ki", 1024_u64), ("Mi", 1 << 20), ("k", 1000), ("M", 1_000_000), ("", 1)];
    let split = suffixes.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
    let (digits, factor) = split.unwrap_or((text, 1));
    let found = digits.parse::<u32>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let value = found.map(|number| u64::from(number) * factor).filter(|value| *value > 0);
    value.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| {
        Error::usage(format!("expected a whole number from 1 to 4,294,967,295, found `{text}`"))
            .hint("such as `64`, `1k`, `1..256` (doubling), `1..256*4`, `8..64+8` or `1,8,32`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_multiply_count_and_join() {
        let of = |text: &str| numbers("batch", text).unwrap();
        assert_eq!(of("1..8"), [1, 2, 4, 8]);
        assert_eq!(of("1..10"), [1, 2, 4, 8, 10]);
        assert_eq!(of("1k..1M*10"), [1000, 10_000, 100_000, 1_000_000]);
        assert_eq!(of("1Ki..4Ki"), [1024, 2048, 4096]);
        assert_eq!(of("8..30+8"), [8, 16, 24, 30]);
        assert_eq!(of("64, 1..4, 2"), [64, 1, 2, 4]);
        assert_eq!(of("7..7"), [7]);
        assert_eq!(of("1..4294967295").len(), 33);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let cases = [
            ("", "`--batch `: expected a whole number from 1 to 4,294,967,295, found ``"),
            ("0", "found `0`"),
            ("-1", "found `-1`"),
            ("+1", "found `+1`"),
            ("1.5k", "found `1.5k`"),
            ("5G", "found `5G`"),
            ("5000M", "found `5000M`"),
            ("1..", "found ``"),
            ("8..1", "expected a range that runs upwards, found `8..1`"),
            ("1..8*1", "expected a factor above 1"),
            ("1..8*0", "found `0`"),
            ("1..8+0", "found `0`"),
            ("1..100000+1", "expected at most 10000 numbers, found 100000"),
            ("1..4294967295+1", "expected at most 10000 numbers, found 4294967295"),
        ];
        for (text, expected) in cases {
            let error = numbers("batch", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\ninstead of {expected}");
        }
    }
}
