//! Reads a Hugging Face `config.json`, offline: the shape of a model, as its publisher describes it.
//!
//! Families of models differ in what their keys mean, so each `model_type` is known by name, and an unknown one is refused
//! rather than guessed. Where a file has a `text_config`, that part is read: towers for images and sound hold no KV.

mod families;
#[cfg(test)]
mod tests;
mod unique;

use std::fmt::Write as _;
use std::path::Path;

use engine::error::{Error, Result};
use engine::model::description::{AttentionShape, Description, FfnShape, Layers};
use engine::model::{self, Certainty, Model, WeightDtype};
use serde_json::{Map, Value};

use self::unique::Unique;
use crate::wording;

/// The model that the text of a `config.json` describes; `origin` is its path.
///
/// # Errors
/// Text that is no JSON object, an unknown `model_type`, a missing or foreign key, a shape that no model can have.
pub fn parse(text: &str, origin: &str) -> Result<Model> {
    let Unique(whole) = serde_json::from_str(&standard(text)).map_err(|error| {
        let place = format!("{origin}:{}:{}", error.line(), error.column());
        Error::data(format!("{place}: expected JSON, found {}", wording::bare(&error)))
    })?;
    let described = describe(&whole, origin).map_err(|error| error.context(origin))?;
    let mut model = model::build(&described, origin)?;
    model.name = name(origin);
    Ok(model)
}

/// A file that is called `config.json` is named by its folder, any other by itself.
fn name(origin: &str) -> String {
    let path = Path::new(origin);
    let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let folder = path.parent().and_then(Path::file_name).map(|folder| folder.to_string_lossy().into_owned());
    if stem == "config" { folder.unwrap_or(stem) } else { stem }
}

/// The text with `null` in place of `NaN` and `Infinity`, which Python writes and JSON does not have.
fn standard(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let (mut in_text, mut is_escaped, mut word) = (false, false, String::new());
    for c in text.chars() {
        if in_text {
            in_text = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            clean.push(c);
        } else if c.is_ascii_alphabetic() || (c == '-' && word.is_empty()) {
            word.push(c);
        } else {
            flush(&mut word, &mut clean);
            in_text = c == '"';
            clean.push(c);
        }
    }
    flush(&mut word, &mut clean);
    clean
}

fn flush(word: &mut String, clean: &mut String) {
    let is_no_json = ["NaN", "Infinity", "-Infinity"].contains(&word.as_str());
    clean.push_str(if is_no_json { "null" } else { word });
    word.clear();
}

/// A layer as the families build it.
type Layer = (AttentionShape, Option<FfnShape>);

/// The keys of a configuration.
#[derive(Debug, Clone, Copy)]
struct Config<'a> {
    keys: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    fn kind(self) -> &'a str {
        self.keys.get("model_type").and_then(Value::as_str).unwrap_or_default()
    }

    /// A key that may be absent or null.
    fn value(self, key: &str) -> Option<&'a Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    fn optional(self, key: &str) -> Result<Option<u32>> {
        self.value(key).map(|value| whole(key, value)).transpose()
    }

    fn number(self, key: &str) -> Result<u32> {
        self.optional(key)?.ok_or_else(|| missing(key, self.kind()))
    }

    /// The first of several keys that is there.
    fn any(self, keys: &[&str]) -> Result<u32> {
        let found = keys.iter().find(|key| self.value(key).is_some());
        self.number(found.or(keys.first()).copied().unwrap_or_default())
    }

    fn flag(self, key: &str) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn list(self, key: &str) -> Result<&'a [Value]> {
        let value = self.value(key).ok_or_else(|| missing(key, self.kind()))?;
        value
            .as_array()
            .map(Vec::as_slice)
            .ok_or_else(|| Error::data(format!("`{key}`: expected a list, found `{value}`")))
    }

    /// A list with one number for each layer, or more (layers that predict several tokens come last).
    fn per_layer(self, key: &str, layers: u32) -> Result<Vec<u32>> {
        let values: Vec<u32> = self.list(key)?.iter().map(|value| whole(key, value)).collect::<Result<_>>()?;
        enough(key, values.len(), layers)?;
        Ok(values)
    }

    /// A list with one word for each layer.
    fn words(self, key: &str, layers: u32) -> Result<Vec<&'a str>> {
        let word = |value: &'a Value| {
            value.as_str().ok_or_else(|| Error::data(format!("`{key}`: expected words, found `{value}`")))
        };
        let words: Vec<&str> = self.list(key)?.iter().map(word).collect::<Result<_>>()?;
        enough(key, words.len(), layers)?;
        Ok(words)
    }

    /// A table inside.
    fn table(self, key: &str) -> Result<Self> {
        let value = self.value(key).ok_or_else(|| missing(key, self.kind()))?;
        let keys =
            value.as_object().ok_or_else(|| Error::data(format!("`{key}`: expected an object, found `{value}`")))?;
        Ok(Self { keys })
    }

    fn layers(self) -> Result<u32> {
        let layers = self.number("num_hidden_layers")?;
        if layers == 0 || layers > MAX_LAYERS {
            return Err(Error::data(format!("`num_hidden_layers`: expected 1 to {MAX_LAYERS}, found {layers}")));
        }
        Ok(layers)
    }
}

/// More layers than any model has.
const MAX_LAYERS: u32 = 10_000;

fn missing(key: &str, kind: &str) -> Error {
    Error::data(format!("expected the key `{key}` for a model of type `{kind}`, found none"))
}

fn whole(key: &str, value: &Value) -> Result<u32> {
    let found = value.as_u64().and_then(|number| u32::try_from(number).ok());
    found.ok_or_else(|| Error::data(format!("`{key}`: expected a whole number below 2^32, found `{value}`")))
}

fn enough(key: &str, found: usize, layers: u32) -> Result<()> {
    if found < layers as usize {
        return Err(Error::data(format!("`{key}`: expected one entry for each of {layers} layers, found {found}")));
    }
    Ok(())
}

fn describe(whole: &Value, origin: &str) -> Result<Description> {
    let top = whole.as_object().ok_or_else(|| Error::data("expected a JSON object, found something else"))?;
    let top = Config { keys: top };
    let text = if top.value("text_config").is_some() { top.table("text_config")? } else { top };
    let (layers, certainty) = families::layers(text)?;
    let tied = if text.value("tie_word_embeddings").is_some() { text } else { top };
    let architecture = top.keys.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
    let mut title = architecture.unwrap_or(text.kind()).to_owned();
    let _ = write!(title, " ({})", name(origin));
    Ok(Description {
        title,
        source: format!("the configuration `{origin}`"),
        certainty,
        weights: weights(text)?.map_or_else(|| weights(top), |dtype| Ok(Some(dtype)))?.unwrap_or(WeightDtype::Bf16),
        hidden: text.number("hidden_size")?,
        vocabulary: text.number("vocab_size")?,
        tied_embeddings: tied.flag("tie_word_embeddings"),
        context: text.optional("max_position_embeddings")?,
        layers: grouped(layers),
    })
}

/// Alike layers together, in the order in which their kinds first occur.
fn grouped(layers: Vec<Layer>) -> Vec<toml::Spanned<Layers>> {
    let mut groups: Vec<Layers> = Vec::new();
    for (attention, ffn) in layers {
        match groups.iter_mut().find(|known| known.attention == attention && known.ffn == ffn) {
            Some(known) => known.count += 1,
            None => groups.push(Layers { count: 1, attention, ffn }),
        }
    }
    groups.into_iter().map(|group| toml::Spanned::new(0..0, group)).collect()
}

/// The number format of the weights, where the file names one.
///
/// # Errors
/// A method or a number of bits that nothing here knows: taken for 16 bits, the weights would be too large by far.
fn weights(config: Config<'_>) -> Result<Option<WeightDtype>> {
    if config.value("quantization_config").is_none() {
        return Ok(None);
    }
    let table = config.table("quantization_config")?;
    let words = serde_json::to_string(table.keys).unwrap_or_default().to_lowercase();
    let method = table.value("quant_method").and_then(Value::as_str).unwrap_or_default();
    // `compressed-tensors` and `modelopt` say the rest elsewhere in the table.
    let named = [("nvfp4", WeightDtype::Nvfp4), ("mxfp4", WeightDtype::Mxfp4)];
    if let Some((_, dtype)) = named.iter().find(|(word, _)| words.contains(word)) {
        return Ok(Some(*dtype));
    }
    let bits = table.optional("bits")?;
    let is_whole = words.contains("\"type\":\"int\"");
    match (method, bits) {
        ("awq" | "gptq", None | Some(4)) => Ok(Some(WeightDtype::Int4)),
        ("compressed-tensors", _) if words.contains("\"num_bits\":4") => Ok(Some(WeightDtype::Int4)),
        ("compressed-tensors", _) if is_whole => Err(unknown_format(method, "whole numbers of other than 4 bits")),
        ("fp8" | "modelopt" | "compressed-tensors", None | Some(8)) => Ok(Some(WeightDtype::Fp8)),
        (_, Some(bits)) => Err(unknown_format(method, &format!("{bits} bits"))),
        (_, None) => Err(unknown_format(method, "no bits that are known")),
    }
}

fn unknown_format(method: &str, bits: &str) -> Error {
    Error::data(format!(
        "`quantization_config`: expected fp8, modelopt, compressed-tensors, or awq or gptq of 4 bits, found `{method}` with {bits}"
    ))
    .hint("take `quantization_config` out of a copy of the file, and name the nearest format with `--weights`")
}

/// What families have been told apart, for messages.
fn unknown_kind(kind: &str) -> Error {
    engine::error::unknown("model type", kind, families::KINDS.iter().copied())
        .hint("write a model file of your own: `kvtoll explain` and the presets show its keys")
}

/// The certainty of a shape whose every number the file has.
const READ: Certainty = Certainty::Published;
