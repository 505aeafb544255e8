//! Collectives as phases of transfers between places.
//!
//! *Naive* ones know only the order of their members: an all-reduce is a ring (each member sends `bytes / n` to the next,
//! `2 (n - 1)` times), an all-to-all sends to each member at once.
//!
//! *Adapted* ones know the fabric:
//! * One circle (a flat plane, a node, a dimension of a mesh): an all-reduce is a reduce-scatter and an all-gather in which
//!   each sends `bytes / n` to each at once.
//! * Nodes: a reduce-scatter within the node, an all-reduce of each part among those who hold the same part in other nodes,
//!   an all-gather within the node. An all-to-all sends what a node gets to one member of it, once (a token that goes to
//!   several experts of a node crosses once), who hands it on within the node (as `DeepEP` does).
//! * Meshes and tori: dimension after dimension; rings along the dimensions of a torus.
//!
//! An adapted collective that the members' places do not allow is `None`.

use super::Shape;
use super::topology::Network;

/// One transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Place of the sender.
    pub from: u32,
    /// Place of the receiver.
    pub to: u32,
    /// Bytes.
    pub bytes: f64,
    /// Messages in which they go.
    pub messages: f64,
}

/// Transfers that go at once, again and again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Phase {
    /// The transfers.
    pub transfers: Vec<Transfer>,
    /// How often the phase runs.
    pub times: f64,
}

/// What is done together by the members of a group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pattern {
    /// Every member ends with the sum of so many bytes of each.
    AllReduce {
        /// Bytes of one member.
        bytes: f64,
    },
    /// Every member sends so many bytes to each member, itself included.
    AllToAll {
        /// Bytes from one member to one other.
        bytes: f64,
        /// Members that each token is sent to; what goes to several of a node may cross to it once.
        picks: f64,
    },
    /// No group: of each two members the first sends so many bytes to the second.
    Pairs {
        /// Bytes of a pair.
        bytes: f64,
    },
}

impl Pattern {
    /// Its bytes.
    pub fn bytes(self) -> f64 {
        match self {
            Self::AllReduce { bytes } | Self::AllToAll { bytes, .. } | Self::Pairs { bytes } => bytes,
        }
    }

    /// The same with other bytes.
    #[must_use]
    pub fn with_bytes(self, bytes: f64) -> Self {
        match self {
            Self::AllReduce { .. } => Self::AllReduce { bytes },
            Self::AllToAll { picks, .. } => Self::AllToAll { bytes, picks },
            Self::Pairs { .. } => Self::Pairs { bytes },
        }
    }
}

/// The ring, and sending to each at once.
pub fn naive(pattern: Pattern, members: &[u32], messages: f64) -> Vec<Phase> {
    let count = members.len();
    if count < 2 {
        return Vec::new();
    }
    match pattern {
        Pattern::AllReduce { bytes } => {
            let next = |at: usize| Transfer {
                from: members[at],
                to: members[(at + 1) % count],
                bytes: bytes / count as f64,
                messages,
            };
            vec![Phase { transfers: (0..count).map(next).collect(), times: 2.0 * (count as f64 - 1.0) }]
        }
        Pattern::AllToAll { bytes, .. } => vec![each_to_each(members, bytes, messages)],
        Pattern::Pairs { bytes } => {
            let pairs = members.chunks_exact(2);
            let to = |pair: &[u32]| Transfer { from: pair[0], to: pair[1], bytes, messages };
            vec![Phase { transfers: pairs.map(to).collect(), times: 1.0 }]
        }
    }
}

fn each_to_each(members: &[u32], bytes: f64, messages: f64) -> Phase {
    let transfers = members.iter().flat_map(|&from| {
        members.iter().filter(move |&&to| to != from).map(move |&to| Transfer { from, to, bytes, messages })
    });
    Phase { transfers: transfers.collect(), times: 1.0 }
}

/// The collective of a fabric; `None` where the places of the members do not allow it.
pub fn adapted(network: &Network, pattern: Pattern, members: &[u32], messages: f64) -> Option<Vec<Phase>> {
    if members.len() < 2 {
        return Some(Vec::new());
    }
    match (pattern, &network.shape) {
        (Pattern::Pairs { .. }, _) | (Pattern::AllToAll { .. }, Shape::Flat) => None,
        (Pattern::AllReduce { bytes }, Shape::Torus { .. }) => by_rings(network, bytes, members, messages),
        (Pattern::AllReduce { bytes }, _) => by_circles(network, bytes, members, messages),
        (Pattern::AllToAll { bytes, picks }, Shape::Layered { .. } | Shape::Clos { .. }) => {
            by_proxy(network, (bytes, picks), members, messages)
        }
        (Pattern::AllToAll { bytes, .. }, Shape::FullMesh { .. } | Shape::Torus { .. }) => {
            by_dimensions(network, bytes, members, messages)
        }
    }
}

/// Members by circle and by place within it: `circles[c][i]` is the `i`-th member of circle `c`. `None` unless all circles
/// have as many.
fn circles(members: &[u32], of: impl Fn(u32) -> u32) -> Option<Vec<Vec<u32>>> {
    let mut sorted: Vec<(u32, u32)> = members.iter().map(|&member| (of(member), member)).collect();
    sorted.sort_unstable();
    let found: Vec<Vec<u32>> =
        sorted.chunk_by(|a, b| a.0 == b.0).map(|circle| circle.iter().map(|pair| pair.1).collect()).collect();
    let size = found.first().map_or(0, Vec::len);
    found.iter().all(|circle| circle.len() == size).then_some(found)
}

/// Several phases of the same kind at once.
fn together(groups: impl Iterator<Item = Phase>) -> Phase {
    let mut all = Phase { transfers: Vec::new(), times: 1.0 };
    for group in groups {
        all.transfers.extend(group.transfers);
        all.times = group.times;
    }
    all
}

/// Those who stand at the same place in each circle.
fn across(circles: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let size = circles.first().map_or(0, Vec::len);
    (0..size).map(|at| circles.iter().map(|circle| circle[at]).collect()).collect()
}

/// The circle of a member along each level of the fabric.
fn levels(network: &Network) -> Vec<(u32, u32)> {
    match &network.shape {
        Shape::Flat => vec![(1, network.accelerators)],
        Shape::Layered { node } | Shape::Clos { node, .. } => vec![(1, *node), (*node, network.accelerators / node)],
        Shape::FullMesh { dims } | Shape::Torus { dims } => {
            let mut stride = 1;
            let level = |&dim: &u32| {
                let found = (stride, dim);
                stride *= dim;
                found
            };
            dims.iter().map(level).collect()
        }
    }
}

/// All members with the same coordinates but along this level.
fn circle_of(member: u32, (stride, dim): (u32, u32)) -> u32 {
    member - member / stride % dim * stride
}

/// Reduce-scatter level by level from the nearest, all-gather back.
fn by_circles(network: &Network, bytes: f64, members: &[u32], messages: f64) -> Option<Vec<Phase>> {
    let (mut down, mut left) = (Vec::new(), bytes);
    for level in levels(network) {
        let found = circles(members, |member| circle_of(member, level))?;
        let size = found.first().map_or(0, Vec::len);
        if size > 1 {
            left /= size as f64;
            down.push(together(found.iter().map(|circle| each_to_each(circle, left, messages))));
        }
    }
    is_whole(&down, members).then(|| there_and_back(down))
}

/// The same with rings: along a dimension each sends to the next only.
fn by_rings(network: &Network, bytes: f64, members: &[u32], messages: f64) -> Option<Vec<Phase>> {
    let (mut down, mut left) = (Vec::new(), bytes);
    for level in levels(network) {
        let found = circles(members, |member| circle_of(member, level))?;
        let size = found.first().map_or(0, Vec::len);
        if size > 1 {
            left /= size as f64;
            let ring = |circle: &Vec<u32>| Phase {
                transfers: (0..size)
                    .map(|at| Transfer { from: circle[at], to: circle[(at + 1) % size], bytes: left, messages })
                    .collect(),
                times: size as f64 - 1.0,
            };
            down.push(together(found.iter().map(ring)));
        }
    }
    // A ring along a dimension that the members do not fill would go through others.
    is_whole(&down, members).then(|| there_and_back(down))
}

/// Whether circles of these phases reach every member from every other: their sizes multiply to all.
fn is_whole(phases: &[Phase], members: &[u32]) -> bool {
    let size = |phase: &Phase| {
        let sends = phase.transfers.len() as f64 / members.len() as f64;
        (if phase.times > 1.0 { phase.times } else { sends }) + 1.0
    };
    let product: f64 = phases.iter().map(size).product();
    (product - members.len() as f64).abs() < 0.5
}

fn there_and_back(down: Vec<Phase>) -> Vec<Phase> {
    let back: Vec<Phase> = down.iter().rev().cloned().collect();
    down.into_iter().chain(back).collect()
}

/// To one member of each other node first, once, and on from there.
fn by_proxy(network: &Network, (bytes, picks): (f64, f64), members: &[u32], messages: f64) -> Option<Vec<Phase>> {
    let node = network.node();
    let nodes = circles(members, |member| member / node)?;
    let (count, size) = (nodes.len() as f64, nodes.first().map_or(0, Vec::len) as f64);
    if nodes.len() < 2 {
        return None;
    }
    // Of `picks` copies, those for one node come to `picks / count`; the node is picked at all less often.
    let copies = picks / count;
    let once = if copies > 0.0 { (1.0 - (1.0 - 1.0 / count).powf(picks)) / copies } else { 1.0 };
    let far = together(across(&nodes).iter().map(|group| each_to_each(group, bytes * size * once.min(1.0), messages)));
    // A proxy hands on what all members at its place in the other nodes sent it, and its own.
    let near = together(nodes.iter().map(|group| each_to_each(group, bytes * count, messages)));
    Some(vec![far, near])
}

/// Dimension after dimension: what goes to all with the same next coordinate goes together.
fn by_dimensions(network: &Network, bytes: f64, members: &[u32], messages: f64) -> Option<Vec<Phase>> {
    let mut phases = Vec::new();
    for level in levels(network) {
        let found = circles(members, |member| circle_of(member, level))?;
        let size = found.first().map_or(0, Vec::len);
        if size > 1 {
            let part = bytes * members.len() as f64 / size as f64;
            phases.push(together(found.iter().map(|circle| each_to_each(circle, part, messages))));
        }
    }
    is_whole(&phases, members).then_some(phases)
}

/// What phases take and move.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moved {
    /// Time, ns.
    pub ns: f64,
    /// Of it, time in which the most loaded link of each level is busy, ns.
    pub busy_ns: Vec<f64>,
    /// Bytes that cross links of each level; each link counts.
    pub link_bytes: Vec<f64>,
    /// Bytes by the farthest level that their transfer crosses.
    pub bytes: Vec<f64>,
    /// Energy of the bits that crossed links, J; `None` if that of a level in use is unknown.
    pub energy_j: Option<f64>,
}

/// Prices phases that follow each other, each of which every group runs at once.
pub fn price(network: &Network, phases: &[Phase]) -> Moved {
    let levels = network.latency_ns.len();
    let mut moved = Moved {
        ns: 0.0,
        busy_ns: vec![0.0; levels],
        link_bytes: vec![0.0; levels],
        bytes: vec![0.0; levels],
        energy_j: Some(0.0),
    };
    let (mut load, mut way, mut sent) = (vec![0.0; network.links.len()], Vec::new(), Vec::new());
    for phase in phases {
        load.fill(0.0);
        sent.clear();
        sent.resize(network.accelerators as usize, 0.0_f64);
        let mut latency = 0.0_f64;
        for transfer in &phase.transfers {
            way.clear();
            let (time, farthest) = network.route(transfer.from, transfer.to, &mut way);
            latency = latency.max(time);
            moved.bytes[farthest] += transfer.bytes * phase.times;
            sent[transfer.from as usize] += transfer.messages * network.message_ns[farthest];
            for &link in &way {
                load[link as usize] += transfer.bytes;
            }
        }
        let mut most = vec![0.0_f64; levels];
        for (link, bytes) in network.links.iter().zip(&load) {
            most[link.level] = most[link.level].max(bytes / link.bytes_per_ns);
            moved.link_bytes[link.level] += bytes * phase.times;
        }
        let busiest = most.iter().fold(0.0_f64, |most, time| most.max(*time));
        let messages = sent.iter().fold(0.0_f64, |most, time| most.max(*time));
        moved.ns += phase.times * (latency + busiest.max(messages));
        for (busy, time) in moved.busy_ns.iter_mut().zip(most) {
            *busy += phase.times * time;
        }
    }
    moved.energy_j = energy(network, &moved.link_bytes);
    moved
}

/// Joules of bytes on links; a link of an accelerator to a switch is half of a way.
fn energy(network: &Network, link_bytes: &[f64]) -> Option<f64> {
    let half = if network.dims().is_empty() { 0.5 } else { 1.0 };
    let of = |(bytes, pj): (&f64, &Option<f64>)| {
        if *bytes == 0.0 { Some(0.0) } else { pj.map(|pj| half * bytes * 8.0 * pj * 1e-12) }
    };
    link_bytes.iter().zip(&network.pj_per_bit).map(of).sum()
}
