//! The border itself: every call comes to a status, a panic included, and the text of the last failure is kept for the
//! thread that had it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use engine_bin::embed::{CallError, OpenError};
use engine_bin::report::chain;

use crate::types::Status;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A call that did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    pub status: Status,
    pub text: String,
}

impl Failure {
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    pub fn argument(text: impl Into<String>) -> Self {
        Self::new(Status::Argument, text)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let status = match error.code() {
            2 => Status::Usage,
            3 => Status::Refused,
            _ => Status::Failed,
        };
        Self::new(status, chain(&error))
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        let status = match &error {
            CallError::Argument(_) => Status::Argument,
            CallError::Full(_) => Status::Full,
            CallError::NoRequest(_) => Status::NoRequest,
            CallError::Closed => Status::Closed,
            CallError::Dead(_) => Status::Dead,
        };
        Self::new(status, error.to_string())
    }
}

/// Runs a call. Nothing unwinds out of it.
pub fn guard(call: impl FnOnce() -> Result<(), Failure>) -> Status {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        // What was thrown may itself throw when dropped.
        std::mem::forget(panic);
        Err(Failure::new(Status::Internal, format!("a fault of the library: {said}")))
    });
    match result {
        Ok(()) => Status::Ok,
        Err(Failure { status, text }) => {
            // A thread that is ending has nobody left to ask.
            let _ = LAST.try_with(|last| last.replace(text));
            status
        }
    }
}

/// From now on panics of this library write nothing into the host's stderr, unless it asks by `RUST_BACKTRACE`: they come
/// as a status with their text. The tests' own panics are heard.
pub fn say_nothing() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if cfg!(not(test)) && std::env::var_os("RUST_BACKTRACE").is_none_or(|asked| asked == "0") {
            std::panic::set_hook(Box::new(|_| {}));
        }
    });
}

/// What the last failure of this thread was.
pub fn last() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_status() {
        let status = guard(|| panic!("number {}", 7));
        assert_eq!(status, Status::Internal);
        assert!(last().contains("number 7"));
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Bomb)), Status::Internal);
        assert_eq!(guard(|| Ok(())), Status::Ok);
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!(other, "", "each thread has its own");
    }

    /// A function of the border that is not a call of `guard` could unwind into C.
    #[test]
    fn every_function_is_guarded() {
        let source = include_str!("lib.rs");
        let bodies: Vec<&str> = source.split("extern \"C\" fn ").skip(1).collect();
        assert!(bodies.len() >= 10, "{}", bodies.len());
        for body in bodies {
            let name = body.split('(').next().unwrap();
            let first = body.split("{\n").nth(1).unwrap().trim_start();
            // It returns a constant.
            let plain = name == "slipstream_abi";
            assert!(plain || first.starts_with("guard("), "{name}");
        }
    }
}
