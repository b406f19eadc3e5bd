//! The interpreter of op lists: row buffers, caches and states, and one match.

use std::sync::Arc;

use engine_kernels::ops::attention::{Segment, attention};
use engine_kernels::ops::delta_net::{DeltaDims, DeltaSeg, DeltaWeights, delta_net};
use engine_kernels::ops::delta_state::DeltaLayer;
use engine_kernels::ops::elementwise::{add, sigmoid_mul, silu_mul, split_halves};
use engine_kernels::ops::kv_cache::{KvCache, KvKind, LayerShape};
use engine_kernels::ops::norm::{rms_norm, rms_norm_in_place};
use engine_kernels::ops::rope::{Rope, RopeTable};
use engine_kernels::{Activation, Input, InputScratch, Isa, Pool, matmul};

use crate::ids::TokenId;
use crate::limits::Limits;
use crate::model::Model;
use crate::model::load::Weights;
use crate::model::program::{BufferId, MatrixId, Op, Program};

/// The rows of one pass and who they belong to.
pub struct Batch<'a> {
    /// `[rows]`.
    pub token: &'a [TokenId],
    /// `[rows]`.
    pub position: &'a [u32],
    /// Rows of one sequence each, in row order.
    pub segments: &'a [Segment<'a>],
    /// The same segments with their recurrent states; empty where no operation needs them.
    pub delta: &'a [DeltaSeg],
}

impl Batch<'_> {
    fn rows(&self) -> usize {
        self.token.len()
    }
}

/// Everything a pass reads and writes but the weights.
pub struct Machine {
    pool: Arc<Pool>,
    isa: Isa,
    activation: Activation,
    buffers: Vec<Vec<f32>>,
    width: Vec<usize>,
    input: InputScratch,
    rope: Rope,
    rope_table: RopeTable,
    /// KV pages of all attention layers, the MTP block's last.
    pub kv: KvCache,
    /// Recurrent layers.
    pub delta: Vec<DeltaLayer>,
}
