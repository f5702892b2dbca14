//! Kernels by themselves: as they are launched, for who compiles them before; and the CUDA sources of those that the tables
//! choose, which need no GPU, for the compile gate and for reading.

use crate::call::Call;
use crate::mma::Mma;
use crate::mma::backward_keys::mma_backward_keys::MmaBackwardKeys;
use crate::mma::backward_queries::mma_backward_queries::MmaBackwardQueries;
use crate::mma::forward::mma_forward::MmaForward;
use crate::run::{Kernels, Offer, Prepared, Selection};
use crate::wgmma::Wgmma;
use crate::wgmma::add_up::{THREADS, add_up::AddUp};
use crate::wgmma::backward_keys::backward_keys::BackwardKeys;
use crate::wgmma::backward_queries::backward_queries::BackwardQueries;
use crate::wgmma::forward::forward::Forward;
use crate::wgmma::staying::forward_staying::ForwardStaying;
use crate::{mma, wgmma};
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, CannotCompile, CudaSource, Properties};

/// Kernels that can be had without a launch: the same as are launched.
pub trait Sources: Kernels {
    /// The forward kernel.
    fn forward_kernel(on: &Properties, tiles: Self::Forward) -> Box<dyn CubeKernel>;

    /// The kernel for queries.
    fn queries_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernel for keys.
    fn keys_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernel that adds up what the kernel for keys leaves in pieces, if it does.
    fn add_up_kernel(_on: &Properties, _tiles: Self::Backward) -> Option<Box<dyn CubeKernel>> {
        None
    }
}

/// A kernel's name and CUDA C++.
#[derive(Clone, Debug)]
pub struct Source {
    /// Backend, kernel and tiles, fit for a file name.
    pub name: String,
    /// What NVRTC gets.
    pub cuda: CudaSource,
}

/// The kernels that `call` gets on a device that offers `offer`.
///
/// # Errors
/// If CubeCL refuses a kernel.
pub fn sources<K: Sources>(call: &Call, masked: bool, offer: Offer) -> Result<Vec<Source>, CannotCompile> {
    let Selection {
        forward,
        queries,
        keys,
    } = K::select(call, masked, offer);
    let on = Properties::h100();
    let mut out = Vec::new();
    let mut add =
        |kernel: &str, tiles: String, definition: Box<dyn CubeKernel>| -> Result<(), CannotCompile> {
            // `ForwardTiles { head_dim: 64, kept: [4, 3], … }` as `64_4_3_…`.
            let fields = tiles.split_once('{').map_or("", |(_, fields)| fields);
            let words = fields.split_whitespace().filter(|word| !word.ends_with(':'));
            let values = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
            let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
            let name = format!("{}_{kernel}_{}", K::NAME, values.join("_"));
            out.push(Source {
                name,
                cuda: offline::cuda_source(definition.define())?,
            });
            Ok(())
        };
    add("forward", format!("{forward:?}"), K::forward_kernel(&on, forward))?;
    add("queries", format!("{queries:?}"), K::queries_kernel(&on, queries))?;
    for tiles in keys {
        add("keys", format!("{tiles:?}"), K::keys_kernel(&on, tiles))?;
        if let Some(kernel) = K::add_up_kernel(&on, tiles) {
            add("add_up", format!("{tiles:?}"), kernel)?;
        }
    }
    Ok(out)
}

impl<K: Sources> Prepared<K> {
    /// The kernels that forward and backward launch, for who compiles them before.
    pub fn kernels(&self) -> Vec<Box<dyn CubeKernel>> {
        let (on, chosen) = (Properties::of(self.client()), self.selection());
        let mut out = vec![
            K::forward_kernel(&on, chosen.forward),
            K::queries_kernel(&on, chosen.queries),
        ];
        for tiles in &chosen.keys {
            out.push(K::keys_kernel(&on, *tiles));
            out.extend(K::add_up_kernel(&on, *tiles));
        }
        out
    }
}

// What a kernel is compiled for, by kind of argument. Nothing of a tensor map or a scalar is compiled in.
fn buffer(_name: &str) -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

fn tensor(name: &str) -> TensorCompilationArg {
    TensorCompilationArg {
        meta: TensorMetaCompilationArg { len: (), rank: () },
        buffer: buffer(name),
    }
}

fn tensor_map(_name: &str) {}

fn scalar(_name: &str) {}

/// A kernel for a device: its arguments by kind and name, in their order, then what is compiled in.
macro_rules! kernel {
    ($kernel:ident, $on:expr, $threads:expr; $($kind:ident($($name:ident)*))*; $($known:expr),*) => {
        Box::new($kernel::new(
            offline::settings($threads),
            $on.device.clone(),
            $on.target.clone(),
            $($($kind(stringify!($name)),)*)*
            $($known),*
        ))
    };
}

/// The softmax of `tiles`, alone: see [`alone`](wgmma::alone).
///
/// # Errors
/// If CubeCL refuses it.
#[cfg(feature = "ptx-gate")]
pub fn softmax_alone(tiles: wgmma::ForwardTiles) -> Result<CudaSource, CannotCompile> {
    use crate::wgmma::alone::softmax_alone::SoftmaxAlone;
    let on = Properties::h100();
    let [scores, output, probabilities, ..] = tiles.vectors();
    let kernel: Box<dyn CubeKernel> = kernel!(SoftmaxAlone, on, 32;
        buffer(scores results)
        scalar(tile_count before factor);
        tiles, [scores, probabilities, output]
    );
    offline::cuda_source(kernel.define())
}

/// What a unit sees of the tiles of a mask's list, alone: see [`passing_alone`](crate::passing_alone).
///
/// # Errors
/// If CubeCL refuses it.
#[cfg(feature = "ptx-gate")]
pub fn passing_alone(units: usize, columns: usize) -> Result<CudaSource, CannotCompile> {
    use crate::passing::words_at_once;
    use crate::passing_alone::passing_alone::PassingAlone;
    let on = Properties::h100();
    let registers = (columns / 2).next_power_of_two();
    let kernel: Box<dyn CubeKernel> = kernel!(PassingAlone, on, 128;
        buffer(turns entries patterns tiles results)
        scalar(stride unit);
        units, columns, [registers, words_at_once(columns)]
    );
    offline::cuda_source(kernel.define())
}

impl Sources for Mma {
    fn forward_kernel(on: &Properties, tiles: mma::ForwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaForward, on, tiles.threads() as u32;
            tensor(q k v k_2 v_2 o)
            buffer(lse turns entries patterns)
            scalar(queries lse_rows first_keys second_keys group factor);
            tiles, tiles.vectors()
        )
    }

    fn queries_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaBackwardQueries, on, tiles.threads() as u32;
            tensor(q k v k_2 v_2 o d_o dq)
            buffer(lse delta turns entries patterns)
            scalar(queries lse_rows first_keys second_keys group factor scale);
            tiles, tiles.vectors()
        )
    }

    fn keys_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaBackwardKeys, on, tiles.threads() as u32;
            tensor(q k v d_o dk dv)
            buffer(lse delta turns entries patterns)
            scalar(queries keys lse_rows group factor scale);
            tiles, tiles.vectors()
        )
    }
}

impl Sources for Wgmma {
    fn forward_kernel(on: &Properties, tiles: wgmma::ForwardTiles) -> Box<dyn CubeKernel> {
        if tiles.stays {
            return kernel!(ForwardStaying, on, tiles.threads();
                tensor_map(q k v k_2 v_2 o)
                buffer(lse shares records record_words patterns)
                scalar(head_count queries lse_rows factor);
                tiles, tiles.factor.element(), tiles.vectors()
            );
        }
        kernel!(Forward, on, tiles.threads();
            tensor_map(q k v k_2 v_2 o)
            buffer(lse turns entries patterns)
            scalar(queries lse_rows first_keys second_keys group factor);
            tiles, tiles.factor.element(), tiles.vectors()
        )
    }

    fn queries_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardQueries, on, tiles.threads();
            tensor_map(q k v k_2 v_2 d_o dq)
            buffer(o_rows do_rows)
            scalar(o_batch o_head o_row do_batch do_head do_row)
            buffer(lse delta turns entries patterns)
            scalar(queries lse_rows first_keys second_keys group factor scale);
            tiles, tiles.factor.element(), tiles.vectors()
        )
    }

    fn keys_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardKeys, on, tiles.threads();
            tensor_map(q k v d_o dk dv)
            buffer(sums lse delta turns entries patterns)
            scalar(queries lse_rows group factor scale);
            tiles, tiles.factor.element(), tiles.vectors()
        )
    }

    fn add_up_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Option<Box<dyn CubeKernel>> {
        (tiles.pieces > 1).then(|| -> Box<dyn CubeKernel> {
            kernel!(AddUp, on, THREADS as u32;
                buffer(sums gradient)
                scalar(batch_stride head_stride row_stride rows keys scale);
                tiles.pieces, tiles.head_dim, tiles.factor
            )
        })
    }
}
