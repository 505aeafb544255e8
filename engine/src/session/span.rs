//! How a context grows, when the memory is full, and how old the oldest turn is that is still there.

use super::{Fate, Form, Role, Trace};

/// Slope of a straight line through the values by least squares, per step; `None` with fewer than two.
pub fn slope(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let middle = (count - 1.0) / 2.0;
    let mean = values.iter().sum::<f64>() / count;
    let (mut up, mut down) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let off = at as f64 - middle;
        up += off * (value - mean);
        down += off * off;
    }
    (down > 0.0).then(|| up / down)
}

/// Prompts of each session's recorded turns, tokens, in order.
pub fn prompts(trace: &Trace) -> Vec<Vec<u32>> {
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); trace.sessions.len()];
    for (at, turn) in trace.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::Recorded) {
        found[turn.session as usize].push(trace.prompt(at));
    }
    found
}

/// Turns that a session has before its context does not fit any more: those that were, or beyond them as the context grew
/// on the whole. `most` is the longest prompt that fits, tokens. `None` if it never fills up.
pub fn turns_until(prompts: &[u32], most: u32) -> Option<f64> {
    if let Some(at) = prompts.iter().position(|prompt| *prompt > most) {
        return Some(at as f64);
    }
    let values: Vec<f64> = prompts.iter().map(|prompt| f64::from(*prompt)).collect();
    let (slope, peak) = (slope(&values)?, prompts.iter().max()?);
    (slope > 0.0).then(|| prompts.len() as f64 + f64::from(most - peak) / slope)
}

/// The longest prompt whose KV fits, tokens, by the bytes of a prompt of each length, which must not shrink with it.
pub fn most_tokens(bytes: &dyn Fn(u32) -> u64, capacity: u64) -> u32 {
    let (mut low, mut high) = (0_u32, u32::MAX / 2);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if bytes(middle) <= capacity { low = middle } else { high = middle - 1 }
    }
    low
}

/// Turns between the end of a session and the oldest of its turns of which something is still there in each way, or is
/// lost; `None` where no turn is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ages {
    /// As it was.
    pub verbatim: Option<u32>,
    /// In a summary or record.
    pub summarised: Option<u32>,
    /// It can be had by asking.
    pub recallable: Option<u32>,
    /// Neither.
    pub lost: Option<u32>,
}

/// The ages at each session's last turn. Only contents of the recorded trace count, and none that each session loads anew.
pub fn ages(recorded: &Trace, changed: &Trace) -> Vec<Ages> {
    let mut found = vec![Ages::default(); recorded.sessions.len()];
    let mut is_there = vec![false; recorded.contents.len()];
    let mut last: Vec<Option<(usize, u32)>> = vec![None; recorded.sessions.len()];
    for (at, turn) in changed.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::Recorded) {
        last[turn.session as usize] = Some((at, turn.turn));
    }
    for (at, _) in last.iter().flatten() {
        for piece in changed.pieces_of(*at).iter().filter(|piece| piece.form == Form::Verbatim) {
            if let Some(is_there) = is_there.get_mut(piece.content as usize) {
                *is_there = true;
            }
        }
    }
    for (at, content) in recorded.contents.iter().enumerate().filter(|(_, content)| !content.kind.is_head()) {
        let Some((_, end)) = last[content.session as usize] else { continue };
        let ages = &mut found[content.session as usize];
        let age = match (is_there[at], changed.contents[at].fate) {
            (true, _) => &mut ages.verbatim,
            (false, Fate::Summarised) => &mut ages.summarised,
            (false, Fate::Recallable) => &mut ages.recallable,
            (false, Fate::Verbatim | Fate::Lost) => &mut ages.lost,
        };
        *age = Some(age.unwrap_or(0).max(end.saturating_sub(content.born)));
    }
    found
}
