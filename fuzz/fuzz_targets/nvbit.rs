//! Fuzzes the reader of `nvbit`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("nvbit", data));
