//! Dimensions of the models.

use clap::ValueEnum;

/// A shape that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shape {
    /// That of Qwen3.5-0.8B.
    #[value(name = "qwen35-0.8b")]
    Qwen35Small,
    /// That of Qwen3.5-2B.
    #[value(name = "qwen35-2b")]
    Qwen35Large,
    /// Qwen3.5 with experts: 64 of the width of Qwen3.5-35B-A3B, of which 8; 2.9 billion weights, of a token 0.8 (the head
    /// 0.25 of them)
    #[value(name = "qwen35moe-3b")]
    Qwen35Moe,
    /// After Nemotron 3 Super: Mamba-2, attention, 64 experts in a latent space of which 6; 1.6 billion weights
    #[value(name = "nemotron-h-moe-1.6b")]
    NemotronH,
}

/// Tokens of a shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vocab {
    /// Rows of the embedding: tokens, padding included.
    pub rows: usize,
    /// Merges of its tokenizer.
    pub merges: usize,
    /// How text is split.
    pub split: &'static str,
}

/// Gated delta nets and attention.
pub(super) struct Qwen35 {
    pub vocab: Vocab,
    /// Another matrix than the embedding makes logits.
    pub untied: bool,
    pub width: u64,
    /// Blocks without the MTP block.
    pub trunk: u64,
    /// Every so many blocks one is attention.
    pub interval: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head: u64,
    /// Elements of a head that are turned, and how many pairs of them belong to each axis.
    pub turned: u64,
    pub sections: [i32; 4],
    /// Key heads, value heads and their width of a delta net.
    pub key_heads: u64,
    pub value_heads: u64,
    pub state: u64,
    pub taps: u64,
    pub ffn: Ffn,
}

/// What is behind the mixer of a block.
pub(super) enum Ffn {
    Dense { width: u64 },
    Experts(Experts),
}

/// Experts, and the one that every token has.
pub(super) struct Experts {
    pub count: u64,
    pub used: u64,
    pub width: u64,
    pub shared: u64,
}

/// Mamba-2, attention without positions, experts with a squared ReLU.
pub(super) struct NemotronH {
    pub vocab: Vocab,
    pub width: u64,
    /// A letter for each block without the MTP block: M Mamba-2, * attention, E experts.
    pub pattern: &'static str,
    pub heads: u64,
    pub kv_heads: u64,
    pub head: u64,
    pub ssm_heads: u64,
    pub ssm_head: u64,
    pub groups: u64,
    pub state: u64,
    pub taps: u64,
    pub experts: Experts,
    /// Width of what experts read and write.
    pub latent: u64,
}

/// The family of a shape, and its dimensions.
pub(super) enum Hybrid {
    Qwen35(Qwen35),
    NemotronH(NemotronH),
}

const QWEN_VOCAB: Vocab = Vocab { rows: 248_320, merges: 247_587, split: "qwen35" };

const QWEN35_SMALL: Qwen35 = Qwen35 {
    vocab: QWEN_VOCAB,
    untied: false,
    width: 1024,
    trunk: 24,
    interval: 4,
    heads: 8,
    kv_heads: 2,
    head: 256,
    turned: 64,
    sections: [11, 11, 10, 0],
    key_heads: 16,
    value_heads: 16,
    state: 128,
    taps: 4,
    ffn: Ffn::Dense { width: 3584 },
};

static SHAPES: [Hybrid; 4] = [
    Hybrid::Qwen35(QWEN35_SMALL),
    Hybrid::Qwen35(Qwen35 { width: 2048, ffn: Ffn::Dense { width: 6144 }, ..QWEN35_SMALL }),
    Hybrid::Qwen35(Qwen35 {
        ffn: Ffn::Experts(Experts { count: 64, used: 8, width: 512, shared: 512 }),
        ..QWEN35_SMALL
    }),
    Hybrid::NemotronH(NemotronH {
        vocab: Vocab { rows: 131_072, merges: 130_000, split: "pixtral" },
        width: 1536,
        pattern: "MEMEM*EMEMEMEM*EMEMEMEM*EME",
        heads: 16,
        kv_heads: 2,
        head: 128,
        ssm_heads: 48,
        ssm_head: 64,
        groups: 8,
        state: 128,
        taps: 4,
        experts: Experts { count: 64, used: 6, width: 768, shared: 1536 },
        latent: 768,
    }),
];

impl Shape {
    /// As flags spell it.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no shape is hidden");
        value.get_name().to_owned()
    }

    pub(super) fn table(self) -> &'static Hybrid {
        &SHAPES[self as usize]
    }
}
