//! The prefix cache over models of every family: an answer behind a hit is bit for bit that of a cold run, and so is
//! what its windows were made of.

use std::sync::Arc;

use engine::api::{Miss, Report, Sampling, Strategy, Submission};
use engine::exec::{CpuExecutor, ExecOptions};
use engine::ids::{Ticket, TokenId};
use engine::limits::{CHECKPOINT_TAIL, Limits};
use engine::step::Executor;
use engine_bin::menu::BUILT_IN;
use engine_tests::drive::{Cell, Subject};
use engine_tests::toy::{Rig, submission};

use crate::stages;

const CONTEXT: usize = 640;

fn limits() -> Limits {
    Limits { prefix_cache: true, checkpoints: 16, ..Limits::new(2, CONTEXT) }
}

fn rig(subject: &Subject, limits: &Limits) -> Rig {
    let model = Arc::clone(&subject.opened.model);
    of_executor(subject, limits, Box::new(CpuExecutor::new(model, limits.clone(), ExecOptions::default())))
}

fn of_executor(subject: &Subject, limits: &Limits, executor: Box<dyn Executor>) -> Rig {
    Rig::of_executor(limits, executor, Arc::clone(&subject.opened.pieces))
}

fn ask(ticket: u64, prompt: &[TokenId], strategy: Strategy, temperature: f32) -> Submission {
    let ids: Vec<u32> = prompt.iter().map(|t| t.0).collect();
    let speculation = Cell { strategy, window: 7, ..Cell::reference(0.0) }.speculation();
    let sampling = Sampling { temperature, top_k: 40, seed: 11, ..Sampling::greedy() };
    let mut s = Submission { sampling, ..submission(ticket, &ids, 24, speculation) };
    s.speculation.mtp_tokens = BUILT_IN.mtp_tokens;
    // Answers have a length of their own, so that what follows stands at any place of a page.
    s.stop.ignore_eos = true;
    s
}

fn run(rig: &mut Rig, s: &Submission) -> Report {
    rig.submit(s);
    rig.settle();
    rig.of(s.ticket.0).report.clone().expect("it ended")
}

/// A conversation that grows by what the model said and by what somebody says then, told `say` turn by turn.
fn talk(subject: &Subject, mut say: impl FnMut(u64, &[TokenId]) -> Vec<TokenId>) {
    let words = subject.prompts.iter().max_by_key(|p| p.len()).expect("a prompt");
    let mut prompt = words[..150.min(words.len())].to_vec();
    for turn in 0..4 {
        let answer = say(turn, &prompt);
        prompt.extend(answer);
        prompt.extend(words.iter().cycle().skip(turn as usize * 7).take(33 + turn as usize));
    }
}

#[test]
fn an_answer_behind_a_hit_is_that_of_a_cold_run() {
    for subject in stages::subjects() {
        for (strategy, temperature) in subject.strategies().into_iter().flat_map(|s| [(s, 0.0), (s, 0.8)]) {
            let mut warm = rig(&subject, &limits());
            let stateful = warm.world.ledger.prefix.is_stateful();
            let mut before = 0;
            talk(&subject, |turn, prompt| {
                let s = ask(turn, prompt, strategy, temperature);
                let report = run(&mut warm, &s);
                let mut cold = rig(&subject, &Limits { prefix_cache: false, ..limits() });
                let cold_report = run(&mut cold, &s);
                let (got, want) = (&warm.of(turn).outcome, &cold.of(turn).outcome);
                let name = format!("{}, {strategy:?} at {temperature}, turn {turn}", subject.name);
                assert_eq!(got, want, "{name}");
                assert_eq!((report.total, report.steps), (cold_report.total, cold_report.steps), "{name}");
                assert_eq!(cold_report.cache_miss, Some(Miss::Disabled));
                let least = if turn == 0 { 0 } else { before - if stateful { CHECKPOINT_TAIL as u64 } else { 0 } };
                assert!(report.cached_tokens >= least, "{name}: {} cached of {before}", report.cached_tokens);
                before = report.prompt_tokens;
                got.tokens.clone()
            });
            warm.assert_empty();
        }
    }
}

#[test]
fn rows_that_share_pages_do_not_touch_each_other() {
    for subject in stages::subjects() {
        let strategy = *subject.strategies().last().expect("one at least");
        let words = subject.prompts.iter().max_by_key(|p| p.len()).expect("a prompt");
        let start = &words[..100.min(words.len())];
        let mut warm = rig(&subject, &limits());
        run(&mut warm, &ask(0, start, strategy, 0.0));
        let all: Vec<Submission> = (1..5)
            .map(|ticket| {
                let more = words.iter().cycle().skip(ticket as usize * 5).take(20).copied();
                let prompt: Vec<TokenId> = start.iter().copied().chain(more).collect();
                ask(ticket, &prompt, strategy, 0.0)
            })
            .collect();
        all.iter().for_each(|s| warm.submit(s));
        warm.settle();
        for s in &all {
            let mut cold = rig(&subject, &Limits { prefix_cache: false, ..limits() });
            run(&mut cold, s);
            assert_eq!(warm.of(s.ticket.0).outcome, cold.of(s.ticket.0).outcome, "{}", subject.name);
            assert!(warm.of(s.ticket.0).report.as_ref().unwrap().cached_tokens >= 60, "{}", subject.name);
        }
        assert!(all.iter().all(|s| s.ticket != Ticket(0)));
    }
}

#[test]
fn two_stages_keep_prefixes_as_one_process_does() {
    for subject in stages::subjects().into_iter().filter(|s| s.trunk() > 1) {
        let strategy = *subject.strategies().last().expect("one at least");
        let cell = Cell { strategy, window: 7, parallel: 2, ..Cell::reference(0.0) };
        let (executor, _) = stages::staged(&subject, &cell, 1);
        let limits = cell.limits();
        assert!(limits.prefix_cache && limits.checkpoints > 0);
        let mut two = of_executor(&subject, &limits, Box::new(executor));
        let mut one = rig(&subject, &limits);
        talk(&subject, |turn, prompt| {
            let s = ask(turn, prompt, strategy, 0.0);
            let (a, b) = (run(&mut one, &s), run(&mut two, &s));
            let (got, want) = (&two.of(turn).outcome, &one.of(turn).outcome);
            assert_eq!(got, want, "{}, turn {turn}", subject.name);
            assert_eq!((a.total, a.cached_tokens), (b.total, b.cached_tokens), "{}, turn {turn}", subject.name);
            assert_eq!(b.cached_tokens > 20, turn > 0, "{}, turn {turn}", subject.name);
            got.tokens.clone()
        });
    }
}

/// Thirty turns of a tool loop as a chat template writes them: answers think first, and whenever the user speaks again,
/// which is every tenth turn, the thinking of all answers before goes.
#[test]
fn thirty_turns_of_a_tool_loop_compute_what_is_new() {
    const TURNS: usize = 30;
    const THINKING: usize = 9;
    let hybrid = |s: &Subject| !s.opened.model.program.recurrent.is_empty();
    let subject = stages::subjects().into_iter().filter(hybrid).max_by_key(|s| s.strategies().len()).expect("a hybrid");
    let end = subject.opened.pieces.end_tokens().first().copied();
    let words = subject.prompts.iter().max_by_key(|p| p.len()).expect("a prompt");
    let said = |turn: usize| words.iter().cycle().skip(turn * 3).take(40 + turn).copied().chain(end);
    let limits = Limits { checkpoints: 40, ..Limits { prefix_cache: true, ..Limits::new(1, 4096) } };
    let cold_limits = Limits { prefix_cache: false, checkpoints: 0, ..limits.clone() };
    let mut cold = rig(&subject, &cold_limits);
    let mut warm: Vec<(Strategy, Rig)> =
        subject.strategies().into_iter().map(|s| (s, rig(&subject, &limits))).collect();
    // What was said and what was answered, turn by turn, and the last prompt with its answer.
    let mut turns: Vec<(Vec<TokenId>, Vec<TokenId>)> = Vec::new();
    let mut before: Vec<TokenId> = Vec::new();
    let mut dropped = 0;
    for turn in 0..TURNS {
        turns.push((said(turn).collect(), Vec::new()));
        let thinks_from = turn - turn % 10;
        let mut prompt = Vec::new();
        for (i, (said, answer)) in turns.iter().enumerate() {
            prompt.extend(said);
            prompt.extend(if i < thinks_from { answer.get(THINKING..).unwrap_or_default() } else { answer });
            prompt.extend(end.filter(|_| !answer.is_empty()));
        }
        let common = prompt.iter().zip(&before).take_while(|(a, b)| a == b).count();
        let new = (prompt.len() - common) as u64;
        assert!(turn == 0 || new >= 40, "turn {turn} grows by {new}");
        dropped += usize::from(common + 40 < before.len());
        let plain = ask(turn as u64, &prompt, Strategy::Off, 0.0);
        run(&mut cold, &plain);
        let want = cold.of(turn as u64).outcome.clone();
        for (strategy, rig) in &mut warm {
            let report = run(rig, &ask(turn as u64, &prompt, *strategy, 0.0));
            assert_eq!(rig.of(turn as u64).outcome, want, "{strategy:?}, turn {turn}");
            let computed = report.prompt_tokens - report.cached_tokens;
            assert!(computed <= new + 512, "{strategy:?}, turn {turn}: {computed} computed, {new} are new");
        }
        turns[turn].1.clone_from(&want.tokens);
        before = prompt;
        before.extend(&want.tokens);
    }
    assert_eq!(dropped, 2, "thinking went twice");
    assert!(before.len() > 1500, "{} tokens in the end", before.len());
}

/// Rows that lose their pages in the middle of an answer and are computed once more draw what they would have drawn.
#[test]
fn a_row_that_loses_its_pages_says_the_same() {
    for subject in stages::subjects() {
        let strategies = subject.strategies();
        let words = subject.prompts.iter().max_by_key(|p| p.len()).expect("a prompt");
        let all: Vec<Submission> = (0..3_u64)
            .map(|ticket| {
                let prompt: Vec<TokenId> = words.iter().cycle().skip(ticket as usize * 11).take(60).copied().collect();
                Submission {
                    max_tokens: 60,
                    ..ask(ticket, &prompt, strategies[ticket as usize % strategies.len()], 0.8)
                }
            })
            .collect();
        let roomy = Limits { prefix_cache: false, checkpoints: 0, ..Limits::new(3, 128) };
        let mut want = rig(&subject, &roomy);
        let mut tight = rig(&subject, &Limits { pages: 12, ..roomy.clone() });
        for s in &all {
            run(&mut want, s);
            tight.submit(s);
        }
        tight.settle();
        let preempted =
            |rig: &Rig| all.iter().map(|s| rig.of(s.ticket.0).report.as_ref().unwrap().preempted).sum::<u64>();
        assert_eq!((preempted(&want), preempted(&tight) > 0), (0, true), "{}", subject.name);
        for s in &all {
            assert_eq!(tight.of(s.ticket.0).outcome, want.of(s.ticket.0).outcome, "{} {}", subject.name, s.ticket.0);
        }
        tight.assert_empty();
    }
}
