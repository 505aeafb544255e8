//! Reads a model file: TOML that holds the shape, from which parameters, KV and arithmetic are derived.

use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::derive::{MAX_LAYERS, in_range, layer_group};
use super::{Description, Model};
use crate::error::{Error, Result};

/// Most tokens of a vocabulary.
const MAX_VOCABULARY: u32 = 1 << 24;
/// Widest residual stream.
const MAX_HIDDEN: u32 = 1 << 20;

/// Reads the text of a model file; `origin` names it in messages, and its file name without the extension names the
/// model.
///
/// The keys are `title`, `source`, `certainty`, `weights` (the published number format; bf16 if not given), `hidden`,
/// `vocabulary`, `tied_embeddings`, `context` (the longest that is published, may be left out), and one `[[layers]]` for each group of alike layers: `count`, one of `attention.full`,
/// `sliding`, `mla`, `sparse`, `sparse_mla`, `compressed`, `gated_delta`, `channel_delta` and `mamba2`, and `ffn.dense`,
/// `ffn.moe` or nothing. [`Description`] documents each; see the presets.
///
/// # Errors
/// A missing, unknown or foreign key with its place, and a shape that no model can have.
pub fn parse(text: &str, origin: &str) -> Result<Model> {
    let description: Description = from_toml(text, origin)?;
    built(&description, origin, |span, error| located(text, origin, span, error))
}

/// The model of a description; `origin` names it as in [`parse`].
///
/// # Errors
/// A shape that no model can have.
pub fn build(description: &Description, origin: &str) -> Result<Model> {
    built(description, origin, |_, error| error.clone().context(origin))
}

fn built(file: &Description, origin: &str, at: impl Fn(Range<usize>, &Error) -> Error) -> Result<Model> {
    let whole = |error: Error| error.context(origin);
    in_range("hidden", file.hidden, MAX_HIDDEN).map_err(whole)?;
    in_range("vocabulary", file.vocabulary, MAX_VOCABULARY).map_err(whole)?;
    file.context.map_or(Ok(()), |context| in_range("context", context, u32::MAX)).map_err(whole)?;
    for (key, value) in [("title", &file.title), ("source", &file.source)] {
        if value.trim().is_empty() {
            return Err(whole(Error::data(format!("expected a text for `{key}`, found none"))));
        }
    }
    let mut groups = Vec::with_capacity(file.layers.len());
    for group in &file.layers {
        let built = layer_group(group.get_ref(), file.hidden);
        groups.push(built.map_err(|error| at(group.span(), &error))?);
    }
    let layers: u64 = groups.iter().map(|group| u64::from(group.layers)).sum();
    if layers == 0 || layers > u64::from(MAX_LAYERS) {
        return Err(whole(Error::data(format!("expected 1 to {MAX_LAYERS} layers in all groups, found {layers}"))));
    }
    let head_params = f64::from(file.hidden) * f64::from(file.vocabulary);
    Ok(Model {
        name: name_of(origin),
        title: file.title.clone(),
        source: file.source.clone(),
        certainty: file.certainty,
        weights: file.weights,
        hidden: file.hidden,
        head_params,
        embedding_params: if file.tied_embeddings { 0.0 } else { head_params },
        context_tokens: file.context,
        groups,
    })
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
