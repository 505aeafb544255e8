//! Stacks on the recordings of a store, or of a folder, which are read in pieces.
//!
//! A piece is decoded by all threads, and then every layer of it is tried under every stack, side by side. Results are put
//! together in the order of stacks and layers, so that they do not depend on the threads or on how pieces are cut.

pub(super) mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow::array::RecordBatch;
use engine::error::{Error, Result};
use engine::policy::error::{add_cosines, budgets_by_layer, with_premise};
use engine::policy::minicache::{Cosines, Premise};
use engine::policy::organisation::{self, LayerPages};
use engine::policy::stack::Reads;
use engine::policy::{COLUMN_SUM, Measured, PAGE_BOUND, Stack, Trial, V_NORM};
use engine::recording::{Head, Recording};
use engine::schema::canonical::{ATTENTION, KV_STATS, KV_VECTORS, PREFILL_SCORES, QUERIES, RECORDINGS, REQUESTS};
use rayon::prelude::*;
use tempfile::TempDir;

use self::pieces::{Files, Index, Key, Needs, PIECE_BYTES, Piece};
use crate::ingest::{Options, ingest};
use crate::store::Store;

/// The recordings of a store, indexed.
pub(super) struct Recorded {
    index: Index,
    /// What is known of each as a whole; no rows.
    pub(super) heads: Vec<Recording>,
    /// Decoded bytes that a piece may take.
    piece_bytes: u64,
    /// Whether the mass of blocks is split over their tokens.
    is_split: bool,
    /// Holds the store that a folder was read through.
    _folder: Option<TempDir>,
}

/// How stacks are tried.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way {
    /// All tokens, in ranges of so many steps.
    BySteps(u32),
    /// The prompt alone, all steps together.
    OfPrompts,
}

/// What was found of one stack on one recording. Each part has its own reason not to be known: a recording without vectors
/// may say what a stack keeps and not what it loses.
#[derive(Debug)]
pub(super) struct Found {
    /// Rows of `attention_error`, or why there are none.
    pub(super) rows: Result<RecordBatch>,
    /// Whether the layers that it merges are alike.
    pub(super) premise: Option<Premise>,
    /// What it keeps, where its bytes depend on that.
    pub(super) measured: Result<Option<Measured>>,
    /// Rows of `kept_pages` and of `kept_overlap`, where it was tried by steps.
    pub(super) organisation: Result<Option<[RecordBatch; 2]>>,
}

/// What is put together from layer to layer.
struct Lane {
    rows: Result<Vec<RecordBatch>>,
    cosines: Cosines,
    /// By layer.
    kept: Result<Vec<Reads>>,
    /// Pages by request and layer.
    pages: Result<Vec<LayerPages>>,
    /// Of the request that is read in parts: what its heads choose by.
    of_parts: Option<(u64, Budgets)>,
}

type Budgets = BTreeMap<Key, Vec<u32>>;

/// One layer under one stack.
struct OfLayer {
    rows: Result<RecordBatch>,
    cosines: Cosines,
    layer: u16,
    kept: Result<Reads>,
    pages: Result<Option<LayerPages>>,
}

impl Lane {
    fn of(layers: usize) -> Self {
        Self {
            rows: Ok(Vec::new()),
            cosines: Cosines::default(),
            kept: Ok(vec![Reads::default(); layers]),
            pages: Ok(Vec::new()),
            of_parts: None,
        }
    }

    /// Whether anything can still be found.
    fn is_alive(&self) -> bool {
        self.rows.is_ok() || self.kept.is_ok() || self.pages.is_ok()
    }

    /// Without budgets for its heads a selection chooses nothing.
    fn fail(&mut self, error: &Error) {
        note(&mut self.rows, error.clone());
        note(&mut self.kept, error.clone());
        note(&mut self.pages, error.clone());
    }

    /// Takes what was found of a layer; gives its rows.
    fn take(&mut self, found: OfLayer) -> Option<RecordBatch> {
        self.cosines.append(&found.cosines);
        match (&mut self.kept, found.kept) {
            (Ok(kept), Ok(of_layer)) => {
                kept.get_mut(usize::from(found.layer)).into_iter().for_each(|sum| sum.add(of_layer));
            }
            (kept, Err(error)) => note(kept, error),
            (Err(_), Ok(_)) => {}
        }
        match (&mut self.pages, found.pages) {
            (Ok(pages), Ok(of_layer)) => pages.extend(of_layer),
            (pages, Err(error)) => note(pages, error),
            (Err(_), Ok(_)) => {}
        }
        found.rows.map_err(|error| note(&mut self.rows, error)).ok()
    }
}

/// The first error in the order of layers is told.
fn note<T>(found: &mut Result<T>, error: Error) {
    if found.is_ok() {
        *found = Err(error);
    }
}

impl Recorded {
    /// The same with the mass of blocks split over their tokens by `column_sum`, where that is wanted. Each piece is then as
    /// many times smaller as a block has tokens.
    ///
    /// # Errors
    /// Never for what is known of recordings as a whole.
    pub(super) fn split(self, is_wanted: bool) -> Result<Self> {
        if !is_wanted {
            return Ok(self);
        }
        let most = self.heads.iter().map(|head| u64::from(head.block_tokens)).max().unwrap_or(1).max(1);
        let heads = self.heads.into_iter().map(Recording::split_by_column_sum).collect::<Result<_>>()?;
        Ok(Self { heads, piece_bytes: self.piece_bytes / most, is_split: true, ..self })
    }

    /// The recordings of a piece, or of the scores of a request, as they are to be looked at.
    fn as_wanted(&self, recordings: Vec<Recording>) -> Result<Vec<Recording>> {
        if !self.is_split {
            return Ok(recordings);
        }
        recordings.into_iter().map(Recording::split_by_column_sum).collect()
    }

    /// Leaves only these requests.
    pub(super) fn keep_requests(&mut self, requests: &BTreeSet<u64>) {
        self.index.keep_requests(requests);
    }
}

/// The recordings of a store; `None` if it has none. Only what these stacks look at is read later.
pub(super) fn open(store: &Store, needs: Needs) -> Result<Option<Recorded>> {
    let found = store.read(&RECORDINGS)?;
    let Some(first) = found.first() else { return Ok(None) };
    let all = arrow::compute::concat_batches(&first.schema(), &found)?;
    if all.num_rows() == 0 {
        return Ok(None);
    }
    let files = Files {
        attention: store.files(ATTENTION.name),
        prefill_scores: store.files(PREFILL_SCORES.name),
        kv_stats: store.files(KV_STATS.name),
        queries: store.files(QUERIES.name),
        kv_vectors: store.files(KV_VECTORS.name),
    };
    let index = Index::new(all, &store.read(&REQUESTS)?, &files, needs)?;
    Ok(Some(Recorded { heads: index.heads()?, index, piece_bytes: PIECE_BYTES, is_split: false, _folder: None }))
}

/// The recordings of a store, or the one of a folder with a `recording.json`, which is read through a store that is
/// removed afterwards, and so is checked as any other.
pub(super) fn open_any(path: &Path, needs: Needs) -> Result<Option<Recorded>> {
    let is_file = path.file_name().is_some_and(|name| name == "recording.json");
    if !is_file && !path.join("recording.json").exists() {
        return open(&Store::open(path)?, needs);
    }
    let failed = |error: std::io::Error| Error::run(format!("cannot make a temporary folder: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let mut store = Store::open_or_create(&folder.path().join("store"))?;
    ingest(&mut store, &[path.to_string_lossy().into_owned()], &Options::standard(), &|_| {})?;
    Ok(open(&store, needs)?.map(|found| Recorded { _folder: Some(folder), ..found }))
}

/// What these stacks look at beside the masses.
pub(super) fn needs<'a>(stacks: impl IntoIterator<Item = &'a Stack>) -> Needs {
    stacks.into_iter().fold(Needs::default(), |needs, stack| Needs {
        bounds: needs.bounds || channels(stack).contains(&PAGE_BOUND.name),
        neighbours: needs.neighbours || stack.merge().is_some(),
    })
}

/// The channels that a stack's stages ask for.
fn channels(stack: &Stack) -> Vec<&'static str> {
    let kinds = stack.stages().iter().map(|stage| stage.args.kind());
    let needs = kinds.flat_map(|kind| kind.needs.iter().chain(stack.bytes_need()));
    needs.map(|channel| channel.name).collect()
}

/// Tries stacks, each on the recording of that place, layer by layer.
///
/// # Errors
/// Recordings that cannot be read. What one stack lacks is told beside what the others found.
pub(super) fn try_all(recorded: &Recorded, pairs: &[(&Stack, usize)], way: Way) -> Result<Vec<Found>> {
    let trials: Result<Vec<Trial<'_>>> = pairs
        .par_iter()
        .map(|(stack, at)| {
            let dim = recorded.heads.get(*at).map_or(1, |recording| recording.head_dim);
            match way {
                Way::BySteps(steps) => Trial::by_steps(stack, dim, steps),
                Way::OfPrompts => Ok(Trial::of_prompts(stack, dim)),
            }
        })
        .collect();
    let (trials, pieces) = (trials?, recorded.index.pieces(recorded.piece_bytes));
    let mut lanes: Vec<Lane> = pairs
        .iter()
        .map(|(_, at)| Lane::of(recorded.heads.get(*at).map_or(0, |recording| recording.layers as usize)))
        .collect();
    for piece in &pieces {
        let recordings = recorded.as_wanted(recorded.index.read(piece, rayon::current_num_threads())?)?;
        let budgets = find_budgets(recorded, piece, &recordings, pairs, &mut lanes)?;
        let has_pages = matches!(way, Way::BySteps(_));
        try_piece(&recordings, (&trials, has_pages), pairs, &budgets, &mut lanes);
    }
    lanes.into_iter().zip(pairs).map(|(lane, (stack, at))| found(recorded, lane, stack, *at)).collect()
}

/// Looks at every head of every recording, piece by piece and side by side, and tells what was found in the order of pieces,
/// recordings and heads.
///
/// # Errors
/// Recordings that cannot be read, and what `tell` refuses.
pub(super) fn each_head<T: Send>(
    recorded: &Recorded,
    look: impl Fn(&Head<'_>) -> T + Sync,
    mut tell: impl FnMut(&Recording, &Head<'_>, T) -> Result<()>,
) -> Result<()> {
    for piece in &recorded.index.pieces(recorded.piece_bytes) {
        let recordings = recorded.as_wanted(recorded.index.read(piece, rayon::current_num_threads())?)?;
        for recording in &recordings {
            let heads: Vec<Head<'_>> = recording.heads().collect();
            let found: Vec<T> = heads.par_iter().map(&look).collect();
            for (head, found) in heads.iter().zip(found) {
                tell(recording, head, found)?;
            }
        }
    }
    Ok(())
}

/// What each stack's selection gives the heads of a piece to choose by; nothing where it has no such function.
fn find_budgets(
    recorded: &Recorded,
    piece: &Piece,
    recordings: &[Recording],
    pairs: &[(&Stack, usize)],
    lanes: &mut [Lane],
) -> Result<Vec<Budgets>> {
    let mut all = Vec::with_capacity(pairs.len());
    for ((stack, at), lane) in pairs.iter().zip(lanes) {
        let shares_out = stack.selection().is_some_and(|(_, selection)| selection.choice.budgets.is_some());
        if !shares_out || !lane.is_alive() {
            all.push(Budgets::new());
            continue;
        }
        let found = match (piece.part_of, &lane.of_parts) {
            (Some(request), Some((known, budgets))) if *known == request => Ok(budgets.clone()),
            (Some(request), _) => {
                let mut names = channels(stack);
                names.extend(recorded.is_split.then_some(COLUMN_SUM.name));
                let norms = names.contains(&V_NORM.name);
                let whole = recorded.index.read_scores(request, &names, norms, rayon::current_num_threads())?;
                let whole = recorded.as_wanted(whole)?;
                whole.get(*at).map_or_else(|| Ok(Budgets::new()), |whole| budgets_by_layer(stack, whole))
            }
            (None, _) => recordings.get(*at).map_or_else(|| Ok(Budgets::new()), |all| budgets_by_layer(stack, all)),
        };
        match found {
            Ok(found) => {
                lane.of_parts = piece.part_of.map(|request| (request, found.clone()));
                all.push(found);
            }
            Err(error) => {
                lane.fail(&error);
                all.push(Budgets::new());
            }
        }
    }
    Ok(all)
}

/// Every layer of a piece under every stack.
fn try_piece(
    recordings: &[Recording],
    (trials, has_pages): (&[Trial<'_>], bool),
    pairs: &[(&Stack, usize)],
    budgets: &[Budgets],
    lanes: &mut [Lane],
) {
    let layers: Vec<Vec<Vec<Head<'_>>>> =
        recordings.iter().map(|recording| recording.heads_by_layer().collect()).collect();
    let mut jobs: Vec<(usize, &Recording, &[Head<'_>])> = Vec::new();
    for (lane, (_, at)) in pairs.iter().enumerate() {
        if let (Some(recording), Some(layers), true) = (recordings.get(*at), layers.get(*at), lanes[lane].is_alive()) {
            jobs.extend(layers.iter().map(|layer| (lane, recording, layer.as_slice())));
        }
    }
    let done: Vec<OfLayer> = jobs
        .par_iter()
        .map(|(lane, recording, layer)| try_layer(recording, layer, (&trials[*lane], has_pages), &budgets[*lane]))
        .collect();
    let mut of_piece: Vec<Vec<RecordBatch>> = vec![Vec::new(); lanes.len()];
    for ((at, ..), done) in jobs.iter().zip(done) {
        let (Some(lane), Some(of_piece)) = (lanes.get_mut(*at), of_piece.get_mut(*at)) else { continue };
        of_piece.extend(lane.take(done));
    }
    // One batch per piece: many small ones would take more memory than their rows.
    for (lane, of_piece) in lanes.iter_mut().zip(of_piece) {
        let Ok(rows) = &mut lane.rows else { continue };
        match joined(&of_piece) {
            Ok(batch) => rows.push(batch),
            Err(error) => lane.rows = Err(error),
        }
    }
}

fn try_layer(
    recording: &Recording,
    heads: &[Head<'_>],
    (trial, has_pages): (&Trial<'_>, bool),
    budgets: &Budgets,
) -> OfLayer {
    let key = heads.first().map_or((0, 0), |head| (head.request.request_id, head.layer));
    let none = vec![0; heads.len()];
    let budgets = budgets.get(&key).unwrap_or(&none);
    let mut cosines = Cosines::default();
    add_cosines(trial.stack(), recording.layers, heads, &mut cosines);
    let kept = if trial.stack().bytes_need().is_empty() {
        Ok(Reads::default())
    } else {
        Measured::sum_of(trial.stack(), heads, budgets)
    };
    let pages = if has_pages { organisation::of_layer(trial.stack(), heads, budgets) } else { Ok(None) };
    OfLayer { rows: trial.layer(recording, heads, budgets), cosines, layer: key.1, kept, pages }
}

fn found(recorded: &Recorded, lane: Lane, stack: &Stack, at: usize) -> Result<Found> {
    let premise = lane.cosines.premise();
    let rows = match lane.rows {
        Ok(rows) => Ok(with_premise(&joined(&rows)?, premise)?),
        Err(error) => Err(error),
    };
    let head = recorded.heads.get(at);
    let label = head.map(Recording::label).filter(|_| !stack.bytes_need().is_empty());
    let measured = lane.kept.map(|kept| label.and_then(|label| Measured::of_sums(label, &kept)));
    let organisation = match (head, lane.pages) {
        (_, Err(error)) => Err(error),
        (Some(head), Ok(pages)) if !pages.is_empty() => organisation::batches(stack, head, &pages).map(Some),
        _ => Ok(None),
    };
    Ok(Found { rows, premise, measured, organisation })
}

fn joined(rows: &[RecordBatch]) -> Result<RecordBatch> {
    let schema = engine::schema::result::ATTENTION_ERROR.arrow();
    Ok(arrow::compute::concat_batches(&schema, rows)?)
}

#[cfg(test)]
mod tests;
