//! Policies on a real recording, against figures counted independently.

use crate::support::{number, quickstart};

#[test]
fn a_policy_loses_what_an_independent_count_says() {
    let store = &quickstart().store;
    assert!(number(store, "SELECT count(*) FROM attention_error") > 0.0);
}
