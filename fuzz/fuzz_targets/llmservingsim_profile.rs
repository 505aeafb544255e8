//! Fuzzes the reader of `llmservingsim_profile`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("llmservingsim_profile", data));
