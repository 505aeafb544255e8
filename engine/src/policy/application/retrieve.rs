//! `retrieve`: of the passages that a turn brings in, only the first few are.
//!
//! Passages stand in the order of their rank, which is how retrieval puts them; a trace does not say so. Passages that
//! earlier turns brought in stay as they were chosen then.

use std::collections::{BTreeSet, HashMap};

use super::{Edit, IN_CLIENT, Kind, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};
use crate::session::Fate;

pub(in crate::policy) static KIND: Stage = Stage {
    name: "retrieve",
    doc: "Of the passages that a turn brings in, only the first few enter the context.",
    floor: Floor::Application,
    params: &[Param { name: "top", default: "5", doc: "How many passages of each turn; assumed." }],
    needs: &[],
    source: "retrieval-augmented generation with a fixed number of passages; RAGPulse names them",
    deployment: IN_CLIENT,
    make: |args| {
        args.count("top", 0, u32::MAX)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let top = args.count("top", 0, u32::MAX)?;
    rewrite(trace, |left_out: &mut BTreeSet<u32>, draft| {
        let mut seen: HashMap<u32, u32> = HashMap::new();
        let mut gone = Vec::new();
        let contents = &*draft.contents;
        draft.pieces.retain(|piece| {
            let content = &contents[piece.content as usize];
            if content.kind != Kind::Passage {
                return true;
            }
            let rank = seen.entry(content.born).or_default();
            *rank += 1;
            if *rank > top {
                gone.push(piece.content);
            }
            *rank <= top
        });
        if gone.iter().filter(|content| left_out.insert(**content)).count() > 0 {
            draft.action = Some("left passages out");
        }
        draft.mark(gone, Fate::Recallable);
        Ok(())
    })
}
