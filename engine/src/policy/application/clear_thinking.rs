//! `clear_thinking`: what the model thought in earlier turns is taken out.
//!
//! As the Claude API does it with `clear_thinking_20251015` (POLICIES 5.1), whose default keeps the newest turn with
//! thinking. Each turn that adds thinking takes the one before out, so that the prefix breaks there. Thinking inside a
//! turn of kind `unknown` cannot be told apart and stays.

use std::collections::BTreeSet;

use super::{Edit, Kind, REWRITES, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};
use crate::session::Fate;

pub(in crate::policy) static KIND: Stage = Stage {
    name: "clear_thinking",
    doc: "What the model thought is taken out, but for the newest turns that have any.",
    floor: Floor::Application,
    params: &[Param { name: "keep", default: "1", doc: "How many of the newest turns keep their thinking." }],
    needs: &[],
    source: "Claude API, context editing `clear_thinking_20251015`, POLICIES 5.1",
    deployment: REWRITES,
    make: |args| {
        args.count("keep", 0, u32::MAX)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let keep = args.count("keep", 0, u32::MAX)? as usize;
    rewrite(trace, |cleared: &mut BTreeSet<u32>, draft| {
        let thinking = draft.pieces.iter().filter(|piece| draft.kind(piece) == Kind::Thinking);
        let mut born: Vec<u32> = thinking.map(|piece| draft.content(piece).born).collect();
        born.sort_unstable();
        born.dedup();
        let Some(first) = born.len().checked_sub(keep).filter(|old| *old > 0) else { return Ok(()) };
        let oldest_kept = born.get(first).copied().unwrap_or(u32::MAX);
        let goes = |at: usize| {
            let content = draft.content(&draft.pieces[at]);
            content.kind == Kind::Thinking && content.born < oldest_kept
        };
        let gone: Vec<u32> =
            (0..draft.pieces.len()).filter(|at| goes(*at)).map(|at| draft.pieces[at].content).collect();
        let contents = &*draft.contents;
        draft.pieces.retain(|piece| {
            let content = &contents[piece.content as usize];
            content.kind != Kind::Thinking || content.born >= oldest_kept
        });
        if gone.iter().filter(|content| cleared.insert(**content)).count() > 0 {
            draft.action = Some("took thinking out");
        }
        draft.mark(gone, Fate::Lost);
        Ok(())
    })
}
