//! Why a handle was not opened, and why a call on one did nothing.

use crate::serve::start::LoadError;

/// Why a handle was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration.
    #[error("{0}")]
    Config(String),
    /// The model, or what is asked of it.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The operating system gave no thread.
    #[error("the threads of the handle could not be started: {0}")]
    Thread(std::io::Error),
}

impl OpenError {
    /// What the exit code of a program would be: 1 the machine, 2 usage, 3 a refused input.
    pub fn code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Load(error) => error.code(),
            Self::Thread(_) => 1,
        }
    }
}

/// Why a call on a handle did nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// What the call was given.
    #[error("{0}")]
    Argument(String),
    /// Too much waits already. Poll, then try again.
    #[error("{0}")]
    Full(String),
    /// The request has ended, and of a poll its last event was taken, or it never was.
    #[error("request {0} is over or never was: there is nothing to cancel, or its last event was taken")]
    NoRequest(u64),
    /// The handle was closed meanwhile.
    #[error("the handle was closed")]
    Closed,
    /// The engine has ended by itself.
    #[error("the engine has ended: {0}")]
    Dead(String),
}
