//! What two stages must share, as each finds it in its own files and flags.
//!
//! The model: a digest of all metadata (but the keys that say which part of a model a file is), and of every tensor that
//! a file has its name, type, dimensions and [`SAMPLE_BYTES`] bytes from its middle. Metadata must be equal; of tensors
//! those that both files have, which are all where both stages read the whole model. Two models that differ in the weights
//! of parts that only one side has are not told apart by this.
//!
//! The numbers: what decides bits or sizes. Conventions of the MTP block are not among them: they are the last stage's
//! alone.

use std::collections::HashMap;

use engine::exec::{Activation, ExecOptions, KvType};
use engine::limits::Limits;
use engine::model::stage::{BlockId, STAGE_KEYS, Stage};
use engine::stage::wire::{Put as _, Take, WireError};
use engine_io::ModelFile;
use engine_io::gguf::Meta;
use engine_io::gguf::write::Layout;
use sha2::{Digest as _, Sha256};

/// Bytes of a tensor's data that are looked at.
pub const SAMPLE_BYTES: usize = 256;
/// Tensors of a file at most.
const TENSORS_MAX: usize = 1 << 16;

/// One side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Version of the program: another may compute other bits.
    pub program: String,
    /// Of all metadata.
    pub metadata: [u8; 32],
    /// Per tensor of the file: digest of its name, and of it.
    pub tensors: Vec<(u64, u64)>,
    /// Numbers that must be equal, by name, except for the blocks.
    pub numbers: Vec<(&'static str, u64)>,
    /// The blocks that are run.
    pub stage: Stage,
}

/// Names of [`Facts::numbers`], in order.
const NUMBERS: [&str; 11] = [
    "--kv-type (0 f32, 1 f16)",
    "--exact-activations",
    "rows of the token table",
    "floats per row that cross the border",
    "--parallel",
    "--ctx-size",
    "pages",
    "rows of a pass",
    "--prefill-chunk",
    "--window-max",
    "checkpoints",
];

impl Facts {
    /// Of a stage that is loaded.
    ///
    /// # Errors
    /// Metadata that cannot be written again.
    pub fn new(
        file: &ModelFile,
        stage: Stage,
        (vocab_rows, border_width): (usize, usize),
        limits: &Limits,
        options: &ExecOptions,
    ) -> engine_io::Result<Self> {
        let kv_type = match options.kv_type {
            KvType::F32 => 0,
            KvType::F16 => 1,
        };
        let values = [
            kv_type,
            usize::from(options.activation == Activation::Exact),
            vocab_rows,
            border_width,
            limits.slots,
            limits.context,
            limits.pages,
            limits.step_rows,
            limits.prefill_chunk,
            limits.window_max,
            limits.checkpoints,
        ];
        Ok(Self {
            program: env!("CARGO_PKG_VERSION").to_owned(),
            metadata: metadata(file.meta())?,
            tensors: tensors(file),
            numbers: NUMBERS.into_iter().zip(values.map(|n| n as u64)).collect(),
            stage,
        })
    }

    /// Appends them to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_bytes(self.program.as_bytes());
        out.extend_from_slice(&self.metadata);
        out.put_u32(self.tensors.len() as u32);
        for (name, digest) in &self.tensors {
            out.put_u64(*name);
            out.put_u64(*digest);
        }
        for (_, number) in &self.numbers {
            out.put_u64(*number);
        }
        for number in [self.stage.first.0, self.stage.end.0, self.stage.trunk] {
            out.put_u64(number as u64);
        }
    }

    /// Reads them from a message.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn take(take: &mut Take<'_>) -> Result<Self, WireError> {
        let program = take.text("the program's version", 64)?;
        let metadata = super::handshake::take_32(take, "the digest of the metadata")?;
        let n = take.count("tensors", TENSORS_MAX, 16)?;
        let tensors =
            (0..n).map(|_| Ok((take.u64("a tensor")?, take.u64("a tensor")?))).collect::<Result<_, WireError>>()?;
        let numbers =
            NUMBERS.iter().map(|name| Ok((*name, take.u64("a number")?))).collect::<Result<_, WireError>>()?;
        let mut block = || Ok(usize::try_from(take.u64("the blocks")?).unwrap_or(usize::MAX));
        let (first, end, trunk) = (block()?, block()?, block()?);
        Ok(Self {
            program,
            metadata,
            tensors,
            numbers,
            stage: Stage { first: BlockId(first), end: BlockId(end), trunk },
        })
    }

    /// Whether `self`, a first stage, and `last` are two halves of one model, run alike.
    ///
    /// # Errors
    /// The first thing in which they differ, and what to do.
    pub fn fits(&self, last: &Self) -> Result<(), String> {
        if self.program != last.program {
            return Err(format!(
                "stage 0 runs version {} of this program and stage 1 version {}; run the same on both",
                self.program, last.program
            ));
        }
        if self.metadata != last.metadata {
            return Err(String::from(
                "the model's metadata differ: the stages were given different models; give both the same one",
            ));
        }
        let theirs: HashMap<u64, u64> = last.tensors.iter().copied().collect();
        let both = self.tensors.iter().filter_map(|(name, digest)| Some((digest, theirs.get(name)?)));
        let (count, differ) = both.fold((0, 0), |(n, bad), (a, b)| (n + 1, bad + usize::from(a != b)));
        if differ > 0 {
            return Err(format!(
                "{differ} of {count} tensors that both files have differ; give both stages the same model"
            ));
        }
        let numbers = self.numbers.iter().zip(&last.numbers);
        if let Some(((name, here), (_, there))) = numbers.into_iter().find(|(a, b)| a.1 != b.1) {
            return Err(format!("{name} is {here} at stage 0 and {there} at stage 1; start both with the same"));
        }
        let meets = self.stage.trunk == last.stage.trunk && self.stage.end == last.stage.first;
        if !(meets && self.stage.is_first() && last.stage.is_last()) {
            return Err(format!(
                "stage 0 has {} and stage 1 {}; start both with the same --stage-split",
                self.stage, last.stage
            ));
        }
        Ok(())
    }
}

/// Of all metadata whatever their order, but those that say which part of the model a file is.
fn metadata(meta: &Meta) -> engine_io::Result<[u8; 32]> {
    let own = |key: &str| STAGE_KEYS.contains(&key) || key.starts_with("split.");
    let mut pairs: Vec<_> = meta.iter().filter(|(key, _)| !own(key)).collect();
    pairs.sort_by_key(|(key, _)| *key);
    let mut sorted = Meta::new(meta.file());
    for (key, value) in pairs {
        sorted.push(key, value.clone())?;
    }
    Ok(Sha256::digest(Layout::new(sorted)?.to_bytes(&[])?).into())
}

fn tensors(file: &ModelFile) -> Vec<(u64, u64)> {
    let short = |hash: Sha256| {
        let bytes: [u8; 32] = hash.finalize().into();
        u64::from_le_bytes(std::array::from_fn(|i| bytes[i]))
    };
    let one = |tensor: &engine_io::gguf::TensorInfo| {
        let mut name = Sha256::new();
        name.update(tensor.name.as_bytes());
        let mut all = name.clone();
        all.update([0]);
        all.update(tensor.ty.id().to_le_bytes());
        tensor.dims().iter().for_each(|d| all.update(d.to_le_bytes()));
        let data = file.data(tensor);
        let data = data.as_ref();
        let from = data.len().saturating_sub(SAMPLE_BYTES) / 2;
        all.update(&data[from..(from + SAMPLE_BYTES).min(data.len())]);
        (short(name), short(all))
    };
    file.tensors().iter().take(TENSORS_MAX).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            program: String::from("1.2.3"),
            metadata: [5; 32],
            tensors: vec![(1, 10), (2, 20), (3, 30)],
            numbers: NUMBERS.iter().zip(7..).map(|(name, n)| (*name, n)).collect(),
            stage: Stage { first: BlockId(0), end: BlockId(2), trunk: 5 },
        }
    }

    /// Every field alone.
    #[test]
    fn two_sides_that_differ_in_anything_do_not_fit_and_it_is_said_in_what() {
        let first = facts();
        let honest = Facts {
            tensors: vec![(3, 30), (4, 40)],
            stage: Stage { first: BlockId(2), end: BlockId(5), trunk: 5 },
            ..facts()
        };
        assert_eq!(first.fits(&honest), Ok(()));
        let refused = |change: &dyn Fn(&mut Facts), words: &[&str]| {
            let mut last = honest.clone();
            change(&mut last);
            let error = first.fits(&last).expect_err(words[0]);
            assert!(words.iter().all(|word| error.contains(word)), "{error} does not say {words:?}");
        };
        refused(&|f| f.program = String::from("1.2.4"), &["version 1.2.3", "1.2.4"]);
        refused(&|f| f.metadata[31] ^= 1, &["metadata differ"]);
        refused(&|f| f.tensors[0].1 += 1, &["1 of 1 tensors"]);
        for (i, (name, n)) in NUMBERS.iter().zip(7..).enumerate() {
            refused(&|f| f.numbers[i].1 = 99, &[name, &format!("is {n} at stage 0 and 99 at stage 1")]);
        }
        let stages: [fn(&mut Stage); 5] = [
            |s| s.first = BlockId(1),
            |s| s.first = BlockId(3),
            |s| s.end = BlockId(4),
            |s| s.trunk = 6,
            |s| *s = Stage { first: BlockId(0), end: BlockId(2), trunk: 5 },
        ];
        for change in stages {
            refused(&|f| change(&mut f.stage), &["--stage-split"]);
        }
        let late = Facts { stage: Stage { first: BlockId(1), ..first.stage }, ..facts() };
        assert!(late.fits(&honest).is_err(), "a first stage has the first block");
    }
}
