//! Recorded attention in memory: Arrow arrays as they were read, and rows by request, layer, KV head and step.
//!
//! Masses are not copied. Everything that a policy could trip over later is checked here once: lengths of lists, order
//! of steps, masses that are no numbers. So the loops over them need no checks and cannot panic.

mod split;

use std::collections::BTreeMap;

use arrow::array::types::{Float32Type, UInt16Type, UInt32Type, UInt64Type};
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, Float32Array, ListArray, PrimitiveArray, RecordBatch,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};

use crate::error::{Error, Result};
use crate::policy::Channel;

/// Masses as they were recorded.
const RECORDED: &str = "recorded";

/// A recorded model run.
#[derive(Debug)]
pub struct Recording {
    /// The source that it came from.
    pub source_id: u32,
    /// Name of the recorded model.
    pub model: String,
    /// `blocks`, `tokens` or `vectors`.
    pub grade: String,
    /// Where the masses of its units come from: `recorded`, or `column_sum` where blocks were split by it.
    pub mass_from: &'static str,
    /// Layers of the model.
    pub layers: u32,
    /// Query heads per layer.
    pub query_heads: u32,
    /// KV heads per layer.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens per entry of the mass lists.
    pub block_tokens: u32,
    /// Its requests by id.
    pub requests: Vec<Request>,
    attention: Vec<Attention>,
    rows: Vec<Row>,
    /// By request, layer and head: where their rows are.
    heads: Vec<(Place, std::ops::Range<usize>)>,
    scores: BTreeMap<Place, Vec<Score>>,
    norms: BTreeMap<Place, Norms>,
    /// By request, layer and query head, their steps.
    queries: Vectors,
    /// By request, layer and KV head, their tokens: K, then V.
    pairs: Vectors,
}

/// A recorded request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Its number within the store.
    pub request_id: u64,
    /// Its id in the source.
    pub source_key: Option<String>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// What its prompt is made of.
    pub content: Content,
}

/// A prompt as ids that are equal where the content is: of its tokens, or of its blocks, each with all that comes before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// Tokens per id; 0 where nothing is known.
    pub unit_tokens: u32,
    /// The ids in order.
    pub ids: Vec<u64>,
}

impl Content {
    /// Tokens that two prompts have in common at their beginning, as far as it is known.
    pub fn common_tokens(&self, other: &Self) -> u32 {
        if self.unit_tokens != other.unit_tokens {
            return 0;
        }
        let same = self.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count() as u32;
        same.saturating_mul(self.unit_tokens)
    }
}

/// One KV head of one layer of one request.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The request.
    pub request: &'a Request,
    /// The layer, from 0.
    pub layer: u16,
    /// The KV head, from 0.
    pub kv_head: u16,
    recording: &'a Recording,
    rows: &'a [Row],
}

/// One decode step of one head.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The decode step, from 1.
    pub step: u32,
    /// Tokens that could be attended to.
    pub context_tokens: u32,
    /// Mass per block, finite and not negative, one for each started block of the context.
    pub mass: &'a [f32],
    /// Upper bound of any query's logit in the block, as long as `mass` (Quest).
    pub page_bound: Option<&'a [f32]>,
    /// Sum of the squared weights of single tokens, mean over the group.
    pub sum_sq: Option<f32>,
    /// Norm of the attention output.
    pub out_norm: Option<f32>,
    /// Mean norm of the group's queries.
    pub q_norm: Option<f32>,
}

/// Request, layer, KV head.
type Place = (u64, u16, u16);

/// The columns of one batch of `attention`.
#[derive(Debug)]
struct Attention {
    mass: Lists,
    page_bound: Option<Lists>,
    sum_sq: Option<Float32Array>,
    out_norm: Option<Float32Array>,
    q_norm: Option<Float32Array>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    batch: usize,
    at: usize,
    step: u32,
    context_tokens: u32,
}

#[derive(Debug)]
struct Score {
    channel: String,
    rows: u32,
    values: Float32Array,
}

#[derive(Debug)]
struct Norms {
    key: Float32Array,
    value: Float32Array,
    /// Cosines with the next layer: K, then V.
    cosines: Option<[Float32Array; 2]>,
}

/// Vectors where they were read, and where those of each head are.
#[derive(Debug, Default)]
struct Vectors {
    batches: Vec<Vec<Float32Array>>,
    rows: BTreeMap<Place, Vec<VectorRow>>,
}

/// A vector: the token or step that it belongs to, its batch, and its row there.
#[derive(Debug, Clone, Copy)]
struct VectorRow {
    number: u32,
    batch: usize,
    at: usize,
}

impl Vectors {
    /// Appends the vector of a row.
    fn copy(&self, row: VectorRow, column: usize, width: usize, out: &mut Vec<f32>) {
        let values = self.batches.get(row.batch).and_then(|columns| columns.get(column));
        // Rows were found in the batch, whose lists have this width.
        let values = values.and_then(|values| values.values().get(row.at * width..(row.at + 1) * width));
        out.extend(values.unwrap_or_default());
    }
}

/// Keys and values of one head, tokens x width each, from the first token on.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// Keys after rotation.
    pub keys: Vec<f32>,
    /// Values.
    pub values: Vec<f32>,
}

/// A list column of f32 whose elements are not null.
#[derive(Debug)]
struct Lists {
    nulls: Option<NullBuffer>,
    offsets: OffsetBuffer<i32>,
    values: Float32Array,
}

impl Lists {
    fn get(&self, at: usize) -> &[f32] {
        &self.values.values()[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }

    /// The list of a row; `None` where it is unknown.
    fn known(&self, at: usize) -> Option<&[f32]> {
        self.nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at)).then(|| self.get(at))
    }

    fn slice(&self, at: usize) -> Float32Array {
        let from = self.offsets[at] as usize;
        self.values.slice(from, self.offsets[at + 1] as usize - from)
    }
}

impl Recording {
    /// All heads of all requests that have recorded steps, by request, layer and head.
    pub fn heads(&self) -> impl Iterator<Item = Head<'_>> {
        self.heads.iter().filter_map(|((request_id, layer, kv_head), rows)| {
            let request = self.requests.binary_search_by_key(request_id, |request| request.request_id).ok()?;
            Some(Head {
                request: &self.requests[request],
                layer: *layer,
                kv_head: *kv_head,
                recording: self,
                rows: &self.rows[rows.clone()],
            })
        })
    }

    /// The recorded heads of each request, in the order of layer and head. Heads of one layer have the same steps.
    pub fn heads_by_request(&self) -> impl Iterator<Item = Vec<Head<'_>>> {
        let mut heads = self.heads().peekable();
        std::iter::from_fn(move || {
            let first = heads.next()?;
            let mut all = vec![first];
            while let Some(head) = heads.next_if(|head| head.request.request_id == first.request.request_id) {
                all.push(head);
            }
            Some(all)
        })
    }

    /// The recorded heads of each layer of each request, in their order.
    pub fn heads_by_layer(&self) -> impl Iterator<Item = Vec<Head<'_>>> {
        self.heads_by_request().flat_map(|heads| {
            let layers = heads.chunk_by(|a, b| a.layer == b.layer);
            layers.map(<[Head<'_>]>::to_vec).collect::<Vec<_>>()
        })
    }

    /// The mass of every block split over its tokens, so that selections choose single tokens; see
    /// [`Recording::mass_from`]. Where a block lies within the prompt it is split by the tokens' share of `column_sum`,
    /// evenly elsewhere. A recording of tokens stays as it is.
    ///
    /// # Errors
    /// A head without `column_sum`.
    pub fn split_by_column_sum(self) -> Result<Self> {
        if self.block_tokens == 1 { Ok(self) } else { split::split(self) }
    }

    fn step(&self, row: &Row) -> Step<'_> {
        let batch = &self.attention[row.batch];
        let get = |column: &Option<Float32Array>| {
            column.as_ref().filter(|column| column.is_valid(row.at)).map(|column| column.value(row.at))
        };
        Step {
            step: row.step,
            context_tokens: row.context_tokens,
            mass: batch.mass.get(row.at),
            page_bound: batch.page_bound.as_ref().and_then(|bounds| bounds.known(row.at)),
            sum_sq: get(&batch.sum_sq),
            out_norm: get(&batch.out_norm),
            q_norm: get(&batch.q_norm),
        }
    }

    /// Model and grade, as `attention_error.recording` names them.
    pub fn label(&self) -> String {
        let split = if self.mass_from == RECORDED { "" } else { " split by column_sum" };
        format!("{} ({}{split})", self.model, self.grade)
    }

    /// Recorded (step, layer, head) rows.
    pub fn steps(&self) -> usize {
        self.rows.len()
    }
}

/// The heads of one request, as many layers together as a step needs to read so many bytes of masses, and at least one:
/// reads of a few KB here and there come late from memory. Layers that are together have the same steps.
pub fn read_together<'h, 'a>(heads: &'h [Head<'a>], bytes: usize) -> impl Iterator<Item = &'h [Head<'a>]> {
    let mut read = 0;
    heads.chunk_by(move |a, b| {
        read += a.step(0).map_or(0, |step| size_of_val(step.mass));
        let has_same_steps = || a.rows.iter().map(|row| row.step).eq(b.rows.iter().map(|row| row.step));
        let is_together = a.layer == b.layer || read < bytes && has_same_steps();
        if !is_together {
            read = 0;
        }
        is_together
    })
}

impl<'a> Head<'a> {
    /// The recorded steps in order.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = Step<'a>> + use<'a> {
        let recording = self.recording;
        self.rows.iter().map(move |row| recording.step(row))
    }

    /// The recorded step at this place in their order, from 0.
    pub fn step(&self, at: usize) -> Option<Step<'a>> {
        self.rows.get(at).map(|row| self.recording.step(row))
    }

    /// The longest recorded context.
    pub fn longest_context(&self) -> u32 {
        // Contexts never shrink from step to step.
        self.rows.last().map_or(self.request.prompt_tokens, |row| row.context_tokens)
    }

    /// The score per prompt token in this channel from the fewest query rows that are at least `rows`.
    ///
    /// # Errors
    /// A channel that was not recorded for this head, or only from fewer rows; the hint says how to record it. `stage` is
    /// who asks.
    pub fn score(&self, stage: &str, channel: &Channel, rows: u32) -> Result<&'a [f32]> {
        let all = self.scores_of(channel.name);
        if let Some(score) = all.iter().filter(|score| score.rows >= rows).min_by_key(|score| score.rows) {
            return Ok(score.values.values());
        }
        let found = match &all[..] {
            [] => "the recording does not have it".to_owned(),
            _ => format!("it was recorded from {} rows only", all.iter().map(|score| score.rows).max().unwrap_or(0)),
        };
        let from = if rows > 0 { format!(" from at least {rows} query rows") } else { String::new() };
        let message = format!("`{stage}` needs channel `{}`{from} for {}, but {found}", channel.name, self.place());
        Err(Error::run(message).hint(channel.how))
    }

    /// The score per prompt token in this channel from the most query rows, if it was recorded.
    pub fn widest_score(&self, channel: &str) -> Option<&'a [f32]> {
        let widest = self.scores_of(channel).into_iter().max_by_key(|score| score.rows)?;
        Some(widest.values.values())
    }

    /// Norms of K and of V per token, at least as many as the longest context, if they were recorded.
    pub fn norms(&self) -> Option<(&'a [f32], &'a [f32])> {
        let norms = self.recording.norms.get(&(self.request.request_id, self.layer, self.kv_head))?;
        Some((norms.key.values(), norms.value.values()))
    }

    /// Cosines of K and of V with the next layer's, per token of this head in another layer, if they were recorded.
    pub fn cosines_in(&self, layer: u16) -> Option<[&'a [f32]; 2]> {
        let norms = self.recording.norms.get(&(self.request.request_id, layer, self.kv_head))?;
        norms.cosines.as_ref().map(|cosines| cosines.each_ref().map(|cosines| &cosines.values()[..]))
    }

    /// K and V vectors of this head in another layer, at least as many as the longest context, if they were recorded.
    pub fn pairs_in(&self, layer: u16) -> Option<Pairs> {
        let Recording { pairs, head_dim, .. } = self.recording;
        let rows = pairs.rows.get(&(self.request.request_id, layer, self.kv_head))?;
        let (width, longest) = (*head_dim as usize, self.longest_context() as usize);
        let (mut keys, mut values) = (Vec::with_capacity(longest * width), Vec::with_capacity(longest * width));
        for row in rows.get(..longest)? {
            pairs.copy(*row, 0, width, &mut keys);
            pairs.copy(*row, 1, width, &mut values);
        }
        Some(Pairs { keys, values })
    }

    /// The queries of the recorded steps: steps x query heads of the group x width; `None` unless all were recorded.
    pub fn queries(&self) -> Option<Vec<f32>> {
        let Recording { queries, head_dim, .. } = self.recording;
        let (width, group) = (*head_dim as usize, self.group() as u16);
        let first = self.kv_head.checked_mul(group)?;
        let heads: Vec<&Vec<VectorRow>> = (first..first.checked_add(group)?)
            .map(|head| queries.rows.get(&(self.request.request_id, self.layer, head)))
            .collect::<Option<_>>()?;
        let mut all = Vec::with_capacity(self.rows.len() * heads.len() * width);
        for step in self.rows {
            for rows in &heads {
                let found = rows.binary_search_by_key(&step.step, |row| row.number).ok()?;
                queries.copy(rows[found], 0, width, &mut all);
            }
        }
        Some(all)
    }

    /// Query heads that read this KV head.
    pub fn group(&self) -> u32 {
        self.recording.query_heads / self.recording.kv_heads.max(1)
    }

    /// Layers of the recorded model.
    pub fn layers(&self) -> u32 {
        self.recording.layers
    }

    /// Width of a head.
    pub fn head_dim(&self) -> u32 {
        self.recording.head_dim
    }

    /// Tokens per entry of the mass lists.
    pub fn unit_tokens(&self) -> u32 {
        self.recording.block_tokens
    }

    /// KV heads per layer of the recorded model.
    pub fn kv_heads(&self) -> u32 {
        self.recording.kv_heads
    }

    /// Where it is, for messages.
    pub fn place(&self) -> String {
        format!("request {}, layer {}, KV head {}", self.request.request_id, self.layer, self.kv_head)
    }

    fn scores_of(&self, channel: &str) -> Vec<&'a Score> {
        let all = self.recording.scores.get(&(self.request.request_id, self.layer, self.kv_head));
        all.into_iter().flatten().filter(|score| score.channel == channel).collect()
    }
}

/// Batches of the canonical tables that recordings are read from.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// The recordings.
    pub recordings: &'a RecordBatch,
    /// Their requests; those of other sources are left out.
    pub requests: &'a [RecordBatch],
    /// Masses.
    pub attention: &'a [RecordBatch],
    /// Scores of the prompt.
    pub prefill_scores: &'a [RecordBatch],
    /// Norms and cosines.
    pub kv_stats: &'a [RecordBatch],
    /// Query vectors.
    pub queries: &'a [RecordBatch],
    /// K and V vectors.
    pub kv_vectors: &'a [RecordBatch],
}

/// The recordings in these tables, by source. Columns that a table may lack are unknown.
///
/// # Errors
/// A column that is missing or of another type, rows of a request that no recording has, a layer or head beyond the
/// model's, a list of the wrong length, a mass or score that is not a number, and steps that repeat or go back. Messages
/// name table, request, layer and head.
pub fn recordings(tables: &Tables<'_>) -> Result<Vec<Recording>> {
    let mut all = read_recordings(tables.recordings)?;
    let owners = read_requests(&mut all, tables.requests)?;
    for batch in tables.attention {
        read_attention(&mut all, &owners, batch)?;
    }
    all.iter_mut().try_for_each(index_rows)?;
    for batch in tables.prefill_scores {
        read_scores(&mut all, &owners, batch)?;
    }
    for batch in tables.kv_stats {
        read_norms(&mut all, &owners, batch)?;
    }
    all.iter().try_for_each(check_norms)?;
    for batch in tables.queries {
        read_vectors(&mut all, &owners, batch, &QUERY_VECTORS)?;
    }
    for batch in tables.kv_vectors {
        read_vectors(&mut all, &owners, batch, &PAIR_VECTORS)?;
    }
    all.iter_mut().try_for_each(index_vectors)?;
    Ok(all)
}

fn read_recordings(batch: &RecordBatch) -> Result<Vec<Recording>> {
    let table = "recordings";
    let number = |name: &str| primitive::<UInt32Type>(batch, table, name);
    let (source, layers, query_heads) = (number("source_id")?, number("layers")?, number("query_heads")?);
    let (kv_heads, head_dim, block) = (number("kv_heads")?, number("head_dim")?, number("block_tokens")?);
    let (model, grade) = (texts(batch, table, "model")?, texts(batch, table, "grade")?);
    let mut all = Vec::with_capacity(batch.num_rows());
    for at in 0..batch.num_rows() {
        let recording = Recording {
            queries: Vectors::default(),
            pairs: Vectors::default(),
            source_id: source.value(at),
            model: model[at].clone().unwrap_or_default(),
            grade: grade[at].clone().unwrap_or_default(),
            mass_from: RECORDED,
            layers: layers.value(at),
            query_heads: query_heads.value(at),
            kv_heads: kv_heads.value(at),
            head_dim: head_dim.value(at),
            block_tokens: block.value(at),
            requests: Vec::new(),
            attention: Vec::new(),
            rows: Vec::new(),
            heads: Vec::new(),
            scores: BTreeMap::new(),
            norms: BTreeMap::new(),
        };
        let is_blank = [recording.layers, recording.kv_heads, recording.head_dim, recording.block_tokens].contains(&0);
        if is_blank || recording.block_tokens > u32::from(u16::MAX) {
            return Err(Error::data(format!(
                "recordings: source {}: layers, KV heads, head width and block tokens must be at least 1, and a block at \
                 most 65535 tokens",
                recording.source_id
            )));
        }
        if all.iter().any(|other: &Recording| other.source_id == recording.source_id) {
            return Err(Error::data(format!("recordings: source {} appears twice", recording.source_id)));
        }
        all.push(recording);
    }
    all.sort_by_key(|recording| recording.source_id);
    Ok(all)
}

/// Hands each request to its recording; returns which one that is, by request.
fn read_requests(all: &mut [Recording], batches: &[RecordBatch]) -> Result<BTreeMap<u64, usize>> {
    let mut owners = BTreeMap::new();
    for batch in batches {
        let request = primitive::<UInt64Type>(batch, "requests", "request_id")?;
        let number = |name: &str| primitive::<UInt32Type>(batch, "requests", name);
        let (source, prompt, output) = (number("source_id")?, number("prompt_tokens")?, number("output_tokens")?);
        let contents = Contents::read(batch)?;
        let keys = if batch.column_by_name("source_key").is_some() {
            texts(batch, "requests", "source_key")?
        } else {
            vec![None; batch.num_rows()]
        };
        for (at, source_key) in keys.into_iter().enumerate() {
            let Ok(owner) = all.binary_search_by_key(&source.value(at), |recording| recording.source_id) else {
                continue;
            };
            let request_id = request.value(at);
            if owners.insert(request_id, owner).is_some() {
                return Err(Error::data(format!("requests: request {request_id} appears twice")));
            }
            let (prompt_tokens, output_tokens) = (prompt.value(at), output.value(at));
            let content = contents.of(at);
            all[owner].requests.push(Request { request_id, source_key, prompt_tokens, output_tokens, content });
        }
    }
    for recording in all {
        recording.requests.sort_by_key(|request| request.request_id);
    }
    Ok(owners)
}

/// Columns that say what prompts are made of.
struct Contents<'a> {
    tokens: Option<&'a ListArray>,
    hashes: Option<&'a ListArray>,
    block: Option<PrimitiveArray<UInt32Type>>,
}

impl<'a> Contents<'a> {
    fn read(batch: &'a RecordBatch) -> Result<Self> {
        let list = |name: &str| batch.column_by_name(name).and_then(|column| column.as_list_opt::<i32>());
        let block = batch.column_by_name("block_tokens");
        let block = block.map(|column| cast::<UInt32Type>(column, "requests", "block_tokens")).transpose()?;
        Ok(Self { tokens: list("prompt_token_ids"), hashes: list("block_hashes"), block })
    }

    fn of(&self, at: usize) -> Content {
        let known = |list: Option<&'a ListArray>| list.filter(|list| list.is_valid(at)).map(|list| list.value(at));
        if let Some(tokens) = known(self.tokens)
            && let Some(tokens) = tokens.as_primitive_opt::<UInt32Type>()
        {
            return Content { unit_tokens: 1, ids: tokens.values().iter().map(|id| u64::from(*id)).collect() };
        }
        let block = self.block.as_ref().filter(|block| block.is_valid(at)).map_or(0, |block| block.value(at));
        match known(self.hashes).as_ref().and_then(|hashes| hashes.as_primitive_opt::<UInt64Type>()) {
            Some(hashes) if block > 0 => Content { unit_tokens: block, ids: hashes.values().to_vec() },
            _ => Content::default(),
        }
    }
}

fn read_attention(all: &mut [Recording], owners: &BTreeMap<u64, usize>, batch: &RecordBatch) -> Result<()> {
    let table = "attention";
    let places = Places::read(batch, table)?;
    let number = |name: &str| primitive::<UInt32Type>(batch, table, name);
    let (step, context) = (number("step")?, number("context_tokens")?);
    let block = primitive::<UInt16Type>(batch, table, "block_tokens")?;
    // Each recording keeps the columns of the batches that have rows of it; they share the memory.
    let mut batch_of: BTreeMap<usize, usize> = BTreeMap::new();
    // Rows of a request stand together, more or less: where the last one belonged is looked up once.
    let mut known: Option<(u64, usize, usize)> = None;
    for at in 0..batch.num_rows() {
        let request_id = places.request.value(at);
        let (owner, index) = match known {
            Some((id, owner, index)) if id == request_id => {
                places.check(&all[owner], table, at)?;
                (owner, index)
            }
            _ => {
                let (owner, _) = places.owner(all, owners, table, at)?;
                let index = if let Some(index) = batch_of.get(&owner) {
                    *index
                } else {
                    all[owner].attention.push(read_columns(batch)?);
                    batch_of.insert(owner, all[owner].attention.len() - 1);
                    all[owner].attention.len() - 1
                };
                known = Some((request_id, owner, index));
                (owner, index)
            }
        };
        let recording = &mut all[owner];
        let row = Row { batch: index, at, step: step.value(at), context_tokens: context.value(at) };
        let (request, layer, head) = places.get(at);
        let place = || format!("attention: request {request}, step {}, layer {layer}, KV head {head}", row.step);
        if u32::from(block.value(at)) != recording.block_tokens {
            let (expected, found) = (recording.block_tokens, block.value(at));
            return Err(Error::data(format!("{}: expected blocks of {expected} tokens, found {found}", place())));
        }
        let mass = recording.attention[index].mass.get(at);
        let units = row.context_tokens.div_ceil(recording.block_tokens) as usize;
        if mass.len() != units || units == 0 {
            return Err(Error::data(format!(
                "{}: expected {units} masses for {} tokens of context, found {}",
                place(),
                row.context_tokens,
                mass.len()
            )));
        }
        // Without a branch per mass, so that many are looked at side by side.
        if mass.iter().filter(|mass| !(0.0..f32::INFINITY).contains(*mass)).count() > 0 {
            return Err(Error::data(format!("{}: expected masses of at least 0, found another number", place())));
        }
        check_bounds(&recording.attention[index], &row).map_err(|error| error.context(place()))?;
        recording.heads.push((places.get(at), recording.rows.len()..recording.rows.len() + 1));
        recording.rows.push(row);
    }
    Ok(())
}

fn read_columns(batch: &RecordBatch) -> Result<Attention> {
    let table = "attention";
    Ok(Attention {
        mass: lists(batch, table, "mass")?,
        page_bound: match batch.column_by_name("page_bound") {
            Some(column) => Some(lists_of(column, table, "page_bound")?),
            None => None,
        },
        sum_sq: optional(batch, table, "sum_sq")?,
        out_norm: optional(batch, table, "out_norm")?,
        q_norm: optional(batch, table, "q_norm")?,
    })
}

/// Bounds are as many as masses, and numbers.
fn check_bounds(attention: &Attention, row: &Row) -> Result<()> {
    let Some(bounds) = attention.page_bound.as_ref().and_then(|bounds| bounds.known(row.at)) else { return Ok(()) };
    let units = attention.mass.get(row.at).len();
    if bounds.len() != units {
        return Err(Error::data(format!("expected {units} of `page_bound`, one per mass, found {}", bounds.len())));
    }
    if bounds.iter().any(|bound| !bound.is_finite()) {
        return Err(Error::data("a `page_bound` is not a finite number"));
    }
    Ok(())
}

/// Sorts the rows of a recording by request, layer, head and step, and finds where each head's are.
fn index_rows(recording: &mut Recording) -> Result<()> {
    let mut placed: Vec<(Place, Row)> =
        recording.heads.drain(..).map(|(place, range)| (place, recording.rows[range.start])).collect();
    placed.sort_by_key(|(place, row)| (*place, row.step));
    recording.rows = placed.iter().map(|(_, row)| *row).collect();
    let mut start = 0;
    for head in placed.chunk_by(|a, b| a.0 == b.0) {
        let (request, layer, kv_head) = head[0].0;
        let place = format!("attention: request {request}, layer {layer}, KV head {kv_head}");
        let prompt = recording.requests.iter().find(|candidate| candidate.request_id == request);
        let mut least = prompt.map_or(0, |request| request.prompt_tokens);
        for (at, (_, row)) in head.iter().enumerate() {
            if at > 0 && head[at - 1].1.step == row.step {
                return Err(Error::data(format!("{place}: step {} appears twice", row.step)));
            }
            if row.context_tokens < least {
                return Err(Error::data(format!(
                    "{place}: expected at least {least} tokens of context in step {}, found {}",
                    row.step, row.context_tokens
                )));
            }
            least = row.context_tokens;
        }
        recording.heads.push((head[0].0, start..start + head.len()));
        start += head.len();
    }
    check_layers(recording)
}

/// Policies that decide for a layer see its heads side by side, so that these must have the same steps.
fn check_layers(recording: &Recording) -> Result<()> {
    for pair in recording.heads.windows(2) {
        let [(first, rows), (second, others)] = pair else { continue };
        if (first.0, first.1) != (second.0, second.1) {
            continue;
        }
        let (rows, others) = (&recording.rows[rows.clone()], &recording.rows[others.clone()]);
        let is_same = |(a, b): (&Row, &Row)| (a.step, a.context_tokens) == (b.step, b.context_tokens);
        if rows.len() != others.len() || !rows.iter().zip(others).all(is_same) {
            let (request, layer, head) = *second;
            return Err(Error::data(format!(
                "attention: request {request}, layer {layer}: KV head {head} has other steps or contexts than KV head {}",
                first.2
            )));
        }
    }
    Ok(())
}

fn read_scores(all: &mut [Recording], owners: &BTreeMap<u64, usize>, batch: &RecordBatch) -> Result<()> {
    let table = "prefill_scores";
    let places = Places::read(batch, table)?;
    let channels = texts(batch, table, "channel")?;
    let scores = lists(batch, table, "score")?;
    let rows = match batch.column_by_name("rows") {
        Some(column) => Some(cast::<UInt32Type>(column, table, "rows")?),
        None => None,
    };
    for (at, channel) in channels.into_iter().enumerate() {
        let (owner, prompt) = places.owner(all, owners, table, at)?;
        let values = scores.slice(at);
        let channel = channel.unwrap_or_default();
        let (request, layer, head) = places.get(at);
        let place = || format!("{table}: request {request}, layer {layer}, KV head {head}, channel `{channel}`");
        // A head's own score is one number.
        let expected = if channel == crate::policy::HEAD_RETRIEVAL.name { 1 } else { prompt };
        if values.len() != expected as usize {
            return Err(Error::data(format!("{}: expected {expected} scores, found {}", place(), values.len())));
        }
        if !values.values().iter().all(|score| score.is_finite()) {
            return Err(Error::data(format!("{}: a score is not a finite number", place())));
        }
        let rows = rows.as_ref().filter(|rows| rows.is_valid(at)).map_or(0, |rows| rows.value(at));
        let known = all[owner].scores.entry((request, layer, head)).or_default();
        if known.iter().any(|score| score.channel == channel && score.rows == rows) {
            return Err(Error::data(format!("{} from {rows} rows appears twice", place())));
        }
        known.push(Score { channel, rows, values });
    }
    Ok(())
}

fn read_norms(all: &mut [Recording], owners: &BTreeMap<u64, usize>, batch: &RecordBatch) -> Result<()> {
    let table = "kv_stats";
    let places = Places::read(batch, table)?;
    let (keys, values) = (lists(batch, table, "k_norm")?, lists(batch, table, "v_norm")?);
    let optional = |name: &str| batch.column_by_name(name).map(|column| lists_of(column, table, name)).transpose();
    let cosines = (optional("k_cos_next_layer")?, optional("v_cos_next_layer")?);
    for at in 0..batch.num_rows() {
        let (owner, _) = places.owner(all, owners, table, at)?;
        let cosines = match &cosines {
            (Some(keys), Some(values)) if keys.known(at).is_some() && values.known(at).is_some() => {
                Some([keys.slice(at), values.slice(at)])
            }
            _ => None,
        };
        let norms = Norms { key: keys.slice(at), value: values.slice(at), cosines };
        let (request, layer, head) = places.get(at);
        let place = || format!("{table}: request {request}, layer {layer}, KV head {head}");
        if norms.key.len() != norms.value.len() {
            let (keys, values) = (norms.key.len(), norms.value.len());
            return Err(Error::data(format!("{}: {keys} norms of K but {values} of V", place())));
        }
        if ![&norms.key, &norms.value].iter().all(|norms| norms.values().iter().all(|n| *n >= 0.0 && n.is_finite())) {
            return Err(Error::data(format!("{}: expected norms of at least 0, found another number", place())));
        }
        let cosines = norms.cosines.iter().flatten();
        if !cosines.clone().all(|cosines| cosines.len() == norms.key.len()) {
            return Err(Error::data(format!("{}: expected a cosine for each norm", place())));
        }
        if !cosines.flat_map(PrimitiveArray::values).all(|cosine| cosine.is_finite()) {
            return Err(Error::data(format!("{}: a cosine is not a finite number", place())));
        }
        if all[owner].norms.insert((request, layer, head), norms).is_some() {
            return Err(Error::data(format!("{} appears twice", place())));
        }
    }
    Ok(())
}

/// Norms must reach to the end of the longest recorded context.
fn check_norms(recording: &Recording) -> Result<()> {
    for ((request, layer, head), rows) in &recording.heads {
        let longest = recording.rows[rows.clone()].last().map_or(0, |row| row.context_tokens as usize);
        let Some(norms) = recording.norms.get(&(*request, *layer, *head)) else { continue };
        if norms.key.len() < longest {
            let found = norms.key.len();
            return Err(Error::data(format!(
                "kv_stats: request {request}, layer {layer}, KV head {head}: expected at least {longest} norms, found {found}"
            )));
        }
    }
    Ok(())
}

/// How a table of vectors is read.
struct VectorTable {
    name: &'static str,
    head: &'static str,
    number: &'static str,
    columns: &'static [&'static str],
    into: fn(&mut Recording) -> &mut Vectors,
}

static QUERY_VECTORS: VectorTable = VectorTable {
    name: "queries",
    head: "query_head",
    number: "step",
    columns: &["q"],
    into: |recording| &mut recording.queries,
};

static PAIR_VECTORS: VectorTable = VectorTable {
    name: "kv_vectors",
    head: "kv_head",
    number: "token",
    columns: &["k", "v"],
    into: |recording| &mut recording.pairs,
};

/// Takes the vectors of a batch; their elements are not copied.
fn read_vectors(
    all: &mut [Recording],
    owners: &BTreeMap<u64, usize>,
    batch: &RecordBatch,
    table: &VectorTable,
) -> Result<()> {
    let places = Places::read_by(batch, table.name, table.head)?;
    let number = primitive::<UInt32Type>(batch, table.name, table.number)?;
    let found: Vec<(Float32Array, usize)> =
        table.columns.iter().map(|name| vectors(batch, table.name, name)).collect::<Result<_>>()?;
    let mut batch_of: BTreeMap<usize, usize> = BTreeMap::new();
    for at in 0..batch.num_rows() {
        let (owner, _) = places.owner(all, owners, table.name, at)?;
        let recording = &mut all[owner];
        let expected = recording.head_dim;
        if let Some((_, width)) = found.iter().find(|(_, width)| *width != expected as usize) {
            let name = table.name;
            return Err(Error::data(format!("{name}: expected vectors of {expected} elements, found {width}")));
        }
        let into = (table.into)(recording);
        let batch = *batch_of.entry(owner).or_insert_with(|| {
            into.batches.push(found.iter().map(|(values, _)| values.clone()).collect());
            into.batches.len() - 1
        });
        into.rows.entry(places.get(at)).or_default().push(VectorRow { number: number.value(at), batch, at });
    }
    Ok(())
}

/// The elements of a column of vectors, and how many each has.
fn vectors(batch: &RecordBatch, table: &str, name: &str) -> Result<(Float32Array, usize)> {
    let column = known(batch, table, name)?;
    let wrong =
        || Error::data(format!("{table}: column `{name}`: expected vectors of Float32, found {}", column.data_type()));
    let list = column.as_fixed_size_list_opt().ok_or_else(wrong)?;
    let values = list.values().as_primitive_opt::<Float32Type>().ok_or_else(wrong)?;
    if values.null_count() > 0 || !values.values().iter().all(|x| x.is_finite()) {
        return Err(Error::data(format!(
            "{table}: a vector of column `{name}` holds an element that is no finite number"
        )));
    }
    Ok((values.clone(), usize::try_from(list.value_length()).unwrap_or(0)))
}

/// Sorts vectors by step or token. Those of a head's tokens must be without gaps.
fn index_vectors(recording: &mut Recording) -> Result<()> {
    for (vectors, table) in [(&mut recording.queries, &QUERY_VECTORS), (&mut recording.pairs, &PAIR_VECTORS)] {
        for ((request, layer, head), rows) in &mut vectors.rows {
            rows.sort_by_key(|row| row.number);
            let is_next = |pair: &[VectorRow]| matches!(pair, [a, b] if a.number == b.number);
            let VectorTable { name, head: of, number, .. } = table;
            let place = format!("{name}: request {request}, layer {layer}, {of} {head}");
            if let Some([row, _]) = rows.windows(2).find(|pair| is_next(pair)) {
                return Err(Error::data(format!("{place}: {number} {} appears twice", row.number)));
            }
            let gap = rows.iter().enumerate().find(|(at, row)| row.number as usize != *at);
            if let (Some((at, row)), true) = (gap, *number == "token") {
                return Err(Error::data(format!("{place}: expected token {at}, found {}", row.number)));
            }
        }
    }
    Ok(())
}

/// The columns that say where a row belongs.
struct Places {
    request: PrimitiveArray<UInt64Type>,
    layer: PrimitiveArray<UInt16Type>,
    head: PrimitiveArray<UInt16Type>,
    /// Whether heads are query heads.
    is_query: bool,
}

impl Places {
    fn read(batch: &RecordBatch, table: &str) -> Result<Self> {
        Self::read_by(batch, table, "kv_head")
    }

    /// The same with the name of the column that holds the head.
    fn read_by(batch: &RecordBatch, table: &str, head: &str) -> Result<Self> {
        Ok(Self {
            request: primitive(batch, table, "request_id")?,
            layer: primitive(batch, table, "layer")?,
            head: primitive(batch, table, head)?,
            is_query: head == QUERY_VECTORS.head,
        })
    }

    fn get(&self, at: usize) -> Place {
        (self.request.value(at), self.layer.value(at), self.head.value(at))
    }

    /// The recording that a row belongs to, and the tokens of its request's prompt.
    fn owner(&self, all: &[Recording], owners: &BTreeMap<u64, usize>, table: &str, at: usize) -> Result<(usize, u32)> {
        let (request, ..) = self.get(at);
        let lost = || Error::data(format!("{table}: request {request} belongs to no recording"));
        let owner = *owners.get(&request).ok_or_else(lost)?;
        let recording = &all[owner];
        self.check(recording, table, at)?;
        let found = recording.requests.binary_search_by_key(&request, |candidate| candidate.request_id);
        found.map(|found| (owner, recording.requests[found].prompt_tokens)).map_err(|_| lost())
    }

    /// Refuses a layer or head that the model does not have.
    fn check(&self, recording: &Recording, table: &str, at: usize) -> Result<()> {
        let (request, layer, head) = self.get(at);
        let (heads, kind) = if self.is_query { (recording.query_heads, "query") } else { (recording.kv_heads, "KV") };
        let layers = recording.layers;
        if u32::from(layer) >= layers || u32::from(head) >= heads {
            return Err(Error::data(format!(
                "{table}: request {request}: layer {layer}, {kind} head {head} is beyond the {layers} layers and {heads} {kind} \
                 heads of the recording"
            )));
        }
        Ok(())
    }
}

fn column<'a>(batch: &'a RecordBatch, table: &str, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::data(format!("{table}: column `{name}` is missing")))
}

fn known<'a>(batch: &'a RecordBatch, table: &str, name: &str) -> Result<&'a ArrayRef> {
    let column = column(batch, table, name)?;
    if column.null_count() > 0 {
        return Err(Error::data(format!("{table}: column `{name}` has {} unknown values", column.null_count())));
    }
    Ok(column)
}

fn primitive<T: ArrowPrimitiveType>(batch: &RecordBatch, table: &str, name: &str) -> Result<PrimitiveArray<T>> {
    cast(known(batch, table, name)?, table, name)
}

fn optional(batch: &RecordBatch, table: &str, name: &str) -> Result<Option<Float32Array>> {
    batch.column_by_name(name).map(|column| cast::<Float32Type>(column, table, name)).transpose()
}

fn cast<T: ArrowPrimitiveType>(column: &ArrayRef, table: &str, name: &str) -> Result<PrimitiveArray<T>> {
    let wrong =
        || Error::data(format!("{table}: column `{name}`: expected {}, found {}", T::DATA_TYPE, column.data_type()));
    column.as_primitive_opt::<T>().cloned().ok_or_else(wrong)
}

fn texts(batch: &RecordBatch, table: &str, name: &str) -> Result<Vec<Option<String>>> {
    let column = column(batch, table, name)?;
    let wrong = || Error::data(format!("{table}: column `{name}`: expected Utf8, found {}", column.data_type()));
    let texts = column.as_string_opt::<i32>().ok_or_else(wrong)?;
    Ok(texts.iter().map(|text| text.map(str::to_owned)).collect())
}

fn lists(batch: &RecordBatch, table: &str, name: &str) -> Result<Lists> {
    lists_of(known(batch, table, name)?, table, name)
}

fn lists_of(column: &ArrayRef, table: &str, name: &str) -> Result<Lists> {
    let wrong =
        || Error::data(format!("{table}: column `{name}`: expected a list of Float32, found {}", column.data_type()));
    let list: &ListArray = column.as_list_opt::<i32>().ok_or_else(wrong)?;
    let values = list.values().as_primitive_opt::<Float32Type>().ok_or_else(wrong)?;
    if values.null_count() > 0 {
        return Err(Error::data(format!("{table}: lists of column `{name}` hold unknown values")));
    }
    Ok(Lists { nulls: list.nulls().cloned(), offsets: list.offsets().clone(), values: values.clone() })
}

#[cfg(test)]
pub(crate) mod tests;
