//! `BurstGPT`, versions 1 to 3: requests to GPT-3.5 and GPT-4 on Azure, as CSV whose column names hold blanks.
//!
//! ```text
//! Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
//! 5,ChatGPT,472,18,490,Conversation log
//! Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
//! 19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
//! ```
//!
//! `Timestamp` counts seconds from midnight of the first day. `Elapsed time` is the time from the submission of a request
//! to its complete response, in seconds, and becomes `measured_e2e_ns`. Rows of API calls have no session. A request that
//! failed has 0 response tokens; it is kept with the status `no_output`. `Log Type` becomes `kind`. A `Total tokens` that
//! is not the sum of the two before it is logged.
//!
//! Refused, row by row: times and counts that are negative, broken or too large.

use engine::error::Result;

use super::csv::{self, Column, Csv};
use super::sink::Sink;
use super::source::Input;
use super::{Format, Head, Settings, Sniff};

/// The adapter.
pub(super) static FORMAT: Format = Format {
    name: "burstgpt",
    doc: "BurstGPT traces, versions 1 to 3, as CSV",
    spec: "https://github.com/HPMLL/BurstGPT",
    verified: true,
    sniff,
    read,
};

static CSV: Csv = Csv {
    format: "burstgpt",
    forms: &[
        &[
            Column::seconds("Timestamp", "arrival_ns"),
            Column::text("Session ID", "session_id"),
            Column::seconds("Elapsed time", "measured_e2e_ns").or_blank(),
            Column::text("Model", "model"),
            Column::count("Request tokens", "prompt_tokens"),
            Column::count("Response tokens", "output_tokens"),
            Column::total("Total tokens", false),
            Column::text("Log Type", "kind"),
        ],
        &[
            Column::seconds("Timestamp", "arrival_ns"),
            Column::text("Model", "model"),
            Column::count("Request tokens", "prompt_tokens"),
            Column::count("Response tokens", "output_tokens"),
            Column::total("Total tokens", false),
            Column::text("Log Type", "kind"),
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
