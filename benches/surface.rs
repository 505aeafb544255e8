//! Decode attention of H200 under vLLM from its shipped surface: a million demand rows through the grid of a scenario, and
//! single shapes through the surface itself.

use std::sync::Arc;

use divan::counter::ItemsCount;
use engine::surface::{Dim, Grid, Scratch, Shape, Surface};
use kvtoll::surfaces::Library;

fn main() {
    divan::main();
}

const ROWS: u64 = 1_000_000;

fn surface() -> (Arc<Surface>, usize) {
    let mut library = Library::of(None);
    let surface = library.get("h200__vllm__attention_generation").expect("a surface").surface.clone();
    let group = surface.keys().position(|key| key.kv_dtype == "bfloat16").expect("bf16 KV");
    (surface, group)
}

/// 32 query heads and 8 KV heads of 128.
fn shape() -> Shape {
    Shape::of(&[(Dim::NewTokens, 1), (Dim::QueryHeads, 32), (Dim::KvHeads, 8), (Dim::HeadDim, 128)])
}

/// Batches and contexts as a replay meets them: the one changes seldom, the other grows.
fn demand() -> Vec<(f64, f64)> {
    (0..ROWS).map(|row| ((row / 1000 % 256 + 1) as f64, (row * 37 % 65_000) as f64)).collect()
}

#[divan::bench]
fn rows_through_a_grid(bencher: divan::Bencher<'_, '_>) {
    let (surface, group) = surface();
    let batches: Vec<u64> = (0..9).map(|power| 1 << power).collect();
    let contexts: Vec<u64> = (3..17).map(|power| (1 << power) - 1).collect();
    let grid = Grid::of(&surface, group, &shape(), &batches, &contexts).expect("a grid");
    let demand = demand();
    bencher
        .counter(ItemsCount::new(ROWS))
        .bench(|| demand.iter().map(|(batch, context)| grid.time(*batch, *context).0).sum::<f64>());
}

#[divan::bench]
fn shapes_through_a_surface(bencher: divan::Bencher<'_, '_>) {
    let (surface, group) = surface();
    let mut scratch = Scratch::default();
    let shapes: Vec<Shape> = demand()
        .into_iter()
        .step_by(1000)
        .map(|(batch, context)| shape().with(Dim::Batch, batch as u64).with(Dim::PastTokens, context as u64))
        .collect();
    bencher.counter(ItemsCount::new(shapes.len())).bench_local(|| {
        shapes
            .iter()
            .filter_map(|shape| surface.evaluate(group, shape, &mut scratch))
            .map(|found| found.time_ns)
            .sum::<f64>()
    });
}

/// What the first question about a part costs.
#[divan::bench]
fn decode_a_surface() -> usize {
    Library::of(None).get("h200__vllm__attention_generation").expect("a surface").surface.keys().len()
}
