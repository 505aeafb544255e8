//! Inputs that would fill the memory are refused with a sentence, and long before they do.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::root;

const GIB: u64 = 1 << 30;

/// What became of a run.
struct Ended {
    code: Option<i32>,
    message: String,
    /// The most memory that was seen, in bytes.
    peak: u64,
}

/// Runs `kvtoll ingest INPUT`, gives `feed` its standard input, and watches its memory.
fn ingest(input: &str, feed: impl FnOnce(&mut dyn Write)) -> Ended {
    let store = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvtoll"))
        .args(["ingest", input, "--into"])
        .arg(store.path().join("store"))
        .current_dir(root())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let watcher = watch(child.id());
    feed(&mut stdin);
    drop(stdin);
    let (code, message) = end(child);
    assert_eq!(store.path().join("store/requests").exists(), code == Some(0));
    Ended { code, message, peak: watcher.join().unwrap() }
}

fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Looks at the peak of a process until it is gone.
pub(crate) fn watch(id: u32) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut peak = 0;
        while let Some(now) = peak_of(id) {
            peak = peak.max(now);
            std::thread::sleep(Duration::from_millis(2));
        }
        peak
    })
}

/// The peak so far; none once the process has no memory any more.
fn peak_of(id: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[test]
fn a_line_of_ten_gigabytes_is_refused_in_less_than_one() {
    let chunk = vec![b'7'; 1 << 20];
    let mut sent: u64 = 0;
    let refused = ingest("-", |stdin| {
        // As after `{"timestamp": `, so that an adapter takes the file.
        let start = "{\"timestamp\": 0, \"input_length\": 7, \"output_length\": 1, \"hash_ids\": [";
        stdin.write_all(start.as_bytes()).unwrap();
        while sent < 10 * GIB && stdin.write_all(&chunk).is_ok() {
            sent += chunk.len() as u64;
        }
    });
    assert_eq!(refused.code, Some(3), "{}", refused.message);
    let expected = "expected lines of at most 134217728 bytes in `-`, found a longer one: line 1";
    assert!(refused.message.contains(expected), "{}", refused.message);
    assert!(refused.peak > 100 << 20 && refused.peak < GIB, "{} bytes", refused.peak);
    assert!(sent < GIB, "{sent} bytes were read before the line was refused");
}

#[test]
fn a_line_of_a_hundred_megabytes_is_read_in_less_than_a_gibibyte() {
    let ids = 8_000_000_u64;
    let read = ingest("-", |stdin| {
        let tokens = ids * 512;
        write!(stdin, "{{\"timestamp\": 0, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": [").unwrap();
        for thousand in 0..ids / 1000 {
            let from = 100_000_000_000 + 1000 * thousand;
            let end = if thousand + 1 < ids / 1000 { "," } else { "]}\n" };
            let chunk: Vec<String> = (from..from + 1000).map(|id| id.to_string()).collect();
            stdin.write_all((chunk.join(",") + end).as_bytes()).unwrap();
        }
    });
    assert_eq!(read.code, Some(0), "{}", read.message);
    assert!(read.message.contains("mooncake, 1 of 1 rows kept"), "{}", read.message);
    assert!(read.peak > 100_000_000 && read.peak < GIB, "{} bytes", read.peak);
}

#[test]
fn bombs_of_every_kind_are_refused_in_less_than_a_gibibyte() {
    let ids = vec!["123456789"; 8000].join(",");
    let row = format!("{{\"timestamp\": 0, \"input_length\": 4096000, \"output_length\": 1, \"hash_ids\": [{ids}]}}\n");
    let folder = tempfile::tempdir().unwrap();
    let rows = row.repeat(10).into_bytes();
    let write = |name: &str, encoder: &mut dyn FnMut(&[u8])| {
        for _ in 0..((80 << 20) / rows.len()) {
            encoder(&rows);
        }
        folder.path().join(name)
    };
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let zstd_at = write("bomb.zst", &mut |bytes| zstd.write_all(bytes).unwrap());
    fs::write(&zstd_at, zstd.finish().unwrap()).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 0);
    let xz_at = write("bomb.xz", &mut |bytes| xz.write_all(bytes).unwrap());
    fs::write(&xz_at, xz.finish().unwrap()).unwrap();
    for path in [zstd_at, xz_at] {
        let refused = ingest(path.to_str().unwrap(), |_| ());
        assert_eq!(refused.code, Some(3), "{}", refused.message);
        assert!(refused.message.contains("expected at most 1000 times the compressed size"), "{}", refused.message);
        assert!(refused.peak < GIB, "{} bytes", refused.peak);
    }
}
