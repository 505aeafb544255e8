use std::io::Write;

use arrow::datatypes::{ArrowPrimitiveType, Float16Type};
use npyz::WriterBuilder;
use zip::write::SimpleFileOptions;

use super::*;

/// An npy file, written by the crate `npyz`.
pub(in super::super) fn npy<T: npyz::AutoSerialize + Copy>(shape: &[u64], values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = npyz::WriteOptions::new().default_dtype().shape(shape).writer(&mut bytes);
    let mut writer = options.begin_nd().unwrap();
    writer.extend(values.iter().copied()).unwrap();
    writer.finish().unwrap();
    bytes
}

/// An npz file of these npy files.
pub(in super::super) fn npz_of(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn header(text: &str) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn placed(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arrays");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn floats(path: &Path, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
    let mut array = open(path, name)?;
    let shape = array.shape.clone();
    let mut values = Vec::new();
    array.floats(usize::try_from(shape.iter().product::<u64>()).unwrap(), &mut values)?;
    array.end()?;
    Ok((shape, values))
}

#[test]
fn half_precision_is_that_of_ieee_754() {
    for bits in 0..=u16::MAX {
        let expected = <Float16Type as ArrowPrimitiveType>::Native::from_bits(bits).to_f32();
        let found = half(bits);
        assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:x}");
    }
}

#[test]
fn headers_say_shape_and_format() {
    let good = |text: &str| npy_header(&mut &header(text)[..]).unwrap();
    let plain = good("{'descr': '<f4', 'fortran_order': False, 'shape': (6, 3, 256), }        \n");
    assert_eq!((plain.shape, plain.format, plain.big_endian), (vec![6, 3, 256], Format::F32, false));
    let old = good(r#"{"shape": (7L,), "fortran_order": True, "descr": ">i2"}"#);
    assert_eq!((old.shape, old.big_endian), (vec![7], true));
    assert_eq!(good("{'descr': '|u1', 'fortran_order': False, 'shape': ()}").shape, Vec::<u64>::new());
    for (text, expected) in [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "only pickle"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "structured"),
        ("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", "Fortran order"),
        ("{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", "the dtype `<c8`"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "expected a size"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "expected a size"),
        ("{'descr': '<f4', 'fortran_order': False}", "found fewer"),
        ("{'descr': '<f4', 'evil': os.system('x')}", "found `evil`"),
        ("", "expected `{`"),
        ("{'descr", "expected text"),
        ("{'descr': '\u{e9}4', 'fortran_order': False, 'shape': ()}", "dtype"),
    ] {
        let error = npy_header(&mut &header(text)[..]).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let mut long = b"\x93NUMPY\x02\x00".to_vec();
    long.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(npy_header(&mut &long[..]).unwrap_err().contains("at most 65536 bytes"));
}

#[test]
fn npz_and_safetensors_give_the_same_numbers() {
    let values: Vec<f32> = (0..24).map(|at| at as f32 * 0.5 - 3.0).collect();
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let file = npz_of(&[("a.npy", npy(&[2, 3, 4], &values)), ("n.npy", npy(&[3], &[0_i64, -1, 5]))], method);
        let (_folder, path) = placed(&file);
        assert_eq!(floats(&path, "a").unwrap(), (vec![2, 3, 4], values.clone()));
        assert_eq!(floats(&path, "n").unwrap().1, [0.0, -1.0, 5.0]);
        assert_eq!(open(&path, "n").unwrap().whole(3).unwrap(), None, "one is negative");
        let error = open(&path, "b").unwrap_err().to_string();
        assert!(error.contains("expected the array `b`") && error.ends_with("found `a`, `n`"), "{error}");
    }
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    // The upper half of a single is a bfloat16, and these numbers need no more.
    let short: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect();
    let view = |kind, bytes| safetensors::tensor::TensorView::new(kind, vec![2, 3, 4], bytes).unwrap();
    let file = safetensors::serialize([("a", view(Dtype::F32, &bytes)), ("b", view(Dtype::BF16, &short))], None);
    let file = file.unwrap();
    let (_folder, path) = placed(&file);
    assert_eq!(floats(&path, "a").unwrap(), (vec![2, 3, 4], values.clone()));
    assert_eq!(floats(&path, "b").unwrap(), (vec![2, 3, 4], values));
    for cut in 0..file.len() {
        std::fs::write(&path, &file[..cut]).unwrap();
        assert!(floats(&path, "a").is_err(), "cut at {cut}");
    }
}

#[test]
fn archives_are_not_trusted() {
    let values = vec![1.0_f32; 64];
    let good = npz_of(&[("a.npy", npy(&[64], &values))], CompressionMethod::Deflated);
    let (_folder, path) = placed(&good);
    assert_eq!(floats(&path, "a").unwrap().1, values);
    // Any byte may be wrong: numbers come out only if they are the right ones.
    for at in 0..good.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = good.clone();
            bytes[at] ^= flip;
            std::fs::write(&path, &bytes).unwrap();
            if let Ok((_, found)) = floats(&path, "a") {
                assert_eq!(found, values, "{at}");
            }
        }
        std::fs::write(&path, &good[..at]).unwrap();
        assert!(floats(&path, "a").is_err(), "cut at {at}");
    }
    // A shape that promises more than there is, or less.
    for (shape, expected) in [("(65,)", "found"), ("(1,)", "found"), ("(4611686018427387904, 16)", "found")] {
        let mut lying = header(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"));
        lying.extend_from_slice(&[0; 256]);
        std::fs::write(&path, npz_of(&[("a.npy", lying)], CompressionMethod::Stored)).unwrap();
        let error = open(&path, "a").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A bomb: 100 MB of zeros in 100 kB.
    let mut bomb = header("{'descr': '<f4', 'fortran_order': False, 'shape': (25000000,)}");
    bomb.resize(bomb.len() + 100_000_000, 0);
    std::fs::write(&path, npz_of(&[("a.npy", bomb)], CompressionMethod::Deflated)).unwrap();
    let error = open(&path, "a").unwrap_err().to_string();
    assert!(error.contains("times the compressed size"), "{error}");
    // A pickle, which PyTorch keeps in an archive, and one by itself.
    std::fs::write(&path, npz_of(&[("archive/data.pkl", b"\x80\x02".to_vec())], CompressionMethod::Stored)).unwrap();
    assert!(open(&path, "a").unwrap_err().to_string().contains("found `archive/data.pkl`"));
    std::fs::write(&path, b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00").unwrap();
    let error = open(&path, "a").unwrap_err();
    assert!(error.advice().unwrap().contains("pickles are not read"));
    // A header of safetensors that is longer than the file.
    std::fs::write(&path, b"\xff\xff\xff\xff\xff\xff\xff\xff{").unwrap();
    assert!(open(&path, "a").unwrap_err().to_string().contains("expected a header of at most"));
    std::fs::write(&path, b"\x02\0\0\0\0\0\0\0{}extra").unwrap();
    assert!(open(&path, "a").unwrap_err().to_string().contains("behind its header"));
}
