//! Whether a session remembers what it needs.
//!
//! What a turn needs is taken from what the trace shows: a named text that a turn reads although an earlier turn had read it
//! is needed in that turn. Where nothing is read twice, or nothing is named, all that the recorded run had in its context
//! counts as needed; that is an upper bound, under which nothing is known of precision. What was not in the recorded context
//! either is not held against a stage, so that keeping all has a recall of 1.

use std::collections::{BTreeSet, HashMap};

use super::{Form, Piece, Role, Trace};

/// What shows that something was needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// It was read again.
    ReadAgain,
    /// It was in the recorded context.
    RecordedContext,
}

impl Evidence {
    /// Its name in result tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadAgain => "read_again",
            Self::RecordedContext => "recorded_context",
        }
    }
}

/// How a session remembers, summed over its turns.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Memory {
    /// What shows the need; `None` for a session without turns.
    pub evidence: Option<Evidence>,
    /// Tokens needed.
    pub needed_tokens: u64,
    /// Of these, in the context as they were.
    pub present_tokens: u64,
    /// Tokens in contexts, without tools, system and memory.
    pub loaded_tokens: u64,
    /// The same as recorded.
    pub recorded_tokens: u64,
    /// Of the loaded, those of texts that are read more than once in the session; `None` where nothing is named.
    pub used_tokens: Option<u64>,
    /// Named texts that were taken out.
    pub removed_names: Option<u64>,
    /// Of these, read again in a later turn.
    pub reread_names: Option<u64>,
    /// Tokens that stand in a context for the second time or more.
    pub duplicate_tokens: Option<u64>,
    /// Turns.
    pub turns: u64,
}

impl Memory {
    /// Needed and present over needed.
    pub fn recall(&self) -> Option<f64> {
        (self.needed_tokens > 0).then(|| self.present_tokens as f64 / self.needed_tokens as f64)
    }

    /// Loaded and used over loaded.
    pub fn precision(&self) -> Option<f64> {
        let used = self.used_tokens.filter(|_| self.evidence == Some(Evidence::ReadAgain))?;
        (self.loaded_tokens > 0).then(|| used as f64 / self.loaded_tokens as f64)
    }

    /// Share of what was needed over the share of the recorded context that is left: above 1 if the better part was kept.
    pub fn density(&self) -> Option<f64> {
        let left = (self.recorded_tokens > 0).then(|| self.loaded_tokens as f64 / self.recorded_tokens as f64)?;
        self.recall().filter(|_| left > 0.0).map(|recall| recall / left)
    }

    /// Of the named texts that were taken out, the share that was read again.
    pub fn reread(&self) -> Option<f64> {
        let (removed, reread) = (self.removed_names?, self.reread_names?);
        (removed > 0).then(|| reread as f64 / removed as f64)
    }
}

/// How each session remembers, by its turns as recorded and as changed.
pub fn memories(recorded: &Trace, changed: &Trace) -> Vec<Memory> {
    let mut turns: Vec<Vec<(usize, usize)>> = vec![Vec::new(); recorded.sessions.len()];
    for (at, turn) in changed.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::Recorded) {
        if let Some(origin) = turn.recorded {
            turns[turn.session as usize].push((origin as usize, at));
        }
    }
    turns.iter().map(|turns| memory(recorded, changed, turns)).collect()
}

fn memory(recorded: &Trace, changed: &Trace, turns: &[(usize, usize)]) -> Memory {
    let again = read_again(recorded, turns);
    let is_named = turns
        .iter()
        .any(|(origin, _)| recorded.pieces_of(*origin).iter().any(|piece| recorded.content(piece).name.is_some()));
    let mut found = Memory { turns: turns.len() as u64, ..Memory::default() };
    let mut whole = Memory::default();
    let (mut used, mut duplicates) = (0, 0);
    let mut removed: HashMap<u32, u32> = HashMap::new();
    for &(origin, at) in turns {
        let (was, is) = (recorded.pieces_of(origin), changed.pieces_of(at));
        let there: BTreeSet<(u32, u32)> =
            is.iter().filter(|piece| piece.form == Form::Verbatim).map(|piece| (piece.content, piece.start)).collect();
        let here = recorded.turns[origin].turn;
        for piece in was.iter().filter(|piece| !recorded.content(piece).kind.is_head()) {
            let (content, tokens) = (recorded.content(piece), u64::from(piece.tokens));
            let is_there = there.contains(&(piece.content, piece.start));
            let add = |to: &mut Memory| {
                to.needed_tokens += tokens;
                to.present_tokens += if is_there { tokens } else { 0 };
            };
            found.recorded_tokens += tokens;
            add(&mut whole);
            if let Some(name) = content.name {
                if content.born < here && again.get(&name).is_some_and(|turns| turns.contains(&here)) {
                    add(&mut found);
                }
                if !is_there {
                    removed.entry(name).or_insert(here);
                }
            }
        }
        let mut seen = BTreeSet::new();
        for piece in is.iter().filter(|piece| !changed.content(piece).kind.is_head()) {
            let (name, tokens) = (changed.content(piece).name, u64::from(piece.tokens));
            found.loaded_tokens += tokens;
            used += name.filter(|name| again.contains_key(name)).map_or(0, |_| tokens);
            duplicates += name.filter(|name| !seen.insert((*name, piece.start))).map_or(0, |_| tokens);
        }
    }
    found.evidence = (!turns.is_empty()).then_some(Evidence::ReadAgain);
    if found.needed_tokens == 0 && !turns.is_empty() {
        found.evidence = Some(Evidence::RecordedContext);
        (found.needed_tokens, found.present_tokens) = (whole.needed_tokens, whole.present_tokens);
    }
    let reread =
        removed.iter().filter(|(name, turn)| again.get(name).is_some_and(|turns| turns.iter().any(|at| at > *turn)));
    found.reread_names = is_named.then_some(reread.count() as u64);
    found.removed_names = is_named.then_some(removed.len() as u64);
    (found.used_tokens, found.duplicate_tokens) = (is_named.then_some(used), is_named.then_some(duplicates));
    found
}

/// By name the turns that read a text anew although an earlier turn had read it.
fn read_again(recorded: &Trace, turns: &[(usize, usize)]) -> HashMap<u32, Vec<u32>> {
    let (mut known, mut again) = (BTreeSet::new(), HashMap::<u32, Vec<u32>>::new());
    for &(origin, _) in turns {
        let here = recorded.turns[origin].turn;
        let is_new = |piece: &&Piece| recorded.content(piece).born == here;
        let names: Vec<u32> =
            recorded.pieces_of(origin).iter().filter(is_new).filter_map(|piece| recorded.content(piece).name).collect();
        for name in &names {
            if known.contains(name) {
                again.entry(*name).or_default().push(here);
            }
        }
        known.extend(names);
    }
    again
}
