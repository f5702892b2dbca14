//! A call from beginning to end.

use crate::call::{Declined, Epilogue, Matmul, no};
use crate::parts::{THREADS, TOGETHER, add_parts};
use crate::schedule::{Cut, STEP, Schedule};
use crate::tensors::{Matrix, Operands};
use crate::element::element;
use crate::finish::Finish;
use crate::portable;
use crate::wgmma::launch::Items;
use crate::wgmma;
use cubecl::prelude::*;
use cubecl_core::ir::features::Tma;
use cubecl_runtime::server::Handle;

/// What a device offers, as far as selections depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offer {
    /// Multiprocessors; blocks at work at the same time.
    pub multiprocessors: usize,
    /// Whether the device has Hopper's tensor cores and tensor memory access (compute capability 9.0).
    pub hopper: bool,
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
        if offer.hopper && let Ok(factor) = wgmma::select::check(call) {
            let (tiles, cut) = wgmma::select::select(call, factor, offer.multiprocessors);
            return Ok(Self::Wgmma { tiles, cut });
        }
        Ok(Self::Portable)
    }

    /// Backend, layout and tiles, for logs and manifests.
    pub fn name(&self) -> String {
        match self {
            Self::Wgmma { tiles, cut } => match cut.parts {
                1 => tiles.name(),
                parts => format!("{}_in_{parts}", tiles.name()),
            },
            Self::Portable => "portable".into(),
        }
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
    Wgmma {
        tiles: wgmma::Tiles,
        schedule: Schedule,
        items: Items,
        finish: Finish,
    },
    Portable {
        /// Takes the places of operands that the call has not.
        nothing: Handle,
    },
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

    /// Makes `plan` ready.
    ///
    /// # Errors
    /// [`Declined`] if the plan's kernel does not compute the call.
    pub fn with(client: &Client, call: Matmul, plan: Plan) -> Result<Self, Declined> {
        call.check()?;
        let ready = match plan {
            Plan::Wgmma { tiles, cut } => {
                let factor = wgmma::select::check(&call)?;
                let simple = !call.bias && matches!(call.epilogue, Epilogue::Store | Epilogue::Accumulate);
                if cut.parts > 1 && !simple {
                    return no("sums of parts have no bias and no epilogue but accumulation");
                }
                let steps = call.k.div_ceil(STEP) + call.rank.div_ceil(STEP);
                let schedule = Schedule::new([call.m, call.n], steps, cut);
                let (starts, words) = (schedule.starts(), schedule.words());
                let put = |words: &[u32]| client.create_from_slice(u32::as_bytes(words));
                let items = Items {
                    starts: (put(&starts), starts.len()),
                    records: (put(&words), words.len() / 4),
                    blocks: schedule.blocks.len(),
                };
                let finish = Finish::new(&call, factor, schedule.in_parts());
                Ready::Wgmma {
                    tiles,
                    schedule,
                    items,
                    finish,
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

    /// Computes the product. Operands are checked first: see [`Operands::check`].
    ///
    /// # Errors
    /// [`Declined`] if the operands are not those of the call; nothing was launched then.
    pub fn run(&self, operands: &Operands<'_>) -> Result<(), Declined> {
        let call = &self.call;
        match &self.ready {
            Ready::Wgmma {
                tiles,
                schedule,
                items,
                finish,
            } => {
                operands.check(call, true)?;
                if schedule.in_parts() {
                    self.in_parts(operands, *tiles, schedule, items, *finish);
                } else {
                    wgmma::launch::launch(&self.client, call, operands, operands.d, items, *tiles, *finish);
                }
            }
            Ready::Portable { nothing } => {
                operands.check(call, false)?;
                portable::launch::launch(&self.client, call, operands, nothing);
            }
        }
        Ok(())
    }

    /// Tiles of sums, then their sums.
    fn in_parts(
        &self,
        operands: &Operands<'_>,
        tiles: wgmma::Tiles,
        schedule: &Schedule,
        items: &Items,
        finish: Finish,
    ) {
        let (client, call, d) = (&self.client, &self.call, operands.d);
        let (rows, columns) = (tiles.rows(), tiles.columns);
        let height = schedule.slots() * rows;
        let sums = Matrix::contiguous(client.empty(height * columns * 4), [height, columns]);
        wgmma::launch::launch(client, call, operands, &sums, items, tiles, finish);
        let [down, across] = schedule.tiles;
        // SAFETY: tiles of sums are as many as the schedule says; rows and columns beyond the result are left out.
        unsafe {
            add_parts::launch_unchecked(
                client,
                CubeCount::Static(
                    (down * across) as u32,
                    (rows / TOGETHER) as u32,
                    columns.div_ceil(THREADS) as u32,
                ),
                CubeDim::new_1d(THREADS as u32),
                BufferArg::from_raw_parts(sums.handle.clone(), height * columns),
                BufferArg::from_raw_parts(d.handle.clone(), d.elements()),
                call.m as u32,
                call.n as u32,
                d.stride as u32,
                schedule.cut.parts as u32,
                rows,
                columns,
                call.epilogue == Epilogue::Accumulate,
                element(call.output),
            );
        }
    }
}
