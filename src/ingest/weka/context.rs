//! What the prompts of a session are made of, as far as the file tells.

use super::super::blocks::Blocks;
use super::super::requests::{Requests, Segment};
use super::Element;

/// The most requests whose segments wait for the end of their sub-agent.
const HELD: usize = 1 << 16;

/// A piece of a prompt, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: &'static str,
    pub(super) tokens: u32,
    pub(super) born_turn: Option<u32>,
}

impl Piece {
    pub(super) fn segment(&self) -> Segment<'static> {
        Segment { id: None, kind: self.kind, tokens: self.tokens, born_turn: self.born_turn }
    }
}

/// A prompt before tools and system are told apart: how it divides, in tokens.
#[derive(Debug, Clone, Copy)]
struct Division {
    input: u32,
    /// Shared with the request before, by block ids.
    shared: u32,
    /// The reply before it, in the part that is not shared.
    reply: u32,
    /// The kind of the rest.
    kind: &'static str,
    turn: u32,
}

/// The context of a session so far.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Tokens of tools and system, where the file gives them.
    pub(super) fixed: Option<(u32, u32)>,
    /// The ids of the request before.
    before: Vec<u64>,
    /// The length of the reply before, if it is whole in the next prompt.
    reply: Option<u32>,
    /// Divisions with the ids of their requests, until `fixed` is known: a sub-agent tells at its end.
    held: Option<Vec<(u64, Division)>>,
    pending: Option<Division>,
}

impl Context {
    /// Keeps the pieces back until [`Context::release`].
    pub(super) fn hold(&mut self) {
        self.held.get_or_insert_with(Vec::new);
    }

    /// The pieces of the next request; none while they are held back.
    pub(super) fn next(&mut self, element: &Element, ids: &[u64], blocks: Blocks, turn: u32) -> Vec<Piece> {
        let input = element.input.unwrap_or(0);
        let same = self.before.iter().zip(ids).take_while(|(before, now)| before == now).count();
        let shared = u32::try_from(same).unwrap_or(u32::MAX).saturating_mul(blocks.tokens).min(input);
        let first = turn == 0;
        // With thinking in the reply before, how much of it is in this prompt is not recorded, nor what is left for the
        // rest. That a block is cut between the two moves the border by less than a block.
        let (reply, kind) = match (element.input_type, self.reply) {
            (Some(kind), _) if first => (0, kind),
            (Some(kind), Some(reply)) if reply <= input - shared => (reply, kind),
            _ => (0, "unknown"),
        };
        self.before.clear();
        self.before.extend_from_slice(ids);
        self.reply = element.output.filter(|_| !element.thinks);
        let division = Division { input, shared, reply, kind, turn };
        match &self.held {
            Some(held) if held.len() < HELD => {
                self.pending = Some(division);
                Vec::new()
            }
            _ => division.pieces(self.fixed),
        }
    }

    /// Notes the local id of the request that [`Context::next`] was about.
    pub(super) fn pushed(&mut self, id: u64) {
        if let (Some(held), Some(division)) = (&mut self.held, self.pending.take()) {
            held.push((id, division));
        }
    }

    /// Hands on what was held back.
    pub(super) fn release(&mut self, requests: &mut Requests) {
        for (id, division) in self.held.take().unwrap_or_default() {
            let segments: Vec<Segment<'_>> = division.pieces(self.fixed).iter().map(Piece::segment).collect();
            requests.add_segments(id, &segments);
        }
    }
}

impl Division {
    /// In the order of a prompt: tools, system, what was there before, the reply, what is new.
    fn pieces(self, fixed: Option<(u32, u32)>) -> Vec<Piece> {
        let Self { input, shared, reply, kind, turn } = self;
        let (tools, system) = fixed.unwrap_or((0, 0));
        let sum = tools.saturating_add(system);
        let piece = |kind, tokens, born_turn| Piece { kind, tokens, born_turn };
        // A prompt shorter than that is of another make: a helper's, for a title or a summary.
        let pieces = if sum > input || fixed.is_none() && turn == 0 {
            vec![piece("unknown", input, Some(turn))]
        } else {
            let known = shared.max(sum);
            let reply = reply.min(input - known);
            vec![
                piece("tools", tools, Some(0)),
                piece("system", system, Some(0)),
                piece("history", known - sum, None),
                piece("assistant", reply, Some(turn)),
                piece(kind, input - known - reply, Some(turn)),
            ]
        };
        pieces.into_iter().filter(|piece| piece.tokens > 0).collect()
    }
}
