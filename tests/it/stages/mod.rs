//! A model split into two stages commits what it commits in one process.

mod accept;
mod altered;
mod crowd;
mod files;
mod loopback;
mod loss;
mod process;
mod range;
mod served;
mod wire;

use std::sync::Arc;

use engine::exec::{CpuExecutor, ExecOptions};
use engine::stage::{Agreed, LastStage, Link, LinkLost, Split};
use engine::step::Executor as _;
use engine_tests::drive::{Cell, Subject};
use engine_tests::fixtures::fixture;
use parking_lot::Mutex;

/// A model of every family, prompts of one chunk and of several.
pub fn subjects() -> Vec<Subject> {
    let file = |name: &'static str, path: &str| fixture(path).map(|path| Subject::file(name, path, 24));
    let all = [
        Some(Subject::built_in()),
        file("llama-tiny", "llama-tiny/llama-tiny-Q8_0.gguf"),
        file("qwen35-tiny", "qwen35-tiny/qwen35-tiny-Q8_0.gguf"),
        file("qwen35-tiny-untied", "qwen35-tiny-untied/qwen35-tiny-untied-Q8_0.gguf"),
        file("qwen35moe-tiny", "qwen35moe-tiny/qwen35moe-tiny-Q8_0.gguf"),
        file("nemotronh-tiny", "nemotronh-tiny/nemotronh-tiny-Q8_0.gguf"),
        file("qwen4exp-tiny", "qwen4exp-tiny/qwen4exp-tiny-BF16.gguf"),
    ];
    all.into_iter().flatten().collect()
}

/// The executor of one stage in a cell.
pub fn machine(subject: &Subject, cell: &Cell, index: u32, split: u32) -> CpuExecutor {
    let options = ExecOptions { threads: cell.threads, ..ExecOptions::default() };
    CpuExecutor::new(Arc::new(subject.stage(index, split)), cell.limits(), options)
}

/// Bodies of requests and of their replies.
pub type Bodies = Vec<(Vec<u8>, Vec<u8>)>;

/// What a link in memory saw, and what it shall do.
pub struct Wire {
    pub last: LastStage,
    pub session: Option<u64>,
    /// Bodies of requests and replies, where they are wanted.
    pub record: Option<Bodies>,
    /// Exchanges so far.
    pub exchanges: usize,
    /// The session ends at this exchange: before the request arrives, or with its reply on the way.
    pub lose_at: Option<(usize, bool)>,
    /// How often the first stage has asked for the session.
    pub looks: usize,
    /// When it asks for that time, there has been another connection.
    pub renew_at: Option<usize>,
}

impl Wire {
    /// A connection after one that was lost.
    fn reconnect(&mut self) {
        self.last.forget_all();
        self.session = Some(self.looks as u64 + 2);
    }
}

/// The last stage in this process, behind the bytes that a socket would carry.
#[derive(Clone)]
pub struct Memory(pub Arc<Mutex<Wire>>);

impl Memory {
    pub fn new(last: LastStage) -> Self {
        let wire = Wire { last, session: Some(1), record: None, exchanges: 0, lose_at: None, looks: 0, renew_at: None };
        Self(Arc::new(Mutex::new(wire)))
    }

    /// A connection after one that was lost.
    pub fn reconnect(&self) {
        self.0.lock().reconnect();
    }
}

impl Link for Memory {
    fn session(&self) -> Option<u64> {
        let mut wire = self.0.lock();
        wire.looks += 1;
        if wire.renew_at == Some(wire.looks) {
            wire.reconnect();
        }
        wire.session
    }

    fn working(&mut self, _: bool) {}

    fn exchange(&mut self, session: u64, request: &[u8], reply: &mut Vec<u8>) -> Result<(), LinkLost> {
        let mut wire = self.0.lock();
        assert_eq!(wire.session, Some(session), "an exchange within the session");
        wire.exchanges += 1;
        let lost = wire.lose_at.filter(|(at, _)| *at == wire.exchanges);
        if lost.is_none_or(|(_, arrives)| arrives) {
            reply.clear();
            wire.last.run(request, reply).unwrap_or_else(|error| panic!("a request of ours: {error}"));
            if let Some(record) = &mut wire.record {
                record.push((request.to_vec(), reply.clone()));
            }
        }
        if lost.is_some() {
            wire.session = None;
            return Err(LinkLost);
        }
        Ok(())
    }

    fn reject(&mut self, _: u64, reason: &str) {
        panic!("a reply of ours: {reason}");
    }
}

/// Both stages in this process, with a wire of bytes between them.
pub fn staged(subject: &Subject, cell: &Cell, split: u32) -> (Split<Memory>, Memory) {
    staged_with(subject, cell, split, |last| last)
}

/// The same with a last stage that `change` changes.
pub fn staged_with(
    subject: &Subject,
    cell: &Cell,
    split: u32,
    change: impl FnOnce(LastStage) -> LastStage,
) -> (Split<Memory>, Memory) {
    let (first, last) = (machine(subject, cell, 0, split), machine(subject, cell, 1, split));
    assert_eq!(first.border_width(), last.border_width(), "{}: what crosses the border", subject.name);
    let agreed = Agreed::new(last.model(), &cell.limits(), last.border_width());
    let shape = last.shape().clone();
    let wire = Memory::new(change(LastStage::new(last, agreed.clone())));
    (Split::new(first, wire.clone(), agreed, &shape), wire)
}
