//! Opening a file: compression by magic bytes, the hash of what is on disk, limits against bombs, and lines.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::error::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use liblzma::bufread::XzDecoder;
use liblzma::stream::{CONCATENATED, Stream};
use sha2::{Digest, Sha256};
use tempfile::TempPath;

use super::hashed::Hashed;
use super::{Head, Options, recording};
use crate::store::hex;

/// How much of a file the sniffers see.
const HEAD: usize = 64 << 10;

/// Memory that an xz stream may ask for; its own presets stay below 70 MB.
const XZ_BYTES: u64 = 256 << 20;

/// What an input may not exceed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a line.
    pub(super) line: usize,
    /// Decompressed bytes per compressed byte, above `inflated`.
    pub(super) ratio: u64,
    /// Decompressed bytes that are always allowed.
    pub(super) inflated: u64,
}

/// The longest line known is 4 MB (a Claude Code trace), and exports of one line reach 100 MB; real traces shrink by 3 to
/// 20 times.
pub(super) const LIMITS: Limits = Limits { line: 128 << 20, ratio: 1000, inflated: 64 << 20 };

/// An open source, its first bytes read.
pub(super) struct Source<'a> {
    path: &'a str,
    kind: Kind,
    head: Vec<u8>,
    tally: Rc<RefCell<Tally>>,
}

enum Kind {
    Stream {
        reader: Box<dyn Read>,
        compression: &'static str,
        limits: Limits,
    },
    /// A file that is read at any place, such as a database.
    File {
        file: LocalFile,
        compression: &'static str,
    },
    Directory(PathBuf),
}

/// What an adapter reads.
#[derive(Debug)]
pub struct Input<'a> {
    /// The path as given.
    pub path: &'a str,
    /// The flags.
    pub options: &'a Options,
    /// The content.
    pub body: Body,
}

/// The content of a source.
#[derive(Debug)]
pub enum Body {
    /// A decompressed stream of lines; one of bytes through its [`Read`].
    Lines(Lines),
    /// A container that must be read at any place: a database, a Parquet file, an archive.
    File(LocalFile),
    /// A directory.
    Directory(PathBuf),
}

/// A decompressed file on this machine; a temporary one goes with it.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    _temporary: Option<TempPath>,
}

impl LocalFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Counts the bytes of a file as they are on disk.
#[derive(Debug, Default)]
pub(super) struct Tally {
    bytes: u64,
    inflated: u64,
    reader: Option<Hashed>,
}

impl Tally {
    /// Bytes taken from disk so far.
    pub(super) fn bytes_in(&self) -> u64 {
        self.bytes
    }
}

/// The bytes on disk, on their way through the tally.
struct Raw(Rc<RefCell<Tally>>);

impl Read for Raw {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut tally = self.0.borrow_mut();
        let tally = &mut *tally;
        let Some(reader) = &mut tally.reader else { return Ok(0) };
        let count = reader.read(buffer)?;
        tally.bytes += count as u64;
        Ok(count)
    }
}

/// A decompressed stream that stops a bomb.
struct Limited<R> {
    inner: R,
    tally: Rc<RefCell<Tally>>,
    limits: Limits,
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let mut tally = self.tally.borrow_mut();
        tally.inflated += count as u64;
        if tally.inflated > self.limits.inflated && tally.inflated / self.limits.ratio > tally.bytes {
            return Err(io::Error::other(format!(
                "expected at most {} times the compressed size, found {} bytes out of {}",
                self.limits.ratio, tally.inflated, tally.bytes
            )));
        }
        Ok(count)
    }
}

/// Opens a path, `-` or a recording's directory, and reads the head.
pub(super) fn open<'a>(path: &'a str, limits: &Limits) -> Result<Source<'a>> {
    let tally = Rc::new(RefCell::new(Tally::default()));
    if let Some(directory) = recording::directory_of(path) {
        let head = recording::head(&directory)?;
        return Ok(Source { path, kind: Kind::Directory(directory), head, tally });
    }
    let reader: Box<dyn Read + Send> = if path == "-" {
        if io::stdin().is_terminal() {
            return Err(Error::usage("expected data on standard input, found a terminal").hint("pipe a file into it"));
        }
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(|error| unreadable(path, &error))?)
    };
    from_reader(path, reader, limits, tally)
}

/// As [`open`], from any reader.
fn from_reader<'a>(
    path: &'a str,
    reader: Box<dyn Read + Send>,
    limits: &Limits,
    tally: Rc<RefCell<Tally>>,
) -> Result<Source<'a>> {
    tally.borrow_mut().reader = Some(Hashed::new(reader));
    let (mut reader, compression) = inflate(Raw(tally.clone()), *limits, &tally).map_err(|e| unreadable(path, &e))?;
    let mut head = Vec::with_capacity(HEAD);
    reader.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(|error| unreadable(path, &error))?;
    if head.is_empty() {
        return Err(Error::data(format!("expected a trace in `{path}`, found an empty file")));
    }
    let kind = if !is_container(&head) {
        Kind::Stream { reader, compression, limits: *limits }
    } else if compression == "none" && Path::new(path).is_file() {
        Kind::File { file: LocalFile { path: PathBuf::from(path), _temporary: None }, compression }
    } else {
        let file = spooled(&head, &mut *reader).map_err(|error| unreadable(path, &error))?;
        Kind::File { file, compression }
    };
    Ok(Source { path, kind, head, tally })
}

/// A container from a stream, in a temporary file.
fn spooled(head: &[u8], rest: &mut dyn Read) -> io::Result<LocalFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    io::copy(&mut Cursor::new(head).chain(rest), &mut file)?;
    let temporary = file.into_temp_path();
    Ok(LocalFile { path: temporary.to_path_buf(), _temporary: Some(temporary) })
}

/// Undoes gzip, zstd or xz by the first bytes; each may consist of several members.
fn inflate(raw: Raw, limits: Limits, tally: &Rc<RefCell<Tally>>) -> io::Result<(Box<dyn Read>, &'static str)> {
    let mut raw = raw;
    let mut magic = Vec::with_capacity(6);
    raw.by_ref().take(6).read_to_end(&mut magic)?;
    let compression = compression_of(&magic);
    let whole = Cursor::new(magic).chain(raw);
    let tally = tally.clone();
    let buffered = |whole| BufReader::with_capacity(128 << 10, whole);
    Ok(match compression {
        "gzip" => (Box::new(Limited { inner: MultiGzDecoder::new(buffered(whole)), tally, limits }), compression),
        "zstd" => {
            let inner = zstd::stream::read::Decoder::with_buffer(buffered(whole))?;
            (Box::new(Limited { inner, tally, limits }), compression)
        }
        "xz" => {
            let inner = XzDecoder::new_stream(buffered(whole), Stream::new_stream_decoder(XZ_BYTES, CONCATENATED)?);
            (Box::new(Limited { inner, tally, limits }), compression)
        }
        _ => (Box::new(whole), compression),
    })
}

fn compression_of(magic: &[u8]) -> &'static str {
    match magic {
        [0x1f, 0x8b, ..] => "gzip",
        // A frame, or a skippable frame before it.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', 0] => "xz",
        _ => "none",
    }
}

/// The first bytes of an SQLite database.
pub(super) const SQLITE: &[u8] = b"SQLite format 3\0";
/// The first bytes of a Parquet file.
pub(super) const PARQUET: &[u8] = b"PAR1";
/// The first bytes of a ZIP archive.
pub(super) const ZIP: &[u8] = b"PK\x03\x04";

/// Whether a file must be read at any place.
fn is_container(head: &[u8]) -> bool {
    [SQLITE, PARQUET, ZIP].iter().any(|magic| head.starts_with(magic))
}

/// What kind of binary file this is, if it is one.
fn binary(head: &[u8]) -> Option<&'static str> {
    const MAGIC: [(&[u8], &str); 12] = [
        (PARQUET, "a Parquet file (a recording is read from its directory)"),
        (b"\x7fELF", "an ELF executable"),
        (b"\x89PNG", "a PNG image"),
        (SQLITE, "an SQLite database"),
        (ZIP, "a ZIP archive"),
        (b"ARROW1", "an Arrow file"),
        (b"%PDF", "a PDF document"),
        (b"\xfd7zXZ", "an XZ archive within compression"),
        (b"\x1f\x8b", "gzip within compression"),
        (b"\x28\xb5\x2f\xfd", "zstd within compression"),
        (b"\xff\xfe", "UTF-16 text"),
        (b"\xfe\xff", "UTF-16 text"),
    ];
    let known = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    known.or_else(|| head.contains(&0).then_some("a binary file (it holds NUL bytes)"))
}

impl<'a> Source<'a> {
    /// What the sniffers see.
    pub(super) fn head(&self) -> Head<'_> {
        let directory = matches!(self.kind, Kind::Directory(_));
        let binary = if directory { None } else { binary(&self.head) };
        let file = match &self.kind {
            Kind::File { file, .. } => Some(file.path()),
            Kind::Stream { .. } | Kind::Directory(_) => None,
        };
        Head { path: self.path, bytes: &self.head, directory, binary, file }
    }

    /// none, gzip, zstd or xz.
    pub(super) fn compression(&self) -> &'static str {
        match self.kind {
            Kind::Stream { compression, .. } | Kind::File { compression, .. } => compression,
            Kind::Directory(_) => "none",
        }
    }

    /// Size on disk, where it is known.
    pub(super) fn total_bytes(&self) -> Option<u64> {
        size_of(self.path)
    }

    pub(super) fn tally(&self) -> Rc<RefCell<Tally>> {
        self.tally.clone()
    }

    /// What the adapter reads, and what to call after it.
    pub(super) fn into_input(self, options: &'a Options) -> Result<(Input<'a>, Finish<'a>)> {
        let Self { path, kind, head, tally } = self;
        let (body, hash) = match kind {
            Kind::Stream { reader, limits, .. } => (Body::Lines(Lines::new(head, reader, path, limits.line)), None),
            Kind::File { file, .. } => (Body::File(file), None),
            Kind::Directory(directory) => {
                let hash = recording::fingerprint(&directory)?;
                (Body::Directory(directory), Some(hash))
            }
        };
        Ok((Input { path, options, body }, Finish { path, tally, hash }))
    }
}

/// The end of a source: its hash and size.
pub(super) struct Finish<'a> {
    path: &'a str,
    tally: Rc<RefCell<Tally>>,
    hash: Option<(String, u64)>,
}

impl Finish<'_> {
    /// SHA-256 in hex, and bytes on disk. Reads what the adapter left.
    pub(super) fn finish(self) -> Result<(String, u64)> {
        if let Some(hash) = self.hash {
            return Ok(hash);
        }
        let Tally { bytes, reader, .. } = self.tally.take();
        let Some(reader) = reader else { return Ok((String::new(), bytes)) };
        let (hash, left) = reader.finish().map_err(|error| unreadable(self.path, &error))?;
        Ok((hash, bytes + left))
    }
}

/// Size of a file on disk.
pub(super) fn size_of(path: &str) -> Option<u64> {
    let metadata = fs::metadata(path).ok()?;
    metadata.is_file().then_some(metadata.len())
}

/// Refuses what is no regular file, such as a pipe, which may never end; a link to a file is one.
pub(super) fn regular(path: &Path) -> Result<()> {
    let kind = fs::metadata(path).map_err(|error| unreadable(&path.to_string_lossy(), &error))?.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let found = if kind.is_dir() { "a directory" } else { "a pipe, a socket or a device" };
    Err(Error::data(format!("expected a regular file as `{}`, found {found}", path.display())))
}

/// SHA-256 of a regular file, in hex; none if it cannot be read.
pub(super) fn hash_of(path: impl AsRef<Path>) -> Option<String> {
    struct Into(Sha256);
    impl io::Write for Into {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    regular(path.as_ref()).ok()?;
    let mut digest = Into(Sha256::new());
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).ok()?);
    io::copy(&mut file, &mut digest).ok()?;
    Some(hex(&digest.0.finalize()))
}

fn unreadable(path: &str, error: &io::Error) -> Error {
    Error::data(format!("cannot read `{path}`: {error}"))
}

/// A stream of lines with numbers and offsets.
pub struct Lines {
    reader: Box<dyn Read>,
    /// Bytes that were read and not yet taken: those from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// What stopped [`Lines::peek`], for the next read to tell.
    failed: Option<io::Error>,
    path: String,
    limit: usize,
    number: u64,
    next_offset: u64,
}

/// Bytes that the buffer of lines begins with.
const BUFFER: usize = 256 << 10;

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("path", &self.path).field("number", &self.number).finish_non_exhaustive()
    }
}

/// One line, without its end (LF or CRLF) and without a byte order mark.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its number, from 1.
    pub number: u64,
    /// Offset of its first byte in the decompressed file.
    pub offset: u64,
}

impl Line<'_> {
    /// Whether nothing but blanks stands in it.
    pub fn is_blank(&self) -> bool {
        self.bytes.iter().all(u8::is_ascii_whitespace)
    }
}

/// Where a block of lines is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the first line, from 1.
    pub(super) number: u64,
    /// Offset of the first line in the decompressed file.
    pub(super) offset: u64,
    /// How many lines there are.
    pub(super) lines: u64,
}

/// The bytes after the lines that were taken: for a file that is one large value.
impl Read for Lines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end {
            // A large target needs no copy through the buffer.
            if buffer.len() >= BUFFER && self.failed.is_none() {
                let count = self.reader.read(buffer)?;
                self.next_offset += count as u64;
                return Ok(count);
            }
            self.fill()?;
        }
        let count = buffer.len().min(self.end - self.start);
        buffer[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.advance(count);
        Ok(count)
    }
}

impl Lines {
    /// Bytes that come next, none of them taken: the sniffed head, if nothing was taken yet. Empty at the end, and where
    /// the stream is damaged, which the next read tells.
    pub(super) fn peek(&mut self) -> &[u8] {
        if self.start == self.end {
            self.failed = self.fill().err();
        }
        &self.buffer[self.start..self.end]
    }

    fn new(head: Vec<u8>, rest: Box<dyn Read>, path: &str, limit: usize) -> Self {
        let (mut buffer, path) = (head, path.to_owned());
        let end = buffer.len();
        buffer.resize(BUFFER.max(end), 0);
        Self { reader: rest, buffer, start: 0, end, failed: None, path, limit, number: 0, next_offset: 0 }
    }

    fn advance(&mut self, count: usize) {
        self.start += count;
        self.next_offset += count as u64;
    }

    /// Reads more behind what is there, and gives how much; the buffer grows when it is full of one line.
    fn fill(&mut self) -> io::Result<usize> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.end == self.buffer.len() || self.start == self.end {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.buffer.len() {
            // At least one byte more than the longest line, so that a longer one shows.
            let most = (self.limit + 2).max(BUFFER);
            self.buffer.resize((self.buffer.len() * 2).min(most).max(self.end + 1), 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of the next line with its end; 0 at the end of the file, none for a line beyond the limit.
    fn line_length(&mut self) -> Result<Option<usize>> {
        let mut searched = 0;
        loop {
            let ready = &self.buffer[self.start + searched..self.end];
            if let Some(at) = memchr::memchr(b'\n', ready) {
                let length = searched + at;
                return Ok((length <= self.limit).then_some(length + 1));
            }
            searched = self.end - self.start;
            if searched > self.limit {
                return Ok(None);
            }
            if self.fill().map_err(|error| damaged(&self.path, &error))? == 0 {
                return Ok(Some(searched));
            }
        }
    }

    /// The next line; none at the end. A last line needs no end.
    ///
    /// # Errors
    /// A stream that is damaged, or a line beyond the limit.
    pub fn next_line(&mut self) -> Result<Option<Line<'_>>> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let Some(length) = self.line_length()? else { return Err(self.too_long(self.number + 1)) };
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        let (from, offset) = (self.start, self.next_offset);
        self.advance(length);
        let line = &self.buffer[from..from + length];
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let marked = if self.number == 1 { line.strip_prefix(MARK) } else { None };
        Ok(Some(match marked {
            Some(line) => Line { bytes: line, number: self.number, offset: offset + MARK.len() as u64 },
            None => Line { bytes: line, number: self.number, offset },
        }))
    }
}

impl Lines {
    /// Whole lines with their ends, about `target` bytes of them, into `into`, which is emptied first; the last line of a
    /// file needs no end. Gives where they are; none at the end.
    ///
    /// # Errors
    /// As [`Lines::next_line`].
    pub(super) fn block(&mut self, target: usize, into: &mut Vec<u8>) -> Result<Option<Place>> {
        into.clear();
        let offset = self.next_offset;
        let mut read = self.by_ref().take(target as u64).read_to_end(into);
        if read.is_ok() && into.len() == target && into.last() != Some(&b'\n') {
            let Some(rest) = self.line_length()? else {
                return Err(self.too_long(self.number + 1 + count(into, b'\n') as u64));
            };
            read = self.by_ref().take(rest as u64).read_to_end(into);
        }
        read.map_err(|error| damaged(&self.path, &error))?;
        if into.is_empty() {
            return Ok(None);
        }
        let lines = count(into, b'\n') as u64 + u64::from(into.last() != Some(&b'\n'));
        let place = Place { number: self.number + 1, offset, lines };
        if into.len() > self.limit
            && let Some(at) = into.split(|byte| *byte == b'\n').position(|line| line.len() > self.limit)
        {
            return Err(self.too_long(place.number + at as u64));
        }
        self.number += lines;
        Ok(Some(place))
    }

    fn too_long(&self, number: u64) -> Error {
        Error::data(format!(
            "expected lines of at most {} bytes in `{}`, found a longer one: line {number}",
            self.limit, self.path
        ))
    }
}

fn damaged(path: &str, error: &io::Error) -> Error {
    unreadable(path, error).hint("a compressed file that was cut or damaged cannot be read to its end")
}

/// How often a byte occurs. The sums of up to 255 bytes fit a byte, so that the compiler can count many at once.
pub(super) fn count(bytes: &[u8], byte: u8) -> usize {
    let in_piece = |piece: &[u8]| usize::from(piece.iter().map(|one| u8::from(*one == byte)).sum::<u8>());
    bytes.chunks(255).map(in_piece).sum()
}

#[cfg(test)]
mod tests;
