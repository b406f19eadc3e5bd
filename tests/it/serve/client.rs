//! A raw HTTP client: writes the bytes a test gives, reads answers with a deadline.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No answer may take longer than this; a hang is a failure.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A parsed answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// A chunked body ended with its last chunk.
    pub complete: bool,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e} in {:?}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The data of every event, comments left out.
    pub fn events(&self) -> Vec<String> {
        let text = self.text();
        assert!(text.is_empty() || text.ends_with("\n\n"), "an event is cut: {text:?}");
        text.split("\n\n")
            .filter(|event| !event.is_empty() && !event.starts_with(':'))
            .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event:?}")).to_owned())
            .collect()
    }

    /// The events of a stream of named ones, each named by its `type`; comments left out.
    pub fn named(&self) -> Vec<Value> {
        let text = self.text();
        assert!(text.is_empty() || text.ends_with("\n\n"), "an event is cut: {text:?}");
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("one line: {event:?}"));
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event:?}");
            data
        };
        text.split("\n\n").filter(|event| !event.is_empty() && !event.starts_with(':')).map(event).collect()
    }

    /// The JSON events of a complete stream, `[DONE]` checked and left out.
    pub fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", self.text());
        assert!(self.complete);
        events.iter().map(|e| serde_json::from_str(e).unwrap()).collect()
    }
}

/// A connection.
pub struct Client {
    pub stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, input: Vec::new() }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads more; `false` at the end.
    fn more(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(n) => {
                self.input.extend_from_slice(&piece[..n]);
                true
            }
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => false,
            // Whoever stops and continues this process interrupts it; that is no silence of the server.
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => self.more(),
            Err(e) => panic!("no answer within the deadline: {e}; so far {:?}", String::from_utf8_lossy(&self.input)),
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.input.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8(self.input[..at].to_vec()).unwrap();
                self.input.drain(..at + 2);
                return Some(line);
            }
            if !self.more() {
                return None;
            }
        }
    }

    fn take(&mut self, n: usize) -> Option<Vec<u8>> {
        while self.input.len() < n {
            if !self.more() {
                return None;
            }
        }
        Some(self.input.drain(..n).collect())
    }

    /// The next head.
    pub fn head(&mut self) -> Answer {
        let status = self.line().expect("the connection ended instead of an answer");
        let status = status.strip_prefix("HTTP/1.1 ").unwrap()[..3].parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().expect("a whole head");
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(": ").unwrap_or_else(|| panic!("header {line:?}"));
            headers.push((name.to_owned(), value.to_owned()));
        }
        Answer { status, headers, body: Vec::new(), complete: true }
    }

    /// The next answer, body and all. `head_only` for answers to HEAD.
    pub fn answer_of(&mut self, head_only: bool) -> Answer {
        let mut answer = self.head();
        if head_only || matches!(answer.status, 100 | 204) {
            return answer;
        }
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.take(length).expect("the announced body");
        } else if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                if chunk.is_empty() {
                    return answer;
                }
                answer.body.extend(chunk);
            }
            answer.complete = false;
        } else {
            while self.more() {}
            answer.body = std::mem::take(&mut self.input);
        }
        answer
    }

    /// The next chunk; `None` where the connection ends, empty for the last one.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = self.line()?;
        let size = usize::from_str_radix(&size, 16).unwrap();
        let data = self.take(size)?;
        assert_eq!(self.take(2)?, b"\r\n");
        Some(data)
    }

    pub fn answer(&mut self) -> Answer {
        self.answer_of(false)
    }

    /// Reads to the end, whatever comes.
    pub fn drain(&mut self) {
        while self.more() {}
        self.input.clear();
    }

    /// Asserts that the server has closed, with nothing more to say.
    pub fn expect_end(&mut self) {
        while self.more() {}
        assert!(self.input.is_empty(), "more bytes: {:?}", String::from_utf8_lossy(&self.input));
    }
}

/// A POST with a JSON body.
pub fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// A GET.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// One POST on a connection of its own.
pub fn ask(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let mut client = Client::connect(address);
    client.send(post(path, &body.to_string()));
    client.answer()
}
