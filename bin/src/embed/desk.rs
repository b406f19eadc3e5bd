//! Between a host and the engine: the queue that the host polls, and `host`, the thread that fills it.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use engine::engine::EngineHandle;
use parking_lot::{Condvar, Mutex};

use super::error::CallError;
use super::queue::{Kind, Note, Queue};
use crate::serve::error::ApiError;
use crate::serve::link::{Exchange, Shared, State, ToFront, ToText};
use crate::serve::{stop, text};

/// What the host's threads and `host` share.
pub(super) struct Desk {
    pub shared: Arc<Shared>,
    pub state: Mutex<Desktop>,
    /// Rung when there are events, and when something has ended.
    pub news: Condvar,
}

pub(super) struct Desktop {
    pub queue: Queue,
    /// `None` from the beginning of a close.
    pub to_text: Option<Sender<ToText>>,
    pub closed: bool,
    /// Why nothing more is computed, although nobody closed the handle.
    pub dead: Option<String>,
}

impl Desktop {
    pub fn tell(&self, notes: impl IntoIterator<Item = Note>) {
        let Some(to_text) = &self.to_text else { return };
        for note in notes {
            // Where `text` has gone there is nobody to pause.
            let _ = to_text.send(match note {
                Note::Full(id) => ToText::Full(exchange(id)),
                Note::Room(id) => ToText::Room(exchange(id)),
            });
        }
    }
}

pub(super) fn exchange(id: u64) -> Exchange {
    Exchange { conn: 0, serial: id }
}

impl Desktop {
    /// Whether there is anybody to ask.
    ///
    /// # Errors
    /// [`CallError::Closed`], [`CallError::Dead`].
    pub fn check(&self) -> Result<(), CallError> {
        match &self.dead {
            _ if self.closed => Err(CallError::Closed),
            Some(why) => Err(CallError::Dead(why.clone())),
            None => Ok(()),
        }
    }
}

impl Desk {
    /// Takes what `text` says until it has ended, then ends everything else.
    pub fn serve(&self, from_text: &Receiver<ToFront>, text: text::Threads, engine: EngineHandle) {
        for message in from_text {
            self.take(message);
            self.news.notify_all();
        }
        let mut why = text.text.join().is_err().then(|| "the text thread panicked".to_owned());
        if text.long.join().is_err() {
            why = Some("the thread that reads large requests panicked".to_owned());
        }
        if let Err(dead) = stop(engine) {
            why = Some(dead.to_string());
        }
        self.over(why);
    }

    /// Nothing more comes: whoever asks is told, and every request that runs.
    fn over(&self, why: Option<String>) {
        let mut state = self.state.lock();
        if !state.closed {
            self.shared.advance(State::Dead);
            let why = why.unwrap_or_else(|| "it stopped".to_owned());
            let error = ApiError::engine(format!("the engine has ended: {why}"));
            for id in state.queue.running() {
                let body = state.queue.shape(id).body(&error, "").to_string().into_bytes();
                state.queue.push(id, Kind::Error, error.status, body, None);
            }
            state.dead = Some(why);
        }
        drop(state);
        self.news.notify_all();
    }

    fn take(&self, message: ToFront) {
        let mut state = self.state.lock();
        let queue = &mut state.queue;
        let mut notes: Vec<Note> = Vec::new();
        match message {
            ToFront::Reply(exchange, reply, held) => {
                let reply = reply.in_shape(queue.shape(exchange.serial), "");
                let kind = if reply.status < 400 { Kind::Answer } else { Kind::Error };
                queue.push(exchange.serial, kind, reply.status, reply.body, held);
            }
            ToFront::Data(exchange, bytes) => {
                let chunks = events(&bytes);
                notes.extend(chunks.filter_map(|c| queue.push(exchange.serial, Kind::Chunk, 200, c.to_vec(), None)));
            }
            ToFront::Close(exchange) => {
                queue.push(exchange.serial, Kind::End, 200, Vec::new(), None);
            }
            ToFront::Break(exchange, status, bytes) => {
                let error = events(&bytes).next().unwrap_or_default().to_vec();
                queue.push(exchange.serial, Kind::Error, status, error, None);
            }
            ToFront::Pages(exchange, count) => queue.push_pages(exchange.serial, count),
            // The end of the channel says it, with the reason behind it.
            ToFront::Open(..) | ToFront::Dead => {}
        }
        state.tell(notes);
    }
}

/// Says that it is over, where the thread that would say so panics.
pub(super) struct LastWord<'a>(pub &'a Desk);

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.over(Some("the host thread panicked".to_owned()));
        }
    }
}

/// The JSON in server-sent events of this engine, without comments and the mark of the end.
fn events(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    // JSON of this engine has no line breaks.
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data: "));
    lines.filter(|json| *json != b"[DONE]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::shapes::Shape;

    /// Whoever waits for an event would wait for ever.
    #[test]
    fn a_host_thread_that_panics_is_heard_of() {
        let queue = Queue::new(1000, 2);
        let state = Mutex::new(Desktop { queue, to_text: None, closed: false, dead: None });
        let desk = Desk { shared: Arc::new(Shared::new()), state, news: Condvar::new() };
        let id = desk.state.lock().queue.begin(Shape::OpenAi).unwrap();
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _last = LastWord(&desk);
                panic!("a fault");
            });
            assert!(panics.join().is_err());
        });
        let mut state = desk.state.lock();
        assert!(matches!(state.check(), Err(CallError::Dead(why)) if why.contains("host thread")));
        let mut kinds = Vec::new();
        state.queue.hand_out(Some(id), &mut |event| {
            kinds.push(event.kind);
            Ok(())
        });
        assert_eq!(kinds, [Kind::Error]);
    }

    #[test]
    fn events_lose_their_framing() {
        let text = b"data: {\"a\":1}\n\n: keep-alive\n\ndata: {\"b\":\"data: x\"}\n\ndata: [DONE]\n\n";
        let found: Vec<&[u8]> = events(text).collect();
        assert_eq!(found, [&b"{\"a\":1}"[..], b"{\"b\":\"data: x\"}"]);
    }
}
