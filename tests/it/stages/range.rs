//! The layer range alone: both halves in one process, one after the other, without a wire between them.

use engine::exec::CpuExecutor;
use engine::ids::CheckpointId;
use engine::limits::Limits;
use engine::stage::{Agreed, whole_shape};
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

    fn epoch(&mut self) -> u64 {
        0
    }

    fn checkpoint_bytes(&self, _: CheckpointId) -> Option<Vec<u8>> {
        None
    }
}

impl Halves {
    pub fn new(first: CpuExecutor, last: CpuExecutor, limits: &Limits) -> Self {
        let agreed = Agreed::new(first.model(), limits, first.border_width());
        let shape = whole_shape(first.shape(), last.shape(), &agreed).expect("two halves of one model");
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
                let [first, last] = [0, 1].map(|index| machine(&subject, &cell, index, split));
                let halves = Halves::new(first, last, &cell.limits());
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

/// What a last stage says of itself is held against what the first knows, whatever number it is.
#[test]
fn a_shape_that_is_not_of_this_model_is_refused() {
    for subject in subjects() {
        let cell = Cell::reference(0.0);
        let [first, last] = [0, 1].map(|index| machine(&subject, &cell, index, 1));
        let agreed = Agreed::new(first.model(), &cell.limits(), first.border_width());
        let honest = last.shape();
        whole_shape(first.shape(), honest, &agreed).unwrap_or_else(|error| panic!("{}: {error}", subject.name));
        let fields: [fn(&mut Shape) -> &mut usize; 4] =
            [|s| &mut s.vocab, |s| &mut s.context_train, |s| &mut s.hidden_rows, |s| &mut s.hidden_width];
        for (i, field) in fields.into_iter().enumerate() {
            let mut shape = honest.clone();
            let n = *field(&mut shape);
            let far = [1 << 20, 1 << 39, usize::MAX];
            // A hidden row may be narrower than the border.
            let near = if i == 3 { vec![0, agreed.border_width + 1] } else { vec![n + 1, n.wrapping_sub(1), n ^ 7] };
            for other in far.into_iter().chain(near).filter(|&other| other != n) {
                *field(&mut shape) = other;
                let taken = whole_shape(first.shape(), &shape, &agreed);
                assert!(taken.is_err(), "{}: field {i} is {n}, and {other} was taken", subject.name);
            }
        }
        let flipped = Shape { mtp: !honest.mtp, ..honest.clone() };
        assert!(
            whole_shape(first.shape(), &flipped, &agreed).is_err(),
            "{}: hidden rows of no MTP block",
            subject.name
        );
    }
}
