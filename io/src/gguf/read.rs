//! Bytes of one GGUF file -> metadata and tensor directory, or the reason why not.
//!
//! Every number in the file is compared with the bytes that are left (`n <= len - pos`) before it is used, and nothing
//! is allocated by a number the file claims: memory and time are bounded by the bytes present. The first failure ends
//! the parse; no half-read state leaves this module.

use std::collections::HashSet;
use std::sync::Arc;

use super::keys;
use super::meta::{Array, Meta, StrArray, Value};
use super::types::{TensorType, ValueType};
use crate::error::{Error, Result};

/// Alignment of a file that does not state one.
pub const ALIGNMENT_DEFAULT: u64 = 32;
/// Largest alignment accepted: beyond it padding would dwarf the data.
pub const ALIGNMENT_MAX: u64 = 1 << 20;
/// Dimensions of a tensor at most.
pub const DIMS_MAX: usize = 4;
/// Longest key or tensor name. Source: ggml `docs/gguf.md` (keys: 2^16 - 1 bytes).
pub const NAME_BYTES_MAX: u64 = 65_535;
/// Levels of arrays within arrays.
pub const NESTING_MAX: u32 = 4;
/// Version written, and the newest read.
pub const VERSION: u32 = 3;

/// Smallest key: the length of its name (an empty one has its own diagnosis), a type, one byte of value.
const KEY_BYTES_MIN: u64 = 8 + 4 + 1;
/// Smallest tensor entry: the length of its name, no dimension, type and offset.
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 4 + 8;

/// One tensor of the directory: what it is and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    dims: [u64; DIMS_MAX],
    dims_len: u8,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Which shard holds it, from 0.
    pub shard: u32,
    /// Where its data start in that file.
    pub start: u64,
    /// Bytes of its data, without padding.
    pub bytes: u64,
}

impl TensorInfo {
    /// A tensor without a place: checked shape and size, `start` and `shard` zero.
    ///
    /// # Errors
    /// [`Error::BadShape`], [`Error::RowNotBlocks`].
    pub fn new(file: &str, name: &str, dims: &[u64], ty: TensorType) -> Result<Self> {
        let bad =
            |expected| Error::BadShape { file: file.into(), tensor: name.into(), found: format!("{dims:?}"), expected };
        if dims.len() > DIMS_MAX {
            return Err(bad("at most 4 dimensions"));
        }
        if dims.contains(&0) {
            return Err(bad("every dimension at least 1"));
        }
        let mut fixed = [1; DIMS_MAX];
        fixed[..dims.len()].copy_from_slice(dims);
        let overflow = || bad("fewer than 2^63 elements and bytes");
        let limit = |n: &u64| i64::try_from(*n).is_ok();
        dims.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).filter(limit).ok_or_else(overflow)?;
        let row_bytes = ty.row_bytes(fixed[0]).ok_or_else(|| match fixed[0] % ty.block_len() {
            0 => overflow(),
            _ => Error::RowNotBlocks {
                file: file.into(),
                tensor: name.into(),
                ty: ty.name(),
                row_len: fixed[0],
                block_len: ty.block_len(),
            },
        })?;
        let bytes =
            fixed[1..].iter().try_fold(row_bytes, |n, &d| n.checked_mul(d)).filter(limit).ok_or_else(overflow)?;
        Ok(Self { name: name.into(), dims: fixed, dims_len: dims.len() as u8, ty, shard: 0, start: 0, bytes })
    }

    /// The dimensions as in the file: `dims()[0]` is the row length, its elements are contiguous.
    pub fn dims(&self) -> &[u64] {
        &self.dims[..usize::from(self.dims_len)]
    }

    /// Dimension `i`, 1 beyond those in the file.
    pub fn dim(&self, i: usize) -> u64 {
        self.dims.get(i).copied().unwrap_or(1)
    }

    /// Elements of a row.
    pub fn row_len(&self) -> u64 {
        self.dims[0]
    }

    /// Rows of all further dimensions together.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> u64 {
        self.bytes / self.rows()
    }

    /// Elements of the tensor.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Whether the dimensions are these, trailing ones aside.
    pub fn has_dims(&self, dims: &[u64]) -> bool {
        dims.len() <= DIMS_MAX && (0..DIMS_MAX).all(|i| self.dim(i) == dims.get(i).copied().unwrap_or(1))
    }
}

/// One parsed file.
#[derive(Clone, Debug)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// Alignment of the data section and of every tensor.
    pub alignment: u64,
    /// Where the data section starts.
    pub data_start: u64,
    /// Metadata in file order.
    pub meta: Meta,
    /// Tensors in file order; all their bytes are inside the file and disjoint.
    pub tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Parses a whole file; `file` names it in errors.
    ///
    /// # Errors
    /// Any variant of [`Error`] that speaks of one file's bytes.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self> {
        let mut r = Reader { bytes, pos: 0, file: file.into() };
        let version = r.version()?;
        let tensor_count = r.u64("the tensor count")?;
        let key_count = r.u64("the key count")?;
        r.room("the metadata keys", key_count, KEY_BYTES_MIN)?;
        let mut meta = Meta::new(file);
        for index in 0..key_count {
            let key = r.name("metadata key", index)?;
            let ty = r.u32(&key)?;
            let value = r.value(&key, ty)?;
            meta.push(&key, value)?;
        }
        let alignment = alignment(&meta)?;
        r.room("the tensor directory", tensor_count, TENSOR_BYTES_MIN)?;
        let mut tensors = Vec::new();
        for index in 0..tensor_count {
            tensors.push(r.tensor(index)?);
        }
        // `pos` is at most `len`, and a slice is at most isize::MAX long: the sum cannot wrap.
        let data_start = (r.pos as u64).next_multiple_of(alignment);
        place(&mut tensors, file, data_start, alignment, bytes.len() as u64)?;
        Ok(Self { version, alignment, data_start, meta, tensors })
    }
}

/// The alignment a file states, checked.
///
/// # Errors
/// [`Error::BadAlignment`], [`Error::WrongType`], [`Error::OutOfRange`].
pub fn alignment(meta: &Meta) -> Result<u64> {
    let found = meta.get_u64(keys::ALIGNMENT)?.unwrap_or(ALIGNMENT_DEFAULT);
    if found.is_power_of_two() && found <= ALIGNMENT_MAX {
        return Ok(found);
    }
    Err(Error::BadAlignment { file: meta.file().into(), found, limit: ALIGNMENT_MAX })
}

/// Turns offsets in the data section into positions in the file and checks each against alignment, file end and
/// neighbours.
fn place(tensors: &mut [TensorInfo], file: &str, data_start: u64, alignment: u64, len: u64) -> Result<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    if let Some(t) = tensors.iter().find(|t| !names.insert(t.name.as_str())) {
        return Err(Error::DuplicateTensor { file: file.into(), tensor: t.name.clone(), other: file.into() });
    }
    for t in tensors.iter_mut() {
        let offset = t.start;
        if !offset.is_multiple_of(alignment) {
            return Err(Error::MisalignedTensor {
                file: file.into(),
                tensor: t.name.clone(),
                found: offset,
                alignment,
            });
        }
        let fits = data_start <= len && offset <= len - data_start && t.bytes <= len - data_start - offset;
        if !fits {
            return Err(Error::TruncatedTensor {
                file: file.into(),
                tensor: t.name.clone(),
                start: data_start.saturating_add(offset),
                needed: t.bytes,
                present: len,
                hint: part_hint(file),
            });
        }
        t.start = data_start + offset;
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.start);
    for pair in order.windows(2) {
        if pair[1].start - pair[0].start < pair[0].bytes {
            return Err(Error::OverlappingTensors {
                file: file.into(),
                tensor: pair[1].name.clone(),
                other: pair[0].name.clone(),
            });
        }
    }
    Ok(())
}

/// Advice when a truncated file is named like a raw piece (`model.gguf.part1of2`).
pub(crate) fn part_hint(file: &str) -> String {
    let is_part = || {
        let (x, y) = file.rsplit_once(".part").or_else(|| file.rsplit_once("-part"))?.1.split_once("of")?;
        let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        (number(x) && number(y)).then_some(())
    };
    match is_part() {
        Some(()) => "; its name ends in partXofY: join the parts into one file first (cat PARTS > model.gguf)".into(),
        None => String::new(),
    }
}

/// What a file that is not GGUF looks like instead.
fn foreign_hint(bytes: &[u8]) -> &'static str {
    const OLD: [&[u8]; 6] = [b"ggml", b"lmgg", b"ggmf", b"fmgg", b"ggjt", b"tjgg"];
    if OLD.iter().any(|m| bytes.starts_with(m)) {
        "this is a model of the formats before GGUF: convert it again"
    } else if bytes.starts_with(b"version https://git-lfs") {
        "this is a Git LFS pointer: run `git lfs pull` to get the file itself"
    } else if bytes.starts_with(b"<") {
        "this looks like a web page: the download failed, fetch the file itself"
    } else if bytes.get(8) == Some(&b'{') {
        "this looks like safetensors: convert it to GGUF"
    } else if bytes.starts_with(b"PK") {
        "this looks like a zip or PyTorch file: convert it to GGUF"
    } else {
        "give a GGUF model file, or download it again"
    }
}

/// A cursor that never passes the end.
struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
    file: Arc<str>,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    fn truncated(&self, what: &str, needed: u64) -> Error {
        Error::Truncated {
            file: self.file.to_string(),
            what: what.into(),
            at: self.pos as u64,
            needed,
            present: self.left(),
            hint: part_hint(&self.file),
        }
    }

    /// Whether `count` items of at least `bytes_min` bytes can still be in the file.
    fn room(&self, what: &str, count: u64, bytes_min: u64) -> Result<()> {
        match count.checked_mul(bytes_min) {
            Some(needed) if needed <= self.left() => Ok(()),
            needed => Err(self.truncated(what, needed.unwrap_or(u64::MAX))),
        }
    }

    fn take(&mut self, what: &str, n: u64) -> Result<&'a [u8]> {
        if n > self.left() {
            return Err(self.truncated(what, n));
        }
        // n is at most the slice's length here.
        let taken = &self.bytes[self.pos..self.pos + n as usize];
        self.pos += n as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(what, N as u64)?.try_into().expect("N bytes taken"))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Magic and version. The version word alone decides about age and byte order.
    fn version(&mut self) -> Result<u32> {
        let head = &self.bytes[..self.bytes.len().min(4)];
        if !b"GGUF".starts_with(head) {
            let found = format!("\"{}\"", head.escape_ascii());
            return Err(Error::NotGguf { file: self.file.to_string(), found, hint: foreign_hint(self.bytes) });
        }
        self.take("the magic \"GGUF\"", 4)?;
        match self.u32("the version")? {
            v @ 2..=VERSION => Ok(v),
            1 => Err(Error::OldVersion { file: self.file.to_string() }),
            v if matches!(v.swap_bytes(), 1..=255) => {
                Err(Error::ByteSwapped { file: self.file.to_string(), found: v.swap_bytes() })
            }
            found => Err(Error::UnsupportedVersion { file: self.file.to_string(), found }),
        }
    }

    fn name(&mut self, what: &'static str, index: u64) -> Result<String> {
        let label = format!("{what} {index}");
        let len = self.u64(&label)?;
        if len == 0 {
            return Err(Error::EmptyName { file: self.file.to_string(), what, index });
        }
        let bytes = self.take(&label, len)?;
        let found = match std::str::from_utf8(bytes) {
            Ok(_) if len > NAME_BYTES_MAX => format!("{len} bytes"),
            Ok(name) if name.chars().any(char::is_control) => {
                format!("control characters in {:?}", name.chars().take(64).collect::<String>())
            }
            Ok(name) => return Ok(name.into()),
            Err(_) => format!("\"{}\"", bytes[..bytes.len().min(64)].escape_ascii()),
        };
        Err(Error::BadName { file: self.file.to_string(), what, index, found, limit: NAME_BYTES_MAX })
    }

    fn value_type(&self, key: &str, id: u32) -> Result<ValueType> {
        ValueType::from_id(id).ok_or_else(|| Error::UnknownValueType {
            file: self.file.to_string(),
            key: key.into(),
            found: id,
        })
    }

    fn bool(&self, key: &str, byte: u8) -> Result<bool> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Error::BadBool { file: self.file.to_string(), key: key.into(), found }),
        }
    }

    fn value(&mut self, key: &str, id: u32) -> Result<Value> {
        Ok(match self.value_type(key, id)? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            ValueType::U32 => Value::U32(self.u32(key)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            ValueType::Bool => {
                let [byte] = self.array(key)?;
                Value::Bool(self.bool(key, byte)?)
            }
            ValueType::Str => {
                let len = self.u64(key)?;
                Value::Str(self.take(key, len)?.into())
            }
            ValueType::Array => Value::Array(self.array_value(key, 1)?),
            ValueType::U64 => Value::U64(self.u64(key)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(key)?)),
        })
    }

    /// `count` numbers of `N` bytes.
    fn numbers<const N: usize, T>(&mut self, key: &str, count: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>> {
        self.room(key, count, N as u64)?;
        let bytes = self.take(key, count * N as u64)?;
        let (items, _) = bytes.as_chunks::<N>();
        Ok(items.iter().map(|&b| from(b)).collect())
    }

    /// Element type, count and elements. `depth` counts the levels of nesting; it bounds the recursion.
    fn array_value(&mut self, key: &str, depth: u32) -> Result<Array> {
        let id = self.u32(key)?;
        let ty = self.value_type(key, id)?;
        let count = self.u64(key)?;
        self.room(key, count, ty.bytes_min())?;
        Ok(match ty {
            ValueType::U8 => Array::U8(self.numbers(key, count, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(key, count, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(key, count, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(key, count, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(key, count, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(key, count, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(key, count, f32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.numbers(key, count, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(key, count, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(key, count, f64::from_le_bytes)?),
            ValueType::Bool => {
                let bytes = self.take(key, count)?;
                Array::Bool(bytes.iter().map(|&b| self.bool(key, b)).collect::<Result<_>>()?)
            }
            ValueType::Str => {
                let mut strings = StrArray::default();
                for _ in 0..count {
                    let len = self.u64(key)?;
                    strings.push(self.take(key, len)?);
                }
                Array::Str(strings)
            }
            ValueType::Array => {
                if depth == NESTING_MAX {
                    return Err(Error::NestingTooDeep {
                        file: self.file.to_string(),
                        key: key.into(),
                        limit: NESTING_MAX,
                    });
                }
                let mut arrays = Vec::new();
                for _ in 0..count {
                    arrays.push(self.array_value(key, depth + 1)?);
                }
                Array::Array(arrays)
            }
        })
    }

    /// One entry of the directory; `start` still holds the offset in the data section.
    fn tensor(&mut self, index: u64) -> Result<TensorInfo> {
        let name = self.name("tensor", index)?;
        let what = format!("tensor {name}");
        let dims_len = self.u32(&what)?;
        let mut dims = [0; DIMS_MAX];
        let Some(dims) = dims.get_mut(..dims_len as usize) else {
            return Err(Error::BadShape {
                file: self.file.to_string(),
                tensor: name,
                found: format!("{dims_len} in number"),
                expected: "at most 4 dimensions",
            });
        };
        for dim in dims.iter_mut() {
            *dim = self.u64(&what)?;
        }
        let id = self.u32(&what)?;
        let offset = self.u64(&what)?;
        let Some(ty) = TensorType::from_id(id) else {
            let hint = TensorType::unknown_hint(id);
            return Err(Error::UnknownTensorType { file: self.file.to_string(), tensor: name, found: id, hint });
        };
        let mut info = TensorInfo::new(&self.file, &name, dims, ty)?;
        info.start = offset;
        Ok(info)
    }
}
