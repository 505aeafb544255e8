//! Rows of `block_events` on their way into record batches, for any adapter of an engine's KV events.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int64Builder, ListBuilder, RecordBatch, StringBuilder, UInt32Array, UInt32Builder, UInt64Builder,
};
use engine::error::Result;
use engine::schema::captured::BLOCK_EVENTS;
use engine::schema::list_u32;

use super::sink::Sink;
use super::sparse::Sparse;
use crate::store::hex;

/// The most rows of a batch.
const ROWS: usize = 64 << 10;

/// The most token ids of a batch.
const ENTRIES: usize = 1 << 20;

/// The most bytes of text in a batch: topics and salts are repeated in each row.
const TEXT_BYTES: usize = 16 << 20;

/// The name of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hash {
    /// A number of 64 bits; a signed one bit by bit.
    Number(u64),
    /// A digest, at least one byte.
    Bytes(Vec<u8>),
}

impl Hash {
    /// The number, or the first eight bytes of a digest, big-endian.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(bytes) => bytes.iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte)),
        }
    }

    /// A digest in hex.
    fn hex(&self) -> Option<String> {
        match self {
            Self::Number(_) => None,
            Self::Bytes(bytes) => Some(hex(bytes)),
        }
    }
}

/// What is the same for all events of a message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Message<'a> {
    pub(super) seq: Option<u64>,
    pub(super) time_ns: Option<i64>,
    pub(super) received_ns: Option<i64>,
    pub(super) rank: Option<u32>,
    pub(super) topic: Option<&'a str>,
}

/// What is the same for all blocks of an event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Event<'a> {
    /// Position within its message, from 0.
    pub(super) index: u32,
    /// stored, removed, cleared, updated or created.
    pub(super) kind: &'a str,
    pub(super) block_tokens: Option<u32>,
    pub(super) medium: Option<&'a str>,
    pub(super) lora: Option<&'a str>,
    pub(super) salt: Option<&'a str>,
    pub(super) group_index: Option<u32>,
    pub(super) attention: Option<&'a str>,
}

/// A block of an event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Block<'a> {
    /// Position within its event, from 0.
    pub(super) index: u32,
    pub(super) hash: Option<&'a Hash>,
    pub(super) parent: Option<&'a Hash>,
    pub(super) token_ids: Option<&'a [u32]>,
}

/// Builders of `block_events`.
pub(super) struct BlockEvents {
    /// Position of the event and of the block.
    positions: [UInt32Builder; 2],
    event: StringBuilder,
    seq: Sparse<UInt64Builder>,
    /// Sent and received.
    times: [Sparse<Int64Builder>; 2],
    /// Of the block and of its parent.
    hashes: [Sparse<UInt64Builder>; 2],
    digests: [Sparse<StringBuilder>; 2],
    block_tokens: Sparse<UInt32Builder>,
    token_ids: Sparse<ListBuilder<UInt32Builder>>,
    /// Medium, lora, salt.
    texts: [Sparse<StringBuilder>; 3],
    group: Sparse<UInt32Builder>,
    attention: Sparse<StringBuilder>,
    rank: Sparse<UInt32Builder>,
    topic: Sparse<StringBuilder>,
    entries: usize,
    text_bytes: usize,
}

impl BlockEvents {
    pub(super) fn new() -> Self {
        Self {
            positions: [UInt32Builder::new(), UInt32Builder::new()],
            event: StringBuilder::new(),
            seq: Sparse::new(UInt64Builder::new()),
            times: std::array::from_fn(|_| Sparse::new(Int64Builder::new())),
            hashes: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            digests: std::array::from_fn(|_| Sparse::new(StringBuilder::new())),
            block_tokens: Sparse::new(UInt32Builder::new()),
            token_ids: Sparse::new(list_u32()),
            texts: std::array::from_fn(|_| Sparse::new(StringBuilder::new())),
            group: Sparse::new(UInt32Builder::new()),
            attention: Sparse::new(StringBuilder::new()),
            rank: Sparse::new(UInt32Builder::new()),
            topic: Sparse::new(StringBuilder::new()),
            entries: 0,
            text_bytes: 0,
        }
    }

    /// Adds a block of an event and hands a full batch on.
    pub(super) fn push(
        &mut self,
        message: &Message<'_>,
        event: &Event<'_>,
        block: &Block<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        for (builder, position) in self.positions.iter_mut().zip([event.index, block.index]) {
            builder.append_value(position);
        }
        self.event.append_value(event.kind);
        self.seq.push(message.seq);
        for (builder, time) in self.times.iter_mut().zip([message.time_ns, message.received_ns]) {
            builder.push(time);
        }
        let named = [block.hash, block.parent];
        for ((number, digest), hash) in self.hashes.iter_mut().zip(&mut self.digests).zip(named) {
            number.push(hash.map(Hash::number));
            let hex = hash.and_then(Hash::hex);
            self.text_bytes += hex.as_ref().map_or(0, String::len);
            digest.push_text(hex.as_deref());
        }
        self.block_tokens.push(event.block_tokens);
        self.entries += self.token_ids.push_list(block.token_ids);
        for (builder, text) in self.texts.iter_mut().zip([event.medium, event.lora, event.salt]) {
            builder.push_text(text);
            self.text_bytes += text.map_or(0, str::len);
        }
        self.group.push(event.group_index);
        self.attention.push_text(event.attention);
        self.rank.push(message.rank);
        self.topic.push_text(message.topic);
        self.text_bytes += [event.attention, message.topic].into_iter().flatten().map(str::len).sum::<usize>();
        if self.rows() >= ROWS || self.entries >= ENTRIES || self.text_bytes >= TEXT_BYTES {
            self.flush(sink)?;
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.positions[0].values_slice().len()
    }

    /// Hands on what is left.
    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let source_ids = UInt32Array::from_value(sink.source_id(), self.rows());
        let [event_index, block_index] = self.positions.each_mut().map(UInt32Builder::finish);
        let [sent, received] = self.times.each_mut().map(Sparse::finish);
        let [hash, parent] = self.hashes.each_mut().map(Sparse::finish);
        let [hash_bytes, parent_bytes] = self.digests.each_mut().map(Sparse::finish);
        let [medium, lora, salt] = self.texts.each_mut().map(Sparse::finish);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(source_ids),
            self.seq.finish(),
            Arc::new(event_index),
            Arc::new(block_index),
            sent,
            received,
            Arc::new(self.event.finish()),
            hash,
            hash_bytes,
            parent,
            parent_bytes,
            self.block_tokens.finish(),
            self.token_ids.finish(),
            medium,
            lora,
            salt,
            self.group.finish(),
            self.attention.finish(),
            self.rank.finish(),
            self.topic.finish(),
        ];
        (self.entries, self.text_bytes) = (0, 0);
        sink.push(&BLOCK_EVENTS, RecordBatch::try_new(BLOCK_EVENTS.arrow(), columns)?)
    }
}
