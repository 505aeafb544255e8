//! Fuzzes the reader of `tair`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("tair", data));
