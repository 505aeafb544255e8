//! Horizontal bars, each below its name, so that a name never takes room from the data.

use super::{Anchor, Canvas, Paint, Size, draw, fit, text_width};
use crate::report::show;

/// One part of a bar.
#[derive(Debug, Clone)]
pub(in crate::report) struct Part {
    /// What it is.
    pub(in crate::report) name: String,
    /// Its colour.
    pub(in crate::report) paint: Paint,
    /// Whether it is drawn pale with an outline, to tell two parts of one hue apart.
    pub(in crate::report) pale: bool,
    /// How long it is.
    pub(in crate::report) value: f64,
}

/// One bar.
#[derive(Debug, Clone)]
pub(in crate::report) struct Bar {
    /// What stands above it.
    pub(in crate::report) name: String,
    /// Its parts from left to right; none where the value is unknown.
    pub(in crate::report) parts: Vec<Part>,
    /// Thin marks, each with its name.
    pub(in crate::report) marks: Vec<(String, f64)>,
    /// What stands at its end, or in its place.
    pub(in crate::report) note: String,
}

/// A chart of bars.
#[derive(Debug, Clone)]
pub(in crate::report) struct Bars {
    /// What the chart shows, in words.
    pub(in crate::report) title: String,
    /// The unit of all lengths.
    pub(in crate::report) unit: String,
    /// The length of the whole ground, where there is one that means something; else the longest bar fills the canvas.
    pub(in crate::report) full: Option<f64>,
    pub(in crate::report) rows: Vec<Bar>,
}

const ROW: i32 = 104;
const HEIGHT: i32 = 40;

/// Draws the chart; the height follows from the number of bars.
pub(in crate::report) fn bars(chart: &Bars, size: Size) -> String {
    let marked = chart.rows.iter().any(|bar| !bar.marks.is_empty());
    let row = if marked { ROW + 38 } else { ROW };
    let size = Size { height: row * chart.rows.len() as i32 + 8, ..size };
    let note = chart.rows.iter().map(|bar| text_width(&bar.note)).max().unwrap_or(0) + 20;
    let width = (size.width - note).max(size.width / 3);
    let length = |bar: &Bar| bar.parts.iter().map(|part| part.value).filter(|value| value.is_finite()).sum::<f64>();
    let lengths = chart.rows.iter().flat_map(|bar| bar.marks.iter().map(|mark| mark.1).chain([length(bar)]));
    let full = chart.full.unwrap_or(lengths.fold(0.0, f64::max)).max(f64::MIN_POSITIVE);
    let pixel = |value: f64| ((value / full).clamp(0.0, 1.0) * f64::from(width)).round() as i32;
    draw(size, &chart.title, |canvas| {
        for (at, bar) in chart.rows.iter().enumerate() {
            let top = at as i32 * row + 44;
            canvas.text((2, top - 24), &fit(&bar.name, size.width), Anchor::Start, Paint::Ink);
            if bar.parts.is_empty() {
                canvas.text((2, top + HEIGHT / 2), &bar.note, Anchor::Start, Paint::Muted);
                continue;
            }
            if chart.full.is_some() {
                canvas.fill((0, top), (width, top + HEIGHT), Paint::Track, 1.0);
            }
            let end = parts(canvas, chart, bar, top, &pixel);
            let end = if chart.full.is_some() { width } else { end };
            canvas.text((end + 14, top + HEIGHT / 2), &bar.note, Anchor::Start, Paint::Ink);
            marks(canvas, bar, top, size.width, &pixel);
        }
    })
}

/// Draws the parts of a bar, named inside where there is room, and returns where they end.
fn parts(canvas: &mut Canvas<'_>, chart: &Bars, bar: &Bar, top: i32, pixel: &impl Fn(f64) -> i32) -> i32 {
    let mut sum = 0.0;
    for part in bar.parts.iter().filter(|part| part.value.is_finite() && part.value > 0.0) {
        let (start, end) = (pixel(sum), pixel(sum + part.value));
        sum += part.value;
        let several = bar.parts.len() > 1;
        // A small gap parts the parts.
        let inner = if several { (end - 3).max(start + 1) } else { end };
        canvas.fill((start, top), (inner, top + HEIGHT), part.paint, if part.pale { 0.3 } else { 1.0 });
        if part.pale {
            canvas.outline((start + 1, top + 1), (inner - 1, top + HEIGHT - 1), part.paint);
        }
        if several {
            let named = format!("{} {}", part.name, show::figure(part.value, &chart.unit));
            let room = end - start - 24;
            let text = [named.as_str(), part.name.as_str()].into_iter().find(|text| text_width(text) <= room);
            // Blue is the one hue on which white reads better than black.
            let paint = match part.paint {
                _ if part.pale => Paint::Ink,
                Paint::Style(0) => Paint::White,
                _ => Paint::Black,
            };
            if let Some(text) = text {
                canvas.text((start + 12, top + HEIGHT / 2), text, Anchor::Start, paint);
            }
        }
    }
    pixel(sum)
}

/// Draws the marks of a bar, and their names below it so that none runs into another or out of the canvas.
fn marks(canvas: &mut Canvas<'_>, bar: &Bar, top: i32, width: i32, pixel: &impl Fn(f64) -> i32) {
    const GAP: i32 = 28;
    let mut marks: Vec<&(String, f64)> = bar.marks.iter().filter(|mark| mark.1.is_finite()).collect();
    marks.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut lefts = Vec::new();
    let mut free = 2;
    for (name, value) in &marks {
        let at = pixel(*value);
        canvas.path(vec![(at, top - 6), (at, top + HEIGHT + 6)], Paint::Ink, 4);
        let left = (at - text_width(name) / 2).max(free);
        lefts.push(left);
        free = left + text_width(name) + GAP;
    }
    let mut most = width;
    for ((name, _), left) in marks.iter().zip(&mut lefts).rev() {
        *left = (*left).min(most - text_width(name)).max(2);
        most = *left - GAP;
    }
    for ((name, _), left) in marks.iter().zip(lefts) {
        canvas.text((left, top + HEIGHT + 24), name, Anchor::Start, Paint::Muted);
    }
}
