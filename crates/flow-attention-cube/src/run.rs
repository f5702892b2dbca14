//! A call from beginning to end: forward, and backward from what forward kept.

use crate::call::{Call, Declined, check_scale};
use crate::order::Grid;
use crate::tensors::{Backward, Heads, Part, TileList, lse_rows};
use cubecl::prelude::*;
use cubecl_runtime::server::Handle;
use flow_attention_mask::{Mask, MaskError, MaskTiles, Side, Sizes, Tiling};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};

/// How a kernel cuts its work, as far as masks are concerned.
pub trait Cut: Copy + Debug + PartialEq + Send + Sync + 'static {
    /// Units of 64 resident rows in a block.
    fn units(&self) -> usize;

    /// Passing rows of a tile.
    fn columns(&self) -> usize;
}

/// Tiles of the three kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection<F, B> {
    /// Forward.
    pub forward: F,
    /// Gradient of queries.
    pub queries: B,
    /// Gradients of keys and values: one launch, or one for each. All cut the same way.
    pub keys: Vec<B>,
}

impl<F: Cut, B: Cut> Selection<F, B> {
    /// The tiles in words, for logs and manifests: rows that stay by rows that pass, forward / queries / keys.
    pub fn name(&self, kernels: &str) -> String {
        let tile = |units: usize, columns: usize| format!("{}x{columns}", 64 * units);
        let keys: Vec<String> = self
            .keys
            .iter()
            .map(|keys| tile(keys.units(), keys.columns()))
            .collect();
        format!(
            "{kernels} {} / {} / {}",
            tile(self.forward.units(), self.forward.columns()),
            tile(self.queries.units(), self.queries.columns()),
            keys.join(" + ")
        )
    }

    /// The mask's tiles for the forward kernel.
    ///
    /// # Errors
    /// If the mask does not fit `sizes`.
    pub fn forward_list(&self, mask: &Mask, sizes: Sizes) -> Result<MaskTiles, MaskError> {
        let tiling = Tiling {
            side: Side::Queries,
            units_per_block: self.forward.units(),
            columns: self.forward.columns(),
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
            units_per_block: self.queries.units(),
            columns: self.queries.columns(),
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
            units_per_block: self.keys[0].units(),
            columns: self.keys[0].columns(),
        };
        MaskTiles::new(mask, sizes, tiling)
    }
}

/// Which sums the kernel for keys makes. Both of a head of more than 128 channels do not fit into registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sums {
    /// Gradients of keys and values.
    Both,
    /// Gradients of keys.
    Keys,
    /// Gradients of values.
    Values,
}

impl Sums {
    /// Whether gradients of keys are made.
    pub fn keys(self) -> bool {
        self != Self::Values
    }

    /// Whether gradients of values are made.
    pub fn values(self) -> bool {
        self != Self::Keys
    }
}

/// What a device offers, as far as selections depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Shared memory of a block, in bytes.
    pub shared_bytes: usize,
}

impl Offer {
    /// What `client`'s device offers.
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
    /// Whether the forward kernel judges by the first tile of a list how large scores are, so that it should be one that a whole
    /// block sees.
    const BY_FIRST_TILE: bool = false;
    /// Tiles of the forward kernel.
    type Forward: Cut;
    /// A mask on the device, for the forward kernel.
    type ForwardList: Debug + Send + Sync;
    /// Tiles of the backward kernels.
    type Backward: Cut;

    /// Whether the device has what the kernels are made of.
    ///
    /// # Errors
    /// [`Declined`] with what it lacks.
    fn check(client: &Client, call: &Call) -> Result<(), Declined>;

    /// Values in f32 that the kernel for keys leaves in memory for one that adds them up.
    fn sums_of_pieces(_call: &Call, _tiles: &Self::Backward) -> usize {
        0
    }

    /// The table. `masked`: whether the call has a mask.
    fn select(call: &Call, masked: bool, offer: Offer) -> Selection<Self::Forward, Self::Backward>;

    /// Uploads the tiles of a mask for the forward kernel, whose blocks would be those of `grid`; or what it gets without one.
    fn forward_list(
        client: &Client,
        call: &Call,
        mask: Option<(&MaskTiles, Grid)>,
        tiles: &Self::Forward,
    ) -> Self::ForwardList;

    /// Launches the forward kernel: `o = softmax(q kᵀ scale) v`, and `lse [B, H, lse_rows]` in f32, plus infinity where
    /// there is no row or no key.
    #[allow(clippy::too_many_arguments)]
    fn forward(
        client: &Client,
        q: &Heads,
        parts: &[Part<'_>],
        o: &Heads,
        lse: &Handle,
        list: &Self::ForwardList,
        scale: f32,
        tiles: Self::Forward,
    );

    /// Launches the kernel for queries: `dq` and `delta`. The list is that of forward, for its tiles.
    fn backward_queries(
        client: &Client,
        of: Backward<'_>,
        parts: &[Part<'_>],
        dq: &Heads,
        list: &TileList,
        tiles: Self::Backward,
    );

    /// Launches the kernel for one part of the keys: `dk` and `dv`. Its list has keys as rows, queries pass.
    fn backward_keys(
        client: &Client,
        of: Backward<'_>,
        part: Part<'_>,
        gradients: [&Heads; 2],
        list: &TileList,
        tiles: Self::Backward,
    );
}

/// A call made ready: its tiles, and its mask on the device. Making one compiles the mask, so it is kept and used again
/// for all calls of the shape.
pub struct Prepared<K: Kernels> {
    call: Call,
    scale: f32,
    selection: Selection<K::Forward, K::Backward>,
    client: Client,
    mask: Option<Arc<Mask>>,
    forward: K::ForwardList,
    backward: OnceLock<BackwardLists>,
}

impl<K: Kernels> Debug for Prepared<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("kernels", &K::NAME)
            .field("call", &self.call)
            .field("selection", &self.selection)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct BackwardLists {
    queries: TileList,
    keys: Vec<TileList>,
}

impl<K: Kernels> Prepared<K> {
    /// Chooses tiles and compiles the mask.
    ///
    /// # Errors
    /// [`Declined`] if the kernels do not serve the call, or the mask does not fit it.
    pub fn new(client: &Client, call: Call, scale: f32, mask: Option<Arc<Mask>>) -> Result<Self, Declined> {
        call.check()?;
        K::check(client, &call)?;
        check_scale(scale)?;
        let selection = K::select(&call, mask.is_some(), Offer::of(client));
        let forward = match &mask {
            Some(mask) => {
                let tiles = selection.forward_list(mask, call.sizes());
                let tiles = tiles.map_err(|error| Declined {
                    why: error.to_string(),
                })?;
                let tiles = if K::BY_FIRST_TILE {
                    tiles.whole_first()
                } else {
                    tiles
                };
                let mask = Some((&tiles, grid(&call, &tiles)));
                K::forward_list(client, &call, mask, &selection.forward)
            }
            None => K::forward_list(client, &call, None, &selection.forward),
        };
        Ok(Self {
            call,
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
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// The tiles.
    pub fn selection(&self) -> &Selection<K::Forward, K::Backward> {
        &self.selection
    }

    /// Values in `lse [B, H, lse_rows]`.
    pub fn statistics(&self) -> usize {
        self.call.batch * self.call.heads * lse_rows(self.call.queries)
    }

    /// Values in `delta`, the scratch of backward, in f32: `[B, H, lse_rows]`, then what kernels leave for those that follow.
    pub fn scratch(&self) -> usize {
        let sums = |tiles| K::sums_of_pieces(&self.call, tiles);
        self.statistics() + self.selection.keys.iter().map(sums).max().unwrap_or(0)
    }

    /// Writes `o [B, H, S, D]` and `lse [B, H, lse_rows]`.
    pub fn forward(&self, q: &Heads, parts: &[Part<'_>], o: &Heads, lse: &Handle) {
        K::forward(
            &self.client,
            q,
            parts,
            o,
            lse,
            &self.forward,
            self.scale,
            self.selection.forward,
        );
    }

    /// Writes `dq`, and `dk` and `dv` for each part. `delta` is for the sums over channels of `d_o ∘ o`, and has
    /// [`scratch`](Self::scratch) values.
    pub fn backward(
        &self,
        [q, o, d_o]: [&Heads; 3],
        parts: &[Part<'_>],
        lse: &Handle,
        delta: &Handle,
        dq: &Heads,
        d_parts: &[[&Heads; 2]],
    ) {
        let of = Backward {
            q,
            o,
            d_o,
            lse,
            delta,
            scale: self.scale,
        };
        let lists = self.backward.get_or_init(|| self.backward_lists());
        K::backward_queries(
            &self.client,
            of,
            parts,
            dq,
            &lists.queries,
            self.selection.queries,
        );
        for ((part, gradients), list) in parts.iter().zip(d_parts).zip(&lists.keys) {
            for tiles in &self.selection.keys {
                K::backward_keys(&self.client, of, *part, *gradients, list, *tiles);
            }
        }
    }

    fn backward_lists(&self) -> BackwardLists {
        let segments = 1 + usize::from(self.call.keys[1] > 0);
        let Some(mask) = &self.mask else {
            let none = TileList::none(&self.client);
            return BackwardLists {
                queries: none.clone(),
                keys: vec![none; segments],
            };
        };
        let sizes = self.call.sizes();
        let fits = "a mask that fits forward fits backward";
        BackwardLists {
            queries: uploaded(
                &self.client,
                &self.call,
                &self.selection.queries_list(mask, sizes).expect(fits),
            ),
            keys: (0..segments)
                .map(|s| {
                    uploaded(
                        &self.client,
                        &self.call,
                        &self.selection.keys_list(mask, sizes, s).expect(fits),
                    )
                })
                .collect(),
        }
    }
}

/// The list of a mask for a backward kernel of `call`.
fn uploaded(client: &Client, call: &Call, tiles: &MaskTiles) -> TileList {
    TileList::new(client, tiles, grid(call, tiles))
}

/// The grid of a kernel of `call` whose blocks have the lists of `tiles`.
fn grid(call: &Call, tiles: &MaskTiles) -> Grid {
    let group = call.heads / call.kv_heads;
    // (heads, values of two tensors that pass the blocks of one)
    let (heads, values) = match tiles.tiling.side {
        Side::Queries => (
            call.heads,
            2 * (call.keys[0] + call.keys[1]) * call.head_dim / group,
        ),
        Side::Keys { .. } => (call.kv_heads, 2 * group * call.queries * call.head_dim),
    };
    Grid {
        samples: call.batch,
        heads,
        passing_bytes: values * size_of::<half::bf16>(),
    }
}
