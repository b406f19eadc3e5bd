//! Model files with one thing changed.

use engine::model::load::LoadOptions;
use engine::model::{Model, ModelError, MtpStatus};
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Array, Meta, Value};
use engine_io::{ModelFile, TensorType};
use engine_tests::fixtures::fixture;

use super::open;

/// Keys that may hold an entry for every block.
const PER_BLOCK: [&str; 7] = [
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
];

/// SplitMix64: what the weights of every made model are drawn with. Source: Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The stream of a tensor, by its name (FNV-1a from `salt`): no tensor depends on which others there are.
    pub fn named(name: &str, salt: u64) -> Self {
        Self(name.bytes().fold(salt, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)))
    }

    /// 64 more bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

/// A tensor of an edited file.
#[derive(Clone)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// As in the file.
    pub dims: Vec<u64>,
    /// Storage.
    pub kind: TensorType,
    /// As in the file.
    pub data: Vec<u8>,
}

/// A model with its parts in hand.
#[derive(Clone)]
pub struct Edit {
    /// All keys.
    pub meta: Meta,
    /// In file order.
    pub tensors: Vec<Tensor>,
}

impl Edit {
    /// A fixture, or a skip that has been reported.
    pub fn of(path: &str) -> Option<Self> {
        Some(Self::of_file(&open(&fixture(path)?)))
    }

    /// An open file.
    pub fn of_file(file: &ModelFile) -> Self {
        let tensor = |t: &engine_io::gguf::TensorInfo| Tensor {
            name: t.name.clone(),
            dims: t.dims().to_vec(),
            kind: t.ty,
            data: file.data(t).as_ref().to_vec(),
        };
        Self { meta: file.meta().clone(), tensors: file.tensors().iter().map(tensor).collect() }
    }

    /// With a key set.
    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.meta.set(key, value);
        self
    }

    /// Without a key.
    pub fn unset(mut self, key: &str) -> Self {
        self.meta.remove(key);
        self
    }

    /// Without some tensors.
    pub fn drop(mut self, gone: impl Fn(&str) -> bool) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| !gone(&t.name));
        assert!(self.tensors.len() < before, "the edit removes something");
        self
    }

    /// A merged model's trunk alone, as converters write it: a block less, no word of the head, and an entry less in
    /// every list that speaks of blocks.
    pub fn trunk(self) -> Self {
        let (arch, head) = self.head();
        let mut trunk = self.drop(|n| n.starts_with(&format!("blk.{head}.")));
        for part in PER_BLOCK {
            let key = format!("{arch}.{part}");
            let Some(Value::Array(list)) = trunk.meta.get(&key) else { continue };
            assert_eq!(list.len(), head as usize + 1, "{key}");
            let shorter = match list {
                Array::U32(v) => Array::U32(v[..head as usize].to_vec()),
                Array::I32(v) => Array::I32(v[..head as usize].to_vec()),
                Array::Bool(v) => Array::Bool(v[..head as usize].to_vec()),
                other => panic!("{key} is {other:?}"),
            };
            trunk = trunk.set(&key, Value::Array(shorter));
        }
        trunk.set(&format!("{arch}.block_count"), Value::U32(head)).unset(&format!("{arch}.nextn_predict_layers"))
    }

    /// A merged model's head alone, as converters write it: all keys as they are, block count included, and copies of
    /// what the model has at top level.
    pub fn sidecar(self) -> Self {
        let head = format!("blk.{}.", self.head().1);
        self.drop(|n| (n.starts_with("blk.") && !n.starts_with(&head)) || n.starts_with("per_layer_token_embd"))
    }

    /// Architecture, and the number of the block that is the head.
    fn head(&self) -> (String, u32) {
        let text = |key: &str| self.meta.require_str(key).unwrap().to_owned();
        let arch = text("general.architecture");
        let number = |part: &str| self.meta.require_u32(&format!("{arch}.{part}")).unwrap();
        assert_eq!(number("nextn_predict_layers"), 1, "a merged model");
        let head = number("block_count") - 1;
        (arch, head)
    }

    /// With one more tensor of floats.
    pub fn add(mut self, name: &str, dims: &[u64], values: &[f32]) -> Self {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32, data });
        self
    }

    /// A tensor to be changed.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    /// The file, as if opened.
    pub fn file(&self) -> ModelFile {
        self.file_as("edited.gguf")
    }

    /// The file under another name.
    pub fn file_as(&self, name: &str) -> ModelFile {
        ModelFile::from_static(self.bytes().leak(), name).unwrap()
    }

    /// What would be written to disk.
    pub fn bytes(&self) -> Vec<u8> {
        let mut layout = Layout::new(self.meta.clone()).unwrap();
        for t in &self.tensors {
            layout.tensor(&t.name, &t.dims, t.kind).unwrap();
        }
        let data: Vec<&[u8]> = self.tensors.iter().map(|t| t.data.as_slice()).collect();
        layout.to_bytes(&data).unwrap()
    }

    /// The model, if it is one.
    pub fn load(&self) -> Result<Model, ModelError> {
        Model::load(&self.file(), None, LoadOptions::default())
    }
}

/// The edit is refused with a message that has all of `parts`.
pub fn refused(edit: &Edit, parts: &[&str]) -> ModelError {
    let error = edit.load().err().unwrap_or_else(|| panic!("accepted, expected {parts:?}"));
    let text = error.to_string();
    for part in parts.iter().chain(&["edited.gguf"]) {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    error
}

/// The edit loads without drafting, and says why.
pub fn trunk_only(edit: &Edit, parts: &[&str]) {
    let model = edit.load().unwrap_or_else(|error| panic!("{error}"));
    assert!(model.program.mtp.is_none());
    let MtpStatus::Unavailable(reason) = &model.mtp else { panic!("{:?}", model.mtp) };
    for part in parts.iter().chain(&["sidecar", "edited.gguf"]) {
        assert!(reason.contains(part), "`{reason}` does not say `{part}`");
    }
}

/// With every name that begins with `from` beginning with `to`.
pub fn renamed(mut edit: Edit, from: &str, to: &str) -> Edit {
    let mut changed = 0;
    for t in &mut edit.tensors {
        if let Some(rest) = t.name.strip_prefix(from) {
            t.name = format!("{to}{rest}");
            changed += 1;
        }
    }
    assert!(changed > 0, "nothing is called {from}");
    edit
}

/// With tensors of another file.
pub fn with(mut edit: Edit, other: &Edit, prefix: &str) -> Edit {
    let before = edit.tensors.len();
    edit.tensors.extend(other.tensors.iter().filter(|t| t.name.starts_with(prefix)).cloned());
    assert!(edit.tensors.len() > before);
    edit
}

/// An [`Edit`], or the end of the test.
macro_rules! edit {
    ($path:expr) => {
        match Edit::of($path) {
            Some(edit) => edit,
            None => return,
        }
    };
}

pub(crate) use edit;
