//! Lives of blocks in a cache, and the gaps between uses of a block.
//!
//! A life begins when a block is put in and ends when it leaves; a block that comes back begins another. Each use after the
//! first within a life is a *read*: what a life without reads stored was stored for nothing. A block that the whole trace
//! uses once is a *one-hit wonder*, which no cache can read. A *gap* is the time between two uses of a block that follow
//! each other, whatever became of the block meanwhile; gaps know no cache.

use super::distance::Stack;
use super::{Met, Request, Rule, Setting, Trace};
use crate::error::Result;

/// One life of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// Number of the block.
    pub block: u32,
    /// Its place in the prompt that put it in, from 0.
    pub position: u32,
    /// Index of that request in the trace.
    pub request: u32,
    /// Tokens of that prompt in it; fewer than a block holds where the prompt ends.
    pub tokens: u32,
    /// When it was put in, ns.
    pub born_ns: i64,
    /// When it was used last, ns.
    pub last_use_ns: i64,
    /// When it left, ns; `None` if it was there at the end.
    pub left_ns: Option<i64>,
    /// Uses after the first.
    pub reads: u32,
    /// Of these, uses by another session than the one that put it in; 0 where sessions are unknown.
    pub other_reads: u32,
}

impl Life {
    /// How long it lay unused before it left, ns; `None` if it was there at the end.
    pub fn idle_ns(&self) -> Option<i64> {
        self.left_ns.map(|left| left - self.last_use_ns)
    }
}

/// All lives under one policy.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Lives {
    /// In the order in which they ended; those that did not end last, by block.
    pub lives: Vec<Life>,
    /// Integral of resident blocks over time, block nanoseconds.
    pub block_ns: u128,
    /// Integral of tokens in resident blocks over time, token nanoseconds.
    pub token_ns: u128,
    /// Tokens of a block.
    pub unit_tokens: u32,
    /// From the first to the last arrival, ns.
    pub span_ns: i64,
}

impl Lives {
    /// Tokens in resident blocks over what these blocks could hold, mean over time; `None` if none was there for any time.
    pub fn token_occupancy(&self) -> Option<f64> {
        let room = self.block_ns * u128::from(self.unit_tokens);
        (room > 0).then(|| self.token_ns as f64 / room as f64)
    }
}

/// One gap between two uses of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Number of the block.
    pub block: u32,
    /// Its place in the later prompt, from 0.
    pub position: u32,
    /// Index of the later request.
    pub request: u32,
    /// Index of the earlier one.
    pub earlier: u32,
    /// Time between them, ns.
    pub gap_ns: i64,
    /// Distinct other blocks that were used between: an LRU cache of more blocks hits.
    pub distance: u32,
    /// Whether both are of one session; `None` where sessions are unknown.
    pub is_same_session: Option<bool>,
}

/// A time in which a block lay there without being used: from one use to the next, or until it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// Number of the block.
    pub block: u32,
    /// Its place in the prompt that put it in, from 0.
    pub position: u32,
    /// When it was used, ns.
    pub from_ns: i64,
    /// When it was used again, or left, or the trace ended, ns.
    pub to_ns: i64,
    /// Index of the request that used it again; `None` if none did.
    pub read_by: Option<u32>,
}

/// Tokens of a prompt in its block at `position`.
fn tokens_at(request: &Request<'_>, position: u32) -> u32 {
    let before = position.saturating_mul(request.unit_tokens);
    request.prompt_tokens.saturating_sub(before).min(request.unit_tokens)
}

/// A replay that keeps the lives.
struct Keeper {
    found: Lives,
    /// By block, the life that goes on.
    open: Vec<Option<Life>>,
    sessions: Vec<u32>,
    resident: u64,
    tokens: u64,
    now: i64,
    /// Times between uses, where they are wanted.
    intervals: Option<Vec<Interval>>,
}

impl Keeper {
    fn lay(&mut self, life: &Life, read_by: Option<u32>) {
        if let Some(intervals) = &mut self.intervals {
            let (block, position) = (life.block, life.position);
            intervals.push(Interval { block, position, from_ns: life.last_use_ns, to_ns: self.now, read_by });
        }
    }

    /// Time goes on to that of a request.
    fn until(&mut self, now: i64) {
        let passed = u128::from(now.saturating_sub(self.now).max(0).unsigned_abs());
        self.found.block_ns += u128::from(self.resident) * passed;
        self.found.token_ns += u128::from(self.tokens) * passed;
        self.now = self.now.max(now);
    }

    fn end(&mut self, block: u32) {
        if let Some(life) = self.open[block as usize].take() {
            self.lay(&life, None);
            self.resident -= 1;
            self.tokens -= u64::from(life.tokens);
            self.found.lives.push(Life { left_ns: Some(self.now), ..life });
        }
    }

    fn used(&mut self, request: &Request<'_>, index: u32, position: u32, met: Met) {
        let block = request.blocks[position as usize];
        match met {
            Met::Hit => {
                if let Some(life) = self.open[block as usize] {
                    self.lay(&life, Some(index));
                }
                if let Some(life) = &mut self.open[block as usize] {
                    life.reads += 1;
                    life.last_use_ns = self.now;
                    life.other_reads += u32::from(self.sessions[block as usize] != request.session);
                }
            }
            Met::Bypass => {}
            Met::Miss | Met::Eviction(_) => {
                if let Met::Eviction(victim) = met {
                    self.end(victim);
                }
                let tokens = tokens_at(request, position);
                self.resident += 1;
                self.tokens += u64::from(tokens);
                self.sessions[block as usize] = request.session;
                self.open[block as usize] = Some(Life {
                    block,
                    position,
                    request: index,
                    tokens,
                    born_ns: self.now,
                    last_use_ns: self.now,
                    left_ns: None,
                    reads: 0,
                    other_reads: 0,
                });
            }
        }
    }
}

/// The lives of all blocks in a cache of so many under a rule.
///
/// # Errors
/// A rule that needs what the trace lacks.
pub fn lives(rule: &Rule, trace: &Trace<'_>, capacity: usize) -> Result<Lives> {
    Ok(keep(rule, trace, capacity, None)?.found)
}

/// The times between uses of all blocks in a cache of so many under a rule; together they are all time for which blocks are
/// there.
///
/// # Errors
/// A rule that needs what the trace lacks.
pub fn intervals(rule: &Rule, trace: &Trace<'_>, capacity: usize) -> Result<Vec<Interval>> {
    Ok(keep(rule, trace, capacity, Some(Vec::new()))?.intervals.unwrap_or_default())
}

fn keep(rule: &Rule, trace: &Trace<'_>, capacity: usize, intervals: Option<Vec<Interval>>) -> Result<Keeper> {
    let mut keeper = Keeper {
        intervals,
        found: Lives { unit_tokens: trace.unit_tokens(), ..Lives::default() },
        open: vec![None; trace.distinct()],
        sessions: vec![0; trace.distinct()],
        resident: 0,
        tokens: 0,
        now: 0,
    };
    if rule.kind().start.is_some() {
        online(rule, trace, capacity, &mut keeper)?;
    } else {
        offline(rule, trace, capacity, &mut keeper)?;
    }
    let still: Vec<Life> = keeper.open.iter().flatten().copied().collect();
    still.iter().for_each(|life| keeper.lay(life, None));
    keeper.found.lives.extend(still);
    keeper.found.span_ns = keeper.now;
    Ok(keeper)
}

/// A policy that can be stepped, so that what it drops is seen.
fn online(rule: &Rule, trace: &Trace<'_>, capacity: usize, keeper: &mut Keeper) -> Result<()> {
    rule.admits(trace)?;
    let mut policy = rule.start(Setting { capacity, unit_tokens: trace.unit_tokens() })?;
    policy.grow(trace.distinct());
    let mut dropped = Vec::new();
    for (index, request) in trace.requests().enumerate() {
        keeper.until(request.time_ns);
        policy.begin(&request, &mut dropped);
        dropped.drain(..).for_each(|block| keeper.end(block));
        for (position, &block) in request.blocks.iter().enumerate() {
            let met = policy.touch(block);
            keeper.used(&request, index as u32, position as u32, met);
        }
    }
    Ok(())
}

/// A policy that knows the future and drops nothing.
fn offline(rule: &Rule, trace: &Trace<'_>, capacity: usize, keeper: &mut Keeper) -> Result<()> {
    let mut requests = trace.requests().enumerate().filter(|(_, request)| !request.blocks.is_empty());
    let mut at = requests.next();
    let mut position = 0_u32;
    rule.replay(trace, capacity, &mut |_, met| {
        let Some((index, request)) = at else { return };
        keeper.until(request.time_ns);
        keeper.used(&request, index as u32, position, met);
        position += 1;
        if position as usize == request.blocks.len() {
            (at, position) = (requests.next(), 0);
        }
    })?;
    Ok(())
}

/// The gaps of a trace, in the order of the later uses. A prompt that uses a block twice has a gap of 0.
pub fn gaps(trace: &Trace<'_>) -> Vec<Gap> {
    let mut stack = Stack::default();
    stack.grow(trace.distinct());
    // By block, one more than the index of the last request that used it, its time and its session.
    let mut last: Vec<(u32, i64, u32)> = vec![(0, 0, 0); trace.distinct()];
    let mut found = Vec::with_capacity(trace.accesses().len().saturating_sub(trace.distinct()));
    for (index, request) in trace.requests().enumerate() {
        for (position, &block) in request.blocks.iter().enumerate() {
            let place = &mut last[block as usize];
            let (earlier, time, session) =
                std::mem::replace(place, (index as u32 + 1, request.time_ns, request.session));
            let Some(distance) = stack.touch(block) else { continue };
            found.push(Gap {
                block,
                position: position as u32,
                request: index as u32,
                earlier: earlier.saturating_sub(1),
                gap_ns: request.time_ns - time,
                distance,
                is_same_session: trace.has_sessions().then_some(session == request.session),
            });
        }
    }
    found
}

/// How often the trace uses each block.
pub fn uses(trace: &Trace<'_>) -> Vec<u32> {
    let mut uses = vec![0_u32; trace.distinct()];
    trace.accesses().iter().for_each(|&block| uses[block as usize] += 1);
    uses
}
