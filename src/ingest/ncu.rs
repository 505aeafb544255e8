//! Counters of kernels as Nsight Compute prints them with `--csv`, one metric a line or one launch a line.
//!
//! ```text
//! Final sum = 100.000000                                              what the program itself printed
//! ==PROF== Connected to process 3628380
//! "ID","Process ID","Process Name","Host Name","Kernel Name",...,"Metric Name","Metric Unit","Metric Value"     long
//! "0","2583","a","127.0.0.1","branch()","1","7","(256, 1, 1)","(1, 1, 1)","0","7.5","Command line ...","dram__bytes_read.sum","byte","2,816"
//! "ID","Process ID",...,"Stream","device__attribute_architecture",...,"dram__read_bytes",...    wide, `--page raw`
//! "","",...,"","",...,"byte",...                                                                its second row: units
//! "0","3628380",...,"7","304.00",...,"7,552.00",...
//! ```
//!
//! A row is a line: a launch of a wide file, a metric of a long one, where the lines that follow each other with one ID are
//! one launch. Each launch is a row of `kernels`, each metric one of `counters`, in base units: byte, ns, hertz. A metric
//! that stands twice for one launch is counted in the log; the first one enters `kernels`. Numbers lose their thousands
//! separators; what is no number (`n/a`, a list) is kept as text. Time, DRAM bytes, bytes between L1 and L2, registers
//! and shared memory also enter `kernels`, where a metric that is known by name counts them. Floating-point operations do
//! not: no one counter has those of tensor cores.
//!
//! Whatever does not begin with a quote is what the program or the profiler printed, and is counted but not kept, as are
//! the names of process and host: a bad row is shown without them. A header may come again, as in joined files.
//!
//! Refused as a whole: a header that has a column of a launch twice. Refused, row by row: broken quotes, wrong numbers of cells, a launch without a kernel's name, broken numbers of
//! process, stream, device, grid or block.

use std::collections::HashSet;

use engine::error::{Error, Result};

use super::cells::{self, Cell, Row};
use super::gpu::{Gpu, Kernel};
use super::json::named;
use super::problem::{Bad, Problem};
use super::rows;
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::{TimeUnit, decimal_ns};
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "ncu",
    doc: "counters of kernels by Nsight Compute, as CSV, one metric or one launch a line",
    spec: "https://docs.nvidia.com/nsight-compute/NsightComputeCli/",
    verified: true,
    sniff,
    read,
};

const NOT_STORED: Event = Event { severity: Severity::Info, code: "column_not_stored", advice: None };
const PRIVATE: Event = Event { severity: Severity::Info, code: "private_column", advice: Some("left out on purpose") };
const PRINTED: Event = Event {
    severity: Severity::Info,
    code: "printed_line",
    advice: Some("what a program prints is not kept; `--log-file` keeps it out of the file"),
};
const RULE: Event = Event { severity: Severity::Info, code: "rule_line", advice: Some("advice is not stored") };
const SCALED: Event = Event {
    severity: Severity::Notice,
    code: "scaled_unit",
    advice: Some("scaled values have few digits: print them with `--print-units base`"),
};
const AGAIN: Event = Event {
    severity: Severity::Notice,
    code: "launch_again",
    advice: Some("the lines of a launch should follow each other: counters of one launch are now at two kernels"),
};

const METRIC_AGAIN: Event = Event {
    severity: Severity::Notice,
    code: "counter_again",
    advice: Some("each is in `counters`; where the kernel has a column for it, the first one counts"),
};

/// Names of columns that describe a launch and are no metrics.
const LAUNCH: [&str; 11] = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
];
/// Other columns beside the metrics.
const BESIDE: [&str; 11] = [
    "Kernel Time",
    "Section Name",
    "Metric Name",
    "Metric Unit",
    "Metric Value",
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
    "Invocations",
];
/// Columns that tell who ran what where.
const PRIVATE_COLUMNS: [&str; 2] = ["Process Name", "Host Name"];

/// Bytes of a sector of L2.
const SECTOR: u64 = 32;

fn is_header(line: &[u8]) -> bool {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.starts_with(b"\"ID\",\"Process ID\",") && memchr::memmem::find(line, b"\"Kernel Name\"").is_some()
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let mut lines = head.bytes.split(|byte| *byte == b'\n');
    if lines.any(is_header) { Sniff::Yes } else { Sniff::No }
}

/// A header, and what is known of its columns.
struct Layout {
    names: Vec<String>,
    /// By the order of [`LAUNCH`].
    launch: [Option<usize>; LAUNCH.len()],
    /// Name, unit and value of a long file.
    metric: Option<[usize; 3]>,
    /// The metrics of a wide file.
    wide: Vec<usize>,
    /// Of these, the ones whose name stands before.
    again: HashSet<usize>,
    /// Their units, once they are known.
    units: Option<Vec<String>>,
    private: Vec<usize>,
}

impl Layout {
    fn new(line: &[u8], sink: &mut Sink<'_>) -> std::result::Result<Self, Bad> {
        let names = cells::header(line)?;
        let at = |name: &str| names.iter().position(|known| known == name);
        let metric = match ["Metric Name", "Metric Unit", "Metric Value"].map(at) {
            [Some(name), Some(unit), Some(value)] => Some([name, unit, value]),
            _ => None,
        };
        let is_metric = |name: &str| !LAUNCH.contains(&name) && !BESIDE.contains(&name);
        let wide: Vec<usize> = match metric {
            Some(_) => Vec::new(),
            None => (0..names.len()).filter(|at| names.get(*at).is_some_and(|name| is_metric(name))).collect(),
        };
        let mut known = HashSet::new();
        let twice: Vec<usize> =
            (0..names.len()).filter(|at| names.get(*at).is_some_and(|n| !known.insert(n))).collect();
        if let Some(name) = twice.iter().filter_map(|at| names.get(*at)).find(|name| !is_metric(name)) {
            let found = format!("{} twice", named(name.as_bytes()));
            return Err(Bad { at: 0, code: "duplicate_column", expected: "each column once".to_owned(), found });
        }
        for name in &names {
            if PRIVATE_COLUMNS.contains(&name.as_str()) {
                sink.log(PRIVATE, &format!("the column `{name}` is not stored"), None, None);
            } else if ["Context", "CC", "Kernel Time", "Section Name"].contains(&name.as_str())
                || (metric.is_some() && is_metric(name))
            {
                sink.log(NOT_STORED, &format!("the column {} is not stored", named(name.as_bytes())), None, None);
            }
        }
        let private = PRIVATE_COLUMNS.iter().filter_map(|name| at(name)).collect();
        let again = twice.into_iter().collect();
        Ok(Self { launch: LAUNCH.map(at), metric, wide, again, units: None, private, names })
    }

    fn at(&self, name: &str) -> Option<usize> {
        LAUNCH.iter().position(|known| *known == name).and_then(|at| self.launch.get(at).copied().flatten())
    }

    /// The line without what is private; of a line that cannot be split, only what was split before the fault.
    fn masked(&self, line: &[u8], cells: &[Cell<'_>], whole: bool) -> Vec<u8> {
        if whole && cells.len() != self.names.len() {
            // Cells are not where the header says, so that any of them may be private.
            return vec![b'*'; line.len()];
        }
        let mut shown = line.to_vec();
        for cell in self.private.iter().filter_map(|at| cells.get(*at)) {
            shown.iter_mut().skip(cell.at).take(cell.length).for_each(|byte| *byte = b'*');
        }
        if !whole && cells.len() <= self.private.iter().copied().max().unwrap_or(0) {
            let end = cells.last().map_or(0, |cell| cell.at + cell.length);
            shown.iter_mut().skip(end).for_each(|byte| *byte = b'*');
        }
        shown
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    input.options.without_choice("ncu", "the file names the unit of each metric")?;
    let path = input.path;
    let lines = rows::lines(path, &mut input.body)?;
    let mut reader = Reader { gpu: Gpu::new(), layout: None, pending: None, latest: None };
    while let Some(line) = lines.next_line()? {
        reader.line(path, line, sink)?;
    }
    if reader.layout.is_none() {
        return Err(Error::data(format!("expected the header of Nsight Compute in `{path}`, found none"))
            .hint("it begins with `\"ID\",\"Process ID\"`; make the file with `ncu --csv`"));
    }
    reader.end_launch(sink)?;
    reader.gpu.flush(sink)?;
    Ok(Settings::default())
}

/// A launch whose metrics are being read.
struct Pending {
    id: String,
    name: String,
    kernel: Kernel<'static>,
    /// Its metrics so far.
    seen: HashSet<String>,
}

struct Reader {
    gpu: Gpu,
    layout: Option<Layout>,
    pending: Option<Pending>,
    /// Process and ID of the launch before.
    latest: Option<(Option<u64>, u64)>,
}

impl Reader {
    fn line(&mut self, path: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let place = (Some(line.number), Some(line.offset));
        if is_header(line.bytes) {
            self.end_launch(sink)?;
            let layout = Layout::new(line.bytes, sink)
                .map_err(|bad| Error::data(Problem::in_line(path, line.bytes, line.number, line.offset, bad).shown))?;
            self.gpu.count_by(layout.metric.is_some(), sink)?;
            self.layout = Some(layout);
            return Ok(());
        }
        let Some(layout) = self.layout.take() else {
            if !line.is_blank() {
                sink.log(PRINTED, "a line before the header was skipped", place.0, place.1);
            }
            return Ok(());
        };
        if line.bytes.first() != Some(&b'"') {
            if !line.is_blank() {
                sink.log(PRINTED, "a line that is no row was skipped", place.0, place.1);
            }
            self.layout = Some(layout);
            return Ok(());
        }
        let mut layout = layout;
        let result = self.row(path, &mut layout, line, sink);
        self.layout = Some(layout);
        result
    }

    /// A line of cells.
    fn row(&mut self, path: &str, layout: &mut Layout, line: Line<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let mut cells: Vec<Cell<'_>> = Vec::with_capacity(layout.names.len());
        let whole = cells::split(line.bytes, &mut cells);
        let is_whole = whole.is_ok();
        let taken = match whole {
            Err(bad) => Err(bad),
            Ok(()) => match Row::new(&layout.names, &cells) {
                Err(bad) => Err(bad),
                Ok(row) => {
                    let units = layout.metric.is_none() && row.text(layout.at("ID")).is_none();
                    if units && layout.units.is_none() {
                        layout.units = Some(cells.iter().map(|cell| cell.text.trim().to_owned()).collect());
                        return Ok(());
                    }
                    if layout.metric.is_some() {
                        self.long(layout, &row, line, sink)?
                    } else {
                        self.wide(layout, &row, line, sink)?
                    }
                }
            },
        };
        if let Err(bad) = taken {
            let shown = layout.masked(line.bytes, &cells, is_whole);
            let found = if is_whole { bad.found } else { super::problem::found_at(&shown, bad.at) };
            sink.found(1);
            sink.reject(Problem::in_line(path, &shown, line.number, line.offset, Bad { found, ..bad }))?;
        }
        Ok(())
    }

    fn wide(
        &mut self,
        layout: &Layout,
        row: &Row<'_, '_>,
        line: Line<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<std::result::Result<(), Bad>> {
        let (name, mut kernel) = match launch(layout, row) {
            Ok(launch) => launch,
            Err(bad) => return Ok(Err(bad)),
        };
        for at in &layout.wide {
            let (Some(metric), Some(text)) = (layout.names.get(*at), row.text(Some(*at))) else { continue };
            let unit = layout.units.as_ref().and_then(|units| units.get(*at)).map_or("", String::as_str);
            self.metric(&mut kernel, (metric, unit, text), layout.again.contains(at), line, sink)?;
        }
        sink.found(1);
        self.gpu.push_kernel(&Kernel { name, ..kernel }, sink)?;
        Ok(Ok(()))
    }

    fn long(
        &mut self,
        layout: &Layout,
        row: &Row<'_, '_>,
        line: Line<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<std::result::Result<(), Bad>> {
        let Some([metric, unit, value]) = layout.metric else { return Ok(Ok(())) };
        let parsed = launch(layout, row).and_then(|launch| Ok((launch, row.needed(layout.at("ID"), "ID")?)));
        let ((name, kernel), id) = match parsed {
            Ok(parsed) => parsed,
            Err(bad) => return Ok(Err(bad)),
        };
        let same = self.pending.as_ref().is_some_and(|pending| {
            pending.id == id && pending.kernel.process == kernel.process && pending.name == name
        });
        if !same {
            self.end_launch(sink)?;
            if let Ok(number) = id.parse() {
                let earlier = |before: (Option<u64>, u64)| before.0 == kernel.process && before.1 >= number;
                if self.latest.is_some_and(earlier) {
                    let message = "an ID is not above the one before";
                    sink.log(AGAIN, message, Some(line.number), Some(line.offset));
                }
                self.latest = Some((kernel.process, number));
            }
            let (id, name) = (id.to_owned(), name.to_owned());
            self.pending = Some(Pending { id, name, kernel, seen: HashSet::new() });
        }
        let Some(metric) = row.text(Some(metric)) else {
            sink.log(RULE, "a line without a metric was skipped", Some(line.number), Some(line.offset));
            return Ok(Ok(()));
        };
        let (unit, text) = (row.text(Some(unit)).unwrap_or_default(), row.text(Some(value)));
        // A metric without a value is a counter that is not known.
        if let Some(mut pending) = self.pending.take() {
            let again = !pending.seen.insert(metric.to_owned());
            let pushed = self.metric(&mut pending.kernel, (metric, unit, text.unwrap_or_default()), again, line, sink);
            self.pending = Some(pending);
            sink.found(1);
            pushed?;
        }
        Ok(Ok(()))
    }

    /// Adds a metric, by name, unit and value, to the kernel that comes next; it may be there already.
    fn metric(
        &mut self,
        kernel: &mut Kernel<'static>,
        (metric, unit, text): (&str, &str, &str),
        again: bool,
        line: Line<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if again {
            sink.log(METRIC_AGAIN, "a metric stands twice for one launch", Some(line.number), Some(line.offset));
        }
        let (base, power) = base_unit(unit);
        let id = self.gpu.next_kernel();
        let shown = Some(base.as_str()).filter(|base| !base.is_empty());
        let Some(number) = plain(text) else {
            return self.gpu.push_counter(id, metric, Some(unit).filter(|unit| !unit.is_empty()), Err(text), sink);
        };
        let scaled = format!("{number}e{power}");
        let Some(value) = scaled.parse::<f64>().ok().filter(|value| value.is_finite()) else {
            return self.gpu.push_counter(id, metric, shown, Err(text), sink);
        };
        if power > 0 && base != "ns" && base != "hertz" {
            let message = format!("the unit `{unit}` was turned into `{base}`");
            sink.log(SCALED, &message, Some(line.number), Some(line.offset));
        }
        if let Some((whole, _)) = decimal_ns(scaled.as_bytes(), TimeUnit::Ns).filter(|_| !again) {
            note(kernel, metric, &base, whole);
        }
        self.gpu.push_counter(id, metric, shown, Ok(value), sink)
    }

    fn end_launch(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        if let Some(Pending { name, kernel, .. }) = self.pending.take() {
            self.gpu.push_kernel(&Kernel { name: &name, ..kernel }, sink)?;
        }
        Ok(())
    }
}

/// The name of a kernel, and the rest of what the columns say of a launch.
fn launch<'r>(layout: &Layout, row: &Row<'r, '_>) -> std::result::Result<(&'r str, Kernel<'static>), Bad> {
    let name = row.needed(layout.at("Kernel Name"), "Kernel Name")?;
    let kernel = Kernel {
        category: "kernel",
        process: row.whole(layout.at("Process ID"))?,
        device: row.small(layout.at("Device"))?,
        stream: row.whole(layout.at("Stream"))?,
        grid: axes(row, layout.at("Grid Size"))?,
        block: axes(row, layout.at("Block Size"))?,
        ..Kernel::default()
    };
    Ok((name, kernel))
}

/// `(256, 1, 1)`.
fn axes(row: &Row<'_, '_>, at: Option<usize>) -> std::result::Result<[Option<u32>; 3], Bad> {
    let Some(text) = row.text(at) else { return Ok([None; 3]) };
    let wrong = || row.bad(at, "wrong_type", "three numbers such as `(256, 1, 1)`");
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).ok_or_else(wrong)?;
    let mut axes = [None; 3];
    let mut parts = inner.split(',').map(str::trim);
    for axis in &mut axes {
        let part = parts.next().filter(|part| part.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(wrong)?;
        *axis = Some(part.parse().map_err(|_| wrong())?);
    }
    if parts.next().is_some() { Err(wrong()) } else { Ok(axes) }
}

/// Enters what `kernels` has a column for; the whole is in the base unit.
fn note(kernel: &mut Kernel<'static>, metric: &str, base: &str, whole: i64) {
    let amount = u64::try_from(whole).ok();
    match (metric, base) {
        ("gpu__time_duration.sum" | "gpu__time_duration" | "Duration", "ns") => kernel.duration_ns = Some(whole),
        ("dram__bytes_read.sum" | "dram__read_bytes" | "dram__read_bytes.sum", "byte") => {
            kernel.dram_read_bytes = amount;
        }
        ("dram__bytes_write.sum" | "dram__write_bytes" | "dram__write_bytes.sum", "byte") => {
            kernel.dram_write_bytes = amount;
        }
        ("lts__t_sectors_srcunit_tex.sum", _) => {
            kernel.l2_bytes = amount.and_then(|sectors| sectors.checked_mul(SECTOR));
        }
        ("launch__registers_per_thread" | "Registers Per Thread", _) => {
            kernel.registers = u32::try_from(whole).ok();
        }
        (
            "launch__shared_mem_per_block_static"
            | "launch__shared_mem_per_block_dynamic"
            | "Static Shared Memory Per Block"
            | "Dynamic Shared Memory Per Block",
            "byte" | "byte/block",
        ) => kernel.shared_bytes = amount.and_then(|one| kernel.shared_bytes.unwrap_or(0).checked_add(one)),
        _ => {}
    }
}

/// A number without its thousands separators; none if it is no number.
fn plain(text: &str) -> Option<String> {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
    let (whole, fraction) = digits.split_once('.').map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| is_digits(first))?;
    let grouped = whole.contains(',');
    if (grouped && first.len() > 3)
        || groups.any(|group| group.len() != 3 || !is_digits(group))
        || fraction.is_some_and(|part| !is_digits(part))
    {
        return None;
    }
    let fraction = fraction.map_or(String::new(), |part| format!(".{part}"));
    Some(format!("{sign}{}{fraction}", whole.replace(',', "")))
}

/// What may stand behind a prefix for thousands, and what time is written as, with its power of ten of nanoseconds.
const COUNTED: [&str; 12] =
    ["byte", "hz", "hertz", "inst", "cycle", "sector", "request", "warp", "thread", "block", "bit", "flop"];
const TIMES: [(&str, i32); 10] = [
    ("nsecond", 0),
    ("ns", 0),
    ("usecond", 3),
    ("us", 3),
    ("msecond", 6),
    ("ms", 6),
    ("second", 9),
    ("sec", 9),
    ("s", 9),
    ("psecond", -3),
];

/// The base unit of a unit, and the power of ten that values are multiplied by.
fn base_unit(unit: &str) -> (String, i32) {
    let (counted, per) = unit.split_once('/').map_or((unit, None), |(counted, per)| (counted, Some(per)));
    let time = |unit: &str| TIMES.iter().find(|(name, _)| *name == unit).map(|(_, power)| *power);
    let prefixed = ["K", "M", "G", "T", "P"].iter().zip([3, 6, 9, 12, 15]).find_map(|(prefix, power)| {
        let rest = counted.strip_prefix(prefix)?;
        COUNTED.contains(&rest).then_some((rest, power))
    });
    let (counted, power) = prefixed.unwrap_or((counted, 0));
    match (per, time(counted)) {
        (None, Some(power)) => ("ns".to_owned(), power),
        (None, None) if matches!(counted, "hz" | "hertz") => ("hertz".to_owned(), power),
        (None, None) => (counted.to_owned(), power),
        // Per second, whatever it was per.
        (Some(per), _) => match time(per) {
            Some(of) if counted == "cycle" => ("hertz".to_owned(), power + 9 - of),
            Some(of) => (format!("{counted}/second"), power + 9 - of),
            None => (format!("{counted}/{per}"), power),
        },
    }
}

#[cfg(test)]
mod tests;
