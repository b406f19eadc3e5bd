//! A model of the shape of the smallest published `qwen35` (0.8B) with weights from a seed: what takes the memory and the
//! time of a real one and can be made anywhere. It knows nothing.

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;

use engine_io::TensorType;
use engine_io::gguf::write::Layout;
use engine_io::gguf::{Array, Meta, Value};

/// Rows of the vocabulary.
const VOCAB: usize = 248_320;
/// Merges of its tokenizer.
const MERGES: usize = 247_587;
const D: u64 = 1024;
const FFN: u64 = 3584;
const TRUNK: u64 = 24;
const HEADS: u64 = 8;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = 256;
/// Key and value heads of the delta net, and their width.
const STATE_HEADS: u64 = 16;
const STATE_DIM: u64 = 128;
const TAPS: u64 = 4;
/// Every fourth block is attention.
const INTERVAL: u64 = 4;

/// Bytes without a pattern: a counter and a mix. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators".
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// In 0..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
}

/// What the values of a tensor are.
#[derive(Clone, Copy)]
enum Values {
    /// Q8_0, uniform, of variance 1 / K.
    Matrix,
    /// F32 around 1.
    Gamma,
    /// F32, below 0.
    Decay,
    /// F32 around 0, this large.
    Small(f32),
}

impl Values {
    fn kind(self) -> TensorType {
        match self {
            Self::Matrix => TensorType::Q8_0,
            Self::Gamma | Self::Decay | Self::Small(_) => TensorType::F32,
        }
    }
}

/// The data of one tensor, piece by piece.
struct Data {
    values: Values,
    random: Random,
    /// A multiple of the codes of Q8_0, as f16 bits.
    scale: u16,
    left: u64,
    piece: Vec<u8>,
    read: usize,
}

/// Elements of a piece: blocks of Q8_0 are whole.
const PIECE: u64 = 1 << 14;

impl Data {
    fn new(values: Values, dims: &[u64], seed: u64) -> Self {
        // Codes are uniform in -127..=127, of variance 127^2 / 3.
        let scale = half::f16::from_f32(3f32.sqrt() / 127.0 / (dims[0] as f32).sqrt()).to_bits();
        let left = dims.iter().product();
        Self { values, random: Random(seed), scale, left, piece: Vec::new(), read: 0 }
    }

    fn fill(&mut self) {
        let count = self.left.min(PIECE);
        self.left -= count;
        self.read = 0;
        self.piece.clear();
        let Self { values, random, piece, scale, .. } = self;
        for i in 0..count {
            let x = match values {
                Values::Matrix => {
                    if i % 32 == 0 {
                        piece.extend_from_slice(&scale.to_le_bytes());
                    }
                    // -127 to 127.
                    piece.push((((random.next() >> 32) % 255) as u8).wrapping_sub(127));
                    continue;
                }
                Values::Gamma => 0.9 + 0.2 * random.unit(),
                Values::Decay => -0.1 - 2.0 * random.unit(),
                Values::Small(size) => *size * (2.0 * random.unit() - 1.0),
            };
            piece.extend_from_slice(&x.to_le_bytes());
        }
    }
}

impl Read for Data {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.piece.len() && self.left > 0 {
            self.fill();
        }
        let n = to.len().min(self.piece.len() - self.read);
        to[..n].copy_from_slice(&self.piece[self.read..self.read + n]);
        self.read += n;
        Ok(n)
    }
}

/// Name, dimensions and values of every tensor.
fn tensors() -> Vec<(String, Vec<u64>, Values)> {
    use Values::{Decay, Gamma, Matrix, Small};
    let mut out = vec![
        ("token_embd.weight".to_owned(), vec![D, VOCAB as u64], Matrix),
        ("output_norm.weight".to_owned(), vec![D], Gamma),
    ];
    let (query, kv) = (2 * HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let width = STATE_HEADS * STATE_DIM;
    for i in 0..=TRUNK {
        let mut put = |name: &str, dims: &[u64], values| out.push((format!("blk.{i}.{name}"), dims.to_vec(), values));
        put("attn_norm.weight", &[D], Gamma);
        put("post_attention_norm.weight", &[D], Gamma);
        if (i + 1) % INTERVAL == 0 || i == TRUNK {
            put("attn_q.weight", &[D, query], Matrix);
            put("attn_k.weight", &[D, kv], Matrix);
            put("attn_v.weight", &[D, kv], Matrix);
            put("attn_output.weight", &[HEADS * HEAD_DIM, D], Matrix);
            put("attn_q_norm.weight", &[HEAD_DIM], Gamma);
            put("attn_k_norm.weight", &[HEAD_DIM], Gamma);
        } else {
            put("attn_qkv.weight", &[D, 3 * width], Matrix);
            put("attn_gate.weight", &[D, width], Matrix);
            put("ssm_beta.weight", &[D, STATE_HEADS], Matrix);
            put("ssm_alpha.weight", &[D, STATE_HEADS], Matrix);
            put("ssm_a", &[STATE_HEADS], Decay);
            put("ssm_dt.bias", &[STATE_HEADS], Small(1.0));
            put("ssm_conv1d.weight", &[TAPS, 3 * width], Small(0.5));
            put("ssm_norm.weight", &[STATE_DIM], Gamma);
            put("ssm_out.weight", &[width, D], Matrix);
        }
        put("ffn_gate.weight", &[D, FFN], Matrix);
        put("ffn_up.weight", &[D, FFN], Matrix);
        put("ffn_down.weight", &[FFN, D], Matrix);
        if i == TRUNK {
            put("nextn.eh_proj.weight", &[2 * D, D], Matrix);
            put("nextn.enorm.weight", &[D], Gamma);
            put("nextn.hnorm.weight", &[D], Gamma);
            put("nextn.shared_head_norm.weight", &[D], Gamma);
        }
    }
    out
}

/// Characters that stand for bytes. Source: GPT-2 `encoder.py`, `bytes_to_unicode`.
fn alphabet() -> Vec<char> {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let own: Vec<u32> = (0..256).filter(plain).collect();
    let others = (0..256 - own.len() as u32).map(|i| 256 + i);
    own.iter().copied().chain(others).filter_map(char::from_u32).collect()
}

/// Tokens and merges: every token so far, continued by every letter, until there are enough.
fn vocabulary() -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let mut merges = Vec::with_capacity(MERGES);
    let mut left = 0;
    while merges.len() < MERGES {
        for letter in letters.iter().take(MERGES - merges.len()) {
            merges.push(format!("{} {letter}", tokens[left]));
            tokens.push(format!("{}{letter}", tokens[left]));
        }
        left += 1;
    }
    tokens.push("<|im_end|>".to_owned());
    (tokens, merges)
}

fn meta(path: &str) -> engine_io::Result<Meta> {
    let mut meta = Meta::new(path);
    let (tokens, merges) = vocabulary();
    let end = tokens.len() as u32 - 1;
    let mut kinds = vec![1; tokens.len()];
    kinds[end as usize] = 3;
    let number = |n: u64| Value::U32(n as u32);
    for (key, value) in [
        ("general.architecture", Value::str("qwen35")),
        ("general.name", Value::str("random weights, shape of 0.8B")),
        ("qwen35.block_count", number(TRUNK + 1)),
        ("qwen35.nextn_predict_layers", number(1)),
        ("qwen35.context_length", number(262_144)),
        ("qwen35.embedding_length", number(D)),
        ("qwen35.feed_forward_length", number(FFN)),
        ("qwen35.attention.head_count", number(HEADS)),
        ("qwen35.attention.head_count_kv", number(KV_HEADS)),
        ("qwen35.attention.key_length", number(HEAD_DIM)),
        ("qwen35.attention.value_length", number(HEAD_DIM)),
        ("qwen35.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("qwen35.rope.dimension_count", number(64)),
        ("qwen35.rope.dimension_sections", Value::Array(Array::I32(vec![11, 11, 10, 0]))),
        ("qwen35.rope.freq_base", Value::F32(1e7)),
        ("qwen35.ssm.conv_kernel", number(TAPS)),
        ("qwen35.ssm.state_size", number(STATE_DIM)),
        ("qwen35.ssm.group_count", number(STATE_HEADS)),
        ("qwen35.ssm.time_step_rank", number(STATE_HEADS)),
        ("qwen35.ssm.inner_size", number(STATE_HEADS * STATE_DIM)),
        ("qwen35.full_attention_interval", number(INTERVAL)),
        ("tokenizer.ggml.model", Value::str("gpt2")),
        ("tokenizer.ggml.pre", Value::str("qwen35")),
        ("tokenizer.ggml.tokens", Value::strs(&tokens)),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds))),
        ("tokenizer.ggml.merges", Value::strs(&merges)),
        ("tokenizer.ggml.eos_token_id", Value::U32(end)),
    ] {
        meta.push(key, value)?;
    }
    Ok(meta)
}

/// Writes the model to `path`, about 800 MiB, a piece at a time.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, seed: u64) -> Result<(), Box<dyn std::error::Error>> {
    let mut layout = Layout::new(meta(&path.display().to_string())?)?;
    let tensors = tensors();
    for (name, dims, values) in &tensors {
        layout.tensor(name, dims, values.kind())?;
    }
    let mut out = layout.start(BufWriter::new(File::create(path)?))?;
    for (i, (_, dims, values)) in tensors.iter().enumerate() {
        out.tensor(Data::new(*values, dims, seed.wrapping_add((i as u64) << 40)))?;
    }
    out.finish()?;
    Ok(())
}
