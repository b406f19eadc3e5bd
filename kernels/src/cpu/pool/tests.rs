use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Pool;

fn counters(n: usize) -> Vec<AtomicUsize> {
    (0..n).map(|_| AtomicUsize::new(0)).collect()
}

fn all_one(counts: &[AtomicUsize]) -> bool {
    counts.iter().all(|count| count.load(Ordering::Relaxed) == 1)
}

#[test]
fn run_calls_every_index_once() {
    for threads in 1..=5 {
        let pool = Pool::new(threads);
        assert_eq!(pool.threads(), threads);
        for _ in 0..50 {
            let counts = counters(threads);
            pool.run(|worker| {
                counts[worker].fetch_add(1, Ordering::Relaxed);
            });
            assert!(all_one(&counts));
        }
    }
}

#[test]
fn split_covers_every_item_once_in_pieces_of_the_grain() {
    for threads in [1, 2, 3, 7] {
        let pool = Pool::new(threads);
        let _pass = pool.pass();
        for items in [0, 1, 2, 3, 16, 17, 100] {
            for grain in [1, 2, 5, 16, 1000] {
                let counts = counters(items);
                pool.split(items, grain, |range| {
                    assert_eq!(range.start % grain, 0);
                    assert!(range.len() == grain || range.end == items);
                    range.for_each(|i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                });
                assert!(all_one(&counts), "{threads} threads, {items} items, grain {grain}");
            }
        }
    }
}

#[test]
fn rows_are_handed_out_disjoint_and_whole() {
    let pool = Pool::new(3);
    let mut rows = vec![0u32; 7 * 33];
    pool.split_rows_mut(&mut rows, 7, 2, |first, part| {
        for (i, row) in part.chunks_exact_mut(7).enumerate() {
            row.fill((first + i) as u32 + 1);
        }
    });
    for (r, row) in rows.chunks_exact(7).enumerate() {
        assert!(row.iter().all(|&x| x == r as u32 + 1));
    }
}

#[test]
fn a_worker_number_is_used_by_one_call_at_a_time() {
    let pool = Pool::new(4);
    let busy = counters(4);
    pool.split_with_worker(400, 1, |worker, _| {
        assert_eq!(busy[worker].fetch_add(1, Ordering::SeqCst), 0);
        std::thread::yield_now();
        busy[worker].fetch_sub(1, Ordering::SeqCst);
    });
}

/// Many more threads than cores, thousands of tiny jobs: each must end although most workers are never scheduled.
#[test]
fn tiny_jobs_end_with_far_more_threads_than_cores() {
    let pool = Pool::new(24);
    let mut sums = vec![0usize; 64];
    let _pass = pool.pass();
    for round in 1..=3000 {
        pool.split_rows_mut(&mut sums, 1, 4, |first, part| {
            for (i, x) in part.iter_mut().enumerate() {
                *x += first + i;
            }
        });
        // What workers wrote is visible here, what is written here is visible to them.
        assert_eq!(sums[63], 63 * round);
        sums[0] = 0;
    }
    assert!(sums.iter().enumerate().all(|(i, &x)| x == i * 3000));
}

#[test]
fn several_threads_share_a_pool() {
    let pool = Pool::new(3);
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let _pass = pool.pass();
                    pool.split(10, 1, |range| {
                        total.fetch_add(range.len(), Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 200 * 10);
}

#[test]
fn parked_workers_come_back() {
    let pool = Pool::new(3);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(3));
        let counts = counters(3);
        pool.run(|worker| {
            counts[worker].fetch_add(1, Ordering::Relaxed);
        });
        assert!(all_one(&counts));
    }
}

#[test]
fn a_starter_waits_for_a_slow_worker() {
    let pool = Pool::new(2);
    let done = AtomicUsize::new(0);
    for _ in 0..3 {
        done.store(0, Ordering::Relaxed);
        let _pass = pool.pass();
        pool.split(2, 1, |range| {
            if range.start == 1 {
                std::thread::sleep(Duration::from_millis(20));
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn a_panic_reaches_the_starter_and_the_pool_lives_on() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads);
        for bad in [0, 1, 50, 99] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.split(100, 1, |range| assert!(range.start != bad, "item {bad} is bad"));
            }));
            let payload = result.expect_err("the panic is not lost");
            assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("item {bad} is bad"));
            let counts = counters(100);
            pool.split(100, 3, |range| {
                range.for_each(|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
            });
            assert!(all_one(&counts));
        }
    }
}

#[test]
#[should_panic(expected = "a job started another job")]
fn a_job_inside_a_job_is_refused() {
    let pool = Pool::new(2);
    pool.split(4, 1, |_| pool.split(4, 1, |_| ()));
}

#[test]
fn dropping_joins_spinning_and_parked_workers() {
    for sleep in [0, 3] {
        let pool = Pool::new(3);
        drop(pool.pass());
        std::thread::sleep(Duration::from_millis(sleep));
        drop(pool);
    }
}
