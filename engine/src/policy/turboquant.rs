//! The stage `turboquant`: rotated keys by a codebook, in the layout of vLLM or in that of the paper.
//!
//! `variant=vllm` rotates keys by a Hadamard matrix, quantizes them to the Lloyd-Max codebook and keeps one FP16 norm,
//! corrected so that the norm survives; values are uniform and asymmetric with an FP16 scale and zero. The sign sketch of
//! the paper is left out there and here. `k=8` keeps keys as FP8 instead. The first and last two layers stay in bf16, as in
//! vLLM for dense models. vLLM turns the format off for models that mix in other kinds of layers, so models with sliding
//! windows are refused; `skip=none` quantizes every layer of them all the same, which no engine does today.
//!
//! `variant=mse` and `variant=prod` are the paper's algorithms 1 and 2, for keys and values alike, with the norms that the
//! paper does not count. There bits may be 2.5 or 3.5: the channels with the most energy get one bit more, half of them by
//! default, so that the mean is what the name says. (The paper's 2.5 bits are 32 of 128 channels at 3 bits and 96 at 2,
//! which is 2.25 bits; `outliers=25%` has that split. How channels are chosen is not published.)

use super::quantize::rotate::Variant;
use super::quantize::{Coding, Form, Forms, Width};
use super::{Args, Budget, Floor, Format, Kind, Param, Rule, format};
use crate::error::{Error, Result};
use crate::model::{Attention, Model};

/// `turboquant(bits=4,k=bits,v=bits,skip=first2+last2,variant=vllm,outliers=50%)`.
pub(super) static KIND: Kind = Kind {
    name: "turboquant",
    doc: "Stores rotated keys by a Lloyd-Max codebook and values as uniform integers, in vLLM's slots.",
    floor: Floor::Format,
    params: &[
        Param { name: "bits", default: "4", doc: "Bits per element, 2 to 5; 2.5 and 3.5 for `mse` and `prod`." },
        Param { name: "k", default: "bits", doc: "Bits per element of keys, if they differ: 2 to 5, or 8 for FP8." },
        Param { name: "v", default: "bits", doc: "Bits per element of values, if they differ: 2 to 8." },
        Param { name: "skip", default: "first2+last2", doc: "Layers that stay in bf16; `none` for no layer." },
        Param { name: "variant", default: "vllm", doc: "`vllm`, or the paper's algorithm 1 (`mse`) or 2 (`prod`)." },
        Param { name: "outliers", default: "50%", doc: "Share of channels with one bit more at 2.5 and 3.5 bits." },
    ],
    needs: &[],
    source: "TurboQuant (arXiv 2504.19874), algorithms 1 and 2; layout of vLLM, quantization/turboquant/config.py",
    deployment: format::online("vLLM"),
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let form = match args.word("variant", &["vllm", "mse", "prod"])? {
        "mse" => of_paper(args, Variant::Mse)?,
        "prod" => of_paper(args, Variant::Prod)?,
        _ => of_vllm(args)?,
    };
    Ok(Rule::Format(Format { is_16bit: false, skip: args.skip("skip")?, admits, forms: Forms::one(form) }))
}

/// Bits of keys and of values in vLLM's slots.
fn of_vllm(args: &Args) -> Result<Form> {
    let both = args.count("bits", 2, 5)?;
    let key = if args.is_word("k", "bits") { both } else { args.count("k", 2, 8)? };
    let value = if args.is_word("v", "bits") { both } else { args.count("v", 2, 8)? };
    if matches!(key, 6 | 7) {
        return Err(Error::usage(format!("`k` of `turboquant`: expected 2 to 5, or 8 for FP8, found `{key}`")));
    }
    if !args.is_word("k", "bits") && !args.is_word("v", "bits") && both != 4 {
        return Err(Error::usage("`turboquant`: `bits` has no effect where both `k` and `v` are given"));
    }
    refuse_outliers(args)?;
    Ok(format::vllm_slot(key, value))
}

fn of_paper(args: &Args, variant: Variant) -> Result<Form> {
    if !args.is_word("k", "bits") || !args.is_word("v", "bits") {
        return Err(Error::usage("`turboquant`: `k` and `v` apply to `variant=vllm` only")
            .hint("the paper does not distinguish keys from values; set `bits`"));
    }
    let text = args.text_of("bits")?;
    let low = match text.as_str() {
        "2.5" => Some(2),
        "3.5" => Some(3),
        _ => None,
    };
    let width = if let Some(low) = low {
        Width::Split { low, outliers: outliers(args)? }
    } else {
        refuse_outliers(args)?;
        Width::Whole(args.count("bits", 2, 5)?)
    };
    Ok(Form::both(Coding::Rotated { variant, width }))
}

fn outliers(args: &Args) -> Result<f64> {
    match args.budget("outliers") {
        Ok(Budget::Ratio(share)) if share < 1.0 => Ok(share),
        _ => Err(Error::usage(format!(
            "`outliers` of `turboquant`: expected a share of the channels such as `25%`, found `{}`",
            args.text_of("outliers")?
        ))),
    }
}

fn refuse_outliers(args: &Args) -> Result<()> {
    if args.text_of("outliers")? == "50%" {
        return Ok(());
    }
    Err(Error::usage("`turboquant`: `outliers` has an effect at 2.5 and 3.5 bits of `mse` and `prod` only"))
}

fn admits(args: &Args, model: &Model) -> Result<()> {
    format::pairs_only(args, model)?;
    let is_sliding = |attention: &Attention| matches!(attention, Attention::Sliding { .. });
    let has_windows = model.groups.iter().any(|group| is_sliding(&group.kv.attention));
    if has_windows && args.is_word("variant", "vllm") && !args.is_word("skip", "none") {
        return Err(Error::run(format!(
            "`turboquant` is turned off by vLLM for models with windows such as `{}`",
            model.name
        ))
        .hint("`skip=none` quantizes every layer all the same, which no engine does today"));
    }
    Ok(())
}
