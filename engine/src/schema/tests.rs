use std::collections::BTreeSet;

use super::*;

#[test]
fn names_are_unique_and_every_column_is_documented() {
    let names: BTreeSet<&str> = ALL.iter().map(|table| table.name).collect();
    assert_eq!(names.len(), ALL.len());
    for table in ALL {
        let columns: BTreeSet<&str> = table.columns.iter().map(|column| column.name).collect();
        assert_eq!(columns.len(), table.columns.len(), "{}", table.name);
        for column in table.columns {
            assert!(column.doc.ends_with('.'), "{}.{}", table.name, column.name);
        }
    }
}

#[test]
fn the_unit_in_a_name_is_the_unit_of_the_column() {
    let suffixes =
        [("_ns", "ns"), ("_bytes", "bytes"), ("_ratio", "ratio"), ("_usd", "USD"), ("_j", "J"), ("_flops", "flops")];
    for table in ALL {
        for column in table.columns {
            for (suffix, unit) in suffixes {
                if column.name.ends_with(suffix) {
                    assert_eq!(column.unit, unit, "{}.{}", table.name, column.name);
                }
            }
            // The mean time of a measured operation is a fraction of nanoseconds, and no instant.
            let is_mean = table.name == "op_timings" && column.name.starts_with("latency");
            let is_whole = column.kind == Type::I64 || is_mean;
            assert!(!column.name.ends_with("_ns") || is_whole, "{}.{}", table.name, column.name);
        }
    }
}

#[test]
fn an_unknown_value_is_refused_where_a_column_is_always_known() {
    let row = vec![Cell::Null, Cell::from("x"), Cell::from(1.0), Cell::from("assumed")];
    assert!(batch_of_rows(&result::METRICS, &[row]).is_ok());
    let row = vec![Cell::Null, Cell::Null, Cell::from(1.0), Cell::from("assumed")];
    let error = batch_of_rows(&result::METRICS, &[row]).unwrap_err();
    assert_eq!(error.to_string(), "`metrics.metric` cannot hold Null");
}
