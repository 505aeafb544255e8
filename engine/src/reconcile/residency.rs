//! What a serving engine kept in its KV cache, by its own events, and what LRU would have kept in the same room.
//!
//! Events of one source, topic, rank, medium and cache group make a *pool*. `stored` puts a block in, `removed` takes it
//! out (of every medium that has it, where it names none), `cleared` empties the pools of its rank (of its medium, where
//! it names one). What was stored before the capture began is unknown, so that a block may be removed that was never
//! seen. Messages are missing by the rules of [`super::sequence`], as they are when the events are ingested; but a
//! message without any event about a block has no row, and is missing here.
//!
//! The replay takes the same pool with as many blocks as were there at most, or as many as the user says. Engines do
//! not send events for hits; but a block that is stored below a parent shows that the chain above it was in use. An
//! event's references are therefore the known ancestors of its first block, from the root, and then its blocks in
//! order; each is touched or put in, and the block whose last use is longest ago makes room. `cleared` clears both.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use arrow::array::RecordBatch;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use super::columns::{number, numbers, text, texts};
use super::sequence::{Gap, Stream};
use crate::cache::lru::Lru;
use crate::cache::{Met, Policy};
use crate::error::Result;

/// Events that share their room.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pool {
    /// The source.
    pub source: u32,
    /// Topic of the messages: engines that publish to one subscriber differ in it.
    pub topic: Option<String>,
    /// Data-parallel rank.
    pub rank: Option<u32>,
    /// Where the blocks are, as the engine says it.
    pub medium: Option<String>,
    /// KV cache group.
    pub group: Option<u32>,
}

impl Pool {
    /// Whether an event that may name no group means this pool's engine and group.
    fn is_meant(&self, meant: &Self) -> bool {
        let same_engine = (self.source, self.rank, &self.topic) == (meant.source, meant.rank, &meant.topic);
        same_engine && (meant.group.is_none() || meant.group == self.group)
    }
}

/// What happened to a block, or to all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A block is there; its parent, if it is known, and whether it is the first of its event.
    Stored { block: u32, parent: Option<u32>, is_first: bool },
    /// A block is gone.
    Removed { block: u32 },
    /// All are gone.
    Cleared,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    time: Option<i64>,
    /// Messages that were lost before it.
    lost: u64,
    what: What,
}

/// Events by pool.
#[derive(Debug, Clone, Default)]
pub struct Events {
    pools: BTreeMap<Pool, Vec<Event>>,
    /// Distinct blocks, each within its pool.
    blocks: u32,
    /// Events of other kinds, and events about blocks without a hash.
    pub ignored: u64,
}

/// A stretch of a pool's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Number of the stretch, from 0.
    pub number: u32,
    /// Time of its first event that has one, ns.
    pub first_ns: Option<i64>,
    /// Time of its last event that has one, ns.
    pub last_ns: Option<i64>,
    /// Blocks stored that were not there.
    pub stored: u64,
    /// Blocks stored that were there already.
    pub stored_again: u64,
    /// Blocks removed: the engine's evictions.
    pub removed: u64,
    /// Blocks removed that were not there, stored before the capture began or lost.
    pub removed_unknown: u64,
    /// Blocks that were there when all were cleared.
    pub cleared: u64,
    /// Messages lost.
    pub lost: u64,
    /// Blocks there at its end.
    pub resident: u64,
    /// Most blocks there within it.
    pub peak: u64,
    /// References of the replay.
    pub replayed_references: u64,
    /// Of these, hits.
    pub replayed_hits: u64,
    /// Evictions of the replay.
    pub replayed_evictions: u64,
    /// Blocks that the replay holds at its end.
    pub replayed_resident: u64,
}

/// What became of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// The pool.
    pub pool: Pool,
    /// Blocks of the replay.
    pub capacity: u64,
    /// Stretches in order.
    pub buckets: Vec<Bucket>,
}

/// A block's name: pool, hash as a number, hash as bytes.
type Name = (Pool, u64, Option<String>);

/// Reads rows of the canonical `block_events` table.
///
/// # Errors
/// A missing column or a column of another type.
pub fn events(batches: &[RecordBatch]) -> Result<Events> {
    let mut found = Events::default();
    let mut names: HashMap<Name, u32> = HashMap::new();
    let mut missing = lost(batches)?.into_iter().peekable();
    let mut number_of_row = 0;
    let mut owed: BTreeMap<_, u64> = BTreeMap::new();
    for batch in batches {
        let columns = Columns::of(batch)?;
        for row in 0..batch.num_rows() {
            let pool = columns.pool(row);
            let lost = missing.next_if(|(at, _)| *at == number_of_row).map_or(0, |(_, count)| count);
            number_of_row += 1;
            // What a row shows that is no event of a pool is told with the next one.
            let publisher = (lost > 0 || !owed.is_empty()).then(|| (pool.source, pool.rank, pool.topic.clone()));
            let lost = publisher.as_ref().and_then(|key| owed.remove(key)).unwrap_or(0).saturating_add(lost);
            let time = number(columns.times, row).or_else(|| number(columns.received, row));
            if columns.events.value(row) == "removed"
                && pool.medium.is_none()
                && let Some(hash) = number(columns.hashes, row)
                && let bytes = text(columns.bytes, row).map(str::to_owned)
                && remove(&mut found.pools, &names, &pool, (hash, bytes), (time, lost))
            {
                continue;
            }
            let mut id = |hash: Option<u64>, bytes: Option<&str>| {
                let next = names.len() as u32;
                hash.map(|hash| *names.entry((pool.clone(), hash, bytes.map(str::to_owned))).or_insert(next))
            };
            let block = id(number(columns.hashes, row), text(columns.bytes, row));
            let what = match (columns.events.value(row), block) {
                ("stored", Some(block)) => {
                    let parent = id(number(columns.parents, row), text(columns.parent_bytes, row));
                    Some(What::Stored { block, parent, is_first: columns.indices.value(row) == 0 })
                }
                ("removed", Some(block)) => Some(What::Removed { block }),
                ("cleared", _) => Some(What::Cleared),
                _ => None,
            };
            match what {
                None => {
                    found.ignored += 1;
                    owed.extend(publisher.map(|key| (key, lost)));
                }
                Some(What::Cleared) => clear(&mut found.pools, &pool, Event { time, lost, what: What::Cleared }),
                Some(what) => found.pools.entry(pool).or_default().push(Event { time, lost, what }),
            }
        }
    }
    found.blocks = names.len() as u32;
    Ok(found)
}

/// Messages that never came, by the number of the row that shows it, from 0.
fn lost(batches: &[RecordBatch]) -> Result<BTreeMap<u64, u64>> {
    let mut streams: BTreeMap<(u32, Option<u32>, Option<String>), Stream<u64>> = BTreeMap::new();
    let mut found: BTreeMap<u64, u64> = BTreeMap::new();
    let mut add = |gap: &Gap<u64>| {
        let count = found.entry(gap.place).or_default();
        *count = count.saturating_add(gap.count());
    };
    let mut place = 0;
    for batch in batches {
        let columns = Columns::of(batch)?;
        for row in 0..batch.num_rows() {
            if let Some(seq) = number(columns.seqs, row) {
                let time = number(columns.times, row);
                let publisher = (
                    columns.sources.value(row),
                    number(columns.ranks, row),
                    text(columns.topics, row).map(str::to_owned),
                );
                match streams.entry(publisher) {
                    Entry::Vacant(entry) => {
                        entry.insert(Stream::new(seq, time));
                    }
                    // Rows of one message repeat its number, which changes nothing.
                    Entry::Occupied(mut entry) => {
                        entry.get_mut().follow(seq, time, place, &mut add);
                    }
                }
            }
            place += 1;
        }
    }
    streams.into_values().flat_map(Stream::into_gaps).for_each(|gap| add(&gap));
    Ok(found)
}

/// Removes a block from every medium that has had it; whether one has.
fn remove(
    pools: &mut BTreeMap<Pool, Vec<Event>>,
    names: &HashMap<Name, u32>,
    meant: &Pool,
    (hash, bytes): (u64, Option<String>),
    (time, mut lost): (Option<i64>, u64),
) -> bool {
    let mut is_known = false;
    for (pool, events) in pools.iter_mut() {
        if pool.is_meant(meant)
            && let Some(&block) = names.get(&(pool.clone(), hash, bytes.clone()))
        {
            events.push(Event { time, lost, what: What::Removed { block } });
            (lost, is_known) = (0, true);
        }
    }
    is_known
}

/// Empties every pool of the rank that the event means.
fn clear(pools: &mut BTreeMap<Pool, Vec<Event>>, meant: &Pool, event: Event) {
    let mut lost = event.lost;
    for (pool, events) in pools.iter_mut() {
        let same_medium = meant.medium.is_none() || meant.medium == pool.medium;
        if pool.is_meant(meant) && same_medium {
            events.push(Event { lost, ..event });
            lost = 0;
        }
    }
}

struct Columns<'a> {
    sources: &'a arrow::array::UInt32Array,
    seqs: &'a arrow::array::UInt64Array,
    indices: &'a arrow::array::UInt32Array,
    times: &'a arrow::array::Int64Array,
    received: &'a arrow::array::Int64Array,
    events: &'a arrow::array::StringArray,
    hashes: &'a arrow::array::UInt64Array,
    bytes: &'a arrow::array::StringArray,
    parents: &'a arrow::array::UInt64Array,
    parent_bytes: &'a arrow::array::StringArray,
    mediums: &'a arrow::array::StringArray,
    groups: &'a arrow::array::UInt32Array,
    ranks: &'a arrow::array::UInt32Array,
    topics: &'a arrow::array::StringArray,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Self> {
        Ok(Self {
            sources: numbers::<UInt32Type>(batch, "source_id")?,
            seqs: numbers::<UInt64Type>(batch, "seq")?,
            indices: numbers::<UInt32Type>(batch, "block_index")?,
            times: numbers::<Int64Type>(batch, "time_ns")?,
            received: numbers::<Int64Type>(batch, "received_ns")?,
            events: texts(batch, "event")?,
            hashes: numbers::<UInt64Type>(batch, "block_hash")?,
            bytes: texts(batch, "block_hash_hex")?,
            parents: numbers::<UInt64Type>(batch, "parent_hash")?,
            parent_bytes: texts(batch, "parent_hash_hex")?,
            mediums: texts(batch, "medium")?,
            groups: numbers::<UInt32Type>(batch, "group_index")?,
            ranks: numbers::<UInt32Type>(batch, "rank")?,
            topics: texts(batch, "topic")?,
        })
    }

    fn pool(&self, row: usize) -> Pool {
        Pool {
            source: self.sources.value(row),
            topic: text(self.topics, row).map(str::to_owned),
            rank: number(self.ranks, row),
            medium: text(self.mediums, row).map(str::to_owned),
            group: number(self.groups, row),
        }
    }
}

/// The residency of every pool in up to `buckets` stretches of equally many events. The replay has `capacity` blocks,
/// or as many as the pool held at most.
pub fn residency(events: &Events, buckets: usize, capacity: Option<u64>) -> Vec<Residency> {
    let blocks = events.blocks as usize;
    let of = |(pool, events): (&Pool, &Vec<Event>)| {
        let size = events.len().div_ceil(buckets.max(1)).max(1);
        let mut found: Vec<Bucket> = Vec::new();
        let mut resident = BTreeSet::new();
        for (number, stretch) in events.chunks(size).enumerate() {
            found.push(actual(number as u32, stretch, &mut resident));
        }
        let capacity = capacity.unwrap_or_else(|| found.iter().map(|bucket| bucket.peak).max().unwrap_or(0));
        let mut replay = Replay::new(usize::try_from(capacity).unwrap_or(usize::MAX), blocks);
        for (bucket, stretch) in found.iter_mut().zip(events.chunks(size)) {
            replay.stretch(stretch, bucket);
        }
        Residency { pool: pool.clone(), capacity, buckets: found }
    };
    events.pools.iter().map(of).collect()
}

/// What the engine says of one stretch.
fn actual(number: u32, stretch: &[Event], resident: &mut BTreeSet<u32>) -> Bucket {
    let mut bucket = Bucket { number, peak: resident.len() as u64, ..Bucket::default() };
    for event in stretch {
        bucket.first_ns = bucket.first_ns.or(event.time);
        bucket.last_ns = event.time.or(bucket.last_ns);
        bucket.lost += event.lost;
        match event.what {
            What::Stored { block, .. } if resident.insert(block) => bucket.stored += 1,
            What::Stored { .. } => bucket.stored_again += 1,
            What::Removed { block } if resident.remove(&block) => bucket.removed += 1,
            What::Removed { .. } => bucket.removed_unknown += 1,
            What::Cleared => {
                bucket.cleared += resident.len() as u64;
                resident.clear();
            }
        }
        bucket.peak = bucket.peak.max(resident.len() as u64);
    }
    bucket.resident = resident.len() as u64;
    bucket
}

/// The same pool under LRU.
struct Replay {
    cache: Lru,
    parents: Vec<Option<u32>>,
    /// The walk that met a block last, so that a chain that bites its tail ends.
    met: Vec<u64>,
    walk: u64,
    chain: Vec<u32>,
}

impl Replay {
    fn new(capacity: usize, blocks: usize) -> Self {
        let mut cache = Lru::new(capacity);
        cache.grow(blocks);
        Self { cache, parents: vec![None; blocks], met: vec![0; blocks], walk: 0, chain: Vec::new() }
    }

    fn stretch(&mut self, stretch: &[Event], bucket: &mut Bucket) {
        for event in stretch {
            match event.what {
                What::Removed { .. } => {}
                What::Cleared => {
                    self.cache.clear();
                }
                What::Stored { block, parent, is_first } => {
                    if let Some(known) = self.parents.get_mut(block as usize) {
                        *known = parent;
                    }
                    if is_first {
                        self.ancestors(block);
                        while let Some(ancestor) = self.chain.pop() {
                            self.touch(ancestor, bucket);
                        }
                    }
                    self.touch(block, bucket);
                }
            }
        }
        bucket.replayed_resident = self.cache.len() as u64;
    }

    /// Puts the ancestors of a block on the chain, the root last.
    fn ancestors(&mut self, block: u32) {
        self.walk += 1;
        self.met[block as usize] = self.walk;
        let mut at = block;
        while let Some(parent) = self.parents[at as usize].filter(|&parent| self.met[parent as usize] != self.walk) {
            self.met[parent as usize] = self.walk;
            self.chain.push(parent);
            at = parent;
        }
    }

    fn touch(&mut self, block: u32, bucket: &mut Bucket) {
        bucket.replayed_references += 1;
        match self.cache.touch(block) {
            Met::Hit => bucket.replayed_hits += 1,
            Met::Miss | Met::Bypass => {}
            Met::Eviction(_) => bucket.replayed_evictions += 1,
        }
    }
}
