use arrow::array::AsArray;
use arrow::datatypes::{Int64Type, UInt32Type, UInt64Type};
use engine::schema::captured::KERNELS;

use super::super::tests::{Bench, check_law, quarantine, text};

const HEADER: &str = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name";

/// Lines as version 2026.3.1 prints them.
#[test]
fn kernels_and_copies_are_read() {
    let content = format!(
        "{HEADER}\n\
         1134711990,661398,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA RTX 5000 Ada Generation Laptop GPU (0),1,,13,[CUDA memcpy Host-to-Device]\n\
         1136125733,7072,128,4096,1,1,256,1,1,16,0.000,0.049,,,,,NVIDIA RTX 5000 Ada Generation Laptop GPU (1),1,,13,\"saxpyKernel(float, const float *)\"\n\
         1136151973,542802,130,,,,,,,,,,0.000,,Device,,NVIDIA RTX 5000 Ada Generation Laptop GPU (0),1,,13,[CUDA memset]\n\
         1136151973,-1,130,,,,,,,,,,0.000,,Device,,GPU (0),1,,13,k\n"
    );
    let bench = Bench::new();
    let summary = &bench.ingest(&[&bench.file("trace.csv", content)], &quarantine()).unwrap()[0];
    assert_eq!((summary.format, summary.rows_out, summary.rows_rejected), ("nsys_csv", 3, 1));
    check_law(&bench);
    let kernels = bench.store().read(&KERNELS).unwrap();
    let batch = &kernels[0];
    let words = |name: &str| text(&kernels, name).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>();
    assert_eq!(words("category"), ["copy", "kernel", "fill"]);
    assert_eq!(words("copy_kind"), ["host_to_device", "", ""]);
    assert_eq!(words("name")[1], "saxpyKernel(float, const float *)");
    let starts = batch.column_by_name("start_ns").unwrap().as_primitive::<Int64Type>();
    assert_eq!(starts.values().to_vec(), [1_134_711_990, 1_136_125_733, 1_136_151_973]);
    assert_eq!(batch.column_by_name("bytes").unwrap().as_primitive::<UInt64Type>().value(0), 4_194_000);
    assert_eq!(batch.column_by_name("shared_bytes").unwrap().as_primitive::<UInt64Type>().value(1), 49_000);
    let devices = batch.column_by_name("device").unwrap().as_primitive::<UInt32Type>();
    assert_eq!(devices.values().to_vec(), [0, 1, 0]);
    assert!(summary.log.iter().any(|entry| entry.code == "bytes_rounded" && entry.count == 2));
}

#[test]
fn a_header_without_units_is_no_such_file() {
    let bench = Bench::new();
    let error = bench.error("Start,Duration,CorrId,Strm,Name\n1,2,3,4,k\n");
    assert!(error.to_string().contains("nearly nsys_csv"), "{error}");
}
