#![expect(clippy::float_cmp, reason = "these values are exact in floating point")]

use arrow::array::{Float32Builder, ListBuilder, StringArray, UInt16Array, UInt32Array, UInt64Array};
use std::sync::Arc;

use super::*;
use crate::schema::{self, Cell, batch_of_rows, canonical};

/// The tables of a recording of one request with one layer and one KV head, to be bent by tests.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) block_tokens: u32,
    pub(crate) prompt_tokens: u32,
    /// Step, context, masses.
    pub(crate) steps: Vec<(u32, u32, Vec<f32>)>,
    /// Channel, query rows, scores.
    pub(crate) scores: Vec<(&'static str, u32, Vec<f32>)>,
    /// Norms of K and V.
    pub(crate) norms: Option<(Vec<f32>, Vec<f32>)>,
    /// `sum_sq`, `out_norm`, `q_norm` of every step.
    pub(crate) output: Option<[f32; 3]>,
}

fn list(rows: &[&[f32]]) -> ArrayRef {
    let mut builder: ListBuilder<Float32Builder> = schema::list_f32();
    for row in rows {
        builder.values().append_slice(row);
        builder.append(true);
    }
    Arc::new(builder.finish())
}

impl Tables {
    /// Evenly spread attention of `steps` steps on a prompt.
    pub(crate) fn even(block_tokens: u32, prompt_tokens: u32, steps: u32) -> Self {
        let step = |step: u32| {
            let context = prompt_tokens + step;
            let units = context.div_ceil(block_tokens) as usize;
            (step, context, vec![1.0 / units as f32; units])
        };
        let steps = (1..=steps).map(step).collect();
        Self { block_tokens, prompt_tokens, steps, scores: Vec::new(), norms: None, output: None }
    }

    pub(crate) fn read(&self) -> Result<Recording> {
        let cells = |values: [u32; 5]| values.into_iter().map(Cell::from);
        let mut row = vec![Cell::from(5_u32), Cell::from("tiny")];
        row.extend(cells([1, 3, 1, 64, self.block_tokens]));
        row.extend([Cell::from("tokens"), Cell::Null, Cell::Null, Cell::Null]);
        let head = batch_of_rows(&canonical::RECORDINGS, &[row])?;
        let number = |values: Vec<u32>| Arc::new(UInt32Array::from(values)) as ArrayRef;
        let place = |rows: usize| -> Vec<(&str, ArrayRef)> {
            vec![
                ("request_id", Arc::new(UInt64Array::from(vec![9; rows]))),
                ("layer", Arc::new(UInt16Array::from(vec![0; rows]))),
                ("kv_head", Arc::new(UInt16Array::from(vec![0; rows]))),
            ]
        };
        let requests = RecordBatch::try_from_iter([
            ("request_id", Arc::new(UInt64Array::from(vec![8, 9])) as ArrayRef),
            ("source_id", number(vec![4, 5])),
            ("prompt_tokens", number(vec![1, self.prompt_tokens])),
            ("output_tokens", number(vec![1, self.steps.len() as u32])),
        ])?;
        let rows = self.steps.len();
        let mut columns = place(rows);
        columns.extend([
            ("step", number(self.steps.iter().map(|step| step.0).collect())),
            ("context_tokens", number(self.steps.iter().map(|step| step.1).collect())),
            ("block_tokens", Arc::new(UInt16Array::from(vec![self.block_tokens as u16; rows])) as ArrayRef),
            ("mass", list(&self.steps.iter().map(|step| &step.2[..]).collect::<Vec<_>>())),
        ]);
        if let Some(output) = self.output {
            let names = ["sum_sq", "out_norm", "q_norm"];
            columns.extend(
                names
                    .into_iter()
                    .zip(output)
                    .map(|(name, value)| (name, Arc::new(Float32Array::from(vec![value; rows])) as ArrayRef)),
            );
        }
        let attention = RecordBatch::try_from_iter(columns)?;
        let mut columns = place(self.scores.len());
        columns.extend([
            ("channel", Arc::new(self.scores.iter().map(|score| Some(score.0)).collect::<StringArray>()) as ArrayRef),
            ("rows", number(self.scores.iter().map(|score| score.1).collect())),
            ("score", list(&self.scores.iter().map(|score| &score.2[..]).collect::<Vec<_>>())),
        ]);
        let scores = RecordBatch::try_from_iter(columns)?;
        let mut columns = place(usize::from(self.norms.is_some()));
        let norms: Vec<_> = self.norms.iter().collect();
        columns.push(("k_norm", list(&norms.iter().map(|norms| &norms.0[..]).collect::<Vec<_>>())));
        columns.push(("v_norm", list(&norms.iter().map(|norms| &norms.1[..]).collect::<Vec<_>>())));
        let stats = RecordBatch::try_from_iter(columns)?;
        let mut all = recordings(&super::Tables {
            recordings: &head,
            requests: &[requests],
            attention: &[attention],
            prefill_scores: &[scores],
            kv_stats: &[stats],
            queries: &[],
            kv_vectors: &[],
        })?;
        all.pop().ok_or_else(|| Error::data("no recording"))
    }
}

#[test]
fn rows_are_found_by_head_and_in_order_of_steps() {
    let mut tables = Tables::even(4, 10, 3);
    tables.steps.reverse();
    tables.scores = vec![("window_rows", 8, vec![0.0; 10]), ("window_rows", 32, vec![1.0; 10])];
    tables.norms = Some((vec![1.0; 13], vec![2.0; 13]));
    let recording = tables.read().unwrap();
    assert_eq!(recording.label(), "tiny (tokens)");
    let head = recording.heads().next().unwrap();
    let steps: Vec<(u32, u32, usize)> =
        head.steps().map(|step| (step.step, step.context_tokens, step.mass.len())).collect();
    assert_eq!(steps, [(1, 11, 3), (2, 12, 3), (3, 13, 4)]);
    assert_eq!(head.steps().next().unwrap().sum_sq, None, "a missing column is unknown");
    let channel = &crate::policy::WINDOW_ROWS;
    assert_eq!(head.score("x", channel, 8).unwrap()[0], 0.0);
    assert_eq!(head.score("x", channel, 9).unwrap()[0], 1.0);
    assert_eq!(head.widest_score("window_rows").unwrap()[0], 1.0);
    let error = head.score("x", channel, 33).unwrap_err();
    assert!(
        error.to_string().contains("from at least 33 query rows") && error.to_string().contains("from 32 rows only")
    );
    assert_eq!(head.norms().unwrap().1, [2.0; 13]);
}

#[test]
fn odd_data_is_an_error_that_says_where() {
    type Bend = fn(&mut Tables);
    let cases: [(Bend, &str); 11] = [
        (
            |t| t.steps[1].2.push(0.0),
            "attention: request 9, step 2, layer 0, KV head 0: expected 3 masses for 12 tokens of context, found 4",
        ),
        (
            |t| t.steps[1].2[0] = f32::NAN,
            "attention: request 9, step 2, layer 0, KV head 0: expected masses of at least 0",
        ),
        (|t| t.steps[1].2[0] = -0.5, "expected masses of at least 0"),
        (|t| t.steps[1].0 = 1, "attention: request 9, layer 0, KV head 0: step 1 appears twice"),
        (|t| t.prompt_tokens = 12, "expected at least 12 tokens of context in step 1, found 11"),
        (|t| t.steps[2].0 = 0, "expected at least 13 tokens of context in step 1, found 11"),
        (
            |t| t.scores = vec![("last_row", 1, vec![0.0; 9])],
            "prefill_scores: request 9, layer 0, KV head 0, channel `last_row`: expected 10 scores, found 9",
        ),
        (|t| t.scores = vec![("last_row", 1, vec![f32::INFINITY; 10])], "a score is not a finite number"),
        (
            |t| t.norms = Some((vec![1.0; 12], vec![1.0; 12])),
            "kv_stats: request 9, layer 0, KV head 0: expected at least 13 norms, found 12",
        ),
        (|t| t.norms = Some((vec![1.0; 13], vec![1.0; 12])), "13 norms of K but 12 of V"),
        (|t| t.block_tokens = 0, "recordings: source 5"),
    ];
    for (bend, message) in cases {
        let mut tables = Tables::even(4, 10, 3);
        bend(&mut tables);
        let error = tables.read().unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

/// Tokens whose masses are their shares of `column_sum` come back as they were; generated tokens are spread evenly.
#[test]
fn blocks_are_split_by_column_sum() {
    let mut blocks = Tables::even(4, 10, 3);
    // 11 to 13 tokens of context: blocks of 4, 4, 3 and so on.
    let masses = [vec![0.5, 0.25, 0.25], vec![0.5, 0.25, 0.25], vec![0.4, 0.0, 0.4, 0.2]];
    for (step, mass) in blocks.steps.iter_mut().zip(masses) {
        step.2 = mass;
    }
    blocks.scores = vec![("column_sum", 10, vec![3.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0])];
    let recording = blocks.read().unwrap().split_by_column_sum().unwrap();
    assert_eq!((recording.block_tokens, recording.mass_from), (1, "column_sum"));
    assert!(recording.label().contains("split by column_sum"), "{}", recording.label());
    let head = recording.heads().next().unwrap();
    let split: Vec<&[f32]> = head.steps().map(|step| step.mass).collect();
    assert_eq!(split[0][..4], [0.375, 0.125, 0.0, 0.0]);
    assert_eq!(split[0][4..8], [0.0625; 4], "sums of zero split evenly");
    assert_eq!(split[0].len(), 11);
    // A block with generated tokens has no sums of all of them.
    assert!(split[0][8..].iter().all(|mass| (mass - 0.25 / 3.0).abs() < 1e-7));
    assert_eq!((split[1].len(), split[2].len()), (12, 13));
    assert_eq!(split[2][12..], [0.2]);
    for (split, step) in split.iter().zip(&blocks.steps) {
        let (split, whole): (f32, f32) = (split.iter().sum(), step.2.iter().sum());
        assert!((split - whole).abs() < 1e-6);
    }
    blocks.scores.clear();
    let error = blocks.read().unwrap().split_by_column_sum().unwrap_err();
    assert!(
        error.to_string().contains("`column_sum`") && error.advice().unwrap().contains("prefill_scores"),
        "{error}"
    );
    let tokens = Tables::even(1, 10, 3).read().unwrap().split_by_column_sum().unwrap();
    assert_eq!(tokens.mass_from, "recorded");
}
