//! Fuzzes the reader of `kineto`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("kineto", data));
