//! Fuzzes the reader of `nsys_csv`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvtoll_fuzz::feed("nsys_csv", data));
