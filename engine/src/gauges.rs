//! gauges: what the engine looks like from outside. The world writes one snapshot a tick and never waits for a reader;
//! a reader that is overtaken reads again. All words of a snapshot are of one tick.
//!
//! ```text
//! version  odd: being written      even: whole
//! words    [ the engine's | slot 0's | slot 1's | ... ]
//! ```
//!
//! Source: H.-J. Boehm, "Can seqlocks get along with programming language memory models?", 2012.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::api::Strategy;
use crate::ids::{RequestId, Slot};
use crate::limits::{Limits, PAGE_TOKENS};
use crate::tables::requests::Phase;
use crate::tables::totals::{Buckets, FORWARD, TickKind, TickTokens, Times};
use crate::tick::System;
use crate::world::Ledger;

/// What a value consists of, word by word, for writing and for reading.
trait Words {
    fn each(&mut self, f: &mut impl FnMut(&mut u64));
}

impl Words for u64 {
    fn each(&mut self, f: &mut impl FnMut(&mut u64)) {
        f(self);
    }
}

impl<const N: usize> Words for [u64; N] {
    fn each(&mut self, f: &mut impl FnMut(&mut u64)) {
        self.iter_mut().for_each(f);
    }
}

impl<const N: usize> Words for Buckets<N> {
    fn each(&mut self, f: &mut impl FnMut(&mut u64)) {
        self.count.each(f);
        f(&mut self.sum);
    }
}

/// A struct whose fields all are words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)*
        }

        impl Words for $name {
            fn each(&mut self, f: &mut impl FnMut(&mut u64)) {
                $(self.$field.each(f);)*
            }
        }
    };
}

words! {
    /// The engine as a whole. Times are nanoseconds of its clock.
    Figures {
        /// When this was true.
        now_ns: u64,
        /// Submissions that wait for a row.
        waiting: u64,
        /// Pages that nobody has.
        pages_free: u64,
        /// Pages that rows have, shared ones once.
        pages_used: u64,
        /// Pages that the prefix cache alone holds.
        pages_cached: u64,
        /// Checkpoints that the prefix cache holds.
        checkpoints: u64,
        /// Bytes of these.
        checkpoint_bytes: u64,
        /// Pages of the prefix cache that went to make room, ever.
        pages_evicted: u64,
        /// Checkpoints that did.
        checkpoints_evicted: u64,
        /// Times a row lost its pages, ever.
        preempted: u64,
        /// Rows of which no MTP draft was accepted while another's were, ever.
        mute: u64,
        /// Bytes of the suffix index of all rows.
        suffix_bytes: u64,
        /// Ticks by [`TickKind`].
        ticks: [u64; TickKind::ALL.len()],
        /// Time of each system.
        system_ns: [u64; System::COUNT],
        /// Time of passes by [`FORWARD`].
        forward_ns: [u64; FORWARD.len()],
        /// Rows of passes by [`FORWARD`].
        forward_rows: [u64; FORWARD.len()],
        /// Sequences of all trunk passes.
        segments: u64,
        /// Prompt rows and committed tokens of each tick that ran a pass.
        tick_tokens: TickTokens,
        /// Between two commits of a row.
        step: Times,
        /// The same, per token that the later one committed.
        inter_token: Times,
    }
}

words! {
    /// One row of the requests table.
    Row {
        /// [`State`].
        state: u64,
        /// Generation of the request, 0 without one.
        generation: u64,
        /// Prompt tokens.
        prompt: u64,
        /// ... of which are computed or were cached.
        prompt_done: u64,
        /// ... of which the prefix cache had.
        cached: u64,
        /// Committed completion tokens.
        decoded: u64,
        /// Most of these.
        limit: u64,
        /// [`Strategy`], as its place in [`Strategy::ALL`].
        strategy: u64,
        /// Drafts of the last window.
        window: u64,
        /// Windows so far.
        windows: u64,
        /// Tokens that these committed.
        window_tokens: u64,
        /// Arrival in the inbox.
        arrived_ns: u64,
    }
}

/// What a row is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum State {
    /// Nobody's.
    #[default]
    Free,
    /// Lost its pages and waits for new ones.
    Queued,
    /// Computes its prompt.
    Prefill,
    /// Generates.
    Decode,
    /// Waits for its reader.
    Stalled,
}

impl State {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Free, Self::Queued, Self::Prefill, Self::Decode, Self::Stalled];

    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Stalled => "stalled",
        }
    }
}

impl Row {
    /// What it is at.
    ///
    /// # Panics
    /// If the word is none that [`Gauges`] writes.
    pub fn state(&self) -> State {
        State::ALL[self.state as usize]
    }

    /// How it speculates.
    ///
    /// # Panics
    /// If the word is none that [`Gauges`] writes.
    pub fn strategy(&self) -> Strategy {
        Strategy::ALL[self.strategy as usize]
    }

    /// Whose it is, as row `slot`.
    pub fn request(&self, slot: usize) -> Option<RequestId> {
        let generation = NonZeroU32::new(self.generation as u32)?;
        Some(RequestId { slot: Slot(slot as u32), generation })
    }
}

/// Everything of one tick.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The engine.
    pub engine: Figures,
    /// Its rows.
    pub rows: Vec<Row>,
}

impl Snapshot {
    /// Of nothing, for so many rows.
    pub fn new(slots: usize) -> Self {
        Self { engine: Figures::default(), rows: vec![Row::default(); slots] }
    }

    fn each(&mut self, f: &mut impl FnMut(&mut u64)) {
        self.engine.each(f);
        self.rows.iter_mut().for_each(|row| row.each(f));
    }

    /// Looks at the tables.
    pub fn take(&mut self, ledger: &Ledger, now_ns: u64) {
        let Ledger { pages, prefix, requests, counters, totals, windows, .. } = ledger;
        let (free, cached) = (pages.free_len(), pages.idle_len());
        let checkpoints = prefix.checkpoints();
        self.engine = Figures {
            now_ns,
            waiting: ledger.waiting.len() as u64,
            pages_free: free as u64,
            pages_used: (pages.len() - free - cached) as u64,
            pages_cached: cached as u64,
            checkpoints: checkpoints as u64,
            checkpoint_bytes: checkpoints.saturating_mul(ledger.shape.checkpoint_bytes) as u64,
            pages_evicted: prefix.evicted.0,
            checkpoints_evicted: prefix.evicted.1,
            preempted: counters.preempted,
            mute: totals.mute,
            suffix_bytes: ledger.suffix_bytes,
            ticks: totals.ticks,
            system_ns: totals.system_ns,
            forward_ns: totals.forward_ns,
            forward_rows: totals.forward_rows,
            segments: totals.segments,
            tick_tokens: totals.tick_tokens,
            step: totals.step,
            inter_token: totals.inter_token,
        };
        for (s, row) in self.rows.iter_mut().enumerate() {
            let slot = Slot(s as u32);
            let state = match requests.phase[s] {
                Phase::Free | Phase::Done => State::Free,
                Phase::Decode | Phase::Preempted if requests.stalled(slot) => State::Stalled,
                Phase::Preempted => State::Queued,
                Phase::Prefill => State::Prefill,
                Phase::Decode => State::Decode,
            };
            if state == State::Free {
                *row = Row::default();
                continue;
            }
            let report = &counters.report[s];
            let bonus = report.bonus.saturating_sub(report.plain);
            *row = Row {
                state: state as u64,
                generation: requests.id(slot).generation.get().into(),
                prompt: requests.prompt_len[s].into(),
                // The last prompt token is the first anchor: it counts once something was committed behind it.
                prompt_done: match requests.completion_len(slot) {
                    0 => requests.kv_len[s].min(requests.prompt_len[s]).into(),
                    _ => requests.prompt_len[s].into(),
                },
                cached: report.cached_tokens,
                decoded: requests.completion_len(slot).into(),
                limit: requests.max_tokens[s].into(),
                strategy: requests.speculation[s].strategy as u64,
                window: row.window,
                windows: report.windows,
                window_tokens: report.total.accepted + bonus,
                arrived_ns: requests.arrived_ns[s],
            };
        }
        for window in 0..windows.len() {
            let row = &mut self.rows[windows.slot[window].index()];
            if row.state() != State::Free {
                row.window = windows.draft_len(window) as u64;
            }
        }
    }
}

/// The last snapshot. One writer, any number of readers.
#[derive(Debug)]
pub struct Gauges {
    version: AtomicU64,
    words: Box<[AtomicU64]>,
    slots: usize,
    pages: usize,
}

impl Gauges {
    /// Of an engine that has not begun.
    pub fn new(limits: &Limits) -> Self {
        let mut words = Vec::new();
        Snapshot::new(limits.slots).each(&mut |word| words.push(AtomicU64::new(*word)));
        let (words, slots, pages) = (words.into_boxed_slice(), limits.slots, limits.pages);
        Self { version: AtomicU64::new(0), words, slots, pages }
    }

    /// Bytes of [`Self::new`] and of the writer's own copy.
    pub fn bytes_for(slots: usize) -> usize {
        2 * (size_of::<Figures>() + slots * size_of::<Row>())
    }

    /// Rows of the requests table.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Pages of the pool, of [`PAGE_TOKENS`] positions each.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Positions of a page.
    pub fn page_tokens(&self) -> usize {
        PAGE_TOKENS
    }

    /// Writes a snapshot. By the holder of the world alone.
    ///
    /// # Panics
    /// If it is of another number of rows.
    pub fn publish(&self, snapshot: &mut Snapshot) {
        assert_eq!(snapshot.rows.len(), self.slots, "a snapshot of another engine");
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        let mut words = self.words.iter();
        snapshot.each(&mut |word| words.next().expect("as many as it was made of").store(*word, Ordering::Relaxed));
        self.version.store(version + 2, Ordering::Release);
    }

    /// The last whole snapshot.
    pub fn read(&self) -> Snapshot {
        let mut out = Snapshot::new(self.slots);
        loop {
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let mut words = self.words.iter();
                out.each(&mut |word| *word = words.next().expect("as many as it is made of").load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return out;
                }
            }
            // A tick is far longer than its snapshot takes to write.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn filled(value: u64) -> Snapshot {
        let mut snapshot = Snapshot::new(3);
        snapshot.each(&mut |word| *word = value);
        snapshot
    }

    #[test]
    fn every_word_arrives_where_it_belongs() {
        let gauges = Gauges::new(&Limits::new(3, 64));
        let mut next = 0;
        let mut sent = Snapshot::new(3);
        sent.each(&mut |word| {
            next += 1;
            *word = next;
        });
        gauges.publish(&mut sent);
        let read = gauges.read();
        assert_eq!(read, sent);
        assert_eq!((read.engine.now_ns, read.rows[2].arrived_ns), (1, next));
    }

    #[test]
    fn a_reader_never_sees_two_snapshots_in_one() {
        let gauges = Arc::new(Gauges::new(&Limits::new(3, 64)));
        let reader = Arc::clone(&gauges);
        let reads = std::thread::spawn(move || {
            let mut last = 0;
            while last < 20_000 {
                let read = reader.read();
                let now = read.engine.now_ns;
                assert_eq!(read, filled(now), "words of several snapshots");
                assert!(now >= last, "a snapshot went back");
                last = now;
            }
        });
        for value in 1..=20_000 {
            gauges.publish(&mut filled(value));
        }
        reads.join().expect("the reader saw whole snapshots");
    }
}
