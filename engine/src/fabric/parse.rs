//! Reads a fabric file.

use serde::Deserialize;

use super::topology::network;
use super::{Fabric, Level, Shape};
use crate::error::{Error, Result, unknown};
use crate::machine::{Distance, Number, Sources, sourced};
use crate::model::{from_toml, name_of};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: String,
    shape: String,
    accelerators: u32,
    node: Option<u32>,
    oversubscription: Option<f64>,
    dims: Option<Vec<u32>>,
    adaptation_days: Option<Number>,
    sources: Sources,
    levels: Vec<LevelFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelFile {
    name: String,
    distance: Distance,
    way_bytes_per_s: Number,
    achieved: Number,
    latency_ns: Number,
    message_ns: Number,
    pj_per_bit: Option<Number>,
    usd_per_accelerator_hour: Option<Number>,
}

/// Reads the text of a fabric; `origin` names it in messages, and its file name without the extension names the fabric.
///
/// The keys are `title`, `shape` (`flat`, `layered`, `clos`, `full_mesh`, `torus`), `accelerators`, for nodes `node` (and
/// `oversubscription` for `clos`), for meshes and tori `dims`, `adaptation_days` if known, `[sources]` as in a machine
/// file, and one `[[levels]]` for the links of each reach or dimension, nearest first.
///
/// # Errors
/// A missing, unknown or foreign key, sizes that do not go together, each with its place or reason.
pub fn parse(text: &str, origin: &str) -> Result<Fabric> {
    let file: File = from_toml(text, origin)?;
    let missing =
        |key: &str| Error::data(format!("{origin}: expected `{key}` for a {} fabric, found none", file.shape));
    let node = || file.node.ok_or_else(|| missing("node"));
    let dims = || file.dims.clone().ok_or_else(|| missing("dims"));
    let shape = match file.shape.as_str() {
        "flat" => Shape::Flat,
        "layered" => Shape::Layered { node: node()? },
        "clos" => Shape::Clos {
            node: node()?,
            oversubscription: file.oversubscription.ok_or_else(|| missing("oversubscription"))?,
        },
        "full_mesh" => Shape::FullMesh { dims: dims()? },
        "torus" => Shape::Torus { dims: dims()? },
        other => {
            return Err(unknown("shape", other, ["flat", "layered", "clos", "full_mesh", "torus"]).context(origin));
        }
    };
    let of = |key: &str, number: &Number| sourced(text, origin, &file.sources, key, number);
    let level = |given: &LevelFile| -> Result<Level> {
        let known = |key: &str, number: &Option<Number>| number.as_ref().map(|number| of(key, number)).transpose();
        Ok(Level {
            name: given.name.clone(),
            distance: given.distance,
            way_bytes_per_s: of("way_bytes_per_s", &given.way_bytes_per_s)?,
            achieved: of("achieved", &given.achieved)?,
            latency_ns: of("latency_ns", &given.latency_ns)?,
            message_ns: of("message_ns", &given.message_ns)?,
            pj_per_bit: known("pj_per_bit", &given.pj_per_bit)?,
            usd_per_accelerator_hour: known("usd_per_accelerator_hour", &given.usd_per_accelerator_hour)?,
        })
    };
    let fabric = Fabric {
        name: name_of(origin),
        title: file.title.clone(),
        shape,
        accelerators: file.accelerators,
        levels: file.levels.iter().map(level).collect::<Result<_>>()?,
        adaptation_days: file.adaptation_days.as_ref().map(|days| of("adaptation_days", days)).transpose()?,
    };
    network(&fabric).map_err(|error| error.context(origin))?;
    Ok(fabric)
}
