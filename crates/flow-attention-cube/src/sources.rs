//! Kernels by themselves: as they are launched, for precompilation; and the CUDA sources of those that the tables
//! choose, which need no GPU, for the compile check and for reading.

use crate::prepared::{DeviceCapabilities, Kernels, Prepared, Selection};
use crate::problem::Problem;
#[cfg(feature = "compile-check")]
use crate::wgmma as hopper;
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, CannotCompile, CudaSource, Properties};

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

mod mma;
mod wgmma;

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

#[cfg(feature = "compile-check")]
fn scalar(_name: &str) {}

/// The test kernel of the softmax of `tiles`: see [`softmax_test_kernel`](crate::wgmma::softmax_test_kernel).
///
/// # Errors
/// If CubeCL refuses it.
#[cfg(feature = "compile-check")]
pub fn softmax_test_kernel(tiles: hopper::ForwardTiles) -> Result<CudaSource, CannotCompile> {
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
    use wgmma::block_mask;
    let on = Properties::h100();
    let registers = (columns / 2).next_power_of_two();
    let kernel: Box<dyn CubeKernel> = kernel!(BlockMaskTestKernel, on, 128;
        block_mask(mask)
        buffer(tiles results)
        scalar(stride row_group);
        row_groups, columns, [registers, words_per_load(columns)]
    );
    offline::cuda_source(kernel.define())
}
