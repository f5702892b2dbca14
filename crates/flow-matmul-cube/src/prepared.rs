//! A problem made ready to launch: selects kernels, uploads the schedule, launches.

use crate::epilogue::CompiledEpilogue;
use crate::fp8::widen::widen;
use crate::mma;
use crate::portable;
use crate::problem::{Epilogue, Matmul, Refusal, Storage, no};
use crate::reduce_split_k::{ROWS_PER_THREAD, ReducedTiles, ResultSizesLaunch, THREADS, reduce_split_k};
use crate::schedule::{Schedule, Tiling};
use crate::sources;
use crate::tensors::{Matrix, Operands};
use crate::wgmma;
use crate::wgmma::launch::Items;
use cubecl::prelude::*;
use cubecl_core::ir::features::Tma;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::server::Handle;
use flow_cube::lasting::lasting_words;
use flow_cube::offline::Properties;

/// The capabilities of a device that selections depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCapabilities {
    /// Multiprocessors; blocks at work at the same time.
    pub multiprocessors: usize,
    /// Whether the device has Hopper's tensor cores and tensor memory access (compute capability 9.0).
    pub hopper: bool,
    /// Whether the device has `mma.sync`, `ldmatrix` and `cp.async` (compute capability 8.0 and later).
    pub ampere: bool,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: usize,
}

impl DeviceCapabilities {
    /// Those of `client`'s device.
    pub fn of(client: &Client) -> Self {
        let properties = client.properties();
        Self {
            multiprocessors: properties
                .hardware
                .num_streaming_multiprocessors
                .map_or(1, |count| count as usize),
            // Later architectures have tensor memory access, too, but other tensor cores.
            hopper: properties.features.tma.contains(Tma::Base)
                && !properties.features.tma.contains(Tma::Im2colWide),
            ampere: properties.features.copy_async,
            shared_bytes: properties.hardware.max_shared_memory_size,
        }
    }
}

/// What is launched for a call: a pure function of the call and of what the device offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    /// Hopper's kernel.
    Wgmma {
        /// What it is compiled for.
        tiles: wgmma::Tiles,
        /// How the work is tiled.
        tiling: Tiling,
    },
    /// The kernel for tensor cores since Ampere.
    Mma {
        /// What it is compiled for.
        tiles: mma::Tiles,
        /// How the work is tiled.
        tiling: Tiling,
    },
    /// The kernel for any device.
    Portable,
}

impl Plan {
    /// The table.
    ///
    /// # Errors
    /// [`Refusal`] if no kernel computes the call on such a device.
    pub fn new(call: &Matmul, capabilities: DeviceCapabilities) -> Result<Self, Refusal> {
        call.check()?;
        let call = &call.launched();
        // Tensor memory access cannot end a store where a group's rows end.
        if capabilities.hopper
            && call.groups == 0
            && let Ok(operand_type) = wgmma::select::check(call)
        {
            let (tiles, tiling) = wgmma::select::select(call, operand_type, capabilities.multiprocessors);
            return Ok(Self::Wgmma { tiles, tiling });
        }
        if call.kernel_rows.is_some() {
            return no("convolutions are for devices of compute capability 9.0, in bf16 or f16");
        }
        if capabilities.ampere && mma::launch::check(call).is_ok() {
            return Self::mma(call, capabilities);
        }
        Ok(Self::Portable)
    }

    /// The plan by `mma`, also where there are better tensor cores.
    ///
    /// # Errors
    /// [`Refusal`] if `mma` does not compute the call.
    pub fn mma(call: &Matmul, capabilities: DeviceCapabilities) -> Result<Self, Refusal> {
        call.check()?;
        let call = &call.launched();
        if call.kernel_rows.is_some() {
            return no("`mma` computes no convolutions");
        }
        if !capabilities.ampere {
            return no("this device has no `mma.sync`, which comes with compute capability 8.0");
        }
        let operand_type = mma::launch::check(call)?;
        let (tiles, tiling) = mma::launch::select(call, operand_type, capabilities);
        Ok(Self::Mma { tiles, tiling })
    }

    /// The kernels for tensor cores that `call` launches on `client`'s device, for precompilation. What is small is not
    /// among them.
    pub fn kernels(&self, client: &Client, call: &Matmul) -> Vec<Box<dyn CubeKernel>> {
        let on = Properties::of(client);
        let call = &call.launched();
        match *self {
            Self::Wgmma { tiles, tiling } => {
                let mut epilogues: Vec<CompiledEpilogue> = schedules(call, tiling)
                    .iter()
                    .map(|schedule| CompiledEpilogue::new(call, tiles.operand_type, schedule.splits_k()))
                    .collect();
                epilogues.dedup();
                let kernels = epilogues.into_iter();
                kernels
                    .map(|epilogue| sources::wgmma(&on, call, tiles, epilogue))
                    .collect()
            }
            Self::Mma { tiles, .. } => {
                vec![sources::mma(
                    &on,
                    tiles,
                    CompiledEpilogue::new(call, tiles.operand_type, tiles.splits_k),
                )]
            }
            Self::Portable => Vec::new(),
        }
    }

    /// Backend, layout and tiles, for logs and manifests.
    pub fn name(&self) -> String {
        match self {
            Self::Wgmma { tiles, tiling } => splits_k(tiles.name(), tiling),
            Self::Mma { tiles, tiling } => splits_k(tiles.name(), tiling),
            Self::Portable => "portable".into(),
        }
    }
}

/// The schedules, one for each launch.
fn schedules(call: &Matmul, tiling: Tiling) -> Vec<Schedule> {
    Schedule::all([call.m, call.n], call.steps(), tiling)
}

fn splits_k(name: String, tiling: &Tiling) -> String {
    match tiling.split_k {
        _ if tiling.stream_k => format!("{name}_balanced"),
        1 => name,
        split_k => format!("{name}_in_{split_k}"),
    }
}

/// Only plain sums can be split along k.
fn check_split_k(call: &Matmul, tiling: &Tiling) -> Result<(), Refusal> {
    let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
    // Partial sums of codes are not scaled in every kernel, and a second pair of factors follows whole ones.
    match (tiling.split_k > 1 || tiling.stream_k) && (!simple || call.is_scaled()) {
        true => no("split-K sums have no scales, no bias and no epilogue but accumulation"),
        false => Ok(()),
    }
}

/// A call made ready: its kernels chosen, its schedule on the device. It is kept and used for all calls of the shape.
#[derive(Clone)]
pub struct Prepared {
    client: Client,
    call: Matmul,
    plan: Plan,
    ready: Ready,
}

/// What is on the device for a plan.
#[derive(Clone)]
enum Ready {
    Wgmma(Vec<Launch>),
    Mma {
        nothing: Handle,
        split_k: Option<SplitKReduction>,
    },
    Portable {
        /// Takes the places of operands that the call has not.
        nothing: Handle,
    },
}

/// One launch of the `wgmma` kernel.
#[derive(Clone)]
struct Launch {
    items: Items,
    epilogue: CompiledEpilogue,
    split_k: Option<SplitKReduction>,
}

/// Tiles of the result that are made of partial tiles.
#[derive(Clone)]
struct SplitKReduction {
    table: Handle,
    tiles: usize,
    workspace_tiles: usize,
}

impl SplitKReduction {
    fn new(client: &Client, schedule: &Schedule) -> Option<Self> {
        schedule.splits_k().then(|| Self {
            table: lasting_words(client, &schedule.reduction_words()),
            tiles: schedule.partial_tiles.len(),
            workspace_tiles: schedule.workspace_tiles(),
        })
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("call", &self.call)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Makes ready what the table chooses for the call on the client's device.
    ///
    /// # Errors
    /// [`Refusal`] if the call makes no sense, or the device cannot compute it.
    pub fn new(client: &Client, call: Matmul) -> Result<Self, Refusal> {
        Self::with(client, call, Plan::new(&call, DeviceCapabilities::of(client))?)
    }

    /// As [`new`](Self::new), for operands such as `like`: where their rows or buffers do not begin where the kernels for
    /// tensor cores want them, it is the portable kernel.
    ///
    /// # Errors
    /// [`Refusal`] if the call makes no sense, the device cannot compute it, or `like` are no operands of the call.
    pub fn for_operands(client: &Client, call: Matmul, like: &Operands<'_>) -> Result<Self, Refusal> {
        like.check(&call, false)?;
        let plan = match like.check(&call, true) {
            Ok(()) => Plan::new(&call, DeviceCapabilities::of(client))?,
            Err(declined) if call.kernel_rows.is_some() => return Err(declined),
            Err(_) => Plan::Portable,
        };
        Self::with(client, call, plan)
    }

    /// Makes `plan` ready.
    ///
    /// # Errors
    /// [`Refusal`] if the plan's kernel does not compute the call.
    pub fn with(client: &Client, call: Matmul, plan: Plan) -> Result<Self, Refusal> {
        call.check()?;
        let described = call;
        let call = described.launched();
        if call.kernel_rows.is_some() && !matches!(plan, Plan::Wgmma { .. }) {
            return no("convolutions are for the wgmma kernel");
        }
        let ready = match plan {
            Plan::Wgmma { .. } if call.groups > 0 => {
                return no("groups of rows are for the mma and the portable kernel");
            }
            Plan::Wgmma { tiling, .. } => {
                let operand_type = wgmma::select::check(&call)?;
                check_split_k(&call, &tiling)?;
                let upload = |words: &[u32]| lasting_words(client, words);
                let launch = |schedule: Schedule| {
                    let (starts, words) = (schedule.starts(), schedule.words());
                    Launch {
                        items: Items {
                            starts: (upload(&starts), starts.len()),
                            records: (upload(&words), words.len() / 4),
                            blocks: schedule.blocks.len(),
                        },
                        epilogue: CompiledEpilogue::new(&call, operand_type, schedule.splits_k()),
                        split_k: SplitKReduction::new(client, &schedule),
                    }
                };
                Ready::Wgmma(schedules(&call, tiling).into_iter().map(launch).collect())
            }
            Plan::Mma { tiling, .. } => {
                mma::launch::check(&call)?;
                check_split_k(&call, &tiling)?;
                Ready::Mma {
                    nothing: client.empty(16),
                    split_k: SplitKReduction::new(client, &mma::launch::partial_tiles(&call, tiling)),
                }
            }
            Plan::Portable => {
                portable::launch::check(client, &call)?;
                Ready::Portable {
                    nothing: client.empty(16),
                }
            }
        };
        Ok(Self {
            client: client.clone(),
            call: described,
            plan,
            ready,
        })
    }

    /// The call.
    pub fn call(&self) -> &Matmul {
        &self.call
    }

    /// What is launched.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// [`Plan::kernels`] of this call.
    pub fn kernels(&self) -> Vec<Box<dyn CubeKernel>> {
        self.plan.kernels(&self.client, &self.call)
    }

    /// Computes the product. Operands are checked first: see [`Operands::check`].
    ///
    /// # Errors
    /// [`Refusal`] if the operands are not those of the call; nothing was launched then.
    pub fn run(&self, operands: &Operands<'_>) -> Result<(), Refusal> {
        operands.check(&self.call, !matches!(self.plan, Plan::Portable))?;
        let call = &self.call.launched();
        let widened = self.widened(operands);
        let [a, b] = &widened;
        let operands = &Operands {
            a: a.as_ref().unwrap_or(operands.a),
            b: b.as_ref().unwrap_or(operands.b),
            ..*operands
        };
        match (&self.ready, self.plan) {
            (Ready::Wgmma(launches), Plan::Wgmma { tiles, tiling }) => {
                for Launch {
                    items,
                    epilogue,
                    split_k,
                } in launches
                {
                    self.launch_and_reduce(operands.d, split_k.as_ref(), tiling, |d| {
                        wgmma::launch::launch(&self.client, call, operands, d, items, tiles, *epilogue);
                    });
                }
            }
            (Ready::Mma { nothing, split_k }, Plan::Mma { tiles, tiling }) => {
                self.launch_and_reduce(operands.d, split_k.as_ref(), tiling, |d| {
                    mma::launch::launch(&self.client, call, operands, d, nothing, tiles, &tiling);
                });
            }
            (Ready::Portable { nothing }, _) => {
                portable::launch::launch(&self.client, call, operands, nothing)
            }
            _ => return no("the plan is not what was made ready"),
        }
        Ok(())
    }

    /// A and B as numbers, where they are codes and the kernel takes numbers: the codes' values, and of B alone these times its scales.
    fn widened(&self, operands: &Operands<'_>) -> [Option<Matrix>; 2] {
        let takes_codes = self.call.is_scaled() && matches!(self.plan, Plan::Wgmma { .. });
        let [a_codes, b_codes] = self.call.codes();
        let values = |are_codes: bool, codes: &Matrix, index: usize| {
            let scales = match self.call.storage {
                Storage::E4m3B => operands.scales[index],
                _ => None,
            };
            (are_codes && !takes_codes).then(|| widen(&self.client, codes, scales, self.call.element))
        };
        [values(a_codes, operands.a, 0), values(b_codes, operands.b, 1)]
    }

    /// Launches the kernel for the result; or for partial tiles, and reduces these.
    fn launch_and_reduce(
        &self,
        d: &Matrix,
        split_k: Option<&SplitKReduction>,
        tiling: Tiling,
        launch: impl Fn(&Matrix),
    ) {
        let Some(split_k) = split_k else {
            return launch(d);
        };
        let (client, call) = (&self.client, &self.call);
        let height = split_k.workspace_tiles * tiling.rows;
        let partial_tiles = Matrix::contiguous(
            client.empty(height * tiling.columns * 4),
            [height, tiling.columns],
        );
        launch(&partial_tiles);
        // SAFETY: partial tiles are as many as the schedule says; rows and columns beyond the result are left out.
        unsafe {
            reduce_split_k::launch_unchecked(
                client,
                CubeCount::Static(
                    split_k.tiles as u32,
                    (tiling.rows / ROWS_PER_THREAD) as u32,
                    tiling.columns.div_ceil(THREADS) as u32,
                ),
                CubeDim::new_1d(THREADS as u32),
                BufferArg::from_raw_parts(partial_tiles.handle.clone(), height * tiling.columns),
                BufferArg::from_raw_parts(split_k.table.clone(), 4 * split_k.tiles),
                BufferArg::from_raw_parts(d.handle.clone(), d.elements()),
                ResultSizesLaunch::new(call.m as u32, call.n as u32, d.stride as u32),
                ReducedTiles {
                    rows: tiling.rows,
                    columns: tiling.columns,
                    accumulate: call.epilogue == Epilogue::Accumulate,
                },
                call.output.native(),
            );
        }
    }
}
