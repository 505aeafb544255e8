//! Numbered messages of one publisher: which of them are missing, came twice or came late.
//!
//! A publisher numbers its messages from 0 without a gap, so that a number that never comes is a lost message. A message
//! may come late or twice, since lost ones can be asked for again. A publisher that starts anew begins at a lower number
//! with a later time; without times, at 0.

use std::collections::VecDeque;

/// Gaps of a publisher that may still be filled; the oldest of more is lost for good.
pub const GAPS: usize = 256;

/// Numbers that did not come, both ends included, and where the next one stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap<P> {
    /// The first of them.
    pub from: u64,
    /// The last of them.
    pub to: u64,
    /// Where the message stands that showed it.
    pub place: P,
}

impl<P> Gap<P> {
    /// How many messages are missing.
    pub fn count(&self) -> u64 {
        (self.to - self.from).saturating_add(1)
    }
}

/// What a message's number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// It is above all before it.
    Next,
    /// It came before.
    Repeated,
    /// It was missing.
    Reordered,
    /// The publisher begins again.
    Restarted,
}

/// A publisher, as far as its messages came.
#[derive(Debug, Clone)]
pub struct Stream<P> {
    first: u64,
    last: u64,
    latest_ns: Option<i64>,
    gaps: VecDeque<Gap<P>>,
}

impl<P: Copy> Stream<P> {
    /// A publisher whose first message has this number and time.
    pub fn new(seq: u64, time_ns: Option<i64>) -> Self {
        Self { first: seq, last: seq, latest_ns: time_ns, gaps: VecDeque::new() }
    }

    /// Takes the number of the next message; `lost` gets the gaps that nothing can fill any more.
    pub fn follow(&mut self, seq: u64, time_ns: Option<i64>, place: P, lost: &mut dyn FnMut(&Gap<P>)) -> Seen {
        let seen = self.take(seq, time_ns, place);
        if seen == Seen::Restarted {
            self.gaps.iter().for_each(&mut *lost);
            *self = Self::new(seq, time_ns);
        }
        while self.gaps.len() > GAPS
            && let Some(gap) = self.gaps.pop_front()
        {
            lost(&gap);
        }
        seen
    }

    /// Takes a number that came with a message which says nothing else: it is not missing if it is the next one.
    pub fn pass(&mut self, seq: u64) {
        if self.last.checked_add(1) == Some(seq) {
            self.last = seq;
        }
    }

    /// What is missing at the end.
    pub fn into_gaps(self) -> impl Iterator<Item = Gap<P>> {
        self.gaps.into_iter()
    }

    fn take(&mut self, seq: u64, time_ns: Option<i64>, place: P) -> Seen {
        if seq > self.last {
            let expected = self.last + 1;
            if seq > expected {
                self.gaps.push_back(Gap { from: expected, to: seq - 1, place });
            }
            self.last = seq;
            self.latest_ns = self.latest_ns.max(time_ns);
            return Seen::Next;
        }
        if self.fill(seq) {
            return Seen::Reordered;
        }
        let later = match (time_ns, self.latest_ns) {
            (Some(time), Some(latest)) => time > latest,
            _ => seq == 0 && self.last > 0,
        };
        if later {
            return Seen::Restarted;
        }
        if seq < self.first {
            if self.first - seq > 1 {
                self.gaps.push_front(Gap { from: seq + 1, to: self.first - 1, place });
            }
            self.first = seq;
            return Seen::Reordered;
        }
        Seen::Repeated
    }

    /// Takes a number out of the gap that holds it.
    fn fill(&mut self, seq: u64) -> bool {
        let Some(at) = self.gaps.iter().position(|gap| (gap.from..=gap.to).contains(&seq)) else { return false };
        let Some(Gap { from, to, place }) = self.gaps.remove(at) else { return false };
        if seq < to {
            self.gaps.insert(at, Gap { from: seq + 1, to, place });
        }
        if seq > from {
            self.gaps.insert(at, Gap { from, to: seq - 1, place });
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers in any order, some left out and some twice, all of one run: what is missing is what never came.
        #[test]
        fn gaps_are_what_never_came(numbers in proptest::collection::vec(1..40_u64, 1..60)) {
            // Times follow the numbers, so that nothing looks like a restart.
            let (mut stream, mut seen) = (None, BTreeSet::new());
            for seq in &numbers {
                let time = Some(*seq as i64);
                let stream = stream.get_or_insert_with(|| Stream::new(*seq, time));
                let expected = match (seen.is_empty(), seen.last()) {
                    (true, _) | (_, None) => Seen::Repeated,
                    (_, Some(last)) if seq > last => Seen::Next,
                    _ if seen.contains(seq) => Seen::Repeated,
                    _ => Seen::Reordered,
                };
                prop_assert_eq!(stream.follow(*seq, time, (), &mut |_| {}), expected);
                seen.insert(*seq);
            }
            let missing: Vec<u64> = stream.unwrap().into_gaps().flat_map(|gap| gap.from..=gap.to).collect();
            let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
            prop_assert_eq!(missing, (first..=last).filter(|seq| !seen.contains(seq)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_restart_and_many_gaps_are_lost_for_good() {
        let mut lost = Vec::new();
        let mut stream = Stream::new(0, Some(0));
        stream.follow(3, Some(1), 3, &mut |gap| lost.push(*gap));
        assert_eq!(stream.follow(0, Some(9), 1, &mut |gap| lost.push(*gap)), Seen::Restarted);
        assert_eq!(lost, [Gap { from: 1, to: 2, place: 3 }]);
        for at in 0..=GAPS as u64 {
            stream.follow(3 + 2 * at, Some(10), at, &mut |gap| lost.push(*gap));
        }
        assert_eq!(lost[1..], [Gap { from: 1, to: 2, place: 0 }]);
        assert_eq!(stream.into_gaps().map(|gap| gap.count()).sum::<u64>(), GAPS as u64);
    }
}
