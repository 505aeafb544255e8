//! One event of a profile, read where it stands: nothing is allocated but for text with escapes and keys nobody knows.

use std::borrow::Cow;

use super::super::json::{Scan, bad_at};
use super::super::problem::Bad;
use super::super::time::{TimeUnit, decimal_ns, scaled_ns};
use super::super::walk::{self, Unknown};

/// The most unknown keys of an event that are counted.
const MOST: usize = 256;

/// A process or a thread, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Id<'a> {
    /// Nothing was written.
    #[default]
    None,
    Number(u64),
    /// Negative thread numbers are 32-bit ids whose top bit was taken for a sign; the process -1 is none.
    Negative(i64),
    /// A word such as `Spans`.
    Text(Cow<'a, str>),
}

/// The arguments that a column holds, by the places below.
pub(super) const COLUMNS: [&str; 8] =
    ["device", "stream", "correlation", "bytes", "registers per thread", "shared memory", "grid", "block"];
pub(super) const DEVICE: usize = 0;
pub(super) const STREAM: usize = 1;
pub(super) const CORRELATION: usize = 2;
const BYTES: usize = 3;
const REGISTERS: usize = 4;
const SHARED: usize = 5;
const GRID: usize = 6;
const BLOCK: usize = 7;

/// What is kept of an event.
#[derive(Debug, Default)]
pub(super) struct Event<'a> {
    /// X, i, M, s, f and others; 0 for none of one byte.
    pub(super) phase: u8,
    pub(super) category: Cow<'a, str>,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) process: Id<'a>,
    pub(super) thread: Id<'a>,
    /// Nanoseconds of `ts` and `dur`, and whether they are exact.
    pub(super) start: Option<(i64, bool)>,
    pub(super) duration: Option<(i64, bool)>,
    pub(super) device: Option<u32>,
    pub(super) stream: Option<u64>,
    pub(super) correlation: Option<u64>,
    pub(super) bytes: Option<u64>,
    pub(super) registers: Option<u32>,
    pub(super) shared: Option<u64>,
    pub(super) grid: [Option<u32>; 3],
    pub(super) block: [Option<u32>; 3],
    /// A bit for each of [`COLUMNS`] whose value the column cannot hold.
    odd: u8,
    pub(super) unknown: Unknown<'a>,
    /// Whether it has more unknown keys than are counted.
    pub(super) more_unknown: bool,
}

impl Event<'_> {
    /// Whether it becomes a row.
    pub(super) fn is_row(&self) -> bool {
        matches!(self.phase, b'X' | b'i' | b'I')
    }

    /// Whether something stands in one of [`COLUMNS`] that it cannot hold.
    pub(super) fn is_odd(&self, column: usize) -> bool {
        self.odd & (1 << column) != 0
    }

    /// Whether that is so of any.
    pub(super) fn has_odd(&self) -> bool {
        self.odd != 0
    }
}

/// Reads the event with which `bytes` begin, and gives its length.
pub(super) fn parse(bytes: &[u8], unit: TimeUnit) -> Result<(Event<'_>, usize), Bad> {
    let mut scan = Scan::new(bytes);
    let mut event = Event::default();
    walk::object(&mut scan, "an event as a JSON object", &mut |scan, key, at| event.take(scan, bytes, key, at, unit))?;
    let length = scan.at();
    let missing = |what: &str| bad_at(bytes, length.saturating_sub(1), "missing_key", what);
    if event.is_row() && event.name.is_none() {
        return Err(missing("the key `name` in an event"));
    }
    if event.is_row() && event.start.is_none() {
        return Err(missing("the key `ts` in an event"));
    }
    Ok((event, length))
}

impl<'a> Event<'a> {
    fn take(
        &mut self,
        scan: &mut Scan<'a>,
        bytes: &'a [u8],
        key: &'a [u8],
        at: usize,
        unit: TimeUnit,
    ) -> Result<(), Bad> {
        match key {
            b"ph" => {
                if let Some(phase) = scan.single() {
                    self.phase = phase;
                    return Ok(());
                }
                let text = walk::text(scan, bytes, "`ph`")?;
                self.phase = if let [phase] = text.as_bytes() { *phase } else { 0 };
            }
            b"cat" => self.category = walk::maybe_text(scan, bytes, "`cat`")?.unwrap_or_default(),
            b"name" => self.name = walk::maybe_text(scan, bytes, "`name`")?,
            b"pid" => self.process = id(scan, bytes, "`pid`")?,
            b"tid" => self.thread = id(scan, bytes, "`tid`")?,
            b"ts" => self.start = instant(scan, "`ts`", unit)?,
            b"dur" => {
                let at = scan.at();
                self.duration = instant(scan, "`dur`", unit)?;
                if self.duration.is_some_and(|(duration, _)| duration < 0) {
                    return Err(scan.bad_from(at, "negative", "`dur` of at least zero"));
                }
            }
            b"args" if scan.peek() == Some(b'{') => {
                walk::object(scan, "`args`", &mut |scan, key, at| self.argument(scan, key, at))?;
            }
            // Flow events join by `id`, which is the correlation again; `s` is the scope of an instant.
            b"args" | b"id" | b"bp" | b"s" | b"cname" | b"tts" | b"tdur" => scan.skip()?,
            _ => self.unknown(scan, key, at)?,
        }
        Ok(())
    }

    fn argument(&mut self, scan: &mut Scan<'a>, key: &'a [u8], at: usize) -> Result<(), Bad> {
        match key {
            b"device" => self.device = self.narrow(scan, DEVICE)?,
            b"stream" => self.stream = self.whole(scan, STREAM)?,
            // Zero stands for none.
            b"correlation" => self.correlation = self.whole(scan, CORRELATION)?.filter(|number| *number > 0),
            b"bytes" => self.bytes = self.whole(scan, BYTES)?,
            b"registers per thread" => self.registers = self.narrow(scan, REGISTERS)?,
            b"shared memory" => self.shared = self.whole(scan, SHARED)?,
            b"grid" => self.grid = self.three(scan, GRID)?,
            b"block" => self.block = self.three(scan, BLOCK)?,
            _ if is_known(key) => scan.skip()?,
            _ => self.unknown(scan, key, at)?,
        }
        Ok(())
    }

    /// Notes a key that nobody knows, unless the event has very many of them.
    fn unknown(&mut self, scan: &mut Scan<'a>, key: &'a [u8], at: usize) -> Result<(), Bad> {
        if self.unknown.len() < MOST {
            self.unknown.push((key, at));
        } else {
            self.more_unknown = true;
        }
        scan.skip()
    }

    /// A number of at least zero; anything else is noted and skipped, since operators use these keys in other ways.
    fn whole(&mut self, scan: &mut Scan<'a>, column: usize) -> Result<Option<u64>, Bad> {
        if matches!(scan.peek(), Some(b'0'..=b'9')) {
            let token = scan.number("a number")?;
            let value = std::str::from_utf8(token).ok().and_then(|digits| digits.parse().ok());
            self.odd |= u8::from(value.is_none()) << column;
            return Ok(value);
        }
        self.odd |= 1 << column;
        scan.skip()?;
        Ok(None)
    }

    /// As [`Event::whole`], for a column of 32 bits.
    fn narrow(&mut self, scan: &mut Scan<'a>, column: usize) -> Result<Option<u32>, Bad> {
        let Some(value) = self.whole(scan, column)? else { return Ok(None) };
        let narrow = u32::try_from(value).ok();
        self.odd |= u8::from(narrow.is_none()) << column;
        Ok(narrow)
    }

    fn three(&mut self, scan: &mut Scan<'a>, column: usize) -> Result<[Option<u32>; 3], Bad> {
        let mut found = [None; 3];
        if scan.peek() != Some(b'[') {
            self.odd |= 1 << column;
            scan.skip()?;
            return Ok(found);
        }
        let mut at = 0_usize;
        walk::list(scan, "three numbers", &mut |scan| {
            let value = self.narrow(scan, column)?;
            if let Some(place) = found.get_mut(at) {
                *place = value;
            }
            at += 1;
            Ok(())
        })?;
        self.odd |= u8::from(at != found.len()) << column;
        Ok(found)
    }
}

/// Arguments that Kineto and `PyTorch` write and that no column has; many are for operators and for metadata.
fn is_known(key: &[u8]) -> bool {
    matches!(
        key,
        b"External id"
            | b"Ev Idx"
            | b"Record function id"
            | b"Sequence number"
            | b"Fwd thread id"
            | b"Trace name"
            | b"Trace iteration"
            | b"Op count"
            | b"cbid"
            | b"queued"
            | b"context"
            | b"graph id"
            | b"graph node id"
            | b"priority"
            | b"blocks per SM"
            | b"warps per SM"
            | b"est. achieved occupancy %"
            | b"memory bandwidth (GB/s)"
            | b"Collective name"
            | b"dtype"
            | b"In msg nelems"
            | b"Out msg nelems"
            | b"In split size"
            | b"Out split size"
            | b"Group size"
            | b"Process Group Name"
            | b"Process Group Description"
            | b"Process Group ID"
            | b"Process Group Ranks"
            | b"Global rank start"
            | b"Global rank stride"
            | b"Rank"
            | b"Src Rank"
            | b"Dst Rank"
            | b"Seq"
            | b"Input Dims"
            | b"Input type"
            | b"Input Strides"
            | b"Concrete Inputs"
            | b"Call stack"
            | b"Module Hierarchy"
            | b"Python id"
            | b"Python parent id"
            | b"Python thread"
            | b"Python module id"
            | b"kernel_backend"
            | b"kernel_file"
            | b"kernel_hash"
            | b"kernel_kwargs"
            | b"num_warps"
            | b"num_stages"
            | b"cuda_sync_kind"
            | b"wait_on_stream"
            | b"wait_on_cuda_event_id"
            | b"wait_on_cuda_event_record_corr_id"
            | b"Device Id"
            | b"Device Type"
            | b"Addr"
            | b"Bytes"
            | b"Total Allocated"
            | b"Total Reserved"
            | b"name"
            | b"labels"
            | b"sort_index"
    )
}

fn id<'a>(scan: &mut Scan<'a>, bytes: &'a [u8], what: &str) -> Result<Id<'a>, Bad> {
    match scan.peek() {
        Some(b'-') => {
            let at = scan.at();
            let token = scan.number(what)?;
            let value = std::str::from_utf8(token).ok().and_then(|digits| digits.parse().ok());
            value
                .map(Id::Negative)
                .ok_or_else(|| scan.bad_from(at, "out_of_range", format!("{what} as a whole number")))
        }
        Some(b'0'..=b'9') => scan.whole(what).map(Id::Number),
        _ => {
            let Some(text) = walk::maybe_text(scan, bytes, what)? else { return Ok(Id::None) };
            // Tools that rewrite profiles put numbers into quotes.
            let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
            Ok(number.map_or(Id::Text(text), Id::Number))
        }
    }
}

/// Nanoseconds, exact where the file has no more than three decimals; none for `null`.
fn instant(scan: &mut Scan<'_>, what: &str, unit: TimeUnit) -> Result<Option<(i64, bool)>, Bad> {
    scan.peek();
    let at = scan.at();
    // Nearly all numbers are short, and are read once.
    if let Some((digits, decimals)) = scan.short_decimal() {
        if let Some(ns) = scaled_ns(digits, decimals, unit) {
            return Ok(Some((ns, true)));
        }
        scan.back(at);
    }
    if walk::null(scan)? {
        return Ok(None);
    }
    let token = scan.number(what)?;
    let (negative, digits) = match token.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, token),
    };
    let (ns, exact) = decimal_ns(digits, unit).ok_or_else(|| {
        scan.bad_from(at, "out_of_range", format!("{what} in {} below 2^63 nanoseconds", unit.name()))
    })?;
    Ok(Some((if negative { -ns } else { ns }, exact)))
}
