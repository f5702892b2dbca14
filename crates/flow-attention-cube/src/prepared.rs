//! A problem made ready to launch: selects tiles, compiles the mask, launches forward and backward.

use crate::launch_order::Grid;
use crate::problem::{Problem, Refusal, check_scale};
use crate::tensors::{Backward, BlockMask, Forward, Heads, KvSegment, lse_rows};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::{Mask, MaskError, MaskTiles, Side, Sizes, Tiling};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// The tile sizes of a kernel, as a mask is compiled for them.
pub trait MaskTiling: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Row groups of 64 stationary rows in a block.
    fn row_groups(&self) -> usize;

    /// Streamed rows of a tile.
    fn columns(&self) -> usize;
}

/// Tiles of the three kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection<F, B> {
    /// Forward.
    pub forward: F,
    /// Gradient of queries.
    pub queries: B,
    /// Gradients of keys and values: one launch, or one for each, with the same tile sizes.
    pub keys: Vec<B>,
}

impl<F: MaskTiling, B: MaskTiling> Selection<F, B> {
    /// The tiles as text, for logs and manifests: stationary by streamed rows, forward / queries / keys.
    pub fn name(&self, kernels: &str) -> String {
        let tile = |row_groups: usize, columns: usize| format!("{}x{columns}", 64 * row_groups);
        let keys: Vec<String> = self
            .keys
            .iter()
            .map(|keys| tile(keys.row_groups(), keys.columns()))
            .collect();
        format!(
            "{kernels} {} / {} / {}",
            tile(self.forward.row_groups(), self.forward.columns()),
            tile(self.queries.row_groups(), self.queries.columns()),
            keys.join(" + ")
        )
    }

    /// The mask's tiles for the forward kernel.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn forward_mask(&self, mask: &Mask, sizes: Sizes) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Queries,
            row_groups_per_block: self.forward.row_groups(),
            columns: self.forward.columns(),
        };
        MaskTiles::new(mask, sizes, tiling)
    }

    /// The mask's tiles for the kernel for queries.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn queries_mask(&self, mask: &Mask, sizes: Sizes) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Queries,
            row_groups_per_block: self.queries.row_groups(),
            columns: self.queries.columns(),
        };
        MaskTiles::new(mask, sizes, tiling)
    }

    /// The mask's tiles for the kernel for keys, of segment `segment`.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn keys_mask(&self, mask: &Mask, sizes: Sizes, segment: usize) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Keys { segment },
            row_groups_per_block: self.keys[0].row_groups(),
            columns: self.keys[0].columns(),
        };
        MaskTiles::new(mask, sizes, tiling)
    }
}

/// The gradients that one launch of the kernel for keys computes. Above 128 channels both do not fit into registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvGradients {
    /// Gradients of keys and values.
    Both,
    /// Gradients of keys.
    Keys,
    /// Gradients of values.
    Values,
}

impl KvGradients {
    /// Whether gradients of keys are made.
    pub fn keys(self) -> bool {
        self != Self::Values
    }

    /// Whether gradients of values are made.
    pub fn values(self) -> bool {
        self != Self::Keys
    }
}

/// The capabilities of a device that selections depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCapabilities {
    /// Shared memory of a block, in bytes.
    pub shared_bytes: usize,
}

impl DeviceCapabilities {
    /// Those of `client`'s device.
    pub fn of(client: &Client) -> Self {
        Self {
            shared_bytes: client.properties().hardware.max_shared_memory_size,
        }
    }
}

/// The kernels of a backend, and its table.
pub trait Kernels: Send + Sync + 'static {
    /// For logs and manifests.
    const NAME: &'static str;
    /// Whether the forward kernel takes its row maximum from the first tile of a list, which should then be one that a whole
    /// block sees.
    const MAX_FROM_FIRST_TILE: bool = false;
    /// Whether the forward kernel adds a bias by distance to the scores.
    const ADDS_BIAS: bool = false;
    /// Tiles of the forward kernel.
    type Forward: MaskTiling;
    /// A mask on the device, for the forward kernel.
    type ForwardMask: Debug + Send + Sync;
    /// Tiles of the backward kernels.
    type Backward: MaskTiling;

    /// Whether the device has the instructions and the shared memory that the kernels need.
    ///
    /// # Errors
    /// [`Refusal`] with what it lacks.
    fn check(client: &Client, problem: &Problem) -> Result<(), Refusal>;

    /// Partial sums in f32 that the kernel for keys leaves in memory for a reduction.
    fn partial_sums(_call: &Problem, _tiles: &Self::Backward) -> usize {
        0
    }

    /// The table. `masked`: whether the call has a mask.
    fn select(
        problem: &Problem,
        masked: bool,
        capabilities: DeviceCapabilities,
    ) -> Selection<Self::Forward, Self::Backward>;

    /// Uploads the tiles of a mask for the forward kernel, whose blocks would be those of `grid`; or what it gets without one.
    fn forward_mask(
        client: &Client,
        problem: &Problem,
        mask: Option<(&MaskTiles, Grid)>,
        tiles: &Self::Forward,
    ) -> Self::ForwardMask;

    /// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, lse_rows]` in f32, plus infinity where
    /// there is no row or no key. There is a bias only where [`ADDS_BIAS`](Self::ADDS_BIAS) says so, and for keys in one segment.
    fn forward(
        client: &Client,
        of: Forward<'_>,
        kv_segments: &[KvSegment<'_>],
        o: &Heads,
        lse: &Handle,
        list: &Self::ForwardMask,
        tiles: Self::Forward,
    );

    /// Launches the kernel for queries: `dq` and `delta`. The list is that of forward, for its tiles.
    fn backward_queries(
        client: &Client,
        of: Backward<'_>,
        kv_segments: &[KvSegment<'_>],
        dq: &Heads,
        list: &BlockMask,
        tiles: Self::Backward,
    );

    /// Launches the kernel for one segment of the keys: `dk` and `dv`. Its list has keys as rows, queries are streamed.
    fn backward_keys(
        client: &Client,
        of: Backward<'_>,
        part: KvSegment<'_>,
        gradients: [&Heads; 2],
        list: &BlockMask,
        tiles: Self::Backward,
    );
}

/// A call made ready: its tiles, and its mask on the device. Making one compiles the mask, so it is kept and used again
/// for all calls of the shape.
pub struct Prepared<K: Kernels> {
    problem: Problem,
    scale: f32,
    selection: Selection<K::Forward, K::Backward>,
    client: Client,
    mask: Option<Arc<Mask>>,
    forward: K::ForwardMask,
    backward: OnceLock<BackwardMasks>,
}

impl<K: Kernels> Debug for Prepared<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("kernels", &K::NAME)
            .field("problem", &self.problem)
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct BackwardMasks {
    queries: BlockMask,
    keys: Vec<BlockMask>,
}

impl<K: Kernels> Prepared<K> {
    /// Chooses tiles and compiles the mask.
    ///
    /// # Errors
    /// [`Refusal`] if the kernels do not serve the call, or the mask does not fit it.
    pub fn new(
        client: &Client,
        problem: Problem,
        scale: f32,
        mask: Option<Arc<Mask>>,
    ) -> Result<Self, Refusal> {
        problem.check()?;
        K::check(client, &problem)?;
        check_scale(scale)?;
        let selection = K::select(&problem, mask.is_some(), DeviceCapabilities::of(client));
        let forward = match &mask {
            Some(mask) => {
                let tiles = selection.forward_mask(mask, problem.sizes());
                let tiles = tiles.map_err(|error| Refusal::because(error.to_string()))?;
                let tiles = if K::MAX_FROM_FIRST_TILE {
                    tiles.whole_first()
                } else {
                    tiles
                };
                let mask = Some((&tiles, grid(&problem, &tiles)));
                K::forward_mask(client, &problem, mask, &selection.forward)
            }
            None => K::forward_mask(client, &problem, None, &selection.forward),
        };
        Ok(Self {
            problem,
            scale,
            selection,
            client: client.clone(),
            mask,
            forward,
            backward: OnceLock::new(),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The call.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The tiles.
    pub fn selection(&self) -> &Selection<K::Forward, K::Backward> {
        &self.selection
    }

    /// Values in `lse [B, H, lse_rows]`.
    pub fn statistics(&self) -> usize {
        self.problem.batch * self.problem.heads * lse_rows(self.problem.queries)
    }

    /// Values in `delta`, the scratch of backward, in f32: `[B, H, lse_rows]`, then what kernels leave for those that follow.
    pub fn scratch(&self) -> usize {
        let sums = |tiles| K::partial_sums(&self.problem, tiles);
        self.statistics() + self.selection.keys.iter().map(sums).max().unwrap_or(0)
    }

    /// Writes `o [B, H, S, D]` and `lse [B, H, lse_rows]`.
    pub fn forward(&self, q: &Heads, kv_segments: &[KvSegment<'_>], o: &Heads, lse: &Handle) {
        self.launch_forward(q, kv_segments, o, lse, None);
    }

    /// As [`forward`](Self::forward), with `bias [H, S + T - 1]` added to the scaled scores, in f32 without gaps: key `j` of query `i`
    /// gets the value at `j - i + S - 1`.
    ///
    /// # Errors
    /// [`Refusal`] if the kernels add none, or keys are in two segments.
    pub fn forward_biased(
        &self,
        q: &Heads,
        kv_segments: &[KvSegment<'_>],
        o: &Heads,
        lse: &Handle,
        bias: &Handle,
    ) -> Result<(), Refusal> {
        Self::check_bias(&self.problem)?;
        self.launch_forward(q, kv_segments, o, lse, Some(bias));
        Ok(())
    }

    /// Whether the forward kernel adds a bias by distance to the scores of `problem`.
    ///
    /// # Errors
    /// [`Refusal`] if it adds none, or keys are in two segments.
    pub fn check_bias(problem: &Problem) -> Result<(), Refusal> {
        if !K::ADDS_BIAS {
            let why = format!("the `{}` kernels add no bias to scores", K::NAME);
            return Err(Refusal::because(why));
        }
        if problem.keys[1] > 0 {
            return Err(Refusal::because(
                "the kernels add a bias to scores of keys in one part, not in two",
            ));
        }
        Ok(())
    }

    fn launch_forward(
        &self,
        q: &Heads,
        kv_segments: &[KvSegment<'_>],
        o: &Heads,
        lse: &Handle,
        bias: Option<&Handle>,
    ) {
        let of = Forward {
            q,
            scale: self.scale,
            bias,
        };
        let (list, tiles) = (&self.forward, self.selection.forward);
        K::forward(&self.client, of, kv_segments, o, lse, list, tiles);
    }

    /// Writes `dq`, and `dk` and `dv` for each segment. `delta` is for the sums over channels of `d_o ∘ o`, and has
    /// [`scratch`](Self::scratch) values.
    pub fn backward(
        &self,
        [q, o, d_o]: [&Heads; 3],
        kv_segments: &[KvSegment<'_>],
        lse: &Handle,
        delta: &Handle,
        dq: &Heads,
        d_kv_segments: &[[&Heads; 2]],
    ) {
        let of = Backward {
            q,
            o,
            d_o,
            lse,
            delta,
            scale: self.scale,
        };
        let lists = self.backward.get_or_init(|| self.backward_masks());
        K::backward_queries(
            &self.client,
            of,
            kv_segments,
            dq,
            &lists.queries,
            self.selection.queries,
        );
        for ((part, gradients), list) in kv_segments.iter().zip(d_kv_segments).zip(&lists.keys) {
            for tiles in &self.selection.keys {
                K::backward_keys(&self.client, of, *part, *gradients, list, *tiles);
            }
        }
    }

    fn backward_masks(&self) -> BackwardMasks {
        let segment_count = 1 + usize::from(self.problem.keys[1] > 0);
        let Some(mask) = &self.mask else {
            let none = BlockMask::none(&self.client);
            return BackwardMasks {
                queries: none.clone(),
                keys: vec![none; segment_count],
            };
        };
        let sizes = self.problem.sizes();
        let fits = "a mask that fits forward fits backward";
        BackwardMasks {
            queries: uploaded(
                &self.client,
                &self.problem,
                &self.selection.queries_mask(mask, sizes).expect(fits),
            ),
            keys: (0..segment_count)
                .map(|s| {
                    uploaded(
                        &self.client,
                        &self.problem,
                        &self.selection.keys_mask(mask, sizes, s).expect(fits),
                    )
                })
                .collect(),
        }
    }
}

/// The list of a mask for a backward kernel of `problem`.
fn uploaded(client: &Client, problem: &Problem, tiles: &MaskTiles) -> BlockMask {
    BlockMask::new(client, tiles, grid(problem, tiles))
}

/// The grid of a kernel of `problem` whose blocks have the lists of `tiles`.
fn grid(problem: &Problem, tiles: &MaskTiles) -> Grid {
    let group = problem.heads / problem.kv_heads;
    // (heads, values of two tensors that pass the blocks of one)
    let (heads, values) = match tiles.tiling.side {
        Side::Queries => (
            problem.heads,
            2 * (problem.keys[0] + problem.keys[1]) * problem.head_dim / group,
        ),
        Side::Keys { .. } => (problem.kv_heads, 2 * group * problem.queries * problem.head_dim),
    };
    Grid {
        samples: problem.batch,
        heads,
        streamed_bytes: values * size_of::<half::bf16>(),
    }
}
