//! Kernels with their booths: time and bytes, summed as integers.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use super::columns::{number, numbers, texts};
use super::rules::{Booth, Rules};
use crate::error::{Error, Result};

/// What kind of row of a capture a piece of GPU work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Category {
    /// A kernel.
    Kernel,
    /// A copy of memory.
    Copy,
    /// A fill of memory.
    Fill,
    /// A collective that the capture itself tells apart.
    Collective,
}

impl Category {
    /// Every category, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Copy, Self::Fill, Self::Collective];

    /// Its name in the table `kernels`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Collective => "collective",
        }
    }

    fn of(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|category| category.name() == name);
        found.ok_or_else(|| {
            Error::data(format!("`kernels.category`: expected kernel, copy, fill or collective, found `{name}`"))
        })
    }
}

/// One piece of GPU work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// The source.
    pub source: u32,
    /// Number within the source.
    pub id: u64,
    /// What kind of row it is.
    pub category: Category,
    /// Index of its name in [`Kernels::names`].
    pub name: u32,
    /// Start on the source's clock, ns.
    pub start: Option<i64>,
    /// Duration, ns.
    pub duration: Option<i64>,
    /// Process that launched it.
    pub process: Option<u64>,
    /// Device.
    pub device: Option<u32>,
    /// Joins it with its launch.
    pub correlation: Option<u64>,
    /// When the host launched it, ns.
    pub launch: Option<i64>,
    /// Bytes copied or filled.
    pub bytes: Option<u64>,
    /// Bytes read from device memory.
    pub dram_read: Option<u64>,
    /// Bytes written to device memory.
    pub dram_write: Option<u64>,
}

/// All GPU work of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernels {
    /// Distinct names, in order of first appearance.
    pub names: Vec<String>,
    /// The rows, in the order of the table.
    pub rows: Vec<Kernel>,
}

/// Reads rows of the canonical `kernels` table.
///
/// # Errors
/// A missing column, a column of another type, an unknown category.
pub fn kernels(batches: &[RecordBatch]) -> Result<Kernels> {
    let mut found = Kernels::default();
    let mut numbers_of_names = BTreeMap::new();
    for batch in batches {
        let (sources, ids) = (numbers::<UInt32Type>(batch, "source_id")?, numbers::<UInt64Type>(batch, "kernel_id")?);
        let (categories, names) = (texts(batch, "category")?, texts(batch, "name")?);
        let (starts, durations) =
            (numbers::<Int64Type>(batch, "start_ns")?, numbers::<Int64Type>(batch, "duration_ns")?);
        let (processes, devices) = (numbers::<UInt64Type>(batch, "process")?, numbers::<UInt32Type>(batch, "device")?);
        let (joins, launches) =
            (numbers::<UInt64Type>(batch, "correlation")?, numbers::<Int64Type>(batch, "launch_ns")?);
        let bytes = numbers::<UInt64Type>(batch, "bytes")?;
        let reads = numbers::<UInt64Type>(batch, "dram_read_bytes")?;
        let writes = numbers::<UInt64Type>(batch, "dram_write_bytes")?;
        for row in 0..batch.num_rows() {
            let name = if let Some(&known) = numbers_of_names.get(names.value(row)) {
                known
            } else {
                let next = found.names.len() as u32;
                numbers_of_names.insert(names.value(row).to_owned(), next);
                found.names.push(names.value(row).to_owned());
                next
            };
            found.rows.push(Kernel {
                source: sources.value(row),
                id: ids.value(row),
                category: Category::of(categories.value(row))?,
                name,
                start: number(starts, row),
                duration: number(durations, row),
                process: number(processes, row),
                device: number(devices, row),
                correlation: number(joins, row),
                launch: number(launches, row),
                bytes: number(bytes, row),
                dram_read: number(reads, row),
                dram_write: number(writes, row),
            });
        }
    }
    Ok(found)
}

impl Kernels {
    /// Distinct devices that are named.
    pub fn devices(&self) -> usize {
        let mut seen: Vec<(u32, u32)> =
            self.rows.iter().filter_map(|kernel| kernel.device.map(|device| (kernel.source, device))).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    }
}

/// The booth of each row. What the capture itself calls a copy, a fill or a collective needs no rule.
pub fn booths(kernels: &Kernels, rules: &Rules) -> Vec<Booth> {
    let by_name: Vec<Booth> = kernels.names.iter().map(|name| rules.booth(name)).collect();
    let of = |kernel: &Kernel| match kernel.category {
        Category::Copy | Category::Fill => Booth::Copy,
        Category::Collective => Booth::Collective,
        Category::Kernel => by_name[kernel.name as usize],
    };
    kernels.rows.iter().map(of).collect()
}

/// Sums over some rows. Sums are 128-bit integers: no sum of 64-bit figures that fit in memory leaves them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Rows.
    pub rows: u64,
    /// Rows of unknown duration.
    pub untimed: u64,
    /// Time of the others, ns.
    pub time: i128,
    /// Bytes copied or filled, where they are known.
    pub bytes: u128,
    /// Rows whose DRAM bytes are counted, both ways.
    pub counted: u64,
    /// DRAM bytes read in those rows.
    pub dram_read: u128,
    /// DRAM bytes written in those rows.
    pub dram_write: u128,
}

impl Sum {
    /// Adds a row.
    pub fn add(&mut self, kernel: &Kernel) {
        self.rows += 1;
        match kernel.duration {
            Some(time) => self.time += i128::from(time),
            None => self.untimed += 1,
        }
        self.bytes += u128::from(kernel.bytes.unwrap_or(0));
        if let (Some(read), Some(write)) = (kernel.dram_read, kernel.dram_write) {
            self.counted += 1;
            self.dram_read += u128::from(read);
            self.dram_write += u128::from(write);
        }
    }
}

/// Sums by booth and category; combinations without rows are left out.
pub fn by_booth(kernels: &Kernels, booths: &[Booth]) -> BTreeMap<(Booth, Category), Sum> {
    let mut sums: BTreeMap<(Booth, Category), Sum> = BTreeMap::new();
    for (kernel, &booth) in kernels.rows.iter().zip(booths) {
        sums.entry((booth, kernel.category)).or_default().add(kernel);
    }
    sums
}

/// Sums by name and category, with the booth: longest time first, then by name.
pub fn by_name(kernels: &Kernels, booths: &[Booth]) -> Vec<(u32, Category, Booth, Sum)> {
    let mut sums: BTreeMap<(u32, Category), (Booth, Sum)> = BTreeMap::new();
    for (kernel, &booth) in kernels.rows.iter().zip(booths) {
        sums.entry((kernel.name, kernel.category)).or_insert((booth, Sum::default())).1.add(kernel);
    }
    let mut all: Vec<_> =
        sums.into_iter().map(|((name, category), (booth, sum))| (name, category, booth, sum)).collect();
    all.sort_by(|a, b| {
        let name = |row: &(u32, Category, Booth, Sum)| kernels.names[row.0 as usize].as_str();
        (b.3.time.cmp(&a.3.time)).then_with(|| name(a).cmp(name(b))).then(a.1.cmp(&b.1))
    });
    all
}

/// The counters of DRAM bytes that the capture lacks, with the names under which profilers have them.
pub fn missing_counters(kernels: &Kernels) -> Vec<String> {
    let work =
        || kernels.rows.iter().filter(|kernel| matches!(kernel.category, Category::Kernel | Category::Collective));
    let total = work().count();
    let known = [
        ("dram_read_bytes", "dram__bytes_read.sum", work().filter(|kernel| kernel.dram_read.is_some()).count()),
        ("dram_write_bytes", "dram__bytes_write.sum", work().filter(|kernel| kernel.dram_write.is_some()).count()),
    ];
    let mut missing = Vec::new();
    for (column, counter, counted) in known {
        if counted < total {
            missing.push(format!(
                "`{column}` is known of {counted} of {total} kernels (Nsight Compute counts it as `{counter}`)"
            ));
        }
    }
    missing
}
