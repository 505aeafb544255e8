//! Execution traces of Chakra, by `MLCommons`: Protocol Buffers, each message behind its length.
//!
//! ```text
//! 07                                              length of the first message
//!   0a 05 "0.0.4"                                 GlobalMetadata: version = 1, attr = 2
//! 2d                                              length of the next: a Node, and so on to the end
//!   08 06                                         id = 1
//!   12 0b "aten::empty"                           name = 2
//!   18 04                                         type = 3: COMP_NODE
//!   22 01 03                                      ctrl_deps = 4 (packed), data_deps = 5
//!   30 .. 38 ..                                   start_time_micros = 6, duration_micros = 7
//!   52 0d 0a 09 "is_cpu_op" d8 01 01              attr = 10: name = 1, bool_val = 27; inputs = 8, outputs = 9
//! ```
//!
//! A node with the attribute `is_cpu_op` false is work of a device, and becomes a row of `kernels`: a kernel
//! (`COMP_NODE`), copy (`MEM_LOAD_NODE`, `MEM_STORE_NODE`) or collective (`COMM_*_NODE`); without the attribute copies and
//! collectives do as well. Every other node becomes an `operator` of `annotations`, or what its type says; its parent is
//! its control dependency, of several the first. `tensor_size` and `comm_size` are the bytes of a copy or collective.
//! Other attributes, data dependencies, inputs and outputs are not stored. A field that is absent is unknown, since
//! Protocol Buffers leave out zeros. Times are whole microseconds on an unknown clock.
//!
//! Refused, message by message: one that cannot be decoded, has no name, or a name that is no UTF-8; and the rest of a
//! file behind a length that cannot be. No real file was at hand.

use std::fmt::Write as _;
use std::io::Read;

use engine::error::{Error, Result};

use super::gpu::{Gpu, Kernel};
use super::operators::{Operator, Operators};
use super::problem::{Bad, Problem};
use super::rows::{self, UNKNOWN_KEY};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Lines};
use super::{Format, Head, Origin, Settings, Sniff};

mod wire;

use wire::{Fields, Value};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "chakra",
    doc: "execution traces of MLCommons Chakra (`.et`), as Protocol Buffers",
    spec: "https://github.com/mlcommons/chakra/blob/main/schema/protobuf/et_def.proto",
    verified: false,
    sniff,
    read,
};

/// The most bytes of a message.
const LIMIT: u64 = 64 << 20;

/// Bytes of a bad message that are shown.
const SHOWN: usize = 64;

const PARENTS: Event = Event {
    severity: Severity::Notice,
    code: "several_parents",
    advice: Some("the first control dependency is the parent, the others are not stored"),
};

/// Letters of a version such as `0.0.4`.
fn is_version(bytes: &[u8]) -> bool {
    bytes.len() <= 32 && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-+_".contains(byte))
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory {
        return Sniff::No;
    }
    sniff_messages(head.bytes).unwrap_or(Sniff::No)
}

/// Whether the first message can only be the metadata, and the second a node.
fn sniff_messages(bytes: &[u8]) -> Option<Sniff> {
    let mut fields = Fields::new(bytes);
    let length = usize::try_from(fields.number()?).ok()?;
    let rest = bytes.get(fields.at()..)?;
    let metadata = rest.get(..length)?;
    let mut versions = Fields::new(metadata);
    while let Some(field) = versions.next() {
        match field.ok()? {
            (1, Value::Bytes(version)) if is_version(version) => {}
            (2, Value::Bytes(attribute)) if matches!(Fields::new(attribute).next(), Some(Ok((1, Value::Bytes(_))))) => {
            }
            _ => return None,
        }
    }
    let rest = rest.get(length..)?;
    let mut fields = Fields::new(rest);
    let Some(length) = fields.number() else {
        return (length > 0).then(|| Sniff::Nearly("it has metadata and no nodes".to_owned()));
    };
    let whole = rest.get(fields.at()..)?;
    let node = decode(whole.get(..usize::try_from(length).ok()?)?).ok()?;
    (!node.name.is_empty() && node.unknown.is_none()).then_some(Sniff::Yes)
}

/// What is kept of a node.
#[derive(Debug, Default)]
struct Node<'a> {
    id: u64,
    name: &'a str,
    kind: u64,
    parent: Option<u64>,
    parents: usize,
    start_micros: Option<u64>,
    duration_micros: Option<u64>,
    on_host: Option<bool>,
    stream: Option<u64>,
    thread: Option<u64>,
    bytes: Option<u64>,
    /// A field of another version of the format.
    unknown: Option<u64>,
}

/// Reads a node; where it cannot be read, the offset and what was expected there.
fn decode(bytes: &[u8]) -> std::result::Result<Node<'_>, (usize, &'static str)> {
    let mut node = Node::default();
    let mut fields = Fields::new(bytes);
    let mut at = 0;
    while let Some(field) = fields.next() {
        match field.map_err(|()| (at, "a field of Protocol Buffers"))? {
            (1, Value::Number(id)) => node.id = id,
            (2, Value::Bytes(name)) => node.name = std::str::from_utf8(name).map_err(|_| (at, "a name in UTF-8"))?,
            (3, Value::Number(kind)) => node.kind = kind,
            (4, Value::Number(parent)) => node.depends(parent),
            (4, Value::Bytes(packed)) => {
                let mut packed = Fields::new(packed);
                while packed.has_more() {
                    node.depends(packed.number().ok_or((at, "a list of numbers"))?);
                }
            }
            (6, Value::Number(micros)) => node.start_micros = Some(micros),
            (7, Value::Number(micros)) => node.duration_micros = Some(micros),
            (10, Value::Bytes(attribute)) => node.attribute(attribute).ok_or((at, "an attribute"))?,
            (5, Value::Bytes(_) | Value::Number(_)) | (8 | 9 | 11, Value::Bytes(_)) => {}
            (1..=11, _) => return Err((at, "a field of the type that a node has")),
            (other, _) => node.unknown = node.unknown.or(Some(other)),
        }
        at = fields.at();
    }
    if node.name.is_empty() {
        return Err((bytes.len(), "a node with a name"));
    }
    Ok(node)
}

impl Node<'_> {
    fn depends(&mut self, parent: u64) {
        self.parent = self.parent.or(Some(parent));
        self.parents += 1;
    }

    /// Takes an attribute, if it is one that is kept.
    fn attribute(&mut self, bytes: &[u8]) -> Option<()> {
        let (mut name, mut value) = (&b""[..], None);
        let mut fields = Fields::new(bytes);
        while let Some(field) = fields.next() {
            match field.ok()? {
                (1, Value::Bytes(text)) => name = text,
                // int32, int64, uint32, uint64 and bool; a negative number has its top bit set.
                (7 | 9 | 11 | 13 | 27, Value::Number(number)) => value = Some(number),
                _ => {}
            }
        }
        let size = value.filter(|size| i64::try_from(*size).is_ok());
        match name {
            b"is_cpu_op" => self.on_host = value.map(|value| value != 0),
            b"stream" => self.stream = size,
            b"tid" => self.thread = size,
            b"comm_size" | b"tensor_size" => self.bytes = size.or(self.bytes),
            _ => {}
        }
        Some(())
    }

    /// The category of a kernel, if it is work of a device.
    fn kernel(&self) -> Option<&'static str> {
        let (category, on_host) = match self.kind {
            2 | 3 => ("copy", false),
            4 => ("kernel", true),
            5..=7 => ("collective", false),
            _ => return None,
        };
        (!self.on_host.unwrap_or(on_host)).then_some(category)
    }

    /// The category of an annotation.
    fn word(&self) -> &'static str {
        match self.kind {
            1 => "metadata",
            8 => "storage",
            9 => "batch",
            10 => "checkpoint",
            2..=7 => "operator",
            _ => "unknown",
        }
    }
}

/// What the reader keeps between messages.
struct Reader<'l> {
    path: &'l str,
    lines: &'l mut Lines,
    message: Vec<u8>,
    /// Messages so far, and the offset of the last.
    number: u64,
    offset: u64,
    /// Bytes taken.
    taken: u64,
    gpu: Gpu,
    operators: Operators,
}

/// What stands next in the file.
enum Next {
    /// A message, in the buffer.
    Message,
    /// A length or a message that is cut, or a length that cannot be.
    Cut(&'static str),
    End,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    if options.block_tokens.is_some() || options.time_unit.is_some() {
        return Err(Error::usage("expected no block size and no time unit with format `chakra`, found one")
            .hint("its rows have no blocks, and its times are in microseconds"));
    }
    let lines = rows::lines(path, body)?;
    let (gpu, operators) = (Gpu::new(), Operators::new());
    let mut reader = Reader { path, lines, message: Vec::new(), number: 0, offset: 0, taken: 0, gpu, operators };
    loop {
        match reader.next()? {
            Next::End => break,
            Next::Message if reader.number == 1 => reader.metadata(sink)?,
            Next::Message => reader.node(sink)?,
            Next::Cut(expected) => {
                reader.refuse(0, expected, sink)?;
                break;
            }
        }
    }
    reader.operators.finish(&mut reader.gpu, sink)?;
    reader.gpu.flush(sink)?;
    Ok(Settings { time_unit: Some("us"), clock: Some("monotonic"), origin: Origin::Format, ..Settings::default() })
}

impl Reader<'_> {
    fn failed(&self, error: &std::io::Error) -> Error {
        Error::data(format!("cannot read `{}`: {error}", self.path))
            .hint("a compressed file that was cut or damaged cannot be read to its end")
    }

    /// Reads so many bytes behind those of the message; whether there were as many.
    fn take(&mut self, count: u64) -> Result<bool> {
        let read = self.lines.by_ref().take(count).read_to_end(&mut self.message);
        let read = read.map_err(|error| self.failed(&error))? as u64;
        self.taken += read;
        Ok(read == count)
    }

    fn next(&mut self) -> Result<Next> {
        self.message.clear();
        self.number += 1;
        self.offset = self.taken;
        let length = loop {
            if !self.take(1)? {
                return Ok(if self.message.is_empty() { Next::End } else { Next::Cut("the length of a message") });
            }
            let mut length = Fields::new(&self.message);
            match length.number() {
                Some(length) if length <= LIMIT => break length,
                Some(_) => return Ok(Next::Cut("a message of at most 64 MiB")),
                None if self.message.len() >= 10 => return Ok(Next::Cut("the length of a message")),
                None => {}
            }
        };
        self.message.clear();
        Ok(if self.take(length)? { Next::Message } else { Next::Cut("a whole message") })
    }

    /// The first message says the version, which is not needed.
    fn metadata(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let mut fields = Fields::new(&self.message);
        let mut at = 0;
        while let Some(field) = fields.next() {
            if !matches!(field, Ok((1 | 2, Value::Bytes(_)))) {
                return self.refuse(at, "the metadata of a trace", sink);
            }
            at = fields.at();
        }
        Ok(())
    }

    fn node(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let node = match decode(&self.message) {
            Ok(node) => node,
            Err((at, expected)) => return self.refuse(at, expected, sink),
        };
        let ns = |micros: Option<u64>| match micros.map(|micros| i64::try_from(micros).ok()?.checked_mul(1000)) {
            None => Some(None),
            Some(ns) => ns.map(Some),
        };
        let (Some(start_ns), Some(duration_ns)) = (ns(node.start_micros), ns(node.duration_micros)) else {
            return self.refuse(0, "times below 2^63 nanoseconds", sink);
        };
        sink.found(1);
        let place = (Some(self.number), Some(self.offset));
        if let Some(field) = node.unknown {
            let message = format!("the field {field} of a node is not part of the format");
            sink.log(UNKNOWN_KEY, &message, place.0, place.1);
        }
        if let Some(category) = node.kernel() {
            let (name, stream, bytes) = (node.name, node.stream, node.bytes);
            let kernel = Kernel { category, name, start_ns, duration_ns, stream, bytes, ..Kernel::default() };
            return self.gpu.push_kernel(&kernel, sink).map(drop);
        }
        if node.parents > 1 {
            sink.log(PARENTS, "a node has several control dependencies", place.0, place.1);
        }
        let operator = Operator {
            id: node.id,
            parent: node.parent,
            name: node.name,
            category: node.word(),
            process: None,
            thread: node.thread,
            start_ns,
            duration_ns,
        };
        self.operators.push(&operator, &mut self.gpu, sink)
    }

    /// Sets the message aside. Its bytes are shown in hex, and the column is that of the text.
    fn refuse(&mut self, at: usize, expected: &str, sink: &mut Sink<'_>) -> Result<()> {
        let mut shown = String::new();
        for byte in self.message.iter().take(SHOWN) {
            let _ = write!(shown, "{byte:02x} ");
        }
        let found = match self.message.get(at) {
            Some(byte) => format!("the byte {byte:02x} at offset {at} of message {}", self.number),
            None => format!("the end of message {}", self.number),
        };
        let bad = Bad { at: (3 * at).min(shown.len()), code: "protobuf", expected: expected.to_owned(), found };
        sink.found(1);
        sink.reject(Problem::in_line(self.path, shown.trim_end().as_bytes(), self.number, self.offset, bad))
    }
}

#[cfg(test)]
mod tests;
