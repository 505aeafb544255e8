//! Checksums of pages: the writer of the `parquet` crate leaves them out, and a bit that flips on disk would otherwise be read
//! as another number.
//!
//! A page is a header in Thrift's compact form and its bytes. The header's fields are the kind of page, two sizes and, where
//! it is there, the CRC-32 of the bytes; what follows names itself by its distance to the field before it. So a checksum
//! is put in by parsing three numbers and shortening one distance. The pages of a column stay apart until the column ends,
//! where offsets and sizes follow from what was put in.

use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flate2::Crc;
use parquet::arrow::arrow_writer::{PageKey, PageStore, PageStoreArgs, PageStoreFactory};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};

/// A field that follows the one before it and holds a whole number of 32 bits.
const NEXT_I32: u8 = 0x15;

/// A structure, in the lower half of the byte that begins a field; the upper half is the distance.
const STRUCT: u8 = 0x0c;

/// The number of the kind "dictionary page" as it stands in a header.
const DICTIONARY: u8 = 2 << 1;

/// Appends a page to `out`, its header with the checksum of its bytes. Returns by how many bytes the header has grown.
///
/// # Errors
/// A header of another form, or one that has a checksum.
pub(super) fn seal(header: &[u8], data: &[u8], out: &mut Vec<u8>) -> Result<usize> {
    let unlike = || ParquetError::General("a page header has another form than the checksum is put into".to_owned());
    let mut at = 0;
    for _ in 0..3 {
        if header.get(at) != Some(&NEXT_I32) {
            return Err(unlike());
        }
        let length = header[at + 1..].iter().position(|byte| byte & 0x80 == 0).ok_or_else(unlike)?;
        at += length + 2;
    }
    let next = *header.get(at).filter(|next| **next & 0x0f == STRUCT && **next >= 0x20).ok_or_else(unlike)?;
    let start = out.len();
    out.extend_from_slice(&header[..at]);
    out.push(NEXT_I32);
    let mut crc = Crc::new();
    crc.update(data);
    let sum = crc.sum() as i32;
    varint((sum << 1 ^ sum >> 31) as u32, out);
    out.push(next - 0x10);
    out.extend_from_slice(&header[at + 1..]);
    let grown = out.len() - start - header.len();
    out.extend_from_slice(data);
    Ok(grown)
}

fn varint(mut number: u32, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Headers and bytes of the pages of one column, in the order in which the general writer makes them.
#[derive(Clone, Default)]
pub(super) struct Pages(Arc<Mutex<Vec<Bytes>>>);

impl Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pages").field(&self.blobs().len()).finish()
    }
}

impl Pages {
    fn blobs(&self) -> MutexGuard<'_, Vec<Bytes>> {
        // A list of bytes is whole whatever became of its writer.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of the column with checksums, its dictionary first, and what the file says of them.
    pub(super) fn close(&self, mut close: ColumnCloseResult) -> Result<(Bytes, ColumnCloseResult)> {
        let blobs = std::mem::take(&mut *self.blobs());
        let plain: usize = blobs.iter().map(Bytes::len).sum();
        let (pages, _) = blobs.as_chunks::<2>();
        let is_dictionary = |page: &&[Bytes; 2]| page[0].get(1) == Some(&DICTIONARY);
        // What a checksum adds is less than eight bytes a page.
        let mut bytes = Vec::with_capacity(plain + 8 * pages.len());
        for [header, data] in pages.iter().filter(is_dictionary) {
            seal(header, data, &mut bytes)?;
        }
        let dictionary = bytes.len() as i64;
        let mut places = Vec::with_capacity(pages.len());
        for [header, data] in pages.iter().filter(|page| !is_dictionary(page)) {
            let start = bytes.len();
            seal(header, data, &mut bytes)?;
            places.push((start as i64, (bytes.len() - start) as i32));
        }
        if let Some(index) = &mut close.offset_index {
            if index.page_locations.len() != places.len() {
                return Err(ParquetError::General("the index of a column names other pages than it has".to_owned()));
            }
            for (location, (offset, size)) in index.page_locations.iter_mut().zip(places) {
                (location.offset, location.compressed_page_size) = (offset, size);
            }
        }
        let uncompressed = close.metadata.uncompressed_size() + (bytes.len() - plain) as i64;
        close.bytes_written = bytes.len() as u64;
        close.metadata = close
            .metadata
            .into_builder()
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(uncompressed)
            .set_dictionary_page_offset((dictionary > 0).then_some(0))
            .set_data_page_offset(dictionary)
            .build()?;
        Ok((bytes.into(), close))
    }
}

impl PageStore for Pages {
    fn put(&mut self, value: Bytes) -> Result<PageKey> {
        let mut blobs = self.blobs();
        blobs.push(value);
        Ok(PageKey::new(blobs.len() as u64 - 1))
    }

    fn take(&mut self, key: PageKey) -> Result<Bytes> {
        let found = self.blobs().get_mut(key.get() as usize).map(std::mem::take);
        found.ok_or_else(|| ParquetError::General(format!("no page has the number {}", key.get())))
    }

    fn memory_size(&self) -> usize {
        self.blobs().iter().map(Bytes::len).sum()
    }
}

/// The pages of the columns of a row group that has begun.
#[derive(Debug, Default)]
pub(super) struct Columns(Mutex<Vec<Pages>>);

impl Columns {
    /// Those of the columns that were begun since, in order.
    pub(super) fn begun(&self) -> Vec<Pages> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PageStoreFactory for Columns {
    fn create(&self, _: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>> {
        let pages = Pages::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(pages.clone());
        Ok(Box::new(pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_takes_the_checksum_after_its_sizes() {
        // A data page of 5 and 300 bytes; the field that follows is the fifth, two further than the third.
        let header = [0x15, 0x00, 0x15, 0x0a, 0x15, 0xd8, 0x04, 0x2c, 0x15, 0x02, 0x00, 0x00];
        let mut out = Vec::new();
        // The CRC-32 of "123456789" is cbf43926, which is -873187034 as a number with a sign.
        let grown = seal(&header, b"123456789", &mut out).unwrap();
        assert_eq!(grown, 6);
        assert_eq!(out[..7], header[..7]);
        assert_eq!(out[7..13], [0x15, 0xb3, 0x9b, 0xde, 0xc0, 0x06]);
        assert_eq!(out[13..18], [0x1c, 0x15, 0x02, 0x00, 0x00]);
        assert_eq!(out[18..], *b"123456789");
    }

    #[test]
    fn another_header_is_refused() {
        let mut out = Vec::new();
        // One that has a checksum, one that is cut, and none.
        let sealed = [0x15, 0x00, 0x15, 0x0a, 0x15, 0x0a, 0x15, 0x02, 0x1c, 0x00];
        for header in [&sealed[..], &sealed[..5], &[0x15, 0x80], &[]] {
            assert!(seal(header, b"", &mut out).is_err(), "{header:?}");
        }
        assert!(out.is_empty());
    }
}
