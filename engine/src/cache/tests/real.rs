//! Real traces of the repository as plain rows, for tests and the benchmark. The engine itself reads no files.

const MOONCAKE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/mooncake/conversation_trace.jsonl.zst"));

const WEKA: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/weka/v1_trace_0208.json"));

/// A request of a trace.
pub(crate) struct Row {
    /// Arrival, ns.
    pub(crate) time_ns: i64,
    /// Tokens of the prompt.
    pub(crate) prompt: u32,
    /// Hashes of its blocks.
    pub(crate) hashes: Vec<u64>,
}

/// What stands after a key, up to one of these characters.
fn after<'a>(text: &'a str, key: &str, ends: &[char]) -> &'a str {
    let rest = text.split_once(key).expect("a key").1;
    rest.split(ends).next().expect("a value").trim()
}

fn ids(text: &str) -> Vec<u64> {
    text.split(',').filter(|id| !id.trim().is_empty()).map(|id| id.trim().parse().expect("an id")).collect()
}

/// The Mooncake conversation trace: 12,031 requests, 288,500 blocks of 512 tokens.
pub(crate) fn mooncake() -> Vec<Row> {
    let bytes = zstd::decode_all(MOONCAKE).expect("zstd");
    let text = String::from_utf8(bytes).expect("text");
    let row = |line: &str| Row {
        time_ns: after(line, "\"timestamp\":", &[',']).parse::<i64>().expect("a time") * 1_000_000,
        prompt: after(line, "\"input_length\":", &[',']).parse().expect("a length"),
        hashes: ids(after(line, "\"hash_ids\": [", &[']'])),
    };
    text.lines().map(row).collect()
}

/// A coding agent's session: every request of a Weka trace in the order of the file, blocks of 64 tokens. The clock is
/// left out, since that of a sub-agent starts anew.
pub(crate) fn weka() -> Vec<Row> {
    let text = String::from_utf8(WEKA.to_vec()).expect("text");
    let rows = text.split("\"type\":\"").skip(1).filter(|part| part.contains("\"hash_ids\":["));
    rows.enumerate()
        .map(|(at, part)| Row {
            time_ns: at as i64 * 1_000_000_000,
            prompt: after(part, "\"in\":", &[',', '}']).parse().expect("a length"),
            hashes: ids(after(part, "\"hash_ids\":[", &[']'])),
        })
        .collect()
}
