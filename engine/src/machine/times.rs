//! A machine with more of one resource: what a better specification would be.

use super::{Machine, Sourced};
use crate::model::Certainty;

/// Times a resource that comparisons try; the second generation of a part that is told to be 2.75 times as fast is among them.
pub const FACTORS: [f64; 5] = [1.0, 2.0, 2.75, 4.0, 8.0];

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
}

impl Resource {
    /// Every resource, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Bandwidth, Self::Link, Self::Compute, Self::Capacity];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "memory_bandwidth",
            Self::Link => "link",
            Self::Compute => "compute",
            Self::Capacity => "memory_capacity",
        }
    }

    /// The machine with so many times the resource; what is multiplied becomes an assumption.
    #[must_use]
    pub fn times(self, machine: &Machine, factor: f64) -> Machine {
        let mut machine = machine.clone();
        let part = &mut machine.accelerator;
        let known = |number: &mut Sourced| {
            number.value *= factor;
            if factor > 1.0 {
                number.certainty = Certainty::Assumed;
            }
        };
        match self {
            Self::Bandwidth => known(&mut part.memory_bytes_per_s),
            Self::Capacity => known(&mut part.memory_bytes),
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
