//! The decoding requests of one instance, which advance in lockstep: one token each per engine step.
//!
//! Sums over the batch are kept, not the requests' own figures: kept tokens per layer group, how many of them grow, and
//! where in its block each growing one stands. A step, or a thousand of them, then costs a handful of additions; only a
//! request that ends or stops growing is an event.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::cost::{BLOCK_TOKENS, Plan};
use crate::policy::Keep;

/// What happens to a request at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Lane `lane` counts no more tokens than now. Sorts before `Finish`.
    Full { request: u32, epoch: u32, lane: u16 },
    /// The last token is out.
    Finish { request: u32, epoch: u32 },
}

/// The sums of one layer group, or of what such a group reads where that is less than it keeps.
#[derive(Debug, Clone)]
struct Lane {
    keep: Keep,
    kept: u64,
    growing: u64,
    /// Growing requests by `(kept - step) mod 16`.
    phases: [u64; BLOCK_TOKENS as usize],
    block_bytes: u64,
}

/// A decoding request's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub request: u32,
    pub epoch: u32,
    /// Tokens that were prefilled.
    pub prefilled: u32,
    /// Tokens of context now.
    pub context: u32,
    /// Whether a stage of the policy sent it, so that no user waits for its tokens.
    pub is_added: bool,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Lockstep {
    pub step: u64,
    pub requests: u64,
    /// Of these, requests that stages of the policy sent.
    pub added: u64,
    pub context: u64,
    lanes: Vec<Lane>,
    /// How many requests have a context of so much more than steps have passed, where the plan asks for the longest.
    ahead: Option<BTreeMap<i64, u32>>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl Lockstep {
    pub(super) fn new(plan: &Plan) -> Self {
        let lane = |(lane, (_, keep))| Lane {
            keep,
            kept: 0,
            growing: 0,
            phases: [0; 16],
            block_bytes: plan.block_bytes(lane),
        };
        Self {
            step: 0,
            requests: 0,
            added: 0,
            context: 0,
            lanes: plan.lane_keeps().enumerate().map(lane).collect(),
            ahead: plan.asks_longest().then(BTreeMap::new),
            events: BinaryHeap::new(),
        }
    }

    /// Adds a request that needs `remaining` more tokens.
    pub(super) fn join(&mut self, member: Member, remaining: u32) {
        self.requests += 1;
        self.added += u64::from(member.is_added);
        self.context += u64::from(member.context);
        let lead = self.lead(member.context);
        if let Some(ahead) = &mut self.ahead {
            *ahead.entry(lead).or_insert(0) += 1;
        }
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let kept = lane.keep.tokens(member.prefilled, member.context);
            lane.kept += u64::from(kept);
            let left = lane.keep.full_at(member.prefilled).map(|full| full.saturating_sub(member.context));
            if left == Some(0) {
                continue;
            }
            lane.growing += 1;
            lane.phases[phase(kept, self.step)] += 1;
            if let Some(left) = left {
                let event = Event::Full { request: member.request, epoch: member.epoch, lane: index as u16 };
                self.events.push(Reverse((self.step + u64::from(left), event)));
            }
        }
        let event = Event::Finish { request: member.request, epoch: member.epoch };
        self.events.push(Reverse((self.step + u64::from(remaining), event)));
    }

    /// Removes a request, with all events of the current step already taken.
    pub(super) fn leave(&mut self, member: Member) {
        self.requests -= 1;
        self.added -= u64::from(member.is_added);
        self.context -= u64::from(member.context);
        let lead = self.lead(member.context);
        if let Some(ahead) = &mut self.ahead
            && let Some(count) = ahead.get_mut(&lead)
        {
            *count -= 1;
            if *count == 0 {
                ahead.remove(&lead);
            }
        }
        for lane in &mut self.lanes {
            let kept = lane.keep.tokens(member.prefilled, member.context);
            lane.kept -= u64::from(kept);
            if lane.keep.full_at(member.prefilled).is_none_or(|full| member.context < full) {
                lane.growing -= 1;
                lane.phases[phase(kept, self.step)] -= 1;
            }
        }
    }

    /// A request's lane stops growing.
    pub(super) fn fill(&mut self, member: Member, lane: u16) {
        let lane = &mut self.lanes[usize::from(lane)];
        let kept = lane.keep.tokens(member.prefilled, member.context);
        lane.growing -= 1;
        lane.phases[phase(kept, self.step)] -= 1;
    }

    /// Steps until the next event; `None` without requests.
    pub(super) fn until_event(&self) -> Option<u64> {
        self.events.peek().map(|Reverse((step, _))| step.saturating_sub(self.step))
    }

    /// The next event that is due now.
    pub(super) fn due(&mut self) -> Option<Event> {
        match self.events.peek() {
            Some(&Reverse((step, event))) if step <= self.step => {
                self.events.pop();
                Some(event)
            }
            _ => None,
        }
    }

    /// Kept tokens per lane that the `ahead`-th step from now attends to (1 is the next).
    pub(super) fn kept_into(&self, ahead: u64, kept: &mut [u64]) {
        for (lane, kept) in self.lanes.iter().zip(kept) {
            *kept = lane.kept + ahead * lane.growing;
        }
    }

    /// Context of the longest request that the `ahead`-th step from now attends to; 0 where nothing asks for it.
    pub(super) fn longest(&self, ahead: u64) -> u64 {
        let lead = self.ahead.as_ref().and_then(|leads| leads.last_key_value());
        lead.map_or(0, |(lead, _)| lead.saturating_add_unsigned(self.step + ahead).max(0) as u64)
    }

    /// What a context is beyond the steps that have passed: the same for a request as long as it decodes.
    fn lead(&self, context: u32) -> i64 {
        i64::from(context).saturating_sub_unsigned(self.step)
    }

    /// Bytes of blocks that `steps` steps will add.
    pub(super) fn growth(&self, steps: u64) -> u64 {
        let block = u64::from(BLOCK_TOKENS);
        let grown = self.lanes.iter().map(|lane| {
            let blocks = lane.phases.iter().enumerate().filter(|(_, count)| **count > 0).map(|(index, count)| {
                let filled = (index as u64 + self.step) % block;
                count * ((filled + steps).div_ceil(block) - filled.div_ceil(block))
            });
            blocks.sum::<u64>() * lane.block_bytes
        });
        grown.sum()
    }

    /// Advances all requests by `steps` tokens.
    pub(super) fn advance(&mut self, steps: u64) {
        for lane in &mut self.lanes {
            lane.kept += steps * lane.growing;
        }
        self.context += steps * self.requests;
        self.step += steps;
    }
}

fn phase(kept: u32, step: u64) -> usize {
    let block = u64::from(BLOCK_TOKENS);
    ((u64::from(kept) + block - step % block) % block) as usize
}
