//! Rows of a table by integer index, and the gradient of the table.

use crate::buffer::{Buffer, Refusal, address_type, at_least_one, grid, width, with_type, wrong_length};
use crate::columns::THREADS;
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;

/// Sizes of the rows of `table [rows, channels]` at `count` indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding {
    /// Rows of the table.
    pub rows: usize,
    /// Values of a row.
    pub channels: usize,
    /// Number of indices.
    pub count: usize,
}

/// An index out of range gives a row of NaN, which every loss shows.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn embedding_forward<F: Float, G: Float, N: Size>(
    table: &[Vector<F, N>],
    index: &[i32],
    y: &mut [Vector<G, N>],
    rows: usize,
    count: usize,
    vectors: usize,
) {
    let at = ABSOLUTE_POS;
    if at < count * vectors {
        let row = index[at / vectors];
        let inside = row >= 0 && (row as usize) < rows;
        let row = select(inside, row as usize, 0usize);
        // Shader languages have no literal for NaN: it is chosen among bits.
        let bits = select(inside, 0u32, 0x7FC0_0000u32);
        let valid = Vector::<f32, N>::new(f32::reinterpret(bits));
        let value = Vector::<f32, N>::cast_from(table[row * vectors + at % vectors]);
        y[at] = Vector::cast_from(value + valid);
    }
}

/// One row of the table's gradient, or a part of it: the rows of `gradient` whose index it is, in their order.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn embedding_backward<F: Float, G: Float, N: Size>(
    gradient: &[Vector<F, N>],
    index: &[i32],
    dtable: &mut [Vector<G, N>],
    rows: usize,
    count: usize,
    vectors: usize,
) {
    let blocks = vectors.div_ceil(CUBE_DIM as usize);
    let row = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * CUBE_DIM as usize + UNIT_POS as usize;
    if row < rows && column < vectors {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for entry in 0..count {
            if index[entry] == row as i32 {
                sum += Vector::<f32, N>::cast_from(gradient[entry * vectors + column]);
            }
        }
        dtable[row * vectors + column] = Vector::cast_from(sum);
    }
}

impl Embedding {
    fn check(&self, table: &Buffer, chosen: &Buffer, names: [&'static str; 2]) -> Result<(), Refusal> {
        at_least_one("rows", self.rows)?;
        at_least_one("channels", self.channels)?;
        table.expect(names[0], self.rows * self.channels)?;
        chosen.expect(names[1], self.count * self.channels)?;
        Ok(())
    }

    fn index(&self, index: &Handle) -> Result<BufferArg, Refusal> {
        let found = index.size_in_used() as usize / 4;
        if found < self.count {
            return Err(wrong_length("index", found, self.count));
        }
        // SAFETY: it holds as many.
        Ok(unsafe { BufferArg::from_raw_parts(index.clone(), self.count) })
    }

    /// `y [count, channels]`, of any type, from `index`, 32-bit integers. An index out of range gives a row of NaN.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn forward(
        &self,
        client: &Client,
        table: &Buffer,
        index: &Handle,
        y: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(table, y, ["table", "y"])?;
        if self.count == 0 {
            return Ok(());
        }
        let index = self.index(index)?;
        let width = width(self.channels, table.element).min(width(self.channels, y.element));
        let vectors = self.channels / width;
        // SAFETY: all lengths were checked, and the kernel checks each index.
        with_type!(table.element, F => with_type!(y.element, G => unsafe {
            embedding_forward::launch_unchecked::<F, G>(
                client,
                grid(client, (self.count * vectors).div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[table, y]),
                width,
                table.argument(),
                index,
                y.argument(),
                self.rows,
                self.count,
                vectors,
            );
        }));
        Ok(())
    }

    /// `dtable [rows, channels]`, of any type: for each row the sum of the rows of `gradient` whose index it is, in f32 and
    /// in their order.
    ///
    /// # Errors
    /// [`Refusal`] if a tensor does not fit.
    pub fn backward(
        &self,
        client: &Client,
        gradient: &Buffer,
        index: &Handle,
        dtable: &Buffer,
    ) -> Result<(), Refusal> {
        self.check(dtable, gradient, ["dtable", "gradient"])?;
        let index = match self.count {
            0 => gradient.argument(),
            _ => self.index(index)?,
        };
        let width = width(self.channels, gradient.element).min(width(self.channels, dtable.element));
        let vectors = self.channels / width;
        let threads = vectors.next_power_of_two().clamp(32, THREADS);
        // SAFETY: all lengths were checked.
        with_type!(gradient.element, F => with_type!(dtable.element, G => unsafe {
            embedding_backward::launch_unchecked::<F, G>(
                client,
                grid(client, self.rows * vectors.div_ceil(threads)),
                CubeDim::new_1d(threads as u32),
                address_type(&[dtable, gradient]),
                width,
                gradient.argument(),
                index,
                dtable.argument(),
                self.rows,
                self.count,
                vectors,
            );
        }));
        Ok(())
    }
}
