//! A map that forgets what has not been used for long, so that following sessions through a file of any length takes
//! bounded memory.

use std::collections::HashMap;
use std::hash::Hash;

/// The most entries of a generation.
const ENTRIES: usize = 1 << 20;

/// The newest entries: between one and two generations of them.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    entries: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    pub(super) fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), entries: ENTRIES }
    }

    /// What was put last under this key, unless it is forgotten.
    pub(super) fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: std::borrow::Borrow<Q>,
    {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Keeps a value, and forgets the older generation when the younger is full.
    pub(super) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.entries && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

/// Where a session stands: its last request and how many it has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Local id of its last request.
    pub(super) last: u64,
    /// Requests so far.
    pub(super) turns: u32,
}

/// The sessions of a source whose rows are turns in order.
pub(super) type Sessions = Recent<Box<str>, Place>;

impl Sessions {
    /// The turn of the next request of a session, from 0, and the request before it.
    pub(super) fn next(&self, session: &str) -> (u32, Option<u64>) {
        self.get(session).map_or((0, None), |place| (place.turns, Some(place.last)))
    }

    /// Notes that the session's next request got this local id.
    pub(super) fn took(&mut self, session: &str, id: u64) {
        let turns = self.next(session).0.saturating_add(1);
        self.put(session.into(), Place { last: id, turns });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_oldest_are_forgotten() {
        let mut recent = Recent { entries: 3, ..Recent::new() };
        for at in 0..7_u64 {
            recent.put(at, at * 10);
        }
        // 0 to 2 are gone with their generation, 3 to 5 are the old one.
        let found: Vec<Option<u64>> = (0..8).map(|at| recent.get(&at).copied()).collect();
        assert_eq!(found, [None, None, None, Some(30), Some(40), Some(50), Some(60), None]);
        recent.put(6, 1);
        assert_eq!((recent.get(&6), recent.get(&3)), (Some(&1), Some(&30)));
    }

    #[test]
    fn turns_count_from_zero() {
        let mut sessions = Sessions::new();
        for (session, id, expected) in [("a", 0, (0, None)), ("b", 1, (0, None)), ("a", 2, (1, Some(0)))] {
            assert_eq!(sessions.next(session), expected);
            sessions.took(session, id);
        }
    }
}
