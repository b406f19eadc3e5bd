//! outbox: what has to be said. Per slot the delta of the tick in progress (written by commit); one queue of events in
//! order (written by intake, admit, retire, emit; drained by emit).
//!
//! Bound: a row whose event waits here is stalled and commits nothing more, and admissions and refusals wait while
//! the queue is longer than its room, and cancellations with the commands; what a row had to say goes into the
//! one event that says its cancellation. So it holds at most `room` + 3 events per slot, 1 more of a row whose time ends
//! while it is stalled, 1 more of its prompt and 2 more of its pages where these are reported.

use std::collections::VecDeque;

use crate::api::{Event, Origin, Report, TokenLogprob};
use crate::channels::Said;
use crate::ids::{Slot, Ticket, TokenId};

/// Events of a slot that wait at most: see the bound above.
const WAITING: usize = 7;

/// The table.
#[derive(Debug)]
pub struct Outbox {
    /// Per slot: tokens committed in this tick.
    pub tokens: Vec<Vec<TokenId>>,
    /// Per slot: who proposed each of `tokens`.
    pub origins: Vec<Vec<Origin>>,
    /// Per slot: drafts that were verified in this tick.
    pub drafted: Vec<u32>,
    /// Per slot: text released in this tick.
    pub said: Vec<Said>,
    /// Per slot: bytes of `said` behind each of `tokens`.
    pub cuts: Vec<Vec<u32>>,
    /// Per slot: log-probabilities of `tokens`, when wanted.
    pub logprobs: Vec<Vec<TokenLogprob>>,
    /// Per slot: what is counted so far, when wanted.
    pub report: Vec<Option<Box<Report>>>,
    /// Per slot: prompt tokens that are computed, and since when in nanoseconds, as far as that is still to be said.
    pub prompt: Vec<Option<(u32, u64)>>,
    /// Per slot: log-probabilities that go along with it.
    pub scores: Vec<Vec<TokenLogprob>>,
    queue: VecDeque<Event>,
    room: usize,
}

impl Outbox {
    /// Empty, with room for `room` events before admission and refusal wait.
    pub fn new(slots: usize, room: usize) -> Self {
        Self {
            tokens: vec![Vec::new(); slots],
            origins: vec![Vec::new(); slots],
            drafted: vec![0; slots],
            said: vec![Said::default(); slots],
            cuts: vec![Vec::new(); slots],
            logprobs: vec![Vec::new(); slots],
            report: vec![None; slots],
            prompt: vec![None; slots],
            scores: vec![Vec::new(); slots],
            queue: VecDeque::with_capacity(slots * WAITING),
            room,
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize) -> usize {
        let origins = size_of::<Vec<Origin>>() + size_of::<u32>();
        let delta = size_of::<Vec<TokenId>>() + origins + size_of::<Said>() + size_of::<Vec<TokenLogprob>>();
        let counted = size_of::<Vec<u32>>() + size_of::<Option<Box<Report>>>();
        let prompt = size_of::<Option<(u32, u64)>>() + size_of::<Vec<TokenLogprob>>();
        slots * (delta + counted + prompt + WAITING * size_of::<Event>())
    }

    /// Whether events that nobody's stall bounds may still be queued.
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.room
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no event waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends an event.
    pub fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Moves a slot's delta, if it has one, to the queue.
    pub fn close_delta(&mut self, slot: Slot, ticket: Ticket) {
        let s = slot.index();
        let drafted = std::mem::take(&mut self.drafted[s]);
        let report = self.report[s].take();
        if self.tokens[s].is_empty() && self.said[s].is_empty() {
            return;
        }
        self.queue.push_back(Event::Delta {
            ticket,
            tokens: std::mem::take(&mut self.tokens[s]),
            origins: std::mem::take(&mut self.origins[s]),
            drafted,
            said: std::mem::take(&mut self.said[s]),
            cuts: std::mem::take(&mut self.cuts[s]),
            logprobs: std::mem::take(&mut self.logprobs[s]),
            report,
        });
    }

    /// Moves what there is to say of a slot's prompt to the queue.
    pub fn close_prompt(&mut self, slot: Slot, ticket: Ticket) {
        let s = slot.index();
        if let Some((processed, time_ns)) = self.prompt[s].take() {
            let logprobs = std::mem::take(&mut self.scores[s]);
            self.queue.push_back(Event::Prompt { ticket, processed, time_ns, logprobs });
        }
    }

    /// Drops every queued event of a ticket. Its deltas become the slot's again, in front of what that has: tokens and text
    /// alone.
    pub fn take_back(&mut self, slot: Slot, ticket: Ticket) {
        let s = slot.index();
        self.logprobs[s].clear();
        self.origins[s].clear();
        self.cuts[s].clear();
        self.scores[s].clear();
        (self.drafted[s], self.report[s], self.prompt[s]) = (0, None, None);
        let (mut tokens, mut said) = (Vec::new(), Said::default());
        self.queue.retain_mut(|event| {
            if let Event::Delta { ticket: whose, tokens: sent, said: released, .. } = event
                && *whose == ticket
            {
                tokens.append(sent);
                said.append(released);
            }
            event.ticket() != ticket
        });
        self.tokens[s].splice(..0, tokens);
        said.append(&self.said[s]);
        self.said[s] = said;
    }

    /// The oldest event.
    pub fn pop(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// Puts an event back that could not be sent.
    pub fn unpop(&mut self, event: Event) {
        self.queue.push_front(event);
    }

    /// Events that wait, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = &Event> {
        self.queue.iter()
    }
}
