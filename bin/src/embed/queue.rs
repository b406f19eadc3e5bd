//! What a host has not taken yet. Written by the `host` thread, read by whoever polls; both hold its lock for moments.
//!
//! Bounds: a request whose events have more than [`Queue::stream_buffer`] bytes is paused until half of them are taken,
//! as a connection is whose client does not read; there are at most `requests_max` requests, one that has ended counting
//! until its last event is taken; events of pages are dropped, oldest first, beyond [`PAGE_EVENTS_MAX`].

use std::collections::{HashMap, VecDeque};

use serde::Deserialize;

use crate::serve::link::{Held, PageCount};
use crate::serve::shapes::Shape;

/// Events of pages that wait for the host at most.
const PAGE_EVENTS_MAX: usize = 4096;
/// What an event counts for beside its text.
const EVENT_BYTES: usize = 64;

/// What an event is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A chunk of a stream; more follows.
    Chunk,
    /// The whole answer, and the last event of its request.
    Answer,
    /// The stream is complete. Last.
    End,
    /// The request failed. Last.
    Error,
    /// Cancelled as asked. Last.
    Cancelled,
    /// A choice holds another number of KV pages. May come after the last event of a request that was cancelled.
    Pages,
}

impl Kind {
    /// Whether nothing of the request but pages follows.
    pub fn is_last(self) -> bool {
        !matches!(self, Self::Chunk | Self::Pages)
    }
}

/// What a host polls.
#[derive(Debug)]
pub struct Event {
    /// Whose it is.
    pub request: u64,
    /// What it is.
    pub kind: Kind,
    /// Status that HTTP would have; 0 of pages.
    pub status: u16,
    /// Which choice a chunk or pages are of.
    pub choice: u32,
    /// Chunk, answer or error as HTTP would send it, without its framing. Empty for other kinds.
    pub json: Vec<u8>,
    /// Ids in it, where the request asked for them; of a whole answer, those of its first choice.
    pub tokens: Vec<u32>,
    /// Pages that the choice holds now, and pages of the pool that are free.
    pub pages: (u32, u32),
    /// Events of pages before this one. A gap means that some were dropped, because nobody took them.
    pub sequence: u64,
    /// Counts against the bound on large answers until it is dropped.
    _held: Option<Held>,
}

impl Event {
    fn new(request: u64, kind: Kind, status: u16, json: Vec<u8>, held: Option<Held>) -> Self {
        let (choice, tokens) = if json.is_empty() { (0, Vec::new()) } else { ids(&json) };
        Self { request, kind, status, choice, json, tokens, pages: (0, 0), sequence: 0, _held: held }
    }

    fn bytes(&self) -> usize {
        EVENT_BYTES + self.json.len() + size_of::<u32>() * self.tokens.len()
    }
}

/// Number and ids of the first choice in a chunk or answer.
fn ids(json: &[u8]) -> (u32, Vec<u32>) {
    #[derive(Default, Deserialize)]
    struct Answer {
        #[serde(default)]
        choices: Vec<Choice>,
    }
    #[derive(Deserialize)]
    struct Choice {
        #[serde(default)]
        index: u32,
        #[serde(default)]
        token_ids: Vec<u32>,
    }
    // Answers of other shapes have no choices.
    let answer: Answer = serde_json::from_slice(json).unwrap_or_default();
    answer.choices.into_iter().next().map_or((0, Vec::new()), |choice| (choice.index, choice.token_ids))
}

/// What the front of a handle has to tell `text` about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    Full(u64),
    Room(u64),
}

/// A request of which the host has not taken the last event.
#[derive(Default)]
struct Open {
    /// Of its errors.
    shape: Shape,
    unsent: usize,
    full: bool,
    ended: bool,
}

/// The events of one handle.
pub(super) struct Queue {
    /// Bytes of a request's events above which it is paused.
    pub stream_buffer: usize,
    /// Requests at most.
    pub requests_max: usize,
    requests: HashMap<u64, Open>,
    /// In order, with the number of each; `pages` apart because they are bounded apart.
    events: VecDeque<(u64, Event)>,
    pages: VecDeque<(u64, Event)>,
    pushed: u64,
    page_events: u64,
    next: u64,
}

impl Queue {
    pub fn new(stream_buffer: usize, requests_max: usize) -> Self {
        Self {
            stream_buffer,
            requests_max,
            requests: HashMap::new(),
            events: VecDeque::new(),
            pages: VecDeque::new(),
            pushed: 0,
            page_events: 0,
            next: 1,
        }
    }

    /// A name for a new request; `None` where there are too many.
    pub fn begin(&mut self, shape: Shape) -> Option<u64> {
        if self.requests.len() >= self.requests_max {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.requests.insert(id, Open { shape, ..Open::default() });
        Some(id)
    }

    /// How the errors of a request are told.
    pub fn shape(&self, id: u64) -> Shape {
        self.requests.get(&id).map(|open| open.shape).unwrap_or_default()
    }

    /// Forgets a request that nobody has heard of.
    pub fn forget(&mut self, id: u64) {
        self.requests.remove(&id);
    }

    /// Whether the host may expect an event of it.
    pub fn knows(&self, id: u64) -> bool {
        self.requests.contains_key(&id)
    }

    /// Requests that have not ended.
    pub fn running(&self) -> Vec<u64> {
        self.requests.iter().filter(|(_, open)| !open.ended).map(|(id, _)| *id).collect()
    }

    /// Requests of which the last event was not taken.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.events.len() + self.pages.len()
    }

    /// Adds an event, unless its request is over.
    pub fn push(&mut self, id: u64, kind: Kind, status: u16, json: Vec<u8>, held: Option<Held>) -> Option<Note> {
        let open = self.requests.get_mut(&id).filter(|open| !open.ended)?;
        let event = Event::new(id, kind, status, json, held);
        open.unsent += event.bytes();
        open.ended = kind.is_last();
        let news = !open.full && !open.ended && open.unsent > self.stream_buffer;
        open.full |= news;
        self.pushed += 1;
        self.events.push_back((self.pushed, event));
        news.then_some(Note::Full(id))
    }

    pub fn push_pages(&mut self, id: u64, count: PageCount) {
        let mut event = Event::new(id, Kind::Pages, 0, Vec::new(), None);
        event.choice = count.choice;
        event.pages = (count.held, count.free);
        event.sequence = self.page_events;
        self.page_events += 1;
        self.pushed += 1;
        if self.pages.len() == PAGE_EVENTS_MAX {
            self.pages.pop_front();
        }
        self.pages.push_back((self.pushed, event));
    }

    /// Ends a request as cancelled: what it had to say is dropped. `false` when it has ended before, or never was.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(open) = self.requests.get_mut(&id).filter(|open| !open.ended) else { return false };
        open.unsent = 0;
        self.events.retain(|(_, event)| event.request != id);
        self.push(id, Kind::Cancelled, 0, Vec::new(), None);
        true
    }

    /// Offers events in order, of one request or of all with their pages, until none is left or one is given back.
    /// Returns how many were taken, and what `text` has to be told.
    pub fn hand_out(
        &mut self,
        of: Option<u64>,
        take: &mut dyn FnMut(Event) -> Result<(), Event>,
    ) -> (usize, Vec<Note>) {
        let (mut taken, mut notes) = (0, Vec::new());
        let mut at = 0;
        loop {
            let older = |pages: &(u64, Event)| self.events.front().is_none_or(|event| pages.0 < event.0);
            let pages = of.is_none() && self.pages.front().is_some_and(older);
            let row = match of {
                None if pages => self.pages.pop_front(),
                None => self.events.pop_front(),
                Some(id) => {
                    at += self.events.iter().skip(at).take_while(|(_, event)| event.request != id).count();
                    self.events.remove(at)
                }
            };
            let Some((number, event)) = row else { break };
            let (id, kind, bytes) = (event.request, event.kind, event.bytes());
            if let Err(event) = take(event) {
                let queue = if pages { &mut self.pages } else { &mut self.events };
                queue.insert(at, (number, event));
                break;
            }
            taken += 1;
            if kind.is_last() {
                self.requests.remove(&id);
            } else if let Some(open) = self.requests.get_mut(&id).filter(|_| kind != Kind::Pages) {
                open.unsent -= bytes;
                if open.full && open.unsent <= self.stream_buffer / 2 {
                    open.full = false;
                    notes.push(Note::Room(id));
                }
            }
        }
        (taken, notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(queue: &mut Queue, id: u64, bytes: usize) -> Option<Note> {
        queue.push(id, Kind::Chunk, 200, vec![b' '; bytes], None)
    }

    fn take(queue: &mut Queue, of: Option<u64>, most: usize) -> (Vec<(u64, Kind)>, Vec<Note>) {
        let mut seen = Vec::new();
        let (taken, notes) = queue.hand_out(of, &mut |event| {
            if seen.len() == most {
                return Err(event);
            }
            seen.push((event.request, event.kind));
            Ok(())
        });
        assert_eq!(taken, seen.len());
        (seen, notes)
    }

    #[test]
    fn a_request_that_nobody_polls_is_paused_and_goes_on() {
        let mut queue = Queue::new(1000, 2);
        let (a, b) = (queue.begin(Shape::OpenAi).unwrap(), queue.begin(Shape::OpenAi).unwrap());
        assert_eq!(queue.begin(Shape::OpenAi), None, "two are all");
        assert_eq!((chunk(&mut queue, a, 500), chunk(&mut queue, b, 100)), (None, None));
        assert_eq!((chunk(&mut queue, a, 500), chunk(&mut queue, a, 10)), (Some(Note::Full(a)), None));
        assert_eq!(take(&mut queue, Some(a), 1), (vec![(a, Kind::Chunk)], vec![]));
        assert_eq!(take(&mut queue, None, 9).1, [Note::Room(a)]);
        assert_eq!(queue.push(a, Kind::End, 200, Vec::new(), None), None);
        assert_eq!(queue.push(a, Kind::End, 200, Vec::new(), None), None, "nothing follows the last event");
        assert!(queue.begin(Shape::OpenAi).is_none() && queue.knows(a), "it counts until its last event is taken");
        assert_eq!(take(&mut queue, None, 9).0, [(a, Kind::End)]);
        assert!(queue.begin(Shape::OpenAi).is_some() && !queue.knows(a));
    }

    #[test]
    fn cancelling_says_one_thing() {
        let mut queue = Queue::new(1000, 2);
        let (a, b) = (queue.begin(Shape::OpenAi).unwrap(), queue.begin(Shape::OpenAi).unwrap());
        chunk(&mut queue, a, 10);
        chunk(&mut queue, b, 10);
        assert!(queue.cancel(a) && !queue.cancel(a) && !queue.cancel(7));
        chunk(&mut queue, a, 10);
        assert_eq!(take(&mut queue, None, 9).0, [(b, Kind::Chunk), (a, Kind::Cancelled)]);
        assert_eq!(queue.running(), [b]);
    }

    #[test]
    fn pages_are_in_order_and_bounded() {
        let mut queue = Queue::new(1000, 2);
        let a = queue.begin(Shape::OpenAi).unwrap();
        let count = PageCount { choice: 1, held: 2, free: 3 };
        queue.push_pages(a, count);
        chunk(&mut queue, a, 10);
        queue.push_pages(a, count);
        assert_eq!(take(&mut queue, Some(a), 9).0, [(a, Kind::Chunk)]);
        assert_eq!(take(&mut queue, None, 1).0, [(a, Kind::Pages)]);
        for _ in 0..PAGE_EVENTS_MAX + 5 {
            queue.push_pages(a, count);
        }
        let mut sequence = Vec::new();
        queue.hand_out(None, &mut |event| {
            assert_eq!((event.choice, event.pages), (1, (2, 3)));
            sequence.push(event.sequence);
            Ok(())
        });
        assert_eq!((sequence.len(), sequence[0]), (PAGE_EVENTS_MAX, 7), "the oldest were dropped");
    }

    #[test]
    fn ids_are_those_of_the_first_choice() {
        let chunk = br#"{"choices":[{"index":2,"delta":{},"token_ids":[7,8]}],"usage":null}"#;
        assert_eq!(ids(chunk), (2, vec![7, 8]));
        assert_eq!(ids(br#"{"choices":[]}"#), (0, vec![]));
        assert_eq!(ids(br#"{"tokens":[1]}"#), (0, vec![]));
    }
}
