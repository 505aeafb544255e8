//! Profiles of a model's layers on one device, as LLMServingSim's profiler writes them: five CSV files and a `meta.yaml`.
//!
//! ```text
//! attention.csv      prefill_chunk,kv_prefill,n_decode,kv_decode,time_us          0,0,1,16,9.31067
//! dense.csv          layer,tokens,time_us                                         act_fn,1,2.592
//! per_sequence.csv   layer,sequences,time_us                                      lm_head,1,1096.93
//! moe.csv            tokens,activated_experts,time_us                             1,8,50.2297
//! skew.csv           regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha
//! ```
//!
//! Files are told apart by their header, columns are found by name, times are microseconds. `meta.yaml` beside the file, or
//! one folder above it, names device, model, number format and the version of vLLM; the folder `tpN` says among how many
//! devices the model was shared. Without `meta.yaml` a file is refused: a time without its device says nothing.
//!
//! `hf_overrides` of `meta.yaml` holds the heads that one device had at the last of `tp_degrees` (the profiler cuts the
//! model down and runs it on one device, degree by degree, and writes what it set last). At another degree a device has
//! proportionally more; where that is no whole number, the heads are unknown.
//!
//! What becomes of a row:
//!
//! * attention: decoding alone is `attention_generation`, a prompt's chunk alone `attention_context`, both together
//!   `attention_mixed`. `kv_decode` and `kv_prefill` are kept as past tokens.
//! * dense and `per_sequence`: an operation by the layer's name, of so many tokens or requests.
//! * moe: the experts that were hit, which is what `distribution` then says.
//! * skew: `n` decoding requests of which `nb` have `kv_big` tokens and the others `kvs`. Three times were measured: with
//!   all at the mean, with all at the longest, and as it was. They become three rows of `op_timings`; in the
//!   counts of rows such a row is one. `regime`, `ratio`, `skew` and `alpha` follow from the others. Even batches of this
//!   table take three times what `attention.csv` says of the same shape, as if the three iterations had been added up: only
//!   ratios within the table mean something. So its rows name the table in `distribution`: `skew_table`, or
//!   `skew_table_off` where `meta.yaml` says that the profile does without it (`skew_fit: enabled: false`).
//!
//! Refused, row by row: too few or too many cells, broken or negative numbers, a time of zero, an attention row without
//! work, a skewed row whose lengths do not give its mean.

use std::path::{Path, PathBuf};

use engine::error::{Error, Result};
use serde::Deserialize;

use super::json::{bad_at, named};
use super::op_timings::{Op, OpTimings};
use super::problem::{Bad, Problem, quoted};
use super::rows::{self, EMPTY_LINE};
use super::sink::{Event, Severity, Sink};
use super::source::{Input, Line};
use super::walk;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "llmservingsim_profile",
    doc: "LLMServingSim's profiles of a model's layers: attention, dense, per_sequence, moe and skew CSV with meta.yaml",
    spec: "https://github.com/casys-kaist/LLMServingSim",
    verified: true,
    sniff,
    read,
};

const UNKNOWN_COLUMN: Event =
    Event { severity: Severity::DataLoss, code: "unknown_column", advice: Some("the column is not stored") };
const DERIVED: Event = Event { severity: Severity::Info, code: "derived_column", advice: None };
const NO_HEADS: Event = Event { severity: Severity::Notice, code: "heads_unknown", advice: None };
const NO_DEGREE: Event = Event {
    severity: Severity::Notice,
    code: "degree_unknown",
    advice: Some("keep the file in its folder `tpN`, below `meta.yaml`"),
};

/// The most bytes of `meta.yaml`.
const META_BYTES: u64 = 1 << 20;

/// Which of the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    Attention,
    Dense,
    PerSequence,
    Moe,
    Skew,
}

/// The files and the columns that each needs, in the order in which `Fields` has them.
const FILES: [(File, &[&str]); 5] = [
    (File::Attention, &["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]),
    (File::Dense, &["layer", "tokens", "time_us"]),
    (File::PerSequence, &["layer", "sequences", "time_us"]),
    (File::Moe, &["tokens", "activated_experts", "time_us"]),
    (File::Skew, &["n", "nb", "pc", "kp", "kvs", "kv_big", "kv_mean", "t_mean_us", "t_max_us", "t_skew_us"]),
];

/// Columns of `skew.csv` that follow from the others.
const FOLLOW: [&str; 4] = ["regime", "ratio", "skew", "alpha"];

/// What `distribution` says of rows of `skew.csv`.
pub(crate) const SKEW_TABLE: &str = "skew_table";

/// The same where the profile's own fit does without them.
pub(crate) const SKEW_TABLE_OFF: &str = "skew_table_off";

/// What `meta.yaml` says.
#[derive(Debug, Deserialize)]
struct Meta {
    gpu: String,
    model: Option<String>,
    variant: Option<String>,
    vllm_version: Option<String>,
    #[serde(default)]
    tp_degrees: Vec<u32>,
    engine_effective: Option<Engine>,
    skew_fit: Option<SkewFit>,
}

#[derive(Debug, Deserialize)]
struct SkewFit {
    enabled: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Engine {
    hf_overrides: Option<Overrides>,
}

#[derive(Debug, Deserialize)]
struct Overrides {
    num_attention_heads: Option<u32>,
    num_key_value_heads: Option<u32>,
}

fn columns(line: &[u8]) -> Vec<&[u8]> {
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
    line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).collect()
}

/// The file whose columns are all there.
fn kind(names: &[&[u8]]) -> Option<(File, &'static [&'static str])> {
    let has = |name: &&str| names.contains(&name.as_bytes());
    FILES.into_iter().find(|(_, columns)| columns.iter().all(has))
}

fn sniff(head: &Head<'_>) -> Sniff {
    if head.directory || head.binary.is_some() {
        return Sniff::No;
    }
    let names = columns(walk::first_line(head.bytes));
    let has = |name: &&str| names.contains(&name.as_bytes());
    if kind(&names).is_some() {
        return Sniff::Yes;
    }
    let near = FILES.iter().find(|(_, columns)| {
        let there = columns.iter().filter(|name| has(name)).count();
        there >= 2 && there + 1 == columns.len()
    });
    match near.and_then(|(_, columns)| columns.iter().find(|name| !has(name))) {
        Some(missing) => Sniff::Nearly(format!("the first line lacks the column `{missing}`")),
        None => Sniff::No,
    }
}

/// What all rows of a file have in common.
struct Place {
    meta: Meta,
    tensor_parallel: Option<u32>,
    query_heads: Option<u32>,
    kv_heads: Option<u32>,
}

impl Place {
    fn op(&self) -> Op<'_> {
        Op {
            framework: Some("vllm"),
            version: self.meta.vllm_version.as_deref(),
            device: &self.meta.gpu,
            model: self.meta.model.as_deref(),
            dtype: self.meta.variant.as_deref(),
            tensor_parallel: self.tensor_parallel,
            ..Op::default()
        }
    }

    fn attention(&self) -> Op<'_> {
        Op { query_heads: self.query_heads, kv_heads: self.kv_heads, ..self.op() }
    }
}

/// Finds and reads `meta.yaml`.
fn place(path: &str, sink: &mut Sink<'_>) -> Result<Place> {
    let folder = Path::new(path).parent().map(Path::to_owned).unwrap_or_default();
    let above = folder.parent().map(Path::to_owned);
    let known = [(Some(folder.clone()), "meta.yaml"), (above, "../meta.yaml")];
    let mut known = known.into_iter().filter_map(|(folder, name)| Some((folder?.join("meta.yaml"), name)));
    let Some((file, name)) = known.find(|(file, _)| file.is_file()) else {
        return Err(Error::data(format!("expected `meta.yaml` beside `{path}` or one folder above, found none"))
            .hint("it names the device; keep the profile's folder as it is"));
    };
    let meta = meta(&file)?;
    sink.companion(name, &file)?;
    let degree = folder.file_name().and_then(|name| name.to_str()?.strip_prefix("tp")?.parse::<u32>().ok());
    let only = if let [degree] = meta.tp_degrees[..] { Some(degree) } else { None };
    let tensor_parallel = degree.or(only).filter(|degree| *degree > 0);
    if tensor_parallel.is_none() {
        let message = "no folder `tpN` and no single degree in `meta.yaml` says how many devices shared the model";
        sink.log(NO_DEGREE, message, None, None);
    }
    let overrides = meta.engine_effective.as_ref().and_then(|engine| engine.hf_overrides.as_ref());
    let last = meta.tp_degrees.last().copied();
    let per_device = |heads: Option<u32>| -> Option<u32> {
        let whole = u64::from(heads?) * u64::from(last?);
        let degree = u64::from(tensor_parallel?);
        u32::try_from(whole / degree).ok().filter(|heads| *heads > 0 && whole.is_multiple_of(degree))
    };
    let query_heads = per_device(overrides.and_then(|overrides| overrides.num_attention_heads));
    let kv_heads = per_device(overrides.and_then(|overrides| overrides.num_key_value_heads));
    if query_heads.is_none() || kv_heads.is_none() {
        sink.log(NO_HEADS, "`meta.yaml` does not say how many heads a device had", None, None);
    }
    Ok(Place { meta, tensor_parallel, query_heads, kv_heads })
}

fn meta(file: &PathBuf) -> Result<Meta> {
    let wrong = |why: String| Error::data(format!("`{}` does not describe a profile: {why}", file.display()));
    let size = std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    if size > META_BYTES {
        return Err(wrong(format!("expected at most {META_BYTES} bytes, found {size}")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_saphyr::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let Input { path, options, body } = input;
    let lines = rows::lines(path, body)?;
    options.without_choice("llmservingsim_profile", "its times are microseconds")?;
    let mut layout: Option<Layout> = None;
    let mut ops = OpTimings::new();
    let place = place(path, sink)?;
    while let Some(line) = lines.next_line()? {
        if line.is_blank() {
            sink.log(EMPTY_LINE, "an empty line was skipped", Some(line.number), Some(line.offset));
            continue;
        }
        let Some(layout) = &layout else {
            layout = Some(Layout::of(path, line, sink)?);
            continue;
        };
        match layout.measured(line.bytes, &place) {
            Ok(found) => {
                sink.found(1);
                let mut found = found.iter();
                found.next().map_or(Ok(()), |op| ops.push(op, sink))?;
                // The other times of a skewed row describe the same row of the file.
                found.try_for_each(|op| ops.push_detail(op, sink))?;
            }
            Err(bad) => {
                sink.found(1);
                sink.reject(Problem::in_line(path, line.bytes, line.number, line.offset, bad))?;
            }
        }
    }
    ops.flush(sink)?;
    Ok(Settings::default())
}

/// Where the columns of a file are.
struct Layout {
    file: File,
    /// Of each column that the file needs.
    at: Vec<usize>,
    names: &'static [&'static str],
    width: usize,
}

impl Layout {
    fn of(path: &str, line: Line<'_>, sink: &mut Sink<'_>) -> Result<Self> {
        let found = columns(line.bytes);
        let Some((file, names)) = kind(&found) else {
            let shown = quoted(line.bytes);
            return Err(Error::data(format!("expected the header of a profile in `{path}`, found {shown}")).hint(
                "attention.csv, dense.csv, per_sequence.csv, moe.csv and skew.csv are read; skew_fit.csv is a fit",
            ));
        };
        for (at, name) in found.iter().enumerate() {
            if found[..at].contains(name) {
                return Err(Error::data(format!("expected each column once in `{path}`, found {} twice", named(name))));
            }
            let text = String::from_utf8_lossy(name);
            if file == File::Skew && FOLLOW.contains(&&*text) {
                let message = format!("the column `{text}` follows from others and is not kept");
                sink.log(DERIVED, &message, Some(line.number), Some(line.offset));
            } else if !names.contains(&&*text) {
                let message = format!("the column {} is not part of the format", named(name));
                sink.log(UNKNOWN_COLUMN, &message, Some(line.number), Some(line.offset));
            }
        }
        let at = names.iter().filter_map(|name| found.iter().position(|one| *one == name.as_bytes())).collect();
        Ok(Self { file, at, names, width: found.len() })
    }

    /// The operations that a line measures.
    fn measured<'a>(&self, line: &'a [u8], place: &'a Place) -> std::result::Result<Vec<Op<'a>>, Bad> {
        let row = Fields::of(self, line)?;
        Ok(match self.file {
            File::Attention => {
                let [chunk, before, decoding, kv] = [row.whole(0)?, row.whole(1)?, row.small(2)?.into(), row.whole(3)?];
                vec![Op { latency_ns: row.time(4)?, ..row.attention(place, [chunk, before, decoding, kv], 0)? }]
            }
            File::Dense => {
                vec![Op { name: row.text(0)?, new_tokens: Some(row.whole(1)?), latency_ns: row.time(2)?, ..place.op() }]
            }
            File::PerSequence => {
                vec![Op { name: row.text(0)?, batch: Some(row.small(1)?), latency_ns: row.time(2)?, ..place.op() }]
            }
            File::Moe => vec![Op {
                name: "moe",
                new_tokens: Some(row.whole(0)?),
                active_experts: Some(row.small(1)?),
                distribution: Some("experts_hit"),
                latency_ns: row.time(2)?,
                ..place.op()
            }],
            File::Skew => row.skewed(place)?,
        })
    }
}

/// The cells of a line, by the columns that the file needs.
struct Fields<'l, 'a> {
    layout: &'l Layout,
    line: &'a [u8],
    /// Each cell with its offset.
    cells: Vec<(usize, &'a [u8])>,
}

impl<'l, 'a> Fields<'l, 'a> {
    fn of(layout: &'l Layout, line: &'a [u8]) -> std::result::Result<Self, Bad> {
        let mut cells = Vec::with_capacity(layout.width);
        let mut from = 0;
        for cell in line.split(|byte| *byte == b',') {
            cells.push((from, cell));
            from += cell.len() + 1;
        }
        if cells.len() != layout.width {
            let expected = format!("{} cells", layout.width);
            return Err(Bad { at: line.len(), code: "cell_count", expected, found: cells.len().to_string() });
        }
        Ok(Self { layout, line, cells })
    }

    /// A cell, its offset and the name of its column.
    fn cell(&self, column: usize) -> (&'a [u8], usize, &'static str) {
        let (at, cell) = self.layout.at.get(column).and_then(|at| self.cells.get(*at)).copied().unwrap_or_default();
        (cell.trim_ascii(), at, self.layout.names.get(column).copied().unwrap_or_default())
    }

    fn text(&self, column: usize) -> std::result::Result<&'a str, Bad> {
        let (cell, at, name) = self.cell(column);
        let text = std::str::from_utf8(cell).ok().filter(|text| !text.is_empty());
        text.ok_or_else(|| bad_at(self.line, at, "wrong_type", format!("`{name}` as text")))
    }

    fn whole(&self, column: usize) -> std::result::Result<u64, Bad> {
        let (cell, at, name) = self.cell(column);
        let value = std::str::from_utf8(cell).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        value
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| bad_at(self.line, at, "wrong_type", format!("`{name}` as a whole number of at least zero")))
    }

    fn small(&self, column: usize) -> std::result::Result<u32, Bad> {
        let (_, at, name) = self.cell(column);
        let value = u32::try_from(self.whole(column)?);
        value.map_err(|_| bad_at(self.line, at, "out_of_range", format!("`{name}` of at most {}", u32::MAX)))
    }

    /// A time above zero in microseconds, as nanoseconds: the decimal point moves in the text, so that nothing is rounded
    /// twice.
    fn time(&self, column: usize) -> std::result::Result<f64, Bad> {
        let (cell, at, name) = self.cell(column);
        let text = std::str::from_utf8(cell).unwrap_or_default();
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let value = if plain { format!("{text}e3").parse() } else { text.parse::<f64>().map(|value| value * 1e3) };
        let value = value.ok().filter(|value| *value > 0.0 && *value < 1e18);
        value.ok_or_else(|| bad_at(self.line, at, "wrong_type", format!("`{name}` as microseconds above zero")))
    }

    /// Attention of a chunk after so many tokens and of so many decoding requests at so many tokens each.
    fn attention<'p>(
        &self,
        place: &'p Place,
        [chunk, before, decoding, kv]: [u64; 4],
        column: usize,
    ) -> std::result::Result<Op<'p>, Bad> {
        let (_, at, name) = self.cell(column);
        let batch = u32::try_from(decoding).ok();
        let shared = place.attention();
        Ok(match (chunk, decoding) {
            (0, 0) => {
                return Err(bad_at(self.line, at, "no_work", format!("`{name}` or decoding requests above zero")));
            }
            (0, _) => {
                let past_tokens = Some(kv);
                Op { name: "attention_generation", batch, new_tokens: Some(1), past_tokens, ..shared }
            }
            (_, 0) => Op {
                name: "attention_context",
                batch: Some(1),
                new_tokens: Some(chunk),
                past_tokens: Some(before),
                ..shared
            },
            _ => Op {
                name: "attention_mixed",
                batch,
                new_tokens: Some(1),
                past_tokens: Some(kv),
                prefill_tokens: Some(chunk),
                prefill_past_tokens: Some(before),
                ..shared
            },
        })
    }

    /// The three times of a skewed row.
    fn skewed<'p>(&self, place: &'p Place) -> std::result::Result<Vec<Op<'p>>, Bad> {
        let [n, long] = [self.small(0)?, self.small(1)?];
        let [chunk, before] = [self.whole(2)?, self.whole(3)?];
        let [short_kv, long_kv, mean] = [self.small(4)?, self.small(5)?, self.small(6)?];
        let total = u64::from(long) * u64::from(long_kv) + u64::from(n.saturating_sub(long)) * u64::from(short_kv);
        // Means are whole numbers in the file, however they were rounded.
        let rounded = u64::from(mean).abs_diff(total / u64::from(n.max(1))) <= 1;
        if n == 0 || mean == 0 || long > n || !rounded {
            let (_, at, _) = self.cell(6);
            let expected = format!("`kv_mean` as the mean of {long} of {long_kv} and the rest of {n} of {short_kv}");
            return Err(bad_at(self.line, at, "mean_differs", expected));
        }
        let is_off = place.meta.skew_fit.as_ref().is_some_and(|fit| fit.enabled == Some(false));
        let distribution = Some(if is_off { SKEW_TABLE_OFF } else { SKEW_TABLE });
        let at = |kv: u32| -> std::result::Result<Op<'p>, Bad> {
            Ok(Op { distribution, ..self.attention(place, [chunk, before, n.into(), kv.into()], 0)? })
        };
        Ok(vec![
            Op { latency_ns: self.time(7)?, ..at(mean)? },
            Op { latency_ns: self.time(8)?, ..at(long_kv)? },
            Op {
                latency_ns: self.time(9)?,
                skew: Some(f64::from(long_kv) / f64::from(mean)),
                long_requests: Some(long),
                ..at(mean)?
            },
        ])
    }
}

#[cfg(test)]
mod tests;
