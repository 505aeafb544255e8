//! Fuzzes the reader of `mooncake`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("mooncake", data));
