//! Paying for what is about to be made: a template that asks for more than its fuel can pay never gets to make it.

use std::io;

use minijinja::{Error, ErrorKind, State, Value};

/// Bytes that one fuel pays for. Source: minijinja `src/vm/fuel.rs`, `UNITS_PER_FUEL`.
pub(super) const BYTES_PER_FUEL: usize = 64;
/// Bytes of JSON that one fuel pays for: the values they are read into take several times their room.
/// Source: as above, `SERIALIZED_BYTE_COST`.
const JSON_BYTES_PER_FUEL: usize = 4;

/// A value as JSON, paid for by the byte while it is measured: how much a lazy list comes to is not known before.
///
/// # Errors
/// `OutOfFuel`, or `InvalidOperation` for a value that is no JSON.
pub(super) fn for_json(state: &State, value: &Value) -> Result<serde_json::Value, Error> {
    measure(state, value)?;
    serde_json::to_value(value).map_err(not_json)
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "not JSON serializable").with_source(error)
}

/// Pays for `str.format`, whose fields may repeat an argument and ask for any width.
///
/// # Errors
/// `OutOfFuel`.
pub(super) fn for_format(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    // A number too long for a usize is a width that nothing can pay.
    let widths = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
    let mut given = 0_usize;
    for arg in args {
        let bytes = match (arg.as_str(), measure(state, arg)) {
            (Some(text), _) => text.len(),
            (None, Ok(bytes)) => bytes,
            (None, Err(error)) if error.kind() == ErrorKind::OutOfFuel => return Err(error),
            // No data: it prints as a short name.
            (None, Err(_)) => BYTES_PER_FUEL,
        };
        given = given.saturating_add(bytes);
    }
    let fields = text.bytes().filter(|b| *b == b'{').count();
    let bytes = fields.saturating_mul(given).saturating_add(widths);
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}

/// Bytes of a value's JSON, paid for.
fn measure(state: &State, value: &Value) -> Result<usize, Error> {
    let mut meter = Meter { state, bytes: 0, empty: false };
    let done = serde_json::to_writer(&mut meter, value);
    if meter.empty {
        return Err(ErrorKind::OutOfFuel.into());
    }
    done.map(|()| meter.bytes).map_err(not_json)
}

/// Takes JSON, keeps nothing of it, and pays.
struct Meter<'s, 't, 'e> {
    state: &'s State<'t, 'e>,
    bytes: usize,
    /// The fuel ran out.
    empty: bool,
}

impl io::Write for Meter<'_, '_, '_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let before = self.bytes / JSON_BYTES_PER_FUEL;
        self.bytes += part.len();
        if self.state.consume_fuel((self.bytes / JSON_BYTES_PER_FUEL - before) as u64).is_err() {
            self.empty = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
