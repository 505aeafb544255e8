//! `index_memory`: of a memory only a short index is loaded; topics are read when they are asked for.
//!
//! As Claude Code does it with MEMORY.md (POLICIES 5.1): the first 200 lines or 25 KB of it, whichever is less, are in the
//! prefix, and topic files are not. A topic that the trace loads in the first turn is taken out; one that a later turn
//! reads stays where it is read. Bytes per line and per token are assumed.

use std::collections::BTreeSet;

use super::{Edit, IN_CLIENT, Kind, Piece, rewrite};
use crate::error::Result;
use crate::policy::{Args, Floor, Kind as Stage, Param, Rule};
use crate::session::Fate;

pub(in crate::policy) static KIND: Stage = Stage {
    name: "index_memory",
    doc: "Of a memory only the first lines of its index are loaded, and topics only in the turn that reads them.",
    floor: Floor::Application,
    params: &[
        Param { name: "lines", default: "200", doc: "Lines of the index that are loaded." },
        Param { name: "bytes", default: "25KB", doc: "Bytes of it that are loaded, if that is less." },
        Param { name: "line", default: "100", doc: "Bytes of a line; assumed." },
        Param { name: "token", default: "4", doc: "Bytes of a token; assumed." },
    ],
    needs: &[],
    source: "Claude Code, memory documents, POLICIES 5.1",
    deployment: IN_CLIENT,
    make: |args| {
        loaded_tokens(args)?;
        Ok(Rule::Edit(Edit { apply }))
    },
};

/// Tokens of the index that are loaded.
pub(super) fn loaded_tokens(args: &Args) -> Result<u32> {
    let lines = u64::from(args.count("lines", 0, u32::MAX)?) * u64::from(args.count("line", 1, 1_000_000)?);
    let bytes = args.bytes("bytes")?.min(lines);
    Ok(u32::try_from(bytes / u64::from(args.count("token", 1, 1_000)?)).unwrap_or(u32::MAX))
}

fn apply(args: &Args, trace: &crate::session::Trace) -> Result<super::Changed> {
    let loaded = loaded_tokens(args)?;
    rewrite(trace, |cut: &mut BTreeSet<u32>, draft| {
        let mut left = loaded;
        let mut gone = Vec::new();
        let mut kept = Vec::with_capacity(draft.pieces.len());
        for piece in &draft.pieces {
            let content = draft.content(piece);
            let taken = match content.kind {
                Kind::MemoryIndex => piece.tokens.min(left),
                Kind::Topic if content.born == 0 => 0,
                _ => piece.tokens,
            };
            if content.kind == Kind::MemoryIndex {
                left -= taken;
            }
            if taken < piece.tokens {
                gone.push(piece.content);
            }
            if taken > 0 {
                kept.push(Piece { tokens: taken, ..*piece });
            }
        }
        draft.pieces = kept;
        if gone.iter().filter(|content| cut.insert(**content)).count() > 0 {
            draft.action = Some("loaded the index only");
        }
        draft.mark(gone, Fate::Recallable);
        Ok(())
    })
}
