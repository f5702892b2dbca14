//! Tokens in the order of their experts, what experts made of them summed by token, and the gradients of both.

use super::indices;
use crate::Element;
use crate::buffer::{Buffer, Refusal, address_type, at_least_one, grid, width, with_type};
use crate::columns::THREADS;
use crate::rows::{Rows, plane_size, row_sums, total};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Sizes of what goes to experts and comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// `B · S`.
    pub tokens: usize,
    /// `K`.
    pub top_k: usize,
    /// Values of a token.
    pub channels: usize,
}

/// `y[row] = weight · x[token]`, the token and the weight being those of the row's slot.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn scatter_tokens<F: Float, N: Size>(
    x: &[Vector<F, N>],
    weights: &[f32],
    slots: &[u32],
    y: &mut [Vector<F, N>],
    rows: usize,
    top_k: usize,
    vectors: usize,
    #[comptime] weighted: bool,
) {
    let at = ABSOLUTE_POS;
    if at < rows * vectors {
        let slot = slots[at / vectors] as usize;
        let value = x[slot / top_k * vectors + at % vectors];
        if comptime!(weighted) {
            let weight = Vector::<f32, N>::new(weights[slot]);
            y[at] = Vector::cast_from(Vector::<f32, N>::cast_from(value) * weight);
        } else {
            y[at] = value;
        }
    }
}

/// `x[token] = Σ over its slots, in order, of weight · y[row]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn gather_rows<F: Float, N: Size>(
    y: &[Vector<F, N>],
    weights: &[f32],
    rows: &[u32],
    x: &mut [Vector<F, N>],
    tokens: usize,
    top_k: usize,
    vectors: usize,
    #[comptime] weighted: bool,
) {
    let at = ABSOLUTE_POS;
    if at < tokens * vectors {
        let first = at / vectors * top_k;
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for choice in 0..top_k {
            let slot = first + choice;
            let value = Vector::<f32, N>::cast_from(y[rows[slot] as usize * vectors + at % vectors]);
            if comptime!(weighted) {
                sum += Vector::<f32, N>::new(weights[slot]) * value;
            } else {
                sum += value;
            }
        }
        x[at] = Vector::cast_from(sum);
    }
}

/// `dweights[slot] = Σ y[row] · gradient[token]`: the threads of a row share a slot.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn weight_slopes<F: Float, N: Size>(
    y: &[Vector<F, N>],
    gradient: &[Vector<F, N>],
    rows_of_slots: &[u32],
    dweights: &mut [f32],
    slots: usize,
    top_k: usize,
    #[comptime] rows: Rows,
) {
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < slots;
    let slot = select(exists, asked, 0usize);
    let row = rows_of_slots[slot] as usize;
    let token = slot / top_k;
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        let at = select(inside, at, 0usize);
        let value = Vector::<f32, N>::cast_from(y[row * vectors + at]);
        let slope = Vector::<f32, N>::cast_from(gradient[token * vectors + at]);
        sum[0] += select(inside, total(value * slope), 0.0f32);
    }
    row_sums(&mut sum, &mut shared, 1usize, rows);
    if exists && lane == 0 {
        dweights[slot] = sum[0];
    }
}

impl Mix {
    fn slots(&self) -> usize {
        self.tokens * self.top_k
    }

    /// Checks the sizes, values by token, values by row, and the weights if there are any.
    fn check(
        &self,
        of_tokens: (&'static str, &Buffer),
        of_rows: (&'static str, &Buffer),
        weights: Option<&Buffer>,
    ) -> Result<(), Refusal> {
        at_least_one("tokens", self.tokens)?;
        at_least_one("top_k", self.top_k)?;
        at_least_one("channels", self.channels)?;
        of_tokens.1.expect(of_tokens.0, self.tokens * self.channels)?;
        let element = of_tokens.1.element;
        of_rows
            .1
            .expect_of(of_rows.0, self.slots() * self.channels, element)?;
        if let Some(weights) = weights {
            weights.expect_of("weights", self.slots(), Element::F32)?;
        }
        Ok(())
    }

    fn fill_rows(
        &self,
        client: &Client,
        x: &Buffer,
        weights: Option<&Buffer>,
        slots: &Handle,
        y: &Buffer,
    ) -> Result<(), Refusal> {
        let slots = indices("slots", slots, self.slots())?;
        let width = width(self.channels, x.element);
        let vectors = self.channels / width;
        // SAFETY: all lengths were checked; weights that are not there are not read.
        with_type!(x.element, F => unsafe {
            scatter_tokens::launch_unchecked::<F>(
                client,
                grid(client, (self.slots() * vectors).div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[y]),
                width,
                x.argument(),
                weights.unwrap_or(x).argument(),
                slots,
                y.argument(),
                self.slots(),
                self.top_k,
                vectors,
                weights.is_some(),
            );
        });
        Ok(())
    }

    fn fill_tokens(
        &self,
        client: &Client,
        y: &Buffer,
        weights: Option<&Buffer>,
        rows: &Handle,
        x: &Buffer,
    ) -> Result<(), Refusal> {
        let rows = indices("rows", rows, self.slots())?;
        let width = width(self.channels, x.element);
        let vectors = self.channels / width;
        // SAFETY: all lengths were checked; weights that are not there are not read.
        with_type!(x.element, F => unsafe {
            gather_rows::launch_unchecked::<F>(
                client,
                grid(client, (self.tokens * vectors).div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[y]),
                width,
                y.argument(),
                weights.unwrap_or(y).argument(),
                rows,
                x.argument(),
                self.tokens,
                self.top_k,
                vectors,
                weights.is_some(),
            );
        });
        Ok(())
    }

    /// `y [R, channels]`: the token of each row of `x [B · S, channels]`, of one type. `slots` is the slot of each row.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn permute(&self, client: &Client, x: &Buffer, slots: &Handle, y: &Buffer) -> Result<(), Refusal> {
        self.check(("x", x), ("y", y), None)?;
        self.fill_rows(client, x, None, slots, y)
    }

    /// `dx [B · S, channels]`: for each token the sum over its choices, in order, of `gradient [R, channels]`. `rows` is the
    /// row of each slot.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn permute_backward(
        &self,
        client: &Client,
        gradient: &Buffer,
        rows: &Handle,
        dx: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(("dx", dx), ("gradient", gradient), None)?;
        self.fill_tokens(client, gradient, None, rows, dx)
    }

    /// `x [B · S, channels]`: for each token the sum over its choices, in order, of `weights [R]`, f32 by slot, times `y [R,
    /// channels]`.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn combine(
        &self,
        client: &Client,
        y: &Buffer,
        weights: &Buffer,
        rows: &Handle,
        x: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(("x", x), ("y", y), Some(weights))?;
        self.fill_tokens(client, y, Some(weights), rows, x)
    }

    /// `dy [R, channels]`, the gradient of what [`combine`](Self::combine) sums.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn combine_backward(
        &self,
        client: &Client,
        gradient: &Buffer,
        weights: &Buffer,
        slots: &Handle,
        dy: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(("gradient", gradient), ("dy", dy), Some(weights))?;
        self.fill_rows(client, gradient, Some(weights), slots, dy)
    }

    /// `dweights [R]`, f32 by slot, the gradient of the weights of [`combine`](Self::combine).
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn weights_backward(
        &self,
        client: &Client,
        y: &Buffer,
        gradient: &Buffer,
        rows: &Handle,
        dweights: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(("gradient", gradient), ("y", y), Some(dweights))?;
        let rows = indices("rows", rows, self.slots())?;
        let width = width(self.channels, y.element);
        let division = Rows::several(self.channels, width, plane_size(client));
        // SAFETY: all lengths were checked.
        with_type!(y.element, F => unsafe {
            weight_slopes::launch_unchecked::<F>(
                client,
                grid(client, self.slots().div_ceil(division.groups)),
                CubeDim::new_1d(division.threads() as u32),
                address_type(&[y]),
                width,
                y.argument(),
                gradient.argument(),
                rows,
                dweights.argument(),
                self.slots(),
                self.top_k,
                division,
            );
        });
        Ok(())
    }
}
