//! Rows of `requests` and `context_segments` on their way into record batches, for any adapter.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Builder, ListBuilder, RecordBatch, StringBuilder, UInt32Array, UInt32Builder,
    UInt64Array, UInt64Builder,
};
use engine::error::Result;
use engine::schema::canonical::{CONTEXT_SEGMENTS, REQUESTS};
use engine::schema::{list_u32, list_u64, list_u64_of};

use super::sink::Sink;
use super::sparse::Sparse;

/// The most rows of a batch.
const ROWS: usize = 64 << 10;

/// The most list entries of a batch, but for one row: a batch of long prompts is as large as one of short prompts, and both
/// stay in the cache until they are written.
const ENTRIES: usize = 1 << 17;

/// One request, as an adapter knows it; what it does not know is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Request<'a> {
    pub(super) source_key: Option<&'a str>,
    pub(super) session_id: Option<&'a str>,
    pub(super) turn: Option<u32>,
    /// Local id of an earlier request of the same source.
    pub(super) parent: Option<u64>,
    pub(super) tenant: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) kind: Option<&'a str>,
    pub(super) arrival_ns: Option<i64>,
    pub(super) delay_ns: Option<i64>,
    pub(super) prompt_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) block_tokens: Option<u32>,
    pub(super) block_hashes: Option<&'a [u64]>,
    /// The status if it is neither `ok` nor `no_output`, which follow from the output.
    pub(super) status: Option<&'a str>,
    pub(super) prompt_token_ids: Option<&'a [u32]>,
    pub(super) output_token_ids: Option<&'a [u32]>,
    pub(super) measured_ttft_ns: Option<i64>,
    pub(super) measured_tpot_ns: Option<i64>,
    pub(super) measured_e2e_ns: Option<i64>,
    pub(super) measured_hit_tokens: Option<u32>,
}

/// A piece of a request's context.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) kind: &'a str,
    pub(super) tokens: u32,
    pub(super) born_turn: Option<u32>,
}

/// Builders of `requests`; ids count from 0 within the source.
pub(super) struct Requests {
    /// Requests that were handed on.
    before: u64,
    texts: [Sparse<StringBuilder>; 5],
    status: StringBuilder,
    turn: Sparse<UInt32Builder>,
    parent: Sparse<UInt64Builder>,
    times: [Sparse<Int64Builder>; 5],
    prompt: Vec<u32>,
    output: Vec<u32>,
    block_tokens: Sparse<UInt32Builder>,
    hit: Sparse<UInt32Builder>,
    hashes: Sparse<ListBuilder<UInt64Builder>>,
    token_ids: [Sparse<ListBuilder<UInt32Builder>>; 2],
    entries: usize,
    segments: Segments,
    /// Whether the rows of the file are something else, and requests only follow from them.
    beside: bool,
}

/// Builders of `context_segments`.
struct Segments {
    request: UInt64Builder,
    position: UInt32Builder,
    id: StringBuilder,
    kind: StringBuilder,
    tokens: UInt32Builder,
    born: UInt32Builder,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            before: 0,
            texts: std::array::from_fn(|_| Sparse::new(StringBuilder::new())),
            status: StringBuilder::new(),
            turn: Sparse::new(UInt32Builder::new()),
            parent: Sparse::new(UInt64Builder::new()),
            times: std::array::from_fn(|_| Sparse::new(Int64Builder::new())),
            prompt: Vec::new(),
            output: Vec::new(),
            block_tokens: Sparse::new(UInt32Builder::new()),
            hit: Sparse::new(UInt32Builder::new()),
            hashes: Sparse::new(list_u64()),
            token_ids: [Sparse::new(list_u32()), Sparse::new(list_u32())],
            entries: 0,
            segments: Segments {
                request: UInt64Builder::new(),
                position: UInt32Builder::new(),
                id: StringBuilder::new(),
                kind: StringBuilder::new(),
                tokens: UInt32Builder::new(),
                born: UInt32Builder::new(),
            },
            beside: false,
        }
    }

    /// Requests that follow from the rows of a file and are none of them.
    pub(super) fn beside() -> Self {
        Self { beside: true, ..Self::new() }
    }

    /// Adds a request and hands a full batch on; gives the request's local id.
    pub(super) fn push(&mut self, request: &Request<'_>, segments: &[Segment<'_>], sink: &mut Sink<'_>) -> Result<u64> {
        let id = self.before + self.prompt.len() as u64;
        let texts = [request.source_key, request.session_id, request.tenant, request.model, request.kind];
        for (builder, text) in self.texts.iter_mut().zip(texts) {
            builder.push_text(text);
        }
        let plain = if request.output_tokens == 0 { "no_output" } else { "ok" };
        self.status.append_value(request.status.unwrap_or(plain));
        self.turn.push(request.turn);
        self.parent.push(request.parent);
        let times = [
            request.arrival_ns,
            request.delay_ns,
            request.measured_ttft_ns,
            request.measured_tpot_ns,
            request.measured_e2e_ns,
        ];
        for (builder, time) in self.times.iter_mut().zip(times) {
            builder.push(time);
        }
        self.prompt.push(request.prompt_tokens);
        self.output.push(request.output_tokens);
        self.block_tokens.push(request.block_tokens);
        self.hit.push(request.measured_hit_tokens);
        self.entries += segments.len();
        self.entries += self.hashes.push_list(request.block_hashes);
        for (builder, ids) in self.token_ids.iter_mut().zip([request.prompt_token_ids, request.output_token_ids]) {
            self.entries += builder.push_list(ids);
        }
        self.segments.push(id, segments);
        if self.prompt.len() >= ROWS || self.entries >= ENTRIES {
            self.flush(sink)?;
        }
        Ok(id)
    }

    /// Adds the segments of a request that was pushed without them.
    pub(super) fn add_segments(&mut self, id: u64, segments: &[Segment<'_>]) {
        self.entries += segments.len();
        self.segments.push(id, segments);
    }

    /// Hands on what is left.
    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let rows = self.prompt.len();
        let ids = UInt64Array::from_iter_values(self.before..self.before + rows as u64);
        self.before += rows as u64;
        let source_ids = UInt32Array::from_value(sink.source_id(), rows);
        let [source_key, session_id, tenant, model, kind] = self.texts.each_mut().map(Sparse::finish);
        let [arrival, delay, ttft, tpot, e2e] = self.times.each_mut().map(Sparse::finish);
        let hashes = self.hashes.finish();
        let entries = hashes.as_list::<i32>().values().len();
        // The next batch finds the room that this one took: growing would copy it.
        self.hashes = Sparse::new(list_u64_of(entries));
        let [prompt_ids, output_ids] = self.token_ids.each_mut().map(Sparse::finish);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(ids),
            Arc::new(source_ids),
            source_key,
            session_id,
            self.turn.finish(),
            self.parent.finish(),
            tenant,
            model,
            kind,
            arrival,
            delay,
            Arc::new(UInt32Array::from(std::mem::replace(&mut self.prompt, Vec::with_capacity(rows)))),
            Arc::new(UInt32Array::from(std::mem::replace(&mut self.output, Vec::with_capacity(rows)))),
            self.block_tokens.finish(),
            hashes,
            Arc::new(self.status.finish()),
            prompt_ids,
            output_ids,
            ttft,
            tpot,
            e2e,
            self.hit.finish(),
        ];
        self.entries = 0;
        let batch = RecordBatch::try_new(REQUESTS.arrow(), columns)?;
        if self.beside {
            sink.push_detail(&REQUESTS, batch)?;
        } else {
            sink.push(&REQUESTS, batch)?;
        }
        self.segments.flush(sink)
    }
}

impl Segments {
    fn push(&mut self, request: u64, segments: &[Segment<'_>]) {
        for (position, segment) in (0..).zip(segments) {
            self.request.append_value(request);
            self.position.append_value(position);
            self.id.append_option(segment.id);
            self.kind.append_value(segment.kind);
            self.tokens.append_value(segment.tokens);
            self.born.append_option(segment.born_turn);
        }
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.request.finish()),
            Arc::new(self.position.finish()),
            Arc::new(self.id.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.tokens.finish()),
            Arc::new(self.born.finish()),
        ];
        sink.push_detail(&CONTEXT_SEGMENTS, RecordBatch::try_new(CONTEXT_SEGMENTS.arrow(), columns)?)
    }
}
