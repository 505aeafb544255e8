//! Azure LLM inference traces of 2023, 2024 and 2025: arrival, prompt and output length of each request, as CSV.
//!
//! ```text
//! TIMESTAMP,ContextTokens,GeneratedTokens              2023
//! 2023-11-16 18:17:03.9799600,4808,10
//! TIMESTAMP,ContextTokens,GeneratedTokens              2024, a week
//! 2024-05-10 00:00:00.009930+00:00,2162,5
//! 2024-05-12 00:00:00+00:00,1452,3                     where the fraction is zero
//! TIMESTAMP,NumImages,ContextTokens,GeneratedTokens    2025, multimodal
//! 2024-10-15T12:00:00.269Z,0,770,491
//! ```
//!
//! The three share a header name and differ in the date. The first row decides which form a file has, and every other row
//! is held to it. Dates without a zone are read as UTC, with the clock `wall`; those with a zone are instants, with the
//! clock `epoch`. Both are stored as nanoseconds since the Unix epoch. `NumImages` is kept beside the columns of
//! `requests` as `num_images`. The files of 2023 have CRLF and no final newline; LF is read as well.
//!
//! Refused, row by row: a date of another form, and numbers that are negative, broken or beyond u32.

use engine::error::Result;

use super::csv::{self, Column, Csv};
use super::sink::Sink;
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "azure",
    doc: "Azure LLM inference traces of 2023, 2024 and 2025, as CSV",
    spec: "https://github.com/Azure/AzurePublicDataset",
    verified: true,
    sniff,
    read,
};

static CSV: Csv = Csv {
    format: "azure",
    forms: &[
        &[
            Column::date("TIMESTAMP", "arrival_ns"),
            Column::count("NumImages", "num_images"),
            Column::count("ContextTokens", "prompt_tokens"),
            Column::count("GeneratedTokens", "output_tokens"),
        ],
        &[
            Column::date("TIMESTAMP", "arrival_ns"),
            Column::count("ContextTokens", "prompt_tokens"),
            Column::count("GeneratedTokens", "output_tokens"),
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
