//! Output errors of recordings with vectors against a slow computation in f64 over the same vectors.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Float32Builder, ListBuilder, RecordBatch, StringArray,
    UInt16Array, UInt32Array, UInt64Array,
};
use arrow::datatypes::{DataType, Field, Float64Type, UInt16Type};

use super::*;
use crate::policy::rng::Rng;
use crate::policy::{Stack, attention_error, premise, prompt_error};
use crate::recording::{Recording, Tables, recordings};
use crate::schema::{self, Cell, batch_of_rows, canonical};

const LAYERS: usize = 4;
const HEADS: usize = 2;
const GROUP: usize = 2;
const DIM: usize = 8;
const PROMPT: usize = 40;
const STEPS: usize = 3;
const TOKENS: usize = PROMPT + STEPS;

/// Vectors by layer and head, rows x `DIM`.
struct Drawn {
    queries: Vec<Vec<f32>>,
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// Layers that have this share of their vectors in common with the first one.
fn draw(common: f64) -> Drawn {
    let mut rng = Rng::new(11);
    let mut rows = |count: usize| -> Vec<f64> { (0..count * DIM).map(|_| rng.normal()).collect() };
    let shared: Vec<[Vec<f64>; 2]> = (0..HEADS).map(|_| [rows(TOKENS), rows(TOKENS)]).collect();
    let of = |rows: &mut dyn FnMut(usize) -> Vec<f64>, at: usize| -> Vec<Vec<f32>> {
        let place = |head: usize| &shared[head % HEADS][at];
        let mix = |own: f64, shared: f64| (common * shared + (1.0 - common) * own) as f32;
        (0..LAYERS * HEADS)
            .map(|head| rows(TOKENS).into_iter().zip(place(head)).map(|(own, shared)| mix(own, *shared)).collect())
            .collect()
    };
    let keys = of(&mut rows, 0);
    let values = of(&mut rows, 1);
    let queries =
        (0..LAYERS * HEADS).map(|_| rows(STEPS * GROUP).into_iter().map(|x| 1.5 * x as f32).collect()).collect();
    Drawn { queries, keys, values }
}

fn softmax(query: &[f32], keys: &[f32], context: usize, kept: &dyn Fn(usize) -> bool) -> Vec<f64> {
    let logit = |at: usize| -> f64 {
        let key = &keys[at * DIM..(at + 1) * DIM];
        query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (DIM as f64).sqrt()
    };
    let raw: Vec<f64> = (0..context).map(|at| if kept(at) { logit(at).exp() } else { 0.0 }).collect();
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|weight| weight / sum).collect()
}

fn output(weights: &[f64], values: &[f32]) -> Vec<f64> {
    (0..DIM).map(|c| weights.iter().enumerate().map(|(at, a)| a * f64::from(values[at * DIM + c])).sum()).collect()
}

/// Mean over the steps of `1 - cos` of a layer's outputs, where each head has these marks and what comes back of K and V.
fn slow(drawn: &Drawn, layer: usize, kept: &dyn Fn(usize, usize) -> bool, left: &dyn Fn(usize) -> Pairs) -> f64 {
    let mut sum = 0.0;
    for step in 0..STEPS {
        let context = PROMPT + step + 1;
        let (mut full, mut other) = (Vec::new(), Vec::new());
        for head in 0..HEADS {
            let place = layer * HEADS + head;
            let left = left(place);
            for query in drawn.queries[place].chunks(DIM).skip(step * GROUP).take(GROUP) {
                full.extend(output(&softmax(query, &drawn.keys[place], context, &|_| true), &drawn.values[place]));
                other.extend(output(&softmax(query, &left.keys, context, &|at| kept(place, at)), &left.values));
            }
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        sum += 1.0 - dot(&full, &other) / (dot(&full, &full) * dot(&other, &other)).sqrt();
    }
    sum / STEPS as f64
}

fn lists(rows: &[Vec<f32>]) -> ArrayRef {
    let mut builder: ListBuilder<Float32Builder> = schema::list_f32();
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

fn vectors(elements: Vec<f32>) -> ArrayRef {
    let field = Arc::new(Field::new("element", DataType::Float32, false));
    Arc::new(FixedSizeListArray::new(field, DIM as i32, Arc::new(Float32Array::from(elements)), None))
}

/// Which optional tables a recording has.
#[derive(Clone, Copy)]
struct With {
    norms: bool,
    cosines: bool,
    vectors: bool,
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn number(values: impl IntoIterator<Item = usize>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(values.into_iter().map(|value| value as u32)))
}

/// Where rows belong: `each` of them per head, `heads` in a layer.
fn places(heads: usize, name: &'static str, each: usize) -> Vec<(&'static str, ArrayRef)> {
    let all: Vec<usize> = (0..LAYERS * heads).flat_map(|at| std::iter::repeat_n(at, each)).collect();
    let of = |of: &dyn Fn(usize) -> usize| -> ArrayRef {
        Arc::new(UInt16Array::from_iter_values(all.iter().map(|at| of(*at) as u16)))
    };
    vec![
        ("request_id", Arc::new(UInt64Array::from(vec![9; all.len()])) as ArrayRef),
        ("layer", of(&|at| at / heads)),
        (name, of(&|at| at % heads)),
    ]
}

/// The numbers from `from` on, `each` of them for each of so many heads.
fn cycle(heads: usize, each: usize, from: usize) -> ArrayRef {
    number((0..heads).flat_map(|_| from..from + each))
}

/// Masses and norms of the outputs, means over the group.
fn attention(drawn: &Drawn) -> RecordBatch {
    let all = LAYERS * HEADS;
    let (mut mass, mut norms) = (Vec::new(), Vec::new());
    for (place, step) in (0..all).flat_map(|place| (0..STEPS).map(move |step| (place, step))) {
        let context = PROMPT + step + 1;
        let queries = drawn.queries[place].chunks(DIM).skip(step * GROUP).take(GROUP);
        let rows: Vec<Vec<f64>> = queries.map(|q| softmax(q, &drawn.keys[place], context, &|_| true)).collect();
        let mean: Vec<f64> =
            (0..context).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / GROUP as f64).collect();
        let out = output(&mean, &drawn.values[place]);
        norms.push(out.iter().map(|x| x * x).sum::<f64>().sqrt() as f32);
        mass.push(mean.into_iter().map(|x| x as f32).collect());
    }
    let same = |value: f32| Arc::new(Float32Array::from(vec![value; all * STEPS])) as ArrayRef;
    let mut columns = places(HEADS, "kv_head", STEPS);
    columns.extend([
        ("step", cycle(all, STEPS, 1)),
        ("context_tokens", cycle(all, STEPS, PROMPT + 1)),
        ("block_tokens", Arc::new(UInt16Array::from(vec![1; all * STEPS])) as ArrayRef),
        ("mass", lists(&mass)),
        ("sum_sq", same(0.1)),
        ("out_norm", Arc::new(Float32Array::from(norms)) as ArrayRef),
        ("q_norm", same(4.0)),
    ]);
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Norms, and cosines with the next layer.
fn stats(drawn: &Drawn, with_cosines: bool) -> RecordBatch {
    let length = |rows: &Vec<f32>| rows.chunks(DIM).map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt()).collect();
    let lengths = |rows: &[Vec<f32>]| lists(&rows.iter().map(length).collect::<Vec<_>>());
    let next = |rows: &[Vec<f32>]| {
        let of = |at: usize| match rows.get(at + HEADS) {
            Some(next) => rows[at].chunks(DIM).zip(next.chunks(DIM)).map(|(a, b)| cosine(a, b)).collect(),
            None => vec![0.0; TOKENS],
        };
        lists(&(0..LAYERS * HEADS).map(of).collect::<Vec<_>>())
    };
    let mut columns = places(HEADS, "kv_head", 1);
    columns.extend([("k_norm", lengths(&drawn.keys)), ("v_norm", lengths(&drawn.values))]);
    if with_cosines {
        columns.extend([("k_cos_next_layer", next(&drawn.keys)), ("v_cos_next_layer", next(&drawn.values))]);
    }
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Some score of each prompt token.
fn scores(drawn: &Drawn) -> RecordBatch {
    let mut columns = places(HEADS, "kv_head", 1);
    let of = |keys: &Vec<f32>| keys.iter().take(PROMPT).map(|x| x.abs()).collect();
    columns.extend([
        ("channel", Arc::new(StringArray::from(vec!["column_sum"; LAYERS * HEADS])) as ArrayRef),
        ("score", lists(&drawn.keys.iter().map(of).collect::<Vec<_>>())),
    ]);
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Which heads retrieve: none.
fn retrieval() -> RecordBatch {
    let mut columns = places(HEADS, "kv_head", 1);
    columns.extend([
        ("channel", Arc::new(StringArray::from(vec!["head_retrieval"; LAYERS * HEADS])) as ArrayRef),
        ("score", lists(&vec![vec![0.0]; LAYERS * HEADS])),
    ]);
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Queries by query head, and pairs by KV head, each cut in two, so that the rows of a head lie in several batches.
fn vector_tables(drawn: &Drawn) -> [Vec<RecordBatch>; 2] {
    let all = LAYERS * HEADS;
    let mut pairs = places(HEADS, "kv_head", TOKENS);
    pairs.extend([
        ("token", cycle(all, TOKENS, 0)),
        ("k", vectors(drawn.keys.concat())),
        ("v", vectors(drawn.values.concat())),
    ]);
    let by_query_head: Vec<f32> = (0..all * GROUP)
        .flat_map(|at| drawn.queries[at / GROUP].chunks(DIM).skip(at % GROUP).step_by(GROUP).flatten().copied())
        .collect();
    let mut queries = places(GROUP * HEADS, "query_head", STEPS);
    queries.extend([("step", cycle(all * GROUP, STEPS, 1)), ("q", vectors(by_query_head))]);
    [queries, pairs].map(|columns| {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let middle = batch.num_rows() / 2 + 3;
        vec![batch.slice(middle, batch.num_rows() - middle), batch.slice(0, middle)]
    })
}

fn record(drawn: &Drawn, with: With) -> Recording {
    let mut row = vec![Cell::from(5_u32), Cell::from("tiny")];
    row.extend([LAYERS, GROUP * HEADS, HEADS, DIM, 1].map(|value| Cell::from(value as u32)));
    row.extend([Cell::from("vectors"), Cell::Null, Cell::Null, Cell::Null]);
    let head = batch_of_rows(&canonical::RECORDINGS, &[row]).unwrap();
    let requests = RecordBatch::try_from_iter([
        ("request_id", Arc::new(UInt64Array::from(vec![9])) as ArrayRef),
        ("source_id", number([5])),
        ("prompt_tokens", number([PROMPT])),
        ("output_tokens", number([STEPS])),
    ]);
    let [queries, pairs] = if with.vectors { vector_tables(drawn) } else { [Vec::new(), Vec::new()] };
    let stats = if with.norms { vec![stats(drawn, with.cosines)] } else { Vec::new() };
    let tables = Tables {
        recordings: &head,
        requests: &[requests.unwrap()],
        attention: &[attention(drawn)],
        prefill_scores: &[scores(drawn), retrieval()],
        kv_stats: &stats,
        queries: &queries,
        kv_vectors: &pairs,
    };
    recordings(&tables).unwrap().remove(0)
}

const ALL: With = With { norms: true, cosines: true, vectors: true };

/// By layer and head, all steps in one range.
fn found(policy: &str, recording: &Recording) -> Vec<f64> {
    let batch = attention_error(&Stack::parse(policy).unwrap(), recording, u32::MAX).unwrap();
    let layers = batch["layer"].as_primitive::<UInt16Type>();
    assert!(layers.values().is_sorted() && layers.len() == LAYERS * HEADS);
    batch["output_error"].as_primitive::<Float64Type>().iter().map(Option::unwrap).collect()
}

fn near(found: &[f64], expected: &dyn Fn(usize) -> f64) {
    assert_eq!(found.len(), LAYERS * HEADS);
    for (at, error) in found.iter().enumerate() {
        let expected = expected(at / HEADS);
        assert!((error - expected).abs() < 2e-5, "head {at}: {error}, expected {expected}");
    }
}

#[test]
fn errors_from_vectors_are_those_of_the_outputs() {
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    let exact = |place: usize| Pairs { keys: drawn.keys[place].clone(), values: drawn.values[place].clone() };
    near(&found("full", &recording), &|_| 0.0);
    let window = |_: usize, at: usize| (PROMPT - 8..).contains(&at) || at < 4;
    let error = found("streaming(sinks=4,recent=8,evict=no)", &recording);
    assert!(error.iter().all(|error| *error > 0.01));
    near(&error, &|layer| slow(&drawn, layer, &window, &exact));
    // A format, and both together: values come back from the cache as they were tested to.
    let left = |place: usize| {
        let coding = quantize::Coding::Uniform { bits: 2, group: 8, residual: 0 };
        let back = |rows: &[f32]| quantize::roundtrip(coding, rows, DIM).unwrap().0;
        Pairs { keys: back(&drawn.keys[place]), values: back(&drawn.values[place]) }
    };
    near(&found("uniform(bits=2,group=8)", &recording), &|layer| slow(&drawn, layer, &|_, _| true, &left));
    let both = found("streaming(sinks=4,recent=8,evict=no)+uniform(bits=2,group=8)", &recording);
    near(&both, &|layer| slow(&drawn, layer, &window, &left));
}

#[test]
fn the_prompt_alone_can_be_treated() {
    let drawn = draw(0.0);
    let coding = quantize::Coding::Uniform { bits: 2, group: 8, residual: 0 };
    let left = |place: usize| {
        let back = |rows: &[f32]| {
            let mut back = quantize::roundtrip(coding, rows, DIM).unwrap().0;
            back[PROMPT * DIM..].copy_from_slice(&rows[PROMPT * DIM..]);
            back
        };
        Pairs { keys: back(&drawn.keys[place]), values: back(&drawn.values[place]) }
    };
    let stack = Stack::parse("uniform(bits=2,group=8)").unwrap();
    let error = |with: With| -> Vec<f64> {
        let batch = prompt_error(&stack, &record(&drawn, with)).unwrap();
        batch["output_error"].as_primitive::<Float64Type>().iter().map(Option::unwrap).collect()
    };
    near(&error(ALL), &|layer| slow(&drawn, layer, &|_, _| true, &left));
    let norms = With { vectors: false, ..ALL };
    let all = found("uniform(bits=2,group=8)", &record(&drawn, norms));
    assert!(error(norms).iter().zip(&all).all(|(prompt, all)| prompt < all && *prompt > 0.0));
}

#[test]
fn merged_layers_are_off_and_the_others_are_not() {
    let drawn = draw(0.3);
    let recording = record(&drawn, ALL);
    let merge = Merge { start: 0.5, t: 0.6, retention: minicache::Retention::Top(0.05), exact: 0.0 };
    let merged = |place: usize| {
        let (a, b) = if place / HEADS == 2 { (place, place + HEADS) } else { (place - HEADS, place) };
        let both = |rows: &[Vec<f32>]| minicache::merge(&merge, &rows[a], &rows[b], DIM).unwrap();
        let (keys, values) = (both(&drawn.keys), both(&drawn.values));
        if place == a {
            Pairs { keys: keys.shallow, values: values.shallow }
        } else {
            Pairs { keys: keys.deep, values: values.deep }
        }
    };
    let error = found("minicache", &recording);
    near(&error, &|layer| if layer < 2 { 0.0 } else { slow(&drawn, layer, &|_, _| true, &merged) });
    // From angles alone the same layers are off, by an estimate; like layers hardly are.
    let estimated = found("minicache", &record(&drawn, With { vectors: false, ..ALL }));
    assert!(
        estimated[..2 * HEADS].iter().all(|error| error.abs() < 1e-6)
            && estimated[2 * HEADS..].iter().all(|error| *error > 0.01)
    );
    let alike = found("minicache", &record(&draw(0.99), ALL));
    assert!(alike.iter().all(|error| *error < 1e-3), "{alike:?}");
    let stack = Stack::parse("minicache").unwrap();
    let premise = |common: f64| premise(&stack, &record(&draw(common), ALL)).unwrap();
    assert!(!premise(0.0).holds() && premise(0.99).holds());
    let batch = attention_error(&stack, &recording, 1).unwrap();
    assert!(batch["premise"].as_string::<i32>().value(0).contains("does not hold"));
}

#[test]
fn what_it_was_computed_from_is_said() {
    let drawn = draw(0.0);
    let from = |policy: &str, with: With| {
        let batch = attention_error(&Stack::parse(policy).unwrap(), &record(&drawn, with), 1).unwrap();
        let from = batch["output_error_from"].as_string::<i32>().iter().next().unwrap().map(str::to_owned);
        assert_eq!(batch["output_error"].null_count() == 0, from.is_some());
        from
    };
    let norms = With { vectors: false, ..ALL };
    assert_eq!(from("fp8", ALL).as_deref(), Some("vectors"));
    assert_eq!(from("window(9)+fp8", norms).as_deref(), Some("norms"));
    assert_eq!(from("window(9)", With { norms: false, ..norms }), None);
    // Merging needs angles where there are no vectors.
    assert_eq!(from("minicache", With { cosines: false, ..ALL }).as_deref(), Some("vectors"));
    let stack = Stack::parse("minicache").unwrap();
    let error = attention_error(&stack, &record(&drawn, With { cosines: false, ..norms }), 1).unwrap_err();
    assert!(error.to_string().contains("`k_cos_next_layer`"), "{error}");
    assert!(error.advice().unwrap().contains("kv_stats"));
}

/// The estimate from norms orders policies as the exact error does.
#[test]
fn more_budget_never_turns_more_on_average() {
    let drawn = draw(0.0);
    for with in [ALL, With { vectors: false, ..ALL }] {
        let recording = record(&drawn, with);
        let mean = |budget: usize| {
            let errors = found(&format!("oracle(budget={budget})"), &recording);
            errors.iter().sum::<f64>() / errors.len() as f64
        };
        let errors = [5, 10, 20, 40].map(mean);
        assert!(errors.is_sorted_by(|a, b| a >= b), "{errors:?}");
    }
}

/// What one step of one head attends to: weight, key and value.
type Attended = Vec<(f64, Vec<f32>, Vec<f32>)>;

/// Mean over the steps of `1 - cos` of a layer's outputs, where each step of each head attends to the listed pairs.
fn slow_by_step(drawn: &Drawn, layer: usize, attended: &dyn Fn(usize, usize) -> Attended) -> f64 {
    let attend = |query: &[f32], pairs: &Attended| -> Vec<f64> {
        let logit = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let raw: Vec<f64> = pairs.iter().map(|(w, key, _)| w * (logit(key) / (DIM as f64).sqrt()).exp()).collect();
        let sum: f64 = raw.iter().sum();
        (0..DIM).map(|c| pairs.iter().zip(&raw).map(|((_, _, v), w)| w / sum * f64::from(v[c])).sum()).collect()
    };
    let mut sum = 0.0;
    for step in 0..STEPS {
        let context = PROMPT + step + 1;
        let (mut full, mut other) = (Vec::new(), Vec::new());
        for head in 0..HEADS {
            let place = layer * HEADS + head;
            let all: Attended = (0..context).map(|at| pair(drawn, place, at)).collect();
            let left = attended(step, place);
            for query in drawn.queries[place].chunks(DIM).skip(step * GROUP).take(GROUP) {
                full.extend(attend(query, &all));
                other.extend(attend(query, &left));
            }
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        sum += 1.0 - dot(&full, &other) / (dot(&full, &full) * dot(&other, &other)).sqrt();
    }
    sum / STEPS as f64
}

fn row(rows: &[f32], at: usize) -> Vec<f32> {
    rows[at * DIM..(at + 1) * DIM].to_vec()
}

fn pair(drawn: &Drawn, place: usize, at: usize) -> (f64, Vec<f32>, Vec<f32>) {
    (1.0, row(&drawn.keys[place], at), row(&drawn.values[place], at))
}

/// Positions of the `count` largest of the listed positions' scores.
fn best(scores: &[f64], among: &[usize], count: usize) -> Vec<usize> {
    let mut order = among.to_vec();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}

/// `column_sum` of a head, with 0 for generated tokens.
fn importance_of(drawn: &Drawn, place: usize) -> Vec<f64> {
    let mut scores: Vec<f64> = drawn.keys[place].iter().take(PROMPT).map(|x| f64::from(x.abs())).collect();
    scores.resize(TOKENS, 0.0);
    scores
}

/// Sinks and the last tokens of the prompt, and what is generated.
fn is_end(at: usize) -> bool {
    !(4..PROMPT - 8).contains(&at)
}

/// Sinks and the last tokens of a step's context.
fn is_streamed(step: usize, at: usize) -> bool {
    at < 4 || at + 8 > PROMPT + step
}

const ENDS: &str = "streaming(sinks=4,recent=8,evict=no)";

#[test]
fn the_most_important_of_what_is_dropped_is_retained() {
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    // A quarter of the 28 tokens that are dropped.
    let retained = |place: usize| best(&importance_of(&drawn, place), &(4..PROMPT - 8).collect::<Vec<_>>(), 7);
    let kept = |step: usize, place: usize| -> Vec<usize> {
        let retained = retained(place);
        (0..=PROMPT + step).filter(|at| is_end(*at) || retained.contains(at)).collect()
    };
    let exact = |step: usize, place: usize| kept(step, place).into_iter().map(|at| pair(&drawn, place, at)).collect();
    near(&found(&format!("{ENDS}+retain(25%)"), &recording), &|layer| slow_by_step(&drawn, layer, &exact));
    // What is dropped while decoding is not retained, and what is retained stays.
    let streamed = |step: usize, place: usize| {
        // The prompt's last 8 tokens are kept when it is complete.
        let retained = retained(place);
        let kept = (0..=PROMPT + step).filter(|at| is_streamed(step, *at) || retained.contains(at));
        kept.map(|at| pair(&drawn, place, at)).collect()
    };
    let error = found("streaming(sinks=4,recent=8)+retain(25%)", &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &streamed));
    // A format after it stores all that is kept; before it, a quarter of all tokens stays in 16 bits.
    let coding = quantize::Coding::Uniform { bits: 2, group: 8, residual: 0 };
    let back = |rows: &[f32]| quantize::roundtrip(coding, rows, DIM).unwrap().0;
    let all = |step: usize, place: usize| {
        let (keys, values) = (back(&drawn.keys[place]), back(&drawn.values[place]));
        kept(step, place).into_iter().map(|at| (1.0, row(&keys, at), row(&values, at))).collect()
    };
    let error = found(&format!("{ENDS}+retain(25%)+uniform(bits=2,group=8)"), &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &all));
    let bf16 = |rows: &[f32]| quantize::roundtrip(quantize::Coding::Bf16, rows, DIM).unwrap().0;
    let beside = |step: usize, place: usize| {
        let hot = best(&importance_of(&drawn, place), &(0..TOKENS).collect::<Vec<_>>(), 11);
        let of = |rows: &[f32], at: usize| row(&if hot.contains(&at) { bf16(rows) } else { back(rows) }, at);
        let kept = (0..=PROMPT + step).filter(|at| is_end(*at));
        kept.map(|at| (1.0, of(&drawn.keys[place], at), of(&drawn.values[place], at))).collect()
    };
    let error = found(&format!("{ENDS}+uniform(bits=2,group=8)+retain(25%)"), &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &beside));
}

#[test]
fn copies_are_read_in_the_place_of_what_is_dropped() {
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    let int4 = quantize::Coding::Symmetric { bits: 4, group: 128 };
    let back = |rows: &[f32]| quantize::roundtrip(int4, rows, DIM).unwrap().0;
    let of = |is_kept: fn(usize, usize) -> bool, format: &dyn Fn(&[f32]) -> Vec<f32>, step: usize, place: usize| {
        let both = [&drawn.keys[place], &drawn.values[place]].map(|rows| (format(rows), back(rows)));
        let read =
            |at: usize, (kept, copy): &(Vec<f32>, Vec<f32>)| row(if is_kept(step, at) { kept } else { copy }, at);
        (0..=PROMPT + step).map(|at| (1.0, read(at, &both[0]), read(at, &both[1]))).collect::<Attended>()
    };
    let plain = |rows: &[f32]| rows.to_vec();
    let fp8 = |rows: &[f32]| quantize::roundtrip(quantize::Coding::Fp8(quantize::fp8::Fp8::E4m3), rows, DIM).unwrap().0;
    let error = found(&format!("{ENDS}+copies(int4)"), &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &|step, place| of(|_, at| is_end(at), &plain, step, place)));
    // While decoding, what leaves the window becomes a copy.
    let error = found("streaming(sinks=4,recent=8)+copies(as=int4)+fp8", &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &|step, place| of(is_streamed, &fp8, step, place)));
    // Nothing is lost, and the noise is that of copies alone; also without vectors.
    for with in [ALL, With { vectors: false, ..ALL }] {
        let batch =
            |policy: &str| attention_error(&Stack::parse(policy).unwrap(), &record(&drawn, with), u32::MAX).unwrap();
        let mean = |batch: &RecordBatch, name: &str| {
            let values = batch[name].as_primitive::<Float64Type>().values();
            values.iter().sum::<f64>() / values.len() as f64
        };
        let (alone, copied) = (batch(ENDS), batch(&format!("{ENDS}+copies(int4)")));
        let all = batch("int4");
        assert!(mean(&copied, "lost_mass_ratio") < 1e-12);
        let (lost, recovered) = (mean(&alone, "lost_mass_ratio"), mean(&copied, "recovered_mass_ratio"));
        assert!((lost - recovered).abs() < 1e-9 && lost > 0.1, "{lost} {recovered}");
        let errors = [&copied, &all, &alone].map(|batch| mean(batch, "output_error"));
        assert!(0.0 < errors[0] && errors[0] < errors[1] && errors[1] < errors[2], "{errors:?}");
        let noise = [&copied, &all].map(|batch| mean(batch, "quantization_error_ratio"));
        assert!(0.0 < noise[0] && noise[0] < noise[1], "{noise:?}");
    }
}

#[test]
fn one_pair_stands_for_what_is_dropped() {
    let drawn = draw(0.4);
    let recording = record(&drawn, ALL);
    let with_pair = |is_kept: &dyn Fn(usize) -> bool, step: usize, place: usize| {
        let context = PROMPT + step + 1;
        let dropped: Vec<usize> = (0..context).filter(|at| !is_kept(*at)).collect();
        let mean = |rows: &[f32]| -> Vec<f32> {
            let sum = |c: usize| dropped.iter().map(|at| f64::from(rows[at * DIM + c])).sum::<f64>();
            (0..DIM).map(|c| (sum(c) / dropped.len() as f64) as f32).collect()
        };
        let mut pairs: Attended = (0..context).filter(|at| is_kept(*at)).map(|at| pair(&drawn, place, at)).collect();
        pairs.push((dropped.len() as f64, mean(&drawn.keys[place]), mean(&drawn.values[place])));
        pairs
    };
    let ends = |step: usize, place: usize| with_pair(&is_end, step, place);
    near(&found(&format!("{ENDS}+compensate"), &recording), &|layer| slow_by_step(&drawn, layer, &ends));
    let streamed = |step: usize, place: usize| with_pair(&|at| is_streamed(step, at), step, place);
    let error = found("streaming(sinks=4,recent=8)+compensate", &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &streamed));
    // The selection that has such a pair by its own rule: two sinks and the last 8 tokens.
    let razor = |step: usize, place: usize| with_pair(&|at| !(2..PROMPT - 8).contains(&at), step, place);
    let error = found("razor(retrieval=0%,sinks=2,least=8,recent=10%)", &recording);
    near(&error, &|layer| slow_by_step(&drawn, layer, &razor));
    let stack = Stack::parse(&format!("{ENDS}+compensate")).unwrap();
    let refused = attention_error(&stack, &record(&drawn, With { vectors: false, ..ALL }), 1).unwrap_err();
    assert!(refused.to_string().contains("`compensate` needs channel `kv_vectors`"), "{refused}");
    assert!(refused.advice().unwrap().contains("`queries`"));
}

#[test]
fn rescaled_vectors_are_divided_by_what_products_shrink_to() {
    use quantize::codebook::turboquant_distortion;
    use quantize::rotate::Variant;
    use quantize::{Coding, Width};
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    let shrink = turboquant_distortion(2, DIM as u32);
    for (policy, variant, factor) in [
        ("turboquant(bits=2,variant=mse,skip=none)+rescale", Variant::Mse, 1.0 / (1.0 - shrink)),
        ("turboquant(k=2,v=8,skip=none)+rescale", Variant::Corrected, 1.0 / (1.0 - shrink).sqrt()),
    ] {
        let coding = Coding::Rotated { variant, width: Width::Whole(2) };
        let back = |coding, rows: &[f32], factor: f64| -> Vec<f32> {
            let (rows, _) = quantize::roundtrip(coding, rows, DIM).unwrap();
            rows.into_iter().map(|x| (f64::from(x) * factor) as f32).collect()
        };
        let left = |place: usize| {
            let keys = back(coding, &drawn.keys[place], factor);
            let values = if variant == Variant::Mse {
                back(coding, &drawn.values[place], factor)
            } else {
                back(Coding::Uniform { bits: 8, group: u32::MAX, residual: 0 }, &drawn.values[place], 1.0)
            };
            Pairs { keys, values }
        };
        near(&found(policy, &recording), &|layer| slow(&drawn, layer, &|_, _| true, &left));
    }
}

/// Masses of the recording, mean over the group.
fn masses(drawn: &Drawn, place: usize, step: usize) -> Vec<f64> {
    let context = PROMPT + step + 1;
    let queries = drawn.queries[place].chunks(DIM).skip(step * GROUP).take(GROUP);
    let rows: Vec<Vec<f64>> = queries.map(|q| softmax(q, &drawn.keys[place], context, &|_| true)).collect();
    (0..context).map(|at| rows.iter().map(|row| row[at]).sum::<f64>() / GROUP as f64).collect()
}

#[test]
fn recalled_pages_are_those_with_the_most_dropped_mass() {
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    for page in [1, 4] {
        let recalled = |step: usize, place: usize| -> Vec<usize> {
            let masses = masses(&drawn, place, step);
            let context = PROMPT + step + 1;
            let in_page = |number: usize| number * page..((number + 1) * page).min(context);
            let dropped = |number: usize| in_page(number).filter(|at| !is_streamed(step, *at)).collect::<Vec<_>>();
            let pages: Vec<usize> = (0..context.div_ceil(page)).filter(|at| !dropped(*at).is_empty()).collect();
            let sums: Vec<f64> =
                (0..context.div_ceil(page)).map(|at| dropped(at).iter().map(|at| masses[*at]).sum()).collect();
            best(&sums, &pages, 9 / page).into_iter().flat_map(dropped).collect()
        };
        let read = |step: usize, place: usize| {
            let recalled = recalled(step, place);
            let read = (0..=PROMPT + step).filter(|at| is_streamed(step, *at) || recalled.contains(at));
            read.map(|at| pair(&drawn, place, at)).collect()
        };
        let policy = format!("streaming(sinks=4,recent=8)+recall(tokens=9,page={page},by=mass)");
        near(&found(&policy, &recording), &|layer| slow_by_step(&drawn, layer, &read));
        let batch = attention_error(&Stack::parse(&policy).unwrap(), &recording, 1).unwrap();
        assert!(batch["recoverable_ratio"].as_primitive::<Float64Type>().iter().all(|ratio| ratio == Some(1.0)));
        let fetched = batch["recalled_tokens"].as_primitive::<Float64Type>();
        assert!(fetched.iter().all(|tokens| (2.0..=9.0).contains(&tokens.unwrap())));
        // Of the first step nothing was there before; later on a part is.
        let reuse: Vec<f64> =
            batch["recall_reuse_ratio"].as_primitive::<Float64Type>().iter().map(Option::unwrap).collect();
        assert!(reuse.iter().step_by(STEPS).all(|share| *share == 0.0), "{reuse:?}");
        assert!(reuse.iter().any(|share| *share > 0.0));
    }
    let refused = attention_error(&Stack::parse("window(8)+recall(tokens=16)").unwrap(), &recording, 1).unwrap_err();
    assert!(refused.to_string().contains("`recall` needs channel `page_bound`"), "{refused}");
}

#[test]
fn tokens_retained_beside_a_merge_are_their_own() {
    let drawn = draw(0.3);
    let recording = record(&drawn, ALL);
    let merge = Merge { start: 0.5, t: 0.6, retention: minicache::Retention::Top(0.05), exact: 0.0 };
    let merged = |place: usize| {
        let (a, b) = if place / HEADS == 2 { (place, place + HEADS) } else { (place - HEADS, place) };
        let both = |rows: &[Vec<f32>]| {
            let found = minicache::merge(&merge, &rows[a], &rows[b], DIM).unwrap();
            if place == a { found.shallow } else { found.deep }
        };
        let mut pairs = Pairs { keys: both(&drawn.keys), values: both(&drawn.values) };
        for at in best(&importance_of(&drawn, place), &(0..TOKENS).collect::<Vec<_>>(), 11) {
            pairs.keys[at * DIM..(at + 1) * DIM].copy_from_slice(&row(&drawn.keys[place], at));
            pairs.values[at * DIM..(at + 1) * DIM].copy_from_slice(&row(&drawn.values[place], at));
        }
        pairs
    };
    let error = found("minicache+retain(25%)", &recording);
    near(&error, &|layer| if layer < 2 { 0.0 } else { slow(&drawn, layer, &|_, _| true, &merged) });
    let mean = |errors: &[f64]| errors.iter().sum::<f64>();
    assert!(mean(&error) < mean(&found("minicache", &recording)));
    let angles = record(&drawn, With { vectors: false, ..ALL });
    assert!(mean(&found("minicache+retain(25%)", &angles)) < mean(&found("minicache", &angles)));
}

/// Pages of `Quest` by bounds that are computed from vectors: of the group's largest, or of each query head.
#[test]
fn quest_reads_the_union_of_what_its_heads_pick() {
    let drawn = draw(0.0);
    let recording = record(&drawn, ALL);
    let page = 4;
    let read = |is_union: bool, step: usize, place: usize| -> Vec<usize> {
        let context = PROMPT + step + 1;
        let pages: Vec<usize> = (0..context.div_ceil(page)).collect();
        let bound = |query: &[f32], number: usize| -> f64 {
            let keys = (number * page..((number + 1) * page).min(context)).map(|at| row(&drawn.keys[place], at));
            let keys: Vec<Vec<f32>> = keys.collect();
            let of = |c: usize| keys.iter().map(|key| f64::from(query[c] * key[c])).fold(f64::NEG_INFINITY, f64::max);
            (0..DIM).map(of).sum()
        };
        let queries = drawn.queries[place].chunks(DIM).skip(step * GROUP).take(GROUP);
        let scores: Vec<Vec<f64>> = queries.map(|q| pages.iter().map(|at| bound(q, *at)).collect()).collect();
        let mut picked: Vec<usize> = if is_union {
            scores.iter().flat_map(|scores| best(scores, &pages, 3)).collect()
        } else {
            let largest = pages.iter().map(|at| scores.iter().map(|s| s[*at]).fold(f64::NEG_INFINITY, f64::max));
            best(&largest.collect::<Vec<_>>(), &pages, 3)
        };
        picked.push(pages.len() - 1);
        (0..context).filter(|at| picked.contains(&(at / page))).collect()
    };
    for (policy, is_union) in [("quest(12,page=4,dense=1)", false), ("quest(12,page=4,dense=1,heads=union)", true)] {
        let attended = |step: usize, place: usize| {
            read(is_union, step, place).into_iter().map(|at| pair(&drawn, place, at)).collect()
        };
        let error = found(policy, &recording);
        near(&error, &|layer| if layer == 0 { 0.0 } else { slow_by_step(&drawn, layer, &attended) });
    }
    let without = record(&drawn, With { vectors: false, ..ALL });
    let refused = |policy: &str| attention_error(&Stack::parse(policy).unwrap(), &without, 1).unwrap_err().to_string();
    assert!(refused("quest(12,page=4,heads=union)").contains("`kv_vectors`"));
    assert!(refused("quest(12,page=4)").contains("`page_bound`"));
    // A union is at least as large as what one ranking picks, and at most as often as there are heads.
    let stack = Stack::parse("quest(12,page=4,dense=0,heads=union)").unwrap();
    let measured = crate::policy::Measured::of(&stack, &recording).unwrap().unwrap();
    let once = (0..LAYERS).map(|layer| measured.read_tokens[layer]);
    assert!(once.clone().all(|tokens| (12.0..=GROUP as f64 * 12.0 + 4.0).contains(&tokens)), "{measured:?}");
}
