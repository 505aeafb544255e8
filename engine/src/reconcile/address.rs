//! Addresses become KV blocks.
//!
//! An address map says where a KV cache lies: regions of memory, each with a base address and the dimensions that it is
//! laid out in, the outermost first.
//!
//! ```toml
//! [[region]]
//! name = "keys"
//! base = "0x7f5c00000000"
//! block_tokens = 16
//! layout = [
//!   { dimension = "layer", count = 32, stride_bytes = 134217728 },
//!   { dimension = "token", count = 65536, stride_bytes = 2048 },
//!   { dimension = "head", count = 8, stride_bytes = 256 },
//! ]
//! ```
//!
//! Dimensions are `layer`, `block`, `token`, `head` and `part` (keys and values side by side), each at most once. Where
//! there is a `block`, its index is the block's number and a token's index counts within it; else a block is
//! `block_tokens` tokens in a row. Regions that differ only in their name hold parts of the same blocks.

use arrow::array::RecordBatch;
use serde::Deserialize;
use toml::Spanned;

use super::accesses::{Access, SECTOR_BYTES, each_access};
use crate::error::{Error, Result, unknown};
use crate::model::{from_toml, located};

/// The most references to blocks that are held: a replay needs them in order.
pub const MOST_USES: usize = 1 << 23;

/// The dimensions that a layout may have.
const DIMENSIONS: [&str; 5] = ["layer", "block", "token", "head", "part"];

/// One dimension of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dimension {
    /// Index in [`DIMENSIONS`].
    which: usize,
    count: u64,
    stride: u64,
}

/// A region of memory that holds KV.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Region {
    name: String,
    base: u64,
    end: u64,
    block_tokens: u64,
    layout: Vec<Dimension>,
}

/// Where KV lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressMap {
    regions: Vec<Region>,
}

/// A KV block of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The layer; 0 where the map has no layers.
    pub layer: u64,
    /// Number of the block within the layer.
    pub block: u64,
}

/// A reference to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockUse {
    /// The source.
    pub source: u32,
    /// The launch.
    pub launch: u32,
    /// The access.
    pub access: u64,
    /// Whether it is written.
    pub is_write: bool,
    /// The block.
    pub block: Block,
}

/// The blocks that accesses touch, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockStream {
    /// References; of those to one block in a row within a launch and direction only the first is kept.
    pub uses: Vec<BlockUse>,
    /// Sectors that lie in the map.
    pub mapped: u64,
    /// Sectors that do not.
    pub unmapped: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    region: Vec<Spanned<RegionFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegionFile {
    name: String,
    base: Spanned<toml::Value>,
    block_tokens: Option<u64>,
    layout: Vec<DimensionFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DimensionFile {
    dimension: Spanned<String>,
    count: Spanned<u64>,
    stride_bytes: Spanned<u64>,
}

/// Reads the text of an address map; `origin` names it in messages.
///
/// # Errors
/// A missing or unknown key, an address that is none, dimensions that overlap each other or leave 64 bits, regions that
/// overlap: each with its place.
pub fn parse(text: &str, origin: &str) -> Result<AddressMap> {
    let file: File = from_toml(text, origin)?;
    let mut regions: Vec<Region> = Vec::with_capacity(file.region.len());
    for given in &file.region {
        let at = |message: String| located(text, origin, given.span(), &Error::data(message));
        let region = region(text, origin, given)?;
        if let Some(other) = regions.iter().find(|other| other.base < region.end && region.base < other.end) {
            return Err(at(format!("the regions `{}` and `{}` overlap", other.name, region.name)));
        }
        regions.push(region);
    }
    if regions.is_empty() {
        return Err(Error::data(format!("{origin}: expected at least one `[[region]]`, found none")));
    }
    Ok(AddressMap { regions })
}

fn region(text: &str, origin: &str, given: &Spanned<RegionFile>) -> Result<Region> {
    let file = given.get_ref();
    let at_region = |message: String| located(text, origin, given.span(), &Error::data(message));
    let base = address(file.base.get_ref()).ok_or_else(|| {
        let error = Error::data(format!(
            "`base`: expected an address such as \"0x7f5c00000000\", found a {}",
            file.base.get_ref().type_str()
        ));
        located(text, origin, file.base.span(), &error)
    })?;
    let mut layout: Vec<Dimension> = Vec::with_capacity(file.layout.len());
    let mut room = u64::MAX;
    for (index, given) in file.layout.iter().enumerate() {
        let name = given.dimension.get_ref();
        let at = |span, error: &Error| located(text, origin, span, error);
        let which = DIMENSIONS.iter().position(|known| known == name);
        let which = which.ok_or_else(|| at(given.dimension.span(), &unknown("dimension", name, DIMENSIONS)))?;
        if layout.iter().any(|other| other.which == which) {
            return Err(at(given.dimension.span(), &Error::data(format!("the dimension `{name}` is there twice"))));
        }
        let (count, stride) = (*given.count.get_ref(), *given.stride_bytes.get_ref());
        let extent = count.checked_mul(stride).filter(|extent| *extent > 0 && *extent <= room);
        if extent.is_none() {
            let outer =
                if index == 0 { "64 bits".to_owned() } else { format!("the {room} bytes of the dimension around it") };
            let error =
                Error::data(format!("`{name}`: expected {count} times {stride} bytes above 0 and within {outer}"));
            return Err(at(given.stride_bytes.span(), &error).hint("list the outermost dimension first"));
        }
        room = stride;
        layout.push(Dimension { which, count, stride });
    }
    let has = |name: &str| layout.iter().any(|dimension| DIMENSIONS[dimension.which] == name);
    let block_tokens = match (has("block"), has("token"), file.block_tokens) {
        (true, _, _) => 1,
        (false, true, Some(tokens)) if tokens > 0 => tokens,
        (false, true, _) => {
            return Err(at_region("expected `block_tokens` above 0, or a dimension `block`".to_owned()));
        }
        (false, false, _) => {
            return Err(at_region("expected a dimension `token` or `block`, found neither".to_owned()));
        }
    };
    let extent = layout.first().map_or(0, |outer| outer.count * outer.stride);
    let end = base.checked_add(extent).ok_or_else(|| at_region("the region ends beyond 64 bits".to_owned()))?;
    Ok(Region { name: file.name.clone(), base, end, block_tokens, layout })
}

/// An address as a number, or as text in hex.
fn address(value: &toml::Value) -> Option<u64> {
    match value {
        toml::Value::Integer(number) => u64::try_from(*number).ok(),
        toml::Value::String(text) => match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(&hex.replace('_', ""), 16).ok(),
            None => text.parse().ok(),
        },
        _ => None,
    }
}

impl AddressMap {
    /// The block that this address belongs to; `None` outside of the map and in the gaps of a layout.
    pub fn block(&self, address: u64) -> Option<Block> {
        let region = self.regions.iter().find(|region| (region.base..region.end).contains(&address))?;
        let mut rest = address - region.base;
        let mut places = [None; DIMENSIONS.len()];
        for dimension in &region.layout {
            let place = rest / dimension.stride;
            if place >= dimension.count {
                return None;
            }
            rest -= place * dimension.stride;
            places[dimension.which] = Some(place);
        }
        let [layer, block, token, ..] = places;
        let block = block.or_else(|| token.map(|token| token / region.block_tokens))?;
        Some(Block { layer: layer.unwrap_or(0), block })
    }
}

/// The blocks that rows of the canonical `accesses` table touch, in the order of the table.
///
/// # Errors
/// As [`each_access`].
pub fn block_stream(map: &AddressMap, batches: &[RecordBatch]) -> Result<BlockStream> {
    let mut stream = BlockStream::default();
    batches.iter().try_for_each(|batch| stream.take(map, batch))?;
    Ok(stream)
}

/// A sector may hold the end of one block and the begin of another.
fn touch(map: &AddressMap, access: &Access<'_>, sector: u64, stream: &mut BlockStream) {
    let first = sector.checked_mul(SECTOR_BYTES);
    let (first, last) = (first.and_then(|at| map.block(at)), first.and_then(|at| map.block(at | (SECTOR_BYTES - 1))));
    if first.or(last).is_none() {
        stream.unmapped += 1;
        return;
    }
    stream.mapped += 1;
    for block in [first, last.filter(|last| Some(*last) != first)].into_iter().flatten() {
        let Access { source, launch, is_write, id, .. } = *access;
        let same = |known: &BlockUse| {
            known.block == block && (known.source, known.launch, known.is_write) == (source, launch, is_write)
        };
        if !stream.uses.last().is_some_and(same) {
            stream.uses.push(BlockUse { source, launch, access: id, is_write, block });
        }
    }
}

impl BlockStream {
    /// Adds the blocks that more rows touch.
    ///
    /// # Errors
    /// As [`each_access`], and more references than are held.
    pub fn take(&mut self, map: &AddressMap, batch: &RecordBatch) -> Result<()> {
        each_access(std::slice::from_ref(batch), |access| {
            if !access.is_shared {
                access.sectors.iter().for_each(|&sector| touch(map, access, sector, self));
            }
            if self.uses.len() > MOST_USES {
                return Err(Error::data(format!("expected at most {MOST_USES} references to KV blocks, found more"))
                    .hint("look at one capture with `--source`, or at fewer layers with a smaller address map"));
            }
            Ok(())
        })
    }

    /// The references as dense numbers, which distances and replays take.
    pub fn dense(&self) -> Vec<u32> {
        let mut blocks: Vec<Block> = self.uses.iter().map(|used| used.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        self.uses.iter().map(|used| blocks.partition_point(|block| *block < used.block) as u32).collect()
    }
}
