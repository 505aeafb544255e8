//! A headless Chromium that tests can click in: its protocol over two pipes, so that no port and no crate is needed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Seconds after which a browser that hangs is ended.
const LIMIT: &str = "600";

/// The browser reads commands from file 3 and writes answers to file 4; the shell puts its own two pipes there.
const PIPES: &str = "exec 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null; exec timeout \"$@\"";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    next: u64,
    session: Option<String>,
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page.
    pub(crate) fn start() -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let mut child = Command::new("sh")
            .args([
                "-c",
                PIPES,
                "sh",
                LIMIT,
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
            ])
            .args(["--force-color-profile=srgb", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromium is installed by scripts/test");
        let commands = child.stdin.take().expect("a pipe");
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let events = Vec::new();
        let mut browser = Self { child, commands, answers, next: 0, session: None, events, _profile: profile };
        let target = browser.send("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached =
            browser.send("Target.attachToTarget", &json!({ "targetId": target["targetId"], "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.send(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Sends a command and waits for its result; events that come before it are kept.
    pub(crate) fn send(&mut self, method: &str, params: &Value) -> Value {
        self.next += 1;
        let mut command = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).expect("the browser reads");
        self.commands.flush().expect("the browser reads");
        loop {
            let message = self.read();
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.answers.read_until(0, &mut bytes).expect("the browser writes");
        assert_eq!(bytes.pop(), Some(0), "the browser ended");
        serde_json::from_slice(&bytes).expect("JSON")
    }

    fn wait_for(&mut self, event: &str) {
        while !self.events.iter().any(|known| known["method"] == event) {
            let message = self.read();
            self.events.push(message);
        }
    }

    /// Opens a file, with what stands after `#` in its address, and waits until it is loaded.
    pub(crate) fn open(&mut self, file: &Path, hash: &str) {
        self.events.clear();
        // Another address of the same file would not load again.
        self.send("Page.navigate", &json!({ "url": "about:blank" }));
        self.wait_for("Page.loadEventFired");
        self.events.clear();
        self.send("Page.navigate", &json!({ "url": format!("file://{}{hash}", file.display()) }));
        self.wait_for("Page.loadEventFired");
    }

    /// The value of an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.send("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// What the page logged, threw, or asked for beside itself, so far.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // One more answer brings what was on its way.
        self.eval("new Promise((done) => setTimeout(() => done(1), 50))");
        let is_other = |event: &Value| {
            let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
            !url.starts_with("file://") && !url.starts_with("blob:") && !url.starts_with("data:")
        };
        let found = self.events.iter().filter(|event| match event["method"].as_str() {
            Some("Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded") => true,
            Some("Network.requestWillBeSent") => is_other(event),
            _ => false,
        });
        found.map(ToString::to_string).collect()
    }

    /// Shows the page as a screen of this width, light or dark, or as it is printed.
    pub(crate) fn emulate(&mut self, width: u32, scheme: &str, media: &str) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.send("Emulation.setDeviceMetricsOverride", &size);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.send("Emulation.setEmulatedMedia", &json!({ "media": media, "features": features }));
    }

    /// Writes a picture of the whole page.
    pub(crate) fn picture(&mut self, to: &Path) {
        let size = self.send("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.send("Page.captureScreenshot", &params);
        std::fs::write(to, base64(picture["data"].as_str().expect("a picture"))).expect("a file");
    }

    /// Writes the page as it is printed on A4.
    pub(crate) fn print(&mut self, to: &Path) {
        let params = json!({ "paperWidth": 8.27, "paperHeight": 11.69, "printBackground": true });
        let paper = self.send("Page.printToPDF", &params);
        std::fs::write(to, base64(paper["data"].as_str().expect("a PDF"))).expect("a file");
    }

    /// Lets downloads go to a folder.
    pub(crate) fn downloads(&mut self, to: &Path) {
        let session = self.session.take();
        let params = json!({ "behavior": "allow", "downloadPath": to });
        self.send("Browser.setDownloadBehavior", &params);
        self.session = session;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The bytes of a text in base 64.
fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes
}
