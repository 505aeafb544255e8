//! The report in a real browser: nothing is complained of or asked for, and all that can be clicked works.
//!
//! Pictures for people are written to the folder `pictures` of the target's own temporary folder.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::chrome::Browser;
use crate::support::{kvtoll, quickstart, stderr};

/// A folder below `target` that stays.
fn kept(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn assert_quiet(browser: &mut Browser, what: &str) {
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{what}: {complaints:?}");
}

#[test]
fn the_report_opens_without_errors_and_asks_for_nothing() {
    let report = quickstart().report;
    let mut browser = Browser::start();
    let start = Instant::now();
    browser.open(&report, "");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(browser.eval("document.body.textContent").as_str().unwrap().contains("baseline"));
    assert_eq!(browser.eval("document.documentElement.classList.contains('script')"), true);
    assert_quiet(&mut browser, "quickstart");
}

#[test]
fn pictures_are_written_for_people() {
    let report = quickstart().report;
    let folder = kept("pictures");
    let mut browser = Browser::start();
    for (name, width, scheme, media) in [
        ("light", 1280, "light", "screen"),
        ("dark", 1280, "dark", "screen"),
        ("narrow", 390, "light", "screen"),
        ("print", 800, "light", "print"),
    ] {
        browser.emulate(width, scheme, media);
        browser.open(&report, "");
        browser.picture(&folder.join(format!("{name}.png")));
        // Nothing sticks out at the right side.
        let over = browser.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
        assert!(over.as_f64().unwrap() < 1.0, "{name}: {over}");
        assert_quiet(&mut browser, name);
    }
    browser.print(&folder.join("print.pdf"));
}

/// The texts of a column of the first table of a section.
fn column(browser: &mut Browser, section: &str, at: usize) -> Vec<Value> {
    let cells = browser.eval(&format!(
        "[...document.querySelector('#{section} table').tBodies[0].rows].map((row) => row.cells[{at}].dataset.v ?? \
         row.cells[{at}].textContent)"
    ));
    cells.as_array().unwrap().clone()
}

#[test]
fn tables_sort_and_the_address_remembers() {
    let report = quickstart().report;
    let mut browser = Browser::start();
    browser.open(&report, "");
    let before = column(&mut browser, "cost", 1);
    let click = "document.querySelector('#cost table thead th:nth-child(2) button').click()";
    browser.eval(click);
    let numbers = |cells: &[Value]| -> Vec<f64> {
        cells.iter().filter_map(|cell| cell.as_str().and_then(|text| text.parse().ok())).collect()
    };
    let up = numbers(&column(&mut browser, "cost", 1));
    assert!(up.is_sorted() && up.len() > 3, "{up:?}");
    // What is not disclosed stays below, whichever way.
    browser.eval(click);
    let down = column(&mut browser, "cost", 1);
    assert!(numbers(&down).is_sorted_by(|a, b| a >= b));
    assert_eq!(down.len(), before.len());
    assert_eq!(down.last().unwrap().as_str().unwrap().parse::<f64>().ok(), None);
    let state = "document.querySelector('#cost table thead th:nth-child(2)').getAttribute('aria-sort')";
    assert_eq!(browser.eval(state), "descending");
    let hash = browser.eval("location.hash").as_str().unwrap().to_owned();
    assert!(hash.contains("sort="), "{hash}");
    browser.open(&report, &hash);
    assert_eq!(column(&mut browser, "cost", 1), down);
    assert_quiet(&mut browser, "sorting");
}

#[test]
fn themes_and_scenarios_can_be_chosen() {
    let report = quickstart().report;
    let mut browser = Browser::start();
    browser.emulate(1280, "light", "screen");
    browser.open(&report, "");
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.eval(ground);
    browser.eval("document.querySelector('[data-theme-is=dark]').click()");
    assert_ne!(browser.eval(ground), light);
    browser.eval("document.querySelector('[data-toggle=\"1\"]').click()");
    let shown = "[...document.querySelectorAll('#cost tr[data-s=\"1\"]')].filter((row) => row.offsetParent).length";
    assert_eq!(browser.eval(shown), 0);
    let hash = browser.eval("location.hash").as_str().unwrap().to_owned();
    assert!(hash.contains("theme=dark") && hash.contains("hide=1"), "{hash}");
    browser.open(&report, &hash);
    assert_ne!(browser.eval(ground), light);
    assert_eq!(browser.eval(shown), 0);
    browser.eval("document.querySelector('[data-toggle=\"1\"]').click()");
    assert_ne!(browser.eval(shown), 0);
    // A hash of nonsense is no harm.
    browser.open(&report, "#x;theme=;hide=a,-1;sort=9999.9a,1.1;open=99999;%3Cscript%3E");
    assert_quiet(&mut browser, "nonsense in the address");
}

#[test]
fn printing_opens_what_is_folded() {
    let report = quickstart().report;
    let mut browser = Browser::start();
    browser.open(&report, "");
    let closed = "[...document.querySelectorAll('main details')].filter((one) => !one.open).length";
    assert!(browser.eval(closed).as_u64().unwrap() > 3);
    browser.eval("dispatchEvent(new Event('beforeprint'))");
    assert_eq!(browser.eval(closed), 0);
    browser.eval("dispatchEvent(new Event('afterprint'))");
    assert!(browser.eval(closed).as_u64().unwrap() > 3);
}

#[test]
fn tables_and_figures_can_be_saved() {
    let report = quickstart().report;
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start();
    browser.downloads(folder.path());
    browser.open(&report, "");
    let rows = browser.eval("document.querySelector('#cost table').rows.length").as_u64().unwrap();
    browser.eval("document.querySelector('#cost .tools button[aria-label*=CSV]').click()");
    browser.eval("document.querySelector('#cost .tools button[aria-label*=SVG]').click()");
    browser.eval("document.querySelector('[data-json]').click()");
    let wait = |extension: &str| {
        for _ in 0..100 {
            let found = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path());
            if let Some(path) = found.into_iter().find(|path| path.extension().is_some_and(|found| found == extension))
            {
                let text = std::fs::read_to_string(path).unwrap();
                if !text.is_empty() {
                    return text;
                }
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no file .{extension} was saved")
    };
    let csv = wait("csv");
    assert_eq!(csv.lines().count() as u64, rows);
    assert!(csv.contains("baseline"));
    assert!(wait("svg").starts_with("<svg"));
    let json: Value = serde_json::from_str(&wait("json")).unwrap();
    assert_eq!(json["schema"], "kvtoll.report.v1");
    assert_eq!(json["scenarios"].as_array().unwrap().len(), 8);
    assert_quiet(&mut browser, "downloads");
}

/// axe-core, from the package registry, once; without the registry there is nothing to test with.
fn axe() -> Option<String> {
    let folder = kept("axe");
    let file = folder.join("package/axe.min.js");
    if !file.exists() {
        let done = Command::new("npm").args(["pack", "axe-core@4.10.3"]).current_dir(&folder).output();
        if !done.is_ok_and(|done| done.status.success()) {
            println!("skipped: axe-core cannot be fetched from the package registry");
            return None;
        }
        let unpacked = Command::new("tar").args(["xzf", "axe-core-4.10.3.tgz"]).current_dir(&folder).status();
        assert!(unpacked.is_ok_and(|status| status.success()));
    }
    Some(std::fs::read_to_string(file).unwrap())
}

/// The serious problems that axe-core finds.
fn barriers(browser: &mut Browser, axe: &str) -> Vec<String> {
    browser.eval(&format!("{axe}; 0"));
    let found = browser.eval(
        "axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations.filter((one) => \
         ['serious', 'critical'].includes(one.impact)).map((one) => one.id + ': ' + one.help + ' ' + \
         one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')))",
    );
    found.as_array().unwrap().iter().map(ToString::to_string).collect()
}

#[test]
fn axe_finds_no_serious_barrier() {
    let Some(axe) = axe() else { return };
    let report = quickstart().report;
    let mut browser = Browser::start();
    for scheme in ["light", "dark"] {
        browser.emulate(1280, scheme, "screen");
        browser.open(&report, "");
        let found = barriers(&mut browser, &axe);
        assert!(found.is_empty(), "{scheme}: {found:#?}");
    }
}

/// A report of `requests` requests (or of one that cannot be served) under the scenarios of a file; gives its path.
fn made(folder: &Path, requests: u32, scenarios: &str) -> PathBuf {
    let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let mut trace = String::new();
    if requests == 0 {
        // One that can never fit, so that nothing is served.
        let ids: Vec<String> = (0..4_000_000_u32.div_ceil(512)).map(|id| id.to_string()).collect();
        let ids = ids.join(", ");
        let _ = writeln!(
            trace,
            "{{\"timestamp\": 0, \"input_length\": 4000000, \"output_length\": 5, \"hash_ids\": [{ids}]}}"
        );
    }
    for request in 0..requests {
        let ids = format!("{}, {}", request % 3, 100 + request);
        let _ = writeln!(
            trace,
            "{{\"timestamp\": {}, \"input_length\": 900, \"output_length\": {}, \"hash_ids\": [{ids}]}}",
            request * 700,
            5 + request % 7
        );
    }
    std::fs::write(at("trace.jsonl"), trace).unwrap();
    std::fs::write(at("scenarios.toml"), scenarios).unwrap();
    let report = at("report.html");
    let output = kvtoll(&[
        "run",
        &at("trace.jsonl"),
        "--format",
        "mooncake",
        "--into",
        &at("store"),
        "--output",
        &report,
        "--scenarios",
        &at("scenarios.toml"),
    ]);
    assert!(Path::new(&report).exists(), "{}", stderr(&output));
    PathBuf::from(report)
}

/// A scenario of an 8B model.
fn scenario(name: &str, policy: &str, machine: &str) -> String {
    let name = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "[[scenario]]\nname = \"{name}\"\nmodel = \"llama-3.1-8b\"\npolicy = \"{policy}\"\nmachine = \"{machine}\"\n"
    )
}

#[test]
fn odd_input_gives_a_sensible_page() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let base = scenario("baseline", "full", "h100");
    let long = format!("{} {}", "a very long name".repeat(40), "x".repeat(300));
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" onload=\"x' & <!-- =1+1";
    let pages = [
        ("nothing served", made(&at("none"), 0, &base)),
        ("one request, one scenario", made(&at("one"), 1, &base)),
        ("failed", made(&at("failed"), 5, &(base.clone() + &scenario("no link", "full", "vera-rubin-lpx")))),
        ("long", made(&at("long"), 5, &(base.clone() + &scenario(&long, "fp8", "h100")))),
        (
            "right to left",
            made(&at("rtl"), 5, &(base.clone() + &scenario("ذاكرة \u{202e}evil\u{202c} עברית", "fp8", "h200"))),
        ),
        ("hostile", made(&at("hostile"), 5, &(base.clone() + &scenario(hostile, "fp8", "h200")))),
    ];
    let mut browser = Browser::start();
    let axe = axe();
    for (name, page) in pages {
        for width in [1280, 390] {
            browser.emulate(width, "light", "screen");
            browser.open(&page, "");
            assert_quiet(&mut browser, name);
            let over = browser.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert!(over.as_f64().unwrap() < 1.0, "{name} at {width}: {over}");
        }
        assert_eq!(browser.eval("document.querySelectorAll('script').length"), 2, "{name}");
        assert_eq!(browser.eval("document.querySelectorAll('img').length"), 0, "{name}");
        let empty = browser.eval(
            "[...document.querySelectorAll('main section')].filter((one) => one.textContent.trim().length < 20).length",
        );
        assert_eq!(empty, 0, "{name}");
        if let Some(axe) = &axe {
            let found = barriers(&mut browser, axe);
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
        browser.picture(&kept("pictures").join(format!("{}.png", name.replace(' ', "-"))));
    }
}

#[test]
fn many_scenarios_stay_small_and_quick() {
    let folder = tempfile::tempdir().unwrap();
    let mut scenarios = String::new();
    let many = |count: usize| -> String {
        let formats = ["full", "fp8", "int8", "turboquant(bits=4)", "nvfp4"];
        let machines = ["h100", "h200", "b200", "gb200", "gb300"];
        let each = (0..count).map(|at| {
            let share = 20 + at / 25;
            let selection = if at < 25 { String::new() } else { format!("snapkv(budget={share}%)+") };
            let format = if at < 25 { formats[at % 5].to_owned() } else { formats[at % 5].replace("full", "bf16") };
            scenario(&format!("scenario {at}"), &format!("{selection}{format}"), machines[at / 5 % 5])
        });
        each.collect()
    };
    let mut pages = Vec::new();
    for (count, most) in [(50, 2_000_000), (200, 6_000_000)] {
        scenarios.clear();
        scenarios.push_str(&many(count));
        let place = folder.path().join(count.to_string());
        std::fs::create_dir_all(&place).unwrap();
        let page = made(&place, 12, &scenarios);
        let bytes = std::fs::metadata(&page).unwrap().len();
        println!("{count} scenarios: {bytes} bytes");
        assert!(bytes < most, "{count} scenarios take {bytes} bytes");
        pages.push((count, page));
    }
    // A browser lives for ten minutes, and making the pages may take longer on a busy machine.
    let mut browser = Browser::start();
    for (count, page) in pages {
        browser.emulate(1280, "light", "screen");
        let start = Instant::now();
        browser.open(&page, "");
        println!("{count} scenarios: loaded in {:?}", start.elapsed());
        assert_quiet(&mut browser, "many");
        browser.picture(&kept("pictures").join(format!("{count}-scenarios.png")));
    }
}
