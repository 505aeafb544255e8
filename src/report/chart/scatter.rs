//! Points over two axes, each with its name, and the line of those that no other point beats.

use super::axis::{Axis, Scale, plane};
use super::{Anchor, Paint, STYLES, Size, TEXT, draw, fit, is_second_round, text_width};

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

/// A rectangle that is taken: left, top, right, bottom.
type Taken = (i32, i32, i32, i32);

/// Draws the chart. Points that are not finite are left out.
pub(in crate::report) fn scatter(chart: &Scatter, size: Size) -> String {
    let points: Vec<&Point> =
        chart.points.iter().filter(|point| point.at.0.is_finite() && point.at.1.is_finite()).collect();
    let x = Scale::new(&chart.x, points.iter().map(|point| point.at.0), false, size.columns());
    let y = Scale::new(&chart.y, points.iter().map(|point| point.at.1), false, 5);
    draw(size, &chart.title, |canvas| {
        let plane = plane(canvas, (size.width, size.height), (&chart.x, x), (&chart.y, y), 24);
        let pixel = |point: &Point| (plane.x.at(point.at.0), plane.y.at(point.at.1));
        let mut frontier: Vec<(i32, i32)> = points.iter().filter(|p| p.on_frontier).map(|p| pixel(p)).collect();
        frontier.sort_unstable();
        canvas.path(frontier, Paint::Muted, 2);
        let mut taken: Vec<Taken> = points.iter().map(|p| around(pixel(p), 14)).collect();
        for point in points {
            let paint = if point.style < STYLES { Paint::Style(point.style) } else { Paint::Muted };
            let name = if size.names { fit(&point.name, 560) } else { point.short.clone() };
            let (place, anchor, area) = beside(pixel(point), text_width(&name), (size.width, plane.top), &taken);
            taken.push(area);
            // A name that found no place beside its point is led to it.
            if place.1 != pixel(point).1 {
                canvas.path(vec![pixel(point), place], Paint::Muted, 2);
            }
            canvas.circle(pixel(point), 11, paint, !is_second_round(point.style));
            canvas.text(place, &name, anchor, Paint::Ink);
        }
    })
}

fn around((x, y): (i32, i32), half: i32) -> Taken {
    (x - half, y - half, x + half, y + half)
}

/// The first free place for a text near a point: right or left of it, then higher and lower.
fn beside((x, y): (i32, i32), width: i32, (edge, top): (i32, i32), taken: &[Taken]) -> ((i32, i32), Anchor, Taken) {
    let half = TEXT as i32 / 2;
    let sides = |dy: i32| {
        [
            ((x + 24, y + dy), Anchor::Start, (x + 20, y + dy - half, x + 24 + width, y + dy + half)),
            ((x - 24, y + dy), Anchor::End, (x - 24 - width, y + dy - half, x - 20, y + dy + half)),
        ]
    };
    let places: Vec<((i32, i32), Anchor, Taken)> = [0, -28, 28, -56, 56, 84, 112]
        .into_iter()
        .flat_map(sides)
        .filter(|place| place.2.0 >= 0 && place.2.2 <= edge && place.2.1 >= top - 16)
        .collect();
    let overlaps = |a: &Taken, b: &Taken| a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3;
    let free = places.iter().find(|(_, _, area)| !taken.iter().any(|other| overlaps(area, other)));
    free.or(places.first()).copied().unwrap_or(sides(0)[0])
}
