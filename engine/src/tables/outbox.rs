//! outbox: what has to be said. Per slot the delta of the tick in progress (written by commit); one queue of events in
//! order (written by intake, admit, retire, emit; drained by emit).
//!
//! Bound: a row whose event waits here is stalled and commits nothing more, and admissions and refusals wait while
//! the queue is longer than its room, and cancellations with the commands; what a row had to say goes into the
//! one event that says its cancellation. So it holds at most `room` + 3 events per slot, 1 more of a row whose time ends
//! while it is stalled, 1 more of its prompt and 2 more of its pages where these are reported.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam::queue::ArrayQueue;

use crate::api::{Event, TokenLogprob};
use crate::delta::{Committed, Delta, Shelf};
use crate::ids::{Slot, Ticket};

/// Events of a slot that wait at most: see the bound above.
const WAITING: usize = 7;

/// Deltas of a slot whose memory is kept: one that is read, and some more of a reader that is behind.
const SPARE: usize = 4;

/// The table.
#[derive(Debug)]
pub struct Outbox {
    /// Per slot: what is committed in this tick.
    pub committed: Vec<Committed>,
    /// Per slot: prompt tokens that are computed, and since when in nanoseconds, as far as that is still to be said.
    pub prompt: Vec<Option<(u32, u64)>>,
    /// Per slot: log-probabilities that go along with it.
    pub scores: Vec<Vec<TokenLogprob>>,
    queue: VecDeque<Event>,
    room: usize,
    /// Tokens that a step may commit.
    step_tokens: usize,
    /// Memory that readers have given back.
    shelf: Shelf,
}

impl Outbox {
    /// Empty, with room for `room` events before admission and refusal wait. A step commits `step_tokens` tokens of a row
    /// at most.
    pub fn new(slots: usize, room: usize, step_tokens: usize) -> Self {
        let shelf = ArrayQueue::new(slots * SPARE);
        for _ in 0..slots {
            shelf.push(Committed::with_room(step_tokens)).expect("an empty shelf");
        }
        Self {
            committed: (0..slots).map(|_| Committed::with_room(step_tokens)).collect(),
            prompt: vec![None; slots],
            scores: vec![Vec::new(); slots],
            queue: VecDeque::with_capacity(slots * WAITING),
            room,
            step_tokens,
            shelf: Arc::new(shelf),
        }
    }

    /// Bytes of [`Self::new`].
    pub fn bytes_for(slots: usize, step_tokens: usize) -> usize {
        let committed = size_of::<Committed>() + 2 * Committed::bytes_for(step_tokens);
        let spare = SPARE * (size_of::<Committed>() + size_of::<usize>());
        let prompt = size_of::<Option<(u32, u64)>>() + size_of::<Vec<TokenLogprob>>();
        slots * (committed + spare + prompt + WAITING * size_of::<Event>())
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
        if self.committed[slot.index()].is_empty() {
            self.committed[slot.index()].clear();
            return;
        }
        let delta = Delta::new(self.take(slot), Arc::clone(&self.shelf));
        self.queue.push_back(Event::Delta { ticket, delta });
    }

    /// Takes a slot's delta, and leaves an empty one.
    pub fn take(&mut self, slot: Slot) -> Committed {
        let next = self.shelf.pop().unwrap_or_else(|| Committed::with_room(self.step_tokens));
        std::mem::replace(&mut self.committed[slot.index()], next)
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
        let kept = self.take(slot);
        self.scores[s].clear();
        self.prompt[s] = None;
        let all = &mut self.committed[s];
        self.queue.retain_mut(|event| {
            if let Event::Delta { ticket: whose, delta } = event
                && *whose == ticket
            {
                all.tokens.append(&mut delta.tokens);
                all.said.append(&delta.said);
            }
            event.ticket() != ticket
        });
        all.tokens.extend(kept.tokens);
        all.said.append(&kept.said);
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
