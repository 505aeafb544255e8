//! Fuzzes the reader of `burstgpt`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("burstgpt", data));
