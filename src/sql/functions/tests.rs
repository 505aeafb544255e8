use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};

use super::*;
use crate::sql::{fixture, function_names, query};

fn ask(sql: &str) -> Result<RecordBatch> {
    let batches = query(&fixture::empty(), sql, &[])?;
    Ok(concat_batches(&batches[0].schema(), &batches).unwrap())
}

fn bytes(sql: &str) -> Option<u64> {
    let found = ask(sql).unwrap();
    let column = found.column(0).as_primitive::<UInt64Type>();
    column.is_valid(0).then(|| column.value(0))
}

#[test]
fn every_function_is_registered_under_its_name() {
    let known = function_names(&fixture::empty());
    for function in FUNCTIONS.iter().filter(|function| function.name != "replay") {
        assert!(known.iter().any(|name| name == function.name), "{}", function.name);
        assert!(function.usage.starts_with(&format!("{}(", function.name)) && function.doc.ends_with('.'));
    }
    let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
    assert!(names.is_sorted(), "{names:?}");
    assert!(!known.iter().any(|name| name == "replay"), "nobody can replay here");
}

#[test]
fn kv_bytes_follow_the_published_shapes() {
    // 80 layers of 8 KV heads of 128, K and V, two bytes each.
    assert_eq!(bytes("SELECT kv_bytes('llama-3.1-70b', 'full', 1000)"), Some(80 * 8 * 128 * 2 * 2 * 1000));
    assert_eq!(bytes("SELECT kv_bytes('llama-3.1-70b', 'window(100)', 1000)"), Some(80 * 8 * 128 * 2 * 2 * 100));
    assert_eq!(bytes("SELECT kv_bytes('llama-3.1-70b', 'full', 0)"), Some(0));
    assert_eq!(bytes("SELECT kv_bytes('llama-3.1-70b', NULL, 1000)"), None);
    let sums = "SELECT sum(kv_bytes('llama-3.1-70b', 'full', n)) FROM (VALUES (1), (2), (3)) AS t (n)";
    assert_eq!(bytes(sums), Some(327_680 * 6));
}

#[test]
fn an_error_of_a_function_keeps_its_way_out() {
    let error = ask("SELECT kv_bytes('llama-3.1-7b', 'full', 1)").unwrap_err();
    assert_eq!(error.to_string(), "unknown model `llama-3.1-7b`");
    assert!(error.advice().is_some_and(|advice| advice.starts_with("did you mean `llama-3")), "{error:?}");
    let error = ask("SELECT kv_bytes('llama-3.1-8b', 'full', -1)").unwrap_err();
    assert_eq!(error.to_string(), "expected `tokens` from 0 to 4294967295, found -1");
    assert!(ask("SELECT step_cost('llama-3.1-8b', 'h201', 'full', 1, 1)").unwrap_err().advice().is_some());
    let error = ask("SELECT * FROM unnest_mass('a')").unwrap_err();
    assert!(error.to_string().contains("expects `layer` as a whole number"), "{error}");
}

#[test]
fn the_booths_of_a_step_are_its_time() {
    let sql = "
        SELECT c['step_ns'], c['kv_read_ns'] + c['weight_read_ns'] + c['compute_ns'] + c['collective_ns'] + c['policy_ns']
          + c['tier_ns'] + c['link_ns'] + c['overhead_ns']
        FROM (SELECT step_cost('llama-3.1-70b', 'h200', p, b, 8000) AS c
              FROM (VALUES ('full', 1), ('full', 64), ('snapkv(budget=25%)+fp8', 64), (NULL, 1)) AS t (p, b))";
    let found = ask(sql).unwrap();
    let [total, sum] = [0, 1].map(|at| found.column(at).as_primitive::<Int64Type>().clone());
    for row in 0..3 {
        // Each booth is rounded to whole nanoseconds.
        assert!((total.value(row) - sum.value(row)).abs() <= 8, "row {row}");
    }
    assert!(total.is_null(3));
    assert!(total.value(1) > total.value(0) && total.value(2) < total.value(1));
}

#[test]
fn quantiles_over_stretches_count_every_token() {
    // 10, 20, 30 felt by one request and 100 by two: six tokens less one, the median is the third.
    let sql = "
        SELECT stretch_quantile(f, l, n, w, 0.5), stretch_quantile(f, l, n, w, 0.6), stretch_quantile(f, l, n, w, 1.0)
        FROM (VALUES (10, 30, 3, 1), (100, 100, 1, 2), (NULL, 7, 1, 1), (5, 5, 0, 1)) AS t (f, l, n, w)";
    let found = ask(sql).unwrap();
    let values: Vec<i64> = (0..3).map(|at| found.column(at).as_primitive::<Int64Type>().value(0)).collect();
    assert_eq!(values, [30, 30, 100]);
    let none = ask("SELECT stretch_quantile(first_ns, last_ns, steps, decode_requests, 0.5) FROM step_costs").unwrap();
    assert!(none.column(0).is_null(0));
    let error = ask("SELECT stretch_quantile(1, 1, 1, 1, 1.5)").unwrap_err();
    assert!(error.to_string().contains("expects a ratio from 0 to 1, found 1.5"), "{error}");
}

#[test]
fn quantiles_of_values_are_by_nearest_rank() {
    // Of four values the first two are half; of ten, 99% needs the tenth.
    let sql = "
        SELECT quantile_disc(v, 0.5), quantile_disc(v, 0.51), quantile_disc(v, 0), quantile_disc(v, 1),
          quantile_disc(CAST(v AS DOUBLE) / 2, 0.75), quantile_disc(v, 0.5) FILTER (WHERE v > 2),
          quantile_disc(v, 0.5) FILTER (WHERE v > 9)
        FROM (VALUES (4), (1), (NULL), (3), (2)) AS t (v)";
    let found = ask(sql).unwrap();
    let whole = |at: usize| found.column(at).as_primitive::<Int64Type>().value(0);
    assert_eq!([0, 1, 2, 3, 5].map(whole), [2, 3, 1, 4, 3]);
    assert!((found.column(4).as_primitive::<Float64Type>().value(0) - 1.5).abs() < 1e-12);
    assert!(found.column(6).is_null(0));
    let grouped = ask("SELECT v % 2 AS odd, quantile_disc(v, 0.99) AS q FROM (SELECT unnest(range(1, 11)) AS v) GROUP BY odd ORDER BY odd").unwrap();
    assert_eq!(grouped.column(1).as_primitive::<Int64Type>().values().to_vec(), [10, 9]);
    for (sql, said) in [
        ("SELECT quantile_disc(1, 1.5)", "`quantile_disc` expects a ratio from 0 to 1, found 1.5"),
        ("SELECT quantile_disc('a', 0.5)", "`quantile_disc` expects numbers, found"),
    ] {
        let error = ask(sql).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}
