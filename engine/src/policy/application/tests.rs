use proptest::prelude::*;

use super::*;
use crate::session::reuse::found_tokens;
use crate::test_kit::{Told, told_sessions};

fn run(policy: &str, (trace, workload): &(Trace, Workload)) -> Edited {
    apply(&Stack::parse(policy).unwrap(), trace, workload).unwrap()
}

fn actions(edited: &Edited) -> Vec<(u32, &'static str)> {
    edited.effects.iter().filter_map(|effect| Some((effect.turn, effect.action?))).collect()
}

/// Kind, form and tokens of a turn's pieces.
fn shown(edited: &Edited, at: usize) -> Vec<(&'static str, Form, u32)> {
    let trace = &edited.trace;
    trace.pieces_of(at).iter().map(|piece| (trace.content(piece).kind.name(), piece.form, piece.tokens)).collect()
}

/// Tools and system, then in each turn a user's message, a call, a result of so many tokens and an answer.
fn agent(results: &[u32]) -> Vec<Vec<Told>> {
    let mut context: Vec<Told> = vec![(0, Kind::Tools, 3000), (1, Kind::System, 1000)];
    let mut turns = Vec::new();
    for (turn, &result) in (0..).zip(results) {
        let free = 2 + 4 * turn;
        context.push((free, Kind::User, 100));
        context.push((free + 1, Kind::Thinking, 300));
        context.push((free + 2, Kind::ToolResult, result));
        turns.push(context.clone());
        context.push((free + 3, Kind::Assistant, 200));
    }
    turns
}

#[test]
fn old_results_become_notes_above_the_trigger() {
    let session = told_sessions(&[&agent(&[20_000, 30_000, 40_000, 9, 20_000, 1000])], 100, 16);
    let edited = run("clear_tool_results(trigger=100k,keep=2)", &session);
    assert_eq!(actions(&edited), [(4, "cleared tool results")]);
    let results: Vec<_> = shown(&edited, 5).into_iter().filter(|(kind, ..)| *kind == "tool_result").collect();
    // The short one is no longer than a note.
    let (note, whole) = (Form::Placeholder, Form::Verbatim);
    assert_eq!(
        results.iter().map(|(_, form, tokens)| (*form, *tokens)).collect::<Vec<_>>(),
        [(note, 10), (note, 10), (note, 10), (whole, 9), (whole, 20_000), (whole, 1000)]
    );
    let effect = edited.effects[0];
    assert_eq!((effect.removed_tokens, effect.added_tokens, effect.broke_at_tokens), (90_000, 30, 4400));
    // What turn 3 held and turn 4 still holds, but for what stands before the first note.
    assert_eq!(u64::from(effect.lost_prefix_tokens), u64::from(session.0.prompt(3)) - 90_000 - 4400);
    // The next turn finds all of it but the partial block.
    let found = found_tokens(&edited.trace, &edited.workload, None);
    assert_eq!(found[4], 4400 / 16 * 16);
    assert_eq!(found[5], edited.workload.prompt[4] / 16 * 16);
    assert!(actions(&run("clear_tool_results(trigger=100k,keep=2,least=95k)", &session)).is_empty());
}

#[test]
fn a_summary_takes_the_place_of_the_conversation() {
    let session = told_sessions(&[&agent(&[4000, 30_000, 20_000, 3000, 1000])], 100, 16);
    let edited = run("compact(at=50k,summary=6k,file=5k)", &session);
    // 4,000 + 3 x 400 + 54,000 + 2 x 200 tokens in turn 2.
    assert_eq!(actions(&edited), [(2, "compacted")]);
    let extra = edited.trace.turns.iter().position(|turn| turn.role == Role::Summary).unwrap();
    assert_eq!(extra, 2);
    let own = edited.trace.turns[extra];
    assert_eq!((own.recorded, own.kept_tokens, own.found_tokens, own.broke_at_tokens), (None, 0, 0, None));
    let (asked, answer) = (edited.workload.prompt[2], edited.workload.output[2]);
    assert_eq!((asked, answer), (4000 + 2 * 400 + 34_000 + 200 + 500, 6000));
    // The request for the summary finds all that turn 1 was computed for.
    let found = found_tokens(&edited.trace, &edited.workload, None);
    assert_eq!(found[2], edited.workload.prompt[1] / 16 * 16);
    let whole = Form::Verbatim;
    assert_eq!(
        shown(&edited, 3),
        [
            ("tools", whole, 3000),
            ("system", whole, 1000),
            ("summary", whole, 6000),
            ("tool_result", whole, 4000),
            // The answer to the turn before is new in this one.
            ("assistant", whole, 200),
            ("user", whole, 100),
            ("thinking", whole, 300),
            ("tool_result", whole, 20_000)
        ]
    );
    assert_eq!(found[3], 4000);
    // Later turns hold the same summary and find it.
    assert_eq!(found[4], edited.workload.prompt[3] / 16 * 16);
    let lost = |turn: u32| edited.effects.iter().find(|effect| effect.turn == turn).unwrap().lost_prefix_tokens;
    // Only the result that came back was in the prefix and has to be computed again.
    assert_eq!((lost(2), lost(3)), (4000, 0));
    assert_eq!(edited.effects.iter().map(|effect| effect.extra_requests).sum::<u32>(), 1);
}

#[test]
fn thinking_goes_but_for_the_newest() {
    let session = told_sessions(&[&agent(&[100; 4])], 100, 16);
    let edited = run("clear_thinking(keep=1)", &session);
    let thinking = |at: usize| shown(&edited, at).iter().filter(|(kind, ..)| *kind == "thinking").count();
    assert_eq!((0..4).map(thinking).collect::<Vec<_>>(), [1, 1, 1, 1]);
    assert_eq!(actions(&edited).len(), 3);
    let found = found_tokens(&edited.trace, &edited.workload, None);
    // Turn 2 loses the thinking of turn 1, which stands behind two messages, one result and an answer.
    assert_eq!(found[2], (4000 + 100 + 100 + 200 + 100) / 16 * 16);
}

#[test]
fn a_pause_clears_what_is_cold_anyway() {
    let mut session = told_sessions(&[&agent(&[5000; 6])], 100, 16);
    session.0.turns[4].idle_ns = Some(3_600_000_000_001);
    let edited = run("microcompact(keep=1)", &session);
    assert_eq!(actions(&edited), [(4, "cleared tool results after a pause")]);
    assert_eq!(edited.effects[0].removed_tokens, 4 * 5000);
    assert!(run("microcompact(idle=2h)", &session).effects.is_empty());
}

#[test]
fn a_stretch_collapses_and_what_stands_before_it_stays() {
    let session = told_sessions(&[&agent(&[10_000; 16])], 100, 16);
    let edited = run("collapse(at=100k,stretch=30k,record=1k,keep=3)", &session);
    let acted: Vec<u32> = actions(&edited).iter().map(|(turn, _)| *turn).collect();
    assert_eq!(acted, [9, 11, 14]);
    let first = edited.effects[0];
    assert_eq!(first.broke_at_tokens, 4000);
    // The second stretch stands behind the first record, which stays cached.
    let second = edited.trace.turns.iter().position(|turn| turn.turn == 11 && turn.recorded.is_some()).unwrap();
    assert_eq!(found_tokens(&edited.trace, &edited.workload, None)[second], 5000 / 16 * 16);
    assert!(edited.workload.prompt.iter().all(|prompt| *prompt <= 112_000));
}

#[test]
fn transcripts_leave_lines_and_come_back_when_asked_for() {
    let session = told_sessions(&[&agent(&[10_000; 14])], 100, 16);
    let edited = run("transcripts(at=80k,keep=25k,recall=50%,record=2k)", &session);
    let moved: Vec<_> = actions(&edited);
    assert_eq!(moved[0], (7, "moved turns into transcripts"));
    assert!(moved.iter().any(|(turn, action)| *turn == 9 && *action == "recalled a record"));
    let back = edited.trace.turns.iter().position(|turn| turn.turn == 9 && turn.recorded.is_some()).unwrap();
    assert_eq!(edited.trace.turns[back - 1].role, Role::Recall);
    // It stays in later turns.
    let holds = |at: usize| shown(&edited, at).iter().filter(|(.., tokens)| *tokens == 2000).count();
    assert!(holds(back) + 1 >= holds(back + 1));
    assert!(
        run("transcripts(at=80k,keep=25k,recall=0%)", &session)
            .trace
            .turns
            .iter()
            .all(|turn| turn.role == Role::Recorded)
    );
}

#[test]
fn of_a_memory_the_index_is_loaded_and_of_passages_the_first() {
    let turns = vec![
        vec![(0, Kind::System, 100), (1, Kind::MemoryIndex, 9000), (2, Kind::Topic, 700), (3, Kind::User, 10)],
        vec![
            (0, Kind::System, 100),
            (1, Kind::MemoryIndex, 9000),
            (2, Kind::Topic, 700),
            (3, Kind::User, 10),
            (4, Kind::Topic, 800),
            (5, Kind::Passage, 50),
            (6, Kind::Passage, 60),
            (7, Kind::Passage, 70),
        ],
    ];
    let session = told_sessions(&[&turns], 100, 16);
    let edited = run("index_memory", &session);
    let whole = Form::Verbatim;
    // 200 lines of 100 bytes are fewer than 25 KB: 5,000 tokens of 4 bytes.
    assert_eq!(shown(&edited, 0), [("system", whole, 100), ("memory_index", whole, 5000), ("user", whole, 10)]);
    assert_eq!(shown(&edited, 1)[3], ("topic", whole, 800));
    assert_eq!(run("index_memory(line=200)", &session).workload.prompt[0], 100 + 6250 + 10);
    let edited = run("retrieve(top=2)", &session);
    assert_eq!(edited.workload.prompt[1], session.1.prompt[1] - 70);
}

#[test]
fn consolidation_is_paid_once_and_shortens_later_sessions() {
    let turn =
        || vec![vec![(0, Kind::System, 100), (1, Kind::MemoryIndex, 9000), (2, Kind::Topic, 700), (3, Kind::User, 10)]];
    let turns: Vec<_> = (0..4).map(|_| turn()).collect();
    let sessions: Vec<&[Vec<Told>]> = turns.iter().map(Vec::as_slice).collect();
    let edited = run("consolidate(sessions=2,hours=0,index=4k)", &told_sessions(&sessions, 100, 16));
    let offline: Vec<_> = edited.trace.turns.iter().filter(|turn| turn.role == Role::Consolidation).collect();
    assert_eq!(offline.len(), 1);
    assert_eq!(edited.workload.prompt, [9810, 9810, 2 * 9910, 100 + 4000 + 350 + 10, 100 + 4000 + 350 + 10]);
    // Both load the same index, behind the same system prompt of another session: only whole blocks of one text are found.
    assert!(run("consolidate(sessions=2,hours=24)", &told_sessions(&sessions, 100, 16)).effects.is_empty());
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |text: &str| Stack::parse(text).unwrap_err().to_string();
    assert!(refused("snapkv(25%)+compact").contains("`compact` stands behind `snapkv`"));
    assert!(refused("compact+compact(at=50k)").contains("`compact` is named twice"));
    assert!(refused("microcompact(idle=60)").contains("expected a time such as `60min`"));
    assert!(refused("index_memory(bytes=25kb)").contains("expected bytes such as `25KB`"));
    assert_eq!(
        Stack::parse("compact(at=167k,summary=8k)+snapkv(25%)+turboquant").unwrap().name(),
        "compact+snapkv(budget=25%)+turboquant"
    );
    assert_eq!(
        Stack::parse("index_memory(lines=200,bytes=25KB)+microcompact(idle=90min)").unwrap().name(),
        "index_memory+microcompact(idle=90min)"
    );
}

/// A summary, record or rest that is no shorter than what it stands for would be made again in every turn, or never.
#[test]
fn lengths_that_shorten_nothing_are_refused_with_the_way_out() {
    for (text, said, advice) in [
        ("compact(at=50k,summary=60k)", "a summary of 60000 tokens is not shorter than the 50000", "less than `at`"),
        ("compact(at=8k)", "a summary of 8000 tokens is not shorter than the 8000", "less than `at`"),
        ("collapse(record=40k)", "a record of 40000 tokens is not shorter than the stretch of 40000", "than `stretch`"),
        ("collapse(at=30k)", "a prompt just above 30000 tokens holds no stretch of 40000", "at most `at`"),
        ("transcripts(at=40k)", "of a prompt just above 40000 tokens the newest 40000 stay", "less than `at`"),
    ] {
        let error = Stack::parse(text).unwrap_err();
        assert!(error.to_string().contains(said), "{text}: {error}");
        assert!(error.advice().is_some_and(|found| found.contains(advice)), "{text}: {:?}", error.advice());
    }
    for text in ["compact(at=50k,summary=49999)", "collapse(at=40k,record=39999)", "transcripts(at=40001)"] {
        assert!(Stack::parse(text).is_ok(), "{text}");
    }
}

/// Turns that keep a share of the one before and add pieces of any kind.
fn drawn() -> impl Strategy<Value = Vec<Vec<(u8, u32)>>> {
    proptest::collection::vec(proptest::collection::vec((0_u8..13, 1_u32..4000), 1..6), 1..12)
}

fn session_of(drawn: &[Vec<(u8, u32)>]) -> (Trace, Workload) {
    let mut context: Vec<Told> = vec![(0, Kind::Tools, 900), (1, Kind::System, 333)];
    let mut turns = Vec::new();
    for (at, new) in drawn.iter().enumerate() {
        for &(kind, tokens) in new {
            context.push((context.len() as u32 + 100 * at as u32, Kind::ALL[usize::from(kind)].1, tokens));
        }
        turns.push(context.clone());
        if at % 4 == 3 {
            let kept = 2 + (context.len() - 2) / 2;
            context.truncate(kept);
        }
    }
    told_sessions(&[&turns], 50, 16)
}

const IDLE: [&str; 9] = [
    "index_memory(lines=1M,line=1k,bytes=1000MB)",
    "retrieve(top=1k)",
    "clear_tool_results(trigger=4000M)",
    "clear_thinking(keep=1k)",
    "compact(at=4000M)",
    "microcompact(idle=2h)",
    "collapse(at=4000M)",
    "transcripts(at=4000M)",
    "consolidate",
];

const BUSY: [&str; 8] = [
    "index_memory(lines=3)",
    "retrieve(top=1)",
    "clear_tool_results(trigger=5k,keep=1)",
    "clear_thinking(keep=0)",
    "compact(at=9k,summary=1k)",
    "microcompact(idle=1s)",
    "collapse(at=9k,stretch=3k,record=200,keep=1)",
    "transcripts(at=9k,keep=2k,recall=50%)",
];

proptest! {
    #[test]
    fn a_stage_that_never_acts_changes_nothing(drawn in drawn(), stage in 0_usize..9) {
        let drawn: Vec<Vec<(u8, u32)>> = match IDLE[stage] {
            // A topic of the first turn is always left out.
            "index_memory(lines=1M,line=1k,bytes=1000MB)" => drawn.into_iter().map(|turn| turn.into_iter().filter(|(kind, _)| *kind != 3).chain([(4, 9)]).collect()).collect(),
            _ => drawn,
        };
        let session = session_of(&drawn);
        let edited = run(IDLE[stage], &session);
        prop_assert_eq!(&edited.trace, &session.0);
        prop_assert_eq!(&edited.workload, &session.1);
        prop_assert!(edited.effects.is_empty());
    }

    #[test]
    fn everything_that_a_stage_adds_is_told(drawn in drawn(), stage in 0_usize..8) {
        let session = session_of(&drawn);
        let edited = run(BUSY[stage], &session);
        let mut told: HashMap<u64, (i64, u32)> = HashMap::new();
        for effect in &edited.effects {
            let entry = told.entry(effect.request_id).or_default();
            entry.0 += i64::from(effect.added_tokens) - i64::from(effect.removed_tokens);
            entry.1 += effect.extra_requests;
        }
        let mut added = 0;
        for (at, turn) in edited.trace.turns.iter().enumerate() {
            let Some(recorded) = turn.recorded else { added += 1; continue };
            let change = i64::from(edited.trace.prompt(at)) - i64::from(session.0.prompt(recorded as usize));
            let found = told.get(&turn.request_id).copied().unwrap_or_default();
            prop_assert_eq!(found.0, change);
            prop_assert_eq!(edited.workload.prompt[at], edited.trace.prompt(at));
            prop_assert_eq!(edited.workload.units_of(at).len() as u32, edited.trace.prompt(at) / 16);
            // What was put in is told even where as much was taken out.
            let before = session.0.pieces_of(recorded as usize);
            let was = |piece: &&Piece| before.iter().any(|old| (old.content, old.start, old.form) == (piece.content, piece.start, piece.form));
            let new: u32 = edited.trace.pieces_of(at).iter().filter(|piece| !was(piece)).map(|piece| piece.tokens).sum();
            let own = edited.effects.iter().filter(|effect| effect.request_id == turn.request_id);
            prop_assert_eq!(own.map(|effect| effect.added_tokens).sum::<u32>(), new);
        }
        prop_assert_eq!(added, told.values().map(|told| told.1).sum::<u32>());
    }

    #[test]
    fn blocks_of_changed_prompts_are_alike_where_the_prompts_are(drawn in drawn(), stage in 0_usize..8) {
        let edited = run(BUSY[stage], &session_of(&drawn));
        for one in 0..edited.trace.turns.len() {
            for other in 0..one {
                let same = edited.workload.units_of(one).iter().zip(edited.workload.units_of(other)).take_while(|(a, b)| a == b).count() as u32;
                let common = common(edited.trace.pieces_of(one), edited.trace.pieces_of(other));
                prop_assert_eq!(same, common / 16, "{} and {}", one, other);
            }
        }
    }

    #[test]
    fn stages_of_different_kinds_commute(drawn in drawn(), pair in 0_usize..6) {
        let (one, other) = [(0, 1), (0, 3), (1, 3), (0, 5), (1, 5), (3, 5)][pair];
        let session = session_of(&drawn);
        let ab = run(&format!("{}+{}", BUSY[one], BUSY[other]), &session);
        let ba = run(&format!("{}+{}", BUSY[other], BUSY[one]), &session);
        prop_assert_eq!(&ab.workload, &ba.workload);
        prop_assert_eq!(&ab.trace.pieces, &ba.trace.pieces);
    }
}
