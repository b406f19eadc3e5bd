//! The bytes of a tensor of the head, read from the checkpoint a run at a time: bounded memory, whatever its size.

use std::io::{self, Read};

use half::{bf16, f16};

use super::names::Step;
use super::plan::Recipe;
use crate::checkpoint::Checkpoint;
use crate::gguf::TensorType;
use crate::made::made;

/// Bytes read at a time.
const PIECE: u64 = 256 << 10;

/// Bytes of one tensor that lie together in the checkpoint.
#[derive(Clone, Copy)]
struct Run {
    tensor: usize,
    start: u64,
    len: u64,
}

impl Recipe {
    /// The tensor's bytes as they go into the file.
    pub fn reader<'a>(&'a self, from: &'a Checkpoint) -> impl Read + 'a {
        let mut reader = Reader { recipe: self, from, next: 0, run: None, raw: Vec::new() };
        made(move |ready| reader.refill(ready))
    }

    /// Bytes of a row as the checkpoint stores it.
    fn row_bytes(&self) -> u64 {
        self.dims[0] * self.source.block_bytes()
    }

    /// Run `i` in the order of the head's bytes; `None` behind the last.
    fn run(&self, i: u64) -> Option<Run> {
        let row = self.row_bytes();
        let rows: u64 = self.dims[1..].iter().product();
        let at = |tensor: usize, start, len| Some(Run { tensor: self.from[tensor], start, len });
        match self.step {
            Step::Half(_) => {
                let half = row / 2;
                if i < 2 * rows { at((i % 2) as usize, i / 2 * half, half) } else { None }
            }
            Step::Expert => {
                if i < self.dims[2] {
                    at(i as usize, 0, row * self.dims[1])
                } else {
                    None
                }
            }
            Step::ExpertRows(part) => {
                let len = row * self.dims[1];
                if i < self.dims[2] { at(0, (2 * i + part as u64) * len, len) } else { None }
            }
            Step::Heads(_) => {
                let of_head = rows / self.heads;
                let (head, j) = (i / of_head, i % of_head);
                let old = head * of_head + j % 2 * (of_head / 2) + j / 2;
                if i < rows { at(0, old * row, row) } else { None }
            }
            Step::Rows(_) | Step::Matrix | Step::Floats | Step::Gamma | Step::Experts => {
                if i == 0 {
                    at(0, self.above * row, rows * row)
                } else {
                    None
                }
            }
            Step::Drop(_) => None,
        }
    }

    /// Values of the checkpoint as the head stores them, appended to `to`.
    fn convert(&self, raw: &[u8], to: &mut Vec<u8>) {
        if !matches!(self.step, Step::Floats | Step::Gamma) {
            return to.extend_from_slice(raw);
        }
        let add = if self.step == Step::Gamma { 1.0 } else { 0.0 };
        let mut put = |value: f32| {
            let value = if add == 0.0 { value } else { value + add };
            to.extend_from_slice(&value.to_le_bytes());
        };
        match self.source {
            TensorType::F16 => raw.as_chunks().0.iter().for_each(|&b| put(f16::from_le_bytes(b).to_f32())),
            TensorType::Bf16 => raw.as_chunks().0.iter().for_each(|&b| put(bf16::from_le_bytes(b).to_f32())),
            _ => raw.as_chunks().0.iter().for_each(|&b| put(f32::from_le_bytes(b))),
        }
    }
}

struct Reader<'a> {
    recipe: &'a Recipe,
    from: &'a Checkpoint,
    /// The run after `run`.
    next: u64,
    /// What is left of the current one.
    run: Option<Run>,
    raw: Vec<u8>,
}

impl Reader<'_> {
    /// Fills `ready` with the next piece; leaves it empty at the end.
    fn refill(&mut self, ready: &mut Vec<u8>) -> io::Result<()> {
        while (ready.len() as u64) < PIECE {
            let Some(run) = self.run.or_else(|| self.recipe.run(self.next)) else { return Ok(()) };
            if self.run.is_none() {
                self.next += 1;
            }
            let len = run.len.min(PIECE);
            self.raw.resize(len as usize, 0);
            self.from.read_at(&self.from.tensors()[run.tensor], run.start, &mut self.raw)?;
            self.recipe.convert(&self.raw, ready);
            let rest = Run { start: run.start + len, len: run.len - len, ..run };
            self.run = (rest.len > 0).then_some(rest);
        }
        Ok(())
    }
}
