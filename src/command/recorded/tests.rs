//! Reading in pieces changes nothing but the memory that it takes.

use std::path::PathBuf;

use arrow::compute::{concat_batches, sort_to_indices, take_record_batch};
use engine::policy::attention_error;
use engine::schema::Table;

use super::*;

/// The stacks that are tried: each way to choose, a mix of formats, and layers that are merged with their neighbours.
const STACKS: [&str; 9] = [
    "full",
    "window(size=600)",
    "h2o(budget=20%)",
    "tova(budget=20%)",
    "snapkv(budget=20%)+kivi",
    "adakv(budget=20%)",
    "kvzip(budget=20%)",
    "quest(budget=512,page=16,by=mass)",
    "minicache(start=0.8)",
];

fn ingested(trace: &str) -> (TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open_or_create(&folder.path().join("store")).unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("traces").join(trace);
    ingest(&mut store, &[path.to_string_lossy().into_owned()], &Options::standard(), &|_| {}).unwrap();
    (folder, store)
}

/// What is found in pieces of so many bytes on so many threads; errors as text.
fn tried(store: &Store, stacks: &[Stack], bytes: u64, threads: usize) -> Vec<std::result::Result<RecordBatch, String>> {
    let mut recorded = open(store, needs(stacks)).unwrap().unwrap();
    recorded.piece_bytes = bytes;
    let pairs: Vec<(&Stack, usize)> = stacks.iter().map(|stack| (stack, 0)).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let found = pool.install(|| try_all(&recorded, &pairs, Way::BySteps(7))).unwrap();
    found.into_iter().map(|found| found.rows.map_err(|error| error.to_string())).collect()
}

/// The same with everything in memory at once.
fn at_once(store: &Store, stacks: &[Stack]) -> Vec<std::result::Result<RecordBatch, String>> {
    let read = |table: &'static Table| store.read(table).unwrap();
    let heads = read(&RECORDINGS);
    let all = engine::recording::recordings(&engine::recording::Tables {
        recordings: &concat_batches(&heads[0].schema(), &heads).unwrap(),
        requests: &read(&REQUESTS),
        attention: &read(&ATTENTION),
        prefill_scores: &read(&PREFILL_SCORES),
        kv_stats: &read(&KV_STATS),
        queries: &read(&QUERIES),
        kv_vectors: &read(&KV_VECTORS),
    });
    let all = all.unwrap();
    stacks.iter().map(|stack| attention_error(stack, &all[0], 7).map_err(|error| error.to_string())).collect()
}

#[test]
fn pieces_and_threads_change_no_byte() {
    let stacks: Vec<Stack> = STACKS.iter().map(|stack| Stack::parse(stack).unwrap()).collect();
    for trace in ["recording-token", "recording-block"] {
        let (_folder, store) = ingested(trace);
        let expected = at_once(&store, &stacks);
        assert!(expected.iter().filter(|found| found.is_ok()).count() >= 6, "{expected:?}");
        // A layer at a time, some layers, and everything.
        for (bytes, threads) in [(1, 3), (3 << 20, 1), (PIECE_BYTES, 2)] {
            assert_eq!(tried(&store, &stacks, bytes, threads), expected, "{trace} in pieces of {bytes} bytes");
        }
    }
}

#[test]
fn pieces_hold_whole_requests_or_layers_of_one() {
    let (_folder, store) = ingested("recording-token");
    let recorded = open(&store, Needs::default()).unwrap().unwrap();
    let layers = recorded.heads[0].layers as usize;
    let requests = recorded.heads[0].requests.len();
    let [alone, whole] = [1, u64::MAX].map(|bytes| recorded.index.pieces(bytes));
    assert_eq!(alone.len(), layers * requests);
    assert!(alone.iter().all(|piece| piece.keys.len() == 1 && piece.part_of.is_some()));
    assert_eq!((whole.len(), whole[0].keys.len(), whole[0].part_of), (1, layers * requests, None));
    let some = recorded.index.pieces(3 << 20);
    assert!(some.len() > 1 && some.len() < alone.len(), "{}", some.len());
    let keys: Vec<Key> = some.iter().flat_map(|piece| piece.keys.iter().copied()).collect();
    assert_eq!(keys, whole[0].keys.iter().copied().collect::<Vec<_>>(), "each layer once and in order");
}

/// Rows may stand in any order: those of a recorder that writes one head after the other give the same.
#[test]
fn the_order_of_rows_does_not_matter() {
    let (folder, store) = ingested("recording-token");
    let stacks = ["tova(budget=20%)", "snapkv(budget=20%)"].map(|stack| Stack::parse(stack).unwrap());
    let mut other = Store::open_or_create(&folder.path().join("other")).unwrap();
    let mut transaction = other.begin();
    for table in [&RECORDINGS, &REQUESTS, &PREFILL_SCORES, &KV_STATS] {
        transaction.append(table, &store.read(table).unwrap()).unwrap();
    }
    let batches = store.read(&ATTENTION).unwrap();
    let all = concat_batches(&batches[0].schema(), &batches).unwrap();
    let by = sort_to_indices(all.column_by_name("layer").unwrap(), None, None).unwrap();
    transaction.append(&ATTENTION, &[take_record_batch(&all, &by).unwrap()]).unwrap();
    transaction.commit().unwrap();
    let expected = tried(&store, &stacks, PIECE_BYTES, 2);
    assert!(expected.iter().all(std::result::Result::is_ok));
    for bytes in [1, 3 << 20] {
        assert_eq!(tried(&other, &stacks, bytes, 2), expected);
    }
}

/// A stand-in needs vectors, which recorded masses lack; what the selection keeps is known all the same.
#[test]
fn what_cannot_be_said_of_the_error_hides_nothing_else() {
    let (_folder, store) = ingested("recording-token");
    let stacks: Vec<Stack> =
        ["adakv(budget=25%)+compensate", "adakv(budget=25%)"].map(|stack| Stack::parse(stack).unwrap()).into();
    let recorded = open(&store, needs(&stacks)).unwrap().unwrap();
    let pairs: Vec<(&Stack, usize)> = stacks.iter().map(|stack| (stack, 0)).collect();
    let found = try_all(&recorded, &pairs, Way::BySteps(7)).unwrap();
    let [without, with] = &found[..] else { panic!("{found:?}") };
    assert!(without.rows.is_err(), "{:?}", without.rows);
    assert!(matches!((&without.measured, &with.measured), (Ok(Some(_)), Ok(Some(_)))), "{found:?}");
    let pages = |found: &Found| found.organisation.clone().unwrap().unwrap()[0].num_rows();
    assert_eq!(pages(without), pages(with));
    assert!(pages(with) > 0);
}
