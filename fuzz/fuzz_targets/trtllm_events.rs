//! Fuzzes the reader of `trtllm_events`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("trtllm_events", data));
