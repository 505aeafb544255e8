//! `kvtoll validate policies`: the error that a recording predicts for each setting of a policy, beside what the setting did
//! to the model when it was applied in the loop.
//!
//! Number formats and merges treat the prompt alone, as they did when the quality was measured.
//!
//! The table of measurements has tab-separated columns, of which `request_id` (the request's id in the recording's source),
//! `policy`, `param` and `kl_mean` (mean divergence from the predictions with the full cache) are read. What policies are
//! called there is translated into stacks ([`stack_of`]); any stack is also taken as it is, with `-` as its parameter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, StringArray};
use arrow::datatypes::Float64Type;
use engine::error::{Error, Result, unknown};
use engine::policy::minicache::Premise;
use engine::policy::{Floor, Stack};
use engine::recording::Recording;

use crate::command::recorded::pieces::Needs;
use crate::command::recorded::{self, Found, Recorded, Way};
use crate::command::{Exit, print, say, talk};
use crate::output::Format;

/// Arguments of `kvtoll validate policies`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A recording (folder), or a store that holds one
    pub recording: PathBuf,
    /// What settings of policies did to the model: tab-separated `request_id`, `policy`, `param`, `kl_mean`
    #[arg(long, value_name = "FILE.tsv")]
    pub quality: PathBuf,
    /// Split the mass of recorded blocks over their tokens by `column_sum`, so that selections choose single tokens
    #[arg(long)]
    pub split_blocks: bool,
    /// Write the settings to a file, by its name as csv, tsv, ndjson, json, md or parquet
    #[arg(long, value_name = "PATH")]
    pub output: Option<PathBuf>,
}

/// One row of the table.
#[derive(Debug)]
struct Setting {
    request: String,
    policy: String,
    param: String,
    kl: f64,
}

/// A setting as it was replayed.
#[derive(Debug)]
struct Replayed<'a> {
    setting: &'a Setting,
    stack: Stack,
    /// Mean over steps and layers; `None` where it is unknown.
    error: Option<f64>,
    from: Option<String>,
    lost_mass: f64,
    kept: f64,
    premise: Option<Premise>,
}

/// Which settings are compared with each other.
const GROUPS: [(&str, Option<Floor>); 4] = [
    ("selections", Some(Floor::Selection)),
    ("formats", Some(Floor::Format)),
    ("merging", Some(Floor::Merging)),
    ("all", None),
];

/// Runs `kvtoll validate policies`.
pub fn run(args: &Args) -> Result<Exit> {
    let settings = read(&args.quality)?;
    let is_any = Needs { bounds: true, neighbours: true };
    let mut found = recorded::open_any(&args.recording, is_any)?.ok_or_else(|| {
        Error::data("expected a recording, found none").hint("name a recording, or a store that holds one")
    })?;
    found = found.split(args.split_blocks)?;
    let ids = requests(&found.heads, &settings)?;
    // Only what is compared is replayed.
    found.keep_requests(&ids.keys().map(|(_, id)| *id).collect());
    let places: BTreeMap<&str, (usize, u64)> = ids.iter().map(|(place, name)| (name.as_str(), *place)).collect();
    let bar = talk::bar(None);
    bar.set_message(format!("replaying {} settings", settings.len()));
    let replayed = replay(&found, &settings, &places)?;
    bar.finish_and_clear();
    print(&[table(&replayed)?], Format::Auto, Some(0), args.output.as_deref())?;
    say(&summary(&replayed))?;
    tell_premises(&replayed);
    Ok(Exit::Done)
}

/// The settings of a table.
fn read(path: &Path) -> Result<Vec<Setting>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| Error::data(format!("cannot read `{shown}`: {error}")))?;
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let names: Vec<&str> = lines.next().map_or_else(Vec::new, |(_, line)| line.split('\t').map(str::trim).collect());
    let place = |name: &str| {
        let found = names.iter().position(|found| *found == name);
        found.ok_or_else(|| Error::data(format!("`{shown}`: expected a tab-separated column `{name}`, found none")))
    };
    let places = [place("request_id")?, place("policy")?, place("param")?, place("kl_mean")?];
    let mut settings = Vec::new();
    for (at, line) in lines {
        let cells: Vec<&str> = line.split('\t').map(str::trim).collect();
        let [request, policy, param, kl] = places.map(|place| cells.get(place).copied().unwrap_or_default());
        let kl: f64 = kl.parse().ok().filter(|kl: &f64| kl.is_finite()).ok_or_else(|| {
            Error::data(format!("`{shown}`, line {}: expected a number as `kl_mean`, found `{kl}`", at + 1))
        })?;
        settings.push(Setting { request: request.to_owned(), policy: policy.to_owned(), param: param.to_owned(), kl });
    }
    if settings.is_empty() {
        return Err(Error::data(format!("`{shown}`: expected a row per setting, found none")));
    }
    Ok(settings)
}

/// Which recording and request each name of the table means.
fn requests(recordings: &[Recording], settings: &[Setting]) -> Result<BTreeMap<(usize, u64), String>> {
    let known: Vec<(usize, u64, String)> = recordings
        .iter()
        .enumerate()
        .flat_map(|(at, recording)| recording.requests.iter().map(move |request| (at, request)))
        .map(|(at, request)| {
            let name = request.source_key.clone().unwrap_or_else(|| request.request_id.to_string());
            (at, request.request_id, name)
        })
        .collect();
    let mut found = BTreeMap::new();
    for setting in settings {
        let names = known.iter().map(|(_, _, name)| name.as_str());
        let request = known.iter().find(|(_, _, name)| *name == setting.request);
        let (at, id, name) = request.ok_or_else(|| unknown("recorded request", &setting.request, names))?;
        found.insert((*at, *id), name.clone());
    }
    let mut used: Vec<usize> = found.keys().map(|(at, _)| *at).collect();
    used.dedup();
    if used.len() != found.len() {
        return Err(Error::usage(format!("expected settings of one request of a recording, found {}", found.len()))
            .hint("validate each request by a table of its own"));
    }
    Ok(found)
}

/// The stack that a setting of the table means, for a prompt of so many tokens in a model of so many layers.
fn stack_of(setting: &Setting, prompt: u32, layers: u32) -> Result<Stack> {
    let Setting { policy, param, .. } = setting;
    let wrong = || {
        Error::data(format!("`{param}` is no setting of `{policy}`"))
            .hint("budgets are shares such as `0.1`, formats bits such as `int4`; merging is named `from15/keep0.05`")
    };
    let share = || param.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 1.0).ok_or_else(wrong);
    let percent = || share().map(|share| (share * 1e8).round() / 1e6);
    let bits = || param.strip_prefix("int").and_then(|bits| bits.parse::<u32>().ok()).ok_or_else(wrong);
    let text = match policy.as_str() {
        "snapkv" => format!("snapkv(budget={}%)", percent()?),
        "h2o_static" => format!("h2o(budget={}%,evict=no)", percent()?),
        "streamingllm_static" => {
            let recent = ((f64::from(prompt) * share()?) as u32).saturating_sub(4).max(1);
            format!("streaming(sinks=4,recent={recent},evict=no)")
        }
        "random" => format!("random(budget={}%)", percent()?),
        "random+sink4" => format!("random(budget={}%,sinks=4)", percent()?),
        "kivi K/chan32 V/tok64" => format!("kivi(bits={},group=32,value_group=64,residual=32)", bits()?),
        "per-token g64" => format!("uniform(bits={},group=64)", bits()?),
        "fp8_e4m3" => "fp8".to_owned(),
        "fp8_e5m2" => "fp8(type=e5m2)".to_owned(),
        "minicache" => {
            let (from, keep) =
                param.strip_prefix("from").and_then(|rest| rest.split_once("/keep")).ok_or_else(wrong)?;
            let from = from.parse::<u32>().ok().filter(|from| *from < layers).ok_or_else(wrong)?;
            let keep = keep.parse::<f64>().ok().filter(|keep| (0.0..=1.0).contains(keep)).ok_or_else(wrong)?;
            format!("minicache(start={:.6},gamma={keep})", f64::from(from) / f64::from(layers.max(1)))
        }
        _ => policy.clone(),
    };
    Stack::parse(&text)
}

/// Tries each setting on its request.
fn replay<'a>(
    found: &Recorded,
    settings: &'a [Setting],
    places: &BTreeMap<&str, (usize, u64)>,
) -> Result<Vec<Replayed<'a>>> {
    let mut stacks = Vec::with_capacity(settings.len());
    for setting in settings {
        let (at, id) = places.get(setting.request.as_str()).copied().unwrap_or_default();
        let recording = found.heads.get(at);
        let request = recording.and_then(|head| head.requests.iter().find(|request| request.request_id == id));
        let (prompt, layers) =
            (request.map_or(0, |request| request.prompt_tokens), recording.map_or(0, |head| head.layers));
        stacks.push((stack_of(setting, prompt, layers)?, at));
    }
    let pairs: Vec<(&Stack, usize)> = stacks.iter().map(|(stack, at)| (stack, *at)).collect();
    let all = recorded::try_all(found, &pairs, Way::OfPrompts)?;
    let tried = settings.iter().zip(all).zip(&stacks);
    tried.map(|((setting, found), (stack, _))| means(setting, stack.clone(), found)).collect()
}

/// The means of what was found. All steps were one range: each row is a mean over as many.
fn means(setting: &Setting, stack: Stack, found: Found) -> Result<Replayed<'_>> {
    let rows = found.rows?;
    let mean = |name: &str| {
        let column = rows.column_by_name(name).and_then(|column| column.as_primitive_opt::<Float64Type>());
        let known = column.filter(|column| column.null_count() == 0 && !column.is_empty());
        known.map(|column| column.values().iter().sum::<f64>() / column.len() as f64)
    };
    let from = rows.column_by_name("output_error_from").and_then(|column| column.as_string_opt::<i32>());
    let from = from.and_then(|from| from.iter().flatten().next().map(str::to_owned));
    let (error, lost_mass, kept) = (mean("output_error"), mean("lost_mass_ratio"), mean("kept_ratio"));
    let (lost_mass, kept) = (lost_mass.unwrap_or(0.0), kept.unwrap_or(1.0));
    Ok(Replayed { setting, stack, error, from, lost_mass, kept, premise: found.premise })
}

fn table(replayed: &[Replayed<'_>]) -> Result<RecordBatch> {
    let texts = |of: &dyn Fn(&Replayed<'_>) -> Option<String>| -> ArrayRef {
        Arc::new(replayed.iter().map(of).collect::<StringArray>())
    };
    let numbers = |of: &dyn Fn(&Replayed<'_>) -> Option<f64>| -> ArrayRef {
        Arc::new(replayed.iter().map(of).collect::<Float64Array>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("request", texts(&|found| Some(found.setting.request.clone())), false),
        ("policy", texts(&|found| Some(found.setting.policy.clone())), false),
        ("param", texts(&|found| Some(found.setting.param.clone())), false),
        ("stack", texts(&|found| Some(found.stack.name())), false),
        ("kept_ratio", numbers(&|found| Some(found.kept)), false),
        ("lost_mass_ratio", numbers(&|found| Some(found.lost_mass)), false),
        ("predicted_error", numbers(&|found| found.error), true),
        ("computed_from", texts(&|found| found.from.clone()), true),
        ("measured_kl", numbers(&|found| Some(found.setting.kl)), false),
    ])?)
}

/// Where a setting belongs among [`GROUPS`]; `None` for one that changes nothing.
fn floor(stack: &Stack) -> Option<Floor> {
    if stack.merge().is_some() {
        Some(Floor::Merging)
    } else if stack.selection().is_some() {
        Some(Floor::Selection)
    } else {
        stack.format().map(|_| Floor::Format)
    }
}

fn summary(replayed: &[Replayed<'_>]) -> String {
    let mut text = String::from("\nrank correlation (Spearman) with the measured divergence\n");
    for (name, wanted) in GROUPS {
        let of_group: Vec<&Replayed<'_>> = replayed
            .iter()
            .filter(|found| floor(&found.stack).is_some_and(|floor| wanted.is_none_or(|wanted| wanted == floor)))
            .collect();
        if of_group.len() < 2 {
            continue;
        }
        let known: Vec<(f64, f64)> =
            of_group.iter().filter_map(|found| Some((found.error?, found.setting.kl))).collect();
        let lost: Vec<(f64, f64)> = of_group.iter().map(|found| (found.lost_mass, found.setting.kl)).collect();
        let _ = writeln!(
            text,
            "  {name:<10} {:>3} settings: predicted error {} ({} known), lost mass {}",
            of_group.len(),
            shown(spearman(&known)),
            known.len(),
            shown(spearman(&lost))
        );
    }
    text.push_str("predicted error as the budget falls\n");
    for (policy, budgets) in by_policy(replayed) {
        let errors: Vec<String> = budgets.iter().map(|(share, error)| format!("{share}: {error:.5}")).collect();
        let rises =
            if budgets.windows(2).all(|pair| pair[0].1 <= pair[1].1) { "rises" } else { "does not always rise" };
        let _ = writeln!(text, "  {policy:<20} {rises} ({})", errors.join(", "));
    }
    text
}

fn shown(correlation: Option<f64>) -> String {
    correlation.map_or_else(|| "unknown".to_owned(), |found| format!("{found:.3}"))
}

/// The selections with several budgets: their shares and predicted errors, the largest share first.
fn by_policy<'a>(replayed: &'a [Replayed<'_>]) -> Vec<(&'a str, Vec<(f64, f64)>)> {
    let mut all: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for found in replayed.iter().filter(|found| floor(&found.stack) == Some(Floor::Selection)) {
        if let (Ok(share), Some(error)) = (found.setting.param.parse::<f64>(), found.error) {
            all.entry(&found.setting.policy).or_default().push((share, error));
        }
    }
    for budgets in all.values_mut() {
        budgets.sort_by(|a, b| b.0.total_cmp(&a.0));
    }
    all.into_iter().filter(|(_, budgets)| budgets.len() > 1).collect()
}

/// Says where what a stage rests on does not hold.
fn tell_premises(replayed: &[Replayed<'_>]) {
    let mut told = Vec::new();
    for premise in replayed.iter().filter_map(|found| found.premise).filter(|premise| !premise.holds()) {
        let text = premise.text();
        if !told.contains(&text) {
            talk::warn(&text);
            told.push(text);
        }
    }
}

/// The rank correlation of pairs; equal values share their mean rank. `None` where one side is constant.
fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (a, b) = (ranks(&a), ranks(&b));
    let mean = f64::midpoint(pairs.len() as f64, 1.0);
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (scale > 0.0).then(|| product(&a, &b) / scale)
}

/// Ranks from 1; equal values share the mean of theirs.
fn ranks(values: &[f64]) -> Vec<f64> {
    let of = |value: &f64| {
        let below = values.iter().filter(|other| other.total_cmp(value).is_lt()).count() as f64;
        let equal = values.iter().filter(|other| other.total_cmp(value).is_eq()).count() as f64;
        below + f64::midpoint(equal, 1.0)
    };
    values.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        let rising = [(1.0, 10.0), (2.0, 20.0), (3.0, 25.0)];
        assert!((spearman(&rising).unwrap() - 1.0).abs() < 1e-15);
        // By hand: differences of ranks 0, 1, -1; 1 - 6 * 2 / (3 * 8) = 0.5.
        assert!((spearman(&[(1.0, 10.0), (2.0, 25.0), (3.0, 20.0)]).unwrap() - 0.5).abs() < 1e-15);
        assert_eq!(spearman(&[(1.0, 1.0), (1.0, 2.0)]), None);
    }

    #[test]
    fn settings_are_translated_or_refused() {
        let stack = |policy: &str, param: &str| {
            let setting = Setting { request: String::new(), policy: policy.into(), param: param.into(), kl: 0.0 };
            stack_of(&setting, 2048, 30).map(|stack| stack.name())
        };
        assert_eq!(stack("full", "-").unwrap(), "full");
        assert_eq!(stack("snapkv", "0.05").unwrap(), "snapkv(budget=5%)");
        assert_eq!(stack("streamingllm_static", "0.05").unwrap(), "streaming(recent=98,evict=no)");
        assert_eq!(stack("random+sink4", "0.2").unwrap(), "random(budget=20%,sinks=4)");
        assert_eq!(stack("kivi K/chan32 V/tok64", "int2").unwrap(), "kivi(value_group=64,residual=32)");
        assert_eq!(stack("per-token g64", "int3").unwrap(), "uniform(bits=3)");
        assert_eq!(stack("minicache", "from28/keep0.05").unwrap(), "minicache(start=0.933333)");
        assert_eq!(stack("window(64)+fp8", "-").unwrap(), "window(size=64)+fp8");
        for (policy, param) in [("snapkv", "2"), ("per-token g64", "4"), ("minicache", "from31/keep0"), ("snap", "-")] {
            assert!(stack(policy, param).is_err(), "{policy} {param}");
        }
    }
}
