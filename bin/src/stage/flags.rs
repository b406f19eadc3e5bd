//! Flags of the stages of a split model.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::options::within;
use crate::flags::{SidecarFlags, StageFlags};

/// The longest that a peer may take for an answer, unless told.
const TIMEOUT_SECONDS_DEFAULT: usize = 60;
/// And the longest that it may be told.
const TIMEOUT_SECONDS_MAX: usize = 3600;

/// `0/2` or `1/2`.
///
/// # Errors
/// Anything else.
pub fn parse_stage(text: &str) -> Result<(u32, u32), String> {
    match text {
        "0/2" => Ok((0, 2)),
        "1/2" => Ok((1, 2)),
        _ => Err("a model is split into the stages 0/2 and 1/2".to_owned()),
    }
}

/// How stages find each other.
#[derive(Clone, Debug, Args)]
pub struct LinkFlags {
    /// Where stage 1 listens for stage 0: HOST:PORT, port 0 = any free one. Without a key only on a loopback address.
    #[arg(long, value_name = "ADDR", requires = "stage")]
    pub listen: Option<String>,
    /// Where stage 0 finds stage 1: HOST:PORT.
    #[arg(long, value_name = "ADDR", requires = "stage", conflicts_with = "listen")]
    pub peer: Option<String>,
    /// A file whose first line both stages must have. It is never sent; what is sent is not encrypted.
    #[arg(long, value_name = "FILE", requires = "stage")]
    pub stage_key_file: Option<PathBuf>,
    /// Seconds after which a peer that does not answer counts as gone; more than the longest pass takes [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "stage", value_parser = within(1, TIMEOUT_SECONDS_MAX))]
    pub stage_timeout: Option<usize>,
}

impl LinkFlags {
    /// How long a peer may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.stage_timeout.unwrap_or(TIMEOUT_SECONDS_DEFAULT) as u64)
    }

    /// What no model can meet. `of_http`: a flag was given that is for requests.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self, stage: &StageFlags, sidecar: &SidecarFlags, of_http: bool) -> Result<(), String> {
        match stage.stage {
            None => Ok(()),
            Some((0, _)) => {
                if self.peer.is_none() {
                    return Err("--stage 0/2 needs --peer: the address at which stage 1 listens".to_owned());
                }
                if sidecar.spec_draft_model.is_some() {
                    return Err("--spec-draft-model belongs to --stage 1/2, where the MTP block is run".to_owned());
                }
                Ok(())
            }
            Some(_) => {
                if self.listen.is_none() {
                    return Err("--stage 1/2 needs --listen: the address at which stage 0 will find it".to_owned());
                }
                if of_http {
                    return Err(
                        "--stage 1/2 serves no HTTP; give API keys, --record and the flags of requests to --stage 0/2"
                            .to_owned(),
                    );
                }
                Ok(())
            }
        }
    }
}

/// The address that a flag names.
///
/// # Errors
/// A text that is none, or a name that nobody knows.
pub fn address(flag: &str, text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|e| format!("{flag} {text}: {e}; give HOST:PORT"))?;
    found.next().ok_or_else(|| format!("{flag} {text} names no address"))
}

#[cfg(test)]
mod tests {
    use crate::flags::LowArgs;

    fn check(line: &str) -> Result<(), String> {
        let words = std::iter::once("engine-serve").chain(line.split_whitespace()).map(Into::into);
        LowArgs::parse_line(words).map_err(|e| e.to_string())?.resolve().map(drop)
    }

    #[test]
    fn each_stage_has_its_own_flags() {
        for good in [
            "--stage 0/2 --peer h:1",
            "--stage 1/2 --listen h:1 --stage-split 3 --stage-timeout 5 --stage-key-file k",
            "--stage 1/2 --listen h:1 -md s.gguf",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in [
            "--stage 0/2",
            "--stage 1/2",
            "--stage 2/2 --peer h:1",
            "--stage 0/3 --peer h:1",
            "--stage 0/2 --listen h:1",
            "--stage 0/2 --peer h:1 --listen h:1",
            "--stage 0/2 --peer h:1 -md s.gguf",
            "--stage 1/2 --peer h:1",
            "--stage 1/2 --listen h:1 --api-key k",
            "--stage 1/2 --listen h:1 --record d",
            "--stage 1/2 --listen h:1 --alias m",
            "--stage 1/2 --listen h:1 --reasoning-format none",
            "--peer h:1",
            "--listen h:1",
            "--stage-split 3",
            "--stage-timeout 3",
            "--stage-key-file k",
            "--stage 0/2 --peer h:1 --stage-timeout 0",
        ] {
            assert!(check(bad).is_err(), "{bad} was accepted");
        }
    }
}
