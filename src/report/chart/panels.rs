//! Small charts side by side on the same scales, one per scenario, each before the same line in grey.

use super::axis::{Axis, Scale};
use super::lines::thin;
use super::{Anchor, Canvas, Paint, STYLES, Size, TEXT, draw, fit, text_width};
use crate::report::show;

/// One small chart.
#[derive(Debug, Clone)]
pub(in crate::report) struct Panel {
    /// What stands above it.
    pub(in crate::report) name: String,
    /// Which of the styles its line has.
    pub(in crate::report) style: usize,
    /// Its points in order.
    pub(in crate::report) points: Vec<(f64, f64)>,
}

/// Small charts on the same scales.
#[derive(Debug, Clone)]
pub(in crate::report) struct Panels {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    pub(in crate::report) x: Axis,
    pub(in crate::report) y: Axis,
    /// The line in grey behind each panel; may be empty.
    pub(in crate::report) behind: Vec<(f64, f64)>,
    pub(in crate::report) each: Vec<Panel>,
}

/// Points of one line: of each stretch, its highest is drawn.
const POINTS: usize = 60;

/// Height of a panel with its name, and of the name alone.
const ROW: i32 = 272;
const NAME: i32 = 40;

/// Draws the chart; the height follows from the number of panels. Points that are not finite are left out.
pub(in crate::report) fn panels(chart: &Panels, size: Size) -> String {
    let columns = if size.width > 1500 { 4 } else { 2 };
    let finite = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        thin(points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite()).collect(), POINTS)
    };
    let lines: Vec<Vec<(f64, f64)>> = chart.each.iter().map(|panel| finite(&panel.points)).collect();
    let behind = finite(&chart.behind);
    let all = || lines.iter().flatten().chain(&behind).copied();
    let times = || {
        let points = chart.each.iter().flat_map(|panel| &panel.points).chain(&chart.behind);
        points.map(|point| point.0).filter(|x| x.is_finite())
    };
    let x = Scale::new(&chart.x, times(), false, 3).tight(times());
    let y = Scale::new(&chart.y, all().map(|(_, y)| y), true, 3);
    let names: Vec<String> = y.ticks.iter().map(|tick| show::tick(*tick, &chart.y.unit)).collect();
    let left = names.iter().map(|name| text_width(name)).max().unwrap_or(0) + 28;
    let width = (size.width - left) / columns;
    let rows = (lines.len() as i32 + columns - 1) / columns;
    let size = Size { height: 44 + rows * ROW + 76, ..size };
    draw(size, &chart.title, |canvas| {
        canvas.text((2, 18), &fit(&chart.y.title, size.width), Anchor::Start, Paint::Muted);
        for (at, (panel, points)) in chart.each.iter().zip(&lines).enumerate() {
            let (column, row) = (at as i32 % columns, at as i32 / columns);
            let (start, end) = (left + column * width, left + (column + 1) * width - 36);
            let (top, bottom) = (44 + row * ROW + NAME, 44 + (row + 1) * ROW - 20);
            let (x, y) = (x.clone().on(start, end), y.clone().on(bottom, top + 8));
            canvas.text((start, top - 18), &fit(&panel.name, width - 24), Anchor::Start, Paint::Ink);
            for (tick, name) in y.ticks.iter().zip(&names) {
                canvas.path(vec![(start, y.at(*tick)), (end, y.at(*tick))], Paint::Grid, 2);
                if column == 0 {
                    canvas.text((left - 14, y.at(*tick)), name, Anchor::End, Paint::Muted);
                }
            }
            let pixels = |points: &[(f64, f64)]| points.iter().map(|(px, py)| (x.at(*px), y.at(*py))).collect();
            canvas.path(pixels(&behind), Paint::Behind, 3);
            canvas.path(pixels(points), Paint::Style(panel.style % STYLES), 4);
            canvas.path(vec![(start, bottom), (end, bottom)], Paint::Muted, 2);
            // The lowest panel of each column carries the ticks.
            if at as i32 + columns >= lines.len() as i32 {
                below(canvas, &chart.x, &x, (start, end, bottom));
            }
        }
        let title = fit(&chart.x.title, size.width);
        let center = i32::midpoint(left, size.width);
        canvas.text((center, size.height - TEXT as i32 / 2 - 4), &title, Anchor::Middle, Paint::Muted);
    })
}

/// The ticks of the horizontal axis, without those that would run into each other.
fn below(canvas: &mut Canvas<'_>, axis: &Axis, x: &Scale, (start, end, bottom): (i32, i32, i32)) {
    let mut free = i32::MIN;
    for tick in &x.ticks {
        let (at, name) = (x.at(*tick), show::tick(*tick, &axis.unit));
        let half = text_width(&name) / 2;
        canvas.path(vec![(at, bottom), (at, bottom + 8)], Paint::Muted, 2);
        // The first stands below the start, and the last does not run into the next panel.
        let center = at.min(end + 8 - half).max(start);
        if center - half > free {
            canvas.text((center, bottom + 30), &name, Anchor::Middle, Paint::Muted);
            free = center + half + 10;
        }
    }
}
