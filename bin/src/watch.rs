//! The end of a process whose model file is written while it is in use.
//!
//! Two places ask. [`Watched`] asks after every pass, before anybody sees its result: what was read from a file that has
//! not changed by then is the model's own, so nothing wrong is ever committed, let alone sent. The thread of [`start`] asks
//! once a second, so that an idle server ends when it happens and not with somebody's request.

use std::process;
use std::thread;
use std::time::Duration;

use engine::ids::CheckpointId;
use engine::step::{Executor, Shape, Step, StepResult};
use engine_io::FileWatch;

/// Between two looks of the thread.
const INTERVAL: Duration = Duration::from_secs(1);

/// What ends when a model file has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ends {
    /// The process.
    Process,
    /// The engine alone: the process is somebody else's, who is told why.
    Engine,
}

/// An executor whose results end here, with what [`Ends`] says, when the files it computes from have changed.
pub struct Watched<E> {
    inner: E,
    files: FileWatch,
    ends: Ends,
}

impl<E: Executor> Watched<E> {
    /// `files`: what `inner` reads its weights from.
    pub fn new(inner: E, files: FileWatch, ends: Ends) -> Self {
        Self { inner, files, ends }
    }
}

impl<E: Executor> Executor for Watched<E> {
    fn shape(&self) -> &Shape {
        self.inner.shape()
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        self.inner.run(step, out);
        match self.ends {
            Ends::Process => end_if_changed(&self.files),
            // A system that panics is how an engine ends early: its owner hears what it said.
            Ends::Engine => self.files.check().unwrap_or_else(|error| panic!("{error}")),
        }
    }

    fn epoch(&mut self) -> u64 {
        self.inner.epoch()
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        self.inner.checkpoint_bytes(checkpoint)
    }
}

/// Watches `files` from a thread of its own until the process ends. Does nothing when there are none.
///
/// # Errors
/// If the system gives no thread.
pub fn start(files: FileWatch) -> std::io::Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    let look = move || {
        loop {
            thread::sleep(INTERVAL);
            end_if_changed(&files);
        }
    };
    thread::Builder::new().name("files".to_owned()).spawn(look).map(drop)
}

/// Exit code 1 and a message, as the handler of a shrunk file does it: past the log, whose filter could hide it.
pub(crate) fn end_if_changed(files: &FileWatch) {
    if let Err(error) = files.check() {
        crate::report::error(error);
        process::exit(1);
    }
}
