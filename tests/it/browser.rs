//! The report in a real browser: no console message, no request, figures on the page.

use std::process::Command;

use crate::support::quickstart;

/// Headless Chromium on the report; gives its DOM, what it logged and the addresses it asked for.
fn open() -> (String, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let net_log = folder.path().join("net.json");
    let report = quickstart().report;
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-features=NetworkTimeServiceQuerying",
            "--enable-logging=stderr",
            "--log-level=0",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("--log-net-log={}", net_log.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", report.display()))
        .output()
        .expect("chromium is installed by scripts/test");
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (dom, log, std::fs::read_to_string(net_log).unwrap_or_default())
}

#[test]
fn the_report_opens_without_errors_and_asks_for_nothing() {
    let (dom, log, net) = open();
    assert!(dom.contains("</html>") && dom.contains("baseline"), "{log}");
    let complaints: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(net.contains("constants"), "the browser kept no network log");
    for scheme in ["\"url\":\"http://", "\"url\":\"https://"] {
        // The browser itself may ask its maker for the time and for updates; the page may ask for nothing.
        let own = |line: &&str| ["google.com/", "googleapis.com/", "gvt1.com/"].iter().any(|host| line.contains(host));
        let asked: Vec<&str> = net.lines().filter(|line| line.contains(scheme) && !own(line)).collect();
        assert!(asked.is_empty(), "{asked:?}");
    }
}
