//! Kernels by themselves: as they are launched, for precompilation; and the CUDA sources of those that the tables
//! choose, which need no GPU, for the compile check and for reading.

use crate::mma::Mma;
use crate::mma::arguments::{
    AttentionInputsCompilationArg, AttentionSizesCompilationArg, BackwardKeysInputsCompilationArg,
    BackwardKeysProblemCompilationArg, BackwardQueriesInputsCompilationArg,
    BackwardQueriesProblemCompilationArg, BlockMaskBuffersCompilationArg, ForwardProblemCompilationArg,
    StatisticsBuffersCompilationArg,
};
use crate::mma::backward_keys::mma_backward_keys::MmaBackwardKeys;
use crate::mma::backward_queries::mma_backward_queries::MmaBackwardQueries;
use crate::mma::forward::mma_forward::MmaForward;
use crate::prepared::{DeviceCapabilities, Kernels, Prepared, Selection};
use crate::problem::Problem;
use crate::wgmma::Wgmma;
use crate::wgmma::backward_keys::backward_keys::BackwardKeys;
use crate::wgmma::backward_queries::backward_queries::BackwardQueries;
use crate::wgmma::forward::forward::Forward;
use crate::wgmma::forward_persistent::forward_persistent::ForwardPersistent;
use crate::wgmma::reduce_partials::{THREADS, reduce_partials::ReducePartials};
use crate::{mma, wgmma};
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, CannotCompile, CudaSource, Properties};

/// Kernels that can be had without a launch: the same as are launched.
pub trait Sources: Kernels {
    /// The forward kernel.
    fn forward_kernel(on: &Properties, tiles: Self::Forward) -> Box<dyn CubeKernel>;

    /// The forward kernel with a bias of the scores, if published text encoders ask for one of such tiles.
    fn biased_kernel(_on: &Properties, _tiles: Self::Forward) -> Option<Box<dyn CubeKernel>> {
        None
    }

    /// The kernel for queries.
    fn queries_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernel for keys.
    fn keys_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernel that sums what the kernel for keys leaves in splits, if it does.
    fn reduce_partials_kernel(_on: &Properties, _tiles: Self::Backward) -> Option<Box<dyn CubeKernel>> {
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

/// The kernels that `problem` gets on a device that offers `capabilities`.
///
/// # Errors
/// If CubeCL refuses a kernel.
pub fn sources<K: Sources>(
    problem: &Problem,
    masked: bool,
    capabilities: DeviceCapabilities,
) -> Result<Vec<Source>, CannotCompile> {
    let Selection {
        forward,
        queries,
        keys,
    } = K::select(problem, masked, capabilities);
    let on = Properties::h100();
    let mut out = Vec::new();
    let mut add =
        |kernel: &str, tiles: String, definition: Box<dyn CubeKernel>| -> Result<(), CannotCompile> {
            // `ForwardTiles { head_dim: 64, register_steps: [4, 3], … }` as `64_4_3_…`.
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
    if let Some(kernel) = K::biased_kernel(&on, forward) {
        add("biased", format!("{forward:?}"), kernel)?;
    }
    add("queries", format!("{queries:?}"), K::queries_kernel(&on, queries))?;
    for tiles in keys {
        add("keys", format!("{tiles:?}"), K::keys_kernel(&on, tiles))?;
        if let Some(kernel) = K::reduce_partials_kernel(&on, tiles) {
            add("reduce_partials", format!("{tiles:?}"), kernel)?;
        }
    }
    Ok(out)
}

impl<K: Sources> Prepared<K> {
    /// The kernels that forward and backward launch, for precompilation.
    pub fn kernels(&self) -> Vec<Box<dyn CubeKernel>> {
        let (on, chosen) = (Properties::of(self.client()), self.selection());
        let mut out = vec![
            K::forward_kernel(&on, chosen.forward),
            K::queries_kernel(&on, chosen.queries),
        ];
        for tiles in &chosen.keys {
            out.push(K::keys_kernel(&on, *tiles));
            out.extend(K::reduce_partials_kernel(&on, *tiles));
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

fn attention_inputs(name: &str) -> AttentionInputsCompilationArg {
    AttentionInputsCompilationArg {
        q: tensor(name),
        k: tensor(name),
        v: tensor(name),
        k_2: tensor(name),
        v_2: tensor(name),
    }
}

fn block_mask(name: &str) -> BlockMaskBuffersCompilationArg {
    BlockMaskBuffersCompilationArg {
        work_tiles: buffer(name),
        entries: buffer(name),
        partial_masks: buffer(name),
    }
}

fn attention_sizes() -> AttentionSizesCompilationArg {
    AttentionSizesCompilationArg {
        queries: (),
        lse_rows: (),
        first_keys: (),
        second_keys: (),
        group: (),
    }
}

fn forward_problem(_name: &str) -> ForwardProblemCompilationArg {
    ForwardProblemCompilationArg {
        sizes: attention_sizes(),
        scale_log2: (),
        inverse_scale: (),
    }
}

fn backward_queries_inputs(name: &str) -> BackwardQueriesInputsCompilationArg {
    BackwardQueriesInputsCompilationArg {
        attention: attention_inputs(name),
        o: tensor(name),
        d_o: tensor(name),
    }
}

fn backward_queries_problem(_name: &str) -> BackwardQueriesProblemCompilationArg {
    BackwardQueriesProblemCompilationArg {
        sizes: attention_sizes(),
        scale_log2: (),
        scale: (),
    }
}

fn backward_keys_inputs(name: &str) -> BackwardKeysInputsCompilationArg {
    BackwardKeysInputsCompilationArg {
        q: tensor(name),
        k: tensor(name),
        v: tensor(name),
        d_o: tensor(name),
    }
}

fn statistics(name: &str) -> StatisticsBuffersCompilationArg {
    StatisticsBuffersCompilationArg {
        lse: buffer(name),
        delta: buffer(name),
    }
}

fn backward_keys_problem(_name: &str) -> BackwardKeysProblemCompilationArg {
    BackwardKeysProblemCompilationArg {
        queries: (),
        keys: (),
        lse_rows: (),
        group: (),
        scale_log2: (),
        scale: (),
    }
}

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

/// The test kernel of the softmax of `tiles`: see [`softmax_test_kernel`](wgmma::softmax_test_kernel).
///
/// # Errors
/// If CubeCL refuses it.
#[cfg(feature = "compile-check")]
pub fn softmax_test_kernel(tiles: wgmma::ForwardTiles) -> Result<CudaSource, CannotCompile> {
    use crate::wgmma::softmax_test_kernel::softmax_test_kernel::SoftmaxTestKernel;
    let on = Properties::h100();
    let [scores, output, probabilities, ..] = tiles.vectors();
    let kernel: Box<dyn CubeKernel> = kernel!(SoftmaxTestKernel, on, 32;
        buffer(scores results)
        scalar(tile_count before scale_log2);
        tiles, [scores, probabilities, output]
    );
    offline::cuda_source(kernel.define())
}

/// The test kernel of block masks: see [`block_mask_test_kernel`](crate::block_mask_test_kernel).
///
/// # Errors
/// If CubeCL refuses it.
#[cfg(feature = "compile-check")]
pub fn block_mask_test_kernel(row_groups: usize, columns: usize) -> Result<CudaSource, CannotCompile> {
    use crate::block_mask::words_per_load;
    use crate::block_mask_test_kernel::block_mask_test_kernel::BlockMaskTestKernel;
    let on = Properties::h100();
    let registers = (columns / 2).next_power_of_two();
    let kernel: Box<dyn CubeKernel> = kernel!(BlockMaskTestKernel, on, 128;
        buffer(work_tiles entries partial_masks tiles results)
        scalar(stride row_group);
        row_groups, columns, [registers, words_per_load(columns)]
    );
    offline::cuda_source(kernel.define())
}

impl Sources for Mma {
    fn forward_kernel(on: &Properties, tiles: mma::ForwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaForward, on, tiles.threads() as u32;
            attention_inputs(inputs)
            tensor(o)
            buffer(lse)
            block_mask(mask)
            buffer(bias)
            forward_problem(problem);
            tiles, tiles.vectors()
        )
    }

    // Heads of T5 and UMT5 have 64 channels.
    fn biased_kernel(on: &Properties, tiles: mma::ForwardTiles) -> Option<Box<dyn CubeKernel>> {
        let is_asked_for = tiles.head_dim == 64 && !tiles.two_segments;
        let tiles = mma::ForwardTiles {
            biased: true,
            ..tiles
        };
        is_asked_for.then(|| Self::forward_kernel(on, tiles))
    }

    fn queries_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaBackwardQueries, on, tiles.threads() as u32;
            backward_queries_inputs(inputs)
            tensor(dq)
            buffer(lse delta)
            block_mask(mask)
            backward_queries_problem(problem);
            tiles, tiles.vectors()
        )
    }

    fn keys_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(MmaBackwardKeys, on, tiles.threads() as u32;
            backward_keys_inputs(inputs)
            tensor(dk dv)
            statistics(statistics)
            block_mask(mask)
            backward_keys_problem(problem);
            tiles, tiles.vectors()
        )
    }
}

impl Sources for Wgmma {
    fn forward_kernel(on: &Properties, tiles: wgmma::ForwardTiles) -> Box<dyn CubeKernel> {
        if tiles.persistent {
            return kernel!(ForwardPersistent, on, tiles.threads();
                tensor_map(q k v k_2 v_2 o)
                buffer(lse assignments records record_words partial_masks)
                scalar(head_count queries lse_rows scale_log2);
                tiles, tiles.operand_type.element(), tiles.vectors()
            );
        }
        kernel!(Forward, on, tiles.threads();
            tensor_map(q k v k_2 v_2 o)
            buffer(lse work_tiles entries partial_masks)
            scalar(queries lse_rows first_keys second_keys group scale_log2);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn queries_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardQueries, on, tiles.threads();
            tensor_map(q k v k_2 v_2 d_o dq)
            buffer(o_rows do_rows)
            scalar(o_batch o_head o_row do_batch do_head do_row)
            buffer(lse delta work_tiles entries partial_masks)
            scalar(queries lse_rows first_keys second_keys group scale_log2 scale);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn keys_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardKeys, on, tiles.threads();
            tensor_map(q k v d_o dk dv)
            buffer(sums lse delta work_tiles entries partial_masks)
            scalar(queries lse_rows group scale_log2 scale);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn reduce_partials_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Option<Box<dyn CubeKernel>> {
        (tiles.split_q > 1).then(|| -> Box<dyn CubeKernel> {
            kernel!(ReducePartials, on, THREADS as u32;
                buffer(sums gradient)
                scalar(batch_stride head_stride row_stride rows keys scale);
                tiles.split_q, tiles.head_dim, tiles.operand_type
            )
        })
    }
}
