//! Layer norm scaled and shifted per sample: adaLN (Peebles and Xie 2022, arXiv:2212.09748); and by a weight and a bias.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::partials::Target;
use crate::row_codes::{RowCodes, codes_of, largest_held, row_max, words};
use crate::rows::{Rows, plane_size, row_sums, total};
use cubecl::prelude::*;
use flow_cube::e4m3::{is_native, scale_of};

/// Sizes of a modulated layer norm of `x [B, S, D]` by `modulation [B, K, D]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModulatedNorm {
    /// `B`.
    pub batch: usize,
    /// `S`.
    pub tokens: usize,
    /// `D`.
    pub channels: usize,
    /// `K`.
    pub chunks: usize,
    /// Which chunk is the shift.
    pub shift: usize,
    /// Which chunk is the scale, less `unit`.
    pub scale: usize,
    /// Added to the scale: 1 for a modulation, which is around 0; 0 for a weight, which is around 1.
    pub unit: f32,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Fills `values` with what the thread holds of a row, less the row's mean; gives the mean and the reciprocal deviation. Every thread
/// of the block calls this.
#[cube]
fn deviations<F: Float, N: Size>(
    x: &[Vector<F, N>],
    values: &mut Array<Vector<f32, N>>,
    shared: &mut Shared<[f32]>,
    row: usize,
    lane: usize,
    epsilon: f32,
    #[comptime] rows: Rows,
) -> (f32, f32) {
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        let value = Vector::<f32, N>::cast_from(x[row * vectors + select(inside, at, 0usize)]);
        values[i] = value;
        sum[0] += select(inside, total(value), 0.0f32);
    }
    row_sums(&mut sum, shared, 1usize, rows);
    let mean = sum[0] / comptime!(rows.columns as f32);
    sum[0] = 0.0f32;
    #[unroll]
    for i in 0..held {
        let inside = lane + comptime!(i * rows.threads_per_row) < vectors;
        let deviation = values[i] - Vector::new(mean);
        values[i] = deviation;
        sum[0] += select(inside, total(deviation * deviation), 0.0f32);
    }
    row_sums(&mut sum, shared, 1usize, rows);
    let variance = sum[0] / comptime!(rows.columns as f32);
    let reciprocal = 1.0f32 / (variance + epsilon).sqrt();
    (mean, reciprocal)
}

/// A vector of the result, of which the modulation has scale and shift at the vectors of these numbers.
#[cube]
fn modulate<F: Float, N: Size>(
    deviation: Vector<f32, N>,
    reciprocal: f32,
    modulation: &[Vector<F, N>],
    scale_at: usize,
    shift_at: usize,
    unit: f32,
) -> Vector<f32, N> {
    let scaled = Vector::<f32, N>::cast_from(modulation[scale_at]);
    let shifted = Vector::<f32, N>::cast_from(modulation[shift_at]);
    let factor = scaled + Vector::new(unit);
    deviation * Vector::new(reciprocal) * factor + shifted
}

/// Sizes of a modulated layer norm, and what it adds.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ModulationSizes {
    /// Tokens of all samples.
    pub row_count: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Chunks of the modulation.
    pub chunks: usize,
    /// Which chunk is the shift.
    pub shift: usize,
    /// Which chunk is the scale, less `unit`.
    pub scale: usize,
    /// Added to the scale.
    pub unit: f32,
    /// Added to the variance.
    pub epsilon: f32,
}

/// What is known at compile time of a norm that makes codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NormCodesKind {
    /// Whether the rows are written, too.
    pub stores_rows: bool,
    /// Whether the device has an instruction that makes codes.
    pub native: bool,
    /// Shape of the block.
    pub rows: Rows,
}

/// `y = (x - mean) / sqrt(variance + epsilon) · (unit + scale) + shift`, and mean and reciprocal deviation of each row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    modulation: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    statistics: &mut [f32],
    sizes: &ModulationSizes,
    #[comptime] rows: Rows,
) {
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < sizes.row_count;
    let row = select(exists, asked, 0usize);

    let mut values = Array::<Vector<f32, N>>::new(held);
    let (mean, reciprocal) = deviations::<F, N>(x, &mut values, &mut shared, row, lane, sizes.epsilon, rows);
    let of_sample = row / sizes.tokens * sizes.chunks;
    let scale_start = (of_sample + sizes.scale) * vectors;
    let shift_start = (of_sample + sizes.shift) * vectors;
    if exists {
        #[unroll]
        for i in 0..held {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                let (scale_at, shift_at) = (scale_start + at, shift_start + at);
                let result =
                    modulate::<F, N>(values[i], reciprocal, modulation, scale_at, shift_at, sizes.unit);
                y[row * vectors + at] = Vector::cast_from(result);
            }
        }
        if lane == 0 {
            statistics[row * 2] = mean;
            statistics[row * 2 + 1] = reciprocal;
        }
    }
}

/// The `y` of `norm_forward` as codes with a scale for each row, and as it is if `stores_rows`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_codes<F: Float, N: Size, M: Size>(
    x: &[Vector<F, N>],
    modulation: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    codes: &mut [Vector<u32, M>],
    scales: &mut [f32],
    sizes: &ModulationSizes,
    #[comptime] kind: NormCodesKind,
) {
    let stores_rows = comptime!(kind.stores_rows);
    let native = comptime!(kind.native);
    let rows = comptime!(kind.rows);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let mut largest_of: Shared<[u32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < sizes.row_count;
    let row = select(exists, asked, 0usize);

    let mut values = Array::<Vector<f32, N>>::new(held);
    let (_, reciprocal) = deviations::<F, N>(x, &mut values, &mut shared, row, lane, sizes.epsilon, rows);
    let of_sample = row / sizes.tokens * sizes.chunks;
    let scale_start = (of_sample + sizes.scale) * vectors;
    let shift_start = (of_sample + sizes.shift) * vectors;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        // Threads behind the row's end compute its first vector, and then count as zeros.
        let place = select(inside, at, 0usize);
        let (scale_at, shift_at) = (scale_start + place, shift_start + place);
        let result = modulate::<F, N>(values[i], reciprocal, modulation, scale_at, shift_at, sizes.unit);
        let stored = Vector::<F, N>::cast_from(result);
        if comptime!(stores_rows) {
            if exists && inside {
                y[row * vectors + at] = stored;
            }
        }
        values[i] = select(inside, Vector::<f32, N>::cast_from(stored), Vector::new(0.0f32));
    }
    let largest = row_max(largest_held::<N>(&values, rows), &mut largest_of, rows);
    let row_scale = scale_of(largest);
    if exists {
        #[unroll]
        for i in 0..held {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                codes[row * vectors + at] = codes_of::<N, M>(values[i], row_scale, native);
            }
        }
        if lane == 0 {
            scales[row] = row_scale;
        }
    }
}

/// What the backward kernel reads.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NormInputs<F: Float, N: Size> {
    /// `[B, S, D]`.
    pub x: &'static [Vector<F, N>],
    /// `[B, K, D]`.
    pub modulation: &'static [Vector<F, N>],
    /// Mean and reciprocal deviation of each row.
    pub statistics: &'static [f32],
    /// The gradient of the norm.
    pub gradient: &'static [Vector<F, N>],
    /// Another gradient of `x`.
    pub added: &'static [Vector<F, N>],
}

/// Sizes of the backward kernel, and what is added to the scale.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct NormSizes {
    /// Samples.
    pub batch: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Chunks of the modulation.
    pub chunks: usize,
    /// Which chunk is the scale, less `unit`.
    pub scale: usize,
    /// Added to the scale.
    pub unit: f32,
    /// Tokens of a piece.
    pub piece: usize,
}

/// What the backward kernel computes, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NormBackwardKind {
    /// Rows whose sums are made at once.
    pub at_once: usize,
    /// Whether the gradients of shift and scale are asked for.
    pub modulated: bool,
    /// Whether another gradient is added.
    pub adds: bool,
    /// Shape of the block.
    pub rows: Rows,
}

/// `dx`, plus what is `added` if there is some, and if `modulated` sums over the tokens of a piece of the gradients of shift and scale: `partials [B, pieces, 2, D]`.
/// A block computes `piece` tokens of a sample, `at_once` at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn norm_backward<F: Float, N: Size>(
    inputs: &NormInputs<F, N>,
    dx: &mut [Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    sizes: &NormSizes,
    #[comptime] kind: NormBackwardKind,
) {
    let at_once = comptime!(kind.at_once);
    let modulated = comptime!(kind.modulated);
    let adds = comptime!(kind.adds);
    let rows = comptime!(kind.rows);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(2 * at_once)));
    let lane = UNIT_POS as usize;
    let pieces = sizes.tokens.div_ceil(sizes.piece);
    let sample = CUBE_POS / pieces;
    let first = CUBE_POS % pieces * sizes.piece;
    let sample_exists = sample < sizes.batch;
    let sample = select(sample_exists, sample, 0usize);
    let end = min(first + sizes.piece, sizes.tokens);

    let mut factors = Array::<Vector<f32, N>>::new(held);
    let mut shifts = Array::<Vector<f32, N>>::new(held);
    let mut scales = Array::<Vector<f32, N>>::new(held);
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let at = select(at < vectors, at, 0usize);
        let scaled = Vector::<f32, N>::cast_from(
            inputs.modulation[(sample * sizes.chunks + sizes.scale) * vectors + at],
        );
        factors[i] = scaled + Vector::new(sizes.unit);
        shifts[i] = Vector::new(0.0f32);
        scales[i] = Vector::new(0.0f32);
    }
    let mut normed = Array::<Vector<f32, N>>::new(comptime!(held * at_once));
    let mut slopes = Array::<Vector<f32, N>>::new(comptime!(held * at_once));
    let mut reciprocals = Array::<f32>::new(at_once);
    let mut sums = Array::<f32>::new(comptime!(2 * at_once));
    for step in 0..sizes.piece / at_once {
        #[unroll]
        for r in 0..at_once {
            let token = first + step * at_once + r;
            let exists = token < end;
            let row = sample * sizes.tokens + select(exists, token, 0usize);
            let mean = inputs.statistics[row * 2];
            let reciprocal = inputs.statistics[row * 2 + 1];
            reciprocals[r] = reciprocal;
            let mut plain = 0.0f32;
            let mut weighted = 0.0f32;
            #[unroll]
            for i in 0..held {
                let at = lane + comptime!(i * rows.threads_per_row);
                let inside = at < vectors;
                let place = row * vectors + select(inside, at, 0usize);
                let value = Vector::<f32, N>::cast_from(inputs.x[place]);
                let value = (value - Vector::new(mean)) * Vector::new(reciprocal);
                let slope = Vector::<f32, N>::cast_from(inputs.gradient[place]);
                normed[comptime!(r * held + i)] = value;
                if comptime!(modulated) {
                    if exists {
                        shifts[i] += slope;
                        scales[i] += slope * value;
                    }
                }
                let slope = slope * factors[i];
                slopes[comptime!(r * held + i)] = slope;
                plain += select(inside, total(slope), 0.0f32);
                weighted += select(inside, total(slope * value), 0.0f32);
            }
            sums[comptime!(2 * r)] = plain;
            sums[comptime!(2 * r + 1)] = weighted;
        }
        row_sums(&mut sums, &mut shared, comptime!(2 * at_once), rows);
        #[unroll]
        for r in 0..at_once {
            let token = first + step * at_once + r;
            let average = sums[comptime!(2 * r)] / comptime!(rows.columns as f32);
            let along = sums[comptime!(2 * r + 1)] / comptime!(rows.columns as f32);
            if token < end && sample_exists {
                #[unroll]
                for i in 0..held {
                    let at = lane + comptime!(i * rows.threads_per_row);
                    if at < vectors {
                        let value = normed[comptime!(r * held + i)];
                        let slope = slopes[comptime!(r * held + i)] - Vector::new(average);
                        let result = (slope - value * Vector::new(along)) * Vector::new(reciprocals[r]);
                        let place = (sample * sizes.tokens + token) * vectors + at;
                        let mut rounded = Vector::<F, N>::cast_from(result);
                        if comptime!(adds) {
                            // Always the first, or NaN: the selection keeps compilers from making the last product and
                            // this sum one operation, which would round once.
                            let alone = Vector::<f32, N>::cast_from(rounded);
                            let alone = select(reciprocals[r] > 0.0, alone, Vector::new(reciprocals[r]));
                            rounded =
                                Vector::cast_from(alone + Vector::<f32, N>::cast_from(inputs.added[place]));
                        }
                        dx[place] = rounded;
                    }
                }
            }
        }
    }
    if comptime!(modulated) {
        if sample_exists {
            let base = CUBE_POS * 2 * vectors;
            #[unroll]
            for i in 0..held {
                let at = lane + comptime!(i * rows.threads_per_row);
                if at < vectors {
                    partials[base + at] = shifts[i];
                    partials[base + vectors + at] = scales[i];
                }
            }
        }
    }
}

/// Tokens of a sample whose sums one block makes: a function of their number, so that a sample's sums do not depend on
/// its batch. Short sequences need many blocks, long ones few partial sums.
pub(crate) fn tokens_per_piece(tokens: usize) -> usize {
    (tokens / 16).next_power_of_two().clamp(16, 64)
}

impl ModulatedNorm {
    fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    fn check_inputs(&self, x: &Buffer, modulation: &Buffer) -> Result<Element, Refused> {
        at_least_one("channels", self.channels)?;
        at_least_one("chunks", self.chunks)?;
        let allowed = || format!("0 to {}", self.chunks - 1);
        for (name, found) in [("shift", self.shift), ("scale", self.scale)] {
            if found >= self.chunks {
                let allowed = allowed();
                return Err(Refused::Size { name, found, allowed });
            }
        }
        x.expect("x", self.rows() * self.channels)?;
        modulation.expect_of("modulation", self.batch * self.chunks * self.channels, x.element)?;
        Ok(x.element)
    }

    fn modulation_sizes(&self) -> ModulationSizesLaunch {
        ModulationSizesLaunch::new(
            self.rows(),
            self.tokens,
            self.chunks,
            self.shift,
            self.scale,
            self.unit,
            self.epsilon,
        )
    }

    fn check(&self, x: &Buffer, modulation: &Buffer, statistics: &Buffer) -> Result<Element, Refused> {
        let element = self.check_inputs(x, modulation)?;
        statistics.expect_of("statistics", self.rows() * 2, Element::F32)?;
        Ok(element)
    }

    /// `y`, of the type of `x` and of the modulation, and `statistics [B, S, 2]` in f32: mean and reciprocal deviation of
    /// each row, which backward needs. Both statistics are f32 sums; the variance is the mean of squared deviations.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn forward(
        &self,
        client: &Client,
        x: &Buffer,
        modulation: &Buffer,
        y: &Buffer,
        statistics: &Buffer,
    ) -> Result<(), Refused> {
        let element = self.check(x, modulation, statistics)?;
        y.expect_of("y", x.length, element)?;
        if x.length == 0 {
            return Ok(());
        }
        let width = width(self.channels, element);
        let rows = Rows::several(self.channels, width, plane_size(client));
        // SAFETY: all lengths were checked.
        with_type!(element, F => unsafe {
            norm_forward::launch_unchecked::<F>(
                client,
                grid(client, self.rows().div_ceil(rows.groups)),
                CubeDim::new_1d(rows.threads() as u32),
                address_type(&[x, modulation]),
                width,
                x.argument(),
                modulation.argument(),
                y.argument(),
                statistics.argument(),
                self.modulation_sizes(),
                rows,
            );
        });
        Ok(())
    }

    /// What [`forward`](Self::forward) gives as `y`, as codes, and as it is where there is a `y`; without statistics. The codes are
    /// those of the rows as they would be stored: see [`row_codes`](crate::row_codes).
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit, or if [`RowCodes::fits`] says that the channels do not.
    pub fn forward_codes(
        &self,
        client: &Client,
        x: &Buffer,
        modulation: &Buffer,
        y: Option<&Buffer>,
        codes: &RowCodes,
    ) -> Result<(), Refused> {
        let element = self.check_inputs(x, modulation)?;
        if let Some(y) = y {
            y.expect_of("y", x.length, element)?;
        }
        let shape = [self.rows(), self.channels];
        codes.check(shape)?;
        if x.length == 0 {
            return Ok(());
        }
        let width = width(self.channels, element);
        let rows = Rows::several(self.channels, width, plane_size(client));
        let unused = Buffer::empty(client, width, element);
        let [code_words, scales] = codes.arguments(shape);
        // SAFETY: all lengths were checked; `y` is not written unless there is one.
        with_type!(element, F => unsafe {
            norm_codes::launch_unchecked::<F>(
                client,
                grid(client, self.rows().div_ceil(rows.groups)),
                CubeDim::new_1d(rows.threads() as u32),
                address_type(&[x, modulation]),
                width,
                words(width),
                x.argument(),
                modulation.argument(),
                y.unwrap_or(&unused).argument(),
                code_words,
                scales,
                self.modulation_sizes(),
                NormCodesKind {
                    stores_rows: y.is_some(),
                    native: is_native(client),
                    rows,
                },
            );
        });
        Ok(())
    }

    /// `dx`, and `dmodulation [B, K, D]` if asked for, in f32 or the type of `x`: zeros but for shift and scale. Sums over
    /// tokens are f32, in an order that depends on their number alone. `added` is another gradient of `x`, added to `dx` as if
    /// that were rounded and written first.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        client: &Client,
        x: &Buffer,
        modulation: &Buffer,
        statistics: &Buffer,
        gradient: &Buffer,
        added: Option<&Buffer>,
        dx: &Buffer,
        dmodulation: Option<&Buffer>,
    ) -> Result<(), Refused> {
        let element = self.check(x, modulation, statistics)?;
        gradient.expect_of("gradient", x.length, element)?;
        dx.expect_of("dx", x.length, element)?;
        if let Some(added) = added {
            added.expect_of("added", x.length, element)?;
        }
        if let Some(dmodulation) = dmodulation {
            let of = match dmodulation.element {
                Element::F32 => Element::F32,
                _ => element,
            };
            dmodulation.expect_of("dmodulation", modulation.length, of)?;
        }
        let width = width(self.channels, element);
        let rows = Rows::whole(self.channels, width, plane_size(client));
        let piece = tokens_per_piece(self.tokens);
        let pieces = self.tokens.div_ceil(piece);
        let partial = match dmodulation {
            Some(_) => self.batch * pieces * 2 * self.channels,
            None => width,
        };
        let partials = Buffer::empty(client, partial, Element::F32);
        if x.length > 0 {
            // SAFETY: all lengths were checked.
            with_type!(element, F => unsafe {
                norm_backward::launch_unchecked::<F>(
                    client,
                    grid(client, self.batch * pieces),
                    CubeDim::new_1d(rows.threads() as u32),
                    address_type(&[x, modulation, &partials]),
                    width,
                    NormInputsLaunch::new(
                        x.argument(),
                        modulation.argument(),
                        statistics.argument(),
                        gradient.argument(),
                        // Not read unless there is some.
                        added.unwrap_or(gradient).argument(),
                    ),
                    dx.argument(),
                    partials.argument(),
                    NormSizesLaunch::new(
                        self.batch,
                        self.tokens,
                        self.chunks,
                        self.scale,
                        self.unit,
                        piece,
                    ),
                    NormBackwardKind {
                        at_once: at_once(rows),
                        modulated: dmodulation.is_some(),
                        adds: added.is_some(),
                        rows,
                    },
                );
            });
        }
        if let Some(dmodulation) = dmodulation.filter(|dmodulation| dmodulation.length > 0) {
            let target = Target {
                batch: self.batch,
                pieces,
                chunks: self.chunks,
                columns: self.channels,
                parts: [Some(self.shift), Some(self.scale)],
            };
            target.add(client, &partials, dmodulation);
        }
        Ok(())
    }
}

/// Rows whose sums are made at once: as many as registers allow.
pub(crate) fn at_once(rows: Rows) -> usize {
    match rows.held() * rows.width {
        0..=4 => 4,
        5..=8 => 2,
        _ => 1,
    }
}
