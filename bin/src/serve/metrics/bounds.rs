//! Upper bounds of the buckets of histograms.

use engine::tables::totals::scaled;

/// Times of whole requests and their parts, in nanoseconds.
pub(super) const LATENCY_NS: [u64; 21] = {
    const MILLISECONDS: [u64; 21] = [
        300, 500, 800, 1000, 1500, 2000, 2500, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 60_000, 120_000,
        240_000, 480_000, 960_000, 1_920_000, 7_680_000,
    ];
    scaled(MILLISECONDS, 1_000_000)
};

/// Tokens of a request.
pub(super) const TOKENS: [u64; 19] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
];

/// Drafts of a window.
pub(super) const DRAFTS: [u64; 13] = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Choices of a request.
pub(super) const CHOICES: [u64; 5] = [1, 2, 4, 8, 16];

/// Least bound that the names of others have between two tokens, in nanoseconds.
pub(super) const INTER_TOKEN_LEAST_NS: u64 = 10_000_000;
