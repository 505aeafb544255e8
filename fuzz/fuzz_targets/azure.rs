//! Fuzzes the reader of `azure`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("azure", data));
