//! Reuse distance, exactly: how many distinct other blocks were used since this one was used last.
//!
//! Mattson et al., "Evaluation techniques for storage hierarchies" (IBM Systems Journal 9(2), 1970), define it as the
//! depth in an LRU stack; an LRU cache of `n` blocks hits exactly the uses with a distance below `n`.
//!
//! A bit per instant marks the last use of each block, so that a distance is a count of bits. Bits are counted by machine
//! instruction within groups of 512; over the groups stands the tree of P. Fenwick (Software: Practice and Experience
//! 24(3), 1994). The group of the present is in no tree yet, and joins it when it is full. When instants run out, those
//! without a mark are squeezed out, so that memory follows the distinct blocks and not the uses.

/// Bits of one word.
const WORD: usize = 64;

/// Words of one group.
const WORDS: usize = 8;

/// Instants of one group.
const GROUP: usize = WORD * WORDS;

/// Fewest instants before they are squeezed.
const LEAST: usize = 1 << 14;

/// The LRU stack of a sequence of uses. Takes four bytes per distinct block and a bit for each of up to four instants.
#[derive(Debug, Clone)]
pub struct Stack {
    /// One more than the instant of each block's last use; 0 if there was none.
    last: Vec<u32>,
    marks: Vec<u64>,
    /// Sums of marks over full groups.
    tree: Vec<u32>,
    now: usize,
    /// Instants after which it is time to squeeze.
    limit: usize,
    /// Blocks in the stack.
    depth: u32,
}

impl Default for Stack {
    fn default() -> Self {
        Self { last: Vec::new(), marks: vec![0; LEAST / WORD], tree: vec![0], now: 0, limit: LEAST, depth: 0 }
    }
}

impl Stack {
    /// Distinct blocks so far.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Makes room for block numbers below `blocks`.
    pub fn grow(&mut self, blocks: usize) {
        if self.last.len() < blocks {
            self.last.resize(blocks, 0);
        }
    }

    /// Uses a block; how many others were used since its last use, `None` for the first.
    #[inline]
    pub fn touch(&mut self, block: u32) -> Option<u32> {
        if self.now == self.limit {
            self.squeeze();
        }
        let now = self.now;
        let before = std::mem::replace(&mut self.last[block as usize], now as u32 + 1);
        let distance = if before == 0 {
            self.depth += 1;
            None
        } else {
            let at = before as usize - 1;
            let distance = self.depth - self.up_to(at);
            self.marks[at / WORD] &= !(1 << (at % WORD));
            let mut node = at / GROUP + 1;
            while let Some(sum) = self.tree.get_mut(node) {
                *sum -= 1;
                node += node & node.wrapping_neg();
            }
            Some(distance)
        };
        self.marks[now / WORD] |= 1 << (now % WORD);
        self.now += 1;
        if self.now.is_multiple_of(GROUP) {
            self.close();
        }
        distance
    }

    /// Marks at instants up to this one.
    fn up_to(&self, at: usize) -> u32 {
        let (group, word) = (at / GROUP, at / WORD);
        let mut sum = (self.marks[word] << (WORD - 1 - at % WORD)).count_ones();
        for word in &self.marks[group * WORDS..word] {
            sum += word.count_ones();
        }
        let mut node = group;
        while node > 0 {
            sum += self.tree[node];
            node &= node - 1;
        }
        sum
    }

    /// Puts the group that has just become full into the tree.
    fn close(&mut self) {
        let node = self.now / GROUP;
        let words = &self.marks[(node - 1) * WORDS..node * WORDS];
        let mut sum: u32 = words.iter().map(|word| word.count_ones()).sum();
        let mut step = 1;
        while node & step == 0 {
            sum += self.tree[node - step];
            step <<= 1;
        }
        self.tree.push(sum);
    }

    /// Squeezes out instants without a mark.
    fn squeeze(&mut self) {
        let mut sum = 0;
        let before: Vec<u32> = self
            .marks
            .iter()
            .map(|word| {
                let before = sum;
                sum += word.count_ones();
                before
            })
            .collect();
        for last in self.last.iter_mut().filter(|last| **last > 0) {
            let at = *last as usize - 1;
            *last = before[at / WORD] + (self.marks[at / WORD] << (WORD - 1 - at % WORD)).count_ones();
        }
        self.now = self.depth as usize;
        self.limit = (4 * self.now).next_multiple_of(GROUP).clamp(LEAST, u32::MAX as usize - GROUP);
        self.marks.clear();
        self.marks.resize(self.limit.div_ceil(WORD), 0);
        self.marks[..self.now / WORD].fill(u64::MAX);
        if !self.now.is_multiple_of(WORD) {
            self.marks[self.now / WORD] = (1 << (self.now % WORD)) - 1;
        }
        self.tree.truncate(1);
        let all = self.now;
        for group in 1..=all / GROUP {
            self.now = group * GROUP;
            self.close();
        }
        self.now = all;
    }
}

/// The distances of a sequence of uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distances {
    /// Uses.
    pub references: u64,
    /// First uses: their distance is infinite. As many as there are distinct blocks.
    pub cold: u64,
    /// How often each distance occurs, from 0.
    pub counts: Vec<u64>,
}

impl Distances {
    /// Adds the distance of one use.
    #[inline]
    pub fn add(&mut self, distance: Option<u32>) {
        self.references += 1;
        match distance.map(|distance| distance as usize) {
            None => self.cold += 1,
            Some(distance) => {
                if self.counts.len() <= distance {
                    self.counts.resize(distance + 1, 0);
                }
                self.counts[distance] += 1;
            }
        }
    }

    /// Uses that are no first ones: the hits of a cache that loses nothing.
    pub fn reuses(&self) -> u64 {
        self.references - self.cold
    }

    /// The smallest distance that a share of `percent` of the reuses does not exceed; `None` without reuse.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (u128::from(self.reuses()) * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0_u128;
        let place = self.counts.iter().position(|count| {
            seen += u128::from(*count);
            seen >= rank
        });
        place.map(|distance| distance as u64)
    }

    /// Hits of an LRU cache of so many blocks.
    pub fn hits(&self, capacity: u64) -> u64 {
        let most = usize::try_from(capacity).unwrap_or(usize::MAX).min(self.counts.len());
        self.counts[..most].iter().sum()
    }

    /// The smallest LRU cache that makes `percent` of the hits that are possible at all; `None` without reuse.
    pub fn knee(&self, percent: u64) -> Option<u64> {
        self.percentile(percent).map(|distance| distance + 1)
    }
}

/// The distances of uses of blocks, by number.
pub fn distances(uses: &[u32]) -> Distances {
    let (mut stack, mut found) = (Stack::default(), Distances::default());
    stack.grow(uses.iter().max().map_or(0, |most| *most as usize + 1));
    for &block in uses {
        found.add(stack.touch(block));
    }
    found
}
