//! Profiles of the profiler of `PyTorch` (Kineto): Chrome's trace JSON, plain or compressed.
//!
//! ```text
//! {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100", ...}], "distributedInfo": {...},
//!  "traceEvents": [
//!   {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 3100453, "tid": 3100453, "ts": 2413669096090.100,
//!    "dur": 35.591, "args": {"External id": 2, "Ev Idx": 1}},
//!   {"ph": "X", "cat": "kernel", "name": "triton_poi_fused_add_cos_sin_0", "pid": 0, "tid": 7, "ts": 2413669097444.592,
//!    "dur": 1.760, "args": {"device": 0, "stream": 7, "correlation": 35, "registers per thread": 16,
//!    "shared memory": 0, "grid": [1, 1, 1], "block": [128, 1, 1], ...}},
//!   {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 3100453, "tid": 3100453, "ts": ..., "dur": ...,
//!    "args": {"cbid": 211, "correlation": 35}},
//!   {"ph": "f", "cat": "ac2g", "id": 35, ...}, {"ph": "M", "name": "process_name", ...},
//!   {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": ...}],
//!  "displayTimeUnit": "ms", "baseTimeNanoseconds": 1727743122000000000}
//! ```
//!
//! Three generations write times in microseconds: whole ones since 1970, ones with three decimals since 1970, and (since
//! 2024) ones with three decimals since `baseTimeNanoseconds`. No f64 holds the second, so that decimals are read as they
//! are written. An instant below 10^15 microseconds counts from the base, which stands behind the events: a file is looked
//! through for it first, at its end if it is plain. Standard input cannot be, and then instants count from that base
//! (clock `monotonic`).
//!
//! * `kernel`, `gpu_memcpy` and `gpu_memset` become `kernels`; their device and stream are arguments, or `pid` and `tid`
//!   where these are missing. When and by which process a kernel was launched is known where the launch stands within 64
//!   events of it: profilers write the two side by side.
//! * All other ranges (`X`) and instants (`i`) become `annotations`: `cpu_op` as `operator`, calls of the CUDA, HIP and
//!   other runtimes and drivers as `runtime` with their correlation, `ProfilerStep#N` as `step`, the rest under its own
//!   word. What happens on a device and is no kernel (`gpu_user_annotation`, `cuda_sync`) has no process and thread, but
//!   the domain `device 0 stream 7`; elsewhere the domain is a `pid` that is a word.
//! * Flow events repeat what correlations say, and metadata name processes, threads and programs: they are counted, and
//!   not stored. Of what stands beside the events (host, user, job, log lines, process groups) only the base is read, and
//!   of `deviceProperties` name, memory, multiprocessors and compute capability enter the log.
//!   Names of Python functions lose the folders of their file; arguments that no column has are not stored.
//!
//! A value that its column cannot hold (a device of -1, a stream that is a word) is unknown and counted in the log; nothing
//! takes its place. Events are in no order. Refused, event by event: a range without `name` or `ts`, a broken number, a negative duration,
//! broken JSON; reading goes on at the next event.

use std::collections::VecDeque;
use std::fmt::Write as _;

use engine::error::{Error, Result};

use super::elements::{Elements, Next};
use super::gpu::{Annotation, Gpu, Kernel};
use super::json::bad_at;
use super::pieces::Place;
use super::problem::{Bad, quoted};
use super::rows::{self, ROUNDED, UNKNOWN_KEY};
use super::sink::{Event as Kind, Severity, Sink};
use super::source::Input;
use super::time::TimeUnit;
use super::walk;
use super::{Format, Head, Origin, Settings, Sniff};

mod base;
mod devices;
mod event;

use event::{COLUMNS, CORRELATION, DEVICE, Event, Id, STREAM};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "kineto",
    doc: "profiles of the PyTorch profiler (Kineto), as Chrome trace JSON",
    spec: "https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp",
    verified: true,
    sniff,
    read,
};

/// Nanoseconds from which an instant counts from 1970: 2001-09-09.
const EPOCH_NS: i64 = 1_000_000_000_000_000_000;

/// Events between a kernel and its launch.
const WINDOW: u64 = 64;

/// Bytes of a name that does not wait for its launch, and of one whose memory is not used again.
const LONG: usize = 64 << 10;

/// Bytes of a process that is a word.
const WORD: usize = 200;

/// The most keys that are counted apart.
const KEYS: usize = 64;

const FLOWS: Kind = Kind { severity: Severity::Info, code: "flow_events", advice: None };
const METADATA: Kind = Kind { severity: Severity::Info, code: "metadata_events", advice: None };
const OTHER: Kind = Kind {
    severity: Severity::DataLoss,
    code: "event_phase",
    advice: Some("only ranges (`X`) and instants (`i`) are stored"),
};
const ODD: Kind = Kind { severity: Severity::Notice, code: "odd_value", advice: Some("the value is unknown") };
/// What is told of values besides those of [`COLUMNS`].
const NOTES: [&str; 7] = [
    "the device of a kernel is not known: it has no argument `device`, and its `pid` is no number below 2^32",
    "the stream of a kernel is not known: it has no argument `stream`, and its `tid` is no number",
    "the device of a range on a device is not known: it has no argument `device`, and its `pid` is no number below 2^32",
    "a negative `pid` is no process: the process is unknown",
    "a negative `tid` beyond 32 bits is no thread: the thread is unknown",
    "a `pid` of more than 200 bytes was cut as a domain",
    "the duration of a kernel is not known: it has no `dur`",
];
const NO_DEVICE: usize = 0;
const NO_STREAM: usize = 1;
const NO_RANGE_DEVICE: usize = 2;
const NEGATIVE_PROCESS: usize = 3;
const NEGATIVE_THREAD: usize = 4;
const LONG_WORD: usize = 5;
const NO_DURATION: usize = 6;

/// Categories of ranges that profilers write besides kernels, copies and fills.
const CATEGORIES: [&str; 30] = [
    "",
    "ac2g",
    "async_cpu_to_gpu",
    "async_gpu",
    "collective_comm",
    "cpu_instant_event",
    "cpu_op",
    "cuda_event",
    "cuda_profiler_range",
    "cuda_sync",
    "external_correlation",
    "forward_backward",
    "fwdbwd",
    "gpu_pm_counter",
    "gpu_user_annotation",
    "hip",
    "hpu_op",
    "mtia_ccp_events",
    "mtia_insight",
    "mtia_workloadd",
    "Operator",
    "overhead",
    "privateuse1_driver",
    "privateuse1_runtime",
    "python_function",
    "Runtime",
    "Trace",
    "user_annotation",
    "xpu_op",
    "xpu_user_annotation",
];

const CATEGORY: Kind = Kind {
    severity: Severity::Notice,
    code: "unknown_category",
    advice: Some("events of it are ranges under that word; kernels have the category `kernel`"),
};

const LAUNCH: Kind = Kind {
    severity: Severity::Info,
    code: "launch_elsewhere",
    advice: Some("`correlation` may still join the kernel with a launch that stands elsewhere"),
};
const DEVICES: Kind = Kind { severity: Severity::Info, code: "device_properties", advice: None };
const BASE: Kind = Kind { severity: Severity::Info, code: "base_time", advice: None };
const NO_BASE: Kind = Kind {
    severity: Severity::Notice,
    code: "base_time_late",
    advice: Some("read the profile from a file to have instants since 1970"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    let start = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    if head.directory || head.binary.is_some() || !start.starts_with(b"{") {
        return Sniff::No;
    }
    let has = |key: &str| walk::has_keys(start, &[key]);
    // A long list of process groups may push the events out of the head.
    if has("schemaVersion") && ["traceEvents", "deviceProperties", "distributedInfo"].into_iter().any(has) {
        return Sniff::Yes;
    }
    if has("traceEvents") {
        return Sniff::Nearly("a Chrome trace without `schemaVersion`; `--format kineto` reads its ranges".to_owned());
    }
    Sniff::No
}

/// How often something happened, and where first.
#[derive(Debug, Default)]
struct Count {
    count: u64,
    first: Option<Place>,
}

impl Count {
    fn add(&mut self, elements: &Elements<'_>) {
        if self.count == 0 {
            self.first = Some(elements.here());
        }
        self.count += 1;
    }

    fn log(&self, sink: &mut Sink<'_>, kind: Kind, message: &str) {
        if self.count > 0 {
            let (line, byte) = (self.first.map(|place| place.line), self.first.map(|place| place.offset));
            sink.log_many(kind, message, self.count, line, byte);
        }
    }
}

/// A kernel that waits for its launch.
struct Waiting {
    kernel: Kernel<'static>,
    name: String,
    /// Number of its event.
    event: u64,
    launched: bool,
}

/// A launch, for a kernel behind it.
struct Launch {
    correlation: u64,
    process: Option<u64>,
    start_ns: i64,
    event: u64,
}

/// What the reader keeps between events.
struct Reader<'i> {
    path: &'i str,
    unit: TimeUnit,
    gpu: Gpu,
    /// Nanoseconds that are added to small instants; none while no such instant was seen.
    base: Option<Base>,
    /// The base, where it stands before the events.
    early: Option<i64>,
    latest: i64,
    events: u64,
    waiting: VecDeque<Waiting>,
    launches: VecDeque<Launch>,
    /// Names to use again.
    names: Vec<String>,
    domain: String,
    flows: Count,
    metadata: Count,
    others: Count,
    rounded: Count,
    without_launch: u64,
    /// By [`COLUMNS`], of kernels and of other events.
    odd: [[Count; COLUMNS.len()]; 2],
    /// Other values that were changed or left out, by what happened.
    notes: [Count; NOTES.len()],
    unknown: Vec<(Vec<u8>, Count)>,
    unknown_more: Count,
    categories: Vec<(Vec<u8>, Count)>,
    categories_more: Count,
}

/// Where the base came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Known(i64),
    Unknown,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    if options.block_tokens.is_some() {
        return Err(
            Error::usage("expected no block size with format `kineto`, found one").hint("its rows have no blocks")
        );
    }
    let lines = rows::lines(path, body)?;
    let mut reader = Reader::new(path, options.time_unit.unwrap_or(TimeUnit::Us));
    let mut elements = Elements::new(path, lines, b"traceEvents", b"\"ph\"")?;
    let (mut stated, mut properties) = (None, Vec::new());
    loop {
        let next = elements.next(&mut |key, value, _| match key {
            b"baseTimeNanoseconds" => stated = base::number(value),
            b"deviceProperties" => properties.extend(devices::described(value)),
            _ => {}
        })?;
        match next {
            Next::End => break,
            Next::Broken(problem) => {
                sink.found(1);
                sink.reject(*problem)?;
            }
            Next::Element => {
                reader.early = stated;
                reader.element(&mut elements, sink)?;
            }
        }
    }
    for device in &properties {
        sink.log(DEVICES, device, None, None);
    }
    reader.finish(sink)?;
    Ok(reader.settings(stated, options.time_unit.is_some(), sink))
}

impl<'i> Reader<'i> {
    fn new(path: &'i str, unit: TimeUnit) -> Self {
        Self {
            path,
            unit,
            gpu: Gpu::new(),
            base: None,
            early: None,
            latest: i64::MIN,
            events: 0,
            waiting: VecDeque::new(),
            launches: VecDeque::new(),
            names: Vec::new(),
            domain: String::new(),
            flows: Count::default(),
            metadata: Count::default(),
            others: Count::default(),
            rounded: Count::default(),
            without_launch: 0,
            odd: Default::default(),
            notes: Default::default(),
            unknown: Vec::new(),
            unknown_more: Count::default(),
            categories: Vec::new(),
            categories_more: Count::default(),
        }
    }

    /// Reads the next event, or as much more of it as is needed.
    fn element(&mut self, elements: &mut Elements<'_>, sink: &mut Sink<'_>) -> Result<()> {
        let unit = self.unit;
        let Ok((event, length)) = event::parse(elements.window(), unit) else {
            if let Some(problem) = elements.judge(&|text| event::parse(text, unit).err())? {
                sink.found(1);
                sink.reject(problem)?;
            }
            return Ok(());
        };
        let bad = self.event(&event, elements, sink)?;
        self.events += 1;
        match bad {
            None => elements.advance(length),
            Some(bad) => {
                sink.found(1);
                sink.reject(elements.refuse(length, bad))?;
            }
        }
        Ok(())
    }

    /// What becomes of an event; what is wrong with it, if it is refused.
    fn event(&mut self, event: &Event<'_>, elements: &Elements<'_>, sink: &mut Sink<'_>) -> Result<Option<Bad>> {
        match event.phase {
            b'M' => self.metadata.add(elements),
            b's' | b't' | b'f' => self.flows.add(elements),
            b'X' | b'i' | b'I' => return self.row(event, elements, sink),
            _ => self.others.add(elements),
        }
        Ok(None)
    }

    fn row(&mut self, event: &Event<'_>, elements: &Elements<'_>, sink: &mut Sink<'_>) -> Result<Option<Bad>> {
        let (stated_ns, start_exact) = event.start.unwrap_or_default();
        let Some(start_ns) = self.instant(stated_ns)? else {
            let expected = "`ts` that with `baseTimeNanoseconds` stays below 2^63 nanoseconds";
            return Ok(Some(bad_at(elements.window(), 0, "out_of_range", expected)));
        };
        self.latest = self.latest.max(start_ns);
        if !start_exact || event.duration.is_some_and(|(_, exact)| !exact) {
            self.rounded.add(elements);
        }
        for (key, _) in &event.unknown {
            count_of((&mut self.unknown, &mut self.unknown_more), key).add(elements);
        }
        if event.more_unknown {
            self.unknown_more.add(elements);
        }
        let instant = event.phase != b'X';
        let duration_ns = if instant { Some(0) } else { event.duration.map(|(ns, _)| ns) };
        if start_ns.checked_add(duration_ns.unwrap_or(0)).is_none() {
            let expected = "`ts` and `dur` of an event that ends below 2^63 nanoseconds";
            return Ok(Some(bad_at(elements.window(), 0, "out_of_range", expected)));
        }
        sink.found(1);
        match category(event, instant) {
            (Some(category), _) => self.kernel(category, event, (start_ns, duration_ns), elements),
            (None, word) => {
                let written = event.category.as_ref();
                if !CATEGORIES.contains(&written) && !written.ends_with("_runtime") && !written.ends_with("_driver") {
                    count_of((&mut self.categories, &mut self.categories_more), written.as_bytes()).add(elements);
                }
                self.annotation(word, event, (start_ns, duration_ns), elements, sink)?;
            }
        }
        let long = self.waiting.back().is_some_and(|last| last.name.len() >= LONG);
        self.release(if long { u64::MAX } else { self.events }, sink)?;
        Ok(None)
    }

    /// An instant on the file's clock, nanoseconds since 1970 where they are known.
    fn instant(&mut self, ns: i64) -> Result<Option<i64>> {
        if ns >= EPOCH_NS {
            return Ok(Some(ns));
        }
        let base = match (self.base, self.early) {
            (Some(base), _) => base,
            (None, Some(base)) => Base::Known(base),
            (None, None) => base::find(self.path)?.map_or(Base::Unknown, Base::Known),
        };
        self.base = Some(base);
        Ok(match base {
            Base::Known(base) => ns.checked_add(base),
            Base::Unknown => Some(ns),
        })
    }

    fn kernel(
        &mut self,
        category: &'static str,
        event: &Event<'_>,
        (start_ns, duration_ns): (i64, Option<i64>),
        elements: &Elements<'_>,
    ) {
        self.note_odd(event, true, elements);
        let (device, stream) = (device_of(event), stream_of(event));
        if device.is_none() && !event.is_odd(DEVICE) {
            self.notes[NO_DEVICE].add(elements);
        }
        if stream.is_none() && !event.is_odd(STREAM) {
            self.notes[NO_STREAM].add(elements);
        }
        if duration_ns.is_none() {
            self.notes[NO_DURATION].add(elements);
        }
        let mut name = self.names.pop().unwrap_or_default();
        name.clear();
        name.push_str(event.name.as_deref().unwrap_or_default());
        let copy_kind = if category == "copy" { Some(copy_kind(&name)) } else { None };
        let launch = self.launches.iter().rev().find(|launch| Some(launch.correlation) == event.correlation);
        let kernel = Kernel {
            category,
            start_ns: Some(start_ns),
            duration_ns,
            process: launch.and_then(|launch| launch.process),
            device,
            stream,
            correlation: event.correlation,
            launch_ns: launch.map(|launch| launch.start_ns),
            bytes: event.bytes,
            copy_kind,
            grid: event.grid,
            block: event.block,
            registers: event.registers,
            shared_bytes: event.shared,
            ..Kernel::default()
        };
        self.waiting.push_back(Waiting { kernel, name, event: self.events, launched: launch.is_some() });
    }

    /// Counts the arguments that their columns cannot hold. Operators use most of these words in other ways.
    fn note_odd(&mut self, event: &Event<'_>, is_kernel: bool, elements: &Elements<'_>) {
        if !event.has_odd() {
            return;
        }
        let on_device = is_kernel || is_on_device(event);
        for (column, count) in self.odd[usize::from(!is_kernel)].iter_mut().enumerate() {
            let is_kept = is_kernel || column == CORRELATION || on_device && [DEVICE, STREAM].contains(&column);
            if is_kept && event.is_odd(column) {
                count.add(elements);
            }
        }
    }

    /// Process, thread and domain of an event that lies on a device: `device 0 stream 7`, in [`Reader::domain`]. As the
    /// file has it, the process of what lies on a device is the device.
    fn on_device(&mut self, event: &Event<'_>, elements: &Elements<'_>) -> Option<u64> {
        self.domain.clear();
        let (device, stream) = (device_of(event), stream_of(event));
        if let Some(device) = device {
            let _ = write!(self.domain, "device {device}");
        } else if !event.is_odd(DEVICE) {
            self.notes[NO_RANGE_DEVICE].add(elements);
        }
        if let Some(stream) = stream {
            let gap = if device.is_some() { " " } else { "" };
            let _ = write!(self.domain, "{gap}stream {stream}");
        }
        device.map(u64::from)
    }

    fn annotation(
        &mut self,
        word: &str,
        event: &Event<'_>,
        (start_ns, duration_ns): (i64, Option<i64>),
        elements: &Elements<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let name = event.name.as_deref().unwrap_or_default();
        self.note_odd(event, false, elements);
        let (mut process, mut thread, mut domain) = (number(&event.process), thread_of(&event.thread), None);
        if is_on_device(event) {
            (process, thread) = (self.on_device(event, elements), None);
            domain = Some(self.domain.as_str()).filter(|domain| !domain.is_empty());
        } else {
            if matches!(event.process, Id::Negative(_)) {
                self.notes[NEGATIVE_PROCESS].add(elements);
            }
            if thread.is_none() && matches!(event.thread, Id::Negative(_)) {
                self.notes[NEGATIVE_THREAD].add(elements);
            }
            if let Id::Text(text) = &event.process
                && !text.is_empty()
            {
                if text.len() > WORD {
                    self.notes[LONG_WORD].add(elements);
                }
                domain = text.get(..text.floor_char_boundary(WORD));
            }
        }
        let annotation = Annotation {
            name: if event.category == "python_function" { without_folders(name) } else { name },
            category: word,
            domain,
            start_ns: Some(start_ns),
            duration_ns,
            process,
            thread,
            correlation: event.correlation,
            parent: None,
        };
        self.gpu.push_annotation(&annotation, sink)?;
        if word == "runtime"
            && let Some(correlation) = event.correlation
        {
            self.launched(Launch { correlation, process, start_ns, event: self.events });
        }
        Ok(())
    }

    /// Tells a waiting kernel, or the ones to come, of a launch.
    fn launched(&mut self, launch: Launch) {
        for waiting in self.waiting.iter_mut().rev() {
            if !waiting.launched && waiting.kernel.correlation == Some(launch.correlation) {
                waiting.kernel.process = launch.process;
                waiting.kernel.launch_ns = Some(launch.start_ns);
                waiting.launched = true;
            }
        }
        while self.launches.front().is_some_and(|first| launch.event - first.event >= WINDOW) {
            self.launches.pop_front();
        }
        self.launches.push_back(launch);
    }

    /// Hands on, in order, the kernels that have waited long enough by this event.
    fn release(&mut self, event: u64, sink: &mut Sink<'_>) -> Result<()> {
        while let Some(first) = self.waiting.front()
            && (first.launched || event - first.event >= WINDOW)
            && let Some(Waiting { kernel, name, launched, .. }) = self.waiting.pop_front()
        {
            self.without_launch += u64::from(!launched);
            self.gpu.push_kernel(&Kernel { name: &name, ..kernel }, sink)?;
            if name.capacity() <= LONG {
                self.names.push(name);
            }
        }
        Ok(())
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.release(u64::MAX, sink)?;
        self.gpu.flush(sink)?;
        self.flows.log(sink, FLOWS, "flow events were not stored: correlations say the same");
        self.metadata.log(sink, METADATA, "names of processes and threads were not stored");
        self.others.log(sink, OTHER, "an event that is neither range nor instant was not stored");
        self.rounded.log(sink, ROUNDED, "a timestamp was rounded to the nanosecond");
        for (counts, what) in self.odd.iter().zip(["a kernel", "another event"]) {
            for (column, count) in COLUMNS.iter().zip(counts) {
                let message = format!("`{column}` of {what} is not what it should be: {}", expected_of(column));
                count.log(sink, ODD, &message);
            }
        }
        for (message, count) in NOTES.iter().zip(&self.notes) {
            count.log(sink, ODD, message);
        }
        for (key, count) in &self.unknown {
            count.log(sink, UNKNOWN_KEY, &format!("the key {} is not part of the format", quoted(key)));
        }
        self.unknown_more.log(sink, UNKNOWN_KEY, "further keys that are not part of the format");
        for (word, count) in &self.categories {
            count.log(sink, CATEGORY, &format!("the category {} is not known", quoted(word)));
        }
        self.categories_more.log(sink, CATEGORY, "further categories that are not known");
        if self.without_launch > 0 {
            let message = format!("a kernel has no launch within {WINDOW} events");
            sink.log_many(LAUNCH, &message, self.without_launch, None, None);
        }
        Ok(())
    }

    fn settings(&self, stated: Option<i64>, flag: bool, sink: &mut Sink<'_>) -> Settings {
        match (self.base, stated) {
            (Some(Base::Known(base)), _) => {
                sink.log(BASE, &format!("the base of {base} nanoseconds since 1970 was added to instants"), None, None);
            }
            (Some(Base::Unknown), Some(base)) => {
                let message = format!("instants count from {base} nanoseconds since 1970, which stands behind them");
                sink.log(NO_BASE, &message, None, None);
            }
            _ => {}
        }
        let epoch = self.latest >= EPOCH_NS;
        let origin = match self.base {
            _ if flag => Origin::Flag,
            Some(Base::Known(_)) => Origin::Format,
            _ => Origin::Detected,
        };
        let clock = Some(if epoch { "epoch" } else { "monotonic" });
        Settings { time_unit: Some(self.unit.name()), clock, origin, ..Settings::default() }
    }
}

/// The count of a name; what is beyond [`KEYS`] names has one together.
fn count_of<'c>((names, more): (&'c mut Vec<(Vec<u8>, Count)>, &'c mut Count), name: &[u8]) -> &'c mut Count {
    match names.iter().position(|(known, _)| known == name) {
        Some(at) => &mut names[at].1,
        None if names.len() < KEYS => {
            names.push((name.get(..name.len().min(200)).unwrap_or_default().to_vec(), Count::default()));
            let last = names.len() - 1;
            &mut names[last].1
        }
        None => more,
    }
}

/// The category of a kernel, or the word for an annotation. Profiles of 2021 write categories with a capital.
fn category<'e>(event: &'e Event<'_>, instant: bool) -> (Option<&'static str>, &'e str) {
    if instant {
        return (None, if event.category.is_empty() { "instant" } else { &event.category });
    }
    let word = match event.category.as_ref() {
        "kernel" | "Kernel" => return (Some("kernel"), ""),
        "gpu_memcpy" | "Memcpy" => return (Some("copy"), ""),
        "gpu_memset" | "Memset" => return (Some("fill"), ""),
        "cpu_op" | "Operator" => "operator",
        "user_annotation" if event.name.as_deref().is_some_and(|name| name.starts_with("ProfilerStep#")) => "step",
        "Runtime" | "hip" => "runtime",
        word if word.ends_with("_runtime") || word.ends_with("_driver") => "runtime",
        "" => "range",
        word => word,
    };
    (None, word)
}

/// Whether `pid` and `tid` are a device and a stream.
fn is_on_device(event: &Event<'_>) -> bool {
    event.category.starts_with("gpu_") || event.category == "cuda_sync"
}

/// What one of [`COLUMNS`] holds.
fn expected_of(column: &str) -> &'static str {
    match column {
        "grid" | "block" => "three numbers from 0 to 2^32 - 1",
        "device" | "registers per thread" => "a number from 0 to 2^32 - 1",
        _ => "a number from 0 to 2^64 - 1",
    }
}

/// The device of an event by its argument, or by `pid` where it has none. One that its column cannot hold, such as -1, is
/// unknown.
fn device_of(event: &Event<'_>) -> Option<u32> {
    if event.is_odd(DEVICE) {
        return None;
    }
    event.device.or_else(|| number(&event.process).and_then(|device| u32::try_from(device).ok()))
}

/// As [`device_of`], for streams and `tid`.
fn stream_of(event: &Event<'_>) -> Option<u64> {
    if event.is_odd(STREAM) { None } else { event.stream.or(number(&event.thread)) }
}

fn number(id: &Id<'_>) -> Option<u64> {
    if let Id::Number(number) = id { Some(*number) } else { None }
}

/// A thread keeps its identity where its 32 bits were written as a negative number.
fn thread_of(id: &Id<'_>) -> Option<u64> {
    match id {
        Id::Number(number) => Some(*number),
        Id::Negative(number) => i32::try_from(*number).ok().map(|number| u64::from(number.cast_unsigned())),
        Id::None | Id::Text(_) => None,
    }
}

/// The direction of a copy, by its name: `Memcpy HtoD (Pageable -> Device)`.
fn copy_kind(name: &str) -> &'static str {
    let word = name.split_ascii_whitespace().find(|word| word.contains("to") && word.len() == 4);
    match word {
        Some("HtoD") => "host_to_device",
        Some("DtoH") => "device_to_host",
        Some("DtoD") => "device_to_device",
        Some("PtoP") => "peer_to_peer",
        Some("HtoH") => "host_to_host",
        Some("HtoA") => "host_to_array",
        Some("AtoH") => "array_to_host",
        Some("AtoA") => "array_to_array",
        Some("AtoD") => "array_to_device",
        Some("DtoA") => "device_to_array",
        _ => "unknown",
    }
}

/// `/home/someone/model.py(12): forward` without its folders.
fn without_folders(name: &str) -> &str {
    let Some((file, _)) = name.split_once("): ") else { return name };
    name.get(file.rfind(['/', '\\']).map_or(0, |slash| slash + 1)..).unwrap_or(name)
}

#[cfg(test)]
mod tests;
