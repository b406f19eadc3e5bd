//! All recurrent layers of a model, whatever their kind, in the order of the program.
//!
//! What is kept per sequence has one shape for all kinds (`engine_kernels::ops::history`), so that fold, reset, fork and
//! checkpoint are written once; only the step of a layer differs.

use std::ops::Add as _;

use engine_kernels::ops::delta_net::{self, DeltaInputs, DeltaScratch, DeltaWeights, delta_net};
use engine_kernels::ops::delta_state::DeltaLayer;
use engine_kernels::ops::dilated_conv::{self, ConvLayer, ConvWeights, dilated_conv};
use engine_kernels::ops::history::{History, HistoryBytes, StateSegment};
use engine_kernels::ops::mamba2::{self, Mamba2Scratch, Mamba2Tensors, Mamba2Weights, mamba2};
use engine_kernels::ops::mamba2_state::Mamba2Layer;
use engine_kernels::{Isa, Pool};

use crate::limits::Limits;
use crate::model::load::Weights;
use crate::model::program::RecurrentGeometry;

/// One layer: its small weights as the kernel wants them, and its states.
enum Layer {
    Delta { weights: DeltaWeights, states: DeltaLayer },
    Mamba2 { weights: Mamba2Weights, states: Mamba2Layer },
    Convolution { weights: ConvWeights, states: ConvLayer },
}

impl Layer {
    fn new(geometry: &RecurrentGeometry, weights: &Weights, limits: &Limits) -> Self {
        let vector = |id| weights.vector(id);
        let (slots, log_capacity) = (limits.slots, limits.window_max);
        match geometry {
            RecurrentGeometry::Delta(g) => Self::Delta {
                weights: DeltaWeights::new(&g.dims, vector(g.conv), vector(g.a), vector(g.dt_bias), vector(g.norm)),
                states: DeltaLayer::new(g.dims, slots, log_capacity),
            },
            RecurrentGeometry::Mamba2(g) => {
                let tensors = Mamba2Tensors {
                    conv: vector(g.conv),
                    conv_bias: vector(g.conv_bias),
                    a: vector(g.a),
                    d: vector(g.d),
                    dt_bias: vector(g.dt_bias),
                    norm: vector(g.norm),
                };
                Self::Mamba2 {
                    weights: Mamba2Weights::new(&g.dims, tensors),
                    states: Mamba2Layer::new(g.dims, slots, log_capacity),
                }
            }
            RecurrentGeometry::Convolution(g) => Self::Convolution {
                weights: ConvWeights::new(&g.dims, vector(g.conv)),
                states: ConvLayer::new(g.dims, slots, log_capacity),
            },
        }
    }

    fn history(&self) -> &History {
        match self {
            Self::Delta { states, .. } => &states.history,
            Self::Mamba2 { states, .. } => &states.history,
            Self::Convolution { states, .. } => &states.history,
        }
    }

    fn history_mut(&mut self) -> &mut History {
        match self {
            Self::Delta { states, .. } => &mut states.history,
            Self::Mamba2 { states, .. } => &mut states.history,
            Self::Convolution { states, .. } => &mut states.history,
        }
    }
}

/// The layers, and memory of their passes.
pub struct Recurrent {
    /// By row of [`crate::model::program::Program::recurrent`].
    layers: Vec<Layer>,
    delta: DeltaScratch,
    mamba2: Mamba2Scratch,
}

impl Recurrent {
    /// Bytes of the states of [`Self::new`].
    pub fn history_bytes(geometry: &[RecurrentGeometry], limits: &Limits) -> HistoryBytes {
        let layer = |g: &RecurrentGeometry| match g {
            RecurrentGeometry::Delta(g) => g.dims.layer_bytes(limits.slots, limits.window_max),
            RecurrentGeometry::Mamba2(g) => g.dims.layer_bytes(limits.slots, limits.window_max),
            RecurrentGeometry::Convolution(g) => g.dims.layer_bytes(limits.slots, limits.window_max),
        };
        geometry.iter().map(layer).fold(HistoryBytes::default(), HistoryBytes::add)
    }

    /// Bytes of the small weights of [`Self::new`].
    pub fn weight_bytes(geometry: &[RecurrentGeometry]) -> usize {
        let layer = |g: &RecurrentGeometry| match g {
            RecurrentGeometry::Delta(g) => DeltaWeights::bytes_for(&g.dims),
            RecurrentGeometry::Mamba2(g) => Mamba2Weights::bytes_for(&g.dims),
            RecurrentGeometry::Convolution(g) => ConvWeights::bytes_for(&g.dims),
        };
        geometry.iter().map(layer).sum()
    }

    /// Bytes of the memory of passes, after the largest.
    pub fn scratch_bytes(geometry: &[RecurrentGeometry], limits: &Limits) -> usize {
        let (mut delta, mut mamba2) = (0, 0);
        for g in geometry {
            match g {
                RecurrentGeometry::Delta(g) => delta = delta.max(DeltaScratch::bytes_for(&g.dims, limits.step_rows)),
                RecurrentGeometry::Mamba2(g) => {
                    // The log of every slot may be as long as a window is wide.
                    let steps = limits.step_rows + limits.slots * limits.window_max;
                    mamba2 = mamba2.max(Mamba2Scratch::bytes_for(&g.dims, steps));
                }
                RecurrentGeometry::Convolution(_) => {}
            }
        }
        delta + mamba2
    }

    /// Empty sequences in all slots.
    pub fn new(geometry: &[RecurrentGeometry], weights: &Weights, limits: &Limits) -> Self {
        Self {
            layers: geometry.iter().map(|g| Layer::new(g, weights, limits)).collect(),
            delta: DeltaScratch::default(),
            mamba2: Mamba2Scratch::default(),
        }
    }

    /// Folds the first `log_len` logged rows of a slot into every state, and forgets the others.
    pub fn fold(&mut self, pool: &Pool, isa: Isa, slot: usize, log_len: usize) {
        for layer in &mut self.layers {
            match layer {
                Layer::Delta { weights, states } => delta_net::fold(pool, isa, weights, states, &[(slot, log_len)]),
                Layer::Mamba2 { weights, states } => mamba2::fold(pool, isa, weights, states, &[(slot, log_len)]),
                Layer::Convolution { weights, states } => {
                    dilated_conv::fold(pool, isa, weights, states, &[(slot, log_len)]);
                }
            }
        }
    }

    /// Makes the slot an empty sequence.
    pub fn reset(&mut self, slot: usize) {
        for layer in &mut self.layers {
            layer.history_mut().reset(slot);
        }
    }

    /// Makes `to` an exact copy of `from`, logged rows included.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        for layer in &mut self.layers {
            layer.history_mut().copy_slot(from, to);
        }
    }

    /// `out` becomes the states of a folded slot, one layer after the other.
    ///
    /// # Panics
    /// If rows are still logged.
    pub fn save(&self, slot: usize, out: &mut Vec<f32>) {
        out.clear();
        out.reserve_exact(self.layers.iter().map(|l| l.history().saved_len()).sum());
        for layer in &self.layers {
            layer.history().save(slot, out);
        }
    }

    /// Makes the slot what it was at [`Self::save`].
    ///
    /// # Panics
    /// If `saved` is of other layers.
    pub fn restore(&mut self, slot: usize, saved: &[f32]) {
        let mut rest = saved;
        for layer in &mut self.layers {
            let history = layer.history_mut();
            let (own, others) = rest.split_at(history.saved_len());
            history.restore(slot, own);
            rest = others;
        }
        assert!(rest.is_empty(), "a saved state of a model with other layers");
    }

    /// Runs layer `layer` over the rows of `segments`.
    ///
    /// # Panics
    /// If it is no delta net.
    pub fn delta_net(
        &mut self,
        (pool, isa): (&Pool, Isa),
        layer: usize,
        segments: &[StateSegment],
        inputs: DeltaInputs<'_>,
        dst: &mut [f32],
    ) {
        let Layer::Delta { weights, states } = &mut self.layers[layer] else { panic!("layer {layer} is no delta net") };
        delta_net(pool, isa, weights, states, segments, inputs, &mut self.delta, dst);
    }

    /// Runs layer `layer` over the rows of `segments`.
    ///
    /// # Panics
    /// If it is no Mamba2 layer.
    pub fn mamba2(
        &mut self,
        (pool, isa): (&Pool, Isa),
        layer: usize,
        segments: &[StateSegment],
        projected: &[f32],
        dst: &mut [f32],
    ) {
        let Layer::Mamba2 { weights, states } = &mut self.layers[layer] else { panic!("layer {layer} is no Mamba2") };
        mamba2(pool, isa, weights, states, segments, projected, &mut self.mamba2, dst);
    }

    /// Runs layer `layer` over the rows of `segments`.
    ///
    /// # Panics
    /// If it is no convolution.
    pub fn convolution(
        &mut self,
        (pool, isa): (&Pool, Isa),
        layer: usize,
        segments: &[StateSegment],
        src: &[f32],
        dst: &mut [f32],
    ) {
        let Layer::Convolution { weights, states } = &mut self.layers[layer] else {
            panic!("layer {layer} is no convolution")
        };
        dilated_conv(pool, isa, weights, states, segments, src, dst);
    }
}
