//! Kernels by themselves: as they are launched, for precompilation; and their CUDA sources, which need no GPU, for the
//! compile check and for reading.

use crate::Element;
use crate::epilogue::CompiledEpilogue;
use crate::fp8;
use crate::fp8::columns::ColumnSizesCompilationArg;
use crate::fp8::columns::column_magnitudes::ColumnMagnitudes;
use crate::fp8::columns::quantise_columns::QuantiseColumns;
use crate::fp8::quantise::quantise_kernel::QuantiseKernel;
use crate::fp8::quantise::{QuantiseKind, QuantiseSizesCompilationArg, threads_per_row};
use crate::fp8::widen::WidenSizesCompilationArg;
use crate::fp8::widen::widen_kernel::WidenKernel;
use crate::mma;
use crate::mma::THREADS;
use crate::mma::kernel::mma_matmul::MmaMatmul;
use crate::portable;
use crate::portable::kernel::portable_matmul::PortableMatmul;
use crate::portable::kind::{Kind, THREADS as PORTABLE_THREADS};
use crate::prepared::Plan;
use crate::problem::Matmul;
use crate::wgmma;
use crate::wgmma::kernel::matmul::Matmul as WgmmaKernel;
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::activation::Arithmetic;
use flow_cube::offline::{self, CannotCompile, CudaSource, Properties};
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

/// The `wgmma` kernel, as [`wgmma::launch`] launches it.
pub(crate) fn wgmma(
    on: &Properties,
    call: &Matmul,
    tiles: wgmma::Tiles,
    epilogue: CompiledEpilogue,
) -> Box<dyn CubeKernel> {
    Box::new(WgmmaKernel::new(
        offline::settings(tiles.threads()),
        on.device.clone(),
        on.target.clone(),
        wgmma::arguments::FactorsCompilationArg {
            a: (),
            b: (),
            low_rank_a: (),
            low_rank_b: (),
        },
        wgmma::arguments::ResultsCompilationArg {
            d: (),
            read: (),
            kept: (),
        },
        wgmma::arguments::InputsCompilationArg {
            bias: buffer(),
            gate: buffer(),
            row_scales: buffer(),
            column_scales: buffer(),
            starts: buffer(),
            items: buffer(),
        },
        wgmma::arguments::SizesCompilationArg {
            rows: (),
            columns: (),
            first_steps: (),
            frame_stride: (),
            row_stride: (),
            tokens: (),
            gate_start: (),
            gate_stride: (),
            row_scale_start: (),
            column_scale_start: (),
        },
        tiles,
        epilogue,
        [call.element.native(), epilogue.output.native()],
        tiles.vector(),
    ))
}

/// The `mma` kernel, as [`mma::launch`] launches it.
pub(crate) fn mma(on: &Properties, tiles: mma::Tiles, epilogue: CompiledEpilogue) -> Box<dyn CubeKernel> {
    Box::new(MmaMatmul::new(
        offline::settings(THREADS as u32),
        on.device.clone(),
        on.target.clone(),
        mma::arguments::InputsCompilationArg {
            a: buffer(),
            b: buffer(),
            low_rank_a: buffer(),
            low_rank_b: buffer(),
            bias: buffer(),
            gate: buffer(),
            row_scales: buffer(),
            column_scales: buffer(),
        },
        mma::arguments::OutputsCompilationArg {
            other: buffer(),
            d: buffer(),
        },
        buffer(),
        mma::arguments::SizesCompilationArg {
            m: (),
            n: (),
            k: (),
            rank: (),
            a_stride: (),
            b_stride: (),
            low_rank_a_stride: (),
            low_rank_b_stride: (),
            other_stride: (),
            d_stride: (),
            tokens: (),
            gate_start: (),
            gate_stride: (),
            row_scale_start: (),
            column_scale_start: (),
            group: (),
            groups: (),
        },
        tiles,
        epilogue,
        tiles.product().accumulator(),
    ))
}

fn portable<F: Float, O: Float>(on: &Properties, kind: Kind) -> Box<dyn CubeKernel> {
    Box::new(PortableMatmul::<F, O>::new(
        offline::settings(PORTABLE_THREADS as u32),
        on.device.clone(),
        on.target.clone(),
        portable::arguments::InputsCompilationArg {
            a: buffer(),
            b: buffer(),
            low_rank_a: buffer(),
            low_rank_b: buffer(),
            bias: buffer(),
            gate: buffer(),
            row_scales: buffer(),
            column_scales: buffer(),
        },
        portable::arguments::OutputsCompilationArg {
            other: buffer(),
            d: buffer(),
        },
        buffer(),
        portable::arguments::SizesCompilationArg {
            m: (),
            n: (),
            k: (),
            rank: (),
            a_stride: (),
            b_stride: (),
            low_rank_a_stride: (),
            low_rank_b_stride: (),
            gate_start: (),
            gate_stride: (),
            row_scale_start: (),
            column_scale_start: (),
            other_stride: (),
            d_stride: (),
            tokens: (),
            groups: (),
            chunk: (),
        },
        kind,
    ))
}

/// The kernels that quantise rows of `columns` numbers, a multiple of four or not, and columns, and that widen them, all on an H100.
///
/// # Errors
/// If CubeCL refuses one.
pub fn code_sources(element: Element, columns: usize) -> Result<Vec<Source>, CannotCompile> {
    match element {
        Element::F32 => code_sources_of::<f32>(element, columns),
        Element::F16 => code_sources_of::<f16>(element, columns),
        Element::Bf16 => code_sources_of::<bf16>(element, columns),
    }
}

fn code_sources_of<F: Float>(element: Element, columns: usize) -> Result<Vec<Source>, CannotCompile> {
    let on = Properties::h100();
    let settings = || offline::settings(fp8::THREADS as u32);
    let width = if columns.is_multiple_of(4) { 4 } else { 1 };
    let threads = threads_per_row(columns.div_ceil(fp8::CODES));
    let quantise = QuantiseKernel::<F>::new(
        settings(),
        on.device.clone(),
        on.target.clone(),
        buffer(),
        buffer(),
        buffer(),
        QuantiseSizesCompilationArg {
            rows: (),
            columns: (),
            stride: (),
            words: (),
            row_words: (),
            scale_start: (),
        },
        width,
        QuantiseKind {
            threads_per_row: threads,
            width,
            native: true,
        },
    );
    let widen = |scaled: bool| {
        WidenKernel::<F>::new(
            settings(),
            on.device.clone(),
            on.target.clone(),
            buffer(),
            buffer(),
            buffer(),
            WidenSizesCompilationArg {
                words: (),
                row_words: (),
                code_stride: (),
                value_stride: (),
                scale_start: (),
            },
            fp8::CODES,
            scaled,
        )
    };
    let sizes = || ColumnSizesCompilationArg {
        rows: (),
        columns: (),
        stride: (),
        parts: (),
        row_words: (),
    };
    let magnitudes = ColumnMagnitudes::<F>::new(
        settings(),
        on.device.clone(),
        on.target.clone(),
        buffer(),
        buffer(),
        sizes(),
    );
    let quantise_columns = QuantiseColumns::<F>::new(
        settings(),
        on.device.clone(),
        on.target.clone(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        sizes(),
        true,
    );
    let definitions = [
        (format!("quantise_{threads}_{width}"), quantise.define()),
        ("column_magnitudes".into(), magnitudes.define()),
        ("quantise_columns".into(), quantise_columns.define()),
        ("widen".into(), widen(false).define()),
        ("widen_scaled".into(), widen(true).define()),
    ];
    let compiled = definitions.into_iter().map(|(name, definition)| {
        Ok(Source {
            name: format!("{name}_{}", element.name()),
            cuda: offline::cuda_source(definition)?,
        })
    });
    compiled.collect()
}

/// The kernel that `plan` launches for `call`.
///
/// # Errors
/// If CubeCL refuses it.
pub fn source(call: &Matmul, plan: &Plan) -> Result<Source, CannotCompile> {
    let call = &call.launched();
    let on = Properties::h100();
    let (name, epilogue, low_rank, kernel) = match *plan {
        Plan::Wgmma { tiles, tiling } => {
            let epilogue = CompiledEpilogue::new(call, tiles.operand_type, tiling.split_k > 1);
            (
                tiles.name(),
                epilogue,
                tiles.low_rank,
                wgmma(&on, call, tiles, epilogue),
            )
        }
        Plan::Mma { tiles, .. } => {
            let epilogue = CompiledEpilogue::new(call, tiles.operand_type, tiles.splits_k);
            (tiles.name(), epilogue, tiles.low_rank, mma(&on, tiles, epilogue))
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
                scaled: call.is_scaled(),
            };
            let kernel = match call.element {
                Element::F32 => portable::<f32, f32>(&on, kind),
                Element::F16 => portable::<f16, f16>(&on, kind),
                Element::Bf16 => portable::<bf16, bf16>(&on, kind),
            };
            return Ok(Source {
                name: format!(
                    "portable_{:?}_{}{}",
                    call.layout,
                    call.element.name(),
                    if kind.grouped { "_groups" } else { "" }
                ),
                cuda: offline::cuda_source(kernel.define())?,
            });
        }
    };
    let words = format!("{:?}_{}", epilogue.kind, epilogue.output.name());
    let words: String = words
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    Ok(Source {
        name: format!(
            "{name}_{words}{}{}{}",
            if call.is_scaled() { "_scaled" } else { "" },
            if epilogue.bias { "_bias" } else { "" },
            if low_rank { "_low_rank" } else { "" }
        ),
        cuda: offline::cuda_source(kernel.define())?,
    })
}
