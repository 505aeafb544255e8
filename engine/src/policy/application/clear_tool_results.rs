//! `clear_tool_results`: when the context is long, old tool results give way to short notes.
//!
//! As the Claude API does it with `clear_tool_uses_20250919` (POLICIES 5.1): above the trigger all results but the newest
//! few go, oldest first; the prefix breaks at the first of them. Defaults of trigger and keep come from a client library's
//! documents; the length of a note is assumed. Results inside a turn of kind `unknown` cannot be told apart and stay.

use std::collections::BTreeSet;

use super::{Draft, Edit, Form, Kind, Piece, REWRITES, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};
use crate::session::Fate;

pub(in crate::policy) static KIND: Stage = Stage {
    name: "clear_tool_results",
    doc: "Above a length of the context, tool results but the newest give way to short notes.",
    floor: Floor::Application,
    params: &[
        Param {
            name: "trigger",
            default: "100k",
            doc: "Length of the prompt above which results are cleared, in tokens.",
        },
        Param { name: "keep", default: "3", doc: "How many of the newest results stay." },
        Param { name: "least", default: "0", doc: "Tokens that a clearing must free, or it is not done." },
        Param { name: "note", default: "10", doc: "Tokens of the note in place of a result; assumed." },
    ],
    needs: &[],
    source: "Claude API, context editing `clear_tool_uses_20250919`, POLICIES 5.1; defaults from a client library",
    deployment: REWRITES,
    make: |args| {
        settings(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

/// Trigger, keep, least, note.
fn settings(args: &Args) -> Result<(u32, usize, u32, u32)> {
    let most = u32::MAX;
    Ok((
        args.count("trigger", 0, most)?,
        args.count("keep", 0, most)? as usize,
        args.count("least", 0, most)?,
        args.count("note", 1, most)?,
    ))
}

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let (trigger, keep, least, note) = settings(args)?;
    rewrite(trace, |cleared: &mut BTreeSet<u32>, draft| {
        replace(draft, cleared, note);
        if draft.tokens() > trigger && clear(draft, cleared, keep, (least, note)) {
            draft.action = Some("cleared tool results");
        }
        Ok(())
    })
}

/// Clears all results but the newest `keep`, if that frees enough.
pub(super) fn clear(
    draft: &mut Draft<'_>,
    cleared: &mut BTreeSet<u32>,
    keep: usize,
    (least, note): (u32, u32),
) -> bool {
    let is_result = |piece: &&Piece| draft.kind(piece) == Kind::ToolResult && piece.form == Form::Verbatim;
    let mut results: Vec<(u32, u32)> = Vec::new();
    for piece in draft.pieces.iter().filter(is_result) {
        match results.last_mut() {
            Some((content, tokens)) if *content == piece.content => *tokens = tokens.saturating_add(piece.tokens),
            _ => results.push((piece.content, piece.tokens)),
        }
    }
    let old = &results[..results.len().saturating_sub(keep)];
    let freed: u32 = old.iter().fold(0, |sum, (_, tokens)| sum.saturating_add(tokens.saturating_sub(note)));
    if freed == 0 || freed < least {
        return false;
    }
    let gone = || old.iter().filter(|(_, tokens)| *tokens > note).map(|(content, _)| *content);
    cleared.extend(gone());
    draft.mark(gone(), Fate::Recallable);
    replace(draft, cleared, note);
    true
}

/// Puts notes in place of what was cleared.
pub(super) fn replace(draft: &mut Draft<'_>, cleared: &BTreeSet<u32>, note: u32) {
    for piece in &mut draft.pieces {
        if piece.form == Form::Verbatim && piece.tokens > note && cleared.contains(&piece.content) {
            *piece = Piece { start: 0, tokens: note, form: Form::Placeholder, ..*piece };
        }
    }
}
