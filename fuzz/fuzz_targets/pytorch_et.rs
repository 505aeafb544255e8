//! Fuzzes the reader of `pytorch_et`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("pytorch_et", data));
