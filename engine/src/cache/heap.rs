//! A binary heap of blocks that can change the key of any of them.

/// No place in the heap.
const NONE: u32 = u32::MAX;

/// Blocks with keys; the smallest key is on top. Keys are distinct, which the callers' last component sees to.
#[derive(Debug, Clone)]
pub(crate) struct Heap<K> {
    entries: Vec<(K, u32)>,
    places: Vec<u32>,
}

impl<K: Copy + Ord> Heap<K> {
    /// An empty heap.
    pub(crate) fn new() -> Self {
        Self { entries: Vec::new(), places: Vec::new() }
    }

    /// Makes room for block numbers below `blocks`.
    pub(crate) fn grow(&mut self, blocks: usize) {
        if self.places.len() < blocks {
            self.places.resize(blocks, NONE);
        }
    }

    /// Blocks in the heap.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The key of a block that is in the heap.
    pub(crate) fn key(&self, block: u32) -> Option<K> {
        let place = *self.places.get(block as usize)?;
        self.entries.get(place as usize).map(|entry| entry.0)
    }

    /// The smallest key and its block.
    pub(crate) fn first(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    /// Puts a block in, or gives it another key.
    pub(crate) fn set(&mut self, block: u32, key: K) {
        let place = self.places[block as usize];
        if place == NONE {
            self.entries.push((key, block));
            self.rise(self.entries.len() - 1);
        } else {
            self.entries[place as usize].0 = key;
            self.rise(place as usize);
            self.sink(self.places[block as usize] as usize);
        }
    }

    /// Takes a block out; whether it was in.
    pub(crate) fn remove(&mut self, block: u32) -> bool {
        let Some(place) = self.places.get(block as usize).filter(|place| **place != NONE).map(|place| *place as usize)
        else {
            return false;
        };
        self.places[block as usize] = NONE;
        let last = self.entries.len() - 1;
        self.entries.swap(place, last);
        self.entries.pop();
        if place < last {
            let moved = self.entries[place].1;
            self.rise(place);
            self.sink(self.places[moved as usize] as usize);
        }
        true
    }

    /// Takes the block with the smallest key.
    pub(crate) fn pop(&mut self) -> Option<(K, u32)> {
        let first = self.first()?;
        self.remove(first.1);
        Some(first)
    }

    /// Changes every key by a function that keeps their order or joins neighbours, and puts them in order again.
    pub(crate) fn rekey(&mut self, change: impl Fn(K) -> K) {
        for entry in &mut self.entries {
            entry.0 = change(entry.0);
        }
        // An array in ascending order is a heap.
        self.entries.sort_unstable();
        for (place, entry) in self.entries.iter().enumerate() {
            self.places[entry.1 as usize] = place as u32;
        }
    }

    fn put(&mut self, place: usize, entry: (K, u32)) {
        self.entries[place] = entry;
        self.places[entry.1 as usize] = place as u32;
    }

    fn rise(&mut self, mut place: usize) {
        let entry = self.entries[place];
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.entries[parent].0 <= entry.0 {
                break;
            }
            let above = self.entries[parent];
            self.put(place, above);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize) {
        let entry = self.entries[place];
        loop {
            let left = 2 * place + 1;
            let Some(child) = self.entries.get(left) else { break };
            let is_right = self.entries.get(left + 1).is_some_and(|right| right.0 < child.0);
            let below = left + usize::from(is_right);
            let smaller = self.entries[below];
            if entry.0 <= smaller.0 {
                break;
            }
            self.put(place, smaller);
            place = below;
        }
        self.put(place, entry);
    }
}
