//! Matrix products with f32 sums on any device: the floor below the tensor cores'.
//!
//! A block of 256 threads makes 64 x 64 values, a thread 4 x 4 of them, 16 steps of the sum at a time through shared
//! memory. Each value is one sum from the first product to the last, whatever the sizes.

use crate::Element;
use crate::activation::{Activation, activate};
use crate::buffer::{Buffer, Refused, address_type, with_type};
use cubecl::prelude::*;

/// Rows and columns of a block.
const TILE: usize = 64;
/// Steps of the sum in shared memory.
const DEPTH: usize = 16;
/// Threads of a block.
const THREADS: usize = 256;

/// One matrix of a product: its memory, and where its values lie.
#[derive(Clone, Copy, Debug)]
pub struct Factor<'a> {
    /// The values.
    pub values: &'a Buffer,
    /// Values from a row to the next, and from a column to the next.
    pub strides: [usize; 2],
}

impl<'a> Factor<'a> {
    /// A matrix of rows of `columns` values.
    pub fn new(values: &'a Buffer, columns: usize) -> Self {
        Self {
            values,
            strides: [columns, 1],
        }
    }

    /// Its transpose.
    pub fn transposed(self) -> Self {
        let [row, column] = self.strides;
        Self {
            strides: [column, row],
            ..self
        }
    }

    fn expect(&self, name: &'static str, [rows, columns]: [usize; 2], element: Element) -> Result<(), Refused> {
        let [row, column] = self.strides;
        let reaches = match rows * columns {
            0 => 0,
            _ => (rows - 1) * row + (columns - 1) * column + 1,
        };
        if self.values.length < reaches {
            return Err(Refused::Length {
                name,
                found: self.values.length,
                expected: reaches,
            });
        }
        self.values.expect_of(name, self.values.length, element)?;
        Ok(())
    }
}

/// What becomes of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epilogue {
    biased: bool,
    activation: Activation,
    keeps_sum: bool,
    second: bool,
}

impl Epilogue {
    /// Everything that there is, and a function.
    pub(crate) fn whole(activation: Activation) -> Self {
        Self {
            biased: true,
            activation,
            keeps_sum: true,
            second: true,
        }
    }
}

/// One step of 16 products for a thread's 4 x 4 values.
#[cube]
fn add_tile<F: Float>(
    left: &[F],
    right: &[F],
    sums: &mut Array<f32>,
    left_tile: &mut Shared<[f32]>,
    right_tile: &mut Shared<[f32]>,
    first_row: usize,
    first_column: usize,
    from: usize,
    rows: usize,
    columns: usize,
    depth: usize,
    left_row: usize,
    left_step: usize,
    right_step: usize,
    right_column: usize,
    chunk: usize,
) {
    for part in 0..4usize {
        let place = UNIT_POS as usize + part * THREADS;
        // Whichever index is dense in memory runs over neighbouring threads.
        let left_dense = left_step == 1;
        let row = select(left_dense, place / DEPTH, place % TILE);
        let step = select(left_dense, place % DEPTH, place / TILE);
        let inside = first_row + row < rows && from + step < depth;
        let at = (first_row + row) * left_row + (from + step) * left_step;
        let value = f32::cast_from(left[select(inside, at, 0usize)]);
        left_tile[step * comptime!(TILE + 1) + row] = select(inside, value, 0.0f32);
        let right_dense = right_step == 1;
        let column = select(right_dense, place / DEPTH, place % TILE);
        let step = select(right_dense, place % DEPTH, place / TILE);
        let inside = first_column + column < columns && from + step < depth;
        let at = (first_column + column) * right_column + (from + step) * right_step;
        let value = f32::cast_from(right[select(inside, at, 0usize)]);
        right_tile[step * comptime!(TILE + 1) + column] = select(inside, value, 0.0f32);
    }
    sync_cube();
    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    for step in 0..chunk {
        let mut across = Array::<f32>::new(4usize);
        #[unroll]
        for j in 0..4usize {
            across[j] = right_tile[step * comptime!(TILE + 1) + x + comptime!(16 * j)];
        }
        #[unroll]
        for i in 0..4usize {
            let value = left_tile[step * comptime!(TILE + 1) + y + comptime!(16 * i)];
            #[unroll]
            for j in 0..4usize {
                let at = comptime!(4 * i + j);
                sums[at] = fma(value, across[j], sums[at]);
            }
        }
    }
    sync_cube();
}

/// `activation(left · right + left2 · right2 + bias)`, times `scale` before the bias. `chunk` is always [`DEPTH`], but not
/// so that compilers know: Mesa's for processors would unroll all inner loops.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn product_kernel<F: Float, B: Float, O: Float>(
    left: &[F],
    right: &[F],
    left2: &[F],
    right2: &[F],
    bias: &[B],
    output: &mut [O],
    sum: &mut [O],
    rows: usize,
    columns: usize,
    depth: usize,
    left_row: usize,
    left_step: usize,
    right_step: usize,
    right_column: usize,
    depth2: usize,
    left2_row: usize,
    left2_step: usize,
    right2_step: usize,
    right2_column: usize,
    scale: f32,
    chunk: usize,
    #[comptime] epilogue: Epilogue,
) {
    let mut left_tile: Shared<[f32]> = Shared::new_slice(comptime!(DEPTH * (TILE + 1)));
    let mut right_tile: Shared<[f32]> = Shared::new_slice(comptime!(DEPTH * (TILE + 1)));
    let first_column = CUBE_POS_X as usize * TILE;
    let first_row = (CUBE_POS_Y as usize + CUBE_POS_Z as usize * CUBE_COUNT_Y as usize) * TILE;
    let mut sums = Array::<f32>::new(16usize);
    #[unroll]
    for i in 0..16usize {
        sums[i] = 0.0f32;
    }
    for step in 0..depth.div_ceil(DEPTH) {
        add_tile::<F>(
            left,
            right,
            &mut sums,
            &mut left_tile,
            &mut right_tile,
            first_row,
            first_column,
            step * DEPTH,
            rows,
            columns,
            depth,
            left_row,
            left_step,
            right_step,
            right_column,
            chunk,
        );
    }
    if comptime!(epilogue.second) {
        for step in 0..depth2.div_ceil(DEPTH) {
            add_tile::<F>(
                left2,
                right2,
                &mut sums,
                &mut left_tile,
                &mut right_tile,
                first_row,
                first_column,
                step * DEPTH,
                rows,
                columns,
                depth2,
                left2_row,
                left2_step,
                right2_step,
                right2_column,
                chunk,
            );
        }
    }
    let x = UNIT_POS as usize % 16;
    let y = UNIT_POS as usize / 16;
    #[unroll]
    for i in 0..4usize {
        #[unroll]
        for j in 0..4usize {
            let row = first_row + y + comptime!(16 * i);
            let column = first_column + x + comptime!(16 * j);
            if row < rows && column < columns {
                let mut value = sums[comptime!(4 * i + j)] * scale;
                if comptime!(epilogue.biased) {
                    value += f32::cast_from(bias[column]);
                }
                let at = row * columns + column;
                // Backward sees the sum as stored, so the activation does, too, whether or not it is kept.
                let rounded = O::cast_from(value);
                if comptime!(epilogue.keeps_sum) {
                    sum[at] = rounded;
                }
                if comptime!(epilogue.activation == Activation::None) {
                    output[at] = rounded;
                } else {
                    let value = Vector::<f32, Const<1>>::new(f32::cast_from(rounded));
                    let value = activate::<Const<1>>(value, comptime!(epilogue.activation));
                    output[at] = O::cast_from(value.extract(0usize));
                }
            }
        }
    }
}

/// A product `[rows, columns]` of matrices `[rows, depth]` and `[depth, columns]`, or the sum of two.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Products of each sum.
    pub depth: usize,
    /// `[rows, depth]` and `[depth, columns]`, of one type.
    pub factors: [Factor<'a>; 2],
    /// More products for each sum: their number, `[rows, number]` and `[number, columns]`.
    pub second: Option<(usize, [Factor<'a>; 2])>,
    /// Factor on the sums.
    pub scale: f32,
    /// Added to each row after the scale, `[columns]`, f32 or of the factors' type.
    pub bias: Option<&'a Buffer>,
    /// Applied last.
    pub activation: Activation,
}

impl<'a> Product<'a> {
    /// A product and nothing else.
    pub fn new([rows, depth, columns]: [usize; 3], factors: [Factor<'a>; 2]) -> Self {
        Self {
            rows,
            columns,
            depth,
            factors,
            second: None,
            scale: 1.0,
            bias: None,
            activation: Activation::None,
        }
    }

    fn check(&self, output: &Buffer, sum: Option<&Buffer>) -> Result<Element, Refused> {
        let element = self.factors[0].values.element;
        let Self {
            rows,
            columns,
            depth,
            ..
        } = *self;
        let pairs = [Some((depth, self.factors)), self.second];
        for (depth, [left, right]) in pairs.into_iter().flatten() {
            left.expect("left", [rows, depth], element)?;
            right.expect("right", [depth, columns], element)?;
        }
        if let Some(bias) = self.bias {
            if bias.element != Element::F32 {
                bias.expect_of("bias", columns, element)?;
            }
            bias.expect("bias", columns)?;
        }
        if output.element != Element::F32 {
            output.expect_of("output", rows * columns, element)?;
        }
        output.expect("output", rows * columns)?;
        if let Some(sum) = sum {
            sum.expect_of("sum", rows * columns, output.element)?;
        }
        Ok(element)
    }

    /// Computes the product into `output [rows, columns]`, f32 or of the factors' type, and what it is before the
    /// activation into `sum`, of the output's type.
    ///
    /// # Errors
    /// [`Refused`] if a matrix does not fit.
    pub fn compute(&self, client: &Client, output: &Buffer, sum: Option<&Buffer>) -> Result<(), Refused> {
        if self.rows == 0 || self.columns == 0 {
            return Ok(());
        }
        let element = self.check(output, sum)?;
        with_type!(element, F => match (self.bias.map(|bias| bias.element), output.element) {
            (Some(Element::F32), Element::F32) => self.launch::<F, f32, f32>(client, output, sum),
            (Some(Element::F32), _) => self.launch::<F, f32, F>(client, output, sum),
            (_, Element::F32) => self.launch::<F, F, f32>(client, output, sum),
            _ => self.launch::<F, F, F>(client, output, sum),
        });
        Ok(())
    }

    fn launch<F: Float, B: Float, O: Float>(&self, client: &Client, output: &Buffer, sum: Option<&Buffer>) {
        let [left, right] = self.factors;
        let (depth2, [left2, right2]) = self.second.unwrap_or((1, self.factors));
        let bytes = Buffer::empty(client, 4, Element::F32);
        let unused = Buffer {
            length: 1,
            element: output.element,
            ..bytes
        };
        let epilogue = Epilogue {
            biased: self.bias.is_some(),
            activation: self.activation,
            keeps_sum: sum.is_some(),
            second: self.second.is_some(),
        };
        let (_, along_y, _) = client.properties().hardware.max_cube_count;
        let row_blocks = self.rows.div_ceil(TILE);
        let y = row_blocks.min(along_y as usize);
        let blocks = CubeCount::Static(
            self.columns.div_ceil(TILE) as u32,
            y as u32,
            row_blocks.div_ceil(y) as u32,
        );
        let address = address_type(&[left.values, right.values, left2.values, right2.values, output]);
        // SAFETY: `check` found that every matrix holds what its strides reach.
        unsafe {
            product_kernel::launch_unchecked::<F, B, O>(
                client,
                blocks,
                CubeDim::new_1d(THREADS as u32),
                address,
                left.values.argument(),
                right.values.argument(),
                left2.values.argument(),
                right2.values.argument(),
                self.bias.unwrap_or(left.values).argument(),
                output.argument(),
                sum.unwrap_or(&unused).argument(),
                self.rows,
                self.columns,
                self.depth,
                left.strides[0],
                left.strides[1],
                right.strides[0],
                right.strides[1],
                depth2,
                left2.strides[0],
                left2.strides[1],
                right2.strides[0],
                right2.strides[1],
                self.scale,
                DEPTH,
                epilogue,
            );
        }
    }
}
