//! The ways from a machine's farther memories to its accelerators.

use super::fetch::Way;
use crate::machine::{Distance, Machine, Tier};

/// A farther memory of a machine, as an instance reaches it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reach {
    /// The way from it.
    pub way: Way,
    /// Its size for all accelerators of the instance, bytes; `None` where it is not published.
    pub capacity_bytes: Option<f64>,
    /// What was not published and therefore left out, as a sentence; empty where nothing was.
    pub left_out: String,
}

/// Achieved bandwidth of the link between one accelerator and its host, bytes per second; `None` where none is known.
fn host_link(machine: &Machine) -> Option<f64> {
    let board = machine.links.iter().find(|link| link.distance == Distance::Board);
    let published = board.and_then(|link| link.way_bytes_per_s.as_ref());
    let rate = machine.accelerator.host_link_bytes_per_s.as_ref().or(published)?.value;
    Some(rate * board.and_then(|link| link.achieved.as_ref()).map_or(1.0, |achieved| achieved.value))
}

/// The farther memories of a machine, nearest first, for an instance of so many accelerators, each with a link and a share
/// of the memory of its own. A memory whose bandwidth is not published is left out, since nothing can be said of it. The
/// way is as fast as the slower of the memory and the link to the host.
pub fn reaches(machine: &Machine, accelerators: f64) -> Vec<Reach> {
    let link = host_link(machine);
    let of = |tier: &Tier| {
        let read = tier.read_bytes_per_s.as_ref()?.value;
        let mut left_out = Vec::new();
        if link.is_none() {
            left_out.push("the link to the host is not published, so that the memory alone sets the pace");
        }
        if tier.latency_ns.is_none() {
            left_out.push("its latency is not published and taken as 0");
        }
        Some(Reach {
            way: Way {
                name: tier.name.clone(),
                bytes_per_ns: link.map_or(read, |link| read.min(link)) * accelerators / 1e9,
                latency_ns: tier.latency_ns.as_ref().map_or(0.0, |latency| latency.value),
            },
            capacity_bytes: tier.capacity_bytes.as_ref().map(|bytes| bytes.value * accelerators),
            left_out: left_out.join("; "),
        })
    };
    machine.tiers.iter().filter_map(of).collect()
}
