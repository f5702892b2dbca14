//! A residual connection whose branch is gated per sample: adaLN-zero (Peebles and Xie 2022, arXiv:2212.09748).

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::{Columns, THREADS, fold, place};
use crate::partials::Target;
use cubecl::prelude::*;

/// Sizes of `residual + modulation[:, gate] · branch`, `[B, S, D]` and `[B, K, D]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// `B`.
    pub batch: usize,
    /// `S`.
    pub tokens: usize,
    /// `D`.
    pub channels: usize,
    /// `K`.
    pub chunks: usize,
    /// Which chunk is the gate.
    pub gate: usize,
}

/// Sizes of the forward kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GateForwardSizes {
    /// Tokens of all samples.
    pub rows: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Chunks of the modulation.
    pub chunks: usize,
    /// Which chunk is the gate.
    pub gate: usize,
    /// Vectors of a row.
    pub vectors: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn gate_forward<F: Float, N: Size>(
    residual: &[Vector<F, N>],
    branch: &[Vector<F, N>],
    modulation: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    sizes: &GateForwardSizes,
) {
    let at = ABSOLUTE_POS;
    if at < sizes.rows * sizes.vectors {
        let sample = at / sizes.vectors / sizes.tokens;
        let factor = Vector::<f32, N>::cast_from(
            modulation[(sample * sizes.chunks + sizes.gate) * sizes.vectors + at % sizes.vectors],
        );
        let added = Vector::<f32, N>::cast_from(residual[at]);
        y[at] = Vector::cast_from(added + factor * Vector::<f32, N>::cast_from(branch[at]));
    }
}

/// Sizes of the backward kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GateSizes {
    /// Samples.
    pub batch: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Chunks of the modulation.
    pub chunks: usize,
    /// Which chunk is the gate.
    pub gate: usize,
    /// Tokens of a piece.
    pub piece: usize,
}

/// Which gradients are asked for, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GateGradients {
    /// That of the branch.
    pub branch: bool,
    /// That of the gate.
    pub gate: bool,
}

/// `dbranch = gradient · gate` if it is wanted, and if the gate's gradient is, sums of `gradient · branch` over pieces of a sample's
/// tokens: `partials [B, pieces, D]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn gate_backward<F: Float, N: Size>(
    branch: &[Vector<F, N>],
    modulation: &[Vector<F, N>],
    gradient: &[Vector<F, N>],
    dbranch: &mut [Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    sizes: &GateSizes,
    #[comptime] wanted: GateGradients,
    #[comptime] columns: Columns,
) {
    let mut shared: Shared<[Vector<f32, N>]> =
        Shared::new_slice(comptime!(if wanted.gate { THREADS } else { 1 }));
    let blocks = comptime!(columns.blocks());
    let pieces = sizes.tokens.div_ceil(sizes.piece);
    let number = CUBE_POS / blocks;
    let sample = number / pieces;
    let first = number % pieces * sizes.piece;
    let (column, share) = place(CUBE_POS % blocks, columns);
    let end = min(first + sizes.piece, sizes.tokens);
    let exists = column < columns.vectors && sample < sizes.batch;
    let mut sums = Vector::<f32, N>::new(0.0f32);
    if exists {
        let factor = Vector::<f32, N>::cast_from(
            modulation[(sample * sizes.chunks + sizes.gate) * columns.vectors + column],
        );
        for step in 0..sizes.piece / columns.down {
            let token = first + step * columns.down + share;
            if token < end {
                let at = (sample * sizes.tokens + token) * columns.vectors + column;
                let slope = Vector::<f32, N>::cast_from(gradient[at]);
                if comptime!(wanted.branch) {
                    dbranch[at] = Vector::cast_from(slope * factor);
                }
                if comptime!(wanted.gate) {
                    sums += slope * Vector::<f32, N>::cast_from(branch[at]);
                }
            }
        }
    }
    if comptime!(wanted.gate) {
        let folded = fold::<N>(sums, &mut shared, columns);
        if share == 0 && exists {
            partials[number * columns.vectors + column] = folded;
        }
    }
}

/// Tokens of a sample whose sums one block makes: a function of their number and of the columns.
fn tokens_per_piece(tokens: usize, columns: Columns) -> usize {
    let per_thread = (tokens / (columns.down * 16)).next_power_of_two().clamp(4, 16);
    columns.down * per_thread
}

impl Gate {
    fn length(&self) -> usize {
        self.batch * self.tokens * self.channels
    }

    fn check(&self, branch: &Buffer, modulation: &Buffer) -> Result<Element, Refused> {
        at_least_one("channels", self.channels)?;
        at_least_one("chunks", self.chunks)?;
        if self.gate >= self.chunks {
            return Err(Refused::Size {
                name: "gate",
                found: self.gate,
                allowed: format!("0 to {}", self.chunks - 1),
            });
        }
        branch.expect("branch", self.length())?;
        modulation.expect_of(
            "modulation",
            self.batch * self.chunks * self.channels,
            branch.element,
        )?;
        Ok(branch.element)
    }

    /// `y`; all tensors of one type.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn forward(
        &self,
        client: &Client,
        residual: &Buffer,
        branch: &Buffer,
        modulation: &Buffer,
        y: &Buffer,
    ) -> Result<(), Refused> {
        let element = self.check(branch, modulation)?;
        residual.expect_of("residual", self.length(), element)?;
        y.expect_of("y", self.length(), element)?;
        if self.length() == 0 {
            return Ok(());
        }
        let width = width(self.channels, element);
        // SAFETY: all lengths were checked.
        with_type!(element, F => unsafe {
            gate_forward::launch_unchecked::<F>(
                client,
                grid(client, (self.length() / width).div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[branch, modulation]),
                width,
                residual.argument(),
                branch.argument(),
                modulation.argument(),
                y.argument(),
                GateForwardSizesLaunch::new(
                    self.batch * self.tokens,
                    self.tokens,
                    self.chunks,
                    self.gate,
                    self.channels / width,
                ),
            );
        });
        Ok(())
    }

    /// The gradients of the branch and of the modulation `[B, K, D]` (zeros but for the gate), as far as they are asked for;
    /// that of the residual is `gradient`. Sums over tokens are f32, in an order that depends on their number alone.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn backward(
        &self,
        client: &Client,
        branch: &Buffer,
        modulation: &Buffer,
        gradient: &Buffer,
        dbranch: Option<&Buffer>,
        dmodulation: Option<&Buffer>,
    ) -> Result<(), Refused> {
        let element = self.check(branch, modulation)?;
        gradient.expect_of("gradient", self.length(), element)?;
        if let Some(dbranch) = dbranch {
            dbranch.expect_of("dbranch", self.length(), element)?;
        }
        if let Some(dmodulation) = dmodulation {
            dmodulation.expect_of("dmodulation", modulation.length, element)?;
        }
        let width = width(self.channels, element);
        let columns = Columns::new(self.channels, width);
        let piece = tokens_per_piece(self.tokens, columns);
        let pieces = self.tokens.div_ceil(piece);
        let partial = match dmodulation {
            Some(_) => self.batch * pieces * self.channels,
            None => width,
        };
        let partials = Buffer::empty(client, partial.max(width), Element::F32);
        let unused = Buffer::empty(client, width, element);
        if self.length() > 0 && (dbranch.is_some() || dmodulation.is_some()) {
            // SAFETY: all lengths were checked.
            with_type!(element, F => unsafe {
                gate_backward::launch_unchecked::<F>(
                    client,
                    grid(client, self.batch * pieces * columns.blocks()),
                    CubeDim::new_1d(THREADS as u32),
                    address_type(&[branch, modulation, &partials]),
                    width,
                    branch.argument(),
                    modulation.argument(),
                    gradient.argument(),
                    dbranch.unwrap_or(&unused).argument(),
                    partials.argument(),
                    GateSizesLaunch::new(self.batch, self.tokens, self.chunks, self.gate, piece),
                    GateGradients {
                        branch: dbranch.is_some(),
                        gate: dmodulation.is_some(),
                    },
                    columns,
                );
            });
        }
        if let Some(dmodulation) = dmodulation.filter(|dmodulation| dmodulation.length > 0) {
            let target = Target {
                batch: self.batch,
                pieces,
                chunks: self.chunks,
                columns: self.channels,
                parts: [Some(self.gate), None],
            };
            target.add(client, &partials, dmodulation);
        }
        Ok(())
    }
}
