//! Fuzzes the reader of `claude_code`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("claude_code", data));
