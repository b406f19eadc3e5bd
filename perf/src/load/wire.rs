//! HTTP as a client speaks it, with deadlines: what was sent may be anything, what comes back must be answers.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// No server may be silent for longer.
const SILENCE: Duration = Duration::from_secs(60);
/// No answer is longer.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection.
pub struct Wire {
    stream: TcpStream,
    input: Vec<u8>,
}

/// The head of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its status.
    pub status: u16,
    length: Option<usize>,
    chunked: bool,
}

impl Wire {
    /// Connects.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn connect(address: SocketAddr) -> Result<Self, String> {
        let stream = TcpStream::connect(address).map_err(|e| format!("cannot connect: {e}"))?;
        let set = stream.set_read_timeout(Some(SILENCE)).and_then(|()| stream.set_write_timeout(Some(SILENCE)));
        set.and_then(|()| stream.set_nodelay(true)).map_err(|e| format!("a socket option: {e}"))?;
        Ok(Self { stream, input: Vec::new() })
    }

    /// Sends.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.stream.write_all(bytes).map_err(|e| format!("cannot send: {e}"))
    }

    /// Sends nothing more.
    pub fn close_sending(&self) {
        // Who has gone already has closed it.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads more; `false` at the end.
    fn more(&mut self) -> Result<bool, String> {
        let mut piece = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut piece) {
                Ok(n) => {
                    self.input.extend_from_slice(&piece[..n]);
                    return match self.input.len() > ANSWER_BYTES_MAX {
                        true => Err(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")),
                        false => Ok(n > 0),
                    };
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(format!("silent for {} s", SILENCE.as_secs()));
                }
                Err(e) => return Err(format!("cannot read: {e}")),
            }
        }
    }

    fn line(&mut self) -> Result<Option<String>, String> {
        loop {
            if let Some(at) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.input[..at]).into_owned();
                self.input.drain(..at + 2);
                return Ok(Some(line));
            }
            if !self.more()? {
                return Ok(None);
            }
        }
    }

    fn take(&mut self, n: usize) -> Result<Option<Vec<u8>>, String> {
        while self.input.len() < n {
            if !self.more()? {
                return Ok(None);
            }
        }
        Ok(Some(self.input.drain(..n).collect()))
    }

    /// The head of the next answer; `None` where the connection ends instead.
    ///
    /// # Errors
    /// What is no head.
    pub fn head(&mut self) -> Result<Option<Head>, String> {
        let Some(first) = self.line()? else { return Ok(None) };
        let status = first.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).and_then(|s| s.parse().ok());
        let Some(status) = status else { return Err(format!("{first:?} begins no answer")) };
        let mut head = Head { status, length: None, chunked: false };
        loop {
            let line = self.line()?.ok_or("a head is cut")?;
            if line.is_empty() {
                return Ok(Some(head));
            }
            let (name, value) = line.split_once(": ").ok_or_else(|| format!("{line:?} is no header"))?;
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = Some(value.parse().map_err(|_| format!("{line:?} is no length"))?),
                "transfer-encoding" => head.chunked = value == "chunked",
                _ => {}
            }
        }
    }

    /// The next piece of a body: `None` at its end.
    ///
    /// # Errors
    /// A body that is cut.
    pub fn piece(&mut self, head: &mut Head) -> Result<Option<Vec<u8>>, String> {
        if head.chunked {
            let line = self.line()?.ok_or("a body is cut before a chunk")?;
            let size = usize::from_str_radix(&line, 16).map_err(|_| format!("{line:?} is no chunk size"))?;
            let data = self.take(size)?.ok_or("a chunk is cut")?;
            let end = self.take(2)?.ok_or("a chunk is cut")?;
            return match end == b"\r\n" {
                true => Ok(Some(data).filter(|data| !data.is_empty())),
                false => Err("a chunk is longer than it says".to_owned()),
            };
        }
        match head.length.take() {
            None | Some(0) => Ok(None),
            Some(n) => self.take(n)?.ok_or_else(|| "a body is cut".to_owned()).map(Some),
        }
    }

    /// The rest of a body.
    ///
    /// # Errors
    /// A body that is cut.
    pub fn body(&mut self, mut head: Head) -> Result<Vec<u8>, String> {
        let mut all = Vec::new();
        if matches!(head.status, 100 | 204) {
            return Ok(all);
        }
        while let Some(piece) = self.piece(&mut head)? {
            all.extend(piece);
        }
        Ok(all)
    }
}

/// A POST with a JSON body.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: load\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A GET on a connection of its own: status and body.
///
/// # Errors
/// What went wrong.
pub fn get(address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>), String> {
    let mut wire = Wire::connect(address)?;
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: load\r\nConnection: close\r\n\r\n").as_bytes())?;
    let head = wire.head()?.ok_or("no answer")?;
    Ok((head.status, wire.body(head)?))
}
