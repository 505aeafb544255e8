//! Fuzzes the reader of `vidur`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("vidur", data));
