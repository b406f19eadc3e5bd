//! The server as a process: its memory while it runs, its words, its end.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// Between two looks at its memory.
const LOOK: Duration = Duration::from_millis(250);
/// A server that was asked to end takes no longer.
const END: Duration = Duration::from_secs(60);

/// A running server.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    log: tempfile::NamedTempFile,
}

impl Server {
    /// Starts `program` with `flags`.
    ///
    /// # Errors
    /// What went wrong, with its own words.
    pub fn start(program: &Path, flags: &[String]) -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().map_err(|e| format!("a file for its log: {e}"))?;
        let errors = log.reopen().map_err(|e| format!("a file for its log: {e}"))?;
        let mut command = Command::new(program);
        command.args(["--port", "0"]).args(flags).env("RUST_LOG", "warn").stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(|e| format!("{}: {e}", program.display()))?;
        let mut line = String::new();
        let out = child.stdout.take().ok_or("no stdout")?;
        let read = BufReader::new(out).read_line(&mut line);
        let address = line.trim_end().strip_prefix("listening on http://").and_then(|text| text.parse().ok());
        match (read, address) {
            (Ok(_), Some(address)) => Ok(Self { child, address, log }),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                Err(format!("the server does not start: {}", text(&log)))
            }
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, and waits: its exit code, and what it logged.
    ///
    /// # Errors
    /// If it does not end.
    pub fn end(mut self) -> Result<(Option<i32>, String), String> {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        sent.map_err(|e| format!("cannot signal the server: {e}"))?;
        let deadline = Instant::now() + END;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok((status.code(), text(&self.log))),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
                other => return Err(format!("the server does not end: {other:?}; {}", text(&self.log))),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(log: &tempfile::NamedTempFile) -> String {
    fs::read_to_string(log.path()).unwrap_or_default()
}

/// Looks at the anonymous memory of a process until told to stop: seconds, and bytes.
pub fn watch(id: u32, stop: &AtomicBool) -> Vec<(f64, f64)> {
    let start = Instant::now();
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(bytes) = anonymous(id) {
            seen.push((start.elapsed().as_secs_f64(), bytes as f64));
        }
        thread::sleep(LOOK);
    }
    seen
}

fn anonymous(id: u32) -> Option<u64> {
    let file = File::open(format!("/proc/{id}/status")).ok()?;
    let line = BufReader::new(file).lines().map_while(Result::ok).find(|line| line.starts_with("RssAnon:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Bytes a second that a straight line through the last half of `seen` rises by, least squares; 0 where there are too few.
pub fn slope(seen: &[(f64, f64)]) -> f64 {
    let half = &seen[seen.len() / 2..];
    let n = half.len() as f64;
    let (mean_t, mean_b) = (half.iter().map(|s| s.0).sum::<f64>() / n, half.iter().map(|s| s.1).sum::<f64>() / n);
    let spread: f64 = half.iter().map(|s| (s.0 - mean_t).powi(2)).sum();
    if half.len() < 3 || spread == 0.0 {
        return 0.0;
    }
    half.iter().map(|s| (s.0 - mean_t) * (s.1 - mean_b)).sum::<f64>() / spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_of_the_last_half() {
        let line = |rise: f64| (0..100).map(|i| (f64::from(i), f64::from(i) * rise)).collect::<Vec<_>>();
        assert!((slope(&line(3.0)) - 3.0).abs() < 1e-9);
        let mut level = line(3.0);
        level[50..].iter_mut().for_each(|sample| sample.1 = 7.0);
        assert_eq!(slope(&level), 0.0);
        assert_eq!(slope(&[]), 0.0);
    }
}
