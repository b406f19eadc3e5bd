//! What the machine does at best: plain reads, and arithmetic in registers.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use engine::exec::{Isa, Pool};
use engine::probe::{ReadBuffer, fma_chains, fma_per_turn, int8_chains, int8_per_turn};
use engine_io::plain;
use serde::Serialize;

/// Bytes of a buffer that no cache holds.
pub(super) const LARGE: usize = 256 << 20;
/// Bytes that a worker reads at a time.
const GRAIN: usize = 256 << 10;
/// Times that something is timed; the fastest counts, since what disturbs only makes it longer. Of a small buffer, as many
/// bytes are read as of the large one.
const ROUNDS: usize = 4;
/// The same of arithmetic.
const ROUNDS_ARITHMETIC: usize = 50;
/// Turns of arithmetic that a worker does at a time, some ten microseconds, and how often each does.
const TURNS: usize = 5_000;
const PIECES: usize = 8;

/// Longest file that the system tells something in.
const SYSTEM_BYTES_MAX: u64 = 1 << 20;

/// A machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Machine {
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// All threads: what was asked for.
    pub threads: usize,
    /// Plain reads of a buffer that no cache holds: by one thread, by all, with huge pages and without.
    pub reads: Vec<PlainRead>,
    /// Share of the buffer that was in huge pages where they were asked for, if the system tells.
    pub huge_share: Option<f64>,
    /// Arithmetic in registers: of one thread, of all.
    pub peaks: Vec<Peak>,
}

/// A read.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct PlainRead {
    /// Threads that read.
    pub threads: usize,
    /// Huge pages were asked for; else none are in the buffer.
    pub huge_pages: bool,
    /// GB a second.
    pub gb_s: f64,
}

/// Multiplications with addition a second, in 10^9.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Peak {
    /// Threads that compute.
    pub threads: usize,
    /// Of bytes, added up as integers.
    pub int8_g: f64,
    /// Of single precision.
    pub fma_g: f64,
}

impl Machine {
    /// Measures with one thread and with `threads`.
    pub fn measure(threads: usize, isa: Isa) -> Self {
        let pools: Vec<Pool> = [1, threads].into_iter().take(threads.min(2)).map(Pool::new).collect();
        let mut reads = Vec::new();
        let mut huge_share = None;
        for huge_pages in [true, false] {
            let before = huge_bytes();
            let reader = Reader::new(LARGE, huge_pages);
            if let (true, Some(before), Some(after)) = (huge_pages, before, huge_bytes()) {
                huge_share = Some((after.saturating_sub(before) as f64 / LARGE as f64).min(1.0));
            }
            reads.extend(pools.iter().map(|pool| PlainRead {
                threads: pool.threads(),
                huge_pages,
                gb_s: reader.gb_s(pool, LARGE as u64),
            }));
        }
        let peaks = pools.iter().map(|pool| Peak {
            threads: pool.threads(),
            int8_g: int8_g(pool, isa),
            fma_g: fma_g(pool, isa),
        });
        Self { isa: isa.name(), threads, reads, huge_share, peaks: peaks.collect() }
    }

    /// The fastest plain read by all threads.
    pub fn read_gb_s(&self) -> f64 {
        self.reads.iter().filter(|read| read.threads == self.threads).map(|read| read.gb_s).fold(0.0, f64::max)
    }

    /// Arithmetic of all threads.
    pub fn peak(&self) -> Peak {
        *self.peaks.last().expect("one thread at least")
    }
}

/// A buffer that is read.
pub(super) struct Reader(ReadBuffer);

impl Reader {
    /// A buffer of `len` bytes.
    pub fn new(len: usize, huge_pages: bool) -> Self {
        Self(ReadBuffer::new(len, huge_pages))
    }

    /// GB a second of plain reads of the first `bytes`, [`LARGE`] at most, again and again.
    pub fn gb_s(&self, pool: &Pool, bytes: u64) -> f64 {
        let bytes = usize::try_from(bytes).unwrap_or(LARGE).clamp(1, LARGE);
        let read = || {
            pool.split(bytes, GRAIN, |piece| {
                black_box(self.0.read(piece));
            });
        };
        bytes as f64 / fastest(pool, ROUNDS * LARGE / bytes.max(GRAIN), read) / 1e9
    }
}

/// Products of bytes that all workers of a pool do in registers, in 10^9 a second.
pub fn int8_g(pool: &Pool, isa: Isa) -> f64 {
    let work = |turns| {
        black_box(int8_chains(isa, turns));
    };
    arithmetic_g(pool, int8_per_turn(isa), work)
}

/// Fused multiply-adds that all workers of a pool do in registers, in 10^9 a second.
pub fn fma_g(pool: &Pool, isa: Isa) -> f64 {
    let work = |turns| {
        black_box(fma_chains(isa, turns));
    };
    arithmetic_g(pool, fma_per_turn(isa), work)
}

fn arithmetic_g(pool: &Pool, per_turn: usize, work: impl Fn(usize) + Sync) -> f64 {
    let pieces = PIECES * pool.threads();
    let round = || pool.split(pieces, 1, |piece| piece.for_each(|_| work(black_box(TURNS))));
    (pieces * TURNS * per_turn) as f64 / fastest(pool, ROUNDS_ARITHMETIC, round) / 1e9
}

/// Seconds of the fastest of `rounds` calls, while the workers of the pool are awake.
pub(super) fn fastest(pool: &Pool, rounds: usize, mut work: impl FnMut()) -> f64 {
    let _awake = pool.pass();
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..rounds).map(time).fold(f64::MAX, f64::min).max(1e-9)
}

/// Bytes of this process in huge pages of its own, where the system tells.
fn huge_bytes() -> Option<u64> {
    let told = plain::text(Path::new("/proc/self/smaps_rollup"), SYSTEM_BYTES_MAX).ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_measured_once_and_all_beside_it() {
        let machine = Machine::measure(1, Isa::best());
        let kinds = |machine: &Machine| machine.reads.iter().map(|r| (r.threads, r.huge_pages)).collect::<Vec<_>>();
        assert_eq!(kinds(&machine), [(1, true), (1, false)]);
        assert_eq!(machine.peaks.len(), 1);
        let machine = Machine::measure(2, Isa::best());
        assert_eq!(kinds(&machine), [(1, true), (2, true), (1, false), (2, false)]);
        assert_eq!(machine.peaks.iter().map(|peak| peak.threads).collect::<Vec<_>>(), [1, 2]);
        assert!(machine.reads.iter().all(|read| read.gb_s > 0.0) && machine.huge_share.is_none_or(|s| s <= 1.0));
        assert!(machine.peaks.iter().all(|peak| peak.int8_g > 0.0 && peak.fma_g > 0.0));
        assert_eq!(machine.peak().threads, 2);
    }

    #[test]
    fn the_read_of_all_threads_is_the_faster_one() {
        let read = |threads, huge_pages, gb_s| PlainRead { threads, huge_pages, gb_s };
        let reads = vec![read(1, true, 30.0), read(2, true, 15.0), read(1, false, 9.0), read(2, false, 16.0)];
        let machine = Machine { isa: "scalar", threads: 2, reads, huge_share: None, peaks: Vec::new() };
        assert_eq!(machine.read_gb_s(), 16.0);
    }
}
