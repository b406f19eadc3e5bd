//! How far a long run is: a line on a terminal, nothing anywhere else.

use std::io::Read;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A count of bytes. Silent where standard error is no terminal, and with `--json`.
#[derive(Clone, Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Nothing done yet.
    pub fn bytes(what: &'static str, total: u64, json: bool) -> Self {
        let target = if json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let style = ProgressStyle::with_template("{msg:<12} {wide_bar} {binary_bytes}/{binary_total_bytes} {eta}");
        let style = style.expect("a template of known fields");
        Self(ProgressBar::with_draw_target(Some(total), target).with_style(style).with_message(what))
    }

    /// Some more are done.
    pub fn add(&self, bytes: u64) {
        self.0.inc(bytes);
    }

    /// What is read through it is done.
    pub fn reader<R: Read>(&self, from: R) -> impl Read {
        self.0.wrap_read(from)
    }

    /// Some are to be done again.
    pub fn take_back(&self, bytes: u64) {
        self.0.dec(bytes);
    }
}

#[cfg(test)]
impl Progress {
    /// So many are done.
    pub fn done(&self) -> u64 {
        self.0.position()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
