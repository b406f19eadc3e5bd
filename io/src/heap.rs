//! Heap bytes of what is read from a file and kept: for the memory planner.
//!
//! A block of the allocator costs more than was asked for, and a hash map more than its entries; with a vocabulary of
//! hundreds of thousands of entries that is most of what it takes.

/// Bytes of one block of `len` bytes in the C library's heap: a header of 8 bytes, a multiple of 16, at least 32.
/// Source: glibc `malloc/malloc.c`, `request2size`, on 64 bits.
pub(crate) fn block(len: usize) -> usize {
    if len == 0 { 0 } else { (len + 8).next_multiple_of(16).max(32) }
}

/// Bytes of a vector.
pub(crate) fn vec<T>(v: &Vec<T>) -> usize {
    block(v.capacity() * size_of::<T>())
}

/// Bytes of the table of a hash map or set with entries of type `T` and room for `capacity` of them: buckets in powers
/// of two, filled to seven eighths, an entry and a control byte each.
/// Source: hashbrown `raw/mod.rs`, `capacity_to_buckets`, `TableLayout::calculate_layout_for`.
pub(crate) fn map<T>(capacity: usize) -> usize {
    const GROUP: usize = 16;
    if capacity == 0 {
        return 0;
    }
    let buckets =
        if capacity < 8 { (capacity + 1).next_power_of_two() } else { (capacity * 8 / 7).next_power_of_two() };
    block(buckets * (size_of::<T>() + 1) + GROUP)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    #[test]
    fn a_map_is_as_large_as_its_room_says() {
        for n in [1, 3, 7, 8, 14, 15, 28, 1000, 100_000] {
            let map: HashMap<u64, u64> = HashMap::with_capacity(n);
            let buckets = (super::map::<(u64, u64)>(map.capacity()) - 16) / 17;
            // Filled to seven eighths, and the next smaller power of two would not hold it.
            assert!(buckets * 7 / 8 >= n || buckets > n && n < 8, "{n}: {buckets}");
            assert!(buckets <= 4 || buckets / 2 * 7 / 8 < n, "{n}: {buckets}");
        }
    }
}
