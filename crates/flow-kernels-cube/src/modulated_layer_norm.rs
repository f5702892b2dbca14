//! Layer norm scaled and shifted per sample: adaLN (Peebles and Xie 2022, arXiv:2212.09748); and by a weight and a bias.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::partials::Target;
use crate::row_codes::{RowCodes, store_codes, words};
use crate::rows::{Rows, plane_size, row_sums, total};
use cubecl::prelude::*;
use flow_cube::e4m3::is_native;

mod backward;

pub(crate) use backward::{
    NormBackwardKind, NormInputsCompilationArg, NormSizesCompilationArg, norm_backward,
};
use backward::{NormInputsLaunch, NormSizesLaunch};

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

/// What a backward pass takes and gives.
#[derive(Clone, Copy, Debug)]
pub struct NormGradients<'a> {
    /// What was normalised, `[B, S, D]`.
    pub x: &'a Buffer,
    /// `[B, K, D]`, of the type of `x`.
    pub modulation: &'a Buffer,
    /// Of [`ModulatedNorm::forward`], `[B, S, 2]` in f32.
    pub statistics: &'a Buffer,
    /// Gradient of the result, `[B, S, D]`.
    pub gradient: &'a Buffer,
    /// Another gradient of `x`, added to `dx` as if that were rounded and written first.
    pub added: Option<&'a Buffer>,
    /// Gradient of `x`.
    pub dx: &'a Buffer,
    /// Gradient of the modulation if asked for, `[B, K, D]` in f32 or the type of `x`: zeros but for shift and scale.
    pub dmodulation: Option<&'a Buffer>,
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
    store_codes::<N, M>(&values, codes, scales, row, lane, exists, native, rows);
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

    /// Gradients of the input, and of the modulation if asked for. Sums over tokens are f32, in an order that depends on their
    /// number alone.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn backward(&self, client: &Client, call: NormGradients<'_>) -> Result<(), Refused> {
        let NormGradients {
            x,
            modulation,
            statistics,
            gradient,
            added,
            dx,
            dmodulation,
        } = call;
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
