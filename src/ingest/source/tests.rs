use std::io::{self, Write};

use super::*;

const SMALL: Limits = Limits { line: 100, ratio: 10, inflated: 1000 };

fn lines_of(bytes: Vec<u8>, limits: &Limits) -> Result<Vec<(u64, u64, Vec<u8>)>> {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let source = from_reader("x", Box::new(Cursor::new(bytes)), limits, tally)?;
    let options = Options::standard();
    let (input, _finish) = source.into_input(&options)?;
    let Body::Lines(mut lines) = input.body else { return Err(Error::data("a directory")) };
    let mut all = Vec::new();
    while let Some(line) = lines.next_line()? {
        all.push((line.number, line.offset, line.bytes.to_vec()));
    }
    Ok(all)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn lines_know_where_they_are() {
    let found = lines_of(b"\xef\xbb\xbfab\r\n\nc".to_vec(), &SMALL).unwrap();
    assert_eq!(found, [(1, 3, b"ab".to_vec()), (2, 7, Vec::new()), (3, 8, b"c".to_vec())]);
}

#[test]
fn a_long_line_is_refused_and_one_at_the_limit_is_not() {
    assert_eq!(lines_of([vec![b'a'; 100], b"\nb".to_vec()].concat(), &SMALL).unwrap().len(), 2);
    let error = lines_of(vec![b'a'; 101], &SMALL).unwrap_err();
    assert_eq!(error.to_string(), "expected lines of at most 100 bytes in `x`, found a longer one: line 1");
}

#[test]
fn bombs_are_refused() {
    let text = b"aaaaaaaaa\n".repeat(20_000);
    for packed in [gzip(&text), zstd::encode_all(&text[..], 19).unwrap()] {
        assert!((packed.len() as u64) < text.len() as u64 / SMALL.ratio);
        let error = lines_of(packed.clone(), &SMALL).unwrap_err().to_string();
        assert!(error.starts_with("cannot read `x`: expected at most 10 times the compressed size"), "{error}");
        // Below the size that is always allowed, the ratio does not matter.
        assert_eq!(lines_of(packed, &LIMITS).unwrap().len(), 20_000);
    }
}

#[test]
fn a_cut_or_damaged_archive_is_an_error() {
    let text: Vec<u8> =
        (0..5000).flat_map(|n: u32| format!("{}\n", n.wrapping_mul(2_654_435_761)).into_bytes()).collect();
    for packed in [gzip(&text), zstd::encode_all(&text[..], 3).unwrap()] {
        for cut in [5, packed.len() / 2, packed.len() - 1] {
            assert!(lines_of(packed[..cut].to_vec(), &LIMITS).is_err(), "{cut}");
        }
    }
}

#[test]
fn the_hash_is_that_of_the_bytes_on_disk() {
    let packed = gzip(b"a\nb\n");
    let expected = hex(&Sha256::digest(&packed));
    let tally = Rc::new(RefCell::new(Tally::default()));
    let source = from_reader("x", Box::new(Cursor::new(packed.clone())), &LIMITS, tally).unwrap();
    assert_eq!(source.compression(), "gzip");
    let options = Options::standard();
    // Nothing is read by the adapter: the rest is hashed all the same.
    let (input, finish) = source.into_input(&options).unwrap();
    drop(input);
    assert_eq!(finish.finish().unwrap(), (expected, packed.len() as u64));
}

#[test]
fn a_reader_that_fails_is_an_error() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let tally = Rc::new(RefCell::new(Tally::default()));
    let error = from_reader("x", Box::new(Broken), &LIMITS, tally).err().unwrap();
    assert_eq!(error.to_string(), "cannot read `x`: the disk is gone");
}

/// The lines of a stream, taken in blocks of about so many bytes.
fn lines_of_blocks(bytes: &[u8], target: usize, limits: &Limits) -> Result<Vec<(u64, u64, Vec<u8>)>> {
    let tally = Rc::new(RefCell::new(Tally::default()));
    let source = from_reader("x", Box::new(Cursor::new(bytes.to_vec())), limits, tally)?;
    let options = Options::standard();
    let (input, _finish) = source.into_input(&options)?;
    let Body::Lines(mut lines) = input.body else { return Err(Error::data("a directory")) };
    let (mut all, mut block) = (Vec::new(), Vec::new());
    while let Some(Place { mut number, mut offset, lines: count }) = lines.block(target, &mut block)? {
        assert_eq!(block.split_inclusive(|byte| *byte == b'\n').count() as u64, count);
        for line in block.split_inclusive(|byte| *byte == b'\n') {
            all.push((number, offset, line.to_vec()));
            number += 1;
            offset += line.len() as u64;
        }
    }
    Ok(all)
}

proptest::proptest! {
    /// Blocks of any size hold the lines of the file, each whole, with its number and offset.
    #[test]
    fn blocks_hold_whole_lines(text in "[ab\n]{1,80}", target in 1_usize..30) {
        let mut expected = Vec::new();
        let mut offset = 0;
        for (number, line) in (1..).zip(text.as_bytes().split_inclusive(|byte| *byte == b'\n')) {
            expected.push((number, offset, line.to_vec()));
            offset += line.len() as u64;
        }
        proptest::prop_assert_eq!(lines_of_blocks(text.as_bytes(), target, &SMALL).unwrap(), expected);
    }

    #[test]
    fn bytes_are_counted(bytes in proptest::collection::vec(0_u8..3, 0..2000)) {
        proptest::prop_assert_eq!(count(&bytes, 1), bytes.iter().fold(0, |sum, byte| sum + usize::from(*byte == 1)));
    }
}

#[test]
fn a_long_line_of_a_block_is_refused() {
    for target in [7, 500] {
        let text = [&b"ab\n"[..], &[b'a'; 100], b"\n", &[b'b'; 101], b"\nc\n"].concat();
        let error = lines_of_blocks(&text, target, &SMALL).unwrap_err();
        assert_eq!(error.to_string(), "expected lines of at most 100 bytes in `x`, found a longer one: line 3");
    }
}
