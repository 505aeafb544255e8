//! Sessions as segments: what each turn of a conversation kept of an earlier one, what is new in it, and where the prefix
//! broke.
//!
//! A context is a list of *pieces* in the order of the prompt. A piece is a stretch of one *content*: something that entered
//! the context in one turn (a tool result, a user's message, a reply), with its kind where the trace tells. What a turn
//! shares with an earlier turn of its session keeps its contents and the turn in which they were born; what stands behind
//! that is new. How much is shared comes, in this order, from block hashes (whole blocks only, so that up to a block less
//! one token of it counts as new), from named segments, or from the hits that the run measured.
//!
//! Laws: the pieces of a turn sum to its recorded prompt; a turn that mixes kinds is of kind `unknown`; reuse counted over a
//! trace of block hashes is that of a direct count.

pub mod memory;
mod read;
pub mod reuse;
pub mod span;
#[cfg(test)]
mod tests;
pub mod toll;
pub mod units;

use std::ops::Range;

pub use read::read;

/// What a piece of a context is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Definitions of tools.
    Tools,
    /// The system prompt.
    System,
    /// The index of a memory, loaded at the start of each session.
    MemoryIndex,
    /// A topic file of a memory.
    Topic,
    /// What a person wrote.
    User,
    /// What the model answered.
    Assistant,
    /// What the model thought.
    Thinking,
    /// A call of a tool.
    ToolUse,
    /// What a tool returned.
    ToolResult,
    /// A retrieved passage.
    Passage,
    /// Earlier turns, not told apart.
    History,
    /// A summary of earlier turns.
    Summary,
    /// A mixture, or not told.
    Unknown,
}

impl Kind {
    /// Every kind with its name in `context_segments.kind`.
    pub const ALL: [(&'static str, Self); 13] = [
        ("tools", Self::Tools),
        ("system", Self::System),
        ("memory_index", Self::MemoryIndex),
        ("topic", Self::Topic),
        ("user", Self::User),
        ("assistant", Self::Assistant),
        ("thinking", Self::Thinking),
        ("tool_use", Self::ToolUse),
        ("tool_result", Self::ToolResult),
        ("passage", Self::Passage),
        ("history", Self::History),
        ("summary", Self::Summary),
        ("unknown", Self::Unknown),
    ];

    /// The kind of this name; a name that is not known is `unknown`.
    pub fn of(name: &str) -> Self {
        Self::ALL.iter().find(|(known, _)| *known == name).map_or(Self::Unknown, |(_, kind)| *kind)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("unknown", |(name, _)| name)
    }

    /// Whether it stands before the conversation and is loaded anew by each session.
    pub fn is_head(self) -> bool {
        matches!(self, Self::Tools | Self::System | Self::MemoryIndex | Self::Topic)
    }
}

/// In which form a content stands in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// As it entered.
    Verbatim,
    /// A short note that it was there.
    Placeholder,
}

/// A stretch of one content in a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Number of the content.
    pub content: u32,
    /// Its first token within the content.
    pub start: u32,
    /// Tokens.
    pub tokens: u32,
    /// In which form.
    pub form: Form,
}

/// What became of a content at the hands of the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It is there as it was.
    Verbatim,
    /// A summary or a record tells of it.
    Summarised,
    /// It can be had again by asking: a transcript, a file, a tool.
    Recallable,
    /// Nothing of it is left.
    Lost,
}

/// Something that entered a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// The session.
    pub session: u32,
    /// The turn of the session in which it entered, from 0.
    pub born: u32,
    /// What it is.
    pub kind: Kind,
    /// Number of its name; equal names are equal texts. `None` where the trace does not name it.
    pub name: Option<u32>,
    /// What became of it so far.
    pub fate: Fate,
}

/// Why a request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is in the trace.
    Recorded,
    /// It asks for a summary or a record of the conversation.
    Summary,
    /// It calls for something that had been moved out of the context.
    Recall,
    /// It works over the transcripts of earlier sessions.
    Consolidation,
}

impl Role {
    /// Its name in result tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Summary => "summary",
            Self::Recall => "recall",
            Self::Consolidation => "consolidation",
        }
    }
}

/// How the trace tells what a turn shares with earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// By hashes of blocks.
    Blocks,
    /// By names of segments.
    Names,
    /// By the prefix hits that the run measured.
    Measured,
    /// Not at all: everything counts as new.
    Nothing,
}

impl Basis {
    /// Its name in result tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Names => "names",
            Self::Measured => "measured",
            Self::Nothing => "nothing",
        }
    }
}

/// A request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The store's id; one that a stage adds has the highest bit set.
    pub request_id: u64,
    /// Its place among the recorded requests; `None` if a stage added it.
    pub recorded: Option<u32>,
    /// Number of its session.
    pub session: u32,
    /// Place in its session, from 0; one that a stage added has that of the turn it serves.
    pub turn: u32,
    /// Why it was sent.
    pub role: Role,
    /// Arrival after the first one of the workload, ns; that of a sub-agent on its parent's clock.
    pub arrival_ns: i64,
    /// Pause before it since the answer to the turn before, ns; since its arrival where the answer's time is unknown.
    pub idle_ns: Option<i64>,
    /// Tokens it generates.
    pub output: u32,
    /// Tokens in common with the turn before, at the beginning.
    pub kept_tokens: u32,
    /// Tokens in common with the earlier turn of the session that shares most.
    pub found_tokens: u32,
    /// Where the prefix of the turn before broke, in tokens; `None` if it stands whole in this turn.
    pub broke_at_tokens: Option<u32>,
    /// How that is known.
    pub basis: Basis,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The store's name; `None` for a request without one.
    pub name: Option<String>,
    /// For a sub-agent the recorded request of the parent that it follows, by its place in the workload.
    pub parent: Option<u32>,
    /// Its recorded turns.
    pub turns: u32,
}

/// The turns of a workload as segments, in order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The requests.
    pub turns: Vec<Turn>,
    /// Turn `i` owns `pieces[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
    /// The contexts, in the order of the prompts.
    pub pieces: Vec<Piece>,
    /// What entered them.
    pub contents: Vec<Content>,
    /// The sessions.
    pub sessions: Vec<Session>,
    /// Distinct names of contents; 0 where the trace names nothing.
    pub names: u32,
}

impl Trace {
    /// The pieces of turn `index`.
    pub fn pieces_of(&self, index: usize) -> &[Piece] {
        &self.pieces[self.range(index)]
    }

    fn range(&self, index: usize) -> Range<usize> {
        self.offsets[index]..self.offsets[index + 1]
    }

    /// Tokens of the prompt of turn `index`.
    pub fn prompt(&self, index: usize) -> u32 {
        tokens(self.pieces_of(index))
    }

    /// What a piece is a stretch of.
    pub fn content(&self, piece: &Piece) -> &Content {
        &self.contents[piece.content as usize]
    }

    /// The same turns without any contexts, to be filled in order.
    pub(crate) fn emptied(&self) -> Self {
        Self {
            turns: Vec::with_capacity(self.turns.len()),
            offsets: vec![0],
            pieces: Vec::with_capacity(self.pieces.len()),
            contents: self.contents.clone(),
            sessions: self.sessions.clone(),
            names: self.names,
        }
    }

    /// Appends a turn with its context.
    pub(crate) fn push(&mut self, turn: Turn, pieces: &[Piece]) {
        self.turns.push(turn);
        self.pieces.extend_from_slice(pieces);
        self.offsets.push(self.pieces.len());
    }
}

/// Tokens of a context; at most what a prompt can have.
pub fn tokens(pieces: &[Piece]) -> u32 {
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.tokens)).sum();
    u32::try_from(sum).unwrap_or(u32::MAX)
}

/// Tokens in common at the beginning of two contexts.
pub fn common(one: &[Piece], other: &[Piece]) -> u32 {
    let mut sum = 0_u32;
    for (one, other) in one.iter().zip(other) {
        if (one.content, one.start, one.form) != (other.content, other.start, other.form) {
            break;
        }
        sum = sum.saturating_add(one.tokens.min(other.tokens));
        if one.tokens != other.tokens {
            break;
        }
    }
    sum
}
