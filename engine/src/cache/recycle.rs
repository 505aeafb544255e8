//! Numbers for hashes that are given back once a policy has forgotten their block.
//!
//! One replay at one size needs to tell apart only the blocks that its policy remembers, ghosts included: as many as
//! fit, or twice as many. A table of that size stays in the processor's near caches however many distinct blocks a trace
//! has, where [`crate::number`] keeps all of them. The policies are the same; they only see other numbers.
//!
//! The table is open-addressing with linear probing; entries behind a removed one move up (D. Knuth, The Art of Computer
//! Programming 3, section 6.4, algorithm R). A slot keeps 32 mixed bits of the hash, which say where its probes begin, and
//! the number. Matches are confirmed by the whole hash.

use super::{Counts, Met, Policy};

/// A slot without a number.
const EMPTY: u64 = u64::MAX;

/// The golden ratio as a multiplier, odd.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The table.
#[derive(Debug, Clone)]
pub struct Recycled {
    slots: Vec<u64>,
    /// 32 minus the logarithm of the slots.
    shift: u32,
    hashes: Vec<u64>,
    free: Vec<u32>,
}

impl Default for Recycled {
    fn default() -> Self {
        Self { slots: vec![EMPTY; 1 << 10], shift: 32 - 10, hashes: Vec::new(), free: Vec::new() }
    }
}

/// The mixed bits that a slot keeps, in its upper half.
fn tag(hash: u64) -> u64 {
    (hash ^ (hash >> 32)).wrapping_mul(MULTIPLIER) & !u64::from(u32::MAX)
}

impl Recycled {
    /// Most numbers that were out at once.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether none ever was.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    fn home(&self, word: u64) -> usize {
        (word >> 32 >> self.shift) as usize
    }

    /// The number of a hash; a new one gets a number that is free.
    #[inline]
    fn number(&mut self, hash: u64) -> u32 {
        let (tag, mask) = (tag(hash), self.slots.len() - 1);
        let mut at = self.home(tag);
        loop {
            let word = self.slots[at];
            if word == EMPTY {
                return self.insert(hash, at);
            }
            if (word ^ tag) >> 32 == 0 && self.hashes.get(word as u32 as usize) == Some(&hash) {
                return word as u32;
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts a new hash into the empty slot at the end of its probes.
    fn insert(&mut self, hash: u64, at: usize) -> u32 {
        let number = self.free.pop().unwrap_or(self.hashes.len() as u32);
        match self.hashes.get_mut(number as usize) {
            Some(known) => *known = hash,
            None => self.hashes.push(hash),
        }
        self.slots[at] = tag(hash) | u64::from(number);
        if (self.hashes.len() - self.free.len()) * 2 > self.slots.len() && self.shift > 0 {
            self.double();
        }
        number
    }

    fn double(&mut self) {
        let size = self.slots.len() * 2;
        let before = std::mem::replace(&mut self.slots, vec![EMPTY; size]);
        self.shift -= 1;
        for word in before.into_iter().filter(|word| *word != EMPTY) {
            let mut at = self.home(word);
            while self.slots[at] != EMPTY {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = word;
        }
    }

    /// Gives a number back.
    #[inline]
    fn forget(&mut self, number: u32) {
        let Some(&hash) = self.hashes.get(number as usize) else { return };
        let (wanted, mask) = (tag(hash) | u64::from(number), self.slots.len() - 1);
        let mut hole = self.home(wanted);
        while self.slots[hole] != wanted {
            if self.slots[hole] == EMPTY {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let word = self.slots[at];
            if word == EMPTY {
                break;
            }
            // An entry moves up unless its probes begin behind the hole.
            if (at.wrapping_sub(self.home(word)) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.slots[hole] = word;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.free.push(number);
    }
}

/// Uses blocks by their hashes, in order; adds to the counts. For policies that forget what they evict: `lru`, `fifo`,
/// `sieve` and `s3-fifo`. The same policy and table go on where they stopped.
pub fn touch_hashes<P: Policy + ?Sized>(policy: &mut P, numbers: &mut Recycled, hashes: &[u64], counts: &mut Counts) {
    // Numbers that are out are remembered blocks, and the one that is just used.
    let mut room = numbers.len();
    policy.grow(room + 1);
    for &hash in hashes {
        let block = numbers.number(hash);
        if block as usize >= room {
            room = (block as usize + 1) * 2;
            policy.grow(room);
        }
        let met = policy.touch(block);
        counts.accesses += 1;
        match met {
            Met::Hit => {
                counts.hits += 1;
                continue;
            }
            Met::Miss => {}
            Met::Bypass => {
                counts.bypasses += 1;
                numbers.forget(block);
            }
            Met::Eviction(victim) => {
                counts.evictions += 1;
                if !policy.remembers(victim) {
                    numbers.forget(victim);
                }
            }
        }
        if let Some(forgotten) = policy.forgotten() {
            numbers.forget(forgotten);
        }
    }
    counts.resident = policy.len() as u64;
    counts.peak = counts.peak.max(counts.resident);
}
