//! Fabrics by hand, against measurements, and their laws.

#![expect(clippy::float_cmp, reason = "sums and products of a few whole numbers are exact")]

use proptest::prelude::*;

use super::collective::{Pattern, adapted, naive, price};
use super::place::{Beside, Layout, USUAL};
use super::share::{Schedule, Work, serve};
use super::step::{Style, class_cost, placements, shared, step_cost};
use super::topology::{Network, network};
use super::traffic::{CLASSES, Class, Step, Terms, Traffic, Wire, traffic};
use super::*;
use crate::model::{Certainty, Model};

fn sourced(value: f64) -> Sourced {
    Sourced { value, source: "a test".to_owned(), certainty: Certainty::Assumed }
}

fn level(gb_per_s: f64, latency_ns: f64, pj: Option<f64>) -> Level {
    Level {
        name: "link".to_owned(),
        distance: Distance::Rack,
        way_bytes_per_s: sourced(gb_per_s * 1e9),
        achieved: sourced(1.0),
        latency_ns: sourced(latency_ns),
        message_ns: sourced(0.0),
        pj_per_bit: pj.map(sourced),
        usd_per_accelerator_hour: None,
    }
}

fn build(shape: Shape, accelerators: u32, levels: Vec<Level>) -> Network {
    let fabric = Fabric {
        name: "test".to_owned(),
        title: "test".to_owned(),
        shape,
        accelerators,
        levels,
        adaptation_days: None,
    };
    network(&fabric).unwrap()
}

fn flat(accelerators: u32) -> Network {
    build(Shape::Flat, accelerators, vec![level(100.0, 1000.0, Some(10.0))])
}

fn layered(node: u32, accelerators: u32) -> Network {
    build(Shape::Layered { node }, accelerators, vec![level(400.0, 500.0, None), level(50.0, 2000.0, Some(12.0))])
}

fn preset(folder: &str, name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../presets").join(folder).join(name);
    std::fs::read_to_string(path).unwrap()
}

fn model(name: &str) -> Model {
    let file = format!("{name}.toml");
    crate::model::parse(&preset("model", &file), &file).unwrap()
}

/// One accelerator.
const ONE: Layout = Layout { tensor: 1, data: 1, pipeline: 1, expert: 1, ffn: 0, memory: 0 };

fn step(batch: f64) -> Step {
    Step {
        batch,
        prefill_tokens: 0.0,
        kv_bytes_per_token: 70_272.0,
        replicas: 0.0,
        fetched_bytes: 0.0,
        terms: [Terms { wire: Wire::Bf16, coalesce: 1.0 }; CLASSES],
    }
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs().max(1.0), "{found} {wanted}");
}

#[test]
fn collectives_by_hand() {
    let members: Vec<u32> = (0..8).collect();
    let reduce = Pattern::AllReduce { bytes: 8e6 };
    // A ring sends an eighth 14 times, each with its latency: 1 MB over 100 GB/s is 10 us.
    let ring = price(&flat(8), &naive(reduce, &members, 1.0));
    close(ring.ns, 14.0 * (1_000.0 + 10_000.0));
    // At once: seven eighths there and back, two latencies.
    let once = price(&flat(8), &adapted(&flat(8), reduce, &members, 1.0).unwrap());
    close(once.ns, 2.0 * (1_000.0 + 70_000.0));
    close(once.bytes[0], 2.0 * 7.0 * 8e6);
    // 10 pJ for each of these bits.
    close(once.energy_j.unwrap(), 2.0 * 7.0 * 8e6 * 8.0 * 10e-12);
    // Two nodes of four: 2 MB to each of three within, then 1 MB to the other node, and back.
    let net = layered(4, 8);
    let levels = price(&net, &adapted(&net, reduce, &members, 1.0).unwrap());
    close(levels.ns, 2.0 * (500.0 + 6e6 / 400.0 + 2_000.0 + 1e6 / 50.0));
    assert_eq!(levels.energy_j, None, "the energy of the links of a node is unknown");
    // A ring through both nodes goes at the pace of the link between them.
    close(price(&net, &naive(reduce, &members, 1.0)).ns, 14.0 * (2_000.0 + 1e6 / 50.0));
    let far: Vec<u32> = vec![0, 4];
    close(price(&net, &naive(reduce, &far, 1.0)).energy_j.unwrap(), 2.0 * 2.0 * 4e6 * 8.0 * 12e-12);
}

#[test]
fn what_goes_to_a_node_twice_crosses_once() {
    let (net, members): (_, Vec<u32>) = (layered(4, 8), (0..8).collect());
    let pattern = |picks| Pattern::AllToAll { bytes: 1e6, picks };
    let direct = price(&net, &naive(pattern(8.0), &members, 1.0));
    close(direct.ns, 2_000.0 + 4e6 / 50.0);
    // Of eight copies a node gets four; it is picked with 1 - 2^-8.
    let once = (1.0 - 0.5_f64.powi(8)) / 4.0;
    let proxied = price(&net, &adapted(&net, pattern(8.0), &members, 1.0).unwrap());
    close(proxied.ns, 2_000.0 + 4e6 * once / 50.0 + 500.0 + 3.0 * 2e6 / 400.0);
    // One pick leaves nothing to save.
    let single = price(&net, &adapted(&net, pattern(1.0), &members, 1.0).unwrap());
    close(single.bytes[1], direct.bytes[1]);
}

/// `DeepEP` low-latency on H100 nodes of 8: 128 tokens per accelerator, hidden 7168, top 8, dispatch in fp8 and combine in
/// bf16 (`interconnect.csv`: kernel database of AIConfigurator of 2026-08-21). Its kernels also have a fixed time, which the
/// fabric leaves out.
#[test]
fn measured_all_to_alls_are_bound_by_their_links() {
    let measured = [(16, 101.8, 188.2), (32, 144.2, 266.0), (64, 165.5, 305.7)];
    for (ranks, dispatch_us, combine_us) in measured {
        let mut fabric = parse(&preset("fabric", "layered.toml"), "layered.toml").unwrap();
        fabric.accelerators = ranks;
        let net = network(&fabric).unwrap();
        let members: Vec<u32> = (0..ranks).collect();
        for (wire, us) in [(Wire::Fp8, dispatch_us), (Wire::Bf16, combine_us)] {
            let bytes = 128.0 * 8.0 * 7168.0 * wire.bytes() / f64::from(ranks);
            let found = price(&net, &naive(Pattern::AllToAll { bytes, picks: 8.0 }, &members, 1.0)).ns / 1e3;
            assert!(found < us && found > 0.72 * us, "{ranks} accelerators: {found} us, measured {us}");
        }
    }
}

#[test]
fn every_preset_is_a_fabric() {
    for name in ["flat", "layered", "clos", "full-mesh", "torus"] {
        let file = format!("{name}.toml");
        let fabric = parse(&preset("fabric", &file), &file).unwrap();
        assert_eq!((fabric.name.as_str(), fabric.accelerators), (name, 64));
        assert!(fabric.levels.iter().all(|level| !level.way_bytes_per_s.source.is_empty()));
    }
    let text = preset("fabric", "layered.toml");
    let wrong = |from: &str, to: &str| parse(&text.replace(from, to), "f.toml").unwrap_err().to_string();
    assert!(wrong("node = 8", "node = 7").contains("whole nodes"));
    assert!(wrong("node = 8", "").contains("expected `node` for a layered fabric"));
    assert!(wrong("shape = \"layered\"", "shape = \"layred\"").contains("unknown shape `layred`"));
    assert!(wrong("accelerators = 64", "accelerators = 8192").contains("4096"));
    assert!(wrong("\"50GB/s\"", "50").contains("f.toml:"));
}

fn deepseek(layout: &Layout, batch: f64) -> Vec<Traffic> {
    traffic(&model("deepseek-v3"), layout, &step(batch)).unwrap()
}

#[test]
fn traffic_follows_the_shape_of_the_model() {
    let layout = Layout { tensor: 8, data: 8, pipeline: 1, expert: 64, ..ONE };
    let found = deepseek(&layout, 64.0);
    assert_eq!(
        found.iter().map(|traffic| traffic.class).collect::<Vec<_>>(),
        [Class::TensorAllReduce, Class::ExpertDispatch, Class::ExpertCombine]
    );
    // 61 layers, of which 58 have experts: two all-reduces in three layers, one in the others.
    close(found[0].times, 2.0 * 61.0 - 58.0);
    assert_eq!(found[0].pattern, Pattern::AllReduce { bytes: 64.0 * 7168.0 * 2.0 });
    assert_eq!((found[0].groups.len(), found[1].groups.len()), (8, 1));
    // Each of 8 accelerators sends 8 tokens to 8 of 64 accelerators.
    assert_eq!(found[1].pattern, Pattern::AllToAll { bytes: 8.0 * 8.0 * 7168.0 * 2.0 / 64.0, picks: 8.0 });
    let dense = traffic(&model("llama-3.1-70b"), &layout, &step(64.0)).unwrap_err().to_string();
    assert!(dense.contains("has no experts to spread over 64"), "{dense}");
    let staged = Layout { tensor: 4, data: 2, pipeline: 2, expert: 1, ..ONE };
    let rest = Step { prefill_tokens: 100.0, replicas: 1.0, ..step(16.0) };
    let found = traffic(&model("llama-3.1-70b"), &staged, &rest).unwrap();
    let shifts: Vec<_> = found.iter().skip(1).map(|traffic| (traffic.class, traffic.pattern)).collect();
    assert_eq!(
        shifts,
        [
            (Class::Pipeline, Pattern::Pairs { bytes: 16.0 * 8192.0 / 4.0 * 2.0 }),
            (Class::PrefillKv, Pattern::Pairs { bytes: 100.0 * 70_272.0 / 4.0 }),
            (Class::Replication, Pattern::Pairs { bytes: 16.0 * 70_272.0 / 4.0 }),
        ]
    );
    assert!(staged.check(16).is_ok() && staged.check(15).is_err());
    assert!(Layout { expert: 3, ..staged }.check(16).is_err());
}

#[test]
fn layers_punish_tensor_groups_that_cross_nodes() {
    let layout = Layout { tensor: 8, data: 8, pipeline: 1, expert: 64, ..ONE };
    let found = placements(&layered(8, 64), &layout, Style::Naive, &deepseek(&layout, 64.0));
    assert_eq!(found.best.order.axes[0], place::Axis::Tensor);
    assert!(found.sensitivity() > 1.5, "{}", found.sensitivity());
    let adapted = placements(&layered(8, 64), &layout, Style::Adapted, &deepseek(&layout, 64.0));
    assert!(adapted.best.all_ns() < found.best.all_ns());
    // Half of the way up: twice the time of what crosses.
    let clos = build(
        Shape::Clos { node: 8, oversubscription: 2.0 },
        64,
        vec![level(400.0, 500.0, None), level(50.0, 2000.0, Some(12.0))],
    );
    let crossing = &deepseek(&layout, 64.0)[1];
    let places = layout.places(USUAL);
    let busy = |net: &Network| class_cost(net, crossing, &places, Style::Naive).moved.busy_ns[1];
    close(busy(&clos), 2.0 * busy(&layered(8, 64)));
}

#[test]
fn hops_to_ffn_accelerators_and_fetches_cross_the_fabric() {
    let layout = Layout { tensor: 4, data: 2, ffn: 4, memory: 4, ..ONE };
    let sent = traffic(&model("deepseek-v3"), &layout, &Step { fetched_bytes: 64e6, ..step(32.0) }).unwrap();
    let classes: Vec<_> = sent.iter().map(|traffic| (traffic.class, traffic.times)).collect();
    assert_eq!(
        classes,
        [
            (Class::TensorAllReduce, 61.0),
            (Class::AttentionToFfn, 61.0),
            (Class::FfnToAttention, 61.0),
            (Class::TierFetch, 1.0)
        ],
        "one all-reduce a layer, since the FFN is apart"
    );
    let each = 32.0 * 7168.0 * 2.0 / 4.0;
    assert_eq!(sent[1].pattern, Pattern::Pairs { bytes: each / 4.0 });
    assert_eq!(sent[3].pattern, Pattern::Pairs { bytes: 64e6 / 4.0 / 4.0 });
    assert_eq!((sent[1].groups[0].len(), sent[3].groups[0].len()), (2 * 8 * 4, 2 * 8 * 4));
    // A plane: eight attending accelerators meet at the link of each of four FFN accelerators and memories.
    let plane = step_cost(&flat(16), &layout, (USUAL, Style::Naive), &sent);
    close(plane.classes[1].moved.ns, 61.0 * (1_000.0 + 8.0 * each / 4.0 / 100.0));
    close(plane.classes[3].moved.ns, 1_000.0 + 8.0 * 4e6 / 100.0);
    assert_eq!(plane.classes[3].class.name(), "tier_fetch");
    assert!(layout.check(16).is_ok() && layout.check(8).is_err());
    assert!(Layout { expert: 2, ..layout }.check(16).is_err(), "experts are apart");
}

#[test]
fn places_and_narrow_leaves_change_hops_and_fetches() {
    // Nodes of 8 with 6 that attend, an FFN accelerator and a memory, or whole nodes of each.
    let layout = Layout { tensor: 2, data: 24, ffn: 8, memory: 8, ..ONE };
    let among = layout.places(place::Order { beside: Beside::Among, ..USUAL });
    let nodes = |ranks: std::ops::Range<u32>| ranks.map(|rank| among[rank as usize] / 8).collect::<Vec<_>>();
    assert_eq!(nodes(layout.ffn_ranks()), (0..8).collect::<Vec<_>>());
    assert_eq!(nodes(layout.memory_ranks()), (0..8).collect::<Vec<_>>());
    let mut all = among.clone();
    all.sort_unstable();
    assert_eq!(all, (0..64).collect::<Vec<_>>(), "every place is taken once");
    let sent = traffic(&model("llama-3.1-70b"), &layout, &Step { fetched_bytes: 64e6, ..step(32.0) }).unwrap();
    let net = layered(8, 64);
    let found = placements(&net, &layout, Style::Adapted, &sent);
    assert!(found.sensitivity() > 1.0, "{}", found.sensitivity());
    let clos = |oversubscription: f64| {
        let levels = vec![level(400.0, 500.0, None), level(50.0, 2000.0, Some(12.0))];
        build(Shape::Clos { node: 8, oversubscription }, 64, levels)
    };
    let time = |net: &Network, class: Class, order| {
        let cost = step_cost(net, &layout, (order, Style::Adapted), &sent);
        cost.classes.into_iter().find(|cost| cost.class == class).unwrap().moved
    };
    for class in [Class::AttentionToFfn, Class::FfnToAttention, Class::TierFetch] {
        // In a node of their own, eight memories or FFN accelerators need all of its way up.
        let behind = |net: &Network| time(net, class, USUAL);
        close(behind(&clos(1.0)).ns, behind(&net).ns);
        assert!(behind(&clos(4.0)).ns > 2.0 * behind(&net).ns, "{class:?}");
        // Among the others a part of the way stays within nodes, and less energy goes over the links between them.
        let order = place::Order { beside: Beside::Among, ..USUAL };
        assert!(time(&net, class, order).bytes[1] < behind(&net).bytes[1], "{class:?}");
    }
    // What they share a link with makes them wait, and it is busy for as long.
    let cost = step_cost(&net, &layout, (USUAL, Style::Adapted), &sent);
    let shares = shared(&cost, Schedule::Processor);
    let fetch = shares.iter().find(|share| share.class == Class::TierFetch && share.level == 1).unwrap();
    assert!(fetch.done_ns > fetch.alone_ns && fetch.busy_ns > fetch.done_ns * 0.999);
}

/// A memory that is spread over all hosts: seven eighths of what is fetched cross to other accelerators.
#[test]
fn what_lies_at_the_own_host_does_not_cross() {
    let layout = Layout { tensor: 8, ..ONE };
    let sent = traffic(&model("llama-3.1-8b"), &layout, &Step { fetched_bytes: 64e6, ..step(1.0) }).unwrap();
    let fetch = class_cost(&flat(8), sent.last().unwrap(), &layout.places(USUAL), Style::Adapted);
    assert_eq!(fetch.class, Class::TierFetch);
    close(fetch.moved.bytes[0], 64e6 * 7.0 / 8.0);
    close(fetch.moved.ns, 1_000.0 + 7e6 / 100.0);
}

/// Steps along each ring, counted one by one.
fn ring_steps(dims: &[u32], from: u32, to: u32) -> u32 {
    let (mut stride, mut sum) = (1, 0);
    for &dim in dims {
        let (a, b) = (from / stride % dim, to / stride % dim);
        sum += (0..dim).find(|steps| (a + steps) % dim == b || (b + steps) % dim == a).unwrap();
        stride *= dim;
    }
    sum
}

proptest! {
    /// However ranks are placed on a flat plane, nothing changes.
    #[test]
    fn an_uncontended_flat_plane_does_not_care_for_places(
        tensor in 0_u32..3, data in 0_u32..3, pipeline in 0_u32..2, (ffn, memory) in (0_u32..4, 0_u32..4),
        batch in 1.0_f64..500.0, seed in 0_u64..u64::MAX,
    ) {
        let expert = if ffn > 0 { 1 } else { 1 << (tensor + data) };
        let layout = Layout { tensor: 1 << tensor, data: 1 << data, pipeline: 1 << pipeline, expert, ffn, memory };
        let net = flat(layout.all());
        let rest = Step { prefill_tokens: 10.0, replicas: 1.0, fetched_bytes: 1e6, ..step(batch) };
        let sent = traffic(&model("deepseek-v3"), &layout, &rest).unwrap();
        for style in [Style::Naive, Style::Adapted] {
            prop_assert_eq!(placements(&net, &layout, style, &sent).sensitivity(), 1.0);
        }
        let mut places = layout.places(USUAL);
        let mut state = seed | 1;
        for at in (1..places.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            places.swap(at, (state >> 33) as usize % (at + 1));
        }
        for traffic in &sent {
            let usual = class_cost(&net, traffic, &layout.places(USUAL), Style::Adapted).moved;
            prop_assert_eq!(class_cost(&net, traffic, &places, Style::Adapted).moved.ns, usual.ns);
        }
    }

    /// Ways exist, end where they should, and are the shortest along each dimension.
    #[test]
    fn ways_are_shortest(a in 1_u32..6, b in 1_u32..6, c in 1_u32..4, from in 0_u32..1000, to in 0_u32..1000) {
        let dims = vec![a, b, c];
        let count = a * b * c;
        let (from, to) = (from % count, to % count);
        let levels = || vec![level(100.0, 10.0, None); 3];
        let torus = build(Shape::Torus { dims: dims.clone() }, count, levels());
        let mut way = Vec::new();
        let (latency, _) = torus.route(from, to, &mut way);
        prop_assert_eq!(way.len() as u32, ring_steps(&dims, from, to));
        close(latency, 10.0 * way.len() as f64);
        let mesh = build(Shape::FullMesh { dims: dims.clone() }, count, levels());
        way.clear();
        mesh.route(from, to, &mut way);
        let differing = [(1, a), (a, b), (a * b, c)].iter().filter(|(stride, dim)| from / stride % dim != to / stride % dim).count();
        prop_assert_eq!(way.len(), differing);
        prop_assert!(way.iter().all(|link| (*link as usize) < mesh.links.len()));
    }

    /// Whatever the schedule, a link is busy for as long and does all work; it only decides who waits.
    #[test]
    fn busy_time_is_conserved(works in prop::collection::vec((0.0_f64..100.0, 0.0_f64..30.0, 0_u32..3, 0.1_f64..5.0), 1..12)) {
        let works: Vec<Work> = works
            .into_iter()
            .map(|(arrives_ns, work_ns, rank, weight)| Work { arrives_ns, work_ns, rank, weight })
            .collect();
        // One after another, in order of arrival.
        let mut sorted = works.clone();
        sorted.sort_by(|a, b| a.arrives_ns.total_cmp(&b.arrives_ns));
        let last = sorted.iter().filter(|work| work.work_ns > 0.0).fold(0.0_f64, |free, work| free.max(work.arrives_ns) + work.work_ns);
        let all: f64 = works.iter().map(|work| work.work_ns).sum();
        for schedule in Schedule::ALL {
            let served = serve(&works, schedule);
            prop_assert!((served.busy_ns - all).abs() < 1e-6, "{schedule:?}: {} {all}", served.busy_ns);
            for (work, done) in works.iter().zip(&served.done_ns) {
                prop_assert!(*done >= work.arrives_ns + work.work_ns - 1e-6, "{schedule:?}");
                prop_assert!(*done <= last.max(work.arrives_ns) + 1e-6, "{schedule:?}");
            }
        }
    }
}

#[test]
fn schedules_decide_who_waits() {
    let work = |rank, weight| Work { arrives_ns: 0.0, work_ns: 10.0, rank, weight };
    let works = [work(0, 3.0), work(1, 1.0)];
    assert_eq!(serve(&works, Schedule::Processor).done_ns, [20.0, 20.0]);
    assert_eq!(serve(&works, Schedule::Priority).done_ns, [10.0, 20.0]);
    let reserved = serve(&works, Schedule::Reservation);
    close(reserved.done_ns[0], 10.0 / 0.75);
    close(reserved.done_ns[1], 20.0);
    assert_eq!(serve(&[], Schedule::Processor).busy_ns, 0.0);
    // On a step: what it waits for goes first, and the links stay busy for as long.
    let layout = Layout { tensor: 8, data: 8, pipeline: 1, expert: 64, ..ONE };
    let rest = Step { prefill_tokens: 1000.0, ..step(64.0) };
    let sent = traffic(&model("deepseek-v3"), &layout, &rest).unwrap();
    let cost = step_cost(&layered(8, 64), &layout, (USUAL, Style::Adapted), &sent);
    let of = |schedule| shared(&cost, schedule).into_iter().filter(|class| class.level == 1).collect::<Vec<_>>();
    let (even, first) = (of(Schedule::Processor), of(Schedule::Priority));
    assert_eq!(even.len(), 3);
    for (even, first) in even.iter().zip(&first) {
        close(even.busy_ns, first.busy_ns);
        assert!(if first.class.is_awaited() { first.done_ns <= even.done_ns + 1e-6 } else { true });
    }
}
