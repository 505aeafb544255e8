//! Fuzzes the reader of `arrays`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("arrays", data));
