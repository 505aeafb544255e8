//! Reads a machine file.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::{Accelerator, Distance, Efficiency, FfnPool, Link, Machine, Quantity, Slot, Sourced, Tier, slots};
use crate::error::{Error, Result, unknown};
use crate::model::{Certainty, from_toml, located, name_of};

/// The table `[sources]`: short keys and the texts that they stand for.
pub(crate) type Sources = BTreeMap<String, String>;

/// `{ value = "4.8TB/s", source = "key of [sources]", certainty = "published" }`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Number {
    value: Spanned<toml::Value>,
    source: Spanned<String>,
    certainty: Certainty,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    sources: Sources,
    accelerator: Spanned<AcceleratorFile>,
    efficiency: EfficiencyFile,
    ffn_pool: Option<FfnPoolFile>,
    calibrated: Option<Calibrated>,
    #[serde(default)]
    tiers: Vec<TierFile>,
    #[serde(default)]
    links: Vec<LinkFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TierFile {
    name: String,
    capacity_bytes: Option<Number>,
    read_bytes_per_s: Option<Number>,
    write_bytes_per_s: Option<Number>,
    latency_ns: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    name: String,
    distance: Distance,
    way_bytes_per_s: Option<Number>,
    latency_ns: Option<Number>,
    achieved: Option<Number>,
}

/// `[calibrated]`: `source`, and parameters by name as texts with units or plain numbers.
type Calibrated = BTreeMap<String, Spanned<toml::Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibratedFile {
    calibrated: Calibrated,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceleratorFile {
    #[serde(default)]
    unpublished: Vec<Spanned<String>>,
    bf16_flops: Option<Number>,
    fp8_flops: Option<Number>,
    fp4_flops: Option<Number>,
    vector_flops: Option<Number>,
    memory_bytes: Option<Number>,
    memory_bytes_per_s: Option<Number>,
    scale_up_bytes_per_s: Option<Number>,
    scale_up_latency_ns: Option<Number>,
    host_link_bytes_per_s: Option<Number>,
    scale_up_domain: Spanned<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EfficiencyFile {
    kv_read_16bit: Number,
    kv_read_8bit: Number,
    weight_read: Number,
    weight_read_8bit: Number,
    matmul_bf16: Number,
    matmul_fp8: Number,
    matmul_fp4: Number,
    all_reduce: Number,
    attention_floor_ns: Number,
    attention_floor_8bit_ns: Number,
    layer_floor_ns: Number,
    linear_floor_ns: Option<Number>,
    linear_prefill_ns: Option<Number>,
    sparse_floor_ns: Option<Number>,
    sparse_prefill_ns: Option<Number>,
    step_overhead_ns: Number,
    usable_memory_ratio: Number,
    reserve_bytes: Number,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FfnPoolFile {
    chips: Number,
    fp8_flops: Number,
    memory_bytes: Number,
    memory_bytes_per_s: Number,
    efficiency: Number,
    floor_ns: Number,
    link_bytes_per_s: Option<Number>,
    link_latency_ns: Option<Number>,
}

/// Reads the text of a machine file; `origin` names it in messages, and its file name without the extension names the
/// machine.
///
/// The tables are `[sources]` (short keys and full texts), `[accelerator]`, `[efficiency]` and, for attention/FFN
/// disaggregation, `[ffn_pool]`; their keys are those of [`Accelerator`], [`Efficiency`] and [`FfnPool`]. A number is
/// `{ value = "4.8TB/s", source = "key", certainty = "published" }`; ratios and counts are plain numbers. A table
/// `[calibrated]` replaces numbers; see [`calibrate`].
///
/// Numbers of the accelerator that nobody has published are named in its list `unpublished`; such a part can be shown
/// ([`super::sketch`]), and priced only where a variation gives what it lacks ([`super::resolve`]). `[[tiers]]` and
/// `[[links]]` describe the memories and links around it, each number where it is known.
///
/// # Errors
/// A missing, unknown or foreign key, a quantity without its unit, and a source that `[sources]` lacks, each with its
/// place. A number that is not published, by name.
pub fn parse(text: &str, origin: &str) -> Result<Machine> {
    draft(text, origin)?.complete()
}

/// A machine as its file has it; where a number is `missing`, what stands in its place is no value.
pub(super) struct Draft {
    pub(super) machine: Machine,
    pub(super) missing: Vec<&'static str>,
}

impl Draft {
    /// The machine, if all of it is known.
    pub(super) fn complete(self) -> Result<Machine> {
        let Some(first) = self.missing.first() else { return Ok(self.machine) };
        let names: Vec<String> = self.missing.iter().map(|name| format!("`{name}`")).collect();
        let preset = &self.machine.preset;
        let unit = if first.ends_with("_flops") { "1PFLOPS" } else { "1TB/s" };
        Err(Error::usage(format!("`{preset}` cannot be priced without {}, not published", names.join(" and ")))
            .hint(format!("assume what is missing, such as `{preset}*{first}={unit}`")))
    }
}

/// Numbers of the accelerator that a part may lack.
const MAY_LACK: [&str; 5] =
    ["bf16_flops", "memory_bytes", "memory_bytes_per_s", "scale_up_bytes_per_s", "scale_up_latency_ns"];

/// The numbers that the file says nobody has published.
fn unpublished(text: &str, origin: &str, listed: &[Spanned<String>]) -> Result<Vec<&'static str>> {
    let of = |name: &Spanned<String>| {
        let found = MAY_LACK.iter().find(|known| *known == name.get_ref());
        found.copied().ok_or_else(|| {
            let error = unknown("number", name.get_ref(), MAY_LACK).context("`unpublished`");
            located(text, origin, name.span(), &error)
        })
    };
    listed.iter().map(of).collect()
}

/// Reads a machine file, complete or not.
pub(super) fn draft(text: &str, origin: &str) -> Result<Draft> {
    let file: File = from_toml(text, origin)?;
    let missing = unpublished(text, origin, &file.accelerator.get_ref().unpublished)?;
    let header = file.accelerator.span();
    let number = |key: &str, number: &Number| sourced(text, origin, &file.sources, key, number);
    let optional = |key: &str, given: &Option<Number>| given.as_ref().map(|given| number(key, given)).transpose();
    // What is not published has no value; `complete` lets none of it out.
    let none = Sourced { value: f64::NAN, source: "not published".to_owned(), certainty: Certainty::Assumed };
    let required = |key: &'static str, given: &Option<Number>| match given {
        Some(_) if missing.contains(&key) => {
            Err(located(text, origin, header.clone(), &Error::data(format!("`{key}` is given and `unpublished`"))))
        }
        Some(given) => number(key, given),
        None if missing.contains(&key) => Ok(none.clone()),
        None => {
            let error = Error::data(format!("missing field `{key}` in `accelerator`"))
                .hint("list it in `unpublished` if nobody has said so");
            Err(located(text, origin, header.clone(), &error))
        }
    };
    let given = file.accelerator.get_ref();
    let domain = &given.scale_up_domain;
    if *domain.get_ref() == 0 {
        let error = Error::data("`scale_up_domain`: expected at least 1, found `0`");
        return Err(located(text, origin, domain.span(), &error));
    }
    let accelerator = Accelerator {
        bf16_flops: required("bf16_flops", &given.bf16_flops)?,
        fp8_flops: optional("fp8_flops", &given.fp8_flops)?,
        fp4_flops: optional("fp4_flops", &given.fp4_flops)?,
        vector_flops: optional("vector_flops", &given.vector_flops)?,
        memory_bytes: required("memory_bytes", &given.memory_bytes)?,
        memory_bytes_per_s: required("memory_bytes_per_s", &given.memory_bytes_per_s)?,
        scale_up_bytes_per_s: required("scale_up_bytes_per_s", &given.scale_up_bytes_per_s)?,
        scale_up_latency_ns: required("scale_up_latency_ns", &given.scale_up_latency_ns)?,
        host_link_bytes_per_s: optional("host_link_bytes_per_s", &given.host_link_bytes_per_s)?,
        scale_up_domain: *domain.get_ref(),
    };
    let efficiency = efficiency(&file.efficiency, &number)?;
    let ffn_pool = file.ffn_pool.as_ref().map(|given| ffn_pool(given, &number)).transpose()?;
    let (tiers, links) = around(&file, &number)?;
    let name = name_of(origin);
    let mut machine =
        Machine { preset: name.clone(), name, title: file.title, accelerator, efficiency, ffn_pool, tiers, links };
    if let Some(calibrated) = &file.calibrated {
        replace(&mut machine, text, origin, calibrated)?;
    }
    Ok(Draft { machine, missing })
}

/// Resolves one number by its key.
type Resolve<'a> = &'a dyn Fn(&str, &Number) -> Result<Sourced>;

fn efficiency(given: &EfficiencyFile, number: Resolve<'_>) -> Result<Efficiency> {
    let optional = |key: &str, given: &Option<Number>| given.as_ref().map(|given| number(key, given)).transpose();
    Ok(Efficiency {
        kv_read_16bit: number("kv_read_16bit", &given.kv_read_16bit)?,
        kv_read_8bit: number("kv_read_8bit", &given.kv_read_8bit)?,
        weight_read: number("weight_read", &given.weight_read)?,
        weight_read_8bit: number("weight_read_8bit", &given.weight_read_8bit)?,
        matmul_bf16: number("matmul_bf16", &given.matmul_bf16)?,
        matmul_fp8: number("matmul_fp8", &given.matmul_fp8)?,
        matmul_fp4: number("matmul_fp4", &given.matmul_fp4)?,
        all_reduce: number("all_reduce", &given.all_reduce)?,
        attention_floor_ns: number("attention_floor_ns", &given.attention_floor_ns)?,
        attention_floor_8bit_ns: number("attention_floor_8bit_ns", &given.attention_floor_8bit_ns)?,
        layer_floor_ns: number("layer_floor_ns", &given.layer_floor_ns)?,
        linear_floor_ns: optional("linear_floor_ns", &given.linear_floor_ns)?,
        linear_prefill_ns: optional("linear_prefill_ns", &given.linear_prefill_ns)?,
        sparse_floor_ns: optional("sparse_floor_ns", &given.sparse_floor_ns)?,
        sparse_prefill_ns: optional("sparse_prefill_ns", &given.sparse_prefill_ns)?,
        step_overhead_ns: number("step_overhead_ns", &given.step_overhead_ns)?,
        usable_memory_ratio: number("usable_memory_ratio", &given.usable_memory_ratio)?,
        reserve_bytes: number("reserve_bytes", &given.reserve_bytes)?,
    })
}

fn ffn_pool(given: &FfnPoolFile, number: Resolve<'_>) -> Result<FfnPool> {
    let optional = |key: &str, given: &Option<Number>| given.as_ref().map(|given| number(key, given)).transpose();
    Ok(FfnPool {
        chips: number("chips", &given.chips)?,
        fp8_flops: number("fp8_flops", &given.fp8_flops)?,
        memory_bytes: number("memory_bytes", &given.memory_bytes)?,
        memory_bytes_per_s: number("memory_bytes_per_s", &given.memory_bytes_per_s)?,
        efficiency: number("efficiency", &given.efficiency)?,
        floor_ns: number("floor_ns", &given.floor_ns)?,
        link_bytes_per_s: optional("link_bytes_per_s", &given.link_bytes_per_s)?,
        link_latency_ns: optional("link_latency_ns", &given.link_latency_ns)?,
    })
}

/// Memories and links around the accelerator.
fn around(file: &File, number: Resolve<'_>) -> Result<(Vec<Tier>, Vec<Link>)> {
    let optional = |key: &str, given: &Option<Number>| given.as_ref().map(|given| number(key, given)).transpose();
    let tier = |given: &TierFile| {
        Ok(Tier {
            name: given.name.clone(),
            capacity_bytes: optional("capacity_bytes", &given.capacity_bytes)?,
            read_bytes_per_s: optional("read_bytes_per_s", &given.read_bytes_per_s)?,
            write_bytes_per_s: optional("write_bytes_per_s", &given.write_bytes_per_s)?,
            latency_ns: optional("latency_ns", &given.latency_ns)?,
        })
    };
    let link = |given: &LinkFile| {
        Ok(Link {
            name: given.name.clone(),
            distance: given.distance,
            way_bytes_per_s: optional("way_bytes_per_s", &given.way_bytes_per_s)?,
            latency_ns: optional("latency_ns", &given.latency_ns)?,
            achieved: optional("achieved", &given.achieved)?,
        })
    };
    Ok((file.tiers.iter().map(tier).collect::<Result<_>>()?, file.links.iter().map(link).collect::<Result<_>>()?))
}

/// Replaces numbers of the machine by those of a fit: the text of a file with one table `[calibrated]`, as
/// `kvtoll reconcile` writes it. `source` says what was fitted; every other key is a parameter, whose certainty becomes
/// `calibrated`.
///
/// # Errors
/// Another table, an unknown parameter, a quantity without its unit, no `source`: each with its place in `origin`.
pub fn calibrate(machine: &mut Machine, text: &str, origin: &str) -> Result<()> {
    let file: CalibratedFile = from_toml(text, origin)?;
    replace(machine, text, origin, &file.calibrated)
}

fn replace(machine: &mut Machine, text: &str, origin: &str, calibrated: &Calibrated) -> Result<()> {
    let source = match calibrated.get("source").map(Spanned::get_ref) {
        Some(toml::Value::String(source)) if !source.trim().is_empty() => source.clone(),
        _ => {
            return Err(Error::data(format!(
                "{origin}: `[calibrated]`: expected a text `source` that says what was fitted"
            )));
        }
    };
    for (name, given) in calibrated.iter().filter(|(name, _)| *name != "source") {
        let at = |error: &Error| located(text, origin, given.span(), error);
        let mut slots = slots(machine);
        let Some(index) = slots.iter().position(|(known, _)| known == name) else {
            return Err(at(&unknown("parameter", name, slots.iter().map(|(known, _)| *known))));
        };
        let value = Quantity::of(name).parse_toml(given.get_ref());
        let value = value.map_err(|error| at(&error.context(format!("`{name}`"))))?;
        let fitted = Sourced { value, source: source.clone(), certainty: Certainty::Calibrated };
        match slots.swap_remove(index).1 {
            Slot::Known(known) => *known = fitted,
            Slot::Unpublished(known) => *known = Some(fitted),
        }
    }
    Ok(())
}

/// Resolves one number of a file; the kind of quantity follows from the key.
pub(crate) fn sourced(text: &str, origin: &str, sources: &Sources, key: &str, number: &Number) -> Result<Sourced> {
    let value = Quantity::of(key).parse_toml(number.value.get_ref()).map_err(|error| {
        let error = error.context(format!("`{key}`"));
        located(text, origin, number.value.span(), &error)
    })?;
    let at_source = |error: &Error| located(text, origin, number.source.span(), error);
    let source_key = number.source.get_ref();
    let source = sources.get(source_key).ok_or_else(|| {
        at_source(&unknown("source", source_key, sources.keys().map(String::as_str)).context(format!("`{key}`")))
    })?;
    if source.trim().is_empty() {
        return Err(at_source(&Error::data(format!(
            "`{key}`: expected a text for the source `{source_key}`, found none"
        ))));
    }
    Ok(Sourced { value, source: source.clone(), certainty: number.certainty })
}
