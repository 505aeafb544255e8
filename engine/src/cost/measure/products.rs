//! The matrix products of a layer, as one accelerator runs them.

use super::latent;
use crate::model::{Attention, LayerGroup};

/// A product with a matrix of `k` rows and `n` columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Product {
    pub n: u64,
    pub k: u64,
    /// Whether it is the product that runs; else one of as many weights stands in for several.
    pub exact: bool,
}

/// The products of one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Products {
    pub attention: Vec<Product>,
    pub dense: Vec<Product>,
}

/// Engines fuse queries, keys and values, and gate and up; columns are split among the accelerators in the first product
/// of a pair and rows in the second.
pub(super) fn products(group: &LayerGroup, hidden: u32, tensor: u32) -> Products {
    Products { attention: attention(group, hidden, tensor), dense: dense(group, hidden, tensor) }
}

fn product(n: f64, k: f64, exact: bool) -> Option<Product> {
    let whole = |width: f64| (width.ceil() as u64).max(1);
    (n > 0.5 && k > 0.5).then(|| Product { n: whole(n), k: whole(k), exact })
}

fn attention(group: &LayerGroup, hidden: u32, tensor: u32) -> Vec<Product> {
    let (kv, width, share) = (&group.kv, f64::from(hidden), f64::from(tensor));
    let output = f64::from(kv.query_heads) * f64::from(kv.value_dim);
    let input = group.attention_params / width - output;
    if latent::is_known(group, hidden) {
        return latent::products(kv.query_heads.div_ceil(tensor));
    }
    let is_grouped = matches!(kv.attention, Attention::Full | Attention::Sliding { .. });
    if !is_grouped || input <= 0.0 {
        return product(group.attention_params / width / share, width, false).into_iter().collect();
    }
    // Keys and values of a head are whole on each accelerator that has it.
    let pair = f64::from(kv.key_dim + kv.value_dim);
    let keys = (f64::from(kv.kv_heads) * pair).min(input);
    let own = f64::from(kv.kv_heads.div_ceil(tensor)) / f64::from(kv.kv_heads.max(1));
    let columns = (input - keys) / share + keys * own;
    [product(columns, width, true), product(width, output / share, true)].into_iter().flatten().collect()
}

/// The router is whole on each accelerator. Networks of two matrices are priced as one of three with as many weights.
fn dense(group: &LayerGroup, hidden: u32, tensor: u32) -> Vec<Product> {
    let (ffn, width, share) = (&group.ffn, f64::from(hidden), f64::from(tensor));
    let router = f64::from(ffn.experts);
    let inner = (ffn.dense_params - router * width).max(0.0) / (3.0 * width) / share;
    [product(router, width, true), product(2.0 * inner, width, true), product(width, inner, true)]
        .into_iter()
        .flatten()
        .collect()
}
