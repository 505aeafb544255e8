//! Fuzzes the reader of `vllm_bench`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("vllm_bench", data));
