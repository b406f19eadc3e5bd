//! Hand-off of an empty job: inside a pass (spinning), outside after a pause (parked), and with more threads than cores.

use std::hint::black_box;
use std::time::{Duration, Instant};

use engine_kernels::cpu::peak::fma_chains;
use engine_kernels::{Isa, Pool};
use engine_perf::shortest;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn hand_off(pool: &Pool, pause: Duration) -> Duration {
    median(
        (0..2000)
            .map(|_| {
                std::thread::sleep(pause);
                let start = Instant::now();
                pool.run(|_| ());
                start.elapsed()
            })
            .take(if pause.is_zero() { 2000 } else { 200 })
            .collect(),
    )
}

fn main() {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("{cores} cores; median time of an empty job (the starter does not wait for workers that are late)");
    for threads in [1, 2, cores, 4 * cores] {
        let pool = Pool::new(threads);
        let pass = pool.pass();
        let spinning = hand_off(&pool, Duration::ZERO);
        drop(pass);
        let parked = hand_off(&pool, Duration::from_millis(1));
        let ratio = parked.as_secs_f64() / spinning.as_secs_f64().max(1e-9);
        println!("{threads:3} threads: in a pass {spinning:?}, parked {parked:?} ({ratio:.0} times)");
    }
    println!("two equal pieces of work on two threads, in a pass: time against one thread (ideal 0.5)");
    let pool = Pool::new(2);
    let _pass = pool.pass();
    for turns in [500, 2_000, 10_000, 50_000] {
        let piece = || {
            black_box(fma_chains(Isa::best(), black_box(turns)));
        };
        let times = shortest(2000, &mut [&mut || (0..2).for_each(|_| piece()), &mut || pool.run(|_| piece())]);
        let ratio = times[1].as_secs_f64() / times[0].as_secs_f64();
        println!("  2 x {:?}: {ratio:.2}", times[0] / 2);
    }
}
