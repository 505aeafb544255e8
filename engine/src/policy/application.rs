//! The application floor: what enters the context at all.
//!
//! A stage rewrites the contexts of a trace before it is served: it takes pieces out, puts others in, and may send requests
//! of its own. It decides and never measures time. What it did to each request is told as [`Effect`]s: tokens taken out,
//! tokens put in, where the prefix breaks, what of a prefix that would have stood has to be computed again, and the extra
//! requests. They are counted here, by comparing contexts, and not by the stages.
//!
//! A request that a stage sends for a turn comes when the turn comes, and the turn is sent when it has ended: the turn's
//! context holds what that request generates, and its user waits for both. Only [`Role::Consolidation`] is work between
//! sessions for which nobody waits. What such requests take of the machine is paid for; their tokens reach no user.
//!
//! Laws: a stage that never acts leaves the requests as they were, byte for byte; no stage adds a token that its effects
//! do not tell of; stages that act on different kinds and wait for no threshold commute.

pub(super) mod clear_thinking;
pub(super) mod clear_tool_results;
pub(super) mod collapse;
pub(super) mod compact;
pub(super) mod consolidate;
pub(super) mod index_memory;
pub(super) mod microcompact;
pub(super) mod retrieve;
pub(super) mod transcripts;

use std::collections::HashMap;

use super::{Args, Deployment, Rule, Stack};
use crate::error::{Error, Result};
use crate::session::reuse::found_tokens;
use crate::session::{Content, Fate, Form, Kind, Piece, Role, Trace, Turn, common, tokens, units};
use crate::workload::{ADDED, Workload};

/// What an application's stage takes to run: nothing of the model.
const IN_CLIENT: Deployment = Deployment {
    engines: "any: it acts on the requests before they are sent",
    breaks_sharing: false,
    ..Deployment::NONE
};

/// The same of a stage that changes what earlier prompts held.
const REWRITES: Deployment = Deployment { rewrites_prefix: true, ..IN_CLIENT };

/// A rule that rewrites contexts.
#[derive(Debug, Clone, Copy)]
pub struct Edit {
    /// Rewrites the turns of a trace.
    pub apply: fn(&Args, &Trace) -> Result<Changed>,
}

/// What a stage made of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The turns, with those that it added.
    pub trace: Trace,
    /// What it decided and sent, by request.
    acts: HashMap<u64, Act>,
}

/// What a stage decided for a request, and the requests that it sent for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Act {
    action: Option<&'static str>,
    extra_requests: u32,
    extra_prompt_tokens: u64,
    extra_output_tokens: u64,
}

/// What a stage did to a turn. The prefix that is there is what the turn has in common with its session's request before, or
/// what earlier requests of any session computed of its blocks, whichever reaches farther.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    /// Number of the stage in its stack.
    pub stage: usize,
    /// The request.
    pub request_id: u64,
    /// Its session.
    pub session: u32,
    /// Its turn in the session.
    pub turn: u32,
    /// What the stage decided in this turn; `None` where only an earlier decision still acts.
    pub action: Option<&'static str>,
    /// Tokens that are not in the prompt any more.
    pub removed_tokens: u32,
    /// Of these, tokens of the prefix that was there.
    pub removed_prefix_tokens: u32,
    /// Tokens that were put in.
    pub added_tokens: u32,
    /// Of these, tokens of the prefix that is there now, which had been put in before.
    pub added_prefix_tokens: u32,
    /// The first token that is not as it was.
    pub broke_at_tokens: u32,
    /// Tokens that still stand in the prompt and were part of the prefix that was there, and no longer are: they are computed
    /// and written again.
    pub lost_prefix_tokens: u32,
    /// Requests that were sent for it.
    pub extra_requests: u32,
    /// Their prompts together, tokens.
    pub extra_prompt_tokens: u64,
    /// Their outputs together, tokens.
    pub extra_output_tokens: u64,
}

/// A workload under the application's stages of a stack.
#[derive(Debug, Clone, PartialEq)]
pub struct Edited {
    /// The turns.
    pub trace: Trace,
    /// The requests that are served.
    pub workload: Workload,
    /// What the stages did, stage by stage.
    pub effects: Vec<Effect>,
}

/// Applies the application's stages of a stack to a workload, one after the other.
///
/// # Errors
/// A trace without prompts to act on, numbers that do not fit.
pub fn apply(stack: &Stack, trace: &Trace, workload: &Workload) -> Result<Edited> {
    let (mut current, mut effects) = (None, Vec::new());
    for (at, stage) in stack.stages().iter().enumerate() {
        let Rule::Edit(edit) = &stage.rule else { continue };
        let was = current.get_or_insert_with(|| Seen::of(trace.clone(), workload.clone()));
        let changed = (edit.apply)(&stage.args, &was.trace).map_err(|error| error.context(stage.args.text()))?;
        if changed.trace == was.trace {
            continue;
        }
        let is = Seen::of_changed(changed.trace, (trace, workload))?;
        effects.extend(compared(at, was, &is, &changed.acts));
        current = Some(is);
    }
    let (trace, workload) =
        current.map_or_else(|| (trace.clone(), workload.clone()), |seen| (seen.trace, seen.workload));
    Ok(Edited { trace, workload, effects })
}

/// Turns with the requests that are served, and what each finds computed by earlier requests of any session.
struct Seen {
    trace: Trace,
    workload: Workload,
    found: Vec<u32>,
}

impl Seen {
    fn of(trace: Trace, workload: Workload) -> Self {
        let found = found_tokens(&trace, &workload, None);
        Self { trace, workload, found }
    }

    fn of_changed(changed: Trace, (recorded, requests): (&Trace, &Workload)) -> Result<Self> {
        let workload = units::workload(&changed, recorded, requests)?;
        Ok(Self::of(changed, workload))
    }

    /// Places of the recorded turns.
    fn recorded(&self) -> impl Iterator<Item = usize> {
        (0..self.trace.turns.len()).filter(|at| self.trace.turns[*at].role == Role::Recorded)
    }

    /// Tokens of turn `at` that are there when it comes: in common with the session's turn `before`, or found.
    fn prefix(&self, at: usize, before: Option<usize>) -> u32 {
        let pieces = self.trace.pieces_of(at);
        before.map_or(0, |before| common(pieces, self.trace.pieces_of(before))).max(self.found[at])
    }
}

/// A turn on its way through a stage.
struct Draft<'a> {
    turn: &'a Turn,
    /// Its context, to be changed.
    pieces: Vec<Piece>,
    contents: &'a mut Vec<Content>,
    /// Requests to be sent before it: why, context, tokens generated.
    extra: Vec<(Role, Vec<Piece>, u32)>,
    /// What was decided in this turn.
    action: Option<&'static str>,
}

impl Draft<'_> {
    fn content(&self, piece: &Piece) -> &Content {
        &self.contents[piece.content as usize]
    }

    fn kind(&self, piece: &Piece) -> Kind {
        self.content(piece).kind
    }

    fn tokens(&self) -> u32 {
        tokens(&self.pieces)
    }

    /// Something new, as a piece of this turn.
    fn add(&mut self, kind: Kind, tokens: u32) -> Piece {
        let (session, born) = (self.turn.session, self.turn.turn);
        self.contents.push(Content { session, born, kind, name: None, fate: Fate::Verbatim });
        Piece { content: self.contents.len() as u32 - 1, start: 0, tokens, form: Form::Verbatim }
    }

    /// How many leading pieces are loaded anew by each session.
    fn head(&self) -> usize {
        self.pieces.iter().take_while(|piece| self.kind(piece).is_head()).count()
    }

    /// Whether a piece entered in an earlier turn and is not part of what each session loads.
    fn is_past(&self, piece: &Piece) -> bool {
        let content = self.content(piece);
        content.born < self.turn.turn && !content.kind.is_head()
    }

    /// Asks for a summary of a context by an instruction of so many tokens behind it; the summary, of so many tokens.
    fn summarise(&mut self, mut asked: Vec<Piece>, instruction: u32, tokens: u32) -> Piece {
        if instruction > 0 {
            asked.push(self.add(Kind::User, instruction));
        }
        self.extra.push((Role::Summary, asked, tokens));
        self.add(Kind::Summary, tokens)
    }

    fn mark(&mut self, contents: impl IntoIterator<Item = u32>, fate: Fate) {
        for content in contents {
            let of = &mut self.contents[content as usize].fate;
            *of = fate.max(*of);
        }
    }
}

/// Takes each turn in order through a stage; each session has a state of its own. Requests that earlier stages added pass.
fn rewrite<S: Default>(trace: &Trace, mut each: impl FnMut(&mut S, &mut Draft<'_>) -> Result<()>) -> Result<Changed> {
    let mut changed = Changed { trace: trace.emptied(), acts: HashMap::new() };
    let mut contents = trace.contents.clone();
    let mut states: Vec<S> = trace.sessions.iter().map(|_| Default::default()).collect();
    let mut free = trace.turns.iter().filter(|turn| turn.request_id & ADDED != 0).count() as u64;
    for (at, turn) in trace.turns.iter().enumerate() {
        let was = trace.pieces_of(at);
        if turn.role != Role::Recorded {
            changed.trace.push(*turn, was);
            continue;
        }
        let state = &mut states[turn.session as usize];
        let mut draft = Draft { turn, pieces: was.to_vec(), contents: &mut contents, extra: Vec::new(), action: None };
        each(state, &mut draft)?;
        let Draft { pieces, extra, action, .. } = draft;
        if pieces.is_empty() && !was.is_empty() {
            return Err(Error::run(format!("request {} would be left without a prompt", turn.request_id)));
        }
        let mut act = Act { action, ..Act::default() };
        for (role, context, output) in extra {
            act.extra_requests += 1;
            act.extra_prompt_tokens += u64::from(tokens(&context));
            act.extra_output_tokens += u64::from(output);
            let request_id = ADDED | free;
            free += 1;
            // What the recorded turn shares with the one before says nothing about this one.
            let apart = Turn { kept_tokens: 0, found_tokens: 0, broke_at_tokens: None, ..*turn };
            changed.trace.push(Turn { request_id, recorded: None, role, output, ..apart }, &context);
        }
        if act != Act::default() {
            changed.acts.insert(turn.request_id, act);
        }
        changed.trace.push(*turn, &pieces);
    }
    changed.trace.contents = contents;
    Ok(changed)
}

/// What stage number `stage` did to each recorded turn that it changed, sent a request for, or from which it took a prefix that
/// another session had computed.
fn compared(stage: usize, was: &Seen, is: &Seen, acts: &HashMap<u64, Act>) -> Vec<Effect> {
    let mut before: HashMap<u32, (usize, usize)> = HashMap::new();
    let mut effects = Vec::new();
    for (old, new) in was.recorded().zip(is.recorded()) {
        let turn = &is.trace.turns[new];
        let last = before.insert(turn.session, (old, new));
        let prefixes = (was.prefix(old, last.map(|last| last.0)), is.prefix(new, last.map(|last| last.1)));
        let (pieces_was, pieces_is) = (was.trace.pieces_of(old), is.trace.pieces_of(new));
        let act = acts.get(&turn.request_id).copied().unwrap_or_default();
        let effect = compare((stage, turn, act), (pieces_was, pieces_is), prefixes);
        if pieces_was != pieces_is || act.extra_requests > 0 || effect.lost_prefix_tokens > 0 {
            effects.push(effect);
        }
    }
    effects
}

/// What differs between a turn's context before and after a stage, and between the prefixes that are there.
fn compare(
    (stage, turn, act): (usize, &Turn, Act),
    (was, is): (&[Piece], &[Piece]),
    (prefix_was, prefix_is): (u32, u32),
) -> Effect {
    let (removed, removed_of_prefix) = only_in(was, is, prefix_was);
    let (added, added_before) = only_in(is, was, prefix_is);
    let narrow = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    let still_there = u64::from(prefix_was) - removed_of_prefix;
    Effect {
        stage,
        request_id: turn.request_id,
        session: turn.session,
        turn: turn.turn,
        action: act.action,
        removed_tokens: narrow(removed),
        removed_prefix_tokens: narrow(removed_of_prefix),
        added_tokens: narrow(added),
        added_prefix_tokens: narrow(added_before),
        broke_at_tokens: common(was, is),
        lost_prefix_tokens: narrow(still_there.saturating_sub(u64::from(prefix_is) - added_before)),
        extra_requests: act.extra_requests,
        extra_prompt_tokens: act.extra_prompt_tokens,
        extra_output_tokens: act.extra_output_tokens,
    }
}

/// Tokens of a context that another does not hold, and those of them among its first `prefix` tokens. Stretches of one
/// content in one form count as often as they occur.
fn only_in(context: &[Piece], other: &[Piece], prefix: u32) -> (u64, u64) {
    let mut left: HashMap<(u32, u32, Form), u32> = HashMap::with_capacity(other.len());
    for piece in other {
        *left.entry((piece.content, piece.start, piece.form)).or_default() += piece.tokens;
    }
    let (mut room, mut all, mut of_prefix) = (u64::from(prefix), 0_u64, 0_u64);
    for piece in context {
        let found = left.get_mut(&(piece.content, piece.start, piece.form)).map_or(0, |left| {
            let taken = (*left).min(piece.tokens);
            *left -= taken;
            taken
        });
        let (alone, within) = (u64::from(piece.tokens - found), room.min(u64::from(piece.tokens)));
        room -= within;
        all += alone;
        of_prefix += alone.min(within);
    }
    (all, of_prefix)
}

#[cfg(test)]
mod tests;
