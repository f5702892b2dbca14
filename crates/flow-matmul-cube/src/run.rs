//! A call from beginning to end.

use crate::call::{Declined, Epilogue, Matmul, no};
use crate::finish::Finish;
use crate::mma;
use crate::parts::{THREADS, TOGETHER, add_parts};
use crate::portable;
use crate::schedule::{Cut, STEP, Schedule};
use crate::sources;
use crate::tensors::{Matrix, Operands};
use crate::wgmma;
use crate::wgmma::launch::Items;
use cubecl::prelude::*;
use cubecl_core::ir::features::Tma;
use cubecl_runtime::kernel::CubeKernel;
use cubecl_runtime::server::Handle;
use flow_cube::offline::Properties;

/// What a device offers, as far as selections depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Multiprocessors; blocks at work at the same time.
    pub multiprocessors: usize,
    /// Whether the device has Hopper's tensor cores and tensor memory access (compute capability 9.0).
    pub hopper: bool,
    /// Whether the device has `mma.sync`, `ldmatrix` and `cp.async` (compute capability 8.0 and later).
    pub ampere: bool,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: usize,
}

impl Offer {
    /// What `client`'s device offers.
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
        /// How the work is cut.
        cut: Cut,
    },
    /// The kernel for tensor cores since Ampere.
    Mma {
        /// What it is compiled for.
        tiles: mma::Tiles,
        /// How the work is cut.
        cut: Cut,
    },
    /// The kernel for any device.
    Portable,
}

impl Plan {
    /// The table.
    ///
    /// # Errors
    /// [`Declined`] if no kernel computes the call on such a device.
    pub fn new(call: &Matmul, offer: Offer) -> Result<Self, Declined> {
        call.check()?;
        // Tensor memory access cannot end a store where a group's rows end.
        if offer.hopper
            && call.groups == 0
            && let Ok(factor) = wgmma::select::check(call)
        {
            let (tiles, cut) = wgmma::select::select(call, factor, offer.multiprocessors);
            return Ok(Self::Wgmma { tiles, cut });
        }
        if call.kernel_rows.is_some() {
            return no("convolutions are for devices of compute capability 9.0, in bf16 or f16");
        }
        if offer.ampere && mma::launch::check(call).is_ok() {
            return Self::mma(call, offer);
        }
        Ok(Self::Portable)
    }

    /// The plan by `mma`, also where there are better tensor cores.
    ///
    /// # Errors
    /// [`Declined`] if `mma` does not compute the call.
    pub fn mma(call: &Matmul, offer: Offer) -> Result<Self, Declined> {
        call.check()?;
        if call.kernel_rows.is_some() {
            return no("`mma` computes no convolutions");
        }
        if !offer.ampere {
            return no("this device has no `mma.sync`, which comes with compute capability 8.0");
        }
        let factor = mma::launch::check(call)?;
        let (tiles, cut) = mma::launch::select(call, factor, offer);
        Ok(Self::Mma { tiles, cut })
    }

    /// The kernels for tensor cores that `call` launches on `client`'s device, for who compiles them before. What is small is not
    /// among them.
    pub fn kernels(&self, client: &Client, call: &Matmul) -> Vec<Box<dyn CubeKernel>> {
        let on = Properties::of(client);
        match *self {
            Self::Wgmma { tiles, cut } => {
                let mut finishes: Vec<Finish> = schedules(call, cut)
                    .iter()
                    .map(|schedule| Finish::new(call, tiles.factor, schedule.in_parts()))
                    .collect();
                finishes.dedup();
                let kernels = finishes.into_iter();
                kernels
                    .map(|finish| sources::wgmma(&on, call, tiles, finish))
                    .collect()
            }
            Self::Mma { tiles, .. } => {
                vec![sources::mma(
                    &on,
                    tiles,
                    Finish::new(call, tiles.factor, tiles.in_parts),
                )]
            }
            Self::Portable => Vec::new(),
        }
    }

    /// Backend, layout and tiles, for logs and manifests.
    pub fn name(&self) -> String {
        match self {
            Self::Wgmma { tiles, cut } => in_parts(tiles.name(), cut),
            Self::Mma { tiles, cut } => in_parts(tiles.name(), cut),
            Self::Portable => "portable".into(),
        }
    }
}

/// Who computes what, a launch each.
fn schedules(call: &Matmul, cut: Cut) -> Vec<Schedule> {
    let steps = call.k.div_ceil(STEP) + call.rank.div_ceil(STEP);
    Schedule::all([call.m, call.n], steps, cut)
}

fn in_parts(name: String, cut: &Cut) -> String {
    match cut.parts {
        _ if cut.balanced => format!("{name}_balanced"),
        1 => name,
        parts => format!("{name}_in_{parts}"),
    }
}

/// Only plain sums can be added up from parts.
fn parts_fit(call: &Matmul, cut: &Cut) -> Result<(), Declined> {
    let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
    match (cut.parts > 1 || cut.balanced) && !simple {
        true => no("sums of parts have no bias and no epilogue but accumulation"),
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
        parts: Option<Parts>,
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
    finish: Finish,
    parts: Option<Parts>,
}

/// Tiles of the result that are made of tiles of sums.
#[derive(Clone)]
struct Parts {
    table: Handle,
    tiles: usize,
    slots: usize,
}

impl Parts {
    fn new(client: &Client, schedule: &Schedule) -> Option<Self> {
        schedule.in_parts().then(|| Self {
            table: client.create_from_slice(u32::as_bytes(&schedule.sums_words())),
            tiles: schedule.sums.len(),
            slots: schedule.slots(),
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
    /// [`Declined`] if the call makes no sense, or the device cannot compute it.
    pub fn new(client: &Client, call: Matmul) -> Result<Self, Declined> {
        Self::with(client, call, Plan::new(&call, Offer::of(client))?)
    }

    /// As [`new`](Self::new), for operands such as `like`: where their rows or buffers do not begin where the kernels for
    /// tensor cores want them, it is the portable kernel.
    ///
    /// # Errors
    /// [`Declined`] if the call makes no sense, the device cannot compute it, or `like` are no operands of the call.
    pub fn for_operands(client: &Client, call: Matmul, like: &Operands<'_>) -> Result<Self, Declined> {
        like.check(&call, false)?;
        let plan = match like.check(&call, true) {
            Ok(()) => Plan::new(&call, Offer::of(client))?,
            Err(declined) if call.kernel_rows.is_some() => return Err(declined),
            Err(_) => Plan::Portable,
        };
        Self::with(client, call, plan)
    }

    /// Makes `plan` ready.
    ///
    /// # Errors
    /// [`Declined`] if the plan's kernel does not compute the call.
    pub fn with(client: &Client, call: Matmul, plan: Plan) -> Result<Self, Declined> {
        call.check()?;
        if call.kernel_rows.is_some() && !matches!(plan, Plan::Wgmma { .. }) {
            return no("convolutions are for the wgmma kernel");
        }
        let ready = match plan {
            Plan::Wgmma { .. } if call.groups > 0 => {
                return no("groups of rows are for the mma and the portable kernel");
            }
            Plan::Wgmma { cut, .. } => {
                let factor = wgmma::select::check(&call)?;
                parts_fit(&call, &cut)?;
                let put = |words: &[u32]| client.create_from_slice(u32::as_bytes(words));
                let launch = |schedule: Schedule| {
                    let (starts, words) = (schedule.starts(), schedule.words());
                    Launch {
                        items: Items {
                            starts: (put(&starts), starts.len()),
                            records: (put(&words), words.len() / 4),
                            blocks: schedule.blocks.len(),
                        },
                        finish: Finish::new(&call, factor, schedule.in_parts()),
                        parts: Parts::new(client, &schedule),
                    }
                };
                Ready::Wgmma(schedules(&call, cut).into_iter().map(launch).collect())
            }
            Plan::Mma { cut, .. } => {
                mma::launch::check(&call)?;
                parts_fit(&call, &cut)?;
                Ready::Mma {
                    nothing: client.empty(16),
                    parts: Parts::new(client, &mma::launch::sums(&call, cut)),
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
            call,
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
    /// [`Declined`] if the operands are not those of the call; nothing was launched then.
    pub fn run(&self, operands: &Operands<'_>) -> Result<(), Declined> {
        let call = &self.call;
        match (&self.ready, self.plan) {
            (Ready::Wgmma(launches), Plan::Wgmma { tiles, cut }) => {
                operands.check(call, true)?;
                for Launch { items, finish, parts } in launches {
                    self.whole_or_in_parts(operands.d, parts.as_ref(), cut, |d| {
                        wgmma::launch::launch(&self.client, call, operands, d, items, tiles, *finish);
                    });
                }
            }
            (Ready::Mma { nothing, parts }, Plan::Mma { tiles, cut }) => {
                operands.check(call, true)?;
                self.whole_or_in_parts(operands.d, parts.as_ref(), cut, |d| {
                    mma::launch::launch(&self.client, call, operands, d, nothing, tiles, &cut);
                });
            }
            (Ready::Portable { nothing }, _) => {
                operands.check(call, false)?;
                portable::launch::launch(&self.client, call, operands, nothing);
            }
            _ => return no("the plan is not what was made ready"),
        }
        Ok(())
    }

    /// Launches the kernel for the result; or for tiles of sums, and adds these up.
    fn whole_or_in_parts(&self, d: &Matrix, parts: Option<&Parts>, cut: Cut, launch: impl Fn(&Matrix)) {
        let Some(parts) = parts else {
            return launch(d);
        };
        let (client, call) = (&self.client, &self.call);
        let height = parts.slots * cut.rows;
        let sums = Matrix::contiguous(client.empty(height * cut.columns * 4), [height, cut.columns]);
        launch(&sums);
        // SAFETY: tiles of sums are as many as the schedule says; rows and columns beyond the result are left out.
        unsafe {
            add_parts::launch_unchecked(
                client,
                CubeCount::Static(
                    parts.tiles as u32,
                    (cut.rows / TOGETHER) as u32,
                    cut.columns.div_ceil(THREADS) as u32,
                ),
                CubeDim::new_1d(THREADS as u32),
                BufferArg::from_raw_parts(sums.handle.clone(), height * cut.columns),
                BufferArg::from_raw_parts(parts.table.clone(), 4 * parts.tiles),
                BufferArg::from_raw_parts(d.handle.clone(), d.elements()),
                call.m as u32,
                call.n as u32,
                d.stride as u32,
                cut.rows,
                cut.columns,
                call.epilogue == Epilogue::Accumulate,
                call.output.native(),
            );
        }
    }
}
