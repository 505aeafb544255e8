#![expect(clippy::float_cmp, reason = "sums and products of a few whole numbers are exact")]

use proptest::prelude::*;

use super::*;
use crate::policy::Keep;
use crate::test_kit::toy_plan;

fn tiers(decide: Decide, rates: &[(f64, f64)]) -> Tiers {
    let tier = |&(bytes_per_ns, latency_ns): &(f64, f64)| Tier {
        way: Way { name: "tier".to_owned(), bytes_per_ns, latency_ns },
        capacity_bytes: Some(64.0),
    };
    Tiers {
        tiers: rates.iter().map(tier).collect(),
        decide,
        evict: Evict::named("lru").unwrap(),
        write: Write::Through,
        inclusion: Inclusion::Inclusive,
        admit: 1,
    }
}

/// Units of 16 tokens and bytes; four of them fit.
#[test]
fn what_was_computed_comes_back_as_far_as_it_pays() {
    let plan = toy_plan(&[Keep::ALL], 1 << 20);
    let units = [0, 1, 2, 3, 4];
    let prompt = |leading: usize| Prompt { units: &units, leading, tokens: 100, chunk_tokens: 64 };
    let rules = tiers(Decide::BreakEven, &[(1.0, 5.0)]);
    let mut lower = Lower::new(&rules, 5, 16, 16);
    assert_eq!(lower.look(&plan, &prompt(0)), Fetched::default(), "nothing is there yet");
    units[..4].iter().for_each(|&unit| lower.write(unit));
    // Four units of 16 bytes at a byte per ns, and the latency.
    assert_eq!(lower.look(&plan, &prompt(0)), Fetched { units: 4, ns: 69.0, bytes: 64.0 });
    assert_eq!(lower.look(&plan, &prompt(1)), Fetched { units: 3, ns: 53.0, bytes: 48.0 });
    // The next request of the step waits for the first.
    lower.fetch(&prompt(0), Fetched { units: 4, ns: 69.0, bytes: 64.0 });
    assert_eq!(lower.look(&plan, &prompt(0)).ns, 138.0);
    lower.next_step();
    assert_eq!(lower.look(&plan, &prompt(0)).ns, 69.0);
    // A fifth unit pushes the oldest out, and then nothing follows without a gap.
    lower.write(4);
    assert_eq!(lower.look(&plan, &prompt(0)).units, 0);
    assert_eq!(lower.look(&plan, &prompt(1)).units, 4);
}

#[test]
fn a_slow_way_is_taken_only_if_it_must_be() {
    let plan = toy_plan(&[Keep::ALL], 1 << 20);
    let units = [0, 1];
    let prompt = Prompt { units: &units, leading: 0, tokens: 33, chunk_tokens: 64 };
    for (decide, wanted) in [(Decide::BreakEven, 0), (Decide::Always, 2)] {
        let rules = tiers(decide, &[(1e-9, 0.0)]);
        let mut lower = Lower::new(&rules, 2, 16, 16);
        units.iter().for_each(|&unit| lower.write(unit));
        assert_eq!(lower.look(&plan, &prompt).units, wanted);
    }
}

#[test]
fn placements_are_typed() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../presets/machine/h100.toml")).unwrap();
    let machine = crate::machine::parse(&text, "h100.toml").unwrap();
    let found = parse("tier(hbm, dram=1TB, nvme; fetch=always, evict=lru)", &machine, 2.0).unwrap();
    assert_eq!(found.decide, Decide::Always);
    assert_eq!(found.tiers.iter().map(|tier| tier.capacity_bytes).collect::<Vec<_>>(), [Some(1e12), None]);
    // Two links of PCIe Gen5 x16 of which 86% are reached; two drives.
    assert!((found.tiers[0].way.bytes_per_ns - 2.0 * 64.0 * 0.86).abs() < 1e-9);
    assert!((found.tiers[1].way.bytes_per_ns - 28.0).abs() < 1e-9);
    let found = parse("tier(hbm,dram; write = on_evict, exclusive; evict=sieve, admit=2)", &machine, 1.0).unwrap();
    assert_eq!((found.write, found.inclusion, found.admit), (Write::OnEvict, Inclusion::Exclusive, 2));
    assert_eq!(found.evict.name(), "sieve");
    // Each policy that may be named can be started, and no other is let in.
    assert!(TIMELESS.iter().all(|name| Evict::named(name).is_some()) && Evict::named("min").is_none());
    for (text, part) in [
        ("tier(dram)", "the first memory is `hbm`"),
        ("tier(hbm)", "at least one memory"),
        ("tiers(hbm,dram)", "expected a placement"),
        ("tier(hbm,dram,nvme,tape)", "found `tape` as number 3"),
        ("tier(hbm,dram; evict=ttl)", "not modelled"),
        ("tier(hbm,dram; admit=0)", "not modelled"),
        ("tier(hbm,dram; admit=two)", "not modelled"),
        ("tier(hbm,dram; exclusive)", "add `write=on_evict`"),
        ("tier(hbm,)", "expected a placement"),
        ("tier(hbm,dram,dram=1TB)", "`dram` is named twice"),
        ("tier(hbm,hbm)", "`hbm` is named twice"),
        ("tier(hbm,dram; write=back, write=through)", "`write` is named twice"),
        ("tier(hbm,dram; exclusive, inclusive)", "`inclusive or exclusive` is named twice"),
        ("tier(hbm,dram=1XB)", "expected"),
    ] {
        let error = parse(text, &machine, 1.0).unwrap_err();
        let said = format!("{error} {}", error.advice().unwrap_or_default());
        assert!(said.contains(part), "{text}: {said}");
    }
}

fn served(below: Option<&Tiers>) -> crate::serving::Outcome {
    use crate::serving::{Pool, RULES, Role, Routing, Setup, Traffic, serve};
    // A prompt of 96 tokens, another that pushes it out of a memory of 128, and the first again.
    let workload = crate::test_kit::toy_workload(&[(0, 96, 2, 0), (900, 96, 2, 1), (900, 96, 2, 0)]);
    let plan = toy_plan(&[Keep::ALL], 128);
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let (traffic, routing) = (Traffic::Open, Routing::RoundRobin);
    serve(&Setup { pools: &pools, traffic, routing, rules: &RULES[0], handover: None, below }, &workload)
}

#[test]
fn a_memory_below_shortens_prefills_and_takes_its_fetch() {
    let roomy = |decide, rate| {
        let mut rules = tiers(decide, &[(rate, 7.0)]);
        rules.tiers[0].capacity_bytes = None;
        rules
    };
    let (without, fast) = (served(None), roomy(Decide::BreakEven, 1.0));
    let with = served(Some(&fast));
    assert_eq!(without.served[2].far_hit_tokens, 0);
    // All but the last block come back: five blocks of 16 tokens, of three units of 32 that are fetched.
    assert_eq!((with.served[2].hit_tokens, with.served[2].far_hit_tokens > 0), (80, true));
    assert_eq!(with.served[2].hit_tokens + with.served[2].computed_tokens, 96);
    assert!(with.served[2].ttft_ns < without.served[2].ttft_ns);
    // The step waits for its fetch, and says how long and for how many bytes.
    let sum =
        |of: fn(&crate::cost::StepCost) -> f64| with.stretches.iter().map(|stretch| of(&stretch.cost)).sum::<f64>();
    let fetched = sum(|cost| cost.tier_bytes);
    assert!(fetched > 0.0 && (sum(|cost| cost.tier) - (7.0 + fetched)).abs() < 1e-9);
    // A slow way is left alone where that pays, and moves time where it must be taken.
    let slow = served(Some(&roomy(Decide::BreakEven, 1e-6)));
    assert_eq!(slow.served, without.served);
    // All of it came down all the same: both prompts of three units, the first but once.
    let down = |outcome: &crate::serving::Outcome| {
        outcome.stretches.iter().flat_map(|stretch| &stretch.below).map(|moved| moved.written_bytes).sum::<f64>()
    };
    assert_eq!((down(&slow), down(&with)), (2.0 * 96.0, 2.0 * 96.0));
    let read = |moved: &Moved| moved.read_bytes;
    assert_eq!(with.stretches.iter().flat_map(|stretch| &stretch.below).map(read).sum::<f64>(), fetched);
    assert_eq!(with.stretches.last().unwrap().below[0].resident_bytes, 2.0 * 96.0);
    assert!(served(Some(&roomy(Decide::Always, 1e-6))).served[2].ttft_ns > without.served[2].ttft_ns);
}

/// Blocks in plain lists, the one used longest ago first.
struct Slow<'a> {
    rules: &'a Tiers,
    room: usize,
    lists: Vec<Vec<u32>>,
    uses: Vec<u32>,
}

impl Slow<'_> {
    fn put(&mut self, tier: usize, unit: u32) -> Option<u32> {
        let list = &mut self.lists[tier];
        list.retain(|other| *other != unit);
        list.push(unit);
        (list.len() > self.room).then(|| list.remove(0))
    }

    fn through(&mut self, unit: u32) {
        for tier in 0..self.lists.len() {
            self.put(tier, unit);
        }
    }

    fn used(&mut self, unit: u32, is_here: bool) {
        self.uses[unit as usize] += 1;
        let uses = self.uses[unit as usize];
        if !is_here && self.rules.inclusion == Inclusion::Exclusive {
            self.lists.iter_mut().for_each(|list| list.retain(|other| *other != unit));
        }
        // One that is here already was written when it was computed, unless it was not taken then.
        let is_due = if is_here { self.rules.admit > 1 && uses == self.rules.admit } else { uses >= self.rules.admit };
        if self.rules.write == Write::Through && is_due {
            self.through(unit);
        }
    }

    fn evicted(&mut self, mut unit: u32) {
        let is_in = |lists: &[Vec<u32>], unit: u32| lists.iter().any(|list| list.contains(&unit));
        if self.uses[unit as usize] < self.rules.admit {
            return;
        }
        for tier in 0..self.lists.len() {
            if self.rules.write == Write::Back && is_in(&self.lists[tier..], unit) {
                return;
            }
            match self.put(tier, unit) {
                Some(victim) => unit = victim,
                None => return,
            }
        }
    }
}

proptest! {
    #[test]
    fn blocks_come_down_and_go_up_as_in_plain_lists(
        what in proptest::collection::vec((0_u8..4, 0_u32..9), 0..80),
        kind in 0_usize..5,
        admit in 1_u32..4,
    ) {
        let (through, back, on_evict) = (Write::Through, Write::Back, Write::OnEvict);
        let (inclusive, exclusive) = (Inclusion::Inclusive, Inclusion::Exclusive);
        let kinds =
            [(through, inclusive), (back, inclusive), (on_evict, inclusive), (back, exclusive), (on_evict, exclusive)];
        let mut rules = tiers(Decide::Always, &[(1.0, 0.0), (1.0, 0.0)]);
        (rules.write, rules.inclusion, rules.admit) = (kinds[kind].0, kinds[kind].1, admit);
        let mut lower = Lower::new(&rules, 9, 16, 16);
        let mut slow = Slow { rules: &rules, room: 4, lists: vec![Vec::new(); 2], uses: vec![0; 9] };
        let mut here = [false; 9];
        for (op, unit) in what {
            let at = unit as usize;
            match (op, here[at]) {
                (0, true) => {
                    // Memories that are written through are not told.
                    if lower.takes_evicted() {
                        lower.evicted(unit);
                        slow.evicted(unit);
                    }
                    here[at] = false;
                }
                (1.., true) => {
                    lower.used(&[unit]);
                    slow.used(unit, true);
                }
                (0..=2, false) => {
                    lower.write(unit);
                    slow.used(unit, false);
                    here[at] = true;
                }
                (_, false) => {
                    let units = [unit];
                    let prompt = Prompt { units: &units, leading: 0, tokens: 17, chunk_tokens: 64 };
                    lower.fetch(&prompt, Fetched { units: 1, ns: 0.0, bytes: 0.0 });
                    if let Some(tier) = slow.lists.iter().position(|list| list.contains(&unit))
                        && rules.inclusion == Inclusion::Inclusive
                    {
                        slow.put(tier, unit);
                    }
                    lower.write(unit);
                    slow.used(unit, false);
                    here[at] = true;
                }
            }
            for unit in 0..9 {
                let nearest = slow.lists.iter().position(|list| list.contains(&unit));
                prop_assert_eq!(lower.nearest(unit), nearest);
                let copies = slow.lists.iter().filter(|list| list.contains(&unit)).count() + usize::from(here[unit as usize]);
                prop_assert!(copies <= 1 || rules.inclusion == Inclusion::Inclusive);
            }
        }
    }
}

/// Written through, the second prompt pushes the first out of a memory of its size; what comes down only when it has to go
/// is there when the first prompt comes again.
#[test]
fn without_copies_of_what_is_near_the_same_memory_holds_more() {
    let rules = |write, inclusion| {
        let mut rules = tiers(Decide::Always, &[(1.0, 7.0)]);
        (rules.write, rules.inclusion, rules.tiers[0].capacity_bytes) = (write, inclusion, Some(96.0));
        rules
    };
    let through = served(Some(&rules(Write::Through, Inclusion::Inclusive)));
    let moved = served(Some(&rules(Write::OnEvict, Inclusion::Exclusive)));
    assert_eq!(through.served[2].far_hit_tokens, 0);
    assert!(moved.served[2].far_hit_tokens > 0 && moved.served[2].ttft_ns < through.served[2].ttft_ns);
    // A block that is taken from its second use on is not there after its first.
    let second = Tiers { admit: 2, ..rules(Write::OnEvict, Inclusion::Exclusive) };
    assert_eq!(served(Some(&second)).served[2].far_hit_tokens, 0);
}

/// What a turn generated and the next one names comes down too, written through like a prompt's.
#[test]
fn generated_blocks_that_the_next_turn_names_come_down() {
    use crate::serving::{Pool, RULES, Role, Routing, Setup, Traffic, serve};
    use crate::workload::{Pause, Turns};
    let mut workload = crate::test_kit::toy_workload(&[(0, 64, 65, 1), (0, 160, 4, 1)]);
    workload.turns = Turns {
        before: vec![u32::MAX, 0],
        pause_ns: vec![0, 1000],
        basis: vec![Pause::First, Pause::Recorded],
        held_by: Vec::new(),
    };
    let plan = toy_plan(&[Keep::ALL], 10_000);
    let pools = [Pool { plan: &plan, instances: 1, role: Role::Both }];
    let mut rules = tiers(Decide::BreakEven, &[(1.0, 7.0)]);
    rules.tiers[0].capacity_bytes = None;
    let (traffic, routing, below) = (Traffic::Session, Routing::Session, Some(&rules));
    let setup = Setup { pools: &pools, traffic, routing, rules: &RULES[0], handover: None, below };
    let found = serve(&setup, &workload);
    assert_eq!(found.served[1].hit_tokens, 128, "the answer is near");
    // Two units of the first prompt, two of its answer, and the last of the second prompt.
    let moved = found.stretches.iter().flat_map(|stretch| &stretch.below);
    assert_eq!(moved.map(|moved| moved.written_bytes).sum::<f64>(), 5.0 * 32.0);
    assert_eq!(found.stretches.last().unwrap().below[0].resident_bytes, 5.0 * 32.0);
}
