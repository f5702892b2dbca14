//! RMS norm over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467), with a rotary embedding after it if asked for:
//! what queries and keys go through, in one pass. What passes between the two is rounded as if it were stored, so that one pass
//! has the bits of two.

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::{Columns, THREADS, fold, place, rows_per_piece};
use crate::partials::Target;
use crate::rotary::{RotaryTables, RotaryTablesLaunch, rotate};
use crate::rows::{Rows, plane_size, row_sums, total};
use cubecl::prelude::*;

/// Sizes of `x / sqrt(mean(x²) + epsilon) · weight` over rows of `channels` values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Product of all axes but the last.
    pub rows: usize,
    /// Values of a row.
    pub channels: usize,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// Tables of a rotary embedding of what was normalised: `x` is `[B, tokens, heads, head_dim]`, and a row of the norm is a head
/// or several whole heads of a token.
#[derive(Clone, Copy, Debug)]
pub struct RotaryAfterNorm<'a> {
    /// `S`.
    pub tokens: usize,
    /// `H`.
    pub heads: usize,
    /// `D`, even.
    pub head_dim: usize,
    /// Cosines `[S, D / 2]`, f32.
    pub cos: &'a Buffer,
    /// Sines, likewise.
    pub sin: &'a Buffer,
}

/// What a backward pass takes and gives.
#[derive(Clone, Copy, Debug)]
pub struct RmsGradients<'a> {
    /// What was normalised.
    pub x: &'a Buffer,
    /// The weight of each channel, if there is one.
    pub weight: Option<&'a Buffer>,
    /// The rotation after the norm, if there is one.
    pub turn: Option<RotaryAfterNorm<'a>>,
    /// Of [`RmsNorm::forward`], one for each row in f32.
    pub reciprocals: &'a Buffer,
    /// Gradient of the result.
    pub gradient: &'a Buffer,
    /// Gradient of `x`, if asked for.
    pub dx: Option<&'a Buffer>,
    /// Gradient of the weight, if asked for; of any type.
    pub dweight: Option<&'a Buffer>,
}

/// `at % turn` of a thread's vectors, which are `lanes` apart: one number for all of them where heads are whole in `lanes`.
#[cube]
fn place_in_head(at: usize, lane: usize, #[comptime] lanes: usize, #[comptime] turn: usize) -> usize {
    if comptime!(lanes.is_multiple_of(turn)) {
        lane % turn
    } else {
        at % turn
    }
}

/// Numbers of rows.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RmsSizes {
    /// Rows.
    pub row_count: usize,
    /// Tokens of a sample.
    pub tokens: usize,
    /// Rows of a token.
    pub rows_of_token: usize,
}

/// What is known of a norm at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RmsKind {
    /// Whether there is a weight.
    pub weighted: bool,
    /// Vectors of a head, 0 without a rotation.
    pub turn: usize,
    /// Shape of the block.
    pub rows: Rows,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn rms_forward<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    tables: &RotaryTables,
    y: &mut [Vector<F, N>],
    reciprocals: &mut [f32],
    sizes: &RmsSizes,
    epsilon: f32,
    #[comptime] kind: RmsKind,
) {
    let weighted = comptime!(kind.weighted);
    let turn = comptime!(kind.turn);
    let rows = comptime!(kind.rows);
    let width = N::value();
    let pairs = comptime!(width / 2);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < sizes.row_count;
    let row = select(exists, asked, 0usize);
    let mut values = Array::<Vector<f32, N>>::new(held);
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        let value = Vector::<f32, N>::cast_from(x[row * vectors + select(inside, at, 0usize)]);
        values[i] = value;
        sum[0] += select(inside, total(value * value), 0.0f32);
    }
    row_sums(&mut sum, &mut shared, 1usize, rows);
    let reciprocal = 1.0f32 / (sum[0] / comptime!(rows.columns as f32) + epsilon).sqrt();
    if exists {
        #[unroll]
        for i in 0..held {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                let mut result = values[i] * Vector::new(reciprocal);
                if comptime!(weighted) {
                    result *= Vector::<f32, N>::cast_from(weight[at]);
                }
                if comptime!(turn > 0) {
                    let first = (row / sizes.rows_of_token % sizes.tokens * turn
                        + place_in_head(at, lane, rows.threads_per_row, turn))
                        * pairs;
                    let stored = Vector::<F, N>::cast_from(result);
                    result = rotate::<N>(Vector::cast_from(stored), tables.cos, tables.sin, first, 1.0f32);
                }
                y[row * vectors + at] = Vector::cast_from(result);
            }
        }
        if lane == 0 {
            reciprocals[row] = reciprocal;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn rms_backward<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    tables: &RotaryTables,
    reciprocals: &[f32],
    gradient: &[Vector<F, N>],
    dx: &mut [Vector<F, N>],
    sizes: &RmsSizes,
    #[comptime] kind: RmsKind,
) {
    let weighted = comptime!(kind.weighted);
    let turn = comptime!(kind.turn);
    let rows = comptime!(kind.rows);
    let width = N::value();
    let pairs = comptime!(width / 2);
    let held = comptime!(rows.held());
    let vectors = comptime!(rows.vectors());
    let mut shared: Shared<[f32]> = Shared::new_slice(comptime!(rows.shared(1)));
    let lane = UNIT_POS as usize % rows.threads_per_row;
    let asked = CUBE_POS * rows.groups + UNIT_POS as usize / rows.threads_per_row;
    let exists = asked < sizes.row_count;
    let row = select(exists, asked, 0usize);
    let reciprocal = reciprocals[row];
    let mut normed = Array::<Vector<f32, N>>::new(held);
    let mut slopes = Array::<Vector<f32, N>>::new(held);
    let mut sum = Array::<f32>::new(1usize);
    sum[0] = 0.0f32;
    #[unroll]
    for i in 0..held {
        let at = lane + comptime!(i * rows.threads_per_row);
        let inside = at < vectors;
        let at = select(inside, at, 0usize);
        let value = Vector::<f32, N>::cast_from(x[row * vectors + at]) * Vector::new(reciprocal);
        let mut slope = Vector::<f32, N>::cast_from(gradient[row * vectors + at]);
        if comptime!(turn > 0) {
            let first = (row / sizes.rows_of_token % sizes.tokens * turn
                + place_in_head(at, lane, rows.threads_per_row, turn))
                * pairs;
            let stored =
                Vector::<F, N>::cast_from(rotate::<N>(slope, tables.cos, tables.sin, first, -1.0f32));
            slope = Vector::cast_from(stored);
        }
        if comptime!(weighted) {
            slope *= Vector::<f32, N>::cast_from(weight[at]);
        }
        normed[i] = value;
        slopes[i] = slope;
        sum[0] += select(inside, total(value * slope), 0.0f32);
    }
    row_sums(&mut sum, &mut shared, 1usize, rows);
    let along = sum[0] / comptime!(rows.columns as f32);
    if exists {
        #[unroll]
        for i in 0..held {
            let at = lane + comptime!(i * rows.threads_per_row);
            if at < vectors {
                let result = (slopes[i] - normed[i] * Vector::new(along)) * Vector::new(reciprocal);
                dx[row * vectors + at] = Vector::cast_from(result);
            }
        }
    }
}

/// What is known of the weight's gradient at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RmsWeightKind {
    /// Vectors of a head, 0 without a rotation.
    pub turn: usize,
    /// Columns of a block.
    pub columns: Columns,
}

/// Sums over pieces of rows of `gradient · x · reciprocal`: `partials [pieces, D]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn rms_weight<F: Float, N: Size>(
    x: &[Vector<F, N>],
    tables: &RotaryTables,
    reciprocals: &[f32],
    gradient: &[Vector<F, N>],
    partials: &mut [Vector<f32, N>],
    sizes: &RmsSizes,
    piece: usize,
    #[comptime] kind: RmsWeightKind,
) {
    let turn = comptime!(kind.turn);
    let columns = comptime!(kind.columns);
    let mut shared: Shared<[Vector<f32, N>]> = Shared::new_slice(THREADS);
    let width = N::value();
    let pairs = comptime!(width / 2);
    let blocks = comptime!(columns.blocks());
    let number = CUBE_POS / blocks;
    let (column, share) = place(CUBE_POS % blocks, columns);
    let end = min((number + 1) * piece, sizes.row_count);
    let mut sums = Vector::<f32, N>::new(0.0f32);
    if column < columns.vectors {
        for step in 0..piece / columns.down {
            let row = number * piece + step * columns.down + share;
            if row < end {
                let at = row * columns.vectors + column;
                let mut slope = Vector::<f32, N>::cast_from(gradient[at]);
                if comptime!(turn > 0) {
                    let first = (row / sizes.rows_of_token % sizes.tokens * turn + column % turn) * pairs;
                    let stored =
                        Vector::<F, N>::cast_from(rotate::<N>(slope, tables.cos, tables.sin, first, -1.0f32));
                    slope = Vector::cast_from(stored);
                }
                sums += slope * Vector::<f32, N>::cast_from(x[at]) * Vector::new(reciprocals[row]);
            }
        }
    }
    let folded = fold::<N>(sums, &mut shared, columns);
    if share == 0 && column < columns.vectors && number * piece < sizes.row_count {
        partials[number * columns.vectors + column] = folded;
    }
}

/// What a call reads besides its rows: the weight, and the tables or what stands for them.
struct Read<'a> {
    weight: &'a Buffer,
    weighted: bool,
    tokens: usize,
    rows_of_token: usize,
    tables: [&'a Buffer; 2],
    /// Values of a head, if it is turned.
    head_dim: Option<usize>,
}

impl Read<'_> {
    /// Vectors of a head, 0 without a rotation.
    fn turn(&self, width: usize) -> usize {
        self.head_dim.map_or(0, |head_dim| head_dim / width)
    }
}

impl RmsNorm {
    fn length(&self) -> usize {
        self.rows * self.channels
    }

    fn read<'a>(
        &self,
        x: &'a Buffer,
        weight: Option<&'a Buffer>,
        turn: Option<RotaryAfterNorm<'a>>,
        reciprocals: &'a Buffer,
    ) -> Result<Read<'a>, Refused> {
        at_least_one("channels", self.channels)?;
        x.expect("x", self.length())?;
        reciprocals.expect_of("reciprocals", self.rows, Element::F32)?;
        if let Some(weight) = weight {
            weight.expect("weight", self.channels)?;
        }
        if let Some(turn) = turn {
            for (name, size) in [
                ("tokens", turn.tokens),
                ("heads", turn.heads),
                ("head_dim", turn.head_dim),
            ] {
                at_least_one(name, size)?;
            }
            let of_token = turn.heads * turn.head_dim;
            if !turn.head_dim.is_multiple_of(2)
                || !self.channels.is_multiple_of(turn.head_dim)
                || !of_token.is_multiple_of(self.channels)
                || !self.length().is_multiple_of(turn.tokens * of_token)
            {
                return Err(Refused::Size {
                    name: "channels",
                    found: self.channels,
                    allowed: "whole heads of even size, whole rows in a token, and whole samples of tokens"
                        .into(),
                });
            }
            for (name, table) in [("cos", turn.cos), ("sin", turn.sin)] {
                table.expect_of(name, turn.tokens * turn.head_dim / 2, Element::F32)?;
            }
        }
        Ok(Read {
            weight: weight.unwrap_or(x),
            weighted: weight.is_some(),
            tokens: turn.map_or(1, |turn| turn.tokens),
            rows_of_token: turn.map_or(1, |turn| turn.heads * turn.head_dim / self.channels),
            tables: turn.map_or([reciprocals, reciprocals], |turn| [turn.cos, turn.sin]),
            head_dim: turn.map(|turn| turn.head_dim),
        })
    }

    fn width(&self, read: &Read<'_>, element: Element) -> usize {
        // Heads are whole in a row, so what divides one divides the row.
        let values = read.head_dim.unwrap_or(self.channels);
        width(values, element).min(width(values, read.weight.element))
    }

    /// `y`, of the type of `x`, and `reciprocals [rows]`, the reciprocal root of each row's mean square in f32. `weight
    /// [channels]` is of any type.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn forward(
        &self,
        client: &Client,
        x: &Buffer,
        weight: Option<&Buffer>,
        turn: Option<RotaryAfterNorm<'_>>,
        y: &Buffer,
        reciprocals: &Buffer,
    ) -> Result<(), Refused> {
        let read = self.read(x, weight, turn, reciprocals)?;
        y.expect_of("y", x.length, x.element)?;
        if x.length == 0 {
            return Ok(());
        }
        let unused = Buffer::empty(client, 1, Element::F32);
        let tables = match read.head_dim {
            Some(_) => read.tables,
            None => [&unused; 2],
        };
        let width = self.width(&read, x.element);
        let rows = Rows::several(self.channels, width, plane_size(client));
        // SAFETY: all lengths were checked.
        with_type!(x.element, F => with_type!(read.weight.element, W => unsafe {
            rms_forward::launch_unchecked::<F, W>(
                client,
                grid(client, self.rows.div_ceil(rows.groups)),
                CubeDim::new_1d(rows.threads() as u32),
                address_type(&[x]),
                width,
                x.argument(),
                read.weight.argument(),
                RotaryTablesLaunch::new(tables[0].argument(), tables[1].argument()),
                y.argument(),
                reciprocals.argument(),
                RmsSizesLaunch::new(self.rows, read.tokens, read.rows_of_token),
                self.epsilon,
                RmsKind { weighted: read.weighted, turn: read.turn(width), rows },
            );
        }));
        Ok(())
    }

    /// The gradients of `x` and of the weight, as far as they are asked for. The latter is a sum over all rows
    /// in f32, in an order that depends on their number alone.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn backward(&self, client: &Client, call: RmsGradients<'_>) -> Result<(), Refused> {
        let RmsGradients {
            x,
            weight,
            turn,
            reciprocals,
            gradient,
            dx,
            dweight,
        } = call;
        let read = self.read(x, weight, turn, reciprocals)?;
        gradient.expect_of("gradient", x.length, x.element)?;
        if let Some(dx) = dx {
            dx.expect_of("dx", x.length, x.element)?;
        }
        if let Some(dweight) = dweight {
            dweight.expect("dweight", self.channels)?;
        }
        let width = self.width(&read, x.element);
        if let Some(dx) = dx.filter(|dx| dx.length > 0) {
            let rows = Rows::several(self.channels, width, plane_size(client));
            // SAFETY: all lengths were checked.
            with_type!(x.element, F => with_type!(read.weight.element, W => unsafe {
                rms_backward::launch_unchecked::<F, W>(
                    client,
                    grid(client, self.rows.div_ceil(rows.groups)),
                    CubeDim::new_1d(rows.threads() as u32),
                    address_type(&[x]),
                    width,
                    x.argument(),
                    read.weight.argument(),
                    RotaryTablesLaunch::new(read.tables[0].argument(), read.tables[1].argument()),
                    reciprocals.argument(),
                    gradient.argument(),
                    dx.argument(),
                    RmsSizesLaunch::new(self.rows, read.tokens, read.rows_of_token),
                    RmsKind { weighted: read.weighted, turn: read.turn(width), rows },
                );
            }));
        }
        let Some(dweight) = dweight else {
            return Ok(());
        };
        let columns = Columns::new(self.channels, width);
        let piece = rows_per_piece(self.rows, columns);
        let pieces = self.rows.div_ceil(piece);
        let partials = Buffer::empty(client, (pieces * self.channels).max(width), Element::F32);
        if x.length > 0 {
            // SAFETY: all lengths were checked.
            with_type!(x.element, F => unsafe {
                rms_weight::launch_unchecked::<F>(
                    client,
                    grid(client, pieces * columns.blocks()),
                    CubeDim::new_1d(THREADS as u32),
                    address_type(&[x, &partials]),
                    width,
                    x.argument(),
                    RotaryTablesLaunch::new(read.tables[0].argument(), read.tables[1].argument()),
                    reciprocals.argument(),
                    gradient.argument(),
                    partials.argument(),
                    RmsSizesLaunch::new(self.rows, read.tokens, read.rows_of_token),
                    piece,
                    RmsWeightKind { turn: read.turn(width), columns },
                );
            });
        }
        Target::row(pieces, self.channels).add(client, &partials, dweight);
        Ok(())
    }
}
