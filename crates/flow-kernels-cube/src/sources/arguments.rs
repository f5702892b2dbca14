//! What kernels are compiled for, by struct of arguments: nothing of a size or a number is compiled in.

use crate::adamw::{AdamWStepCompilationArg, NarrowStepCompilationArg};
use crate::experts::route::{LoadSizesCompilationArg, RouteSizesCompilationArg};
use crate::frequencies::{ColumnSizesCompilationArg, LatentPairCompilationArg, LineSizesCompilationArg};
use crate::gated_residual::{GateForwardSizesCompilationArg, GateSizesCompilationArg};
use crate::modulated_layer_norm::{ModulationSizesCompilationArg, NormSizesCompilationArg};
use crate::multi_tensor::MOST;
use crate::optimizer::StepFactorsCompilationArg;
use crate::rms_norm::RmsSizesCompilationArg;
use crate::rotary::RotaryTablesCompilationArg;
use crate::sde::StepDrawCompilationArg;
use cubecl::prelude::*;

pub(super) fn buffer() -> BufferCompilationArg {
    BufferCompilationArg { inplace: None }
}

/// As many of something as a launch takes tensors at `most`.
pub(super) fn each<A, C: FromIterator<A>>(most: usize, of_one: impl Fn() -> A) -> C {
    std::iter::repeat_with(of_one).take(most).collect()
}

pub(super) fn modulation_sizes() -> ModulationSizesCompilationArg {
    ModulationSizesCompilationArg {
        row_count: (),
        tokens: (),
        chunks: (),
        shift: (),
        scale: (),
        unit: (),
        epsilon: (),
    }
}

pub(super) fn norm_sizes() -> NormSizesCompilationArg {
    NormSizesCompilationArg {
        batch: (),
        tokens: (),
        chunks: (),
        scale: (),
        unit: (),
        piece: (),
    }
}

pub(super) fn rotary_tables() -> RotaryTablesCompilationArg {
    RotaryTablesCompilationArg {
        cos: buffer(),
        sin: buffer(),
    }
}

pub(super) fn rms_sizes() -> RmsSizesCompilationArg {
    RmsSizesCompilationArg {
        row_count: (),
        tokens: (),
        rows_of_token: (),
    }
}

pub(super) fn gate_forward_sizes() -> GateForwardSizesCompilationArg {
    GateForwardSizesCompilationArg {
        rows: (),
        tokens: (),
        chunks: (),
        gate: (),
        vectors: (),
    }
}

pub(super) fn gate_sizes() -> GateSizesCompilationArg {
    GateSizesCompilationArg {
        batch: (),
        tokens: (),
        chunks: (),
        gate: (),
        piece: (),
    }
}

pub(super) fn load_sizes() -> LoadSizesCompilationArg {
    LoadSizesCompilationArg {
        batch: (),
        tokens: (),
        experts: (),
        top_k: (),
        even: (),
    }
}

pub(super) fn route_sizes() -> RouteSizesCompilationArg {
    RouteSizesCompilationArg {
        rows: (),
        tokens: (),
        experts: (),
        top_k: (),
    }
}

pub(super) fn step_draw() -> StepDrawCompilationArg {
    StepDrawCompilationArg {
        samples: buffer(),
        rows: (),
        vectors: (),
        draw: (),
        key_low: (),
        key_high: (),
    }
}

pub(super) fn latent_pair<F: Float>() -> LatentPairCompilationArg<F> {
    LatentPairCompilationArg {
        a: buffer(),
        b: buffer(),
        first_a: (),
        first_b: (),
    }
}

pub(super) fn line_sizes() -> LineSizesCompilationArg {
    LineSizesCompilationArg {
        count: (),
        width: (),
        kept: (),
    }
}

pub(super) fn column_sizes() -> ColumnSizesCompilationArg {
    ColumnSizesCompilationArg {
        planes: (),
        from: (),
        to: (),
        height: (),
        kept: (),
    }
}

pub(super) fn step_factors() -> StepFactorsCompilationArg {
    StepFactorsCompilationArg {
        rate: (),
        correction1: (),
        correction2: (),
        max_norm: (),
        small: (),
        units: (),
    }
}

pub(super) fn adamw_step() -> AdamWStepCompilationArg {
    AdamWStepCompilationArg {
        vectors: each(MOST, || ()),
        decays: each(MOST, || ()),
        beta1: (),
        beta2: (),
        epsilon: (),
    }
}

pub(super) fn narrow_step() -> NarrowStepCompilationArg {
    NarrowStepCompilationArg {
        vectors: each(MOST, || ()),
        decays: each(MOST, || ()),
        streams: each(MOST, || ()),
        first_blocks: each(MOST, || ()),
        beta1: (),
        beta2: (),
        epsilon: (),
        key_low: (),
        key_high: (),
        step: (),
    }
}
