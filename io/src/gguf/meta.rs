//! Metadata: ordered key-value pairs as the file holds them, and typed getters that never convert silently.
//!
//! Every value keeps the type it has in the file, and strings keep their bytes, so that writing a file again gives the
//! same bytes. Getters accept any integer width with a range check; every refusal names the key.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::types::ValueType;
use crate::error::{Error, Result};
use crate::heap;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the value types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes as in the file; [`Meta::get_str`] checks that they are UTF-8.
    Str(Box<[u8]>),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value; all elements have one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the value types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(StrArray),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Strings laid end to end, so that a vocabulary is two allocations and not two hundred thousand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StrArray {
    bytes: Vec<u8>,
    /// End of string i in `bytes`; its start is the end of string i - 1.
    ends: Vec<usize>,
}

impl StrArray {
    /// Appends a string.
    pub fn push(&mut self, s: &[u8]) {
        self.bytes.extend_from_slice(s);
        self.ends.push(self.bytes.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The bytes of string `i`.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.bytes[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i).expect("index below len"))
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StrArray {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        let mut out = Self::default();
        for s in iter {
            out.push(s.as_ref());
        }
        out
    }
}

impl Array {
    fn heap_bytes(&self) -> usize {
        match self {
            Self::U8(v) => heap::vec(v),
            Self::I8(v) => heap::vec(v),
            Self::U16(v) => heap::vec(v),
            Self::I16(v) => heap::vec(v),
            Self::U32(v) => heap::vec(v),
            Self::I32(v) => heap::vec(v),
            Self::F32(v) => heap::vec(v),
            Self::Bool(v) => heap::vec(v),
            Self::Str(v) => heap::vec(&v.bytes) + heap::vec(&v.ends),
            Self::Array(v) => heap::vec(v) + v.iter().map(Self::heap_bytes).sum::<usize>(),
            Self::U64(v) => heap::vec(v),
            Self::I64(v) => heap::vec(v),
            Self::F64(v) => heap::vec(v),
        }
    }
}

impl Value {
    /// A string value.
    pub fn str(s: &str) -> Self {
        Self::Str(s.as_bytes().into())
    }

    /// An array of strings.
    pub fn strs<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S>) -> Self {
        Self::Array(Array::Str(items.into_iter().collect()))
    }

    /// Its type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Whether two values say the same: integers by value whatever their width, floats as f32, arrays by their elements
    /// as far as both go, and anything else if equal. A number and an array are not compared: neither says the same.
    pub fn agrees(&self, other: &Self) -> bool {
        let float = |v: &Self| match *v {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        };
        match (self, other) {
            (Self::Array(a), Self::Array(b)) => (0..a.len().min(b.len())).all(|i| match (a.element(i), b.element(i)) {
                (Some(a), Some(b)) => a.agrees(&b),
                (a, b) => a == b,
            }),
            _ => match (self.as_int().zip(other.as_int()), float(self).zip(float(other))) {
                (Some((a, b)), _) => a == b,
                (_, Some((a, b))) => a == b,
                _ => self == other,
            },
        }
    }

    /// As JSON; bytes that are no UTF-8 are replaced.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Bool(v) => (*v).into(),
            Self::F32(v) => (*v).into(),
            Self::F64(v) => (*v).into(),
            Self::Str(s) => String::from_utf8_lossy(s).into(),
            Self::U64(v) => (*v).into(),
            Self::Array(Array::Array(v)) => v.iter().map(|a| Self::Array(a.clone()).to_json()).collect(),
            Self::Array(a) => (0..a.len()).filter_map(|i| Some(a.element(i)?.to_json())).collect(),
            other => other.as_int().and_then(|n| i64::try_from(n).ok()).into(),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Str(s) => heap::block(s.len()),
            Self::Array(array) => array.heap_bytes(),
            _ => 0,
        }
    }

    /// The value of any integer type.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
}

/// Type and value, shortened, for messages.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = self.value_type().name();
        match self {
            Self::Str(s) => {
                let head: String = String::from_utf8_lossy(s).chars().take(40).collect();
                write!(f, "{ty} {head:?}")
            }
            Self::Array(a) => write!(f, "array of {} {}", a.len(), a.element_type().name()),
            Self::F32(v) => write!(f, "{ty} {v}"),
            Self::F64(v) => write!(f, "{ty} {v}"),
            Self::Bool(v) => write!(f, "{ty} {v}"),
            other => write!(f, "{ty} {}", other.as_int().unwrap_or_default()),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type of the elements.
    pub fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An element; `None` beyond the end, and of an array of arrays.
    pub fn element(&self, i: usize) -> Option<Value> {
        Some(match self {
            Self::U8(v) => Value::U8(*v.get(i)?),
            Self::I8(v) => Value::I8(*v.get(i)?),
            Self::U16(v) => Value::U16(*v.get(i)?),
            Self::I16(v) => Value::I16(*v.get(i)?),
            Self::U32(v) => Value::U32(*v.get(i)?),
            Self::I32(v) => Value::I32(*v.get(i)?),
            Self::F32(v) => Value::F32(*v.get(i)?),
            Self::Bool(v) => Value::Bool(*v.get(i)?),
            Self::Str(v) => Value::Str(v.get(i)?.into()),
            Self::U64(v) => Value::U64(*v.get(i)?),
            Self::I64(v) => Value::I64(*v.get(i)?),
            Self::F64(v) => Value::F64(*v.get(i)?),
            Self::Array(_) => return None,
        })
    }

    /// Appends a value in the array's own type: an integer of any width or a bool to integers and bools, a float to
    /// floats. `false`, and nothing appended, if the type cannot hold it.
    pub fn push(&mut self, value: &Value) -> bool {
        fn int<T: TryFrom<i128>>(v: &mut Vec<T>, n: Option<i128>) -> bool {
            n.and_then(|n| T::try_from(n).ok()).map(|n| v.push(n)).is_some()
        }
        let n = match value {
            Value::Bool(b) => Some(i128::from(*b)),
            other => other.as_int(),
        };
        match (self, value) {
            (Self::U8(v), _) => int(v, n),
            (Self::I8(v), _) => int(v, n),
            (Self::U16(v), _) => int(v, n),
            (Self::I16(v), _) => int(v, n),
            (Self::U32(v), _) => int(v, n),
            (Self::I32(v), _) => int(v, n),
            (Self::U64(v), _) => int(v, n),
            (Self::I64(v), _) => int(v, n),
            (Self::Bool(v), _) => n.filter(|n| (0..=1).contains(n)).map(|n| v.push(n == 1)).is_some(),
            (Self::F32(v), Value::F32(x)) => {
                v.push(*x);
                true
            }
            (Self::F64(v), Value::F32(x)) => {
                v.push((*x).into());
                true
            }
            (Self::F64(v), Value::F64(x)) => {
                v.push(*x);
                true
            }
            (Self::Str(v), Value::Str(s)) => {
                v.push(s);
                true
            }
            _ => false,
        }
    }

    /// The elements of any integer type; `None` for other types.
    fn ints(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        fn wide<'a, T: Copy + Into<i128>>(v: &'a [T]) -> Option<Box<dyn Iterator<Item = i128> + 'a>> {
            Some(Box::new(v.iter().map(|&x| x.into())))
        }
        match self {
            Self::U8(v) => wide(v),
            Self::I8(v) => wide(v),
            Self::U16(v) => wide(v),
            Self::I16(v) => wide(v),
            Self::U32(v) => wide(v),
            Self::I32(v) => wide(v),
            Self::U64(v) => wide(v),
            Self::I64(v) => wide(v),
            _ => None,
        }
    }
}

/// The metadata of one file, in file order.
#[derive(Clone, Debug)]
pub struct Meta {
    file: Arc<str>,
    pairs: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Meta {
    /// Empty metadata of a file called `file` in messages.
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), pairs: Vec::new(), index: HashMap::new() }
    }

    /// Heap bytes.
    pub fn heap_bytes(&self) -> usize {
        let key = |key: &String| 2 * heap::block(key.len());
        let pairs = self.pairs.iter().map(|(k, value)| key(k) + value.heap_bytes()).sum::<usize>();
        heap::vec(&self.pairs) + heap::map::<(String, usize)>(self.index.capacity()) + pairs
    }

    /// The file these keys come from.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Appends a key.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if it is there already.
    pub fn push(&mut self, key: &str, value: Value) -> Result<()> {
        if self.index.contains_key(key) {
            return Err(Error::DuplicateKey { file: self.file.to_string(), key: key.into() });
        }
        self.index.insert(key.into(), self.pairs.len());
        self.pairs.push((key.into(), value));
        Ok(())
    }

    /// Replaces the value of a key in place, or appends it.
    pub fn set(&mut self, key: &str, value: Value) {
        match self.index.get(key) {
            Some(&i) => self.pairs[i].1 = value,
            None => {
                self.index.insert(key.into(), self.pairs.len());
                self.pairs.push((key.into(), value));
            }
        }
    }

    /// Removes a key and gives its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let i = self.index.remove(key)?;
        for at in self.index.values_mut().filter(|at| **at > i) {
            *at -= 1;
        }
        Some(self.pairs.remove(i).1)
    }

    /// Keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The value of a key, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.pairs[i].1)
    }

    /// An integer of any width, within `T`.
    fn get_int<T: TryFrom<i128> + fmt::Display>(&self, key: &str, min: T, max: T) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Some(n) = value.as_int() else { return Err(self.wrong_type(key, value, "an integer")) };
        T::try_from(n).map(Some).map_err(|_| self.out_of_range(key, n.to_string(), format!("{min} to {max}")))
    }

    /// An integer of any width that fits a u32. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.get_int(key, u32::MIN, u32::MAX)
    }

    /// An integer of any width that fits an i32. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_i32(&self, key: &str) -> Result<Option<i32>> {
        self.get_int(key, i32::MIN, i32::MAX)
    }

    /// An integer of any width that fits a u64. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.get_int(key, u64::MIN, u64::MAX)
    }

    /// A finite float of either width. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`] (not finite as f32).
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let v = match *value {
            Value::F32(v) => v,
            Value::F64(v) => v as f32,
            _ => return Err(self.wrong_type(key, value, "a float")),
        };
        if v.is_finite() { Ok(Some(v)) } else { Err(self.out_of_range(key, value, "a finite f32")) }
    }

    /// A boolean. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(self.wrong_type(key, other, "a bool")),
        }
    }

    /// A UTF-8 string. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`] (not UTF-8).
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(value @ Value::Str(s)) => {
                std::str::from_utf8(s).map(Some).map_err(|_| self.out_of_range(key, value, "UTF-8 text"))
            }
            Some(other) => Err(self.wrong_type(key, other, "a string")),
        }
    }

    /// An array of strings (bytes; vocabularies hold pieces that are no UTF-8). `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn get_str_array(&self, key: &str) -> Result<Option<&StrArray>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::Str(a))) => Ok(Some(a)),
            Some(other) => Err(self.wrong_type(key, other, "an array of strings")),
        }
    }

    fn get_int_array<T: TryFrom<i128> + fmt::Display>(&self, key: &str, min: T, max: T) -> Result<Option<Vec<T>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(array) = value else { return Err(self.wrong_type(key, value, "an array of integers")) };
        // Converters write an empty array with an arbitrary element type.
        if array.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let Some(ints) = array.ints() else { return Err(self.wrong_type(key, value, "an array of integers")) };
        let mut out = Vec::with_capacity(array.len());
        for (i, n) in ints.enumerate() {
            let n = T::try_from(n)
                .map_err(|_| self.out_of_range(&format!("{key}[{i}]"), n.to_string(), format!("{min} to {max}")))?;
            out.push(n);
        }
        Ok(Some(out))
    }

    /// An array of integers of any width that fit a u32. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_u32_array(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.get_int_array(key, u32::MIN, u32::MAX)
    }

    /// An array of integers of any width that are not negative. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_u64_array(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.get_int_array(key, u64::MIN, u64::MAX)
    }

    /// An array of integers of any width that fit an i32. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn get_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get_int_array(key, i32::MIN, i32::MAX)
    }

    /// An array of floats of either width. `None` if absent.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn get_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value {
            Value::Array(Array::F32(v)) => Ok(Some(v.clone())),
            Value::Array(Array::F64(v)) => Ok(Some(v.iter().map(|&x| x as f32).collect())),
            Value::Array(a) if a.is_empty() => Ok(Some(Vec::new())),
            other => Err(self.wrong_type(key, other, "an array of floats")),
        }
    }

    /// Turns an absent key into its error: `meta.require(key, meta.get_u32(key))`.
    ///
    /// # Errors
    /// [`Error::MissingKey`], or the getter's own.
    pub fn require<T>(&self, key: &str, got: Result<Option<T>>) -> Result<T> {
        got?.ok_or_else(|| Error::MissingKey { file: self.file.to_string(), key: key.into() })
    }

    /// [`Self::get_u32`] of a required key.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        self.require(key, self.get_u32(key))
    }

    /// [`Self::get_str`] of a required key.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::OutOfRange`].
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.require(key, self.get_str(key))
    }

    /// The architecture string.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn architecture(&self) -> Result<&str> {
        self.require_str(super::keys::ARCHITECTURE)
    }

    /// [`Error::WrongType`] for a key of this file.
    pub fn wrong_type(&self, key: &str, found: impl fmt::Display, expected: &'static str) -> Error {
        Error::WrongType { file: self.file.to_string(), key: key.into(), found: found.to_string(), expected }
    }

    /// [`Error::OutOfRange`] for a key of this file.
    pub fn out_of_range(&self, key: &str, found: impl fmt::Display, expected: impl fmt::Display) -> Error {
        Error::OutOfRange {
            file: self.file.to_string(),
            key: key.into(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// [`Error::Inconsistent`] for this file.
    pub fn inconsistent(&self, found: impl fmt::Display, expected: impl fmt::Display) -> Error {
        Error::Inconsistent { file: self.file.to_string(), found: found.to_string(), expected: expected.to_string() }
    }
}
