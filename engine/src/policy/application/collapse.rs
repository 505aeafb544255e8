//! `collapse`: a stretch of old turns becomes a short record; the prefix before it stays valid.
//!
//! When the context is long, the oldest turns that are still whole and not among the newest few give way to one record,
//! stretch by stretch. What stands before the stretch keeps its place, and so its cache; what stands behind it is computed
//! again. An extra request, whose prompt ends with the stretch, writes the record. No reliable description of such a
//! feature exists (POLICIES 5.1): the form is kvtoll's own, and all its numbers are assumed.

use std::collections::HashMap;

use super::{Draft, Edit, Fate, Form, Kind, Piece, REWRITES, rewrite};
use crate::error::{Error, Result};
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};

pub(in crate::policy) static KIND: Stage = Stage {
    name: "collapse",
    doc: "Above a length of the context, a stretch of old turns becomes a short record, and the prefix before it stays valid.",
    floor: Floor::Application,
    params: &[
        Param { name: "at", default: "120k", doc: "Length of the prompt above which a stretch is collapsed; assumed." },
        Param { name: "stretch", default: "40k", doc: "Tokens of a stretch at least; assumed." },
        Param { name: "record", default: "1k", doc: "Tokens of its record; assumed." },
        Param { name: "keep", default: "5", doc: "How many of the newest turns stay whole; assumed." },
        Param { name: "prompt", default: "500", doc: "Tokens of the instruction of the extra request; assumed." },
    ],
    needs: &[],
    source: "kvtoll's own form of what is called context collapse, POLICIES 5.1",
    deployment: REWRITES,
    make: |args| {
        Settings::of(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

struct Settings {
    at: u32,
    stretch: u32,
    record: u32,
    keep: u32,
    prompt: u32,
}

impl Settings {
    fn of(args: &Args) -> Result<Self> {
        let most = u32::MAX;
        let (at, stretch) = (args.count("at", 1, most)?, args.count("stretch", 1, most)?);
        let record = args.count("record", 1, 10_000_000)?;
        if record >= stretch {
            return Err(Error::usage(format!(
                "`collapse`: a record of {record} tokens is not shorter than the stretch of {stretch} in whose place it stands"
            ))
            .hint("`record` must be less than `stretch`: lower the one or raise the other"));
        }
        if stretch > at {
            return Err(Error::usage(format!(
                "`collapse`: a prompt just above {at} tokens holds no stretch of {stretch}, so `at` would mean nothing"
            ))
            .hint("`stretch` must be at most `at`: lower the one or raise the other"));
        }
        Ok(Self {
            at,
            stretch,
            record,
            keep: args.count("keep", 0, most)?,
            prompt: args.count("prompt", 0, 10_000_000)?,
        })
    }
}

/// The record that tells of each collapsed content.
type State = HashMap<u32, Piece>;

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let settings = Settings::of(args)?;
    rewrite(trace, |state: &mut State, draft| {
        replace(draft, state);
        while draft.tokens() > settings.at && collapse(draft, state, &settings) {
            draft.action = Some("collapsed a stretch");
        }
        Ok(())
    })
}

/// Puts each record where the first piece stood that it tells of.
pub(super) fn replace(draft: &mut Draft<'_>, state: &State) {
    if !draft.pieces.iter().any(|piece| state.contains_key(&piece.content)) {
        return;
    }
    let mut pieces: Vec<Piece> = Vec::with_capacity(draft.pieces.len());
    for piece in &draft.pieces {
        match state.get(&piece.content) {
            None => pieces.push(*piece),
            Some(record) if pieces.contains(record) => {}
            Some(record) => pieces.push(*record),
        }
    }
    draft.pieces = pieces;
}

fn collapse(draft: &mut Draft<'_>, state: &mut State, settings: &Settings) -> bool {
    let newest = draft.turn.turn.saturating_sub(settings.keep);
    let mut stretch: Vec<Piece> = Vec::new();
    let mut sum = 0_u32;
    let mut end = 0;
    for (at, piece) in draft.pieces.iter().enumerate() {
        let content = draft.content(piece);
        let is_old = draft.is_past(piece) && content.born < newest && content.kind != Kind::Summary;
        if is_old && piece.form == Form::Verbatim && sum < settings.stretch {
            stretch.push(*piece);
            sum = sum.saturating_add(piece.tokens);
            end = at + 1;
        } else if !stretch.is_empty() {
            break;
        }
    }
    if sum < settings.stretch || sum <= settings.record {
        return false;
    }
    let record = draft.summarise(draft.pieces[..end].to_vec(), settings.prompt, settings.record);
    state.extend(stretch.iter().map(|piece| (piece.content, record)));
    draft.mark(stretch.iter().map(|piece| piece.content), Fate::Summarised);
    replace(draft, state);
    true
}
