//! Fuzzes the reader of `otel`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("otel", data));
