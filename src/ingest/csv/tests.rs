use proptest::prelude::*;

use super::chunk::{marks, well_formed};
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

#[test]
fn whole_numbers_fit_or_say_why_not() {
    for (cell, expected) in [
        ("0", Ok(0)),
        ("4294967295", Ok(u32::MAX)),
        ("00000000000000000000007", Ok(7)),
        ("4294967296", Err(Why::Range)),
        ("18446744073709551616", Err(Why::Range)),
        ("99999999999999999999999999", Err(Why::Range)),
        ("", Err(Why::Number)),
        ("-1", Err(Why::Negative)),
        ("1.0", Err(Why::Number)),
        ("+1", Err(Why::Number)),
        (" 1", Err(Why::Number)),
        ("1e3", Err(Why::Number)),
        ("x", Err(Why::Number)),
    ] {
        assert_eq!(whole(cell.as_bytes()), expected, "{cell}");
    }
}

#[test]
fn bad_times_say_why() {
    for (cell, expected) in [
        ("-1", Why::Negative),
        ("1e30", Why::Range),
        ("9223372037", Why::Range),
        ("", Why::Number),
        ("1:30", Why::Number),
    ] {
        assert_eq!(no_time(cell.as_bytes()), expected, "{cell}");
    }
}

static TWO: Csv = Csv {
    format: "two",
    forms: &[
        &[Column::seconds("At once", "arrival_ns"), Column::count("in", "prompt_tokens"), Column::text("c", "kind")],
        &[Column::count("in", "prompt_tokens"), Column::count("out", "output_tokens"), Column::total("sum", true)],
    ],
};

fn sniffed(head: &str) -> Sniff {
    sniff(&TWO, &Head { path: "x", bytes: head.as_bytes(), directory: false, binary: None, file: None })
}

#[test]
fn headers_are_exact_and_what_is_close_is_told() {
    for head in ["At once,in,c", "\u{feff}c,\"in\",At once\r\n1,2,3", "\n\nsum,other,out,in\n"] {
        assert_eq!(sniffed(head), Sniff::Yes, "{head}");
    }
    let nearly = |why: &str| Sniff::Nearly(why.to_owned());
    assert_eq!(sniffed("At once,c\n"), nearly("the first line lacks the column `in`"));
    assert_eq!(sniffed("at_once,in,c\n"), nearly("the first line has `at_once` for `At once`; names are exact"));
    assert_eq!(
        sniffed("IN, out,Sum\n"),
        nearly("the first line has `IN` for `in`, ` out` for `out`, `Sum` for `sum`; names are exact")
    );
    assert_eq!(sniffed("x,y,z\n"), Sniff::No);
    assert_eq!(sniffed(""), Sniff::No);
}

/// The cells of every well-formed line of `text`, by a plain split.
fn expected(text: &[u8], width: usize) -> Vec<Vec<String>> {
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let good = lines.filter(|line| !line.trim_ascii().is_empty() && well_formed(line, width).is_ok());
    let row = |line: &[u8]| {
        let starts = cells(line).unwrap();
        let ends = starts[1..].iter().map(|start| start - 1).chain([line.len()]);
        let cells = starts.iter().zip(ends).map(|(from, to)| std::str::from_utf8(&line[*from..to]).unwrap());
        cells
            .map(|cell| match cell.strip_prefix('"') {
                Some(inner) => inner[..inner.len() - 1].replace("\"\"", "\""),
                None => cell.to_owned(),
            })
            .collect()
    };
    good.map(row).collect()
}

fn place(block: &[u8]) -> Place {
    Place { number: 1, offset: 0, lines: block.split_inclusive(|byte| *byte == b'\n').count() as u64 }
}

/// The cells that come out, and the number of lines that were set aside.
fn split(block: &[u8], width: usize) -> (Vec<Vec<String>>, usize) {
    let options = crate::ingest::Options::standard();
    let (sender, _receiver) = std::sync::mpsc::sync_channel(1);
    let mut sink = Sink::new("x", 0, &options, std::rc::Rc::default(), sender);
    let mut chunk = Chunk::new(block, place(block));
    let Some(found) = chunk.split("x", width, &mut sink).unwrap() else { return (Vec::new(), chunk.bad.len()) };
    let columns = found.columns().unwrap();
    for column in &columns {
        let mut row = 0;
        column.for_each(|cell| {
            assert_eq!(cell, column.get(row));
            row += 1;
        });
        assert_eq!((row, column.rows()), (found.rows(), found.rows()));
    }
    let rows = (0..found.rows()).map(|row| {
        // Where a row is said to be is where its cells come from.
        let line = chunk.bytes(chunk.row(row));
        assert_eq!(cells(line).unwrap().len(), width);
        columns.iter().map(|column| String::from_utf8(column.get(row).to_vec()).unwrap()).collect()
    });
    (rows.collect(), chunk.bad.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever passes as well formed comes out as so many rows with the cells that a plain split gives; this mixes blocks
    /// that are cut at their commas with blocks that polars splits.
    #[test]
    fn splitting_returns_every_well_formed_line(
        lines in proptest::collection::vec("([a-c;é0-9-]{0,3},){0,3}[a-c\"', \t#0-9-]{0,3}", 1..12),
        end in prop_oneof![Just("\n"), Just("\r\n")],
        last in any::<bool>(),
        width in 1_usize..4,
    ) {
        let mut text = lines.join(end);
        if last {
            text.push_str(end);
        }
        prop_assume!(!text.is_empty());
        let wanted = expected(text.as_bytes(), width);
        let lines = text.split('\n').filter(|line| !line.trim().is_empty()).count();
        prop_assert_eq!(split(text.as_bytes(), width), (wanted.clone(), lines - wanted.len()));
    }

    /// Lines of the right width are cut at their commas.
    #[test]
    fn regular_blocks_are_plain(lines in proptest::collection::vec("[a-c0-9]{0,3},[a-c0-9]{1,3},[é;]{0,3}", 1..30)) {
        let text = format!("{}\n", lines.join("\n"));
        prop_assert!(marks(text.as_bytes(), lines.len(), 3).is_some());
        prop_assert_eq!(split(text.as_bytes(), 3), (expected(text.as_bytes(), 3), 0));
    }
}

#[test]
fn a_block_that_looks_compressed_is_text_all_the_same() {
    for first in ["x^y", "x\u{1}y", "x\u{680}", "\u{feff}x"] {
        let text = format!("{first},b\nc,d\n");
        let (rows, bad) = split(text.as_bytes(), 2);
        assert_eq!(
            (rows, bad),
            (vec![vec![first.to_owned(), "b".to_owned()], vec!["c".to_owned(), "d".to_owned()]], 0)
        );
    }
}

/// A line with a cell too many and one with a cell too few have as many commas as two good ones.
#[test]
fn commas_that_add_up_do_not_hide_a_bad_line() {
    for text in ["a,b,c\nd\n", "d\na,b,c\n", "d\na,b,\n", "a,b,\nd\n", "\na,b,c\n"] {
        assert!(marks(text.as_bytes(), 2, 2).is_none(), "{text}");
        let (rows, bad) = split(text.as_bytes(), 2);
        assert_eq!((rows.len(), bad), (0, text.lines().filter(|line| !line.is_empty()).count()), "{text}");
    }
}

#[test]
fn broken_text_is_set_aside_alone() {
    let text = b"a,b\nc,\xff\nd,\xc3\xa9\n";
    assert!(marks(text, 3, 2).is_none());
    let (rows, bad) = split(text, 2);
    assert_eq!((rows, bad), (vec![vec!["a".to_owned(), "b".to_owned()], vec!["d".to_owned(), "é".to_owned()]], 1));
}
