//! When requests come: by the trace, by the end of another request, or by the end of the turn before.
//!
//! Where a stage of the policy sends a request of its own for a turn (a summary of what was before it), both come at once, and
//! the turn is sent when that request has ended. In a closed loop the two take one place after the other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::workload::Workload;

/// Where arrivals come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// The trace's own times, whether or not the machine keeps up.
    Open,
    /// So many requests at a time: each that ends lets the next of the trace in.
    Closed {
        /// Requests at a time.
        concurrency: u32,
    },
    /// First turns come when the trace says; each other turn when the one before it has ended, after its pause.
    Session,
}

/// No request.
const NONE: u32 = u32::MAX;

/// The requests that are still to come.
#[derive(Debug)]
pub(super) struct Arrivals<'a> {
    workload: &'a Workload,
    traffic: Traffic,
    /// Requests whose time is known from the start, in order.
    listed: Vec<u32>,
    next: usize,
    /// Requests whose time became known since, with the order in which it did.
    later: BinaryHeap<Reverse<(i64, u64, u32)>>,
    order: u64,
    /// The first request that follows each request, and the next one that follows the same.
    first: Vec<u32>,
    other: Vec<u32>,
    /// When each request came, where some wait for others.
    came: Vec<i64>,
    /// The request that each one holds back until it has ended; empty where stages send none.
    held: Vec<u32>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(workload: &'a Workload, traffic: Traffic) -> Self {
        let mut arrivals = Self {
            workload,
            traffic,
            listed: Vec::new(),
            next: 0,
            later: BinaryHeap::new(),
            order: 0,
            first: Vec::new(),
            other: Vec::new(),
            came: Vec::new(),
            held: Vec::new(),
        };
        let (all, turns) = (0..workload.len() as u32, &workload.turns);
        if !turns.held_by.is_empty() {
            arrivals.came.clone_from(&workload.arrival_ns);
            arrivals.held = vec![NONE; workload.len()];
            for at in all.clone() {
                if let Some(own) = turns.held_by(at as usize) {
                    arrivals.held[own as usize] = at;
                }
            }
        }
        match traffic {
            Traffic::Open => arrivals.listed = all.filter(|&at| turns.held_by(at as usize).is_none()).collect(),
            Traffic::Closed { concurrency } => {
                for _ in 0..concurrency {
                    arrivals.admit_next(0);
                }
            }
            Traffic::Session => {
                arrivals.listed = all.clone().filter(|&at| turns.before(at as usize).is_none()).collect();
                arrivals.first = vec![NONE; workload.len()];
                arrivals.other = vec![NONE; workload.len()];
                arrivals.came.clone_from(&workload.arrival_ns);
                for at in all.rev() {
                    if let Some(before) = turns.before(at as usize) {
                        arrivals.other[at as usize] = arrivals.first[before as usize];
                        arrivals.first[before as usize] = at;
                    }
                }
            }
        }
        arrivals
    }

    fn admit_next(&mut self, now: i64) {
        while self.workload.turns.held_by(self.next).is_some() {
            self.next += 1;
        }
        if self.next < self.workload.len() {
            self.send_at(now, self.next as u32);
            self.next += 1;
        }
    }

    fn send_at(&mut self, at: i64, request: u32) {
        self.later.push(Reverse((at, self.order, request)));
        self.order += 1;
    }

    fn listed_at(&self) -> Option<(i64, u32)> {
        let request = *self.listed.get(self.next)?;
        Some((self.workload.arrival_ns[request as usize], request))
    }

    /// When the next request comes.
    pub(super) fn peek(&self) -> Option<i64> {
        let later = self.later.peek().map(|Reverse((at, ..))| *at);
        [self.listed_at().map(|(at, _)| at), later].into_iter().flatten().min()
    }

    /// The next request that comes at `now` or before. Those whose time was known come first.
    pub(super) fn pop(&mut self, now: i64) -> Option<u32> {
        let later = self.later.peek().map(|Reverse((at, ..))| *at);
        if let Some((at, request)) = self.listed_at()
            && at <= now
            && later.is_none_or(|later| at <= later)
        {
            self.next += 1;
            return Some(request);
        }
        later.filter(|&at| at <= now)?;
        let Reverse((at, _, request)) = self.later.pop()?;
        let own = self.workload.turns.held_by(request as usize);
        let came = own.map_or(at, |own| self.came(own, at));
        if let Some(known) = self.came.get_mut(request as usize) {
            *known = came;
        }
        Some(request)
    }

    /// When a request that is sent now came: earlier, if it was held back.
    pub(super) fn came(&self, request: u32, now: i64) -> i64 {
        self.came.get(request as usize).copied().unwrap_or(now)
    }

    /// A request has ended, served or not.
    pub(super) fn ended(&mut self, request: u32, now: i64) {
        let held = self.held.get(request as usize).copied().filter(|&held| held != NONE);
        match (self.traffic, held) {
            (Traffic::Open | Traffic::Closed { .. }, Some(held)) => self.send_at(now, held),
            (Traffic::Open, None) => {}
            (Traffic::Closed { .. }, None) => self.admit_next(now),
            (Traffic::Session, _) => {
                let mut follower = self.first[request as usize];
                let came = self.came[request as usize];
                while follower != NONE {
                    let at = self.workload.turns.due(follower as usize, came, now);
                    self.send_at(at, follower);
                    follower = self.other[follower as usize];
                }
            }
        }
    }

    /// The first request that continues this one, where turns wait for each other.
    pub(super) fn follower(&self, request: u32) -> Option<u32> {
        self.first.get(request as usize).copied().filter(|&follower| follower != NONE)
    }
}
