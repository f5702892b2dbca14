//! Which tiles a call gets: a fixed table of shapes, measured on an H100 (`docs/src/performance/attention.md`), and what
//! the kernels do not do.

use super::{BackwardTiles, ForwardTiles, Sums};
use flow_attention_mask::{Mask, MaskError, MaskTiles, Side, Sizes, Tiling};
use flow_cube::wgmma::Factor;

/// The problem of one call. `[B, H, S, D]` throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// Samples.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; divides `heads`.
    pub kv_heads: usize,
    /// Rows of queries.
    pub queries: usize,
    /// Rows of keys in the first part and the second, 0 if there is none.
    pub keys: [usize; 2],
    /// Channels of a head.
    pub head_dim: usize,
    /// Element type.
    pub factor: Factor,
}

/// Why a backend does not serve a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Declined {
    /// For a person.
    pub why: String,
}

/// Tiles of the three kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Forward.
    pub forward: ForwardTiles,
    /// Gradient of queries.
    pub queries: BackwardTiles,
    /// Gradients of keys and values: one launch, or one for each.
    pub keys: Vec<BackwardTiles>,
}

impl Call {
    /// Sizes, as masks want them.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.batch,
            queries: self.queries,
            key_segments: self.keys,
        }
    }

    /// Whether these kernels serve the call.
    ///
    /// # Errors
    /// [`Declined`] with the reason.
    pub fn check(&self) -> Result<(), Declined> {
        let no = |why: String| Err(Declined { why });
        if self.head_dim == 0 || self.head_dim % 8 != 0 || self.head_dim > 256 {
            return no(format!(
                "wgmma wants a head dimension that is a multiple of 8 and at most 256, not {}",
                self.head_dim
            ));
        }
        if self.batch == 0 || self.heads == 0 || self.queries == 0 || self.keys[0] == 0 {
            return no("there are no samples, heads, queries or keys".into());
        }
        if self.kv_heads == 0 || self.heads % self.kv_heads != 0 {
            return no(format!(
                "{} heads of queries are no multiple of {} heads of keys",
                self.heads, self.kv_heads
            ));
        }
        if self.batch > 65_535 || self.heads > 65_535 {
            return no("a grid has at most 65,535 samples and 65,535 heads".into());
        }
        Ok(())
    }

    /// The table. `masked`: whether the call has a mask.
    pub fn select(&self, masked: bool) -> Selection {
        let (head_dim, factor, two_parts) = (self.head_dim, self.factor, self.keys[1] > 0);
        // (keys of a tile, warpgroups, stages, taking turns)
        let (keys, warpgroups, stages, ping_pong) = match head_dim {
            ..=64 => (128, 1, 2, false),
            // Tiles of masks are narrow, so that fewer are visited in part.
            65..=128 if self.keys[0] >= 4096 && !masked => (176, 2, 2, true),
            65..=128 => (128, 2, 2, false),
            _ => (80, 2, 1, false),
        };
        let backward = |warpgroups, stages, sums| BackwardTiles {
            head_dim,
            passing: 64,
            warpgroups,
            stages,
            factor,
            sums,
            masked,
            two_parts,
        };
        let (queries, keys_tiles) = match head_dim {
            ..=64 => (backward(1, 2, Sums::Both), vec![backward(1, 2, Sums::Both)]),
            65..=128 => (backward(2, 3, Sums::Both), vec![backward(2, 3, Sums::Both)]),
            _ => (
                backward(1, 2, Sums::Both),
                vec![backward(1, 2, Sums::Values), backward(1, 2, Sums::Keys)],
            ),
        };
        Selection {
            forward: ForwardTiles {
                head_dim,
                keys,
                warpgroups,
                stages,
                ping_pong,
                factor,
                masked,
                two_parts,
            },
            queries,
            keys: keys_tiles,
        }
    }
}

impl Selection {
    /// The mask's tiles for the forward kernel.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn forward_list(&self, mask: &Mask, sizes: Sizes) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Queries,
            units_per_block: self.forward.warpgroups,
            columns: self.forward.keys,
        };
        MaskTiles::new(mask, sizes, tiling)
    }

    /// The mask's tiles for the kernel for queries.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn queries_list(&self, mask: &Mask, sizes: Sizes) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Queries,
            units_per_block: self.queries.warpgroups,
            columns: self.queries.passing,
        };
        MaskTiles::new(mask, sizes, tiling)
    }

    /// The mask's tiles for the kernel for keys, of part `segment`.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn keys_list(&self, mask: &Mask, sizes: Sizes, segment: usize) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Keys { segment },
            units_per_block: self.keys[0].warpgroups,
            columns: self.keys[0].passing,
        };
        MaskTiles::new(mask, sizes, tiling)
    }
}
