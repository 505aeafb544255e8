//! KV cache events of vLLM and SGLang: which blocks were stored, removed or cleared.
//!
//! Both engines publish over `ZeroMQ`: a message is a topic, a sequence number, and a packed batch. There is no standard
//! file for these, so that kvtoll defines one, in two forms, and reads a third.
//!
//! **Frames**: the eight bytes `KVEVENT1`, then one `MessagePack` array for each message: sequence number, time of
//! receipt in nanoseconds since 1970 (or nil), topic, payload as it came. A subscriber in Python writes it so:
//!
//! ```text
//! out.write(b"KVEVENT1")
//! while True:
//!     topic, seq, payload = socket.recv_multipart()
//!     out.write(msgpack.packb([int.from_bytes(seq, "big"), time.time_ns(), topic.decode(), payload]))
//! ```
//!
//! **JSON lines** of the same; `payload` is the decoded batch, or the packed one in base64:
//!
//! ```text
//! {"seq":7,"recv_ns":1789095808838000000,"topic":"kv-events","payload":[1789095808.8378847,[{"type":"BlockRemoved","block_hashes":[15760518052499183552]}],0]}
//! ```
//!
//! **Plain batches**, one a line, without sequence numbers, in which lost messages cannot be told:
//!
//! ```text
//! [1.0, [["BlockStored", [123], null, [1, 2], 2, null, "GPU", {"cache_salt": "tenant-a"}]], null]
//! [1.0, [{"type": "BlockStored", "block_hashes": [123], "parent_block_hash": null, "token_ids": [1, 2], "block_size": 2, "lora_id": null, "medium": "GPU", "metadata": {"cache_salt": "tenant-a"}}], null]
//! ```
//!
//! A batch is its time in seconds, its events and, if there are several, the data-parallel rank; or an object with the
//! keys `ts`, `events`, `data_parallel_rank`. An event is a list that begins with its name, or an object with `type`;
//! both are told event by event, so that they may mix. The positional form grew at its end (medium, adapter's name,
//! extra keys, group, kind of attention, window), and trailing fields may be absent; SGLang puts an object with
//! `cache_salt` in.
//!
//! A row is one block of an event; `cleared` is a row without a block. The parent of a block is the block before it in
//! its event, that of the first is the event's parent. Hashes are numbers of 64 bits, signed ones kept bit by bit, or
//! digests of any length (in JSON: text in hex or base64), kept whole in `block_hash_hex`. Token ids are kept if
//! there are as many as the blocks hold; pairs of them, as speculative decoding sends, and other counts are logged. The
//! extra keys of blocks, the window of sliding attention and keys that are not listed here are not stored, and logged.
//!
//! Gaps in the sequence are lost messages and are reported with their number, repeated and reordered ones too. The end
//! marker of a replay (-1, without payload) is no row.
//!
//! Refused: a message that cannot be decoded, as one row; an event of an unknown name, without hashes, with a broken
//! number or hash, each as one row, while the other events of its message are kept. Damage of a file of frames ends it,
//! since the next frame cannot be found.

use std::borrow::Cow;

use engine::error::{Error, Result};

use super::block_events::{Block, BlockEvents, Event, Hash, Message};
use super::problem::{Bad, Problem};
use super::rows::{self, EMPTY_LINE, UNKNOWN_KEY, Watch};
use super::sequence::{Place, Streams};
use super::sink::{self, Severity, Sink};
use super::source::{Input, Line, Lines};
use super::time::{TimeUnit, decimal_ns};
use super::value::{self, Node, Value};
use super::walk;
use super::{Format, Head, Settings, Sniff};

mod base64;
mod event;
mod frames;

/// The adapter. One captured batch of vLLM was at hand, decoded, and examples of SGLang; no file of frames of an engine.
pub(super) static FORMAT: Format = Format {
    name: "kv_events",
    doc: "KV cache events of vLLM and SGLang, as packed frames or JSON lines",
    spec: "https://docs.vllm.ai/en/latest/api/vllm/distributed/kv_events/",
    verified: false,
    sniff,
    read,
};

const END_MARKER: sink::Event = sink::Event { severity: Severity::Info, code: "end_marker", advice: None };
const NO_EVENTS: sink::Event = sink::Event { severity: Severity::Info, code: "no_events", advice: None };
const NO_BLOCKS: sink::Event = sink::Event { severity: Severity::Info, code: "no_blocks", advice: None };
const NO_SEQUENCE: sink::Event = sink::Event {
    severity: Severity::Notice,
    code: "no_sequence",
    advice: Some("record the sequence numbers, or lost messages cannot be told"),
};
const TOKENS: sink::Event = sink::Event {
    severity: Severity::DataLoss,
    code: "token_ids",
    advice: Some("the token ids of such an event are not stored; its blocks are"),
};
const NOT_STORED: sink::Event =
    sink::Event { severity: Severity::DataLoss, code: "not_stored", advice: Some("there is no column for it") };
const HALVES: sink::Event = sink::Event {
    severity: Severity::Notice,
    code: "same_first_bytes",
    advice: Some("tell blocks by `block_hash_hex`, not by `block_hash`"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    if head.bytes.starts_with(frames::MAGIC) {
        return Sniff::Yes;
    }
    if head.binary.is_some() {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    let has = |text: &str| memchr::memmem::find(head.bytes, text.as_bytes()).is_some();
    let named = |quote: char| {
        ["BlockStored", "BlockRemoved", "AllBlocksCleared"].iter().any(|name| has(&format!("{quote}{name}{quote}")))
    };
    if line.starts_with(b"{") {
        let envelope = walk::has_keys(line, &["seq", "payload"]);
        let batch = walk::has_keys(line, &["ts", "events"]) && named('"');
        return if envelope || batch { Sniff::Yes } else { Sniff::No };
    }
    let is_batch = line.strip_prefix(b"[").is_some_and(|rest| {
        let rest = rest.trim_ascii_start();
        rest.first().is_some_and(u8::is_ascii_digit) && memchr::memchr(b'[', rest).is_some()
    });
    match (is_batch, named('"'), named('\'')) {
        (true, true, _) => Sniff::Yes,
        (true, _, true) => Sniff::Nearly("batches are Python's repr; write them with `json.dumps`".to_owned()),
        _ if has("Received event batch at") => {
            Sniff::Nearly("this is a subscriber's printed output; write the batches with `json.dumps`".to_owned())
        }
        _ => Sniff::No,
    }
}

/// What is read, and where it goes.
struct Reader<'p> {
    path: &'p str,
    rows: BlockEvents,
    streams: Streams,
    watch: Watch,
    /// The latest instant.
    latest_ns: Option<i64>,
    /// The block size, and whether it is the same everywhere.
    block_tokens: Option<u32>,
    block_tokens_vary: bool,
    digests: Digests,
}

/// A message of a file, before its payload is decoded.
#[derive(Debug, Clone, Copy, Default)]
struct Envelope<'a> {
    seq: Option<u64>,
    received_ns: Option<i64>,
    topic: Option<&'a str>,
}

/// A batch.
struct Batch<'n, 'a> {
    time: Option<(i64, bool)>,
    rank: Option<u32>,
    events: &'n [Node<'a>],
    unknown: Vec<String>,
}

/// Makes a problem of what is wrong with a message or an event.
type Tell<'f> = dyn Fn(Bad) -> Problem + 'f;

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    if options.time_unit.is_some_and(|unit| unit != TimeUnit::S) || options.block_tokens.is_some() {
        return Err(Error::usage("expected no block size and no time unit but `s` with format `kv_events`, found one")
            .hint("batches have seconds, and events name the size of their blocks"));
    }
    let lines = rows::lines(path, body)?;
    let mut reader = Reader {
        path,
        rows: BlockEvents::new(),
        streams: Streams::default(),
        watch: Watch::new(),
        latest_ns: None,
        block_tokens: None,
        block_tokens_vary: false,
        digests: Digests::default(),
    };
    if lines.peek().starts_with(frames::MAGIC) {
        frames::read(&mut reader, lines, sink)?;
    } else {
        reader.lines(lines, sink)?;
    }
    reader.rows.flush(sink)?;
    reader.streams.finish(sink);
    let epoch = reader.latest_ns.is_some_and(|ns| ns > 1_000_000_000_000_000_000);
    Ok(Settings {
        time_unit: Some("s"),
        clock: Some(if epoch { "epoch" } else { "trace_start" }),
        block_tokens: reader.block_tokens.filter(|_| !reader.block_tokens_vary),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        ..Settings::default()
    })
}

impl Reader<'_> {
    fn lines(&mut self, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
        while let Some(line) = lines.next_line()? {
            if line.is_blank() {
                sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
                continue;
            }
            let path = self.path;
            let tell = |bad: Bad| Problem::in_line(path, line.bytes, line.number, line.offset, bad);
            match value::json(line.bytes) {
                Ok(node) => self.json(&node, line, &tell, sink)?,
                Err(bad) => {
                    sink.found(1);
                    sink.reject(tell(bad))?;
                }
            }
        }
        Ok(())
    }

    /// A line of JSON: an envelope or a batch.
    fn json(&mut self, node: &Node<'_>, line: Line<'_>, tell: &Tell<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let place = (Some(line.number), Some(line.offset));
        let (envelope, payload, unknown) = match envelope(node) {
            Ok(found) => found,
            Err(bad) => {
                sink.found(1);
                return sink.reject(tell(bad));
            }
        };
        log_unknown(&unknown, place, sink);
        let Some(payload) = payload else {
            sink.log(END_MARKER, "the end marker of a replay is no row", place.0, place.1);
            return Ok(());
        };
        let Value::Text(text) = &payload.value else {
            return self.message(envelope, Ok(payload), place, tell, sink);
        };
        // Where a value of the packed batch stands is told by where the payload does.
        let outside = |bad: Bad| tell(Bad { at: payload.at, ..bad });
        let Some(bytes) = base64::decode(text) else {
            let bad = payload.bad("wrong_type", "`payload` as a batch, or a packed one in base64");
            return self.message(envelope, Err(bad), place, tell, sink);
        };
        match value::packed(&bytes) {
            Ok(node) => self.message(envelope, Ok(&node), place, &outside, sink),
            Err(bad) => self.message(envelope, Err(bad), place, &outside, sink),
        }
    }

    /// A message whose payload is decoded, or what is wrong with it.
    fn message(
        &mut self,
        envelope: Envelope<'_>,
        payload: std::result::Result<&Node<'_>, Bad>,
        place: Place,
        tell: &Tell<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let topic = envelope.topic.unwrap_or_default();
        let batch = match payload.and_then(batch) {
            Ok(batch) => batch,
            Err(bad) => {
                if let Some(seq) = envelope.seq {
                    self.streams.unreadable(topic, seq);
                }
                sink.found(1);
                return sink.reject(tell(bad));
            }
        };
        log_unknown(&batch.unknown, place, sink);
        let time_ns = batch.time.map(|(ns, _)| ns);
        match envelope.seq {
            Some(seq) => self.streams.message((topic, batch.rank), seq, time_ns, place, sink),
            None => sink.log(NO_SEQUENCE, "a message has no sequence number", place.0, place.1),
        }
        if let Some(time) = batch.time {
            self.watch.time(sink, place.0.unwrap_or(0), place.1.unwrap_or(0), time);
            self.latest_ns = self.latest_ns.max(time_ns);
        }
        if batch.events.is_empty() {
            sink.log(NO_EVENTS, "a message without events is no row", place.0, place.1);
        }
        let Envelope { seq, received_ns, topic } = envelope;
        let message = Message { seq, time_ns, received_ns, rank: batch.rank, topic };
        for (index, node) in (0..).zip(batch.events) {
            match event::parse(node) {
                Ok(event) => self.event(&message, index, &event, place, sink)?,
                Err(bad) => {
                    sink.found(1);
                    sink.reject(tell(bad))?;
                }
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        message: &Message<'_>,
        index: u32,
        event: &event::Event<'_>,
        place: Place,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        log_unknown(&event.unknown, place, sink);
        for name in &event.not_stored {
            sink.log(NOT_STORED, &format!("`{name}` is not stored"), place.0, place.1);
        }
        let tokens = self.tokens(event, place, sink);
        let same = Event {
            index,
            kind: event.kind,
            block_tokens: event.block_tokens,
            medium: event.medium,
            lora: event.lora.as_deref(),
            salt: event.salt.as_deref(),
            group_index: event.group,
            attention: event.attention,
        };
        if event.kind == "cleared" {
            sink.found(1);
            return self.rows.push(message, &same, &Block::default(), sink);
        }
        if event.hashes.is_empty() {
            sink.log(NO_BLOCKS, "an event without blocks is no row", place.0, place.1);
        }
        sink.found(event.hashes.len() as u64);
        let mut parent = event.parent.as_ref();
        let mut tokens = tokens.chunks(event.block_tokens.unwrap_or(1).max(1) as usize);
        for (index, hash) in (0..).zip(&event.hashes) {
            if self.digests.clash(hash) {
                sink.log(HALVES, "two hashes have the same first eight bytes", place.0, place.1);
            }
            let block = Block { index, hash: Some(hash), parent, token_ids: tokens.next() };
            self.rows.push(message, &same, &block, sink)?;
            parent = (event.kind == "stored").then_some(hash);
        }
        Ok(())
    }

    /// The token ids of an event's blocks, if they can be kept.
    fn tokens<'e>(&mut self, event: &'e event::Event<'_>, place: Place, sink: &mut Sink<'_>) -> &'e [u32] {
        if let Some(size) = event.block_tokens {
            self.block_tokens_vary |= self.block_tokens.is_some_and(|known| known != size);
            self.block_tokens = Some(size);
        }
        let expected = event.hashes.len() as u64 * u64::from(event.block_tokens.unwrap_or(0));
        match &event.tokens {
            event::Tokens::None => &[],
            event::Tokens::Pairs => {
                sink.log(TOKENS, "an event has pairs of token ids", place.0, place.1);
                &[]
            }
            event::Tokens::Ids(ids) if ids.is_empty() || ids.len() as u64 == expected => ids,
            event::Tokens::Ids(_) => {
                sink.log(TOKENS, "an event has another number of token ids than its blocks hold", place.0, place.1);
                &[]
            }
        }
    }
}

/// Logs keys and fields that no column holds.
fn log_unknown(names: &[String], place: Place, sink: &mut Sink<'_>) {
    for name in names {
        let message = format!("the key {} is not part of the format", super::problem::quoted(name.as_bytes()));
        sink.log(UNKNOWN_KEY, &message, place.0, place.1);
    }
}

/// An envelope, its payload and its unknown keys. A batch is an envelope that says nothing; an end marker has no
/// payload.
type Opened<'n, 'a> = (Envelope<'n>, Option<&'n Node<'a>>, Vec<String>);

fn envelope<'n, 'a>(node: &'n Node<'a>) -> std::result::Result<Opened<'n, 'a>, Bad> {
    let bare = |node| Ok((Envelope::default(), Some(node), Vec::new()));
    let Value::Map(map) = &node.value else { return bare(node) };
    if map.iter().any(|(key, _)| key == "events") {
        return bare(node);
    }
    let (mut envelope, mut payload, mut unknown, mut end) = (Envelope::default(), None, Vec::new(), false);
    for (key, node) in map {
        match key.as_ref() {
            // A replay ends with -1, in 64 bits.
            "seq" if matches!(node.value, Value::Negative(-1) | Value::Unsigned(u64::MAX)) => end = true,
            "seq" if node.is_null() => {}
            "seq" => envelope.seq = Some(node.u64("`seq`")?),
            "recv_ns" => envelope.received_ns = received(node)?,
            "topic" => envelope.topic = node.maybe_text("`topic`")?,
            "payload" => payload = Some(node),
            _ if node.is_empty() => {}
            other => unknown.push(other.to_owned()),
        }
    }
    let payload = payload.ok_or_else(|| node.bad("missing_key", "the key `payload`, or `events`"))?;
    Ok((envelope, Some(payload).filter(|payload| !(end && payload.is_empty())), unknown))
}

/// When a message was received, or `null`.
fn received(node: &Node<'_>) -> std::result::Result<Option<i64>, Bad> {
    if node.is_null() {
        return Ok(None);
    }
    let value = i64::try_from(node.u64("the time of receipt")?);
    value.map(Some).map_err(|_| node.bad("out_of_range", "the time of receipt below 2^63 nanoseconds"))
}

/// Reads a batch: a list or an object.
fn batch<'n, 'a>(node: &'n Node<'a>) -> std::result::Result<Batch<'n, 'a>, Bad> {
    let (mut time, mut events, mut rank, mut unknown) = (None, None, None, Vec::new());
    match &node.value {
        Value::List(list) => {
            for (at, node) in list.iter().enumerate() {
                match at {
                    0 => time = Some(node),
                    1 => events = Some(node),
                    2 => rank = Some(node),
                    _ if node.is_empty() => {}
                    _ => unknown.push(format!("position {at} of a batch")),
                }
            }
        }
        Value::Map(map) => {
            for (key, node) in map {
                match key.as_ref() {
                    "ts" => time = Some(node),
                    "events" => events = Some(node),
                    "data_parallel_rank" => rank = Some(node),
                    _ if node.is_empty() => {}
                    other => unknown.push(other.to_owned()),
                }
            }
        }
        _ => return Err(node.bad("wrong_type", "a batch as a list: its time, its events, its rank")),
    }
    let events = events.ok_or_else(|| node.bad("missing_key", "a batch with its time and its events"))?;
    let time = match time.filter(|time| !time.is_null()) {
        None => None,
        Some(time) => {
            let text = time.number("the batch's time in seconds")?;
            let ns = decimal_ns(text.as_bytes(), TimeUnit::S);
            Some(ns.ok_or_else(|| time.bad("out_of_range", "the batch's time in s below 2^63 nanoseconds"))?)
        }
    };
    let rank = rank.map(|rank| rank.maybe_u32("the data-parallel rank")).transpose()?.flatten();
    Ok(Batch { time, rank, events: events.list("the batch's events")?, unknown })
}

/// A hash: a number, a digest, or in JSON the digest's text.
pub(super) fn hash(node: &Node<'_>) -> std::result::Result<Hash, Bad> {
    let digest = |bytes: Cow<'_, [u8]>| {
        let known = (1..=64).contains(&bytes.len()).then(|| Hash::Bytes(bytes.into_owned()));
        known.ok_or_else(|| node.bad("wrong_type", "a digest of 1 to 64 bytes"))
    };
    match &node.value {
        Value::Unsigned(value) => Ok(Hash::Number(*value)),
        Value::Negative(value) => Ok(Hash::Number(value.cast_unsigned())),
        Value::Bytes(bytes) => digest(Cow::Borrowed(bytes)),
        // Twenty digits or fewer are more likely a number in quotes.
        Value::Text(text) if text.len() > 20 || !text.bytes().all(|byte| byte.is_ascii_digit()) => {
            let bytes = base64::unhex(text).or_else(|| base64::decode(text));
            digest(Cow::Owned(bytes.ok_or_else(|| node.bad("wrong_type", "a digest in hex or base64"))?))
        }
        _ => Err(node.bad("wrong_type", "a hash as a whole number of 64 bits, or a digest")),
    }
}

/// Digests by their first eight bytes, as far as they can be remembered: those that meet in `block_hash` are told.
#[derive(Default)]
struct Digests {
    /// One digest for each place of a table of fixed size, by the hash's own bits.
    known: Vec<Option<Vec<u8>>>,
}

impl Digests {
    /// Places of the table.
    const PLACES: usize = 1 << 14;

    /// Whether another digest with the same first eight bytes was met among the latest.
    fn clash(&mut self, hash: &Hash) -> bool {
        let Hash::Bytes(bytes) = hash else { return false };
        if self.known.is_empty() {
            self.known.resize(Self::PLACES, None);
        }
        let place = hash.number() as usize % Self::PLACES;
        let Some(known) = self.known.get_mut(place) else { return false };
        let clash = known.as_ref().is_some_and(|known| known != bytes && known.get(..8) == bytes.get(..8));
        *known = Some(bytes.clone());
        clash
    }
}

#[cfg(test)]
mod tests;
