//! KV blocks of contexts that a stage changed.
//!
//! A context that is as it was recorded keeps its recorded blocks, and one that was changed keeps those that lie whole
//! before the first change. Behind it blocks are told apart by what stands in them and before them, so that two turns that
//! were changed alike share their blocks, as a prefix cache would find them. Partial last blocks have none.

use std::collections::{BTreeSet, HashMap};

use super::{Piece, Role, Trace, common};
use crate::error::{Error, Result};
use crate::workload::{Pause, Turns, Workload};

/// What precedes: a block, or a number of something shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Start,
    Block(u32),
    Within(u32),
}

/// Tokens of one content in one block.
type Span = (u32, u32, u32, super::Form);

/// The workload of changed turns.
///
/// `recorded` are the turns and requests that `changed` came from.
///
/// # Errors
/// More than 2^32 blocks.
pub fn workload(changed: &Trace, recorded: &Trace, requests: &Workload) -> Result<Workload> {
    // A request that a stage added has the instant of the recorded turn that it serves.
    let of_turn: HashMap<(u32, u32), usize> =
        recorded.turns.iter().enumerate().map(|(at, turn)| ((turn.session, turn.turn), at)).collect();
    let mut made = Workload {
        name: requests.name.clone(),
        request_ids: changed.turns.iter().map(|turn| turn.request_id).collect(),
        arrival_ns: Vec::with_capacity(changed.turns.len()),
        prompt: (0..changed.turns.len()).map(|at| changed.prompt(at)).collect(),
        output: changed.turns.iter().map(|turn| turn.output).collect(),
        unit_tokens: requests.unit_tokens,
        offsets: vec![0],
        units: Vec::with_capacity(requests.units.len()),
        distinct_units: requests.distinct_units,
        turns: follow(changed, requests, &of_turn),
    };
    let mut after: HashMap<(State, Span), State> = HashMap::new();
    for (at, turn) in changed.turns.iter().enumerate() {
        let pieces = changed.pieces_of(at);
        let origin = turn.recorded.map(|at| at as usize).or_else(|| of_turn.get(&(turn.session, turn.turn)).copied());
        made.arrival_ns.push(origin.map_or(turn.arrival_ns, |origin| requests.arrival_ns[origin]));
        let before: &[Piece] = origin.map_or(&[], |origin| recorded.pieces_of(origin));
        let units = origin.map_or(&[][..], |origin| requests.units_of(origin));
        if requests.unit_tokens > 0 {
            if turn.recorded.is_some() && pieces == before {
                made.units.extend_from_slice(units);
            } else {
                let whole = common(pieces, before).checked_div(requests.unit_tokens).unwrap_or(0) as usize;
                let kept = &units[..whole.min(units.len())];
                made.units.extend_from_slice(kept);
                extend(&mut made, &mut after, pieces, kept)?;
            }
        }
        let end = u32::try_from(made.units.len())
            .map_err(|_| Error::run(format!("`{}` has more than 2^32 block references", requests.name)))?;
        made.offsets.push(end);
    }
    Ok(made)
}

/// What each turn waits for though it has come: the request that a stage sends for it, and that one for those of earlier stages.
/// For work between sessions nobody waits. Empty where stages send no requests.
fn held(changed: &Trace) -> Vec<u32> {
    if changed.turns.iter().all(|turn| turn.role == Role::Recorded) {
        return Vec::new();
    }
    let mut last: HashMap<(u32, u32), u32> = HashMap::new();
    let each = (0_u32..).zip(&changed.turns).map(|(at, turn)| match turn.role {
        Role::Consolidation => u32::MAX,
        _ => last.insert((turn.session, turn.turn), at).unwrap_or(u32::MAX),
    });
    each.collect()
}

/// Who waits for whom: each turn for the one that stands before it in its session, requests that a stage added included. Those
/// that began anew in the trace still do. A request that a stage sends for a turn comes when the turn would have come, and
/// the turn is sent when that one has ended; work between sessions is nobody's turn.
fn follow(changed: &Trace, requests: &Workload, of_turn: &HashMap<(u32, u32), usize>) -> Turns {
    let mut turns = Turns { held_by: held(changed), ..Turns::default() };
    if requests.turns.before.is_empty() {
        return turns;
    }
    let (mut last, mut places): (HashMap<u32, u32>, HashMap<u32, u32>) = (HashMap::new(), HashMap::new());
    let mut served = BTreeSet::new();
    for (at, turn) in (0_u32..).zip(&changed.turns) {
        let key = (turn.session, turn.turn);
        let origin = turn.recorded.map(|recorded| recorded as usize).or_else(|| of_turn.get(&key).copied());
        let parent = origin.and_then(|origin| requests.turns.before(origin));
        // What a stage sends for a turn begins in its place, and the turn waits for that.
        let is_first = !served.contains(&key);
        let begins = is_first && origin.is_some() && parent.is_none();
        let before = last.get(&turn.session).copied();
        let before = before.or_else(|| parent.and_then(|parent| places.get(&parent).copied()));
        if turn.role != Role::Consolidation {
            served.insert(key);
            last.insert(turn.session, at);
        }
        turns.before.push(before.filter(|_| !begins).unwrap_or(u32::MAX));
        let (pause, basis) = match origin {
            Some(origin) if is_first => (requests.turns.pause_ns[origin], requests.turns.basis[origin]),
            _ => (0, Pause::AtOnce),
        };
        turns.pause_ns.push(pause);
        turns.basis.push(basis);
        places.extend(turn.recorded.map(|recorded| (recorded, at)));
    }
    turns
}

/// Appends the whole blocks behind those that were kept.
fn extend(
    made: &mut Workload,
    after: &mut HashMap<(State, Span), State>,
    pieces: &[Piece],
    kept: &[u32],
) -> Result<()> {
    let unit = made.unit_tokens;
    let mut skip = kept.len() as u64 * u64::from(unit);
    let mut state = kept.last().map_or(State::Start, |&block| State::Block(block));
    let mut room = unit;
    for piece in pieces {
        let passed = u64::from(piece.tokens).min(skip);
        skip -= passed;
        let mut from = passed as u32;
        while from < piece.tokens {
            let taken = (piece.tokens - from).min(room);
            let span = (piece.content, piece.start.saturating_add(from), taken, piece.form);
            (from, room) = (from + taken, room - taken);
            let is_full = room == 0;
            let next = (after.len() as u32, made.distinct_units);
            state = *after
                .entry((state, span))
                .or_insert_with(|| if is_full { State::Block(next.1) } else { State::Within(next.0) });
            if let State::Block(block) = state {
                if block == made.distinct_units {
                    made.distinct_units = block
                        .checked_add(1)
                        .ok_or_else(|| Error::run(format!("`{}` has more than 2^32 blocks", made.name)))?;
                }
                made.units.push(block);
                room = unit;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Kind, Turn};
    use crate::test_kit::told_sessions;

    #[test]
    fn a_turn_waits_for_what_a_stage_sends_for_it_though_it_begins_a_session() {
        let first = (0, Kind::User, 32);
        let (recorded, mut requests) = told_sessions(&[&[vec![first], vec![first, (1, Kind::User, 32)]]], 1, 16);
        requests.turns = Turns {
            before: vec![u32::MAX, 0],
            pause_ns: vec![0, 5],
            basis: vec![Pause::First, Pause::Recorded],
            held_by: Vec::new(),
        };
        let with = |role: Role| {
            let mut changed = recorded.clone();
            for at in [1, 0] {
                changed.turns.insert(at, Turn { recorded: None, role, ..recorded.turns[at] });
            }
            changed
        };
        let of_turn = HashMap::from([((0, 0), 0), ((0, 1), 1)]);
        let turns = follow(&with(Role::Summary), &requests, &of_turn);
        assert_eq!(turns.before, [u32::MAX, 0, 1, 2]);
        assert_eq!(turns.pause_ns, [0, 0, 5, 0]);
        assert_eq!(turns.basis, [Pause::First, Pause::AtOnce, Pause::Recorded, Pause::AtOnce]);
        assert_eq!(turns.held_by, [u32::MAX, 0, u32::MAX, 2]);
        // In traffic without sessions the turn waits for its summary all the same.
        let apart = Workload { turns: Turns::default(), ..requests.clone() };
        assert_eq!(follow(&with(Role::Summary), &apart, &of_turn).held_by, [u32::MAX, 0, u32::MAX, 2]);
        // Nobody waits for work between sessions.
        let turns = follow(&with(Role::Consolidation), &requests, &of_turn);
        assert_eq!((turns.before, turns.pause_ns), (vec![u32::MAX, u32::MAX, 1, 1], vec![0, 0, 5, 5]));
        assert_eq!(turns.held_by, [u32::MAX; 4]);
    }
}
