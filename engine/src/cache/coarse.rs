//! The same prompts in larger blocks: what another block size of the engine would hit.
//!
//! A block of `times` blocks of the trace is known by all of them and by what came before them in it, so that two prompts
//! share it only where they share each of its parts. A trace tells nothing below its own blocks, so that no size is finer.

use std::collections::HashMap;

use super::life::lives;
use super::{Counts, Rule, Trace, replay};
use crate::error::{Error, Result};
use crate::workload::Workload;

/// What one block size came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sized {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Blocks that fit in the same room.
    pub capacity: u64,
    /// Distinct blocks.
    pub distinct: u32,
    /// Hits and misses.
    pub counts: Counts,
    /// Tokens in resident blocks over what they could hold, mean over time.
    pub token_occupancy: Option<f64>,
}

/// The workload in blocks of `times` of its own; a prompt's last block may hold fewer.
///
/// # Errors
/// No blocks, a factor of 0, or blocks of more tokens than can be counted.
pub fn coarse(workload: &Workload, times: u32) -> Result<Workload> {
    let unit_tokens = workload.unit_tokens.checked_mul(times).filter(|tokens| *tokens > 0).ok_or_else(|| {
        Error::usage(format!("expected a multiple of the trace's blocks of {} tokens", workload.unit_tokens))
            .hint("a trace tells nothing below its own blocks")
    })?;
    let mut found = Workload { unit_tokens, offsets: vec![0], units: Vec::new(), ..workload.clone() };
    // Each sequence of up to `times` blocks is a path from the root, 0; paths are numbered as they are met.
    let mut paths: HashMap<(u32, u32), u32> = HashMap::new();
    let mut numbers: Vec<Option<u32>> = vec![None];
    let mut distinct = 0;
    for request in 0..workload.len() {
        for group in workload.units_of(request).chunks(times as usize) {
            let mut path = 0;
            for &unit in group {
                let next = numbers.len() as u32;
                path = *paths.entry((path, unit)).or_insert(next);
                if path == next {
                    numbers.push(None);
                }
            }
            let number = numbers[path as usize].get_or_insert_with(|| {
                distinct += 1;
                distinct - 1
            });
            found.units.push(*number);
        }
        found.offsets.push(found.units.len() as u32);
    }
    found.distinct_units = distinct;
    Ok(found)
}

/// A cache with room for so many tokens, in blocks of 1, 2, 4 and so on of the trace's, up to `most_times`.
///
/// # Errors
/// Those of [`coarse`] and of the rule.
pub fn sweep(rule: &Rule, workload: &Workload, trace: &Trace<'_>, tokens: u64, most_times: u32) -> Result<Vec<Sized>> {
    let mut found = Vec::new();
    let mut times = 1_u32;
    while times <= most_times {
        let larger = coarse(workload, times)?;
        let trace = trace.of(&larger);
        let capacity = tokens / u64::from(larger.unit_tokens);
        let room = usize::try_from(capacity).unwrap_or(usize::MAX);
        found.push(Sized {
            block_tokens: larger.unit_tokens,
            capacity,
            distinct: larger.distinct_units,
            counts: replay(rule, &trace, room)?,
            token_occupancy: lives(rule, &trace, room)?.token_occupancy(),
        });
        let Some(next) = times.checked_mul(2) else { break };
        times = next;
    }
    Ok(found)
}
