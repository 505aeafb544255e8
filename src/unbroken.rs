//! The Parquet reader panics on some damaged pages, which are bad input like any other: here they become one.

use std::cell::Cell;
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
