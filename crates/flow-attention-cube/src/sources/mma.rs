//! The kernels on `mma.sync`, by themselves.

use super::{Sources, buffer, tensor};
use crate::mma::arguments::{
    AttentionInputsCompilationArg, AttentionSizesCompilationArg, BackwardKeysInputsCompilationArg,
    BackwardKeysProblemCompilationArg, BackwardQueriesInputsCompilationArg,
    BackwardQueriesProblemCompilationArg, BlockMaskBuffersCompilationArg, ForwardProblemCompilationArg,
    StatisticsBuffersCompilationArg,
};
use crate::mma::backward_keys::mma_backward_keys::MmaBackwardKeys;
use crate::mma::backward_queries::mma_backward_queries::MmaBackwardQueries;
use crate::mma::forward::mma_forward::MmaForward;
use crate::mma::{self, Mma};
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, Properties};

// What a kernel is compiled for, by struct of arguments.
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
