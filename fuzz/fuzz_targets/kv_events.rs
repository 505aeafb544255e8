//! Fuzzes the reader of `kv_events`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("kv_events", data));
