//! Points over two axes, each with its name, and the line of those that no other point beats.

use super::axis::{Axis, Scale, plane};
use super::place::{Taken, around, place, take};
use super::{Paint, STYLES, Size, draw, fit, is_second_round, text_width};

/// One point.
#[derive(Debug, Clone)]
pub(in crate::report) struct Point {
    /// What stands beside it where there is room.
    pub(in crate::report) name: String,
    /// What stands there where there is none.
    pub(in crate::report) short: String,
    /// Which of the eight styles it has; beyond them it is drawn in grey.
    pub(in crate::report) style: usize,
    /// Where it is.
    pub(in crate::report) at: (f64, f64),
    /// Whether no other point is better in both.
    pub(in crate::report) on_frontier: bool,
}

/// A chart of points.
#[derive(Debug, Clone)]
pub(in crate::report) struct Scatter {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    pub(in crate::report) x: Axis,
    pub(in crate::report) y: Axis,
    pub(in crate::report) points: Vec<Point>,
}

/// Draws the chart. Points that are not finite are left out.
pub(in crate::report) fn scatter(chart: &Scatter, size: Size) -> String {
    let points: Vec<&Point> =
        chart.points.iter().filter(|point| point.at.0.is_finite() && point.at.1.is_finite()).collect();
    let x = Scale::near(&chart.x, points.iter().map(|point| point.at.0), size.columns());
    let y = Scale::near(&chart.y, points.iter().map(|point| point.at.1), 5);
    let (x_axis, y_axis) = (x.said(&chart.x), y.said(&chart.y));
    draw(size, &chart.title, |canvas| {
        let plane = plane(canvas, (size.width, size.height), (&x_axis, x), (&y_axis, y), 24);
        let pixel = |point: &Point| (plane.x.at(point.at.0), plane.y.at(point.at.1));
        let mut frontier: Vec<(i32, i32)> = points.iter().filter(|p| p.on_frontier).map(|p| pixel(p)).collect();
        frontier.sort_unstable();
        let mut taken = Taken {
            areas: points.iter().map(|point| around(pixel(point), 14)).collect(),
            leaders: Vec::new(),
            lines: frontier.windows(2).map(|pair| (pair[0], pair[1])).collect(),
        };
        canvas.path(frontier, Paint::Muted, 2);
        let bounds = (plane.left - 4, plane.top - 16, size.width, plane.bottom - 4);
        let name = |point: &Point| if size.names { fit(&point.name, 560) } else { point.short.clone() };
        let mut by_place = points.clone();
        by_place.sort_by_key(|point| std::cmp::Reverse(pixel(point)));
        for point in by_place {
            // A name that finds no place gives way to its number, then to the legend.
            let found = [name(point), point.short.clone()]
                .into_iter()
                .find_map(|name| Some((place(pixel(point), text_width(&name), bounds, &taken)?, name)));
            if let Some((place, name)) = found {
                take(&mut taken, &place);
                if let Some((from, to)) = place.leader {
                    canvas.path(vec![from, to], Paint::Muted, 2);
                }
                canvas.text(place.at, &name, place.anchor, Paint::Ink);
            }
        }
        for point in points {
            let paint = if point.style < STYLES { Paint::Style(point.style) } else { Paint::Muted };
            canvas.circle(pixel(point), 11, paint, !is_second_round(point.style));
        }
    })
}
