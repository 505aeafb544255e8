//! Every policy a second time, as plainly as its rule reads: lists that are searched from end to end, no shared code.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::super::Request;

/// What a use met: whether it hit, and which block went for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) is_hit: bool,
    pub(crate) victim: Option<u32>,
    pub(crate) is_in: bool,
}

const HIT: Used = Used { is_hit: true, victim: None, is_in: true };

fn missed(victim: Option<u32>) -> Used {
    Used { is_hit: false, victim, is_in: true }
}

const REFUSED: Used = Used { is_hit: false, victim: None, is_in: false };

pub(crate) trait Slow {
    /// Blocks that leave when a request begins.
    fn begin(&mut self, request: &Request<'_>) -> Vec<u32> {
        let _ = request;
        Vec::new()
    }
    fn touch(&mut self, block: u32) -> Used;
    fn held(&self) -> Vec<u32>;
    fn remove(&mut self, block: u32);
}

/// The reference of a policy as it is typed. `future`: all accesses, for MIN.
pub(crate) fn slow(text: &str, capacity: usize, unit: u32, future: &[u32]) -> Box<dyn Slow> {
    match text {
        "lru" => Box::new(Lru { capacity, blocks: vec![], leaf_first: false, request: 0, depth: 0 }),
        "lru(leaf_first=yes)" => Box::new(Lru { capacity, blocks: vec![], leaf_first: true, request: 0, depth: 0 }),
        "fifo" => Box::new(Fifo { capacity, blocks: vec![] }),
        "lfu" => Box::new(Lfu { capacity, halve: 0, now: 0, blocks: vec![] }),
        "lfu(halve=50)" => Box::new(Lfu { capacity, halve: 50, now: 0, blocks: vec![] }),
        "2q" => Box::new(TwoQ { capacity, a1in: vec![], a1out: vec![], am: vec![] }),
        "arc" => Box::new(Arc { c: capacity, p: 0.0, t1: vec![], t2: vec![], b1: vec![], b2: vec![] }),
        "arc-reenter" => Box::new(Vllm { capacity, target: 0.0, t1: vec![], t2: vec![], b1: vec![], b2: vec![] }),
        "sieve" => Box::new(Sieve { capacity, queue: vec![], hand: 0 }),
        "s3-fifo" => Box::new(S3 { capacity, s: vec![], m: vec![], g: vec![] }),
        "gdsf(attention=640)" => Box::new(Gdsf {
            capacity,
            even: (640 / u64::from(unit.max(1))).max(1),
            age: 0,
            now: 0,
            depth: 0,
            blocks: vec![],
        }),
        "ttl(idle=100s)" => Box::new(Ttl { capacity, idle: 100_000_000_000, now: 0, blocks: vec![] }),
        "session" => Box::new(Session::new(capacity, false)),
        "session(ended=yes)" => Box::new(Session::new(capacity, true)),
        "watermark" => Box::new(Watermark { capacity, now: 0, blocks: vec![] }),
        "min" => Box::new(Min::new(capacity, future, false)),
        "min(always_insert=yes)" => Box::new(Min::new(capacity, future, true)),
        other => panic!("no reference for {other}"),
    }
}

/// Every policy that has a reference.
pub(crate) const TEXTS: &[&str] = &[
    "lru",
    "lru(leaf_first=yes)",
    "fifo",
    "lfu",
    "lfu(halve=50)",
    "2q",
    "arc",
    "arc-reenter",
    "sieve",
    "s3-fifo",
    "gdsf(attention=640)",
    "ttl(idle=100s)",
    "session",
    "session(ended=yes)",
    "watermark",
    "min",
    "min(always_insert=yes)",
];

/// Removes a value from a list; whether it was there.
fn take(list: &mut Vec<u32>, block: u32) -> bool {
    let at = list.iter().position(|known| *known == block);
    at.map(|at| list.remove(at)).is_some()
}

struct Lru {
    capacity: usize,
    /// Block, request and depth of its last use; in order of use.
    blocks: Vec<(u32, u32, u32)>,
    leaf_first: bool,
    request: u32,
    depth: u32,
}

impl Slow for Lru {
    fn begin(&mut self, _: &Request<'_>) -> Vec<u32> {
        self.request += 1;
        self.depth = 0;
        vec![]
    }
    fn touch(&mut self, block: u32) -> Used {
        self.depth += 1;
        let entry = (block, self.request, self.depth);
        if let Some(at) = self.blocks.iter().position(|known| known.0 == block) {
            self.blocks.remove(at);
            self.blocks.push(entry);
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let mut victim = None;
        if self.blocks.len() == self.capacity {
            let at = if self.leaf_first {
                (0..self.blocks.len()).min_by_key(|&at| (self.blocks[at].1, Reverse(self.blocks[at].2))).unwrap()
            } else {
                0
            };
            victim = Some(self.blocks.remove(at).0);
        }
        self.blocks.push(entry);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

struct Fifo {
    capacity: usize,
    blocks: Vec<u32>,
}

impl Slow for Fifo {
    fn touch(&mut self, block: u32) -> Used {
        if self.blocks.contains(&block) {
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let victim = (self.blocks.len() == self.capacity).then(|| self.blocks.remove(0));
        self.blocks.push(block);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.clone()
    }
    fn remove(&mut self, block: u32) {
        take(&mut self.blocks, block);
    }
}

struct Lfu {
    capacity: usize,
    halve: u64,
    now: u64,
    /// Block, count, last use.
    blocks: Vec<(u32, u64, u64)>,
}

impl Lfu {
    fn used(&mut self, block: u32) -> Used {
        if let Some(entry) = self.blocks.iter_mut().find(|entry| entry.0 == block) {
            entry.1 += 1;
            entry.2 = self.now;
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let mut victim = None;
        if self.blocks.len() == self.capacity {
            let at = (0..self.blocks.len()).min_by_key(|&at| (self.blocks[at].1, self.blocks[at].2)).unwrap();
            victim = Some(self.blocks.remove(at).0);
        }
        self.blocks.push((block, 1, self.now));
        missed(victim)
    }
}

impl Slow for Lfu {
    fn touch(&mut self, block: u32) -> Used {
        self.now += 1;
        let used = self.used(block);
        if self.halve > 0 && self.now.is_multiple_of(self.halve) {
            self.blocks.iter_mut().for_each(|entry| entry.1 /= 2);
        }
        used
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

/// Lists from the oldest.
struct TwoQ {
    capacity: usize,
    a1in: Vec<u32>,
    a1out: Vec<u32>,
    am: Vec<u32>,
}

impl TwoQ {
    fn reclaim(&mut self) -> Option<u32> {
        if self.a1in.len() + self.am.len() < self.capacity {
            return None;
        }
        if self.a1in.len() > self.capacity / 4 || self.am.is_empty() {
            let gone = self.a1in.remove(0);
            self.a1out.push(gone);
            if self.a1out.len() > self.capacity / 2 {
                self.a1out.remove(0);
            }
            return Some(gone);
        }
        Some(self.am.remove(0))
    }
}

impl Slow for TwoQ {
    fn touch(&mut self, block: u32) -> Used {
        if take(&mut self.am, block) {
            self.am.push(block);
            return HIT;
        }
        if self.a1in.contains(&block) {
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        if take(&mut self.a1out, block) {
            let victim = self.reclaim();
            self.am.push(block);
            return missed(victim);
        }
        let victim = self.reclaim();
        self.a1in.push(block);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        [self.a1in.clone(), self.am.clone()].concat()
    }
    fn remove(&mut self, block: u32) {
        take(&mut self.a1in, block);
        take(&mut self.am, block);
    }
}

/// Figure 4 of the paper; lists from the least recent.
struct Arc {
    c: usize,
    p: f64,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl Arc {
    fn replace(&mut self, in_b2: bool) -> Option<u32> {
        if self.t1.len() + self.t2.len() < self.c {
            return None;
        }
        let ones = self.t1.len() as f64;
        if !self.t1.is_empty() && ((in_b2 && ones >= self.p) || ones > self.p || self.t2.is_empty()) {
            let gone = self.t1.remove(0);
            self.b1.push(gone);
            Some(gone)
        } else {
            let gone = self.t2.remove(0);
            self.b2.push(gone);
            Some(gone)
        }
    }
}

impl Slow for Arc {
    fn touch(&mut self, x: u32) -> Used {
        if take(&mut self.t1, x) || take(&mut self.t2, x) {
            self.t2.push(x);
            return HIT;
        }
        if self.c == 0 {
            return REFUSED;
        }
        if self.b1.contains(&x) {
            let step = if self.b1.len() >= self.b2.len() { 1.0 } else { self.b2.len() as f64 / self.b1.len() as f64 };
            self.p = (self.p + step).min(self.c as f64);
            let victim = self.replace(false);
            take(&mut self.b1, x);
            self.t2.push(x);
            return missed(victim);
        }
        if self.b2.contains(&x) {
            let step = if self.b2.len() >= self.b1.len() { 1.0 } else { self.b1.len() as f64 / self.b2.len() as f64 };
            self.p = (self.p - step).max(0.0);
            let victim = self.replace(true);
            take(&mut self.b2, x);
            self.t2.push(x);
            return missed(victim);
        }
        let victim;
        if self.t1.len() + self.b1.len() == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                victim = self.replace(false);
            } else {
                victim = Some(self.t1.remove(0));
            }
        } else {
            let total = self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len();
            if total >= self.c {
                if total == 2 * self.c {
                    self.b2.remove(0);
                }
                victim = self.replace(false);
            } else {
                victim = None;
            }
        }
        self.t1.push(x);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        [self.t1.clone(), self.t2.clone()].concat()
    }
    fn remove(&mut self, block: u32) {
        take(&mut self.t1, block);
        take(&mut self.t2, block);
    }
}

/// vLLM's: touch, then evict one if there is no room, then insert.
struct Vllm {
    capacity: usize,
    target: f64,
    t1: Vec<u32>,
    t2: Vec<u32>,
    b1: Vec<u32>,
    b2: Vec<u32>,
}

impl Slow for Vllm {
    fn touch(&mut self, block: u32) -> Used {
        if take(&mut self.t1, block) || take(&mut self.t2, block) {
            self.t2.push(block);
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let (ones, twos) = (self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.b1, block) {
            self.target = (self.target + f64::max(1.0, twos / ones)).min(self.capacity as f64);
            self.b1.push(block);
        } else if take(&mut self.b2, block) {
            self.target = (self.target - f64::max(1.0, ones / twos)).max(0.0);
            self.b2.push(block);
        }
        let mut victim = None;
        if self.t1.len() + self.t2.len() == self.capacity {
            if !self.t1.is_empty() && (self.t1.len() >= self.target.floor() as usize || self.t2.is_empty()) {
                victim = Some(self.t1.remove(0));
                self.b1.extend(victim);
            } else {
                victim = Some(self.t2.remove(0));
                self.b2.extend(victim);
            }
            for ghosts in [&mut self.b1, &mut self.b2] {
                while ghosts.len() > self.capacity {
                    ghosts.remove(0);
                }
            }
        }
        take(&mut self.b1, block);
        take(&mut self.b2, block);
        self.t1.push(block);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        [self.t1.clone(), self.t2.clone()].concat()
    }
    fn remove(&mut self, block: u32) {
        take(&mut self.t1, block);
        take(&mut self.t2, block);
    }
}

struct Sieve {
    capacity: usize,
    /// Block and mark, from the old end.
    queue: Vec<(u32, bool)>,
    /// Place from which the hand goes on; one past the end starts again.
    hand: usize,
}

impl Slow for Sieve {
    fn touch(&mut self, block: u32) -> Used {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.0 == block) {
            entry.1 = true;
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let mut victim = None;
        if self.queue.len() == self.capacity {
            // A hand that stood at the new end went back to the old one before anything was put in.
            let mut at = self.hand;
            while self.queue[at].1 {
                self.queue[at].1 = false;
                at = (at + 1) % self.queue.len();
            }
            victim = Some(self.queue.remove(at).0);
            self.hand = if at == self.queue.len() { 0 } else { at };
        }
        self.queue.push((block, false));
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.queue.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        if let Some(at) = self.queue.iter().position(|entry| entry.0 == block) {
            self.queue.remove(at);
            if at < self.hand {
                self.hand -= 1;
            } else if self.hand == self.queue.len() {
                self.hand = 0;
            }
        }
    }
}

/// Queues from the old end, with counts.
struct S3 {
    capacity: usize,
    s: Vec<(u32, u8)>,
    m: Vec<(u32, u8)>,
    g: Vec<u32>,
}

impl S3 {
    fn small(&self) -> usize {
        (self.capacity / 10).max(1)
    }
    fn evict_main(&mut self) -> u32 {
        loop {
            let (block, uses) = self.m.remove(0);
            if uses == 0 {
                return block;
            }
            self.m.push((block, uses - 1));
        }
    }
    fn evict(&mut self) -> u32 {
        while self.s.len() >= self.small() {
            let (block, uses) = self.s.remove(0);
            if uses <= 1 {
                self.g.push(block);
                if self.g.len() > self.capacity - self.small() {
                    self.g.remove(0);
                }
                return block;
            }
            self.m.push((block, 0));
            if self.m.len() > self.capacity - self.small() {
                return self.evict_main();
            }
        }
        self.evict_main()
    }
}

impl Slow for S3 {
    fn touch(&mut self, block: u32) -> Used {
        if let Some(entry) = self.s.iter_mut().chain(&mut self.m).find(|entry| entry.0 == block) {
            entry.1 = (entry.1 + 1).min(3);
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let is_ghost = take(&mut self.g, block);
        let victim = (self.s.len() + self.m.len() == self.capacity).then(|| self.evict());
        if is_ghost { &mut self.m } else { &mut self.s }.push((block, 0));
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.s.iter().chain(&self.m).map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.s.retain(|entry| entry.0 != block);
        self.m.retain(|entry| entry.0 != block);
    }
}

struct Gdsf {
    capacity: usize,
    even: u64,
    age: u64,
    now: u64,
    depth: u64,
    /// Block, uses, priority, last use.
    blocks: Vec<(u32, u64, u64, u64)>,
}

impl Slow for Gdsf {
    fn begin(&mut self, _: &Request<'_>) -> Vec<u32> {
        self.depth = 0;
        vec![]
    }
    fn touch(&mut self, block: u32) -> Used {
        let cost = self.even + self.depth;
        self.depth += 1;
        self.now += 1;
        if let Some(entry) = self.blocks.iter_mut().find(|entry| entry.0 == block) {
            entry.1 += 1;
            entry.2 = self.age + entry.1 * cost;
            entry.3 = self.now;
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let mut victim = None;
        if self.blocks.len() == self.capacity {
            let at = (0..self.blocks.len()).min_by_key(|&at| (self.blocks[at].2, self.blocks[at].3)).unwrap();
            let gone = self.blocks.remove(at);
            self.age = gone.2;
            victim = Some(gone.0);
        }
        self.blocks.push((block, 1, self.age + cost, self.now));
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

struct Ttl {
    capacity: usize,
    idle: i64,
    now: i64,
    /// Block and time of its last use, in order of use.
    blocks: Vec<(u32, i64)>,
}

impl Slow for Ttl {
    fn begin(&mut self, request: &Request<'_>) -> Vec<u32> {
        self.now = request.time_ns;
        let (gone, kept) = self.blocks.iter().partition(|entry| self.now - entry.1 > self.idle);
        self.blocks = kept;
        let gone: Vec<(u32, i64)> = gone;
        gone.into_iter().map(|entry| entry.0).collect()
    }
    fn touch(&mut self, block: u32) -> Used {
        if let Some(at) = self.blocks.iter().position(|entry| entry.0 == block) {
            self.blocks.remove(at);
            self.blocks.push((block, self.now));
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let victim = (self.blocks.len() == self.capacity).then(|| self.blocks.remove(0).0);
        self.blocks.push((block, self.now));
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

struct Watermark {
    capacity: usize,
    now: i64,
    blocks: Vec<(u32, i64)>,
}

const LEASE: i64 = 5_000_000_000;

impl Slow for Watermark {
    fn begin(&mut self, request: &Request<'_>) -> Vec<u32> {
        self.now = request.time_ns;
        let used = self.blocks.len() as f64 / self.capacity.max(1) as f64;
        let mut gone = vec![];
        if self.blocks.len() * 100 > self.capacity * 95 {
            let wanted = (self.blocks.len() as f64 * (used - 0.95 + 0.05) - 1e-6).ceil() as usize;
            while gone.len() < wanted && self.blocks.first().is_some_and(|first| self.now - first.1 >= LEASE) {
                gone.push(self.blocks.remove(0).0);
            }
        }
        gone
    }
    fn touch(&mut self, block: u32) -> Used {
        if let Some(at) = self.blocks.iter().position(|entry| entry.0 == block) {
            self.blocks.remove(at);
            self.blocks.push((block, self.now));
            return HIT;
        }
        let mut victim = None;
        if self.blocks.len() == self.capacity {
            if self.blocks.first().is_none_or(|first| self.now - first.1 < LEASE) {
                return REFUSED;
            }
            victim = Some(self.blocks.remove(0).0);
        }
        self.blocks.push((block, self.now));
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

struct Session {
    capacity: usize,
    knows_ends: bool,
    request: u32,
    depth: u32,
    current: u32,
    /// Number of each session's last request, and whether it is the session's end.
    last: HashMap<u32, (u32, bool)>,
    /// Block, session, request and depth of its last use.
    blocks: Vec<(u32, u32, u32, u32)>,
}

impl Session {
    fn new(capacity: usize, knows_ends: bool) -> Self {
        Self { capacity, knows_ends, request: 0, depth: 0, current: 0, last: HashMap::new(), blocks: vec![] }
    }
}

impl Slow for Session {
    fn begin(&mut self, request: &Request<'_>) -> Vec<u32> {
        self.request += 1;
        self.depth = 0;
        self.current = request.session;
        self.last.insert(request.session, (self.request, request.ends_session));
        vec![]
    }
    fn touch(&mut self, block: u32) -> Used {
        self.depth += 1;
        let entry = (block, self.current, self.request, self.depth);
        if let Some(known) = self.blocks.iter_mut().find(|known| known.0 == block) {
            *known = entry;
            return HIT;
        }
        if self.capacity == 0 {
            return REFUSED;
        }
        let mut victim = None;
        if self.blocks.len() == self.capacity {
            let key = |&at: &usize| {
                let (_, session, request, depth) = self.blocks[at];
                let (last, ends) = self.last[&session];
                let is_over = self.knows_ends && ends && last < self.request;
                (!is_over, last, request, Reverse(depth))
            };
            let at = (0..self.blocks.len()).min_by_key(key).unwrap();
            victim = Some(self.blocks.remove(at).0);
        }
        self.blocks.push(entry);
        missed(victim)
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}

struct Min {
    capacity: usize,
    always_inserts: bool,
    /// Where each block is used.
    places: HashMap<u32, Vec<usize>>,
    at: usize,
    depth: u32,
    /// Block and depth.
    blocks: Vec<(u32, u32)>,
}

impl Min {
    fn new(capacity: usize, future: &[u32], always_inserts: bool) -> Self {
        let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
        for (at, block) in future.iter().enumerate() {
            places.entry(*block).or_default().push(at);
        }
        Self { capacity, always_inserts, places, at: 0, depth: 0, blocks: vec![] }
    }
    fn next(&self, block: u32) -> usize {
        let places = &self.places[&block];
        places.get(places.partition_point(|place| *place <= self.at)).copied().unwrap_or(usize::MAX)
    }
    /// Places in the cache in order of next use and depth.
    fn rank(&self, entry: (u32, u32)) -> (usize, u32, u32) {
        (self.next(entry.0), entry.1, entry.0)
    }
}

impl Slow for Min {
    fn begin(&mut self, _: &Request<'_>) -> Vec<u32> {
        self.depth = 0;
        vec![]
    }
    fn touch(&mut self, block: u32) -> Used {
        let entry = (block, self.depth);
        let mut found = missed(None);
        if let Some(known) = self.blocks.iter_mut().find(|known| known.0 == block) {
            *known = entry;
            found = HIT;
        } else if self.blocks.len() < self.capacity {
            self.blocks.push(entry);
        } else if let Some(at) = (0..self.blocks.len()).max_by_key(|&at| self.rank(self.blocks[at]))
            && (self.always_inserts || self.rank(self.blocks[at]) > self.rank(entry))
        {
            found.victim = Some(self.blocks.remove(at).0);
            self.blocks.push(entry);
        } else {
            found = REFUSED;
        }
        self.at += 1;
        self.depth += 1;
        found
    }
    fn held(&self) -> Vec<u32> {
        self.blocks.iter().map(|entry| entry.0).collect()
    }
    fn remove(&mut self, block: u32) {
        self.blocks.retain(|entry| entry.0 != block);
    }
}
