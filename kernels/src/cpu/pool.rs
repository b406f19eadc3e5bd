//! The worker pool: one job at a time, handed out in pieces by a counter, with a barrier at its end.
//!
//! Worker 0 is the thread that starts a job; it always takes part. The other workers *join* an open job if they see
//! it in time; the starter closes the job when no piece is left and waits only for those who joined. So a worker that
//! the operating system does not schedule delays nothing, and more threads than cores cost little.
//!
//! Barrier: everything written before the job started is visible inside it, and everything written inside it is
//! visible after `run` or `split` returns. Between jobs of a [`Pass`] idle workers spin (bounded, yielding when cores
//! are scarce); outside one they park.
#![expect(unsafe_code, reason = "a job borrows from the stack of its starter; its lifetime is erased for the workers")]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use bumpalo::Bump;
use parking_lot::{Condvar, Mutex};

use super::disjoint::Disjoint;
use super::lists::Shelf;

/// Turns an idle worker spins before it parks, outside a pass: a few microseconds.
const IDLE_TURNS: u32 = 2_000;
/// The same inside a pass: a few milliseconds, longer than any serial part of a healthy pass.
const PASS_TURNS: u32 = 200_000;
/// Turns spun without giving the core away: longer than the gaps between the jobs of a pass, because on a busy machine a
/// core given away comes back after milliseconds.
const KEEN_TURNS: u32 = 20_000;
/// What a yield counts for, in turns.
const YIELD_TURNS: u32 = 64;

/// `gate`: bits 32.. epoch of the job, bit 31 open, bits ..31 workers inside.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

thread_local! {
    /// This thread is inside a job (always true for pool threads): starting another would wait for itself.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads that run one job at a time. See the module page for the barrier and the spinning.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a job, so that several threads may own the pool in turn.
    turn: Mutex<()>,
    lists: Shelf,
}

/// Keeps a contended word on cache lines of its own.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    gate: Line<AtomicU64>,
    /// The open job. Written only while the gate is closed and empty, read only between joining and leaving.
    job: UnsafeCell<*const Job<'static>>,
    sleepers: Line<AtomicUsize>,
    /// The starter waits, parked, for the last worker to leave.
    starter_parked: AtomicBool,
    passes: AtomicUsize,
    stop: AtomicBool,
    /// Counts calls to wake everybody without a job.
    wakes: Mutex<u64>,
    wake: Condvar,
    left: Condvar,
    cores_scarce: bool,
}

// SAFETY: `job` is the only field that is not Sync by itself; the gate protocol (see `Pool::begin`) orders every access.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointee is Sync and outlives its use.
unsafe impl Send for Shared {}

struct Job<'a> {
    work: &'a (dyn Fn(usize, Range<usize>) + Sync),
    next: Line<AtomicUsize>,
    items: usize,
    grain: usize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Job<'_> {
    /// Takes pieces until none is left. A panic ends the job early for everybody and is kept for the starter.
    fn work_through(&self, worker: usize) {
        loop {
            let start = self.next.0.fetch_add(self.grain, Ordering::Relaxed);
            if start >= self.items {
                return;
            }
            let piece = start..self.items.min(start + self.grain);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.work)(worker, piece))) {
                self.next.0.store(self.items, Ordering::Relaxed);
                self.panic.lock().get_or_insert(payload);
                return;
            }
        }
    }
}

impl Pool {
    /// A pool of `threads` workers, the calling thread counted as worker 0.
    ///
    /// # Panics
    /// If `threads` is 0 or the operating system refuses a thread.
    pub fn new(threads: usize) -> Self {
        Self::start(threads).expect("the operating system refused a worker thread")
    }

    /// As [`Self::new`]. Where a thread is refused, those that were had are joined.
    ///
    /// # Errors
    /// If the operating system refuses a thread.
    ///
    /// # Panics
    /// If `threads` is 0.
    pub fn start(threads: usize) -> io::Result<Self> {
        assert!(threads > 0, "a pool has at least one worker, its caller");
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let shared = Arc::new(Shared {
            gate: Line(AtomicU64::new(0)),
            job: UnsafeCell::new(std::ptr::null()),
            sleepers: Line(AtomicUsize::new(0)),
            starter_parked: AtomicBool::new(false),
            passes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            wakes: Mutex::new(0),
            wake: Condvar::new(),
            left: Condvar::new(),
            cores_scarce: threads > cores,
        });
        // Dropping it ends the workers that it has, so an early return leaves none behind.
        let mut pool =
            Self { shared, workers: Vec::with_capacity(threads - 1), turn: Mutex::new(()), lists: Shelf::new(threads) };
        for worker in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("worker-{worker}"));
            pool.workers.push(builder.spawn(move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Bytes that a pool of `threads` workers keeps for lists.
    pub fn bytes_for(threads: usize) -> usize {
        Shelf::bytes_for(threads)
    }

    /// Lends memory for short lists, which are gone when `work` returns.
    pub fn lists<R>(&self, work: impl FnOnce(&Bump) -> R) -> R {
        self.lists.lend(work)
    }

    /// Workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Wakes the workers and keeps them spinning between jobs until the guard is dropped.
    pub fn pass(&self) -> Pass<'_> {
        self.shared.passes.fetch_add(1, Ordering::Relaxed);
        if self.shared.sleepers.0.load(Ordering::Relaxed) > 0 {
            self.shared.wake_all();
        }
        Pass { shared: &self.shared }
    }

    /// Calls `work(i)` once for every `i` in `0..threads()`, and returns when all have returned. Calls run side by
    /// side where threads are free, but a thread may make several of them in turn: they must not wait for each other.
    ///
    /// # Panics
    /// With the panic of `work`, after every running call has ended.
    pub fn run(&self, work: impl Fn(usize) + Sync) {
        self.begin(self.threads(), 1, &|_, piece: Range<usize>| piece.for_each(&work));
    }

    /// Calls `work` with ranges that together cover `0..items` once, each a multiple of `grain` long (but the last).
    ///
    /// # Panics
    /// With the panic of `work`, after every running call has ended; if `grain` is 0.
    pub fn split(&self, items: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
        self.begin(items, grain, &|_, piece| work(piece));
    }

    /// As [`Pool::split`]; `work` is also told which worker it runs on, `0..threads()`: no two calls run at the same
    /// time under the same number.
    pub fn split_with_worker(&self, items: usize, grain: usize, work: impl Fn(usize, Range<usize>) + Sync) {
        self.begin(items, grain, &work);
    }

    /// As [`Pool::split`]; each call of `work` has memory for lists of its own.
    pub(crate) fn split_with_lists(&self, items: usize, grain: usize, work: impl Fn(&Bump, Range<usize>) + Sync) {
        self.begin(items, grain, &|_, piece| self.lists(|lists| work(lists, piece)));
    }

    /// As [`Pool::split`] over the rows of `dst: [rows][width]`; `work(first_row, rows)` owns the rows it is given.
    ///
    /// # Panics
    /// As [`Pool::split`]; if `dst` is not a whole number of rows.
    pub fn split_rows_mut<T: Send>(
        &self,
        dst: &mut [T],
        width: usize,
        grain: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(width > 0 && dst.len().is_multiple_of(width), "{} elements are no rows of {width}", dst.len());
        let rows = dst.len() / width;
        let disjoint = Disjoint::new(dst);
        self.begin(rows, grain, &|_, piece| {
            // SAFETY: the pieces of a job do not overlap.
            let rows = unsafe { disjoint.range(piece.start * width..piece.end * width) };
            work(piece.start, rows);
        });
    }

    fn begin(&self, items: usize, grain: usize, work: &(dyn Fn(usize, Range<usize>) + Sync)) {
        assert!(grain > 0, "pieces of no items");
        if items == 0 {
            return;
        }
        if self.workers.is_empty() || items <= grain {
            let mut start = 0;
            while start < items {
                let end = items.min(start + grain);
                work(0, start..end);
                start = end;
            }
            return;
        }
        assert!(!IN_JOB.get(), "a job started another job: it would wait for itself");
        let _turn = self.turn.lock();
        let job = Job { work, next: Line(AtomicUsize::new(0)), items, grain, panic: Mutex::new(None) };
        let shared = &*self.shared;
        let epoch = (shared.gate.0.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // SAFETY: the gate is closed and nobody is inside (the previous start waited for that, `turn` excludes others),
        // so no worker reads the slot. The lifetime is erased; workers use the pointer only between joining and
        // leaving, and this function does not return or unwind past `job` before the gate is closed and empty again:
        // `work_through` catches panics and nothing between here and there panics.
        unsafe { *shared.job.get() = (&raw const job).cast::<Job<'static>>() };
        shared.gate.0.store(epoch << 32 | OPEN, Ordering::SeqCst);
        if shared.sleepers.0.load(Ordering::SeqCst) > 0 {
            drop(shared.wakes.lock()); // a worker about to sleep is asleep, or sees the gate, after this
            shared.wake.notify_all();
        }
        IN_JOB.set(true);
        job.work_through(0);
        IN_JOB.set(false);
        shared.gate.0.fetch_and(!OPEN, Ordering::SeqCst);
        shared.await_empty();
        if let Some(payload) = job.panic.into_inner() {
            drop(_turn);
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of jobs; it cannot have one of its own.
            worker.join().expect("a pool worker died outside a job");
        }
    }
}

/// While it lives, idle workers spin instead of parking. See [`Pool::pass`].
pub struct Pass<'a> {
    shared: &'a Shared,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.shared.passes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn serve(&self, worker: usize) {
        IN_JOB.set(true);
        let mut seen = 0;
        while let Some(gate) = self.await_job(seen) {
            seen = gate >> 32;
            if let Some(job) = self.join(seen) {
                job.work_through(worker);
                self.leave();
            }
        }
    }

    /// The gate once it carries another epoch than `seen`, or `None` when the pool ends.
    fn await_job(&self, seen: u64) -> Option<u64> {
        let mut turns = 0;
        loop {
            let gate = self.gate.0.load(Ordering::Acquire);
            if gate >> 32 != seen {
                return Some(gate);
            }
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let limit = if self.passes.load(Ordering::Relaxed) > 0 { PASS_TURNS } else { IDLE_TURNS };
            if turns < limit {
                turns += self.relax(turns);
            } else {
                self.park(seen);
                turns = 0;
            }
        }
    }

    /// Enters the job of this epoch unless it is closed already.
    fn join(&self, epoch: u64) -> Option<&Job<'_>> {
        let mut gate = self.gate.0.load(Ordering::Relaxed);
        while gate >> 32 == epoch && gate & OPEN != 0 {
            match self.gate.0.compare_exchange_weak(gate, gate + 1, Ordering::SeqCst, Ordering::Relaxed) {
                // SAFETY: inside an open gate: the slot was written before it opened, and the job stays alive until
                // this worker has left.
                Ok(_) => return Some(unsafe { &**self.job.get() }),
                Err(now) => gate = now,
            }
        }
        None
    }

    /// Leaves the job; it must not be touched afterwards.
    fn leave(&self) {
        let before = self.gate.0.fetch_sub(1, Ordering::SeqCst);
        if before & (OPEN | INSIDE) == 1 && self.starter_parked.load(Ordering::SeqCst) {
            drop(self.wakes.lock());
            self.left.notify_all();
        }
    }

    /// Waits until nobody is inside: spins, then yields, then parks.
    fn await_empty(&self) {
        let mut turns = 0;
        while turns < PASS_TURNS {
            if self.gate.0.load(Ordering::Acquire) & INSIDE == 0 {
                return;
            }
            turns += self.relax(turns);
        }
        let mut guard = self.wakes.lock();
        self.starter_parked.store(true, Ordering::SeqCst);
        while self.gate.0.load(Ordering::SeqCst) & INSIDE != 0 {
            self.left.wait(&mut guard);
        }
        self.starter_parked.store(false, Ordering::Relaxed);
    }

    /// One turn of waiting; returns what it counts for.
    fn relax(&self, turns: u32) -> u32 {
        if self.cores_scarce || turns >= KEEN_TURNS {
            std::thread::yield_now();
            YIELD_TURNS
        } else {
            std::hint::spin_loop();
            1
        }
    }

    fn park(&self, seen: u64) {
        let mut wakes = self.wakes.lock();
        let before = *wakes;
        self.sleepers.0.fetch_add(1, Ordering::SeqCst);
        while self.gate.0.load(Ordering::SeqCst) >> 32 == seen && *wakes == before && !self.stop.load(Ordering::Relaxed)
        {
            self.wake.wait(&mut wakes);
        }
        self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake_all(&self) {
        *self.wakes.lock() += 1;
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests;
