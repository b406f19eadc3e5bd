//! waiting: submissions before admission, in arrival order. Written by intake (arrival, cancellation, drain); drained by
//! admit.

use std::collections::VecDeque;

use crate::api::Submission;
use crate::ids::Ticket;

/// The queue.
#[derive(Debug, Default)]
pub struct Waiting {
    queue: VecDeque<(Box<Submission>, u64)>,
}

impl Waiting {
    /// Waiting submissions.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a submission and its arrival time.
    pub fn push(&mut self, submission: Box<Submission>, arrived_ns: u64) {
        self.queue.push_back((submission, arrived_ns));
    }

    /// The next in turn.
    pub fn front(&self) -> Option<&Submission> {
        self.queue.front().map(|(s, _)| &**s)
    }

    /// Takes the next in turn.
    pub fn pop(&mut self) -> Option<(Box<Submission>, u64)> {
        self.queue.pop_front()
    }

    /// Removes a ticket; whether it was there.
    pub fn remove(&mut self, ticket: Ticket) -> bool {
        let before = self.queue.len();
        self.queue.retain(|(s, _)| s.ticket != ticket);
        self.queue.len() < before
    }
}
