//! What a step's traffic takes on a fabric, by class, placement and collective; and when classes are done that share links.

use super::collective::{Moved, Phase, adapted, naive, price};
use super::place::{Layout, Order, USUAL};
use super::share::{Schedule, Work, serve};
use super::topology::Network;
use super::traffic::{Class, Traffic};

/// Which collectives are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Those that know nothing of the fabric.
    Naive,
    /// For each class the faster of the naive one and that of the fabric.
    Adapted,
}

/// One class on one placement.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassCost {
    /// The class.
    pub class: Class,
    /// Whether the fabric's own collective was used.
    pub is_adapted: bool,
    /// What it takes and moves in a step, alone.
    pub moved: Moved,
}

/// All classes on one placement.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCost {
    /// How ranks are put on places.
    pub order: Order,
    /// By class, in the order of the traffic.
    pub classes: Vec<ClassCost>,
}

impl StepCost {
    /// Time of the classes that the step waits for, one after another, ns.
    pub fn awaited_ns(&self) -> f64 {
        self.classes.iter().filter(|cost| cost.class.is_awaited()).map(|cost| cost.moved.ns).sum()
    }

    /// Time of one class, ns; 0 where it sends nothing.
    pub fn class_ns(&self, class: Class) -> f64 {
        self.classes.iter().filter(|cost| cost.class == class).map(|cost| cost.moved.ns).sum()
    }

    /// Time of all classes, ns.
    pub fn all_ns(&self) -> f64 {
        self.classes.iter().map(|cost| cost.moved.ns).sum()
    }
}

/// A class on given places.
pub fn class_cost(network: &Network, traffic: &Traffic, places: &[u32], style: Style) -> ClassCost {
    let groups: Vec<Vec<u32>> =
        traffic.groups.iter().map(|group| group.iter().map(|&rank| places[rank as usize]).collect()).collect();
    let plain = price(network, &merged(groups.iter().map(|group| naive(traffic.pattern, group, traffic.messages))));
    let own: Option<Vec<Vec<Phase>>> = match style {
        Style::Naive => None,
        Style::Adapted => {
            groups.iter().map(|group| adapted(network, traffic.pattern, group, traffic.messages)).collect()
        }
    };
    let own = own.map(|groups| price(network, &merged(groups.into_iter())));
    let (is_adapted, moved) = match own {
        Some(own) if own.ns < plain.ns => (true, own),
        _ => (false, plain),
    };
    ClassCost { class: traffic.class, is_adapted, moved: times(moved, traffic.times) }
}

/// Phases of groups that run at once: the first phases together, then the second ones.
fn merged(groups: impl Iterator<Item = Vec<Phase>>) -> Vec<Phase> {
    let mut all: Vec<Phase> = Vec::new();
    for group in groups {
        for (at, phase) in group.into_iter().enumerate() {
            match all.get_mut(at) {
                Some(known) => {
                    known.times = known.times.max(phase.times);
                    known.transfers.extend(phase.transfers);
                }
                None => all.push(phase),
            }
        }
    }
    all
}

fn times(mut moved: Moved, times: f64) -> Moved {
    moved.ns *= times;
    moved.energy_j = moved.energy_j.map(|energy| energy * times);
    for list in [&mut moved.busy_ns, &mut moved.link_bytes, &mut moved.bytes] {
        list.iter_mut().for_each(|value| *value *= times);
    }
    moved
}

/// A step on one placement.
pub fn step_cost(network: &Network, layout: &Layout, (order, style): (Order, Style), traffic: &[Traffic]) -> StepCost {
    let places = layout.places(order);
    let classes = traffic.iter().map(|traffic| class_cost(network, traffic, &places, style)).collect();
    StepCost { order, classes }
}

/// The fastest and the slowest placement of all orders.
#[derive(Debug, Clone, PartialEq)]
pub struct Placements {
    /// The fastest; the first of equals.
    pub best: StepCost,
    /// The slowest; the first of equals.
    pub worst: StepCost,
}

impl Placements {
    /// Time of the slowest over that of the fastest; 1 where nothing is sent.
    pub fn sensitivity(&self) -> f64 {
        let (best, worst) = (self.best.all_ns(), self.worst.all_ns());
        if best > 0.0 { worst / best } else { 1.0 }
    }
}

/// Tries all orders.
pub fn placements(network: &Network, layout: &Layout, style: Style, traffic: &[Traffic]) -> Placements {
    let first = step_cost(network, layout, (USUAL, style), traffic);
    let mut found = Placements { best: first.clone(), worst: first };
    for order in layout.orders().skip(1) {
        let cost = step_cost(network, layout, (order, style), traffic);
        if cost.all_ns() < found.best.all_ns() {
            found.best = cost.clone();
        }
        if cost.all_ns() > found.worst.all_ns() {
            found.worst = cost;
        }
    }
    found
}

/// A class on a level that others use too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shared {
    /// The class.
    pub class: Class,
    /// The level.
    pub level: usize,
    /// What its bytes take alone on the busiest link, ns.
    pub alone_ns: f64,
    /// When they are through if all classes begin at once, ns.
    pub done_ns: f64,
    /// Time in which the link is busy in all, ns.
    pub busy_ns: f64,
}

/// When each class is through on each level under a schedule, if all begin with the step. What the step waits for has the
/// first rank, and three quarters of a reserved link. Latencies are not shared and left out.
pub fn shared(cost: &StepCost, schedule: Schedule) -> Vec<Shared> {
    let levels = cost.classes.first().map_or(0, |class| class.moved.busy_ns.len());
    let awaited = cost.classes.iter().filter(|class| class.class.is_awaited()).count().max(1) as f64;
    let others = (cost.classes.len() as f64 - awaited).max(1.0);
    let mut found = Vec::new();
    for level in 0..levels {
        let works: Vec<Work> = cost
            .classes
            .iter()
            .map(|class| {
                let is_awaited = class.class.is_awaited();
                Work {
                    arrives_ns: 0.0,
                    work_ns: class.moved.busy_ns[level],
                    rank: u32::from(!is_awaited),
                    weight: if is_awaited { 0.75 / awaited } else { 0.25 / others },
                }
            })
            .collect();
        let served = serve(&works, schedule);
        for ((class, work), done) in cost.classes.iter().zip(&works).zip(&served.done_ns) {
            if work.work_ns > 0.0 {
                found.push(Shared {
                    class: class.class,
                    level,
                    alone_ns: work.work_ns,
                    done_ns: *done,
                    busy_ns: served.busy_ns,
                });
            }
        }
    }
    found
}
