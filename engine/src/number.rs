//! Dense numbers for block hashes, by first appearance.
//!
//! Everything that follows blocks through a trace keeps its state in arrays indexed by these numbers, so that a hash is
//! looked up once and not once per policy and size.
//!
//! The table is open-addressing with linear probing over one word per slot: 32 bits of the hash as a tag, and the number.
//! The hashes themselves stand in a second array by number, and each match is confirmed there, so that two blocks are never
//! mixed up. Hashes are taken for random or for small counters (traces have both): the lower three bits choose the slot
//! within a cache line, the others are mixed by one multiplication (D. Knuth, The Art of Computer Programming 3, section
//! 6.4) and choose the line, so that neighbouring ids share lines. Lines are fetched for a batch of hashes before any of
//! them is compared: the loads do not depend on each other, so the processor waits for many at once.
//!
//! A probe that grows long shows that the multiplier suits the hashes badly; the table then doubles and takes another.

use crate::error::{Error, Result};

/// A slot without a number.
const EMPTY: u64 = u64::MAX;

/// Slots of one cache line.
const LINE: u64 = 8;

/// Hashes whose slots are fetched together.
const BATCH: usize = 256;

/// Slots that are looked at before the table takes another multiplier.
const LONG: u32 = 512;

/// Most numbers: the rest are marks of the lists that are indexed by them.
const MOST: usize = u32::MAX as usize - 64;

/// Odd multipliers: the golden ratio and others of its kind (fractional parts of square roots of primes).
const MULTIPLIERS: [u64; 4] =
    [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909, 0xbb67_ae85_84ca_a73b, 0x3c6e_f372_fe94_f82b];

/// The table. Takes 8 bytes per hash and 13 to 26 for the slots.
#[derive(Debug, Clone)]
pub struct Numbers {
    slots: Vec<u64>,
    hashes: Vec<u64>,
    /// 64 minus the logarithm of the lines.
    shift: u32,
    multiplier: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { slots: vec![EMPTY; 1 << 10], hashes: Vec::new(), shift: 64 - 7, multiplier: 0 }
    }
}

/// What a slot keeps of a hash beside the number.
fn tag(hash: u64) -> u64 {
    (hash ^ (hash >> 32)) << 32
}

impl Numbers {
    /// Distinct hashes so far; the next one gets this number.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hash of each number.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    fn slot(&self, hash: u64) -> usize {
        let line = (hash >> 3).wrapping_mul(MULTIPLIERS[self.multiplier % MULTIPLIERS.len()]) >> self.shift;
        (line * LINE + hash % LINE) as usize
    }

    /// Appends the number of each hash to `numbers`; a new hash gets the next one.
    ///
    /// # Errors
    /// More than 2^32 - 65 distinct hashes.
    pub fn number(&mut self, hashes: &[u64], numbers: &mut Vec<u32>) -> Result<()> {
        let mut fetched = [0_u64; BATCH];
        for batch in hashes.chunks(BATCH) {
            // Room for all of them first, so that no slot moves while the batch is at work.
            while (self.hashes.len() + batch.len()) * 8 > self.slots.len() * 5 {
                self.rebuild(self.multiplier);
            }
            for (word, &hash) in fetched.iter_mut().zip(batch) {
                *word = self.slots[self.slot(hash)];
            }
            for (&word, &hash) in fetched.iter().zip(batch) {
                let number = word as u32;
                let is_found = (word ^ tag(hash)) >> 32 == 0 && self.hashes.get(number as usize) == Some(&hash);
                numbers.push(if is_found { number } else { self.probe(hash)? });
            }
        }
        Ok(())
    }

    /// The number of one hash, found or new.
    fn probe(&mut self, hash: u64) -> Result<u32> {
        let mask = self.slots.len() - 1;
        let mut at = self.slot(hash);
        let mut looked = 0;
        loop {
            let word = self.slots[at];
            if word == EMPTY {
                break;
            }
            let number = word as u32;
            if (word ^ tag(hash)) >> 32 == 0 && self.hashes.get(number as usize) == Some(&hash) {
                return Ok(number);
            }
            looked += 1;
            at = (at + 1) & mask;
        }
        if self.hashes.len() >= MOST {
            return Err(Error::run(format!("expected at most {MOST} distinct blocks, found more")));
        }
        let number = self.hashes.len() as u32;
        self.slots[at] = tag(hash) | u64::from(number);
        self.hashes.push(hash);
        // Not beyond four slots in 16 per hash: hashes made to collide cost time, never all the memory.
        if looked > LONG && self.slots.len() < self.hashes.len().saturating_mul(16) {
            self.rebuild(self.multiplier + 1);
        }
        Ok(number)
    }

    /// Twice the slots, filled in the order of the numbers.
    fn rebuild(&mut self, multiplier: usize) {
        self.multiplier = multiplier;
        self.shift -= 1;
        let slots = self.slots.len() * 2;
        self.slots = Vec::new();
        self.slots = vec![EMPTY; slots];
        for number in 0..self.hashes.len() {
            let hash = self.hashes[number];
            let mut at = self.slot(hash);
            while self.slots[at] != EMPTY {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = tag(hash) | number as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn slow(hashes: &[u64]) -> Vec<u32> {
        let mut known = HashMap::new();
        hashes
            .iter()
            .map(|hash| {
                let next = known.len() as u32;
                *known.entry(*hash).or_insert(next)
            })
            .collect()
    }

    fn check(hashes: &[u64]) {
        let (mut table, mut found) = (Numbers::default(), Vec::new());
        for part in hashes.chunks(700) {
            table.number(part, &mut found).unwrap();
        }
        assert_eq!(found, slow(hashes));
        assert!(found.iter().zip(hashes).all(|(number, hash)| table.hashes()[*number as usize] == *hash));
    }

    proptest! {
        #[test]
        fn numbers_follow_first_appearance(
            hashes in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..500, Just(u64::MAX), Just(0)], 0..3000),
        ) {
            check(&hashes);
        }
    }

    #[test]
    fn counters_strides_and_repeats_get_their_numbers() {
        for stride in [1_u64, 8, 64, 1 << 20, 1 << 32, 1 << 40, 0x9e37_79b9_7f4a_7c15] {
            let hashes: Vec<u64> = (0..40_000_u64).map(|at| (at * 7 % 20_011).wrapping_mul(stride)).collect();
            check(&hashes);
        }
    }

    /// Hashes that all fall into one line cost other multipliers and stay within the limit of slots.
    #[test]
    fn hashes_made_to_collide_do_not_fill_the_memory() {
        let inverse = (0..6).fold(MULTIPLIERS[0], |inverse, _| {
            inverse.wrapping_mul(2_u64.wrapping_sub(MULTIPLIERS[0].wrapping_mul(inverse)))
        });
        let hashes: Vec<u64> = (0..1_u64 << 13).map(|at| at.wrapping_mul(inverse) << 3).collect();
        let (mut table, mut found) = (Numbers::default(), Vec::new());
        table.number(&hashes, &mut found).unwrap();
        assert_eq!(found, slow(&hashes));
        assert!(table.slots.len() <= table.len() * 32, "{}", table.slots.len());
    }
}
