//! Hierarchies and fabrics at the same dollars per hour: which one serves more of the traffic for the money, and why.
//!
//! *Hierarchies.* An instance with the machine's memory alone is set against instances with host memory, and with host memory
//! and flash, whose sizes are tried in steps of two. Each costs its accelerators and its memories; the same money buys fewer
//! of the dearer ones. What an instance takes for a request is the prefill of what it does not find (fetched where that is
//! faster, [`crate::cache::fetch`]) and its decoding, which is the same for all and is taken from the replay: step time
//! shared by tokens. Waiting for a fetch keeps a request back and not the instance. Requests of users per hour at full load
//! are compared (what stages of a policy send is work for those), at several arrival rates: the scenario is served at each,
//! and what running requests hold in the mean is no room for the cache near the accelerators; faster arrivals also queue on
//! the way to the memories.
//!
//! *Fabrics.* Accelerators of the machine, joined by each fabric and paid with it, decode together. For each number of
//! requests in flight every tensor parallelism that fits is tried, with data-parallel attention in all of them, and experts
//! spread over as many as divide them. A step takes
//! what the cost engine says without collectives, and the fabric's awaited traffic on the best placement. Tokens per second
//! for the money are compared. Farther memories lie evenly at all hosts, so that what a step fetches crosses the hosts' links
//! and the fabric at once and waits for the slower. Where the FFN is apart, its accelerators take every other place, copies
//! decode by themselves, and the fabric carries the hop; it is priced with the accelerators that attend.
//!
//! Money for memory is its price over an assumed life; both are assumptions of this module and stand in the rows.

use arrow::array::RecordBatch;

use super::hierarchy::{below, by_instance, near_blocks};
use super::{Found, Scenario, Source, replay};
use crate::cache::fetch::{self, Decide, Terms};
use crate::cache::tiers::{Frequency, Hierarchy, Inclusion, Write};
use crate::cache::way::{Reach, reaches};
use crate::cost::{Batch, Parallel, Plan, StepCost, plan, price};
use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::fabric::place::{Layout, Order};
use crate::fabric::step::{Placements, Style, class_cost, placements};
use crate::fabric::topology::{Network, network};
use crate::fabric::traffic::{self, CLASSES, Class, Step, Traffic, Wire, traffic};
use crate::model::Model;
use crate::policy::shape;
use crate::schema::hierarchy::EQUAL_COST;
use crate::schema::{Cell, batch_of_rows};
use crate::serving::Stretch;
use crate::workload::Workload;

/// Hours of the life over which memory is paid: four years. Assumed.
const LIFE_HOURS: f64 = 4.0 * 8_760.0;

/// Dollars per GB of host memory: DDR5 RDIMM, first quarter of 2026 (Counterpoint in the press: 14 to 16).
const HOST_USD_PER_GB: f64 = 15.0;

/// Dollars per GB of flash: consumer drives, first half of 2026 (press: 125 to 240 a TB; enterprise drives cost more).
const FLASH_USD_PER_GB: f64 = 0.2;

/// Sizes of host memory that are tried, as multiples of the KV memory of an instance.
const HOST_SIZES: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// Sizes of flash beside it.
const FLASH_SIZES: [f64; 3] = [16.0, 64.0, 256.0];

/// Arrival rates that are tried, as multiples of the scenario's.
const RATES: [f64; 3] = [0.25, 1.0, 4.0];

/// Requests in flight that are tried on fabrics.
const IN_FLIGHT: [u32; 5] = [64, 256, 1024, 4096, 16_384];

/// One way to spend the money.
#[derive(Debug, Clone, PartialEq)]
struct Choice {
    kind: &'static str,
    traffic: String,
    level: f64,
    option: String,
    sizes: String,
    /// Dollars per hour of an instance or accelerator with what belongs to it.
    unit_usd: f64,
    /// Requests of users, or tokens, per hour of a dollar per hour.
    per_usd: f64,
    /// Mean time to the end of the prefill, or of a step, ns.
    latency_ns: f64,
    /// What decides, as parts of 1: for hierarchies tokens found, time saved, money added; for fabrics the network's part of a
    /// step, the compute's, money added.
    parts: [f64; 3],
}

/// What the scenario that is compared is made of.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its number.
    pub number: u32,
    /// The scenario.
    pub scenario: &'a Scenario,
    /// What it came to.
    pub found: &'a Found,
    /// Its requests.
    pub workload: &'a Workload,
    /// The fabrics that are compared.
    pub fabrics: &'a [Fabric],
}

/// The rows of [`EQUAL_COST`].
///
/// # Errors
/// A scenario without a price.
pub fn table(subject: &Subject<'_>) -> Result<RecordBatch> {
    let Subject { scenario, found, .. } = subject;
    let price = found.price.usd_per_accelerator_hour.as_ref().map(|price| price.value).filter(|usd| *usd > 0.0);
    let usd = price.ok_or_else(|| {
        Error::run(format!("`{}` has no price in the book `{}`", scenario.machine.preset, scenario.prices.name))
            .hint("take another price book; see `kvtoll list prices`")
    })?;
    let mut choices = hierarchies(subject, usd)?;
    choices.extend(fabrics(subject, usd)?);
    let budget = usd * f64::from(scenario.accelerators());
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for alike in choices.chunk_by(|a, b| a.kind == b.kind && a.traffic == b.traffic) {
        let best = alike.iter().fold(0.0_f64, |best, choice| best.max(choice.per_usd));
        let winner = alike.iter().position(|choice| choice.per_usd >= best);
        for (at, choice) in alike.iter().enumerate() {
            let is_best = winner == Some(at);
            rows.push(row(subject.number, choice, (budget, best, is_best), alike));
        }
    }
    batch_of_rows(&EQUAL_COST, &rows)
}

fn row(number: u32, choice: &Choice, (budget, best, is_best): (f64, f64, bool), alike: &[Choice]) -> Vec<Cell> {
    let units = budget / choice.unit_usd;
    vec![
        number.into(),
        choice.kind.into(),
        choice.traffic.as_str().into(),
        choice.level.into(),
        choice.option.as_str().into(),
        choice.sizes.as_str().into(),
        budget.into(),
        choice.unit_usd.into(),
        units.into(),
        (choice.per_usd * budget).into(),
        (if best > 0.0 { Some(choice.per_usd / best) } else { None }).into(),
        (choice.latency_ns.round() as i64).into(),
        is_best.into(),
        why(choice, is_best, alike).into(),
        "assumed".into(),
    ]
}

/// What decides, in a sentence.
fn why(choice: &Choice, is_best: bool, alike: &[Choice]) -> String {
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    let [first, second, third] = choice.parts;
    if choice.kind == "hierarchy" {
        if third == 0.0 {
            let dearer = alike.iter().any(|other| other.parts[1] > 0.0);
            return match (is_best, dearer) {
                (true, true) => format!("finds {} of the tokens; more memory saves less than it costs", percent(first)),
                (true, false) => format!("finds {} of the tokens; more memory saves nothing", percent(first)),
                (false, _) => format!("finds only {} of the tokens", percent(first)),
            };
        }
        let verdict = if is_best { "worth it" } else { "not the best use of the money" };
        return format!(
            "finds {} of the tokens and saves {} of the machine time for {} more money: {verdict}",
            percent(first),
            percent(second),
            percent(third)
        );
    }
    let own = format!("links take {} of a step and add {} to the price", percent(first), percent(third));
    let other = alike.iter().filter(|other| *other != choice).reduce(|a, b| if b.per_usd > a.per_usd { b } else { a });
    let Some(other) = other else { return own };
    let compared = format!("with `{}` {} and {}", other.option, percent(other.parts[0]), percent(other.parts[2]));
    let verdict = match (is_best, third > other.parts[2]) {
        (true, true) => "what they save is worth their price",
        (true, false) => "dearer links save less than they cost",
        (false, true) => "they save less than they cost",
        (false, false) => "dearer links save more than they cost",
    };
    format!("{own}, {compared}: {verdict}")
}

/// Requests of users, by which machine time is shared: what stages of the policy send is work for them.
fn users(workload: &Workload) -> f64 {
    (0..workload.len()).filter(|at| !workload.is_added(*at)).count().max(1) as f64
}

/// Machine time of an instance for decoding a user's request, ns: stretches shared by the tokens of their steps.
fn decode_ns(found: &Found, workload: &Workload) -> f64 {
    let of = |stretch: &Stretch| {
        let (decoded, filled) = (stretch.decode_requests as f64 * stretch.steps as f64, stretch.prefill_tokens as f64);
        let share = if decoded > 0.0 { decoded / (decoded + filled) } else { 0.0 };
        stretch.total_ns as f64 * share
    };
    found.outcome.stretches.iter().map(of).sum::<f64>() / users(workload)
}

fn hierarchies(subject: &Subject<'_>, usd: f64) -> Result<Vec<Choice>> {
    let Subject { scenario, found, workload, .. } = *subject;
    if workload.units.is_empty()
        || found.plan.growing_bytes() == 0
        || scenario.mode != super::Mode::Live(crate::serving::Traffic::Open)
    {
        return Ok(Vec::new());
    }
    let reached = reaches(&scenario.machine, found.plan.tensor);
    let memory = found.plan.capacity_bytes as f64;
    let gb = |bytes: f64, usd_per_gb: f64| bytes / 1e9 * usd_per_gb / LIFE_HOURS;
    let own = usd * found.plan.tensor;
    let decode = decode_ns(found, workload);
    let mut choices = Vec::new();
    for rate in RATES {
        let faster = workload.at_rate(scenario.rate * rate)?;
        let free = 1.0 - held_ratio(subject, rate)?;
        let near = ((near_blocks(found, &faster) as f64 * free) as usize).min(faster.distinct_units as usize);
        let served = |tiers: &[Reach]| served(subject, &faster, near, tiers);
        let alone = served(&[])?;
        let base = decode + alone.prefill_ns / users(&faster);
        let frame = (rate, decode, base, free);
        choices.push(of_memory(frame, "machine's memory alone", String::new(), (own, own), &alone, &faster));
        let best_of = |option: &str, tried: Vec<Choice>| {
            let best = tried.into_iter().reduce(|best, next| if next.per_usd > best.per_usd { next } else { best });
            best.map(|choice| Choice { option: option.to_owned(), ..choice })
        };
        let Some(host) = reached.first() else { continue };
        let mut with_host = Vec::new();
        for size in HOST_SIZES {
            let tiers = [sized(host, size * memory)];
            let cost = own + gb(size * memory, HOST_USD_PER_GB);
            let text = format!("{:.0} GB host", size * memory / 1e9);
            with_host.push(of_memory(frame, "", text, (cost, own), &served(&tiers)?, &faster));
        }
        choices.extend(best_of("plus host memory", with_host));
        let Some(flash) = reached.get(1) else { continue };
        let mut with_flash = Vec::new();
        for size in FLASH_SIZES {
            let tiers = [sized(host, memory), sized(flash, size * memory)];
            let cost = own + gb(memory, HOST_USD_PER_GB) + gb(size * memory, FLASH_USD_PER_GB);
            let text = format!("{:.0} GB host, {:.0} GB flash", memory / 1e9, size * memory / 1e9);
            with_flash.push(of_memory(frame, "", text, (cost, own), &served(&tiers)?, &faster));
        }
        choices.extend(best_of("plus host memory and flash", with_flash));
    }
    Ok(choices)
}

fn sized(reach: &Reach, bytes: f64) -> Reach {
    Reach { capacity_bytes: Some(bytes), ..reach.clone() }
}

/// The share of the KV memory that running requests hold, mean over time, when the scenario is served at a multiple of its
/// rate.
fn held_ratio(subject: &Subject<'_>, rate: f64) -> Result<f64> {
    let Subject { scenario, found, workload, .. } = *subject;
    if rate.to_bits() == 1.0_f64.to_bits() {
        return Ok(held_in(scenario, found));
    }
    let faster = Scenario { rate: scenario.rate * rate, policy: scenario.policy.without_edits(), ..scenario.clone() };
    let source = Source { workload: workload.clone(), steps: Vec::new(), trace: None, edited: None };
    Ok(held_in(&faster, &replay(&faster, &source)?))
}

fn held_in(scenario: &Scenario, found: &Found) -> f64 {
    let of = |stretch: &Stretch| stretch.held_bytes as f64 * stretch.total_ns as f64;
    let held: f64 = found.outcome.stretches.iter().map(of).sum();
    let whole = found.capacity_bytes(scenario) as f64 * found.duration_ns as f64;
    if whole > 0.0 { (held / whole).min(1.0) } else { 0.0 }
}

/// The requests of all instances on a near cache of so many blocks with these tiers below it.
fn served(subject: &Subject<'_>, workload: &Workload, near: usize, tiers: &[Reach]) -> Result<fetch::Found> {
    let Subject { scenario, found, .. } = *subject;
    let mut hierarchy = Hierarchy {
        tiers: vec![super::hierarchy::near(near)?],
        inclusion: Inclusion::Inclusive,
        write: Write::Through,
        frequency: Frequency::Uses,
    };
    for reach in tiers {
        hierarchy.tiers.extend(below(found, workload, reach)?.tiers.into_iter().skip(1));
    }
    let ways: Vec<_> = tiers.iter().map(|reach| reach.way.clone()).collect();
    let terms =
        Terms { plan: &found.plan, ways: &ways, decide: Decide::BreakEven, chunk_tokens: scenario.rules.step_tokens };
    by_instance(workload, scenario, &hierarchy, terms)
}

fn of_memory(
    (rate, decode, base, free): (f64, f64, f64, f64),
    option: &str,
    sizes: String,
    (unit_usd, own): (f64, f64),
    found: &fetch::Found,
    workload: &Workload,
) -> Choice {
    let machine = decode + found.prefill_ns / users(workload);
    let requests = workload.len().max(1) as f64;
    let prompts: f64 = workload.prompt.iter().map(|tokens| f64::from(*tokens)).sum();
    Choice {
        kind: "hierarchy",
        traffic: format!("arrivals x{rate}, {:.0}% of KV memory free for the cache", 100.0 * free),
        level: rate,
        option: option.to_owned(),
        sizes,
        unit_usd,
        per_usd: 3.6e12 / machine / unit_usd,
        latency_ns: (found.prefill_ns + found.fetch_ns) / requests,
        parts: [found.found_tokens as f64 / prompts.max(1.0), 1.0 - machine / base, unit_usd / own - 1.0],
    }
}

fn fabrics(subject: &Subject<'_>, usd: f64) -> Result<Vec<Choice>> {
    let workload = subject.workload;
    let mean = |tokens: &[u32]| tokens.iter().map(|t| f64::from(*t)).sum::<f64>() / tokens.len().max(1) as f64;
    let context = (mean(&workload.prompt) + mean(&workload.output) / 2.0).round().max(1.0) as u32;
    let mut choices = Vec::new();
    for in_flight in IN_FLIGHT {
        for fabric in subject.fabrics {
            let Some(links) = fabric.usd_per_accelerator_hour() else { continue };
            let mut best: Option<Choice> = None;
            let mut tensor = 1;
            while tensor <= fabric.accelerators {
                if let Some(next) = on_fabric(subject, fabric, (tensor, in_flight, context), (usd, links))? {
                    best = match best {
                        Some(best) if best.per_usd >= next.per_usd => Some(best),
                        _ => Some(next),
                    };
                }
                tensor *= 2;
            }
            choices.extend(best);
        }
    }
    Ok(choices)
}

/// Parts of the experts: as many as divide both the accelerators and the experts of every layer; 1 without experts.
fn expert_parts(model: &Model, accelerators: u32) -> u32 {
    let mut experts = model.groups.iter().map(|group| group.ffn.experts).filter(|experts| *experts > 0).peekable();
    if experts.peek().is_none() {
        return 1;
    }
    experts
        .fold(accelerators, |parts, experts| (1..=parts).rev().find(|part| divides(*part, parts, experts)).unwrap_or(1))
}

fn divides(part: u32, accelerators: u32, experts: u32) -> bool {
    accelerators.is_multiple_of(part) && experts.is_multiple_of(part)
}

/// How the accelerators of a fabric work with this tensor parallelism; `None` where they do not divide, or have no request
/// each. With the FFN apart, its accelerators take every other place.
fn layout(scenario: &Scenario, fabric: &Fabric, (tensor, in_flight): (u32, u32)) -> Option<Layout> {
    let is_apart = scenario.machine.ffn_pool.is_some();
    let attending = if is_apart { fabric.accelerators / 2 } else { fabric.accelerators };
    let (data, ffn) = (attending / tensor, fabric.accelerators - attending);
    let expert = if is_apart { 1 } else { expert_parts(&scenario.model, fabric.accelerators) };
    let fits = data > 0 && tensor * data == attending && in_flight >= data;
    fits.then_some(Layout { tensor, data, pipeline: 1, expert, ffn, memory: 0 })
}

/// Decoding on a fabric with this tensor parallelism; `None` where it does not fit.
fn on_fabric(
    subject: &Subject<'_>,
    fabric: &Fabric,
    (tensor, in_flight, context): (u32, u32, u32),
    (usd, links): (f64, f64),
) -> Result<Option<Choice>> {
    let Subject { scenario, found, .. } = *subject;
    let Some(layout) = layout(scenario, fabric, (tensor, in_flight)) else { return Ok(None) };
    let mut machine = scenario.machine.clone();
    machine.accelerator.scale_up_domain = fabric.accelerators;
    // With the FFN apart each copy decodes by itself; else all attend to their own and share experts.
    let (data, copies) = if layout.ffn > 0 { (1, layout.data) } else { (layout.data, 1) };
    let parallel = Parallel { tensor, data, expert: layout.expert, pipeline: 1, instances: copies };
    let model = &scenario.model;
    let Ok(mut plan) = plan(model, &shape(&scenario.policy, model)?, &machine, scenario.dtype, parallel) else {
        return Ok(None);
    };
    let batch = u64::from(in_flight / copies);
    if plan.footprint(context, context, true).saturating_mul(batch) > plan.capacity_bytes {
        return Ok(None);
    }
    let cost = decode(&plan, batch, context);
    let fetched = fetched(found, &cost, (f64::from(copies), f64::from(in_flight)));
    let (net, step) = (network(fabric)?, step(f64::from(in_flight / layout.data), fetched / f64::from(layout.data)));
    let sent = traffic(model, &layout, &step)?;
    let Placements { best, .. } = placements(&net, &layout, Style::Adapted, &sent);
    let (cost, exchanged) = if plan.ffn_pool.is_some() {
        carry(&mut plan, (&net, &layout, best.order), &sent);
        let cost = decode(&plan, batch, context);
        (cost, cost.collective + cost.link)
    } else {
        let exchanged = best.awaited_ns() - best.class_ns(Class::TierFetch);
        (StepCost { collective: exchanged, ..cost }, exchanged)
    };
    // Hosts and the fabric carry what is fetched at once.
    let fetch = host_ns(found, &cost, (fetched, layout.ranks())).max(best.class_ns(Class::TierFetch));
    let whole = cost.total() - cost.tier + fetch;
    let unit_usd = usd + links * f64::from(fabric.accelerators) / f64::from(layout.ranks());
    Ok(Some(Choice {
        kind: "fabric",
        traffic: format!("{in_flight} requests in flight"),
        level: f64::from(in_flight),
        option: fabric.title.clone(),
        sizes: format!("tensor parallelism of {tensor}"),
        unit_usd,
        per_usd: f64::from(in_flight) / whole * 3.6e12 / (unit_usd * f64::from(layout.ranks())),
        latency_ns: whole,
        parts: [(exchanged + fetch) / whole, 1.0 - (exchanged + fetch) / whole, unit_usd / usd - 1.0],
    }))
}

/// A step of decoding alone.
fn decode(plan: &Plan, batch: u64, context: u32) -> StepCost {
    let kept: Vec<u64> = plan.lane_keeps().map(|(_, keep)| batch * u64::from(keep.tokens(context, context))).collect();
    let none = vec![0; plan.groups.len()];
    price(
        plan,
        &Batch {
            decode_requests: batch,
            kept_tokens: &kept,
            longest_tokens: 0,
            prefill_tokens: 0,
            prefill_requests: 0,
            prefill_rows: 0,
            prefill_pairs: &vec![0.0; plan.groups.len()],
            prefill_context: &none,
            scored_tokens: 0,
        },
    )
}

/// Bytes that a step of all copies fetches from farther memories: by the replay, what a generated token has caused there, or
/// what `recall` fetches.
fn fetched(found: &Found, cost: &StepCost, (copies, in_flight): (f64, f64)) -> f64 {
    if found.below.is_none() {
        return cost.tier_bytes * copies;
    }
    let sum = |of: fn(&Stretch) -> f64| found.outcome.stretches.iter().map(of).sum::<f64>();
    let decoded = sum(|stretch| stretch.decode_requests as f64 * stretch.steps as f64);
    sum(|stretch| stretch.cost.tier_bytes) / decoded.max(1.0) * in_flight
}

/// Time of these bytes on the ways from the hosts of so many accelerators, ns.
fn host_ns(found: &Found, cost: &StepCost, (bytes, accelerators): (f64, u32)) -> f64 {
    let Some(below) = &found.below else { return cost.tier };
    let rate = below.tiers.iter().map(|tier| tier.way.bytes_per_ns).fold(0.0, f64::max) / found.plan.tensor;
    if bytes > 0.0 { bytes / (rate * f64::from(accelerators)) } else { 0.0 }
}

fn step(batch: f64, fetched_bytes: f64) -> Step {
    let terms = traffic::Terms { wire: Wire::Bf16, coalesce: 64.0 };
    Step { batch, prefill_tokens: 0.0, kv_bytes_per_token: 0.0, replicas: 0.0, fetched_bytes, terms: [terms; CLASSES] }
}

/// Lets a fabric carry the all-reduces of a plan and the hop to its FFN accelerators: each takes a fixed time and a time per
/// byte, such that the traffic given takes what it takes there.
fn carry(plan: &mut Plan, (net, layout, order): (&Network, &Layout, Order), sent: &[Traffic]) {
    let places = layout.places(order);
    // Fixed time, and bytes of a member over the time that they add.
    let of = |class: Class| {
        let once = Traffic { times: 1.0, ..sent.iter().find(|sent| sent.class == class)?.clone() };
        let none = Traffic { pattern: once.pattern.with_bytes(0.0), ..once.clone() };
        let whole = class_cost(net, &once, &places, Style::Adapted).moved.ns;
        let fixed = class_cost(net, &none, &places, Style::Adapted).moved.ns;
        Some((fixed, once.pattern.bytes() / (whole - fixed).max(f64::MIN_POSITIVE)))
    };
    if let Some((fixed, rate)) = of(Class::TensorAllReduce) {
        (plan.collective_latency_ns, plan.collective_bytes_per_ns) =
            (fixed, rate * 2.0 * (plan.tensor - 1.0) / plan.tensor);
    }
    let hops = [Class::AttentionToFfn, Class::FfnToAttention].into_iter().filter_map(of);
    let slower = hops.reduce(|a, b| (a.0.max(b.0), a.1.min(b.1)));
    if let (Some(pool), Some((fixed, rate))) = (&mut plan.ffn_pool, slower) {
        // A pair carries its part of what an accelerator sends.
        (pool.link_latency_ns, pool.link_bytes_per_ns) = (fixed, rate * f64::from(layout.ffn));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::place::USUAL;
    use crate::fabric::step::step_cost;
    use crate::model::WeightDtype;
    use crate::policy::Stack;
    use crate::test_kit::toy_workload;
    use crate::workload::ADDED;

    fn preset(path: &str) -> String {
        let presets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets");
        std::fs::read_to_string(presets.join(path)).unwrap()
    }

    fn near(found: f64, wanted: f64) {
        assert!((found - wanted).abs() <= 1e-6 * wanted.abs(), "{found} {wanted}");
    }

    /// Three requests of users and one that a stage sends: it takes machine time and is none that is served.
    #[test]
    fn requests_of_stages_are_work_and_not_served() {
        let mut workload = toy_workload(&[(0, 64, 1, 0), (0, 64, 1, 1), (0, 64, 1, 2), (0, 64, 1, 2)]);
        let found = fetch::Found { prefill_ns: 300.0, ..fetch::Found::default() };
        let of = |workload: &Workload| {
            of_memory((1.0, 100.0, 200.0, 1.0), "", String::new(), (2.0, 2.0), &found, workload).per_usd
        };
        near(of(&workload), 3.6e12 / 175.0 / 2.0);
        workload.request_ids[3] |= ADDED;
        near(of(&workload), 3.6e12 / 200.0 / 2.0);
    }

    /// Where the FFN is apart, hops and all-reduces take what the fabric says, and a narrow way up makes steps longer.
    #[test]
    fn a_fabric_carries_the_hop_to_ffn_accelerators() {
        let expression = "vera-rubin-lpx*link_bytes_per_s=200GB/s*link_latency_ns=2us";
        let text = preset("machine/vera-rubin-lpx.toml");
        let machine = crate::machine::resolve(expression, &|_| Some((text.clone(), "m.toml".to_owned()))).unwrap();
        let model = crate::model::parse(&preset("model/llama-3.1-8b.toml"), "llama-3.1-8b.toml").unwrap();
        let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
        let own = plan(&model, &shape, &machine, WeightDtype::Fp8, Parallel::tensor(8)).unwrap();
        let layout = Layout { tensor: 8, data: 4, pipeline: 1, expert: 1, ffn: 32, memory: 0 };
        let sent = traffic(&model, &layout, &step(2048.0, 0.0)).unwrap();
        let on = |name: &str| {
            let net = network(&crate::fabric::parse(&preset(&format!("fabric/{name}.toml")), name).unwrap()).unwrap();
            let cost = step_cost(&net, &layout, (USUAL, Style::Adapted), &sent);
            let mut plan = own.clone();
            carry(&mut plan, (&net, &layout, USUAL), &sent);
            let pool = plan.ffn_pool.as_ref().unwrap();
            let hop = pool.link_latency_ns + 2048.0 * pool.hop_bytes / pool.link_bytes_per_ns;
            near(hop, cost.class_ns(Class::AttentionToFfn) / 32.0);
            let ring = 2048.0 * plan.residual_bytes * 2.0 * 7.0 / 8.0;
            near(
                plan.collective_latency_ns + ring / plan.collective_bytes_per_ns,
                cost.class_ns(Class::TensorAllReduce) / 32.0,
            );
            (hop, decode(&plan, 2048, 1000).total())
        };
        let (flat, layered, clos) = (on("flat"), on("layered"), on("clos"));
        assert!(flat.0 < layered.0 && layered.0 < clos.0, "{flat:?} {layered:?} {clos:?}");
        // Attention sets the pace until the way up is narrow.
        assert!(layered.1 < clos.1, "{layered:?} {clos:?}");
    }
}
