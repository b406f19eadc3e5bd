//! Paged keys and values of all layers.
//!
//! ```text
//! page = 16 positions = one vector:   K  [kv_head][head_dim][16]   a score has lane = position
//!                                     V  [kv_head][16][head_dim]   an output has lane = channel
//! ```
//! Which page belongs to which sequence is the caller's business. A page is not cleared when it changes hands: nothing
//! past a row's own position is ever used in arithmetic.

use crate::cpu::lanes::{LANES, Simd};
use crate::cpu::pages::LazyZeros;

/// Positions of a page.
pub const PAGE_TOKENS: usize = LANES;

/// How keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to IEEE half precision, to nearest even.
    F16,
}

impl KvType {
    /// Its name in flags.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// Geometry of one layer; layers may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvGeometry {
    /// Key (and value) heads.
    pub kv_heads: usize,
    /// Elements of a head, a multiple of 8.
    pub head_dim: usize,
}

impl KvGeometry {
    fn page_len(self) -> usize {
        self.kv_heads * self.head_dim * PAGE_TOKENS
    }
}

/// Pages of every layer. Page p is one page in each of them.
pub struct KvCache {
    pages: usize,
    pub(super) layers: Vec<Layer>,
}

pub(super) struct Layer {
    pub(super) geometry: KvGeometry,
    pub(super) payload: Payload,
}

pub(super) enum Payload {
    F32(Pages<f32>),
    F16(Pages<u16>),
}

pub(super) struct Pages<E> {
    k: LazyZeros<E>,
    v: LazyZeros<E>,
    /// Elements of one head of one page.
    head_len: usize,
    kv_heads: usize,
}

/// A stored value.
pub(super) trait Element: Copy + Default + Send + Sync {
    fn encode(x: f32) -> Self;
    fn decode(self) -> f32;
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V;
}

impl Element for f32 {
    #[inline(always)]
    fn encode(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn decode(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load(x)
    }
}

impl Element for u16 {
    #[inline(always)]
    fn encode(x: f32) -> Self {
        half::f16::from_f32(x).to_bits()
    }
    #[inline(always)]
    fn decode(self) -> f32 {
        half::f16::from_bits(self).to_f32()
    }
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::V {
        s.load_f16(x)
    }
}

impl<E: Element> Pages<E> {
    fn new(geometry: KvGeometry, pages: usize) -> Self {
        let len = pages * geometry.page_len();
        Self {
            k: LazyZeros::new(len),
            v: LazyZeros::new(len),
            head_len: geometry.head_dim * PAGE_TOKENS,
            kv_heads: geometry.kv_heads,
        }
    }

    /// K `[head_dim][16]` and V `[16][head_dim]` of one head of one page.
    #[inline(always)]
    pub(super) fn head(&self, page: u32, head: usize) -> (&[E], &[E]) {
        let start = (page as usize * self.kv_heads + head) * self.head_len;
        (&self.k[start..start + self.head_len], &self.v[start..start + self.head_len])
    }

    fn store(&mut self, page: usize, offset: usize, k: &[f32], v: &[f32]) {
        let head_dim = self.head_len / PAGE_TOKENS;
        for head in 0..self.kv_heads {
            let start = (page * self.kv_heads + head) * self.head_len;
            let row = head * head_dim..(head + 1) * head_dim;
            let keys = self.k[start..start + self.head_len].as_chunks_mut::<PAGE_TOKENS>().0;
            for (lanes, &x) in keys.iter_mut().zip(&k[row.clone()]) {
                lanes[offset] = E::encode(x);
            }
            let values = &mut self.v[start + offset * head_dim..start + (offset + 1) * head_dim];
            for (dst, &x) in values.iter_mut().zip(&v[row]) {
                *dst = E::encode(x);
            }
        }
    }

    fn read(&self, page: usize, offset: usize, k: &mut [f32], v: &mut [f32]) {
        let head_dim = self.head_len / PAGE_TOKENS;
        for head in 0..self.kv_heads {
            let (keys, values) = self.head(page as u32, head);
            for d in 0..head_dim {
                k[head * head_dim + d] = keys[d * PAGE_TOKENS + offset].decode();
                v[head * head_dim + d] = values[offset * head_dim + d].decode();
            }
        }
    }

    fn copy(&mut self, from: usize, to: usize) {
        let len = self.kv_heads * self.head_len;
        self.k.copy_within(from * len..(from + 1) * len, to * len);
        self.v.copy_within(from * len..(from + 1) * len, to * len);
    }
}

impl KvCache {
    /// A cache of `pages` pages, zero. The memory is touched only when it is written.
    ///
    /// # Panics
    /// If a layer has no heads or a head size that is no multiple of 8.
    pub fn new(kv_type: KvType, layers: &[KvGeometry], pages: usize) -> Self {
        let layers = layers
            .iter()
            .map(|&geometry| {
                assert!(geometry.kv_heads > 0, "a layer without KV heads");
                let head_dim = geometry.head_dim;
                assert!(head_dim > 0 && head_dim.is_multiple_of(8), "head size {head_dim} is no multiple of 8");
                let payload = match kv_type {
                    KvType::F32 => Payload::F32(Pages::new(geometry, pages)),
                    KvType::F16 => Payload::F16(Pages::new(geometry, pages)),
                };
                Layer { geometry, payload }
            })
            .collect();
        Self { pages, layers }
    }

    /// Bytes of a cache of this shape; the largest number where it is larger.
    pub fn bytes_for(kv_type: KvType, layers: &[KvGeometry], pages: usize) -> usize {
        let page: usize = layers.iter().map(|layer| 2 * layer.page_len() * kv_type.bytes()).sum();
        page.saturating_mul(pages)
    }

    /// Geometry of a layer.
    pub fn geometry(&self, layer: usize) -> KvGeometry {
        self.layers[layer].geometry
    }

    /// Writes one position: k, v `[kv_heads][head_dim]`.
    ///
    /// # Panics
    /// If the page, the offset or a length is out of range.
    pub fn store(&mut self, layer: usize, page: u32, offset: usize, k: &[f32], v: &[f32]) {
        self.check(layer, page, offset, k.len(), v.len());
        match &mut self.layers[layer].payload {
            Payload::F32(pages) => pages.store(page as usize, offset, k, v),
            Payload::F16(pages) => pages.store(page as usize, offset, k, v),
        }
    }

    /// Writes the rows of one segment: row i goes to position `position + i` of the block table `pages`.
    /// k, v: `[rows][kv_heads][head_dim]`.
    ///
    /// # Panics
    /// If a length disagrees or the block table is too short.
    pub fn store_rows(&mut self, layer: usize, pages: &[u32], position: usize, k: &[f32], v: &[f32]) {
        let KvGeometry { kv_heads, head_dim } = self.geometry(layer);
        let width = kv_heads * head_dim;
        assert_eq!(k.len(), v.len(), "keys and values differ in length");
        assert!(k.len().is_multiple_of(width), "{} elements are no rows of {width}", k.len());
        for (i, (k, v)) in k.chunks_exact(width).zip(v.chunks_exact(width)).enumerate() {
            let at = position + i;
            self.store(layer, pages[at / PAGE_TOKENS], at % PAGE_TOKENS, k, v);
        }
    }

    /// Reads one position back, as attention sees it: k, v `[kv_heads][head_dim]`.
    ///
    /// # Panics
    /// As [`KvCache::store`].
    pub fn read(&self, layer: usize, page: u32, offset: usize, k: &mut [f32], v: &mut [f32]) {
        self.check(layer, page, offset, k.len(), v.len());
        match &self.layers[layer].payload {
            Payload::F32(pages) => pages.read(page as usize, offset, k, v),
            Payload::F16(pages) => pages.read(page as usize, offset, k, v),
        }
    }

    fn check(&self, layer: usize, page: u32, offset: usize, k_len: usize, v_len: usize) {
        let KvGeometry { kv_heads, head_dim } = self.geometry(layer);
        assert!((page as usize) < self.pages, "page {page} of {}", self.pages);
        assert!(offset < PAGE_TOKENS, "offset {offset} in a page of {PAGE_TOKENS}");
        assert_eq!((k_len, v_len), (kv_heads * head_dim, kv_heads * head_dim), "key or value row has a wrong length");
    }

    /// Copies a page in every layer.
    ///
    /// # Panics
    /// If a page is out of range.
    pub fn copy_page(&mut self, from: u32, to: u32) {
        let (from, to) = (from as usize, to as usize);
        assert!(from < self.pages && to < self.pages, "copy of page {from} to {to} of {}", self.pages);
        for layer in &mut self.layers {
            match &mut layer.payload {
                Payload::F32(pages) => pages.copy(from, to),
                Payload::F16(pages) => pages.copy(from, to),
            }
        }
    }
}

#[cfg(test)]
mod tests;
