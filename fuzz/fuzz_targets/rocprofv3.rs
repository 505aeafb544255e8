//! Fuzzes the reader of `rocprofv3`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("rocprofv3", data));
