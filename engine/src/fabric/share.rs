//! Who is served when on a link that several share.
//!
//! A link serves work at a constant rate and is never idle while there is any. It can share evenly among all that wait
//! (*processor sharing*), serve one class before another (*priority*), or give each class a share that others may use while it
//! does not (*reservation*). Whatever it does, it is busy for as long in total: a schedule moves waiting from one class to
//! another and removes none.

/// One piece of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// When it comes, ns.
    pub arrives_ns: f64,
    /// What it takes alone, ns.
    pub work_ns: f64,
    /// Under priority, lower goes first.
    pub rank: u32,
    /// Under reservation, its part of the link.
    pub weight: f64,
}

/// How a link is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Evenly among all that wait.
    Processor,
    /// The lowest rank first, evenly within it; a higher one is interrupted.
    Priority,
    /// By weight among all that wait.
    Reservation,
}

impl Schedule {
    /// Every schedule.
    pub const ALL: [Self; 3] = [Self::Processor, Self::Priority, Self::Reservation];

    /// What the user types.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processor => "sharing",
            Self::Priority => "priority",
            Self::Reservation => "reservation",
        }
    }
}

/// What a link did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Served {
    /// When each piece of work was done, ns, in the order of the work.
    pub done_ns: Vec<f64>,
    /// Time in which the link was busy, ns.
    pub busy_ns: f64,
}

/// Serves all work. Work without time is done when it comes.
pub fn serve(works: &[Work], schedule: Schedule) -> Served {
    let mut left: Vec<f64> = works.iter().map(|work| work.work_ns.max(0.0)).collect();
    let mut served = Served { done_ns: works.iter().map(|work| work.arrives_ns).collect(), busy_ns: 0.0 };
    let mut order: Vec<usize> = (0..works.len()).filter(|&at| left[at] > 0.0).collect();
    order.sort_by(|&a, &b| works[a].arrives_ns.total_cmp(&works[b].arrives_ns));
    let (mut next, mut now) = (0, 0.0_f64);
    let mut open: Vec<usize> = Vec::new();
    let mut parts: Vec<f64> = Vec::new();
    loop {
        if open.is_empty() {
            let Some(&first) = order.get(next) else { break };
            now = now.max(works[first].arrives_ns);
        }
        while let Some(&at) = order.get(next).filter(|&&at| works[at].arrives_ns <= now) {
            open.push(at);
            next += 1;
        }
        rates(works, &open, schedule, &mut parts);
        let until_done = open.iter().zip(&parts).filter(|(_, part)| **part > 0.0);
        let soonest = until_done.map(|(&at, part)| left[at] / part).fold(f64::INFINITY, f64::min);
        let arrival = order.get(next).map_or(f64::INFINITY, |&at| works[at].arrives_ns - now);
        let step = soonest.min(arrival);
        if !step.is_finite() {
            break;
        }
        now += step;
        served.busy_ns += step;
        for (&at, part) in open.iter().zip(&parts) {
            left[at] -= part * step;
            // What is done in this step is done for good, whatever rounding leaves.
            if *part > 0.0 && left[at] <= 1e-9 * works[at].work_ns {
                left[at] = 0.0;
                served.done_ns[at] = now;
            }
        }
        open.retain(|&at| left[at] > 0.0);
    }
    served
}

/// The part of the link that each of those who wait gets; they add up to 1.
fn rates(works: &[Work], open: &[usize], schedule: Schedule, parts: &mut Vec<f64>) {
    parts.clear();
    let first = open.iter().map(|&at| works[at].rank).min();
    parts.extend(open.iter().map(|&at| match schedule {
        Schedule::Processor => 1.0,
        Schedule::Priority => f64::from(u8::from(Some(works[at].rank) == first)),
        Schedule::Reservation => works[at].weight.max(0.0),
    }));
    let all: f64 = parts.iter().sum();
    if all > 0.0 {
        parts.iter_mut().for_each(|part| *part /= all);
    } else {
        let even = 1.0 / parts.len().max(1) as f64;
        parts.fill(even);
    }
}
