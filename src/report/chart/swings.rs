//! Bars that swing to both sides of a line: what less and more of each input does to one result.

use super::{Anchor, Paint, Size, draw, fit, text_width};

/// One setting of an input.
#[derive(Debug, Clone)]
pub(in crate::report) struct End {
    /// What stands beside the bar.
    pub(in crate::report) note: String,
    /// How far it swings, below zero to the left; none where it is unknown.
    pub(in crate::report) value: Option<f64>,
    /// Whether it is more of the input than there is.
    pub(in crate::report) is_more: bool,
}

/// An input with its settings.
#[derive(Debug, Clone)]
pub(in crate::report) struct Swing {
    /// What stands above the bars.
    pub(in crate::report) name: String,
    pub(in crate::report) ends: Vec<End>,
}

/// A chart of swings.
#[derive(Debug, Clone)]
pub(in crate::report) struct Swings {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    pub(in crate::report) rows: Vec<Swing>,
}

const NAME: i32 = 46;
const BAR: i32 = 34;
const GAP: i32 = 18;

/// Draws the chart; the height follows from the number of bars.
pub(in crate::report) fn swings(chart: &Swings, size: Size) -> String {
    let ends = || chart.rows.iter().flat_map(|row| &row.ends);
    let value = |end: &End| end.value.filter(|value| value.is_finite()).unwrap_or(0.0);
    let height: i32 = chart.rows.iter().map(|row| NAME + row.ends.len() as i32 * BAR + GAP).sum();
    let size = Size { height: height + 8, ..size };
    // A note stands behind the end of its bar, on the side to which it swings.
    let room = |is_left: bool| {
        let notes = ends().filter(|end| (value(end) < 0.0) == is_left).map(|end| text_width(&end.note) + 24);
        notes.max().unwrap_or(0).min(size.width / 3)
    };
    let (left, right) = (room(true), room(false));
    let (least, most) = ends().map(value).fold((0.0_f64, 0.0_f64), |(a, b), value| (a.min(value), b.max(value)));
    let scale = f64::from(size.width - left - right - 8) / (most - least).max(f64::MIN_POSITIVE);
    let zero = left + 4 + (-least * scale).round() as i32;
    draw(size, &chart.title, |canvas| {
        let mut top = 4;
        for row in &chart.rows {
            canvas.text((2, top + NAME / 2), &fit(&row.name, size.width), Anchor::Start, Paint::Ink);
            top += NAME;
            let first = top;
            for end in &row.ends {
                let at = zero + (value(end) * scale).round() as i32;
                let paint = Paint::Style(usize::from(!end.is_more));
                canvas.fill((at.min(zero), top + 3), (at.max(zero), top + BAR - 3), paint, 1.0);
                let (x, anchor) = if value(end) < 0.0 {
                    (at.min(zero) - 12, Anchor::End)
                } else {
                    (at.max(zero) + 12, Anchor::Start)
                };
                let ink = if end.value.is_some() { Paint::Ink } else { Paint::Muted };
                canvas.text((x, top + BAR / 2), &end.note, anchor, ink);
                top += BAR;
            }
            canvas.path(vec![(zero, first - 4), (zero, top + 4)], Paint::Ink, 3);
            top += GAP;
        }
    })
}
