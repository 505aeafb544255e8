//! Fuzzes the reader of `servegen`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("servegen", data));
