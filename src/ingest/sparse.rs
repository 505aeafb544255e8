//! Builders of columns that most formats leave empty.

use arrow::array::{ArrayBuilder, ArrayRef, ArrowPrimitiveType, ListBuilder, PrimitiveBuilder, StringBuilder};

/// A builder of a column that most formats leave empty: unknown values are counted, and enter it before the next known
/// one.
pub(super) struct Sparse<B> {
    builder: B,
    unknown: usize,
}

impl<B: Grow> Sparse<B> {
    pub(super) fn new(builder: B) -> Self {
        Self { builder, unknown: 0 }
    }

    /// The builder for one known value; none if this one is unknown.
    #[inline]
    fn known<T>(&mut self, value: Option<T>) -> Option<(&mut B, T)> {
        let Some(value) = value else {
            self.unknown += 1;
            return None;
        };
        if self.unknown > 0 {
            self.builder.unknown(std::mem::take(&mut self.unknown));
        }
        Some((&mut self.builder, value))
    }

    pub(super) fn finish(&mut self) -> ArrayRef {
        self.builder.unknown(std::mem::take(&mut self.unknown));
        self.builder.finish()
    }
}

/// What [`Sparse`] asks of a builder: so many unknown values.
pub(super) trait Grow: ArrayBuilder {
    fn unknown(&mut self, count: usize);
}

impl<T: ArrowPrimitiveType> Grow for PrimitiveBuilder<T> {
    fn unknown(&mut self, count: usize) {
        self.append_nulls(count);
    }
}

impl Grow for StringBuilder {
    fn unknown(&mut self, count: usize) {
        self.append_nulls(count);
    }
}

impl<T: ArrayBuilder> Grow for ListBuilder<T> {
    fn unknown(&mut self, count: usize) {
        self.append_nulls(count);
    }
}

impl<T: ArrowPrimitiveType> Sparse<PrimitiveBuilder<T>> {
    #[inline]
    pub(super) fn push(&mut self, value: Option<T::Native>) {
        if let Some((builder, value)) = self.known(value) {
            builder.append_value(value);
        }
    }
}

impl Sparse<StringBuilder> {
    #[inline]
    pub(super) fn push_text(&mut self, text: Option<&str>) {
        if let Some((builder, text)) = self.known(text) {
            builder.append_value(text);
        }
    }
}

impl<T: ArrowPrimitiveType> Sparse<ListBuilder<PrimitiveBuilder<T>>> {
    /// Gives the number of entries.
    pub(super) fn push_list(&mut self, values: Option<&[T::Native]>) -> usize {
        let Some((builder, values)) = self.known(values) else { return 0 };
        builder.values().append_slice(values);
        builder.append(true);
        values.len()
    }
}

/// Adds one row to columns of one type.
pub(super) fn push_all<T: ArrowPrimitiveType, const N: usize>(
    builders: &mut [Sparse<PrimitiveBuilder<T>>; N],
    values: [Option<T::Native>; N],
) {
    for (builder, value) in builders.iter_mut().zip(values) {
        builder.push(value);
    }
}
