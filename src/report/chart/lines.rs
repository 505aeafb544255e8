//! Lines over two axes, named at their ends.

use super::axis::{Axis, Scale, plane};
use super::{Anchor, Paint, STYLES, Size, TEXT, draw, fit, text_width};

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
}

/// Points of one line that are drawn: about one per pixel column.
const POINTS: usize = 600;

/// Draws the chart. Points that are not finite, or not positive on a logarithmic axis, are left out.
pub(in crate::report) fn lines(chart: &Lines, size: Size) -> String {
    let drawable = |axis: &Axis, value: f64| value.is_finite() && (!axis.log || value > 0.0);
    let series: Vec<(&Series, Vec<(f64, f64)>)> = chart
        .series
        .iter()
        .filter(|series| series.style < STYLES)
        .map(|series| {
            let points = series.points.iter().copied();
            (series, thin(points.filter(|(x, y)| drawable(&chart.x, *x) && drawable(&chart.y, *y)).collect()))
        })
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let x = Scale::new(&chart.x, points().map(|(x, _)| x), false, size.columns()).tight(points().map(|(x, _)| x));
    let y = Scale::new(&chart.y, points().map(|(_, y)| y), true, 5);
    let name = |series: &Series| if size.names { fit(&series.name, 560) } else { series.short.clone() };
    let names: Vec<String> = series.iter().map(|(series, _)| name(series)).collect();
    let margin = names.iter().map(|name| text_width(name)).max().unwrap_or(0) + 24;
    draw(size, &chart.title, |canvas| {
        let plane = plane(canvas, (size.width, size.height), (&chart.x, x), (&chart.y, y), margin);
        let mut ends = Vec::new();
        for ((series, points), name) in series.iter().zip(&names) {
            let pixels: Vec<(i32, i32)> = points.iter().map(|(x, y)| (plane.x.at(*x), plane.y.at(*y))).collect();
            if let Some(last) = pixels.last() {
                ends.push((last.1, name, series.style, *last));
            }
            if let [only] = pixels[..] {
                canvas.circle(only, 8, Paint::Style(series.style), true);
            }
            canvas.path(pixels, Paint::Style(series.style), 4);
        }
        // Where every name fits right behind its line, it stands there.
        let widest = names.iter().map(|name| text_width(name)).max().unwrap_or(0);
        let behind = |last: (i32, i32)| (last.0 + 12, last.1.min(plane.bottom - 16));
        let apart = |a: (i32, i32), b: (i32, i32)| (a.0 - b.0).abs() > widest + 12 || (a.1 - b.1).abs() > TEXT as i32;
        let lasts: Vec<(i32, i32)> = ends.iter().map(|end| behind(end.3)).collect();
        let clear =
            |at: usize| lasts[at].0 + widest <= size.width && lasts[..at].iter().all(|other| apart(lasts[at], *other));
        // Lines that end far from the edge, in a crowd, are left to the legend where their names would hide each other.
        let is_crowd = ends.iter().any(|end| end.3.0 < plane.right - 60) && !size.names;
        if is_crowd || (0..lasts.len()).all(clear) {
            for (at, (_, name, style, last)) in ends.into_iter().enumerate() {
                if clear(at) {
                    canvas.text(behind(last), name, Anchor::Start, Paint::Style(style));
                }
            }
            return;
        }
        ends.sort_by_key(|end| end.0);
        let places = spread(&ends.iter().map(|end| end.0).collect::<Vec<_>>(), plane.top, plane.bottom);
        for ((_, name, style, last), y) in ends.into_iter().zip(places) {
            // A line that ends elsewhere is led to its name.
            if last.0 < plane.right - 4 || (y - last.1).abs() > TEXT as i32 / 2 {
                canvas.path(vec![last, (plane.right + 8, y)], Paint::Grid, 2);
            }
            canvas.text((plane.right + 14, y), name, Anchor::Start, Paint::Style(style));
        }
    })
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

/// At most [`POINTS`] points: of each stretch, the highest, so that no peak disappears.
pub(super) fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS {
        return points;
    }
    let stretch = points.len().div_ceil(POINTS);
    points
        .chunks(stretch)
        .filter_map(|chunk| chunk.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a }))
        .collect()
}
