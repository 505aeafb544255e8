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
struct Marks {
    tree: Vec<u32>,
}

impl Marks {
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

/// The distances of `references`. Takes four bytes per reference, and more per distinct item.
pub fn distances(references: &[u64]) -> Distances {
    let mut found = Distances { references: references.len() as u64, ..Distances::default() };
    let mut marks = Marks { tree: vec![0; references.len() + 1] };
    let mut last: HashMap<u64, usize> = HashMap::new();
    for (now, &item) in references.iter().enumerate() {
        match last.insert(item, now) {
            None => found.cold += 1,
            Some(before) => {
                // Every distinct item has one mark; those after the item's own are the others touched since.
                let distance = marks.before(now) - marks.before(before + 1);
                *found.counts.entry(distance).or_default() += 1;
                marks.change(before, false);
            }
        }
        marks.change(now, true);
    }
    found
}
