//! Claude Code conversations as kv-cache-tester publishes them (WEKA): one JSON object a file, or one a line.
//!
//! ```text
//! {"id":"trace_0208","models":["claude-opus-4-5-20251101"],"block_size":64,"hash_id_scope":"local","tool_tokens":12319,
//!  "system_tokens":2887,"requests":[
//!   {"t":0.0,"type":"s","model":"claude-opus-4-5-20251101","in":47265,"out":470,"hash_ids":[1,2,...],
//!    "input_types":["text"],"output_types":["text"],"stop":"","api_time":3.54,"ttft":1.31,"think_time":0.0},
//!   {"t":12.5,"type":"subagent","agent_id":"agent_001","subagent_type":"Explore","requests":[...],...}],
//!  "totals":{"parent_tokens":{"input":575896,"output":1087},"subagent_count":1,...}}
//! ```
//!
//! The three generations of the schema (2025 to 2026) differ in `hash_id_scope` (missing, `global`, `local`) and in which
//! times are given. Requests are streamed: a conversation of any length is never whole in memory.
//!
//! * A conversation is the session `id`; a sub-agent's is `id/agent_id`, and its first request names the request before
//!   it in the conversation as its parent. A sub-agent's own clock starts at 0 and is added to its `t`, which may be
//!   negative (it began before the first request). `kind` is the `type` (n, s), or `subagent` for a sub-agent's requests.
//! * `hash_ids` has floor(`in` / 64) entries: the last tokens have no id. With the scope `local` ids mean nothing in
//!   another conversation; where a file holds several, those of later ones are moved behind the earlier ones.
//! * `think_time` is the pause before a request; `api_time` and `ttft` are what the client measured.
//! * `context_segments`: tools and system as the conversation gives them, what is shared with the request before
//!   (`history`, by block ids), and what is new: of the one kind that `input_types` names, after the reply before it
//!   (`assistant`, by its recorded length) where that had no thinking; else `unknown`. They sum to `in`. A prompt that is
//!   shorter than tools and system has one segment, `unknown`.
//!
//! `totals` are checked against the requests; a difference is logged. Refused: a request without `t`, `in`, `out` or
//! `hash_ids`, a broken number, a number of ids that does not fit the length, and what is no JSON; after that, reading goes
//! on at the next line that begins with `{`.

use engine::error::Result;

use super::blocks::{Blocks, Common, Rounding};
use super::json::bad_at;
use super::pieces::{DEPTH, Pieces, Place, Stop, whole};
use super::problem::{Bad, quoted};
use super::requests::{Request, Requests, Segment};
use super::rows::{UNKNOWN_KEY, Watch};
use super::sink::{Event, Severity, Sink};
use super::source::Input;
use super::time::{TimeUnit, decimal_ns};
use super::walk;
use super::{Format, Head, Origin, Settings, Sniff, rows};

mod context;
mod element;

use context::Context;
use element::Element;

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "weka",
    doc: "Claude Code conversations with sub-agents and block hashes, as kv-cache-tester (WEKA) publishes them",
    spec: "https://github.com/callanjfox/kv-cache-tester",
    verified: true,
    sniff,
    read,
};

/// The block size of every published file.
const BLOCK: u32 = 64;

const TOTALS: Event = Event {
    severity: Severity::Notice,
    code: "totals_differ",
    advice: Some("the requests are kept as they are; the file's own sums may be those of a longer version"),
};
const MOVED: Event = Event { severity: Severity::Info, code: "ids_moved", advice: None };
const LATE: Event = Event {
    severity: Severity::Notice,
    code: "late_key",
    advice: Some("what a conversation says about itself after its requests cannot be applied to them"),
};

fn sniff(head: &Head<'_>) -> Sniff {
    let start = head.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head.bytes).trim_ascii_start();
    if head.directory || !start.starts_with(b"{") || !walk::has_keys(start, &["block_size", "requests"]) {
        return Sniff::No;
    }
    // A long first list may push the keys of a request out of the head, but not those before it.
    let missing: Vec<String> = ["id", "in", "out", "type"]
        .iter()
        .filter(|key| !walk::has_keys(start, &[key]))
        .map(|key| format!("`{key}`"))
        .collect();
    if missing.is_empty() {
        Sniff::Yes
    } else {
        Sniff::Nearly(format!("the object with `block_size` and `requests` lacks {}", missing.join(", ")))
    }
}

/// What a conversation says about itself.
#[derive(Debug, Default)]
struct Conversation {
    id: Option<String>,
    block: Option<u32>,
    global: Option<bool>,
    tool_tokens: Option<u32>,
    system_tokens: Option<u32>,
    totals: Option<Totals>,
}

/// The sums of a conversation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Totals {
    parent: [u64; 2],
    agents: [u64; 2],
    subagents: u64,
}

/// What the reader keeps between requests.
struct Reader<'l, 's, 'p> {
    pieces: Pieces<'l>,
    sink: &'s mut Sink<'p>,
    requests: Requests,
    watch: Watch,
    unit: TimeUnit,
    flag: Option<u32>,
    /// Block size and scope of the conversations so far; none in the list where they differ.
    blocks: Common,
    global: Option<bool>,
    /// Added to the ids of this conversation, and the first id that no conversation so far has.
    base: u64,
    free: u64,
    text: Vec<u8>,
    ids: Vec<u64>,
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    let lines = rows::lines(input.path, &mut input.body)?;
    let unit = input.options.time_unit.unwrap_or(TimeUnit::S);
    let mut reader = Reader {
        pieces: Pieces::new(input.path, lines)?,
        sink,
        requests: Requests::new(),
        watch: Watch::new(),
        unit,
        flag: input.options.block_tokens,
        blocks: Common::default(),
        global: None,
        base: 0,
        free: 0,
        text: Vec::new(),
        ids: Vec::new(),
    };
    while reader.pieces.peek()?.is_some() {
        match reader.conversation() {
            Ok(()) => {}
            Err(Stop::Failed(error)) => return Err(error),
            Err(Stop::Broken(problem)) => {
                reader.sink.found(1);
                reader.sink.reject(*problem)?;
                if !reader.pieces.resume()? {
                    break;
                }
            }
        }
    }
    reader.requests.flush(reader.sink)?;
    let flagged = input.options.time_unit.is_some() || input.options.block_tokens.is_some();
    Ok(Settings {
        time_unit: Some(unit.name()),
        clock: Some("trace_start"),
        block_tokens: reader.blocks.one(),
        rounding: Some("floor"),
        hash_scope: Some(if reader.global == Some(true) { "global" } else { "file" }),
        id_kind: Some("prefix"),
        origin: if flagged { Origin::Flag } else { Origin::Format },
    })
}

/// The sessions of a conversation: its own, or a sub-agent's.
struct Session {
    name: String,
    /// Added to the instants of its requests.
    start_ns: i64,
    context: Context,
    last: Option<u64>,
    turns: u32,
    agent: bool,
}

impl Session {
    fn new(name: String, agent: bool, start_ns: i64, parent: Option<u64>) -> Self {
        Self { name, start_ns, context: Context::default(), last: parent, turns: 0, agent }
    }
}

/// What takes a member of an object: the reader, the key, and where it stands.
type TakeMember<'f, R> = dyn FnMut(&mut R, &[u8], Place) -> std::result::Result<(), Stop> + 'f;

impl Reader<'_, '_, '_> {
    fn conversation(&mut self) -> std::result::Result<(), Stop> {
        let mut head = Conversation::default();
        let mut sums = None;
        self.base = self.free;
        self.watch = Watch::new();
        self.pieces.expect(b'{', "a JSON object")?;
        let begin = self.pieces.here();
        self.members(&mut |reader, key, place| {
            if key == b"requests" {
                if sums.is_some() {
                    return Err(reader.pieces.broken("duplicate_key", "`requests` once"));
                }
                sums = Some(reader.requests_of(&head, begin)?);
                return Ok(());
            }
            let at = reader.pieces.value(&mut reader.text)?;
            let found = whole(&reader.text, |scan| head.take(key, scan, &reader.text, sums.is_some()));
            match found {
                Ok(Known::Stored) => {}
                Ok(Known::Late) => {
                    let message = format!("the key {} stands after `requests`", quoted(key));
                    reader.sink.log(LATE, &message, Some(place.line), Some(place.offset));
                }
                Ok(Known::Unknown) => reader.unknown(key, place),
                Err(bad) => return Err(Stop::Broken(Box::new(reader.pieces.problem(&reader.text, at, bad)))),
            }
            Ok(())
        })?;
        let Some(sums) = sums else {
            return Err(self.pieces.broken("missing_key", "the key `requests`"));
        };
        if let Some(totals) = head.totals
            && totals != sums
        {
            let message = format!("`totals` says {}, the requests come to {}", totals.shown(), sums.shown());
            self.sink.log(TOTALS, &message, Some(begin.line), Some(begin.offset));
        }
        Ok(())
    }

    /// Reads the members of an object whose `{` is taken. `each` gets the key without quotes and must take the value.
    fn members(&mut self, each: &mut TakeMember<'_, Self>) -> std::result::Result<(), Stop> {
        if self.pieces.take(b'}')? {
            return Ok(());
        }
        let mut key = Vec::new();
        loop {
            let place = self.pieces.key(&mut key)?;
            each(self, &key[1..key.len() - 1], place)?;
            if !self.pieces.take(b',')? {
                return self.pieces.expect(b'}', "`,` or `}`");
            }
        }
    }

    fn unknown(&mut self, key: &[u8], place: Place) {
        let message = format!("the key {} is not part of the format", quoted(key));
        self.sink.log(UNKNOWN_KEY, &message, Some(place.line), Some(place.offset));
    }

    /// Reads the list of requests of a conversation.
    fn requests_of(&mut self, head: &Conversation, begin: Place) -> std::result::Result<Totals, Stop> {
        let Some(id) = &head.id else {
            return Err(self.pieces.broken("missing_key", "the key `id` before `requests`"));
        };
        let block = head.block.unwrap_or(BLOCK);
        if let Some(flag) = self.flag
            && flag != block
        {
            let message = format!("expected blocks of {flag} tokens, as the flag says, found `block_size` {block}");
            return Err(Stop::Failed(engine::error::Error::data(message)));
        }
        let global = head.global.unwrap_or(false);
        if self.global.is_some_and(|before| before != global) {
            let expected = "one `hash_id_scope` in a file, since ids of both cannot be told apart";
            return Err(self.pieces.broken("mixed_scopes", expected));
        }
        self.global = Some(global);
        self.blocks.add(block);
        if global {
            self.base = 0;
        } else if self.base > 0 {
            let message = "the block ids of a further conversation were moved behind those of the ones before";
            self.sink.log(MOVED, message, Some(begin.line), Some(begin.offset));
        }
        let blocks = Blocks { tokens: block, rounding: Rounding::Floor };
        let mut session = Session::new(id.clone(), false, 0, None);
        session.context.fixed = head.tool_tokens.zip(head.system_tokens);
        let mut sums = Totals::default();
        self.list(blocks, &mut session, &mut sums, 0)?;
        Ok(sums)
    }

    /// Reads a list of requests and sub-agents.
    fn list(
        &mut self,
        blocks: Blocks,
        session: &mut Session,
        sums: &mut Totals,
        depth: usize,
    ) -> std::result::Result<(), Stop> {
        if depth == DEPTH {
            return Err(self.pieces.broken("too_deep", "sub-agents less deep within each other"));
        }
        self.pieces.expect(b'[', "`requests` as a list")?;
        if self.pieces.take(b']')? {
            return Ok(());
        }
        loop {
            self.element(blocks, session, sums, depth)?;
            if !self.pieces.take(b',')? {
                return self.pieces.expect(b']', "`,` or `]`");
            }
        }
    }

    /// Reads a request or a sub-agent.
    fn element(
        &mut self,
        blocks: Blocks,
        session: &mut Session,
        sums: &mut Totals,
        depth: usize,
    ) -> std::result::Result<(), Stop> {
        self.pieces.peek()?;
        let begin = self.pieces.here();
        self.pieces.expect(b'{', "a request as an object")?;
        let mut element = Element::default();
        let mut agent: Option<Session> = None;
        let mut bad = None;
        self.ids.clear();
        let read = self.members(&mut |reader, key, place| {
            if key == b"requests" {
                let start_ns = session.start_ns.saturating_add(element.t.map_or(0, |(t, _)| t));
                let name = format!("{}/{}", session.name, element.agent_id.as_deref().unwrap_or("agent"));
                let mut inner = agent.take().unwrap_or_else(|| Session::new(name, true, start_ns, session.last));
                inner.context.hold();
                let read = reader.list(blocks, &mut inner, sums, depth + 1);
                agent = Some(inner);
                return read;
            }
            let at = reader.pieces.value(&mut reader.text)?;
            let taken = whole(&reader.text, |scan| {
                element.take(key, scan, &reader.text, blocks.most(), &mut reader.ids, reader.unit)
            });
            match taken {
                Ok(true) => {}
                Ok(false) => reader.unknown(key, place),
                // The first thing that is wrong names the request.
                Err(found) => {
                    bad.get_or_insert_with(|| reader.pieces.problem(&reader.text, at, found));
                }
            }
            Ok(())
        });
        if let Some(mut agent) = agent {
            // Also of a sub-agent that is cut: its whole requests are rows.
            sums.subagents += u64::from(read.is_ok());
            agent.context.fixed = element.tool_tokens.zip(element.system_tokens);
            agent.context.release(&mut self.requests);
            read?;
            if let Some(problem) = bad {
                self.sink.found(1);
                self.sink.reject(problem)?;
            }
            return Ok(());
        }
        read?;
        self.sink.found(1);
        let bad = bad.or_else(|| {
            let bad = element.check(blocks, self.ids.len()).err()?;
            Some(self.pieces.problem(b"{", begin, bad))
        });
        match bad {
            Some(problem) => Ok(self.sink.reject(problem)?),
            None => Ok(self.request(&element, blocks, session, sums, begin)?),
        }
    }

    fn request(
        &mut self,
        element: &Element,
        blocks: Blocks,
        session: &mut Session,
        sums: &mut Totals,
        begin: Place,
    ) -> Result<()> {
        let (input, output) = (element.input.unwrap_or(0), element.output.unwrap_or(0));
        let (t, exact) = element.t.unwrap_or((0, true));
        let arrival = session.start_ns.saturating_add(t);
        self.watch.time(self.sink, begin.line, begin.offset, (arrival, exact));
        self.watch.output(self.sink, begin.line, begin.offset, output);
        let segments = session.context.next(element, &self.ids, blocks, session.turns);
        for id in &mut self.ids {
            *id = id.saturating_add(self.base);
            self.free = self.free.max(id.saturating_add(1));
        }
        let request = Request {
            session_id: Some(&session.name),
            turn: Some(session.turns),
            parent: session.last,
            model: element.model.as_deref(),
            kind: if session.agent { Some("subagent") } else { element.kind.as_deref() },
            arrival_ns: Some(arrival),
            delay_ns: element.think_ns,
            prompt_tokens: input,
            output_tokens: output,
            block_tokens: Some(blocks.tokens),
            block_hashes: Some(&self.ids),
            measured_ttft_ns: element.ttft_ns,
            measured_e2e_ns: element.api_ns,
            ..Request::default()
        };
        let segments: Vec<Segment<'_>> = segments.iter().map(context::Piece::segment).collect();
        let id = self.requests.push(&request, &segments, self.sink)?;
        session.context.pushed(id);
        session.last = Some(id);
        session.turns = session.turns.saturating_add(1);
        let side = if session.agent { &mut sums.agents } else { &mut sums.parent };
        side[0] += u64::from(input);
        side[1] += u64::from(output);
        Ok(())
    }
}

/// What became of a key of a conversation.
enum Known {
    Stored,
    Late,
    Unknown,
}

impl Conversation {
    fn take<'a>(
        &mut self,
        key: &[u8],
        scan: &mut super::json::Scan<'a>,
        text: &'a [u8],
        late: bool,
    ) -> std::result::Result<Known, Bad> {
        match key {
            b"id" => self.id = Some(walk::text(scan, text, "`id`")?.into_owned()),
            b"block_size" => {
                let block = walk::tokens(scan, "`block_size`")?;
                if block == 0 {
                    return Err(bad_at(text, 0, "out_of_range", "`block_size` of at least 1"));
                }
                self.block = Some(block);
            }
            b"hash_id_scope" => {
                self.global = Some(match walk::text(scan, text, "`hash_id_scope`")?.as_ref() {
                    "global" => true,
                    "local" => false,
                    _ => return Err(bad_at(text, 0, "wrong_value", "`hash_id_scope` as `local` or `global`")),
                });
            }
            b"tool_tokens" => self.tool_tokens = walk::maybe_tokens(scan, "`tool_tokens`")?,
            b"system_tokens" => self.system_tokens = walk::maybe_tokens(scan, "`system_tokens`")?,
            b"totals" => {
                self.totals = Totals::read(scan)?;
                return Ok(Known::Stored);
            }
            // It repeats what each request says.
            b"models" => {
                scan.value()?;
                return Ok(Known::Stored);
            }
            _ => {
                scan.value()?;
                return Ok(Known::Unknown);
            }
        }
        Ok(if late { Known::Late } else { Known::Stored })
    }
}

impl Totals {
    /// None if it is null or lacks one of the sums.
    fn read(scan: &mut super::json::Scan<'_>) -> std::result::Result<Option<Self>, Bad> {
        let (mut parent, mut agents, mut subagents) = (None, None, None);
        if walk::null(scan)? {
            return Ok(None);
        }
        walk::object(scan, "`totals` as an object", &mut |scan, key, _| {
            match key {
                b"parent_tokens" => parent = pair(scan)?,
                b"subagent_tokens" => agents = pair(scan)?,
                b"subagent_count" => subagents = Some(scan.whole("`subagent_count`")?),
                _ => scan.value()?,
            }
            Ok(())
        })?;
        Ok(match (parent, agents, subagents) {
            (Some(parent), Some(agents), Some(subagents)) => Some(Self { parent, agents, subagents }),
            _ => None,
        })
    }

    fn shown(&self) -> String {
        let Self { parent, agents, subagents } = self;
        format!(
            "{} tokens in and {} out, {} in and {} out of {subagents} sub-agents",
            parent[0], parent[1], agents[0], agents[1]
        )
    }
}

fn pair(scan: &mut super::json::Scan<'_>) -> std::result::Result<Option<[u64; 2]>, Bad> {
    let (mut input, mut output) = (None, None);
    walk::object(scan, "`input` and `output` as an object", &mut |scan, key, _| {
        match key {
            b"input" => input = Some(scan.whole("`input`")?),
            b"output" => output = Some(scan.whole("`output`")?),
            _ => scan.value()?,
        }
        Ok(())
    })?;
    Ok(input.zip(output).map(|(input, output)| [input, output]))
}

/// Seconds, perhaps before the start, as nanoseconds, and whether they were exact.
fn instant(
    scan: &mut super::json::Scan<'_>,
    text: &[u8],
    name: &str,
    unit: TimeUnit,
) -> std::result::Result<(i64, bool), Bad> {
    let at = scan.at();
    let token = scan.number(&format!("{name} as a number"))?;
    let size = decimal_ns(token.strip_prefix(b"-").unwrap_or(token), unit).ok_or_else(|| {
        bad_at(text, at, "out_of_range", format!("{name} in {} within 2^63 nanoseconds", unit.name()))
    })?;
    Ok(if token.first() == Some(&b'-') { (-size.0, size.1) } else { size })
}

#[cfg(test)]
mod tests;
