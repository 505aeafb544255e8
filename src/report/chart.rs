//! Charts as inline SVG, drawn by the SVG backend of plotters on canvases of our own layout.
//!
//! Three things about the backend shape this module. Its coordinates are whole pixels, so charts are drawn at twice the
//! size at which they are shown, and the view box scales them. It draws NaN at the origin, so values that are not
//! finite are left out. It knows no classes, so colours are the handles by which the style sheet adapts
//! a chart to the theme: black is the foreground, and each other colour of [`Paint`] has a rule in the page.

mod axis;
mod bars;
mod heat;
mod lines;
mod panels;
mod place;
mod scatter;
mod swings;

use plotters::backend::SVGBackend;
use plotters::prelude::{DrawingBackend, RGBAColor};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

pub(super) use axis::Axis;
pub(super) use bars::{Bar, Bars, Part, bars};
pub(super) use heat::{Heat, heat};
pub(super) use lines::{Lines, Series, lines};
pub(super) use panels::{Panel, Panels, panels};
pub(super) use scatter::{Point, Scatter, scatter};
pub(super) use swings::{End, Swing, Swings, swings};

/// The size of the text in canvas units; 13 px where the canvas is shown at half size.
const TEXT: f64 = 26.0;

/// Series with a style of their own.
pub(super) const STYLES: usize = 8;

/// A canvas, in units of half a pixel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Width.
    pub(super) width: i32,
    /// Height.
    pub(super) height: i32,
    /// Whether names stand beside the data; a narrow canvas has room for numbers only.
    pub(super) names: bool,
}

impl Size {
    /// The width of the page.
    pub(super) const WIDE: Self = Self { width: 2080, height: 800, names: true };
    /// Half the width of the page.
    pub(super) const HALF: Self = Self { width: 1000, height: 800, names: false };
    /// A telephone.
    pub(super) const NARROW: Self = Self { width: 720, height: 640, names: false };

    /// How many ticks stand on the horizontal axis.
    fn columns(self) -> usize {
        if self.width > 1500 { 9 } else { 5 }
    }
}

/// A colour of the page's palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paint {
    /// Text and marks.
    Ink,
    /// Secondary text.
    Muted,
    /// A line behind the data.
    Behind,
    /// Grid lines.
    Grid,
    /// The ground of a bar.
    Track,
    /// Text on blue, in either theme.
    White,
    /// Text on the other hues, in either theme.
    Black,
    /// One of four hues of Okabe and Ito that keep a contrast of 3:1 on both themes; from the fifth on, dashed.
    Style(usize),
}

/// Blue, vermillion, green and purple.
const HUES: [(u8, u8, u8); 4] = [(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73), (0xCC, 0x79, 0xA7)];

impl Paint {
    fn color(self) -> RGBColor {
        match self {
            Self::Ink => RGBColor(0x00, 0x00, 0x00),
            Self::Muted => RGBColor(0x77, 0x77, 0x77),
            Self::Behind => RGBColor(0xAA, 0xAA, 0xAA),
            Self::Grid => RGBColor(0xDD, 0xDD, 0xDD),
            Self::Track => RGBColor(0xEE, 0xEE, 0xEE),
            Self::White => RGBColor(0xFF, 0xFF, 0xFF),
            Self::Black => RGBColor(0x11, 0x13, 0x16),
            Self::Style(at) => {
                let (r, g, b) = HUES[at % HUES.len()];
                // One step of blue marks a dashed line for the style sheet and is invisible otherwise.
                RGBColor(r, g, b + u8::from(is_second_round(at)))
            }
        }
    }
}

/// Whether a style is one of the second four: dashed lines, hollow points.
fn is_second_round(style: usize) -> bool {
    (style / HUES.len()) % 2 == 1
}

/// Where a text is held.
#[derive(Debug, Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing in progress. The backend writes into a string, so that no drawing operation can fail.
struct Canvas<'a> {
    backend: SVGBackend<'a>,
}

impl Canvas<'_> {
    fn fill(&mut self, (x0, y0): (i32, i32), (x1, y1): (i32, i32), paint: Paint, opacity: f64) {
        let style: RGBAColor = paint.color().mix(opacity);
        self.backend.draw_rect((x0, y0), (x1.max(x0), y1), &style, true).ok();
    }

    fn outline(&mut self, (x0, y0): (i32, i32), (x1, y1): (i32, i32), paint: Paint) {
        let style = ShapeStyle { color: paint.color().to_rgba(), filled: false, stroke_width: 2 };
        self.backend.draw_rect((x0, y0), (x1.max(x0), y1), &style, false).ok();
    }

    fn path(&mut self, points: Vec<(i32, i32)>, paint: Paint, width: u32) {
        let style = ShapeStyle { color: paint.color().to_rgba(), filled: false, stroke_width: width };
        self.backend.draw_path(points, &style).ok();
    }

    fn circle(&mut self, center: (i32, i32), radius: u32, paint: Paint, filled: bool) {
        let style = ShapeStyle { color: paint.color().to_rgba(), filled, stroke_width: 5 };
        self.backend.draw_circle(center, radius, &style, filled).ok();
    }

    fn text(&mut self, (x, y): (i32, i32), text: &str, anchor: Anchor, paint: Paint) {
        let position = match anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        let color = paint.color();
        // The backend writes the size divided by 1.24.
        let style = TextStyle::from(("sans-serif", TEXT * 1.24).into_font())
            .color(&color)
            .pos(Pos::new(position, VPos::Center));
        self.backend.draw_text(text, &style, (x, y)).ok();
    }
}

/// Draws on a canvas and returns the SVG element, named for readers who do not see it.
fn draw(size: Size, title: &str, paint: impl FnOnce(&mut Canvas<'_>)) -> String {
    let mut svg = String::new();
    {
        let mut canvas = Canvas { backend: SVGBackend::with_string(&mut svg, (size.width as u32, size.height as u32)) };
        paint(&mut canvas);
        canvas.backend.present().ok();
    }
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let (title, body) = (escape(title), slim(body));
    format!(
        "<svg viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"{TEXT}\" role=\"img\" \
         aria-label=\"{title}\"><title>{title}</title>{body}",
        size.width, size.height
    )
}

/// What the backend writes into each element though it goes without saying, or is said of the whole drawing.
const SAID: [&str; 5] = [
    " font-family=\"sans-serif\"",
    " font-size=\"26.000000000000004\"",
    " opacity=\"1\"",
    " stroke=\"none\"",
    " text-anchor=\"start\"",
];

/// A drawing without what goes without saying, which would be a tenth of a page of many scenarios. Texts stay as they are.
fn slim(body: &str) -> String {
    let mut slim = String::with_capacity(body.len());
    for (at, part) in body.split('<').enumerate() {
        let (tag, text) = if at == 0 { ("", part) } else { part.split_at(part.find('>').unwrap_or(part.len())) };
        slim.push_str(if at == 0 { "" } else { "<" });
        slim.push_str(&SAID.iter().fold(tag.to_owned(), |tag, said| tag.replace(said, "")));
        slim.push_str(text);
    }
    slim
}

/// Text as it may stand in an attribute or an element.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(letter),
        }
    }
    escaped
}

/// The estimated width of a text, on the safe side, since the reader's font is not known.
fn text_width(text: &str) -> i32 {
    let em = |letter: char| match letter {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '\u{a0}' | '.' | ',' | ':' | '(' | ')' | '\'' | '|' => 0.38,
        'm' | 'w' | 'M' | 'W' | 'G' | '%' | '@' => 0.92,
        _ if letter.is_ascii() || letter == '\u{b7}' => 0.62,
        _ => 1.0,
    };
    let ems: f64 = text.chars().map(em).sum();
    (ems * TEXT) as i32
}

/// The text cut to a width, with an ellipsis where something is missing: behind a separator if one is near.
fn fit(text: &str, width: i32) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for letter in text.chars() {
        if text_width(&kept) + text_width("n…") > width {
            break;
        }
        kept.push(letter);
    }
    let near = kept.rfind(['+', ',', ' ']).map(|at| at + 1).filter(|end| 5 * end >= 3 * kept.len());
    format!("{}…", kept[..near.unwrap_or(kept.len())].trim_end())
}

#[cfg(test)]
mod tests;
