//! `deviceProperties`: what the devices of a profile are.

use serde::Deserialize;

use super::super::problem::quoted;

/// The most lines of the log for one profile.
const LINES: usize = 64;

/// What is kept of a device; nothing of it tells who ran what where.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Device {
    #[serde(default)]
    name: String,
    total_global_mem: Option<u64>,
    compute_major: Option<u32>,
    compute_minor: Option<u32>,
    num_sms: Option<u32>,
}

#[derive(Debug, Deserialize)]
struct Numbered {
    id: Option<u64>,
    #[serde(flatten)]
    device: Device,
}

/// A line for each run of equal devices, such as ``devices 0 to 7: `Tesla V100-SXM2-32GB`, 34079637504 bytes of memory, 80
/// multiprocessors, compute capability 7.0``.
pub(super) fn described(value: &[u8]) -> Vec<String> {
    let Ok(devices) = serde_json::from_slice::<Vec<Numbered>>(value) else {
        return vec!["`deviceProperties` is no list of devices, and was not read".to_owned()];
    };
    let mut lines: Vec<String> = Vec::new();
    let runs = devices.chunk_by(|one, next| {
        let follows = one.id.zip(next.id).is_some_and(|(one, next)| one.checked_add(1) == Some(next));
        follows && one.device == next.device
    });
    for run in runs.take(LINES) {
        if let (Some(first), Some(last)) = (run.first(), run.last()) {
            lines.push(line(first, last.id.filter(|_| run.len() > 1)));
        }
    }
    lines
}

fn line(first: &Numbered, last: Option<u64>) -> String {
    let which = match (first.id, last) {
        (Some(first), Some(last)) => format!("devices {first} to {last}"),
        (Some(id), None) => format!("device {id}"),
        (None, _) => "a device without a number".to_owned(),
    };
    let Device { name, total_global_mem, compute_major, compute_minor, num_sms } = &first.device;
    let known = [
        (!name.is_empty()).then(|| quoted(name.as_bytes())),
        total_global_mem.map(|bytes| format!("{bytes} bytes of memory")),
        num_sms.map(|count| format!("{count} multiprocessors")),
        compute_major.zip(*compute_minor).map(|(major, minor)| format!("compute capability {major}.{minor}")),
    ];
    let known: Vec<String> = known.into_iter().flatten().collect();
    format!("{which}: {}", if known.is_empty() { "nothing is said of it".to_owned() } else { known.join(", ") })
}
