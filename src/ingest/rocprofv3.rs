//! What `rocprofv3` of ROCm writes as CSV: dispatches of kernels, and counters of kernels.
//!
//! ```text
//! "Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",...          agents as numbers
//! "KERNEL_DISPATCH",4,1,74441,1,2,"__amd_rocclr_initHeap",14,1614963487781917,1614963487791997,0,0,256,1,1,256,1,1
//! "Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id",...,"LDS_Block_Size",...                 agents as text
//! "KERNEL_DISPATCH","Agent 7",17,26,847809,101,49,"void addition_kernel<float>(...)",101,1551401624448706,...
//! "Guid","Kind","Agent_Id","Queue_Id","Stream_Id",...,"Lds_Block_Size",...,"Vgpr_Count",...     out of a rocpd file
//! "Correlation_Id","Dispatch_Id","Agent_Id",...,"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"
//! 1,1,"Agent 1",1,15606,15606,1048576,17,"void addition_kernel<float>(...)",64,0,0,8,0,16,"SQ_WAVES",16384.000000,...
//! ```
//!
//! Columns are found by name, in any case. Instants are nanoseconds of a monotonic clock without an epoch. Grids are given
//! in work-items; `kernels` counts blocks, so that they are divided by the workgroup, rounded up. Files of counters give
//! grid and workgroup as one number each, which stands in `grid_x` and `block_x`.
//!
//! Files that rocpd writes have no process but the id of what was profiled, `Guid`: its values are numbered from 0 in the
//! order of the file, and the number is the process.
//!
//! In a file of counters, lines of one dispatch follow each other and are one kernel; each line is one row of `counters`,
//! and one that stands twice for a dispatch is counted in the log.
//! `FETCH_SIZE` and `WRITE_SIZE`, which count KiB, also give `dram_read_bytes` and `dram_write_bytes`.
//!
//! Refused as a whole: a header that has a column twice. Refused, row by row: broken numbers, an agent without a number, an end before its start, wrong numbers of cells.

use std::collections::HashSet;

use engine::error::{Error, Result};

use super::cells::{self, Cell, Row};
use super::gpu::{Gpu, Kernel};
use super::json::named;
use super::problem::{Bad, Problem};
use super::rows;
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::time::TimeUnit;
use super::walk;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "rocprofv3",
    doc: "kernels and counters of AMD GPUs, as CSV of rocprofv3 or rocpd",
    spec: "https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/latest/how-to/using-rocprofv3.html",
    verified: true,
    sniff,
    read,
};

const NOT_STORED: Event = Event { severity: Severity::Info, code: "column_not_stored", advice: None };
const UNKNOWN: Event =
    Event { severity: Severity::DataLoss, code: "unknown_column", advice: Some("the column is not stored") };
const EMPTY_LINE: Event = rows::EMPTY_LINE;
const GUIDS: Event = Event { severity: Severity::Info, code: "process_of_guid", advice: None };
const MANY_GUIDS: Event =
    Event { severity: Severity::Notice, code: "process_unknown", advice: Some("split the file by `Guid`") };
const COUNTER_AGAIN: Event = Event {
    severity: Severity::Notice,
    code: "counter_again",
    advice: Some("each is in `counters`; where the kernel has a column for it, the first one counts"),
};

/// Values of `Guid` that are numbered.
const MOST_GUIDS: usize = 4096;

/// Columns that say nothing which `kernels` or `counters` has a place for.
const LEFT_OUT: [&str; 10] = [
    "Guid",
    "Kind",
    "Thread_Id",
    "Kernel_Id",
    "Scratch_Size",
    "Private_Segment_Size",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "Duration_ns",
    "Duration",
];

/// Where the columns are.
#[derive(Debug, Default)]
struct Layout {
    name: Option<usize>,
    agent: Option<usize>,
    queue: Option<usize>,
    stream: Option<usize>,
    process: Option<usize>,
    guid: Option<usize>,
    dispatch: Option<usize>,
    correlation: Option<usize>,
    start: Option<usize>,
    end: Option<usize>,
    registers: Option<usize>,
    shared: Option<usize>,
    grid: [Option<usize>; 3],
    group: [Option<usize>; 3],
    counter: Option<usize>,
    value: Option<usize>,
}

impl Layout {
    fn of(names: &[String]) -> Self {
        let at = |name: &str| cells::column(names, name);
        Self {
            name: at("Kernel_Name"),
            agent: at("Agent_Id"),
            queue: at("Queue_Id"),
            stream: at("Stream_Id"),
            process: at("Process_Id"),
            guid: at("Guid"),
            dispatch: at("Dispatch_Id"),
            correlation: at("Correlation_Id"),
            start: at("Start_Timestamp"),
            end: at("End_Timestamp"),
            registers: at("VGPR_Count"),
            shared: at("LDS_Block_Size").or(at("Group_Segment_Size")),
            grid: [at("Grid_Size_X").or(at("Grid_Size")), at("Grid_Size_Y"), at("Grid_Size_Z")],
            group: [at("Workgroup_Size_X").or(at("Workgroup_Size")), at("Workgroup_Size_Y"), at("Workgroup_Size_Z")],
            counter: at("Counter_Name"),
            value: at("Counter_Value"),
        }
    }

    /// What is missing of a table of kernels or counters.
    fn missing(&self) -> Vec<&'static str> {
        let mut needed = vec![("Kernel_Name", self.name), ("Agent_Id", self.agent), ("Dispatch_Id", self.dispatch)];
        if self.counter.is_some() || self.value.is_some() {
            // Early files of counters had no instants.
            needed.extend([("Counter_Name", self.counter), ("Counter_Value", self.value)]);
        } else {
            needed.extend([("Start_Timestamp", self.start), ("End_Timestamp", self.end)]);
        }
        needed.into_iter().filter(|(_, at)| at.is_none()).map(|(name, _)| name).collect()
    }

    fn uses(&self, at: usize) -> bool {
        let Self { name, agent, queue, stream, process, guid, dispatch, correlation, .. } = *self;
        let Self { start, end, registers, shared, counter, value, .. } = *self;
        let single = [
            name,
            agent,
            queue,
            stream,
            process,
            guid,
            dispatch,
            correlation,
            start,
            end,
            registers,
            shared,
            counter,
            value,
        ];
        single.iter().chain(&self.grid).chain(&self.group).any(|used| *used == Some(at))
    }
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let line = walk::first_line(head.bytes);
    let Ok(names) = cells::header(line) else { return Sniff::No };
    if names.len() < 4 {
        return Sniff::No;
    }
    let layout = Layout::of(&names);
    let missing = layout.missing();
    if missing.is_empty() {
        Sniff::Yes
    } else if cells::column(&names, "Start_Timestamp").is_some() && cells::column(&names, "Correlation_Id").is_some() {
        let missing: Vec<String> = missing.into_iter().map(|name| format!("`{name}`")).collect();
        Sniff::Nearly(format!("the first line lacks {}: kernels and counters are read", missing.join(", ")))
    } else {
        Sniff::No
    }
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    input.options.without_choice("rocprofv3", "its instants are nanoseconds")?;
    let path = input.path;
    let lines = rows::lines(path, &mut input.body)?;
    let names = cells::first_header(path, lines)?;
    let layout = Layout::of(&names);
    if let Some(column) = layout.missing().first() {
        return Err(Error::data(format!("expected the column `{column}` in `{path}`, found none"))
            .hint("tables of kernels (`kernel_trace.csv`) and of counters (`counter_collection.csv`) are read"));
    }
    let twice = |(at, name): (usize, &String)| cells::column(&names, name).filter(|first| *first != at);
    if let Some(name) = names.iter().enumerate().find_map(twice).and_then(|at| names.get(at)) {
        let name = named(name.as_bytes());
        return Err(Error::data(format!("expected each column once in `{path}`, found {name} twice")));
    }
    log_columns(&names, &layout, sink);
    let mut reader = Reader { gpu: Gpu::new(), pending: None, guids: Vec::new() };
    reader.gpu.count_by(layout.counter.is_some(), sink)?;
    while let Some(line) = lines.next_line()? {
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
        } else if let Err(bad) = reader.line(&names, &layout, line, sink)? {
            sink.found(1);
            sink.reject(Problem::in_line(path, line.bytes, line.number, line.offset, bad))?;
        }
    }
    if !reader.guids.is_empty() {
        let message = format!("`process` counts the values of `Guid`, of which there are {}", reader.guids.len());
        sink.log(GUIDS, &message, None, None);
    }
    reader.finish(sink)?;
    Ok(Settings { time_unit: Some("ns"), clock: Some("monotonic"), ..Settings::default() })
}

fn log_columns(names: &[String], layout: &Layout, sink: &mut Sink<'_>) {
    for (at, name) in names.iter().enumerate().filter(|(at, _)| !layout.uses(*at)) {
        let known = LEFT_OUT.iter().any(|known| known.eq_ignore_ascii_case(name));
        let message = format!("the column {} (number {}) has no place in the tables", named(name.as_bytes()), at + 1);
        sink.log(if known { NOT_STORED } else { UNKNOWN }, &message, None, None);
    }
}

/// A dispatch whose counters are being read.
struct Pending {
    name: String,
    guid: Option<String>,
    dispatch: Option<u64>,
    kernel: Kernel<'static>,
    /// Its counters so far.
    seen: HashSet<String>,
}

struct Reader {
    gpu: Gpu,
    pending: Option<Pending>,
    /// Values of `Guid` that stand for processes.
    guids: Vec<String>,
}

impl Reader {
    /// Takes one line; the inner error is a bad row.
    fn line(
        &mut self,
        names: &[String],
        layout: &Layout,
        line: Line<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<std::result::Result<(), Bad>> {
        let mut cells: Vec<Cell<'_>> = Vec::with_capacity(names.len());
        let parsed = cells::split(line.bytes, &mut cells).and_then(|()| {
            let row = Row::new(names, &cells)?;
            let name = row.needed(layout.name, "Kernel_Name")?;
            let counter = match layout.counter {
                Some(_) => Some((row.needed(layout.counter, "Counter_Name")?, value(&row, layout.value)?)),
                None => None,
            };
            Ok((row, name, kernel(&row, layout)?, counter))
        });
        let (row, name, mut kernel, counter) = match parsed {
            Ok(parsed) => parsed,
            Err(bad) => return Ok(Err(bad)),
        };
        if layout.process.is_none()
            && let Some(guid) = row.text(layout.guid)
        {
            kernel.process = self.process_of(guid, line, sink);
        }
        let Some((counter, value)) = counter else {
            sink.found(1);
            self.gpu.push_kernel(&Kernel { name, ..kernel }, sink)?;
            return Ok(Ok(()));
        };
        let dispatch = match row.whole(layout.dispatch) {
            Ok(dispatch) => dispatch,
            Err(bad) => return Ok(Err(bad)),
        };
        let guid = row.text(layout.guid);
        let same = self.pending.as_ref().is_some_and(|pending| {
            (pending.dispatch, pending.kernel.process, pending.guid.as_deref()) == (dispatch, kernel.process, guid)
                && pending.name == name
        });
        if !same {
            self.end_dispatch(sink)?;
            let (name, guid) = (name.to_owned(), guid.map(str::to_owned));
            self.pending = Some(Pending { name, guid, dispatch, kernel, seen: HashSet::new() });
        }
        sink.found(1);
        self.gpu.push_counter(self.gpu.next_kernel(), counter, None, Ok(value), sink)?;
        if let Some(pending) = &mut self.pending {
            if !pending.seen.insert(counter.to_owned()) {
                let message = "a counter stands twice for one dispatch";
                sink.log(COUNTER_AGAIN, message, Some(line.number), Some(line.offset));
                return Ok(Ok(()));
            }
            // Both count KiB.
            let bytes = || (0.0..9e15).contains(&(value * 1024.0)).then(|| (value * 1024.0).round() as u64);
            match counter {
                "FETCH_SIZE" => pending.kernel.dram_read_bytes = bytes(),
                "WRITE_SIZE" => pending.kernel.dram_write_bytes = bytes(),
                _ => {}
            }
        }
        Ok(Ok(()))
    }

    /// The number of a `Guid`; neighbours mostly have one.
    fn process_of(&mut self, guid: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Option<u64> {
        let known = self.guids.iter().rposition(|known| known == guid);
        if known.is_none() && self.guids.len() >= MOST_GUIDS {
            let message = "a `Guid` beyond those that are numbered: the process is unknown";
            sink.log(MANY_GUIDS, message, Some(line.number), Some(line.offset));
            return None;
        }
        Some(known.unwrap_or_else(|| {
            self.guids.push(guid.to_owned());
            self.guids.len() - 1
        }) as u64)
    }

    fn end_dispatch(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        if let Some(Pending { name, kernel, .. }) = self.pending.take() {
            self.gpu.push_kernel(&Kernel { name: &name, ..kernel }, sink)?;
        }
        Ok(())
    }

    fn finish(mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.end_dispatch(sink)?;
        self.gpu.flush(sink)
    }
}

/// All of a kernel but its name.
fn kernel(row: &Row<'_, '_>, layout: &Layout) -> std::result::Result<Kernel<'static>, Bad> {
    let (start, end) = (row.ns(layout.start, TimeUnit::Ns)?, row.ns(layout.end, TimeUnit::Ns)?);
    let duration_ns = match (start, end) {
        (Some(start), Some(end)) if end < start => {
            return Err(row.bad(layout.end, "negative", &format!("an instant of at least {start}")));
        }
        (Some(start), Some(end)) => Some(end - start),
        _ => None,
    };
    let (mut grid, mut block) = ([None; 3], [None; 3]);
    for axis in 0..3 {
        block[axis] = row.small(layout.group[axis])?.filter(|threads| *threads > 0);
        let items = row.whole(layout.grid[axis])?;
        let blocks = items.zip(block[axis]).map(|(items, threads)| items.div_ceil(threads.into()));
        grid[axis] = match blocks.map(u32::try_from) {
            Some(Err(_)) => return Err(row.bad(layout.grid[axis], "out_of_range", "a grid that fits u32")),
            Some(Ok(blocks)) => Some(blocks),
            None => None,
        };
    }
    let stream = match row.whole(layout.stream)? {
        None => row.whole(layout.queue)?,
        stream => stream,
    };
    Ok(Kernel {
        category: "kernel",
        start_ns: start,
        duration_ns,
        process: row.whole(layout.process)?,
        device: agent(row, layout.agent)?,
        stream,
        // No launch has the number 0.
        correlation: row.whole(layout.correlation)?.filter(|id| *id > 0),
        grid,
        block,
        registers: row.small(layout.registers)?,
        shared_bytes: row.whole(layout.shared)?,
        ..Kernel::default()
    })
}

/// `4`, or `"Agent 4"`.
fn agent(row: &Row<'_, '_>, at: Option<usize>) -> std::result::Result<Option<u32>, Bad> {
    let Some(text) = row.text(at) else { return Ok(None) };
    let digits = text.strip_prefix("Agent").map_or(text, str::trim_start);
    let number = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number.map(Some).ok_or_else(|| row.bad(at, "wrong_type", "a number, or `Agent` and a number"))
}

fn value(row: &Row<'_, '_>, at: Option<usize>) -> std::result::Result<f64, Bad> {
    let text = row.needed(at, "Counter_Value")?;
    let number = text.bytes().next().is_some_and(|byte| byte.is_ascii_digit() || byte == b'-');
    let value = text.parse().ok().filter(|value: &f64| number && value.is_finite());
    value.ok_or_else(|| row.bad(at, "wrong_type", "a number"))
}

#[cfg(test)]
mod tests;
