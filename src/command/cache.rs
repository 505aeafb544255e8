//! `kvtoll cache`: what a cache of KV blocks hits, by size and policy, and what a hierarchy of caches does.

pub(super) mod below;

use std::path::PathBuf;

use arrow::array::RecordBatch;
use engine::cache::curve::{self, LruCurve};
use engine::cache::sample::{estimate, sample};
use engine::cache::tables::{CACHE_TIERS, Curve, Frame, Point, Scale, cache_tiers, miss_ratio};
use engine::cache::tiers::{self, Preset};
use engine::cache::trace::Sessions;
use engine::cache::{Rule, Trace, count};
use engine::error::{Error, Result};
use engine::schema::canonical::REQUESTS;
use engine::unit;
use engine::workload::{Times, Workload};
use rayon::prelude::*;

use super::replay::sources::{Load, available, choose, load, with_requests};
use super::{Exit, Shown, print, share, talk};
use crate::scenario::load_model;
use crate::store::Store;

/// Sizes for each factor of ten in a range.
const PER_DECADE: u32 = 4;

/// The same in the table that a run keeps.
const RUN_PER_DECADE: u32 = 2;

/// Arguments of `kvtoll cache`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store
    pub store: PathBuf,
    /// Policies of the cache, such as `lru,sieve` or `ttl(idle=10min)`; see `kvtoll list caches`
    #[arg(long, value_name = "POLICY,...", default_value = "lru,min")]
    pub policy: Vec<String>,
    /// Sizes in blocks of the trace, such as `1k..1M` or `1000,20k`; with a model also `16GiB..4TiB`
    #[arg(long, value_name = "SIZES")]
    pub blocks: Option<String>,
    /// A hierarchy that ships, such as `hicache`, with one size of `--blocks` for each of its tiers
    #[arg(long, value_name = "PRESET", conflicts_with_all = ["policy", "sample", "current", "usd_per_gib_hour"])]
    pub tiers: Option<String>,
    /// What to show: hits by size, lives of blocks, gaps between their uses, block sizes, whether each tier pays, or each
    /// run of blocks that a tier could serve
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = below::Show::Hits)]
    pub show: below::Show,
    /// The machine that would compute what is not fetched, for `--show tiers` and `--show fetches`
    #[arg(long, value_name = "MACHINE", requires = "model")]
    pub machine: Option<String>,
    /// Its accelerators per copy of the model; the fewest that hold the weights if not given
    #[arg(long, value_name = "N", requires = "machine")]
    pub tensor_parallel: Option<u32>,
    /// Copies of the model, to which requests go in turn, for `--show desk`, `yields` and `copies`
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub instances: u32,
    /// The price book of the machine, for what reads are worth
    #[arg(long, value_name = "BOOK", requires = "machine")]
    pub prices: Option<String>,
    /// Replay the pages of recorded attention instead of the blocks of prompts: in each decode step, those that hold this
    /// share of the mass, such as `90%`
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["workload", "model", "machine"])]
    pub pages: Option<String>,
    /// The recorded request whose pages are replayed, by its key; all of them if not given
    #[arg(long, value_name = "KEY", requires = "pages")]
    pub request: Option<String>,
    /// Fetch `break-even` (as far as it pays for each request) or `always`
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = below::When::BreakEven)]
    pub fetch: below::When,
    /// The way from a tier to one instance in place of the machine's, such as `dram=200GB/s,2us`; repeat for others
    #[arg(long, value_name = "TIER=RATE,LATENCY")]
    pub way: Vec<String>,
    /// The source whose requests are replayed: format, file name or number
    #[arg(long, value_name = "SOURCE")]
    pub workload: Option<String>,
    /// The model whose KV the blocks hold (in bf16), which gives sizes in bytes
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Price of a GiB of the cache for an hour, which gives sizes in dollars (needs a model)
    #[arg(long, value_name = "USD", requires = "model")]
    pub usd_per_gib_hour: Option<f64>,
    /// The size in use now, which is marked
    #[arg(long, value_name = "SIZE")]
    pub current: Option<String>,
    /// Replay a share of the blocks only, such as `1%`, and tell the error
    #[arg(long, value_name = "SHARE")]
    pub sample: Option<String>,
    /// Chooses which blocks are sampled
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// In which form, and where
    #[command(flatten)]
    pub shown: Shown,
}

/// Runs `kvtoll cache`.
pub fn run(args: &Args) -> Result<Exit> {
    let format = args.shown.format()?;
    let rules = rules(&args.policy)?;
    let rate = args.sample.as_deref().map(|text| share(text, "1%")).transpose()?;
    let preset = args.tiers.as_deref().map(Preset::find).transpose()?;
    if args.usd_per_gib_hour.is_some_and(|usd| !(usd.is_finite() && usd >= 0.0)) {
        return Err(Error::usage("expected `--usd-per-gib-hour` to be a price of at least 0"));
    }
    if args.show == below::Show::Attention {
        return print(
            &below::attention(&Store::open(&args.store)?)?,
            format,
            args.shown.max_rows,
            args.shown.output.as_deref(),
        );
    }
    let (workload, sessions) = match &args.pages {
        Some(text) => (below::pages(args, share(text, "1%")?)?, None),
        None => read(args)?,
    };
    let trace = Trace::with_sessions(&workload, sessions.as_ref());
    let scale = scale(args, &workload)?;
    let table = match preset {
        _ if args.show != below::Show::Hits => below::table(args, &rules, preset, (&workload, &trace), scale)?,
        Some(preset) => hierarchy(args, preset, &trace, scale)?,
        None => curves(args, &rules, &trace, (rate, scale), &workload)?,
    };
    print(&[table], format, args.shown.max_rows, args.shown.output.as_deref())
}

/// The requests that are asked for, and their sessions.
fn read(args: &Args) -> Result<(Workload, Option<Sessions>)> {
    let store = Store::open(&args.store)?;
    let sources = with_requests(&store, available(&store)?)?;
    let source = choose(&sources, args.workload.as_deref(), false)?;
    let workload = load(&store, source, Load::Requests(Times::Arrivals))?.workload;
    if workload.units.is_empty() {
        return Err(Error::run(format!("the requests of `{}` name no KV blocks", workload.name))
            .hint("a cache can be replayed on traces with block hashes, such as Mooncake's"));
    }
    let sessions = Sessions::read(&workload, &store.read(&REQUESTS)?)?;
    Ok((workload, sessions))
}

/// Policies separated by commas outside of parentheses.
fn rules(texts: &[String]) -> Result<Vec<Rule>> {
    let mut depth = 0_i32;
    let parts = texts.iter().flat_map(|text| {
        text.split(|letter: char| {
            depth += i32::from(letter == '(') - i32::from(letter == ')');
            letter == ',' && depth == 0
        })
        .collect::<Vec<_>>()
    });
    let rules: Result<Vec<Rule>> = parts.filter(|part| !part.trim().is_empty()).map(Rule::parse).collect();
    rules.and_then(
        |rules| {
            if rules.is_empty() { Err(Error::usage("expected a cache policy, found none")) } else { Ok(rules) }
        },
    )
}

/// What a block weighs.
fn scale(args: &Args, workload: &Workload) -> Result<Scale> {
    let Some(model) = args.model.as_deref().map(load_model).transpose()? else { return Ok(Scale::default()) };
    let block_bytes = model.growing_bytes_per_token().saturating_mul(u64::from(workload.unit_tokens));
    if block_bytes == 0 {
        return Err(Error::run(format!("the KV of `{}` does not grow with the context", model.name))
            .hint("leave `--model` out: sizes are then in blocks"));
    }
    Ok(Scale { block_bytes: Some(block_bytes), usd_per_gib_hour: args.usd_per_gib_hour })
}

/// One size: blocks, or bytes with a unit where a block has some.
fn size(text: &str, scale: Scale) -> Result<u64> {
    if let Some(blocks) = count(text) {
        return Ok(blocks);
    }
    let hint = "write blocks such as `20k`, or give `--model` and write `64GiB`";
    let bytes = unit::parse(&unit::BYTES, text)
        .map_err(|_| Error::usage(format!("expected a size, found `{text}`")).hint(hint))?;
    let block = scale
        .block_bytes
        .ok_or_else(|| Error::usage(format!("expected blocks without a model, found `{text}`")).hint(hint))?;
    Ok((bytes / block as f64) as u64)
}

/// Sizes as a list of numbers and ranges.
fn sizes(text: &str, scale: Scale) -> Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => sizes.push(size(part.trim(), scale)?),
            Some((from, to)) => {
                let (from, to) = (size(from.trim(), scale)?, size(to.trim(), scale)?);
                if from == 0 || from > to {
                    return Err(Error::usage(format!("expected a range of rising sizes above 0, found `{part}`")));
                }
                sizes.extend(curve::sizes(from, to, PER_DECADE));
            }
        }
    }
    Ok(sizes)
}

fn hierarchy(args: &Args, preset: &Preset, trace: &Trace<'_>, scale: Scale) -> Result<RecordBatch> {
    let names: Vec<&str> = preset.tiers.iter().map(|tier| tier.name).collect();
    let text = args.blocks.as_deref().ok_or_else(|| {
        Error::usage(format!("expected `--blocks` with a size for each tier of `{}`, found none", preset.name))
            .hint(format!("its tiers are {}", names.join(", ")))
    })?;
    let rules = preset.hierarchy(&sizes(text, scale)?, trace.unit_tokens())?;
    let found = tiers::replay(&rules, trace)?;
    talk::note(&format!("{}: {}", preset.name, preset.source));
    for name in ["hits", "skipped", "written_blocks", "refused_blocks", "misses"] {
        if let Some(column) = CACHE_TIERS.column(name) {
            talk::note(&format!("{name}: {}", column.doc));
        }
    }
    cache_tiers(trace.name(), preset.name, &rules, &found)
}

fn curves(
    args: &Args,
    rules: &[Rule],
    trace: &Trace<'_>,
    (rate, scale): (Option<f64>, Scale),
    workload: &Workload,
) -> Result<RecordBatch> {
    let current = args.current.as_deref().map(|text| size(text, scale)).transpose()?;
    let distinct = trace.distinct() as u64;
    let mut wanted = match &args.blocks {
        Some(text) => sizes(text, scale)?,
        None => curve::sizes((distinct / 1000).max(1), distinct.max(1), PER_DECADE),
    };
    wanted.extend(current);
    wanted.sort_unstable();
    wanted.dedup();
    let accesses = trace.accesses().len() as u64;
    let mut frame = Frame { workload: trace.name().to_owned(), accesses, distinct, bound: Vec::new(), current, scale };
    let (curves, lru) = if let Some(rate) = rate {
        (sampled(rules, trace, (rate, args.seed), &wanted, workload)?, None)
    } else {
        let lru = curve::lru(trace, &wanted);
        let (curves, bound) = exact(rules, trace, &wanted, &lru)?;
        frame.bound = bound;
        (curves, Some(lru))
    };
    tell(&frame, trace, lru.as_ref());
    miss_ratio(&frame, &curves)
}

/// Hits by size.
type Bound = Vec<(u64, u64)>;

/// Every policy at every size, several at once, in the order of the policies; and MIN's hits, if it is among them. `lru` is
/// LRU's curve at these sizes.
fn exact(rules: &[Rule], trace: &Trace<'_>, sizes: &[u64], lru: &LruCurve) -> Result<(Vec<Curve>, Bound)> {
    let mut curves = Vec::new();
    let mut bound = Vec::new();
    for rule in rules {
        let points = if rule.is_plain_lru() {
            lru.points.clone()
        } else {
            let found: Result<Vec<_>> = sizes
                .par_iter()
                .map(|size| Ok(curve::points(rule, trace, &[*size])?.pop().unwrap_or_default()))
                .collect();
            found?
        };
        if rule.text() == engine::cache::min::KIND.name {
            bound = sizes.iter().copied().zip(points.iter().map(|point| point.hits)).collect();
        }
        let points = sizes.iter().copied().zip(points.into_iter().map(Point::Exact)).collect();
        curves.push(Curve { policy: rule.text(), points });
    }
    Ok((curves, bound))
}

fn sampled(
    rules: &[Rule],
    trace: &Trace<'_>,
    (rate, seed): (f64, u64),
    sizes: &[u64],
    workload: &Workload,
) -> Result<Vec<Curve>> {
    let part = sample(workload, rate, seed)?;
    let whole = (trace.accesses().len() as u64, trace.distinct() as u64);
    let curve = |rule: &Rule| {
        let found = estimate(rule, &trace.of(&part), rate, whole, sizes)?;
        let points = found.into_iter().map(|estimate| (estimate.capacity, Point::Sampled(estimate))).collect();
        Ok(Curve { policy: rule.text(), points })
    };
    rules.par_iter().map(curve).collect()
}

/// What a run keeps of a workload's caches: LRU and the bound, from a thousandth of its blocks to all. Without rows where
/// the requests name no blocks.
///
/// # Errors
/// None that a workload can cause.
pub(super) fn curve(workload: &Workload) -> Result<RecordBatch> {
    let trace = Trace::new(workload);
    let distinct = trace.distinct() as u64;
    let sizes =
        if distinct == 0 { Vec::new() } else { curve::sizes((distinct / 1000).max(1), distinct, RUN_PER_DECADE) };
    let lru = curve::lru(&trace, &sizes);
    let (curves, bound) = exact(&rules(&["lru,min".to_owned()])?, &trace, &sizes, &lru)?;
    let (accesses, scale) = (trace.accesses().len() as u64, Scale::default());
    let frame = Frame { workload: trace.name().to_owned(), accesses, distinct, bound, current: None, scale };
    miss_ratio(&frame, &curves)
}

/// What holds for all sizes, and what a hit is.
fn tell(frame: &Frame, trace: &Trace<'_>, lru: Option<&LruCurve>) {
    let Frame { accesses, distinct, .. } = frame;
    let ceiling = accesses - distinct;
    talk::note(&format!(
        "{accesses} uses of {distinct} distinct blocks of {} tokens; without a limit {ceiling} uses hit",
        trace.unit_tokens()
    ));
    if let Some(knee) = lru.and_then(|lru| lru.distances.knee(curve::KNEE_PERCENT)) {
        talk::note(&format!("LRU makes {}% of these hits from {knee} blocks on", curve::KNEE_PERCENT));
    }
    talk::note(
        "a request uses each block of its prompt once, in order; a hit is a use of a block that is there, whatever came \
         before it; leading and token ratios count only hits before a request's first miss",
    );
    talk::note("what each column means: `kvtoll schema miss_ratio`");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_blocks_ranges_and_bytes() {
        let plain = Scale::default();
        assert_eq!(sizes("1000,20k", plain).unwrap(), [1_000, 20_000]);
        assert_eq!(sizes("1k..10k", plain).unwrap(), [1_000, 1_778, 3_162, 5_623, 10_000]);
        let scale = Scale { block_bytes: Some(1 << 20), usd_per_gib_hour: None };
        assert_eq!(sizes("1GiB", scale).unwrap(), [1_024]);
        for (text, message) in
            [("1GiB", "without a model"), ("many", "expected a size"), ("9k..1k", "rising"), ("0..5", "rising")]
        {
            let error = sizes(text, plain).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn policies_are_split_outside_of_parentheses() {
        let texts = ["lru,2q(in=30%,out=40%)".to_owned(), "min".to_owned()];
        let found: Vec<String> = rules(&texts).unwrap().iter().map(Rule::text).collect();
        assert_eq!(found, ["lru", "2q(in=30%,out=40%)", "min"]);
        assert!(rules(&[",".to_owned()]).is_err());
        let share = |text| share(text, "1%");
        assert!(share("0%").is_err() && share("1").is_err() && (share("5%").unwrap() - 0.05).abs() < 1e-12);
    }
}
