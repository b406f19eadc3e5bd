//! intake: a bounded drain of the inbox. Refusals are its own: what cannot be served never waits, and once a drain is
//! asked for, what waits is refused as far as the outbox has room. What has waited for all of its time ends with nothing.
//! Leaves true: nothing unbounded was done; a cancelled row takes no further part and holds no page; while draining,
//! somebody waits only if the outbox is full (and then nobody is admitted either).

use crossbeam::channel::{Receiver, TryRecvError};

use crate::api::{AdmitError, Command, Event, Finish, Report, Submission};
use crate::channels::Said;
use crate::ids::Ticket;
use crate::limits::Limits;
use crate::step::Shape;
use crate::tables::outbox::Outbox;
use crate::tables::pages::Pages;
use crate::tables::requests::{Phase, Requests};
use crate::tables::waiting::Waiting;
use crate::world::Life;

/// Most commands of one tick.
const COMMANDS_MAX: usize = 64;

/// Takes commands in; whether there was one.
#[expect(clippy::too_many_arguments, reason = "the borrowed columns are the access declaration")]
pub fn intake(
    inbox: &Receiver<Command>,
    waiting: &mut Waiting,
    requests: &mut Requests,
    pages: &mut Pages,
    outbox: &mut Outbox,
    life: &mut Life,
    limits: &Limits,
    shape: &Shape,
    now_ns: u64,
) -> bool {
    let mut any = false;
    for _ in 0..COMMANDS_MAX {
        if !outbox.has_room() || life.stopping {
            break;
        }
        let command = match inbox.try_recv() {
            Ok(command) => command,
            Err(TryRecvError::Empty) => break,
            Err(TryRecvError::Disconnected) => {
                life.orphan = true;
                break;
            }
        };
        any = true;
        match command {
            Command::Submit(submission) => match refusal(&submission, waiting, life, limits, shape) {
                None => waiting.push(submission, now_ns),
                Some(error) => {
                    outbox.push(Event::Refused { ticket: submission.ticket, error });
                }
            },
            Command::Cancel(ticket) => cancel(ticket, waiting, requests, pages, outbox),
            Command::Pause(ticket) => set_paused(requests, ticket, true),
            Command::Resume(ticket) => set_paused(requests, ticket, false),
            Command::ReportPages => pages.report(),
            Command::Drain => life.draining = true,
            Command::Stop => life.stopping = true,
        }
    }
    while outbox.has_room()
        && let Some((submission, arrived_ns)) = waiting.take_late(now_ns)
    {
        any = true;
        let (prompt_tokens, wait) = (submission.prompt.len() as u64, now_ns - arrived_ns);
        let report = Report { prompt_tokens, queue_ns: wait, total_ns: wait, ..Report::default() };
        let (ticket, finish) = (submission.ticket, Finish::TimedOut);
        outbox.push(Event::Finished { ticket, finish, report: Box::new(report) });
    }
    while life.draining
        && outbox.has_room()
        && let Some((submission, _)) = waiting.pop()
    {
        any = true;
        outbox.push(Event::Refused { ticket: submission.ticket, error: AdmitError::Draining });
    }
    any
}

fn set_paused(requests: &mut Requests, ticket: Ticket, paused: bool) {
    if let Some(slot) = requests.find(ticket) {
        requests.paused[slot.index()] = paused;
    }
}

fn cancel(ticket: Ticket, waiting: &mut Waiting, requests: &mut Requests, pages: &mut Pages, outbox: &mut Outbox) {
    if waiting.remove(ticket) {
        outbox.push(Event::Cancelled { ticket, tokens: Vec::new(), said: Said::default(), report: Box::default() });
        return;
    }
    // A ticket that is unknown has finished already: its last event is on the way.
    let Some(slot) = requests.find(ticket) else { return };
    requests.phase[slot.index()] = Phase::Done;
    // Now, so that nobody is preempted for pages that are about to be free.
    pages.truncate(slot, 0);
    outbox.take_back(slot, ticket);
}

fn refusal(
    submission: &Submission,
    waiting: &Waiting,
    life: &Life,
    limits: &Limits,
    shape: &Shape,
) -> Option<AdmitError> {
    let prompt = &submission.prompt;
    let strategy = submission.speculation.strategy;
    if life.draining {
        Some(AdmitError::Draining)
    } else if prompt.is_empty() {
        Some(AdmitError::EmptyPrompt)
    } else if prompt.len() > limits.context - 1 {
        Some(AdmitError::PromptTooLong { prompt: prompt.len(), context: limits.context })
    } else if let Some(bad) = prompt.iter().find(|t| t.0 as usize >= shape.vocab) {
        Some(AdmitError::BadToken { token: bad.0, vocab: shape.vocab })
    } else if strategy.uses_mtp() && !shape.mtp {
        Some(AdmitError::StrategyUnavailable { strategy: strategy.name(), reason: "the model has no MTP block" })
    } else if waiting.len() >= limits.waiting {
        Some(AdmitError::QueueFull { waiting: waiting.len() })
    } else {
        None
    }
}
