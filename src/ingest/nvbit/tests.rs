use arrow::array::{Array, AsArray};
use arrow::datatypes::{UInt32Type, UInt64Type};
use engine::schema::canonical;
use engine::schema::captured::{ACCESSES, KERNELS};

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, text};
use crate::ingest::{Options, inspect};

const LAUNCH: &str = "MEMTRACE: CTX 0x000055c1a8f3b2d0 - LAUNCH - Kernel pc 0x00007f3d5f200000 - Kernel name \
                      void f<(a - b), 3>(int*, long) - grid size - of it - grid launch id 4 - grid size 98,2,1 - block size \
                      1024,1,1 - nregs 16 - shmem 48 - cuda stream id -8";

fn instruction(launch: u64, opcode: &str, addresses: impl Fn(u64) -> u64) -> String {
    let addresses: Vec<String> = (0..32).map(|lane| format!("{:#018x}", addresses(lane))).collect();
    let before = "MEMTRACE: CTX 0x000055c1a8f3b2d0 - grid_launch_id";
    format!("{before} {launch} - CTA 7,8,9 - warp 3 - {opcode} - {} ", addresses.join(" "))
}

#[test]
fn launches_and_instructions_are_read_among_other_output() {
    let bench = Bench::new();
    let lines = [
        "------------- NVBit (NVidia Binary Instrumentation Tool v1.7) Loaded --------------".to_owned(),
        "user=alice token=hunter2".to_owned(),
        "MEMTRACE: STARTING CONTEXT 0x55c1a8f3b2d0".to_owned(),
        LAUNCH.to_owned(),
        instruction(4, "LDG.E.64", |lane| 0x7f3d_32e0_0600 + 8 * lane),
        // The program left its line open.
        format!("progress 10%{}", instruction(4, "STG.E.128", |lane| if lane < 2 { 0x7f3d_32e0_0000 + 16 * lane } else { 0 })),
        instruction(4, "LDS.U.32", |lane| 4 * lane),
        instruction(9, "LDG.E", |_| 0x7f3d_32e0_0600),
        "MEMTRACE: CTX 0x1 - LAUNCH - Kernel 0x00007f3d5f200000 - grid launch id 5 - grid size 1,1,1 - block size 1,1,1".to_owned(),
    ];
    let path = bench.file("a.txt", lines.join("\n"));
    assert_eq!(inspect(&path).unwrap().format, Some("nvbit"));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_rejected), (6, 0));
    let log: Vec<_> = summaries[0].log.iter().map(|entry| (entry.code, entry.count)).collect();
    assert_eq!(log, [("program_output", 2), ("tool_message", 1), ("unknown_launch", 1)]);
    let kernels = read(&bench, &KERNELS);
    let name = "void f<(a - b), 3>(int*, long) - grid size - of it";
    assert_eq!(text(&kernels, "name"), [Some(name.to_owned()), Some("0x00007f3d5f200000".to_owned())]);
    assert_eq!(column::<UInt32Type>(&kernels, "grid_y")[0], 2);
    assert_eq!(column::<UInt64Type>(&kernels, "stream")[0], (-8_i64).cast_unsigned());
    let accesses = read(&bench, &ACCESSES);
    assert_eq!(text(&accesses, "kernel")[2..], [Some(name.to_owned()), Some("launch 9".to_owned())]);
    assert_eq!(column::<UInt32Type>(&accesses, "launch"), [0, 0, 0, 1]);
    assert_eq!(column::<UInt32Type>(&accesses, "width_bytes"), [8, 16, 4, 4]);
    // 256, 32, 128 and 4 bytes; lanes at 0 are off, but not in shared memory.
    assert_eq!(column::<UInt32Type>(&accesses, "sectors"), [8, 1, 4, 1]);
    assert_eq!(column::<UInt64Type>(&accesses, "address"), [0x7f3d_32e0_0600, 0x7f3d_32e0_0000, 0, 0x7f3d_32e0_0600]);
    for unknown in ["active_lanes", "bytes", "pc"] {
        assert_eq!(accesses[0].column_by_name(unknown).unwrap().null_count(), 4);
    }
    check_law(&bench);
}

#[test]
fn broken_lines_are_refused_without_the_program_s_words() {
    let bench = Bench::new();
    let good = instruction(4, "LDG.E", |lane| 0x1000 + lane);
    let lines = [
        LAUNCH.to_owned(),
        good.clone(),
        good.replace("0x0000000000001003 ", "0x0000hunter2 "),
        good.replace("0x0000000000001003 ", ""),
        format!("{good}0x1"),
        instruction(4, "LDG.E", |_| 0),
        good.replace("CTA 7,8,9", "CTA 7,8hunter2"),
        good.replace("LDG.E", "hunter2 at home"),
        "MEMTRACE: hunter2".to_owned(),
        LAUNCH.replace("grid size 98,2,1", "grid size hunter2"),
        LAUNCH.replace("grid launch id", "hunter2"),
    ];
    let summaries = bench.ingest(&[&bench.file("a.txt", lines.join("\n"))], &quarantine()).unwrap();
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (11, 2, 9));
    check_law(&bench);
    let rejects = read(&bench, &canonical::REJECTS);
    for batch in &rejects {
        for column in batch.columns() {
            let Some(texts) = column.as_string_opt::<i32>() else { continue };
            let leaked: Vec<_> = texts.iter().flatten().filter(|text| text.contains("hunter2")).collect();
            assert!(leaked.is_empty(), "{leaked:?}");
        }
    }
    let error = Bench::new().error(format!("{LAUNCH}\n{}", &good[..good.len() - 20])).to_string();
    assert!(error.contains("FILE:2:") && error.contains("an address for each of the 32 lanes"), "{error}");
}
