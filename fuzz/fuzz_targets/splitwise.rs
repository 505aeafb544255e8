//! Fuzzes the reader of `splitwise`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("splitwise", data));
