//! Kernels by themselves: as they are launched, for who compiles them before; and the CUDA sources of those that the tables
//! choose, which need no GPU, for the compile gate and for reading.

use crate::call::Call;
use crate::mma::Mma;
use crate::mma::backward_keys::mma_backward_keys::MmaBackwardKeys;
use crate::mma::backward_queries::mma_backward_queries::MmaBackwardQueries;
use crate::mma::forward::mma_forward::MmaForward;
use crate::run::{Kernels, Offer, Prepared, Selection};
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
use flow_cube::offline::{self, CannotCompile, CudaSource, Properties};

/// Kernels that can be had without a launch: the same as are launched.
pub trait Sources: Kernels {
    /// The forward kernel.
    fn forward_kernel(on: &Properties, tiles: Self::Forward) -> Box<dyn CubeKernel>;

    /// The kernel for queries.
    fn queries_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernel for keys.
    fn keys_kernel(on: &Properties, tiles: Self::Backward) -> Box<dyn CubeKernel>;

    /// The kernels of backward with all gradients at once, with their names: those of tiles that [`Kernels::joint`] gives.
    fn joint_kernels(_on: &Properties, _tiles: Self::Backward) -> Vec<(&'static str, Box<dyn CubeKernel>)> {
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
    let on = Properties::h100();
    let mut out = Vec::new();
    let mut add =
        |kernel: &str, tiles: String, definition: Box<dyn CubeKernel>| -> Result<(), CannotCompile> {
            // `ForwardTiles { head_dim: 64, keys: 64, … }` as `64_64_…`.
            let fields = tiles.split_once('{').map_or("", |(_, fields)| fields);
            let values = fields.split(',').filter_map(|field| field.split_once(':'));
            let values: Vec<&str> = values.map(|(_, value)| value.trim_matches([' ', '}'])).collect();
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
    }
    // Whether or not the table chooses them.
    if let Some(tiles) = K::joint(call, masked) {
        for (kernel, definition) in K::joint_kernels(&on, tiles) {
            add(kernel, format!("{tiles:?}"), definition)?;
        }
    }
    Ok(out)
}

impl<K: Sources> Prepared<K> {
    /// The kernels that forward and backward launch, for who compiles them before.
    pub fn kernels(&self) -> Vec<Box<dyn CubeKernel>> {
        let (on, chosen) = (Properties::of(self.client()), self.selection());
        let mut out = vec![K::forward_kernel(&on, chosen.forward)];
        match chosen.joint {
            Some(tiles) => out.extend(K::joint_kernels(&on, tiles).into_iter().map(|(_, kernel)| kernel)),
            None => {
                out.push(K::queries_kernel(&on, chosen.queries));
                out.extend(chosen.keys.iter().map(|tiles| K::keys_kernel(&on, *tiles)));
            }
        }
        out
    }
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
    fn forward_kernel(on: &Properties, tiles: mma::ForwardTiles) -> Box<dyn CubeKernel> {
        Box::new(MmaForward::new(
            offline::settings(tiles.threads() as u32),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }

    fn queries_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        Box::new(MmaBackwardQueries::new(
            offline::settings(tiles.threads() as u32),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }

    fn keys_kernel(on: &Properties, tiles: mma::BackwardTiles) -> Box<dyn CubeKernel> {
        Box::new(MmaBackwardKeys::new(
            offline::settings(tiles.threads() as u32),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }
}

impl Sources for Wgmma {
    fn forward_kernel(on: &Properties, tiles: wgmma::ForwardTiles) -> Box<dyn CubeKernel> {
        Box::new(Forward::new(
            offline::settings(tiles.threads()),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }

    fn queries_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        Box::new(BackwardQueries::new(
            offline::settings(tiles.threads()),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }

    fn keys_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        Box::new(BackwardKeys::new(
            offline::settings(tiles.threads()),
            on.device.clone(),
            on.target.clone(),
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
        ))
    }

    fn joint_kernels(
        on: &Properties,
        tiles: wgmma::BackwardTiles,
    ) -> Vec<(&'static str, Box<dyn CubeKernel>)> {
        let kernel = Joint::new(
            offline::settings(tiles.threads()),
            on.device.clone(),
            on.target.clone(),
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
            on.device.clone(),
            on.target.clone(),
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
            on.device.clone(),
            on.target.clone(),
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
            ("joint", Box::new(kernel)),
            ("begin", Box::new(begin)),
            ("finish", Box::new(finish)),
        ]
    }
}
