//! A server of this process on a loopback port: the whole daemon but for its signals, for programs that measure it.

use std::net::SocketAddr;

use engine::engine::EngineHandle;

use crate::flags::ServeArgs;
use crate::serve::start::{self, Files, LoadError};
use crate::serve::{Config, Exit, ListenError, Progress, RecordFile, Server};

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The model.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The operating system gave no thread.
    #[error("a thread of the server could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The folder of `--record`.
    #[error("{0}")]
    Record(std::io::Error),
}

impl LocalError {
    /// Exit code of the process.
    pub fn code(&self) -> u8 {
        match self {
            Self::Load(error) => error.code(),
            Self::Listen(error) => error.code(),
            Self::Thread(_) => 1,
            Self::Record(_) => 3,
        }
    }
}

/// A running server. Its requests end with the process, or orderly with [`Local::end`].
pub struct Local {
    server: Server,
    engine: EngineHandle,
}

impl Local {
    /// Loads the model of `args` and serves it on a free port of the loopback address; host, port and keys of `args` are
    /// of no interest.
    ///
    /// # Errors
    /// [`LocalError`].
    pub fn start(args: &ServeArgs, files: Files) -> Result<Self, LocalError> {
        let record = args.low.record.as_deref().map(RecordFile::create).transpose().map_err(LocalError::Record)?;
        let context = args.low.size.context(start::context_train(&files)?);
        let config = Config { bounds: args.bounds(), ..Config::local(0, context) };
        let digests = record.as_ref().map(|_| start::digests(&files)).transpose()?;
        let (parts, engine) = start::load(args, files, &Progress::default())?;
        let mut server = Server::start(config)?;
        if let (Some(file), Some(digests)) = (record, digests) {
            server.record(file, digests);
        }
        server.serve(parts)?;
        Ok(Self { server, engine })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Finishes what runs and ends; whether the engine was well to the end.
    pub fn end(self) -> bool {
        self.server.handle().shutdown();
        let exit = self.server.join();
        super::stop(self.engine).is_ok() && exit == Exit::Done
    }
}
