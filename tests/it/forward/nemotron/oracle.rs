//! The formulas of the reference in double precision, written from its text: no line is shared with the engine.

use super::file::{D, EXPERTS, GROUPS, HEAD_DIM, HEADS, KV_HEADS, SHARED, SSM_DIM, SSM_HEADS, Spec, TAPS, USED, WIDTH};
use crate::forward::edit::Edit;

/// Rows of some width.
pub type Rows = Vec<Vec<f64>>;

/// A file, to be computed with.
pub struct Oracle<'a> {
    spec: Spec,
    edit: &'a Edit,
}

impl<'a> Oracle<'a> {
    pub fn new(spec: Spec, edit: &'a Edit) -> Self {
        Self { spec, edit }
    }

    fn tensor(&self, name: &str) -> Vec<f64> {
        let tensor = self.edit.tensors.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name}"));
        tensor.data.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    }

    fn rms(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().zip(self.tensor(name)).map(|(x, w)| x / (mean + f64::from(1e-5_f32)).sqrt() * w).collect()
    }

    fn layer(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let root = (variance + f64::from(1e-3_f32)).sqrt();
        x.iter().zip(self.tensor(name)).map(|(x, w)| (x - mean) / root * w).collect()
    }

    fn embed(&self, token: u32) -> Vec<f64> {
        self.tensor("token_embd.weight")[token as usize * D..][..D].to_vec()
    }

    fn logits(&self, hidden: &[f64]) -> Vec<f64> {
        let head = if self.spec.tied { "token_embd.weight" } else { "output.weight" };
        product(&self.tensor(head), hidden)
    }

    /// Hidden rows and logits.
    pub fn trunk(&self, tokens: &[u32]) -> (Rows, Rows) {
        let mut x: Rows = tokens.iter().map(|&t| self.embed(t)).collect();
        for (i, kind) in self.spec.pattern.chars().enumerate() {
            let name = format!("blk.{i}.attn_norm.weight");
            let normed: Rows = x.iter().map(|x| self.rms(x, &name)).collect();
            let mixed = match kind {
                'M' => self.mamba2(i, &normed),
                '*' => self.attention(i, &normed),
                _ => normed.iter().map(|x| self.ffn(i, x)).collect(),
            };
            x = sum(&x, &mixed);
        }
        let hidden: Rows = x.iter().map(|x| self.rms(x, "output_norm.weight")).collect();
        let logits = hidden.iter().map(|h| self.logits(h)).collect();
        (hidden, logits)
    }

    /// Logits of the MTP block at every position; `rms`: its last norm is one.
    pub fn mtp(&self, tokens: &[u32], hidden: &Rows, rms: bool) -> Rows {
        let block = format!("blk.{}", self.spec.pattern.len());
        let name = |part: &str| format!("{block}.{part}.weight");
        let zero = vec![0.0; D];
        let before = std::iter::once(&zero).chain(hidden);
        let fuse = self.tensor(&name("nextn.eh_proj"));
        let rows: Rows = tokens
            .iter()
            .zip(before)
            .map(|(&t, h)| {
                let both = [self.rms(&self.embed(t), &name("nextn.enorm")), self.rms(h, &name("nextn.hnorm"))].concat();
                product(&fuse, &both)
            })
            .collect();
        let normed: Rows = rows.iter().map(|x| self.rms(x, &name("attn_norm"))).collect();
        let rows = sum(&rows, &self.attention(self.spec.pattern.len(), &normed));
        let norm = name("post_attention_norm");
        let ffn: Rows = rows.iter().map(|x| self.ffn(self.spec.pattern.len(), &self.rms(x, &norm))).collect();
        let norm = name("nextn.shared_head_norm");
        let last = |x: &Vec<f64>| if rms { self.rms(x, &norm) } else { self.layer(x, &norm) };
        sum(&rows, &ffn).iter().map(|x| self.logits(&last(x))).collect()
    }

    fn attention(&self, i: usize, x: &Rows) -> Rows {
        let weight = |part: &str| self.tensor(&format!("blk.{i}.attn_{part}.weight"));
        let all = |part: &str| -> Rows {
            let w = weight(part);
            x.iter().map(|x| product(&w, x)).collect()
        };
        let (q, k, v, out) = (all("q"), all("k"), all("v"), weight("output"));
        let head = |row: &[f64], h: usize| row[h * HEAD_DIM..][..HEAD_DIM].to_vec();
        (0..x.len())
            .map(|t| {
                let mut mixed = Vec::new();
                for h in 0..HEADS {
                    let (query, kv) = (head(&q[t], h), h / (HEADS / KV_HEADS));
                    let score = |s: usize| dot(&query, &head(&k[s], kv)) / (HEAD_DIM as f64).sqrt();
                    let scores: Vec<f64> = (0..=t).map(score).collect();
                    let top = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    let mut value = vec![0.0; HEAD_DIM];
                    for (s, w) in weights.iter().enumerate() {
                        value.iter_mut().zip(head(&v[s], kv)).for_each(|(o, v)| *o += w / total * v);
                    }
                    mixed.extend(value);
                }
                product(&out, &mixed)
            })
            .collect()
    }

    fn mamba2(&self, i: usize, x: &Rows) -> Rows {
        let tensor = |part: &str| self.tensor(&format!("blk.{i}.{part}"));
        let (inner, state_dim, channels) = (SSM_HEADS * SSM_DIM, self.spec.state, self.spec.channels());
        let (input, conv, conv_bias) =
            (tensor("ssm_in.weight"), tensor("ssm_conv1d.weight"), tensor("ssm_conv1d.bias"));
        let (dt_bias, a, d) = (tensor("ssm_dt.bias"), tensor("ssm_a"), tensor("ssm_d"));
        let (norm, out) = (tensor("ssm_norm.weight"), tensor("ssm_out.weight"));
        let mut window = vec![[0.0; TAPS]; channels];
        let mut state = vec![vec![0.0; state_dim]; inner];
        let mut rows = Vec::new();
        for x in x {
            let u = product(&input, x);
            let mixed: Vec<f64> = (0..channels)
                .map(|c| {
                    window[c].rotate_left(1);
                    window[c][TAPS - 1] = u[inner + c];
                    silu(dot(&window[c], &conv[c * TAPS..][..TAPS]) + conv_bias[c])
                })
                .collect();
            let mut v = Vec::new();
            for (j, state) in state.iter_mut().enumerate() {
                let h = j / SSM_DIM;
                let g = h / (SSM_HEADS / GROUPS);
                let time = u[inner + channels + h] + dt_bias[h];
                let time = if time > 20.0 { time } else { time.exp().ln_1p() };
                let decay = (time * a[h]).exp();
                let b = &mixed[inner + g * state_dim..][..state_dim];
                let c = &mixed[inner + (GROUPS + g) * state_dim..][..state_dim];
                state.iter_mut().zip(b).for_each(|(s, b)| *s = *s * decay + mixed[j] * time * b);
                v.push(silu(u[j]) * (dot(state, c) + d[h] * mixed[j]));
            }
            let group = inner / GROUPS;
            let normed: Vec<f64> = (0..inner)
                .map(|j| {
                    let part = &v[j / group * group..][..group];
                    let mean = dot(part, part) / group as f64;
                    v[j] / (mean + f64::from(1e-5_f32)).sqrt() * norm[j]
                })
                .collect();
            rows.push(product(&out, &normed));
        }
        rows
    }

    fn ffn(&self, i: usize, x: &[f64]) -> Vec<f64> {
        let tensor = |part: &str| self.tensor(&format!("blk.{i}.{part}"));
        let squared = |up: &[f64], down: &[f64], x: &[f64]| {
            let hidden: Vec<f64> = product(up, x).iter().map(|x| x.max(0.0).powi(2)).collect();
            product(down, &hidden)
        };
        if self.spec.dense {
            return squared(&tensor("ffn_up.weight"), &tensor("ffn_down.weight"), x);
        }
        let score: Vec<f64> =
            product(&tensor("ffn_gate_inp.weight"), x).iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        let mut choice: Vec<f64> = score.iter().zip(tensor("exp_probs_b.bias")).map(|(s, b)| s + b).collect();
        if let Some((groups, open)) = self.spec.groups {
            let len = EXPERTS / groups;
            let best_two = |g: usize| {
                let mut c = choice[g * len..][..len].to_vec();
                c.sort_by(|a, b| b.total_cmp(a));
                c.iter().take(2).sum::<f64>()
            };
            let mut order: Vec<usize> = (0..groups).collect();
            order.sort_by(|&a, &b| best_two(b).total_cmp(&best_two(a)));
            for &g in &order[open..] {
                choice[g * len..][..len].fill(f64::NEG_INFINITY);
            }
        }
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|&a, &b| choice[b].total_cmp(&choice[a]));
        let total: f64 = order[..USED].iter().map(|&e| score[e]).sum();
        let latent = self.spec.latent.unwrap_or(D);
        let z = match self.spec.latent {
            Some(_) => product(&tensor("ffn_latent_down.weight"), x),
            None => x.to_vec(),
        };
        let (up, down) = (tensor("ffn_up_exps.weight"), tensor("ffn_down_exps.weight"));
        let mut routed = vec![0.0; latent];
        for &e in &order[..USED] {
            let slab = latent * WIDTH;
            let y = squared(&up[e * slab..][..slab], &down[e * slab..][..slab], &z);
            routed.iter_mut().zip(y).for_each(|(r, y)| *r += 2.5 * score[e] / total * y);
        }
        if self.spec.latent.is_some() {
            routed = product(&tensor("ffn_latent_up.weight"), &routed);
        }
        let shared = squared(&tensor("ffn_up_shexp.weight"), &tensor("ffn_down_shexp.weight"), x);
        assert_eq!(tensor("ffn_up_shexp.weight").len(), D * SHARED);
        routed.iter().zip(shared).map(|(r, s)| r + s).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `w: [n][k]` times `x: [k]`.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|w| dot(w, x)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn sum(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}
