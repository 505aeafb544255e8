//! What `kvtoll fabric` prints: the rows of `fabric_steps` and `fabric_classes`.

use std::fmt::Write as _;

use arrow::array::RecordBatch;

use super::place::{Layout, order_name};
use super::share::Schedule;
use super::step::{Placements, Style, placements, shared};
use super::topology::Network;
use super::traffic::Traffic;
use super::{Fabric, Level};
use crate::error::Result;
use crate::schema::Type::{Bool, F64, I64, Text, U32};
use crate::schema::{Cell, Scope, Table, batch_of_rows, known, maybe};

/// A step on a fabric.
pub static FABRIC_STEPS: Table = Table {
    name: "fabric_steps",
    doc: "what a step's traffic takes on a fabric, by placement of ranks and kind of collective",
    scope: Scope::Run,
    columns: &[
        known("model", Text, "", "The model."),
        known("fabric", Text, "", "The fabric."),
        known("shape", Text, "", "How its links join accelerators."),
        known("accelerators", U32, "", "Accelerators."),
        known(
            "layout",
            Text,
            "",
            "Tensor x data x pipeline parallelism, accelerators among which experts are spread, and places of FFN \
             accelerators and memories apart.",
        ),
        known("batch", F64, "requests", "Requests that decode together in each copy."),
        known("awaited_ns", I64, "ns", "Time of what the step waits for, best placement, adapted collectives."),
        known("beside_ns", I64, "ns", "Time of what goes on beside it, alone on the links."),
        known("best_order", Text, "", "The fastest order of ranks, innermost axis first."),
        known("worst_order", Text, "", "The slowest one."),
        known(
            "placement_sensitivity",
            F64,
            "",
            "Time of the slowest order over that of the fastest, adapted collectives.",
        ),
        known("naive_sensitivity", F64, "", "The same with naive collectives."),
        known(
            "naive_over_adapted",
            F64,
            "",
            "Time with naive collectives over that with adapted ones, best placements.",
        ),
        maybe("energy_j", F64, "J", "Energy of the bits on links; null where that of a level in use is unknown."),
        maybe("usd_per_accelerator_hour", F64, "USD/h", "Price of the links; null where that of a level is unknown."),
        maybe("adaptation_days", F64, "days", "Engineer-days that software needs; null where nobody has said so."),
        known("certainty", Text, "", "The least certain number of the fabric."),
    ],
};

/// A class of traffic on a level of links.
pub static FABRIC_CLASSES: Table = Table {
    name: "fabric_classes",
    doc: "a class of a step's traffic on links of one reach, on the best placement with adapted collectives",
    scope: Scope::Run,
    columns: &[
        known("model", Text, "", "The model."),
        known("fabric", Text, "", "The fabric."),
        known("batch", F64, "requests", "Requests that decode together in each copy."),
        known("class", Text, "", "The class of traffic."),
        known("link", Text, "", "The links."),
        known("distance", Text, "", "How far they reach."),
        known("is_awaited", Bool, "", "Whether the step waits for the class."),
        known("collective", Text, "", "naive or adapted: which was faster."),
        known("class_ns", I64, "ns", "Time of the class in a step over all links, alone."),
        known("bytes", F64, "bytes", "Bytes whose farthest links these are, all accelerators."),
        known("link_bytes", F64, "bytes", "Bytes that cross these links, each link counted."),
        known("busy_ns", I64, "ns", "Time in which the busiest of these links carries the class."),
        known("shared_ns", I64, "ns", "When it is through if all classes begin at once."),
        known("schedule", Text, "", "How they share: sharing, priority or reservation."),
        maybe("energy_j", F64, "J", "Energy of the class's bits over all links; null where unknown."),
        maybe("usd_per_accelerator_hour", F64, "USD/h", "Price of these links; null where unknown."),
    ],
};

/// What the rows of one model on one fabric have in common.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The model.
    pub model: &'a str,
    /// The fabric.
    pub fabric: &'a Fabric,
    /// Its links.
    pub network: &'a Network,
    /// How the model is spread.
    pub layout: &'a Layout,
}

fn whole(ns: f64) -> Cell {
    Cell::from(ns.round() as i64)
}

/// A layout in words.
fn layout_name(layout: &Layout) -> String {
    let Layout { tensor, data, pipeline, expert, ffn, memory } = layout;
    let mut name = format!("{tensor} x {data} x {pipeline}, experts over {expert}");
    for (count, what) in [(ffn, "FFN apart"), (memory, "memories")] {
        if *count > 0 {
            let _ = write!(name, ", {count} {what}");
        }
    }
    name
}

/// Rows of [`FABRIC_STEPS`], one for each batch with its traffic.
///
/// # Errors
/// None that traffic can cause.
pub fn steps(frame: &Frame<'_>, batches: &[(f64, Vec<Traffic>)]) -> Result<RecordBatch> {
    let Frame { model, fabric, network, layout } = *frame;
    let row = |(batch, traffic): &(f64, Vec<Traffic>)| -> Vec<Cell> {
        let adapted = placements(network, layout, Style::Adapted, traffic);
        let naive = placements(network, layout, Style::Naive, traffic);
        let (best, plain) = (adapted.best.all_ns(), naive.best.all_ns());
        let energy: Option<f64> = adapted.best.classes.iter().map(|class| class.moved.energy_j).sum();
        vec![
            model.into(),
            fabric.name.as_str().into(),
            fabric.shape.name().into(),
            fabric.accelerators.into(),
            layout_name(layout).into(),
            (*batch).into(),
            whole(adapted.best.awaited_ns()),
            whole(best - adapted.best.awaited_ns()),
            order_name(layout, adapted.best.order).into(),
            order_name(layout, adapted.worst.order).into(),
            adapted.sensitivity().into(),
            naive.sensitivity().into(),
            (if best > 0.0 { plain / best } else { 1.0 }).into(),
            energy.into(),
            fabric.usd_per_accelerator_hour().into(),
            fabric.adaptation_days.as_ref().map(|days| days.value).into(),
            fabric.certainty().name().into(),
        ]
    };
    let rows: Vec<Vec<Cell>> = batches.iter().map(row).collect();
    batch_of_rows(&FABRIC_STEPS, &rows)
}

/// Rows of [`FABRIC_CLASSES`].
///
/// # Errors
/// None that traffic can cause.
pub fn classes(frame: &Frame<'_>, schedule: Schedule, batches: &[(f64, Vec<Traffic>)]) -> Result<RecordBatch> {
    let Frame { model, fabric, network, layout } = *frame;
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (batch, traffic) in batches {
        let Placements { best, .. } = placements(network, layout, Style::Adapted, traffic);
        let shares = shared(&best, schedule);
        for class in &best.classes {
            for (at, level) in fabric.levels.iter().enumerate() {
                let Level { name, distance, usd_per_accelerator_hour, .. } = level;
                let share = shares.iter().find(|share| share.class == class.class && share.level == at);
                let Some(share) = share else { continue };
                rows.push(vec![
                    model.into(),
                    fabric.name.as_str().into(),
                    (*batch).into(),
                    class.class.name().into(),
                    name.as_str().into(),
                    distance.name().into(),
                    class.class.is_awaited().into(),
                    (if class.is_adapted { "adapted" } else { "naive" }).into(),
                    whole(class.moved.ns),
                    class.moved.bytes[at].into(),
                    class.moved.link_bytes[at].into(),
                    whole(share.alone_ns),
                    whole(share.done_ns),
                    schedule.name().into(),
                    class.moved.energy_j.into(),
                    usd_per_accelerator_hour.as_ref().map(|usd| usd.value).into(),
                ]);
            }
        }
    }
    batch_of_rows(&FABRIC_CLASSES, &rows)
}
