//! Batches on an engine inside this process: submit a batch of choices, wait for all of them. What measuring verbs, benchmarks
//! and tests run on.

use std::collections::HashMap;

use engine::api::{AdmitError, Command, Event, Finish, Report, Submission, TokenLogprob};
use engine::engine::EngineHandle;
use engine::ids::{Ticket, TokenId};

/// What came of one submission.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Committed ids, end token included.
    pub tokens: Vec<TokenId>,
    /// Released text.
    pub text: String,
    /// Log-probabilities, where asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Those of the prompt, from its second token on, where asked for.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish: Finish,
    /// What was counted.
    pub report: Report,
}

/// Why a batch has no outcome.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmbedError {
    /// A submission was not admitted.
    #[error("submission {ticket:?} was refused: {error}")]
    Refused {
        /// Which.
        ticket: Ticket,
        /// Why.
        error: AdmitError,
    },
    /// The engine's threads are gone; [`EngineHandle::join`] tells why.
    #[error("the engine ended before the batch did")]
    Dead,
}

/// What a member has said so far.
#[derive(Default)]
struct Partial {
    tokens: Vec<TokenId>,
    text: String,
    logprobs: Vec<TokenLogprob>,
    prompt_logprobs: Vec<TokenLogprob>,
}

/// Submits everything, then waits until each has ended. Outcomes are in the order of the submissions, whose tickets
/// must differ. Nothing else may use the handle's events meanwhile.
///
/// # Errors
/// [`EmbedError`]. The rest of a batch with a refused member is cancelled.
pub fn run_all(handle: &EngineHandle, submissions: Vec<Submission>) -> Result<Vec<Outcome>, EmbedError> {
    let order: Vec<Ticket> = submissions.iter().map(|s| s.ticket).collect();
    let index: HashMap<Ticket, usize> = order.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    assert_eq!(index.len(), order.len(), "tickets differ");
    let mut partial: Vec<Partial> = order.iter().map(|_| Partial::default()).collect();
    let mut done: Vec<Option<Outcome>> = order.iter().map(|_| None).collect();
    for submission in submissions {
        handle.commands.send(Command::Submit(Box::new(submission))).map_err(|_| EmbedError::Dead)?;
    }
    let mut left = order.len();
    while left > 0 {
        match handle.events.recv().map_err(|_| EmbedError::Dead)? {
            // Cancelled are only the members of a batch that was refused; pages are said to who asks.
            Event::Admitted { .. } | Event::Cancelled { .. } | Event::Pages { .. } => {}
            Event::Prompt { ticket, logprobs, .. } => {
                if let Some(&i) = index.get(&ticket) {
                    partial[i].prompt_logprobs.extend(logprobs);
                }
            }
            Event::Delta { ticket, mut delta } => {
                if let Some(&i) = index.get(&ticket) {
                    partial[i].tokens.extend(&delta.tokens);
                    partial[i].text.push_str(&delta.said.text);
                    partial[i].logprobs.append(&mut delta.logprobs);
                }
            }
            Event::Finished { ticket, finish, report } => {
                if let Some(&i) = index.get(&ticket) {
                    let Partial { tokens, text, logprobs, prompt_logprobs } = std::mem::take(&mut partial[i]);
                    done[i] = Some(Outcome { tokens, text, logprobs, prompt_logprobs, finish, report: *report });
                    left -= 1;
                }
            }
            Event::Refused { ticket, error } => {
                for other in order.iter().filter(|t| **t != ticket) {
                    handle.commands.send(Command::Cancel(*other)).map_err(|_| EmbedError::Dead)?;
                }
                return Err(EmbedError::Refused { ticket, error });
            }
        }
    }
    Ok(done.into_iter().map(|o| o.expect("each has ended")).collect())
}
