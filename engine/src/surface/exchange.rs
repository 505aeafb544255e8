//! Collectives beyond the measured number of nodes.

use super::Ground;

/// Time of an exchange among experts over `nodes` nodes, from its time on one node and over `measured_nodes`.
///
/// Experts are spread evenly, so that of each token's copies `1 / n` stay on the node, at the pace of one node, and
/// `(n - 1) / n` cross, at a pace that the measured point gives:
/// `t(n) = t(1) / n + x * (n - 1) / n` with `x = (t(k) - t(1) / k) * k / (k - 1)`.
/// `DeepEP` over 2, 4 and 8 nodes (290, 410, 471 us) is met within 11% from its first two points. Any other number of nodes
/// than those two is extrapolated. `None` where `measured_nodes` is below 2 or `nodes` is 0.
pub fn across_nodes(one_node_ns: f64, measured_nodes: u32, measured_ns: f64, nodes: u32) -> Option<(f64, Ground)> {
    if measured_nodes < 2 || nodes == 0 {
        return None;
    }
    let (k, n) = (f64::from(measured_nodes), f64::from(nodes));
    // What crosses is not faster than what stays.
    let crossing = ((measured_ns - one_node_ns / k) * k / (k - 1.0)).max(one_node_ns);
    let is_measured = nodes == 1 || nodes == measured_nodes;
    let ground = if is_measured { Ground::Calibrated } else { Ground::Extrapolated };
    Some((one_node_ns / n + crossing * (n - 1.0) / n, ground))
}
