//! Fuzzes the reader of `ragpulse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("ragpulse", data));
