//! Fuzzes the reader of `dynamo`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("dynamo", data));
