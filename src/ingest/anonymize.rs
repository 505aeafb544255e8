//! Keyed hashes in the place of free text, for stores that leave the house.
//!
//! Replaced are the ids that people and systems choose: `source_key`, `session_id` and `tenant` of a request, the names
//! of context segments, salt and topic of a KV event (topics often name a host), text columns that only the file knows,
//! and the text of rows that could not be read. Models, kinds and numbers stay. The same text under the same key
//! becomes the same id, in any table and any store, so that sessions and shared segments still match; without the key
//! it cannot be guessed at by trying names.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use engine::error::{Error, Result};
use engine::schema::{Table, canonical, captured};
use sha2::{Digest, Sha256};

use super::sink::{LogEntry, Severity};
use crate::store::hex;

/// Columns of text that are replaced, by table.
const COLUMNS: [(&str, &[&str]); 3] = [
    (canonical::REQUESTS.name, &["source_key", "session_id", "tenant"]),
    (canonical::CONTEXT_SEGMENTS.name, &["segment_id"]),
    (captured::BLOCK_EVENTS.name, &["salt", "topic"]),
];

/// Columns that quote the file.
const QUOTES: [&str; 2] = ["found", "raw"];

/// The secret of the ids, hashed to a fixed length, so that key and text cannot run into each other.
#[derive(Debug, Clone)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// The key of this text.
    ///
    /// # Errors
    /// An empty text: everybody knows it.
    pub(super) fn new(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::usage("expected a key with `--anonymize`, found an empty one")
                .hint("any text will do; keep it to get the same ids again"));
        }
        Ok(Self(Sha256::digest(text.as_bytes()).into()))
    }

    /// The first 64 bits of SHA-256 over the key's SHA-256 and the text, in hex.
    fn id(&self, text: &str) -> String {
        let digest = Sha256::new().chain_update(self.0).chain_update(text.as_bytes()).finalize();
        hex(&digest[..8])
    }
}

/// The batch without free text, and how many texts were replaced.
pub(super) fn anonymize(table: &Table, batch: &RecordBatch, key: &Key) -> Result<(RecordBatch, u64)> {
    let named = COLUMNS.iter().find(|(name, _)| *name == table.name).map_or(&[][..], |(_, columns)| *columns);
    let rejects = table.name == canonical::REJECTS.name;
    let schema = batch.schema();
    let mut replaced = 0;
    let columns: Vec<ArrayRef> = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| {
            let foreign = table.column(field.name()).is_none() && *field.data_type() == DataType::Utf8;
            let Some(texts) = column.as_string_opt::<i32>() else { return column.clone() };
            if named.contains(&field.name().as_str()) || foreign {
                replaced += (texts.len() - texts.null_count()) as u64;
                let ids: StringArray = texts.iter().map(|text| text.map(|text| key.id(text))).collect();
                Arc::new(ids)
            } else if rejects && QUOTES.contains(&field.name().as_str()) {
                replaced += (texts.len() - texts.null_count()) as u64;
                let hidden: StringArray = texts.iter().map(|text| text.map(|_| "not kept: anonymized")).collect();
                Arc::new(hidden)
            } else {
                column.clone()
            }
        })
        .collect();
    Ok((RecordBatch::try_new(schema, columns)?, replaced))
}

/// What the log says of it.
pub(super) fn log_entry(replaced: u64) -> LogEntry {
    LogEntry {
        severity: Severity::Info,
        code: "anonymized",
        count: replaced,
        first_line: None,
        first_byte: None,
        message: "free-text ids were replaced by keyed hashes".to_owned(),
        advice: Some("the same key gives the same ids again"),
    }
}

#[cfg(test)]
mod tests;
