//! What a recording's attention asks of each page (block) of its KV, step by step: as uses for a cache, as shares of blocks
//! that hold most of the mass, and as mass that comes back to what had been cold.
//!
//! Definitions, each for one step of one layer and KV head:
//! * The *demand* for a share of the mass is the fewest blocks that hold it: the heaviest first, of equal ones the earlier.
//! * The *near share* for a share of the mass is that many blocks over all blocks that the step reads (the whole context).
//! * A block is *hot* if it is among the heaviest tenth of the blocks, rounded up.
//! * A block *reawakens* if it is hot, was there for the last [`COLD_STEPS`] recorded steps, and was hot in none of them. The
//!   *reawakened mass* is the mass on such blocks; it is known from the step after the first [`COLD_STEPS`] on.
//!
//! As uses for a cache, each step is one request that uses the demanded blocks of all layers and heads, in this order, and
//! blocks of different requests, layers or heads are different blocks.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;

use crate::error::{Error, Result};
use crate::recording::{Head, Step};
use crate::schema::hierarchy::ATTENTION_READS;
use crate::schema::{Cell, batch_of_rows};
use crate::workload::{Turns, Workload};

/// Shares of the mass for which the near share is told.
pub const SHARES: [f64; 3] = [0.5, 0.9, 0.99];

/// Steps after which a block that was not hot is cold.
pub const COLD_STEPS: usize = 32;

/// Part of the blocks that is hot.
const HOT: f64 = 0.1;

/// Blocks by falling mass, of equal ones the earlier first.
fn by_mass(mass: &[f32], order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..mass.len() as u32);
    order.sort_by(|&a, &b| mass[b as usize].total_cmp(&mass[a as usize]));
}

/// How many of the blocks in this order hold a share of all mass; all of them where rounding leaves too little.
fn needed(mass: &[f32], order: &[u32], share: f64) -> usize {
    let all: f64 = order.iter().map(|&block| f64::from(mass[block as usize])).sum();
    let mut sum = 0.0;
    let enough = order.iter().position(|&block| {
        sum += f64::from(mass[block as usize]);
        sum >= share * all
    });
    enough.map_or(order.len(), |at| at + 1)
}

/// What one head's steps came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeadReads {
    /// Steps.
    pub steps: u64,
    /// Sums over steps of the near share, by [`SHARES`].
    pub near: [f64; 3],
    /// Reawakened mass of each step for which it is known.
    pub reawakened: Vec<f32>,
}

impl HeadReads {
    /// Adds those of another head.
    pub fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.near.iter_mut().zip(other.near).for_each(|(sum, more)| *sum += more);
        self.reawakened.extend_from_slice(&other.reawakened);
    }

    /// Mean near share for each of [`SHARES`]; `None` without steps.
    pub fn near_shares(&self) -> Option<[f64; 3]> {
        (self.steps > 0).then(|| self.near.map(|sum| sum / self.steps as f64))
    }

    /// Mean reawakened mass, and the mass that 99 of 100 steps do not exceed; `None` where it is not known.
    pub fn reawakened(&self) -> Option<(f64, f64)> {
        let mut sorted = self.reawakened.clone();
        sorted.sort_by(f32::total_cmp);
        let rank = (sorted.len() as f64 * 0.99).ceil().max(1.0) as usize;
        let p99 = f64::from(*sorted.get(rank - 1)?);
        let sum: f64 = sorted.iter().map(|mass| f64::from(*mass)).sum();
        Some((sum / sorted.len() as f64, p99))
    }
}

/// Looks at all steps of a head.
pub fn reads(head: &Head<'_>) -> HeadReads {
    let mut found = HeadReads::default();
    let mut order = Vec::new();
    // By block, one more than the last step (by place) in which it was hot; and how many blocks each step had.
    let (mut hot, mut blocks): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
    for (at, Step { mass, .. }) in head.steps().enumerate() {
        by_mass(mass, &mut order);
        found.steps += 1;
        for (sum, share) in found.near.iter_mut().zip(SHARES) {
            *sum += needed(mass, &order, share) as f64 / mass.len().max(1) as f64;
        }
        hot.resize(hot.len().max(mass.len()), 0);
        let hottest = &order[..(HOT * mass.len() as f64).ceil() as usize];
        if at >= COLD_STEPS {
            let there = blocks[at - COLD_STEPS];
            let is_cold = |block: &&u32| (**block as usize) < there && hot[**block as usize] + COLD_STEPS <= at;
            let sum: f64 = hottest.iter().filter(is_cold).map(|&block| f64::from(mass[block as usize])).sum();
            found.reawakened.push(sum as f32);
        }
        hottest.iter().for_each(|&block| hot[block as usize] = at + 1);
        blocks.push(mass.len());
    }
    found
}

/// Demand of heads, as it is gathered.
#[derive(Debug, Clone)]
pub struct Demand {
    share: f64,
    blocks: u32,
    /// By request and step: blocks by number, in the order of layers and heads.
    steps: BTreeMap<(u64, u32), Vec<u32>>,
    block_tokens: u32,
}

impl Demand {
    /// Nothing yet, for this share of the mass.
    ///
    /// # Errors
    /// A share that is not above 0 and at most 1.
    pub fn new(share: f64) -> Result<Self> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(Error::usage(format!("expected a share of the mass above 0 and up to 1, found {share}")));
        }
        Ok(Self { share, blocks: 0, steps: BTreeMap::new(), block_tokens: 0 })
    }

    /// Adds all steps of a head. Heads come in the order of layers and heads.
    ///
    /// # Errors
    /// Blocks of another size than before, or more than 2^32.
    pub fn add(&mut self, head: &Head<'_>) -> Result<()> {
        if self.block_tokens != 0 && self.block_tokens != head.unit_tokens() {
            return Err(Error::data(format!(
                "expected blocks of {} tokens, found {}",
                self.block_tokens,
                head.unit_tokens()
            ))
            .hint("replay one recording at a time"));
        }
        self.block_tokens = head.unit_tokens();
        let (mut order, mut most) = (Vec::new(), 0);
        for step in head.steps() {
            by_mass(step.mass, &mut order);
            order.truncate(needed(step.mass, &order, self.share));
            most = most.max(step.mass.len());
            order.sort_unstable();
            let uses = self.steps.entry((head.request.request_id, step.step)).or_default();
            uses.extend(order.iter().map(|block| self.blocks.saturating_add(*block)));
        }
        let blocks = self.blocks.checked_add(u32::try_from(most).unwrap_or(u32::MAX));
        self.blocks = blocks.ok_or_else(|| Error::run("the recording has more than 2^32 pages"))?;
        Ok(())
    }

    /// As requests for a cache: one for each step, a second apart, whose prompt is what it demands.
    ///
    /// # Errors
    /// No step.
    pub fn workload(self, name: &str) -> Result<Workload> {
        if self.steps.is_empty() {
            return Err(Error::run(format!("`{name}` has no recorded attention")));
        }
        let count = self.steps.len();
        // Blocks that no step asks for are none of a cache; the others keep their order.
        let mut numbers = vec![0_u32; self.blocks as usize];
        self.steps.values().flatten().for_each(|&block| numbers[block as usize] = 1);
        let mut distinct = 0;
        for number in &mut numbers {
            distinct += std::mem::replace(number, distinct);
        }
        let mut workload = Workload {
            name: name.to_owned(),
            request_ids: (0..count as u64).collect(),
            arrival_ns: (0..count as i64).map(|at| at * 1_000_000_000).collect(),
            prompt: Vec::with_capacity(count),
            output: vec![1; count],
            unit_tokens: self.block_tokens,
            offsets: vec![0],
            units: Vec::new(),
            distinct_units: distinct,
            turns: Turns::default(),
        };
        for uses in self.steps.into_values() {
            workload.prompt.push((uses.len() as u32).saturating_mul(self.block_tokens));
            workload.units.extend(uses.iter().map(|&block| numbers[block as usize]));
            let end = u32::try_from(workload.units.len());
            workload.offsets.push(end.map_err(|_| Error::run("the recording asks for more than 2^32 pages"))?);
        }
        Ok(workload)
    }
}

/// Rows of [`ATTENTION_READS`] of one recording: for each request all layers together, then each layer.
///
/// # Errors
/// None that reads can cause.
pub fn table(recording: &str, heads: &BTreeMap<(u64, u16), HeadReads>) -> Result<RecordBatch> {
    let mut requests: BTreeMap<u64, HeadReads> = BTreeMap::new();
    for ((request, _), reads) in heads {
        requests.entry(*request).or_default().add(reads);
    }
    let row = |request: u64, layer: Option<u16>, reads: &HeadReads| -> Vec<Cell> {
        let near = reads.near_shares();
        let again = reads.reawakened();
        let mut row: Vec<Cell> = vec![recording.into(), request.into(), layer.into(), reads.steps.into()];
        row.extend((0..SHARES.len()).map(|at| Cell::from(near.map(|near| near[at]))));
        row.extend([Cell::from(again.map(|again| again.0)), Cell::from(again.map(|again| again.1))]);
        row
    };
    let mut rows = Vec::new();
    for (request, all) in &requests {
        rows.push(row(*request, None, all));
        let layers = heads.range((*request, 0)..=(*request, u16::MAX));
        rows.extend(layers.map(|((_, layer), reads)| row(*request, Some(*layer), reads)));
    }
    batch_of_rows(&ATTENTION_READS, &rows)
}
