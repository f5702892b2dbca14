//! Elementwise activations, as rows of numbers or of FP8 codes, and their gradients together with those of a bias before them.

// Conditions of kernels that are known when they are compiled stay apart from those that are not.
#![allow(clippy::collapsible_if)]

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::{Columns, THREADS, fold, place, rows_per_piece};
use crate::partials::Target;
use crate::row_codes::{RowCodes, store_codes, words};
use crate::rows::{Rows, plane_size};
use cubecl::prelude::*;
pub use flow_cube::activation::Activation;
use flow_cube::activation::{Arithmetic, activate, derivative};
use flow_cube::e4m3::is_native;

/// `activation(x)` of each.
#[cube]
pub(crate) fn activate_each<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: Activation,
    #[comptime] arithmetic: Arithmetic,
) -> Vector<f32, N> {
    let width = N::value();
    let mut y = x;
    #[unroll]
    for i in 0..width {
        y.insert(i, activate(x.extract(i), activation, arithmetic));
    }
    y
}

/// The derivative of each.
#[cube]
fn derivative_each<N: Size>(
    x: Vector<f32, N>,
    #[comptime] activation: Activation,
    #[comptime] arithmetic: Arithmetic,
) -> Vector<f32, N> {
    let width = N::value();
    let mut y = x;
    #[unroll]
    for i in 0..width {
        y.insert(i, derivative(x.extract(i), activation, arithmetic));
    }
    y
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn activation_forward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    vectors: usize,
    #[comptime] activation: Activation,
    #[comptime] arithmetic: Arithmetic,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let x = Vector::cast_from(x[at]);
        y[at] = Vector::cast_from(activate_each::<N>(x, activation, arithmetic));
    }
}

/// What the kernel that makes rows as codes computes, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ActivationCodesKind {
    /// The function.
    pub activation: Activation,
    /// How precisely it is computed.
    pub arithmetic: Arithmetic,
    /// Whether the rows are stored as they are, too.
    pub stores_rows: bool,
    /// Whether the device converts to e4m3 itself.
    pub native: bool,
    /// Shape of the block.
    pub rows: Rows,
}

/// `y = activation(x)` as codes with a scale for each row, and as it is if `stores_rows`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn activation_codes<F: Float, N: Size, M: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    codes: &mut [Vector<u32, M>],
    scales: &mut [f32],
    row_count: usize,
    #[comptime] kind: ActivationCodesKind,
) {
    let activation = comptime!(kind.activation);
    let arithmetic = comptime!(kind.arithmetic);
    let rows = comptime!(kind.rows);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < row_count;
    let row = select(exists, asked, 0usize);
    let mut values = Array::<Vector<f32, N>>::new(held);
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        let value = Vector::<f32, N>::cast_from(x[row * vectors + select(inside, at, 0usize)]);
        let stored = Vector::<F, N>::cast_from(activate_each::<N>(value, activation, arithmetic));
        if comptime!(kind.stores_rows) {
            if exists && inside {
                y[row * vectors + at] = stored;
            }
        }
        // Threads behind the row's end have its first vector, and count as zeros.
        values[i] = select(inside, Vector::<f32, N>::cast_from(stored), Vector::new(0.0f32));
    }
    store_codes::<N, M>(
        &values,
        codes,
        scales,
        row,
        lane,
        exists,
        comptime!(kind.native),
        rows,
    );
}

/// What the backward kernel computes, known at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ActivationBackwardKind {
    /// The function, if there is one.
    pub activation: Option<Activation>,
    /// How precisely its derivative is computed.
    pub arithmetic: Arithmetic,
    /// Whether sums over rows are asked for.
    pub sum: bool,
    /// Columns of a block.
    pub columns: Columns,
}

/// `dx = gradient · activation'(x)` if there is an activation, and sums of it over pieces of rows if `sum`: `partials [pieces, D]`.
/// Without an activation the sums are those of the gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn activation_backward<F: Float, N: Size>(
    x: &[Vector<F, N>],
    gradient: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    rows: usize,
    piece: usize,
    #[comptime] kind: ActivationBackwardKind,
) {
    let activation = comptime!(kind.activation);
    let arithmetic = comptime!(kind.arithmetic);
    let sum = comptime!(kind.sum);
    let columns = comptime!(kind.columns);
    let mut shared: Shared<[Vector<f32, N>]> = Shared::new_slice(comptime!(if sum { THREADS } else { 1 }));
    let blocks = comptime!(columns.blocks());
    let number = CUBE_POS / blocks;
    let (column, share) = place(CUBE_POS % blocks, columns);
    let end = min((number + 1) * piece, rows);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    if column < columns.vectors {
        for step in 0..piece / columns.down {
            let row = number * piece + step * columns.down + share;
            if row < end {
                let at = row * columns.vectors + column;
                let mut slope = Vector::<f32, N>::cast_from(gradient[at]);
                if comptime!(activation.is_some()) {
                    let function = comptime!(activation.unwrap_or(Activation::Silu));
                    slope *= derivative_each::<N>(Vector::cast_from(x[at]), function, arithmetic);
                    let rounded = Vector::<F, N>::cast_from(slope);
                    dx[at] = rounded;
                    slope = Vector::cast_from(rounded);
                }
                sums += slope;
            }
        }
    }
    if comptime!(sum) {
        let folded = fold::<N>(sums, &mut shared, columns);
        if share == 0 && column < columns.vectors && number * piece < rows {
            partials[number * columns.vectors + column] = folded;
        }
    }
}

/// `y = activation(x)`.
///
/// # Errors
/// [`Refused`] if a tensor does not fit.
pub fn forward(client: &Client, x: &Buffer, y: &Buffer, activation: Activation) -> Result<(), Refused> {
    y.expect_of("y", x.length, x.element)?;
    if x.length == 0 {
        return Ok(());
    }
    let width = width(x.length, x.element);
    let vectors = x.length / width;
    // SAFETY: all lengths were checked.
    with_type!(x.element, F => unsafe {
        activation_forward::launch_unchecked::<F>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[x]),
            width,
            x.argument(),
            y.argument(),
            vectors,
            activation,
            Arithmetic::of(client, x.element),
        );
    });
    Ok(())
}

/// What [`forward`] gives as `y` of rows of `columns` values, as codes, and as it is where there is a `y`. The codes are those of the
/// rows as they would be stored: see [`row_codes`](crate::row_codes).
///
/// # Errors
/// [`Refused`] if a tensor does not fit, or if [`RowCodes::fits`] says that the columns do not.
pub fn forward_codes(
    client: &Client,
    x: &Buffer,
    columns: usize,
    y: Option<&Buffer>,
    codes: &RowCodes,
    activation: Activation,
) -> Result<(), Refused> {
    at_least_one("columns", columns)?;
    let (element, shape) = (x.element, [x.length / columns, columns]);
    let [row_count, _] = shape;
    x.expect("x", row_count * columns)?;
    if let Some(y) = y {
        y.expect_of("y", x.length, element)?;
    }
    codes.check(shape)?;
    if x.length == 0 {
        return Ok(());
    }
    let width = width(columns, element);
    let rows = Rows::several(columns, width, plane_size(client));
    let unused = Buffer::empty(client, width, element);
    let [code_words, scales] = codes.arguments(shape);
    // SAFETY: all lengths were checked; `y` is not written unless there is one.
    with_type!(element, F => unsafe {
        activation_codes::launch_unchecked::<F>(
            client,
            grid(client, row_count.div_ceil(rows.groups)),
            CubeDim::new_1d(rows.threads() as u32),
            address_type(&[x]),
            width,
            words(width),
            x.argument(),
            y.unwrap_or(&unused).argument(),
            code_words,
            scales,
            row_count,
            ActivationCodesKind {
                activation,
                arithmetic: Arithmetic::of(client, element),
                stores_rows: y.is_some(),
                native: is_native(client),
                rows,
            },
        );
    });
    Ok(())
}

/// Of rows of `columns` values: `dx = gradient · activation'(x)`, as stored, and `dbias [columns]`, its sum over all rows
/// in an order that depends on their number alone. Without activation, `dx` is `gradient` and neither `x` nor `dx` is used.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// Values of a row.
    pub columns: usize,
    /// The function, if there is one.
    pub activation: Option<Activation>,
    /// What it was applied to; ignored without a function.
    pub x: Option<&'a Buffer>,
    /// Gradient of its result.
    pub gradient: &'a Buffer,
    /// Gradient of `x`; ignored without a function.
    pub dx: Option<&'a Buffer>,
    /// Sum of `dx` over the rows, if wanted; of any type.
    pub dbias: Option<&'a Buffer>,
}

/// Computes [`Backward`].
///
/// # Errors
/// [`Refused`] if a tensor does not fit or is missing.
pub fn backward(client: &Client, call: Backward<'_>) -> Result<(), Refused> {
    let Backward {
        columns,
        activation,
        gradient,
        dbias,
        ..
    } = call;
    at_least_one("columns", columns)?;
    let (length, element) = (gradient.length, gradient.element);
    let rows = length / columns;
    gradient.expect("gradient", rows * columns)?;
    if let Some(dbias) = dbias {
        dbias.expect("dbias", columns)?;
    }
    let width = width(columns, element);
    let layout = Columns::new(columns, width);
    let piece = rows_per_piece(rows, layout);
    let pieces = rows.div_ceil(piece);
    let partial = if dbias.is_some() { pieces * columns } else { width };
    let partials = Buffer::empty(client, partial.max(width), Element::F32);
    let unused = Buffer::empty(client, width, element);
    let (x, dx) = match activation {
        None => (gradient, &unused),
        Some(_) => {
            let x = call.x.unwrap_or(&unused);
            let dx = call.dx.unwrap_or(&unused);
            x.expect_of("x", length, element)?;
            dx.expect_of("dx", length, element)?;
            (x, dx)
        }
    };
    if rows > 0 {
        // SAFETY: all lengths were checked.
        with_type!(element, F => unsafe {
            activation_backward::launch_unchecked::<F>(
                client,
                grid(client, pieces * layout.blocks()),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[gradient, &partials]),
                width,
                x.argument(),
                gradient.argument(),
                dx.argument(),
                partials.argument(),
                rows,
                piece,
                ActivationBackwardKind {
                    activation,
                    arithmetic: Arithmetic::of(client, element),
                    sum: dbias.is_some(),
                    columns: layout,
                },
            );
        });
    }
    if let Some(dbias) = dbias {
        Target::row(pieces, columns).add(client, &partials, dbias);
    }
    Ok(())
}
