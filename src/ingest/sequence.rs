//! The publishers of a file: which of their numbered messages are missing, came twice or came late.
//!
//! Several publishers may write into one file; topic and rank tell them apart. What a number says is in
//! [`engine::reconcile::sequence`].

use std::collections::BTreeMap;

use engine::reconcile::sequence::{Seen, Stream};

use super::sink::{Event, Severity, Sink};

/// Publishers that are followed.
const STREAMS: usize = 1024;

/// The longest topic that is followed.
const TOPIC: usize = 1024;

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
    streams: BTreeMap<Publisher, Stream<Place>>,
}

/// Numbers that did not come.
type Gap = engine::reconcile::sequence::Gap<Place>;

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
        let mut gone = Vec::new();
        let seen = stream.follow(seq, time_ns, place, &mut |gap| gone.push(*gap));
        match seen {
            Seen::Next => {}
            Seen::Repeated => sink.log(REPEATED, "a message came twice", place.0, place.1),
            Seen::Reordered => sink.log(REORDERED, "a message came after a later one", place.0, place.1),
            Seen::Restarted => sink.log(RESTARTED, "the numbers of a publisher begin again", place.0, place.1),
        }
        for gap in &gone {
            lost(gap, sink);
        }
        if seen == Seen::Restarted {
            late(seq, sink);
        }
    }

    /// Takes the number of a message that cannot be read, and whose publisher is therefore known by topic alone: it is
    /// bad, not lost.
    pub(super) fn unreadable(&mut self, topic: &str, seq: u64) {
        let of_topic = self.streams.iter_mut().filter(|(publisher, _)| publisher.0 == topic);
        for (_, stream) in of_topic {
            stream.pass(seq);
        }
    }

    /// Reports what never came.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        let streams = std::mem::take(&mut self.streams);
        let mut gaps: Vec<Gap> = streams.into_values().flat_map(Stream::into_gaps).collect();
        gaps.sort_by_key(|gap| gap.place.0);
        for gap in &gaps {
            lost(gap, sink);
        }
    }
}

fn lost(gap: &Gap, sink: &mut Sink<'_>) {
    sink.log_many(LOST, "messages are missing: their numbers were skipped", gap.count(), gap.place.0, gap.place.1);
}
