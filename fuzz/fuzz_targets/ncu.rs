//! Fuzzes the reader of `ncu`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("ncu", data));
