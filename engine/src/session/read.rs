//! From rows of `requests` and `context_segments` to turns and pieces.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, PrimitiveArray, RecordBatch, StringArray};
use arrow::datatypes::{ArrowPrimitiveType, Int64Type, UInt32Type, UInt64Type};

use super::{Basis, Content, Fate, Form, Kind, Piece, Role, Session, Trace, Turn};
use crate::error::{Error, Result};
use crate::workload::{Workload, resolution, told_pause};

/// A row of `context_segments`.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: Kind,
    tokens: u32,
    name: Option<u32>,
}

/// What `requests` says of a request beside what the workload holds.
#[derive(Debug, Clone, Copy, Default)]
struct Row {
    session: Option<u32>,
    parent: Option<u64>,
    arrival_ns: Option<i64>,
    delay_ns: Option<i64>,
    e2e_ns: Option<i64>,
    hit_tokens: Option<u32>,
}

/// The segments of all requests: request `id` owns `rows[places[id]]`.
#[derive(Debug, Default)]
struct Segments {
    rows: Vec<Segment>,
    places: HashMap<u64, (usize, usize)>,
    names: u32,
}

/// Reads the sessions of a workload from rows of the canonical `requests` and `context_segments` tables.
///
/// A request without a session is a session of its own. Segments of requests that are not in the workload do not matter.
///
/// # Errors
/// A missing column, or one of another type.
pub fn read(workload: &Workload, requests: &[RecordBatch], segments: &[RecordBatch]) -> Result<Trace> {
    let (mut rows, mut sessions) = requests_of(requests)?;
    // A workload may have other arrivals than the trace: where turns wait for each other, those of their sessions.
    let origin = workload.request_ids.iter().filter_map(|id| rows.get(id)?.arrival_ns).min().unwrap_or(0);
    let clock = resolution(workload.request_ids.iter().filter_map(|id| rows.get(id)?.arrival_ns));
    for id in &workload.request_ids {
        if let Some(arrival) = rows.get_mut(id).and_then(|row| row.arrival_ns.as_mut()) {
            *arrival = arrival.saturating_sub(origin);
        }
    }
    let segments = segments_of(segments)?;
    let mut trace = Trace {
        turns: Vec::with_capacity(workload.len()),
        offsets: vec![0],
        pieces: Vec::new(),
        contents: Vec::new(),
        sessions: Vec::new(),
        names: segments.names,
    };
    let numbers: Vec<u32> = workload
        .request_ids
        .iter()
        .map(|id| {
            let session = rows.get(id).and_then(|row| row.session);
            session.unwrap_or_else(|| {
                sessions.push(Session { name: None, parent: None, turns: 0 });
                sessions.len() as u32 - 1
            })
        })
        .collect();
    for &number in &numbers {
        sessions[number as usize].turns += 1;
    }
    let index: HashMap<u64, u32> = workload.request_ids.iter().copied().zip(0..).collect();
    let mut chains = Chains {
        nodes: HashMap::new(),
        free: sessions.len() as u32,
        sessions: vec![Last::default(); sessions.len()],
        clock,
    };
    for (at, &session) in numbers.iter().enumerate() {
        let id = workload.request_ids[at];
        let row = rows.get(&id).copied().unwrap_or_default();
        let own: &[Segment] = segments.places.get(&id).map_or(&[], |&(from, to)| &segments.rows[from..to]);
        let of = &mut sessions[session as usize];
        if of.parent.is_none() && chains.sessions[session as usize].at.is_none() {
            of.parent = row.parent.and_then(|parent| index.get(&parent).copied());
        }
        append(&mut trace, &mut chains, workload, (at, session, of.turns > 1), &row, own);
    }
    trace.sessions = sessions;
    Ok(trace)
}

/// What earlier turns left behind: a tree of the beginnings of each session's prompts.
#[derive(Debug)]
struct Chains {
    /// (node, key) to (node, last turn that went through it); the first nodes are the sessions' roots.
    nodes: HashMap<(u32, u64), (u32, u32)>,
    free: u32,
    sessions: Vec<Last>,
    /// The resolution of arrivals.
    clock: i64,
}

/// The last turn of a session so far.
#[derive(Debug, Clone, Default)]
struct Last {
    /// Its place in the trace.
    at: Option<u32>,
    /// Turns so far.
    turns: u32,
    /// Key and tokens of what its prompt is made of.
    keys: Vec<(u64, u32)>,
    /// When it came, and how long its answer took, as far as known.
    arrival_ns: i64,
    took_ns: Option<i64>,
}

impl Chains {
    /// How far the keys were met before, in tokens, and in which turn last; then notes them.
    fn walk(&mut self, session: u32, turn: u32, keys: &[(u64, u32)]) -> (u32, Option<u32>) {
        let (mut node, mut sum, mut source, mut is_known) = (session, 0_u32, None, true);
        for &(key, tokens) in keys {
            let free = self.free;
            let entry = self.nodes.entry((node, key)).or_insert((free, turn));
            is_known &= entry.0 != free;
            if is_known {
                sum = sum.saturating_add(tokens);
                source = Some(entry.1);
            } else if entry.0 == free {
                self.free += 1;
            }
            entry.1 = turn;
            node = entry.0;
        }
        (sum, source)
    }
}

/// What a turn has in common with earlier ones.
#[derive(Debug, Clone, Copy, Default)]
struct Shared {
    /// With the turn before, tokens.
    kept: u32,
    /// With the turn that shares most, tokens.
    found: u32,
    /// That turn.
    source: Option<u32>,
    /// Whether the turn before stands whole in it.
    is_whole: bool,
}

fn append(
    trace: &mut Trace,
    chains: &mut Chains,
    workload: &Workload,
    (at, session, is_long): (usize, u32, bool),
    row: &Row,
    segments: &[Segment],
) {
    let (basis, keys) = keys_of(workload, at, segments, row);
    let shared = if is_long { shared(chains, workload, (at, session), (basis, &keys), row) } else { Shared::default() };
    let (clock, last) = (chains.clock, &mut chains.sessions[session as usize]);
    let arrival_ns = row.arrival_ns.unwrap_or(workload.arrival_ns[at]);
    let turn = Turn {
        request_id: workload.request_ids[at],
        recorded: Some(at as u32),
        session,
        turn: last.turns,
        role: Role::Recorded,
        arrival_ns,
        idle_ns: idle(last, arrival_ns, row.delay_ns, clock),
        output: workload.output[at],
        kept_tokens: shared.kept,
        found_tokens: shared.found,
        broke_at_tokens: (last.at.is_some() && !shared.is_whole).then_some(shared.kept),
        basis,
    };
    if let Some(source) = shared.source {
        copy(trace, source as usize, shared.found);
    }
    fill(trace, &turn, (shared.found, workload.prompt[at]), segments);
    trace.push(turn, &[]);
    *last = Last { at: Some(at as u32), turns: last.turns + 1, keys, arrival_ns, took_ns: row.e2e_ns };
}

/// The pause since the turn before, as a replay has it; since that one came where the recording does not tell.
fn idle(last: &Last, arrival_ns: i64, delay_ns: Option<i64>, clock: i64) -> Option<i64> {
    if last.at.is_none() {
        return delay_ns;
    }
    let gap = arrival_ns.saturating_sub(last.arrival_ns);
    Some(told_pause(Some(gap), last.took_ns, delay_ns, clock).map_or(gap, |(_, pause)| pause))
}

fn shared(
    chains: &mut Chains,
    workload: &Workload,
    (at, session): (usize, u32),
    (basis, keys): (Basis, &[(u64, u32)]),
    row: &Row,
) -> Shared {
    let prompt = workload.prompt[at];
    let before = chains.sessions[session as usize].at;
    let of = |turn: Option<u32>| turn.map_or(0, |turn| workload.prompt[turn as usize]);
    if basis == Basis::Measured {
        let found = row.hit_tokens.unwrap_or(0).min(prompt).min(of(before));
        return Shared { kept: found, found, source: before, is_whole: found == of(before) };
    }
    let last = &chains.sessions[session as usize].keys;
    let same = keys.iter().zip(last).take_while(|(now, before)| now == before);
    let (count, kept) = same.fold((0, 0_u32), |(count, sum), (now, _)| (count + 1, sum.saturating_add(now.1)));
    // What has no key in the turn before may or may not be there; it does not count as broken.
    let is_whole = count == last.len() && basis != Basis::Nothing;
    let (found, source) = chains.walk(session, at as u32, keys);
    Shared { kept: kept.min(prompt).min(of(before)), found: found.min(prompt).min(of(source)), source, is_whole }
}

/// What a prompt is made of, as far as it can be told from others: key and tokens.
fn keys_of(workload: &Workload, at: usize, segments: &[Segment], row: &Row) -> (Basis, Vec<(u64, u32)>) {
    let units = workload.units_of(at);
    if !units.is_empty() {
        return (Basis::Blocks, units.iter().map(|&unit| (u64::from(unit), workload.unit_tokens)).collect());
    }
    let named = segments.iter().map_while(|segment| Some((u64::from(segment.name?), segment.tokens)));
    let named: Vec<(u64, u32)> = named.collect();
    match (named.is_empty(), row.hit_tokens) {
        (false, _) => (Basis::Names, named),
        (true, Some(_)) => (Basis::Measured, Vec::new()),
        (true, None) => (Basis::Nothing, Vec::new()),
    }
}

/// Appends the first tokens of an earlier turn's context.
fn copy(trace: &mut Trace, source: usize, tokens: u32) {
    let mut left = tokens;
    for at in trace.offsets[source]..trace.offsets[source + 1] {
        let piece = trace.pieces[at];
        let taken = piece.tokens.min(left);
        if taken > 0 {
            trace.pieces.push(Piece { tokens: taken, ..piece });
        }
        left -= taken;
    }
}

/// Appends what stands behind the shared tokens, by the segments that lie there.
fn fill(trace: &mut Trace, turn: &Turn, (found, prompt): (u32, u32), segments: &[Segment]) {
    let (mut at, mut from) = (found, 0_u32);
    let mut add = |tokens: u32, kind: Kind, name: Option<u32>| {
        if tokens == 0 {
            return;
        }
        let fate = Fate::Verbatim;
        trace.contents.push(Content { session: turn.session, born: turn.turn, kind, name, fate });
        let content = trace.contents.len() as u32 - 1;
        trace.pieces.push(Piece { content, start: 0, tokens, form: Form::Verbatim });
    };
    for segment in segments {
        let to = from.saturating_add(segment.tokens).min(prompt);
        if to > at {
            // What an earlier turn held and this one does not share with it can be anything.
            let kind = if segment.kind == Kind::History { Kind::Unknown } else { segment.kind };
            add(to - at, kind, segment.name.filter(|_| from >= at));
            at = to;
        }
        from = to;
    }
    add(prompt.saturating_sub(at), Kind::Unknown, None);
}

fn column<'a, T: ArrowPrimitiveType>(batch: &'a RecordBatch, name: &str) -> Result<&'a PrimitiveArray<T>> {
    let found = batch.column_by_name(name).and_then(|column| column.as_primitive_opt::<T>());
    found.ok_or_else(|| missing(name))
}

fn texts<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a StringArray> {
    let found = batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>());
    found.ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::data(format!("expected a column `{name}` of the canonical type, found none"))
        .hint("`kvtoll schema` shows the columns of each table")
}

/// The rows of `requests` by id, and the named sessions.
fn requests_of(batches: &[RecordBatch]) -> Result<(HashMap<u64, Row>, Vec<Session>)> {
    let (mut rows, mut numbers, mut sessions) = (HashMap::new(), HashMap::<String, u32>::new(), Vec::new());
    for batch in batches {
        let ids = column::<UInt64Type>(batch, "request_id")?;
        let names = texts(batch, "session_id")?;
        let parents = column::<UInt64Type>(batch, "parent_request_id")?;
        let delays = column::<Int64Type>(batch, "delay_ns")?;
        let ends = column::<Int64Type>(batch, "measured_e2e_ns")?;
        let hits = column::<UInt32Type>(batch, "measured_hit_tokens")?;
        let arrivals = column::<Int64Type>(batch, "arrival_ns")?;
        for at in 0..batch.num_rows() {
            let session = names.is_valid(at).then(|| {
                let next = sessions.len() as u32;
                *numbers.entry(names.value(at).to_owned()).or_insert_with_key(|name| {
                    sessions.push(Session { name: Some(name.clone()), parent: None, turns: 0 });
                    next
                })
            });
            rows.insert(
                ids.value(at),
                Row {
                    session,
                    parent: parents.is_valid(at).then(|| parents.value(at)),
                    arrival_ns: arrivals.is_valid(at).then(|| arrivals.value(at)),
                    delay_ns: delays.is_valid(at).then(|| delays.value(at)),
                    e2e_ns: ends.is_valid(at).then(|| ends.value(at)),
                    hit_tokens: hits.is_valid(at).then(|| hits.value(at)),
                },
            );
        }
    }
    Ok((rows, sessions))
}

fn segments_of(batches: &[RecordBatch]) -> Result<Segments> {
    let mut found = Segments::default();
    let mut names = HashMap::<String, u32>::new();
    let mut order: Vec<(u64, u32, usize)> = Vec::new();
    for batch in batches {
        let ids = column::<UInt64Type>(batch, "request_id")?;
        let positions = column::<UInt32Type>(batch, "position")?;
        let (segment_ids, kinds) = (texts(batch, "segment_id")?, texts(batch, "kind")?);
        let tokens = column::<UInt32Type>(batch, "tokens")?;
        for at in 0..batch.num_rows() {
            let name = segment_ids.is_valid(at).then(|| {
                let next = names.len() as u32;
                *names.entry(segment_ids.value(at).to_owned()).or_insert(next)
            });
            order.push((ids.value(at), positions.value(at), found.rows.len()));
            found.rows.push(Segment { kind: Kind::of(kinds.value(at)), tokens: tokens.value(at), name });
        }
    }
    order.sort_unstable();
    found.rows = order.iter().map(|&(_, _, at)| found.rows[at]).collect();
    for (at, &(id, ..)) in order.iter().enumerate() {
        found.places.entry(id).or_insert((at, at)).1 = at + 1;
    }
    found.names = names.len() as u32;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A turn 11 s after one that took 3 s, by a clock that shows seconds.
    #[test]
    fn a_pause_is_as_exact_as_the_clock() {
        const S: i64 = 1_000_000_000;
        let last = Last { at: Some(0), arrival_ns: 5 * S, took_ns: Some(3 * S), ..Last::default() };
        let idle_of = |delay: i64| idle(&last, 16 * S, Some(delay), S);
        assert_eq!(idle_of(11 * S + S / 2), Some(11 * S + S / 2));
        assert_eq!(idle_of(12 * S), Some(8 * S), "that does not fit between the two");
        // Where it came before the answer was there it waited for nobody, and where nothing is told the start counts.
        assert_eq!(idle(&last, 6 * S, Some(S), S), Some(0));
        assert_eq!(idle(&Last { took_ns: None, ..last }, 16 * S, None, S), Some(11 * S));
    }
}
