//! Bytes on their way through a connection: they come at one end and leave at the other.

/// Capacity that an empty buffer keeps.
const KEPT_BYTES: usize = 64 * 1024;

/// Bytes in the order they came. What has left is moved over only when it is half of what is held, so that taking many
/// small pieces costs no more than the bytes they are.
#[derive(Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    /// Prefix that has left.
    gone: usize,
}

impl Buffer {
    /// Adds bytes at the end.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes `n` bytes off the front.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn consume(&mut self, n: usize) {
        assert!(n <= self.len(), "{n} of {} bytes", self.len());
        self.gone += n;
        if self.gone < self.bytes.len().div_ceil(2) {
            return;
        }
        self.bytes.drain(..self.gone);
        self.gone = 0;
        if self.bytes.capacity() / 4 > self.bytes.len() {
            self.bytes.shrink_to(KEPT_BYTES.max(2 * self.bytes.len()));
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        self.consume(self.len());
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_they_came() {
        let mut buffer = Buffer::default();
        let (mut came, mut left) = (0_u32, 0_u32);
        for round in 0..200 {
            for _ in 0..round % 7 {
                buffer.extend(&came.to_le_bytes());
                came += 1;
            }
            for _ in 0..(round % 5).min(buffer.len() / 4) {
                assert_eq!(buffer[..4], left.to_le_bytes());
                buffer.consume(4);
                left += 1;
            }
            assert_eq!(buffer.len(), 4 * (came - left) as usize);
        }
        assert!(left > 100);
        buffer.clear();
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_has_left_is_not_kept() {
        let mut buffer = Buffer::default();
        buffer.extend(&vec![7; 1 << 20]);
        for left in (0..1 << 20).rev() {
            buffer.consume(1);
            assert!(buffer.bytes.len() <= 2 * left && buffer.len() == left, "{} bytes for {left}", buffer.bytes.len());
        }
        assert!(buffer.bytes.capacity() <= KEPT_BYTES);
    }
}
