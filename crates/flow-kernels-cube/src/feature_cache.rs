//! Kernels of a feature cache: copy rows, combine them linearly, and measure their relative change.
//!
//! What is kept of a sample lies in a buffer of its own, so every source is a buffer and a row of it, and a call computes
//! one row, or several where they lie one after another. Sums are f32 in an order that follows from the number of values.

use crate::Element;
use crate::buffer::{Buffer, Refusal, address_type, at_least_one, grid, width, with_type, wrong_size};
use crate::rows::total;
use crate::sde::{block_sum, finish_rows};
use cubecl::prelude::*;

/// Threads of a block.
const THREADS: usize = 256;
/// Values of a piece.
const PIECE: usize = 16 * THREADS;
/// Most sources of a row.
pub const MOST_SOURCES: usize = 6;
/// Sums per pair of rows.
const SUMS: usize = 3;

/// `output = w0 · s0 + w1 · s1 + …` of the first `count` sources: one product, then fused multiply-adds in order, rounded once. A
/// source is read from its vector `firsts[i]` on.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn combine_rows<F: Float, N: Size>(
    sources: &Sequence<Box<[Vector<F, N>]>>,
    output: &mut [Vector<F, N>],
    weights: &Sequence<f32>,
    firsts: &Sequence<usize>,
    first: usize,
    vectors: usize,
    #[comptime] count: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let mut sum = Vector::<f32, N>::new(*weights.index(0usize))
            * Vector::<f32, N>::cast_from(sources.index(0usize)[*firsts.index(0usize) + at]);
        #[unroll]
        for i in 1..count {
            sum = fma(
                Vector::<f32, N>::new(*weights.index(i)),
                Vector::<f32, N>::cast_from(sources.index(i)[*firsts.index(i) + at]),
                sum,
            );
        }
        output[first + at] = Vector::cast_from(sum);
    }
}

/// Sums of `|a - b|`, `|a|` and `|b|` over the pieces of a row: `partials [3, pieces]` from `first` on. Pieces beyond the
/// row are 0.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn change_pieces<F: Float, N: Size>(
    a: &[Vector<F, N>],
    b: &[Vector<F, N>],
    partials: &mut [f32],
    first_a: usize,
    first_b: usize,
    vectors: usize,
    pieces: usize,
    first: usize,
) {
    let width = N::value();
    let base = CUBE_POS * comptime!(PIECE / width);
    let mut change = Vector::<f32, N>::new(0.0f32);
    let mut of_a = Vector::<f32, N>::new(0.0f32);
    let mut of_b = Vector::<f32, N>::new(0.0f32);
    for step in 0..comptime!(PIECE / width / THREADS) {
        let at = base + step * THREADS + UNIT_POS as usize;
        if at < vectors {
            let x = Vector::<f32, N>::cast_from(a[first_a + at]);
            let y = Vector::<f32, N>::cast_from(b[first_b + at]);
            change += (x - y).abs();
            of_a += x.abs();
            of_b += y.abs();
        }
    }
    let change = block_sum(total(change));
    let of_a = block_sum(total(of_a));
    let of_b = block_sum(total(of_b));
    if UNIT_POS == 0 && CUBE_POS < pieces {
        partials[first + CUBE_POS] = change;
        partials[first + pieces + CUBE_POS] = of_a;
        partials[first + 2 * pieces + CUBE_POS] = of_b;
    }
}

/// A row of a buffer whose rows hold as many values as the call says.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Which of its rows.
    pub row: usize,
}

impl Row<'_> {
    /// Refuses the row unless the buffer is of type `element` and holds it and `count - 1` that follow.
    pub(crate) fn expect(
        &self,
        name: &'static str,
        values: usize,
        count: usize,
        element: Element,
    ) -> Result<&Self, Refusal> {
        at_least_one("values", values)?;
        let rows = self.buffer.length / values;
        self.buffer.expect_of(name, rows * values, element)?;
        if self.row + count > rows {
            return Err(wrong_size(
                "row",
                self.row,
                format!("those of `{name}`, of which there are {rows}, {count} at a time"),
            ));
        }
        Ok(self)
    }
}

/// Computes `count` rows of `values` values, from `output`'s on: the sum of the sources' rows, each times its weight, the
/// first being the first row of its source. Types are those of `output`.
///
/// # Errors
/// [`Refusal`] if a row is not there, or there are no sources or more than [`MOST_SOURCES`].
pub fn combine(
    client: &Client,
    values: usize,
    count: usize,
    sources: &[(f32, Row<'_>)],
    output: Row<'_>,
) -> Result<(), Refusal> {
    let element = output.buffer.element;
    output.expect("output", values, count, element)?;
    for (_, source) in sources {
        source.expect("source", values, count, element)?;
    }
    if sources.is_empty() || sources.len() > MOST_SOURCES {
        return Err(wrong_size(
            "sources",
            sources.len(),
            format!("1 to {MOST_SOURCES}"),
        ));
    }
    if count == 0 {
        return Ok(());
    }
    let width = width(values, element);
    let of = |at: usize| sources.get(at).unwrap_or(&sources[0]);
    let argument = |at: usize| of(at).1.buffer.argument();
    let first = |row: Row<'_>| row.row * values / width;
    let vectors = count * values / width;
    let mut all: Vec<&Buffer> = sources.iter().map(|(_, source)| source.buffer).collect();
    all.push(output.buffer);
    // SAFETY: all rows were checked; sources beyond `sources.len()` are not read.
    with_type!(element, F => unsafe {
        combine_rows::launch_unchecked::<F>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&all),
            width,
            (0..MOST_SOURCES).map(argument).collect(),
            output.buffer.argument(),
            (0..MOST_SOURCES).map(|at| of(at).0).collect(),
            (0..MOST_SOURCES).map(|at| first(of(at).1)).collect(),
            first(output),
            vectors,
            sources.len(),
        );
    });
    Ok(())
}

/// Two rows to compare.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// One of them.
    pub a: Row<'a>,
    /// The other, of the same type.
    pub b: Row<'a>,
    /// Values of each.
    pub values: usize,
}

/// Writes to `sums [pairs, 3]`, f32, of each pair `Σ |a - b|`, `Σ |a|` and `Σ |b|`: 16 values of a thread, a tree over the
/// 256 threads of a piece, and likewise over the pieces. Waits for nothing.
///
/// # Errors
/// [`Refusal`] if a row is not there or a type differs.
pub fn changes(client: &Client, pairs: &[Pair<'_>], sums: &Buffer) -> Result<(), Refusal> {
    sums.expect_of("sums", pairs.len() * SUMS, Element::F32)?;
    for pair in pairs {
        let element = pair.a.buffer.element;
        pair.a.expect("a", pair.values, 1, element)?;
        pair.b.expect("b", pair.values, 1, element)?;
    }
    let pieces = pairs.iter().map(|pair| pair.values.div_ceil(PIECE)).max();
    let Some(pieces) = pieces else {
        return Ok(());
    };
    let partials = Buffer::empty(client, pairs.len() * SUMS * pieces, Element::F32);
    for (number, pair) in pairs.iter().enumerate() {
        let element = pair.a.buffer.element;
        let width = width(pair.values, element);
        let first = |row: Row<'_>| row.row * pair.values / width;
        // SAFETY: the rows were checked, and there is one partial sum for each piece.
        with_type!(element, F => unsafe {
            change_pieces::launch_unchecked::<F>(
                client,
                grid(client, pieces),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[pair.a.buffer, pair.b.buffer, &partials]),
                width,
                pair.a.buffer.argument(),
                pair.b.buffer.argument(),
                partials.argument(),
                first(pair.a),
                first(pair.b),
                pair.values / width,
                pieces,
                number * SUMS * pieces,
            );
        });
    }
    // SAFETY: likewise; without coefficients these are not read.
    unsafe {
        finish_rows::launch_unchecked(
            client,
            grid(client, pairs.len() * SUMS),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[&partials]),
            partials.argument(),
            partials.argument(),
            sums.argument(),
            pairs.len() * SUMS,
            pieces,
            1.0,
            true,
        );
    }
    Ok(())
}
