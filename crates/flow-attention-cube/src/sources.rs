//! CUDA sources of the kernels that the tables choose, without a GPU: for the compile gate and for reading.

use crate::call::Call;
use crate::mma::Mma;
use crate::mma::backward_keys::mma_backward_keys::MmaBackwardKeys;
use crate::mma::backward_queries::mma_backward_queries::MmaBackwardQueries;
use crate::mma::forward::mma_forward::MmaForward;
use crate::run::{Kernels, Offer, Selection};
use crate::wgmma::Wgmma;
use crate::wgmma::backward_keys::backward_keys::BackwardKeys;
use crate::wgmma::backward_queries::backward_queries::BackwardQueries;
use crate::wgmma::forward::forward::Forward;
use crate::wgmma::joint::joint::Joint;
use crate::wgmma::joint_ends::begin::Begin;
use crate::wgmma::joint_ends::finish::Finish;
use crate::{mma, wgmma};
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, CannotCompile, CudaSource};

/// Kernels whose sources can be had.
pub trait Sources: Kernels {
    /// The forward kernel.
    fn define_forward(tiles: Self::Forward) -> KernelDefinition;

    /// The kernel for queries.
    fn define_backward_queries(tiles: Self::Backward) -> KernelDefinition;

    /// The kernel for keys.
    fn define_backward_keys(tiles: Self::Backward) -> KernelDefinition;

    /// The kernels of backward with all gradients at once, with their names: those of tiles that [`Kernels::joint`] gives.
    fn define_joint(_tiles: Self::Backward) -> Vec<(&'static str, KernelDefinition)> {
        Vec::new()
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
        joint: _,
    } = K::select(call, masked, offer);
    let mut out = Vec::new();
    let mut add = |kernel: &str, tiles: String, definition| -> Result<(), CannotCompile> {
        // `ForwardTiles { head_dim: 64, keys: 64, … }` as `64_64_…`.
        let fields = tiles.split_once('{').map_or("", |(_, fields)| fields);
        let values = fields.split(',').filter_map(|field| field.split_once(':'));
        let values: Vec<&str> = values.map(|(_, value)| value.trim_matches([' ', '}'])).collect();
        let name = format!("{}_{kernel}_{}", K::NAME, values.join("_"));
        out.push(Source {
            name,
            cuda: offline::cuda_source(definition)?,
        });
        Ok(())
    };
    add("forward", format!("{forward:?}"), K::define_forward(forward))?;
    add(
        "queries",
        format!("{queries:?}"),
        K::define_backward_queries(queries),
    )?;
    for tiles in keys {
        add("keys", format!("{tiles:?}"), K::define_backward_keys(tiles))?;
    }
    // Whether or not the table chooses them.
    if let Some(tiles) = K::joint(call, masked) {
        for (kernel, definition) in K::define_joint(tiles) {
            add(kernel, format!("{tiles:?}"), definition)?;
        }
    }
    Ok(out)
}

fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

fn tensor() -> TensorCompilationArg {
    TensorCompilationArg {
        meta: TensorMetaCompilationArg { len: (), rank: () },
        buffer: buffer(),
    }
}

impl Sources for Mma {
    fn define_forward(tiles: mma::ForwardTiles) -> KernelDefinition {
        MmaForward::new(
            offline::settings(tiles.threads() as u32),
            offline::h100(),
            offline::target(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.vectors(),
        )
        .define()
    }

    fn define_backward_queries(tiles: mma::BackwardTiles) -> KernelDefinition {
        MmaBackwardQueries::new(
            offline::settings(tiles.threads() as u32),
            offline::h100(),
            offline::target(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.vectors(),
        )
        .define()
    }

    fn define_backward_keys(tiles: mma::BackwardTiles) -> KernelDefinition {
        MmaBackwardKeys::new(
            offline::settings(tiles.threads() as u32),
            offline::h100(),
            offline::target(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            tensor(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.vectors(),
        )
        .define()
    }
}

impl Sources for Wgmma {
    fn define_forward(tiles: wgmma::ForwardTiles) -> KernelDefinition {
        Forward::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (),
            (),
            (),
            (),
            (),
            (),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        )
        .define()
    }

    fn define_backward_queries(tiles: wgmma::BackwardTiles) -> KernelDefinition {
        BackwardQueries::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        )
        .define()
    }

    fn define_backward_keys(tiles: wgmma::BackwardTiles) -> KernelDefinition {
        BackwardKeys::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (),
            (),
            (),
            (),
            (),
            (),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.factor.element(),
            tiles.vectors(),
        )
        .define()
    }

    fn define_joint(tiles: wgmma::BackwardTiles) -> Vec<(&'static str, KernelDefinition)> {
        let kernel = Joint::new(
            offline::settings(tiles.threads()),
            offline::h100(),
            offline::target(),
            (),
            (),
            (),
            (),
            (),
            (),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles,
            tiles.factor.element(),
            tiles.joint_vectors(),
        );
        let begin = Begin::new(
            offline::settings(256),
            offline::h100(),
            offline::target(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles.head_dim,
            tiles.factor,
        );
        let finish = Finish::new(
            offline::settings(256),
            offline::h100(),
            offline::target(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            tiles.head_dim,
            tiles.factor,
        );
        vec![
            ("joint", kernel.define()),
            ("begin", begin.define()),
            ("finish", finish.define()),
        ]
    }
}
