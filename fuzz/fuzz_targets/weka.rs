//! Fuzzes the reader of `weka`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("weka", data));
