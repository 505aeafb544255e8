//! Which device a measurement names, and its rates.

use engine::error::{Error, Result};
use engine::machine::Machine;
use engine::surface::Peaks;
use serde::Deserialize;

use crate::{embedded, scenario};

/// A device as surfaces know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Short name where it is known, else its own.
    pub name: String,
    /// Its rates; nominal ones where they are not known.
    pub peaks: Peaks,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    device: Vec<Entry>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    words: String,
    processors: f64,
    cache_bytes: f64,
    bf16_flops: Option<f64>,
    fp8_flops: Option<f64>,
    memory_bytes_per_s: Option<f64>,
    link_bytes_per_s: Option<f64>,
    /// Read by people.
    #[serde(rename = "source")]
    _source: String,
}

/// The device of this name as measurements have it (`NVIDIA H100 80GB HBM3`), with the rates of `machine` where one is
/// given.
///
/// # Errors
/// The list of devices or a machine preset is broken.
pub fn device(named: &str, machine: Option<&Machine>) -> Result<Device> {
    let listed: Listed = toml::from_str(embedded::DEVICES)
        .map_err(|error| Error::run(format!("`presets/surfaces/devices.toml`: {error}")))?;
    let most = listed.device.iter().map(|entry| entry.cache_bytes).fold(0.0, f64::max);
    let plain: String = named.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    let fits = listed.device.into_iter().filter(|entry| plain.contains(&entry.words));
    let entry = fits.max_by_key(|entry| entry.words.len());
    let name = entry.as_ref().map_or_else(|| named.to_owned(), |entry| entry.name.clone());
    let preset = match (&entry, machine) {
        (Some(entry), None) if entry.memory_bytes_per_s.is_none() => Some(scenario::load_machine(&entry.name)?),
        _ => None,
    };
    let peaks = match (machine.or(preset.as_ref()), &entry) {
        (Some(machine), entry) => {
            let (processors, cache) =
                entry.as_ref().map_or((Peaks::NOMINAL.processors, most), |entry| (entry.processors, entry.cache_bytes));
            of_machine(machine, processors, cache)
        }
        (None, Some(entry)) => of_entry(entry),
        (None, None) => Peaks::NOMINAL,
    };
    Ok(Device { name, peaks })
}

fn of_machine(machine: &Machine, processors: f64, cache_bytes: f64) -> Peaks {
    let part = &machine.accelerator;
    let flops_16bit = part.bf16_flops.value;
    let flops_8bit = part.fp8_flops.as_ref().map_or(flops_16bit, |rate| rate.value);
    Peaks {
        memory_bytes_per_s: part.memory_bytes_per_s.value,
        cache_bytes,
        flops_16bit,
        flops_8bit,
        flops_4bit: part.fp4_flops.as_ref().map_or(flops_8bit, |rate| rate.value),
        link_bytes_per_s: part.scale_up_bytes_per_s.value,
        processors,
    }
}

fn of_entry(entry: &Entry) -> Peaks {
    let nominal = Peaks::NOMINAL;
    let flops_16bit = entry.bf16_flops.unwrap_or(nominal.flops_16bit);
    let flops_8bit = entry.fp8_flops.unwrap_or(flops_16bit);
    Peaks {
        memory_bytes_per_s: entry.memory_bytes_per_s.unwrap_or(nominal.memory_bytes_per_s),
        cache_bytes: entry.cache_bytes,
        flops_16bit,
        flops_8bit,
        flops_4bit: flops_8bit,
        link_bytes_per_s: entry.link_bytes_per_s.unwrap_or(nominal.link_bytes_per_s),
        processors: entry.processors,
    }
}
