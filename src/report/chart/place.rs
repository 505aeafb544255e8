//! Places for names near points, so that no name hides another, a point or the line that leads to a name.

use super::{Anchor, TEXT};

/// A pixel.
pub(super) type Pixel = (i32, i32);

/// A rectangle: left, top, right, bottom.
pub(super) type Area = (i32, i32, i32, i32);

/// What is on the canvas already.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    /// Names and points.
    pub(super) areas: Vec<Area>,
    /// Lines that lead to names; none may run through a name.
    pub(super) leaders: Vec<(Pixel, Pixel)>,
    /// Lines of the data; a name stands on one only where no other place is free.
    pub(super) lines: Vec<(Pixel, Pixel)>,
}

/// Where a name stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) at: Pixel,
    pub(super) anchor: Anchor,
    pub(super) area: Area,
    /// The line from the point to a name that is not beside it.
    pub(super) leader: Option<(Pixel, Pixel)>,
}

/// The square around a point.
pub(super) fn around((x, y): Pixel, half: i32) -> Area {
    (x - half, y - half, x + half, y + half)
}

/// The first free place for a name of a width near a point: beside it, above and below, then further away with a line
/// that leads there. None where nothing within `bounds` is free. Points are best named from right to left: then a name
/// stands in the way of none that are still to come.
pub(super) fn place(point: Pixel, width: i32, bounds: Area, taken: &Taken) -> Option<Place> {
    let inside = |area: &Area| area.0 >= bounds.0 && area.1 >= bounds.1 && area.2 <= bounds.2 && area.3 <= bounds.3;
    let free = |place: &Place| {
        let hidden = taken.areas.iter().any(|other| overlap(place.area, *other));
        let crossed = taken.leaders.iter().any(|line| meets(*line, place.area));
        // The point's own square, and those of points that lie on it, are where the leader begins.
        let runs = |leader| {
            taken.areas.iter().any(|area| !contains(*area, point) && meets(leader, *area))
                || taken.leaders.iter().any(|other| other.0 != point && cross(leader, *other))
        };
        !hidden && !crossed && !place.leader.is_some_and(runs)
    };
    let all: Vec<Place> = candidates(point, width).filter(|place| inside(&place.area)).filter(free).collect();
    let clear = |place: &&Place| !taken.lines.iter().any(|line| meets(*line, place.area));
    all.iter().find(clear).or(all.first()).copied()
}

/// Takes a place.
pub(super) fn take(taken: &mut Taken, place: &Place) {
    taken.areas.push(place.area);
    taken.leaders.extend(place.leader);
}

fn candidates((x, y): Pixel, width: i32) -> impl Iterator<Item = Place> {
    let half = TEXT as i32 / 2;
    let row = move |dy: i32, dx: i32| {
        let led = dx != 24 || dy != 0;
        let leader = |x1: i32| led.then_some(((x, y), (x1, y + dy)));
        let (right, left) = (x + dx, x - dx);
        [
            Place {
                at: (right, y + dy),
                anchor: Anchor::Start,
                area: (right - 2, y + dy - half, right + width, y + dy + half),
                leader: leader(right - 4),
            },
            Place {
                at: (left, y + dy),
                anchor: Anchor::End,
                area: (left - width, y + dy - half, left + 2, y + dy + half),
                leader: leader(left + 4),
            },
        ]
    };
    let column = move |dy: i32| Place {
        at: (x, y + dy),
        anchor: Anchor::Middle,
        area: (x - width / 2 - 4, y + dy - half, x + width / 2 + 4, y + dy + half),
        leader: (dy.abs() > 40).then_some(((x, y), (x, y + dy - dy.signum() * (half + 2)))),
    };
    // A long name above a point would bar the way to the names of its neighbours.
    let column = move |dy: i32| (width < 80).then(|| column(dy));
    let far = (1..=9).flat_map(move |step| {
        let dy = step * 34;
        let columns = [column(-dy), column(dy)].into_iter().flatten();
        columns.chain(row(-dy, 24)).chain(row(dy, 24)).chain(row(-dy, 60)).chain(row(dy, 60))
    });
    row(0, 24).into_iter().chain(far)
}

/// Whether two areas share a pixel.
pub(super) fn overlap(a: Area, b: Area) -> bool {
    a.0 < b.2 && b.0 < a.2 && a.1 < b.3 && b.1 < a.3
}

fn contains(area: Area, (x, y): Pixel) -> bool {
    (area.0..=area.2).contains(&x) && (area.1..=area.3).contains(&y)
}

/// Whether a line runs through an area: it ends there, or it crosses one of the diagonals.
fn meets((a, b): (Pixel, Pixel), area: Area) -> bool {
    let (left, top, right, bottom) = area;
    contains(area, a)
        || contains(area, b)
        || cross((a, b), ((left, top), (right, bottom)))
        || cross((a, b), ((left, bottom), (right, top)))
}

/// Whether two lines cross, or touch.
fn cross((a, b): (Pixel, Pixel), (c, d): (Pixel, Pixel)) -> bool {
    let side = |a: Pixel, b: Pixel, c: Pixel| {
        let (x1, y1) = (i64::from(b.0 - a.0), i64::from(b.1 - a.1));
        let (x2, y2) = (i64::from(c.0 - a.0), i64::from(c.1 - a.1));
        (x1 * y2 - y1 * x2).signum()
    };
    let boxes = |a: i32, b: i32, c: i32, d: i32| a.min(b) <= c.max(d) && c.min(d) <= a.max(b);
    boxes(a.0, b.0, c.0, d.0)
        && boxes(a.1, b.1, c.1, d.1)
        && side(a, b, c) * side(a, b, d) <= 0
        && side(c, d, a) * side(c, d, b) <= 0
}
