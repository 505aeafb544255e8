//! How many tokens a block of a trace has and how a partial last block is counted, found from the first rows.
//!
//! Formats that are written by many tools share their keys but not these two settings. A row tells them apart where
//! its number of ids fits only some of the choices; a row that fits several votes for each of them.

use engine::error::{Error, Result};

use super::Origin;

/// How a partial last block is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// It counts.
    Ceil,
    /// It has no id.
    Floor,
}

/// How a prompt is cut into blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Tokens of a block; at least 1.
    pub(super) tokens: u32,
    /// The partial last block.
    pub(super) rounding: Rounding,
}

/// Ids of a prompt of four billion tokens in blocks of 512.
pub(super) const MOST: usize = 1 << 23;

/// The sizes that the known tools write, then those that other engines use.
const SIZES: [u32; 3] = [512, 64, 16];
const OTHER_SIZES: [u32; 7] = [256, 128, 32, 1024, 2048, 8, 1];

impl Rounding {
    /// As it stands in `sources`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ceil => "ceil",
            Self::Floor => "floor",
        }
    }
}

impl Blocks {
    /// Ids of a prompt.
    pub(super) fn count(self, tokens: u32) -> u32 {
        match self.rounding {
            Rounding::Ceil => tokens.div_ceil(self.tokens),
            Rounding::Floor => tokens / self.tokens,
        }
    }

    /// The most ids that a prompt may have: a line of nothing but ids must not fill the memory.
    pub(super) fn most(self) -> usize {
        MOST.min(u32::MAX.div_ceil(self.tokens) as usize)
    }

    fn fits(self, rows: &[(u32, usize)]) -> usize {
        rows.iter().filter(|(tokens, ids)| self.count(*tokens) as usize == *ids).count()
    }

    fn shown(self) -> String {
        format!("{} of {} tokens", self.rounding.name(), self.tokens)
    }
}

/// The block size that the parts of a file have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Common {
    /// No part has named one.
    #[default]
    Unknown,
    /// All that named one named this.
    One(u32),
    /// They differ.
    Several,
}

impl Common {
    /// Takes a further part into account.
    pub(super) fn add(&mut self, tokens: u32) {
        *self = match *self {
            Self::Unknown => Self::One(tokens),
            Self::One(before) if before == tokens => Self::One(tokens),
            _ => Self::Several,
        };
    }

    /// The one size.
    pub(super) fn one(self) -> Option<u32> {
        if let Self::One(tokens) = self { Some(tokens) } else { None }
    }
}

/// Finds the settings from the first rows, given as (tokens, ids), where `standard` is what the format says.
///
/// # Errors
/// A flag of 0, or one that most of the rows contradict.
pub(super) fn guess(
    path: &str,
    rows: &[(u32, usize)],
    standard: Blocks,
    flag: Option<u32>,
) -> Result<(Blocks, Origin)> {
    let Some(size) = flag else {
        return Ok(match best(rows, standard) {
            Some(found) if found != standard => (found, Origin::Detected),
            _ => (standard, Origin::Format),
        });
    };
    if size == 0 {
        return Err(Error::usage("expected blocks of at least one token, found 0"));
    }
    let flagged = most_fitting(rows, &[size], standard);
    if let Some(found) = best(rows, standard)
        && found.tokens != size
        && flagged.fits(rows) < found.fits(rows)
        && flagged.fits(rows) * 2 < rows.len()
    {
        return Err(Error::data(format!(
            "expected blocks of {size} tokens in `{path}`, as the flag says, found {} in its first rows",
            found.shown()
        ))
        .hint("without the flag the block size is found from the data"));
    }
    Ok((flagged, Origin::Flag))
}

/// What fits most rows; none if nothing fits half of them.
fn best(rows: &[(u32, usize)], standard: Blocks) -> Option<Blocks> {
    let good = |found: Blocks| (found.fits(rows) * 2 >= rows.len()).then_some(found);
    good(most_fitting(rows, &SIZES, standard)).or_else(|| good(most_fitting(rows, &OTHER_SIZES, standard)))
}

/// The choice of most votes; the format's own wins a tie, then its rounding, then the order of the sizes.
fn most_fitting(rows: &[(u32, usize)], sizes: &[u32], standard: Blocks) -> Blocks {
    let other = if standard.rounding == Rounding::Ceil { Rounding::Floor } else { Rounding::Ceil };
    let all = [standard.rounding, other]
        .into_iter()
        .flat_map(|rounding| sizes.iter().map(move |tokens| Blocks { tokens: *tokens, rounding }));
    let own = sizes.contains(&standard.tokens).then_some(standard);
    let mut best = own.unwrap_or(Blocks { tokens: sizes[0], rounding: standard.rounding });
    let mut votes = best.fits(rows);
    for choice in all {
        let fits = choice.fits(rows);
        if fits > votes {
            (best, votes) = (choice, fits);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STANDARD: Blocks = Blocks { tokens: 512, rounding: Rounding::Ceil };

    fn rows(blocks: Blocks, tokens: &[u32]) -> Vec<(u32, usize)> {
        tokens.iter().map(|tokens| (*tokens, blocks.count(*tokens) as usize)).collect()
    }

    #[test]
    fn the_format_stands_until_a_row_decides() {
        for tokens in [&[][..], &[0], &[512, 1024], &[1]] {
            assert_eq!(guess("f", &rows(STANDARD, tokens), STANDARD, None).unwrap(), (STANDARD, Origin::Format));
        }
        let floor = Blocks { tokens: 64, rounding: Rounding::Floor };
        assert_eq!(guess("f", &rows(floor, &[640, 700]), STANDARD, None).unwrap(), (floor, Origin::Detected));
        // One bad row does not turn the others around.
        assert_eq!(guess("f", &[(700, 2), (12_035, 3), (700, 2)], STANDARD, None).unwrap().0, STANDARD);
    }

    #[test]
    fn a_flag_that_the_rows_contradict_is_refused() {
        let found = rows(STANDARD, &[700, 6000, 12_035]);
        let error = guess("f", &found, STANDARD, Some(16)).unwrap_err();
        let expected =
            "expected blocks of 16 tokens in `f`, as the flag says, found ceil of 512 tokens in its first rows";
        assert_eq!(error.to_string(), expected);
        assert_eq!(guess("f", &found, STANDARD, Some(0)).unwrap_err().kind(), engine::error::Kind::Usage);
        let odd = Blocks { tokens: 48, rounding: Rounding::Floor };
        assert_eq!(guess("f", &rows(odd, &[700, 6000]), STANDARD, Some(48)).unwrap(), (odd, Origin::Flag));
    }

    proptest! {
        /// Lengths that are not multiples of a size give it away, whatever the format says.
        #[test]
        fn long_prompts_decide(
            at in 0_usize..3,
            floor in any::<bool>(),
            tokens in proptest::collection::vec(5000_u32..200_000, 8..40),
        ) {
            let rounding = if floor { Rounding::Floor } else { Rounding::Ceil };
            let truth = Blocks { tokens: SIZES[at], rounding };
            let odd: Vec<u32> = tokens.iter().map(|tokens| tokens | 1).collect();
            prop_assert_eq!(guess("f", &rows(truth, &odd), STANDARD, None).unwrap().0, truth);
        }
    }
}
