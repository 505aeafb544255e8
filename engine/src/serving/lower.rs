//! Memories below the accelerators' own: shared blocks of prompts stay there after they have left, and come back.
//!
//! Every shared block is also written to each of these memories when it is computed; each is an LRU cache of its own for
//! an instance, and writing takes no time of a step. When a request begins, blocks that follow those in memory without a
//! gap are fetched as far as that takes least time together with the rest of its prefill, or all of them
//! ([`Decide`]). The step in which the request begins waits for its fetches: nothing of them is hidden, and whoever decodes
//! in that step waits too. Fetches of one step share the ways in order.

use crate::cache::Policy;
use crate::cache::fetch::{Decide, Way};
use crate::cache::lru::Lru;
use crate::cache::way::reaches;
use crate::cost::{Plan, prefill_ns};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::unit;

/// One memory of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct Tier {
    /// The way from it to all accelerators of an instance.
    pub way: Way,
    /// Its size, bytes; `None` without a limit.
    pub capacity_bytes: Option<f64>,
}

/// The memories below, nearest first, and what is fetched from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiers {
    /// The memories.
    pub tiers: Vec<Tier>,
    /// Which blocks are fetched.
    pub decide: Decide,
}

/// What a request fetches.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Fetched {
    /// Units, from the first that is not in memory.
    pub(super) units: u32,
    /// When the last of them is there, ns from now.
    pub(super) ns: f64,
    /// Bytes.
    pub(super) bytes: f64,
}

/// What a prompt is to the memories below.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt<'a> {
    /// Its full units.
    pub(super) units: &'a [u32],
    /// How many of the first are in memory.
    pub(super) leading: usize,
    /// Tokens that are to be there before it decodes.
    pub(super) tokens: u32,
    /// Most tokens of a step.
    pub(super) chunk_tokens: u32,
}

/// The memories below one instance.
pub(super) struct Lower<'a> {
    rules: &'a Tiers,
    caches: Vec<Lru>,
    unit_tokens: u32,
    unit_bytes: f64,
    /// Until when the way of each is taken by fetches of this step, ns from now.
    taken_ns: Vec<f64>,
}

impl<'a> Lower<'a> {
    /// Empty memories for units of so many tokens and bytes, with numbers below `units`.
    pub(super) fn new(rules: &'a Tiers, units: usize, unit_tokens: u32, unit_bytes: u64) -> Self {
        let unit_bytes = unit_bytes as f64;
        let start = |tier: &Tier| {
            let fit = tier.capacity_bytes.map_or(units, |bytes| ((bytes / unit_bytes.max(1.0)) as usize).min(units));
            let mut cache = Lru::new(fit);
            cache.grow(units);
            cache
        };
        let caches = rules.tiers.iter().map(start).collect();
        Self { rules, caches, unit_tokens, unit_bytes, taken_ns: vec![0.0; rules.tiers.len()] }
    }

    /// A unit is computed, and written to all memories.
    pub(super) fn write(&mut self, unit: u32) {
        for cache in &mut self.caches {
            cache.touch(unit);
        }
    }

    /// A step begins: the ways are free.
    pub(super) fn next_step(&mut self) {
        self.taken_ns.fill(0.0);
    }

    /// What a prompt would fetch; nothing is changed.
    pub(super) fn look(&self, plan: &Plan, prompt: &Prompt<'_>) -> Fetched {
        let whole = |units: usize| (units as u32).saturating_mul(self.unit_tokens).min(prompt.tokens.saturating_sub(1));
        let rest = |units: usize| prefill_ns(plan, whole(units), prompt.tokens, prompt.chunk_tokens);
        let (mut taken, mut now) = (self.taken_ns.clone(), Fetched::default());
        let mut best = (now, rest(prompt.leading));
        let mut at = prompt.leading;
        while let Some(tier) = prompt.units.get(at).and_then(|&unit| self.nearest(unit)) {
            let run = prompt.units[at..].iter().take_while(|&&unit| self.nearest(unit) == Some(tier)).count();
            let bytes = run as f64 * self.unit_bytes;
            let way = &self.rules.tiers[tier].way;
            taken[tier] += way.latency_ns + bytes / way.bytes_per_ns;
            at += run;
            now =
                Fetched { units: (at - prompt.leading) as u32, ns: now.ns.max(taken[tier]), bytes: now.bytes + bytes };
            let total = now.ns + rest(at);
            if total < best.1 || self.rules.decide == Decide::Always {
                best = (now, total);
            }
        }
        best.0
    }

    /// Fetches what [`Lower::look`] found.
    pub(super) fn fetch(&mut self, prompt: &Prompt<'_>, fetched: Fetched) {
        let end = prompt.leading + fetched.units as usize;
        let units = prompt.units.get(prompt.leading..end).unwrap_or_default();
        let mut last = None;
        for &unit in units {
            let Some(tier) = self.nearest(unit) else { continue };
            let way = &self.rules.tiers[tier].way;
            let latency = if last == Some(tier) { 0.0 } else { way.latency_ns };
            self.taken_ns[tier] += latency + self.unit_bytes / way.bytes_per_ns;
            last = Some(tier);
        }
        units.iter().for_each(|&unit| self.write(unit));
    }

    fn nearest(&self, unit: u32) -> Option<usize> {
        self.caches.iter().position(|cache| cache.holds(unit))
    }
}

/// Reads a placement rule such as `tier(hbm,dram=1TB,nvme; fetch=break_even)` for a machine: after `hbm` the machine's
/// farther memories by any names, nearest first, each with the size that an instance has of it, or with the published one
/// (without a limit where none is). Options are `fetch=break_even` or `fetch=always`; `evict=lru`, `write=through` and
/// `inclusive` are what is done and may be said.
///
/// # Errors
/// Another form, more memories than the machine has with a known bandwidth, an option that is not modelled.
pub fn parse(text: &str, machine: &Machine, accelerators: f64) -> Result<Tiers> {
    let wrong = |found: &str| {
        Error::usage(format!("expected a placement such as `tier(hbm,dram=1TB; fetch=break_even)`, found `{found}`"))
    };
    let inside =
        text.trim().strip_prefix("tier(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(|| wrong(text))?;
    let mut parts = inside.split(';');
    let mut names = parts.next().unwrap_or_default().split(',').map(str::trim);
    if names.next() != Some("hbm") {
        return Err(wrong(text).hint("the first memory is `hbm`, the accelerators' own"));
    }
    let reaches = reaches(machine, accelerators);
    let mut tiers = Vec::new();
    for (at, name) in names.enumerate() {
        let reach = reaches.get(at).ok_or_else(|| {
            Error::run(format!(
                "`{}` has {} farther memories with a published bandwidth, found `{name}` as number {}",
                machine.name,
                reaches.len(),
                at + 1
            ))
        })?;
        let capacity_bytes = match name.split_once('=') {
            Some((_, size)) => Some(unit::parse(&unit::BYTES, size.trim())?),
            None if name.is_empty() => return Err(wrong(text)),
            None => reach.capacity_bytes,
        };
        tiers.push(Tier { way: reach.way.clone(), capacity_bytes });
    }
    if tiers.is_empty() {
        return Err(wrong(text).hint("name at least one memory below `hbm`"));
    }
    let mut decide = Decide::BreakEven;
    for option in parts.flat_map(|part| part.split(',')).map(str::trim).filter(|option| !option.is_empty()) {
        match option.replace(' ', "").as_str() {
            "fetch=break_even" => decide = Decide::BreakEven,
            "fetch=always" => decide = Decide::Always,
            "evict=lru" | "write=through" | "inclusive" => {}
            other => {
                return Err(Error::usage(format!("`{other}` of `tier` is not modelled in serving"))
                    .hint("what is modelled: fetch=break_even or always, evict=lru, write=through, inclusive"));
            }
        }
    }
    Ok(Tiers { tiers, decide })
}

#[cfg(test)]
mod tests;
