//! The stage `lethe`: prunes a layer in rounds while decoding, down to the tokens whose decayed attention is not far below the
//! best (`Lethe`).
//!
//! The salience of a token is `s = gamma * s + a` with the attention `a` of each step, added over all heads of the layer and
//! renormalised over what is kept; it begins with the attention from all prompt queries. When more than `trigger` tokens are
//! kept, those with `s >= max / tau`, the sinks, and the last share of what is kept stay. If all pass, the trigger is doubled.
//!
//! Published are `tau=400` (as the sparse ratio) and `recent=30%`. `gamma`, the sinks and the trigger are not, and the digests
//! differ on the direction of the ratio; the one here matches that a larger ratio keeps more (POLICIES 1.15). The layer's
//! segments only bound where a breakpoint may lie and are left out.

use super::select::{Units, need_whole_layers};
use super::{Args, COLUMN_SUM, Channel, Choice, Deployment, Floor, Kept, Kind, MASS, Param, Rule, Selection};
use crate::error::Result;
use crate::recording::{Head, Step};

/// `lethe(trigger,tau=400,recent=30%,gamma=0.9,sinks=4)`.
pub(super) static KIND: Kind = Kind {
    name: "lethe",
    doc: "Prunes a layer in rounds while decoding: tokens whose decayed attention is far below the best go.",
    floor: Floor::Selection,
    params: &[
        Param { name: "trigger", default: "", doc: "Tokens of cache at which a layer is pruned first." },
        Param { name: "tau", default: "400", doc: "How far below the best a token may be: a larger ratio keeps more." },
        Param { name: "recent", default: "30%", doc: "Share of the kept tokens, the last of them, that stay." },
        Param { name: "gamma", default: "0.9", doc: "Decay of salience per step; not published, an assumption." },
        Param { name: "sinks", default: "4", doc: "First tokens, which stay; not published, an assumption." },
    ],
    needs: &[&MASS, &COLUMN_SUM],
    source: "Lethe (arXiv 2511.06029), from digests",
    deployment: Deployment::NONE,
    make,
};

static NEEDS: [&Channel; 2] = [&MASS, &COLUMN_SUM];

fn make(args: &Args) -> Result<Rule> {
    args.count("trigger", 1, u32::MAX)?;
    args.number("tau", 1.0, 1e12)?;
    args.share("recent")?;
    args.number("gamma", 0.0, 1.0)?;
    args.count("sinks", 0, u32::MAX)?;
    let choice = Choice {
        budgets: Some(|_, heads, _| need_whole_layers("lethe", heads)),
        prompt: Some(begin),
        after: Some(prune),
        ..Choice::NONE
    };
    Ok(Rule::Select(Selection { kept: Kept::Measured(&NEEDS), ..Selection::plain(choice) }))
}

/// The first head's sums and limit are the layer's.
fn begin(args: &Args, heads: &[Head<'_>], _: &[u32], units: &mut [Units]) -> Result<()> {
    let (Some(head), Some(first)) = (heads.first(), units.first_mut()) else { return Ok(()) };
    let trigger = args.count("trigger", 1, u32::MAX)?;
    if trigger >= head.longest_context() {
        return Ok(());
    }
    let mut all = vec![0.0_f32; head.request.prompt_tokens as usize];
    for head in heads {
        let sums = head.score("lethe", &COLUMN_SUM, 0)?;
        all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
    }
    first.begin_sums(&all);
    first.limit = trigger;
    Ok(())
}

fn prune(args: &Args, _: &[Head<'_>], steps: &[Step<'_>], units: &mut [Units]) -> Result<()> {
    let Some((first, others)) = units.split_first_mut() else { return Ok(()) };
    if first.sums.is_empty() {
        return Ok(());
    }
    let gamma = args.number("gamma", 0.0, 1.0)?;
    if gamma > 0.0 {
        for sum in &mut first.sums {
            *sum *= gamma;
        }
    } else {
        // Infinity times nothing is no number.
        first.begin_sums(&[]);
    }
    for step in steps {
        first.add_renormalised(step.mass);
    }
    let kept = first.count();
    if kept <= first.of(first.limit) {
        return Ok(());
    }
    let best = first.sums.iter().copied().filter(|sum| sum.is_finite()).fold(0.0, f64::max);
    let least = best / args.number("tau", 1.0, 1e12)?;
    if first.sums.iter().all(|sum| *sum >= least) {
        first.limit = first.limit.saturating_mul(2);
        return Ok(());
    }
    let sinks = first.of(args.count("sinks", 0, u32::MAX)?);
    // The unit that is being written stays.
    let mut recent = ((kept as f64 * args.share("recent")?) as usize).max(1);
    for at in (sinks..first.kept.len()).rev() {
        let (Some(true), Some(sum)) = (first.kept.get(at).copied(), first.sums.get(at).copied()) else { continue };
        if recent > 0 {
            recent -= 1;
        } else if sum < least {
            first.drop(at);
        }
    }
    for other in others {
        other.kept.copy_from_slice(&first.kept);
    }
    Ok(())
}
