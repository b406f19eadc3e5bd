//! Speed of the matrix products: for every format and number of rows, multiply-accumulates a second, and weight bytes a
//! second as a share of a plain read of the same bytes in the same run.
//!
//! `cargo bench -p engine-perf --bench matmul -- [FORMAT..] [--shape KxN] [--rows 1,2,..] [--isa scalar|avx2|avx512]
//! [--threads N] [--file] [--exact] [--cached]`. Weights are panels unless `--file` is given, and together larger than the caches
//! (96 MB), unless `--cached` says one matrix. Candidates alternate inside a round and every call is a sample; figures are lower quartiles, so that samples
//! in which something else had the core do not count.

use std::sync::Arc;
use std::time::Instant;

use engine_kernels::{Activation, Input, InputScratch, Isa, Matrix, Pool, Quant, matmul};

const TOTAL_BYTES: usize = 96 << 20;
const ROUNDS: usize = 9;
const ROUNDS_CACHED: usize = 200;

struct Options {
    quants: Vec<Quant>,
    k: usize,
    n: usize,
    rows: Vec<usize>,
    isa: Isa,
    threads: usize,
    file: bool,
    cached: bool,
    mode: Activation,
}

fn options() -> Options {
    let mut o = Options {
        quants: Vec::new(),
        k: 4096,
        n: 4096,
        rows: vec![1, 2, 4, 8, 16, 32],
        isa: Isa::best(),
        threads: 1,
        file: false,
        cached: false,
        mode: Activation::Integer,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => {} // from cargo
            "--shape" => {
                let shape = value();
                let (k, n) = shape.split_once('x').expect("--shape KxN");
                (o.k, o.n) = (k.parse().expect("K"), n.parse().expect("N"));
            }
            "--rows" => o.rows = value().split(',').map(|r| r.parse().expect("a row count")).collect(),
            "--threads" => o.threads = value().parse().expect("a thread count"),
            "--isa" => {
                let name = value();
                let same = |isa: &Isa| format!("{isa:?}").eq_ignore_ascii_case(&name);
                o.isa = Isa::available().into_iter().find(same).expect("an instruction set of this machine");
            }
            "--file" => o.file = true,
            "--cached" => o.cached = true,
            "--exact" => o.mode = Activation::Exact,
            name => {
                let same = |q: &Quant| q.name().eq_ignore_ascii_case(name);
                o.quants.push(Quant::ALL.into_iter().find(same).unwrap_or_else(|| panic!("no format {name}")));
            }
        }
    }
    if o.quants.is_empty() {
        o.quants = Quant::ALL.to_vec();
    }
    o
}

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The lower quartile.
fn quartile(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 4]
}

/// Arbitrary codes; bytes stay below 0x40, so that every float among them is finite and small.
fn weights(quant: Quant, n: usize, k: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = vec![0; n * quant.row_bytes(k)];
    for byte in &mut bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (state >> 56) as u8 & 0x3f;
    }
    bytes
}

fn main() {
    let o = options();
    let pool = Pool::new(o.threads);
    let mode = format!("{:?}, {}, {:?}", o.isa, if o.file { "file rows" } else { "panels" }, o.mode);
    println!("K = {}, N = {}, {} thread(s), {mode}", o.k, o.n, o.threads);
    println!("{:8} {:>4} {:>9} {:>9} {:>7} {:>10}", "format", "rows", "G MAC/s", "GB/s", "x read", "t / t(1)");
    let x: Vec<f32> = (0..o.k * o.rows.iter().max().expect("a row count")).map(|i| (i as f32 * 0.7).sin()).collect();
    for quant in o.quants {
        let bytes = Arc::new(weights(quant, o.n, o.k));
        let count = if o.cached { 1 } else { TOTAL_BYTES.div_ceil(bytes.len()) };
        // File rows are a copy for each matrix: shared bytes would stay in the cache.
        let mut matrices: Vec<Matrix> = (0..count)
            .map(|_| Matrix::new(quant, o.n, o.k, Arc::new(bytes.as_ref().clone())).expect("a valid shape"))
            .collect();
        if !o.file {
            Matrix::repack_all(&mut matrices.iter_mut().collect::<Vec<_>>());
        }
        let stored = matrices[0].bytes();
        let mut times = vec![Vec::new(); o.rows.len()];
        let mut reads = Vec::new();
        let mut scratch = InputScratch::new();
        let mut dst = vec![0.0; o.n * o.rows.iter().max().expect("a row count")];
        for _ in 0..if o.cached { ROUNDS_CACHED } else { ROUNDS } {
            for w in &matrices {
                reads.push(seconds(|| {
                    std::hint::black_box(w.read_all());
                }));
            }
            for (&rows, times) in o.rows.iter().zip(&mut times) {
                let _pass = pool.pass();
                for w in &matrices {
                    times.push(seconds(|| {
                        let mut input = Input::new(&mut scratch, &x[..rows * o.k], rows, o.k);
                        matmul(&pool, o.isa, o.mode, &mut input, &mut [(w, &mut dst[..rows * o.n])]);
                    }));
                }
            }
        }
        let read = stored as f64 / quartile(reads);
        let first = quartile(times[0].clone());
        for (&rows, times) in o.rows.iter().zip(times) {
            let time = quartile(times);
            let macs = (o.k * o.n * rows) as f64 / time;
            let rate = bytes.len() as f64 / time;
            println!(
                "{:8} {rows:4} {:9.1} {:9.1} {:7.2} {:10.2}",
                quant.name(),
                macs / 1e9,
                rate / 1e9,
                rate / read,
                time / first
            );
        }
        println!("{:8} read {:19.1} (one thread)", "", read / 1e9);
    }
}
