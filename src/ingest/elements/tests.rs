use proptest::prelude::*;

use super::{Extent, extent, length};

const KEY: &[u8] = b"\"ph\"";

#[test]
fn values_end_where_their_brackets_close() {
    for (text, expected) in [
        ("{\"a\": \"}\"} x", Extent::Whole(10)),
        ("[1, [2], {}]]", Extent::Whole(12)),
        ("\"a\\\"b\",", Extent::Whole(6)),
        ("12 ", Extent::Whole(2)),
        (", ", Extent::Whole(0)),
        ("{\"a\": \"b\n", Extent::Broken(8)),
        ("{\"ph\": 1, {\"ph\": 2}", Extent::Broken(10)),
        ("{\"ph\": 1, \"args\": {\"x\": 2}}", Extent::Whole(27)),
        ("{\"a\"", Extent::Beyond),
        ("\"a\\\"", Extent::Beyond),
    ] {
        assert_eq!(extent(text.as_bytes(), false, KEY), expected, "{text}");
        if expected == Extent::Beyond {
            assert_eq!(extent(text.as_bytes(), true, KEY), Extent::Broken(text.len()), "{text}");
        }
    }
    assert_eq!(extent(b"12", false, KEY), Extent::Beyond);
    assert_eq!(extent(b"12", true, KEY), Extent::Whole(2));
    assert_eq!(length(b"[nan, -inf] "), Some(11));
    assert_eq!(length(b"[nan"), None);
}

proptest! {
    /// What serde_json writes ends where it ends, whatever follows.
    #[test]
    fn lengths_are_those_of_json(words in proptest::collection::vec(".{0,8}", 0..6), rest in "[ ,\\]}].{0,8}") {
        let text = serde_json::json!({"a": words, "b": {"c": [1, null, {}]}}).to_string();
        prop_assert_eq!(length(format!("{text}{rest}").as_bytes()), Some(text.len()));
        prop_assert_eq!(length(&text.as_bytes()[..text.len() - 1]), None);
    }
}
