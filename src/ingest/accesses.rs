//! Rows of `accesses` on their way into record batches, and what the SASS of a memory instruction says, for any adapter
//! of a tracer of warps.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanBuilder, ListBuilder, RecordBatch, StringBuilder, UInt32Array, UInt32Builder, UInt64Builder,
};
use engine::error::Result;
use engine::schema::captured::ACCESSES;
use engine::schema::list_u64;

use super::sink::Sink;
use super::sparse::Sparse;

/// The most rows of a batch.
const ROWS: usize = 64 << 10;

/// The most sectors of a batch.
const ENTRIES: usize = 1 << 20;

/// The most bytes of text in a batch: demangled kernel names reach kilobytes, and each row repeats its own.
const TEXT_BYTES: usize = 16 << 20;

/// Threads of a warp.
pub(super) const LANES: usize = 32;

/// Bytes of a sector, the least that moves between the caches of an NVIDIA GPU.
const SECTOR_BYTES: u64 = 32;

/// The most bytes that one lane reads or writes at once; the widest instruction known moves 32.
pub(super) const WIDEST: u32 = 128;

/// Addresses below this are offsets into shared memory, where one instruction names both kinds: a block has at most 228
/// KiB of it, and allocations in device memory start far above.
const SHARED_BYTES: u64 = 1 << 20;

/// One memory instruction of one warp; what the tracer does not know is `None`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Access<'a> {
    pub(super) kernel: &'a str,
    /// Number of the launch within the source.
    pub(super) launch: u32,
    pub(super) cta: [u32; 3],
    pub(super) warp: u32,
    pub(super) pc: Option<u64>,
    pub(super) opcode: &'a str,
    pub(super) active_lanes: Option<u32>,
    pub(super) width_bytes: u32,
    /// Addresses of the lanes that took part, at least one.
    pub(super) addresses: &'a [u64],
}

/// Builders of `accesses`; ids count from 0 within the source.
pub(super) struct Accesses {
    next: u64,
    ids: UInt64Builder,
    kernel: StringBuilder,
    launch: UInt32Builder,
    /// Thread block and warp.
    place: [UInt32Builder; 4],
    pc: Sparse<UInt64Builder>,
    opcode: StringBuilder,
    space: StringBuilder,
    is_write: BooleanBuilder,
    lanes: Sparse<UInt32Builder>,
    width: UInt32Builder,
    address: UInt64Builder,
    bytes: Sparse<UInt64Builder>,
    sectors: UInt32Builder,
    sector_ids: ListBuilder<UInt64Builder>,
    entries: usize,
    text_bytes: usize,
    scratch: Vec<u64>,
}

impl Accesses {
    pub(super) fn new() -> Self {
        Self {
            next: 0,
            ids: UInt64Builder::new(),
            kernel: StringBuilder::new(),
            launch: UInt32Builder::new(),
            place: std::array::from_fn(|_| UInt32Builder::new()),
            pc: Sparse::new(UInt64Builder::new()),
            opcode: StringBuilder::new(),
            space: StringBuilder::new(),
            is_write: BooleanBuilder::new(),
            lanes: Sparse::new(UInt32Builder::new()),
            width: UInt32Builder::new(),
            address: UInt64Builder::new(),
            bytes: Sparse::new(UInt64Builder::new()),
            sectors: UInt32Builder::new(),
            sector_ids: list_u64(),
            entries: 0,
            text_bytes: 0,
            scratch: Vec::new(),
        }
    }

    /// Adds an access and hands a full batch on.
    pub(super) fn push(&mut self, access: &Access<'_>, sink: &mut Sink<'_>) -> Result<()> {
        self.ids.append_value(self.next);
        self.next += 1;
        self.kernel.append_value(access.kernel);
        self.launch.append_value(access.launch);
        let [x, y, z] = access.cta;
        for (builder, value) in self.place.iter_mut().zip([x, y, z, access.warp]) {
            builder.append_value(value);
        }
        self.pc.push(access.pc);
        self.opcode.append_value(access.opcode);
        let address = access.addresses.iter().copied().min().unwrap_or(0);
        let (space, is_write) = kind(access.opcode, address);
        self.space.append_value(space);
        self.is_write.append_value(is_write);
        self.lanes.push(access.active_lanes);
        self.width.append_value(access.width_bytes);
        self.address.append_value(address);
        self.bytes.push(access.active_lanes.map(|lanes| u64::from(lanes) * u64::from(access.width_bytes)));
        sectors(access.addresses, access.width_bytes, &mut self.scratch);
        self.sectors.append_value(self.scratch.len() as u32);
        self.sector_ids.values().append_slice(&self.scratch);
        self.sector_ids.append(true);
        self.entries += self.scratch.len();
        self.text_bytes += access.kernel.len() + access.opcode.len();
        if self.rows() >= ROWS || self.entries >= ENTRIES || self.text_bytes >= TEXT_BYTES {
            self.flush(sink)?;
        }
        Ok(())
    }

    fn rows(&self) -> usize {
        self.ids.values_slice().len()
    }

    /// Hands on what is left.
    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let source_ids = UInt32Array::from_value(sink.source_id(), self.rows());
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(source_ids),
            Arc::new(self.ids.finish()),
            Arc::new(self.kernel.finish()),
            Arc::new(self.launch.finish()),
        ];
        columns.extend(self.place.each_mut().map(|builder| Arc::new(builder.finish()) as ArrayRef));
        columns.push(self.pc.finish());
        columns.push(Arc::new(self.opcode.finish()));
        columns.push(Arc::new(self.space.finish()));
        columns.push(Arc::new(self.is_write.finish()));
        columns.push(self.lanes.finish());
        columns.push(Arc::new(self.width.finish()));
        columns.push(Arc::new(self.address.finish()));
        columns.push(self.bytes.finish());
        columns.push(Arc::new(self.sectors.finish()));
        columns.push(Arc::new(self.sector_ids.finish()));
        (self.entries, self.text_bytes) = (0, 0);
        sink.push(&ACCESSES, RecordBatch::try_new(ACCESSES.arrow(), columns)?)
    }
}

/// The distinct 32-byte sectors that lanes of this width touch, in rising order; `into` is emptied first.
fn sectors(addresses: &[u64], width: u32, into: &mut Vec<u64>) {
    into.clear();
    let beyond = u64::from(width.clamp(1, WIDEST)) - 1;
    for address in addresses {
        let last = address.saturating_add(beyond) / SECTOR_BYTES;
        into.extend(address / SECTOR_BYTES..=last);
    }
    into.sort_unstable();
    into.dedup();
}

/// The memory space of an instruction, and whether it writes (NVIDIA, CUDA Binary Utilities, instruction set
/// reference). A copy from global to shared memory is traced once for each of its two addresses.
pub(super) fn kind(opcode: &str, address: u64) -> (&'static str, bool) {
    match opcode.split('.').next().unwrap_or_default() {
        "LDGSTS" if address < SHARED_BYTES => ("shared", true),
        "LDG" | "LDGSTS" => ("global", false),
        "STG" | "ATOMG" | "REDG" => ("global", true),
        "LDS" | "LDSM" => ("shared", false),
        "STS" | "STSM" | "ATOMS" => ("shared", true),
        "LDL" => ("local", false),
        "STL" => ("local", true),
        "LD" => ("generic", false),
        "ST" | "ATOM" | "RED" => ("generic", true),
        "SUST" | "SUATOM" | "SURED" => ("unknown", true),
        _ => ("unknown", false),
    }
}

/// Bytes of each lane by the opcode: its first part that is a size in bits, such as `128`, `U8` or `F16x2`, and 4
/// without one. A lane of a matrix load or store names a row of 16 bytes.
pub(super) fn width_of(opcode: &str) -> u32 {
    let mut parts = opcode.split('.');
    if matches!(parts.next(), Some("LDSM" | "STSM")) {
        return 16;
    }
    parts.find_map(bits).map_or(4, |bits| bits / 8)
}

/// A size in bits: letters of a type, a number, and how many there are of it.
fn bits(part: &str) -> Option<u32> {
    let number = part.strip_prefix("BF").or_else(|| part.strip_prefix(['U', 'S', 'F', 'B'])).unwrap_or(part);
    let (one, count) = number.split_once('x').unwrap_or((number, "1"));
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(one) || !plain(count) {
        return None;
    }
    let bits = one.parse::<u32>().ok()?.checked_mul(count.parse().ok()?)?;
    (matches!(bits, 8 | 16 | 32 | 64 | 128 | 256)).then_some(bits)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The sectors are those that hold any byte of any lane.
        #[test]
        fn sectors_hold_each_byte(
            base in prop_oneof![0..4096_u64, 0x7fb0_2d70_0000..0x7fb0_2d71_0000_u64, u64::MAX - 300..=u64::MAX],
            steps in proptest::collection::vec(0..300_u64, 1..33),
            width in proptest::sample::select(vec![1, 2, 4, 8, 16, 32]),
        ) {
            let addresses: Vec<u64> = steps.iter().map(|step| base.saturating_add(*step)).collect();
            let bytes = addresses.iter().flat_map(|address| (0..u64::from(width)).filter_map(|at| address.checked_add(at)));
            let expected: BTreeSet<u64> = bytes.map(|byte| byte >> 5).collect();
            let mut found = vec![7];
            sectors(&addresses, width, &mut found);
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn opcodes_tell_width_space_and_direction() {
        let global = 0x7fb0_2d70_0000;
        for (opcode, address, width, space, is_write) in [
            ("LDG.E", global, 4, "global", false),
            ("LDG.E.128.CONSTANT.SYS", global, 16, "global", false),
            ("LDG.E.LTC128B.U8", global, 1, "global", false),
            ("STG.E.U16", global, 2, "global", true),
            ("LDS.U.128", 0, 16, "shared", false),
            ("STS", 0, 4, "shared", true),
            ("LDSM.16.M88.4", 0, 16, "shared", false),
            ("LDGSTS.E.BYPASS.128", 0x400, 16, "shared", true),
            ("LDGSTS.E.BYPASS.128", global, 16, "global", false),
            ("RED.E.ADD.F16x2.RN", global, 4, "generic", true),
            ("ATOMG.E.ADD.F64.RN", global, 8, "global", true),
            ("STL.64", global, 8, "local", true),
            ("LD.E.S8", global, 1, "generic", false),
            ("TEX.SCR.LL", global, 4, "unknown", false),
        ] {
            assert_eq!((width_of(opcode), kind(opcode, address)), (width, (space, is_write)), "{opcode}");
        }
    }
}
