//! Traces of the splitwise simulator, as CSV.
//!
//! ```text
//! request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
//! 0,2,0,1,1,4096,32
//! ```
//!
//! `arrival_timestamp` counts seconds from the start of the trace. `request_id` becomes `source_key`, `request_type` (a
//! number of the simulator) becomes `kind`; `application_id` and `batch_size` are kept beside the columns of `requests`.
//!
//! Refused, row by row: times and counts that are negative, broken or too large.

use engine::error::Result;

use super::csv::{self, Column, Csv};
use super::sink::Sink;
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "splitwise",
    doc: "splitwise-sim traces, as CSV",
    spec: "https://github.com/Mutinifni/splitwise-sim/tree/main/traces",
    verified: true,
    sniff,
    read,
};

static CSV: Csv = Csv {
    format: "splitwise",
    forms: &[&[
        Column::text("request_id", "source_key"),
        Column::text("request_type", "kind"),
        Column::text("application_id", "application_id"),
        Column::seconds("arrival_timestamp", "arrival_ns"),
        Column::count("batch_size", "batch_size"),
        Column::count("prompt_size", "prompt_tokens"),
        Column::count("token_size", "output_tokens"),
    ]],
};

fn sniff(head: &Head<'_>) -> Sniff {
    csv::sniff(&CSV, head)
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    csv::read(&CSV, input, sink)
}

#[cfg(test)]
mod tests;
