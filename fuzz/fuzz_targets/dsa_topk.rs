//! Fuzzes the reader of `dsa_topk`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("dsa_topk", data));
