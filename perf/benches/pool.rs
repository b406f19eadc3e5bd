//! Hand-off of an empty job: inside a pass (spinning), outside after a pause (parked), and with more threads than cores.

use std::time::{Duration, Instant};

use engine_kernels::Pool;

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
    println!("{cores} cores; median time of an empty job that every worker may join");
    for threads in [1, 2, cores, 4 * cores] {
        let pool = Pool::new(threads);
        let pass = pool.pass();
        let spinning = hand_off(&pool, Duration::ZERO);
        drop(pass);
        let parked = hand_off(&pool, Duration::from_millis(1));
        let ratio = parked.as_secs_f64() / spinning.as_secs_f64().max(1e-9);
        println!("{threads:3} threads: in a pass {spinning:?}, parked {parked:?} ({ratio:.0} times)");
    }
}
