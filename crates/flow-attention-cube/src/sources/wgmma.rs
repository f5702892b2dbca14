//! The kernels on Hopper's `wgmma`, by themselves.

use super::{Sources, buffer, tensor_map};
use crate::wgmma::arguments::{
    BackwardKeysMapsCompilationArg, BackwardKeysProblemCompilationArg, BackwardQueriesMapsCompilationArg,
    BackwardQueriesProblemCompilationArg, BlockMaskArgsCompilationArg, ForwardProblemCompilationArg,
    OutputRowsCompilationArg, PersistentProblemCompilationArg, QkvMapsCompilationArg,
    QueryStatisticPairsCompilationArg, QueryStatisticsCompilationArg, WorkScheduleCompilationArg,
};
use crate::wgmma::backward_keys::backward_keys::BackwardKeys;
use crate::wgmma::backward_queries::backward_queries::BackwardQueries;
use crate::wgmma::forward::forward::Forward;
use crate::wgmma::forward_persistent::forward_persistent::ForwardPersistent;
use crate::wgmma::reduce_partials::{
    ReduceProblemCompilationArg, ReducedPartials, THREADS, reduce_partials::ReducePartials,
};
use crate::wgmma::{self, Wgmma};
use cubecl::prelude::*;
use cubecl_runtime::kernel::CubeKernel;
use flow_cube::offline::{self, Properties};

// What a kernel is compiled for, by struct of arguments.
fn qkv_maps<E: Numeric>(_name: &str) -> QkvMapsCompilationArg<E> {
    QkvMapsCompilationArg {
        q: (),
        k: (),
        v: (),
        k_2: (),
        v_2: (),
    }
}

pub(super) fn block_mask<W: Size>(name: &str) -> BlockMaskArgsCompilationArg<W> {
    BlockMaskArgsCompilationArg {
        work_tiles: buffer(name),
        entries: buffer(name),
        partial_masks: buffer(name),
    }
}

fn work_schedule<W: Size>(name: &str) -> WorkScheduleCompilationArg<W> {
    WorkScheduleCompilationArg {
        assignments: buffer(name),
        records: buffer(name),
        record_words: buffer(name),
        partial_masks: buffer(name),
    }
}

fn persistent_problem(_name: &str) -> PersistentProblemCompilationArg {
    PersistentProblemCompilationArg {
        head_count: (),
        queries: (),
        lse_rows: (),
        scale_log2: (),
    }
}

fn forward_problem(_name: &str) -> ForwardProblemCompilationArg {
    ForwardProblemCompilationArg {
        queries: (),
        lse_rows: (),
        first_keys: (),
        second_keys: (),
        group: (),
        scale_log2: (),
    }
}

fn backward_queries_maps<E: Numeric>(name: &str) -> BackwardQueriesMapsCompilationArg<E> {
    BackwardQueriesMapsCompilationArg {
        qkv: qkv_maps(name),
        d_o: (),
        dq: (),
    }
}

fn output_rows(name: &str) -> OutputRowsCompilationArg {
    OutputRowsCompilationArg {
        o_rows: buffer(name),
        do_rows: buffer(name),
        o_batch: (),
        o_head: (),
        o_row: (),
        do_batch: (),
        do_head: (),
        do_row: (),
    }
}

fn query_statistics(name: &str) -> QueryStatisticsCompilationArg {
    QueryStatisticsCompilationArg {
        lse: buffer(name),
        delta: buffer(name),
    }
}

fn backward_queries_problem(_name: &str) -> BackwardQueriesProblemCompilationArg {
    BackwardQueriesProblemCompilationArg {
        queries: (),
        lse_rows: (),
        first_keys: (),
        second_keys: (),
        group: (),
        scale_log2: (),
        scale: (),
    }
}

fn backward_keys_maps<E: Numeric>(_name: &str) -> BackwardKeysMapsCompilationArg<E> {
    BackwardKeysMapsCompilationArg {
        q: (),
        k: (),
        v: (),
        d_o: (),
        dk: (),
        dv: (),
    }
}

fn query_statistic_pairs(name: &str) -> QueryStatisticPairsCompilationArg {
    QueryStatisticPairsCompilationArg {
        lse: buffer(name),
        delta: buffer(name),
    }
}

fn backward_keys_problem(_name: &str) -> BackwardKeysProblemCompilationArg {
    BackwardKeysProblemCompilationArg {
        queries: (),
        lse_rows: (),
        group: (),
        scale_log2: (),
        scale: (),
    }
}

fn reduce_problem(_name: &str) -> ReduceProblemCompilationArg {
    ReduceProblemCompilationArg {
        batch_stride: (),
        head_stride: (),
        row_stride: (),
        rows: (),
        keys: (),
        scale: (),
    }
}

impl Sources for Wgmma {
    fn forward_kernel(on: &Properties, tiles: wgmma::ForwardTiles) -> Box<dyn CubeKernel> {
        if tiles.persistent {
            return kernel!(ForwardPersistent, on, tiles.threads();
                qkv_maps(maps)
                tensor_map(o)
                buffer(lse)
                work_schedule(schedule)
                persistent_problem(problem);
                tiles, tiles.operand_type.element(), tiles.vectors()
            );
        }
        kernel!(Forward, on, tiles.threads();
            qkv_maps(maps)
            tensor_map(o)
            buffer(lse)
            block_mask(mask)
            forward_problem(problem);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn queries_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardQueries, on, tiles.threads();
            backward_queries_maps(maps)
            output_rows(rows)
            query_statistics(statistics)
            block_mask(mask)
            backward_queries_problem(problem);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn keys_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Box<dyn CubeKernel> {
        kernel!(BackwardKeys, on, tiles.threads();
            backward_keys_maps(maps)
            buffer(sums)
            query_statistic_pairs(statistics)
            block_mask(mask)
            backward_keys_problem(problem);
            tiles, tiles.operand_type.element(), tiles.vectors()
        )
    }

    fn reduce_partials_kernel(on: &Properties, tiles: wgmma::BackwardTiles) -> Option<Box<dyn CubeKernel>> {
        (tiles.split_q > 1).then(|| -> Box<dyn CubeKernel> {
            kernel!(ReducePartials, on, THREADS as u32;
                buffer(sums gradient)
                reduce_problem(problem);
                ReducedPartials::of(tiles)
            )
        })
    }
}
