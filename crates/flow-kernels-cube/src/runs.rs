//! Runs of values that are equally far apart, copied: some columns of all rows, some tokens of all sequences.

use crate::buffer::{Buffer, Refusal, address_type, grid, width, with_type, wrong_length, wrong_size};
use crate::columns::THREADS;
use cubecl::prelude::*;

/// `y[to + r · to_pitch + i] = x[from + r · from_pitch + i]` for the values `i` of each run `r`; all sizes are of vectors.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn runs_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<F, N>],
    vectors: usize,
    run: usize,
    from: usize,
    from_pitch: usize,
    to: usize,
    to_pitch: usize,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let number = at / run;
        let place = at % run;
        y[to + number * to_pitch + place] = x[from + number * from_pitch + place];
    }
}

/// Where runs lie in a tensor, in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Where the first one begins.
    pub start: usize,
    /// From the beginning of one to that of the next.
    pub pitch: usize,
}

impl Runs {
    /// Refuses `buffer` unless it has `count` runs of `length` values here, none of which reaches into the next.
    fn expect(self, name: &'static str, buffer: &Buffer, [count, length]: [usize; 2]) -> Result<(), Refusal> {
        if count > 1 && self.pitch < length {
            return Err(wrong_size("pitch", self.pitch, format!("{length} and more")));
        }
        let end = self.start + (count - 1) * self.pitch + length;
        if buffer.length < end {
            return Err(wrong_length(name, buffer.length, end));
        }
        buffer.expect(name, buffer.length).map(drop)
    }

    /// A number that all beginnings in `buffer` are multiples of, in values, if they are of a power of two.
    fn beginnings(self, buffer: &Buffer, count: usize) -> usize {
        let offset = buffer.handle.offset_start.unwrap_or(0) as usize / buffer.element.bytes();
        let pitch = if count > 1 { self.pitch } else { 0 };
        offset | self.start | pitch
    }
}

/// Copies `count` runs of `length` values of `x` to `y`, bit by bit. Values of `y` between its runs stay as they are.
///
/// # Errors
/// [`Refusal`] if a tensor is too short, runs overlap, or the two are of different types.
pub fn copy(
    client: &Client,
    [count, length]: [usize; 2],
    (x, from): (&Buffer, Runs),
    (y, to): (&Buffer, Runs),
) -> Result<(), Refusal> {
    if count == 0 || length == 0 {
        return Ok(());
    }
    from.expect("x", x, [count, length])?;
    to.expect("y", y, [count, length])?;
    y.expect_of("y", y.length, x.element)?;
    let multiples = length | from.beginnings(x, count) | to.beginnings(y, count);
    let width = width(multiples, x.element);
    let vectors = count * length / width;
    // SAFETY: both tensors have all runs, and all beginnings are multiples of the vectors.
    with_type!(x.element, F => unsafe {
        runs_kernel::launch_unchecked::<F>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[x, y]),
            width,
            x.argument(),
            y.argument(),
            vectors,
            length / width,
            from.start / width,
            from.pitch / width,
            to.start / width,
            to.pitch / width,
        );
    });
    Ok(())
}
