//! CUDA sources of kernels, without a GPU: for the compile gate and for reading.

use crate::call::Matmul;
use crate::finish::Finish;
use crate::mma;
use crate::mma::THREADS;
use crate::mma::kernel::mma_matmul::MmaMatmul;
use crate::run::Plan;
use crate::wgmma;
use crate::wgmma::kernel::matmul::Matmul as WgmmaKernel;
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, CannotCompile, CudaSource};

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

/// The kernel for tensor cores that `plan` launches for `call`.
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
            return Err(CannotCompile(
                "the portable kernel is compiled at run time, for any device".into(),
            ));
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
