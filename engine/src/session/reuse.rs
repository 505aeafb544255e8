//! Which tokens of each prompt a prefix cache still has when the request comes.
//!
//! A cache of unlimited size is asked in order of arrival: a request finds its leading blocks as far as each was used
//! before, and then uses all of its blocks. With a time to live a block is gone once nobody used it for longer, as in the
//! prompt caches that providers sell (POLICIES 5.1). A request that comes before an earlier one was computed is taken to
//! find its blocks nevertheless.

use std::collections::HashMap;

use super::Trace;
use crate::workload::Workload;

/// Tokens found by each request; whole blocks where the trace has blocks, whole pieces where it only names them.
pub fn found_tokens(trace: &Trace, workload: &Workload, ttl_ns: Option<i64>) -> Vec<u32> {
    if workload.unit_tokens == 0 {
        return found_pieces(trace, ttl_ns);
    }
    let mut last: Vec<Option<i64>> = vec![None; workload.distinct_units as usize];
    let mut found = Vec::with_capacity(workload.len());
    for request in 0..workload.len() {
        let (units, now) = (workload.units_of(request), trace.turns[request].arrival_ns);
        let is_there = |unit: &&u32| is_alive(last[**unit as usize], now, ttl_ns);
        let leading = units.iter().take_while(is_there).count() as u64;
        let tokens = leading * u64::from(workload.unit_tokens);
        found.push(u32::try_from(tokens).unwrap_or(u32::MAX).min(workload.prompt[request]));
        for &unit in units {
            last[unit as usize] = Some(now);
        }
    }
    found
}

fn is_alive(last: Option<i64>, now: i64, ttl_ns: Option<i64>) -> bool {
    last.is_some_and(|last| ttl_ns.is_none_or(|ttl| now.saturating_sub(last) <= ttl))
}

/// The same by pieces: those with a name are alike wherever they stand, others only in their own session.
fn found_pieces(trace: &Trace, ttl_ns: Option<i64>) -> Vec<u32> {
    type Key = (u32, Result<u32, u32>, u32, u32, super::Form);
    let mut nodes: HashMap<Key, (u32, i64)> = HashMap::new();
    let mut found = Vec::with_capacity(trace.turns.len());
    for (at, turn) in trace.turns.iter().enumerate() {
        let (mut node, mut sum, mut is_known) = (0, 0_u32, true);
        for piece in trace.pieces_of(at) {
            let identity = trace.content(piece).name.ok_or(piece.content);
            let free = nodes.len() as u32 + 1;
            let key = (node, identity, piece.start, piece.tokens, piece.form);
            let entry = nodes.entry(key).or_insert((free, i64::MIN));
            is_known &= entry.0 != free && is_alive(Some(entry.1), turn.arrival_ns, ttl_ns);
            if is_known {
                sum = sum.saturating_add(piece.tokens);
            }
            entry.1 = turn.arrival_ns;
            node = entry.0;
        }
        found.push(sum);
    }
    found
}
