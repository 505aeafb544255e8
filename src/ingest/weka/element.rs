//! A member of `requests`: a request, or a sub-agent.

use super::super::blocks::Blocks;
use super::super::json::Scan;
use super::super::problem::Bad;
use super::super::time::TimeUnit;
use super::super::walk;
use super::instant;

/// What is known of a request or a sub-agent; ids and inner requests are elsewhere.
#[derive(Debug, Default)]
pub(super) struct Element {
    /// Its instant on the clock around it, and whether that is exact.
    pub(super) t: Option<(i64, bool)>,
    pub(super) kind: Option<String>,
    pub(super) model: Option<String>,
    pub(super) input: Option<u32>,
    pub(super) output: Option<u32>,
    /// Whether it has ids, which may be none.
    pub(super) ids: bool,
    /// The one kind of content that is new, where the file names one.
    pub(super) input_type: Option<&'static str>,
    /// Whether the reply holds thinking, which the next prompt leaves out.
    pub(super) thinks: bool,
    pub(super) api_ns: Option<i64>,
    pub(super) think_ns: Option<i64>,
    pub(super) ttft_ns: Option<i64>,
    pub(super) agent_id: Option<String>,
    pub(super) tool_tokens: Option<u32>,
    pub(super) system_tokens: Option<u32>,
}

impl Element {
    /// Takes the value of a key; whether the key is one of the format.
    pub(super) fn take<'a>(
        &mut self,
        key: &[u8],
        scan: &mut Scan<'a>,
        text: &'a [u8],
        most: usize,
        ids: &mut Vec<u64>,
        unit: TimeUnit,
    ) -> Result<bool, Bad> {
        let words = |scan: &mut Scan<'a>, what: &str| {
            walk::maybe_text(scan, text, what).map(|text| text.map(std::borrow::Cow::into_owned))
        };
        match key {
            b"t" => self.t = Some(instant(scan, text, "`t`", unit)?),
            b"type" => self.kind = words(scan, "`type`")?,
            b"model" => self.model = words(scan, "`model`")?,
            b"agent_id" => self.agent_id = words(scan, "`agent_id`")?,
            b"in" => self.input = Some(walk::tokens(scan, "`in`")?),
            b"out" => self.output = Some(walk::tokens(scan, "`out`")?),
            b"hash_ids" => {
                scan.ids("`hash_ids`", "a block id", most, ids)?;
                self.ids = true;
            }
            b"input_types" => self.input_type = only_kind(scan, text)?,
            b"output_types" => {
                walk::list(scan, "`output_types`", &mut |scan| {
                    self.thinks |= walk::text(scan, text, "a type")? == "thinking";
                    Ok(())
                })?;
            }
            b"api_time" => self.api_ns = span(scan, text, "`api_time`", unit)?,
            b"think_time" => self.think_ns = span(scan, text, "`think_time`", unit)?,
            b"ttft" => self.ttft_ns = span(scan, text, "`ttft`", unit)?,
            b"tool_tokens" => self.tool_tokens = walk::maybe_tokens(scan, "`tool_tokens`")?,
            b"system_tokens" => self.system_tokens = walk::maybe_tokens(scan, "`system_tokens`")?,
            // What a request's own numbers say again, and why it stopped.
            b"stop" | b"models" | b"subagent_type" | b"duration_ms" | b"total_tokens" | b"tool_use_count"
            | b"status" => scan.value()?,
            _ => {
                scan.value()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a request has all that it needs.
    pub(super) fn check(&self, blocks: Blocks, ids: usize) -> Result<(), Bad> {
        let bad = |code, expected: String, found: String| Bad { at: 0, code, expected, found };
        let given = [
            ("t", self.t.is_some()),
            ("in", self.input.is_some()),
            ("out", self.output.is_some()),
            ("hash_ids", self.ids),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| !given) {
            return Err(bad("missing_key", format!("the key `{name}`"), "a request without it".to_owned()));
        }
        let input = self.input.unwrap_or(0);
        let expected = blocks.count(input);
        if ids != expected as usize {
            let wanted = format!("{expected} blocks of {} for {input} tokens", blocks.tokens);
            return Err(bad("block_count", wanted, format!("{ids}: the block count does not fit the length")));
        }
        Ok(())
    }
}

/// A span of at least zero, or none.
fn span(scan: &mut Scan<'_>, text: &[u8], name: &str, unit: TimeUnit) -> Result<Option<i64>, Bad> {
    if walk::null(scan)? {
        return Ok(None);
    }
    let at = scan.at();
    let (ns, _) = instant(scan, text, name, unit)?;
    if ns < 0 { Err(scan.bad_from(at, "negative", format!("{name} of at least zero"))) } else { Ok(Some(ns)) }
}

/// The kind of segment, if the list names one that has one.
fn only_kind<'a>(scan: &mut Scan<'a>, text: &'a [u8]) -> Result<Option<&'static str>, Bad> {
    let (mut count, mut kind) = (0, None);
    walk::list(scan, "`input_types`", &mut |scan| {
        count += 1;
        kind = match walk::text(scan, text, "a type")?.as_ref() {
            "text" => Some("user"),
            "tool_result" => Some("tool_result"),
            "tool_use" => Some("tool_use"),
            "thinking" => Some("thinking"),
            _ => None,
        };
        Ok(())
    })?;
    Ok(kind.filter(|_| count == 1))
}
