use engine::schema::captured::{COUNTERS, KERNELS};

use super::super::tests::{Bench, check_law, quarantine, sample, text};
use super::super::{Options, Summary};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, UInt32Type, UInt64Type};

/// The values of a column, unknown ones too.
fn numbers<T: arrow::array::ArrowPrimitiveType>(batches: &[RecordBatch], name: &str) -> Vec<Option<T::Native>> {
    let columns = batches.iter().map(|batch| batch.column_by_name(name).unwrap().as_primitive::<T>().clone());
    columns
        .flat_map(|column| {
            (0..column.len()).map(move |at| column.is_valid(at).then(|| column.value(at))).collect::<Vec<_>>()
        })
        .collect()
}

fn read_text(bench: &Bench, name: &str, content: &str) -> Summary {
    let path = bench.file(name, content);
    let summaries = bench.ingest(&[&path], &quarantine()).unwrap();
    check_law(bench);
    summaries.into_iter().next().unwrap()
}

#[test]
fn counters_of_a_dispatch_are_one_kernel() {
    let bench = Bench::new();
    let summary = &bench.ingest(&[&sample("rocprofv3/counter_collection.csv")], &Options::standard()).unwrap()[0];
    assert_eq!((summary.format, summary.rows_in, summary.rows_out), ("rocprofv3", 4, 4));
    assert_eq!(summary.tables, [("kernels", 4), ("counters", 4)]);
    check_law(&bench);
    let kernels = bench.store().read(&KERNELS).unwrap();
    // 3200098838483232 - 3200098838431081, and so on, by hand.
    let durations = [Some(52_151), Some(49_780), Some(46_818), Some(48_151)];
    assert_eq!(numbers::<Int64Type>(&kernels, "duration_ns"), durations);
    // 1,048,576 work-items in groups of 64.
    assert_eq!(numbers::<UInt32Type>(&kernels, "grid_x"), [Some(16_384); 4]);
    assert_eq!(numbers::<UInt32Type>(&kernels, "device"), [Some(1); 4]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "process"), [Some(15_606); 4]);
    let counters = bench.store().read(&COUNTERS).unwrap();
    assert_eq!(numbers::<Float64Type>(&counters, "value"), [Some(16_384.0); 4]);
    assert_eq!(numbers::<UInt64Type>(&counters, "kernel_id"), [Some(0), Some(1), Some(2), Some(3)]);
}

/// The three generations of headers, as their documents print them.
#[test]
fn columns_are_found_by_name() {
    let numeric = r#""Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH",4,1,74441,2,18,"taylor_base(float*, float*, unsigned long, unsigned long)",14,1614963488155186,1614963547425378,1024,0,256,1,1,100000000,1,1
"#;
    let rocpd = r#""Guid","Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp","Lds_Block_Size","Scratch_Size","Vgpr_Count","Accum_Vgpr_Count","Sgpr_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"00006409-00d1-70d1-a5cb-b5ab88214544","KERNEL_DISPATCH","Agent 4",1,0,714789,1,3,"norm_l23",1,1678314002982197,1678314003082277,8456,0,16,0,32,256,1,1,233472,1,1
"#;
    for (content, device, stream, duration, grid, shared, registers) in
        [(numeric, 4, 1, 59_270_192, 390_625, 0, None), (rocpd, 4, 0, 100_080, 912, 8456, Some(16))]
    {
        let bench = Bench::new();
        let summary = read_text(&bench, "kernel_trace.csv", content);
        assert_eq!((summary.format, summary.rows_out, summary.rows_rejected), ("rocprofv3", 1, 0));
        let kernels = bench.store().read(&KERNELS).unwrap();
        assert_eq!(numbers::<UInt32Type>(&kernels, "device"), [Some(device)]);
        assert_eq!(numbers::<UInt64Type>(&kernels, "stream"), [Some(stream)]);
        assert_eq!(numbers::<Int64Type>(&kernels, "duration_ns"), [Some(duration)]);
        assert_eq!(numbers::<UInt32Type>(&kernels, "grid_x"), [Some(grid)]);
        assert_eq!(numbers::<UInt64Type>(&kernels, "shared_bytes"), [Some(shared)]);
        assert_eq!(numbers::<UInt32Type>(&kernels, "registers"), [registers]);
        let expected = ["column_not_stored", "process_of_guid"];
        assert!(summary.log.iter().all(|entry| expected.contains(&entry.code)), "{:?}", summary.log);
    }
    let bench = Bench::new();
    bench.ingest(&[&sample("rocprofv3/kernel_trace.csv")], &Options::standard()).unwrap();
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&kernels, "stream"), [Some(26)]);
    assert_eq!(numbers::<Int64Type>(&kernels, "start_ns"), [Some(1_551_401_624_448_706)]);
    assert_eq!(numbers::<UInt32Type>(&kernels, "grid_y"), [Some(1024)]);
}

#[test]
fn several_counters_of_a_dispatch_meet_in_one_kernel() {
    let header = r#""Dispatch_Id","Agent_Id","Process_Id","Kernel_Name","Counter_Name","Counter_Value","New""#;
    let content = format!(
        "{header}\n1,0,7,k,FETCH_SIZE,2.5,\n1,0,7,k,WRITE_SIZE,1,\n1,0,7,k,SQ_WAVES,NaN,\n1,0,8,k,SQ_WAVES,3,\n1,x,8,k,A,3,\n"
    );
    let bench = Bench::new();
    let summary = read_text(&bench, "counters.csv", &content);
    // Each line is a row: three counters of two kernels.
    assert_eq!((summary.rows_in, summary.rows_out, summary.rows_rejected), (5, 3, 2));
    assert_eq!(summary.tables, [("kernels", 2), ("counters", 3)]);
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&kernels, "dram_read_bytes"), [Some(2560), None]);
    assert_eq!(numbers::<UInt64Type>(&kernels, "dram_write_bytes"), [Some(1024), None]);
    let counters = bench.store().read(&COUNTERS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&counters, "kernel_id"), [Some(0), Some(0), Some(1)]);
    assert_eq!(text(&counters, "counter")[1], Some("WRITE_SIZE".to_owned()));
    assert!(summary.log.iter().any(|entry| entry.code == "unknown_column"), "{:?}", summary.log);
}

#[test]
fn guids_are_processes() {
    let header = "Guid,Agent_Id,Dispatch_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp";
    let rows = "b-1,1,1,k,1,10,20\na-2,1,1,k,1,11,21\nb-1,1,2,k,2,30,40\n,1,3,k,3,50,60\n";
    let bench = Bench::new();
    let summary = read_text(&bench, "kernel_trace.csv", &format!("{header}\n{rows}"));
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&kernels, "process"), [Some(0), Some(1), Some(0), None]);
    let log: Vec<_> = summary.log.iter().map(|entry| (entry.code, entry.message.as_str())).collect();
    assert_eq!(log, [("process_of_guid", "`process` counts the values of `Guid`, of which there are 2")]);
}

#[test]
fn what_stands_twice_is_counted_or_refused() {
    let header = "Dispatch_Id,Agent_Id,Process_Id,Kernel_Name,Counter_Name,Counter_Value";
    let rows = "1,0,7,k,FETCH_SIZE,2\n1,0,7,k,FETCH_SIZE,5\n2,0,7,k,FETCH_SIZE,1\n";
    let bench = Bench::new();
    let summary = read_text(&bench, "counters.csv", &format!("{header}\n{rows}"));
    assert_eq!(summary.rows_out, 3);
    let again: Vec<_> = summary.log.iter().map(|entry| (entry.code, entry.count, entry.first_line)).collect();
    assert_eq!(again, [("counter_again", 1, Some(3))]);
    let kernels = bench.store().read(&KERNELS).unwrap();
    assert_eq!(numbers::<UInt64Type>(&kernels, "dram_read_bytes"), [Some(2048), Some(1024)]);
    let error = Bench::new().error(format!("{header},agent_id\n1,0,7,k,A,1,1\n"));
    assert!(error.to_string().contains("expected each column once"), "{error}");
}

#[test]
fn other_tables_are_told_apart() {
    let bench = Bench::new();
    let error = bench.error("\"Kind\",\"Direction\",\"Source_Agent_Id\",\"Destination_Agent_Id\",\"Correlation_Id\",\"Start_Timestamp\",\"End_Timestamp\"\n\"MEMORY_COPY\",\"HOST_TO_DEVICE\",0,1,0,14955949675563,14955950239443\n");
    assert!(error.to_string().contains("nearly rocprofv3: the first line lacks `Kernel_Name`"), "{error}");
    let error = bench.error("Kernel_Name,Agent_Id,Dispatch_Id,Start_Timestamp,End_Timestamp\nk,1,1,9,5\n");
    assert!(error.to_string().contains("FILE:2:9: expected `End_Timestamp` as an instant of at least 9"), "{error}");
}
