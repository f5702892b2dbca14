//! A DiT written plainly in f64 on the host, from the paper's formulas, to compare with.

use super::HostInput;
use flow_models::{DitConfig, MoeConfig, Position};
use std::collections::BTreeMap;

/// Weights in f64 by name.
pub type Weights64 = BTreeMap<String, Vec<f64>>;

struct Reference<'a> {
    config: &'a DitConfig,
    weights: &'a Weights64,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn layer_norm(x: &[f64]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    x.iter().map(|v| (v - mean) / (variance + 1e-6).sqrt()).collect()
}

fn rms_norm(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_square + 1e-6).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * scale * w).collect()
}

fn modulate(x: &[f64], modulation: &[f64], shift: usize, scale: usize) -> Vec<f64> {
    let d = x.len();
    let normed = layer_norm(x);
    (0..d)
        .map(|i| normed[i] * (1.0 + modulation[scale * d + i]) + modulation[shift * d + i])
        .collect()
}

impl Reference<'_> {
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = &self.weights[&format!("{name}.weight")];
        let bias = &self.weights[&format!("{name}.bias")];
        let rows = weight.chunks(x.len());
        rows.zip(bias)
            .map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias)
            .collect()
    }

    fn conditioning(&self, sigma: f64, tokens: &[i64]) -> Vec<f64> {
        // The angles are defined in f32, as in diffusers: near 1000 their rounding is visible in the sines.
        let timestep = sigma as f32 * 1000.0;
        let angle = |i: usize| {
            let frequency = libm::expf(-libm::logf(10_000.0) * i as f32 / 128.0);
            f64::from(timestep * frequency)
        };
        let mut sinusoid: Vec<f64> = (0..128).map(|i| angle(i).cos()).collect();
        sinusoid.extend((0..128).map(|i| angle(i).sin()));
        let inner = self.linear("time_embed.timestep_embedder.linear_1", &sinusoid);
        let inner: Vec<f64> = inner.into_iter().map(silu).collect();
        let mut c = self.linear("time_embed.timestep_embedder.linear_2", &inner);
        let hidden = c.len();
        for &token in tokens {
            let row = &self.weights["token_embed.weight"][token as usize * hidden..][..hidden];
            c.iter_mut().zip(row).for_each(|(c, row)| *c += row);
        }
        c.into_iter().map(silu).collect()
    }

    fn embed(&self, x: &[f64]) -> Vec<Vec<f64>> {
        let (p, latent) = (self.config.patch, self.config.latent);
        let (rows, columns) = self.config.grid();
        let mut tokens = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let mut patch = Vec::new();
                for channel in 0..latent.channels {
                    for y in 0..p {
                        for z in 0..p {
                            let line = channel * latent.height + row * p + y;
                            patch.push(x[line * latent.width + column * p + z]);
                        }
                    }
                }
                let mut token = self.linear("pos_embed.proj", &patch);
                if self.config.position == Position::Sincos {
                    self.add_position(&mut token, row, column);
                }
                tokens.push(token);
            }
        }
        tokens
    }

    fn add_position(&self, token: &mut [f64], row: usize, column: usize) {
        let quarter = token.len() / 4;
        for (i, value) in token.iter_mut().enumerate() {
            let position = if i < 2 * quarter { column } else { row } as f64;
            let angle = position / 10_000f64.powf((i % quarter) as f64 / quarter as f64);
            *value += if (i / quarter).is_multiple_of(2) {
                angle.sin()
            } else {
                angle.cos()
            };
        }
    }

    fn rotate(&self, x: &mut [f64], token: usize) {
        let (pairs, columns) = (x.len() / 2, self.config.grid().1);
        let half = pairs / 2;
        for pair in 0..pairs {
            let position = if pair < half {
                token / columns
            } else {
                token % columns
            } as f64;
            let angle = position / 10_000f64.powf((pair % half) as f64 / half as f64);
            let (a, b) = (x[2 * pair], x[2 * pair + 1]);
            x[2 * pair] = a * angle.cos() - b * angle.sin();
            x[2 * pair + 1] = a * angle.sin() + b * angle.cos();
        }
    }

    fn attention(&self, name: &str, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (heads, d) = (self.config.heads, self.config.head_dim());
        let project = |kind: &str, norm: Option<&str>| -> Vec<Vec<Vec<f64>>> {
            let per_token = x.iter().enumerate().map(|(token, x)| {
                let all = self.linear(&format!("{name}.{kind}"), x);
                let heads = all.chunks(d).map(|head| {
                    let mut head = head.to_vec();
                    if let Some(norm) = norm {
                        if self.config.qk_norm {
                            head = rms_norm(&head, &self.weights[&format!("{name}.{norm}.weight")]);
                        }
                        if self.config.position == Position::Rope {
                            self.rotate(&mut head, token);
                        }
                    }
                    head
                });
                heads.collect()
            });
            per_token.collect()
        };
        let (q, k, v) = (
            project("to_q", Some("norm_q")),
            project("to_k", Some("norm_k")),
            project("to_v", None),
        );
        let mixed = (0..x.len()).map(|i| {
            let mut out = Vec::new();
            for h in 0..heads {
                let dot = |j: usize| -> f64 { q[i][h].iter().zip(&k[j][h]).map(|(q, k)| q * k).sum() };
                let scores: Vec<f64> = (0..x.len()).map(|j| (dot(j) / (d as f64).sqrt()).exp()).collect();
                let total: f64 = scores.iter().sum();
                let mut head = vec![0.0; d];
                for (score, v) in scores.iter().zip(&v) {
                    for (head, v) in head.iter_mut().zip(&v[h]) {
                        *head += score / total * v;
                    }
                }
                out.extend(head);
            }
            self.linear(&format!("{name}.to_out.0"), &out)
        });
        mixed.collect()
    }

    fn feed_forward(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let inner = self.linear(&format!("{name}.net.0.proj"), x);
        let inner: Vec<f64> = inner.into_iter().map(gelu_tanh).collect();
        self.linear(&format!("{name}.net.2"), &inner)
    }

    /// The layer of one expert.
    fn expert(&self, name: &str, expert: usize, x: &[f64], outputs: usize) -> Vec<f64> {
        let weight = &self.weights[&format!("{name}.weight")][expert * outputs * x.len()..];
        let bias = &self.weights[&format!("{name}.bias")][expert * outputs..];
        let rows = weight.chunks(x.len()).take(outputs).zip(bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias)
            .collect()
    }

    fn experts(&self, name: &str, moe: &MoeConfig, x: &[f64]) -> Vec<f64> {
        let router = &self.weights[&format!("{name}.router.weight")];
        let scores = router
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>().exp());
        let scores: Vec<f64> = scores.collect();
        let total: f64 = scores.iter().sum();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(moe.top_k);
        let chosen: f64 = order.iter().map(|expert| scores[*expert]).sum();
        let mut out = match moe.shared {
            0 => vec![0.0; x.len()],
            _ => self.feed_forward(&format!("{name}.shared"), x),
        };
        for expert in order {
            let weight = scores[expert] / if moe.normalize { chosen } else { total };
            let inner = self.expert(&format!("{name}.experts.up"), expert, x, moe.inner);
            let inner: Vec<f64> = inner.into_iter().map(gelu_tanh).collect();
            let of_expert = self.expert(&format!("{name}.experts.down"), expert, &inner, x.len());
            out.iter_mut()
                .zip(of_expert)
                .for_each(|(out, y)| *out += weight * y);
        }
        out
    }

    fn row(&self, x: &[f64], sigma: f64, tokens: &[i64]) -> Vec<f64> {
        let hidden = self.config.hidden;
        let c = self.conditioning(sigma, tokens);
        let mut x = self.embed(x);
        for layer in 0..self.config.layers {
            let name = format!("transformer_blocks.{layer}");
            let modulation = self.linear(&format!("{name}.norm1.linear"), &c);
            let gated = |x: &mut Vec<Vec<f64>>, branch: Vec<Vec<f64>>, gate: usize| {
                for (x, branch) in x.iter_mut().zip(branch) {
                    for i in 0..hidden {
                        x[i] += modulation[gate * hidden + i] * branch[i];
                    }
                }
            };
            let normed: Vec<_> = x.iter().map(|x| modulate(x, &modulation, 0, 1)).collect();
            let branch = self.attention(&format!("{name}.attn"), &normed);
            gated(&mut x, branch, 2);
            let branch = x.iter().map(|x| {
                let normed = modulate(x, &modulation, 3, 4);
                match &self.config.moe {
                    None => self.feed_forward(&format!("{name}.ff"), &normed),
                    Some(moe) => self.experts(&format!("{name}.ff"), moe, &normed),
                }
            });
            let branch = branch.collect();
            gated(&mut x, branch, 5);
        }
        let modulation = self.linear("norm_out.linear", &c);
        let out: Vec<_> = x
            .iter()
            .map(|x| self.linear("proj_out", &modulate(x, &modulation, 1, 0)))
            .collect();
        self.unpatchify(&out)
    }

    fn unpatchify(&self, tokens: &[Vec<f64>]) -> Vec<f64> {
        let (p, latent) = (self.config.patch, self.config.latent);
        let columns = self.config.grid().1;
        let mut x = Vec::new();
        for channel in 0..latent.channels {
            for y in 0..latent.height {
                for z in 0..latent.width {
                    let within = (y % p * p + z % p) * latent.channels + channel;
                    x.push(tokens[y / p * columns + z / p][within]);
                }
            }
        }
        x
    }
}

/// The velocity of every row, one after the other.
pub fn velocity(config: &DitConfig, weights: &Weights64, input: &HostInput) -> Vec<f64> {
    let reference = Reference { config, weights };
    let (values, length) = (config.latent.values(), config.vocabulary.unwrap().length);
    let rows = input.sigma.iter().enumerate().map(|(row, sigma)| {
        let x: Vec<f64> = input.x[row * values..][..values]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        reference.row(&x, f64::from(*sigma), &input.tokens[row * length..][..length])
    });
    rows.flatten().collect()
}
