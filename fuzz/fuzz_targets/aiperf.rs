//! Fuzzes the reader of `aiperf`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("aiperf", data));
