//! S3-FIFO: a small queue that lets through what is used again, a main queue, and the ghosts of the small one.
//!
//! J. Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), algorithm 1. The small queue holds a tenth of
//! the blocks, at least one; the ghosts are as many as the main queue may hold. Two bits count the uses of a block since it
//! entered its queue; the count starts again when it moves to the main queue (section 4.1). Blocks are taken from the small
//! queue while that is full, else from the main one: a block at the end of the small queue that was used more than once
//! moves to the main queue, any other goes and leaves a ghost; at the end of the main queue a block with uses goes round
//! again with one less. A block whose ghost is there enters the main queue at once.

use super::list::Lists;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, play};

/// The policy.
pub static KIND: Kind = Kind {
    name: "s3-fifo",
    doc: "a small queue that lets through what is used again, a main queue, and the ghosts of the small one",
    params: &[Param {
        name: "small",
        form: Form::Percent,
        default: 10,
        range: (1, 99),
        doc: "share of the blocks that the small queue may keep",
    }],
    source: "Yang et al., SOSP 2023, algorithm 1",
    needs_sessions: false,
    replay: |params, trace, setting, each| play(&mut S3Fifo::new(params, setting), trace, each),
    start: Some(|params, setting| Box::new(S3Fifo::new(params, setting))),
};

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// Most uses that are counted.
const MOST_USES: u8 = 3;

/// Nowhere; the queue in the upper bits, plus one, and the uses in the lower two.
const ABSENT: u8 = 0;

fn state(queue: usize) -> u8 {
    (queue as u8 + 1) << 2
}

/// The cache.
pub struct S3Fifo {
    capacity: usize,
    most_small: usize,
    most_main: usize,
    lists: Lists<3>,
    state: Vec<u8>,
    /// The ghost that the last eviction made room for.
    forgotten: Option<u32>,
}

impl S3Fifo {
    /// A cache of so many blocks.
    pub fn new(params: &[u64], setting: Setting) -> Self {
        let share = u128::from(params.first().copied().unwrap_or(10));
        let small = (setting.capacity as u128 * share / 100) as usize;
        let most_small = small.max(1).min(setting.capacity);
        Self {
            capacity: setting.capacity,
            most_small,
            most_main: setting.capacity - most_small,
            lists: Lists::new(),
            state: Vec::new(),
            forgotten: None,
        }
    }

    fn push(&mut self, queue: usize, block: u32) {
        self.lists.push_newest(queue, block);
        self.state[block as usize] = state(queue);
    }

    fn evict_main(&mut self) -> Option<u32> {
        loop {
            let block = self.lists.oldest(MAIN)?;
            let state = &mut self.state[block as usize];
            if *state & MOST_USES == 0 {
                *state = ABSENT;
                self.lists.unlink(MAIN, block);
                return Some(block);
            }
            *state -= 1;
            self.lists.renew(MAIN, block);
        }
    }

    fn evict(&mut self) -> Option<u32> {
        while self.lists.len(SMALL) >= self.most_small {
            let block = self.lists.pop_oldest(SMALL)?;
            if self.state[block as usize] & MOST_USES > 1 {
                self.push(MAIN, block);
                if self.lists.len(MAIN) > self.most_main {
                    return self.evict_main();
                }
                continue;
            }
            self.push(GHOST, block);
            if self.lists.len(GHOST) > self.most_main
                && let Some(forgotten) = self.lists.pop_oldest(GHOST)
            {
                self.state[forgotten as usize] = ABSENT;
                self.forgotten = Some(forgotten).filter(|forgotten| *forgotten != block);
            }
            return Some(block);
        }
        self.evict_main()
    }
}

impl Policy for S3Fifo {
    fn grow(&mut self, blocks: usize) {
        self.lists.grow(blocks);
        self.state.resize(self.state.len().max(blocks), ABSENT);
    }

    #[inline]
    fn touch(&mut self, block: u32) -> Met {
        let known = &mut self.state[block as usize];
        if *known != ABSENT && *known < state(GHOST) {
            *known += u8::from(*known & MOST_USES < MOST_USES);
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let is_ghost = *known != ABSENT;
        if is_ghost {
            self.lists.unlink(GHOST, block);
        }
        let victim = if self.len() >= self.capacity { self.evict() } else { None };
        self.push(if is_ghost { MAIN } else { SMALL }, block);
        victim.map_or(Met::Miss, Met::Eviction)
    }

    fn holds(&self, block: u32) -> bool {
        self.state.get(block as usize).is_some_and(|known| (state(SMALL)..state(GHOST)).contains(known))
    }

    fn remembers(&self, block: u32) -> bool {
        self.state.get(block as usize).is_some_and(|known| *known != ABSENT)
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.take()
    }

    fn remove(&mut self, block: u32) -> bool {
        let is_there = self.holds(block);
        if is_there {
            let queue = usize::from(self.state[block as usize] >= state(MAIN));
            self.lists.unlink(queue, block);
            self.state[block as usize] = ABSENT;
        }
        is_there
    }

    fn len(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
