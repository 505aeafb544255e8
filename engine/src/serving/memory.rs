//! KV memory of one instance: private bytes of running requests, and shared prefix units that stay cached until the room
//! is needed.
//!
//! A *unit* is one block of the trace's prompts (512 tokens in Mooncake) in all layers that keep the whole context. Units
//! in use are never evicted; unused ones go in order of last use, deepest first (vLLM frees a request's blocks in reverse).

use crate::cache::list::Lists;

/// Bytes held, cached and free; see the module.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    capacity: u64,
    unit_bytes: u64,
    private: u64,
    held_units: u64,
    cached_units: u64,
    users: Vec<u32>,
    resident: Vec<bool>,
    /// Cached units in order of last use.
    unused: Lists<1>,
}

impl Memory {
    pub(super) fn new(capacity: u64, unit_bytes: u64, units: usize) -> Self {
        let mut unused = Lists::new();
        unused.grow(units);
        Self {
            capacity,
            unit_bytes,
            private: 0,
            held_units: 0,
            cached_units: 0,
            users: vec![0; units],
            resident: vec![false; units],
            unused,
        }
    }

    /// Bytes of running requests.
    pub(super) fn held(&self) -> u64 {
        self.private + self.held_units * self.unit_bytes
    }

    /// Bytes of running requests and of the cache.
    pub(super) fn resident(&self) -> u64 {
        self.held() + self.cached_units * self.unit_bytes
    }

    /// Bytes that could be reserved, cached units given up.
    pub(super) fn room(&self) -> u64 {
        self.capacity - self.held()
    }

    /// Leading units of a prompt that are resident.
    pub(super) fn leading(&self, units: &[u32]) -> usize {
        units.iter().take_while(|&&unit| self.resident[unit as usize]).count()
    }

    /// Bytes that pinning these resident units would take away from the room: those that nobody uses now.
    pub(super) fn unused_bytes(&self, units: &[u32]) -> u64 {
        units.iter().filter(|&&unit| self.users[unit as usize] == 0).count() as u64 * self.unit_bytes
    }

    /// Takes resident units into use.
    pub(super) fn pin(&mut self, units: &[u32]) {
        for &unit in units {
            if self.users[unit as usize] == 0 {
                self.unused.unlink(0, unit);
                self.cached_units -= 1;
                self.held_units += 1;
            }
            self.users[unit as usize] += 1;
        }
    }

    /// Ends one use of each unit; those that nobody uses stay cached, deepest first to go.
    pub(super) fn unpin(&mut self, units: &[u32]) {
        for &unit in units.iter().rev() {
            let users = &mut self.users[unit as usize];
            *users -= 1;
            if *users == 0 {
                self.held_units -= 1;
                self.cached_units += 1;
                self.unused.push_newest(0, unit);
            }
        }
    }

    /// Turns the private bytes of a computed unit into a shared unit in use. `false` if the unit is resident already; the
    /// bytes then stay private, a duplicate.
    pub(super) fn publish(&mut self, unit: u32) -> bool {
        if self.resident[unit as usize] {
            return false;
        }
        self.private -= self.unit_bytes;
        self.resident[unit as usize] = true;
        self.users[unit as usize] = 1;
        self.held_units += 1;
        true
    }

    /// Reserves private bytes, evicting cached units as needed. `false`, with nothing changed, if there is no room.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        if bytes > self.room() {
            return false;
        }
        while self.capacity - self.resident() < bytes {
            self.evict_oldest();
        }
        self.private += bytes;
        true
    }

    /// Gives private bytes back.
    pub(super) fn release(&mut self, bytes: u64) {
        self.private -= bytes;
    }

    fn evict_oldest(&mut self) {
        if let Some(unit) = self.unused.pop_oldest(0) {
            self.resident[unit as usize] = false;
            self.cached_units -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_units_go_deepest_first_and_used_ones_never() {
        let mut memory = Memory::new(40, 10, 4);
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
}
