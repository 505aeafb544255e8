//! KV cache events of TensorRT-LLM, as `LLM.get_kv_cache_events` gives them: one JSON object a line, or a list of them, on
//! one line or printed over many (`indent=2`).
//!
//! ```text
//! {"event_id": 0, "data": {"type": "created", "num_blocks_per_cache_level": [101230, 0]}, "window_size": 2048}
//! {"event_id": 1, "data": {"type": "stored", "parent_hash": null, "blocks": [{"type": "stored_block", "block_hash": 4203099703668305365, "tokens": [{"type": "unique_token", "token_id": 1, "token_extra_id": 0}], "cache_level": 0, "priority": 35}]}, "window_size": 2048}
//! {"event_id": 2, "data": {"type": "removed", "block_hashes": [4203099703668305365]}, "window_size": 2048, "attention_dp_rank": 0}
//! {"event_id": 3, "data": {"type": "updated", "block_hash": 1, "cache_level": {"type": "event_diff", "old_value": 0, "new_value": 1}, "priority": null}}
//! ```
//!
//! A row is one block of an event; `created`, which says how many blocks there are, is a row without a block.
//! `event_id` is the sequence number, counted for each rank of attention data parallelism: gaps, repeats and disorder
//! are reported. There are no times. Cache level 0 is the pool in GPU memory and is kept as `GPU`, level 1 the one in
//! host memory, `CPU`. Blocks of another attention window are another pool, so that the window's size tells groups
//! apart and is kept in `group_index`. The parent of a block is the block before it in its event. The size of a block
//! is the number of its tokens.
//!
//! Priorities, numbers of blocks per level, token ids of other kinds than text, and keys that are not listed here are
//! not stored, and logged. Refused, as one row each: what is no JSON, and an event without `event_id`, with an unknown
//! type, or with a broken number or hash.

use engine::error::Result;

use super::block_events::{Block, BlockEvents, Event, Hash, Message};
use super::kv_events::hash;
use super::problem::{Bad, quoted};
use super::rows::{self, EMPTY_LINE, UNKNOWN_KEY};
use super::sequence::{Place, Streams};
use super::sink::{self, Severity, Sink};
use super::source::Input;
use super::value::{self, Node, Value};
use super::walk::{self, Record, Records};
use super::{Format, Head, Settings, Sniff};

/// The adapter. No sample was at hand; the form is that of the serializer in TensorRT-LLM's source.
pub(super) static FORMAT: Format = Format {
    name: "trtllm_events",
    doc: "KV cache events of TensorRT-LLM, as JSON lines",
    spec: "https://nvidia.github.io/TensorRT-LLM/features/kvcache.html",
    verified: false,
    sniff,
    read,
};

/// The most bytes of an event, or of a list of them: it is held in memory.
const LIMIT: usize = 256 << 20;

const NOT_STORED: sink::Event =
    sink::Event { severity: Severity::DataLoss, code: "not_stored", advice: Some("there is no column for it") };
const NO_BLOCKS: sink::Event = sink::Event { severity: Severity::Info, code: "no_blocks", advice: None };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    // What is printed over many lines begins with a bracket and nothing else.
    let printed = line.iter().all(|byte| matches!(byte, b'[' | b'{' | b' ' | b'\t'));
    let text = if printed { head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes) } else { line };
    let text = text.trim_ascii_start();
    let first = text.strip_prefix(b"[").unwrap_or(text).trim_ascii_start();
    if first.starts_with(b"{") && walk::has_keys(text, &["event_id", "data", "type"]) {
        return Sniff::Yes;
    }
    Sniff::No
}

struct Reader<'p> {
    path: &'p str,
    rows: BlockEvents,
    streams: Streams,
    block_tokens: Option<u32>,
    block_tokens_vary: bool,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    options.without_choice("trtllm_events", "its events have no times, and a block lists its tokens")?;
    let lines = rows::lines(path, body)?;
    let mut reader = Reader {
        path,
        rows: BlockEvents::new(),
        streams: Streams::default(),
        block_tokens: None,
        block_tokens_vary: false,
    };
    let mut records = Records::new(LIMIT);
    loop {
        let next = records.next(lines, path, &mut |line| {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
        });
        let Some(record) = next? else { break };
        match value::json(&record.bytes) {
            Ok(Node { value: Value::List(events), .. }) => {
                events.iter().try_for_each(|event| reader.take(event, &record, sink))?;
            }
            Ok(event) => reader.take(&event, &record, sink)?,
            Err(bad) => {
                sink.found(1);
                sink.reject(record.problem(path, bad))?;
            }
        }
    }
    reader.rows.flush(sink)?;
    reader.streams.finish(sink);
    Ok(Settings {
        block_tokens: reader.block_tokens.filter(|_| !reader.block_tokens_vary),
        hash_scope: Some("file"),
        id_kind: Some("prefix"),
        ..Settings::default()
    })
}

/// An event as it is decoded.
#[derive(Default)]
struct Decoded {
    seq: u64,
    rank: Option<u32>,
    window: Option<u32>,
    event: &'static str,
    blocks: Vec<Stored>,
    not_stored: Vec<&'static str>,
    unknown: Vec<String>,
}

/// A block of an event.
#[derive(Default)]
struct Stored {
    hash: Option<Hash>,
    parent: Option<Hash>,
    tokens: Option<Vec<u32>>,
    block_tokens: Option<u32>,
    level: Option<u32>,
    lora: Option<String>,
    salt: Option<String>,
}

impl Reader<'_> {
    fn take(&mut self, node: &Node<'_>, record: &Record, sink: &mut Sink<'_>) -> Result<()> {
        let place: Place = (Some(record.number), Some(record.offset));
        let event = match decode(node) {
            Ok(event) => event,
            Err(bad) => {
                sink.found(1);
                return sink.reject(record.problem(self.path, bad));
            }
        };
        self.streams.message(("", event.rank), event.seq, None, place, sink);
        for name in &event.not_stored {
            sink.log(NOT_STORED, &format!("`{name}` is not stored"), place.0, place.1);
        }
        for name in &event.unknown {
            let message = format!("the key {} is not part of the format", quoted(name.as_bytes()));
            sink.log(UNKNOWN_KEY, &message, place.0, place.1);
        }
        if event.blocks.is_empty() {
            sink.log(NO_BLOCKS, "an event without blocks is no row", place.0, place.1);
        }
        sink.found(event.blocks.len() as u64);
        let message = Message { seq: Some(event.seq), rank: event.rank, ..Message::default() };
        for (index, block) in (0..).zip(&event.blocks) {
            if let Some(size) = block.block_tokens {
                self.block_tokens_vary |= self.block_tokens.is_some_and(|known| known != size);
                self.block_tokens = Some(size);
            }
            let level = block.level.map(medium);
            let same = Event {
                kind: event.event,
                block_tokens: block.block_tokens,
                medium: level.as_deref(),
                lora: block.lora.as_deref(),
                salt: block.salt.as_deref(),
                group_index: event.window,
                ..Event::default()
            };
            let one = Block {
                index,
                hash: block.hash.as_ref(),
                parent: block.parent.as_ref(),
                token_ids: block.tokens.as_deref(),
            };
            self.rows.push(&message, &same, &one, sink)?;
        }
        Ok(())
    }
}

/// Where a cache level is.
fn medium(level: u32) -> String {
    match level {
        0 => "GPU".to_owned(),
        1 => "CPU".to_owned(),
        other => format!("level {other}"),
    }
}

fn decode(node: &Node<'_>) -> std::result::Result<Decoded, Bad> {
    let (mut event, mut seq, mut data) = (Decoded::default(), None, None);
    for (key, node) in node.map("an event")? {
        match key.as_ref() {
            "event_id" => seq = Some(node.u64("`event_id`")?),
            "data" => data = Some(node),
            "window_size" => event.window = node.maybe_u32("`window_size`")?,
            "attention_dp_rank" => event.rank = node.maybe_u32("`attention_dp_rank`")?,
            // How the hashes were made changes nothing about their identity within a file.
            "hash_algo" => {}
            _ if node.is_empty() => {}
            other => event.unknown.push(other.to_owned()),
        }
    }
    event.seq = seq.ok_or_else(|| node.bad("missing_key", "an event with the key `event_id`"))?;
    let data = data.ok_or_else(|| node.bad("missing_key", "an event with the key `data`"))?;
    let map = data.map("`data`")?;
    let kind = map.iter().find(|(key, _)| key == "type").map(|(_, kind)| kind);
    let kind = kind.ok_or_else(|| data.bad("missing_key", "`data` with the key `type`"))?;
    match kind.maybe_text("`type`")? {
        Some("created") => {
            event.event = "created";
            event.blocks.push(Stored::default());
            event.rest(map, &["num_blocks_per_cache_level"], &[]);
        }
        Some("stored") => event.stored(map, data)?,
        Some("removed") => {
            event.event = "removed";
            let hashes = key(map, "block_hashes").ok_or_else(|| data.bad("missing_key", "`block_hashes`"))?;
            for node in hashes.list("`block_hashes`")? {
                event.blocks.push(Stored { hash: Some(hash(node)?), ..Stored::default() });
            }
            event.rest(map, &[], &["block_hashes"]);
        }
        Some("updated") => {
            event.event = "updated";
            let named = key(map, "block_hash").ok_or_else(|| data.bad("missing_key", "`block_hash`"))?;
            let level = key(map, "cache_level").map(new_level).transpose()?.flatten();
            event.blocks.push(Stored { hash: Some(hash(named)?), level, ..Stored::default() });
            event.rest(map, &["priority"], &["block_hash", "cache_level"]);
        }
        _ => return Err(kind.bad("unknown_event", "`created`, `stored`, `removed` or `updated`")),
    }
    Ok(event)
}

/// The entries of an object.
type Map<'a> = [(std::borrow::Cow<'a, str>, Node<'a>)];

fn key<'n, 'a>(map: &'n Map<'a>, name: &str) -> Option<&'n Node<'a>> {
    map.iter().find(|(key, _)| key == name).map(|(_, node)| node)
}

/// The level after a change; it may not have changed.
fn new_level(node: &Node<'_>) -> std::result::Result<Option<u32>, Bad> {
    if node.is_null() {
        return Ok(None);
    }
    let level = key(node.map("`cache_level`")?, "new_value");
    level.ok_or_else(|| node.bad("missing_key", "`cache_level` with `new_value`"))?.maybe_u32("`new_value`")
}

impl Decoded {
    fn stored(&mut self, map: &Map<'_>, data: &Node<'_>) -> std::result::Result<(), Bad> {
        self.event = "stored";
        let parent = key(map, "parent_hash").filter(|node| !node.is_null());
        let mut parent = parent.map(hash).transpose()?;
        let blocks = key(map, "blocks").ok_or_else(|| data.bad("missing_key", "`blocks`"))?;
        for node in blocks.list("`blocks`")? {
            let mut block = self.block(node)?;
            block.parent = parent.take();
            parent.clone_from(&block.hash);
            self.blocks.push(block);
        }
        self.rest(map, &[], &["parent_hash", "blocks"]);
        Ok(())
    }

    fn block(&mut self, node: &Node<'_>) -> std::result::Result<Stored, Bad> {
        let map = node.map("a block")?;
        let mut block = Stored::default();
        for (name, value) in map {
            match name.as_ref() {
                "block_hash" => block.hash = Some(hash(value)?),
                "tokens" => {
                    let list = value.list("`tokens`")?;
                    block.block_tokens = u32::try_from(list.len()).ok().filter(|count| *count > 0);
                    block.tokens = self.tokens(list)?;
                }
                "cache_level" => block.level = value.maybe_u32("`cache_level`")?,
                "lora_id" => block.lora = value.maybe_id("`lora_id`")?.map(std::borrow::Cow::into_owned),
                "cache_salt" | "cache_salt_id" => {
                    block.salt = value.maybe_id("the salt")?.map(std::borrow::Cow::into_owned);
                }
                _ => {}
            }
        }
        let known = ["block_hash", "tokens", "cache_level", "lora_id", "cache_salt", "cache_salt_id"];
        self.rest(map, &["priority", "mm_keys"], &known);
        if block.hash.is_none() {
            return Err(node.bad("missing_key", "a block with `block_hash`"));
        }
        Ok(block)
    }

    /// Token ids; none if one of them stands for something else than text.
    fn tokens(&mut self, list: &[Node<'_>]) -> std::result::Result<Option<Vec<u32>>, Bad> {
        let (mut ids, mut plain) = (Vec::with_capacity(list.len()), true);
        for token in list {
            let id = match &token.value {
                Value::Map(map) => {
                    plain &= key(map, "token_extra_id").is_none_or(|extra| matches!(extra.value, Value::Unsigned(0)));
                    key(map, "token_id").ok_or_else(|| token.bad("missing_key", "a token with `token_id`"))?
                }
                _ => token,
            };
            ids.push(id.u32("a token id")?);
        }
        if !plain {
            self.not_stored.push("token_extra_id");
        }
        Ok(Some(ids).filter(|_| plain))
    }

    /// Notes keys that are not stored, and those that are unknown.
    fn rest(&mut self, map: &Map<'_>, not_stored: &[&'static str], known: &[&str]) {
        for (name, node) in map {
            if node.is_empty() || name == "type" || known.contains(&name.as_ref()) {
                continue;
            }
            match not_stored.iter().find(|one| **one == name.as_ref()) {
                Some(one) => self.not_stored.push(one),
                None => self.unknown.push(name.clone().into_owned()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
