//! A hub on this machine: it lists and redirects like one, keeps large files on a second address, and misbehaves where a
//! test says so.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use engine_io::digest::Sha256;
use serde_json::json;
use sha2::Digest as _;

/// The one commit.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub at_store: bool,
    pub path: String,
    pub range: Option<u64>,
    pub auth: Option<String>,
}

/// What is written in answer; then the connection ends.
pub enum Reply {
    Bytes(Vec<u8>),
    /// So many bytes, a pause, so many.
    Paced(Vec<u8>, usize, Duration),
    /// All, and then nothing for so long.
    Stalled(Vec<u8>, Duration),
}

type Hook = Box<dyn Fn(&Request, usize) -> Option<Reply> + Send + Sync>;

/// Files of the repository `o/m`.
pub struct Hub {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    store: SocketAddr,
    files: Vec<(String, Vec<u8>, bool)>,
    log: Mutex<Vec<Request>>,
    hook: Hook,
}

/// Path, bytes, and whether the bytes are stored outside git.
pub fn file(path: &str, bytes: impl Into<Vec<u8>>, lfs: bool) -> (String, Vec<u8>, bool) {
    (path.to_owned(), bytes.into(), lfs)
}

/// Name of the blob of a file.
pub fn blob(bytes: &[u8], lfs: bool) -> String {
    if lfs {
        return Sha256::of(bytes).to_string();
    }
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// An answer with its length. A connection is for one request: whoever used it again would find it closed.
pub fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut out =
        format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n").into_bytes();
    out.extend_from_slice(body);
    out
}

/// What a store says of a range.
pub fn ranged(bytes: &[u8], range: Option<u64>) -> Vec<u8> {
    let Some(from) = range else { return answer("200 OK", "", bytes) };
    if from >= bytes.len() as u64 {
        return answer("416 Range Not Satisfiable", "", b"");
    }
    let headers = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
    answer("206 Partial Content", &headers, &bytes[from as usize..])
}

impl Hub {
    pub fn new(files: Vec<(String, Vec<u8>, bool)>) -> Self {
        Self::with(files, |_, _| None)
    }

    /// `hook` may answer instead; it is told how many requests of the same path came before.
    pub fn with(
        files: Vec<(String, Vec<u8>, bool)>,
        hook: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, store) = (listen(), listen());
        let address = hub.local_addr().unwrap();
        let (store_address, hook) = (store.local_addr().unwrap(), Box::new(hook));
        let shared = Arc::new(Shared { store: store_address, files, log: Mutex::default(), hook });
        for (listener, at_store) in [(hub, false), (store, true)] {
            let shared = Arc::clone(&shared);
            // Both end with the test process.
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.serve(stream, at_store));
                }
            });
        }
        Self { address, shared }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn log(&self) -> Vec<Request> {
        self.shared.log.lock().unwrap().clone()
    }

    /// Requests for the bytes of files, where they are kept.
    pub fn downloads(&self) -> Vec<Request> {
        self.log().into_iter().filter(|r| r.at_store || r.path.contains("README")).collect()
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream, at_store: bool) {
        let Some(request) = read(&stream, at_store) else { return };
        let before = {
            let mut log = self.log.lock().unwrap();
            let before = log.iter().filter(|r| r.path == request.path).count();
            log.push(request.clone());
            before
        };
        let reply = (self.hook)(&request, before).unwrap_or_else(|| Reply::Bytes(self.usual(&request)));
        // The client may be killed, or have heard enough.
        let _ = match reply {
            Reply::Bytes(bytes) => stream.write_all(&bytes),
            Reply::Paced(bytes, piece, pause) => bytes.chunks(piece).try_for_each(|piece| {
                thread::sleep(pause);
                stream.write_all(piece)
            }),
            Reply::Stalled(bytes, pause) => {
                let written = stream.write_all(&bytes);
                thread::sleep(pause);
                written
            }
        };
    }

    fn usual(&self, request: &Request) -> Vec<u8> {
        let path = request.path.as_str();
        if request.at_store {
            let name = path.trim_start_matches("/lfs/").split('?').next().unwrap();
            return match self.files.iter().find(|(n, _, _)| n == name) {
                Some((_, bytes, _)) => ranged(bytes, request.range),
                None => answer("404 Not Found", "", b""),
            };
        }
        if path.starts_with("/api/models/o/m/revision/") {
            return answer("200 OK", "", json!({"sha": COMMIT, "private": false}).to_string().as_bytes());
        }
        if let Some(query) = path.strip_prefix(&format!("/api/models/o/m/tree/{COMMIT}?recursive=true")) {
            return self.page(query.strip_prefix("&cursor=").map_or(0, |c| c.parse().unwrap()));
        }
        let name = path.strip_prefix(&format!("/o/m/resolve/{COMMIT}/")).unwrap_or_default();
        match self.files.iter().find(|(n, _, _)| n == name) {
            Some((_, _, true)) => {
                let location = format!("Location: http://{}/lfs/{name}?signature=s\r\n", self.store);
                answer("302 Found", &location, b"see there")
            }
            Some((_, bytes, false)) => ranged(bytes, request.range),
            None => answer("404 Not Found", "X-Error-Code: EntryNotFound\r\n", b""),
        }
    }

    /// Two files a page, as a hub has a thousand.
    fn page(&self, from: usize) -> Vec<u8> {
        let nodes: Vec<_> =
            self.files.iter().skip(from).take(2).map(|(name, bytes, lfs)| node(name, bytes, *lfs)).collect();
        let next = format!("</api/x>; rel=\"prev\", <{}&cursor={}>; rel=\"next\"", self.tree(), from + 2);
        let link = if from + 2 < self.files.len() { format!("Link: {next}\r\n") } else { String::new() };
        answer("200 OK", &link, json!(nodes).to_string().as_bytes())
    }

    fn tree(&self) -> String {
        // The hub's own address is the one that is not the store's; requests came there.
        format!("http://{}/api/models/o/m/tree/{COMMIT}?recursive=true", self.hub_host())
    }

    fn hub_host(&self) -> String {
        HOST.with(|host| host.borrow().clone())
    }
}

thread_local! {
    /// `Host` of the request that this thread answers.
    static HOST: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// A file in a listing.
pub fn node(name: &str, bytes: &[u8], lfs: bool) -> serde_json::Value {
    let oid = blob(bytes, false);
    let mut node = json!({"type": "file", "oid": oid, "size": bytes.len(), "path": name});
    if lfs {
        node["lfs"] = json!({"oid": blob(bytes, true), "size": bytes.len(), "pointerSize": 134});
    }
    node
}

fn read(stream: &TcpStream, at_store: bool) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let (mut range, mut auth) = (None, None);
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "range" => range = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            "authorization" => auth = Some(value.to_owned()),
            "host" => HOST.with(|host| value.clone_into(&mut host.borrow_mut())),
            _ => {}
        }
    }
    Some(Request { at_store, path, range, auth })
}
