//! Fuzzes the reader of `recording`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("recording", data));
