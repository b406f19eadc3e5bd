//! Requests that are in order by themselves and do not go on where the last stage's sequences stand: refused by name, before
//! anything of them is run, and whoever comes next finds nothing of it.

use engine::api::Strategy;
use engine::ids::{CheckpointId, PageId, StateSlot, TokenId};
use engine::limits::{Limits, PAGE_TOKENS};
use engine::stage::message::{Request, put_request, take_reply, take_request};
use engine::stage::wire::WireError;
use engine::stage::{Agreed, LastStage};
use engine::step::{Filters, MtpWork, NO_LOGPROBS, SlotOp, Source, Step, StepResult, TrunkWork};
use engine_tests::drive::{Cell, Subject, run_on};
use serde_json::Value;

use super::{Bodies, machine, staged, subjects};
use crate::forward::edit::SplitMix;

/// The one sequence of most of these tests, and one that was never reset.
const S: StateSlot = StateSlot(0);
const OTHER: StateSlot = StateSlot(1);

struct Talk {
    last: LastStage,
    agreed: Agreed,
}

fn cell() -> Cell {
    Cell { strategy: Strategy::MtpSuffix, window: 5, parallel: 2, chunk: 32, ..Cell::reference(0.8) }
}

impl Talk {
    fn new(subject: &Subject) -> Self {
        let limits = Limits { checkpoints: 2, ..cell().limits() };
        let options = engine::exec::ExecOptions::default();
        let last = engine::exec::CpuExecutor::new(subject.stage(1, 1).into(), limits.clone(), options);
        let agreed = Agreed::new(last.model(), &limits, last.border_width());
        Self { last: LastStage::new(last, agreed.clone()), agreed }
    }

    fn say(&mut self, step: &Step, answered: bool) -> Result<StepResult, WireError> {
        let rows: Vec<f32> =
            (0..step.trunk.token.len() * self.agreed.border_width).map(|i| (i % 13) as f32 / 13.0).collect();
        let (mut body, mut reply) = (Vec::new(), Vec::new());
        put_request(&mut body, step, answered, &rows);
        self.last.run(&body, &mut reply)?;
        Ok(take_reply(&reply, step, &self.agreed).expect("a reply").result)
    }

    /// A prompt of 20 tokens, all of it in the MTP cache, and a window of two drafts behind it: 23 positions, 21 folded.
    fn begin(&mut self) -> Result<StepResult, WireError> {
        self.last.forget_all();
        let mtp = self.last.executor().mtp_status().clone();
        let mtp = !matches!(mtp, engine::model::MtpStatus::Unavailable(_));
        self.say(&Step { ops: vec![SlotOp::Reset { state: S }], trunk: pass(S, 0, 20, 20), ..Step::default() }, true)?;
        let fill = if mtp { draft(S, 0, 20, 0) } else { MtpWork::default() };
        self.say(&Step { mtp: fill, trunk: pass(S, 20, 3, 1), ..Step::default() }, false)
    }
}

fn table(state: StateSlot, positions: u32) -> Vec<PageId> {
    let pages = Limits::pages_for(positions as usize) as u32;
    (0..pages).map(|page| PageId(state.0 * 20 + page)).collect()
}

/// `rows` rows from `position` on; ruled from the last committed row on where there are drafts.
pub fn pass(state: StateSlot, position: u32, rows: u32, committed: u32) -> TrunkWork {
    let page = table(state, position + rows);
    let mut out = TrunkWork {
        state: vec![state],
        position: vec![position],
        committed: vec![committed],
        row_start: vec![0, rows],
        page_start: vec![0, page.len() as u32],
        page,
        token: (0..rows).map(|row| TokenId(3 + (position + row) % 40)).collect(),
        source: vec![Source::Anchor; rows as usize],
        ..TrunkWork::default()
    };
    if committed < rows {
        let rules = &mut out.rules;
        rules.row = (committed - 1..rows).collect();
        let n = rules.row.len();
        rules.filter = vec![0; n];
        rules.draw = (0..n as u32).collect();
        rules.edit_start = vec![0; n + 1];
        rules.mask = vec![u32::MAX; n];
        rules.top_n = vec![NO_LOGPROBS; n];
        rules.filters = vec![Filters::GREEDY];
    }
    out
}

pub fn draft(state: StateSlot, position: u32, tokens: u32, depth: u32) -> MtpWork {
    let page = table(state, position + tokens + depth);
    MtpWork {
        state: vec![state],
        position: vec![position],
        depth: vec![depth],
        p_min: vec![0.0],
        token_start: vec![0, tokens],
        token: (0..tokens).map(|i| TokenId(3 + (position + i) % 40)).collect(),
        page_start: vec![0, page.len() as u32],
        page,
        ..MtpWork::default()
    }
}

/// Bits of a result but for its times.
fn bits(mut result: StepResult) -> StepResult {
    result.times = engine::step::Times::default();
    // Two values that are no number would differ.
    result.logprob.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0);
    result
}

#[test]
fn what_contradicts_what_was_said_before_is_refused_by_name() {
    let subject = Subject::built_in();
    let mut talk = Talk::new(&subject);
    let want = bits(talk.begin().expect("an honest beginning"));
    let ops = |ops: &[SlotOp]| Step { ops: ops.to_vec(), ..Step::default() };
    let trunk = |trunk: TrunkWork| Step { trunk, ..Step::default() };
    let mtp = |mtp: MtpWork| Step { mtp, ..Step::default() };
    let save = |n: u32| SlotOp::Save { state: S, checkpoint: CheckpointId(n) };
    let cut = SlotOp::Truncate { state: S, kv_len: 21 };
    let filled = |more: &[SlotOp]| Step { ops: [&[cut], more].concat(), mtp: draft(S, 20, 2, 0), ..Step::default() };
    let cases: Vec<(Vec<Step>, bool, &str)> = vec![
        (vec![trunk(pass(S, 22, 2, 1))], false, "rows from 22 on, and the sequence has 23 positions"),
        (vec![trunk(pass(S, 20, 3, 1))], false, "rows from 20 on, and the sequence has 23 positions"),
        (vec![trunk(pass(OTHER, 5, 2, 1))], false, "rows from 5 on, and the sequence has 0 positions"),
        (vec![ops(&[SlotOp::Truncate { state: S, kv_len: 24 }])], false, "truncated to 24 of 23 positions"),
        (vec![ops(&[SlotOp::Truncate { state: S, kv_len: 20 }])], false, "21 positions are folded into its state"),
        (vec![ops(&[SlotOp::Truncate { state: OTHER, kv_len: 1 }])], false, "truncated to 1 of 0 positions"),
        (
            vec![ops(&[SlotOp::Fold { state: S }, SlotOp::Truncate { state: S, kv_len: 22 }])],
            false,
            "23 positions are folded into its state",
        ),
        (vec![ops(&[SlotOp::Reset { state: S }, cut])], false, "truncated to 21 of 0 positions"),
        (vec![ops(&[save(0)])], false, "saved with 20 of 23 MTP rows"),
        (vec![ops(&[SlotOp::Restore { checkpoint: CheckpointId(7), state: S }])], false, "not there to be restored"),
        (vec![ops(&[SlotOp::Drop { checkpoint: CheckpointId(7) }])], false, "not there to be dropped"),
        (vec![filled(&[]), ops(&[save(1), save(1)])], false, "is taken"),
        (vec![filled(&[]), ops(&[save(1)]), ops(&[save(1)])], false, "is taken"),
        (vec![filled(&[]), ops(&[save(1), save(2), save(3)])], false, "2 of 2 checkpoints are there"),
        (
            vec![
                filled(&[]),
                ops(&[save(1), SlotOp::Drop { checkpoint: CheckpointId(1) }]),
                ops(&[SlotOp::Restore { checkpoint: CheckpointId(1), state: OTHER }]),
            ],
            false,
            "not there to be restored",
        ),
        (
            vec![
                filled(&[]),
                ops(&[
                    save(1),
                    SlotOp::Drop { checkpoint: CheckpointId(1) },
                    SlotOp::Restore { checkpoint: CheckpointId(1), state: OTHER },
                ]),
            ],
            false,
            "not there to be restored",
        ),
        (
            vec![filled(&[]), ops(&[SlotOp::Fork { from: S, to: OTHER }]), trunk(pass(OTHER, 23, 2, 1))],
            false,
            "rows from 23 on, and the sequence has 21 positions",
        ),
        (vec![mtp(draft(S, 19, 1, 0))], false, "MTP rows from 19 on, and the MTP cache has 20 positions"),
        (vec![mtp(draft(S, 20, 5, 1))], false, "MTP rows up to 25, and the trunk has 23 positions"),
        (vec![mtp(draft(OTHER, 0, 2, 0))], false, "MTP rows up to 2, and the trunk has 0 positions"),
        (vec![mtp(draft(S, 20, 2, 3))], true, "taken for answered"),
        (
            vec![trunk(pass(S, 23, 32, 32)), trunk(pass(S, 55, 32, 32))],
            false,
            "hidden rows that 87 positions have pushed out",
        ),
    ];
    for (steps, answered, reason) in cases {
        talk.begin().expect("an honest beginning");
        let (bad, good) = steps.split_last().expect("a step");
        for step in good {
            talk.say(step, false).unwrap_or_else(|error| panic!("before {reason:?}: {error}"));
        }
        let error = talk.say(bad, answered).expect_err(reason);
        assert!(matches!(&error, WireError::Bad { .. }) && error.to_string().contains(reason), "{reason:?}: {error}");
        let error = talk.say(&trunk(pass(S, 23, 2, 1)), false).expect_err("everything is forgotten");
        assert!(error.to_string().contains("the sequence has 0 positions"), "{error}");
        assert_eq!(bits(talk.begin().expect("an honest beginning")), want, "after {reason:?}");
    }
    // One that is dropped makes room for another.
    talk.begin().expect("an honest beginning");
    let drop = SlotOp::Drop { checkpoint: CheckpointId(1) };
    for step in [filled(&[]), ops(&[save(1), save(2), drop, save(3)])] {
        talk.say(&step, false).expect("two at a time");
    }
}

/// What a message may not say either, and a Ledger in the same process is told by this alone.
#[test]
fn a_step_is_held_against_the_capacities_whoever_brings_it() {
    let mut talk = Talk::new(&Subject::built_in());
    talk.begin().expect("an honest beginning");
    let refused = |step: Step, reason: &str| {
        let error = talk.last.executor().check(&step).expect_err(reason);
        assert!(error.contains(reason), "{error} does not say {reason}");
    };
    let trunk = |change: &dyn Fn(&mut TrunkWork)| {
        let mut trunk = pass(S, 23, 3, 1);
        change(&mut trunk);
        Step { trunk, ..Step::default() }
    };
    assert_eq!(talk.last.executor().check(&trunk(&|_| {})), Ok(()));
    let (rows, vocab) = (talk.agreed.limits.step_rows as u32, talk.agreed.vocab_rows as u32);
    refused(Step { trunk: pass(S, 23, rows + 1, rows + 1), ..Step::default() }, "rows in a step of at most");
    refused(trunk(&|t| t.token[2] = TokenId(vocab)), "outside the vocabulary");
    refused(trunk(&|t| t.committed[0] = 0), "0 of 3 rows committed");
    refused(trunk(&|t| t.committed[0] = 4), "4 of 3 rows committed");
    refused(Step { trunk: pass(S, 23, 7, 1), ..Step::default() }, "a window of 6 drafts, at most 5");
    refused(trunk(&|t| t.page_start[1] = 1), "1 pages for 26 positions");
    let twice = |trunk: &mut TrunkWork| {
        let again = trunk.clone();
        trunk.state.push(S);
        trunk.position.push(26);
        trunk.committed.push(1);
        trunk.token.extend(&again.token);
        trunk.row_start.push(6);
        trunk.page.extend(&again.page);
        trunk.page_start.push(trunk.page.len() as u32);
    };
    refused(trunk(&twice), "twice in one trunk pass");
    let mtp = |change: &dyn Fn(&mut MtpWork)| {
        let mut mtp = draft(S, 20, 2, 3);
        change(&mut mtp);
        Step { mtp, ..Step::default() }
    };
    assert_eq!(talk.last.executor().check(&mtp(&|_| {})), Ok(()));
    refused(mtp(&|m| (m.token_start[1], m.depth[0]) = (0, 2)), "a chain of 2 drafts starts at no token");
    refused(mtp(&|m| m.page_start[1] = 1), "1 pages for 24 positions");
    let twice = |m: &mut MtpWork| {
        m.state.push(S);
        m.position.push(22);
        m.depth.push(0);
        m.token_start.push(2);
        m.page_start.push(m.page.len() as u32);
    };
    refused(mtp(&twice), "twice in one MTP pass");
}

impl Talk {
    /// A chain of three from the anchor at 21, verified by the pass behind it: the next chain is foreseen, and returned,
    /// with the cut that goes before it.
    fn foresee(&mut self, state: StateSlot) -> (SlotOp, MtpWork) {
        let cut = SlotOp::Truncate { state, kv_len: 21 };
        let step = Step { ops: vec![cut], mtp: draft(state, 20, 2, 3), trunk: pass(state, 21, 3, 1) };
        let verdict = self.say(&step, false).expect("a tick");
        let accepted = verdict.accepted[0];
        let mut chain = draft(state, 22, accepted + 1, 3);
        chain.token = step.trunk.token[1..1 + accepted as usize].to_vec();
        chain.token.push(verdict.next[0]);
        chain.page.clone_from(&step.trunk.page);
        chain.page_start = vec![0, chain.page.len() as u32];
        (SlotOp::Truncate { state, kv_len: 22 + accepted }, chain)
    }
}

/// What was drafted ahead is an answer to the very work that it was drafted for, behind operations that leave it true, and
/// to no other.
#[test]
fn drafts_made_ahead_answer_their_own_work_alone() {
    let mut talk = Talk::new(&Subject::built_in());
    type Change = fn(&mut Vec<SlotOp>, &mut MtpWork);
    let cases: [(&str, bool, Change); 10] = [
        ("nothing", true, |_, _| {}),
        ("fewer", true, |_, chain| chain.depth[0] = 1),
        ("a page that is copied away", true, |ops, _| ops.push(SlotOp::CopyPage { from: PageId(0), to: PageId(30) })),
        ("another sequence that is reset", true, |ops, _| ops.push(SlotOp::Reset { state: OTHER })),
        ("another token", false, |_, chain| chain.token.iter_mut().for_each(|t| t.0 ^= 1)),
        ("another least probability", false, |_, chain| chain.p_min[0] = 0.25),
        ("more", false, |_, chain| chain.depth[0] = 4),
        ("another page", false, |_, chain| chain.page[0] = PageId(31)),
        ("a page that is overwritten", false, |ops, _| ops.push(SlotOp::CopyPage { from: PageId(30), to: PageId(0) })),
        ("a sequence that is another's", false, |ops, _| {
            ops.splice(0..0, [SlotOp::Fork { from: OTHER, to: S }]);
        }),
    ];
    for (what, answered, change) in cases {
        talk.begin().expect("an honest beginning");
        talk.say(&Step { ops: vec![SlotOp::Fork { from: S, to: OTHER }], ..Step::default() }, false).expect("a fork");
        // Where both stand alike, nothing but what was foreseen tells them apart.
        talk.foresee(OTHER);
        let (cut, mut chain) = talk.foresee(S);
        let mut ops = vec![cut];
        change(&mut ops, &mut chain);
        let wanted = chain.depth[0] as usize;
        let asked = talk.say(&Step { ops, mtp: chain, ..Step::default() }, true);
        match answered {
            true => assert_eq!(asked.unwrap_or_else(|e| panic!("{what}: {e}")).draft.len(), wanted, "{what}"),
            false => assert!(asked.expect_err(what).to_string().contains("taken for answered"), "{what}"),
        }
    }
}

/// A cut to fewer rows than was foreseen, and others in their place: the hidden rows are no longer those that were drafted
/// from, though the tokens are.
#[test]
fn drafts_made_ahead_end_with_the_rows_that_they_stand_on() {
    let mut talk = Talk::new(&Subject::built_in());
    talk.begin().expect("an honest beginning");
    let cut = SlotOp::Truncate { state: S, kv_len: 21 };
    let mut step = Step { ops: vec![cut], mtp: draft(S, 20, 2, 3), trunk: pass(S, 21, 3, 1) };
    // What it will choose behind the anchor, so that a draft is accepted.
    let verdict = talk.say(&step, false).expect("a tick");
    if verdict.accepted == [0] {
        step.trunk.token[1] = verdict.next[0];
    }
    for other in [false, true] {
        talk.begin().expect("an honest beginning");
        let verdict = talk.say(&step, false).expect("a tick");
        let accepted = verdict.accepted[0];
        assert!(accepted > 0);
        let mut chain = draft(S, 22, accepted + 1, 3);
        chain.token = [&step.trunk.token[1..1 + accepted as usize], &verdict.next[..1]].concat();
        chain.page.clone_from(&step.trunk.page);
        chain.page_start = vec![0, chain.page.len() as u32];
        if other {
            let ops = vec![SlotOp::Truncate { state: S, kv_len: 22 }];
            let trunk = pass(S, 22, accepted, accepted);
            talk.say(&Step { ops, trunk, ..Step::default() }, false).expect("another row in its place");
        }
        let ops = vec![SlotOp::Truncate { state: S, kv_len: 22 + accepted }];
        let asked = talk.say(&Step { ops, mtp: chain, ..Step::default() }, true);
        match other {
            false => assert_eq!(asked.expect("it was foreseen").draft.len(), 3),
            true => assert!(asked.expect_err("it was not").to_string().contains("taken for answered")),
        }
    }
}

/// Whatever begins a sequence anew leaves no chain behind that a pass could go on with.
#[test]
fn a_chain_ends_with_its_sequence() {
    let mut talk = Talk::new(&Subject::built_in());
    let (empty, save) = (SlotOp::Reset { state: S }, SlotOp::Save { state: S, checkpoint: CheckpointId(0) });
    for anew in [
        SlotOp::Reset { state: OTHER },
        SlotOp::Fork { from: S, to: OTHER },
        SlotOp::Restore { checkpoint: CheckpointId(0), state: OTHER },
    ] {
        talk.last.forget_all();
        let ops = vec![empty, SlotOp::Reset { state: OTHER }, save];
        talk.say(&Step { ops, mtp: draft(OTHER, 0, 1, 1), ..Step::default() }, false).expect("a chain");
        let step = Step { ops: vec![anew], trunk: pass(OTHER, 0, 3, 1), ..Step::default() };
        talk.say(&step, false).unwrap_or_else(|error| panic!("{anew:?}: {error}"));
    }
}

/// MTP work for a model whose last stage drafts nothing.
#[test]
fn a_last_stage_without_a_block_refuses_its_work() {
    let Some(subject) = subjects().into_iter().find(|s| !s.strategies().iter().any(|s| s.uses_mtp())) else { return };
    let mut talk = Talk::new(&subject);
    talk.begin().expect("an honest beginning");
    let error = talk.say(&Step { mtp: draft(S, 0, 2, 1), ..Step::default() }, false).expect_err("there is no block");
    assert!(error.to_string().contains("there is no MTP block"), "{error}");
}

/// A few requests of a run, in their order.
fn recorded(subject: &mut Subject) -> (Bodies, Talk) {
    subject.max_tokens = 6;
    subject.prompts.truncate(3);
    let cell = Cell { strategy: *subject.strategies().last().expect("a strategy"), ..cell() };
    let (executor, wire) = staged(subject, &cell, 1);
    wire.0.lock().record = Some(Vec::new());
    run_on(subject, &cell, Box::new(executor));
    let bodies = wire.0.lock().record.take().expect("it was recorded");
    let last = machine(subject, &cell, 1, 1);
    let agreed = Agreed::new(last.model(), &cell.limits(), last.border_width());
    (bodies, Talk { last: LastStage::new(last, agreed.clone()), agreed })
}

/// A number below `n`.
fn below(seed: &mut SplitMix, n: usize) -> usize {
    (seed.bits() % n as u64) as usize
}

/// Paths of all numbers and lists of a value.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            out.push(at.to_owned());
            items.iter().enumerate().for_each(|(i, item)| places(item, &format!("{at}/{i}"), out));
        }
        Value::Object(fields) => fields.iter().for_each(|(name, item)| places(item, &format!("{at}/{name}"), out)),
        Value::Number(_) => out.push(at.to_owned()),
        _ => {}
    }
}

/// The step with one of its fields changed; `None` where that is none of its kind.
fn changed(step: &Value, place: &str, choice: usize) -> Option<Step> {
    let mut step = step.clone();
    let field = step.pointer_mut(place)?;
    match field {
        Value::Array(items) => match choice % 4 {
            0 => drop(items.pop()?),
            1 => items.push(items.last()?.clone()),
            2 => items.reverse(),
            _ => items.clear(),
        },
        Value::Number(n) if n.is_u64() => {
            let n = n.as_u64()?;
            let others = [
                n + 1,
                n.wrapping_sub(1) & 0xffff_ffff,
                0,
                1,
                n ^ 1,
                n + PAGE_TOKENS as u64,
                1 << 20,
                u64::from(u32::MAX),
            ];
            *field = others[choice % others.len()].into();
        }
        Value::Number(_) => *field = [0.0, -1.0, 1e30, 0.5][choice % 4].into(),
        _ => return None,
    }
    serde_json::from_value(step).ok()
}

#[test]
fn no_change_of_a_conversation_brings_the_last_stage_down() {
    let mut seed = SplitMix(1);
    for mut subject in subjects() {
        let name = subject.name;
        let (bodies, mut talk) = recorded(&mut subject);
        let replay = |talk: &mut Talk, upto: usize| {
            talk.last.forget_all();
            for (request, reply) in &bodies[..upto] {
                let mut out = Vec::new();
                talk.last.run(request, &mut out).unwrap_or_else(|error| panic!("{name}: an honest request: {error}"));
                let step = take_request(request, &talk.agreed).expect("a request").step;
                let read = |reply: &[u8]| {
                    let reply = take_reply(reply, &step, &talk.agreed).expect("a reply");
                    (format!("{:?}", bits(reply.result)), reply.ahead.token)
                };
                assert_eq!(read(&out), read(reply), "{name}");
            }
        };
        let (mut refused, mut taken) = (0, Vec::new());
        talk.last.forget_all();
        for (i, (request, _)) in bodies.iter().enumerate() {
            let Request { step, answered, rows } = take_request(request, &talk.agreed).expect("a request");
            let value = serde_json::to_value(&step).expect("columns");
            let mut all = Vec::new();
            places(&value, "", &mut all);
            for _ in 0..60 {
                let place = &all[below(&mut seed, all.len())];
                let Some(other) = changed(&value, place, below(&mut seed, 64)) else { continue };
                let mut body = Vec::new();
                let answered = answered ^ (below(&mut seed, 16) == 0);
                put_request(&mut body, &other, answered, &rows);
                match talk.last.accept(&body) {
                    Err(_) => refused += 1,
                    Ok(_) => taken.push((i, place.clone(), body)),
                }
            }
            // Said once more, or when its time is not yet there.
            for j in [i.saturating_sub(1), (i + 2).min(bodies.len() - 1)] {
                if talk.last.accept(&bodies[j].0).is_ok() {
                    taken.push((i, format!("request {j} instead"), bodies[j].0.clone()));
                }
            }
            talk.last.run(request, &mut Vec::new()).expect("an honest request");
        }
        assert!(refused > 100 && taken.len() > 20, "{name}: {refused} refused, {} taken", taken.len());
        // What is taken is run, and what is said after it is refused or run.
        for _ in 0..24 {
            let (i, place, body) = &taken[below(&mut seed, taken.len())];
            replay(&mut talk, *i);
            talk.last.run(body, &mut Vec::new()).unwrap_or_else(|error| panic!("{name}: {place} of {i}: {error}"));
            for (request, _) in &bodies[i + 1..] {
                if talk.last.run(request, &mut Vec::new()).is_err() {
                    break;
                }
            }
        }
        replay(&mut talk, bodies.len());
    }
}

/// A chain that a cut has overtaken is not gone on with: the pass behind it starts where the chain would have.
#[test]
fn a_chain_whose_end_was_cut_off_foresees_nothing() {
    let mut talk = Talk::new(&Subject::built_in());
    talk.begin().expect("an honest beginning");
    // The MTP cache reaches 22, and only 21 positions are left then.
    talk.say(&Step { mtp: draft(S, 20, 2, 1), ..Step::default() }, false).expect("a chain");
    let ops = vec![SlotOp::Truncate { state: S, kv_len: 21 }];
    talk.say(&Step { ops, trunk: pass(S, 21, 3, 1), ..Step::default() }, false).expect("a pass");
    talk.say(&Step { mtp: draft(S, 21, 2, 2), ..Step::default() }, false).expect("it goes on");
}

/// Steps of few positions and two sequences in any order: what is taken is run.
#[test]
fn no_order_of_steps_that_are_taken_breaks_a_last_stage() {
    let mut talk = Talk::new(&Subject::built_in());
    let seed = &mut SplitMix(11);
    let mut ran = 0;
    for _ in 0..12_000 {
        let state = StateSlot(below(seed, 2) as u32);
        let op = |seed: &mut SplitMix| match below(seed, 12) {
            0 => SlotOp::Reset { state },
            1 => SlotOp::Fold { state },
            2 => SlotOp::Fork { from: StateSlot(state.0 ^ 1), to: state },
            3 => SlotOp::Save { state, checkpoint: CheckpointId(0) },
            4 => SlotOp::Restore { checkpoint: CheckpointId(0), state },
            5 => SlotOp::Drop { checkpoint: CheckpointId(0) },
            _ => SlotOp::Truncate { state, kv_len: below(seed, 5) as u32 },
        };
        let mut step = Step::default();
        for _ in 0..below(seed, 3).saturating_sub(1) {
            step.ops.push(op(seed));
        }
        let position = below(seed, 5) as u32;
        if below(seed, 2) == 0 {
            step.mtp = draft(state, position, 1 + below(seed, 3) as u32, below(seed, 3) as u32);
        }
        if below(seed, 2) == 0 {
            let rows = 1 + below(seed, 4) as u32;
            step.trunk = pass(state, below(seed, 5) as u32, rows, 1 + below(seed, rows as usize) as u32);
        }
        let rows = vec![0.5; step.trunk.token.len() * talk.agreed.border_width];
        let mut body = Vec::new();
        put_request(&mut body, &step, false, &rows);
        if talk.last.accept(&body).is_ok() {
            talk.last.run(&body, &mut Vec::new()).expect("it was taken");
            ran += 1;
        }
    }
    assert!(ran > 500, "{ran} were taken");
}
