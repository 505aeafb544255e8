use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use proptest::prelude::*;

use super::*;
use crate::workload::{Turns, Workload, prefix_counts};

/// A request of a test: session, parent, tokens of the prompt, its blocks, and its segments (name, kind, tokens).
#[derive(Debug, Clone, Default)]
struct Sent {
    session: Option<&'static str>,
    parent: Option<u64>,
    arrival_ns: i64,
    delay_ns: Option<i64>,
    hit: Option<u32>,
    prompt: u32,
    units: Vec<u32>,
    segments: Vec<(Option<&'static str>, &'static str, u32)>,
}

fn read_all(sent: &[Sent], unit_tokens: u32) -> (Trace, Workload) {
    let mut workload = Workload {
        name: "test".to_owned(),
        request_ids: (0..sent.len() as u64).map(|at| 100 + at).collect(),
        arrival_ns: sent.iter().map(|one| one.arrival_ns).collect(),
        prompt: sent.iter().map(|one| one.prompt).collect(),
        output: vec![1; sent.len()],
        unit_tokens,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: sent.iter().flat_map(|one| &one.units).max().map_or(0, |most| most + 1),
        turns: Turns::default(),
    };
    for one in sent {
        workload.units.extend_from_slice(&one.units);
        workload.offsets.push(workload.units.len() as u32);
    }
    let i64s = |of: fn(&Sent) -> Option<i64>| Arc::new(sent.iter().map(of).collect::<Int64Array>()) as ArrayRef;
    let requests = RecordBatch::try_from_iter_with_nullable([
        ("request_id", Arc::new(UInt64Array::from(workload.request_ids.clone())) as ArrayRef, false),
        ("session_id", Arc::new(sent.iter().map(|one| one.session).collect::<StringArray>()), true),
        ("parent_request_id", Arc::new(sent.iter().map(|one| one.parent).collect::<UInt64Array>()), true),
        ("arrival_ns", i64s(|one| Some(one.arrival_ns)), true),
        ("delay_ns", i64s(|one| one.delay_ns), true),
        ("measured_e2e_ns", i64s(|_| None), true),
        ("measured_hit_tokens", Arc::new(sent.iter().map(|one| one.hit).collect::<UInt32Array>()), true),
    ]);
    let rows: Vec<(u64, u32, Option<&str>, &str, u32)> = sent
        .iter()
        .zip(&workload.request_ids)
        .flat_map(|(one, id)| {
            one.segments.iter().zip(0..).map(|(&(name, kind, tokens), at)| (*id, at, name, kind, tokens))
        })
        .collect();
    let segments = RecordBatch::try_from_iter_with_nullable([
        ("request_id", Arc::new(rows.iter().map(|row| row.0).collect::<UInt64Array>()) as ArrayRef, false),
        ("position", Arc::new(rows.iter().map(|row| row.1).collect::<UInt32Array>()), false),
        ("segment_id", Arc::new(rows.iter().map(|row| row.2).collect::<StringArray>()), true),
        ("kind", Arc::new(rows.iter().map(|row| Some(row.3)).collect::<StringArray>()), false),
        ("tokens", Arc::new(rows.iter().map(|row| row.4).collect::<UInt32Array>()), false),
    ]);
    (read(&workload, &[requests.unwrap()], &[segments.unwrap()]).unwrap(), workload)
}

/// Kind, turn of birth and tokens of each piece of a turn.
fn shown(trace: &Trace, at: usize) -> Vec<(&'static str, u32, u32)> {
    let of = |piece: &Piece| (trace.content(piece).kind.name(), trace.content(piece).born, piece.tokens);
    trace.pieces_of(at).iter().map(of).collect()
}

#[test]
fn a_turn_keeps_what_it_shares_and_the_rest_is_new() {
    let turn = |units: &[u32], prompt, segments: &[(Option<&'static str>, &'static str, u32)], session| Sent {
        session: Some(session),
        prompt,
        units: units.to_vec(),
        segments: segments.to_vec(),
        ..Sent::default()
    };
    let sent = [
        turn(&[0, 1, 2], 35, &[(None, "tools", 12), (None, "system", 5), (None, "user", 18)], "s"),
        // Grows: the five tokens behind the last whole block count as new.
        turn(
            &[0, 1, 2, 3, 4],
            58,
            &[
                (None, "tools", 12),
                (None, "system", 5),
                (None, "history", 13),
                (None, "assistant", 8),
                (None, "tool_result", 20),
            ],
            "s",
        ),
        // Breaks in the second block.
        turn(&[0, 5, 6], 39, &[(None, "tools", 12), (None, "system", 5), (None, "unknown", 22)], "s"),
        // Goes back to where the second turn was.
        turn(&[0, 1, 2, 3, 4, 7], 60, &[], "s"),
    ];
    let (trace, _) = read_all(&sent, 10);
    assert_eq!(shown(&trace, 0), [("tools", 0, 12), ("system", 0, 5), ("user", 0, 18)]);
    assert_eq!(
        shown(&trace, 1),
        [("tools", 0, 12), ("system", 0, 5), ("user", 0, 13), ("assistant", 1, 8), ("tool_result", 1, 20)]
    );
    assert_eq!(shown(&trace, 2), [("tools", 0, 10), ("tools", 2, 2), ("system", 2, 5), ("unknown", 2, 22)]);
    assert_eq!(shown(&trace, 3)[4..], [("tool_result", 1, 12), ("unknown", 3, 10)]);
    let found: Vec<_> =
        trace.turns.iter().map(|turn| (turn.kept_tokens, turn.found_tokens, turn.broke_at_tokens)).collect();
    assert_eq!(found, [(0, 0, None), (30, 30, None), (10, 10, Some(10)), (10, 50, Some(10))]);
}

#[test]
fn names_and_measured_hits_stand_in_for_hashes() {
    let named = |names: &[&'static str]| Sent {
        session: Some("s"),
        prompt: 10 * names.len() as u32 + 3,
        segments: names.iter().map(|name| (Some(*name), "passage", 10)).chain([(None, "unknown", 3)]).collect(),
        ..Sent::default()
    };
    let (trace, workload) = read_all(&[named(&["a", "b"]), named(&["a", "c", "b"])], 0);
    assert_eq!(shown(&trace, 1), [("passage", 0, 10), ("passage", 1, 10), ("passage", 1, 10), ("unknown", 1, 3)]);
    assert_eq!(trace.turns[1].broke_at_tokens, Some(10));
    // The same text where it stands elsewhere has the same name.
    let name = |turn: usize, at: usize| trace.content(&trace.pieces_of(turn)[at]).name;
    assert_eq!((name(0, 1), trace.names), (name(1, 2), 3));
    assert_eq!(reuse::found_tokens(&trace, &workload, None), [0, 10]);
    let measured = |prompt, hit| Sent { session: Some("s"), prompt, hit: Some(hit), ..Sent::default() };
    let (trace, _) = read_all(&[measured(50, 0), measured(80, 50), measured(70, 40)], 0);
    let broke: Vec<_> = trace.turns.iter().map(|turn| (turn.kept_tokens, turn.broke_at_tokens)).collect();
    assert_eq!(broke, [(0, None), (50, None), (40, Some(40))]);
    assert_eq!(shown(&trace, 2), [("unknown", 0, 40), ("unknown", 2, 30)]);
}

#[test]
fn a_sub_agent_knows_its_parent_and_a_pause_is_counted_from_the_turn_before() {
    let sent = [
        Sent { session: Some("s"), prompt: 5, ..Sent::default() },
        Sent { session: Some("s/a"), parent: Some(100), arrival_ns: 70, prompt: 5, ..Sent::default() },
        Sent { session: Some("s"), parent: Some(100), arrival_ns: 90, prompt: 9, ..Sent::default() },
        Sent { session: Some("s"), parent: Some(102), arrival_ns: 95, delay_ns: Some(2), prompt: 9, ..Sent::default() },
        // No pause after the turn before is longer than what lies between the two.
        Sent { session: Some("s"), parent: Some(103), arrival_ns: 98, delay_ns: Some(8), prompt: 9, ..Sent::default() },
        Sent { arrival_ns: 99, prompt: 1, ..Sent::default() },
    ];
    let (trace, _) = read_all(&sent, 0);
    let parents: Vec<_> = trace.sessions.iter().map(|session| (session.parent, session.turns)).collect();
    assert_eq!(parents, [(None, 4), (Some(0), 1), (None, 1)]);
    let idle: Vec<_> = trace.turns.iter().map(|turn| turn.idle_ns).collect();
    assert_eq!(idle, [None, None, Some(90), Some(2), Some(3), None]);
}

/// Sessions as (which, share kept of an earlier turn's blocks, which earlier turn, blocks added, tokens beyond).
fn drawn() -> impl Strategy<Value = Vec<(usize, usize, usize, usize, u32)>> {
    proptest::collection::vec((0_usize..3, 0_usize..12, 0_usize..6, 0_usize..6, 0_u32..8), 1..24)
}

fn sent_of(drawn: &[(usize, usize, usize, usize, u32)]) -> Vec<Sent> {
    let mut free = 0;
    let mut sent: Vec<Sent> = Vec::new();
    for (at, &(session, kept, back, added, beyond)) in drawn.iter().enumerate() {
        let source = sent.len().checked_sub(back + 1).map(|at| sent[at].units.clone()).unwrap_or_default();
        let mut units: Vec<u32> = source.into_iter().take(kept).collect();
        units.extend(free..free + added as u32);
        free += added as u32;
        let prompt = units.len() as u32 * 8 + beyond;
        let kinds = ["user", "tool_result", "unknown"];
        sent.push(Sent {
            session: Some(["a", "b", "c"][session]),
            arrival_ns: at as i64,
            prompt,
            units,
            segments: vec![(None, kinds[at % 3], prompt / 2), (None, "history", prompt / 4)],
            ..Sent::default()
        });
    }
    sent
}

proptest! {
    #[test]
    fn pieces_sum_to_prompts_and_reuse_is_a_direct_count(drawn in drawn()) {
        let sent = sent_of(&drawn);
        let (trace, workload) = read_all(&sent, 8);
        let found = reuse::found_tokens(&trace, &workload, None);
        let (mut seen, mut direct) = (HashSet::new(), 0);
        for (at, one) in sent.iter().enumerate() {
            prop_assert_eq!(trace.prompt(at), one.prompt);
            let leading = one.units.iter().take_while(|unit| seen.contains(*unit)).count() as u32;
            prop_assert_eq!(found[at], leading * 8);
            direct += u64::from(leading);
            // The turn before, and the best of all earlier turns of the session.
            let earlier = |same: &&Sent| same.session == one.session;
            let common = |other: &Sent| other.units.iter().zip(&one.units).take_while(|(a, b)| a == b).count() as u32 * 8;
            let before = sent[..at].iter().rev().find(earlier);
            prop_assert_eq!(trace.turns[at].kept_tokens, before.map_or(0, common));
            let best = sent[..at].iter().filter(earlier).map(common).max().unwrap_or(0);
            prop_assert_eq!(trace.turns[at].found_tokens, best);
            seen.extend(one.units.iter().copied());
        }
        prop_assert_eq!(direct, prefix_counts(&workload).leading_hits);
    }
}

#[test]
fn a_time_to_live_forgets_what_nobody_used() {
    let at = |arrival_ns, units: &[u32]| Sent { arrival_ns, prompt: 16, units: units.to_vec(), ..Sent::default() };
    let (trace, workload) = read_all(&[at(0, &[0, 1]), at(10, &[0, 2]), at(21, &[0, 1])], 8);
    assert_eq!(reuse::found_tokens(&trace, &workload, None), [0, 8, 16]);
    assert_eq!(reuse::found_tokens(&trace, &workload, Some(11)), [0, 8, 8]);
    assert_eq!(reuse::found_tokens(&trace, &workload, Some(9)), [0, 0, 0]);
}
