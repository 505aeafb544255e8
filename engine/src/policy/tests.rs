#![expect(clippy::float_cmp, reason = "these values are exact in floating point")]

use proptest::prelude::*;

use super::*;
use crate::model::{Attention, Certainty, Ffn, LayerGroup};

/// A model with groups of so many layers, all with this attention and these K and V widths.
fn model(groups: &[(u32, Attention)], kv_heads: u32, key_dim: u32, value_dim: u32) -> Model {
    let group = |&(layers, attention): &(u32, Attention)| LayerGroup {
        layers,
        kv: KvShape {
            attention,
            query_heads: 32,
            kv_heads,
            key_dim,
            value_dim,
            macs_per_pair: 0.0,
            prefill_macs_per_pair: 0.0,
        },
        attention_params: 0.0,
        ffn: Ffn { dense_params: 0.0, expert_params: 0.0, experts: 0, active_experts: 0 },
    };
    Model {
        name: "test".to_owned(),
        title: String::new(),
        source: String::new(),
        certainty: Certainty::Assumed,
        weights: crate::model::WeightDtype::Bf16,
        hidden: 0,
        head_params: 0.0,
        embedding_params: 0.0,
        context_tokens: None,
        groups: groups.iter().map(group).collect(),
    }
}

fn dense(layers: u32) -> Model {
    model(&[(layers, Attention::Full)], 8, 128, 128)
}

#[test]
fn what_a_stack_takes_away_is_told() {
    let cases: [(&str, &[&str]); 8] = [
        ("full", &[]),
        ("bf16", &[]),
        ("fp8", &["precision"]),
        ("snapkv(budget=25%)", &["tokens"]),
        ("quest(budget=1024)", &["tokens"]),
        ("minicache+int4", &["layers", "precision"]),
        ("clear_thinking", &["context"]),
        ("compact(at=50k)+snapkv(budget=25%)+fp8", &["context", "tokens", "precision"]),
    ];
    for (policy, lost) in cases {
        assert_eq!(Stack::parse(policy).unwrap().may_lose(), lost, "{policy}");
    }
}

fn demand(policy: &str, model: &Model) -> Shape {
    shape(&Stack::parse(policy).unwrap(), model).unwrap()
}

/// Bytes of one token in all layers.
fn bytes(shape: &Shape) -> u64 {
    shape.groups.iter().map(|group| u64::from(group.layers) * group.token_bytes).sum()
}

fn refusal(policy: &str) -> (String, String) {
    let error = Stack::parse(policy).unwrap_err();
    (error.to_string(), error.advice().unwrap_or_default().to_owned())
}

#[test]
fn every_kind_is_documented_and_found_by_name() {
    for listed in ALL {
        assert!(std::ptr::eq(kind(listed.name).unwrap(), *listed), "{} is shadowed", listed.name);
        assert!(listed.doc.ends_with('.') && !listed.source.is_empty(), "{}", listed.name);
        for param in listed.params {
            assert!(param.doc.ends_with('.'), "{}.{}", listed.name, param.name);
        }
    }
}

#[test]
fn names_are_canonical() {
    for (text, name) in [
        ("full", "full"),
        ("full()", "full"),
        (" snapkv( budget = 25% , window=32 ) + turboquant(bits=4)", "snapkv(budget=25%)+turboquant"),
        ("snapkv(pool=avg,budget=4k)", "snapkv(budget=4000,pool=avg)"),
        ("window(1024)", "window(size=1024)"),
        ("streaming(recent=1020,sinks=4)", "streaming(recent=1020)"),
        ("streaming(8,1k)", "streaming(sinks=8,recent=1000)"),
        ("turboquant(k=8,v=4)", "turboquant(k=8,v=4)"),
        ("turboquant(skip=first2+last2)+window(7)", "turboquant+window(size=7)"),
        ("turboquant(bits=3,skip=none)", "turboquant(bits=3,skip=none)"),
        ("lethe(4k,tau=400,gamma=0.95)", "lethe(trigger=4000,gamma=0.95)"),
        ("adakv(25%,scorer=h2o)+fp8", "adakv(budget=25%,scorer=h2o)+fp8"),
        ("random(12.50%,seed=0007)", "random(budget=12.5%,seed=7)"),
        ("int4(group=128)+full", "int4+full"),
    ] {
        assert_eq!(Stack::parse(text).unwrap().name(), name, "{text}");
    }
}

#[test]
fn mistakes_are_named_with_a_way_out() {
    let (message, hint) = refusal("snapvk(budget=25%)");
    assert_eq!(message, "policy `snapvk(budget=25%)`: unknown policy stage `snapvk`");
    assert_eq!(hint, "did you mean `snapkv`?");
    assert_eq!(refusal("snapkv(budjet=25%)").1, "did you mean `budget`?");
    assert_eq!(refusal("snapkv").0, "policy `snapkv`: `snapkv` needs `budget`");
    assert_eq!(refusal("snapkv(budget=1k,pool=maxx)").1, "did you mean `max`?");
    assert_eq!(
        refusal("snapkv(budget=1k,budget=2k)").0,
        "policy `snapkv(budget=1k,budget=2k)`: `budget` of `snapkv` is given twice"
    );
    assert_eq!(refusal("bf16(x=1)").0, "policy `bf16(x=1)`: `bf16` takes no parameters, found `x`");
    assert!(refusal("fp8+int4").0.contains("`fp8` and `int4` both set the number format"));
    assert!(refusal("window(9)+oracle(1%)").0.contains("`window` and `oracle` both set the budget"));
    for text in [
        "",
        "+",
        "fp8+",
        "fp8)",
        "fp8(",
        "(fp8)",
        "fp8(()",
        "fp8()x",
        "window(0)",
        "window(-1)",
        "window(1.5)",
        "window(10%)",
        "window(99999999999999999999)",
        "window(5000000000)",
        "window(size=)",
        "window(1,2)",
        "streaming(sinks=4,9)",
        "snapkv(budget=0%)",
        "snapkv(budget=101%)",
        "snapkv(budget=.%)",
        "snapkv(budget=16)",
        "snapkv(budget=1k,kernel=4)",
        "turboquant(bits=1)",
        "turboquant(k=6,v=4)",
        "turboquant(k=7)",
        "turboquant(bits=3,k=8,v=4)",
        "turboquant(skip=all)",
        "turboquant(skip=first)",
        "turboquant(skip=first2+first1)",
        "turboquant(skip=first0)",
        "int4(group=1)",
        "streaming(sinks=4294967295,recent=1)",
        "random(budget=20)",
        "snapkv(budget=1e2)",
        "snapkv(budget=inf%)",
        "h2o",
        "h2o(10,recent=120%)",
        "h2o(10,recent=3)",
        "h2o(10,score=max)",
        "lethe(1000,tau=0.5)",
        "lethe(1000,gamma=1e3)",
        "quest(10)",
        "quest(1000,recall=90%)",
        "quest(25%)",
        "duo(retrieval=0.5)",
        "duo(sinks=4294967295,recent=1)",
        "razor(sinks=4294967295)",
        "pyramidkv(16)",
        "adakv(1k,scorer=tova)",
        "scissorhands(1k,history=0)",
    ] {
        assert!(Stack::parse(text).is_err(), "{text}");
    }
}

/// POLICIES 3.6: slots of 196, 134, 118 and 102 bytes per head and token at width 128, and the ratios of an 80-layer model
/// whose first and last two layers stay in bf16, two of which vLLM published as 2.4x and 3.4x.
#[test]
fn turboquant_takes_the_slots_of_vllm() {
    for (policy, slot, ratio) in [
        ("turboquant(k=8,v=4)", 196, 2.42),
        ("turboquant(bits=4)", 134, 3.35),
        ("turboquant(k=3,v=4)", 118, 3.72),
        ("turboquant(bits=3)", 102, 4.18),
    ] {
        let shape = demand(policy, &dense(80));
        let [plain, packed] = &shape.groups[..] else { panic!("{policy}: expected two groups") };
        assert_eq!((plain.layers, plain.token_bytes, plain.is_16bit), (4, 8 * 512, true), "{policy}");
        assert_eq!((packed.layers, packed.token_bytes, packed.is_16bit), (76, 8 * slot, false), "{policy}");
        let found = bytes(&demand("full", &dense(80))) as f64 / bytes(&shape) as f64;
        assert!((found - ratio).abs() < 0.005, "{policy}: {found}");
    }
    assert_eq!(bytes(&demand("turboquant(skip=none)", &dense(10))), 10 * 8 * 134);
    assert_eq!(demand("turboquant", &dense(3)).groups.len(), 1, "three layers are all at an end");
}

#[test]
fn skipped_layers_are_counted_over_the_whole_model() {
    let deep = model(&[(1, Attention::Full), (58, Attention::Full), (1, Attention::Full)], 8, 128, 128);
    let groups: Vec<(usize, u32, bool)> = demand("turboquant", &deep)
        .groups
        .iter()
        .map(|group| (group.model_group, group.layers, group.is_16bit))
        .collect();
    assert_eq!(groups, [(0, 1, true), (1, 2, true), (1, 56, false), (2, 1, true)]);
}

#[test]
fn formats_take_their_published_bytes() {
    assert_eq!(bytes(&demand("full", &dense(32))), 131_072);
    assert_eq!(bytes(&demand("bf16", &dense(32))), 131_072);
    assert_eq!(bytes(&demand("fp8", &dense(32))), 65_536);
    // 4.125 bits per element.
    assert_eq!(bytes(&demand("int4", &dense(32))), 32 * 8 * 2 * 66);
    assert_eq!(bytes(&demand("int4(group=32)", &dense(32))), 32 * 8 * 2 * (64 + 8));
    let narrow = model(&[(10, Attention::Full)], 3, 64, 64);
    assert_eq!(bytes(&demand("int4", &narrow)), 10 * 3 * 2 * (32 + 2), "a group is never wider than a vector");
    let split = model(&[(1, Attention::Full)], 4, 192, 128);
    assert_eq!(bytes(&demand("turboquant(skip=none)", &split)), 4 * (96 + 2 + 64 + 4));
    let mla = model(&[(61, Attention::Mla)], 1, 576, 0);
    assert_eq!(bytes(&demand("full", &mla)), 70_272);
    assert_eq!(bytes(&demand("fp8", &mla)), 61 * 576);
}

#[test]
fn arithmetic_follows_its_formulas() {
    let group = |policy: &str| demand(policy, &dense(32)).groups.pop().unwrap();
    assert_eq!(group("fp8").read_flops, 0.0);
    assert_eq!(group("int4").read_flops, 2.0 * 2048.0);
    assert_eq!(group("turboquant").read_flops, 2.0 * 2048.0);
    assert_eq!(group("turboquant(k=8,v=4)").read_flops, 2.0 * 1024.0);
    assert_eq!(group("turboquant").write_flops, 8.0 * 128.0 * (7.0 + 3.0 + 16.0 + 5.0));
    assert_eq!(group("snapkv(budget=10%)").score_flops, 2.0 * 32.0 * 32.0 * 128.0);
    assert_eq!(group("window(10)").score_flops, 0.0);
}

#[test]
fn models_without_a_layout_are_refused_with_the_reason() {
    let mla = model(&[(61, Attention::Mla)], 1, 576, 0);
    for policy in ["turboquant", "turboquant(skip=none)", "int4"] {
        let error = shape(&Stack::parse(policy).unwrap(), &mla).unwrap_err();
        assert!(error.to_string().contains("latent of `test`"), "{error}");
    }
    let mixed = model(&[(18, Attention::Sliding { window: 128 }), (18, Attention::Full)], 8, 64, 64);
    let error = shape(&Stack::parse("turboquant").unwrap(), &mixed).unwrap_err();
    assert!(error.advice().unwrap().contains("skip=none"));
    assert_eq!(bytes(&demand("turboquant(skip=none)", &mixed)), 36 * 8 * (32 + 2 + 32 + 4));
}

#[test]
fn a_models_own_window_stands_and_selection_leaves_it_alone() {
    let mixed = model(&[(18, Attention::Sliding { window: 128 }), (18, Attention::Full)], 8, 64, 64);
    let shape = demand("snapkv(budget=25%)+fp8", &mixed);
    assert!(shape.eviction_is_private);
    assert_eq!(shape.groups[0].keep, Keep::at_most(128));
    assert_eq!(shape.groups[0].score_flops, 0.0);
    assert_eq!(shape.groups[1].keep, Keep::of_prompt(Budget::Ratio(0.25)));
    assert!(!demand("full+fp8", &mixed).eviction_is_private);
}

/// Bytes stored and bytes that a decode step reads at this context, after a prompt that long.
fn stored_and_read(shape: &Shape, context: u32) -> (f64, f64) {
    let group = |group: &Group| {
        let kept = group.keep.tokens(context, context);
        let read = group.read_tokens.map_or(kept, |most| kept.min(most));
        let layers = f64::from(group.layers);
        let index = f64::from(kept) * group.index_bytes as f64;
        let of = |tokens: u32| layers * (f64::from(tokens) * group.token_bytes as f64 + index);
        (of(kept), of(read))
    };
    shape.groups.iter().map(group).fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
}

/// POLICIES 1.8 and 7.6: everything and a sixteenth more is stored, a sixteenth and the budget is read.
#[test]
fn quest_reads_its_pages_and_an_index() {
    for (budget, context, fraction) in
        [(1024, 32_768, 0.09375), (2048, 32_768, 0.125), (4096, 32_768, 0.1875), (4096, 65_536, 0.125)]
    {
        let full = stored_and_read(&demand("full", &dense(32)), context).0;
        let (stored, read) = stored_and_read(&demand(&format!("quest({budget},dense=0)"), &dense(32)), context);
        assert!((stored / full - 1.0625).abs() < 1e-9, "{stored}");
        assert!((read / full - fraction).abs() < 1e-9, "{budget} of {context}: {}", read / full);
    }
    let groups = demand("quest(1024)", &dense(32)).groups;
    assert_eq!(
        groups.iter().map(|group| (group.layers, group.read_tokens)).collect::<Vec<_>>(),
        [(2, None), (30, Some(1024))]
    );
    assert!(!demand("quest(1024)", &dense(32)).eviction_is_private, "what is stored is whole");
}

/// POLICIES 7.8: `1 - f * (1 - (s + r) / T)` with the share `f` of streaming heads, and 0.15 + 0.85 * 0.2 = 0.32.
#[test]
fn head_splits_store_what_their_formulas_say() {
    let context = 100_000;
    let full = stored_and_read(&demand("full", &dense(32)), context).0;
    for (share, streaming) in [(50, 128.0), (25, 192.0), (0, 256.0), (100, 0.0), (30, 179.0)] {
        let shape = demand(&format!("duo(retrieval={share}%)"), &dense(32));
        let expected = 1.0 - streaming / 256.0 * (1.0 - (128.0 + 256.0) / f64::from(context));
        assert!((stored_and_read(&shape, context).0 / full - expected).abs() < 1e-9, "{share}%");
    }
    let razor = stored_and_read(&demand("razor", &dense(32)), context).0 / full;
    assert!((razor - 0.32).abs() < 0.002, "{razor}");
    let mla = model(&[(61, Attention::Mla)], 1, 576, 0);
    for policy in ["duo", "razor"] {
        let error = shape(&Stack::parse(policy).unwrap(), &mla).unwrap_err();
        assert!(error.to_string().contains("share one latent"), "{error}");
    }
}

#[test]
fn a_pyramid_has_a_budget_for_each_layer() {
    let groups = demand("pyramidkv(512,window=8)", &dense(32)).groups;
    let kept: Vec<u32> = groups.iter().map(|group| group.keep.tokens(8192, 8192)).collect();
    assert_eq!((groups.len(), kept[0], kept[31]), (32, 991, 61));
    assert!(kept.windows(2).all(|pair| pair[0] - pair[1] == 30));
    assert_eq!(groups[3].keep.tokens(8192, 8200), kept[3] + 8, "generated tokens are kept");
}

#[test]
fn an_evicting_cache_stays_at_its_budget() {
    let keep = demand("h2o(100)", &dense(8)).groups[0].keep;
    let kept = |prompt, context| keep.tokens(prompt, context);
    // A step attends to the budget and its own token, which takes the place of another afterwards.
    assert_eq!([kept(300, 200), kept(300, 300), kept(300, 301), kept(300, 900)], [200, 100, 101, 101]);
    assert_eq!([kept(60, 60), kept(60, 100), kept(60, 101), kept(60, 900)], [60, 100, 101, 101]);
    assert_eq!((keep.full_at(300), keep.full_at(60)), (Some(301), Some(101)));
    assert_eq!(demand("h2o(100)", &dense(8)).groups[0].index_bytes, 4 * 8, "one sum per token and KV head");
    let share = demand("tova(25%)", &dense(8)).groups[0].keep;
    assert_eq!((share.tokens(400, 400), share.tokens(400, 1000)), (100, 101));
}

/// DESIGN 5: what depends on attention is refused until a recording says how much it is.
#[test]
fn bytes_that_depend_on_attention_need_a_recording() {
    for policy in ["adakv(1024)", "kvzip(25%)", "lethe(1024)", "scissorhands(1024)"] {
        let stack = Stack::parse(policy).unwrap();
        let error = shape(&stack, &dense(4)).unwrap_err();
        let name = stack.bytes_need().last().unwrap().name;
        assert!(error.to_string().contains(&format!("`{name}`")) && error.to_string().contains("`mass`"), "{error}");
        assert!(error.advice().unwrap().contains("prefill_scores"), "{error}");
        let measured = |layers: usize| Measured {
            recording: "tiny".to_owned(),
            prompt_ratio: vec![0.5; layers],
            read_tokens: vec![1.0; layers],
        };
        let found = shape(&stack.clone().with_measured(measured(4)), &dense(4)).unwrap();
        assert_eq!(found.groups.len(), 1, "{policy}");
        assert_eq!(found.groups[0].keep.tokens(1000, 1000), 500);
        let error = shape(&stack.with_measured(measured(3)), &dense(4)).unwrap_err();
        assert!(error.to_string().contains("with 3 layers, but the model has 4"), "{error}");
    }
    assert!(Stack::parse("snapkv(1024)").unwrap().bytes_need().is_empty());
}

#[test]
fn a_share_is_rounded_up_but_not_by_floating_point() {
    assert_eq!(Budget::Ratio(0.07).tokens(100), 7);
    assert_eq!(Budget::Ratio(0.25).tokens(33), 9);
    assert_eq!(Budget::Tokens(40).tokens(33), 33);
}

#[test]
fn the_random_stream_is_splitmix64() {
    // The first outputs for seed 1234567 that the algorithm's reference implementation is known by.
    let mut rng = rng::Rng::new(1_234_567);
    assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
    assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    let normals: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
    let mean = normals.iter().sum::<f64>() / 1e5;
    let square = normals.iter().map(|x| x * x).sum::<f64>() / 1e5;
    assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
}

#[test]
fn the_best_are_marked_and_ties_go_to_the_front() {
    let mut keys = Vec::new();
    let mut kept = vec![true; 6];
    select::mark_best(&[1.0, -2.0, 1.0, 3.0, -1.0], 2, &mut keys, &mut kept);
    assert_eq!(kept, [true, false, false, true, false, true]);
    select::mark_best(&[-1.0, -2.0, -0.0, 0.0], 3, &mut keys, &mut kept);
    assert_eq!(kept, [true, false, true, true, false, true]);
}

#[test]
fn ends_are_kept_by_whole_units() {
    let kept = |tokens: u32, context: u32, sinks: u32, budget: u32| {
        let mut units = select::Units::new(tokens);
        units.begin(context);
        units.keep_ends(context, sinks, budget);
        units.kept.iter().map(|kept| if *kept { '1' } else { '0' }).collect::<String>()
    };
    assert_eq!(kept(1, 8, 0, 3), "00000111");
    assert_eq!(kept(1, 8, 2, 5), "11000111");
    assert_eq!(kept(1, 8, 2, 8), "11111111");
    assert_eq!(kept(4, 30, 0, 9), "00000011");
    assert_eq!(kept(4, 30, 1, 4), "10000001", "the unit being written is kept beside the sinks");
    assert_eq!(kept(4, 30, 1, 30), "11111111");
}

/// A stack of any selection and any format with parameters that are in range.
fn any_stack() -> impl Strategy<Value = String> {
    let budget = || {
        prop_oneof![
            (64_u32..100_000).prop_map(|n| n.to_string()),
            (1_u32..=1000).prop_map(|n| format!("{}%", f64::from(n) / 10.0))
        ]
    };
    let selection = prop_oneof![
        Just("full".to_owned()),
        (1_u32..u32::MAX).prop_map(|size| format!("window({size})")),
        (0_u32..64, 1_u32..9000).prop_map(|(sinks, recent)| format!("streaming(recent={recent},sinks={sinks})")),
        (budget(), 1_u32..=64, 0_u32..8, prop_oneof![Just("max"), Just("avg")]).prop_map(
            |(budget, window, half, pool)| format!(
                "snapkv(pool={pool},kernel={},window={window},budget={budget})",
                2 * half + 1
            )
        ),
        (budget(), any::<u64>()).prop_map(|(budget, seed)| format!("random({budget},{seed})")),
        budget().prop_map(|budget| format!("oracle({budget})")),
        (budget(), 0_u32..=100).prop_map(|(budget, recent)| format!("h2o({budget},recent={recent}%,score=mean)")),
        budget().prop_map(|budget| format!("tova({budget})")),
        budget().prop_map(|budget| format!("keydiff({budget})")),
        budget().prop_map(|budget| format!("expected_attention({budget},eps=0.01)")),
        (budget(), 1_u32..40, 1_u32..=64)
            .prop_map(|(budget, beta, window)| format!("pyramidkv({budget},beta={beta},window={window})")),
        (16_u32..9000, 0_u32..4).prop_map(|(budget, dense)| format!("quest({budget},dense={dense})")),
        (0_u32..=100, 0_u32..300).prop_map(|(share, sinks)| format!("duo(retrieval={share}%,sinks={sinks})")),
        (0_u32..=100, 1_u32..9000).prop_map(|(share, least)| format!("razor(retrieval={share}%,least={least})")),
    ];
    let format = prop_oneof![
        Just(String::new()),
        Just("+bf16".to_owned()),
        Just("+fp8".to_owned()),
        (2_u32..300).prop_map(|group| format!("+int4(group={group})")),
        (2_u32..=5, 0_u32..4, 0_u32..4).prop_map(|(bits, first, last)| {
            let ends = [("first", first), ("last", last)].into_iter().filter(|(_, layers)| *layers > 0);
            let ends: Vec<String> = ends.map(|(end, layers)| format!("{end}{layers}")).collect();
            let skip = if ends.is_empty() { "none".to_owned() } else { ends.join("+") };
            format!("+turboquant(skip={skip},bits={bits})")
        }),
        (2_u32..=5, 2_u32..=8).prop_map(|(key, value)| format!("+turboquant(k={key},v={value})")),
    ];
    (selection, format).prop_map(|(selection, format)| selection + &format)
}

proptest! {
    #[test]
    fn a_name_parses_to_itself(text in any_stack()) {
        let name = Stack::parse(&text).unwrap().name();
        prop_assert_eq!(Stack::parse(&name).unwrap().name(), name);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-z0-9%=,+() .k]{0,24}") {
        if let Ok(stack) = Stack::parse(&text) {
            prop_assert_eq!(Stack::parse(&stack.name()).unwrap().name(), stack.name());
        }
    }

    #[test]
    fn kept_tokens_grow_with_the_context_and_never_exceed_it(
        text in any_stack(), prompt in 1_u32..5000, output in 0_u32..3000,
    ) {
        for group in demand(&text, &dense(8)).groups {
            let mut before = 0;
            for context in prompt..=prompt + output {
                let kept = group.keep.tokens(prompt, context);
                prop_assert!(kept >= before && kept <= context, "{} of {}", kept, context);
                prop_assert!(kept > 0);
                before = kept;
            }
        }
    }

    /// A request keeps no token or one more with each token of context, and none from the context on that it is said to be full at.
    #[test]
    fn recovery_adds_tokens_and_the_keep_knows_when_it_is_full(
        selection in prop_oneof![
            Just(Keep::at_most(40)),
            (1_u32..300).prop_map(|tokens| Keep::of_prompt(Budget::Tokens(tokens))),
            (0.01_f64..1.0).prop_map(|ratio| Keep::fixed(Budget::Ratio(ratio))),
            (1_u32..300).prop_map(|tokens| Keep::fixed(Budget::Tokens(tokens))),
            (1_u32..300, 1_u32..100).prop_map(|(tokens, most)| Keep::of_prompt(Budget::Tokens(tokens)).capped(most)),
        ],
        retained in 0.0_f64..=1.0, extra in 0_u32..80, prompt in 1_u32..400, output in 1_u32..200,
    ) {
        let keep = Keep { retained, extra, ..selection };
        let dropped = prompt - selection.tokens(prompt, prompt);
        let more = (f64::from(dropped) * retained - 1e-6).ceil() as u32 + extra;
        let mut full = None;
        for context in prompt..prompt + output {
            let expected = (selection.tokens(prompt, context) + more).min(context);
            prop_assert_eq!(keep.tokens(prompt, context), expected);
            let next = keep.tokens(prompt, context + 1);
            prop_assert!(next == expected || next == expected + 1);
            full = if next > expected { None } else { full.or(Some(context)) };
        }
        match keep.full_at(prompt) {
            Some(at) if at < prompt + output => prop_assert_eq!(full, Some(at)),
            _ => prop_assert_eq!(full, None),
        }
        prop_assert!(keep.in_prefill(prompt) >= keep.tokens(prompt, prompt));
    }

    #[test]
    fn a_budget_of_the_whole_prompt_keeps_as_much_as_full(prompt in 1_u32..5000, extra in 0_u32..100, output in 0_u32..100) {
        let budget = (prompt + extra).max(32);
        for text in [format!("snapkv(budget={budget})"), "snapkv(budget=100%)".to_owned()] {
            let keep = demand(&text, &dense(8)).groups[0].keep;
            for context in 1..=prompt + output {
                prop_assert_eq!(keep.tokens(prompt, context), Keep::ALL.tokens(prompt, context));
            }
        }
    }

    #[test]
    fn layers_are_neither_lost_nor_doubled(text in any_stack(), sizes in prop::collection::vec(1_u32..5, 1..5)) {
        let groups: Vec<(u32, Attention)> = sizes.iter().map(|layers| (*layers, Attention::Full)).collect();
        let shape = demand(&text, &model(&groups, 4, 128, 128));
        for (index, layers) in sizes.iter().enumerate() {
            let of_group = shape.groups.iter().filter(|group| group.model_group == index);
            // Layers whose heads are treated in two ways stand in two groups.
            prop_assert_eq!(of_group.map(|group| group.layers * group.kv.kv_heads).sum::<u32>(), 4 * *layers);
        }
    }

    #[test]
    fn the_marked_are_the_largest(scores in prop::collection::vec(-1e3_f32..1e3, 1..200), share in 0.0..1.0) {
        let count = (scores.len() as f64 * share) as usize;
        let mut kept = vec![false; scores.len()];
        select::mark_best(&scores, count, &mut Vec::new(), &mut kept);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let mut expected = vec![false; scores.len()];
        order[..count].iter().for_each(|at| expected[*at] = true);
        prop_assert_eq!(kept, expected);
    }
}

#[test]
fn merged_layers_store_one_direction_and_read_two() {
    let model = dense(32);
    let (full, merged) = (demand("full", &model), demand("minicache", &model));
    let stored = |shape: &Shape| -> u64 {
        shape.groups.iter().map(|group| u64::from(group.layers) * group.stored_bytes()).sum()
    };
    // POLICIES 2.1: 77.9% with norms and an index per head, traffic about 1.
    let storage = stored(&merged) as f64 / stored(&full) as f64;
    assert!((storage - 0.779).abs() < 0.002, "{storage}");
    let traffic = bytes(&merged) as f64 / bytes(&full) as f64;
    assert!((1.0..1.05).contains(&traffic), "{traffic}");
    assert_eq!(merged.groups.iter().map(|group| group.layers).collect::<Vec<_>>(), [16, 16]);
    for (policy, parts) in [
        ("minicache+minicache(start=0.7)", ["both merge layers", "merged again"]),
        ("snapkv(budget=25%)+minicache", ["keeps others in each layer", "`window`"]),
        ("minicache+kivi", ["leaves some layers or the newest tokens", "`fp8`"]),
        ("minicache+turboquant", ["leaves some layers or the newest tokens", "`fp8`"]),
    ] {
        let (message, advice) = refusal(policy);
        assert!(message.contains(parts[0]) && advice.contains(parts[1]), "{message} {advice}");
    }
    assert!(Stack::parse("window(128)+minicache+fp8").is_ok());
    let sliding = model_of_windows();
    let error = shape(&Stack::parse("minicache").unwrap(), &sliding).unwrap_err();
    assert!(error.to_string().contains("pairs of layers with full attention"), "{error}");
}

fn model_of_windows() -> Model {
    model(&[(12, Attention::Full), (12, Attention::Sliding { window: 128 })], 8, 128, 128)
}

#[test]
fn residual_windows_are_counted_for_every_length() {
    let group = &demand("kivi", &dense(2)).groups[0];
    // POLICIES 3.2: per head and layer, `q(n) = n d b / 8 + 4 n d / g`; the newest of K and V in 2 bytes an element.
    let quantized = |tokens: u64| tokens * 128 * 2 / 8 + tokens * 128 / 32 * 4;
    for tokens in [1_u32, 127, 128, 129, 255, 256, 1000, 4096, 32_768] {
        let (keys, values) = (tokens % 128, tokens.min(128));
        let exact = |waiting: u32| quantized(u64::from(tokens - waiting)) + u64::from(waiting) * 2 * 128;
        assert_eq!(group.bytes_of(tokens), 8 * (exact(keys) + exact(values)), "{tokens}");
    }
    let residual = group.residual;
    let by_length: Vec<u64> = (1..=600).map(|tokens| residual.bytes(tokens)).collect();
    assert_eq!(residual.most_bytes(600), *by_length.iter().max().unwrap());
    for (from, steps) in [(0, 1), (0, 600), (77, 300), (128, 0), (130, 129)] {
        let slow: u64 = by_length[from..from + steps].iter().sum();
        assert_eq!(residual.summed(from as u32, steps as u32), Some(slow), "{from} {steps}");
    }
    assert!(residual.summed(u32::MAX, u32::MAX).is_some());
}

#[test]
fn recovery_is_priced() {
    let group = |policy: &str| demand(policy, &dense(4)).groups.remove(0);
    let plain = group("snapkv(budget=25%)");
    // A tenth of the three quarters that are dropped: 100 tokens keep 25, and 8 more.
    let retained = group("snapkv(budget=25%)+retain(10%)");
    assert_eq!((plain.keep.tokens(100, 100), retained.keep.tokens(100, 100)), (25, 33));
    assert_eq!(retained.keep.tokens(100, 150), 83);
    assert_eq!(retained.bytes_of(33), 33 * 8 * 512);
    // One more token in 16 bits, and an addition per element of a prompt token.
    let pair = group("snapkv(budget=25%)+compensate");
    assert_eq!(pair.keep.tokens(100, 100), 26);
    assert!((pair.score_flops - plain.score_flops - 8.0 * 256.0).abs() < 1e-9);
    // 2 bits of an element, a norm of 2 bytes of K and 4 bytes of scale and zero of V, per head.
    let copies = group("snapkv(budget=25%)+copies");
    let beside = copies.beside.unwrap();
    assert_eq!((beside.token_bytes, beside.is_attended, copies.keep), (8 * (2 * 32 + 2 + 4), true, plain.keep));
    assert!((beside.read_flops - 2.0 * 2048.0).abs() < 1e-9 && copies.score_flops > plain.score_flops);
    // Digests of 2 x 128 channels in 16 bits per head and page; what is fetched has room of its own.
    let recall = group("snapkv(budget=25%)+fp8+recall(tokens=64)");
    assert_eq!(recall.lower, Some(Lower { token_bytes: 8 * 256, fetched_tokens: 64 }));
    assert_eq!(recall.beside.map(|beside| (beside.token_bytes, beside.is_attended)), Some((8 * 512 / 16, false)));
    assert_eq!((recall.keep.tokens(100, 100), recall.keep.tokens(1000, 1000)), (89, 314));
    // Beside a format the mean of both: 5% of 512 bytes and 95% of 132 per head.
    let hot = group("int4+retain(5%)");
    assert_eq!(hot.token_bytes, (8.0 * (0.05 * 512.0 + 0.95 * 132.0) - 1e-6_f64).ceil() as u64);
    assert_eq!(group("turboquant(skip=none)+rescale").token_bytes, group("turboquant(skip=none)").token_bytes);
    assert_eq!(group("kivi+retain(5%)").residual, group("kivi").residual);
    let merged = demand("minicache+retain(5%)", &dense(4)).groups.remove(1);
    assert!(merged.held_bytes > demand("minicache", &dense(4)).groups[1].held_bytes);
    // Layers with a window of their own, and heads that keep everything, have nothing to recover.
    let windows = demand("snapkv(budget=25%)+recall(64)", &model_of_windows());
    assert_eq!(windows.groups.iter().map(|group| group.lower.is_some()).collect::<Vec<_>>(), [true, false]);
    let heads = demand("duo+copies", &dense(4));
    assert_eq!(heads.groups.iter().map(|group| group.beside.is_some()).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn copies_that_save_nothing_are_refused() {
    let error = shape(&Stack::parse("snapkv(25%)+int4+copies(int8)").unwrap(), &dense(4)).unwrap_err();
    assert!(error.to_string().contains("`copies` take") && error.advice().unwrap().contains("fewer bits"), "{error}");
    let mla = model(&[(61, Attention::Mla)], 1, 576, 0);
    let error = shape(&Stack::parse("snapkv(25%)+copies").unwrap(), &mla).unwrap_err();
    assert!(error.to_string().contains("latent"), "{error}");
    assert!(shape(&Stack::parse("snapkv(25%)+copies(fp8)").unwrap(), &mla).is_ok());
}

/// What a step reads of Quest's pages where each query head picks its own depends on attention.
#[test]
fn the_union_of_pages_is_measured() {
    let stack = Stack::parse("quest(1024,heads=union)").unwrap();
    let error = shape(&stack, &dense(4)).unwrap_err();
    assert!(error.to_string().contains("`kv_vectors`"), "{error}");
    let measured = Measured { recording: "tiny".to_owned(), prompt_ratio: vec![0.5; 4], read_tokens: vec![1500.5; 4] };
    let found = shape(&stack.with_measured(measured), &dense(4)).unwrap();
    assert_eq!(found.groups.iter().map(|group| group.read_tokens).collect::<Vec<_>>(), [None, Some(1501)]);
    assert_eq!(found.groups[1].index_bytes, 8 * 512 / 16);
}

/// Stored bytes per token that POLICIES 6.2 works out for FP8 KV: 656 bytes of latent and 132 of index, where a layer has
/// one; a step reads all keys of the index and 2,048 latents.
#[test]
fn an_index_of_the_model_is_stored_and_limits_what_is_read() {
    let text = |name: &str| {
        let path = format!("{}/../presets/model/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    for (name, stored) in [("deepseek-v3.2", 48_068), ("glm-5.2", 53_940)] {
        let model = crate::model::parse(&text(name), name).unwrap();
        let shape = demand("fp8", &model);
        let sum: u64 = shape.groups.iter().map(|group| u64::from(group.layers) * group.stored_bytes()).sum();
        assert_eq!(sum, stored, "{name}");
        assert!(shape.groups.iter().all(|group| group.read_tokens == Some(2048) && group.token_bytes == 656));
    }
    // A selection on top of it: fewer tokens are stored, and never more are read than either chooses.
    let model = crate::model::parse(&text("deepseek-v3.2"), "m").unwrap();
    let group = &demand("snapkv(budget=1024)+fp8", &model).groups[0];
    assert_eq!((group.keep.tokens(8000, 8000), group.read_tokens), (1024, Some(2048)));
}

/// States and windows are the model's own: neither selections nor number formats change a state, and entries that stand
/// for several tokens have a window beside them.
#[test]
fn a_state_is_left_alone_and_a_window_stands_beside_entries() {
    let parse = |name: &str| {
        let path = format!("{}/../presets/model/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        crate::model::parse(&std::fs::read_to_string(path).unwrap(), name).unwrap()
    };
    let hybrid = parse("qwen3.5-397b-a17b");
    for policy in ["full", "fp8", "snapkv(budget=1024)+fp8"] {
        let linear = demand(policy, &hybrid).groups[0].clone();
        assert_eq!((linear.layers, linear.format.as_str(), linear.keep.tokens(100_000, 100_500)), (45, "bf16", 16));
        assert_eq!(45 * linear.bytes_of(16), 192_061_440);
    }
    let entries = demand("full", &parse("deepseek-v4-pro")).groups;
    let shown: Vec<_> = entries.iter().map(|group| (group.layers, group.token_bytes, group.keep.total)).collect();
    assert_eq!(shown, [(31, 8, None), (31, 1024, Some(128)), (30, 256, None), (30, 1024, Some(128))]);
}
