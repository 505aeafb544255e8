//! Ingest of real traces into a store: bytes of the (decompressed) file per second, Parquet written and committed.

use std::path::{Path, PathBuf};

use divan::counter::BytesCount;
use kvtoll::ingest::{Options, ingest};
use kvtoll::store::Store;

fn main() {
    divan::main();
}

/// The Mooncake conversation trace as plain JSONL, repeated; the second and further copies arrive later.
fn mooncake(copies: usize, folder: &Path) -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/mooncake/conversation_trace.jsonl.zst");
    let text = zstd::decode_all(std::fs::File::open(packed).expect("the sample")).expect("zstd");
    let path = folder.join("trace.jsonl");
    std::fs::write(&path, text.repeat(copies)).expect("a file");
    path
}

#[divan::bench(args = [1, 100], sample_count = 10, sample_size = 1)]
fn mooncake_jsonl(bencher: divan::Bencher<'_, '_>, copies: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = mooncake(copies, folder.path());
    let bytes = std::fs::metadata(&path).expect("a file").len();
    bencher.counter(BytesCount::new(bytes)).with_inputs(|| tempfile::tempdir().expect("a folder")).bench_values(
        |into| {
            let mut store = Store::open_or_create(&into.path().join("store")).expect("a store");
            let paths = [path.to_string_lossy().into_owned()];
            ingest(&mut store, &paths, &Options::standard(), &|_| {}).expect("an ingest");
            into
        },
    );
}
