//! Fuzzes the reader of `op_parquet`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("op_parquet", data));
