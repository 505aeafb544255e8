//! Rows of `kernels`, `counters` and `annotations` on their way into record batches, for any adapter of GPU captures.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Builder, Int64Builder, RecordBatch, StringBuilder, UInt32Array, UInt32Builder, UInt64Builder,
};
use engine::error::Result;
use engine::schema::captured::{ANNOTATIONS, COUNTERS, KERNELS};

use super::sink::Sink;
use super::sparse::{Sparse, push_all};

/// The most rows of a batch.
const ROWS: usize = 64 << 10;

/// Bytes of names with which a batch is full: names of kernels are long, and memory must not grow with them.
const NAMES: usize = 32 << 20;

/// GPU work, as an adapter knows it; what it does not know is `None`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kernel<'a> {
    /// kernel, copy, fill or collective.
    pub(super) category: &'a str,
    pub(super) name: &'a str,
    pub(super) start_ns: Option<i64>,
    pub(super) duration_ns: Option<i64>,
    pub(super) process: Option<u64>,
    pub(super) device: Option<u32>,
    pub(super) stream: Option<u64>,
    pub(super) correlation: Option<u64>,
    pub(super) launch_ns: Option<i64>,
    pub(super) bytes: Option<u64>,
    pub(super) copy_kind: Option<&'a str>,
    pub(super) grid: [Option<u32>; 3],
    pub(super) block: [Option<u32>; 3],
    pub(super) registers: Option<u32>,
    pub(super) shared_bytes: Option<u64>,
    pub(super) dram_read_bytes: Option<u64>,
    pub(super) dram_write_bytes: Option<u64>,
    pub(super) l2_bytes: Option<u64>,
    pub(super) flops: Option<f64>,
}

/// A named range.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Annotation<'a> {
    pub(super) name: &'a str,
    /// nvtx, operator, runtime, step or the capture's own word.
    pub(super) category: &'a str,
    pub(super) domain: Option<&'a str>,
    pub(super) start_ns: Option<i64>,
    pub(super) duration_ns: Option<i64>,
    pub(super) process: Option<u64>,
    pub(super) thread: Option<u64>,
    pub(super) correlation: Option<u64>,
    pub(super) parent: Option<u64>,
}

/// Builders of the three tables; ids count from 0 within the source. Kernels and annotations are rows of the file, and
/// counters describe kernels; or counters are its rows, and kernels what follows from them.
pub(super) struct Gpu {
    kernels: Kernels,
    annotations: Annotations,
    counters: Counters,
    /// Whether the rows of the file are counters, and kernels are what they have in common.
    by_counter: bool,
    /// Bytes of the domains of waiting annotations, and of the texts of waiting counters.
    domains: usize,
    texts: usize,
}

impl Gpu {
    pub(super) fn new() -> Self {
        let (kernels, annotations, counters) = (Kernels::new(), Annotations::new(), Counters::new());
        Self { kernels, annotations, counters, by_counter: false, domains: 0, texts: 0 }
    }

    /// Says whether from here on each row of the file is a counter.
    pub(super) fn count_by(&mut self, by_counter: bool, sink: &mut Sink<'_>) -> Result<()> {
        if by_counter != self.by_counter {
            self.flush(sink)?;
            self.by_counter = by_counter;
        }
        Ok(())
    }

    /// Adds a kernel and hands a full batch on; gives its id.
    pub(super) fn push_kernel(&mut self, kernel: &Kernel<'_>, sink: &mut Sink<'_>) -> Result<u64> {
        let id = self.kernels.push(kernel);
        if self.kernels.rows() >= ROWS || self.kernels.name.values_slice().len() >= NAMES {
            self.kernels.flush(self.by_counter, sink)?;
        }
        Ok(id)
    }

    /// The id that the next kernel gets: counters may come before the kernel that they describe.
    pub(super) fn next_kernel(&self) -> u64 {
        self.kernels.next
    }

    /// Adds a range and hands a full batch on; gives its id.
    pub(super) fn push_annotation(&mut self, annotation: &Annotation<'_>, sink: &mut Sink<'_>) -> Result<u64> {
        let id = self.annotations.push(annotation);
        let annotations = &self.annotations;
        let names = annotations.name.values_slice().len() + annotations.category.values_slice().len();
        self.domains += annotation.domain.map_or(0, str::len);
        if annotations.rows() >= ROWS || names + self.domains >= NAMES {
            self.domains = 0;
            self.annotations.flush(sink)?;
        }
        Ok(id)
    }

    /// Adds a counter of a kernel: its value in a base unit, or what was written instead.
    pub(super) fn push_counter(
        &mut self,
        kernel_id: u64,
        counter: &str,
        unit: Option<&str>,
        value: std::result::Result<f64, &str>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        self.texts += counter.len() + unit.map_or(0, str::len) + value.err().map_or(0, str::len);
        self.counters.push(kernel_id, counter, unit, value);
        if self.counters.rows() < ROWS && self.texts < NAMES {
            return Ok(());
        }
        self.texts = 0;
        self.counters.flush(self.by_counter, sink)
    }

    /// Hands on what is left.
    pub(super) fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.kernels.flush(self.by_counter, sink)?;
        self.annotations.flush(sink)?;
        self.counters.flush(self.by_counter, sink)
    }
}

/// Builders of `kernels`.
struct Kernels {
    next: u64,
    ids: UInt64Builder,
    category: StringBuilder,
    name: StringBuilder,
    /// Start and duration.
    times: [Sparse<Int64Builder>; 2],
    process: Sparse<UInt64Builder>,
    device: Sparse<UInt32Builder>,
    /// Stream and correlation.
    places: [Sparse<UInt64Builder>; 2],
    launch: Sparse<Int64Builder>,
    bytes: Sparse<UInt64Builder>,
    copy_kind: Sparse<StringBuilder>,
    /// Grid, block, registers.
    shape: [Sparse<UInt32Builder>; 7],
    /// Shared memory, DRAM read and written, L2.
    amounts: [Sparse<UInt64Builder>; 4],
    flops: Sparse<Float64Builder>,
}

impl Kernels {
    fn new() -> Self {
        Self {
            next: 0,
            ids: UInt64Builder::new(),
            category: StringBuilder::new(),
            name: StringBuilder::new(),
            times: std::array::from_fn(|_| Sparse::new(Int64Builder::new())),
            process: Sparse::new(UInt64Builder::new()),
            device: Sparse::new(UInt32Builder::new()),
            places: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            launch: Sparse::new(Int64Builder::new()),
            bytes: Sparse::new(UInt64Builder::new()),
            copy_kind: Sparse::new(StringBuilder::new()),
            shape: std::array::from_fn(|_| Sparse::new(UInt32Builder::new())),
            amounts: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
            flops: Sparse::new(Float64Builder::new()),
        }
    }

    fn rows(&self) -> usize {
        self.ids.values_slice().len()
    }

    fn push(&mut self, kernel: &Kernel<'_>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.ids.append_value(id);
        self.category.append_value(kernel.category);
        self.name.append_value(kernel.name);
        push_all(&mut self.times, [kernel.start_ns, kernel.duration_ns]);
        self.process.push(kernel.process);
        self.device.push(kernel.device);
        push_all(&mut self.places, [kernel.stream, kernel.correlation]);
        self.launch.push(kernel.launch_ns);
        self.bytes.push(kernel.bytes);
        self.copy_kind.push_text(kernel.copy_kind);
        let ([gx, gy, gz], [bx, by, bz]) = (kernel.grid, kernel.block);
        push_all(&mut self.shape, [gx, gy, gz, bx, by, bz, kernel.registers]);
        let amounts = [kernel.shared_bytes, kernel.dram_read_bytes, kernel.dram_write_bytes, kernel.l2_bytes];
        push_all(&mut self.amounts, amounts);
        self.flops.push(kernel.flops);
        id
    }

    fn flush(&mut self, by_counter: bool, sink: &mut Sink<'_>) -> Result<()> {
        let source_ids = UInt32Array::from_value(sink.source_id(), self.rows());
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(source_ids),
            Arc::new(self.ids.finish()),
            Arc::new(self.category.finish()),
            Arc::new(self.name.finish()),
        ];
        columns.extend(self.times.each_mut().map(Sparse::finish));
        columns.extend([self.process.finish(), self.device.finish()]);
        columns.extend(self.places.each_mut().map(Sparse::finish));
        columns.extend([self.launch.finish(), self.bytes.finish(), self.copy_kind.finish()]);
        columns.extend(self.shape.each_mut().map(Sparse::finish));
        columns.extend(self.amounts.each_mut().map(Sparse::finish));
        columns.push(self.flops.finish());
        let batch = RecordBatch::try_new(KERNELS.arrow(), columns)?;
        if by_counter { sink.push_detail(&KERNELS, batch) } else { sink.push(&KERNELS, batch) }
    }
}

/// Builders of `annotations`.
struct Annotations {
    next: u64,
    ids: UInt64Builder,
    name: StringBuilder,
    category: StringBuilder,
    domain: Sparse<StringBuilder>,
    /// Start and duration.
    times: [Sparse<Int64Builder>; 2],
    /// Process, thread, correlation, parent.
    places: [Sparse<UInt64Builder>; 4],
}

impl Annotations {
    fn new() -> Self {
        Self {
            next: 0,
            ids: UInt64Builder::new(),
            name: StringBuilder::new(),
            category: StringBuilder::new(),
            domain: Sparse::new(StringBuilder::new()),
            times: std::array::from_fn(|_| Sparse::new(Int64Builder::new())),
            places: std::array::from_fn(|_| Sparse::new(UInt64Builder::new())),
        }
    }

    fn rows(&self) -> usize {
        self.ids.values_slice().len()
    }

    fn push(&mut self, annotation: &Annotation<'_>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.ids.append_value(id);
        self.name.append_value(annotation.name);
        self.category.append_value(annotation.category);
        self.domain.push_text(annotation.domain);
        push_all(&mut self.times, [annotation.start_ns, annotation.duration_ns]);
        let Annotation { process, thread, correlation, parent, .. } = *annotation;
        push_all(&mut self.places, [process, thread, correlation, parent]);
        id
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        let source_ids = UInt32Array::from_value(sink.source_id(), self.rows());
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(source_ids),
            Arc::new(self.ids.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.category.finish()),
            self.domain.finish(),
        ];
        columns.extend(self.times.each_mut().map(Sparse::finish));
        columns.extend(self.places.each_mut().map(Sparse::finish));
        sink.push(&ANNOTATIONS, RecordBatch::try_new(ANNOTATIONS.arrow(), columns)?)
    }
}

/// Builders of `counters`.
struct Counters {
    kernel: UInt64Builder,
    counter: StringBuilder,
    unit: Sparse<StringBuilder>,
    value: Sparse<Float64Builder>,
    text: Sparse<StringBuilder>,
}

impl Counters {
    fn new() -> Self {
        Self {
            kernel: UInt64Builder::new(),
            counter: StringBuilder::new(),
            unit: Sparse::new(StringBuilder::new()),
            value: Sparse::new(Float64Builder::new()),
            text: Sparse::new(StringBuilder::new()),
        }
    }

    fn rows(&self) -> usize {
        self.kernel.values_slice().len()
    }

    fn push(&mut self, kernel: u64, counter: &str, unit: Option<&str>, value: std::result::Result<f64, &str>) {
        self.kernel.append_value(kernel);
        self.counter.append_value(counter);
        self.unit.push_text(unit);
        self.value.push(value.ok());
        self.text.push_text(value.err());
    }

    fn flush(&mut self, by_counter: bool, sink: &mut Sink<'_>) -> Result<()> {
        let source_ids = UInt32Array::from_value(sink.source_id(), self.rows());
        let columns: Vec<ArrayRef> = vec![
            Arc::new(source_ids),
            Arc::new(self.kernel.finish()),
            Arc::new(self.counter.finish()),
            self.unit.finish(),
            self.value.finish(),
            self.text.finish(),
        ];
        let batch = RecordBatch::try_new(COUNTERS.arrow(), columns)?;
        if by_counter { sink.push(&COUNTERS, batch) } else { sink.push_detail(&COUNTERS, batch) }
    }
}
