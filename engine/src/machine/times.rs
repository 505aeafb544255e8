//! A machine with more of one resource: what a better specification would be.

use super::{Machine, Sourced};
use crate::model::Certainty;

/// Times a resource that comparisons try; the second generation of a part that is told to be 2.75 times as fast is among them.
pub const FACTORS: [f64; 5] = [1.0, 2.0, 2.75, 4.0, 8.0];

/// Times a resource by which a run shows what its result hangs on: half of each and twice.
pub const EACH_WAY: [f64; 2] = [0.5, 2.0];

/// What there can be more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bandwidth of the memory beside the accelerators.
    Bandwidth,
    /// Bandwidth of all links: between accelerators, to the host, and to the FFN pool.
    Link,
    /// Arithmetic, in all formats.
    Compute,
    /// Size of the memory beside the accelerators.
    Capacity,
    /// Speed of the host: its time per step is an assumption everywhere, and in no machine's specification.
    Host,
}

impl Resource {
    /// Every resource of a machine's specification, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Bandwidth, Self::Link, Self::Compute, Self::Capacity];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "memory_bandwidth",
            Self::Link => "link",
            Self::Compute => "compute",
            Self::Capacity => "memory_capacity",
            Self::Host => "host",
        }
    }

    /// Every resource with every factor that a run replays: what a better specification delivers, and what less of each
    /// takes away.
    pub fn replayed() -> impl Iterator<Item = (Self, f64)> {
        let less = EACH_WAY.into_iter().filter(|factor| !FACTORS.contains(factor));
        let of_machine = move |resource| FACTORS.into_iter().chain(less.clone()).map(move |factor| (resource, factor));
        let of_host = FACTORS.into_iter().take(1).chain(EACH_WAY).map(|factor| (Self::Host, factor));
        Self::ALL.into_iter().flat_map(of_machine).chain(of_host)
    }

    /// The machine with so many times the resource; what is multiplied becomes an assumption.
    #[must_use]
    pub fn times(self, machine: &Machine, factor: f64) -> Machine {
        let mut machine = machine.clone();
        let part = &mut machine.accelerator;
        let known = |number: &mut Sourced| {
            number.value *= factor;
            if (factor - 1.0).abs() > f64::EPSILON {
                number.certainty = Certainty::Assumed;
            }
        };
        match self {
            Self::Bandwidth => known(&mut part.memory_bytes_per_s),
            Self::Capacity => known(&mut part.memory_bytes),
            Self::Host => {
                let overhead = &mut machine.efficiency.step_overhead_ns;
                overhead.value /= factor;
                overhead.certainty = Certainty::Assumed;
            }
            Self::Link => {
                known(&mut part.scale_up_bytes_per_s);
                part.host_link_bytes_per_s.as_mut().into_iter().for_each(known);
                if let Some(pool) = &mut machine.ffn_pool {
                    pool.link_bytes_per_s.as_mut().into_iter().for_each(known);
                }
            }
            Self::Compute => {
                known(&mut part.bf16_flops);
                let others = [&mut part.fp8_flops, &mut part.fp4_flops, &mut part.vector_flops];
                others.into_iter().flatten().for_each(known);
                if let Some(pool) = &mut machine.ffn_pool {
                    known(&mut pool.fp8_flops);
                }
            }
        }
        machine
    }
}
