//! Verbs of `engine-pack`: what a model file is and needs, and other files made from it. A module a verb.
//!
//! [`output`] writes what is made, [`error`] says why nothing was, [`progress`] how far a run is; [`smoke`] runs what was
//! made.

mod checkpoint_config;
pub mod convert_head;
pub mod doctor;
pub mod error;
pub mod examine;
pub mod fetch;
pub mod graft;
pub mod inspect;
pub mod materialize;
pub mod output;
pub mod package;
pub mod preflight;
pub mod progress;
pub mod quantize_head;
pub mod recipe;
pub mod record;
pub mod share;
pub mod smoke;
pub mod verify;
pub mod verify_package;
pub mod verify_set;

use std::io;
use std::process::ExitCode;

use engine_io::ModelFile;
use serde::Serialize;

pub use error::PackError;

use crate::report::{self, chain};

/// Refuses a layer package where the files of a model are written again: its artifacts are of no use apart.
///
/// # Errors
/// [`PackError::Refused`].
pub fn refuse_package(model: &ModelFile) -> Result<(), PackError> {
    match model.package() {
        None => Ok(()),
        Some(_) => Err(PackError::Refused(format!(
            "{}: is a layer package; give the model that it was cut from, and package the result again (engine-pack \
             package)",
            model.name()
        ))),
    }
}

/// Ends a verb: its report on standard output, for people or as one JSON object, or its error on standard error.
pub fn end<R: Serialize>(result: Result<R, PackError>, json: bool, text: impl FnOnce(&R) -> String) -> ExitCode {
    end_with(result, json, text, |_| 0)
}

/// The same where a report may stand for a check that was not met.
pub fn end_with<R: Serialize>(
    result: Result<R, PackError>,
    json: bool,
    text: impl FnOnce(&R) -> String,
    code: impl FnOnce(&R) -> u8,
) -> ExitCode {
    let found = match result {
        Ok(found) => found,
        Err(error) => {
            report::error(chain(&error));
            return ExitCode::from(error.code());
        }
    };
    match print(&found, json, text) {
        Ok(()) => ExitCode::from(code(&found)),
        Err(error) => {
            report::error(error);
            ExitCode::from(error::FAILED)
        }
    }
}

fn print<R: Serialize>(found: &R, json: bool, text: impl FnOnce(&R) -> String) -> io::Result<()> {
    match json {
        true => report::print_json(found),
        false => report::print(&text(found)),
    }
}
