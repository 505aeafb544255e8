//! `consolidate`: an offline request over the transcripts of earlier sessions rewrites the memory that later ones load.
//!
//! When a session begins and enough sessions ended and enough time passed since the last time, one extra request reads
//! their last contexts, as far as it can, and writes the index anew. Sessions from then on load that index, which is no
//! longer than before, and shorter topics; their prefix breaks there once. It is work between sessions: no turn waits for the
//! request, though its place on the clock is the beginning of the session that first loads what it wrote. Gates of five sessions and 24 hours are those
//! that third parties describe of Claude Code (POLICIES 5.1); how much shorter the memory gets is assumed. Sub-agents load
//! no memory.

use super::{Edit, Kind, Piece, REWRITES, Role, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};
use crate::session::Trace;

pub(in crate::policy) static KIND: Stage = Stage {
    name: "consolidate",
    doc: "Between sessions an offline request over their transcripts rewrites the memory that later sessions load.",
    floor: Floor::Application,
    params: &[
        Param { name: "sessions", default: "5", doc: "Sessions that must have ended since the last time; assumed." },
        Param { name: "hours", default: "24", doc: "Hours that must have passed since the last time; assumed." },
        Param {
            name: "index",
            default: "6k",
            doc: "Tokens of the index that is written, at most what it was; assumed.",
        },
        Param { name: "topics", default: "50%", doc: "Share of the topics' tokens that is left; assumed." },
        Param { name: "read", default: "150k", doc: "Tokens of transcripts that the request can read; assumed." },
    ],
    needs: &[],
    source: "third-party descriptions of Claude Code, POLICIES 5.1",
    deployment: REWRITES,
    make: |args| {
        Settings::of(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

struct Settings {
    sessions: usize,
    pause_ns: i64,
    index: u32,
    topics: f64,
    read: u32,
}

impl Settings {
    fn of(args: &Args) -> Result<Self> {
        Ok(Self {
            sessions: args.count("sessions", 1, 1_000_000)? as usize,
            pause_ns: i64::from(args.count("hours", 0, 1_000_000)?) * 3_600_000_000_000,
            index: args.count("index", 1, 10_000_000)?,
            topics: args.share("topics")?,
            read: args.count("read", 1, u32::MAX)?,
        })
    }
}

/// The memory as it was written last.
#[derive(Default)]
struct Memory {
    /// When, ns; the beginning of the trace at first.
    at_ns: i64,
    /// Content of the index, once one was written.
    index: Option<u32>,
}

/// What a session loads.
#[derive(Default)]
struct State {
    index: Option<u32>,
}

fn apply(args: &Args, trace: &Trace) -> Result<super::Changed> {
    let settings = Settings::of(args)?;
    let ends = ends_of(trace);
    let mut memory = Memory::default();
    rewrite(trace, |state: &mut State, draft| {
        let now = draft.turn.arrival_ns;
        if trace.sessions[draft.turn.session as usize].parent.is_some() {
            return Ok(());
        }
        if draft.turn.turn == 0 {
            let over = ends.iter().filter(|end| end.0 < now && end.0 >= memory.at_ns);
            let read = over.clone().fold(0_u32, |sum, end| sum.saturating_add(end.1)).min(settings.read);
            if over.count() >= settings.sessions && now.saturating_sub(memory.at_ns) >= settings.pause_ns && read > 0 {
                let transcripts = draft.add(Kind::History, read);
                draft.extra.push((Role::Consolidation, vec![transcripts], settings.index));
                memory = Memory { at_ns: now, index: Some(draft.add(Kind::MemoryIndex, settings.index).content) };
                draft.action = Some("consolidated the memory");
            }
            state.index = memory.index;
        }
        let Some(index) = state.index else { return Ok(()) };
        let contents = &*draft.contents;
        let shorter = |piece: &Piece| match contents[piece.content as usize].kind {
            Kind::MemoryIndex => Piece { content: index, tokens: piece.tokens.min(settings.index), ..*piece },
            // Rounded down, as a topic of no tokens is no topic.
            Kind::Topic => Piece { tokens: (f64::from(piece.tokens) * settings.topics) as u32, ..*piece },
            _ => *piece,
        };
        draft.pieces = draft.pieces.iter().map(shorter).filter(|piece| piece.tokens > 0).collect();
        Ok(())
    })
}

/// Arrival and tokens of the last turn of each session that is no sub-agent's, in order of time.
fn ends_of(trace: &Trace) -> Vec<(i64, u32)> {
    let mut last: Vec<Option<usize>> = vec![None; trace.sessions.len()];
    for (at, turn) in trace.turns.iter().enumerate() {
        last[turn.session as usize] = Some(at);
    }
    let own = last.iter().zip(&trace.sessions).filter(|(_, session)| session.parent.is_none());
    let mut ends: Vec<(i64, u32)> = own
        .filter_map(|(last, _)| {
            let turn = &trace.turns[(*last)?];
            Some((turn.arrival_ns, trace.prompt((*last)?).saturating_add(turn.output)))
        })
        .collect();
    ends.sort_unstable();
    ends
}
