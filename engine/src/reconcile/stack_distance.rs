//! Reuse distance, exactly: how many distinct other items were touched since this one was touched last.
//!
//! Mattson et al., "Evaluation techniques for storage hierarchies" (IBM Systems Journal 9(2), 1970), define it as the
//! depth in an LRU stack; an LRU cache of `n` items hits exactly the references with a distance below `n`. A Fenwick
//! tree over time holds a mark at the last touch of each item, so that a distance is a count of marks, in O(log n).

use std::collections::{BTreeMap, HashMap};

/// The distances of a sequence of references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distances {
    /// References.
    pub references: u64,
    /// First touches: their distance is infinite. As many as there are distinct items.
    pub cold: u64,
    /// How often each distance occurs.
    pub counts: BTreeMap<u64, u64>,
}

impl Distances {
    /// References that are no first touch.
    pub fn reuses(&self) -> u64 {
        self.references - self.cold
    }

    /// The smallest distance that a share of `percent` of the reuses does not exceed; `None` without reuse.
    pub fn percentile(&self, percent: u64) -> Option<u64> {
        let rank = (u128::from(self.reuses()) * u128::from(percent.min(100))).div_ceil(100).max(1);
        let mut seen = 0_u128;
        self.counts.iter().find_map(|(distance, count)| {
            seen += u128::from(*count);
            (seen >= rank).then_some(*distance)
        })
    }

    /// Hits of an LRU cache of so many items.
    pub fn hits(&self, capacity: u64) -> u64 {
        self.counts.range(..capacity).map(|(_, count)| count).sum()
    }
}

/// Marks at instants, and how many lie in a span; the tree of P. Fenwick (Software: Practice and Experience 24(3),
/// 1994).
#[derive(Debug, Clone, Default)]
struct Marks {
    tree: Vec<u32>,
}

impl Marks {
    /// Room for so many instants, the first ones of which are marked.
    fn new(instants: usize, marked: usize) -> Self {
        let mut tree = vec![0; instants + 1];
        tree.iter_mut().skip(1).take(marked).for_each(|mark| *mark = 1);
        for node in 1..=instants {
            let above = node + (node & node.wrapping_neg());
            let count = tree[node];
            if let Some(sum) = tree.get_mut(above) {
                *sum += count;
            }
        }
        Self { tree }
    }

    fn instants(&self) -> usize {
        self.tree.len().saturating_sub(1)
    }

    /// Moves the count at `at` up or down by one.
    fn change(&mut self, at: usize, up: bool) {
        let mut node = at + 1;
        while let Some(count) = self.tree.get_mut(node) {
            *count = if up { *count + 1 } else { *count - 1 };
            node += node & node.wrapping_neg();
        }
    }

    /// Marks at instants before `at`.
    fn before(&self, at: usize) -> u64 {
        let (mut node, mut sum) = (at, 0);
        while node > 0 {
            sum += u64::from(self.tree.get(node).copied().unwrap_or(0));
            node &= node - 1;
        }
        sum
    }
}

/// The least instants between two renumberings.
const LEAST: usize = 1 << 10;

/// Follows references one by one. Memory grows with the distinct items, not with the references: once all instants of
/// the tree are used, the last touches are numbered anew, in their order.
#[derive(Debug, Clone, Default)]
pub struct Tracker {
    found: Distances,
    /// The last touch of each item.
    last: HashMap<u64, u32>,
    marks: Marks,
    now: usize,
}

impl Tracker {
    /// Takes the next reference; whether its item is new.
    pub fn touch(&mut self, item: u64) -> bool {
        if self.now == self.marks.instants() {
            self.renumber();
        }
        self.found.references += 1;
        let before = self.last.insert(item, self.now as u32);
        match before.map(|before| before as usize) {
            None => self.found.cold += 1,
            Some(before) => {
                // Every distinct item has one mark; those after the item's own are the others touched since.
                let distance = self.marks.before(self.now) - self.marks.before(before + 1);
                *self.found.counts.entry(distance).or_default() += 1;
                self.marks.change(before, false);
            }
        }
        self.marks.change(self.now, true);
        self.now += 1;
        before.is_none()
    }

    fn renumber(&mut self) {
        let mut items: Vec<(u32, u64)> = self.last.iter().map(|(item, touch)| (*touch, *item)).collect();
        items.sort_unstable();
        for (at, (_, item)) in items.iter().enumerate() {
            self.last.insert(*item, at as u32);
        }
        self.now = items.len();
        self.marks = Marks::new((2 * items.len()).max(LEAST), items.len());
    }

    /// What was found.
    pub fn finish(self) -> Distances {
        self.found
    }
}

/// The distances of `references`.
pub fn distances(references: &[u64]) -> Distances {
    let mut tracker = Tracker::default();
    for item in references {
        tracker.touch(*item);
    }
    tracker.finish()
}
