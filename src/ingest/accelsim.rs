//! Traces of the Accel-Sim tracer: one kernel a file, and the list of kernels and copies beside them.
//!
//! ```text
//! -kernel name = _Z8mult_gpuIfEvPT_S1_S1_ii
//! -grid dim = (1,1,1)
//! -accelsim tracer version = 4
//! #traces format = [line_num] PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [adrrescompress?] [mem_addresses]
//! #BEGIN_TB
//! thread block = 0,0,0
//! warp = 0
//! insts = 138
//! 0008 ffffffff 1 R1 MOV 0 0
//! 0208 ffffffff 1 R25 LDG.E 1 R8 4 1 0x7fb02d700000 4
//! 1020 ffffffff 1 R24 LDG.E.128.CONSTANT.SYS 1 R44 16 2 0x7efe7b60c300 16 16 16 2000 ...
//! #END_TB
//! ```
//!
//! A row is an instruction that reads or writes memory, and goes to `accesses` with the sectors that its active lanes
//! touch; instructions without memory are counted, and so are memory instructions whose lanes are all off. The header
//! of a kernel is a row of `kernels`. After the width stands the way of the addresses: 0 lists one for each active
//! lane, 1 is a base and a stride over neighbouring lanes, 2 is a base and the difference of each active lane from the
//! one before. Read are tracer versions 3 to 6: those that group lines by thread block, and raw `.trace` files, where
//! thread block and warp stand before each line; version 5 and later write immediates after the addresses, which are
//! not stored. `.xz` is undone.
//!
//! ```text
//! MemcpyHtoD,0x00007fb02d700000,4096
//! kernel-1.traceg
//! ```
//!
//! Of a list, `kernelslist.g`, the copies go to `kernels`; their times are not traced and their addresses not stored. A
//! list without copies is refused, since it says nothing of its kernels but the names of their files.
//!
//! Refused, line by line: an instruction that ends early or goes on, a broken number, an instruction outside a warp, a
//! stride over lanes with gaps. Tracers before version 3 are refused as a whole. A warp that has another number of
//! instructions than it declares is logged.

use engine::error::{Error, Result};

use super::accesses::{Access, Accesses, LANES, WIDEST};
use super::gpu::{Gpu, Kernel};
use super::json::bad_at;
use super::problem::{Bad, Problem, quoted};
use super::rows;
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line, Lines};
use super::walk;
use super::words::{Word, Words, decimal, hex, triple};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "accelsim",
    doc: "memory instructions of warps from the Accel-Sim tracer (`.traceg`), and copies from its kernel list",
    spec: "https://github.com/accel-sim/accel-sim-framework/tree/release/util/tracer_nvbit",
    verified: true,
    sniff,
    read,
};

const NAME: &[u8] = b"-kernel name = ";
const VERSION: &[u8] = b"-accelsim tracer version = ";

/// Tracer versions that are understood; version 2 had other groups.
const VERSIONS: std::ops::RangeInclusive<u32> = 3..=6;

const NO_MEMORY: Event = Event { severity: Severity::Info, code: "no_memory", advice: None };
const NO_LANES: Event = Event { severity: Severity::Info, code: "no_lanes", advice: None };
const UNKNOWN_HEADER: Event =
    Event { severity: Severity::DataLoss, code: "unknown_key", advice: Some("the key is not stored") };
const INSTRUCTIONS: Event = Event {
    severity: Severity::DataLoss,
    code: "instruction_count",
    advice: Some("the trace was cut or damaged; trace the kernel again"),
};
const NEWER: Event = Event {
    severity: Severity::Notice,
    code: "tracer_version",
    advice: Some("the tracer is newer than the versions that were tested; compare the counts with its statistics"),
};
const COPY_ADDRESS: Event = Event {
    severity: Severity::DataLoss,
    code: "copy_address",
    advice: Some("kernels and copies have no column for an address"),
};
const KERNEL_FILE: Event = Event {
    severity: Severity::Info,
    code: "kernel_file",
    advice: Some("ingest the kernel's own file for its memory accesses"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    let line = walk::first_line(head.bytes);
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    if line.starts_with(NAME) || is_list(line) {
        return Sniff::Yes;
    }
    if line.starts_with(b"kernel id, kernel mangled name,") {
        return Sniff::Nearly("this is the tracer's statistics; the accesses are in the `.traceg` files".to_owned());
    }
    Sniff::No
}

/// Whether a line is one of a list of kernels.
fn is_list(line: &[u8]) -> bool {
    line.starts_with(b"Memcpy") && line.split(|byte| *byte == b',').count() == 3 || is_kernel_file(line)
}

fn is_kernel_file(line: &[u8]) -> bool {
    let line = line.strip_suffix(b".xz").unwrap_or(line);
    line.starts_with(b"kernel-") && (line.ends_with(b".traceg") || line.ends_with(b".trace"))
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    options.without_choice("accelsim", "its instructions have no times, and it has no KV blocks")?;
    let lines = rows::lines(path, body)?;
    if is_list(walk::first_line(lines.peek())) {
        list(path, lines, sink)?;
    } else {
        trace(path, lines, sink)?;
    }
    Ok(Settings::default())
}

fn list(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let (mut gpu, mut copies, mut bad_rows) = (Gpu::new(), 0_u64, 0_u64);
    while let Some(line) = lines.next_line()? {
        let text = line.bytes.trim_ascii();
        let at = (Some(line.number), Some(line.offset));
        if text.is_empty() {
            continue;
        }
        if is_kernel_file(text) {
            sink.log(KERNEL_FILE, "a kernel is named by the file of its trace", at.0, at.1);
            continue;
        }
        sink.found(1);
        match copy(line.bytes) {
            Ok(kernel) => {
                gpu.push_kernel(&kernel, sink)?;
                sink.log(COPY_ADDRESS, "the address of a copy is not stored", at.0, at.1);
                copies += 1;
            }
            Err(bad) => {
                bad_rows += 1;
                sink.reject(Problem::in_line(path, line.bytes, line.number, line.offset, bad))?;
            }
        }
    }
    if copies + bad_rows == 0 {
        return Err(Error::data(format!(
            "expected copies in the kernel list `{path}`, found the names of kernel files alone"
        ))
        .hint("what its kernels did is missing here; ingest the `.traceg` files that it names"));
    }
    gpu.flush(sink)
}

/// A copy: `MemcpyHtoD,address,bytes`.
fn copy(line: &[u8]) -> std::result::Result<Kernel<'_>, Bad> {
    let mut parts = line.trim_ascii().split(|byte| *byte == b',');
    let name = parts.next().unwrap_or_default();
    let (name, kind) = match name {
        b"MemcpyHtoD" => ("MemcpyHtoD", "host_to_device"),
        b"MemcpyDtoH" => ("MemcpyDtoH", "device_to_host"),
        b"MemcpyDtoD" => ("MemcpyDtoD", "device_to_device"),
        _ => return Err(bad_at(line, 0, "wrong_type", "`MemcpyHtoD,address,bytes` or the name of a `.traceg` file")),
    };
    if parts.next().and_then(hex).is_none() {
        return Err(bad_at(line, name.len() + 1, "wrong_type", "the address of the copy in hex"));
    }
    let bytes = parts.next().and_then(decimal::<u64>);
    if bytes.is_none() || parts.next().is_some() {
        let at = line.iter().rposition(|byte| *byte == b',').map_or(0, |comma| comma + 1);
        return Err(bad_at(line, at, "wrong_type", "the bytes of the copy as a whole number at the end of the line"));
    }
    Ok(Kernel { category: "copy", name, bytes, copy_kind: Some(kind), ..Kernel::default() })
}

/// What the header of a kernel says.
#[derive(Default)]
struct Header {
    name: String,
    grid: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    registers: Option<u32>,
    shared_bytes: Option<u64>,
    stream: Option<u64>,
    line_numbers: bool,
    /// Whether immediates stand after the addresses.
    immediates: bool,
    /// Whether it is a row already.
    stored: bool,
}

/// The warp whose instructions come next.
#[derive(Default)]
struct Warp {
    grouped: bool,
    cta: Option<[u32; 3]>,
    number: Option<u32>,
    /// How many instructions it declares, and in which line at which offset.
    declared: Option<(u64, u64, u64)>,
    found: u64,
}

struct Reader {
    header: Option<Header>,
    launches: u32,
    warp: Warp,
    /// Which word of a raw line is the mask.
    mask_at: Option<usize>,
    accesses: Accesses,
    gpu: Gpu,
    addresses: Vec<u64>,
}

/// An instruction; the addresses of its lanes are in the scratch list.
struct Instruction<'a> {
    cta: [u32; 3],
    warp: u32,
    pc: u64,
    mask: u32,
    opcode: &'a str,
    /// 0 for one without memory.
    width: u32,
}

fn trace(path: &str, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let mut reader = Reader {
        header: None,
        launches: 0,
        warp: Warp::default(),
        mask_at: None,
        accesses: Accesses::new(),
        gpu: Gpu::new(),
        addresses: Vec::with_capacity(LANES),
    };
    while let Some(line) = lines.next_line()? {
        if let Err(bad) = reader.line(path, line, sink)? {
            sink.found(1);
            sink.reject(Problem::in_line(path, line.bytes, line.number, line.offset, bad))?;
        }
    }
    reader.end_warp(sink);
    reader.store_header(sink)?;
    reader.accesses.flush(sink)?;
    reader.gpu.flush(sink)
}

impl Reader {
    /// Takes a line; what is wrong with it.
    fn line(&mut self, path: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Result<std::result::Result<(), Bad>> {
        let text = line.bytes.trim_ascii();
        match text.first() {
            None => return Ok(Ok(())),
            Some(b'-') => {
                if text.starts_with(NAME) {
                    self.end_warp(sink);
                    self.store_header(sink)?;
                }
                refuse_version(path, text, line, sink)?;
                return Ok(self.header(line, sink));
            }
            Some(b'#') => {
                self.mark(text);
                return Ok(Ok(()));
            }
            _ => {}
        }
        if let Some(outcome) = self.place(line, sink) {
            return Ok(outcome);
        }
        self.store_header(sink)?;
        self.warp.found += 1;
        let mut addresses = std::mem::take(&mut self.addresses);
        let outcome = self.instruction(line.bytes, &mut addresses);
        self.addresses = addresses;
        match outcome {
            Err(bad) => Ok(Err(bad)),
            Ok(instruction) => self.push(&instruction, line, sink).map(Ok),
        }
    }

    fn push(&mut self, instruction: &Instruction<'_>, line: Line<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let at = (Some(line.number), Some(line.offset));
        if instruction.width == 0 {
            sink.log(NO_MEMORY, "an instruction without memory is no row", at.0, at.1);
            return Ok(());
        }
        let Some(header) = self.header.as_ref().filter(|_| !self.addresses.is_empty()) else {
            sink.log(NO_LANES, "a memory instruction without an active lane is no row", at.0, at.1);
            return Ok(());
        };
        sink.found(1);
        let access = Access {
            kernel: &header.name,
            launch: self.launches.saturating_sub(1),
            cta: instruction.cta,
            warp: instruction.warp,
            pc: Some(instruction.pc),
            opcode: instruction.opcode,
            active_lanes: Some(instruction.mask.count_ones()),
            width_bytes: instruction.width,
            addresses: &self.addresses,
        };
        self.accesses.push(&access, sink)
    }

    /// A line of the header: `-key = value`.
    fn header(&mut self, line: Line<'_>, sink: &mut Sink<'_>) -> std::result::Result<(), Bad> {
        let bytes = line.bytes.trim_ascii_end();
        let Some(split) = memchr::memmem::find(bytes, b" = ") else {
            return Err(bad_at(line.bytes, bytes.len(), "missing_value", "` = ` and a value in the header"));
        };
        let (key, value, at) = (bytes[..split].trim_ascii(), bytes[split + 3..].trim_ascii(), split + 3);
        let wrong = |what: &str| bad_at(line.bytes, at, "wrong_type", what);
        if key == b"-kernel name" {
            let name = std::str::from_utf8(value).map_err(|_| wrong("the kernel's name in UTF-8"))?;
            self.header = Some(Header { name: name.to_owned(), ..Header::default() });
            self.launches += 1;
            self.warp = Warp::default();
            return Ok(());
        }
        let Some(header) = &mut self.header else {
            return Err(bad_at(line.bytes, 0, "missing_key", "the header to begin with `-kernel name`"));
        };
        match key {
            b"-grid dim" => header.grid = Some(triple(value).ok_or_else(|| wrong("the grid as `(x,y,z)`"))?),
            b"-block dim" => header.block = Some(triple(value).ok_or_else(|| wrong("the block as `(x,y,z)`"))?),
            b"-shmem" => header.shared_bytes = Some(decimal(value).ok_or_else(|| wrong("a number of bytes"))?),
            b"-nregs" => header.registers = Some(decimal(value).ok_or_else(|| wrong("a number of registers"))?),
            b"-cuda stream id" => header.stream = Some(decimal(value).ok_or_else(|| wrong("a stream's number"))?),
            b"-enable lineinfo" => header.line_numbers = value == b"1",
            b"-accelsim tracer version" => header.immediates |= decimal::<u32>(value).is_some_and(|one| one >= 5),
            b"-kernel id" | b"-binary version" | b"-shmem base_addr" | b"-local mem base_addr" | b"-nvbit version" => {}
            _ => {
                let message = format!("the key {} is not part of the format", quoted(key));
                sink.log(UNKNOWN_HEADER, &message, Some(line.number), Some(line.offset));
            }
        }
        Ok(())
    }

    /// A line that begins with `#`.
    fn mark(&mut self, text: &[u8]) {
        if text.starts_with(b"#BEGIN_TB") {
            self.warp.grouped = true;
        } else if text.starts_with(b"#traces format")
            && let Some(header) = &mut self.header
        {
            header.immediates |= memchr::memmem::find(text, b"immediate").is_some();
        }
    }

    /// A line that says where the next instructions ran; none if it is no such line.
    fn place(&mut self, line: Line<'_>, sink: &mut Sink<'_>) -> Option<std::result::Result<(), Bad>> {
        let text = line.bytes.trim_ascii();
        let split = memchr::memmem::find(text, b" = ")?;
        let (key, value) = (&text[..split], text[split + 3..].trim_ascii());
        let wrong = |what: &str| {
            let lead = line.bytes.len() - line.bytes.trim_ascii_start().len();
            bad_at(line.bytes, lead + split + 3, "wrong_type", what)
        };
        let outcome = match key {
            b"thread block" => {
                self.end_warp(sink);
                (self.warp.cta, self.warp.number) = (triple(value), None);
                self.warp.cta.map(drop).ok_or_else(|| wrong("a thread block as `x,y,z`"))
            }
            b"warp" => {
                self.end_warp(sink);
                self.warp.number = decimal(value);
                self.warp.number.map(drop).ok_or_else(|| wrong("a warp as a whole number"))
            }
            b"insts" => {
                self.warp.declared = decimal(value).map(|count| (count, line.number, line.offset));
                self.warp.declared.map(drop).ok_or_else(|| wrong("the warp's instructions as a whole number"))
            }
            _ => return None,
        };
        Some(outcome)
    }

    /// Compares a warp's instructions with those it declared.
    fn end_warp(&mut self, sink: &mut Sink<'_>) {
        let found = std::mem::take(&mut self.warp.found);
        if let Some((declared, line, offset)) = self.warp.declared.take()
            && declared != found
        {
            let message = "a warp has another number of instructions than it declares";
            sink.log(INSTRUCTIONS, message, Some(line), Some(offset));
        }
    }

    /// Makes the header a row, once it is complete.
    fn store_header(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let Some(header) = self.header.as_mut().filter(|header| !header.stored) else { return Ok(()) };
        header.stored = true;
        sink.found(1);
        let dims = |dims: Option<[u32; 3]>| dims.map_or([None; 3], |dims| dims.map(Some));
        let kernel = Kernel {
            category: "kernel",
            name: &header.name,
            stream: header.stream,
            grid: dims(header.grid),
            block: dims(header.block),
            registers: header.registers,
            shared_bytes: header.shared_bytes,
            ..Kernel::default()
        };
        self.gpu.push_kernel(&kernel, sink).map(drop)
    }

    /// Reads an instruction.
    fn instruction<'a>(
        &mut self,
        line: &'a [u8],
        addresses: &mut Vec<u64>,
    ) -> std::result::Result<Instruction<'a>, Bad> {
        addresses.clear();
        let Some(header) = &self.header else {
            return Err(bad_at(line, 0, "missing_key", "a header with `-kernel name` before the instructions"));
        };
        let mut words = Words::new(line, 0);
        let (cta, warp) = if self.warp.grouped {
            let (Some(cta), Some(warp)) = (self.warp.cta, self.warp.number) else {
                return Err(bad_at(line, 0, "missing_key", "`thread block = ` and `warp = ` before the instructions"));
            };
            if header.line_numbers {
                words.u32("the line number")?;
            }
            (cta, warp)
        } else {
            raw_place(line, &mut words, &mut self.mask_at)?
        };
        let pc = words.hex("the address of the instruction")?;
        let (mask, at) = words.next("the mask of active lanes")?;
        let mask = hex(mask).and_then(|mask| u32::try_from(mask).ok());
        let mask = mask.ok_or_else(|| words.bad(at, "wrong_type", "the mask of active lanes in hex, of 32 bits"))?;
        for _ in 0..words.u32("the number of destinations")? {
            words.next("a destination")?;
        }
        let opcode = words.text("the opcode")?;
        for _ in 0..words.u32("the number of sources")? {
            words.next("a source")?;
        }
        let (_, width_at) = words.clone().next("the width of the access")?;
        let width = words.u32("the width of the access")?;
        if width > WIDEST {
            return Err(words.bad(width_at, "out_of_range", format!("a width of at most {WIDEST} bytes")));
        }
        if width > 0 {
            lanes(mask, &mut words, addresses)?;
        }
        match words.maybe() {
            Some((_, at)) if !header.immediates => Err(words.bad(at, "json", "the end of the line")),
            _ => Ok(Instruction { cta, warp, pc, mask, opcode, width }),
        }
    }
}

/// The thread block and warp before a raw instruction. Versions differ in how many numbers follow these two; the first
/// line with a mask, eight digits in hex behind the address of the instruction, tells.
fn raw_place(
    line: &[u8],
    words: &mut Words<'_>,
    mask_at: &mut Option<usize>,
) -> std::result::Result<([u32; 3], u32), Bad> {
    /// Numbers before the address: thread block and warp, and at most seven more.
    const BEFORE: std::ops::RangeInclusive<usize> = 4..=11;
    let mut ahead = words.clone();
    let all: Vec<Word<'_>> = std::iter::from_fn(|| ahead.maybe()).take(*BEFORE.end() + 2).collect();
    let is_mask = |at: &usize| {
        let is_hex = |word: &Word<'_>| word.0.iter().all(u8::is_ascii_hexdigit);
        let (pc, mask) = (all.get(*at - 1), all.get(*at));
        pc.is_some_and(|pc| pc.0.len() >= 4 && is_hex(pc)) && mask.is_some_and(|mask| mask.0.len() == 8 && is_hex(mask))
    };
    if mask_at.is_none() {
        *mask_at = BEFORE.map(|before| before + 1).find(is_mask);
    }
    let Some(mask_at) = *mask_at else {
        return Err(bad_at(line, 0, "wrong_type", "thread block and warp, then an instruction with its mask"));
    };
    let cta = [words.u32("the thread block")?, words.u32("the thread block")?, words.u32("the thread block")?];
    let warp = words.u32("the warp")?;
    for _ in 4..mask_at - 1 {
        words.next("a number before the instruction")?;
    }
    Ok((cta, warp))
}

/// The addresses of the active lanes.
fn lanes(mask: u32, words: &mut Words<'_>, addresses: &mut Vec<u64>) -> std::result::Result<(), Bad> {
    let (mode, mode_at) = words.next("how addresses are written")?;
    let active = mask.count_ones() as usize;
    if mode == b"0" {
        for _ in 0..active {
            addresses.push(words.hex("the address of an active lane")?);
        }
        return Ok(());
    }
    let (_, base_at) = words.clone().next("the lowest lane's address")?;
    let mut address = words.hex("the lowest lane's address")?;
    let beyond = |words: &Words<'_>| words.bad(base_at, "out_of_range", "addresses of 64 bits");
    match mode {
        b"1" => {
            let stride = words.i64("the stride of the addresses")?;
            let first = mask.checked_shr(mask.trailing_zeros()).unwrap_or(0);
            if first & first.wrapping_add(1) != 0 {
                return Err(words.bad(mode_at, "lane_gaps", "neighbouring lanes with a base and a stride"));
            }
            for lane in 0..active {
                if lane > 0 {
                    address = address.checked_add_signed(stride).ok_or_else(|| beyond(words))?;
                }
                addresses.push(address);
            }
        }
        b"2" => {
            for lane in 0..active {
                if lane > 0 {
                    let step = words.i64("the difference of an active lane's address")?;
                    address = address.checked_add_signed(step).ok_or_else(|| beyond(words))?;
                }
                addresses.push(address);
            }
        }
        _ => return Err(words.bad(mode_at, "wrong_type", "0, 1 or 2 for how addresses are written")),
    }
    Ok(())
}

/// Refuses a tracer whose lines have another order, and logs a newer one.
fn refuse_version(path: &str, text: &[u8], line: Line<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let Some(version) = text.strip_prefix(VERSION).and_then(|value| decimal::<u32>(value.trim_ascii())) else {
        return Ok(());
    };
    if version < *VERSIONS.start() {
        return Err(Error::data(format!(
            "expected a trace of the Accel-Sim tracer from version {} on in `{path}`, found version {version}",
            VERSIONS.start()
        ))
        .hint("its lines have another order; trace the program again"));
    }
    if version > *VERSIONS.end() {
        let message = format!("tracer version {version} is newer than {}", VERSIONS.end());
        sink.log(NEWER, &message, Some(line.number), Some(line.offset));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
