//! The list of cases.

use crate::Element;
use flow_attention_mask::{Extent, Mask, MaskError, Sizes};

/// How tensors lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[B, H, S, D]` without gaps.
    Contiguous,
    /// `[B, S, H, D]`, as projections leave them.
    TokensFirst,
    /// A slice of wider rows (64 bytes more) of a longer sequence, as CubeCL pads and as views cut; the gaps hold NaN.
    Sliced,
    /// Channels outermost in each head, `[B, H, D, S]`: no stride is 1 where kernels like it.
    Transposed,
}

/// Which mask, made for the sizes of the case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// Everything.
    Full,
    /// Up to the diagonal.
    Causal,
    /// 40 keys before the diagonal, 7 after.
    Window,
    /// Half of the keys for the last batch entry, all for the first.
    KeyPadding,
    /// Five sequences, one of them empty, and padding.
    Packed,
    /// Numbers that change with the batch entry and come back later.
    Documents,
    /// A checkerboard of 48 x 40 with a row of blocks left out, so that some queries may attend to nothing.
    BlockSparse,
    /// A window in a video of 3 frames of 10 x 11 (330 tokens), or as many as fit.
    Video,
    /// Causal within documents.
    CausalDocuments,
}

impl MaskKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Full,
        Self::Causal,
        Self::Window,
        Self::KeyPadding,
        Self::Packed,
        Self::Documents,
        Self::BlockSparse,
        Self::Video,
        Self::CausalDocuments,
    ];

    /// The mask for a call of `sizes`.
    ///
    /// # Errors
    /// If there is none; there is no such case.
    pub fn mask(self, sizes: Sizes) -> Result<Mask, MaskError> {
        let (queries, keys) = (sizes.queries, sizes.keys());
        // Runs of 29 and of 61 tokens.
        let numbers =
            |length: usize, shift: usize| (0..length).map(|i| ((i + shift) % 90 / 29 * 7) as u32).collect();
        Ok(match self {
            Self::Full => Mask::Full,
            Self::Causal => Mask::Causal,
            Self::Window => Mask::Window { before: 40, after: 7 },
            Self::KeyPadding => {
                let last = sizes.batch - 1;
                Mask::key_padding(
                    (0..sizes.batch)
                        .map(|b| if b == last { keys / 2 } else { keys })
                        .collect(),
                )?
            }
            Self::Packed => {
                let ends = |length: usize| [0, 2, 5, 5, 13, 19].map(|part| length * part / 20).to_vec();
                Mask::packed(ends(queries), ends(keys))?
            }
            Self::Documents => {
                let lists = |length| (0..sizes.batch).map(|b| numbers(length, 17 * b)).collect();
                Mask::documents(lists(queries), lists(keys))?
            }
            Self::BlockSparse => {
                let (rows, columns) = (queries.div_ceil(48), keys.div_ceil(40));
                let allowed =
                    |at: usize| at / columns != 1 && (at / columns + at % columns).is_multiple_of(2);
                Mask::block_sparse(48, 40, (0..rows * columns).map(allowed).collect())?
            }
            Self::Video => {
                let width = if queries % 11 == 0 { 11 } else { 1 };
                let height = if queries % (10 * width) == 0 { 10 } else { 1 };
                let grid = Extent {
                    frames: queries / width / height,
                    height,
                    width,
                };
                Mask::video(
                    grid,
                    Extent {
                        frames: 1,
                        height: 3,
                        width: 4,
                    },
                )?
            }
            Self::CausalDocuments => {
                let one = Mask::documents(vec![numbers(queries, 0)], vec![numbers(keys, 0)])?;
                Mask::And(vec![Mask::Causal, one])
            }
        })
    }
}

/// One call to check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Batch.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Query tokens.
    pub queries: usize,
    /// Key tokens of each segment.
    pub kv_segments: [usize; 2],
    /// Channels of a head.
    pub head_dim: usize,
    /// Element type.
    pub element: Element,
    /// Which mask.
    pub mask: MaskKind,
    /// How tensors lie in memory.
    pub layout: Layout,
    /// Scale of the scores.
    pub scale: f64,
}

impl Case {
    /// Two entries, two heads, the usual scale, f32, no mask, no gaps.
    pub fn new(queries: usize, keys: usize, head_dim: usize) -> Self {
        Self {
            batch: 2,
            heads: 2,
            kv_heads: 2,
            queries,
            kv_segments: [keys, 0],
            head_dim,
            element: Element::F32,
            mask: MaskKind::Full,
            layout: Layout::Contiguous,
            scale: 1.0 / (head_dim as f64).sqrt(),
        }
    }

    /// Its sizes, as masks see them.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            batch: self.batch,
            queries: self.queries,
            kv_segments: self.kv_segments,
        }
    }

    /// Shape of queries.
    pub fn query_shape(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.head_dim]
    }

    /// Shape of the keys of segment `i`.
    pub fn key_shape(&self, i: usize) -> [usize; 4] {
        [self.batch, self.kv_heads, self.kv_segments[i], self.head_dim]
    }
}

/// Every case: what varies, varies around a common case, and what meets in kernels also meets here.
pub fn cases(element: Element) -> Vec<Case> {
    let mut all = masked(element);
    all.extend(arranged(element));
    all.extend(large(element));
    all
}

/// Cases of few rows, of every mask, and of every number of channels.
fn masked(element: Element) -> Vec<Case> {
    use Layout::TokensFirst;
    use MaskKind::{Causal, CausalDocuments, Full, Video};
    let case = |queries, keys, head_dim| Case {
        element,
        ..Case::new(queries, keys, head_dim)
    };
    let mut all = Vec::new();
    for (queries, keys) in [(1, 1), (1, 333), (13, 77), (77, 13), (333, 1), (333, 333)] {
        all.extend([Full, Causal].map(|mask| Case {
            mask,
            ..case(queries, keys, 64)
        }));
    }
    for mask in MaskKind::ALL {
        // A video has as many queries as keys.
        let queries = if mask == Video { 330 } else { 201 };
        let kv_heads = 1;
        all.push(Case {
            mask,
            kv_heads,
            ..case(queries, 330, 64)
        });
        all.push(Case {
            mask,
            kv_segments: [77, 253],
            layout: TokensFirst,
            ..case(queries, 0, 64)
        });
    }
    for head_dim in [13, 64, 72, 96, 128, 256] {
        all.push(Case {
            batch: 1,
            mask: CausalDocuments,
            ..case(77, 77, head_dim)
        });
    }
    all
}

/// Cases of tensors that lie otherwise in memory, and of large scores.
fn arranged(element: Element) -> Vec<Case> {
    use Layout::{Sliced, Transposed};
    use MaskKind::{Causal, Window};
    let case = |queries, keys, head_dim| Case {
        element,
        ..Case::new(queries, keys, head_dim)
    };
    let mut all = Vec::new();
    for head_dim in [64, 128] {
        let mask = Causal;
        all.push(Case {
            layout: Sliced,
            mask,
            ..case(77, 141, head_dim)
        });
        all.push(Case {
            layout: Transposed,
            kv_segments: [64, 13],
            mask,
            ..case(77, 0, head_dim)
        });
        all.push(Case {
            heads: 6,
            kv_heads: 2,
            kv_segments: [13, 128],
            mask,
            layout: Sliced,
            ..case(70, 0, head_dim)
        });
        // Scores in the hundreds, of both signs.
        all.push(Case {
            scale: 40.0 / (head_dim as f64).sqrt(),
            mask,
            ..case(77, 77, head_dim)
        });
        all.push(Case {
            scale: -0.3,
            mask: Window,
            ..case(64, 64, head_dim)
        });
    }
    all
}

/// Cases of many rows, of several batch entries and of many heads.
fn large(element: Element) -> [Case; 5] {
    use MaskKind::{Causal, CausalDocuments, Documents, KeyPadding};
    let case = |queries, keys, head_dim| Case {
        element,
        ..Case::new(queries, keys, head_dim)
    };
    [
        Case {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            kv_segments: [1024, 333],
            ..case(77, 0, 64)
        },
        Case {
            batch: 1,
            heads: 1,
            kv_heads: 1,
            mask: Causal,
            ..case(1357, 1357, 64)
        },
        Case {
            batch: 3,
            mask: KeyPadding,
            kv_segments: [64, 64],
            ..case(128, 0, 64)
        },
        Case {
            batch: 3,
            mask: Documents,
            kv_heads: 1,
            heads: 4,
            ..case(64, 128, 128)
        },
        // Kernels take the heads of a masked call by eights: two eights and three more, blocks of several lengths.
        Case {
            mask: CausalDocuments,
            heads: 19,
            kv_heads: 19,
            ..case(150, 150, 64)
        },
    ]
}
