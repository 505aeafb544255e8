//! A column of lists of block ids: levels that follow from the lengths of the lists, and differences of neighbours, packed.
//!
//! The general writer puts two levels of 16 bits beside each id and gathers the ids by index before it packs them, which
//! took more than parsing the ids from text. Here a list is two runs of levels, and ids are copied once. The file is
//! ordinary Parquet: data pages of the first version, levels as runs or bits, ids as `DELTA_BINARY_PACKED`.

use std::io;

use arrow::array::{Array, AsArray, ListArray};
use arrow::datatypes::{DataType, Field, UInt64Type};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, EncodingMask, PageType};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, PageEncodingStats};
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::checksums::seal;

/// The most rows of a page, as the general writer has them.
const PAGE_ROWS: u32 = 20_000;

/// A page ends with the row that brings it so many ids.
const PAGE_IDS: usize = 1 << 17;

/// About as much as the header of a page takes.
const HEADER: usize = 64;

/// Differences that share a least one, and those that share a number of bits.
const BLOCK: usize = 128;
const MINI: usize = 32;

/// The part of such a column within a row group, in memory.
pub(super) struct Ids {
    column: ColumnDescPtr,
    codec: Compression,
    zstd: zstd::bulk::Compressor<'static>,
    page: OpenPage,
    written: Vec<u8>,
    places: Vec<PageLocation>,
    rows: u64,
    levels: u64,
    uncompressed: u64,
}

/// Rows that are not written yet.
#[derive(Debug, Default)]
struct OpenPage {
    rows: u32,
    repetition: Runs,
    definition: Runs,
    ids: Vec<u64>,
}

/// Levels as runs.
#[derive(Debug, Default)]
struct Runs(Vec<(u8, u32)>);

/// Whether the lists of a field are written here.
pub(super) fn fits(field: &Field) -> bool {
    matches!(field.data_type(), DataType::List(item) if *item.data_type() == DataType::UInt64 && !item.is_nullable())
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ids").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl Ids {
    /// An empty column, compressed by zstd at this level.
    pub(super) fn new(column: ColumnDescPtr, codec: Compression, level: i32) -> io::Result<Self> {
        Ok(Self {
            column,
            codec,
            zstd: zstd::bulk::Compressor::new(level)?,
            page: OpenPage::default(),
            written: Vec::new(),
            places: Vec::new(),
            rows: 0,
            levels: 0,
            uncompressed: 0,
        })
    }

    /// About how many bytes the column takes so far.
    pub(super) fn bytes(&self) -> usize {
        self.written.len() + self.page.ids.len()
    }

    /// Adds the rows of an array.
    pub(super) fn append(&mut self, lists: &ListArray) -> Result<()> {
        let ids = lists.values().as_primitive::<UInt64Type>().values();
        // Of a list that may be null, the levels are null, empty and an id; of another, empty and an id.
        let present = self.column.max_def_level() as u8;
        // Ids of the open page that still lie in the array: a whole page of them is packed from there.
        let mut here = 0..0;
        for (row, range) in lists.offsets().windows(2).enumerate() {
            let is_null = lists.is_null(row);
            let range = if is_null { 0..0 } else { range[0] as usize..range[1] as usize };
            let page = &mut self.page;
            page.repetition.push(0, 1);
            if range.is_empty() {
                page.definition.push(if is_null { 0 } else { present - 1 }, 1);
            } else {
                page.repetition.push(1, range.len() as u32 - 1);
                page.definition.push(present, range.len() as u32);
                if range.start != here.end {
                    page.ids.extend_from_slice(&ids[here]);
                    here = range.start..range.start;
                }
                here.end = range.end;
            }
            page.rows += 1;
            if page.rows == PAGE_ROWS || page.ids.len() + here.len() >= PAGE_IDS {
                self.end_page(&ids[here.clone()])?;
                here.start = here.end;
            }
        }
        self.page.ids.extend_from_slice(&ids[here]);
        Ok(())
    }

    /// Writes the open page, whose last ids are these.
    fn end_page(&mut self, last: &[u64]) -> Result<()> {
        let page = &mut self.page;
        if page.rows == 0 {
            return Ok(());
        }
        let ids = if page.ids.is_empty() {
            last
        } else {
            page.ids.extend_from_slice(last);
            &page.ids
        };
        let levels = page.repetition.count();
        let mut plain = Vec::with_capacity(ids.len() * 3);
        page.repetition.encode(1, &mut plain);
        page.definition.encode(if self.column.max_def_level() > 1 { 2 } else { 1 }, &mut plain);
        pack(ids, &mut plain);
        let packed = self.zstd.compress(&plain).map_err(|error| ParquetError::External(Box::new(error)))?;
        let length = packed.len();
        let data = Page::DataPage {
            buf: packed.into(),
            num_values: levels,
            encoding: Encoding::DELTA_BINARY_PACKED,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let mut written = TrackedWrite::new(Vec::with_capacity(length + HEADER));
        let spec = SerializedPageWriter::new(&mut written).write_page(CompressedPage::new(data, plain.len()))?;
        let written = written.into_inner()?;
        let (header, data) = written.split_at(written.len() - length);
        let offset = self.written.len() as i64;
        let grown = seal(header, data, &mut self.written)?;
        self.places.push(PageLocation {
            offset,
            compressed_page_size: (spec.compressed_size + grown) as i32,
            first_row_index: self.rows as i64,
        });
        self.uncompressed += (spec.uncompressed_size + grown) as u64;
        self.rows += u64::from(page.rows);
        self.levels += u64::from(levels);
        page.rows = 0;
        page.repetition.0.clear();
        page.definition.0.clear();
        page.ids.clear();
        Ok(())
    }

    /// The bytes of the column, and what the file says of them.
    pub(super) fn close(mut self) -> Result<(Bytes, ColumnCloseResult)> {
        self.end_page(&[])?;
        let count = self.places.len() as i32;
        let bytes: Bytes = self.written.into();
        let pages =
            PageEncodingStats { page_type: PageType::DATA_PAGE, encoding: Encoding::DELTA_BINARY_PACKED, count };
        let encodings = [Encoding::RLE, Encoding::DELTA_BINARY_PACKED];
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(self.codec)
            .set_encodings_mask(EncodingMask::new_from_encodings(encodings.iter()))
            .set_page_encoding_stats(vec![pages])
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(self.levels as i64)
            .set_data_page_offset(0)
            .build()?;
        let result = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: Some(OffsetIndexMetaData {
                page_locations: self.places,
                unencoded_byte_array_data_bytes: None,
            }),
        };
        Ok((bytes, result))
    }
}

impl Runs {
    fn push(&mut self, level: u8, count: u32) {
        match self.0.last_mut() {
            _ if count == 0 => {}
            Some((last, so_far)) if *last == level => *so_far += count,
            _ => self.0.push((level, count)),
        }
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Length and levels: as runs, or all of them as bits where that is shorter.
    fn encode(&self, bits: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        let groups = u64::from(self.count().div_ceil(8));
        if self.0.len() as u64 * 2 <= groups * u64::from(bits) {
            for (level, count) in &self.0 {
                varint(u64::from(*count) << 1, out);
                out.push(*level);
            }
        } else {
            varint(groups << 1 | 1, out);
            let (mut word, mut used) = (0_u64, 0);
            for (level, mut count) in self.0.iter().copied() {
                // Each bit pattern of a run is its level over and over.
                let pattern = u64::from(level) * if bits == 1 { u64::MAX } else { 0x5555_5555_5555_5555 };
                while count > 0 {
                    let taken = count.min((64 - used) / bits);
                    let width = taken * bits;
                    word |= (pattern & u64::MAX >> (64 - width)) << used;
                    (used, count) = (used + width, count - taken);
                    if used == 64 {
                        out.extend_from_slice(&word.to_le_bytes());
                        (word, used) = (0, 0);
                    }
                }
            }
            let whole = out.len() + (used as usize).div_ceil(8);
            out.extend_from_slice(&word.to_le_bytes());
            out.truncate(whole);
            // Eight levels are the least that stand as bits.
            let header = varint_length(groups << 1 | 1);
            out.resize(start + 4 + header + (groups * u64::from(bits)) as usize, 0);
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }
}

/// Ids as differences of neighbours, in blocks that share the least difference; each quarter of a block has as many bits as
/// its largest one needs.
fn pack(ids: &[u64], out: &mut Vec<u8>) {
    varint(BLOCK as u64, out);
    varint((BLOCK / MINI) as u64, out);
    varint(ids.len() as u64, out);
    varint(zigzag(ids.first().copied().unwrap_or(0)), out);
    let mut from = 1;
    while from < ids.len() {
        let count = BLOCK.min(ids.len() - from);
        let mut deltas = [0_i64; BLOCK];
        let pairs = ids[from - 1..].iter().zip(&ids[from..]);
        deltas.iter_mut().zip(pairs).for_each(|(delta, (before, id))| *delta = id.wrapping_sub(*before) as i64);
        let least =
            deltas[..count].iter().copied().fold(i64::MAX, |least, delta| if delta < least { delta } else { least });
        // What is missing of the last block stands for differences of the least.
        deltas[count..].fill(least);
        let above = deltas.map(|delta| (delta as u64).wrapping_sub(least as u64));
        varint(zigzag(least as u64), out);
        let (minis, _) = above.as_chunks::<MINI>();
        let widths = minis.iter().map(|mini| 64 - mini.iter().fold(0, |all, one| all | one).leading_zeros());
        out.extend(widths.clone().map(|width| width as u8));
        for (mini, width) in minis.iter().zip(widths).take(count.div_ceil(MINI)) {
            pack_mini(mini, width, out);
        }
        from += count;
    }
}

/// The lowest `width` bits of each number, one behind the other.
fn pack_mini(numbers: &[u64; MINI], width: u32, out: &mut Vec<u8>) {
    let (mut words, mut at) = ([0_u64; MINI], 0);
    let (mut word, mut used) = (0, 0);
    if width == 0 {
        return;
    }
    for number in numbers {
        word |= number << used;
        used += width;
        if used >= 64 {
            words[at] = word;
            (at, used) = (at + 1, used - 64);
            word = if used == 0 { 0 } else { number >> (width - used) };
        }
    }
    if at < MINI {
        words[at] = word;
    }
    // Thirty-two numbers take a whole count of four bytes.
    let end = out.len() + 4 * width as usize;
    words[..(width as usize).div_ceil(2)].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.truncate(end);
}

/// Small numbers of either sign as small numbers.
fn zigzag(number: u64) -> u64 {
    let number = number as i64;
    (number << 1 ^ number >> 63) as u64
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn varint_length(number: u64) -> usize {
    (64 - (number | 1).leading_zeros()).div_ceil(7) as usize
}

#[cfg(test)]
mod tests;
