//! The stage `minicache`: pairs of adjacent layers share one direction per token (`MiniCache`, arXiv 2405.14366).
//!
//! From the layer at `start` on, layers are taken in pairs. For each token and head, K and V apart, the unit vectors of the
//! two layers are merged on the arc between them, `t` of the way from the shallower to the deeper; each layer keeps its own
//! norm. Tokens whose vectors lie farthest apart are retained in both layers.
//!
//! *Storage and traffic.* A pair stores one direction instead of two, the norms, and both copies of what is retained: 0.775
//! of the cache where half of the layers are merged and 5% of the tokens retained. Each layer still reads a whole vector
//! per token in every step, so that traffic stays at 1.0 and a little more.
//!
//! *Retention.* The published inequality keeps the most similar tokens, which contradicts its text. Both readings that do
//! the job are here: the share `gamma` with the largest distances (`keep=top`), and the range of similarities up to
//! `min + gamma (max - min)` (`keep=range`). Nothing is published for decoded tokens; they are merged as they come.
//!
//! *Error.* On vectors it is exact ([`merge`]). Otherwise it follows from the recorded cosine of each token with the next
//! layer: the merged direction lies `t` of the angle from the shallower vector and `1 - t` from the deeper one, and norms
//! survive. All of it rests on adjacent layers being alike; [`premise`] says whether they are.

use super::quantize::bits::{bf16_decode, bf16_encode};
use super::quantize::half_rounded;
use super::{Args, Deployment, Distortion, Floor, Kind, NEXT_COSINES, Param, Rule};
use crate::error::{Error, Result};
use crate::model::KvShape;

/// `minicache(start=50%,gamma=5%,t=60%,keep=top)`.
pub static KIND: Kind = Kind {
    name: "minicache",
    doc: "Stores one direction per token for each pair of adjacent layers, and a norm for each layer.",
    floor: Floor::Merging,
    params: &[
        Param { name: "start", default: "0.5", doc: "Share of the layers that come before the first pair." },
        Param { name: "gamma", default: "0.05", doc: "Share of tokens, or of the range of cosines, that is retained." },
        Param { name: "t", default: "0.6", doc: "How far the merged direction lies toward the deeper layer." },
        Param { name: "keep", default: "top", doc: "What is retained: the `top` distances, or a `range` of cosines." },
    ],
    needs: &[&NEXT_COSINES],
    source: "MiniCache (arXiv 2405.14366), its appendix for bytes; KVCache-Factory for the retained share",
    deployment: Deployment {
        engines: "none; research code: KVCache-Factory",
        breaks_sharing: false,
        ..Deployment::NONE
    },
    make,
};

/// Mean cosine of adjacent layers from which the premise holds. The paper shows above 0.8 for the deeper half of its
/// models; below 0.5 a merged vector is more than 30 degrees off one of the two. An assumption, not a published limit.
pub const HOLDS_FROM: f64 = 0.5;

/// Angles whose sine is below this are merged on the chord.
const LEAST_SINE: f64 = 1e-4;

/// Which layers are merged, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Merge {
    /// Share of the layers that come before the first pair.
    pub start: f64,
    /// How far the merged direction lies toward the deeper layer, 0 to 1.
    pub t: f64,
    /// Which tokens are retained.
    pub retention: Retention,
    /// Share of the most important tokens that is retained beside them; see `retain`.
    pub exact: f64,
}

/// Which tokens are retained in both layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Retention {
    /// The share with the largest angles, rounded up.
    Top(f64),
    /// Those with a cosine below `min + gamma (max - min)`.
    Range(f64),
}

/// What a layer is in its pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first of a pair.
    Shallow,
    /// The second.
    Deep,
}

fn make(args: &Args) -> Result<Rule> {
    let share = |name: &str, is_end_in: bool| -> Result<f64> {
        let text = args.text_of(name)?;
        let found = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0),
            None => text.parse::<f64>(),
        };
        let fits = |share: &f64| *share >= 0.0 && (*share < 1.0 || is_end_in && *share <= 1.0);
        found.ok().filter(fits).ok_or_else(|| {
            Error::usage(format!("`{name}` of `minicache`: expected a share such as `0.5` or `50%`, found `{text}`"))
        })
    };
    let gamma = share("gamma", true)?;
    let is_range = args.word("keep", &["top", "range"])? == "range";
    let retention = if is_range { Retention::Range(gamma) } else { Retention::Top(gamma) };
    Ok(Rule::Merge(Merge { start: share("start", false)?, t: share("t", true)?, retention, exact: 0.0 }))
}

impl Merge {
    /// The first layer of the first pair.
    pub fn first(&self, layers: u32) -> u32 {
        ((f64::from(layers) * self.start).round() as u32).min(layers)
    }

    /// What this layer is in a model of so many; `None` if it is not merged. A last layer without a partner is left alone.
    pub fn role(&self, layer: u32, layers: u32) -> Option<Role> {
        let first = self.first(layers);
        let pairs = layers.saturating_sub(first) / 2;
        if layer < first || layer >= first + 2 * pairs {
            return None;
        }
        Some(if (layer - first).is_multiple_of(2) { Role::Shallow } else { Role::Deep })
    }

    /// Share of the tokens that is retained, as far as it is known without their angles: a range of cosines retains an
    /// unknown share, and the same number stands in for it.
    pub fn retained_share(&self) -> f64 {
        match self.retention {
            // As if no important token were also far apart.
            Retention::Top(share) | Retention::Range(share) => (share + self.exact).min(1.0),
        }
    }

    /// Bytes that a token takes in one merged layer: half a pair's. `token_bytes` is what it takes alone, all KV heads, in
    /// the stack's number format; norms take 2 bytes per head for K and V each, a retained token both copies and a 4-byte
    /// index per head for K and V each.
    pub fn stored_bytes(&self, kv: &KvShape, token_bytes: u64) -> u64 {
        let (bytes, heads) = (token_bytes as f64, f64::from(kv.kv_heads));
        let pair = bytes + 2.0 * 4.0 * heads + self.retained_share() * (2.0 * bytes + 8.0 * heads);
        (pair / 2.0 - 1e-6).ceil() as u64
    }

    /// Bytes that one merged layer reads of a token in a decode step: the direction, its norms, and what is retained.
    pub fn read_bytes(&self, kv: &KvShape, token_bytes: u64) -> u64 {
        let (bytes, heads) = (token_bytes as f64, f64::from(kv.kv_heads));
        (bytes + 4.0 * heads + self.retained_share() * (bytes + 8.0 * heads) - 1e-6).ceil() as u64
    }

    /// Flops of restoring a token in one layer: a multiplication per element.
    pub fn read_flops(kv: &KvShape) -> f64 {
        kv.elements() as f64
    }

    /// Flops of merging a token, per layer of the pair: three products for norms and the cosine, two scalings and their sum
    /// per element of the pair.
    pub fn write_flops(kv: &KvShape) -> f64 {
        4.5 * kv.elements() as f64
    }

    /// The error of a layer from the cosines of its pair's tokens: keys, then values. Retained tokens have none.
    pub fn distortion(&self, role: Role, key_cosines: &[f32], value_cosines: &[f32]) -> Distortion {
        let (key, key_shrink) = self.mean_error(role, key_cosines);
        Distortion { key, value: self.mean_error(role, value_cosines).0, key_shrink }
    }

    /// Means over tokens of `2 - 2 cos` and `1 - cos` of the angle between a vector and its merged direction.
    fn mean_error(&self, role: Role, cosines: &[f32]) -> (f64, f64) {
        let retained = retained(self.retention, cosines);
        let share = if role == Role::Deep { 1.0 - self.t } else { self.t };
        let merged = cosines.iter().zip(&retained).filter(|(_, is_retained)| !**is_retained);
        let turned: f64 =
            merged.map(|(cosine, _)| 1.0 - (share * f64::from(cosine.clamp(-1.0, 1.0)).acos()).cos()).sum();
        // The important tokens are taken as merged no better or worse than the others.
        let mean = turned / cosines.len().max(1) as f64 * (1.0 - self.exact);
        (2.0 * mean, mean)
    }
}

/// Which tokens are retained, by the cosines between the two layers. Among equals the earlier token.
pub fn retained(retention: Retention, cosines: &[f32]) -> Vec<bool> {
    match retention {
        Retention::Top(share) => {
            let count = ((cosines.len() as f64 * share - 1e-9).ceil().max(0.0) as usize).min(cosines.len());
            let mut order: Vec<usize> = (0..cosines.len()).collect();
            if count > 0 && count < order.len() {
                order.select_nth_unstable_by(count - 1, |a, b| cosines[*a].total_cmp(&cosines[*b]).then(a.cmp(b)));
            }
            let mut marks = vec![false; cosines.len()];
            order[..count].iter().for_each(|at| marks[*at] = true);
            marks
        }
        Retention::Range(gamma) => {
            let least = cosines.iter().copied().fold(f32::INFINITY, f32::min);
            let most = cosines.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let bound = f64::from(least) + gamma * (f64::from(most) - f64::from(least));
            cosines.iter().map(|cosine| f64::from(*cosine) < bound).collect()
        }
    }
}

/// Two layers' vectors of one head as they come back.
#[derive(Debug, Clone, PartialEq)]
pub struct Merged {
    /// Of the shallower layer.
    pub shallow: Vec<f32>,
    /// Of the deeper layer.
    pub deep: Vec<f32>,
    /// Which tokens were retained.
    pub retained: Vec<bool>,
    /// Cosine of the two layers' vectors per token.
    pub cosines: Vec<f32>,
    /// Bytes that the pair takes, in bf16.
    pub bytes: u64,
}

/// Merges the vectors of one head in two adjacent layers (tokens x `dim` each) and restores them: directions and retained
/// vectors in bf16, norms in FP16.
///
/// # Errors
/// Layers of different lengths, or rows that do not end with a whole vector.
pub fn merge(merge: &Merge, shallow: &[f32], deep: &[f32], dim: usize) -> Result<Merged> {
    if dim == 0 || shallow.len() != deep.len() || !shallow.len().is_multiple_of(dim) {
        return Err(Error::data(format!(
            "expected two layers of vectors of {dim} elements, found {} and {} elements",
            shallow.len(),
            deep.len()
        )));
    }
    let pairs = || shallow.chunks_exact(dim).zip(deep.chunks_exact(dim));
    let cosines: Vec<f32> = pairs().map(|(a, b)| cosine(a, b) as f32).collect();
    let retained = retained(merge.retention, &cosines);
    let (mut first, mut second) = (Vec::with_capacity(shallow.len()), Vec::with_capacity(deep.len()));
    let bf16 = |x: f32| bf16_decode(bf16_encode(x));
    let mut direction = vec![0.0_f64; dim];
    for ((a, b), is_retained) in pairs().zip(&retained) {
        if *is_retained {
            first.extend(a.iter().copied().map(bf16));
            second.extend(b.iter().copied().map(bf16));
            continue;
        }
        slerp(a, b, merge.t, &mut direction);
        let (norm_a, norm_b) = (half_rounded(norm(a) as f32), half_rounded(norm(b) as f32));
        first.extend(direction.iter().map(|e| bf16(*e as f32) * norm_a));
        second.extend(direction.iter().map(|e| bf16(*e as f32) * norm_b));
    }
    let (tokens, kept) = (cosines.len() as u64, retained.iter().filter(|kept| **kept).count() as u64);
    let vector = 2 * dim as u64;
    let bytes = tokens * (vector + 4) + kept * (2 * vector + 4);
    Ok(Merged { shallow: first, deep: second, retained, cosines, bytes })
}

/// The unit vector `t` of the way from the direction of `a` to that of `b` along the arc between them; on the chord where
/// they are parallel. A zero vector has no direction, and the other one's is taken.
fn slerp(a: &[f32], b: &[f32], t: f64, direction: &mut [f64]) {
    let (norm_a, norm_b) = (norm(a), norm(b));
    let angle = cosine(a, b).acos();
    let (mut of_a, mut of_b) = (1.0 - t, t);
    if angle.sin() >= LEAST_SINE {
        (of_a, of_b) = (((1.0 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin());
    }
    let inverse = |norm: f64| if norm > 0.0 { 1.0 / norm } else { 0.0 };
    let (of_a, of_b) = (of_a * inverse(norm_a), of_b * inverse(norm_b));
    for (e, (x, y)) in direction.iter_mut().zip(a.iter().zip(b)) {
        *e = of_a * f64::from(*x) + of_b * f64::from(*y);
    }
    let length = direction.iter().map(|e| e * e).sum::<f64>().sqrt();
    if length > 0.0 {
        for e in direction {
            *e /= length;
        }
    }
}

fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// The cosine of two vectors; 1 where one of them is zero, since nothing is lost by taking the other's direction.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product: f64 = a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
    let norms = norm(a) * norm(b);
    if norms > 0.0 { (product / norms).clamp(-1.0, 1.0) } else { 1.0 }
}

/// Whether adjacent layers are alike enough to be merged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Premise {
    /// Mean cosine of the keys of merged pairs.
    pub key_cosine: f64,
    /// Of the values.
    pub value_cosine: f64,
}

impl Premise {
    /// Whether both are at least [`HOLDS_FROM`].
    pub fn holds(&self) -> bool {
        self.key_cosine >= HOLDS_FROM && self.value_cosine >= HOLDS_FROM
    }

    /// A sentence for reports.
    pub fn text(&self) -> String {
        let Self { key_cosine, value_cosine } = self;
        let found = format!("adjacent layers have a mean cosine of {key_cosine:.2} in K and {value_cosine:.2} in V");
        if self.holds() {
            format!("the premise of `minicache` holds on this trace: {found}")
        } else {
            format!(
                "the premise of `minicache` does not hold on this trace: {found}, and merging needs {HOLDS_FROM}; its \
                 published savings do not carry over"
            )
        }
    }
}

/// Sums over the cosines of merged pairs: keys, then values.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cosines {
    sums: [f64; 2],
    counts: [u64; 2],
}

impl Cosines {
    /// Adds those of the tokens of one head.
    pub fn add(&mut self, cosines: [&[f32]; 2]) {
        for ((cosines, sum), count) in cosines.into_iter().zip(&mut self.sums).zip(&mut self.counts) {
            *sum += cosines.iter().map(|cosine| f64::from(*cosine)).sum::<f64>();
            *count += cosines.len() as u64;
        }
    }

    /// Adds sums that were made elsewhere.
    pub fn append(&mut self, other: &Self) {
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }

    /// The premise over all of them; `None` where there are none.
    pub fn premise(&self) -> Option<Premise> {
        let [keys, values] = self.counts;
        let mean = |at: usize| self.sums[at] / self.counts[at] as f64;
        (keys > 0 && values > 0).then(|| Premise { key_cosine: mean(0), value_cosine: mean(1) })
    }
}

#[cfg(test)]
mod tests;
