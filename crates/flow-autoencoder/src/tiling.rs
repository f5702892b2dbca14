//! Tiles of large pictures, blended where they overlap, as diffusers does it.

use crate::AutoencoderError;
use burn::tensor::{Tensor, TensorData};

/// Square tiles, in pixels of the latent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Side of a tile. What is no larger is not tiled.
    pub tile: usize,
    /// From the beginning of a tile to that of the next, at least half of a tile. What they share is blended.
    pub stride: usize,
}

/// Axes of rows and columns of `[B, C, F, H, W]`.
const SIDES: [usize; 2] = [3, 4];

/// Tiles in the units of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles {
    tile: usize,
    stride: usize,
    out_stride: usize,
    out_blend: usize,
}

impl Tiling {
    /// Tiles of side `tile` of which the next begins at three quarters: diffusers' defaults. Both are at least 1.
    pub fn overlapping_a_quarter(tile: usize) -> Self {
        let tile = tile.max(1);
        Self {
            tile,
            stride: (tile * 3 / 4).max(1),
        }
    }

    fn check(&self) -> Result<(), AutoencoderError> {
        let error = |problem| {
            Err(AutoencoderError::Tiling {
                tile: self.tile,
                stride: self.stride,
                problem,
            })
        };
        match (self.tile, self.stride) {
            (0, _) | (_, 0) => error("both must be at least 1"),
            (tile, stride) if stride > tile => {
                error("tiles may not lie apart; make the stride at most the tile")
            }
            (tile, stride) if 2 * stride < tile => error(
                "more than two tiles would lie on one another; make the stride at least half of the tile",
            ),
            _ => Ok(()),
        }
    }

    /// Tiles of latents, for pictures `factor` times as large.
    pub(crate) fn of_decoder(&self, factor: usize) -> Result<Tiles, AutoencoderError> {
        self.check()?;
        Ok(Tiles {
            tile: self.tile,
            stride: self.stride,
            out_stride: self.stride * factor,
            out_blend: (self.tile - self.stride) * factor,
        })
    }

    /// Tiles of pictures, for latents of which a pixel is `factor` of theirs.
    pub(crate) fn of_encoder(&self, factor: usize) -> Result<Tiles, AutoencoderError> {
        self.check()?;
        Ok(Tiles {
            tile: self.tile * factor,
            stride: self.stride * factor,
            out_stride: self.stride,
            out_blend: self.tile - self.stride,
        })
    }
}

impl Tiles {
    /// Whether `x [B, C, F, H, W]` is larger than a tile.
    pub fn are_needed(&self, x: &Tensor<5>) -> bool {
        SIDES.iter().any(|side| x.dims()[*side] > self.tile)
    }

    /// `run` of every tile of `x [B, C, F, H, W]`, put together. A tile is blended with what the one above and the one to the
    /// left have become by their own blending, not with what they were.
    pub fn assemble(&self, x: &Tensor<5>, run: &dyn Fn(Tensor<5>) -> Tensor<5>) -> Tensor<5> {
        let [_, _, _, height, width] = x.dims();
        let (mut above, mut rows): (Vec<Tensor<5>>, Vec<Tensor<5>>) = (Vec::new(), Vec::new());
        for top in (0..height).step_by(self.stride) {
            let strip = x.clone().narrow(3, top, self.tile.min(height - top));
            let mut row: Vec<Tensor<5>> = Vec::new();
            for (index, left) in (0..width).step_by(self.stride).enumerate() {
                let mut tile = run(strip.clone().narrow(4, left, self.tile.min(width - left)));
                if let Some(above) = above.get(index) {
                    tile = blend(above, tile, self.out_blend, 3);
                }
                if let Some(left) = row.last() {
                    tile = blend(left, tile, self.out_blend, 4);
                }
                row.push(tile);
            }
            let kept = row.iter().map(|tile| {
                let [_, _, _, height, width] = tile.dims();
                let tile = tile.clone().narrow(3, 0, self.out_stride.min(height));
                tile.narrow(4, 0, self.out_stride.min(width))
            });
            rows.push(Tensor::cat(kept.collect(), 4));
            above = row;
        }
        Tensor::cat(rows, 3)
    }
}

/// `b`, whose first `extent` rows or columns go over from the last ones of `a`, linearly.
fn blend(a: &Tensor<5>, b: Tensor<5>, extent: usize, axis: usize) -> Tensor<5> {
    let (last, length) = (a.dims()[axis], b.dims()[axis]);
    let extent = extent.min(last).min(length);
    if extent == 0 {
        return b;
    }
    let mut shape = [1; 5];
    shape[axis] = extent;
    // The shares are computed in f64 and rounded once, as Python does it.
    let shares = |share: fn(f64) -> f64| -> Tensor<5> {
        let values: Vec<f32> = (0..extent)
            .map(|at| share(at as f64 / extent as f64) as f32)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), (&b.device(), b.dtype()))
    };
    let (of_a, of_b) = (shares(|share| 1.0 - share), shares(|share| share));
    let overlap =
        a.clone().narrow(axis, last - extent, extent) * of_a + b.clone().narrow(axis, 0, extent) * of_b;
    if extent == length {
        return overlap;
    }
    let rest = b.narrow(axis, extent, length - extent);
    Tensor::cat(vec![overlap, rest], axis)
}
