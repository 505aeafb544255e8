//! What the binary carries: named queries, presets and report templates.
//!
//! The folders are the registries: `build.rs` lists `queries/`, `views/`, `presets/*/` and `templates/` in sorted order, so that
//! adding one of these is adding a file. Each list holds (name, text); queries and presets are named without extension,
//! templates by their path below `templates/`.

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The rules that put kernels into booths, where no others are named.
pub static KERNEL_RULES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/presets/kernels.toml"));

/// The devices whose operations were measured.
pub static DEVICES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/presets/surfaces/devices.toml"));

/// The figures that surfaces are held against.
pub static SURFACE_BASELINE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/presets/surfaces/baseline.tsv"));

/// The text of the entry of this name.
///
/// # Errors
/// An unknown name, with the nearest known one; `what` names the kind of thing in the message.
pub fn text(
    list: &'static [(&'static str, &'static str)],
    what: &str,
    name: &str,
) -> engine::error::Result<&'static str> {
    let found = list.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| engine::error::unknown(what, name, list.iter().map(|(known, _)| *known)))
}
