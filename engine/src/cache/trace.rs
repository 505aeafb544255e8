//! What a cache is asked for: requests and their blocks, in order.

use std::collections::HashMap;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;

use crate::error::{Error, Result};
use crate::workload::Workload;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Arrival, ns after the first.
    pub time_ns: i64,
    /// Number of its session; 0 where sessions are unknown.
    pub session: u32,
    /// Whether none of its session follows.
    pub ends_session: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of a block; 0 if unknown.
    pub unit_tokens: u32,
    /// Its blocks, from the first of the prompt.
    pub blocks: &'a [u32],
}

/// Requests in order of arrival.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    workload: &'a Workload,
    sessions: Option<&'a Sessions>,
}

/// To which session each request belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sessions {
    numbers: Vec<u32>,
    is_last: Vec<bool>,
}

impl Sessions {
    /// From a dense number for each request in order.
    pub fn new(numbers: Vec<u32>) -> Self {
        let mut met = vec![false; numbers.iter().max().map_or(0, |most| *most as usize + 1)];
        let mut is_last: Vec<bool> =
            numbers.iter().rev().map(|number| !std::mem::replace(&mut met[*number as usize], true)).collect();
        is_last.reverse();
        Self { numbers, is_last }
    }

    /// The session of a request, by its index; 0 for one beyond the last.
    pub fn of(&self, request: usize) -> u32 {
        self.numbers.get(request).copied().unwrap_or(0)
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.numbers.iter().max().map_or(0, |most| most.saturating_add(1))
    }

    /// Reads the sessions of a workload's requests from rows of the canonical `requests` table. A request without one is
    /// its own; `None` if no request has one.
    ///
    /// # Errors
    /// A missing column or a column of another type.
    pub fn read(workload: &Workload, batches: &[RecordBatch]) -> Result<Option<Self>> {
        let wrong = |name: &str| Error::data(format!("the requests have no column `{name}` of the right type"));
        let mut of_request: HashMap<u64, u32> = HashMap::new();
        let mut of_name: HashMap<String, u32> = HashMap::new();
        for batch in batches {
            let ids = batch.column_by_name("request_id").and_then(|ids| ids.as_primitive_opt::<UInt64Type>());
            let names = batch.column_by_name("session_id").and_then(|names| names.as_string_opt::<i32>());
            let (ids, names) = (ids.ok_or_else(|| wrong("request_id"))?, names.ok_or_else(|| wrong("session_id"))?);
            for row in (0..batch.num_rows()).filter(|row| names.is_valid(*row)) {
                let next = of_name.len() as u32;
                let number = match of_name.get(names.value(row)) {
                    Some(number) => *number,
                    None => *of_name.entry(names.value(row).to_owned()).or_insert(next),
                };
                of_request.insert(ids.value(row), number);
            }
        }
        if of_request.is_empty() {
            return Ok(None);
        }
        let mut next = of_name.len() as u32;
        let number = |id: &u64| {
            of_request.get(id).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            })
        };
        Ok(Some(Self::new(workload.request_ids.iter().map(number).collect())))
    }
}

impl<'a> Trace<'a> {
    /// A trace without sessions.
    pub fn new(workload: &'a Workload) -> Self {
        Self { workload, sessions: None }
    }

    /// A trace with the sessions of its requests, if they are known and as many.
    pub fn with_sessions(workload: &'a Workload, sessions: Option<&'a Sessions>) -> Self {
        Self { workload, sessions: sessions.filter(|sessions| sessions.numbers.len() == workload.len()) }
    }

    /// The same requests with the blocks of another workload, such as a sample of this one.
    #[must_use]
    pub fn of(&self, workload: &'a Workload) -> Self {
        Self::with_sessions(workload, self.sessions)
    }

    /// Whether sessions are known.
    pub fn has_sessions(&self) -> bool {
        self.sessions.is_some()
    }

    /// Distinct blocks.
    pub fn distinct(&self) -> usize {
        self.workload.distinct_units as usize
    }

    /// Tokens of a block; 0 if unknown.
    pub fn unit_tokens(&self) -> u32 {
        self.workload.unit_tokens
    }

    /// All uses of blocks in order.
    pub fn accesses(&self) -> &'a [u32] {
        &self.workload.units
    }

    /// Name of the workload.
    pub fn name(&self) -> &'a str {
        &self.workload.name
    }

    /// Its requests in order.
    pub fn requests(&self) -> impl Iterator<Item = Request<'a>> + use<'a> {
        let Self { workload, sessions } = *self;
        (0..workload.len()).map(move |at| Request {
            time_ns: workload.arrival_ns[at],
            session: sessions.map_or(0, |sessions| sessions.numbers[at]),
            ends_session: sessions.is_some_and(|sessions| sessions.is_last[at]),
            prompt_tokens: workload.prompt[at],
            unit_tokens: workload.unit_tokens,
            blocks: workload.units_of(at),
        })
    }
}
