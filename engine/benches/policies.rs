//! Policies on a synthetic recording of a given size, driven by lines on standard input; `scripts/bench-policies` runs it
//! beside a NumPy peer. Without that script it prints how it is called.
//!
//! `make FOLDER UNITS BYTES` writes the recording: decode steps of 16 tokens each, so that a row has one block more in each
//! step and an evicting policy has one block to drop, `UNITS` blocks a row in the mean. `serve FOLDER` loads the masses and
//! answers each line `CASE THREADS STACK` with seconds, CPU seconds, lost mass and kept share.

use std::fs::File;
use std::io::{BufRead, BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use arrow::array::{
    ArrayRef, AsArray, Float32Array, ListArray, RecordBatch, StringArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float64Type};
use engine::policy::select::{self, Units};
use engine::policy::{Stack, Trial};
use engine::recording::{Head, Recording, Tables, read_together, recordings};
use engine::schema::{Cell, batch_of_rows, canonical};

use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

/// The tool's reader: it knows only the engine and Parquet, so that it can be measured without the rest of the tool.
#[path = "../../src/command/recorded/pieces.rs"]
#[expect(dead_code, reason = "what shares budgets over layers is not measured")]
mod pieces;

#[path = "../../src/unbroken.rs"]
#[expect(unused_imports, reason = "its tests are left out of a benchmark")]
mod unbroken;

use pieces::{Files, Index, Needs};

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Of the recorded model.
const LAYERS: u32 = 32;
const KV_HEADS: u32 = 8;
const BLOCK: u32 = 16;
const STEPS: u32 = 64;

/// The shape of a recording: `prompt` blocks before the first step, and so many requests.
#[derive(Clone, Copy)]
struct Shape {
    prompt: u32,
    requests: u32,
}

impl Shape {
    fn of(units: u32, bytes: u64) -> Self {
        let prompt = units.saturating_sub(STEPS / 2).max(1);
        let per_request: u64 =
            (1..=STEPS).map(|step| u64::from(prompt + step)).sum::<u64>() * u64::from(LAYERS * KV_HEADS) * 4;
        Self { prompt, requests: u32::try_from(bytes.div_ceil(per_request)).unwrap_or(1).max(1) }
    }

    fn heads(self) -> u32 {
        self.requests * LAYERS * KV_HEADS
    }

    fn prompt_tokens(self) -> u32 {
        self.prompt * BLOCK
    }
}

fn main() -> Fallible<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["make", folder, units, bytes] => make(Path::new(folder), Shape::of(units.parse()?, bytes.parse()?)),
        ["serve", folder] => serve(Path::new(folder)),
        _ => Ok(writeln!(std::io::stdout(), "run `scripts/bench-policies`, which calls this with a peer beside it")?),
    }
}

/// Masses of one row: skewed, multiples of a power of two so that sums are exact, and summing to less than 1.
fn row(state: &mut u64, length: u32, out: &mut Vec<f32>) {
    let grain = (length * 64).next_power_of_two() as f32;
    let scale = grain * 3.0 / length as f32;
    for _ in 0..length {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let even = (*state >> 40) as f32 / (1_u64 << 24) as f32;
        let square = even * even;
        out.push(((square * square * scale).floor() + 1.0) / grain);
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Writes rows in the order of request, step, layer, head, as recorders do, once as plain numbers in the order of step
/// first, which suits the peer best, and once as Parquet; and a score per prompt token and head.
fn make(folder: &Path, shape: Shape) -> Fallible<()> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut plain = BufWriter::new(File::create(folder.join("mass.f32"))?);
    let per_step = LAYERS * KV_HEADS * shape.requests;
    let mut values = Vec::new();
    for step in 1..=STEPS {
        for _ in 0..per_step {
            values.clear();
            row(&mut state, shape.prompt + step, &mut values);
            plain.write_all(&bytes_of(&values))?;
        }
    }
    plain.flush()?;
    for name in ["column_sum", "last_row"] {
        let mut scores = BufWriter::new(File::create(folder.join(format!("{name}.f32")))?);
        for _ in 0..shape.heads() {
            values.clear();
            row(&mut state, shape.prompt_tokens(), &mut values);
            scores.write_all(&bytes_of(&values))?;
        }
        scores.flush()?;
    }
    let text = format!("{} {} {STEPS} {} {BLOCK}\n", shape.heads(), shape.prompt, LAYERS * KV_HEADS / LAYERS);
    Ok(std::fs::write(folder.join("shape.txt"), text)?)
}

fn floats(path: &Path) -> Fallible<Float32Array> {
    let mut bytes = Vec::with_capacity(usize::try_from(std::fs::metadata(path)?.len())?);
    File::open(path)?.read_to_end(&mut bytes)?;
    let count = bytes.len() / 4;
    Ok(Float32Array::new(ScalarBuffer::new(bytes.into(), 0, count), None))
}

fn lists(values: Float32Array, lengths: impl Iterator<Item = usize>) -> ArrayRef {
    let field = Arc::new(Field::new("element", DataType::Float32, false));
    Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), Arc::new(values), None))
}

/// The tables of the recording: `attention` in the order of step, request, layer, head.
struct Loaded {
    head: RecordBatch,
    requests: RecordBatch,
    attention: RecordBatch,
    scores: Vec<RecordBatch>,
}

fn tables(folder: &Path) -> Fallible<Loaded> {
    let text = std::fs::read_to_string(folder.join("shape.txt"))?;
    let numbers: Vec<u32> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [heads, prompt, ..] = numbers[..] else { return Err("a shape of two numbers at least".into()) };
    let shape = Shape { prompt, requests: heads / (LAYERS * KV_HEADS) };
    let mut row = vec![Cell::from(1_u32), Cell::from("synthetic")];
    row.extend([LAYERS, 4 * KV_HEADS, KV_HEADS, 128, BLOCK].map(Cell::from));
    row.extend([Cell::from("blocks"), Cell::Null, Cell::Null, Cell::Null]);
    let number = |values: Vec<u32>| Arc::new(UInt32Array::from(values)) as ArrayRef;
    let all = shape.requests as usize;
    let requests = RecordBatch::try_from_iter([
        ("request_id", Arc::new(UInt64Array::from_iter_values(0..u64::from(shape.requests))) as ArrayRef),
        ("source_id", number(vec![1; all])),
        ("prompt_tokens", number(vec![shape.prompt_tokens(); all])),
        ("output_tokens", number(vec![STEPS * BLOCK; all])),
    ])?;
    let place = |times: u32| -> Vec<(&'static str, ArrayRef)> {
        let at = || (0..times).flat_map(|_| 0..heads);
        vec![
            ("request_id", Arc::new(UInt64Array::from_iter_values(at().map(|at| u64::from(at / (LAYERS * KV_HEADS)))))),
            ("layer", Arc::new(UInt16Array::from_iter_values(at().map(|at| (at / KV_HEADS % LAYERS) as u16)))),
            ("kv_head", Arc::new(UInt16Array::from_iter_values(at().map(|at| (at % KV_HEADS) as u16)))),
        ]
    };
    let steps = || (1..=STEPS).flat_map(|step| (0..heads).map(move |_| step));
    let mut columns = place(STEPS);
    columns.extend([
        ("step", number(steps().collect())),
        ("context_tokens", number(steps().map(|step| (prompt + step) * BLOCK).collect())),
        ("block_tokens", Arc::new(UInt16Array::from_iter_values(steps().map(|_| BLOCK as u16))) as ArrayRef),
        ("mass", lists(floats(&folder.join("mass.f32"))?, steps().map(|step| (prompt + step) as usize))),
    ]);
    let attention = RecordBatch::try_from_iter(columns)?;
    let mut scores = Vec::new();
    for name in ["column_sum", "last_row"] {
        let mut columns = place(1);
        columns.extend([
            ("channel", Arc::new((0..heads).map(|_| Some(name)).collect::<StringArray>()) as ArrayRef),
            ("rows", number(vec![1; heads as usize])),
            (
                "score",
                lists(floats(&folder.join(format!("{name}.f32")))?, (0..heads).map(|_| shape.prompt_tokens() as usize)),
            ),
        ]);
        scores.push(RecordBatch::try_from_iter(columns)?);
    }
    Ok(Loaded { head: batch_of_rows(&canonical::RECORDINGS, &[row])?, requests, attention, scores })
}

fn recording(tables: &Loaded) -> Fallible<Recording> {
    let mut all = recordings(&Tables {
        recordings: &tables.head,
        requests: std::slice::from_ref(&tables.requests),
        attention: std::slice::from_ref(&tables.attention),
        prefill_scores: &tables.scores,
        kv_stats: &[],
        queries: &[],
        kv_vectors: &[],
    })?;
    all.pop().ok_or_else(|| "no recording".into())
}

fn serve(folder: &Path) -> Fallible<()> {
    let tables = tables(folder)?;
    write_parquet(folder, &tables)?;
    let recording = recording(&tables)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.splitn(3, ' ');
        let (Some(case), Some(threads), Some(stack)) = (words.next(), words.next(), words.next()) else { continue };
        let stack = Stack::parse(stack)?;
        let (began, before) = (Instant::now(), cpu_seconds());
        let threads = threads.parse()?;
        let [lost, kept, rows] = match case {
            "choose" => choose(&stack, &recording, threads)?,
            "error" => error(&stack, &recording, threads)?,
            "decode" => decode(folder, threads)?,
            "parquet" => from_parquet(&stack, &tables, folder, threads)?,
            _ => return Err(format!("expected choose, error, decode or parquet, found {case}").into()),
        };
        let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - before);
        writeln!(out, "{seconds:.6} {cpu:.2} {:.9} {:.6}", lost / rows, kept / rows)?;
        out.flush()?;
    }
    Ok(())
}

/// CPU seconds of this process, all threads; 0 where the system does not tell. Ticks are hundredths of a second on Linux.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, which comes second, stands in parentheses and may hold spaces.
    let after = text.rsplit(") ").next().unwrap_or_default();
    let ticks: u64 = after.split(' ').skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Sums over rows: lost mass, kept share, and how many.
type Sums = [f64; 3];

/// What is timed on the heads of a layer.
type Work<'w> = dyn Fn(&[Head<'_>], &mut Vec<Units>) -> engine::error::Result<Sums> + Sync + 'w;

/// Runs `work` on every layer, or on several that are as short as that many bytes, on so many threads.
fn each_layer(recording: &Recording, threads: usize, bytes: usize, work: &Work<'_>) -> Fallible<Sums> {
    let requests: Vec<Vec<Head<'_>>> = recording.heads_by_request().collect();
    let layers: Vec<&[Head<'_>]> = requests.iter().flat_map(|heads| read_together(heads, bytes)).collect();
    let next = AtomicUsize::new(0);
    let worker = || -> engine::error::Result<Sums> {
        let (mut units, mut all) = (Vec::new(), Sums::default());
        while let Some(layer) = layers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let sums = work(layer, &mut units)?;
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        Ok(all)
    };
    let mut all = Sums::default();
    std::thread::scope(|scope| -> Fallible<()> {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            let sums = worker.join().map_err(|_| "a thread failed")??;
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Lost mass and kept share of each row, without the best set of the same size: what the selection itself takes.
fn choose(stack: &Stack, recording: &Recording, threads: usize) -> Fallible<Sums> {
    each_layer(recording, threads, select::TOGETHER, &|layer, units| {
        let (budgets, mut sums) = (vec![0; layer.len()], Sums::default());
        select::run(stack.selection(), layer, &budgets, units, |_, step, units| {
            sums[0] += units.lost_mass();
            sums[1] += f64::from(units.kept_tokens(step.context_tokens)) / f64::from(step.context_tokens);
            sums[2] += 1.0;
            Ok(())
        })?;
        Ok(sums)
    })
}

/// All that `attention_error` says.
fn error(stack: &Stack, recording: &Recording, threads: usize) -> Fallible<Sums> {
    let trial = Trial::by_steps(stack, recording.head_dim, STEPS)?;
    each_layer(recording, threads, 0, &|layer, _| {
        let found = trial.layer(recording, layer, &vec![0; layer.len()])?;
        let sum = |name: &str| {
            let column = found.column_by_name(name).map(AsArray::as_primitive::<Float64Type>);
            column.map_or(0.0, |column| column.values().iter().sum::<f64>())
        };
        Ok([sum("lost_mass_ratio"), sum("kept_ratio"), found.num_rows() as f64])
    })
}

/// Decoding alone: the columns that a scan reads, the row groups side by side.
fn decode(folder: &Path, threads: usize) -> Fallible<Sums> {
    let path = folder.join("attention.parquet");
    let metadata = ArrowReaderMetadata::load(&File::open(&path)?, ArrowReaderOptions::new())?;
    let groups = metadata.metadata().num_row_groups();
    let next = AtomicUsize::new(0);
    let columns = ["request_id", "step", "layer", "kv_head", "context_tokens", "block_tokens", "mass"];
    let worker = || -> Result<f64, String> {
        let mut rows = 0;
        loop {
            let group = next.fetch_add(1, Ordering::Relaxed);
            if group >= groups {
                return Ok(rows as f64);
            }
            let mask = ProjectionMask::columns(metadata.parquet_schema(), columns);
            let file = File::open(&path).map_err(|error| error.to_string())?;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone());
            let reader = builder.with_row_groups(vec![group]).with_projection(mask).with_batch_size(8192).build();
            for batch in reader.map_err(|error| error.to_string())? {
                rows += batch.map_err(|error| error.to_string())?.num_rows();
            }
        }
    };
    let mut rows = 0.0;
    std::thread::scope(|scope| -> Fallible<()> {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            rows += worker.join().map_err(|_| "a thread failed")??;
        }
        Ok(())
    })?;
    Ok([0.0, 0.0, rows])
}

/// The same from the file, piece by piece, as the tool does it.
fn from_parquet(stack: &Stack, tables: &Loaded, folder: &Path, threads: usize) -> Fallible<Sums> {
    let files = Files { attention: vec![folder.join("attention.parquet")], ..Files::default() };
    let index = Index::new(tables.head.clone(), std::slice::from_ref(&tables.requests), &files, Needs::default())?;
    let mut all = Sums::default();
    for piece in index.pieces(pieces::PIECE_BYTES) {
        for recording in index.read(&piece, threads)? {
            let sums = choose(stack, &recording, threads)?;
            all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        }
    }
    Ok(all)
}

/// Writes the masses as a store does, requests one after the other and each of them step by step.
fn write_parquet(folder: &Path, tables: &Loaded) -> Fallible<()> {
    let path = folder.join("attention.parquet");
    if path.exists() {
        return Ok(());
    }
    let element = ColumnPath::from(vec!["mass".to_owned(), "list".to_owned(), "element".to_owned()]);
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_max_row_group_row_count(Some(1 << 20))
        .set_max_row_group_bytes(Some(64 << 20))
        .set_column_statistics_enabled(element, EnabledStatistics::None)
        .build();
    let partial = folder.join("attention.parquet.partial");
    let mut writer = ArrowWriter::try_new(File::create(&partial)?, tables.attention.schema(), Some(properties))?;
    let each = (LAYERS * KV_HEADS) as usize;
    let requests = tables.requests.num_rows();
    for request in 0..requests {
        for step in 0..STEPS as usize {
            writer.write(&tables.attention.slice((step * requests + request) * each, each))?;
        }
    }
    writer.close()?;
    Ok(std::fs::rename(partial, path)?)
}
