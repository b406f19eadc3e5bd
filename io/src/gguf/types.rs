//! Tensor types by id, with block length and bytes, and metadata value types by id.
//!
//! A file may hold types the kernels cannot compute; it can still be inspected, copied and composed.

/// One row per tensor type: variant, id, name, elements of a block, bytes of a block.
macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// How the elements of a tensor are stored. The discriminant is the id in the file.
        ///
        /// Source: ggml `ggml.h` (ids), `ggml-common.h` (block structs).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the variants are ggml's names; the table below says what they are")]
        pub enum TensorType { $($variant = $id,)* }

        impl TensorType {
            /// Every type, in order of id.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The type with this id in a file; `None` for removed and unknown ids.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// ggml's name, upper case as converters print it (`Q4_K`).
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Elements of one block; a row is a whole number of blocks.
            pub fn block_len(self) -> u64 {
                match self { $(Self::$variant => $len,)* }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Q8K = 15, "Q8_K", 256, 292;
    Iq2Xxs = 16, "IQ2_XXS", 256, 66;
    Iq2Xs = 17, "IQ2_XS", 256, 74;
    Iq3Xxs = 18, "IQ3_XXS", 256, 98;
    Iq1S = 19, "IQ1_S", 256, 50;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq3S = 21, "IQ3_S", 256, 110;
    Iq2S = 22, "IQ2_S", 256, 82;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    Iq1M = 29, "IQ1_M", 256, 56;
    Bf16 = 30, "BF16", 1, 2;
    Tq1_0 = 34, "TQ1_0", 256, 54;
    Tq2_0 = 35, "TQ2_0", 256, 66;
    Mxfp4 = 39, "MXFP4", 32, 17;
    Nvfp4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// The id in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of a row of `row_len` elements; `None` if it is no whole number of blocks or overflows.
    pub fn row_bytes(self, row_len: u64) -> Option<u64> {
        if !row_len.is_multiple_of(self.block_len()) {
            return None;
        }
        (row_len / self.block_len()).checked_mul(self.block_bytes())
    }

    /// What is known about an id that [`Self::from_id`] refuses, and what to do about it.
    pub(crate) fn unknown_hint(id: u32) -> &'static str {
        match id {
            4 | 5 => "a format (Q4_2, Q4_3) that was removed from ggml in 2023; convert the model again",
            31..=33 | 36..=38 => {
                "a pre-arranged layout (Q4_0_4_4 and relatives) that was removed from ggml; \
                 use the plain Q4_0 or IQ4_NL file"
            }
            97..=399 => {
                "which only a fork of ggml defines (such as ik_llama.cpp); use a file quantised with mainline types"
            }
            _ => "which this engine does not know; use a newer engine or a file of another quantisation",
        }
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The type of a metadata value. The discriminant is the id in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// Every value type, in order of id.
    pub const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The value type with this id.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// The id in a file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Fewest bytes a value of this type takes in a file: its width, or the counts of an empty string or array.
    pub fn bytes_min(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::Str | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Array => 12,
        }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}
