//! A scenario taken apart: which of its differences from the baseline saves what, alone, together and left out.
//!
//! A difference belongs to a part: what enters the context (application), which tokens are kept (selection), in which number
//! format (format), and where all of it lives and what carries it (hardware). A scenario with some parts only is a scenario of
//! its own, which is replayed like any other; equal ones are replayed once. A scenario of another workload, model or rate
//! does not differ from the baseline in parts, and is not taken apart.

use super::Scenario;
use crate::error::Result;
use crate::machine::{Resource, parameters};
use crate::policy::{Floor, Stack};

/// Where a difference lies; in the order in which parts are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Application,
    Selection,
    Format,
    Hardware,
}

impl Part {
    const ALL: [Self; 4] = [Self::Application, Self::Selection, Self::Format, Self::Hardware];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Selection => "selection",
            Self::Format => "format",
            Self::Hardware => "hardware",
        }
    }

    /// The floor, and its order.
    pub(super) fn floor(self) -> (u16, &'static str) {
        match self {
            Self::Application => (0, "application"),
            Self::Selection | Self::Format => (1, "algorithm"),
            Self::Hardware => (2, "hardware"),
        }
    }

    /// The part that a stage belongs to.
    fn of(floor: Floor) -> Self {
        match floor {
            Floor::Application => Self::Application,
            Floor::Selection | Floor::Merging | Floor::Recovery => Self::Selection,
            Floor::Format => Self::Format,
        }
    }
}

/// The parts in which a scenario differs from the baseline, in order; `None` where the two do not compare.
pub(super) fn differences(baseline: &Scenario, scenario: &Scenario) -> Option<Vec<Part>> {
    let comparable = baseline.workload == scenario.workload
        && baseline.model == scenario.model
        && baseline.mode == scenario.mode
        && baseline.rate.to_bits() == scenario.rate.to_bits();
    comparable.then(|| Part::ALL.into_iter().filter(|part| differs(*part, baseline, scenario)).collect())
}

fn differs(part: Part, baseline: &Scenario, scenario: &Scenario) -> bool {
    match part {
        Part::Hardware => {
            let other = |of: &Scenario| {
                let serving =
                    format!("{:?} {:?} {:?} {:?} {:?}", of.rules, of.routing, of.kv_blocks, of.prefill, of.placement);
                let spread = (of.parallel, of.speculative);
                format!("{:?} {spread:?} {serving} {:?} {}", of.machine, of.prices, of.measured.name)
            };
            other(baseline) != other(scenario)
        }
        Part::Format => {
            baseline.dtype != scenario.dtype || stages(&baseline.policy, part) != stages(&scenario.policy, part)
        }
        Part::Application | Part::Selection => stages(&baseline.policy, part) != stages(&scenario.policy, part),
    }
}

/// The texts of the stages of a part; a stage that does nothing is none.
fn stages(stack: &Stack, part: Part) -> Vec<String> {
    let of_part = stack.stages().iter().filter(|stage| Part::of(stage.args.kind().floor) == part);
    of_part.map(|stage| stage.args.text()).filter(|text| text != "full" && text != "bf16").collect()
}

/// What is different in a part, in words.
pub(super) fn change(part: Part, baseline: &Scenario, scenario: &Scenario) -> String {
    if part == Part::Hardware {
        let of = |scenario: &Scenario| {
            let copies = scenario.instances();
            let times = if copies > 1 { format!(" in {copies} copies") } else { String::new() };
            format!("{} {}{times}", scenario.accelerators(), scenario.machine.name)
        };
        // Memories below belong to this part; where both have the same ones they are no change.
        let tiers = match (&baseline.placement, &scenario.placement) {
            (before, after) if before == after => String::new(),
            (_, Some(after)) => format!("+{after}"),
            (_, None) => " without memories below".to_owned(),
        };
        return format!("{}{tiers}", of(scenario));
    }
    let mut texts = stages(&scenario.policy, part);
    if part == Part::Format && baseline.dtype != scenario.dtype {
        texts.push(format!("{} weights", scenario.dtype.name()));
    }
    if texts.is_empty() { format!("no {}", part.name()) } else { texts.join("+") }
}

/// The scenario with only those of its differences whose bits are set in `mask`, bit 0 for the first of `parts`.
///
/// # Errors
/// Stages that do not go together without the others.
pub(super) fn with_parts(baseline: &Scenario, scenario: &Scenario, parts: &[Part], mask: usize) -> Result<Scenario> {
    let has = |part: Part| parts.iter().enumerate().any(|(at, known)| *known == part && mask >> at & 1 == 1);
    let all = (1_usize << parts.len()) - 1;
    if mask == 0 || mask == all {
        return Ok(if mask == 0 { baseline.clone() } else { scenario.clone() });
    }
    let of = |part: Part| if has(part) { scenario } else { baseline };
    let mut mixed = of(Part::Hardware).clone();
    mixed.policy = mixed_policy(parts, &has, baseline, scenario)?;
    mixed.dtype = of(Part::Format).dtype;
    Ok(mixed)
}

fn mixed_policy(parts: &[Part], has: &dyn Fn(Part) -> bool, baseline: &Scenario, scenario: &Scenario) -> Result<Stack> {
    let mut policy_parts = parts.iter().filter(|part| **part != Part::Hardware).peekable();
    if policy_parts.peek().is_none() || policy_parts.clone().all(|part| has(*part)) {
        return Ok(scenario.policy.clone());
    }
    if policy_parts.all(|part| !has(*part)) {
        return Ok(baseline.policy.clone());
    }
    let mut texts = Vec::new();
    for part in [Part::Application, Part::Selection, Part::Format] {
        texts.extend(stages(if has(part) { &scenario.policy } else { &baseline.policy }, part));
    }
    let stack = Stack::parse(&if texts.is_empty() { "full".to_owned() } else { texts.join("+") })?;
    // What the selection was seen to keep holds with other formats too.
    let source = if has(Part::Selection) { &scenario.policy } else { &baseline.policy };
    Ok(match source.measured() {
        Some(measured) => stack.with_measured(measured.clone()),
        None => stack,
    })
}

/// The scenario on a machine with so many times one resource.
pub(super) fn with_more(scenario: &Scenario, resource: Resource, factor: f64) -> Scenario {
    let mut varied = scenario.clone();
    if (factor - 1.0).abs() > f64::EPSILON {
        varied.machine = resource.times(&scenario.machine, factor);
        let [before, now] = [&scenario.machine, &varied.machine].map(parameters);
        varied.measured = scenario.measured.on(&before, &now);
        varied.machine.name = format!("{} with {factor} times the {}", scenario.machine.name, resource.name());
    }
    varied
}

/// Which scenario is the baseline, if there is any.
pub(super) fn baseline_of(scenarios: &[Scenario]) -> Option<usize> {
    scenarios.iter().position(|scenario| scenario.is_baseline).or((!scenarios.is_empty()).then_some(0))
}

/// What identifies a replay apart from its name: equal keys give equal replays.
pub(super) fn key(scenario: &Scenario) -> u128 {
    let mut bare = scenario.clone();
    bare.name = String::new();
    bare.is_baseline = false;
    bare.adaptation_days.clear();
    // Two walks of FNV-1a over the whole text, from different ends of the alphabet.
    let text = format!("{bare:?}");
    let walk =
        |seed: u64| text.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    u128::from(walk(0xcbf2_9ce4_8422_2325)) << 64 | u128::from(walk(0x9e37_79b9_7f4a_7c15))
}

/// The replays that the comparisons of a run need beside its scenarios, each once.
pub fn variations(scenarios: &[Scenario]) -> Vec<Scenario> {
    let Some(baseline) = baseline_of(scenarios).and_then(|at| scenarios.get(at)) else { return Vec::new() };
    let mut seen: Vec<u128> = scenarios.iter().map(key).collect();
    let mut found = Vec::new();
    let mut add = |scenario: Scenario| {
        let key = key(&scenario);
        if !seen.contains(&key) {
            seen.push(key);
            found.push(scenario);
        }
    };
    for scenario in scenarios {
        let Some(parts) = differences(baseline, scenario) else { continue };
        for mask in 0..1_usize << parts.len() {
            if let Ok(mixed) = with_parts(baseline, scenario, &parts, mask) {
                add(mixed);
            }
        }
    }
    for (resource, factor) in Resource::replayed() {
        add(with_more(baseline, resource, factor));
    }
    found
}

#[cfg(test)]
mod tests;
