//! Log-probabilities of a prompt: those that the same tokens had when they were chosen, to the bit, in one process and in
//! two stages.

use engine::api::{Strategy, Submission, TokenLogprob};
use engine::ids::{Ticket, TokenId};
use engine::step::Executor;
use engine_tests::drive::{Cell, Subject, executor, submit_on};

use crate::stages::{staged, subjects};

/// Numbers as their bits, so that nothing passes for equal that is not: of a token and of the likeliest beside it.
fn bits(list: &[TokenLogprob]) -> Vec<Vec<(TokenId, u32)>> {
    let all = |entry: &TokenLogprob| {
        let own = (entry.token, entry.logprob);
        [own].iter().chain(&entry.top).map(|(token, p)| (*token, p.to_bits())).collect()
    };
    list.iter().map(all).collect()
}

fn executors(subject: &Subject, cell: &Cell) -> [(&'static str, Box<dyn Executor>); 2] {
    let two = Box::new(staged(subject, cell, subject.trunk() / 2).0);
    [("one process", Box::new(executor(subject, cell, 0))), ("two stages", two)]
}

#[test]
fn a_text_read_has_the_log_probabilities_of_the_text_written() {
    for subject in subjects() {
        let strategies = subject.strategies();
        let mtp = strategies.contains(&Strategy::MtpSuffix);
        let drafting = if mtp { Strategy::MtpSuffix } else { Strategy::NgramSuffix };
        let cells = [
            Cell::reference(0.0),
            Cell { strategy: drafting, window: 7, parallel: 2, chunk: 7, threads: 2, ..Cell::reference(0.0) },
        ];
        let plain = |ticket: u64, prompt: &[TokenId], max_tokens: u32, cell: &Cell| Submission {
            logprobs: Some(4),
            ..Submission::greedy(Ticket(ticket), prompt.to_vec(), max_tokens, cell.speculation())
        };
        let mut known: Option<Vec<_>> = None;
        for cell in &cells {
            for (name, executor) in executors(&subject, cell) {
                let at = format!("{}, {name}, {cell:?}", subject.name);
                let written: Vec<Submission> =
                    (0..).zip(&subject.prompts).map(|(t, p)| plain(t, p, 40, cell)).collect();
                let written = submit_on(&subject, cell, executor, written);
                let (_, executor) =
                    executors(&subject, cell).into_iter().find(|(n, _)| *n == name).expect("one of two");
                let read: Vec<Submission> = (0..)
                    .zip(subject.prompts.iter().zip(&written))
                    .map(|(ticket, (prompt, written))| {
                        let text = [prompt.as_slice(), &written.tokens].concat();
                        // Some go on, some are only read.
                        let s = plain(ticket, &text, 3 * (ticket as u32 % 2), cell);
                        Submission { prompt_logprobs: true, ..s }
                    })
                    .collect();
                let read = submit_on(&subject, cell, executor, read);
                for ((prompt, written), read) in subject.prompts.iter().zip(&written).zip(&read) {
                    assert_eq!(read.prompt_logprobs.len() + 1, prompt.len() + written.tokens.len(), "{at}");
                    assert_eq!(read.report.cached_tokens, 0, "{at}");
                    let answer = &read.prompt_logprobs[prompt.len() - 1..];
                    assert_eq!(bits(answer), bits(&written.logprobs), "{at}");
                    assert!(written.logprobs.iter().any(|p| p.top.len() == 4), "{at}");
                }
                // The prompts' own are the same however they were computed.
                let all: Vec<_> = read.iter().map(|r| bits(&r.prompt_logprobs)).collect();
                assert_eq!(known.get_or_insert_with(|| all.clone()), &all, "{at}");
            }
        }
    }
}
