//! Operators of execution traces on their way into `annotations`: each names its parent by an id of the file, and parents
//! mostly stand behind their children, since an operator is written when it ends.
//!
//! Operators are held until the file ends, in about 60 bytes each and every name once. Past four million of them, or
//! 128 MiB of names, those that are held are handed on, and a parent that was not seen by then is unknown: memory has a
//! bound, and the log says how many.

use std::collections::HashMap;
use std::rc::Rc;

use engine::error::Result;

use super::gpu::{Annotation, Gpu};
use super::sink::{Event, Severity, Sink};

/// The most operators that are held.
const HELD: usize = 1 << 22;

/// The most bytes of names that are held.
const NAME_BYTES: usize = 128 << 20;

const PARENT: Event = Event {
    severity: Severity::Notice,
    code: "parent_unknown",
    advice: Some("the operator is kept without its parent"),
};
const REPEATED: Event = Event {
    severity: Severity::Notice,
    code: "id_repeated",
    advice: Some("children belong to the last operator of this id"),
};

/// An operator.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Operator<'a> {
    /// Its id in the file.
    pub(super) id: u64,
    /// The id of what it is part of.
    pub(super) parent: Option<u64>,
    pub(super) name: &'a str,
    pub(super) category: &'static str,
    pub(super) process: Option<u64>,
    pub(super) thread: Option<u64>,
    pub(super) start_ns: Option<i64>,
    pub(super) duration_ns: Option<i64>,
}

/// Operators that wait for their parents; all annotations of the source must go through it.
pub(super) struct Operators {
    held: Vec<(Operator<'static>, u32)>,
    /// By id in the file, the annotation.
    annotations: HashMap<u64, u64>,
    names: Vec<Rc<str>>,
    numbers: HashMap<Rc<str>, u32>,
    name_bytes: usize,
    /// Annotations so far.
    next: u64,
    most: usize,
    orphans: u64,
    repeated: u64,
}

impl Operators {
    pub(super) fn new() -> Self {
        Self {
            held: Vec::new(),
            annotations: HashMap::new(),
            names: Vec::new(),
            numbers: HashMap::new(),
            name_bytes: 0,
            next: 0,
            most: HELD,
            orphans: 0,
            repeated: 0,
        }
    }

    /// Takes an operator.
    pub(super) fn push(&mut self, operator: &Operator<'_>, gpu: &mut Gpu, sink: &mut Sink<'_>) -> Result<()> {
        let name = self.number(operator.name);
        self.repeated += u64::from(self.annotations.insert(operator.id, self.next).is_some());
        self.next += 1;
        self.held.push((Operator { name: "", ..*operator }, name));
        if self.held.len() >= self.most || self.name_bytes >= NAME_BYTES { self.hand_on(gpu, sink) } else { Ok(()) }
    }

    /// The number of a name.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        // Fewer names than operators are held.
        let number = self.names.len() as u32;
        let name: Rc<str> = name.into();
        self.name_bytes += name.len();
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn hand_on(&mut self, gpu: &mut Gpu, sink: &mut Sink<'_>) -> Result<()> {
        for (operator, name) in self.held.drain(..) {
            // The root is its own parent.
            let parent = operator.parent.filter(|parent| *parent != operator.id);
            let known = parent.and_then(|parent| self.annotations.get(&parent)).copied();
            self.orphans += u64::from(parent.is_some() && known.is_none());
            let Operator { category, process, thread, start_ns, duration_ns, .. } = operator;
            let name = self.names.get(name as usize).map_or("", AsRef::as_ref);
            let base = Annotation { name, category, process, thread, parent: known, ..Annotation::default() };
            gpu.push_annotation(&Annotation { start_ns, duration_ns, ..base }, sink)?;
        }
        self.annotations.clear();
        self.names.clear();
        self.numbers.clear();
        self.name_bytes = 0;
        Ok(())
    }

    /// Hands on what is left.
    pub(super) fn finish(&mut self, gpu: &mut Gpu, sink: &mut Sink<'_>) -> Result<()> {
        self.hand_on(gpu, sink)?;
        if self.orphans > 0 {
            let message = "the parent of an operator is not in the file, or too far behind it";
            sink.log_many(PARENT, message, self.orphans, None, None);
        }
        if self.repeated > 0 {
            sink.log_many(REPEATED, "an operator has the id of an earlier one", self.repeated, None, None);
        }
        Ok(())
    }
}
