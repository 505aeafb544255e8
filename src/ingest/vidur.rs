//! Traces as the Vidur simulator keeps them, as CSV: with arrivals, or lengths alone.
//!
//! ```text
//! arrived_at,num_prefill_tokens,num_decode_tokens
//! 0.098189,110,27
//! num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
//! 3772,54,3826,69.85185185185185
//! ```
//!
//! `arrived_at` counts seconds from the start of the trace. Files of lengths alone have no arrivals; `arrival_ns` is then
//! unknown. `pd_ratio` follows from the lengths and is not kept.
//!
//! Refused, row by row: times and counts that are negative, broken or too large, and a `num_total_tokens` that is not the
//! sum of the two before it.

use engine::error::Result;

use super::csv::{self, Column, Csv};
use super::sink::Sink;
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "vidur",
    doc: "Vidur traces, with arrivals or as lengths alone, as CSV",
    spec: "https://github.com/microsoft/vidur/tree/main/data/processed_traces",
    verified: true,
    sniff,
    read,
};

static CSV: Csv = Csv {
    format: "vidur",
    forms: &[
        &[
            Column::seconds("arrived_at", "arrival_ns"),
            Column::count("num_prefill_tokens", "prompt_tokens"),
            Column::count("num_decode_tokens", "output_tokens"),
        ],
        &[
            Column::count("num_prefill_tokens", "prompt_tokens"),
            Column::count("num_decode_tokens", "output_tokens"),
            Column::total("num_total_tokens", true),
            Column::derived("pd_ratio"),
        ],
    ],
};

fn sniff(head: &Head<'_>) -> Sniff {
    csv::sniff(&CSV, head)
}

fn read(input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Settings> {
    csv::read(&CSV, input, sink)
}

#[cfg(test)]
mod tests;
