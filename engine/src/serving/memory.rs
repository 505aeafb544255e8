//! KV memory of one instance: private bytes of running requests, shared prefix units, and blocks that nobody uses but that
//! stay cached until the room is needed.
//!
//! A *unit* is one block of the trace's prompts (512 tokens in Mooncake) in all layers that keep the whole context. Units
//! in use are never evicted; unused ones go in order of last use, deepest first (vLLM frees a request's blocks in reverse).
//! An *extent* is the rest of a request that has left: blocks that no other prompt names, which go last block first, and
//! which the request finds again if it was preempted. Only what is resident is stored, so that the size follows the
//! capacity, not the trace.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::cache::list::Lists;

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Nothing.
    Free,
    /// A unit, with the number of its users.
    Unit { unit: u32, users: u32 },
    /// The last blocks of a request that has left.
    Extent { request: u32, blocks: u32 },
}

/// Bytes held, cached and free; see the module.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    capacity: u64,
    unit_bytes: u64,
    block_bytes: u64,
    private: u64,
    held_units: u64,
    cached_units: u64,
    cached_blocks: u64,
    slots: Vec<What>,
    free: Vec<u32>,
    /// Slots of resident units. Never iterated.
    units: HashMap<u32, u32, BuildHasherDefault<Fold>>,
    /// Cached slots in order of last use.
    unused: Lists<1>,
    /// Units that had to go since they were last asked for; `None` if nobody asks.
    gone: Option<Vec<u32>>,
}

/// A hash of one `u32`, by a product with 2^64 over the golden ratio.
#[derive(Debug, Clone, Copy, Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        let product = (self.0 ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

impl Memory {
    /// An empty memory; `block_bytes` are those of a block of an extent.
    pub(super) fn new(capacity: u64, unit_bytes: u64, block_bytes: u64) -> Self {
        Self {
            capacity,
            unit_bytes,
            block_bytes,
            private: 0,
            held_units: 0,
            cached_units: 0,
            cached_blocks: 0,
            slots: Vec::new(),
            free: Vec::new(),
            units: HashMap::default(),
            unused: Lists::new(),
            gone: None,
        }
    }

    /// Keeps note of units that have to go, for [`Memory::take_gone`].
    pub(super) fn watch(&mut self) {
        self.gone = Some(Vec::new());
    }

    /// Units that had to go since the last call, in order.
    pub(super) fn take_gone(&mut self) -> Vec<u32> {
        self.gone.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Bytes of running requests.
    pub(super) fn held(&self) -> u64 {
        self.private + self.held_units * self.unit_bytes
    }

    /// Bytes of running requests and of the cache.
    pub(super) fn resident(&self) -> u64 {
        self.held() + self.cached_units * self.unit_bytes + self.cached_blocks * self.block_bytes
    }

    /// Bytes that could be reserved, everything cached given up.
    pub(super) fn room(&self) -> u64 {
        self.capacity - self.held()
    }

    /// Leading units of a prompt that are resident.
    pub(super) fn leading(&self, units: &[u32]) -> usize {
        units.iter().take_while(|unit| self.units.contains_key(unit)).count()
    }

    /// Bytes that pinning these resident units would take away from the room: those that nobody uses now.
    pub(super) fn unused_bytes(&self, units: &[u32]) -> u64 {
        let unused = units.iter().filter(|unit| {
            let slot = self.units.get(unit).and_then(|&slot| self.slots.get(slot as usize));
            matches!(slot, Some(What::Unit { users: 0, .. }))
        });
        unused.count() as u64 * self.unit_bytes
    }

    /// Takes resident units into use.
    pub(super) fn pin(&mut self, units: &[u32]) {
        for unit in units {
            let Some(&slot) = self.units.get(unit) else { continue };
            if let What::Unit { users, .. } = &mut self.slots[slot as usize] {
                *users += 1;
                if *users == 1 {
                    self.unused.unlink(0, slot);
                    self.cached_units -= 1;
                    self.held_units += 1;
                }
            }
        }
    }

    /// Ends one use of each unit; those that nobody uses stay cached, deepest first to go.
    pub(super) fn unpin(&mut self, units: &[u32]) {
        for unit in units.iter().rev() {
            let Some(&slot) = self.units.get(unit) else { continue };
            if let What::Unit { users, .. } = &mut self.slots[slot as usize] {
                *users -= 1;
                if *users == 0 {
                    self.held_units -= 1;
                    self.cached_units += 1;
                    self.unused.push_newest(0, slot);
                }
            }
        }
    }

    /// Turns the private bytes of a computed unit into a shared unit in use. `false` if the unit is resident already; the
    /// bytes then stay private, a duplicate.
    pub(super) fn publish(&mut self, unit: u32) -> bool {
        if self.units.contains_key(&unit) {
            return false;
        }
        let slot = self.take_slot(What::Unit { unit, users: 1 });
        self.units.insert(unit, slot);
        self.private -= self.unit_bytes;
        self.held_units += 1;
        true
    }

    /// Leaves the last `blocks` private blocks of a request in the cache, and gives the slot by which it finds them again.
    pub(super) fn leave_extent(&mut self, request: u32, blocks: u32) -> Option<u32> {
        if blocks == 0 || self.block_bytes == 0 {
            return None;
        }
        let slot = self.take_slot(What::Extent { request, blocks });
        self.private -= u64::from(blocks) * self.block_bytes;
        self.cached_blocks += u64::from(blocks);
        self.unused.push_newest(0, slot);
        Some(slot)
    }

    /// Blocks of the request's extent in this slot that are still there.
    pub(super) fn extent(&self, request: u32, slot: Option<u32>) -> u32 {
        match slot.and_then(|slot| self.slots.get(slot as usize)) {
            Some(&What::Extent { request: owner, blocks }) if owner == request => blocks,
            _ => 0,
        }
    }

    /// Makes the request's extent private again, all of it; call it only where [`Memory::extent`] found blocks.
    pub(super) fn take_extent(&mut self, request: u32, slot: Option<u32>) {
        let blocks = u64::from(self.extent(request, slot));
        if let Some(slot) = slot.filter(|_| blocks > 0) {
            self.private += blocks * self.block_bytes;
            self.cached_blocks -= blocks;
            self.unused.unlink(0, slot);
            self.give_slot(slot);
        }
    }

    /// Reserves private bytes, evicting what is cached as needed. `false`, with nothing changed, if there is no room.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        if bytes > self.room() {
            return false;
        }
        loop {
            let free = self.capacity - self.resident();
            if free >= bytes || !self.evict(bytes - free) {
                break;
            }
        }
        self.private += bytes;
        true
    }

    /// Gives private bytes back.
    pub(super) fn release(&mut self, bytes: u64) {
        self.private -= bytes;
    }

    /// Evicts the oldest unit, or of the oldest extent as many blocks as are needed for `bytes`.
    fn evict(&mut self, bytes: u64) -> bool {
        let Some(slot) = self.unused.oldest(0) else { return false };
        match self.slots[slot as usize] {
            What::Unit { unit, .. } => {
                self.units.remove(&unit);
                self.cached_units -= 1;
                if let Some(gone) = &mut self.gone {
                    gone.push(unit);
                }
            }
            What::Extent { request, blocks } => {
                let going = u64::from(blocks).min(bytes.div_ceil(self.block_bytes)) as u32;
                self.cached_blocks -= u64::from(going);
                if going < blocks {
                    self.slots[slot as usize] = What::Extent { request, blocks: blocks - going };
                    return true;
                }
            }
            What::Free => {}
        }
        self.unused.unlink(0, slot);
        self.give_slot(slot);
        true
    }

    fn take_slot(&mut self, what: What) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = what;
            return slot;
        }
        self.slots.push(what);
        self.unused.grow(self.slots.len());
        self.slots.len() as u32 - 1
    }

    fn give_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = What::Free;
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_units_go_deepest_first_and_used_ones_never() {
        let mut memory = Memory::new(40, 10, 5);
        assert!(memory.reserve(30));
        assert!(memory.publish(0) && memory.publish(1) && memory.publish(2));
        assert!(!memory.publish(1));
        memory.unpin(&[0, 1, 2]);
        memory.pin(&[0]);
        assert_eq!((memory.held(), memory.resident(), memory.room()), (10, 30, 30));
        assert!(memory.reserve(20));
        assert_eq!(memory.leading(&[0, 1, 2]), 2, "unit 2 was the deepest");
        assert!(memory.reserve(10));
        assert_eq!(memory.leading(&[0, 1, 2]), 1);
        assert!(!memory.reserve(1), "unit 0 is in use");
        assert_eq!(memory.resident(), 40);
    }

    #[test]
    fn an_extent_goes_block_by_block_and_is_found_again() {
        let mut memory = Memory::new(40, 10, 5);
        assert!(memory.reserve(30));
        let slot = memory.leave_extent(7, 4);
        assert_eq!((memory.held(), memory.resident()), (10, 30));
        assert!(memory.reserve(16), "10 bytes are free, so 2 blocks go for the other 6");
        assert_eq!(memory.extent(7, slot), 2);
        assert_eq!(memory.extent(8, slot), 0, "it is another's");
        memory.take_extent(7, slot);
        assert_eq!((memory.held(), memory.resident(), memory.extent(7, slot)), (36, 36, 0));
        assert!(memory.reserve(4) && !memory.reserve(1));
    }
}
