//! Fuzzes the reader of `chakra`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("chakra", data));
