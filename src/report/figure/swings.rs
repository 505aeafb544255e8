//! `swings` over the rows of a result: one input after another, each with its settings.

use minijinja::value::{Kwargs, Value};

use super::super::chart::{self, End, Swing, Swings};
use super::super::show;
use super::{Result, Scenarios, both, number, text};

/// `label` names the input, `detail` the setting, `factor` how much of the input it is, and `value` what it changes.
pub(super) fn swings(rows: &Value, options: &Kwargs, _: &Scenarios) -> Result<String> {
    let (label, detail): (String, String) = (options.get("label")?, options.get("detail")?);
    let (factor, value): (String, String) = (options.get("factor")?, options.get("value")?);
    let missing: String = options.get("missing")?;
    let mut drawn: Vec<Swing> = Vec::new();
    for row in rows.try_iter()? {
        let name = text(&row, &label)?.replace('_', " ");
        if drawn.last().is_none_or(|last| last.name != name) {
            drawn.push(Swing { name, ends: Vec::new() });
        }
        let change = number(&row, &value)?;
        let shown = change.map_or_else(|| missing.clone(), show::change);
        let note = format!("{} {shown}", text(&row, &detail)?);
        let is_more = number(&row, &factor)?.is_some_and(|factor| factor > 1.0);
        if let Some(last) = drawn.last_mut() {
            last.ends.push(End { note, value: change, is_more });
        }
    }
    let chart = Swings { title: options.get("title")?, rows: drawn };
    let legend = "<ul class=\"legend\"><li><i class=\"box h1\"></i>less of it</li>\
                  <li><i class=\"box h0\"></i>more of it</li></ul>\n";
    Ok(both(false, |size| chart::swings(&chart, size)) + legend)
}
