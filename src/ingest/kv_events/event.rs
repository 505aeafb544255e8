//! One event in either form: a list that begins with its name, or an object with `type`.

use std::borrow::Cow;

use super::super::block_events::Hash;
use super::super::problem::Bad;
use super::super::value::{Node, Value};
use super::hash;

/// An event as it is decoded.
#[derive(Default)]
pub(super) struct Event<'n> {
    /// stored, removed or cleared.
    pub(super) kind: &'static str,
    pub(super) hashes: Vec<Hash>,
    pub(super) parent: Option<Hash>,
    pub(super) tokens: Tokens,
    pub(super) block_tokens: Option<u32>,
    pub(super) medium: Option<&'n str>,
    pub(super) lora: Option<Cow<'n, str>>,
    pub(super) salt: Option<Cow<'n, str>>,
    pub(super) group: Option<u32>,
    pub(super) attention: Option<&'n str>,
    /// Keys of the format that hold something and have no column.
    pub(super) not_stored: Vec<&'static str>,
    /// Keys that are not of the format.
    pub(super) unknown: Vec<String>,
}

/// The token ids of an event.
#[derive(Default)]
pub(super) enum Tokens {
    #[default]
    None,
    Ids(Vec<u32>),
    /// Two ids for each position, as speculative decoding sends them.
    Pairs,
}

/// The fields of `BlockStored` behind its name, in the order in which they were added.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];

/// Those of `BlockRemoved`.
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Reads an event.
pub(super) fn parse<'n>(node: &'n Node<'_>) -> Result<Event<'n>, Bad> {
    let mut event = Event::default();
    match &node.value {
        Value::List(list) => {
            let (name, fields) =
                list.split_first().ok_or_else(|| node.bad("missing_value", "an event that begins with its name"))?;
            event.kind = kind(name)?;
            let names: &[&str] = match event.kind {
                "stored" => &STORED,
                "removed" => &REMOVED,
                _ => &[],
            };
            for (at, field) in fields.iter().enumerate() {
                match (names.get(at), &field.value) {
                    (_, Value::Map(_)) => event.field("metadata", field)?,
                    (Some(name), _) => event.field(name, field)?,
                    (None, _) if field.is_empty() => {}
                    (None, _) => event.unknown.push(format!("position {} of an event", at + 1)),
                }
            }
        }
        Value::Map(map) => {
            let name = map.iter().find(|(key, _)| key == "type");
            let (_, name) = name.ok_or_else(|| node.bad("missing_key", "an event with the key `type`"))?;
            event.kind = kind(name)?;
            for (key, field) in map.iter().filter(|(key, _)| key != "type") {
                event.field(key, field)?;
            }
        }
        _ => return Err(node.bad("wrong_type", "an event as a list or an object")),
    }
    event.check(node)?;
    Ok(event)
}

fn kind(node: &Node<'_>) -> Result<&'static str, Bad> {
    match &node.value {
        Value::Text(text) if text == "BlockStored" => Ok("stored"),
        Value::Text(text) if text == "BlockRemoved" => Ok("removed"),
        Value::Text(text) if text == "AllBlocksCleared" => Ok("cleared"),
        _ => Err(node.bad("unknown_event", "`BlockStored`, `BlockRemoved` or `AllBlocksCleared`")),
    }
}

impl<'n> Event<'n> {
    fn field(&mut self, name: &str, node: &'n Node<'_>) -> Result<(), Bad> {
        match name {
            "block_hashes" => self.hashes = node.list("`block_hashes`")?.iter().map(hash).collect::<Result<_, _>>()?,
            "parent_block_hash" => self.parent = (!node.is_null()).then(|| hash(node)).transpose()?,
            "token_ids" => self.tokens = tokens(node)?,
            "block_size" => self.block_tokens = node.maybe_u32("`block_size`")?,
            "medium" => self.medium = node.maybe_text("`medium`")?,
            // The name is the better one, in whatever order they come.
            "lora_id" => self.lora = self.lora.take().or(node.maybe_id("`lora_id`")?),
            "lora_name" => self.lora = node.maybe_text("`lora_name`")?.map(Cow::Borrowed).or(self.lora.take()),
            "group_idx" => self.group = node.maybe_u32("`group_idx`")?,
            "kv_cache_spec_kind" => self.attention = node.maybe_text("`kv_cache_spec_kind`")?,
            "cache_salt" => self.salt = node.maybe_id("`cache_salt`")?,
            "metadata" if matches!(node.value, Value::Map(_)) => {
                for (key, field) in node.map("`metadata`")? {
                    if key == "cache_salt" {
                        self.salt = field.maybe_id("`cache_salt`")?;
                    } else {
                        self.other(key, field);
                    }
                }
            }
            other => self.other(other, node),
        }
        Ok(())
    }

    /// A key that has no column.
    fn other(&mut self, name: &str, node: &Node<'_>) {
        const KNOWN: [&str; 4] = ["extra_keys", "kv_cache_spec_sliding_window", "session_id", "metadata"];
        if node.is_empty() {
            return;
        }
        match KNOWN.iter().find(|known| **known == name) {
            Some(known) => self.not_stored.push(known),
            None => self.unknown.push(name.to_owned()),
        }
    }

    fn check(&self, node: &Node<'_>) -> Result<(), Bad> {
        if self.kind == "stored" && (self.block_tokens.unwrap_or(0) == 0) {
            return Err(node.bad("missing_key", "a `BlockStored` with a `block_size` of at least 1"));
        }
        let is_hashed = match &node.value {
            Value::List(list) => list.len() > 1,
            Value::Map(map) => map.iter().any(|(key, _)| key == "block_hashes"),
            _ => false,
        };
        if self.kind != "cleared" && !is_hashed {
            return Err(node.bad("missing_key", "an event with `block_hashes`"));
        }
        Ok(())
    }
}

/// Token ids, or pairs of them.
fn tokens(node: &Node<'_>) -> Result<Tokens, Bad> {
    if node.is_null() {
        return Ok(Tokens::None);
    }
    let list = node.list("`token_ids`")?;
    if list.first().is_some_and(|first| matches!(first.value, Value::List(_))) {
        for pair in list {
            if !matches!(pair.list("a pair of token ids")?, [_, _]) {
                return Err(pair.bad("wrong_type", "a pair of token ids"));
            }
        }
        return Ok(Tokens::Pairs);
    }
    list.iter().map(|id| id.u32("a token id")).collect::<Result<_, _>>().map(Tokens::Ids)
}
