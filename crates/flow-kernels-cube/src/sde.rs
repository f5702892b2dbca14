//! One step of a stochastic sampler, the same step's log-probability in training, and distances of latents.
//!
//! `mean = a x + b v`, `x_next = mean + c noise`, `log_prob = mean over N of -(x_next - mean)² · k + offset`, with
//! `a, b, c, k, offset` per row. One function computes the mean of a step and of its log-probability, with fused
//! multiply-adds by name, and both read `x_next` and the mean from memory for the sum, so that no compiler rounds one of
//! them otherwise. Sums are f32: 16 values of a thread in order, a tree over the 256 threads of a piece, and likewise over
//! the pieces; a function of `N` alone.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::normals::{Drawn, Words, normal_values};
use cubecl::prelude::*;

/// Coefficients per row.
const COEFFICIENTS: usize = 5;
/// Threads of a block.
const THREADS: usize = 256;
/// Values of a piece.
const PIECE: usize = 16 * THREADS;

/// Sizes of latents `[rows, values]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latents {
    /// `B`.
    pub rows: usize,
    /// `N`.
    pub values: usize,
}

/// The sum over the threads of the block, for its first thread.
#[cube]
pub(crate) fn block_sum(value: f32) -> f32 {
    let mut shared: Shared<[f32]> = Shared::new_slice(THREADS);
    let mut sum = value;
    shared[UNIT_POS as usize] = sum;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(THREADS.trailing_zeros() as usize) {
        let half = comptime!(THREADS >> (step + 1));
        if (UNIT_POS as usize) < half {
            sum += shared[UNIT_POS as usize + half];
            shared[UNIT_POS as usize] = sum;
        }
        sync_cube();
    }
    sum
}

/// Where the noise of a step is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// There is no step: its outcome is asked for.
    None,
    /// Memory.
    Given,
    /// The step draws it.
    Drawn,
}

/// Sizes of a step, and what numbers it draws.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct StepDraw {
    /// The sample of each row.
    pub samples: &'static [u32],
    /// Rows.
    pub rows: usize,
    /// Vectors of a row.
    pub vectors: usize,
    /// Number of the draw: the step.
    pub draw: u32,
    /// Low half of the key.
    pub key_low: u32,
    /// High half of the key.
    pub key_high: u32,
}

/// Mean, and the next value of a step with noise.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn sde_mean<V: Float, N: Size>(
    x: &[Vector<f32, N>],
    v: &[Vector<V, N>],
    noise: &[Vector<f32, N>],
    coefficients: &[f32],
    mean: &mut [Vector<f32, N>],
    x_next: &mut [Vector<f32, N>],
    step: &StepDraw,
    #[comptime] source: Origin,
) {
    let at = ABSOLUTE_POS;
    if at < step.rows * step.vectors {
        let row = at / step.vectors;
        let a = Vector::<f32, N>::new(coefficients[row * COEFFICIENTS]);
        let b = Vector::<f32, N>::new(coefficients[row * COEFFICIENTS + 1]);
        let value = fma(a, x[at], b * Vector::<f32, N>::cast_from(v[at]));
        mean[at] = value;
        let c = Vector::<f32, N>::new(coefficients[row * COEFFICIENTS + 2]);
        if comptime!(source == Origin::Given) {
            x_next[at] = fma(c, noise[at], value);
        }
        if comptime!(source == Origin::Drawn) {
            let drawn = normal_values::<N>(
                step.samples,
                row,
                at % step.vectors,
                step.draw,
                step.key_low,
                step.key_high,
            );
            x_next[at] = fma(c, drawn, value);
        }
    }
}

/// Sums of the squared differences of `a` and `b` over pieces: `partials [B, pieces]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn squared_distance<A: Float, N: Size>(
    a: &[Vector<A, N>],
    b: &[Vector<f32, N>],
    partials: &mut [f32],
    rows: usize,
    vectors: usize,
) {
    let width = N::value();
    let piece_vectors = comptime!(PIECE / width);
    let pieces = vectors.div_ceil(piece_vectors);
    let row = CUBE_POS / pieces;
    let first = CUBE_POS % pieces * piece_vectors;
    let mut sum = 0.0f32;
    if row < rows {
        for step in 0..comptime!(PIECE / width / THREADS) {
            let at = first + step * THREADS + UNIT_POS as usize;
            if at < vectors {
                let at = row * vectors + at;
                let difference = Vector::<f32, N>::cast_from(a[at]) - b[at];
                #[unroll]
                for i in 0..N::value() {
                    sum = fma(difference.extract(i), difference.extract(i), sum);
                }
            }
        }
    }
    let sum = block_sum(sum);
    if UNIT_POS == 0 && row < rows {
        partials[CUBE_POS] = sum;
    }
}

/// For each row `offset - k · s / N` with `s` the sum of its partial sums, or `s / N` if `plain`. A block per row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn finish_rows(
    partials: &[f32],
    coefficients: &[f32],
    output: &mut [f32],
    rows: usize,
    pieces: usize,
    values: f32,
    #[comptime] plain: bool,
) {
    let row = CUBE_POS;
    let mut sum = 0.0f32;
    if row < rows {
        for step in 0..pieces.div_ceil(THREADS) {
            let at = step * THREADS + UNIT_POS as usize;
            if at < pieces {
                sum += partials[row * pieces + at];
            }
        }
    }
    let mean = block_sum(sum) / values;
    if UNIT_POS == 0 && row < rows {
        if comptime!(plain) {
            output[row] = mean;
        } else {
            let k = coefficients[row * COEFFICIENTS + 3];
            output[row] = fma(-mean, k, coefficients[row * COEFFICIENTS + 4]);
        }
    }
}

/// Sizes of latents in the backward kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct SdeBackwardSizes {
    /// Rows.
    pub rows: usize,
    /// Vectors of a row.
    pub vectors: usize,
    /// Values of a row.
    pub values: f32,
}

/// Which gradients there are, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SdeGradients {
    /// That of the log-probability.
    pub log_prob: bool,
    /// That of the mean.
    pub mean: bool,
}

/// `dv = b (2 k / N · dlog_prob · (x_next - mean) + dmean)`; absent gradients are zero.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn sde_backward<V: Float, N: Size>(
    mean: &[Vector<f32, N>],
    x_next: &[Vector<f32, N>],
    coefficients: &[f32],
    dlog_prob: &[f32],
    dmean: &[Vector<f32, N>],
    dv: &mut [Vector<V, N>],
    sizes: &SdeBackwardSizes,
    #[comptime] given: SdeGradients,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.rows * sizes.vectors {
        let row = at / sizes.vectors;
        let b = coefficients[row * COEFFICIENTS + 1];
        let mut slope = Vector::<f32, N>::new(0.0f32);
        if comptime!(given.log_prob) {
            let k = coefficients[row * COEFFICIENTS + 3];
            let factor = dlog_prob[row] * (2.0f32 * k / sizes.values) * b;
            slope = Vector::new(factor) * (x_next[at] - mean[at]);
        }
        if comptime!(given.mean) {
            slope += Vector::new(b) * dmean[at];
        }
        dv[at] = Vector::cast_from(slope);
    }
}

/// `da = 2 / N · gradient · (a - b)`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn distance_backward<A: Float, N: Size>(
    a: &[Vector<A, N>],
    b: &[Vector<f32, N>],
    gradient: &[f32],
    da: &mut [Vector<A, N>],
    rows: usize,
    vectors: usize,
    values: f32,
) {
    let at = ABSOLUTE_POS;
    if at < rows * vectors {
        let slope = Vector::<f32, N>::new(gradient[at / vectors] * (2.0f32 / values));
        da[at] = Vector::cast_from(slope * (Vector::<f32, N>::cast_from(a[at]) - b[at]));
    }
}

/// Operands of a step or of its log-probability.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Latents `[B, N]`, f32.
    pub x: &'a Buffer,
    /// Velocities `[B, N]` of any type.
    pub v: &'a Buffer,
    /// `[B, 5]`, f32: `a, b, c, k, offset` of each row.
    pub coefficients: &'a Buffer,
}

/// The noise of a step.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// `[B, N]`, f32.
    Given(&'a Buffer),
    /// Standard normal values that the step draws itself, a sample of each row: the same bits as if they were given. Where
    /// [`drawn_by`](crate::normals::drawn_by) says that the device can.
    Drawn(Drawn<'a>),
}

/// Results of a step: `mean [B, N]` and `log_prob [B]`, f32.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// Mean of the next latents' distribution.
    pub mean: &'a Buffer,
    /// Log-probability of the next latents, the mean over their values.
    pub log_prob: &'a Buffer,
}

impl Latents {
    fn length(&self) -> usize {
        self.rows * self.values
    }

    fn pieces(&self) -> usize {
        self.values.div_ceil(PIECE)
    }

    /// Vectors of 4, 2 or 1 values, whatever the type of the velocities.
    fn width(&self) -> usize {
        width(self.values, Element::F32)
    }

    fn blocks(&self, client: &Client) -> CubeCount {
        grid(client, (self.length() / self.width()).div_ceil(THREADS))
    }

    fn forward(
        &self,
        client: &Client,
        step: Step<'_>,
        noise: Option<Noise<'_>>,
        x_next: &Buffer,
        outcome: Outcome<'_>,
    ) -> Result<(), Refused> {
        at_least_one("values", self.values)?;
        step.x.expect_of("x", self.length(), Element::F32)?;
        step.v.expect("v", self.length())?;
        step.coefficients
            .expect_of("coefficients", self.rows * COEFFICIENTS, Element::F32)?;
        x_next.expect_of("x_next", self.length(), Element::F32)?;
        outcome.mean.expect_of("mean", self.length(), Element::F32)?;
        outcome.log_prob.expect_of("log_prob", self.rows, Element::F32)?;
        let (source, given, drawn) = match noise {
            None => (Origin::None, None, None),
            Some(Noise::Given(noise)) => {
                noise.expect_of("noise", self.length(), Element::F32)?;
                (Origin::Given, Some(noise), None)
            }
            Some(Noise::Drawn(drawn)) => (Origin::Drawn, None, Some(drawn.checked(client, self.rows)?)),
        };
        if self.rows == 0 {
            return Ok(());
        }
        let width = self.width();
        let unused = Buffer::empty(client, width, Element::F32);
        let words = drawn.as_ref().map_or(Words::default(), Drawn::words);
        let taken = if noise.is_some() { x_next } else { &unused };
        // SAFETY: all lengths were checked.
        with_type!(step.v.element, V => unsafe {
            sde_mean::launch_unchecked::<V>(
                client,
                self.blocks(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[step.x]),
                width,
                step.x.argument(),
                step.v.argument(),
                given.unwrap_or(step.x).argument(),
                step.coefficients.argument(),
                outcome.mean.argument(),
                taken.argument(),
                StepDrawLaunch::new(
                    drawn.map_or_else(|| step.coefficients.argument(), |drawn| drawn.samples(client)),
                    self.rows,
                    self.values / width,
                    words.step,
                    words.key[0],
                    words.key[1],
                ),
                source,
            );
        });
        self.mean_squares(
            client,
            x_next,
            outcome.mean,
            Some(step.coefficients),
            outcome.log_prob,
        );
        Ok(())
    }

    /// Means of the squared differences of `a` and `b`, or log-probabilities by `coefficients`.
    fn mean_squares(
        &self,
        client: &Client,
        a: &Buffer,
        b: &Buffer,
        coefficients: Option<&Buffer>,
        output: &Buffer,
    ) {
        let (width, blocks) = (self.width(), self.rows * self.pieces());
        let partials = Buffer::empty(client, blocks, Element::F32);
        // SAFETY: `forward` or `distance` checked all lengths.
        with_type!(a.element, A => unsafe {
            squared_distance::launch_unchecked::<A>(
                client,
                grid(client, blocks),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[a]),
                width,
                a.argument(),
                b.argument(),
                partials.argument(),
                self.rows,
                self.values / width,
            );
        });
        // SAFETY: likewise.
        unsafe {
            finish_rows::launch_unchecked(
                client,
                grid(client, self.rows),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[&partials]),
                partials.argument(),
                coefficients.unwrap_or(&partials).argument(),
                output.argument(),
                self.rows,
                self.pieces(),
                self.values as f32,
                coefficients.is_none(),
            );
        }
    }

    /// Takes a step: `x_next [B, N]`, f32, from noise, and its outcome.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit, or where the device cannot draw.
    ///
    /// # Panics
    /// If the step of noise that is drawn is 2^24 or more.
    pub fn step(
        &self,
        client: &Client,
        step: Step<'_>,
        noise: Noise<'_>,
        x_next: &Buffer,
        outcome: Outcome<'_>,
    ) -> Result<(), Refused> {
        self.forward(client, step, Some(noise), x_next, outcome)
    }

    /// The outcome of a step that gave `x_next`: the bits of [`step`](Self::step).
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn log_prob(
        &self,
        client: &Client,
        step: Step<'_>,
        x_next: &Buffer,
        outcome: Outcome<'_>,
    ) -> Result<(), Refused> {
        self.forward(client, step, None, x_next, outcome)
    }

    /// The gradient of the velocities, of any type, from those of `log_prob [B]` and of `mean [B, N]`, as far as they are
    /// there.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    #[allow(clippy::too_many_arguments)]
    pub fn log_prob_backward(
        &self,
        client: &Client,
        mean: &Buffer,
        x_next: &Buffer,
        coefficients: &Buffer,
        dlog_prob: Option<&Buffer>,
        dmean: Option<&Buffer>,
        dv: &Buffer,
    ) -> Result<(), Refused> {
        at_least_one("values", self.values)?;
        mean.expect_of("mean", self.length(), Element::F32)?;
        x_next.expect_of("x_next", self.length(), Element::F32)?;
        coefficients.expect_of("coefficients", self.rows * COEFFICIENTS, Element::F32)?;
        if let Some(dlog_prob) = dlog_prob {
            dlog_prob.expect_of("dlog_prob", self.rows, Element::F32)?;
        }
        if let Some(dmean) = dmean {
            dmean.expect_of("dmean", self.length(), Element::F32)?;
        }
        dv.expect("dv", self.length())?;
        if self.rows == 0 {
            return Ok(());
        }
        let width = self.width();
        // SAFETY: all lengths were checked; what is absent is not read.
        with_type!(dv.element, V => unsafe {
            sde_backward::launch_unchecked::<V>(
                client,
                self.blocks(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[mean]),
                width,
                mean.argument(),
                x_next.argument(),
                coefficients.argument(),
                dlog_prob.unwrap_or(coefficients).argument(),
                dmean.unwrap_or(mean).argument(),
                dv.argument(),
                SdeBackwardSizesLaunch::new(self.rows, self.values / width, self.values as f32),
                SdeGradients {
                    log_prob: dlog_prob.is_some(),
                    mean: dmean.is_some(),
                },
            );
        });
        Ok(())
    }

    /// `distance [B]`, f32: the mean over N of `(a - b)²`; `a` of any type, `b` f32.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn distance(
        &self,
        client: &Client,
        a: &Buffer,
        b: &Buffer,
        distance: &Buffer,
    ) -> Result<(), Refused> {
        at_least_one("values", self.values)?;
        a.expect("a", self.length())?;
        b.expect_of("b", self.length(), Element::F32)?;
        distance.expect_of("distance", self.rows, Element::F32)?;
        if self.rows == 0 {
            return Ok(());
        }
        self.mean_squares(client, a, b, None, distance);
        Ok(())
    }

    /// `da [B, N]`, of the type of `a`, from the `gradient [B]` of the distance.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn distance_backward(
        &self,
        client: &Client,
        a: &Buffer,
        b: &Buffer,
        gradient: &Buffer,
        da: &Buffer,
    ) -> Result<(), Refused> {
        at_least_one("values", self.values)?;
        a.expect("a", self.length())?;
        b.expect_of("b", self.length(), Element::F32)?;
        gradient.expect_of("gradient", self.rows, Element::F32)?;
        da.expect_of("da", self.length(), a.element)?;
        if self.rows == 0 {
            return Ok(());
        }
        let width = self.width();
        // SAFETY: all lengths were checked.
        with_type!(a.element, A => unsafe {
            distance_backward::launch_unchecked::<A>(
                client,
                self.blocks(client),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[a]),
                width,
                a.argument(),
                b.argument(),
                gradient.argument(),
                da.argument(),
                self.rows,
                self.values / width,
                self.values as f32,
            );
        });
        Ok(())
    }
}
