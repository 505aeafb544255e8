//! `kvtoll fabric` by the real binary.

use crate::support::{kvtoll, stderr, succeed};

fn rows(more: &[&str]) -> Vec<Vec<String>> {
    let mut args = vec!["fabric", "--model", "deepseek-v3", "--batch", "64", "--format", "tsv"];
    args.extend(more);
    succeed(&args).lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn number(rows: &[Vec<String>], row: usize, name: &str) -> f64 {
    let at = rows[0].iter().position(|column| column == name).unwrap_or_else(|| panic!("no {name}"));
    rows[row][at].parse().unwrap_or_else(|_| panic!("{name}: {}", rows[row][at]))
}

#[test]
fn a_flat_plane_does_not_care_for_places_and_layers_do() {
    let found = rows(&["--fabric", "flat", "--fabric", "layered", "--fabric", "torus"]);
    let sensitivity = |row| number(&found, row, "placement_sensitivity");
    assert!((sensitivity(1) - 1.0).abs() < 1e-12 && sensitivity(2) > 1.05, "{} {}", sensitivity(1), sensitivity(2));
    assert!(number(&found, 1, "awaited_ns") < number(&found, 2, "awaited_ns"));
    assert!(number(&found, 2, "naive_over_adapted") > 1.0);
}

#[test]
fn narrower_formats_carry_fewer_bytes() {
    let of = |more: &[&str]| {
        let found = rows(&[&["--fabric", "layered", "--show", "classes"], more].concat());
        let class = found[0].iter().position(|column| column == "class").unwrap();
        let rows = (1..found.len()).filter(|row| found[*row][class] == "expert_dispatch");
        rows.map(|row| number(&found, row, "bytes")).sum::<f64>()
    };
    let (plain, narrow) = (of(&[]), of(&["--wire", "expert_dispatch=fp8"]));
    assert!((narrow / plain - f64::midpoint(1.0, 4.0 / 128.0)).abs() < 1e-9, "{narrow} {plain}");
}

/// What is fetched and what goes to FFN accelerators apart crosses the fabric: a narrow way up takes longer, and places matter.
#[test]
fn fetches_and_hops_to_ffn_accelerators_are_traffic() {
    let apart =
        ["--ffn-accelerators", "16", "--memory-places", "8", "--fetched-tokens", "512", "--tensor-parallel", "8"];
    let fabrics = ["--fabric", "layered", "--fabric", "clos"];
    let found = rows(&[&fabrics[..], &["--show", "classes"], &apart].concat());
    let at = |name: &str| found[0].iter().position(|column| column == name).unwrap();
    let time = |fabric: &str, class: &str| {
        let row = (1..found.len()).find(|row| found[*row][at("fabric")] == fabric && found[*row][at("class")] == class);
        number(&found, row.unwrap_or_else(|| panic!("{fabric} {class}")), "class_ns")
    };
    for class in ["attention_to_ffn", "ffn_to_attention", "tier_fetch"] {
        assert!(time("clos", class) > time("layered", class), "{class}");
    }
    let steps = rows(&[&fabrics[..], &apart].concat());
    assert!(number(&steps, 1, "placement_sensitivity") > 1.0);
    let layout = steps[0].iter().position(|column| column == "layout").unwrap();
    assert_eq!(steps[1][layout], "8 x 5 x 1, experts over 1, 16 FFN apart, 8 memories");
}

#[test]
fn what_does_not_fit_is_said() {
    for (more, part) in [
        (["--fabric", "flatt"].as_slice(), "did you mean `flat`?"),
        (&["--fabric", "flat", "--tensor-parallel", "3"], "divides the 64 accelerators"),
        (&["--fabric", "flat", "--wire", "fp7"], "unknown wire format `fp7`"),
        (&["--fabric", "flat", "--coalesce", "pipeline=0"], "at least 1"),
        (&["--fabric", "flat", "--expert-parallel", "7"], "a divisor of the 64"),
        (&["--fabric", "flat", "--ffn-accelerators", "64"], "found 64 for the FFN and 0 for memory"),
        (&["--fabric", "flat", "--fetched-tokens=-1"], "at least 0"),
        (&["--fabric", "flat", "--ffn-accelerators", "32", "--expert-parallel", "4"], "found both"),
    ] {
        let args = [&["fabric", "--model", "deepseek-v3"], more].concat();
        let said = stderr(&kvtoll(&args));
        assert!(said.contains(part), "{more:?}: {said}");
    }
}
