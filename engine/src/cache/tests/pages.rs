//! What attention asks of pages, against plain counts.

use proptest::prelude::*;

use super::super::pages::{COLD_STEPS, Demand, reads};
use super::*;
use crate::recording::Recording;
use crate::recording::tests::Tables;

/// A recording of one head with these masses, whose prompt has one block more than it decodes tokens.
fn recording(masses: &[Vec<f32>]) -> Recording {
    let first = masses[0].len() as u32;
    // Blocks of one token: each step has one more.
    let steps = masses.iter().enumerate().map(|(at, mass)| (at as u32 + 1, first + at as u32, mass.clone())).collect();
    Tables { steps, ..Tables::even(1, first - 1, 1) }.read().unwrap()
}

/// Masses of steps that each have one block more than the one before.
fn masses() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (3_usize..12, 1_usize..60)
        .prop_flat_map(|(first, steps)| {
            (0..steps).map(|at| prop::collection::vec(1_u32..1000, first + at)).collect::<Vec<_>>()
        })
        .prop_map(|steps| {
            let share = |step: Vec<u32>| {
                let all: u32 = step.iter().sum();
                step.iter().map(|mass| *mass as f32 / all as f32).collect()
            };
            steps.into_iter().map(share).collect()
        })
}

/// Places of the blocks by falling mass, by selection.
fn falling(mass: &[f32]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..mass.len()).collect();
    let mut found = Vec::new();
    while !left.is_empty() {
        let best = (0..left.len()).fold(0, |best, at| if mass[left[at]] > mass[left[best]] { at } else { best });
        found.push(left.remove(best));
    }
    found
}

fn tenth(mass: &[f32]) -> Vec<usize> {
    falling(mass)[..mass.len().div_ceil(10)].to_vec()
}

proptest! {
    #[test]
    fn shares_and_reawakenings_are_those_of_a_plain_count(masses in masses()) {
        let recording = recording(&masses);
        let found = reads(&recording.heads().next().unwrap());
        prop_assert_eq!(found.steps, masses.len() as u64);
        for (at, share) in [0.5, 0.9, 0.99].into_iter().enumerate() {
            let of = |mass: &Vec<f32>| {
                let (order, all) = (falling(mass), mass.iter().map(|mass| f64::from(*mass)).sum::<f64>());
                let held = |count: usize| order[..count].iter().map(|block| f64::from(mass[*block])).sum::<f64>();
                let count = (1..=mass.len()).find(|count| held(*count) >= share * all - 1e-12).unwrap();
                count as f64 / mass.len() as f64
            };
            let wanted = masses.iter().map(of).sum::<f64>();
            prop_assert!((found.near[at] - wanted).abs() < 1e-9, "{share}: {} {wanted}", found.near[at]);
        }
        let mut wanted = Vec::new();
        for now in COLD_STEPS..masses.len() {
            let was_hot: Vec<usize> = masses[now - COLD_STEPS..now].iter().flat_map(|mass| tenth(mass)).collect();
            let there = masses[now - COLD_STEPS].len();
            let again = tenth(&masses[now]).into_iter().filter(|block| *block < there && !was_hot.contains(block));
            wanted.push(again.map(|block| f64::from(masses[now][block])).sum::<f64>());
        }
        prop_assert_eq!(found.reawakened.len(), wanted.len());
        for (found, wanted) in found.reawakened.iter().zip(wanted) {
            prop_assert!((f64::from(*found) - wanted).abs() < 1e-6);
        }
    }

    /// Each step uses the heaviest blocks that hold the share, and nothing else.
    #[test]
    fn demand_is_what_holds_the_share(masses in masses(), percent in 1_u32..101) {
        let recording = recording(&masses);
        let share = f64::from(percent) / 100.0;
        let mut demand = Demand::new(share).unwrap();
        recording.heads().for_each(|head| demand.add(&head).unwrap());
        let workload = demand.workload("pages").unwrap();
        prop_assert_eq!(workload.len(), masses.len());
        // Blocks that are asked for at all, in order.
        let asked: std::collections::BTreeSet<usize> = masses.iter().flat_map(|mass| {
            let (order, all) = (falling(mass), mass.iter().map(|mass| f64::from(*mass)).sum::<f64>());
            let held = |count: usize| order[..count].iter().map(|block| f64::from(mass[*block])).sum::<f64>();
            let count = (1..=mass.len()).find(|count| held(*count) >= share * all).unwrap_or(mass.len());
            order[..count].to_vec()
        }).collect();
        let asked: Vec<usize> = asked.into_iter().collect();
        prop_assert_eq!(workload.distinct_units as usize, asked.len());
        for (at, mass) in masses.iter().enumerate() {
            let uses = workload.units_of(at);
            let held: f64 = uses.iter().map(|block| f64::from(mass[asked[*block as usize]])).sum();
            let all: f64 = mass.iter().map(|mass| f64::from(*mass)).sum();
            let least = uses.iter().map(|block| f64::from(mass[asked[*block as usize]])).fold(f64::INFINITY, f64::min);
            prop_assert!(held >= share * all - 1e-9 && held - least <= share * all + 1e-9, "{held} {least} {all}");
            prop_assert!(uses.is_sorted());
        }
        // A cache that loses nothing misses each block once.
        let counts = replay(&Rule::parse("lru").unwrap(), &Trace::new(&workload), workload.distinct_units as usize).unwrap();
        let distinct: std::collections::BTreeSet<u32> = workload.units.iter().copied().collect();
        prop_assert_eq!(counts.misses(), distinct.len() as u64);
    }
}

#[test]
fn demand_says_what_it_lacks() {
    assert!(Demand::new(0.0).unwrap_err().to_string().contains("above 0"));
    assert!(Demand::new(0.9).unwrap().workload("empty").unwrap_err().to_string().contains("no recorded attention"));
}
