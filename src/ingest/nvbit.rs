//! Output of `NVBit`'s `mem_trace`: a line for each memory instruction of a warp, between the lines of the traced
//! program.
//!
//! ```text
//! MEMTRACE: CTX 0x000055c1a8f3b2d0 - LAUNCH - Kernel pc 0x00007f3d5f200000 - Kernel name vecAdd(double*, double*, double*, int) - grid launch id 0 - grid size 98,1,1 - block size 1024,1,1 - nregs 16 - shmem 0 - cuda stream id 0
//! MEMTRACE: CTX 0x000055c1a8f3b2d0 - grid_launch_id 0 - CTA 0,0,0 - warp 3 - LDG.E.64 - 0x00007f3d32e00600 0x00007f3d32e00608 ... (32 addresses)
//! ```
//!
//! An instruction is a row of `accesses`, a launch is one of `kernels`. Kernel names hold blanks, commas and ` - `, so
//! that a launch is read from its end; older builds write `Kernel 0x...` for `Kernel pc 0x...`. Instructions find the
//! name of their kernel by context and launch number among the last 1,024 launches; one whose launch was not printed is
//! kept under the name `launch N`, which is logged.
//!
//! The tracer writes an address for each of the 32 lanes and loses the mask of those that took part. An address of 0 is
//! taken for a lane that did not, except in shared and local memory, where it can be one. The number of active lanes
//! and the bytes they asked for stay unknown; sectors are those of the addresses that are there. The width of a lane is
//! that of the opcode's suffix. There are no times.
//!
//! What the traced program prints is counted and kept nowhere: not in rows, not in the log, not in rejects, which hold
//! only the part of a line that was understood. Refused, line by line: instructions of other than 32 addresses, without
//! any address, or with a broken number, such as those into which the program printed.

use std::collections::VecDeque;
use std::rc::Rc;

use engine::error::Result;

use super::accesses::{Access, Accesses, LANES, kind, width_of};
use super::gpu::{Gpu, Kernel};
use super::pieces::Place;
use super::problem::{Bad, Problem, RAW_BYTES};
use super::rows;
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::words::{decimal, hex, triple};
use super::{Format, Head, Settings, Sniff};

/// The adapter. No capture was at hand; the form of its lines is that of the tool's source.
pub(super) static FORMAT: Format = Format {
    name: "nvbit",
    doc: "memory instructions of warps as printed by NVBit's mem_trace, among the output of the program",
    spec: "https://github.com/NVlabs/NVBit/tree/master/tools/mem_trace",
    verified: false,
    sniff,
    read,
};

const MARK: &[u8] = b"MEMTRACE: ";

/// Launches whose names are kept.
const LAUNCHES: usize = 1024;

const OUTPUT: Event = Event { severity: Severity::Info, code: "program_output", advice: None };
const TOOL: Event = Event { severity: Severity::Info, code: "tool_message", advice: None };
const UNKNOWN_LAUNCH: Event = Event {
    severity: Severity::Notice,
    code: "unknown_launch",
    advice: Some("the kernel's name is unknown; keep the LAUNCH lines of the tracer's output"),
};
const UNKNOWN_FIELD: Event =
    Event { severity: Severity::DataLoss, code: "unknown_key", advice: Some("the field is not stored") };

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let mut marked = head.bytes.split(|byte| *byte == b'\n').filter_map(after_mark).peekable();
    if marked.peek().is_none() {
        return Sniff::No;
    }
    if marked.any(|text| text.starts_with(b"CTX 0x") && memchr::memmem::find(text, b" - ").is_some()) {
        return Sniff::Yes;
    }
    Sniff::Nearly("lines of `MEMTRACE:` hold no launch and no instruction in the first part of the file".to_owned())
}

/// What stands behind the tool's mark, before which the program may have left a line open.
fn after_mark(line: &[u8]) -> Option<&[u8]> {
    memchr::memmem::find(line, MARK).and_then(|at| line.get(at + MARK.len()..))
}

/// A launch, for the instructions that follow.
struct Launch {
    context: u64,
    id: u64,
    number: u32,
    name: Rc<str>,
}

#[derive(Default)]
struct Launches {
    recent: VecDeque<Launch>,
    count: u32,
}

impl Launches {
    fn push(&mut self, context: u64, id: u64, name: &str) {
        if self.recent.len() == LAUNCHES {
            self.recent.pop_front();
        }
        self.recent.push_back(Launch { context, id, number: self.count, name: name.into() });
        self.count = self.count.saturating_add(1);
    }

    fn find(&self, context: u64, id: u64) -> Option<(u32, Rc<str>)> {
        let found = self.recent.iter().rev().find(|one| one.context == context && one.id == id)?;
        Some((found.number, found.name.clone()))
    }
}

/// A part of a line, and where it begins.
#[derive(Clone, Copy)]
struct Part<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Part<'a> {
    /// What stands before and after the first ` - `.
    fn split(self) -> Option<(Self, Self)> {
        let at = memchr::memmem::find(self.bytes, b" - ")?;
        Some((Self { bytes: &self.bytes[..at], ..self }, Self { bytes: &self.bytes[at + 3..], at: self.at + at + 3 }))
    }

    /// As [`Part::split`], where there must be more. Nothing is known yet of what stands here.
    fn field(self) -> std::result::Result<(Self, Self), Bad> {
        self.split().ok_or_else(|| bad(self.at, "a field, and ` - ` with the next one behind it"))
    }

    /// What stands behind this text, which it must begin with.
    fn after(self, text: &str) -> std::result::Result<&'a [u8], Bad> {
        self.bytes.strip_prefix(text.as_bytes()).ok_or_else(|| bad(self.at, &format!("`{text}`")))
    }
}

/// A problem at an offset. What was found there may be the program's own output, and is not told.
fn bad(at: usize, expected: &str) -> Bad {
    Bad { at, code: "wrong_type", expected: expected.to_owned(), found: "something else".to_owned() }
}

/// A line of the tool.
enum Traced<'a> {
    Launch { context: u64, id: u64, kernel: Box<Kernel<'a>>, unknown: u64 },
    Instruction { context: u64, launch: u64, cta: [u32; 3], warp: u32, opcode: &'a str },
    Message,
}

struct Reader {
    launches: Launches,
    accesses: Accesses,
    gpu: Gpu,
    addresses: Vec<u64>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    options.without_choice("nvbit", "its instructions have no times, and it has no KV blocks")?;
    let lines = rows::lines(path, body)?;
    let mut reader = Reader {
        launches: Launches::default(),
        accesses: Accesses::new(),
        gpu: Gpu::new(),
        addresses: Vec::with_capacity(LANES),
    };
    while let Some(line) = lines.next_line()? {
        reader.line(path, line, sink)?;
    }
    reader.accesses.flush(sink)?;
    reader.gpu.flush(sink)?;
    Ok(Settings::default())
}

impl Reader {
    fn line(&mut self, path: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let at = (Some(line.number), Some(line.offset));
        let Some(text) = after_mark(line.bytes) else {
            if !line.is_blank() {
                sink.log(OUTPUT, "a line of the traced program was not kept", at.0, at.1);
            }
            return Ok(());
        };
        match parse(text, &mut self.addresses) {
            Ok(Traced::Message) => sink.log(TOOL, "a message of the tracer is no row", at.0, at.1),
            Ok(Traced::Launch { context, id, kernel, unknown }) => {
                self.launches.push(context, id, kernel.name);
                sink.found(1);
                self.gpu.push_kernel(&kernel, sink)?;
                sink.log_many(
                    UNKNOWN_FIELD,
                    "a launch has a field that is not part of the format",
                    unknown,
                    at.0,
                    at.1,
                );
            }
            Ok(Traced::Instruction { context, launch, cta, warp, opcode }) => {
                let known = self.launches.find(context, launch);
                let (number, name) = known.unwrap_or_else(|| {
                    sink.log(UNKNOWN_LAUNCH, "an instruction belongs to a launch that was not printed", at.0, at.1);
                    self.launches.push(context, launch, &format!("launch {launch}"));
                    self.launches.find(context, launch).unwrap_or((0, "launch".into()))
                });
                sink.found(1);
                let access = Access {
                    kernel: &name,
                    launch: number,
                    cta,
                    warp,
                    pc: None,
                    opcode,
                    active_lanes: None,
                    width_bytes: width_of(opcode),
                    addresses: &self.addresses,
                };
                self.accesses.push(&access, sink)?;
            }
            Err(bad) => {
                sink.found(1);
                let column = (line.bytes.len() - text.len()) as u64;
                let place = Place { line: line.number, column, offset: line.offset };
                sink.reject(Problem::in_piece(path, understood(text, &bad), place, bad))?;
            }
        }
        Ok(())
    }
}

/// The part of a line before what is wrong with it.
fn understood<'a>(text: &'a [u8], bad: &Bad) -> &'a [u8] {
    &text[..bad.at.min(text.len()).min(RAW_BYTES)]
}

/// Reads a line of the tool.
fn parse<'a>(text: &'a [u8], addresses: &mut Vec<u64>) -> std::result::Result<Traced<'a>, Bad> {
    let text = text.trim_ascii_end();
    let is_message = text.starts_with(b"STARTING CONTEXT")
        || text.starts_with(b"TERMINATING CONTEXT")
        || memchr::memmem::find(text, b", Inspecting CUfunction").is_some();
    if is_message {
        return Ok(Traced::Message);
    }
    let (context, rest) = Part { bytes: text, at: 0 }.field()?;
    let context = hex(context.after("CTX ")?).ok_or_else(|| bad(4, "the context in hex"))?;
    let (what, rest) = rest.field()?;
    if what.bytes == b"LAUNCH" {
        return launch(context, rest);
    }
    let number = decimal(what.after("grid_launch_id ")?).ok_or_else(|| bad(what.at + 15, "a launch's number"))?;
    let (cta, rest) = rest.field()?;
    let place = triple(cta.after("CTA ")?).ok_or_else(|| bad(cta.at + 4, "a thread block as `x,y,z`"))?;
    let (warp, rest) = rest.field()?;
    let warp = decimal(warp.after("warp ")?).ok_or_else(|| bad(warp.at + 5, "a warp as a whole number"))?;
    let (opcode, rest) = rest.field()?;
    let is_opcode = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_');
    let opcode = std::str::from_utf8(opcode.bytes)
        .ok()
        .filter(|text| !text.is_empty() && text.len() <= 64 && text.as_bytes().iter().all(is_opcode))
        .ok_or_else(|| bad(opcode.at, "an opcode of letters, digits and points"))?;
    lanes(rest, opcode, addresses)?;
    Ok(Traced::Instruction { context, launch: number, cta: place, warp, opcode })
}

/// The addresses of the lanes that seem to have taken part.
fn lanes(part: Part<'_>, opcode: &str, addresses: &mut Vec<u64>) -> std::result::Result<(), Bad> {
    addresses.clear();
    let (mut at, mut count) = (part.at, 0);
    for word in part.bytes.split(|byte| *byte == b' ') {
        if !word.is_empty() {
            let address = word.starts_with(b"0x").then(|| hex(word)).flatten();
            addresses.push(address.ok_or_else(|| bad(at, "the address of a lane in hex, of 64 bits"))?);
            count += 1;
            if count > LANES {
                return Err(bad(at, "the end of the line after 32 addresses"));
            }
        }
        at += word.len() + 1;
    }
    let end = part.at + part.bytes.len();
    if count < LANES {
        return Err(bad(end, "an address for each of the 32 lanes"));
    }
    if !matches!(kind(opcode, 0).0, "shared" | "local") {
        addresses.retain(|address| *address != 0);
    }
    if addresses.is_empty() { Err(bad(end, "an address other than 0 of at least one lane")) } else { Ok(()) }
}

/// A launch: its fields stand at the end, behind a name that may hold anything.
fn launch(context: u64, part: Part<'_>) -> std::result::Result<Traced<'_>, Bad> {
    const ID: &[u8] = b" - grid launch id ";
    let split = memchr::memmem::rfind(part.bytes, ID);
    let split = split.ok_or_else(|| bad(part.at, "a kernel, and ` - grid launch id ` behind it"))?;
    let name = kernel_name(Part { bytes: &part.bytes[..split], at: part.at })?;
    let mut kernel = Kernel { category: "kernel", name, ..Kernel::default() };
    let (mut id, mut unknown) = (None, 0);
    let mut left = Some(Part { bytes: &part.bytes[split + 3..], at: part.at + split + 3 });
    while let Some(here) = left {
        let (field, rest) = here.split().map_or((here, None), |(field, rest)| (field, Some(rest)));
        left = rest;
        let wrong = || bad(field.at, "a field of a launch with its numbers");
        let value = |name: &str| field.bytes.strip_prefix(name.as_bytes());
        if let Some(value) = value("grid launch id ") {
            id = Some(decimal(value).ok_or_else(wrong)?);
        } else if let Some(value) = value("grid size ") {
            kernel.grid = triple(value).ok_or_else(wrong)?.map(Some);
        } else if let Some(value) = value("block size ") {
            kernel.block = triple(value).ok_or_else(wrong)?.map(Some);
        } else if let Some(value) = value("nregs ") {
            kernel.registers = Some(decimal(value).ok_or_else(wrong)?);
        } else if let Some(value) = value("shmem ") {
            kernel.shared_bytes = Some(decimal(value).ok_or_else(wrong)?);
        } else if let Some(value) = value("cuda stream id ") {
            // The stream is a pointer that the tool prints as a signed number.
            let stream = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
            kernel.stream = Some(stream.map(i64::cast_unsigned).ok_or_else(wrong)?);
        } else {
            unknown += 1;
        }
    }
    let id = id.ok_or_else(|| bad(part.at + split, "a launch's number"))?;
    Ok(Traced::Launch { context, id, kernel: Box::new(kernel), unknown })
}

/// The kernel's name: behind its address, or the address itself where there is no name.
fn kernel_name(part: Part<'_>) -> std::result::Result<&str, Bad> {
    let wrong = |at: usize| bad(at, "`Kernel pc`, its address in hex, and `Kernel name`");
    let (address, name) = part.split().map_or((part, None), |(address, name)| (address, Some(name)));
    let word = address.bytes.strip_prefix(b"Kernel pc ").or_else(|| address.bytes.strip_prefix(b"Kernel "));
    let word = word.filter(|word| hex(word).is_some()).ok_or_else(|| wrong(address.at))?;
    let (text, at) = match name {
        Some(name) => (name.bytes.strip_prefix(b"Kernel name ").ok_or_else(|| wrong(name.at))?, name.at),
        None => (word, address.at),
    };
    std::str::from_utf8(text).map_err(|_| bad(at, "the kernel's name in UTF-8"))
}

#[cfg(test)]
mod tests;
