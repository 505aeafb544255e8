//! Selection policies as their papers state them, slow and plain: sets of positions, sorted lists, nothing shared with the
//! code under test. A position is a token.

use std::collections::BTreeSet;

use super::Plain;

pub(crate) type Set = BTreeSet<usize>;

/// Kept positions by head and recorded step.
pub(crate) type Kept = Vec<Vec<Set>>;

/// The best `count` positions: larger scores first, among equals the lower position.
fn top(scores: &[(f64, usize)], count: usize) -> Set {
    let mut order = scores.to_vec();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    order.into_iter().take(count).map(|(_, at)| at).collect()
}

fn ranked(scores: &[f32], from: usize, to: usize) -> Vec<(f64, usize)> {
    (from..to).map(|at| (f64::from(scores[at]), at)).collect()
}

/// Sinks, the best of the middle and the tail of a prompt: `budget` tokens in all.
fn with_ends(scores: &[f32], prompt: usize, budget: usize, sinks: usize, tail: usize) -> Set {
    if budget >= prompt {
        return (0..prompt).collect();
    }
    let mut kept: Set = (0..sinks).chain(prompt - tail..prompt).collect();
    kept.extend(top(&ranked(scores, sinks, prompt - tail), budget - kept.len()));
    kept
}

/// A choice of the prompt that stands, with all generated tokens.
fn appended(data: &Plain, of_head: impl Fn(usize) -> Set) -> Kept {
    let grown = |kept: &Set, context: usize| kept.iter().copied().chain(data.prompt..context).collect();
    (0..data.heads())
        .map(|head| {
            let kept = of_head(head);
            data.steps.iter().map(|(_, context)| grown(&kept, *context)).collect()
        })
        .collect()
}

/// Neighbours within half a kernel, at most.
fn pooled(scores: &[f32], kernel: usize, is_max: bool) -> Vec<f32> {
    let mut result = Vec::new();
    for at in 0..scores.len() {
        let near = at.saturating_sub(kernel)..scores.len().min(at + kernel);
        let window: Vec<f32> =
            near.filter(|other| at.abs_diff(*other) <= kernel / 2).map(|other| scores[other]).collect();
        let sum: f32 = window.iter().sum();
        let max = window.iter().copied().fold(f32::MIN, f32::max);
        result.push(if is_max { max } else { sum / kernel as f32 });
    }
    result
}

fn snap_scores(data: &Plain, head: usize, window: usize, tail: usize, (kernel, is_max): (usize, bool)) -> Vec<f32> {
    let scores = &data.scores("window_rows", window)[head];
    pooled(&scores[..data.prompt - tail], kernel, is_max)
}

pub(super) fn snapkv(data: &Plain, budget: usize, window: usize, pool: (usize, bool)) -> Kept {
    let tail = window.min(budget);
    appended(data, |head| {
        if budget >= data.prompt {
            return (0..data.prompt).collect();
        }
        with_ends(&snap_scores(data, head, window, tail, pool), data.prompt, budget, 0, tail)
    })
}

pub(super) fn pyramidkv(data: &Plain, budget: usize, window: usize, beta: usize) -> Kept {
    let (prompt, layers) = (data.prompt as i64, data.layers as i64);
    let (mean, window) = (budget as i64, window as i64);
    let cap = |layer: i64| {
        if prompt < mean || mean <= window || prompt < 2 * (mean - window) {
            return mean.min(prompt);
        }
        let mut least = (mean - window).div_euclid(beta as i64);
        let mut most = 2 * (mean - window) - least;
        if most >= prompt - window {
            most = prompt - window;
            least = 2 * (mean - window) - most;
        }
        let step = if layers > 1 { (most - least).div_euclid(layers - 1) } else { (most - least) / 2 };
        (if layers > 1 { most - layer * step } else { mean - window }) + window
    };
    let of_layer = |layer: usize| snapkv(data, cap(layer as i64) as usize, window as usize, (7, true));
    (0..data.heads()).map(|head| of_layer(head / data.kv_heads)[head].clone()).collect()
}

pub(super) fn adakv(data: &Plain, budget: usize, window: usize, safeguard: f64) -> Kept {
    if budget >= data.prompt {
        return appended(data, |_| (0..data.prompt).collect());
    }
    let tail = window.min(budget);
    let mut all: Vec<Set> = vec![Set::new(); data.heads()];
    for layer in 0..data.layers {
        let heads = layer * data.kv_heads..(layer + 1) * data.kv_heads;
        let mut pool = Vec::new();
        for head in heads.clone() {
            let scores = snap_scores(data, head, window, tail, (7, true));
            // The window ranks above everything, and so do the head's own best.
            let mine = ranked(&scores, 0, data.prompt - tail);
            let safe = ((budget as f64 * safeguard) as usize).saturating_sub(tail);
            let first = top(&mine, safe);
            all[head].extend(data.prompt - tail..data.prompt);
            all[head].extend(&first);
            pool.extend(mine.into_iter().filter(|(_, at)| !first.contains(at)).map(|(score, at)| (score, head, at)));
        }
        let held: usize = heads.clone().map(|head| all[head].len()).sum();
        pool.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, head, at) in pool.into_iter().take((data.kv_heads * budget).saturating_sub(held)) {
            all[head].insert(at);
        }
    }
    appended(data, |head| all[head].clone())
}

pub(super) fn kvzip(data: &Plain, budget: usize, sinks: usize, is_layerwise: bool) -> Kept {
    if budget >= data.prompt {
        return appended(data, |_| (0..data.prompt).collect());
    }
    let scores = data.scores("repeat_context", 0);
    let sinks = sinks.min(budget);
    let mut all: Vec<Set> = vec![(0..sinks).collect(); data.heads()];
    let size = if is_layerwise { data.kv_heads } else { data.heads() };
    for first in (0..data.heads()).step_by(size) {
        let mut pool = Vec::new();
        for (head, scores) in scores.iter().enumerate().skip(first).take(size) {
            pool.extend((sinks..data.prompt).map(|at| (scores[at], head, at)));
        }
        pool.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        for (_, head, at) in pool.into_iter().take(size * (budget - sinks)) {
            all[head].insert(at);
        }
    }
    appended(data, |head| all[head].clone())
}

pub(super) fn keydiff(data: &Plain, budget: usize) -> Kept {
    appended(data, |head| with_ends(&data.scores("key_diff", 0)[head], data.prompt, budget, 0, 0))
}

pub(super) fn expected_attention(data: &Plain, budget: usize, sinks: usize, eps: f32) -> Kept {
    let norms = data.norms.as_ref().unwrap();
    appended(data, |head| {
        let expected = &data.scores("expected_attention", 0)[head];
        let scores: Vec<f32> = expected.iter().zip(&norms[head]).map(|(score, norm)| (score + eps) * norm).collect();
        with_ends(&scores, data.prompt, budget, sinks.min(budget), 0)
    })
}

/// The attention of one head in one step after renormalisation over a set.
fn renormalised(mass: &[f32], kept: &Set) -> Vec<f64> {
    let sum: f64 = kept.iter().map(|at| f64::from(mass[*at])).sum();
    let scale = 1.0 / sum;
    let weights: Vec<f64> =
        (0..mass.len()).map(|at| if kept.contains(&at) { scale * f64::from(mass[at]) } else { 0.0 }).collect();
    let total: f64 = weights.iter().sum();
    assert!((total - 1.0).abs() < 1e-9, "masses sum to {total} after renormalisation");
    weights
}

/// Removes the least of those that may go, among equals the last, until `budget` are left.
fn evict(kept: &mut Set, budget: usize, may_go: impl Fn(usize) -> bool, score: impl Fn(usize) -> f64) {
    while kept.len() > budget {
        let victims = kept.iter().copied().filter(|at| may_go(*at));
        let victim = victims.min_by(|a, b| score(*a).total_cmp(&score(*b)).then(b.cmp(a)));
        let Some(victim) = victim else { return };
        kept.remove(&victim);
    }
}

pub(super) fn h2o(data: &Plain, budget: usize, recent: usize, is_mean: bool) -> Kept {
    let (prompt, sums) = (data.prompt, data.scores("column_sum", 0));
    let mut result = Vec::new();
    for (head, sums) in sums.iter().enumerate() {
        let mean: Vec<f32> = (0..prompt).map(|at| sums[at] / (prompt - at) as f32).collect();
        let first = if is_mean { &mean } else { sums };
        let mut kept = with_ends(first, prompt, budget, 0, recent.min(prompt));
        let mut acc: Vec<f64> = sums.iter().map(|sum| f64::from(*sum)).collect();
        let mut steps = Vec::new();
        for (index, (_, context)) in data.steps.iter().enumerate() {
            kept.extend(acc.len()..*context);
            acc.resize(*context, 0.0);
            steps.push(kept.clone());
            for (at, weight) in renormalised(&data.mass[head][index], &kept).into_iter().enumerate() {
                acc[at] += weight;
            }
            let rank = |at: usize| if is_mean { acc[at] / (context - at) as f64 } else { acc[at] };
            evict(&mut kept, budget, |at| at + recent < *context, rank);
        }
        result.push(steps);
    }
    result
}

pub(super) fn tova(data: &Plain, budget: usize) -> Kept {
    let (prompt, rows) = (data.prompt, data.scores("last_row", 0));
    let mut result = vec![Vec::new(); data.heads()];
    for layer in 0..data.layers {
        let heads: Vec<usize> = (layer * data.kv_heads..(layer + 1) * data.kv_heads).collect();
        let mean: Vec<f32> = (0..prompt).map(|at| heads.iter().map(|head| rows[*head][at]).sum()).collect();
        let mut kept = with_ends(&mean, prompt, budget, 0, 1);
        let mut before = prompt;
        for (index, (_, context)) in data.steps.iter().enumerate() {
            kept.extend(before..*context);
            before = *context;
            let mut sum = vec![0.0; *context];
            for head in &heads {
                result[*head].push(kept.clone());
                let weights = renormalised(&data.mass[*head][index], &kept);
                sum.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
            }
            evict(&mut kept, budget, |at| at + 1 < *context, |at| sum[at]);
        }
    }
    result
}

pub(super) struct Scissors {
    pub budget: usize,
    pub history: usize,
    pub recent: usize,
    pub drop: f64,
    pub window: usize,
}

pub(super) fn scissorhands(data: &Plain, rule: &Scissors) -> Kept {
    let mut result = Vec::new();
    for head in 0..data.heads() {
        let mut kept: Set = (0..data.prompt).collect();
        if rule.budget < data.prompt {
            let scores = &data.scores("window_rows", rule.window)[head];
            kept = with_ends(scores, data.prompt, rule.budget, 0, rule.recent.min(rule.budget));
        }
        let mut before = data.prompt;
        // The tokens that each step passed over.
        let mut passed: Vec<Set> = Vec::new();
        let mut steps = Vec::new();
        for (index, (_, context)) in data.steps.iter().enumerate() {
            kept.extend(before..*context);
            before = *context;
            steps.push(kept.clone());
            let weights = renormalised(&data.mass[head][index], &kept);
            let average = 1.0 / kept.len() as f64;
            passed.push(kept.iter().copied().filter(|at| weights[*at] < average).collect());
            if kept.len() > rule.budget {
                let last = &passed[passed.len().saturating_sub(rule.history)..];
                let counts: Vec<usize> =
                    (0..*context).map(|at| last.iter().filter(|step| step.contains(&at)).count()).collect();
                let left = rule.budget - (rule.budget as f64 * rule.drop) as usize;
                let left = left.max(rule.recent.min(*context)).max(1);
                evict(&mut kept, left, |at| at + rule.recent < *context, |at| -(counts[at] as f64));
            }
        }
        result.push(steps);
    }
    result
}

pub(super) struct Rounds {
    pub trigger: usize,
    pub tau: f64,
    pub recent: f64,
    pub gamma: f64,
    pub sinks: usize,
}

pub(super) fn lethe(data: &Plain, rule: &Rounds) -> Kept {
    let columns = data.scores("column_sum", 0);
    let mut result = vec![Vec::new(); data.heads()];
    for layer in 0..data.layers {
        let heads: Vec<usize> = (layer * data.kv_heads..(layer + 1) * data.kv_heads).collect();
        let mut salience: Vec<f64> =
            (0..data.prompt).map(|at| f64::from(heads.iter().map(|head| columns[*head][at]).sum::<f32>())).collect();
        let mut kept: Set = (0..data.prompt).collect();
        let mut trigger = rule.trigger;
        for (index, (_, context)) in data.steps.iter().enumerate() {
            kept.extend(salience.len()..*context);
            salience.resize(*context, 0.0);
            salience = salience.into_iter().map(|salience| salience * rule.gamma).collect();
            for head in &heads {
                result[*head].push(kept.clone());
                let weights = renormalised(&data.mass[*head][index], &kept);
                salience.iter_mut().zip(weights).for_each(|(salience, weight)| *salience += weight);
            }
            if kept.len() <= trigger {
                continue;
            }
            let least = kept.iter().map(|at| salience[*at]).fold(0.0, f64::max) / rule.tau;
            if kept.iter().all(|at| salience[*at] >= least) {
                trigger *= 2;
                continue;
            }
            let count = ((kept.len() as f64 * rule.recent) as usize).max(1);
            let last: Set = kept.iter().rev().filter(|at| **at >= rule.sinks).take(count).copied().collect();
            kept.retain(|at| *at < rule.sinks || last.contains(at) || salience[*at] >= least);
        }
    }
    result
}

/// Pages by a score; all positions are of `data.block` tokens, of which a page has `per_page`.
pub(super) fn quest(data: &Plain, pages: usize, per_page: usize, dense: usize, by_bound: bool) -> Kept {
    let of = |head: usize, index: usize| -> Set {
        let mass = &data.mass[head][index];
        if head / data.kv_heads < dense || pages * per_page * data.block >= data.steps[index].1 {
            return (0..mass.len()).collect();
        }
        let scores: Vec<(f64, usize)> = if by_bound {
            data.bounds.as_ref().unwrap()[head][index].iter().map(|bound| f64::from(*bound)).zip(0..).collect()
        } else {
            mass.chunks(per_page).map(|page| f64::from(page.iter().sum::<f32>())).zip(0..).collect()
        };
        let mut read = top(&scores, pages);
        read.insert(scores.len() - 1);
        (0..mass.len()).filter(|at| read.contains(&(at / per_page))).collect()
    };
    (0..data.heads()).map(|head| (0..data.steps.len()).map(|index| of(head, index)).collect()).collect()
}

/// Which heads retrieve.
fn retrieving(data: &Plain, ratio: f64) -> Set {
    let scores = data.scores("head_retrieval", 0);
    let streaming = (data.heads() as f64 * (1.0 - ratio)).round() as usize;
    let all: Vec<(f64, usize)> = scores.iter().map(|score| f64::from(score[0].clamp(0.0, 1.0))).zip(0..).collect();
    top(&all, data.heads() - streaming)
}

pub(super) fn duo(data: &Plain, retrieval: f64, sinks: usize, recent: usize) -> Kept {
    let full = retrieving(data, retrieval);
    let of = |head: usize, context: usize| -> Set {
        (0..context).filter(|at| full.contains(&head) || *at < sinks || at + recent >= context).collect()
    };
    (0..data.heads()).map(|head| data.steps.iter().map(|(_, context)| of(head, *context)).collect()).collect()
}

pub(super) fn razor(data: &Plain, retrieval: f64, sinks: usize, least: usize, recent: f64) -> Kept {
    let full = retrieving(data, retrieval);
    let last = least.max((data.prompt as f64 * recent - 1e-6).ceil() as usize);
    appended(data, |head| {
        // Dropping one token for one compensation token gains nothing.
        let is_all = full.contains(&head) || sinks + last + 1 >= data.prompt;
        (0..data.prompt).filter(|at| is_all || *at < sinks || at + last >= data.prompt).collect()
    })
}

pub(super) fn ends(data: &Plain, sinks: usize, recent: usize) -> Kept {
    let of = |context: usize| (0..context).filter(|at| *at < sinks || at + recent >= context).collect();
    vec![data.steps.iter().map(|(_, context)| of(*context)).collect(); data.heads()]
}

pub(super) fn oracle(data: &Plain, budget: usize, is_static: bool) -> Kept {
    if is_static {
        return appended(data, |head| {
            let sum = |at: usize| data.mass[head].iter().map(|mass| f64::from(mass[at])).sum::<f64>() as f32;
            let sums: Vec<f32> = (0..data.prompt).map(sum).collect();
            with_ends(&sums, data.prompt, budget, 0, 0)
        });
    }
    let of = |head: usize, index: usize| {
        let mass = &data.mass[head][index];
        top(&ranked(mass, 0, mass.len()), budget.min(data.prompt) + mass.len() - data.prompt)
    };
    (0..data.heads()).map(|head| (0..data.steps.len()).map(|index| of(head, index)).collect()).collect()
}
