//! What is said to people: notes, warnings, errors and progress, all on standard error.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use clap::ValueEnum;
use engine::error::Error;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, WeakProgressBar};

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

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// Bars where standard error is a terminal, and nothing elsewhere
    Auto,
    /// A line every ten seconds
    Plain,
    /// A JSON object on a line every ten seconds
    Json,
    /// Nothing
    None,
}

static PROGRESS: OnceLock<Progress> = OnceLock::new();

/// Chooses how progress is shown, once for the process.
pub fn show_progress(mode: Progress) {
    let _ = PROGRESS.set(mode);
}

/// Time between two lines about one piece of work.
const BETWEEN_LINES: Duration = Duration::from_secs(10);

/// A bar for bytes, or a spinner where the total is unknown; how it is shown is up to [`show_progress`].
pub fn bar(total_bytes: Option<u64>) -> ProgressBar {
    let bar = match total_bytes {
        Some(total) => {
            ProgressBar::new(total).with_style(style("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}"))
        }
        None => ProgressBar::new_spinner().with_style(style("{spinner} {msg}")),
    };
    let is_wanted = std::io::stderr().is_terminal() && std::env::var_os("KVTOLL_NO_PROGRESS").is_none();
    match PROGRESS.get().copied().unwrap_or(Progress::Auto) {
        Progress::Auto if is_wanted => bar.enable_steady_tick(Duration::from_millis(120)),
        mode => {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            if matches!(mode, Progress::Plain | Progress::Json) {
                let watched = bar.downgrade();
                // The thread ends with the work, or with the process; without one there are no lines, which stops nobody.
                let _ = std::thread::Builder::new().spawn(move || tell_of(&watched, mode));
            }
        }
    }
    bar
}

/// Says every ten seconds how far the work is, until it is done.
fn tell_of(watched: &WeakProgressBar, mode: Progress) {
    loop {
        std::thread::sleep(BETWEEN_LINES);
        let Some(bar) = watched.upgrade().filter(|bar| !bar.is_finished()) else { return };
        line(&said(mode, &bar.message(), bar.position(), bar.length(), bar.elapsed()));
    }
}

/// One line about a piece of work.
fn said(mode: Progress, message: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if mode == Progress::Json {
        let of_total = total.map(|_| done);
        return serde_json::json!({"progress": message, "done": of_total, "total": total, "elapsed_s": seconds})
            .to_string();
    }
    let share = total.filter(|&total| total > 0).map(|total| format!(" {}%,", 100 * done.min(total) / total));
    format!("{message}:{} {seconds} s", share.unwrap_or_default())
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_line_for_people_or_programs() {
        let after = Duration::from_secs(20);
        assert_eq!(said(Progress::Plain, "replaying", 25, Some(100), after), "replaying: 25%, 20 s");
        assert_eq!(said(Progress::Plain, "replaying", 25, None, after), "replaying: 20 s");
        let json = said(Progress::Json, "a \"b\"", 25, Some(100), after);
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["done"], 25);
        assert_eq!((parsed["progress"].as_str(), parsed["elapsed_s"].as_u64()), (Some("a \"b\""), Some(20)));
        assert!(said(Progress::Json, "x", 3, None, after).contains("\"done\":null"));
    }
}
