use super::axis::Scale;
use super::lines::{spread, thin};
use super::place::{Area, Taken, around, overlap, place, take};
use super::*;

fn axis(unit: &str, log: bool) -> Axis {
    Axis { title: "x".to_owned(), unit: unit.to_owned(), log, from_zero: true }
}

fn ticks(unit: &str, log: bool, low: f64, high: f64) -> Vec<f64> {
    Scale::new(&axis(unit, log), [low, high].into_iter(), false, 5).ticks
}

#[test]
fn ticks_are_round_and_enclose_the_data() {
    assert_eq!(ticks("", false, 0.0, 93.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(ticks("", false, 80.0, 100.0), [80.0, 85.0, 90.0, 95.0, 100.0]);
    // A difference of a few percent is not blown up.
    assert_eq!(ticks("", false, 97.0, 99.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(ticks("ms", true, 12.0, 180.0), [10.0, 20.0, 50.0, 100.0, 200.0]);
    assert_eq!(ticks("tokens", true, 1024.0, 1_048_576.0), [1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0]);
    let gib = 1_073_741_824.0;
    assert_eq!(ticks("bytes", false, 0.0, 4.2 * gib), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0].map(|at| at * gib));
    for (low, high) in [(1e-9, 1e9), (5.0, 5.0), (1e-4, 1.0), (3.0, 7.0)] {
        for log in [false, true] {
            let found = ticks("", log, low, high);
            assert!(found.len() >= 2 && found.len() < 20, "{low} {high} {log}: {found:?}");
            assert!(
                found[0] <= low * 1.000_001 && found[found.len() - 1] >= high * 0.999_999,
                "{low} {high} {log}: {found:?}"
            );
        }
    }
}

#[test]
fn names_keep_apart_and_inside() {
    let places = spread(&[100, 101, 102, 400], 50, 400);
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 32), "{places:?}");
    assert!(places.iter().all(|y| (50..=400).contains(y)), "{places:?}");
}

#[test]
fn thinning_keeps_the_peak() {
    let mut points: Vec<(f64, f64)> = (0..5000).map(|x| (f64::from(x), 1.0)).collect();
    points[3333].1 = 9.0;
    let thin = thin(points, 600);
    assert!(thin.len() <= 600);
    assert!(thin.contains(&(3333.0, 9.0)));
}

#[test]
fn what_cannot_be_drawn_is_left_out() {
    let points = vec![(1.0, f64::NAN), (0.0, 2.0), (2.0, f64::INFINITY), (4.0, 3.0)];
    let series = vec![Series { name: "a<b".to_owned(), short: "0".to_owned(), style: 0, points }];
    let chart = Lines { title: "t".to_owned(), x: axis("", true), y: axis("", false), series, mark: None };
    let svg = lines(&chart, Size::WIDE);
    assert!(
        svg.starts_with(
            "<svg viewBox=\"0 0 2080 800\" font-family=\"sans-serif\" font-size=\"26\" role=\"img\" aria-label=\"t\"><title>t</title>"
        ),
        "{}",
        &svg[..130]
    );
    assert!(svg.contains("a&lt;b") && !svg.contains("NaN") && !svg.contains("inf"));
    // One point is left, drawn as a dot.
    assert_eq!(svg.matches("<circle").count(), 1);
    let none = Lines { series: Vec::new(), ..chart };
    assert!(lines(&none, Size::NARROW).ends_with("</svg>\n"));
}

#[test]
fn a_bar_without_a_value_shows_its_note_and_no_length() {
    let part = Part { name: String::new(), paint: Paint::Style(0), pale: false, value: 2.0 };
    let bar = |name: &str, parts: Vec<Part>, note: &str| Bar {
        name: name.to_owned(),
        parts,
        marks: Vec::new(),
        note: note.to_owned(),
    };
    let chart = Bars {
        title: "cost".to_owned(),
        unit: "USD".to_owned(),
        full: None,
        rows: vec![bar("known", vec![part], "$2"), bar("secret", Vec::new(), "not disclosed")],
    };
    let svg = bars(&chart, Size::HALF);
    assert_eq!(svg.matches("<rect").count(), 1);
    assert!(svg.contains("not disclosed"));
}

#[test]
fn points_that_are_close_keep_to_the_middle_of_an_axis_that_says_where_it_starts() {
    let near = |values: &[f64]| Scale::near(&axis("", false), values.iter().copied(), 5);
    let scale = near(&[58.20, 58.26]);
    assert_eq!(scale.ticks, [50.0, 55.0, 60.0, 65.0]);
    assert_eq!(scale.said(&axis("", false)).title, "x, axis from 50");
    // More than a fifth apart, the data decides.
    assert_eq!(near(&[10.0, 93.0]).ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(near(&[10.0, 93.0]).said(&axis("", false)).title, "x");
    assert_eq!(near(&[]).ticks.len(), Scale::near(&axis("", false), [].into_iter(), 5).ticks.len());
}

#[test]
fn names_hide_neither_points_nor_names_and_no_leader_runs_through_them() {
    // Five points of one height, as close as scenarios at the trace's own rate are, two of them in one place.
    let points = [(150, 200), (162, 200), (170, 200), (185, 200), (185, 200)];
    let mut taken = Taken { areas: points.iter().map(|point| around(*point, 14)).collect(), ..Taken::default() };
    let bounds: Area = (0, 40, 1000, 600);
    for point in points.into_iter().rev() {
        let found = place(point, 260, bounds, &taken).unwrap();
        assert!(!taken.areas.iter().any(|other| overlap(found.area, *other)), "{found:?}");
        assert!(found.area.0 >= 0 && found.area.2 <= 1000 && found.area.1 >= 40 && found.area.3 <= 600, "{found:?}");
        take(&mut taken, &found);
    }
    // Each leader, walked pixel by pixel, meets no name.
    for (from, to) in &taken.leaders {
        for step in 0..=200 {
            let at = |a: i32, b: i32| f64::from(a) + f64::from(b - a) * f64::from(step) / 200.0;
            let (x, y) = (at(from.0, to.0), at(from.1, to.1));
            let inside = |area: &&Area| {
                x > f64::from(area.0) && x < f64::from(area.2) && y > f64::from(area.1) && y < f64::from(area.3)
            };
            assert_eq!(taken.areas[points.len()..].iter().find(inside), None, "{from:?} {to:?}");
        }
    }
    let full = Taken { areas: vec![bounds], ..Taken::default() };
    assert!(place((10, 10), 100, bounds, &full).is_none());
}

#[test]
fn lines_on_each_other_are_named_together() {
    let series = |at: usize, name: &str, y: f64| Series {
        name: name.to_owned(),
        short: char::from(b'a' + at as u8).to_string(),
        style: at,
        points: vec![(1.0, y), (2.0, 2.0 * y)],
    };
    let all = vec![series(0, "full", 4.0), series(1, "fp8", 2.0), series(2, "window", 4.0)];
    let chart = Lines { title: "t".to_owned(), x: axis("", false), y: axis("", false), series: all, mark: None };
    let names = |svg: &str| -> Vec<String> {
        svg.split("</text>").filter_map(|part| Some(part.rsplit_once('\n')?.1.to_owned())).collect::<Vec<_>>()
    };
    let (half, wide) = (lines(&chart, Size::HALF), lines(&chart, Size::WIDE));
    assert!(half.contains("a, c") && !half.contains(">c<"), "{:?}", names(&half));
    assert!(wide.contains("full, window"), "{:?}", names(&wide));
}

#[test]
fn what_goes_without_saying_is_said_in_no_element_and_in_every_text() {
    let of = |name: &str| {
        let points = vec![(0.0, 2.0), (4.0, 3.0)];
        let series = vec![Series { name: name.to_owned(), short: "0".to_owned(), style: 0, points }];
        lines(&Lines { title: "t".to_owned(), x: axis("", true), y: axis("", false), series, mark: None }, Size::WIDE)
    };
    let body = of("a").split_once("</title>").unwrap().1.to_owned();
    assert!(body.contains("<text") && body.contains("text-anchor=\"end\""));
    for said in ["font-family", "font-size", "opacity=\"1\"", "stroke=\"none\"", "text-anchor=\"start\""] {
        assert!(!body.contains(said), "{said}");
    }
    assert!(
        slim("<text opacity=\"1\" x=\"2\">opacity=\"1\" > 0</text>").starts_with("<text x=\"2\">opacity=\"1\" > 0")
    );
}
