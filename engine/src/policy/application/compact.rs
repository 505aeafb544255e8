//! `compact`: when the context is long, a summary takes the place of the conversation.
//!
//! When a turn comes that would exceed the limit, one extra request is sent first, with the whole history and an instruction,
//! and generates the summary; the turn is sent when that has ended, so that the summary's time is part of the turn's time to
//! first token. Claude Code compacts at the same place, before the next request (POLICIES 5.1). The turn then holds tools,
//! system and memory, the summary, the newest short tool results again (a file that is too long comes back as its path
//! only), and what is new in it. The prefix breaks behind tools, system and memory: what stands there is computed anew, and
//! later turns share it. A summary that would not make the context shorter is not asked for, and one that is not shorter
//! than the limit is refused, since every turn would ask for another.
//!
//! The limit of 167,000 tokens is that of Claude Code for a window of 200,000 as third parties found it, and agrees with a
//! logged one (POLICIES 5.1); lengths of summary and instruction are assumed. Up to five files of at most 5,000 tokens come
//! back according to its documents; tool results stand for files here, as far as the trace tells which pieces are some.

use std::collections::BTreeSet;

use super::{Draft, Edit, Fate, Form, Kind, Piece, REWRITES, rewrite};
use crate::error::{Error, Result};
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};

pub(in crate::policy) static KIND: Stage = Stage {
    name: "compact",
    doc: "Above a length of the context, a summary takes the place of the conversation so far, for one extra request that the \
          turn waits for; the prefix breaks behind tools, system and memory.",
    floor: Floor::Application,
    params: &[
        Param {
            name: "at",
            default: "167k",
            doc: "Length of the prompt above which it is compacted, in tokens; assumed.",
        },
        Param { name: "summary", default: "8k", doc: "Tokens of the summary; assumed." },
        Param { name: "files", default: "5", doc: "How many of the newest tool results come back." },
        Param { name: "file", default: "5k", doc: "Tokens of the longest result that does." },
        Param { name: "prompt", default: "500", doc: "Tokens of the instruction of the extra request; assumed." },
    ],
    needs: &[],
    source: "Claude Code, auto-compact, POLICIES 5.1 and 5.2; limits by third parties",
    deployment: REWRITES,
    make: |args| {
        Settings::of(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

struct Settings {
    at: u32,
    summary: u32,
    files: usize,
    file: u32,
    prompt: u32,
}

impl Settings {
    fn of(args: &Args) -> Result<Self> {
        let most = u32::MAX;
        let (at, summary) = (args.count("at", 1, most)?, args.count("summary", 1, 10_000_000)?);
        if summary >= at {
            return Err(Error::usage(format!(
                "`compact`: a summary of {summary} tokens is not shorter than the {at} above which a prompt is compacted, so \
                 every turn would be compacted again"
            ))
            .hint("`summary` must be less than `at`: lower the one or raise the other"));
        }
        Ok(Self {
            at,
            summary,
            files: args.count("files", 0, 10_000)? as usize,
            file: args.count("file", 0, most)?,
            prompt: args.count("prompt", 0, 10_000_000)?,
        })
    }
}

/// What a session's conversation was replaced by.
#[derive(Default)]
struct State {
    /// What the summary tells of.
    gone: BTreeSet<u32>,
    /// The summary and what came back behind it.
    instead: Vec<Piece>,
}

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let settings = Settings::of(args)?;
    rewrite(trace, |state: &mut State, draft| {
        replace(draft, state);
        if draft.tokens() > settings.at {
            compact(draft, state, &settings);
        }
        Ok(())
    })
}

/// Puts the summary where the first piece stood that it tells of.
fn replace(draft: &mut Draft<'_>, state: &State) {
    let Some(first) = draft.pieces.iter().position(|piece| state.gone.contains(&piece.content)) else { return };
    let mut pieces = draft.pieces[..first].to_vec();
    pieces.extend_from_slice(&state.instead);
    pieces.extend(draft.pieces[first..].iter().filter(|piece| !state.gone.contains(&piece.content)));
    draft.pieces = pieces;
}

fn compact(draft: &mut Draft<'_>, state: &mut State, settings: &Settings) {
    let (head, all) = (draft.head(), draft.tokens());
    let past: Vec<Piece> = draft.pieces[head..].iter().filter(|piece| draft.is_past(piece)).copied().collect();
    let mut back: Vec<Piece> = past
        .iter()
        .rev()
        .filter(|piece| draft.kind(piece) == Kind::ToolResult && piece.form == Form::Verbatim)
        .filter(|piece| piece.tokens <= settings.file)
        .take(settings.files)
        .copied()
        .collect();
    back.reverse();
    let instead = settings.summary.saturating_add(crate::session::tokens(&back));
    if instead >= crate::session::tokens(&past) {
        return;
    }
    let mut asked: Vec<Piece> = draft.pieces[..head].to_vec();
    asked.extend_from_slice(&past);
    let summary = draft.summarise(asked, settings.prompt, settings.summary);
    let is_back = |content: u32| back.iter().any(|piece| piece.content == content);
    draft.mark(past.iter().map(|piece| piece.content).filter(|content| !is_back(*content)), Fate::Summarised);
    let gone: BTreeSet<u32> = past.iter().map(|piece| piece.content).collect();
    draft.pieces.retain(|piece| !gone.contains(&piece.content));
    state.gone.extend(gone);
    state.instead = std::iter::once(summary).chain(back).collect();
    let at = head.min(draft.pieces.len());
    draft.pieces.splice(at..at, state.instead.iter().copied());
    debug_assert!(draft.tokens() < all);
    draft.action = Some("compacted");
}
