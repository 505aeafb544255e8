use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{UInt32Type, UInt64Type};
use engine::schema::captured::{ACCESSES, KERNELS};

use crate::ingest::tests::{Bench, check_law, column, quarantine, read, sample, text};
use crate::ingest::{Options, Sniff, inspect};

const HEADER: &str = "-kernel name = k\n-kernel id = 1\n-grid dim = (2,1,1)\n-block dim = (32,1,1)\n-shmem = 0\n";
const GROUP: &str = "#BEGIN_TB\n\nthread block = 1,2,3\n\nwarp = 5\n";

fn lists(batches: &[RecordBatch], name: &str) -> Vec<Vec<u64>> {
    let lists = batches.iter().flat_map(|batch| {
        let lists = batch.column_by_name(name).unwrap().as_list::<i32>().clone();
        lists.iter().map(|list| list.unwrap().as_primitive::<UInt64Type>().values().to_vec()).collect::<Vec<_>>()
    });
    lists.collect()
}

fn counts(summary: &crate::ingest::Summary) -> Vec<(&'static str, u64)> {
    summary.log.iter().map(|entry| (entry.code, entry.count)).collect()
}

/// Sectors of each memory instruction, worked out lane by lane from the text of the trace: all samples have a base and a
/// stride.
fn plain_sectors(text: &str) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    for words in text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        let Some(opcode) =
            words.iter().position(|word| ["LDG", "STG", "LDS", "STS"].contains(&&word[..3.min(word.len())]))
        else {
            continue;
        };
        let sources: usize = words[opcode + 1].parse().unwrap();
        let rest = &words[opcode + 2 + sources..];
        let (width, mask): (u64, u32) = (rest[0].parse().unwrap(), u32::from_str_radix(words[1], 16).unwrap());
        assert_eq!((rest[1], rest.len()), ("1", 4));
        let base = u64::from_str_radix(&rest[2][2..], 16).unwrap();
        let stride: u64 = rest[3].parse().unwrap();
        let lanes = (0..32).filter(|lane| mask >> lane & 1 == 1);
        let bytes = lanes.flat_map(|lane| (0..width).map(move |byte| base + lane * stride + byte));
        let mut sectors: Vec<u64> = bytes.map(|byte| byte / 32).collect();
        sectors.dedup();
        sectors.sort_unstable();
        sectors.dedup();
        all.push(sectors);
    }
    all
}

#[test]
fn the_whole_kernel_gives_the_reference_counts() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("accelsim/matrixmul.traceg.xz")], &Options::standard()).unwrap();
    let summary = &summaries[0];
    assert_eq!((summary.format, summary.compression), ("accelsim", "xz"));
    check_law(&bench);
    let accesses = read(&bench, &ACCESSES);
    // FORMATS section 7: 4,416 instructions as declared, 1,440 of memory, 96 global, 46,080 active lanes.
    let lanes = column::<UInt32Type>(&accesses, "active_lanes");
    assert_eq!((lanes.len(), lanes.iter().sum::<u32>()), (1440, 46_080));
    assert_eq!(counts(summary), [("no_memory", 4416 - 1440)]);
    let mut spaces: BTreeMap<(String, bool), u32> = BTreeMap::new();
    for batch in &accesses {
        let writes = batch.column_by_name("is_write").unwrap().as_boolean();
        let space = batch.column_by_name("space").unwrap().as_string::<i32>();
        for (space, is_write) in space.iter().flatten().zip(writes) {
            *spaces.entry((space.to_owned(), is_write.unwrap())).or_default() += 1;
        }
    }
    let found: Vec<_> = spaces.iter().map(|((space, is_write), count)| (space.as_str(), *is_write, *count)).collect();
    assert_eq!(found, [("global", false, 64), ("global", true, 32), ("shared", false, 1280), ("shared", true, 64)]);
    let packed = fs::File::open(sample("accelsim/matrixmul.traceg.xz")).unwrap();
    let mut plain = String::new();
    liblzma::read::XzDecoder::new(packed).read_to_string(&mut plain).unwrap();
    assert_eq!(lists(&accesses, "sector_ids"), plain_sectors(&plain));
    let kernels = read(&bench, &KERNELS);
    assert_eq!(text(&kernels, "name"), [Some("_Z8mult_gpuIfEvPT_S1_S1_ii".to_owned())]);
    assert_eq!(
        (column::<UInt32Type>(&kernels, "block_x"), column::<UInt32Type>(&kernels, "registers")),
        (vec![32], vec![30])
    );
    assert_eq!(column::<UInt64Type>(&kernels, "shared_bytes"), [8192]);
    assert_eq!(summary.rows_in, 1441);
}

#[test]
fn the_three_ways_of_addresses_give_the_same_lanes() {
    let bench = Bench::new();
    // The second is an example of a real trace in the notes of a third party, its mask that of all lanes.
    let steps =
        "16 16 16 2000 16 16 16 976 16 16 16 2000 16 16 16 6096 16 16 16 4048 16 16 16 3024 16 16 16 976 16 16 16";
    let mut address = 0x7efe_7b60_c300_u64;
    let mut all = vec![address];
    for step in steps.split(' ') {
        address += step.parse::<u64>().unwrap();
        all.push(address);
    }
    let listed: Vec<String> = all.iter().map(|address| format!("{address:#018x}")).collect();
    let lines = [
        format!("1020 ffffffff 1 R24 LDG.E.128.CONSTANT.SYS 1 R44 16 2 0x7efe7b60c300 {steps} "),
        format!("1020 ffffffff 1 R24 LDG.E.128.CONSTANT.SYS 1 R44 16 0 {} ", listed.join(" ")),
        "1030 0000ff00 0 STG.E 2 R2 R4 4 1 0x7f0000000010 -4 ".to_owned(),
        "1030 0000ff00 0 STG.E 2 R2 R4 4 2 0x7f0000000010 -4 -4 -4 -4 -4 -4 -4 ".to_owned(),
        "1040 00000101 0 ATOMG.E.ADD 1 R2 4 2 0x7f000000001e 64 ".to_owned(),
        "1050 00000000 1 R3 LDG.E 1 R2 4 1 0x0 0 ".to_owned(),
    ];
    let path = bench.file("a.traceg", format!("{HEADER}{GROUP}insts = 6\n{}\n#END_TB\n", lines.join("\n")));
    let summaries = bench.ingest(&[&path], &Options::standard()).unwrap();
    assert_eq!(counts(&summaries[0]), [("no_lanes", 1)]);
    let accesses = read(&bench, &ACCESSES);
    let sectors = lists(&accesses, "sector_ids");
    assert_eq!((&sectors[0], &sectors[2]), (&sectors[1], &sectors[3]));
    // Lanes of 16 bytes in eight groups of four, each group of 64 bytes on its own: two sectors each.
    assert_eq!(sectors[0].len(), 16);
    // 0x10 down to -0xc, four bytes each: over the edge of a sector.
    assert_eq!(sectors[2], [0x7f00_0000_0010 / 32 - 1, 0x7f00_0000_0010 / 32]);
    // Four bytes over an edge, and again 64 bytes on.
    assert_eq!(sectors[4], [0x3f8_0000_0000, 0x3f8_0000_0001, 0x3f8_0000_0002, 0x3f8_0000_0003]);
    assert_eq!(column::<UInt32Type>(&accesses, "active_lanes"), [32, 32, 8, 8, 2]);
    assert_eq!(column::<UInt64Type>(&accesses, "bytes"), [512, 512, 32, 32, 8]);
    assert_eq!(column::<UInt32Type>(&accesses, "cta_z"), [3; 5]);
    assert_eq!(column::<UInt32Type>(&accesses, "warp"), [5; 5]);
    check_law(&bench);
}

#[test]
fn raw_lines_line_numbers_and_immediates_are_read() {
    let bench = Bench::new();
    let raw = |before: &str, after: &str| {
        format!(
            "{HEADER}-accelsim tracer version = 3\n\n{before} 0010 0000000f 1 R4 LDG.E 1 R2 4 1 0x7f00 4{after}\n\
             {before} 0020 ffffffff 1 R1 MOV 0 0{after}\n"
        )
    };
    let lined = format!(
        "{HEADER}-accelsim tracer version = 6\n-enable lineinfo = 1\n#traces format = [line_num] PC mask immediate\n\
         {GROUP}insts = 1\n17 0010 0000000f 1 R4 LDG.E 1 R2 4 1 0x7f00 4 -8 0 NoVal\n"
    );
    let newer = raw("7 0 9 2 0 0 0 0 0 0 0", " 3 0 NoVal").replace("version = 3", "version = 6");
    for (at, (contents, place)) in
        [(raw("7 0 9 2", ""), (9, 2)), (newer, (9, 2)), (lined, (3, 5))].into_iter().enumerate()
    {
        let path = bench.file(&format!("{at}.trace"), contents);
        bench.ingest(&[&path], &Options::standard()).unwrap();
        let accesses = read(&bench, &ACCESSES);
        let last = |name: &str| *column::<UInt32Type>(&accesses, name).last().unwrap();
        assert_eq!((last("cta_z"), last("warp")), place);
        assert_eq!(lists(&accesses, "sector_ids").len(), at + 1);
        assert_eq!(lists(&accesses, "sector_ids")[at], [0x7f00 / 32]);
    }
}

#[test]
fn bad_lines_are_refused_with_their_place() {
    let bench = Bench::new();
    let cases = [
        ("0010 ffffffff 1 R4 LDG.E 1 R2 4 1 0x7f00", "the stride of the addresses"),
        ("0010 0000000f 1 R4 LDG.E 1 R2 4 2 0x7f00 4 4", "the difference of an active lane's address"),
        ("0010 00000003 1 R4 LDG.E 1 R2 4 0 0x7f00", "the address of an active lane"),
        ("0010 00000005 1 R4 LDG.E 1 R2 4 1 0x7f00 4", "neighbouring lanes with a base and a stride"),
        ("0010 00000001 1 R4 LDG.E 1 R2 4 3 0x7f00 4", "0, 1 or 2 for how addresses are written"),
        ("0010 00000001 1 R4 LDG.E 1 R2 500 1 0x7f00 4", "a width of at most 128 bytes"),
        ("0010 00000003 1 R4 LDG.E 1 R2 4 1 0xffffffffffffffff 4", "addresses of 64 bits"),
        ("0010 00000003 1 R4 LDG.E 1 R2 4 1 0x7f00 4 9", "the end of the line"),
        ("0010 fffffffff 1 R4 MOV 0 0", "the mask of active lanes in hex, of 32 bits"),
        ("0010 ffffffff 4000000000 MOV 0 0", "a destination"),
    ];
    for (line, expected) in cases {
        let error = bench.error(format!("{HEADER}{GROUP}insts = 1\n{line}\n")).to_string();
        assert!(error.contains("FILE:12:") && error.contains(expected), "{line}: {error}");
    }
    let error = bench.error(format!("{HEADER}0010 ffffffff 1 R1 MOV 0 0\n")).to_string();
    assert!(error.contains("thread block and warp, then an instruction"), "{error}");
    let error = bench.error(format!("{HEADER}-accelsim tracer version = 2\n")).to_string();
    assert!(error.contains("from version 3 on in `FILE`, found version 2"), "{error}");
    let error = bench.error(format!("{HEADER}-nregs = many\n")).to_string();
    assert!(error.contains("a number of registers"), "{error}");
}

#[test]
fn a_warp_that_was_cut_and_odd_headers_are_logged() {
    let bench = Bench::new();
    let text_ = format!(
        "{HEADER}-magic = 1\n-accelsim tracer version = 9\n{GROUP}insts = 3\n0010 00000001 1 R4 LDG.E 1 R2 4 1 0x20 4\n\
         warp = 6\ninsts = 1\n0010 bad\n0018 00000001 1 R4 LDG.E 1 R2 4 1 0x40 4\n-kernel name = other\n\
         {GROUP}insts = 1\n0010 00000001 1 R4 LDG.E 1 R2 4 1 0x60 4\n"
    );
    let summaries = bench.ingest(&[&bench.file("a", text_)], &quarantine()).unwrap();
    let codes = [("unknown_key", 1), ("tracer_version", 1), ("instruction_count", 2)];
    assert_eq!(counts(&summaries[0]), codes);
    assert_eq!((summaries[0].rows_in, summaries[0].rows_out, summaries[0].rows_rejected), (6, 5, 1));
    let accesses = read(&bench, &ACCESSES);
    assert_eq!(column::<UInt32Type>(&accesses, "launch"), [0, 0, 1]);
    assert_eq!(text(&accesses, "kernel")[2], Some("other".to_owned()));
    check_law(&bench);
}

#[test]
fn copies_of_a_kernel_list_are_kernels() {
    let bench = Bench::new();
    let summaries = bench.ingest(&[&sample("accelsim/matrixmul.kernelslist.g")], &Options::standard()).unwrap();
    assert_eq!(counts(&summaries[0]), [("copy_address", 2), ("kernel_file", 1)]);
    let kernels = read(&bench, &KERNELS);
    assert_eq!(column::<UInt64Type>(&kernels, "bytes"), [4096, 4096]);
    assert_eq!(text(&kernels, "copy_kind"), vec![Some("host_to_device".to_owned()); 2]);
    assert_eq!(kernels[0].column_by_name("start_ns").unwrap().null_count(), 2);
    check_law(&bench);
    let bench = Bench::new();
    let error = bench.error("kernel-1.traceg\nkernel-2.traceg.xz\n").to_string();
    assert!(
        error.starts_with("expected copies in the kernel list `FILE`, found the names of kernel files alone"),
        "{error}"
    );
    let error = bench.error("MemcpyHtoD,0x1,4096\nMemcpyHtoD,0x1,\n").to_string();
    assert!(error.contains("FILE:2:16: expected the bytes of the copy"), "{error}");
}

#[test]
fn statistics_are_nearly_it() {
    let bench = Bench::new();
    let path = bench.file("a", "kernel id, kernel mangled name, grid_dimX, grid_dimY\nkernel-1.trace, k, 1, 1\n");
    let found = inspect(&path).unwrap();
    let (_, sniff) = found.verdicts.iter().find(|(name, _)| *name == "accelsim").unwrap();
    assert!(matches!(sniff, Sniff::Nearly(why) if why.contains("statistics")));
}
