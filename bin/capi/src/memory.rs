//! Reading and writing through the caller's pointers. What can be checked of one is checked: null, alignment, sizes. That
//! it is readable or writable for the length it came with is the caller's promise, as everywhere in C.

use std::mem::MaybeUninit;

use crate::guard::Failure;
use crate::types::{Batch, Event, Request, Stats, Status};

/// A struct that is longer than this is none of ours.
const STRUCT_BYTES_MAX: usize = 4096;

/// Structs whose first field is their size and that are valid whatever their bits.
///
/// # Safety
/// `repr(C)`, a `usize` first, and otherwise integers and raw pointers only.
pub unsafe trait Versioned: Copy {
    /// For messages.
    const NAME: &'static str;
    /// Size of its first version.
    const LEAST: usize;
}

// SAFETY: as asked for; see `types.rs`.
unsafe impl Versioned for Request {
    const NAME: &'static str = "slipstream_request";
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: as asked for; see `types.rs`.
unsafe impl Versioned for Batch {
    const NAME: &'static str = "slipstream_batch";
    const LEAST: usize = size_of::<Self>();
}

// SAFETY: as asked for; see `types.rs`.
unsafe impl Versioned for Stats {
    const NAME: &'static str = "slipstream_stats";
    const LEAST: usize = size_of::<Self>();
}

fn pointer<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is null")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// The size that the caller wrote into the first field.
///
/// # Safety
/// As [`read`].
unsafe fn size<T: Versioned>(from: *const T) -> Result<usize, Failure> {
    pointer(from, T::NAME)?;
    // SAFETY: the caller's promise; the first field is there in every version.
    let size = unsafe { from.cast::<usize>().read() };
    if (T::LEAST..=STRUCT_BYTES_MAX).contains(&size) {
        return Ok(size);
    }
    let (name, least) = (T::NAME, T::LEAST);
    Err(Failure::argument(format!("struct_size of {name} is {size}; set it to sizeof({name}), at least {least}")))
}

/// Reads a struct of the caller's version: fields that it lacks are zero.
///
/// # Errors
/// Null, not aligned, a size that cannot be meant, or a field that this library does not know and that is not zero.
///
/// # Safety
/// `from` is null, or readable for as many bytes as its first field says.
pub unsafe fn read<T: Versioned>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { size(from)? };
    let known = given.min(size_of::<T>());
    // SAFETY: `known <= given` bytes of the rest, which the caller promises too.
    let rest = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), given - known) };
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Failure::argument(format!("{} has a field that this library does not know", T::NAME)));
    }
    let mut out = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are readable there and fit here; any bits are a value, by the trait.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), out.as_mut_ptr().cast::<u8>(), known);
        Ok(out.assume_init())
    }
}

/// Writes all but the size of a struct, as much of it as the caller has room for.
///
/// # Errors
/// As [`read`].
///
/// # Safety
/// `to` is null, or readable and writable for as many bytes as its first field says.
pub unsafe fn write<T: Versioned>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let given = unsafe { size(to)? };
    let (head, known) = (size_of::<usize>(), given.min(size_of::<T>()));
    // SAFETY: within both structs; bytes that the caller knows and we do not become zero.
    unsafe {
        let (to, from) = (to.cast::<u8>(), std::ptr::from_ref(value).cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), known - head);
        to.add(known).write_bytes(0, given - known);
    }
    Ok(())
}

/// Elements of the caller; null is none.
///
/// # Errors
/// Null with a length, not aligned, or more than memory can hold.
///
/// # Safety
/// `data` is readable for `len` elements until the call returns, and nobody writes them meanwhile.
pub unsafe fn slice<'a, T>(data: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    pointer(data, what)?;
    if len > isize::MAX as usize / size_of::<T>() {
        return Err(Failure::argument(format!("{what} has {len} elements, more than memory can hold")));
    }
    // SAFETY: not null, aligned, no more bytes than memory has; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Puts a number where the caller wants it.
///
/// # Errors
/// Null or not aligned.
///
/// # Safety
/// `to` is null or writable.
pub unsafe fn put<T>(to: *mut T, value: T, what: &str) -> Result<(), Failure> {
    pointer(to, what)?;
    // SAFETY: not null, aligned, and the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Copies text into a buffer, without a 0 at its end, and tells its length.
///
/// # Errors
/// [`Status::TooSmall`] with the length; as [`put`].
///
/// # Safety
/// `buffer` is writable for `capacity` bytes, `length` is null or writable.
pub unsafe fn put_text(
    text: &str,
    buffer: *mut std::ffi::c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { put(length, text.len(), "length")? };
    if text.len() > capacity {
        return Err(Failure::new(Status::TooSmall, format!("{} bytes do not fit {capacity}", text.len())));
    }
    if text.is_empty() {
        return Ok(());
    }
    pointer(buffer, "buffer")?;
    // SAFETY: not null, and `text.len() <= capacity` bytes are writable by the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len()) };
    Ok(())
}

/// The buffers of a batch while it is filled.
pub struct Filling {
    batch: Batch,
    /// What an event that does not fit needs: bytes, ids.
    pub needs: Option<(usize, usize)>,
}

impl Filling {
    /// Empty.
    ///
    /// # Errors
    /// Buffers that cannot be meant.
    ///
    /// # Safety
    /// Every buffer is writable for the length beside it, and nobody else uses them, as long as this lives.
    pub unsafe fn new(batch: Batch) -> Result<Self, Failure> {
        if !(size_of::<Event>()..=STRUCT_BYTES_MAX).contains(&batch.event_size)
            || !batch.event_size.is_multiple_of(align_of::<Event>())
        {
            let (found, least) = (batch.event_size, size_of::<Event>());
            let text = format!("event_size is {found}; set it to sizeof(slipstream_event), at least {least}");
            return Err(Failure::argument(text));
        }
        pointer(batch.events, "events")?;
        if batch.events_max == 0 {
            return Err(Failure::argument("events_max is 0: there is no room for any event"));
        }
        if batch.bytes_max > 0 {
            pointer(batch.bytes, "bytes")?;
        }
        if batch.tokens_max > 0 {
            pointer(batch.tokens, "tokens")?;
        }
        Ok(Self { batch: Batch { events_len: 0, bytes_len: 0, tokens_len: 0, ..batch }, needs: None })
    }

    /// The batch as far as it is filled.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Appends an event; `false` when it does not fit.
    pub fn push(&mut self, event: &Event, json: &[u8], tokens: &[u32]) -> bool {
        let batch = &mut self.batch;
        if batch.events_len == batch.events_max {
            return false;
        }
        if json.len() > batch.bytes_max - batch.bytes_len || tokens.len() > batch.tokens_max - batch.tokens_len {
            self.needs = Some((json.len(), tokens.len()));
            return false;
        }
        // SAFETY: both fit, as was just asked; the buffers are ours by the promise of `new`. What is empty is not copied,
        // since its pointer may be null.
        let (text, ids) = unsafe {
            let copied = |condition: bool, pointer: *mut u8| if condition { pointer } else { std::ptr::null_mut() };
            let text = copied(!json.is_empty(), batch.bytes.cast::<u8>().wrapping_add(batch.bytes_len));
            if !json.is_empty() {
                std::ptr::copy_nonoverlapping(json.as_ptr(), text, json.len());
            }
            let ids = if tokens.is_empty() { std::ptr::null_mut() } else { batch.tokens.add(batch.tokens_len) };
            if !tokens.is_empty() {
                std::ptr::copy_nonoverlapping(tokens.as_ptr(), ids, tokens.len());
            }
            (text, ids)
        };
        let event = Event {
            struct_size: size_of::<Event>(),
            json: text.cast_const().cast(),
            json_len: json.len(),
            tokens: ids.cast_const(),
            tokens_len: tokens.len(),
            ..*event
        };
        // SAFETY: `events_len < events_max` places of `event_size` bytes, each at least as large as ours and aligned
        // like it, because the first is and the distance is a multiple of the alignment.
        unsafe {
            let place = batch.events.cast::<u8>().add(batch.events_len * batch.event_size);
            place.cast::<Event>().write(event);
            place.add(size_of::<Event>()).write_bytes(0, batch.event_size - size_of::<Event>());
        }
        batch.events_len += 1;
        batch.bytes_len += json.len();
        batch.tokens_len += tokens.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Kind;

    fn request() -> Request {
        Request {
            struct_size: size_of::<Request>(),
            endpoint: 7,
            json: std::ptr::null(),
            json_len: 1,
            tokens: std::ptr::null(),
            tokens_len: 2,
        }
    }

    #[test]
    fn sizes_say_the_version() {
        /// As a caller of tomorrow sees it.
        #[repr(C)]
        struct Longer {
            request: Request,
            more: [u64; 2],
        }
        let mut longer = Longer { request: request(), more: [0, 0] };
        longer.request.struct_size = size_of::<Longer>();
        let read_it = |longer: &Longer| {
            // SAFETY: a whole struct of the size that it says.
            unsafe { read(std::ptr::from_ref(longer).cast::<Request>()) }
        };
        assert_eq!(read_it(&longer).unwrap().endpoint, 7);
        longer.more[1] = 1;
        assert!(read_it(&longer).err().unwrap().text.contains("does not know"));
        for size in [0, 7, size_of::<Request>() - 1, STRUCT_BYTES_MAX + 1, usize::MAX] {
            let bad = Request { struct_size: size, ..request() };
            // SAFETY: a size that is refused is not read beyond the first field.
            let error = unsafe { read(&raw const bad) }.err().unwrap();
            assert!(error.status == Status::Argument && error.text.contains(&format!(" {size};")), "{}", error.text);
        }
        // SAFETY: null and crooked pointers are not read.
        unsafe {
            assert!(read(std::ptr::null::<Request>()).err().unwrap().text.contains("null"));
            let crooked = (&raw const longer).cast::<u8>().add(1).cast::<Request>();
            assert!(read(crooked).err().unwrap().text.contains("aligned"));
        }
    }

    #[test]
    fn what_a_caller_lacks_is_not_written() {
        let stats = Stats { requests: 3, threads: 5, ..Stats::default() };
        let mut room = [Stats { struct_size: size_of::<Stats>() + 16, ..Stats::default() }; 2];
        room[1].struct_size = usize::MAX;
        room[1].requests = u64::MAX;
        room[1].events = u64::MAX;
        // SAFETY: the room has as many bytes as it says, and more.
        unsafe { write(room.as_mut_ptr(), &stats) }.unwrap();
        assert_eq!((room[0].requests, room[0].threads), (3, 5));
        assert_eq!(room[0].struct_size, size_of::<Stats>() + 16, "it stays the caller's");
        assert_eq!((room[1].struct_size, room[1].requests, room[1].events), (0, 0, u64::MAX), "zero to its end");
    }

    #[test]
    fn slices_are_checked() {
        let words = [1_u32, 2];
        // SAFETY: what is refused is not read, the rest is there.
        unsafe {
            assert_eq!(slice(words.as_ptr(), 2, "words").unwrap(), words);
            assert!(slice(std::ptr::null::<u32>(), 0, "words").unwrap().is_empty());
            assert!(slice(std::ptr::null::<u32>(), 1, "words").is_err());
            assert!(slice(words.as_ptr().cast::<u8>().add(1).cast::<u32>(), 1, "words").is_err());
            assert!(slice(words.as_ptr(), usize::MAX / 2, "words").is_err());
        }
    }

    #[test]
    fn a_batch_takes_what_fits() {
        let blank = Event {
            struct_size: 0,
            request: 9,
            sequence: 0,
            kind: Kind::Chunk,
            status: 200,
            choice: 0,
            pages_held: 0,
            pages_free: 0,
            json: std::ptr::null(),
            json_len: 0,
            tokens: std::ptr::null(),
            tokens_len: 0,
        };
        let (mut events, mut bytes, mut tokens) = ([blank; 3], [0_i8; 5], [0_u32; 2]);
        let batch = Batch {
            struct_size: size_of::<Batch>(),
            event_size: size_of::<Event>(),
            events: events.as_mut_ptr(),
            events_max: 2,
            bytes: bytes.as_mut_ptr().cast(),
            bytes_max: bytes.len(),
            tokens: tokens.as_mut_ptr(),
            tokens_max: tokens.len(),
            events_len: 9,
            bytes_len: 9,
            tokens_len: 9,
        };
        // SAFETY: the buffers are as long as the batch says.
        let mut filling = unsafe { Filling::new(batch) }.unwrap();
        assert!(filling.push(&blank, b"abc", &[4]));
        assert!(!filling.push(&blank, b"def", &[]) && filling.needs == Some((3, 0)), "three bytes do not fit two");
        assert!(!filling.push(&blank, b"", &[1, 2]) && filling.needs == Some((0, 2)));
        assert!(filling.push(&blank, b"", &[]));
        assert!(!filling.push(&blank, b"", &[]), "two events are all");
        let done = *filling.batch();
        assert_eq!((done.events_len, done.bytes_len, done.tokens_len), (2, 3, 1));
        assert_eq!((events[0].json_len, events[0].tokens_len, events[1].json.is_null()), (3, 1, true));
        assert_eq!((events[0].struct_size, events[2].struct_size), (size_of::<Event>(), 0));
        assert_eq!((bytes.map(|b| b as u8), tokens), (*b"abc\0\0", [4, 0]));
        let bad = |batch: Batch| {
            // SAFETY: what is refused is not used.
            unsafe { Filling::new(batch) }.err().unwrap().text
        };
        assert!(bad(Batch { event_size: 8, ..batch }).contains("event_size"));
        assert!(bad(Batch { event_size: size_of::<Event>() + 1, ..batch }).contains("event_size"));
        assert!(bad(Batch { events_max: 0, ..batch }).contains("events_max"));
        assert!(bad(Batch { events: std::ptr::null_mut(), ..batch }).contains("events is null"));
        assert!(bad(Batch { bytes: std::ptr::null_mut(), ..batch }).contains("bytes is null"));
        assert!(bad(Batch { tokens: std::ptr::null_mut(), ..batch }).contains("tokens is null"));
    }
}
