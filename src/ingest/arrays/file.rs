//! Arrays within `npz` and `safetensors` files, as streams of numbers.
//!
//! Both are read without trust: sizes must agree with shapes before anything is read, headers are of limited length,
//! nothing is unpacked to disk, and arrays that only Python's pickle could restore are refused. Memory is bounded by what
//! a caller asks for at once.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use engine::error::{Error, Result};
use flate2::Crc;
use flate2::read::DeflateDecoder;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use zip::{CompressionMethod, ZipArchive};

use super::super::problem::quoted;
use super::super::source::{LIMITS, regular};

/// The most bytes of a header: one of `npy` names one array, one of `safetensors` all of a file.
const NPY_HEADER: u32 = 64 << 10;
const SAFETENSORS_HEADER: u64 = 16 << 20;

/// The most names in a message.
const SHOWN: usize = 12;

/// Number formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    F16,
    Bf16,
    F32,
    F64,
    /// Whole numbers: whether they have a sign, and their bytes.
    Whole {
        signed: bool,
        width: usize,
    },
}

impl Format {
    fn width(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Whole { width, .. } => width,
        }
    }
}

/// An array that is read from its beginning to its end, the last axis fastest.
pub(super) struct Array {
    pub(super) shape: Vec<u64>,
    pub(super) format: Format,
    big_endian: bool,
    reader: Box<dyn Read>,
    place: String,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Array").field("place", &self.place).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl Array {
    /// The next so many numbers, in single precision; `into` is emptied first.
    ///
    /// # Errors
    /// An array that ends before, or is damaged.
    pub(super) fn floats(&mut self, count: usize, into: &mut Vec<f32>) -> Result<()> {
        let (format, big) = (self.format, self.big_endian);
        let bytes = self.next(count)?;
        into.clear();
        into.extend(bytes.chunks_exact(format.width()).map(|element| {
            let bits = bits(element, big);
            match format {
                Format::F16 => half(bits as u16),
                Format::Bf16 => f32::from_bits((bits as u32) << 16),
                Format::F32 => f32::from_bits(bits as u32),
                Format::F64 => f64::from_bits(bits) as f32,
                Format::Whole { signed: false, .. } => bits as f32,
                Format::Whole { signed: true, width } => sign(bits, width) as f32,
            }
        }));
        Ok(())
    }

    /// The numbers of an array that holds whole ones from 0; none if one is negative or the array holds others.
    ///
    /// # Errors
    /// As for [`Array::floats`].
    pub(super) fn whole(&mut self, count: usize) -> Result<Option<Vec<u64>>> {
        let Format::Whole { signed, width } = self.format else { return Ok(None) };
        let big = self.big_endian;
        let bytes = self.next(count)?;
        let numbers = bytes.chunks_exact(width).map(|element| {
            let bits = bits(element, big);
            (!signed || sign(bits, width) >= 0).then_some(bits)
        });
        Ok(numbers.collect())
    }

    fn next(&mut self, count: usize) -> Result<&[u8]> {
        let wanted = count.saturating_mul(self.format.width());
        self.bytes.clear();
        let read = (&mut self.reader).take(wanted as u64).read_to_end(&mut self.bytes);
        match read {
            Ok(read) if read == wanted => Ok(&self.bytes),
            Ok(_) => Err(Error::data(format!("cannot read {}: it ends before its shape does", self.place))),
            Err(error) => Err(Error::data(format!("cannot read {}: {error}", self.place))),
        }
    }

    /// Reads what is left, which must be nothing; a damaged archive is found here.
    ///
    /// # Errors
    /// Bytes beyond the shape, or a wrong checksum.
    pub(super) fn end(mut self) -> Result<()> {
        let mut rest = [0; 1];
        match self.reader.read(&mut rest) {
            Ok(0) => Ok(()),
            Ok(_) => Err(Error::data(format!("cannot read {}: it goes on after its shape ends", self.place))),
            Err(error) => Err(Error::data(format!("cannot read {}: {error}", self.place))),
        }
    }
}

fn bits(element: &[u8], big_endian: bool) -> u64 {
    let join = |bits: u64, byte: &u8| (bits << 8) | u64::from(*byte);
    if big_endian { element.iter().fold(0, join) } else { element.iter().rev().fold(0, join) }
}

/// The number that the lowest bytes of `bits` are in two's complement.
fn sign(bits: u64, width: usize) -> i64 {
    let unused = 64 - 8 * width as u32;
    ((bits << unused) as i64) >> unused
}

/// A number in half precision (IEEE 754 binary16: 5 bits of exponent, 10 of fraction).
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    match exponent {
        // Zero, and numbers below 2^-14.
        0 => f32::from_bits(sign | 0x3f80_0000) * (fraction as f32) / 16_777_216.0,
        0x1f => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

/// Opens an array of a file.
///
/// # Errors
/// A file of another kind or that is damaged; an array that is not in it; a number format that is not read.
pub(super) fn open(path: &Path, name: &str) -> Result<Array> {
    regular(path)?;
    let unreadable = |error: io::Error| Error::data(format!("cannot read `{}`: {error}", path.display()));
    let mut file = File::open(path).map_err(unreadable)?;
    let mut magic = Vec::with_capacity(9);
    (&mut file).take(9).read_to_end(&mut magic).map_err(unreadable)?;
    let place = format!("the array {} of `{}`", quoted(name.as_bytes()), path.display());
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    match magic[..] {
        [b'P', b'K', 3 | 5, 4 | 6, ..] => npz(file, path, name, place),
        [_, _, _, _, _, _, _, _, b'{'] => safe(file, path, name, place),
        _ => {
            let hint = if magic.starts_with(b"\x93NUMPY") { "`numpy.savez` names its arrays" } else { KINDS };
            Err(Error::data(format!(
                "expected an npz or safetensors file in `{}`, found something else",
                path.display()
            ))
            .hint(hint))
        }
    }
}

const KINDS: &str = "write it with `numpy.savez` or `safetensors`; pickles are not read, since they run code";

fn missing(path: &Path, name: &str, mut names: Vec<String>) -> Error {
    names.sort_unstable();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let names: Vec<String> = names.iter().map(|name| quoted(name.as_bytes())).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let found = if names.is_empty() { "none".to_owned() } else { format!("{}{more}", names.join(", ")) };
    Error::data(format!("expected the array {} in `{}`, found {found}", quoted(name.as_bytes()), path.display()))
}

/// An entry of an archive: a stream that checks its own checksum at the end.
struct Entry<R> {
    inner: R,
    crc: Crc,
    wanted: u32,
}

impl<R: Read> Read for Entry<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.crc.update(&buffer[..count]);
        if count == 0 && !buffer.is_empty() && self.crc.sum() != self.wanted {
            return Err(io::Error::other("its checksum is wrong"));
        }
        Ok(count)
    }
}

/// An array of an npz file, which is a ZIP archive of npy files.
fn npz(file: File, path: &Path, name: &str, place: String) -> Result<Array> {
    let damaged = |why: String| Error::data(format!("cannot read {place}: {why}"));
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| damaged(error.to_string()))?;
    let Some(at) = archive.index_for_name(&format!("{name}.npy")) else {
        let names = archive.file_names().filter_map(std::result::Result::ok);
        let names = names.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_owned()).collect();
        return Err(missing(path, name, names));
    };
    let (compressed, size, crc, method, start) = {
        let entry = archive.by_index_raw(at).map_err(|error| damaged(error.to_string()))?;
        if entry.encrypted() || !entry.is_file() {
            return Err(damaged("expected a plain file in the archive, found an encrypted one or a link".to_owned()));
        }
        (entry.compressed_size(), entry.size(), entry.crc32(), entry.compression(), entry.header_start())
    };
    if size > LIMITS.inflated && size / LIMITS.ratio > compressed {
        let most = LIMITS.ratio;
        return Err(damaged(format!(
            "expected at most {most} times the compressed size, found {size} of {compressed}"
        )));
    }
    let broken = |error: io::Error| damaged(error.to_string());
    let mut file = archive.into_inner();
    file.seek(SeekFrom::Start(start)).map_err(broken)?;
    // The local header: its name and its extra field may be of other lengths than in the directory.
    let mut local = [0; 30];
    file.read_exact(&mut local).map_err(broken)?;
    if !local.starts_with(b"PK\x03\x04") {
        return Err(damaged("its local header is damaged".to_owned()));
    }
    let skip =
        i64::from(u16::from_le_bytes([local[26], local[27]])) + i64::from(u16::from_le_bytes([local[28], local[29]]));
    file.seek_relative(skip).map_err(broken)?;
    let packed = file.take(compressed);
    // One byte more than is declared would show.
    let plain: Box<dyn Read> = match method {
        CompressionMethod::Stored => Box::new(packed),
        CompressionMethod::Deflated => Box::new(BufReader::new(DeflateDecoder::new(packed)).take(size + 1)),
        other => return Err(damaged(format!("expected an entry that is stored or deflated, found {other}"))),
    };
    let mut reader = Entry { inner: plain, crc: Crc::new(), wanted: crc };
    let header = npy_header(&mut reader).map_err(|why| damaged(why).hint(KINDS))?;
    let Header { shape, format, big_endian, length } = header;
    if data_bytes(&shape, format).and_then(|bytes| bytes.checked_add(length)) != Some(size) {
        return Err(damaged(format!(
            "expected {} of {} bytes each, found {size} bytes",
            shown(&shape),
            format.width()
        )));
    }
    Ok(Array { shape, format, big_endian, reader: Box::new(reader), place, bytes: Vec::new() })
}

fn shown(shape: &[u64]) -> String {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    if sizes.is_empty() { "a single number".to_owned() } else { sizes.join(" x ") }
}

/// Bytes of so many numbers; none beyond u64.
fn data_bytes(shape: &[u64], format: Format) -> Option<u64> {
    shape.iter().try_fold(format.width() as u64, |bytes, size| bytes.checked_mul(*size))
}

/// The header of an npy file (NumPy's format, NEP 1): magic, version, length, and a Python dictionary.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    shape: Vec<u64>,
    format: Format,
    big_endian: bool,
    /// Bytes of the whole header.
    length: u64,
}

fn npy_header(reader: &mut impl Read) -> std::result::Result<Header, String> {
    let mut magic = [0; 8];
    reader.read_exact(&mut magic).map_err(|error| error.to_string())?;
    if !magic.starts_with(b"\x93NUMPY") {
        return Err("expected an npy header, found none".to_owned());
    }
    let width = if magic[6] == 1 { 2 } else { 4 };
    let mut length = [0; 4];
    reader.read_exact(&mut length[..width]).map_err(|error| error.to_string())?;
    let length = u32::from_le_bytes(length);
    if length > NPY_HEADER {
        return Err(format!("expected a header of at most {NPY_HEADER} bytes, found {length}"));
    }
    let mut text = Vec::new();
    reader.take(length.into()).read_to_end(&mut text).map_err(|error| error.to_string())?;
    let text = std::str::from_utf8(&text).map_err(|_| "expected a header as text, found other bytes".to_owned())?;
    let mut scan = Scan(text.trim());
    let (mut shape, mut kind, mut fortran) = (None, None, None);
    scan.expect("{")?;
    while !scan.take("}") {
        let key = scan.quoted()?;
        scan.expect(":")?;
        match key {
            "descr" => kind = Some(scan.quoted()?),
            "fortran_order" => fortran = Some(scan.boolean()?),
            "shape" => shape = Some(scan.shape()?),
            other => return Err(format!("expected `descr`, `fortran_order` and `shape`, found {}", named(other))),
        }
        if !scan.take(",") {
            scan.expect("}")?;
            break;
        }
    }
    let (Some(shape), Some(kind), Some(fortran)) = (shape, kind, fortran) else {
        return Err("expected `descr`, `fortran_order` and `shape` in its header, found fewer".to_owned());
    };
    if fortran && shape.iter().filter(|size| **size > 1).count() > 1 {
        return Err("expected the last axis fastest, found Fortran order (`numpy.ascontiguousarray` changes it)".into());
    }
    let (format, big_endian) = dtype(kind)?;
    Ok(Header { shape, format, big_endian, length: 8 + width as u64 + u64::from(length) })
}

fn named(text: &str) -> String {
    quoted(text.as_bytes())
}

/// A number format by NumPy's name.
fn dtype(name: &str) -> std::result::Result<(Format, bool), String> {
    let wrong = || format!("expected floats or whole numbers, found the dtype {}", named(name));
    let (order, kind) = name.split_at_checked(1).ok_or_else(wrong)?;
    let whole = |signed, width| Format::Whole { signed, width };
    let format = match kind {
        "f2" => Format::F16,
        "f4" => Format::F32,
        "f8" => Format::F64,
        "i1" => whole(true, 1),
        "i2" => whole(true, 2),
        "i4" => whole(true, 4),
        "i8" => whole(true, 8),
        "u1" => whole(false, 1),
        "u2" => whole(false, 2),
        "u4" => whole(false, 4),
        "u8" => whole(false, 8),
        "O" => return Err("expected numbers, found Python objects, which only pickle can restore".to_owned()),
        _ => return Err(wrong()),
    };
    match order {
        "<" | "|" => Ok((format, false)),
        ">" => Ok((format, true)),
        _ => Err(wrong()),
    }
}

/// What is left of a header.
struct Scan<'a>(&'a str);

impl<'a> Scan<'a> {
    fn take(&mut self, text: &str) -> bool {
        let rest = self.0.trim_start();
        let taken = rest.strip_prefix(text);
        self.0 = taken.unwrap_or(rest);
        taken.is_some()
    }

    fn expect(&mut self, text: &str) -> std::result::Result<(), String> {
        if self.take(text) { Ok(()) } else { Err(format!("expected `{text}` in its header, found {}", named(self.0))) }
    }

    fn quoted(&mut self) -> std::result::Result<&'a str, String> {
        self.0 = self.0.trim_start();
        if self.0.starts_with('[') {
            return Err("expected one number format, found a structured one".to_owned());
        }
        let quote = self.0.chars().next().filter(|char| matches!(char, '\'' | '"'));
        let inner = quote.and_then(|quote| self.0.get(1..)?.split_once(quote));
        let (text, rest) = inner.ok_or_else(|| format!("expected text in its header, found {}", named(self.0)))?;
        self.0 = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> std::result::Result<bool, String> {
        if self.take("True") { Ok(true) } else { self.expect("False").map(|()| false) }
    }

    fn shape(&mut self) -> std::result::Result<Vec<u64>, String> {
        let mut shape = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            let rest = self.0.trim_start();
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let size = rest.get(..digits).and_then(|text| text.parse().ok());
            shape.push(size.ok_or_else(|| format!("expected a size in its shape, found {}", named(rest)))?);
            self.0 = rest.get(digits..).unwrap_or_default();
            // Old Python wrote a suffix for long numbers.
            self.take("L");
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(shape)
    }
}

/// An array of a safetensors file: eight bytes of length, a JSON header, and the numbers.
fn safe(mut file: File, path: &Path, name: &str, place: String) -> Result<Array> {
    let damaged = |why: String| Error::data(format!("cannot read `{}`: {why}", path.display()));
    let broken = |error: io::Error| damaged(error.to_string());
    let size = file.metadata().map_err(broken)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(broken)?;
    let length = u64::from_le_bytes(length);
    if length > SAFETENSORS_HEADER {
        return Err(damaged(format!("expected a header of at most {SAFETENSORS_HEADER} bytes, found {length}")));
    }
    let mut header = Vec::new();
    (&mut file).take(length).read_to_end(&mut header).map_err(broken)?;
    // Offsets, shapes and sizes are checked against each other as the header is read.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
    if metadata.data_len() as u64 != size.saturating_sub(8 + length) {
        return Err(damaged(format!("expected {} bytes behind its header, found another number", metadata.data_len())));
    }
    let Some(info) = metadata.info(name) else { return Err(missing(path, name, metadata.offset_keys())) };
    let whole = |signed, width| Format::Whole { signed, width };
    let format = match info.dtype {
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::Bf16,
        Dtype::F32 => Format::F32,
        Dtype::F64 => Format::F64,
        Dtype::I8 => whole(true, 1),
        Dtype::I16 => whole(true, 2),
        Dtype::I32 => whole(true, 4),
        Dtype::I64 => whole(true, 8),
        Dtype::U8 => whole(false, 1),
        Dtype::U16 => whole(false, 2),
        Dtype::U32 => whole(false, 4),
        Dtype::U64 => whole(false, 8),
        other => {
            return Err(Error::data(format!(
                "cannot read {place}: expected floats or whole numbers, found the dtype `{other}`"
            )));
        }
    };
    let (from, to) = info.data_offsets;
    file.seek(SeekFrom::Start(8 + length + from as u64)).map_err(broken)?;
    let reader = Box::new(BufReader::new(file.take((to - from) as u64)));
    let shape = info.shape.iter().map(|size| *size as u64).collect();
    Ok(Array { shape, format, big_endian: false, reader, place, bytes: Vec::new() })
}

#[cfg(test)]
pub(super) mod tests;
