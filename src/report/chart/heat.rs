//! A heat map: a row for each name, a column for each place, the darker the more.

use super::{Anchor, Paint, Size, draw, fit, text_width};
use crate::report::show;

/// A heat map.
#[derive(Debug, Clone)]
pub(in crate::report) struct Heat {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    /// What the columns are.
    pub(in crate::report) axis: String,
    /// The unit of all values.
    pub(in crate::report) unit: String,
    /// Names of the columns, in order.
    pub(in crate::report) columns: Vec<String>,
    /// Name and values of each row, one for each column; none where nothing is known.
    pub(in crate::report) rows: Vec<(String, Vec<Option<f64>>)>,
}

const ROW: i32 = 48;
const TOP: i32 = 12;
const FOOT: i32 = 130;

/// Draws the chart; the height follows from the number of rows.
pub(in crate::report) fn heat(chart: &Heat, size: Size) -> String {
    let size = Size { height: TOP + ROW * chart.rows.len() as i32 + FOOT, ..size };
    let longest = chart.rows.iter().map(|row| text_width(&row.0)).max().unwrap_or(0);
    let left = (longest + 40).min(size.width * 2 / 5);
    let most = chart.rows.iter().flat_map(|row| &row.1).flatten().fold(0.0_f64, |most, value| most.max(*value));
    let count = chart.columns.len().max(1) as i32;
    let edge = |column: i32| left + (size.width - left - 4) * column / count;
    let shade = |value: f64| if most > 0.0 { 0.06 + 0.94 * (value / most).clamp(0.0, 1.0) } else { 0.06 };
    draw(size, &chart.title, |canvas| {
        for (at, (name, values)) in chart.rows.iter().enumerate() {
            let top = TOP + ROW * at as i32;
            canvas.text((2, top + ROW / 2), &fit(name, left - 24), Anchor::Start, Paint::Ink);
            for (column, value) in (0..).zip(values) {
                let (from, to) = ((edge(column), top + 1), (edge(column + 1) - 1, top + ROW - 2));
                match value {
                    Some(value) => canvas.fill(from, to, Paint::Style(0), shade(*value)),
                    None => canvas.outline(from, to, Paint::Grid),
                }
            }
        }
        let foot = TOP + ROW * chart.rows.len() as i32 + 24;
        let step = (count as usize).div_ceil(size.columns() * 2).max(1);
        for (column, name) in chart.columns.iter().enumerate().step_by(step) {
            let middle = i32::midpoint(edge(column as i32), edge(column as i32 + 1));
            canvas.text((middle, foot), name, Anchor::Middle, Paint::Muted);
        }
        let line = foot + 56;
        canvas.text((left, line), &chart.axis, Anchor::Start, Paint::Muted);
        let right = show::figure(most, &chart.unit);
        let scale = size.width - text_width(&right) - 14;
        for part in 0..10 {
            let from = scale - 200 + part * 20;
            canvas.fill(
                (from, line - 14),
                (from + 20, line + 14),
                Paint::Style(0),
                0.06 + 0.94 * f64::from(part) / 9.0,
            );
        }
        canvas.text((scale - 212, line), "0", Anchor::End, Paint::Muted);
        canvas.text((scale + 8, line), &right, Anchor::Start, Paint::Muted);
    })
}
