//! Fuzzes the reader of `accelsim`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("accelsim", data));
