//! What is said to people: notes, warnings, errors and progress, all on standard error.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use engine::error::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line of news.
pub fn note(text: &str) {
    line(text);
}

/// Something that the user should know and may want to change.
pub fn warn(text: &str) {
    line(&format!("warning: {text}"));
}

/// An error, and after a blank line the way out.
pub fn error(error: &Error) {
    line(&format!("error: {error}"));
    if let Some(advice) = error.advice() {
        line(&format!("\nhint: {advice}"));
    }
}

/// Control characters in names and data never reach the terminal.
fn line(text: &str) {
    // Nobody is left to tell when standard error is closed.
    let plain = |char: char| if char.is_control() && char != '\n' { '\u{fffd}' } else { char };
    let shown: String = text.chars().map(plain).collect();
    let _ = writeln!(std::io::stderr().lock(), "{shown}");
}

/// A bar for bytes, or a spinner where the total is unknown; invisible unless standard error is a terminal.
pub fn bar(total_bytes: Option<u64>) -> ProgressBar {
    let bar = match total_bytes {
        Some(total) => {
            ProgressBar::new(total).with_style(style("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}"))
        }
        None => ProgressBar::new_spinner().with_style(style("{spinner} {msg}")),
    };
    if std::io::stderr().is_terminal() && std::env::var_os("KVTOLL_NO_PROGRESS").is_none() {
        bar.enable_steady_tick(Duration::from_millis(120));
    } else {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
