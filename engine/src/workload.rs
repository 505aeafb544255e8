//! The requests that a replay serves, as columns, and what their prefixes have in common.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};

use crate::error::{Error, Result};
use crate::number::Numbers;

/// The longest time over which requests may arrive: half of what the clock can count.
pub const LONGEST_NS: i64 = 1 << 62;

/// The highest bit marks ids of requests that stages of a policy send: their tokens reach no user.
pub const ADDED: u64 = 1 << 63;

/// Requests in order of arrival. KV blocks that share an id share a dense number, from 0 by first appearance.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// What the user calls it.
    pub name: String,
    /// The store's request ids.
    pub request_ids: Vec<u64>,
    /// Arrival after the first one, nanoseconds.
    pub arrival_ns: Vec<i64>,
    /// Prompt lengths, tokens.
    pub prompt: Vec<u32>,
    /// Output lengths, tokens.
    pub output: Vec<u32>,
    /// Tokens of one block id; 0 where the trace has none.
    pub unit_tokens: u32,
    /// Request `i` owns `units[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<u32>,
    /// Dense block numbers.
    pub units: Vec<u32>,
    /// Distinct blocks.
    pub distinct_units: u32,
    /// Which request continues which; empty where turns do not wait for each other.
    pub turns: Turns,
}

/// Turns of sessions, by request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turns {
    /// The request that each continues; `u32::MAX` where it begins a session. Empty without sessions.
    pub before: Vec<u32>,
    /// Pause after that one's end, nanoseconds; after its start where `basis` says so.
    pub pause_ns: Vec<i64>,
    /// How each pause is known.
    pub basis: Vec<Pause>,
    /// The request of a stage's own that must have ended before each can be served, though it has come; `u32::MAX` where it
    /// waits for none. Empty where stages send no requests. It holds in every kind of traffic.
    pub held_by: Vec<u32>,
}

/// How the pause before a turn is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pause {
    /// It begins a session.
    First,
    /// It came before the turn before it had ended, so that it waits for nobody.
    Overlap,
    /// The recording gives the pause.
    Recorded,
    /// The recording gives the start, and the end of the turn before.
    Measured,
    /// The recording gives both starts; the turn comes so long after the start of the one before, or when that has ended.
    FromStart,
    /// The user said how long.
    Chosen,
    /// It has come, and is served once the request that a stage sent for it has ended.
    AtOnce,
}

impl Pause {
    /// Its name in result tables; `None` for what has no pause.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::First => None,
            Self::Overlap => Some("overlap"),
            Self::Recorded => Some("recorded"),
            Self::Measured => Some("measured"),
            Self::FromStart => Some("from_start"),
            Self::Chosen => Some("chosen"),
            Self::AtOnce => Some("at_once"),
        }
    }
}

/// What to take for a pause that the recording does not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThinkTime {
    /// Nothing: such a pause is an error.
    Recorded,
    /// The time from start to start, see [`Pause::FromStart`].
    Starts,
    /// So many nanoseconds.
    Fixed(i64),
}

impl Turns {
    /// The request that request `index` continues.
    pub fn before(&self, index: usize) -> Option<u32> {
        self.before.get(index).copied().filter(|&before| before != u32::MAX)
    }

    /// The request of a stage's own that request `index` waits for.
    pub fn held_by(&self, index: usize) -> Option<u32> {
        self.held_by.get(index).copied().filter(|&own| own != u32::MAX)
    }

    /// When request `index` comes, if the one that it continues came at `came` and ended at `ended`.
    pub fn due(&self, index: usize, came: i64, ended: i64) -> i64 {
        let pause = self.pause_ns[index];
        match self.basis[index] {
            Pause::FromStart => came.saturating_add(pause).max(ended),
            _ => ended.saturating_add(pause),
        }
    }

    /// How many pauses are known in which way, in the order of [`Pause`].
    pub fn counts(&self) -> Vec<(Pause, usize)> {
        let mut sorted = self.basis.clone();
        sorted.sort_unstable();
        sorted.chunk_by(|one, other| one == other).map(|alike| (alike[0], alike.len())).collect()
    }
}

/// What the prefixes of a workload have in common when nothing is ever evicted: each request looks its leading blocks up,
/// then all of its blocks are inserted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrefixCounts {
    /// Block references.
    pub references: u64,
    /// Distinct blocks.
    pub distinct: u64,
    /// References found while all before them in the prompt were found.
    pub leading_hits: u64,
    /// Prompt tokens in those blocks over all prompt tokens.
    pub token_ratio: f64,
    /// The same over full blocks only: hits of full blocks over full blocks.
    pub full_block_ratio: f64,
    /// Mean over requests of the share of prompt tokens in leading hits.
    pub mean_request_ratio: f64,
}

impl Workload {
    /// Number of requests.
    pub fn len(&self) -> usize {
        self.prompt.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.prompt.is_empty()
    }

    /// Whether a stage of the policy sends request `index`, so that its tokens reach no user.
    pub fn is_added(&self, index: usize) -> bool {
        self.request_ids.get(index).is_some_and(|id| id & ADDED != 0)
    }

    /// Block numbers of request `index`.
    pub fn units_of(&self, index: usize) -> &[u32] {
        &self.units[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }

    /// Tokens of prompt and output together, of each request.
    pub fn contexts(&self) -> impl Iterator<Item = u64> + '_ {
        self.prompt.iter().zip(&self.output).map(|(&prompt, &output)| u64::from(prompt) + u64::from(output))
    }

    /// Requests that are longer than a context of so many tokens.
    pub fn beyond(&self, context_tokens: u32) -> usize {
        self.contexts().filter(|&tokens| tokens > u64::from(context_tokens)).count()
    }

    /// From first to last arrival, nanoseconds.
    pub fn span_ns(&self) -> i64 {
        self.arrival_ns.last().copied().unwrap_or(0)
    }

    /// The same requests arriving `rate` times as fast.
    ///
    /// # Errors
    /// Arrivals over more than [`LONGEST_NS`], which leaves no room for the clock of a replay.
    pub fn at_rate(&self, rate: f64) -> Result<Self> {
        let span = self.span_ns() as f64 / rate;
        if span > LONGEST_NS as f64 {
            return Err(Error::run(format!("the requests of `{}` arrive over {:.0} years", self.name, span / 3.15e16))
                .hint("a replay covers up to 146 years; check the time unit of the trace and the rate"));
        }
        let arrival_ns = self.arrival_ns.iter().map(|&at| (at as f64 / rate).round() as i64).collect();
        Ok(Self { arrival_ns, ..self.clone() })
    }
}

/// What must be known of when requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Times {
    /// Every arrival.
    Arrivals,
    /// Arrivals of first turns, and the pause before each other turn, or what to take in its place.
    Sessions(ThinkTime),
    /// Nothing: requests come in the order of the trace.
    Order,
}

/// Builds a workload from rows of the canonical `requests` table, with every arrival.
///
/// # Errors
/// See [`from_requests_by`].
pub fn from_requests(name: &str, batches: &[RecordBatch]) -> Result<Workload> {
    from_requests_by(name, batches, Times::Arrivals)
}

/// Builds a workload from rows of the canonical `requests` table.
///
/// # Errors
/// No rows, a missing column, an unknown arrival or pause where it is needed, requests that continue each other in a circle,
/// block ids whose size differs between requests.
pub fn from_requests_by(name: &str, batches: &[RecordBatch], times: Times) -> Result<Workload> {
    let mut rows = Vec::new();
    for (at, batch) in batches.iter().enumerate() {
        let arrival = int_column(batch, "arrival_ns")?;
        for row in 0..batch.num_rows() {
            let known = arrival.is_valid(row).then(|| arrival.value(row));
            if known.is_none() && times == Times::Arrivals {
                return Err(Error::run(format!("the requests of `{name}` have no arrival times")).hint(
                    "use `mode = \"captured\"`, which takes the steps as they were recorded, `session` or `closed`",
                ));
            }
            rows.push((known, at, row));
        }
    }
    let mut turns = Turns::default();
    match times {
        Times::Sessions(think) => (rows, turns) = sessions(name, batches, &rows, think)?,
        // Stable: requests of one instant keep the order of the trace.
        Times::Arrivals => rows.sort_by_key(|row| row.0),
        Times::Order if rows.iter().all(|row| row.0.is_some()) => rows.sort_by_key(|row| row.0),
        Times::Order => {}
    }
    let Some(&(origin, ..)) = rows.first() else {
        return Err(Error::run(format!("`{name}` has no requests")));
    };
    let origin = origin.unwrap_or(0);
    let since = |row: &Row| if times == Times::Order { 0 } else { row.0.unwrap_or(origin).saturating_sub(origin) };
    let mut workload = Workload {
        name: name.to_owned(),
        request_ids: Vec::with_capacity(rows.len()),
        arrival_ns: rows.iter().map(since).collect(),
        prompt: Vec::with_capacity(rows.len()),
        output: Vec::with_capacity(rows.len()),
        unit_tokens: 0,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: 0,
        turns,
    };
    let mut numbers = Numbers::default();
    for (_, at, row) in rows {
        append(&mut workload, &mut numbers, &batches[at], row)?;
    }
    workload.distinct_units = numbers.len() as u32;
    Ok(workload)
}

/// Arrival, batch and row of a request.
type Row = (Option<i64>, usize, usize);

/// Who continues whom: the named parent, or the turn before in the session. Rows come back in the order in which they came, as
/// far as that is known, so that nobody stands before the request that it continues; one whose arrival is not known has
/// that of the one before.
fn sessions(name: &str, batches: &[RecordBatch], rows: &[Row], think: ThinkTime) -> Result<(Vec<Row>, Turns)> {
    let facts: Vec<Fact<'_>> = rows.iter().map(|row| Fact::of(batches, *row)).collect::<Result<_>>()?;
    let before = predecessors(&facts);
    let clock = resolution(facts.iter().filter_map(|fact| fact.arrival));
    let mut unknown = Vec::new();
    let pauses: Vec<(Pause, i64)> = (0..rows.len())
        .map(|at| {
            let Some(parent) = before[at] else { return (Pause::First, 0) };
            pause(&facts[at], &facts[parent as usize], clock, think).unwrap_or_else(|| {
                unknown.push(facts[at].id);
                (Pause::First, 0)
            })
        })
        .collect();
    if let Some(first) = unknown.first() {
        let of = before.iter().flatten().count();
        return Err(Error::run(format!(
            "{} of {of} pauses between turns of `{name}` are not known, the first one before request {first}",
            unknown.len()
        ))
        .hint(
            "say what to take for them: `--think-time starts` (as long after the start of the turn before as recorded, or \
             when that has ended) or a time such as `--think-time 5s`; or replay in the mode `open` or `closed`",
        ));
    }
    let waits = |at: usize| !matches!(pauses[at].0, Pause::First | Pause::Overlap);
    let links: Vec<Option<u32>> = (0..rows.len()).map(|at| before[at].filter(|_| waits(at))).collect();
    let (roots, depths) = chains(name, &links)?;
    for &root in &roots {
        if facts[root as usize].arrival.is_none() {
            let id = facts[root as usize].id;
            return Err(Error::run(format!("request {id} of `{name}` begins a session at an unknown time"))
                .hint("use `mode = \"closed\"` with a `concurrency`"));
        }
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|&at| depths[at]);
    let mut came = vec![i64::MIN; rows.len()];
    for &at in &order {
        let parent = links[at].map_or(i64::MIN, |parent| came[parent as usize]);
        came[at] = facts[at].arrival.unwrap_or(i64::MIN).max(parent);
    }
    order.sort_by_key(|&at| (came[at], depths[at]));
    let mut place = vec![0; rows.len()];
    for (to, &at) in order.iter().enumerate() {
        place[at] = to as u32;
    }
    let turns = Turns {
        before: order.iter().map(|&at| links[at].map_or(u32::MAX, |parent| place[parent as usize])).collect(),
        pause_ns: order.iter().map(|&at| pauses[at].1).collect(),
        basis: order.iter().map(|&at| pauses[at].0).collect(),
        held_by: Vec::new(),
    };
    Ok((order.iter().map(|&at| (Some(came[at]), rows[at].1, rows[at].2)).collect(), turns))
}

/// The pause of a turn after the one before it, and how it is known; `None` if it is not. `clock` is the resolution of
/// arrivals.
fn pause(own: &Fact<'_>, before: &Fact<'_>, clock: i64, think: ThinkTime) -> Option<(Pause, i64)> {
    let gap = own.arrival.zip(before.arrival).map(|(own, before)| own.saturating_sub(before));
    told_pause(gap, before.e2e, own.delay, clock).or(match (gap, think) {
        (Some(gap), ThinkTime::Starts) => Some((Pause::FromStart, gap)),
        (_, ThinkTime::Fixed(chosen)) => Some((Pause::Chosen, chosen)),
        _ => None,
    })
}

/// What a recording tells of the pause after a turn that came `gap` earlier, took `took`, and after which the next one is
/// said to have waited for `delay`, as far as each is known; `None` if that is not enough. `clock` is the resolution of
/// arrivals.
///
/// A recorded pause that is longer than from start to start is no pause after the turn before: a client that does not know
/// when that ended counts from an earlier one.
pub(crate) fn told_pause(gap: Option<i64>, took: Option<i64>, delay: Option<i64>, clock: i64) -> Option<(Pause, i64)> {
    let measured = gap.zip(took).map(|(gap, took)| gap.saturating_sub(took));
    if gap.is_some_and(|gap| gap < 0) || measured.is_some_and(|pause| pause <= -clock) {
        return Some((Pause::Overlap, 0));
    }
    let recorded = delay.map(|delay| delay.max(0));
    match recorded.filter(|&delay| gap.is_none_or(|gap| delay < gap.saturating_add(clock))) {
        Some(delay) => Some((Pause::Recorded, delay)),
        None => measured.map(|pause| (Pause::Measured, pause.max(0))),
    }
}

/// The largest of a second, a millisecond, a microsecond and a nanosecond that all arrivals are multiples of.
pub(crate) fn resolution(arrivals: impl Iterator<Item = i64>) -> i64 {
    let mut arrivals = arrivals.filter(|&arrival| arrival != 0).peekable();
    if arrivals.peek().is_none() {
        return 1;
    }
    arrivals.fold(1_000_000_000, |mut clock, arrival| {
        while arrival % clock != 0 {
            clock /= 1000;
        }
        clock
    })
}

/// What says who continues whom.
struct Fact<'a> {
    id: u64,
    session: Option<&'a str>,
    turn: Option<u32>,
    parent: Option<u64>,
    arrival: Option<i64>,
    delay: Option<i64>,
    e2e: Option<i64>,
}

impl<'a> Fact<'a> {
    fn of(batches: &'a [RecordBatch], (arrival, at, row): Row) -> Result<Self> {
        let batch = &batches[at];
        let ids = column(batch, "request_id")?.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("request_id"))?;
        let session = column(batch, "session_id")?.as_string_opt::<i32>().ok_or_else(|| wrong("session_id"))?;
        let turn = column(batch, "turn")?.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong("turn"))?;
        let parents = column(batch, "parent_request_id")?;
        let parents = parents.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("parent_request_id"))?;
        let (delay, e2e) = (int_column(batch, "delay_ns")?, int_column(batch, "measured_e2e_ns")?);
        Ok(Self {
            id: ids.value(row),
            session: session.is_valid(row).then(|| session.value(row)),
            turn: turn.is_valid(row).then(|| turn.value(row)),
            parent: parents.is_valid(row).then(|| parents.value(row)),
            arrival,
            delay: delay.is_valid(row).then(|| delay.value(row)),
            e2e: e2e.is_valid(row).then(|| e2e.value(row)),
        })
    }
}

fn predecessors(facts: &[Fact<'_>]) -> Vec<Option<u32>> {
    let by_id: HashMap<u64, u32> = facts.iter().zip(0..).map(|(fact, at)| (fact.id, at)).collect();
    let mut order: Vec<usize> = (0..facts.len()).collect();
    order.sort_by_key(|&at| (facts[at].turn, facts[at].arrival.unwrap_or(i64::MAX)));
    let mut last: HashMap<&str, u32> = HashMap::new();
    let mut before = vec![None; facts.len()];
    for at in order {
        let fact = &facts[at];
        before[at] = fact.parent.and_then(|parent| by_id.get(&parent).copied());
        if let Some(session) = fact.session {
            let earlier = last.insert(session, at as u32);
            before[at] = before[at].or(earlier);
        }
    }
    before
}

/// The first request of each one's chain, and how many stand before it.
fn chains(name: &str, links: &[Option<u32>]) -> Result<(Vec<u32>, Vec<u32>)> {
    let (mut roots, mut depths) = (vec![u32::MAX; links.len()], vec![0; links.len()]);
    let mut path = Vec::new();
    for start in 0..links.len() {
        let mut at = start;
        while roots[at] == u32::MAX {
            path.push(at);
            match links[at] {
                Some(parent) if path.len() <= links.len() => at = parent as usize,
                Some(_) => return Err(Error::data(format!("requests of `{name}` continue each other in a circle"))),
                None => roots[at] = at as u32,
            }
        }
        let (root, mut depth) = (roots[at], depths[at]);
        for own in path.drain(..).rev().filter(|&own| own != at) {
            depth += 1;
            (roots[own], depths[own]) = (root, depth);
        }
    }
    Ok((roots, depths))
}

fn int_column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a Int64Array> {
    column(batch, name)?.as_primitive_opt::<Int64Type>().ok_or_else(|| wrong(name))
}

fn append(workload: &mut Workload, numbers: &mut Numbers, batch: &RecordBatch, row: usize) -> Result<()> {
    let u32_of = |name: &str| column(batch, name)?.as_primitive_opt::<UInt32Type>().ok_or_else(|| wrong(name));
    let ids = column(batch, "request_id")?.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("request_id"))?;
    workload.request_ids.push(ids.value(row));
    workload.prompt.push(u32_of("prompt_tokens")?.value(row));
    workload.output.push(u32_of("output_tokens")?.value(row));
    let hashes = column(batch, "block_hashes")?.as_list_opt::<i32>().ok_or_else(|| wrong("block_hashes"))?;
    let sizes = u32_of("block_tokens")?;
    if hashes.is_valid(row) && sizes.is_valid(row) {
        let size = sizes.value(row);
        if size == 0 || (workload.unit_tokens != 0 && workload.unit_tokens != size) {
            let found = format!("`{}` mixes blocks of {} and {size} tokens", workload.name, workload.unit_tokens);
            return Err(Error::data(found).hint("replay one source at a time"));
        }
        workload.unit_tokens = size;
        let values = hashes.value(row);
        let values = values.as_primitive_opt::<UInt64Type>().ok_or_else(|| wrong("block_hashes"))?;
        numbers.number(values.values(), &mut workload.units)?;
    }
    let end = u32::try_from(workload.units.len())
        .map_err(|_| Error::run(format!("`{}` has more than 2^32 block references", workload.name)))?;
    workload.offsets.push(end);
    Ok(())
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a dyn Array> {
    let found = batch.column_by_name(name).map(AsRef::as_ref);
    found.ok_or_else(|| Error::data(format!("the requests have no column `{name}`")))
}

fn wrong(name: &str) -> Error {
    Error::data(format!("the column `{name}` of the requests has the wrong type"))
}

/// Counts prefix reuse without a capacity limit.
pub fn prefix_counts(workload: &Workload) -> PrefixCounts {
    let mut seen = vec![false; workload.distinct_units as usize];
    let mut counts = PrefixCounts {
        references: workload.units.len() as u64,
        distinct: u64::from(workload.distinct_units),
        ..PrefixCounts::default()
    };
    let (mut hit_tokens, mut full_hits, mut full_blocks, mut ratios) = (0_u64, 0_u64, 0_u64, 0.0);
    let unit = u64::from(workload.unit_tokens.max(1));
    for request in 0..workload.len() {
        let (units, prompt) = (workload.units_of(request), u64::from(workload.prompt[request]));
        let leading = units.iter().take_while(|&&number| seen[number as usize]).count() as u64;
        let tokens = (leading * unit).min(prompt);
        counts.leading_hits += leading;
        hit_tokens += tokens;
        let full = (prompt / unit).min(units.len() as u64);
        full_blocks += full;
        full_hits += leading.min(full);
        ratios += if prompt == 0 { 0.0 } else { tokens as f64 / prompt as f64 };
        for &number in units {
            seen[number as usize] = true;
        }
    }
    let prompts: u64 = workload.prompt.iter().map(|&tokens| u64::from(tokens)).sum();
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    counts.token_ratio = share(hit_tokens, prompts);
    counts.full_block_ratio = share(full_hits, full_blocks);
    counts.mean_request_ratio = if workload.is_empty() { 0.0 } else { ratios / workload.len() as f64 };
    counts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray, UInt32Array, UInt64Array};

    use super::*;
    use crate::schema::list_u64;

    /// A request's id, session, turn, parent, arrival, delay, end-to-end time.
    type Case = (u64, Option<&'static str>, Option<u32>, Option<u64>, Option<i64>, Option<i64>, Option<i64>);

    fn rows(facts: &[Case]) -> Vec<RecordBatch> {
        let ints =
            |of: fn(&Case) -> Option<i64>| -> ArrayRef { Arc::new(facts.iter().map(of).collect::<Int64Array>()) };
        let ids =
            |of: fn(&Case) -> Option<u64>| -> ArrayRef { Arc::new(facts.iter().map(of).collect::<UInt64Array>()) };
        let counts =
            |of: fn(&Case) -> Option<u32>| -> ArrayRef { Arc::new(facts.iter().map(of).collect::<UInt32Array>()) };
        let mut hashes = list_u64();
        facts.iter().for_each(|_| hashes.append_null());
        let columns: [(&str, ArrayRef); 11] = [
            ("request_id", ids(|fact| Some(fact.0))),
            ("session_id", Arc::new(facts.iter().map(|fact| fact.1).collect::<StringArray>())),
            ("turn", counts(|fact| fact.2)),
            ("parent_request_id", ids(|fact| fact.3)),
            ("arrival_ns", ints(|fact| fact.4)),
            ("delay_ns", ints(|fact| fact.5)),
            ("measured_e2e_ns", ints(|fact| fact.6)),
            ("prompt_tokens", counts(|_| Some(10))),
            ("output_tokens", counts(|_| Some(10))),
            ("block_tokens", counts(|_| None)),
            ("block_hashes", Arc::new(hashes.finish())),
        ];
        vec![RecordBatch::try_from_iter(columns).unwrap()]
    }

    const RECORDED: Times = Times::Sessions(ThinkTime::Recorded);

    #[test]
    fn turns_follow_their_parent_or_the_turn_before() {
        let batches = rows(&[
            (0, Some("b"), Some(0), None, Some(500), None, None),
            (1, Some("a"), Some(0), None, Some(100), None, Some(50)),
            (2, Some("a"), Some(1), None, None, Some(7), None),
            // Its pause is what lies between the end of the one before and its own arrival.
            (3, Some("c"), None, Some(1), Some(180), None, Some(10)),
            // It came before its parent had ended, so it waits for nobody.
            (4, None, None, Some(3), Some(185), None, None),
        ]);
        let workload = from_requests_by("x", &batches, RECORDED).unwrap();
        assert_eq!(workload.request_ids, [1, 2, 3, 4, 0]);
        assert_eq!(workload.turns.before, [u32::MAX, 0, 0, u32::MAX, u32::MAX]);
        assert_eq!(workload.turns.pause_ns, [0, 7, 30, 0, 0]);
        assert_eq!(workload.arrival_ns, [0, 0, 80, 85, 400]);
        let counts = [(Pause::First, 2), (Pause::Overlap, 1), (Pause::Recorded, 1), (Pause::Measured, 1)];
        assert_eq!(workload.turns.counts(), counts);
    }

    #[test]
    fn pauses_that_are_not_recorded_are_taken_as_the_user_says() {
        const S: i64 = 1_000_000_000;
        let a = |turn: u32, arrival: i64, delay: Option<i64>, e2e: Option<i64>| -> Case {
            let delay = delay.map(|delay| delay * S);
            (turn.into(), Some("a"), Some(turn), None, Some(arrival * S), delay, e2e)
        };
        let batches = rows(&[
            a(0, 0, None, None),
            // When the turn before ended is not recorded.
            a(1, 20, None, Some(4 * S + S / 2)),
            // Seconds are all that the clock shows: 0.5 s too early is within it.
            a(2, 24, None, None),
            // A pause of 40 s does not fit between starts 11 s apart.
            a(3, 35, Some(40), Some(3 * S)),
            // 2 s too early is not.
            a(4, 36, Some(0), Some(S)),
            a(5, 40, Some(3), None),
        ]);
        let turns = |think: ThinkTime| from_requests_by("x", &batches, Times::Sessions(think)).unwrap().turns;
        let starts = turns(ThinkTime::Starts);
        let (from_start, recorded) = (Pause::FromStart, Pause::Recorded);
        assert_eq!(starts.basis, [Pause::First, from_start, Pause::Measured, from_start, Pause::Overlap, recorded]);
        assert_eq!(starts.pause_ns, [0, 20 * S, 0, 11 * S, 0, 3 * S]);
        assert_eq!(starts.before, [u32::MAX, 0, 1, 2, u32::MAX, 4]);
        // From the start of the turn before, but not before its end; a pause after its end.
        assert_eq!((starts.due(1, 5 * S, 6 * S), starts.due(1, 5 * S, 30 * S)), (25 * S, 30 * S));
        assert_eq!(starts.due(5, 5 * S, 6 * S), 9 * S);
        let chosen = turns(ThinkTime::Fixed(7));
        assert_eq!(chosen.pause_ns, [0, 7, 0, 7, 0, 3 * S]);
        let error = from_requests_by("x", &batches, RECORDED).unwrap_err().to_string();
        assert!(error.contains("2 of 5 pauses between turns of `x` are not known, the first one before request 1"));
    }

    #[test]
    fn unknown_pauses_and_circles_are_told() {
        let error = |facts: &[Case]| from_requests_by("x", &rows(facts), RECORDED).unwrap_err().to_string();
        let first = (0, Some("a"), Some(0), None, Some(1), None, None);
        assert!(error(&[first, (1, Some("a"), Some(1), None, Some(9), None, None)]).contains("1 of 1 pauses"));
        assert!(error(&[(0, None, None, None, None, None, None)]).contains("unknown time"));
        let circle = |id, parent| -> Case { (id, None, None, Some(parent), Some(0), Some(0), None) };
        assert!(error(&[circle(0, 1), circle(1, 0)]).contains("circle"));
        let unknown = rows(&[(0, None, None, None, None, None, None), (1, None, None, None, Some(3), None, None)]);
        assert_eq!(from_requests_by("x", &unknown, Times::Order).unwrap().arrival_ns, [0, 0]);
        assert!(from_requests("x", &unknown).is_err());
    }

    #[test]
    fn leading_hits_stop_at_the_first_miss() {
        let workload = Workload {
            name: "three".to_owned(),
            request_ids: vec![0, 1, 2],
            arrival_ns: vec![0, 1, 2],
            prompt: vec![30, 25, 30],
            output: vec![1, 1, 1],
            unit_tokens: 10,
            offsets: vec![0, 3, 6, 9],
            units: vec![0, 1, 2, 0, 3, 2, 0, 1, 4],
            distinct_units: 5,
            turns: Turns::default(),
        };
        let counts = prefix_counts(&workload);
        assert_eq!((counts.references, counts.distinct, counts.leading_hits), (9, 5, 3));
        assert!((counts.token_ratio - 30.0 / 85.0).abs() < 1e-12);
        assert!((counts.full_block_ratio - 3.0 / 8.0).abs() < 1e-12);
        assert!((counts.mean_request_ratio - (0.0 + 10.0 / 25.0 + 20.0 / 30.0) / 3.0).abs() < 1e-12);
    }
}
