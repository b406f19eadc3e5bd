//! The prefix cache over the toy model, which reads every page and state back and knows what must be in them.

use std::collections::BTreeSet;

use engine::api::{Command, Miss, Report, Sampling, Strategy, Submission};
use engine::ids::Ticket;
use engine::limits::{CHECKPOINT_TAIL, CHECKPOINT_TOKENS, CHECKPOINT_TOKENS_MIN, Limits, PAGE_TOKENS};
use engine::tick::{System, TICK};
use engine_tests::toy::{END, Rig, ToyConfig, reference, speculation, submission};

use super::Rng;

fn limits(slots: usize, context: usize, checkpoints: usize) -> Limits {
    Limits { prefix_cache: true, checkpoints, ..Limits::new(slots, context) }
}

/// Models whose sequences are nothing but their pages, have a state, and have a state and an MTP block.
fn toys() -> [(&'static str, ToyConfig); 3] {
    let toy = |hidden_rows, plain| ToyConfig { hidden_rows, plain, ..ToyConfig::default() };
    [("pages", toy(0, true)), ("state", toy(0, false)), ("MTP", toy(700, false))]
}

fn strategy(toy: &ToyConfig) -> Strategy {
    if toy.hidden_rows > 0 { Strategy::MtpSuffix } else { Strategy::NgramSuffix }
}

fn ask(ticket: u64, prompt: &[u32], max_tokens: u32, toy: &ToyConfig) -> Submission {
    submission(ticket, prompt, max_tokens, speculation(strategy(toy), 7))
}

fn any_prompt(rng: &mut Rng, len: u64) -> Vec<u32> {
    (0..len).map(|_| rng.below(12) as u32).collect()
}

fn run(rig: &mut Rig, s: &Submission) -> Report {
    rig.submit(s);
    rig.settle();
    rig.assert_reference(s);
    rig.of(s.ticket.0).report.clone().expect("it ended")
}

/// What a turn said, as the tokens of its prompt and answer.
fn whole(rig: &Rig, s: &Submission) -> Vec<u32> {
    s.prompt.iter().chain(&rig.of(s.ticket.0).outcome.tokens).map(|t| t.0).collect()
}

#[test]
fn a_growing_conversation_computes_what_is_new() {
    for (name, toy) in toys() {
        let mut rng = Rng(3, 0);
        let mut rig = Rig::new(&limits(2, 4096, 64), toy.clone());
        let mut prompt = any_prompt(&mut rng, 700);
        for turn in 0..8 {
            let s = ask(turn, &prompt, 30, &toy);
            let report = run(&mut rig, &s);
            let computed = report.prompt_tokens - report.cached_tokens;
            if turn == 0 {
                assert_eq!((report.cached_tokens, report.cache_miss), (0, Some(Miss::Cold)), "{name}");
            } else {
                // 40 of the user, the answer before them where a sequence has a state, and the tail.
                let new = 40 + if toy.plain { 1 } else { 30 + CHECKPOINT_TAIL as u64 };
                assert!(computed <= new, "{name}, turn {turn}: {computed} of {} computed", report.prompt_tokens);
                assert!(report.cached_tokens > 600);
            }
            prompt = whole(&rig, &s);
            prompt.extend(any_prompt(&mut rng, 40));
        }
        rig.assert_empty();
    }
}

#[test]
fn a_long_answer_is_kept_on_the_way() {
    // Plain decoding too: the MTP cache has to catch up for it.
    for ((name, toy), strategy) in toys().into_iter().flat_map(|t| [(t.clone(), strategy(&t.1)), (t, Strategy::Off)]) {
        let mut rig = Rig::new(&limits(1, 4096, 64), toy.clone());
        let mut s = ask(0, &any_prompt(&mut Rng(4, 0), 100), 1500, &toy);
        s.speculation.strategy = strategy;
        run(&mut rig, &s);
        let mut again = whole(&rig, &s);
        again.push(1);
        let report = run(&mut rig, &ask(1, &again, 5, &toy));
        let computed = report.prompt_tokens - report.cached_tokens;
        // A window may step over the place by what it commits at once.
        let most = if toy.plain { 2 } else { CHECKPOINT_TOKENS as u64 + 8 };
        assert!(computed <= most, "{name}: {computed} computed");
    }
}

#[test]
fn the_same_prompt_again_computes_its_end() {
    for (name, toy) in toys() {
        for len in [2, 15, 16, 17, 20, 33, 64, 65, 100] {
            let mut rig = Rig::new(&limits(1, 256, 8), toy.clone());
            let prompt = any_prompt(&mut Rng(5, len as u32), len);
            run(&mut rig, &ask(0, &prompt, 9, &toy));
            let report = run(&mut rig, &ask(1, &prompt, 9, &toy));
            let computed = report.prompt_tokens - report.cached_tokens;
            let most = if toy.plain { 1 } else { CHECKPOINT_TAIL as u64 };
            // A place so near the start is worth nothing.
            let worth = toy.plain || len >= 2 * CHECKPOINT_TAIL as u64;
            assert!(computed <= if worth { most } else { len }, "{name}, {len}: {computed} computed");
            assert_eq!(report.cache_miss.is_none(), computed == 1, "{name}, {len}");
            assert!(report.cache_matched >= report.cached_tokens);
        }
    }
}

#[test]
fn ends_of_messages_are_places_to_come_back_to() {
    let (_, toy) = toys().into_iter().nth(2).unwrap();
    let mut rng = Rng(6, 0);
    let mut rig = Rig::new(&limits(1, 2048, 32), toy.clone());
    let mut prompt = any_prompt(&mut rng, 99);
    prompt.push(END.0);
    prompt.extend(any_prompt(&mut rng, 10));
    prompt.push(END.0);
    prompt.extend(any_prompt(&mut rng, 200));
    run(&mut rig, &ask(0, &prompt, 4, &toy));
    // Another turn that goes another way behind the first message, and one that does behind the second.
    let mut other = prompt[..100].to_vec();
    other.extend(any_prompt(&mut rng, 150));
    let report = run(&mut rig, &ask(1, &other, 4, &toy));
    assert_eq!((report.cached_tokens, report.cache_miss), (100, Some(Miss::Diverged)));
    let mut third = prompt[..111].to_vec();
    third.extend([0; 30]);
    let report = run(&mut rig, &ask(2, &third, 4, &toy));
    // The second ends too near the first.
    assert_eq!((report.cached_tokens, report.cache_miss), (100, Some(Miss::NoCheckpoint)));
    const { assert!(11 < CHECKPOINT_TOKENS_MIN) };
}

#[test]
fn a_miss_says_why() {
    for (name, toy) in toys() {
        let mut rng = Rng(7, 0);
        let mut rig = Rig::new(&limits(1, 640, 3), toy.clone());
        let prompt = any_prompt(&mut rng, 300);
        let of = |ticket: u64, cache| Submission { cache, ..ask(ticket, &prompt, 4, &toy) };
        let off = run(&mut rig, &of(0, None));
        assert_eq!((off.cache_miss, off.cache_written), (Some(Miss::Disabled), 0), "{name}");
        let first = run(&mut rig, &of(1, Some(9)));
        assert_eq!(first.cache_miss, Some(Miss::Cold), "{name}: one that wrote nothing left nothing");
        assert!(first.cache_written >= 290, "{name}");
        assert_eq!(run(&mut rig, &of(2, Some(8))).cache_miss, Some(Miss::Namespace), "{name}");
        assert!(run(&mut rig, &of(3, Some(9))).cached_tokens >= 296, "{name}");
        // Others push it out.
        for ticket in 10..20 {
            run(&mut rig, &ask(ticket, &any_prompt(&mut rng, 600), 4, &toy));
        }
        let last = run(&mut rig, &of(4, Some(9)));
        assert_eq!((last.cache_miss, last.cached_tokens), (Some(Miss::Evicted), 0), "{name}");
        assert!(rig.world.ledger.prefix.evicted.0 > 0);
    }
}

#[test]
fn requests_at_once_share_what_is_known() {
    for (name, toy) in toys() {
        let mut rng = Rng(8, 0);
        let limits = limits(4, 512, 16);
        let mut rig = Rig::new(&limits, toy.clone());
        let system = any_prompt(&mut rng, 320);
        run(&mut rig, &ask(0, &system, 1, &toy));
        let held = rig.world.ledger.pages.held_len();
        let all: Vec<Submission> = (1..5)
            .map(|ticket| {
                let prompt = [system.clone(), any_prompt(&mut rng, 60)].concat();
                ask(ticket, &prompt, 40, &toy)
            })
            .collect();
        all.iter().for_each(|s| rig.submit(s));
        let mut most = 0;
        for _ in 0..20 {
            rig.tick();
            let pages = &rig.world.ledger.pages;
            most = most.max(pages.len() - pages.free_len());
        }
        rig.settle();
        for s in &all {
            rig.assert_reference(s);
            assert!(rig.of(s.ticket.0).report.as_ref().unwrap().cached_tokens >= 316, "{name}");
        }
        // Of the 320 tokens there is one copy.
        let own = 4 * Limits::pages_for(60 + 40 + 8 + 2 * PAGE_TOKENS);
        assert!(most <= held + 2 * own, "{name}: {most} pages of {held} and four times {own}");
        rig.assert_empty();
    }
}

/// Random conversations that share beginnings, under too few pages and too few checkpoints, with cancellations,
/// preemption and forks of time; whatever ends equals plain decoding of a world that never saw another request.
#[test]
fn whatever_is_shared_and_evicted_every_answer_is_its_own() {
    for (name, toy) in toys() {
        let (mut hits, mut gone) = (0, 0);
        for seed in 0..6 {
            let mut rng = Rng(100 + seed, 0);
            let context = 360;
            let pages = Limits::pages_for(context) + 3 + rng.below(40) as usize;
            let checkpoints = 1 + rng.below(24) as usize;
            let limits = Limits { pages, ..limits(3, context, checkpoints) };
            let toy = ToyConfig { end_rate: 10, seed: seed + 1, ..toy.clone() };
            let mut rig = Rig::new(&limits, toy.clone());
            let mut known: Vec<Vec<u32>> = vec![any_prompt(&mut rng, 90)];
            let mut open: Vec<Submission> = Vec::new();
            for ticket in 0..90 {
                let base = &known[rng.below(known.len() as u64) as usize];
                let long = base.len() as u64;
                let cut = if rng.chance(500) { long } else { 1 + rng.below(long) } as usize;
                let mut prompt = base[..cut.min(250)].to_vec();
                let more = rng.below(60);
                prompt.extend(any_prompt(&mut rng, more));
                if rng.chance(400) {
                    prompt.push(END.0);
                    prompt.extend(any_prompt(&mut rng, 9));
                }
                let mut s = ask(ticket, &prompt, 1 + rng.below(80) as u32, &toy);
                s.cache = rng.pick(&[Some(0), Some(0), Some(0), Some(1), None]);
                rig.submit(&s);
                open.push(s);
                for _ in 0..rng.below(40) {
                    rig.tick();
                }
                if rng.chance(150) {
                    let s = open.swap_remove(rng.below(open.len() as u64) as usize);
                    rig.send(Command::Cancel(Ticket(s.ticket.0)));
                    gone += 1;
                }
                let done = |s: &Submission| rig.heard.get(&s.ticket).is_some_and(|h| h.report.is_some());
                let (ended, running): (Vec<_>, Vec<_>) = open.drain(..).partition(done);
                open = running;
                for s in ended {
                    rig.assert_reference(&s);
                    hits += rig.of(s.ticket.0).report.as_ref().unwrap().cached_tokens;
                    known.push(whole(&rig, &s));
                }
            }
            rig.settle();
            open.iter().for_each(|s| rig.assert_reference(s));
            rig.assert_empty();
        }
        assert!(gone > 20 && hits > 1000, "{name}: {gone} cancelled, {hits} tokens of the cache");
    }
}

#[test]
fn what_is_counted_of_a_request_does_not_depend_on_the_cache() {
    for (name, toy) in toys() {
        let prompt = any_prompt(&mut Rng(9, 0), 200);
        let mut rig = Rig::new(&limits(1, 1024, 8), toy.clone());
        let [cold, warm] = [0, 1].map(|ticket| run(&mut rig, &ask(ticket, &prompt, 60, &toy)));
        assert!(warm.cached_tokens > 190);
        assert_eq!(cold.total, warm.total, "{name}");
        assert_eq!((cold.steps, &cold.width_hist), (warm.steps, &warm.width_hist), "{name}");
        assert!(!reference(&toy, 1024, &ask(0, &prompt, 60, &toy)).tokens.is_empty());
    }
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    for (name, toy) in toys() {
        for (len, cache) in [(1, false), (2, true), (300, false), (300, true)] {
            let mut rng = Rng(10, len as u32);
            let prompt = any_prompt(&mut rng, len);
            let mut rig = Rig::new(&Limits { prefix_cache: cache, ..limits(4, 512, 8) }, toy.clone());
            let all: Vec<Submission> = (0..4)
                .map(|choice| {
                    let mut s = ask(u64::from(choice), &prompt, 40, &toy);
                    s.sampling = Sampling { temperature: 0.9, seed: 3, choice, ..Sampling::greedy() };
                    s.sibling = (choice > 0).then_some(Ticket(0));
                    s
                })
                .collect();
            all.iter().for_each(|s| rig.submit(s));
            let mut prompt_rows = 0;
            for _ in 0..100 {
                for (system, _) in TICK {
                    rig.world.run(system);
                    if system == System::Prefill {
                        prompt_rows += rig.world.step.trunk.token.len() as u64;
                    }
                }
                rig.world.check();
                rig.listen();
            }
            assert_eq!(prompt_rows, len - 1, "{name}: the prompt is computed once");
            rig.settle();
            all.iter().for_each(|s| rig.assert_reference(s));
            let texts: BTreeSet<_> = all.iter().map(|s| rig.of(s.ticket.0).outcome.text.clone()).collect();
            assert!(texts.len() > 1, "{name}, {len}: choices draw as one");
            rig.assert_empty();
        }
    }
}
