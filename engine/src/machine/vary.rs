//! Variations in place: a preset with some of its numbers multiplied or replaced.

use super::parse::{Draft, draft};
use super::{Machine, POOL_PARAMETERS, Quantity, Slot, Sourced, slots};
use crate::error::{Error, Result, unknown};
use crate::model::Certainty;

/// The machine of an expression such as `h200`, `gb300*memory_bytes_per_s=2` or
/// `vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us`.
///
/// A bare number multiplies what the preset has; a quantity with a unit (`%` for ratios, `chips` for counts) replaces
/// it. Either way the number becomes an assumption. `lookup` gives the text and the origin of the machine file of a
/// name, or nothing where there is none.
///
/// # Errors
/// An unknown machine or parameter, a value that cannot be read, multiplying what is not known, and a result that no
/// machine can have.
pub fn resolve(expression: &str, lookup: &dyn Fn(&str) -> Option<(String, String)>) -> Result<Machine> {
    let expression = expression.trim();
    let mut parts = expression.split('*').map(str::trim);
    let preset = parts.next().unwrap_or_default();
    let Some((text, origin)) = lookup(preset) else {
        return Err(Error::usage(format!("unknown machine `{preset}`")).hint("see `kvtoll list machines`"));
    };
    let mut draft = draft(&text, &origin)?;
    for variation in parts {
        vary(&mut draft, variation).map_err(|error| error.context(format!("`{expression}`")))?;
    }
    let mut machine = draft.complete()?;
    expression.clone_into(&mut machine.name);
    Ok(machine)
}

/// Short names that people type for the parameters that they vary most.
const ALIASES: [(&str, &str); 3] =
    [("hbm_bw", "memory_bytes_per_s"), ("hbm", "memory_bytes"), ("link_bw", "scale_up_bytes_per_s")];

/// Applies one `parameter=value`.
fn vary(draft: &mut Draft, variation: &str) -> Result<()> {
    let Draft { machine, missing } = draft;
    let Some((name, value)) = variation.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
        return Err(Error::usage(format!("expected `parameter=value` after `*`, found `{variation}`"))
            .hint("such as `*memory_bytes_per_s=2` for twice the bandwidth, or `*memory_bytes_per_s=10TB/s`"));
    };
    if name == "scale_up_domain" {
        return Err(
            Error::usage("`scale_up_domain` cannot be varied in place").hint("write a machine file of your own")
        );
    }
    if machine.ffn_pool.is_none() && POOL_PARAMETERS.contains(&name) {
        return Err(Error::usage(format!("`{}` has no separate FFN accelerators, so no `{name}`", machine.preset))
            .hint("take a machine with an `[ffn_pool]`, such as `vera-rubin-lpx`"));
    }
    let name = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| *long);
    let mut slots = slots(machine);
    let Some(index) = slots.iter().position(|(known, _)| *known == name) else {
        return Err(unknown("parameter", name, slots.iter().map(|(known, _)| *known)));
    };
    let (name, slot) = slots.swap_remove(index);
    let known = match &slot {
        Slot::Known(known) => Some(&**known).filter(|_| !missing.contains(&name)),
        Slot::Unpublished(known) => known.as_ref(),
    };
    let varied = varied(name, known, value).map_err(|error| error.context(format!("`{name}`")))?;
    match slot {
        Slot::Known(known) => *known = varied,
        Slot::Unpublished(known) => *known = Some(varied),
    }
    missing.retain(|lacking| *lacking != name);
    Ok(())
}

/// The new number.
fn varied(name: &str, known: Option<&Sourced>, value: &str) -> Result<Sourced> {
    let quantity = Quantity::of(name);
    let Ok(factor) = value.parse::<f64>() else {
        let source = "set on the command line".to_owned();
        return Ok(Sourced { value: quantity.parse(value)?, source, certainty: Certainty::Assumed });
    };
    let Some(known) = known else {
        return Err(Error::usage(format!("expected a quantity with a unit, found `{value}`"))
            .hint("a bare number multiplies, and what it should multiply is not known of this machine"));
    };
    let value = quantity.check(known.value * factor).map_err(|error| error.context(format!("times {value}")))?;
    Ok(Sourced { value, source: format!("{}, times {factor}", known.source), certainty: Certainty::Assumed })
}
