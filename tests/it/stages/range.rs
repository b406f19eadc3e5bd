//! The layer range alone: both halves in one process, one after the other, without a wire between them.

use engine::exec::CpuExecutor;
use engine::ids::CheckpointId;
use engine::stage::whole_shape;
use engine::step::{Executor, Shape, Step, StepResult};
use engine_tests::drive::{Cell, executor, run, run_on};

use super::{machine, subjects};

pub struct Halves {
    first: CpuExecutor,
    last: CpuExecutor,
    shape: Shape,
}

impl Executor for Halves {
    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn run(&mut self, step: &Step, out: &mut StepResult) {
        self.first.run_stage(step, &[], out);
        let received = self.first.sent(step.trunk.token.len());
        self.last.run_stage(step, received, out);
    }

    fn checkpoint_bytes(&self, _: CheckpointId) -> Option<Vec<u8>> {
        None
    }
}

impl Halves {
    pub fn new(first: CpuExecutor, last: CpuExecutor) -> Self {
        let shape = whole_shape(first.shape(), last.shape());
        Self { first, last, shape }
    }
}

#[test]
fn a_model_cut_at_any_border_gives_the_same_bits() {
    for subject in subjects() {
        let strategy = *subject.strategies().last().expect("a strategy");
        let window = Cell { strategy, window: 7, parallel: 4, chunk: 7, ..Cell::reference(0.8) };
        for cell in [Cell::reference(0.0), window] {
            let want = run(&subject, &cell);
            for split in 1..subject.trunk() {
                let halves = Halves::new(machine(&subject, &cell, 0, split), machine(&subject, &cell, 1, split));
                assert_eq!(
                    halves.shape(),
                    executor(&subject, &cell, 0).shape(),
                    "{}: as the Ledger sees it",
                    subject.name
                );
                let got = run_on(&subject, &cell, Box::new(halves));
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let at = format!("{}: prompt {i} of a model cut at {split} under {cell:?}", subject.name);
                    assert_eq!(got.tokens, want.tokens, "{at}");
                    assert_eq!(got.report.total, want.report.total, "{at}");
                }
            }
        }
    }
}
