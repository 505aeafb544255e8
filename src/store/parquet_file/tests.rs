use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, ListArray, StringArray, UInt64Array};
use arrow::datatypes::{Field, UInt64Type};

use super::*;

/// Columns of every kind that a store has: numbers, texts by a dictionary, truths, unknown values and lists of ids.
fn rows(count: u64) -> RecordBatch {
    let ids = ListArray::from_iter_primitive::<UInt64Type, _, _>((0..count).map(|at| {
        let ids: Vec<Option<u64>> = (0..at % 7).map(|id| Some(at * 3 + id)).collect();
        Some(ids)
    }));
    let item = Arc::new(Field::new("element", DataType::UInt64, false));
    let (_, offsets, values, nulls) = ids.into_parts();
    let columns: [(&str, ArrayRef); 5] = [
        ("number", Arc::new(UInt64Array::from_iter_values((0..count).map(|at| at * at)))),
        ("text", Arc::new((0..count).map(|at| Some(format!("t{}", at % 5))).collect::<StringArray>())),
        ("is_odd", Arc::new((0..count).map(|at| Some(at % 2 == 1)).collect::<BooleanArray>())),
        ("unknown", Arc::new((0..count).map(|at| (at % 3 > 0).then_some(at as i64)).collect::<Int64Array>())),
        ("ids", Arc::new(ListArray::new(item, offsets, values, nulls))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn written(path: &Path, batches: &[RecordBatch]) {
    let mut part = Part::create(path.to_owned(), batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| part.append(batch).unwrap());
    part.finish().unwrap();
}

fn read(path: &Path) -> Result<Vec<RecordBatch>> {
    batches_of(path)?.collect()
}

#[test]
fn what_is_written_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.parquet");
    for count in [1_u64, 100, 50_000] {
        let batch = rows(count);
        written(&path, &[batch.clone(), batch.clone()]);
        let found = arrow::compute::concat_batches(&batch.schema(), &read(&path).unwrap()).unwrap();
        assert_eq!(found, arrow::compute::concat_batches(&batch.schema(), [&batch, &batch]).unwrap());
        std::fs::remove_file(&path).unwrap();
    }
}

/// Each bit of all pages in turn: what is read then is an error that names the column, and never other rows.
#[test]
fn a_flipped_bit_in_a_page_is_an_error_of_its_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.parquet");
    written(&path, &[rows(60)]);
    let whole = std::fs::read(&path).unwrap();
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
    let group = builder.metadata().row_group(0);
    let mut flips = 0;
    for column in group.columns() {
        let name = column.column_path().parts()[0].clone();
        let (start, length) = column.byte_range();
        for at in start as usize..(start + length) as usize {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            // A header is not in the checksum: what is read from it differs, or nothing does.
            match read(&path) {
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        said.contains("part.parquet") && said.contains(&format!("column `{name}`")),
                        "{at}: {said}"
                    );
                    flips += 1;
                }
                Ok(found) => assert_eq!(found, [rows(60)], "byte {at} of column `{name}`"),
            }
        }
    }
    assert!(flips > 400, "{flips}");
}
