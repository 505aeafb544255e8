//! Fuzzes the reader of `nsys_sqlite`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("nsys_sqlite", data));
