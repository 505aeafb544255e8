//! `microcompact`: after a long pause old tool results give way to short notes.
//!
//! The prompt cache is cold by then, so that the broken prefix costs nothing. Third parties describe it of Claude Code
//! (POLICIES 5.1: after more than 60 minutes old results become a fixed text); pause, how many results stay and the length
//! of the note are assumed. The variant that edits a server's cache without breaking the prefix is not modelled.

use std::collections::BTreeSet;

use super::clear_tool_results::{clear, replace};
use super::{Edit, REWRITES, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};

pub(in crate::policy) static KIND: Stage = Stage {
    name: "microcompact",
    doc: "After a pause, tool results but the newest give way to short notes.",
    floor: Floor::Application,
    params: &[
        Param { name: "idle", default: "60min", doc: "The pause, such as `60min`, `300s` or `2h`; assumed." },
        Param { name: "keep", default: "3", doc: "How many of the newest results stay; assumed." },
        Param { name: "note", default: "10", doc: "Tokens of the note in place of a result; assumed." },
    ],
    needs: &[],
    source: "third-party descriptions of Claude Code, POLICIES 5.1",
    deployment: REWRITES,
    make: |args| {
        settings(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

/// Pause in ns, keep, note.
fn settings(args: &Args) -> Result<(i64, usize, u32)> {
    Ok((args.duration_ns("idle")?, args.count("keep", 0, u32::MAX)? as usize, args.count("note", 1, u32::MAX)?))
}

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let (idle, keep, note) = settings(args)?;
    rewrite(trace, |cleared: &mut BTreeSet<u32>, draft| {
        replace(draft, cleared, note);
        if draft.turn.idle_ns.is_some_and(|pause| pause > idle) && clear(draft, cleared, keep, (0, note)) {
            draft.action = Some("cleared tool results after a pause");
        }
        Ok(())
    })
}
