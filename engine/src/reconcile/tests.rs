//! Known captures, laws on random ones, and slow references.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use proptest::prelude::*;

use super::fit::{TERMS, Timed, calibrated, fit, timed};
use super::kernels::{Category, Kernel, Kernels, booths, by_booth, by_name, kernels, missing_counters};
use super::ranges::{Annotated, Join, Kind, Range, annotated, assign, kind_of};
use super::residency::{events, residency};
use super::rules::{Booth, Rules, parse};
use super::{accesses, address, tables, toll};
use crate::cost::{Parallel, Plan, plan};
use crate::machine::{Machine, calibrate};
use crate::model::{Certainty, Model, WeightDtype};
use crate::policy::{Stack, shape};
use crate::schema::canonical::{REQUESTS, STEPS};
use crate::schema::captured::{ACCESSES, ANNOTATIONS, BLOCK_EVENTS, KERNELS};
use crate::schema::{Cell, Table, Type, batch_of_rows, list_u32, list_u64};
use crate::serving::{CapturedStep, captured};

const RULES: &str = include_str!("../../../presets/kernels.toml");

fn rules() -> Rules {
    parse(RULES, "presets/kernels.toml").unwrap()
}

/// A batch of a table from named cells; what a row does not name is null. Lists are given apart.
fn batch(table: &'static Table, rows: &[&[(&str, Cell)]], list: &[&[u64]]) -> RecordBatch {
    let scalar: Vec<_> = table.columns.iter().filter(|column| !is_list(column.kind)).copied().collect();
    let scalars: &'static Table =
        Box::leak(Box::new(Table { name: table.name, doc: "", scope: table.scope, columns: Box::leak(scalar.into()) }));
    for row in rows {
        assert!(row.iter().all(|(name, _)| scalars.column(name).is_some()), "{row:?}");
    }
    let cells: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| {
            let cell = |name| row.iter().find(|(known, _)| *known == name).map_or(Cell::Null, |(_, cell)| cell.clone());
            scalars.columns.iter().map(|column| cell(column.name)).collect()
        })
        .collect();
    let scalars = batch_of_rows(scalars, &cells).unwrap();
    let column = |column: &crate::schema::Column| -> ArrayRef {
        match column.kind {
            Type::ListU64 => {
                let mut builder = list_u64();
                for row in 0..rows.len() {
                    builder.append_option(list.get(row).map(|values| values.iter().map(|value| Some(*value))));
                }
                Arc::new(builder.finish())
            }
            Type::ListU32 => {
                let mut builder = list_u32();
                (0..rows.len()).for_each(|_| builder.append_null());
                Arc::new(builder.finish())
            }
            _ => scalars.column_by_name(column.name).unwrap().clone(),
        }
    };
    RecordBatch::try_new(table.arrow(), table.columns.iter().map(column).collect()).unwrap()
}

fn is_list(kind: Type) -> bool {
    matches!(kind, Type::ListU32 | Type::ListU64)
}

fn number(batch: &RecordBatch, column: &str, row: usize) -> String {
    let array = batch.column_by_name(column).unwrap_or_else(|| panic!("{column}"));
    if array.is_null(row) {
        "null".to_owned()
    } else {
        arrow::util::display::array_value_to_string(array, row).unwrap()
    }
}

// ---- rules ----

/// Kernels, time and name of the distinct names of a real capture (see traces/SOURCES.tsv).
fn real_names() -> Vec<(u64, i64, &'static str)> {
    let text = include_str!("../../../traces/nsys/kernel_names.tsv");
    let row = |line: &'static str| {
        let mut cells = line.splitn(3, '\t');
        let mut next = || cells.next().unwrap();
        (next().parse().unwrap(), next().parse().unwrap(), next())
    };
    text.lines().skip(1).map(row).collect()
}

#[test]
fn the_kernels_of_a_real_capture_fall_into_booths_that_add_up() {
    let rules = rules();
    let mut sums: BTreeMap<Booth, (u64, i64)> = BTreeMap::new();
    for (count, time, name) in real_names() {
        let sum = sums.entry(rules.booth(name)).or_default();
        *sum = (sum.0 + count, sum.1 + time);
    }
    // By hand: the seven `sm80_xmma_gemm` names; the two softmaxes; three copies, a concatenation, two fills.
    let linear = 31_121_662 + 4_780_503 + 2_199_305 + 283_873 + 230_113 + 105_600 + 60_064;
    let (attention, copy) = (97_153 + 23_968, 320_704 + 287_874 + 137_281 + 10_976 + 65_056 + 6_752);
    assert_eq!(sums[&Booth::Linear], (248 + 26 + 240 + 56 + 48 + 14 + 8, linear));
    assert_eq!(sums[&Booth::Attention], (56, attention));
    assert_eq!(sums[&Booth::Copy], (112 + 116 + 56 + 2 + 56 + 2, copy));
    assert_eq!(sums[&Booth::Other].1, 44_829_522 - linear - attention - copy);
    assert_eq!(sums.len(), 4, "nothing is unclassified, and no device talks to another");
    assert_eq!(sums.values().map(|sum| sum.0).sum::<u64>(), 3_442);
    assert_eq!(sums.values().map(|sum| sum.1).sum::<i64>(), 44_829_522);
}

// Names as serving engines and libraries form them. The `volta` and `cudnn` ones stand in a real trace of the PyTorch
// profiler, shortened; the others are written from knowledge of the libraries, some shortened, and come from no
// capture.
#[test]
fn kernels_of_serving_engines_are_known() {
    let names = [
        (
            "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>, false>(flash::Flash_fwd_params)",
            Booth::Attention,
        ),
        (
            "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(P)",
            Booth::Attention,
        ),
        ("void vllm::paged_attention_v2_kernel<__half, __half, 128, 16, 128>(float*)", Booth::Attention),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(__nv_bfloat16 const*)", Booth::Attention),
        ("kernel_unified_attention_2d", Booth::Attention),
        ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>(P)", Booth::Attention),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausal", Booth::Attention),
        ("fused_moe_kernel", Booth::Moe),
        ("void vllm::moe::topkGatingSoftmax<4, 64, 4, 16>(float const*, bool const*, float*, int, int*)", Booth::Moe),
        ("void vllm::moe::moe_align_block_size_kernel<int>(int const*)", Booth::Moe),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape<int>>>(P)", Booth::Moe),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", Booth::Linear),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", Booth::Linear),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>(cublasGemvParamsEx<int>)", Booth::Linear),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", Booth::Linear),
        ("void marlin::Marlin<1125899906909960l, 256, 1, 8, 8, 4>(int4 const*)", Booth::Linear),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI16x16x16x1", Booth::Linear),
        ("volta_sgemm_64x64_nt", Booth::Linear),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", Booth::Linear),
        ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>(float)", Booth::Other),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Booth::Collective),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", Booth::Collective),
        ("void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)", Booth::Other),
        (
            "void vllm::act_and_mul_kernel<c10::BFloat16, &(vllm::silu_kernel(c10::BFloat16 const&))>(c10::BFloat16*)",
            Booth::Other,
        ),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", Booth::Other),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", Booth::Other),
        ("my_own_kernel", Booth::Unclassified),
    ];
    let rules = rules();
    for (name, booth) in names {
        assert_eq!(rules.booth(name), booth, "{name}: {:?}", rules.matching(name));
    }
}

#[test]
fn the_first_rule_wins_words_have_borders_and_capitals_count() {
    let rules = parse(
        r#"rules = [
            { booth = "moe", word = "moe" },
            { booth = "copy", pattern = "Moe" },
            { booth = "other", pattern = "moe" },
        ]"#,
        "r.toml",
    )
    .unwrap();
    for (name, booth) in [
        ("fused_moe_kernel", Booth::Moe),
        ("FUSED<MOE>", Booth::Moe),
        ("xMoe1", Booth::Copy),
        ("xmoe1", Booth::Other),
        ("moe2", Booth::Other),
        ("émoeé", Booth::Moe),
        ("mo", Booth::Unclassified),
        ("", Booth::Unclassified),
    ] {
        assert_eq!(rules.booth(name), booth, "{name}");
    }
    assert_eq!(rules.list()[0].text(), r#"word = "moe""#);
}

#[test]
fn a_bad_rule_is_named_with_its_place_its_key_and_what_is_allowed() {
    for (text, expected) in [
        (
            "rules = [\n  { booth = \"gemm\", pattern = \"x\" },\n]",
            "r.toml:2:13: `booth`: expected one of attention, linear, moe, collective, copy, other, found `gemm`",
        ),
        ("rules = [\n{ booth = \"unclassified\", pattern = \"x\" }]", "r.toml:2:11: `booth`: expected one of"),
        ("rules = [\n{ booth = \"moe\" }]", "r.toml:2:1: expected one of the keys `pattern` and `word`, found neither"),
        (
            "rules = [{ booth = \"moe\", pattern = \"a\", word = \"b\" }]",
            "r.toml:1:10: expected one of the keys `pattern` and `word`, found both",
        ),
        (
            "rules = [\n\n{ booth = \"moe\", patern = \"a\" }]",
            "r.toml:3:18: unknown field `patern`, expected one of `booth`, `pattern`, `word`",
        ),
        (
            "rules = [{ booth = \"moe\", word = \" \" }]",
            "r.toml:1:34: `word`: expected text to look for in names, found none",
        ),
        ("rules = [{ pattern = \"a\" }]", "missing field `booth`"),
        ("rules = []", "r.toml: expected at least one rule"),
        ("", "missing field `rules`"),
    ] {
        let error = parse(text, "r.toml").unwrap_err();
        assert!(error.to_string().contains(expected), "{text}\n{error}");
    }
}

// ---- kernels ----

fn kernel(name: u32, start: i64, duration: i64) -> Kernel {
    Kernel {
        source: 0,
        id: 0,
        category: Category::Kernel,
        name,
        start: Some(start),
        duration: Some(duration),
        process: Some(1),
        device: Some(0),
        correlation: None,
        launch: None,
        bytes: None,
        dram_read: None,
        dram_write: None,
    }
}

#[test]
fn rows_of_the_table_are_summed_by_booth_and_category() {
    let row = |id: u64, category: &'static str, name: &'static str, duration: Option<i64>, bytes: Option<u64>| {
        vec![
            ("source_id", Cell::from(0_u32)),
            ("kernel_id", id.into()),
            ("category", category.into()),
            ("name", name.into()),
            ("duration_ns", duration.into()),
            ("bytes", bytes.into()),
            ("dram_read_bytes", (id == 0).then_some(700_u64).into()),
            ("dram_write_bytes", (id == 0).then_some(30_u64).into()),
        ]
    };
    let rows = [
        row(0, "kernel", "flash_fwd", Some(10), None),
        row(1, "kernel", "flash_fwd", Some(5), None),
        row(2, "kernel", "mystery", Some(3), None),
        row(3, "kernel", "mystery", None, None),
        row(4, "copy", "flash memcpy", Some(7), Some(64)),
        row(5, "collective", "mystery", Some(2), None),
    ];
    let rows: Vec<&[(&str, Cell)]> = rows.iter().map(Vec::as_slice).collect();
    let found = kernels(&[batch(&KERNELS, &rows, &[])]).unwrap();
    let of = booths(&found, &rules());
    let sums = by_booth(&found, &of);
    let sum = |booth, category| sums[&(booth, category)];
    assert_eq!((sum(Booth::Attention, Category::Kernel).rows, sum(Booth::Attention, Category::Kernel).time), (2, 15));
    assert_eq!(
        (sum(Booth::Unclassified, Category::Kernel).untimed, sum(Booth::Unclassified, Category::Kernel).time),
        (1, 3)
    );
    assert_eq!((sum(Booth::Copy, Category::Copy).bytes, sum(Booth::Collective, Category::Collective).time), (64, 2));
    let table = tables::booths(&found, &of).unwrap();
    assert_eq!(number(&table, "dram_read_bytes", 0), "700");
    assert_eq!(number(&table, "counted", 0), "1");
    let named = tables::names(&found, &of, &rules()).unwrap();
    assert_eq!(number(&named, "rule", 0), "pattern = \"flash\"");
    assert_eq!(number(&named, "rule", 1), "null", "the capture itself calls it a copy");
    assert_eq!(by_name(&found, &of).len(), 4);
    let missing = missing_counters(&found);
    assert_eq!(
        missing[0],
        "`dram_read_bytes` is known of 1 of 5 kernels (Nsight Compute counts it as `dram__bytes_read.sum`)"
    );
    assert_eq!(missing.len(), 2);
}

#[test]
fn a_sum_beyond_64_bits_is_an_error() {
    let all = Kernels { names: vec!["flash".to_owned()], rows: vec![kernel(0, 0, i64::MAX); 2] };
    let error = tables::booths(&all, &booths(&all, &rules())).unwrap_err().to_string();
    assert_eq!(error, "`booths.time_ns`: expected a whole number that fits i64, found 18446744073709551614");
}

#[test]
fn an_unknown_category_is_an_error() {
    let row: &[(&str, Cell)] = &[
        ("source_id", 0_u32.into()),
        ("kernel_id", 0_u64.into()),
        ("category", "krenel".into()),
        ("name", "a".into()),
    ];
    let error = kernels(&[batch(&KERNELS, &[row], &[])]).unwrap_err().to_string();
    assert_eq!(error, "`kernels.category`: expected kernel, copy, fill or collective, found `krenel`");
}

proptest! {
    /// Whatever the rows and the durations: nothing is lost and nothing counts twice.
    #[test]
    fn booths_sum_to_the_total(rows in prop::collection::vec((0_u32..5, 0_usize..4, any::<i64>()), 0..200)) {
        let names = ["flash", "gemm", "nccl", "?", "moe"].map(str::to_owned).to_vec();
        let rows: Vec<Kernel> = rows
            .into_iter()
            .map(|(name, category, time)| Kernel { category: Category::ALL[category], ..kernel(name, 0, time) })
            .collect();
        let all = Kernels { names, rows };
        let of = booths(&all, &rules());
        let total: i128 = all.rows.iter().map(|kernel| i128::from(kernel.duration.unwrap())).sum();
        let sums = by_booth(&all, &of);
        prop_assert_eq!(sums.values().map(|sum| sum.time).sum::<i128>(), total);
        prop_assert_eq!(sums.values().map(|sum| sum.rows).sum::<u64>(), all.rows.len() as u64);
        let named = by_name(&all, &of);
        prop_assert_eq!(named.iter().map(|row| row.3.time).sum::<i128>(), total);
    }
}

// ---- ranges ----

#[test]
fn names_say_what_a_range_is() {
    for (name, category, kind) in [
        ("ProfilerStep#5", "step", Some(Kind::Step)),
        ("decode_step_17", "nvtx", Some(Kind::Step)),
        ("iteration 3", "nvtx", Some(Kind::Step)),
        ("model.layers.11.forward", "nvtx", Some(Kind::Layer)),
        ("Layer12", "nvtx", Some(Kind::Layer)),
        ("prefill", "user_annotation", Some(Kind::Phase)),
        ("[param|pytorch.model.alex_net|0|0|0|measure|forward]", "user_annotation", Some(Kind::Phase)),
        // As they stand in the real capture: operators and hooks are no ranges.
        ("aten::layer_norm, op_id = 4711", "nvtx", None),
        ("FSDP::pre_forward (encoder.block.14.layer.0), op_id = 314310", "nvtx", None),
        ("LayerNorm", "nvtx", None),
        ("layer_norm_forward", "nvtx", Some(Kind::Phase)),
        ("forward", "operator", None),
        ("backstepping", "nvtx", None),
        ("", "nvtx", None),
    ] {
        assert_eq!(kind_of(name, category), kind, "{name}");
    }
}

fn annotation(
    id: u64,
    name: &'static str,
    category: &'static str,
    span: (i64, i64),
    thread: u64,
    join: Option<u64>,
) -> Vec<(&'static str, Cell)> {
    vec![
        ("source_id", 0_u32.into()),
        ("annotation_id", id.into()),
        ("name", name.into()),
        ("category", category.into()),
        ("start_ns", span.0.into()),
        ("duration_ns", (span.1 - span.0).into()),
        ("process", 1_u64.into()),
        ("thread", thread.into()),
        ("correlation", join.into()),
    ]
}

#[test]
fn kernels_join_ranges_by_launch_or_by_containment() {
    let rows = [
        annotation(0, "step 0", "nvtx", (0, 100), 7, None),
        annotation(1, "step 1", "nvtx", (100, 200), 7, None),
        annotation(2, "layer 0", "nvtx", (10, 50), 7, None),
        annotation(3, "step of another thread", "nvtx", (40, 60), 8, None),
        annotation(4, "cudaLaunchKernel", "runtime", (45, 46), 7, Some(5)),
        annotation(5, "cuLaunchKernel", "runtime", (145, 146), 7, Some(5)),
    ];
    let rows: Vec<&[(&str, Cell)]> = rows.iter().map(Vec::as_slice).collect();
    let known = annotated(&[batch(&ANNOTATIONS, &rows, &[])]).unwrap();
    assert_eq!(known.ranges.len(), 4);
    let all = Kernels {
        names: vec!["k".to_owned()],
        rows: vec![
            // Runs long after step 0, which launched it from thread 7 within the step of thread 8.
            Kernel { correlation: Some(5), ..kernel(0, 150, 10) },
            // Its launch is known only by its time.
            Kernel { launch: Some(100), ..kernel(0, 500, 1) },
            // Launched outside of all steps: containment does not replace a known launch.
            Kernel { launch: Some(300), ..kernel(0, 110, 1) },
            // No launch; within step 1, and across the border of two.
            kernel(0, 120, 30),
            kernel(0, 90, 20),
            // Another process, and no instant.
            Kernel { process: Some(2), ..kernel(0, 120, 30) },
            Kernel { start: None, ..kernel(0, 0, 1) },
        ],
    };
    let steps = assign(&all, &known, Kind::Step);
    let step = |at: usize, join| Some((at, join));
    assert_eq!(
        steps,
        [step(0, Join::Launch), step(1, Join::Launch), None, step(1, Join::Containment), None, None, None]
    );
    let layers = assign(&all, &known, Kind::Layer);
    assert_eq!(layers[0], step(2, Join::Launch));
    assert!(layers[1..].iter().all(Option::is_none));
    let table = tables::ranges(&all, &booths(&all, &rules()), &known).unwrap();
    // Steps: none, 0 and 1; layers: none and 0.
    assert_eq!(table.num_rows(), 5);
    assert_eq!((number(&table, "name", 0), number(&table, "kernels", 0)), ("(in none)".to_owned(), "4".to_owned()));
    assert_eq!((number(&table, "name", 2), number(&table, "by_containment", 2)), ("step 1".to_owned(), "1".to_owned()));
}

#[test]
fn ranges_of_a_device_hold_its_own_kernels() {
    let rows = [annotation(0, "step 0", "gpu_user_annotation", (0, 100), 7, None)];
    let rows: Vec<&[(&str, Cell)]> = rows.iter().map(Vec::as_slice).collect();
    let known = annotated(&[batch(&ANNOTATIONS, &rows, &[])]).unwrap();
    let on = |device| Kernel { process: Some(99), device: Some(device), ..kernel(0, 10, 10) };
    let all = Kernels { names: vec!["k".to_owned()], rows: vec![on(0), on(1)] };
    // The range's process is the device.
    assert_eq!(assign(&all, &known, Kind::Step), [None, Some((0, Join::Containment))]);
}

proptest! {
    /// Against a reference that looks at every range: the innermost that contains the kernel, and each kernel at most
    /// once.
    #[test]
    fn containment_takes_the_innermost_and_never_twice(
        ranges in prop::collection::vec((0_i64..60, 1_i64..40), 0..20),
        spans in prop::collection::vec((0_i64..80, 0_i64..20), 0..40),
    ) {
        let range = |(id, &(start, length)): (usize, &(i64, i64))| Range {
            source: 0,
            id: id as u64,
            kind: Kind::Step,
            name: "step".to_owned(),
            start,
            end: start + length,
            process: Some(1),
            thread: None,
            is_on_device: false,
        };
        let known = Annotated { ranges: ranges.iter().enumerate().map(range).collect(), ..Annotated::default() };
        let rows: Vec<Kernel> = spans.iter().map(|&(start, length)| kernel(0, start, length)).collect();
        let all = Kernels { names: vec!["k".to_owned()], rows };
        let found = assign(&all, &known, Kind::Step);
        for (row, kernel) in all.rows.iter().enumerate() {
            let (start, end) = (kernel.start.unwrap(), kernel.start.unwrap() + kernel.duration.unwrap());
            let slow = (0..known.ranges.len())
                .filter(|&at| known.ranges[at].start <= start && known.ranges[at].end >= end.max(start + 1))
                .max_by_key(|&at| (known.ranges[at].start, std::cmp::Reverse(known.ranges[at].end), at));
            prop_assert_eq!(found[row].map(|(at, _)| at), slow);
        }
        // Rows of the table: every kernel once.
        if !known.ranges.is_empty() {
            let table = tables::ranges(&all, &booths(&all, &rules()), &known).unwrap();
            let count = |row| number(&table, "kernels", row).parse::<u64>().unwrap();
            let kernels: u64 = (0..table.num_rows()).map(count).sum();
            prop_assert_eq!(kernels, all.rows.len() as u64);
        }
    }
}

// ---- accesses and addresses ----

fn access(id: u64, launch: u32, space: &'static str, write: bool, bytes: Option<u64>) -> Vec<(&'static str, Cell)> {
    vec![
        ("source_id", 0_u32.into()),
        ("access_id", id.into()),
        ("kernel", "vecadd".into()),
        ("launch", launch.into()),
        ("cta_x", 0_u32.into()),
        ("cta_y", 0_u32.into()),
        ("cta_z", 0_u32.into()),
        ("warp", 0_u32.into()),
        ("opcode", "LDG.E".into()),
        ("space", space.into()),
        ("is_write", write.into()),
        ("address", 0_u64.into()),
        ("bytes", bytes.into()),
        ("sectors", 0_u32.into()),
    ]
}

fn access_table() -> RecordBatch {
    let rows = [
        access(0, 0, "global", false, Some(128)),
        access(1, 0, "global", false, Some(8)),
        access(2, 0, "shared", true, Some(128)),
        access(3, 1, "global", true, None),
        access(4, 1, "global", false, Some(64)),
    ];
    let rows: Vec<&[(&str, Cell)]> = rows.iter().map(Vec::as_slice).collect();
    batch(&ACCESSES, &rows, &[&[0, 1, 2, 3], &[0, 2], &[99], &[1], &[3]])
}

/// Five sectors in the launches, four in all of them.
#[test]
fn more_distinct_sectors_than_can_be_followed_are_refused() {
    let mut sums = accesses::Sums::default();
    sums.take_within(&access_table(), 10).unwrap();
    let mut sums = accesses::Sums::default();
    let error = sums.take_within(&access_table(), 9).unwrap_err();
    assert!(error.to_string().starts_with("expected at most 9 distinct sectors"), "{error}");
    assert!(error.advice().unwrap().contains("--source"), "{error}");
}

#[test]
fn accesses_are_summed_by_launch_and_by_source() {
    let sums = accesses::by_launch(&[access_table()]).unwrap();
    let launches: Vec<Option<u32>> = sums.iter().map(|sum| sum.launch).collect();
    assert_eq!(launches, [Some(0), Some(1), None]);
    let first = &sums[0];
    assert_eq!((first.accesses, first.writes, first.shared, first.unknown, first.bytes), (2, 0, 1, 0, 136));
    assert_eq!((first.distances.references, first.footprint_bytes(), first.distances.reuses()), (6, 128, 2));
    // Sectors 0 1 2 3 0 2: three others since 0, and 3 and 0 since 2.
    assert_eq!(first.distances.counts, [0, 0, 1, 1]);
    assert_eq!(first.used_per_sector(), Some(136.0 / 6.0));
    // 64 bytes from one sector: lanes share them, so that at most 32 are used.
    assert_eq!((sums[1].unknown, sums[1].bytes, sums[1].used_per_sector()), (1, 64, Some(32.0)));
    assert_eq!((sums[2].accesses, sums[2].distances.references, sums[2].distances.cold), (4, 8, 4));
    let table = tables::accesses(&sums).unwrap();
    assert_eq!(
        (number(&table, "kernel", 2), number(&table, "moved_bytes", 2)),
        ("(all launches)".to_owned(), "256".to_owned())
    );
}

const MAP: &str = r#"
[[region]]
name = "keys"
base = "0x0"
block_tokens = 2
layout = [
  { dimension = "layer", count = 2, stride_bytes = 64 },
  { dimension = "token", count = 4, stride_bytes = 16 },
]
[[region]]
name = "values"
base = 1024
layout = [
  { dimension = "block", count = 3, stride_bytes = 100 },
  { dimension = "part", count = 2, stride_bytes = 40 },
  { dimension = "token", count = 2, stride_bytes = 20 },
]
"#;

#[test]
fn addresses_become_blocks() {
    let map = address::parse(MAP, "m.toml").unwrap();
    let block = |address| map.block(address).map(|block| (block.layer, block.block));
    // Keys: layers of 64 bytes, blocks of 32.
    for (address, expected) in [(0, (0, 0)), (31, (0, 0)), (32, (0, 1)), (64, (1, 0)), (127, (1, 1))] {
        assert_eq!(block(address), Some(expected), "{address}");
    }
    // Values: blocks of 80 bytes every 100.
    assert_eq!((block(1024), block(1024 + 179), block(1024 + 180)), (Some((0, 0)), Some((0, 1)), None));
    assert_eq!((block(128), block(1023), block(u64::MAX)), (None, None, None));
}

#[test]
fn accesses_become_a_block_stream_that_can_be_replayed() {
    let map = address::parse(MAP, "m.toml").unwrap();
    let stream = address::block_stream(&map, &[access_table()]).unwrap();
    // Sectors 0 1 2 3 are blocks (0,0) (0,1) (1,0) (1,1); the shared access does not count.
    assert_eq!((stream.mapped, stream.unmapped), (8, 0));
    assert_eq!(stream.dense(), [0, 1, 2, 3, 0, 2, 1, 3]);
    let uses = tables::block_uses(&stream).unwrap();
    assert_eq!((number(&uses, "access_id", 6), number(&uses, "is_write", 6)), ("3".to_owned(), "true".to_owned()));
    let blocks = tables::blocks(&stream, None).unwrap();
    let row = |at: usize| ["capacity_blocks", "hits", "evictions"].map(|name| number(&blocks, name, at));
    assert_eq!((blocks.num_rows(), row(2)), (3, ["4", "4", "0"].map(str::to_owned)));
    assert_eq!(row(0), ["1", "0", "7"].map(str::to_owned));
}

#[test]
fn a_sector_can_hold_two_blocks() {
    let map = r#"
[[region]]
name = "a"
base = 16
block_tokens = 1
layout = [{ dimension = "token", count = 4, stride_bytes = 24 }]
"#;
    let map = address::parse(map, "m.toml").unwrap();
    let stream = address::block_stream(&map, &[access_table()]).unwrap();
    // Sector 0 ends in token 0; sector 1 (bytes 32 to 63) begins in token 0 and ends in token 1.
    assert_eq!(stream.uses[..2].iter().map(|used| used.block.block).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_wrong_address_map_is_refused_with_its_place() {
    let with = |old: &str, new: &str| MAP.replacen(old, new, 1);
    for (text, expected) in [
        (with("\"layer\"", "\"lair\""), "m.toml:7:17: unknown dimension `lair`"),
        (with("\"0x0\"", "\"0xzz\""), "m.toml:4:8: `base`: expected an address"),
        (with("block_tokens = 2", "block_tokens = 0"), "expected `block_tokens` above 0, or a dimension `block`"),
        (
            with("stride_bytes = 16", "stride_bytes = 17"),
            "`token`: expected 4 times 17 bytes above 0 and within the 64 bytes",
        ),
        (with("base = 1024", "base = 100"), "the regions `keys` and `values` overlap"),
        (with("base = 1024", "base = \"18446744073709551600\""), "the region ends beyond 64 bits"),
        (with("count = 2, stride_bytes = 64", "count = 0, stride_bytes = 64"), "expected 0 times 64"),
        (with("\"token\"", "\"layer\""), "the dimension `layer` is there twice"),
        (with("\"token\"", "\"head\""), "expected a dimension `token` or `block`, found neither"),
        (String::new(), "missing field `region`"),
    ] {
        let error = address::parse(&text, "m.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}

// ---- residency ----

type Sent = (u64, &'static str, Option<u64>, Option<u64>, u32);

fn event_table(sent: &[Sent]) -> RecordBatch {
    let row = |&(seq, event, hash, parent, index): &Sent| {
        vec![
            ("source_id", Cell::from(0_u32)),
            ("seq", seq.into()),
            ("event_index", 0_u32.into()),
            ("block_index", index.into()),
            ("time_ns", (seq as i64 * 10).into()),
            ("event", event.into()),
            ("block_hash", hash.into()),
            ("parent_hash", parent.into()),
            ("medium", (event != "cleared").then_some("GPU").into()),
        ]
    };
    let rows: Vec<_> = sent.iter().map(row).collect();
    batch(&BLOCK_EVENTS, &rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[])
}

#[test]
fn residency_follows_the_events_and_lru_stands_beside() {
    let top = u64::MAX;
    let sent = [
        (0, "stored", Some(top), None, 0),
        (0, "stored", Some(top - 1), Some(top), 1),
        (1, "stored", Some(5), None, 0),
        (4, "removed", Some(5), None, 0),
        // A sibling of the second block: its chain is in use, block 5 is the oldest.
        (5, "stored", Some(6), Some(top), 0),
        (5, "stored", Some(6), Some(top), 0),
        (6, "removed", Some(77), None, 0),
        (6, "updated", Some(6), None, 0),
        (7, "cleared", None, None, 0),
        (8, "stored", Some(5), None, 0),
    ];
    let known = events(&[event_table(&sent)]).unwrap();
    assert_eq!(known.ignored, 1);
    let pools = residency(&known, 1, None);
    assert_eq!((pools.len(), pools[0].capacity, pools[0].buckets.len()), (1, 3, 1));
    let bucket = &pools[0].buckets[0];
    assert_eq!((bucket.stored, bucket.stored_again, bucket.removed, bucket.removed_unknown), (5, 1, 1, 1));
    assert_eq!((bucket.cleared, bucket.lost, bucket.resident, bucket.peak), (3, 2, 1, 3));
    assert_eq!((bucket.first_ns, bucket.last_ns), (Some(0), Some(80)));
    // References: a, a's child, 5, a and 6 (evicts the child, for 5 came later), a and 6 again, and 5 after all went.
    assert_eq!((bucket.replayed_references, bucket.replayed_hits), (8, 3));
    assert_eq!((bucket.replayed_evictions, bucket.replayed_resident), (1, 1));
    let table = tables::residency(&residency(&known, 3, Some(2))).unwrap();
    assert_eq!((table.num_rows(), number(&table, "capacity_blocks", 0)), (3, "2".to_owned()));
}

/// By the rules of the reader: what comes late was not lost, what never comes is told where it was missed.
#[test]
fn late_messages_are_not_lost() {
    let lost = |sent: &[Sent]| -> Vec<u64> {
        let pools = residency(&events(&[event_table(sent)]).unwrap(), sent.len(), None);
        pools.iter().flat_map(|pool| pool.buckets.iter().map(|bucket| bucket.lost)).collect()
    };
    let stored = |seq: u64| (seq, "stored", Some(seq), None, 0);
    assert_eq!(lost(&[stored(0), stored(3), stored(1), stored(2)]), [0, 0, 0, 0]);
    assert_eq!(lost(&[stored(0), stored(3), stored(1), stored(6)]), [0, 1, 0, 2]);
    // What an event that is none shows is told with the next one.
    assert_eq!(lost(&[stored(0), (4, "updated", Some(0), None, 0), stored(5)]), [0, 3]);
}

/// TensorRT-LLM names no level where it removes, and two engines may publish the same hash.
#[test]
fn a_removal_without_a_medium_finds_its_block_and_topics_are_engines_of_their_own() {
    let row = |topic: &'static str, event: &'static str, medium: Option<&'static str>| {
        vec![
            ("source_id", Cell::from(0_u32)),
            ("event_index", 0_u32.into()),
            ("block_index", 0_u32.into()),
            ("event", event.into()),
            ("block_hash", 7_u64.into()),
            ("medium", medium.into()),
            ("topic", topic.into()),
        ]
    };
    let rows = [row("a", "stored", Some("GPU")), row("b", "stored", Some("GPU")), row("a", "removed", None)];
    let table = batch(&BLOCK_EVENTS, &rows.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[]);
    let pools = residency(&events(&[table]).unwrap(), 1, None);
    let found: Vec<_> = pools
        .iter()
        .map(|pool| (pool.pool.topic.as_deref(), &pool.buckets[0]))
        .map(|(topic, bucket)| (topic, bucket.stored, bucket.removed, bucket.removed_unknown, bucket.resident))
        .collect();
    assert_eq!(found, [(Some("a"), 1, 1, 0, 0), (Some("b"), 1, 0, 0, 1)]);
}

#[test]
fn a_chain_that_bites_its_tail_ends() {
    let sent =
        [(0, "stored", Some(1), Some(2), 0), (1, "stored", Some(2), Some(1), 0), (2, "stored", Some(3), Some(3), 0)];
    let pools = residency(&events(&[event_table(&sent)]).unwrap(), 1, None);
    assert_eq!(pools[0].buckets[0].resident, 3);
}

proptest! {
    /// Against sets and a list, with references computed from the rows themselves.
    #[test]
    fn replayed_events_match_a_slow_reference(
        rows in prop::collection::vec((0_u8..8, 0_u64..12, prop::option::of(0_u64..12), 0_u32..2), 0..120),
        capacity in 1_u64..8,
        buckets in 1_usize..5,
    ) {
        let name = |kind: u8| match kind { 0 => "cleared", 1 | 2 => "removed", _ => "stored" };
        let sent: Vec<Sent> = rows
            .iter()
            .enumerate()
            .map(|(at, &(kind, hash, parent, index))| {
                (at as u64, name(kind), (kind > 0).then_some(hash), parent, index)
            })
            .collect();
        let mut parents: BTreeMap<u64, Option<u64>> = BTreeMap::new();
        let (mut resident, mut list) = (Vec::new(), Vec::new());
        let (mut removed, mut hits, mut evictions, mut peak) = (0, 0, 0, 0);
        for &(_, event, hash, parent, index) in &sent {
            match (event, hash) {
                ("stored", Some(hash)) => {
                    parents.insert(hash, parent);
                    let mut chain = vec![hash];
                    let above = |chain: &[u64]| parents.get(chain.last().unwrap()).copied().flatten();
                    while let Some(next) = above(&chain).filter(|next| index == 0 && !chain.contains(next)) {
                        chain.push(next);
                    }
                    for used in chain.into_iter().rev() {
                        let at = list.iter().position(|known| *known == used);
                        hits += u64::from(at.is_some());
                        if let Some(at) = at {
                            list.remove(at);
                        }
                        list.push(used);
                        if list.len() as u64 > capacity {
                            list.remove(0);
                            evictions += 1;
                        }
                    }
                    if !resident.contains(&hash) {
                        resident.push(hash);
                    }
                }
                ("removed", Some(hash)) => {
                    removed += u64::from(resident.contains(&hash));
                    resident.retain(|known| *known != hash);
                }
                _ => {
                    resident.clear();
                    list.clear();
                }
            }
            peak = peak.max(resident.len() as u64);
        }
        let pools = residency(&events(&[event_table(&sent)]).unwrap(), buckets, Some(capacity));
        let all: Vec<_> = pools.iter().flat_map(|pool| &pool.buckets).collect();
        prop_assert_eq!(all.iter().map(|bucket| bucket.removed).sum::<u64>(), removed);
        prop_assert_eq!(all.iter().map(|bucket| bucket.replayed_hits).sum::<u64>(), hits);
        prop_assert_eq!(all.iter().map(|bucket| bucket.replayed_evictions).sum::<u64>(), evictions);
        prop_assert_eq!(all.iter().map(|bucket| bucket.peak).max().unwrap_or(0), peak);
        prop_assert_eq!(all.last().map_or(0, |bucket| bucket.resident), resident.len() as u64);
        prop_assert_eq!(all.last().map_or(0, |bucket| bucket.replayed_resident), list.len() as u64);
    }
}

// ---- the model beside ----

fn model(name: &str) -> Model {
    let text = match name {
        "qwen3-8b" => include_str!("../../../presets/model/qwen3-8b.toml"),
        "gpt-oss-20b" => include_str!("../../../presets/model/gpt-oss-20b.toml"),
        _ => include_str!("../../../presets/model/deepseek-v3.toml"),
    };
    crate::model::parse(text, name).unwrap()
}

fn h200() -> Machine {
    crate::machine::parse(include_str!("../../../presets/machine/h200.toml"), "h200.toml").unwrap()
}

fn planned(name: &str, machine: &Machine, tensor: u32) -> Plan {
    let model = model(name);
    let shape = shape(&Stack::parse("full").unwrap(), &model).unwrap();
    plan(&model, &shape, machine, WeightDtype::Fp8, Parallel::tensor(tensor)).unwrap()
}

#[test]
fn the_modelled_booths_add_up_to_the_step() {
    for (name, tensor, experts) in
        [("qwen3-8b", 1, false), ("qwen3-8b", 4, false), ("gpt-oss-20b", 2, true), ("deepseek-v3", 8, true)]
    {
        let plan = planned(name, &h200(), tensor);
        for (batch, context) in [(1, 0), (1, 1000), (64, 8000), (4096, 300)] {
            let toll = toll::decode_step(&plan, batch, context).unwrap();
            let sum: f64 = toll.ns.iter().sum::<f64>() + toll.host_ns;
            assert!((sum / toll.total_ns - 1.0).abs() < 1e-9, "{name} {batch} {context}: {sum} {}", toll.total_ns);
            assert!(toll.ns.iter().all(|time| *time >= 0.0), "{toll:?}");
            assert_eq!(toll.ns[Booth::Moe.index()] > 0.0, experts);
            assert_eq!(toll.ns[Booth::Collective.index()] > 0.0, tensor > 1);
        }
    }
    assert!(toll::decode_step(&planned("qwen3-8b", &h200(), 1), 0, 10).is_err());
    assert!(toll::decode_step(&planned("qwen3-8b", &h200(), 1), u64::MAX, 10).is_err());
}

#[test]
fn the_modelled_bytes_follow_from_the_shape() {
    // Qwen3 8B in bf16 KV: 36 layers, 8 KV heads, 128 wide, K and V: 147,456 bytes a token. One is written beside.
    let toll = toll::decode_step(&planned("qwen3-8b", &h200(), 1), 2, 1000).unwrap();
    assert_eq!(toll.bytes[Booth::Attention.index()], Some(2.0 * 147_456.0 * 1001.0));
    let weights = toll.bytes[Booth::Linear.index()].unwrap();
    // 8.2 billion parameters, less the input embedding of 151,936 x 4,096, in fp8.
    let model = model("qwen3-8b");
    assert!((weights / (model.params() - model.embedding_params) - 1.0).abs() < 1e-9);
}

#[test]
fn measured_time_stands_beside_the_model_per_token() {
    let plan = planned("qwen3-8b", &h200(), 1);
    let step = toll::decode_step(&plan, 2, 1000).unwrap();
    let mut rows = vec![kernel(0, 0, 100), kernel(1, 150, 50), kernel(2, 160, 60)];
    rows[0].dram_read = Some(1000);
    rows[0].dram_write = Some(24);
    let all = Kernels { names: vec!["flash".to_owned(), "gemm".to_owned(), "?".to_owned()], rows };
    assert_eq!(toll::idle_ns(&all), Some(50));
    let table = tables::toll(&all, &booths(&all, &rules()), &step, (4, 2, 1)).unwrap();
    let rows: Vec<String> = (0..table.num_rows()).map(|row| number(&table, "booth", row)).collect();
    assert_eq!(rows, ["attention", "linear", "moe", "collective", "copy", "other", "unclassified", "host", "total"]);
    assert_eq!(number(&table, "measured_ns_per_token", 0), "25.0");
    assert_eq!(number(&table, "measured_dram_bytes_per_token", 0), "256.0");
    assert_eq!(number(&table, "measured_dram_bytes_per_token", 1), "null", "the capture lacks the counter");
    assert_eq!(number(&table, "measured_ns_per_token", 6), "15.0", "unclassified time is shown");
    assert_eq!(number(&table, "modelled_ns_per_token", 6), "null");
    assert_eq!(
        (number(&table, "measured_ns_per_token", 7), number(&table, "measured_ns_per_token", 8)),
        ("12.5".to_owned(), "65.0".to_owned())
    );
}

// ---- fit ----

/// Decode steps of several batches and contexts, and prefills, with the durations that `truth` gives them.
fn captured_on(truth: &Plan) -> Timed {
    let mut found = Timed { requests: 64, ..Timed::default() };
    for step in 0..60_u32 {
        let engine_step = Some(u64::from(step));
        let prefill = step % 7 == 0;
        let requests = if prefill { 1 } else { 1 + (step * 13) % 60 };
        found.steps.extend((0..requests).map(|request| CapturedStep {
            request,
            engine_step,
            is_prefill: prefill,
            prompt: 500 + step * 40,
            context: 500 + step * 40 + if prefill { 0 } else { 1 + step },
            new_tokens: if prefill { 500 + step * 40 } else { 1 },
        }));
    }
    let outcome = captured(truth, &found.steps, found.requests).unwrap();
    found.durations = outcome.stretches.iter().map(|stretch| stretch.total_ns).collect();
    found
}

#[test]
fn a_fit_finds_the_machine_that_was_captured() {
    let (told, mut truth) = (h200(), h200());
    truth.efficiency.kv_read_16bit.value = told.efficiency.kv_read_16bit.value / 1.6;
    truth.efficiency.weight_read_8bit.value = told.efficiency.weight_read_8bit.value / 1.25;
    truth.efficiency.step_overhead_ns.value = 1_234_567.0;
    let (plan, measured) = (planned("qwen3-8b", &told, 1), captured_on(&planned("qwen3-8b", &truth, 1)));
    let found = fit(&plan, &measured).unwrap();
    let term = |name| found.terms.iter().find(|term| term.name == name).unwrap();
    assert!((found.host_ns - 1_234_567.0).abs() < 2000.0, "{found:?}");
    // Written KV is priced at the bandwidth of weights, which makes the factor inexact by as much as is written.
    assert!((term("kv_read").factor - 1.6).abs() < 0.02, "{found:?}");
    assert!((term("weight_read").factor - 1.25).abs() < 0.02, "{found:?}");
    assert!(!term("collective").is_fitted, "one accelerator has no collectives: {found:?}");
    assert!(found.after.median < 0.005 && found.before.median > 0.1, "{found:?}");
    let (text, notes) = calibrated(&found, &plan, &told, WeightDtype::Fp8, "a \"test\"");
    assert!(notes.is_empty(), "{notes:?}");
    // The machine with the fit prices the capture as it was.
    let mut fitted = told.clone();
    calibrate(&mut fitted, &text, "fit.toml").unwrap();
    assert_eq!(fitted.efficiency.kv_read_16bit.certainty, Certainty::Calibrated);
    let again = fit(&planned("qwen3-8b", &fitted, 1), &measured).unwrap();
    assert!(again.before.median < 0.005, "{again:?}");
    let whole = include_str!("../../../presets/machine/h200.toml").to_owned() + &text;
    let included = crate::machine::parse(&whole, "h200.toml").unwrap();
    assert_eq!(included.efficiency, fitted.efficiency);
}

#[test]
fn the_order_of_steps_does_not_matter() {
    let plan = planned("qwen3-8b", &h200(), 1);
    let mut measured = captured_on(&plan);
    // Something that no factor explains.
    measured.durations.iter_mut().enumerate().for_each(|(at, time)| *time += (at as i64 * 7919) % 100_000);
    let first = fit(&plan, &measured).unwrap();
    let mut batches: Vec<(Vec<CapturedStep>, i64)> = measured
        .steps
        .chunk_by(|a, b| a.engine_step == b.engine_step)
        .map(<[CapturedStep]>::to_vec)
        .zip(measured.durations.iter().copied())
        .collect();
    batches.reverse();
    measured.steps = batches.iter().flat_map(|(steps, _)| steps.clone()).collect();
    measured.durations = batches.iter().map(|(_, time)| *time).collect();
    let second = fit(&plan, &measured).unwrap();
    assert_eq!(first.terms, second.terms);
    assert_eq!(first.after, second.after);
}

#[test]
fn what_steps_cannot_tell_apart_stays_as_the_model_has_it() {
    // Equal batches and contexts: every term is a constant, and only the host's is fitted.
    let plan = planned("qwen3-8b", &h200(), 1);
    let step = |engine_step| CapturedStep {
        request: 0,
        engine_step: Some(engine_step),
        is_prefill: false,
        prompt: 100,
        context: 200,
        new_tokens: 1,
    };
    let mut measured = Timed {
        steps: vec![step(0), step(1), step(2)],
        durations: vec![9_000_000; 3],
        requests: 1,
        ..Timed::default()
    };
    let found = fit(&plan, &measured).unwrap();
    let fitted: Vec<&str> = found.terms.iter().filter(|term| term.is_fitted).map(|term| term.name).collect();
    assert_eq!(fitted, ["host"]);
    assert!(found.after.worst < 1e-6 && found.terms[1].factor.to_bits() == 1_f64.to_bits(), "{found:?}");
    // Faster than the model without its host: no positive host explains that.
    measured.durations = vec![1_000; 3];
    let found = fit(&plan, &measured).unwrap();
    assert!(found.terms.iter().all(|term| term.factor > 0.0), "{found:?}");
    measured.durations.truncate(1);
    measured.steps.truncate(1);
    assert!(fit(&plan, &measured).unwrap_err().to_string().starts_with("expected at least two captured steps"));
}

#[test]
fn steps_of_the_store_are_joined_into_batches() {
    let request = |id: u64| -> Vec<(&str, Cell)> {
        vec![
            ("request_id", id.into()),
            ("source_id", 0_u32.into()),
            ("prompt_tokens", 10_u32.into()),
            ("output_tokens", 5_u32.into()),
            ("status", "ok".into()),
        ]
    };
    let step = |id: u64, engine: Option<u64>, duration: Option<i64>, size: Option<u32>| -> Vec<(&str, Cell)> {
        vec![
            ("request_id", id.into()),
            ("step", 1_u32.into()),
            ("engine_step", engine.into()),
            ("phase", "decode".into()),
            ("duration_ns", duration.into()),
            ("context_tokens", 11_u32.into()),
            ("new_tokens", 1_u32.into()),
            ("batch_requests", size.into()),
        ]
    };
    let requests = [request(100), request(200)];
    let steps = [
        step(100, Some(1), Some(50), Some(2)),
        step(200, None, Some(40), None),
        step(200, Some(1), Some(55), Some(2)),
        step(100, Some(2), None, Some(1)),
        step(100, Some(3), Some(5), Some(3)),
        step(999, Some(4), Some(5), None),
    ];
    let slices = |rows: &[Vec<(&'static str, Cell)>]| rows.to_vec();
    let (requests, steps) = (slices(&requests), slices(&steps));
    let requests = batch(&REQUESTS, &requests.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[]);
    let steps = batch(&STEPS, &steps.iter().map(Vec::as_slice).collect::<Vec<_>>(), &[]);
    let found = timed(&[steps], &[requests]).unwrap();
    assert_eq!((found.durations.clone(), found.untimed, found.incomplete), (vec![40, 55], 1, 1));
    assert_eq!(found.steps.iter().map(|step| step.engine_step).collect::<Vec<_>>(), [Some(0), Some(1), Some(1)]);
    assert_eq!(TERMS[0], "host");
}

#[test]
fn a_wrong_fit_file_is_refused_with_its_place() {
    for (text, expected) in [
        ("[calibrated]\nsource = \"s\"\nkv_read_16bits = 0.5\n", "f.toml:3:18: unknown parameter `kv_read_16bits`"),
        (
            "[calibrated]\nsource = \"s\"\nkv_read_16bit = 1.5\n",
            "f.toml:3:17: `kv_read_16bit`: expected a ratio above 0 and up to 1",
        ),
        ("[calibrated]\nkv_read_16bit = 0.5\n", "expected a text `source` that says what was fitted"),
        ("[calibrated]\nsource = \"s\"\nstep_overhead_ns = 5\n", "expected a time with a unit"),
        ("[efficiency]\n", "unknown field `efficiency`"),
    ] {
        let error = calibrate(&mut h200(), text, "f.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}
