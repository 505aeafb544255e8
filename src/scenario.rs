//! Scenarios as people write them: a TOML file, or flags whose repetitions multiply. Resolving puts presets in place of
//! names; a wrong name or key is an error with its place and the nearest right one.

use std::path::Path;

use engine::api::{self, ApiPrices};
use engine::cost::{Measured, Parallel, Speculative};
use engine::error::{Error, Result, unknown};
use engine::fabric::{self, Fabric};
use engine::machine::{self, Machine};
use engine::model::{self, Model, WeightDtype};
use engine::policy::Stack;
use engine::prices::{self, PriceBook};
use engine::replay::{Mode, Prefill, Scenario};
use engine::serving::{RULES, Routing, Rules, Traffic};
use engine::tariff::{self, Tariff};
use engine::unit;
use engine::workload::{LONGEST_NS, ThinkTime};
use serde::Deserialize;

use crate::{embedded, model_config};

/// One scenario as written; what is missing is taken from `[defaults]`, then from the built-in defaults.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// What to call it.
    pub name: Option<String>,
    /// Whether the others are compared with it; the first scenario if none says so.
    pub baseline: Option<bool>,
    /// A source of the store by format, file name or number; the only one with arrivals if not given.
    pub workload: Option<String>,
    /// A model preset, or the path of a TOML file or of a `config.json`.
    pub model: Option<String>,
    /// A policy stack.
    pub policy: Option<String>,
    /// A machine preset with variations, or the path of a TOML file.
    pub machine: Option<String>,
    /// `open`, `captured`, `closed` or `session`.
    pub mode: Option<String>,
    /// What to take in `session` mode for pauses that are not recorded: `starts` or a time such as `5s`.
    pub think_time: Option<String>,
    /// Requests at a time in `closed` mode.
    pub concurrency: Option<u32>,
    /// Who gets a request: `round-robin`, `least-loaded`, `prefix` or `session`.
    pub routing: Option<String>,
    /// A serving engine's rules.
    pub engine: Option<String>,
    /// Tokens computed per engine step at most, in place of the engine's own.
    pub step_tokens: Option<u32>,
    /// Requests running at a time at most, in place of the engine's own.
    pub running_requests: Option<u32>,
    /// Steps from one look for arrivals to the next while requests only decode, in place of the engine's own.
    pub look_steps: Option<u32>,
    /// KV blocks of 16 tokens per copy of the model; what the memory leaves if not given.
    pub kv_blocks: Option<u32>,
    /// `x0.5`, a multiple of the trace's arrival rate.
    pub rate: Option<String>,
    /// Accelerators per copy of the model.
    pub tensor_parallel: Option<u32>,
    /// Groups of accelerators per copy that attend to requests of their own.
    pub data_parallel: Option<u32>,
    /// Parts that the routed experts are dealt out to.
    pub expert_parallel: Option<u32>,
    /// Stages that the layers are dealt out to.
    pub pipeline_parallel: Option<u32>,
    /// Drafted tokens and their acceptance: `speculative(k=3,accept=0.7)`.
    pub speculative: Option<String>,
    /// Copies of the model.
    pub instances: Option<u32>,
    /// Prefill and decode instances apart, as `2:6`; `instances` is then left out.
    pub split: Option<String>,
    /// The machine of the prefill instances; that of the others if not given.
    pub prefill_machine: Option<String>,
    /// Accelerators per prefill instance; as many as per decode instance if not given.
    pub prefill_tensor_parallel: Option<u32>,
    /// The link over which KV goes to the decode instances: a name or distance of the prefill machine's; `cross-rack` if not
    /// given.
    pub kv_link: Option<String>,
    /// `bf16`, `fp8`, `nvfp4`, `mxfp4` or `int4`; the format that the model is published in if not given.
    pub weights: Option<String>,
    /// A price book.
    pub prices: Option<String>,
    /// A book of token prices; nothing is sold without one.
    pub tariff: Option<String>,
    /// Engineer-days that a floor asks of software, for the ledger: `hardware=30,algorithm=5`.
    pub adaptation_days: Option<String>,
    /// Whether every operation has its closed form, where measured times of the machine are used if not.
    pub closed_form: Option<bool>,
}

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Spec,
    #[serde(default)]
    scenario: Vec<Spec>,
}

/// Reads a scenario file: `[defaults]` and any number of `[[scenario]]`.
///
/// # Errors
/// An unreadable file; an unknown key or a wrong type, with its place.
pub fn read(path: &Path) -> Result<Vec<Spec>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::usage(format!("cannot read the scenarios `{shown}`: {error}")))?;
    parse(&text, &shown.to_string())
}

/// The scenarios of a file's text; `shown` names it in messages.
///
/// # Errors
/// As [`read`].
pub fn parse(text: &str, shown: &str) -> Result<Vec<Spec>> {
    let file: File = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or(String::new(), |span| place(text, span.start));
        Error::usage(format!("{shown}{place}: {}", error.message())).hint(
            "a scenario file has `[defaults]` and one `[[scenario]]` for each combination; see traces/quickstart.toml",
        )
    })?;
    if file.scenario.is_empty() {
        return Err(Error::usage(format!("expected at least one `[[scenario]]`, found none in `{shown}`")));
    }
    Ok(file.scenario.into_iter().map(|spec| spec.over(&file.defaults)).collect())
}

/// The order in which routes are shown: alone, then together.
const ROUTES: [&str; 4] = ["lpx", "turboquant", "memory", "all"];

/// The scenarios of all shipped routes; what several of them have in common, such as the baseline, once.
///
/// # Errors
/// A shipped route that cannot be read.
pub fn routes() -> Result<Vec<Spec>> {
    let mut found: Vec<Spec> = Vec::new();
    for name in ROUTES {
        let text = embedded::text(embedded::ROUTES, "route", name)?;
        for spec in parse(text, &format!("presets/route/{name}.toml"))? {
            if !found.contains(&spec) {
                found.push(spec);
            }
        }
    }
    Ok(found)
}

/// `:line:column` of a byte offset, both from 1.
fn place(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
    let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1;
    format!(":{line}:{column}")
}

/// Every combination of the repeated flags, models first; the first is the baseline.
pub fn product(common: &Spec, models: &[String], policies: &[String], machines: &[String]) -> Vec<Spec> {
    let or_none = |values: &[String]| -> Vec<Option<String>> {
        if values.is_empty() { vec![None] } else { values.iter().cloned().map(Some).collect() }
    };
    let mut specs = Vec::new();
    for model in or_none(models) {
        for policy in or_none(policies) {
            for machine in or_none(machines) {
                specs.push(Spec { model: model.clone(), policy: policy.clone(), machine, ..common.clone() });
            }
        }
    }
    specs
}

impl Spec {
    /// This, with what is missing taken from `other`.
    #[must_use]
    pub fn over(self, other: &Self) -> Self {
        let text = |own: Option<String>, other: &Option<String>| own.or_else(|| other.clone());
        Self {
            name: text(self.name, &other.name),
            baseline: self.baseline.or(other.baseline),
            workload: text(self.workload, &other.workload),
            model: text(self.model, &other.model),
            policy: text(self.policy, &other.policy),
            machine: text(self.machine, &other.machine),
            mode: text(self.mode, &other.mode),
            think_time: text(self.think_time, &other.think_time),
            concurrency: self.concurrency.or(other.concurrency),
            routing: text(self.routing, &other.routing),
            engine: text(self.engine, &other.engine),
            step_tokens: self.step_tokens.or(other.step_tokens),
            running_requests: self.running_requests.or(other.running_requests),
            look_steps: self.look_steps.or(other.look_steps),
            kv_blocks: self.kv_blocks.or(other.kv_blocks),
            rate: text(self.rate, &other.rate),
            tensor_parallel: self.tensor_parallel.or(other.tensor_parallel),
            data_parallel: self.data_parallel.or(other.data_parallel),
            expert_parallel: self.expert_parallel.or(other.expert_parallel),
            pipeline_parallel: self.pipeline_parallel.or(other.pipeline_parallel),
            speculative: text(self.speculative, &other.speculative),
            instances: self.instances.or(other.instances),
            split: text(self.split, &other.split),
            prefill_machine: text(self.prefill_machine, &other.prefill_machine),
            prefill_tensor_parallel: self.prefill_tensor_parallel.or(other.prefill_tensor_parallel),
            kv_link: text(self.kv_link, &other.kv_link),
            weights: text(self.weights, &other.weights),
            prices: text(self.prices, &other.prices),
            tariff: text(self.tariff, &other.tariff),
            adaptation_days: text(self.adaptation_days, &other.adaptation_days),
            closed_form: self.closed_form.or(other.closed_form),
        }
    }

    /// The model and the machine, without which there is nothing to replay.
    fn subject(&self) -> Result<(&str, &str)> {
        let (wanted, flags) = match (&self.model, &self.machine) {
            (Some(model), Some(machine)) => return Ok((model, machine)),
            (None, Some(_)) => ("a model, found none", "`--model`, such as `--model llama-3.1-8b`,"),
            (Some(_), None) => ("a machine, found none", "`--machine`, such as `--machine h100`,"),
            (None, None) => {
                ("a model and a machine, found neither", "both, such as `--model llama-3.1-8b --machine h100`,")
            }
        };
        Err(Error::usage(format!("expected {wanted}")).hint(format!(
            "give {flags} or a scenario file; `kvtoll list models` and `kvtoll list machines` show the presets"
        )))
    }

    /// The scenario with every name resolved; `workload` is an index into the run's sources. It has no measured
    /// operations yet ([`crate::surfaces::Library::measured`]).
    ///
    /// # Errors
    /// An unknown name, a number out of range, a preset file that cannot be read.
    pub fn resolve(&self, workload: usize) -> Result<Scenario> {
        let (model, machine) = self.subject()?;
        let model = load_model(model)?;
        let (policy, placement) = placed(self.policy.as_deref().unwrap_or("full"))?;
        let policy = Stack::parse(&policy)?;
        let machine = load_machine(machine)?;
        let published = model.weights;
        let tensor = number("tensor_parallel", self.tensor_parallel.unwrap_or(1))?;
        let (prefill, instances) = self.pools(&machine, tensor)?;
        let name = self.name.clone().unwrap_or_else(|| {
            let split = self.split.as_ref().map_or(String::new(), |split| format!(", {split}"));
            let placed = placement.as_ref().map_or(String::new(), |placement| format!("+{placement}"));
            format!("{}{placed} on {}{split}", policy.name(), machine.name)
        });
        Ok(Scenario {
            name,
            is_baseline: self.baseline.unwrap_or(false),
            workload,
            model,
            policy,
            machine,
            mode: self.mode()?,
            rules: self.engine_rules()?,
            routing: routing(self.routing.as_deref().unwrap_or(Routing::RoundRobin.name()))?,
            kv_blocks: self.kv_blocks,
            rate: rate(self.rate.as_deref().unwrap_or("x1"))?,
            parallel: Parallel {
                tensor,
                data: number("data_parallel", self.data_parallel.unwrap_or(1))?,
                expert: number("expert_parallel", self.expert_parallel.unwrap_or(1))?,
                pipeline: number("pipeline_parallel", self.pipeline_parallel.unwrap_or(1))?,
                instances,
            },
            speculative: self.speculative.as_deref().map(speculative).transpose()?,
            prefill,
            placement,
            dtype: self.weights.as_deref().map_or(Ok(published), dtype)?,
            prices: load_prices(self.prices.as_deref().unwrap_or("hyperscaler"))?,
            tariff: self.tariff.as_deref().map(load_tariff).transpose()?,
            measured: Measured::default(),
            adaptation_days: self.adaptation_days.as_deref().map_or(Ok(Vec::new()), adaptation_days)?,
        })
    }
}

/// The floors on which scenarios differ.
const FLOORS: [&str; 3] = ["application", "algorithm", "hardware"];

/// `hardware=30,algorithm=5`: engineer-days by floor.
fn adaptation_days(text: &str) -> Result<Vec<(String, f64)>> {
    let mut found: Vec<(String, f64)> = Vec::new();
    for part in text.split(',') {
        let (floor, days) = part.split_once('=').map_or((part.trim(), None), |(floor, days)| {
            (floor.trim(), days.trim().parse::<f64>().ok().filter(|days| days.is_finite() && *days >= 0.0))
        });
        let is_new = found.iter().all(|(known, _)| known != floor);
        match days {
            Some(days) if FLOORS.contains(&floor) && is_new => found.push((floor.to_owned(), days)),
            _ => {
                return Err(Error::usage(format!(
                    "`adaptation_days`: expected engineer-days by floor such as `hardware=30,algorithm=5`, found `{text}`"
                ))
                .hint(format!("floors are {}, each once", FLOORS.join(", "))));
            }
        }
    }
    Ok(found)
}

/// `speculative(k=3,accept=0.7)`, or without names: three tokens are drafted for each request and step, each accepted with
/// a chance of 70% if those before it were.
pub(crate) fn speculative(text: &str) -> Result<Speculative> {
    let wrong = || {
        Error::usage(format!("expected a drafting such as `speculative(k=3,accept=0.7)`, found `{text}`"))
            .hint("k is from 1 to 64 drafted tokens, accept a chance from 0 to 1")
    };
    let inner = text.trim().strip_prefix("speculative(").and_then(|rest| rest.strip_suffix(')')).ok_or_else(wrong)?;
    let parts: Vec<&str> = inner.split(',').map(str::trim).collect();
    let [drafted, accept] = parts[..] else { return Err(wrong()) };
    let drafted: u32 = drafted.trim_start_matches("k=").parse().map_err(|_| wrong())?;
    let accept: f64 = accept.trim_start_matches("accept=").parse().map_err(|_| wrong())?;
    let is_known = (1..=64).contains(&drafted) && (0.0..=1.0).contains(&accept);
    if is_known { Ok(Speculative { drafted, accept }) } else { Err(wrong()) }
}

impl Spec {
    /// The prefill instances, if they are apart, and how many others there are.
    fn pools(&self, machine: &Machine, tensor: u32) -> Result<(Option<Prefill>, u32)> {
        let Some(split) = &self.split else {
            let given = [
                ("prefill_machine", self.prefill_machine.is_some()),
                ("prefill_tensor_parallel", self.prefill_tensor_parallel.is_some()),
                ("kv_link", self.kv_link.is_some()),
            ];
            return match given.iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => Err(Error::usage(format!("expected no `{name}` without a `split`, found one"))
                    .hint("say how many instances compute prompts and how many decode: `--split 2:6`")),
                None => Ok((None, number("instances", self.instances.unwrap_or(1))?)),
            };
        };
        if self.instances.is_some() {
            return Err(
                Error::usage("expected `instances` or a `split`, found both").hint("a split counts the instances")
            );
        }
        let wrong = || Error::usage(format!("expected prefill and decode instances such as `2:6`, found `{split}`"));
        let (prompts, decoders) = split.split_once(':').ok_or_else(wrong)?;
        let count = |text: &str| number("split", text.trim().parse().map_err(|_| wrong())?);
        let prefill = Prefill {
            machine: self.prefill_machine.as_deref().map_or_else(|| Ok(machine.clone()), load_machine)?,
            parallel: Parallel {
                tensor: number("prefill_tensor_parallel", self.prefill_tensor_parallel.unwrap_or(tensor))?,
                instances: count(prompts)?,
                ..Parallel::default()
            },
            measured: Measured::default(),
            link: self.kv_link.clone().unwrap_or_else(|| "cross-rack".to_owned()),
        };
        Ok((Some(prefill), count(decoders)?))
    }

    /// What to take for pauses between turns that are not recorded.
    ///
    /// # Errors
    /// Neither `starts` nor a time; one that no mode asks for.
    pub(crate) fn think_time(&self) -> Result<ThinkTime> {
        let Some(text) = self.think_time.as_deref() else { return Ok(ThinkTime::Recorded) };
        if self.mode.as_deref() != Some("session") {
            return Err(Error::usage(format!("expected no `think_time` outside the mode `session`, found `{text}`"))
                .hint("turns wait for each other in `--mode session` only"));
        }
        if text == "starts" {
            return Ok(ThinkTime::Starts);
        }
        if text.starts_with('-') {
            return Err(Error::usage(format!("`think_time`: a pause cannot be negative, found `{text}`"))
                .hint("`0s` leaves no pause; `starts` takes the recorded time from start to start"));
        }
        match unit::parse(&unit::TIME, text) {
            Ok(ns) if (0.0..=LONGEST_NS as f64).contains(&ns) => Ok(ThinkTime::Fixed(ns.round() as i64)),
            _ => Err(Error::usage(format!("`think_time`: expected `starts` or a time such as `5s`, found `{text}`"))),
        }
    }

    fn mode(&self) -> Result<Mode> {
        self.think_time()?;
        let name = self.mode.as_deref().unwrap_or("open");
        match (name, self.concurrency) {
            ("closed", Some(concurrency)) => {
                let concurrency = number("concurrency", concurrency)?;
                Ok(Mode::Live(Traffic::Closed { concurrency }))
            }
            ("closed", None) => Err(Error::usage("expected a `concurrency` for the closed mode, found none")
                .hint("say how many requests there are at a time: `--concurrency 64`")),
            (_, Some(_)) => Err(Error::usage(format!("expected no `concurrency` in the mode `{name}`, found one"))
                .hint("`concurrency` belongs to `mode = \"closed\"`")),
            ("open", None) => Ok(Mode::Live(Traffic::Open)),
            ("session", None) => Ok(Mode::Live(Traffic::Session)),
            ("captured", None) => Ok(Mode::Captured),
            _ => Err(unknown("mode", name, ["open", "captured", "closed", "session"])),
        }
    }

    /// The engine's rules, with the limits that are given.
    fn engine_rules(&self) -> Result<Rules> {
        let mut rules = rules(self.engine.as_deref().unwrap_or(RULES[0].name))?;
        for (name, given, own) in [
            ("step_tokens", self.step_tokens, &mut rules.step_tokens),
            ("running_requests", self.running_requests, &mut rules.running_requests),
            ("look_steps", self.look_steps, &mut rules.look_steps),
        ] {
            match given {
                Some(0) => return Err(Error::usage(format!("expected `{name}` of at least 1, found 0"))),
                Some(given) => *own = given,
                None => {}
            }
        }
        Ok(rules)
    }
}

pub(crate) fn rules(name: &str) -> Result<Rules> {
    let found = RULES.iter().find(|rules| rules.name == name);
    found.copied().ok_or_else(|| unknown("engine", name, RULES.iter().map(|rules| rules.name)))
}

/// More copies of a model than anybody runs; each costs time to replay.
const MOST: u32 = 10_000;

fn number(name: &str, value: u32) -> Result<u32> {
    if !(1..=MOST).contains(&value) {
        return Err(Error::usage(format!("expected `{name}` from 1 to {MOST}, found {value}")));
    }
    Ok(value)
}

/// A stack without its placement, such as `tier(hbm,dram)`, and the placement: serving carries that out.
pub(crate) fn placed(text: &str) -> Result<(String, Option<String>)> {
    let mut depth = 0_i32;
    let parts = text.split(|letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == '+' && depth == 0
    });
    let is_placement = |part: &&str| part.trim() == "tier" || part.trim().starts_with("tier(");
    let (placements, stages): (Vec<&str>, Vec<&str>) = parts.partition(is_placement);
    if placements.len() > 1 {
        return Err(Error::usage(format!(
            "expected one placement `tier(...)`, found {} in `{text}`",
            placements.len()
        )));
    }
    // What no machine takes is told before anything is read.
    placements.iter().try_for_each(|placement| engine::serving::lower::check(placement.trim()))?;
    let stack = if stages.is_empty() { "full".to_owned() } else { stages.join("+") };
    Ok((stack, placements.first().map(|placement| placement.trim().to_owned())))
}

fn routing(name: &str) -> Result<Routing> {
    let found = Routing::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, routing)| *routing).ok_or_else(|| unknown("routing", name, Routing::ALL.map(|(known, _)| known)))
}

/// `x0.5` is half of the trace's arrival rate.
fn rate(text: &str) -> Result<f64> {
    match text.strip_prefix('x').and_then(|number| number.parse::<f64>().ok()) {
        Some(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(Error::usage(format!("`rate`: expected a multiple such as `x0.5`, found `{text}`"))
            .hint("a rate multiplies the trace's own arrival rate")),
    }
}

pub(crate) fn dtype(name: &str) -> Result<WeightDtype> {
    let found = WeightDtype::ALL.iter().find(|(known, _)| *known == name);
    let names = WeightDtype::ALL.iter().map(|(known, _)| *known);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| unknown("weight format", name, names))
}

/// A preset of `list`, or a file where the name is the path of one.
fn preset(what: &str, name: &str, list: &[(&str, &str)]) -> Result<(String, String)> {
    if Path::new(name).extension().is_some_and(|extension| extension == "toml") {
        let text = std::fs::read_to_string(name)
            .map_err(|error| Error::usage(format!("cannot read the {what} `{name}`: {error}")))?;
        return Ok((text, name.to_owned()));
    }
    match list.iter().find(|(known, _)| *known == name) {
        Some((known, text)) => Ok(((*text).to_owned(), format!("presets/{what}/{known}.toml"))),
        None => Err(unknown(what, name, list.iter().map(|(known, _)| *known))),
    }
}

/// The model of this name, model file or Hugging Face `config.json`.
///
/// # Errors
/// An unknown name, an unreadable file, a file that is no model.
pub fn load_model(name: &str) -> Result<Model> {
    if Path::new(name).extension().is_some_and(|extension| extension == "json") {
        let text = std::fs::read_to_string(name)
            .map_err(|error| Error::usage(format!("cannot read the model `{name}`: {error}")))?;
        return model_config::parse(&text, name);
    }
    let (text, origin) = preset("model", name, embedded::MODELS)?;
    model::parse(&text, &origin)
}

/// The machine of this expression: a name or file, and variations. `*calibrated=FILE.toml` takes the numbers of a fit
/// that `kvtoll reconcile` wrote; the other variations then act on those.
///
/// # Errors
/// An unknown name or parameter, an unreadable file, a file that is no machine or no fit.
pub fn load_machine(expression: &str) -> Result<Machine> {
    let (fits, parts): (Vec<&str>, Vec<&str>) =
        expression.split('*').partition(|part| part.trim().starts_with("calibrated="));
    let bare = parts.first().copied().unwrap_or_default();
    let (mut text, origin) = preset("machine", bare, embedded::MACHINES)?;
    for fit in &fits {
        let path = fit.trim().trim_start_matches("calibrated=");
        let fitted = std::fs::read_to_string(path)
            .map_err(|error| Error::usage(format!("cannot read the fit `{path}`: {error}")))?;
        // On its own first, so that a mistake is placed in its own file.
        machine::calibrate(&mut machine::parse(&text, &origin)?, &fitted, path)?;
        text.push('\n');
        text.push_str(&fitted);
    }
    let mut machine = machine::resolve(&parts.join("*"), &|_| Some((text.clone(), origin.clone())))?;
    expression.trim().clone_into(&mut machine.name);
    Ok(machine)
}

/// What is known of the machine of this name or file, whether or not it can be priced.
///
/// # Errors
/// An unknown name, an unreadable file, a file that is no machine.
pub fn sketch_machine(name: &str) -> Result<machine::Sketch> {
    let (text, origin) = preset("machine", name, embedded::MACHINES)?;
    machine::sketch(&text, &origin)
}

/// The links of this name or file.
///
/// # Errors
/// An unknown name, an unreadable file, a file that is no fabric.
pub fn load_fabric(name: &str) -> Result<Fabric> {
    let (text, origin) = preset("fabric", name, embedded::FABRICS)?;
    fabric::parse(&text, &origin)
}

/// The price book of this name or file.
///
/// # Errors
/// An unknown name, an unreadable file, a file that is no price book.
pub fn load_prices(name: &str) -> Result<PriceBook> {
    let (text, origin) = preset("prices", name, embedded::PRICES)?;
    prices::parse(&text, &origin)
}

/// The book of token prices of this name or file.
///
/// # Errors
/// An unknown name, an unreadable file, a file that is no tariff.
pub fn load_tariff(name: &str) -> Result<Tariff> {
    let (text, origin) = preset("tariff", name, embedded::TARIFFS)?;
    tariff::parse(&text, &origin)
}

/// What providers charge for tokens: all that is shipped.
///
/// # Errors
/// A file that holds no such prices.
pub fn load_api_prices() -> Result<Vec<ApiPrices>> {
    embedded::APIS.iter().map(|(name, text)| api::parse(text, &format!("presets/api/{name}.toml"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_flags_multiply() {
        let names = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
        let specs = product(&Spec::default(), &names(&["a"]), &names(&["full", "fp8"]), &names(&["h100", "h200"]));
        let shown: Vec<_> =
            specs.iter().map(|spec| (spec.policy.clone().unwrap(), spec.machine.clone().unwrap())).collect();
        assert_eq!(shown.len(), 4);
        assert_eq!(shown[1], ("full".to_owned(), "h200".to_owned()));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.toml");
        std::fs::write(&path, "[[scenario]]\nname = \"a\"\npolcy = \"full\"\n").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("s.toml:3:1: unknown field `polcy`"), "{error}");
        assert!(error.contains("`policy`"), "{error}");
    }

    #[test]
    fn a_fit_calibrates_a_machine_and_variations_act_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fit.toml");
        std::fs::write(&path, "[calibrated]\nsource = \"a fit\"\nweight_read = 0.5\nstep_overhead_ns = \"2ms\"\n")
            .unwrap();
        let expression = format!("h100*calibrated={}*step_overhead_ns=2", path.display());
        let machine = load_machine(&expression).unwrap();
        assert_eq!((machine.name.as_str(), machine.preset.as_str()), (expression.as_str(), "h100"));
        let (weights, host) = (&machine.efficiency.weight_read, &machine.efficiency.step_overhead_ns);
        assert_eq!((weights.value, weights.source.as_str()), (0.5, "a fit"));
        assert_eq!(weights.certainty, model::Certainty::Calibrated);
        assert_eq!(host.value.to_bits(), 4e6_f64.to_bits());
        std::fs::write(&path, "[calibrated]\nsource = \"a fit\"\nwait_read = 0.5\n").unwrap();
        let error = load_machine(&format!("h100*calibrated={}", path.display())).unwrap_err().to_string();
        assert!(error.contains("fit.toml:3:13: unknown parameter `wait_read`"), "{error}");
        assert!(load_machine("h100*calibrated=missing.toml").unwrap_err().to_string().contains("cannot read the fit"));
    }

    #[test]
    fn drafting_is_a_number_and_a_chance() {
        let expected = Speculative { drafted: 3, accept: 0.7 };
        assert_eq!(speculative("speculative(k=3,accept=0.7)"), Ok(expected));
        assert_eq!(speculative("speculative(3, 0.7)"), Ok(expected));
        // 1 + 0.7 + 0.49 + 0.343
        assert!((expected.yielded() - 2.533).abs() < 1e-12);
        for wrong in ["speculative", "speculative(3)", "speculative(0,0.7)", "speculative(3,1.7)", "speculative(3,NaN)"]
        {
            assert!(speculative(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn modes_limits_and_splits_are_checked() {
        let base =
            || Spec { model: Some("llama-3.1-8b".to_owned()), machine: Some("h100".to_owned()), ..Spec::default() };
        let text = |value: &str| Some(value.to_owned());
        let closed = Spec { mode: text("closed"), concurrency: Some(8), ..base() }.resolve(0).unwrap();
        assert_eq!(closed.mode, Mode::Live(Traffic::Closed { concurrency: 8 }));
        let limits = Spec { step_tokens: Some(2048), running_requests: Some(7), kv_blocks: Some(100), ..base() };
        let limits = limits.resolve(0).unwrap();
        assert_eq!((limits.rules.step_tokens, limits.rules.running_requests, limits.kv_blocks), (2048, 7, Some(100)));
        let split = Spec { split: text("2:6"), prefill_machine: text("b200"), ..base() }.resolve(0).unwrap();
        assert_eq!((split.parallel.instances, split.instances(), split.accelerators()), (6, 8, 8));
        assert_eq!(split.prefill.unwrap().machine.preset, "b200");
        for (wrong, message) in [
            (Spec { mode: text("closed"), ..base() }, "expected a `concurrency`"),
            (Spec { concurrency: Some(8), ..base() }, "expected no `concurrency`"),
            (Spec { adaptation_days: text("30"), ..base() }, "engineer-days by floor"),
            (Spec { adaptation_days: text("hardware=3,hardware=4"), ..base() }, "engineer-days by floor"),
            (Spec { adaptation_days: text("roof=3"), ..base() }, "engineer-days by floor"),
            (Spec { think_time: text("5s"), ..base() }, "expected no `think_time`"),
            (Spec { mode: text("session"), think_time: text("5"), ..base() }, "such as `5s`, found `5`"),
            (Spec { mode: text("session"), think_time: text("-1s"), ..base() }, "cannot be negative, found `-1s`"),
            (Spec { mode: text("sesion"), ..base() }, "unknown mode `sesion`"),
            (Spec { routing: text("robin"), ..base() }, "unknown routing `robin`"),
            (Spec { step_tokens: Some(0), ..base() }, "`step_tokens` of at least 1"),
            (Spec { kv_link: text("rack"), ..base() }, "without a `split`"),
            (Spec { split: text("2"), ..base() }, "such as `2:6`, found `2`"),
            (Spec { split: text("0:6"), ..base() }, "`split` from 1"),
            (Spec { split: text("1:1"), instances: Some(2), ..base() }, "found both"),
        ] {
            let error = wrong.resolve(0).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_placement_is_taken_off_its_stack() {
        let of = |text: &str| placed(text).unwrap();
        assert_eq!(of("snapkv(budget=25%)+fp8"), ("snapkv(budget=25%)+fp8".to_owned(), None));
        let placement = Some("tier(hbm,dram=1TB; fetch=always)".to_owned());
        assert_eq!(of("fp8+tier(hbm,dram=1TB; fetch=always)"), ("fp8".to_owned(), placement.clone()));
        assert_eq!(of("tier(hbm,dram=1TB; fetch=always)"), ("full".to_owned(), placement));
        assert!(placed("tier(hbm,dram)+tier(hbm,nvme)").unwrap_err().to_string().contains("one placement"));
    }

    #[test]
    fn rates_are_multiples() {
        assert_eq!(rate("x0.5"), Ok(0.5));
        for wrong in ["0.5", "x0", "x-1", "xNaN", "x", "xinf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
