//! Fuzzes the reader of `qwen`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("qwen", data));
