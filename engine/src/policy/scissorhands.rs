//! The stage `scissorhands`: drops the tokens that are passed over most often (`Scissorhands`).
//!
//! Over the last `history` steps it counts in how many of them a token's attention was below the average. When the cache
//! exceeds the budget, a share of it is dropped at once: the tokens with the highest counts outside the last ones. Of the
//! prompt it keeps what the last prompt queries looked at, as `KVCache-Factory` does, since counts over prompt queries are
//! not recorded. A token that is younger than the history has fewer counts, which protects it.

use super::select::Units;
use super::{Args, Channel, Choice, Deployment, Floor, Kept, Kind, MASS, Param, Rule, Selection, WINDOW_ROWS};
use crate::error::Result;
use crate::recording::{Head, Step};

/// `scissorhands(budget,history=400,recent=10,drop=50%,window=32)`.
pub(super) static KIND: Kind = Kind {
    name: "scissorhands",
    doc: "Drops at once the share of tokens whose attention was below average most often; evicts while decoding.",
    floor: Floor::Selection,
    params: &[
        Param {
            name: "budget",
            default: "",
            doc: "Tokens kept, such as `1024`, `4k` (4000), or a share of the prompt.",
        },
        Param { name: "history", default: "400", doc: "Steps over which tokens are counted." },
        Param { name: "recent", default: "10", doc: "Last tokens, which are kept." },
        Param { name: "drop", default: "50%", doc: "Share of the budget that is dropped when the cache is full." },
        Param { name: "window", default: "32", doc: "Last prompt tokens, whose queries vote on the prompt." },
    ],
    needs: &[&MASS, &WINDOW_ROWS],
    source: "Scissorhands (arXiv 2305.17118); history, recent and drop are recalled, not read; the prompt as in \
             KVCache-Factory",
    deployment: Deployment { engines: "research code: KVCache-Factory", ..Deployment::NONE },
    make,
};

/// In which of the last steps each unit was passed over: a ring of bit sets.
#[derive(Debug, Clone, Default)]
pub struct History {
    words: usize,
    rows: Vec<u64>,
    at: usize,
}

impl History {
    /// Begins with no step noted, for so many units and steps.
    pub(super) fn begin(&mut self, units: usize, steps: u32) {
        self.words = units.div_ceil(64);
        self.rows.clear();
        self.rows.resize(self.words * steps as usize, 0);
        self.at = 0;
    }

    /// The bits of the oldest step, which the next one replaces, and moves on.
    fn turn(&mut self) -> &mut [u64] {
        let words = self.words.max(1);
        let rows = (self.rows.len() / words).max(1);
        let row = self.at % rows;
        self.at = row + 1;
        self.rows.get_mut(row * words..(row + 1) * words).unwrap_or_default()
    }
}

static NEEDS: [&Channel; 2] = [&MASS, &WINDOW_ROWS];

fn make(args: &Args) -> Result<Rule> {
    args.budget("budget")?;
    args.count("history", 1, 65_535)?;
    args.count("recent", 1, u32::MAX)?;
    args.count("window", 1, u32::MAX)?;
    args.share("drop")?;
    let choice = Choice { prompt: Some(choose), after: Some(evict), ..Choice::NONE };
    Ok(Rule::Select(Selection { kept: Kept::Measured(&NEEDS), ..Selection::plain(choice) }))
}

fn choose(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    let (recent, history) = (args.count("recent", 1, u32::MAX)?, args.count("history", 1, 65_535)?);
    for (head, units) in heads.iter().zip(units) {
        let prompt = head.request.prompt_tokens;
        let budget = args.budget("budget")?.room(prompt);
        if budget >= head.longest_context() {
            continue;
        }
        if budget < prompt {
            let window = args.count("window", 1, u32::MAX)?.min(prompt);
            let score = head.score("scissorhands", &WINDOW_ROWS, window)?;
            units.keep_of_prompt(prompt, budget, (0, recent.min(budget)), score);
        }
        units.begin_sums(&[]);
        units.history.begin(units.of(head.longest_context()), history);
        // How many units have been given their first sum.
        units.limit = 0;
    }
    Ok(())
}

/// The sum of a unit is `history` less the steps that passed it over, so that the least sum is the highest count.
fn evict(args: &Args, heads: &[Head<'_>], steps: &[Step<'_>], units: &mut [Units]) -> Result<()> {
    let (recent, history) = (args.count("recent", 1, u32::MAX)?, args.count("history", 1, 65_535)?);
    for ((head, step), units) in heads.iter().zip(steps).zip(units) {
        if units.sums.is_empty() {
            continue;
        }
        let new = units.limit as usize;
        units.sums.iter_mut().skip(new).filter(|sum| sum.is_finite()).for_each(|sum| *sum = f64::from(history));
        units.limit = units.sums.len() as u32;
        count(units, step.mass);
        let (budget, context) = (args.budget("budget")?.room(head.request.prompt_tokens), step.context_tokens);
        let full = units.within(budget).max(1);
        if context <= budget || units.count() <= full {
            continue;
        }
        let before = units.recent_from(context, recent);
        let left = full - (full as f64 * args.share("drop")?) as usize;
        let count = left.max(units.of(context) - before).max(1);
        units.drop_least(before, count);
    }
    Ok(())
}

/// Counts one step: which units it passes over, and which the step that leaves the history had.
fn count(units: &mut Units, mass: &[f32]) {
    // The average of what is kept, before renormalisation: a unit is below it after renormalisation too.
    let average = units.kept_mass(mass) / units.count().max(1) as f64;
    let Units { history, sums, kept, .. } = units;
    let row = history.turn();
    for (((word, sums), kept), mass) in
        row.iter_mut().zip(sums.chunks_mut(64)).zip(kept.chunks(64)).zip(mass.chunks(64))
    {
        let mut bits = 0_u64;
        for (at, ((sum, kept), mass)) in sums.iter_mut().zip(kept).zip(mass).enumerate() {
            let was = *word >> at & 1;
            let is = u64::from(*kept && f64::from(*mass) < average);
            // Infinite sums of dropped units stay so.
            *sum += was as f64 - is as f64;
            bits |= is << at;
        }
        *word = bits;
    }
}
