//! The file of frames: eight bytes, then a packed array for each message.

use std::io::Read;

use engine::error::{Error, Result};
use rmp::Marker;

use super::super::problem::{Bad, Problem};
use super::super::sink::{Event, Severity, Sink};
use super::super::source::Lines;
use super::super::value;
use super::{END_MARKER, Envelope, Reader};
use crate::store::hex;

/// What a file of frames begins with.
pub(super) const MAGIC: &[u8] = b"KVEVENT1";

/// The most bytes of a topic.
const TOPIC: usize = 64 << 10;

/// The most bytes of a payload.
const PAYLOAD: usize = 64 << 20;

/// Bytes of a bad frame that are shown and kept, in hex.
const SHOWN: usize = 64;

const REST: Event = Event {
    severity: Severity::DataLoss,
    code: "rest_of_file",
    advice: Some("where the next frame begins cannot be told; record again, or cut the file before the damage"),
};

/// Reads the file to its end, or to the first frame that is none.
pub(super) fn read(reader: &mut Reader<'_>, lines: &mut Lines, sink: &mut Sink<'_>) -> Result<()> {
    let path = reader.path;
    let mut frames = Frames { path, lines, at: 0, number: 0, payload: Vec::new(), topic: Vec::new() };
    frames.bytes(MAGIC.len()).map_err(|stop| stop.error(path))?;
    loop {
        frames.number += 1;
        let begin = frames.at;
        let place = (Some(frames.number), Some(begin));
        let frame = match frames.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(Stop::Bad(bad)) => {
                sink.found(1);
                sink.log(REST, "the file is not read on behind a frame that is damaged or cut", place.0, place.1);
                return sink.reject(problem(path, frames.number, begin, &[], bad));
            }
            Err(Stop::Failed(error)) => return Err(error),
        };
        if frame.end && frames.payload.is_empty() {
            sink.log(END_MARKER, "the end marker of a replay is no row", place.0, place.1);
            continue;
        }
        let payload = std::mem::take(&mut frames.payload);
        let topic = std::mem::take(&mut frames.topic);
        let tell = |bad: Bad| problem(path, frames.number, begin, &payload, bad);
        if let Ok(topic) = std::str::from_utf8(&topic) {
            let envelope = Envelope { seq: frame.seq, received_ns: frame.received_ns, topic: Some(topic) };
            match value::packed(&payload) {
                Ok(node) => reader.message(envelope, Ok(&node), place, &tell, sink)?,
                Err(bad) => reader.message(envelope, Err(bad), place, &tell, sink)?,
            }
        } else {
            let bad = Bad { at: 0, code: "utf8", expected: "a topic in UTF-8".into(), found: "other bytes".into() };
            reader.message(Envelope::default(), Err(bad), place, &tell, sink)?;
        }
        (frames.payload, frames.topic) = (payload, topic);
    }
}

/// A problem of a frame, at a byte of its payload.
fn problem(path: &str, number: u64, begin: u64, payload: &[u8], bad: Bad) -> Problem {
    let Bad { at, code, expected, found } = bad;
    let raw = hex(payload.get(..SHOWN.min(payload.len())).unwrap_or_default());
    let shown =
        format!("{path}: frame {number} at byte {begin}, byte {at} of its payload: expected {expected}, found {found}");
    Problem { line: number, column: at as u64 + 1, byte_offset: begin, code, expected, found, raw, shown }
}

/// Why a frame cannot be read.
enum Stop {
    Bad(Bad),
    Failed(Error),
}

impl Stop {
    /// As the error of the whole file.
    fn error(self, path: &str) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Bad(bad) => {
                Error::data(format!("expected a file of frames in `{path}`, found {}: it ends early", bad.found))
            }
        }
    }
}

/// What stands before a payload.
struct Frame {
    seq: Option<u64>,
    received_ns: Option<i64>,
    /// Whether the number is that of an end marker.
    end: bool,
}

struct Frames<'l> {
    path: &'l str,
    lines: &'l mut Lines,
    /// Bytes read.
    at: u64,
    /// Number of the frame, from 1.
    number: u64,
    payload: Vec<u8>,
    topic: Vec<u8>,
}

fn bad(code: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Stop {
    Stop::Bad(Bad { at: 0, code, expected: expected.into(), found: found.into() })
}

impl Frames<'_> {
    /// Up to `count` bytes; fewer at the end of the file.
    fn some(&mut self, count: usize) -> std::result::Result<Vec<u8>, Stop> {
        let mut bytes = Vec::new();
        let read = self.lines.by_ref().take(count as u64).read_to_end(&mut bytes);
        read.map_err(|error| Stop::Failed(Error::data(format!("cannot read `{}`: {error}", self.path))))?;
        self.at += bytes.len() as u64;
        Ok(bytes)
    }

    /// So many bytes.
    fn bytes(&mut self, count: usize) -> std::result::Result<Vec<u8>, Stop> {
        let bytes = self.some(count)?;
        if bytes.len() < count {
            return Err(bad(
                "truncated",
                format!("{count} bytes"),
                format!("the end of the file after {}", bytes.len()),
            ));
        }
        Ok(bytes)
    }

    fn unsigned(&mut self, count: usize) -> std::result::Result<u64, Stop> {
        Ok(self.bytes(count)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn marker(&mut self) -> std::result::Result<Marker, Stop> {
        Ok(Marker::from_u8(self.unsigned(1)? as u8))
    }

    /// The next frame, its topic and payload in the buffers; none at the end.
    fn next(&mut self) -> std::result::Result<Option<Frame>, Stop> {
        let first = self.some(1)?;
        let Some(first) = first.first() else { return Ok(None) };
        let length = match Marker::from_u8(*first) {
            Marker::FixArray(length) => u64::from(length),
            Marker::Array16 => self.unsigned(2)?,
            Marker::Array32 => self.unsigned(4)?,
            _ => return Err(bad("frame", "a frame: an array of four", format!("the byte {first:#04x}"))),
        };
        if length != 4 {
            return Err(bad("frame", "a frame: an array of four", format!("an array of {length}")));
        }
        let (seq, end) = match self.whole("a sequence number")? {
            Some(Whole::Unsigned(u64::MAX) | Whole::Negative(-1)) => (None, true),
            Some(Whole::Unsigned(seq)) => (Some(seq), false),
            Some(Whole::Negative(_)) => return Err(bad("frame", "a sequence number", "a negative number")),
            None => (None, false),
        };
        let received_ns = match self.whole("a time of receipt in ns, or nil")? {
            None => None,
            Some(Whole::Unsigned(value)) => {
                let value = i64::try_from(value);
                Some(value.map_err(|_| bad("frame", "a time of receipt below 2^63 ns", "a larger one"))?)
            }
            Some(Whole::Negative(_)) => return Err(bad("frame", "a time of receipt", "a negative number")),
        };
        self.topic = self.text_or_bytes("a topic", TOPIC)?;
        self.payload = self.text_or_bytes("a payload", PAYLOAD)?;
        Ok(Some(Frame { seq, received_ns, end }))
    }

    /// A whole number, or nil.
    fn whole(&mut self, what: &str) -> std::result::Result<Option<Whole>, Stop> {
        let signed = |value: i64| Some(u64::try_from(value).map_or(Whole::Negative(value), Whole::Unsigned));
        Ok(match self.marker()? {
            Marker::Null => None,
            Marker::FixPos(value) => Some(Whole::Unsigned(u64::from(value))),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => Some(Whole::Unsigned(self.unsigned(1)?)),
            Marker::U16 => Some(Whole::Unsigned(self.unsigned(2)?)),
            Marker::U32 => Some(Whole::Unsigned(self.unsigned(4)?)),
            Marker::U64 => Some(Whole::Unsigned(self.unsigned(8)?)),
            Marker::I8 => signed(i64::from(self.unsigned(1)? as u8 as i8)),
            Marker::I16 => signed(i64::from(self.unsigned(2)? as u16 as i16)),
            Marker::I32 => signed(i64::from(self.unsigned(4)? as u32 as i32)),
            Marker::I64 => signed(self.unsigned(8)? as i64),
            other => return Err(bad("frame", what, format!("{other:?}"))),
        })
    }

    /// Text or bytes, of at most so many; nil is none.
    fn text_or_bytes(&mut self, what: &str, most: usize) -> std::result::Result<Vec<u8>, Stop> {
        let length = match self.marker()? {
            Marker::Null => 0,
            Marker::FixStr(length) => u64::from(length),
            Marker::Str8 | Marker::Bin8 => self.unsigned(1)?,
            Marker::Str16 | Marker::Bin16 => self.unsigned(2)?,
            Marker::Str32 | Marker::Bin32 => self.unsigned(4)?,
            other => return Err(bad("frame", what, format!("{other:?}"))),
        };
        match usize::try_from(length) {
            Ok(length) if length <= most => self.bytes(length),
            _ => Err(bad("frame", format!("{what} of at most {most} bytes"), format!("one of {length}"))),
        }
    }
}

/// A whole number of a frame.
enum Whole {
    Unsigned(u64),
    Negative(i64),
}
