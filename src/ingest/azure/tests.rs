use proptest::prelude::*;

use super::*;

#[test]
fn cells_are_found_with_and_without_quotes() {
    assert_eq!(cells(b"a,b,c"), Ok(vec![0, 2, 4]));
    assert_eq!(cells(b""), Ok(vec![0]));
    assert_eq!(cells(b",,"), Ok(vec![0, 1, 2]));
    assert_eq!(cells(b"\"a,b\",\"c\"\"d\","), Ok(vec![0, 6, 13]));
    assert_eq!(cells(b"\"a\"b,c").unwrap_err().code, "quotes");
    assert_eq!(cells(b"a,\"b").unwrap_err().at, 2);
    assert_eq!(cells(b"a,b\"").unwrap_err().at, 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever passes as well formed comes out of polars as so many rows with the cells that a plain split gives.
    #[test]
    fn polars_returns_every_well_formed_line(lines in proptest::collection::vec("[a-c\"',; \t#é0-9-]{1,12}", 1..20)) {
        let mut text = Vec::new();
        let mut expected: Vec<Vec<String>> = Vec::new();
        for line in &lines {
            let bytes = line.as_bytes();
            if well_formed(bytes, 2).is_err() {
                continue;
            }
            let starts = cells(bytes).unwrap();
            let ends = starts[1..].iter().map(|start| start - 1).chain([bytes.len()]);
            let row = starts.iter().zip(ends).map(|(from, to)| {
                let cell = &line[*from..to];
                let inner = cell.strip_prefix('"').map_or(cell, |cell| &cell[..cell.len() - 1]);
                if cell.starts_with('"') { inner.replace("\"\"", "\"") } else { inner.to_owned() }
            });
            expected.push(row.collect());
            text.extend_from_slice(bytes);
            text.push(b'\n');
        }
        if !expected.is_empty() {
            let frame = split("x", 2, &text, expected.len()).unwrap();
            let columns = texts(&frame).unwrap();
            let found: Vec<Vec<String>> = (0..expected.len())
                .map(|row| columns.iter().map(|column| column[row].unwrap_or_default().to_owned()).collect())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
