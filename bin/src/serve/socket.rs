//! Sockets of either kind, TCP and of a file: where the front listens, and what it accepts.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

/// How a host is written that is a file.
const UNIX: &str = "unix:";

/// An address that is listened on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// An address and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A socket that listens. The file of one that has a file goes with it.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens on `host`, a name, an address or `unix:PATH`; `port` is of no account for the last.
    ///
    /// # Errors
    /// Names the address that was asked for.
    pub(crate) fn bind(host: &str, port: u16) -> io::Result<Self> {
        if let Some(path) = host.strip_prefix(UNIX) {
            let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {host}: {e}"));
            return bind_file(Path::new(path)).map_err(named);
        }
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {host} port {port}: {e}"));
        let no_address = || io::Error::new(io::ErrorKind::InvalidInput, "the host names no address");
        let mut addresses = (host, port).to_socket_addrs().map_err(named)?;
        let address = addresses.next().ok_or_else(no_address).map_err(named)?;
        TcpListener::bind(address).map(Self::Tcp).map_err(named)
    }

    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| {
                set_options(&stream);
                Stream::Tcp(stream)
            }),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => registry.register(listener, token, Interest::READABLE),
            Self::Unix(listener, _) => registry.register(listener, token, Interest::READABLE),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self
            && let Err(error) = std::fs::remove_file(&*path)
        {
            tracing::warn!(path = %path.display(), %error, "the socket's file stays behind");
        }
    }
}

/// A file that a server left behind makes room; one that is served, or that is no socket, stays.
fn bind_file(path: &Path) -> io::Result<Listener> {
    let exists = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what.to_owned()));
    if path.as_os_str().is_empty() {
        // The system would make up a name that nobody knows.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file; give unix:PATH"));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return exists("the file exists and is no socket; name another, or remove it");
        }
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => return exists("another server listens there"),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            Err(e) => return Err(e),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    Ok(Listener::Unix(UnixListener::bind(path)?, path.to_owned()))
}

/// Keep-alive probes and no coalescing of small events.
fn set_options(stream: &TcpStream) {
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(60));
    let socket = socket2::SockRef::from(stream);
    // A socket that refuses an option still works; a peer that vanished is then found by writing.
    if let Err(error) = socket.set_tcp_keepalive(&keepalive).and_then(|()| socket.set_tcp_nodelay(true)) {
        tracing::debug!(%error, "socket option refused");
    }
}

/// A connection's socket.
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    /// Says that nothing more will be written.
    pub(crate) fn shut_write(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_over_only_from_the_dead() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let host = format!("unix:{}", path.display());
        let told = |expected: &str| {
            let error = Listener::bind(&host, 0).err().expect("it was taken over").to_string();
            assert!(error.contains(&host) && error.contains(expected), "{error}");
        };
        std::fs::write(&path, "mine").unwrap();
        told("no socket");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(&path).unwrap();
        // Left behind: nobody listens any more.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind(&host, 0).unwrap();
        told("another server");
        assert_eq!(listener.address().unwrap().to_string(), host);
        drop(listener);
        assert!(!path.exists());
        let error = Listener::bind("unix:", 0).err().unwrap().to_string();
        assert!(error.contains("cannot listen on unix:"), "{error}");
    }
}
