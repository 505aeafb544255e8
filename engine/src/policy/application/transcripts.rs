//! `transcripts`: history moves out of the context into records that can be asked for.
//!
//! When the context is long, all but the newest turns move out, each leaving a line in an index. From then on some turns
//! ask for one of them: an extra request calls for it, and the record stands in the context from that turn on, before what
//! is new. A trace cannot tell how often an agent would ask for what it still had in its context, so that the share of
//! turns that do is an assumption, and so are the lengths.

use std::collections::HashMap;

use super::collapse::replace;
use super::{Draft, Edit, Fate, Form, Kind, Piece, REWRITES, Role, rewrite};
use crate::error::{Error, Result};
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};

pub(in crate::policy) static KIND: Stage = Stage {
    name: "transcripts",
    doc: "Above a length of the context, all but the newest turns move out into records that later turns ask for.",
    floor: Floor::Application,
    params: &[
        Param { name: "at", default: "100k", doc: "Length of the prompt above which turns move out; assumed." },
        Param { name: "keep", default: "40k", doc: "Tokens of the newest turns that stay; assumed." },
        Param { name: "line", default: "20", doc: "Tokens that a turn leaves in the index; assumed." },
        Param { name: "recall", default: "10%", doc: "Share of later turns that ask for a record; assumed." },
        Param { name: "record", default: "2k", doc: "Tokens of a record that come back at most; assumed." },
        Param { name: "query", default: "50", doc: "Tokens that the model generates to ask; assumed." },
    ],
    needs: &[],
    source: "kvtoll's own form of history as queryable records, after session memory in POLICIES 5.1",
    deployment: REWRITES,
    make: |args| {
        Settings::of(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

struct Settings {
    at: u32,
    keep: u32,
    line: u32,
    recall: f64,
    record: u32,
    query: u32,
}

impl Settings {
    fn of(args: &Args) -> Result<Self> {
        let most = u32::MAX;
        let (at, keep) = (args.count("at", 1, most)?, args.count("keep", 0, most)?);
        if keep >= at {
            return Err(Error::usage(format!(
                "`transcripts`: of a prompt just above {at} tokens the newest {keep} stay, so that nothing would move out"
            ))
            .hint("`keep` must be less than `at`: lower the one or raise the other"));
        }
        Ok(Self {
            at,
            keep,
            line: args.count("line", 1, 1_000_000)?,
            recall: args.share("recall")?,
            record: args.count("record", 1, most)?,
            query: args.count("query", 1, 10_000_000)?,
        })
    }
}

#[derive(Default)]
struct State {
    /// The line of the index for each content that moved out.
    lines: HashMap<u32, Piece>,
    /// What moved out and was not asked for yet, the newest last.
    moved: Vec<Piece>,
    /// What came back, and in which turn.
    back: Vec<(u32, Piece)>,
    /// Recalls that are due.
    due: f64,
}

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let settings = Settings::of(args)?;
    rewrite(trace, |state: &mut State, draft| {
        replace(draft, &state.lines);
        for (turn, piece) in &state.back {
            insert(draft, *turn, *piece);
        }
        if draft.tokens() > settings.at {
            move_out(draft, state, &settings);
        } else if !state.moved.is_empty() {
            recall(draft, state, &settings);
        }
        Ok(())
    })
}

/// Puts a piece before what this turn and later ones brought in.
fn insert(draft: &mut Draft<'_>, turn: u32, piece: Piece) {
    let is_later = |other: &Piece| draft.content(other).born >= turn && !draft.kind(other).is_head();
    let at = draft.pieces.iter().position(is_later).unwrap_or(draft.pieces.len());
    draft.pieces.insert(at, piece);
}

fn move_out(draft: &mut Draft<'_>, state: &mut State, settings: &Settings) {
    let mut left = settings.keep;
    let mut out: Vec<Piece> = Vec::new();
    for piece in draft.pieces.iter().rev() {
        let is_line = draft.kind(piece) == Kind::Summary;
        if !draft.is_past(piece) || piece.form != Form::Verbatim || is_line {
            continue;
        }
        if out.is_empty() && piece.tokens <= left {
            left -= piece.tokens;
        } else {
            out.push(*piece);
        }
    }
    out.reverse();
    let mut born: Vec<u32> = out.iter().map(|piece| draft.content(piece).born).collect();
    born.sort_unstable();
    born.dedup();
    let index = u64::from(settings.line) * born.len() as u64;
    if index >= u64::from(crate::session::tokens(&out)) {
        return;
    }
    let line = draft.add(Kind::Summary, index as u32);
    state.back.retain(|(_, piece)| !out.contains(piece));
    state.lines.extend(out.iter().map(|piece| (piece.content, line)));
    draft.mark(out.iter().map(|piece| piece.content), Fate::Recallable);
    replace(draft, &state.lines);
    state.moved.extend(out);
    draft.action = Some("moved turns into transcripts");
}

fn recall(draft: &mut Draft<'_>, state: &mut State, settings: &Settings) {
    state.due += settings.recall;
    if state.due < 1.0 {
        return;
    }
    let Some(piece) = state.moved.pop() else { return };
    state.due -= 1.0;
    // The record is a text of its own: it stands elsewhere and may be shorter.
    let record = draft.add(draft.kind(&piece), piece.tokens.min(settings.record));
    draft.extra.push((Role::Recall, draft.pieces.clone(), settings.query));
    insert(draft, draft.turn.turn, record);
    state.back.push((draft.turn.turn, record));
    draft.action = Some("recalled a record");
}
