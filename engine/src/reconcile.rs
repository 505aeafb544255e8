//! Captures of real runs, and the model beside them.
//!
//! A capture is what happened; the cost engine says what should have. This module reads the captured tables (`kernels`,
//! `annotations`, `accesses`, `block_events`, `steps`), sums what was measured, and puts the modelled figure beside it:
//!
//! | part | question |
//! |---|---|
//! | [`rules`] | to which booth a kernel belongs, by an explicit list of rules |
//! | [`kernels`] | how much time and how many bytes each booth took |
//! | [`ranges`] | which steps, phases and layers the kernels belong to |
//! | [`toll`] | what the cost engine says for the same model, machine, batch and context |
//! | [`accesses`] | what warps asked for, what moved, and after how many other sectors one is touched again |
//! | [`address`] | which KV block an address belongs to |
//! | [`sequence`] | which numbered messages of an engine never came |
//! | [`residency`] | what an engine kept and evicted, and what LRU would have under the same capacity |
//! | [`fit`] | host overhead and factors per booth that captured steps ask for |
//!
//! All functions are pure, work on canonical batches and give the same result for the same rows. Times are summed as
//! integers, so that the parts of a total add up to it exactly.

pub mod accesses;
pub mod address;
mod columns;
pub mod fit;
pub mod kernels;
pub mod ranges;
pub mod residency;
pub mod rules;
pub mod sequence;
pub mod tables;
pub mod toll;

#[cfg(test)]
mod tests;
