//! Execution traces of `PyTorch`: the operators of a process as a tree, as JSON.
//!
//! ```text
//! {"schema": "1.0.1", "pid": 563677, "time": "2023-07-14 11:53:07", "start_ts": 6278907328,
//!  "nodes": [
//!   {"name": "aten::empty", "id": 5, "rf_id": 3, "parent": 4, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1,
//!    "fw_tid": 0, "op_schema": "aten::empty.memory_format(...)", "inputs": [[256,256],6,...], "input_shapes": [...], ...},
//!   ...], "finish_ts": 6278928026}
//! ```
//!
//! From schema 1.0.2 (`1.1.1-chakra.0.0.4`) on, `ctrl_deps` names the parent, and the rest is a list:
//!
//! ```text
//!   {"id": 6, "name": "aten::lift_fresh", "ctrl_deps": 3, "inputs": {"values": [...], "shapes": [...], "types": [...]},
//!    "outputs": {...}, "attrs": [{"name": "scope", "type": "uint64", "value": 0},
//!                                {"name": "tid", "type": "uint64", "value": 1}, ...]}
//! ```
//!
//! Each node becomes a row of `annotations` with its parent: an `operator`; what the program named itself (scope 7) a
//! `user_annotation`, and of these `ProfilerStep#N` a `step`. Such a trace has no times. Where a tool has joined it with a
//! profile, nodes have `ts`, `inclusive_dur` (microseconds) and `cat`, and those of the device become `kernels`; no such
//! file was at hand. Inputs, outputs and schemas of operators are not stored.
//!
//! Refused, node by node: one without `id` or `name`, broken numbers, broken JSON; reading goes on at the next node. Bare
//! `nan` and `inf` within inputs and outputs, which are no JSON, do no harm.

use std::borrow::Cow;

use engine::error::{Error, Result};

use super::elements::{self, Elements, Next};
use super::gpu::{Gpu, Kernel};
use super::json::{Scan, bad_at};
use super::operators::{Operator, Operators};
use super::problem::{Bad, quoted};
use super::rows::{self, ROUNDED, UNKNOWN_KEY};
use super::sink::Sink;
use super::source::Input;
use super::time::TimeUnit;
use super::walk::{self, Unknown};
use super::{Format, Head, Origin, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "pytorch_et",
    doc: "execution traces of PyTorch (operators with their parents), as JSON",
    spec: "https://github.com/pytorch/pytorch/blob/main/torch/csrc/profiler/standalone/execution_trace_observer.cpp",
    verified: true,
    sniff,
    read,
};

/// `RecordScope::USER_SCOPE` of `PyTorch`: a range that the program named.
const USER_SCOPE: u64 = 7;

fn sniff(head: &Head<'_>) -> Sniff {
    let start = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    if head.directory || !start.starts_with(b"{") || !walk::has_keys(start, &["schema", "nodes"]) {
        return Sniff::No;
    }
    if ["rf_id", "ctrl_deps"].iter().any(|key| walk::has_keys(start, &[key])) {
        Sniff::Yes
    } else {
        Sniff::Nearly("the object with `schema` and `nodes` lacks `rf_id` and `ctrl_deps`".to_owned())
    }
}

/// What is kept of a node.
#[derive(Debug, Default)]
struct Node<'a> {
    id: Option<u64>,
    parent: Option<u64>,
    name: Option<Cow<'a, str>>,
    thread: Option<u64>,
    scope: Option<u64>,
    category: Option<Cow<'a, str>>,
    stream: Option<u64>,
    start: Option<(i64, bool)>,
    duration: Option<(i64, bool)>,
    unknown: Unknown<'a>,
}

/// Reads the node with which `bytes` begin, and gives its length.
fn parse(bytes: &[u8], unit: TimeUnit) -> std::result::Result<(Node<'_>, usize), Bad> {
    let mut scan = Scan::new(bytes);
    let mut node = Node::default();
    walk::object(&mut scan, "a node as a JSON object", &mut |scan, key, at| node.take(scan, bytes, key, at, unit))?;
    let length = scan.at();
    let missing = |name: &str| bad_at(bytes, length.saturating_sub(1), "missing_key", format!("the key `{name}`"));
    match (&node.id, &node.name) {
        (None, _) => Err(missing("id")),
        (_, None) => Err(missing("name")),
        _ => Ok((node, length)),
    }
}

impl<'a> Node<'a> {
    fn take(
        &mut self,
        scan: &mut Scan<'a>,
        bytes: &'a [u8],
        key: &'a [u8],
        at: usize,
        unit: TimeUnit,
    ) -> std::result::Result<(), Bad> {
        match key {
            b"id" => self.id = Some(scan.whole("`id`")?),
            b"name" => self.name = walk::maybe_text(scan, bytes, "`name`")?,
            b"parent" | b"ctrl_deps" => self.parent = parent(scan)?,
            b"tid" => self.thread = whole(scan)?,
            b"scope" => self.scope = whole(scan)?,
            b"stream" => self.stream = whole(scan)?,
            b"cat" => self.category = walk::maybe_text(scan, bytes, "`cat`")?,
            b"ts" => self.start = time(scan, "`ts`", unit)?,
            b"inclusive_dur" => self.duration = time(scan, "`inclusive_dur`", unit)?,
            b"attrs" => walk::list(scan, "`attrs`", &mut |scan| self.attribute(scan, bytes))?,
            b"inputs" | b"outputs" => {
                let rest = bytes.get(scan.at()..).unwrap_or_default();
                let value = elements::length(rest).and_then(|length| rest.get(..length));
                value.and_then(|value| scan.literal(value)).ok_or_else(|| scan.bad("json", "a JSON value"))?;
            }
            _ if is_known(key) => scan.skip()?,
            _ => {
                self.unknown.push((key, at));
                scan.skip()?;
            }
        }
        Ok(())
    }

    /// One entry of `attrs`: its name stands before its value.
    fn attribute(&mut self, scan: &mut Scan<'a>, bytes: &'a [u8]) -> std::result::Result<(), Bad> {
        let mut name = Cow::Borrowed("");
        walk::object(scan, "an attribute as a JSON object", &mut |scan, key, _| {
            match (key, name.as_ref()) {
                (b"name", _) => name = walk::text(scan, bytes, "`name`")?,
                (b"value", "tid") => self.thread = whole(scan)?,
                (b"value", "scope") => self.scope = whole(scan)?,
                _ => scan.skip()?,
            }
            Ok(())
        })
    }
}

/// Keys of a node that no column has.
fn is_known(key: &[u8]) -> bool {
    const KEYS: [&[u8]; 14] = [
        b"rf_id",
        b"fw_parent",
        b"seq_id",
        b"fw_tid",
        b"op_schema",
        b"input_shapes",
        b"input_types",
        b"output_shapes",
        b"output_types",
        b"data_deps",
        b"exclusive_dur",
        b"inter_thread_dep",
        b"pg_name",
        b"ph",
    ];
    KEYS.contains(&key)
}

/// A number of at least zero; anything else is skipped.
fn whole(scan: &mut Scan<'_>) -> std::result::Result<Option<u64>, Bad> {
    if matches!(scan.peek(), Some(b'0'..=b'9')) {
        return scan.whole("a number").map(Some);
    }
    scan.skip()?;
    Ok(None)
}

/// An id, or the first of a list of them.
fn parent(scan: &mut Scan<'_>) -> std::result::Result<Option<u64>, Bad> {
    if scan.peek() != Some(b'[') {
        return whole(scan);
    }
    let mut first = None;
    walk::list(scan, "`ctrl_deps`", &mut |scan| {
        let id = whole(scan)?;
        first = first.or(id);
        Ok(())
    })?;
    Ok(first)
}

fn time(scan: &mut Scan<'_>, what: &str, unit: TimeUnit) -> std::result::Result<Option<(i64, bool)>, Bad> {
    if walk::null(scan)? { Ok(None) } else { walk::time(scan, what, unit).map(Some) }
}

/// What the reader keeps between nodes.
struct Reader {
    unit: TimeUnit,
    gpu: Gpu,
    operators: Operators,
    process: Option<u64>,
    timed: bool,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    if options.block_tokens.is_some() {
        return Err(
            Error::usage("expected no block size with format `pytorch_et`, found one").hint("its rows have no blocks")
        );
    }
    let lines = rows::lines(path, body)?;
    let unit = options.time_unit.unwrap_or(TimeUnit::Us);
    let mut reader = Reader { unit, gpu: Gpu::new(), operators: Operators::new(), process: None, timed: false };
    let mut elements = Elements::new(path, lines, b"nodes", b"\"id\"")?;
    loop {
        let process = &mut reader.process;
        let next = elements.next(&mut |key, value, _| {
            if key == b"pid" {
                *process = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            }
        })?;
        match next {
            Next::End => break,
            Next::Broken(problem) => {
                sink.found(1);
                sink.reject(*problem)?;
            }
            Next::Element => reader.element(&mut elements, sink)?,
        }
    }
    reader.operators.finish(&mut reader.gpu, sink)?;
    reader.gpu.flush(sink)?;
    let origin = if options.time_unit.is_some() { Origin::Flag } else { Origin::Format };
    let time_unit = reader.timed.then_some(unit.name());
    Ok(Settings { time_unit, clock: reader.timed.then_some("monotonic"), origin, ..Settings::default() })
}

impl Reader {
    /// Reads the next node, or as much more of it as is needed.
    fn element(&mut self, elements: &mut Elements<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let unit = self.unit;
        let Ok((node, length)) = parse(elements.window(), unit) else {
            if let Some(problem) = elements.judge(&|text| parse(text, unit).err())? {
                sink.found(1);
                sink.reject(problem)?;
            }
            return Ok(());
        };
        self.node(&node, elements, sink)?;
        elements.advance(length);
        Ok(())
    }

    fn node(&mut self, node: &Node<'_>, elements: &Elements<'_>, sink: &mut Sink<'_>) -> Result<()> {
        sink.found(1);
        for (key, at) in &node.unknown {
            let place = elements.here();
            let message = format!("the key {} is not part of the format", quoted(key));
            sink.log(UNKNOWN_KEY, &message, Some(place.line), Some(place.offset + *at as u64));
        }
        if [node.start, node.duration].into_iter().flatten().any(|(_, exact)| !exact) {
            let place = elements.here();
            sink.log(ROUNDED, "a timestamp was rounded to the nanosecond", Some(place.line), Some(place.offset));
        }
        self.timed |= node.start.is_some();
        let name = node.name.as_deref().unwrap_or_default();
        let (start_ns, duration_ns) = (node.start.map(|(ns, _)| ns), node.duration.map(|(ns, _)| ns));
        let category = match node.category.as_deref() {
            Some("kernel") => Some("kernel"),
            Some("gpu_memcpy") => Some("copy"),
            Some("gpu_memset") => Some("fill"),
            _ => None,
        };
        if let Some(category) = category {
            let (process, stream) = (self.process, node.stream);
            let kernel = Kernel { category, name, start_ns, duration_ns, process, stream, ..Kernel::default() };
            return self.gpu.push_kernel(&kernel, sink).map(drop);
        }
        let category = match node.scope {
            Some(USER_SCOPE) if name.starts_with("ProfilerStep#") => "step",
            Some(USER_SCOPE) => "user_annotation",
            _ => "operator",
        };
        let operator = Operator {
            id: node.id.unwrap_or_default(),
            parent: node.parent,
            name,
            category,
            process: self.process,
            thread: node.thread,
            start_ns,
            duration_ns,
        };
        self.operators.push(&operator, &mut self.gpu, sink)
    }
}

#[cfg(test)]
mod tests;
