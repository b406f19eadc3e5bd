//! Handles: a number for C, an engine behind it. A number that was closed, or never was one, finds nothing.
//!
//! ```text
//! handle  generation << 32 | row + 1        0 is none
//! row     generation, engine or none        a row that was closed gets the next generation
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine_bin::embed::Engine;
use parking_lot::Mutex;

use crate::guard::Failure;
use crate::types::Status;

struct Row<T> {
    generation: u32,
    held: Option<Arc<T>>,
}

/// Rows, one a handle.
pub struct Table<T> {
    rows: Vec<Row<T>>,
}

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self { rows: Vec::new() }
    }

    pub fn insert(&mut self, held: T) -> u64 {
        let held = Some(Arc::new(held));
        // A row whose generations are used up is never taken again.
        let free = self.rows.iter().position(|row| row.held.is_none() && row.generation < u32::MAX);
        let at = free.unwrap_or_else(|| {
            self.rows.push(Row { generation: 0, held: None });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.generation += 1;
        row.held = held;
        u64::from(row.generation) << 32 | (at as u64 + 1)
    }

    fn row(&mut self, handle: u64) -> Option<&mut Row<T>> {
        let (generation, row) = ((handle >> 32) as u32, (handle & u64::from(u32::MAX)) as usize);
        self.rows.get_mut(row.checked_sub(1)?).filter(|row| row.generation == generation)
    }

    pub fn get(&mut self, handle: u64) -> Option<Arc<T>> {
        self.row(handle)?.held.clone()
    }

    pub fn take(&mut self, handle: u64) -> Option<Arc<T>> {
        self.row(handle)?.held.take()
    }
}

static ENGINES: Mutex<Table<Engine>> = Mutex::new(Table::new());
/// The process that was the first to open a handle. Threads do not come along into a child.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Refuses the child of a process that opened one, before any lock: one might have been held when it was forked.
pub fn same_process() -> Result<(), Failure> {
    match PROCESS.load(Ordering::Relaxed) {
        0 => Ok(()),
        first if first == std::process::id() => Ok(()),
        first => Err(Failure::new(
            Status::Handle,
            format!(
                "the library was opened by process {first}, which this one was forked from; it does not work in a \
                     child that does not exec"
            ),
        )),
    }
}

/// Marks this process as the one that opens, before anything is locked or started.
pub fn begin() -> Result<(), Failure> {
    let _ = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
    same_process()
}

pub fn open(engine: Engine) -> u64 {
    ENGINES.lock().insert(engine)
}

pub fn find(handle: u64) -> Result<Arc<Engine>, Failure> {
    same_process()?;
    ENGINES.lock().get(handle).ok_or_else(|| unknown(handle))
}

pub fn close(handle: u64) -> Result<(), Failure> {
    same_process()?;
    let engine = ENGINES.lock().take(handle).ok_or_else(|| unknown(handle))?;
    // Not under the lock: it waits for a pass. A call that still has the engine finds it closed.
    engine.close();
    Ok(())
}

fn unknown(handle: u64) -> Failure {
    Failure::new(Status::Handle, format!("{handle:#x} is no open handle: never opened, or closed already"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_own_engine_only() {
        let mut table = Table::new();
        let first = table.insert("first");
        let second = table.insert("second");
        assert_eq!(table.get(first).as_deref(), Some(&"first"));
        assert_eq!(table.take(first).as_deref(), Some(&"first"));
        assert_eq!((table.get(first), table.take(first)), (None, None), "closed already");
        let third = table.insert("third");
        assert_ne!(first, third, "the row is used again, the number is not");
        assert_eq!(table.get(first), None, "stale");
        assert_eq!((table.get(third).as_deref(), table.get(second).as_deref()), (Some(&"third"), Some(&"second")));
        for garbage in [0, 1, 2, u64::MAX, 1 << 32, third + 1, third ^ (1 << 40)] {
            assert_eq!(table.get(garbage), None, "{garbage:#x}");
        }
    }

    #[test]
    fn a_row_ends_with_its_generations() {
        let mut table = Table::new();
        let first = table.insert(1);
        table.take(first);
        table.rows[0].generation = u32::MAX;
        let next = table.insert(2);
        assert_eq!(next & 0xffff_ffff, 2, "another row");
    }
}
