//! The prompt of `kvtoll sql` on a terminal: `script` of util-linux gives the binary a pseudo-terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::quickstart;

/// A prompt somebody types at.
struct Typist {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of what was written has been looked at.
    seen: usize,
}

impl Typist {
    /// None where there is no `script`.
    fn start(arguments: &str, history: &std::path::Path) -> Option<Self> {
        let command = format!("'{}' {arguments}", env!("CARGO_BIN_EXE_kvtoll"));
        let mut child = Command::new("script")
            .args(["-q", "-f", "-e", "-c", &command, "/dev/null"])
            .env("KVTOLL_HISTORY", history)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let (keys, mut out) = (child.stdin.take()?, child.stdout.take()?);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                written.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        Some(Self { child, keys, screen, seen: 0 })
    }

    /// Waits until this is written, behind what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            let screen = self.screen.lock().expect("no panic").clone();
            let new = String::from_utf8_lossy(&screen[self.seen..]).into_owned();
            if let Some(at) = new.find(text) {
                self.seen = screen.len().min(self.seen + at + text.len());
                // The prompt listens a moment after it has written.
                std::thread::sleep(Duration::from_millis(150));
                return;
            }
            assert!(start.elapsed() < Duration::from_mins(2), "expected `{text}` in:\n{new}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal reads");
        self.keys.flush().expect("the terminal reads");
    }
}

#[test]
fn the_prompt_works_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let store = quickstart().store;
    let Some(mut typist) = Typist::start(&format!("sql '{}'", store.display()), &history) else {
        println!("skipped: there is no `script` to make a terminal");
        return;
    };
    typist.wait_for("kvtoll> ");
    // As far as all that begins so is alike, then the rest of one.
    typist.press("SELECT name FROM scen\t");
    typist.wait_for("FROM scenario");
    typist.press("s\t");
    typist.wait_for("scenarios ");
    typist.press("LIMIT 1;\r");
    typist.wait_for("1 row in ");
    typist.wait_for("kvtoll> ");
    // A statement over two lines, then the error of another with its place.
    typist.press("SELECT count(*)\r");
    typist.wait_for("...> ");
    typist.press("FROM scenarios;\r");
    typist.wait_for("1 row in ");
    typist.wait_for("kvtoll> ");
    typist.press("SELECT nam FROM scenarios;\r");
    typist.wait_for("^^^");
    typist.wait_for("did you mean");
    typist.wait_for("kvtoll> ");
    // The history comes back; Ctrl and an arrow types nothing; Ctrl-C gives the line up and not the prompt.
    typist.press("\u{1b}[A");
    typist.wait_for("SELECT nam FROM scenarios;");
    typist.press("\u{1b}[1;5D");
    typist.press("\u{5}!");
    typist.wait_for("SELECT nam FROM scenarios;!");
    typist.press("\u{3}");
    typist.wait_for("^C");
    typist.wait_for("kvtoll> ");
    typist.press("\\d scenarios\r");
    typist.wait_for("is_baseline");
    typist.wait_for("kvtoll> ");
    typist.press("\u{4}");
    let code = typist.child.wait().unwrap().code();
    assert_eq!(code, Some(0));
    let kept = std::fs::read_to_string(&history).unwrap();
    assert_eq!(kept.lines().count(), 5, "{kept}");
    assert!(kept.starts_with("SELECT name FROM scenarios LIMIT 1;\nSELECT count(*)\nFROM scenarios;\n"), "{kept}");
}
