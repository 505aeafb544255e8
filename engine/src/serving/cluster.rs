//! Several instances under one clock: who gets a request, and what moves between pools.
//!
//! Events are taken in order of time. At one instant stretches end first (in the order of the instances), then requests
//! come, then instances put their next steps together: the same order at any number of threads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::instance::{Handed, Instance, Shared, State};
use super::lower::Tiers;
use super::rules::Rules;
use super::traffic::{Arrivals, Traffic};
use super::{Fate, Outcome, Served};
use crate::cost::Plan;
use crate::workload::Workload;

/// What a pool's instances do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Prompts and decoding.
    Both,
    /// Prompts up to their first token.
    Prefill,
    /// Decoding, and what is preempted there.
    Decode,
}

/// Alike instances.
#[derive(Debug, Clone, Copy)]
pub struct Pool<'a> {
    /// The machine, priced for the model and policy.
    pub plan: &'a Plan,
    /// Copies of the model.
    pub instances: u32,
    /// What they do.
    pub role: Role,
}

/// Who gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Each in turn, in order of arrival.
    RoundRobin,
    /// The instance with the fewest requests, running or waiting; of equals the first.
    LeastLoaded,
    /// The instance that has most of the prompt cached; of equals the least loaded.
    Prefix,
    /// The instance that served the turn before; a first turn goes to the least loaded.
    Session,
}

impl Routing {
    /// Names, in order.
    pub const ALL: [(&'static str, Self); 4] = [
        ("round-robin", Self::RoundRobin),
        ("least-loaded", Self::LeastLoaded),
        ("prefix", Self::Prefix),
        ("session", Self::Session),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, routing)| *routing == self).map_or("", |(name, _)| name)
    }
}

/// How KV gets from the instances that compute prompts to those that decode. Each prefill instance sends over its own link,
/// one request after another. What a layer has computed may go while the next layers compute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Handover {
    /// Bandwidth of one prefill instance, all of its accelerators.
    pub bytes_per_ns: f64,
    /// Time from the last byte's departure to its arrival.
    pub latency_ns: f64,
}

/// Everything about a replay but its requests.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// Machines. Prefill pools need decode pools and `handover`.
    pub pools: &'a [Pool<'a>],
    /// When requests come.
    pub traffic: Traffic,
    /// Who gets them.
    pub routing: Routing,
    /// The engine's rules.
    pub rules: &'a Rules,
    /// The way between prefill and decode pools.
    pub handover: Option<Handover>,
    /// Memories below those of the accelerators of instances that compute prompts.
    pub below: Option<&'a Tiers>,
}

/// Serves a workload.
pub fn serve(setup: &Setup<'_>, workload: &Workload) -> Outcome {
    let mut cluster = Cluster::new(setup, workload);
    while !cluster.shared.overran {
        let Some(now) = cluster.next_event() else { break };
        cluster.end_stretches(now);
        cluster.deliver(now);
        cluster.start(now);
    }
    let Cluster { shared, instances, .. } = cluster;
    let Shared { served, long_gaps, overran, states, .. } = shared;
    drop(states);
    // Stretches are most of what a long replay holds: each instance's are given back once they are copied.
    let mut stretches = Vec::with_capacity(instances.iter().map(|instance| instance.stretches.len()).sum());
    for instance in instances {
        stretches.extend(instance.stretches);
    }
    Outcome { stretches, served, long_gaps, overran, ..Outcome::default() }
}

struct Cluster<'a> {
    setup: &'a Setup<'a>,
    shared: Shared<'a>,
    instances: Vec<Instance<'a>>,
    /// Instances that take requests, and those that decode what others prefilled.
    doors: Vec<u32>,
    decoders: Vec<u32>,
    /// Ends and wakes, some of them stale.
    clock: BinaryHeap<Reverse<(i64, u32)>>,
    /// KV that arrives at a decoder.
    moves: BinaryHeap<Reverse<(i64, u64, u32)>>,
    moved: u64,
    /// When each instance's link is free.
    link_free_ns: Vec<i64>,
    arrived: u64,
    ready: Vec<u32>,
}

impl<'a> Cluster<'a> {
    fn new(setup: &'a Setup<'a>, workload: &'a Workload) -> Self {
        let mut instances = Vec::new();
        let (mut doors, mut decoders) = (Vec::new(), Vec::new());
        for pool in setup.pools {
            for _ in 0..pool.instances {
                let number = instances.len() as u32;
                match pool.role {
                    Role::Both | Role::Prefill => doors.push(number),
                    Role::Decode => decoders.push(number),
                }
                let below = setup.below.filter(|_| pool.role != Role::Decode);
                instances.push(Instance::new(pool.plan, pool.role, number, workload, below));
            }
        }
        let shared = Shared {
            workload,
            rules: setup.rules,
            arrivals: Arrivals::new(workload, setup.traffic),
            states: vec![State::default(); workload.len()],
            served: vec![Served::pending(); workload.len()],
            long_gaps: Vec::new(),
            ended: Vec::new(),
            handed: Vec::new(),
            overran: false,
        };
        Self {
            setup,
            shared,
            link_free_ns: vec![0; instances.len()],
            instances,
            doors,
            decoders,
            clock: BinaryHeap::new(),
            moves: BinaryHeap::new(),
            moved: 0,
            arrived: 0,
            ready: Vec::new(),
        }
    }

    /// When something happens next.
    fn next_event(&mut self) -> Option<i64> {
        while let Some(&Reverse((at, instance))) = self.clock.peek() {
            let own = &self.instances[instance as usize];
            if own.ends() == Some(at) || own.wakes() == Some(at) {
                break;
            }
            self.clock.pop();
        }
        let clock = self.clock.peek().map(|Reverse((at, _))| *at);
        let moves = self.moves.peek().map(|Reverse((at, ..))| *at);
        [clock, moves, self.shared.arrivals.peek()].into_iter().flatten().min()
    }

    /// Carries out the stretches that end now.
    fn end_stretches(&mut self, now: i64) {
        while let Some(&Reverse((at, number))) = self.clock.peek().filter(|Reverse((at, _))| *at <= now) {
            self.clock.pop();
            let instance = &mut self.instances[number as usize];
            if instance.ends() == Some(at) {
                instance.commit(&mut self.shared);
                for handed in std::mem::take(&mut self.shared.handed) {
                    self.send(number, handed);
                }
                self.ready.push(number);
            } else if instance.wakes() == Some(at) {
                self.ready.push(number);
            }
            self.tell_ended(now);
        }
    }

    /// Whoever waits for the end of a request learns of it when its last token is through the front.
    fn tell_ended(&mut self, now: i64) {
        let now = now + self.setup.rules.front_ns.round() as i64;
        for at in 0..self.shared.ended.len() {
            self.shared.arrivals.ended(self.shared.ended[at], now);
        }
        self.shared.ended.clear();
    }

    /// Sends the KV of a computed prompt to the decoders, behind what its instance sends already.
    fn send(&mut self, from: u32, handed: Handed) {
        let Some(link) = self.setup.handover else { return };
        let layers = self.setup.pools.first().map_or(1.0, |pool| pool.plan.layers).max(1.0);
        let Handed { request, began_ns, ended_ns, bytes, last_bytes } = handed;
        // The first layer's KV may leave once that layer is computed; the last layer's once all are.
        let first_layer = began_ns + ((ended_ns - began_ns) as f64 / layers).round() as i64;
        let free = &mut self.link_free_ns[from as usize];
        let begin = first_layer.max(*free);
        let tail = (last_bytes as f64 / layers / link.bytes_per_ns).ceil() as i64;
        let end = (begin + (bytes as f64 / link.bytes_per_ns).ceil() as i64).max(ended_ns.max(*free) + tail);
        *free = end;
        let there = end + link.latency_ns.round() as i64;
        self.shared.served[request as usize].link_ns = there - ended_ns;
        self.instances[from as usize].release_at(request, there);
        self.moves.push(Reverse((there, self.moved, request)));
        self.moved += 1;
        self.clock.push(Reverse((there, from)));
    }

    /// Brings the requests that come now, and the KV that arrives now, to their instances.
    fn deliver(&mut self, now: i64) {
        while let Some(&Reverse((_, _, request))) = self.moves.peek().filter(|Reverse((at, ..))| *at <= now) {
            self.moves.pop();
            if let Some(decoder) = self.least_loaded(&self.decoders) {
                self.bring(decoder, request, now);
            }
        }
        while let Some(request) = self.shared.arrivals.pop(now) {
            let at = request as usize;
            let came = self.shared.arrivals.came(request, now);
            (self.shared.served[at].arrival_ns, self.shared.served[at].stage_wait_ns) = (came, now - came);
            let Some(door) = self.route(request) else { return };
            self.arrived += 1;
            self.shared.served[at].instance = door;
            let mut refusing = std::iter::once(door).chain(self.decoders.iter().copied());
            let fate = refusing.find_map(|at| self.instances[at as usize].refuses(&self.shared, request));
            match fate {
                Some(fate) => self.turn_away(request, fate, now),
                None => self.bring(door, request, now),
            }
        }
    }

    fn turn_away(&mut self, request: u32, fate: Fate, now: i64) {
        self.shared.served[request as usize].fate = fate;
        self.shared.arrivals.ended(request, now);
    }

    fn bring(&mut self, number: u32, request: u32, now: i64) {
        let instance = &mut self.instances[number as usize];
        let before = instance.ends();
        instance.arrive(&mut self.shared, request, now);
        match instance.ends() {
            None => self.ready.push(number),
            Some(end) if before != Some(end) => self.clock.push(Reverse((end, number))),
            Some(_) => {}
        }
    }

    fn route(&self, request: u32) -> Option<u32> {
        let workload = self.shared.workload;
        match self.setup.routing {
            Routing::RoundRobin => {
                let turn = self.arrived % (self.doors.len() as u64).max(1);
                self.doors.get(turn as usize).copied()
            }
            Routing::LeastLoaded => self.least_loaded(&self.doors),
            Routing::Session => match workload.turns.before(request as usize) {
                Some(before) if self.doors.contains(&self.shared.served[before as usize].instance) => {
                    Some(self.shared.served[before as usize].instance)
                }
                _ => self.least_loaded(&self.doors),
            },
            Routing::Prefix => {
                let rank = |&&number: &&u32| {
                    let instance = &self.instances[number as usize];
                    (Reverse(instance.match_units(workload, request)), instance.load(), number)
                };
                self.doors.iter().min_by_key(rank).copied()
            }
        }
    }

    fn least_loaded(&self, among: &[u32]) -> Option<u32> {
        among.iter().copied().min_by_key(|&number| (self.instances[number as usize].load(), number))
    }

    /// Lets the instances that are between steps put the next ones together.
    fn start(&mut self, now: i64) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        for &number in &ready {
            let instance = &mut self.instances[number as usize];
            if instance.ends().is_none() {
                instance.start(&mut self.shared, now);
                let next = instance.ends().or_else(|| instance.wakes());
                self.clock.extend(next.map(|at| Reverse((at, number))));
            }
        }
        ready.clear();
        self.ready = ready;
    }
}
