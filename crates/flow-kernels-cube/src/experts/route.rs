//! Which experts a token goes to, how much each counts, and how evenly tokens load them.
//!
//! `p = softmax(logits)` in f32; the largest `p` first, of equal ones the lowest index; NaN comes last. The balance of a
//! sample is `E / (K · S) · Σ_e count(e) · mean over S of p(e)`, 1 for an even load (Fedus et al. 2021, arXiv:2101.03961,
//! eq. 4, per sequence as in DeepSeek-V3, arXiv:2412.19437, eq. 17); counts are constants to the gradient.
//!
//! A token has few scores, so a thread has a token to itself.

use super::indices;
use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, with_type};
use crate::columns::THREADS;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Sizes of a router's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// `B`.
    pub batch: usize,
    /// `S`.
    pub tokens: usize,
    /// `E`.
    pub experts: usize,
    /// `K`, at most `E`.
    pub top_k: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalize: bool,
}

/// What a router gives, and what its gradient needs of it. All are f32.
#[derive(Clone, Copy, Debug)]
pub struct Shares<'a> {
    /// `[B, S, K]`.
    pub weights: &'a Buffer,
    /// `E / (K · S) · count` of each expert, `[B, E]`: 1 for an even load.
    pub loads: &'a Buffer,
    /// `[B]`.
    pub balance: &'a Buffer,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn softmax<F: Float>(logits: &[F], scores: &mut [f32], rows: usize, experts: usize) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let first = row * experts;
        let mut largest = f32::cast_from(logits[first]);
        for expert in 1..experts {
            largest = max(largest, f32::cast_from(logits[first + expert]));
        }
        let mut total = 0.0f32;
        for expert in 0..experts {
            let share = (f32::cast_from(logits[first + expert]) - largest).exp();
            scores[first + expert] = share;
            total += share;
        }
        for expert in 0..experts {
            scores[first + expert] /= total;
        }
    }
}

/// The next choice is the best of those after the one before, in the order of falling scores and rising indices.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn choose_experts(scores: &[f32], choices: &mut [i32], rows: usize, experts: usize, top_k: usize) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let first = row * experts;
        let mut before = 0u32;
        let mut before_at = 0usize;
        for choice in 0..top_k {
            let mut best = 0u32;
            let mut best_at = 0usize;
            for expert in 0..experts {
                // Scores are not negative, so their bits are in their order. NaN is below every score; compilers of
                // shaders may take it that no number is NaN, bits tell.
                let bits = u32::reinterpret(scores[first + expert]) & 0x7FFF_FFFFu32;
                let key = select(bits > 0x7F80_0000u32, 1u32, bits + 2u32);
                let follows = key < before || (key == before && expert > before_at);
                // The first choice has none before it.
                let better = (follows || choice == 0) && key > best;
                best = select(better, key, best);
                best_at = select(better, expert, best_at);
            }
            choices[row * top_k + choice] = best_at as i32;
            before = best;
            before_at = best_at;
        }
    }
}

/// The sum of a token's chosen scores if weights are divided by it, else 1.
#[cube]
fn divisor(
    scores: &[f32],
    choices: &[i32],
    row: usize,
    experts: usize,
    top_k: usize,
    #[comptime] normalize: bool,
) -> f32 {
    let mut total = 1.0f32;
    if comptime!(normalize) {
        total = 0.0f32;
        for choice in 0..top_k {
            total += scores[row * experts + choices[row * top_k + choice] as usize];
        }
    }
    total
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn weigh(
    scores: &[f32],
    choices: &[i32],
    weights: &mut [f32],
    rows: usize,
    experts: usize,
    top_k: usize,
    #[comptime] normalize: bool,
) {
    let row = ABSOLUTE_POS;
    if row < rows {
        let total = divisor(scores, choices, row, experts, top_k, normalize);
        for choice in 0..top_k {
            let at = row * top_k + choice;
            weights[at] = scores[row * experts + choices[at] as usize] / total;
        }
    }
}

/// Sizes of the kernel that counts loads, and what counts are multiplied by.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LoadSizes {
    /// Samples.
    pub batch: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// Load of an expert for each token that chose it: 1 over their number where all are loaded evenly.
    pub even: f32,
}

/// A block for an expert in a sample: its load, and its part of the balance.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn load_experts(
    scores: &[f32],
    choices: &[i32],
    loads: &mut [f32],
    parts: &mut [f32],
    sizes: &LoadSizes,
) {
    let mut counts: Shared<[u32]> = Shared::new_slice(THREADS);
    let mut sums: Shared<[f32]> = Shared::new_slice(THREADS);
    let exists = CUBE_POS < sizes.batch * sizes.experts;
    let pair = select(exists, CUBE_POS, 0usize);
    let sample = pair / sizes.experts;
    let expert = pair % sizes.experts;
    let mut count = 0u32;
    let mut sum = 0.0f32;
    let mut token = UNIT_POS as usize;
    while token < sizes.tokens {
        let row = sample * sizes.tokens + token;
        sum += scores[row * sizes.experts + expert];
        for choice in 0..sizes.top_k {
            count += select(choices[row * sizes.top_k + choice] == expert as i32, 1u32, 0u32);
        }
        token += THREADS;
    }
    counts[UNIT_POS as usize] = count;
    sums[UNIT_POS as usize] = sum;
    sync_cube();
    if UNIT_POS == 0 && exists {
        for other in 1..THREADS {
            count += counts[other];
            sum += sums[other];
        }
        let load = f32::cast_from(count) * sizes.even;
        loads[pair] = load;
        parts[pair] = load * sum;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn balance_loads(parts: &[f32], balance: &mut [f32], batch: usize, experts: usize, tokens: usize) {
    let sample = ABSOLUTE_POS;
    if sample < batch {
        let mut sum = 0.0f32;
        for expert in 0..experts {
            sum += parts[sample * experts + expert];
        }
        balance[sample] = sum / f32::cast_from(tokens as u32);
    }
}

/// Sizes of the backward kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RouteSizes {
    /// Tokens of all samples.
    pub rows: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Experts.
    pub experts: usize,
    /// Experts of a token.
    pub top_k: usize,
}

/// What the backward kernel has gradients of, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RouteSlopes {
    /// Of the weights.
    pub of_weights: bool,
    /// Of the balance.
    pub of_balance: bool,
    /// Whether the weights of a token are divided by their sum.
    pub normalize: bool,
}

/// Of a score `p_e` the gradient is `d_e`: what the balance gives, and of a chosen one what its weight gives. That of its
/// logit is `p_e (d_e - Σ d p)`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn route_backward<G: Float>(
    scores: &[f32],
    choices: &[i32],
    loads: &[f32],
    dweights: &[f32],
    dbalance: &[f32],
    dlogits: &mut [G],
    sizes: &RouteSizes,
    #[comptime] slopes: RouteSlopes,
) {
    let row = ABSOLUTE_POS;
    if row < sizes.rows {
        let sample = row / sizes.tokens;
        let first = row * sizes.experts;
        let mut slope = 0.0f32;
        let mut mean = 0.0f32;
        if comptime!(slopes.of_balance) {
            slope = dbalance[sample] / f32::cast_from(sizes.tokens as u32);
            for expert in 0..sizes.experts {
                mean += slope * loads[sample * sizes.experts + expert] * scores[first + expert];
            }
        }
        let mut total = 1.0f32;
        let mut shift = 0.0f32;
        if comptime!(slopes.of_weights) {
            total = divisor(
                scores,
                choices,
                row,
                sizes.experts,
                sizes.top_k,
                comptime!(slopes.normalize),
            );
            if comptime!(slopes.normalize) {
                for choice in 0..sizes.top_k {
                    let at = row * sizes.top_k + choice;
                    shift += dweights[at] * (scores[first + choices[at] as usize] / total);
                }
            }
            for choice in 0..sizes.top_k {
                let at = row * sizes.top_k + choice;
                mean += (dweights[at] - shift) / total * scores[first + choices[at] as usize];
            }
        }
        for expert in 0..sizes.experts {
            let mut d = 0.0f32;
            if comptime!(slopes.of_balance) {
                d = slope * loads[sample * sizes.experts + expert];
            }
            dlogits[first + expert] = G::cast_from(scores[first + expert] * (d - mean));
        }
        if comptime!(slopes.of_weights) {
            // The same thread wrote what is replaced.
            for choice in 0..sizes.top_k {
                let at = row * sizes.top_k + choice;
                let expert = choices[at] as usize;
                let mut d = (dweights[at] - shift) / total;
                if comptime!(slopes.of_balance) {
                    d += slope * loads[sample * sizes.experts + expert];
                }
                dlogits[first + expert] = G::cast_from(scores[first + expert] * (d - mean));
            }
        }
    }
}

impl Routing {
    fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    fn check(&self) -> Result<(), Refused> {
        at_least_one("batch", self.batch)?;
        at_least_one("tokens", self.tokens)?;
        if (1..=self.experts).contains(&self.top_k) {
            return Ok(());
        }
        Err(Refused::Size {
            name: "top_k",
            found: self.top_k,
            allowed: format!("1 to the number of experts, {}", self.experts),
        })
    }

    /// One thread for each token.
    fn per_token(&self, client: &Client) -> CubeCount {
        grid(client, self.rows().div_ceil(THREADS))
    }

    /// `scores [B, S, E]`, f32: the softmax of `logits`, of any type.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn scores(&self, client: &Client, logits: &Buffer, scores: &Buffer) -> Result<(), Refused> {
        self.check()?;
        logits.expect("logits", self.rows() * self.experts)?;
        scores.expect_of("scores", self.rows() * self.experts, Element::F32)?;
        // SAFETY: all lengths were checked.
        with_type!(logits.element, F => unsafe {
            softmax::launch_unchecked::<F>(
                client,
                self.per_token(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[scores]),
                logits.argument(),
                scores.argument(),
                self.rows(),
                self.experts,
            );
        });
        Ok(())
    }

    /// `choices [B, S, K]`: the experts of the largest scores, largest first, of equal ones the lowest index; NaN last.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn choose(&self, client: &Client, scores: &Buffer, choices: &Handle) -> Result<(), Refused> {
        self.check()?;
        scores.expect_of("scores", self.rows() * self.experts, Element::F32)?;
        let choices = indices("choices", choices, self.rows() * self.top_k)?;
        // SAFETY: all lengths were checked.
        unsafe {
            choose_experts::launch_unchecked(
                client,
                self.per_token(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[scores]),
                scores.argument(),
                choices,
                self.rows(),
                self.experts,
                self.top_k,
            );
        }
        Ok(())
    }

    /// Weights, loads and balance of `choices`: each below `E`, those of a token all different.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn weigh(
        &self,
        client: &Client,
        scores: &Buffer,
        choices: &Handle,
        shares: Shares<'_>,
    ) -> Result<(), Refused> {
        self.check()?;
        let (slots, pairs) = (self.rows() * self.top_k, self.batch * self.experts);
        scores.expect_of("scores", self.rows() * self.experts, Element::F32)?;
        shares.weights.expect_of("weights", slots, Element::F32)?;
        shares.loads.expect_of("loads", pairs, Element::F32)?;
        shares.balance.expect_of("balance", self.batch, Element::F32)?;
        let choices = || indices("choices", choices, slots);
        let parts = Buffer::empty(client, pairs, Element::F32);
        let even = self.experts as f32 / (self.tokens * self.top_k) as f32;
        // SAFETY: all lengths were checked.
        unsafe {
            weigh::launch_unchecked(
                client,
                self.per_token(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[scores]),
                scores.argument(),
                choices()?,
                shares.weights.argument(),
                self.rows(),
                self.experts,
                self.top_k,
                self.normalize,
            );
            load_experts::launch_unchecked(
                client,
                grid(client, pairs),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[scores]),
                scores.argument(),
                choices()?,
                shares.loads.argument(),
                parts.argument(),
                LoadSizesLaunch::new(self.batch, self.tokens, self.experts, self.top_k, even),
            );
            balance_loads::launch_unchecked(
                client,
                grid(client, self.batch.div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[&parts]),
                parts.argument(),
                shares.balance.argument(),
                self.batch,
                self.experts,
                self.tokens,
            );
        }
        Ok(())
    }

    /// `dlogits [B, S, E]`, of any type, for the gradients of weights and balance that there are, f32. `loads` is what
    /// [`weigh`](Self::weigh) gave.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn backward(
        &self,
        client: &Client,
        (scores, choices, loads): (&Buffer, &Handle, &Buffer),
        [dweights, dbalance]: [Option<&Buffer>; 2],
        dlogits: &Buffer,
    ) -> Result<(), Refused> {
        self.check()?;
        let slots = self.rows() * self.top_k;
        scores.expect_of("scores", self.rows() * self.experts, Element::F32)?;
        loads.expect_of("loads", self.batch * self.experts, Element::F32)?;
        dlogits.expect("dlogits", self.rows() * self.experts)?;
        if let Some(dweights) = dweights {
            dweights.expect_of("dweights", slots, Element::F32)?;
        }
        if let Some(dbalance) = dbalance {
            dbalance.expect_of("dbalance", self.batch, Element::F32)?;
        }
        let choices = indices("choices", choices, slots)?;
        // SAFETY: all lengths were checked; what is not there is not read.
        with_type!(dlogits.element, G => unsafe {
            route_backward::launch_unchecked::<G>(
                client,
                self.per_token(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[scores]),
                scores.argument(),
                choices,
                loads.argument(),
                dweights.unwrap_or(loads).argument(),
                dbalance.unwrap_or(loads).argument(),
                dlogits.argument(),
                RouteSizesLaunch::new(self.rows(), self.tokens, self.experts, self.top_k),
                RouteSlopes {
                    of_weights: dweights.is_some(),
                    of_balance: dbalance.is_some(),
                    normalize: self.normalize,
                },
            );
        });
        Ok(())
    }
}
