//! Lines over two axes, named at their ends.

use super::axis::{Axis, Plane, Scale, plane};
use super::place::{Pixel, overlap};
use super::{Anchor, Canvas, Paint, STYLES, Size, TEXT, draw, fit, text_width};

/// One line.
#[derive(Debug, Clone)]
pub(in crate::report) struct Series {
    /// What stands at its end where there is room.
    pub(in crate::report) name: String,
    /// What stands there where there is none.
    pub(in crate::report) short: String,
    /// Which of the eight styles it has.
    pub(in crate::report) style: usize,
    /// Its points in order.
    pub(in crate::report) points: Vec<(f64, f64)>,
}

/// A chart of lines.
#[derive(Debug, Clone)]
pub(in crate::report) struct Lines {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    pub(in crate::report) x: Axis,
    pub(in crate::report) y: Axis,
    pub(in crate::report) series: Vec<Series>,
    /// A place on the horizontal axis with its name.
    pub(in crate::report) mark: Option<(f64, String)>,
}

/// Points of one line that are drawn: about one per pixel column.
const POINTS: usize = 600;

/// A line on the canvas, with the names of all lines that lie on it.
struct Drawn {
    name: String,
    style: usize,
    pixels: Vec<Pixel>,
    last: Pixel,
}

/// Draws the chart. Points that are not finite, or not positive on a logarithmic axis, are left out.
pub(in crate::report) fn lines(chart: &Lines, size: Size) -> String {
    let drawable = |axis: &Axis, value: f64| value.is_finite() && (!axis.log || value > 0.0);
    let series: Vec<(&Series, Vec<(f64, f64)>)> = chart
        .series
        .iter()
        .filter(|series| series.style < STYLES)
        .map(|series| {
            let points = series.points.iter().copied();
            let points = points.filter(|(x, y)| drawable(&chart.x, *x) && drawable(&chart.y, *y));
            (series, thin(points.collect(), POINTS))
        })
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let x = Scale::new(&chart.x, points().map(|(x, _)| x), false, size.columns()).tight(points().map(|(x, _)| x));
    let y = Scale::new(&chart.y, points().map(|(_, y)| y), chart.y.from_zero, 5);
    let name = |series: &Series| if size.names { fit(&series.name, 560) } else { series.short.clone() };
    // Lines with the same points are one line to the eye, and share the room for their names.
    let series_of = &series;
    let joined = |(series, points): &(&Series, Vec<(f64, f64)>)| {
        let others = series_of.iter().filter(|(other, same)| other.style != series.style && same == points);
        others.map(|(other, _)| *other).fold(name(series), |joined, other| format!("{joined}, {}", name(other)))
    };
    let widths = series.iter().map(|series| text_width(&joined(series)).min(size.width / 3));
    let margin = widths.max().unwrap_or(0) + 24;
    draw(size, &chart.title, |canvas| {
        let plane = plane(canvas, (size.width, size.height), (&chart.x, x), (&chart.y, y), margin);
        let is_inside = |at: f64| points().any(|(x, _)| x <= at) && points().any(|(x, _)| x >= at);
        if let Some((at, name)) = chart.mark.as_ref().filter(|mark| is_inside(mark.0)) {
            mark(canvas, &plane, plane.x.at(*at), name);
        }
        let mut drawn: Vec<Drawn> = Vec::new();
        let placed = series.iter().map(|(series, points)| {
            let pixels: Vec<Pixel> = points.iter().map(|(x, y)| (plane.x.at(*x), plane.y.at(*y))).collect();
            (*series, pixels)
        });
        let placed: Vec<(&Series, Vec<Pixel>)> = placed.collect();
        // The first one lies on top, so that lines on each other have the colour of the name that they share.
        for (series, pixels) in placed.iter().rev() {
            canvas.path(pixels.clone(), Paint::Style(series.style), 4);
            if let [only] = pixels[..] {
                canvas.circle(only, 8, Paint::Style(series.style), true);
            }
        }
        for (series, pixels) in placed {
            let Some(last) = pixels.last().copied() else { continue };
            match drawn.iter_mut().find(|other| coincide(&other.pixels, &pixels)) {
                Some(other) => other.name = format!("{}, {}", other.name, name(series)),
                None => drawn.push(Drawn { name: name(series), style: series.style, pixels, last }),
            }
        }
        label(canvas, size, &plane, &mut drawn);
    })
}

/// Draws a line upwards from a place on the horizontal axis, and its name beside it at the top.
fn mark(canvas: &mut Canvas<'_>, plane: &Plane, at: i32, name: &str) {
    canvas.path(vec![(at, plane.top), (at, plane.bottom)], Paint::Behind, 3);
    let fits_right = at + text_width(name) + 12 < plane.right;
    let (x, anchor) = if fits_right { (at + 12, Anchor::Start) } else { (at - 12, Anchor::End) };
    canvas.text((x, plane.top + TEXT as i32 / 2), name, anchor, Paint::Muted);
}

/// Whether two lines cannot be told apart: each of their points is within the width of a line.
fn coincide(a: &[Pixel], b: &[Pixel]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a.0 - b.0).abs() <= 4 && (a.1 - b.1).abs() <= 4)
}

/// Names the lines at their ends: behind them where all names fit there, else at the edge.
fn label(canvas: &mut Canvas<'_>, size: Size, plane: &Plane, drawn: &mut [Drawn]) {
    let behind = |last: Pixel| (last.0 + 12, last.1.min(plane.bottom - 16));
    let area = |line: &Drawn| {
        let (x, y) = behind(line.last);
        (x, y - TEXT as i32 / 2, x + text_width(&line.name) + 12, y + TEXT as i32 / 2)
    };
    let apart = |at: usize| {
        let own = area(&drawn[at]);
        own.2 - 12 <= size.width && drawn[..at].iter().all(|other| !overlap(own, area(other)))
    };
    if (0..drawn.len()).all(apart) {
        for line in drawn.iter() {
            canvas.text(behind(line.last), &line.name, Anchor::Start, Paint::Style(line.style));
        }
        return;
    }
    // Lines that end far from the edge, in a crowd, are left to the legend: some names would hide each other, and a few
    // names among many lines are worse than none.
    if drawn.iter().any(|line| line.last.0 < plane.right - 60) && !size.names {
        return;
    }
    drawn.sort_by_key(|line| line.last.1);
    let places = spread(&drawn.iter().map(|line| line.last.1).collect::<Vec<_>>(), plane.top, plane.bottom);
    for (line, y) in drawn.iter().zip(places) {
        // A line that ends elsewhere is led to its name.
        if line.last.0 < plane.right - 4 || (y - line.last.1).abs() > TEXT as i32 / 2 {
            canvas.path(vec![line.last, (plane.right + 8, y)], Paint::Grid, 2);
        }
        let name = fit(&line.name, size.width - plane.right - 14);
        canvas.text((plane.right + 14, y), &name, Anchor::Start, Paint::Style(line.style));
    }
}

/// Places that keep the order and stay a line of text apart, between top and bottom where they fit.
pub(super) fn spread(wanted: &[i32], top: i32, bottom: i32) -> Vec<i32> {
    let gap = (TEXT * 1.25) as i32;
    let mut placed: Vec<i32> = Vec::new();
    for y in wanted {
        let least = placed.last().map_or(top, |last| last + gap);
        placed.push((*y).max(least));
    }
    let mut most = bottom;
    for y in placed.iter_mut().rev() {
        *y = (*y).min(most);
        most = *y - gap;
    }
    placed
}

/// At most `count` points: of each stretch, the highest, so that no peak disappears.
pub(super) fn thin(points: Vec<(f64, f64)>, count: usize) -> Vec<(f64, f64)> {
    if points.len() <= count {
        return points;
    }
    let stretch = points.len().div_ceil(count);
    points
        .chunks(stretch)
        .filter_map(|chunk| chunk.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }))
        .collect()
}
