//! When requests come: by the trace, by the end of another request, or by the end of the turn before.

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
    /// When each request came, where turns wait for each other.
    came: Vec<i64>,
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
        };
        let all = 0..workload.len() as u32;
        match traffic {
            Traffic::Open => arrivals.listed = all.collect(),
            Traffic::Closed { concurrency } => {
                for _ in 0..concurrency {
                    arrivals.admit_next(0);
                }
            }
            Traffic::Session => {
                let turns = &workload.turns;
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
        if self.next < self.workload.len() {
            self.later.push(Reverse((now, self.order, self.next as u32)));
            self.order += 1;
            self.next += 1;
        }
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
        if let Some(came) = self.came.get_mut(request as usize) {
            *came = at;
        }
        Some(request)
    }

    /// A request has ended, served or not.
    pub(super) fn ended(&mut self, request: u32, now: i64) {
        match self.traffic {
            Traffic::Open => {}
            Traffic::Closed { .. } => self.admit_next(now),
            Traffic::Session => {
                let mut follower = self.first[request as usize];
                let came = self.came[request as usize];
                while follower != NONE {
                    let at = self.workload.turns.due(follower as usize, came, now);
                    self.later.push(Reverse((at, self.order, follower)));
                    self.order += 1;
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
