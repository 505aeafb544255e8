//! Session-aware: blocks of the session whose last request is longest ago go first, deepest first.
//!
//! A block belongs to the session that used it last. Each request renews its whole session, also the blocks that it does not
//! use itself: an agent's side branches stay as long as it works. Within a session go first what its latest request did not
//! use, in order of use, then the deepest of what it did. With `ended=yes` sessions that are over go before all others, as
//! an engine can do that is told so. The idea is that of engines that keep the KV of an agent over its tool calls
//! (vLLM RFC 57103, SGLang issue 24656); the rule is kvtoll's own.

use super::list::Lists;
use super::rule::{Form, Kind, Param, Setting};
use super::{Met, Policy, Request, play};

/// The policy.
pub(super) static KIND: Kind = Kind {
    name: "session",
    doc: "blocks of the session whose last request is longest ago go first, deepest first",
    params: &[Param {
        name: "ended",
        form: Form::Flag,
        default: 0,
        range: (0, 1),
        doc: "whether the cache is told that a session is over, and then takes its blocks first",
    }],
    source: "kvtoll's own, after vllm-project/vllm RFC 57103 and sgl-project/sglang issue 24656",
    needs_sessions: true,
    replay: |params, trace, setting, each| play(&mut make(params, setting), trace, each),
    start: Some(|params, setting| Box::new(make(params, setting))),
};

/// Neither block nor session.
const NONE: u32 = u32::MAX;

/// Sessions that are over, and those that are not.
const ENDED: usize = 0;
const OPEN: usize = 1;

fn make(params: &[u64], setting: Setting) -> Session {
    Session {
        capacity: setting.capacity,
        knows_ends: params.first() == Some(&1),
        ends: None,
        current: 0,
        above: None,
        held: 0,
        sessions: Lists::new(),
        is_ended: Vec::new(),
        rings: Vec::new(),
        owner: Vec::new(),
    }
}

/// The cache. Each session has a ring of its blocks, the first to go at the old end; nodes of blocks are even, those of the
/// sessions themselves odd.
struct Session {
    capacity: usize,
    knows_ends: bool,
    /// The session of the current request, if it ends with it.
    ends: Option<u32>,
    current: u32,
    /// The block of the current request that was used last; deeper ones go before it.
    above: Option<u32>,
    held: usize,
    /// Sessions in order of their last request.
    sessions: Lists<2>,
    is_ended: Vec<bool>,
    /// Neighbours towards the new end and the old end.
    rings: Vec<(u32, u32)>,
    /// The session of each block that is there.
    owner: Vec<u32>,
}

impl Session {
    fn own(session: u32) -> u32 {
        2 * session + 1
    }

    fn grow_sessions(&mut self, sessions: usize) {
        self.sessions.grow(sessions);
        self.is_ended.resize(self.is_ended.len().max(sessions), false);
        let known = self.rings.len();
        if known < 2 * sessions {
            self.rings.resize(2 * sessions, (NONE, NONE));
        }
        for session in known / 2..self.rings.len() / 2 {
            let own = Self::own(session as u32);
            self.rings[own as usize] = (own, own);
        }
    }

    /// Puts a session at the new end of a list.
    fn place(&mut self, session: u32, list: usize) {
        if self.sessions.holds(session) {
            self.sessions.unlink(if self.is_ended[session as usize] { ENDED } else { OPEN }, session);
        }
        self.is_ended[session as usize] = list == ENDED;
        self.sessions.push_newest(list, session);
    }

    fn link(&mut self, block: u32) {
        let next = self.above.map_or(Self::own(self.current), |above| 2 * above);
        let (node, older) = (2 * block, self.rings[next as usize].1);
        self.rings[node as usize] = (next, older);
        self.rings[next as usize].1 = node;
        self.rings[older as usize].0 = node;
        self.owner[block as usize] = self.current;
        self.above = Some(block);
        self.held += 1;
    }

    fn evict(&mut self) -> Option<u32> {
        for list in [ENDED, OPEN] {
            while let Some(session) = self.sessions.oldest(list) {
                let oldest = self.rings[Self::own(session) as usize].0;
                if oldest.is_multiple_of(2) {
                    let block = oldest / 2;
                    self.remove(block);
                    return Some(block);
                }
                self.sessions.unlink(list, session);
            }
        }
        None
    }
}

impl Policy for Session {
    fn grow(&mut self, blocks: usize) {
        self.owner.resize(self.owner.len().max(blocks), NONE);
        // Sessions and blocks share the array of rings.
        self.grow_sessions(blocks.max(1));
        if !self.sessions.holds(self.current) {
            self.place(self.current, OPEN);
        }
    }

    fn begin(&mut self, request: &Request<'_>, _: &mut Vec<u32>) {
        if let Some(session) = self.ends.take() {
            self.place(session, ENDED);
        }
        self.grow_sessions(request.session as usize + 1);
        self.current = request.session;
        self.above = None;
        self.place(self.current, OPEN);
        self.ends = (self.knows_ends && request.ends_session).then_some(request.session);
    }

    fn touch(&mut self, block: u32) -> Met {
        if self.remove(block) {
            self.link(block);
            return Met::Hit;
        }
        if self.capacity == 0 {
            return Met::Bypass;
        }
        let victim = if self.held >= self.capacity { self.evict() } else { None };
        self.link(block);
        victim.map_or(Met::Miss, Met::Eviction)
    }

    fn holds(&self, block: u32) -> bool {
        self.owner.get(block as usize).is_some_and(|owner| *owner != NONE)
    }

    fn remove(&mut self, block: u32) -> bool {
        if !self.holds(block) {
            return false;
        }
        let (newer, older) = self.rings[2 * block as usize];
        if self.above == Some(block) {
            // The one above it, if that is of this request: the ring's own node is not.
            self.above = newer.is_multiple_of(2).then_some(newer / 2);
        }
        self.rings[older as usize].0 = newer;
        self.rings[newer as usize].1 = older;
        self.rings[2 * block as usize] = (NONE, NONE);
        self.owner[block as usize] = NONE;
        self.held -= 1;
        true
    }

    fn len(&self) -> usize {
        self.held
    }
}
