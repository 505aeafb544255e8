//! Which links there are, and over which of them a transfer goes.
//!
//! * *Flat*: a way up and a way down for each accelerator.
//! * *Layered*: the same on each level; a transfer takes the level of the smallest circle that holds both ends.
//! * *Clos*: as layered, and between nodes also the leaf's way up and the other leaf's way down.
//! * *Full mesh*: a link for each ordered pair along a dimension; the bandwidth of a dimension is split evenly over them.
//! * *Torus*: a link to each of two neighbours along a dimension, which split its bandwidth; the shorter way round, and of two
//!   equal ones the rising one.
//!
//! Meshes and tori go along the dimensions in order.

use super::{Fabric, Shape};
use crate::error::{Error, Result};

/// Accelerators that a fabric may have; links and transfers are listed one by one.
pub const MOST: u32 = 4096;

/// One link, one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Its level.
    pub level: usize,
    /// Bandwidth that is reached, bytes per nanosecond.
    pub bytes_per_ns: f64,
}

/// A fabric as links.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Accelerators.
    pub accelerators: u32,
    /// How they are joined.
    pub shape: Shape,
    /// All links.
    pub links: Vec<Link>,
    /// Latency of each level, ns.
    pub latency_ns: Vec<f64>,
    /// Time of a message on each level, ns.
    pub message_ns: Vec<f64>,
    /// Picojoules per bit of each level.
    pub pj_per_bit: Vec<Option<f64>>,
    /// Where the links of each dimension begin, for meshes and tori.
    bases: Vec<u32>,
}

/// Builds the links of a fabric.
///
/// # Errors
/// Sizes that do not go together; more accelerators than [`MOST`].
pub fn network(fabric: &Fabric) -> Result<Network> {
    check(fabric)?;
    let rates: Vec<f64> =
        fabric.levels.iter().map(|level| level.way_bytes_per_s.value * level.achieved.value / 1e9).collect();
    let count = fabric.accelerators as usize;
    let (mut links, mut bases) = (Vec::new(), Vec::new());
    let mut put = |level: usize, bytes_per_ns: f64, times: usize| {
        bases.push(links.len() as u32);
        links.extend(std::iter::repeat_n(Link { level, bytes_per_ns }, times));
    };
    match &fabric.shape {
        Shape::Flat => put(0, rates[0], 2 * count),
        Shape::Layered { .. } => (0..2).for_each(|level| put(level, rates[level], 2 * count)),
        Shape::Clos { node, oversubscription } => {
            (0..2).for_each(|level| put(level, rates[level], 2 * count));
            put(1, rates[1] * f64::from(*node) / oversubscription, 2 * count.div_ceil(*node as usize));
        }
        Shape::FullMesh { dims } => {
            for (level, &dim) in dims.iter().enumerate() {
                put(level, rates[level] / f64::from(dim.max(2) - 1), count * dim as usize);
            }
        }
        Shape::Torus { dims } => (0..dims.len()).for_each(|level| put(level, rates[level] / 2.0, 2 * count)),
    }
    Ok(Network {
        accelerators: fabric.accelerators,
        shape: fabric.shape.clone(),
        links,
        latency_ns: fabric.levels.iter().map(|level| level.latency_ns.value).collect(),
        message_ns: fabric.levels.iter().map(|level| level.message_ns.value).collect(),
        pj_per_bit: fabric.levels.iter().map(|level| level.pj_per_bit.as_ref().map(|pj| pj.value)).collect(),
        bases,
    })
}

fn check(fabric: &Fabric) -> Result<()> {
    let Fabric { name, shape, accelerators, levels, .. } = fabric;
    let wrong = |text: String| Err(Error::usage(format!("fabric `{name}`: {text}")));
    if !(1..=MOST).contains(accelerators) {
        return wrong(format!("expected 1 to {MOST} accelerators, found {accelerators}"));
    }
    let wanted = match shape {
        Shape::Flat => 1,
        Shape::Layered { .. } | Shape::Clos { .. } => 2,
        Shape::FullMesh { dims } | Shape::Torus { dims } => dims.len(),
    };
    if levels.len() != wanted || wanted == 0 {
        return wrong(format!("expected {wanted} levels of links, found {}", levels.len()));
    }
    match shape {
        Shape::Layered { node } | Shape::Clos { node, .. } if *node == 0 || !accelerators.is_multiple_of(*node) => {
            wrong(format!("expected whole nodes, found {accelerators} accelerators in nodes of {node}"))
        }
        Shape::Clos { oversubscription, .. } if !(*oversubscription >= 1.0 && oversubscription.is_finite()) => {
            wrong(format!("expected an oversubscription of at least 1, found {oversubscription}"))
        }
        Shape::FullMesh { dims } | Shape::Torus { dims } => {
            let product = dims.iter().try_fold(1_u32, |product, dim| product.checked_mul(*dim));
            if product == Some(*accelerators) {
                return Ok(());
            }
            wrong(format!("expected dimensions whose product is {accelerators}, found {dims:?}"))
        }
        _ => Ok(()),
    }
}

impl Network {
    /// The accelerators of the smallest circle on the first level: a node, or the first dimension; all where there is one
    /// level.
    pub fn node(&self) -> u32 {
        match &self.shape {
            Shape::Flat => self.accelerators,
            Shape::Layered { node } | Shape::Clos { node, .. } => *node,
            Shape::FullMesh { dims } | Shape::Torus { dims } => dims.first().copied().unwrap_or(1),
        }
    }

    /// The dimensions of a mesh or torus; none elsewhere.
    pub fn dims(&self) -> &[u32] {
        match &self.shape {
            Shape::FullMesh { dims } | Shape::Torus { dims } => dims,
            _ => &[],
        }
    }

    /// Appends the links from one place to another to `way`; the latency of the way in ns, and its farthest level.
    pub fn route(&self, from: u32, to: u32, way: &mut Vec<u32>) -> (f64, usize) {
        if from == to {
            return (0.0, 0);
        }
        let count = self.accelerators;
        match &self.shape {
            Shape::Flat => way.extend([from, count + to]),
            Shape::Layered { node } | Shape::Clos { node, .. } => {
                let level = u32::from(from / node != to / node);
                let base = self.bases[level as usize];
                way.extend([base + from, base + count + to]);
                if level == 1 && matches!(self.shape, Shape::Clos { .. }) {
                    let (leaf, leaves) = (self.bases[2], count.div_ceil(*node));
                    way.extend([leaf + from / node, leaf + leaves + to / node]);
                }
                return (self.latency_ns[level as usize], level as usize);
            }
            Shape::FullMesh { dims } => return self.along(dims, (from, to), way, Self::mesh_step),
            Shape::Torus { dims } => return self.along(dims, (from, to), way, Self::torus_steps),
        }
        (self.latency_ns[0], 0)
    }

    /// Goes along the dimensions in order.
    fn along(
        &self,
        dims: &[u32],
        (from, to): (u32, u32),
        way: &mut Vec<u32>,
        step: fn(&Self, (usize, u32, u32), (u32, u32), &mut Vec<u32>) -> f64,
    ) -> (f64, usize) {
        let (mut at, mut stride, mut latency, mut farthest) = (from, 1, 0.0, 0);
        for (level, &dim) in dims.iter().enumerate() {
            let (here, there) = (at / stride % dim, to / stride % dim);
            if here != there {
                latency += step(self, (level, dim, stride), (at, there), way) * self.latency_ns[level];
                at = at - here * stride + there * stride;
                farthest = level;
            }
            stride *= dim;
        }
        (latency, farthest)
    }

    fn mesh_step(&self, (level, dim, _): (usize, u32, u32), (at, there): (u32, u32), way: &mut Vec<u32>) -> f64 {
        way.push(self.bases[level] + at * dim + there);
        1.0
    }

    fn torus_steps(&self, (level, dim, stride): (usize, u32, u32), (at, there): (u32, u32), way: &mut Vec<u32>) -> f64 {
        let here = at / stride % dim;
        let rising = (there + dim - here) % dim;
        let is_rising = rising * 2 <= dim;
        let steps = if is_rising { rising } else { dim - rising };
        let mut now = here;
        for _ in 0..steps {
            let place = at - here * stride + now * stride;
            way.push(self.bases[level] + 2 * place + u32::from(!is_rising));
            now = if is_rising { (now + 1) % dim } else { (now + dim - 1) % dim };
        }
        f64::from(steps)
    }
}
