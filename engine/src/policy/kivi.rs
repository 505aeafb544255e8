//! The stage `kivi`: keys quantized per channel, values per token, and the newest tokens in 16 bits.
//!
//! With `T` tokens, keys of the last `T mod residual` wait in 16 bits until `residual` of them can be quantized at once;
//! values of the last `residual` always stay. So bytes are a constant per token plus a sawtooth for keys and a window for
//! values, which [`Residual`](super::quantize::Residual) holds exactly. Prefill attends in full precision.

use super::quantize::{Coding, Form, Forms};
use super::{Args, Deployment, Floor, Format, Kind, Param, Rule, Skip, format};
use crate::error::{Error, Result};

/// `kivi(bits=2,group=32,value_group=0,residual=128)`.
pub(super) static KIND: Kind = Kind {
    name: "kivi",
    doc: "Stores keys as integers per channel and values per token; the newest tokens stay in 16 bits.",
    floor: Floor::Format,
    params: &[
        Param { name: "bits", default: "2", doc: "Bits per element, 2 to 8; published are 2 and 4." },
        Param { name: "group", default: "32", doc: "Tokens (keys) or channels (values) per 16-bit scale and zero." },
        Param { name: "value_group", default: "0", doc: "Channels per scale and zero of values; 0 for `group`." },
        Param { name: "residual", default: "128", doc: "Newest tokens in 16 bits, a multiple of `group`." },
    ],
    needs: &[],
    source: "KIVI (arXiv 2402.02750) as in jy-yuan/KIVI",
    deployment: Deployment { ..format::online("Hugging Face Transformers; research code: jy-yuan/KIVI") },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let (bits, group) = (args.count("bits", 2, 8)?, args.count("group", 8, 1024)?);
    let residual = args.count("residual", 1, 1 << 20)?;
    let value_group = match args.count("value_group", 0, 1024)? {
        0 => group,
        other => other,
    };
    if residual % group != 0 {
        return Err(Error::usage(format!(
            "`residual` of `kivi`: expected a multiple of the group of {group} tokens, found `{residual}`"
        ))
        .hint("keys are quantized in whole groups of tokens"));
    }
    let form = Form {
        key: Coding::Channel { bits, group, residual },
        value: Coding::Uniform { bits, group: value_group, residual },
        pad: 1,
    };
    Ok(Rule::Format(Format {
        is_16bit: false,
        skip: Skip::default(),
        admits: format::pairs_only,
        forms: Forms::one(form),
    }))
}
