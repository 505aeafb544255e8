//! Numbered messages: which of them are missing, came twice or came late.
//!
//! Each publisher numbers its messages from 0 without a gap, so that a number that never comes is a lost message.
//! Several publishers may write into one file; topic and rank tell them apart. A message may come late or twice, since
//! lost ones can be asked for again. A publisher that starts anew begins at a lower number with a later time.

use std::collections::{BTreeMap, VecDeque};

use super::sink::{Event, Severity, Sink};

/// Publishers that are followed.
const STREAMS: usize = 1024;

/// The longest topic that is followed.
const TOPIC: usize = 1024;

/// Gaps of a publisher that may still be filled; the oldest of more is lost for good.
const GAPS: usize = 256;

const LOST: Event = Event {
    severity: Severity::DataLoss,
    code: "lost_messages",
    advice: Some("their events are lost, and what was derived from all events is uncertain from there on"),
};
const REPEATED: Event = Event {
    severity: Severity::Notice,
    code: "repeated_message",
    advice: Some("its rows are kept once more; source, topic, rank, number and positions are the same"),
};
const REORDERED: Event = Event {
    severity: Severity::Notice,
    code: "reordered_message",
    advice: Some("rows stay in file order; sort by number where the order matters"),
};
const RESTARTED: Event = Event { severity: Severity::Notice, code: "publisher_restarted", advice: None };
const LATE: Event = Event {
    severity: Severity::Notice,
    code: "late_start",
    advice: Some("the capture began after the publisher; blocks that were stored before are unknown"),
};
const UNFOLLOWED: Event = Event {
    severity: Severity::Notice,
    code: "unfollowed_publisher",
    advice: Some("gaps in its numbers are not reported; split the file by topic"),
};

/// Where something stands: its line or number, and the offset of its first byte.
pub(super) type Place = (Option<u64>, Option<u64>);

/// A topic and a rank: who numbers the messages.
type Publisher = (String, Option<u32>);

/// The publishers of a file.
#[derive(Default)]
pub(super) struct Streams {
    streams: BTreeMap<Publisher, Stream>,
}

/// Numbers that did not come, both ends included, and where the next one stands.
struct Gap {
    from: u64,
    to: u64,
    place: Place,
}

struct Stream {
    first: u64,
    last: u64,
    latest_ns: Option<i64>,
    gaps: VecDeque<Gap>,
}

/// What a message's number says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Next,
    Repeated,
    Reordered,
    Restarted,
}

impl Streams {
    /// Takes the number of a message.
    pub(super) fn message(
        &mut self,
        (topic, rank): (&str, Option<u32>),
        seq: u64,
        time_ns: Option<i64>,
        place: Place,
        sink: &mut Sink<'_>,
    ) {
        let late = |seq: u64, sink: &mut Sink<'_>| {
            if seq > 0 {
                sink.log(LATE, "the first number of a publisher is not 0", place.0, place.1);
            }
        };
        let full = self.streams.len() >= STREAMS;
        let key = (topic.to_owned(), rank);
        let Some(stream) = self.streams.get_mut(&key) else {
            if full || topic.len() > TOPIC {
                sink.log(UNFOLLOWED, "a message is of a publisher beyond those that are followed", place.0, place.1);
            } else {
                late(seq, sink);
                self.streams.insert(key, Stream::new(seq, time_ns));
            }
            return;
        };
        match stream.take(seq, time_ns, place) {
            Seen::Next => {}
            Seen::Repeated => sink.log(REPEATED, "a message came twice", place.0, place.1),
            Seen::Reordered => sink.log(REORDERED, "a message came after a later one", place.0, place.1),
            Seen::Restarted => {
                sink.log(RESTARTED, "the numbers of a publisher begin again", place.0, place.1);
                stream.gaps.drain(..).for_each(|gap| lost(&gap, sink));
                *stream = Stream::new(seq, time_ns);
                late(seq, sink);
            }
        }
        while stream.gaps.len() > GAPS
            && let Some(gap) = stream.gaps.pop_front()
        {
            lost(&gap, sink);
        }
    }

    /// Takes the number of a message that cannot be read, and whose publisher is therefore known by topic alone: it is
    /// bad, not lost.
    pub(super) fn unreadable(&mut self, topic: &str, seq: u64) {
        let of_topic = self.streams.iter_mut().filter(|(publisher, _)| publisher.0 == topic);
        for (_, stream) in of_topic {
            if stream.last.checked_add(1) == Some(seq) {
                stream.last = seq;
            }
        }
    }

    /// Reports what never came.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let streams = std::mem::take(&mut self.streams);
        let mut gaps: Vec<Gap> = streams.into_values().flat_map(|stream| stream.gaps).collect();
        gaps.sort_by_key(|gap| gap.place.0);
        for gap in &gaps {
            lost(gap, sink);
        }
    }
}

fn lost(gap: &Gap, sink: &mut Sink<'_>) {
    let count = (gap.to - gap.from).saturating_add(1);
    sink.log_many(LOST, "messages are missing: their numbers were skipped", count, gap.place.0, gap.place.1);
}

impl Stream {
    fn new(seq: u64, time_ns: Option<i64>) -> Self {
        Self { first: seq, last: seq, latest_ns: time_ns, gaps: VecDeque::new() }
    }

    fn take(&mut self, seq: u64, time_ns: Option<i64>, place: Place) -> Seen {
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
                prop_assert_eq!(stream.take(*seq, time, (None, None)), expected);
                seen.insert(*seq);
            }
            let stream = stream.unwrap();
            let missing: Vec<u64> = stream.gaps.iter().flat_map(|gap| gap.from..=gap.to).collect();
            let (first, last) = (*seen.first().unwrap(), *seen.last().unwrap());
            prop_assert_eq!(missing, (first..=last).filter(|seq| !seen.contains(seq)).collect::<Vec<_>>());
        }
    }
}
