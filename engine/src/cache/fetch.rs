//! Fetch or recompute: whether blocks of a farther tier are worth the way.
//!
//! A prompt's blocks that are there without a gap from its beginning are split into *runs*: blocks in a row whose nearest
//! copies are in one tier. A run in a farther tier can be fetched, or its tokens can be computed again.
//!
//! * *Fetching* takes the wait for the tier's link, which carries one run after another in order of arrival, the tier's
//!   latency, and the bytes over the bandwidth of the slowest part of the way. Runs of one request over different links go at
//!   once. Nothing of it hides behind arithmetic.
//! * *Computing* it takes what the prefill of the rest of the prompt takes from where the run begins, less what it takes from
//!   where the run ends ([`prefill_ns`]): at that depth, with its attention to all before it. Blocks of the nearest tier
//!   right behind it count with it, since an engine computes them too once one before them is computed. At least the last
//!   token of a prompt is always computed. Waiting for the accelerator is not counted.
//!
//! A run *pays* if fetching it takes less than computing it. Blocks behind a gap are of no use to an engine that needs a
//! prefix without gaps, and never pay. With [`Decide::BreakEven`] a request fetches the runs up to the place from which
//! its fetches and the rest of its prefill take least together, so that links are not kept busy for nothing; with
//! [`Decide::Always`] it fetches all that can be.
//!
//! Writes go the other way on links that carry both ways at once; they delay no fetch here.

use super::Request;
use super::Trace;
use super::tiers::{Hierarchy, HierarchyCounts, replay_asking};
use crate::cost::{Plan, prefill_ns};
use crate::error::{Error, Result};

/// The way from a farther tier to all accelerators of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// What it is.
    pub name: String,
    /// Bandwidth of its slowest part, bytes per nanosecond.
    pub bytes_per_ns: f64,
    /// Time to the first byte, ns.
    pub latency_ns: f64,
}

/// Which runs are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decide {
    /// All that can be.
    Always,
    /// Up to the place that is best for the request.
    BreakEven,
}

/// What fetching is priced with.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// The model on its accelerators.
    pub plan: &'a Plan,
    /// Ways from the tiers beyond the nearest, in their order.
    pub ways: &'a [Way],
    /// Which runs are fetched.
    pub decide: Decide,
    /// Most prompt tokens of a step.
    pub chunk_tokens: u32,
}

/// Whether a run pays, or the first reason why it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Fetching takes less time than computing.
    Pays,
    /// A block before it is nowhere and must be computed, and then an engine computes all behind it.
    Gap,
    /// The tier fetches only longer runs.
    Short,
    /// The bytes alone take longer than computing.
    Slow,
    /// The bytes take less, but with the latency they take longer.
    Latency,
    /// The way takes less, but with the wait for its link it takes longer.
    Queue,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 6] = [Self::Pays, Self::Gap, Self::Short, Self::Slow, Self::Latency, Self::Queue];

    /// As it stands in tables.
    pub fn text(self) -> &'static str {
        match self {
            Self::Pays => "pays",
            Self::Gap => "does not pay because a block before it must be computed",
            Self::Short => "does not pay because its tier fetches only longer runs",
            Self::Slow => "does not pay because its bytes take longer than computing it",
            Self::Latency => "does not pay because of the latency of its tier",
            Self::Queue => "does not pay because it waits for the link",
        }
    }
}

/// A run of blocks of one request in a farther tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// Index of the request in the trace.
    pub request: u32,
    /// The tier, 1 or farther.
    pub tier: u32,
    /// Place of its first block in the prompt.
    pub first_block: u32,
    /// Blocks.
    pub blocks: u32,
    /// Tokens of the prompt before it.
    pub depth_tokens: u32,
    /// Its tokens.
    pub tokens: u32,
    /// KV bytes on all accelerators.
    pub bytes: u64,
    /// Wait for the link while it serves other requests, ns.
    pub queue_ns: f64,
    /// Latency, ns.
    pub latency_ns: f64,
    /// Bytes over bandwidth, ns.
    pub transfer_ns: f64,
    /// What computing it takes, ns; 0 where it is not asked for, since the run lies behind a gap or is too short.
    pub compute_ns: f64,
    /// Whether it was fetched.
    pub is_fetched: bool,
    /// Whether that pays.
    pub verdict: Verdict,
}

impl Run {
    /// Time of fetching it, ns.
    pub fn fetch_ns(&self) -> f64 {
        self.queue_ns + self.latency_ns + self.transfer_ns
    }

    fn judged(mut self) -> Self {
        self.verdict = if self.transfer_ns >= self.compute_ns {
            Verdict::Slow
        } else if self.transfer_ns + self.latency_ns >= self.compute_ns {
            Verdict::Latency
        } else if self.fetch_ns() >= self.compute_ns {
            Verdict::Queue
        } else {
            Verdict::Pays
        };
        self
    }
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Found {
    /// Every run, in order.
    pub runs: Vec<Run>,
    /// What happened in the tiers.
    pub counts: HierarchyCounts,
    /// KV bytes of a block on all accelerators.
    pub block_bytes: u64,
    /// From the first to the last arrival, ns.
    pub span_ns: i64,
    /// Instances, each with ways of its own.
    pub instances: u32,
    /// What computing the rest of each prompt takes, ns, all requests together.
    pub prefill_ns: f64,
    /// Until the last fetch of each request is done, ns, all requests together.
    pub fetch_ns: f64,
    /// Tokens of prompts that were found, near or far.
    pub found_tokens: u64,
}

impl Found {
    /// Adds what another instance found; `index` turns its requests into those of the whole trace.
    pub fn add(&mut self, other: Self, index: impl Fn(u32) -> u32) {
        self.runs.extend(other.runs.into_iter().map(|run| Run { request: index(run.request), ..run }));
        self.block_bytes = other.block_bytes;
        self.span_ns = self.span_ns.max(other.span_ns);
        self.instances += other.instances;
        self.prefill_ns += other.prefill_ns;
        self.fetch_ns += other.fetch_ns;
        self.found_tokens += other.found_tokens;
        let counts = &mut self.counts;
        counts.accesses += other.counts.accesses;
        counts.misses += other.counts.misses;
        counts.leading_hits += other.counts.leading_hits;
        counts.copies += other.counts.copies;
        counts.tiers.resize(other.counts.tiers.len(), super::tiers::TierCounts::default());
        for (tier, more) in counts.tiers.iter_mut().zip(&other.counts.tiers) {
            tier.add(more);
        }
    }
}

/// A replay at work.
struct Judge<'a> {
    terms: Terms<'a>,
    token_bytes: u64,
    /// When each way is free again, ns.
    free: Vec<f64>,
    runs: Vec<Run>,
    request: u32,
    span_ns: i64,
    /// Places up to which the present request could fetch.
    cuts: Vec<Cut>,
    prefill_ns: f64,
    fetch_ns: f64,
    found_tokens: u64,
}

/// The place behind a run that would be fetched.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// Blocks before it.
    block: usize,
    /// Runs, counted from where those of the request begin.
    runs: usize,
    /// When all fetches up to here are done, ns from the arrival.
    done_ns: f64,
    /// What computing the rest of the prompt takes, ns.
    rest_ns: f64,
}

/// Replays a trace on tiers, and judges every run that lies in a farther one.
///
/// # Errors
/// Those of [`super::tiers::replay`]; another number of ways than farther tiers; blocks without tokens or bytes.
pub fn judge(hierarchy: &Hierarchy, trace: &Trace<'_>, terms: Terms<'_>) -> Result<Found> {
    let farther = hierarchy.tiers.len().saturating_sub(1);
    if terms.ways.len() != farther {
        return Err(Error::usage(format!(
            "expected a way from each of {farther} farther tiers, found {}",
            terms.ways.len()
        )));
    }
    let token_bytes = terms.plan.growing_bytes();
    if token_bytes == 0 || trace.unit_tokens() == 0 {
        return Err(Error::run(
            "nothing can be fetched: blocks of this model hold no bytes that grow with the context",
        ));
    }
    let free = vec![0.0; farther];
    let mut judge = Judge {
        terms,
        token_bytes,
        free,
        runs: Vec::new(),
        request: 0,
        span_ns: 0,
        cuts: Vec::new(),
        prefill_ns: 0.0,
        fetch_ns: 0.0,
        found_tokens: 0,
    };
    let counts = replay_asking(hierarchy, trace, &mut |request, nearest, fetched| {
        judge.request(request, nearest, fetched);
    })?;
    let block_bytes = token_bytes.saturating_mul(u64::from(trace.unit_tokens()));
    Ok(Found {
        runs: judge.runs,
        counts,
        block_bytes,
        span_ns: judge.span_ns,
        instances: 1,
        prefill_ns: judge.prefill_ns,
        fetch_ns: judge.fetch_ns,
        found_tokens: judge.found_tokens,
    })
}

impl Judge<'_> {
    /// Judges the runs of a request, and says which of its blocks are fetched.
    fn request(&mut self, request: &Request<'_>, nearest: &[Option<usize>], fetched: &mut [bool]) {
        let begin = self.runs.len();
        self.span_ns = self.span_ns.max(request.time_ns);
        let (mut at, mut is_whole, mut done) = (0, true, 0.0_f64);
        let mut prefill = self.prefill(request, 0);
        self.cuts.clear();
        self.cuts.push(Cut { block: 0, runs: 0, done_ns: 0.0, rest_ns: prefill });
        // When each way is free again, and when this request's own last fetch over it ends.
        let (mut free, mut own) = (self.free.clone(), vec![request.time_ns as f64; self.free.len()]);
        for run in nearest.chunk_by(|a, b| a == b) {
            let (first, end) = (at, at + run.len());
            at = end;
            let Some(tier) = run[0] else {
                is_whole = false;
                continue;
            };
            if tier > 0 {
                let mut found = self.run(request, tier, (first, end));
                if !fetched[first] {
                    (found.verdict, is_whole) = (if is_whole { Verdict::Short } else { Verdict::Gap }, false);
                    self.runs.push(found);
                    continue;
                } else if !is_whole {
                    fetched[first..end].fill(false);
                    self.runs.push(found);
                    continue;
                }
                let rest = self.prefill(request, end);
                found.compute_ns = (prefill - rest).max(0.0);
                let link = &mut free[tier - 1];
                let start = link.max(request.time_ns as f64);
                found.queue_ns = start - own[tier - 1];
                *link = start + found.latency_ns + found.transfer_ns;
                own[tier - 1] = *link;
                done = done.max(*link - request.time_ns as f64);
                self.runs.push(found.judged());
                prefill = rest;
            } else if is_whole {
                let rest = self.prefill(request, end);
                // Near blocks right behind a run are lost with it.
                if let Some(before) = self.runs.get_mut(begin..).and_then(<[Run]>::last_mut) {
                    before.compute_ns += (prefill - rest).max(0.0);
                    *before = before.judged();
                }
                prefill = rest;
            }
            if is_whole {
                self.cuts.push(Cut { block: end, runs: self.runs.len() - begin, done_ns: done, rest_ns: prefill });
            }
        }
        self.settle(request, (begin, nearest), fetched);
        self.request += 1;
    }

    /// Fetches up to the place that was decided on.
    fn settle(&mut self, request: &Request<'_>, (begin, nearest): (usize, &[Option<usize>]), fetched: &mut [bool]) {
        let best = match self.terms.decide {
            Decide::Always => self.cuts.last().copied(),
            Decide::BreakEven => {
                let total = |cut: &Cut| cut.done_ns + cut.rest_ns;
                let mut costs = self.cuts.iter().map(|cut| (total(cut), cut));
                let first = costs.next();
                costs
                    .fold(first, |best, next| match best {
                        Some(best) if best.0 <= next.0 => Some(best),
                        _ => Some(next),
                    })
                    .map(|(_, cut)| *cut)
            }
        };
        let Some(Cut { block, runs, done_ns, rest_ns }) = best else { return };
        self.prefill_ns += rest_ns;
        self.fetch_ns += done_ns;
        self.found_tokens += u64::from(Self::token_at(request, block));
        for run in self.runs.iter_mut().skip(begin).take(runs) {
            run.is_fetched = true;
            let link = &mut self.free[run.tier as usize - 1];
            *link = link.max(request.time_ns as f64) + run.latency_ns + run.transfer_ns;
        }
        for (is_fetched, nearest) in fetched.iter_mut().zip(nearest).skip(block) {
            *is_fetched &= matches!(nearest, Some(0));
        }
    }

    /// A run as it lies there.
    fn run(&self, request: &Request<'_>, tier: usize, (first, end): (usize, usize)) -> Run {
        let (depth, until) = (Self::token_at(request, first), Self::token_at(request, end));
        let (tokens, way) = (until - depth, &self.terms.ways[tier - 1]);
        let bytes = u64::from(tokens).saturating_mul(self.token_bytes);
        Run {
            request: self.request,
            tier: tier as u32,
            first_block: first as u32,
            blocks: (end - first) as u32,
            depth_tokens: depth,
            tokens,
            bytes,
            queue_ns: 0.0,
            latency_ns: way.latency_ns,
            transfer_ns: bytes as f64 / way.bytes_per_ns,
            compute_ns: 0.0,
            is_fetched: false,
            verdict: Verdict::Gap,
        }
    }

    /// Tokens of a prompt before its block at `place`.
    fn token_at(request: &Request<'_>, place: usize) -> u32 {
        (place as u32).saturating_mul(request.unit_tokens).min(request.prompt_tokens)
    }

    /// Time of computing a prompt from its block at `place` on; at least its last token.
    fn prefill(&self, request: &Request<'_>, place: usize) -> f64 {
        let from = Self::token_at(request, place).min(request.prompt_tokens.saturating_sub(1));
        prefill_ns(self.terms.plan, from, request.prompt_tokens, self.terms.chunk_tokens)
    }
}

/// What one tier came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Total {
    /// Runs by verdict, in the order of [`Verdict::ALL`].
    pub runs: [u64; 6],
    /// Runs that were fetched.
    pub fetched_runs: u64,
    /// Tokens of fetched runs.
    pub fetched_tokens: u64,
    /// Bytes of fetched runs.
    pub fetched_bytes: u64,
    /// Wait for the link of fetched runs, ns.
    pub queue_ns: f64,
    /// Latencies and transfers of fetched runs, ns.
    pub transfer_ns: f64,
    /// What computing them would have taken, ns.
    pub compute_ns: f64,
    /// Bytes written to the tier.
    pub written_bytes: u64,
    /// Bytes written and never read from there.
    pub never_read_bytes: u64,
    /// Whether the tier pays, and if not, the commonest reason.
    pub verdict: Verdict,
    /// Whether nothing was ever found in it.
    pub is_idle: bool,
}

impl Total {
    /// Time saved, ns; below 0 where fetching lost time.
    pub fn saved_ns(&self) -> f64 {
        self.compute_ns - self.queue_ns - self.transfer_ns
    }

    /// The verdict as a sentence.
    pub fn text(&self) -> &'static str {
        match (self.verdict, self.is_idle) {
            (_, true) => "does not pay because no prompt asks for what is in it",
            (Verdict::Gap, _) => "does not pay because most runs lie behind a block that must be computed",
            (Verdict::Short, _) => "does not pay because most runs are too short to be fetched",
            (Verdict::Slow, _) => "does not pay because bytes take longer than computing them",
            (Verdict::Latency, _) => "does not pay because of its latency",
            (Verdict::Queue, _) => "does not pay because fetches wait for the link",
            (Verdict::Pays, _) => "pays",
        }
    }
}

/// What each farther tier came to, nearest first. A tier pays if its fetched runs took less than computing them would have;
/// else the reason is that of the most tokens.
pub fn totals(found: &Found) -> Vec<Total> {
    let of = |(at, tier): (usize, &super::tiers::TierCounts)| {
        let mut total = Total {
            runs: [0; 6],
            fetched_runs: 0,
            fetched_tokens: 0,
            fetched_bytes: 0,
            queue_ns: 0.0,
            transfer_ns: 0.0,
            compute_ns: 0.0,
            written_bytes: tier.writes.saturating_mul(found.block_bytes),
            never_read_bytes: tier.never_read.saturating_mul(found.block_bytes),
            verdict: Verdict::Pays,
            is_idle: true,
        };
        let mut tokens = [0_u64; 6];
        for run in found.runs.iter().filter(|run| run.tier as usize == at) {
            total.is_idle = false;
            total.runs[run.verdict as usize] += 1;
            tokens[run.verdict as usize] += u64::from(run.tokens);
            if run.is_fetched {
                total.fetched_runs += 1;
                total.fetched_tokens += u64::from(run.tokens);
                total.fetched_bytes += run.bytes;
                total.queue_ns += run.queue_ns;
                total.transfer_ns += run.latency_ns + run.transfer_ns;
                total.compute_ns += run.compute_ns;
            }
        }
        if total.is_idle || total.saved_ns() <= 0.0 {
            let reasons = Verdict::ALL.iter().skip(1).zip(tokens.iter().skip(1));
            let worst = reasons.fold(
                (Verdict::Gap, 0),
                |best, (verdict, tokens)| {
                    if *tokens > best.1 { (*verdict, *tokens) } else { best }
                },
            );
            total.verdict = worst.0;
        }
        total
    };
    found.counts.tiers.iter().enumerate().skip(1).map(of).collect()
}
