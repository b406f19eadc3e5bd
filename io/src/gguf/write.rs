//! Metadata and tensors -> bytes of a file, in bounded memory: the header is built whole, data pass through.
//!
//! [`Layout`] fixes every offset first; [`Layout::start`] writes the header and takes the tensors' data in order.

use std::io::{self, Read, Write};

use super::meta::{Array, Meta, Value};
use super::read::{NAME_BYTES_MAX, NESTING_MAX, TensorInfo, VERSION, alignment};
use super::types::TensorType;
use crate::error::{Error, Result};

/// A file about to be written: metadata, tensors and where each goes.
///
/// Tensors lie in order, each start a multiple of the alignment, without holes; the last one is padded too.
#[derive(Clone, Debug)]
pub struct Layout {
    meta: Meta,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    names: std::collections::HashSet<String>,
    /// Bytes of the data section so far, padded.
    data_bytes: u64,
}

impl Layout {
    /// A layout with this metadata, byte for byte; the alignment is the one `general.alignment` states.
    ///
    /// # Errors
    /// [`Error::BadAlignment`], [`Error::WrongType`]; [`Error::Write`] for a key the format cannot hold.
    pub fn new(meta: Meta) -> Result<Self> {
        for (i, (key, value)) in meta.iter().enumerate() {
            check_name("metadata key", i, key)?;
            if let Value::Array(array) = value {
                check_depth(key, array, 1)?;
            }
        }
        let alignment = alignment(&meta)?;
        Ok(Self { meta, alignment, tensors: Vec::new(), names: Default::default(), data_bytes: 0 })
    }

    /// Appends a tensor to the directory.
    ///
    /// # Errors
    /// [`Error::BadShape`], [`Error::RowNotBlocks`], [`Error::DuplicateTensor`]; [`Error::Write`] for a name the
    /// format cannot hold or sizes beyond 64 bits.
    pub fn tensor(&mut self, name: &str, dims: &[u64], ty: TensorType) -> Result<()> {
        check_name("tensor", self.tensors.len(), name)?;
        let file = self.meta.file();
        let mut info = TensorInfo::new(file, name, dims, ty)?;
        if !self.names.insert(name.into()) {
            return Err(Error::DuplicateTensor { file: file.into(), tensor: name.into(), other: file.into() });
        }
        info.start = self.data_bytes;
        self.data_bytes = info
            .bytes
            .checked_next_multiple_of(self.alignment)
            .and_then(|n| self.data_bytes.checked_add(n))
            .filter(|n| i64::try_from(*n).is_ok())
            .ok_or_else(|| Error::Write {
                what: format!("tensor {name}"),
                found: "sizes that sum beyond 2^63 bytes".into(),
                expected: "fewer".into(),
            })?;
        self.tensors.push(info);
        Ok(())
    }

    /// Header bytes, padding included: the data section follows directly.
    fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.meta.len() as u64).to_le_bytes());
        for (key, value) in self.meta.iter() {
            put_str(&mut out, key.as_bytes());
            put_value(&mut out, value);
        }
        for t in &self.tensors {
            put_str(&mut out, t.name.as_bytes());
            out.extend_from_slice(&(t.dims().len() as u32).to_le_bytes());
            for d in t.dims() {
                out.extend_from_slice(&d.to_le_bytes());
            }
            out.extend_from_slice(&t.ty.id().to_le_bytes());
            out.extend_from_slice(&t.start.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        out
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.header().len() as u64 + self.data_bytes
    }

    /// Writes the header to `out` and goes on to the data.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn start<W: Write>(self, mut out: W) -> Result<DataWriter<W>> {
        let file = self.meta.file().to_string();
        let header = self.header();
        out.write_all(&header).map_err(|source| Error::Io { file: file.clone(), action: "write", source })?;
        Ok(DataWriter { file, alignment: self.alignment, tensors: self.tensors, next: 0, out })
    }

    /// The whole file in memory; `data[i]` belongs to tensor i.
    ///
    /// # Errors
    /// [`Error::Write`] if a length disagrees.
    pub fn to_bytes(self, data: &[&[u8]]) -> Result<Vec<u8>> {
        let mut writer = self.start(Vec::new())?;
        for bytes in data {
            writer.tensor(*bytes)?;
        }
        writer.finish()
    }
}

/// A file whose header is written and whose data are to come, in the order of the directory.
#[derive(Debug)]
pub struct DataWriter<W: Write> {
    file: String,
    alignment: u64,
    tensors: Vec<TensorInfo>,
    next: usize,
    out: W,
}

impl<W: Write> DataWriter<W> {
    /// The tensor whose data come next.
    pub fn expects(&self) -> Option<&TensorInfo> {
        self.tensors.get(self.next)
    }

    /// Copies the next tensor's data from `data`, which must hold exactly its bytes, and pads.
    ///
    /// # Errors
    /// [`Error::Write`] on too few, too many or unexpected bytes, [`Error::Io`].
    pub fn tensor(&mut self, mut data: impl Read) -> Result<()> {
        let Some(t) = self.tensors.get(self.next) else {
            return Err(Error::Write {
                what: format!("data of tensor number {}", self.next + 1),
                found: "data".into(),
                expected: format!("the end after {} tensors", self.tensors.len()),
            });
        };
        let failed = |source| Error::Io { file: self.file.clone(), action: "copy tensor data to", source };
        let copied = io::copy(&mut data.by_ref().take(t.bytes), &mut self.out).map_err(failed)?;
        let surplus = copied == t.bytes && data.read(&mut [0]).map_err(failed)? > 0;
        if copied < t.bytes || surplus {
            return Err(Error::Write {
                what: format!("data of tensor {}", t.name),
                found: if surplus { "more bytes".into() } else { format!("{copied} bytes") },
                expected: format!("{} bytes", t.bytes),
            });
        }
        let padding = t.bytes.next_multiple_of(self.alignment) - t.bytes;
        io::copy(&mut io::repeat(0).take(padding), &mut self.out).map_err(failed)?;
        self.next += 1;
        Ok(())
    }

    /// Flushes and gives the writer back.
    ///
    /// # Errors
    /// [`Error::Write`] if tensors are still to come, [`Error::Io`].
    pub fn finish(mut self) -> Result<W> {
        if let Some(t) = self.tensors.get(self.next) {
            return Err(Error::Write {
                what: format!("data of tensor {}", t.name),
                found: "the end".into(),
                expected: format!("{} bytes", t.bytes),
            });
        }
        self.out.flush().map_err(|source| Error::Io { file: self.file, action: "write", source })?;
        Ok(self.out)
    }
}

fn check_name(what: &str, index: usize, name: &str) -> Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&(name.len() as u64)) {
        return Ok(());
    }
    Err(Error::Write {
        what: format!("{what} {index}"),
        found: format!("a name of {} bytes", name.len()),
        expected: format!("1 to {NAME_BYTES_MAX} bytes"),
    })
}

fn check_depth(key: &str, array: &Array, depth: u32) -> Result<()> {
    let Array::Array(inner) = array else { return Ok(()) };
    if depth == NESTING_MAX {
        return Err(Error::Write {
            what: format!("key {key}"),
            found: "deeper nested arrays".into(),
            expected: format!("at most {NESTING_MAX} levels"),
        });
    }
    inner.iter().try_for_each(|a| check_depth(key, a, depth + 1))
}

fn put_str(out: &mut Vec<u8>, s: &[u8]) {
    out.extend_from_slice(&(s.len() as u64).to_le_bytes());
    out.extend_from_slice(s);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(&value.value_type().id().to_le_bytes());
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::Str(s) => put_str(out, s),
        Value::Array(a) => put_array(out, a),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend_from_slice(&array.element_type().id().to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|x| out.push(u8::from(*x))),
        Array::Str(v) => v.iter().for_each(|s| put_str(out, s)),
        Array::Array(v) => v.iter().for_each(|a| put_array(out, a)),
        Array::U64(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
    }
}
