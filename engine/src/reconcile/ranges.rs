//! Steps, phases and layers of a capture, and the kernels that belong to each.
//!
//! A named range counts as a *step* where its name has the word `step` or `iteration`, as a *layer* for `layer`, as a
//! *phase* for `decode`, `prefill` or `forward`; the first of these that applies. Words end at anything but a letter
//! and where a capital follows a small letter (`ProfilerStep#5`). Operators (names with `::`, categories `operator` and
//! `runtime`) are no ranges, and neither are `layer norm` and the step of an optimizer.
//!
//! A kernel whose launch was captured belongs to the innermost range of each kind that its launch lies in, within its
//! process, on the launching thread where that is known and has one. A kernel without a launch belongs to the innermost
//! range that contains it in time: a range on the same device where the capture has those (categories that begin with
//! `gpu`, whose process is the device), else one of its process. Each kernel belongs to at most one range of each kind,
//! and those that belong to none are counted apart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use arrow::array::RecordBatch;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use super::columns::{number, numbers, texts};
use super::kernels::{Kernel, Kernels};
use crate::error::Result;

/// What a range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A step of the engine or the profiler.
    Step,
    /// Part of a step: prefill, decode, forward.
    Phase,
    /// A layer of the model.
    Layer,
}

impl Kind {
    /// Every kind, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Step, Self::Phase, Self::Layer];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Phase => "phase",
            Self::Layer => "layer",
        }
    }
}

/// A step, phase or layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The source.
    pub source: u32,
    /// Number of the annotation within the source.
    pub id: u64,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Begin on the source's clock, ns.
    pub start: i64,
    /// End, ns.
    pub end: i64,
    /// Process, or the device where the range lies on one.
    pub process: Option<u64>,
    /// Thread.
    pub thread: Option<u64>,
    /// Whether it lies on a device.
    pub is_on_device: bool,
}

/// Where a launch came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Launch {
    at: i64,
    thread: Option<u64>,
}

/// What the annotations of a capture say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotated {
    /// Steps, phases and layers with a begin and an end.
    pub ranges: Vec<Range>,
    /// Launches by source, process and correlation.
    pub(super) launches: BTreeMap<(u32, u64, u64), Launch>,
}

/// How a kernel came to its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Its launch lies in the range.
    Launch,
    /// It lies in the range itself.
    Containment,
}

/// The kind of range that a name stands for.
pub fn kind_of(name: &str, category: &str) -> Option<Kind> {
    if name.contains("::") || matches!(category, "operator" | "runtime" | "cpu_op" | "cuda_runtime" | "cuda_driver") {
        return None;
    }
    let words = words(name);
    let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(&word.as_str()));
    let is_norm = words.windows(2).any(|pair| pair[0] == "layer" && pair[1].starts_with("norm"));
    if has(&["optimizer"]) {
        None
    } else if has(&["step", "steps", "iteration", "iter"]) {
        Some(Kind::Step)
    } else if has(&["layer", "layers"]) && !is_norm {
        Some(Kind::Layer)
    } else if has(&["decode", "prefill", "forward"]) {
        Some(Kind::Phase)
    } else {
        None
    }
}

/// The words of a name in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_alphabetic() || (letter.is_uppercase() && was_small) {
            words.push(String::new());
        }
        if letter.is_alphabetic() {
            words.last_mut().into_iter().for_each(|word| word.extend(letter.to_lowercase()));
        }
        was_small = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// How many steps a capture has: those that lie in no other step of their process. Where a profiler mirrors ranges on the
/// devices, those of the host count.
pub fn steps(annotated: &Annotated) -> u64 {
    let mut places: BTreeMap<Place, Vec<(i64, Reverse<i64>)>> = BTreeMap::new();
    for range in annotated.ranges.iter().filter(|range| range.kind == Kind::Step) {
        let place = (range.source, range.is_on_device, range.process);
        places.entry(place).or_default().push((range.start, Reverse(range.end)));
    }
    let on_host: BTreeSet<u32> = places.keys().filter(|place| !place.1).map(|place| place.0).collect();
    let mut count = 0;
    for ((source, is_on_device, _), mut ranges) in places {
        if is_on_device && on_host.contains(&source) {
            continue;
        }
        // Outer ranges come first, so that a range within another ends no later than the latest end before it.
        ranges.sort_unstable();
        let mut latest = i64::MIN;
        for (_, Reverse(end)) in ranges {
            count += u64::from(end > latest);
            latest = latest.max(end);
        }
    }
    count
}

/// Reads rows of the canonical `annotations` table.
///
/// # Errors
/// A missing column or a column of another type.
pub fn annotated(batches: &[RecordBatch]) -> Result<Annotated> {
    let mut found = Annotated::default();
    for batch in batches {
        let (sources, ids) =
            (numbers::<UInt32Type>(batch, "source_id")?, numbers::<UInt64Type>(batch, "annotation_id")?);
        let (names, categories) = (texts(batch, "name")?, texts(batch, "category")?);
        let (starts, durations) =
            (numbers::<Int64Type>(batch, "start_ns")?, numbers::<Int64Type>(batch, "duration_ns")?);
        let (processes, threads) = (numbers::<UInt64Type>(batch, "process")?, numbers::<UInt64Type>(batch, "thread")?);
        let joins = numbers::<UInt64Type>(batch, "correlation")?;
        for row in 0..batch.num_rows() {
            let Some(start) = number(starts, row) else { continue };
            let (name, category, source) = (names.value(row), categories.value(row), sources.value(row));
            let (process, thread) = (number(processes, row), number(threads, row));
            // Other rows may carry numbers that join them with something else.
            let is_call = matches!(category, "runtime" | "cuda_runtime" | "cuda_driver");
            if let (true, Some(process), Some(join)) = (is_call, process, number(joins, row)) {
                // The driver's call lies within the runtime's: the first of them is where the program launched.
                let launch = Launch { at: start, thread };
                let known = found.launches.entry((source, process, join)).or_insert(launch);
                if start < known.at {
                    *known = launch;
                }
            }
            let (Some(kind), Some(duration)) = (kind_of(name, category), number(durations, row)) else { continue };
            if let Some(end) = start.checked_add(duration).filter(|end| *end > start) {
                let is_on_device = category.starts_with("gpu");
                let name = name.to_owned();
                found.ranges.push(Range {
                    source,
                    id: ids.value(row),
                    kind,
                    name,
                    start,
                    end,
                    process,
                    thread,
                    is_on_device,
                });
            }
        }
    }
    Ok(found)
}

/// One kernel that looks for its range.
#[derive(Debug, Clone, Copy)]
struct Search {
    row: usize,
    at: i64,
    /// A range must last until here.
    until: i64,
    thread: Option<u64>,
    join: Join,
}

/// Where to search: ranges of a process, or of a device.
type Place = (u32, bool, Option<u64>);

/// The range of this kind of each kernel, as an index into `annotated.ranges`, and how it was found.
pub fn assign(kernels: &Kernels, annotated: &Annotated, kind: Kind) -> Vec<Option<(usize, Join)>> {
    let mut ranges: BTreeMap<Place, Vec<usize>> = BTreeMap::new();
    for (at, range) in annotated.ranges.iter().enumerate().filter(|(_, range)| range.kind == kind) {
        ranges.entry((range.source, range.is_on_device, range.process)).or_default().push(at);
    }
    let mut searches: BTreeMap<Place, Vec<Search>> = BTreeMap::new();
    for (row, kernel) in kernels.rows.iter().enumerate() {
        if let Some((place, search)) = search(row, kernel, annotated, &ranges) {
            searches.entry(place).or_default().push(search);
        }
    }
    let mut found = vec![None; kernels.rows.len()];
    for (place, mut searches) in searches {
        if let Some(ranges) = ranges.get_mut(&place) {
            ranges.sort_by_key(|&at| annotated.ranges[at].start);
            searches.sort_by_key(|search| search.at);
            sweep(&annotated.ranges, ranges, &searches, &mut found);
        }
    }
    found
}

fn search(
    row: usize,
    kernel: &Kernel,
    annotated: &Annotated,
    ranges: &BTreeMap<Place, Vec<usize>>,
) -> Option<(Place, Search)> {
    let on_host = (kernel.source, false, kernel.process);
    let launch = match (kernel.process, kernel.correlation) {
        (Some(process), Some(join)) => annotated.launches.get(&(kernel.source, process, join)).copied(),
        _ => None,
    };
    if let Some(launch) = launch.or_else(|| kernel.launch.map(|at| Launch { at, thread: None })) {
        let search = Search { row, at: launch.at, until: launch.at, thread: launch.thread, join: Join::Launch };
        return Some((on_host, search));
    }
    let start = kernel.start?;
    let until = start.checked_add(kernel.duration?)?;
    let search = Search { row, at: start, until, thread: None, join: Join::Containment };
    let on_device = (kernel.source, true, kernel.device.map(u64::from));
    Some((if ranges.contains_key(&on_device) { on_device } else { on_host }, search))
}

/// Goes through time once; at each search the ranges that have begun and not ended are at hand, innermost last.
fn sweep(all: &[Range], ranges: &[usize], searches: &[Search], found: &mut [Option<(usize, Join)>]) {
    let mut waiting = ranges.iter().copied().peekable();
    // Of ranges that begin together the shorter is the inner one, and of equal ones the later.
    let mut open: BTreeSet<(i64, Reverse<i64>, usize)> = BTreeSet::new();
    let mut ends: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    for search in searches {
        while let Some(at) = waiting.next_if(|&at| all[at].start <= search.at) {
            open.insert((all[at].start, Reverse(all[at].end), at));
            ends.push(Reverse((all[at].end, at)));
        }
        // A range ends before its end instant, so that of two that touch the later one has it.
        while let Some(&Reverse((end, at))) = ends.peek() {
            if end > search.at {
                break;
            }
            ends.pop();
            open.remove(&(all[at].start, Reverse(end), at));
        }
        let fits = |at: &usize| all[*at].end >= search.until;
        let mut inner = open.iter().rev().map(|(_, _, at)| *at).filter(fits);
        let same_thread = search.thread.and_then(|thread| inner.clone().find(|&at| all[at].thread == Some(thread)));
        found[search.row] = same_thread.or_else(|| inner.next()).map(|at| (at, search.join));
    }
}
