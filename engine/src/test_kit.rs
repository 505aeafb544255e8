//! Small plans and workloads for the tests of this crate.

use crate::cost::{Linear, Plan, PlanGroup};
use crate::model::{Attention, Certainty, KvShape};
use crate::policy::{Group, Keep};
use crate::serving::{self, Outcome, Pool, Routing, Rules, Setup, Traffic, serve};
use crate::session::{Basis, Content, Fate, Form, Kind, Piece, Role, Session, Trace, Turn, units};
use crate::workload::{Turns, Workload};

/// The KV of a layer with full attention and one query head per KV head, whose arithmetic does not matter.
pub(crate) fn kv_shape(kv_heads: u32, dim: u32) -> KvShape {
    KvShape {
        attention: Attention::Full,
        query_heads: kv_heads,
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        macs_per_pair: 0.0,
        prefill_macs_per_pair: 0.0,
    }
}

/// A plan with one layer group per `keep`, whose KV takes 1 byte per token and group, so that `capacity` counts tokens. Rates
/// are such that every step takes whole nanoseconds: a replay can be compared to the last digit.
pub(crate) fn toy_plan(keeps: &[Keep], capacity: u64) -> Plan {
    let linear = Linear {
        layers: 1.0,
        attention_bytes: 20_000.0,
        dense_bytes: 30_000.0,
        expert_bytes: 0.0,
        dense_params: 30_000.0,
        expert_params: 0.0,
        experts: 0.0,
        active_experts: 0.0,
        attention_flops: 40_000.0,
        ffn_flops: 60_000.0,
        routed_flops: 0.0,
        ffn_flops_unsharded: 60_000.0,
        covered: crate::cost::Covered::default(),
    };
    Plan {
        groups: keeps.iter().map(|keep| toy_group(*keep)).collect(),
        linear: vec![linear],
        tensor: 1.0,
        data: 1.0,
        expert: 1.0,
        pipeline: 1.0,
        accelerators: 1.0,
        exchange: None,
        hop: None,
        speculative: None,
        layers: 2.0,
        head_bytes: 1000.0,
        head_flops: 2000.0,
        residual_bytes: 2.0,
        weight_bytes_per_ns: 2.0,
        linear_flops_per_ns: 50.0,
        attention_flops_per_ns: 0.125,
        vector_flops_per_ns: 0.125,
        collective_bytes_per_ns: 1.0,
        host_bytes_per_ns: 0.0625,
        collective_latency_ns: 0.0,
        layer_floor_ns: 200.0,
        step_overhead_ns: 5000.0,
        ffn_pool: None,
        lines: None,
        weight_bytes: 51_000.0,
        capacity_bytes: capacity,
        eviction_is_private: true,
        certainty: Certainty::Assumed,
    }
}

fn toy_group(keep: Keep) -> PlanGroup {
    let kv = KvShape {
        attention: Attention::Full,
        query_heads: 1,
        kv_heads: 1,
        key_dim: 1,
        value_dim: 0,
        macs_per_pair: 1.0,
        prefill_macs_per_pair: 1.0,
    };
    PlanGroup {
        group: Group {
            model_group: 0,
            layers: 1,
            kv,
            keep,
            format: "toy".to_owned(),
            token_bytes: 1,
            held_bytes: 1,
            residual: crate::policy::quantize::Residual::default(),
            read_tokens: None,
            index_bytes: 0,
            is_16bit: true,
            read_flops: 0.0,
            write_flops: 0.0,
            score_flops: 0.0,
            beside: None,
            lower: None,
        },
        layers: 1.0,
        token_bytes_per_accelerator: 1.0,
        index_bytes_per_accelerator: 0.0,
        residual_bytes_per_accelerator: 0.0,
        index_flops: 0.0,
        prefill_top: f64::INFINITY,
        state_bytes_per_accelerator: 0.0,
        written_bytes_per_accelerator: 2.0,
        token_bytes: 1,
        residual_room_bytes: 0,
        beside_bytes_per_accelerator: 0.0,
        beside_bytes: 0,
        beside_flops: 0.0,
        lower_bytes_per_accelerator: 0.0,
        read_lane: None,
        whole_lane: None,
        near_lane: None,
        pair_flops: 1.0,
        prefill_pair_flops: 1.0,
        kv_bytes_per_ns: 0.125,
        floor_ns: 100.0,
        prefill_token_ns: 0.0,
        measured: None,
        uneven: crate::cost::Ways::default(),
        measured_mixed: None,
        measured_prefill: None,
        module_ns: 0.0,
        read_flops: 0.25,
        write_flops: 0.125,
        score_flops: 0.125,
    }
}

/// Serves in open mode on alike instances, in turn.
pub(crate) fn open(plan: &Plan, workload: &Workload, instances: u32, rules: &Rules) -> Outcome {
    let pools = [Pool { plan, instances, role: serving::Role::Both }];
    let (traffic, routing) = (Traffic::Open, Routing::RoundRobin);
    serve(&Setup { pools: &pools, traffic, routing, rules, handover: None, below: None }, workload)
}

/// Requests from (gap in microseconds, prompt, output, family): prompts of one family are prefixes of each other, in units
/// of 32 tokens, and a partial last unit is the request's own.
pub(crate) fn toy_workload(requests: &[(u32, u32, u32, u8)]) -> Workload {
    const UNIT: u32 = 32;
    let mut workload = Workload {
        name: "toy".to_owned(),
        request_ids: (0..requests.len() as u64).collect(),
        arrival_ns: Vec::new(),
        prompt: Vec::new(),
        output: Vec::new(),
        unit_tokens: UNIT,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: 3 * 8 + requests.len() as u32,
        turns: Turns::default(),
    };
    let mut now = 0;
    for (at, &(gap, prompt, output, family)) in requests.iter().enumerate() {
        now += i64::from(gap) * 1000;
        workload.arrival_ns.push(now);
        workload.prompt.push(prompt);
        workload.output.push(output);
        workload.units.extend((0..prompt / UNIT).map(|unit| u32::from(family) * 8 + unit));
        if !prompt.is_multiple_of(UNIT) {
            workload.units.push(24 + at as u32);
        }
        workload.offsets.push(workload.units.len() as u32);
    }
    workload
}

/// What a turn of a test session holds: number of the content, kind, tokens.
pub(crate) type Told = (u32, Kind, u32);

/// Sessions of which every turn tells all that it holds, a turn a minute, each generating so many tokens, in blocks of so
/// many. Numbers of contents are those of their session.
pub(crate) fn told_sessions(sessions: &[&[Vec<Told>]], output: u32, unit_tokens: u32) -> (Trace, Workload) {
    let mut trace = Trace {
        turns: Vec::new(),
        offsets: vec![0],
        pieces: Vec::new(),
        contents: Vec::new(),
        sessions: Vec::new(),
        names: 0,
    };
    for (session, turns) in (0..).zip(sessions) {
        let mut known = std::collections::HashMap::new();
        for (turn, told) in (0..).zip(*turns) {
            let mut pieces = Vec::new();
            for &(number, kind, tokens) in told {
                let content = *known.entry(number).or_insert_with(|| {
                    trace.contents.push(Content { session, born: turn, kind, name: None, fate: Fate::Verbatim });
                    trace.contents.len() as u32 - 1
                });
                pieces.push(Piece { content, start: 0, tokens, form: Form::Verbatim });
            }
            let before = trace.turns.last().filter(|last| last.session == session).map(|_| trace.turns.len() - 1);
            let kept = before.map_or(0, |before| crate::session::common(trace.pieces_of(before), &pieces));
            let made = Turn {
                request_id: trace.turns.len() as u64,
                recorded: None,
                session,
                turn,
                role: Role::Recorded,
                arrival_ns: trace.turns.len() as i64 * 60_000_000_000,
                idle_ns: before.map(|_| 60_000_000_000),
                output,
                kept_tokens: kept,
                found_tokens: kept,
                broke_at_tokens: before.filter(|before| kept < trace.prompt(*before)).map(|_| kept),
                basis: Basis::Blocks,
            };
            trace.push(made, &pieces);
        }
        trace.sessions.push(Session { name: Some(format!("s{session}")), parent: None, turns: turns.len() as u32 });
    }
    let nothing = Workload {
        name: "told".to_owned(),
        request_ids: Vec::new(),
        arrival_ns: Vec::new(),
        prompt: Vec::new(),
        output: Vec::new(),
        unit_tokens,
        offsets: vec![0],
        units: Vec::new(),
        distinct_units: 0,
        turns: Turns::default(),
    };
    let none = Trace { turns: Vec::new(), offsets: vec![0], pieces: Vec::new(), ..trace.clone() };
    let workload = units::workload(&trace, &none, &nothing).unwrap();
    for (at, turn) in (0..).zip(&mut trace.turns) {
        turn.recorded = Some(at);
    }
    (trace, workload)
}
