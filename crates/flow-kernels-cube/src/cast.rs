//! Values of one type as those of another.

use crate::buffer::{Buffer, Refused, address_type, grid, width, with_type};
use crate::columns::THREADS;
use cubecl::prelude::*;

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn cast_kernel<F: Float, G: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &mut [Vector<G, N>],
    vectors: usize,
    factor: f32,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        y[at] = Vector::cast_from(Vector::new(factor) * Vector::<f32, N>::cast_from(x[at]));
    }
}

/// Writes `factor · x` to `y`, rounded to nearest in its type. `aligned`: both begin at a multiple of 16 bytes; otherwise at
/// one of the size of a value.
///
/// # Errors
/// [`Refused`] if `y` is not as long as `x`.
pub fn cast(client: &Client, x: &Buffer, y: &Buffer, factor: f32, aligned: bool) -> Result<(), Refused> {
    y.expect("y", x.length)?;
    if x.length == 0 {
        return Ok(());
    }
    let width = match aligned {
        true => width(x.length, x.element).min(width(x.length, y.element)),
        false => 1,
    };
    let vectors = x.length / width;
    // SAFETY: all lengths were checked.
    with_type!(x.element, F => with_type!(y.element, G => unsafe {
        cast_kernel::launch_unchecked::<F, G>(
            client,
            grid(client, vectors.div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[x]),
            width,
            x.argument(),
            y.argument(),
            vectors,
            factor,
        );
    }));
    Ok(())
}
