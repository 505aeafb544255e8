//! Queues of blocks, linked by index in one array.
//!
//! A block is in one queue at most. Each queue is a ring through a node of its own, so that linking and unlinking have no
//! special cases; the nodes of the queues stand before those of the blocks. Eight bytes per block, no allocation per use.

/// No node.
const NONE: u32 = u32::MAX;

/// Neighbours of a node.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Towards the newest; of a queue's own node, the oldest.
    newer: u32,
    /// Towards the oldest; of a queue's own node, the newest.
    older: u32,
}

/// `Q` queues of blocks.
#[derive(Debug, Clone)]
pub(crate) struct Lists<const Q: usize> {
    links: Vec<Link>,
    len: [usize; Q],
}

impl<const Q: usize> Lists<Q> {
    /// Empty queues.
    pub(crate) fn new() -> Self {
        Self { links: (0..Q as u32).map(|own| Link { newer: own, older: own }).collect(), len: [0; Q] }
    }

    /// Makes room for block numbers below `blocks`.
    pub(crate) fn grow(&mut self, blocks: usize) {
        if self.links.len() < blocks + Q {
            self.links.resize(blocks + Q, Link { newer: NONE, older: NONE });
        }
    }

    /// Blocks in a queue.
    pub(crate) fn len(&self, queue: usize) -> usize {
        self.len[queue]
    }

    /// Whether the block is in any queue.
    pub(crate) fn holds(&self, block: u32) -> bool {
        self.links.get(block as usize + Q).is_some_and(|link| link.newer != NONE)
    }

    fn block(node: u32) -> Option<u32> {
        node.checked_sub(Q as u32)
    }

    /// The block at the old end.
    pub(crate) fn oldest(&self, queue: usize) -> Option<u32> {
        Self::block(self.links[queue].newer)
    }

    /// The next block towards the new end.
    pub(crate) fn newer(&self, block: u32) -> Option<u32> {
        Self::block(self.links[block as usize + Q].newer)
    }

    /// Puts a node that is in no queue between two neighbours.
    fn between(&mut self, older: u32, node: u32, newer: u32) {
        self.links[node as usize] = Link { newer, older };
        self.links[older as usize].newer = node;
        self.links[newer as usize].older = node;
    }

    /// Puts a block that is in no queue at the new end.
    pub(crate) fn push_newest(&mut self, queue: usize, block: u32) {
        let newest = self.links[queue].older;
        self.between(newest, block + Q as u32, queue as u32);
        self.len[queue] += 1;
    }

    /// Puts a block that is in no queue on the old side of one that is in this queue.
    pub(crate) fn push_before(&mut self, queue: usize, block: u32, next: u32) {
        let next = next + Q as u32;
        self.between(self.links[next as usize].older, block + Q as u32, next);
        self.len[queue] += 1;
    }

    /// Takes a block out of its queue, which must be this one.
    pub(crate) fn unlink(&mut self, queue: usize, block: u32) {
        let node = block as usize + Q;
        let Link { newer, older } = self.links[node];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[node] = Link { newer: NONE, older: NONE };
        self.len[queue] -= 1;
    }

    /// Moves a block of this queue to its new end.
    pub(crate) fn renew(&mut self, queue: usize, block: u32) {
        let node = block + Q as u32;
        let Link { newer, older } = self.links[node as usize];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        let newest = self.links[queue].older;
        self.between(newest, node, queue as u32);
    }

    /// Takes the block at the old end.
    pub(crate) fn pop_oldest(&mut self, queue: usize) -> Option<u32> {
        let block = self.oldest(queue)?;
        self.unlink(queue, block);
        Some(block)
    }
}
