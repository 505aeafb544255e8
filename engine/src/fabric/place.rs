//! Ranks on places.
//!
//! A rank has a coordinate in tensor, data and pipeline parallelism. Ranks are put on places in the order of one axis after
//! another, the innermost next to each other: six orders of three axes. How much the order matters is the *placement
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

/// The six orders, innermost axis first.
pub const ORDERS: [[Axis; 3]; 6] = [
    [Axis::Tensor, Axis::Data, Axis::Pipeline],
    [Axis::Tensor, Axis::Pipeline, Axis::Data],
    [Axis::Data, Axis::Tensor, Axis::Pipeline],
    [Axis::Data, Axis::Pipeline, Axis::Tensor],
    [Axis::Pipeline, Axis::Tensor, Axis::Data],
    [Axis::Pipeline, Axis::Data, Axis::Tensor],
];

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
    /// Accelerators in all.
    pub fn ranks(&self) -> u32 {
        self.tensor.saturating_mul(self.data).saturating_mul(self.pipeline)
    }

    /// Refuses a layout that does not fill a fabric, or experts that are not spread over whole copies.
    ///
    /// # Errors
    /// See above.
    pub fn check(&self, accelerators: u32) -> Result<()> {
        let Self { tensor, data, pipeline, expert } = *self;
        if [tensor, data, pipeline, expert].contains(&0) || self.ranks() != accelerators {
            return Err(Error::usage(format!(
                "expected tensor x data x pipeline parallelism over {accelerators} accelerators, found {tensor} x {data} x \
                 {pipeline}"
            )));
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

    /// The place of each rank under an order of axes.
    pub fn places(&self, order: [Axis; 3]) -> Vec<u32> {
        let size = |axis: Axis| match axis {
            Axis::Tensor => self.tensor,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        };
        let of = |rank: u32| {
            let at = |axis: Axis| match axis {
                Axis::Tensor => rank % self.tensor,
                Axis::Data => rank / self.tensor % self.data,
                Axis::Pipeline => rank / (self.tensor * self.data),
            };
            at(order[0]) + size(order[0]) * (at(order[1]) + size(order[1]) * at(order[2]))
        };
        (0..self.ranks()).map(of).collect()
    }
}

/// An order in words.
pub fn order_name(order: [Axis; 3]) -> String {
    order.map(Axis::name).join(", ")
}
