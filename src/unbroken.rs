//! The Parquet reader panics on some damaged pages, which are bad input like any other: here they become one.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is told by an error instead.
    static TOLD: Cell<bool> = const { Cell::new(false) };
}

/// What `read` gives; what is wrong where the Parquet reader panics, as it does on some damaged pages. Such a panic is not
/// printed, those of all other code are.
pub(crate) fn unbroken<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !TOLD.get() {
                before(panic);
            }
        }));
    });
    TOLD.set(true);
    // The reader is not used again after a panic.
    let found = catch_unwind(AssertUnwindSafe(read));
    TOLD.set(false);
    found.map_err(|_| "its pages are damaged".to_owned())
}

/// As [`unbroken`], of what may also fail by itself: one text for both.
pub(crate) fn sound<T, E: Display>(read: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    unbroken(read)?.map_err(|error| error.to_string())
}

/// Items of a reader that may panic, which ends it.
pub(crate) fn each_sound<T, E: Display>(
    mut items: impl Iterator<Item = Result<T, E>>,
) -> impl Iterator<Item = Result<T, String>> {
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        match unbroken(|| items.next()) {
            Ok(next) => next.map(|item| item.map_err(|error| error.to_string())),
            Err(why) => {
                is_over = true;
                Some(Err(why))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_panics_ends_with_an_error() {
        let items = (0..4).map(|number| if number == 2 { panic!("a page") } else { Ok::<i32, String>(number) });
        let found: Vec<Result<i32, String>> = each_sound(items).collect();
        assert_eq!(found, [Ok(0), Ok(1), Err("its pages are damaged".to_owned())]);
        assert_eq!(sound(|| Err::<(), _>("own")), Err("own".to_owned()));
    }
}
