//! waiting: submissions before admission, lowest priority number first, equals in arrival order. Written by intake
//! (arrival, cancellation, end of time, drain); drained by admit.

use std::collections::VecDeque;

use crate::api::Submission;
use crate::ids::Ticket;

/// What was free when the next in turn did not fit, in numbers that change with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// The next in turn: one that lost its pages, or the first of the queue.
    pub ticket: Ticket,
    /// [`Pages::changes`](crate::tables::pages::Pages::changes).
    pub pages: u64,
    /// [`Prefix::changes`](crate::tables::prefix::Prefix::changes).
    pub prefix: u64,
    /// Rows that run.
    pub running: usize,
    /// Pages that prompts among them will take.
    pub promised: usize,
}

/// The queue.
#[derive(Debug, Default)]
pub struct Waiting {
    queue: VecDeque<(Box<Submission>, u64)>,
    /// When somebody did not fit last; while all of it is the same, the same does not fit now.
    pub refused: Option<Room>,
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

    /// Adds a submission and its arrival time, behind those of its priority and in front of those that come later.
    pub fn push(&mut self, submission: Box<Submission>, arrived_ns: u64) {
        let at = self.queue.partition_point(|(s, _)| s.priority <= submission.priority);
        self.queue.insert(at, (submission, arrived_ns));
    }

    /// When the first of them runs out of its time; `u64::MAX`: none does.
    pub fn deadline_ns(&self) -> u64 {
        self.queue.iter().map(|(s, arrived_ns)| deadline_ns(s, *arrived_ns)).min().unwrap_or(u64::MAX)
    }

    /// Takes one whose time is over.
    pub fn take_late(&mut self, now_ns: u64) -> Option<(Box<Submission>, u64)> {
        let at = self.queue.iter().position(|(s, arrived_ns)| deadline_ns(s, *arrived_ns) <= now_ns)?;
        self.queue.remove(at)
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

/// When the time of a submission is over; `u64::MAX` = never.
pub fn deadline_ns(submission: &Submission, arrived_ns: u64) -> u64 {
    submission.time_ns.map_or(u64::MAX, |time_ns| arrived_ns.saturating_add(time_ns))
}
