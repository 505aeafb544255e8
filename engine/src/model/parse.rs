//! Reads a model file: TOML that holds the shape, from which parameters, KV and arithmetic are derived.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;

use super::{Attention, Certainty, Ffn, KvShape, LayerGroup, Model};
use crate::error::{Error, Result};

/// Bounds of a shape. They are far above every model known, and keep bytes of all layers and tokens within 64 bits.
const MAX_DIM: u32 = 1 << 20;
const MAX_VOCABULARY: u32 = 1 << 24;
const MAX_WINDOW: u32 = 1 << 24;
const MAX_ELEMENTS: u64 = 1 << 24;
const MAX_LAYERS: u32 = 10_000;

/// A gated feed-forward network has three matrices: gate, up and down.
const FFN_MATRICES: f64 = 3.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    source: String,
    certainty: Certainty,
    hidden: u32,
    vocabulary: u32,
    tied_embeddings: bool,
    layers: Vec<Spanned<Group>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    count: u32,
    attention: AttentionShape,
    ffn: FfnShape,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum AttentionShape {
    Full(GroupedQuery),
    Sliding(Local),
    Mla(Latent),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupedQuery {
    query_heads: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Local {
    window: u32,
    query_heads: u32,
    kv_heads: u32,
    key_dim: u32,
    value_dim: u32,
}

/// Multi-head latent attention (DeepSeek-V2, section 2.1); without `q_lora_rank` the query is projected in one step.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Latent {
    query_heads: u32,
    q_lora_rank: Option<u32>,
    kv_lora_rank: u32,
    nope_dim: u32,
    rope_dim: u32,
    value_dim: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum FfnShape {
    Dense(Dense),
    Moe(Moe),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dense {
    intermediate: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Moe {
    experts: u32,
    active: u32,
    #[serde(default)]
    shared: u32,
    expert_intermediate: u32,
}

/// Reads the text of a model file; `origin` names it in messages, and its file name without the extension names the
/// model.
///
/// The keys are `title`, `source`, `certainty`, `hidden`, `vocabulary`, `tied_embeddings`, and one `[[layers]]` for
/// each group of alike layers: `count`, one of `attention.full`, `attention.sliding` and `attention.mla`, and one of
/// `ffn.dense` and `ffn.moe`. See the presets.
///
/// # Errors
/// A missing, unknown or foreign key with its place, and a shape that no model can have.
pub fn parse(text: &str, origin: &str) -> Result<Model> {
    let file: File = from_toml(text, origin)?;
    let whole = |error: Error| error.context(origin);
    in_range("hidden", file.hidden, MAX_DIM).map_err(whole)?;
    in_range("vocabulary", file.vocabulary, MAX_VOCABULARY).map_err(whole)?;
    for (key, value) in [("title", &file.title), ("source", &file.source)] {
        if value.trim().is_empty() {
            return Err(whole(Error::data(format!("expected a text for `{key}`, found none"))));
        }
    }
    let mut groups = Vec::with_capacity(file.layers.len());
    for group in &file.layers {
        let built = layer_group(group.get_ref(), file.hidden);
        groups.push(built.map_err(|error| located(text, origin, group.span(), &error))?);
    }
    let layers: u64 = groups.iter().map(|group| u64::from(group.layers)).sum();
    if layers == 0 || layers > u64::from(MAX_LAYERS) {
        return Err(whole(Error::data(format!("expected 1 to {MAX_LAYERS} layers in all groups, found {layers}"))));
    }
    let head_params = f64::from(file.hidden) * f64::from(file.vocabulary);
    Ok(Model {
        name: name_of(origin),
        title: file.title,
        source: file.source,
        certainty: file.certainty,
        hidden: file.hidden,
        head_params,
        embedding_params: if file.tied_embeddings { 0.0 } else { head_params },
        groups,
    })
}

/// Derives one group of layers.
fn layer_group(group: &Group, hidden: u32) -> Result<LayerGroup> {
    in_range("count", group.count, MAX_LAYERS)?;
    let (kv, attention_params) = match &group.attention {
        AttentionShape::Full(heads) => {
            let GroupedQuery { query_heads, kv_heads, key_dim, value_dim } = *heads;
            grouped_query(Attention::Full, hidden, [query_heads, kv_heads, key_dim, value_dim])?
        }
        AttentionShape::Sliding(sliding) => {
            let Local { window, query_heads, kv_heads, key_dim, value_dim } = *sliding;
            in_range("window", window, MAX_WINDOW)?;
            grouped_query(Attention::Sliding { window }, hidden, [query_heads, kv_heads, key_dim, value_dim])?
        }
        AttentionShape::Mla(latent) => multi_head_latent(latent, hidden)?,
    };
    if kv.elements() > MAX_ELEMENTS {
        let found = kv.elements();
        return Err(Error::data(format!(
            "expected at most {MAX_ELEMENTS} KV elements per token and layer, found {found}"
        )));
    }
    Ok(LayerGroup { layers: group.count, kv, attention_params, ffn: feed_forward(&group.ffn, hidden)? })
}

/// KV and projections of grouped-query attention; `shape` holds query heads, KV heads, key and value width.
fn grouped_query(attention: Attention, hidden: u32, shape: [u32; 4]) -> Result<(KvShape, f64)> {
    for (key, value) in ["query_heads", "kv_heads", "key_dim", "value_dim"].into_iter().zip(shape) {
        in_range(key, value, MAX_DIM)?;
    }
    let [query_heads, kv_heads, key_dim, value_dim] = shape;
    if !query_heads.is_multiple_of(kv_heads) {
        let found = format!("found {query_heads} and {kv_heads}");
        return Err(Error::data(format!("expected `query_heads` to be a multiple of `kv_heads`, {found}")));
    }
    let per_head = f64::from(key_dim) + f64::from(value_dim);
    let macs_per_pair = f64::from(query_heads) * per_head;
    // Query and output projections have all query heads, key and value projections the KV heads.
    let params = f64::from(hidden) * per_head * (f64::from(query_heads) + f64::from(kv_heads));
    Ok((
        KvShape {
            attention,
            query_heads,
            kv_heads,
            key_dim,
            value_dim,
            macs_per_pair,
            prefill_macs_per_pair: macs_per_pair,
        },
        params,
    ))
}

/// KV and projections of multi-head latent attention, decoding in its absorbed form.
fn multi_head_latent(latent: &Latent, hidden: u32) -> Result<(KvShape, f64)> {
    let Latent { query_heads, q_lora_rank, kv_lora_rank, nope_dim, rope_dim, value_dim } = *latent;
    let required = [query_heads, kv_lora_rank, nope_dim, rope_dim, value_dim];
    for (key, value) in ["query_heads", "kv_lora_rank", "nope_dim", "rope_dim", "value_dim"].into_iter().zip(required) {
        in_range(key, value, MAX_DIM)?;
    }
    let [heads, kv_rank, nope, rope, value] = required.map(f64::from);
    let hidden = f64::from(hidden);
    let query_out = heads * (nope + rope);
    let query = match q_lora_rank {
        Some(rank) => {
            in_range("q_lora_rank", rank, MAX_DIM)?;
            f64::from(rank) * (hidden + query_out)
        }
        None => hidden * query_out,
    };
    let down = hidden * (kv_rank + rope);
    let up = kv_rank * heads * (nope + value);
    let output = heads * value * hidden;
    let kv = KvShape {
        attention: Attention::Mla,
        query_heads,
        kv_heads: 1,
        key_dim: kv_lora_rank + rope_dim,
        value_dim: 0,
        macs_per_pair: heads * (kv_rank + rope + kv_rank),
        prefill_macs_per_pair: heads * (nope + rope + value),
    };
    Ok((kv, query + down + up + output))
}

/// Parameters of the feed-forward part; the router counts as dense.
fn feed_forward(shape: &FfnShape, hidden: u32) -> Result<Ffn> {
    let hidden = f64::from(hidden);
    match *shape {
        FfnShape::Dense(Dense { intermediate }) => {
            in_range("intermediate", intermediate, MAX_DIM)?;
            let dense_params = FFN_MATRICES * hidden * f64::from(intermediate);
            Ok(Ffn { dense_params, expert_params: 0.0, experts: 0, active_experts: 0 })
        }
        FfnShape::Moe(Moe { experts, active, shared, expert_intermediate }) => {
            for (key, value) in [("experts", experts), ("active", active), ("expert_intermediate", expert_intermediate)]
            {
                in_range(key, value, MAX_DIM)?;
            }
            if active > experts {
                return Err(Error::data(format!(
                    "expected at most `experts` = {experts} `active` experts, found {active}"
                )));
            }
            let expert_params = FFN_MATRICES * hidden * f64::from(expert_intermediate);
            let dense_params = hidden * f64::from(experts) + f64::from(shared) * expert_params;
            Ok(Ffn { dense_params, expert_params, experts, active_experts: active })
        }
    }
}

fn in_range(key: &str, value: u32, max: u32) -> Result<()> {
    if value == 0 || value > max {
        return Err(Error::data(format!("expected `{key}` from 1 to {max}, found {value}")));
    }
    Ok(())
}

/// The name that a file gives to what it holds: its own, without folder and extension.
pub(crate) fn name_of(origin: &str) -> String {
    Path::new(origin).file_stem().map_or_else(|| origin.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Reads TOML; an error names the origin, line and column, the key, and what would be allowed.
pub(crate) fn from_toml<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T> {
    toml::from_str(text).map_err(|mut error: toml::de::Error| {
        let span = error.span().unwrap_or(0..0);
        // Without its input the error prints the message and the path of the key, and no drawing.
        error.set_input(None);
        let message = error.to_string().trim().replace('\n', " ");
        located(text, origin, span, &Error::data(message))
    })
}

/// Makes an error of the file's out of `error`, with the place in the text before the message.
pub(crate) fn located(text: &str, origin: &str, span: Range<usize>, error: &Error) -> Error {
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |start| start.chars().count()) + 1;
    let located = Error::data(format!("{origin}:{line}:{column}: {error}"));
    match error.advice() {
        Some(advice) => located.hint(advice),
        None => located,
    }
}
