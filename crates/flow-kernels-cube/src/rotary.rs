//! Rotary position embedding of interleaved pairs (Su et al. 2021, arXiv:2104.09864).

use crate::Element;
use crate::buffer::{Buffer, Refused, address_type, at_least_one, grid, width, with_type};
use crate::columns::THREADS;
use cubecl::prelude::*;

/// Sizes of a rotation of `x [B, S, H, D]` by tables `cos`, `sin` of `[S, D/2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotary {
    /// `B`.
    pub batch: usize,
    /// `S`.
    pub tokens: usize,
    /// `H`.
    pub heads: usize,
    /// `D`, even.
    pub head_dim: usize,
}

/// Cosines and sines of a rotary embedding, `[S, D / 2]`.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RotaryTables {
    /// Cosines.
    pub cos: &'static [f32],
    /// Sines.
    pub sin: &'static [f32],
}

/// Rotates the pairs of a vector: by the angles of `cos` and `sin`, or back if `direction` is -1.
#[cube]
pub(crate) fn rotate<N: Size>(
    x: Vector<f32, N>,
    cos: &[f32],
    sin: &[f32],
    first: usize,
    direction: f32,
) -> Vector<f32, N> {
    let width = N::value();
    let mut y = x;
    #[unroll]
    for pair in 0..comptime!(width / 2) {
        let (c, s) = (cos[first + pair], direction * sin[first + pair]);
        let even = x.extract(comptime!(2 * pair));
        let odd = x.extract(comptime!(2 * pair + 1));
        // Said in full, so that every kernel that turns has the same bits.
        y.insert(comptime!(2 * pair), fma(even, c, -(odd * s)));
        y.insert(comptime!(2 * pair + 1), fma(even, s, odd * c));
    }
    y
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn rotary_kernel<F: Float, N: Size>(
    x: &[Vector<F, N>],
    tables: &RotaryTables,
    y: &mut [Vector<F, N>],
    vectors: usize,
    tokens: usize,
    token_vectors: usize,
    head_vectors: usize,
    direction: f32,
) {
    let at = ABSOLUTE_POS;
    if at < vectors {
        let token = at / token_vectors % tokens;
        let width = N::value();
        let pairs = comptime!(width / 2);
        let first = (token * head_vectors + at % head_vectors) * pairs;
        y[at] = Vector::cast_from(rotate::<N>(
            Vector::cast_from(x[at]),
            tables.cos,
            tables.sin,
            first,
            direction,
        ));
    }
}

impl Rotary {
    fn rotate(
        &self,
        client: &Client,
        x: &Buffer,
        tables: [&Buffer; 2],
        y: &Buffer,
        direction: f32,
    ) -> Result<(), Refused> {
        at_least_one("head_dim", self.head_dim)?;
        if !self.head_dim.is_multiple_of(2) {
            return Err(Refused::Size {
                name: "head_dim",
                found: self.head_dim,
                allowed: "even numbers".into(),
            });
        }
        let token_values = self.heads * self.head_dim;
        x.expect("x", self.batch * self.tokens * token_values)?;
        y.expect_of("y", x.length, x.element)?;
        for (name, table) in ["cos", "sin"].into_iter().zip(tables) {
            table.expect_of(name, self.tokens * self.head_dim / 2, Element::F32)?;
        }
        if x.length == 0 {
            return Ok(());
        }
        let width = width(self.head_dim, x.element);
        let vectors = x.length / width;
        // SAFETY: all lengths were checked.
        with_type!(x.element, F => unsafe {
            rotary_kernel::launch_unchecked::<F>(
                client,
                grid(client, vectors.div_ceil(THREADS)),
                CubeDim::new_1d(THREADS as u32),
                address_type(&[x]),
                width,
                x.argument(),
                RotaryTablesLaunch::new(tables[0].argument(), tables[1].argument()),
                y.argument(),
                vectors,
                self.tokens,
                token_values / width,
                self.head_dim / width,
                direction,
            );
        });
        Ok(())
    }

    /// `y`, `x` with the pairs `(2i, 2i+1)` of its last axis rotated; `tables` are `cos` and `sin` in f32.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn forward(
        &self,
        client: &Client,
        x: &Buffer,
        tables: [&Buffer; 2],
        y: &Buffer,
    ) -> Result<(), Refused> {
        self.rotate(client, x, tables, y, 1.0)
    }

    /// `dx`, `gradient` rotated back.
    ///
    /// # Errors
    /// [`Refused`] if a tensor does not fit.
    pub fn backward(
        &self,
        client: &Client,
        gradient: &Buffer,
        tables: [&Buffer; 2],
        dx: &Buffer,
    ) -> Result<(), Refused> {
        self.rotate(client, gradient, tables, dx, -1.0)
    }
}
