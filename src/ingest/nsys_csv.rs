//! Kernels and copies as `nsys stats` lists them, the report `cuda_gpu_trace` as CSV.
//!
//! ```text
//! Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
//! 1134711990,661398,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA RTX 5000 Ada Generation Laptop GPU (0),1,,13,[CUDA memcpy Host-to-Device]
//! 1136125733,7072,128,4096,1,1,256,1,1,16,0.000,0.000,,,,,NVIDIA RTX 5000 Ada Generation Laptop GPU (0),1,,13,"saxpyKernel(float, const float *)"
//! ```
//!
//! Columns are found by name; the unit in brackets behind a name counts. Instants count from the start of the session.
//! Amounts in MB have three digits, so that bytes are rounded to a thousand, which is logged: the SQLite export has them
//! all. A copy or fill is known by its name.
//!
//! Refused, row by row: broken numbers, wrong numbers of cells, a row without a name, a device without a number.

use engine::error::{Error, Result};

use super::cells::{self, Cell, Row};
use super::gpu::{Gpu, Kernel};
use super::json::named;
use super::nsys::copy_kind;
use super::problem::Bad;
use super::rows::{self, Outcome};
use super::sink::{Event, Severity, Sink};
use super::source::Input;
use super::time::{TimeUnit, decimal_ns};
use super::walk;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "nsys_csv",
    doc: "kernels and copies by Nsight Systems, as the CSV of `nsys stats --report cuda_gpu_trace`",
    spec: "https://docs.nvidia.com/nsight-systems/UserGuide/ (cuda_gpu_trace)",
    verified: true,
    sniff,
    read,
};

const NOT_STORED: Event = Event { severity: Severity::Info, code: "column_not_stored", advice: None };
const ROUNDED: Event = Event {
    severity: Severity::Notice,
    code: "bytes_rounded",
    advice: Some("`nsys export --type sqlite` keeps every byte"),
};

/// A column, and the power of ten that its unit stands for.
type Scaled = Option<(usize, u32)>;

/// Where the columns are.
struct Layout {
    start: Scaled,
    duration: Scaled,
    correlation: Option<usize>,
    grid: [Option<usize>; 3],
    block: [Option<usize>; 3],
    registers: Option<usize>,
    shared: [Scaled; 2],
    bytes: Scaled,
    device: Option<usize>,
    stream: Option<usize>,
    name: Option<usize>,
}

/// A name without its unit, and the unit.
fn split_unit(name: &str) -> (&str, &str) {
    match name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")) {
        Some((name, unit)) => (name, unit),
        None => (name, ""),
    }
}

impl Layout {
    fn of(names: &[String]) -> Self {
        let at = |wanted: &str| names.iter().position(|name| split_unit(name).0 == wanted);
        let scaled = |wanted: &str, units: &[(&str, u32)]| {
            let at = at(wanted)?;
            let unit = split_unit(names.get(at)?).1;
            units.iter().find(|(name, _)| *name == unit).map(|(_, power)| (at, *power))
        };
        let time = |wanted| scaled(wanted, &[("ns", 0), ("us", 3), ("μs", 3), ("ms", 6), ("s", 9), ("sec", 9)]);
        let amount = |wanted| scaled(wanted, &[("B", 0), ("", 0), ("KB", 3), ("kB", 3), ("MB", 6), ("GB", 9)]);
        Self {
            start: time("Start"),
            duration: time("Duration"),
            correlation: at("CorrId"),
            grid: ["GrdX", "GrdY", "GrdZ"].map(at),
            block: ["BlkX", "BlkY", "BlkZ"].map(at),
            registers: at("Reg/Trd"),
            shared: ["StcSMem", "DymSMem"].map(amount),
            bytes: amount("Bytes"),
            device: at("Device"),
            stream: at("Strm"),
            name: at("Name"),
        }
    }

    fn is_whole(&self) -> bool {
        self.start.is_some() && self.duration.is_some() && self.name.is_some() && self.correlation.is_some()
    }
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let Ok(names) = cells::header(walk::first_line(head.bytes)) else { return Sniff::No };
    let has = |wanted: &str| names.iter().any(|name| split_unit(name).0 == wanted);
    if !["CorrId", "Name", "Strm"].iter().all(|name| has(name)) {
        return Sniff::No;
    }
    if Layout::of(&names).is_whole() {
        return Sniff::Yes;
    }
    Sniff::Nearly("the first line lacks `Start` or `Duration` with a unit such as `(ns)`".to_owned())
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    input.options.without_choice("nsys_csv", "the header says the units")?;
    let path = input.path;
    let lines = rows::lines(path, &mut input.body)?;
    let names = cells::first_header(path, lines)?;
    let layout = Layout::of(&names);
    if !layout.is_whole() {
        return Err(Error::data(format!(
            "expected the columns `Start (ns)`, `Duration (ns)`, `CorrId` and `Name` in `{path}`, found others"
        ))
        .hint("`nsys stats --report cuda_gpu_trace --format csv` makes such a file"));
    }
    for name in ["Throughput", "SrcMemKd", "DstMemKd", "Ctx", "GreenCtx"] {
        if let Some(name) = names.iter().find(|known| split_unit(known).0 == name) {
            sink.log(NOT_STORED, &format!("the column {} is not stored", named(name.as_bytes())), None, None);
        }
    }
    let [static_shared, dynamic_shared] = layout.shared;
    for (name, at) in [("Bytes", layout.bytes), ("StcSMem", static_shared), ("DymSMem", dynamic_shared)] {
        if let (Some(name), None) = (names.iter().find(|known| split_unit(known).0 == name), at) {
            let message = format!("the column {} is not stored: its unit is not known", named(name.as_bytes()));
            sink.log(NOT_STORED, &message, None, None);
        }
    }
    let mut gpu = Gpu::new();
    rows::each(path, &[], lines, sink, &mut |line, sink| {
        let mut cells: Vec<Cell<'_>> = Vec::with_capacity(names.len());
        let parsed = cells::split(line.bytes, &mut cells).and_then(|()| {
            let row = Row::new(&names, &cells)?;
            Ok((kernel(&row, &layout)?, row.needed(layout.name, "Name")?))
        });
        match parsed {
            Err(bad) => Ok(Outcome::Bad(bad.into())),
            Ok((kernel, name)) => {
                let (category, copy_kind) = category(name);
                if kernel.bytes.is_some() && layout.bytes.is_some_and(|(_, power)| power > 0) {
                    sink.log(ROUNDED, "bytes were printed rounded", Some(line.number), Some(line.offset));
                }
                gpu.push_kernel(&Kernel { category, name, copy_kind, ..kernel }, sink)?;
                Ok(Outcome::Row)
            }
        }
    })?;
    gpu.flush(sink)?;
    Ok(Settings { time_unit: Some("ns"), clock: Some("trace_start"), ..Settings::default() })
}

/// Kernel, copy or fill, and which copy.
fn category(name: &str) -> (&'static str, Option<&'static str>) {
    let inner = name.strip_prefix("[CUDA ").and_then(|name| name.strip_suffix(']'));
    match inner.map(|inner| inner.split_once(' ').unwrap_or((inner, ""))) {
        Some(("memcpy", kind)) => ("copy", Some(copy_kind(kind).unwrap_or("unknown"))),
        Some(("memset", _)) => ("fill", None),
        _ => ("kernel", None),
    }
}

/// All of a row but its name and what follows from that.
fn kernel(row: &Row<'_, '_>, layout: &Layout) -> std::result::Result<Kernel<'static>, Bad> {
    let (start_ns, duration_ns) = (scaled(row, layout.start)?, scaled(row, layout.duration)?);
    let [static_part, dynamic_part] = layout.shared;
    let shared = [amount(row, static_part)?, amount(row, dynamic_part)?];
    let sum = shared.iter().flatten().fold(0_u64, |sum, part| sum.saturating_add(*part));
    Ok(Kernel {
        start_ns,
        duration_ns,
        device: device(row, layout.device)?,
        stream: row.whole(layout.stream)?,
        correlation: row.whole(layout.correlation)?.filter(|id| *id > 0),
        bytes: amount(row, layout.bytes)?,
        grid: axes(row, layout.grid)?,
        block: axes(row, layout.block)?,
        registers: row.small(layout.registers)?,
        shared_bytes: shared.iter().any(Option::is_some).then_some(sum),
        ..Kernel::default()
    })
}

fn axes(row: &Row<'_, '_>, [x, y, z]: [Option<usize>; 3]) -> std::result::Result<[Option<u32>; 3], Bad> {
    Ok([row.small(x)?, row.small(y)?, row.small(z)?])
}

fn amount(row: &Row<'_, '_>, column: Scaled) -> std::result::Result<Option<u64>, Bad> {
    Ok(scaled(row, column)?.and_then(|whole| u64::try_from(whole).ok()))
}

/// A decimal number times the power of ten of its unit, as a whole number.
fn scaled(row: &Row<'_, '_>, column: Scaled) -> std::result::Result<Option<i64>, Bad> {
    let Some((at, power)) = column else { return Ok(None) };
    let Some(text) = row.text(Some(at)) else { return Ok(None) };
    let wrong = || row.bad(Some(at), "wrong_type", "a decimal number of at least zero");
    if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    let found = decimal_ns(format!("{text}e{power}").as_bytes(), TimeUnit::Ns);
    found.map(|(whole, _)| Some(whole)).ok_or_else(wrong)
}

/// `NVIDIA RTX 5000 Ada Generation Laptop GPU (0)`.
fn device(row: &Row<'_, '_>, at: Option<usize>) -> std::result::Result<Option<u32>, Bad> {
    let Some(text) = row.text(at) else { return Ok(None) };
    let digits = text.strip_suffix(')').and_then(|text| text.rsplit_once('(')).map_or(text, |(_, digits)| digits);
    let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number.map(Some).ok_or_else(|| row.bad(at, "wrong_type", "a device with its number in brackets"))
}

#[cfg(test)]
mod tests;
