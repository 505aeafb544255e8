//! Memories below the accelerators' own: shared blocks of prompts stay there after they have left, and come back.
//!
//! How a block gets down is a rule ([`Write`]). *Through*: when it is computed, it is written to each of these memories.
//! *On evict*: when it leaves the accelerators' memory it goes to the nearest of these, and what has to go there goes to
//! the next one. *Back*: the same, unless one of them has a copy. If the memories are *exclusive*, a block that is
//! fetched or computed again leaves the one that it was in. A memory takes a block only from its `admit`th use on. Each is a
//! cache of its own for an instance, under any policy of [`crate::cache`] that needs neither times nor sessions, and writing
//! takes no time of a step. Generated blocks come down as those of prompts do if the next turn names them; of others nothing
//! would ever come back (`LMCache` leaves them out too: `save_decode_cache=false`).
//!
//! When a request begins, blocks that follow those in memory without a gap are fetched as far as that takes least time
//! together with the rest of its prefill, or all of them ([`Decide`]). The step in which the request begins waits for its
//! fetches: nothing of them is hidden, and whoever decodes in that step waits too. Fetches of one step share the ways in
//! order.

use crate::cache::fetch::{Decide, Way};
use crate::cache::tiers::{Inclusion, Write};
use crate::cache::way::reaches;
use crate::cache::{ALL, Kind, Met, Policy, Setting, Start};
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

/// The memories below, nearest first, what they hold, and what is fetched from them.
#[derive(Debug, Clone)]
pub struct Tiers {
    /// The memories.
    pub tiers: Vec<Tier>,
    /// Which blocks are fetched.
    pub decide: Decide,
    /// Which blocks have to go.
    pub evict: Evict,
    /// How blocks come down.
    pub write: Write,
    /// Whether a copy stays when a block goes up.
    pub inclusion: Inclusion,
    /// The use from which on a block is taken.
    pub admit: u32,
}

/// The one placement rule that a policy stack may name, as `list policies` prints it.
pub const FORM: &str = "tier(hbm,dram=SIZE,...; fetch=break_even,evict=lru,write=through,inclusive,admit=1)";

/// What it does.
pub const DOC: &str =
    "Keeps shared blocks of prompts in the machine's memories below HBM and fetches them where that pays.";

/// What stands in its brackets: name, default and meaning.
pub const OPTIONS: [(&str, &str, &str); 6] = [
    (
        "memories",
        "hbm,dram",
        "After `hbm` the machine's farther memories by any names, nearest first, each with the size that an instance has of it \
         (`dram=1TB`), or with the published one.",
    ),
    (
        "fetch",
        "break_even",
        "Blocks are fetched where that takes less time than computing them again (break_even), or whenever they are there \
         (always).",
    ),
    ("evict", "lru", "Which block has to go: lru, fifo, lfu, 2q, arc, sieve or s3-fifo."),
    (
        "write",
        "through",
        "When a block goes down: as soon as it is computed (through), when it leaves HBM and no memory has a copy \
      (back), or whenever it leaves HBM (on_evict).",
    ),
    ("inclusive", "inclusive", "Whether a block that comes back up stays below (inclusive) or leaves (exclusive)."),
    ("admit", "1", "The use of a block from which on the memories below take it."),
];

/// The policies that need neither the times nor the sessions of requests.
const TIMELESS: [&str; 7] = ["lru", "fifo", "lfu", "2q", "arc", "sieve", "s3-fifo"];

/// A policy that needs neither the times nor the sessions of requests, nor the future, with its parameters' defaults.
#[derive(Debug, Clone, Copy)]
pub struct Evict {
    kind: &'static Kind,
    start: Start,
}

impl Evict {
    /// The policy of this name; `None` if there is none that needs no more.
    pub fn named(name: &str) -> Option<Self> {
        let kind = ALL.iter().copied().find(|kind| kind.name == name && TIMELESS.contains(&name))?;
        Some(Self { kind, start: kind.start? })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.kind.name
    }

    fn start(&self, setting: Setting) -> Box<dyn Policy> {
        let values: Vec<u64> = self.kind.params.iter().map(|param| param.default).collect();
        (self.start)(&values, setting)
    }
}

/// What one of the memories did in a while, and what it holds at the end of it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Moved {
    /// Bytes that were fetched from it.
    pub read_bytes: f64,
    /// Bytes that came down to it.
    pub written_bytes: f64,
    /// Bytes that it holds.
    pub resident_bytes: f64,
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
    caches: Vec<Box<dyn Policy>>,
    unit_tokens: u32,
    unit_bytes: f64,
    /// Uses of each unit; empty where every block is taken.
    uses: Vec<u32>,
    /// Until when the way of each is taken by fetches of this step, ns from now.
    taken_ns: Vec<f64>,
    /// What each did since [`Lower::take_moved`].
    moved: Vec<Moved>,
}

impl<'a> Lower<'a> {
    /// Empty memories for units of so many tokens and bytes, with numbers below `units`.
    pub(super) fn new(rules: &'a Tiers, units: usize, unit_tokens: u32, unit_bytes: u64) -> Self {
        let unit_bytes = unit_bytes as f64;
        let start = |tier: &Tier| {
            let capacity =
                tier.capacity_bytes.map_or(units, |bytes| ((bytes / unit_bytes.max(1.0)) as usize).min(units));
            let mut cache = rules.evict.start(Setting { capacity, unit_tokens });
            cache.grow(units);
            cache
        };
        let caches = rules.tiers.iter().map(start).collect();
        let uses = if rules.admit > 1 { vec![0; units] } else { Vec::new() };
        let count = rules.tiers.len();
        let (taken_ns, moved) = (vec![0.0; count], vec![Moved::default(); count]);
        Self { rules, caches, unit_tokens, unit_bytes, uses, taken_ns, moved }
    }

    /// What each memory did since the last call, nearest first.
    pub(super) fn take_moved(&mut self) -> Vec<Moved> {
        for (moved, cache) in self.moved.iter_mut().zip(&self.caches) {
            moved.resident_bytes = cache.len() as f64 * self.unit_bytes;
        }
        let none = vec![Moved::default(); self.moved.len()];
        std::mem::replace(&mut self.moved, none)
    }

    /// Writes a unit to a memory, unless it is there.
    fn put(&mut self, tier: usize, unit: u32) -> Met {
        let met = self.caches[tier].touch(unit);
        if matches!(met, Met::Miss | Met::Eviction(_)) {
            self.moved[tier].written_bytes += self.unit_bytes;
        }
        met
    }

    /// Whether it has to be told what leaves the accelerators' memory.
    pub(super) fn takes_evicted(&self) -> bool {
        self.rules.write != Write::Through
    }

    /// Units are used where they are, in the accelerators' memory.
    pub(super) fn used(&mut self, units: &[u32]) {
        if !self.uses.is_empty() {
            units.iter().for_each(|&unit| {
                self.uses[unit as usize] = self.uses[unit as usize].saturating_add(1);
                if self.rules.write == Write::Through && self.uses[unit as usize] == self.rules.admit {
                    self.write_through(unit);
                }
            });
        }
    }

    /// A unit is computed, or fetched.
    pub(super) fn write(&mut self, unit: u32) {
        if let Some(uses) = self.uses.get_mut(unit as usize) {
            *uses = uses.saturating_add(1);
        }
        if self.rules.inclusion == Inclusion::Exclusive {
            self.caches.iter_mut().for_each(|cache| {
                cache.remove(unit);
            });
        }
        if self.rules.write == Write::Through && self.is_admitted(unit) {
            self.write_through(unit);
        }
    }

    fn write_through(&mut self, unit: u32) {
        for tier in 0..self.caches.len() {
            self.put(tier, unit);
        }
    }

    fn is_admitted(&self, unit: u32) -> bool {
        self.uses.get(unit as usize).is_none_or(|&uses| uses >= self.rules.admit)
    }

    /// A unit has left the accelerators' memory.
    pub(super) fn evicted(&mut self, unit: u32) {
        if self.rules.write == Write::Back && self.nearest(unit).is_some() {
            return;
        }
        let mut next = Some(unit).filter(|&unit| self.is_admitted(unit));
        for at in 0..self.caches.len() {
            let Some(unit) = next else { break };
            next = match self.put(at, unit) {
                Met::Eviction(victim) => Some(victim),
                // What a memory does not take goes on as if it had left.
                Met::Bypass => Some(unit),
                Met::Hit | Met::Miss => None,
            };
            let is_below = |victim: &u32| self.caches[at + 1..].iter().any(|cache| cache.holds(*victim));
            next = next.filter(|victim| self.rules.write != Write::Back || !is_below(victim));
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
            self.moved[tier].read_bytes += self.unit_bytes;
            last = Some(tier);
        }
        for &unit in units {
            // What stays was used where it is; what goes up is written again when it comes back.
            if self.rules.inclusion == Inclusion::Inclusive
                && let Some(tier) = self.nearest(unit)
            {
                self.caches[tier].touch(unit);
            }
        }
    }

    fn nearest(&self, unit: u32) -> Option<usize> {
        self.caches.iter().position(|cache| cache.holds(unit))
    }
}

/// Reads a placement rule such as `tier(hbm,dram=1TB,nvme; fetch=break_even)` for a machine: after `hbm` the machine's
/// farther memories by any names, nearest first, each with the size that an instance has of it, or with the published one
/// (without a limit where none is). Options, separated by `,` or `;`:
///
/// * `fetch=break_even` (the default) or `fetch=always`,
/// * `evict=lru` (the default) or another policy that needs neither times nor sessions,
/// * `write=through` (the default), `write=back` or `write=on_evict`,
/// * `inclusive` (the default) or `exclusive`,
/// * `admit=1` (the default): the use from which on a block is taken.
///
/// # Errors
/// Another form, more memories than the machine has with a known bandwidth, an option that is not modelled, exclusive
/// memories that are written through.
pub fn parse(text: &str, machine: &Machine, accelerators: f64) -> Result<Tiers> {
    let (names, mut found) = rules(text)?;
    let reaches = reaches(machine, accelerators);
    for (at, name) in names.into_iter().enumerate() {
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
            None => reach.capacity_bytes,
        };
        found.tiers.push(Tier { way: reach.way.clone(), capacity_bytes });
    }
    Ok(found)
}

/// Holds the form of a placement rule against what [`parse`] takes on any machine.
///
/// # Errors
/// Another form, memories or options that come twice, an option that is not modelled.
pub fn check(text: &str) -> Result<()> {
    rules(text).map(drop)
}

/// Names of the memories below, with their sizes, and all rules but what the memories are.
fn rules(text: &str) -> Result<(Vec<&str>, Tiers)> {
    let (names, options) = split(text)?;
    let twice = |what: &str| Error::usage(format!("`{what}` is named twice in `{text}`"));
    let mut named = vec!["hbm"];
    for name in names.iter().map(|name| name.split('=').next().unwrap_or(name).trim()) {
        if named.contains(&name) {
            return Err(twice(name));
        }
        named.push(name);
    }
    let mut found = Tiers {
        tiers: Vec::new(),
        decide: Decide::BreakEven,
        evict: Evict::named(TIMELESS[0]).ok_or_else(|| unmodelled(TIMELESS[0]))?,
        write: Write::Through,
        inclusion: Inclusion::Inclusive,
        admit: 1,
    };
    let mut set = Vec::new();
    for option in options {
        let name = match option.split('=').next().unwrap_or(option).trim() {
            "inclusive" | "exclusive" => "inclusive or exclusive",
            other => other,
        };
        found.set(option)?;
        if set.contains(&name) {
            return Err(twice(name));
        }
        set.push(name);
    }
    if (found.inclusion, found.write) == (Inclusion::Exclusive, Write::Through) {
        return Err(Error::usage(format!("expected one copy of each block in exclusive memories, found `{text}`"))
            .hint("add `write=on_evict`, or make them inclusive"));
    }
    Ok((names, found))
}

/// Names of the memories below `hbm`, and options.
fn split(text: &str) -> Result<(Vec<&str>, Vec<&str>)> {
    let wrong =
        || Error::usage(format!("expected a placement such as `tier(hbm,dram=1TB; fetch=break_even)`, found `{text}`"));
    let inside = text.trim().strip_prefix("tier(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(wrong)?;
    let mut parts = inside.split(';');
    let mut names = parts.next().unwrap_or_default().split(',').map(str::trim);
    if names.next() != Some("hbm") {
        return Err(wrong().hint("the first memory is `hbm`, the accelerators' own"));
    }
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Err(wrong().hint("name at least one memory below `hbm`"));
    }
    if names.contains(&"") {
        return Err(wrong());
    }
    Ok((names, parts.flat_map(|part| part.split(',')).map(str::trim).filter(|option| !option.is_empty()).collect()))
}

impl Tiers {
    fn set(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, ""), |(name, value)| (name.trim(), value.trim()));
        match (name, value) {
            ("fetch", "break_even") => self.decide = Decide::BreakEven,
            ("fetch", "always") => self.decide = Decide::Always,
            ("write", "through") => self.write = Write::Through,
            ("write", "back") => self.write = Write::Back,
            ("write", "on_evict") => self.write = Write::OnEvict,
            ("inclusive", "") => self.inclusion = Inclusion::Inclusive,
            ("exclusive", "") => self.inclusion = Inclusion::Exclusive,
            ("evict", policy) => self.evict = Evict::named(policy).ok_or_else(|| unmodelled(option))?,
            ("admit", count) => {
                let count = count.parse::<u32>().ok().filter(|&count| count > 0);
                self.admit = count.ok_or_else(|| unmodelled(option))?;
            }
            _ => return Err(unmodelled(option)),
        }
        Ok(())
    }
}

fn unmodelled(option: &str) -> Error {
    Error::usage(format!("`{option}` of `tier` is not modelled in serving")).hint(format!(
        "what is modelled: fetch=break_even or always, evict={}, write=through, back or on_evict, inclusive or exclusive, \
         admit=N",
        TIMELESS.join(" or ")
    ))
}

#[cfg(test)]
mod tests;
