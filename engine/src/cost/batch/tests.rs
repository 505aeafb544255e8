use proptest::prelude::*;

use super::super::tests::{POLICIES, a_model, machine_at, planned};
use super::*;

/// Kept tokens of every lane for requests of this context.
fn kept(plan: &Plan, requests: u32, context: u32) -> Vec<u64> {
    plan.lane_keeps().map(|(_, keep)| u64::from(requests) * u64::from(keep.tokens(context, context))).collect()
}

/// The step priced by itself, as a replay does.
fn alone(plan: &Plan, requests: u32, kept: &[u64]) -> StepCost {
    let (pairs, context) = (vec![0.0; plan.groups.len()], vec![0; plan.groups.len()]);
    decode(plan, u64::from(requests), kept, (&pairs, &context))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Columns on several machines against each row priced by itself; machine 5 has its FFN apart.
    #[test]
    fn columns_are_the_rows_priced_one_by_one(
        model in 0_usize..4, policy in 0..POLICIES.len(), machines in proptest::collection::vec(0_usize..7, 1..4),
        steps in proptest::collection::vec((prop_oneof![0_u32..40, 60_000_u32..70_000], 1_u32..200_000), 0..300),
    ) {
        let model = a_model(model);
        let plans: Vec<Plan> =
            machines.iter().map(|&at| planned(&model, POLICIES[policy], &machine_at(at), 8)).collect();
        let requests: Vec<u32> = steps.iter().map(|step| step.0).collect();
        let rows: Vec<Vec<u64>> = steps.iter().map(|step| kept(&plans[0], step.0, step.1)).collect();
        let lanes: Vec<Vec<u64>> =
            (0..plans[0].lanes()).map(|lane| rows.iter().map(|row| row[lane]).collect()).collect();
        let columns: Vec<&[u64]> = lanes.iter().map(Vec::as_slice).collect();
        let demand = Demand { decode_requests: &requests, kept_tokens: &columns };
        let mut out: Vec<[Vec<f64>; 19]> = plans.iter().map(|_| std::array::from_fn(|_| vec![7.0])).collect();
        price_columns(&plans, &demand, Field::ALL, &mut out).unwrap();
        for (plan, out) in plans.iter().zip(&out) {
            prop_assert!(out.iter().all(|column| column.len() == steps.len()));
            for (row, kept) in rows.iter().enumerate() {
                let cost = alone(plan, requests[row], kept);
                for (column, field) in out.iter().zip(Field::ALL) {
                    let (found, expected) = (column[row], field.of(&cost));
                    // Rounding is relative to the whole: a small part is a difference of large ones.
                    let scale = if matches!(field, Field::Total) || Field::BOOTHS.contains(&field) || field == Field::Busy {
                        cost.total()
                    } else {
                        expected
                    };
                    prop_assert!((found - expected).abs() <= 1e-9 * scale, "{field:?} of row {row}: {found}, {expected}");
                }
            }
        }
    }
}

/// Rows of the closed form come from constants, those of disaggregated decoding do not; both were compared above.
#[test]
fn the_closed_form_needs_no_row_by_row_pricing() {
    let demand = Demand { decode_requests: &[1, 8, 8, 64], kept_tokens: &[&[1000, 8000, 16_000, 64_000]] };
    let corners = Corners::of(&demand);
    let model = a_model(1);
    for (machine, is_tabled) in [(0, true), (5, false)] {
        let plan = planned(&model, "full", &machine_at(machine), 8);
        let table = Table::of(&plan, &corners, [Field::Total]);
        let seen: Vec<u32> = [1, 8, 64].iter().map(|&at: &usize| table.first[at]).collect();
        assert_eq!(seen.iter().all(|&first| first < ROW_BY_ROW), is_tabled, "{machine}");
        assert_eq!((table.columns[0].len(), table.has_others()), if is_tabled { (6, false) } else { (0, true) });
    }
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let plans = [planned(&a_model(0), "full", &machine_at(0), 1)];
    let refused = |demand: &Demand<'_>, outputs: usize| {
        let mut out = vec![[Vec::new()]; outputs];
        price_columns(&plans, demand, [Field::Total], &mut out).unwrap_err().to_string()
    };
    let short = Demand { decode_requests: &[1, 2], kept_tokens: &[&[1]] };
    assert_eq!(refused(&short, 1), "expected 2 rows in each column, found 1");
    assert_eq!(refused(&Demand { kept_tokens: &[], ..short }, 1), "expected 1 columns of kept tokens, found 0");
    let good = Demand { decode_requests: &[1], kept_tokens: &[&[1]] };
    assert_eq!(refused(&good, 2), "expected outputs for 1 plans, found 2");
}

fn preset(name: &str) -> crate::model::Model {
    let path = format!("{}/../presets/model/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    crate::model::parse(&std::fs::read_to_string(path).unwrap(), name).unwrap()
}

/// `POLICIES` 6.2: a step of DeepSeek-V3.2 with FP8 KV reads 8,052 bytes of index for each token of the context and 40,016
/// of latents for each of at most 2,048.
#[test]
fn a_sparse_step_reads_the_index_and_what_it_chooses() {
    let plan = planned(&preset("deepseek-v3.2"), "fp8", &machine_at(1), 1);
    for (requests, context) in [(1_u32, 1000_u32), (1, 100_000), (16, 30_000)] {
        let cost = alone(&plan, requests, &kept(&plan, requests, context));
        let expected = u64::from(requests) * (8052 * u64::from(context) + 40_016 * u64::from(context.min(2048)));
        assert!((cost.kv_read_bytes - expected as f64).abs() < 1.0, "{requests} x {context}: {}", cost.kv_read_bytes);
    }
}

/// A hybrid reads and writes 183.2 MiB of states per request and step, whatever the context, beside 30,720 bytes for each
/// token of it.
#[test]
fn a_hybrid_step_moves_its_states_once() {
    let plan = planned(&preset("qwen3.5-397b-a17b"), "full", &machine_at(1), 1);
    for context in [16_u32, 5000, 200_000] {
        let cost = alone(&plan, 3, &kept(&plan, 3, context));
        let states = 3.0 * 192_061_440.0;
        assert!((cost.kv_read_bytes - states - 3.0 * 30_720.0 * f64::from(context)).abs() < 1.0);
        assert!((cost.kv_written_bytes - states - 3.0 * 30_720.0).abs() < 1.0, "{}", cost.kv_written_bytes);
    }
    assert_eq!(plan.growing_bytes(), 30_720);
    assert_eq!(plan.footprint(10_000, 10_000, true), 192_061_440 + 30_720 * 10_000);
}
