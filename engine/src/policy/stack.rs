//! Stacks of stages: parsing, canonical text, and which stages go together.

use super::minicache::Merge;
use super::recovery::{self, OfSelection};
use super::select::Units;
use super::{Args, Channel, Distortion, Floor, Format, Kept, Rule, Selection, kind, select};
use crate::error::{Error, Result};
use crate::model::{Attention, KvShape};
use crate::recording::{Head, Recording, Step};

/// A stage with its parameters.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The parameters, which also know the kind.
    pub args: Args,
    /// What it does.
    pub rule: Rule,
}

/// Selections that choose by position alone, and so alike in all layers and heads.
const BY_PLACE: [&str; 2] = ["window", "streaming"];

/// Some shape: whether a format has a residual window does not depend on it.
const TWO_HEADS: KvShape = KvShape {
    attention: Attention::Full,
    kv_heads: 2,
    query_heads: 2,
    key_dim: 64,
    value_dim: 64,
    macs_per_pair: 0.0,
    prefill_macs_per_pair: 0.0,
};

/// Stages that act together, in the order in which they were named.
#[derive(Debug, Clone)]
pub struct Stack {
    stages: Vec<Stage>,
    recovery: OfSelection,
    measured: Option<Measured>,
}

/// What a stack was seen to keep of a recording, for stages whose bytes depend on attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The recording.
    pub recording: String,
    /// By layer the share of the prompt that is as many tokens as were kept beyond one for each generated token, mean over
    /// requests, steps and heads.
    pub prompt_ratio: Vec<f64>,
    /// By layer the tokens that a step read, mean over requests, steps and heads.
    pub read_tokens: Vec<f64>,
}

impl Measured {
    /// Runs a stack's selection over a recording; `None` if not all layers were recorded.
    ///
    /// # Errors
    /// A channel that the recording lacks, with how to record it.
    pub fn of(stack: &Stack, recording: &Recording) -> Result<Option<Self>> {
        let mut sums = vec![Reads::default(); recording.layers as usize];
        let mut units = Vec::new();
        select::each_layer(stack.selection(), recording, select::TOGETHER, |heads, budgets| {
            select::run(stack.selection(), heads, budgets, &mut units, |at, step, units| {
                let head = heads.get(at);
                if let Some((head, all)) = head.and_then(|head| Some((head, sums.get_mut(usize::from(head.layer))?))) {
                    all.add(Reads::of(head, step, units));
                }
                Ok(())
            })
        })?;
        Ok(Self::of_sums(recording.label(), &sums))
    }

    /// Sums over steps and heads of one layer of one request.
    ///
    /// # Errors
    /// As [`Measured::of`].
    pub fn sum_of(stack: &Stack, layer: &[Head<'_>], budgets: &[u32]) -> Result<Reads> {
        let mut sums = Reads::default();
        select::run(stack.selection(), layer, budgets, &mut Vec::new(), |at, step, units| {
            layer.get(at).into_iter().for_each(|head| sums.add(Reads::of(head, step, units)));
            Ok(())
        })?;
        Ok(sums)
    }

    /// The means from such sums by layer; `None` if a layer has none.
    pub fn of_sums(recording: String, sums: &[Reads]) -> Option<Self> {
        let is_whole = !sums.is_empty() && sums.iter().all(|sum| sum.count > 0);
        let mean = |of: fn(&Reads) -> f64| sums.iter().map(|sum| of(sum) / f64::from(sum.count)).collect();
        let (prompt_ratio, read_tokens) = (mean(|sum| sum.prompt_ratio), mean(|sum| sum.tokens));
        is_whole.then_some(Self { recording, prompt_ratio, read_tokens })
    }
}

/// Sums over the steps and heads of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Reads {
    /// Kept tokens beyond one for each generated token, over the prompt.
    pub prompt_ratio: f64,
    /// Kept tokens.
    pub tokens: f64,
    /// How many steps and heads.
    pub count: u32,
}

impl Reads {
    /// Those of one step of a head.
    fn of(head: &Head<'_>, step: &Step<'_>, units: &Units) -> Self {
        let (kept, prompt) = (units.kept_tokens(step.context_tokens), head.request.prompt_tokens);
        let of_prompt = kept.saturating_sub(step.context_tokens.saturating_sub(prompt));
        let prompt_ratio = f64::from(of_prompt) / f64::from(prompt.max(1));
        Self { prompt_ratio, tokens: f64::from(kept), count: 1 }
    }

    /// Adds other sums.
    pub fn add(&mut self, other: Self) {
        self.prompt_ratio += other.prompt_ratio;
        self.tokens += other.tokens;
        self.count += other.count;
    }
}

impl Stack {
    /// Parses stages joined by `+`, such as `snapkv(budget=25%)+turboquant(bits=4)`.
    ///
    /// # Errors
    /// Empty text, unbalanced parentheses, an unknown stage or parameter (with the nearest known one), a value out of
    /// range, and stages that do not go together (with the reason).
    pub fn parse(text: &str) -> Result<Self> {
        let mut stages = Vec::new();
        for part in split(text)? {
            stages.push(stage(part).map_err(|error| error.context(format!("policy `{text}`")))?);
        }
        let mut stack = Self { stages, recovery: OfSelection::default(), measured: None };
        stack.recovery =
            recovery::attach(&mut stack.stages).map_err(|error| error.context(format!("policy `{text}`")))?;
        stack.check().map_err(|error| error.context(format!("policy `{text}`")))?;
        Ok(stack)
    }

    /// The canonical text: parameters that differ from their defaults, in declared order. Parsing it gives this stack.
    pub fn name(&self) -> String {
        let texts: Vec<String> = self.stages.iter().map(|stage| stage.args.text()).collect();
        texts.join("+")
    }

    /// The stages in order.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The stage that drops tokens, if there is one.
    pub fn selection(&self) -> Option<(&Args, &Selection)> {
        self.stages.iter().find_map(|stage| match &stage.rule {
            Rule::Select(selection) if !matches!(selection.kept, Kept::All) => Some((&stage.args, selection)),
            _ => None,
        })
    }

    /// Channels that a recording must hold before the bytes of this stack are known; none for most stacks.
    pub fn bytes_need(&self) -> &'static [&'static Channel] {
        match self.selection() {
            Some((_, Selection { kept: Kept::Measured(channels) | Kept::MeasuredReads(channels, _), .. })) => channels,
            _ => &[],
        }
    }

    /// The stack with what it was seen to keep, so that its bytes are known.
    #[must_use]
    pub fn with_measured(self, measured: Measured) -> Self {
        Self { measured: Some(measured), ..self }
    }

    /// What it was seen to keep.
    pub fn measured(&self) -> Option<&Measured> {
        self.measured.as_ref()
    }

    /// What recovers the losses of the selection.
    pub fn recovery(&self) -> &OfSelection {
        &self.recovery
    }

    /// Whether one pair stands for what the selection drops: by a stage of its own, or by the selection's rule.
    pub fn has_stand_in(&self) -> bool {
        self.recovery.compensate || self.selection().is_some_and(|(args, _)| args.kind().name == "razor")
    }

    /// The stage that sets the number format, if there is one.
    pub fn format(&self) -> Option<(&Args, &Format)> {
        self.stages.iter().find_map(|stage| match &stage.rule {
            Rule::Format(format) => Some((&stage.args, format)),
            Rule::Edit(_) | Rule::Select(_) | Rule::Merge(_) | Rule::Recover(_) => None,
        })
    }

    /// The stage that merges layers, if there is one.
    pub fn merge(&self) -> Option<(&Args, &Merge)> {
        self.stages.iter().find_map(|stage| match &stage.rule {
            Rule::Merge(merge) => Some((&stage.args, merge)),
            Rule::Edit(_) | Rule::Select(_) | Rule::Format(_) | Rule::Recover(_) => None,
        })
    }

    /// The error that the number format puts into vectors of this width; a few milliseconds of work for most formats.
    /// Layers that the format skips have none.
    pub fn distortion(&self, dim: u32) -> Distortion {
        self.format().map_or(Distortion::NONE, |(_, format)| format.forms.distortion(dim))
    }

    /// Whether a stage rewrites contexts before they are served.
    pub fn edits(&self) -> bool {
        self.edits_name().is_some()
    }

    /// The canonical text of the stages that do; `None` if there are none.
    pub fn edits_name(&self) -> Option<String> {
        let edits = self.stages.iter().filter(|stage| matches!(stage.rule, Rule::Edit(_)));
        let texts: Vec<String> = edits.map(|stage| stage.args.text()).collect();
        (!texts.is_empty()).then(|| texts.join("+"))
    }

    /// What it takes away that may change answers: `context`, `tokens`, `layers` and `precision`, in this order.
    pub fn may_lose(&self) -> Vec<&'static str> {
        let mut lost = Vec::new();
        lost.extend(self.edits_name().map(|_| "context"));
        lost.extend(self.selection().map(|_| "tokens"));
        lost.extend(self.merge().map(|_| "layers"));
        lost.extend(self.format().filter(|(args, _)| args.kind().name != "bf16").map(|_| "precision"));
        lost
    }

    /// The stack without them.
    #[must_use]
    pub fn without_edits(&self) -> Self {
        let mut bare = self.clone();
        bare.stages.retain(|stage| !matches!(stage.rule, Rule::Edit(_)));
        bare
    }

    /// What enters the context is decided before any of it is computed, and each such decision once.
    fn check_order(&self) -> Result<()> {
        let is_edit = |stage: &&Stage| matches!(stage.rule, Rule::Edit(_));
        let first = self.stages.iter().find(|stage| !is_edit(stage));
        for (at, stage) in self.stages.iter().enumerate().filter(|(_, stage)| is_edit(stage)) {
            let name = stage.args.kind().name;
            let is_before = self.stages[..at].iter().all(|stage| is_edit(&stage));
            if let Some(first) = first.filter(|_| !is_before) {
                let text = format!("`{name}` stands behind `{}`", first.args.kind().name);
                return Err(Error::usage(text)
                    .hint("stages that decide what enters the context stand before those that act on its KV"));
            }
            if self.stages[..at].iter().any(|other| other.args.kind().name == name) {
                return Err(Error::usage(format!("`{name}` is named twice")).hint("keep one of them"));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        self.check_order()?;
        let names = |floor: Floor, is_bound: fn(&Rule) -> bool| -> Vec<&str> {
            let same = self.stages.iter().filter(|stage| stage.args.kind().floor == floor && is_bound(&stage.rule));
            same.map(|stage| stage.args.kind().name).collect()
        };
        if let [first, second, ..] = names(Floor::Format, |_| true)[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both set the number format"))
                .hint("keep one of them: an element is stored in one format"));
        }
        if let [first, second, ..] = names(Floor::Merging, |_| true)[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both merge layers")).hint(
                "keep one of them: a layer that is merged has no direction of its own that could be merged again",
            ));
        }
        let bounds = |rule: &Rule| matches!(rule, Rule::Select(selection) if !matches!(selection.kept, Kept::All));
        if let [first, second, ..] = names(Floor::Selection, bounds)[..] {
            return Err(Error::usage(format!("`{first}` and `{second}` both set the budget of kept tokens"))
                .hint("keep one of them: how two such choices would act on each other is not published"));
        }
        self.check_merge()
    }

    /// A pair of layers shares what it stores of a token, so that both layers must keep the same tokens; and a format must
    /// treat both alike.
    fn check_merge(&self) -> Result<()> {
        let Some((merge, _)) = self.merge() else { return Ok(()) };
        let merge = merge.kind().name;
        if let Some((selection, _)) = self.selection().filter(|(args, _)| !BY_PLACE.contains(&args.kind().name)) {
            let name = selection.kind().name;
            return Err(Error::usage(format!(
                "`{merge}` stores the same tokens for two layers, but `{name}` keeps others in each layer and head"
            ))
            .hint(format!("combine `{merge}` with `{}`, or with a number format alone", BY_PLACE.join("` or `"))));
        }
        if let Some((format, rule)) = self.format()
            && (rule.skip != super::Skip::default() || !rule.forms.residual(&TWO_HEADS).is_none())
        {
            let name = format.kind().name;
            return Err(Error::usage(format!(
                "`{merge}` stores one direction for two layers, but `{name}` leaves some layers or the newest tokens in 16 bits"
            ))
            .hint("take a number format that treats all layers and tokens alike, such as `fp8`"));
        }
        Ok(())
    }
}

/// Parts between the `+` that stand outside parentheses.
fn split(text: &str) -> Result<Vec<&str>> {
    let unbalanced = || Error::usage(format!("policy `{text}`: parentheses do not match"));
    let mut parts = Vec::new();
    let mut start = 0;
    let mut is_open = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' if is_open => return Err(unbalanced()),
            b'(' => is_open = true,
            b')' if !is_open => return Err(unbalanced()),
            b')' => is_open = false,
            b'+' if !is_open => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    if is_open { Err(unbalanced()) } else { Ok(parts) }
}

fn stage(text: &str) -> Result<Stage> {
    let text = text.trim();
    if text.is_empty() {
        return Err(Error::usage("expected a stage such as `snapkv(budget=25%)`, found nothing")
            .hint("`kvtoll list policies` names the stages"));
    }
    let (name, inside) = match text.split_once('(') {
        None => (text, ""),
        Some((name, rest)) => {
            let inside = rest
                .strip_suffix(')')
                .ok_or_else(|| Error::usage(format!("expected `+` or the end after `)`, found `{text}`")))?;
            (name.trim_end(), inside)
        }
    };
    let args = Args::parse(kind(name)?, inside)?;
    let rule = (args.kind().make)(&args)?;
    Ok(Stage { args, rule })
}
