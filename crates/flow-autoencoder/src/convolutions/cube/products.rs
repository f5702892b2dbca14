//! Matrix products made ready once, by what they are and by device.

use flow_core::cube::{CubeDevice, CubeTensor};
use flow_matmul_cube::prepared::Prepared;
use flow_matmul_cube::problem::{Matmul, Refusal};
use flow_matmul_cube::tensors::Operands;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One product made ready on each device that asked for it.
type OnDevices = Vec<(CubeDevice, Arc<Prepared>)>;

/// Products that were asked for.
#[derive(Debug, Default)]
pub(super) struct Products {
    known: Mutex<HashMap<Matmul, OnDevices>>,
}

impl Products {
    /// Computes `call` on the device of `on`.
    ///
    /// # Errors
    /// [`Refusal`] if the device has no kernel for it; nothing was computed then.
    pub fn run(&self, on: &CubeTensor, call: Matmul, operands: &Operands<'_>) -> Result<(), Refusal> {
        self.prepared(on, call, operands)?.run(operands)
    }

    fn prepared(&self, on: &CubeTensor, call: Matmul, like: &Operands<'_>) -> Result<Arc<Prepared>, Refusal> {
        // A panic while the lock was held left the list whole: entries are pushed at once.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_call = known.entry(call).or_default();
        if let Some((_, prepared)) = of_call.iter().find(|(device, _)| *device == on.device) {
            return Ok(prepared.clone());
        }
        let prepared = Arc::new(Prepared::for_operands(&on.client, call, like)?);
        of_call.push((on.device.clone(), prepared.clone()));
        Ok(prepared)
    }
}
