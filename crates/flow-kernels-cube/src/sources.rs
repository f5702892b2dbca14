//! CUDA sources of the kernels for the sizes of known models, without a GPU: for the compile check and for reading.

mod arguments;

use crate::Element;
use crate::activation::activation_backward::ActivationBackward;
use crate::activation::activation_codes::ActivationCodes;
use crate::activation::activation_forward::ActivationForward;
use crate::activation::{Activation, ActivationBackwardKind, ActivationCodesKind};
use crate::adamw::adamw_kernel::AdamwKernel;
use crate::adamw::adamw_narrow_kernel::AdamwNarrowKernel;
use crate::buffer::{width, with_type};
use crate::cast::{MOST_JOINED, join_kernel::JoinKernel};
use crate::columns::{self, Columns};
use crate::embedding::embedding_forward::EmbeddingForward;
use crate::experts::group::count_slots::CountSlots;
use crate::experts::group::place_slots::PlaceSlots;
use crate::experts::group::sum_groups::SumGroups;
use crate::experts::mix::gather_rows::GatherRows;
use crate::experts::mix::scatter_tokens::ScatterTokens;
use crate::experts::mix::weight_slopes::WeightSlopes;
use crate::experts::route::RouteSlopes;
use crate::experts::route::choose_experts::ChooseExperts;
use crate::experts::route::load_experts::LoadExperts;
use crate::experts::route::route_backward::RouteBackward;
use crate::experts::route::softmax::Softmax;
use crate::feature_cache::MOST_SOURCES;
use crate::feature_cache::change_pieces::ChangePieces;
use crate::feature_cache::combine_rows::CombineRows;
use crate::frequencies::restore_lines::RestoreLines;
use crate::frequencies::transform_columns::TransformColumns;
use crate::frequencies::transform_lines::TransformLines;
use crate::gated_residual::GateGradients;
use crate::gated_residual::gate_backward::GateBackward;
use crate::gated_residual::gate_forward::GateForward;
use crate::low_precision::CodeFormat;
use crate::low_precision::widen_kernel::WidenKernel;
use crate::modulated_layer_norm::norm_backward::NormBackward;
use crate::modulated_layer_norm::norm_codes::NormCodes;
use crate::modulated_layer_norm::norm_forward::NormForward;
use crate::modulated_layer_norm::{NormBackwardKind, NormCodesKind, NormInputsCompilationArg, at_once};
use crate::multi_tensor::MOST;
use crate::normals::draw_normals::DrawNormals;
use crate::optimizer::squares::Squares;
use crate::optimizer::step_values_kernel::StepValuesKernel;
use crate::rms_norm::rms_backward::RmsBackward;
use crate::rms_norm::rms_forward::RmsForward;
use crate::rms_norm::rms_weight::RmsWeight;
use crate::rms_norm::{RmsKind, RmsWeightKind};
use crate::rotary::rotary_kernel::RotaryKernel;
use crate::row_codes::{RowCodes, words};
use crate::rows::Rows;
use crate::runs::runs_kernel::RunsKernel;
use crate::sde::Origin;
use crate::sde::sde_mean::SdeMean;
use crate::sde::squared_distance::SquaredDistance;
use crate::split_f32::{join_kernel::JoinKernel as JoinHalves, split_kernel::SplitKernel};
use arguments::{
    adamw_step, buffer, column_sizes, each, gate_forward_sizes, gate_sizes, latent_pair, line_sizes,
    load_sizes, modulation_sizes, narrow_step, norm_sizes, rms_sizes, rotary_tables, route_sizes, step_draw,
    step_factors,
};
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::activation::Arithmetic;
use flow_cube::offline::{self, CannotCompile, CudaSource};
use half::bf16;

/// A kernel's name and CUDA C++.
#[derive(Clone, Debug)]
pub struct Source {
    /// Kernel, type and channels, fit for a file name.
    pub name: String,
    /// What NVRTC gets.
    pub cuda: CudaSource,
}

/// Threads of a plane on NVIDIA GPUs.
const WARP: usize = 32;
/// Threads of most blocks.
const THREADS: u32 = columns::THREADS as u32;

/// Makes a kernel with so many threads, buffers and scalars, and what is known when it is compiled.
macro_rules! define {
    ($kernel:ty, $threads:expr, [$($buffers:ident)*], [$($scalars:ident)*], $($known:expr),*) => {
        <$kernel>::new(
            offline::settings($threads as u32),
            offline::h100(),
            offline::target(),
            $({ stringify!($buffers); buffer() },)*
            $({ stringify!($scalars); },)*
            $($known),*
        )
        .define()
    };
}

fn squares<F: Float>(vector: usize) -> KernelDefinition {
    Squares::<F>::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST, buffer),
        each(MOST, || ()),
        each(MOST, || ()),
        buffer(),
        vector,
    )
    .define()
}

fn joins<F: Float>(vector: usize) -> KernelDefinition {
    JoinKernel::<F, F>::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST_JOINED, buffer),
        buffer(),
        each(MOST_JOINED, || ()),
        each(MOST_JOINED, || ()),
        vector,
    )
    .define()
}

fn norm_backward<F: Float>(vector: usize, rows: Rows, modulated: bool, adds: bool) -> KernelDefinition {
    NormBackward::<F>::new(
        offline::settings(rows.threads() as u32),
        offline::h100(),
        offline::target(),
        NormInputsCompilationArg {
            x: buffer(),
            modulation: buffer(),
            statistics: buffer(),
            gradient: buffer(),
            added: buffer(),
        },
        buffer(),
        buffer(),
        norm_sizes(),
        vector,
        NormBackwardKind {
            at_once: at_once(rows),
            modulated,
            adds,
            rows,
        },
    )
    .define()
}

fn combines<F: Float>(vector: usize) -> KernelDefinition {
    CombineRows::<F>::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST_SOURCES, buffer),
        buffer(),
        each(MOST_SOURCES, || ()),
        each(MOST_SOURCES, || ()),
        (),
        (),
        vector,
        MOST_SOURCES,
    )
    .define()
}

/// With gradients of type `F`, f32 moments and a copy.
fn adamw<F: Float>() -> KernelDefinition {
    AdamwKernel::<F, f32, bf16>::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        buffer(),
        adamw_step(),
        4,
        true,
    )
    .define()
}

/// With gradients of type `F` and f32 moments, of weights in halves or rounded at random.
fn adamw_narrow<F: Float>(halves: bool) -> KernelDefinition {
    let lows = if halves { MOST } else { 0 };
    AdamwNarrowKernel::<F, f32>::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        each(lows, buffer),
        buffer(),
        narrow_step(),
        4,
        halves,
    )
    .define()
}

fn split_halves() -> KernelDefinition {
    SplitKernel::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        buffer(),
        buffer(),
        buffer(),
        (),
        4,
    )
    .define()
}

fn join_halves() -> KernelDefinition {
    JoinHalves::new(
        offline::settings(THREADS),
        offline::h100(),
        offline::target(),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, buffer),
        each(MOST, || ()),
        4,
    )
    .define()
}

/// A kernel by its name.
type Named = (&'static str, KernelDefinition);

/// Kernels that make rows as codes, alone and beside numbers; none where rows of `channels` values cannot be made so.
fn row_codes<F: Float>(channels: usize, vector: usize) -> Vec<Named> {
    if !RowCodes::fits(channels) {
        return Vec::new();
    }
    let (rows, words) = (Rows::several(channels, vector, WARP), words(vector));
    let norm = |stores_rows: bool| {
        define!(
            NormCodes::<F>, rows.threads(), [x m y c s], [], modulation_sizes(), vector, words,
            NormCodesKind { stores_rows, native: true, rows }
        )
    };
    let activation = |stores_rows: bool| {
        let (activation, arithmetic) = (Activation::GeluTanh, Arithmetic::Approximate);
        define!(
            ActivationCodes::<F>, rows.threads(), [x y c s], [r], vector, words,
            ActivationCodesKind { activation, arithmetic, stores_rows, native: true, rows }
        )
    };
    vec![
        ("norm_codes", norm(false)),
        ("norm_codes_and_rows", norm(true)),
        ("activation_codes", activation(false)),
        ("activation_codes_and_rows", activation(true)),
    ]
}

/// Norms, rotations, gates, activations and embeddings.
fn row_kernels<F: Float>(channels: usize, vector: usize) -> Vec<Named> {
    let (several, whole) = (
        Rows::several(channels, vector, WARP),
        Rows::whole(channels, vector, WARP),
    );
    let columns = Columns::new(channels, vector);
    let gelu = Activation::GeluTanh;
    // Heads of 64 channels, or the whole row where it has none.
    let turn = if channels.is_multiple_of(64) { 64 } else { channels } / vector;
    vec![
        (
            "norm_forward",
            define!(NormForward::<F>, several.threads(), [x m y s], [], modulation_sizes(), vector, several),
        ),
        ("norm_backward", norm_backward::<F>(vector, whole, true, false)),
        (
            "norm_backward_added",
            norm_backward::<F>(vector, whole, true, true),
        ),
        (
            "norm_backward_plain",
            norm_backward::<F>(vector, whole, false, false),
        ),
        (
            "rms_forward",
            define!(
                RmsForward::<F, F>, several.threads(), [x w], [], rotary_tables(), buffer(), buffer(), rms_sizes(), (),
                vector, RmsKind { weighted: true, turn, rows: several }
            ),
        ),
        (
            "rms_backward",
            define!(
                RmsBackward::<F, F>, several.threads(), [x w], [], rotary_tables(), buffer(), buffer(), buffer(),
                rms_sizes(), vector, RmsKind { weighted: true, turn, rows: several }
            ),
        ),
        (
            "rms_weight",
            define!(
                RmsWeight::<F>,
                THREADS,
                [x],
                [],
                rotary_tables(),
                buffer(),
                buffer(),
                buffer(),
                rms_sizes(),
                (),
                vector,
                RmsWeightKind { turn, columns }
            ),
        ),
        (
            "rotary",
            define!(
                RotaryKernel::<F>,
                THREADS,
                [x],
                [],
                rotary_tables(),
                buffer(),
                (),
                (),
                (),
                (),
                (),
                vector
            ),
        ),
        (
            "gate_forward",
            define!(GateForward::<F>, THREADS, [r b m y], [], gate_forward_sizes(), vector),
        ),
        (
            "gate_backward",
            define!(
                GateBackward::<F>, THREADS, [b m g d p], [], gate_sizes(), vector,
                GateGradients { branch: true, gate: true }, columns
            ),
        ),
        (
            "activation_forward",
            define!(ActivationForward::<F>, THREADS, [x y], [v], vector, gelu, Arithmetic::Approximate),
        ),
        (
            "activation_backward",
            define!(
                ActivationBackward::<F>, THREADS, [x g d p], [r p], vector,
                ActivationBackwardKind { activation: Some(gelu), arithmetic: Arithmetic::Approximate, sum: true, columns }
            ),
        ),
        (
            "copy_runs",
            define!(RunsKernel::<F>, THREADS, [x y], [v r f p t q], vector),
        ),
        (
            "embedding",
            define!(EmbeddingForward::<f32, F>, THREADS, [t i y], [r c v], vector),
        ),
    ]
}

/// Which experts tokens go to, and what these make of them.
fn expert_kernels<F: Float>(channels: usize, vector: usize) -> Vec<Named> {
    let several = Rows::several(channels, vector, WARP);
    let columns = Columns::new(channels, vector);
    vec![
        ("softmax", define!(Softmax::<F>, THREADS, [l s], [r e],)),
        ("choose_experts", define!(ChooseExperts, THREADS, [s c], [r e k],)),
        (
            "load_experts",
            define!(LoadExperts, THREADS, [s c l p], [], load_sizes()),
        ),
        (
            "route_backward",
            define!(
                RouteBackward::<F>, THREADS, [s c l w b d], [], route_sizes(),
                RouteSlopes { of_weights: true, of_balance: true, normalize: true }
            ),
        ),
        ("count_slots", define!(CountSlots, THREADS, [c n], [s e p],)),
        ("place_slots", define!(PlaceSlots, THREADS, [c n o s r], [s e p],)),
        (
            "scatter_tokens",
            define!(ScatterTokens::<F>, THREADS, [x w s y], [r k v], vector, true),
        ),
        (
            "gather_rows",
            define!(GatherRows::<F>, THREADS, [y w r x], [t k v], vector, true),
        ),
        (
            "weight_slopes",
            define!(WeightSlopes::<F>, several.threads(), [y g r d], [s k], vector, several),
        ),
        (
            "sum_groups",
            define!(SumGroups::<F>, THREADS, [x o s], [g], vector, columns),
        ),
    ]
}

/// Steps of samplers, noise, and what a feature cache makes of latents.
fn latent_kernels<F: Float>(vector: usize) -> Vec<Named> {
    vec![
        (
            "sde_mean",
            define!(SdeMean::<F>, THREADS, [x v n c m y], [], step_draw(), 4, Origin::Given),
        ),
        (
            "sde_mean_drawn",
            define!(SdeMean::<F>, THREADS, [x v n c m y], [], step_draw(), 4, Origin::Drawn),
        ),
        (
            "draw_normals",
            define!(DrawNormals, THREADS, [s y], [r v t k l], 4),
        ),
        (
            "draw_normals_of_pairs",
            define!(DrawNormals, THREADS, [s y], [r v t k l], 2),
        ),
        (
            "draw_normals_of_one",
            define!(DrawNormals, THREADS, [s y], [r v t k l], 1),
        ),
        (
            "squared_distance",
            define!(SquaredDistance::<F>, THREADS, [a b p], [r v], 4),
        ),
        ("combine_rows", combines::<F>(vector)),
        (
            "change_pieces",
            define!(ChangePieces::<F>, THREADS, [a b p], [a b v p f], vector),
        ),
        (
            "transform_lines",
            define!(
                TransformLines::<F>,
                THREADS,
                [],
                [],
                latent_pair(),
                buffer(),
                buffer(),
                line_sizes()
            ),
        ),
        (
            "transform_columns",
            define!(TransformColumns, THREADS, [x t y], [], column_sizes(), false),
        ),
        (
            "transform_columns_back",
            define!(TransformColumns, THREADS, [x t y], [], column_sizes(), true),
        ),
        (
            "restore_lines",
            define!(
                RestoreLines::<F>,
                THREADS,
                [],
                [],
                latent_pair(),
                buffer(),
                buffer(),
                buffer(),
                buffer(),
                line_sizes(),
                ()
            ),
        ),
    ]
}

/// Steps of optimizers, and how weights are stored.
fn update_kernels<F: Float>(vector: usize) -> Vec<Named> {
    vec![
        ("join", joins::<F>(vector)),
        ("squares", squares::<F>(vector)),
        (
            "step_values",
            define!(StepValuesKernel, THREADS, [p v], [n], step_factors()),
        ),
        ("adamw", adamw::<F>()),
        ("adamw_halves", adamw_narrow::<F>(true)),
        ("adamw_rounded", adamw_narrow::<F>(false)),
        ("split_halves", split_halves()),
        (
            "widen_e4m3",
            define!(WidenKernel::<F>, THREADS, [w v], [n r w s b], vector, CodeFormat::E4m3),
        ),
        (
            "widen_int8",
            define!(WidenKernel::<F>, THREADS, [w v], [n r w s b], vector, CodeFormat::Int8),
        ),
        (
            "widen_nf4",
            define!(WidenKernel::<F>, THREADS, [w v], [n r w s b], vector, CodeFormat::Nf4),
        ),
        ("join_halves", join_halves()),
    ]
}

/// The kernels for tensors of type `element` with `channels` channels.
///
/// # Errors
/// If CubeCL refuses a kernel.
pub fn sources(element: Element, channels: usize) -> Result<Vec<Source>, CannotCompile> {
    let vector = width(channels, element);
    let definitions = with_type!(element, F => [
        row_kernels::<F>(channels, vector),
        expert_kernels::<F>(channels, vector),
        latent_kernels::<F>(vector),
        update_kernels::<F>(vector),
        row_codes::<F>(channels, vector),
    ]);
    let compiled = definitions.into_iter().flatten().map(|(kernel, definition)| {
        Ok(Source {
            name: format!("{kernel}_{}_{channels}", element.name()),
            cuda: offline::cuda_source(definition)?,
        })
    });
    compiled.collect()
}
