//! The stage `window`: keeps the last tokens only.

use super::{Args, Choice, Deployment, Floor, Keep, Kind, Param, Rule, Selection};
use crate::error::Result;

/// `window(size)`.
pub(super) static KIND: Kind = Kind {
    name: "window",
    doc: "Keeps the last `size` tokens of the context.",
    floor: Floor::Selection,
    params: &[Param { name: "size", default: "", doc: "Tokens kept, such as `1024` or `4k` (4000)." }],
    needs: &[],
    source: "Longformer (arXiv 2004.05150), applied to a model that was not trained for it",
    deployment: Deployment {
        engines: "not looked up; engines apply it to models that have windows of their own",
        ..Deployment::NONE
    },
    make,
};

fn make(args: &Args) -> Result<Rule> {
    let keep = Keep::at_most(args.count("size", 1, u32::MAX)?);
    let choice = Choice::of_ends(|args| Ok((0, args.count("size", 1, u32::MAX)?)));
    Ok(Rule::Select(Selection::same(keep, choice)))
}
