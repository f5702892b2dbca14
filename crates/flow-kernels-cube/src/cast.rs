//! Values of one type as those of another; tensors one behind the other.

use crate::buffer::{Buffer, Refusal, address_type, grid, width, with_type, wrong_size};
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
/// [`Refusal`] if `y` is not as long as `x`.
pub fn cast(client: &Client, x: &Buffer, y: &Buffer, factor: f32, aligned: bool) -> Result<(), Refusal> {
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

/// Each part times its factor, one behind the other.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn join_kernel<F: Float, G: Float, N: Size>(
    parts: &Sequence<Box<[Vector<F, N>]>>,
    y: &mut [Vector<G, N>],
    vectors: &Sequence<usize>,
    factors: &Sequence<f32>,
) {
    let at = ABSOLUTE_POS;
    let mut begin = 0usize.runtime();
    #[unroll]
    for i in 0..parts.len() {
        let end = begin + *vectors.index(i);
        if at >= begin && at < end {
            let x = Vector::<f32, N>::cast_from(parts.index(i)[at - begin]);
            y[at] = Vector::cast_from(Vector::new(*factors.index(i)) * x);
        }
        begin = end;
    }
}

/// Tensors that [`join`] takes at most.
pub const MOST_JOINED: usize = 4;

/// Writes `parts`, each times its factor and rounded to nearest in `y`'s type, one behind the other to `y`, in one launch. Of a
/// part alone, these are the bits of [`cast`].
///
/// # Errors
/// [`Refusal`] if there are no parts or more than [`MOST_JOINED`], if they are of several types, or if `y` is not as long as all
/// of them together.
pub fn join(client: &Client, parts: &[(Buffer, f32)], y: &Buffer) -> Result<(), Refusal> {
    if parts.is_empty() || parts.len() > MOST_JOINED {
        return Err(wrong_size("parts", parts.len(), format!("1 to {MOST_JOINED}")));
    }
    let element = parts[0].0.element;
    for (part, _) in parts {
        part.expect_of("parts", part.length, element)?;
    }
    let length: usize = parts.iter().map(|(part, _)| part.length).sum();
    y.expect("y", length)?;
    if length == 0 {
        return Ok(());
    }
    let parts: Vec<&(Buffer, f32)> = parts.iter().filter(|(part, _)| part.length > 0).collect();
    let widths = parts.iter().map(|(part, _)| width(part.length, element));
    let width = widths.fold(width(length, y.element), usize::min);
    // SAFETY: all lengths were checked.
    with_type!(element, F => with_type!(y.element, G => unsafe {
        join_kernel::launch_unchecked::<F, G>(
            client,
            grid(client, (length / width).div_ceil(THREADS)),
            CubeDim::new_1d(THREADS as u32),
            address_type(&[y]),
            width,
            parts.iter().map(|(part, _)| part.argument()).collect(),
            y.argument(),
            parts.iter().map(|(part, _)| part.length / width).collect(),
            parts.iter().map(|(_, factor)| *factor).collect(),
        );
    }));
    Ok(())
}
