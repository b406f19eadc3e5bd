//! The parser that `FUZZ_TARGET` names, fed by libFuzzer.
#![no_main]

use std::cell::RefCell;

use engine_tests::fuzz::{Reader, Target, find};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static READER: RefCell<Reader> = RefCell::new((target().reader)());
}

fn target() -> &'static Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET={name} names no parser; `fuzz --list` of engine-perf names them"))
}

/// Inputs in order to begin with.
fn seeds() {
    let Some(folder) = std::env::var_os("FUZZ_SEEDS") else { return };
    std::fs::create_dir_all(&folder).expect("a folder for the seeds");
    for (nth, seed) in (target().seeds)().into_iter().enumerate() {
        let path = std::path::Path::new(&folder).join(format!("seed-{}-{nth}", target().name));
        std::fs::write(path, seed).expect("a seed is written");
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    READER.with_borrow_mut(|read| read(input));
});
