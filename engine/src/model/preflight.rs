//! Everything that one pass over the tensor directory finds, before any weight is read.

use std::fmt;

use engine_io::{TensorType, compat};

use super::error::ModelError;

/// A type the kernels cannot compute, met in wanted tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The type.
    pub ty: TensorType,
    /// Wanted tensors of it.
    pub count: usize,
    /// One of them.
    pub example: String,
}

/// A tensor of another shape than wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongShape {
    /// Its name.
    pub name: String,
    /// Dimensions in the file.
    pub found: Vec<u64>,
    /// Dimensions wanted.
    pub expected: Vec<u64>,
}

/// What is wrong with the tensors of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preflight {
    /// Required tensors that are absent, in the order asked for.
    pub missing: Vec<String>,
    /// Tensors of wrong shape, in the order asked for.
    pub wrong_shape: Vec<WrongShape>,
    /// Types that cannot be computed, in the order met.
    pub unsupported: Vec<Unsupported>,
    /// Tensors nobody asked for, in file order.
    pub unexpected: Vec<String>,
}

impl Preflight {
    /// Whether the model can be loaded.
    pub fn is_usable(&self, strict: bool) -> bool {
        self.missing.is_empty()
            && self.wrong_shape.is_empty()
            && self.unsupported.is_empty()
            && (!strict || self.unexpected.is_empty())
    }

    /// The names nobody asked for, to be reported, or one error with everything that is wrong.
    ///
    /// # Errors
    /// [`ModelError::Preflight`].
    pub fn into_result(mut self, file: &str, strict: bool) -> Result<Vec<String>, ModelError> {
        if self.is_usable(strict) {
            return Ok(self.unexpected);
        }
        if !strict {
            // Not a fault; the caller of a failed load has nothing to do with them.
            self.unexpected.clear();
        }
        Err(ModelError::Preflight { file: file.to_owned(), report: Box::new(self) })
    }
}

/// One line per fault.
impl fmt::Display for Preflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for u in &self.unsupported {
            lines.push(format!(
                "  type {} of {} tensors (such as {}) cannot be computed; use a file of another quantisation",
                u.ty, u.count, u.example
            ));
        }
        for name in &self.missing {
            let others: Vec<String> = compat::other_names(name).collect();
            let others = if others.is_empty() { String::new() } else { format!(", and so is {}", others.join(", ")) };
            lines.push(format!("  {name} is missing{others}; download or convert the model again"));
        }
        for w in &self.wrong_shape {
            let layout = if w.name.contains(".nextn.") { ": the head was written for another layout" } else { "" };
            let WrongShape { name, found, expected } = w;
            lines.push(format!("  {name} has dimensions {found:?}, expected {expected:?} by the metadata{layout}"));
        }
        for name in &self.unexpected {
            lines.push(format!("  {name} is not known to this architecture"));
        }
        f.write_str(&lines.join("\n"))
    }
}
