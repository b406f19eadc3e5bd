//! Frames between the stages of a split model: headers, and the bodies of requests and replies.

use std::sync::Arc;

use engine::api::Strategy;
use engine::ids::CheckpointId;
use engine::limits::Limits;
use engine::stage::Agreed;
use engine::stage::foresight::Drafts;
use engine::stage::message::{Reply, Request, put_reply, put_request, take_reply, take_request};
use engine::stage::wire::{HEADER_BYTES, Header, Kind, frame};
use engine::step::{Executor, Shape, Step, StepResult};
use parking_lot::Mutex;

use super::{Damage, Reader, Target};
use crate::toy::{Rig, Toy, ToyConfig, VOCAB, pieces, speculation, submission};

/// Floats of a row that crosses.
const WIDTH: usize = 2;
/// Bytes of the longest frame.
const FRAME_BYTES_MAX: usize = 1 << 16;

pub(super) const FRAME: Target = Target {
    name: "stage-frame",
    seeds: || {
        let mut all = Vec::new();
        for (kind, body) in [(Kind::Hello, &b"hello"[..]), (Kind::Request, &[0; 40]), (Kind::Pong, b"")] {
            let mut out = Vec::new();
            frame(&mut out, kind, 7, |out| out.extend_from_slice(body));
            all.push(out);
        }
        all
    },
    words: &["SLST", "\0\0\0\0"],
    damage: Damage::Bytes,
    reader: || {
        Box::new(|bytes| {
            let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return false };
            let Ok(header) = Header::read(head, FRAME_BYTES_MAX) else { return false };
            assert!(header.len <= FRAME_BYTES_MAX);
            let Some(body) = rest.get(..header.len) else { return false };
            header.check_body(body).is_ok()
        })
    },
};
pub(super) const REQUEST: Target = Target {
    name: "stage-request",
    seeds: || {
        let put = |(step, _): (Step, StepResult)| {
            let mut out = Vec::new();
            put_request(&mut out, &step, false, &vec![0.5; step.trunk.token.len() * WIDTH]);
            out
        };
        steps().into_iter().map(put).collect()
    },
    words: &["\0\0\0\0", "\x01\0\0\0"],
    damage: Damage::Bytes,
    reader: request_reader,
};
pub(super) const REPLY: Target = Target {
    name: "stage-reply",
    seeds: || {
        let put = |(_, result): (Step, StepResult)| {
            let mut out = Vec::new();
            put_reply(&mut out, &result, &Drafts::default());
            out
        };
        steps().into_iter().map(put).collect()
    },
    words: &["\0\0\0\0", "\x01\0\0\0"],
    damage: Damage::Bytes,
    reader: reply_reader,
};

fn limits() -> Limits {
    Limits { prefill_chunk: 5, window_max: 8, ..Limits::new(3, 64) }
}

fn agreed() -> Agreed {
    Agreed { limits: limits(), vocab_rows: VOCAB, vocab: VOCAB, border_width: WIDTH }
}

/// An executor that keeps what it is asked and what it answers.
struct Kept {
    toy: Toy,
    seen: Arc<Mutex<Vec<(Step, StepResult)>>>,
}

impl Executor for Kept {
    fn shape(&self) -> &Shape {
        self.toy.shape()
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        self.toy.run(step, out);
        self.seen.lock().push((step.clone(), out.clone()));
    }

    fn epoch(&mut self) -> u64 {
        self.toy.epoch()
    }

    fn checkpoint_bytes(&self, checkpoint: CheckpointId) -> Option<Vec<u8>> {
        self.toy.checkpoint_bytes(checkpoint)
    }
}

/// Steps of a run with prefill, drafts, sampling and penalties, and their results.
fn steps() -> Vec<(Step, StepResult)> {
    let seen = Arc::default();
    let limits = limits();
    let kept = Kept { toy: Toy::new(ToyConfig::default(), &limits), seen: Arc::clone(&seen) };
    let mut rig = Rig::of_executor(&limits, Box::new(kept), Arc::new(pieces()));
    for (ticket, strategy) in [Strategy::Off, Strategy::MtpSuffix, Strategy::NgramSuffix].into_iter().enumerate() {
        let mut asked = submission(ticket as u64, &[1, 2, 3, 1, 2, 3, 1, 2], 12, speculation(strategy, 4));
        asked.sampling.temperature = ticket as f32 * 0.5;
        asked.sampling.frequency_penalty = ticket as f32 * 0.25;
        asked.logprobs = (ticket == 1).then_some(2);
        rig.submit(&asked);
    }
    rig.settle();
    drop(rig);
    let steps = std::mem::take(&mut *seen.lock());
    assert!(steps.len() > 8, "{} steps", steps.len());
    steps
}

fn request_reader() -> Reader {
    let agreed = agreed();
    Box::new(move |bytes| {
        let Ok(request) = take_request(bytes, &agreed) else { return false };
        // What an executor looks up by numbers of a step is there.
        let (trunk, mtp) = (&request.step.trunk, &request.step.mtp);
        assert!(trunk.token.len() <= agreed.limits.step_rows);
        assert_eq!(request.rows.len(), trunk.token.len() * WIDTH);
        assert!(trunk.token.iter().chain(&mtp.token).all(|token| token.index() < VOCAB));
        assert!(trunk.state.iter().chain(&mtp.state).all(|state| state.index() < agreed.limits.slots));
        assert!(trunk.page.iter().chain(&mtp.page).all(|page| (page.0 as usize) < agreed.limits.pages));
        for s in 0..trunk.state.len() {
            let pages = trunk.page.get(trunk.page_start[s] as usize..trunk.page_start[s + 1] as usize);
            let rows = trunk.token.get(trunk.row_start[s] as usize..trunk.row_start[s + 1] as usize);
            assert!(pages.is_some() && rows.is_some());
        }
        let rules = &trunk.rules;
        for i in 0..rules.row.len() {
            assert!((rules.row[i] as usize) < trunk.token.len());
            assert!((rules.filter[i] as usize) < rules.filters.len());
            assert!(rules.edit.get(rules.edit_start[i] as usize..rules.edit_start[i + 1] as usize).is_some());
        }
        // What was read is written, and read the same: compared as bytes, for there may be numbers that equal nothing.
        let put = |request: &Request| {
            let mut out = Vec::new();
            put_request(&mut out, &request.step, request.answered, &request.rows);
            out
        };
        let again = put(&request);
        assert_eq!(put(&take_request(&again, &agreed).expect("what was written is read")), again);
        true
    })
}

fn reply_reader() -> Reader {
    let agreed = agreed();
    let asked: Vec<Step> = steps().into_iter().map(|(step, _)| step).collect();
    Box::new(move |bytes| {
        let mut any = false;
        // To every step that was ever asked: what does not fit one is refused.
        for step in &asked {
            let Ok(reply) = take_reply(bytes, step, &agreed) else { continue };
            let put = |reply: &Reply| {
                let mut out = Vec::new();
                put_reply(&mut out, &reply.result, &reply.ahead);
                out
            };
            let again = put(&reply);
            assert_eq!(put(&take_reply(&again, step, &agreed).expect("what was written is read")), again);
            any = true;
        }
        any
    })
}
