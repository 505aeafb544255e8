//! Links between accelerators: which traffic of a step crosses which of them, how long that takes, and what it costs.
//!
//! A *fabric* joins accelerators by links of several reaches. A step's traffic comes in *classes* ([`traffic`]): all-reduces
//! of tensor parallelism, the all-to-all of experts, pipeline stages, KV from prefill to decode, replicas. Each is carried by
//! a collective ([`collective`]) as phases of transfers between *places*; [`topology`] says over which links a transfer
//! goes. A phase takes the latency of its longest way, its messages, and the time of its most loaded link: transfers share
//! links evenly, and links carry both ways at once.
//!
//! Ranks can be put on places in any order ([`place`]). A *naive* collective knows nothing of the fabric; an *adapted* one
//! goes along its levels or dimensions. Where classes meet on a link, [`share`] says when each is done.
//!
//! What software needs to be adapted to a fabric is an input in engineer-days, null where nobody has said so.

pub mod collective;
mod parse;
pub mod place;
pub mod share;
pub mod step;
pub mod tables;
pub mod topology;
pub mod traffic;

#[cfg(test)]
mod tests;

pub use parse::parse;

use crate::machine::{Distance, Sourced};

/// How links join accelerators.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// Every accelerator reaches every other one over one link of its own, as through one ideal switch.
    Flat,
    /// Nodes of so many accelerators, joined inside by the first level; each accelerator has a link of its own to the
    /// others by the second.
    Layered {
        /// Accelerators of a node.
        node: u32,
    },
    /// As `Layered`, and the links that leave a node meet in a leaf switch whose way up is narrower by a factor.
    Clos {
        /// Accelerators below a leaf switch.
        node: u32,
        /// Bandwidth that enters a leaf from below over that of its way up.
        oversubscription: f64,
    },
    /// A link between every two accelerators that differ in one coordinate only.
    FullMesh {
        /// Accelerators along each dimension.
        dims: Vec<u32>,
    },
    /// A ring along each dimension.
    Torus {
        /// Accelerators along each dimension.
        dims: Vec<u32>,
    },
}

/// Links of one reach, as one accelerator has them.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// What they are: `NVLink4 and NVSwitch3`.
    pub name: String,
    /// How far they reach.
    pub distance: Distance,
    /// Bandwidth each way of all such links of one accelerator, bytes per second.
    pub way_bytes_per_s: Sourced,
    /// Share of it that is reached.
    pub achieved: Sourced,
    /// Time from one end to the other, ns.
    pub latency_ns: Sourced,
    /// Time for which a message keeps its sender busy beside its bytes, ns.
    pub message_ns: Sourced,
    /// Energy of a bit that crosses, picojoules; null where nobody has said so.
    pub pj_per_bit: Option<Sourced>,
    /// Price of these links for one accelerator and hour; null where nobody has said so.
    pub usd_per_accelerator_hour: Option<Sourced>,
}

/// A fabric.
#[derive(Debug, Clone, PartialEq)]
pub struct Fabric {
    /// What the user types.
    pub name: String,
    /// What it is.
    pub title: String,
    /// How links join accelerators.
    pub shape: Shape,
    /// Accelerators.
    pub accelerators: u32,
    /// Links: of a node and between nodes, or along each dimension.
    pub levels: Vec<Level>,
    /// Work that software needs to use it well, engineer-days; null where nobody has said so.
    pub adaptation_days: Option<Sourced>,
}

impl Shape {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Flat => "flat",
            Self::Layered { .. } => "layered",
            Self::Clos { .. } => "clos",
            Self::FullMesh { .. } => "full_mesh",
            Self::Torus { .. } => "torus",
        }
    }
}

impl Fabric {
    /// Price of all levels for one accelerator and hour; `None` if that of a level is unknown.
    pub fn usd_per_accelerator_hour(&self) -> Option<f64> {
        self.levels.iter().map(|level| level.usd_per_accelerator_hour.as_ref().map(|usd| usd.value)).sum()
    }

    /// The least certain number.
    pub fn certainty(&self) -> crate::model::Certainty {
        let of = |level: &Level| {
            let known = [&level.way_bytes_per_s, &level.achieved, &level.latency_ns, &level.message_ns];
            known.into_iter().map(|number| number.certainty).min()
        };
        self.levels.iter().filter_map(of).min().unwrap_or(crate::model::Certainty::Assumed)
    }
}
