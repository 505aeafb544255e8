//! The serving replay: turns arrivals into batches, and batches into what each user felt.
//!
//! The rules are those of a real engine, by name and version. Requests come when the trace says (`open`), when another has
//! finished (`closed`), or when the turn before them has (`session`); a routing rule sends each to an instance. A request that
//! waits for one that a stage of the policy sends for it has come, and is sent when that one has ended. Nothing is
//! simulated token by token: while a batch stays the same, step times are an arithmetic progression, so the replay jumps
//! from event to event (an arrival, a finish, a layer group that stops growing, memory that runs out) and still knows every
//! token's latency exactly. An instance promises its next stretch of steps; an arrival may cut it short.

mod captured;
mod cluster;
mod instance;
mod lockstep;
pub mod lower;
mod memory;
pub mod quantile;
mod rules;
mod traffic;

pub use captured::{CapturedStep, captured};
pub use cluster::{Handover, Pool, Role, Routing, Setup, serve};
pub use rules::{Admit, Compose, Preempted, RULES, Rules, Victim};
pub use traffic::Traffic;

use crate::cost::StepCost;
use lower::Moved;

/// A stretch of engine steps with one batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// The copy of the model.
    pub instance: u32,
    /// Beginning of its first step.
    pub start_ns: i64,
    /// Steps.
    pub steps: u64,
    /// Requests that decoded in each step.
    pub decode_requests: u64,
    /// Requests that prefilled.
    pub prefill_requests: u32,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Context of the decoding requests in the first step.
    pub context_tokens: u64,
    /// Time before the first step in which its requests, running already, did not decode; it is part of their gap.
    pub stall_ns: i64,
    /// Of the decoding requests, those of users whose gap is the step's time: no stage of the policy sends them, and their
    /// gap is not in [`Outcome::long_gaps`].
    pub felt_requests: u64,
    /// Duration of the first step.
    pub first_ns: f64,
    /// Duration of the last step.
    pub last_ns: f64,
    /// Duration of all steps.
    pub total_ns: i64,
    /// Booths and bytes of all steps together.
    pub cost: StepCost,
    /// KV held by running requests at the end, before those that finished leave.
    pub held_bytes: u64,
    /// KV held or cached at the end.
    pub resident_bytes: u64,
    /// KV held once those that finished have left.
    pub left_bytes: u64,
    /// What memories below did, nearest first; empty where there are none.
    pub below: Vec<Moved>,
    /// Requests waiting for admission.
    pub waiting_requests: u32,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Not yet known; never in an outcome.
    Pending,
    /// Served to the end.
    Finished,
    /// It can never fit in the KV memory.
    TooLarge,
    /// Its prompt is longer than a step, and the engine splits none.
    TooLong,
    /// It has no prompt.
    NoPrompt,
    /// The capture has no step of it.
    NotCaptured,
}

impl Fate {
    /// Why a request was turned away; `None` for one that was not.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::TooLarge => Some("its KV can never fit in memory"),
            Self::TooLong => Some("its prompt is longer than a step, and the engine splits none"),
            Self::NoPrompt => Some("it has no prompt"),
            Self::NotCaptured => Some("the capture has no step of it"),
            Self::Pending | Self::Finished => None,
        }
    }
}

/// What a request felt. Times in nanoseconds after its arrival; `None` where there is none. A request that a stage holds back,
/// since another one that the stage sends for it comes first, has arrived all the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Served {
    /// The copy of the model; where prompts are computed elsewhere, the one that decoded.
    pub instance: u32,
    /// When it came, after the first request.
    pub arrival_ns: i64,
    /// What became of it.
    pub fate: Fate,
    /// Until the requests that stages send for it had ended.
    pub stage_wait_ns: i64,
    /// Until first admission.
    pub queue_ns: Option<i64>,
    /// Until the first token; `None` if it generates nothing.
    pub ttft_ns: Option<i64>,
    /// Until the last token, or the end of the prompt if it generates nothing.
    pub e2e_ns: Option<i64>,
    /// Largest gap between two of its tokens.
    pub max_itl_ns: Option<i64>,
    /// Prompt tokens found in the prefix cache at first admission, or fetched from a memory below.
    pub hit_tokens: u32,
    /// Of these, tokens that were fetched.
    pub far_hit_tokens: u32,
    /// Tokens computed in prefills.
    pub computed_tokens: u32,
    /// Of these, again after a preemption.
    pub recomputed_tokens: u32,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Time that its KV waited for the link between pools, and time on it that no computation hid.
    pub link_ns: i64,
    /// Share of the instance's step time: each step is shared by the tokens it computed.
    pub machine_ns: f64,
}

/// Why a gap between two tokens is longer than a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GapCause {
    /// The request gave way to others and came back.
    Preemption,
    /// Its KV went from the pool that computed its prompt to the one that decodes.
    Handover,
    /// It joined while prompts were computed without decoding.
    Prefill,
}

/// A gap between two tokens of a user's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LongGap {
    /// Its length.
    pub ns: i64,
    /// Why it is longer than a step.
    pub cause: GapCause,
}

impl Served {
    /// A request of which nothing is known yet.
    pub(crate) fn pending() -> Self {
        Self {
            instance: 0,
            arrival_ns: 0,
            fate: Fate::Pending,
            stage_wait_ns: 0,
            queue_ns: None,
            ttft_ns: None,
            e2e_ns: None,
            max_itl_ns: None,
            hit_tokens: 0,
            far_hit_tokens: 0,
            computed_tokens: 0,
            recomputed_tokens: 0,
            preemptions: 0,
            link_ns: 0,
            machine_ns: 0.0,
        }
    }
}

/// What a replay found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// All stretches, instance by instance, each in order of time.
    pub stretches: Vec<Stretch>,
    /// One entry per request of the workload.
    pub served: Vec<Served>,
    /// Gaps between tokens of users' requests that no single step explains.
    pub long_gaps: Vec<LongGap>,
    /// All gaps between tokens, where a request does not decode in every step (captured steps); else `None`, and the gaps
    /// are the step times of [`Stretch::felt_requests`] and `long_gaps`.
    pub all_gaps: Option<Vec<i64>>,
    /// Whether the clock ran beyond [`crate::workload::LONGEST_NS`]; the rest was then not served.
    pub overran: bool,
}

#[cfg(test)]
mod tests;
