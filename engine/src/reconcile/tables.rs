//! What `kvtoll reconcile` prints: its tables, and their rows from what the other parts found.
//!
//! These tables are not stored: they follow from the captured ones and from what the user asks beside them.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;

use super::accesses::{AccessSum, SECTOR_BYTES};
use super::address::BlockStream;
use super::fit::Fit;
use super::kernels::{Category, Kernels, Sum, by_booth, by_name};
use super::ranges::{Annotated, Join, Kind, assign};
use super::residency::Residency;
use super::rules::{Booth, Rules};
use super::toll::{Toll, idle_ns};
use crate::cache::distance::distances;
use crate::error::Result;
use crate::schema::Type::{Bool, F64, I64, Text, U32, U64};
use crate::schema::{Cell, Scope, Table, batch_of_rows, known, maybe};

/// Time by booth.
pub static BOOTHS: Table = Table {
    name: "booths",
    doc: "a booth and the kind of rows in it",
    scope: Scope::Store,
    columns: &[
        known(
            "booth",
            Text,
            "",
            "attention, linear, moe, collective, copy, other, or unclassified where no rule matches.",
        ),
        known("category", Text, "", "kernel, copy, fill or collective, as the capture has it."),
        known("kernels", U64, "", "Rows of the capture."),
        known("untimed", U64, "", "Of these, rows of unknown duration."),
        known("time_ns", I64, "ns", "Time of the others, all devices; work that ran at once counts each."),
        maybe("share_ratio", F64, "ratio", "Of the time of all rows: kernels, collectives, copies and fills."),
        known("bytes", U64, "bytes", "Bytes copied or filled."),
        known("counted", U64, "", "Rows whose DRAM bytes are counted."),
        maybe("dram_read_bytes", U64, "bytes", "DRAM bytes read in those; unknown where there are none."),
        maybe("dram_write_bytes", U64, "bytes", "DRAM bytes written in those."),
    ],
};

/// Time by name.
pub static NAMES: Table = Table {
    name: "kernels",
    doc: "a distinct name with the rule that took it",
    scope: Scope::Store,
    columns: &[
        known("booth", Text, "", "The booth."),
        maybe("rule", Text, "", "The rule that matched; unknown where none did or none was needed."),
        known("category", Text, "", "kernel, copy, fill or collective."),
        known("kernels", U64, "", "Rows of that name."),
        known("time_ns", I64, "ns", "Their time."),
        maybe("share_ratio", F64, "ratio", "Of the time of all rows: kernels, collectives, copies and fills."),
        known("name", Text, "", "The name."),
    ],
};

/// Time by step, phase and layer.
pub static RANGES: Table = Table {
    name: "ranges",
    doc: "a step, phase or layer with its kernels; for each kind one row for those that belong to none",
    scope: Scope::Store,
    columns: &[
        known("kind", Text, "", "step, phase or layer."),
        maybe("source_id", U32, "", "The source; unknown in the row of kernels without a range."),
        maybe("annotation_id", U64, "", "The range."),
        known("name", Text, "", "Its name."),
        maybe("start_ns", I64, "ns", "When it began."),
        maybe("duration_ns", I64, "ns", "How long it took."),
        known("kernels", U64, "", "Kernels, copies and fills."),
        known("by_launch", U64, "", "Of these, joined by their launch."),
        known("by_containment", U64, "", "Of these, joined by containment in time."),
        known("time_ns", I64, "ns", "Their time."),
        known("attention_ns", I64, "ns", "Time by booth."),
        known("linear_ns", I64, "ns", "Time by booth."),
        known("moe_ns", I64, "ns", "Time by booth."),
        known("collective_ns", I64, "ns", "Time by booth."),
        known("copy_ns", I64, "ns", "Time by booth."),
        known("other_ns", I64, "ns", "Time by booth."),
        known("unclassified_ns", I64, "ns", "Time by booth."),
    ],
};

/// Measured beside modelled.
pub static TOLL: Table = Table {
    name: "toll",
    doc: "a booth as it was measured, and as the cost engine has it",
    scope: Scope::Store,
    columns: &[
        known("booth", Text, "", "A booth; host is the time in which devices had nothing to do; total is the sum."),
        maybe("kernels", U64, "", "Rows of the capture."),
        maybe("measured_ns_per_token", F64, "ns", "Measured time per token and instance."),
        maybe("modelled_ns_per_token", F64, "ns", "What the cost engine says."),
        maybe("measured_over_modelled", F64, "", "Their quotient."),
        maybe("counted", U64, "", "Rows whose DRAM bytes are counted."),
        maybe(
            "measured_dram_bytes_per_token",
            F64,
            "bytes",
            "DRAM bytes per token, read and written; unknown unless all rows are counted.",
        ),
        maybe("modelled_dram_bytes_per_token", F64, "bytes", "What the cost engine says."),
    ],
};

/// Memory accesses by launch.
pub static ACCESSES: Table = Table {
    name: "accesses",
    doc: "a launch of a kernel, or all of a source, and the memory that it touched",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        maybe("launch", U32, "", "Number of the launch; unknown for the sum of the source."),
        known("kernel", Text, "", "Name of the kernel."),
        known("accesses", U64, "", "Memory instructions of warps to device memory."),
        known("writes", U64, "", "Of these, writes."),
        known("shared_accesses", U64, "", "Instructions to shared memory, which are in no other figure."),
        known("unknown_accesses", U64, "", "Accesses whose bytes the tracer did not tell."),
        known("requested_bytes", U64, "bytes", "Bytes that lanes asked for in the others, once per lane."),
        known("sectors", U64, "", "Sectors of 32 bytes moved."),
        known("moved_bytes", U64, "bytes", "Their bytes."),
        maybe("used_bytes_per_sector", F64, "bytes", "Bytes asked for per sector moved, at most 32 for each access."),
        known("footprint_bytes", U64, "bytes", "Distinct sectors, in bytes."),
        known("reuses", U64, "", "Sectors that had been touched before."),
        maybe("p50_reuse_sectors", U64, "", "Distinct other sectors touched since, in half of the reuses no more."),
        maybe("p90_reuse_sectors", U64, "", "The same in 90% of them."),
        maybe("max_reuse_sectors", U64, "", "The most."),
    ],
};

/// KV blocks touched.
pub static BLOCK_USES: Table = Table {
    name: "block-uses",
    doc: "a reference of an access to a KV block, by an address map; repeats in a row are one",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        known("launch", U32, "", "Number of the launch."),
        known("access_id", U64, "", "The access."),
        known("layer", U64, "", "The layer."),
        known("block", U64, "", "The block within the layer."),
        known("is_write", Bool, "", "Whether it is written."),
    ],
};

/// The block references under LRU.
pub static BLOCKS: Table = Table {
    name: "blocks",
    doc: "a capacity, and how the block references of the accesses fare under LRU with it",
    scope: Scope::Store,
    columns: &[
        known("capacity_blocks", U64, "", "Blocks of one layer that fit."),
        known("references", U64, "", "References to blocks."),
        known("hits", U64, "", "References to blocks that were there."),
        maybe("hit_ratio", F64, "ratio", "Hits over references."),
        known("evictions", U64, "", "Blocks that had to go."),
    ],
};

/// Residency of a serving engine's cache.
pub static RESIDENCY: Table = Table {
    name: "residency",
    doc: "a stretch of the events of a KV cache: what the engine did, and what LRU does in the same room",
    scope: Scope::Store,
    columns: &[
        known("source_id", U32, "", "The source."),
        maybe("topic", Text, "", "Topic of the messages, which tells engines apart."),
        maybe("rank", U32, "", "Data-parallel rank."),
        maybe("medium", Text, "", "Where the blocks are."),
        maybe("group_index", U32, "", "KV cache group."),
        known("bucket", U32, "", "Number of the stretch; stretches have equally many events."),
        maybe("first_ns", I64, "ns", "Time of its first event."),
        maybe("last_ns", I64, "ns", "Time of its last event."),
        known("stored", U64, "", "Blocks stored."),
        known("stored_again", U64, "", "Blocks stored that were there already."),
        known("removed", U64, "", "Blocks removed: the engine's evictions."),
        known("removed_unknown", U64, "", "Blocks removed that were not seen being stored."),
        known("cleared", U64, "", "Blocks that went when all were cleared."),
        known("lost_messages", U64, "", "Messages missing in the sequence."),
        known("resident", U64, "", "Blocks there at the end."),
        known("peak_resident", U64, "", "Most blocks there within the stretch."),
        known("capacity_blocks", U64, "", "Blocks of the replay."),
        known("replayed_references", U64, "", "References of the replay: known ancestors and stored blocks."),
        known("replayed_hits", U64, "", "Of these, hits."),
        known("replayed_evictions", U64, "", "Evictions of the replay."),
        known("replayed_resident", U64, "", "Blocks that the replay holds at the end."),
    ],
};

/// A fit.
pub static FIT: Table = Table {
    name: "fit",
    doc: "a term of the fit to captured steps",
    scope: Scope::Store,
    columns: &[
        known("term", Text, "", "host, kv_read, weight_read, compute or collective."),
        known("is_fitted", Bool, "", "Whether the steps determine it; else it stays as the model has it."),
        known("modelled_ns", I64, "ns", "Modelled time over all steps."),
        known("factor", F64, "", "What multiplies it."),
        known("fitted_ns_per_step", F64, "ns", "Fitted time, mean over the steps."),
        known("steps", U64, "", "Engine steps."),
        known("median_error_ratio", F64, "ratio", "Median absolute error of the fitted durations, on the same steps."),
        known("p90_error_ratio", F64, "ratio", "The error that 90% of the steps do not exceed."),
        known("unfitted_median_error_ratio", F64, "ratio", "Median absolute error of the model as it was."),
    ],
};

/// Every table, by the part of `kvtoll reconcile` that shows it.
pub static ALL: [(&str, &Table); 9] = [
    ("booths", &BOOTHS),
    ("kernels", &NAMES),
    ("ranges", &RANGES),
    ("toll", &TOLL),
    ("accesses", &ACCESSES),
    ("blocks", &BLOCKS),
    ("block-uses", &BLOCK_USES),
    ("residency", &RESIDENCY),
    ("fit", &FIT),
];

macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$(Cell::from($cell)),*] };
}

/// Cells of sums, which are checked when the column is built.
fn whole(value: u128) -> Cell {
    Cell::Int(i128::try_from(value).unwrap_or(i128::MAX))
}

fn share(part: i128, all: i128) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// Time of all rows.
fn all_time(kernels: &Kernels, booths: &[Booth]) -> i128 {
    by_booth(kernels, booths).values().map(|sum| sum.time).sum()
}

/// Rows of [`BOOTHS`].
///
/// # Errors
/// A sum beyond 64 bits.
pub fn booths(kernels: &Kernels, booths: &[Booth]) -> Result<RecordBatch> {
    let all = all_time(kernels, booths);
    let mut rows = Vec::new();
    for ((booth, category), sum) in by_booth(kernels, booths) {
        let counted = |bytes: u128| if sum.counted > 0 { whole(bytes) } else { Cell::Null };
        rows.push(row![
            booth.name(),
            category.name(),
            sum.rows,
            sum.untimed,
            Cell::Int(sum.time),
            share(sum.time, all),
            whole(sum.bytes),
            sum.counted,
            counted(sum.dram_read),
            counted(sum.dram_write),
        ]);
    }
    batch_of_rows(&BOOTHS, &rows)
}

/// Rows of [`NAMES`].
///
/// # Errors
/// A sum beyond 64 bits.
pub fn names(kernels: &Kernels, booths: &[Booth], rules: &Rules) -> Result<RecordBatch> {
    let all = all_time(kernels, booths);
    let mut rows = Vec::new();
    for (name, category, booth, sum) in by_name(kernels, booths) {
        let name = kernels.names[name as usize].as_str();
        let rule = rules.matching(name).filter(|_| category == Category::Kernel).map(super::rules::Rule::text);
        let of_all = share(sum.time, all);
        rows.push(row![booth.name(), rule, category.name(), sum.rows, Cell::Int(sum.time), of_all, name]);
    }
    batch_of_rows(&NAMES, &rows)
}

/// What belongs to one range.
#[derive(Default)]
struct Held {
    kernels: u64,
    by_launch: u64,
    by_containment: u64,
    time: [i128; Booth::ALL.len()],
}

/// Rows of [`RANGES`]: ranges that have kernels, by kind and in the order of their begin.
///
/// # Errors
/// A sum beyond 64 bits.
pub fn ranges(kernels: &Kernels, booths: &[Booth], annotated: &Annotated) -> Result<RecordBatch> {
    let mut rows = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| annotated.ranges.iter().any(|range| range.kind == *kind)) {
        let mut held: BTreeMap<Option<(u32, i64, u64, usize)>, Held> = BTreeMap::new();
        for ((kernel, &booth), found) in kernels.rows.iter().zip(booths).zip(assign(kernels, annotated, kind)) {
            let key = found.map(|(at, _)| {
                let range = &annotated.ranges[at];
                (range.source, range.start, range.id, at)
            });
            let held = held.entry(key).or_default();
            held.kernels += 1;
            held.by_launch += u64::from(found.is_some_and(|(_, join)| join == Join::Launch));
            held.by_containment += u64::from(found.is_some_and(|(_, join)| join == Join::Containment));
            held.time[booth.index()] += i128::from(kernel.duration.unwrap_or(0));
        }
        for (key, held) in held {
            let range = key.map(|(.., at)| &annotated.ranges[at]);
            let mut row = row![
                kind.name(),
                range.map(|range| range.source),
                range.map(|range| range.id),
                range.map_or("(in none)", |range| range.name.as_str()),
                range.map(|range| range.start),
                range.map(|range| range.end - range.start),
                held.kernels,
                held.by_launch,
                held.by_containment,
                Cell::Int(held.time.iter().sum()),
            ];
            row.extend(held.time.map(Cell::Int));
            rows.push(row);
        }
    }
    batch_of_rows(&RANGES, &rows)
}

/// Rows of [`TOLL`]. `tokens` were generated in the capture, by instances of `tensor` devices; the toll is of a step
/// that gives `batch` tokens.
///
/// # Errors
/// A count beyond 64 bits.
pub fn toll(
    kernels: &Kernels,
    booths: &[Booth],
    toll: &Toll,
    (tokens, batch, tensor): (u64, u64, u32),
) -> Result<RecordBatch> {
    let mut sums = [Sum::default(); Booth::ALL.len()];
    for (kernel, booth) in kernels.rows.iter().zip(booths) {
        sums[booth.index()].add(kernel);
    }
    let (tokens, batch, tensor) = (tokens as f64, batch as f64, f64::from(tensor));
    let mut rows = Vec::new();
    let line = |name: &str, sum: Option<&Sum>, measured: Option<i128>, modelled: Option<f64>, moved: Option<f64>| {
        // Devices of an instance pass the same time together.
        let measured = measured.map(|time| time as f64 / tensor / tokens);
        let modelled = modelled.map(|time| time / batch);
        let quotient = measured.zip(modelled).filter(|(_, modelled)| *modelled > 0.0).map(|(a, b)| a / b);
        let bytes = sum.filter(|sum| sum.rows > 0 && sum.counted == sum.rows);
        row![
            name,
            sum.map(|sum| sum.rows),
            measured,
            modelled,
            quotient,
            sum.map(|sum| sum.counted),
            bytes.map(|sum| (sum.dram_read + sum.dram_write) as f64 / tokens),
            moved.map(|bytes| bytes / batch),
        ]
    };
    for booth in Booth::ALL {
        let sum = &sums[booth.index()];
        let is_modelled = !matches!(booth, Booth::Copy | Booth::Unclassified);
        let modelled = is_modelled.then(|| toll.ns[booth.index()]);
        rows.push(line(booth.name(), Some(sum), Some(sum.time), modelled, toll.bytes[booth.index()]));
    }
    let idle = idle_ns(kernels);
    rows.push(line("host", None, idle, Some(toll.host_ns), None));
    let all = sums.iter().map(|sum| sum.time).sum::<i128>();
    rows.push(line("total", None, idle.map(|idle| idle + all), Some(toll.total_ns), None));
    batch_of_rows(&TOLL, &rows)
}

/// Rows of [`ACCESSES`].
///
/// # Errors
/// A sum beyond 64 bits.
pub fn accesses(sums: &[AccessSum]) -> Result<RecordBatch> {
    let row = |sum: &AccessSum| {
        row![
            sum.source,
            sum.launch,
            if sum.launch.is_some() { sum.kernel.as_str() } else { "(all launches)" },
            sum.accesses,
            sum.writes,
            sum.shared,
            sum.unknown,
            whole(sum.bytes),
            sum.distances.references,
            whole(u128::from(sum.distances.references) * u128::from(SECTOR_BYTES)),
            sum.used_per_sector(),
            sum.footprint_bytes(),
            sum.distances.reuses(),
            sum.distances.percentile(50),
            sum.distances.percentile(90),
            sum.distances.percentile(100),
        ]
    };
    batch_of_rows(&ACCESSES, &sums.iter().map(row).collect::<Vec<_>>())
}

/// Rows of [`BLOCK_USES`].
///
/// # Errors
/// None that rows of a stream can cause.
pub fn block_uses(stream: &BlockStream) -> Result<RecordBatch> {
    let row = |used: &super::address::BlockUse| {
        row![used.source, used.launch, used.access, used.block.layer, used.block.block, used.is_write]
    };
    batch_of_rows(&BLOCK_USES, &stream.uses.iter().map(row).collect::<Vec<_>>())
}

/// Rows of [`BLOCKS`]: the capacity asked for, or powers of two up to one that holds every block.
///
/// # Errors
/// None that rows of a stream can cause.
pub fn blocks(stream: &BlockStream, capacity: Option<u64>) -> Result<RecordBatch> {
    let found = distances(&stream.dense());
    let (references, distinct) = (found.references, found.cold);
    let mut capacities: Vec<u64> = capacity.into_iter().collect();
    if capacities.is_empty() && distinct > 0 {
        capacities.extend((0..64).map(|power| 1 << power).take_while(|capacity| *capacity < distinct));
        capacities.push(distinct);
    }
    let row = |&capacity: &u64| {
        let hits = found.hits(capacity);
        let ratio = (references > 0).then(|| hits as f64 / references as f64);
        let evictions = if capacity == 0 { 0 } else { references - hits - distinct.min(capacity) };
        row![capacity, references, hits, ratio, evictions]
    };
    batch_of_rows(&BLOCKS, &capacities.iter().map(row).collect::<Vec<_>>())
}

/// Rows of [`RESIDENCY`].
///
/// # Errors
/// None that a residency can cause.
pub fn residency(pools: &[Residency]) -> Result<RecordBatch> {
    let mut rows = Vec::new();
    for Residency { pool, capacity, buckets } in pools {
        for bucket in buckets {
            rows.push(row![
                pool.source,
                pool.topic.clone(),
                pool.rank,
                pool.medium.clone(),
                pool.group,
                bucket.number,
                bucket.first_ns,
                bucket.last_ns,
                bucket.stored,
                bucket.stored_again,
                bucket.removed,
                bucket.removed_unknown,
                bucket.cleared,
                bucket.lost,
                bucket.resident,
                bucket.peak,
                *capacity,
                bucket.replayed_references,
                bucket.replayed_hits,
                bucket.replayed_evictions,
                bucket.replayed_resident,
            ]);
        }
    }
    batch_of_rows(&RESIDENCY, &rows)
}

/// Rows of [`FIT`].
///
/// # Errors
/// A sum beyond 64 bits.
pub fn fit(fit: &Fit) -> Result<RecordBatch> {
    let row = |term: &super::fit::Term| {
        row![
            term.name,
            term.is_fitted,
            Cell::Int(term.modelled_ns),
            term.factor,
            term.modelled_ns as f64 * term.factor / fit.steps as f64,
            fit.steps,
            fit.after.median,
            fit.after.p90,
            fit.before.median,
        ]
    };
    batch_of_rows(&FIT, &fit.terms.iter().map(row).collect::<Vec<_>>())
}
