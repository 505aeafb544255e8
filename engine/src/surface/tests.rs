//! Surfaces over laws that are known, and the laws that hold for any surface.

use std::sync::LazyLock;

use super::fit::errors;
use super::*;

const PEAKS: Peaks = Peaks {
    memory_bytes_per_s: 3e12,
    cache_bytes: 5e7,
    flops_16bit: 1e15,
    flops_8bit: 2e15,
    flops_4bit: 2e15,
    link_bytes_per_s: 4e11,
    processors: 132.0,
};

fn decode(batch: u64, past: u64, heads: u64) -> Shape {
    Shape::of(&[
        (Dim::Batch, batch),
        (Dim::NewTokens, 1),
        (Dim::PastTokens, past),
        (Dim::QueryHeads, 4 * heads),
        (Dim::KvHeads, heads),
        (Dim::HeadDim, 128),
    ])
}

fn key() -> Key {
    Key { kernel_source: "a_kernel".to_owned(), kv_dtype: "bfloat16".to_owned(), ..Key::default() }
}

/// A kernel that takes a start of 12 us and then 80% of the bandwidth, or less while few blocks run.
fn law(shape: &Shape) -> f64 {
    let bytes = work("attention_generation", &key(), shape).bytes;
    let blocks = shape.get(Dim::Batch) as f64 * shape.get(Dim::KvHeads) as f64;
    let share = 0.8 * (1.0 - (-(blocks / 40.0)).exp());
    12_000.0 + bytes / (PEAKS.memory_bytes_per_s * share) * 1e9
}

/// A grid of shapes with one in four missing: the measured, and the missing ones.
fn grid() -> (Rows, Rows) {
    let (mut seen, mut hidden, mut at) = (Rows::default(), Rows::default(), 0_u64);
    for batch in [1, 2, 4, 8, 16, 32, 64, 128] {
        for power in 4..17 {
            for heads in [1, 2, 4, 8] {
                let shape = decode(batch, (1 << power) - 1, heads);
                at += 1;
                // The corners are always measured: they make the box.
                let corner = batch == 1 || (batch == 128 && heads == 8);
                let hides = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0 && !corner;
                let into = if hides { &mut hidden } else { &mut seen };
                into.push(&key(), shape, law(&shape));
            }
        }
    }
    (seen, hidden)
}

/// The measured rows, fitted once for all tests.
fn fitted() -> &'static Fitted {
    static FITTED: LazyLock<Fitted> = LazyLock::new(|| fit("attention_generation", &grid().0, PEAKS).unwrap());
    &FITTED
}

fn logarithms(surface: &Surface, rows: &Rows) -> Vec<f64> {
    let mut scratch = Scratch::default();
    let group = surface.group(&key()).unwrap();
    let each = rows.shapes.iter().zip(&rows.latency_ns);
    each.map(|(shape, latency)| (surface.evaluate(group, shape, &mut scratch).unwrap().time_ns / latency).ln())
        .collect()
}

#[test]
fn a_smooth_law_is_found_where_nothing_was_measured() {
    let (fitted, hidden) = (fitted(), grid().1);
    let found = errors(&logarithms(&fitted.surface, &hidden));
    assert!(found.rows > 60, "{found:?}");
    assert!(found.median < 0.004 && found.p90 < 0.02, "{found:?}");
    assert!(found.bias.abs() < 0.004, "{found:?}");
    // The stated error is that of rows the surface has not seen.
    assert!(fitted.errors.median < 3.0 * found.median + 0.003, "{:?} {found:?}", fitted.errors);
    assert_eq!(fitted.impossible, 0);
}

#[test]
fn measured_points_come_back_and_left_out_ones_nearly() {
    let (fitted, seen) = (fitted(), grid().0);
    let found = errors(&logarithms(&fitted.surface, &seen));
    // Steps of the stored efficiency are 0.4% wide.
    assert!(found.p99 < 0.01, "{found:?}");
    let (shape, value) = fitted.surface.points(0).nth(100).unwrap();
    let mut scratch = Scratch::default();
    let with = fitted.surface.evaluate(0, &shape, &mut scratch).unwrap();
    let without = fitted.surface.evaluate_without(0, &shape, value, &mut scratch).unwrap();
    assert!(with != without);
    assert!((without.time_ns / with.time_ns - 1.0).abs() < 0.1, "{with:?} {without:?}");
    // Another value of the same shape is no reason to leave the point out.
    assert_eq!(fitted.surface.evaluate_without(0, &shape, value + 0.5, &mut scratch).unwrap(), with);
}

#[test]
fn the_order_of_rows_does_not_matter() {
    let (seen, _) = grid();
    let mut turned = Rows::default();
    for row in (0..seen.len()).rev() {
        turned.push(&key(), seen.shapes[row], seen.latency_ns[row]);
    }
    let (a, b) =
        (fit("attention_generation", &seen, PEAKS).unwrap(), fit("attention_generation", &turned, PEAKS).unwrap());
    assert_eq!(a.surface.tuning(), b.surface.tuning());
    assert_eq!(a.errors, b.errors);
}

#[test]
fn outside_the_measured_shapes_the_nearest_efficiency_holds() {
    let fitted = fitted();
    let mut scratch = Scratch::default();
    let mut at = |shape: Shape| fitted.surface.evaluate(0, &shape, &mut scratch).unwrap();
    let edge = at(decode(128, (1 << 16) - 1, 8));
    assert_eq!(edge.ground, Ground::Calibrated);
    for far in [decode(512, (1 << 16) - 1, 8), decode(128, (1 << 19) - 1, 8), decode(1024, (1 << 18) - 1, 8)] {
        let found = at(far);
        assert_eq!(found.ground, Ground::Extrapolated);
        assert!((found.efficiency / edge.efficiency - 1.0).abs() < 0.01, "{found:?} {edge:?}");
    }
    // A length that never varied and is another now is outside, too.
    assert_eq!(at(decode(8, 1023, 8).with(Dim::HeadDim, 64)).ground, Ground::Extrapolated);
    assert_eq!(at(decode(8, 1023, 8)).ground, Ground::Calibrated);
    // Between measured lengths nothing is outside, whatever waves and powers of two do there.
    for batch in [3, 7, 11, 100] {
        assert_eq!(at(decode(batch, 1000, 3)).ground, Ground::Calibrated);
    }
}

#[test]
fn impossible_rows_are_dropped_and_counted() {
    let (mut seen, hidden) = grid();
    let bytes = |shape: &Shape| work("attention_generation", &key(), shape).bytes;
    let mut added = 0;
    for (shape, at) in hidden.shapes.iter().zip(0..) {
        if bytes(shape) > 1e9 && at % 2 == 0 {
            // Twice the bandwidth, far beyond what a cache explains.
            seen.push(&key(), *shape, bytes(shape) / 6e12 * 1e9);
            added += 1;
        }
    }
    assert!(added > 3);
    // In the cache nothing is impossible.
    let small = decode(2, 4095, 4);
    assert!(bytes(&small) < PEAKS.cache_bytes);
    seen.push(&key(), small, bytes(&small) / 9e12 * 1e9);
    let fitted = fit("attention_generation", &seen, PEAKS).unwrap();
    assert_eq!(fitted.impossible, added);
    assert_eq!(fitted.rows, seen.len());
    let none = Rows { latency_ns: vec![1.0], shapes: vec![decode(128, 1 << 20, 8)], key: vec![0], keys: vec![key()] };
    assert!(fit("attention_generation", &none, PEAKS).unwrap_err().to_string().contains("physically possible"));
}

#[test]
fn no_estimate_is_below_the_physical_bound() {
    let (mut seen, _) = grid();
    // A kernel at 99% of the bandwidth leaves the interpolation no room.
    for (shape, latency) in seen.shapes.iter().zip(&mut seen.latency_ns) {
        *latency = work("attention_generation", &key(), shape).bytes / (0.99 * PEAKS.memory_bytes_per_s) * 1e9 + 50.0;
    }
    let fitted = fit("attention_generation", &seen, PEAKS).unwrap();
    let mut scratch = Scratch::default();
    for batch in [1, 3, 7, 50, 100, 300, 5000] {
        for past in [0, 5, 100, 999, 30_000, 200_000, 3_000_000] {
            for heads in [1, 3, 8, 16] {
                let shape = decode(batch, past, heads);
                let found = fitted.surface.evaluate(0, &shape, &mut scratch).unwrap();
                let bound = work("attention_generation", &key(), &shape).bound_ns(&PEAKS);
                assert!(found.time_ns >= bound && found.time_ns.is_finite(), "{shape:?} {found:?}");
            }
        }
    }
}

#[test]
fn a_grid_is_linear_in_context_and_rises_as_the_measurements_do() {
    let fitted = fitted();
    let (batches, contexts) = ([1, 2, 4, 8, 16, 32, 64, 128], [15, 63, 255, 1023, 4095, 16_383, 65_535]);
    let grid = Grid::of(&fitted.surface, 0, &decode(1, 0, 8), &batches, &contexts).unwrap();
    let mut scratch = Scratch::default();
    for batch in batches {
        for context in contexts {
            let found = fitted.surface.evaluate(0, &decode(batch, context, 8), &mut scratch).unwrap();
            let (time, ground) = grid.time(batch as f64, context as f64);
            assert!((time / found.time_ns - 1.0).abs() < 1e-12);
            assert_eq!(ground, Ground::Calibrated);
        }
    }
    for batch in [1.0, 5.0, 33.0, 128.0] {
        let times: Vec<f64> = (0..200_u32).map(|at| grid.time(batch, f64::from(at) * 400.0).0).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{batch}");
    }
    // Linear between two nodes, and further on beyond the last.
    let [a, b, c] = [1023.0, 2559.0, 4095.0].map(|context| grid.time(8.0, context).0);
    assert!((f64::midpoint(a, c) / b - 1.0).abs() < 1e-12);
    assert_eq!(grid.time(8.0, 100_000.0).1, Ground::Extrapolated);
    assert_eq!(grid.time(500.0, 1000.0).1, Ground::Extrapolated);
    assert!(Grid::of(&fitted.surface, 0, &decode(1, 0, 8), &[4, 2], &contexts).is_none());
    assert!(Grid::of(&fitted.surface, 0, &decode(1, 0, 8), &batches, &[]).is_none());
    assert!(Grid::of(&fitted.surface, 7, &decode(1, 0, 8), &batches, &contexts).is_none());
}

#[test]
fn deepep_beyond_two_nodes_follows_from_one_and_two() {
    // DeepEP, low latency, 128 tokens, hidden 7168, top 8: 103.7 us on one node (AIConfigurator), 290, 410 and 471 us on
    // 2, 4 and 8 (SemiAnalysis).
    let at = |nodes| across_nodes(103.7, 2, 290.0, nodes).unwrap().0;
    assert!((at(1) - 103.7).abs() < 1e-9 && (at(2) - 290.0).abs() < 1e-9);
    assert!((at(4) / 410.0 - 1.0).abs() < 0.2, "{}", at(4));
    assert!((at(8) / 471.0 - 1.0).abs() < 0.2, "{}", at(8));
    let grounds = [1, 2, 4, 8].map(|nodes| across_nodes(103.7, 2, 290.0, nodes).unwrap().1.name());
    assert_eq!(grounds, ["calibrated", "calibrated", "extrapolated", "extrapolated"]);
    assert_eq!(across_nodes(100.0, 1, 290.0, 4), None);
    assert_eq!(across_nodes(100.0, 2, 290.0, 0), None);
}

#[test]
fn errors_are_what_they_are_called() {
    let ratios = [0.9, 1.0, 1.0, 1.1, 1.2, f64::NAN];
    let found = errors(&ratios.map(f64::ln));
    assert_eq!(found.rows, 5);
    assert!((found.median - 0.1).abs() < 1e-12 && found.bias.abs() < 1e-12, "{found:?}");
    assert!((found.p90 - 0.16).abs() < 1e-12, "{found:?}");
    assert_eq!(errors(&[]), Errors::default());
}

#[test]
fn work_of_known_shapes() {
    // 8 requests, 1000 tokens, 2 KV heads of 128 in 8 bits, 16 query heads with queries and outputs in 16.
    let shape = decode(8, 999, 2).with(Dim::QueryHeads, 16);
    let key8 = Key { kv_dtype: "fp8".to_owned(), ..Key::default() };
    let found = work("attention_generation", &key8, &shape);
    assert!((found.bytes - (8.0 * 2.0 * 1000.0 * 128.0 * 2.0 + 8.0 * 16.0 * 128.0 * 4.0)).abs() < 1e-6);
    assert!((found.flops - 4.0 * 8.0 * 16.0 * 128.0 * 1000.0).abs() < 1e-6);
    let product = Shape::of(&[(Dim::M, 3), (Dim::N, 5), (Dim::K, 7)]);
    let found = work("gemm", &Key { dtype: "bfloat16".to_owned(), ..Key::default() }, &product);
    assert!((found.bytes - 2.0 * f64::from(5 * 7 + 3 * 7 + 3 * 5)).abs() < 1e-9);
    assert!((found.flops - 2.0 * f64::from(3 * 5 * 7)).abs() < 1e-9);
    // A ring moves each byte once per other device, twice to reduce and spread.
    let ring = Shape::of(&[(Dim::Devices, 4), (Dim::MessageBytes, 1000)]);
    assert!((work("all_reduce", &Key::default(), &ring).link_bytes - 1500.0).abs() < 1e-9);
}

#[test]
fn pairs_of_a_windowed_prompt_are_counted_one_by_one() {
    for (new, past, window) in [(10, 0, 0), (10, 0, 4), (10, 3, 4), (10, 50, 4), (3, 1, 8), (1, 0, 1)] {
        let shape = decode(1, past, 1).with(Dim::NewTokens, new).with(Dim::WindowTokens, window);
        let seen = |token: u64| if window == 0 { token } else { token.min(window) };
        let pairs: u64 = (1..=new).map(|token| seen(past + token)).sum();
        let found = work("attention_context", &key(), &shape).flops / (4.0 * 4.0 * 128.0);
        assert!((found - pairs as f64).abs() < 1e-9, "{new} {past} {window}: {found} {pairs}");
    }
}

#[test]
fn number_formats_of_collectives_are_pooled() {
    let half = Key { dtype: "half".to_owned(), ..Key::default() };
    let (key, shape) = pool("all_gather", half.clone(), Shape::default());
    assert_eq!((key, shape.get(Dim::ElementBytes)), (Key::default(), 2));
    assert_eq!(pool("gemm", half.clone(), Shape::default()), (half, Shape::default()));
    let low = pool("moe_dispatch", Key::default(), Shape::default()).0;
    let normal = pool("moe_dispatch", Key::default(), Shape::of(&[(Dim::Sms, 20)])).0;
    assert_eq!((low.backend.as_str(), normal.backend.as_str()), ("low_latency", "normal"));
}

#[test]
fn an_empty_group_or_an_odd_shape_does_not_panic() {
    let fitted = fitted();
    let mut scratch = Scratch::default();
    assert!(fitted.surface.evaluate(1, &decode(1, 1, 1), &mut scratch).is_none());
    let huge = Dim::ALL.iter().fold(Shape::default(), |shape, dim| shape.with(*dim, u64::MAX));
    for shape in [Shape::default(), huge] {
        if let Some(found) = fitted.surface.evaluate(0, &shape, &mut scratch) {
            assert!(found.time_ns.is_finite() && found.time_ns > 0.0);
        }
    }
    // One row alone says what it says.
    let mut one = Rows::default();
    one.push(&key(), decode(4, 1023, 8), 50_000.0);
    let fitted = fit("attention_generation", &one, PEAKS).unwrap();
    let found = fitted.surface.evaluate(0, &decode(4, 1023, 8), &mut scratch).unwrap();
    assert!((found.time_ns / 50_000.0 - 1.0).abs() < 0.005, "{found:?}");
    assert_eq!(fitted.errors.rows, 0);
}

#[test]
fn the_nearest_points_are_those_of_a_plain_search() {
    let mut state = 7_u64;
    let mut draw = |steps: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % steps) as f64
    };
    // Few distinct coordinates, as on a grid, and many.
    for steps in [4, 1000] {
        for axes in [1, 2, 5] {
            let points: Vec<f64> = (0..400 * axes).map(|_| draw(steps)).collect();
            let tree = tree::Tree::new(&points, axes, 400);
            for skip in [None, Some(3), Some(399)] {
                let place: Vec<f64> = (0..axes).map(|_| draw(steps) + 0.25).collect();
                let mut near = Vec::new();
                tree.nearest(&place, 20, skip, &mut near);
                let distance = |point: usize| -> f64 {
                    let row = &points[point * axes..(point + 1) * axes];
                    row.iter().zip(&place).map(|(a, b)| (a - b) * (a - b)).sum()
                };
                let mut all: Vec<f64> = (0..400).filter(|point| Some(*point) != skip).map(distance).collect();
                all.sort_by(f64::total_cmp);
                let found: Vec<f64> = near.iter().map(|(distance, _)| *distance).collect();
                assert_eq!(found, all[..20]);
                assert!(near.iter().all(|(far, row)| (distance(tree.point(*row)) - *far).abs() < 1e-9));
                assert!(near.iter().all(|(_, row)| Some(tree.point(*row)) != skip));
            }
        }
    }
}

/// The plain way between measured shapes: the shape itself where it was measured, the mean of what lies equally far, and
/// worse than a fit on a law.
#[test]
fn plain_interpolation_weighs_by_inverse_squares() {
    let mut rows = Rows::default();
    for (past, latency) in [(63, 1e4), (255, 4e4), (1023, 1e6)] {
        rows.push(&key(), decode(1, past, 1), latency);
    }
    let (plain, mut scratch) = (Plain::of("attention_generation", &rows, PEAKS), Scratch::default());
    let efficiency = |past: u64, latency: f64| {
        (work("attention_generation", &key(), &decode(1, past, 1)).roofline_ns(&PEAKS) / latency).ln()
    };
    let near = |past: u64, expected: f64| {
        let found = plain.time_ns(&key(), &decode(1, past, 1), &mut Scratch::default()).unwrap();
        assert!((efficiency(past, found) - expected).abs() < 1e-9, "{past}: {found}");
    };
    near(63, efficiency(63, 1e4));
    let (low, middle, high) = (efficiency(63, 1e4), efficiency(255, 4e4), efficiency(1023, 1e6));
    // Lengths of 2^x, where the measured ones lie at binary logarithms of 63, 255 and 1023.
    let at = |past: f64| (past.log2() - 127_f64.log2()).powi(-2);
    let [a, b, c] = [63.0, 255.0, 1023.0].map(at);
    near(127, (a * low + b * middle + c * high) / (a + b + c));
    let other = Key { kv_dtype: "fp8".to_owned(), ..key() };
    assert!(plain.time_ns(&other, &decode(1, 63, 1), &mut scratch).is_none());
    let (seen, hidden) = grid();
    let plain = Plain::of("attention_generation", &seen, PEAKS);
    let logs = hidden
        .shapes
        .iter()
        .zip(&hidden.latency_ns)
        .map(|(shape, latency)| (plain.time_ns(&key(), shape, &mut scratch).unwrap() / latency).ln());
    let (plain, own) = (errors(&logs.collect::<Vec<_>>()), errors(&logarithms(&fitted().surface, &hidden)));
    assert!(own.median < 0.5 * plain.median && own.p90 < 0.5 * plain.p90, "{own:?} {plain:?}");
}

/// A kernel whose time is its start on half of the shapes: with a start the fit is closer, and shapes smaller than any take
/// no less than what it says.
#[test]
fn a_start_is_taken_where_it_fits_better() {
    let (fitted, hidden) = (fitted(), grid().1);
    let (kept, values) = fit::possible("attention_generation", &grid().0, &PEAKS);
    let start = fitted.surface.tuning().start;
    assert!(start > 0.0, "{:?}", fitted.surface.tuning());
    let without = Tuning { start: 0.0, ..fitted.surface.tuning().clone() };
    let without = Surface::new("attention_generation", &kept, &values, PEAKS, without);
    let [own, other] = [&fitted.surface, &without].map(|surface| errors(&logarithms(surface, &hidden)));
    assert!(own.p90 < other.p90, "{own:?} {other:?}");
    let group = fitted.surface.group(&key()).unwrap();
    // Its points are as they were measured.
    let (shape, value) = fitted.surface.points(group).next().unwrap();
    let measured = work("attention_generation", &key(), &shape).roofline_ns(&PEAKS) / value.exp();
    assert!((measured / law(&shape) - 1.0).abs() < 0.003, "{measured}");
    let below = fitted.surface.evaluate(group, &decode(1, 1, 1), &mut Scratch::default()).unwrap();
    assert_eq!(below.ground, Ground::Extrapolated);
    assert!((below.time_ns / 12_000.0 - 1.0).abs() < 0.1, "{below:?}");
}
