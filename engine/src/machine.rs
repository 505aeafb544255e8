//! What a machine can do: arithmetic, memories, links. Every number has a unit, a source and a certainty.
//!
//! A machine is a TOML file, most often a preset, and may be varied where it is named: `gb300*memory_bytes_per_s=2`.
//! The unit of a number is in its name (`_bytes`, `_ns`), and what is in neither is a ratio.

mod parse;
mod quantity;
mod times;
mod vary;

#[cfg(test)]
mod tests;

pub(crate) use parse::{Number, Sources, sourced};
pub use parse::{calibrate, parse};
use quantity::Quantity;
pub use times::{EACH_WAY, FACTORS, Resource};
pub use vary::resolve;

use crate::error::Result;
use crate::model::Certainty;

/// A number with its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Sourced {
    /// The value in the base unit of its field.
    pub value: f64,
    /// Where it comes from, in full.
    pub source: String,
    /// How well it is known.
    pub certainty: Certainty,
}

/// One kind of accelerator with the memory beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Accelerator {
    /// Dense arithmetic in bf16, flops per second.
    pub bf16_flops: Sourced,
    /// Dense arithmetic in fp8; null where the part has none (then bf16 serves).
    pub fp8_flops: Option<Sourced>,
    /// Dense arithmetic in fp4.
    pub fp4_flops: Option<Sourced>,
    /// Arithmetic outside the tensor units (fp32), flops per second: dequantization, scoring. Null where nobody has said so;
    /// policies that need it are then refused.
    pub vector_flops: Option<Sourced>,
    /// Main memory (HBM) that software can use, bytes.
    pub memory_bytes: Sourced,
    /// Peak read bandwidth of main memory, bytes per second.
    pub memory_bytes_per_s: Sourced,
    /// Links to the other accelerators of the scale-up domain, bytes per second and direction.
    pub scale_up_bytes_per_s: Sourced,
    /// Fixed time of one collective over those links, nanoseconds.
    pub scale_up_latency_ns: Sourced,
    /// Link to the memory of the host, bytes per second and direction; null where the part has none that is known.
    pub host_link_bytes_per_s: Option<Sourced>,
    /// Accelerators in the scale-up domain.
    pub scale_up_domain: u32,
}

/// What of the peaks is achieved (closed form; a measured surface replaces it where there is one), and fixed times.
#[derive(Debug, Clone, PartialEq)]
pub struct Efficiency {
    /// Share of peak bandwidth reached by decode attention with 16-bit KV.
    pub kv_read_16bit: Sourced,
    /// The same with KV of 8 bits or fewer.
    pub kv_read_8bit: Sourced,
    /// Share of peak bandwidth reached when 16-bit weights are streamed.
    pub weight_read: Sourced,
    /// The same with weights of 8 bits or fewer.
    pub weight_read_8bit: Sourced,
    /// Share of peak arithmetic reached by large bf16 matrix products and prefill attention.
    pub matmul_bf16: Sourced,
    /// The same in fp8.
    pub matmul_fp8: Sourced,
    /// The same in fp4.
    pub matmul_fp4: Sourced,
    /// Share of peak link bandwidth reached by an all-reduce.
    pub all_reduce: Sourced,
    /// Fixed time of one layer's attention kernel with 16-bit KV, nanoseconds.
    pub attention_floor_ns: Sourced,
    /// The same with KV of 8 bits or fewer.
    pub attention_floor_8bit_ns: Sourced,
    /// Fixed time of one layer's other kernels, nanoseconds.
    pub layer_floor_ns: Sourced,
    /// Fixed time of one layer of linear attention, a chain of small kernels, nanoseconds; as other kernels where unknown.
    pub linear_floor_ns: Option<Sourced>,
    /// Time that a token of a prompt takes in such a layer beyond its arithmetic and bytes, nanoseconds; none where unknown.
    pub linear_prefill_ns: Option<Sourced>,
    /// Fixed time of one layer of attention to tokens that an index picks, with the index and the choice, nanoseconds; as other
    /// attention where unknown.
    pub sparse_floor_ns: Option<Sourced>,
    /// Time that a token of a prompt takes in such a layer beyond its arithmetic and bytes, nanoseconds; none where unknown.
    pub sparse_prefill_ns: Option<Sourced>,
    /// Fixed time of an engine step on the host that the accelerator waits for, nanoseconds.
    pub step_overhead_ns: Sourced,
    /// Share of memory that the engine may use (vLLM: `gpu_memory_utilization`).
    pub usable_memory_ratio: Sourced,
    /// Memory for activations, graphs and the runtime on each accelerator, bytes.
    pub reserve_bytes: Sourced,
}

/// Separate accelerators for the feed-forward layers while decoding (attention/FFN disaggregation).
#[derive(Debug, Clone, PartialEq)]
pub struct FfnPool {
    /// Chips that serve one instance.
    pub chips: Sourced,
    /// Arithmetic of one chip in fp8, flops per second.
    pub fp8_flops: Sourced,
    /// Memory of one chip for weights, bytes.
    pub memory_bytes: Sourced,
    /// Peak bandwidth of that memory, bytes per second.
    pub memory_bytes_per_s: Sourced,
    /// Share of these peaks that is achieved.
    pub efficiency: Sourced,
    /// Fixed time of one layer's FFN and micro-batch, nanoseconds: the traffic between the chips that share a layer.
    pub floor_ns: Sourced,
    /// Bandwidth of the hop from each attention accelerator, one way, bytes per second; a required input where
    /// unpublished.
    pub link_bytes_per_s: Option<Sourced>,
    /// Latency of the hop, one way, nanoseconds; a required input where unpublished.
    pub link_latency_ns: Option<Sourced>,
}

/// A memory beside that of the accelerator, as one accelerator sees it; null where nobody has said so.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier {
    /// What it is: `Grace LPDDR5X`.
    pub name: String,
    /// Size, bytes.
    pub capacity_bytes: Option<Sourced>,
    /// Peak read bandwidth, bytes per second.
    pub read_bytes_per_s: Option<Sourced>,
    /// Peak write bandwidth, bytes per second.
    pub write_bytes_per_s: Option<Sourced>,
    /// Time to the first byte, nanoseconds.
    pub latency_ns: Option<Sourced>,
}

/// How far a link reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// Within a package.
    Package,
    /// On a board: to the host.
    Board,
    /// Within a rack or node: the scale-up domain.
    Rack,
    /// From rack to rack.
    CrossRack,
}

/// A link of one accelerator; null where nobody has said so.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// What it is: `NVLink-C2C`.
    pub name: String,
    /// How far it reaches.
    pub distance: Distance,
    /// Bandwidth each way, bytes per second.
    pub way_bytes_per_s: Option<Sourced>,
    /// Latency, nanoseconds.
    pub latency_ns: Option<Sourced>,
    /// Share of the bandwidth that is reached.
    pub achieved: Option<Sourced>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// What the user typed, variations included: `gb300*memory_bytes_per_s=2`.
    pub name: String,
    /// Name of the preset without variations; prices are looked up under it.
    pub preset: String,
    /// Its published name.
    pub title: String,
    /// The accelerator that holds the KV and attends.
    pub accelerator: Accelerator,
    /// Efficiencies and fixed times.
    pub efficiency: Efficiency,
    /// Accelerators for the FFN, if apart.
    pub ffn_pool: Option<FfnPool>,
    /// Memories around the accelerator, nearest first.
    pub tiers: Vec<Tier>,
    /// Links of the accelerator, nearest first.
    pub links: Vec<Link>,
}

/// What is known of a machine, whether or not it is enough to price anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Sketch {
    /// Its published name.
    pub title: String,
    /// Every number that is known.
    pub parameters: Vec<Parameter>,
    /// Numbers that pricing needs and nobody has published.
    pub unpublished: Vec<&'static str>,
    /// Memories around the accelerator.
    pub tiers: Vec<Tier>,
    /// Its links.
    pub links: Vec<Link>,
}

/// What a machine file says.
///
/// # Errors
/// Those of [`parse`], except for numbers that are not published.
pub fn sketch(text: &str, origin: &str) -> Result<Sketch> {
    let parse::Draft { machine, missing } = parse::draft(text, origin)?;
    let known = parameters(&machine).into_iter().filter(|known| !missing.contains(&known.name));
    let (title, tiers, links) = (machine.title.clone(), machine.tiers.clone(), machine.links.clone());
    Ok(Sketch { title, parameters: known.collect(), unpublished: missing, tiers, links })
}

impl Distance {
    /// Name of the distance.
    pub fn name(self) -> &'static str {
        match self {
            Self::Package => "package",
            Self::Board => "board",
            Self::Rack => "rack",
            Self::CrossRack => "cross-rack",
        }
    }
}

/// One number of a machine, as the table `machines` shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Its name, which a variation may use.
    pub name: &'static str,
    /// Its value in the unit.
    pub value: f64,
    /// The unit: `flops/s`, `bytes`, `bytes/s`, `ns`, `ratio`, `chips` or `accelerators`.
    pub unit: &'static str,
    /// Where it comes from.
    pub source: String,
    /// How well it is known.
    pub certainty: Certainty,
}

/// Where a parameter is kept.
enum Slot<'a> {
    Known(&'a mut Sourced),
    /// Null where nobody has published it.
    Unpublished(&'a mut Option<Sourced>),
}

/// Parameters of the separate FFN accelerators; a machine without them has none of these.
const POOL_PARAMETERS: [&str; 8] = [
    "ffn_chips",
    "ffn_fp8_flops",
    "ffn_memory_bytes",
    "ffn_memory_bytes_per_s",
    "ffn_efficiency",
    "ffn_floor_ns",
    "link_bytes_per_s",
    "link_latency_ns",
];

/// All parameters in the order in which they are shown. This is the one list that variation, scaling and display share.
fn slots(machine: &mut Machine) -> Vec<(&'static str, Slot<'_>)> {
    let accelerator = &mut machine.accelerator;
    let efficiency = &mut machine.efficiency;
    let mut slots = vec![
        ("bf16_flops", Slot::Known(&mut accelerator.bf16_flops)),
        ("fp8_flops", Slot::Unpublished(&mut accelerator.fp8_flops)),
        ("fp4_flops", Slot::Unpublished(&mut accelerator.fp4_flops)),
        ("vector_flops", Slot::Unpublished(&mut accelerator.vector_flops)),
        ("memory_bytes", Slot::Known(&mut accelerator.memory_bytes)),
        ("memory_bytes_per_s", Slot::Known(&mut accelerator.memory_bytes_per_s)),
        ("scale_up_bytes_per_s", Slot::Known(&mut accelerator.scale_up_bytes_per_s)),
        ("scale_up_latency_ns", Slot::Known(&mut accelerator.scale_up_latency_ns)),
        ("host_link_bytes_per_s", Slot::Unpublished(&mut accelerator.host_link_bytes_per_s)),
        ("kv_read_16bit", Slot::Known(&mut efficiency.kv_read_16bit)),
        ("kv_read_8bit", Slot::Known(&mut efficiency.kv_read_8bit)),
        ("weight_read", Slot::Known(&mut efficiency.weight_read)),
        ("weight_read_8bit", Slot::Known(&mut efficiency.weight_read_8bit)),
        ("matmul_bf16", Slot::Known(&mut efficiency.matmul_bf16)),
        ("matmul_fp8", Slot::Known(&mut efficiency.matmul_fp8)),
        ("matmul_fp4", Slot::Known(&mut efficiency.matmul_fp4)),
        ("all_reduce", Slot::Known(&mut efficiency.all_reduce)),
        ("attention_floor_ns", Slot::Known(&mut efficiency.attention_floor_ns)),
        ("attention_floor_8bit_ns", Slot::Known(&mut efficiency.attention_floor_8bit_ns)),
        ("layer_floor_ns", Slot::Known(&mut efficiency.layer_floor_ns)),
        ("linear_floor_ns", Slot::Unpublished(&mut efficiency.linear_floor_ns)),
        ("linear_prefill_ns", Slot::Unpublished(&mut efficiency.linear_prefill_ns)),
        ("sparse_floor_ns", Slot::Unpublished(&mut efficiency.sparse_floor_ns)),
        ("sparse_prefill_ns", Slot::Unpublished(&mut efficiency.sparse_prefill_ns)),
        ("step_overhead_ns", Slot::Known(&mut efficiency.step_overhead_ns)),
        ("usable_memory_ratio", Slot::Known(&mut efficiency.usable_memory_ratio)),
        ("reserve_bytes", Slot::Known(&mut efficiency.reserve_bytes)),
    ];
    if let Some(pool) = &mut machine.ffn_pool {
        let [chips, flops, memory, memory_rate, share, floor, link_rate, link_latency] = POOL_PARAMETERS;
        slots.push((chips, Slot::Known(&mut pool.chips)));
        slots.push((flops, Slot::Known(&mut pool.fp8_flops)));
        slots.push((memory, Slot::Known(&mut pool.memory_bytes)));
        slots.push((memory_rate, Slot::Known(&mut pool.memory_bytes_per_s)));
        slots.push((share, Slot::Known(&mut pool.efficiency)));
        slots.push((floor, Slot::Known(&mut pool.floor_ns)));
        slots.push((link_rate, Slot::Unpublished(&mut pool.link_bytes_per_s)));
        slots.push((link_latency, Slot::Unpublished(&mut pool.link_latency_ns)));
    }
    slots
}

/// Every number that is known of the machine, always in the same order.
pub fn parameters(machine: &Machine) -> Vec<Parameter> {
    let mut copy = machine.clone();
    let mut parameters = Vec::new();
    for (name, slot) in slots(&mut copy) {
        let known = match slot {
            Slot::Known(known) => Some(&*known),
            Slot::Unpublished(known) => known.as_ref(),
        };
        if let Some(Sourced { value, source, certainty }) = known {
            let (unit, source) = (Quantity::of(name).symbol(), source.clone());
            parameters.push(Parameter { name, value: *value, unit, source, certainty: *certainty });
        }
        // The size of the domain has no origin of its own: it is part of what the machine is.
        if name == "scale_up_latency_ns" {
            parameters.push(Parameter {
                name: "scale_up_domain",
                value: f64::from(machine.accelerator.scale_up_domain),
                unit: "accelerators",
                source: format!("definition of {}", machine.title),
                certainty: machine.accelerator.scale_up_bytes_per_s.certainty.min(Certainty::Published),
            });
        }
    }
    parameters
}

/// The machine with all rates and all fixed times scaled; capacities and efficiencies stay as they are. Laws of the
/// cost engine are tested with it: twice the rates and half the times halve every cost.
#[must_use]
pub fn scaled(machine: &Machine, rate_factor: f64, latency_factor: f64) -> Machine {
    let mut scaled = machine.clone();
    for (name, slot) in slots(&mut scaled) {
        let factor = match Quantity::of(name) {
            Quantity::Flops | Quantity::Bandwidth => rate_factor,
            Quantity::Time => latency_factor,
            _ => continue,
        };
        let known = match slot {
            Slot::Known(known) => Some(known),
            Slot::Unpublished(known) => known.as_mut(),
        };
        if let Some(known) = known {
            known.value *= factor;
        }
    }
    scaled
}
