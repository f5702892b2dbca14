//! CUDA sources of kernels, without a GPU: for the compile gate and for reading.

use crate::Element;
use crate::call::Matmul;
use crate::finish::Finish;
use crate::mma;
use crate::mma::THREADS;
use crate::mma::kernel::mma_matmul::MmaMatmul;
use crate::portable::kernel::portable_matmul::PortableMatmul;
use crate::portable::kernel::{Kind, THREADS as PORTABLE_THREADS};
use crate::run::Plan;
use crate::wgmma;
use crate::wgmma::kernel::matmul::Matmul as WgmmaKernel;
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::activation::Arithmetic;
use flow_cube::offline::{self, CannotCompile, CudaSource};
use half::{bf16, f16};

/// A kernel's name and CUDA C++.
#[derive(Clone, Debug)]
pub struct Source {
    /// Backend, layout, tiles and epilogue, fit for a file name.
    pub name: String,
    /// What NVRTC gets.
    pub cuda: CudaSource,
}

fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

fn wgmma(call: &Matmul, tiles: wgmma::Tiles, finish: Finish) -> KernelDefinition {
    WgmmaKernel::new(
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
        buffer(),
        buffer(),
        (),
        (),
        (),
        (),
        (),
        (),
        tiles,
        finish,
        [call.element.native(), finish.output.native()],
        tiles.vector(),
    )
    .define()
}

fn mma(tiles: mma::Tiles, finish: Finish) -> KernelDefinition {
    MmaMatmul::new(
        offline::settings(THREADS as u32),
        offline::h100(),
        offline::target(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
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
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        tiles,
        finish,
        tiles.product().accumulator(),
    )
    .define()
}

fn portable<F: Float, O: Float>(kind: Kind) -> KernelDefinition {
    PortableMatmul::<F, O>::new(
        offline::settings(PORTABLE_THREADS as u32),
        offline::h100(),
        offline::target(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
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
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        kind,
    )
    .define()
}

/// The kernel that `plan` launches for `call`.
///
/// # Errors
/// If CubeCL refuses it.
pub fn source(call: &Matmul, plan: &Plan) -> Result<Source, CannotCompile> {
    let (name, finish, low_rank, definition) = match *plan {
        Plan::Wgmma { tiles, cut } => {
            let finish = Finish::new(call, tiles.factor, cut.parts > 1);
            (tiles.name(), finish, tiles.low_rank, wgmma(call, tiles, finish))
        }
        Plan::Mma { tiles, .. } => {
            let finish = Finish::new(call, tiles.factor, tiles.in_parts);
            (tiles.name(), finish, tiles.low_rank, mma(tiles, finish))
        }
        Plan::Portable => {
            let kind = Kind {
                layout: call.layout,
                low_rank: call.rank > 0,
                bias: call.bias,
                epilogue: call.epilogue.kind(),
                arithmetic: match call.element {
                    Element::F32 => Arithmetic::Precise,
                    _ => Arithmetic::Approximate,
                },
                grouped: call.groups > 0,
            };
            let definition = match call.element {
                Element::F32 => portable::<f32, f32>(kind),
                Element::F16 => portable::<f16, f16>(kind),
                Element::Bf16 => portable::<bf16, bf16>(kind),
            };
            return Ok(Source {
                name: format!(
                    "portable_{:?}_{}{}",
                    call.layout,
                    call.element.name(),
                    if kind.grouped { "_groups" } else { "" }
                ),
                cuda: offline::cuda_source(definition)?,
            });
        }
    };
    let words = format!("{:?}_{}", finish.epilogue, finish.output.name());
    let words: String = words
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    Ok(Source {
        name: format!(
            "{name}_{words}{}{}",
            if finish.bias { "_bias" } else { "" },
            if low_rank { "_low_rank" } else { "" }
        ),
        cuda: offline::cuda_source(definition)?,
    })
}
