//! 2Q, the full version: new blocks pass through a FIFO; those used again after they left it enter an LRU.
//!
//! T. Johnson and D. Shasha, "2Q: a low overhead high performance buffer management replacement algorithm" (VLDB 1994),
//! section 3: `A1in` holds a quarter of the blocks, the ghost list `A1out` names as many as half of them. A block is taken
//! from `A1in` while that holds more than its share, else from `Am`; only the former leave a ghost.

use super::list::Lists;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "2q",
    doc: "new blocks pass through a FIFO; those used again after they left it enter an LRU",
    params: &[
        Param {
            name: "in",
            form: Form::Percent,
            default: 25,
            range: (0, 99),
            doc: "share of the blocks that the FIFO may keep",
        },
        Param {
            name: "out",
            form: Form::Percent,
            default: 50,
            range: (0, 1000),
            doc: "ghosts that are remembered, as a share of the blocks",
        },
    ],
    source: "Johnson and Shasha, VLDB 1994, section 3 (Kin 25%, Kout 50%)",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

const IN: usize = 0;
const OUT: usize = 1;
const MAIN: usize = 2;

fn make(params: &[u64], setting: Setting) -> TwoQ {
    let percent = |at: usize| {
        let share = u128::from(params.get(at).copied().unwrap_or(0));
        usize::try_from(setting.capacity as u128 * share / 100).unwrap_or(usize::MAX)
    };
    TwoQ {
        capacity: setting.capacity,
        most_in: percent(0),
        most_out: percent(1),
        lists: Lists::new(),
        place: Vec::new(),
    }
}

/// The cache.
struct TwoQ {
    capacity: usize,
    most_in: usize,
    most_out: usize,
    lists: Lists<3>,
    /// The queue of each block that is in one.
    place: Vec<u8>,
}

impl TwoQ {
    fn queue(&self, block: u32) -> Option<usize> {
        self.lists.holds(block).then(|| usize::from(self.place[block as usize]))
    }

    fn push(&mut self, queue: usize, block: u32) {
        self.lists.push_newest(queue, block);
        self.place[block as usize] = queue as u8;
    }

    fn reclaim(&mut self) -> Option<u32> {
        if self.len() < self.capacity {
            return None;
        }
        if self.lists.len(IN) > self.most_in || self.lists.len(MAIN) == 0 {
            let victim = self.lists.pop_oldest(IN)?;
            self.push(OUT, victim);
            if self.lists.len(OUT) > self.most_out {
                self.lists.pop_oldest(OUT);
            }
            return Some(victim);
        }
        self.lists.pop_oldest(MAIN)
    }
}

impl Policy for TwoQ {
    fn grow(&mut self, blocks: usize) {
        self.lists.grow(blocks);
        self.place.resize(self.place.len().max(blocks), 0);
    }

    fn touch(&mut self, block: u32) -> Met {
        let queue = self.queue(block);
        match queue {
            Some(MAIN) => self.lists.renew(MAIN, block),
            Some(IN) => {}
            _ if self.capacity == 0 => return Met::Bypass,
            ghost => {
                if ghost.is_some() {
                    self.lists.unlink(OUT, block);
                }
                let victim = self.reclaim();
                self.push(if ghost.is_some() { MAIN } else { IN }, block);
                return victim.map_or(Met::Miss, Met::Eviction);
            }
        }
        Met::Hit
    }

    fn holds(&self, block: u32) -> bool {
        self.queue(block).is_some_and(|queue| queue != OUT)
    }

    fn remove(&mut self, block: u32) -> bool {
        let queue = self.queue(block).filter(|queue| *queue != OUT);
        if let Some(queue) = queue {
            self.lists.unlink(queue, block);
        }
        queue.is_some()
    }

    fn len(&self) -> usize {
        self.lists.len(IN) + self.lists.len(MAIN)
    }
}
