//! Bytes that are written as text in JSON: base64 (RFC 4648, both alphabets, padded or not) and hex.

/// Base64 as bytes; none if it is no such text.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.as_bytes().chunks(4) {
        let mut word = 0_u32;
        for digit in four {
            word = word << 6 | value(*digit)?;
        }
        word <<= 6 * (4 - four.len());
        let [_, first, second, third] = word.to_be_bytes();
        let three = [first, second, third];
        let (kept, left) = three.split_at(four.len() - 1);
        // What is left of the last digit must be empty, so that no two texts give the same bytes.
        if left.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

/// Hex as bytes, with or without `0x`; none if it is no such text.
pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    if digits.is_empty() || !digits.len().is_multiple_of(2) {
        return None;
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    digits.chunks(2).map(|two| Some((digit(two.first()?)? * 16 + digit(two.get(1)?)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_standard_are_read() {
        // RFC 4648, section 10.
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
            ("Zm9vYg", "foob"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        assert_eq!(decode("-_+/").unwrap(), decode("+/-_").unwrap());
        for text in ["Z", "Zh==", "Zm9v=", "Zm 9", "===="] {
            assert_eq!(decode(text), None, "{text}");
        }
        assert_eq!(unhex("0x00fF"), Some(vec![0, 255]));
        assert_eq!((unhex("abc"), unhex("zz"), unhex("")), (None, None, None));
    }
}
