//! The one place of this crate with `unsafe`: read-only mappings of model files, and the end of a process whose file
//! shrank under one.
//!
//! A page that lies beyond the end of its file raises SIGBUS when touched. [`install_fault_handler`] turns that into a
//! message that names the file and an orderly exit; without a mapping at the fault address the signal keeps its
//! default meaning. The tail of the last page reads as zeros and raises nothing, and neither do bytes that were written
//! in place, which is why [`crate::FileWatch`] exists beside the handler.
#![expect(unsafe_code, reason = "mapping a file and handling SIGBUS have no safe interface")]

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use memmap2::{Mmap, MmapMut};

use crate::error::{Error, Result};

/// Files mapped at the same time at most; the fault handler looks through a table of this size.
pub const MAPPINGS_MAX: usize = 1024;

/// The bytes of a file: mapped, or copied into page-aligned memory.
#[derive(Debug)]
pub struct FileBytes {
    map: Mmap,
    watch: Option<Watch>,
}

impl FileBytes {
    /// Maps the first `len` bytes of a file, read-only. `len` must be its size and not zero.
    ///
    /// The file must not be written while it is mapped: other bytes would be read (see [`crate::FileWatch`]), a shorter
    /// file ends the process (see [`install_fault_handler`]).
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::TooManyMappings`].
    pub fn map(file: &File, len: usize, name: &str) -> Result<Self> {
        // SAFETY: the mapping is private to this process and read-only. What the type system cannot exclude is another
        // process writing the file: bytes are only ever read as plain integers, so any value is a valid one, and
        // pages that vanish end the process by SIGBUS.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(file) };
        let map = map.map_err(|source| Error::Io { file: name.into(), action: "map into memory", source })?;
        let watch = Watch::register(&map, name)?;
        Ok(Self { map, watch: Some(watch) })
    }

    /// Reads the first `len` bytes of a file into memory of its own. `len` must not be zero.
    ///
    /// # Errors
    /// [`Error::Io`]; a file shorter than `len` is one too.
    pub fn read(mut file: &File, len: usize, name: &str) -> Result<Self> {
        let failed = |action| move |source| Error::Io { file: name.into(), action, source };
        let mut memory = MmapMut::map_anon(len).map_err(failed("get memory for"))?;
        file.read_exact(&mut memory).map_err(failed("read"))?;
        let map = memory.make_read_only().map_err(failed("protect the memory of"))?;
        Ok(Self { map, watch: None })
    }

    /// Whether the bytes are the file's own pages.
    pub fn is_mapped(&self) -> bool {
        self.watch.is_some()
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

/// One row of the table the handler looks through. `start` is 0 when free and [`TAKEN`] while it is being filled.
struct Watched {
    start: AtomicUsize,
    len: AtomicUsize,
    /// NUL-terminated file name, owned by the row.
    name: AtomicPtr<c_char>,
}

/// Marks a row that is being filled; no mapping starts here.
const TAKEN: usize = 1;

static WATCHED: [Watched; MAPPINGS_MAX] =
    [const { Watched { start: AtomicUsize::new(0), len: AtomicUsize::new(0), name: AtomicPtr::new(ptr::null_mut()) } };
        MAPPINGS_MAX];

/// A registered mapping; dropping it frees the row.
#[derive(Debug)]
struct Watch(usize);

impl Watch {
    fn register(map: &[u8], name: &str) -> Result<Self> {
        let free = |w: &Watched| w.start.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let Some(i) = WATCHED.iter().position(free) else {
            return Err(Error::TooManyMappings { file: name.into(), limit: MAPPINGS_MAX });
        };
        let visible: Vec<u8> = name.bytes().filter(|&b| b != 0).collect();
        let text = CString::new(visible).expect("NUL bytes were filtered out");
        WATCHED[i].name.store(text.into_raw(), Ordering::Relaxed);
        WATCHED[i].len.store(map.len(), Ordering::Relaxed);
        WATCHED[i].start.store(map.as_ptr() as usize, Ordering::Release);
        Ok(Self(i))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let row = &WATCHED[self.0];
        row.start.store(TAKEN, Ordering::Relaxed);
        let name = row.name.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: `register` stored this pointer from `CString::into_raw`, and the swap makes this the only owner. The
        // handler reads it only for a fault inside the mapping, which nobody can touch any more: its owner is being
        // dropped.
        drop(unsafe { CString::from_raw(name) });
        row.start.store(0, Ordering::Release);
    }
}

/// Makes a model file that shrinks while mapped end the process with exit code 1 and a message on standard error.
/// Does nothing from the second call on.
///
/// # Errors
/// [`Error::Io`] if the system refuses the handler.
pub fn install_fault_handler() -> Result<()> {
    static INSTALLED: Once = Once::new();
    let mut result = Ok(());
    INSTALLED.call_once(|| {
        // SAFETY: a zeroed sigaction is a valid one (default handler, empty mask); every field that matters is set
        // below, and `on_sigbus` has the signature SA_SIGINFO asks for and calls async-signal-safe functions only.
        let failed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) != 0
        };
        if failed {
            let source = std::io::Error::last_os_error();
            result = Err(Error::Io { file: "SIGBUS".into(), action: "install the handler for", source });
        }
    });
    result
}

/// Runs on SIGBUS, on any thread, at any point: only atomic loads, write, signal, raise and _exit from here.
extern "C" fn on_sigbus(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler, and for SIGBUS its address field is filled
    // (a signal sent by kill leaves some other number there, which at worst matches no mapping).
    let address = unsafe { (*info).si_addr() } as usize;
    let hit = WATCHED.iter().find(|w| {
        let start = w.start.load(Ordering::Acquire);
        start > TAKEN && address >= start && address - start < w.len.load(Ordering::Relaxed)
    });
    let Some(row) = hit else {
        // SAFETY: both calls are async-signal-safe; with the default action back, the pending signal ends the process
        // as it would have without this handler.
        unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
            libc::raise(libc::SIGBUS);
        }
        return;
    };
    let name = row.name.load(Ordering::Relaxed);
    // SAFETY: the row is registered, so `name` is a live NUL-terminated string (see `Watch`); strlen, write and _exit
    // are async-signal-safe, and the lengths are those of the buffers.
    unsafe {
        write_stderr(name.cast(), libc::strlen(name));
        let text = b": the model file became shorter while it was in use (or its disk failed); stopping before wrong \
                     output. Restore the file and start again, or use --no-mmap\n";
        write_stderr(text.as_ptr().cast(), text.len());
        libc::_exit(1);
    }
}

/// Writes all bytes to standard error, as far as it takes them.
///
/// # Safety
/// `bytes` must be readable for `len` bytes.
unsafe fn write_stderr(mut bytes: *const c_void, mut len: usize) {
    while len > 0 {
        // SAFETY: the caller's promise, kept by the advance below.
        let n = unsafe { libc::write(libc::STDERR_FILENO, bytes, len) };
        if n <= 0 {
            return;
        }
        // SAFETY: write took `n <= len` bytes, so the sum stays within the buffer or one past its end.
        bytes = unsafe { bytes.add(n as usize) };
        len -= n as usize;
    }
}

#[cfg(test)]
mod tests;
