//! Values of JSON and of `MessagePack` in one form, for adapters whose files hold the same messages in both.
//!
//! A value is read as a whole, so that there is a limit to how many a message may hold and how deep it may go. Numbers
//! keep their 64 bits; those with a fraction are kept as text, since a time must not go through floating point twice.

use std::borrow::Cow;

use rmp::Marker;

use super::json::Scan;
use super::problem::{Bad, quoted};
use super::walk;

/// How deep lists and maps may stand in each other.
const DEPTH: usize = 16;

/// The most values of a message.
const MOST: usize = 2 << 20;

/// The most entries of a map.
const ENTRIES: usize = 256;

/// A value, and where it stands: an offset in the line of JSON or in the packed bytes.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) at: usize,
    pub(super) value: Value<'a>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    /// A number that is none of these, as it is written; a packed one as the shortest text that gives it.
    Decimal(Cow<'a, str>),
    Text(Cow<'a, str>),
    Bytes(&'a [u8]),
    List(Vec<Node<'a>>),
    Map(Vec<(Cow<'a, str>, Node<'a>)>),
}

impl<'a> Node<'a> {
    /// A problem with it.
    pub(super) fn bad(&self, code: &'static str, expected: impl Into<String>) -> Bad {
        Bad { at: self.at, code, expected: expected.into(), found: self.shown() }
    }

    /// What it is, for a message.
    fn shown(&self) -> String {
        match &self.value {
            Value::Null => "`null`".to_owned(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Unsigned(value) => format!("`{value}`"),
            Value::Negative(value) => format!("`{value}`"),
            Value::Decimal(text) => quoted(text.as_bytes()),
            Value::Text(text) => format!("the text {}", quoted(text.as_bytes())),
            Value::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Value::List(list) => format!("a list of {}", list.len()),
            Value::Map(map) => format!("an object of {} keys", map.len()),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// Whether nothing is in it: `null`, an empty text or map, or a list of such.
    pub(super) fn is_empty(&self) -> bool {
        match &self.value {
            Value::Null => true,
            Value::Text(text) => text.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::List(list) => list.iter().all(Node::is_empty),
            _ => false,
        }
    }

    pub(super) fn list(&self, what: &str) -> Result<&[Node<'a>], Bad> {
        match &self.value {
            Value::List(list) => Ok(list),
            _ => Err(self.bad("wrong_type", format!("{what} as a list"))),
        }
    }

    pub(super) fn map(&self, what: &str) -> Result<&[(Cow<'a, str>, Node<'a>)], Bad> {
        match &self.value {
            Value::Map(map) => Ok(map),
            _ => Err(self.bad("wrong_type", format!("{what} as an object"))),
        }
    }

    pub(super) fn u64(&self, what: &str) -> Result<u64, Bad> {
        match self.value {
            Value::Unsigned(value) => Ok(value),
            _ => Err(self.bad("wrong_type", format!("{what} as a whole number from 0 to {}", u64::MAX))),
        }
    }

    pub(super) fn u32(&self, what: &str) -> Result<u32, Bad> {
        let value = if let Value::Unsigned(value) = self.value { u32::try_from(value).ok() } else { None };
        value.ok_or_else(|| self.bad("wrong_type", format!("{what} as a whole number from 0 to {}", u32::MAX)))
    }

    /// A whole number, or `null` for unknown.
    pub(super) fn maybe_u32(&self, what: &str) -> Result<Option<u32>, Bad> {
        if self.is_null() { Ok(None) } else { self.u32(what).map(Some) }
    }

    /// Text, or `null` for unknown.
    pub(super) fn maybe_text(&self, what: &str) -> Result<Option<&str>, Bad> {
        match &self.value {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text)),
            _ => Err(self.bad("wrong_type", format!("{what} as text"))),
        }
    }

    /// Text, a whole number as its digits, or `null` for unknown.
    pub(super) fn maybe_id(&self, what: &str) -> Result<Option<Cow<'_, str>>, Bad> {
        match &self.value {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(Cow::Borrowed(text))),
            Value::Unsigned(value) => Ok(Some(Cow::Owned(value.to_string()))),
            Value::Negative(value) => Ok(Some(Cow::Owned(value.to_string()))),
            _ => Err(self.bad("wrong_type", format!("{what} as text or a whole number"))),
        }
    }

    /// A number as it is written.
    pub(super) fn number(&self, what: &str) -> Result<Cow<'_, str>, Bad> {
        match &self.value {
            Value::Unsigned(value) => Ok(Cow::Owned(value.to_string())),
            Value::Decimal(text) => Ok(Cow::Borrowed(text)),
            _ => Err(self.bad("wrong_type", format!("{what} as a number of at least zero"))),
        }
    }
}

/// Reads a line of JSON that holds one value.
pub(super) fn json(line: &[u8]) -> Result<Node<'_>, Bad> {
    let mut scan = Scan::new(line);
    let mut left = MOST;
    let node = json_value(&mut scan, line, DEPTH, &mut left)?;
    scan.end()?;
    Ok(node)
}

fn json_value<'a>(scan: &mut Scan<'a>, line: &'a [u8], depth: usize, left: &mut usize) -> Result<Node<'a>, Bad> {
    let first = scan.peek();
    let at = scan.at();
    if depth == 0 {
        return Err(scan.bad("nested", format!("at most {DEPTH} lists and objects in each other")));
    }
    *left = left.checked_sub(1).ok_or_else(|| scan.bad("too_many", format!("at most {MOST} values")))?;
    let value = match first {
        Some(b'[') => {
            let mut list = Vec::new();
            walk::list(scan, "a value", &mut |scan| {
                list.push(json_value(scan, line, depth - 1, left)?);
                Ok(())
            })?;
            Value::List(list)
        }
        Some(b'{') => {
            let mut map: Vec<(Cow<'a, str>, Node<'a>)> = Vec::new();
            walk::object(scan, "an object", &mut |scan, key, key_at| {
                let key = String::from_utf8_lossy(key);
                if map.len() == ENTRIES || map.iter().any(|(known, _)| *known == key) {
                    return Err(scan.bad_from(
                        key_at,
                        "duplicate_key",
                        format!("each key once, and at most {ENTRIES}"),
                    ));
                }
                map.push((key, json_value(scan, line, depth - 1, left)?));
                Ok(())
            })?;
            Value::Map(map)
        }
        Some(b'"') => Value::Text(walk::text(scan, line, "a value")?),
        Some(b'0'..=b'9' | b'-') => number(scan.number("a number")?),
        _ => {
            scan.value()?;
            match first {
                Some(b't') => Value::Bool(true),
                Some(b'f') => Value::Bool(false),
                _ => Value::Null,
            }
        }
    };
    Ok(Node { at, value })
}

fn number(token: &[u8]) -> Value<'_> {
    let text = String::from_utf8_lossy(token);
    match (text.parse::<u64>(), text.parse::<i64>()) {
        (Ok(value), _) => Value::Unsigned(value),
        (_, Ok(value)) => Value::Negative(value),
        _ => Value::Decimal(text),
    }
}

/// Reads `MessagePack` that holds one value.
pub(super) fn packed(bytes: &[u8]) -> Result<Node<'_>, Bad> {
    let mut reader = Packed { bytes, at: 0, left: MOST };
    let node = reader.value(DEPTH)?;
    if reader.at < bytes.len() {
        return Err(reader.bad(reader.at, "extra_bytes", "the end of the message"));
    }
    Ok(node)
}

struct Packed<'a> {
    bytes: &'a [u8],
    at: usize,
    left: usize,
}

impl<'a> Packed<'a> {
    fn bad(&self, at: usize, code: &'static str, expected: impl Into<String>) -> Bad {
        let found =
            self.bytes.get(at).map_or("the end of the message".to_owned(), |byte| format!("the byte {byte:#04x}"));
        Bad { at, code, expected: expected.into(), found }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.bad(self.bytes.len(), "truncated", format!("{count} bytes more")))?;
        self.at += count;
        Ok(taken)
    }

    /// A big-endian number of up to eight bytes.
    fn unsigned(&mut self, count: usize) -> Result<u64, Bad> {
        Ok(self.take(count)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, count: usize) -> Result<usize, Bad> {
        self.unsigned(count).map(|value| value as usize)
    }

    fn value(&mut self, depth: usize) -> Result<Node<'a>, Bad> {
        let at = self.at;
        if depth == 0 {
            return Err(self.bad(at, "nested", format!("at most {DEPTH} lists and maps in each other")));
        }
        self.left =
            self.left.checked_sub(1).ok_or_else(|| self.bad(at, "too_many", format!("at most {MOST} values")))?;
        let marker = Marker::from_u8(self.unsigned(1)? as u8);
        let value = match marker {
            Marker::Null => Value::Null,
            Marker::False => Value::Bool(false),
            Marker::True => Value::Bool(true),
            Marker::FixPos(value) => Value::Unsigned(u64::from(value)),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => Value::Unsigned(self.unsigned(1)?),
            Marker::U16 => Value::Unsigned(self.unsigned(2)?),
            Marker::U32 => Value::Unsigned(self.unsigned(4)?),
            Marker::U64 => Value::Unsigned(self.unsigned(8)?),
            Marker::I8 => signed(i64::from(self.unsigned(1)? as u8 as i8)),
            Marker::I16 => signed(i64::from(self.unsigned(2)? as u16 as i16)),
            Marker::I32 => signed(i64::from(self.unsigned(4)? as u32 as i32)),
            Marker::I64 => signed(self.unsigned(8)? as i64),
            Marker::F32 => decimal(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            Marker::F64 => decimal(f64::from_bits(self.unsigned(8)?)),
            _ => self.sized(marker, at, depth)?,
        };
        Ok(Node { at, value })
    }

    /// A value with a length.
    fn sized(&mut self, marker: Marker, at: usize, depth: usize) -> Result<Value<'a>, Bad> {
        let length = match marker {
            Marker::FixStr(length) | Marker::FixArray(length) | Marker::FixMap(length) => usize::from(length),
            Marker::Str8 | Marker::Bin8 => self.length(1)?,
            Marker::Str16 | Marker::Bin16 | Marker::Array16 | Marker::Map16 => self.length(2)?,
            Marker::Str32 | Marker::Bin32 | Marker::Array32 | Marker::Map32 => self.length(4)?,
            _ => return Err(self.bad(at, "wrong_type", "a value without extension types")),
        };
        match marker {
            Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => {
                let text = std::str::from_utf8(self.take(length)?);
                text.map(|text| Value::Text(Cow::Borrowed(text))).map_err(|_| self.bad(at, "utf8", "text in UTF-8"))
            }
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => self.take(length).map(Value::Bytes),
            Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                let mut list = Vec::with_capacity(length.min(1024));
                for _ in 0..length {
                    list.push(self.value(depth - 1)?);
                }
                Ok(Value::List(list))
            }
            _ => self.map(length, depth),
        }
    }

    fn map(&mut self, length: usize, depth: usize) -> Result<Value<'a>, Bad> {
        let mut map: Vec<(Cow<'a, str>, Node<'a>)> = Vec::new();
        for _ in 0..length {
            let key = self.value(depth - 1)?;
            let Value::Text(name) = key.value else { return Err(key.bad("wrong_type", "a key as text")) };
            if map.len() == ENTRIES || map.iter().any(|(known, _)| *known == name) {
                return Err(self.bad(key.at, "duplicate_key", format!("each key once, and at most {ENTRIES}")));
            }
            map.push((name, self.value(depth - 1)?));
        }
        Ok(Value::Map(map))
    }
}

fn signed(value: i64) -> Value<'static> {
    u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned)
}

/// The shortest decimal that gives this number: what JSON has for it too.
fn decimal(value: f64) -> Value<'static> {
    Value::Decimal(Cow::Owned(value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_the_same_values() {
        // Packed by another program: [1789095808.8378847, {"a": [18446744073709551615, -1, null, true]}, "é"].
        let bytes = [
            &[0x93, 0xcb, 0x41, 0xda, 0xa8, 0xdb, 0xe0, 0x35, 0x9f, 0xe7][..],
            &[0x81, 0xa1, b'a', 0x94, 0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc0, 0xc3],
            &[0xa2, 0xc3, 0xa9],
        ]
        .concat();
        let text = "[1789095808.8378847, {\"a\": [18446744073709551615, -1, null, true]}, \"\u{e9}\"]";
        let (packed, json) = (packed(&bytes).unwrap(), json(text.as_bytes()).unwrap());
        let flat = |node: &Node<'_>| {
            let mut shown = format!("{:?}", node.value);
            while let Some(at) = shown.find("at: ") {
                let end = at + shown[at..].find(',').unwrap();
                shown.replace_range(at..=end, "");
            }
            shown
        };
        assert_eq!(flat(&packed), flat(&json));
    }

    #[test]
    fn deep_large_and_cut_values_are_refused() {
        let deep = "[".repeat(100_000);
        assert_eq!(json(deep.as_bytes()).unwrap_err().code, "nested");
        assert_eq!(packed(&vec![0x91; 100_000]).unwrap_err().code, "nested");
        let long = [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &vec![0; MOST + 1]].concat();
        assert_eq!(packed(&long).unwrap_err().code, "too_many");
        assert_eq!(packed(&[0xdd, 0xff, 0xff, 0xff, 0xff]).unwrap_err().code, "truncated");
        assert_eq!(packed(&[0xc1]).unwrap_err().code, "wrong_type");
        assert_eq!(packed(&[0xc0, 0xc0]).unwrap_err().code, "extra_bytes");
    }
}
