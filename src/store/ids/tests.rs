use std::sync::Arc;

use arrow::array::{Array, ListArray, RecordBatch};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::concat;
use arrow::datatypes::{Field, Schema};
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector};
use parquet::basic::ZstdLevel;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use proptest::prelude::*;

use super::*;

const CODEC: fn() -> Compression = || Compression::ZSTD(ZstdLevel::try_new(1).unwrap());

fn lists(rows: &[Option<Vec<u64>>], is_nullable: bool) -> ListArray {
    let values = rows.iter().flatten().flatten().copied().collect::<arrow::array::UInt64Array>();
    let lengths = rows.iter().map(|row| row.as_ref().map_or(0, Vec::len));
    let nulls = is_nullable.then(|| NullBuffer::from(rows.iter().map(Option::is_some).collect::<Vec<_>>()));
    let item = Arc::new(Field::new("element", DataType::UInt64, false));
    ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(values), nulls)
}

/// A file of one such column, written in slices.
fn written(lists: &ListArray, is_nullable: bool, slice: usize) -> Bytes {
    let field = Field::new("ids", lists.data_type().clone(), is_nullable);
    assert!(fits(&field));
    let schema = ArrowSchemaConverter::new().convert(&Schema::new(vec![field])).unwrap();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(Vec::new(), schema.root_schema_ptr(), properties).unwrap();
    let mut ids = Ids::new(schema.column(0), CODEC(), 1).unwrap();
    for from in (0..lists.len()).step_by(slice) {
        ids.append(&lists.slice(from, slice.min(lists.len() - from))).unwrap();
    }
    let (bytes, close) = ids.close().unwrap();
    let mut group = file.next_row_group().unwrap();
    group.append_column(&bytes, close).unwrap();
    group.close().unwrap();
    file.into_inner().unwrap().into()
}

/// With the index of pages, by which rows are skipped.
fn reader(file: Bytes) -> ParquetRecordBatchReaderBuilder<Bytes> {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).unwrap()
}

fn read(file: Bytes, selection: Option<RowSelection>) -> ListArray {
    let mut builder = reader(file);
    if let Some(selection) = selection {
        builder = builder.with_row_selection(selection);
    }
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    let arrays: Vec<&dyn Array> = batches.iter().map(|batch| &**batch.column(0)).collect();
    concat(&arrays).unwrap().as_list::<i32>().clone()
}

fn rows_of(lists: &ListArray) -> Vec<Option<Vec<u64>>> {
    let row = |row: Option<arrow::array::ArrayRef>| row.map(|ids| ids.as_primitive::<UInt64Type>().values().to_vec());
    lists.iter().map(row).collect()
}

/// Ids as traces have them: runs, jumps, and anything.
fn row() -> impl Strategy<Value = Vec<u64>> {
    let run = (any::<u32>(), 0_u64..300).prop_map(|(from, count)| (u64::from(from)..u64::from(from) + count).collect());
    prop_oneof![
        3 => run,
        2 => prop::collection::vec(0_u64..1000, 0..20),
        1 => prop::collection::vec(any::<u64>(), 0..300),
        1 => Just(Vec::new()),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec(prop::option::weighted(0.9, row()), 1..60), slice in 1_usize..70,
    ) {
        prop_assert_eq!(&rows_of(&read(written(&lists(&rows, true), true, slice), None)), &rows);
        let full: Vec<Option<Vec<u64>>> = rows.into_iter().map(|row| Some(row.unwrap_or_default())).collect();
        prop_assert_eq!(&rows_of(&read(written(&lists(&full, false), false, slice), None)), &full);
    }

    /// Levels are those of a plain loop, whichever form is shorter.
    #[test]
    fn levels_are_short(runs in prop::collection::vec((0_u8..3, 1_u32..40), 1..60)) {
        let mut levels = Runs::default();
        runs.iter().for_each(|(level, count)| levels.push(*level, *count));
        let mut out = Vec::new();
        levels.encode(2, &mut out);
        let count: u32 = runs.iter().map(|(_, count)| count).sum();
        prop_assert_eq!(levels.count(), count);
        prop_assert_eq!(u32::from_le_bytes(out[..4].try_into().unwrap()) as usize, out.len() - 4);
        prop_assert!(out.len() <= 4 + 2 + 2 * (count as usize).div_ceil(8));
    }
}

/// A page ends with the row that brings it so many ids, however long that row is.
#[test]
fn long_lists_end_their_pages() {
    let long = PAGE_IDS as u64 * 3 / 2;
    let counts = [1, long, 5, 0, long, long / 3, long / 3, long / 3, 2];
    let rows: Vec<Option<Vec<u64>>> = counts.iter().map(|count| Some((0..*count).rev().collect())).collect();
    let file = written(&lists(&rows, false), false, 4);
    let index = reader(file.clone()).metadata().offset_index().unwrap()[0][0].clone();
    let first_rows: Vec<i64> = index.page_locations.iter().map(|page| page.first_row_index).collect();
    assert_eq!(first_rows, [0, 2, 5, 7]);
    assert_eq!(rows_of(&read(file, None)), rows);
}

/// Pages end with rows, and rows can be taken from the middle by the index of pages.
#[test]
fn several_pages_and_a_selection() {
    let rows: Vec<Option<Vec<u64>>> =
        (0..50_000_u64).map(|at| (at % 7 != 3).then(|| (at * 3..at * 3 + at % 11).collect())).collect();
    let file = written(&lists(&rows, true), true, 1777);
    let index = reader(file.clone()).metadata().offset_index().unwrap()[0][0].clone();
    let first_rows: Vec<i64> = index.page_locations.iter().map(|page| page.first_row_index).collect();
    assert_eq!(first_rows, [0, 20_000, 40_000]);
    assert_eq!(rows_of(&read(file.clone(), None)), rows);
    let selection = vec![RowSelector::skip(39_990), RowSelector::select(20), RowSelector::skip(9990)];
    assert_eq!(rows_of(&read(file, Some(selection.into()))), rows[39_990..40_010]);
}

#[test]
fn other_lists_are_left_to_the_general_writer() {
    let list = |kind: DataType, is_nullable: bool| {
        Field::new("x", DataType::List(Arc::new(Field::new("element", kind, is_nullable))), true)
    };
    assert!(fits(&list(DataType::UInt64, false)));
    assert!(!fits(&list(DataType::UInt64, true)));
    assert!(!fits(&list(DataType::UInt32, false)));
    assert!(!fits(&Field::new("x", DataType::UInt64, true)));
}
