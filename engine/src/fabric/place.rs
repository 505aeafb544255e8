//! Ranks on places.
//!
//! A rank has a coordinate in tensor, data and pipeline parallelism. Ranks are put on places in the order of one axis after
//! another, the innermost next to each other: six orders of three axes. Places that do not attend ([`Layout::ffn`],
//! [`Layout::memory`]) stand behind those that do, or evenly among them. How much all of it matters is the *placement
//! sensitivity*: the time of the worst order over that of the best.

use crate::error::{Error, Result};

/// How the model is spread over the accelerators of a fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Accelerators that share a layer.
    pub tensor: u32,
    /// Copies of the attention part, each with requests of its own.
    pub data: u32,
    /// Parts of the layers, one after another.
    pub pipeline: u32,
    /// Accelerators among which the experts of a layer are spread: whole copies, all or some; 1 for none.
    pub expert: u32,
    /// Accelerators apart that compute the FFN; 0 where those that attend do.
    pub ffn: u32,
    /// Places of a farther memory that all accelerators share; with 0 it lies evenly at the accelerators themselves, in the
    /// memories of their hosts.
    pub memory: u32,
}

/// An axis of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Tensor parallelism.
    Tensor,
    /// Copies.
    Data,
    /// Pipeline stages.
    Pipeline,
}

/// The six orders of axes, innermost first.
const AXES: [[Axis; 3]; 6] = [
    [Axis::Tensor, Axis::Data, Axis::Pipeline],
    [Axis::Tensor, Axis::Pipeline, Axis::Data],
    [Axis::Data, Axis::Tensor, Axis::Pipeline],
    [Axis::Data, Axis::Pipeline, Axis::Tensor],
    [Axis::Pipeline, Axis::Tensor, Axis::Data],
    [Axis::Pipeline, Axis::Data, Axis::Tensor],
];

/// Where places stand that do not attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Behind all that attend: in nodes of their own.
    Behind,
    /// Evenly among them.
    Among,
}

/// One way to put ranks on places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The axes, innermost first.
    pub axes: [Axis; 3],
    /// Where places stand that do not attend.
    pub beside: Beside,
}

/// Tensor parallelism next to each other, then copies, then stages.
pub const USUAL: Order = Order { axes: AXES[0], beside: Beside::Behind };

impl Axis {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Data => "data",
            Self::Pipeline => "pipeline",
        }
    }
}

impl Layout {
    /// Accelerators that attend.
    pub fn ranks(&self) -> u32 {
        self.tensor.saturating_mul(self.data).saturating_mul(self.pipeline)
    }

    /// Places in all.
    pub fn all(&self) -> u32 {
        self.ranks().saturating_add(self.ffn).saturating_add(self.memory)
    }

    /// The ranks of the accelerators that compute the FFN apart; they follow those that attend.
    pub fn ffn_ranks(&self) -> std::ops::Range<u32> {
        self.ranks()..self.ranks() + self.ffn
    }

    /// The ranks of the places of a farther memory; they come last.
    pub fn memory_ranks(&self) -> std::ops::Range<u32> {
        self.ranks() + self.ffn..self.all()
    }

    /// Every order that puts a rank elsewhere, the usual one first.
    pub fn orders(&self) -> impl Iterator<Item = Order> {
        let has_others = self.all() > self.ranks();
        let beside = [Beside::Behind].into_iter().chain(has_others.then_some(Beside::Among));
        beside.flat_map(|beside| AXES.into_iter().map(move |axes| Order { axes, beside }))
    }

    /// Refuses a layout that does not fill a fabric, or experts that are not spread over whole copies.
    ///
    /// # Errors
    /// See above.
    pub fn check(&self, accelerators: u32) -> Result<()> {
        let Self { tensor, data, pipeline, expert, ffn, memory } = *self;
        let attending = accelerators.saturating_sub(ffn.saturating_add(memory));
        if [tensor, data, pipeline, expert].contains(&0) || self.ranks() != attending {
            return Err(Error::usage(format!(
                "expected tensor x data x pipeline parallelism over {attending} accelerators, found {tensor} x {data} x \
                 {pipeline}"
            )));
        }
        if ffn > 0 && expert > 1 {
            return Err(Error::usage("expected experts on the accelerators apart or on those that attend, found both")
                .hint("leave out `--expert-parallel`"));
        }
        if !(tensor * data).is_multiple_of(expert) {
            return Err(Error::usage(format!(
                "expected experts over a divisor of the {} accelerators of a pipeline stage, found {expert}",
                tensor * data
            )));
        }
        Ok(())
    }

    /// The rank with these coordinates: tensor first, then data, then pipeline.
    pub fn rank(&self, tensor: u32, data: u32, pipeline: u32) -> u32 {
        tensor + self.tensor * (data + self.data * pipeline)
    }

    /// The place of each rank under an order.
    pub fn places(&self, order: Order) -> Vec<u32> {
        let size = |axis: Axis| match axis {
            Axis::Tensor => self.tensor,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        };
        let axes = order.axes;
        let of = |rank: u32| {
            let at = |axis: Axis| match axis {
                Axis::Tensor => rank % self.tensor,
                Axis::Data => rank / self.tensor % self.data,
                Axis::Pipeline => rank / (self.tensor * self.data),
            };
            at(axes[0]) + size(axes[0]) * (at(axes[1]) + size(axes[1]) * at(axes[2]))
        };
        let [attending, ffn, memory] = self.kinds(order.beside);
        (0..self.ranks()).map(|rank| attending[of(rank) as usize]).chain(ffn).chain(memory).collect()
    }

    /// The places of those that attend, of those that compute the FFN apart, and of memories.
    fn kinds(&self, beside: Beside) -> [Vec<u32>; 3] {
        let (all, ranks) = (self.all(), self.ranks());
        let (ffn, memory) = (self.ffn_ranks().collect::<Vec<u32>>(), self.memory_ranks().collect::<Vec<u32>>());
        if beside == Beside::Behind {
            return [(0..ranks).collect(), ffn, memory];
        }
        let (others, attending): (Vec<u32>, Vec<u32>) = (0..all).partition(|&at| is_spread(at, all, all - ranks));
        let split = |at: u32| is_spread(at, all - ranks, self.ffn);
        let (ffn, memory): (Vec<_>, Vec<_>) = (0..).zip(others).partition(|&(at, _)| split(at));
        let places = |pairs: Vec<(u32, u32)>| pairs.into_iter().map(|(_, place)| place).collect();
        [attending, places(ffn), places(memory)]
    }
}

/// Whether this place of `all` is one of `some` that are spread evenly over them.
fn is_spread(at: u32, all: u32, some: u32) -> bool {
    let before = |at: u32| u64::from(at) * u64::from(some) / u64::from(all.max(1));
    before(at + 1) > before(at)
}

/// An order in words; where nothing stands beside those that attend, nothing is said of it.
pub fn order_name(layout: &Layout, order: Order) -> String {
    let axes = order.axes.map(Axis::name).join(", ");
    match order.beside {
        _ if layout.all() == layout.ranks() => axes,
        Beside::Behind => format!("{axes}; others behind"),
        Beside::Among => format!("{axes}; others among"),
    }
}
