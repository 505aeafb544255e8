//! What one request takes on its own: the prefill of its prompt, from any depth, and a step of its decode.

use super::{Batch, Plan, price};

/// Time of computing the tokens `from..to` of a prompt whose tokens before `from` are there, ns. Steps take at most `chunk`
/// tokens, nothing else runs in them, and the last one has a row of logits. The engine's fixed time of each step is in it.
pub fn prefill_ns(plan: &Plan, from: u32, to: u32, chunk: u32) -> f64 {
    let kept = vec![0; plan.lanes()];
    let (mut pairs_of, mut read) = (vec![0.0; plan.groups.len()], vec![0; plan.groups.len()]);
    let (mut done, mut total) = (from, 0.0);
    while done < to {
        let next = done.saturating_add(chunk.max(1)).min(to);
        let places = pairs_of.iter_mut().zip(&mut read);
        for (group, (pairs_of, read)) in plan.groups.iter().zip(places) {
            let (cap, end) = (group.group.keep.total, u64::from(next));
            *pairs_of = pairs(done, next, cap);
            *read = cap.map_or(end, |cap| end.min(u64::from(cap) + u64::from(next - done)));
        }
        let batch = Batch {
            decode_requests: 0,
            kept_tokens: &kept,
            longest_tokens: 0,
            prefill_tokens: u64::from(next - done),
            prefill_requests: 1,
            prefill_rows: u64::from(next == to),
            prefill_pairs: &pairs_of,
            prefill_context: &read,
            scored_tokens: if next == to && plan.drops_of(to) { u64::from(to) } else { 0 },
        };
        total += price(plan, &batch).total();
        done = next;
    }
    total
}

/// Time of one step that gives a token to one request, whose context is so long, ns; nothing else runs in it.
pub fn decode_ns(plan: &Plan, context: u64) -> f64 {
    let kept: Vec<u64> = (0..plan.lanes())
        .map(|lane| plan.lane_keep(lane).total.map_or(context, |cap| context.min(u64::from(cap))))
        .collect();
    let groups = plan.groups.len();
    let batch = Batch {
        decode_requests: 1,
        kept_tokens: &kept,
        longest_tokens: 0,
        prefill_tokens: 0,
        prefill_requests: 0,
        prefill_rows: 0,
        prefill_pairs: &vec![0.0; groups],
        prefill_context: &vec![0; groups],
        scored_tokens: 0,
    };
    price(plan, &batch).total()
}

/// Query-context pairs of computing tokens `from + 1 ..= to`, each attending to itself and what is before it, at most `cap`.
pub(crate) fn pairs(from: u32, to: u32, cap: Option<u32>) -> f64 {
    let triangle = |tokens: u32| f64::from(tokens) * (f64::from(tokens) + 1.0) / 2.0;
    match cap {
        None => triangle(to) - triangle(from),
        Some(cap) => {
            let rising =
                |tokens: u32| triangle(tokens.min(cap)) + f64::from(tokens.saturating_sub(cap)) * f64::from(cap);
            rising(to) - rising(from)
        }
    }
}
